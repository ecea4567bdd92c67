#include "tests/support/pool/pool_world.h"

#include "client/pool.h"
#include "core/protocol.h"
#include "core/protocol_bytes.h"
#include "tests/support/require.h"

#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#define LINKS       6  /* connections of the pool, at most */
#define STREAMS     48 /* of a connection, ever: a node gives no id twice */
#define QUEUE       3
#define ROOM        ((size_t)64 << 10)
#define RESULT_ROOM ((size_t)1 << 10) /* an answer, and more */
#define START_NS    (1000 * CORE_NS_PER_S)
#define TURNS_MAX   40000 /* of a pool while no time passes: a node may say 64 KiB, byte by byte */
#define FRAME_BYTES (PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX)
#define NODE_FD     (1 << 20) /* descriptors that the system has not */
#define DIAL_FD     (NODE_FD + LINKS)
#define DESCRIPTORS (2 * LINKS)

core_status __wrap_client_dial_begin(struct client_dial *dial, struct core_error *error);
core_status __wrap_client_dial_take(struct client_dial *dial, struct millrace **connection,
                                    struct core_error *error);
int __wrap_client_dial_descriptor(const struct client_dial *dial);
void __wrap_client_dial_close(struct client_dial *dial);
int __wrap_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms);
int __wrap_timerfd_settime(int descriptor, int flags, const struct itimerspec *to, struct itimerspec *from);
int __wrap_poll(struct pollfd *ready, nfds_t count, int timeout_ms);
core_ns __wrap_core_time_now_ns(void);

struct bytes {
    uint8_t at[ROOM];
    size_t begin, end;
};

struct stream {
    bool open;
    uint32_t serial;
    struct core_stream_spec spec;
    uint8_t key[16], next_key[16], iv[16], chain[16];
    uint64_t message;    /* of the next packet */
    uint64_t next_first; /* if there is another key */
    bool has_next;
    bool within; /* a message */
    uint32_t received;
};

enum outcome { NONE, GOOD, BAD };

/* A link of the pool: an attempt to connect, or a connection and what its node has of it. */
static struct place {
    const struct client_dial *dial; /* under way */
    enum outcome outcome;
    core_ns dialled_until_ns;
    bool connected;
    bool ended, reset;    /* nothing more comes behind `out`; nor is anything taken */
    bool longer;          /* its next result has more bytes than its packet can become */
    bool deaf;            /* takes nothing now */
    bool leaving, told;   /* the node, and its client knows */
    struct bytes in, out; /* frames of the client, and for it */
    struct bytes held;    /* results that are ready and not sent */
    size_t piece;         /* bytes of a read, at most */
    struct stream streams[STREAMS + 1];
    uint32_t stream_count;
} places[LINKS];

static struct watched {
    uint32_t events; /* 0: not */
    void *pointer;
} watched[DESCRIPTORS];

static core_ns now_ns = START_NS, due_ns = CORE_NS_NEVER;
static bool healed, was_left;
static struct tape *first_attempts;
static struct pool_world_fate fates[POOL_WORLD_SERIALS];
static uint32_t ivs_drawn;

/* ---- bytes ---- */

static size_t waiting(const struct bytes *bytes)
{
    return bytes->end - bytes->begin;
}

static size_t room(struct bytes *bytes)
{
    memmove(bytes->at, bytes->at + bytes->begin, waiting(bytes));
    bytes->end -= bytes->begin;
    bytes->begin = 0;
    return ROOM - bytes->end;
}

static void put(struct bytes *bytes, const void *from, size_t count)
{
    TEST_REQUIRE(count <= room(bytes));
    memcpy(bytes->at + bytes->end, from, count);
    bytes->end += count;
}

static void move(struct bytes *to, struct bytes *from)
{
    put(to, from->at + from->begin, waiting(from));
    from->begin = from->end = 0;
}

/* ---- the cipher ---- */

void pool_world_key(uint32_t serial, uint32_t kind, uint8_t key[16])
{
    memset(key, (int)(serial * 2 + kind + 1), 16);
    key[0] = (uint8_t)serial;
}

static void mix(const uint8_t *key, uint8_t block[16])
{
    for (unsigned round = 0; round < 2; round++)
        for (unsigned i = 0; i < 16; i++)
            block[i] = (uint8_t)((unsigned)(block[i] ^ key[i]) * 5 + block[(i + 15) % 16] + i);
}

