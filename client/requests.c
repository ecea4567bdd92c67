#include "client/requests.h"

#include <stdlib.h>

#define CAPACITY_MIN 16

static core_status grow(struct client_requests *requests)
{
    if (requests->capacity == CLIENT_REQUESTS_MAX)
        return CORE_FULL;
    uint16_t capacity = requests->capacity == 0 ? CAPACITY_MIN : (uint16_t)(requests->capacity * 2);
    struct client_request *slots = realloc(requests->slots, capacity * sizeof *slots);
    if (slots == NULL)
        return CORE_NO_MEMORY;
    for (uint16_t i = requests->capacity; i < capacity; i++)
        slots[i] = (struct client_request){.id = i, .next_free = (uint16_t)(i + 1)};
    requests->slots = slots;
    requests->first_free = requests->capacity;
    requests->capacity = capacity;
    return CORE_OK;
}

/* Only a table without a free slot grows, so the new slots are the whole list of free ones. */
core_status client_requests_add(struct client_requests *requests, enum protocol_type type,
                                struct client_request **request)
{
    if (requests->first_free == requests->capacity) {
        core_status status = grow(requests);
        if (status)
            return status;
    }
    struct client_request *slot = &requests->slots[requests->first_free];
    requests->first_free = slot->next_free;
    requests->count++;
    *slot = (struct client_request){.id = slot->id + CLIENT_REQUESTS_MAX, .type = type};
    *request = slot;
    return CORE_OK;
}

struct client_request *client_requests_find(const struct client_requests *requests, uint32_t id)
{
    uint32_t slot = id % CLIENT_REQUESTS_MAX;
    if (slot >= requests->capacity)
        return NULL;
    struct client_request *request = &requests->slots[slot];
    return request->type != 0 && request->id == id ? request : NULL;
}

void client_requests_remove(struct client_requests *requests, struct client_request *request)
{
    request->type = 0;
    request->next_free = requests->first_free;
    requests->first_free = (uint16_t)(request - requests->slots);
    requests->count--;
}

void client_requests_free(struct client_requests *requests)
{
    free(requests->slots);
    *requests = (struct client_requests){0};
}
