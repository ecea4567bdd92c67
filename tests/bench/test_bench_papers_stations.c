/* The simulator of stations: the schedules that the papers draw, and those that exceed printed bounds
 * (tests/data/counterexamples.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/analyses/rgem.h"
#include "bench/papers/pipeline_stations.h"

#include <jansson.h>
#include <string.h>

/* ---- schedules in the papers: one job a task ---- */

static int64_t at_once(void *context, size_t task, size_t job)
{
    (void)context, (void)task;
    return job == 0 ? 0 : INT64_MAX;
}

static void add(struct papers_stations *stations, size_t task, unsigned station, int64_t time,
                unsigned parallel)
{
    const bool preempts = station == ANALYSES_CPU;
    stations->tasks[task].stages[stations->tasks[task].stage_count++] =
        (struct papers_stage){.station = station,
                              .head = preempts ? time : 0,
                              .body = preempts ? 0 : time,
                              .pieces = time > 0,
                              .parallel = parallel};
}

static void check_ends(const struct papers_stations *stations, const int64_t *ends)
{
    const struct papers_job_source source = {.release = at_once};
    struct papers_stations_result result;

    papers_stations_run(stations, &source, 1, &result);
    assert_false(result.overflowed);
    for (size_t t = 0; t < stations->task_count; t++)
        assert_int_equal(result.response[t], ends[t]);
}

/* GPU-SPARC, Fig. 1: three kernels of 7, 7, 26 on two GPUs, the third on one or on both. */
static void test_split_kernel(void **state)
{
    (void)state;
    for (unsigned m = 1; m <= 2; m++) {
        struct papers_stations stations = {.units = {1, 1, 2}, .task_count = 3};
        add(&stations, 0, ANALYSES_GPU, 7, 1);
        add(&stations, 1, ANALYSES_GPU, 7, 1);
        add(&stations, 2, ANALYSES_GPU, 26 / m, m);
        check_ends(&stations, m == 1 ? (int64_t[]){7, 7, 33} : (int64_t[]){7, 7, 20});
    }
}

/* GPU-SPARC, Fig. 11: upload, kernel, download, merge of two jobs; none, the second, and both are split. */
static void test_split_modes(void **state)
{
    (void)state;
    static const int64_t ends[3][2] = {{12, 26}, {12, 28}, {13, 24}};
    static const unsigned modes[3][2] = {{1, 1}, {1, 2}, {2, 2}};
    static const int64_t times[2][2][4] = {{{1, 10, 1, 0}, {2, 5, 2, 4}}, {{2, 22, 1, 0}, {4, 11, 2, 4}}};

    for (size_t i = 0; i < 3; i++) {
        struct papers_stations stations = {.units = {1, 1, 2}, .task_count = 2};
        for (size_t t = 0; t < 2; t++) {
            const unsigned m = modes[i][t];
            add(&stations, t, ANALYSES_PCI, times[t][m - 1][0], 1);
            add(&stations, t, ANALYSES_GPU, times[t][m - 1][1], m);
            add(&stations, t, ANALYSES_PCI, times[t][m - 1][2], 1);
            add(&stations, t, ANALYSES_CPU, times[t][m - 1][3], 1);
        }
        check_ends(&stations, ends[i]);
    }
}

static int64_t one_by_one(void *context, size_t task, size_t job)
{
    (void)context;
    return job == 0 ? (int64_t)(task == 0) : INT64_MAX; /* the first comes when the second has begun */
}

