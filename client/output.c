#include "client/output.h"

#include "core/secret.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

size_t client_output_waiting(const struct client_output *output)
{
    return output->end - output->begin + output->wrapped;
}

static size_t grown_capacity(const struct client_output *output, size_t needed)
{
    size_t capacity = output->capacity == 0 ? CLIENT_OUTPUT_BYTES_MIN : output->capacity * 2;
    while (capacity < needed)
        capacity *= 2;
    return capacity;
}

/* Moves everything, in order, to the front of a larger buffer. */
static core_status grow(struct client_output *output, size_t bytes)
{
    size_t waiting = client_output_waiting(output);
    if (output->capacity == CLIENT_OUTPUT_BYTES_MAX || waiting + bytes > CLIENT_OUTPUT_BYTES_MAX)
        return CORE_FULL;
    struct client_output larger = {.capacity = grown_capacity(output, waiting + bytes),
                                   .secret = output->secret};
    larger.bytes = malloc(larger.capacity);
    if (larger.bytes == NULL)
        return CORE_NO_MEMORY;
    struct iovec parts[2];
    int count = client_output_parts(output, parts);
    for (int i = 0; i < count; i++) {
        memcpy(larger.bytes + larger.end, parts[i].iov_base, parts[i].iov_len);
        larger.end += parts[i].iov_len;
    }
    client_output_free(output);
    *output = larger;
    return CORE_OK;
}

/* What waits goes to the front, where it and as much again have room: so a buffer that never runs empty does
 * not grow for that, and a byte is moved once for each that has left. */
static bool close_up(struct client_output *output, size_t bytes)
{
    const size_t waiting = output->end - output->begin;
    if (output->wrapped > 0 || waiting + bytes > output->capacity / 2)
        return false;
    memmove(output->bytes, output->bytes + output->begin, waiting);
    if (output->secret)
        core_secret_wipe(output->bytes + waiting, output->end - waiting);
    output->begin = 0;
    output->end = waiting;
    return true;
}

core_status client_output_append(struct client_output *output, size_t bytes, uint8_t **room)
{
    for (;;) {
        if (output->wrapped == 0 && output->capacity - output->end >= bytes) {
            *room = output->bytes + output->end;
            output->end += bytes;
            return CORE_OK;
        }
        if (close_up(output, bytes))
            continue;
        if (output->capacity == CLIENT_OUTPUT_BYTES_MAX && output->begin - output->wrapped >= bytes) {
            *room = output->bytes + output->wrapped;
            output->wrapped += bytes;
            return CORE_OK;
        }
        core_status status = grow(output, bytes);
        if (status)
            return status;
    }
}

int client_output_parts(const struct client_output *output, struct iovec parts[2])
{
    if (output->end == output->begin)
        return 0;
    parts[0] = (struct iovec){output->bytes + output->begin, output->end - output->begin};
    parts[1] = (struct iovec){output->bytes, output->wrapped};
    return output->wrapped > 0 ? 2 : 1;
}

void client_output_consume(struct client_output *output, size_t bytes)
{
    assert(bytes <= client_output_waiting(output));
    size_t first = output->end - output->begin;
    if (bytes < first) {
        output->begin += bytes;
    } else if (output->wrapped > 0) {
        output->begin = bytes - first;
        output->end = output->wrapped;
        output->wrapped = 0;
    } else {
        output->begin = output->end;
    }
    if (output->begin == output->end)
        client_output_discard(output);
}

void client_output_discard(struct client_output *output)
{
    if (output->secret && output->bytes != NULL)
        core_secret_wipe(output->bytes, output->capacity);
    output->secret = false;
    output->begin = output->end = output->wrapped = 0;
}

void client_output_free(struct client_output *output)
{
    client_output_discard(output);
    free(output->bytes);
    *output = (struct client_output){0};
}
