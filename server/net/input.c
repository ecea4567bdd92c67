/* Bytes to frames. Payloads go straight from the read buffer (or the stash) into a GPU's batch, or else into
 * their packet's slot; headers and control frames are gathered in the connection. OPEN, QUERY and REKEY bring keys:
 * they are wiped from wherever they passed.
 *
 * What was read of a lane lies in memory that its client can write: headers, bodies and payloads are copied before
 * anything of them is judged. */
#include "server/net/io.h"

#include "core/log.h"
#include "core/secret.h"
#include "server/net/accept.h"
#include "server/net/lane.h"

#include <stdlib.h>
#include <string.h>

#define CONTROL_QUEUE_BYTES_MAX 65536 /* answers that may wait before we stop reading more questions */
/* Frames other than DATA are no part of a contract, and streams of others wait for what they cost: so many are handled
 * in a turn, of all connections, and of each one a few more. */
#define CONTROLS         256
#define CONTROLS_OF_ONE  4
#define LOOKAHEAD_FRAMES 16u /* a power of two */
#define STREAMS_AHEAD    10u
#define PACKETS_AHEAD    5u
#define BYTES_AHEAD      4096u

void server_input_init(struct server_input *input)
{
    input->phase = SERVER_INPUT_HEADER;
    input->frame_started_ns = input->stopped_ns = CORE_NS_NEVER;
}

void server_input_free(struct server_connection *connection)
{
    struct server_input *input = &connection->input;
    if (input->packet != NULL) { /* half received: not counted as lost, its DATA never came whole */
        server_stream_give(input->packet->stream, input->packet);
        input->packet = NULL;
    }
    core_secret_wipe(input->frame, sizeof input->frame);
    core_secret_wipe(input->stash, input->stash_bytes);
    free(input->stash);
    input->stash = NULL;
    input->stash_bytes = input->stash_done = 0;
}

static bool accepts_input(const struct server_connection *connection)
{
    return connection->state == SERVER_CONNECTION_HELLO || connection->state == SERVER_CONNECTION_READY;
}

static bool paused(const struct server_connection *connection)
{
    return connection->input.phase == SERVER_INPUT_SLOT || connection->awaits_lane ||
           connection->control_bytes > CONTROL_QUEUE_BYTES_MAX;
}

/* A lane's socket is always watched, until it has ended. While more is there than a read takes it goes on to be
 * readable, since such a read leaves what has come on it (core_lane_look). Where all was taken and more has come since,
 * or nothing comes any more, it tells nothing. In either case the connection is looked at again, in this turn or the
 * next one; without streams, when its turn comes among the strangers. */
static void watch(struct server_connection *connection)
{
    const struct server_lane *lane = connection->transport.lane;
    server_connection_watch(connection, EPOLLIN, lane != NULL ? !lane->lane.ended : connection->is_read);
    if (connection->is_read && server_transport_has_more(&connection->transport))
        server_io_look_again(connection);
}

void server_input_pass_over(struct server_connection *connection)
{
    if (connection->transport.lane != NULL)
        core_lane_hush(&connection->transport.lane->lane);
    watch(connection);
}

/* The peer could not know that we did not read: its times start anew. What kept us from reading is over. */
static void go_on(struct server_connection *connection)
{
    struct server_input *input = &connection->input;
    core_ns now_ns = core_time_now_ns();
    server_arrival_goes_on(&input->clock, input->stopped_ns, now_ns,
                           server_transport_left_bytes(&connection->transport), input->held);
    connection->alive_ns = connection->read_on_ns = now_ns;
    input->stopped_ns = CORE_NS_NEVER;
    input->held = false;
    if (connection->input.frame_started_ns != CORE_NS_NEVER)
        connection->input.frame_started_ns = now_ns;
    connection->is_read = true;
    watch(connection);
}

void server_input_arm(struct server_connection *connection)
{
    bool wanted = connection->state < SERVER_CONNECTION_BROKEN &&
                  connection->state != SERVER_CONNECTION_FINISHING && !connection->input.ended &&
                  !(accepts_input(connection) && (paused(connection) || connection->input.stash != NULL));
    const bool is_read = server_connection_is_read(connection);
    if (wanted && !is_read)
        go_on(connection);
    if (!wanted && is_read) {
        connection->is_read = false;
        watch(connection);
    }
}

static uint32_t smaller(size_t a, uint32_t b)
{
    return a < b ? (uint32_t)a : b;
}

static void next_frame(struct server_connection *connection)
{
    connection->input.phase = SERVER_INPUT_HEADER;
    connection->input.done = 0;
    connection->input.frame_started_ns = CORE_NS_NEVER;
}

