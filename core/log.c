#include "core/log.h"

#include "core/time.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CAUSE_COUNT   128      /* slots of the table; causes beyond share the last one */
#define MESSAGE_BYTES 2048     /* longer messages are cut */
#define LINE_BYTES    PIPE_BUF /* what one write to a pipe carries whole */
#define TAIL_BYTES    96       /* kept free for what follows the message */
#define STAMP_BYTES   32

static const char *const level_names[] = {
    [CORE_LOG_ERROR] = "error",
    [CORE_LOG_WARNING] = "warning",
    [CORE_LOG_INFO] = "info",
    [CORE_LOG_DEBUG] = "debug",
};
static const char *const format_names[] = {[CORE_LOG_TEXT] = "text", [CORE_LOG_JSON] = "json"};

/* How much one cause may still log. */
struct cause {
    const char *name; /* NULL: a free slot */
    double tokens;
    core_ns refilled_ns;
    uint64_t left_out;
};

static atomic_int level_now = CORE_LOG_INFO; /* atomic: any thread sets and reads it */

/* Everything below is owned by whoever holds the lock; so are the buffers, which spares small stacks. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct core_log_options options = {
    .format = CORE_LOG_TEXT, .descriptor = STDERR_FILENO, .per_s = 10, .burst = 20};
static struct cause causes[CAUSE_COUNT];
static char message[MESSAGE_BYTES];
static char line[LINE_BYTES];
static size_t line_bytes;

void core_log_configure(const struct core_log_options *wanted)
{
    pthread_mutex_lock(&lock);
    options = *wanted;
    pthread_mutex_unlock(&lock);
    core_log_set_level(wanted->level);
}

struct core_log_options core_log_configured(void)
{
    pthread_mutex_lock(&lock);
    struct core_log_options now = options;
    pthread_mutex_unlock(&lock);
    now.level = (enum core_log_level)atomic_load_explicit(&level_now, memory_order_relaxed);
    return now;
}

void core_log_set_level(enum core_log_level level)
{
    /* Relaxed: a line more or less around the change does no harm. */
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

bool core_log_enabled(enum core_log_level level)
{
    return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

/* The slot of a cause, taken on its first line. */
static struct cause *cause_find(const char *name, core_ns now_ns)
{
    const size_t start = (size_t)(((uintptr_t)name * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % CAUSE_COUNT;
    for (size_t i = 0; i < CAUSE_COUNT; i++) {
        struct cause *cause = &causes[(start + i) % CAUSE_COUNT];
        if (cause->name == name)
            return cause;
        if (!cause->name) {
            *cause = (struct cause){.name = name, .tokens = options.burst, .refilled_ns = now_ns};
            return cause;
        }
    }
    return &causes[start];
}

/* Takes a token, or counts the line as left out. */
static bool cause_admit(struct cause *cause, core_ns now_ns)
{
    if (options.per_s <= 0)
        return true;
    const double elapsed_s = (double)(now_ns - cause->refilled_ns) / (double)CORE_NS_PER_S;
    cause->tokens += elapsed_s * options.per_s;
    cause->refilled_ns = now_ns;
    if (cause->tokens > options.burst)
        cause->tokens = options.burst;
    if (cause->tokens < 1) {
        cause->left_out++;
        return false;
    }
    cause->tokens -= 1;
    return true;
}

static void line_append(const char *text, size_t bytes)
{
    if (bytes > LINE_BYTES - 1 - line_bytes)
        bytes = LINE_BYTES - 1 - line_bytes; /* one byte stays for the end of line */
    memcpy(line + line_bytes, text, bytes);
    line_bytes += bytes;
}

static void line_append_text(const char *text)
{
    line_append(text, strlen(text));
}

/* Length of the UTF-8 sequence at text and its code point; 0 where it is none (the terminating zero counts
 * as a wrong continuation, so nothing is read beyond it). */
static size_t utf8_decode(const unsigned char *text, uint32_t *code)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char first = text[0];
    const size_t length = first < 0x80             ? 1
                          : (first & 0xE0) == 0xC0 ? 2
                          : (first & 0xF0) == 0xE0 ? 3
                          : (first & 0xF8) == 0xF0 ? 4
                                                   : 0;
    if (length <= 1) {
        *code = first;
        return length;
    }
    *code = first & (0xFFU >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
        *code = *code << 6 | (text[i] & 0x3FU);
    }
    const bool surrogate = *code >= 0xD800 && *code <= 0xDFFF;
    return *code < smallest[length] || *code > 0x10FFFF || surrogate ? 0 : length;
}

/* Appends text with control characters escaped and broken UTF-8 replaced, so that no peer's words can end a
 * line, move a terminal's cursor or break JSON. */
static void line_append_escaped(const char *text, bool json)
{
    const unsigned char *next = (const unsigned char *)text;
    while (*next && line_bytes < LINE_BYTES - TAIL_BYTES) {
        char escape[8];
        uint32_t code;
        const size_t length = utf8_decode(next, &code);
        if (length == 0) {
            line_append_text("\xEF\xBF\xBD"); /* U+FFFD, the replacement character */
        } else if (code < 0x20 || (code >= 0x7F && code <= 0x9F)) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code);
            line_append_text(escape);
        } else {
            if (json && (code == '"' || code == '\\'))
                line_append_text("\\");
            line_append((const char *)next, length);
        }
        next += length > 0 ? length : 1;
    }
    if (*next)
        line_append_text("...");
}

