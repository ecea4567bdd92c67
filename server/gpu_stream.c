#include "server/gpu_stream.h"

#include "core/log.h"
#include "core/secret.h"
#include "server/backup.h"
#include "server/io.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS (200 * CORE_NS_PER_US) /* where a batch is late to open, or full */

/* ---- keys ---- */

static void answered(void *owner, struct server_message *message);

/* Without the chaining value, which may be a worker's now: the first packet brings it along. */
static void send_key(struct server_gpu_stream *place)
{
    place->asking = true;
    server_gpu_send_key(place->seat->gpu, &place->key);
}

/* From now on packets go into batches. They may have waited for the stand-by worker, which has nothing of
 * them. */
static void come_home(struct server_gpu_stream *place)
{
    struct server_stream *stream = place->stream;
    core_ns first_ns = stream->wait_head != NULL ? stream->wait_head->eligible_ns : CORE_NS_NEVER;

    server_pace_switch(&stream->pace, 0, first_ns, place->state == SERVER_GPU_HELD, core_time_now_ns());
    place->state = SERVER_GPU_HOME;
    place->fresh = true;
    server_notice(stream, place->told_away ? PROTOCOL_NOTICE_MOVED : PROTOCOL_NOTICE_RESTORED);
    place->told_away = false;
    server_io_release_stream(stream);
}

/* To the backup; or to the stand-by worker, and nothing is promised any more: what waits, waits for its
 * contract only. */
static void go_away(struct server_gpu_stream *place)
{
    struct server_stream *stream = place->stream;
    core_ns now_ns = core_time_now_ns();

    assert(place->inside == 0);
    if (server_backup_is_held(stream))
        server_backup_begin(stream, now_ns);
    place->state = SERVER_GPU_AWAY;
    if (!server_backup_is_held(stream))
        server_notice(stream, PROTOCOL_NOTICE_DEGRADED);
    else if (!place->told_away)
        server_notice(stream, PROTOCOL_NOTICE_MOVED);
    place->told_away = server_backup_is_held(stream);
    server_pace_switch(&stream->pace, 0, CORE_NS_NEVER, false, now_ns);
    server_route_step(stream, now_ns);
    server_io_release_stream(stream);
}

/* The card has the key, and the stream is elsewhere. */
static void try_home(struct server_gpu_stream *place)
{
    struct server_stream *stream = place->stream;

    if (stream->at_worker == 0)
        come_home(place);
    else if (!server_backup_is_held(stream) || server_backup_on_time(stream))
        place->state = SERVER_GPU_HELD;
}

/* The card has got the key, or lost it. */
static void set_keyed(struct server_gpu_stream *place, bool keyed)
{
    struct server_stream *stream = place->stream;

    place->keyed = keyed;
    if (stream->gpu != place)
        server_route_keyed(stream, keyed);
    else if (!keyed && place->state != SERVER_GPU_AWAY)
        go_away(place);
    else if (keyed && place->state == SERVER_GPU_AWAY)
        try_home(place);
}

static struct server_gpu_stream *place_of(struct server_message *message)
{
    return (struct server_gpu_stream *)((char *)message - offsetof(struct server_gpu_stream, key.message));
}

/* The batcher has given the key to child number key.generation, or had none to give it to. */
static void answered(void *owner, struct server_message *message)
{
    struct server_gpu_stream *place = place_of(message);
    struct server_gpu_seat *seat = place->seat;
    struct server_stream *stream = place->stream;
    struct server_request *request = place->request;
    bool overdue = place->key.overdue;
    bool keyed = !overdue && seat->up && place->key.generation == seat->generation;
    (void)owner;

    place->asking = false;
    place->request = NULL;
    if (stream->gpu == place)
        place->key.until_ns = CORE_NS_NEVER; /* only who waits for an answer is impatient */
    if (seat->up && !keyed && (!overdue || (stream->gpu == place && request == NULL)))
        send_key(place); /* that child is gone: the next one needs the key, too */
    set_keyed(place, keyed);
    if (request != NULL && overdue)
        server_frame_overdue(request, stream);
    else if (request != NULL)
        server_frame_armed(request, stream);
    server_route_step(stream, core_time_now_ns());
    server_io_mark(stream->connection);
    server_connection_settle_stream(stream);
}

