/* Policing: worked timelines, and random arrivals held against the definition by brute force. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/stream/policer.h"
#include "tests/support/random.h"

#define PACKETS 400

struct timeline {
    uint32_t burst_packets;
    core_ns interval_ns, spacing_ns;
    size_t count;
    core_ns arrival_ns[8], eligible_ns[8], release_ns[8];
};

static const struct timeline timelines[] = {
    /* on time: nothing waits */
    {1, 100, 100, 4, {0, 100, 200, 300}, {0, 100, 200, 300}, {0, 100, 200, 300}},
    /* at once, without a burst: one every interval */
    {1, 100, 50, 4, {0, 0, 0, 0}, {0, 100, 200, 300}, {0, 100, 200, 300}},
    /* a burst of three at once: eligible at once, released spacing apart; the fourth waits */
    {3, 100, 20, 5, {7, 7, 7, 7, 7}, {7, 7, 7, 107, 207}, {7, 27, 47, 107, 207}},
    /* a burst, spacing as long as the interval */
    {3, 100, 100, 4, {0, 0, 0, 0}, {0, 0, 0, 100}, {0, 100, 200, 300}},
    /* a pause gives the whole burst back, and no more than that */
    {2,
     100,
     30,
     7,
     {0, 0, 0, 900, 900, 900, 900},
     {0, 0, 100, 900, 900, 1000, 1100},
     {0, 30, 100, 900, 930, 1000, 1100}},
    /* early by a little: waits for the rest of its interval only */
    {1, 100, 100, 4, {0, 90, 195, 400}, {0, 100, 200, 400}, {0, 100, 200, 400}},
    /* jitter that a burst of two covers */
    {2, 100, 50, 5, {0, 60, 200, 260, 400}, {0, 60, 200, 260, 400}, {0, 60, 200, 260, 400}},
};

static void worked_timelines(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof timelines / sizeof timelines[0]; t++) {
        const struct timeline *line = &timelines[t];
        struct core_stream_spec spec = {.burst_packets = line->burst_packets,
                                        .interval_ns = line->interval_ns};
        struct server_policer policer;
        server_policer_init(&policer, &spec, line->spacing_ns);
        for (size_t i = 0; i < line->count; i++) {
            struct server_policer_times times = server_policer_packet(&policer, line->arrival_ns[i]);
            assert_int_equal(times.eligible_ns, line->eligible_ns[i]);
            assert_int_equal(times.release_ns, line->release_ns[i]);
        }
    }
}

struct run {
    core_ns interval_ns, spacing_ns;
    uint32_t burst_packets;
    core_ns arrival_ns[PACKETS];
    struct server_policer_times times[PACKETS];
};

/* Silence, bursts, trains faster and slower than the contract, in turn. */
static void draw(struct test_random *random, struct run *run)
{
    struct server_policer policer;
    run->interval_ns = test_random_log(random, CORE_INTERVAL_NS_MIN, 1000000);
    run->spacing_ns = test_random_in(random, 1, run->interval_ns);
    run->burst_packets = (uint32_t)test_random_log(random, 1, 64);
    struct core_stream_spec spec = {.burst_packets = run->burst_packets, .interval_ns = run->interval_ns};
    server_policer_init(&policer, &spec, run->spacing_ns);
    core_ns now_ns = test_random_in(random, 0, CORE_NS_PER_S), step_ns = 0;
    for (size_t i = 0; i < PACKETS; i++) {
        if (test_random_chance(random, 5))
            step_ns = test_random_chance(random, 40) ? 0 : test_random_in(random, 0, 3 * run->interval_ns);
        if (test_random_chance(random, 2))
            now_ns += test_random_in(random, 0, 2 * run->burst_packets * run->interval_ns);
        now_ns += step_ns > 0 ? test_random_in(random, 0, step_ns) : 0;
        run->arrival_ns[i] = now_ns;
        run->times[i] = server_policer_packet(&policer, now_ns);
    }
}

/* The words of the contract: a packet is eligible at the first moment, not before its arrival and its
 * predecessors, at which no window that ends there holds more than N(D) = k + floor(D / t). */