void pool_world_crypt(const uint8_t key[16], uint8_t chain[16], bool decrypts, const uint8_t *from,
                      uint8_t *to, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 16) {
        uint8_t block[16];
        for (unsigned i = 0; i < 16; i++)
            block[i] = (uint8_t)(decrypts ? from[at + i] : from[at + i] ^ chain[i]);
        mix(key, block);
        for (unsigned i = 0; i < 16; i++)
            to[at + i] = (uint8_t)(decrypts ? block[i] ^ chain[i] : block[i]);
        memcpy(chain, decrypts ? from + at : to + at, 16);
    }
}

/* ---- what a node answers ---- */

static void close_all(struct place *place)
{
    for (uint32_t id = 1; id <= STREAMS; id++)
        place->streams[id].open = false;
}

/* What it has said by now is still read, or is lost. */
static void end(struct place *place, bool reset)
{
    if (reset)
        place->out.begin = place->out.end = 0;
    place->held.begin = place->held.end = 0;
    place->ended = true;
    place->reset |= reset;
    close_all(place);
}

static void refuse(struct place *place, uint32_t request, enum protocol_refusal code)
{
    uint8_t frame[FRAME_BYTES];
    const struct protocol_refused refused = {.code = code, .text = "no"};
    put(&place->out, frame, protocol_refused_write(PROTOCOL_VERSION, frame, request, &refused));
}

static void tell_leaving(struct place *place)
{
    uint8_t frame[FRAME_BYTES];
    const struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_LEAVING};
    if (!place->leaving || place->told)
        return;
    place->told = true;
    put(&place->out, frame, protocol_notice_write(frame, 0, &notice));
}

static uint32_t begin_stream(struct place *place, const struct protocol_open *open, uint8_t iv[16])
{
    if (place->stream_count == STREAMS)
        return 0;
    const uint32_t id = ++place->stream_count;
    struct stream *stream = &place->streams[id];
    *stream = (struct stream){.open = true, .serial = open->key[0], .spec = open->spec};
    memcpy(stream->key, open->key, 16);
    if (open->has_iv)
        memcpy(stream->iv, open->iv, 16);
    else
        memset(stream->iv, (int)++ivs_drawn, 16);
    memcpy(stream->chain, stream->iv, 16);
    memcpy(iv, stream->iv, 16);
    stream->message = open->spec.iv == CORE_IV_COUNTER ? open->spec.first_unit : 0;
    TEST_REQUIRE(stream->serial < POOL_WORLD_SERIALS);
    return id;
}

static void on_open(struct place *place, const struct protocol_header *header, const uint8_t *body,
                    enum protocol_refusal code)
{
    uint8_t frame[FRAME_BYTES];
    struct protocol_open open;
    struct protocol_opened opened = {.unit = PROTOCOL_UNIT_CPU, .queue_packets = header->id % QUEUE};
    TEST_REQUIRE(protocol_open_read(PROTOCOL_VERSION, body, header->body_bytes, &open, NULL) == CORE_OK);
    if (code == 0 && header->type == PROTOCOL_OPEN &&
        (opened.stream = begin_stream(place, &open, opened.iv)) == 0)
        code = PROTOCOL_REFUSED_LIMIT;
    if (code != 0) {
        was_left |= code == PROTOCOL_REFUSED_DRAINING;
        fates[open.key[0]].refused |= code == PROTOCOL_REFUSED_KEY || code == PROTOCOL_REFUSED_BUSY;
        refuse(place, header->id, code);
        return;
    }
    opened.bound_ns = open.spec.latency_ns;
    put(&place->out, frame, protocol_opened_write(PROTOCOL_VERSION, frame, header->id, &opened));
}

static void begin_message(struct stream *stream)
{
    if (stream->has_next && (int64_t)(stream->message - stream->next_first) >= 0) {
        memcpy(stream->key, stream->next_key, 16);
        stream->has_next = false;
    }
    if (stream->spec.iv == CORE_IV_RANDOM)
        memset(stream->iv, (int)++ivs_drawn, 16);
    if (stream->spec.iv == CORE_IV_COUNTER)
        for (int byte = 0; byte < 16; byte++)
            stream->iv[15 - byte] = (uint8_t)(byte < 8 ? stream->message >> 8 * byte : 0);
    if (stream->spec.iv != CORE_IV_CHAIN)
        memcpy(stream->chain, stream->iv, 16);
}

