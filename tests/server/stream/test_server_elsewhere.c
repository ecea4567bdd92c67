/* MODIFY where the stream's own unit refuses and another one takes it: between two workers and an emulated
 * card. Whatever the answer, every byte is right, in order, and all room is free again afterwards. */
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
#include "tests/support/stream.h"

#define MS          CORE_NS_PER_MS
#define STREAMS_MAX 200
#define NONE        UINT32_MAX

/* Either kind of unit can do it. */
static const struct core_stream_spec patient = {.packet_bytes = 1408,
                                                .burst_packets = 8,
                                                .interval_ns = 10 * MS,
                                                .latency_ns = 100 * MS,
                                                .cipher = CORE_CIPHER_AES_128_CBC,
                                                .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct test_stream *streams[STREAMS_MAX + 1]; /* by id - 1 */
static uint32_t count;
static struct test_random random_numbers;
static uint32_t waiting; /* packets on their way */

/* The answer to MODIFY of stream `id`, whose id is the request's, too. */
static struct {
    bool over, granted;
    struct protocol_modified modified;
    struct protocol_refused refused;
} answers[STREAMS_MAX + 1];

static int set_up(void **state)
{
    (void)state;
    memset(&server, 0, sizeof server);
    random_numbers = (struct test_random){.state = 11};
    count = waiting = 0;
    profile = test_gpu_profile(500);
    test_gpu_server_start(&server, "audit: 1",
                          "threads: {cores: 8, io: 1, workers: 2, realtime: off, pin: false}\n"
                          "timeouts: {move_ms: 0}\n",
                          profile);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 2, NULL);
    return 0;
}

static uint64_t streams_in_all(void)
{
    const struct server *of = server.server;
    uint64_t sum = atomic_load(&server_gpu_figures(of->gpus[0])->streams);
    for (uint32_t worker = 0; worker < of->worker_count; worker++)
        sum += atomic_load(&server_planner_worker_load(of->planner, worker)->streams);
    return sum;
}

/* Nobody keeps any room. */
static void await_empty(void)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    while (streams_in_all() > 0 ||
           atomic_load(&server_planner_io_load(server.server->planner, 0)->utilisation_ppb) > 0) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + MS);
    }
}

static int tear_down(void **state)
{
    (void)state;
    test_client_close(&client);
    await_empty();
    uint64_t lost = test_server_stop(&server);
    config_profile_free(profile);
    return lost == 0 ? 0 : -1;
}

/* ---- frames ---- */

/* A stream's last answer, by the frame of the server. */
static void take_answer(const struct test_frame *frame)
{
    uint32_t id = frame->header.id;
    assert_true(id <= STREAMS_MAX && !answers[id].over);
    answers[id].over = true;
    answers[id].granted = frame->header.type == PROTOCOL_MODIFIED;
    if (answers[id].granted) {
        assert_int_equal(
            protocol_modified_read(frame->body, frame->header.body_bytes, &answers[id].modified, NULL),
            CORE_OK);
        assert_int_equal(answers[id].modified.stream, id);
        assert_true(answers[id].modified.in_force_ns >= answers[id].modified.decided_ns);
    } else {
        assert_int_equal(frame->header.type, PROTOCOL_REFUSED);
        assert_int_equal(
            protocol_refused_read(2, frame->body, frame->header.body_bytes, &answers[id].refused, NULL),
            CORE_OK);
    }
}

static void take_frame(void)
{
    struct test_frame frame;
    assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
    if (frame.header.type == PROTOCOL_RESULT) {
        assert_non_null(streams[frame.header.id - 1]);
        test_stream_check(streams[frame.header.id - 1], &frame);
        waiting--;
    } else if (frame.header.type != PROTOCOL_NOTICE)
        take_answer(&frame);
}

static void send_packet(struct test_stream *stream)
{
    assert_true(test_stream_send(stream, 16 * (uint32_t)test_random_in(&random_numbers, 1, 88)));
    waiting++;
}

