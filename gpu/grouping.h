/* From the writers' records of a closed batch to the tables that a device runs: one job per stream, its
 * segments chained in the order of its packets, or one per packet that stands alone; jobs by falling number of
 * blocks.
 *
 * All packets of a stream are in one list (a stream has one writer), and either all of them stand alone or none.
 * Segments of a job lie side by side, in order; jobs of equal length stay in the order of their first packets.
 * O(packets + jobs): streams are found by a table of slots, jobs are sorted by digits.
 *
 * It also keeps what a stream's chain needs from batch to batch (gpu/batch_layout.h): which of the two values
 * of its chain slot is to be read next, and a value to start from instead of what the device has.
 *
 * One owner, the batcher thread, but for gpu_grouping_resize. Nothing else is allocated after creation. Nothing is
 * read from the tables. */
#ifndef MILLRACE_GPU_GROUPING_H
#define MILLRACE_GPU_GROUPING_H

#include "core/status.h"
#include "gpu/arena.h"

#include <stdint.h>

struct gpu_grouping;

/* For slots 0 .. slots - 1, and batches of up to jobs_most jobs (at least one), with memory for `jobs` of them.
 * CORE_NO_MEMORY. */
CORE_CHECKED core_status gpu_grouping_create(struct gpu_grouping **grouping, uint32_t slots,
                                             uint32_t jobs_most, uint32_t jobs);
uint64_t gpu_grouping_bytes(uint32_t slots, uint32_t jobs); /* its memory */
void gpu_grouping_destroy(struct gpu_grouping *grouping);   /* NULL is fine */

/* An ordinary thread, while no batch is grouped that has more jobs than before or after. CORE_NO_MEMORY: it has
 * memory for as many as before, at least. */
CORE_CHECKED core_status gpu_grouping_resize(struct gpu_grouping *grouping, uint32_t jobs);

/* The slot's next job starts from iv, if its first packet has none of its own. slot < slots. */
void gpu_grouping_restart_chain(struct gpu_grouping *grouping, uint32_t slot,
                                const uint8_t iv[GPU_BLOCK_BYTES]);

/* Writes the tables: `segments` and `jobs` have room for all records. Sets batch->writers, blocks,
 * used_bytes, job_count, segment_count and longest_job_blocks. Every record's slot is less than slots; at
 * most 64 lists. */
void gpu_grouping_run(struct gpu_grouping *grouping, const struct gpu_record_list *lists, uint32_t list_count,
                      struct gpu_segment *segments, struct gpu_job *jobs, struct gpu_arena_batch *batch);

#endif
