/* Streams that always have packets inside their unit, and go to another one all the same: packets are held.
 * Between two workers, whose engine encrypts as many packets as the test lets it, and an emulated card, which
 * can be stopped and killed, and is not taken for lost by mistake. The linker puts both in the place of the
 * real ones (--wrap in CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "cpu/engine.h"
#include "gpu/engine.h"
#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/http.h"
#include "tests/support/require.h"
#include "tests/support/shift.h"
#include "tests/support/stream.h"

#define MS     CORE_NS_PER_MS
#define CARD   2 /* the unit, behind two workers */
#define INSIDE 4 /* packets that are in the old unit, */
#define BEHIND 5 /* and that wait behind them */

const struct cpu_engine_ops *__wrap_cpu_engine_find(const char *name, struct core_error *error);

/* OpenSSL's, which encrypts no more pieces than it is allowed. */
static struct cpu_engine_ops gated_engine;
static atomic_int allowed;

static core_status encrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                           uint32_t count)
{
    while (atomic_load(&allowed) < (int)count)
        core_time_sleep_until(core_time_now_ns() + MS / 4);
    atomic_fetch_sub(&allowed, (int)count);
    return cpu_engine_openssl.encrypt(engine, cipher, pieces, count);
}

bool __wrap_cpu_worker_serve(struct cpu_worker *worker, uint32_t producer);

/* Packets are to be inside workers, not an I/O thread at the gate. */
bool __wrap_cpu_worker_serve(struct cpu_worker *worker, uint32_t producer)
{
    (void)worker;
    (void)producer;
    return false;
}

const struct cpu_engine_ops *__wrap_cpu_engine_find(const char *name, struct core_error *error)
{
    (void)name;
    (void)error;
    gated_engine = cpu_engine_openssl;
    gated_engine.encrypt = encrypt;
    return &gated_engine;
}

core_status __real_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);
core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);

/* What a card does not do for seconds because others keep the cores, or as it is stopped, is no loss. */
core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error)
{
    struct gpu_engine_options patient = *options;
    patient.hang_least_ns = patient.silence_ns = 60 * CORE_NS_PER_S;
    return __real_gpu_engine_open(engine, &patient, error);
}

static void allow(int pieces)
{
    atomic_store(&allowed, pieces);
}

#define EVERYTHING (1 << 30)

/* All of INSIDE and BEHIND at once; with `latency_ns` that is set before. */
static struct core_stream_spec spec = {.packet_bytes = 1408,
                                       .burst_packets = INSIDE + BEHIND,
                                       .interval_ns = 4 * MS,
                                       .cipher = CORE_CIPHER_AES_128_CBC,
                                       .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct test_stream *stream;
static uint32_t at; /* unit of the stream */

/* ---- the server ---- */

static void start(core_ns latency_ns)
{
    spec.latency_ns = latency_ns;
    allow(EVERYTHING);
    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(8);
    test_gpu_server_start(&server, "audit: 0",
                          "engine: openssl\nadmin: 'unix:admin'\n"
                          "threads: {cores: 8, io: 1, workers: 2, realtime: off, pin: false}\n",
                          profile);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 2, NULL);
    stream = test_stream_open(&client, &spec, 1);
    at = stream->opened.unit == PROTOCOL_UNIT_GPU ? CARD : stream->opened.unit_index;
}

/* A worker that is to do a burst within what the other leaves of this has more to do in short windows. */
static int set_up(void **state)
{
    (void)state;
    start(70 * MS);
    return 0;
}

/* The card has time enough in what a worker leaves. */
static int set_up_for_card(void **state)
{
    (void)state;
    start(140 * MS);
    return 0;
}

static void await(bool (*is_so)(void))
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    while (!is_so()) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + MS);
    }
}

static const struct server_planner_load *load(uint32_t worker)
{
    return server_planner_worker_load(server.server->planner, worker);
}

static bool is_empty(void)
{
    return atomic_load(&load(0)->streams) + atomic_load(&load(1)->streams) +
               atomic_load(&server_gpu_figures(server.server->gpus[0])->streams) ==
           0;
}

