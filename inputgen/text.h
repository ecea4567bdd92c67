/* Numbers as people read them, for the pages of reports. Pure; the text is returned by value. */
#ifndef MILLRACE_INPUTGEN_TEXT_H
#define MILLRACE_INPUTGEN_TEXT_H

#include "core/value.h"

#include <stdint.h>
#include <stdio.h>

#define INPUTGEN_TEXT_COLUMNS 100 /* no line of a report's page is longer, unless one word is */

struct inputgen_text {
    char text[CORE_TEXT_BYTES];
};

/* 1234567 -> "1,234,567" */
struct inputgen_text inputgen_text_count(uint64_t number);

/* As core_duration_format: "12.3 ms". */
struct inputgen_text inputgen_text_duration(core_ns time_ns);

/* Prints a sentence as a row of a page, "  label       text", broken between words so that it keeps within
 * INPUTGEN_TEXT_COLUMNS; the lines after the first begin below the first word. At most 1,023 bytes of it. */
void inputgen_text_row(FILE *file, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
