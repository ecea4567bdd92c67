#include "tests/support/exhaustive.h"

#include "cpu/scheduler.h"
#include "server/stream/policer.h"
#include "tests/support/virtual_engine.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES 32 /* at one tick */
#define INSIDE  16 /* packets of a stream at once */
#define PAUSE                                                                                                \
    CORE_NS_PER_MS /* between one way and the next: the scheduler's clock must not run backwards             \
                    */

struct packet {
    struct cpu_packet cpu; /* first member */
    core_ns due_ns, hand_over_ns;
};

/* One stream's sender, and its end in the worker. Packet n is packets[n % INSIDE]. */
struct source {
    const struct exhaustive_stream *stream;
    struct cpu_stream *cpu;
    struct server_policer policer;
    uint32_t sent, handed_over, finished;
    uint64_t pauses; /* of the last packet finished */
    struct packet packets[INSIDE];
};

/* What was chosen at a tick, first to last. */
struct choices {
    uint8_t count;
    uint8_t taken[CHOICES];
};

struct state {
    uint32_t before; /* the state that it was reached from */
    uint32_t ticks;
    struct choices choices;
};

struct exhaustive {
    struct cpu_scheduler *scheduler;
    struct cpu_stream *cpu_streams;
    size_t stride_bytes;
    uint32_t burst_pieces, states_max;
    struct state *states;
    uint64_t *seen; /* hash table of states, 0 where free */
    uint32_t seen_size;
    uint32_t *way; /* states from the start to one */
    /* of the run */
    const struct exhaustive_case *run;
    struct exhaustive_result result;
    uint32_t found;
    /* of the way at hand */
    struct source sources[EXHAUSTIVE_STREAMS];
    core_ns now_ns;      /* this tick */
    core_ns free_ns;     /* end of the last burst */
    core_ns released_ns; /* new streams may send from then on; CORE_NS_NEVER: not yet */
    bool behind;         /* a piece was late at this tick: the queue knows more than the states tell */
    bool cleared;        /* nothing counts any more */
    bool told;           /* what happens goes to result.how */
    struct choices choices;
    uint8_t asked, options[CHOICES];
};

/* ---- choices ---- */

static uint32_t choose(struct exhaustive *e, uint32_t options)
{
    if (options < 2)
        return 0;
    assert(e->asked < CHOICES && options <= UINT8_MAX);
    e->options[e->asked] = (uint8_t)options;
    if (e->asked >= e->choices.count)
        e->choices.taken[e->choices.count++] = 0;
    return e->choices.taken[e->asked++];
}

/* The next way to choose at this tick; false: that was the last. */
static bool choose_next(struct choices *choices, const uint8_t *options)
{
    for (; choices->count > 0; choices->count--)
        if (++choices->taken[choices->count - 1] < options[choices->count - 1])
            return true;
    return false;
}

static __attribute__((format(printf, 2, 3))) void tell(struct exhaustive *e, const char *format, ...)
{
    size_t used = strlen(e->result.how);
    va_list arguments;
    if (!e->told)
        return;
    va_start(arguments, format);
    vsnprintf(e->result.how + used, sizeof e->result.how - used, format, arguments);
    va_end(arguments);
}

/* ---- bursts ---- */

/* The scheduler asks for the time when a burst has ended. */
static core_ns burst_end(void *argument)
{
    struct exhaustive *e = argument;
    core_ns most_ns = virtual_engine_took_ns();
    core_ns next_ns = e->now_ns + e->run->tick_ns;
    if (e->cleared)
        return e->free_ns;
    bool may_be_short = e->run->short_bursts && e->free_ns + most_ns > next_ns;
    core_ns end_ns = choose(e, may_be_short ? 2 : 1) == 1 ? next_ns : e->free_ns + most_ns;
    tell(e, " burst %lld-%lld;", (long long)(e->free_ns - e->now_ns), (long long)(end_ns - e->now_ns));
    return e->free_ns = end_ns;
}

/* ---- one tick ---- */

/* Of its next packet. */
static core_ns eligible_ns(const struct exhaustive *e, const struct source *source)
{
    const struct server_policer *policer = &source->policer;
    bool waits = policer->theoretical_ns > e->now_ns + policer->tolerance_ns;
    return waits ? policer->theoretical_ns - policer->tolerance_ns : e->now_ns;
}

