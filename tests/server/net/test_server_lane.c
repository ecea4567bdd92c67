/* Connections whose frames go through shared memory: all that goes through a socket, who has no lane and why, and
 * clients that write whatever they like into what they share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/transport_stream.h"
#include "perfmodel/cpu.h"
#include "server/server_internal.h"
#include "server/stream/mac.h"
#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define RING       CORE_LANE_RING_BYTES_MIN
#define QUESTIONS  400 /* more than an I/O thread answers in a turn */
#define LANE_BYTES (4096 + 2 * (size_t)RING)
#define PACKETS    3000
#define VANDALS    4
#define ATTACKS    40

static struct test_server server;
static const uint8_t key[32] = {21};

static int set_up(void **state)
{
    (void)state;
    test_server_start(&server,
                      "limits: {lane_mib: 4}\ntimeouts: {stall_ms: 300, hello_ms: 20000}\nclient_iv: true",
                      &test_profile_generous);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return test_server_stop(&server) == 0 ? 0 : -1;
}

static void greet(struct test_client *client, const struct core_address *address)
{
    struct protocol_welcome welcome;
    test_client_dial(client, address);
    test_client_hello_version(client, PROTOCOL_VERSION, &welcome);
}

static void share(struct test_client *client)
{
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    greet(client, test_server_unix(&server));
    assert_true(test_client_share(client, RING, text));
}

/* ---- who writes while the server looks ---- */

static uint8_t *_Atomic spoiled; /* so much of a lane, once what is in it has been judged */
#define SPOILED_BYTES (7 * CORE_TS_BYTES)

void __real_server_mac_judge(struct server_packet *packet);
void __wrap_server_mac_judge(struct server_packet *packet);
void __wrap_server_mac_judge(struct server_packet *packet)
{
    __real_server_mac_judge(packet);
    if (spoiled != NULL)
        memset(spoiled, 0xFF, SPOILED_BYTES);
}

/* Packets of a transport stream are looked at twice: which of them are scrambled, and where. */
static void what_was_judged_is_what_is_encrypted(void **state)
{
    const struct core_stream_spec spec = {.packet_bytes = SPOILED_BYTES,
                                          .burst_packets = 4,
                                          .interval_ns = CORE_NS_PER_MS,
                                          .latency_ns = 10 * CORE_NS_PER_S,
                                          .cipher = CORE_CIPHER_AES_128_CBC,
                                          .padding = CORE_PADDING_CLEAR,
                                          .unit = CORE_UNIT_MESSAGE,
                                          .iv = CORE_IV_CONSTANT,
                                          .records = CORE_RECORDS_TS};
    static uint8_t bytes[PROTOCOL_HEADER_BYTES + SPOILED_BYTES];
    struct protocol_open open = test_open_inline(&spec, key);
    const struct protocol_header header = {.body_bytes = SPOILED_BYTES,
                                           .type = PROTOCOL_DATA,
                                           .flags = PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST,
                                           .id = 1};
    static uint8_t results[2][SPOILED_BYTES];
    struct test_frame frame;
    (void)state;
    for (size_t at = 0; at < SPOILED_BYTES; at++) {
        const uint8_t head[] = {0x47, 0x01, 0x00, 0x90}; /* even key, payload only */
        const size_t of_packet = at % CORE_TS_BYTES;
        bytes[PROTOCOL_HEADER_BYTES + at] = of_packet < sizeof head ? head[of_packet] : (uint8_t)at;
    }
    protocol_header_write(bytes, &header);
    open.has_iv = true;
    for (int turn = 0; turn < 2; turn++) {
        struct test_client client;
        struct protocol_refused refused;
        share(&client);
        if (!test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused))
            fail_msg("%s", refused.text);
        const size_t at = client.lane.out.done & (RING - 1);
        atomic_store(&spoiled, turn == 1 ? client.lane.out.bytes + at + PROTOCOL_HEADER_BYTES : NULL);
        assert_true(test_client_send(&client, bytes, sizeof bytes));
        test_client_expect(&client, PROTOCOL_RESULT, &frame);
        assert_int_equal(frame.body[0], PROTOCOL_RESULT_OK);
        assert_int_equal(frame.header.body_bytes, PROTOCOL_RESULT_BYTES + SPOILED_BYTES);
        memcpy(results[turn], frame.body + PROTOCOL_RESULT_BYTES, SPOILED_BYTES);
        atomic_store(&spoiled, NULL);
        test_client_close(&client);
    }
    assert_memory_equal(results[0], results[1], SPOILED_BYTES);
}

