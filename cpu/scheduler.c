#include "cpu/scheduler.h"

#include "core/secret.h"
#include "core/transport_stream.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct cpu_stream, key_states) == 64, "a stream's state is one cache line");
_Static_assert(offsetof(struct cpu_stream, entry) == 0, "an entry of the queue is its stream");

#define LINE_BYTES   64
#define PUSH_AHEAD   16 /* packets between asking for a line and using it */
#define FIRST_PIECES 16 /* that an engine works on at once */
#define KEY_LINES    3  /* of an AES-128 schedule */

/* The pieces of one cipher and direction in the burst at hand. */
#define GROUPS (2 * (CORE_CIPHER_COUNT + 1))

struct group {
    uint32_t count;
    struct cpu_piece pieces[CPU_BURST_MAX];
};

struct cpu_scheduler {
    const struct cpu_engine_ops *ops;
    struct cpu_engine *engine;
    struct cpu_edf *queue;
    uint32_t burst_pieces;
    core_ns burst_bound_ns, spare_ns;
    core_ns now_ns;    /* the latest time heard of: a burst starts then */
    core_ns wanted_ns; /* when the next one could have; CORE_NS_NEVER: then */
    uint32_t awaited;  /* packets that a grace period waits for; 0: none is under way */
    struct cpu_edf_entry *entries[CPU_BURST_MAX];
    struct group groups[GROUPS];
    core_status statuses[GROUPS]; /* what the engine said to each group */
    struct cpu_scheduler_counters counters;
};

static size_t key_lines(const struct cpu_engine_ops *ops)
{
    return (ops->key_state_bytes + LINE_BYTES - 1) / LINE_BYTES;
}

size_t cpu_stream_bytes(const struct cpu_engine_ops *ops, uint32_t keys)
{
    return sizeof(struct cpu_stream) + keys * key_lines(ops) * LINE_BYTES;
}

core_status cpu_stream_init(struct cpu_stream *stream, const struct cpu_engine_ops *ops,
                            struct cpu_engine *engine, const struct cpu_stream_options *options,
                            const uint8_t *key, const uint8_t iv[CORE_BLOCK_BYTES])
{
    const uint32_t piece_bytes = options->piece_bytes;
    assert(piece_bytes % CORE_BLOCK_BYTES == 0 && piece_bytes > 0 && piece_bytes <= CPU_PIECE_BYTES_MAX);
    memset(stream, 0, sizeof *stream);
    stream->piece_bytes = piece_bytes;
    stream->piece_deadline_ns = options->piece_deadline_ns;
    stream->cipher = options->cipher & 3u;
    stream->decrypts = options->direction == CORE_DIRECTION_DECRYPT;
    stream->records = options->records != CORE_RECORDS_NONE;
    stream->key_lines = (uint8_t)key_lines(ops);
    memcpy(stream->chain, iv, CORE_BLOCK_BYTES);
    return cpu_stream_key_set(stream, ops, engine, 0, key);
}

core_status cpu_stream_key_set(struct cpu_stream *stream, const struct cpu_engine_ops *ops,
                               struct cpu_engine *engine, uint32_t which, const uint8_t *key)
{
    core_status status =
        ops->key_set(engine, cpu_stream_key(stream, which), (enum core_cipher)stream->cipher,
                     stream->decrypts ? CORE_DIRECTION_DECRYPT : CORE_DIRECTION_ENCRYPT, key);
    if (status == CORE_OK)
        stream->keys |= (uint8_t)(1u << which);
    return status;
}

void cpu_stream_key_wipe(struct cpu_stream *stream, const struct cpu_engine_ops *ops, uint32_t which)
{
    if ((stream->keys >> which & 1) != 0)
        ops->key_wipe(cpu_stream_key(stream, which));
    stream->keys &= (uint8_t) ~(1u << which);
}

void cpu_stream_wipe(struct cpu_stream *stream, const struct cpu_engine_ops *ops)
{
    for (uint32_t which = 0; which < CPU_STREAM_KEYS; which++)
        cpu_stream_key_wipe(stream, ops, which);
    core_secret_wipe(stream, sizeof *stream);
}

