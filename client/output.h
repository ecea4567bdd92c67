/* Frames waiting to be written: a buffer that grows to CLIENT_OUTPUT_BYTES_MAX and then is a ring.
 *
 * A frame lies in one piece, so that its maker can fill it in place. What waits is therefore one or two
 * regions: [begin, end), and, when the rest of the buffer had no room for a frame, [0, wrapped) after it.
 * Not thread-safe; under the connection's lock. */
#ifndef MILLRACE_CLIENT_OUTPUT_H
#define MILLRACE_CLIENT_OUTPUT_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define CLIENT_OUTPUT_BYTES_MIN ((size_t)64 << 10)
#define CLIENT_OUTPUT_BYTES_MAX ((size_t)8 << 20)

struct client_output {
    uint8_t *bytes;
    size_t capacity;
    size_t begin, end, wrapped;
    bool secret; /* a key is or was among the frames: wipe what leaves */
};

/* Appends room for `bytes` and counts it as waiting; to be filled before anything else is called. CORE_FULL
 * when the ring has no such room, CORE_NO_MEMORY when it can not grow. */
CORE_CHECKED core_status client_output_append(struct client_output *output, size_t bytes, uint8_t **room);

/* The waiting regions, in order; returns how many (0 to 2). */
int client_output_parts(const struct client_output *output, struct iovec parts[2]);

/* The first `bytes` of what waits were written. */
void client_output_consume(struct client_output *output, size_t bytes);

size_t client_output_waiting(const struct client_output *output);
void client_output_discard(struct client_output *output); /* empty, wiped if secret */
void client_output_free(struct client_output *output);

#endif
