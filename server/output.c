/* Writing: one queue per connection, drained with as few system calls as the socket allows. */
#include "server/io.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_FRAMES 128 /* frames in one write */

static void append(struct server_connection *connection, struct server_output *output)
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
    if (connection->state == SERVER_CONNECTION_DEAD)
        return;
    struct server_output *output = malloc(sizeof *output + bytes);
    if (output == NULL) {
        server_connection_abort(connection);
        return;
    }
    *output = (struct server_output){.frame = (uint8_t *)(output + 1), .bytes = bytes};
    memcpy(output->frame, frame, bytes);
    connection->control_bytes += bytes;
    append(connection, output);
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

/* A packet leaves the server, delivered or lost. */
static void discard_packet(struct server_packet *packet)
{
    struct server_stream *stream = packet->stream;
    server_stream_give(stream, packet);
    server_connection_settle_stream(stream);
}

void server_output_results(struct server_stream *stream)
{
    struct server_connection *connection = stream->connection;
    struct server_packet *packet;

    while ((packet = server_stream_next_ready(stream)) != NULL) {
        if (!connection->abandoned) {
            append(connection, &packet->output);
            continue;
        }
        if (packet->status == PROTOCOL_RESULT_OK)
            server_connection_count_lost(connection);
        server_stream_give(stream, packet); /* the caller settles the stream */
    }
}

/* The socket took the first byte of a result: that is the hand-over. */
static void count_result(struct server_packet *packet, const struct protocol_result *result, core_ns now_ns)
{
    struct server_stream *stream = packet->stream;
    struct server_stats *stats = &stream->connection->io->stats;
    bool met = (result->flags & PROTOCOL_RESULT_MET) != 0;
    core_ns slack_ns = packet->deadline_ns - now_ns;

    packet->output.counted = true;
    if (result->status != PROTOCOL_RESULT_OK)
        return;
    stream->totals.packets++;
    stream->totals.bytes += packet->cpu.bytes;
    server_stats_add(&stats->packets, 1);
    server_stats_add(&stats->bytes, packet->cpu.bytes);
    if (met)
        stream->totals.met++;
    else
        stream->totals.missed++;
    server_stats_add(met ? &stats->met : &stats->missed, 1);
    if ((result->flags & PROTOCOL_RESULT_READER) != 0) {
        server_stats_add(&stats->reader_late, 1);
        return; /* its latency is the reader's, not ours */
    }
    if (slack_ns < stream->slack_minimum_ns)
        stream->slack_minimum_ns = slack_ns;
    core_histogram_record(&stats->latency, result->latency_ns);
    core_histogram_record(&stats->slack, slack_ns);
}

struct batch {
    struct iovec vector[WRITE_FRAMES];
    struct protocol_result results[WRITE_FRAMES];
    int count;
};

static void gather(struct server_connection *connection, struct batch *batch, core_ns now_ns)
{
    size_t skip = connection->output_done;
    batch->count = 0;
    for (struct server_output *output = connection->output_head;
         output != NULL && batch->count < WRITE_FRAMES; output = output->next) {
        if (output->is_packet && !output->counted)
            batch->results[batch->count] =
                server_packet_stamp(packet_of(output), now_ns, connection->blocked_ns);
        batch->vector[batch->count++] =
            (struct iovec){.iov_base = output->frame + skip, .iov_len = output->bytes - skip};
        skip = 0;
    }
}

/* Takes `taken` written bytes off the queue. */
static void advance(struct server_connection *connection, struct batch *batch, size_t taken, core_ns now_ns)
{
    for (int i = 0; i < batch->count && taken > 0; i++) {
        struct server_output *output = connection->output_head;
        assert(output != NULL); /* the batch was gathered from the head of the queue */
        if (output->is_packet && !output->counted)
            count_result(packet_of(output), &batch->results[i], now_ns);
        if (taken < batch->vector[i].iov_len) {
            connection->output_done += (uint32_t)taken;
            return;
        }
        taken -= batch->vector[i].iov_len;
        connection->output_done = 0;
        connection->output_head = output->next;
        if (connection->output_head == NULL)
            connection->output_tail = NULL;
        if (output->is_packet)
            discard_packet(packet_of(output));
        else {
            connection->control_bytes -= output->bytes;
            free(output);
        }
    }
}

void server_output_arm(struct server_connection *connection, bool wanted)
{
    if (wanted && !connection->writing)
        event_add(connection->writable, NULL);
    if (!wanted && connection->writing)
        event_del(connection->writable);
    connection->writing = wanted;
}

void server_output_flush(struct server_connection *connection)
{
    core_status status = CORE_OK;
    struct batch batch;

    while (connection->output_head != NULL && status == CORE_OK) {
        core_ns now_ns = core_time_now_ns();
        size_t taken;
        gather(connection, &batch, now_ns);
        status = server_transport_write(&connection->transport, batch.vector, batch.count, &taken);
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
        if (!output->is_packet)
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