static void on_data(struct place *place, const struct protocol_header *header, const uint8_t *body)
{
    uint8_t frame[FRAME_BYTES + POOL_WORLD_PACKET_BYTES + 32], plain[POOL_WORLD_PACKET_BYTES + 16];
    uint8_t *at = frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES;
    struct stream *stream = header->id <= STREAMS ? &place->streams[header->id] : NULL;
    struct protocol_result result = {.flags = PROTOCOL_RESULT_MET, .latency_ns = 1000};
    uint32_t bytes = header->body_bytes, more = 0;
    if (stream == NULL || !stream->open) {
        put(&place->out, frame,
            protocol_error_write(frame, header->id, PROTOCOL_ERROR_STREAM, false, "no such stream"));
        return;
    }
    TEST_REQUIRE(header->sequence == stream->received++);
    const bool messages = stream->spec.unit == CORE_UNIT_MESSAGE;
    const bool ends = !messages || (header->flags & PROTOCOL_DATA_LAST);
    if (messages && (header->flags & PROTOCOL_DATA_FIRST)) {
        begin_message(stream);
        if (stream->spec.iv == CORE_IV_RANDOM) {
            result.flags |= PROTOCOL_RESULT_HAS_IV;
            memcpy(at, stream->iv, more = 16);
        }
    }
    memcpy(plain, body, bytes);
    if (stream->spec.padding == CORE_PADDING_PKCS7 && ends) {
        const uint32_t pad = 16 - bytes % 16;
        memset(plain + bytes, (int)pad, pad);
        bytes += pad;
    }
    if (bytes % 16 != 0) {
        result.status = PROTOCOL_RESULT_NOT_BLOCKS;
        bytes = 0;
    }
    pool_world_crypt(stream->key, stream->chain, stream->spec.direction == CORE_DIRECTION_DECRYPT, plain,
                     at + more, bytes);
    stream->within = !ends;
    stream->message += messages && ends;
    if (place->longer && bytes > 0) {
        memset(at + more + bytes, 0, 64);
        bytes += 64;
        place->longer = false;
    }
    protocol_result_write(frame, header->id, header->sequence, &result, more + bytes);
    put(&place->held, frame, (size_t)(at - frame) + more + bytes);
}

static void on_modify(struct place *place, const struct protocol_header *header, const uint8_t *body,
                      enum protocol_refusal code)
{
    uint8_t frame[FRAME_BYTES];
    struct protocol_modify modify;
    TEST_REQUIRE(protocol_modify_read(body, header->body_bytes, &modify, NULL) == CORE_OK);
    const struct stream *stream = &place->streams[modify.stream];
    if (!stream->open || code != 0) {
        refuse(place, header->id, stream->open ? code : PROTOCOL_REFUSED_STREAM);
        return;
    }
    const struct protocol_modified modified = {.stream = modify.stream,
                                               .unit = PROTOCOL_UNIT_CPU,
                                               .bound_ns = modify.latency_ns,
                                               .first = stream->received,
                                               .queue_packets = QUEUE};
    put(&place->out, frame, protocol_modified_write(frame, header->id, &modified));
}

static void on_rekey(struct place *place, const struct protocol_header *header, const uint8_t *body,
                     enum protocol_refusal code)
{
    uint8_t frame[FRAME_BYTES];
    struct protocol_rekey rekey;
    TEST_REQUIRE(protocol_rekey_read(body, header->body_bytes, &rekey, NULL) == CORE_OK);
    struct stream *stream = &place->streams[rekey.stream];
    if (stream->open && code == 0 &&
        (stream->spec.unit == CORE_UNIT_STREAM || (int64_t)(rekey.first - stream->message) < stream->within ||
         stream->has_next))
        code = PROTOCOL_REFUSED_BUSY;
    if (!stream->open || code != 0) {
        fates[rekey.key[0]].key_refused = true;
        refuse(place, header->id, stream->open ? code : PROTOCOL_REFUSED_STREAM);
        return;
    }
    memcpy(stream->next_key, rekey.key, 16);
    stream->next_first = rekey.first;
    stream->has_next = true;
    const struct protocol_rekeyed rekeyed = {.stream = rekey.stream, .first = rekey.first};
    put(&place->out, frame, protocol_rekeyed_write(frame, header->id, &rekeyed));
}

