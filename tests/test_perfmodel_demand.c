/* The demand grid: sound against the exact test, exact under adding and removing, monotone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "perfmodel/demand.h"
#include "tests/support/random.h"

#define TASKS_MAX 4000
#define US        CORE_NS_PER_US
#define MS        CORE_NS_PER_MS

static const struct config_profile profile = {
    .cpu = {.lanes = 8,
            .burst_pieces = 32,
            .piece_bytes = 4096,
            .per_piece_ns = 60,
            .per_byte_fs = {350000, 420000, 490000},
            .lane_ns = {6000, 6000, 6000},
            .queue_granularity_ns = 4096},
    .margins = {.in_ns = 300 * US, .out_ns = 300 * US, .percent = 10},
};

static struct perfmodel_demand *grid_of(core_ns burst_ns)
{
    struct perfmodel_demand *grid = NULL;
    assert_int_equal(perfmodel_demand_create(&grid, burst_ns), CORE_OK);
    return grid;
}

/* From small frequent packets to large rare ones. */
static struct perfmodel_cpu_task random_task(struct test_random *random)
{
    struct perfmodel_cpu_task task;
    struct core_stream_spec spec;
    do {
        spec = (struct core_stream_spec){
            .packet_bytes = 16 * (uint32_t)test_random_log(random, 1, 4096),
            .burst_packets = (uint32_t)test_random_log(random, 1, 16),
            .interval_ns = test_random_log(random, MS / 2, 4000 * MS),
            .latency_ns = test_random_log(random, MS, 2000 * MS),
            .cipher = (enum core_cipher)test_random_in(random, 1, 3),
            .padding = CORE_PADDING_NONE,
        };
    } while (perfmodel_cpu_task_from(&spec, &profile, &task, NULL) != CORE_OK);
    return task;
}

/* Fills a worker until `misses` tasks in a row were refused; the exact test must agree with every acceptance.
 * Returns how many tasks are in. */
static size_t fill(struct test_random *random, struct perfmodel_demand *grid, core_ns burst_ns,
                   struct perfmodel_cpu_task *tasks, size_t most, int misses)
{
    size_t count = 0;
    while (count < most && misses > 0) {
        tasks[count] = random_task(random);
        struct perfmodel_edf_result result = perfmodel_demand_test(grid, &tasks[count]);
        if (result.accepted) {
            assert_true(perfmodel_edf_test(tasks, count + 1, 2 * burst_ns).accepted);
            perfmodel_demand_add(grid, &tasks[count++]);
        } else {
            misses--;
        }
    }
    return count;
}

static void test_sound(void **state)
{
    (void)state;
    struct test_random random = {5};
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    for (int round = 0; round < 25; round++) {
        core_ns burst_ns = test_random_log(&random, 2 * US, 400 * US);
        struct perfmodel_demand *grid = grid_of(burst_ns);
        size_t count = fill(&random, grid, burst_ns, tasks, 150, 20);
        assert_int_equal(perfmodel_demand_streams(grid), count);
        assert_true(perfmodel_demand_test(grid, NULL).accepted);
        perfmodel_demand_destroy(grid);
    }
}

/* What a refusal reports: a demand that does not fit its window, and no less than the exact one there. */
static void test_refusal(void **state)
{
    (void)state;
    struct test_random random = {6};
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    core_ns burst_ns = perfmodel_cpu_burst_ns(&profile);
    int refusals = 0;
    for (int round = 0; round < 20; round++) {
        struct perfmodel_demand *grid = grid_of(burst_ns);
        size_t count = fill(&random, grid, burst_ns, tasks, 200, 5);
        for (int i = 0; i < 50; i++) {
            tasks[count] = random_task(&random);
            struct perfmodel_edf_result result = perfmodel_demand_test(grid, &tasks[count]);
            if (result.binding != PERFMODEL_EDF_DEMAND)
                continue;
            refusals++;
            core_ns exact_ns = 0;
            for (size_t j = 0; j <= count; j++)
                exact_ns += perfmodel_cpu_demand_ns(&tasks[j], result.window_ns);
            assert_false(result.accepted);
            assert_true(result.demand_ns + 2 * burst_ns > result.window_ns);
            assert_true(result.demand_ns >= exact_ns);
        }
        perfmodel_demand_destroy(grid);
    }
    assert_true(refusals > 100);
}