static core_ns eligible_by_definition(const struct run *run, size_t packet)
{
    core_ns eligible_ns = run->arrival_ns[packet];
    if (packet > 0 && run->times[packet - 1].eligible_ns > eligible_ns)
        eligible_ns = run->times[packet - 1].eligible_ns;
    for (size_t first = 0; first < packet; first++) {
        core_ns over = (core_ns)(packet - first + 1) - (core_ns)run->burst_packets;
        core_ns earliest_ns = run->times[first].eligible_ns + over * run->interval_ns;
        if (over > 0 && earliest_ns > eligible_ns)
            eligible_ns = earliest_ns;
    }
    return eligible_ns;
}

static void random_arrivals_against_the_definition(void **state)
{
    static struct run run;
    struct test_random random = {.state = 1};
    (void)state;
    for (int round = 0; round < 200; round++) {
        draw(&random, &run);
        for (size_t i = 0; i < PACKETS; i++)
            assert_int_equal(run.times[i].eligible_ns, eligible_by_definition(&run, i));
    }
}

static void releases_are_spaced_and_not_late(void **state)
{
    static struct run run;
    struct test_random random = {.state = 2};
    (void)state;
    for (int round = 0; round < 300; round++) {
        draw(&random, &run);
        for (size_t i = 0; i < PACKETS; i++) {
            const struct server_policer_times *times = &run.times[i];
            core_ns latest_ns = times->eligible_ns + (run.burst_packets - 1) * run.spacing_ns;
            assert_true(times->release_ns >= times->eligible_ns && times->release_ns <= latest_ns);
            if (i > 0)
                assert_true(times->release_ns >= times[-1].release_ns + run.spacing_ns);
        }
    }
}

static void a_sender_within_its_contract_never_waits(void **state)
{
    struct test_random random = {.state = 3};
    (void)state;
    for (int round = 0; round < 200; round++) {
        core_ns interval_ns = test_random_log(&random, CORE_INTERVAL_NS_MIN, CORE_NS_PER_S);
        uint32_t burst = (uint32_t)test_random_log(&random, 1, 1000);
        struct core_stream_spec spec = {.burst_packets = burst, .interval_ns = interval_ns};
        struct server_policer policer;
        server_policer_init(&policer, &spec, interval_ns);
        for (core_ns i = 0; i < 2000; i++) { /* late by up to burst - 1 intervals, in order */
            core_ns slot = i / burst * burst + burst - 1;
            core_ns arrival_ns = slot * interval_ns;
            assert_int_equal(server_policer_packet(&policer, arrival_ns).eligible_ns, arrival_ns);
        }
    }
}

static void the_largest_contract_does_not_overflow(void **state)
{
    struct core_stream_spec spec = {.burst_packets = CORE_BURST_MAX, .interval_ns = CORE_INTERVAL_NS_MAX};
    struct server_policer policer;
    core_ns now_ns = 3600 * CORE_NS_PER_S;
    (void)state;
    server_policer_init(&policer, &spec, CORE_INTERVAL_NS_MAX);
    for (uint32_t i = 0; i < CORE_BURST_MAX; i++)
        assert_int_equal(server_policer_packet(&policer, now_ns).eligible_ns, now_ns);
    for (core_ns i = 1; i <= 1000; i++)
        assert_int_equal(server_policer_packet(&policer, now_ns).eligible_ns,
                         now_ns + i * CORE_INTERVAL_NS_MAX);
}

/* Packets that are not encrypted wait for nothing, so that they may be as many as a sender likes. */
static void a_debt_beyond_all_clocks_stays_one(void **state)
{
    const struct core_stream_spec spec = {.burst_packets = 1, .interval_ns = CORE_INTERVAL_NS_MAX};
    struct server_policer policer;
    core_ns eligible_ns = 0;
    (void)state;
    server_policer_init(&policer, &spec, 0);
    for (uint32_t i = 0; i < 3000000; i++) {
        const struct server_policer_times times = server_policer_packet(&policer, CORE_NS_PER_S);
        assert_true(times.eligible_ns >= eligible_ns);
        eligible_ns = times.eligible_ns;
    }
    assert_true(eligible_ns + CORE_LATENCY_NS_MAX > eligible_ns);
    server_policer_modify(&policer, &spec, 0, CORE_NS_PER_S);
    assert_true(server_policer_packet(&policer, CORE_NS_PER_S).eligible_ns > eligible_ns / 2);
}

/* ---- another contract under way ---- */

struct change {
    struct core_stream_spec spec[2];
    size_t at; /* first packet under the second */
};

