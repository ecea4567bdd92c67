/* Guaranteed streams on GPUs of the running server: a card dies, and their packets go to the units that hold
 * room for them, in order, right to the byte, each once; standard streams on the same card are told that
 * nothing is promised any more. When the card is back all go back to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>

#include "core/histogram.h"
#include "server/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define WORKERS     2
#define FILLERS_MAX 400
#define STREAMS_MAX (FILLERS_MAX + 200)
#define INSIDE      120 /* packets on their way at once */

/* Some of them fill a quarter of each worker, so that who comes next is for the cards. */
static const struct core_stream_spec filler = {.packet_bytes = 2048,
                                               .burst_packets = 1,
                                               .interval_ns = 3 * CORE_NS_PER_MS,
                                               .latency_ns = 60 * CORE_NS_PER_MS,
                                               .cipher = CORE_CIPHER_AES_128_CBC,
                                               .padding = CORE_PADDING_NONE};
static const struct core_stream_spec guarded = {.packet_bytes = 1408,
                                                .burst_packets = 2,
                                                .interval_ns = 20 * CORE_NS_PER_MS,
                                                .latency_ns = 20 * CORE_NS_PER_S,
                                                .cipher = CORE_CIPHER_AES_256_CBC,
                                                .padding = CORE_PADDING_NONE,
                                                .guaranteed = true};

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct test_random random_numbers;
static struct test_stream *streams[STREAMS_MAX]; /* by id - 1 */
static uint32_t count, fillers;
static uint32_t waiting; /* packets on their way */

/* What a stream's client was told beside its results. */
static struct told {
    uint32_t notices[4];         /* by kind */
    struct protocol_notice last; /* kind 0: none */
    uint32_t faults;             /* results that went the way round */
} told[STREAMS_MAX];

static void start(uint32_t cards, int64_t cost, const char *gpus)
{
    memset(&server, 0, sizeof server);
    memset(told, 0, sizeof told);
    random_numbers = (struct test_random){.state = 5};
    waiting = count = fillers = 0;
    profile = test_gpu_profile(cost);
    profile->gpus[0].count = cards;
    test_gpu_server_start(&server, gpus, "threads: {io: 1, workers: 2, realtime: off, pin: false}\n",
                          profile);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 2, NULL);
}

static struct test_stream *open_one(const struct core_stream_spec *spec)
{
    assert_true(count < STREAMS_MAX);
    struct test_stream *stream = test_stream_open(&client, spec, count);
    assert_int_equal(stream->id, count + 1);
    return streams[count++] = stream;
}

static bool on_card(const struct test_stream *stream, uint32_t card)
{
    return stream->opened.unit == PROTOCOL_UNIT_GPU && stream->opened.unit_index == card;
}

static void fill_with(const struct core_stream_spec *spec)
{
    while (open_one(spec)->opened.unit == PROTOCOL_UNIT_CPU)
        assert_true(count < FILLERS_MAX);
}

/* Ends with one that is on a card. */
static void fill_workers(void)
{
    struct core_stream_spec last = guarded;
    last.guaranteed = false;
    last.latency_ns = filler.latency_ns;
    fill_with(&filler);
    fill_with(&last); /* no room that is still left is enough for a guarded one */
    fillers = count;
    assert_int_equal(streams[count - 1]->opened.backup.bound_ns, 0); /* a standard one */
}

static bool is_guarded(const struct test_stream *stream)
{
    return stream->spec.guaranteed && stream->opened.unit == PROTOCOL_UNIT_GPU;
}

/* One frame: a RESULT, which is checked, or a NOTICE. */
static void take(void)
{
    struct test_frame frame;
    assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
    assert_in_range(frame.header.id, 1, count);
    struct told *of = &told[frame.header.id - 1];
    if (frame.header.type == PROTOCOL_NOTICE) {
        assert_int_equal(protocol_notice_read(frame.body, frame.header.body_bytes, &of->last, NULL), CORE_OK);
        of->notices[of->last.kind]++;
        return;
    }
    assert_int_equal(frame.header.type, PROTOCOL_RESULT);
    struct protocol_result result = test_stream_check(streams[frame.header.id - 1], &frame);
    of->faults += (result.flags & PROTOCOL_RESULT_FAULT) != 0;
    waiting--;
}

/* Sends packets of the streams from `first` on, at random. */
static void exchange(uint32_t first, uint32_t packets)
{
    for (uint32_t i = 0; i < packets; i++) {
        struct test_stream *stream = streams[test_random_in(&random_numbers, first, count - 1)];
        assert_true(test_stream_send(stream, (uint32_t)test_random_in(&random_numbers, 1, 88) * 16));
        for (waiting++; waiting > INSIDE;)
            take();
    }
}

static const struct server_stats *stats(void)
{
    return &server.server->ios[0]->stats;
}

static uint64_t sent(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += streams[i]->sent;
    return sum;
}

static uint64_t of_unit(uint32_t unit)
{
    return core_histogram_total(&stats()->units[unit].slack);
}

