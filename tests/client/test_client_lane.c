/* The library on a lane: frames are made in it and taken where they lie. Behind it is a scripted server; one that goes
 * through it in pieces of any length, or writes where the client looks; and a whole one, with packets that no lane can
 * hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/millrace.h"
#include "core/address.h"
#include "core/lane.h"
#include "tests/support/fake_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"

#define LONG_MS      20000
#define STREAMS      8
#define PACKET_BYTES 4000
#define WINDOW       300  /* packets under way, some 600 kB: more than a ring has */
#define PACKETS      5000 /* some 10 MB: the rings go round forty times */
#define VANDALS      60

static const uint8_t key[16] = "0123456789abcdef";

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = PACKET_BYTES,
    .burst_packets = WINDOW,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 60 * CORE_NS_PER_S,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .padding = MILLRACE_PADDING_PKCS7,
    .key_kind = MILLRACE_KEY_INLINE,
    .key = key,
    .key_bytes = sizeof key,
};

/* ---- the server's end of a lane ---- */

/* What was read and is not written yet. */
struct load {
    uint8_t bytes[8192];
    size_t count, done;
};

struct bridge {
    int outer, inner[2]; /* the client's socket; to a server that knows none of this */
    pthread_t server;
    struct core_lane lane;
    struct test_random random;
    bool is_vandal;
    size_t cut_bytes;
    struct load questions, answers;
};

static bool read_frame(int descriptor, uint8_t *frame)
{
    uint32_t bytes;
    if (!fake_read(descriptor, frame, PROTOCOL_HEADER_BYTES))
        return false;
    memcpy(&bytes, frame, sizeof bytes);
    return bytes <= PROTOCOL_CONTROL_BYTES_MAX && fake_read(descriptor, frame + PROTOCOL_HEADER_BYTES, bytes);
}

static uint32_t frame_bytes(const uint8_t *frame)
{
    uint32_t bytes;
    memcpy(&bytes, frame, sizeof bytes);
    return PROTOCOL_HEADER_BYTES + bytes;
}

