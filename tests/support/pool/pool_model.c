#include "tests/support/pool/pool_model.h"

#include "tests/support/pool/pool_world.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS      6
#define PACKETS      96 /* of a stream, at most */
#define REQUESTS     48 /* unanswered */
#define KEPT_BYTES   1024
#define MEMORY_BYTES (64 << 20)
#define SETTLE_NS    (120 * CORE_NS_PER_S)
#define STEP_NS      (100 * CORE_NS_PER_MS)
#define LATE_NS      (5 * CORE_NS_PER_MS) /* that an answer may come behind the patience: a turn */
#define RECORD_BYTES 32                   /* more than a pool keeps beside each packet */
#define PATIENCE_NS  (POOL_WORLD_PATIENCE_MS * CORE_NS_PER_MS)

#define MUST(condition, ...) ((condition) ? (void)0 : deviate(__LINE__, #condition, __VA_ARGS__))

enum type { NOTHING, OPEN, QUERY, MODIFY, REKEY, PING };

struct packet {
    core_ns given_ns;
    uint8_t bytes, flags;
};

struct stream {
    bool open;
    uint32_t id, serial;
    struct millrace_open contract;
    core_ns served_ns; /* a node had it then */
    struct packet packets[PACKETS];
    uint32_t given, told;
    bool within; /* a message, of what is given */
    bool closing, modified;
    uint64_t met, bytes;
    uint8_t chain[16];
    uint64_t message;       /* of the next packet that is told */
    uint64_t given_message; /* that is given */
    bool told_within;
    bool has_second; /* a second key, from this message on: */
    uint64_t second_first;
    size_t message_bytes; /* given of the message at hand, or since the stream has begun */
    bool long_message;
};

struct request {
    enum type type;
    uint32_t id, serial, stream;
    struct millrace_open contract;
    uint64_t first;
    core_ns asked_ns, latency_ns;
};

static struct millrace *pool;
static struct stream streams[STREAMS];
static struct request requests[REQUESTS];
static uint32_t serials;
static unsigned attempts;
static const char *name = "?";

/* ---- what must be ---- */

__attribute__((noreturn, format(printf, 3, 4))) static void deviate(int line, const char *condition,
                                                                    const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s: line %d, %s: ", name, line, condition);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

void test_pool_model_name(const char *given)
{
    name = given;
}

static struct stream *find(uint32_t id)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (streams[i].open && streams[i].id == id)
            return &streams[i];
    deviate(__LINE__, "a stream", "stream %" PRIu32 " is not open", id);
}

/* The request that this answers, which is gone. */
static struct request take_request(uint32_t id)
{
    for (unsigned i = 0; i < REQUESTS; i++) {
        const struct request request = requests[i];
        if (request.type == NOTHING || request.id != id)
            continue;
        requests[i].type = NOTHING;
        const bool waits = request.type == MODIFY || request.type == REKEY; /* as long as its node is there */
        MUST(waits || pool_world_now_ns() <= request.asked_ns + PATIENCE_NS + LATE_NS,
             "request %" PRIu32 " waited for %" PRId64 " ns", id, pool_world_now_ns() - request.asked_ns);
        return request;
    }
    deviate(__LINE__, "a request", "an answer to request %" PRIu32 ", which waits for none", id);
}

static bool has_messages(const struct stream *stream)
{
    return stream->contract.unit == MILLRACE_UNIT_MESSAGE;
}

