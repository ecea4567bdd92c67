/* Numbers as people read them, for the pages of reports. Pure; the text is returned by value. */
#ifndef MILLRACE_INPUTGEN_TEXT_H
#define MILLRACE_INPUTGEN_TEXT_H

#include "core/value.h"

#include <stdint.h>

struct inputgen_text {
    char text[CORE_TEXT_BYTES];
};

/* 1234567 -> "1,234,567" */
struct inputgen_text inputgen_text_count(uint64_t number);

/* As core_duration_format: "12.3 ms". */
struct inputgen_text inputgen_text_duration(core_ns time_ns);

#endif
