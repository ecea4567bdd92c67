/* Heartbeats: does the loop of every thread with a deadline still run?
 *
 * The overload monitor (monitor.h) sends each I/O thread, the planner and each batcher a message, which the
 * loop of that thread answers by running it; and it wakes each worker, whose counters change with every turn
 * of its loop. A thread is sent its next message once it has answered the last one. A thread that sleeps with
 * nothing to do answers like a busy one; a thread that blocks in a call, spins outside of its loop or has
 * lost a wake-up does not answer. An I/O thread that has delivered all of a server that drains, and has
 * ended, need not. The thread that writes the log is checked, too, but counts as alive while it waits for the
 * reader of the log, so that a reader that stops does not make the server unhealthy. Threads that have no
 * deadline and may compute for long are not checked: TLS handshakes, the search for a new plan, the keepers
 * of the GPU processes, and the thread that frees memory.
 *
 * The overload monitor's thread asks; any thread reads. */
#ifndef MILLRACE_SERVER_OVERLOAD_BEATS_H
#define MILLRACE_SERVER_OVERLOAD_BEATS_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>

struct server;
struct server_beats;

/* A thread that has not answered for this long counts as dead; so does the monitor if it has not asked. */
#define SERVER_BEAT_LATE_NS (2 * CORE_NS_PER_S)

CORE_CHECKED core_status server_beats_create(struct server_beats **beats, struct server *server);
/* To be called once the threads that were asked have ended. NULL is fine. */
void server_beats_destroy(struct server_beats *beats);

/* Monitor thread: asks the threads that have answered. Its own beat is this call. */
void server_beats_ask(struct server_beats *beats, core_ns now_ns);

/* Any thread: are all alive? If not, *text names a thread that is not, and since how long. */
bool server_beats_all(const struct server_beats *beats, core_ns now_ns, char *text, size_t size);

#endif
