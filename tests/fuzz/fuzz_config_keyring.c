/* Any text as a keyring: an answer without harm. */
#include "config/keyring.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config_keyring *keyring = NULL;
    struct core_error error = {""};
    enum core_cipher cipher;

    if (config_keyring_parse((const char *)data, size, "fuzz", &keyring, &error) != CORE_OK) {
        if (keyring || !error.text[0])
            abort();
        return 0;
    }
    const uint8_t *key = config_keyring_find(keyring, "camera-7", &cipher);
    if (key && (config_keyring_size(keyring) == 0 || core_cipher_key_bytes(cipher) == 0))
        abort();
    config_keyring_free(keyring);
    return 0;
}
