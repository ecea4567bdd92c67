/* Admission: moves on which packets may be held. */
#include "partition/admission/internal.h"

/* Would the unit, a GPU at its present period, keep this instead of what it is charged for? */
static bool keeps(const struct admission *admission, const struct admission_record *record,
                  const struct core_stream_spec *spec)
{
    const struct partition_demand now = partition_demand_of(&record->spec, admission->profile);
    const struct partition_demand instead = partition_demand_of(spec, admission->profile);
    const struct partition_question question = {
        .more = &instead, .instead_of = &now, .scenario = PARTITION_OWN, .period = PARTITION_PERIOD_PRESENT};
    return partition_unit_ask(admission->unit[record->unit], &question).accepted;
}

/* The contract stays, so that a settle takes it back. */
static bool tighten(struct admission *admission, uint32_t stream, core_ns latency_ns)
{
    const struct admission_record *record = admission_record_of(admission, stream);
    struct core_stream_spec join = record->join;
    join.latency_ns = latency_ns;
    if (latency_ns >= record->join.latency_ns)
        return true;
    if (latency_ns < CORE_LATENCY_NS_MIN || !keeps(admission, record, &join))
        return false;
    admission_replace(admission, stream, &join);
    admission->changes++;
    return true;
}

/* The least latency bound that leaves work_ns of the stream's d'. */
static core_ns latency_for(const struct core_stream_spec *contract, const struct config_profile *profile,
                           core_ns work_ns)
{
    struct core_stream_spec spec = *contract;
    core_ns missing_ns;
    spec.latency_ns = work_ns + profile->margins.in_ns + profile->margins.out_ns;
    while ((missing_ns = work_ns - perfmodel_gpu_work_ns(&spec, profile)) > 0)
        spec.latency_ns += missing_ns; /* a rest grows 32 times slower than its bound */
    return spec.latency_ns;
}

/* Both units charged for b_A. */
static bool charge(struct admission *admission, uint32_t stream, core_ns bound_ns, core_ns charge_ns)
{
    const struct admission_record *to = &admission->record[stream];
    if (!tighten(admission, stream, to->contract.latency_ns - bound_ns))
        return false;
    if (tighten(admission, to->source, charge_ns))
        return true;
    admission_finalize(admission, stream);
    return false;
}

static bool hold_on_worker(struct admission *admission, uint32_t stream, core_ns *bound_ns)
{
    const struct admission_record *from = &admission->record[admission->record[stream].source];
    const struct partition_unit *worker = admission->unit[from->unit];
    const struct partition_demand charged = partition_demand_of(&from->spec, admission->profile);
    core_ns keeps_ns = partition_unit_bound_ns(worker, &charged);
    if (!charge(admission, stream, keeps_ns, from->spec.latency_ns))
        return false;
    *bound_ns = keeps_ns;
    return true;
}

/* T and the stages may take work_ns from now on. */
static bool hold_on_gpu(struct admission *admission, uint32_t stream, core_ns work_ns, core_ns *bound_ns)
{
    const struct config_profile *profile = admission->profile;
    const struct core_stream_spec *contract = &admission->record[stream].contract;
    core_ns keeps_ns = work_ns + profile->margins.in_ns + profile->margins.out_ns +
                       perfmodel_io_rest_ns(contract->latency_ns, profile);
    if (!charge(admission, stream, keeps_ns, latency_for(contract, profile, work_ns)))
        return false;
    *bound_ns = keeps_ns;
    return true;
}

/* T and the stages as they are bounded now. False: the GPU promises nothing. */
static bool batches_of(const struct admission *admission, uint32_t unit, core_ns *batches_ns)
{
    const struct partition_question question = {.scenario = PARTITION_OWN,
                                                .period = PARTITION_PERIOD_PRESENT};
    struct partition_answer present = partition_unit_ask(admission->unit[unit], &question);
    if (admission->unit[unit]->out || !present.accepted)
        return false;
    if (*batches_ns < present.verdict.latency_ns)
        *batches_ns = present.verdict.latency_ns;
    return true;
}

static bool charge_both(struct admission *admission, uint32_t stream, core_ns batches_ns, core_ns *bound_ns)
{
    const struct admission_record *to = admission_record_of(admission, stream);
    if (to->source == ADMISSION_NONE || to->backup.unit != ADMISSION_NONE || admission_joined(to))
        return false;
    const struct admission_record *from = &admission->record[to->source];
    if (from->backup.unit != ADMISSION_NONE || admission_joined(from))
        return false;
    if (!admission_is_gpu(admission, from->unit))
        return hold_on_worker(admission, stream, bound_ns);
    core_ns work_ns = perfmodel_gpu_work_ns(&to->contract, admission->profile);
    return batches_of(admission, from->unit, &batches_ns) && batches_ns <= work_ns &&
           (hold_on_gpu(admission, stream, batches_ns + (work_ns - batches_ns) / 2, bound_ns) ||
            hold_on_gpu(admission, stream, batches_ns, bound_ns));
}

bool admission_reserve_catch_up(struct admission *admission, uint32_t stream, core_ns batches_ns,
                                core_ns *bound_ns)
{
    struct admission_refusal words;
    core_ns keeps_ns;
    if (!charge_both(admission, stream, batches_ns, &keeps_ns))
        return false;
    uint32_t source = admission->record[stream].source;
    if (admission_plan_units(admission, admission->record[source].unit, admission->record[stream].unit,
                             &words)) {
        *bound_ns = keeps_ns;
        return true;
    }
    admission_finalize(admission, stream);
    admission_finalize(admission, source);
    return false;
}
