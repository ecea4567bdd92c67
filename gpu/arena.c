#include "gpu/arena.h"

#include "gpu/grouping.h"
#include "gpu/payload.h"
#include "gpu/reserve.h"

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CACHE_LINE 64

/* A part's word: the batch's low bits, and below them the state of one writer's share of it. The writer
 * changes it by compare-and-swap, the batcher by setting CLOSED, after which it only stays as it is until the
 * batcher opens the arena again. So whether a packet is in the batch is decided at one point. */
#define BATCH_SHIFT 32
#define CLOSED      (UINT64_C(1) << 31)
#define ENTERED     (UINT64_C(1) << 30) /* the writer has set foot in the arena */
#define COUNT_MASK  (ENTERED - 1)

/* An arena's cursor: blocks in the low bits, segments above them, taken by one addition. Only a race of
 * several writers for the last room takes it past a limit, each of them once in a batch's life at most, for
 * less than the arena's own size: it can not spill over (2^28 blocks of at most 63 writers, and the batcher
 * sets it back). It is never lowered: whoever found room below the limit keeps it. */
#define SEGMENT_SHIFT 40
#define BLOCK_MASK    ((UINT64_C(1) << SEGMENT_SHIFT) - 1)

/* One writer's share of one arena. The pages are the writer's, and the batcher's to read once closed. */
struct part {
    alignas(CACHE_LINE) _Atomic uint64_t word;      /* atomic: see above */
    struct gpu_record_page *first_page, *last_page; /* no meaning while there is no packet */
};

struct arena {
    alignas(CACHE_LINE) _Atomic uint64_t cursor; /* atomic: all writers */
    alignas(CACHE_LINE) _Atomic uint32_t pages;  /* atomic: all writers; of records, that are taken */
    alignas(CACHE_LINE) _Atomic uint64_t number; /* atomic: the batch in it; batcher writes, all read */
    _Atomic core_ns start_ns, close_ns; /* atomic: its batch's window; batcher writes, writers read */
    _Atomic uint64_t blocks_most;       /* atomic: its batch's room; batcher writes, writers read */
    _Atomic uint32_t segments_most;     /* the same */
    alignas(CACHE_LINE) _Atomic uint64_t holders; /* atomic: bit h: holder h; each clears its own */
};

/* Counted by one thread, read by any. */
struct writer {
    alignas(CACHE_LINE) _Atomic uint64_t packets, bytes, late, repeated, early, full_bytes, full_segments;
};

struct gpu_arenas {
    alignas(CACHE_LINE) _Atomic uint64_t opened;  /* atomic: batcher writes, all read */
    _Atomic uint64_t closed;                      /* atomic: batcher writes, all read */
    _Atomic uint64_t held_up;                     /* atomic: batcher writes, any reads */
    uint64_t held_up_batch;                       /* batcher's: the last one counted */
    core_ns last_close_ns;                        /* batcher's: of the batch opened last */
    struct gpu_room room;                         /* batcher's: of the next */
    struct gpu_grouping *grouping;                /* batcher's */
    alignas(CACHE_LINE) struct gpu_region region; /* the rest is set before start */
    uint32_t writer_count;
    struct writer *writers;
    struct arena *arenas;
    struct part *parts;            /* by arena, then writer */
    struct gpu_record_page *pages; /* by arena; addresses for all, memory for the region's room */
    size_t pages_bytes;
};

/* Counters have one writing thread each, so no read-modify-write; relaxed: each stands for itself. */
static void count(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
                          memory_order_relaxed);
}

static uint64_t counted(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed); /* relaxed: see count */
}

static uint32_t arena_of(const struct gpu_arenas *arenas, uint64_t batch)
{
    return (uint32_t)(batch % arenas->region.shape.arenas);
}

static struct part *part_of(const struct gpu_arenas *arenas, uint32_t arena, uint32_t writer)
{
    return &arenas->parts[(size_t)arena * arenas->writer_count + writer];
}

/* ---- Creation ---- */