static int tear_down(void **state)
{
    (void)state;
    allow(EVERYTHING);
    if (stream != NULL)
        test_stream_free(stream);
    test_client_close(&client);
    await(is_empty); /* nobody keeps any room */
    uint64_t lost = test_server_stop(&server);
    config_profile_free(profile);
    return lost == 0 ? 0 : -1;
}

static const struct server_planner_figures *planner_figures(void)
{
    return server_planner_figures(server.server->planner);
}

static core_ns held_max_ns(void)
{
    return atomic_load(&planner_figures()->held_max_ns);
}

/* ---- packets ---- */

static void put(uint32_t packets)
{
    for (uint32_t i = 0; i < packets; i++)
        assert_true(test_stream_send(stream, spec.packet_bytes));
}

/* The next frame that is neither a NOTICE nor a RESULT, which is checked. */
static void next_answer(struct test_frame *frame)
{
    for (;;) {
        assert_int_equal(test_client_next(&client, frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame->header.type == PROTOCOL_RESULT)
            (void)test_stream_check(stream, frame);
        else if (frame->header.type != PROTOCOL_NOTICE)
            return;
    }
}

static void take_all(void)
{
    struct test_frame frame;
    while (stream->received != stream->sent) {
        assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type == PROTOCOL_RESULT)
            (void)test_stream_check(stream, &frame);
    }
}

/* The server has read all that was sent. */
static void await_read(void)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;
    assert_true(test_client_send(&client, bytes, protocol_ping_write(bytes, PROTOCOL_PING, 7, NULL, 0)));
    next_answer(&frame);
    assert_int_equal(frame.header.type, PROTOCOL_PONG);
}

static void close_stream(void)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    assert_true(test_client_send(&client, bytes, protocol_close_write(bytes, stream->id)));
}

static void expect_closed(void)
{
    struct protocol_closed closed;
    struct test_frame frame;
    next_answer(&frame);
    assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
    assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL), CORE_OK);
    assert_int_equal(closed.packets, stream->sent);
    test_stream_free(stream);
    stream = NULL;
}

/* True: MODIFIED; false: refused because the stream is busy. */
static bool modify(const struct core_stream_spec *to)
{
    const struct protocol_modify body = {stream->id, to->burst_packets, to->interval_ns, to->latency_ns};
    struct protocol_refused refused;
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;
    assert_true(test_client_send(&client, bytes, protocol_modify_write(bytes, 5, &body)));
    next_answer(&frame);
    if (frame.header.type == PROTOCOL_MODIFIED)
        return true;
    assert_int_equal(frame.header.type, PROTOCOL_REFUSED);
    assert_int_equal(protocol_refused_read(2, frame.body, frame.header.body_bytes, &refused, NULL), CORE_OK);
    assert_int_equal(refused.code, PROTOCOL_REFUSED_BUSY);
    return false;
}

/* ---- moves ---- */

/* By the server's own account: the stream's unit; *held: packets of it wait for another one to be left. */
static uint32_t look_at_stream(bool *held)
{
    json_t *root = http_json(server_admin_address(server.server), "/status?streams=1");
    const json_t *row = json_array_get(json_object_get(root, "streams"), 0);
    assert_non_null(row);
    const char *unit = json_string_value(json_object_get(row, "unit"));
    uint32_t number = strcmp(unit, "gpu-0") == 0 ? CARD : strcmp(unit, "cpu-0") == 0 ? 0 : 1;
    *held = strcmp(json_string_value(json_object_get(row, "state")), "held") == 0;
    json_decref(root);
    return number;
}

static struct test_shift asked;

static bool is_over(void)
{
    return test_shift_is_over(&asked);
}

static void ask_for(uint32_t to)
{
    test_shift_begin(&asked, server.server->planner, at, to, 1, 2 * CORE_NS_PER_S);
}

static void expect_moved(uint32_t to)
{
    await(is_over);
    assert_int_equal(asked.moved, 1);
    at = to;
}

