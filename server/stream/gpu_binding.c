#include "server/stream/gpu_binding.h"

#include "server/stream/advance.h"
#include "server/stream/backup.h"
#include "server/stream/io_thread.h"

#include <assert.h>
#include <stdlib.h>

#define RETRY_NS (200 * CORE_NS_PER_US) /* where a batch is late to open, or full */

/* ---- which place is which ---- */

uint32_t server_gpu_binding_gpu(const struct server_gpu_binding *place)
{
    return (uint32_t)(place->port - place->stream->client->io->ports);
}

bool server_gpu_binding_is_primary(const struct server_gpu_binding *place)
{
    return server_gpu_binding_gpu(place) == place->stream->reservation->gpu;
}

const struct server_gpu_binding *server_gpu_binding_at_primary(const struct server_stream *stream)
{
    return stream->units.secondary == NULL || server_gpu_binding_is_primary(stream->units.gpu)
               ? stream->units.gpu
               : stream->units.secondary;
}

const struct server_gpu_binding *server_gpu_binding_at_backup(const struct server_stream *stream)
{
    return stream->units.secondary == NULL || server_gpu_binding_is_primary(stream->units.gpu)
               ? stream->units.secondary
               : stream->units.gpu;
}

/* ---- keys ---- */

uint32_t server_gpu_binding_keys(const struct server_gpu_binding *place)
{
    const struct server_gpu_port *port = place->port;
    return port->up && place->keyed == port->generation ? place->keys : 0;
}

bool server_gpu_binding_is_keyed(const struct server_gpu_binding *place)
{
    return !place->port->distrusted &&
           (server_stream_keys_needed(place->stream) & ~server_gpu_binding_keys(place)) == 0;
}

bool server_gpu_binding_is_stale(const struct server_stream *stream)
{
    return stream->path == SERVER_PATH_GPU && !server_gpu_binding_is_keyed(stream->units.gpu);
}

struct server_request *server_gpu_binding_request(const struct server_stream *stream)
{
    const struct server_gpu_binding *present = stream->units.gpu, *other = stream->units.secondary;

    if (present != NULL && present->request != NULL)
        return present->request;
    return other != NULL ? other->request : NULL;
}

/* Is its OPEN refused, or about to be? */
static bool is_refused(const struct server_stream *stream)
{
    const struct server_request *request = server_gpu_binding_request(stream);
    return stream->unannounced || (request != NULL && request->overdue);
}

/* Without the chaining value, which may be another unit's now: the first packet brings it along. */
static void send_keys(struct server_gpu_binding *place)
{
    const uint32_t has = server_gpu_binding_keys(place), held = place->stream->keys.held;

    if (place->asking || has == held)
        return;
    place->key.set = (uint8_t)(held & ~has);
    place->key.clear = (uint8_t)(has & ~held);
    place->key.child = has != 0 ? place->keyed : 0;
    place->asking = true;
    server_gpu_send_key(place->port->gpu, &place->key);
}

static bool is_own(const struct server_gpu_binding *place)
{
    return place == place->stream->units.gpu || place == place->stream->units.secondary;
}

/* Only an OPEN or a migration that waits for the answer is impatient. A stream that ends without having been
 * open is not to wait for what its plan may lack for long. */
void server_gpu_binding_send_again(struct server_gpu_binding *place)
{
    if (is_own(place) && is_refused(place->stream))
        return;
    if (is_own(place) && server_gpu_binding_request(place->stream) == NULL)
        place->key.until_ns = CORE_NS_NEVER;
    send_keys(place);
}

/* The OPEN is answered when all its cards have answered. One that answers again meanwhile, having lost its
 * process, may say another thing. */
static void answer_open(struct server_gpu_binding *place, struct server_request *request)
{
    struct server_stream *stream = place->stream;
    bool first = place->request != NULL;

    place->request = NULL;
    request->overdue |= place->key.overdue;
    request->lacking |= place->key.lacking;
    if (!first || --request->keys > 0)
        return;
    if (request->overdue) {
        stream->client->io->calls->overdue(request, stream);
        return;
    }
    stream->client->io->calls->armed(request, stream);
    if (stream->path == SERVER_PATH_WORKER && !server_gpu_binding_is_keyed(stream->units.gpu))
        stream->path =
            SERVER_PATH_LEAVING_WORKER; /* which its GPU is lost for: its client is told, behind OPENED */
}

static struct server_gpu_binding *place_of(struct server_message *message)
{
    return (struct server_gpu_binding *)((char *)message - offsetof(struct server_gpu_binding, key.message));
}

/* False: the batcher had no child to give the keys to. */
static bool take_keys(struct server_gpu_binding *place)
{
    const struct server_gpu_port *port = place->port;
    const struct server_gpu_key *key = &place->key;

    if (key->overdue || !port->up || key->generation != port->generation) {
        place->keyed = place->keys = 0;
        return false;
    }
    place->keys = ((key->child != 0 ? place->keys : 0) | key->set) & ~(uint32_t)key->clear;
    place->keyed = port->generation;
    return true;
}

