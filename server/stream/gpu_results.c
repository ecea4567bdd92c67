/* An I/O thread's places at the GPUs: what the batchers tell it, and the packets that come back from them. */
#include "core/log.h"
#include "server/stream/advance.h"
#include "server/stream/backup.h"
#include "server/stream/gpu_binding.h"
#include "server/stream/io_thread.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Of what a card has lost so much is copied in a turn, a few microseconds; a packet costs so much beside its
 * bytes, and a place that is told. */
#define TURN_BYTES (32 << 10)
#define STEP_BYTES 512

/* ---- packets out ---- */

/* Nobody waits for it any more; nor, once the card has returned all, for those before it. */
static void discard(struct server_packet *packet)
{
    struct server_stream *stream = packet->stream;

    packet->ready = true;
    if (stream->path == SERVER_PATH_LOSING && stream->units.gpu->inside == 0)
        for (packet = stream->queue.head; packet != NULL; packet = packet->next)
            packet->ready = true;
    stream->client->io->calls->results(stream);
    stream->client->io->calls->settle(stream);
}

/* Encrypted again elsewhere: goes to a worker in this turn, at whose end the batch is released, or waits in
 * its slot. */
static void run_again(struct server_stream_io *io, struct server_packet *packet)
{
    struct server_stream *stream = packet->stream;

    stream->units.gpu->inside--;
    if (stream->client->abandoned)
        discard(packet);
    else if (server_backup_is_held(stream)) {
        assert(packet->cpu.data == server_packet_payload(packet));
        stream->units.gpu->lost = true;
        server_stream_advance(stream, core_time_now_ns());
    } else {
        server_gpu_binding_divert(io, packet, 0);
        if (stream->units.gpu->inside == 0)
            server_stream_advance(stream, core_time_now_ns());
    }
}

/* Encrypts the plaintext anew, from the chaining value before it, and compares. */
static bool is_right(struct server_stream_io *io, const struct server_packet *packet,
                     const uint8_t *ciphertext)
{
    struct cpu_stream *cpu = packet->stream->cpu;
    uint8_t chain[CORE_BLOCK_BYTES];
    core_status status = CORE_OK;

    memcpy(chain, packet->cpu.begins_unit ? server_packet_payload(packet) - CORE_BLOCK_BYTES : cpu->chain,
           sizeof chain);
    for (uint32_t done = 0; done < packet->cpu.bytes && status == CORE_OK; done += CPU_PIECE_BYTES_MAX) {
        uint32_t left = packet->cpu.bytes - done;
        struct cpu_piece piece = {.source = packet->cpu.data + done,
                                  .target = io->scratch + done,
                                  .bytes = left < CPU_PIECE_BYTES_MAX ? left : CPU_PIECE_BYTES_MAX,
                                  .chain = chain,
                                  .key = cpu_stream_key(cpu, packet->cpu.key)};
        status = io->server->engine->encrypt(io->engine, packet->stream->spec.cipher, &piece, 1);
    }
    server_stats_add(&io->stats->audited, 1);
    return status == CORE_OK && memcmp(io->scratch, ciphertext, packet->cpu.bytes) == 0;
}

