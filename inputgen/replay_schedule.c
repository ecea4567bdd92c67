#include "inputgen/replay_schedule.h"

#include <assert.h>
#include <stdlib.h>

#define CHILDREN 4

core_status inputgen_schedule_init(struct inputgen_schedule *schedule, size_t capacity)
{
    *schedule = (struct inputgen_schedule){.capacity = capacity};
    schedule->heap = calloc(capacity ? capacity : 1, sizeof *schedule->heap);
    return schedule->heap ? CORE_OK : CORE_NO_MEMORY;
}

void inputgen_schedule_free(struct inputgen_schedule *schedule)
{
    free(schedule->heap);
    *schedule = (struct inputgen_schedule){0};
}

void inputgen_schedule_push(struct inputgen_schedule *schedule, core_ns time_ns, void *item)
{
    struct inputgen_schedule_entry *heap = schedule->heap;
    assert(schedule->count < schedule->capacity);
    size_t hole = schedule->count++;
    while (hole > 0 && heap[(hole - 1) / CHILDREN].time_ns > time_ns) {
        heap[hole] = heap[(hole - 1) / CHILDREN];
        hole = (hole - 1) / CHILDREN;
    }
    heap[hole] = (struct inputgen_schedule_entry){time_ns, item};
}

core_ns inputgen_schedule_next_ns(const struct inputgen_schedule *schedule)
{
    return schedule->count ? schedule->heap[0].time_ns : CORE_NS_NEVER;
}

void *inputgen_schedule_top(const struct inputgen_schedule *schedule)
{
    assert(schedule->count > 0);
    return schedule->heap[0].item;
}

/* Puts `entry` where the hole at the top sinks to. */
static void sift_down(struct inputgen_schedule *schedule, struct inputgen_schedule_entry entry)
{
    struct inputgen_schedule_entry *heap = schedule->heap;
    size_t hole = 0;
    for (;;) {
        size_t first = hole * CHILDREN + 1, best = first;
        size_t end = first + CHILDREN < schedule->count ? first + CHILDREN : schedule->count;
        for (size_t child = first + 1; child < end; child++)
            if (heap[child].time_ns < heap[best].time_ns)
                best = child;
        if (first >= schedule->count || heap[best].time_ns >= entry.time_ns)
            break;
        heap[hole] = heap[best];
        hole = best;
    }
    heap[hole] = entry;
}

void inputgen_schedule_move_top(struct inputgen_schedule *schedule, core_ns time_ns)
{
    assert(schedule->count > 0 && time_ns >= schedule->heap[0].time_ns);
    sift_down(schedule, (struct inputgen_schedule_entry){time_ns, schedule->heap[0].item});
}

void inputgen_schedule_pop(struct inputgen_schedule *schedule)
{
    assert(schedule->count > 0);
    struct inputgen_schedule_entry last = schedule->heap[--schedule->count];
    if (schedule->count > 0)
        sift_down(schedule, last);
}