static void on_opened(void *argument, uint32_t id, const struct millrace_opened *opened)
{
    const struct request request = take_request(id);
    unsigned i = 0;
    (void)argument;
    MUST(request.type == OPEN || request.type == QUERY, "opened");
    MUST(opened->asked >= 1 && opened->asked <= attempts, "%" PRIu32 " nodes were asked", opened->asked);
    if (request.type == QUERY) {
        MUST(opened->stream == 0, "a QUERY has opened a stream");
        return;
    }
    for (unsigned n = 0; n < STREAMS; n++)
        MUST(!streams[n].open || streams[n].id != opened->stream, "id %" PRIu32 " twice", opened->stream);
    while (i < STREAMS && streams[i].open)
        i++;
    MUST(i < STREAMS, "more streams than were asked for");
    streams[i].open = true;
    streams[i].id = opened->stream;
    streams[i].serial = request.serial;
    streams[i].contract = request.contract;
    streams[i].served_ns = pool_world_now_ns();
    streams[i].given = streams[i].told = 0;
    streams[i].within = streams[i].told_within = streams[i].closing = streams[i].modified = false;
    streams[i].met = streams[i].bytes = 0;
    streams[i].message = streams[i].given_message = request.contract.first_unit;
    streams[i].has_second = false;
    streams[i].message_bytes = 0;
    streams[i].long_message = false;
    memcpy(streams[i].chain, opened->iv, 16);
    MUST(!request.contract.has_iv || memcmp(opened->iv, request.contract.iv, 16) == 0, "another IV");
}

static void on_refused(void *argument, uint32_t id, const struct millrace_refused *refused)
{
    const struct request request = take_request(id);
    (void)argument;
    MUST(refused->asked <= attempts, "%" PRIu32 " nodes were asked", refused->asked);
    MUST(request.type == MODIFY || request.type == REKEY || refused->code != MILLRACE_REFUSED_STREAM,
         "no such stream");
    MUST(request.type != PING || refused->code == MILLRACE_REFUSED_DRAINING, "a PING is refused for %d",
         (int)refused->code);
}

/* The plaintext of a packet, or what is taken for ciphertext: each is another one. */
static void fill(const struct stream *stream, uint32_t sequence, uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(stream->serial * 7 + sequence * 13 + i * (sequence % 5 + 1));
}

/* What begins with a message. */
static void begin_message(struct stream *stream, const struct millrace_result *result)
{
    if (stream->contract.iv_source == MILLRACE_IV_RANDOM) {
        MUST(result->iv != NULL, "the IV of a message is missing");
        memcpy(stream->chain, result->iv, 16);
    }
    if (stream->contract.iv_source == MILLRACE_IV_CONSTANT)
        memcpy(stream->chain, stream->contract.iv, 16);
    if (stream->contract.iv_source == MILLRACE_IV_COUNTER)
        for (int byte = 0; byte < 16; byte++)
            stream->chain[15 - byte] = (uint8_t)(byte < 8 ? stream->message >> 8 * byte : 0);
}

static void check_bytes(struct stream *stream, const struct packet *packet,
                        const struct millrace_result *result)
{
    uint8_t plain[POOL_WORLD_PACKET_BYTES + 16], expected[POOL_WORLD_PACKET_BYTES + 16], key[16];
    const bool ends = !has_messages(stream) || (packet->flags & MILLRACE_DATA_LAST);
    uint32_t bytes = packet->bytes;
    fill(stream, stream->told, plain, bytes);
    if (stream->contract.padding == MILLRACE_PADDING_PKCS7 && ends) {
        memset(plain + bytes, (int)(16 - bytes % 16), 16 - bytes % 16);
        bytes += 16 - bytes % 16;
    }
    if (bytes % 16 != 0) {
        MUST(result->status == MILLRACE_RESULT_NOT_BLOCKS && result->bytes == 0, "half a block");
        return;
    }
    if (has_messages(stream) && (packet->flags & MILLRACE_DATA_FIRST))
        begin_message(stream, result);
    const bool second = stream->has_second && (int64_t)(stream->message - stream->second_first) >= 0;
    pool_world_key(stream->serial, second, key);
    pool_world_crypt(key, stream->chain, stream->contract.direction == MILLRACE_DIRECTION_DECRYPT, plain,
                     expected, bytes);
    MUST(result->status == MILLRACE_RESULT_OK && result->bytes == bytes, "status %d, %" PRIu32 " bytes",
         (int)result->status, result->bytes);
    MUST(memcmp(result->ciphertext, expected, bytes) == 0,
         "wrong bytes in packet %" PRIu32 " of stream %" PRIu32, stream->told, stream->id);
    stream->bytes += bytes;
    stream->met += (result->flags & MILLRACE_RESULT_MET) != 0;
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct stream *stream = find(result->stream);
    const struct packet *packet = &stream->packets[stream->told];
    const core_ns since_ns = pool_world_now_ns() - packet->given_ns;
    (void)argument;
    MUST(stream->told < stream->given, "a result without a packet");
    MUST(result->sequence == stream->told, "packet %" PRIu32 " instead of %" PRIu32, result->sequence,
         stream->told);
    check_bytes(stream, packet, result);
    if ((result->flags & MILLRACE_RESULT_FAULT) && result->status == MILLRACE_RESULT_OK) {
        const bool met = result->latency_ns <= stream->contract.latency_ns;
        MUST(result->latency_ns <= since_ns, "%" PRId64 " ns, where there were %" PRId64, result->latency_ns,
             since_ns);
        MUST(stream->modified || met == ((result->flags & MILLRACE_RESULT_MET) != 0), "met: %d", !met);
    }
    stream->told++;
    stream->served_ns = pool_world_now_ns();
    stream->told_within = has_messages(stream) && (packet->flags & MILLRACE_DATA_LAST) == 0;
    stream->message += has_messages(stream) && !stream->told_within;
}

