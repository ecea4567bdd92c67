/* What an overload holds back, for how long, and what it is said to come from; in virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "server/overload/reserve.h"
#include "tests/support/random.h"

#define MS       CORE_NS_PER_MS
#define QUIET_NS (10 * CORE_NS_PER_S)
#define POLL_NS  SERVER_OVERLOAD_INTERVAL_NS

static void quiet_unit_withholds_nothing(void **state)
{
    struct server_overload overload;
    (void)state;

    server_overload_init(&overload, QUIET_NS, 5 * MS, 77); /* lost before: not held against it */
    for (core_ns now_ns = 5 * MS; now_ns < 100 * CORE_NS_PER_S; now_ns += POLL_NS)
        assert_false(server_overload_poll(&overload, now_ns, 77));
    assert_int_equal(overload.level_ns, 0);
}

/* Up with the first look; down when the quiet time has passed, and not much later. */
static void a_stall_is_over_after_the_quiet_time(void **state)
{
    struct test_random random = {.state = 3};
    (void)state;

    for (int round = 0; round < 200; round++) {
        struct server_overload overload;
        core_ns now_ns = test_random_in(&random, 0, CORE_NS_PER_S), until_ns;
        server_overload_init(&overload, QUIET_NS, now_ns, 0);
        now_ns += test_random_in(&random, 0, 100 * CORE_NS_PER_S);
        assert_true(server_overload_poll(&overload, now_ns, 3 * MS));
        assert_int_equal(overload.level_ns, 3 * MS);
        until_ns = now_ns + QUIET_NS;
        for (now_ns += POLL_NS; now_ns <= until_ns; now_ns += test_random_in(&random, 1, 2 * POLL_NS))
            assert_false(server_overload_poll(&overload, now_ns, 3 * MS));
        assert_true(server_overload_poll(&overload, until_ns + QUIET_NS / 10, 3 * MS));
        assert_int_equal(overload.level_ns, 0);
    }
}

/* Losses of an interval are one: it does not matter how many bursts they come from. What is worse within the
 * quiet time counts alone. */
static void the_worst_interval_counts(void **state)
{
    struct server_overload overload;
    core_ns now_ns = 0, lost_ns = 0;
    (void)state;

    server_overload_init(&overload, QUIET_NS, 0, 0);
    assert_true(server_overload_poll(&overload, now_ns += POLL_NS, lost_ns += 2 * MS));
    assert_false(server_overload_poll(&overload, now_ns += POLL_NS, lost_ns += 2 * MS));
    assert_false(server_overload_poll(&overload, now_ns += POLL_NS, lost_ns += 1 * MS));
    assert_int_equal(overload.level_ns, 2 * MS);
    assert_true(server_overload_poll(&overload, now_ns += POLL_NS, lost_ns += 50 * MS));
    assert_int_equal(overload.level_ns, 50 * MS);
}

/* A great loss, then little ones without end, as of a machine with others on it: what is held back is what
 * the little ones take, and stays there. */
static void reserve_follows_small_overruns(void **state)
{
    struct server_overload overload;
    core_ns now_ns = 0, lost_ns = 80 * MS;
    unsigned changes = 0;
    (void)state;

    server_overload_init(&overload, QUIET_NS, 0, 0);
    assert_true(server_overload_poll(&overload, now_ns, lost_ns));
    for (now_ns = POLL_NS; now_ns < 100 * CORE_NS_PER_S; now_ns += POLL_NS) {
        lost_ns += now_ns % (3 * CORE_NS_PER_S) == 0 ? MS : 0;
        changes += server_overload_poll(&overload, now_ns, lost_ns) ? 1 : 0;
        assert_int_equal(overload.level_ns, changes == 0 ? 80 * MS : MS);
        assert_true(changes == (now_ns >= QUIET_NS + QUIET_NS / 10 ? 1 : 0) ||
                    now_ns <= QUIET_NS + QUIET_NS / 10);
    }
    assert_int_equal(changes, 1);
}

/* Against the definition: the worst of the looks within the quiet time is in the level, nothing older than
 * that and a slot is. */