/* Zeroed and touched. */
static void *lines(size_t count_of, size_t bytes)
{
    size_t all = (count_of * bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    void *memory = aligned_alloc(CACHE_LINE, all);
    if (memory != NULL)
        memset(memory, 0, all);
    return memory;
}

/* For so many packets. A writer takes a page for its first packet and one for each that finds the last page
 * full. So those of writers hold GPU_RECORD_PAGE packets each but for one, and the packets have a segment
 * each. */
static size_t pages_for(uint32_t segments, uint32_t writers)
{
    return segments / GPU_RECORD_PAGE + writers;
}

/* Of an arena, whose addresses begin on a page of memory. */
static size_t pages_bytes(uint32_t segments, uint32_t writers)
{
    size_t bytes = pages_for(segments, writers) * sizeof(struct gpu_record_page);
    return (bytes + GPU_REGION_PAGE_BYTES - 1) / GPU_REGION_PAGE_BYTES * GPU_REGION_PAGE_BYTES;
}

static struct gpu_record_page *pages_of(const struct gpu_arenas *arenas, uint32_t arena)
{
    uint8_t *bytes = (uint8_t *)arenas->pages;
    return (struct gpu_record_page *)(bytes + arena * pages_bytes(arenas->region.shape.segments,
                                                                  arenas->writer_count));
}

/* Memory for records of so many packets in each arena, of which there is some for `from`. */
static core_status records_open(struct gpu_arenas *arenas, uint32_t from, uint32_t to,
                                struct core_error *error)
{
    size_t less = from > 0 ? pages_bytes(from, arenas->writer_count) : 0;
    size_t more = pages_bytes(to, arenas->writer_count);
    for (uint32_t arena = 0; arena < arenas->region.shape.arenas && more > less; arena++) {
        uint8_t *at = (uint8_t *)pages_of(arenas, arena) + less;
        if (gpu_reserve_open(at, more - less) != CORE_OK)
            return core_error_errno(error, "GPU arenas: no memory for the records of %u packets", to);
    }
    return CORE_OK;
}

static void records_shut(struct gpu_arenas *arenas, uint32_t less, uint32_t more)
{
    size_t from = pages_bytes(less, arenas->writer_count), to = pages_bytes(more, arenas->writer_count);
    for (uint32_t arena = 0; arena < arenas->region.shape.arenas && to > from; arena++)
        gpu_reserve_shut((uint8_t *)pages_of(arenas, arena) + from, to - from);
}

static core_status records_make(struct gpu_arenas *arenas, struct core_error *error)
{
    const struct gpu_region_shape *shape = &arenas->region.shape;
    arenas->pages_bytes = shape->arenas * pages_bytes(shape->segments, arenas->writer_count);
    arenas->pages = (struct gpu_record_page *)gpu_reserve_create(arenas->pages_bytes);
    if (arenas->pages == NULL)
        return core_error_errno(error, "GPU arenas: no addresses for the records of %u packets",
                                shape->segments);
    return records_open(arenas, 0, arenas->region.room.segments, error);
}

static core_status allocate(struct gpu_arenas *arenas)
{
    const struct gpu_region_shape *shape = &arenas->region.shape;
    size_t part_count = (size_t)shape->arenas * arenas->writer_count;

    arenas->writers = lines(arenas->writer_count, sizeof *arenas->writers);
    arenas->arenas = lines(shape->arenas, sizeof *arenas->arenas);
    arenas->parts = lines(part_count, sizeof *arenas->parts);
    if (arenas->writers == NULL || arenas->arenas == NULL || arenas->parts == NULL)
        return CORE_NO_MEMORY;
    for (size_t i = 0; i < part_count; i++)
        arenas->parts[i].word = CLOSED;
    return gpu_grouping_create(&arenas->grouping, shape->slots, shape->segments,
                               arenas->region.room.segments);
}

core_status gpu_arenas_create(struct gpu_arenas **arenas, const struct gpu_arena_options *options,
                              struct core_error *error)
{
    if (options->writers < 1 || options->writers > GPU_ARENA_WRITERS_MAX)
        return core_error_set(error, CORE_INVALID, "GPU arenas: writers is %u, must be 1 to %u",
                              options->writers, GPU_ARENA_WRITERS_MAX);
    struct gpu_arenas *fresh = lines(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "GPU arenas: no memory");
    core_status status = gpu_region_create(&fresh->region, &options->shape, options->room, error);
    if (status != CORE_OK) {
        free(fresh);
        return status;
    }
    fresh->writer_count = options->writers;
    fresh->last_close_ns = INT64_MIN;
    fresh->room = fresh->region.room;
    status = records_make(fresh, error);
    if (status == CORE_OK && allocate(fresh) != CORE_OK)
        status =
            core_error_set(error, CORE_NO_MEMORY, "GPU arenas: no memory for %u writers", options->writers);
    if (status != CORE_OK)
        gpu_arenas_destroy(fresh);
    else
        *arenas = fresh;
    return status;
}

void gpu_arenas_destroy(struct gpu_arenas *arenas)
{
    if (arenas == NULL)
        return;
    gpu_grouping_destroy(arenas->grouping);
    if (arenas->pages != NULL)
        munmap(arenas->pages, arenas->pages_bytes);
    free(arenas->parts);
    free(arenas->arenas);
    free(arenas->writers);
    gpu_region_close(&arenas->region);
    free(arenas);
}

/* ---- Room ---- */

core_status gpu_arenas_resize(struct gpu_arenas *arenas, const struct gpu_room *room,
                              struct core_error *error)
{
    uint32_t before = arenas->region.room.segments;
    core_status status = records_open(arenas, before, room->segments, error);
    if (status == CORE_OK && room->segments > before &&
        gpu_grouping_resize(arenas->grouping, room->segments) != CORE_OK)
        status =
            core_error_set(error, CORE_SYSTEM, "GPU arenas: no memory to group %u packets", room->segments);
    if (status == CORE_OK)
        status = gpu_region_resize(&arenas->region, room, error);
    records_shut(arenas, arenas->region.room.segments, before > room->segments ? before : room->segments);
    (void)!gpu_grouping_resize(arenas->grouping, arenas->region.room.segments);
    return status;
}

void gpu_arenas_set_room(struct gpu_arenas *arenas, const struct gpu_room *room)
{
    arenas->room = *room;
}

/* What the batch in it was opened with. */
static struct gpu_room room_of(const struct arena *arena)
{
    return (struct gpu_room){
        /* relaxed, both: the batcher's own */
        .bytes = atomic_load_explicit(&arena->blocks_most, memory_order_relaxed) * GPU_BLOCK_BYTES,
        .segments = atomic_load_explicit(&arena->segments_most, memory_order_relaxed)};
}

bool gpu_arenas_within(const struct gpu_arenas *arenas, const struct gpu_room *room)
{
    for (uint32_t i = 0; i < arenas->region.shape.arenas; i++) {
        const struct arena *arena = &arenas->arenas[i];
        const struct gpu_room has = room_of(arena);
        /* acquire: pairs with let_go, whose holder touches it no more */
        if (!gpu_room_holds(room, &has) && atomic_load_explicit(&arena->holders, memory_order_acquire) != 0)
            return false;
    }
    return true;
}

bool gpu_arenas_open_hold(const struct gpu_arenas *arenas, const struct gpu_room *need)
{
    for (uint64_t batch = counted(&arenas->closed) + 1; batch <= counted(&arenas->opened); batch++) {
        const struct gpu_room has = room_of(&arenas->arenas[arena_of(arenas, batch)]);
        if (!gpu_room_holds(&has, need))
            return false;
    }
    return true;
}

uint64_t gpu_arenas_bytes(const struct gpu_region_shape *shape, uint32_t writers, const struct gpu_room *room)
{
    return gpu_region_room_bytes(shape, room) + shape->arenas * pages_bytes(room->segments, writers) +
           shape->arenas * (sizeof(struct arena) + writers * sizeof(struct part)) +
           writers * sizeof(struct writer) + gpu_grouping_bytes(shape->slots, room->segments);
}

/* ---- What any thread may ask ---- */

const struct gpu_region *gpu_arenas_region(const struct gpu_arenas *arenas)
{
    return &arenas->region;
}

struct gpu_arena_counters gpu_arenas_counters(const struct gpu_arenas *arenas)
{
    struct gpu_arena_counters sum = {.opened = counted(&arenas->opened),
                                     .closed = counted(&arenas->closed),
                                     .held_up = counted(&arenas->held_up)};
    for (uint32_t i = 0; i < arenas->writer_count; i++) {
        const struct writer *writer = &arenas->writers[i];
        sum.packets += counted(&writer->packets);
        sum.bytes += counted(&writer->bytes);
        sum.late += counted(&writer->late);
        sum.repeated += counted(&writer->repeated);
        sum.early += counted(&writer->early);
        sum.full_bytes += counted(&writer->full_bytes);
        sum.full_segments += counted(&writer->full_segments);
    }
    return sum;
}

/* Acquire: what the batcher wrote before (windows of open batches, words of closed ones) is seen, too. */
uint64_t gpu_arenas_opened(const struct gpu_arenas *arenas)
{
    return atomic_load_explicit(&arenas->opened, memory_order_acquire);
}

uint64_t gpu_arenas_closed(const struct gpu_arenas *arenas)
{
    return atomic_load_explicit(&arenas->closed, memory_order_acquire);
}

/* ---- Writers ---- */

/* Lets go of an arena; true if it was held. Release: all that this holder read and wrote there comes before
 * the next batch in it (acquired in gpu_arena_open). */
static bool let_go(struct arena *arena, uint32_t holder)
{
    uint64_t bit = UINT64_C(1) << holder;
    return (atomic_fetch_and_explicit(&arena->holders, ~bit, memory_order_release) & bit) != 0;
}

/* Sets batch and arena of the place to the oldest open batch, from `first` on, that takes this eligible time;
 * false: there is none. A window read here may be of a later batch in the same arena: then enter() finds
 * another number there, and we look again. */
static bool find_batch(const struct gpu_arenas *arenas, core_ns eligible_ns, uint64_t first,
                       struct gpu_place *place)
{
    uint64_t opened = gpu_arenas_opened(arenas);
    uint32_t number = arena_of(arenas, first);
    for (uint64_t batch = first; batch <= opened; batch++) {
        /* relaxed: ordered by the acquire of `opened` if it is ours, checked by enter() if not */
        if (eligible_ns <= atomic_load_explicit(&arenas->arenas[number].close_ns, memory_order_relaxed)) {
            *place = (struct gpu_place){.batch = batch, .arena = number};
            return true;
        }
        number = number + 1 < arenas->region.shape.arenas ? number + 1 : 0;
    }
    return false;
}

/* Sets foot in the batch, which keeps its arena from being used again: false if it is closed. */
static bool enter(struct part *part, uint64_t batch)
{
    /* relaxed: only this thread changes the word of an open batch that it has entered */
    uint64_t word = atomic_load_explicit(&part->word, memory_order_relaxed);
    if (word >> BATCH_SHIFT != (batch & UINT32_MAX) || (word & CLOSED) != 0)
        return false;
    /* relaxed: the last holders' work in this arena comes first, because this thread has seen `opened` reach
     * the batch (acquire); on failure nothing there is touched */
    return (word & ENTERED) != 0 ||
           atomic_compare_exchange_strong_explicit(&part->word, &word, word | ENTERED, memory_order_relaxed,
                                                   memory_order_relaxed);
}

/* Takes back the step into the arena if nothing was put there. */
static void leave(struct arena *arena, struct part *part, uint32_t writer)
{
    uint64_t word = atomic_load_explicit(&part->word, memory_order_relaxed); /* relaxed: as in enter */
    if ((word & COUNT_MASK) != 0)
        return;
    /* release: what was copied comes before the next use; relaxed on failure, because let_go releases */
    if ((word & CLOSED) != 0 ||
        !atomic_compare_exchange_strong_explicit(&part->word, &word, word & ~ENTERED, memory_order_release,
                                                 memory_order_relaxed))
        (void)let_go(arena, writer);
}

/* Takes blocks and a segment of the arena: CORE_FULL when there is no room. */
static core_status take_room(struct arena *arena, struct writer *writer, uint32_t bytes,
                             struct gpu_place *place)
{
    /* relaxed, both: written before the batch was opened, and not again while we are in it */
    uint64_t limit = atomic_load_explicit(&arena->blocks_most, memory_order_relaxed);
    uint32_t segments = atomic_load_explicit(&arena->segments_most, memory_order_relaxed);
    uint64_t blocks = bytes / GPU_BLOCK_BYTES;
    /* relaxed, both: the cursor only deals out room; records and payload travel with the part's word */
    uint64_t cursor = atomic_load_explicit(&arena->cursor, memory_order_relaxed);
    bool room = (cursor & BLOCK_MASK) + blocks <= limit && cursor >> SEGMENT_SHIFT < segments;
    if (room)
        cursor = atomic_fetch_add_explicit(&arena->cursor, blocks + (UINT64_C(1) << SEGMENT_SHIFT),
                                           memory_order_relaxed);
    if (cursor >> SEGMENT_SHIFT >= segments) {
        count(&writer->full_segments, 1);
        return CORE_FULL;
    }
    if ((cursor & BLOCK_MASK) + blocks > limit) {
        count(&writer->full_bytes, 1);
        return CORE_FULL;
    }
    place->offset_bytes = (uint32_t)((cursor & BLOCK_MASK) * GPU_BLOCK_BYTES);
    return CORE_OK;
}

/* The writer is in the batch: takes what the packet needs there, or leaves. */
static core_status take_place(struct gpu_arenas *arenas, uint32_t writer, const struct gpu_packet *packet,
                              struct gpu_place *place)
{
    struct arena *arena = &arenas->arenas[place->arena];
    struct part *part = part_of(arenas, place->arena, writer);
    const uint32_t iv_bytes = packet->unit_iv != NULL ? GPU_BLOCK_BYTES : 0;
    core_status status = take_room(arena, &arenas->writers[writer], iv_bytes + packet->bytes, place);
    if (status != CORE_OK) {
        leave(arena, part, writer);
        return status;
    }
    place->input = gpu_region_input(&arenas->region, place->arena) + place->offset_bytes;
    if (iv_bytes > 0)
        memcpy(place->input, packet->unit_iv, iv_bytes);
    place->input += iv_bytes;
    place->offset_bytes += iv_bytes;
    /* relaxed: written before the batch was opened, and not again while we are in it */
    place->late = packet->eligible_ns <= atomic_load_explicit(&arena->start_ns, memory_order_relaxed);
    return CORE_OK;
}

core_status gpu_arena_reserve(struct gpu_arenas *arenas, uint32_t writer, const struct gpu_packet *packet,
                              struct gpu_place *place)
{
    if (packet->slot >= arenas->region.shape.slots || packet->bytes < GPU_BLOCK_BYTES ||
        packet->bytes % GPU_BLOCK_BYTES != 0 || packet->padding_bytes > GPU_BLOCK_BYTES)
        return CORE_INVALID;
    uint64_t closed = gpu_arenas_closed(arenas);
    uint64_t first = closed + 1 > packet->after_batch ? closed + 1 : packet->after_batch;
    while (find_batch(arenas, packet->eligible_ns, first, place)) {
        if (enter(part_of(arenas, place->arena, writer), place->batch))
            return take_place(arenas, writer, packet, place);
        first = place->batch + 1; /* the batcher has just closed it */
    }
    count(&arenas->writers[writer].early, 1);
    return CORE_AGAIN;
}

/* The record of the writer's next packet, of which it has `packets` there. A page that is taken and not used,
 * because the batch is closed first, is the writer's last. */
static struct gpu_record *next_record(struct gpu_arenas *arenas, uint32_t number, struct part *part,
                                      uint32_t packets)
{
    if (packets % GPU_RECORD_PAGE == 0) {
        /* relaxed: it only deals them out; what is in them travels with the part's word */
        uint32_t taken = atomic_fetch_add_explicit(&arenas->arenas[number].pages, 1, memory_order_relaxed);
        struct gpu_record_page *page = &pages_of(arenas, number)[taken];
        assert(taken <
               pages_for(atomic_load_explicit(&arenas->arenas[number].segments_most, /* as in take_room */
                                              memory_order_relaxed),
                         arenas->writer_count));
        if (packets == 0)
            part->first_page = page;
        else
            part->last_page->next = page;
        part->last_page = page;
    }
    return &part->last_page->records[packets % GPU_RECORD_PAGE];
}

core_status gpu_arena_commit(struct gpu_arenas *arenas, uint32_t writer, const struct gpu_packet *packet,
                             const struct gpu_place *place)
{
    struct part *part = part_of(arenas, place->arena, writer);
    struct writer *own = &arenas->writers[writer];
    uint64_t word = atomic_load_explicit(&part->word, memory_order_relaxed); /* relaxed: as in enter */

    if ((word & CLOSED) == 0) {
        struct gpu_record *record = next_record(arenas, place->arena, part, (uint32_t)(word & COUNT_MASK));
        *record = (struct gpu_record){.cookie = packet->cookie,
                                      .offset_bytes = place->offset_bytes,
                                      .bytes = packet->bytes,
                                      .slot = packet->slot,
                                      .key = packet->key,
                                      .begins_unit = packet->unit_iv != NULL,
                                      .alone = packet->alone,
                                      .has_iv = packet->iv != NULL};
        if (packet->iv != NULL)
            memcpy(record->iv, packet->iv, sizeof record->iv);
        /* release: record and payload before the count that covers them (the batcher acquires it when it
         * closes); relaxed on failure: nothing of the batch is touched any more */
        if (atomic_compare_exchange_strong_explicit(&part->word, &word, word + 1, memory_order_release,
                                                    memory_order_relaxed)) {
            count(&own->packets, 1);
            count(&own->bytes, packet->bytes);
            count(&own->late, place->late);
            return CORE_OK;
        }
    }
    leave(&arenas->arenas[place->arena], part, writer);
    count(&own->repeated, 1);
    return CORE_CLOSED;
}

core_status gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer, const struct gpu_packet *packet,
                             struct gpu_place *place)
{
    uint32_t payload_bytes = packet->bytes - packet->padding_bytes;
    core_status status;
    do {
        status = gpu_arena_reserve(arenas, writer, packet, place);
        if (status != CORE_OK)
            return status;
        gpu_payload_write(place->input, packet->payload, payload_bytes);
        memset(place->input + payload_bytes, (int)packet->padding_bytes, packet->padding_bytes);
        status = gpu_arena_commit(arenas, writer, packet, place);
    } while (status == CORE_CLOSED);
    return status;
}

