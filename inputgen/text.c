#include "inputgen/text.h"

#include <inttypes.h>
#include <stddef.h>
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
    static const struct {
        double unit_ns;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    struct inputgen_text out;
    double absolute = time_ns < 0 ? -(double)time_ns : (double)time_ns;
    size_t at = 0;
    while (at < 3 && absolute < units[at].unit_ns)
        at++;
    double value = (double)time_ns / units[at].unit_ns;
    double size = absolute / units[at].unit_ns;
    int decimals = at == 3 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
    (void)snprintf(out.text, sizeof out.text, "%.*f %s", decimals, value, units[at].name);
    return out;
}
