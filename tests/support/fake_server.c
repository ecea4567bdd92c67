#include "tests/support/fake_server.h"

#include "core/address.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAMS_MAX 8192

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fake server: %s\n", what);
    abort();
}

/* ---- the thread ---- */

static void *run(void *argument)
{
    struct fake_server *server = argument;
    struct pollfd ready = {.fd = server->listener, .events = POLLIN};
    poll(&ready, 1, -1); /* the listener is non-blocking */
    int descriptor = accept(server->listener, NULL, NULL);
    if (descriptor < 0)
        return NULL;
    server->script(descriptor, server->argument);
    close(descriptor);
    return NULL;
}

void fake_server_start(struct fake_server *server, fake_script *script, void *argument)
{
    static atomic_uint number;
    struct core_address address;
    *server = (struct fake_server){.script = script, .argument = argument};
    snprintf(server->address, sizeof server->address, "unix:@millrace-test-%d-%u", (int)getpid(), number++);
    require(core_address_parse(server->address, &address, NULL) == CORE_OK, "address");
    require(core_address_listen(&address, 0, &server->listener, NULL, NULL) == CORE_OK, "listen");
    require(pthread_create(&server->thread, NULL, run, server) == 0, "thread");
}

void fake_server_join(struct fake_server *server)
{
    pthread_join(server->thread, NULL);
    close(server->listener);
}

/* ---- frames ---- */

bool fake_read(int descriptor, void *bytes, size_t count)
{
    return count == 0 || recv(descriptor, bytes, count, MSG_WAITALL) == (ssize_t)count;
}

bool fake_write(int descriptor, const void *bytes, size_t count)
{
    const uint8_t *from = bytes;
    while (count > 0) {
        ssize_t sent = send(descriptor, from, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        from += sent;
        count -= (size_t)sent;
    }
    return true;
}

bool fake_read_frame(int descriptor, struct protocol_header *header, uint8_t body[FAKE_PACKET_BYTES_MAX])
{
    uint8_t frame[PROTOCOL_HEADER_BYTES];
    return fake_read(descriptor, frame, sizeof frame) &&
           protocol_header_read(PROTOCOL_VERSION, frame, header) == CORE_OK &&
           header->body_bytes <= FAKE_PACKET_BYTES_MAX && fake_read(descriptor, body, header->body_bytes);
}

bool fake_await_frame(int descriptor, enum protocol_type type, struct protocol_header *header,
                      uint8_t body[FAKE_PACKET_BYTES_MAX])
{
    while (fake_read_frame(descriptor, header, body))
        if (header->type == type)
            return true;
    return false;
}

bool fake_write_error(int descriptor, enum protocol_error code, bool fatal, const char *text)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    return fake_write(descriptor, frame, protocol_error_write(frame, 0, code, fatal, text));
}

bool fake_welcome(int descriptor)
{
    return fake_welcome_version(descriptor, PROTOCOL_VERSION);
}

static bool read_hello(int descriptor, uint16_t *low, uint16_t *high)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES], body[PROTOCOL_HELLO_BYTES];
    struct protocol_header header;
    return fake_read(descriptor, frame, sizeof frame) &&
           protocol_header_read(PROTOCOL_VERSION, frame, &header) == CORE_OK &&
           header.type == PROTOCOL_HELLO && header.body_bytes == sizeof body &&
           fake_read(descriptor, body, sizeof body) &&
           protocol_hello_read(body, sizeof body, low, high, NULL) == CORE_OK;
}

static bool write_welcome(int descriptor, uint16_t version)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_welcome welcome = {
        .version = version,
        .flags = PROTOCOL_ALLOWS_INLINE_KEY | PROTOCOL_ALLOWS_CLIENT_IV,
        .packet_bytes_max = FAKE_PACKET_BYTES_MAX,
        .burst_packets_max = CORE_BURST_MAX,
        .streams_max = STREAMS_MAX - 1,
        .stream_buffer_bytes_max = UINT64_C(1) << 30,
        .bytes_per_key = UINT64_C(1) << 40,
        .interval_ns_min = CORE_INTERVAL_NS_MIN,
        .latency_ns_min = CORE_LATENCY_NS_MIN,
    };
    return fake_write(descriptor, frame, protocol_welcome_write(frame, &welcome));
}

bool fake_welcome_version(int descriptor, uint16_t version)
{
    uint16_t low, high;
    return read_hello(descriptor, &low, &high) && low <= version && high >= version &&
           write_welcome(descriptor, version);
}

uint16_t fake_welcome_up_to(int descriptor, uint16_t version)
{
    uint16_t low, high;
    if (!read_hello(descriptor, &low, &high) || low > version)
        return 0;
    const uint16_t agreed = high < version ? high : version;
    return write_welcome(descriptor, agreed) ? agreed : 0;
}

/* ---- a server that does everything right ---- */

struct fake_stream {
    bool open;
    enum core_padding padding;
    uint32_t next;
    uint64_t packets, bytes;
};

struct fake_session {
    int descriptor;
    uint32_t last_stream;
    struct fake_stream streams[STREAMS_MAX];
    uint8_t body[FAKE_PACKET_BYTES_MAX];
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX + FAKE_PACKET_BYTES_MAX + 64];
};

uint32_t fake_encrypt(enum core_padding padding, const uint8_t *packet, uint32_t bytes, uint8_t *ciphertext)
{
    uint32_t padded = core_stream_padded_bytes(padding, bytes);
    for (uint32_t i = 0; i < padded; i++)
        ciphertext[i] = (uint8_t) ~(i < bytes ? packet[i] : padded - bytes);
    return padded;
}

