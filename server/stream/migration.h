/* Which unit a stream's packets go to, and how a stream migrates to another unit. On the stream's I/O
 * thread, except where said.
 *
 * A stream is on one unit at a time: a worker, or a GPU (server/stream/gpu_binding.h) with the best-effort
 * fallback worker behind it. cpu->chain is the authoritative chaining value. The planner decides on a
 * migration, reserves capacity at the new unit, and sends a message; the I/O thread carries it out as
 * server/stream/path.h says, gives back the reservation of the old unit, and returns the message with
 * the outcome. Nothing is allocated, locked or logged here: the message carries all that is needed.
 *
 *   planner --migration--> I/O thread: key to the GPU; an idle moment, or packets held --migration--> planner
 *                                             \--old reservation--> (batcher: the slot) --> planner
 */
#ifndef MILLRACE_SERVER_STREAM_MIGRATION_H
#define MILLRACE_SERVER_STREAM_MIGRATION_H

#include "server/planner/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct server_stream_io;

/* The planner's message to the I/O thread of a stream arrives. */
void server_migration_receive(void *io, struct server_message *message);

/* On the stream's I/O thread: begins a migration; or returns it, if its stream has closed (drop). */
void server_migration_begin(struct server_stream *stream, struct server_migration *migration);
void server_migration_drop(struct server_stream_io *io, struct server_migration *migration);

/* Cancels the migration that belongs to a cancelled MODIFY. */
void server_migration_forget_modify(struct server_stream *stream);

/* The facts about the stream's migration (server/stream/path.h). */
unsigned server_migration_facts(struct server_stream *stream, core_ns now_ns);

/* Nothing is inside the old unit: the stream is on the new one from now on. held: its packets waited for
 * that. */
void server_migration_switch(struct server_stream *stream, bool held, core_ns now_ns);

/* The migration has timed out: the stream stays on its unit. */
void server_migration_give_up(struct server_stream *stream);

/* Returns the stream's migration to the planner if it has ended, unless a key of its binding is still at the
 * batcher. */
void server_migration_return(struct server_stream *stream);

/* The stream is closing and takes no more packets. True: no key of it is at a batcher, so it can be freed. */
bool server_migration_ends(struct server_stream *stream);

/* What was served under the stream's present reservation. */
struct partition_planner_use server_migration_use(const struct server_stream *stream);

/* Gives back the reservation of the unit that the stream is on, with the pause that its release has to wait
 * for. */
void server_migration_give_back(struct server_stream *stream);

#endif
