/* One-processor EDF tests against reference values, and QPA against going through every deadline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perfmodel/edf.h"
#include "perfmodel/edf_set.h"
#include "tests/support/random.h"

#define DATA       MILLRACE_SOURCE_DIR "/tests/data/"
#define COLUMNS    20
#define TASKS_MAX  16
#define LINE_BYTES 256

/* A CSV file, read line by line into numbers; a cell that is none reads as 0. */
struct table {
    FILE *file;
    double cell[COLUMNS];
};

static struct table table_open(const char *path)
{
    struct table table = {.file = fopen(path, "r")};
    char line[LINE_BYTES];
    assert_non_null(table.file);
    assert_non_null(fgets(line, sizeof line, table.file)); /* the names */
    return table;
}

static bool table_next(struct table *table)
{
    char line[LINE_BYTES];
    if (fgets(line, sizeof line, table->file) == NULL) {
        fclose(table->file);
        return false;
    }
    char *rest = line;
    for (int column = 0; column < COLUMNS && rest != NULL; column++)
        table->cell[column] = strtod(strsep(&rest, ","), NULL);
    return true;
}

/* Reads the tasks of one set: columns set, task, C, D, T, and b where with_sections. The files hold the sets
 * in order. */
static size_t read_tasks(struct table *table, int64_t set, size_t count, bool with_sections,
                         struct perfmodel_edf_task *tasks)
{
    assert_in_range(count, 1, TASKS_MAX);
    for (size_t i = 0; i < count; i++) {
        assert_true(table_next(table));
        assert_int_equal((int64_t)table->cell[0], set);
        tasks[i] = (struct perfmodel_edf_task){.cost = (int64_t)table->cell[2],
                                               .deadline = (int64_t)table->cell[3],
                                               .period = (int64_t)table->cell[4],
                                               .section = with_sections ? (int64_t)table->cell[5] : 0};
    }
    return count;
}

static int64_t demand(const struct perfmodel_edf_task *tasks, size_t count, int64_t window)
{
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        if (window >= tasks[i].deadline)
            sum += tasks[i].cost * ((window - tasks[i].deadline) / tasks[i].period + 1);
    return sum;
}

static int64_t blocking(const struct perfmodel_edf_task *tasks, size_t count, int64_t delta, int64_t window)
{
    int64_t longest = 0;
    for (size_t i = 0; i < count; i++)
        if (tasks[i].deadline > window && tasks[i].section - delta > longest)
            longest = tasks[i].section - delta;
    return longest;
}

/* A refusal by QPA names a window that is really violated, with the true sums. */
static void check_qpa(const struct perfmodel_edf_task *tasks, size_t count, int64_t delta, bool accepted,
                      bool has_window)
{
    struct perfmodel_edf_verdict verdict = perfmodel_edf_sporadic_test(tasks, count, delta);
    assert_int_equal(verdict.accepted, accepted);
    if (!has_window) {
        assert_int_equal(verdict.window, -1);
        return;
    }
    assert_int_equal(verdict.demand, demand(tasks, count, verdict.window));
    assert_int_equal(verdict.blocking, blocking(tasks, count, delta, verdict.window));
    assert_true(verdict.demand + verdict.blocking > verdict.window);
}

/* ok, first violation, demand and blocking there: four cells in a row. */
static void check_blocking_row(const struct perfmodel_edf_task *tasks, size_t count, int64_t delta,
                               const double *cell)
{
    struct perfmodel_edf_verdict verdict = perfmodel_edf_sporadic_exhaustive(tasks, count, delta);
    assert_int_equal(verdict.accepted, (int)cell[0]);
    assert_int_equal(verdict.window, (int64_t)cell[1]);
    assert_int_equal(verdict.demand, (int64_t)cell[2]);
    assert_int_equal(verdict.blocking, (int64_t)cell[3]);
    check_qpa(tasks, count, delta, cell[0] != 0, cell[1] >= 0);
}

