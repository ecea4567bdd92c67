/* One event on its way to the log, and the line that it becomes. Private to core. */
#ifndef MILLRACE_CORE_LOG_LINE_H
#define MILLRACE_CORE_LOG_LINE_H

#include "core/log.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define CORE_LOG_LINE_BYTES PIPE_BUF /* what one write to a pipe carries whole */

/* What the caller's thread takes down. All else - calendar, escapes - is done where the line is written. */
struct core_log_entry {
    struct timespec at; /* CLOCK_REALTIME */
    enum core_log_level level;
    const char *cause;    /* a string literal */
    uint64_t left_out;    /* lines of this cause that its limit left out before */
    uint64_t lost_before; /* lines of any cause that found no room before */
    uint64_t connection;  /* 0: none */
    uint32_t stream;      /* 0: none */
    char peer[96];        /* empty: none */
    char unit[32];        /* empty: none */
    char message[2048];   /* longer messages are cut */
};

struct core_log_line {
    size_t bytes; /* the end of line included */
    char text[CORE_LOG_LINE_BYTES];
};

void core_log_line_build(struct core_log_line *line, const struct core_log_entry *entry,
                         enum core_log_format format);

#endif
