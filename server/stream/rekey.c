#include "server/stream/rekey.h"

#include "core/secret.h"
#include "server/stream/io_thread.h"

_Static_assert((int)SERVER_STREAM_KEYS == CPU_STREAM_KEYS, "a worker has room for a stream's keys");
_Static_assert((int)SERVER_STREAM_KEYS == GPU_SLOT_KEYS, "a GPU has room for a stream's keys");

#define PLACES 3 /* of a stream: where it is, its backup, where it migrates to */

static uint32_t bit(uint32_t which)
{
    return 1u << which;
}

/* The key that is not in force. */
static uint32_t other(const struct server_stream *stream)
{
    return 1u - stream->keys.current;
}

uint8_t *server_stream_key(const struct server_stream *stream, uint32_t which)
{
    return stream->keys.bytes + (size_t)SERVER_KEY_BYTES * which;
}

uint32_t server_stream_keys_needed(const struct server_stream *stream)
{
    const bool both = stream->keys.packets[other(stream)] > 0 || stream->rekey.state == SERVER_REKEY_SET;
    return bit(stream->keys.current) | (both ? bit(other(stream)) : 0);
}

/* ---- at the GPUs ---- */

static void places_of(const struct server_stream *stream, struct server_gpu_binding *places[PLACES])
{
    places[0] = stream->units.gpu;
    places[1] = stream->units.secondary;
    places[2] = stream->migration != NULL && !stream->migration->ended ? stream->migration->place : NULL;
}

/* Also the one that the stream does not go to, or has left: it may be about to get a key, and to be let go. */
static void places_with_left(const struct server_stream *stream, struct server_gpu_binding *places[PLACES])
{
    places_of(stream, places);
    if (stream->migration != NULL)
        places[2] = stream->migration->place;
}

/* Of GPUs that the stream's packets may go to as they are, all have the key. */
static bool is_everywhere(const struct server_stream *stream, uint32_t which)
{
    struct server_gpu_binding *places[PLACES];

    places_of(stream, places);
    for (int i = 0; i < PLACES; i++)
        if (places[i] != NULL && server_gpu_binding_is_keyed(places[i]) &&
            (server_gpu_binding_keys(places[i]) & bit(which)) == 0)
            return false;
    return true;
}

/* Is the GPU just being given this key, or made to forget it? */
static bool is_asked(const struct server_gpu_binding *place, uint32_t which)
{
    return place->asking && ((place->key.set | place->key.clear) & bit(which)) != 0;
}

/* No GPU has the key, or may have it before long. */
static bool is_nowhere(const struct server_stream *stream, uint32_t which)
{
    struct server_gpu_binding *places[PLACES];

    places_with_left(stream, places);
    for (int i = 0; i < PLACES; i++)
        if (places[i] != NULL &&
            (is_asked(places[i], which) || (server_gpu_binding_keys(places[i]) & bit(which)) != 0))
            return false;
    return true;
}

static void tell_places(const struct server_stream *stream)
{
    struct server_gpu_binding *places[PLACES];

    places_of(stream, places);
    for (int i = 0; i < PLACES; i++)
        if (places[i] != NULL && server_gpu_binding_is_keyed(places[i]))
            server_gpu_binding_send_again(places[i]);
}

static bool is_asking(const struct server_stream *stream)
{
    struct server_gpu_binding *places[PLACES];
    bool asking = false;

    places_with_left(stream, places);
    for (int i = 0; i < PLACES; i++)
        asking |= places[i] != NULL && places[i]->asking;
    return asking;
}

/* ---- a change ---- */

/* The bytes may be a batcher's to read while it is asked for something. */
static void retire(struct server_stream *stream)
{
    const uint32_t which = other(stream);

    if ((stream->keys.held & bit(which)) == 0 || stream->rekey.state != SERVER_REKEY_STEADY ||
        stream->keys.packets[which] > 0 || is_asking(stream))
        return;
    cpu_stream_key_wipe(stream->cpu, stream->client->io->server->engine, which);
    core_secret_wipe(server_stream_key(stream, which), SERVER_KEY_BYTES);
    server_mac_key_wipe(stream, which);
    stream->keys.held &= (uint8_t)~bit(which);
    tell_places(stream);
}

static void answer(struct server_stream *stream, enum protocol_refusal refusal, const char *text)
{
    stream->rekey.state = refusal == 0 ? SERVER_REKEY_SET : SERVER_REKEY_STEADY;
    stream->client->requests--;
    stream->client->io->calls->rekeyed(stream, refusal, text);
    stream->client->io->calls->mark(stream->client);
}

uint8_t *server_rekey_room(const struct server_stream *stream)
{
    const uint32_t which = other(stream);
    const bool free = stream->rekey.state == SERVER_REKEY_STEADY && (stream->keys.held & bit(which)) == 0 &&
                      is_nowhere(stream, which);
    return free ? server_stream_key(stream, which) : NULL;
}

core_status server_rekey_begin(struct server_stream *stream, uint64_t first, uint32_t request,
                               core_ns received_ns)
{
    struct server_stream_io *io = stream->client->io;
    const uint32_t which = other(stream);
    core_status status = cpu_stream_key_set(stream->cpu, io->server->engine, io->engine, which,
                                            server_stream_key(stream, which));

    if (status != CORE_OK) {
        core_secret_wipe(server_stream_key(stream, which), SERVER_KEY_BYTES);
        return status;
    }
    server_mac_key_set(stream, which);
    stream->keys.held |= (uint8_t)bit(which);
    stream->rekey.state = SERVER_REKEY_ASKED;
    stream->rekey.first = first;
    stream->rekey.request = request;
    stream->rekey.received_ns = received_ns;
    stream->client->requests++;
    tell_places(stream);
    server_rekey_step(stream);
    return CORE_OK;
}

/* Has message number `number`, or a later one, begun? Numbers count modulo 2^64. */
static bool is_past(const struct server_stream *stream, uint64_t number)
{
    return (int64_t)(number - stream->message.number) < 0;
}

void server_rekey_message(struct server_stream *stream, uint64_t number)
{
    if (stream->rekey.state != SERVER_REKEY_SET || number != stream->rekey.first)
        return;
    stream->keys.current = (uint8_t)other(stream);
    stream->rekey.state = SERVER_REKEY_STEADY;
    stream->account.key_bytes = 0;
    retire(stream);
}

void server_rekey_step(struct server_stream *stream)
{
    if ((stream->keys.held & bit(other(stream))) == 0)
        return; /* as with almost every packet: there is nothing to change to, or to wipe */
    if (stream->rekey.state == SERVER_REKEY_ASKED && is_everywhere(stream, other(stream))) {
        if (is_past(stream, stream->rekey.first))
            answer(stream, PROTOCOL_REFUSED_BUSY,
                   "the message has begun, or had when the key was at all units; ask earlier, or for a later "
                   "one");
        else
            answer(stream, 0, NULL);
    }
    retire(stream);
}

void server_rekey_end(struct server_stream *stream)
{
    const bool drained = stream->close_reason == PROTOCOL_CLOSE_DRAINED;

    if (stream->rekey.state == SERVER_REKEY_ASKED)
        answer(stream, drained ? PROTOCOL_REFUSED_DRAINING : PROTOCOL_REFUSED_STREAM,
               drained ? "the server is stopping" : "the stream is being closed");
}
