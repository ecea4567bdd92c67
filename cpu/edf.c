#include "cpu/edf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LEVELS       3
#define BITS         6 /* of the bucket number per level of the bitmap */
#define BUCKETS      (INT64_C(1) << (LEVELS * BITS))
#define BUCKET_SHIFT 12
_Static_assert(CPU_EDF_BUCKET_NS == INT64_C(1) << BUCKET_SHIFT, "a bucket's number is a shift");

/* A tick is a key divided by the bucket's length: its bucket, before it is wrapped. */
struct bucket {
    struct cpu_edf_entry *head, *tail; /* meaningful only while the bucket's bit is set */
};

struct far_entry {
    int64_t tick;
    uint64_t sequence; /* keeps entries of one tick in the order in which they came */
    struct cpu_edf_entry *entry;
};

struct cpu_edf {
    int64_t base_tick; /* earliest tick of the wheel; never beyond the first entry */
    int64_t now_tick;  /* of the last push */
    uint32_t size;
    uint32_t far_size, far_capacity;
    uint64_t far_sequence;
    struct far_entry *far;            /* binary heap, earliest first */
    uint64_t top;                     /* bitmap: which words of middle are not 0 */
    uint64_t middle[1 << BITS];       /* which words of bottom are not 0 */
    uint64_t bottom[1 << (2 * BITS)]; /* which buckets are not empty */
    struct bucket buckets[(size_t)1 << (LEVELS * BITS)];
};

core_status cpu_edf_create(struct cpu_edf **queue, uint32_t far_capacity)
{
    struct cpu_edf *created = aligned_alloc(64, (sizeof *created + 63) & ~(size_t)63);
    if (created == NULL)
        return CORE_NO_MEMORY;
    memset(created, 0, sizeof *created); /* touches every page: no fault later */
    core_status status = cpu_edf_reserve(created, far_capacity);
    if (status != CORE_OK) {
        free(created);
        return status;
    }
    *queue = created;
    return CORE_OK;
}

core_status cpu_edf_reserve(struct cpu_edf *queue, uint32_t far_capacity)
{
    if (far_capacity <= queue->far_capacity)
        return CORE_OK;
    struct far_entry *far = realloc(queue->far, far_capacity * sizeof *far);
    if (far == NULL)
        return CORE_NO_MEMORY;
    memset(far + queue->far_capacity, 0, (far_capacity - queue->far_capacity) * sizeof *far);
    queue->far = far;
    queue->far_capacity = far_capacity;
    return CORE_OK;
}

void cpu_edf_destroy(struct cpu_edf *queue)
{
    if (queue != NULL) {
        free(queue->far);
        free(queue);
    }
}

/* The bitmap. */

static uint32_t bucket_of(int64_t tick)
{
    return (uint32_t)((uint64_t)tick & (BUCKETS - 1));
}

static bool bitmap_test(const struct cpu_edf *queue, uint32_t bucket)
{
    return (queue->bottom[bucket >> BITS] >> (bucket & 63) & 1) != 0;
}

/* A level above changes only with the first bit of a word: usually one store. */
static inline __attribute__((always_inline)) void bitmap_set(struct cpu_edf *queue, uint32_t bucket)
{
    uint64_t *bottom = &queue->bottom[bucket >> BITS];
    if (*bottom == 0) {
        uint64_t *middle = &queue->middle[bucket >> (2 * BITS)];
        if (*middle == 0)
            queue->top |= UINT64_C(1) << (bucket >> (2 * BITS));
        *middle |= UINT64_C(1) << (bucket >> BITS & 63);
    }
    *bottom |= UINT64_C(1) << (bucket & 63);
}

/* Sets one word of the bottom level to what is left of it, at most what it was. */
static void bitmap_reduce(struct cpu_edf *queue, uint32_t word, uint64_t left)
{
    queue->bottom[word] = left;
    if (left == 0) {
        uint64_t *middle = &queue->middle[word >> BITS];
        *middle &= ~(UINT64_C(1) << (word & 63));
        if (*middle == 0)
            queue->top &= ~(UINT64_C(1) << (word >> BITS));
    }
}