static void assert_same(const struct perfmodel_edf_result *a, const struct perfmodel_edf_result *b)
{
    assert_int_equal(a->accepted, b->accepted);
    assert_int_equal(a->binding, b->binding);
    assert_int_equal(a->window_ns, b->window_ns);
    assert_int_equal(a->demand_ns, b->demand_ns);
    assert_int_equal(a->utilisation_ppb, b->utilisation_ppb);
}

/* The same verdicts and figures with and without tasks that came and went. */
static void test_no_trace(void **state)
{
    (void)state;
    struct test_random random = {7};
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    core_ns burst_ns = perfmodel_cpu_burst_ns(&profile);
    struct perfmodel_demand *grid = grid_of(burst_ns), *copy = NULL;
    size_t count = fill(&random, grid, burst_ns, tasks, 100, 1000);
    assert_int_equal(perfmodel_demand_copy(grid, &copy), CORE_OK);
    /* far more than fits, huge ones too, removed in another order */
    for (size_t i = count; i < count + 500; i++) {
        tasks[i] = random_task(&random);
        if (i % 7 == 0)
            tasks[i].cost_ns = CORE_LATENCY_NS_MAX;
        perfmodel_demand_add(copy, &tasks[i]);
    }
    assert_false(perfmodel_demand_test(copy, NULL).accepted);
    assert_true(perfmodel_demand_headroom_ppb(copy, NULL) < 0);
    for (size_t i = 0; i < 500; i++)
        perfmodel_demand_remove(copy, &tasks[count + (i * 7 + 3) % 500]);
    core_ns window_ns, copy_window_ns;
    assert_int_equal(perfmodel_demand_headroom_ppb(grid, &window_ns),
                     perfmodel_demand_headroom_ppb(copy, &copy_window_ns));
    assert_int_equal(window_ns, copy_window_ns);
    assert_int_equal(perfmodel_demand_utilisation_ppb(grid), perfmodel_demand_utilisation_ppb(copy));
    assert_int_equal(perfmodel_demand_streams(grid), perfmodel_demand_streams(copy));
    for (int i = 0; i < 500; i++) {
        struct perfmodel_cpu_task task = random_task(&random);
        struct perfmodel_edf_result one = perfmodel_demand_test(grid, &task);
        struct perfmodel_edf_result other = perfmodel_demand_test(copy, &task);
        assert_same(&one, &other);
    }
    for (size_t i = 0; i < count; i++)
        perfmodel_demand_remove(copy, &tasks[i]);
    assert_int_equal(perfmodel_demand_headroom_ppb(copy, &copy_window_ns), 1000000000);
    assert_int_equal(copy_window_ns, 0);
    assert_int_equal(perfmodel_demand_utilisation_ppb(copy), 0);
    perfmodel_demand_destroy(copy);
    perfmodel_demand_destroy(grid);
}

/* The grid's own arithmetic (quotients by reciprocals) gives what perfmodel_cpu_demand_ns gives: with one
 * task and no blocking, the demand at the first refused point is the task's own at the next window. */