static bool answer_open(struct fake_session *session, const struct protocol_header *header)
{
    struct protocol_open open;
    if (protocol_open_read(PROTOCOL_VERSION, session->body, header->body_bytes, &open, NULL) != CORE_OK)
        return false;
    struct protocol_opened opened = {
        .unit = PROTOCOL_UNIT_CPU, .bound_ns = open.spec.latency_ns, .queue_packets = 16};
    if (header->type == PROTOCOL_OPEN) {
        opened.stream = ++session->last_stream;
        session->streams[opened.stream] = (struct fake_stream){.open = true, .padding = open.spec.padding};
        memcpy(opened.iv, open.iv, sizeof opened.iv);
    }
    return fake_write(session->descriptor, session->frame,
                      protocol_opened_write(PROTOCOL_VERSION, session->frame, header->id, &opened));
}

/* Grants every contract but bursts of FAKE_BURST_REFUSED. */
static bool answer_modify(struct fake_session *session, const struct protocol_header *header)
{
    struct protocol_modify modify;
    const struct protocol_refused refused = {
        .code = PROTOCOL_REFUSED_CAPACITY, .offer_latency_ns = CORE_NS_PER_S, .text = "no room for that"};
    if (protocol_modify_read(session->body, header->body_bytes, &modify, NULL) != CORE_OK)
        return false;
    if (modify.burst_packets == FAKE_BURST_REFUSED)
        return fake_write(session->descriptor, session->frame,
                          protocol_refused_write(PROTOCOL_VERSION, session->frame, header->id, &refused));
    const struct protocol_modified modified = {.stream = modify.stream,
                                               .unit = PROTOCOL_UNIT_CPU,
                                               .bound_ns = modify.latency_ns,
                                               .first = session->streams[modify.stream % STREAMS_MAX].next,
                                               .queue_packets = modify.burst_packets};
    return fake_write(session->descriptor, session->frame,
                      protocol_modified_write(session->frame, header->id, &modified));
}

/* Grants every key but those from message FAKE_MESSAGE_REFUSED on. */
static bool answer_rekey(struct fake_session *session, const struct protocol_header *header)
{
    struct protocol_rekey rekey;
    const struct protocol_refused refused = {.code = PROTOCOL_REFUSED_BUSY, .text = "it has begun"};
    if (protocol_rekey_read(session->body, header->body_bytes, &rekey, NULL) != CORE_OK)
        return false;
    if (rekey.first == FAKE_MESSAGE_REFUSED)
        return fake_write(session->descriptor, session->frame,
                          protocol_refused_write(PROTOCOL_VERSION, session->frame, header->id, &refused));
    const struct protocol_rekeyed rekeyed = {
        .stream = rekey.stream, .first = rekey.first, .in_force_ns = CORE_NS_PER_MS};
    return fake_write(session->descriptor, session->frame,
                      protocol_rekeyed_write(session->frame, header->id, &rekeyed));
}

static bool answer_data(struct fake_session *session, const struct protocol_header *header)
{
    struct fake_stream *stream = &session->streams[header->id % STREAMS_MAX];
    if (!stream->open || header->sequence != stream->next++)
        return fake_write_error(session->descriptor, PROTOCOL_ERROR_SEQUENCE, true, "sequence") && false;
    struct protocol_result result = {.flags = PROTOCOL_RESULT_MET, .latency_ns = 1000};
    uint32_t bytes = 0;
    if (stream->padding == CORE_PADDING_NONE && (header->body_bytes == 0 || header->body_bytes % 16 != 0))
        result = (struct protocol_result){.status = PROTOCOL_RESULT_NOT_BLOCKS};
    else
        bytes = fake_encrypt(stream->padding, session->body, header->body_bytes,
                             session->frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES);
    protocol_result_write(session->frame, header->id, header->sequence, &result, bytes);
    stream->packets += bytes > 0;
    stream->bytes += bytes;
    return fake_write(session->descriptor, session->frame,
                      PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + bytes);
}

static bool answer_close(struct fake_session *session, const struct protocol_header *header)
{
    struct fake_stream *stream = &session->streams[header->id % STREAMS_MAX];
    const struct protocol_closed closed = {
        .packets = stream->packets, .bytes = stream->bytes, .met = stream->packets};
    stream->open = false;
    return fake_write(session->descriptor, session->frame,
                      protocol_closed_write(session->frame, header->id, &closed));
}

static bool answer(struct fake_session *session, const struct protocol_header *header)
{
    switch (header->type) {
    case PROTOCOL_OPEN:
    case PROTOCOL_QUERY:
        return answer_open(session, header);
    case PROTOCOL_MODIFY:
        return answer_modify(session, header);
    case PROTOCOL_REKEY:
        return answer_rekey(session, header);
    case PROTOCOL_DATA:
        return answer_data(session, header);
    case PROTOCOL_CLOSE:
        return answer_close(session, header);
    case PROTOCOL_PING:
        return fake_write(session->descriptor, session->frame,
                          protocol_ping_write(session->frame, PROTOCOL_PONG, header->id, session->body,
                                              header->body_bytes));
    default:
        return false;
    }
}

void fake_serve(int descriptor, void *argument)
{
    (void)argument;
    struct fake_session *session = calloc(1, sizeof *session);
    require(session != NULL, "memory");
    session->descriptor = descriptor;
    struct protocol_header header;
    if (fake_welcome(descriptor))
        while (fake_read_frame(descriptor, &header, session->body) && answer(session, &header))
            continue;
    free(session);
}
