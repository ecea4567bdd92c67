#include "tests/support/server_model.h"

#include "core/protocol.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/virtual_threads.h"

#include <errno.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS      4
#define STREAMS      8   /* that a client asks for in its life */
#define REQUESTS     32  /* that a client has unanswered */
#define PACKETS      128 /* of a stream */
#define NOTES        64  /* PONGs and ERRORs 6 that a client waits for */
#define PACKET_BYTES 4096
#define FRAME_BYTES  (PROTOCOL_HEADER_BYTES + PACKET_BYTES + 512)
#define SETTLE_NS    (10 * CORE_NS_PER_S)
#define PROBE_NS     (2 * CORE_NS_PER_MS)

struct packet {
    uint32_t bytes, seed;
    uint64_t end;        /* position behind it in what the client sends */
    core_ns eligible_ns; /* by the document, from when its last byte was sent */
    bool sent;
};

struct stream {
    uint32_t id;
    struct core_stream_spec spec;
    EVP_CIPHER_CTX *chain;
    uint32_t next, sent, done; /* packets given, sent whole, and answered */
    uint32_t room;             /* packets that the server holds before it stops reading */
    core_ns tat_ns;
    struct packet packets[PACKETS];
    struct protocol_closed counts;
    bool open, asked_to_close, modified, modifying;
};

struct request {
    uint8_t type; /* 0: none */
    uint32_t id, stream;
    struct protocol_open open;
    uint8_t key[32];
    enum protocol_refusal must; /* it must be refused so; 0: it may be granted */
    core_ns latency_ns;
};

struct note {
    uint8_t type;
    uint32_t id;
    uint8_t bytes, fill;
};

struct client {
    int descriptor; /* -1: none */
    uint16_t version;
    bool greets, welcomed, ended, half_closed, deaf;
    bool held_up; /* the server may have had to stop reading it: when packets came is not known */
    enum protocol_error fatal; /* it has broken a rule of that; 0: none */
    uint32_t requests_made, opens;
    struct request requests[REQUESTS];
    struct stream streams[STREAMS];
    uint32_t stream_count, note_first, note_count;
    struct note notes[NOTES];
    uint64_t given, sent; /* bytes of its life; between them, what is to be sent */
    size_t output_bytes, input_bytes;
    uint8_t output[16 * FRAME_BYTES], input[1 << 20];
};

struct tape {
    const uint8_t *bytes;
    size_t left;
};

static struct test_server server;
static struct client clients[CLIENTS + 1]; /* the last one asks the empty server */
static struct client *const probe = &clients[CLIENTS];
static struct protocol_refused empty_offer;
static const char *name = "";

void test_model_name(const char *text)
{
    name = text;
}

__attribute__((format(printf, 2, 3))) static _Noreturn void deviate(const struct client *client,
                                                                    const char *format, ...)
{
    va_list values;
    fprintf(stderr, "deviation in %s, client %d: ", name, (int)(client - clients));
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fprintf(stderr, "\n");
    abort();
}

#define MUST(client, condition, ...) ((condition) ? (void)0 : deviate(client, __VA_ARGS__))

static uint32_t take(struct tape *tape)
{
    if (tape->left == 0)
        return 0;
    tape->left--;
    return *tape->bytes++;
}

/* ---- what the client sends ---- */

/* The packets that the server can have whole by now have arrived. */
static void stamp(struct client *client)
{
    for (uint32_t i = 0; i < client->stream_count; i++) {
        struct stream *stream = &client->streams[i];
        for (; stream->sent < stream->next; stream->sent++) {
            struct packet *packet = &stream->packets[stream->sent];
            const core_ns now_ns = test_virtual_now_ns();
            if (packet->end > client->sent)
                break;
            client->held_up |= stream->sent - stream->done >= stream->room;
            if (stream->sent == 0)
                stream->tat_ns = now_ns;
            packet->eligible_ns = core_time_max(now_ns, stream->tat_ns - (stream->spec.burst_packets - 1) *
                                                                             stream->spec.interval_ns);
            stream->tat_ns = core_time_max(stream->tat_ns, now_ns) + stream->spec.interval_ns;
        }
    }
}

