#include "tests/support/chaos_node.h"

#include "core/address.h"
#include "core/protocol.h"
#include "tests/support/fake_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAMS       256
#define QUEUE_PACKETS 4
#define POSTPONED     8

struct stream {
    struct core_stream_spec spec;
    EVP_CIPHER_CTX *context;
    uint8_t key[32], next_key[32], iv[16];
    uint64_t message, next_first; /* next_first: UINT64_MAX: none */
    uint64_t packets;
    uint32_t received;
};

struct connection {
    struct chaos_node *node;
    int descriptor;
    struct test_random random;
    int64_t bytes_left; /* until it is cut; -1: for ever */
    uint16_t version;
    uint32_t data;
    bool cut, told_leaving;
    struct {
        struct protocol_header header;
        uint8_t body[PROTOCOL_CONTROL_BYTES_MAX];
    } postponed[POSTPONED];
    uint32_t postponed_count;
    uint8_t *held; /* RESULTs */
    size_t held_bytes;
    struct stream *streams[STREAMS + 1];
};

static bool may_fail(struct connection *connection, int percent)
{
    return test_random_chance(&connection->random, percent) &&
           atomic_fetch_sub(&connection->node->faults_left, 1) > 0;
}

static void reset(struct connection *connection)
{
    const struct linger at_once = {.l_onoff = 1};
    if (test_random_chance(&connection->random, 50))
        (void)setsockopt(connection->descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    shutdown(connection->descriptor, SHUT_RDWR);
    connection->cut = true;
}

/* Cut in the middle where the time has come. */
static void put(struct connection *connection, const void *bytes, size_t count)
{
    if (connection->cut || (connection->node->options.silent_after > 0 &&
                            connection->data > connection->node->options.silent_after))
        return;
    if (connection->bytes_left >= 0 && (size_t)connection->bytes_left <= count &&
        atomic_fetch_sub(&connection->node->faults_left, 1) > 0) {
        (void)fake_write(connection->descriptor, bytes, (size_t)connection->bytes_left);
        atomic_fetch_add(&connection->node->cuts, 1);
        reset(connection);
        return;
    }
    if (connection->bytes_left >= 0)
        connection->bytes_left -= connection->bytes_left > (int64_t)count ? (int64_t)count : 0;
    if (!fake_write(connection->descriptor, bytes, count))
        connection->cut = true;
}

static void set_key(struct stream *stream, const uint8_t *key, const uint8_t *iv)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, core_cipher_name(stream->spec.cipher), NULL);
    const bool encrypts = stream->spec.direction == CORE_DIRECTION_ENCRYPT;
    TEST_REQUIRE(EVP_CipherInit_ex2(stream->context, cipher, key, iv, encrypts, NULL) == 1);
    EVP_CIPHER_CTX_set_padding(stream->context, 0);
    EVP_CIPHER_free(cipher);
}

static uint32_t free_id(const struct connection *connection)
{
    uint32_t id = 1;
    while (id <= STREAMS && connection->streams[id] != NULL)
        id++;
    TEST_REQUIRE(id <= STREAMS);
    return id;
}

static void stream_free(struct connection *connection, uint32_t id)
{
    EVP_CIPHER_CTX_free(connection->streams[id]->context);
    free(connection->streams[id]);
    connection->streams[id] = NULL;
    atomic_fetch_sub(&connection->node->streams, 1);
}

static void refuse(struct connection *connection, uint32_t request, enum protocol_refusal code,
                   const char *text)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_refused refused = {.code = code};
    strncpy(refused.text, text, sizeof refused.text - 1);
    put(connection, frame, protocol_refused_write(connection->version, frame, request, &refused));
}

static void tell_leaving(struct connection *connection)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_LEAVING};
    if (!atomic_load(&connection->node->leaves) || connection->told_leaving || connection->version < 4)
        return;
    connection->told_leaving = true;
    put(connection, frame, protocol_notice_write(frame, 0, &notice));
}

