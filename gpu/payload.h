/* Writing a payload into an arena, which its writer does not read again: a device does, or another thread.
 *
 * A long one goes around the caches. An ordinary store of a line that no cache holds reads that line from
 * memory first, and puts out others that somebody may want; a non-temporal store does neither. What it costs
 * instead is the wait for the end of the stores, about 80 ns a payload, so that short ones go the ordinary
 * way (docs/results.md, "The way of a byte").
 *
 * Where the processor has no such stores, and under ThreadSanitizer, which does not see them, all payloads go
 * the ordinary way. */
#ifndef MILLRACE_GPU_PAYLOAD_H
#define MILLRACE_GPU_PAYLOAD_H

#include <stdint.h>

#define GPU_PAYLOAD_LONG_BYTES 4096u /* from so many on, around the caches */

/* Any thread, for memory that it alone writes. Whoever sees what the caller does after it, by an acquire that
 * pairs with a release of the caller's, sees all of the payload. The two do not overlap. */
void gpu_payload_write(uint8_t *input, const uint8_t *payload, uint32_t bytes);

#endif
