/* Transfers: the states one by one, worked timelines of the pace, and streams that change units again and
 * again in virtual time, held against what the header promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/stream/transfer.h"
#include "tests/support/random.h"

#define PACKETS 300

/* ---- states ---- */

static void an_idle_moment_switches_at_once(void **state)
{
    struct server_transfer transfer = {.state = SERVER_TRANSFER_FLOWING};
    (void)state;
    assert_int_equal(server_transfer_next(&transfer, 0, 5), SERVER_TRANSFER_STAY);
    server_transfer_begin(&transfer, CORE_NS_NEVER, 100);
    assert_int_equal(server_transfer_next(&transfer, 0, 10), SERVER_TRANSFER_STAY); /* B is not ready */
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 1, 20), SERVER_TRANSFER_STAY);
    assert_int_equal(transfer.state, SERVER_TRANSFER_WAITING);
    assert_int_equal(server_transfer_next(&transfer, 0, 30), SERVER_TRANSFER_SWITCH);
    assert_int_equal(transfer.state, SERVER_TRANSFER_FLOWING);
    assert_int_equal(server_transfer_next(&transfer, 0, 40), SERVER_TRANSFER_STAY);
}

static void transfer_timeout_except_while_held(void **state)
{
    struct server_transfer transfer;
    (void)state;
    server_transfer_begin(&transfer, 0, 100); /* B never gets ready */
    assert_int_equal(server_transfer_next(&transfer, 3, 99), SERVER_TRANSFER_STAY);
    assert_int_equal(server_transfer_next(&transfer, 0, 100), SERVER_TRANSFER_GIVE_UP);
    assert_int_equal(transfer.state, SERVER_TRANSFER_FLOWING);
    server_transfer_begin(&transfer, CORE_NS_NEVER, 100); /* never idle, not to be held */
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 3, 99), SERVER_TRANSFER_STAY);
    assert_int_equal(server_transfer_next(&transfer, 1, 100), SERVER_TRANSFER_GIVE_UP);
    server_transfer_begin(&transfer, 0, 100);
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 3, 50), SERVER_TRANSFER_HOLD);
    assert_int_equal(server_transfer_next(&transfer, 2, 200), SERVER_TRANSFER_STAY); /* it goes through */
    server_transfer_set_ready(&transfer, false);
    assert_int_equal(server_transfer_next(&transfer, 0, 300), SERVER_TRANSFER_SWITCH);
}

static void an_idle_moment_is_waited_for_before_packets_are_held(void **state)
{
    struct server_transfer transfer;
    (void)state;
    server_transfer_begin(&transfer, 50, 100);
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 1, 49), SERVER_TRANSFER_STAY);
    assert_int_equal(transfer.state, SERVER_TRANSFER_WAITING);
    assert_int_equal(server_transfer_next(&transfer, 0, 49), SERVER_TRANSFER_SWITCH);
    server_transfer_begin(&transfer, 50, 100);
    assert_int_equal(server_transfer_next(&transfer, 1, 50), SERVER_TRANSFER_STAY); /* B is not ready */
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 1, 50), SERVER_TRANSFER_HOLD);
    server_transfer_begin(&transfer, 50, 100); /* asked late: rather held than given up */
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 1, 120), SERVER_TRANSFER_HOLD);
    server_transfer_begin(&transfer, 150, 100);
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 1, 120), SERVER_TRANSFER_GIVE_UP);
}

static void a_unit_that_goes_away_is_waited_for_again(void **state)
{
    struct server_transfer transfer;
    (void)state;
    server_transfer_begin(&transfer, CORE_NS_NEVER, 100);
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 1, 10), SERVER_TRANSFER_STAY);
    server_transfer_set_ready(&transfer, false);
    assert_int_equal(server_transfer_next(&transfer, 0, 20), SERVER_TRANSFER_STAY);
    server_transfer_set_ready(&transfer, true);
    assert_int_equal(server_transfer_next(&transfer, 0, 30), SERVER_TRANSFER_SWITCH);
}