/* LANE, and the memory that comes with it. */
static bool attach(struct core_lane *lane, int socket)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_LANE_BYTES];
    union {
        struct cmsghdr header;
        uint8_t room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec all = {.iov_base = frame, .iov_len = sizeof frame};
    struct msghdr message = {
        .msg_iov = &all, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    uint8_t laned[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t ring_bytes;
    int file;

    if (recvmsg(socket, &message, MSG_WAITALL) != sizeof frame || message.msg_controllen == 0 ||
        protocol_lane_read(frame + PROTOCOL_HEADER_BYTES, PROTOCOL_LANE_BYTES, &ring_bytes, NULL) != CORE_OK)
        return false;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    const core_status status = core_lane_attach(lane, file, ring_bytes, NULL);
    close(file);
    lane->socket = socket;
    return status == CORE_OK && fake_write(socket, laned, protocol_laned_write(laned, ring_bytes, ""));
}

/* Says that there are lanes, whatever the server says. */
static bool welcome(int to, const uint8_t *frame)
{
    struct protocol_welcome welcome;
    uint8_t own[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    if (protocol_welcome_read(frame + PROTOCOL_HEADER_BYTES, frame_bytes(frame) - PROTOCOL_HEADER_BYTES,
                              &welcome, NULL) != CORE_OK)
        return false;
    welcome.flags |= PROTOCOL_HAS_LANES;
    return fake_write(to, own, protocol_welcome_write(own, &welcome));
}

static bool shake_hands(struct bridge *bridge)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    core_address_take_files(bridge->outer);
    return read_frame(bridge->outer, frame) && fake_write(bridge->inner[0], frame, frame_bytes(frame)) &&
           read_frame(bridge->inner[0], frame) && welcome(bridge->outer, frame) &&
           attach(&bridge->lane, bridge->outer);
}

static size_t draw(struct bridge *bridge, size_t most)
{
    return 1 + (size_t)(test_random_next(&bridge->random) % most);
}

/* Where the client looks: the server's counts, and the bytes that it has written last. */
static void scribble(struct bridge *bridge)
{
    const struct core_lane_ring *out = &bridge->lane.out;
    const size_t at = (out->done - draw(bridge, 2000)) & (bridge->lane.ring_bytes - 1);
    uint8_t *const byte =
        draw(bridge, 50) == 1 ? (uint8_t *)out->shared + draw(bridge, 255) : out->bytes + at;
    __atomic_store_n(byte, (uint8_t)draw(bridge, 256), __ATOMIC_RELAXED);
}

/* False: the connection is over. */
static bool carry_questions(struct bridge *bridge, bool *some)
{
    struct load *load = &bridge->questions;
    if (load->done == load->count) {
        const size_t most = draw(bridge, sizeof load->bytes);
        const core_status status = core_lane_read(&bridge->lane, load->bytes, most, &load->count);
        load->done = 0;
        if (status != CORE_OK)
            return status == CORE_AGAIN;
        core_lane_release(&bridge->lane);
        *some = true;
    }
    const ssize_t sent = send(bridge->inner[0], load->bytes + load->done, load->count - load->done,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    load->done += sent > 0 ? (size_t)sent : 0;
    *some |= sent > 0;
    return sent > 0 || errno == EAGAIN;
}

static bool carry_answers(struct bridge *bridge, bool *some)
{
    struct load *load = &bridge->answers;
    if (load->done == load->count) {
        const size_t most = draw(bridge, sizeof load->bytes);
        const ssize_t got = recv(bridge->inner[0], load->bytes, most, MSG_DONTWAIT);
        if (got == 0)
            return false;
        load->done = 0;
        load->count = got > 0 ? (size_t)got : 0;
    }
    const size_t left = load->count - load->done;
    if (left == 0)
        return true;
    const struct iovec piece = {.iov_base = load->bytes + load->done, .iov_len = draw(bridge, left)};
    size_t taken;
    const core_status status = core_lane_write(&bridge->lane, &piece, 1, &taken);
    load->done += taken;
    *some |= taken > 0;
    return status == CORE_OK || status == CORE_AGAIN;
}

static void *serve(void *argument)
{
    struct bridge *bridge = argument;
    fake_serve(bridge->inner[1], NULL);
    (void)shutdown(bridge->inner[1], SHUT_RDWR);
    return NULL;
}

static void carry(struct bridge *bridge)
{
    bool some = false;
    while (carry_questions(bridge, &some) && carry_answers(bridge, &some)) {
        struct pollfd ready[] = {{.fd = bridge->outer, .events = POLLIN},
                                 {.fd = bridge->inner[0], .events = POLLIN}};
        if (bridge->is_vandal)
            scribble(bridge);
        if (!some)
            (void)poll(ready, 2, 10);
        some = false;
    }
}

static bool begin_bridge(struct bridge *bridge, int descriptor)
{
    bridge->outer = descriptor;
    TEST_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, bridge->inner) == 0);
    TEST_REQUIRE(pthread_create(&bridge->server, NULL, serve, bridge) == 0);
    return shake_hands(bridge);
}

static void end_bridge(struct bridge *bridge)
{
    (void)shutdown(bridge->inner[0], SHUT_RDWR);
    (void)pthread_join(bridge->server, NULL);
    core_lane_free(&bridge->lane);
    close(bridge->inner[0]);
    close(bridge->inner[1]);
}

static void bridge_script(int descriptor, void *argument)
{
    struct bridge *bridge = argument;
    if (begin_bridge(bridge, descriptor))
        carry(bridge);
    end_bridge(bridge);
}

/* ---- the client's ---- */

struct client {
    struct millrace *connection;
    struct test_random random;
    bool trusts; /* what comes back must be right */
    unsigned opened, sent, back, pongs;
    uint32_t lengths[STREAMS + 1][WINDOW + 1]; /* by stream and sequence */
    uint32_t next[STREAMS + 1];
    uint8_t sum; /* of all that was shown */
};

static uint8_t byte_of(uint32_t stream, uint32_t sequence, uint32_t at)
{
    return (uint8_t)(stream * 31 + sequence * 7 + at);
}

static void check_result(const struct client *client, const struct millrace_result *result)
{
    uint8_t plain[PACKET_BYTES], expected[PACKET_BYTES + 16];
    const uint32_t bytes = client->lengths[result->stream][result->sequence % (WINDOW + 1)];
    assert_int_equal(result->status, MILLRACE_RESULT_OK);
    assert_int_equal(result->sequence, client->next[result->stream]);
    for (uint32_t at = 0; at < bytes; at++)
        plain[at] = byte_of(result->stream, result->sequence, at);
    assert_int_equal(result->bytes, fake_encrypt(CORE_PADDING_PKCS7, plain, bytes, expected));
    assert_memory_equal(result->ciphertext, expected, result->bytes);
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct client *client = argument;
    (void)request, (void)opened;
    client->opened++;
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct client *client = argument;
    if (client->trusts)
        check_result(client, result);
    for (uint32_t at = 0; at < result->bytes; at++)
        client->sum += result->ciphertext[at];
    if (result->stream <= STREAMS)
        client->next[result->stream]++;
    client->back++;
}

static void on_pong(void *argument, uint32_t request, const uint8_t *payload, uint32_t bytes)
{
    struct client *client = argument;
    (void)request;
    for (uint32_t at = 0; at < bytes; at++)
        client->sum += payload[at];
    if (client->trusts)
        assert_int_equal(bytes, 5);
    client->pongs++;
}

static void begin(struct client *client, const char *address)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_opened = on_opened,
                                                 .on_result = on_result,
                                                 .on_pong = on_pong,
                                                 .argument = client};
    struct core_error error = {""};
    if (millrace_connect(address, NULL, LONG_MS, &client->connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(millrace_set_callbacks(client->connection, &callbacks, NULL), MILLRACE_OK);
    for (unsigned stream = 0; stream < STREAMS; stream++)
        assert_int_equal(millrace_send_open(client->connection, &contract, NULL, NULL), MILLRACE_OK);
}

/* One packet of any length, sometimes copied and sometimes made in place; of the streams in turn. */
static millrace_status send_one(struct client *client)
{
    const uint32_t stream = 1 + client->sent % STREAMS, sequence = client->sent / STREAMS;
    const uint32_t bytes = (uint32_t)(test_random_next(&client->random) % (PACKET_BYTES + 1));
    uint8_t copied[PACKET_BYTES], *room = copied;
    const bool in_place = test_random_next(&client->random) % 2 == 0;
    millrace_status status =
        in_place ? millrace_data_reserve(client->connection, stream, bytes, &room, NULL, NULL) : MILLRACE_OK;
    for (uint32_t at = 0; status == MILLRACE_OK && at < bytes; at++)
        room[at] = byte_of(stream, sequence, at);
    if (!in_place)
        status = millrace_data(client->connection, stream, copied, bytes, NULL, NULL);
    client->lengths[stream][sequence % (WINDOW + 1)] = bytes;
    client->sent += status == MILLRACE_OK;
    return status;
}

static millrace_status step(struct client *client)
{
    struct pollfd ready = {.fd = millrace_descriptor(client->connection),
                           .events = millrace_events(client->connection)};
    (void)poll(&ready, 1, client->trusts ? LONG_MS : 5);
    return millrace_process(client->connection, (unsigned)(test_random_next(&client->random) % 2), NULL);
}

static void every_byte_comes_back(void **state)
{
    static struct bridge bridge;
    struct client client = {.random = {1}, .trusts = true};
    struct fake_server server;
    unsigned pings = 0;
    (void)state;
    bridge = (struct bridge){.random = {2}};
    fake_server_start(&server, bridge_script, &bridge);
    begin(&client, server.address);
    while (client.opened < STREAMS)
        assert_int_equal(step(&client), MILLRACE_OK);
    while (client.back < PACKETS || client.pongs < pings) {
        const bool bursts = client.sent == client.back; /* all at once, or one by one */
        while (client.sent < PACKETS && client.sent - client.back < (bursts ? WINDOW : WINDOW / 4))
            assert_int_equal(send_one(&client), MILLRACE_OK);
        if (bursts && client.sent < PACKETS) { /* in the lane or behind it, nothing has left */
            assert_true(millrace_unsent_bytes(client.connection) > 0);
            assert_true((millrace_events(client.connection) & POLLOUT) != 0);
        }
        if (client.sent < PACKETS && test_random_next(&client.random) % 8 == 0 &&
            pings - client.pongs < 100) {
            assert_int_equal(millrace_send_ping(client.connection, "hello", 5, NULL, NULL), MILLRACE_OK);
            pings++;
        }
        if (test_random_next(&client.random) % 4 == 0)
            assert_int_equal(millrace_flush(client.connection, NULL), MILLRACE_OK);
        assert_int_equal(step(&client), MILLRACE_OK);
    }
    assert_int_equal(millrace_unsent_bytes(client.connection), 0);
    millrace_disconnect(client.connection);
    fake_server_join(&server);
}

/* A server that breaks its own lane ends the connection, or spoils what it says; nothing else of the client's. */
static void vandals_end_their_connection(void **state)
{
    static struct bridge bridge;
    unsigned ended = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= VANDALS; seed++) {
        struct client client = {.random = {seed}};
        struct fake_server server;
        millrace_status status = MILLRACE_OK;
        bridge = (struct bridge){.random = {seed}, .is_vandal = true};
        fake_server_start(&server, bridge_script, &bridge);
        begin(&client, server.address);
        for (unsigned steps = 0; steps < 400 && status == MILLRACE_OK; steps++) {
            while (client.opened == STREAMS && client.sent - client.back < WINDOW && send_one(&client) == 0)
                continue;
            status = step(&client);
        }
        assert_true(status == MILLRACE_OK || status == MILLRACE_CLOSED || status == MILLRACE_INVALID ||
                    status == MILLRACE_SYSTEM);
        ended += status != MILLRACE_OK;
        millrace_disconnect(client.connection);
        fake_server_join(&server);
    }
    assert_true(ended > VANDALS / 2); /* else they have broken nothing */
}

