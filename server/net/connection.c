/* The life of a connection. */
#include "server/net/io.h"

#include "core/log.h"
#include "server/net/accept.h"
#include "server/net/lane.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define ASKED_AFTER_TICKS 32
#define LINGER_NS         CORE_NS_PER_S
#define POLLS_MAX         256 /* for idle streams, of a connection at a tick */

/* Failures are harmless: the socket then works with the system's defaults. */
static void tune_tcp(int descriptor)
{
    int on = 1, idle_s = 30, interval_s = 10, probes = 3;
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static void on_socket(struct server_watch *watch, uint32_t events)
{
    struct server_connection *connection = watch->owner;
    if (events & EPOLLOUT)
        server_io_mark(connection);
    if ((events & EPOLLIN) == 0)
        return;
    if (connection->transport.lane != NULL)
        server_io_mark(connection); /* there may be room for what waits */
    if (!connection->is_read)
        server_input_pass_over(connection);
    else if (connection->stream_count == 0)
        server_io_put_off(connection);
    else
        server_io_has_read(connection->io, server_input_read(connection));
}

void server_connection_watch(struct server_connection *connection, uint32_t event, bool wanted)
{
    struct server_watch *watch = &connection->watch;
    const uint32_t events = wanted ? watch->events | event : watch->events & ~event;
    if (server_poller_watch(&connection->io->poller, watch, events))
        return;
    const struct core_log_fields fields = server_stream_client_fields(&connection->client, 0);
    core_log_with(CORE_LOG_ERROR, "connection.memory", &fields,
                  "connection %lu: no memory to wait for its socket; it is closed",
                  (unsigned long)connection->client.number);
    server_connection_abort(connection);
}

static void link_connection(struct server_io *io, struct server_connection *connection)
{
    connection->next = io->connections;
    connection->previous = &io->connections;
    if (io->connections != NULL)
        io->connections->previous = &connection->next;
    io->connections = connection;
    server_stats_add(&io->stats.connections, 1);
}

static void give_place_back(struct server_io *io, struct server_connection_slot *place)
{
    server_connection_slot_release(&io->server->places, place);
    atomic_fetch_sub_explicit(&io->assigned, 1, memory_order_relaxed);
}

static void refuse_without_memory(struct server_io *io, struct server_accepted *accepted)
{
    core_log_with(CORE_LOG_ERROR, "connection.memory", &(struct core_log_fields){.peer = accepted->peer},
                  "no memory for a new connection; it is closed");
    server_count_turned(accepted->listener, SERVER_TURNED_MEMORY);
    atomic_fetch_sub_explicit(&io->assigned, 1, memory_order_relaxed);
    server_accepted_drop(io->server, accepted);
}

/* Its hello time has begun with accept. */
static void take_over(struct server_connection *connection, struct server_accepted *accepted)
{
    server_transport_move(&connection->transport, &accepted->transport);
    connection->watch = (struct server_watch){
        .descriptor = connection->transport.descriptor, .ready = on_socket, .owner = connection};
    connection->place = accepted->place;
    connection->client.asker.peer = server_connection_slot_turns(&connection->place);
    memcpy(connection->client.peer, accepted->peer, sizeof connection->client.peer);
    connection->inline_keys = accepted->inline_keys;
    connection->user = accepted->user;
    connection->listener = accepted->listener;
    connection->opened_ns = accepted->accepted_ns;
    free(accepted);
}

void server_connection_open(struct server_io *io, struct server_accepted *accepted)
{
    struct server *server = io->server;
    struct server_connection *connection = calloc(1, sizeof *connection);

    if (connection == NULL) {
        refuse_without_memory(io, accepted);
        return;
    }
    take_over(connection, accepted);
    connection->io = io;
    connection->client.io = &io->streams;
    connection->client.number =
        1 + atomic_fetch_add_explicit(&server->connection_number, 1, memory_order_relaxed);
    connection->state = SERVER_CONNECTION_HELLO;
    connection->alive_ns = core_time_now_ns();
    connection->blocked_ns = connection->lingering_ns = CORE_NS_NEVER;
    if (strncmp(connection->client.peer, "unix:", 5) != 0)
        tune_tcp(connection->transport.descriptor);
    server_input_init(&connection->input);
    link_connection(io, connection);
    const struct core_log_fields fields = server_stream_client_fields(&connection->client, 0);
    core_log_with(CORE_LOG_DEBUG, "connection.open", &fields, "connection %lu from %s",
                  (unsigned long)connection->client.number, connection->client.peer);
    if (io->draining)
        server_connection_fail(connection, 0, PROTOCOL_ERROR_SHUTDOWN, "the server is stopping");
    server_input_arm(connection);
    server_io_mark(connection);
}

/* Life goes one way only: a step back, of a caller who does not know what has happened since, is none. */
static void enter(struct server_connection *connection, enum server_connection_state state)
{
    if (state > connection->state)
        connection->state = state;
}

/* Results that are still to come are of no use to anybody: what waits is dropped now, what is inside a worker
 * when it comes back. */
static void drop_packets(struct server_connection *connection)
{
    connection->client.abandoned = true;
    /* relaxed: the planner only saves itself work by it */
    atomic_store_explicit(&connection->client.asker.gone, true, memory_order_relaxed);
    server_input_free(connection);
    for (uint32_t i = 0; i < connection->stream_capacity; i++) {
        struct server_stream *stream = server_connection_stream_at(connection, i);
        if (stream == NULL)
            continue;
        server_eligible_queue_remove(&connection->io->waiting, &stream->waiter);
        for (struct server_packet *packet = stream->queue.waiting; packet != NULL; packet = packet->next)
            packet->ready = true;
        stream->queue.waiting = NULL;
        server_output_results(stream);
        server_connection_settle_stream(stream);
    }
}

void server_connection_fail(struct server_connection *connection, uint32_t id, enum protocol_error code,
                            const char *text)
{
    if (connection->state >= SERVER_CONNECTION_BROKEN)
        return;
    const struct core_log_fields fields = server_stream_client_fields(&connection->client, 0);
    core_log_with(CORE_LOG_INFO, "connection.error", &fields, "connection %lu (%s): %s: %s; closed",
                  (unsigned long)connection->client.number, connection->client.peer,
                  protocol_error_name(code), text);
    server_output_error(connection, id, code, true, text);
    enter(connection, SERVER_CONNECTION_LINGERING);
    server_input_arm(connection);
    server_io_mark(connection);
}

void server_connection_finish(struct server_connection *connection, enum protocol_close_reason reason,
                              const enum protocol_error *last_error)
{
    enter(connection, SERVER_CONNECTION_FINISHING);
    connection->has_last_error = last_error != NULL;
    if (last_error != NULL)
        connection->last_error = *last_error;
    server_input_free(connection);
    for (uint32_t i = 0; i < connection->stream_capacity; i++) {
        struct server_stream *stream = server_connection_stream_at(connection, i);
        if (stream == NULL)
            continue;
        if (stream->state == SERVER_STREAM_OPEN) {
            stream->state = SERVER_STREAM_CLOSING;
            stream->close_reason = reason;
        }
        server_connection_settle_stream(stream);
    }
    server_input_arm(connection);
    server_io_mark(connection);
}

void server_connection_abort(struct server_connection *connection)
{
    enter(connection, SERVER_CONNECTION_BROKEN);
    server_io_mark(connection);
}

/* Nobody is in the middle of anything with it: this is called from the end of a turn only. */
static void tear_down(struct server_connection *connection)
{
    struct server_io *io = connection->io;

    enter(connection, SERVER_CONNECTION_DEAD);
    connection->is_read = false;
    server_output_purge(connection);
    (void)server_poller_watch(&io->poller, &connection->watch, 0);
    server_transport_close(&connection->transport);
    give_place_back(io, &connection->place);
    server_stats_add(&io->stats.connections, (uint64_t)-1);
    server_io_mark(connection);
}

void server_connection_count_lost(struct server_connection *connection)
{
    server_stats_add(&connection->io->stats.lost, 1);
    if (connection->overdue)
        atomic_fetch_add_explicit(&connection->io->server->drain_lost, 1, memory_order_relaxed);
}

static struct server_stream not_again; /* in the place of a stream that was closed as idle */

static void free_id(struct server_connection *connection, const struct server_stream *stream)
{
    bool idle = stream->close_reason == PROTOCOL_CLOSE_IDLE;

    connection->streams[stream->id - 1] = idle ? &not_again : NULL;
    if (!idle && stream->id - 1 < connection->first_free)
        connection->first_free = stream->id - 1;
}

struct server_stream *server_connection_stream_at(const struct server_connection *connection, uint32_t place)
{
    struct server_stream *stream = connection->streams[place];
    return stream != &not_again ? stream : NULL;
}

void server_connection_pass(struct server_connection_cursor *cursor,
                            const struct server_connection *connection)
{
    if (cursor->connection != connection)
        return;
    cursor->connection = connection->next;
    cursor->place = 0;
}

static void end_stream(struct server_connection *connection, struct server_stream *stream)
{
    struct server_io *io = connection->io;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];

    if (!connection->client.abandoned && !stream->unannounced) {
        stream->account.totals.reason = stream->close_reason;
        if (connection->version < 2 && stream->close_reason == PROTOCOL_CLOSE_IDLE)
            stream->account.totals.reason = PROTOCOL_CLOSE_DRAINED; /* it has no word for it */
        server_output_control(connection, frame,
                              protocol_closed_write(frame, stream->id, &stream->account.totals));
    }
    free_id(connection, stream);
    connection->stream_count--;
    connection->alive_ns = core_time_now_ns();
    io->stream_count--;
    io->stream_ended = true;
    server_io_discount_stream(stream);
    server_stats_add(&io->stats.streams, (uint64_t)-1);
    server_eligible_queue_remove(&io->waiting, &stream->waiter);
    server_planner_wipe(io->server->planner, server_stream_take_blocks(stream));
    server_migration_give_back(stream);
    if (stream->units.gpu != NULL) {
        server_gpu_binding_detach(stream->units.gpu);
        server_gpu_binding_destroy(stream->units.gpu);
    }
    if (stream->units.secondary != NULL) {
        server_gpu_binding_detach(stream->units.secondary);
        server_gpu_binding_destroy(stream->units.secondary);
    }
    server_stream_destroy(stream, io->server->engine);
    server_io_mark(connection);
}

