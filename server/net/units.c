#include "server/net/units.h"

#include "core/log.h"
#include "server/stream/advance.h"

#define COLLECT_PACKETS 64
#define SUBMIT_PACKETS  64

static void add_cost(struct server_submission *submission, const struct server_packet *packet,
                     const struct config_profile *profile)
{
    const struct server_stream *stream = packet->stream;
    const struct core_stream_spec *spec = &stream->spec;
    const bool is_piece = stream->units.at_worker == 1 && spec->records == CORE_RECORDS_NONE &&
                          packet->cpu.bytes <= stream->cpu->piece_bytes; /* nothing of it is a worker's now */

    submission->is_burst = (submission->packets == 0 || submission->is_burst) && is_piece;
    submission->packets++;
    submission->ciphers |= 1u << (spec->cipher - 1);
    if (is_piece)
        submission->pieces_ns +=
            perfmodel_cpu_piece_cost_ns(profile, spec->cipher, spec->direction, packet->cpu.bytes);
}

void server_units_queue(struct server_stream_io *io, struct server_packet *packet)
{
    struct server_submission *submission =
        &((struct server_io *)io)->submissions[packet->stream->units.worker];
    server_packet_fill(packet);
    packet->cpu.next = NULL;
    packet->stream->units.at_worker++;
    if (submission->tail == NULL)
        submission->head = &packet->cpu;
    else
        submission->tail->next = &packet->cpu;
    submission->tail = &packet->cpu;
    add_cost(submission, packet, io->server->profile);
}

/* Nothing of it is encrypted: it is done as soon as a unit would have got it. */
static void pass_through(const struct server *server, struct server_packet *packet, core_ns now_ns)
{
    const struct server_stream_units *units = &packet->stream->units;

    server_packet_fill(packet);
    server_packet_hand(packet,
                       units->gpu != NULL ? server_unit_of_gpu(server, server_gpu_binding_gpu(units->gpu))
                                          : server_unit_of_worker(server, units->worker),
                       now_ns);
    packet->cpu.started_ns = packet->cpu.finished_ns = now_ns;
    packet->ready = true;
}

/* Hands the packet on if it may go by until_ns. False: not before *wake_ns (CORE_NS_NEVER: until told). */
static bool hand_over(struct server_io *io, struct server_packet *packet, core_ns now_ns, core_ns until_ns,
                      core_ns *wake_ns)
{
    struct server_stream *stream = packet->stream;
    core_ns ready_ns = server_pacer_next_ns(&stream->pace, packet->eligible_ns);

    *wake_ns = server_path_waits(stream->path) ? CORE_NS_NEVER : ready_ns;
    if (server_path_waits(stream->path) || ready_ns > until_ns)
        return false;
    packet->cpu.release_ns = server_pacer_release_ns(&stream->pace, ready_ns) + stream->in_ns;
    if (packet->cpu.bytes == 0)
        pass_through(io->server, packet, now_ns);
    else if (stream->units.gpu != NULL) {
        if (!server_gpu_binding_put(&io->streams, packet, ready_ns, until_ns - PERFMODEL_CPU_EARLY_NS,
                                    wake_ns))
            return false;
        server_packet_hand(packet, server_unit_of_gpu(io->server, server_gpu_binding_gpu(stream->units.gpu)),
                           now_ns); /* or its worker, when that gets it */
    } else
        server_units_queue(&io->streams, packet);
    server_pacer_take(&stream->pace, packet->eligible_ns, packet->policed);
    return true;
}

/* Packets that were passed through may be the next ones to leave. */
static void deliver(struct server_stream *stream)
{
    if (stream->queue.head == NULL || !stream->queue.head->ready)
        return;
    server_output_results(stream);
    server_io_mark(server_connection_of(stream));
}