static void test_reference_blocking(void **state)
{
    (void)state;
    struct table sets = table_open(DATA "edfblk_sets.csv"), all_tasks = table_open(DATA "edfblk_tasks.csv");
    struct perfmodel_edf_task tasks[TASKS_MAX];
    int rows = 0;
    for (; table_next(&sets); rows++) {
        size_t count = read_tasks(&all_tasks, (int64_t)sets.cell[0], (size_t)sets.cell[1], true, tasks);
        check_blocking_row(tasks, count, 1, &sets.cell[4]);
        check_blocking_row(tasks, count, 0, &sets.cell[10]);
    }
    assert_false(table_next(&all_tasks));
    assert_int_equal(rows, 200);
}

static void test_reference_preemptive(void **state)
{
    (void)state;
    struct table sets = table_open(DATA "pedf_sets.csv"), all_tasks = table_open(DATA "pedf_tasks.csv");
    struct perfmodel_edf_task tasks[TASKS_MAX];
    int rows = 0;
    for (; table_next(&sets); rows++) {
        size_t count = read_tasks(&all_tasks, (int64_t)sets.cell[0], (size_t)sets.cell[1], false, tasks);
        struct perfmodel_edf_verdict verdict = perfmodel_edf_sporadic_exhaustive(tasks, count, 0);
        assert_int_equal(verdict.accepted, (int)sets.cell[4]);
        assert_int_equal(verdict.window, (int64_t)sets.cell[5]);
        if (verdict.window >= 0)
            assert_int_equal(verdict.demand, (int64_t)sets.cell[6]);
        check_qpa(tasks, count, 0, verdict.accepted, verdict.window >= 0);
    }
    assert_false(table_next(&all_tasks));
    assert_int_equal(rows, 220);
}

static size_t random_sporadic(struct test_random *random, struct perfmodel_edf_task *tasks)
{
    size_t count = (size_t)test_random_in(random, 1, 8);
    for (size_t i = 0; i < count; i++) {
        int64_t period = test_random_log(random, 4, 200);
        int64_t cost = test_random_in(random, 1, 1 + period * 2 / (int64_t)count);
        tasks[i] = (struct perfmodel_edf_task){.cost = cost,
                                               .deadline = test_random_in(random, 1, 2 * period),
                                               .period = period,
                                               .section = test_random_in(random, 0, cost / 2)};
    }
    return count;
}

static void test_qpa_is_exhaustive(void **state)
{
    (void)state;
    struct test_random random = {3};
    struct perfmodel_edf_task tasks[TASKS_MAX];
    int verdicts[2] = {0, 0};
    for (int round = 0; round < 20000; round++) {
        size_t count = random_sporadic(&random, tasks);
        int64_t delta = round % 2;
        struct perfmodel_edf_verdict verdict = perfmodel_edf_sporadic_exhaustive(tasks, count, delta);
        check_qpa(tasks, count, delta, verdict.accepted, verdict.window >= 0);
        verdicts[verdict.accepted]++;
    }
    assert_true(verdicts[0] > 2000 && verdicts[1] > 2000);
}

static void test_full_utilisation(void **state)
{
    (void)state;
    /* 1/2 + 1/3 + 1/6 = 1 exactly */
    struct perfmodel_edf_task tasks[] = {{1, 2, 2, 0}, {1, 3, 3, 0}, {1, 6, 6, 0}};
    assert_true(perfmodel_edf_sporadic_test(tasks, 3, 0).accepted);
    assert_true(perfmodel_edf_sporadic_exhaustive(tasks, 3, 0).accepted);
    tasks[1].deadline = tasks[2].deadline = 2; /* three due at 2 */
    assert_int_equal(perfmodel_edf_sporadic_exhaustive(tasks, 3, 0).window, 2);
    assert_false(perfmodel_edf_sporadic_test(tasks, 3, 0).accepted);
    tasks[2] = (struct perfmodel_edf_task){2, 11, 11, 0}; /* 1/2 + 1/3 + 2/11 > 1 */
    assert_false(perfmodel_edf_sporadic_test(tasks, 3, 0).accepted);
    assert_true(perfmodel_edf_sporadic_test(NULL, 0, 0).accepted);
}

