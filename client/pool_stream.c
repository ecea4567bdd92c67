/* Streams of a pool: what is kept of each, what goes to its node and comes back, and how it goes on at the next. */
#include "client/pool.h"

#include "core/protocol_bytes.h"
#include "core/secret.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_NS  (100 * CORE_NS_PER_MS) /* an interval beside which round trips are nothing */
#define AGAIN_NS (100 * CORE_NS_PER_MS) /* until what found no memory is tried again */

/* ---- what is kept ---- */

/* Ahead of each packet that is kept. */
struct record {
    core_ns eligible_ns;
    uint32_t bytes;
    uint8_t flags;
    bool crossed; /* a gap, or waited for packets that did */
};

static size_t record_bytes(uint32_t bytes)
{
    return sizeof(struct record) + bytes;
}

/* Record `offset` bytes behind the first one, and its packet. Never wrapped, since there is always twice the room
 * (output.c). */
static struct record record_at(const struct client_pool_stream *stream, size_t offset, const uint8_t **packet)
{
    struct record record;
    const uint8_t *at = stream->kept.bytes + stream->kept.begin + offset;
    memcpy(&record, at, sizeof record);
    *packet = at + sizeof record;
    return record;
}

/* Lets go of everything that has results. */
static void let_go(struct client_pool_stream *stream)
{
    const bool numbered = client_pool_stream_is_numbered(&stream->open.spec);
    client_output_consume(&stream->kept, stream->answered.bytes);
    stream->handed_bytes -= stream->answered.bytes;
    stream->answered.bytes = 0;
    stream->first = stream->answered;
    if (client_output_waiting(&stream->kept) == 0 && stream->kept.capacity > CLIENT_OUTPUT_BYTES_MIN)
        client_output_free(&stream->kept);
    const uint64_t number = stream->first.messages + (numbered ? stream->open.spec.first_unit : 0);
    if (stream->next.key_bytes == 0 || (int64_t)(number - stream->next.first) < 0)
        return;
    memcpy(stream->key, stream->next_key, stream->next.key_bytes);
    stream->open.key_kind = stream->next.key_kind;
    stream->open.key_bytes = stream->next.key_bytes;
    stream->next.key_bytes = 0;
}

static struct client_pool_stream *find(const struct client_pool *pool, uint32_t id)
{
    return id >= 1 && id <= pool->stream_room ? pool->streams[id - 1] : NULL;
}

/* Another node has been asked for it while it is served here: what that one was told must stay true. */
static bool is_moving(const struct client_pool_stream *stream)
{
    return stream->link != NULL && stream->ask != NULL && stream->ask->sent &&
           stream->ask->type == PROTOCOL_OPEN;
}

/* ---- life ---- */

static core_status make_room(struct client_pool *pool)
{
    const uint32_t room = pool->stream_room == 0 ? 16 : 2 * pool->stream_room;
    struct client_pool_stream **larger = realloc(pool->streams, room * sizeof *larger);
    if (larger == NULL)
        return CORE_NO_MEMORY;
    memset(larger + pool->stream_room, 0, (room - pool->stream_room) * sizeof *larger);
    pool->streams = larger;
    pool->stream_room = room;
    return CORE_OK;
}

