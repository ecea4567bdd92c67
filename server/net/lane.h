/* Lanes (core/lane.h): who has one, and how it comes about. Their memory is mapped and given back by a thread of its
 * own without real-time priority, since that takes as long as to write it; all together have a limit
 * (limits.lane_mib). */
#ifndef MILLRACE_SERVER_NET_LANE_H
#define MILLRACE_SERVER_NET_LANE_H

#include "core/lane.h"
#include "core/protocol.h"
#include "server/mailbox.h"

struct server_connection;
struct server_files;
struct server_lanes;

/* One lane: asked for, then part of its connection's transport, then given back. */
struct server_lane {
    struct server_message message; /* first member */
    struct core_lane lane;
    struct server_lanes *lanes;
    struct server_connection *connection; /* who has asked, and waits */
    struct server_mailbox *reply;         /* of its I/O thread */
    uint32_t ring_bytes;
    int descriptor;     /* that the client has sent */
    core_status status; /* mapped, or not and why: */
    struct core_error error;
};

CORE_CHECKED core_status server_lanes_start(struct server_lanes **lanes, uint64_t limit_bytes,
                                            struct server_files *files, struct core_error *error);
/* After the last lane was dropped, and before server_files_stop. NULL is fine. */
void server_lanes_stop(struct server_lanes *lanes);

/* Are there any? */
bool server_lanes_are_there(const struct server_lanes *lanes);

/* I/O thread: a client asks for one. */
void server_frame_lane(struct server_connection *connection, const struct protocol_header *header,
                       const uint8_t *body);

/* It was mapped, or not. Run on the I/O thread. */
void server_frame_laned(void *io, struct server_message *made);

/* Any thread: nobody uses it any more. NULL is fine. */
void server_lane_drop(struct server_lane *lane);

#endif
