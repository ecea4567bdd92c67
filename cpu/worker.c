#include "cpu/worker.h"

#include "cpu/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define DRAIN_PACKETS 128 /* taken from a ring at once */

/* What one producer and the worker share. */
struct lane {
    struct ring in, out;
    alignas(64) _Atomic bool notified; /* set by the worker, cleared by the producer when it collects */
    _Atomic bool holding;              /* written by the worker: `held` is not empty, collecting makes room */
    struct cpu_packet *held, *held_last;     /* owned by the worker until it has ended, then by the producer:
                                                finished packets that found no room in `out` */
    struct cpu_packet *ready[CPU_BURST_MAX]; /* owned by the worker: finished in the burst at hand */
    uint32_t ready_count;
};

/* Whose the worker is: of the thread that does its work. */
enum {
    AWAKE,  /* its own thread's */
    ASLEEP, /* nobody's: who finds it so may take it */
    SERVED  /* a producer's, that does its work: its own thread waits */
};

struct cpu_worker {
    struct cpu_scheduler *scheduler;                   /* owned by whose the worker is */
    struct core_stalls stalls;                         /* added to by the worker, read by any */
    core_ns wanted_ns;                                 /* the worker's: since when it could have worked */
    void (*notify)(void *argument, uint32_t producer); /* set before start */
    void *notify_argument;                             /* set before start */
    int wake_descriptor;                               /* set before start */
    uint32_t producers;                                /* set before start */
    pthread_t thread;                                  /* set by start */
    clockid_t cpu_clock;                               /* set by start */
    bool joined;                                       /* owned by the thread that finishes and stops */
    alignas(64) _Atomic int state;                     /* written by whose it is, and whoever takes it */
    _Atomic core_ns woken_ns;                          /* written by whoever wakes it, just before */
    _Atomic bool stopping;                             /* written by finish, read by the worker */
    _Atomic bool ended;           /* written by the worker as its last act, read by the producers */
    _Atomic int32_t thread_id;    /* written by the worker as its first act, read by any */
    _Atomic core_ns final_cpu_ns; /* written by the worker at its end, read by any; 0 before */
    struct lane lanes[];
};

static core_ns clock_now(void *argument)
{
    (void)argument;
    return core_time_now_ns();
}

static void worker_wake(struct cpu_worker *worker)
{
    static const uint64_t one = 1;
    ssize_t written;
    /* relaxed: the worker reads it behind the read() that this write() ends */
    atomic_store_explicit(&worker->woken_ns, core_time_now_ns(), memory_order_relaxed);
    do {
        written = write(worker->wake_descriptor, &one, sizeof one);
    } while (written < 0 && errno == EINTR); /* nothing else can fail: the counter never fills */
}

static bool worker_take(struct cpu_worker *worker, int state)
{
    int asleep = ASLEEP;
    return atomic_load(&worker->state) == ASLEEP &&
           atomic_compare_exchange_strong(&worker->state, &asleep, state);
}

/* Whoever finds the worker asleep wakes it, once. */
static void worker_wake_if_asleep(struct cpu_worker *worker)
{
    if (worker_take(worker, AWAKE))
        worker_wake(worker);
}

void cpu_worker_nudge(struct cpu_worker *worker)
{
    worker_wake_if_asleep(worker);
}

/* The worker's work: on its own thread, or on one that has found it asleep. */

static void lane_notify(struct cpu_worker *worker, struct lane *lane)
{
    if (!atomic_load(&lane->notified)) {
        atomic_store(&lane->notified, true);
        worker->notify(worker->notify_argument, (uint32_t)(lane - worker->lanes));
    }
}

static void lane_hold(struct lane *lane, struct cpu_packet *const *packets, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        packets[i]->next = NULL;
        if (lane->held == NULL)
            lane->held = packets[i];
        else
            lane->held_last->next = packets[i];
        lane->held_last = packets[i];
    }
    atomic_store(&lane->holding, true);
}

/* Moves held packets to the ring, as many as fit. `holding` makes a collector who makes room wake the worker;
 * the last look before sleep (worker_sleep) covers one who did so just before. */