/* No window from packet `first` to `last` holds more than N(D). */
static void conform(const struct server_policer_times *times, size_t first, size_t last, core_ns interval_ns,
                    uint32_t burst)
{
    for (size_t from = first; from < last; from++)
        for (size_t to = from; to < last; to++) {
            core_ns length_ns = times[to].eligible_ns - times[from].eligible_ns;
            assert_true((core_ns)(to - from + 1) <= (core_ns)burst + length_ns / interval_ns);
        }
}

static void change_once(struct test_random *random)
{
    struct server_policer_times times[PACKETS / 4];
    size_t count = sizeof times / sizeof times[0];
    size_t at = (size_t)test_random_in(random, 0, (int64_t)count - 1);
    struct core_stream_spec old = {.burst_packets = (uint32_t)test_random_log(random, 1, 16),
                                   .interval_ns = test_random_log(random, CORE_INTERVAL_NS_MIN, 100000)};
    struct core_stream_spec new = {.burst_packets = (uint32_t)test_random_log(random, 1, 16),
                                   .interval_ns = test_random_log(random, CORE_INTERVAL_NS_MIN, 100000)};
    core_ns now_ns = 0, pace_ns = test_random_in(random, 0, 2 * old.interval_ns);
    struct server_policer policer;

    server_policer_init(&policer, &old, 1);
    for (size_t i = 0; i < count; i++) {
        if (test_random_chance(random, 10))
            now_ns += test_random_in(random, 0, 10 * old.interval_ns);
        if (i == at)
            server_policer_modify(&policer, &new, 1, now_ns);
        times[i] = server_policer_packet(&policer, now_ns);
        assert_true(times[i].eligible_ns >= now_ns &&
                    (i == 0 || times[i].eligible_ns >= times[i - 1].eligible_ns));
        now_ns += test_random_in(random, 0, pace_ns);
    }
    conform(times, 0, at, old.interval_ns, old.burst_packets);
    conform(times, at, count, new.interval_ns, new.burst_packets);
    conform(times, 0, count, core_time_min(old.interval_ns, new.interval_ns),
            old.burst_packets > new.burst_packets ? old.burst_packets : new.burst_packets);
}

static void a_change_conforms_to_both_and_to_the_join(void **state)
{
    struct test_random random = {.state = 4};
    (void)state;
    for (int round = 0; round < 3000; round++)
        change_once(&random);
}

/* Two of three packets are left: they stay, and are refilled at the new rate. */
static void a_change_carries_the_bucket_over(void **state)
{
    struct core_stream_spec old = {.burst_packets = 3, .interval_ns = 100};
    const struct {
        uint32_t burst;
        core_ns interval_ns, eligible_ns[4];
    } rows[] = {
        {3, 100, {1000, 1000, 1100, 1200}}, /* the same contract */
        {3, 10, {1000, 1000, 1010, 1020}},  /* a higher rate */
        {8, 50, {1000, 1000, 1050, 1100}},  /* a larger burst is not there at once */
        {1, 400, {1000, 1400, 1800, 2200}}, /* a smaller one is */
    };
    struct server_policer policer;
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct core_stream_spec new = {.burst_packets = rows[r].burst, .interval_ns = rows[r].interval_ns};
        server_policer_init(&policer, &old, 1);
        assert_int_equal(server_policer_packet(&policer, 1000).eligible_ns, 1000);
        server_policer_modify(&policer, &new, 1, 1000);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(server_policer_packet(&policer, 1000).eligible_ns, rows[r].eligible_ns[i]);
    }
    server_policer_init(&policer, &old, 1); /* before the first packet there is nothing to carry */
    server_policer_modify(&policer, &(struct core_stream_spec){.burst_packets = 2, .interval_ns = 7}, 1,
                          1000);
    assert_int_equal(server_policer_packet(&policer, 1000).eligible_ns, 1000);
    assert_int_equal(server_policer_packet(&policer, 1000).eligible_ns, 1000);
    assert_int_equal(server_policer_packet(&policer, 1000).eligible_ns, 1007);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_timelines),
        cmocka_unit_test(random_arrivals_against_the_definition),
        cmocka_unit_test(releases_are_spaced_and_not_late),
        cmocka_unit_test(a_sender_within_its_contract_never_waits),
        cmocka_unit_test(the_largest_contract_does_not_overflow),
        cmocka_unit_test(a_debt_beyond_all_clocks_stays_one),
        cmocka_unit_test(a_change_conforms_to_both_and_to_the_join),
        cmocka_unit_test(a_change_carries_the_bucket_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
