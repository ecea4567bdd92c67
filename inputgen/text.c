#include "inputgen/text.h"

#include <inttypes.h>
#include <stdio.h>

struct inputgen_text inputgen_text_count(uint64_t number)
{
    struct inputgen_text plain, out;
    int digits = snprintf(plain.text, sizeof plain.text, "%" PRIu64, number);
    char *to = out.text;
    for (int at = 0; at < digits; at++) {
        if (at > 0 && (digits - at) % 3 == 0)
            *to++ = ',';
        *to++ = plain.text[at];
    }
    *to = '\0';
    return out;
}

struct inputgen_text inputgen_text_duration(core_ns time_ns)
{
    struct inputgen_text out;
    (void)core_duration_format(time_ns, out.text);
    return out;
}