/* ---- what admission charges ---- */

/* What the I/O thread is charged for becomes that. */
static void await_charge(const struct test_server *charging, int64_t ppb)
{
    const struct server_planner_load *load = server_planner_io_load(charging->server->planner, 0);
    while (atomic_load(&load->utilisation_ppb) != ppb)
        poll(NULL, 0, 1);
}

/* A stream's I/O thread reads and writes it as its connection has it: by OPEN, and still after MODIFY. */
static void admission_knows_lanes(void **state)
{
    (void)state;
    struct test_server charging;
    struct config_profile profile = test_profile_generous;
    struct protocol_modify modify = {.burst_packets = test_spec.burst_packets,
                                     .interval_ns = 2 * test_spec.interval_ns,
                                     .latency_ns = test_spec.latency_ns};
    struct core_stream_spec spec = test_spec;
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    profile.io.per_packet_ns = 4000;
    profile.io.by_lane_per_packet_ns = 1000;
    test_server_start(&charging, "limits: {lane_mib: 4}", &profile);
    for (int i = 0; i < 2; i++) {
        struct test_client client;
        struct test_frame frame;
        struct protocol_modified modified;
        struct core_error error;
        uint8_t bytes[TEST_FRAME_BYTES];
        greet(&client, test_server_unix(&charging));
        spec.by_lane = i == 1 && test_client_share(&client, RING, text);
        assert_int_equal(spec.by_lane, i == 1);
        struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
        await_charge(&charging, perfmodel_io_utilisation_ppb(&spec, &profile));
        modify.stream = stream->id;
        test_client_send(&client, bytes, protocol_modify_write(bytes, 9, &modify));
        test_client_expect(&client, PROTOCOL_MODIFIED, &frame);
        assert_int_equal(protocol_modified_read(frame.body, frame.header.body_bytes, &modified, &error),
                         CORE_OK);
        struct core_stream_spec changed = spec;
        changed.interval_ns = modify.interval_ns;
        await_charge(&charging, perfmodel_io_utilisation_ppb(&changed, &profile));
        test_stream_close(stream);
        test_stream_free(stream);
        test_client_close(&client);
        await_charge(&charging, 0);
    }
    assert_int_equal(test_server_stop(&charging), 0);
}

/* ---- what a socket carries ---- */

static void send_random(struct test_stream *stream, struct test_random *random, uint32_t packets)
{
    while (packets-- > 0)
        assert_true(test_stream_send(stream, 16 * (uint32_t)test_random_in(random, 1, 88)));
}

static void every_frame_goes_through(void **state)
{
    (void)state;
    struct test_random random = {.state = 1};
    struct test_client client;
    struct test_frame frame;
    share(&client);
    test_client_ping(&client);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
    send_random(stream, &random, PACKETS);
    test_stream_drain(stream);
    uint8_t bytes[TEST_FRAME_BYTES];
    assert_true(test_client_send(&client, bytes, protocol_close_write(bytes, stream->id)));
    test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    test_stream_free(stream);
    test_client_close(&client);
}

/* Questions that are handled at once, and those that wait for the next turns. */
static void keys_do_not_stay_in_a_lane(void **state)
{
    static const uint8_t secret[16] = "not to be found";
    const struct protocol_open open = test_open_inline(&test_spec, secret);
    static uint8_t bytes[QUESTIONS * TEST_FRAME_BYTES];
    struct test_client client;
    struct test_frame frame;
    size_t count = 0;
    (void)state;
    share(&client);
    for (uint32_t id = 1; id <= QUESTIONS; id++)
        count += protocol_open_write(PROTOCOL_VERSION, bytes + count, PROTOCOL_QUERY, id, &open);
    assert_true(test_client_send(&client, bytes, count));
    for (unsigned answers = 0; answers < QUESTIONS; answers++)
        test_client_expect(&client, PROTOCOL_OPENED, &frame);
    assert_null(memmem(client.lane.out.bytes, RING, secret, sizeof secret));
    test_client_close(&client);
}

/* The socket's end says that there is no more; what is in the ring is still answered. */
static void a_half_closed_lane_is_finished(void **state)
{
    (void)state;
    struct test_random random = {.state = 2};
    struct test_client client;
    struct test_frame frame;
    share(&client);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 2);
    send_random(stream, &random, 20);
    test_client_half_close(&client);
    test_stream_drain(stream);
    test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    test_client_expect_end(&client);
    test_stream_free(stream);
    test_client_close(&client);
}