/* Without packets: as soon as it is not on its way, has caught up, and the unit takes it. */
static void move(uint32_t to)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    bool held;
    while ((at = look_at_stream(&held)) != to) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        ask_for(to);
        await(is_over);
    }
}

static bool is_held_or_over(void)
{
    bool held;
    (void)look_at_stream(&held);
    return held || is_over();
}

/* A worker has INSIDE packets and BEHIND of them wait, held for unit `to`. */
static void hold_for(uint32_t to)
{
    bool held;
    allow(0);
    put(INSIDE);
    await_read();
    do { /* until it has caught up from before */
        ask_for(to);
        await(is_held_or_over);
        (void)look_at_stream(&held);
    } while (!held);
    put(BEHIND);
    await_read();
}

/* The worker returns what it has, and the stream is on the new unit. A worker has done nothing yet. */
static void let_go_to(uint32_t to)
{
    allow(INSIDE);
    expect_moved(to);
}

/* ---- tests ---- */

static int64_t rooms[2];

static void note_rooms(void)
{
    for (uint32_t worker = 0; worker < 2; worker++)
        rooms[worker] = atomic_load(&load(worker)->headroom_ppb);
}

static bool rooms_are_as_noted(void)
{
    return atomic_load(&load(0)->headroom_ppb) == rooms[0] && atomic_load(&load(1)->headroom_ppb) == rooms[1];
}

static void packets_are_held_between_workers(void **state)
{
    (void)state;
    move(1);
    int64_t room = atomic_load(&load(1)->headroom_ppb);
    move(0); /* its old room is free again, as it has sent nothing */
    note_rooms();
    assert_int_equal(rooms[0], room); /* the workers are alike */
    assert_int_equal(held_max_ns(), 0);
    for (int round = 0; round < 3; round++) {
        uint32_t to = 1 - at;
        hold_for(to);
        assert_false(modify(&spec)); /* on its way */
        let_go_to(to);
        assert_true(held_max_ns() > 0);
        assert_true(atomic_load(&load(to)->headroom_ppb) < room); /* asked for more than the contract */
        assert_false(modify(&spec));                              /* and not served as that says yet */
        allow(EVERYTHING);
        take_all();
        move(1 - to); /* it has caught up */
        move(to);
        put(3);
        take_all();
    }
    move(0);
    await(rooms_are_as_noted);
    while (!modify(&spec))
        core_time_sleep_until(core_time_now_ns() + MS);
    close_stream();
    expect_closed();
}

static void catch_up(void)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    allow(EVERYTHING);
    take_all();
    put(3);
    take_all();
    while (!modify(&spec)) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + MS);
    }
}

/* The card has packets all the time, as far as this machine lets the test send them in time. */
static void flow_to(uint32_t to)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    do {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        ask_for(to);
        while (!is_over()) {
            put(1);
            await_read();
            core_time_sleep_until(core_time_now_ns() + spec.interval_ns);
        }
    } while (asked.moved == 0);
    at = to;
}

static void packets_are_held_for_a_card_and_by_it(void **state)
{
    (void)state;
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    move(0);
    note_rooms();
    hold_for(CARD);
    let_go_to(CARD);
    assert_true(held_max_ns() > 0);
    catch_up();
    flow_to(0);
    catch_up();
    await(rooms_are_as_noted);
    uint64_t moved = server_stats_get(&planner_figures()->moved);
    for (int round = 0; round < 3; round++) { /* one of both is held, most often both */
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        flow_to(CARD);
        flow_to(0);
        catch_up();
        await(rooms_are_as_noted);
    }
    assert_int_equal(server_stats_get(&planner_figures()->moved) - moved, 6);
    close_stream();
    expect_closed();
}

/* Until a packet was held up by the card; another server, so that nothing was before. */
static void packets_held_for_busy_gpu(void **state)
{
    (void)state;
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    do {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        move(CARD);
        flow_to(1);
        catch_up();
    } while (held_max_ns() == 0);
    close_stream();
    expect_closed();
}