/* The stream's room is used up. From when on is that our delay? At once if the sender has kept its contract,
 * and from the deadline of the first packet on if it was too early; never if it does not take its results. */
static core_ns ours_from_ns(const struct server_connection *connection, const struct server_stream *stream,
                            core_ns now_ns)
{
    const struct server_packet *first = stream->queue.head;
    core_ns earliest_ns = connection->input.arrival.earliest_ns;
    bool early = (stream->queue.waiting != NULL && stream->queue.waiting->eligible_ns > now_ns) ||
                 stream->policer.theoretical_ns - stream->policer.tolerance_ns > now_ns;

    if (connection->blocked_ns != CORE_NS_NEVER || first == NULL)
        return CORE_NS_NEVER;
    return early && first->deadline_ns > earliest_ns ? first->deadline_ns : earliest_ns;
}

/* A DATA header whose stream exists: claims a packet for it, or waits for one. */
static void claim_packet(struct server_connection *connection, struct server_stream *stream, core_ns now_ns)
{
    struct server_input *input = &connection->input;
    struct server_packet *packet =
        server_stream_take(stream, input->header.sequence, input->header.body_bytes, input->header.flags);

    if (packet == NULL) {
        if (input->phase != SERVER_INPUT_SLOT && input->stopped_ns > now_ns)
            input->stopped_ns = ours_from_ns(connection, stream, now_ns);
        input->phase = SERVER_INPUT_SLOT;
        return;
    }
    stream->queue.next_sequence++;
    input->done = 0;
    input->packet = packet;
    input->phase = packet->bytes > stream->spec.packet_bytes ? SERVER_INPUT_SKIP : SERVER_INPUT_PAYLOAD;
    if (packet->bytes == 0) {
        input->packet = NULL;
        next_frame(connection);
        server_frame_data(connection, packet, now_ns);
    }
}

static void begin_data(struct server_connection *connection, core_ns now_ns)
{
    struct server_input *input = &connection->input;
    struct server_stream *stream = server_connection_find_stream(connection, input->header.id);

    if (stream == NULL || stream->state != SERVER_STREAM_OPEN) {
        server_output_error(connection, input->header.id, PROTOCOL_ERROR_STREAM, false,
                            "DATA for a stream that is not open on this connection; it is skipped");
        input->done = 0;
        input->packet = NULL;
        input->phase = SERVER_INPUT_SKIP;
        if (input->header.body_bytes == 0)
            next_frame(connection);
        return;
    }
    if (input->header.sequence != stream->queue.next_sequence) {
        char text[128];
        snprintf(text, sizeof text, "DATA has sequence %u where %u is next", input->header.sequence,
                 stream->queue.next_sequence);
        server_connection_fail(connection, stream->id, PROTOCOL_ERROR_SEQUENCE, text);
        return;
    }
    const char *fault = server_message_fault(stream, input->header.flags);
    if (fault != NULL) {
        server_connection_fail(connection, stream->id, PROTOCOL_ERROR_MALFORMED, fault);
        return;
    }
    claim_packet(connection, stream, now_ns);
}

static void handle(struct server_connection *connection, const uint8_t *body, core_ns now_ns)
{
    connection->input.controls++;
    connection->io->controls++;
    server_frame_handle(connection, &connection->input.header, body, now_ns);
}

/* Is the rest for the next turn? */
static bool has_had_its_turn(const struct server_connection *connection)
{
    const struct server_input *input = &connection->input;
    return input->phase == SERVER_INPUT_HEADER && input->done == 0 && input->controls >= CONTROLS_OF_ONE &&
           connection->io->controls >= CONTROLS;
}

