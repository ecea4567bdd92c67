#include "partition/admission/gpu_plan.h"

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of streams that are in both. */
static struct perfmodel_flow_load load_of_both(const struct perfmodel_flow_load *a,
                                               const struct perfmodel_flow_load *b)
{
    if (a->streams == 0 || b->streams == 0)
        return (struct perfmodel_flow_load){0};
    return (struct perfmodel_flow_load){.streams = less(a->streams, b->streams),
                                        .jobs = less(a->jobs, b->jobs),
                                        .jobs_rate = less(a->jobs_rate, b->jobs_rate),
                                        .burst_bytes = less(a->burst_bytes, b->burst_bytes),
                                        .rate = less(a->rate, b->rate),
                                        .job_burst_bytes = less(a->job_burst_bytes, b->job_burst_bytes),
                                        .job_rate = less(a->job_rate, b->job_rate),
                                        .unit_bytes = a->unit_bytes,
                                        .shortest_ns = core_time_max(a->shortest_ns, b->shortest_ns),
                                        .burst_packets = less(a->burst_packets, b->burst_packets),
                                        .packet_rate = less(a->packet_rate, b->packet_rate)};
}

/* In use at once, where batches are back so long after their closing, with at least a period between any two:
 * those closed within that time, the one that is open, and the one that is opened ahead. */
static uint64_t arenas_in_use(core_ns stages_ns, core_ns aside_ns, core_ns period_ns)
{
    return 2 + (uint64_t)((stages_ns + aside_ns + period_ns - 1) / period_ns);
}

static bool arenas_do(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to,
                      const struct perfmodel_flow_change *change)
{
    core_ns aside_ns = core_time_max(from->aside_ns, to->aside_ns);
    core_ns old_ns = core_time_max(from->latency_ns, change->old_latency_ns);
    uint64_t new_ones = arenas_in_use(change->latency_ns - to->period_ns, aside_ns, to->period_ns);
    if (to->period_ns < from->period_ns)
        return new_ones <= to->arenas;
    uint64_t old_ones = arenas_in_use(old_ns - from->period_ns, aside_ns, from->period_ns);
    return (new_ones > old_ones ? new_ones : old_ones) <= to->arenas;
}

/* From a batch's closing to its last byte. */
static core_ns batch_ns(const struct partition_gpu_plan *plan, core_ns latency_ns, core_ns period_ns)
{
    return latency_ns - period_ns + plan->batch_ns - (plan->latency_ns - plan->period_ns);
}

static bool batches_do(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to,
                       core_ns change_ns)
{
    core_ns most_ns = core_time_min(from->batch_most_ns, to->batch_most_ns);
    return batch_ns(to, change_ns, to->period_ns) <= most_ns;
}

bool partition_gpu_plan_may_follow(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to)
{
    if (from->period_ns == 0 || to->period_ns == 0 || from->period_ns == to->period_ns)
        return true;
    struct perfmodel_flow_load load = load_of_both(&from->load, &to->load);
    struct perfmodel_flow_change change =
        perfmodel_flow_judge_change(to->card, &load, from->period_ns, to->period_ns);
    return change.holds &&
           (load.streams == 0 || (arenas_do(from, to, &change) && batches_do(from, to, change.latency_ns)));
}

/* ---- periods between ---- */

#define HALVINGS   5  /* of the way, from the first part of it that is tried */
#define STEPS_MAX  24 /* that lead anywhere */
#define STEP_LEAST 64 /* no shorter than one in so many of the period */

/* `from` for those in both, at another period. False: it does not hold. */
static bool plan_between(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to,
                         core_ns period_ns, struct partition_gpu_plan *between)
{
    struct perfmodel_flow_load load = load_of_both(&from->load, &to->load);
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(to->card, &load, period_ns);
    core_ns stages_ns = verdict.latency_ns - period_ns;
    if (verdict.binding != PERFMODEL_LIMIT_NONE ||
        arenas_in_use(stages_ns, from->aside_ns, period_ns) > from->arenas ||
        batch_ns(from, verdict.latency_ns, period_ns) > from->batch_most_ns)
        return false;
    *between = *from;
    between->period_ns = period_ns;
    between->up_ns = verdict.bounds.up_ns;
    between->kernel_ns = verdict.bounds.kernel_ns;
    between->down_ns = verdict.bounds.down_ns;
    between->latency_ns = verdict.latency_ns;
    between->batch_ns = batch_ns(from, verdict.latency_ns, period_ns);
    between->batch_bytes = verdict.batch_bytes;
    between->batch_packets = perfmodel_flow_batch_packets(&load, period_ns);
    between->load = load;
    return true;
}

bool partition_gpu_plan_step(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to,
                             struct partition_gpu_plan *step)
{
    core_ns way_ns = (to->period_ns - from->period_ns) / 2;
    for (int n = 0; n < HALVINGS; n++, way_ns /= 2) {
        if ((way_ns < 0 ? -way_ns : way_ns) <= from->period_ns / STEP_LEAST)
            return false;
        if (plan_between(from, to, from->period_ns + way_ns, step) &&
            partition_gpu_plan_may_follow(from, step))
            return true;
    }
    return false;
}

bool partition_gpu_plan_leads_to(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to)
{
    struct partition_gpu_plan at = *from, step;
    for (int n = 0; n < STEPS_MAX; n++) {
        if (partition_gpu_plan_may_follow(&at, to))
            return true;
        if (!partition_gpu_plan_step(&at, to, &step))
            return false;
        at = step;
    }
    return false;
}