/* RGEM: between two kernels of a job another task's gets the GPU, each time, as its bound has it. */
static void test_blocked_at_each_kernel(void **state)
{
    (void)state;
    const struct analyses_rgem_system system = {.chunk_bytes = 1};
    const struct analyses_rgem_task tasks[4] = {{.period_ns = 100, .kernels = 3, .kernel_ns = {1, 1, 1}},
                                                {.period_ns = 100, .kernels = 1, .kernel_ns = {10}},
                                                {.period_ns = 100, .kernels = 1, .kernel_ns = {10}},
                                                {.period_ns = 100, .kernels = 1, .kernel_ns = {10}}};
    struct papers_stations stations = {.units = {1, 1, 1}, .eager = true, .task_count = 4};
    const struct papers_job_source source = {.release = one_by_one};
    struct papers_stations_result result;
    struct analyses_rgem_bounds bounds[4];

    for (size_t t = 0; t < 4; t++)
        for (size_t k = 0; k < tasks[t].kernels; k++) {
            add(&stations, t, ANALYSES_GPU, tasks[t].kernel_ns[k], 1);
            stations.tasks[t].stages[k].joined = k > 0;
        }
    papers_stations_run(&stations, &source, 2, &result);
    assert_int_equal(result.stage[0][2], 9 + 1 + 10 + 1 + 10 + 1);
    analyses_rgem_bound(&system, tasks, 4, ANALYSES_RGEM_ONCE, bounds);
    assert_true(result.stage[0][2] <= bounds[0].kernel_ns);
    assert_int_equal(bounds[0].kernel_ns, 33); /* in integer time the first is blocked by 9 at the most */
}

/* ---- counterexamples ---- */

struct example {
    struct analyses_pipeline_set set;
    unsigned m[ANALYSES_PIPELINE_TASKS];
    const json_t *offsets, *jobs;
};

