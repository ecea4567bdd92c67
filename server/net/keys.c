#include "server/net/keys.h"

#include "core/log.h"
#include "server/server_internal.h"

#include <string.h>

core_status server_keys_load(const struct server *server, const char *path, struct config_keyring **keyring,
                             struct core_error *error)
{
    struct config_keyring *fresh = NULL;
    core_status status = path == NULL ? CORE_OK : config_keyring_load(path, &fresh, error);
    if (status == CORE_OK && fresh != NULL)
        status =
            config_keyring_check(fresh, server->config->listeners, server->config->listener_count, error);
    if (status == CORE_OK)
        *keyring = fresh;
    else
        config_keyring_free(fresh);
    return status;
}

/* Nobody who comes by it shows who he is. */
static bool is_anonymous(const struct config_listener *listener)
{
    return listener->address.transport == CORE_TRANSPORT_TCP ||
           (listener->address.transport == CORE_TRANSPORT_TLS && listener->client_ca == NULL);
}

void server_keys_warn(const struct server *server)
{
    size_t keys = server->keyring == NULL ? 0 : config_keyring_wordless(server->keyring);
    char text[300];
    for (size_t i = 0; i < server->config->listener_count && keys > 0; i++) {
        const struct config_listener *listener = &server->config->listeners[i];
        if (!is_anonymous(listener))
            continue;
        core_address_format(&listener->address, text, sizeof text);
        core_log(CORE_LOG_WARNING, "start.keys",
                 "%zu keys of the keyring name no client: they are refused on %s, where clients are not "
                 "authenticated; listener=%s behind a key permits it",
                 keys, text, text);
    }
}

static core_status judge(const struct config_key *key, struct server_key_wish *wish)
{
    if (key == NULL)
        return CORE_NOT_FOUND;
    wish->line = key->line;
    if (!config_key_is_for(key, wish->user))
        return CORE_DENIED;
    if (key->cipher != wish->cipher)
        return CORE_MISMATCH;
    return wish->iv && !key->client_iv ? CORE_REFUSED : CORE_OK;
}

core_status server_key_find(struct server *server, struct server_key_wish *wish, uint8_t *key)
{
    char name[CONFIG_KEY_NAME_MAX + 1];
    const struct config_key *found = NULL;

    if (wish->name_bytes > CONFIG_KEY_NAME_MAX)
        return CORE_NOT_FOUND;
    memcpy(name, wish->name, wish->name_bytes);
    name[wish->name_bytes] = '\0';
    pthread_mutex_lock(&server->reload_lock);
    if (server->keyring != NULL && strlen(name) == wish->name_bytes)
        found = config_keyring_find(server->keyring, name);
    core_status status = judge(found, wish);
    if (status == CORE_OK) {
        memcpy(key, found->bytes, core_cipher_key_bytes(found->cipher));
        wish->audit = found->audit;
    }
    pthread_mutex_unlock(&server->reload_lock);
    return status;
}

bool server_keys_are_there(struct server *server)
{
    pthread_mutex_lock(&server->reload_lock);
    bool there = server->keyring != NULL;
    pthread_mutex_unlock(&server->reload_lock);
    return there;
}