static void settle(void)
{
    while (waiting > 0)
        take_frame();
}

static struct test_stream *open_stream(const struct core_stream_spec *spec)
{
    assert_true(count < STREAMS_MAX);
    struct test_stream *stream = test_stream_open(&client, spec, count + 1);
    assert_int_equal(stream->id, count + 1);
    return streams[count++] = stream;
}

static void close_streams(void)
{
    settle();
    for (uint32_t i = 0; i < count; i++) {
        if (streams[i] == NULL)
            continue;
        struct test_frame frame;
        uint8_t bytes[TEST_FRAME_BYTES];
        assert_true(test_client_send(&client, bytes, protocol_close_write(bytes, streams[i]->id)));
        do
            assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        while (frame.header.type == PROTOCOL_NOTICE);
        assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
        test_stream_free(streams[i]);
        streams[i] = NULL;
    }
}

/* MODIFY, without awaiting the answer. */
static void ask(const struct test_stream *stream, const struct core_stream_spec *spec)
{
    const struct protocol_modify modify = {stream->id, spec->burst_packets, spec->interval_ns,
                                           spec->latency_ns};
    uint8_t frame[TEST_FRAME_BYTES];
    answers[stream->id].over = false;
    assert_true(test_client_send(&client, frame, protocol_modify_write(frame, stream->id, &modify)));
}

static bool await(const struct test_stream *stream)
{
    while (!answers[stream->id].over)
        take_frame();
    return answers[stream->id].granted;
}

/* There is a moment for it in the end, however slow the machine: a refusal for want of one is asked again. */
static void await_granted(const struct test_stream *stream, const struct core_stream_spec *spec)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    while (!await(stream)) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        ask(stream, spec);
    }
}

static struct core_stream_spec like(uint32_t burst, core_ns interval_ns, core_ns latency_ns)
{
    struct core_stream_spec spec = patient;
    spec.burst_packets = burst;
    spec.interval_ns = interval_ns;
    spec.latency_ns = latency_ns;
    return spec;
}

/* Too fast for the workers here, whose bursts take too long. */
static struct core_stream_spec for_cards(core_ns latency_ns)
{
    return like(12, 4 * MS, latency_ns);
}

/* Too urgent for the card beside bursts like those. */
static struct core_stream_spec for_workers(void)
{
    return like(2, 20 * MS, 24 * MS);
}

static struct test_stream *open_on_card(const struct core_stream_spec *spec)
{
    struct test_stream *stream = open_stream(spec);
    assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
    return stream;
}

/* ---- tests ---- */

/* No worker is as fast; the card is. */
static void modify_to_higher_rate_migrates_to_gpu(void **state)
{
    const struct core_stream_spec slow = like(8, 40 * MS, 100 * MS), grown = for_cards(100 * MS);
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(open_stream(&slow)->opened.unit, PROTOCOL_UNIT_CPU);
    for (uint32_t i = 0; i < 3; i++) {
        for (int packet = 0; packet < 5; packet++)
            send_packet(streams[i]);
        ask(streams[i], &grown);
    }
    for (uint32_t i = 0; i < 3; i++) {
        await_granted(streams[i], &grown);
        assert_int_equal(answers[i + 1].modified.unit, PROTOCOL_UNIT_GPU);
        assert_true(answers[i + 1].modified.bound_ns <= grown.latency_ns);
        for (int packet = 0; packet < 20; packet++)
            send_packet(streams[i]);
    }
    settle();
    for (uint32_t i = 0; i < 3; i++) { /* less is never refused, and in place */
        ask(streams[i], &slow);
        await_granted(streams[i], &slow);
        assert_int_equal(answers[i + 1].modified.unit, PROTOCOL_UNIT_GPU);
        send_packet(streams[i]);
    }
    close_streams();
}

