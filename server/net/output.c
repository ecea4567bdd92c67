/* Writing: one queue per connection, drained with as few system calls as the socket allows. */
#include "server/net/io.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_FRAMES 128 /* frames in one write */

void server_output_append(struct server_connection *connection, struct server_output *output)
{
    output->next = NULL;
    if (connection->output_tail == NULL)
        connection->output_head = output;
    else
        connection->output_tail->next = output;
    connection->output_tail = output;
    server_io_mark(connection);
}

void server_output_control(struct server_connection *connection, const uint8_t *frame, uint32_t bytes)
{
    if (connection->state >= SERVER_CONNECTION_LINGERING)
        return;
    struct server_output *output = malloc(sizeof *output + bytes);
    if (output == NULL) {
        server_connection_abort(connection);
        return;
    }
    *output = (struct server_output){.frame = (uint8_t *)(output + 1), .frame_bytes = (uint16_t)bytes};
    memcpy(output->frame, frame, bytes);
    connection->control_bytes += bytes;
    server_output_append(connection, output);
}

void server_output_error(struct server_connection *connection, uint32_t id, enum protocol_error code,
                         bool fatal, const char *text)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    server_stats_add(&connection->io->stats.errors, 1);
    server_output_control(connection, frame, protocol_error_write(frame, id, code, fatal, text));
}

static struct server_packet *packet_of(struct server_output *output)
{
    return (struct server_packet *)((char *)output - offsetof(struct server_packet, output));
}

/* A packet leaves the queue and the server, delivered or lost. */
static void discard_packet(struct server_packet *packet)
{
    struct server_stream *stream = packet->stream;
    server_connection_of(stream)->borrowed -= server_packet_borrows(packet) ? 1 : 0;
    server_stream_give(stream, packet);
    server_connection_settle_stream(stream);
}

/* A reader that keeps us waiting must not keep others' memory. */
static void append_result(struct server_connection *connection, struct server_packet *packet)
{
    if (connection->blocked_ns != CORE_NS_NEVER)
        server_packet_keep(packet);
    connection->borrowed += server_packet_borrows(packet) ? 1 : 0;
    server_output_append(connection, &packet->output);
}

/* What the socket did not take is kept in the packets' own slots. */
static void keep_results(struct server_connection *connection)
{
    for (struct server_output *output = connection->output_head; output != NULL && connection->borrowed > 0;
         output = output->next)
        if (output->is_packet && server_packet_borrows(packet_of(output))) {
            server_packet_keep(packet_of(output));
            connection->borrowed--;
        }
}

void server_output_results(struct server_stream *stream)
{
    struct server_connection *connection = server_connection_of(stream);
    struct server_packet *packet;

    if (connection->state >= SERVER_CONNECTION_LINGERING && !connection->client.abandoned)
        return; /* they are dropped at the end of the turn */
    while ((packet = server_stream_next_ready(stream)) != NULL) {
        if (!connection->client.abandoned) {
            append_result(connection, packet);
            continue;
        }
        if (packet->status == PROTOCOL_RESULT_OK)
            server_connection_count_lost(connection);
        server_stream_give(stream, packet); /* the caller settles the stream */
    }
}

/* The times of the batch of a packet that a GPU has returned; NULL: they are no longer known. */
static const struct server_gpu_times *batch_of(const struct server_packet *packet)
{
    const struct server_io *io = server_connection_of(packet->stream)->io;
    return server_gpu_port_times(&io->streams.ports[server_unit_gpu(io->server, packet->unit)],
                                 packet->cpu.finished_ns);
}

