/* The demand grid: sound against the exact test, exact under adding and removing, monotone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "perfmodel/demand.h"
#include "perfmodel/edf_packets.h"
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
            .decrypt_more_percent = 30,
            .queue_granularity_ns = 4096},
    .margins = {.in_ns = 300 * US, .out_ns = 300 * US, .percent = 10},
};

/* Nothing is charged beside the tasks' own costs but q = the largest of them + lane_ns. */
static struct config_profile plain_profile(core_ns lane_ns)
{
    struct config_profile plain = {.cpu = {.lanes = 1, .burst_pieces = 1, .piece_bytes = 65520}};
    plain.cpu.lane_ns[0] = lane_ns;
    return plain;
}

static struct perfmodel_demand *grid_of(const struct config_profile *from)
{
    struct perfmodel_demand *grid = NULL;
    assert_int_equal(perfmodel_demand_create(&grid, from), CORE_OK);
    return grid;
}

/* What a task alone demands of a window: dbf of perfmodel/cpu.h. */
static core_ns demand_of(const struct perfmodel_cpu_task *task, core_ns window_ns)
{
    return window_ns < task->urgency_ns
               ? 0
               : perfmodel_cpu_count(task, window_ns - task->urgency_ns) * task->cost_ns;
}

static bool exact_accepts(const struct config_profile *from, const struct perfmodel_cpu_task *tasks,
                          size_t count)
{
    struct perfmodel_cpu_mix mix = {0};
    for (size_t i = 0; i < count; i++)
        perfmodel_cpu_mix_add(&mix, from->cpu.burst_pieces, &tasks[i]);
    const struct perfmodel_cpu_worker worker = perfmodel_cpu_worker_of(from);
    return perfmodel_edf_test(tasks, count, perfmodel_cpu_surcharge_ns(from, mix.ciphers),
                              2 * perfmodel_cpu_blocking_ns(from, &mix))
               .accepted ||
           (count <= PERFMODEL_EDF_PACKETS_MOST &&
            perfmodel_edf_packets_test(tasks, count, &worker, 0).accepted);
}

/* From small frequent packets to large rare ones. */
static struct perfmodel_cpu_task random_task(struct test_random *random, const struct config_profile *from)
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
            .direction = test_random_chance(random, 25) ? CORE_DIRECTION_DECRYPT : CORE_DIRECTION_ENCRYPT,
        };
    } while (perfmodel_cpu_task_from(&spec, from, &task, NULL) != CORE_OK);
    return task;
}

/* Fills a worker until `misses` tasks were refused; the exact test must agree with every acceptance. Returns
 * how many tasks are in. */
