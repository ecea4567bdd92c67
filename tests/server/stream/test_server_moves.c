/* Streams that change units on the running server while their packets flow: between two workers and an
 * emulated card. Whatever happens, every byte is right, in order, and the old unit's room is free again
 * afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>

#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/shift.h"
#include "tests/support/stream.h"

#define STREAMS 24
#define WORKERS 2
#define CARD    WORKERS /* the unit */

static const struct core_stream_spec spec = {.packet_bytes = 1408,
                                             .burst_packets = 8,
                                             .interval_ns = 4 * CORE_NS_PER_MS,
                                             .latency_ns = 100 * CORE_NS_PER_MS,
                                             .cipher = CORE_CIPHER_AES_128_CBC,
                                             .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct test_stream *streams[STREAMS];
static struct test_random random_numbers;
static uint32_t waiting; /* packets on their way */

static void start_with(int64_t cost, const char *yaml)
{
    char text[256];
    snprintf(text, sizeof text, "threads: {cores: 8, io: 1, workers: 2, realtime: off, pin: false}\n%s",
             yaml);
    memset(&server, 0, sizeof server);
    random_numbers = (struct test_random){.state = 7};
    waiting = 0;
    profile = test_gpu_profile(cost);
    test_gpu_server_start(&server, "audit: 2, hang_ms: 10000", text, profile); /* no card hangs here */
    test_client_connect(&client, test_server_unix(&server), NULL);
}

static int set_up(void **state)
{
    (void)state;
    start_with(60, "");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_client_close(&client);
    uint64_t lost = test_server_stop(&server);
    config_profile_free(profile);
    return lost == 0 ? 0 : -1;
}

static const struct server_stats *stats(void)
{
    return &server.server->ios[0]->stats;
}

static void open_streams(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct core_stream_spec each = spec;
        each.cipher = (enum core_cipher)(1 + i % 3);
        streams[i] = test_stream_open(&client, &each, i);
    }
}

static void close_streams(uint32_t count)
{
    for (; waiting > 0; waiting--)
        (void)test_streams_take(&client, streams);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(test_stream_close(streams[i]).packets, streams[i]->sent);
        test_stream_free(streams[i]);
    }
}

/* Sends `packets` to random streams and takes results, so that some are always on their way. */
static void exchange(uint32_t count, uint32_t packets)
{
    for (uint32_t i = 0; i < packets; i++) {
        struct test_stream *stream = streams[test_random_in(&random_numbers, 0, count - 1)];
        assert_true(test_stream_send(stream, (uint32_t)test_random_in(&random_numbers, 1, 88) * 16));
        for (waiting++; waiting > 4 * count; waiting--)
            (void)test_streams_take(&client, streams);
    }
}

static void settle(void)
{
    for (; waiting > 0; waiting--)
        (void)test_streams_take(&client, streams);
}

/* ---- asking the planner ---- */

static void ask(struct test_shift *shift, uint32_t from, uint32_t to, size_t count)
{
    test_shift_begin(shift, server.server->planner, from, to, count, TEST_PATIENCE_MS * CORE_NS_PER_MS / 4);
}

/* Without packets: there is an idle moment at once. */
static void move(uint32_t from, uint32_t to, size_t count)
{
    struct test_shift shift;

    ask(&shift, from, to, count);
    test_shift_await(&shift);
    assert_int_equal(shift.asked, count);
    assert_int_equal(shift.moved, count);
}

/* With packets of all streams on their way all the time, but for a pause now and then. */
static size_t move_under_load(uint32_t from, uint32_t to, size_t count)
{
    struct test_shift shift;
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;

    ask(&shift, from, to, count);
    while (!test_shift_is_over(&shift)) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        exchange(STREAMS, 200);
        settle();
    }
    return shift.moved;
}

static uint64_t on_worker(uint32_t worker)
{
    return atomic_load(&server_planner_worker_load(server.server->planner, worker)->streams);
}

/* Old room is free when its unit has paused. */
static void await_streams(uint64_t first, uint64_t second)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    do {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        exchange(1, 1);
        settle();
    } while (on_worker(0) != first || on_worker(1) != second);
}

/* ---- tests ---- */

static uint32_t unit_of(const struct test_stream *stream)
{
    return stream->opened.unit == PROTOCOL_UNIT_GPU ? CARD : stream->opened.unit_index;
}

