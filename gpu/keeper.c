#include "gpu/keeper.h"

#include "core/realtime.h"

#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define PLACES 16 /* a power of two */

enum asked { ASKED_NOTHING, ASKED, ASKED_DONE };

struct gpu_keeper {
    pthread_t thread;
    const struct gpu_process_options *options; /* borrowed; set before start */
    int wake;                                  /* the engine's; set before start */
    sem_t tasks;                               /* one for each, and one for the end */
    _Atomic int asked; /* atomic: ASKED, and NOTHING again, by the engine's thread; DONE by the keeper */
    struct gpu_process fresh; /* these three: the keeper's while ASKED, the engine's thread's when DONE */
    core_status fresh_status;
    struct core_error fresh_error;
    struct gpu_process processes[PLACES]; /* ring: written by the engine's thread, read by the keeper */
    _Atomic uint32_t put;                 /* atomic: written by the engine's thread, read by the keeper */
    _Atomic uint32_t collected;           /* atomic: written by the keeper, read by the engine's thread */
};

static void start(struct gpu_keeper *keeper)
{
    const uint64_t one = 1;
    keeper->fresh_status = gpu_process_start(&keeper->fresh, keeper->options, &keeper->fresh_error);
    /* release: the process is whole before it is fetched */
    atomic_store_explicit(&keeper->asked, ASKED_DONE, memory_order_release);
    (void)!write(keeper->wake, &one, sizeof one);
}

static void *run(void *argument)
{
    struct gpu_keeper *keeper = argument;
    for (uint32_t at = 0;;) {
        if (sem_wait(&keeper->tasks) != 0)
            continue; /* interrupted */
        if (atomic_load_explicit(&keeper->asked, memory_order_relaxed) == ASKED) {
            start(keeper); /* a card's way back is the more urgent one */
            continue;
        }
        /* acquire: the process was written before it was counted */
        if (at == atomic_load_explicit(&keeper->put, memory_order_acquire))
            return NULL; /* the end: woken, and nothing new */
        gpu_process_collect(&keeper->processes[at % PLACES]);
        /* release: its place is read before it is written again */
        atomic_store_explicit(&keeper->collected, ++at, memory_order_release);
    }
}

core_status gpu_keeper_start(struct gpu_keeper **started, const struct gpu_process_options *options, int wake,
                             struct core_error *error)
{
    const struct core_thread_options thread = {.name = "gpu-keeper", .cpu = -1};
    struct gpu_keeper *keeper = calloc(1, sizeof *keeper);
    if (keeper == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU engine");
    keeper->options = options;
    keeper->wake = wake;
    sem_init(&keeper->tasks, 0, 0);
    const core_status status = core_thread_start(&keeper->thread, &thread, run, keeper, NULL, error);
    if (status != CORE_OK) {
        sem_destroy(&keeper->tasks);
        free(keeper);
        return status;
    }
    *started = keeper;
    return CORE_OK;
}

void gpu_keeper_ask(struct gpu_keeper *keeper)
{
    assert(atomic_load_explicit(&keeper->asked, memory_order_relaxed) == ASKED_NOTHING);
    /* relaxed: nothing goes with it */
    atomic_store_explicit(&keeper->asked, ASKED, memory_order_relaxed);
    sem_post(&keeper->tasks);
}

core_status gpu_keeper_asked(struct gpu_keeper *keeper, struct gpu_process *process, struct core_error *error)
{
    /* acquire: pairs with the release of the keeper */
    if (atomic_load_explicit(&keeper->asked, memory_order_acquire) != ASKED_DONE)
        return CORE_AGAIN;
    *process = keeper->fresh;
    if (keeper->fresh_status != CORE_OK)
        *error = keeper->fresh_error;
    atomic_store_explicit(&keeper->asked, ASKED_NOTHING, memory_order_relaxed);
    return keeper->fresh_status;
}

bool gpu_keeper_has_room(const struct gpu_keeper *keeper)
{
    /* acquire: pairs with the release of the keeper */
    const uint32_t collected = atomic_load_explicit(&keeper->collected, memory_order_acquire);
    return atomic_load_explicit(&keeper->put, memory_order_relaxed) - collected < PLACES;
}

void gpu_keeper_take(struct gpu_keeper *keeper, struct gpu_process *process)
{
    const uint32_t put = atomic_load_explicit(&keeper->put, memory_order_relaxed);
    keeper->processes[put % PLACES] = *process;
    *process = GPU_PROCESS_NONE;
    /* release: the process, before the count */
    atomic_store_explicit(&keeper->put, put + 1, memory_order_release);
    sem_post(&keeper->tasks);
}

void gpu_keeper_stop(struct gpu_keeper *keeper)
{
    if (keeper == NULL)
        return;
    sem_post(&keeper->tasks);
    pthread_join(keeper->thread, NULL);
    struct gpu_process process;
    struct core_error error;
    if (gpu_keeper_asked(keeper, &process, &error) == CORE_OK) {
        gpu_process_kill(&process);
        gpu_process_collect(&process);
    }
    sem_destroy(&keeper->tasks);
    free(keeper);
}