/* The 16 bytes are there: is this frame allowed, now and at this length? In the order of docs/protocol.md. */
static void begin_frame(struct server_connection *connection, core_ns now_ns)
{
    struct server_input *input = &connection->input;
    struct protocol_header *header = &input->header;
    uint32_t minimum, maximum;
    bool sound = protocol_header_read(connection->version, input->frame, header) == CORE_OK;

    if (connection->state == SERVER_CONNECTION_HELLO && header->type != PROTOCOL_HELLO) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_STATE, "the first frame must be HELLO");
        return;
    }
    if (!protocol_body_range(connection->version, header->type,
                             connection->io->server->config->limits.packet_bytes, &minimum, &maximum)) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_UNKNOWN_TYPE,
                               "unknown frame type, or one that only a server sends");
        return;
    }
    if (!sound) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_MALFORMED,
                               "a field of the frame header that must be 0 is not");
        return;
    }
    if (header->type == PROTOCOL_HELLO && connection->state != SERVER_CONNECTION_HELLO) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_STATE, "a second HELLO");
        return;
    }
    if (header->body_bytes < minimum || header->body_bytes > maximum) {
        char text[128];
        snprintf(text, sizeof text, "a frame of type %u has a body of %u bytes; %u to %u are allowed",
                 header->type, header->body_bytes, minimum, maximum);
        bool has_stream = header->type == PROTOCOL_DATA || header->type == PROTOCOL_CLOSE;
        server_connection_fail(connection, has_stream ? header->id : 0, PROTOCOL_ERROR_OVERSIZED, text);
        return;
    }
    connection->alive_ns = now_ns;
    if (header->type == PROTOCOL_DATA) {
        begin_data(connection, now_ns);
        return;
    }
    input->phase = SERVER_INPUT_BODY;
    input->done = 0;
    if (header->body_bytes == 0) {
        next_frame(connection);
        handle(connection, input->frame + PROTOCOL_HEADER_BYTES, now_ns);
    }
}

/* Gathers up to `goal` bytes of the current phase at `target`; returns how many it took. */
static uint32_t gather(struct server_input *input, uint8_t *target, uint32_t goal, const uint8_t *bytes,
                       size_t count)
{
    uint32_t piece = smaller(count, goal - input->done);
    if (target != NULL)
        memcpy(target + input->done, bytes, piece);
    input->done += piece;
    return piece;
}

static bool brings_key(const struct protocol_header *header)
{
    return header->type == PROTOCOL_OPEN || header->type == PROTOCOL_QUERY || header->type == PROTOCOL_REKEY;
}

static uint32_t step_body(struct server_connection *connection, uint8_t *bytes, size_t count, core_ns now_ns)
{
    struct server_input *input = &connection->input;
    uint8_t *body = input->frame + PROTOCOL_HEADER_BYTES;
    uint32_t taken = gather(input, body, input->header.body_bytes, bytes, count);

    if (brings_key(&input->header))
        core_secret_wipe(bytes, taken);
    if (input->done == input->header.body_bytes) {
        next_frame(connection);
        handle(connection, body, now_ns);
        if (brings_key(&input->header))
            core_secret_wipe(body, input->header.body_bytes);
    }
    return taken;
}

/* May what was read lie where it is until it is handed over? In a lane where nothing of it is judged, that is without
 * IVs, MACs and records: only messages have them. */
static bool may_stay(const struct server_connection *connection, const struct server_stream *stream)
{
    return connection->transport.lane == NULL || stream->spec.unit == CORE_UNIT_STREAM;
}

/* A payload that is whole stays where it is until it is handed over: it may go from here into a batch. */
static uint32_t step_payload(struct server_connection *connection, uint8_t *bytes, size_t count,
                             core_ns now_ns)
{
    struct server_input *input = &connection->input;
    struct server_packet *packet = input->packet;
    uint32_t body_bytes = input->header.body_bytes;
    uint8_t *target = input->phase == SERVER_INPUT_PAYLOAD ? server_packet_target(packet) : NULL;

    if (target != NULL && input->done == 0 && count >= body_bytes && may_stay(connection, packet->stream)) {
        packet->cpu.data = bytes + server_packet_iv_bytes(packet);
        target = NULL;
    }
    uint32_t taken = gather(input, target, body_bytes, bytes, count);
    if (input->done == body_bytes) {
        input->packet = NULL;
        next_frame(connection);
        if (packet != NULL)
            server_frame_data(connection, packet, now_ns);
    }
    return taken;
}

static size_t step(struct server_connection *connection, uint8_t *bytes, size_t count, core_ns now_ns)
{
    struct server_input *input = &connection->input;
    uint32_t taken = 0;

    switch (input->phase) {
    case SERVER_INPUT_HEADER:
        if (input->done == 0)
            input->frame_started_ns = now_ns;
        taken = gather(input, input->frame, PROTOCOL_HEADER_BYTES, bytes, count);
        if (input->done == PROTOCOL_HEADER_BYTES)
            begin_frame(connection, now_ns);
        break;
    case SERVER_INPUT_BODY:
        taken = step_body(connection, bytes, count, now_ns);
        break;
    case SERVER_INPUT_PAYLOAD:
    case SERVER_INPUT_SKIP:
        taken = step_payload(connection, bytes, count, now_ns);
        break;
    case SERVER_INPUT_SLOT:
        break;
    }
    return taken;
}

