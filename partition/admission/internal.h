/* Private to partition: the state of the admission control. */
#ifndef MILLRACE_PARTITION_ADMISSION_INTERNAL_H
#define MILLRACE_PARTITION_ADMISSION_INTERNAL_H

#include "partition/admission/admission.h"
#include "partition/admission/unit_gpu.h"

/* Capacity of another unit that is reserved for the failure of the stream's GPU. */
struct partition_standing_backup {
    uint32_t unit; /* NONE: no backup */
    struct core_stream_spec spec;
    core_ns gpu_bound_ns, detection_ns; /* with a backup: d_g and delta */
};

struct partition_standing_record {
    struct core_stream_spec contract;
    struct core_stream_spec join; /* of the contracts that have not settled; what the I/O thread is charged */
    struct core_stream_spec
        spec; /* what the unit is charged: the join, its latency d_g where it has a backup */
    struct partition_standing_backup backup;
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

struct partition_standing {
    struct config_profile *profile;
    uint32_t worker_count, io_count, gpus;
    struct partition_unit **unit; /* by number: workers, then GPUs */
    struct partition_gpu **gpu;   /* the same GPUs */
    struct partition_gpus shared; /* of them */
    /* A worker, and a GPU of each kind, without streams and with all the pinned memory. */
    struct partition_unit *idle[1 + CONFIG_PROFILE_GPU_KINDS_MAX];
    struct partition_gpus alone; /* of these GPUs */
    struct perfmodel_flow_card *card[CONFIG_PROFILE_GPU_KINDS_MAX];
    int64_t *io_ppb;                     /* reserved, by I/O thread */
    uint64_t changes;                    /* counts whatever makes another plan of it */
    core_ns detection_ns;                /* delta of newcomers */
    uint32_t guarded;                    /* streams with a backup */
    struct partition_batches *batches;   /* by GPU; NULL: arenas are not known, and not asked for room */
    partition_standing_hurried *hurried; /* NULL: never */
    void *hurry;                         /* its owner */
    /* by number */
    struct partition_standing_record *record;
    uint32_t capacity, free; /* free: the first number that is, NONE */
    /* the numbers in use, without gaps */
    uint32_t *listed;
    uint32_t count;
};

static inline uint32_t partition_standing_units(const struct partition_standing *standing)
{
    return standing->worker_count + standing->gpus;
}

static inline bool partition_standing_is_gpu(const struct partition_standing *standing, uint32_t unit)
{
    return partition_unit_is_gpu(standing->worker_count, unit);
}

static inline uint32_t partition_standing_gpu_of(const struct partition_standing *standing, uint32_t unit)
{
    return partition_unit_gpu(standing->worker_count, unit);
}

/* ---- the decision: decide.c ---- */

/* Where the stream is placed, without reason and offer; among: kinds of units (unit.h). */
bool partition_standing_place(const struct partition_standing *standing,
                              const struct partition_demand *demand, uint32_t io, uint32_t among,
                              struct partition_standing_placement *placement);

/* Of the workers that accept the stream the least loaded; if none does (answer), the one that came
 * closest. */
uint32_t partition_standing_choose_worker(const struct partition_standing *standing,
                                          const struct partition_demand *demand,
                                          struct partition_answer *answer);

/* The GPU that suits best so far, and of those that refuse the one that came closest. */
struct partition_gpu_choice {
    const struct partition_standing *standing;
    const struct partition_demand *demand;
    uint32_t among;
    uint32_t gpu, closest; /* NONE: none */
    struct perfmodel_flow_verdict taken, lacks;
};
struct partition_gpu_choice partition_gpu_choice_of(const struct partition_standing *standing,
                                                    const struct partition_demand *demand, uint32_t among);
/* GPU g at this period. */
void partition_gpu_choice_ask(struct partition_gpu_choice *choice, uint32_t g, enum partition_period period);
/* GPUs with streams at their present periods; GPUs with or without streams at others. True: there is one. */
bool partition_gpu_choose_present(struct partition_gpu_choice *choice);
bool partition_gpu_choose_other(struct partition_gpu_choice *choice, bool idle);

/* ---- guaranteed streams: failover.c ---- */

struct partition_guard_question {
    const struct partition_standing *standing;
    const struct core_stream_spec *spec; /* with the whole latency bound d */
    uint32_t g;
    enum partition_period period; /* PRESENT, AT or BEST */
    core_ns period_ns;
    const struct partition_demand *instead_of; /* what the GPU is charged for the stream; NULL: nothing */
    const struct partition_standing_backup *present; /* the backup that the stream has now; NULL: none */
    bool newcomer;                                   /* batches are asked for room */
    bool whole;                                      /* as if the GPU withheld no capacity from admission */
};

/* What a stream with this contract asks of the unit that it comes to. False: no contract does. */
bool partition_guard_backup_spec(const struct core_stream_spec *spec, core_ns gpu_bound_ns,
                                 core_ns detection_ns, struct core_stream_spec *backup);

/* Is there a d_g at which the GPU accepts the stream, and a unit that accepts its backup? Fills the
 * placement. *taken: the GPU accepts the stream; a backup may be missing. */
bool partition_guard_on_gpu(const struct partition_guard_question *question,
                            struct partition_standing_placement *placement, bool *taken);

/* Asks as partition_guard_on_gpu does for a stream that is not admitted yet. */
bool partition_guard_ask(const struct partition_standing *standing, const struct core_stream_spec *spec,
                         uint32_t g, enum partition_period period,
                         struct partition_standing_placement *placement);

/* The best of the GPUs among those allowed, of the idle or of the others: see admission.h. */
bool partition_guard_place(const struct partition_standing *standing, const struct core_stream_spec *spec,
                           uint32_t among, bool idle, enum partition_period period,
                           struct partition_standing_placement *placement);

/* ---- */

/* The period and memory of a unit, if it is a GPU, from now on; and of those that a placement names. */
void partition_standing_retarget(struct partition_standing *standing, uint32_t unit, core_ns period_ns,
                                 uint64_t memory_bytes);
void partition_standing_set(struct partition_standing *standing,
                            const struct partition_standing_placement *placement);

/* Have the batches of GPU g room for it at this period, as its own stream (PARTITION_OWN), or as a backup in
 * this scenario? */
bool partition_standing_room_for(const struct partition_standing *standing, uint32_t g, uint32_t scenario,
                                 const struct partition_demand *demand, core_ns period_ns,
                                 struct partition_standing_words *words);

/* Plans of the batches of the GPUs among these units, which are charged for more now. False: one has no room
 * for that, and why; plans that were made meanwhile hold as well. Nothing is done where no arenas are known.
 */
bool partition_standing_plan_units(struct partition_standing *standing, uint32_t unit, uint32_t backup_unit,
                                   struct partition_standing_words *words);

/* The units are charged for less now: a plan that does not shrink, because another period may not follow,
 * holds as well. */
void partition_standing_plan_less(struct partition_standing *standing, uint32_t unit, uint32_t backup_unit);

/* Is what only explains a refusal to be cut off? */
static inline bool partition_standing_is_hurried(const struct partition_standing *standing)
{
    return standing->hurried != NULL && standing->hurried(standing->hurry);
}

/* ---- refusals: refuse.c ---- */

/* Refused: names constraint and reason, and the offer if asked for. */
void partition_standing_explain(const struct partition_standing *standing,
                                const struct partition_demand *demand, uint32_t io, bool with_offer,
                                struct partition_standing_placement *placement);

/* Refused by I/O thread `io`, which is charged was_ppb for the same stream now. */
void partition_standing_say_io(const struct partition_standing *standing, int64_t io_ppb, uint32_t io,
                               int64_t was_ppb, struct partition_standing_placement *placement);

/* Refused only by the share that is withheld from admission. */
void partition_standing_say_reserve(const struct partition_standing *standing, uint32_t unit,
                                    struct partition_standing_placement *placement);

/* ---- charges: account.c ---- */

/* Charges an I/O thread for a stream from now on: `less` no more, `more` instead; and would it hold? */
void partition_standing_charge_io(struct partition_standing *standing, uint32_t io, int64_t less_ppb,
                                  int64_t more_ppb);
bool partition_standing_io_fits(const struct partition_standing *standing, uint32_t io, int64_t less_ppb,
                                int64_t more_ppb);

/* Memory for one stream more where the placement has it, and for its backup. */
CORE_CHECKED core_status partition_standing_reserve(struct partition_standing *standing,
                                                    const struct partition_standing_placement *placement);

/* Charged for more than its contract: a change of it has not settled. */
bool partition_standing_joined(const struct partition_standing_record *record);

bool partition_standing_any_out(const struct partition_standing *standing);

/* Of a number in use. */
struct partition_standing_record *partition_standing_record_of(struct partition_standing *standing,
                                                               uint32_t stream);

/* Enters the stream, without any test, after a reserve; returns its number. A GPU's period is set before. */
uint32_t partition_standing_enter(struct partition_standing *standing, const struct core_stream_spec *spec,
                                  uint32_t io, uint64_t handle,
                                  const struct partition_standing_placement *placement);

/* Where the stream is from now on, without putting it there: unit, backup, and what they are charged. */
void partition_standing_assign(struct partition_standing_record *record,
                               const struct partition_standing_placement *placement);

CORE_CHECKED core_status partition_standing_check(const struct partition_standing *standing,
                                                  const struct core_stream_spec *spec, uint32_t io,
                                                  struct core_error *error);

/* Puts a stream's charges on its unit and its backup's (reserved before), or takes them away. */
void partition_standing_put(struct partition_standing *standing, uint32_t stream);
void partition_standing_take(struct partition_standing *standing, uint32_t stream);

/* Charges its unit for `spec`, and the unit of its backup for what that makes of it, instead of what they are
 * charged for now. */
void partition_standing_replace(struct partition_standing *standing, uint32_t stream,
                                const struct core_stream_spec *join);

/* Charges the stream's unit for `join` and moves its backup to where the placement has it, instead of what
 * they are charged for now. The unit stays. Memory must have been reserved. */
void partition_standing_recharge(struct partition_standing *standing, uint32_t stream,
                                 const struct core_stream_spec *join,
                                 const struct partition_standing_placement *placement);

#endif