static bool may_send(const struct exhaustive *e, const struct source *source)
{
    const struct exhaustive_stream *stream = source->stream;
    if (stream->role == EXHAUSTIVE_COMES && e->released_ns > e->now_ns)
        return false;
    if (stream->packets > 0 && source->sent == stream->packets)
        return false;
    return eligible_ns(e, source) <= e->now_ns + e->run->early_ns;
}

/* No closed window of the packets that are remembered has more than the contract allows. */
static void check_contract(const struct exhaustive *e, const struct source *source, core_ns next_ns)
{
    const struct core_stream_spec *spec = &source->stream->spec;
    core_ns later_ns = spec->latency_ns - e->run->profile->margins.out_ns;
    uint32_t known = source->sent < INSIDE ? source->sent : INSIDE - 1;
    for (uint32_t back = 1; back <= known; back++) {
        core_ns before_ns = source->packets[(source->sent - back) % INSIDE].due_ns - later_ns;
        assert((int64_t)back + 1 <= spec->burst_packets + (next_ns - before_ns) / spec->interval_ns);
        (void)before_ns;
    }
}

/* Ways to send a packet: the longest, or 16 bytes; handed over at once, or later if it is eligible now and
 * that is not the same because a burst will last until then. */
struct ways {
    uint32_t sizes, times;
};

static struct ways ways_of(const struct exhaustive *e, const struct source *source)
{
    bool is_short = source->stream->spec.packet_bytes <= CORE_BLOCK_BYTES;
    bool same =
        e->free_ns >= e->now_ns + e->run->profile->margins.in_ns || eligible_ns(e, source) > e->now_ns;
    return (struct ways){.sizes = e->run->short_packets && !is_short ? 2 : 1, .times = same ? 1 : 2};
}

/* how: from 1 on, each size at each time. */
static void send(struct exhaustive *e, struct source *source, uint32_t how)
{
    const struct ways ways = ways_of(e, source);
    bool late = (how - 1) % ways.times == 1, is_short = (how - 1) / ways.times == 1;
    static uint8_t payload[1]; /* never read: nothing is encrypted */
    const struct core_stream_spec *spec = &source->stream->spec;
    const struct config_profile_margins *margins = &e->run->profile->margins;
    assert(e->run->profile->io.rest_max_ns == 0 && source->sent - source->finished < INSIDE);
    check_contract(e, source, eligible_ns(e, source));
    struct server_policer_times times = server_policer_packet(&source->policer, e->now_ns);
    assert(times.eligible_ns >= e->now_ns && times.eligible_ns <= e->now_ns + e->run->early_ns);
    struct packet *packet = &source->packets[source->sent++ % INSIDE];
    packet->due_ns = times.eligible_ns + spec->latency_ns - margins->out_ns;
    packet->hand_over_ns = e->now_ns + (late ? margins->in_ns : 0);
    packet->cpu = (struct cpu_packet){.stream = source->cpu,
                                      .data = payload,
                                      .bytes = is_short ? CORE_BLOCK_BYTES : spec->packet_bytes,
                                      .release_ns = times.release_ns + margins->in_ns};
    tell(e, " %td sends %u%s;", source - e->sources, packet->cpu.bytes,
         late                            ? " late"
         : times.eligible_ns > e->now_ns ? " early"
                                         : "");
}

static uint64_t stream_hash(const struct exhaustive *e, const struct source *source);

/* Of streams that are as good as the same, each sends in no other way than one that sends earlier. */
static void all_send(struct exhaustive *e)
{
    uint64_t last_hash = 0;
    uint32_t last_how = 0;
    for (size_t i = 0; i < e->run->count; i++) {
        struct source *source = &e->sources[i];
        uint64_t hash = stream_hash(e, source);
        bool first = i == 0 || hash != last_hash;
        const struct ways each = ways_of(e, source);
        uint32_t ways = 1 + each.sizes * each.times, how = 0;
        if (may_send(e, source))
            how = choose(e, first || last_how + 1 > ways ? ways : last_how + 1);
        last_hash = hash;
        last_how = how;
        while (how > 0) {
            send(e, source, how);
            how = may_send(e, source) ? choose(e, ways) : 0;
        }
    }
}

static void hand_over_from(struct exhaustive *e, struct source *source)
{
    for (; source->handed_over < source->sent; source->handed_over++) {
        struct packet *next = &source->packets[source->handed_over % INSIDE];
        struct cpu_packet *packet = &next->cpu;
        if (next->hand_over_ns > e->free_ns)
            return;
        cpu_scheduler_push(e->scheduler, &packet, 1, e->free_ns);
    }
}

