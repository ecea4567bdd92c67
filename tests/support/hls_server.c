#include "tests/support/hls_server.h"

#include "core/stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define STRANGER 4711 /* no request and no stream of anybody's */

static bool take(unsigned *count)
{
    return *count > 0 && (*count)-- > 0;
}

static struct hls_server_stream *stream_of(struct hls_server *server, uint32_t id)
{
    return &server->streams[id % (sizeof server->streams / sizeof server->streams[0])];
}

static bool refuse(struct hls_server *server, int descriptor, uint32_t request, enum protocol_refusal code)
{
    const struct protocol_refused refused = {
        .code = code, .offer_latency_ns = server->offer_ns, .text = "no room for that"};
    return fake_write(descriptor, server->frame,
                      protocol_refused_write(PROTOCOL_VERSION, server->frame, request, &refused));
}

static bool end_stream(struct hls_server *server, int descriptor, uint32_t stream,
                       enum protocol_close_reason reason)
{
    const struct protocol_closed closed = {.reason = reason};
    return fake_write(descriptor, server->frame, protocol_closed_write(server->frame, stream, &closed));
}

static bool grant(struct hls_server *server, int descriptor, uint32_t request, uint32_t stream)
{
    const struct protocol_opened opened = {
        .stream = stream, .unit = PROTOCOL_UNIT_CPU, .bound_ns = 1, .queue_packets = stream % 2 ? 4 : 0};
    return fake_write(descriptor, server->frame,
                      protocol_opened_write(PROTOCOL_VERSION, server->frame, request, &opened));
}

static bool grant_key(struct hls_server *server, int descriptor, uint32_t request,
                      const struct protocol_rekey *rekey)
{
    const struct protocol_rekeyed rekeyed = {.stream = rekey->stream, .first = rekey->first};
    return fake_write(descriptor, server->frame, protocol_rekeyed_write(server->frame, request, &rekeyed));
}

/* What a client that has given up a request, or a stream, may still get. */
static bool speak_to_strangers(struct hls_server *server, int descriptor)
{
    return refuse(server, descriptor, STRANGER, PROTOCOL_REFUSED_CAPACITY) &&
           grant_key(server, descriptor, STRANGER, &(struct protocol_rekey){.stream = STRANGER}) &&
           end_stream(server, descriptor, STRANGER, PROTOCOL_CLOSE_FAILED);
}

static bool answer_open(struct hls_server *server, int descriptor, const struct protocol_header *header)
{
    struct protocol_open open;
    if (protocol_open_read(PROTOCOL_VERSION, server->body, header->body_bytes, &open, NULL) != CORE_OK)
        return false;
    if (take(&server->strangers) && !speak_to_strangers(server, descriptor))
        return false;
    if (take(&server->refused))
        return refuse(server, descriptor, header->id, PROTOCOL_REFUSED_CAPACITY);
    *stream_of(server, ++server->count) =
        (struct hls_server_stream){.key = open.key[0], .next_first = UINT64_MAX};
    return grant(server, descriptor, header->id, server->count);
}

static bool answer_rekey(struct hls_server *server, int descriptor, const struct protocol_header *header)
{
    struct protocol_rekey rekey;
    server->asked++;
    if (protocol_rekey_read(server->body, header->body_bytes, &rekey, NULL) != CORE_OK)
        return false;
    struct hls_server_stream *stream = stream_of(server, rekey.stream);
    server->broken_rules |= rekey.first < stream->messages;
    if (take(&server->dropped))
        return false;
    if (take(&server->busy))
        return refuse(server, descriptor, header->id, PROTOCOL_REFUSED_BUSY);
    if (take(&server->unrekeyed))
        return refuse(server, descriptor, header->id, PROTOCOL_REFUSED_CAPACITY);
    stream->next_key = rekey.key[0];
    stream->next_first = rekey.first;
    return grant_key(server, descriptor, header->id, &rekey);
}

static bool answer_data(struct hls_server *server, int descriptor, const struct protocol_header *header)
{
    uint32_t head = header->flags & PROTOCOL_DATA_FIRST ? CORE_BLOCK_BYTES : 0;
    bool fails = take(&server->failing);
    const struct protocol_result result = {.status = fails ? PROTOCOL_RESULT_BROKEN : PROTOCOL_RESULT_OK,
                                           .flags = PROTOCOL_RESULT_MET,
                                           .latency_ns = 1};
    struct hls_server_stream *stream = stream_of(server, header->id);
    if (head > 0 && stream->messages++ == stream->next_first)
        stream->key = stream->next_key;
    if (head > 0 && take(&server->closed))
        return end_stream(server, descriptor, header->id, PROTOCOL_CLOSE_FAILED);
    uint32_t bytes = header->body_bytes - head;
    uint32_t padding = header->flags & PROTOCOL_DATA_LAST ? CORE_BLOCK_BYTES - bytes % CORE_BLOCK_BYTES : 0;
    uint8_t *cipher = server->frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES;
    for (uint32_t i = 0; i < bytes + padding; i++)
        cipher[i] = (uint8_t)((i < bytes ? server->body[head + i] : padding) + stream->key);
    uint32_t answered = fails ? 0 : bytes + padding + (take(&server->too_long) ? 2 * CORE_BLOCK_BYTES : 0);
    protocol_result_write(server->frame, header->id, header->sequence, &result, answered);
    return fake_write(descriptor, server->frame, PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + answered);
}

static void serve(struct hls_server *server, int descriptor)
{
    struct protocol_header header;
    bool goes_on = take(&server->old) ? fake_welcome_version(descriptor, 2) : fake_welcome(descriptor);
    while (goes_on && fake_read_frame(descriptor, &header, server->body))
        goes_on = header.type == PROTOCOL_OPEN    ? answer_open(server, descriptor, &header)
                  : header.type == PROTOCOL_REKEY ? answer_rekey(server, descriptor, &header)
                  : header.type == PROTOCOL_DATA
                      ? answer_data(server, descriptor, &header)
                      : end_stream(server, descriptor, header.id, PROTOCOL_CLOSE_ASKED);
}

/* One connection after the other, until the listener is shut down; fake_server closes the first one. */
static void serve_again(int descriptor, void *argument)
{
    struct hls_server *server = argument;
    int next = descriptor;
    do {
        char byte;
        if (!take(&server->mute))
            serve(server, next);
        else
            while (recv(next, &byte, 1, 0) > 0)
                continue;
        shutdown(next, SHUT_RDWR);
        if (next != descriptor)
            close(next);
        struct pollfd ready = {.fd = server->fake.listener, .events = POLLIN};
        poll(&ready, 1, -1);
    } while ((next = accept(server->fake.listener, NULL, NULL)) >= 0);
}

void hls_server_start(struct hls_server *server)
{
    fake_server_start(&server->fake, serve_again, server);
}

void hls_server_stop(struct hls_server *server)
{
    shutdown(server->fake.listener, SHUT_RDWR);
    fake_server_join(&server->fake);
}

bool hls_server_is_cipher(const uint8_t *cipher, size_t cipher_bytes, const uint8_t *clear, size_t bytes,
                          uint8_t key)
{
    size_t whole = (bytes / CORE_BLOCK_BYTES + 1) * CORE_BLOCK_BYTES;
    bool right = cipher_bytes == whole;
    for (size_t i = 0; i < whole && right; i++)
        right = cipher[i] == (uint8_t)((i < bytes ? clear[i] : whole - bytes) + key);
    return right;
}