void server_connection_settle_stream(struct server_stream *stream)
{
    struct server_connection *connection = server_connection_of(stream);
    if (stream->modify != NULL && (stream->state == SERVER_STREAM_CLOSING || connection->client.abandoned))
        server_modify_end(stream);
    if (stream->state == SERVER_STREAM_CLOSING || connection->client.abandoned)
        server_rekey_end(stream);
    if ((stream->state == SERVER_STREAM_CLOSING || connection->client.abandoned) &&
        stream->memory.busy == 0 && !stream->notice.queued && server_migration_ends(stream))
        end_stream(connection, stream);
}

static void settle_finishing(struct server_connection *connection)
{
    if (connection->stream_count > 0 || connection->client.requests > 0)
        return;
    if (connection->has_last_error) {
        connection->has_last_error = false;
        server_output_error(connection, 0, connection->last_error, true, "the server is stopping");
    }
    if (connection->output_head == NULL)
        enter(connection, SERVER_CONNECTION_LINGERING);
}

static void free_connection(struct server_connection *connection)
{
    server_connection_pass(&connection->io->cursor, connection);
    *connection->previous = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    server_input_free(connection);
    server_connection_slot_turns_release(connection->client.asker.peer);
    free(connection->streams);
    free(connection->user.names);
    free(connection);
}

