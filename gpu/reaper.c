#include "gpu/reaper.h"

#include "core/realtime.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#define PLACES 16 /* a power of two */

struct gpu_reaper {
    pthread_t thread;
    sem_t taken;                          /* one for each that was taken, and one for the end */
    struct gpu_process processes[PLACES]; /* ring: written by the engine's thread, read by the reaper */
    _Atomic uint32_t put;                 /* atomic: written by the engine's thread, read by the reaper */
    _Atomic uint32_t collected;           /* atomic: written by the reaper, read by the engine's thread */
};

static void *run(void *argument)
{
    struct gpu_reaper *reaper = argument;
    for (uint32_t at = 0;;) {
        if (sem_wait(&reaper->taken) != 0)
            continue; /* interrupted */
        /* acquire: the process was written before it was counted */
        if (at == atomic_load_explicit(&reaper->put, memory_order_acquire))
            return NULL; /* the end: woken, and nothing new */
        gpu_process_collect(&reaper->processes[at % PLACES]);
        /* release: its place is read before it is written again */
        atomic_store_explicit(&reaper->collected, ++at, memory_order_release);
    }
}

core_status gpu_reaper_start(struct gpu_reaper **started, struct core_error *error)
{
    const struct core_thread_options thread = {.name = "gpu-reaper", .cpu = -1};
    struct gpu_reaper *reaper = calloc(1, sizeof *reaper);
    if (reaper == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU engine");
    sem_init(&reaper->taken, 0, 0);
    const core_status status = core_thread_start(&reaper->thread, &thread, run, reaper, NULL, error);
    if (status != CORE_OK) {
        sem_destroy(&reaper->taken);
        free(reaper);
        return status;
    }
    *started = reaper;
    return CORE_OK;
}

bool gpu_reaper_has_room(const struct gpu_reaper *reaper)
{
    /* acquire: pairs with the release of the reaper */
    const uint32_t collected = atomic_load_explicit(&reaper->collected, memory_order_acquire);
    return atomic_load_explicit(&reaper->put, memory_order_relaxed) - collected < PLACES;
}

void gpu_reaper_take(struct gpu_reaper *reaper, struct gpu_process *process)
{
    const uint32_t put = atomic_load_explicit(&reaper->put, memory_order_relaxed);
    reaper->processes[put % PLACES] = *process;
    *process = GPU_PROCESS_NONE;
    /* release: the process, before the count */
    atomic_store_explicit(&reaper->put, put + 1, memory_order_release);
    sem_post(&reaper->taken);
}

void gpu_reaper_stop(struct gpu_reaper *reaper)
{
    if (reaper == NULL)
        return;
    sem_post(&reaper->taken);
    pthread_join(reaper->thread, NULL);
    sem_destroy(&reaper->taken);
    free(reaper);
}
