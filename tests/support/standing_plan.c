#include "tests/support/standing_plan.h"

#include <stdlib.h>

#include "partition/admission/internal.h"
#include "partition/search/problem.h"
#include "tests/support/require.h"

static const struct partition_plan_method as_it_stands = {"standing", "streams as they came, and were moved",
                                                          true, NULL};

/* Where a stream is, and what it asks there, once GPU `lost` is lost. False: nobody serves it then. */
static bool find(const struct admission *admission, uint32_t stream, uint32_t lost, uint32_t *unit,
                 struct core_stream_spec *spec)
{
    const struct admission_record *record = &admission->record[stream];
    bool there =
        lost == ADMISSION_NONE || record->unit != partition_unit_of_gpu(admission->worker_count, lost);
    *unit = there ? record->unit : record->backup.unit;
    *spec = there ? record->spec : record->backup.spec;
    return *unit != ADMISSION_NONE;
}

/* Judges the streams where they are, each GPU at its period. */
static void certify(const struct admission *admission, struct partition_problem *problem, uint8_t *on_gpu,
                    core_ns *period_ns, struct partition_plan *plan)
{
    for (size_t n = 0; n < plan->count; n++)
        on_gpu[n] = partition_unit_is_gpu(plan->workers, plan->unit[n]);
    for (uint32_t g = 0; g < admission->gpus; g++)
        period_ns[g] = admission->gpu[g]->unit.period_ns;
    if (!partition_evaluate_workers_as_assigned(problem, on_gpu, plan) ||
        !partition_evaluate_gpus_at(problem, period_ns, plan))
        return;
    partition_plan_conclude(problem, plan);
    partition_plan_explain_accepted(plan);
}

static struct partition_plan *plan_at(const struct admission *admission, uint32_t lost)
{
    size_t most = admission->count;
    struct core_stream_spec *specs = malloc((most + 1) * sizeof *specs);
    uint32_t *unit = malloc((most + 1) * sizeof *unit);
    uint8_t *on_gpu = malloc(most + 1);
    core_ns *period_ns = malloc((admission->gpus + 1) * sizeof *period_ns);
    struct partition_plan_input input = {
        .specs = specs, .profile = admission->profile, .workers = admission->worker_count};
    struct partition_problem *problem = NULL;
    TEST_REQUIRE(specs != NULL && unit != NULL && on_gpu != NULL && period_ns != NULL);
    for (size_t n = 0; n < most; n++)
        input.count += find(admission, admission->listed[n], lost, &unit[input.count], &specs[input.count]);
    struct partition_plan *plan = partition_plan_create(&as_it_stands, &input);
    TEST_REQUIRE(plan != NULL && partition_problem_create(&input, &problem) == CORE_OK);
    for (size_t n = 0; n < input.count; n++)
        plan->unit[n] = unit[problem->origin[n]];
    certify(admission, problem, on_gpu, period_ns, plan);
    partition_problem_destroy(problem);
    free(period_ns);
    free(on_gpu);
    free(unit);
    free(specs);
    return plan;
}

struct partition_plan *test_admission_plan(const struct admission *admission)
{
    return plan_at(admission, ADMISSION_NONE);
}

struct partition_plan *test_admission_plan_after(const struct admission *admission, uint32_t lost)
{
    TEST_REQUIRE(lost < admission->gpus);
    return plan_at(admission, lost);
}
