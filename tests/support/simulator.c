#include "tests/support/simulator.h"

#include "cpu/scheduler.h"
#include "partition/admission/unit_worker.h"
#include "server/stream/policer.h"
#include "tests/support/random.h"
#include "tests/support/virtual_engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define EARLY_NS    (100 * CORE_NS_PER_US) /* what SIMULATOR_LEAST hands over ahead of time */
#define FAR_STREAMS (1 << 16)
#define REFUSALS    3 /* of contracts, until nobody else is let in */

/* That may be let in one after the other, beside so many streams. */
#define NEWCOMERS(count) ((count) + 16)

struct packet {
    struct cpu_packet cpu; /* first member */
    core_ns due_ns;
    struct packet *next_free;
};

/* One stream's sender, and its end in the worker. */
struct source {
    const struct simulator_stream *stream;
    struct cpu_stream *cpu;
    struct server_policer policer;
    uint64_t sent;
    core_ns arrival_ns;     /* of the next packet */
    core_ns phase_ns;       /* start, relative to the run's or the round's */
    core_ns handed_over_ns; /* last packet */
    struct packet *next;    /* policed and waiting to be handed over at due_at */
    core_ns due_at_ns;
    uint64_t finished;
    uint64_t pauses;             /* of the last packet finished */
    bool early;                  /* is handed over so */
    bool prompt;                 /* or once it is eligible */
    bool closing;                /* sends one burst only; then others come */
    struct simulator_stream own; /* of a new stream: its contract */
};

struct simulator {
    struct cpu_scheduler *scheduler;
    uint32_t burst_pieces;
    core_ns now_ns; /* goes on from run to run: the scheduler's clock must not run backwards */
    struct packet *free;
    struct source *sources;
    struct cpu_stream *cpu_streams;
    size_t stride_bytes, capacity;
    struct source **heap; /* by due_at_ns */
    size_t heap_size;
    /* of the run */
    size_t count;                  /* streams; new streams are the sources from there on */
    struct partition_unit *worker; /* who has room on the worker, of a succession */
    struct perfmodel_cpu_mix mix;  /* of all who ever were on it */
    const struct config_profile *profile;
    const struct simulator_pattern *pattern;
    struct test_random random;
    struct simulator_result result;
    core_ns start_ns, round_ns, burst_limit_ns;
    uint64_t pieces_sent;
};

/* The scheduler asks for the time when a burst has ended. */
static core_ns burst_end(void *argument)
{
    struct simulator *simulator = argument;
    core_ns took_ns = virtual_engine_took_ns();
    if (simulator->pattern->execution == SIMULATOR_LEAST)
        took_ns /= 10;
    else if (simulator->pattern->execution == SIMULATOR_ANY && test_random_chance(&simulator->random, 60))
        took_ns = test_random_in(&simulator->random, took_ns / 10, took_ns);
    simulator->result.long_bursts += took_ns > simulator->burst_limit_ns;
    simulator->now_ns += took_ns;
    return simulator->now_ns;
}

struct simulator *simulator_create(uint32_t burst_pieces)
{
    struct simulator *simulator = calloc(1, sizeof *simulator);
    struct cpu_scheduler_options options = {
        .ops = &virtual_engine, .burst_pieces = burst_pieces, .far_capacity = FAR_STREAMS};
    if (simulator == NULL)
        return NULL;
    simulator->burst_pieces = burst_pieces;
    simulator->stride_bytes = cpu_stream_bytes(&virtual_engine, 1);
    if (cpu_scheduler_create(&simulator->scheduler, &options, NULL) != CORE_OK) {
        free(simulator);
        return NULL;
    }
    return simulator;
}

void simulator_destroy(struct simulator *simulator)
{
    while (simulator->free != NULL) {
        struct packet *packet = simulator->free;
        simulator->free = packet->next_free;
        free(packet);
    }
    cpu_scheduler_destroy(simulator->scheduler);
    free(simulator->heap);
    free(simulator->cpu_streams);
    free(simulator->sources);
    free(simulator);
}