static core_status create(struct client_pool *pool, const struct protocol_open *open, struct client_ask *ask,
                          struct core_error *error)
{
    uint32_t slot = 0;
    while (slot < pool->stream_room && pool->streams[slot] != NULL)
        slot++;
    core_status status = slot == pool->stream_room ? make_room(pool) : CORE_OK;
    struct client_pool_stream *stream = status ? NULL : calloc(1, sizeof *stream);
    if (stream == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for another stream of a pool");
    stream->id = slot + 1;
    stream->open = *open;
    memcpy(stream->key, open->key, open->key_bytes);
    stream->open.key = stream->key;
    stream->sums.size = sizeof stream->sums;
    pool->streams[slot] = stream;
    client_ask_bind(ask, stream);
    return CORE_OK;
}

/* What still comes of it from the node is for nobody. */
static void leave_link(struct client_pool_stream *stream)
{
    struct client_stream *there = client_streams_find(&stream->link->node->streams, stream->node_id);
    if (there != NULL && there->owner == stream)
        there->owner = NULL;
    stream->link = NULL;
}

void client_pool_stream_free(struct client_pool *pool, struct client_pool_stream *stream)
{
    if (stream->link != NULL)
        leave_link(stream);
    if (stream->ask != NULL) {
        stream->ask->refused.code = PROTOCOL_REFUSED_STREAM;
        client_ask_release(stream->ask);
    }
    if (pool->filled == stream)
        pool->filled = NULL;
    pool->streams[stream->id - 1] = NULL;
    client_output_free(&stream->kept);
    core_secret_wipe(stream, sizeof *stream);
    free(stream);
}

void client_pool_stream_end(struct client_pool *pool, struct client_pool_stream *stream,
                            enum millrace_close_reason reason, const char *why)
{
    struct millrace_closed closed = stream->sums;
    const uint32_t id = stream->id;
    closed.reason = reason;
    if (reason == MILLRACE_CLOSE_LOST)
        snprintf(closed.text, sizeof closed.text, "its node is gone, and it can not go on elsewhere: %.440s",
                 why);
    client_pool_stream_free(pool, stream);
    if (client_streams_find(&pool->upper->streams, id) != NULL)
        client_take_closed(pool->upper, id, &closed);
}

/* ---- to the node ---- */

/* Must an answer come before the next packet may go? That to its second key; and one whose next node draws another
 * IV goes there with nothing on the way. */
static bool is_held(const struct client_pool_stream *stream)
{
    return stream->ask != NULL && stream->ask->own && stream->ask->sent &&
           (stream->ask->type == PROTOCOL_REKEY || stream->open.spec.iv == CORE_IV_RANDOM);
}

/* More would keep the node from reading this connection. */
static bool is_enough(const struct client_pool_stream *stream, const struct record *record)
{
    return (record->crossed || stream->open.spec.interval_ns >= SLOW_NS) &&
           stream->handed - stream->answered.sequence >= stream->queue_packets;
}

void client_pool_stream_hand(struct client_pool_stream *stream)
{
    struct core_error error;
    const uint8_t *packet;
    uint8_t *room;
    if (stream->link == NULL || is_held(stream))
        return;
    while (stream->handed_bytes < client_output_waiting(&stream->kept)) {
        const struct record record = record_at(stream, stream->handed_bytes, &packet);
        if (is_enough(stream, &record))
            return;
        if (client_send_data(stream->link->node, stream->node_id, record.bytes, record.flags, &room, NULL,
                             &error)) {
            stream->link->blocked = true;
            return;
        }
        memcpy(room, packet, record.bytes);
        stream->handed_bytes += record_bytes(record.bytes);
        stream->handed++;
    }
    if (!stream->closing)
        return;
    const core_status status = client_send_close(stream->link->node, stream->node_id, &error);
    stream->link->blocked |= status == CORE_FULL || status == CORE_NO_MEMORY; /* NOT_FOUND: it was sent */
}

/* ---- from the upper connection ---- */

/* What is asked for, out of the frame. */
static core_status read_ask(struct client_pool *pool, struct client_ask *ask,
                            const struct protocol_header *header, const uint8_t *body,
                            struct core_error *error)
{
    struct protocol_open open;
    core_status status = CORE_OK;
    switch (ask->type) {
    case PROTOCOL_OPEN:
    case PROTOCOL_QUERY:
        status = protocol_open_read(pool->upper->welcome.version, body, header->body_bytes, &open, error);
        return status ? status : create(pool, &open, ask, error);
    case PROTOCOL_MODIFY:
        return protocol_modify_read(body, header->body_bytes, &ask->modify, error);
    case PROTOCOL_REKEY:
        status = protocol_rekey_read(body, header->body_bytes, &ask->rekey, error);
        if (status == CORE_OK)
            memcpy(ask->bytes, ask->rekey.key, ask->rekey.key_bytes);
        return status;
    default: /* PING */
        memcpy(ask->bytes, body, header->body_bytes);
        ask->byte_count = header->body_bytes;
        return CORE_OK;
    }
}

/* To its node: one at a time, and only where there is a node. */
static bool send_change(struct client_pool_stream *stream, struct client_ask *ask)
{
    if (stream->link == NULL || stream->ask != NULL ||
        (ask->type == PROTOCOL_REKEY && stream->next.key_bytes > 0))
        return false;
    client_ask_bind(ask, stream);
    if (client_ask_send(stream->link, ask) == CORE_OK)
        return true;
    client_ask_release(ask);
    return false;
}

static void close_stream(struct client_pool *pool, struct client_pool_stream *stream)
{
    stream->closing = true;
    client_pool_stream_hand(stream);
    if (stream->link != NULL)
        return;
    pool->astray = true; /* it may be at its end */
    client_pool_wake(pool);
}

core_status client_pool_take(struct client_pool *pool, const uint8_t *frame, struct core_error *error)
{
    struct protocol_header header;
    const uint8_t *body = frame + PROTOCOL_HEADER_BYTES;
    core_status status = protocol_header_read(pool->upper->welcome.version, frame, &header);
    if (status)
        return core_error_set(error, status, "a frame that this library does not make");
    if (header.type == PROTOCOL_CLOSE) {
        close_stream(pool, find(pool, header.id));
        return CORE_OK;
    }
    struct client_ask *ask = client_ask_create(pool, (enum protocol_type)header.type, header.id);
    if (ask == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a request to a pool");
    if ((status = read_ask(pool, ask, &header, body, error))) {
        client_ask_free(ask);
        return status;
    }
    if (!client_ask_changes(ask) || !send_change(find(pool, get_u32(body)), ask))
        client_ask_enqueue(pool, ask); /* a change is refused there */
    client_pool_wake(pool);
    return CORE_OK;
}

/* Its time by the contract: docs/protocol.md, section 4. */
static core_ns eligible_ns(struct client_pool_stream *stream, core_ns now_ns)
{
    const struct core_stream_spec *spec = &stream->open.spec;
    const core_ns ahead_ns = (core_ns)(spec->burst_packets - 1) * spec->interval_ns;
    const core_ns eligible = core_time_max(now_ns, stream->arrival_ns - ahead_ns);
    stream->arrival_ns = core_time_max(stream->arrival_ns, now_ns) + spec->interval_ns;
    return eligible;
}

/* Room for a record: of a message that is too long for that, and not whole by now, what is told goes. */
static core_status keep(struct client_pool_stream *stream, size_t limit, size_t bytes, uint8_t **room)
{
    if (client_output_waiting(&stream->kept) + bytes > limit && stream->answered.bytes > 0 &&
        stream->given_messages == stream->first.messages && !is_moving(stream))
        let_go(stream);
    const size_t kept = client_output_waiting(&stream->kept);
    return kept > 0 && kept + bytes > limit ? CORE_FULL : client_output_append(&stream->kept, bytes, room);
}

core_status client_pool_take_data(struct client_pool *pool, const struct protocol_header *header,
                                  uint8_t **packet, struct core_error *error)
{
    struct client_pool_stream *stream = find(pool, header->id);
    uint8_t *room;
    client_pool_hand_filled(pool);
    const bool all_handed = stream->handed_bytes == client_output_waiting(&stream->kept);
    const core_status status = keep(stream, pool->kept_bytes_max, record_bytes(header->body_bytes), &room);
    if (status == CORE_FULL)
        return core_error_set(error, status,
                              "stream %" PRIu32
                              " has %zu bytes without a result, and its pool keeps %zu of each",
                              header->id, client_output_waiting(&stream->kept), pool->kept_bytes_max);
    if (status)
        return core_error_set(error, status, "no memory to keep a packet of stream %" PRIu32, header->id);
    stream->behind &= stream->link == NULL || !all_handed;
    const struct record record = {.eligible_ns = eligible_ns(stream, core_time_now_ns()),
                                  .bytes = header->body_bytes,
                                  .flags = header->flags,
                                  .crossed = stream->behind};
    memcpy(room, &record, sizeof record);
    *packet = room + sizeof record;
    stream->given++;
    stream->given_messages += (header->flags & PROTOCOL_DATA_LAST) != 0;
    pool->filled = stream;
    return CORE_OK;
}

/* ---- results ---- */

static bool has_chain(const struct core_stream_spec *spec)
{
    return spec->unit == CORE_UNIT_STREAM || spec->iv == CORE_IV_CHAIN;
}

bool client_pool_stream_is_numbered(const struct core_stream_spec *spec)
{
    return spec->iv == CORE_IV_COUNTER || spec->mac != CORE_MAC_NONE;
}

/* The chaining value behind this packet: the last block that came back, or, decrypting, that was sent. */
static void follow_chain(struct client_pool_stream *stream, const uint8_t *sent, uint32_t sent_bytes,
                         const uint8_t *cipher, uint32_t cipher_bytes)
{
    const bool decrypts = stream->open.spec.direction == CORE_DIRECTION_DECRYPT;
    const uint8_t *bytes = decrypts ? sent : cipher;
    const uint32_t whole = (decrypts ? sent_bytes : cipher_bytes) / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
    if (whole > 0)
        memcpy(stream->answered.chain, bytes + whole - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
}

/* A packet that crossed the gap: its true latency, from when it was given, and what that makes of its deadline. */
static void mend_result(struct client_pool_stream *stream, uint8_t *body, core_ns latency_ns,
                        uint16_t version)
{
    const bool met = latency_ns <= stream->open.spec.latency_ns;
    const unsigned changed = PROTOCOL_RESULT_MET | PROTOCOL_RESULT_READER;
    body[1] = (uint8_t)((body[1] & ~changed) | (met ? PROTOCOL_RESULT_MET : 0) |
                        (version >= 2 ? PROTOCOL_RESULT_FAULT : 0));
    put_u64(body + 8, (uint64_t)latency_ns);
    stream->gap.late += !met && stream->in_gap;
}

static void count(struct client_pool_stream *stream, const uint8_t *body, uint32_t cipher_bytes)
{
    stream->sums.packets++;
    stream->sums.bytes += cipher_bytes;
    if (body[1] & PROTOCOL_RESULT_MET)
        stream->sums.met++;
    else
        stream->sums.missed++;
}

static void tell_resumed(struct client_pool *pool, struct client_pool_stream *stream)
{
    const struct millrace_callbacks *callbacks = &pool->upper->callbacks;
    const struct client_stream *upper = client_streams_find(&pool->upper->streams, stream->id);
    if (!stream->in_gap || stream->link == NULL || (int32_t)(stream->told - stream->mended) < 0)
        return;
    const struct millrace_resumed gap = stream->gap;
    stream->in_gap = false;
    if (callbacks->on_resumed != NULL && upper != NULL && !upper->unwanted)
        callbacks->on_resumed(callbacks->argument, stream->id, &gap);
}

/* The packet behind `answered` has its result. */
static void advance(struct client_pool_stream *stream, const struct record *record)
{
    stream->answered.sequence++;
    stream->answered.bytes += record_bytes(record->bytes);
    if (stream->open.spec.unit == CORE_UNIT_MESSAGE) {
        stream->answered.within = (record->flags & PROTOCOL_DATA_LAST) == 0;
        stream->answered.messages += !stream->answered.within;
    }
    if (!stream->answered.within && !is_moving(stream))
        let_go(stream);
}

bool client_pool_stream_fits(const struct client_pool_stream *stream, uint32_t bytes, uint32_t more_bytes)
{
    const uint8_t *packet;
    return stream->answered.sequence == stream->handed ||
           bytes <= record_at(stream, stream->answered.bytes, &packet).bytes + more_bytes;
}

void client_pool_stream_result(struct client_pool_stream *stream, const struct protocol_header *header,
                               uint8_t *body)
{
    struct client_pool *pool = stream->link->pool;
    const uint8_t *packet;
    const struct record record = record_at(stream, stream->answered.bytes, &packet);
    const uint32_t sequence = stream->answered.sequence, id = stream->id;
    const bool again = (int32_t)(sequence - stream->told) < 0, encrypted = body[0] == PROTOCOL_RESULT_OK;
    const uint32_t ahead = PROTOCOL_RESULT_BYTES + (body[1] & PROTOCOL_RESULT_HAS_IV ? CORE_BLOCK_BYTES : 0);
    if (encrypted)
        follow_chain(stream, packet, record.bytes, body + ahead, header->body_bytes - ahead);
    advance(stream, &record);
    if (!again) {
        if (encrypted && record.crossed)
            mend_result(stream, body, core_time_max(pool->now_ns - record.eligible_ns, 0),
                        pool->upper->welcome.version);
        if (encrypted)
            count(stream, body, header->body_bytes - ahead);
        stream->told++;
    }
    client_pool_stream_hand(stream);
    if (!again)
        client_pool_tell(pool, PROTOCOL_RESULT, id, sequence, body, header->body_bytes);
    if ((stream = find(pool, id)) != NULL)
        tell_resumed(pool, stream);
}

/* ---- the next node ---- */

/* NULL: it can go on; else why not. */
static const char *obstacle_of(const struct client_pool_stream *stream)
{
    const struct core_stream_spec *spec = &stream->open.spec;
    if (stream->first.within)
        return "its message is longer than what is kept of a stream (kept_bytes_max)";
    if (has_chain(spec) && spec->crypt_blocks > 0)
        return "the chain of a pattern has no block to begin from that is known";
    if (spec->iv == CORE_IV_RANDOM && stream->told != stream->first.sequence)
        return "a part of its message has come back, and the next node would draw another IV";
    return NULL;
}

bool client_pool_stream_may_move(const struct client_pool_stream *stream)
{
    const bool is_under_way =
        stream->open.spec.iv == CORE_IV_RANDOM && stream->handed != stream->first.sequence;
    return !stream->closing && !is_under_way && obstacle_of(stream) == NULL;
}

void client_pool_stream_detach(struct client_pool *pool, struct client_pool_stream *stream)
{
    stream->link->lost++;
    leave_link(stream);
    if (stream->ask != NULL && stream->ask->type != PROTOCOL_OPEN)
        client_ask_release(stream->ask); /* a change, which is refused */
    if (!stream->in_gap)
        stream->gap = (struct millrace_resumed){.size = sizeof stream->gap};
    if ((int32_t)(stream->handed - stream->told) > 0)
        stream->gap.resent += stream->handed - stream->told;
    stream->in_gap = stream->behind = true;
    stream->lost_ns = pool->now_ns;
    if (stream->ask != NULL)
        stream->ask->begun_ns = pool->now_ns; /* its patience began when it was served */
    stream->answered = stream->first;
    stream->handed = stream->first.sequence;
    stream->handed_bytes = 0;
    pool->astray = true;
    const uint8_t *packet;
    for (size_t at = 0; at < client_output_waiting(&stream->kept);) {
        const struct record record = record_at(stream, at, &packet);
        stream->kept.bytes[stream->kept.begin + at + offsetof(struct record, crossed)] = true;
        at += record_bytes(record.bytes);
    }
}

static void ask_elsewhere(struct client_pool *pool, struct client_pool_stream *stream)
{
    struct client_ask *ask = client_ask_create(pool, PROTOCOL_OPEN, 0);
    if (ask == NULL) {
        pool->astray = true;
        return;
    }
    ask->own = true;
    client_ask_bind(ask, stream);
    client_ask_enqueue(pool, ask);
}

/* It has lost its node. That it could move when another one was asked for, ahead of that, does not say that it can. */
static void settle(struct client_pool *pool, struct client_pool_stream *stream)
{
    const char *obstacle = obstacle_of(stream);
    if (obstacle != NULL)
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_LOST, obstacle);
    else if (stream->ask == NULL)
        ask_elsewhere(pool, stream);
}

core_ns client_pool_streams_look(struct client_pool *pool)
{
    core_ns next_ns = CORE_NS_NEVER;
    const bool elsewhere = client_pool_is_any_up(pool);
    if (!pool->astray)
        return next_ns;
    pool->astray = false;
    for (uint32_t i = 0; i < pool->stream_room; i++) {
        struct client_pool_stream *stream = pool->streams[i];
        if (stream == NULL)
            continue;
        if (stream->link == NULL && stream->closing && stream->told == stream->given)
            client_pool_stream_end(pool, stream, MILLRACE_CLOSE_ASKED, NULL);
        else if (stream->link == NULL && (stream->ask == NULL || stream->ask->own))
            settle(pool, stream);
        else if (stream->ask != NULL)
            continue;
        else if (stream->link->leaving && pool->now_ns < stream->stays_ns)
            next_ns = core_time_min(next_ns, stream->stays_ns);
        else if (stream->link->leaving && elsewhere && client_pool_stream_may_move(stream))
            ask_elsewhere(pool, stream);
    }
    return pool->astray ? core_time_min(next_ns, pool->now_ns + AGAIN_NS) : next_ns;
}

struct protocol_open client_pool_stream_open(const struct client_pool_stream *stream, bool own)
{
    struct protocol_open open = stream->open;
    if (own && has_chain(&open.spec)) {
        open.has_iv = true;
        memcpy(open.iv, stream->first.chain, CORE_BLOCK_BYTES);
    }
    if (own && client_pool_stream_is_numbered(&open.spec))
        open.spec.first_unit += stream->first.messages;
    return open;
}

/* The stream has two keys: the second one has to be there before a message of it. */
static bool ask_for_next_key(struct client_link *link, struct client_pool_stream *stream)
{
    struct client_ask *ask = client_ask_create(link->pool, PROTOCOL_REKEY, 0);
    if (ask == NULL)
        return false;
    ask->own = true;
    client_ask_bind(ask, stream);
    if (client_ask_send(link, ask) == CORE_OK)
        return true;
    client_ask_free(ask);
    return false;
}

/* The next node has it; the last one may have it still. */
static void resume(struct client_link *link, struct client_pool_stream *stream)
{
    stream->gap.gap_ns += link->pool->now_ns - stream->lost_ns;
    stream->mended = stream->given;
    if (stream->next.key_bytes > 0 && !ask_for_next_key(link, stream)) {
        client_close_soon(link->node, stream->node_id); /* no memory: it is asked for again */
        client_pool_stream_detach(link->pool, stream);
        return;
    }
    client_pool_stream_hand(stream);
    tell_resumed(link->pool, stream);
}

/* Of packets that a node may have; with none a stream that it has would not go on. */
static uint32_t at_least_one(uint32_t queue_packets)
{
    return queue_packets > 0 ? queue_packets : 1;
}

void client_pool_stream_opened(struct client_link *link, struct client_ask *ask, uint8_t *body)
{
    struct client_pool_stream *stream = ask->stream;
    struct client_stream *there = client_streams_find(&link->node->streams, get_u32(body));
    client_ask_release(ask);
    if (stream->link != NULL) { /* it was served there until now */
        client_close_soon(stream->link->node, stream->node_id);
        client_pool_stream_detach(link->pool, stream);
    }
    if (!ask->own)
        memcpy(stream->first.chain, there->chain, CORE_BLOCK_BYTES);
    stream->answered = stream->first;
    there->owner = stream;
    stream->link = link;
    stream->node_id = there->id;
    stream->node_first = stream->first.sequence;
    stream->node_messages = stream->first.messages;
    stream->queue_packets = at_least_one(get_u32(body + 24));
    link->was_full = false;
    link->opened++;
    put_u32(body, stream->id);
    if (ask->own)
        resume(link, stream);
}

/* ---- changes ---- */

void client_pool_stream_changed(struct client_pool_stream *stream, struct client_ask *ask, bool granted,
                                uint8_t *body)
{
    client_ask_release(ask);
    if (ask->own && !granted && get_u16(body) == PROTOCOL_REFUSED_DRAINING) { /* it goes on behind that one */
        stream->link->leaving = true;
        client_close_soon(stream->link->node, stream->node_id);
        client_pool_stream_detach(stream->link->pool, stream);
    } else if (ask->own && !granted) {
        client_close_soon(stream->link->node, stream->node_id);
        client_pool_stream_end(stream->link->pool, stream, MILLRACE_CLOSE_LOST,
                               "the next node did not take its second key");
    } else if (ask->own) {
        client_pool_stream_hand(stream);
    } else if (granted && ask->type == PROTOCOL_REKEY) {
        stream->next = ask->rekey;
        memcpy(stream->next_key, ask->bytes, ask->rekey.key_bytes);
        put_u32(body, stream->id);
        put_u64(body + 8, ask->rekey.first);
    } else if (granted) {
        stream->open.spec.burst_packets = ask->modify.burst_packets;
        stream->open.spec.interval_ns = ask->modify.interval_ns;
        stream->open.spec.latency_ns = ask->modify.latency_ns;
        stream->queue_packets = at_least_one(get_u32(body + 36));
        put_u32(body, stream->id);
        put_u32(body + 32, get_u32(body + 32) + stream->node_first);
    }
}

void client_pool_stream_closed(struct client_pool_stream *stream, enum millrace_close_reason reason)
{
    struct client_pool *pool = stream->link->pool;
    stream->link->leaving |= /* of a node of version 1 it may say that the stream is idle */
        reason == MILLRACE_CLOSE_DRAINED && pool->upper->welcome.version > 1;
    if (reason == MILLRACE_CLOSE_DRAINED)
        client_pool_stream_detach(pool, stream);
    else
        client_pool_stream_end(pool, stream, reason, NULL);
}