static void put_closed(struct place *place, uint32_t id, enum protocol_close_reason reason)
{
    uint8_t frame[FRAME_BYTES];
    const struct protocol_closed closed = {.reason = reason};
    place->streams[id].open = false;
    put(&place->out, frame, protocol_closed_write(frame, id, &closed));
}

/* The next frame of the client, if there is a whole one. 0: it is granted. */
static bool answer(struct place *place, enum protocol_refusal code)
{
    const uint8_t *frame = place->in.at + place->in.begin, *body = frame + PROTOCOL_HEADER_BYTES;
    uint8_t pong[FRAME_BYTES + PROTOCOL_PING_BYTES_MAX];
    struct protocol_header header;
    if (!place->connected || place->ended || waiting(&place->in) < PROTOCOL_HEADER_BYTES ||
        room(&place->out) < ROOM / 2 || room(&place->held) < RESULT_ROOM)
        return false;
    TEST_REQUIRE(protocol_header_read(PROTOCOL_VERSION, frame, &header) == CORE_OK);
    if (waiting(&place->in) < PROTOCOL_HEADER_BYTES + header.body_bytes)
        return false;
    place->in.begin += PROTOCOL_HEADER_BYTES + header.body_bytes;
    if (place->leaving && code == 0 && (header.type == PROTOCOL_OPEN || header.type == PROTOCOL_QUERY))
        code = PROTOCOL_REFUSED_DRAINING;
    switch (header.type) {
    case PROTOCOL_OPEN:
    case PROTOCOL_QUERY:
        on_open(place, &header, body, code);
        break;
    case PROTOCOL_DATA:
        on_data(place, &header, body);
        break;
    case PROTOCOL_MODIFY:
        on_modify(place, &header, body, code);
        break;
    case PROTOCOL_REKEY:
        on_rekey(place, &header, body, code);
        break;
    case PROTOCOL_CLOSE:
        if (header.id > STREAMS || !place->streams[header.id].open)
            break; /* it has crossed CLOSED */
        move(&place->out, &place->held);
        put_closed(place, header.id, PROTOCOL_CLOSE_ASKED);
        break;
    default:
        TEST_REQUIRE(header.type == PROTOCOL_PING);
        put(&place->out, pong, protocol_ping_write(pong, PROTOCOL_PONG, header.id, body, header.body_bytes));
    }
    return true;
}

/* ---- what else a node does ---- */

/* Closes a stream, for a reason of its own. */
static void close_one(struct place *place, uint32_t draw)
{
    const uint32_t id = 1 + draw % 8;
    const enum protocol_close_reason reason = PROTOCOL_CLOSE_DRAINED + draw / 64 % 3;
    if (!place->connected || place->ended || !place->streams[id].open)
        return;
    move(&place->out, &place->held);
    was_left |= reason == PROTOCOL_CLOSE_DRAINED;
    if (reason != PROTOCOL_CLOSE_DRAINED)
        fates[place->streams[id].serial].closed_for |= 1u << reason;
    put_closed(place, id, reason);
}

/* Stops in good order. */
static void drain(struct place *place)
{
    uint8_t frame[FRAME_BYTES];
    if (!place->connected || place->ended)
        return;
    move(&place->out, &place->held);
    for (uint32_t id = 1; id <= STREAMS; id++)
        if (place->streams[id].open)
            put_closed(place, id, PROTOCOL_CLOSE_DRAINED);
    put(&place->out, frame, protocol_error_write(frame, 0, PROTOCOL_ERROR_SHUTDOWN, true, "stopping"));
    end(place, false);
}

