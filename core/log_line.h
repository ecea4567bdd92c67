/* The line that an event becomes. Private to core. */
#ifndef MILLRACE_CORE_LOG_LINE_H
#define MILLRACE_CORE_LOG_LINE_H

#include "core/log.h"

#include <limits.h>
#include <stddef.h>

#define CORE_LOG_LINE_BYTES PIPE_BUF /* what one write to a pipe carries whole */

struct core_log_line {
    size_t bytes; /* the end of line included */
    char text[CORE_LOG_LINE_BYTES];
};

void core_log_line_build(struct core_log_line *line, const struct core_log_entry *entry,
                         enum core_log_format format);

#endif
