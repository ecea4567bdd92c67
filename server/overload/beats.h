/* Beats: does every thread that keeps promises still go round?
 *
 * The watch (monitor.h) asks each I/O thread, the planner and each batcher by a message, which that thread's
 * loop answers by running it; and wakes each worker, whose counters move with every turn. Who is asked is
 * asked again once the answer is there. A thread that sleeps with nothing to do answers as one that works;
 * one that blocks in a call, spins elsewhere or has lost a wake-up does not. So it is with the thread that
 * writes the log, but that it lives while it waits for the reader: a reader that stops must end nobody.
 * Threads that promise no time and may compute for long are not asked: TLS handshakes, the search for a new
 * plan, the keepers of cards' processes, and the one that frees memory.
 *
 * The watch's thread asks; any thread reads. */
#ifndef MILLRACE_SERVER_OVERLOAD_BEATS_H
#define MILLRACE_SERVER_OVERLOAD_BEATS_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>

struct server;
struct server_beats;

/* Without an answer for so long a thread does not live; nor does the watch that does not ask. */
#define SERVER_BEAT_LATE_NS (2 * CORE_NS_PER_S)

CORE_CHECKED core_status server_beats_create(struct server_beats **beats, struct server *server);
/* Once those who were asked have ended. NULL is fine. */
void server_beats_destroy(struct server_beats *beats);

/* The watch: asks those who have answered. Its own turn is its own beat. */
void server_beats_ask(struct server_beats *beats, core_ns now_ns);

/* Any thread: do all live? If not, *text names one that does not, and for how long. */
bool server_beats_all(const struct server_beats *beats, core_ns now_ns, char *text, size_t size);

#endif