static void push(struct client *client, size_t most)
{
    const size_t bytes = most < client->output_bytes ? most : client->output_bytes;
    if (client->descriptor < 0 || bytes == 0)
        return;
    const ssize_t sent = send(client->descriptor, client->output, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    const size_t gone = sent > 0 ? (size_t)sent : errno == EAGAIN ? 0 : client->output_bytes;
    memmove(client->output, client->output + gone, client->output_bytes - gone);
    client->output_bytes -= gone;
    client->sent += gone;
    stamp(client);
}

static bool has_room(const struct client *client)
{
    return client->descriptor >= 0 && !client->half_closed && client->fatal == 0 && !client->ended &&
           client->output_bytes + FRAME_BYTES <= sizeof client->output;
}

static void give(struct client *client, const void *frame, size_t bytes)
{
    memcpy(client->output + client->output_bytes, frame, bytes);
    client->output_bytes += bytes;
    client->given += bytes;
}

static void expect_note(struct client *client, struct note note)
{
    client->notes[(client->note_first + client->note_count++) % NOTES] = note;
}

/* Only after a HELLO, else what comes is ERROR 4. */
static enum protocol_error rule(const struct client *client, enum protocol_error broken)
{
    return client->greets ? broken : PROTOCOL_ERROR_STATE;
}

static void give_hello(struct client *client, struct tape *tape, bool right)
{
    static const uint16_t good[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 9}, {2, 300}};
    static const uint16_t bad[][2] = {{3, 9}, {2, 1}, {0, 0}, {300, 301}};
    const uint32_t which = take(tape);
    const uint16_t *versions = right ? good[which % 5] : bad[which % 4];
    uint8_t frame[FRAME_BYTES];
    const uint32_t bytes = protocol_hello_write(frame, versions[0], versions[1]);

    if (client->greets) /* a second one */
        client->fatal = PROTOCOL_ERROR_STATE;
    else if (!right && which % 8 >= 4) {
        frame[PROTOCOL_HEADER_BYTES + which % 4] ^= 1;
        client->fatal = PROTOCOL_ERROR_MALFORMED;
    } else if (!right)
        client->fatal = versions[0] > versions[1] ? PROTOCOL_ERROR_MALFORMED : PROTOCOL_ERROR_VERSION;
    else
        client->version = versions[1] > 1 ? 2 : 1;
    client->greets |= client->fatal == 0;
    give(client, frame, bytes);
}

static struct request *new_request(struct client *client, uint8_t type)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (client->requests[i].type == 0) {
            client->requests[i] = (struct request){.type = type, .id = 1000 + client->requests_made++};
            return &client->requests[i];
        }
    return NULL;
}

static void fill_open(struct request *request, struct tape *tape, bool right)
{
    struct protocol_open *open = &request->open;
    const uint32_t how = take(tape), wrong = take(tape);

    open->spec =
        (struct core_stream_spec){.packet_bytes = 16 * (1 + take(tape) % 64),
                                  .burst_packets = 1 + how % 4,
                                  .interval_ns = (core_ns)(1 + take(tape)) * 50000,
                                  .latency_ns = (core_ns)(1 + take(tape)) * 100000,
                                  .cipher = CORE_CIPHER_AES_128_CBC + (how >> 2) % 3,
                                  .padding = (how >> 5) & 1 ? CORE_PADDING_PKCS7 : CORE_PADDING_NONE};
    open->key_kind = PROTOCOL_KEY_INLINE;
    open->key_bytes = core_cipher_key_bytes(open->spec.cipher);
    memset(request->key, (int)how, sizeof request->key);
    open->key = request->key;
    open->has_iv = (how >> 6) & 1;
    memset(open->iv, (int)wrong, sizeof open->iv);
    if (right)
        return;
    request->must = PROTOCOL_REFUSED_SPEC;
    if (wrong % 5 == 0)
        open->spec.packet_bytes = 0;
    else if (wrong % 5 == 1)
        open->spec.burst_packets = 70000;
    else if (wrong % 5 == 2)
        open->spec.interval_ns = 999;
    else if (wrong % 5 == 3)
        open->spec.latency_ns = 9999;
    else {
        request->must = PROTOCOL_REFUSED_KEY;
        open->key_bytes = open->key_bytes == 16 ? 24 : 16;
    }
}

static void give_open(struct client *client, struct tape *tape, bool right, uint8_t type)
{
    uint8_t frame[FRAME_BYTES];
    struct request *request;
    if ((type == PROTOCOL_OPEN && client->opens == STREAMS) || (request = new_request(client, type)) == NULL)
        return;
    client->opens += type == PROTOCOL_OPEN;
    fill_open(request, tape, right);
    give(client, frame, protocol_open_write(frame, type, request->id, &request->open));
    if (!client->greets)
        client->fatal = PROTOCOL_ERROR_STATE;
}

