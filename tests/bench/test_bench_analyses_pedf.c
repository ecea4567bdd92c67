/* One processor, and copies by rate: the columns of tests/data/pedf_*.csv and verner_transfer.csv that the server's own
 * tests have no use for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/analyses/pedf.h"
#include "bench/analyses/transfer.h"
#include "tests/support/table.h"

#include <math.h>

#define TASKS 16

static void test_one_processor(void **state)
{
    (void)state;
    struct test_table sets = test_table_open("pedf_sets.csv"), rows = test_table_open("pedf_tasks.csv");
    int seen = 0, overloaded = 0, violated = 0;

    for (; test_table_next(&sets); seen++) {
        struct analyses_gedf_task tasks[TASKS];
        int64_t response[TASKS];
        const size_t count = (size_t)test_table_int(&sets, "n");
        assert_in_range(count, 1, TASKS);
        for (size_t i = 0; i < count; i++) {
            assert_true(test_table_next(&rows));
            tasks[i] = (struct analyses_gedf_task){.cost = test_table_int(&rows, "C"),
                                                   .deadline = test_table_int(&rows, "D"),
                                                   .period = test_table_int(&rows, "T")};
            response[i] = test_table_int(&rows, "edf_resp");
        }
        const struct analyses_pedf result = analyses_pedf_test(tasks, count);
        assert_int_equal(result.passes, test_table_int(&sets, "ok"));
        assert_int_equal(result.violation, test_table_int(&sets, "first_viol_t"));
        assert_int_equal(result.demand, test_table_int(&sets, "dbf_there"));
        assert_int_equal(result.slack_at, test_table_int(&sets, "t_min_slack"));
        assert_int_equal(result.horizon, test_table_int(&sets, "horizon"));
        assert_int_equal(result.busy_period, test_table_int(&sets, "busy_period"));
        overloaded += result.overloaded;
        violated += !result.passes && !result.overloaded;
        if (result.overloaded)
            continue;
        assert_int_equal(result.slack, test_table_int(&sets, "min_slack"));
        for (size_t i = 0; i < count; i++) {
            const int64_t longest = analyses_pedf_respond(tasks, count, i);
            assert_int_equal(longest, response[i]);
            assert_true(!result.passes || longest <= tasks[i].deadline);
        }
    }
    assert_int_equal(seen, 220);
    assert_int_equal(overloaded, 27);
    assert_true(violated > 5);
}

static void near(const char *size, double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-8 * expected + 5e-7)) /* the file has six decimals */
        fail_msg("%s bytes: %.9f ns, not %.9f", size, value, expected);
}

static void test_copies_by_rate(void **state)
{
    (void)state;
    struct test_table rates = test_table_open("verner_xfer.csv"),
                      times = test_table_open("verner_transfer.csv");
    struct analyses_transfer_row up[16], down[16];
    size_t count = 0, seen = 0;

    while (test_table_next(&rates)) {
        assert_true(count < 16);
        up[count].bytes = down[count].bytes = test_table_real(&rates, "size_bytes");
        up[count].bytes_per_ns = test_table_real(&rates, "h2d_bytes_per_ns");
        down[count++].bytes_per_ns = test_table_real(&rates, "d2h_bytes_per_ns");
    }
    for (; test_table_next(&times); seen++) {
        const double bytes = test_table_real(&times, "size");
        const char *size = test_table_text(&times, "size");
        near(size, analyses_transfer_by_rate_ns(up, count, bytes), test_table_real(&times, "h2d_rate_ns"));
        near(size, analyses_transfer_by_rate_ns(down, count, bytes), test_table_real(&times, "d2h_rate_ns"));
    }
    assert_int_equal(seen, 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_processor),
        cmocka_unit_test(test_copies_by_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
