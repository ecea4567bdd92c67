/* Guaranteed streams whose backups are on another GPU of the running server: the workers are too slow for
 * anything. One card, "home", has all the streams; the other one, "shelter", holds room for its loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>

#include "tests/support/failover_rig.h"
#include "tests/support/require.h"

#define COST    100000
#define GUARDED 8
#define CONFIG  "limits: {streams: 40}\n" /* so that there are few slots */

static const struct core_stream_spec protected = {.packet_bytes = 512,
                                                  .burst_packets = 2,
                                                  .interval_ns = 50 * CORE_NS_PER_MS,
                                                  .latency_ns = 20 * CORE_NS_PER_S,
                                                  .cipher = CORE_CIPHER_AES_256_CBC,
                                                  .padding = CORE_PADDING_NONE,
                                                  .guaranteed = true};

static struct failover_rig rig;
static struct test_client beside; /* has a standard stream on each card, for short periods, and no notices */
static struct test_stream *anchor[2];
static uint32_t home, shelter; /* numbers of the cards */

static void open_guarded(uint32_t streams)
{
    for (uint32_t i = 0; i < streams; i++) {
        const struct protocol_opened *opened = &failover_rig_open(&rig, &protected)->opened;
        assert_int_equal(opened->unit, PROTOCOL_UNIT_GPU);
        assert_int_equal(opened->unit_index, home);
        assert_int_equal(opened->backup.unit, PROTOCOL_UNIT_GPU);
        assert_int_equal(opened->backup.unit_index, shelter);
        assert_true(opened->backup.reserved_ppb > 0);
        assert_true(opened->bound_ns < opened->backup.bound_ns);
        assert_true(opened->backup.bound_ns <= protected.latency_ns);
    }
}

/* The first stream's period is longer than the second one's latency bound, so that each has a card; and its
 * burst is too large for the other one, so that it takes no refuge there. Guarded ones go to the card with
 * the longer period. */
static void start(void)
{
    struct core_stream_spec standard = protected;

    failover_rig_start(&rig, 2, COST, "hang_ms: 3000, audit: 2", CONFIG);
    test_client_dial(&beside, test_server_unix(&rig.server));
    test_client_hello_version(&beside, 1, NULL);
    standard.guaranteed = false;
    for (int i = 0; i < 2; i++) {
        standard.latency_ns = (i == 0 ? 600 : 120) * CORE_NS_PER_MS;
        standard.burst_packets = i == 0 ? 300 : 2;
        anchor[i] = test_stream_open(&beside, &standard, (uint64_t)i);
        assert_int_equal(anchor[i]->opened.unit, PROTOCOL_UNIT_GPU);
    }
    home = anchor[0]->opened.unit_index;
    shelter = anchor[1]->opened.unit_index;
    assert_int_equal(home + shelter, 1);
    open_guarded(GUARDED);
}

static void stop(void)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(test_stream_close(anchor[i]).packets, 0);
        test_stream_free(anchor[i]);
    }
    test_client_close(&beside);
    failover_rig_stop(&rig);
}

static uint64_t of_card(uint32_t card)
{
    return failover_rig_of_unit(&rig, server_unit_of_gpu(rig.server.server, card));
}

static const struct server_gpu_figures *figures_of(uint32_t card)
{
    return server_gpu_figures(rig.server.server->gpus[card]);
}

static void await(const _Atomic uint64_t *figure, uint64_t value)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (atomic_load(figure) != value) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

/* Every guarded stream has a packet encrypted by this card. */
static void expect_at(uint32_t card)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    uint64_t before, packets = 0;
    do {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        failover_rig_settle(&rig);
        before = of_card(card);
        for (uint32_t i = 0; i < rig.count; i++, rig.waiting++)
            assert_true(test_stream_send(rig.stream[i], 16));
        failover_rig_settle(&rig);
        packets = of_card(card) - before;
    } while (packets < rig.count);
}

static pid_t kill_card(uint32_t card)
{
    pid_t child = test_gpu_process(&rig.server, card);
    assert_true(child > 0 && kill(child, SIGKILL) == 0);
    return child;
}