/* Streams with small numbers, so that every window can be looked at. */

static struct perfmodel_cpu_task random_stream(struct test_random *random, int64_t streams)
{
    struct perfmodel_cpu_task task = {0};
    task.pieces = (uint32_t)test_random_in(random, 1, 3);
    task.burst_packets = (uint32_t)test_random_in(random, 1, 4);
    task.spacing_ns = test_random_log(random, 4 * task.pieces, 150);
    task.deadline_ns = task.spacing_ns / task.pieces;
    task.urgency_ns = task.deadline_ns - test_random_in(random, 0, task.deadline_ns > 2 ? 2 : 0);
    task.interval_ns = task.spacing_ns * test_random_in(random, 10, 40) / 10;
    task.cost_ns = test_random_in(random, 1, 1 + task.deadline_ns * 14 / 10 / streams);
    return task;
}

#define WINDOWS 6000

/* First violated window below WINDOWS, 0 if none. */
static core_ns first_violation(const struct perfmodel_cpu_task *tasks, size_t count, core_ns blocking_ns)
{
    for (core_ns window_ns = 1; window_ns < WINDOWS; window_ns++) {
        core_ns sum_ns = 0;
        for (size_t i = 0; i < count; i++)
            sum_ns += perfmodel_cpu_demand_ns(&tasks[i], window_ns);
        if (sum_ns > 0 && sum_ns + blocking_ns > window_ns)
            return window_ns;
    }
    return 0;
}

static void check_streams(const struct perfmodel_cpu_task *tasks, size_t count, core_ns blocking_ns,
                          int *verdicts)
{
    struct perfmodel_edf_result result = perfmodel_edf_test(tasks, count, 0, blocking_ns);
    core_ns first_ns = first_violation(tasks, count, blocking_ns);
    verdicts[result.binding]++;
    if (result.binding == PERFMODEL_LIMIT_NONE) {
        assert_true(result.accepted);
        assert_int_equal(first_ns, 0);
    } else if (result.binding == PERFMODEL_LIMIT_CPU_DEMAND) {
        core_ns sum_ns = 0;
        for (size_t i = 0; i < count; i++)
            sum_ns += perfmodel_cpu_demand_ns(&tasks[i], result.window_ns);
        assert_false(result.accepted);
        assert_int_equal(result.demand_ns, sum_ns);
        assert_true(sum_ns + blocking_ns > result.window_ns);
        assert_true(first_ns > 0 || result.window_ns >= WINDOWS);
    } else {
        assert_false(result.accepted);
        assert_true(result.utilisation_ppb >= 1000000000);
    }
}

static void test_streams_against_every_window(void **state)
{
    (void)state;
    struct test_random random = {4};
    struct perfmodel_cpu_task tasks[TASKS_MAX];
    int verdicts[PERFMODEL_LIMIT_CPU_DEMAND + 1] = {0};
    for (int round = 0; round < 3000; round++) {
        size_t count = (size_t)test_random_in(&random, 1, 8);
        for (size_t i = 0; i < count; i++)
            tasks[i] = random_stream(&random, (int64_t)count);
        check_streams(tasks, count, test_random_in(&random, 0, 6), verdicts);
    }
    print_message("%d accepted, %d of utilisation, %d of demand\n", verdicts[0], verdicts[1], verdicts[2]);
    assert_true(verdicts[PERFMODEL_LIMIT_NONE] > 300 && verdicts[PERFMODEL_LIMIT_CPU_DEMAND] > 300 &&
                verdicts[PERFMODEL_LIMIT_CPU_UTILISATION] > 10);
}

/* ---- sets ---- */

static core_ns sum_of_demand(const struct perfmodel_cpu_task *tasks, size_t count, core_ns surcharge_ns,
                             core_ns window_ns)
{
    core_ns sum_ns = 0;
    for (size_t i = 0; i < count; i++) {
        core_ns x_ns = window_ns - tasks[i].urgency_ns;
        sum_ns += x_ns < 0 ? 0 : perfmodel_cpu_count(&tasks[i], x_ns) * (tasks[i].cost_ns + surcharge_ns);
    }
    return sum_ns;
}