static void lane_release_held(struct cpu_worker *worker, struct lane *lane)
{
    while (lane->held != NULL) {
        struct cpu_packet *packet = lane->held;
        struct cpu_packet *next = packet->next; /* once in the ring the packet is the producer's */
        if (ring_put(&lane->out, &packet, 1) == 0)
            return;
        lane->held = next;
        lane_notify(worker, lane);
    }
    if (atomic_load_explicit(&lane->holding, memory_order_relaxed)) /* its own flag */
        atomic_store(&lane->holding, false);
}

static void lane_deliver(struct cpu_worker *worker, struct lane *lane)
{
    lane_release_held(worker, lane);
    uint32_t count = lane->ready_count;
    if (count == 0)
        return;
    lane->ready_count = 0;
    uint32_t put = lane->held == NULL ? ring_put(&lane->out, lane->ready, count) : 0;
    if (put > 0)
        lane_notify(worker, lane);
    if (put < count)
        lane_hold(lane, lane->ready + put, count - put);
}

static void worker_deliver(struct cpu_worker *worker, struct cpu_packet *const *finished, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct lane *lane = &worker->lanes[finished[i]->producer];
        lane->ready[lane->ready_count++] = finished[i];
    }
    for (uint32_t producer = 0; producer < worker->producers; producer++)
        lane_deliver(worker, &worker->lanes[producer]);
}

/* Takes in what has arrived from one producer, at most a ringful. Returns how many packets. */
static uint32_t lane_drain(struct cpu_worker *worker, struct lane *lane, core_ns now_ns)
{
    struct cpu_packet *packets[DRAIN_PACKETS];
    uint32_t drained = 0;
    uint32_t taken;
    do {
        taken = ring_take(&lane->in, packets, DRAIN_PACKETS);
        cpu_scheduler_push(worker->scheduler, packets, taken, now_ns);
        drained += taken;
    } while (taken == DRAIN_PACKETS && drained < lane->in.capacity);
    return drained;
}

static uint32_t worker_drain(struct cpu_worker *worker)
{
    uint32_t drained = 0;
    core_ns now_ns = core_time_now_ns();
    for (uint32_t producer = 0; producer < worker->producers; producer++)
        drained += lane_drain(worker, &worker->lanes[producer], now_ns);
    return drained;
}

/* It may be another's already: nothing but atomics are read. */
static bool worker_has_work(const struct cpu_worker *worker)
{
    for (uint32_t producer = 0; producer < worker->producers; producer++) {
        const struct lane *lane = &worker->lanes[producer];
        if (!ring_empty(&lane->in) || (atomic_load(&lane->holding) && !ring_full(&lane->out)))
            return true;
    }
    return atomic_load(&worker->stopping);
}

/* Its own thread: is the worker its own again? */
static bool worker_is_own(struct cpu_worker *worker)
{
    return worker_take(worker, AWAKE) || atomic_load(&worker->state) == AWAKE;
}

/* Says that it sleeps, then looks once more: whoever changed something before that look is seen, whoever does
 * so later sees the state. It is wanted from when it is woken; what came before that look, which it may have
 * been late for, from the look before. */
static void worker_sleep(struct cpu_worker *worker)
{
    uint64_t wakes;
    ssize_t got;

    atomic_store(&worker->state, ASLEEP);
    if (worker_has_work(worker) && worker_is_own(worker))
        return;
    do /* a signal: it looks again */
        got = read(worker->wake_descriptor, &wakes, sizeof wakes);
    while (!worker_is_own(worker));
    core_ns woken_ns =
        got > 0 ? atomic_load_explicit(&worker->woken_ns, memory_order_relaxed) : core_time_now_ns();
    if (woken_ns > worker->wanted_ns) /* else it was one from before that look */
        worker->wanted_ns = woken_ns;
}

/* One burst, and the account of it; what it finished goes back. Returns its pieces. Stalls are of the worker's own
 * thread: a producer that serves has its own. */