static struct stream *some_stream(struct client *client, struct tape *tape)
{
    const uint32_t which = take(tape);
    for (uint32_t i = 0; i < client->stream_count; i++) {
        struct stream *stream = &client->streams[(which + i) % client->stream_count];
        if (stream->open && !stream->asked_to_close)
            return stream;
    }
    return NULL;
}

static void write_header(uint8_t *frame, uint8_t type, uint32_t id, uint32_t sequence, uint32_t bytes)
{
    const struct protocol_header header = {.body_bytes = bytes, .type = type, .id = id, .sequence = sequence};
    protocol_header_write(frame, &header);
}

static void fill_packet(uint8_t *bytes, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(seed + i * 31 + (i >> 8));
}

static void give_data(struct client *client, struct stream *stream, uint32_t bytes, uint32_t seed)
{
    uint8_t frame[FRAME_BYTES];
    struct packet *packet = &stream->packets[stream->next];

    if (stream->next == PACKETS)
        return;
    write_header(frame, PROTOCOL_DATA, stream->id, stream->next, bytes);
    fill_packet(frame + PROTOCOL_HEADER_BYTES, bytes, seed);
    give(client, frame, PROTOCOL_HEADER_BYTES + bytes);
    *packet = (struct packet){.bytes = bytes, .seed = seed, .end = client->given};
    stream->next++;
}

static void give_right_data(struct client *client, struct tape *tape)
{
    struct stream *stream = some_stream(client, tape);
    const uint32_t length = take(tape), burst = take(tape) % 8;
    if (stream == NULL)
        return;
    for (uint32_t i = 0; i <= burst && has_room(client); i++) {
        uint32_t bytes = 1 + length * 37 % stream->spec.packet_bytes;
        if (stream->spec.padding == CORE_PADDING_NONE)
            bytes = (bytes + 15) / 16 * 16;
        give_data(client, stream, bytes, length + i);
    }
}

static void give_unknown(struct client *client, struct tape *tape, uint8_t type)
{
    const uint32_t id = 0xffff0000 + take(tape), bytes = type == PROTOCOL_DATA ? take(tape) : 0;
    uint8_t frame[FRAME_BYTES];

    if (client->note_count == NOTES)
        return;
    write_header(frame, type, id, 0, bytes);
    memset(frame + PROTOCOL_HEADER_BYTES, 0, bytes);
    give(client, frame, PROTOCOL_HEADER_BYTES + bytes);
    if (client->greets)
        expect_note(client, (struct note){.type = PROTOCOL_ERROR, .id = id});
    else
        client->fatal = PROTOCOL_ERROR_STATE;
}

static void give_wrong_data(struct client *client, struct tape *tape)
{
    const uint32_t how = take(tape) % 5;
    struct stream *stream = some_stream(client, tape);
    uint8_t frame[FRAME_BYTES];

    if (stream == NULL || how == 0)
        give_unknown(client, tape, PROTOCOL_DATA);
    else if (how == 1) /* longer than its stream's */
        give_data(client, stream, stream->spec.packet_bytes + 1 + take(tape), how);
    else if (how == 2) /* empty */
        give_data(client, stream, 0, how);
    else if (how == 3)
        give_data(client, stream, 1 + take(tape) % stream->spec.packet_bytes, how);
    else {
        const bool too_long = take(tape) & 1;
        write_header(frame, PROTOCOL_DATA, stream->id, stream->next + !too_long,
                     too_long ? PACKET_BYTES + 1 : 16);
        give(client, frame, PROTOCOL_HEADER_BYTES);
        client->fatal = too_long ? PROTOCOL_ERROR_OVERSIZED : PROTOCOL_ERROR_SEQUENCE;
    }
}

static void give_close(struct client *client, struct tape *tape)
{
    struct stream *stream = some_stream(client, tape);
    uint8_t frame[FRAME_BYTES];

    if (stream == NULL) {
        give_unknown(client, tape, PROTOCOL_CLOSE);
        return;
    }
    give(client, frame, protocol_close_write(frame, stream->id));
    stream->asked_to_close = true;
}

static void give_ping(struct client *client, struct tape *tape)
{
    const struct note note = {.type = PROTOCOL_PONG,
                              .id = take(tape) * 16777259,
                              .bytes = (uint8_t)(take(tape) % 65),
                              .fill = (uint8_t)take(tape)};
    uint8_t frame[FRAME_BYTES], body[64];

    if (client->note_count == NOTES)
        return;
    memset(body, note.fill, sizeof body);
    give(client, frame, protocol_ping_write(frame, PROTOCOL_PING, note.id, body, note.bytes));
    if (client->greets)
        expect_note(client, note);
    else
        client->fatal = PROTOCOL_ERROR_STATE;
}