/* ---- a server that never stops talking ---- */

static void chatter_script(int descriptor, void *argument)
{
    const struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_LEAVING, .text = "soon"};
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct bridge *bridge = argument;
    const struct iovec all = {.iov_base = frame, .iov_len = protocol_notice_write(frame, 0, &notice)};
    core_status status = begin_bridge(bridge, descriptor) ? CORE_OK : CORE_CLOSED;
    while (status == CORE_OK || status == CORE_AGAIN) {
        struct pollfd ready = {.fd = descriptor, .events = POLLIN};
        size_t taken, waiting = core_lane_waiting_bytes(&bridge->lane);
        if (bridge->lane.ring_bytes - waiting >= all.iov_len)
            status = core_lane_write(&bridge->lane, &all, 1, &taken);
        else if (poll(&ready, 1, 1) > 0)
            core_lane_hush(&bridge->lane);
        if (bridge->lane.ended)
            break;
    }
    end_bridge(bridge);
}

/* Slower than what comes. */
static void on_notice(void *argument, uint32_t stream, const struct millrace_notice *notice)
{
    (void)argument, (void)stream, (void)notice;
    (void)usleep(20);
}

static void a_call_gives_up_beside_a_chatterer(void **state)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks, .on_notice = on_notice};
    static struct bridge bridge;
    struct fake_server server;
    struct millrace *connection;
    struct core_error error = {""};
    (void)state;
    bridge = (struct bridge){.random = {1}};
    fake_server_start(&server, chatter_script, &bridge);
    if (millrace_connect(server.address, NULL, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, 50, NULL, error.text), MILLRACE_TIMEOUT);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* ---- a server that dies ---- */