static void stamp_write(char stamp[STAMP_BYTES])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    const size_t length = strftime(stamp, STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp + length, STAMP_BYTES - length, ".%06ldZ", now.tv_nsec / CORE_NS_PER_US);
}

static void line_build(enum core_log_level level, const struct cause *cause, const char *name)
{
    const bool json = options.format == CORE_LOG_JSON;
    char stamp[STAMP_BYTES], left_out[48] = "";
    stamp_write(stamp);
    line_bytes = 0;
    line_append_text(json ? "{\"time\":\"" : "");
    line_append_text(stamp);
    line_append_text(json ? "\",\"level\":\"" : " ");
    line_append_text(level_names[level]);
    line_append_text(json ? "\",\"cause\":\"" : " ");
    line_append_escaped(name, json);
    line_append_text(json ? "\",\"message\":\"" : " ");
    line_append_escaped(message, json);
    line_append_text(json ? "\"" : "");
    if (cause->left_out > 0)
        snprintf(left_out, sizeof left_out, json ? ",\"left_out\":%" PRIu64 : " (%" PRIu64 " more left out)",
                 cause->left_out);
    line_append_text(left_out);
    line_append_text(json ? "}" : "");
    line[line_bytes++] = '\n';
}

/* One write for the whole line. Where that fails there is no one left to tell. */
static void line_write(void)
{
    ssize_t written;
    do
        written = write(options.descriptor, line, line_bytes);
    while (written < 0 && errno == EINTR);
}

void core_log(enum core_log_level level, const char *name, const char *format, ...)
{
    if (!core_log_enabled(level))
        return;
    const int number = errno;
    pthread_mutex_lock(&lock);
    const core_ns now_ns = core_time_now_ns();
    struct cause *cause = cause_find(name, now_ns);
    if (cause_admit(cause, now_ns)) {
        va_list arguments;
        va_start(arguments, format);
        errno = number; /* for %m */
        if (vsnprintf(message, sizeof message, format, arguments) < 0)
            message[0] = '\0';
        va_end(arguments);
        line_build(level, cause, name);
        cause->left_out = 0;
        line_write();
    }
    pthread_mutex_unlock(&lock);
    errno = number;
}

/* The index of name among count names, or -1. */
static int name_find(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0)
            return (int)i;
    }
    return -1;
}

core_status core_log_level_parse(const char *name, enum core_log_level *level)
{
    const int found = name_find(name, level_names, sizeof level_names / sizeof level_names[0]);
    if (found < 0)
        return CORE_NOT_FOUND;
    *level = (enum core_log_level)found;
    return CORE_OK;
}

core_status core_log_format_parse(const char *name, enum core_log_format *format)
{
    const int found = name_find(name, format_names, sizeof format_names / sizeof format_names[0]);
    if (found < 0)
        return CORE_NOT_FOUND;
    *format = (enum core_log_format)found;
    return CORE_OK;
}