/* Bits of word at or above `bit`; none for bit 64. */
static uint64_t bits_from(uint64_t word, uint32_t bit)
{
    return bit > 63 ? 0 : word & (~UINT64_C(0) << bit);
}

static uint32_t lowest(uint64_t word)
{
    return (uint32_t)__builtin_ctzll(word);
}

/* First non-empty bucket at or above `from`, without wrapping; false if there is none. */
static bool bitmap_find(const struct cpu_edf *queue, uint32_t from, uint32_t *bucket)
{
    uint32_t bottom = from >> BITS;
    uint64_t bits = bits_from(queue->bottom[bottom], from & 63);
    if (bits == 0) {
        uint32_t middle = bottom >> BITS;
        bits = bits_from(queue->middle[middle], (bottom & 63) + 1);
        if (bits == 0) {
            bits = bits_from(queue->top, middle + 1);
            if (bits == 0)
                return false;
            middle = lowest(bits);
            bits = queue->middle[middle];
        }
        bottom = middle << BITS | lowest(bits);
        bits = queue->bottom[bottom];
    }
    *bucket = bottom << BITS | lowest(bits);
    return true;
}

/* First non-empty bucket from the base on, around the wheel; false if the wheel is empty. */
static bool wheel_first(const struct cpu_edf *queue, uint32_t *bucket)
{
    return queue->top != 0 &&
           (bitmap_find(queue, bucket_of(queue->base_tick), bucket) || bitmap_find(queue, 0, bucket));
}

static int64_t tick_of_bucket(const struct cpu_edf *queue, uint32_t bucket)
{
    return queue->base_tick + (int64_t)((bucket - bucket_of(queue->base_tick)) & (BUCKETS - 1));
}

static inline __attribute__((always_inline)) void wheel_insert(struct cpu_edf *queue,
                                                               struct cpu_edf_entry *entry, int64_t tick)
{
    uint32_t number = bucket_of(tick);
    struct bucket *bucket = &queue->buckets[number];
    entry->next = NULL;
    if (bitmap_test(queue, number)) {
        bucket->tail->next = entry;
        bucket->tail = entry;
    } else { /* the old contents are not read: a store needs not wait for the cache line */
        bucket->head = entry;
        bucket->tail = entry;
        bitmap_set(queue, number);
    }
}

/* The heap of entries beyond the horizon. */

static bool far_before(const struct far_entry *a, const struct far_entry *b)
{
    return a->tick != b->tick ? a->tick < b->tick : a->sequence < b->sequence;
}