/* A ring that is not read is as a socket that is not. */
static void who_reads_nothing_is_closed(void **state)
{
    (void)state;
    struct test_client client;
    uint8_t ping[TEST_FRAME_BYTES];
    share(&client);
    const size_t bytes = protocol_ping_write(ping, PROTOCOL_PING, 1, key, sizeof key);
    size_t sent = 0;
    while (test_client_push(&client, ping, bytes) == bytes || sent < 2 * RING) {
        struct pollfd told = {.fd = client.descriptor, .events = POLLIN};
        if (poll(&told, 1, 0) > 0 && (told.revents & POLLHUP) != 0)
            break;
        sent += bytes;
    }
    struct pollfd ended = {.fd = client.descriptor, .events = POLLRDHUP};
    assert_int_equal(poll(&ended, 1, TEST_PATIENCE_MS), 1);
    test_client_close(&client);
}

/* ---- who has none ---- */

static void expect_refused(struct test_client *client, uint32_t ring_bytes, int file, const char *reason)
{
    struct test_frame frame;
    struct core_error error;
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t granted;
    test_client_send_lane(client, ring_bytes, file);
    test_client_expect(client, PROTOCOL_LANED, &frame);
    assert_int_equal(
        protocol_laned_read(frame.body, frame.header.body_bytes, &granted, text, sizeof text, &error),
        CORE_OK);
    assert_int_equal(granted, 0);
    if (strstr(text, reason) == NULL)
        fail_msg("'%s' is not in '%s'", reason, text);
}

static void refusals_leave_the_socket_as_it_is(void **state)
{
    (void)state;
    struct test_client client;
    const int unsealed = memfd_create("test", MFD_CLOEXEC);
    TEST_REQUIRE(unsealed >= 0 && ftruncate(unsealed, LANE_BYTES) == 0);
    greet(&client, test_server_unix(&server));
    assert_int_equal(client.welcome_flags & PROTOCOL_HAS_LANES, PROTOCOL_HAS_LANES);
    expect_refused(&client, RING, -1, "has not come along");
    expect_refused(&client, RING + 1, unsealed, "power of two");
    expect_refused(&client, RING, unsealed, "sealed");
    expect_refused(&client, RING, STDERR_FILENO, "sealed");
    expect_refused(&client, CORE_LANE_RING_BYTES_MAX, unsealed, "limits.lane_mib");
    close(unsealed);
    test_client_ping(&client);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 3);
    assert_true(test_stream_send(stream, 160));
    test_stream_drain(stream);
    test_stream_free(stream);
    test_client_close(&client);

    greet(&client, test_server_tcp(&server));
    assert_int_equal(client.welcome_flags & PROTOCOL_HAS_LANES, 0);
    expect_refused(&client, RING, -1, "need a Unix socket");
    test_client_close(&client);
}

/* 4 MiB are 30 lanes of this size; each that goes makes room for another. */
static void memory_is_given_back(void **state)
{
    (void)state;
    enum { MOST = (4 << 20) / LANE_BYTES };
    struct test_client clients[MOST + 1];
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i <= MOST; i++) {
            greet(&clients[i], test_server_unix(&server));
            bool shares = test_client_share(&clients[i], RING, text);
            for (int tries = 0; i < MOST && !shares && tries < 1000;
                 tries++) { /* the last round's go, by and by */
                usleep(10000);
                shares = test_client_share(&clients[i], RING, text);
            }
            assert_int_equal(shares, i < MOST);
        }
        for (int i = 0; i <= MOST; i++) {
            test_client_ping(&clients[i]);
            test_client_close(&clients[i]);
        }
    }
}

/* The server does not read it, since its stream has sent far too much, and its results wake nobody. */
static void who_is_dead_leaves(void **state)
{
    struct test_client client;
    struct core_stream_spec slow = test_spec;
    uint8_t frame[PROTOCOL_HEADER_BYTES + 16] = {0};
    slow.interval_ns = 60 * CORE_NS_PER_S;
    slow.latency_ns = 3000 * CORE_NS_PER_S;
    slow.burst_packets = 1;
    slow.packet_bytes = 16;
    share(&client);
    struct test_stream *stream = test_stream_open(&client, &slow, 7);
    for (uint32_t packet = 0; packet < 1500; packet++) {
        test_data_header(frame, stream->id, packet, 16);
        (void)test_client_push(&client, frame, sizeof frame);
        struct pollfd told = {.fd = client.descriptor, .events = POLLIN};
        if (packet == 0) /* the first result has rung, and is never looked for */
            assert_int_equal(poll(&told, 1, TEST_PATIENCE_MS), 1);
    }
    test_stream_free(stream);
    test_client_close(&client);
    memory_is_given_back(state);
}