/* The same answer as perfmodel_edf_test; a window it names is overfull, and each window is told as it is. */
static void check_set(struct perfmodel_edf_set *set, const struct perfmodel_cpu_task *tasks, size_t count,
                      core_ns surcharge_ns, core_ns blocking_ns, struct test_random *random, int *verdicts)
{
    struct perfmodel_edf_result by_tasks = perfmodel_edf_test(tasks, count, surcharge_ns, blocking_ns);
    perfmodel_edf_set_fill(set, tasks, count, surcharge_ns, blocking_ns);
    struct perfmodel_edf_result by_set = perfmodel_edf_set_test(set);
    verdicts[by_set.binding]++;
    assert_int_equal(by_set.accepted, by_tasks.accepted);
    assert_int_equal(by_set.blocking_ns, blocking_ns);
    if (by_tasks.binding != PERFMODEL_LIMIT_CPU_UTILISATION)
        assert_in_range(by_set.utilisation_ppb - by_tasks.utilisation_ppb + 1, 0, 2);
    if (by_set.binding == PERFMODEL_LIMIT_CPU_DEMAND) {
        assert_int_equal(by_set.demand_ns, sum_of_demand(tasks, count, surcharge_ns, by_set.window_ns));
        assert_true(by_set.demand_ns + blocking_ns > by_set.window_ns);
    }
    for (int i = 0; i < 20; i++) {
        core_ns window_ns = test_random_in(random, 1, INT64_C(1) << test_random_in(random, 1, 40));
        core_ns sum_ns = sum_of_demand(tasks, count, surcharge_ns, window_ns);
        struct perfmodel_edf_result window = perfmodel_edf_set_test_windows(set, &window_ns, 1);
        assert_int_equal(window.accepted, sum_ns == 0 || sum_ns + blocking_ns <= window_ns);
        assert_true(window.accepted || (window.demand_ns == sum_ns && window.window_ns == window_ns));
    }
}

#define SET_MOST 40

/* Times as streams have them; packets of up to three pieces, bursts of up to four, spaced by the interval or
 * closer, and a load around one. */
static struct perfmodel_cpu_task random_stream_in_ns(struct test_random *random, int64_t streams)
{
    struct perfmodel_cpu_task task = {.pieces = (uint32_t)test_random_in(random, 1, 3),
                                      .burst_packets = (uint32_t)test_random_in(random, 1, 4)};
    task.interval_ns = test_random_in(random, 20000, INT64_C(1) << test_random_in(random, 15, 34));
    task.spacing_ns = test_random_in(random, 0, 2) == 0 ? task.interval_ns
                                                        : test_random_in(random, 10000, task.interval_ns);
    task.deadline_ns = task.spacing_ns / task.pieces;
    task.urgency_ns = task.deadline_ns - test_random_in(random, 0, task.deadline_ns / 2);
    task.cost_ns = 1 + task.interval_ns / task.pieces / streams * test_random_in(random, 20, 120) / 100;
    return task;
}

static void test_sets_as_tasks(void **state)
{
    (void)state;
    struct test_random random = {21};
    struct perfmodel_cpu_task tasks[SET_MOST];
    struct perfmodel_edf_set *set = NULL;
    int verdicts[PERFMODEL_LIMIT_CPU_DEMAND + 1] = {0};
    assert_int_equal(perfmodel_edf_set_create(&set), CORE_OK);
    for (int round = 0; round < 6000; round++) {
        bool small = round % 2 == 0;
        size_t count = (size_t)test_random_in(&random, 1, small ? 8 : SET_MOST);
        for (size_t i = 0; i < count; i++)
            tasks[i] =
                small ? random_stream(&random, (int64_t)count) : random_stream_in_ns(&random, (int64_t)count);
        check_set(set, tasks, count, test_random_in(&random, 0, 2), test_random_in(&random, 0, 6), &random,
                  verdicts);
    }
    perfmodel_edf_set_destroy(set);
    print_message("%d accepted, %d of utilisation, %d of demand\n", verdicts[0], verdicts[1], verdicts[2]);
    assert_true(verdicts[PERFMODEL_LIMIT_NONE] > 300 && verdicts[PERFMODEL_LIMIT_CPU_DEMAND] > 300 &&
                verdicts[PERFMODEL_LIMIT_CPU_UTILISATION] > 10);
}

