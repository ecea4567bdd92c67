/* The pace after a switch: worked timelines, and streams that change units again and again in virtual time,
 * held against what the header promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/stream/pace.h"
#include "server/stream/path.h"
#include "tests/support/random.h"

#define PACKETS 300

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

struct migration {
    enum server_path_state path;
    core_ns hold_from_ns, until_ns;
};

static core_ns next_look_ns(const struct migration *migration, core_ns now_ns, core_ns first_back_ns)
{
    core_ns look_ns = first_back_ns;
    if (server_path_holds(migration->path))
        return look_ns;
    if (migration->hold_from_ns > now_ns && migration->hold_from_ns < look_ns)
        look_ns = migration->hold_from_ns;
    return core_time_min(migration->until_ns, look_ns);
}

static unsigned step(struct migration *migration, bool empty, core_ns now_ns)
{
    unsigned effects = 0;
    unsigned facts = SERVER_PATH_GPU_EMPTY | SERVER_PATH_MIGRATING | SERVER_PATH_READY |
                     (empty ? SERVER_PATH_WORKER_EMPTY | SERVER_PATH_FREE : 0) |
                     (now_ns >= migration->hold_from_ns ? SERVER_PATH_MAY_HOLD : 0) |
                     (now_ns >= migration->until_ns ? SERVER_PATH_OVERDUE : 0);
    (void)server_path_step(&migration->path, facts, &effects);
    return effects;
}

/* One migration, wanted at want_ns: returns when it is over; true: the stream is on another unit. */
static bool migrate_once(struct test_random *random, struct run *run, struct server_pacer *pace, size_t *next,
                         size_t stay, core_ns bound_ns, core_ns *moment_ns)
{
    core_ns want_ns = *moment_ns, now_ns = want_ns, hold_ns = CORE_NS_NEVER;
    if (test_random_chance(random, 70))
        hold_ns =
            test_random_chance(random, 50) ? want_ns : want_ns + test_random_in(random, 0, bound_ns * 4);
    struct migration migration = {.hold_from_ns = hold_ns, .until_ns = want_ns + bound_ns * 4};

    flow(random, run, pace, next, stay, bound_ns, want_ns);
    for (;;) {
        core_ns first_back_ns = CORE_NS_NEVER;
        for (size_t i = 0; i < *next; i++)
            if (run->back_ns[i] > now_ns)
                first_back_ns = core_time_min(run->back_ns[i], first_back_ns);
        unsigned effects = step(&migration, first_back_ns == CORE_NS_NEVER, now_ns);
        *moment_ns = now_ns;
        if ((effects & SERVER_PATH_GIVE_UP) != 0)
            return false;
        if ((effects & SERVER_PATH_SWITCH) != 0) {
            bool held = (effects & SERVER_PATH_PACED) != 0;
            core_ns first_ns = *next < PACKETS ? run->eligible_ns[*next] : CORE_NS_NEVER;
            run->lag_ns = (server_pacer_caught_up(pace, first_ns > now_ns, now_ns) ? 0 : run->lag_ns) +
                          (held ? bound_ns : 0);
            server_pacer_switch(pace, run->spacing_ns, first_ns, held, now_ns);
            return true;
        }
        now_ns = next_look_ns(&migration, now_ns, first_back_ns);
        if (!server_path_holds(migration.path))
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
        if (migrate_once(random, &run, &pace, &next, stay, bound_ns, &now_ns)) {
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
        cmocka_unit_test(an_idle_switch_begins_spacing_anew),
        cmocka_unit_test(held_packets_are_paced_and_catch_up),
        cmocka_unit_test(a_policed_stream_catches_up_by_the_full_bucket),
        cmocka_unit_test(migrations_keep_guarantees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