static void test_matches_plain_demand(void **state)
{
    (void)state;
    struct test_random random = {8};
    struct perfmodel_demand *grid = grid_of(0);
    int compared = 0;
    for (int round = 0; round < 20000; round++) {
        struct perfmodel_cpu_task task = random_task(&random);
        /* so heavy that some window is too short, so light that it need not be the first */
        task.cost_ns = task.interval_ns / task.pieces / test_random_in(&random, 1, 8) *
                           test_random_in(&random, 1, 9) / 10 +
                       1;
        struct perfmodel_edf_result result = perfmodel_demand_test(grid, &task);
        if (result.binding != PERFMODEL_EDF_DEMAND || result.window_ns >= INT64_C(1) << 41)
            continue;
        compared++;
        core_ns low_ns = perfmodel_cpu_demand_ns(&task, result.window_ns);
        core_ns high_ns = perfmodel_cpu_demand_ns(&task, result.window_ns + result.window_ns / 64 + 1024);
        assert_true(low_ns <= result.demand_ns && result.demand_ns <= high_ns);
        assert_int_equal(result.demand_ns % task.cost_ns, 0);
    }
    assert_true(compared > 1000);
    perfmodel_demand_destroy(grid);
}

/* A worker full of streams with one deadline: what the grid loses is no more than its step. */
static void test_loss_bounded(void **state)
{
    (void)state;
    for (core_ns latency_ns = 2 * MS; latency_ns < 100 * MS; latency_ns += latency_ns / 7) {
        struct perfmodel_cpu_task task = {.cost_ns = US,
                                          .deadline_ns = latency_ns,
                                          .urgency_ns = latency_ns,
                                          .spacing_ns = latency_ns,
                                          .interval_ns = 4 * latency_ns,
                                          .pieces = 1,
                                          .burst_packets = 1};
        struct perfmodel_demand *grid = grid_of(50 * US);
        int64_t count = 0, most = (latency_ns - 100 * US) / US;
        for (; perfmodel_demand_test(grid, &task).accepted; count++)
            perfmodel_demand_add(grid, &task);
        assert_true(count <= most &&
                    most - count <= most / 80 + 1); /* 1.1 % and the blocking's share of it */
        perfmodel_demand_destroy(grid);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Streams one after the other, in the same order for both tests, until each refuses one for the first time.
 * Returns the load the grid took over the load the exact test took. */
static double loss_of(struct test_random *random, core_ns burst_ns)
{
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    struct perfmodel_demand *grid = grid_of(burst_ns);
    double exact = 0, taken = 0;
    bool open = true;
    for (size_t count = 0; count < TASKS_MAX; count++) {
        struct perfmodel_cpu_task *task = &tasks[count];
        do
            *task = random_task(random);
        while (task->urgency_ns < 5 * MS / task->pieces);
        task->cost_ns += task->deadline_ns / 100; /* so that about a hundred fit */
        bool fits = perfmodel_edf_test(tasks, count + 1, 2 * burst_ns).accepted;
        open = open && perfmodel_demand_test(grid, task).accepted;
        assert_true(fits || !open);
        if (!fits)
            break;
        exact += (double)perfmodel_cpu_utilisation_ppb(task);
        if (open) {
            perfmodel_demand_add(grid, task);
            taken += (double)perfmodel_cpu_utilisation_ppb(task);
        }
    }
    perfmodel_demand_destroy(grid);
    return taken / exact;
}

static void test_loss_reported(void **state)
{
    (void)state;
    struct test_random random = {9};
    double ratio[40];
    for (int round = 0; round < 40; round++)
        ratio[round] = loss_of(&random, perfmodel_cpu_burst_ns(&profile));
    qsort(ratio, 40, sizeof *ratio, compare);
    print_message("load taken by the grid / by the exact test: median %.4f, least %.4f\n", ratio[20],
                  ratio[0]);
    assert_true(ratio[20] > 0.9);
}

/* Longer intervals and longer latency bounds never turn an acceptance into a refusal. */
static void test_monotone(void **state)
{
    (void)state;
    struct test_random random = {10};
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    core_ns burst_ns = perfmodel_cpu_burst_ns(&profile);
    struct perfmodel_demand *grid = grid_of(burst_ns);
    (void)fill(&random, grid, burst_ns, tasks, 200, 30);
    int accepted = 0;
    for (int round = 0; round < 3000; round++) {
        struct core_stream_spec spec = {.packet_bytes = 16 * (uint32_t)test_random_log(&random, 1, 4096),
                                        .burst_packets = (uint32_t)test_random_log(&random, 1, 16),
                                        .interval_ns = test_random_log(&random, MS / 2, 4000 * MS),
                                        .latency_ns = test_random_log(&random, MS, 2000 * MS),
                                        .cipher = CORE_CIPHER_AES_128_CBC};
        struct perfmodel_cpu_task task;
        if (perfmodel_cpu_task_from(&spec, &profile, &task, NULL) != CORE_OK ||
            !perfmodel_demand_test(grid, &task).accepted)
            continue;
        accepted++;
        if (round % 2)
            spec.interval_ns = test_random_log(&random, spec.interval_ns, CORE_INTERVAL_NS_MAX);
        else
            spec.latency_ns = test_random_log(&random, spec.latency_ns, CORE_LATENCY_NS_MAX);
        assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task, NULL), CORE_OK);
        assert_true(perfmodel_demand_test(grid, &task).accepted);
    }
    assert_true(accepted > 100);
    perfmodel_demand_destroy(grid);
}