/* Why it can not go on, by what the header says of pools. */
static bool may_be_lost(const struct stream *stream, const struct millrace_closed *closed)
{
    const struct pool_world_fate *fate = pool_world_fate(stream->serial);
    const bool chained = !has_messages(stream) || stream->contract.iv_source == MILLRACE_IV_CHAIN;
    if (strstr(closed->text, "longer than what is kept") != NULL)
        return stream->long_message;
    if (strstr(closed->text, "the chain of a pattern") != NULL)
        return chained && stream->contract.crypt_blocks > 0;
    if (strstr(closed->text, "would draw another IV") != NULL)
        return stream->contract.iv_source == MILLRACE_IV_RANDOM && stream->told_within;
    if (strstr(closed->text, "second key in time") != NULL)
        return stream->has_second;
    if (strstr(closed->text, "second key") != NULL)
        return fate->key_refused;
    return fate->refused || pool_world_now_ns() >= stream->served_ns + PATIENCE_NS;
}

static void on_closed(void *argument, uint32_t id, const struct millrace_closed *closed)
{
    struct stream *stream = find(id);
    (void)argument;
    MUST(closed->packets == closed->met + closed->missed && closed->met <= stream->met &&
             closed->bytes == stream->bytes && closed->packets <= stream->told,
         "the account says %" PRIu64 " packets, %" PRIu64 " bytes; %" PRIu32 " and %" PRIu64 " came",
         closed->packets, closed->bytes, stream->told, stream->bytes);
    if (closed->reason == MILLRACE_CLOSE_ASKED)
        MUST(stream->closing && stream->told == stream->given, "%" PRIu32 " of %" PRIu32 " came",
             stream->told, stream->given);
    else if (closed->reason == MILLRACE_CLOSE_LOST)
        MUST(may_be_lost(stream, closed), "%s", closed->text);
    else
        MUST(pool_world_fate(stream->serial)->closed_for >> closed->reason & 1, "reason %d",
             (int)closed->reason);
    stream->open = false;
}

static void on_modified(void *argument, uint32_t id, const struct millrace_modified *modified)
{
    const struct request request = take_request(id);
    struct stream *stream = find(modified->stream);
    (void)argument;
    MUST(request.type == MODIFY && request.stream == modified->stream, "modified");
    MUST(modified->first <= stream->given, "from packet %" PRIu32 " on", modified->first);
    stream->contract.latency_ns = request.latency_ns;
}

static void on_rekeyed(void *argument, uint32_t id, const struct millrace_rekeyed *rekeyed)
{
    const struct request request = take_request(id);
    (void)argument;
    MUST(request.type == REKEY && request.stream == rekeyed->stream && request.first == rekeyed->first,
         "rekeyed");
    struct stream *stream = find(rekeyed->stream);
    MUST(!stream->has_second, "a third key");
    stream->has_second = true;
    stream->second_first = rekeyed->first;
}

static void on_pong(void *argument, uint32_t id, const uint8_t *payload, uint32_t bytes)
{
    const struct request request = take_request(id);
    (void)argument;
    MUST(request.type == PING && bytes == sizeof request.serial &&
             memcmp(payload, &request.serial, bytes) == 0,
         "pong");
}

