#include "core/log_line.h"

#include "core/time.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TAIL_BYTES  96 /* kept free for what follows the message */
#define STAMP_BYTES 32

static const char *const level_names[] = {
    [CORE_LOG_ERROR] = "error",
    [CORE_LOG_WARNING] = "warning",
    [CORE_LOG_INFO] = "info",
    [CORE_LOG_DEBUG] = "debug",
};
static const char *const format_names[] = {[CORE_LOG_TEXT] = "text", [CORE_LOG_JSON] = "json"};

static void append(struct core_log_line *line, const char *text, size_t bytes)
{
    if (bytes > CORE_LOG_LINE_BYTES - 1 - line->bytes)
        bytes = CORE_LOG_LINE_BYTES - 1 - line->bytes; /* one byte stays for the end of line */
    memcpy(line->text + line->bytes, text, bytes);
    line->bytes += bytes;
}

static void append_text(struct core_log_line *line, const char *text)
{
    append(line, text, strlen(text));
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
static void append_escaped(struct core_log_line *line, const char *text, bool json)
{
    const unsigned char *next = (const unsigned char *)text;
    while (*next && line->bytes < CORE_LOG_LINE_BYTES - TAIL_BYTES) {
        char escape[8];
        uint32_t code;
        const size_t length = utf8_decode(next, &code);
        if (length == 0) {
            append_text(line, "\xEF\xBF\xBD"); /* U+FFFD, the replacement character */
        } else if (code < 0x20 || (code >= 0x7F && code <= 0x9F)) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code);
            append_text(line, escape);
        } else {
            if (json && (code == '"' || code == '\\'))
                append_text(line, "\\");
            append(line, (const char *)next, length);
        }
        next += length > 0 ? length : 1;
    }
    if (*next)
        append_text(line, "...");
}

static void stamp_write(char stamp[STAMP_BYTES], const struct timespec *at)
{
    struct tm utc;
    gmtime_r(&at->tv_sec, &utc);
    const size_t length = strftime(stamp, STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp + length, STAMP_BYTES - length, ".%06ldZ", at->tv_nsec / CORE_NS_PER_US);
}

static void append_number(struct core_log_line *line, const char *format, uint64_t number)
{
    char text[64];
    if (number == 0)
        return;
    snprintf(text, sizeof text, format, number);
    append_text(line, text);
}

static void append_name(struct core_log_line *line, const char *head, const char *name)
{
    if (name[0] == '\0')
        return;
    append_text(line, head);
    append_escaped(line, name, true);
    append_text(line, "\"");
}

static void build_json(struct core_log_line *line, const struct core_log_entry *entry, const char *stamp)
{
    append_name(line, "{\"time\":\"", stamp);
    append_name(line, ",\"level\":\"", level_names[entry->level]);
    append_name(line, ",\"cause\":\"", entry->cause);
    append_number(line, ",\"connection\":%" PRIu64, entry->connection);
    append_name(line, ",\"peer\":\"", entry->peer);
    append_number(line, ",\"stream\":%" PRIu64, entry->stream);
    append_name(line, ",\"unit\":\"", entry->unit);
    append_text(line, ",\"message\":\"");
    append_escaped(line, entry->message, true);
    append_text(line, "\"");
    append_number(line, ",\"left_out\":%" PRIu64, entry->left_out);
    append_text(line, "}");
}

static void build_text(struct core_log_line *line, const struct core_log_entry *entry, const char *stamp)
{
    append_text(line, stamp);
    append_text(line, " ");
    append_text(line, level_names[entry->level]);
    append_text(line, " ");
    append_escaped(line, entry->cause, false);
    append_text(line, " ");
    append_escaped(line, entry->message, false);
    append_number(line, " (%" PRIu64 " more left out)", entry->left_out);
}

void core_log_line_build(struct core_log_line *line, const struct core_log_entry *entry,
                         enum core_log_format format)
{
    char stamp[STAMP_BYTES];
    stamp_write(stamp, &entry->at);
    line->bytes = 0;
    (format == CORE_LOG_JSON ? build_json : build_text)(line, entry, stamp);
    line->text[line->bytes++] = '\n';
}

core_status core_log_format_parse(const char *name, enum core_log_format *format)
{
    for (size_t i = 0; i < sizeof format_names / sizeof format_names[0]; i++)
        if (strcmp(name, format_names[i]) == 0) {
            *format = (enum core_log_format)i;
            return CORE_OK;
        }
    return CORE_NOT_FOUND;
}
