/* The control words of a service, read as they come: from a file, a FIFO, or what a command prints. A line each:
 *
 *   even 00112233445566778899aabbccddeeff              from now on
 *   odd name=news-17 +2s                               a key of the server's keyring, in two seconds
 *   even 00112233445566778899aabbccddeeff @1764000000.5 at this Unix time
 *
 * Empty lines, and those that begin with '#', are skipped. A line that is none is told and skipped.
 *
 * A file is read as it grows, and from its beginning when it is another one or shorter than before; a command is
 * started again a second after it has ended. Files must be private (core/keyfile.h). One thread. */
#ifndef MILLRACE_CLIENT_TS_WORDS_H
#define MILLRACE_CLIENT_TS_WORDS_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TS_WORD_BYTES      16
#define TS_KEY_NAME_MAX    63
#define TS_WORDS_MAX       16 /* that wait for their time */
#define TS_WORD_LINE_BYTES 256

struct ts_word {
    bool odd;
    bool named;
    bool has_time; /* it was said when it is due */
    uint32_t key_bytes;
    uint8_t key[TS_KEY_NAME_MAX + 1]; /* the word, or the name of a key */
    core_ns due_ns;
};

/* A line, not terminated, read at now_ns, when the Unix time was unix_ns. CORE_INVALID with the reason; CORE_NOT_FOUND:
 * it is empty or a remark. Pure. */
CORE_CHECKED core_status ts_word_parse(const char *line, size_t bytes, core_ns now_ns, core_ns unix_ns,
                                       struct ts_word *word, struct core_error *error);

bool ts_word_is_same(const struct ts_word *one, const struct ts_word *two);

/* Lies in secret memory. */
struct ts_words {
    const char *name; /* of the service, for messages */
    const char *file, *command;
    void (*say)(const char *format, ...) CORE_PRINTF(1, 2);
    uint64_t refused; /* lines that were none, or for which there was no room */
    /* its own */
    int descriptor; /* -1: none */
    bool is_file;   /* a regular one */
    dev_t device;
    ino_t inode;
    off_t offset;
    pid_t child; /* 0: none */
    core_ns open_not_before_ns;
    struct core_error told; /* why it can not be opened */
    char line[TS_WORD_LINE_BYTES];
    size_t line_bytes;
    bool line_too_long;
    struct ts_word waiting[TS_WORDS_MAX]; /* in the order in which they came */
    size_t count;
};

/* NULL: no memory. Of `file` and `command` one is NULL. */
struct ts_words *ts_words_make(const char *name, const char *file, const char *command,
                               void (*say)(const char *format, ...) CORE_PRINTF(1, 2));

/* Reads what is there. Every 100 ms, or so. */
void ts_words_read(struct ts_words *words, core_ns now_ns);

/* The next one; NULL: there is none. */
const struct ts_word *ts_words_first(const struct ts_words *words);
void ts_words_drop_first(struct ts_words *words);

void ts_words_free(struct ts_words *words); /* ends the command; NULL is fine */

#endif