static void on_resumed(void *argument, uint32_t id, const struct millrace_resumed *resumed)
{
    (void)argument;
    struct stream *stream = find(id);
    MUST(resumed->gap_ns >= 0, "%" PRId64 " ns without a node", resumed->gap_ns);
    MUST(stream->given > 0 || resumed->resent == 0, "%" PRIu64 " packets sent again, of none",
         resumed->resent);
    stream->served_ns = pool_world_now_ns();
}

static void on_notice(void *argument, uint32_t id, const struct millrace_notice *notice)
{
    (void)argument, (void)id;
    MUST(false, "notice %d, which is for the pool alone", (int)notice->kind);
}

static void on_error(void *argument, uint32_t id, enum millrace_error code, bool fatal, const char *text)
{
    (void)argument, (void)id, (void)fatal;
    MUST(false, "error %d: %s", (int)code, text);
}

/* ---- operations of the program ---- */

static struct request *new_request(enum type type)
{
    for (unsigned i = 0; i < REQUESTS; i++)
        if (requests[i].type == NOTHING) {
            requests[i] = (struct request){.type = type, .asked_ns = pool_world_now_ns()};
            return &requests[i];
        }
    return NULL;
}

static void sent(struct request *request, millrace_status status)
{
    MUST(status == MILLRACE_OK, "a request that is right is not taken: %d", (int)status);
    MUST(request->id != 0, "a request without a number");
}

static struct stream *choose(uint32_t draw)
{
    for (uint32_t i = 0; i < STREAMS; i++)
        if (streams[(draw + i) % STREAMS].open)
            return &streams[(draw + i) % STREAMS];
    return NULL;
}

static unsigned used_streams(void)
{
    unsigned used = 0;
    for (unsigned i = 0; i < STREAMS; i++)
        used += streams[i].open;
    for (unsigned i = 0; i < REQUESTS; i++)
        used += requests[i].type == OPEN;
    return used;
}

static void ask_for_stream(struct tape *tape, enum type type)
{
    static const enum millrace_iv_source sources[] = {MILLRACE_IV_CHAIN, MILLRACE_IV_CONSTANT,
                                                      MILLRACE_IV_COUNTER, MILLRACE_IV_RANDOM};
    const uint32_t draw = take(tape);
    uint8_t key[16];
    struct millrace_open open = {.size = sizeof open,
                                 .packet_bytes = POOL_WORLD_PACKET_BYTES,
                                 .burst_packets = 4,
                                 .interval_ns = draw & 128 ? 200 * CORE_NS_PER_MS : CORE_NS_PER_MS,
                                 .latency_ns = 20 * CORE_NS_PER_MS,
                                 .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                 .padding = draw & 1 ? MILLRACE_PADDING_PKCS7 : MILLRACE_PADDING_NONE,
                                 .key_kind = MILLRACE_KEY_INLINE,
                                 .key = key,
                                 .key_bytes = sizeof key};
    struct request *request = new_request(type);
    if (request == NULL || serials + 1 >= POOL_WORLD_SERIALS || (type == OPEN && used_streams() >= STREAMS)) {
        if (request != NULL)
            request->type = NOTHING;
        return;
    }
    if (draw & 2) {
        open.unit = MILLRACE_UNIT_MESSAGE;
        open.padding = MILLRACE_PADDING_PKCS7;
        open.iv_source = sources[draw >> 2 & 3];
        open.first_unit = open.iv_source == MILLRACE_IV_COUNTER ? UINT64_MAX - 1 : 0; /* they wrap */
        open.message_packets = (draw >> 4 & 3) == 3;
    } else if (draw & 4) {
        open.direction = MILLRACE_DIRECTION_DECRYPT;
        open.padding = MILLRACE_PADDING_NONE;
    }
    open.crypt_blocks = (draw >> 4 & 3) == 2;
    open.skip_blocks = open.crypt_blocks * 9;
    open.has_iv = open.iv_source == MILLRACE_IV_CONSTANT || open.direction == MILLRACE_DIRECTION_DECRYPT ||
                  (open.iv_source == MILLRACE_IV_CHAIN && (draw & 64));
    memset(open.iv, (int)draw, open.has_iv ? sizeof open.iv : 0);
    request->serial = serials++;
    request->contract = open;
    pool_world_key(request->serial, 0, key);
    sent(request, (type == OPEN ? millrace_send_open : millrace_send_query)(pool, &open, &request->id, NULL));
}