static size_t fill(struct test_random *random, struct perfmodel_demand *grid,
                   const struct config_profile *from, struct perfmodel_cpu_task *tasks, size_t most,
                   int misses)
{
    size_t count = 0;
    while (count < most && misses > 0) {
        tasks[count] = random_task(random, from);
        if (perfmodel_demand_test(grid, &tasks[count]).accepted) {
            assert_true(exact_accepts(from, tasks, count + 1));
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
    for (int round = 0; round < 12; round++) {
        struct config_profile from = profile;
        int64_t per_byte_fs = test_random_log(&random, 100000, 20000000);
        for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
            from.cpu.per_byte_fs[i] = per_byte_fs * (3 + i) / 3;
            from.cpu.lane_ns[i] = test_random_log(&random, 100, 40000);
        }
        struct perfmodel_demand *grid = grid_of(&from);
        size_t count = fill(&random, grid, &from, tasks, 150, 20);
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
    int refusals = 0;
    for (int round = 0; round < 20; round++) {
        struct perfmodel_demand *grid = grid_of(&profile);
        size_t count = fill(&random, grid, &profile, tasks, 200, 5);
        for (int i = 0; i < 50; i++) {
            tasks[count] = random_task(&random, &profile);
            struct perfmodel_edf_result result = perfmodel_demand_test(grid, &tasks[count]);
            if (result.binding != PERFMODEL_LIMIT_CPU_DEMAND)
                continue;
            refusals++;
            core_ns exact_ns = 0;
            for (size_t j = 0; j <= count; j++)
                exact_ns += demand_of(&tasks[j], result.window_ns);
            assert_false(result.accepted);
            assert_true(result.demand_ns + result.blocking_ns > result.window_ns);
            assert_true(result.demand_ns >= exact_ns);
        }
        perfmodel_demand_destroy(grid);
    }
    assert_true(refusals > 100);
}

/* The worker pays for the ciphers and the pieces that it has, and no longer when they are gone. */
static void test_company(void **state)
{
    (void)state;
    struct perfmodel_demand *grid = grid_of(&profile);
    struct perfmodel_cpu_task task[3];
    core_ns blocking_ns[3];
    for (int i = 0; i < 3; i++) {
        struct core_stream_spec spec = {.packet_bytes = UINT32_C(1024) << i,
                                        .burst_packets = 1,
                                        .interval_ns = 20 * MS,
                                        .latency_ns = 20 * MS,
                                        .cipher = (enum core_cipher)(i + 1)};
        assert_int_equal(perfmodel_cpu_task_from(&spec, &profile, &task[i], NULL), CORE_OK);
        blocking_ns[i] = perfmodel_demand_test(grid, &task[i]).blocking_ns;
        perfmodel_demand_add(grid, &task[i]);
        assert_int_equal(perfmodel_demand_test(grid, NULL).blocking_ns, blocking_ns[i]);
    }
    /* a piece of 66 + 1.1 * 0.35 * 1024 (461), 66 + 1.1 * 0.42 * 2048 (1013), 66 + 1.1 * 0.49 * 4096 (2274)
     * ns; 6.6 us a cipher */
    assert_int_equal(blocking_ns[0], 2 * (461 + 6600));
    assert_int_equal(blocking_ns[1], 2 * (461 + 1013 + 13200));
    assert_int_equal(blocking_ns[2], 2 * (461 + 1013 + 2274 + 19800));
    int64_t full_ppb = perfmodel_demand_utilisation_ppb(grid);
    perfmodel_demand_remove(grid, &task[2]);
    assert_int_equal(perfmodel_demand_test(grid, NULL).blocking_ns, blocking_ns[1]);
    /* the cost of the third, and 1.1 * 6 us / 32 less for each of the others, every 20 ms */
    int64_t less_ppb = full_ppb - perfmodel_demand_utilisation_ppb(grid);
    assert_in_range(less_ppb, (2274 + 3 * 206 + 2 * 206) * 50 - 200, (2274 + 3 * 207 + 2 * 207) * 50 + 200);
    perfmodel_demand_remove(grid, &task[0]);
    assert_int_equal(perfmodel_demand_test(grid, NULL).blocking_ns, 2 * (1013 + 6600));
    perfmodel_demand_destroy(grid);
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
    struct config_profile wide = profile;
    wide.cpu.piece_bytes = 65520; /* longer than any piece of `profile` */
    struct perfmodel_demand *grid = grid_of(&wide), *copy = NULL;
    size_t count = fill(&random, grid, &profile, tasks, 100, 1000);
    assert_int_equal(perfmodel_demand_copy(grid, &copy), CORE_OK);
    /* far more than fits, huge ones too, removed in another order */
    for (size_t i = count; i < count + 500; i++) {
        tasks[i] = random_task(&random, &profile);
        if (i % 7 == 0) {
            tasks[i].cost_ns = CORE_LATENCY_NS_MAX;
            tasks[i].piece_bytes = 65520; /* a kind of its own */
        }
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
        struct perfmodel_cpu_task task = random_task(&random, &profile);
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

/* With a reserve a task is accepted exactly if it would leave so much room. */
static void test_reserve(void **state)
{
    (void)state;
    struct test_random random = {18};
    const int64_t whole_ppb = 1000000000;
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    int compared = 0, by_share = 0;
    for (int round = 0; round < 40; round++) {
        struct perfmodel_demand *grid = grid_of(&profile);
        (void)fill(&random, grid, &profile, tasks, round % 4 == 0 ? 10 : 130 + 2 * (size_t)round, 100);
        for (int probe = 0; probe < 20; probe++) {
            struct perfmodel_cpu_task task = random_task(&random, &profile);
            if (!perfmodel_demand_test(grid, &task).accepted)
                continue;
            perfmodel_demand_add(grid, &task);
            int64_t room_ppb = perfmodel_demand_headroom_ppb(grid, NULL);
            int64_t left_ppb = whole_ppb - perfmodel_demand_utilisation_ppb(grid);
            int64_t most_ppb = room_ppb < left_ppb ? room_ppb : left_ppb;
            by_share += left_ppb < room_ppb;
            bool by_packets = perfmodel_demand_test(grid, NULL).by_packets;
            perfmodel_demand_remove(grid, &task);
            if (by_packets)
                continue;
            for (int64_t reserve_ppb = most_ppb - 2; reserve_ppb <= most_ppb + 2; reserve_ppb++) {
                if (reserve_ppb < 0 || reserve_ppb > whole_ppb || reserve_ppb == most_ppb)
                    continue;
                struct perfmodel_edf_result result = perfmodel_demand_test_within(grid, &task, reserve_ppb);
                assert_int_equal(result.accepted && !result.by_packets, reserve_ppb < most_ppb);
                compared++;
            }
            assert_false(perfmodel_demand_test_within(grid, &task, whole_ppb).accepted);
        }
        perfmodel_demand_destroy(grid);
    }
    print_message("%d compared, by the long run %d\n", compared, by_share);
    assert_true(compared > 250);
}

/* The grid's own arithmetic (quotients by reciprocals) gives what perfmodel_cpu_count gives: with one
 * task and no blocking, the demand at the first refused point is the task's own at the next window. */
static void test_matches_plain_demand(void **state)
{
    (void)state;
    struct test_random random = {8};
    struct config_profile plain = plain_profile(0);
    struct perfmodel_demand *grid = grid_of(&plain);
    int compared = 0;
    for (int round = 0; round < 20000; round++) {
        struct perfmodel_cpu_task task = random_task(&random, &profile);
        /* so heavy that some window is too short, so light that it need not be the first */
        task.cost_ns = task.interval_ns / task.pieces / test_random_in(&random, 1, 8) *
                           test_random_in(&random, 1, 9) / 10 +
                       1;
        struct perfmodel_edf_result result = perfmodel_demand_test(grid, &task);
        if (result.binding != PERFMODEL_LIMIT_CPU_DEMAND || result.window_ns >= INT64_C(1) << 41)
            continue;
        assert_int_equal(result.blocking_ns, 2 * task.cost_ns);
        compared++;
        core_ns low_ns = demand_of(&task, result.window_ns);
        core_ns high_ns = demand_of(&task, result.window_ns + result.window_ns / 64 + 1024);
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
        struct perfmodel_cpu_task task = {.cost_ns = 20 * US,
                                          .deadline_ns = latency_ns,
                                          .urgency_ns = latency_ns,
                                          .spacing_ns = latency_ns,
                                          .interval_ns = 4 * latency_ns,
                                          .pieces = 1,
                                          .burst_packets = 1,
                                          .cipher = CORE_CIPHER_AES_192_CBC};
        struct config_profile plain = plain_profile(0);
        struct perfmodel_demand *grid = grid_of(&plain);
        int64_t count = 0, most = latency_ns / (20 * US); /* two less by the pieces */
        for (; perfmodel_demand_test(grid, &task).accepted; count++)
            perfmodel_demand_add(grid, &task);
        assert_true(count <= most && most - count <= most / 90 + 3);
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
static double loss_of(struct test_random *random, const struct config_profile *from)
{
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    struct perfmodel_demand *grid = grid_of(from);
    double exact = 0, taken = 0;
    bool open = true;
    for (size_t count = 0; count < TASKS_MAX; count++) {
        struct perfmodel_cpu_task *task = &tasks[count];
        do
            *task = random_task(random, from);
        while (task->urgency_ns < 3 * perfmodel_cpu_burst_ns(from));
        bool fits = exact_accepts(from, tasks, count + 1);
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
    double ratio[15];
    struct config_profile slow = profile; /* some ten to a hundred streams fit */
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        slow.cpu.per_byte_fs[i] *= 200;
    for (int round = 0; round < 15; round++)
        ratio[round] = loss_of(&random, &slow);
    qsort(ratio, 15, sizeof *ratio, compare);
    print_message("load taken by the grid / by the exact test: median %.4f, least %.4f\n", ratio[7],
                  ratio[0]);
    assert_true(ratio[7] > 0.9);
}

/* Longer intervals and longer latency bounds never turn an acceptance into a refusal. */
static void test_monotone(void **state)
{
    (void)state;
    struct test_random random = {10};
    static struct perfmodel_cpu_task tasks[TASKS_MAX];
    struct perfmodel_demand *grid = grid_of(&profile);
    (void)fill(&random, grid, &profile, tasks, PERFMODEL_EDF_PACKETS_MOST / 2, 3);
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

/* A set that only the packets accept, by steps of which those beyond the horizon fail: sixty streams, of which the
 * rare ones are due beyond it. Each of them that asks for a longer interval and leaves its bound as it is moves the
 * line of all streams up, past steps that fail. */
static void test_rare_streams_ask_for_less(void **state)
{
    (void)state;
    enum { OFTEN = 20, RARE = 40 };
    const core_ns unit_ns = 1 << 24;
    const struct config_profile from = plain_profile(0);
    const struct perfmodel_cpu_worker worker = perfmodel_cpu_worker_of(&from);
    struct perfmodel_cpu_task tasks[OFTEN + RARE];
    for (size_t i = 0; i < OFTEN + RARE; i++) {
        const core_ns interval_ns = i < OFTEN ? unit_ns : 62 * unit_ns;
        tasks[i] = (struct perfmodel_cpu_task){.cost_ns = unit_ns * (i < OFTEN ? 493 : 70) / 10000,
                                               .deadline_ns = interval_ns,
                                               .urgency_ns = interval_ns,
                                               .spacing_ns = interval_ns,
                                               .interval_ns = interval_ns,
                                               .pieces = 1,
                                               .burst_packets = 1,
                                               .piece_bytes = 16,
                                               .cipher = CORE_CIPHER_AES_128_CBC};
    }
    assert_true(perfmodel_edf_packets_test(tasks, OFTEN + RARE, &worker, 0).accepted);
    for (int round = 0; round < 8; round++)
        for (size_t i = OFTEN; i < OFTEN + RARE; i++) {
            tasks[i].interval_ns += tasks[i].interval_ns / 4;
            assert_true(perfmodel_edf_packets_test(tasks, OFTEN + RARE, &worker, 0).accepted);
        }
}

/* Streams about as slow as the grid is long: hours of work are neither lost nor overflow. */
static void test_longest_times(void **state)
{
    (void)state;
    struct perfmodel_cpu_task task = {.cost_ns = CORE_INTERVAL_NS_MAX / 100,
                                      .deadline_ns = CORE_INTERVAL_NS_MAX,
                                      .urgency_ns = CORE_INTERVAL_NS_MAX,
                                      .spacing_ns = CORE_INTERVAL_NS_MAX,
                                      .interval_ns = CORE_INTERVAL_NS_MAX,
                                      .pieces = 1,
                                      .burst_packets = 1,
                                      .cipher = CORE_CIPHER_AES_128_CBC};
    struct config_profile plain = plain_profile(0);
    struct perfmodel_demand *grid = grid_of(&plain);
    int count = 0;
    for (; perfmodel_demand_test(grid, &task).accepted; count++)
        perfmodel_demand_add(grid, &task);
    assert_in_range(count, 96, 98); /* 98 and two bursts fit, less the grid's step; too many for packets */
    assert_int_equal(perfmodel_demand_test(grid, &task).binding, PERFMODEL_LIMIT_CPU_DEMAND);
    for (; count < 99; count++)
        perfmodel_demand_add(grid, &task);
    assert_int_equal(perfmodel_demand_test(grid, &task).binding, PERFMODEL_LIMIT_CPU_UTILISATION);
    perfmodel_demand_destroy(grid);
}

static void test_overload(void **state)
{
    (void)state;
    struct perfmodel_cpu_task task = {.cost_ns = 2000,
                                      .deadline_ns = 10000,
                                      .urgency_ns = 1000,
                                      .spacing_ns = 10000,
                                      .interval_ns = 10000,
                                      .pieces = 1,
                                      .burst_packets = 1,
                                      .piece_bytes = 16,
                                      .cipher = CORE_CIPHER_AES_128_CBC};
    struct config_profile plain = plain_profile(0);
    struct perfmodel_demand *grid = grid_of(&plain);
    struct perfmodel_edf_result result = perfmodel_demand_test(grid, &task);
    assert_true(result.accepted && result.by_packets); /* due before the first window of the pieces */
    task.spacing_ns = 1999;
    result = perfmodel_demand_test(grid, &task);
    assert_int_equal(result.binding, PERFMODEL_LIMIT_CPU_DEMAND);
    assert_in_range(result.utilisation_ppb, 200000000, 200000001); /* shares are rounded up */
    task.spacing_ns = 10000;
    task.urgency_ns = 9000;
    assert_true(perfmodel_demand_test(grid, &task).accepted);
    perfmodel_demand_add(grid, &task);
    assert_in_range(perfmodel_demand_utilisation_ppb(grid), 200000000, 200000001);
    task.cost_ns = 8000;
    task.piece_bytes = 32;
    result = perfmodel_demand_test(grid, &task);
    assert_int_equal(result.binding, PERFMODEL_LIMIT_CPU_UTILISATION);
    assert_in_range(result.utilisation_ppb, 1000000000, 1000000001);
    perfmodel_demand_add(grid, &task); /* allowed; it just is not accepted as it stands */
    assert_false(perfmodel_demand_test(grid, NULL).accepted);
    assert_true(perfmodel_demand_headroom_ppb(grid, NULL) < 0);
    perfmodel_demand_destroy(grid);
}

/* Streams of two kinds whose deadlines fall together again only after hours, and never so closely before. */
static void test_beyond_the_grid(void **state)
{
    (void)state;
    enum { EACH = 1000 };
    static struct perfmodel_cpu_task many[2 * EACH];
    const core_ns minute_ns = 60 * CORE_NS_PER_S, grid_ns = INT64_C(1) << 42;
    const struct config_profile plain = plain_profile(0);
    struct perfmodel_demand *grid = grid_of(&plain);
    for (size_t i = 0; i < 2 * EACH; i++) {
        core_ns interval_ns = (i < EACH ? 60 : 50) * minute_ns;
        many[i] = (struct perfmodel_cpu_task){.cost_ns = (i < EACH ? 29 : 74) * minute_ns / 2 / EACH,
                                              .deadline_ns = interval_ns / 8 * 7,
                                              .urgency_ns = interval_ns / 8 * 7,
                                              .spacing_ns = interval_ns / 8 * 7,
                                              .interval_ns = interval_ns,
                                              .pieces = 1,
                                              .burst_packets = 1,
                                              .piece_bytes = i < EACH ? 16 : 32,
                                              .cipher = CORE_CIPHER_AES_128_CBC};
        perfmodel_demand_add(grid, &many[i]);
    }
    struct perfmodel_edf_result exact =
        perfmodel_edf_test(many, 2 * EACH, 0, perfmodel_demand_test(grid, NULL).blocking_ns);
    assert_false(exact.accepted);
    assert_int_equal(exact.binding, PERFMODEL_LIMIT_CPU_DEMAND);
    assert_true(exact.window_ns > grid_ns);
    assert_false(perfmodel_demand_test(grid, NULL).accepted);
    assert_int_equal(perfmodel_demand_test(grid, NULL).window_ns, grid_ns);
    perfmodel_demand_destroy(grid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_no_trace),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_matches_plain_demand),
        cmocka_unit_test(test_loss_bounded),
        cmocka_unit_test(test_loss_reported),
        cmocka_unit_test(test_monotone),
        cmocka_unit_test(test_longest_times),
        cmocka_unit_test(test_overload),
        cmocka_unit_test(test_beyond_the_grid),
        cmocka_unit_test(test_rare_streams_ask_for_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