/* A frame that breaks a rule by its header alone. */
static void give_malformed(struct client *client, struct tape *tape)
{
    uint8_t frame[FRAME_BYTES];
    const uint32_t how = take(tape) % 5;

    write_header(frame, PROTOCOL_PING, 7, 0, 0);
    if (how == 0)
        frame[5] = 1;
    else if (how == 1)
        frame[6] = 1;
    else if (how == 2)
        frame[12] = 1;
    else if (how == 3)
        frame[4] = (uint8_t)(take(tape) & 1 ? 0 : PROTOCOL_WELCOME);
    else
        frame[0] = 65;
    give(client, frame, PROTOCOL_HEADER_BYTES);
    client->fatal = rule(client, how < 3    ? PROTOCOL_ERROR_MALFORMED
                                 : how == 3 ? PROTOCOL_ERROR_UNKNOWN_TYPE
                                            : PROTOCOL_ERROR_OVERSIZED);
}

static void give_modify(struct client *client, struct tape *tape)
{
    struct stream *stream = some_stream(client, tape);
    struct protocol_modify modify = {.burst_packets = 1 + take(tape) % 4,
                                     .interval_ns = (core_ns)(1 + take(tape)) * 50000,
                                     .latency_ns = (core_ns)(1 + take(tape)) * 100000};
    uint8_t frame[FRAME_BYTES];
    struct request *request;

    if (!client->welcomed || (request = new_request(client, PROTOCOL_MODIFY)) == NULL)
        return;
    modify.stream = stream == NULL ? 0xffffffff : stream->id;
    if (client->version < 2)
        client->fatal = PROTOCOL_ERROR_UNKNOWN_TYPE;
    else if (stream == NULL)
        request->must = PROTOCOL_REFUSED_STREAM;
    else
        stream->modified = true;
    give(client, frame, protocol_modify_write(frame, request->id, &modify));
    request->stream = modify.stream;
    request->latency_ns = modify.latency_ns;
}

/* ---- what it is told ---- */

static struct request *find_request(struct client *client, uint32_t id)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (client->requests[i].type != 0 && client->requests[i].id == id)
            return &client->requests[i];
    deviate(client, "an answer to request %u, which is not open", id);
}

static struct stream *find_stream(struct client *client, uint32_t id)
{
    for (uint32_t i = 0; i < client->stream_count; i++)
        if (client->streams[i].open && client->streams[i].id == id)
            return &client->streams[i];
    deviate(client, "stream %u is not open", id);
}

static void begin_stream(struct client *client, const struct request *request,
                         const struct protocol_opened *opened)
{
    struct stream *stream = &client->streams[client->stream_count++];
    const EVP_CIPHER *const ciphers[] = {EVP_aes_128_cbc(), EVP_aes_192_cbc(), EVP_aes_256_cbc()};
    EVP_CIPHER_CTX *chain = stream->chain;

    TEST_REQUIRE(client->stream_count <= STREAMS);
    for (uint32_t i = 0; i + 1 < client->stream_count; i++)
        MUST(client, !client->streams[i].open || client->streams[i].id != opened->stream, "id used twice");
    MUST(client, opened->stream != 0, "stream id 0");
    MUST(client, !request->open.has_iv || memcmp(opened->iv, request->open.iv, 16) == 0, "another IV");
    *stream = (struct stream){
        .id = opened->stream, .spec = request->open.spec, .room = opened->queue_packets, .open = true};
    stream->chain = chain == NULL ? EVP_CIPHER_CTX_new() : chain;
    TEST_REQUIRE(EVP_EncryptInit_ex(stream->chain,
                                    ciphers[request->open.spec.cipher - CORE_CIPHER_AES_128_CBC], NULL,
                                    request->key, opened->iv) == 1 &&
                 EVP_CIPHER_CTX_set_padding(stream->chain, 0) == 1);
    stream->asked_to_close = client->half_closed;
}

static void on_opened(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct request *request = find_request(client, header->id);
    struct protocol_opened opened;
    MUST(client, protocol_opened_read(client->version, body, header->body_bytes, &opened, NULL) == CORE_OK,
         "a bad OPENED");
    MUST(client, request->must == 0 && request->type != PROTOCOL_MODIFY, "request %u granted", header->id);
    MUST(client, opened.bound_ns <= request->open.spec.latency_ns, "a bound above the contract");
    if (request->type == PROTOCOL_OPEN)
        begin_stream(client, request, &opened);
    else
        MUST(client, opened.stream == 0, "a QUERY opened a stream");
    request->type = 0;
}

