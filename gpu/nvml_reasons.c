/* Apart from the library, which the server does not load. */
#include "gpu/nvml.h"

#include <stdio.h>

char *gpu_nvml_reasons_text(uint32_t reasons, char *text, size_t size)
{
    static const char *const words[] = {"idle",
                                        "a set clock",
                                        "power limit",
                                        "heat or power (hardware)",
                                        "another card's clock",
                                        "heat (driver)",
                                        "heat (card)",
                                        "power supply",
                                        "display"};
    size_t used = 0;
    snprintf(text, size, "none");
    for (unsigned bit = 0; bit < sizeof words / sizeof *words && used < size; bit++)
        if (reasons >> bit & 1)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", words[bit]);
    return text;
}
