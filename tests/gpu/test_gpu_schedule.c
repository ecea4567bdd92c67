/* The schedule of batches: which batch an eligible time belongs to, changes of the period, what is due. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu/schedule.h"
#include "tests/support/random.h"

/* Batches 1..3 of 100 from 1000 on, 4.. of 50: closes at 1100, 1200, 1300, 1350, 1400, ... */
static struct gpu_schedule changed(void)
{
    struct gpu_schedule schedule;
    assert_int_equal(gpu_schedule_init(&schedule, 1000, 100), CORE_OK);
    assert_int_equal(gpu_schedule_change(&schedule, 4, 50), CORE_OK);
    return schedule;
}

static void finds_the_batch(void **state)
{
    static const struct {
        core_ns eligible_ns;
        uint64_t batch;
    } rows[] = {{-5, 1},   {1000, 1}, {1001, 1}, {1100, 1}, {1101, 2}, {1200, 2}, {1201, 3},
                {1299, 3}, {1300, 3}, {1301, 4}, {1350, 4}, {1351, 5}, {1400, 5}, {6300, 103}};
    struct gpu_schedule schedule = changed();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(gpu_schedule_batch(&schedule, rows[i].eligible_ns), rows[i].batch);
}

static void gives_close_times(void **state)
{
    static const struct {
        uint64_t batch;
        core_ns close_ns;
    } rows[] = {{1, 1100}, {2, 1200}, {3, 1300}, {4, 1350}, {5, 1400}, {103, 6300}};
    struct gpu_schedule schedule = changed();
    (void)state;
    assert_int_equal(gpu_schedule_close_ns(&schedule, 0), 1000);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(gpu_schedule_close_ns(&schedule, rows[i].batch), rows[i].close_ns);
}

static void a_later_decision_takes_back_an_earlier_one(void **state)
{
    struct gpu_schedule schedule = changed();
    (void)state;
    assert_int_equal(gpu_schedule_change(&schedule, 3, 10), CORE_OK); /* before batch 4: instead of it */
    assert_int_equal(gpu_schedule_close_ns(&schedule, 2), 1200);
    assert_int_equal(gpu_schedule_close_ns(&schedule, 3), 1210);
    assert_int_equal(gpu_schedule_close_ns(&schedule, 5), 1230);
    assert_int_equal(gpu_schedule_change(&schedule, 3, 20), CORE_OK); /* the same batch */
    assert_int_equal(gpu_schedule_close_ns(&schedule, 3), 1220);
    assert_int_equal(gpu_schedule_change(&schedule, 6, 1), CORE_OK); /* behind it: both stand */
    assert_int_equal(gpu_schedule_close_ns(&schedule, 2), 1200);
    assert_int_equal(gpu_schedule_close_ns(&schedule, 5), 1260);
    assert_int_equal(gpu_schedule_close_ns(&schedule, 7), 1262);
    assert_int_equal(gpu_schedule_batch(&schedule, 1262), 7);
    assert_int_equal(schedule.count, 3);
}

/* Periods 1, 2, 3, ... from batches 1, 3, 5, ...: of ten, the last eight are known, back to batch 5. */
static void forgets_the_oldest(void **state)
{
    struct gpu_schedule schedule;
    core_ns close_ns = 0;
    (void)state;
    assert_int_equal(gpu_schedule_init(&schedule, 0, 1), CORE_OK);
    for (uint64_t i = 2; i <= 10; i++)
        assert_int_equal(gpu_schedule_change(&schedule, 2 * i - 1, (core_ns)i), CORE_OK);
    for (uint64_t batch = 1; batch <= 30; batch++) {
        close_ns += batch < 20 ? (core_ns)(batch + 1) / 2 : 10;
        if (batch >= 4)
            assert_int_equal(gpu_schedule_close_ns(&schedule, batch), close_ns);
        assert_int_equal(gpu_schedule_batch(&schedule, close_ns), batch < 5 ? 5 : batch);
    }
}

