/* Whatever a GPU's child does - dies, hangs, lies - nothing is lost, nothing is wrong, order is kept, and the
 * card comes back. The linker puts a function in front of gpu_engine_open that makes the emulated card fail,
 * and one in front of server_gpu_event_at that keeps events from an I/O thread (--wrap in CMakeLists.txt).
 * */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "gpu/engine.h"
#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/stream.h"

#define STREAMS 20
#define KILLS   10
#define HANG_NS (3 * CORE_NS_PER_S)

core_status __real_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);
core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);

/* What the next server's card does wrong, and when. */
static enum gpu_failure failure;
static uint64_t failure_batch;

core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error)
{
    struct gpu_emulation emulation = *options->emulation;
    struct gpu_engine_options changed = *options;
    emulation.failure = failure;
    emulation.failure_batch = failure_batch;
    changed.emulation = &emulation;
    changed.restart_max_ns = 200 * CORE_NS_PER_MS; /* the test has no time for more */
    changed.hang_least_ns = HANG_NS; /* the machine may be busy: the only faults are those that are made */
    changed.silence_ns = 2 * HANG_NS;
    return __real_gpu_engine_open(engine, &changed, error);
}

bool __real_server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                                struct server_gpu_event *event);
bool __wrap_server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                                struct server_gpu_event *event);

/* I/O threads have not come to what the batchers told them. */
static _Atomic bool deaf;

bool __wrap_server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                                struct server_gpu_event *event)
{
    return !atomic_load(&deaf) && __real_server_gpu_event_at(gpu, io, skipped, event);
}

static const struct core_stream_spec gpu_spec = {.packet_bytes = 1408,
                                                 .burst_packets = 8,
                                                 .interval_ns = 4 * CORE_NS_PER_MS,
                                                 .latency_ns = 80 * CORE_NS_PER_MS,
                                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                                 .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct test_stream *streams[STREAMS];
static struct test_random random_numbers;
static uint32_t waiting; /* packets on their way */

static void start(enum gpu_failure what, uint64_t batch)
{
    memset(&server, 0, sizeof server);
    failure = what;
    failure_batch = batch;
    random_numbers = (struct test_random){.state = 99};
    waiting = 0;
    profile = test_gpu_profile(100000); /* nothing is for the workers */
    /* of the other half a batch has the only plaintext */
    test_gpu_server_start(&server, what == GPU_FAILURE_CORRUPT ? "audit: 1" : "audit: 2", "", profile);
    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct core_stream_spec spec = gpu_spec;
        spec.cipher = (enum core_cipher)(1 + i % 3);
        spec.padding = i % 2 == 0 ? CORE_PADDING_PKCS7 : CORE_PADDING_NONE;
        streams[i] = test_stream_open(&client, &spec, i);
        assert_int_equal(streams[i]->opened.unit, PROTOCOL_UNIT_GPU);
    }
}

/* Sends `packets` and takes results, so that a hundred are on their way. */
static void exchange(uint32_t packets)
{
    for (uint32_t i = 0; i < packets; i++) {
        struct test_stream *stream = streams[test_random_in(&random_numbers, 0, STREAMS - 1)];
        uint32_t bytes = (uint32_t)test_random_in(&random_numbers, 1, 88) * 16;
        if (stream->spec.padding == CORE_PADDING_PKCS7)
            bytes -= (uint32_t)test_random_in(&random_numbers, 0, 15);
        assert_true(test_stream_send(stream, bytes));
        for (waiting++; waiting > 100; waiting--)
            (void)test_streams_take(&client, streams);
    }
}

static void settle(void)
{
    for (; waiting > 0; waiting--)
        (void)test_streams_take(&client, streams);
}

static const struct server_stats *stats(void)
{
    return &server.server->ios[0]->stats;
}

static uint64_t figure(const _Atomic uint64_t *value)
{
    return server_stats_get(value);
}

/* The streams are back on the card: what is sent now goes through it. */
static void expect_home(void)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    uint64_t before;
    do {
        assert_true(core_time_now_ns() < until_ns);
        before = figure(&stats()->gpu_packets);
        exchange(STREAMS);
        settle();
    } while (figure(&stats()->gpu_packets) - before < STREAMS);
}

