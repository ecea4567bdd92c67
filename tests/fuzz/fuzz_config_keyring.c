/* Any text as a keyring: an answer without harm. */
#include "config/keyring.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config_keyring *keyring = NULL;
    struct core_error error = {""};

    if (config_keyring_parse((const char *)data, size, "fuzz", &keyring, &error) != CORE_OK) {
        if (keyring || !error.text[0])
            abort();
        return 0;
    }
    const struct config_key_user user = {.has_uid = true, .uid = 1000};
    const struct config_key *key = config_keyring_find(keyring, "camera-7");
    if (key &&
        (core_cipher_key_bytes(key->cipher) == 0 || (key->word_count == 0 && !config_key_is_for(key, &user))))
        abort();
    config_keyring_free(keyring);
    return 0;
}
