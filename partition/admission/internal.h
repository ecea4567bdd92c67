/* Private to partition: the state of the admission control. */
#ifndef MILLRACE_PARTITION_ADMISSION_INTERNAL_H
#define MILLRACE_PARTITION_ADMISSION_INTERNAL_H

#include "partition/admission/admission.h"
#include "partition/admission/unit_gpu.h"

/* Capacity of another unit that is reserved for the failure of the stream's GPU. */
struct admission_backup {
    uint32_t unit; /* NONE: no backup */
    struct core_stream_spec spec;
    core_ns gpu_bound_ns, detection_ns; /* with a backup: d_g and delta */
};

struct admission_record {
    struct core_stream_spec contract;
    struct core_stream_spec join; /* of the contracts that have not settled; what the I/O thread is charged */
    struct core_stream_spec
        spec; /* what the unit is charged: the join, its latency d_g where it has a backup */
    struct admission_backup backup;
    uint64_t handle;
    uint32_t unit, io;
    bool moved;      /* to another number, which has the I/O thread's share */
    uint32_t source; /* number that the stream was moved from, until that is released; else NONE */
    uint32_t target; /* moved: number that the stream was moved to; else NONE */
    uint32_t rank;   /* in `listed`; of a free number: the next free one */
};

/* The batches of a GPU. */
struct partition_batches {
    struct partition_gpu_arenas arenas;
    struct partition_gpu_plan plan; /* the last one that was made */
};

/* The state of admission: units, streams, and what a decision needs room for, so that none allocates. */
struct admission {
    struct config_profile *profile;
    uint32_t worker_count, io_count, gpus;
    struct partition_unit **unit; /* by number: workers, then GPUs */
    struct partition_gpu **gpu;   /* the same GPUs */
    struct partition_gpus shared; /* of them */
    /* A worker, and a GPU of each kind, without streams and with all the pinned memory. */
    struct partition_unit *idle[1 + CONFIG_PROFILE_GPU_KINDS_MAX];
    struct partition_gpus alone; /* of these GPUs */
    struct perfmodel_flow_gpu *card[CONFIG_PROFILE_GPU_KINDS_MAX];
    int64_t *io_ppb;                   /* reserved, by I/O thread */
    uint64_t changes;                  /* counts whatever makes another plan of it */
    core_ns detection_ns;              /* delta of new streams */
    uint32_t protected;                /* streams with a backup */
    struct partition_batches *batches; /* by GPU; NULL: arenas are not known, and not asked for room */
    admission_cancel *cancelled;       /* NULL: never */
    void *cancel_owner;                /* its owner */
    /* by number */
    struct admission_record *record;
    uint32_t capacity, free; /* free: the first number that is, NONE */
    /* the numbers in use, without gaps */
    uint32_t *listed;
    uint32_t count;
};

static inline uint32_t admission_units(const struct admission *admission)
{
    return admission->worker_count + admission->gpus;
}

static inline bool admission_is_gpu(const struct admission *admission, uint32_t unit)
{
    return partition_unit_is_gpu(admission->worker_count, unit);
}

static inline uint32_t admission_gpu_of(const struct admission *admission, uint32_t unit)
{
    return partition_unit_gpu(admission->worker_count, unit);
}

/* ---- the decision: decide.c ---- */

/* Where the stream is placed, without reason and offer; among: kinds of units (unit.h). */
bool admission_place(const struct admission *admission, const struct partition_demand *demand, uint32_t io,
                     uint32_t among, struct admission_placement *placement);

/* Of the workers that accept the stream the least loaded; if none does (answer), the one that came
 * closest. */
uint32_t admission_choose_worker(const struct admission *admission, const struct partition_demand *demand,
                                 struct partition_answer *answer);

/* The GPU that suits best so far, and of those that refuse the one that came closest. */
struct partition_gpu_choice {
    const struct admission *admission;
    const struct partition_demand *demand;
    uint32_t among;
    uint32_t gpu, closest; /* NONE: none */
    struct perfmodel_flow_verdict taken, lacks;
};
struct partition_gpu_choice partition_gpu_choice_of(const struct admission *admission,
                                                    const struct partition_demand *demand, uint32_t among);
/* GPU g at this period. */
void partition_gpu_choice_ask(struct partition_gpu_choice *choice, uint32_t g, enum partition_period period);
/* GPUs with streams at their present periods; GPUs with or without streams at others. True: there is one. */
bool partition_gpu_choose_present(struct partition_gpu_choice *choice);
bool partition_gpu_choose_other(struct partition_gpu_choice *choice, bool idle);

/* ---- guaranteed streams: failover.c ---- */

struct partition_failover_question {
    const struct admission *admission;
    const struct core_stream_spec *spec; /* with the whole latency bound d */
    uint32_t g;
    enum partition_period period; /* PRESENT, AT or BEST */
    core_ns period_ns;
    const struct partition_demand *instead_of; /* what the GPU is charged for the stream; NULL: nothing */
    const struct admission_backup *present;    /* the backup that the stream has now; NULL: none */
    bool is_new;                               /* a new stream: batches are asked for room, too */
    bool whole;                                /* as if the GPU withheld no capacity from admission */
};

