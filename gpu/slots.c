#include "gpu/slots.h"

#include <stdbool.h>
#include <stdlib.h>

enum state { STATE_FREE, STATE_IN_USE, STATE_LEFT, STATE_CLEARING, STATE_CLEARED };

struct slot {
    uint64_t last_batch; /* left, or later */
    uint32_t position;   /* in the list of leaving slots */
    enum state state;
};

struct gpu_slots {
    uint32_t count, leaving_count, free_count;
    uint32_t free_head;  /* in the ring of free slots: oldest */
    uint64_t delivered;  /* newest batch */
    struct slot *slots;  /* by number */
    uint32_t *leaving;   /* numbers, in any order */
    uint32_t *free_ring; /* numbers */
};

core_status gpu_slots_create(struct gpu_slots **slots, uint32_t count)
{
    struct gpu_slots *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    fresh->count = fresh->free_count = count;
    fresh->slots = calloc(count, sizeof *fresh->slots);
    fresh->leaving = calloc(count, sizeof *fresh->leaving);
    fresh->free_ring = calloc(count, sizeof *fresh->free_ring);
    if (fresh->slots == NULL || fresh->leaving == NULL || fresh->free_ring == NULL) {
        gpu_slots_destroy(fresh);
        return CORE_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++)
        fresh->free_ring[i] = i;
    *slots = fresh;
    return CORE_OK;
}

void gpu_slots_destroy(struct gpu_slots *slots)
{
    if (slots == NULL)
        return;
    free(slots->slots);
    free(slots->leaving);
    free(slots->free_ring);
    free(slots);
}

core_status gpu_slots_allocate(struct gpu_slots *slots, uint32_t *slot)
{
    if (slots->free_count == 0)
        return CORE_FULL;
    *slot = slots->free_ring[slots->free_head];
    slots->free_head = (slots->free_head + 1) % slots->count;
    slots->free_count--;
    slots->slots[*slot] = (struct slot){.state = STATE_IN_USE};
    return CORE_OK;
}

core_status gpu_slots_leave(struct gpu_slots *slots, uint32_t slot, uint64_t last_batch)
{
    if (slot >= slots->count || slots->slots[slot].state != STATE_IN_USE)
        return CORE_INVALID;
    slots->slots[slot] =
        (struct slot){.last_batch = last_batch, .position = slots->leaving_count, .state = STATE_LEFT};
    slots->leaving[slots->leaving_count++] = slot;
    return CORE_OK;
}

uint32_t gpu_slots_clearable(struct gpu_slots *slots, uint64_t submitted, uint32_t *clear, uint32_t room)
{
    uint32_t named = 0;
    for (uint32_t i = 0; i < slots->leaving_count && named < room; i++) {
        struct slot *slot = &slots->slots[slots->leaving[i]];
        if (slot->state != STATE_LEFT || slot->last_batch > submitted)
            continue;
        slot->state = STATE_CLEARING;
        clear[named++] = slots->leaving[i];
    }
    return named;
}

/* Frees a leaving slot that nothing keeps any more; true if it was. The last of the list takes its place. */
static bool settle(struct gpu_slots *slots, uint32_t number)
{
    struct slot *slot = &slots->slots[number];
    if (slot->state != STATE_CLEARED || slot->last_batch > slots->delivered)
        return false;
    uint32_t moved = slots->leaving[--slots->leaving_count];
    slots->leaving[slot->position] = moved;
    slots->slots[moved].position = slot->position;
    slot->state = STATE_FREE;
    uint64_t tail = ((uint64_t)slots->free_head + slots->free_count++) % slots->count;
    slots->free_ring[tail] = number;
    return true;
}

static void settle_all(struct gpu_slots *slots)
{
    uint32_t i = 0;
    while (i < slots->leaving_count)
        if (!settle(slots, slots->leaving[i]))
            i++;
}

core_status gpu_slots_cleared(struct gpu_slots *slots, uint32_t slot)
{
    if (slot >= slots->count || slots->slots[slot].state != STATE_CLEARING)
        return CORE_INVALID;
    slots->slots[slot].state = STATE_CLEARED;
    (void)settle(slots, slot);
    return CORE_OK;
}

void gpu_slots_wiped(struct gpu_slots *slots)
{
    for (uint32_t i = 0; i < slots->leaving_count; i++)
        slots->slots[slots->leaving[i]].state = STATE_CLEARED;
    settle_all(slots);
}

void gpu_slots_delivered(struct gpu_slots *slots, uint64_t batch)
{
    if (batch > slots->delivered)
        slots->delivered = batch;
    settle_all(slots);
}

struct gpu_slots_usage gpu_slots_usage(const struct gpu_slots *slots)
{
    return (struct gpu_slots_usage){.in_use = slots->count - slots->leaving_count - slots->free_count,
                                    .leaving = slots->leaving_count,
                                    .free = slots->free_count};
}
