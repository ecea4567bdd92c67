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

#include "tests/support/failover_rig.h"
#include "tests/support/require.h"

#define WORKERS     FAILOVER_RIG_WORKERS
#define FILLERS_MAX 400

/* Some of them fill a quarter of each worker, so that who comes next is for the cards. */
static const struct core_stream_spec filler = {.packet_bytes = 4096,
                                               .burst_packets = 1,
                                               .interval_ns = 20 * CORE_NS_PER_MS,
                                               .latency_ns = 60 * CORE_NS_PER_MS,
                                               .cipher = CORE_CIPHER_AES_128_CBC,
                                               .padding = CORE_PADDING_NONE};
static const struct core_stream_spec protected = {.packet_bytes = 1408,
                                                  .burst_packets = 2,
                                                  .interval_ns = 20 * CORE_NS_PER_MS,
                                                  .latency_ns = 20 * CORE_NS_PER_S,
                                                  .cipher = CORE_CIPHER_AES_256_CBC,
                                                  .padding = CORE_PADDING_NONE,
                                                  .guaranteed = true};

static struct failover_rig rig;
static uint32_t fillers;

static void fill_with(const struct core_stream_spec *spec)
{
    while (failover_rig_open(&rig, spec)->opened.unit == PROTOCOL_UNIT_CPU)
        assert_true(rig.count < FILLERS_MAX);
}

/* Ends with one that is on a card. */
static void fill_workers(void)
{
    struct core_stream_spec last = protected;
    last.guaranteed = false;
    last.latency_ns = filler.latency_ns;
    fill_with(&filler);
    fill_with(&last); /* no room that is still left is enough for a guarded one */
    fillers = rig.count;
    assert_int_equal(rig.stream[rig.count - 1]->opened.backup.bound_ns, 0); /* a standard one */
}

static bool is_guarded(const struct test_stream *stream)
{
    return stream->spec.guaranteed && stream->opened.unit == PROTOCOL_UNIT_GPU;
}

/* Packets that this card has encrypted; streams from `first` on that were opened there. */
static uint64_t of_card(uint32_t card)
{
    return failover_rig_of_unit(&rig, server_unit_of_gpu(rig.server.server, card));
}

static uint32_t opened_on(uint32_t card, uint32_t first)
{
    uint32_t streams = 0;
    for (uint32_t i = first; i < rig.count; i++)
        streams += failover_rig_on_card(rig.stream[i], card);
    return streams;
}

/* Packets of the streams from `first` on all go through cards again: through their own, not one where a
 * standard stream has taken refuge. */
static void expect_home(uint32_t first)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    uint32_t on[2] = {opened_on(0, first), opened_on(1, first)};
    uint64_t before[2] = {0}, cards = rig.server.server->gpu_count, away;
    if (on[0] + on[1] == 0) /* opened on workers, and moved to the only card */
        on[0] = rig.count - first;
    do {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        failover_rig_settle(&rig);
        for (uint32_t card = 0; card < cards; card++)
            before[card] = of_card(card);
        for (uint32_t i = first; i < rig.count; i++, rig.waiting++)
            assert_true(test_stream_send(rig.stream[i], 16));
        failover_rig_settle(&rig);
        away = 0;
        for (uint32_t card = 0; card < cards; card++)
            away += of_card(card) - before[card] != on[card];
    } while (away > 0);
}

/* ---- a backup on a worker ---- */

static void the_answer_tells_what_the_class_costs(void **state)
{
    static const uint8_t key[32] = {3};
    struct protocol_open open = test_open_inline(&protected, key);
    struct protocol_refused refused;
    struct protocol_opened asked;
    (void)state;

    failover_rig_start(&rig, 2, 60, "hang_ms: 3000", "");
    fill_workers();
    assert_true(test_client_ask(&rig.client, PROTOCOL_QUERY, &open, &asked, &refused));
    const struct protocol_opened *opened = &failover_rig_open(&rig, &protected)->opened;
    assert_int_equal(opened->unit, PROTOCOL_UNIT_GPU);
    assert_int_equal(opened->backup.unit, PROTOCOL_UNIT_CPU);
    assert_in_range(opened->backup.unit_index, 0, WORKERS - 1);
    assert_true(opened->backup.reserved_ppb > 0);
    assert_true(opened->bound_ns < opened->backup.bound_ns);
    assert_true(opened->backup.bound_ns <= protected.latency_ns);
    assert_memory_equal(&asked.backup, &opened->backup, sizeof asked.backup);
    assert_int_equal(asked.bound_ns, opened->bound_ns);
    /* a loss can not be told and answered in so little time: only a worker will do */
    open.spec.latency_ns = 3 * CORE_NS_PER_S;
    assert_true(test_client_ask(&rig.client, PROTOCOL_QUERY, &open, &asked, &refused));
    assert_int_equal(asked.unit, PROTOCOL_UNIT_CPU);
    assert_int_equal(asked.backup.unit, PROTOCOL_UNIT_NONE);
    assert_true(asked.backup.bound_ns > 0 && asked.backup.bound_ns <= open.spec.latency_ns);
    failover_rig_stop(&rig);
}