/* Streams slower than the grid is long: the tail decides. */
static void test_tail(void **state)
{
    (void)state;
    struct perfmodel_cpu_task task = {.cost_ns = CORE_INTERVAL_NS_MAX / 10,
                                      .deadline_ns = CORE_INTERVAL_NS_MAX,
                                      .urgency_ns = CORE_INTERVAL_NS_MAX,
                                      .spacing_ns = CORE_INTERVAL_NS_MAX,
                                      .interval_ns = CORE_INTERVAL_NS_MAX,
                                      .pieces = 1,
                                      .burst_packets = 1};
    struct perfmodel_demand *grid = grid_of(US);
    for (int i = 0; i < 9; i++) {
        assert_true(perfmodel_demand_test(grid, &task).accepted);
        perfmodel_demand_add(grid, &task);
    }
    assert_int_equal(perfmodel_demand_test(grid, &task).binding, PERFMODEL_EDF_UTILISATION);
    /* 9 of 10 hours' work due within the hour, and now the same once more */
    task.cost_ns -= 1;
    assert_int_equal(perfmodel_demand_test(grid, &task).binding, PERFMODEL_EDF_DEMAND);
    perfmodel_demand_destroy(grid);
}

static void test_overload(void **state)
{
    (void)state;
    struct perfmodel_cpu_task task = {.cost_ns = 2000,
                                      .deadline_ns = 5000,
                                      .urgency_ns = 1000,
                                      .spacing_ns = 5000,
                                      .interval_ns = 5000,
                                      .pieces = 1,
                                      .burst_packets = 1};
    struct perfmodel_demand *grid = grid_of(0);
    struct perfmodel_edf_result result = perfmodel_demand_test(grid, &task);
    assert_int_equal(result.binding, PERFMODEL_EDF_DEMAND);        /* due before the first window */
    assert_in_range(result.utilisation_ppb, 400000000, 400000001); /* shares are rounded up */
    task.urgency_ns = 3000;
    assert_true(perfmodel_demand_test(grid, &task).accepted);
    perfmodel_demand_add(grid, &task);
    assert_in_range(perfmodel_demand_utilisation_ppb(grid), 400000000, 400000001);
    task.cost_ns = 3000;
    result = perfmodel_demand_test(grid, &task);
    assert_int_equal(result.binding, PERFMODEL_EDF_UTILISATION);
    assert_in_range(result.utilisation_ppb, 1000000000, 1000000001);
    perfmodel_demand_add(grid, &task); /* allowed; it just is not accepted as it stands */
    assert_false(perfmodel_demand_test(grid, NULL).accepted);
    assert_true(perfmodel_demand_headroom_ppb(grid, NULL) < 0);
    perfmodel_demand_destroy(grid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_no_trace),     cmocka_unit_test(test_matches_plain_demand),
        cmocka_unit_test(test_loss_bounded), cmocka_unit_test(test_loss_reported),
        cmocka_unit_test(test_monotone),     cmocka_unit_test(test_tail),
        cmocka_unit_test(test_overload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