static void stop(void)
{
    uint64_t sent = 0;
    for (uint32_t i = 0; i < STREAMS; i++) {
        sent += streams[i]->sent;
        assert_int_equal(test_stream_close(streams[i]).packets, streams[i]->sent);
        test_stream_free(streams[i]);
    }
    assert_int_equal(figure(&stats()->packets), sent);
    assert_int_equal(figure(&stats()->met) + figure(&stats()->missed), sent);
    assert_int_equal(figure(&stats()->lost), 0);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

static void killed_gpu_process_loses_no_packet(void **state)
{
    (void)state;
    start(GPU_FAILURE_NONE, 0);
    for (int i = 0; i < KILLS; i++) {
        pid_t child = test_gpu_process(&server, 0);
        exchange(400);
        assert_int_equal(kill(child, SIGKILL), 0);
        exchange(400);
        test_gpu_await_up(&server, 0, child);
        expect_home();
    }
    settle();
    const struct server_gpu_figures *figures = server_gpu_figures(server.server->gpus[0]);
    assert_int_equal(figure(&figures->faults), KILLS);
    assert_int_equal(figure(&figures->restarts), KILLS);
    assert_true(figure(&stats()->diverted) > 0);
    assert_true(figure(&stats()->diverted_late) <= figure(&stats()->missed));
    assert_int_equal(figure(&stats()->corrupt), 0);
    stop();
}

static void await_closed(uint64_t batch)
{
    struct gpu_arenas *arenas = server_gpu_arenas(server.server->gpus[0]);
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (gpu_arenas_closed(arenas) < batch) {
        assert_true(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

/* Batches go on with nothing in them while the streams are quiet, more of them than the server has notes. A
 * fault after that is of the batches that are under way, and of none before. */
static void a_fault_after_a_pause_is_of_what_is_under_way(void **state)
{
    (void)state;
    start(GPU_FAILURE_NONE, 0);
    struct gpu_arenas *arenas = server_gpu_arenas(server.server->gpus[0]);
    const struct server_gpu_figures *figures = server_gpu_figures(server.server->gpus[0]);
    for (uint64_t round = 1; round <= 2; round++) {
        pid_t child = test_gpu_process(&server, 0);
        exchange(100);
        settle();
        await_closed(gpu_arenas_closed(arenas) + 3 * GPU_REGION_ARENAS_MAX);
        uint64_t lost = figure(&figures->lost_batches);
        assert_int_equal(kill(child, SIGSTOP), 0); /* it hangs, then, and is killed */
        for (uint32_t i = 0; i < STREAMS; i++, waiting++)
            assert_true(test_stream_send(streams[i], 16));
        settle();
        test_gpu_await_up(&server, 0, child);
        assert_int_equal(figure(&figures->faults), round);
        assert_in_range(figure(&figures->lost_batches) - lost, 1, gpu_arenas_region(arenas)->shape.arenas);
        expect_home();
    }
    stop();
}

/* An I/O thread that does not know yet that the child has died goes on putting packets into batches: they
 * must not come to the next child, which has none of their keys. */
static void no_packet_comes_to_a_child_without_its_key(void **state)
{
    (void)state;
    start(GPU_FAILURE_NONE, 0);
    exchange(100);
    settle();
    pid_t child = test_gpu_process(&server, 0);
    atomic_store(&deaf, true);
    assert_int_equal(kill(child, SIGKILL), 0);
    for (int round = 0; round < 8; round++) { /* longer than the back-off */
        for (uint32_t i = 0; i < STREAMS; i++, waiting++)
            assert_true(test_stream_send(streams[i], 16));
        core_time_sleep_until(core_time_now_ns() + 100 * CORE_NS_PER_MS);
    }
    atomic_store(&deaf, false);
    server_io_notify(server.server->ios[0]);
    settle();
    test_gpu_await_up(&server, 0, child);
    expect_home();
    assert_int_equal(figure(&stats()->corrupt), 0);
    assert_int_equal(figure(&server_gpu_figures(server.server->gpus[0])->faults), 1);
    stop();
}

/* Opens streams until one lands on this card; the others stay and keep their cards busy. */
static struct test_stream *open_on(struct test_client *connection, uint32_t card)
{
    struct core_stream_spec spec = gpu_spec;
    spec.interval_ns = 4 * CORE_NS_PER_MS;
    for (uint32_t i = 0; i < 2000; i++) {
        struct test_stream *stream = test_stream_open(connection, &spec, i);
        assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
        if (stream->opened.unit_index == card)
            return stream;
        test_stream_free(stream);
    }
    return NULL;
}

/* Two cards and two I/O threads: while one card is down, what is on the other does not notice. */
static void failure_leaves_other_gpu_running(void **state)
{
    struct test_client clients[2];
    struct test_stream *of_card[2];
    uint64_t diverted = 0;
    (void)state;

    memset(&server, 0, sizeof server);
    failure = GPU_FAILURE_NONE;
    profile = test_gpu_profile(100000);
    profile->gpus[0].count = 2;
    profile->gpus[0].sms = 1; /* soon full */
    test_gpu_server_start(&server, "audit: 2",
                          "threads: {cores: 8, io: 2, workers: 1, realtime: off, pin: false}\n", profile);
    assert_int_equal(server.server->gpu_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        test_client_connect(&clients[i], test_server_unix(&server), NULL);
        of_card[i] = open_on(&clients[i], i);
        assert_non_null(of_card[i]);
    }
    for (int kills = 0; kills < 3; kills++) {
        pid_t child = test_gpu_process(&server, 0);
        assert_int_equal(kill(child, SIGKILL), 0);
        for (uint32_t n = 0; n < 80; n++) {
            assert_true(test_stream_send(of_card[n % 2], 16));
            if (n % 8 >= 6)
                test_stream_drain(of_card[n % 2]);
        }
        test_gpu_await_up(&server, 0, child);
    }
    for (uint32_t io = 0; io < 2; io++)
        diverted += figure(&server.server->ios[io]->stats.diverted);
    assert_true(diverted > 0 && diverted <= of_card[0]->sent);
    assert_int_equal(figure(&server_gpu_figures(server.server->gpus[1])->faults), 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(test_stream_close(of_card[i]).packets, of_card[i]->sent);
        test_stream_free(of_card[i]);
        test_client_close(&clients[i]);
    }
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

/* Starts servers until a card does it: at a batch that has packets, which on a slow machine may be late. */
static void start_and_fail(enum gpu_failure what)
{
    for (uint64_t batch = 60;; batch *= 2) {
        start(what, batch);
        const struct server_gpu_figures *figures = server_gpu_figures(server.server->gpus[0]);
        struct gpu_arenas *arenas = server_gpu_arenas(server.server->gpus[0]);
        while (figure(&figures->faults) == 0 && gpu_arenas_closed(arenas) < batch + 100)
            exchange(100);
        if (figure(&figures->faults) > 0)
            return;
        settle();
        stop();
    }
}

static void every_gpu_fault_recovered(void **state)
{
    static const enum gpu_failure failures[] = {GPU_FAILURE_ERROR,  GPU_FAILURE_HANG, GPU_FAILURE_FREEZE,
                                                GPU_FAILURE_DIE,    GPU_FAILURE_EXIT, GPU_FAILURE_CORRUPT,
                                                GPU_FAILURE_GARBAGE};
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        start_and_fail(failures[i]);
        expect_home();
        assert_int_equal(figure(&server_gpu_figures(server.server->gpus[0])->faults), 1);
        if (failures[i] == GPU_FAILURE_CORRUPT)
            assert_int_equal(figure(&stats()->corrupt), 1);
        stop();
    }
}

/* A card whose batches do not end changes no period: the new stream who needs a shorter one is told so in
 * time, and leaves nothing behind. */
static void open_refused_if_period_not_in_force(void **state)
{
    static const uint8_t key[16] = {9};
    struct core_stream_spec urgent = gpu_spec;
    struct protocol_open open = test_open_inline(&urgent, key);
    struct protocol_refused refused;
    struct protocol_opened opened;
    (void)state;

    open.spec.latency_ns = 29 * CORE_NS_PER_MS;
    start(GPU_FAILURE_NONE, 0);
    exchange(100);
    settle();
    pid_t child = test_gpu_process(&server, 0);
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_true(test_stream_send(streams[0], 1408));
    assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, &refused));
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(refused.code, PROTOCOL_REFUSED_CAPACITY);
    if (strstr(refused.text, "period that the stream needs") == NULL)
        fail_msg("%s", refused.text);
    test_stream_drain(streams[0]);
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, &refused));
    assert_int_equal(opened.unit, PROTOCOL_UNIT_GPU);
    assert_int_equal(opened.stream, STREAMS + 1); /* the other's number is free again */
    exchange(100);
    settle();
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_gpu_process_loses_no_packet),
        cmocka_unit_test(open_refused_if_period_not_in_force),
        cmocka_unit_test(a_fault_after_a_pause_is_of_what_is_under_way),
        cmocka_unit_test(no_packet_comes_to_a_child_without_its_key),
        cmocka_unit_test(failure_leaves_other_gpu_running),
        cmocka_unit_test(every_gpu_fault_recovered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