/* Results that the accounts of the units have. */
static uint64_t counted(void)
{
    uint64_t sum = server_stats_get(&stats()->reader_late);
    for (uint32_t unit = 0; unit < stats()->unit_count; unit++)
        sum += of_unit(unit);
    return sum;
}

/* Takes all that is on its way; the server counts a result once it is written. */
static void settle(void)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (waiting > 0)
        take();
    while (counted() < sent()) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

/* Packets that the workers have encrypted. */
static uint64_t of_workers(void)
{
    uint64_t sum = 0;
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        sum += of_unit(worker);
    return sum;
}

static void stop(void)
{
    settle();
    uint64_t packets = sent();
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(test_stream_close(streams[i]).packets, streams[i]->sent);
        test_stream_free(streams[i]);
    }
    assert_int_equal(server_stats_get(&stats()->packets), packets);
    assert_int_equal(server_stats_get(&stats()->met) + server_stats_get(&stats()->missed), packets);
    assert_int_equal(server_stats_get(&stats()->lost), 0);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

/* Packets of the streams from `first` on all go through cards again. */
static void expect_home(uint32_t first)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    uint64_t before, packets = 0;
    do {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        settle();
        before = server_stats_get(&stats()->gpu_packets);
        for (uint32_t i = first; i < count; i++, waiting++)
            assert_true(test_stream_send(streams[i], 16));
        settle();
        packets = server_stats_get(&stats()->gpu_packets) - before;
    } while (packets < count - first);
}

/* ---- a backup on a worker ---- */

static void the_answer_tells_what_the_class_costs(void **state)
{
    static const uint8_t key[32] = {3};
    struct protocol_open open = test_open_inline(&guarded, key);
    struct protocol_refused refused;
    struct protocol_opened asked;
    (void)state;

    start(2, 60, "hang_ms: 3000");
    fill_workers();
    assert_true(test_client_ask(&client, PROTOCOL_QUERY, &open, &asked, &refused));
    const struct protocol_opened *opened = &open_one(&guarded)->opened;
    assert_int_equal(opened->unit, PROTOCOL_UNIT_GPU);
    assert_int_equal(opened->backup.unit, PROTOCOL_UNIT_CPU);
    assert_in_range(opened->backup.unit_index, 0, WORKERS - 1);
    assert_true(opened->backup.reserved_ppb > 0);
    assert_true(opened->bound_ns < opened->backup.bound_ns);
    assert_true(opened->backup.bound_ns <= guarded.latency_ns);
    assert_memory_equal(&asked.backup, &opened->backup, sizeof asked.backup);
    assert_int_equal(asked.bound_ns, opened->bound_ns);
    /* a loss can not be told and answered in so little time: only a worker will do */
    open.spec.latency_ns = 3 * CORE_NS_PER_S;
    assert_true(test_client_ask(&client, PROTOCOL_QUERY, &open, &asked, &refused));
    assert_int_equal(asked.unit, PROTOCOL_UNIT_CPU);
    assert_int_equal(asked.backup.unit, PROTOCOL_UNIT_NONE);
    assert_true(asked.backup.bound_ns > 0 && asked.backup.bound_ns <= open.spec.latency_ns);
    stop();
}

/* There and back so many times, and nothing else. */
static void expect_told(uint32_t i, uint32_t losses)
{
    const struct protocol_notice *last = &told[i].last;

    assert_int_equal(told[i].notices[PROTOCOL_NOTICE_DEGRADED], 0);
    assert_int_equal(told[i].notices[PROTOCOL_NOTICE_RESTORED], 0);
    assert_int_equal(told[i].notices[PROTOCOL_NOTICE_MOVED], 2 * losses);
    assert_true(losses > 0 || told[i].faults == 0);
    told[i].faults = 0;
    if (losses == 0)
        return;
    assert_int_equal(last->unit, streams[i]->opened.unit);
    assert_int_equal(last->unit_index, streams[i]->opened.unit_index);
    assert_int_equal(last->bound_ns, streams[i]->opened.bound_ns);
}

static void packets_go_to_the_backup_and_back(void **state)
{
    uint32_t victims = 0;
    (void)state;
    start(2, 60, "hang_ms: 3000, audit: 1");
    fill_workers();
    while (count < fillers + 8) {
        assert_true(is_guarded(open_one(&guarded)));
        assert_int_equal(streams[count - 1]->opened.backup.unit, PROTOCOL_UNIT_CPU);
        victims += on_card(streams[count - 1], 0);
    }
    assert_true(victims > 0);
    for (int round = 1; round <= 3; round++) {
        uint32_t faults = 0;
        exchange(fillers, 100);
        uint64_t before = of_workers();
        pid_t child = test_gpu_process(&server, 0);
        assert_int_equal(kill(child, SIGKILL), 0);
        exchange(fillers, 200);
        settle();
        test_gpu_await_up(&server, 0, child);
        expect_home(fillers);
        for (uint32_t i = fillers; i < count; i++) {
            faults += told[i].faults;
            expect_told(i, on_card(streams[i], 0) ? (uint32_t)round : 0);
        }
        assert_true(faults > 0);
        assert_int_equal(of_workers() - before, faults);
        assert_int_equal(of_unit(WORKERS), 0); /* the stand-by worker */
    }
    assert_int_equal(server_stats_get(&stats()->corrupt), 0);
    stop();
}

