#include "client/ts/words.h"

#include "core/keyfile.h"
#include "core/secret.h"
#include "core/value.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OPEN_PAUSE_NS CORE_NS_PER_S
#define DUE_NS_MAX    (24 * 3600 * CORE_NS_PER_S)

extern char **environ;

/* ---- a line ---- */

/* The next word of the line; false: there is none. */
static bool take_text(const char **at, const char *end, char text[TS_WORD_LINE_BYTES])
{
    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\r'))
        ++*at;
    size_t bytes = 0;
    while (*at < end && **at != ' ' && **at != '\t' && **at != '\r' && bytes < TS_WORD_LINE_BYTES - 1)
        text[bytes++] = *(*at)++;
    text[bytes] = '\0';
    return bytes > 0;
}

static bool parse_key(const char *text, struct ts_word *word)
{
    size_t bytes;
    word->named = strncmp(text, "name=", 5) == 0;
    if (!word->named) {
        bool is_hex = core_hex_parse(text, strlen(text), word->key, TS_WORD_BYTES, &bytes);
        word->key_bytes = (uint32_t)bytes;
        return is_hex && bytes == TS_WORD_BYTES;
    }
    bytes = strlen(text + 5);
    if (bytes == 0 || bytes > TS_KEY_NAME_MAX)
        return false;
    memcpy(word->key, text + 5, bytes);
    word->key_bytes = (uint32_t)bytes;
    return true;
}

/* "+2s", or "@1764000000.25", a Unix time in seconds. */
static bool parse_time(const char *text, core_ns now_ns, core_ns unix_ns, struct ts_word *word)
{
    core_ns value_ns;
    char *end;
    word->has_time = true;
    if (text[0] == '+') {
        if (!core_duration_parse(text + 1, 0, &value_ns) || value_ns > DUE_NS_MAX)
            return false;
        word->due_ns = now_ns + value_ns;
        return true;
    }
    if (text[0] != '@' || strspn(text + 1, "0123456789.") != strlen(text + 1) || text[1] == '\0')
        return false;
    double seconds = strtod(text + 1, &end);
    if (*end != '\0' || seconds > 9e9)
        return false;
    double whole_s = (double)(int64_t)seconds;
    value_ns = (core_ns)whole_s * CORE_NS_PER_S + (core_ns)((seconds - whole_s) * 1e9) - unix_ns;
    word->due_ns = now_ns + value_ns;
    return value_ns <= DUE_NS_MAX;
}

core_status ts_word_parse(const char *line, size_t bytes, core_ns now_ns, core_ns unix_ns,
                          struct ts_word *word, struct core_error *error)
{
    const char *end = line + bytes;
    char text[TS_WORD_LINE_BYTES];
    core_status status = CORE_OK;
    *word = (struct ts_word){.due_ns = now_ns};
    if (!take_text(&line, end, text) || text[0] == '#')
        return CORE_NOT_FOUND;
    word->odd = strcmp(text, "odd") == 0;
    if (!word->odd && strcmp(text, "even") != 0)
        return core_error_set(error, CORE_INVALID, "a line of words begins with even or odd");
    if (!take_text(&line, end, text) || !parse_key(text, word))
        status = core_error_set(error, CORE_INVALID,
                                "a word has 32 hexadecimal digits, or is the name=NAME of a key");
    else if (take_text(&line, end, text) && !parse_time(text, now_ns, unix_ns, word))
        status = core_error_set(error, CORE_INVALID,
                                "the time of a word is +TIME, as +2s, or @ and a Unix time, within a day");
    else if (take_text(&line, end, text))
        status = core_error_set(error, CORE_INVALID, "there is more in a line of words than a time");
    core_secret_wipe(text, sizeof text);
    return status;
}

bool ts_word_is_same(const struct ts_word *one, const struct ts_word *two)
{
    return one->odd == two->odd && one->named == two->named && one->key_bytes == two->key_bytes &&
           memcmp(one->key, two->key, one->key_bytes) == 0;
}

/* ---- the words that wait ---- */

static core_ns unix_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (core_ns)now.tv_sec * CORE_NS_PER_S + now.tv_nsec;
}

static void take_line(struct ts_words *words, core_ns now_ns)
{
    struct core_error error;
    struct ts_word *word = &words->waiting[words->count];
    if (words->count == TS_WORDS_MAX) {
        words->refused++;
        words->say("%s: a word is left out: %d wait for their time already", words->name, TS_WORDS_MAX);
        return;
    }
    core_status status = words->line_too_long ? core_error_set(&error, CORE_INVALID, "the line is too long")
                                              : ts_word_parse(words->line, words->line_bytes, now_ns,
                                                              unix_now_ns(), word, &error);
    if (status == CORE_OK) {
        words->count++;
    } else if (status != CORE_NOT_FOUND) {
        words->refused++;
        words->say("%s: a word is left out: %s", words->name, error.text);
    }
}