/* ---- The batcher ---- */

static uint64_t all_holders(const struct gpu_arenas *arenas)
{
    return ((UINT64_C(1) << arenas->writer_count) - 1) | UINT64_C(1) << GPU_ARENA_BATCHER;
}

core_status gpu_arena_open(struct gpu_arenas *arenas, core_ns close_ns)
{
    uint64_t batch = counted(&arenas->opened) + 1; /* our own */
    struct arena *arena = &arenas->arenas[arena_of(arenas, batch)];

    if (close_ns <= arenas->last_close_ns)
        return CORE_INVALID;
    /* acquire: pairs with let_go, so that the last use of this arena is over */
    if (atomic_load_explicit(&arena->holders, memory_order_acquire) != 0) {
        if (arenas->held_up_batch != batch)
            count(&arenas->held_up, 1);
        arenas->held_up_batch = batch;
        return CORE_FULL;
    }
    /* relaxed, all: published by `opened` below */
    atomic_store_explicit(&arena->holders, all_holders(arenas), memory_order_relaxed);
    atomic_store_explicit(&arena->cursor, 0, memory_order_relaxed);
    atomic_store_explicit(&arena->pages, 0, memory_order_relaxed);
    atomic_store_explicit(&arena->number, batch, memory_order_relaxed);
    atomic_store_explicit(&arena->start_ns, arenas->last_close_ns, memory_order_relaxed);
    atomic_store_explicit(&arena->close_ns, close_ns, memory_order_relaxed);
    atomic_store_explicit(&arena->blocks_most, arenas->room.bytes / GPU_BLOCK_BYTES, memory_order_relaxed);
    atomic_store_explicit(&arena->segments_most, arenas->room.segments, memory_order_relaxed);
    arenas->last_close_ns = close_ns;
    for (uint32_t i = 0; i < arenas->writer_count; i++)
        atomic_store_explicit(&part_of(arenas, arena_of(arenas, batch), i)->word,
                              (batch & UINT32_MAX) << BATCH_SHIFT, memory_order_relaxed);
    /* release: a writer that sees the batch's number sees its window and its word, and comes after the last
     * holders, whom we have seen let go */
    atomic_store_explicit(&arenas->opened, batch, memory_order_release);
    return CORE_OK;
}