/* ---- standard streams beside ---- */

/* All that was sent is met, or missed, as the server and its clients count it; who was on the lost card as a
 * standard stream is told, in its results and by notices. */
static void standard_ones_are_told_and_accounted_for(void **state)
{
    uint32_t standard = 0, faults = 0;
    (void)state;

    start(2, 60, "hang_ms: 3000, audit: 1");
    fill_workers();
    uint32_t first = fillers - 1; /* a standard one, on card 0 */
    assert_true(on_card(streams[first], 0));
    while (count < fillers + 6)
        assert_true(is_guarded(open_one(&guarded)));
    for (int round = 0; round < 2; round++) {
        pid_t child = test_gpu_process(&server, 0);
        exchange(first, 60);
        for (int i = 0; i < 3; i++, waiting++)
            assert_true(test_stream_send(streams[first], 1408));
        assert_int_equal(kill(child, SIGKILL), 0);
        exchange(first, 100);
        settle();
        test_gpu_await_up(&server, 0, child);
        expect_home(first);
    }
    for (uint32_t i = first; i < count; i++) {
        faults += told[i].faults;
        standard += is_guarded(streams[i]) ? 0 : told[i].notices[PROTOCOL_NOTICE_DEGRADED];
        if (is_guarded(streams[i]))
            expect_told(i, on_card(streams[i], 0) ? 2 : 0);
    }
    assert_int_equal(standard, 2);
    assert_int_equal(server_stats_get(&stats()->diverted), faults);
    assert_true(server_stats_get(&stats()->diverted_late) <= server_stats_get(&stats()->missed));
    uint64_t packets = 0;
    for (uint32_t i = fillers; i < count; i++)
        packets += streams[i]->sent;
    assert_int_equal(server_stats_get(&stats()->guaranteed), packets);
    assert_true(server_stats_get(&stats()->guaranteed_missed) <= server_stats_get(&stats()->missed));
    stop();
}

/* ---- other contracts ---- */

/* Asks for another contract of the stream; results and notices may come before the answer. */
static enum protocol_refusal modify(struct test_stream *stream, uint32_t burst, core_ns interval_ns,
                                    core_ns latency_ns, struct protocol_modified *modified)
{
    const struct protocol_modify ask = {stream->id, burst, interval_ns, latency_ns};
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_refused refused;
    struct test_frame frame;

    settle();
    assert_true(test_client_send(&client, bytes, protocol_modify_write(bytes, 1000000, &ask)));
    do
        assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
    while (frame.header.type == PROTOCOL_NOTICE);
    assert_int_equal(frame.header.id, 1000000);
    if (frame.header.type == PROTOCOL_MODIFIED) {
        assert_int_equal(protocol_modified_read(frame.body, frame.header.body_bytes, modified, NULL),
                         CORE_OK);
        return 0;
    }
    assert_int_equal(protocol_refused_read(2, frame.body, frame.header.body_bytes, &refused, NULL), CORE_OK);
    print_message("%s\n", refused.text);
    return refused.code;
}

/* Changed streams are backed for what they have then, and their packets go there and back as before. */
static void a_changed_stream_keeps_its_backup(void **state)
{
    struct protocol_modified modified;
    (void)state;

    start(2, 60, "hang_ms: 3000, audit: 1");
    fill_workers();
    while (count < fillers + 4)
        assert_true(is_guarded(open_one(&guarded)));
    for (uint32_t round = 1; round <= 2; round++) {
        for (uint32_t i = fillers; i < count; i++) {
            const struct protocol_opened *opened = &streams[i]->opened;
            exchange(fillers, 10);
            assert_int_equal(modify(streams[i], round == 1 ? 3 : 1, round == 1 ? 10000000 : 40000000,
                                    guarded.latency_ns - CORE_NS_PER_S, &modified),
                             0);
            assert_int_equal(modified.unit, PROTOCOL_UNIT_GPU);
            assert_int_equal(modified.unit_index, opened->unit_index);
            assert_int_equal(modified.backup.unit, PROTOCOL_UNIT_CPU);
            assert_int_equal(modified.backup.unit_index, opened->backup.unit_index);
            assert_true(modified.backup.bound_ns <= guarded.latency_ns - CORE_NS_PER_S);
            assert_true(round == 2 || modified.backup.reserved_ppb > opened->backup.reserved_ppb);
        }
        pid_t child = test_gpu_process(&server, 0);
        exchange(fillers, 40);
        assert_int_equal(kill(child, SIGKILL), 0);
        exchange(fillers, 80);
        settle();
        test_gpu_await_up(&server, 0, child);
        expect_home(fillers);
        assert_int_equal(of_unit(WORKERS), 0); /* the stand-by worker */
    }
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_tells_what_the_class_costs),
        cmocka_unit_test(packets_go_to_the_backup_and_back),
        cmocka_unit_test(standard_ones_are_told_and_accounted_for),
        cmocka_unit_test(a_changed_stream_keeps_its_backup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
