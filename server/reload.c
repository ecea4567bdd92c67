/* SIGHUP: what can be read again while streams go on. */
#include "server/server.h"

#include "core/log.h"
#include "server/net/keys.h"
#include "server/net/transport.h"
#include "server/server_internal.h"

#include <stdlib.h>

/* The listener of this address in another configuration; NULL: there is none. */
static const struct config_listener *listener_in(const struct config_server *config,
                                                 const struct config_listener *wanted)
{
    for (size_t i = 0; i < config->listener_count; i++)
        if (config_same_address(&config->listeners[i].address, &wanted->address))
            return &config->listeners[i];
    return NULL;
}

/* By listener; NULL: as it was, for it is plain, or gone from the configuration. */
static core_status make_contexts(const struct server *server, const struct config_server *config,
                                 SSL_CTX **contexts, struct core_error *error)
{
    core_status status = CORE_OK;
    for (uint32_t i = 0; i < server->listener_count && status == CORE_OK; i++) {
        const struct config_listener *listener = listener_in(config, server->listeners[i].config);
        if (listener != NULL && server_listener_is_tls(&server->listeners[i]))
            status = server_transport_context(listener, &contexts[i], error);
    }
    return status;
}

/* Puts what was read in force; what was in force before is in its place then. */
static void exchange(struct server *server, struct config_keyring **keyring, SSL_CTX **contexts)
{
    struct config_keyring *old = server->keyring;

    pthread_mutex_lock(&server->reload_lock);
    server->keyring = *keyring;
    for (uint32_t i = 0; i < server->listener_count; i++)
        if (contexts[i] != NULL) {
            SSL_CTX *context = server->listeners[i].tls;
            server->listeners[i].tls = contexts[i];
            contexts[i] = context;
        }
    pthread_mutex_unlock(&server->reload_lock);
    *keyring = old;
}

core_status server_reload(struct server *server, const struct config_server *config, struct core_error *error)
{
    struct config_keyring *keyring = NULL;
    SSL_CTX **contexts = calloc(server->listener_count, sizeof *contexts);
    if (contexts == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory to read the configuration again");
    core_status status = server_keys_load(server, config->keyring, &keyring, error);
    if (status == CORE_OK)
        status = make_contexts(server, config, contexts, error);
    if (status == CORE_OK) {
        exchange(server, &keyring, contexts);
        core_log_set_level(config->log_level);
    }
    for (uint32_t i = 0; i < server->listener_count; i++)
        SSL_CTX_free(contexts[i]);
    free(contexts);
    config_keyring_free(keyring);
    return status;
}