/* What no client need suffer. */
static void break_protocol(struct place *place, uint32_t draw)
{
    static const uint8_t unknown[PROTOCOL_HEADER_BYTES] = {0, 0, 0, 0, 0xee};
    const struct protocol_opened opened = {.unit = PROTOCOL_UNIT_CPU};
    const struct protocol_result result = {.flags = PROTOCOL_RESULT_MET};
    uint8_t frame[FRAME_BYTES] = {0};
    size_t bytes = sizeof unknown;
    if (!place->connected || place->ended)
        return;
    if (draw % 8 == 7) {
        place->longer = true;
        return;
    }
    if (draw % 4 == 0)
        memcpy(frame, unknown, bytes);
    else if (draw % 4 == 1) /* to no request */
        bytes = protocol_opened_write(PROTOCOL_VERSION, frame, 0xfffffff0, &opened);
    else if (draw % 4 == 2) { /* of no stream */
        protocol_result_write(frame, STREAMS + 1, 0, &result, 16);
        bytes = PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + 16;
    } else
        bytes = protocol_welcome_write(frame, &(struct protocol_welcome){.version = PROTOCOL_VERSION});
    put(&place->out, frame, bytes);
    end(place, false);
}

static void cut(struct place *place, uint32_t draw)
{
    const size_t keeps = draw % 128;
    if (!place->connected || place->ended)
        return;
    if (waiting(&place->out) > keeps)
        place->out.end = place->out.begin + keeps;
    end(place, draw >= 128);
}

void pool_world_operate(struct tape *tape)
{
    static const enum protocol_refusal codes[] = {PROTOCOL_REFUSED_CAPACITY, PROTOCOL_REFUSED_LIMIT,
                                                  PROTOCOL_REFUSED_CAPACITY, PROTOCOL_REFUSED_DRAINING,
                                                  PROTOCOL_REFUSED_INTERNAL, PROTOCOL_REFUSED_KEY,
                                                  PROTOCOL_REFUSED_BUSY,     PROTOCOL_REFUSED_LIMIT};
    const uint32_t what = take(tape), draw = what / 16 >= 8 ? take(tape) : 0;
    struct place *place = &places[what / 16 % LINKS];
    switch (what % 16) {
    case 0:
    case 1:
    case 2:
        for (uint32_t left = 1 + draw % 8; left > 0 && answer(place, 0); left--)
            ;
        break;
    case 3:
        (void)answer(place, codes[draw % 8]);
        break;
    case 4:
    case 5:
        if (place->connected && !place->ended && room(&place->out) > ROOM / 2)
            move(&place->out, &place->held);
        break;
    case 6:
        cut(place, draw);
        break;
    case 7:
        place->leaving = !place->leaving;
        was_left = true;
        if (place->connected && !place->ended)
            tell_leaving(place);
        break;
    case 8:
        close_one(place, draw);
        break;
    case 9:
    case 10:
        place->outcome = what % 16 == 9 || draw % 2 == 0 ? GOOD : BAD;
        break;
    case 11:
        place->deaf = !place->deaf;
        break;
    case 12:
        place->piece = draw == 0 ? ROOM : draw;
        break;
    case 13:
        break_protocol(place, draw);
        break;
    case 14:
        drain(place);
        break;
    default:
        for (unsigned i = 0; i < LINKS; i++)
            while (answer(&places[i], 0))
                ;
    }
}

/* ---- transports ---- */

static struct place *of(const struct client_transport *transport)
{
    return &places[transport->descriptor - NODE_FD];
}

static core_status read_place(struct client_transport *transport, void *into, size_t most, size_t *got,
                              struct core_error *error)
{
    struct place *place = of(transport);
    (void)error;
    *got = waiting(&place->out) < place->piece ? waiting(&place->out) : place->piece;
    *got = *got < most ? *got : most;
    memcpy(into, place->out.at + place->out.begin, *got);
    place->out.begin += *got;
    return *got > 0 ? CORE_OK : place->ended ? CORE_CLOSED : CORE_AGAIN;
}

static core_status write_place(struct client_transport *transport, const struct iovec *parts, int count,
                               size_t *written, struct core_error *error)
{
    struct place *place = of(transport);
    *written = 0;
    if (place->reset)
        return core_error_set(error, CORE_SYSTEM, "reset");
    for (int i = 0; i < count && !place->deaf; i++) {
        const size_t left = room(&place->in), bytes = parts[i].iov_len < left ? parts[i].iov_len : left;
        put(&place->in, parts[i].iov_base, bytes);
        *written += bytes;
    }
    if (place->ended)
        place->in.begin = place->in.end = 0;
    return *written > 0 ? CORE_OK : CORE_AGAIN;
}

static bool nothing_pending(const struct client_transport *transport)
{
    (void)transport;
    return false;
}

static void close_place(struct client_transport *transport)
{
    struct place *place = of(transport);
    close_all(place);
    place->connected = false;
    watched[transport->descriptor - NODE_FD].events = 0;
}

