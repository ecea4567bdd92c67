/* Advances a stream's failover, migration and renegotiation: finds the facts for the path machine
 * (server/stream/path.h), carries out its steps, and lets a new contract come into force. On the stream's I/O
 * thread. Nothing is allocated, locked or logged. */
#ifndef MILLRACE_SERVER_STREAM_ADVANCE_H
#define MILLRACE_SERVER_STREAM_ADVANCE_H

#include "core/time.h"

#include <stdbool.h>

struct server_stream;

/* To be called whenever something may have happened that the path or a renegotiation waits for: a packet has
 * come back, a key has arrived at a GPU or is lost, a migration has begun, time has passed. Cheap where
 * nothing is wanted. Packets that may go are let go at the end of the I/O thread's turn; the stream does not
 * end here. */
void server_stream_advance(struct server_stream *stream, core_ns now_ns);

/* Do the stream's packets go to a GPU, or wait for one to return what it has? */
bool server_stream_on_gpu(const struct server_stream *stream);

/* Has the stream failed over: do its packets go to another unit than its GPU? */
bool server_stream_failed_over(const struct server_stream *stream);

#endif
