/* Arbitrary bytes as what happens to a planner and its units (support/history.h): streams that open, change, move
 * and close, requests that wait, devices that are lost and come back. No packet may be late, the independent
 * checker must accept what stands, and nothing may be left when all have closed. */
#include "tests/support/history.h"

#include <stdio.h>
#include <stdlib.h>

#define BYTES_MAX 160 /* what follows is left out: so many histories in a second find more than long ones */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[1 << 20];
    struct history_totals totals;
    history_totals_init(&totals);
    text[0] = '\0';
    if (!history_play(data, size < BYTES_MAX ? size : BYTES_MAX, &totals, text, sizeof text)) {
        fprintf(stderr, "%s", text);
        abort();
    }
    return 0;
}