static void on_open(struct connection *connection, const struct protocol_header *header, const uint8_t *body)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_open open;
    struct protocol_opened opened = {.unit = PROTOCOL_UNIT_CPU};
    TEST_REQUIRE(protocol_open_read(connection->version, body, header->body_bytes, &open, NULL) == CORE_OK);
    atomic_fetch_add(&connection->node->opens, 1);
    while (atomic_load(&connection->node->ponders))
        poll(NULL, 0, 1);
    tell_leaving(connection); /* ahead of the answer */
    if (atomic_load(&connection->node->leaves) && !connection->node->options.grants_leaving) {
        refuse(connection, header->id, PROTOCOL_REFUSED_DRAINING, "this node is leaving");
        return;
    }
    if (connection->node->options.limits) {
        refuse(connection, header->id, PROTOCOL_REFUSED_LIMIT, "this node has as many as it may");
        return;
    }
    if (may_fail(connection, connection->node->options.refuse_percent)) {
        refuse(connection, header->id, PROTOCOL_REFUSED_CAPACITY, "this node is full");
        return;
    }
    if (connection->node->options.takes_no_iv && open.has_iv) {
        refuse(connection, header->id, PROTOCOL_REFUSED_IV, "this key takes no IV of a client");
        return;
    }
    opened.bound_ns = open.spec.latency_ns;
    opened.queue_packets = connection->node->options.takes_none ? 0 : QUEUE_PACKETS;
    const bool is_real = header->type == PROTOCOL_OPEN &&
                         !(connection->node->options.opens_nothing && may_fail(connection, 100));
    if (is_real) {
        struct stream *stream = calloc(1, sizeof *stream);
        opened.stream = free_id(connection);
        connection->streams[opened.stream] = stream;
        atomic_fetch_add(&connection->node->streams, 1);
        stream->spec = open.spec;
        stream->next_first = UINT64_MAX;
        stream->message = open.spec.iv == CORE_IV_COUNTER ? open.spec.first_unit : 0;
        stream->context = EVP_CIPHER_CTX_new();
        memcpy(stream->key, open.key, open.key_bytes);
        if (open.has_iv)
            memcpy(stream->iv, open.iv, 16);
        else
            TEST_REQUIRE(RAND_bytes(stream->iv, 16) == 1);
        set_key(stream, stream->key, stream->iv);
        memcpy(opened.iv, stream->iv, 16);
    }
    put(connection, frame, protocol_opened_write(connection->version, frame, header->id, &opened));
}

static void begin_message(struct stream *stream)
{
    uint8_t counter[16] = {0};
    if (stream->message >= stream->next_first) {
        uint8_t chain[16];
        memcpy(stream->key, stream->next_key, sizeof stream->key);
        EVP_CIPHER_CTX_get_updated_iv(stream->context, chain, sizeof chain);
        stream->next_first = UINT64_MAX;
        set_key(stream, stream->key, chain);
    }
    for (int byte = 0; byte < 8; byte++)
        counter[15 - byte] = (uint8_t)(stream->message >> 8 * byte);
    if (stream->spec.iv == CORE_IV_CONSTANT)
        EVP_CipherInit_ex2(stream->context, NULL, NULL, stream->iv, -1, NULL);
    if (stream->spec.iv == CORE_IV_COUNTER)
        EVP_CipherInit_ex2(stream->context, NULL, NULL, counter, -1, NULL);
}

static void drain(struct connection *connection)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_closed closed = {.reason = PROTOCOL_CLOSE_DRAINED};
    for (uint32_t id = 1; id <= STREAMS; id++)
        if (connection->streams[id] != NULL)
            put(connection, frame, protocol_closed_write(frame, id, &closed));
    put(connection, frame,
        protocol_error_write(frame, 0, PROTOCOL_ERROR_SHUTDOWN, true, "this node is stopping"));
    shutdown(connection->descriptor, SHUT_WR);
    connection->cut = true;
}

