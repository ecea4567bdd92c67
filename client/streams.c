#include "client/streams.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 16

/* Where an id is looked for first. Servers give the lowest number that is free: no two of `capacity` ids in a row have
 * the same home, since the factor is odd, and in larger tables neighbours lie apart, so that runs are short. */
static size_t home_of(const struct client_streams *streams, uint32_t id)
{
    return id * UINT32_C(2654435761) & (streams->capacity - 1);
}

/* The slot that has the id, or the free one where it would go. */
static struct client_stream *probe(const struct client_streams *streams, uint32_t id)
{
    size_t mask = streams->capacity - 1;
    size_t slot = home_of(streams, id);
    while (streams->slots[slot].id != 0 && streams->slots[slot].id != id)
        slot = (slot + 1) & mask;
    return &streams->slots[slot];
}

core_status client_streams_reserve(struct client_streams *streams, size_t count)
{
    size_t capacity = streams->capacity == 0 ? CAPACITY_MIN : streams->capacity;
    while (capacity <= 2 * count)
        capacity *= 2;
    if (capacity == streams->capacity)
        return CORE_OK;
    const size_t bytes = capacity * sizeof *streams->slots;
    struct client_streams larger = {aligned_alloc(alignof(struct client_stream), bytes), capacity,
                                    streams->count};
    if (larger.slots == NULL)
        return CORE_NO_MEMORY;
    memset(larger.slots, 0, bytes);
    for (size_t i = 0; i < streams->capacity; i++)
        if (streams->slots[i].id != 0)
            *probe(&larger, streams->slots[i].id) = streams->slots[i];
    free(streams->slots);
    *streams = larger;
    return CORE_OK;
}

void client_streams_prefetch(const struct client_streams *streams, uint32_t id)
{
    if (streams->capacity > 0)
        __builtin_prefetch(&streams->slots[home_of(streams, id)], 1);
}

struct client_stream *client_streams_find(const struct client_streams *streams, uint32_t id)
{
    if (streams->capacity == 0 || id == 0)
        return NULL;
    struct client_stream *stream = probe(streams, id);
    return stream->id == id ? stream : NULL;
}

struct client_stream *client_streams_insert(struct client_streams *streams, uint32_t id)
{
    assert(streams->capacity > 2 * streams->count);
    if (id == 0)
        return NULL;
    struct client_stream *stream = probe(streams, id);
    if (stream->id == id)
        return NULL;
    *stream = (struct client_stream){.id = id};
    streams->count++;
    return stream;
}

/* Moves later streams of the same run back into the gap, so that no look-up stops short of them. */
void client_streams_remove(struct client_streams *streams, struct client_stream *stream)
{
    size_t mask = streams->capacity - 1;
    size_t gap = (size_t)(stream - streams->slots);
    streams->count--;
    for (size_t slot = (gap + 1) & mask; streams->slots[slot].id != 0; slot = (slot + 1) & mask) {
        size_t home = home_of(streams, streams->slots[slot].id);
        if (((slot - home) & mask) >= ((slot - gap) & mask)) {
            streams->slots[gap] = streams->slots[slot];
            gap = slot;
        }
    }
    streams->slots[gap].id = 0;
}

void client_streams_free(struct client_streams *streams)
{
    free(streams->slots);
    *streams = (struct client_streams){0};
}