static void failover_and_failback_on_worker_backup(void **state)
{
    uint32_t victims = 0;
    (void)state;
    failover_rig_start(&rig, 2, 60, "hang_ms: 3000, audit: 2", "");
    fill_workers();
    while (rig.count < fillers + 8) {
        assert_true(is_guarded(failover_rig_open(&rig, &protected)));
        assert_int_equal(rig.stream[rig.count - 1]->opened.backup.unit, PROTOCOL_UNIT_CPU);
        victims += failover_rig_on_card(rig.stream[rig.count - 1], 0);
    }
    assert_true(victims > 0);
    for (int round = 1; round <= 3; round++) {
        uint32_t faults = 0;
        failover_rig_exchange(&rig, fillers, 100);
        uint64_t before = failover_rig_of_workers(&rig);
        pid_t child = test_gpu_process(&rig.server, 0);
        assert_int_equal(kill(child, SIGKILL), 0);
        failover_rig_exchange(&rig, fillers, 200);
        failover_rig_settle(&rig);
        test_gpu_await_up(&rig.server, 0, child);
        expect_home(fillers);
        for (uint32_t i = fillers; i < rig.count; i++) {
            faults += rig.told[i].faults;
            failover_rig_expect_told(&rig, i, failover_rig_on_card(rig.stream[i], 0) ? (uint32_t)round : 0);
        }
        assert_true(faults > 0);
        assert_int_equal(failover_rig_of_workers(&rig) - before, faults);
        assert_int_equal(failover_rig_of_fallback(&rig), 0);
    }
    assert_int_equal(server_stats_get(&failover_rig_stats(&rig)->corrupt), 0);
    failover_rig_stop(&rig);
}

/* With one card a worker is asked first. Who is moved to the card has a backup on a worker there, too. */
static void failover_of_the_only_gpu(void **state)
{
    const uint32_t moved = 4, card = WORKERS;  /* number of the unit */
    struct core_stream_spec light = protected; /* little memory for packets: it may go to a card later */
    (void)state;

    light.packet_bytes = 512;
    light.interval_ns = 100 * CORE_NS_PER_MS;
    light.latency_ns = 12 * CORE_NS_PER_S;

    failover_rig_start(&rig, 1, 60, "hang_ms: 3000, audit: 2", "");
    while (rig.count < moved)
        assert_int_equal(failover_rig_open(&rig, &light)->opened.unit, PROTOCOL_UNIT_CPU);
    fill_workers();
    assert_int_equal(failover_rig_open(&rig, &light)->opened.unit, PROTOCOL_UNIT_CPU);
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        assert_int_equal(failover_rig_shift(&rig, worker, card, moved / WORKERS), moved / WORKERS);
    uint32_t others = rig.count;
    rig.count = moved; /* only these send */
    for (uint32_t round = 1; round <= 2; round++) {
        uint32_t faults = 0;
        expect_home(0);
        uint64_t before = failover_rig_of_workers(&rig);
        failover_rig_exchange(&rig, 0, 20);
        pid_t child = test_gpu_process(&rig.server, 0);
        assert_int_equal(kill(child, SIGKILL), 0);
        failover_rig_exchange(&rig, 0, 60);
        failover_rig_settle(&rig);
        test_gpu_await_up(&rig.server, 0, child);
        expect_home(0);
        for (uint32_t i = 0; i < moved; i++) {
            assert_int_equal(rig.told[i].notices[PROTOCOL_NOTICE_DEGRADED], 0);
            assert_int_equal(rig.told[i].notices[PROTOCOL_NOTICE_MOVED], 1 + 2 * round);
            assert_int_equal(rig.told[i].last.unit, PROTOCOL_UNIT_GPU);
            faults += rig.told[i].faults;
            rig.told[i].faults = 0;
        }
        assert_true(faults > 0);
        assert_int_equal(failover_rig_of_workers(&rig) - before, faults);
        assert_int_equal(failover_rig_of_fallback(&rig), 0);
    }
    rig.count = others;
    failover_rig_stop(&rig);
}

/* ---- standard streams beside ---- */