static void on_refused(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct request *request = find_request(client, header->id);
    struct protocol_refused refused;
    MUST(client, protocol_refused_read(client->version, body, header->body_bytes, &refused, NULL) == CORE_OK,
         "a bad REFUSED");
    if (request->must != 0)
        MUST(client, refused.code == request->must, "refused with %d instead of %d", refused.code,
             request->must);
    else if (request->type == PROTOCOL_MODIFY)
        MUST(client,
             refused.code == PROTOCOL_REFUSED_CAPACITY || refused.code == PROTOCOL_REFUSED_LIMIT ||
                 refused.code == PROTOCOL_REFUSED_BUSY || refused.code == PROTOCOL_REFUSED_STREAM,
             "MODIFY refused with %d", refused.code);
    else
        MUST(client, refused.code == PROTOCOL_REFUSED_CAPACITY || refused.code == PROTOCOL_REFUSED_LIMIT,
             "refused with %d", refused.code);
    if (client == probe)
        empty_offer = refused;
    request->type = 0;
}

static void on_modified(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct request *request = find_request(client, header->id);
    struct protocol_modified modified;
    MUST(client, protocol_modified_read(body, header->body_bytes, &modified, NULL) == CORE_OK,
         "a bad MODIFIED");
    MUST(client, request->type == PROTOCOL_MODIFY && request->must == 0, "request %u modified", header->id);
    MUST(client, modified.stream == request->stream, "MODIFIED for stream %u", modified.stream);
    MUST(client, modified.bound_ns <= request->latency_ns, "a bound above the new contract");
    request->type = 0;
}

static enum protocol_result_status status_of(const struct stream *stream, const struct packet *packet)
{
    if (packet->bytes > stream->spec.packet_bytes)
        return PROTOCOL_RESULT_TOO_LONG;
    if (stream->spec.padding == CORE_PADDING_NONE && (packet->bytes == 0 || packet->bytes % 16 != 0))
        return PROTOCOL_RESULT_NOT_BLOCKS;
    return PROTOCOL_RESULT_OK;
}

static void check_cipher(struct client *client, struct stream *stream, const struct packet *packet,
                         const uint8_t *cipher, uint32_t cipher_bytes)
{
    uint8_t plain[FRAME_BYTES], expected[FRAME_BYTES];
    const bool pads = stream->spec.padding == CORE_PADDING_PKCS7;
    const uint32_t bytes = pads ? packet->bytes / 16 * 16 + 16 : packet->bytes;
    int made = 0;

    fill_packet(plain, packet->bytes, packet->seed);
    memset(plain + packet->bytes, (int)(bytes - packet->bytes), bytes - packet->bytes);
    TEST_REQUIRE(EVP_EncryptUpdate(stream->chain, expected, &made, plain, (int)bytes) == 1);
    MUST(client, cipher_bytes == bytes && memcmp(cipher, expected, bytes) == 0,
         "stream %u, packet %u: wrong bytes", stream->id, stream->done);
    stream->counts.packets++;
    stream->counts.bytes += bytes;
}

static void check_time(const struct client *client, struct stream *stream, const struct packet *packet,
                       const struct protocol_result *result)
{
    const bool met = result->flags & PROTOCOL_RESULT_MET, reader = result->flags & PROTOCOL_RESULT_READER;
    const core_ns true_ns = test_virtual_now_ns() - packet->eligible_ns;

    stream->counts.met += met;
    stream->counts.missed += !met;
    MUST(client, met || !reader, "flag 2 without flag 1");
    if (stream->modified)
        return; /* when the new contract came into force is not known */
    MUST(client, reader || met == (result->latency_ns <= stream->spec.latency_ns),
         "latency of %lld ns, and met is %d", (long long)result->latency_ns, met);
    MUST(client, client->held_up || result->latency_ns >= true_ns,
         "stream %u, packet %u: latency of %lld ns, in truth %lld ns", stream->id, stream->done,
         (long long)result->latency_ns, (long long)true_ns);
}