/* Of a node that holds: later. */
static void put_result(struct connection *connection, const uint8_t *frame, size_t bytes)
{
    if (!atomic_load(&connection->node->holds)) {
        put(connection, frame, bytes);
        return;
    }
    connection->held = realloc(connection->held, connection->held_bytes + bytes);
    memcpy(connection->held + connection->held_bytes, frame, bytes);
    connection->held_bytes += bytes;
}

static void put_notice(struct connection *connection, uint32_t stream)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_RESTORED, .unit = PROTOCOL_UNIT_CPU};
    if (connection->node->options.notices && connection->data > 0)
        put(connection, frame, protocol_notice_write(frame, stream, &notice));
}

static void on_data(struct connection *connection, const struct protocol_header *header, const uint8_t *body)
{
    static const struct protocol_result result = {.flags = PROTOCOL_RESULT_MET, .latency_ns = 1000};
    struct stream *stream = header->id <= STREAMS ? connection->streams[header->id] : NULL;
    uint8_t *frame = malloc(2 * PROTOCOL_HEADER_BYTES + header->body_bytes + 32);
    uint8_t *cipher = frame + 2 * PROTOCOL_HEADER_BYTES, plain[FAKE_PACKET_BYTES_MAX + 16];
    uint32_t bytes = header->body_bytes;
    const bool messages = stream != NULL && stream->spec.unit == CORE_UNIT_MESSAGE;
    int done = 0;
    TEST_REQUIRE(stream != NULL && header->sequence == stream->received++);
    if (may_fail(connection, connection->node->options.drain_percent)) {
        drain(connection);
        free(frame);
        return;
    }
    if (header->flags & PROTOCOL_DATA_FIRST)
        begin_message(stream);
    memcpy(plain, body, bytes);
    if (stream->spec.padding == CORE_PADDING_PKCS7 && (!messages || (header->flags & PROTOCOL_DATA_LAST))) {
        const uint32_t more = 16 - bytes % 16;
        memset(plain + bytes, (int)more, more);
        bytes += more;
    }
    TEST_REQUIRE(EVP_CipherUpdate(stream->context, cipher, &done, plain, (int)bytes) == 1 &&
                 (uint32_t)done == bytes);
    stream->message += messages && (header->flags & PROTOCOL_DATA_LAST);
    stream->packets++;
    protocol_result_write(frame, header->id, header->sequence, &result, bytes);
    put_notice(connection, header->id);
    connection->data++;
    put_result(connection, frame, 2 * PROTOCOL_HEADER_BYTES + (size_t)bytes);
    free(frame);
    if (connection->node->options.cut_after > 0 && connection->data >= connection->node->options.cut_after &&
        may_fail(connection, 100))
        reset(connection);
}

static void close_idle(struct connection *connection, uint32_t id)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_closed closed = {.reason = PROTOCOL_CLOSE_IDLE};
    stream_free(connection, id);
    put(connection, frame, protocol_closed_write(frame, id, &closed));
}

static void on_modify(struct connection *connection, const struct protocol_header *header,
                      const uint8_t *body)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_modify modify;
    TEST_REQUIRE(protocol_modify_read(body, header->body_bytes, &modify, NULL) == CORE_OK);
    if (connection->node->options.idle_at_modify) {
        close_idle(connection, modify.stream);
        refuse(connection, header->id, PROTOCOL_REFUSED_STREAM, "no such stream");
        return;
    }
    const struct stream *stream = connection->streams[modify.stream];
    const struct protocol_modified modified = {.stream = modify.stream,
                                               .unit = PROTOCOL_UNIT_CPU,
                                               .bound_ns = modify.latency_ns,
                                               .first = stream->received,
                                               .queue_packets = QUEUE_PACKETS};
    put(connection, frame, protocol_modified_write(frame, header->id, &modified));
}

