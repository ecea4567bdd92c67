/* Private to partition: what all methods need to know of the streams, and trials of a split.
 *
 * A split says for every stream whether it goes to a GPU. A trial deals the two parts to units, computes the
 * certificate and judges it. */
#ifndef MILLRACE_PARTITION_PROBLEM_H
#define MILLRACE_PARTITION_PROBLEM_H

#include "partition/plan.h"

/* The share of a stream that no worker can take. */
#define PARTITION_SHARE_NEVER INT64_C(2000000000000)
#define PARTITION_SHARE_ONE   INT64_C(1000000000)

struct partition_problem {
    const struct partition_plan_input *input;
    size_t count;
    uint32_t gpus;
    const struct config_profile_gpu **card; /* by GPU */
    struct perfmodel_cpu_task *task;        /* by stream, where share is not NEVER */
    int64_t *share_ppb;                     /* of one worker */
    core_ns *work_ns;                       /* d' on a GPU */
    uint64_t *rate;                         /* of payload, bytes per ns times 2^40 */
    uint32_t *by_rate, *by_latency;         /* rising; ties by index */
    uint32_t *by_share;                     /* falling */
    /* of the period last asked for */
    core_ns period_ns;
    uint64_t *job_bytes; /* by stream */
    uint32_t *by_job;    /* falling */
    /* of the period last weighed for */
    core_ns weighed_ns;
    uint64_t
        *capacity; /* by GPU: bytes of a batch that it could carry, roughly; 1 each where all are alike */
    /* scratch */
    uint64_t *dealt_bytes, *sort_bytes;
    uint32_t *order;
    struct perfmodel_cpu_task *dealt_task;
    size_t *start; /* by unit */
    int64_t *load; /* by unit */
};

CORE_CHECKED core_status partition_problem_create(const struct partition_plan_input *input,
                                                  struct partition_problem **problem);
void partition_problem_destroy(struct partition_problem *problem);

/* Are copies of this card charged at their contended times? */
bool partition_problem_busy(const struct partition_problem *problem, const struct config_profile_gpu *card);

/* Makes period_ns > 0 the period of capacity. */
void partition_problem_weigh(struct partition_problem *problem, core_ns period_ns);

/* The same, and of jobs and trials. */
void partition_problem_period(struct partition_problem *problem, core_ns period_ns);

/* Deals the streams with on_gpu[i] == 0 to the workers: worst fit by falling share. Fills plan->worker and
 * those streams' plan->unit. Refused: binding and reason. */
bool partition_trial_workers(struct partition_problem *problem, const uint8_t *on_gpu,
                             struct partition_plan *plan);

/* Leaves every GPU without streams. */
void partition_trial_no_gpu(const struct partition_problem *problem, struct partition_plan *plan);

/* Deals those with on_gpu[i] != 0 to the SMs of all GPUs as one, at the problem's period, and fills plan->gpu
 * and their plan->unit. Unlike GPUs get jobs in proportion to what they carry. */
bool partition_trial_virtual(struct partition_problem *problem, const uint8_t *on_gpu,
                             struct partition_plan *plan);

/* Judges the streams that plan->unit has on GPU g, at a period of its own: d_min / 4 where that holds, else
 * the next of a few that does. */
bool partition_trial_gpu(struct partition_problem *problem, uint32_t g, struct partition_plan *plan);

/* Do the arenas of all GPUs fit the pinned budget? Part of partition_trial_virtual. */
bool partition_trial_pinned(const struct partition_problem *problem, struct partition_plan *plan);

/* Periods worth trying for a shortest d', in order: the n-th; 0 beyond the last. The first is d'/4. */
core_ns partition_trial_period_ns(const struct partition_problem *problem, core_ns shortest_ns, uint32_t n);

/* Names what binds in an accepted plan, and the least headroom. */
void partition_trial_conclude(const struct partition_problem *problem, struct partition_plan *plan);

/* Sets binding, binding_unit and reason of a refused plan. */
void partition_plan_refuse(struct partition_plan *plan, enum partition_plan_constraint binding, uint32_t unit,
                           const char *format, ...) CORE_PRINTF(4, 5);

/* One stream fits nowhere: refuses, and true. */
bool partition_problem_hopeless(const struct partition_problem *problem, struct partition_plan *plan);

#endif
