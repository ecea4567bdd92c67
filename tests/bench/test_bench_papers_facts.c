/* What the four papers state, or what follows from it (tests/data/papers.json): the facts that an analysis or a
 * simulator gives, but for those of other tests of this folder. Others are measurements of the papers' machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/analyses/assign.h"
#include "bench/analyses/locks.h"
#include "bench/analyses/rgem.h"
#include "bench/analyses/soft.h"
#include "bench/analyses/srm.h"
#include "bench/papers/global.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static json_t *facts;

static int read_facts(void **state)
{
    json_error_t problem;
    (void)state;
    facts = json_load_file(MILLRACE_SOURCE_DIR "/tests/data/papers.json", 0, &problem);
    return facts == NULL;
}

static int free_facts(void **state)
{
    (void)state;
    json_decref(facts);
    return 0;
}

static const json_t *fact(const char *id, const char *part)
{
    const json_t *entry;
    size_t index;

    json_array_foreach(facts, index, entry) if (strcmp(json_string_value(json_object_get(entry, "id")), id) ==
                                                0) return json_object_get(entry, part);
    fail_msg("there is no %s", id);
    return NULL;
}

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static void expect(const char *id, const char *name, double value)
{
    const double expected = number(fact(id, "expected"), name),
                 allowed = json_number_value(fact(id, "tolerance"));
    if (!(fabs(value - expected) <= fmax(allowed * fmax(1, fabs(expected)), 1e-9)))
        fail_msg("%s: %s is %.9f, not %.9f", id, name, value, expected);
}

/* ---- RGEM ---- */

static void check_fit(const char *id, const char *per_byte_id)
{
    const json_t *input = fact(id, "input");
    const int64_t bytes = (int64_t)number(input, "size");
    const struct analyses_rgem_fit fit =
        analyses_rgem_fit(bytes, (int64_t)number(input, "chunk1"), number(input, "ms1"),
                          (int64_t)number(input, "chunk2"), number(input, "ms2"));
    expect(id, "overhead_ms", fit.overhead);
    expect(id, "base_ms", fit.base);
    expect(per_byte_id, "per_byte_ms", fit.base / (double)bytes);
}

static void rgem(void **state)
{
    (void)state;
    const json_t *one;
    size_t index;

    check_fit("rgem-fit-upload", "rgem-perbyte-upload");
    check_fit("rgem-fit-download", "rgem-perbyte-download");
    json_array_foreach(json_object_get(fact("rgem-chunks", "input"), "cases"), index, one)
    {
        const struct analyses_rgem_system system = {.chunk_bytes =
                                                        json_integer_value(json_array_get(one, 1))};
        assert_int_equal(analyses_rgem_chunks(&system, json_integer_value(json_array_get(one, 0))),
                         json_integer_value(json_array_get(
                             json_object_get(fact("rgem-chunks", "expected"), "nr_chunks"), index)));
    }
}

/* ---- Elliott and Anderson ---- */

static size_t read_tasks(const char *id, struct analyses_srm_task *tasks)
{
    const json_t *task;
    size_t index;

    json_array_foreach(json_object_get(fact(id, "input"), "tasks"), index, task) tasks[index] =
        (struct analyses_srm_task){(int64_t)number(task, "p"), (int64_t)number(task, "e"),
                                   (int64_t)number(task, "s"), (int64_t)number(task, "cs")};
    return index;
}

static int64_t at_once(void *context, size_t task, size_t job)
{
    (void)context, (void)task;
    return job == 0 ? 0 : INT64_MAX;
}

/* The end of the last job when all are released at once. */
static double last_end(const struct analyses_srm_task *tasks, size_t count, bool contained)
{
    struct papers_global global = {.m = 4, .count = count};
    struct papers_global_result result;
    const struct papers_job_source source = {.release = at_once};
    int64_t last = 0;

    for (size_t t = 0; t < count; t++) {
        const int64_t all = tasks[t].cpu + tasks[t].gpu;
        global.tasks[t].point = tasks[t].period;
        if (tasks[t].section == 0)
            global.tasks[t].before = all;
        else if (contained)
            global.tasks[t].section_cpu = all;
        else {
            global.tasks[t].before = all - tasks[t].section;
            global.tasks[t].section_gpu = tasks[t].gpu;
            global.tasks[t].section_cpu = tasks[t].section - tasks[t].gpu;
        }
    }
    papers_global_run(&global, &source, 1, &result);
    for (size_t t = 0; t < count; t++)
        last = result.response[t] > last ? result.response[t] : last;
    return (double)last;
}