static void fallback_worker_continues_the_chain(void **state)
{
    static const uint32_t path[] = {1, 0, CARD, 1, CARD, 0};
    (void)state;

    open_streams(1);
    uint32_t at = unit_of(streams[0]);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof path / sizeof path[0]; i++) {
            if (path[i] == at)
                continue;
            exchange(1, 7);
            settle();
            move(at, path[i], 1);
            at = path[i];
            uint64_t gpu_packets = server_stats_get(&stats()->gpu_packets);
            exchange(1, 5);
            settle();
            await_streams(at == 0 ? 1 : 0,
                          at == 1 ? 1 : 0); /* sends some more; results were counted by then */
            gpu_packets = server_stats_get(&stats()->gpu_packets) - gpu_packets;
            assert_true(at == CARD ? gpu_packets >= 5 : gpu_packets == 0);
        }
    close_streams(1);
}

static void migrations_under_load(void **state)
{
    size_t moved = 0;
    (void)state;

    open_streams(STREAMS);
    for (int round = 0; round < 4; round++) {
        moved += move_under_load(0, 1, 4);
        moved += move_under_load(1, CARD, 4);
        moved += move_under_load(CARD, 0, 4);
        moved += move_under_load(0, CARD, 8);
        moved += move_under_load(CARD, 1, 8);
    }
    assert_true(moved > 0);
    close_streams(STREAMS);
    assert_int_equal(server_stats_get(&stats()->lost), 0);
    assert_int_equal(server_stats_get(&stats()->corrupt), 0);
}

static void gpu_failure_during_migration_loses_no_byte(void **state)
{
    struct test_shift asked;
    (void)state;

    open_streams(STREAMS);
    for (int round = 0; round < 4; round++) {
        pid_t child = test_gpu_process(&server, 0);
        ask(&asked, round % 2 == 0 ? 0 : CARD, round % 2 == 0 ? CARD : 0, STREAMS);
        exchange(STREAMS, 30);
        assert_int_equal(kill(child, SIGKILL), 0);
        while (!test_shift_is_over(&asked)) {
            exchange(STREAMS, 200);
            settle();
        }
        test_gpu_await_up(&server, 0, child);
        exchange(STREAMS, 100);
        settle();
    }
    close_streams(STREAMS);
    assert_int_equal(server_stats_get(&stats()->lost), 0);
}

