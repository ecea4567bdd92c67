/* Private to partition: a GPU, as a unit of the admission state (unit.h).
 *
 * Keeps the load of its streams (perfmodel/flow.h) exactly: sums, the greatest job and the least d' in heaps,
 * and the sizes of packets for their divisor, so that a stream that has left leaves no trace. A question
 * costs some dozen verdicts at most, of about a microsecond each, however many streams there are.
 *
 * Periods are asked for on a fixed grid, eight an octave, and at the present one: so what is accepted stays
 * accepted for a longer interval or latency bound, all else equal (each verdict is monotone in both). */
#ifndef MILLRACE_PARTITION_ADMISSION_UNIT_GPU_H
#define MILLRACE_PARTITION_ADMISSION_UNIT_GPU_H

#include "partition/admission/max_heap.h"
#include "partition/admission/packet_sizes.h"
#include "partition/admission/unit.h"

#define PARTITION_GPU_HEAPS 3

/* What the GPUs of a plan share. */
struct partition_gpus {
    const struct config_profile *profile; /* pinned_bytes: of all arenas at the most */
    uint64_t pinned_bytes;                /* of all arenas now */
    /* By stream: its places in the heaps of its GPU, and in those of its backup's. */
    uint32_t *place[PARTITION_GPU_HEAPS], *backup_place[PARTITION_GPU_HEAPS];
};

/* Streams together. Zeroed: none. */
struct partition_gpu_crowd {
    struct perfmodel_flow_load load;
    struct partition_heap heap[PARTITION_GPU_HEAPS]; /* job_burst_bytes, job_rate, least d' */
    struct partition_sizes sizes;                    /* of padded packets */
};

struct partition_gpu {
    struct partition_unit unit;
    struct partition_gpus *gpus;
    const struct perfmodel_flow_gpu *card;
    struct partition_gpu_crowd own;
    uint32_t guaranteed; /* of its own streams: of that class */
    uint32_t failures;   /* length of backups */
    /* By GPU that fails; NULL until there were any. */
    struct partition_gpu_crowd *backups[];
};

/* How many periods of the grid are at most so long, and the n-th of them. */
uint32_t partition_gpu_grid_up_to(core_ns ns);
core_ns partition_gpu_grid_ns(uint32_t n);

/* Are these two idle GPUs that give the same answers? False if one is NULL. */
bool partition_gpu_alike(const struct partition_gpu *a, const struct partition_gpu *b);

/* A GPU without streams, one of `failures`; `kind` is the profile's. gpus and card must outlive it. */
CORE_CHECKED core_status partition_gpu_create(struct partition_gpu **gpu, struct partition_gpus *gpus,
                                              const struct perfmodel_flow_gpu *card, uint32_t kind,
                                              uint32_t failures);

/* Of the GPU's own streams and of all backups: the least d' (0: there are none), and how many backups. */
core_ns partition_gpu_shortest_ns(const struct partition_gpu *gpu);
size_t partition_gpu_backups(const struct partition_gpu *gpu);

#endif
