/* A connection's way from its socket into a lane (core/lane.h). Under the connection's lock. */
#ifndef MILLRACE_CLIENT_LANE_H
#define MILLRACE_CLIENT_LANE_H

#include "client/transport.h"

#define CLIENT_LANE_RING_BYTES (UINT32_C(1) << 18)

/* Makes a lane and sends LANE with its memory. Nothing may wait to be sent. CORE_UNSUPPORTED: nothing was sent,
 * for want of memory or because the server is going, of which the next read tells. */
CORE_CHECKED core_status client_lane_ask(struct client_transport *transport, struct core_error *error);

/* LANED: it carries the bytes from here on, or the server has none (0 bytes). CORE_INVALID: neither. */
CORE_CHECKED core_status client_lane_begin(struct client_transport *transport, uint32_t ring_bytes,
                                           struct core_error *error);

/* What was made in it may be read. CORE_SYSTEM: nobody does. */
CORE_CHECKED core_status client_lane_publish(struct client_transport *transport, struct core_error *error);

/* All that is there, where it lies (core_lane_look): CORE_OK, CORE_AGAIN, CORE_CLOSED at the end, CORE_SYSTEM. */
CORE_CHECKED core_status client_lane_look(struct client_transport *transport, uint8_t **bytes, size_t *count,
                                          struct core_error *error);

#endif