/* What is out of its ranges goes by the tasks: no stream; too many pieces; nearly full; times too long. */
static void test_sets_out_of_range(void **state)
{
    (void)state;
    struct perfmodel_edf_set *set = NULL;
    struct perfmodel_cpu_task task = {.cost_ns = 1000,
                                      .deadline_ns = 10000,
                                      .urgency_ns = 10000,
                                      .spacing_ns = 1280000,
                                      .interval_ns = 2000000,
                                      .pieces = 128,
                                      .burst_packets = 1};
    assert_int_equal(perfmodel_edf_set_create(&set), CORE_OK);
    perfmodel_edf_set_fill(set, NULL, 0, 0, 1000);
    assert_true(perfmodel_edf_set_test(set).accepted);
    perfmodel_edf_set_fill(set, &task, 1, 0, 9000);
    assert_true(perfmodel_edf_set_test(set).accepted);
    perfmodel_edf_set_fill(set, &task, 1, 0, 9001);
    assert_int_equal(perfmodel_edf_set_test(set).binding, PERFMODEL_LIMIT_CPU_DEMAND);
    task = (struct perfmodel_cpu_task){.cost_ns = CORE_NS_PER_S - 1,
                                       .deadline_ns = CORE_NS_PER_S,
                                       .urgency_ns = CORE_NS_PER_S,
                                       .spacing_ns = CORE_NS_PER_S,
                                       .interval_ns = CORE_NS_PER_S,
                                       .pieces = 1,
                                       .burst_packets = 1};
    perfmodel_edf_set_fill(set, &task, 1, 0, 1);
    assert_true(perfmodel_edf_set_test(set).accepted);
    perfmodel_edf_set_fill(set, &task, 1, 0, 2);
    assert_int_equal(perfmodel_edf_set_test(set).binding, PERFMODEL_LIMIT_CPU_DEMAND);
    task.burst_packets = 1000000;
    task.interval_ns = CORE_INTERVAL_NS_MAX;
    perfmodel_edf_set_fill(set, &task, 1, 0, 0);
    assert_true(perfmodel_edf_set_test(set).accepted);
    task.cost_ns = CORE_NS_PER_S + 1;
    perfmodel_edf_set_fill(set, &task, 1, 0, 0);
    assert_int_equal(perfmodel_edf_set_test(set).binding, PERFMODEL_LIMIT_CPU_DEMAND);
    perfmodel_edf_set_destroy(set);
}

/* A surcharge is the same as so much higher costs. */
static void test_surcharge(void **state)
{
    (void)state;
    struct test_random random = {12};
    struct perfmodel_cpu_task tasks[TASKS_MAX], dearer[TASKS_MAX];
    for (int round = 0; round < 2000; round++) {
        size_t count = (size_t)test_random_in(&random, 1, 8);
        core_ns surcharge_ns = test_random_in(&random, 1, 4), blocking_ns = test_random_in(&random, 0, 6);
        for (size_t i = 0; i < count; i++) {
            tasks[i] = dearer[i] = random_stream(&random, (int64_t)count);
            dearer[i].cost_ns += surcharge_ns;
        }
        struct perfmodel_edf_result one = perfmodel_edf_test(tasks, count, surcharge_ns, blocking_ns);
        struct perfmodel_edf_result other = perfmodel_edf_test(dearer, count, 0, blocking_ns);
        assert_int_equal(one.accepted, other.accepted);
        assert_int_equal(one.binding, other.binding);
        assert_int_equal(one.window_ns, other.window_ns);
        assert_int_equal(one.demand_ns, other.demand_ns);
        assert_int_equal(one.utilisation_ppb, other.utilisation_ppb);
    }
}