static void send_packet(struct stream *stream, uint32_t draw)
{
    uint8_t plain[POOL_WORLD_PACKET_BYTES];
    struct packet packet = {.given_ns = pool_world_now_ns()};
    uint32_t sequence = 0;
    const bool ends = draw >= 96 || stream->contract.message_packets == 1;
    if (stream->given == PACKETS || stream->closing)
        return;
    packet.bytes = (uint8_t)(16 * (1 + draw % 6));
    if (stream->contract.padding == MILLRACE_PADDING_PKCS7 ? ends || !has_messages(stream) : draw == 77)
        packet.bytes -= draw % 16;
    if (packet.bytes == 0 || packet.bytes > POOL_WORLD_PACKET_BYTES)
        packet.bytes = 16;
    if (has_messages(stream))
        packet.flags =
            (uint8_t)((stream->within ? 0 : MILLRACE_DATA_FIRST) | (ends ? MILLRACE_DATA_LAST : 0));
    fill(stream, stream->given, plain, packet.bytes);
    const millrace_status status =
        millrace_data_part(pool, stream->id, plain, packet.bytes, packet.flags, &sequence, NULL);
    stream->message_bytes =
        (has_messages(stream) && !stream->within ? 0 : stream->message_bytes) + packet.bytes + RECORD_BYTES;
    if (status == MILLRACE_FULL) {
        size_t kept = 0;
        for (uint32_t i = has_messages(stream) || pool_world_was_left() ? 0 : stream->told; i < stream->given;
             i++)
            kept += stream->packets[i].bytes + RECORD_BYTES;
        MUST(kept + packet.bytes + RECORD_BYTES > KEPT_BYTES, "full, with %zu bytes", kept);
        return;
    }
    MUST(status == MILLRACE_OK && sequence == stream->given, "packet %" PRIu32 ": %d", stream->given,
         (int)status);
    stream->long_message |= has_messages(stream) && stream->message_bytes > KEPT_BYTES;
    stream->packets[stream->given++] = packet;
    stream->within = has_messages(stream) && !ends;
    stream->given_message += has_messages(stream) && ends;
}

static void send_close(struct stream *stream)
{
    if (stream->closing)
        return;
    MUST(millrace_send_close(pool, stream->id, NULL) == MILLRACE_OK, "CLOSE");
    stream->closing = true;
}

static void send_modify(struct stream *stream, uint32_t draw)
{
    const struct millrace_modify modify = {.size = sizeof modify,
                                           .stream = stream->id,
                                           .burst_packets = 1 + draw % 8,
                                           .interval_ns = CORE_NS_PER_MS << draw % 8,
                                           .latency_ns = CORE_NS_PER_MS << draw / 16};
    struct request *request = stream->closing ? NULL : new_request(MODIFY);
    if (request == NULL)
        return;
    request->stream = stream->id;
    request->latency_ns = modify.latency_ns;
    stream->modified = true;
    sent(request, millrace_send_modify(pool, &modify, &request->id, NULL));
}

static void send_rekey(struct stream *stream, uint32_t draw)
{
    uint8_t key[16];
    const struct millrace_rekey rekey = {.size = sizeof rekey,
                                         .stream = stream->id,
                                         .key_kind = MILLRACE_KEY_INLINE,
                                         .key = key,
                                         .key_bytes = sizeof key,
                                         .first = stream->given_message + draw % 4};
    struct request *request = stream->closing || stream->has_second ? NULL : new_request(REKEY);
    if (request == NULL)
        return;
    pool_world_key(stream->serial, 1, key);
    request->stream = stream->id;
    request->first = rekey.first;
    sent(request, millrace_send_rekey(pool, &rekey, &request->id, NULL));
}

static void send_ping(void)
{
    struct request *request = new_request(PING);
    if (request == NULL)
        return;
    request->serial = (uint32_t)(pool_world_now_ns() % 1000);
    sent(request, millrace_send_ping(pool, &request->serial, sizeof request->serial, &request->id, NULL));
}

