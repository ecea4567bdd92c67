#include "config/keyring.h"

#include "core/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES_MAX 255 /* name, cipher and 64 digits take 147 at most */
#define FILE_BYTES_MAX ((off_t)16 << 20)
#define READ_BYTES     4096 /* secret memory for the text, a power of two as its allocator likes it */
#define KEY_BYTES_MAX  32

struct entry {
    char name[CONFIG_KEY_NAME_MAX + 1];
    enum core_cipher cipher;
    size_t line;  /* where it was given */
    uint8_t *key; /* KEY_BYTES_MAX of secret memory */
};

struct config_keyring {
    struct entry *entries; /* sorted by name once loading is done */
    size_t count, room;
};

/* A keyring being read. */
struct reader {
    struct config_keyring *keyring;
    const char *name; /* of the file */
    size_t line;      /* the one being read, from 1 */
    struct core_error *error;
};

static core_status line_invalid(const struct reader *reader, const char *what)
{
    return core_error_set(reader->error, CORE_INVALID, "%s:%zu: %s", reader->name, reader->line, what);
}

static core_status line_no_memory(const struct reader *reader)
{
    return core_error_set(reader->error, CORE_NO_MEMORY,
                          "%s:%zu: no more room in secret memory; use fewer keys", reader->name,
                          reader->line);
}

/* A word of a line; it points into the line, which is not terminated. */
struct word {
    const char *text;
    size_t bytes;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Takes the next word off [*at, end); empty at the end. */
static struct word word_next(const char **at, const char *end)
{
    while (*at < end && is_space(**at))
        ++*at;
    struct word word = {.text = *at};
    while (*at < end && !is_space(**at))
        ++*at;
    word.bytes = (size_t)(*at - word.text);
    return word;
}

static bool name_valid(struct word word)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    for (size_t i = 0; i < word.bytes; i++)
        if (!memchr(allowed, word.text[i], sizeof allowed - 1))
            return false;
    return word.bytes >= 1 && word.bytes <= CONFIG_KEY_NAME_MAX;
}

