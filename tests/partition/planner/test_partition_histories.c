/* Histories in virtual time: streams open, close and move, periods change, and no promise is broken.
 *
 * MILLRACE_HISTORIES: so many instead of the default; MILLRACE_HISTORY_SEED: from this one on;
 * MILLRACE_HISTORY_FAULTS: so many with each broken rule (0: none), where else the first that tells is
 * enough. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/history.h"
#include "tests/support/share.h"

#define HISTORIES_DEFAULT TEST_SHARE(60)

#define FAILURES_ENOUGH 10 /* to look at */

static char text[1 << 20];

static int64_t environment(const char *name, int64_t otherwise)
{
    const char *value = getenv(name);
    return value != NULL ? strtoll(value, NULL, 10) : otherwise;
}

static void report(const struct history_totals *totals)
{
    print_message(
        "%llu histories, %.1f virtual s, %llu plans checked and %llu for losses, %llu packets on workers "
        "(least slack %.3f %% of the bound), %llu on GPUs (%.3f %%) in %llu batches, %llu of them by "
        "backups, %llu times no arena free, %llu misses; of lost GPUs, without a promise: %llu packets lost, "
        "%llu to a stand-by, %llu before they were restored\n",
        (unsigned long long)totals->histories, (double)totals->virtual_ns / 1e9,
        (unsigned long long)totals->plans, (unsigned long long)totals->failures,
        (unsigned long long)totals->packets[0], (double)totals->least_slack_ppb[0] / 1e7,
        (unsigned long long)totals->packets[1], (double)totals->least_slack_ppb[1] / 1e7,
        (unsigned long long)totals->batches, (unsigned long long)totals->fled,
        (unsigned long long)totals->held_up, (unsigned long long)totals->misses,
        (unsigned long long)totals->rerun, (unsigned long long)totals->stood_by,
        (unsigned long long)totals->late);
    for (int event = 0; event < HISTORY_EVENTS; event++)
        print_message("%s%s %llu", event > 0 ? ", " : "", history_event_names[event],
                      (unsigned long long)totals->events[event]);
    print_message("\n");
    fflush(stdout); /* a long run is watched */
}

static void no_bound_missed(void **state)
{
    (void)state;
    struct history_totals totals;
    history_totals_init(&totals);
    uint64_t histories = (uint64_t)environment("MILLRACE_HISTORIES", HISTORIES_DEFAULT);
    uint64_t seed = (uint64_t)environment("MILLRACE_HISTORY_SEED", 1);
    for (uint64_t end = seed + histories; seed < end && totals.failed < FAILURES_ENOUGH; seed++) {
        if (!history_run(seed, HISTORY_RIGHT, &totals, text, sizeof text))
            fprintf(stderr, "history %llu:\n%s", (unsigned long long)seed, text);
        if (totals.histories % 500 == 0)
            report(&totals);
    }
    report(&totals);
    assert_int_equal(totals.failed, 0);
}

/* Histories that once told of something that was wrong. */
static void hard_histories_are_kept(void **state)
{
    static const uint64_t seeds[] = {
        125,   /* a stream that moved while its device came back was held to its promise too early */
        2595,  /* a stream that closed while its device came back left a wake-up behind */
        5663,  /* a change that batches had no room for left the admission state with another period */
        59552, /* a packet that had no promise when it was sent to a GPU was held to one at the backup */
    };
    struct history_totals totals;
    (void)state;
    history_totals_init(&totals);
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        if (!history_run(seeds[i], HISTORY_RIGHT, &totals, text, sizeof text))
            fprintf(stderr, "history %llu:\n%s", (unsigned long long)seeds[i], text);
    assert_int_equal(totals.failed, 0);
}

/* Each rule, broken: one of so many histories from `first` on tells it. */
static const struct breakage {
    const char *name;
    enum history_fault fault;
    uint64_t first, most;
} breakages[] = {
    {"room is promised again at once", HISTORY_RELEASE_AT_ONCE, 60, 800},
    {"newcomers do not wait for their period", HISTORY_OPEN_AT_ONCE, 1, 100},
    {"nor for the end of the batch that was open", HISTORY_BEGIN_AT_ONCE, 10, 400},
    {"what waited goes on all at once", HISTORY_NO_PACING, 1, 100},
    {"a new contract begins with a full bucket", HISTORY_FULL_BUCKET, 1, 800},
    {"streams send more than they are charged for", HISTORY_PROMISE_MORE, 10, 100},
    {"packets are held for a unit that was asked for all of the latency", HISTORY_HOLD_ANYHOW, 50, 800},
    {"a contract settles at once", HISTORY_SETTLE_AT_ONCE, 20, 800},
    {"the packets of a lost GPU come late", HISTORY_FLEE_LATE, 1, 800},
};

static void histories_notice_broken_rules(void **state)
{
    (void)state;
    int64_t asked = environment("MILLRACE_HISTORY_FAULTS", -1);
    uint64_t all = asked > 0 ? (uint64_t)asked : 0;
    if (asked == 0)
        skip();
    for (size_t k = 0; k < sizeof breakages / sizeof breakages[0]; k++) {
        const struct breakage *breakage = &breakages[k];
        uint64_t most = all > 0 ? all : breakage->most;
        struct history_totals totals;
        history_totals_init(&totals);
        for (uint64_t n = 0; n < most && (all > 0 || totals.failed == 0); n++)
            (void)history_run(breakage->first + n, breakage->fault, &totals, text, sizeof text);
        print_message("%s: told by %llu of %llu histories\n", breakage->name,
                      (unsigned long long)totals.failed, (unsigned long long)totals.histories);
        fflush(stdout);
        assert_true(all > 0 || totals.failed > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bound_missed),
        cmocka_unit_test(hard_histories_are_kept),
        cmocka_unit_test(histories_notice_broken_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