/* No batch is back as soon; a worker is. */
static void short_deadline_placed_on_worker(void **state)
{
    const struct core_stream_spec card = for_cards(100 * MS), urgent = for_workers();
    (void)state;
    for (uint32_t i = 0; i < 6;
         i++) /* half of them stay: the card has bursts when the others have left, one by one */
        open_on_card(&card);
    for (uint32_t i = 0; i < 3; i++) {
        for (int packet = 0; packet < 5; packet++)
            send_packet(streams[i]);
        ask(streams[i], &urgent);
    }
    for (uint32_t i = 0; i < 3; i++) {
        await_granted(streams[i], &urgent);
        assert_int_equal(answers[i + 1].modified.unit, PROTOCOL_UNIT_CPU);
        assert_true(answers[i + 1].modified.bound_ns <= urgent.latency_ns);
        assert_true(answers[i + 1].modified.queue_packets >= urgent.burst_packets);
        for (int packet = 0; packet < 20; packet++)
            send_packet(streams[i]);
    }
    close_streams();
}

static void modify_rejected_everywhere_keeps_contract(void **state)
{
    const struct core_stream_spec impossible = like(16, MS / 10, 20 * MS), card = for_cards(100 * MS);
    (void)state;
    assert_int_equal(open_stream(&patient)->opened.unit, PROTOCOL_UNIT_CPU);
    open_on_card(&card);
    for (uint32_t i = 0; i < 2; i++) {
        ask(streams[i], &impossible);
        assert_false(await(streams[i]));
        assert_int_equal(answers[i + 1].refused.code, PROTOCOL_REFUSED_CAPACITY);
        assert_non_null(strstr(answers[i + 1].refused.text, "which serves the stream"));
        for (int packet = 0; packet < 10; packet++)
            send_packet(streams[i]);
    }
    close_streams();
}

/* Batches of six seconds: a packet in one that has just been opened is inside for longer than a change waits.
 */
static void migration_timeout_keeps_contract(void **state)
{
    /* for one stream a worker has as little time as this, and the card has not */
    const struct core_stream_spec slow = for_cards(24 * CORE_NS_PER_S), urgent = like(2, 20 * MS, 16 * MS);
    const struct server_planner_figures *figures = server_planner_figures(server.server->planner);
    (void)state;
    struct test_stream *stream = open_on_card(&slow);
    uint64_t stayed = atomic_load(&figures->stayed);
    send_packet(stream);
    settle(); /* a batch begins now */
    send_packet(stream);
    ask(stream, &urgent);
    if (await(stream)) {
        print_message("the machine stood still for seconds: nothing was to be seen\n");
        close_streams();
        skip();
    }
    const struct protocol_refused *refused = &answers[stream->id].refused;
    assert_int_equal(refused->code, PROTOCOL_REFUSED_CAPACITY);
    assert_non_null(strstr(refused->text, "GPU 0, which serves the stream"));
    assert_true(refused->offer_latency_ns > urgent.latency_ns);
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS; /* the planner is told later */
    while (atomic_load(&figures->stayed) == stayed) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + MS);
    }
    settle();
    ask(stream, &urgent); /* nothing is inside now */
    await_granted(stream, &urgent);
    assert_int_equal(answers[stream->id].modified.unit, PROTOCOL_UNIT_CPU);
    send_packet(stream);
    close_streams();
}

/* CLOSE goes before a change that is under way. */
static void stream_closed_during_migration(void **state)
{
    const struct core_stream_spec slow = for_cards(8 * CORE_NS_PER_S), urgent = for_workers();
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;
    (void)state;
    open_on_card(&slow);
    send_packet(streams[0]);
    ask(streams[0], &urgent);
    assert_true(test_client_send(&client, bytes, protocol_close_write(bytes, streams[0]->id)));
    if (!await(streams[0])) /* it may have come first after all, if a batch was just over */
        assert_int_equal(answers[1].refused.code, PROTOCOL_REFUSED_STREAM);
    settle();
    test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    test_stream_free(streams[--count]);
}