static void lanes_out_of_turn_end_the_connection(void **state)
{
    (void)state;
    uint8_t frame[TEST_FRAME_BYTES];
    struct test_client client;
    for (int way = 0; way < 3; way++) {
        struct test_stream *stream = NULL;
        struct core_lane lane = {0};
        struct core_error error;
        int file;
        if (way == 0)
            share(&client);
        else
            greet(&client, test_server_unix(&server));
        if (way == 1)
            stream = test_stream_open(&client, &test_spec, 4);
        if (way == 0) { /* a second one */
            assert_true(test_client_send(&client, frame, protocol_lane_write(frame, RING)));
        } else if (way == 1) { /* behind OPEN */
            test_client_send_lane(&client, RING, -1);
        } else { /* not waiting for the answer */
            TEST_REQUIRE(core_lane_create(&lane, RING, client.descriptor, &file, &error) == CORE_OK);
            const uint32_t bytes = protocol_ping_write(frame, PROTOCOL_PING, 1, "", 0);
            test_client_send_lane_and(&client, RING, file, frame, bytes);
            close(file);
        }
        test_client_expect_error(&client, PROTOCOL_ERROR_STATE, 0, true);
        core_lane_free(&lane);
        if (stream != NULL)
            test_stream_free(stream);
        test_client_close(&client);
    }
}

/* ---- descriptors that nobody asked for ---- */

/* Who closes the last descriptor of it waits an hour, unless it is told not to: its peer takes nothing. */
static int lingering_socket(int *peer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    const struct linger hour = {.l_onoff = 1, .l_linger = 3600};
    const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
              ours = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    static const uint8_t much[65536];
    TEST_REQUIRE(bind(listening, (struct sockaddr *)&address, bytes) == 0 && listen(listening, 1) == 0 &&
                 getsockname(listening, (struct sockaddr *)&address, &bytes) == 0 &&
                 connect(ours, (struct sockaddr *)&address, bytes) == 0);
    *peer = accept(listening, NULL, NULL);
    TEST_REQUIRE(*peer >= 0 && close(listening) == 0);
    while (send(ours, much, sizeof much, MSG_DONTWAIT) > 0)
        ;
    TEST_REQUIRE(setsockopt(ours, SOL_SOCKET, SO_LINGER, &hour, sizeof hour) == 0);
    return ours;
}

/* Before HELLO, with LANE, in a lane, and left unread in a socket that is closed for another reason. */
static void send_lingering(int way, int *peer)
{
    struct test_client client;
    uint8_t frame[TEST_FRAME_BYTES] = {0};
    const int file = lingering_socket(peer);
    if (way == 2)
        share(&client);
    else if (way == 1)
        greet(&client, test_server_unix(&server));
    else
        test_client_dial(&client, test_server_unix(&server));
    if (way == 3) /* noise: it is closed for that, with what follows */
        memset(frame, 0xFF, sizeof frame), (void)test_client_push(&client, frame, sizeof frame);
    test_client_send_lane(&client, RING, file);
    close(file);
    if (way != 1) {
        struct pollfd ended = {.fd = client.descriptor, .events = POLLRDHUP};
        assert_int_equal(poll(&ended, 1, TEST_PATIENCE_MS), 1);
    }
    test_client_close(&client);
}

static void what_clients_send_is_closed_by_nobody_with_a_deadline(void **state)
{
    (void)state;
    struct test_client good;
    int peers[4];
    greet(&good, test_server_unix(&server));
    for (int way = 0; way < 4; way++) {
        send_lingering(way, &peers[way]);
        test_client_ping(&good);
    }
    for (int way = 0; way < 4; way++)
        close(peers[way]);
    test_client_close(&good);
}

/* ---- lies ---- */

