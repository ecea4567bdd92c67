/* Private to the pipeline bench: what its threads share.
 *
 * Generator i is writer i of every GPU's arenas and producer i of every worker. A batcher thread per GPU owns
 * its card (the child must be started by the thread that drives it). */
#ifndef MILLRACE_BENCH_PIPELINE_THREADS_H
#define MILLRACE_BENCH_PIPELINE_THREADS_H

#include "bench/pipeline/pipeline.h"
#include "bench/samples.h"
#include "cpu/worker.h"
#include "gpu/arena.h"
#include "gpu/schedule.h"

#include <openssl/evp.h>
#include <stdatomic.h>

#define PIPELINE_SOURCE_BYTES (UINT32_C(8) << 20) /* what payloads are cut from, beside one packet more */

struct pipeline;

struct pipeline_packet {
    struct cpu_packet cpu; /* first member */
    struct pipeline_packet *next_free;
    core_ns due_ns;
    uint32_t stream;
};

/* Owned by its generator once that runs. */
struct pipeline_stream {
    const struct core_stream_spec *spec;
    uint32_t unit; /* by the plan: a worker, or behind them a GPU */
    uint32_t slot; /* of its GPU */
    uint32_t padded_bytes;
    core_ns due_ns; /* of the next packet; from the start on */
    uint64_t sent, finished;
    uint64_t last_batch;       /* GPU: of the packet before */
    EVP_CIPHER_CTX *reference; /* what its packets are compared with; NULL: they are not */
    struct cpu_stream *cpu;    /* worker: this and all below */
    struct pipeline_packet *free;
    core_ns spacing_ns, release_ns; /* least distance of releases; the next one's earliest */
};

/* A batch that came back, told to each generator that has packets in it. */
struct pipeline_done {
    uint64_t batch;
    core_ns seen_ns;
};

/* One producer, the batcher; one consumer, the generator. Never full: a batch that its generator has not
 * released keeps its arena. */
struct pipeline_mail {
    struct pipeline_done done[GPU_REGION_ARENAS_MAX];
    _Atomic uint64_t put;
    uint64_t taken; /* the generator's */
};

struct pipeline_generator {
    struct pipeline *pipeline;
    uint32_t index;
    pthread_t thread;
    bool started;
    uint32_t *streams; /* indices of its own */
    uint32_t count;
    struct pipeline_mail *mail; /* by GPU */
    uint64_t outstanding;
    uint64_t behind; /* packets made over 1 ms late */
    struct bench_pipeline_tally cpu, gpu;
    uint8_t *expected; /* room for one packet */
    core_ns cpu_ns;
};

/* A batch under way. */
struct pipeline_flight {
    uint64_t number, writers;
    core_ns due_ns;                /* its close time and in_ns */
    struct perfmodel_stages model; /* zeros: it was not asked */
};

/* One GPU of the modelled pipeline: its two threads and the measurements of every stage. */
struct pipeline_gpu {
    struct pipeline *pipeline;
    uint32_t index;
    const struct config_profile_gpu *kind;
    const struct partition_plan_gpu *plan;
    bool busy; /* its copies are charged at the contended times */
    pthread_t thread;
    bool started;
    struct gpu_arenas *arenas; /* NULL: the plan has no stream on it */
    uint32_t *slots;           /* stream of each slot */
    uint32_t slot_count;
    struct bench_gpu_card card;   /* the batcher's */
    struct gpu_schedule schedule; /* the batcher's */
    struct pipeline_flight flights[GPU_REGION_ARENAS_MAX];
    uint64_t flights_put, flights_taken;
    uint64_t *job_bytes, *scratch; /* for the model */
    core_ns modelled_ns;           /* close time of the batch it was asked for last */
    struct bench_samples times[GPU_STAGE_COUNT], errors[GPU_STAGE_COUNT], start, tell;
    struct bench_pipeline_gpu result;
    core_status status;
    struct core_error error;
};

struct pipeline {
    const struct bench_pipeline_options *options;
    uint32_t workers, gpus;
    struct pipeline_stream *streams;
    uint8_t (*keys)[32];
    uint8_t (*ivs)[CORE_BLOCK_BYTES];
    uint8_t *source;
    struct cpu_engine *engine; /* expands keys */
    struct cpu_worker **worker;
    void *packet_memory;
    struct pipeline_gpu *gpu;
    struct pipeline_generator *generator;
    core_ns in_ns;
    core_ns grace_ns; /* the option, or what stands for it */
    core_ns tick_ns;  /* how often a generator looks */
    _Atomic uint32_t cards_ready;
    _Atomic core_ns start_ns;        /* 0: not yet */
    _Atomic uint32_t generators_run; /* that have not ended */
    _Atomic bool failed;             /* all threads end */
};

/* Where a packet's payload is cut from. */
static inline const uint8_t *pipeline_payload(const struct pipeline *pipeline, uint32_t stream,
                                              uint64_t number)
{
    const uint64_t at = (stream * UINT64_C(7919) + number * 4) * CORE_BLOCK_BYTES;
    return pipeline->source + at % PIPELINE_SOURCE_BYTES;
}

void *pipeline_generator_main(void *generator); /* pipeline_generator.c */

/* Arenas for the plan's largest batches, and room for what is measured. pipeline_batcher.c */
CORE_CHECKED core_status pipeline_gpu_create(struct pipeline_gpu *gpu, struct core_error *error);
void *pipeline_batcher_main(void *gpu);
void pipeline_gpu_conclude(struct pipeline_gpu *gpu); /* result, from the samples */
void pipeline_gpu_destroy(struct pipeline_gpu *gpu);

#endif
