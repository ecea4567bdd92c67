#include "core/log.h"

#include "core/log_writer.h"
#include "core/time.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define CAUSE_COUNT 128 /* slots of the table; causes beyond share the last one */

/* How much one cause may still log: a line moves its due time on by the mean interval of lines, and may come
 * up to a burst of them early. */
struct cause {
    _Atomic(const char *) name; /* NULL: a free slot */
    _Atomic core_ns due_ns;     /* when a line comes early no more */
    _Atomic uint64_t left_out;
};

/* All of it is atomic: any thread sets and reads it, and none waits for another. Relaxed throughout: a line
 * more or less around a change does no harm. */
static atomic_int level_now = CORE_LOG_INFO, format_now = CORE_LOG_TEXT, descriptor_now = STDERR_FILENO;
static _Atomic double per_s_now = 10;
static atomic_uint burst_now = 20;
static _Atomic(core_log_sink *) sink_now;
static struct cause causes[CAUSE_COUNT];

void core_log_configure(const struct core_log_options *wanted)
{
    atomic_store_explicit(&format_now, (int)wanted->format, memory_order_relaxed);
    atomic_store_explicit(&descriptor_now, wanted->descriptor, memory_order_relaxed);
    atomic_store_explicit(&per_s_now, wanted->per_s, memory_order_relaxed);
    atomic_store_explicit(&burst_now, wanted->burst, memory_order_relaxed);
    atomic_store_explicit(&sink_now, wanted->sink, memory_order_relaxed);
    for (size_t i = 0; i < CAUSE_COUNT; i++) /* a new limit starts anew */
        atomic_store_explicit(&causes[i].due_ns, 0, memory_order_relaxed);
    core_log_set_level(wanted->level);
}

struct core_log_options core_log_configured(void)
{
    return (struct core_log_options){
        .level = (enum core_log_level)atomic_load_explicit(&level_now, memory_order_relaxed),
        .format = (enum core_log_format)atomic_load_explicit(&format_now, memory_order_relaxed),
        .descriptor = atomic_load_explicit(&descriptor_now, memory_order_relaxed),
        .per_s = atomic_load_explicit(&per_s_now, memory_order_relaxed),
        .burst = atomic_load_explicit(&burst_now, memory_order_relaxed),
        .sink = atomic_load_explicit(&sink_now, memory_order_relaxed),
    };
}

void core_log_set_level(enum core_log_level level)
{
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

bool core_log_enabled(enum core_log_level level)
{
    return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

/* The slot of a cause, taken on its first line. */
static struct cause *cause_find(const char *name)
{
    const size_t start = (size_t)(((uintptr_t)name * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % CAUSE_COUNT;
    for (size_t i = 0; i < CAUSE_COUNT; i++) {
        struct cause *cause = &causes[(start + i) % CAUSE_COUNT];
        const char *there = NULL;
        if (atomic_load_explicit(&cause->name, memory_order_relaxed) == name ||
            atomic_compare_exchange_strong_explicit(&cause->name, &there, name, memory_order_relaxed,
                                                    memory_order_relaxed) ||
            there == name)
            return cause;
    }
    return &causes[start];
}

/* Moves the due time on, or counts the line as left out. */
static bool cause_admit(struct cause *cause)
{
    const struct core_log_options options = core_log_configured();
    const core_ns now_ns = core_time_now_ns();
    core_ns due_ns = atomic_load_explicit(&cause->due_ns, memory_order_relaxed), next_ns;
    if (options.per_s <= 0)
        return true;
    const core_ns interval_ns = (core_ns)((double)CORE_NS_PER_S / options.per_s);
    do {
        next_ns = core_time_max(due_ns, now_ns) + interval_ns;
        if (next_ns - now_ns > interval_ns * options.burst) {
            atomic_fetch_add_explicit(&cause->left_out, 1, memory_order_relaxed);
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&cause->due_ns, &due_ns, next_ns, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void take_fields(struct core_log_entry *entry, const struct core_log_fields *fields)
{
    static const struct core_log_fields none;
    if (fields == NULL)
        fields = &none;
    entry->connection = fields->connection;
    entry->stream = fields->stream;
    snprintf(entry->peer, sizeof entry->peer, "%s", fields->peer != NULL ? fields->peer : "");
    snprintf(entry->unit, sizeof entry->unit, "%s", fields->unit != NULL ? fields->unit : "");
}

static void log_event(enum core_log_level level, const char *name, const struct core_log_fields *fields,
                      const char *format, va_list arguments)
{
    const int number = errno;
    struct cause *cause = cause_find(name);
    struct core_log_entry *entry = cause_admit(cause) ? core_log_writer_begin() : NULL;
    if (entry != NULL) {
        clock_gettime(CLOCK_REALTIME, &entry->at);
        entry->level = level;
        entry->cause = name;
        entry->left_out = atomic_exchange_explicit(&cause->left_out, 0, memory_order_relaxed);
        take_fields(entry, fields);
        errno = number; /* for %m */
        if (vsnprintf(entry->message, sizeof entry->message, format, arguments) < 0)
            entry->message[0] = '\0';
        core_log_writer_end(entry);
    }
    errno = number;
}

void core_log(enum core_log_level level, const char *cause, const char *format, ...)
{
    va_list arguments;
    if (!core_log_enabled(level))
        return;
    va_start(arguments, format);
    log_event(level, cause, NULL, format, arguments);
    va_end(arguments);
}

void core_log_with(enum core_log_level level, const char *cause, const struct core_log_fields *fields,
                   const char *format, ...)
{
    va_list arguments;
    if (!core_log_enabled(level))
        return;
    va_start(arguments, format);
    log_event(level, cause, fields, format, arguments);
    va_end(arguments);
}