/* ---- one loss ---- */

static void the_answer_and_the_figures(void **state)
{
    static const uint8_t key[32] = {3};
    struct protocol_open open = test_open_inline(&protected, key);
    struct protocol_refused refused;
    struct protocol_opened asked;
    (void)state;

    start();
    const struct protocol_opened *opened = &rig.stream[rig.count - 1]->opened;
    assert_true(test_client_ask(&rig.client, PROTOCOL_QUERY, &open, &asked, &refused));
    assert_int_equal(asked.unit_index, home);
    assert_int_equal(asked.backup.unit, PROTOCOL_UNIT_GPU);
    assert_int_equal(asked.backup.unit_index, shelter);
    assert_int_equal(asked.bound_ns, opened->bound_ns);
    assert_int_equal(asked.backup.bound_ns, opened->backup.bound_ns);
    await(&figures_of(home)->streams, GUARDED + 1);
    await(&figures_of(home)->guaranteed, GUARDED);
    await(&figures_of(home)->backups, 0);
    await(&figures_of(shelter)->streams, 1);
    await(&figures_of(shelter)->backups, GUARDED);
    assert_true(atomic_load(&figures_of(shelter)->reserved_ppb) > 0);
    stop();
}

static void failover_and_failback_on_gpu_backup(void **state)
{
    (void)state;
    start();
    for (uint32_t round = 1; round <= 3; round++) {
        uint64_t before = of_card(shelter), faults = 0;
        failover_rig_exchange(&rig, 0, 100);
        pid_t child = kill_card(home);
        failover_rig_exchange(&rig, 0, 200);
        failover_rig_settle(&rig);
        test_gpu_await_up(&rig.server, home, child);
        expect_at(home);
        for (uint32_t i = 0; i < rig.count; i++) {
            faults += rig.told[i].faults;
            failover_rig_expect_told(&rig, i, round);
        }
        assert_true(faults > 0);
        assert_int_equal(of_card(shelter) - before, faults);
    }
    assert_int_equal(failover_rig_of_workers(&rig) + failover_rig_of_fallback(&rig), 0);
    assert_int_equal(server_stats_get(&failover_rig_stats(&rig)->corrupt), 0);
    stop();
}

/* Whoever is at home does not notice; the key is there again for the next loss. */
static void failure_of_backup_gpu_before_primary(void **state)
{
    (void)state;
    start();
    failover_rig_exchange(&rig, 0, 50);
    pid_t child = kill_card(shelter);
    failover_rig_exchange(&rig, 0, 100);
    failover_rig_settle(&rig);
    for (uint32_t i = 0; i < rig.count; i++)
        failover_rig_expect_told(&rig, i, 0);
    test_gpu_await_up(&rig.server, shelter, child);
    for (int round = 0; round < 20; round++) { /* its I/O thread has the new child's answers by then */
        failover_rig_exchange(&rig, 0, 20);
        failover_rig_settle(&rig);
    }
    child = kill_card(home);
    failover_rig_exchange(&rig, 0, 100);
    failover_rig_settle(&rig);
    test_gpu_await_up(&rig.server, home, child);
    expect_at(home);
    for (uint32_t i = 0; i < rig.count; i++)
        failover_rig_expect_told(&rig, i, 1);
    assert_int_equal(failover_rig_of_workers(&rig) + failover_rig_of_fallback(&rig), 0);
    stop();
}

/* ---- two losses ---- */

/* Nothing is promised through a second loss, and the stream is told; but all comes back, right and in order,
 * and everything is as before when both cards are. */
