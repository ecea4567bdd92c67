/* Writing results whose ciphertext is lent: the bytes are right wherever the socket cuts them, and what was
 * lent is never read again after the turn in which it was queued. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/net/io.h"
#include "tests/support/random.h"
#include "tests/support/require.h"

#define PACKET_BYTES 1408u
#define PACKETS      3000
#define FRAME_BYTES  (32u + PACKET_BYTES)

struct fixture {
    struct config_profile profile;
    struct cpu_worker *worker; /* which has no part in this, but that packets are said to be its own */
    struct server server;
    struct server_io io;
    struct server_connection connection;
    struct server_stream *stream;
    int reader;
    uint8_t *expected; /* ciphertext of all packets, in order */
    size_t expected_bytes;
    uint8_t *lent; /* a batch's memory: scribbled over after each turn */
    uint8_t *received;
    size_t received_bytes;
};

static void start_worker(struct cpu_worker **worker)
{
    const struct cpu_worker_options options = {
        .thread = {.name = "worker-0", .cpu = -1},
        .scheduler = {.ops = &cpu_engine_openssl, .burst_pieces = 1, .far_capacity = 64},
        .producers = 1,
        .ring_packets = 64,
    };
    struct core_error error = {""};
    TEST_REQUIRE(cpu_worker_start(worker, &options, NULL, &error) == CORE_OK);
}

static void set_up(struct fixture *fixture)
{
    const struct core_stream_spec spec = {.packet_bytes = PACKET_BYTES,
                                          .burst_packets = 64,
                                          .interval_ns = CORE_NS_PER_US,
                                          .latency_ns = CORE_NS_PER_S,
                                          .cipher = CORE_CIPHER_AES_128_CBC};
    int pair[2], small = 4096;

    memset(fixture, 0, sizeof *fixture);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    fixture->reader = pair[1];
    TEST_REQUIRE(server_poller_init(&fixture->io.poller, NULL) == CORE_OK);
    fixture->server = (struct server){
        .all_workers = 1, .worker_count = 1, .workers = &fixture->worker, .profile = &fixture->profile};
    start_worker(&fixture->worker);
    fixture->io.server = &fixture->server;
    fixture->io.streams = (struct server_stream_io){.server = &fixture->server, .stats = &fixture->io.stats};
    assert_int_equal(server_stats_make(&fixture->io.stats, server_units(&fixture->server)), CORE_OK);
    struct server_connection *connection = &fixture->connection;
    connection->io = &fixture->io;
    connection->client.io = &fixture->io.streams;
    connection->state = SERVER_CONNECTION_READY;
    connection->transport.descriptor = pair[0];
    connection->blocked_ns = CORE_NS_NEVER;
    connection->watch.descriptor = pair[0];
    struct server_block *block = server_block_create(&spec, 64, 0);
    assert_non_null(block);
    assert_int_equal(server_stream_create(&fixture->stream, &spec, block), CORE_OK);
    fixture->stream->client = &connection->client;
    fixture->stream->id = 1;
    server_policer_init(&fixture->stream->policer, &spec, 0);
    fixture->expected = malloc((size_t)PACKETS * PACKET_BYTES);
    fixture->received = malloc((size_t)PACKETS * FRAME_BYTES);
    fixture->lent = malloc((size_t)64 * PACKET_BYTES);
    assert_true(fixture->expected != NULL && fixture->received != NULL && fixture->lent != NULL);
}

static void tear_down(struct fixture *fixture)
{
    server_stream_destroy(fixture->stream, NULL); /* it has no cipher */
    cpu_worker_stop(fixture->worker);
    server_stats_free(&fixture->io.stats);
    free(fixture->expected);
    free(fixture->received);
    free(fixture->lent);
    server_poller_free(&fixture->io.poller);
    close(fixture->connection.transport.descriptor);
    close(fixture->reader);
}