/* So many bytes of a PONG, and then nothing more. */
static void dying_script(int descriptor, void *argument)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_PING_BYTES_MAX];
    struct bridge *bridge = argument;
    const struct iovec cut = {.iov_base = frame, .iov_len = bridge->cut_bytes};
    size_t taken;
    protocol_ping_write(frame, PROTOCOL_PONG, 1, "hello", 5);
    if (begin_bridge(bridge, descriptor))
        TEST_REQUIRE(core_lane_write(&bridge->lane, &cut, 1, &taken) == CORE_OK);
    end_bridge(bridge);
}

static void the_end_in_the_middle_of_a_frame_is_told(void **state)
{
    static const size_t cuts[] = {0, 1, PROTOCOL_HEADER_BYTES - 1, PROTOCOL_HEADER_BYTES,
                                  PROTOCOL_HEADER_BYTES + 4};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof cuts / sizeof *cuts; i++) {
        static struct bridge bridge;
        struct millrace *connection;
        struct fake_server server;
        struct core_error error = {""};
        millrace_status status = MILLRACE_OK;
        bridge = (struct bridge){.random = {1}, .cut_bytes = cuts[i / 2]};
        fake_server_start(&server, dying_script, &bridge);
        assert_int_equal(millrace_connect(server.address, NULL, LONG_MS, &connection, NULL), MILLRACE_OK);
        unsigned turns = 0;
        for (; i % 2 == 0 && status == MILLRACE_OK && turns < 100; turns++) {
            struct pollfd ready = {.fd = millrace_descriptor(connection), .events = POLLIN};
            assert_int_equal(poll(&ready, 1, LONG_MS), 1);
            status = millrace_process(connection, 0, error.text);
        }
        if (i % 2 == 1)
            status = millrace_ping(connection, -1, NULL, error.text);
        assert_int_equal(status, MILLRACE_CLOSED);
        assert_true(cuts[i / 2] == 0 || strstr(error.text, "in the middle of a frame") != NULL);
        assert_int_equal(millrace_events(connection), POLLIN);
        millrace_disconnect(connection);
        fake_server_join(&server);
    }
}