static uint32_t worker_burst(struct cpu_worker *worker, bool is_own)
{
    struct cpu_packet *finished[CPU_BURST_MAX];
    const _Atomic uint64_t *exceeded = &cpu_worker_counters(worker)->exceeded;
    uint64_t before = atomic_load_explicit(exceeded, memory_order_relaxed); /* its own */
    core_ns wanted_ns = worker->wanted_ns;
    uint32_t pieces;

    cpu_scheduler_want(worker->scheduler, wanted_ns);
    uint32_t count = cpu_scheduler_burst(worker->scheduler, finished, &pieces, clock_now, NULL);
    worker->wanted_ns = cpu_scheduler_now_ns(worker->scheduler);
    if (is_own && pieces == 0)
        core_stalls_settle(&worker->stalls, worker->wanted_ns);
    else if (is_own && atomic_load_explicit(exceeded, memory_order_relaxed) != before)
        core_stalls_add(&worker->stalls, wanted_ns, worker->wanted_ns);
    worker_deliver(worker, finished, count);
    if (is_own)
        core_stalls_mark(&worker->stalls, worker->wanted_ns);
    return pieces;
}

static void *worker_run(void *argument)
{
    struct cpu_worker *worker = argument;
    atomic_store(&worker->thread_id, (int32_t)gettid());
    worker->wanted_ns = core_time_now_ns();
    for (;;) {
        bool stopping = atomic_load(&worker->stopping); /* before the last look at the rings */
        uint32_t drained = worker_drain(worker);
        uint32_t pieces = worker_burst(worker, true);
        if (drained == 0 && pieces == 0) {
            if (stopping)
                break;
            worker_sleep(worker);
        }
    }
    atomic_store(&worker->final_cpu_ns, core_time_thread_cpu_ns());
    atomic_store(&worker->ended, true);
    for (uint32_t producer = 0; producer < worker->producers; producer++)
        if (atomic_load(&worker->lanes[producer].holding))
            lane_notify(worker, &worker->lanes[producer]);
    return NULL;
}

/* The producers' side. */

uint32_t cpu_worker_put(struct cpu_worker *worker, uint32_t producer, struct cpu_packet *const *packets,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        packets[i]->producer = (uint16_t)producer;
    return ring_put(&worker->lanes[producer].in, packets, count);
}

/* What is queued is for the worker's own thread. With nothing queued the worker sleeps: what came meanwhile is seen
 * here, and what comes later by who brings it, as in worker_sleep. */
static void worker_give_back(struct cpu_worker *worker)
{
    const bool is_done = cpu_scheduler_pending(worker->scheduler) == 0;
    atomic_store(&worker->state, is_done ? ASLEEP : AWAKE);
    if (!is_done)
        worker_wake(worker);
    else if (worker_has_work(worker))
        worker_wake_if_asleep(worker);
}

bool cpu_worker_serve(struct cpu_worker *worker, uint32_t producer)
{
    struct lane *lane = &worker->lanes[producer];

    if (!worker_take(worker, SERVED))
        return false;
    const bool notified = atomic_exchange(&lane->notified, true); /* its producer is here */
    worker->wanted_ns = core_time_now_ns();
    (void)lane_drain(worker, lane, worker->wanted_ns);
    (void)worker_burst(worker, false);
    if (worker_drain(worker) == 0 && cpu_scheduler_pending(worker->scheduler) == 0)
        (void)worker_burst(worker, false); /* a quiescent point, as before its own thread sleeps */
    atomic_store(&lane->notified, notified);
    worker_give_back(worker);
    return true;
}

uint32_t cpu_worker_submit(struct cpu_worker *worker, uint32_t producer, struct cpu_packet *const *packets,
                           uint32_t count)
{
    uint32_t taken = cpu_worker_put(worker, producer, packets, count);
    if (taken > 0)
        worker_wake_if_asleep(worker);
    return taken;
}

/* After the worker's end its held packets belong to the producer. */
static uint32_t lane_take_held(struct lane *lane, struct cpu_packet **packets, uint32_t count)
{
    uint32_t taken = 0;
    while (taken < count && lane->held != NULL) {
        packets[taken++] = lane->held;
        lane->held = lane->held->next;
    }
    return taken;
}

uint32_t cpu_worker_collect(struct cpu_worker *worker, uint32_t producer, struct cpu_packet **packets,
                            uint32_t count)
{
    atomic_store(&worker->lanes[producer].notified, false);
    return cpu_worker_poll(worker, producer, packets, count);
}