static void open_again(void)
{
    stream = test_stream_open(&client, &spec, 2);
    at = stream->opened.unit == PROTOCOL_UNIT_GPU ? CARD : stream->opened.unit_index;
}

static void stream_closed_while_packets_held(void **state)
{
    (void)state;
    for (uint32_t to = 1; to <= CARD; to++) {
        move(0);
        hold_for(to);
        close_stream();
        await_read();
        allow(EVERYTHING);
        expect_moved(to);
        expect_closed();
        await(is_empty);
        open_again();
    }
}

static void connection_closed_while_packets_held(void **state)
{
    (void)state;
    for (uint32_t to = 1; to <= CARD; to++) {
        move(0);
        hold_for(to);
        test_stream_free(stream);
        test_client_close(&client);
        allow(EVERYTHING);
        await(is_over);
        await(is_empty);
        test_client_dial(&client, test_server_unix(&server));
        test_client_hello_version(&client, 2, NULL);
        open_again();
    }
}

/* What was inside goes to the fallback worker. */
static void source_gpu_fails_while_packets_held(void **state)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    bool held;
    (void)state;
    do {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        move(CARD);
        pid_t child = test_gpu_process(&server, 0);
        assert_int_equal(kill(child, SIGSTOP), 0);
        allow(0);
        put(INSIDE);
        await_read();
        ask_for(0);
        await(is_held_or_over);
        (void)look_at_stream(&held);
        put(BEHIND);
        assert_int_equal(kill(child, SIGKILL), 0);
        test_gpu_await_up(&server, 0, child);
        allow(EVERYTHING);
        take_all();
        await(is_over);
        assert_int_equal(asked.moved, held || asked.moved == 1);
        put(3);
        take_all();
    } while (!held);
    close_stream();
    expect_closed();
}

static void target_gpu_fails_while_packets_held(void **state)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * MS;
    (void)state;
    move(0);
    for (int round = 0; round < 2; round++) {
        pid_t child = test_gpu_process(&server, 0);
        hold_for(CARD);
        assert_int_equal(kill(child, SIGKILL), 0);
        while (test_gpu_process(&server, 0) == child)
            core_time_sleep_until(core_time_now_ns() + MS);
        let_go_to(CARD);
        allow(EVERYTHING);
        take_all();
        test_gpu_await_up(&server, 0, child);
        put(3);
        take_all();
        at = CARD; /* it may have taken refuge, and come back */
        do {
            TEST_REQUIRE(core_time_now_ns() < until_ns);
            ask_for(0);
            await(is_over);
        } while (asked.moved == 0);
        at = 0;
        put(3);
        take_all();
    }
    close_stream();
    expect_closed();
}

static void server_stops_while_packets_held(void **state)
{
    (void)state;
    move(0);
    hold_for(1);
    allow(INSIDE); /* now, or while it stops */
}

/* All is delivered. */
static int tear_down_at_once(void **state)
{
    (void)state;
    allow(EVERYTHING);
    uint64_t lost = test_server_stop(&server);
    take_all();
    test_stream_free(stream);
    test_client_close(&client);
    config_profile_free(profile);
    return lost == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(packets_are_held_between_workers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(packets_are_held_for_a_card_and_by_it, set_up_for_card, tear_down),
        cmocka_unit_test_setup_teardown(packets_held_for_busy_gpu, set_up_for_card, tear_down),
        cmocka_unit_test_setup_teardown(stream_closed_while_packets_held, set_up_for_card, tear_down),
        cmocka_unit_test_setup_teardown(connection_closed_while_packets_held, set_up_for_card, tear_down),
        cmocka_unit_test_setup_teardown(source_gpu_fails_while_packets_held, set_up_for_card, tear_down),
        cmocka_unit_test_setup_teardown(target_gpu_fails_while_packets_held, set_up_for_card, tear_down),
        cmocka_unit_test_setup_teardown(server_stops_while_packets_held, set_up, tear_down_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