/* A PONG, and at once the end. */
static void ending_script(int descriptor, void *argument)
{
    uint8_t frames[2 * (PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX)], question[64];
    struct bridge *bridge = argument;
    struct iovec all = {.iov_base = frames};
    size_t taken, got = 0;
    struct protocol_header header;
    if (begin_bridge(bridge, descriptor)) {
        struct pollfd ready = {.fd = descriptor, .events = POLLIN};
        while (core_lane_read(&bridge->lane, question, sizeof question, &got) == CORE_AGAIN)
            (void)poll(&ready, 1, LONG_MS);
        TEST_REQUIRE(protocol_header_read(PROTOCOL_VERSION, question, &header) == CORE_OK);
        all.iov_len = protocol_ping_write(frames, PROTOCOL_PONG, header.id, "hello", 5);
        all.iov_len += protocol_error_write(frames + all.iov_len, 0, PROTOCOL_ERROR_LIMIT, true, "enough");
        TEST_REQUIRE(core_lane_write(&bridge->lane, &all, 1, &taken) == CORE_OK);
    }
    end_bridge(bridge);
}

static void ask_again(void *argument, uint32_t request, const uint8_t *payload, uint32_t bytes)
{
    struct millrace *connection = *(struct millrace **)argument;
    (void)request, (void)payload, (void)bytes;
    assert_int_equal(millrace_send_ping(connection, "again", 5, NULL, NULL), MILLRACE_OK);
    assert_true(millrace_unsent_bytes(connection) > 0);
}

