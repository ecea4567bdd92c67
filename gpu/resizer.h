/* Changes the room of arenas (gpu/region.h) on a thread of ordinary priority, for a real-time thread that must
 * not wait for memory: the server's batcher, and the loop of the child.
 *
 * One thread makes all calls, the owner's. None of them but stop waits for anything. */
#ifndef MILLRACE_GPU_RESIZER_H
#define MILLRACE_GPU_RESIZER_H

#include "gpu/region.h"

struct gpu_resizer;

/* What does it, on the resizer's thread. CORE_OK, or the room is what it was. */
typedef core_status gpu_resize(void *context, const struct gpu_room *room, struct core_error *error);

/* `wake` is an eventfd, written to when a change is done or has failed. */
CORE_CHECKED core_status gpu_resizer_start(struct gpu_resizer **resizer, gpu_resize *resize, void *context,
                                           int wake, struct core_error *error);

/* Asks for this room. Not while one is asked for. */
void gpu_resizer_ask(struct gpu_resizer *resizer, const struct gpu_room *room);

/* The outcome, once. CORE_AGAIN: there is none yet. */
CORE_CHECKED core_status gpu_resizer_done(struct gpu_resizer *resizer, struct core_error *error);

/* Waits for a change that is under way, whose outcome is lost. NULL is fine. */
void gpu_resizer_stop(struct gpu_resizer *resizer);

#endif
