/* Times, rates, sizes, counts and bytes as people write and read them: in options, configuration files and
 * messages. One grammar for all programs: a decimal number from 0 up, a space or none, and a unit.
 *
 * Pure functions; any thread. The parsers return false, and leave the value undefined, if the text is none.
 */
#ifndef MILLRACE_CORE_VALUE_H
#define MILLRACE_CORE_VALUE_H

#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 20ms, 500us, 1.5s, 1min, 2h. A number without a unit counts bare_ns each; 0: it needs one. */
bool core_duration_parse(const char *text, core_ns bare_ns, core_ns *value_ns);

/* 5Mbit/s, 800k, 1.5MB/s: above 0. A number without a unit counts so many bits per second each. */
bool core_rate_parse(const char *text, double bare_bits_per_s, double *bits_per_s);

/* 1408, 64KiB, 64k, 1MiB, 2GiB: powers of 1024, also in the short form; a whole number of bytes. A number
 * without a unit counts bare_bytes each. */
bool core_bytes_parse(const char *text, uint64_t bare_bytes, uint64_t maximum, uint64_t *value);

/* Decimal digits alone. */
bool core_count_parse(const char *text, uint64_t maximum, uint64_t *value);

/* Two digits a byte, at most `room` bytes. */
bool core_hex_parse(const char *text, size_t text_bytes, uint8_t *bytes, size_t room, size_t *count);

/* Three significant digits in the unit that suits, "12.3 ms"; each returns text. */
#define CORE_TEXT_BYTES 32
char *core_duration_format(core_ns value_ns, char text[CORE_TEXT_BYTES]);
char *core_rate_format(double bits_per_s, char text[CORE_TEXT_BYTES]);
char *core_bytes_format(double bytes, char text[CORE_TEXT_BYTES]);
char *core_hex_format(const uint8_t *bytes, size_t count, char *text); /* 2 x count + 1 characters */

#endif