static void *checked(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

static void reserve(struct simulator *simulator, size_t count)
{
    assert(count <= FAR_STREAMS);
    if (count <= simulator->capacity)
        return;
    free(simulator->cpu_streams);
    simulator->cpu_streams = checked(aligned_alloc(64, count * simulator->stride_bytes));
    simulator->sources = checked(realloc(simulator->sources, count * sizeof *simulator->sources));
    simulator->heap = checked(realloc(simulator->heap, count * sizeof(*simulator->heap)));
    simulator->capacity = count;
}

/* Sources in a binary heap, the earliest hand-over first. */

static void heap_push(struct simulator *simulator, struct source *source)
{
    size_t hole = simulator->heap_size++;
    for (; hole > 0 && simulator->heap[(hole - 1) / 2]->due_at_ns > source->due_at_ns; hole = (hole - 1) / 2)
        simulator->heap[hole] = simulator->heap[(hole - 1) / 2];
    simulator->heap[hole] = source;
}

static struct source *heap_pop(struct simulator *simulator)
{
    struct source *first = simulator->heap[0], *moved = simulator->heap[--simulator->heap_size];
    size_t hole = 0;
    for (size_t child = 1; child < simulator->heap_size; child = 2 * hole + 1) {
        if (child + 1 < simulator->heap_size &&
            simulator->heap[child + 1]->due_at_ns < simulator->heap[child]->due_at_ns)
            child++;
        if (simulator->heap[child]->due_at_ns >= moved->due_at_ns)
            break;
        simulator->heap[hole] = simulator->heap[child];
        hole = child;
    }
    simulator->heap[hole] = moved;
    return first;
}

/* Packets. */

static uint32_t packet_bytes(struct simulator *simulator, const struct core_stream_spec *spec)
{
    uint32_t most = core_stream_packet_bytes(spec);
    if (simulator->pattern->sizes == SIMULATOR_MOST ||
        (simulator->pattern->sizes == SIMULATOR_ANY && test_random_chance(&simulator->random, 40)))
        return most;
    if (simulator->pattern->sizes == SIMULATOR_LEAST || test_random_chance(&simulator->random, 30))
        return CORE_BLOCK_BYTES;
    return CORE_BLOCK_BYTES * (uint32_t)test_random_in(&simulator->random, 1, most / CORE_BLOCK_BYTES);
}

/* When the packet reaches the worker: between a little before it is eligible, as an I/O thread may choose,
 * and in_ns after. */
static core_ns hand_over_ns(struct simulator *simulator, const struct source *source, core_ns eligible_ns)
{
    core_ns latest_ns = eligible_ns + simulator->profile->margins.in_ns;
    core_ns earliest_ns = eligible_ns - EARLY_NS;
    if (earliest_ns < source->arrival_ns)
        earliest_ns = source->arrival_ns;
    core_ns at_ns = latest_ns;
    if (source->prompt)
        at_ns = eligible_ns;
    else if (simulator->pattern->hand_over == SIMULATOR_LEAST || source->early)
        at_ns = earliest_ns;
    else if (simulator->pattern->hand_over == SIMULATOR_ANY)
        at_ns = test_random_in(&simulator->random, earliest_ns, latest_ns);
    return core_time_max(at_ns, source->handed_over_ns);
}

static struct packet *packet_take(struct simulator *simulator)
{
    struct packet *packet = simulator->free;
    if (packet == NULL)
        return checked(malloc(sizeof *packet));
    simulator->free = packet->next_free;
    return packet;
}

/* Polices the source's next packet and queues it for hand-over. */
static void packet_send(struct simulator *simulator, struct source *source)
{
    static uint8_t payload[CORE_PACKET_BYTES_MAX + CORE_BLOCK_BYTES]; /* never read: nothing is encrypted */
    const struct config_profile_margins *margins = &simulator->profile->margins;
    struct server_policer_times times = server_policer_packet(&source->policer, source->arrival_ns);
    struct packet *packet = packet_take(simulator);
    core_ns latency_ns = source->stream->spec.latency_ns;
    packet->due_ns = times.eligible_ns + latency_ns - margins->out_ns -
                     perfmodel_io_rest_ns(latency_ns, simulator->profile);
    if (simulator->pattern->spaced)
        packet->due_ns = times.release_ns + margins->in_ns + source->stream->task.spacing_ns;
    packet->cpu = (struct cpu_packet){.stream = source->cpu,
                                      .data = payload,
                                      .bytes = packet_bytes(simulator, &source->stream->spec),
                                      .release_ns = times.release_ns + margins->in_ns};
    source->due_at_ns = hand_over_ns(simulator, source, times.eligible_ns);
    source->handed_over_ns = source->due_at_ns;
    source->next = packet;
    source->sent++;
    simulator->pieces_sent += source->stream->task.pieces;
    heap_push(simulator, source);
}

/* Arrivals. */

static core_ns pause_ns(struct simulator *simulator, const struct source *source)
{
    core_ns interval_ns = source->stream->spec.interval_ns;
    if (test_random_chance(&simulator->random, 70))
        return 0;
    return test_random_in(&simulator->random, 0, interval_ns * (source->stream->spec.burst_packets + 1));
}

/* The time of the source's next packet; the policing delays it as it must. */
static void arrival_next(struct simulator *simulator, struct source *source)
{
    uint32_t burst = source->stream->spec.burst_packets;
    if (simulator->pattern->arrivals == SIMULATOR_RANDOM) {
        source->arrival_ns += pause_ns(simulator, source);
    } else if (simulator->pattern->arrivals == SIMULATOR_AGAIN && source->sent % burst == 0) {
        core_ns round = (source->arrival_ns - simulator->start_ns) / simulator->round_ns + 1;
        source->arrival_ns = simulator->start_ns + round * simulator->round_ns + source->phase_ns;
    }
}

/* Does the source go on? Every source sends one burst at least. */
static bool arrival_wanted(const struct simulator *simulator, const struct source *source)
{
    const struct simulator_pattern *pattern = simulator->pattern;
    if (source->closing)
        return source->sent < source->stream->spec.burst_packets;
    if (source->sent < source->stream->spec.burst_packets &&
        simulator->pieces_sent < 64 * pattern->pieces_max)
        return true;
    return source->arrival_ns < simulator->start_ns + pattern->window_ns &&
           simulator->pieces_sent < pattern->pieces_max && simulator->result.misses == 0;
}

static int by_urgency_falling(const void *a, const void *b)
{
    core_ns x_ns = (*(struct source *const *)a)->stream->task.urgency_ns;
    core_ns y_ns = (*(struct source *const *)b)->stream->task.urgency_ns;
    return (x_ns < y_ns) - (x_ns > y_ns);
}

/* The first B streams by falling deadline start at once, or those that close; the others 1 ns after their
 * burst has begun. */
static void phases_after_long(struct simulator *simulator, size_t count)
{
    for (size_t i = 0; i < simulator->pattern->leavers; i++)
        simulator->sources[i].phase_ns = 0;
    for (size_t i = simulator->pattern->leavers; i < count && simulator->pattern->leavers > 0; i++)
        simulator->sources[i].phase_ns = 1;
    if (simulator->pattern->leavers > 0)
        return;
    for (size_t i = 0; i < count; i++)
        simulator->heap[i] = &simulator->sources[i];
    qsort(simulator->heap, count, sizeof(*simulator->heap), by_urgency_falling);
    size_t first = count > simulator->burst_pieces ? simulator->burst_pieces : count / 2;
    for (size_t i = 0; i < count; i++)
        simulator->heap[i]->phase_ns = i < first ? 0 : 1;
}

static void phases_set(struct simulator *simulator, size_t count)
{
    core_ns longest_ns = 0;
    for (size_t i = 0; i < count; i++) {
        core_ns urgency_ns = simulator->sources[i].stream->task.urgency_ns;
        longest_ns = core_time_max(urgency_ns, longest_ns);
    }
    for (size_t i = 0; i < count; i++) {
        struct source *source = &simulator->sources[i];
        source->phase_ns = 0;
        if (simulator->pattern->arrivals == SIMULATOR_DUE_AT_ONCE)
            source->phase_ns = longest_ns - source->stream->task.urgency_ns;
        else if (simulator->pattern->arrivals == SIMULATOR_GIVEN)
            source->phase_ns = simulator->pattern->given_ns[i];
        else if (simulator->pattern->arrivals == SIMULATOR_RANDOM)
            source->phase_ns = test_random_in(&simulator->random, 0, source->stream->spec.interval_ns);
    }
    if (simulator->pattern->arrivals == SIMULATOR_AFTER_LONG ||
        simulator->pattern->arrivals == SIMULATOR_AGAIN)
        phases_after_long(simulator, count);
}

static void source_open(struct simulator *simulator, size_t index, const struct simulator_stream *stream)
{
    static const uint8_t nothing[CORE_BLOCK_BYTES * 2];
    struct cpu_stream *cpu =
        (struct cpu_stream *)(void *)((char *)simulator->cpu_streams + index * simulator->stride_bytes);
    const struct perfmodel_cpu_task *task = &stream->task;
    const struct cpu_stream_options options = {
        .cipher = task->cipher, .piece_bytes = task->piece_bytes, .piece_deadline_ns = task->deadline_ns};
    core_status status = cpu_stream_init(cpu, &virtual_engine, NULL, &options, nothing, nothing);
    assert(status == CORE_OK);
    (void)status;
    simulator->sources[index] = (struct source){.stream = stream, .cpu = cpu};
    server_policer_init(&simulator->sources[index].policer, &stream->spec, task->spacing_ns);
}

static void start(struct simulator *simulator, const struct simulator_stream *streams, size_t count)
{
    const struct simulator_pattern *pattern = simulator->pattern;
    reserve(simulator, count + NEWCOMERS(count));
    simulator->count = count;
    simulator->now_ns += CORE_NS_PER_MS;
    simulator->start_ns = simulator->now_ns;
    for (size_t i = 0; i < count; i++)
        source_open(simulator, i, &streams[i]);
    phases_set(simulator, count);
    simulator->heap_size = 0;
    for (size_t i = 0; i < count; i++) {
        struct source *source = &simulator->sources[i];
        source->closing = pattern->succession && (pattern->leavers > 0 ? i < pattern->leavers : i % 2 == 0);
        source->early = pattern->early != NULL && pattern->early[i];
        source->arrival_ns = simulator->start_ns + source->phase_ns;
        packet_send(simulator, source);
    }
}

/* No burst takes longer than q of all who ever were on the worker. */
static void meet(struct simulator *simulator, const struct perfmodel_cpu_task *task)
{
    perfmodel_cpu_mix_add(&simulator->mix, simulator->burst_pieces, task);
    simulator->burst_limit_ns = perfmodel_cpu_blocking_ns(simulator->profile, &simulator->mix);
}

/* A contract that differs from another stream's in whatever a contract may say, as often as not due when
 * what that sent first is. */
static struct core_stream_spec any_contract(struct simulator *simulator)
{
    struct test_random *random = &simulator->random;
    size_t of = (size_t)test_random_in(random, 0, (int64_t)simulator->count - 1);
    struct core_stream_spec spec = simulator->sources[of].stream->spec;
    core_ns gone_ns = simulator->now_ns - simulator->start_ns;
    spec.packet_bytes = CORE_BLOCK_BYTES * (uint32_t)test_random_log(random, 1, spec.packet_bytes / 16 + 1);
    spec.padding = CORE_PADDING_NONE;
    spec.records = CORE_RECORDS_NONE;
    spec.burst_packets = (uint32_t)test_random_in(random, 1, spec.burst_packets);
    if (test_random_chance(random, 50) && spec.latency_ns - gone_ns >= CORE_LATENCY_NS_MIN)
        spec.latency_ns -= gone_ns;
    else
        spec.latency_ns = test_random_log(random, CORE_LATENCY_NS_MIN, 2 * spec.latency_ns);
    return spec;
}

/* One stream less on the worker, or one more. */
static void charge(struct simulator *simulator, const struct core_stream_spec *less,
                   const struct core_stream_spec *more)
{
    const struct partition_demand demand =
        partition_demand_of(less != NULL ? less : more, simulator->profile);
    simulator->worker->ops->charge(simulator->worker, PARTITION_OWN, 0, less != NULL ? &demand : NULL,
                                   more != NULL ? &demand : NULL);
}

/* False: there is no room. */
static bool let_in(struct simulator *simulator, const struct core_stream_spec *spec)
{
    size_t index = simulator->count + simulator->result.came;
    struct simulator_stream stream = {.spec = *spec};
    const struct partition_demand demand = partition_demand_of(spec, simulator->profile);
    if (!partition_unit_takes(simulator->worker, &demand))
        return false;
    stream.task = demand.task;
    charge(simulator, NULL, spec);
    struct source *source = &simulator->sources[index];
    source_open(simulator, index, &stream);
    source->own = stream;
    source->stream = &source->own;
    source->prompt = simulator->pattern->request != NULL || test_random_chance(&simulator->random, 50);
    source->closing = simulator->pattern->request == NULL;
    source->arrival_ns = simulator->now_ns;
    simulator->result.came++;
    meet(simulator, &stream.task);
    packet_send(simulator, source);
    return true;
}

static void let_in_all(struct simulator *simulator)
{
    for (int refused = 0; simulator->result.came < NEWCOMERS(simulator->count) && refused < REFUSALS;) {
        struct core_stream_spec spec =
            simulator->pattern->request != NULL ? *simulator->pattern->request : any_contract(simulator);
        if (!let_in(simulator, &spec))
            refused = simulator->pattern->request != NULL ? REFUSALS : refused + 1;
    }
}

/* Gives back the room of the streams that have closed and whose room may be promised again. */
static void succeed(struct simulator *simulator)
{
    uint64_t pauses = cpu_scheduler_counters_get(simulator->scheduler)->pauses;
    size_t streams = simulator->count + simulator->result.came;
    bool any = false;
    for (size_t i = 0; i < streams; i++) {
        struct source *source = &simulator->sources[i];
        if (!source->closing || source->finished < source->stream->spec.burst_packets ||
            pauses <= source->pauses)
            continue;
        source->closing = false;
        charge(simulator, &source->stream->spec, NULL);
        simulator->result.left++;
        any = true;
    }
    if (any)
        let_in_all(simulator);
}

static void succession_begin(struct simulator *simulator)
{
    core_status status = partition_worker_create(&simulator->worker, simulator->profile, 0);
    assert(status == CORE_OK);
    (void)status;
    for (size_t i = 0; i < simulator->count; i++)
        charge(simulator, NULL, &simulator->sources[i].stream->spec);
}

static void succession_end(struct simulator *simulator)
{
    simulator->worker->ops->destroy(simulator->worker);
    simulator->worker = NULL;
}

/* Hands over what is due. */
static void hand_over(struct simulator *simulator)
{
    while (simulator->heap_size > 0 && simulator->heap[0]->due_at_ns <= simulator->now_ns) {
        struct source *source = heap_pop(simulator);
        struct cpu_packet *packet = &source->next->cpu;
        source->next = NULL;
        cpu_scheduler_push(simulator->scheduler, &packet, 1, simulator->now_ns);
        arrival_next(simulator, source);
        if (arrival_wanted(simulator, source))
            packet_send(simulator, source);
    }
}

/* False: nothing was pending. The worker's thread asks for a burst then, too. */
static bool burst(struct simulator *simulator)
{
    struct cpu_packet *finished[CPU_BURST_MAX];
    uint32_t pieces;
    uint32_t count = cpu_scheduler_burst(simulator->scheduler, finished, &pieces, burst_end, simulator);
    assert(pieces <= simulator->burst_pieces);
    simulator->result.bursts += pieces > 0;
    simulator->result.pieces += pieces;
    for (uint32_t i = 0; i < count; i++) {
        struct packet *packet = (struct packet *)finished[i];
        core_ns slack_ns = packet->due_ns - finished[i]->finished_ns;
        size_t index =
            (size_t)((char *)finished[i]->stream - (char *)simulator->cpu_streams) / simulator->stride_bytes;
        simulator->sources[index].finished++;
        simulator->sources[index].pauses = finished[i]->pauses;
        simulator->result.packets++;
        if (slack_ns < simulator->result.least_slack_ns)
            simulator->result.least_slack_ns = slack_ns;
        if (slack_ns < 0 && simulator->result.misses++ == 0) {
            simulator->result.first_missed = index;
            simulator->result.missed = *simulator->sources[index].stream;
        }
        packet->next_free = simulator->free;
        simulator->free = packet;
    }
    return pieces > 0;
}

/* After an early end: what was not handed over is dropped, the rest finished without being looked at. */
static void clear(struct simulator *simulator)
{
    struct simulator_result result = simulator->result;
    while (simulator->heap_size > 0) {
        struct source *source = heap_pop(simulator);
        source->next->next_free = simulator->free;
        simulator->free = source->next;
    }
    while (burst(simulator))
        continue;
    simulator->result = result;
}

struct simulator_result simulator_run(struct simulator *simulator, const struct config_profile *profile,
                                      const struct simulator_stream *streams, size_t count,
                                      const struct simulator_pattern *pattern)
{
    assert(profile->cpu.burst_pieces == simulator->burst_pieces);
    virtual_engine_use(profile);
    simulator->profile = profile;
    simulator->pattern = pattern;
    simulator->random = (struct test_random){pattern->seed};
    simulator->result = (struct simulator_result){.least_slack_ns = CORE_NS_NEVER};
    simulator->mix = (struct perfmodel_cpu_mix){0};
    for (size_t i = 0; i < count; i++)
        meet(simulator, &streams[i].task);
    simulator->round_ns = 1 + pattern->window_ns / 4;
    simulator->pieces_sent = 0;
    start(simulator, streams, count);
    if (pattern->succession)
        succession_begin(simulator);
    while (!(pattern->stop_at_miss && simulator->result.misses > 0)) {
        hand_over(simulator);
        bool idle = !burst(simulator);
        if (pattern->succession && simulator->result.misses == 0)
            succeed(simulator);
        if (idle && simulator->heap_size == 0)
            break;
        if (idle)
            simulator->now_ns = simulator->heap[0]->due_at_ns;
    }
    if (pattern->succession)
        succession_end(simulator);
    clear(simulator);
    return simulator->result;
}