/* All that was sent is met, or missed, as the server and its clients rig.count it; who was on the lost card
 * as a standard stream is told, in its results and by notices. */
static void standard_streams_notified_and_counted(void **state)
{
    uint32_t standard = 0, faults = 0;
    (void)state;

    failover_rig_start(&rig, 2, 60, "hang_ms: 3000, audit: 2", "");
    fill_workers();
    uint32_t first = fillers - 1; /* a standard one, on card 0 */
    assert_true(failover_rig_on_card(rig.stream[first], 0));
    while (rig.count < fillers + 6)
        assert_true(is_guarded(failover_rig_open(&rig, &protected)));
    for (int round = 0; round < 2; round++) {
        pid_t child = test_gpu_process(&rig.server, 0);
        failover_rig_exchange(&rig, first, 60);
        for (int i = 0; i < 3; i++, rig.waiting++)
            assert_true(test_stream_send(rig.stream[first], 1408));
        assert_int_equal(kill(child, SIGKILL), 0);
        failover_rig_exchange(&rig, first, 100);
        failover_rig_settle(&rig);
        test_gpu_await_up(&rig.server, 0, child);
        expect_home(first);
    }
    for (uint32_t i = first; i < rig.count; i++) {
        faults += rig.told[i].faults;
        standard += is_guarded(rig.stream[i]) ? 0 : rig.told[i].notices[PROTOCOL_NOTICE_DEGRADED];
        if (is_guarded(rig.stream[i]))
            failover_rig_expect_told(&rig, i, failover_rig_on_card(rig.stream[i], 0) ? 2 : 0);
    }
    assert_int_equal(standard, 2);
    assert_int_equal(server_stats_get(&failover_rig_stats(&rig)->diverted), faults);
    assert_true(server_stats_get(&failover_rig_stats(&rig)->diverted_late) <=
                server_stats_get(&failover_rig_stats(&rig)->missed));
    uint64_t packets = 0;
    for (uint32_t i = fillers; i < rig.count; i++)
        packets += rig.stream[i]->sent;
    assert_int_equal(server_stats_get(&failover_rig_stats(&rig)->guaranteed), packets);
    assert_true(server_stats_get(&failover_rig_stats(&rig)->guaranteed_missed) <=
                server_stats_get(&failover_rig_stats(&rig)->missed));
    failover_rig_stop(&rig);
}

/* ---- other contracts ---- */

/* Changed streams are backed for what they have then, and their packets go there and back as before. */
static void a_changed_stream_keeps_its_backup(void **state)
{
    struct protocol_modified modified;
    (void)state;

    failover_rig_start(&rig, 2, 60, "hang_ms: 3000, audit: 2", "");
    fill_workers();
    while (rig.count < fillers + 4)
        assert_true(is_guarded(failover_rig_open(&rig, &protected)));
    for (uint32_t round = 1; round <= 2; round++) {
        for (uint32_t i = fillers; i < rig.count; i++) {
            const struct protocol_opened *opened = &rig.stream[i]->opened;
            failover_rig_exchange(&rig, fillers, 10);
            assert_int_equal(failover_rig_modify(&rig, rig.stream[i], round == 1 ? 3 : 1,
                                                 round == 1 ? 10000000 : 40000000,
                                                 protected.latency_ns - CORE_NS_PER_S, &modified),
                             0);
            assert_int_equal(modified.unit, PROTOCOL_UNIT_GPU);
            assert_int_equal(modified.unit_index, opened->unit_index);
            assert_int_equal(modified.backup.unit, PROTOCOL_UNIT_CPU);
            assert_int_equal(modified.backup.unit_index, opened->backup.unit_index);
            assert_true(modified.backup.bound_ns <= protected.latency_ns - CORE_NS_PER_S);
            assert_true(round == 2 || modified.backup.reserved_ppb > opened->backup.reserved_ppb);
        }
        pid_t child = test_gpu_process(&rig.server, 0);
        failover_rig_exchange(&rig, fillers, 40);
        assert_int_equal(kill(child, SIGKILL), 0);
        failover_rig_exchange(&rig, fillers, 80);
        failover_rig_settle(&rig);
        test_gpu_await_up(&rig.server, 0, child);
        expect_home(fillers);
        assert_int_equal(failover_rig_of_fallback(&rig), 0);
    }
    failover_rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_tells_what_the_class_costs),
        cmocka_unit_test(failover_and_failback_on_worker_backup),
        cmocka_unit_test(failover_of_the_only_gpu),
        cmocka_unit_test(standard_streams_notified_and_counted),
        cmocka_unit_test(a_changed_stream_keeps_its_backup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
