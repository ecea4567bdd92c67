/* Private to partition: the account of one GPU in a standing plan.
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
#include "perfmodel/flow.h"

#define PARTITION_GPU_HEAPS 3

/* Streams together. Zeroed: none. */
struct partition_gpu_crowd {
    struct perfmodel_flow_load load;
    struct partition_heap heap[PARTITION_GPU_HEAPS]; /* job_burst_bytes, job_rate, least d' */
    struct partition_sizes sizes;                    /* of padded packets */
};

struct partition_gpu {
    const struct perfmodel_flow_card *card;
    uint32_t kind; /* index into the profile's */
    struct partition_gpu_crowd own;
    /* By GPU that may be lost: the streams that come here then; NULL until there were any. Each such loss is
     * a case of its own, and a period holds if it holds in all of them, and without. */
    struct partition_gpu_crowd **backups;
    uint32_t losses;     /* length of backups */
    uint32_t guaranteed; /* of its own streams: of that class */
    core_ns period_ns;   /* T; 0 without streams of its own or backups */
    /* Of the arenas at T. Where the plan was made anew it may be by the sharper rule of single batches, which
     * this account does not know; then it is the plan's figure, which fewer streams only make smaller. */
    uint64_t memory_bytes;
    bool out;            /* of service */
    int64_t reserve_ppb; /* of its time and memory, withheld from admission */
};

struct partition_gpu_answer {
    bool accepted;
    /* accepted: at the period; refused: of the period that came closest. Of the case with the least room; its
     * memory and latency are the largest of all cases. */
    struct perfmodel_flow_verdict verdict;
};

/* How many periods of the grid are at most so long, and the n-th of them. */
uint32_t partition_gpu_grid_up_to(core_ns ns);
core_ns partition_gpu_grid_ns(uint32_t n);

/* One stream's load, its packet as the divisor. */
struct perfmodel_flow_load partition_gpu_load(const struct core_stream_spec *spec,
                                              const struct config_profile *profile);

/* Would the GPU with one more stream (its load; streams = 0: as it stands) hold at its present period? With
 * at most room_bytes of pinned memory for its arenas. Refused where it has no streams yet. */
struct partition_gpu_answer partition_gpu_ask_present(const struct partition_gpu *gpu,
                                                      const struct perfmodel_flow_load *more,
                                                      uint64_t room_bytes);

/* Would the GPU with one more stream hold at period_ns > 0? The GPU may have no streams yet. */
struct partition_gpu_answer partition_gpu_ask_at(const struct partition_gpu *gpu,
                                                 const struct perfmodel_flow_load *more, uint64_t room_bytes,
                                                 core_ns period_ns);

/* Would the GPU with one more stream hold at another period? Tries the default period d'/4 first, then
 * takes the period of the grid with most headroom; `any`: the first period that holds. */
struct partition_gpu_answer partition_gpu_ask_other(const struct partition_gpu *gpu,
                                                    const struct perfmodel_flow_load *more,
                                                    uint64_t room_bytes, bool any);

/* A backup that is served here while GPU `loss` is out of service. */
struct partition_gpu_backup {
    uint32_t loss;
    struct perfmodel_flow_load load;
    struct perfmodel_flow_load instead_of; /* the same stream's present load there; zeroed: none */
};

/* Would the GPU with one more backup hold, at its present period; or, without one, at some period? */
struct partition_gpu_answer partition_gpu_ask_backup(const struct partition_gpu *gpu,
                                                     const struct partition_gpu_backup *more,
                                                     uint64_t room_bytes);

/* What a backup adds to the busiest stage, in ppb of the long run, at least 1. */
int64_t partition_gpu_backup_ppb(const struct partition_gpu *gpu, const struct partition_gpu_backup *more,
                                 core_ns period_ns);

/* Are these two idle GPUs that give the same answers? False if one is NULL. */
bool partition_gpu_alike(const struct partition_gpu *a, const struct partition_gpu *b);

/* A GPU without streams, as one of `gpus`. */
CORE_CHECKED core_status partition_gpu_init(struct partition_gpu *gpu, const struct perfmodel_flow_card *card,
                                            uint32_t kind, uint32_t gpus);

/* Room in memory for one stream more, or for one backup more. */
CORE_CHECKED core_status partition_gpu_reserve(struct partition_gpu *gpu);
CORE_CHECKED core_status partition_gpu_reserve_backup(struct partition_gpu *gpu, uint32_t loss);

/* place[h]: by stream, of heap h. After a reserve. Does not judge. */
void partition_gpu_add(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS], uint32_t stream,
                       const struct perfmodel_flow_load *load);
void partition_gpu_remove(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                          uint32_t stream, const struct perfmodel_flow_load *load);

/* A stream's load becomes another one. The GPU stays at its period, even if the stream is its only one. */
void partition_gpu_replace(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                           uint32_t stream, const struct perfmodel_flow_load *load,
                           const struct perfmodel_flow_load *by);

/* Add, remove and replace backups. `place` is a second set of arrays, for backups only. */
void partition_gpu_add_backup(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                              uint32_t stream, const struct partition_gpu_backup *backup);
void partition_gpu_remove_backup(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                                 uint32_t stream, const struct partition_gpu_backup *backup);
void partition_gpu_replace_backup(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                                  uint32_t stream, const struct partition_gpu_backup *by);
bool partition_gpu_any_backup(const struct partition_gpu *gpu);

/* Of the GPU's own streams and of all backups: the least d' (0: there are none), and how many backups. */
core_ns partition_gpu_shortest_ns(const struct partition_gpu *gpu);
size_t partition_gpu_backups(const struct partition_gpu *gpu);

/* The period from now on, with the arenas' memory. */
void partition_gpu_set(struct partition_gpu *gpu, core_ns period_ns, uint64_t memory_bytes);

/* `copy` has been initialised as this one was, and has no streams yet. */
CORE_CHECKED core_status partition_gpu_copy(const struct partition_gpu *gpu, struct partition_gpu *copy);
void partition_gpu_free(struct partition_gpu *gpu);

#endif
