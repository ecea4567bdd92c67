/* The log: one line per event on standard error (or a given descriptor), as text or as JSON, rate-limited per
 * cause.
 *
 *   2026-11-21T10:15:02.123456Z warning connection.stalled peer=unix:pid=17 stream=4: reader took nothing for
 * 10 s
 *
 * A cause is a short dotted name ("connection.stalled"). Each cause may log `burst` lines at once and `per_s`
 * in the long run; what is left out is counted and told with the next line of that cause ("(12 more left
 * out)"). Never called on the hot path. Any thread; lines never interleave. Level and format may change at
 * any time. */
#ifndef MILLRACE_CORE_LOG_H
#define MILLRACE_CORE_LOG_H

#include "core/status.h"

#include <stdbool.h>

enum core_log_level { CORE_LOG_ERROR, CORE_LOG_WARNING, CORE_LOG_INFO, CORE_LOG_DEBUG };
enum core_log_format { CORE_LOG_TEXT, CORE_LOG_JSON };

struct core_log_options {
    enum core_log_level level; /* less urgent lines are dropped */
    enum core_log_format format;
    int descriptor; /* where lines go; not owned */
    double per_s;   /* long-run lines per second and cause; 0: no limit */
    unsigned burst; /* lines of one cause at once */
};

/* Until the first call: info, text, standard error, 10 per second, burst 20. */
void core_log_configure(const struct core_log_options *options);
struct core_log_options core_log_configured(void); /* as it is now */
void core_log_set_level(enum core_log_level level);
bool core_log_enabled(enum core_log_level level);

/* Logs one event. `cause` must be a string literal (its address identifies it). */
void core_log(enum core_log_level level, const char *cause, const char *format, ...) CORE_PRINTF(3, 4);

/* "error".."debug", "text"/"json"; CORE_NOT_FOUND otherwise. */
CORE_CHECKED core_status core_log_level_parse(const char *name, enum core_log_level *level);
CORE_CHECKED core_status core_log_format_parse(const char *name, enum core_log_format *format);

#endif