static void the_level_is_of_the_quiet_time(void **state)
{
    enum { LOOKS = 3000 };
    struct test_random random = {.state = 8};
    static core_ns at_ns[LOOKS], more_ns[LOOKS];
    struct server_overload overload;
    core_ns now_ns = 0, lost_ns = 0;
    (void)state;

    server_overload_init(&overload, QUIET_NS, 0, 0);
    for (int i = 0; i < LOOKS; i++) {
        core_ns surely_ns = 0, perhaps_ns = 0, before_ns = overload.level_ns;
        now_ns +=
            test_random_in(&random, 1, test_random_in(&random, 0, 200) == 0 ? 40 * CORE_NS_PER_S : POLL_NS);
        at_ns[i] = now_ns;
        more_ns[i] = test_random_in(&random, 0, 30) == 0 ? test_random_in(&random, 1, 9 * MS) : 0;
        lost_ns += more_ns[i];
        bool changed = server_overload_poll(&overload, now_ns, lost_ns);
        assert_int_equal(changed, overload.level_ns != before_ns);
        for (int j = 0; j <= i; j++) {
            if (at_ns[j] >= now_ns - QUIET_NS && more_ns[j] > surely_ns)
                surely_ns = more_ns[j];
            if (at_ns[j] >= now_ns - QUIET_NS - QUIET_NS / 10 && more_ns[j] > perhaps_ns)
                perhaps_ns = more_ns[j];
        }
        assert_in_range(overload.level_ns, surely_ns, perhaps_ns);
    }
}

static void the_share_is_of_the_shortest_window(void **state)
{
    static const struct {
        core_ns level_ns, shortest_ns;
        int64_t share_ppb;
    } rows[] = {
        {0, 10 * MS, 0},
        {MS, 10 * MS, 100000000},
        {3 * MS, 20 * MS, 150000000},
        {10 * MS, 10 * MS, 1000000000},
        {11 * MS, 10 * MS, 1000000000},
        {5 * MS, CORE_NS_NEVER, 50000000}, /* no streams: of an interval */
        {5 * MS, CORE_NS_PER_S, 50000000}, /* as likely as not it was lost within a tenth of that */
        {1, 3, 333333334},                 /* rounded up */
        {CORE_NS_NEVER, CORE_NS_NEVER, 1000000000},
    };
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(server_overload_share_ppb(rows[i].level_ns, rows[i].shortest_ns), rows[i].share_ppb);
}

static void causes_are_named_as_far_as_they_are_known(void **state)
{
    static const struct {
        struct server_overload_signs signs;
        const char *words[2], *no_word;
    } rows[] = {
        {{.delayed_ns = 9 * MS}, {"off their cores for 9.0 ms"}, "slow"},
        {{.delayed_ns = 5 * MS, .stolen_ns = 20 * MS},
         {"off their cores for 5.0 ms", "20 ms of the cores"},
         "slow"},
        {{.delayed_ns = 4 * MS}, {"had their cores"}, "off"},
        {{.faults = 3}, {"3 pages"}, "had their cores"},
        {{.stolen_ns = 10 * MS}, {"hypervisor"}, "off their"},
        {{.delayed_ns = -1}, {"does not say"}, "slow"},
        {{.delayed_ns = -1, .faults = 2}, {"2 pages"}, "does not say"},
    };
    char text[256], tight[8];
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        server_overload_cause(10 * MS, &rows[i].signs, text, sizeof text);
        for (size_t j = 0; j < 2 && rows[i].words[j] != NULL; j++)
            assert_non_null(strstr(text, rows[i].words[j]));
        assert_null(strstr(text, rows[i].no_word));
    }
    server_overload_cause(10 * MS, &rows[1].signs, tight, sizeof tight);
    assert_int_equal(strlen(tight), sizeof tight - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quiet_unit_withholds_nothing),
        cmocka_unit_test(a_stall_is_over_after_the_quiet_time),
        cmocka_unit_test(the_worst_interval_counts),
        cmocka_unit_test(reserve_follows_small_overruns),
        cmocka_unit_test(the_level_is_of_the_quiet_time),
        cmocka_unit_test(the_share_is_of_the_shortest_window),
        cmocka_unit_test(causes_are_named_as_far_as_they_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