void server_connection_settle(struct server_connection *connection)
{
    if (connection->state == SERVER_CONNECTION_FINISHING)
        settle_finishing(connection);
    if (connection->state == SERVER_CONNECTION_LINGERING && connection->lingering_ns == CORE_NS_NEVER &&
        connection->output_head == NULL && connection->transport.bounce_bytes == 0) {
        server_transport_finish(&connection->transport);
        connection->lingering_ns = core_time_now_ns();
        if (connection->input.ended)
            server_connection_abort(connection);
        else
            server_input_arm(connection);
    }
    if (connection->state >= SERVER_CONNECTION_LINGERING && !connection->client.abandoned)
        drop_packets(connection);
    if (connection->state == SERVER_CONNECTION_BROKEN)
        tear_down(connection);
    if (connection->state == SERVER_CONNECTION_DEAD && connection->stream_count == 0 &&
        connection->client.requests == 0 && !connection->dirty && !connection->waits_in_line)
        free_connection(connection);
}

bool server_connection_peer_gone(const struct server_connection *connection)
{
    struct pollfd peer = {.fd = connection->transport.descriptor};
    return poll(&peer, 1, 0) > 0 && (peer.revents & (POLLHUP | POLLERR)) != 0;
}

static bool input_paused(const struct server_connection *connection)
{
    return connection->input.stash != NULL || connection->input.phase == SERVER_INPUT_SLOT;
}

