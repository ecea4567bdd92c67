/* Private to partition: what all methods need to know of the streams, and trials of a split.
 *
 * Streams are numbered by rising rate, so that what goes through them by rate or by share goes through memory
 * in order. A plan's units are by these numbers, too, until it is concluded.
 *
 * A split says for every stream whether it goes to a GPU. A trial deals the two parts to units, computes the
 * certificate and judges it. */
#ifndef MILLRACE_PARTITION_SEARCH_PROBLEM_H
#define MILLRACE_PARTITION_SEARCH_PROBLEM_H

#include "partition/plan.h"
#include "perfmodel/edf_packets.h"
#include "perfmodel/edf_set.h"
#include "perfmodel/flow.h"

/* The share of a stream that no worker can take. */
#define PARTITION_SHARE_NEVER INT64_C(2000000000000)
#define PARTITION_SHARE_ONE   INT64_C(1000000000)

#define PARTITION_WINDOWS 32

/* What a GPU needs to know of a stream. */
struct partition_traffic {
    uint64_t rate;                        /* perfmodel/flow.h */
    core_ns interval_ns, work_ns;         /* d' on a GPU */
    uint32_t packet_bytes, burst_packets; /* padded */
};

struct partition_problem {
    const struct partition_plan_input *input;
    size_t count;
    uint32_t *origin; /* by stream: its place in the input */
    uint32_t *number; /* the other way round */
    struct core_stream_spec *specs;
    struct partition_traffic *traffic;
    uint32_t gpus;
    const struct config_profile_gpu **card;                         /* by GPU */
    struct perfmodel_cpu_task *task;                                /* by stream, where share is not NEVER */
    int64_t *share_ppb;                                             /* of one worker */
    uint32_t *by_rate, *by_latency;                                 /* rising; ties by index */
    uint32_t *by_share;                                             /* falling */
    struct perfmodel_flow_card *flow[CONFIG_PROFILE_GPU_KINDS_MAX]; /* by kind; not in paper mode */
    /* of the period last weighed for */
    core_ns weighed_ns;
    uint64_t
        *capacity; /* by GPU: bytes of a batch that it could carry, roughly; 1 each where all are alike */
    /* scratch, with room for all streams */
    uint64_t *key[2], *job_bytes;
    uint32_t *index[2], *member;
    struct perfmodel_cpu_task *dealt_task;
    struct perfmodel_edf_set *edf_set;    /* not in paper mode */
    struct perfmodel_cpu_worker worker;   /* figures of the profile */
    core_ns window_ns[PARTITION_WINDOWS]; /* to look at first: where trials failed, the last one in front */
    /* scratch by unit */
    size_t *start;
    int64_t *load;
    uint32_t *heap;
};

CORE_CHECKED core_status partition_problem_create(const struct partition_plan_input *input,
                                                  struct partition_problem **problem);
void partition_problem_destroy(struct partition_problem *problem);

/* Are copies of this card charged at their contended times? */
bool partition_problem_busy(const struct partition_problem *problem, const struct config_profile_gpu *card);

/* Makes period_ns > 0 the period of capacity. */
void partition_problem_weigh(struct partition_problem *problem, core_ns period_ns);

/* What a stream is to a GPU; adds up with the divisor of the padded packets. */
static inline struct perfmodel_flow_load partition_problem_load(const struct partition_problem *problem,
                                                                size_t i)
{
    const struct partition_traffic *traffic = &problem->traffic[i];
    uint64_t burst_bytes = (uint64_t)traffic->burst_packets * traffic->packet_bytes;
    return (struct perfmodel_flow_load){.streams = 1,
                                        .burst_bytes = burst_bytes,
                                        .rate = traffic->rate,
                                        .job_burst_bytes = burst_bytes,
                                        .job_rate = traffic->rate,
                                        .unit_bytes = traffic->packet_bytes,
                                        .shortest_ns = traffic->work_ns};
}

/* perfmodel_gpu_job_bytes */
static inline uint64_t partition_problem_job_bytes(const struct partition_problem *problem, size_t i,
                                                   core_ns period_ns)
{
    const struct partition_traffic *traffic = &problem->traffic[i];
    if (problem->input->paper)
        return perfmodel_gpu_job_bytes(&problem->specs[i], period_ns, true);
    uint64_t whole =
        period_ns < traffic->interval_ns ? 0 : (uint64_t)period_ns / (uint64_t)traffic->interval_ns;
    return (traffic->burst_packets + whole) * traffic->packet_bytes;
}

/* Deals the streams with on_gpu[i] == 0 to the workers: worst fit by falling share. Fills plan->worker and
 * those streams' plan->unit. Refused: binding and reason. */
bool partition_trial_workers(struct partition_problem *problem, const uint8_t *on_gpu,
                             struct partition_plan *plan);

/* The same by shares and some windows alone, without the burst test: false is certain, true is a hope. */
bool partition_trial_workers_roughly(struct partition_problem *problem, const uint8_t *on_gpu,
                                     struct partition_plan *plan);

/* The same with those streams on the workers where plan->unit has them. Not in paper mode. */
bool partition_trial_workers_as_dealt(struct partition_problem *problem, const uint8_t *on_gpu,
                                      struct partition_plan *plan);

/* Leaves every GPU without streams. */
void partition_trial_no_gpu(const struct partition_problem *problem, struct partition_plan *plan);

/* Deals those with on_gpu[i] != 0 to the SMs of all GPUs as one, in the order of their jobs at d'/4, and
 * judges every GPU. Unlike GPUs get jobs in proportion to what they carry. The other streams' plan->unit is
 * lost. */
bool partition_trial_virtual(struct partition_problem *problem, const uint8_t *on_gpu,
                             struct partition_plan *plan);

/* Judges the GPUs with the streams that plan->unit has on them, each at a period of its own: d'/4 where that
 * holds by a batch or by sums, else one at which a rule holds. Fills plan->gpu. */
bool partition_trial_gpus(struct partition_problem *problem, struct partition_plan *plan);

/* Judges them at given periods, each > 0 where there are streams, by a batch or by sums. Not in paper mode.
 */
bool partition_trial_gpus_at(struct partition_problem *problem, const core_ns *period_ns,
                             struct partition_plan *plan);

/* Periods worth trying for a shortest d', in order: the n-th; 0 beyond the last. The first is d'/4. */
core_ns partition_trial_period_ns(const struct partition_problem *problem, core_ns shortest_ns, uint32_t n);

/* Ends an accepted plan: names what binds, and the least headroom; its units are by the input's order now. */
void partition_trial_conclude(struct partition_problem *problem, struct partition_plan *plan);

/* A plan without figures, and its reason once it is accepted. */
struct partition_plan *partition_plan_create(const struct partition_plan_method *method,
                                             const struct partition_plan_input *input);
void partition_plan_say_accepted(struct partition_plan *plan);

/* Sets binding, binding_unit and reason of a refused plan. */
void partition_plan_refuse(struct partition_plan *plan, enum perfmodel_limit binding, uint32_t unit,
                           const char *format, ...) CORE_PRINTF(4, 5);

/* One stream fits nowhere: refuses, and true. */
bool partition_problem_hopeless(const struct partition_problem *problem, struct partition_plan *plan);

#endif
