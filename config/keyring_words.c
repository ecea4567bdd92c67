#include "config/keyring_words.h"

#include "config/file.h"
#include "core/value.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FINGERPRINT_PREFIX "sha256:"
#define ACCOUNT_BYTES      4096 /* of one entry of the user database */

static core_status no_memory(struct core_error *error)
{
    return core_error_set(error, CORE_NO_MEMORY, "out of memory");
}

/* A number stands for itself, whether there is such a user or not. */
static core_status user_parse(const char *value, struct config_key_word *word, struct core_error *error)
{
    char buffer[ACCOUNT_BYTES], *end;
    struct passwd account, *found = NULL;

    word->kind = CONFIG_KEY_WORD_USER;
    if (value[0] >= '0' && value[0] <= '9') {
        errno = 0;
        const unsigned long long number = strtoull(value, &end, 10);
        if (errno != 0 || *end != '\0' || number >= UINT32_MAX)
            return core_error_set(error, CORE_INVALID, "user= wants the name or the number of a user");
        word->uid = (uint32_t)number;
        return CORE_OK;
    }
    if (getpwnam_r(value, &account, buffer, sizeof buffer, &found) != 0 || !found)
        return core_error_set(error, CORE_INVALID,
                              "user= names nobody on this machine; give the name or the number of a user");
    word->uid = account.pw_uid;
    return CORE_OK;
}

/* Pairs of digits, with or without the colons that `openssl x509 -fingerprint` puts between them. */
static core_status fingerprint_parse(const char *value, struct config_key_word *word,
                                     struct core_error *error)
{
    size_t count = 0, one;

    word->kind = CONFIG_KEY_WORD_FINGERPRINT;
    while (count < CONFIG_KEY_FINGERPRINT_BYTES &&
           core_hex_parse(value, strnlen(value, 2), &word->fingerprint[count], 1, &one) && one == 1) {
        value += 2;
        count++;
        value += *value == ':' && count < CONFIG_KEY_FINGERPRINT_BYTES;
    }
    if (count < CONFIG_KEY_FINGERPRINT_BYTES || *value != '\0')
        return core_error_set(error, CORE_INVALID,
                              "certificate=sha256: wants 64 hexadecimal digits, as openssl x509 -noout "
                              "-fingerprint -sha256 shows them");
    return CORE_OK;
}

static core_status certificate_parse(const char *value, struct config_key_word *word,
                                     struct core_error *error)
{
    if (strncasecmp(value, FINGERPRINT_PREFIX, strlen(FINGERPRINT_PREFIX)) == 0)
        return fingerprint_parse(value + strlen(FINGERPRINT_PREFIX), word, error);
    word->kind = CONFIG_KEY_WORD_NAME;
    word->text = strdup(value);
    return word->text ? CORE_OK : no_memory(error);
}

/* Relative paths of sockets are seen from the keyring, as in the configuration from there. */
static core_status listener_parse(const char *value, const char *file, struct config_key_word *word,
                                  struct core_error *error)
{
    word->kind = CONFIG_KEY_WORD_LISTENER;
    word->listener = calloc(1, sizeof *word->listener);
    if (!word->listener)
        return no_memory(error);
    core_status status = core_address_parse(value, word->listener, error);
    if (status != CORE_OK || word->listener->transport != CORE_TRANSPORT_UNIX ||
        word->listener->host[0] == '@')
        return status;
    char *path = config_file_beside(file, word->listener->host), *full = NULL;
    if (path && asprintf(&full, "unix:%s", path) >= 0) {
        status = core_address_parse(full, word->listener, error);
        free(full);
    } else {
        status = no_memory(error);
    }
    free(path);
    return status;
}

core_status config_key_word_parse(const char *text, const char *file, struct config_key_word *word,
                                  struct core_error *error)
{
    static const char user[] = "user=", certificate[] = "certificate=", listener[] = "listener=";

    *word = (struct config_key_word){.kind = CONFIG_KEY_WORD_USER};
    const char *value = strchr(text, '=');
    if (!value || value[1] == '\0')
        value = NULL;
    core_status status = CORE_INVALID;
    if (value && strncmp(text, user, strlen(user)) == 0)
        status = user_parse(value + 1, word, error);
    else if (value && strncmp(text, certificate, strlen(certificate)) == 0)
        status = certificate_parse(value + 1, word, error);
    else if (value && strncmp(text, listener, strlen(listener)) == 0)
        status = listener_parse(value + 1, file, word, error);
    else
        (void)core_error_set(error, CORE_INVALID,
                             "there is something else behind the key than user=, certificate=, listener=, "
                             "client-iv and audit");
    if (status != CORE_OK)
        config_key_word_free(word);
    return status;
}

void config_key_word_free(struct config_key_word *word)
{
    free(word->text);
    free(word->listener);
    *word = (struct config_key_word){.kind = CONFIG_KEY_WORD_USER};
}

static bool has_name(const char *names, const char *wanted)
{
    for (const char *name = names; name && *name != '\0'; name += strlen(name) + 1)
        if (strcasecmp(name, wanted) == 0)
            return true;
    return false;
}

bool config_key_word_fits(const struct config_key_word *word, const struct config_key_user *user)
{
    switch (word->kind) {
    case CONFIG_KEY_WORD_USER:
        return user->has_uid && user->uid == word->uid;
    case CONFIG_KEY_WORD_NAME:
        return user->has_certificate && has_name(user->names, word->text);
    case CONFIG_KEY_WORD_FINGERPRINT:
        return user->has_certificate &&
               memcmp(user->fingerprint, word->fingerprint, sizeof word->fingerprint) == 0;
    case CONFIG_KEY_WORD_LISTENER:
        return user->listener && config_same_address(user->listener, word->listener);
    }
    return false;
}