/* Since when the stream could have sent a packet, if it had sent all before at its interval, and we have
 * read. */
static core_ns due_since_ns(const struct server_stream *stream)
{
    return core_time_max(stream->policer.theoretical_ns,
                         core_time_max(stream->bounds.opened_ns, server_connection_of(stream)->read_on_ns));
}

/* Nothing of it is here, and nothing is under way that it has a part in. */
static bool is_silent(const struct server_stream *stream)
{
    return stream->state == SERVER_STREAM_OPEN && stream->bounds.opened_ns > 0 && stream->memory.busy == 0 &&
           stream->modify == NULL && stream->migration == NULL;
}

static void close_as_idle(struct server_stream *stream, core_ns silent_ns)
{
    const struct core_log_fields fields = server_stream_client_fields(stream->client, stream->id);
    core_log_with(CORE_LOG_INFO, "stream.idle", &fields,
                  "connection %lu (%s), stream %u: no packet for %.1f s after one was due; closed",
                  (unsigned long)stream->client->number, stream->client->peer, stream->id,
                  (double)silent_ns / (double)CORE_NS_PER_S);
    server_stats_add(&stream->client->io->stats->idled, 1);
    stream->state = SERVER_STREAM_CLOSING;
    stream->close_reason = PROTOCOL_CLOSE_IDLE;
    server_connection_settle_stream(stream);
}

/* A few at a time. */
static void scan_for_idle_streams(struct server_connection *connection, core_ns now_ns)
{
    core_ns idle_ns = connection->io->server->config->timeouts.stream_idle_ns;
    uint32_t looks = connection->stream_capacity < POLLS_MAX ? connection->stream_capacity : POLLS_MAX;

    if (idle_ns == 0)
        return;
    for (; looks > 0; looks--) {
        if (connection->next_poll >= connection->stream_capacity)
            connection->next_poll = 0;
        struct server_stream *stream = server_connection_stream_at(connection, connection->next_poll++);
        if (stream != NULL && is_silent(stream) && now_ns - due_since_ns(stream) > idle_ns)
            close_as_idle(stream, now_ns - due_since_ns(stream));
    }
}

/* The socket is writable again only when much of its room is free: a slow reader takes something before. */
static void note_progress(struct server_connection *connection, core_ns now_ns)
{
    if (connection->blocked_ns == CORE_NS_NEVER)
        return;
    if (connection->transport.lane != NULL)
        server_io_mark(connection); /* who has ended its side does not tell of room */
    size_t waiting_bytes = server_transport_waiting_bytes(&connection->transport);
    if (waiting_bytes < connection->waiting_bytes)
        connection->progress_ns = now_ns;
    connection->waiting_bytes = waiting_bytes;
}

void server_connection_tell_leaving(struct server_connection *connection)
{
    const bool leaving = server_is_leaving(connection->io->server);
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_LEAVING,
                                           .text = "going away; open the streams at another server"};
    if (connection->state != SERVER_CONNECTION_READY)
        return;
    if (leaving && !connection->told_leaving && connection->version >= 4)
        server_output_control(connection, frame, protocol_notice_write(frame, 0, &notice));
    connection->told_leaving = leaving;
}