/* Ends of the stages of a packet that its unit has returned, in their order. */
static void stage_ends(const struct server_packet *packet, core_ns now_ns,
                       core_ns ends_ns[SERVER_TAIL_LATENCY_STAGES])
{
    const struct server_io *io = server_connection_of(packet->stream)->io;
    const struct server_gpu_times *batch = NULL;

    ends_ns[SERVER_TAIL_LATENCY_HAND_OVER] = packet->eligible_ns + packet->handed_ns;
    ends_ns[SERVER_TAIL_LATENCY_DELIVERY] = now_ns;
    ends_ns[SERVER_TAIL_LATENCY_ENCRYPT] = ends_ns[SERVER_TAIL_LATENCY_COPY_DOWN] = packet->cpu.finished_ns;
    if (!server_unit_is_gpu(io->server, packet->unit)) {
        ends_ns[SERVER_TAIL_LATENCY_QUEUE] = ends_ns[SERVER_TAIL_LATENCY_COPY_UP] = packet->cpu.started_ns;
        return;
    }
    batch = batch_of(packet);
    ends_ns[SERVER_TAIL_LATENCY_QUEUE] = batch != NULL ? batch->closed_ns : packet->cpu.finished_ns;
    ends_ns[SERVER_TAIL_LATENCY_COPY_UP] = batch != NULL ? batch->up_ns : packet->cpu.finished_ns;
    ends_ns[SERVER_TAIL_LATENCY_ENCRYPT] = batch != NULL ? batch->kernel_ns : packet->cpu.finished_ns;
    ends_ns[SERVER_TAIL_LATENCY_COPY_DOWN] = batch != NULL ? batch->ended_ns : packet->cpu.finished_ns;
}

/* Of the contract that was in force for it. */
static core_ns latency_bound_ns(const struct server_packet *packet)
{
    return packet->deadline_ns - packet->eligible_ns + packet->unseen_ns;
}

static void read_unit(const struct server_packet *packet, struct server_cause_way *way,
                      struct server_cause_stalls *stalls)
{
    const struct server *server = packet->stream->client->io->server;

    if (!server_unit_is_gpu(server, packet->unit)) {
        const struct cpu_worker *worker = server->workers[server_unit_worker(server, packet->unit)];
        way->unit_ns = CORE_NS_NEVER;
        stalls->count = core_stalls_read(cpu_worker_stalls(worker), way->handed_ns, stalls->list);
        return;
    }
    const struct server_gpu *gpu = server->gpus[server_unit_gpu(server, packet->unit)];
    const struct server_gpu_times *batch = batch_of(packet);
    if (batch != NULL) /* that it was noticed late is on the way back */
        way->finished_ns = batch->ended_ns;
    way->unit_ns = atomic_load_explicit(&server_gpu_figures(gpu)->latency_ns, memory_order_relaxed);
    stalls->count = 0;
}

/* What became of a packet that went to its socket just now, and of those before it. */
static struct server_cause_verdict find_cause(const struct server_packet *packet, core_ns now_ns)
{
    struct server_io *io = server_connection_of(packet->stream)->io;
    core_ns blocked_ns = server_connection_of(packet->stream)->blocked_ns;
    struct server_cause_stalls of_io, of_unit;
    struct server_cause_way way = {.from_ns = packet->eligible_ns - packet->unseen_ns,
                                   .handed_ns = packet->eligible_ns + packet->handed_ns,
                                   .finished_ns = packet->cpu.finished_ns,
                                   .deadline_ns = packet->deadline_ns,
                                   .io_ns = io->allowed_ns + io->server->profile->margins.out_ns,
                                   .diverted = packet->diverted};

    way.at_ns = blocked_ns < now_ns ? core_time_max(blocked_ns, way.finished_ns) : now_ns;
    server_io_admit_stall(io, now_ns);
    of_io.count = core_stalls_read(&io->stats.stalls, way.from_ns, of_io.list);
    read_unit(packet, &way, &of_unit);
    return server_cause_find(&way, &of_io, &of_unit);
}

static uint32_t holder_of(const struct server_packet *packet, enum server_cause_holder holder)
{
    return holder == SERVER_CAUSE_OF_NONE   ? SERVER_TAIL_LATENCY_NONE
           : holder == SERVER_CAUSE_OF_UNIT ? packet->unit
                                            : SERVER_TAIL_LATENCY_IO + packet->stream->client->io->index;
}

/* One of the worst so far. A packet may be handed over, and even be finished, a little before it is eligible:
 * stages begin then. */
static void enter_worst(const struct server_packet *packet, const struct server_cause_verdict *verdict,
                        struct server_tail_latency *worst, core_ns now_ns)
{
    const struct server_stream *stream = packet->stream;
    core_ns ends_ns[SERVER_TAIL_LATENCY_STAGES], begin_ns = packet->eligible_ns - packet->unseen_ns;
    struct server_tail_latency_packet entry = {.slack_ns = packet->deadline_ns - now_ns,
                                               .at_ns = now_ns,
                                               .bound_ns = latency_bound_ns(packet),
                                               .waited_ns = packet->eligible_ns - packet->arrival_ns,
                                               .connection = stream->client->number,
                                               .stream = stream->id,
                                               .sequence = packet->sequence,
                                               .unit = packet->unit,
                                               .diverted = packet->diverted,
                                               .held_ns = verdict->held_ns,
                                               .cause = verdict->cause,
                                               .holder = holder_of(packet, verdict->holder)};