core_status cpu_scheduler_create(struct cpu_scheduler **scheduler,
                                 const struct cpu_scheduler_options *options, struct core_error *error)
{
    if (options->burst_pieces < 1 || options->burst_pieces > CPU_BURST_MAX) {
        return core_error_set(error, CORE_INVALID, "a burst of %u pieces: 1 to %d are possible",
                              options->burst_pieces, CPU_BURST_MAX);
    }
    struct cpu_scheduler *created = aligned_alloc(LINE_BYTES, (sizeof *created + 63) & ~(size_t)63);
    if (created == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a scheduler");
    memset(created, 0, sizeof *created);
    created->ops = options->ops;
    created->burst_pieces = options->burst_pieces;
    created->burst_bound_ns = options->burst_bound_ns > 0 ? options->burst_bound_ns : CORE_NS_NEVER / 2;
    created->spare_ns = options->spare_ns;
    created->wanted_ns = CORE_NS_NEVER;
    core_status status = options->ops->open(&created->engine, error);
    if (status != CORE_OK)
        goto free_scheduler;
    status = cpu_edf_create(&created->queue, options->far_capacity);
    if (status != CORE_OK) {
        (void)core_error_set(error, status, "no memory for a deadline queue");
        goto close_engine;
    }
    *scheduler = created;
    return CORE_OK;

close_engine:
    options->ops->close(created->engine);
free_scheduler:
    free(created);
    return status;
}

void cpu_scheduler_destroy(struct cpu_scheduler *scheduler)
{
    if (scheduler != NULL) {
        cpu_edf_destroy(scheduler->queue);
        scheduler->ops->close(scheduler->engine);
        free(scheduler);
    }
}

/* The next chain of the packet is that of the record at `from`; empty where nothing of it is encrypted. One record at a
 * time, each a piece of its own: what is passed over takes its time too, and is in the bounds as any piece is. */
static void take_record(struct cpu_packet *packet, uint32_t from)
{
    uint32_t ahead;

    packet->chain_bytes = core_ts_scrambled_bytes(packet->data + from, &ahead);
    packet->offset = from + (packet->chain_bytes > 0 ? ahead : CORE_TS_BYTES);
}

static void push_packet(struct cpu_scheduler *scheduler, struct cpu_packet *packet, core_ns now_ns)
{
    struct cpu_stream *stream = packet->stream;
    packet->next = NULL;
    packet->status = CORE_OK;
    packet->pauses = 0; /* while inside: 1 if a grace period waits for it */
    packet->offset = 0;
    packet->chain_bytes = packet->bytes;
    if (stream->records)
        take_record(packet, 0);
    if (stream->head != NULL) {
        stream->tail->next = packet;
        stream->tail = packet;
        return;
    }
    stream->head = packet;
    stream->tail = packet;
    stream->key = packet->key;
    cpu_edf_push(scheduler->queue, &stream->entry, packet->release_ns + stream->piece_deadline_ns, now_ns);
}

void cpu_scheduler_push(struct cpu_scheduler *scheduler, struct cpu_packet *const *packets, uint32_t count,
                        core_ns now_ns)
{
    scheduler->now_ns = now_ns;
    for (uint32_t i = 0; i < count; i++) {
        if (i + 2 * PUSH_AHEAD < count)
            __builtin_prefetch(packets[i + 2 * PUSH_AHEAD], 1);
        if (i + PUSH_AHEAD < count)
            __builtin_prefetch(packets[i + PUSH_AHEAD]->stream, 1);
        push_packet(scheduler, packets[i], now_ns);
    }
}

static struct cpu_stream *stream_of(struct cpu_edf_entry *entry)
{
    return (struct cpu_stream *)entry;
}

static uint8_t *key_of(struct cpu_stream *stream)
{
    return cpu_stream_key(stream, stream->key);
}

/* Each loop asks for what the next one reads, so that the misses of a whole burst overlap. Keys and payload
 * are the engine's to ask for while it works, but for those that it starts with. */
static inline __attribute__((always_inline)) void burst_prefetch(struct cpu_edf_entry *const *entries,
                                                                 uint32_t count)
{
    uint32_t first = count < FIRST_PIECES ? count : FIRST_PIECES;
    for (uint32_t i = 0; i < count; i++)
        __builtin_prefetch(entries[i], 1);
    for (uint32_t i = 0; i < first; i++)
        for (uint32_t line = 0; line < KEY_LINES; line++)
            __builtin_prefetch(key_of(stream_of(entries[i])) + line * LINE_BYTES);
    for (uint32_t i = 0; i < count; i++)
        __builtin_prefetch(stream_of(entries[i])->head, 1);
    for (uint32_t i = 0; i < first; i++) {
        const struct cpu_packet *packet = stream_of(entries[i])->head;
        __builtin_prefetch(packet->data + packet->offset, 1);
    }
}

static uint32_t piece_bytes(const struct cpu_stream *stream)
{
    const uint32_t left_bytes = stream->head->chain_bytes;
    return left_bytes < stream->piece_bytes ? left_bytes : stream->piece_bytes;
}

static uint32_t group_of(const struct cpu_stream *stream)
{
    return 2u * stream->cipher + stream->decrypts;
}

/* Is the next piece the first of its chain? */
static bool begins_chain(const struct cpu_packet *packet)
{
    return packet->begins_unit && (packet->done_bytes == 0 || packet->fresh);
}

/* Cuts one piece of every stream, by cipher and direction, in the order of the deadlines. Returns their bytes. */
static uint64_t burst_cut(struct cpu_scheduler *scheduler, uint32_t count)
{
    struct cpu_piece *next[GROUPS];
    uint64_t bytes = 0;
    for (uint32_t group = 0; group < GROUPS; group++)
        next[group] = scheduler->groups[group].pieces;
    for (uint32_t i = 0; i < count; i++) {
        struct cpu_stream *stream = stream_of(scheduler->entries[i]);
        struct cpu_packet *packet = stream->head;
        uint8_t *data = packet->data + packet->offset;
        if (packet->chain_bytes == 0)
            continue; /* a record that passes */
        struct cpu_piece *piece = next[group_of(stream)]++;
        if (begins_chain(packet))
            memcpy(stream->chain, packet->data - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
        *piece = (struct cpu_piece){.source = data,
                                    .target = data,
                                    .bytes = piece_bytes(stream),
                                    .chain = stream->chain,
                                    .key = key_of(stream)};
        bytes += piece->bytes;
    }
    for (uint32_t group = 0; group < GROUPS; group++)
        scheduler->groups[group].count = (uint32_t)(next[group] - scheduler->groups[group].pieces);
    return bytes;
}

static void burst_encrypt(struct cpu_scheduler *scheduler)
{
    const struct cpu_engine_ops *ops = scheduler->ops;

    for (uint32_t at = 0; at < GROUPS; at++) {
        struct group *group = &scheduler->groups[at];
        const enum core_cipher cipher = (enum core_cipher)(at / 2);
        if (group->count > 0)
            scheduler->statuses[at] = (at % 2 == 0 ? ops->encrypt : ops->decrypt)(
                scheduler->engine, cipher, group->pieces, group->count);
    }
}

static void counter_add(_Atomic uint64_t *counter, uint64_t value)
{
    /* Relaxed, and no locked instruction: there is one writer, and readers want each figure, not an order. */
    uint64_t old = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, old + value, memory_order_relaxed);
}

/* Begins a grace period with the burst at hand, if it may; it is over at once if no packet goes on after it.
 */
static void grace_begin(struct cpu_scheduler *scheduler, uint32_t count)
{
    if (count == scheduler->burst_pieces || scheduler->awaited > 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (scheduler->entries[i]->key_ns < scheduler->now_ns)
            return;
    for (uint32_t i = 0; i < count; i++) {
        const struct cpu_stream *stream = stream_of(scheduler->entries[i]);
        struct cpu_packet *packet = stream->head;
        packet->pauses = packet->done_bytes + piece_bytes(stream) < packet->bytes;
        scheduler->awaited += packet->pauses != 0;
    }
    if (scheduler->awaited == 0)
        counter_add(&scheduler->counters.pauses, 1);
}

/* Moves the stream on by the piece just encrypted and queues it again if more is pending. Returns the packet
 * that this piece finished, or NULL. */
static struct cpu_packet *stream_advance(struct cpu_scheduler *scheduler, struct cpu_stream *stream,
                                         core_ns now_ns, uint64_t pauses)
{
    struct cpu_packet *packet = stream->head;
    const uint32_t piece = piece_bytes(stream);
    packet->done_bytes += piece;
    packet->offset += piece;
    packet->chain_bytes -= piece;
    packet->fresh = packet->chain_bytes == 0;
    core_status status = scheduler->statuses[group_of(stream)];
    if (status != CORE_OK && piece > 0)
        packet->status = status;
    if (packet->done_bytes < packet->bytes) {
        if (packet->fresh)
            take_record(packet, (packet->offset + CORE_TS_BYTES - 1) / CORE_TS_BYTES * CORE_TS_BYTES);
        cpu_edf_push(scheduler->queue, &stream->entry, stream->entry.key_ns + stream->piece_deadline_ns,
                     now_ns);
        return NULL;
    }
    packet->started_ns = scheduler->now_ns;
    packet->finished_ns = now_ns;
    if (packet->pauses != 0 && --scheduler->awaited == 0)
        counter_add(&scheduler->counters.pauses, 1);
    packet->pauses = pauses;
    stream->head = packet->next;
    if (stream->head != NULL) {
        stream->key = stream->head->key;
        cpu_edf_push(scheduler->queue, &stream->entry, stream->head->release_ns + stream->piece_deadline_ns,
                     now_ns);
    }
    return packet;
}

static void time_add(_Atomic core_ns *counter, core_ns value_ns)
{
    core_ns old_ns = atomic_load_explicit(counter, memory_order_relaxed); /* one writer */
    atomic_store_explicit(counter, old_ns + value_ns, memory_order_relaxed);
}

/* Holds a burst that has just ended against its bound. */
static void count_excess(struct cpu_scheduler *scheduler, core_ns end_ns)
{
    struct cpu_scheduler_counters *counters = &scheduler->counters;
    core_ns begin_ns = scheduler->now_ns;
    core_ns wanted_ns = core_time_min(scheduler->wanted_ns, begin_ns);
    core_ns excess_ns = end_ns - begin_ns - scheduler->burst_bound_ns;
    core_ns lost_ns = end_ns - wanted_ns - scheduler->burst_bound_ns - scheduler->spare_ns;

    scheduler->wanted_ns = CORE_NS_NEVER;
    excess_ns = core_time_max(excess_ns, lost_ns);
    if (excess_ns <= 0)
        return;
    counter_add(&counters->exceeded, 1);
    time_add(&counters->excess_ns, excess_ns);
    time_add(&counters->lost_ns, core_time_max(lost_ns, 0));
}

static void counters_update(struct cpu_scheduler_counters *counters, uint32_t pieces, uint32_t packets,
                            uint64_t bytes, core_ns burst_ns)
{
    counter_add(&counters->bursts, 1);
    counter_add(&counters->pieces, pieces);
    counter_add(&counters->packets, packets);
    counter_add(&counters->bytes, bytes);
    time_add(&counters->busy_ns, burst_ns);
    if (burst_ns > atomic_load_explicit(&counters->burst_max_ns, memory_order_relaxed))
        atomic_store_explicit(&counters->burst_max_ns, burst_ns, memory_order_relaxed);
}

uint32_t cpu_scheduler_burst(struct cpu_scheduler *scheduler, struct cpu_packet **finished, uint32_t *pieces,
                             core_ns (*clock)(void *), void *clock_argument)
{
    uint32_t count = cpu_edf_pop_many(scheduler->queue, scheduler->entries, scheduler->burst_pieces);
    if (pieces != NULL)
        *pieces = count;
    if (count == 0) {
        counter_add(&scheduler->counters.pauses, 1);
        scheduler->wanted_ns = CORE_NS_NEVER;
        return 0;
    }
    burst_prefetch(scheduler->entries, count);
    grace_begin(scheduler, count);
    /* one that is under way began too early for what this burst finishes */
    uint64_t pauses =
        atomic_load_explicit(&scheduler->counters.pauses, memory_order_relaxed) + (scheduler->awaited > 0);
    uint64_t bytes = burst_cut(scheduler, count);
    burst_encrypt(scheduler);
    core_ns now_ns = clock(clock_argument);
    uint32_t finished_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct cpu_stream *stream = stream_of(scheduler->entries[i]);
        struct cpu_packet *packet = stream_advance(scheduler, stream, now_ns, pauses);
        if (packet != NULL)
            finished[finished_count++] = packet;
    }
    counters_update(&scheduler->counters, count, finished_count, bytes, now_ns - scheduler->now_ns);
    count_excess(scheduler, now_ns);
    scheduler->now_ns = now_ns;
    return finished_count;
}

void cpu_scheduler_want(struct cpu_scheduler *scheduler, core_ns wanted_ns)
{
    scheduler->wanted_ns = wanted_ns;
}

core_ns cpu_scheduler_now_ns(const struct cpu_scheduler *scheduler)
{
    return scheduler->now_ns;
}

uint32_t cpu_scheduler_pending(const struct cpu_scheduler *scheduler)
{
    return cpu_edf_size(scheduler->queue);
}

core_ns cpu_scheduler_first_deadline_ns(const struct cpu_scheduler *scheduler)
{
    return cpu_edf_first_ns(scheduler->queue);
}

const struct cpu_scheduler_counters *cpu_scheduler_counters_get(const struct cpu_scheduler *scheduler)
{
    return &scheduler->counters;
}