/* The batcher has given the keys to child number key.generation, or had none to give them to. */
static void answered(void *owner, struct server_message *message)
{
    struct server_gpu_binding *place = place_of(message);
    struct server_gpu_port *port = place->port;
    struct server_stream *stream = place->stream;
    struct server_request *request = is_own(place) ? server_gpu_binding_request(stream) : NULL;
    const bool overdue = place->key.overdue;
    (void)owner;

    place->asking = false;
    const bool taken = take_keys(place);
    if (request != NULL)
        answer_open(place, request);
    if (taken || (port->up && (!overdue || is_own(place))))
        server_gpu_binding_send_again(place); /* that child is gone, or the stream's keys have changed */
    server_rekey_step(stream);
    server_stream_advance(stream, core_time_now_ns());
    stream->client->io->calls->mark(stream->client);
    stream->client->io->calls->settle(stream);
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

void server_gpu_binding_attach(struct server_stream_io *io, struct server_gpu_binding *place,
                               struct server_stream *stream, uint32_t gpu, core_ns until_ns)
{
    struct server_gpu_port *port = &io->ports[gpu];

    place->stream = stream;
    place->port = port;
    place->key.reply = io->mailbox;
    place->key.answered = answered;
    place->key.keys = stream->keys.bytes;
    place->key.until_ns = until_ns;
    place->key.key_bytes = core_cipher_key_bytes(stream->spec.cipher);
    place->next = port->places;
    place->previous = &port->places;
    if (port->places != NULL)
        port->places->previous = &place->next;
    port->places = place;
    send_keys(place);
}

void server_gpu_binding_detach(struct server_gpu_binding *place)
{
    assert(!place->asking && place->inside == 0);
    if (place->previous == NULL)
        return;
    if (place->port->taking.place == place)
        place->port->taking.place = place->next;
    *place->previous = place->next;
    if (place->next != NULL)
        place->next->previous = place->previous;
    place->previous = NULL;
}

void server_gpu_binding_arrive(struct server_gpu_binding *place)
{
    place->fresh = true;
    if (server_gpu_binding_is_keyed(place) || place->asking || !place->port->up)
        return; /* the answer tells, or the card's return */
    server_gpu_binding_send_again(place);
}

/* ---- packets in ---- */

static void count_diverted(struct server_stream_io *io, struct server_packet *packet)
{
    server_stats_add(&io->stats->diverted, packet->diverted ? 0 : 1);
    packet->diverted = true;
}

void server_gpu_binding_divert(struct server_stream_io *io, struct server_packet *packet, core_ns ready_ns)
{
    if (server_backup_on_worker(packet->stream))
        packet->cpu.release_ns = server_backup_release_ns(packet->stream, ready_ns);
    count_diverted(io, packet);
    io->calls->queue(io, packet);
}

/* One packet in so many, whichever; the same choice on every run. */
static bool is_audited(const struct server_packet *packet)
{
    uint32_t one_in = packet->stream->spec.audit_one_in;
    uint64_t mixed =
        ((uint64_t)packet->sequence << 32 | packet->stream->units.gpu->key.slot) * 0x9E3779B97F4A7C15u;
    return one_in != 0 && (mixed >> 32) % one_in == 0;
}

/* Into a batch of its place; what comes to a backup comes there when the loss is known at the earliest. The
 * plaintext is in the slot too of an audited one, because the GPU's process can write to its batch, and of a
 * guaranteed one, because there is no time to copy it when the GPU is lost. */
static core_status append(struct server_stream_io *io, struct server_packet *packet, core_ns ready_ns)
{
    struct server_stream *stream = packet->stream;
    struct server_gpu_binding *gpu = stream->units.gpu;
    bool away = !server_gpu_binding_is_primary(gpu), backed = server_backup_is_held(stream);

    packet->audited = is_audited(packet);
    if (packet->audited || backed || server_packet_clear_bytes(packet) > 0)
        server_packet_fill(packet);
    const struct gpu_packet entry = {
        .eligible_ns = away ? core_time_max(ready_ns, stream->failover.lost_ns) : ready_ns,
        .after_batch = gpu->newest,
        .payload = packet->cpu.data,
        .bytes = packet->cpu.bytes,
        .padding_bytes = server_packet_padding_bytes(packet),
        .slot = gpu->key.slot,
        .key = packet->cpu.key,
        .iv = gpu->fresh ? stream->cpu->chain : NULL,
        .unit_iv = packet->cpu.begins_unit ? server_packet_payload(packet) - CORE_BLOCK_BYTES : NULL,
        .alone = core_stream_packets_alone(&stream->spec),
        .cookie = server_gpu_cookie(packet, backed)};
    struct gpu_place place;
    core_status status = gpu_arena_append(server_gpu_arenas(gpu->port->gpu), io->index, &entry, &place);

    assert(status != CORE_INVALID); /* the plan admits no packet longer than an arena */
    if (status != CORE_OK)
        return status;
    if (packet->cpu.data != server_packet_payload(packet))
        packet->cpu.data = place.input;
    gpu->newest = place.batch;
    gpu->fresh = false;
    gpu->inside++;
    if (away)
        count_diverted(io, packet);
    return CORE_OK;
}

bool server_gpu_binding_put(struct server_stream_io *io, struct server_packet *packet, core_ns ready_ns,
                            core_ns after_ns, core_ns *wake_ns)
{
    const struct server_stream *stream = packet->stream;

    if (stream->path == SERVER_PATH_WORKER) {
        server_gpu_binding_divert(io, packet, ready_ns);
        return true;
    }
    *wake_ns = after_ns + RETRY_NS;
    return !server_gpu_binding_is_stale(stream) && append(io, packet, ready_ns) == CORE_OK;
}