static void on_rekey(struct connection *connection, const struct protocol_header *header, const uint8_t *body)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_rekey rekey;
    TEST_REQUIRE(protocol_rekey_read(body, header->body_bytes, &rekey, NULL) == CORE_OK);
    struct stream *stream = connection->streams[rekey.stream];
    if (connection->node->options.drains_at_rekey && may_fail(connection, 100)) {
        refuse(connection, header->id, PROTOCOL_REFUSED_DRAINING, "this node is stopping");
        drain(connection);
        return;
    }
    if (atomic_load(&connection->node->refuses_keys)) {
        refuse(connection, header->id, PROTOCOL_REFUSED_KEY, "this node takes no second key");
        return;
    }
    if (rekey.first < stream->message || stream->next_first != UINT64_MAX) {
        refuse(connection, header->id, PROTOCOL_REFUSED_BUSY, "too late");
        return;
    }
    memcpy(stream->next_key, rekey.key, rekey.key_bytes);
    stream->next_first = rekey.first;
    const struct protocol_rekeyed rekeyed = {.stream = rekey.stream, .first = rekey.first};
    put(connection, frame, protocol_rekeyed_write(frame, header->id, &rekeyed));
}

static void on_close(struct connection *connection, uint32_t id)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    if (connection->streams[id] == NULL)
        return; /* it has crossed CLOSED */
    const struct protocol_closed closed = {.packets = connection->streams[id]->packets};
    atomic_fetch_add(&connection->node->closes, 1);
    stream_free(connection, id);
    put(connection, connection->held, connection->held_bytes);
    connection->held_bytes = 0;
    put(connection, frame, protocol_closed_write(frame, id, &closed));
}

static void on_ping(struct connection *connection, const struct protocol_header *header, const uint8_t *body)
{
    const struct chaos_options *options = &connection->node->options;
    const struct protocol_closed closed = {.reason = PROTOCOL_CLOSE_IDLE};
    uint8_t frame[2 * PROTOCOL_HEADER_BYTES + PROTOCOL_PING_BYTES_MAX + PROTOCOL_CONTROL_BYTES_MAX];
    if (options->stuck_at_ping)
        return;
    if (options->cut_at_ping && may_fail(connection, 100)) {
        reset(connection);
        return;
    }
    uint32_t bytes = protocol_ping_write(frame, PROTOCOL_PONG, header->id, body, header->body_bytes);
    if (options->idle_at_ping && connection->streams[2] != NULL && may_fail(connection, 100)) {
        stream_free(connection, 2);
        bytes += protocol_closed_write(frame + bytes, 2, &closed);
    }
    put(connection, frame, bytes);
}

/* Until a frame comes: what is told without being asked for. */
static void await_frame(struct connection *connection)
{
    struct pollfd ready = {.fd = connection->descriptor, .events = POLLIN};
    do {
        tell_leaving(connection);
        while (connection->postponed_count > 0 && !atomic_load(&connection->node->postpones)) {
            const uint32_t last = --connection->postponed_count;
            on_open(connection, &connection->postponed[last].header, connection->postponed[last].body);
        }
    } while (!connection->cut && poll(&ready, 1, 5) == 0);
}

static void take_open(struct connection *connection, const struct protocol_header *header,
                      const uint8_t *body)
{
    if (!atomic_load(&connection->node->postpones)) {
        on_open(connection, header, body);
        return;
    }
    TEST_REQUIRE(connection->postponed_count < POSTPONED && header->body_bytes <= PROTOCOL_CONTROL_BYTES_MAX);
    connection->postponed[connection->postponed_count].header = *header;
    memcpy(connection->postponed[connection->postponed_count++].body, body, header->body_bytes);
}

static void serve(struct connection *connection)
{
    static _Thread_local uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct protocol_header header;
    for (;;) {
        await_frame(connection);
        if (connection->cut || !fake_read_frame(connection->descriptor, &header, body))
            return;
        switch (header.type) {
        case PROTOCOL_OPEN:
        case PROTOCOL_QUERY:
            take_open(connection, &header, body);
            break;
        case PROTOCOL_DATA:
            on_data(connection, &header, body);
            break;
        case PROTOCOL_MODIFY:
            on_modify(connection, &header, body);
            break;
        case PROTOCOL_REKEY:
            on_rekey(connection, &header, body);
            break;
        case PROTOCOL_CLOSE:
            on_close(connection, header.id);
            break;
        case PROTOCOL_PING:
            on_ping(connection, &header, body);
            break;
        default:
            TEST_REQUIRE(header.type == PROTOCOL_DATA); /* no client sends anything else */
        }
    }
}