static const struct client_transport_kind kind = {read_place, write_place, nothing_pending, close_place};

/* ---- attempts ---- */

static struct place *of_dial(const struct client_dial *dial)
{
    const struct client_link *link =
        (const struct client_link *)((const char *)dial - offsetof(struct client_link, dial));
    TEST_REQUIRE(link - link->pool->links < LINKS);
    return &places[link - link->pool->links];
}

core_status __wrap_client_dial_begin(struct client_dial *dial, struct core_error *error)
{
    struct place *place = of_dial(dial);
    (void)error;
    TEST_REQUIRE(place->dial == NULL && !place->connected);
    place->dial = dial;
    place->outcome = NONE;
    place->dialled_until_ns =
        dial->timeout_ms < 0 ? CORE_NS_NEVER : now_ns + dial->timeout_ms * CORE_NS_PER_MS;
    dial->begun = true;
    return CORE_OK;
}

static enum outcome outcome_of(const struct place *place)
{
    return place->dial == NULL                 ? NONE
           : place->outcome != NONE            ? place->outcome
           : place->dialled_until_ns <= now_ns ? BAD
           : healed                            ? GOOD
                                               : NONE;
}

static core_status connect_place(struct place *place, uint16_t version_max, struct millrace **connection,
                                 struct core_error *error)
{
    const core_status status = client_create(connection, error);
    if (status)
        return status;
    (*connection)->transport =
        (struct client_transport){.kind = &kind, .descriptor = NODE_FD + (int)(place - places)};
    (*connection)->welcomed = true;
    (*connection)->leaving = place->leaving;
    (*connection)->version_max = version_max;
    (*connection)->welcome =
        (struct millrace_welcome){.size = sizeof(struct millrace_welcome),
                                  .version = version_max,
                                  .flags = MILLRACE_ALLOWS_INLINE_KEY | MILLRACE_ALLOWS_CLIENT_IV,
                                  .packet_bytes_max = POOL_WORLD_PACKET_BYTES,
                                  .burst_packets_max = 16,
                                  .streams_max = STREAMS};
    place->connected = true;
    place->ended = place->reset = place->deaf = false;
    place->told = place->leaving;
    place->longer = false;
    place->in.begin = place->in.end = place->out.begin = place->out.end = 0;
    place->held.begin = place->held.end = 0;
    close_all(place);
    place->stream_count = 0;
    return CORE_OK;
}

core_status __wrap_client_dial_take(struct client_dial *dial, struct millrace **connection,
                                    struct core_error *error)
{
    struct place *place = of_dial(dial);
    const enum outcome outcome = outcome_of(place);
    if (outcome == NONE)
        return CORE_AGAIN;
    __wrap_client_dial_close(dial);
    if (outcome == GOOD)
        return connect_place(place, dial->version_max, connection, error);
    return core_error_set(error, CORE_CLOSED, "nobody is there");
}

int __wrap_client_dial_descriptor(const struct client_dial *dial)
{
    return dial->begun ? DIAL_FD + (int)(of_dial(dial) - places) : -1;
}

void __wrap_client_dial_close(struct client_dial *dial)
{
    struct place *place = of_dial(dial);
    if (!dial->begun)
        return;
    dial->begun = false;
    place->dial = NULL;
    watched[DIAL_FD - NODE_FD + (place - places)].events = 0;
}

/* ---- the system ---- */

int __wrap_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event)
{
    (void)epoll;
    if (descriptor < NODE_FD)
        return 0; /* the timer */
    struct watched *one = &watched[descriptor - NODE_FD];
    TEST_REQUIRE((operation == EPOLL_CTL_ADD) == (one->events == 0));
    one->events = operation == EPOLL_CTL_DEL ? 0 : event->events;
    one->pointer = event->data.ptr;
    return 0;
}

static uint32_t readiness(size_t index)
{
    struct place *place = &places[index % LINKS];
    if (index >= LINKS)
        return outcome_of(place) != NONE ? EPOLLIN : 0;
    const bool reads = waiting(&place->out) > 0 || place->ended;
    const bool writes = place->reset || (!place->deaf && waiting(&place->in) < ROOM);
    return (reads ? EPOLLIN : 0) | (writes ? EPOLLOUT : 0);
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms)
{
    int count = 0;
    (void)epoll, (void)timeout_ms;
    for (size_t i = 0; i < DESCRIPTORS && count < most; i++)
        if (watched[i].events & readiness(i))
            events[count++] = (struct epoll_event){.events = readiness(i), .data.ptr = watched[i].pointer};
    return count;
}