static void the_latency_to_ask_for(void **state)
{
    (void)state;
    assert_int_equal(server_transfer_latency_ns(100, 0, 30), 70);
    assert_int_equal(server_transfer_latency_ns(100, 25, 30), 45);
    assert_true(server_transfer_latency_ns(100, 20, 80) <= 0);
}

/* ---- pace ---- */

static const struct core_stream_spec pair = {.burst_packets = 2, .interval_ns = 100};

static void an_idle_switch_begins_spacing_anew(void **state)
{
    struct server_pacer pace;
    (void)state;
    server_pacer_init(&pace, &pair, 40);
    assert_int_equal(server_pacer_take(&pace, 1000, false).release_ns, 1000);
    assert_int_equal(server_pacer_take(&pace, 1000, false).release_ns, 1040);
    server_pacer_switch(&pace, 25, CORE_NS_NEVER, false, 1010);
    assert_true(server_pacer_caught_up(&pace, true, 1010));
    assert_int_equal(server_pacer_take(&pace, 1020, false).release_ns, 1020);
    assert_int_equal(server_pacer_take(&pace, 1020, false).release_ns, 1045);
}

/* Four packets wait for 250 ns; a burst of two goes at once, the rest at the stream's rate, and the lag wears
 * off. */
static void held_packets_are_paced_and_catch_up(void **state)
{
    struct server_pacer pace;
    (void)state;
    server_pacer_init(&pace, &pair, 0);
    server_pacer_switch(&pace, 0, 1000, true, 1250);
    assert_false(server_pacer_caught_up(&pace, true, 1250 - 1));
    assert_int_equal(server_pacer_take(&pace, 1000, false).eligible_ns, 1250);
    assert_int_equal(server_pacer_take(&pace, 1000, false).eligible_ns, 1250);
    assert_int_equal(server_pacer_next_ns(&pace, 1100), 1350);
    assert_int_equal(server_pacer_take(&pace, 1100, true).eligible_ns, 1350);
    assert_int_equal(server_pacer_take(&pace, 1400, false).eligible_ns, 1450);
    assert_false(server_pacer_caught_up(&pace, true, 1500));
    assert_int_equal(server_pacer_take(&pace, 1700, false).eligible_ns, 1700); /* a full bucket */
    assert_true(server_pacer_caught_up(&pace, false, 1700));
    server_pacer_switch(&pace, 0, 1800, true, 1850);
    assert_int_equal(server_pacer_take(&pace, 1800, false).eligible_ns, 1850);
    assert_false(server_pacer_caught_up(&pace, false, 2000)); /* what waits may be older */
    assert_true(server_pacer_caught_up(&pace, true, 2000));
}

/* A stream that always sends as much as it may has an empty bucket at the policer; that of B was full. */
static void a_policed_stream_catches_up_by_the_full_bucket(void **state)
{
    struct core_stream_spec spec = {.burst_packets = 4, .interval_ns = 100};
    struct server_policer policer;
    struct server_pacer pace;
    (void)state;
    server_policer_init(&policer, &spec, 0);
    server_pacer_init(&pace, &spec, 0);
    for (int i = 0; i < 4; i++)
        (void)server_policer_packet(&policer, 0);
    server_pacer_switch(&pace, 0, 100, true, 350);
    for (core_ns i = 1; i <= 20; i++) {
        core_ns eligible_ns = server_policer_packet(&policer, 0).eligible_ns;
        core_ns paced_ns = server_pacer_take(&pace, eligible_ns, true).eligible_ns;
        assert_int_equal(eligible_ns, i * 100);
        assert_int_equal(paced_ns, i <= 3 ? 350 : eligible_ns);
    }
    assert_true(server_pacer_caught_up(&pace, false, 2000));
}

/* ---- in virtual time ---- */

