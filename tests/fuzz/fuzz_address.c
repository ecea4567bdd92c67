/* Any text: parsing it ends without harm, and what was accepted says the same when written and read again. */
#include "core/address.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct core_address address, again;
    struct core_error error;
    char formatted[300], *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (core_address_parse(text, &address, &error) == CORE_OK) {
        core_address_format(&address, formatted, sizeof formatted);
        if (core_address_parse(formatted, &again, NULL) != CORE_OK || again.transport != address.transport ||
            again.port != address.port || strcmp(again.host, address.host) != 0)
            abort();
    }
    free(text);
    return 0;
}
