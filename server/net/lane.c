#include "server/net/lane.h"

#include "server/net/files.h"
#include "server/net/io.h"

#include <stdlib.h>

struct server_lanes {
    struct server_mailbox_thread thread;
    struct server_files *files;   /* set before start */
    uint64_t limit_bytes;         /* set before start */
    _Atomic uint64_t taken_bytes; /* atomic: raised by I/O threads that ask, lowered by the thread */
};

core_status server_lanes_start(struct server_lanes **lanes, uint64_t limit_bytes, struct server_files *files,
                               struct core_error *error)
{
    struct server_lanes *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the thread of lanes");
    fresh->limit_bytes = limit_bytes;
    fresh->files = files;
    core_status status = server_mailbox_thread_start(&fresh->thread, "lanes", 0, fresh, error);
    if (status != CORE_OK) {
        free(fresh);
        return status;
    }
    *lanes = fresh;
    return CORE_OK;
}

void server_lanes_stop(struct server_lanes *lanes)
{
    if (lanes == NULL)
        return;
    server_mailbox_thread_stop(&lanes->thread);
    free(lanes);
}

bool server_lanes_are_there(const struct server_lanes *lanes)
{
    return lanes != NULL && lanes->limit_bytes > 0;
}

/* ---- on the thread of lanes ---- */

static void attach(void *owner, struct server_message *message)
{
    struct server_lane *lane = (struct server_lane *)message;
    (void)owner;
    lane->status = core_lane_attach(&lane->lane, lane->descriptor, lane->ring_bytes, &lane->error);
    server_files_close(lane->lanes->files, lane->descriptor);
    lane->message.run = server_frame_laned;
    server_mailbox_post(lane->reply, &lane->message);
}

static void end(void *owner, struct server_message *message)
{
    struct server_lanes *lanes = owner;
    struct server_lane *lane = (struct server_lane *)message;
    const size_t bytes = core_lane_bytes(lane->ring_bytes);

    core_lane_free(&lane->lane);
    free(lane);
    atomic_fetch_sub_explicit(&lanes->taken_bytes, bytes, memory_order_relaxed);
}

void server_lane_drop(struct server_lane *lane)
{
    if (lane == NULL)
        return;
    lane->message.run = end;
    server_mailbox_post(&lane->lanes->thread.mailbox, &lane->message);
}

/* ---- on the I/O thread ---- */

static void answer(struct server_connection *connection, uint32_t ring_bytes, const char *reason)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    server_output_control(connection, frame, protocol_laned_write(frame, ring_bytes, reason));
}

/* LANED is the last frame on the socket: what was said before it has left, or this client does not read. */
static void begin(struct server_connection *connection, struct server_lane *lane)
{
    if (connection->input.stash != NULL || server_transport_left_bytes(&connection->transport) > 0) {
        server_lane_drop(lane);
        server_connection_fail(connection, 0, PROTOCOL_ERROR_STATE,
                               "something follows LANE before its answer");
        return;
    }
    answer(connection, lane->ring_bytes, "");
    server_output_flush(connection);
    if (connection->state != SERVER_CONNECTION_READY || connection->output_head != NULL) {
        server_lane_drop(lane);
        server_connection_abort(connection);
        return;
    }
    server_transport_share(&connection->transport, lane);
    server_connection_watch(connection, EPOLLIN, true);
}

void server_frame_laned(void *io, struct server_message *mapped)
{
    struct server_lane *lane = (struct server_lane *)mapped;
    struct server_connection *connection = lane->connection;
    (void)io;

    connection->client.requests--;
    connection->awaits_lane = false;
    if (connection->state != SERVER_CONNECTION_READY) {
        server_lane_drop(lane);
    } else if (lane->status != CORE_OK) {
        answer(connection, 0, lane->error.text);
        server_lane_drop(lane);
    } else
        begin(connection, lane);
    server_io_mark(connection);
}

/* NULL: the lane is under way, and the memory its own; or why there is none. */
static const char *ask(struct server_connection *connection, uint32_t ring_bytes)
{
    struct server_lanes *lanes = connection->io->server->lanes;
    const uint64_t bytes = core_lane_bytes(ring_bytes);
    struct server_lane *lane = calloc(1, sizeof *lane);

    if (lane == NULL)
        return "the server is out of memory";
    if (atomic_fetch_add_explicit(&lanes->taken_bytes, bytes, memory_order_relaxed) + bytes >
        lanes->limit_bytes) {
        atomic_fetch_sub_explicit(&lanes->taken_bytes, bytes, memory_order_relaxed);
        free(lane);
        return "the server's memory for lanes (limits.lane_mib) is used up";
    }
    *lane = (struct server_lane){.message = {.run = attach},
                                 .lanes = lanes,
                                 .connection = connection,
                                 .reply = &connection->io->mailbox,
                                 .ring_bytes = ring_bytes,
                                 .descriptor = server_transport_take_memory(&connection->transport)};
    connection->client.requests++;
    connection->awaits_lane = true;
    server_mailbox_post(&lanes->thread.mailbox, &lane->message);
    return NULL;
}

void server_frame_lane(struct server_connection *connection, const struct protocol_header *header,
                       const uint8_t *body)
{
    struct core_error error = {""};
    uint32_t ring_bytes;
    const char *reason = NULL;

    if (protocol_lane_read(body, header->body_bytes, &ring_bytes, &error) != CORE_OK) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_MALFORMED, error.text);
        return;
    }
    if (connection->transport.lane != NULL || connection->stream_count > 0 ||
        connection->client.requests > 0) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_STATE,
                               "LANE comes before all streams and requests, and once");
        return;
    }
    if (!connection->transport.takes_memory)
        reason = "there are no lanes here: they need a Unix socket, and limits.lane_mib above 0";
    else if (!core_lane_fits(ring_bytes))
        reason = "a ring has a power of two of bytes, from 65,536 to 16,777,216";
    else if (connection->transport.memory < 0)
        reason = "its memory has not come along (does a proxy stand between?)";
    else
        reason = ask(connection, ring_bytes);
    if (reason == NULL)
        return;
    if (connection->transport.memory >= 0)
        server_files_close(connection->transport.files, server_transport_take_memory(&connection->transport));
    answer(connection, 0, reason);
}