struct run {
    struct core_stream_spec spec;
    core_ns spacing_ns;
    core_ns eligible_ns[PACKETS], paced_ns[PACKETS], release_ns[PACKETS], back_ns[PACKETS];
    bool policed[PACKETS];
    size_t stay[PACKETS]; /* which of the stays on units a packet belongs to */
    core_ns lag_ns;       /* what the header says of it */
};

static void draw_packets(struct test_random *random, struct run *run)
{
    struct server_policer policer;
    core_ns now_ns = 1000, step_ns = run->spec.interval_ns;
    server_policer_init(&policer, &run->spec, 0);
    for (size_t i = 0; i < PACKETS; i++) {
        if (test_random_chance(random, 5))
            step_ns =
                test_random_chance(random, 50) ? 0 : test_random_in(random, 0, 2 * run->spec.interval_ns);
        if (test_random_chance(random, 3))
            now_ns += test_random_in(random, 0, 3 * run->spec.burst_packets * run->spec.interval_ns);
        now_ns += test_random_in(random, 0, step_ns);
        run->eligible_ns[i] = server_policer_packet(&policer, now_ns).eligible_ns;
        run->policed[i] = run->eligible_ns[i] > now_ns;
    }
}

/* Packets from *next on go to their unit, which takes up to bound_ns for each, until moment until_ns. */
static void flow(struct test_random *random, struct run *run, struct server_pacer *pace, size_t *next,
                 size_t stay, core_ns bound_ns, core_ns until_ns)
{
    for (; *next < PACKETS; (*next)++) {
        size_t i = *next;
        core_ns paced_ns = server_pacer_next_ns(pace, run->eligible_ns[i]);
        if (paced_ns > until_ns)
            return;
        bool behind = !server_pacer_caught_up(pace, false, 0);
        struct server_policer_times times = server_pacer_take(pace, run->eligible_ns[i], run->policed[i]);
        assert_int_equal(times.eligible_ns, paced_ns);
        assert_true(paced_ns >= run->eligible_ns[i] && paced_ns <= run->eligible_ns[i] + run->lag_ns);
        assert_true(behind || paced_ns == run->eligible_ns[i]);
        run->paced_ns[i] = paced_ns;
        run->release_ns[i] = times.release_ns;
        core_ns took_ns = test_random_chance(random, 30) ? bound_ns : test_random_in(random, 0, bound_ns);
        run->back_ns[i] =
            core_time_max(paced_ns + took_ns, i > 0 && run->stay[i - 1] == stay ? run->back_ns[i - 1] : 0);
        assert_true(run->back_ns[i] <= paced_ns + bound_ns);
        run->stay[i] = stay;
    }
}

/* What is let go to one unit during one stay conforms, and releases are spaced. */
static void check_stays(const struct run *run, size_t count)
{
    for (size_t to = 0; to < count; to++)
        for (size_t from = to + 1; from-- > 0 && run->stay[from] == run->stay[to];) {
            core_ns length_ns = run->paced_ns[to] - run->paced_ns[from];
            assert_true((core_ns)(to - from + 1) <=
                        (core_ns)run->spec.burst_packets + length_ns / run->spec.interval_ns);
            core_ns latest_ns = run->paced_ns[to] + (run->spec.burst_packets - 1) * run->spacing_ns;
            assert_true(run->release_ns[to] >= run->paced_ns[to] && run->release_ns[to] <= latest_ns);
            if (from < to)
                assert_true(run->release_ns[to] >= run->release_ns[from] + run->spacing_ns);
        }
}

static core_ns next_look_ns(const struct server_transfer *transfer, core_ns now_ns, core_ns first_back_ns)
{
    core_ns look_ns = first_back_ns;
    if (transfer->state == SERVER_TRANSFER_HELD)
        return look_ns;
    if (transfer->hold_from_ns > now_ns && transfer->hold_from_ns < look_ns)
        look_ns = transfer->hold_from_ns;
    return core_time_min(transfer->until_ns, look_ns);
}

