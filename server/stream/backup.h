/* The backup of a guaranteed stream on a GPU: the unit that its packets go to while the GPU is lost, where
 * room is held for just that (partition/admission/admission.h). On the stream's I/O thread, except where
 * said.
 *
 * **There.** What was inside the lost GPU comes back as plaintext. From the first such packet on the others
 * wait, until the GPU has returned all; then all go to the backup, in order, with the chaining value of the
 * last one that was delivered. Let that be at tau. The backup was asked for (t, k + ceil((d_g + delta) / t),
 * d - d_g - delta), and what comes to it is no more: packet n comes at max(e_n, tau), with e_n after
 * tau - d_g - delta. On another GPU that is what its batches were asked for: it has the key beforehand, and
 * takes the packet in the batch of that moment. On a worker it is released at
 *
 *     rel_n = max(e_n, tau, rel_(n-1) + s) + in_ns
 *
 * with the spacing s of that contract, which is carried over from one loss to the next: whatever comes to the
 * backup in whatever losses was eligible no more than d_g + delta before, so that all of it together
 * conforms.
 *
 * **Back.** When the card has its key again packets go back to it at an idle moment. Where none comes they
 * are held until the backup has returned what it has (server/stream/transfer.h), but not before all that came
 * late to the backup has left it: then whatever is inside came at its eligible time, and is back within d -
 * d_g - delta, and the card, which was asked for d_g, still keeps d. The backup's room stays held, for the
 * next loss; one that comes before the lag of a return by holding has worn off is not covered.
 *
 * Nothing is allocated, locked or logged here. */
#ifndef MILLRACE_SERVER_STREAM_BACKUP_H
#define MILLRACE_SERVER_STREAM_BACKUP_H

#include "core/protocol.h"
#include "partition/admission/admission.h"
#include "server/planner/planner.h"

#include <stdbool.h>

struct server;
struct server_gpu_stream;
struct server_stream;

/* What a client is told of an accepted stream: its bound while there is no loss, and its backup. Any thread.
 */
core_ns server_backup_bound_ns(const struct partition_standing_placement *placement);
struct protocol_backup server_backup_tell(const struct server *server,
                                          const struct partition_standing_placement *placement);

/* Any thread: the worker that a stream with this grant is on; of a stream on a GPU the one that its packets
 * go to where they can not go to the card. */
uint32_t server_backup_worker(const struct server *server, const struct server_grant *grant);

/* Has the stream a backup? Is that on a worker? */
bool server_backup_is_held(const struct server_stream *stream);
bool server_backup_on_worker(const struct server_stream *stream);

/* The shortest latency bound that any unit is asked for by the stream. */
core_ns server_backup_shortest_ns(const struct server_stream *stream);

/* The card is lost and has returned all: puts what it had in front of what waits. */
void server_backup_begin(struct server_stream *stream, core_ns now_ns);

/* When a packet that may go at ready_ns is released to the worker that is the backup. */
core_ns server_backup_release_ns(struct server_stream *stream, core_ns ready_ns);

/* The stream has another contract in force, nothing of it is at its backup, which is served as for the join
 * of both from now on: what is inside the card may be of the old one. (A GPU serves any contract alike.) */
void server_backup_change(struct server_stream *stream, const struct server_backup *backup);

/* Has all left that came before packet `first`, so that the join is over as far as the stream goes? Then the
 * backup is served as for the present contract alone. */
bool server_backup_settle(struct server_stream *stream, uint32_t first);

/* Is all inside the backup that came late to it back? */
bool server_backup_on_time(const struct server_stream *stream);

#endif