/* The version; 0: none. */
static uint16_t welcome(const struct connection *connection)
{
    static _Thread_local uint8_t body[FAKE_PACKET_BYTES_MAX];
    const uint16_t version = (uint16_t)atomic_load(&connection->node->version);
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_welcome welcome = {
        .version = version,
        .flags = PROTOCOL_ALLOWS_INLINE_KEY | PROTOCOL_ALLOWS_CLIENT_IV,
        .packet_bytes_max = connection->node->options.packet_bytes_max,
        .burst_packets_max = CORE_BURST_MAX,
        .streams_max = STREAMS,
        .stream_buffer_bytes_max = UINT64_C(1) << 30,
        .bytes_per_key = UINT64_C(1) << 40,
        .interval_ns_min = CORE_INTERVAL_NS_MIN,
        .latency_ns_min = CORE_LATENCY_NS_MIN,
    };
    struct protocol_header header;
    if (welcome.packet_bytes_max == 0)
        return fake_welcome_up_to(connection->descriptor, version);
    return fake_read_frame(connection->descriptor, &header, body) &&
                   fake_write(connection->descriptor, frame, protocol_welcome_write(frame, &welcome))
               ? version
               : 0;
}

static void *run_connection(void *argument)
{
    struct connection *connection = argument;
    if (!atomic_load(&connection->node->hangs_up) &&
        !may_fail(connection, connection->node->options.hang_up_percent) &&
        (connection->version = welcome(connection)) > 0)
        serve(connection);
    for (uint32_t id = 1; id <= STREAMS; id++)
        if (connection->streams[id] != NULL)
            stream_free(connection, id);
    close(connection->descriptor);
    free(connection->held);
    atomic_fetch_sub(&connection->node->connections, 1);
    free(connection);
    return NULL;
}

static void *run_node(void *argument)
{
    struct chaos_node *node = argument;
    struct test_random random = {node->seed};
    while (!atomic_load(&node->stopping)) {
        struct pollfd ready = {.fd = node->listener, .events = POLLIN};
        pthread_t thread;
        if (poll(&ready, 1, 20) != 1)
            continue;
        const int descriptor = accept4(node->listener, NULL, NULL, SOCK_CLOEXEC);
        if (descriptor < 0)
            continue;
        struct connection *connection = calloc(1, sizeof *connection);
        connection->node = node;
        connection->descriptor = descriptor;
        connection->random.state = test_random_next(&random);
        connection->bytes_left = node->options.cut_bytes == 0
                                     ? -1
                                     : test_random_in(&connection->random, 48, 2 * node->options.cut_bytes);
        atomic_fetch_add(&node->connections, 1);
        TEST_REQUIRE(pthread_create(&thread, NULL, run_connection, connection) == 0);
        pthread_detach(thread);
    }
    return NULL;
}

void chaos_node_start(struct chaos_node *node, const struct chaos_options *options, int faults, uint64_t seed)
{
    static atomic_uint number;
    struct core_address address;
    *node = (struct chaos_node){
        .options = *options, .seed = seed, .faults_left = faults, .version = PROTOCOL_VERSION};
    snprintf(node->address, sizeof node->address, "unix:@millrace-chaos-%d-%u", (int)getpid(), number++);
    TEST_REQUIRE(core_address_parse(node->address, &address, NULL) == CORE_OK);
    TEST_REQUIRE(core_address_listen(&address, 0, &node->listener, NULL, NULL) == CORE_OK);
    TEST_REQUIRE(pthread_create(&node->thread, NULL, run_node, node) == 0);
}

void chaos_node_stop(struct chaos_node *node)
{
    atomic_store(&node->stopping, true);
    pthread_join(node->thread, NULL);
    close(node->listener);
    while (atomic_load(&node->connections) > 0)
        poll(NULL, 0, 1);
}
