/* What is promised of one GPU's batches and its batcher keeps to: a plan; and when one may follow another.
 *
 * A plan with another period than the batches have is reached only over changes that are proven for every
 * packet that may be in a batch by then (perfmodel_flow_judge_change), and for which the arenas that there
 * are will do. If there is no such change, periods between the two may be steps on the way. How a batcher
 * goes along it: server/gpu/plan_queue.h.
 *
 * Pure. */
#ifndef MILLRACE_PARTITION_ADMISSION_GPU_PLAN_H
#define MILLRACE_PARTITION_ADMISSION_GPU_PLAN_H

#include "perfmodel/flow.h"

/* The arenas of a GPU, sized at start: so many of one size, each for one batch. */
struct partition_gpu_arenas {
    uint32_t count;
    uint32_t slots;    /* keys on the card: streams */
    uint32_t segments; /* packets of a batch */
    uint64_t bytes;    /* payload of a batch, padded; as much for input as for output */
    core_ns lead_ns;   /* a batch has its arena so long before its period begins */
    core_ns hang_ns;   /* a batch with guaranteed streams must not take longer; CORE_NS_NEVER: it may */
};

struct partition_gpu_plan {
    uint64_t number;                   /* rises with each plan of this GPU */
    core_ns period_ns;                 /* 0: no streams, no batches */
    core_ns delay_ns;                  /* from the end of a period to the closing of its batch */
    core_ns up_ns, kernel_ns, down_ns; /* bounds of the stages */
    core_ns latency_ns;                /* period and stages */
    core_ns batch_ns;     /* from a batch's closing to its last byte: stages, and half of in_ns on the way */
    uint64_t batch_bytes; /* the most that a batch may have, */
    uint64_t batch_packets; /* and packets */
    uint32_t streams;
    uint32_t guaranteed; /* of these: a batch that does not come back is told after gpus.hang_ms, not later */
    uint32_t backups;    /* streams of other GPUs that come at the loss of theirs; */
    int64_t reserved_ppb; /* share of the busiest stage that is held for the worst loss */
    /* for the next one: */
    const struct perfmodel_flow_gpu *card; /* outlives all plans */
    struct perfmodel_flow_load load;       /* who has room, at whatever loss, and the least d' */
    uint32_t arenas;                       /* that there are, */
    core_ns aside_ns;      /* of which a batch has one for so long beside its period and stages */
    core_ns batch_most_ns; /* no batch_ns may be longer; CORE_NS_NEVER: whatever it is */
};

/* May batches go from one plan's period to the other's at any boundary? Packets are only of streams that have
 * room in both. Always, from or to no batches. */
bool partition_gpu_plan_may_follow(const struct partition_gpu_plan *from,
                                   const struct partition_gpu_plan *to);

/* The same, or over periods between. */
bool partition_gpu_plan_leads_to(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to);

/* The first step from the one to the other that may follow it: `from` at a period between, as far on the way
 * as one change can go. False: there is none. */
bool partition_gpu_plan_step(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to,
                             struct partition_gpu_plan *step);

#endif