/* Two changes while batches of the oldest period are still open: none is due before its time. */
static void changes_in_a_row_close_nothing_early(void **state)
{
    struct gpu_schedule schedule = changed();
    (void)state;
    assert_int_equal(gpu_schedule_change(&schedule, 5, 30), CORE_OK);
    struct gpu_schedule_due due = gpu_schedule_due(&schedule, 1250, 60, 20);
    assert_int_equal(due.close_until, 2);
    assert_int_equal(due.open_until, 4);
    assert_int_equal(due.wake_ns, 1290);
    due = gpu_schedule_due(&schedule, 1381, 60, 20);
    assert_int_equal(due.close_until, 4);
    assert_int_equal(due.open_until, 8); /* begins at 1440 */
}

static void refuses_what_makes_no_sense(void **state)
{
    struct gpu_schedule schedule = changed();
    (void)state;
    assert_int_equal(gpu_schedule_init(&schedule, 0, 0), CORE_INVALID);
    assert_int_equal(gpu_schedule_init(&schedule, 0, 3600 * CORE_NS_PER_S + 1), CORE_INVALID);
    assert_int_equal(gpu_schedule_change(&schedule, 9, 0), CORE_INVALID);
    assert_int_equal(gpu_schedule_change(&schedule, 1, 7), CORE_INVALID);
    assert_int_equal(gpu_schedule_change(&schedule, 0, 7), CORE_INVALID);
    assert_int_equal(gpu_schedule_close_ns(&schedule, 5), 1400); /* as it was */
}

/* Every time lies in its batch's window, and windows leave no gap, through random changes. */
static void every_time_has_one_batch(void **state)
{
    struct test_random random = {7};
    struct gpu_schedule schedule;
    uint64_t from = 1;
    (void)state;
    assert_int_equal(gpu_schedule_init(&schedule, test_random_in(&random, 0, 1000000), 977), CORE_OK);
    for (int change = 0; change < 300; change++) {
        for (int i = 0; i < 50; i++) {
            core_ns low_ns = gpu_schedule_close_ns(&schedule, from - 1) + 1;
            core_ns time_ns = low_ns + test_random_in(&random, 0, 20000);
            uint64_t batch = gpu_schedule_batch(&schedule, time_ns);
            assert_true(batch >= from);
            assert_true(gpu_schedule_close_ns(&schedule, batch - 1) < time_ns);
            assert_true(gpu_schedule_close_ns(&schedule, batch) >= time_ns);
        }
        from = schedule.rows[schedule.count - 1].first;
        assert_int_equal(gpu_schedule_change(&schedule, from + (uint64_t)test_random_in(&random, 1, 9),
                                             test_random_log(&random, 1, 5000)),
                         CORE_OK);
    }
}

/* Opened 10 before they begin, closed 20 after they end. */
static void says_what_is_due(void **state)
{
    static const struct {
        core_ns now_ns;
        uint64_t open_until, close_until;
        core_ns wake_ns;
    } rows[] = {
        {900, 1, 0, 1090},  {1000, 1, 0, 1090}, {1089, 1, 0, 1090},   {1090, 2, 0, 1120},
        {1119, 2, 0, 1120}, {1120, 2, 1, 1190}, {1290, 4, 2, 1320},   {1320, 4, 3, 1340},
        {1340, 5, 3, 1370}, {1370, 5, 4, 1390}, {1700, 12, 10, 1720}, /* woke up late: several at once */
    };
    struct gpu_schedule schedule = changed();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gpu_schedule_due due = gpu_schedule_due(&schedule, rows[i].now_ns, 10, 20);
        assert_int_equal(due.open_until, rows[i].open_until);
        assert_int_equal(due.close_until, rows[i].close_until);
        assert_int_equal(due.wake_ns, rows[i].wake_ns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_batch),
        cmocka_unit_test(gives_close_times),
        cmocka_unit_test(a_later_decision_takes_back_an_earlier_one),
        cmocka_unit_test(forgets_the_oldest),
        cmocka_unit_test(changes_in_a_row_close_nothing_early),
        cmocka_unit_test(refuses_what_makes_no_sense),
        cmocka_unit_test(every_time_has_one_batch),
        cmocka_unit_test(says_what_is_due),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
