#define SD_JOURNAL_SUPPRESS_LOCATION /* ours says nothing of the caller */
#include "server/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#define FIELDS_MAX 8

/* One entry of the journal in the making. */
struct fields {
    struct iovec vector[FIELDS_MAX];
    int count;
    size_t bytes;    /* used of text */
    char text[3072]; /* all of them, terminated */
};

static void add_text(struct fields *fields, const char *name, const char *value)
{
    char *text = fields->text + fields->bytes;
    const size_t room = sizeof fields->text - fields->bytes;
    if (value[0] == '\0')
        return;
    const int length = snprintf(text, room, "%s=%s", name, value);
    if (length < 0 || (size_t)length >= room)
        return;
    fields->vector[fields->count++] = (struct iovec){.iov_base = text, .iov_len = (size_t)length};
    fields->bytes += (size_t)length;
}

static void add_number(struct fields *fields, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    add_text(fields, name, value > 0 ? text : "");
}

/* People read the message alone, so it has the cause too, as a line does. */
static bool write_entry(const struct core_log_entry *entry)
{
    static const int priorities[] = {
        [CORE_LOG_ERROR] = LOG_ERR,
        [CORE_LOG_WARNING] = LOG_WARNING,
        [CORE_LOG_INFO] = LOG_INFO,
        [CORE_LOG_DEBUG] = LOG_DEBUG,
    };
    struct fields fields = {.count = 0};
    char message[sizeof entry->message + 128], left_out[48] = "";
    if (entry->left_out > 0)
        snprintf(left_out, sizeof left_out, " (%" PRIu64 " more left out)", entry->left_out);
    snprintf(message, sizeof message, "%s %s%s", entry->cause, entry->message, left_out);
    add_text(&fields, "MESSAGE", message);
    add_number(&fields, "PRIORITY", (uint64_t)priorities[entry->level]);
    add_text(&fields, "MILLRACE_CAUSE", entry->cause);
    add_number(&fields, "MILLRACE_CONNECTION", entry->connection);
    add_text(&fields, "MILLRACE_PEER", entry->peer);
    add_number(&fields, "MILLRACE_STREAM", entry->stream);
    add_text(&fields, "MILLRACE_UNIT", entry->unit);
    add_number(&fields, "MILLRACE_LEFT_OUT", entry->left_out);
    return sd_journal_sendv(fields.vector, fields.count) == 0;
}

core_log_sink *server_journal_sink(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat about;
    char here[64];
    if (stream == NULL || fstat(STDERR_FILENO, &about) != 0)
        return NULL;
    snprintf(here, sizeof here, "%ju:%ju", (uintmax_t)about.st_dev, (uintmax_t)about.st_ino);
    return strcmp(stream, here) == 0 ? write_entry : NULL;
}