int __wrap_timerfd_settime(int descriptor, int flags, const struct itimerspec *to, struct itimerspec *from)
{
    const core_ns value_ns = to->it_value.tv_sec * CORE_NS_PER_S + to->it_value.tv_nsec;
    (void)descriptor, (void)flags, (void)from;
    due_ns = value_ns == 0 ? CORE_NS_NEVER : value_ns;
    return 0;
}

core_ns __wrap_core_time_now_ns(void)
{
    return now_ns;
}

static bool is_ready(void)
{
    for (size_t i = 0; i < DESCRIPTORS; i++)
        if (watched[i].events & readiness(i))
            return true;
    return due_ns <= now_ns;
}

/* When something will be ready by itself. */
static core_ns next_ns(void)
{
    core_ns next_ns = due_ns;
    for (unsigned i = 0; i < LINKS; i++)
        if (places[i].dial != NULL)
            next_ns = core_time_min(next_ns, places[i].dialled_until_ns);
    return next_ns;
}

/* Of the pool that is being connected. */
int __wrap_poll(struct pollfd *ready, nfds_t count, int timeout_ms)
{
    const core_ns until_ns = timeout_ms < 0 ? CORE_NS_NEVER : now_ns + timeout_ms * CORE_NS_PER_MS;
    TEST_REQUIRE(count == 1);
    for (unsigned i = 0; i < LINKS; i++)
        if (places[i].dial != NULL && places[i].outcome == NONE) {
            const uint32_t draw = take(first_attempts) % 4;
            places[i].outcome = draw < 2 ? GOOD : draw == 2 ? BAD : NONE;
        }
    if (!is_ready())
        now_ns = core_time_max(now_ns, core_time_min(next_ns(), until_ns));
    ready->revents = is_ready() ? POLLIN : 0;
    return is_ready();
}

/* ---- the whole ---- */

void pool_world_begin(struct tape *tape)
{
    for (unsigned i = 0; i < LINKS; i++) {
        TEST_REQUIRE(!places[i].connected && places[i].dial == NULL);
        places[i].leaving = false;
        places[i].piece = ROOM;
    }
    memset(fates, 0, sizeof fates);
    now_ns = START_NS;
    due_ns = CORE_NS_NEVER;
    healed = was_left = false;
    first_attempts = tape;
    ivs_drawn = 0;
}

core_ns pool_world_now_ns(void)
{
    return now_ns;
}

const struct pool_world_fate *pool_world_fate(uint32_t serial)
{
    return &fates[serial];
}

bool pool_world_was_left(void)
{
    return was_left;
}

bool pool_world_is_in_use(void)
{
    for (unsigned i = 0; i < LINKS; i++)
        for (uint32_t id = 1; id <= STREAMS; id++)
            if (places[i].connected && places[i].streams[id].open)
                return true;
    return false;
}

void pool_world_heal(void)
{
    healed = true;
    for (unsigned i = 0; i < LINKS; i++) {
        places[i].leaving = places[i].deaf = places[i].longer = false;
        places[i].piece = ROOM;
    }
}

static void serve_all(void)
{
    for (unsigned i = 0; i < LINKS && healed; i++) {
        while (answer(&places[i], 0))
            ;
        if (places[i].connected && !places[i].ended && room(&places[i].out) > ROOM / 2)
            move(&places[i].out, &places[i].held);
    }
}

void pool_world_pass(struct millrace *pool, core_ns time_ns)
{
    const core_ns until_ns = now_ns + time_ns;
    char error[MILLRACE_TEXT_BYTES];
    for (;;) {
        unsigned turns = 0;
        (void)millrace_events(pool);
        for (serve_all(); is_ready(); serve_all()) {
            TEST_REQUIRE(++turns < TURNS_MAX);
            TEST_REQUIRE(millrace_process(pool, 0, error) == MILLRACE_OK);
            (void)millrace_events(pool);
        }
        if (next_ns() > until_ns)
            break;
        now_ns = next_ns();
    }
    now_ns = until_ns;
}
