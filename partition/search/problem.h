/* Private to partition: the problem that all methods solve, and the evaluation of candidate assignments.
 *
 * Streams are numbered by rising rate, so that loops by rate or by share access memory in order. Until
 * partition_plan_conclude, a plan's units are indexed by these numbers, too.
 *
 * A candidate assignment (`on_gpu`) says for every stream whether it goes to a GPU or to a worker. Its
 * evaluation deals the streams to the units, computes the certificate and judges it. */
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
    uint64_t rate, packet_rate;           /* perfmodel/flow.h */
    core_ns interval_ns, work_ns;         /* d' on a GPU */
    uint32_t packet_bytes, burst_packets; /* padded */
    bool alone;                           /* its packets stand alone: each is a job */
};

/* The streams as arrays, one for each figure that the search reads in its inner loops: that is why they are
 * many. */
struct partition_problem {
    const struct partition_plan_input *input;
    size_t count;
    uint32_t *origin; /* by stream: its index in the input */
    uint32_t *number; /* by index in the input: the stream */
    struct core_stream_spec *specs;
    struct partition_traffic *traffic;
    uint32_t gpus;
    const struct config_profile_gpu **card;                        /* by GPU */
    struct perfmodel_cpu_task *task;                               /* by stream, where share is not NEVER */
    int64_t *share_ppb;                                            /* of one worker */
    uint32_t *by_rate, *by_latency;                                /* rising; ties by index */
    uint32_t *by_share;                                            /* falling */
    struct perfmodel_flow_gpu *flow[CONFIG_PROFILE_GPU_KINDS_MAX]; /* by kind; not in paper mode */
    /* of the last partition_problem_weigh */
    core_ns weighed_ns;
    uint64_t *capacity; /* by GPU: estimated bytes of a batch that it can carry; 1 each if all are alike */
    /* scratch, with room for all streams */
    uint64_t *key[2];
    struct perfmodel_jobs *jobs[2];
    uint32_t *index[2], *member;
    struct perfmodel_cpu_task *dealt_task;
    struct perfmodel_edf_set *edf_set;    /* not in paper mode */
    struct perfmodel_cpu_worker worker;   /* figures of the profile */
    core_ns window_ns[PARTITION_WINDOWS]; /* windows to test first: where evaluations failed, latest first */
    /* scratch by unit */
    size_t *start;
    int64_t *load;
    uint32_t *heap;
};

CORE_CHECKED core_status partition_problem_create(const struct partition_plan_input *input,
                                                  struct partition_problem **problem);
void partition_problem_destroy(struct partition_problem *problem);

/* Are copies of this model of GPU charged at their contended times? */
bool partition_problem_busy(const struct partition_problem *problem, const struct config_profile_gpu *card);

/* Computes `capacity` for batches of period_ns > 0. */
void partition_problem_weigh(struct partition_problem *problem, core_ns period_ns);

/* The load of one stream on a GPU. unit_bytes is its padded packet: sums keep the common divisor. */
static inline struct perfmodel_flow_load partition_problem_load(const struct partition_problem *problem,
                                                                size_t i)
{
    const struct partition_traffic *traffic = &problem->traffic[i];
    uint64_t burst_bytes = (uint64_t)traffic->burst_packets * traffic->packet_bytes;
    return (struct perfmodel_flow_load){.streams = 1,
                                        .jobs = traffic->alone ? traffic->burst_packets : 1,
                                        .jobs_rate = traffic->alone ? traffic->packet_rate : 0,
                                        .burst_bytes = burst_bytes,
                                        .rate = traffic->rate,
                                        .job_burst_bytes =
                                            traffic->alone ? traffic->packet_bytes : burst_bytes,
                                        .job_rate = traffic->alone ? 0 : traffic->rate,
                                        .unit_bytes = traffic->packet_bytes,
                                        .shortest_ns = traffic->work_ns,
                                        .burst_packets = traffic->burst_packets,
                                        .packet_rate = traffic->packet_rate};
}

