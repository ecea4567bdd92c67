#include "server/stream/gpu_binding.h"

#include "server/net/io.h"
#include "server/stream/backup.h"

#include <assert.h>
#include <stdlib.h>

#define RETRY_NS (200 * CORE_NS_PER_US) /* where a batch is late to open, or full */

/* ---- which place is which ---- */

uint32_t server_gpu_binding_gpu(const struct server_gpu_binding *place)
{
    return (uint32_t)(place->port - place->stream->connection->io->ports);
}

static bool is_primary(const struct server_gpu_binding *place)
{
    return server_gpu_binding_gpu(place) == place->stream->reservation->gpu;
}

const struct server_gpu_binding *server_gpu_binding_at_primary(const struct server_stream *stream)
{
    return stream->secondary == NULL || is_primary(stream->gpu) ? stream->gpu : stream->secondary;
}

const struct server_gpu_binding *server_gpu_binding_at_backup(const struct server_stream *stream)
{
    return stream->secondary == NULL || is_primary(stream->gpu) ? stream->secondary : stream->gpu;
}

bool server_gpu_binding_is_unused(const struct server_stream *stream)
{
    return stream->gpu != NULL && (stream->gpu->state == SERVER_GPU_UNUSED || !is_primary(stream->gpu));
}

/* ---- the ways ---- */

/* Nothing is inside either place. */
static void swap(struct server_stream *stream)
{
    struct server_gpu_binding *left = stream->gpu;

    assert(left->inside == 0 && stream->secondary->inside == 0);
    left->state = SERVER_GPU_UNUSED;
    stream->gpu = stream->secondary;
    stream->secondary = left;
}

/* From now on packets go into the batches of its place. They may have waited (held) for another unit, which
 * has nothing of them. */
static void ride(struct server_stream *stream, bool held)
{
    struct server_gpu_binding *place = stream->gpu;
    bool at_primary = is_primary(place);
    core_ns first_ns = stream->wait_head != NULL ? stream->wait_head->eligible_ns : CORE_NS_NEVER;

    server_pacer_switch(&stream->pace, 0, first_ns, held, core_time_now_ns());
    place->state = SERVER_GPU_ACTIVE;
    place->fresh = true;
    server_notification(stream, at_primary && !stream->failover_target.told ? PROTOCOL_NOTICE_RESTORED
                                                                            : PROTOCOL_NOTICE_MOVED);
    stream->failover_target.told = !at_primary;
    server_io_release_stream(stream);
}

/* The card of its place has the key, and the stream is at a worker. */
static void leave_worker(struct server_stream *stream)
{
    if (stream->at_worker == 0)
        ride(stream, false);
    else if (!server_backup_on_worker(stream) || server_backup_on_time(stream))
        stream->gpu->state = SERVER_GPU_HELD;
}

static bool is_opening(const struct server_stream *stream)
{
    return stream->gpu->request != NULL || (stream->secondary != NULL && stream->secondary->request != NULL);
}

/* Packets go to a worker: is there a card now that they can go to? An answer that is still to come from the
 * one at home is awaited. */
static void find_card(struct server_stream *stream)
{
    struct server_gpu_binding *place = stream->gpu;

    if (place->state != SERVER_GPU_UNUSED || is_opening(stream))
        return;
    if (!place->keyed && stream->secondary != NULL && stream->secondary->keyed &&
        (!place->asking || is_primary(stream->secondary)))
        swap(stream);
    if (stream->gpu->keyed)
        leave_worker(stream);
}

/* Packets go to the backup's card, or wait: has the one at home the key? */
static bool may_fail_back(const struct server_stream *stream)
{
    return stream->secondary != NULL && stream->secondary->keyed && is_primary(stream->secondary);
}

/* They wait from now on, if there are any there and nothing late is in the way. */
static void begin_return(struct server_stream *stream)
{
    struct server_gpu_binding *place = stream->gpu;

    if (place->state == SERVER_GPU_ACTIVE && place->inside > 0 && may_fail_back(stream) &&
        server_backup_on_time(stream))
        place->state = SERVER_GPU_RETURNING;
}

static void fail_back(struct server_stream *stream)
{
    bool held = stream->gpu->state == SERVER_GPU_RETURNING;

    if (!may_fail_back(stream) || (stream->gpu->state != SERVER_GPU_ACTIVE && !held))
        return;
    if (stream->gpu->inside > 0) {
        begin_return(stream);
        return;
    }
    swap(stream);
    ride(stream, held);
}

/* To the worker that is the backup; or to the fallback worker, and nothing is promised any more: what waits,
 * waits for its contract only. */
