/* The EDF test against reference values and against every window, and sets against the same by tasks. */
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

/* Reads the tasks of one set: columns set, task, C, D, T, and b where with_sections; the files hold the sets
 * in order. A sporadic task (C, D, T) is a stream of single packets of one piece. Writes the longest section
 * b of any task. false: some D exceeds its T, which no stream's does. */
static bool read_tasks(struct table *table, int64_t set, size_t count, bool with_sections,
                       struct perfmodel_cpu_task *tasks, core_ns *longest_ns)
{
    bool constrained = true;
    *longest_ns = 0;
    assert_in_range(count, 1, TASKS_MAX);
    for (size_t i = 0; i < count; i++) {
        assert_true(table_next(table));
        assert_int_equal((int64_t)table->cell[0], set);
        core_ns deadline_ns = (core_ns)table->cell[3], interval_ns = (core_ns)table->cell[4];
        tasks[i] = (struct perfmodel_cpu_task){.cost_ns = (core_ns)table->cell[2],
                                               .deadline_ns = deadline_ns,
                                               .urgency_ns = deadline_ns,
                                               .spacing_ns = interval_ns,
                                               .interval_ns = interval_ns,
                                               .pieces = 1,
                                               .burst_packets = 1};
        constrained = constrained && deadline_ns <= interval_ns;
        if (with_sections && (core_ns)table->cell[5] > *longest_ns)
            *longest_ns = (core_ns)table->cell[5];
    }
    return constrained;
}

/* What the tasks demand of a window: sum of dbf, with so much more for each piece. */
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

/* The reference knows how long each task blocks, the test only the longest: the test accepts no more than the
 * reference with all of that, and no less without it. */
static void test_reference_blocking(void **state)
{
    (void)state;
    struct table sets = table_open(DATA "edfblk_sets.csv"), all_tasks = table_open(DATA "edfblk_tasks.csv");
    struct perfmodel_cpu_task tasks[TASKS_MAX];
    core_ns longest_ns;
    int rows = 0, compared = 0, accepted = 0;
    for (; table_next(&sets); rows++) {
        size_t count = (size_t)sets.cell[1];
        bool holds = sets.cell[10] != 0;
        if (!read_tasks(&all_tasks, (int64_t)sets.cell[0], count, true, tasks, &longest_ns))
            continue;
        struct perfmodel_edf_result blocked = perfmodel_edf_test(tasks, count, 0, longest_ns);
        assert_true(holds || !blocked.accepted);
        assert_true(!holds || perfmodel_edf_test(tasks, count, 0, 0).accepted);
        compared++;
        accepted += blocked.accepted;
    }
    assert_false(table_next(&all_tasks));
    assert_int_equal(rows, 200);
    assert_int_equal(compared, 100);
    print_message("%d of %d accepted with all blocking\n", accepted, compared);
    assert_true(accepted > 10);
}

/* Utilisation 1 is refused as such, whatever the windows are; below it the verdict is the reference's. */
static void test_reference_preemptive(void **state)
{
    (void)state;
    struct table sets = table_open(DATA "pedf_sets.csv"), all_tasks = table_open(DATA "pedf_tasks.csv");
    struct perfmodel_cpu_task tasks[TASKS_MAX];
    core_ns longest_ns;
    int rows = 0, verdicts[PERFMODEL_LIMIT_CPU_DEMAND + 1] = {0};
    for (; table_next(&sets); rows++) {
        size_t count = (size_t)sets.cell[1];
        assert_true(read_tasks(&all_tasks, (int64_t)sets.cell[0], count, false, tasks, &longest_ns));
        struct perfmodel_edf_result result = perfmodel_edf_test(tasks, count, 0, 0);
        verdicts[result.binding]++;
        core_ns first_ns = (core_ns)sets.cell[5];
        if (first_ns > 0)
            assert_int_equal(sum_of_demand(tasks, count, 0, first_ns), (core_ns)sets.cell[6]);
        if (sets.cell[3] >= 1) {
            assert_int_equal(result.binding, PERFMODEL_LIMIT_CPU_UTILISATION);
            continue;
        }
        assert_int_equal(result.accepted, (int)sets.cell[4]);
        if (!result.accepted) {
            assert_true(result.window_ns >= first_ns);
            assert_true(result.demand_ns > result.window_ns);
            assert_int_equal(result.demand_ns, sum_of_demand(tasks, count, 0, result.window_ns));
        }
    }
    assert_false(table_next(&all_tasks));
    assert_int_equal(rows, 220);
    assert_int_equal(verdicts[PERFMODEL_LIMIT_NONE], 175);
    assert_int_equal(verdicts[PERFMODEL_LIMIT_CPU_DEMAND], 12);
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
        core_ns sum_ns = sum_of_demand(tasks, count, 0, window_ns);
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
        core_ns sum_ns = sum_of_demand(tasks, count, 0, result.window_ns);
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
