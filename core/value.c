#include "core/value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit {
    const char *name;
    double factor;
};

/* A decimal number from 0 up, then one of the units ("" among them if none need be given). */
static bool parse_with_unit(const char *text, const struct unit *units, double *value)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) && text[0] != '.')
        return false;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return false; /* strtod takes it for hexadecimal, and would make 27 of "0x1B" */
    double number = strtod(text, &end);
    while (*end == ' ')
        end++;
    for (; units->name != NULL; units++) {
        if (strcmp(end, units->name) == 0) {
            *value = number * units->factor;
            return isfinite(*value);
        }
    }
    return false;
}

bool core_rate_parse(const char *text, double bare_bits_per_s, double *bits_per_s)
{
    const struct unit units[] = {
        {"", bare_bits_per_s}, {"k", 1e3},      {"M", 1e6},      {"G", 1e9},    {"bit/s", 1},
        {"kbit/s", 1e3},       {"Mbit/s", 1e6}, {"Gbit/s", 1e9}, {"bit", 1},    {"kbit", 1e3},
        {"Mbit", 1e6},         {"Gbit", 1e9},   {"B/s", 8},      {"kB/s", 8e3}, {"MB/s", 8e6},
        {"GB/s", 8e9},         {NULL, 0},
    };
    return parse_with_unit(text, units, bits_per_s) && *bits_per_s > 0;
}

bool core_duration_parse(const char *text, core_ns bare_ns, core_ns *value_ns)
{
    const struct unit units[] = {{"ns", 1},
                                 {"us", 1e3},
                                 {"ms", 1e6},
                                 {"s", 1e9},
                                 {"min", 60e9},
                                 {"h", 3600e9},
                                 {bare_ns > 0 ? "" : NULL, (double)bare_ns},
                                 {NULL, 0}};
    double value;
    if (!parse_with_unit(text, units, &value) || value >= 9e18)
        return false;
    *value_ns = (core_ns)llround(value);
    return true;
}

bool core_count_parse(const char *text, uint64_t maximum, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    *value = number;
    return errno == 0 && *end == '\0' && number <= maximum;
}

bool core_bytes_parse(const char *text, uint64_t bare_bytes, uint64_t maximum, uint64_t *value)
{
    const struct unit units[] = {{"", (double)bare_bytes},
                                 {"B", 1},
                                 {"KiB", 1024},
                                 {"k", 1024},
                                 {"MiB", 1048576},
                                 {"M", 1048576},
                                 {"GiB", 1073741824},
                                 {"G", 1073741824},
                                 {NULL, 0}};
    double number;
    if (!parse_with_unit(text, units, &number) || number != floor(number) || number >= 0x1p64)
        return false;
    *value = (uint64_t)number;
    return *value <= maximum; /* as a double the maximum may be larger */
}

static int hex_digit(char character)
{
    const char *digits = "0123456789abcdef";
    const char *found = character == '\0' ? NULL : strchr(digits, tolower((unsigned char)character));
    return found == NULL ? -1 : (int)(found - digits);
}

bool core_hex_parse(const char *text, size_t text_bytes, uint8_t *bytes, size_t room, size_t *count)
{
    if (text_bytes % 2 != 0 || text_bytes / 2 > room)
        return false;
    for (size_t i = 0; i < text_bytes / 2; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    *count = text_bytes / 2;
    return true;
}

/* Three significant digits in the largest unit that leaves at least 1. */
static char *format_with_unit(double value, const struct unit *units, char text[CORE_TEXT_BYTES])
{
    while (units[1].name != NULL && fabs(value) < units->factor)
        units++;
    double scaled = value / units->factor;
    int decimals = fabs(scaled) >= 100 || scaled == floor(scaled) ? 0 : fabs(scaled) >= 10 ? 1 : 2;
    snprintf(text, CORE_TEXT_BYTES, "%.*f %s", decimals, scaled, units->name);
    return text;
}

char *core_duration_format(core_ns value_ns, char text[CORE_TEXT_BYTES])
{
    static const struct unit units[] = {{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}, {NULL, 0}};
    return format_with_unit((double)value_ns, units, text);
}

char *core_rate_format(double bits_per_s, char text[CORE_TEXT_BYTES])
{
    static const struct unit units[] = {
        {"Gbit/s", 1e9}, {"Mbit/s", 1e6}, {"kbit/s", 1e3}, {"bit/s", 1}, {NULL, 0}};
    return format_with_unit(bits_per_s, units, text);
}

char *core_bytes_format(double bytes, char text[CORE_TEXT_BYTES])
{
    static const struct unit units[] = {
        {"GiB", 1073741824}, {"MiB", 1048576}, {"KiB", 1024}, {"bytes", 1}, {NULL, 0}};
    return format_with_unit(bytes, units, text);
}

char *core_hex_format(const uint8_t *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    text[2 * count] = '\0';
    return text;
}