static void take_bytes(struct ts_words *words, const char *bytes, size_t count, core_ns now_ns)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '\n') {
            words->line_too_long |= words->line_bytes == sizeof words->line;
            if (!words->line_too_long)
                words->line[words->line_bytes++] = bytes[i];
            continue;
        }
        take_line(words, now_ns);
        words->line_bytes = 0;
        words->line_too_long = false;
    }
}

const struct ts_word *ts_words_first(const struct ts_words *words)
{
    return words->count > 0 ? &words->waiting[0] : NULL;
}

void ts_words_drop_first(struct ts_words *words)
{
    words->count--;
    memmove(&words->waiting[0], &words->waiting[1], words->count * sizeof words->waiting[0]);
    core_secret_wipe(&words->waiting[words->count], sizeof words->waiting[0]);
}

/* ---- where they come from ---- */

static void close_source(struct ts_words *words)
{
    if (words->descriptor >= 0)
        close(words->descriptor);
    words->descriptor = -1;
    words->line_bytes = 0;
    words->line_too_long = false;
    if (words->child > 0) {
        kill(-words->child, SIGKILL);
        waitpid(words->child, NULL, 0);
    }
    words->child = 0;
}

/* In a process group of its own, which ends with it. */
static core_status start_command(struct ts_words *words, struct core_error *error)
{
    int ends[2];
    char *const arguments[] = {"sh", "-c", (char *)(uintptr_t)words->command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return core_error_errno(error, "a pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawnattr_init(&attributes);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    int failed = posix_spawn(&words->child, "/bin/sh", &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed != 0) {
        words->child = 0;
        close(ends[0]);
        errno = failed;
        return core_error_errno(error, "the command of its words does not start");
    }
    words->descriptor = ends[0];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return CORE_OK;
}

/* A FIFO is opened for writing as well: so it never ends, whoever writes to it comes and goes. */
static core_status open_file(struct ts_words *words, struct core_error *error)
{
    struct stat about;
    bool is_fifo = stat(words->file, &about) == 0 && S_ISFIFO(about.st_mode);
    words->descriptor = open(words->file, (is_fifo ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (words->descriptor < 0)
        return core_error_errno(error, "%s can not be opened", words->file);
    core_status status = core_keyfile_check(words->descriptor, words->file, error);
    if (status == CORE_OK && fstat(words->descriptor, &about) != 0)
        status = core_error_errno(error, "%s", words->file);
    if (status == CORE_OK && !S_ISREG(about.st_mode) && !S_ISFIFO(about.st_mode))
        status = core_error_set(error, CORE_INVALID, "%s is neither a file nor a FIFO", words->file);
    if (status) {
        close_source(words);
        return status;
    }
    words->is_file = S_ISREG(about.st_mode);
    words->device = about.st_dev;
    words->inode = about.st_ino;
    words->offset = 0;
    return CORE_OK;
}

/* Is the file that has been read so far another one now, or shorter? */
static bool has_changed(const struct ts_words *words)
{
    struct stat about;
    return stat(words->file, &about) == 0 &&
           (about.st_dev != words->device || about.st_ino != words->inode || about.st_size < words->offset);
}

static void open_source(struct ts_words *words, core_ns now_ns)
{
    struct core_error error = {""};
    if (now_ns < words->open_not_before_ns)
        return;
    words->open_not_before_ns = now_ns + OPEN_PAUSE_NS;
    core_status status = words->file != NULL ? open_file(words, &error) : start_command(words, &error);
    if (status != CORE_OK && strcmp(words->told.text, error.text) != 0)
        words->say("%s: no control words: %s", words->name, error.text);
    words->told = error;
}

void ts_words_read(struct ts_words *words, core_ns now_ns)
{
    char bytes[1024];
    ssize_t count = 0;
    if (words->descriptor >= 0 && words->is_file && has_changed(words)) {
        close_source(words);
        words->open_not_before_ns = now_ns;
    }
    if (words->descriptor < 0)
        open_source(words, now_ns);
    while (words->descriptor >= 0 && (count = read(words->descriptor, bytes, sizeof bytes)) > 0) {
        words->offset += count;
        take_bytes(words, bytes, (size_t)count, now_ns);
    }
    core_secret_wipe(bytes, sizeof bytes);
    if (words->child == 0 || count != 0)
        return;
    words->say("%s: the command of its words has ended, and is started again", words->name);
    close_source(words);
    words->open_not_before_ns = now_ns + OPEN_PAUSE_NS;
}

struct ts_words *ts_words_make(const char *name, const char *file, const char *command,
                               void (*say)(const char *format, ...) CORE_PRINTF(1, 2))
{
    struct ts_words *words = core_secret_alloc(sizeof *words);
    if (words == NULL)
        return NULL;
    words->name = name;
    words->file = file;
    words->command = command;
    words->say = say;
    words->descriptor = -1;
    return words;
}

void ts_words_free(struct ts_words *words)
{
    if (words == NULL)
        return;
    close_source(words);
    core_secret_free(words, sizeof *words);
}