static struct gpu_record_list list_of(const struct part *part, uint64_t word)
{
    uint32_t packets = (uint32_t)(word & COUNT_MASK);
    return (struct gpu_record_list){.page = packets > 0 ? part->first_page : NULL, .left = packets};
}

/* Shuts every writer out and takes what each has put in. Who never came in holds nothing. */
static void shut(struct gpu_arenas *arenas, uint64_t batch, struct gpu_record_list *lists)
{
    uint32_t number = arena_of(arenas, batch);
    for (uint32_t i = 0; i < arenas->writer_count; i++) {
        struct part *part = part_of(arenas, number, i);
        /* acquire: the records that the count covers; release is not needed, we pass on nothing */
        uint64_t word = atomic_fetch_or_explicit(&part->word, CLOSED, memory_order_acquire);
        lists[i] = list_of(part, word);
        if ((word & ENTERED) == 0)
            (void)let_go(&arenas->arenas[number], i);
    }
}

core_status gpu_arena_close(struct gpu_arenas *arenas, struct gpu_arena_batch *batch)
{
    struct gpu_record_list lists[GPU_ARENA_WRITERS_MAX];
    uint64_t number = counted(&arenas->closed) + 1; /* our own, like `opened` */
    uint32_t arena = arena_of(arenas, number);

    if (number > counted(&arenas->opened))
        return CORE_AGAIN;
    shut(arenas, number, lists);
    /* release: whoever sees it closed sees the words closed */
    atomic_store_explicit(&arenas->closed, number, memory_order_release);
    *batch = (struct gpu_arena_batch){
        .number = number,
        .arena = arena,
        .start_ns = atomic_load_explicit(&arenas->arenas[arena].start_ns, memory_order_relaxed), /* our own */
        .close_ns = atomic_load_explicit(&arenas->arenas[arena].close_ns, memory_order_relaxed)};
    gpu_grouping_run(arenas->grouping, lists, arenas->writer_count,
                     gpu_region_segments(&arenas->region, arena), gpu_region_jobs(&arenas->region, arena),
                     batch);
    return CORE_OK;
}