static void gpu_sync(void **state)
{
    (void)state;
    const json_t *input = fact("gpu-sync-ueff", "input");
    struct analyses_srm_task tasks[16];
    const struct analyses_srm_task one = {(int64_t)number(input, "p"), (int64_t)number(input, "e"),
                                          (int64_t)number(input, "s"),
                                          (int64_t)(number(input, "s") + number(input, "comm"))};
    size_t count = read_tasks("gpu-sync-srm", tasks);
    struct analyses_gedf_task inflated[16];
    struct analyses_lock_task users[16];
    const struct analyses_lock_system system = {.m = 4, .per_cluster = 4, .replicas = 1};
    int64_t arrival;

    expect("gpu-sync-ueff", "u_eff", analyses_srm_effective_utilisation(&one, 1, number(input, "f")));
    const struct analyses_srm_result fmlp = analyses_srm_shared(4, tasks, count, ANALYSES_SRM_FMLP);
    expect("gpu-sync-srm", "b", (double)fmlp.blocking[count - 1]);
    expect("gpu-sync-srm", "U", fmlp.utilisation);
    assert_true(fmlp.passes);
    for (size_t i = 0; i < count; i++) {
        const int64_t cost = tasks[i].cpu + tasks[i].gpu + fmlp.blocking[i];
        inflated[i] = (struct analyses_gedf_task){cost, tasks[i].period, tasks[i].period};
        users[i] = (struct analyses_lock_task){.period = tasks[i].period,
                                               .response = tasks[i].period,
                                               .request_count = tasks[i].section > 0,
                                               .requests = {{0, 1, tasks[i].section}}};
    }
    const double x = analyses_soft_devi(4, inflated, count);
    expect("gpu-sync-srm-tardiness", "x", x);
    expect("gpu-sync-srm-tardiness", "tard_cpu", x + (double)inflated[0].cost);
    expect("gpu-sync-srm-tardiness", "tard_gpu", x + (double)inflated[count - 1].cost);
    expect("gpu-sync-srm-omlp", "theorem2",
           (double)analyses_lock_blocking(&system, users, count, ANALYSES_LOCK_OMLP_PRINTED, count - 1,
                                          &arrival));
    expect("gpu-sync-srm-omlp", "mplus1_rule",
           (double)analyses_lock_blocking(&system, users, count, ANALYSES_LOCK_OMLP, count - 1, &arrival));
    const struct analyses_srm_container container = analyses_srm_contain(4, tasks, count);
    expect("gpu-sync-cm", "w_G", container.gpu);
    expect("gpu-sync-cm", "w_H", container.total);
    assert_true(container.passes);
    expect("gpu-sync-gpu-util", "gpu_util", analyses_srm_gpu_utilisation(tasks, count));
    expect("gpu-sync-fig3", "last_completion", last_end(tasks, count, false));
    expect("gpu-sync-fig5", "last_completion", last_end(tasks, count, true));
}

/* ---- GPU-SAM: Table 5 under the analysis ---- */

static void table5(void **state)
{
    (void)state;
    const json_t *input = fact("gpu-sam-table5-analysis", "input"), *task, *stage;
    struct analyses_pipeline_set set = {.units = {4, 1, 2}};
    static struct analyses_pipeline pipeline;
    size_t t, s;
    unsigned m[ANALYSES_PIPELINE_TASKS];

    json_array_foreach(json_object_get(input, "tasks"), t, task)
    {
        struct analyses_pipeline_task *to = &set.tasks[set.count++];
        to->period = (int64_t)number(task, "T");
        to->deadline = (int64_t)number(task, "D");
        json_array_foreach(json_object_get(task, "st"), s, stage)
        {
            struct analyses_pipeline_stage *stage_to = &to->stages[to->stage_count++];
            stage_to->resource =
                *json_string_value(json_array_get(stage, 0)) == 'P' ? ANALYSES_PCI : ANALYSES_GPU;
            for (size_t k = 0; k < 2; k++)
                stage_to->time[k] = json_integer_value(json_array_get(json_array_get(stage, 1), k));
        }
    }
    assert_int_equal(set.count, 3);
    for (int v = 0; v < ANALYSES_PIPELINE_VARIANTS; v++) {
        analyses_pipeline_prepare(&pipeline, &set, (enum analyses_pipeline_variant)v);
        assert_int_equal(analyses_assign_optimal(&pipeline, false, true).passing, 0);
    }
    analyses_pipeline_prepare(&pipeline, &set, ANALYSES_SAM_TXT);
    assert_false(analyses_assign_gpa(&pipeline, m).passes);
    assert_true(m[0] == 1 && m[1] == 2 && m[2] == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rgem),
        cmocka_unit_test(gpu_sync),
        cmocka_unit_test(table5),
    };
    return cmocka_run_group_tests(tests, read_facts, free_facts);
}