/* perfmodel_gpu_jobs of a stream, from its traffic. */
static inline struct perfmodel_jobs partition_problem_jobs(const struct partition_problem *problem, size_t i,
                                                           core_ns period_ns)
{
    const struct partition_traffic *traffic = &problem->traffic[i];
    if (problem->input->paper)
        return perfmodel_gpu_jobs(&problem->specs[i], period_ns, true);
    uint64_t whole =
        period_ns < traffic->interval_ns ? 0 : (uint64_t)period_ns / (uint64_t)traffic->interval_ns;
    const uint64_t packets = traffic->burst_packets + whole;
    return traffic->alone ? (struct perfmodel_jobs){traffic->packet_bytes, packets}
                          : (struct perfmodel_jobs){packets * traffic->packet_bytes, 1};
}

/* Deals the streams with on_gpu[i] == 0 to the workers: worst fit by falling share. Fills plan->worker and
 * those streams' plan->unit. Refused: binding and reason. */
bool partition_evaluate_workers(struct partition_problem *problem, const uint8_t *on_gpu,
                                struct partition_plan *plan);

/* As partition_evaluate_workers, but by shares and some windows alone, without the burst test: a necessary
 * condition. False: the assignment is infeasible. True: it may be feasible. */
bool partition_evaluate_workers_necessary(struct partition_problem *problem, const uint8_t *on_gpu,
                                          struct partition_plan *plan);

/* Evaluates the workers with the streams with on_gpu[i] == 0 on the worker plan->unit[i], instead of dealing
 * them. Not in paper mode. */
bool partition_evaluate_workers_as_assigned(struct partition_problem *problem, const uint8_t *on_gpu,
                                            struct partition_plan *plan);

/* Leaves every GPU without streams. */
void partition_plan_clear_gpus(const struct partition_problem *problem, struct partition_plan *plan);

/* Deals the streams with on_gpu[i] != 0 to the SMs of all GPUs as if these were one, by falling job at d'/4,
 * and judges every GPU. GPUs of different models get jobs in proportion to their capacity. Overwrites
 * plan->unit of all streams. */
bool partition_evaluate_virtual(struct partition_problem *problem, const uint8_t *on_gpu,
                                struct partition_plan *plan);

/* Judges every GPU with the streams that plan->unit assigns to it, at a period of its own: d'/4 where the
 * fullest batch or the sums hold at that, else any period at which one of the three rules holds
 * (partition/plan.h). Fills plan->gpu. */
bool partition_evaluate_gpus(struct partition_problem *problem, struct partition_plan *plan);

/* Judges the GPUs at given periods, each > 0 where the GPU has streams, by the fullest batch or by sums. Not
 * in paper mode. */
bool partition_evaluate_gpus_at(struct partition_problem *problem, const core_ns *period_ns,
                                struct partition_plan *plan);

/* The n-th of the periods to try for a GPU with this shortest d'; 0 beyond the last. The first is d'/4. */
core_ns partition_candidate_period_ns(const struct partition_problem *problem, core_ns shortest_ns,
                                      uint32_t n);

/* Finishes an accepted plan: sets the binding limit and the least headroom, and puts its units into the order
 * of the input. */
void partition_plan_conclude(struct partition_problem *problem, struct partition_plan *plan);

/* A plan without figures, and its reason once it is accepted. */
struct partition_plan *partition_plan_create(const struct partition_plan_method *method,
                                             const struct partition_plan_input *input);
void partition_plan_explain_accepted(struct partition_plan *plan);

/* Sets binding, binding_unit and reason of a refused plan. */
void partition_plan_refuse(struct partition_plan *plan, enum perfmodel_limit binding, uint32_t unit,
                           const char *format, ...) CORE_PRINTF(4, 5);

/* True if some stream fits on no unit even alone: refuses the plan. */
bool partition_problem_infeasible(const struct partition_problem *problem, struct partition_plan *plan);

#endif
