/* NOTICE frames: tell a client that a stream has lost its guarantee with its GPU, has it again, or was
 * migrated. On the stream's I/O thread. Nothing is allocated: a stream has memory for one notice; while
 * that waits to be written, a newer notice replaces it, but DEGRADED is always sent first. */
#ifndef MILLRACE_SERVER_STREAM_NOTIFICATION_H
#define MILLRACE_SERVER_STREAM_NOTIFICATION_H

#include "core/protocol.h"

#include <stdbool.h>
#include <stdint.h>

struct server_output;
struct server_stream;

#define SERVER_NOTIFICATION_TEXT_BYTES 96
#define SERVER_NOTIFICATION_BYTES                                                                            \
    (PROTOCOL_HEADER_BYTES + PROTOCOL_NOTICE_BYTES + SERVER_NOTIFICATION_TEXT_BYTES)

/* Tells the stream's client, if it speaks version 2. RESTORED is sent only after DEGRADED. */
void server_notification(struct server_stream *stream, enum protocol_notice_kind kind);

/* The notice has left the connection's queue, written or not. The stream may end now. */
void server_notification_left(struct server_output *output);

#endif