static const struct perfmodel_cpu_task plain = {.cost_ns = 1000,
                                                .deadline_ns = 10000,
                                                .urgency_ns = 10000,
                                                .spacing_ns = 10000,
                                                .interval_ns = 20000,
                                                .pieces = 1,
                                                .burst_packets = 1};

/* n streams alike, due together: accepted as long as n C + blocking <= u. */
static void test_streams_boundary(void **state)
{
    (void)state;
    struct perfmodel_cpu_task tasks[9];
    for (size_t i = 0; i < 9; i++)
        tasks[i] = plain;
    assert_true(perfmodel_edf_test(tasks, 9, 0, 1000).accepted);
    struct perfmodel_edf_result result = perfmodel_edf_test(tasks, 9, 0, 1001);
    assert_int_equal(result.binding, PERFMODEL_LIMIT_CPU_DEMAND);
    assert_int_equal(result.window_ns, 10000);
    assert_int_equal(result.demand_ns, 9000);
    assert_in_range(result.utilisation_ppb, 450000000, 450000001); /* shares are rounded up */
    assert_true(perfmodel_edf_test(NULL, 0, 0, 1000).accepted);
}

/* A share of one is refused, the least below one is not refused for that, and nothing overflows on the way:
 * with 1 - U of a billionth, L is some 10^13 ns. */
static void test_streams_nearly_full(void **state)
{
    (void)state;
    struct perfmodel_cpu_task task = plain;
    task.urgency_ns = task.deadline_ns = task.spacing_ns = task.interval_ns = CORE_NS_PER_S;
    task.cost_ns = CORE_NS_PER_S;
    assert_int_equal(perfmodel_edf_test(&task, 1, 0, 0).binding, PERFMODEL_LIMIT_CPU_UTILISATION);
    task.cost_ns = CORE_NS_PER_S - 1;
    assert_true(perfmodel_edf_test(&task, 1, 0, 1).accepted);
    assert_int_equal(perfmodel_edf_test(&task, 1, 0, 2).binding, PERFMODEL_LIMIT_CPU_DEMAND);
}

/* Work so long that its products would not fit in 64 bits. */
static void test_streams_extreme(void **state)
{
    (void)state;
    struct perfmodel_cpu_task task = {.cost_ns = CORE_LATENCY_NS_MAX,
                                      .deadline_ns = 1000,
                                      .urgency_ns = 1000,
                                      .spacing_ns = 65536000,
                                      .interval_ns = CORE_INTERVAL_NS_MAX,
                                      .pieces = 65536,
                                      .burst_packets = 50000};
    assert_int_equal(perfmodel_edf_test(&task, 1, 0, 1).binding, PERFMODEL_LIMIT_CPU_UTILISATION);
    task.cost_ns = 54000000; /* 0.98 of the worker in the long run, but 49,000 hours in one burst */
    struct perfmodel_edf_result result = perfmodel_edf_test(&task, 1, 0, 1);
    assert_int_equal(result.binding, PERFMODEL_LIMIT_CPU_DEMAND);
    assert_int_equal(result.demand_ns, INT64_C(65536) * 50000 * 54000000);
    assert_true(result.demand_ns > result.window_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_blocking),
        cmocka_unit_test(test_reference_preemptive),
        cmocka_unit_test(test_qpa_is_exhaustive),
        cmocka_unit_test(test_full_utilisation),
        cmocka_unit_test(test_streams_against_every_window),
        cmocka_unit_test(test_sets_as_tasks),
        cmocka_unit_test(test_sets_out_of_range),
        cmocka_unit_test(test_surcharge),
        cmocka_unit_test(test_streams_boundary),
        cmocka_unit_test(test_streams_nearly_full),
        cmocka_unit_test(test_streams_extreme),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