static void on_result(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct stream *stream = find_stream(client, header->id);
    const struct packet *packet = &stream->packets[stream->done];
    struct protocol_result result;

    MUST(client, protocol_result_read(client->version, body, header->body_bytes, &result, NULL) == CORE_OK,
         "a bad RESULT");
    MUST(client, header->sequence == stream->done && stream->done < stream->sent,
         "stream %u: result %u instead of %u", stream->id, header->sequence, stream->done);
    MUST(client, result.status == status_of(stream, packet), "status %d instead of %d", result.status,
         status_of(stream, packet));
    if (result.status == PROTOCOL_RESULT_OK) {
        check_cipher(client, stream, packet, body + 16, header->body_bytes - 16);
        check_time(client, stream, packet, &result);
    } else
        MUST(client,
             header->body_bytes == 16 && result.flags == 0 && result.latency_ns == 0 && result.waited_us == 0,
             "figures of a packet that was not encrypted");
    stream->done++;
}

static void on_closed(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct stream *stream = find_stream(client, header->id);
    struct protocol_closed closed;
    MUST(client, protocol_closed_read(body, header->body_bytes, &closed, NULL) == CORE_OK, "a bad CLOSED");
    MUST(client, stream->asked_to_close && closed.reason == PROTOCOL_CLOSE_ASKED, "closed unasked");
    MUST(client, stream->done == stream->next, "stream %u closed before result %u", stream->id, stream->done);
    MUST(client,
         closed.packets == stream->counts.packets && closed.bytes == stream->counts.bytes &&
             closed.met == stream->counts.met && closed.missed == stream->counts.missed,
         "CLOSED counts %llu packets, %llu bytes, %llu met, %llu missed; %llu, %llu, %llu, %llu came",
         (unsigned long long)closed.packets, (unsigned long long)closed.bytes, (unsigned long long)closed.met,
         (unsigned long long)closed.missed, (unsigned long long)stream->counts.packets,
         (unsigned long long)stream->counts.bytes, (unsigned long long)stream->counts.met,
         (unsigned long long)stream->counts.missed);
    stream->open = false;
}

static void on_note(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    const struct note note = client->notes[client->note_first];
    MUST(client, client->note_count > 0 && note.type == header->type && note.id == header->id,
         "frame of type %u and id %u", header->type, header->id);
    if (note.type == PROTOCOL_PONG) {
        MUST(client, header->body_bytes == note.bytes, "a PONG of another length");
        for (uint32_t i = 0; i < note.bytes; i++)
            MUST(client, body[i] == note.fill, "a PONG of other bytes");
    }
    client->note_first = (client->note_first + 1) % NOTES;
    client->note_count--;
}

static void on_error(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct core_error error;
    enum protocol_error code;
    char text[512];
    bool fatal;
    MUST(client,
         protocol_error_read(body, header->body_bytes, &code, &fatal, text, sizeof text, &error) == CORE_OK,
         "a bad ERROR");
    MUST(client, fatal == (code != PROTOCOL_ERROR_STREAM), "ERROR %d with fatal %d", code, fatal);
    if (!fatal) {
        on_note(client, header, body);
        return;
    }
    MUST(client, client->fatal == code, "ERROR %d instead of %d: %s", code, client->fatal, text);
    client->ended = true;
}

static void on_welcome(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct protocol_welcome welcome;
    MUST(client, client->greets && !client->welcomed, "a WELCOME unasked");
    MUST(client, protocol_welcome_read(body, header->body_bytes, &welcome, NULL) == CORE_OK, "a bad WELCOME");
    MUST(client, welcome.version == client->version && welcome.packet_bytes_max == PACKET_BYTES,
         "WELCOME to version %u", welcome.version);
    client->welcomed = true;
}

static void on_frame(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    static void (*const handlers[])(struct client *, const struct protocol_header *, const uint8_t *) = {
        [PROTOCOL_WELCOME] = on_welcome,   [PROTOCOL_OPENED] = on_opened, [PROTOCOL_REFUSED] = on_refused,
        [PROTOCOL_RESULT] = on_result,     [PROTOCOL_CLOSED] = on_closed, [PROTOCOL_ERROR] = on_error,
        [PROTOCOL_MODIFIED] = on_modified, [PROTOCOL_PONG] = on_note};
    MUST(client, !client->ended, "a frame of type %u after a fatal ERROR", header->type);
    MUST(client, header->type < sizeof handlers / sizeof *handlers && handlers[header->type] != NULL,
         "a frame of type %u", header->type);
    handlers[header->type](client, header, body);
}

/* ---- connections ---- */

static void hang_up(struct client *client)
{
    close(client->descriptor);
    client->descriptor = -1;
}