    stage_ends(packet, now_ns, ends_ns);
    for (int stage = 0; stage < SERVER_TAIL_LATENCY_STAGES; stage++) {
        core_ns end_ns = core_time_max(begin_ns, ends_ns[stage]);
        entry.stage_ns[stage] = end_ns - begin_ns;
        begin_ns = end_ns;
    }
    server_tail_latency_enter(worst, &entry);
}

/* A packet whose time was the server's own. */
static void count_slack(struct server_packet *packet, struct server_stats *stats, core_ns slack_ns)
{
    struct server_stream *stream = packet->stream;

    if (slack_ns < stream->account.slack_minimum_ns)
        stream->account.slack_minimum_ns = slack_ns;
    server_stream_account_slack(&stream->account, slack_ns, latency_bound_ns(packet));
    core_histogram_record(&stats->units[packet->unit].slack, slack_ns);
    if (slack_ns < 0)
        core_histogram_record(&stats->units[packet->unit].lateness, -slack_ns);
}

static void count_missed(const struct server_packet *packet, enum server_cause cause,
                         struct server_stats *stats)
{
    struct server_stream *stream = packet->stream;

    stream->account.totals.missed++;
    server_stats_add(&stats->missed, 1);
    server_stats_add(&stats->missed_by[cause], 1);
    server_stats_add(&stats->guaranteed_missed, stream->spec.guaranteed ? 1 : 0);
    server_stats_add(&stats->units[packet->unit].missed, 1);
    if (!packet->diverted)
        return;
    stream->account.fault_late++;
    server_stats_add(&stats->diverted_late, 1);
}

/* The socket took the first byte of a result: that is the hand-over. */
static void count_result(struct server_packet *packet, const struct protocol_result *result, core_ns now_ns)
{
    struct server_stream *stream = packet->stream;
    struct server_stats *stats = stream->client->io->stats;

    packet->output.counted = true;
    if (result->status != PROTOCOL_RESULT_OK)
        return;
    stream->account.totals.packets++;
    stream->account.totals.bytes += packet->cpu.bytes;
    server_stats_add(&stats->packets, 1);
    server_stats_add(&stats->bytes, packet->cpu.bytes);
    server_stats_add(&stats->guaranteed, stream->spec.guaranteed ? 1 : 0);
    if (server_unit_is_gpu(stream->client->io->server, packet->unit))
        server_stats_add(&stats->gpu_packets, 1);
    core_ns slack_ns = packet->deadline_ns - now_ns;
    bool met = (result->flags & PROTOCOL_RESULT_MET) != 0;
    bool worst =
        (result->flags & PROTOCOL_RESULT_READER) == 0 && server_tail_latency_wants(&stats->worst, slack_ns);
    struct server_cause_verdict verdict = {0};
    if (!met || worst)
        verdict = find_cause(packet, now_ns);
    if (!met)
        count_missed(packet, verdict.cause, stats);
    else {
        stream->account.totals.met++;
        server_stats_add(&stats->met, 1);
    }
    if ((result->flags & PROTOCOL_RESULT_READER) != 0) {
        stream->account.reader_late++;
        server_stats_add(&stats->reader_late, 1);
        server_stats_add(&stats->units[packet->unit].reader_late, 1);
        return; /* its latency is the reader's, not ours */
    }
    core_histogram_record(&stats->latency, result->latency_ns);
    count_slack(packet, stats, slack_ns);
    if (worst)
        enter_worst(packet, &verdict, &stats->worst, now_ns);
}

/* What one write is to take. A result is one piece, or two where its ciphertext is not behind its header. */
struct batch {
    struct iovec vector[2 * WRITE_FRAMES];
    struct protocol_result results[WRITE_FRAMES];
    uint32_t bytes[WRITE_FRAMES]; /* of each frame, without what was written before */
    int pieces, frames;
};

