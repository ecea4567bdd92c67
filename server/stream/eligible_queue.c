#include "server/stream/eligible_queue.h"

#include <assert.h>
#include <stdlib.h>

core_status server_eligible_queue_reserve(struct server_eligible_queue *waiting, size_t waiters)
{
    if (waiters <= waiting->capacity)
        return CORE_OK;
    size_t capacity = waiting->capacity == 0 ? 64 : waiting->capacity;
    while (capacity < waiters)
        capacity *= 2;
    struct server_waiter **heap = realloc(waiting->heap, (capacity + 1) * sizeof(struct server_waiter *));
    if (heap == NULL)
        return CORE_NO_MEMORY;
    waiting->heap = heap;
    waiting->capacity = capacity;
    return CORE_OK;
}

void server_eligible_queue_free(struct server_eligible_queue *waiting)
{
    free(waiting->heap);
    *waiting = (struct server_eligible_queue){0};
}

static void place(struct server_eligible_queue *waiting, struct server_waiter *waiter, size_t position)
{
    waiting->heap[position] = waiter;
    waiter->position = position;
}

static void move_up(struct server_eligible_queue *waiting, struct server_waiter *waiter, size_t position)
{
    while (position > 1 && waiting->heap[position / 2]->eligible_ns > waiter->eligible_ns) {
        place(waiting, waiting->heap[position / 2], position);
        position /= 2;
    }
    place(waiting, waiter, position);
}

static void move_down(struct server_eligible_queue *waiting, struct server_waiter *waiter, size_t position)
{
    for (;;) {
        size_t child = 2 * position;
        if (child > waiting->count)
            break;
        if (child < waiting->count &&
            waiting->heap[child + 1]->eligible_ns < waiting->heap[child]->eligible_ns)
            child++;
        if (waiting->heap[child]->eligible_ns >= waiter->eligible_ns)
            break;
        place(waiting, waiting->heap[child], position);
        position = child;
    }
    place(waiting, waiter, position);
}

void server_eligible_queue_add(struct server_eligible_queue *waiting, struct server_waiter *waiter,
                               core_ns eligible_ns)
{
    assert(waiter->position == 0 && waiting->count < waiting->capacity);
    waiter->eligible_ns = eligible_ns;
    move_up(waiting, waiter, ++waiting->count);
}

void server_eligible_queue_remove(struct server_eligible_queue *waiting, struct server_waiter *waiter)
{
    size_t position = waiter->position;
    if (position == 0)
        return;
    struct server_waiter *last = waiting->heap[waiting->count--];
    waiter->position = 0;
    if (last == waiter)
        return;
    if (position > 1 && waiting->heap[position / 2]->eligible_ns > last->eligible_ns)
        move_up(waiting, last, position);
    else
        move_down(waiting, last, position);
}

struct server_waiter *server_eligible_queue_first(const struct server_eligible_queue *waiting)
{
    return waiting->count == 0 ? NULL : waiting->heap[1];
}
