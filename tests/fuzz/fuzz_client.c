/* Arbitrary bytes from the server, in pieces of arbitrary size, to a connection that has said HELLO, has
 * asked for streams and sends packets whenever it can. The first input byte is the size of the pieces. */
#include "client/connection.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct source {
    const uint8_t *bytes;
    size_t left, piece;
} source; /* of the one connection */

static core_status read_source(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                               struct core_error *error)
{
    (void)transport;
    (void)error;
    if (source.left == 0)
        return CORE_CLOSED;
    size_t count = source.left < source.piece ? source.left : source.piece;
    *got = count < bytes ? count : bytes;
    memcpy(room, source.bytes, *got);
    source.bytes += *got;
    source.left -= *got;
    return CORE_OK;
}

static core_status write_nowhere(struct client_transport *transport, const struct iovec *parts, int count,
                                 size_t *written, struct core_error *error)
{
    (void)transport;
    (void)error;
    *written = 0;
    for (int i = 0; i < count; i++)
        *written += parts[i].iov_len;
    return CORE_OK;
}

static bool nothing_pending(const struct client_transport *transport)
{
    (void)transport;
    return false;
}

static void close_nothing(struct client_transport *transport)
{
    (void)transport;
}

static const struct client_transport_kind kind = {read_source, write_nowhere, nothing_pending, close_nothing};

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    static const uint8_t packet[48];
    const struct millrace_modify modify = {sizeof modify, opened->stream, 2, 2000000, 3000000};
    (void)request;
    for (uint32_t i = 0; i < 4; i++)
        if (millrace_data(argument, opened->stream, packet, sizeof packet, NULL, NULL) != MILLRACE_OK)
            return;
    if (millrace_send_modify(argument, &modify, NULL, NULL) != MILLRACE_OK)
        return; /* as with a server of version 1 */
}

static void on_result(void *argument, const struct millrace_result *result)
{
    uint8_t sum = 0;
    for (uint32_t i = 0; i < result->bytes; i++)
        sum = (uint8_t)(sum + result->ciphertext[i]); /* reads all of it, for the sanitizer to see */
    if (sum == 0 && millrace_send_close(argument, result->stream, NULL) != MILLRACE_OK)
        return;
}

static void on_modified(void *argument, uint32_t request, const struct millrace_modified *modified)
{
    struct millrace_position position = {.size = sizeof position};
    (void)request;
    if (millrace_position_of(argument, modified->stream, &position, NULL) != MILLRACE_OK)
        abort();
}

static void on_notice(void *argument, uint32_t stream, const struct millrace_notice *notice)
{
    struct millrace_position position = {.size = sizeof position};
    const bool of_server = notice->kind == MILLRACE_NOTICE_LEAVING; /* and of no stream */
    if (strlen(notice->text) >= sizeof notice->text || of_server != (stream == 0) ||
        (!of_server && millrace_position_of(argument, stream, &position, NULL) != MILLRACE_OK))
        abort();
}

static void ask(struct millrace *connection)
{
    static const struct millrace_open open = {.size = sizeof open,
                                              .packet_bytes = 64,
                                              .burst_packets = 1,
                                              .interval_ns = 1000000,
                                              .latency_ns = 1000000,
                                              .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                              .padding = MILLRACE_PADDING_PKCS7};
    if (millrace_send_open(connection, &open, NULL, NULL) != MILLRACE_OK ||
        millrace_send_open(connection, &open, NULL, NULL) != MILLRACE_OK ||
        millrace_send_query(connection, &open, NULL, NULL) != MILLRACE_OK)
        abort();
    if (millrace_send_ping(connection, "ping", 4, NULL, NULL) != MILLRACE_OK)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    source = (struct source){.bytes = data + 1, .left = size - 1, .piece = (size_t)data[0] + 1};
    struct millrace *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        abort();
    connection->lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    connection->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    connection->transport = (struct client_transport){.kind = &kind, .descriptor = -1};
    connection->wake = -1;
    connection->version_max = PROTOCOL_VERSION;
    connection->callbacks = (struct millrace_callbacks){.size = sizeof(struct millrace_callbacks),
                                                        .on_opened = on_opened,
                                                        .on_result = on_result,
                                                        .on_modified = on_modified,
                                                        .on_notice = on_notice,
                                                        .argument = connection};
    ask(connection);
    millrace_status status;
    while ((status = millrace_process(connection, 1, NULL)) == MILLRACE_OK)
        continue;
    if (millrace_process(connection, 1, NULL) != MILLRACE_CLOSED) /* dead is dead */
        abort();
    millrace_disconnect(connection);
    return 0;
}