/* One transfer, wanted at want_ns: returns when it is over; true: the stream is on another unit. */
static bool transfer_once(struct test_random *random, struct run *run, struct server_pacer *pace,
                          size_t *next, size_t stay, core_ns bound_ns, core_ns *moment_ns)
{
    struct server_transfer transfer;
    core_ns want_ns = *moment_ns, now_ns = want_ns, hold_ns = CORE_NS_NEVER;
    if (test_random_chance(random, 70))
        hold_ns =
            test_random_chance(random, 50) ? want_ns : want_ns + test_random_in(random, 0, bound_ns * 4);

    flow(random, run, pace, next, stay, bound_ns, want_ns);
    server_transfer_begin(&transfer, hold_ns, want_ns + bound_ns * 4);
    server_transfer_set_ready(&transfer, true);
    for (;;) {
        uint32_t inside = 0;
        core_ns first_back_ns = CORE_NS_NEVER;
        for (size_t i = 0; i < *next; i++)
            if (run->back_ns[i] > now_ns) {
                inside++;
                first_back_ns = core_time_min(run->back_ns[i], first_back_ns);
            }
        bool was_held = transfer.state == SERVER_TRANSFER_HELD;
        enum server_transfer_step step = server_transfer_next(&transfer, inside, now_ns);
        *moment_ns = now_ns;
        if (step == SERVER_TRANSFER_GIVE_UP)
            return false;
        if (step == SERVER_TRANSFER_SWITCH) {
            core_ns first_ns = *next < PACKETS ? run->eligible_ns[*next] : CORE_NS_NEVER;
            run->lag_ns = (server_pacer_caught_up(pace, first_ns > now_ns, now_ns) ? 0 : run->lag_ns) +
                          (was_held ? bound_ns : 0);
            server_pacer_switch(pace, run->spacing_ns, first_ns, was_held, now_ns);
            return true;
        }
        now_ns = next_look_ns(&transfer, now_ns, first_back_ns);
        if (transfer.state == SERVER_TRANSFER_WAITING)
            flow(random, run, pace, next, stay, bound_ns, now_ns - 1);
    }
}

static void move_about(struct test_random *random)
{
    static struct run run;
    struct server_pacer pace;
    size_t next = 0, stay = 1;
    core_ns now_ns = 0, bound_ns = 1000;

    run.spec =
        (struct core_stream_spec){.burst_packets = (uint32_t)test_random_log(random, 1, 32),
                                  .interval_ns = test_random_log(random, CORE_INTERVAL_NS_MIN, 1000000)};
    run.spacing_ns = test_random_in(random, 1, run.spec.interval_ns);
    run.lag_ns = 0;
    draw_packets(random, &run);
    server_pacer_init(&pace, &run.spec, run.spacing_ns);
    while (next < PACKETS) {
        now_ns += test_random_in(random, 0, 20 * run.spec.interval_ns);
        if (transfer_once(random, &run, &pace, &next, stay, bound_ns, &now_ns)) {
            stay++;
            bound_ns = test_random_log(random, 1000, 20 * run.spec.interval_ns);
        }
        if (server_pacer_caught_up(&pace, false, now_ns))
            run.lag_ns = 0;
    }
    check_stays(&run, PACKETS);
}

static void migrations_keep_guarantees(void **state)
{
    struct test_random random = {.state = 11};
    (void)state;
    for (int round = 0; round < 3000; round++)
        move_about(&random);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_moment_switches_at_once),
        cmocka_unit_test(transfer_timeout_except_while_held),
        cmocka_unit_test(an_idle_moment_is_waited_for_before_packets_are_held),
        cmocka_unit_test(a_unit_that_goes_away_is_waited_for_again),
        cmocka_unit_test(the_latency_to_ask_for),
        cmocka_unit_test(an_idle_switch_begins_spacing_anew),
        cmocka_unit_test(held_packets_are_paced_and_catch_up),
        cmocka_unit_test(a_policed_stream_catches_up_by_the_full_bucket),
        cmocka_unit_test(migrations_keep_guarantees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