static void wait_from(struct server_io *io, struct server_packet *packet, core_ns wake_ns)
{
    struct server_stream *stream = packet->stream;
    stream->queue.waiting = packet;
    server_eligible_queue_remove(&io->waiting, &stream->waiter); /* a change of contract may wait, too */
    if (wake_ns != CORE_NS_NEVER)
        server_eligible_queue_add(&io->waiting, &stream->waiter, wake_ns);
}

void server_units_submit(struct server_io *io, struct server_stream *stream, struct server_packet *packet,
                         core_ns now_ns)
{
    core_ns wake_ns;
    if (stream->queue.waiting != NULL)
        server_packet_fill(packet); /* behind it */
    else if (server_gpu_binding_is_stale(stream)) {
        server_packet_fill(packet);
        wait_from(io, packet, now_ns); /* the stream is advanced first */
    } else if (!hand_over(io, packet, now_ns, now_ns + PERFMODEL_CPU_EARLY_NS, &wake_ns)) {
        server_packet_fill(packet);
        wait_from(io, packet, wake_ns);
    } else
        deliver(stream);
}

/* Hands over the stream's packets that are eligible by until_ns. */
static void release_stream(struct server_io *io, struct server_stream *stream, core_ns now_ns,
                           core_ns until_ns)
{
    struct server_packet *packet;
    core_ns wake_ns = CORE_NS_NEVER;

    server_eligible_queue_remove(&io->waiting, &stream->waiter);
    /* before the next packet there may be a gap, or one is waited for; or its GPU is lost */
    if (stream->modify != NULL || server_gpu_binding_is_stale(stream))
        server_stream_advance(stream, core_time_now_ns());
    packet = stream->queue.waiting;
    stream->queue.waiting = NULL;
    for (; packet != NULL; packet = packet->next)
        if (!packet->ready && !hand_over(io, packet, now_ns, until_ns, &wake_ns))
            break;
    if (packet != NULL)
        wait_from(io, packet, wake_ns);
    deliver(stream);
}

void server_units_release(struct server_stream *stream)
{
    struct server_io *io = server_connection_of(stream)->io;

    if (stream->queue.waiting == NULL)
        return;
    server_eligible_queue_remove(&io->waiting, &stream->waiter);
    server_eligible_queue_add(&io->waiting, &stream->waiter, core_time_now_ns());
}

void server_units_release_waiting(struct server_io *io, core_ns now_ns, core_ns until_ns)
{
    struct server_waiter *waiter;
    while ((waiter = server_eligible_queue_first(&io->waiting)) != NULL && waiter->eligible_ns <= until_ns)
        release_stream(io, (struct server_stream *)waiter, now_ns, until_ns);
}

/* The engine could not encrypt: the chain is broken, so nothing after this packet is of use. */
static void fail_stream(struct server_stream *stream, struct server_packet *packet)
{
    const struct core_log_fields fields = server_stream_client_fields(stream->client, stream->id);
    if (stream->close_reason != PROTOCOL_CLOSE_FAILED)
        core_log_with(CORE_LOG_ERROR, "stream.failed", &fields,
                      "connection %lu stream %u: the cipher failed; stream closed",
                      (unsigned long)stream->client->number, stream->id);
    packet->status = PROTOCOL_RESULT_FAILED;
    stream->state = SERVER_STREAM_CLOSING;
    stream->close_reason = PROTOCOL_CLOSE_FAILED;
}

static void collect_from(struct server_io *io, uint32_t worker, server_units_collect_fn *take)
{
    struct cpu_packet *batch[COLLECT_PACKETS];
    uint32_t count;

    do {
        count = take(io->server->workers[worker], io->index, batch, COLLECT_PACKETS);
        for (uint32_t i = 0; i < count; i++) {
            struct server_packet *packet = (struct server_packet *)batch[i];
            struct server_stream *stream = packet->stream;
            packet->ready = true;
            stream->units.worked = true;
            stream->units.pauses = batch[i]->pauses;
            if (batch[i]->status != CORE_OK || stream->close_reason == PROTOCOL_CLOSE_FAILED)
                fail_stream(stream, packet);
            server_io_mark(server_connection_of(stream));
            server_output_results(stream);
            stream->units.at_worker--;
            if (stream->units.gpu != NULL || stream->migration != NULL || stream->modify != NULL)
                server_stream_advance(stream, core_time_now_ns());
            server_connection_settle_stream(stream);
        }
    } while (count == COLLECT_PACKETS);
}