static void add_piece(struct batch *batch, const uint8_t *bytes, uint32_t count, uint32_t *skip)
{
    uint32_t skipped = *skip < count ? *skip : count;
    *skip -= skipped;
    if (skipped < count)
        batch->vector[batch->pieces++] =
            (struct iovec){.iov_base = (uint8_t *)bytes + skipped, .iov_len = count - skipped};
}

static void add_frame(struct batch *batch, const struct server_output *output, uint32_t skip)
{
    batch->bytes[batch->frames++] = output->frame_bytes + output->payload_bytes - skip;
    if (output->payload == output->frame + output->frame_bytes) {
        add_piece(batch, output->frame, output->frame_bytes + output->payload_bytes, &skip);
        return;
    }
    add_piece(batch, output->frame, output->frame_bytes, &skip);
    add_piece(batch, output->payload, output->payload_bytes, &skip);
}

static void gather(struct server_connection *connection, struct batch *batch, core_ns now_ns)
{
    uint32_t skip = connection->output_done;
    batch->pieces = batch->frames = 0;
    for (struct server_output *output = connection->output_head;
         output != NULL && batch->frames < WRITE_FRAMES; output = output->next) {
        if (output->is_packet && !output->counted)
            batch->results[batch->frames] =
                server_packet_stamp(packet_of(output), now_ns, connection->blocked_ns);
        add_frame(batch, output, skip);
        skip = 0;
    }
}

/* Takes `taken` written bytes off the queue. */
static void advance(struct server_connection *connection, struct batch *batch, size_t taken, core_ns now_ns)
{
    for (int i = 0; i < batch->frames && taken > 0; i++) {
        struct server_output *output = connection->output_head;
        assert(output != NULL); /* the batch was gathered from the head of the queue */
        if (output->is_packet && !output->counted)
            count_result(packet_of(output), &batch->results[i], now_ns);
        if (taken < batch->bytes[i]) {
            connection->output_done += (uint32_t)taken;
            output->counted = true;
            return;
        }
        taken -= batch->bytes[i];
        connection->output_done = 0;
        connection->output_head = output->next;
        if (connection->output_head == NULL)
            connection->output_tail = NULL;
        if (output->is_packet)
            discard_packet(packet_of(output));
        else if (output->is_notification)
            server_notification_left(output);
        else {
            connection->control_bytes -= output->frame_bytes;
            free(output);
        }
    }
}

void server_output_arm(struct server_connection *connection, bool wanted)
{
    server_connection_watch(connection, EPOLLOUT, wanted && connection->transport.lane == NULL);
}

void server_output_flush(struct server_connection *connection)
{
    core_status status = CORE_OK;
    struct batch batch;

    while (connection->output_head != NULL && status == CORE_OK &&
           connection->state < SERVER_CONNECTION_BROKEN) {
        core_ns now_ns = core_time_now_ns();
        size_t taken;
        gather(connection, &batch, now_ns);
        status = server_transport_write(&connection->transport, batch.vector, batch.pieces, &taken);
        if (taken > 0)
            connection->progress_ns = now_ns;
        advance(connection, &batch, taken, now_ns);
        if (status == CORE_AGAIN) {
            if (connection->blocked_ns == CORE_NS_NEVER)
                connection->blocked_ns = connection->progress_ns = now_ns;
            connection->input.stopped_ns = CORE_NS_NEVER; /* from here on the delay is the reader's */
        }
    }
    if (status == CORE_OK)
        status = connection->transport.tls == NULL ? CORE_OK : server_transport_flush(&connection->transport);
    if (status == CORE_CLOSED) {
        server_connection_abort(connection);
        return;
    }
    if (status == CORE_OK)
        connection->blocked_ns = CORE_NS_NEVER;
    connection->client.lags = status == CORE_AGAIN;
    keep_results(connection);
    server_output_arm(connection, status == CORE_AGAIN || connection->transport.wants_write);
}

void server_output_purge(struct server_connection *connection)
{
    struct server_output *output = connection->output_head;
    connection->output_head = connection->output_tail = NULL;
    connection->output_done = 0;
    connection->control_bytes = 0;
    while (output != NULL) {
        struct server_output *next = output->next;
        if (output->is_notification)
            server_notification_left(output);
        else if (!output->is_packet)
            free(output);
        else {
            struct server_packet *packet = packet_of(output);
            if (!output->counted && packet->status == PROTOCOL_RESULT_OK)
                server_connection_count_lost(connection);
            discard_packet(packet);
        }
        output = next;
    }
}
