/* The backup of a guaranteed stream on a GPU: the unit that serves the stream while the GPU is out of
 * service, with capacity reserved for that failure (partition/admission/admission.h). On the stream's I/O
 * thread, except where said.
 *
 * **Failover.** Packets that were inside the failed GPU come back as plaintext. From the first such packet
 * on all packets wait until the GPU has returned all of them; then all go to the backup, in order, with the
 * chaining value of the last packet that was delivered. Let tau be that time. The backup was admitted for
 * (t, k + ceil((d_g + delta) / t), d - d_g - delta), and gets no more than that: packet n arrives at
 * max(e_n, tau), with e_n after tau - d_g - delta. A backup on a GPU has the key in advance, and takes the
 * packet into its current batch. A backup on a worker releases it at
 *
 *     rel_n = max(e_n, tau, rel_(n-1) + s) + in_ns
 *
 * with the spacing s of that contract. The spacing is carried over from one failure to the next: every
 * packet that the backup gets, in any failure, became eligible at most d_g + delta before, so that all of
 * them together conform.
 *
 * **Failback.** When the GPU has its key again, packets go back to it at an idle moment. If none comes,
 * packets are held until the backup has returned what it has (server/stream/pace.h), but not before all
 * packets that came late to the backup have left it. Then every packet inside the backup came at its
 * eligible time and is back within d - d_g - delta, and the GPU, which was asked for d_g, still keeps d.
 * The reservation stays for the next failure. A second failure before the backlog of a failback with held
 * packets has drained is not covered.
 *
 * Nothing is allocated, locked or logged here. */
#ifndef MILLRACE_SERVER_STREAM_BACKUP_H
#define MILLRACE_SERVER_STREAM_BACKUP_H

#include "core/protocol.h"
#include "partition/admission/admission.h"
#include "server/planner/planner.h"

#include <stdbool.h>

struct server;
struct server_gpu_binding;
struct server_stream;

/* The bound of an accepted stream without a failure, and its backup, as OPENED reports them. Any thread. */
core_ns server_backup_bound_ns(const struct admission_placement *placement);
struct protocol_backup server_backup_report(const struct server *server,
                                            const struct admission_placement *placement);

/* Any thread: the worker of a stream with this reservation; of a stream on a GPU, the worker that its packets
 * go to when they can not go to the GPU. */
uint32_t server_backup_worker(const struct server *server, const struct server_reservation *reservation);

/* Has the stream a backup? Has it a backup on a worker? */
bool server_backup_is_held(const struct server_stream *stream);
bool server_backup_on_worker(const struct server_stream *stream);

/* The shortest latency bound that the stream has at any unit. */
core_ns server_backup_shortest_ns(const struct server_stream *stream);

/* The GPU has failed and returned all packets: what waits comes late to the backup, if the stream has one. */
void server_backup_begin(struct server_stream *stream, core_ns now_ns);

/* Puts what the GPU returned as it was in front of the packets that wait. */
void server_backup_rewind(struct server_stream *stream);

/* When a packet that may go at ready_ns is released to the worker that is the backup. */
core_ns server_backup_release_ns(struct server_stream *stream, core_ns ready_ns);

/* A new contract of the stream is in force, and none of its packets is at its backup. From now on the
 * backup serves the join of both contracts, since packets inside the GPU may be of the old one. (A backup
 * on a GPU needs nothing.) */
void server_backup_modify(struct server_stream *stream, const struct server_backup *backup);

/* Have all packets before packet `first` left? Then the stream needs the join no more, and the backup
 * serves the present contract alone from now on. */
bool server_backup_retire(struct server_stream *stream, uint32_t first);

/* Has the backup returned all packets that came late to it? */
bool server_backup_on_time(const struct server_stream *stream);

#endif
