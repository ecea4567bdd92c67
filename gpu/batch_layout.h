/* What a batch looks like in memory: the one layout that the host's arenas, the copies, the CUDA kernel and
 * the emulated device share. Plain structs of fixed-width fields, little-endian, in C and C++ alike.
 *
 * Batch. An input arena and an output arena of the same size, a table of segments, a table of jobs. A segment
 * is a run of whole blocks (a packet, padded); the segments of one stream are chained in the order in which
 * they are to be encrypted, and the chain is the stream's job. Ciphertext goes to the offset in the output
 * arena at which its plaintext lies in the input arena; the input is never written. A segment with
 * GPU_SEGMENT_HAS_IV begins a unit of the stream with an IV of its own: there the chain starts anew, from the 16
 * bytes of the input arena ahead of it. One with GPU_SEGMENT_OTHER_KEY is encrypted under the stream's key that
 * is not the job's. At most one job of a stream in a batch, or any number with GPU_JOB_ALONE. Jobs are sorted by
 * falling `blocks`: then neighbouring threads finish together (a matter of speed alone). Jobs without blocks are
 * allowed.
 *
 * Slots. Expanded keys and chaining values stay on the device from batch to batch, in two tables; a stream
 * has one slot from its opening to its end: a chaining value, and two keys, the second of which is of use while
 * the stream changes its key. The host hands slots out, and sends a key before the first batch that uses it.
 *
 * Chaining values. A slot holds two values. A job reads one, value[chain_from], and leaves its last block of
 * ciphertext in the other, value[1 - chain_from] (a job without blocks copies the value over). The host keeps
 * chain_from per stream and turns it (0 to 1, 1 to 0) each time it gives the stream a job in a batch. So
 *   - a slot without a job in a batch keeps its value, and the stream keeps its chain_from: nothing to do;
 *   - a batch may be run again, to the same end, until a later batch with a job of one of its streams runs:
 *     no job writes what it reads;
 *   - batch n + 1 reads what batch n left there, if their kernels run one behind the other (one CUDA stream);
 *     copies of other batches may go on meanwhile, for they do not touch the slots.
 * A job with GPU_JOB_HAS_IV starts from its own `iv` instead: the first job of a stream, one that comes over
 * from a CPU, any job after the device lost its memory, and any that must be run again later than said above.
 * One with GPU_JOB_ALONE begins with an IV of its own, and leaves the slot as it is: nothing goes on from it.
 * The host needs no copy back of the slots: the chaining value is the last block in the output arena. */
#ifndef MILLRACE_GPU_BATCH_LAYOUT_H
#define MILLRACE_GPU_BATCH_LAYOUT_H

#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_BLOCK_BYTES     16
#define GPU_ROUND_WORDS_MAX 60         /* 15 round keys of four words: AES-256 */
#define GPU_SEGMENT_NONE    UINT32_MAX /* behind the last segment of a job */

/* A run of blocks at one place of the arenas. */
struct gpu_segment {
    alignas(16) uint32_t offset_bytes; /* in both arenas; multiple of 16 */
    uint32_t length_bytes;             /* multiple of 16, at least 16 */
    uint32_t next;                     /* index of the job's next segment, or GPU_SEGMENT_NONE */
    uint32_t flags;                    /* GPU_SEGMENT_..., below */
};

#define GPU_SEGMENT_HAS_IV    1u
#define GPU_SEGMENT_OTHER_KEY 2u
#define GPU_SEGMENT_FLAGS     3u

#define GPU_JOB_HAS_IV 1u /* flags: start from iv, not from the chain slot */
#define GPU_JOB_ALONE  2u /* its first segment has GPU_SEGMENT_HAS_IV, and the chain slot is not written */
#define GPU_JOB_FLAGS  3u

/* What one stream has in one batch; with GPU_JOB_ALONE, a part of that. */
struct gpu_job {
    alignas(16) uint32_t key_slot; /* with GPU_SEGMENT_OTHER_KEY: this one ^ 1 */
    uint32_t chain_slot;
    uint32_t first_segment; /* GPU_SEGMENT_NONE where blocks is 0 */
    uint32_t blocks;        /* sum of length_bytes / 16 over the segments */
    uint32_t chain_from;    /* 0 or 1: the value of the chain slot that is read; the other one is written */
    uint32_t flags;
    uint32_t reserved[2];
    uint8_t iv[GPU_BLOCK_BYTES]; /* with GPU_JOB_HAS_IV */
};

/* One key slot: round key r is words 4r .. 4r + 3, byte i of the FIPS-197 key schedule at byte i. Secret. */
struct gpu_key {
    alignas(16) uint32_t round_words[GPU_ROUND_WORDS_MAX]; /* those behind 4 * rounds + 3 are zero */
    uint32_t rounds;                                       /* 10, 12 or 14 */
    uint32_t reserved[3];
};

#define GPU_SLOT_KEYS 2

/* The key slot of a stream's key, 0 or 1. */
static inline uint32_t gpu_key_slot(uint32_t slot, uint32_t key)
{
    return GPU_SLOT_KEYS * slot + key;
}

/* One chain slot. */
struct gpu_chain {
    alignas(16) uint8_t value[2][GPU_BLOCK_BYTES];
};

static_assert(sizeof(struct gpu_segment) == 16, "the device reads a segment at once");
static_assert(sizeof(struct gpu_job) == 48, "the host and the device agree on a job");
static_assert(offsetof(struct gpu_job, iv) == 32, "the iv can be read at once");
static_assert(sizeof(struct gpu_key) == 256, "the host and the device agree on a key slot");
static_assert(sizeof(struct gpu_chain) == 32, "the host and the device agree on a chain slot");

/* One batch as a kernel sees it: device addresses for a card, the host's own for the emulated device. Every
 * address is a multiple of 16. */
struct gpu_batch {
    const uint8_t *input;
    uint8_t *output; /* not the input */
    const struct gpu_segment *segments;
    const struct gpu_job *jobs;
    const struct gpu_key *keys;
    struct gpu_chain *chains;
    uint32_t job_count;
    uint32_t segment_count;
    uint32_t key_slots;   /* entries of keys */
    uint32_t chain_slots; /* entries of chains */
    uint64_t arena_bytes; /* of input and output each; at most 2^32 */
};

#endif