void server_gpu_stream_returned(struct server_gpu_stream *place)
{
    if (place->state == SERVER_GPU_HELD || (place->state == SERVER_GPU_AWAY && place->keyed))
        come_home(place);
}

/* ---- life ---- */

core_status server_gpu_seats_create(struct server_io *io)
{
    const struct server *server = io->server;
    if (server->gpu_count == 0)
        return CORE_OK;
    io->seats = calloc(server->gpu_count, sizeof *io->seats);
    io->audit_buffer = malloc(server->config->limits.packet_bytes + CORE_BLOCK_BYTES);
    if (io->seats == NULL || io->audit_buffer == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t i = 0; i < server->gpu_count; i++)
        io->seats[i].gpu = server->gpus[i];
    return CORE_OK;
}

void server_gpu_seats_destroy(struct server_io *io)
{
    free(io->seats);
    free(io->audit_buffer);
}

struct server_gpu_stream *server_gpu_stream_create(uint64_t plan)
{
    struct server_gpu_stream *place = calloc(1, sizeof *place);
    if (place != NULL)
        place->key = (struct server_gpu_key){.plan = plan, .slot = SERVER_GPU_NO_SLOT};
    return place;
}

void server_gpu_stream_destroy(struct server_gpu_stream *place)
{
    free(place);
}

void server_gpu_stream_attach(struct server_io *io, struct server_gpu_stream *place,
                              struct server_stream *stream, uint32_t gpu, core_ns until_ns)
{
    struct server_gpu_seat *seat = &io->seats[gpu];

    place->stream = stream;
    place->seat = seat;
    place->key.reply = &io->mailbox;
    place->key.answered = answered;
    place->key.key = stream->key;
    place->key.until_ns = until_ns;
    place->key.key_bytes = core_cipher_key_bytes(stream->spec.cipher);
    place->next = seat->places;
    place->previous = &seat->places;
    if (seat->places != NULL)
        seat->places->previous = &place->next;
    seat->places = place;
    send_key(place);
}

void server_gpu_stream_detach(struct server_gpu_stream *place)
{
    assert(!place->asking && place->inside == 0);
    if (place->previous == NULL)
        return;
    *place->previous = place->next;
    if (place->next != NULL)
        place->next->previous = place->previous;
    place->previous = NULL;
}

void server_gpu_stream_arrive(struct server_gpu_stream *place)
{
    place->state = place->keyed ? SERVER_GPU_HOME : SERVER_GPU_AWAY;
    place->fresh = true;
}

/* ---- packets in ---- */

static void divert(struct server_io *io, struct server_packet *packet, core_ns ready_ns)
{
    packet->diverted = true;
    if (server_backup_is_held(packet->stream))
        packet->cpu.release_ns = server_backup_release_ns(packet->stream, ready_ns);
    server_stats_add(&io->stats.diverted, 1);
    server_io_queue(io, packet);
}

bool server_gpu_stream_put(struct server_io *io, struct server_packet *packet, core_ns ready_ns,
                           core_ns after_ns, core_ns *wake_ns)
{
    struct server_gpu_stream *gpu = packet->stream->gpu;
    struct gpu_place place;

    *wake_ns = CORE_NS_NEVER;
    if (gpu->state == SERVER_GPU_AWAY && gpu->keyed)
        try_home(gpu); /* so far something late was in the way */
    if (gpu->state == SERVER_GPU_HELD || gpu->state == SERVER_GPU_LOSING)
        return false;
    if (gpu->state == SERVER_GPU_AWAY) {
        divert(io, packet, ready_ns);
        return true;
    }
    struct gpu_packet entry = {.eligible_ns = ready_ns,
                               .after_batch = gpu->newest,
                               .payload = packet->cpu.data,
                               .bytes = packet->cpu.bytes,
                               .slot = gpu->key.slot,
                               .iv = gpu->fresh ? packet->stream->cpu->chain : NULL,
                               .cookie = (uintptr_t)packet};
    core_status status = gpu_arena_append(server_gpu_arenas(gpu->seat->gpu), io->index, &entry, &place);
    assert(status != CORE_INVALID); /* the plan admits no packet longer than an arena */
    if (status != CORE_OK) {
        *wake_ns = after_ns + RETRY_NS;
        return false;
    }
    gpu->newest = place.batch;
    gpu->fresh = false;
    gpu->inside++;
    return true;
}

