/* What an I/O thread gives to units and takes from them: packets that are eligible go to their worker or their GPU, the
 * others wait; a worker's are gathered until the end of the turn; what is done goes to its connection. All functions
 * are for the I/O thread. */
#ifndef MILLRACE_SERVER_NET_UNITS_H
#define MILLRACE_SERVER_NET_UNITS_H

#include "server/net/io.h"

/* Hands over a packet that was accepted, if it is eligible; else it waits with its stream. */
void server_units_submit(struct server_io *io, struct server_stream *stream, struct server_packet *packet,
                         core_ns now_ns);

/* The packet, of a stream on a worker, goes to its worker at the end of the turn. */
void server_units_queue(struct server_stream_io *io, struct server_packet *packet);

/* What the stream's packets waited for has come. */
void server_units_release(struct server_stream *stream);

/* Hands over what is eligible by until_ns. */
void server_units_release_waiting(struct server_io *io, core_ns now_ns, core_ns until_ns);

/* To the workers, at the end of a turn. serves: a worker that may be served is not woken yet. */
void server_units_flush(struct server_io *io, bool serves);

/* Serves the workers that were left asleep for that, or wakes them. True: results are to be written. */
bool server_units_serve(struct server_io *io);

/* cpu_worker_poll or cpu_worker_collect (cpu/worker.h). */
typedef uint32_t server_units_collect_fn(struct cpu_worker *worker, uint32_t producer,
                                         struct cpu_packet **packets, uint32_t count);
/* Takes what workers and GPUs have done; of GPUs maybe not all, and then the next turn begins at once. */
void server_units_collect(struct server_io *io, server_units_collect_fn *take);

#endif