static void flush_submission(struct server_io *io, uint32_t worker, core_ns now_ns)
{
    struct server_submission *submission = &io->submissions[worker];
    struct cpu_packet *batch[SUBMIT_PACKETS];

    while (submission->head != NULL) {
        uint32_t count = 0, taken;
        for (struct cpu_packet *packet = submission->head; packet != NULL && count < SUBMIT_PACKETS;
             packet = packet->next) {
            server_packet_hand((struct server_packet *)packet, server_unit_of_worker(io->server, worker),
                               now_ns); /* before it is the worker's */
            batch[count++] = packet;
        }
        struct cpu_packet *rest = batch[count - 1]->next; /* the worker may reuse `next` from here on */
        taken = cpu_worker_put(io->server->workers[worker], io->index, batch, count);
        submission->head = taken == count ? rest : batch[taken];
        if (taken < count)
            return; /* ring full: again when results come back */
    }
    *submission = (struct server_submission){0};
}

/* May this thread encrypt them in place of their worker? */
static bool may_serve(const struct server_io *io, uint32_t worker)
{
    const struct server_submission *submission = &io->submissions[worker];
    return io->server->io_count == 1 && worker < io->server->worker_count && submission->is_burst &&
           submission->packets <= io->worker.burst_pieces;
}

/* For a burst, and as long again for writing its results. */
static bool has_time(const struct server_io *io, core_ns cost_ns)
{
    const core_ns now_ns = core_time_now_ns(), took_ns = now_ns - server_polls_from_ns(&io->turns);
    return now_ns + 2 * cost_ns <= io->rest_until_ns ||
           took_ns + 2 * cost_ns <= io->server->profile->margins.in_ns;
}

void server_units_flush(struct server_io *io, bool serves)
{
    core_ns now_ns = 0; /* the clock is read if there is anything to submit */
    for (uint32_t at = 0; at < io->server->all_workers; at++) {
        const struct server_submission submission = io->submissions[at];
        if (submission.head == NULL)
            continue;
        now_ns = now_ns == 0 ? core_time_now_ns() : now_ns;
        io->unserved[at] = (struct server_unserved){0};
        if (serves && may_serve(io, at))
            io->unserved[at] = (struct server_unserved){.packets = submission.packets,
                                                        .cost_ns = submission.pieces_ns +
                                                                   io->worker.lanes_ns[submission.ciphers]};
        flush_submission(io, at, now_ns);
        if (io->unserved[at].packets == 0)
            cpu_worker_nudge(io->server->workers[at]);
    }
}

bool server_units_serve(struct server_io *io)
{
    bool served = false;
    for (uint32_t at = 0; at < io->server->worker_count; at++) {
        const struct server_unserved unserved = io->unserved[at];
        io->unserved[at] = (struct server_unserved){0};
        if (unserved.packets == 0)
            continue;
        if (!has_time(io, unserved.cost_ns))
            cpu_worker_nudge(io->server->workers[at]);
        else if (cpu_worker_serve(io->server->workers[at], io->index)) {
            server_stats_add(&io->stats.served, unserved.packets);
            collect_from(io, at, cpu_worker_poll);
            served = true;
        }
    }
    return served;
}

void server_units_collect(struct server_io *io, server_units_collect_fn *take)
{
    for (uint32_t worker = 0; worker < io->server->all_workers; worker++)
        collect_from(io, worker, take);
    io->behind = server_gpu_collect(&io->streams);
    if (io->behind)
        server_io_notify(io); /* the rest in the next turn, which begins at once */
}