/* The frames that follow in a buffer. What handling one of them will touch is asked of memory in three steps, each of
 * which needs what the one before has brought: so the misses of many streams overlap, where each packet would wait for
 * its own. */
struct lookahead {
    size_t at;                      /* the first frame that was not looked at yet */
    uint32_t ids[LOOKAHEAD_FRAMES]; /* of those that were; 0: no DATA */
    uint32_t named, found,
        asked; /* frames whose place in the table, whose stream, whose packet was asked for */
    uint32_t begun;
    size_t asked_to; /* of a lane: the bytes before were asked for */
};

static void look_at_next(const struct server_connection *connection, struct lookahead *ahead,
                         const uint8_t *bytes)
{
    struct protocol_header header;
    const bool sound = protocol_header_read(connection->version, bytes + ahead->at, &header) == CORE_OK;
    const bool is_data = sound && header.type == PROTOCOL_DATA;
    ahead->ids[ahead->named++ % LOOKAHEAD_FRAMES] = is_data ? header.id : 0;
    const size_t whole = PROTOCOL_HEADER_BYTES + (size_t)header.body_bytes;
    for (size_t frames = 1; frames <= 4; frames++) /* if they are as long */
        __builtin_prefetch(bytes + ahead->at + frames * whole);
    ahead->at += whole;
    if (is_data)
        server_connection_prefetch_place(connection, header.id);
}

static bool is_due(const struct lookahead *ahead, uint32_t step, uint32_t before, uint32_t lead)
{
    return step != before && step - ahead->begun < lead;
}

/* A frame begins at `done`. Streams may end between the steps: they are looked up anew. */
static void look_ahead(const struct server_connection *connection, struct lookahead *ahead,
                       const uint8_t *bytes, size_t done, size_t count)
{
    const struct server_stream *stream;

    if (ahead->at < done)
        ahead->at = done;
    while (ahead->named - ahead->begun < LOOKAHEAD_FRAMES && ahead->at + PROTOCOL_HEADER_BYTES <= count)
        look_at_next(connection, ahead, bytes);
    for (; is_due(ahead, ahead->found, ahead->named, STREAMS_AHEAD); ahead->found++) {
        stream = server_connection_find_stream(connection, ahead->ids[ahead->found % LOOKAHEAD_FRAMES]);
        if (stream != NULL)
            server_stream_prefetch(stream);
    }
    for (; is_due(ahead, ahead->asked, ahead->found, PACKETS_AHEAD); ahead->asked++) {
        stream = server_connection_find_stream(connection, ahead->ids[ahead->asked % LOOKAHEAD_FRAMES]);
        if (stream != NULL)
            server_stream_prefetch_packet(stream);
    }
    if (connection->transport.lane != NULL)
        for (; ahead->asked_to < done + BYTES_AHEAD && ahead->asked_to < count; ahead->asked_to += 64)
            __builtin_prefetch(bytes + ahead->asked_to);
    ahead->begun++;
}

/* Consumes what it may; returns how many bytes. */
static size_t consume(struct server_connection *connection, uint8_t *bytes, size_t count, core_ns now_ns)
{
    struct lookahead ahead = {0};
    size_t done = 0;
    if (connection->input.turn != connection->io->turn)
        connection->input.controls = 0;
    connection->input.turn = connection->io->turn;
    while (done < count && accepts_input(connection) && !paused(connection) &&
           !has_had_its_turn(connection)) {
        if (connection->input.phase == SERVER_INPUT_HEADER && connection->input.done == 0)
            look_ahead(connection, &ahead, bytes, done, count);
        done += step(connection, bytes + done, count - done, now_ns);
    }
    if (done < count && accepts_input(connection) && !paused(connection))
        server_io_put_off(connection);
    return done;
}

/* Keeps what a pause left over, or a turn. The one allocation on the way of a packet, for senders above their contract
 * or with many questions only. */
static void stash(struct server_connection *connection, const uint8_t *bytes, size_t count)
{
    struct server_input *input = &connection->input;
    input->stash = malloc(count);
    if (input->stash == NULL) {
        const struct core_log_fields fields = server_stream_client_fields(&connection->client, 0);
        core_log_with(CORE_LOG_ERROR, "connection.memory", &fields,
                      "connection %lu (%s): no memory to hold its input; closed",
                      (unsigned long)connection->client.number, connection->client.peer);
        server_connection_fail(connection, 0, PROTOCOL_ERROR_LIMIT, "the server is out of memory");
        return;
    }
    memcpy(input->stash, bytes, count);
    input->stash_bytes = count;
    input->stash_done = 0;
}