static bool hands_over(const struct exhaustive *e, const struct source *source)
{
    return source->handed_over < source->sent &&
           source->packets[source->handed_over % INSIDE].hand_over_ns <= e->free_ns;
}

/* Whatever is due, by rising or by falling numbers of the streams. */
static void hand_over(struct exhaustive *e)
{
    size_t count = e->run->count, hands = 0;
    for (size_t i = 0; i < count; i++)
        hands += hands_over(e, &e->sources[i]);
    bool falling = choose(e, hands > 1 ? 2 : 1) == 1;
    for (size_t i = 0; i < count; i++)
        hand_over_from(e, &e->sources[falling ? count - 1 - i : i]);
}

static core_ns next_hand_over_ns(const struct exhaustive *e)
{
    core_ns next_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < e->run->count; i++) {
        const struct source *source = &e->sources[i];
        const struct packet *packet = &source->packets[source->handed_over % INSIDE];
        if (source->handed_over < source->sent && packet->hand_over_ns < next_ns)
            next_ns = packet->hand_over_ns;
    }
    return next_ns;
}

static void finish(struct exhaustive *e, const struct cpu_packet *cpu)
{
    const struct packet *packet = (const struct packet *)cpu;
    struct source *source =
        &e->sources[(size_t)((char *)cpu->stream - (char *)e->cpu_streams) / e->stride_bytes];
    source->finished++;
    source->pauses = cpu->pauses;
    if (cpu->finished_ns > packet->due_ns && !e->cleared) {
        e->result.missed = true;
        e->result.late_ns = cpu->finished_ns - packet->due_ns;
        tell(e, " %td is late;", source - e->sources);
    }
}

/* May the room of all who leave be promised again? */
static void release(struct exhaustive *e)
{
    uint64_t pauses = cpu_scheduler_counters_get(e->scheduler)->pauses;
    for (size_t i = 0; i < e->run->count; i++) {
        const struct source *source = &e->sources[i];
        if (source->stream->role == EXHAUSTIVE_LEAVES &&
            (source->finished < source->stream->packets || (pauses <= source->pauses && !e->run->at_once)))
            return;
    }
    if (e->released_ns == CORE_NS_NEVER)
        e->released_ns = e->free_ns;
}

/* Returns how many pieces it had. As the worker's thread does, this asks for a burst when nothing is pending,
 * too. */
static uint32_t burst(struct exhaustive *e)
{
    struct cpu_packet *finished[CPU_BURST_MAX];
    uint32_t pieces;
    e->behind = e->behind || cpu_scheduler_first_deadline_ns(e->scheduler) < e->free_ns;
    uint32_t count = cpu_scheduler_burst(e->scheduler, finished, &pieces, burst_end, e);
    for (uint32_t i = 0; i < count; i++)
        finish(e, finished[i]);
    release(e);
    return pieces;
}

static void tick(struct exhaustive *e)
{
    const core_ns end_ns = e->now_ns + e->run->tick_ns;
    e->behind = false;
    all_send(e);
    if (e->free_ns < e->now_ns)
        e->free_ns = e->now_ns;
    while (e->free_ns < end_ns) {
        hand_over(e);
        if (burst(e) > 0)
            continue;
        core_ns next_ns = next_hand_over_ns(e);
        if (next_ns >= end_ns)
            break;
        e->free_ns = next_ns;
    }
    e->now_ns = end_ns;
    tell(e, "\n");
}

/* ---- states ---- */