static void go_to_worker(struct server_stream *stream, core_ns now_ns)
{
    bool backed = server_backup_on_worker(stream);

    stream->gpu->state = SERVER_GPU_UNUSED;
    if (!backed)
        server_notification(stream, PROTOCOL_NOTICE_DEGRADED);
    else if (!stream->failover_target.told)
        server_notification(stream, PROTOCOL_NOTICE_MOVED);
    stream->failover_target.told = backed;
    server_pacer_switch(&stream->pace, 0, CORE_NS_NEVER, false, now_ns);
    server_migration_step(stream, now_ns);
    server_io_release_stream(stream);
}

/* To the card that is the backup: as for any backup, what is missing goes there at once. From there to the
 * one at home, which has come back too soon: nothing is promised, but to the others there, that it goes by
 * its contract. */
static void go_to_card(struct server_stream *stream)
{
    swap(stream);
    if (stream->at_worker > 0)
        stream->gpu->state = SERVER_GPU_HELD;
    else
        ride(stream, is_primary(stream->gpu));
}

/* The card is lost, and has returned all. */
static void leave_card(struct server_stream *stream)
{
    core_ns now_ns = core_time_now_ns();

    assert(stream->gpu->inside == 0);
    if (server_backup_is_held(stream))
        server_backup_begin(stream, now_ns);
    if (stream->secondary != NULL && stream->secondary->keyed)
        go_to_card(stream);
    else
        go_to_worker(stream, now_ns);
}

void server_gpu_binding_lose(struct server_stream *stream)
{
    struct server_gpu_binding *place = stream->gpu;

    place->state = SERVER_GPU_LOSING;
    place->keyed = false;
    if (place->inside == 0)
        leave_card(stream);
}

void server_gpu_binding_delivered(struct server_stream *stream)
{
    if (stream->secondary != NULL)
        fail_back(stream);
}

void server_gpu_binding_returned(struct server_stream *stream)
{
    if (stream->gpu->state != SERVER_GPU_HELD) {
        find_card(stream);
        return;
    }
    if (may_fail_back(stream))
        swap(stream); /* what waits is paced on the way to one card, not to the other one next */
    ride(stream, true);
}

/* ---- keys ---- */

static void secondary_keyed(struct server_stream *stream, bool keyed)
{
    if (keyed) {
        find_card(stream);
        fail_back(stream);
    } else if (stream->gpu->state == SERVER_GPU_RETURNING) {
        stream->gpu->state = SERVER_GPU_ACTIVE;
        server_io_release_stream(stream);
    }
}

void server_gpu_binding_set_keyed(struct server_gpu_binding *place, bool keyed)
{
    struct server_stream *stream = place->stream;

    place->keyed = keyed;
    if (place == stream->secondary)
        secondary_keyed(stream, keyed);
    else if (place != stream->gpu)
        server_migration_keyed(stream, keyed);
    else if (!keyed && place->state != SERVER_GPU_UNUSED)
        leave_card(stream);
    else
        find_card(stream);
}

/* Without the chaining value, which may be another unit's now: the first packet brings it along. */
void server_gpu_binding_send_key(struct server_gpu_binding *place)
{
    place->asking = true;
    server_gpu_send_key(place->port->gpu, &place->key);
}

/* The OPEN is answered when all its cards have answered. The place's key may be at the batcher again. */
static void answer_open(struct server_gpu_binding *place, bool keyed, bool overdue)
{
    struct server_stream *stream = place->stream;
    struct server_request *request = place->request;

    place->keyed = keyed;
    place->request = NULL;
    request->overdue |= overdue;
    if (--request->keys > 0)
        return;
    if (request->overdue)
        server_frame_overdue(request, stream);
    else
        server_frame_armed(request, stream);
    find_card(stream);
}

static struct server_gpu_binding *place_of(struct server_message *message)
{
    return (struct server_gpu_binding *)((char *)message - offsetof(struct server_gpu_binding, key.message));
}

/* The batcher has given the key to child number key.generation, or had none to give it to. */
static void answered(void *owner, struct server_message *message)
{
    struct server_gpu_binding *place = place_of(message);
    struct server_gpu_port *port = place->port;
    struct server_stream *stream = place->stream;
    bool own = place == stream->gpu || place == stream->secondary;
    bool overdue = place->key.overdue;
    bool keyed = !overdue && port->up && place->key.generation == port->generation;
    (void)owner;

    place->asking = false;
    if (own)
        place->key.until_ns = CORE_NS_NEVER; /* only who waits for an answer is impatient */
    if (port->up && !keyed && (!overdue || (own && place->request == NULL)))
        server_gpu_binding_send_key(place); /* that child is gone: the next one needs the key, too */
    if (place->request != NULL)
        answer_open(place, keyed, overdue);
    else
        server_gpu_binding_set_keyed(place, keyed);
    server_migration_step(stream, core_time_now_ns());
    server_io_mark(stream->connection);
    server_connection_settle_stream(stream);
}

