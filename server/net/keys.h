/* Named keys: the keyring in force, and the check which client may use which key. */
#ifndef MILLRACE_SERVER_NET_KEYS_H
#define MILLRACE_SERVER_NET_KEYS_H

#include "config/keyring.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server;

/* The keyring at `path`, whose rules name listeners of this server only; NULL for NULL. */
CORE_CHECKED core_status server_keys_load(const struct server *server, const char *path,
                                          struct config_keyring **keyring, struct core_error *error);

/* At the start: logs on which listeners keys without a rule can not be used, since clients there are not
 * identified. */
void server_keys_warn(const struct server *server);

struct server_key_wish {
    const char *name;
    size_t name_bytes;
    enum core_cipher cipher;
    bool iv; /* chosen by the client */
    const struct config_key_user *user;
    size_t line; /* out: of the keyring, where there is such a key; */
    bool audit;  /* and whether all packets that a GPU encrypts with it are compared */
};

/* Copies a key out of the keyring. CORE_NOT_FOUND; CORE_DENIED: it is not for this user, who must not learn
 * that there is such a key; CORE_MISMATCH: for another cipher; CORE_REFUSED: with an IV of the server's
 * alone. Any thread. */
CORE_CHECKED core_status server_key_find(struct server *server, struct server_key_wish *wish, uint8_t *key);

/* Is there a keyring? Any thread. */
bool server_keys_are_there(struct server *server);

#endif
