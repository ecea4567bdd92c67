#include "bench/gpu/traffic.h"

#include "core/realtime.h"
#include "core/time.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BYTES       ((size_t)32 << 20)  /* of a thread, twice: more than its share of any cache */
#define STEP_BYTES  ((size_t)256 << 10) /* copied at once */
#define THREADS_MAX 256

/* What an I/O thread copies at most: the bytes of its packets three times, into the server, into a batch and
 * out of the server. It moves 1.2 GB/s of packets (0.85 ns a byte; H200 machine, 2026-11-26). */
#define BYTES_PER_S ((core_ns)4000000000)
#define STEP_NS     ((core_ns)STEP_BYTES * CORE_NS_PER_S / BYTES_PER_S)

struct writer {
    struct bench_gpu_traffic *traffic;
    pthread_t thread;
    uint8_t *from, *to; /* used by the thread alone while it runs */
};

struct bench_gpu_traffic {
    struct writer writers[THREADS_MAX];
    uint32_t count, running;
    _Atomic bool stop; /* written by the owner, read by the threads */
};

static void *writer_run(void *argument)
{
    const struct writer *writer = argument;
    core_ns next_ns = core_time_now_ns();
    size_t at = 0;
    /* relaxed: nothing else is handed over by it */
    while (!atomic_load_explicit(&writer->traffic->stop, memory_order_relaxed)) {
        const core_ns now_ns = core_time_now_ns();
        if (now_ns < next_ns)
            continue; /* as busy as an I/O thread; a step that is late is not made up for */
        next_ns = core_time_max(next_ns + STEP_NS, now_ns);
        memcpy(writer->to + at, writer->from + at, STEP_BYTES);
        at = (at + STEP_BYTES) % BYTES;
    }
    return NULL;
}

core_status bench_gpu_traffic_open(struct bench_gpu_traffic **opened, struct core_error *error)
{
    const unsigned cores = core_cpu_count() / 2;
    struct bench_gpu_traffic *traffic = calloc(1, sizeof *traffic);
    if (traffic == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for threads that write memory");
    traffic->count = cores < 1 ? 1 : cores > THREADS_MAX ? THREADS_MAX : cores;
    for (uint32_t i = 0; i < traffic->count; i++) {
        struct writer *writer = &traffic->writers[i];
        *writer = (struct writer){.traffic = traffic, .from = malloc(BYTES), .to = malloc(BYTES)};
        if (writer->from == NULL || writer->to == NULL) {
            bench_gpu_traffic_close(traffic);
            return core_error_set(error, CORE_NO_MEMORY, "no memory for threads that write memory");
        }
        memset(writer->from, 1, BYTES); /* the pages are there before anything is measured */
        memset(writer->to, 2, BYTES);
    }
    *opened = traffic;
    return CORE_OK;
}

void bench_gpu_traffic_close(struct bench_gpu_traffic *traffic)
{
    if (traffic == NULL)
        return;
    for (uint32_t i = 0; i < traffic->count; i++) {
        free(traffic->writers[i].from);
        free(traffic->writers[i].to);
    }
    free(traffic);
}

core_status bench_gpu_traffic_start(struct bench_gpu_traffic *traffic, struct core_error *error)
{
    static const struct core_thread_options options = {.name = "traffic", .cpu = -1};
    atomic_store_explicit(&traffic->stop, false, memory_order_relaxed); /* no thread runs */
    for (traffic->running = 0; traffic->running < traffic->count; traffic->running++) {
        struct writer *writer = &traffic->writers[traffic->running];
        const core_status status =
            core_thread_start(&writer->thread, &options, writer_run, writer, NULL, error);
        if (status != CORE_OK) {
            bench_gpu_traffic_stop(traffic);
            return status;
        }
    }
    return CORE_OK;
}

void bench_gpu_traffic_stop(struct bench_gpu_traffic *traffic)
{
    atomic_store_explicit(&traffic->stop, true, memory_order_relaxed); /* as in writer_run */
    for (; traffic->running > 0; traffic->running--)
        pthread_join(traffic->writers[traffic->running - 1].thread, NULL);
}