static void operate_on_stream(struct tape *tape, uint32_t what)
{
    struct stream *stream = choose(what / 16);
    const uint32_t draw = take(tape);
    if (stream == NULL)
        return;
    if (what % 16 < 4)
        for (uint32_t left = 1 + what % 16; left > 0; left--)
            send_packet(stream, draw);
    else if (what % 16 == 4)
        send_close(stream);
    else if (what % 16 == 5)
        send_modify(stream, draw);
    else
        send_rekey(stream, draw);
}

static void step(struct tape *tape)
{
    const uint32_t what = take(tape);
    if (what % 16 < 7)
        operate_on_stream(tape, what);
    else if (what % 16 == 7)
        ask_for_stream(tape, what < 208 ? OPEN : QUERY);
    else if (what == 248)
        send_ping();
    else if (what % 16 < 11)
        pool_world_pass(pool, what < 160 ? 0 : CORE_NS_PER_US << what / 16 * 3 / 2);
    else
        pool_world_operate(tape);
}

/* ---- the whole ---- */

static bool is_settled(void)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (streams[i].open)
            return false;
    for (unsigned i = 0; i < REQUESTS; i++)
        if (requests[i].type != NOTHING)
            return false;
    return !pool_world_is_in_use();
}

/* All is well: what was asked is answered, what is open comes back, and ends. */
static void settle(void)
{
    pool_world_heal();
    for (core_ns waited_ns = 0; !is_settled(); waited_ns += STEP_NS) {
        for (unsigned i = 0; i < STREAMS; i++)
            if (streams[i].open)
                send_close(&streams[i]);
        pool_world_pass(pool, STEP_NS);
        MUST(waited_ns < SETTLE_NS, "something is left");
    }
}

/* Its buffers are mapped once, not for each sequence. */
static void keep_memory(void)
{
    static bool kept;
    if (!kept)
        kept = mallopt(M_MMAP_THRESHOLD, MEMORY_BYTES) == 1 && mallopt(M_TRIM_THRESHOLD, MEMORY_BYTES) == 1;
}

static bool connect_pool(uint32_t draw)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_result = on_result,
                                                 .on_opened = on_opened,
                                                 .on_refused = on_refused,
                                                 .on_closed = on_closed,
                                                 .on_pong = on_pong,
                                                 .on_error = on_error,
                                                 .on_modified = on_modified,
                                                 .on_notice = on_notice,
                                                 .on_rekeyed = on_rekeyed,
                                                 .on_resumed = on_resumed};
    const struct millrace_pool given = {.size = sizeof given,
                                        .addresses = draw & 1 ? "unix:/a,unix:/b,unix:/c" : "unix:/a,unix:/b",
                                        .connections = draw & 2 ? 2 : 1,
                                        .attempts = draw >> 2 & 3,
                                        .patience_ms = POOL_WORLD_PATIENCE_MS,
                                        .kept_bytes_max = KEPT_BYTES};
    attempts = given.attempts > 0 ? given.attempts : 3;
    const millrace_status status = millrace_pool_connect(&given, NULL, 5000, &pool, NULL);
    MUST(status == MILLRACE_OK || status == MILLRACE_CLOSED || status == MILLRACE_TIMEOUT, "connecting: %d",
         (int)status);
    if (status == MILLRACE_OK)
        MUST(millrace_set_callbacks(pool, &callbacks, NULL) == MILLRACE_OK, "callbacks");
    return status == MILLRACE_OK;
}

void test_pool_model_run(const uint8_t *bytes, size_t count)
{
    struct tape tape = {bytes, count};
    keep_memory();
    serials = 0;
    for (unsigned i = 0; i < STREAMS; i++)
        streams[i].open = false;
    for (unsigned i = 0; i < REQUESTS; i++)
        requests[i].type = NOTHING;
    const uint32_t draw = take(&tape);
    pool_world_begin(&tape);
    if (!connect_pool(draw))
        return;
    while (tape.left > 0)
        step(&tape);
    if (draw < 224)
        settle();
    millrace_disconnect(pool);
}