static void failure_of_primary_and_backup_gpu(void **state)
{
    uint32_t degraded = 0;
    (void)state;

    start();
    for (int round = 0; round < 4; round++) {
        bool home_first = round % 2 == 0;
        failover_rig_exchange(&rig, 0, 60);
        pid_t first = kill_card(home_first ? home : shelter);
        failover_rig_exchange(&rig, 0, round < 2 ? 60 : 5);
        pid_t second = kill_card(home_first ? shelter : home);
        failover_rig_exchange(&rig, 0, 60);
        failover_rig_settle(&rig);
        test_gpu_await_up(&rig.server, home_first ? home : shelter, first);
        test_gpu_await_up(&rig.server, home_first ? shelter : home, second);
        expect_at(home);
    }
    for (uint32_t i = 0; i < rig.count; i++) {
        const struct failover_told *told = &rig.told[i];
        degraded += told->notices[PROTOCOL_NOTICE_DEGRADED];
        if (told->last.kind != 0) {
            assert_int_equal(told->last.unit, PROTOCOL_UNIT_GPU);
            assert_int_equal(told->last.unit_index, home);
            assert_int_equal(told->last.bound_ns, rig.stream[i]->opened.bound_ns);
        }
    }
    print_message("%u times at the stand-by worker\n", degraded);
    assert_int_equal(failover_rig_of_workers(&rig), 0);
    assert_int_equal(server_stats_get(&failover_rig_stats(&rig)->corrupt), 0);
    stop();
}

/* ---- the end of streams ---- */

/* Rooms, slots and memory are free again, however the streams end: at home, away, with their connection. */
static void backup_released_on_close(void **state)
{
    uint64_t slots;
    (void)state;

    start();
    slots = gpu_arenas_region(server_gpu_arenas(rig.server.server->gpus[shelter]))->shape.slots;
    for (uint64_t opened = 0; opened < 2 * slots; opened += GUARDED) {
        bool away = opened / GUARDED % 8 == 0;
        pid_t child = 0;
        failover_rig_exchange(&rig, 0, 2 * GUARDED);
        if (away)
            child = kill_card(home);
        failover_rig_exchange(&rig, 0, away ? 2 * GUARDED : 0);
        failover_rig_close(&rig, 0);
        await(&figures_of(shelter)->backups, 0);
        if (away)
            test_gpu_await_up(&rig.server, home, child);
        await(&figures_of(home)->guaranteed, 0);
        open_guarded(GUARDED);
    }
    stop();
}

/* A second client, which breaks off while its streams are away. */
static void connection_breaks_during_failover(void **state)
{
    (void)state;
    start();
    for (uint32_t round = 0; round < 4; round++) {
        struct test_client other;
        struct test_stream *stream[GUARDED];
        test_client_dial(&other, test_server_unix(&rig.server));
        test_client_hello_version(&other, 2, NULL);
        for (uint32_t i = 0; i < GUARDED; i++) {
            stream[i] = test_stream_open(&other, &protected, i);
            assert_int_equal(stream[i]->opened.backup.unit_index, shelter);
        }
        for (uint32_t i = 0; i < 5 * GUARDED; i++)
            assert_true(test_stream_send(stream[i % GUARDED], 512));
        pid_t child = kill_card(home);
        for (uint32_t i = 0; i < round * GUARDED; i++)
            assert_true(test_stream_send(stream[i % GUARDED], 512));
        test_client_close(&other);
        failover_rig_exchange(&rig, 0, 20);
        test_gpu_await_up(&rig.server, home, child);
        await(&figures_of(shelter)->backups, GUARDED);
        await(&figures_of(home)->guaranteed, GUARDED);
        for (uint32_t i = 0; i < GUARDED; i++)
            test_stream_free(stream[i]);
        expect_at(home);
    }
    rig.broken = true;
    stop();
}

/* ---- other contracts ---- */

