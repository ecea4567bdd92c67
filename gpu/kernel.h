/* The kernel that encrypts a batch, on a CUDA device and on the host.
 *
 * Both run the same source (kernel_thread.h) over the same layout (batch_layout.h) and leave the same bytes:
 * for every job, output at its segments' offsets = AES-CBC of the input there, chained from the job's
 * chaining value, and the last block in the chain slot's other value, if the job leaves one. Nothing else is
 * written, so running a batch again changes nothing. Slots are those of gpu_batch; see there for the order of batches.
 *
 * A batch must be sound (gpu_batch_check) when it is run; neither form checks it again. */
#ifndef MILLRACE_GPU_KERNEL_H
#define MILLRACE_GPU_KERNEL_H

#include "core/status.h"
#include "gpu/batch_layout.h"

#include <stdbool.h>

#ifdef __CUDACC__
#define GPU_KERNEL_FUNCTION static __host__ __device__ __forceinline__
#else
#define GPU_KERNEL_FUNCTION static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* How a job is spread over threads. WHOLE: one thread, all four columns. QUAD: four threads, a column each,
 * which exchange bytes once a round (SYSTOR 2012). Which is faster depends on the card and on the number of
 * jobs; calibration measures. */
enum gpu_kernel_form { GPU_KERNEL_WHOLE, GPU_KERNEL_QUAD };
#define GPU_KERNEL_FORMS 2

/* "whole", "quad"; NULL for a value that is no form. And back: CORE_NOT_FOUND for an unknown name. */
const char *gpu_kernel_form_name(enum gpu_kernel_form form);
CORE_CHECKED core_status gpu_kernel_form_parse(const char *name, enum gpu_kernel_form *form);

/* Whether a set of forms, bit f for form f, has this one; an empty set has all. */
bool gpu_kernel_form_allowed(uint32_t forms, enum gpu_kernel_form form);

/* Whether every job's chain of segments exists, lies inside the arenas, adds up to its blocks and ends there,
 * and every slot named exists. Addresses are the host's here; keys, chains, input and output are not read.
 * Not checked: that no two segments overlap, no two jobs leave a value in one chain slot, and the key slots'
 * contents.
 * CORE_INVALID with the job and what is wrong. Time grows with the number of segments. */
CORE_CHECKED core_status gpu_batch_check(const struct gpu_batch *batch, struct core_error *error);

/* Runs jobs first .. first + count - 1 on the calling thread. Jobs of one batch may be run by several threads
 * at once. The table is looked up in the CPU's caches: see the side channels in aes.h. */
void gpu_kernel_run_host(enum gpu_kernel_form form, const struct gpu_batch *batch, uint32_t first,
                         uint32_t count);

/* How a launch of that many jobs (at least one, at most 2^31) is laid out on a device with that many SMs:
 * blocks of threads, all alike, a pass of one for each SM after another. The fewest passes, and the smallest
 * blocks for them: no SM gets more than 32 threads a block over those of its share of the jobs.
 *
 * **Dealing.** With the M SMs of the device, and the jobs sorted (batch_layout.h),
 *
 *     SM s has the jobs s, s + M, s + 2M, ..., in this order over its blocks, warps and threads.
 *
 * That is the dealing of the performance model (perfmodel_kernel_ns), and makes it a bound of what runs:
 *
 *   - A warp runs as long as its longest job. Of an SM's jobs those that are longer than x are the first n,
 *     for some n, so they are in the first n / 32 warps, rounded up, of which all but one are full. As many
 *     warps have n jobs of one length, which is how calibration measures what n jobs are charged, in this
 *     same layout. (QUAD: the same with 8 jobs a warp.)
 *   - The model takes the time of the first SM. The k-th job of any other SM is no longer than its k-th, and
 *     that holds wherever the card runs the blocks, if no SM gets two of one pass while another gets none.
 *   - Blocks that wait for room, where an SM holds fewer than it has, are those with the shortest jobs.
 *
 * Dealing warps of 32 neighbours would not end sooner: warp w of the first SM would again begin with job
 * 32 w M. It would spare the other SMs some work, but leave SMs idle where there are fewer than 32 M jobs;
 * dealt one by one, few jobs are in warps of few lanes, each of which waits for fewer lanes' loads. Blocks of
 * neighbours would give the first SM most of the long jobs. Lanes of a warp load and store 16 bytes each
 * wherever their packets are, so neighbours share no memory transaction that dealing could lose. */
struct gpu_kernel_shape {
    uint32_t blocks;        /* none of them without a job; block b is of SM b % M, in pass b / M */
    uint32_t block_threads; /* multiple of 32, at most GPU_KERNEL_BLOCK_THREADS_MAX */
};
#define GPU_KERNEL_BLOCK_THREADS_MAX 256
struct gpu_kernel_shape gpu_kernel_shape(enum gpu_kernel_form form, uint32_t jobs, uint32_t sms);

/* The index of the job that has the given place in a block of so many jobs; at or past the number of jobs
 * where there is none. */
GPU_KERNEL_FUNCTION uint32_t gpu_kernel_job(uint32_t sms, uint32_t block_jobs, uint32_t block, uint32_t place)
{
    return (block / sms * block_jobs + place) * sms + block % sms;
}

/* Threads of one job: 1 or 4. */
uint32_t gpu_kernel_job_threads(enum gpu_kernel_form form);

/* The rest is in the library millrace_gpu_cuda alone, built where nvcc is. */

struct CUstream_st; /* cudaStream_t points to one */

/* Puts one launch for the whole batch (device addresses) into the stream of the current device and returns.
 * 0 (cudaSuccess), or the cudaError_t of the launch. A batch without jobs launches nothing. */
CORE_CHECKED int gpu_kernel_launch(enum gpu_kernel_form form, const struct gpu_batch *batch,
                                   struct CUstream_st *stream);

/* What one form takes of the current device, as the driver loaded it. */
struct gpu_kernel_figures {
    uint32_t registers;      /* per thread */
    uint32_t shared_bytes;   /* per block of threads */
    uint32_t local_bytes;    /* per thread; 0 where no register is spilled */
    uint32_t jobs_per_block; /* in the largest block */
    uint32_t jobs_per_sm;    /* that one SM can hold at once */
    uint32_t sms;            /* of the device */
};

/* 0, or a cudaError_t. */
CORE_CHECKED int gpu_kernel_figures(enum gpu_kernel_form form, struct gpu_kernel_figures *figures);

#ifdef __cplusplus
}
#endif

#endif
