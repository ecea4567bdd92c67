/* Any bytes at the beginning of a connection behind a proxy, in pieces of any size: they are taken to the end of the
 * header and no further, and what comes of them does not depend on the pieces. The first byte says how long these
 * are. */
#include "server/net/connection_slots.h"
#include "server/net/proxy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
    core_status status;
    size_t taken;
    char peer[96];
};

static void name_client(const struct server_proxy *proxy, struct outcome *outcome)
{
    struct sockaddr_storage client;
    if (server_proxy_client(proxy, &client))
        (void)server_peer_of(&client, "tcp", outcome->peer, sizeof outcome->peer);
}

/* As a handshake thread does it, whose socket has `most` bytes at a time. */
static struct outcome take(const uint8_t *data, size_t size, size_t most)
{
    struct server_proxy proxy = {.got = 0};
    struct outcome outcome = {.status = CORE_AGAIN};
    struct core_error error = {""};

    while (outcome.status == CORE_AGAIN && outcome.taken < size) {
        size_t bytes;
        uint8_t *room = server_proxy_room(&proxy, &bytes);
        if (bytes == 0 || bytes > sizeof proxy)
            abort();
        bytes = bytes < most ? bytes : most;
        bytes = bytes < size - outcome.taken ? bytes : size - outcome.taken;
        memcpy(room, data + outcome.taken, bytes);
        outcome.taken += bytes;
        outcome.status = server_proxy_take(&proxy, bytes, &error);
    }
    if (outcome.status == CORE_OK)
        name_client(&proxy, &outcome);
    if (outcome.taken > SERVER_PROXY_BYTES_MAX ||
        (outcome.status != CORE_OK && outcome.status != CORE_AGAIN) != (error.text[0] != '\0'))
        abort();
    return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const struct outcome once = take(data + 1, size - 1, SIZE_MAX);
    const struct outcome cut = take(data + 1, size - 1, 1 + data[0] % 64);
    if (once.status != cut.status || strcmp(once.peer, cut.peer) != 0 ||
        (once.status == CORE_OK && once.taken != cut.taken))
        abort();
    return 0;
}