/* The server has closed its end. */
static void on_end(struct client *client)
{
    MUST(client, client->ended || client->half_closed || client->fatal != 0, "ended by the server");
    MUST(client, client->ended || client->fatal == 0, "ended without ERROR %d", client->fatal);
    MUST(client, client->input_bytes == 0, "ended within a frame");
    for (uint32_t i = 0; !client->ended && i < client->stream_count; i++)
        MUST(client, !client->streams[i].open, "ended without CLOSED of stream %u", client->streams[i].id);
    for (uint32_t i = 0; !client->ended && i < REQUESTS; i++)
        MUST(client, client->requests[i].type == 0, "ended without an answer to request %u",
             client->requests[i].id);
    MUST(client, client->ended || client->note_count == 0, "ended without a PONG or an ERROR 6");
    hang_up(client);
}

static void read_frames(struct client *client)
{
    struct protocol_header header;
    size_t at = 0;
    while (client->input_bytes - at >= PROTOCOL_HEADER_BYTES) {
        MUST(client, protocol_header_read(client->version, client->input + at, &header) == CORE_OK,
             "a bad header");
        if (client->input_bytes - at < PROTOCOL_HEADER_BYTES + (size_t)header.body_bytes)
            break;
        on_frame(client, &header, client->input + at + PROTOCOL_HEADER_BYTES);
        at += PROTOCOL_HEADER_BYTES + header.body_bytes;
    }
    memmove(client->input, client->input + at, client->input_bytes - at);
    client->input_bytes -= at;
}

/* True: there was something. */
static bool hear(struct client *client)
{
    const ssize_t got = recv(client->descriptor, client->input + client->input_bytes,
                             sizeof client->input - client->input_bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN)
        return false;
    client->input_bytes += got > 0 ? (size_t)got : 0;
    read_frames(client);
    if (got <= 0)
        on_end(client);
    return true;
}

static bool hear_all(void *argument)
{
    struct pollfd ready[CLIENTS + 1];
    bool any = false;
    (void)argument;
    for (size_t i = 0; i <= CLIENTS; i++)
        ready[i] = (struct pollfd){.fd = clients[i].deaf ? -1 : clients[i].descriptor, .events = POLLIN};
    (void)poll(ready, CLIENTS + 1, 0);
    for (size_t i = 0; i <= CLIENTS; i++)
        any |= ready[i].revents != 0 && hear(&clients[i]);
    return any;
}

static void pass(core_ns time_ns)
{
    test_virtual_run(test_virtual_now_ns() + time_ns, hear_all, NULL);
}

static void connect_client(struct client *client)
{
    EVP_CIPHER_CTX *chains[STREAMS];
    struct core_error error;
    int pair[2];

    for (size_t i = 0; i < STREAMS; i++)
        chains[i] = client->streams[i].chain;
    memset(client, 0, offsetof(struct client, output));
    for (size_t i = 0; i < STREAMS; i++)
        client->streams[i].chain = chains[i];
    TEST_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    client->descriptor = pair[0];
    TEST_REQUIRE(server_adopt(server.server, pair[1], &error) == CORE_OK);
}

static void half_close(struct client *client)
{
    push(client, client->output_bytes);
    if (client->output_bytes > 0 || !client->welcomed)
        return;
    client->half_closed = true;
    for (uint32_t i = 0; i < client->stream_count; i++)
        client->streams[i].asked_to_close = true;
    shutdown(client->descriptor, SHUT_WR);
}

/* ---- sequences ---- */

static void give_frame(struct client *client, uint32_t operation, struct tape *tape)
{
    if (!has_room(client))
        return;
    switch (operation) {
    case 0:
        give_hello(client, tape, true);
        break;
    case 1:
        give_hello(client, tape, false);
        break;
    case 2:
        give_open(client, tape, true, PROTOCOL_OPEN);
        break;
    case 3:
        give_open(client, tape, take(tape) & 1, PROTOCOL_OPEN);
        break;
    case 4:
        give_open(client, tape, take(tape) & 1, PROTOCOL_QUERY);
        break;
    case 5:
        give_wrong_data(client, tape);
        break;
    case 6:
        give_close(client, tape);
        break;
    case 7:
        give_ping(client, tape);
        break;
    case 8:
        give_malformed(client, tape);
        break;
    case 9:
        give_modify(client, tape);
        break;
    case 10:
        give_unknown(client, tape, take(tape) & 1 ? PROTOCOL_CLOSE : PROTOCOL_DATA);
        break;
    default:
        give_right_data(client, tape);
    }
}

/* What is not about frames. */
static void disturb(struct client *client, struct tape *tape)
{
    const uint32_t how = take(tape) % 8;
    if (client->descriptor < 0)
        return;
    if (how == 0)
        hang_up(client);
    else if (how == 1 && client->fatal == 0 && !client->half_closed)
        half_close(client);
    else if (how == 2)
        client->deaf = client->held_up = true;
    else if (how == 3)
        client->deaf = false;
    else if (how == 4)
        test_virtual_delay_workers((core_ns)take(tape) * 20000);
    else
        pass((core_ns)take(tape) << take(tape) % 17);
}

