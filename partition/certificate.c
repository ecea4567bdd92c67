#include "partition/certificate.h"

#include "partition/admission/internal.h"
#include "partition/search/problem.h"

#include <stdlib.h>

static const struct partition_plan_method as_it_stands = {"standing", "streams as they came, and were moved",
                                                          true, NULL};

/* Where a stream is, and what it asks there, once GPU `lost` has failed. False: nobody serves it then. */
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

/* The streams of the input, and where each of them is. */
static void collect(const struct admission *admission, uint32_t lost,
                    struct partition_certificate *certificate, uint32_t *unit)
{
    size_t *count = &certificate->input.count;
    for (uint32_t n = 0; n < admission->count; n++)
        *count += find(admission, admission->listed[n], lost, &unit[*count], &certificate->specs[*count]);
}

static core_status judge(const struct admission *admission, struct partition_certificate *certificate,
                         const uint32_t *unit, uint8_t *on_gpu, core_ns *period_ns)
{
    struct partition_problem *problem = NULL;
    struct partition_plan *plan = partition_plan_create(&as_it_stands, &certificate->input);
    core_status status = CORE_NO_MEMORY;

    certificate->plan = plan;
    if (plan != NULL)
        status = partition_problem_create(&certificate->input, &problem);
    if (status != CORE_OK)
        return status;
    for (size_t n = 0; n < plan->count; n++)
        plan->unit[n] = unit[problem->origin[n]];
    certify(admission, problem, on_gpu, period_ns, plan);
    partition_problem_destroy(problem);
    return CORE_OK;
}

core_status partition_certify(const struct admission *admission, uint32_t lost,
                              struct partition_certificate *certificate, struct core_error *error)
{
    size_t most = (size_t)admission->count + 1;
    uint32_t *unit = malloc(most * sizeof *unit);
    uint8_t *on_gpu = malloc(most);
    core_ns *period_ns = malloc((admission->gpus + 1) * sizeof *period_ns);
    core_status status = CORE_NO_MEMORY;

    *certificate = (struct partition_certificate){.specs = malloc(most * sizeof *certificate->specs)};
    certificate->input = (struct partition_plan_input){
        .specs = certificate->specs, .profile = admission->profile, .workers = admission->worker_count};
    if (certificate->specs != NULL && unit != NULL && on_gpu != NULL && period_ns != NULL) {
        collect(admission, lost, certificate, unit);
        status = judge(admission, certificate, unit, on_gpu, period_ns);
    }
    free(period_ns);
    free(on_gpu);
    free(unit);
    if (status == CORE_OK)
        return CORE_OK;
    partition_certificate_free(certificate);
    return core_error_set(error, status, "no memory for the certificate of %zu streams", most - 1);
}

void partition_certificate_free(struct partition_certificate *certificate)
{
    partition_plan_destroy(certificate->plan);
    free(certificate->specs);
    *certificate = (struct partition_certificate){.specs = NULL};
}
