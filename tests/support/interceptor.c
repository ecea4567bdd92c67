#include "tests/support/interceptor.h"

#include "tests/support/require.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_MS 60000

struct upstream {
    int from, to;
};

/* What the client sends, until it goes. */
static void *pump(void *argument)
{
    const struct upstream *upstream = argument;
    uint8_t bytes[65536];
    ssize_t count;
    while ((count = recv(upstream->from, bytes, sizeof bytes, 0)) > 0)
        if (!fake_write(upstream->to, bytes, (size_t)count))
            break;
    shutdown(upstream->to, SHUT_WR);
    return NULL;
}

static void run(int client, void *argument)
{
    const struct interceptor *interceptor = argument;
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct protocol_header header;
    struct upstream upstream = {.from = client};
    pthread_t thread;
    TEST_REQUIRE(core_address_connect(&interceptor->server, CONNECT_MS, &upstream.to, NULL) == CORE_OK);
    TEST_REQUIRE(fcntl(upstream.to, F_SETFL, 0) == 0); /* blocking */
    TEST_REQUIRE(pthread_create(&thread, NULL, pump, &upstream) == 0);
    while (fake_read_frame(upstream.to, &header, body))
        interceptor->edit(interceptor->argument, client, &header, body);
    shutdown(client, SHUT_RDWR); /* the server is gone: so is the client's connection */
    pthread_join(thread, NULL);
    close(upstream.to);
}

void interceptor_start(struct interceptor *interceptor, const struct core_address *server,
                       interceptor_edit *edit, void *argument)
{
    interceptor->server = *server;
    interceptor->edit = edit;
    interceptor->argument = argument;
    fake_server_start(&interceptor->front, run, interceptor);
}

void interceptor_join(struct interceptor *interceptor)
{
    fake_server_join(&interceptor->front);
}

void interceptor_pass(int client, const struct protocol_header *header, const uint8_t *body)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES];
    protocol_header_write(frame, header);
    if (fake_write(client, frame, sizeof frame))
        (void)!fake_write(client, body, header->body_bytes);
}
