/* A lane in the place of the socket (core/lane.h): asked for where the server has them, right after WELCOME. */
#include "client/lane.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static core_status impossible(struct core_error *error)
{
    return core_error_set(error, CORE_SYSTEM, "the server's counts of bytes in the lane can not be");
}

static core_status closed(struct core_error *error)
{
    return core_error_set(error, CORE_SYSTEM, "writing to the server: it has closed the connection");
}

/* In the words of struct client_transport_kind. */
static core_status read_outcome(core_status status, struct core_error *error)
{
    if (status == CORE_NOT_FOUND)
        return CORE_CLOSED;
    return status == CORE_INVALID ? impossible(error) : status;
}

static core_status lane_read(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                             struct core_error *error)
{
    core_status status = core_lane_read(&transport->lane, room, bytes, got);
    if (status == CORE_OK)
        core_lane_release(&transport->lane);
    return read_outcome(status, error);
}

core_status client_lane_look(struct client_transport *transport, uint8_t **bytes, size_t *count,
                             struct core_error *error)
{
    return read_outcome(core_lane_look(&transport->lane, SIZE_MAX, bytes, count), error);
}

core_status client_lane_publish(struct client_transport *transport, struct core_error *error)
{
    return core_lane_publish(&transport->lane) == CORE_OK ? CORE_OK : closed(error);
}

static core_status lane_write(struct client_transport *transport, const struct iovec *parts, int count,
                              size_t *written, struct core_error *error)
{
    core_status status = core_lane_write(&transport->lane, parts, count, written);
    if (status == CORE_INVALID)
        return impossible(error);
    if (status == CORE_CLOSED)
        return closed(error);
    transport->full = status == CORE_AGAIN;
    return *written > 0 ? CORE_OK : status; /* what is left is tried again, and finds no room */
}

static bool lane_pending(const struct client_transport *transport)
{
    return core_lane_left_bytes(&transport->lane) > 0;
}

static void lane_close(struct client_transport *transport)
{
    core_lane_discard(&transport->lane);
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
    transport->shares = ring_bytes == CLIENT_LANE_RING_BYTES;
    if (transport->shares)
        transport->kind = &lane;
    else
        core_lane_free(&transport->lane); /* the socket goes on to carry the frames */
    if (transport->shares || ring_bytes == 0)
        return CORE_OK;
    return core_error_set(error, CORE_INVALID, "LANED with rings of %u bytes, where %u were asked for",
                          ring_bytes, CLIENT_LANE_RING_BYTES);
}