static void step(struct tape *tape)
{
    struct client *client = &clients[take(tape) % CLIENTS];
    const uint32_t operation = take(tape), cut = take(tape);

    if (client->descriptor < 0) {
        connect_client(client);
        if (operation % 8 != 0) /* few begin with anything else */
            give_hello(client, tape, true);
    } else if (operation % 16 == 15)
        disturb(client, tape);
    else
        give_frame(client, operation % 16, tape);
    push(client, cut < 192 ? client->output_bytes : cut - 191);
    if (cut % 8 != 7) {
        pass(cut % 4 == 0 ? (core_ns)cut * 1000 : 0);
        return;
    }
    for (uint32_t turns = cut / 8 % 4; turns > 0; turns--) /* the next operation comes in between */
        test_virtual_turn();
}

/* Each says all that it had to say, and hears to the end. */
static void finish(void)
{
    test_virtual_delay_workers(0);
    for (size_t i = 0; i < CLIENTS; i++)
        clients[i].deaf = false;
    for (uint32_t patience = 0; patience < 4000; patience++) {
        bool waits = false;
        for (size_t i = 0; i < CLIENTS; i++) {
            struct client *client = &clients[i];
            if (client->descriptor < 0)
                continue;
            waits = true;
            push(client, client->output_bytes);
            if (client->fatal == 0 && !client->half_closed && client->welcomed)
                half_close(client);
            else if (!client->greets && client->fatal == 0)
                hang_up(client); /* it never spoke */
        }
        if (!waits)
            return;
        pass(CORE_NS_PER_MS);
    }
    for (size_t i = 0; i < CLIENTS; i++)
        MUST(&clients[i], clients[i].descriptor < 0, "the connection does not end");
}

/* What is offered to who asks for more than there is. */
static struct protocol_refused ask_offer(void)
{
    static const struct protocol_open open = {.spec = {.packet_bytes = PACKET_BYTES,
                                                       .burst_packets = 16,
                                                       .interval_ns = 1000,
                                                       .latency_ns = 20 * CORE_NS_PER_MS,
                                                       .cipher = CORE_CIPHER_AES_256_CBC,
                                                       .padding = CORE_PADDING_NONE}};
    struct request *request = new_request(probe, PROTOCOL_QUERY);
    uint8_t frame[FRAME_BYTES];

    give(probe, frame, protocol_open_write(frame, PROTOCOL_QUERY, request->id, &open));
    push(probe, probe->output_bytes);
    pass(0);
    MUST(probe, request->type == 0, "a QUERY remained without an answer");
    return empty_offer;
}

static void check_empty(const struct protocol_refused *before)
{
    struct protocol_refused after;
    for (core_ns waited_ns = 0; waited_ns < SETTLE_NS; waited_ns += PROBE_NS) {
        after = ask_offer();
        if (after.offer_interval_ns == before->offer_interval_ns)
            return;
        pass(PROBE_NS);
    }
    deviate(probe, "the empty server offers %lld ns instead of %lld ns", (long long)after.offer_interval_ns,
            (long long)before->offer_interval_ns);
}

void test_model_run(const uint8_t *bytes, size_t count)
{
    static struct protocol_refused before;
    struct tape tape = {bytes, count};

    if (before.offer_interval_ns == 0)
        before = ask_offer();
    while (tape.left > 0)
        step(&tape);
    finish();
    check_empty(&before);
}

void test_model_start(void)
{
    struct tape version_2 = {(const uint8_t[]){1}, 1};
    test_server_start(&server,
                      "listeners: [{address: 'unix:socket'}]\n"
                      "client_iv: true\n"
                      "limits: {packet_bytes: 4096, burst_packets: 16}\n",
                      &test_profile_real);
    for (size_t i = 0; i <= CLIENTS; i++)
        clients[i].descriptor = -1;
    connect_client(probe);
    give_hello(probe, &version_2, true);
}

void test_model_stop(void)
{
    hang_up(probe);
    pass(CORE_NS_PER_S);
    TEST_REQUIRE(test_server_stop(&server) == 0);
    for (size_t i = 0; i < CLIENTS; i++)
        for (size_t at = 0; at < STREAMS; at++)
            EVP_CIPHER_CTX_free(clients[i].streams[at].chain);
}