core_status gpu_arena_restart_chain(struct gpu_arenas *arenas, uint32_t slot,
                                    const uint8_t iv[GPU_BLOCK_BYTES])
{
    if (slot >= arenas->region.shape.slots)
        return CORE_INVALID;
    gpu_grouping_restart_chain(arenas->grouping, slot, iv);
    return CORE_OK;
}

/* ---- Closed batches ---- */

/* Is the batch in its arena, and closed? */
static bool is_closed(const struct gpu_arenas *arenas, uint64_t batch)
{
    /* relaxed: a holder sees the number that it holds; any other gets a number that differs */
    return batch != 0 && batch <= gpu_arenas_closed(arenas) &&
           atomic_load_explicit(&arenas->arenas[arena_of(arenas, batch)].number, memory_order_relaxed) ==
               batch;
}

struct gpu_record_list gpu_arena_records(const struct gpu_arenas *arenas, uint32_t writer, uint64_t batch)
{
    if (writer >= arenas->writer_count || !is_closed(arenas, batch))
        return (struct gpu_record_list){0};
    const struct part *part = part_of(arenas, arena_of(arenas, batch), writer);
    /* acquire: the records that the count covers, for one that is not their writer */
    return list_of(part, atomic_load_explicit(&part->word, memory_order_acquire));
}

const uint8_t *gpu_arena_output(const struct gpu_arenas *arenas, uint64_t batch)
{
    return gpu_region_output(&arenas->region, arena_of(arenas, batch));
}

core_status gpu_arena_release(struct gpu_arenas *arenas, uint32_t holder, uint64_t batch)
{
    if (!is_closed(arenas, batch))
        return CORE_INVALID;
    if (holder != GPU_ARENA_BATCHER &&
        gpu_arena_records(arenas, holder, batch).left ==
            0) /* it may be in the middle of an append, which gives the arena back by itself */
        return CORE_INVALID;
    return let_go(&arenas->arenas[arena_of(arenas, batch)], holder) ? CORE_OK : CORE_INVALID;
}
