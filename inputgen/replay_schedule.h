/* When to send what: a heap of (time, item), the earliest on top.
 *
 * Four children a node, so that a level is one cache line: moving the top among 10,000 streams touches seven
 * lines. Items with equal times leave in no particular order. Memory is reserved up front; nothing here
 * allocates afterwards. One thread. */
#ifndef MILLRACE_INPUTGEN_REPLAY_SCHEDULE_H
#define MILLRACE_INPUTGEN_REPLAY_SCHEDULE_H

#include "core/status.h"
#include "core/time.h"

#include <stddef.h>

struct inputgen_schedule_entry {
    core_ns time_ns;
    void *item;
};

struct inputgen_schedule {
    struct inputgen_schedule_entry *heap;
    size_t count, capacity;
};

CORE_CHECKED core_status inputgen_schedule_init(struct inputgen_schedule *schedule, size_t capacity);
void inputgen_schedule_free(struct inputgen_schedule *schedule);

/* There must be room: count < capacity. */
void inputgen_schedule_push(struct inputgen_schedule *schedule, core_ns time_ns, void *item);

/* Time of the top; CORE_NS_NEVER if the heap is empty. */
core_ns inputgen_schedule_next_ns(const struct inputgen_schedule *schedule);

/* The top item; the heap must not be empty. */
void *inputgen_schedule_top(const struct inputgen_schedule *schedule);

/* Gives the top item a new time, not earlier than the one it has. */
void inputgen_schedule_move_top(struct inputgen_schedule *schedule, core_ns time_ns);
void inputgen_schedule_pop(struct inputgen_schedule *schedule);

#endif