/* A packet of random bytes is ready: lent, or in its slot. */
static void finish_packet(struct fixture *fixture, struct test_random *random, uint8_t **lent)
{
    struct server_stream *stream = fixture->stream;
    uint32_t bytes = (uint32_t)test_random_in(random, 1, PACKET_BYTES / 16) * 16;
    struct server_packet *packet = server_stream_take(stream, stream->queue.next_sequence++, bytes, 0);
    uint8_t *target = server_packet_payload(packet);

    core_ns now_ns = core_time_now_ns();
    const struct server_arrival arrival = {now_ns, now_ns, now_ns, false};

    assert_true(server_stream_accept(stream, packet, &arrival, UINT64_MAX));
    if (test_random_in(random, 0, 3) != 0) {
        memset(target, 0x11, bytes); /* the plaintext: must not be sent */
        target = *lent;
        *lent += bytes;
        packet->output.payload = target;
    }
    for (uint32_t i = 0; i < bytes; i++)
        target[i] = (uint8_t)test_random_in(random, 0, 255);
    memcpy(fixture->expected + fixture->expected_bytes, target, bytes);
    fixture->expected_bytes += bytes;
    packet->ready = true;
}

static void read_some(struct fixture *fixture, size_t most)
{
    ssize_t got = read(fixture->reader, fixture->received + fixture->received_bytes, most);
    fixture->received_bytes += got > 0 ? (size_t)got : 0;
}

/* Takes the frames apart and compares. Returns the number of packets. */
static uint32_t compare(const struct fixture *fixture)
{
    const uint8_t *frame = fixture->received, *end = frame + fixture->received_bytes;
    size_t done = 0;
    uint32_t count = 0;
    for (; frame < end; count++) {
        struct protocol_header header;
        assert_int_equal(protocol_header_read(PROTOCOL_VERSION, frame, &header), CORE_OK);
        assert_true(header.type == PROTOCOL_RESULT && header.sequence == count);
        uint32_t bytes = header.body_bytes - PROTOCOL_RESULT_BYTES;
        assert_true(done + bytes <= fixture->expected_bytes);
        assert_memory_equal(frame + 32, fixture->expected + done, bytes);
        done += bytes;
        frame += 32 + bytes;
    }
    assert_int_equal(done, fixture->expected_bytes);
    return count;
}

static void lent_results_survive_a_slow_reader(void **state)
{
    struct test_random random = {.state = 77};
    struct fixture fixture;
    uint32_t packets = 0, blocked = 0;
    (void)state;

    set_up(&fixture);
    while (packets < PACKETS) {
        uint8_t *lent = fixture.lent;
        for (int64_t n = test_random_in(&random, 1, 12);
             n > 0 && packets < PACKETS && fixture.stream->memory.free != NULL; n--, packets++)
            finish_packet(&fixture, &random, &lent);
        server_output_results(fixture.stream);
        server_output_flush(&fixture.connection);
        assert_int_equal(fixture.connection.borrowed, 0);
        memset(fixture.lent, 0xEE, (size_t)(lent - fixture.lent)); /* the batch's memory is used anew */
        blocked += fixture.connection.output_head != NULL ? 1 : 0;
        read_some(&fixture,
                  (size_t)(test_random_chance(&random, 33) ? 40000 : test_random_in(&random, 1, 3000)));
    }
    while (fixture.connection.output_head != NULL) {
        read_some(&fixture, 3000);
        server_output_flush(&fixture.connection);
    }
    for (size_t before = SIZE_MAX; before != fixture.received_bytes;) {
        before = fixture.received_bytes;
        read_some(&fixture, 40000);
    }
    assert_int_equal(compare(&fixture), PACKETS);
    assert_true(blocked > 10); /* or nothing was cut */
    assert_int_equal(fixture.stream->memory.busy, 0);
    assert_int_equal(fixture.stream->account.totals.packets, PACKETS);
    tear_down(&fixture);
}

static void lent_results_of_a_broken_connection_are_dropped(void **state)
{
    struct test_random random = {.state = 78};
    struct fixture fixture;
    uint8_t *lent;
    (void)state;

    set_up(&fixture);
    lent = fixture.lent;
    for (int i = 0; i < 20; i++)
        finish_packet(&fixture, &random, &lent);
    server_output_results(fixture.stream);
    assert_true(fixture.connection.borrowed > 0);
    server_output_purge(&fixture.connection);
    assert_int_equal(fixture.connection.borrowed, 0);
    assert_int_equal(fixture.stream->memory.busy, 0);
    assert_int_equal(server_stats_get(&fixture.io.stats.lost), 20);
    tear_down(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lent_results_survive_a_slow_reader),
        cmocka_unit_test(lent_results_of_a_broken_connection_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
