#include "config/keyring.h"

#include "config/keyring_words.h"
#include "core/keyfile.h"
#include "core/secret.h"
#include "core/value.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX 2047 /* name, cipher and 64 digits take 147 at most */
#define FILE_BYTES_MAX ((size_t)16 << 20)
#define READ_BYTES     4096 /* secret memory for the text, a power of two as its allocator likes it */
#define KEY_BYTES_MAX  32

struct config_keyring {
    char *name;              /* of the file */
    struct config_key *keys; /* sorted by name once loading is done */
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

static core_status key_read(const struct reader *reader, struct word word, enum core_cipher cipher,
                            uint8_t *key)
{
    const uint32_t bytes = core_cipher_key_bytes(cipher);
    size_t count;

    if (word.bytes != 2 * (size_t)bytes)
        return core_error_set(reader->error, CORE_INVALID,
                              "%s:%zu: a key for %s has %u hexadecimal digits, not %zu", reader->name,
                              reader->line, core_cipher_name(cipher), (unsigned)(2 * bytes), word.bytes);
    if (!core_hex_parse(word.text, word.bytes, key, bytes, &count))
        return line_invalid(reader, "the key has a character that is no hexadecimal digit");
    return CORE_OK;
}

static core_status key_append(const struct reader *reader, const struct config_key *key)
{
    struct config_keyring *keyring = reader->keyring;

    if (keyring->count == keyring->room) {
        const size_t room = keyring->room ? 2 * keyring->room : 16;
        struct config_key *grown = reallocarray(keyring->keys, room, sizeof *grown);
        if (!grown)
            return line_no_memory(reader);
        keyring->keys = grown;
        keyring->room = room;
    }
    keyring->keys[keyring->count++] = *key;
    return CORE_OK;
}

static bool word_is(struct word word, const char *text)
{
    return word.bytes == strlen(text) && memcmp(word.text, text, word.bytes) == 0;
}

/* Through a copy, as the line is not terminated. */
static core_status word_read(const struct reader *reader, struct word word, struct config_key *key)
{
    struct core_error why;
    core_status status = CORE_NO_MEMORY;

    if (memchr(word.text, '\0', word.bytes))
        return line_invalid(reader, "has a NUL character");
    if (word_is(word, "client-iv") || word_is(word, "audit")) {
        *(word_is(word, "audit") ? &key->audit : &key->client_iv) = true;
        return CORE_OK;
    }
    char *text = core_secret_alloc(word.bytes + 1);
    struct config_key_word *words = reallocarray(key->words, key->word_count + 1, sizeof *words);
    if (words)
        key->words = words;
    if (text && words) {
        memcpy(text, word.text, word.bytes);
        status = config_key_word_parse(text, reader->name, &words[key->word_count], &why);
        if (status == CORE_OK)
            key->word_count++;
        else
            status = line_invalid(reader, why.text);
    } else {
        (void)line_no_memory(reader);
    }
    core_secret_free(text, word.bytes + 1);
    return status;
}

static void key_free(struct config_key *key)
{
    for (size_t i = 0; i < key->word_count; i++)
        config_key_word_free(&key->words[i]);
    free(key->words);
    core_secret_free(key->bytes, KEY_BYTES_MAX);
}

static core_status line_read(const struct reader *reader, const char *line, size_t bytes)
{
    struct config_key made = {.line = reader->line};
    const char *at = line, *end = line + bytes;
    const struct word name = word_next(&at, end);

    if (bytes > LINE_BYTES_MAX)
        return line_invalid(reader, "the line is too long; it may have 2047 characters");
    if (name.bytes == 0 || name.text[0] == '#')
        return CORE_OK;
    if (!name_valid(name))
        return line_invalid(reader, "a name has 1 to 63 letters, digits, '.', '_' or '-'");
    memcpy(made.name, name.text, name.bytes);
    core_status status = cipher_read(reader, word_next(&at, end), &made.cipher);
    if (status != CORE_OK)
        return status;
    made.bytes = core_secret_alloc(KEY_BYTES_MAX);
    if (!made.bytes)
        return line_no_memory(reader);
    status = key_read(reader, word_next(&at, end), made.cipher, made.bytes);
    for (struct word word; status == CORE_OK && (word = word_next(&at, end)).bytes > 0;)
        status = word_read(reader, word, &made);
    if (status == CORE_OK)
        status = key_append(reader, &made);
    if (status != CORE_OK)
        key_free(&made);
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

static int key_order(const void *a, const void *b)
{
    const struct config_key *left = a, *right = b;

    return strcmp(left->name, right->name);
}

/* Sorts, and finds names given twice. */
static core_status keyring_finish(struct reader *reader)
{
    struct config_keyring *keyring = reader->keyring;

    if (keyring->count == 0)
        return CORE_OK;
    qsort(keyring->keys, keyring->count, sizeof keyring->keys[0], key_order);
    for (size_t i = 1; i < keyring->count; i++) {
        const struct config_key *a = &keyring->keys[i - 1], *b = &keyring->keys[i];
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

static core_status keyring_begin(struct reader *reader)
{
    reader->keyring = calloc(1, sizeof *reader->keyring);
    if (reader->keyring)
        reader->keyring->name = strdup(reader->name);
    if (reader->keyring && reader->keyring->name)
        return CORE_OK;
    config_keyring_free(reader->keyring);
    return core_error_set(reader->error, CORE_NO_MEMORY, "%s: out of memory", reader->name);
}

core_status config_keyring_load(const char *path, struct config_keyring **keyring, struct core_error *error)
{
    struct reader reader = {.name = path, .error = error};
    int descriptor;
    core_status status = core_keyfile_open(path, FILE_BYTES_MAX, &descriptor, error);

    if (status != CORE_OK)
        return status;
    status = keyring_begin(&reader);
    if (status == CORE_OK)
        status = keyring_deliver(&reader, file_read(&reader, descriptor), keyring);
    close(descriptor);
    return status;
}

core_status config_keyring_parse(const char *text, size_t bytes, const char *name,
                                 struct config_keyring **keyring, struct core_error *error)
{
    struct reader reader = {.name = name, .error = error};
    size_t taken;
    const core_status status = keyring_begin(&reader);

    return status == CORE_OK
               ? keyring_deliver(&reader, lines_read(&reader, text, bytes, true, &taken), keyring)
               : status;
}

const struct config_key *config_keyring_find(const struct config_keyring *keyring, const char *name)
{
    struct config_key wanted;
    const size_t length = strlen(name);

    if (length > CONFIG_KEY_NAME_MAX || keyring->count == 0)
        return NULL;
    memcpy(wanted.name, name, length + 1);
    return bsearch(&wanted, keyring->keys, keyring->count, sizeof wanted, key_order);
}

bool config_key_is_for(const struct config_key *key, const struct config_key_user *user)
{
    if (key->word_count == 0)
        return user->has_uid || user->has_certificate;
    for (size_t i = 0; i < key->word_count; i++)
        if (config_key_word_fits(&key->words[i], user))
            return true;
    return false;
}

static bool is_listed(const struct core_address *address, const struct config_listener *listeners,
                      size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (config_same_address(address, &listeners[i].address))
            return true;
    return false;
}

core_status config_keyring_check(const struct config_keyring *keyring,
                                 const struct config_listener *listeners, size_t count,
                                 struct core_error *error)
{
    char text[300];

    for (size_t i = 0; i < keyring->count; i++)
        for (size_t j = 0; j < keyring->keys[i].word_count; j++) {
            const struct core_address *wanted = keyring->keys[i].words[j].listener;
            if (wanted && !is_listed(wanted, listeners, count))
                return core_error_set(
                    error, CORE_INVALID, "%s:%zu: there is no listener %s; write it as in `listeners`",
                    keyring->name, keyring->keys[i].line, core_address_format(wanted, text, sizeof text));
        }
    return CORE_OK;
}

size_t config_keyring_wordless(const struct config_keyring *keyring)
{
    size_t count = 0;

    for (size_t i = 0; i < keyring->count; i++)
        count += keyring->keys[i].word_count == 0;
    return count;
}

void config_keyring_free(struct config_keyring *keyring)
{
    if (!keyring)
        return;
    for (size_t i = 0; i < keyring->count; i++)
        key_free(&keyring->keys[i]);
    free(keyring->keys);
    free(keyring->name);
    free(keyring);
}
