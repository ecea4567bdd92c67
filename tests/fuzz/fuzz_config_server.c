/* Any text as a server configuration: an answer without harm, and what is accepted keeps its promises. */
#include "config/server.h"
#include "core/stream.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config_server *server = NULL;
    struct core_error error = {""};

    if (config_server_parse((const char *)data, size, "folder/fuzz.yaml", &server, &error) != CORE_OK) {
        require(!server && error.text[0]);
        return 0;
    }
    require(server->listener_count >= 1 && server->engine);
    for (size_t i = 0; i < server->listener_count; i++) {
        const struct config_listener *listener = &server->listeners[i];
        require((listener->address.transport == CORE_TRANSPORT_TLS) == (listener->certificate != NULL));
        require((listener->certificate != NULL) == (listener->key != NULL));
        require(listener->mode >= 1 && listener->mode <= 0777);
    }
    require(server->limits.packet_bytes <= CORE_PACKET_BYTES_MAX);
    require(server->limits.burst_packets >= 1 && server->limits.burst_packets <= CORE_BURST_MAX);
    require(server->limits.streams_per_connection <= server->limits.streams);
    require(server->limits.packet_bytes < server->limits.stream_buffer_bytes);
    require(server->limits.stream_buffer_bytes <= server->limits.buffer_bytes);
    require(server->timeouts.hello_ns > 0 && server->timeouts.drain_ns > 0);
    config_server_free(server);
    return 0;
}