static uint64_t mix(uint64_t hash, int64_t value)
{
    uint64_t z = hash ^ ((uint64_t)value + UINT64_C(0x9e3779b97f4a7c15) + (hash << 6) + (hash >> 2));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static core_ns from_now_ns(const struct exhaustive *e, core_ns at_ns)
{
    return at_ns > e->now_ns ? at_ns - e->now_ns : 0;
}

/* How many leave the entry's bucket of the queue before it. */
static int64_t place_in_bucket(const struct exhaustive *e, const struct cpu_edf_entry *entry)
{
    for (size_t i = 0; i < e->run->count; i++) {
        const struct cpu_stream *stream = e->sources[i].cpu;
        if (stream->head != NULL && stream->entry.next == entry)
            return 1 + place_in_bucket(e, &stream->entry);
    }
    return 0;
}

/* All of a stream that matters from now on, as numbers that do not tell when it is. */
static uint64_t stream_hash(const struct exhaustive *e, const struct source *source)
{
    const struct exhaustive_stream *stream = source->stream;
    const struct core_stream_spec *spec = &stream->spec;
    uint64_t hash = mix(mix(mix(spec->packet_bytes, spec->burst_packets), spec->cipher), stream->role);
    hash = mix(mix(mix(hash, spec->interval_ns), spec->latency_ns), stream->packets);
    hash = mix(hash, stream->packets > 0 ? source->sent : 0);
    if (stream->packets == 0 || source->sent < stream->packets)
        hash = mix(mix(hash, from_now_ns(e, source->policer.theoretical_ns)),
                   from_now_ns(e, source->policer.next_release_ns));
    for (uint32_t n = source->finished; n < source->sent; n++) {
        const struct packet *packet = &source->packets[n % INSIDE];
        hash = mix(mix(hash, packet->cpu.release_ns - e->now_ns), packet->due_ns - e->now_ns);
        hash = mix(mix(hash, packet->cpu.bytes), packet->cpu.done_bytes);
        hash = mix(hash, n < source->handed_over ? -1 : packet->hand_over_ns - e->now_ns);
        if (e->released_ns == CORE_NS_NEVER) /* the scheduler may note there for whom a pause waits */
            hash = mix(hash, (int64_t)packet->cpu.pauses);
    }
    if (source->cpu->head != NULL)
        hash = mix(mix(hash, source->cpu->entry.key_ns - e->now_ns), place_in_bucket(e, &source->cpu->entry));
    if (e->released_ns == CORE_NS_NEVER && stream->role == EXHAUSTIVE_LEAVES &&
        source->finished == stream->packets)
        hash = mix(hash, (int64_t)(cpu_scheduler_counters_get(e->scheduler)->pauses - source->pauses));
    return hash;
}

static bool any_behind(const struct exhaustive *e)
{
    bool behind = e->behind;
    for (size_t i = 0; i < e->run->count; i++)
        behind = behind || (e->sources[i].cpu->head != NULL && e->sources[i].cpu->entry.key_ns < e->now_ns);
    return behind;
}

/* The sum over streams does not tell their order. */
static uint64_t state_hash(const struct exhaustive *e)
{
    uint64_t sum = 0, hash = 1;
    for (size_t i = 0; i < e->run->count; i++)
        sum += mix(7, (int64_t)stream_hash(e, &e->sources[i]));
    hash = mix(mix(hash, (int64_t)sum), from_now_ns(e, e->free_ns));
    hash = mix(hash, e->now_ns % CPU_EDF_BUCKET_NS);
    hash = mix(hash, e->released_ns == CORE_NS_NEVER ? -1 : from_now_ns(e, e->released_ns));
    if (any_behind(e)) /* never taken for another */
        hash = mix(hash, (int64_t)e->result.steps + 1);
    return hash != 0 ? hash : 1;
}

/* True if it is new. */
static bool see(struct exhaustive *e, uint64_t hash)
{
    uint32_t at = (uint32_t)(hash % e->seen_size);
    for (; e->seen[at] != 0; at = (at + 1) % e->seen_size)
        if (e->seen[at] == hash)
            return false;
    e->seen[at] = hash;
    return true;
}

/* ---- ways ---- */

static void source_start(struct exhaustive *e, size_t index)
{
    static const uint8_t nothing[CORE_BLOCK_BYTES * 2];
    const struct exhaustive_stream *stream = &e->run->streams[index];
    const struct perfmodel_cpu_task *task = &stream->task;
    struct source *source = &e->sources[index];
    source->stream = stream;
    source->sent = source->handed_over = source->finished = 0;
    source->cpu = (struct cpu_stream *)(void *)((char *)e->cpu_streams + index * e->stride_bytes);
    const struct cpu_stream_options options = {.cipher = stream->spec.cipher,
                                               .piece_bytes = task->piece_bytes,
                                               .piece_deadline_ns = task->deadline_ns};
    core_status status = cpu_stream_init(source->cpu, &virtual_engine, NULL, &options, nothing, nothing);
    assert(status == CORE_OK);
    (void)status;
    server_policer_init(&source->policer, &stream->spec, task->spacing_ns);
}

static void empty(struct exhaustive *e)
{
    struct cpu_packet *finished[CPU_BURST_MAX];
    e->cleared = true;
    while (cpu_scheduler_pending(e->scheduler) > 0)
        (void)cpu_scheduler_burst(e->scheduler, finished, NULL, burst_end, e);
    e->cleared = false;
}

/* Empties the worker, and makes it a later day, with the buckets where they were. */
static void start(struct exhaustive *e)
{
    empty(e);
    core_ns day = core_time_max(e->free_ns, e->now_ns) + PAUSE;
    e->now_ns = day - day % CPU_EDF_BUCKET_NS + CPU_EDF_BUCKET_NS + e->run->phase_ns;
    e->free_ns = e->now_ns;
    e->released_ns = 0;
    for (size_t i = 0; i < e->run->count; i++) {
        source_start(e, i);
        if (e->run->streams[i].role == EXHAUSTIVE_LEAVES)
            e->released_ns = CORE_NS_NEVER;
    }
}

/* From the start to a state. */
static void go_to(struct exhaustive *e, uint32_t state)
{
    uint32_t length = 0;
    for (uint32_t at = state; at != 0; at = e->states[at].before)
        e->way[length++] = at;
    start(e);
    while (length > 0) {
        e->choices = e->states[e->way[--length]].choices;
        e->asked = 0;
        tick(e);
    }
}

static void tell_miss(struct exhaustive *e, uint32_t state, const struct choices *last)
{
    e->result.how[0] = '\0';
    e->told = true;
    go_to(e, state);
    e->choices = *last;
    e->asked = 0;
    tick(e);
    e->told = false;
}

/* Everything that may happen at the tick after a state. */
static void expand(struct exhaustive *e, uint32_t state)
{
    struct choices next = {0};
    do {
        go_to(e, state);
        e->choices = next;
        e->asked = 0;
        tick(e);
        next = e->choices;
        e->result.steps++;
        if (e->result.missed) {
            tell_miss(e, state, &next);
            return;
        }
        if (!see(e, state_hash(e)))
            continue;
        if (e->found == e->run->states_max) {
            e->result.complete = false;
            return;
        }
        e->states[e->found++] =
            (struct state){.before = state, .ticks = e->states[state].ticks + 1, .choices = next};
        e->result.ticks = e->states[state].ticks + 1;
    } while (choose_next(&next, e->options));
}

struct exhaustive_result exhaustive_run(struct exhaustive *exhaustive, const struct exhaustive_case *run)
{
    struct exhaustive *e = exhaustive;
    assert(run->profile->cpu.burst_pieces == e->burst_pieces && run->states_max <= e->states_max);
    assert(run->count <= EXHAUSTIVE_STREAMS);
    virtual_engine_use(run->profile);
    e->run = run;
    e->result = (struct exhaustive_result){.complete = true};
    memset(e->seen, 0, e->seen_size * sizeof *e->seen);
    e->states[0] = (struct state){0};
    e->found = 1;
    start(e);
    (void)see(e, state_hash(e));
    for (uint32_t state = 0; state < e->found && e->result.complete && !e->result.missed; state++)
        expand(e, state);
    e->result.states = e->found;
    empty(e); /* while the engine knows what the run's pieces are */
    return e->result;
}

struct exhaustive *exhaustive_create(uint32_t burst_pieces, uint32_t states_max)
{
    struct exhaustive *e = calloc(1, sizeof *e);
    struct cpu_scheduler_options options = {
        .ops = &virtual_engine, .burst_pieces = burst_pieces, .far_capacity = EXHAUSTIVE_STREAMS};
    if (e == NULL)
        return NULL;
    e->burst_pieces = burst_pieces;
    e->states_max = states_max;
    e->seen_size = 2 * states_max + 1;
    e->stride_bytes = cpu_stream_bytes(&virtual_engine, 1);
    e->cpu_streams = aligned_alloc(64, EXHAUSTIVE_STREAMS * e->stride_bytes);
    e->states = malloc(states_max * sizeof *e->states);
    e->way = malloc(states_max * sizeof *e->way);
    e->seen = malloc(e->seen_size * sizeof *e->seen);
    if (e->cpu_streams == NULL || e->states == NULL || e->way == NULL || e->seen == NULL ||
        cpu_scheduler_create(&e->scheduler, &options, NULL) != CORE_OK) {
        exhaustive_destroy(e);
        return NULL;
    }
    return e;
}

void exhaustive_destroy(struct exhaustive *exhaustive)
{
    if (exhaustive == NULL)
        return;
    cpu_scheduler_destroy(exhaustive->scheduler);
    free(exhaustive->cpu_streams);
    free(exhaustive->states);
    free(exhaustive->way);
    free(exhaustive->seen);
    free(exhaustive);
}