static void lies_about_counts_end_their_own_connection(void **state)
{
    (void)state;
    struct test_client good, client;
    share(&good);
    struct test_stream *stream = test_stream_open(&good, &test_spec, 5);
    for (int i = 0; i < 2; i++) {
        const uint64_t lie = UINT64_C(1) << 50;
        share(&client);
        memcpy((uint8_t *)client.lane.memory + (i == 0 ? 0 : 256 + 64), &lie, sizeof lie);
        TEST_REQUIRE(send(client.descriptor, "", 1, MSG_NOSIGNAL) == 1);
        uint8_t frame[TEST_FRAME_BYTES];
        if (i == 0)
            test_client_expect_error(&client, PROTOCOL_ERROR_MALFORMED, 0, true);
        else { /* the answer finds no place */
            (void)test_client_push(&client, frame, protocol_ping_write(frame, PROTOCOL_PING, 1, "", 0));
            struct pollfd ended = {.fd = client.descriptor, .events = POLLRDHUP};
            assert_int_equal(poll(&ended, 1, TEST_PATIENCE_MS), 1);
        }
        test_client_close(&client);
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
    test_stream_free(stream);
    test_client_close(&good);
}

/* Rewrites counts, words and bytes while the server works on them, and rings as it likes. */
static void rewrite(struct test_client *client, struct test_random *random)
{
    uint8_t *memory = client->lane.memory;
    uint8_t bells[64] = {0};
    for (int i = (int)test_random_log(random, 1, 300); i > 0; i--) {
        const bool head = test_random_chance(random, 20);
        const size_t at = (size_t)test_random_in(random, 0, head ? 511 : (int64_t)LANE_BYTES - 9);
        const uint64_t value = test_random_next(random) >> test_random_in(random, 0, 63);
        memcpy(memory + at, &value, sizeof value);
    }
    (void)!send(client->descriptor, bells, (size_t)test_random_in(random, 1, sizeof bells),
                MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *vandalise(void *argument)
{
    struct test_random random = {.state = (uint64_t)(uintptr_t)argument};
    uint8_t frame[TEST_FRAME_BYTES + 1408];
    for (int attack = 0; attack < ATTACKS; attack++) {
        struct test_client client;
        char text[PROTOCOL_CONTROL_BYTES_MAX];
        greet(&client, test_server_unix(&server));
        if (!test_client_share(&client, RING, text)) {
            test_client_close(&client);
            continue;
        }
        const struct protocol_open open = test_open_inline(&test_spec, key);
        (void)test_client_push(&client, frame, protocol_open_write(3, frame, PROTOCOL_OPEN, 1, &open));
        for (uint32_t packet = 0; packet < 60; packet++) {
            test_data_header(frame, 1, packet, 1408);
            (void)test_client_push(&client, frame, PROTOCOL_HEADER_BYTES + 1408);
            if (test_random_chance(&random, 30))
                rewrite(&client, &random);
        }
        if (test_random_chance(&random, 50)) /* holes in the memory that the server has mapped */
            (void)madvise(client.lane.memory, LANE_BYTES & ~(size_t)4095, MADV_REMOVE);
        (void)!send(client.descriptor, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        test_client_close(&client);
    }
    return NULL;
}

static void vandals_harm_nobody_else(void **state)
{
    (void)state;
    struct test_random random = {.state = 6};
    pthread_t vandals[VANDALS];
    struct test_client client;
    share(&client);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 6);
    for (uintptr_t i = 0; i < VANDALS; i++)
        TEST_REQUIRE(pthread_create(&vandals[i], NULL, vandalise, (void *)(i + 1)) == 0);
    for (int i = 0; i < 200; i++) {
        send_random(stream, &random, 10);
        test_stream_drain(stream);
    }
    for (size_t i = 0; i < VANDALS; i++)
        pthread_join(vandals[i], NULL);
    send_random(stream, &random, 10);
    test_stream_drain(stream);
    test_stream_free(stream);
    test_client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(admission_knows_lanes),
        cmocka_unit_test(every_frame_goes_through),
        cmocka_unit_test(keys_do_not_stay_in_a_lane),
        cmocka_unit_test(what_was_judged_is_what_is_encrypted),
        cmocka_unit_test(a_half_closed_lane_is_finished),
        cmocka_unit_test(who_reads_nothing_is_closed),
        cmocka_unit_test(refusals_leave_the_socket_as_it_is),
        cmocka_unit_test(memory_is_given_back),
        cmocka_unit_test(who_is_dead_leaves),
        cmocka_unit_test(lanes_out_of_turn_end_the_connection),
        cmocka_unit_test(what_clients_send_is_closed_by_nobody_with_a_deadline),
        cmocka_unit_test(lies_about_counts_end_their_own_connection),
        cmocka_unit_test(vandals_harm_nobody_else),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