/* ---- life ---- */

struct server_gpu_binding *server_gpu_binding_create(uint64_t plan)
{
    struct server_gpu_binding *place = calloc(1, sizeof *place);
    if (place != NULL)
        place->key = (struct server_gpu_key){.plan = plan, .slot = SERVER_GPU_NO_SLOT};
    return place;
}

void server_gpu_binding_destroy(struct server_gpu_binding *place)
{
    free(place);
}

void server_gpu_binding_attach(struct server_io *io, struct server_gpu_binding *place,
                               struct server_stream *stream, uint32_t gpu, core_ns until_ns)
{
    struct server_gpu_port *port = &io->ports[gpu];

    place->stream = stream;
    place->port = port;
    place->key.reply = &io->mailbox;
    place->key.answered = answered;
    place->key.key = stream->key;
    place->key.until_ns = until_ns;
    place->key.key_bytes = core_cipher_key_bytes(stream->spec.cipher);
    place->next = port->places;
    place->previous = &port->places;
    if (port->places != NULL)
        port->places->previous = &place->next;
    port->places = place;
    server_gpu_binding_send_key(place);
}

void server_gpu_binding_detach(struct server_gpu_binding *place)
{
    assert(!place->asking && place->inside == 0);
    if (place->previous == NULL)
        return;
    *place->previous = place->next;
    if (place->next != NULL)
        place->next->previous = place->previous;
    place->previous = NULL;
}

void server_gpu_binding_arrive(struct server_gpu_binding *place)
{
    place->state = place->keyed ? SERVER_GPU_ACTIVE : SERVER_GPU_UNUSED;
    place->fresh = true;
    if (place->keyed || place->asking || !place->port->up)
        return; /* the answer tells, or the card's return */
    place->key.until_ns = CORE_NS_NEVER;
    server_gpu_binding_send_key(place);
}

/* ---- packets in ---- */

static void count_diverted(struct server_io *io, struct server_packet *packet)
{
    server_stats_add(&io->stats.diverted, packet->diverted ? 0 : 1);
    packet->diverted = true;
}

void server_gpu_binding_divert(struct server_io *io, struct server_packet *packet, core_ns ready_ns)
{
    if (server_backup_on_worker(packet->stream))
        packet->cpu.release_ns = server_backup_release_ns(packet->stream, ready_ns);
    count_diverted(io, packet);
    server_io_queue(io, packet);
}

/* Into a batch of its place; what comes to a backup comes there when the loss is known at the earliest. */
static core_status append(struct server_io *io, struct server_packet *packet, core_ns ready_ns)
{
    struct server_stream *stream = packet->stream;
    struct server_gpu_binding *gpu = stream->gpu;
    bool away = !is_primary(gpu);
    const struct gpu_packet entry = {
        .eligible_ns = away ? core_time_max(ready_ns, stream->failover_target.lost_ns) : ready_ns,
        .after_batch = gpu->newest,
        .payload = packet->cpu.data,
        .bytes = packet->cpu.bytes,
        .slot = gpu->key.slot,
        .iv = gpu->fresh ? stream->cpu->chain : NULL,
        .cookie = (uintptr_t)packet};
    struct gpu_place place;
    core_status status = gpu_arena_append(server_gpu_arenas(gpu->port->gpu), io->index, &entry, &place);

    assert(status != CORE_INVALID); /* the plan admits no packet longer than an arena */
    if (status != CORE_OK)
        return status;
    gpu->newest = place.batch;
    gpu->fresh = false;
    gpu->inside++;
    if (away)
        count_diverted(io, packet);
    return CORE_OK;
}

bool server_gpu_binding_put(struct server_io *io, struct server_packet *packet, core_ns ready_ns,
                            core_ns after_ns, core_ns *wake_ns)
{
    struct server_stream *stream = packet->stream;

    *wake_ns = CORE_NS_NEVER;
    if (stream->at_worker > 0)
        find_card(stream); /* so far something late was in the way */
    begin_return(stream);
    switch (stream->gpu->state) {
    case SERVER_GPU_UNUSED:
        server_gpu_binding_divert(io, packet, ready_ns);
        return true;
    case SERVER_GPU_ACTIVE:
        if (append(io, packet, ready_ns) == CORE_OK)
            return true;
        *wake_ns = after_ns + RETRY_NS;
        return false;
    default:
        return false;
    }
}