/* ---- packets out ---- */

/* Nobody waits for it any more; nor, once the card has returned all, for those before it. */
static void discard(struct server_packet *packet)
{
    struct server_stream *stream = packet->stream;

    packet->ready = true;
    if (stream->gpu->state == SERVER_GPU_LOSING && stream->gpu->inside == 0)
        for (packet = stream->order_head; packet != NULL; packet = packet->next)
            packet->ready = true;
    server_output_results(stream);
    server_connection_settle_stream(stream);
}

/* Goes to the backup with all that the card still has. */
static void lose(struct server_gpu_stream *place)
{
    place->state = SERVER_GPU_LOSING;
    place->keyed = false;
    if (place->inside == 0)
        go_away(place);
}

/* Encrypted again elsewhere, from the slot. */
static void run_again(struct server_io *io, struct server_packet *packet)
{
    struct server_stream *stream = packet->stream;

    stream->gpu->inside--;
    if (stream->connection->abandoned)
        discard(packet);
    else if (server_backup_is_held(stream))
        lose(stream->gpu);
    else
        divert(io, packet, 0);
}

/* One packet in so many, whichever; the same choice on every run. */
static bool is_audited(const struct server_io *io, const struct server_packet *packet)
{
    uint32_t one_in = io->server->config->gpus.audit;
    uint64_t mixed = ((uint64_t)packet->sequence << 32 | packet->stream->gpu->key.slot) * 0x9E3779B97F4A7C15u;
    return one_in != 0 && (mixed >> 32) % one_in == 0;
}

/* Encrypts the plaintext anew, from the chaining value before it, and compares. */
static bool is_right(struct server_io *io, const struct server_packet *packet, const uint8_t *ciphertext)
{
    struct cpu_stream *cpu = packet->stream->cpu;
    uint8_t chain[CORE_BLOCK_BYTES];
    core_status status = CORE_OK;

    memcpy(chain, cpu->chain, sizeof chain);
    for (uint32_t done = 0; done < packet->cpu.bytes && status == CORE_OK; done += CPU_PIECE_BYTES_MAX) {
        uint32_t left = packet->cpu.bytes - done;
        struct cpu_piece piece = {.source = packet->cpu.data + done,
                                  .target = io->audit_buffer + done,
                                  .bytes = left < CPU_PIECE_BYTES_MAX ? left : CPU_PIECE_BYTES_MAX,
                                  .chain = chain,
                                  .key = cpu->key_state};
        status = io->server->engine->encrypt(io->engine, cpu->cipher, &piece, 1);
    }
    server_stats_add(&io->stats.audited, 1);
    return status == CORE_OK && memcmp(io->audit_buffer, ciphertext, packet->cpu.bytes) == 0;
}

