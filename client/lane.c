/* A lane in the place of the socket (core/lane.h): asked for where the server has them, right after WELCOME. */
#include "client/lane.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static core_status lane_read(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                             struct core_error *error)
{
    core_status status = core_lane_read(&transport->lane, room, bytes, got);
    switch (status) {
    case CORE_OK:
        core_lane_release(&transport->lane, *got, false);
        return status;
    case CORE_NOT_FOUND:
        return CORE_CLOSED;
    case CORE_INVALID:
        return core_error_set(error, CORE_SYSTEM, "the server's counts of bytes in the lane can not be");
    default:
        return status;
    }
}

static core_status lane_write(struct client_transport *transport, const struct iovec *parts, int count,
                              size_t *written, struct core_error *error)
{
    core_status status = core_lane_write(&transport->lane, parts, count, written);
    if (status == CORE_INVALID)
        return core_error_set(error, CORE_SYSTEM, "the server's counts of bytes in the lane can not be");
    if (status == CORE_CLOSED)
        return core_error_set(error, CORE_SYSTEM, "writing to the server: it has closed the connection");
    transport->full = status == CORE_AGAIN;
    return *written > 0 ? CORE_OK : status; /* what is left is tried again, and finds no room */
}

static bool lane_pending(const struct client_transport *transport)
{
    return core_lane_left_bytes(&transport->lane) > 0;
}

static void lane_close(struct client_transport *transport)
{
    core_lane_free(&transport->lane);
    close(transport->descriptor);
}

static const struct client_transport_kind lane = {
    .read = lane_read, .write = lane_write, .pending = lane_pending, .close = lane_close};

core_status client_lane_ask(struct client_transport *transport, struct core_error *error)
{
    if (core_lane_ask(&transport->lane, CLIENT_LANE_RING_BYTES, transport->descriptor, error) == CORE_OK)
        return CORE_OK;
    return core_error_set(error, CORE_UNSUPPORTED, "no memory for a lane, or the socket takes no LANE");
}

core_status client_lane_begin(struct client_transport *transport, uint32_t ring_bytes,
                              struct core_error *error)
{
    if (ring_bytes == CLIENT_LANE_RING_BYTES)
        transport->kind = &lane;
    else
        core_lane_free(&transport->lane); /* the socket goes on to carry the frames */
    if (ring_bytes == CLIENT_LANE_RING_BYTES || ring_bytes == 0)
        return CORE_OK;
    return core_error_set(error, CORE_INVALID, "LANED with rings of %u bytes, where %u were asked for",
                          ring_bytes, CLIENT_LANE_RING_BYTES);
}
