/* One word behind a key of the keyring: whom it lets use the key. Private to this folder; keyring.h tells
 * what the words mean. */
#ifndef MILLRACE_CONFIG_KEYRING_WORDS_H
#define MILLRACE_CONFIG_KEYRING_WORDS_H

#include "config/keyring.h"

enum config_key_word_kind {
    CONFIG_KEY_WORD_USER,
    CONFIG_KEY_WORD_NAME,
    CONFIG_KEY_WORD_FINGERPRINT,
    CONFIG_KEY_WORD_LISTENER
};

struct config_key_word {
    enum config_key_word_kind kind;
    uint32_t uid;
    uint8_t fingerprint[CONFIG_KEY_FINGERPRINT_BYTES];
    char *text; /* NAME: of the certificate */
    struct core_address *listener;
};

/* `file`: of the keyring, from whose folder relative paths go. The error does not show the word, which may be
 * a key in the wrong place. */
CORE_CHECKED core_status config_key_word_parse(const char *text, const char *file,
                                               struct config_key_word *word, struct core_error *error);
void config_key_word_free(struct config_key_word *word);
bool config_key_word_fits(const struct config_key_word *word, const struct config_key_user *user);

#endif