static void a_changed_stream_keeps_its_backup(void **state)
{
    struct protocol_modified modified;
    (void)state;

    start();
    for (uint32_t round = 1; round <= 2; round++) {
        for (uint32_t i = 0; i < rig.count; i++) {
            failover_rig_exchange(&rig, 0, 10);
            assert_int_equal(failover_rig_modify(&rig, rig.stream[i], round == 1 ? 3 : 1,
                                                 (round == 1 ? 48 : 80) * CORE_NS_PER_MS,
                                                 protected.latency_ns - CORE_NS_PER_S, &modified),
                             0);
            assert_int_equal(modified.unit, PROTOCOL_UNIT_GPU);
            assert_int_equal(modified.unit_index, home);
            assert_int_equal(modified.backup.unit, PROTOCOL_UNIT_GPU);
            assert_int_equal(modified.backup.unit_index, shelter);
            assert_true(modified.backup.bound_ns <= protected.latency_ns - CORE_NS_PER_S);
        }
        pid_t child = kill_card(home);
        failover_rig_exchange(&rig, 0, 80);
        failover_rig_settle(&rig);
        test_gpu_await_up(&rig.server, home, child);
        expect_at(home);
        assert_int_equal(failover_rig_of_workers(&rig) + failover_rig_of_fallback(&rig), 0);
    }
    failover_rig_close(&rig, 0);
    await(&figures_of(shelter)->backups, 0);
    open_guarded(GUARDED);
    stop();
}

/* ---- to a worker ---- */

/* Workers that have room for few streams: those of the other client, while they are open. */
static void stream_migrates_away_from_both_gpus(void **state)
{
    struct core_stream_spec spec = protected;
    struct test_client other;
    struct test_stream *first[38];
    uint32_t opened = 0;
    (void)state;

    failover_rig_start(&rig, 2, 2500, "hang_ms: 3000, audit: 2", CONFIG);
    spec.interval_ns = 100 * CORE_NS_PER_MS;
    spec.latency_ns = 8 * CORE_NS_PER_S;
    test_client_dial(&other, test_server_unix(&rig.server));
    test_client_hello_version(&other, 2, NULL);
    do {
        assert_true(opened < 38);
        first[opened] = test_stream_open(&other, &spec, opened);
    } while (first[opened++]->opened.backup.unit != PROTOCOL_UNIT_GPU);
    const struct protocol_opened *told = &failover_rig_open(&rig, &spec)->opened;
    assert_int_equal(told->unit, PROTOCOL_UNIT_GPU);
    assert_int_equal(told->backup.unit, PROTOCOL_UNIT_GPU);
    home = told->unit_index;
    shelter = told->backup.unit_index;
    for (uint32_t i = 0; i < opened; i++) {
        (void)test_stream_close(first[i]);
        test_stream_free(first[i]);
    }
    test_client_close(&other);
    await(&figures_of(shelter)->backups, 1);
    /* a worker has room for the backup now, but it stays where it is */
    struct protocol_modified modified;
    assert_int_equal(
        failover_rig_modify(&rig, rig.stream[0], 3, spec.interval_ns, spec.latency_ns, &modified), 0);
    assert_int_equal(modified.backup.unit, PROTOCOL_UNIT_GPU);
    assert_int_equal(modified.backup.unit_index, shelter);
    failover_rig_exchange(&rig, 0, 2);
    failover_rig_settle(&rig);
    assert_int_equal(failover_rig_shift(&rig, FAILOVER_RIG_WORKERS + home, 0, 1), 1);
    await(&figures_of(home)->streams, 0);
    await(&figures_of(shelter)->backups, 0);
    failover_rig_exchange(&rig, 0, 20);
    pid_t child = kill_card(home);
    failover_rig_exchange(&rig, 0, 20);
    failover_rig_settle(&rig);
    test_gpu_await_up(&rig.server, home, child);
    assert_int_equal(failover_rig_of_workers(&rig), 40);
    assert_int_equal(rig.told[0].notices[PROTOCOL_NOTICE_MOVED], 1);
    assert_int_equal(rig.told[0].faults, 0);
    failover_rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_and_the_figures),
        cmocka_unit_test(failover_and_failback_on_gpu_backup),
        cmocka_unit_test(failure_of_backup_gpu_before_primary),
        cmocka_unit_test(failure_of_primary_and_backup_gpu),
        cmocka_unit_test(backup_released_on_close),
        cmocka_unit_test(connection_breaks_during_failover),
        cmocka_unit_test(a_changed_stream_keeps_its_backup),
        cmocka_unit_test(stream_migrates_away_from_both_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