static void connection_closed_during_migration(void **state)
{
    const struct core_stream_spec slow = for_cards(8 * CORE_NS_PER_S), urgent = for_workers();
    (void)state;
    open_on_card(&slow);
    send_packet(streams[0]);
    ask(streams[0], &urgent);
    core_ns until_ns = core_time_now_ns() + CORE_NS_PER_S; /* for its second room; all is well without, too */
    while (streams_in_all() <= count && core_time_now_ns() < until_ns)
        core_time_sleep_until(core_time_now_ns() + MS);
    test_stream_free(streams[--count]);
    waiting = 0;
}

/* Streams that go to the card when it dies, or leave it. */
static void gpu_failure_during_migration_loses_no_byte(void **state)
{
    const struct core_stream_spec card = for_cards(100 * MS), urgent = for_workers();
    (void)state;
    for (int i = 0; i < 4; i++)
        open_on_card(&card);
    for (int round = 0; round < 4; round++) {
        pid_t child = test_gpu_process(&server, 0);
        for (uint32_t i = 0; i < count; i++) {
            send_packet(streams[i]);
            ask(streams[i], round % 2 == 0 ? &urgent : &card);
        }
        assert_int_equal(kill(child, SIGKILL), 0);
        for (uint32_t i = 0; i < count; i++) {
            (void)await(streams[i]);
            for (int packet = 0; packet < 10; packet++)
                send_packet(streams[i]);
        }
        settle();
        test_gpu_await_up(&server, 0, child);
    }
    close_streams();
}

/* Contracts of either kind, at random, with packets on their way all the time. */
static void random_changes_cost_no_byte(void **state)
{
    const struct core_stream_spec card = for_cards(100 * MS);
    (void)state;
    for (int i = 0; i < 16; i++) {
        open_stream(i % 2 == 0 ? &card : &patient);
        answers[streams[i]->id].over = true;
    }
    for (int round = 0; round < 1200; round++) {
        struct test_stream *stream = streams[test_random_in(&random_numbers, 0, count - 1)];
        const struct core_stream_spec spec =
            like((uint32_t)test_random_in(&random_numbers, 1, 8), test_random_in(&random_numbers, 4, 20) * MS,
                 test_random_in(&random_numbers, 16, 120) * MS);
        for (int packet = 0; packet < 4; packet++)
            send_packet(streams[test_random_in(&random_numbers, 0, count - 1)]);
        if (answers[stream->id].over)
            ask(stream, &spec);
        while (waiting > 40)
            take_frame();
    }
    for (uint32_t i = 0; i < count; i++)
        (void)await(streams[i]);
    close_streams();
    const struct server_stats *stats = &server.server->ios[0]->stats;
    const struct server_planner_figures *figures = server_planner_figures(server.server->planner);
    print_message("%u changes, %u refused; %u went to another unit, %u found no moment for it\n",
                  (unsigned)server_stats_get(&stats->modified),
                  (unsigned)server_stats_get(&stats->modifies_refused),
                  (unsigned)atomic_load(&figures->moved), (unsigned)atomic_load(&figures->stayed));
    assert_true(atomic_load(&figures->moved) > 5);
    assert_int_equal(server_stats_get(&stats->corrupt), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(modify_to_higher_rate_migrates_to_gpu, set_up, tear_down),
        cmocka_unit_test_setup_teardown(short_deadline_placed_on_worker, set_up, tear_down),
        cmocka_unit_test_setup_teardown(modify_rejected_everywhere_keeps_contract, set_up, tear_down),
        cmocka_unit_test_setup_teardown(migration_timeout_keeps_contract, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stream_closed_during_migration, set_up, tear_down),
        cmocka_unit_test_setup_teardown(connection_closed_during_migration, set_up, tear_down),
        cmocka_unit_test_setup_teardown(gpu_failure_during_migration_loses_no_byte, set_up, tear_down),
        cmocka_unit_test_setup_teardown(random_changes_cost_no_byte, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