/* Streams that close, and connections that go, while they are on their way. */
static void streams_closed_during_migration(void **state)
{
    struct test_shift asked[3];
    (void)state;

    for (int round = 0; round < 6; round++) {
        open_streams(STREAMS);
        for (uint32_t unit = 0; unit <= CARD; unit++)
            ask(&asked[unit], unit, (unit + 1) % (CARD + 1), STREAMS);
        exchange(STREAMS, 60);
        if (round % 2 == 0)
            close_streams(STREAMS);
        else { /* with packets inside */
            for (uint32_t i = 0; i < STREAMS; i++)
                test_stream_free(streams[i]);
            waiting = 0;
            test_client_close(&client);
            test_client_connect(&client, test_server_unix(&server), NULL);
        }
        for (uint32_t unit = 0; unit <= CARD; unit++)
            while (!test_shift_is_over(&asked[unit]))
                core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (on_worker(0) + on_worker(1) + atomic_load(&server_gpu_figures(server.server->gpus[0])->streams) >
           0) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

/* Stopping with orders under way delivers all, and frees all (as the sanitizers see). */
static void server_stops_during_migrations(void **state)
{
    static struct test_shift asked; /* the planner has it until the server's end */
    (void)state;

    open_streams(4);
    exchange(4, 16);
    ask(&asked, unit_of(streams[0]), (unit_of(streams[0]) + 1) % (CARD + 1), 4);
    settle();
    for (uint32_t i = 0; i < 4; i++)
        test_stream_free(streams[i]);
}

/* ---- new streams for whom others move ---- */

/* Either unit can do it: workers get a quarter of themselves full of them, the card the rest. */
static const struct core_stream_spec filler = {.packet_bytes = 2048,
                                               .burst_packets = 1,
                                               .interval_ns = 3 * CORE_NS_PER_MS,
                                               .latency_ns = 60 * CORE_NS_PER_MS,
                                               .cipher = CORE_CIPHER_AES_128_CBC,
                                               .padding = CORE_PADDING_NONE};
/* Faster than the card does one stream. */
static const struct core_stream_spec fast = {.packet_bytes = 4096,
                                             .burst_packets = 1,
                                             .interval_ns = 3 * CORE_NS_PER_MS,
                                             .latency_ns = 60 * CORE_NS_PER_MS,
                                             .cipher = CORE_CIPHER_AES_128_CBC,
                                             .padding = CORE_PADDING_NONE};

#define FILLERS_MAX 400
#define FAST_MAX    400

static bool ask_fast(enum protocol_type type, struct protocol_refused *refused)
{
    static const uint8_t key[16] = {1, 2, 3};
    struct protocol_open open = test_open_inline(&fast, key);
    struct protocol_opened opened;
    bool accepted = test_client_ask(&client, type, &open, &opened, refused);
    if (accepted)
        assert_int_equal(opened.unit, PROTOCOL_UNIT_CPU);
    return accepted;
}

/* Opens fast streams beside fillers until one is refused; returns how many there are. */
static uint32_t crowd(const char *yaml, uint32_t *moved, struct protocol_refused *refused)
{
    static struct test_stream *filling[FILLERS_MAX];
    uint32_t count = 0, opened = 0;

    start_with(8, yaml);
    do
        filling[count] = test_stream_open(&client, &filler, count);
    while (filling[count++]->opened.unit == PROTOCOL_UNIT_CPU && count < FILLERS_MAX);
    assert_true(count > 2 && count < FILLERS_MAX);
    while (opened < FAST_MAX && ask_fast(PROTOCOL_OPEN, refused))
        opened++;
    assert_true(opened < FAST_MAX && refused->code == PROTOCOL_REFUSED_CAPACITY);
    assert_false(ask_fast(PROTOCOL_QUERY, refused));
    *moved = count - 1 + opened - (uint32_t)(on_worker(0) + on_worker(1));
    for (uint32_t i = 0; i < 2 * count; i++)
        assert_true(test_stream_send(filling[i % count], 2048));
    for (uint32_t i = 0; i < 2 * count; i++)
        (void)test_streams_take(&client, filling);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(test_stream_close(filling[i]).packets, 2);
        test_stream_free(filling[i]);
    }
    assert_int_equal(tear_down(NULL), 0);
    return opened;
}

static void admission_by_migrating_other_streams(void **state)
{
    struct protocol_refused refused;
    uint32_t moved;
    (void)state;

    uint32_t alone = crowd("timeouts: {move_ms: 0}\n", &moved, &refused);
    assert_int_equal(moved, 0);
    assert_null(strstr(refused.text, "migrating"));
    uint32_t together = crowd("timeouts: {move_ms: 60000}\n", &moved, &refused);
    print_message("%u without moves, %u with; %u moved; then: %s\n", alone, together, moved, refused.text);
    assert_true(together > alone + 5 && moved > 5);
    assert_non_null(strstr(refused.text, "migrating"));
}

/* ---- a card that goes, and comes back ---- */

static uint64_t on_card(void)
{
    return atomic_load(&server_gpu_figures(server.server->gpus[0])->streams);
}

/* Streams with more time than the workers need leave a card that is down, and go back to it. */
static void streams_evacuated_and_returned(void **state)
{
    (void)state;

    open_streams(STREAMS);
    for (uint32_t unit = 0; unit < WORKERS; unit++)
        (void)move_under_load(unit, CARD, STREAMS);
    uint64_t before = on_card();
    assert_true(before > 0);
    for (int round = 0; round < 2; round++) {
        core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
        pid_t child = test_gpu_process(&server, 0);
        uint64_t workers = on_worker(0) + on_worker(1);
        assert_int_equal(kill(child, SIGKILL), 0);
        while (on_worker(0) + on_worker(1) <= workers) {
            TEST_REQUIRE(core_time_now_ns() < until_ns);
            exchange(STREAMS, 20);
            settle();
        }
        while (on_worker(0) + on_worker(1) > workers || on_card() < before) {
            TEST_REQUIRE(core_time_now_ns() < until_ns);
            exchange(STREAMS, 20);
            settle();
        }
    }
    close_streams(STREAMS);
    assert_int_equal(server_stats_get(&stats()->lost), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fallback_worker_continues_the_chain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(migrations_under_load, set_up, tear_down),
        cmocka_unit_test_setup_teardown(gpu_failure_during_migration_loses_no_byte, set_up, tear_down),
        cmocka_unit_test_setup_teardown(streams_closed_during_migration, set_up, tear_down),
        cmocka_unit_test_setup_teardown(server_stops_during_migrations, set_up, tear_down),
        cmocka_unit_test(admission_by_migrating_other_streams),
        cmocka_unit_test_setup_teardown(streams_evacuated_and_returned, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
