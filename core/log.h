/* The log: one line per event on standard error (or a given descriptor), as text or as JSON, rate-limited per
 * cause.
 *
 *   2026-11-21T10:15:02.123456Z warning connection.stalled connection 7 (unix:pid=17) took none of its
 * results for 10.0 s; closed
 *
 * A cause is a short dotted name ("connection.stalled"). Each cause may log `burst` lines at once and `per_s`
 * in the long run; what is left out is counted and told with the next line of that cause ("(12 more left
 * out)"). Any thread; lines never interleave. Level and format may change at any time.
 *
 * Between core_log_start and core_log_stop no caller ever waits, whether the log is read or not: it formats
 * its message into a ring and takes no lock; one thread of ordinary priority makes the lines and writes them.
 * A line that finds no room in the ring, or can not be written, is lost; the log tells how many
 * (`log.lost`) as soon as it is taken again. Before and after, a line is written before the call returns. */
#ifndef MILLRACE_CORE_LOG_H
#define MILLRACE_CORE_LOG_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum core_log_level { CORE_LOG_ERROR, CORE_LOG_WARNING, CORE_LOG_INFO, CORE_LOG_DEBUG };
enum core_log_format { CORE_LOG_TEXT, CORE_LOG_JSON };

/* One event, as the caller's thread takes it down. All else - calendar, escapes - is done where it is
 * written.
 */
struct core_log_entry {
    struct timespec at; /* CLOCK_REALTIME */
    enum core_log_level level;
    const char *cause;    /* a string literal */
    uint64_t left_out;    /* lines of this cause that its limit left out before */
    uint64_t lost_before; /* lines of any cause that found no room before; told already */
    uint64_t connection;  /* 0: none */
    uint32_t stream;      /* 0: none */
    char peer[96];        /* empty: none */
    char unit[32];        /* empty: none */
    char message[2048];   /* longer messages are cut */
};

/* Takes an event elsewhere than to the descriptor; false: it can not, the line goes to the descriptor. Called
 * by one thread at a time, which may wait. */
typedef bool core_log_sink(const struct core_log_entry *entry);

struct core_log_options {
    enum core_log_level level; /* less urgent lines are dropped */
    enum core_log_format format;
    int descriptor;      /* where lines go; not owned */
    double per_s;        /* long-run lines per second and cause; 0: no limit */
    unsigned burst;      /* lines of one cause at once */
    core_log_sink *sink; /* NULL: none */
};

/* Until the first call: info, text, standard error, 10 per second, burst 20. */
void core_log_configure(const struct core_log_options *options);
struct core_log_options core_log_configured(void); /* as it is now */
void core_log_set_level(enum core_log_level level);
bool core_log_enabled(enum core_log_level level);

/* From here on another thread writes. To be called before the threads that must not wait, by one thread at a
 * time; it inherits the caller's signal mask. Where it fails lines are written directly, as before. */
CORE_CHECKED core_status core_log_start(struct core_error *error);

/* Waits until all that was logged is written, at most timeout_ns; true: it is, and further lines are written
 * directly. False: the log is not read; nothing changes, and the process may end or this be tried again. For
 * when the other threads that log have ended. Without core_log_start it does nothing. */
bool core_log_stop(core_ns timeout_ns);

/* For checking that the writer is alive: core_log_nudge makes its loop run once, and core_log_turns counts
 * the runs. core_log_waits is true while the writer waits for the reader of the log, or if there is no
 * writer. Any thread. */
void core_log_nudge(void);
uint64_t core_log_turns(void);
bool core_log_waits(void);

uint64_t core_log_lost(void); /* lines lost since the process began; any thread */

/* What an event is about, as far as the caller knows it: fields of their own in JSON. */
struct core_log_fields {
    uint64_t connection; /* 0: none */
    const char *peer;    /* NULL: none; copied */
    uint32_t stream;     /* 0: none */
    const char *unit;    /* "cpu-0", "gpu-1"; NULL: none; copied */
};

/* Logs one event. `cause` must be a string literal (its address identifies it). */
void core_log(enum core_log_level level, const char *cause, const char *format, ...) CORE_PRINTF(3, 4);
void core_log_with(enum core_log_level level, const char *cause, const struct core_log_fields *fields,
                   const char *format, ...) CORE_PRINTF(4, 5);

/* "text" or "json"; CORE_NOT_FOUND otherwise. */
CORE_CHECKED core_status core_log_format_parse(const char *name, enum core_log_format *format);

#endif