/* What a stream with this contract asks of the unit that it comes to. False: no contract does. */
bool partition_failover_backup_spec(const struct core_stream_spec *spec, core_ns gpu_bound_ns,
                                    core_ns detection_ns, struct core_stream_spec *backup);

/* Is there a d_g at which the GPU accepts the stream, and a unit that accepts its backup? Fills the
 * placement. *taken: the GPU accepts the stream; a backup may be missing. */
bool partition_failover_on_gpu(const struct partition_failover_question *question,
                               struct admission_placement *placement, bool *taken);

/* Asks as partition_failover_on_gpu does for a stream that is not admitted yet. */
bool partition_failover_ask(const struct admission *admission, const struct core_stream_spec *spec,
                            uint32_t g, enum partition_period period, struct admission_placement *placement);

/* The best of the GPUs among those allowed, of the idle or of the others: see admission.h. */
bool partition_failover_place(const struct admission *admission, const struct core_stream_spec *spec,
                              uint32_t among, bool idle, enum partition_period period,
                              struct admission_placement *placement);

/* ---- */

/* The period and memory of a unit, if it is a GPU, from now on; and of those that a placement names. */
void admission_retarget(struct admission *admission, uint32_t unit, core_ns period_ns, uint64_t memory_bytes);
void admission_set_periods(struct admission *admission, const struct admission_placement *placement);

/* Have the batches of GPU g room for it at this period, as its own stream (PARTITION_OWN), or as a backup in
 * this scenario? */
bool admission_batches_fit(const struct admission *admission, uint32_t g, uint32_t scenario,
                           const struct partition_demand *demand, core_ns period_ns,
                           struct admission_refusal *words);

/* Plans of the batches of the GPUs among these units, which are charged for more now. False: one has no room
 * for that, and why; plans that were made meanwhile hold as well. Nothing is done where no arenas are known.
 */
bool admission_plan_units(struct admission *admission, uint32_t unit, uint32_t backup_unit,
                          struct admission_refusal *words);

/* The units are charged for less now: a plan that does not shrink, because another period may not follow,
 * holds as well. */
void admission_plan_smaller(struct admission *admission, uint32_t unit, uint32_t backup_unit);

/* Is what only explains a refusal to be cut off? */
static inline bool admission_is_cancelled(const struct admission *admission)
{
    return admission->cancelled != NULL && admission->cancelled(admission->cancel_owner);
}

/* ---- refusals: refuse.c ---- */

/* Refused: names constraint and reason, and the offer if asked for. */
void admission_explain(const struct admission *admission, const struct partition_demand *demand, uint32_t io,
                       bool with_offer, struct admission_placement *placement);

/* Refused by I/O thread `io`, which is charged was_ppb for the same stream now. */
void admission_explain_io(const struct admission *admission, int64_t io_ppb, uint32_t io, int64_t was_ppb,
                          struct admission_placement *placement);

/* Refused only by the share that is withheld from admission. */
void admission_explain_withheld(const struct admission *admission, uint32_t unit,
                                struct admission_placement *placement);

/* ---- charges: account.c ---- */

/* Charges an I/O thread for a stream from now on: `less` no more, `more` instead; and would it hold? */
void admission_charge_io(struct admission *admission, uint32_t io, int64_t less_ppb, int64_t more_ppb);
bool admission_io_fits(const struct admission *admission, uint32_t io, int64_t less_ppb, int64_t more_ppb);

/* Memory for one stream more where the placement has it, and for its backup. */
CORE_CHECKED core_status admission_allocate(struct admission *admission,
                                            const struct admission_placement *placement);

/* Charged for more than its contract: a change of it has not settled. */
bool admission_joined(const struct admission_record *record);

bool admission_any_out(const struct admission *admission);

/* Of a number in use. */
struct admission_record *admission_record_of(struct admission *admission, uint32_t stream);

/* Enters the stream, without any test, after admission_allocate; returns its number. A GPU's period is set before. */
uint32_t admission_insert(struct admission *admission, const struct core_stream_spec *spec, uint32_t io,
                          uint64_t handle, const struct admission_placement *placement);

/* Where the stream is from now on, without putting it there: unit, backup, and what they are charged. */
void admission_assign(struct admission_record *record, const struct admission_placement *placement);

CORE_CHECKED core_status admission_check(const struct admission *admission,
                                         const struct core_stream_spec *spec, uint32_t io,
                                         struct core_error *error);

/* Puts a stream's charges on its unit and its backup's (reserved before), or takes them away. */
void admission_add_demand(struct admission *admission, uint32_t stream);
void admission_remove_demand(struct admission *admission, uint32_t stream);

/* Charges its unit for `join`, and the unit of its backup for what that makes of it, instead of what they are
 * charged for now. */
void admission_replace(struct admission *admission, uint32_t stream, const struct core_stream_spec *join);

/* Charges the stream's unit for `join` and moves its backup to where the placement has it, instead of what
 * they are charged for now. The unit stays. Memory must have been reserved. */
void admission_reserve_join(struct admission *admission, uint32_t stream, const struct core_stream_spec *join,
                            const struct admission_placement *placement);

#endif
