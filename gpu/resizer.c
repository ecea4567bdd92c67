#include "gpu/resizer.h"

#include "core/realtime.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum state { IDLE, ASKED, DONE, STOPPING };

struct gpu_resizer {
    pthread_t thread;
    gpu_resize *resize; /* these three: set before start */
    void *context;
    int wake;
    int tasks;            /* eventfd */
    _Atomic int state;    /* atomic: ASKED, IDLE and STOPPING by the owner; DONE by the resizer's thread */
    struct gpu_room room; /* these three: the owner's while IDLE or DONE, the resizer's while ASKED */
    core_status status;
    struct core_error error;
};

static void *run(void *argument)
{
    struct gpu_resizer *resizer = argument;
    const uint64_t one = 1;
    uint64_t count;
    for (;;) {
        if (read(resizer->tasks, &count, sizeof count) != sizeof count)
            continue; /* interrupted */
        int asked = ASKED;
        if (atomic_load_explicit(&resizer->state, memory_order_acquire) != ASKED)
            return NULL;
        resizer->status = resizer->resize(resizer->context, &resizer->room, &resizer->error);
        /* release: the outcome, and the memory, before it is told; the owner may be stopping meanwhile */
        (void)atomic_compare_exchange_strong_explicit(&resizer->state, &asked, DONE, memory_order_release,
                                                      memory_order_relaxed);
        (void)!write(resizer->wake, &one, sizeof one);
    }
}

core_status gpu_resizer_start(struct gpu_resizer **started, gpu_resize *resize, void *context, int wake,
                              struct core_error *error)
{
    const struct core_thread_options thread = {.name = "gpu-memory", .cpu = -1};
    struct gpu_resizer *resizer = calloc(1, sizeof *resizer);
    if (resizer == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU's arenas");
    resizer->resize = resize;
    resizer->context = context;
    resizer->wake = wake;
    resizer->tasks = eventfd(0, EFD_CLOEXEC);
    core_status status = resizer->tasks < 0
                             ? core_error_errno(error, "can not make an eventfd")
                             : core_thread_start(&resizer->thread, &thread, run, resizer, NULL, error);
    if (status != CORE_OK) {
        if (resizer->tasks >= 0)
            close(resizer->tasks);
        free(resizer);
        return status;
    }
    *started = resizer;
    return CORE_OK;
}

static void wake(const struct gpu_resizer *resizer)
{
    const uint64_t one = 1;
    (void)!write(resizer->tasks, &one, sizeof one);
}

void gpu_resizer_ask(struct gpu_resizer *resizer, const struct gpu_room *room)
{
    assert(atomic_load_explicit(&resizer->state, memory_order_relaxed) == IDLE);
    resizer->room = *room;
    /* release: the room before the question */
    atomic_store_explicit(&resizer->state, ASKED, memory_order_release);
    wake(resizer);
}

core_status gpu_resizer_done(struct gpu_resizer *resizer, struct core_error *error)
{
    /* acquire: the outcome and the memory */
    if (atomic_load_explicit(&resizer->state, memory_order_acquire) != DONE)
        return CORE_AGAIN;
    if (resizer->status != CORE_OK)
        *error = resizer->error;
    atomic_store_explicit(&resizer->state, IDLE, memory_order_relaxed);
    return resizer->status;
}

void gpu_resizer_stop(struct gpu_resizer *resizer)
{
    if (resizer == NULL)
        return;
    /* what was asked for and not begun is left: relaxed, nothing goes with it */
    atomic_store_explicit(&resizer->state, STOPPING, memory_order_relaxed);
    wake(resizer);
    pthread_join(resizer->thread, NULL);
    close(resizer->tasks);
    free(resizer);
}