static void far_insert(struct cpu_edf *queue, struct cpu_edf_entry *entry, int64_t tick)
{
    assert(queue->far_size < queue->far_capacity);
    struct far_entry added = {tick, queue->far_sequence++, entry};
    uint32_t hole = queue->far_size++;
    while (hole > 0 && far_before(&added, &queue->far[(hole - 1) / 2])) {
        queue->far[hole] = queue->far[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    queue->far[hole] = added;
}

static struct cpu_edf_entry *far_take(struct cpu_edf *queue)
{
    struct cpu_edf_entry *first = queue->far[0].entry;
    struct far_entry moved = queue->far[--queue->far_size];
    uint32_t hole = 0;
    for (uint32_t child = 1; child < queue->far_size; child = 2 * hole + 1) {
        if (child + 1 < queue->far_size && far_before(&queue->far[child + 1], &queue->far[child]))
            child++;
        if (!far_before(&queue->far[child], &moved))
            break;
        queue->far[hole] = queue->far[child];
        hole = child;
    }
    queue->far[hole] = moved;
    return first;
}

/* Turns the wheel up to now, but not past an entry that still waits: behind the base it would count as one
 * turn later. */
static void wheel_turn(struct cpu_edf *queue, int64_t now_tick)
{
    queue->now_tick = now_tick;
    uint32_t first;
    int64_t base_tick = now_tick;
    if (wheel_first(queue, &first)) {
        int64_t first_tick = tick_of_bucket(queue, first);
        base_tick = first_tick < now_tick ? first_tick : now_tick;
    } else if (queue->far_size > 0 && queue->far[0].tick < now_tick) {
        base_tick = queue->far[0].tick;
    }
    queue->base_tick = base_tick;
    while (queue->far_size > 0 && queue->far[0].tick < base_tick + BUCKETS) {
        int64_t tick = queue->far[0].tick;
        wheel_insert(queue, far_take(queue), tick);
    }
}

/* Any key at any time; apart from the usual case, so that this one is a leaf without calls. */
static __attribute__((noinline)) void push_unusual(struct cpu_edf *queue, struct cpu_edf_entry *entry,
                                                   int64_t tick, int64_t now_tick)
{
    if (now_tick > queue->now_tick)
        wheel_turn(queue, now_tick);
    tick = tick < queue->base_tick ? queue->base_tick : tick;
    if (tick - queue->base_tick < BUCKETS)
        wheel_insert(queue, entry, tick);
    else
        far_insert(queue, entry, tick);
}

void cpu_edf_push(struct cpu_edf *queue, struct cpu_edf_entry *entry, core_ns key_ns, core_ns now_ns)
{
    int64_t tick = key_ns >> BUCKET_SHIFT;
    int64_t now_tick = now_ns >> BUCKET_SHIFT;
    entry->key_ns = key_ns;
    queue->size++;
    if (now_tick <= queue->now_tick && (uint64_t)(tick - queue->base_tick) < (uint64_t)BUCKETS)
        wheel_insert(queue, entry, tick);
    else
        push_unusual(queue, entry, tick, now_tick);
}

/* Takes up to `count` entries of one bucket; *emptied says whether that was all. */
static inline uint32_t bucket_take(struct bucket *bucket, struct cpu_edf_entry **entries, uint32_t count,
                                   bool *emptied)
{
    struct cpu_edf_entry *entry = bucket->head;
    uint32_t taken = 0;
    while (taken < count) {
        entries[taken++] = entry;
        if (entry == bucket->tail) { /* the usual single entry is not touched, only handed out */
            *emptied = true;
            return taken;
        }
        entry = entry->next;
    }
    bucket->head = entry;
    *emptied = false;
    return taken;
}

/* Takes up to `count` entries of the buckets from `bucket` on that share its word of the bitmap. */
static uint32_t word_take(struct cpu_edf *queue, uint32_t bucket, struct cpu_edf_entry **entries,
                          uint32_t count)
{
    uint32_t word = bucket >> BITS;
    uint64_t left = queue->bottom[word];
    uint32_t taken = 0;
    for (uint64_t bits = bits_from(left, bucket & 63); bits != 0 && taken < count; bits &= bits - 1) {
        bool emptied;
        taken += bucket_take(&queue->buckets[word << BITS | lowest(bits)], entries + taken, count - taken,
                             &emptied);
        left &= emptied ? ~(bits & -bits) : ~UINT64_C(0);
    }
    bitmap_reduce(queue, word, left);
    return taken;
}

uint32_t cpu_edf_pop_many(struct cpu_edf *queue, struct cpu_edf_entry **entries, uint32_t count)
{
    uint32_t taken = 0;
    uint32_t bucket;
    while (taken < count && wheel_first(queue, &bucket))
        taken += word_take(queue, bucket, entries + taken, count - taken);
    while (taken < count && queue->far_size > 0) /* whatever is beyond the horizon comes after the wheel */
        entries[taken++] = far_take(queue);
    queue->size -= taken;
    return taken;
}

core_ns cpu_edf_first_ns(const struct cpu_edf *queue)
{
    uint32_t bucket;
    if (wheel_first(queue, &bucket))
        return queue->buckets[bucket].head->key_ns;
    return queue->far_size > 0 ? queue->far[0].entry->key_ns : CORE_NS_NEVER;
}

uint32_t cpu_edf_size(const struct cpu_edf *queue)
{
    return queue->size;
}