static core_status cipher_read(const struct reader *reader, struct word word, enum core_cipher *cipher)
{
    char name[32] = "";

    if (word.bytes < sizeof name)
        memcpy(name, word.text, word.bytes);
    if (core_cipher_parse(name, cipher) != CORE_OK)
        return line_invalid(reader, "the second word must be aes-128-cbc, aes-192-cbc or aes-256-cbc");
    return CORE_OK;
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static core_status key_read(const struct reader *reader, struct word word, enum core_cipher cipher,
                            uint8_t *key)
{
    const uint32_t bytes = core_cipher_key_bytes(cipher);

    if (word.bytes != 2 * (size_t)bytes)
        return core_error_set(reader->error, CORE_INVALID,
                              "%s:%zu: a key for %s has %u hexadecimal digits, not %zu", reader->name,
                              reader->line, core_cipher_name(cipher), (unsigned)(2 * bytes), word.bytes);
    for (uint32_t i = 0; i < bytes; i++) {
        const int high = digit_value(word.text[2 * i]), low = digit_value(word.text[2 * i + 1]);
        if (high < 0 || low < 0)
            return line_invalid(reader, "the key has a character that is no hexadecimal digit");
        key[i] = (uint8_t)(high << 4 | low);
    }
    return CORE_OK;
}

static core_status entry_append(const struct reader *reader, const struct entry *entry)
{
    struct config_keyring *keyring = reader->keyring;

    if (keyring->count == keyring->room) {
        const size_t room = keyring->room ? 2 * keyring->room : 16;
        struct entry *grown = reallocarray(keyring->entries, room, sizeof *grown);
        if (!grown)
            return line_no_memory(reader);
        keyring->entries = grown;
        keyring->room = room;
    }
    keyring->entries[keyring->count++] = *entry;
    return CORE_OK;
}

static core_status line_read(const struct reader *reader, const char *line, size_t bytes)
{
    struct entry entry = {.line = reader->line};
    const char *at = line, *end = line + bytes;
    const struct word name = word_next(&at, end);

    if (bytes > LINE_BYTES_MAX)
        return line_invalid(reader, "the line is too long; write 'name cipher key' and no more");
    if (name.bytes == 0 || name.text[0] == '#')
        return CORE_OK;
    if (!name_valid(name))
        return line_invalid(reader, "a name has 1 to 63 letters, digits, '.', '_' or '-'");
    memcpy(entry.name, name.text, name.bytes);
    core_status status = cipher_read(reader, word_next(&at, end), &entry.cipher);
    if (status != CORE_OK)
        return status;
    entry.key = core_secret_alloc(KEY_BYTES_MAX);
    if (!entry.key)
        return line_no_memory(reader);
    status = key_read(reader, word_next(&at, end), entry.cipher, entry.key);
    if (status == CORE_OK && word_next(&at, end).bytes > 0)
        status =
            line_invalid(reader, "there is something behind the key; write 'name cipher key' and no more");
    if (status == CORE_OK)
        status = entry_append(reader, &entry);
    if (status != CORE_OK)
        core_secret_free(entry.key, KEY_BYTES_MAX);
    return status;
}

/* Reads whole lines from the text, and a last one without a line end if `final`. *taken is what was read. */
static core_status lines_read(struct reader *reader, const char *text, size_t bytes, bool final,
                              size_t *taken)
{
    size_t at = 0;

    while (at < bytes) {
        const char *end = memchr(text + at, '\n', bytes - at);
        if (!end && !final)
            break;
        const size_t length = end ? (size_t)(end - text) - at : bytes - at;
        reader->line++;
        const core_status status = line_read(reader, text + at, length);
        if (status != CORE_OK)
            return status;
        at += length + (end != NULL);
    }
    *taken = at;
    return CORE_OK;
}

/* ---- the file ---- */

static core_status file_check(int descriptor, const char *path, struct core_error *error)
{
    struct stat status;

    if (fstat(descriptor, &status) != 0)
        return core_error_errno(error, "%s: can not be examined", path);
    if (!S_ISREG(status.st_mode))
        return core_error_set(error, CORE_INVALID, "%s: is not a regular file", path);
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return core_error_set(error, CORE_DENIED,
                              "%s: belongs to user %u, not to this process's user %u or root; chown it", path,
                              (unsigned)status.st_uid, (unsigned)geteuid());
    if (status.st_mode & (S_IRWXG | S_IRWXO))
        return core_error_set(error, CORE_DENIED,
                              "%s: its mode %04o lets others in; keys must be private: chmod 600 it", path,
                              (unsigned)(status.st_mode & 07777));
    if (status.st_size > FILE_BYTES_MAX)
        return core_error_set(error, CORE_INVALID, "%s:1: is larger than 16 MiB", path);
    return CORE_OK;
}

/* Through one small window of secret memory, wiped at the end. */
static core_status file_read(struct reader *reader, int descriptor)
{
    core_status status = CORE_OK;
    size_t have = 0;
    ssize_t got = 1;
    char *window = core_secret_alloc(READ_BYTES);

    if (!window)
        return line_no_memory(reader);
    while (status == CORE_OK && got > 0) {
        size_t taken = 0;
        got = read(descriptor, window + have, READ_BYTES - have);
        if (got < 0 && errno == EINTR) {
            got = 1;
            continue;
        }
        if (got < 0) {
            status = core_error_errno(reader->error, "%s: can not be read", reader->name);
            break;
        }
        have += (size_t)got;
        status = lines_read(reader, window, have, got == 0, &taken);
        if (status == CORE_OK && taken == 0 && have == READ_BYTES) /* no line end in all the window */
            status = lines_read(reader, window, have, true, &taken);
        memmove(window, window + taken, have - taken);
        have -= taken;
    }
    core_secret_free(window, READ_BYTES);
    return status;
}

static int entry_order(const void *a, const void *b)
{
    const struct entry *left = a, *right = b;

    return strcmp(left->name, right->name);
}

/* Sorts, and finds names given twice. */
static core_status keyring_finish(struct reader *reader)
{
    struct config_keyring *keyring = reader->keyring;

    if (keyring->count == 0)
        return CORE_OK;
    qsort(keyring->entries, keyring->count, sizeof keyring->entries[0], entry_order);
    for (size_t i = 1; i < keyring->count; i++) {
        const struct entry *a = &keyring->entries[i - 1], *b = &keyring->entries[i];
        if (strcmp(a->name, b->name) == 0)
            return core_error_set(reader->error, CORE_INVALID,
                                  "%s:%zu: the name '%s' is already used in line %zu; rename one",
                                  reader->name, a->line > b->line ? a->line : b->line, a->name,
                                  a->line > b->line ? b->line : a->line);
    }
    return CORE_OK;
}

/* Takes the keyring over: to *keyring on success, freed otherwise. */
static core_status keyring_deliver(struct reader *reader, core_status status, struct config_keyring **keyring)
{
    if (status == CORE_OK)
        status = keyring_finish(reader);
    if (status == CORE_OK)
        *keyring = reader->keyring;
    else
        config_keyring_free(reader->keyring);
    return status;
}

core_status config_keyring_load(const char *path, struct config_keyring **keyring, struct core_error *error)
{
    struct reader reader = {.name = path, .error = error};
    /* O_NOFOLLOW: a link's own permissions say nothing. O_NONBLOCK: a FIFO must not hang the server. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);

    if (descriptor < 0 && errno == ELOOP)
        return core_error_set(error, CORE_DENIED, "%s: is a symbolic link; name the file itself", path);
    if (descriptor < 0)
        return core_error_errno(error, "%s: can not be opened", path);
    core_status status = file_check(descriptor, path, error);
    if (status != CORE_OK)
        goto close;
    reader.keyring = calloc(1, sizeof *reader.keyring);
    if (!reader.keyring) {
        status = core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", path);
        goto close;
    }
    status = keyring_deliver(&reader, file_read(&reader, descriptor), keyring);
close:
    close(descriptor);
    return status;
}

core_status config_keyring_parse(const char *text, size_t bytes, const char *name,
                                 struct config_keyring **keyring, struct core_error *error)
{
    struct reader reader = {.name = name, .error = error};
    size_t taken;

    reader.keyring = calloc(1, sizeof *reader.keyring);
    if (!reader.keyring)
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", name);
    return keyring_deliver(&reader, lines_read(&reader, text, bytes, true, &taken), keyring);
}

const uint8_t *config_keyring_find(const struct config_keyring *keyring, const char *name,
                                   enum core_cipher *cipher)
{
    struct entry wanted;
    const size_t length = strlen(name);

    if (length > CONFIG_KEY_NAME_MAX || keyring->count == 0)
        return NULL;
    memcpy(wanted.name, name, length + 1);
    const struct entry *found =
        bsearch(&wanted, keyring->entries, keyring->count, sizeof wanted, entry_order);
    if (!found)
        return NULL;
    *cipher = found->cipher;
    return found->key;
}

size_t config_keyring_size(const struct config_keyring *keyring)
{
    return keyring->count;
}

void config_keyring_free(struct config_keyring *keyring)
{
    if (!keyring)
        return;
    for (size_t i = 0; i < keyring->count; i++)
        core_secret_free(keyring->entries[i].key, KEY_BYTES_MAX);
    free(keyring->entries);
    free(keyring);
}