/* What a callback has made in the lane just before the end is not waited for. */
static void nothing_waits_behind_the_end(void **state)
{
    struct millrace *connection;
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_pong = ask_again, .argument = &connection};
    static struct bridge bridge;
    struct fake_server server;
    millrace_status status = MILLRACE_OK;
    (void)state;
    bridge = (struct bridge){.random = {1}};
    fake_server_start(&server, ending_script, &bridge);
    assert_int_equal(millrace_connect(server.address, NULL, LONG_MS, &connection, NULL), MILLRACE_OK);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    assert_int_equal(millrace_send_ping(connection, "first", 5, NULL, NULL), MILLRACE_OK);
    for (int turns = 0; status == MILLRACE_OK && turns < 100; turns++) {
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = POLLIN};
        status = millrace_process(connection, 0, NULL);
        if (status == MILLRACE_OK)
            assert_int_equal(poll(&ready, 1, LONG_MS), 1);
    }
    assert_int_equal(status, MILLRACE_CLOSED);
    assert_int_equal(millrace_unsent_bytes(connection), 0);
    assert_int_equal(millrace_events(connection), POLLIN);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* ---- packets that no lane can hold ---- */

static void longer_packets_than_a_lane(void **state)
{
    static const uint32_t lengths[] = {900000, 16, 262000, 300000, 1, 1048576, 40000, 262144, 1000000, 65536};
    static uint8_t packet[1 << 20], ciphertext[(1 << 20) + 16], expected[(1 << 20) + 16];
    struct test_server server = {0};
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_open open = contract;
    struct millrace *connection;
    struct core_error error = {""};
    char address[300];
    uint8_t iv[16];
    (void)state;
    open.packet_bytes = sizeof packet;
    open.burst_packets = 1;
    open.interval_ns = 100 * CORE_NS_PER_MS;
    test_server_start(&server, "limits: {packet_bytes: 1048576, lane_mib: 64}", &test_profile_generous);
    core_address_format(test_server_unix(&server), address, sizeof address);
    if (millrace_connect(address, NULL, LONG_MS, &connection, error.text) != MILLRACE_OK ||
        millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    memcpy(iv, opened.iv, sizeof iv);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct millrace_result result = {.size = sizeof result};
        EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
        uint32_t bytes;
        int first = 0, last = 0;
        for (uint32_t at = 0; at < lengths[i]; at++)
            packet[at] = byte_of((uint32_t)i, at / 256, at);
        if (millrace_encrypt(connection, opened.stream, packet, lengths[i], LONG_MS, ciphertext, &bytes,
                             &result, error.text) != MILLRACE_OK)
            fail_msg("%s", error.text);
        assert_int_equal(EVP_EncryptInit_ex(context, EVP_aes_128_cbc(), NULL, key, iv), 1);
        assert_int_equal(EVP_EncryptUpdate(context, expected, &first, packet, (int)lengths[i]), 1);
        assert_int_equal(EVP_EncryptFinal_ex(context, expected + first, &last), 1);
        assert_int_equal(bytes, first + last);
        assert_memory_equal(ciphertext, expected, bytes);
        memcpy(iv, ciphertext + bytes - sizeof iv, sizeof iv);
        EVP_CIPHER_CTX_free(context);
    }
    millrace_disconnect(connection);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_comes_back),
        cmocka_unit_test(vandals_end_their_connection),
        cmocka_unit_test(a_call_gives_up_beside_a_chatterer),
        cmocka_unit_test(the_end_in_the_middle_of_a_frame_is_told),
        cmocka_unit_test(nothing_waits_behind_the_end),
        cmocka_unit_test(longer_packets_than_a_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