/* Whether a peer is there takes a system call: one connection in so many is asked after in each tick. */
static bool is_to_be_asked_after(const struct server_connection *connection, core_ns now_ns)
{
    const uint64_t tick = (uint64_t)now_ns / (100 * CORE_NS_PER_MS);
    return (tick + connection->client.number) % ASKED_AFTER_TICKS == 0;
}

void server_connection_tick(struct server_connection *connection, core_ns now_ns)
{
    const struct config_server_timeouts *timeouts = &connection->io->server->config->timeouts;

    if (connection->state >= SERVER_CONNECTION_BROKEN)
        return;
    if (connection->transport.lane != NULL)
        core_lane_ring(&connection->transport.lane->lane);
    if (connection->transport.lane != NULL && connection->transport.lane->lane.ended &&
        server_connection_peer_gone(connection)) {
        server_connection_abort(connection); /* what is written to a lane does not tell */
        return;
    }
    if (connection->lingering_ns != CORE_NS_NEVER) {
        if (now_ns - connection->lingering_ns > LINGER_NS)
            server_connection_abort(connection);
        return;
    }
    note_progress(connection, now_ns);
    if (connection->blocked_ns != CORE_NS_NEVER && now_ns - connection->progress_ns > timeouts->stall_ns) {
        const struct core_log_fields fields = server_stream_client_fields(&connection->client, 0);
        core_log_with(CORE_LOG_WARNING, "connection.stalled", &fields,
                      "connection %lu (%s) took none of its results for %.1f s; closed",
                      (unsigned long)connection->client.number, connection->client.peer,
                      (double)(now_ns - connection->progress_ns) / (double)CORE_NS_PER_S);
        server_connection_abort(connection);
        return;
    }
    if (connection->state == SERVER_CONNECTION_FINISHING && server_connection_peer_gone(connection)) {
        server_connection_abort(connection);
        return;
    }
    if (connection->state == SERVER_CONNECTION_HELLO) {
        if (now_ns - connection->opened_ns > timeouts->hello_ns)
            server_connection_fail(connection, 0, PROTOCOL_ERROR_TIMEOUT,
                                   "no HELLO within timeouts.hello_ms");
        return;
    }
    server_connection_tell_leaving(connection);
    if (connection->state != SERVER_CONNECTION_READY)
        return;
    if (input_paused(connection)) { /* epoll is not asked about what is not read */
        if (is_to_be_asked_after(connection, now_ns) && server_connection_peer_gone(connection))
            server_connection_abort(connection);
        return;
    }
    if (connection->input.frame_started_ns != CORE_NS_NEVER &&
        now_ns - connection->input.frame_started_ns > timeouts->frame_ns)
        server_connection_fail(connection, 0, PROTOCOL_ERROR_TIMEOUT,
                               "an unfinished frame for longer than timeouts.frame_ms");
    else if (connection->stream_count == 0 && connection->client.requests == 0 &&
             now_ns - connection->alive_ns > timeouts->idle_ns)
        server_connection_fail(connection, 0, PROTOCOL_ERROR_TIMEOUT,
                               "no stream and no frame for longer than timeouts.idle_ms");
    else
        scan_for_idle_streams(connection, now_ns);
}

core_status server_connection_add_stream(struct server_connection *connection, struct server_stream *stream)
{
    uint32_t slot = connection->first_free;
    while (slot < connection->stream_capacity && connection->streams[slot] != NULL)
        slot++;
    if (slot == connection->stream_capacity) {
        uint32_t capacity = slot == 0 ? 8 : 2 * slot;
        struct server_stream **streams =
            realloc(connection->streams, capacity * sizeof(struct server_stream *));
        if (streams == NULL)
            return CORE_NO_MEMORY;
        memset(streams + slot, 0, (capacity - slot) * sizeof(struct server_stream *));
        connection->streams = streams;
        connection->stream_capacity = capacity;
    }
    connection->streams[slot] = stream;
    connection->stream_count++;
    connection->first_free = slot + 1;
    stream->id = slot + 1;
    return CORE_OK;
}

struct server_stream *server_connection_find_stream(const struct server_connection *connection, uint32_t id)
{
    return id >= 1 && id <= connection->stream_capacity ? server_connection_stream_at(connection, id - 1)
                                                        : NULL;
}
