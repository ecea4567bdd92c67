/* Private to partition: a unit of the admission state, a worker or a GPU, behind one table of functions.
 *
 * A unit keeps the sums of its own streams' demand and, for the failure of each GPU, of the backups that it
 * serves then. Whatever is asked or entered is so in a *scenario*: PARTITION_OWN for the unit's own streams,
 * which count in all scenarios, or the number of the GPU that fails for a backup, which counts in that one. A
 * stream must pass the test in all scenarios, a backup only in its own. So the failure of any one GPU never
 * asks more of a unit than it can do, and the scenarios share the reserved capacity. */
#ifndef MILLRACE_PARTITION_ADMISSION_UNIT_H
#define MILLRACE_PARTITION_ADMISSION_UNIT_H

#include "partition/admission/demand.h"
#include "perfmodel/edf.h"

#define PARTITION_OWN UINT32_MAX /* a scenario: no failure */

/* Of a GPU's batches. */
enum partition_period {
    PARTITION_PERIOD_PRESENT, /* as it is; a GPU with neither streams nor backups has none, and refuses */
    PARTITION_PERIOD_AT,      /* period_ns of the question */
    PARTITION_PERIOD_BEST,    /* d'/4 of the shortest d' where that holds, else the one with most headroom */
    PARTITION_PERIOD_ANY      /* the present one, else the first other that holds */
};

struct partition_question {
    const struct partition_demand *more;       /* of a stream or backup; NULL: none, a GPU as it stands */
    const struct partition_demand *instead_of; /* its present charge in this scenario; NULL: none */
    uint32_t scenario;
    bool whole; /* as if no capacity were withheld from admission */
    /* asked of a GPU */
    enum partition_period period;
    core_ns period_ns;
    uint64_t kept_bytes; /* pinned memory that is not to be taken */
};

struct partition_answer {
    bool accepted;
    /* A worker's figures: of the scenario that refuses, else of the fullest. */
    struct perfmodel_edf_result test;
    /* A GPU's, accepted: at the period; refused: of the period that came closest. Of the scenario with the
     * least headroom; its memory and latency are the largest of all scenarios. */
    struct perfmodel_flow_verdict verdict;
};

struct partition_unit;

struct partition_unit_ops {
    /* Would the unit hold? Leaves it as it is; instead_of is off a worker while that is asked. */
    struct partition_answer (*ask)(const struct partition_unit *unit,
                                   const struct partition_question *question);
    /* The latency that is guaranteed to a stream with this contract once it is accepted. */
    core_ns (*bound_ns)(const struct partition_unit *unit, const struct partition_demand *demand);
    /* Long-run share of the unit's time that a backup takes in a scenario; a GPU's at this period. */
    int64_t (*backup_ppb)(const struct partition_unit *unit, uint32_t scenario,
                          const struct partition_demand *backup, core_ns period_ns);
    /* Memory for one more in this scenario, so that a charge can not fail. */
    core_status (*reserve)(struct partition_unit *unit, uint32_t scenario);
    /* Takes away what `stream` is charged for (NULL: nothing) and enters what it is charged for from now on
     * (NULL: nothing), proven or not. Memory has been reserved. */
    void (*charge)(struct partition_unit *unit, uint32_t scenario, uint32_t stream,
                   const struct partition_demand *less, const struct partition_demand *more);
    /* A GPU's period from now on, and the memory of its arenas. Nothing to a worker. */
    void (*retarget)(struct partition_unit *unit, core_ns period_ns, uint64_t memory_bytes);
    /* `copy` is as it was created, on a profile with the same figures. */
    core_status (*copy)(const struct partition_unit *unit, struct partition_unit *copy);
    void (*destroy)(struct partition_unit *unit);
};

struct partition_unit {
    const struct partition_unit_ops *ops;
    uint32_t kind;       /* a bit: PARTITION_KIND_WORKER, or 1 << the index of the profile's kind of GPU */
    int64_t reserve_ppb; /* of its time and memory, withheld from admission */
    bool out;            /* of service: a GPU */
    core_ns period_ns;   /* T of a GPU with streams of its own or backups; else 0 */
    /* Of a GPU's arenas at T. Where the plan was made anew it may be by the sharper rule of single batches,
     * which this account does not know; then it is the plan's figure, which fewer streams only lower. */
    uint64_t memory_bytes;
};

#define PARTITION_KIND_WORKER (UINT32_C(1) << 31)
#define PARTITION_KIND_ANY    UINT32_MAX

static inline struct partition_answer partition_unit_ask(const struct partition_unit *unit,
                                                         const struct partition_question *question)
{
    return unit->ops->ask(unit, question);
}

static inline core_ns partition_unit_bound_ns(const struct partition_unit *unit,
                                              const struct partition_demand *demand)
{
    return unit->ops->bound_ns(unit, demand);
}

/* One stream more, of the unit's own. */
static inline bool partition_unit_takes(const struct partition_unit *unit,
                                        const struct partition_demand *demand)
{
    const struct partition_question question = {
        .more = demand, .scenario = PARTITION_OWN, .period = PARTITION_PERIOD_ANY};
    return unit->ops->ask(unit, &question).accepted;
}

#endif