static void deliver(struct server_packet *packet, const uint8_t *ciphertext, core_ns ended_ns)
{
    struct server_stream *stream = packet->stream;

    stream->gpu->inside--;
    memcpy(stream->cpu->chain, ciphertext + packet->cpu.bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    packet->output.payload = ciphertext;
    packet->cpu.finished_ns = ended_ns;
    packet->ready = true;
    if (stream->close_reason == PROTOCOL_CLOSE_FAILED)
        packet->status = PROTOCOL_RESULT_FAILED;
    if (stream->order_head != packet)
        server_packet_keep(packet); /* it must wait for another, and the batch for nobody */
    server_io_mark(stream->connection);
    server_output_results(stream);
    if (stream->order != NULL)
        server_route_step(stream, core_time_now_ns());
    server_connection_settle_stream(stream);
}

static void report(struct server_io *io, struct server_gpu_seat *seat, const struct server_packet *packet,
                   uint64_t batch)
{
    core_log(CORE_LOG_ERROR, "gpu.corrupt",
             "%s: batch %llu: a packet of connection %llu, stream %u is not what the CPU makes of it",
             server_gpu_name(seat->gpu), (unsigned long long)batch,
             (unsigned long long)packet->stream->connection->number, packet->stream->id);
    server_stats_add(&io->stats.corrupt, 1);
    seat->distrusted = true;
    server_gpu_report_corrupt(seat->gpu, batch);
}

static void take_packet(struct server_io *io, struct server_gpu_seat *seat, struct server_packet *packet,
                        const uint8_t *ciphertext, const struct server_gpu_event *event)
{
    if (!seat->distrusted && event->kind == SERVER_GPU_DONE && is_audited(io, packet) &&
        !packet->stream->connection->abandoned && !is_right(io, packet, ciphertext))
        report(io, seat, packet, event->batch);
    if (seat->distrusted || event->kind == SERVER_GPU_LOST)
        run_again(io, packet);
    else
        deliver(packet, ciphertext, event->times.ended_ns);
}

static void take_batch(struct server_io *io, struct server_gpu_seat *seat,
                       const struct server_gpu_event *event)
{
    struct gpu_arenas *arenas = server_gpu_arenas(seat->gpu);
    const uint8_t *output = gpu_arena_output(arenas, event->batch);
    uint32_t count;
    seat->times[event->batch % GPU_REGION_ARENAS_MAX] = event->times;
    const struct gpu_record *records = gpu_arena_records(arenas, io->index, event->batch, &count);

    for (uint32_t i = 0; i < count; i++)
        take_packet(io, seat, (struct server_packet *)(uintptr_t)records[i].cookie,
                    output + records[i].offset_bytes, event);
    seat->done[seat->done_count++] = event->batch;
}

const struct server_gpu_times *server_gpu_seat_times(const struct server_gpu_seat *seat, core_ns ended_ns)
{
    for (uint32_t i = 0; i < GPU_REGION_ARENAS_MAX; i++)
        if (seat->times[i].ended_ns == ended_ns)
            return &seat->times[i];
    return NULL;
}

/* ---- events ---- */

static void take_down(struct server_gpu_seat *seat)
{
    seat->up = seat->distrusted = false;
    for (struct server_gpu_stream *place = seat->places, *next; place != NULL; place = next) {
        next = place->next; /* a transfer may end here */
        set_keyed(place, false);
    }
}

/* A place whose key is at the batcher learns it from the answer. */
static void take_up(struct server_gpu_seat *seat, uint32_t generation)
{
    seat->up = true;
    seat->generation = generation;
    for (struct server_gpu_stream *place = seat->places; place != NULL; place = place->next)
        if (!place->asking)
            send_key(place);
}

static void collect_seat(struct server_io *io, struct server_gpu_seat *seat)
{
    struct server_gpu_event event;
    while (server_gpu_next_event(seat->gpu, io->index, &event)) {
        if (event.kind == SERVER_GPU_DOWN)
            take_down(seat);
        else if (event.kind == SERVER_GPU_UP)
            take_up(seat, event.generation);
        else
            take_batch(io, seat, &event);
    }
}

void server_gpu_collect(struct server_io *io)
{
    for (uint32_t i = 0; i < io->server->gpu_count; i++)
        collect_seat(io, &io->seats[i]);
}

void server_gpu_let_go(struct server_io *io)
{
    for (uint32_t i = 0; i < io->server->gpu_count; i++) {
        struct server_gpu_seat *seat = &io->seats[i];
        for (uint32_t j = 0; j < seat->done_count; j++) {
            uint64_t batch = seat->done[j];
            if (gpu_arena_release(server_gpu_arenas(seat->gpu), io->index, batch) != CORE_OK)
                core_log(CORE_LOG_ERROR, "gpu.batch", "%s: batch %llu held nothing of this thread",
                         server_gpu_name(seat->gpu), (unsigned long long)batch);
        }
        seat->done_count = 0;
    }
}
