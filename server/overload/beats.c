#include "server/overload/beats.h"

#include "core/log.h"
#include "cpu/worker.h"
#include "server/gpu/batcher.h"
#include "server/net/io_thread.h"
#include "server/planner/planner.h"
#include "server/server_internal.h"

#include <stdio.h>
#include <stdlib.h>

struct beat {
    struct server_message message;       /* first member; the thread's while it is asked */
    struct server_mailbox *mailbox;      /* NULL: of a worker or the log's writer, whose turns are read */
    struct cpu_worker *worker;           /* NULL without a mailbox: the log's writer */
    const struct server_io *io;          /* NULL: not of an I/O thread, which may end before the others */
    uint64_t turns;                      /* when it was asked */
    _Atomic bool answered;               /* atomic: set by the thread, cleared before it is asked */
    _Atomic core_ns unanswered_since_ns; /* atomic: NEVER: answered; written by the watch */
    char name[24];
};

struct server_beats {
    _Atomic core_ns asked_ns; /* atomic: the watch's last turn */
    size_t count;
    struct beat beat[];
};

static void answer(void *owner, struct server_message *message)
{
    (void)owner;
    atomic_store_explicit(&((struct beat *)message)->answered, true, memory_order_release);
}

static uint64_t turns_of(const struct cpu_worker *worker)
{
    if (worker == NULL)
        return core_log_turns();
    const struct cpu_scheduler_counters *counters = cpu_worker_counters(worker);
    return atomic_load_explicit(&counters->bursts, memory_order_relaxed) +
           atomic_load_explicit(&counters->pauses, memory_order_relaxed);
}

static struct beat *add(struct server_beats *beats, const char *name, uint32_t number)
{
    struct beat *beat = &beats->beat[beats->count++];
    beat->answered = true;
    beat->unanswered_since_ns = CORE_NS_NEVER;
    snprintf(beat->name, sizeof beat->name, "%s %u", name, number);
    return beat;
}

core_status server_beats_create(struct server_beats **beats, struct server *server)
{
    size_t most = (size_t)server->io_count + server->all_workers + server->gpu_count + 2;
    struct server_beats *fresh = calloc(1, sizeof *fresh + most * sizeof fresh->beat[0]);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    fresh->asked_ns = core_time_now_ns();
    for (uint32_t i = 0; i < server->io_count; i++) {
        struct beat *beat = add(fresh, "I/O thread", i);
        beat->io = server->ios[i];
        beat->mailbox = server_io_mailbox(server->ios[i]);
    }
    for (uint32_t i = 0; i < server->all_workers; i++)
        add(fresh, "worker", i)->worker = server->workers[i];
    for (uint32_t i = 0; i < server->gpu_count; i++)
        add(fresh, "batcher", i)->mailbox = server_gpu_mailbox(server->gpus[i]);
    add(fresh, "planner", 0)->mailbox = server_planner_mailbox(server->planner);
    add(fresh, "log writer", 0);
    *beats = fresh;
    return CORE_OK;
}

void server_beats_destroy(struct server_beats *beats)
{
    free(beats);
}

static void ask(struct beat *beat, core_ns now_ns)
{
    atomic_store_explicit(&beat->answered, false, memory_order_relaxed);
    atomic_store_explicit(&beat->unanswered_since_ns, now_ns, memory_order_relaxed);
    if (beat->mailbox != NULL) {
        beat->message.run = answer;
        server_mailbox_post(beat->mailbox, &beat->message);
        return;
    }
    beat->turns = turns_of(beat->worker);
    if (beat->worker != NULL)
        cpu_worker_nudge(beat->worker);
    else
        core_log_nudge();
}

static bool has_answered(const struct beat *beat)
{
    if (beat->mailbox != NULL)
        return atomic_load_explicit(&beat->answered, memory_order_acquire);
    return turns_of(beat->worker) != beat->turns || (beat->worker == NULL && core_log_waits());
}

void server_beats_ask(struct server_beats *beats, core_ns now_ns)
{
    atomic_store_explicit(&beats->asked_ns, now_ns, memory_order_relaxed);
    for (size_t i = 0; i < beats->count; i++) {
        struct beat *beat = &beats->beat[i];
        bool asked = atomic_load_explicit(&beat->unanswered_since_ns, memory_order_relaxed) != CORE_NS_NEVER;
        if (!asked || has_answered(beat))
            ask(beat, now_ns);
    }
}

static bool is_late(const char *name, core_ns since_ns, core_ns now_ns, char *text, size_t size)
{
    if (since_ns == CORE_NS_NEVER || now_ns - since_ns <= SERVER_BEAT_LATE_NS)
        return false;
    snprintf(text, size, "%s has not answered for %.1f s", name, (double)(now_ns - since_ns) / 1e9);
    return true;
}

bool server_beats_all(const struct server_beats *beats, core_ns now_ns, char *text, size_t size)
{
    if (is_late("the overload monitor", atomic_load_explicit(&beats->asked_ns, memory_order_relaxed), now_ns,
                text, size))
        return false;
    for (size_t i = 0; i < beats->count; i++) {
        const struct beat *beat = &beats->beat[i];
        core_ns since_ns = atomic_load_explicit(&beat->unanswered_since_ns, memory_order_relaxed);
        if (beat->io != NULL && server_io_has_ended(beat->io))
            continue;
        if (is_late(beat->name, since_ns, now_ns, text, size))
            return false;
    }
    return true;
}