uint32_t cpu_worker_poll(struct cpu_worker *worker, uint32_t producer, struct cpu_packet **packets,
                         uint32_t count)
{
    struct lane *lane = &worker->lanes[producer];
    bool ended = atomic_load(&worker->ended); /* before the ring: nothing comes into it after */
    uint32_t taken = ring_take(&lane->out, packets, count);
    if (ended)
        return taken + lane_take_held(lane, packets + taken, count - taken);
    if (taken > 0 && atomic_load(&lane->holding))
        worker_wake_if_asleep(worker);
    return taken;
}

void cpu_worker_mute(struct cpu_worker *worker, uint32_t producer)
{
    atomic_store(&worker->lanes[producer].notified, true);
}

/* Life and death. */

static void worker_free(struct cpu_worker *worker)
{
    for (uint32_t producer = 0; producer < worker->producers; producer++) {
        ring_free(&worker->lanes[producer].in);
        ring_free(&worker->lanes[producer].out);
    }
    cpu_scheduler_destroy(worker->scheduler);
    if (worker->wake_descriptor >= 0)
        close(worker->wake_descriptor);
    free(worker);
}

static core_status worker_prepare(struct cpu_worker *worker, const struct cpu_worker_options *options,
                                  struct core_error *error)
{
    worker->notify = options->notify;
    worker->notify_argument = options->notify_argument;
    worker->producers = options->producers;
    worker->wake_descriptor = eventfd(0, EFD_CLOEXEC);
    if (worker->wake_descriptor < 0)
        return core_error_errno(error, "no eventfd for a worker");
    for (uint32_t producer = 0; producer < options->producers; producer++) {
        struct lane *lane = &worker->lanes[producer];
        if (ring_init(&lane->in, options->ring_packets) != CORE_OK ||
            ring_init(&lane->out, options->ring_packets) != CORE_OK)
            return core_error_set(error, CORE_NO_MEMORY, "no memory for a worker's rings");
    }
    return cpu_scheduler_create(&worker->scheduler, &options->scheduler, error);
}

core_status cpu_worker_start(struct cpu_worker **worker, const struct cpu_worker_options *options,
                             struct core_error *not_permitted, struct core_error *error)
{
    if (options->ring_packets == 0 || (options->ring_packets & (options->ring_packets - 1)) != 0) {
        return core_error_set(error, CORE_INVALID, "a ring of %u packets: it must be a power of two",
                              options->ring_packets);
    }
    size_t bytes = sizeof(struct cpu_worker) + options->producers * sizeof(struct lane);
    struct cpu_worker *created = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (created == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a worker");
    memset(created, 0, bytes);
    core_status status = worker_prepare(created, options, error);
    if (status == CORE_OK) {
        status =
            core_thread_start(&created->thread, &options->thread, worker_run, created, not_permitted, error);
    }
    if (status != CORE_OK) {
        worker_free(created);
        return status;
    }
    errno = pthread_getcpuclockid(created->thread, &created->cpu_clock);
    if (errno != 0) {
        status = core_error_errno(error, "a worker has no CPU clock");
        cpu_worker_stop(created);
        return status;
    }
    *worker = created;
    return CORE_OK;
}

void cpu_worker_finish(struct cpu_worker *worker)
{
    if (!worker->joined) {
        atomic_store(&worker->stopping, true);
        worker_wake(worker);
        pthread_join(worker->thread, NULL);
        worker->joined = true;
    }
}

void cpu_worker_stop(struct cpu_worker *worker)
{
    if (worker != NULL) {
        cpu_worker_finish(worker);
        worker_free(worker);
    }
}

const struct core_stalls *cpu_worker_stalls(const struct cpu_worker *worker)
{
    return &worker->stalls;
}

const struct cpu_scheduler_counters *cpu_worker_counters(const struct cpu_worker *worker)
{
    return cpu_scheduler_counters_get(worker->scheduler);
}

int32_t cpu_worker_thread_id(const struct cpu_worker *worker)
{
    return atomic_load(&worker->thread_id);
}

core_ns cpu_worker_cpu_time_ns(const struct cpu_worker *worker)
{
    struct timespec used;
    if (!atomic_load(&worker->ended) && clock_gettime(worker->cpu_clock, &used) == 0)
        return used.tv_sec * CORE_NS_PER_S + used.tv_nsec;
    return atomic_load(&worker->final_cpu_ns);
}