static void peer_finished(struct server_connection *connection)
{
    if (connection->state == SERVER_CONNECTION_READY && !server_connection_peer_gone(connection))
        server_connection_finish(connection, PROTOCOL_CLOSE_ASKED, NULL);
    else if (connection->state == SERVER_CONNECTION_LINGERING && connection->lingering_ns == CORE_NS_NEVER)
        connection->input.ended = true;
    else
        server_connection_abort(connection);
}

/* A read that filled the buffer, or took one TLS record, may have left some; one of a lane has taken nothing yet. */
static size_t left_bytes(const struct server_connection *connection, size_t got)
{
    const struct server_transport *transport = &connection->transport;
    const bool all = transport->tls == NULL && transport->lane == NULL && got < SERVER_READ_BYTES;
    const size_t left = all ? 0 : server_transport_left_bytes(transport);
    if (transport->lane == NULL)
        return left;
    return left > got ? left - got : 0;
}

static void refuse_messages(struct server_connection *connection)
{
    const struct core_log_fields fields = server_stream_client_fields(&connection->client, 0);
    core_log_with(CORE_LOG_WARNING, "tls.messages", &fields,
                  "connection %lu (%s) sent more TLS messages without data (key updates) than it may; closed",
                  (unsigned long)connection->client.number, connection->client.peer);
    server_count_turned(connection->listener, SERVER_TURNED_MESSAGES);
    server_connection_abort(connection);
}

static void read_nothing(struct server_connection *connection, core_status status)
{
    const bool lies = status == CORE_INVALID && connection->state < SERVER_CONNECTION_LINGERING;
    if (status == CORE_NOT_FOUND)
        peer_finished(connection);
    else if (status == CORE_DENIED)
        refuse_messages(connection);
    else if (lies)
        server_connection_fail(connection, 0, PROTOCOL_ERROR_MALFORMED,
                               "the lane's counts of bytes written and read can not be");
    else if (status != CORE_AGAIN)
        server_connection_abort(connection);
}

/* One read a turn: a connection that sends much gets its next one after the others, and results that are
 * ready meanwhile leave in between. */
static size_t read_once(struct server_connection *connection)
{
    uint8_t *bytes;
    struct server_input *input = &connection->input;
    size_t got = 0, done = 0;
    core_ns now_ns = core_time_now_ns(); /* before the read: what comes later may be left */

    server_arrival_read(&input->arrival, &input->clock, connection->io->turns.since_ns, now_ns,
                        connection->io->allowed_ns);
    core_status status = server_transport_read(&connection->transport, connection->io->read_buffer,
                                               SERVER_READ_BYTES, &bytes, &got);

    if (status == CORE_OK) {
        server_arrival_took(&input->clock, &input->arrival, got, left_bytes(connection, got));
        done = consume(connection, bytes, got, now_ns);
        if (done < got && accepts_input(connection))
            stash(connection, bytes + done, got - done);
        core_secret_wipe(bytes + done, got - done);
        server_transport_taken(&connection->transport, got);
        if (connection->transport.memory >= 0 && input->phase == SERVER_INPUT_HEADER)
            server_connection_abort(connection); /* a descriptor without LANE */
    } else
        read_nothing(connection, status);
    return got;
}

size_t server_input_read(struct server_connection *connection)
{
    size_t got;

    server_io_mark(connection);
    got = read_once(connection);
    server_input_arm(connection);
    if (connection->transport.lane != NULL && connection->is_read)
        watch(connection);
    return got;
}

void server_input_resume(struct server_connection *connection)
{
    struct server_input *input = &connection->input;
    core_ns now_ns;

    if (!accepts_input(connection))
        return;
    now_ns = core_time_now_ns();
    input->held |= !server_connection_is_read(connection) && input->stopped_ns > input->arrival.earliest_ns;
    server_arrival_since(&input->arrival, input->stopped_ns, now_ns, input->held);
    if (input->phase == SERVER_INPUT_SLOT) {
        begin_data(connection, now_ns); /* anew: the stream may have failed meanwhile, and be gone */
        if (input->phase == SERVER_INPUT_SLOT)
            return;
    }
    if (input->stash != NULL) {
        input->stash_done += consume(connection, input->stash + input->stash_done,
                                     input->stash_bytes - input->stash_done, now_ns);
        if (input->stash == NULL || input->stash_done < input->stash_bytes)
            return;
        core_secret_wipe(input->stash, input->stash_bytes); /* of streams that may have ended meanwhile */
        free(input->stash);
        input->stash = NULL;
        input->stash_bytes = input->stash_done = 0;
    }
    server_input_arm(connection);
}