static void deliver(struct server_packet *packet, const uint8_t *ciphertext, core_ns noticed_ns)
{
    struct server_stream *stream = packet->stream;

    stream->units.gpu->inside--;
    memcpy(stream->cpu->chain, ciphertext + packet->cpu.bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    packet->output.payload = ciphertext;
    packet->cpu.finished_ns = noticed_ns;
    packet->ready = true;
    if (stream->close_reason == PROTOCOL_CLOSE_FAILED)
        packet->status = PROTOCOL_RESULT_FAILED;
    /* where it must wait for another, and the batch for nobody; or has an end that no batch has */
    if (stream->queue.head != packet || server_packet_clear_bytes(packet) > 0)
        server_packet_keep(packet);
    stream->client->io->calls->mark(stream->client);
    stream->client->io->calls->results(stream);
    if (stream->units.secondary != NULL || stream->migration != NULL)
        server_stream_advance(stream, core_time_now_ns());
    stream->client->io->calls->settle(stream);
}

static void report(struct server_stream_io *io, struct server_gpu_port *port,
                   const struct server_packet *packet, uint64_t batch)
{
    struct core_log_fields fields = server_stream_client_fields(packet->stream->client, packet->stream->id);
    fields.unit = server_gpu_name(port->gpu);
    core_log_with(CORE_LOG_ERROR, "gpu.corrupt", &fields,
                  "%s: batch %llu: audit: the ciphertext of connection %llu, stream %u differs from the CPU "
                  "reference; GPU taken out of service",
                  server_gpu_name(port->gpu), (unsigned long long)batch,
                  (unsigned long long)packet->stream->client->number, packet->stream->id);
    server_stats_add(&io->stats->corrupt, 1);
    port->distrusted = true;
    server_gpu_report_corrupt(port->gpu, batch);
}

/* Of a packet that was compared the CPU's result is sent: the card's memory may change until it is gone. */
static void take_packet(struct server_stream_io *io, struct server_gpu_port *port,
                        struct server_packet *packet, const uint8_t *ciphertext,
                        const struct server_gpu_event *event)
{
    if (!port->distrusted && event->kind == SERVER_GPU_DONE && packet->audited &&
        !packet->stream->client->abandoned) {
        if (is_right(io, packet, ciphertext))
            ciphertext = memcpy(packet->cpu.data, io->scratch, packet->cpu.bytes);
        else
            report(io, port, packet, event->batch);
    }
    if (port->distrusted || event->kind == SERVER_GPU_LOST)
        run_again(io, packet);
    else
        deliver(packet, ciphertext, event->times.noticed_ns);
}

/* Does what is in the batch come to nothing? */
static bool is_lost(const struct server_gpu_port *port, const struct server_gpu_event *event)
{
    return event->kind == SERVER_GPU_LOST || (event->kind == SERVER_GPU_DONE && port->distrusted);
}

static struct server_packet *packet_of(const struct gpu_record *record)
{
    return (struct server_packet *)(uintptr_t)(record->cookie & ~(uint64_t)SERVER_GPU_BACKED);
}

/* What guaranteed streams have in batches that are lost, as far as that is told, leaves them before all else. */
static void clear_backed(struct server_stream_io *io, struct server_gpu_port *port)
{
    const struct gpu_arenas *arenas = server_gpu_arenas(port->gpu);
    struct server_gpu_event event;

    for (uint32_t i = 0; server_gpu_event_at(port->gpu, io->index, i, &event); i++) {
        if (!is_lost(port, &event) || event.batch <= port->cleared)
            continue;
        struct gpu_record_list left = i == 0 && port->taking.begun
                                          ? port->taking.left
                                          : gpu_arena_records(arenas, io->index, event.batch);
        for (const struct gpu_record *record; (record = gpu_record_next(&left)) != NULL;)
            if ((record->cookie & SERVER_GPU_BACKED) != 0)
                run_again(io, packet_of(record));
        port->cleared = event.batch;
    }
}

/* False: *budget is spent, and packets that were lost are left. */
static bool take_batch(struct server_stream_io *io, struct server_gpu_port *port,
                       const struct server_gpu_event *event, int64_t *budget)
{
    const uint8_t *output = gpu_arena_output(server_gpu_arenas(port->gpu), event->batch);

    while (port->taking.left.left > 0) {
        bool lost = is_lost(port, event);
        if (lost && *budget <= 0)
            return false;
        const struct gpu_record *record = gpu_record_next(&port->taking.left);
        if (lost && (record->cookie & SERVER_GPU_BACKED) != 0 && event->batch <= port->cleared)
            continue;
        take_packet(io, port, packet_of(record), output + record->offset_bytes, event);
        if (!lost && port->distrusted)
            clear_backed(io, port);
        if (lost)
            *budget -= (int64_t)record->bytes + STEP_BYTES;
    }
    port->done[port->done_count++] = event->batch;
    return true;
}

const struct server_gpu_times *server_gpu_port_times(const struct server_gpu_port *port, core_ns noticed_ns)
{
    for (uint32_t i = 0; i < GPU_REGION_ARENAS_MAX; i++)
        if (port->times[i].noticed_ns == noticed_ns)
            return &port->times[i];
    return NULL;
}

/* ---- events ---- */

/* A place whose key is at the batcher learns it from the answer. */
static void tell(struct server_gpu_binding *place)
{
    if (!place->port->up)
        server_stream_advance(place->stream, core_time_now_ns());
    else if (!place->asking && !server_gpu_binding_is_keyed(place))
        server_gpu_binding_send_again(place);
}

/* False: *budget is spent, and places are left. Any of them may go meanwhile, where a migration ends. */
static bool tell_places(struct server_gpu_port *port, int64_t *budget)
{
    for (struct server_gpu_binding *place; (place = port->taking.place) != NULL;) {
        if (*budget <= 0)
            return false;
        port->taking.place = place->next;
        tell(place);
        *budget -= STEP_BYTES;
    }
    return true;
}

static void begin(struct server_stream_io *io, struct server_gpu_port *port,
                  const struct server_gpu_event *event)
{
    port->taking = (struct server_gpu_taking){.begun = true};
    switch (event->kind) {
    case SERVER_GPU_DOWN:
    case SERVER_GPU_UP:
        port->up = event->kind == SERVER_GPU_UP;
        port->distrusted = false;
        port->generation = port->up ? event->generation : port->generation;
        port->taking.place = port->places;
        break;
    case SERVER_GPU_DONE:
        port->times[event->batch % GPU_REGION_ARENAS_MAX] = event->times;
        /* fall through */
    case SERVER_GPU_LOST:
        port->taking.left = gpu_arena_records(server_gpu_arenas(port->gpu), io->index, event->batch);
    }
}

/* False: *budget is spent, and something is left. */
static bool collect_port(struct server_stream_io *io, struct server_gpu_port *port, int64_t *budget)
{
    struct server_gpu_event event;

    while (server_gpu_event_at(port->gpu, io->index, 0, &event)) {
        const bool of_batch = event.kind == SERVER_GPU_DONE || event.kind == SERVER_GPU_LOST;
        if (!port->taking.begun)
            begin(io, port, &event);
        if (!port->up || port->distrusted)
            clear_backed(io, port);
        if (!(of_batch ? take_batch(io, port, &event, budget) : tell_places(port, budget)))
            return false;
        port->taking.begun = false;
        server_gpu_event_done(port->gpu, io->index);
    }
    return true;
}

bool server_gpu_collect(struct server_stream_io *io)
{
    int64_t budget = TURN_BYTES;
    bool left = false;

    for (uint32_t i = 0; i < io->server->gpu_count; i++)
        left |= !collect_port(io, &io->ports[i], &budget);
    return left;
}

void server_gpu_let_go(struct server_stream_io *io)
{
    for (uint32_t i = 0; i < io->server->gpu_count; i++) {
        struct server_gpu_port *port = &io->ports[i];
        const struct core_log_fields fields = {.unit = server_gpu_name(port->gpu)};
        for (uint32_t j = 0; j < port->done_count; j++) {
            uint64_t batch = port->done[j];
            if (gpu_arena_release(server_gpu_arenas(port->gpu), io->index, batch) != CORE_OK)
                core_log_with(CORE_LOG_ERROR, "gpu.batch", &fields,
                              "%s: batch %llu was delivered to an I/O thread that has no packet in it (bug, "
                              "please report)",
                              server_gpu_name(port->gpu), (unsigned long long)batch);
        }
        port->done_count = 0;
    }
}

/* ---- life ---- */

core_status server_gpu_ports_create(struct server_stream_io *io)
{
    const struct server *server = io->server;
    if (server->gpu_count == 0)
        return CORE_OK;
    io->ports = calloc(server->gpu_count, sizeof *io->ports);
    if (io->ports == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t i = 0; i < server->gpu_count; i++)
        io->ports[i].gpu = server->gpus[i];
    return CORE_OK;
}

void server_gpu_ports_destroy(struct server_stream_io *io)
{
    free(io->ports);
}