static int64_t number(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

static enum analyses_resource resource_of(const char *name)
{
    return *name == 'C' ? ANALYSES_CPU : *name == 'P' ? ANALYSES_PCI : ANALYSES_GPU;
}

static void read_task(struct example *example, const json_t *from)
{
    struct analyses_pipeline_task *task = &example->set.tasks[example->set.count];
    const json_t *stages = json_object_get(from, "st"), *stage, *mode = json_object_get(from, "mode");
    size_t index;

    example->m[example->set.count++] = 1;
    task->period = task->deadline = number(from, "T");
    json_array_foreach(stages, index, stage)
    {
        struct analyses_pipeline_stage *to = &task->stages[task->stage_count++];
        to->resource = resource_of(json_string_value(json_array_get(stage, 0)));
        for (size_t m = 0; m < ANALYSES_PIPELINE_GPUS; m++)
            to->time[m] = json_integer_value(json_array_get(json_array_get(stage, 1), 0));
    }
    if (mode != NULL) {
        if (*json_string_value(mode) == 'M')
            example->m[example->set.count - 1] = 2;
        task->stage_count = 1;
        task->stages[0] = (struct analyses_pipeline_stage){
            .resource = ANALYSES_GPU, .time = {number(from, "GPU_single"), number(from, "GPU_multi")}};
    }
}

static void read_example(const json_t *from, struct example *example)
{
    const json_t *system = json_object_get(from, "system"), *task;
    size_t index;

    memset(example, 0, sizeof *example);
    example->offsets = json_object_get(from, "offsets");
    example->jobs = json_object_get(from, "jobs");
    example->set.units[ANALYSES_CPU] = (unsigned)number(system, "C");
    example->set.units[ANALYSES_PCI] = (unsigned)number(system, "P");
    example->set.units[ANALYSES_GPU] = (unsigned)number(system, "G");
    json_array_foreach(json_object_get(from, "tasks"), index, task) read_task(example, task);
    json_array_foreach(json_object_get(from, "tasks_C_T"), index, task)
    {
        struct analyses_pipeline_task *to = &example->set.tasks[index];
        example->set.count++;
        example->m[index] = 1;
        to->period = to->deadline = json_integer_value(json_array_get(task, 1));
        to->stage_count = 1;
        to->stages[0].resource = resource_of(json_string_value(json_object_get(from, "resource")));
        for (size_t m = 0; m < ANALYSES_PIPELINE_GPUS; m++)
            to->stages[0].time[m] = json_integer_value(json_array_get(task, 0));
    }
}

/* The job of a task, of those that the example lists; NULL: no more. */
static const json_t *listed(const struct example *example, size_t task, size_t job)
{
    const json_t *entry;
    size_t index;

    json_array_foreach(example->jobs, index,
                       entry) if ((size_t)number(entry, "task") == task && job-- == 0) return entry;
    return NULL;
}

static int64_t release(void *context, size_t task, size_t job)
{
    const struct example *example = context;

    if (example->jobs != NULL)
        return listed(example, task, job) == NULL ? INT64_MAX : number(listed(example, task, job), "release");
    return json_integer_value(json_array_get(example->offsets, task)) +
           (int64_t)job * example->set.tasks[task].period;
}

static int64_t length(void *context, size_t task, size_t job, size_t stage, int64_t most)
{
    const struct example *example = context;

    if (example->jobs == NULL)
        return most;
    return json_integer_value(json_array_get(json_object_get(listed(example, task, job), "exec"), stage));
}

static void check_example(const json_t *from, struct example *example)
{
    struct papers_stations stations;
    struct papers_stations_result result;
    const struct papers_job_source source = {.context = example, .release = release, .length = length};
    const int64_t horizon = json_object_get(from, "horizon") != NULL ? number(from, "horizon") : 84;
    const json_t *seen = json_object_get(from, "simulated_worst_response");
    const size_t victim = (size_t)number(from, "violating_task");
    static struct analyses_pipeline pipeline;
    int64_t response[ANALYSES_PIPELINE_TASKS];
    bool exceeded = false;

    if (seen == NULL)
        seen = json_object_get(from, "simulated");
    papers_pipeline_stations(&example->set, example->m, &stations);
    papers_stations_run(&stations, &source, horizon, &result);
    assert_false(result.overflowed);
    for (size_t t = 0; seen != NULL && t < example->set.count; t++)
        assert_int_equal(result.response[t], json_integer_value(json_array_get(seen, t)));
    for (int v = 0; v < ANALYSES_PIPELINE_VARIANTS; v++) {
        analyses_pipeline_prepare(&pipeline, &example->set, (enum analyses_pipeline_variant)v);
        analyses_pipeline_respond(&pipeline, example->m, response, NULL);
        if (v == ANALYSES_SAM_TXT || v == ANALYSES_SPARC_PRINTED)
            exceeded = exceeded || response[victim] < result.response[victim];
        else
            for (size_t t = 0; t < example->set.count; t++)
                assert_true(response[t] >= result.response[t]);
    }
    assert_true(exceeded);
    int64_t longest = 0; /* of the victim's jobs, where each is told */
    for (size_t j = 0; j < json_array_size(example->jobs); j++)
        if ((size_t)number(json_array_get(example->jobs, j), "task") == victim) {
            const int64_t told = json_integer_value(json_array_get(json_object_get(from, "responses"), j));
            longest = told > longest ? told : longest;
        }
    if (example->jobs != NULL)
        assert_int_equal(result.response[victim], longest);
}

static void test_counterexamples(void **state)
{
    (void)state;
    json_error_t problem;
    json_t *examples = json_load_file(MILLRACE_SOURCE_DIR "/tests/data/counterexamples.json", 0, &problem);
    static struct example example;
    const json_t *from;
    size_t index;

    assert_int_equal(json_array_size(examples), 5);
    json_array_foreach(examples, index, from)
    {
        print_message("%s\n", json_string_value(json_object_get(from, "id")));
        if (json_object_get(from, "offsets") == NULL && json_object_get(from, "jobs") == NULL)
            json_object_set_new((json_t *)from, "offsets", json_array());
        if (json_object_get(from, "horizon") == NULL && json_object_get(from, "jobs") == NULL)
            json_object_set_new((json_t *)from, "horizon", json_integer(1));
        read_example(from, &example);
        check_example(from, &example);
    }
    json_decref(examples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_kernel),
        cmocka_unit_test(test_split_modes),
        cmocka_unit_test(test_blocked_at_each_kernel),
        cmocka_unit_test(test_counterexamples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
