/* Streams of a pool: what is kept of each, what goes to its node and comes back, and how it goes on at the next. */
#include "client/pool.h"

#include "core/protocol_bytes.h"
#include "core/secret.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEK_NS           CORE_NS_PER_S          /* until others are asked again for room, behind refusals */
#define SLOW_NS           (100 * CORE_NS_PER_MS) /* an interval beside which round trips are nothing */
#define RECORD_HEAD_BYTES 8 /* the time at which the packet was eligible; then its frame */

/* ---- what is kept ---- */

/* Record `offset` bytes behind the first one: never wrapped, since there is always twice the room (output.c). */
static uint8_t *record_at(const struct client_pool_stream *stream, size_t offset)
{
    return stream->kept.bytes + stream->kept.begin + offset;
}

static struct protocol_header record_header(const uint8_t *record)
{
    const uint8_t *frame = record + RECORD_HEAD_BYTES;
    return (struct protocol_header){.body_bytes = get_u32(frame), .type = frame[4], .flags = frame[5]};
}

static size_t record_bytes(uint32_t body_bytes)
{
    return RECORD_HEAD_BYTES + PROTOCOL_HEADER_BYTES + (size_t)body_bytes;
}

static bool keep(struct client_pool_stream *stream, core_ns eligible_ns, const uint8_t *frame,
                 uint32_t body_bytes)
{
    uint8_t *record;
    stream->kept.secret = true; /* what growing leaves behind is wiped */
    const core_status status = client_output_append(&stream->kept, record_bytes(body_bytes), &record);
    stream->kept.secret = false;
    if (status)
        return false;
    put_u64(record, (uint64_t)eligible_ns);
    memcpy(record + RECORD_HEAD_BYTES, frame, PROTOCOL_HEADER_BYTES + (size_t)body_bytes);
    stream->given++;
    return true;
}

/* Lets go of everything that has results. */
static void let_go(struct client_pool_stream *stream)
{
    const size_t bytes = stream->answered_bytes;
    if (bytes > 0)
        core_secret_wipe(record_at(stream, 0), bytes);
    client_output_consume(&stream->kept, bytes);
    stream->answered_bytes = 0;
    stream->handed_bytes -= bytes;
    stream->first = stream->answered;
    memcpy(stream->chain, stream->chain_last, CORE_BLOCK_BYTES);
    if (client_output_waiting(&stream->kept) == 0 && stream->kept.capacity > CLIENT_OUTPUT_BYTES_MIN)
        client_output_free(&stream->kept);
}

static struct client_pool_stream *find(const struct client_pool *pool, uint32_t id)
{
    return id >= 1 && id <= pool->stream_room ? pool->streams[id - 1] : NULL;
}

core_status client_pool_check_room(struct millrace *connection, uint32_t id, uint32_t bytes,
                                   struct core_error *error)
{
    struct client_pool_stream *stream = connection->pool == NULL ? NULL : find(connection->pool, id);
    if (stream == NULL)
        return CORE_OK;
    size_t given =
        client_output_waiting(&connection->output) * 3 / 2; /* as records, at most, of all streams */
    const size_t limit = connection->pool->kept_bytes_max;
    if (given > 0 && client_output_waiting(&stream->kept) + given + record_bytes(bytes) > limit) {
        client_flush(connection); /* and then it is what this one has */
        given = client_output_waiting(&connection->output) * 3 / 2;
    }
    if (client_output_waiting(&stream->kept) + given + record_bytes(bytes) > limit &&
        stream->answered_bytes > 0) {
        stream->torn = true; /* a message that is too long: what is told of it goes */
        let_go(stream);
    }
    const size_t kept = client_output_waiting(&stream->kept);
    if (kept + given == 0 || kept + given + record_bytes(bytes) <= limit)
        return CORE_OK;
    return core_error_set(error, CORE_FULL,
                          "stream %" PRIu32 " has %zu bytes without a result, and its pool keeps %zu of each",
                          id, kept, limit);
}

/* ---- life ---- */

core_status client_pool_stream_create(struct client_pool *pool, const struct protocol_open *open,
                                      struct client_pool_stream **stream_out)
{
    uint32_t slot = 0;
    while (slot < pool->stream_room && (pool->streams[slot] != NULL || pool->freed[slot] + 1 >= pool->writes))
        slot++;
    if (slot == pool->stream_room) {
        const uint32_t room = pool->stream_room == 0 ? 16 : 2 * pool->stream_room;
        struct client_pool_stream **larger = realloc(pool->streams, room * sizeof *larger);
        pool->streams = larger != NULL ? larger : pool->streams;
        uint64_t *freed = larger == NULL ? NULL : realloc(pool->freed, room * sizeof *freed);
        if (freed == NULL)
            return CORE_NO_MEMORY;
        memset(larger + slot, 0, (room - slot) * sizeof *larger);
        memset(freed + slot, 0, (room - slot) * sizeof *freed);
        pool->freed = freed;
        pool->stream_room = room;
    }
    struct client_pool_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return CORE_NO_MEMORY;
    stream->id = slot + 1;
    stream->open = *open;
    memcpy(stream->key, open->key, open->key_bytes);
    stream->open.key = stream->key;
    stream->sums.size = sizeof stream->sums;
    pool->streams[slot] = stream;
    *stream_out = stream;
    return CORE_OK;
}

static struct protocol_refused refusal(enum protocol_refusal code)
{
    struct protocol_refused refused = {.code = code};
    snprintf(refused.text, sizeof refused.text, "%s",
             code == PROTOCOL_REFUSED_STREAM
                 ? "the stream has ended"
                 : "the stream is between two nodes, or has another request of this kind; ask again later");
    return refused;
}

/* MODIFY and REKEY that its node has not answered are refused, later in this turn; the answer, which may still come,
 * is for nobody then. */
static void drop_changes(struct client_pool *pool, struct client_pool_stream *stream,
                         enum protocol_refusal code)
{
    const bool asks = stream->modifies || stream->rekeys || stream->awaits_key;
    for (size_t i = 0; asks && i < CLIENT_REQUESTS_MAX; i++) {
        struct client_ask *ask = stream->link->asks[i];
        if (ask == NULL || ask->stream != stream)
            continue;
        stream->link->asks[i] = NULL;
        if (ask->resumes) {
            client_ask_free(ask); /* the pool's own */
            continue;
        }
        ask->stream = NULL;
        ask->refused = refusal(code);
        client_ask_enqueue(pool, ask, 0);
    }
    stream->modifies = stream->rekeys = stream->awaits_key = false;
}

/* What still comes of it from the node is for nobody. */
static void leave_link(struct client_pool *pool, struct client_pool_stream *stream,
                       enum protocol_refusal code)
{
    if (stream->seek != NULL)
        stream->seek->stream = NULL;
    stream->seek = NULL;
    stream->may_move = false;
    stream->stays_ns = 0;
    struct client_link *link = stream->link;
    struct client_stream *there =
        link->node == NULL ? NULL : client_streams_find(&link->node->streams, stream->node_id);
    drop_changes(pool, stream, code);
    if (there != NULL && there->owner == stream)
        there->owner = NULL;
    link->streams--;
    stream->link = NULL;
}

void client_pool_stream_free(struct client_pool *pool, struct client_pool_stream *stream)
{
    if (stream->link != NULL)
        leave_link(pool, stream, PROTOCOL_REFUSED_STREAM);
    pool->streams[stream->id - 1] = NULL;
    pool->freed[stream->id - 1] = pool->writes;
    stream->kept.secret = true;
    client_output_free(&stream->kept);
    core_secret_wipe(stream, sizeof *stream);
    free(stream);
}

void client_pool_stream_end(struct client_pool *pool, struct client_pool_stream *stream,
                            enum millrace_close_reason reason, const char *format, ...)
{
    struct millrace_closed closed = stream->sums;
    const uint32_t id = stream->id;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(closed.text, sizeof closed.text, format, arguments);
    va_end(arguments);
    closed.reason = reason;
    client_pool_stream_free(pool, stream);
    if (client_streams_find(&pool->upper->streams, id) != NULL)
        client_take_closed(pool->upper, id, &closed);
}

void client_pool_stream_doom(struct client_pool *pool, struct client_pool_stream *stream, const char *why)
{
    if (stream->doom == NULL)
        stream->doom = why;
    pool->doomed = true;
}

/* ---- to the node ---- */

void client_pool_stream_hand(struct client_pool_stream *stream)
{
    struct core_error error;
    uint8_t *room;
    core_status status = CORE_OK;
    if (stream->place != CLIENT_POOL_THERE)
        return;
    if (stream->doom != NULL) {
        stream->link->pool->doomed = true;
        return;
    }
    if (stream->awaits_key)
        return;
    struct millrace *node = stream->link->node;
    while (stream->handed_bytes < client_output_waiting(&stream->kept)) {
        const uint8_t *record = record_at(stream, stream->handed_bytes);
        const struct protocol_header header = record_header(record);
        if ((stream->catches_up || stream->open.spec.interval_ns >= SLOW_NS) &&
            stream->handed - stream->answered >= stream->queue_packets)
            return; /* more would keep the node from reading this connection */
        status =
            client_send_data(node, stream->node_id, header.body_bytes, header.flags, &room, NULL, &error);
        stream->link->blocked |= status == CORE_FULL;
        if (status == CORE_INVALID)
            client_pool_stream_doom(stream->link->pool, stream,
                                    header.body_bytes > node->welcome.packet_bytes_max
                                        ? "a node takes no packets of this length"
                                        : "a node does not take the flags of a packet");
        if (status)
            return;
        memcpy(room, record + RECORD_HEAD_BYTES + PROTOCOL_HEADER_BYTES, header.body_bytes);
        stream->handed_bytes += record_bytes(header.body_bytes);
        stream->handed++;
    }
    if (stream->catches_up)
        stream->behind_end = stream->handed;
    stream->catches_up = false;
    if (stream->closing && !stream->close_sent) {
        status = client_send_close(node, stream->node_id, &error);
        stream->close_sent = status == CORE_OK;
        stream->link->blocked |= status == CORE_FULL;
    }
}

/* ---- from the upper connection ---- */

/* Not from here: `write` calls nobody back. */
static void refuse_change(struct client_pool *pool, struct client_ask *ask, enum protocol_refusal code)
{
    ask->stream = NULL;
    ask->refused = refusal(code);
    client_ask_enqueue(pool, ask, 0);
}

static void take_modify(struct client_pool *pool, struct client_pool_stream *stream, struct client_ask *ask,
                        const struct protocol_modify *modify)
{
    if (stream->place == CLIENT_POOL_THERE && !stream->modifies) {
        stream->modify = *modify;
        stream->modifies = client_ask_send(stream->link, ask) == CORE_OK;
        if (stream->modifies)
            return;
    }
    refuse_change(pool, ask, PROTOCOL_REFUSED_BUSY);
}

static void take_rekey(struct client_pool *pool, struct client_pool_stream *stream, struct client_ask *ask,
                       const struct protocol_rekey *rekey)
{
    if (stream->place == CLIENT_POOL_THERE && !stream->rekeys && !stream->has_next_key) {
        stream->next = *rekey;
        memcpy(stream->next_key, rekey->key, rekey->key_bytes);
        stream->next.key = stream->next_key;
        stream->rekeys = client_ask_send(stream->link, ask) == CORE_OK;
        if (stream->rekeys)
            return;
    }
    refuse_change(pool, ask, PROTOCOL_REFUSED_BUSY);
}

static core_status take_change(struct client_pool *pool, struct client_pool_stream *stream,
                               const struct protocol_header *header, const uint8_t *body)
{
    struct core_error error;
    struct protocol_modify modify;
    struct protocol_rekey rekey;
    struct client_ask *ask = client_ask_create(pool, (enum protocol_type)header->type, header->id, stream);
    if (ask == NULL)
        return CORE_NO_MEMORY;
    if (stream == NULL || stream->doom != NULL)
        refuse_change(pool, ask, PROTOCOL_REFUSED_STREAM);
    else if (header->type == PROTOCOL_MODIFY &&
             protocol_modify_read(body, header->body_bytes, &modify, &error) == CORE_OK)
        take_modify(pool, stream, ask, &modify);
    else if (header->type == PROTOCOL_REKEY &&
             protocol_rekey_read(body, header->body_bytes, &rekey, &error) == CORE_OK)
        take_rekey(pool, stream, ask, &rekey);
    else
        refuse_change(pool, ask, PROTOCOL_REFUSED_SPEC); /* none that this library has made */
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

core_status client_pool_stream_take(struct client_pool *pool, struct client_pool_stream *stream,
                                    const struct protocol_header *header, const uint8_t *body)
{
    if (header->type == PROTOCOL_MODIFY || header->type == PROTOCOL_REKEY)
        return take_change(pool, stream, header, body);
    if (stream == NULL || stream->doom != NULL)
        return CORE_OK; /* CLOSED says so, or will; no later packet may take the place of one that was not kept */
    if (header->type == PROTOCOL_CLOSE)
        stream->closing = true;
    else if (!keep(stream, eligible_ns(stream, pool->now_ns), body - PROTOCOL_HEADER_BYTES,
                   header->body_bytes))
        client_pool_stream_doom(pool, stream, "there is no memory to keep its packets");
    client_pool_stream_hand(stream);
    return CORE_OK;
}

/* ---- results ---- */

static bool has_chain(const struct core_stream_spec *spec)
{
    return spec->unit == CORE_UNIT_STREAM || spec->iv == CORE_IV_CHAIN;
}

/* The chaining value behind this packet: the last block that came back, or, decrypting, that was sent. */
static void follow_chain(struct client_pool_stream *stream, const uint8_t *sent, uint32_t sent_bytes,
                         const uint8_t *cipher, uint32_t cipher_bytes)
{
    const bool decrypts = stream->open.spec.direction == CORE_DIRECTION_DECRYPT;
    const uint8_t *bytes = decrypts ? sent : cipher;
    const uint32_t whole = (decrypts ? sent_bytes : cipher_bytes) / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
    if (whole > 0)
        memcpy(stream->chain_last, bytes + whole - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
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

/* A message is done. */
static void count_message(struct client_pool_stream *stream)
{
    const struct core_stream_spec *spec = &stream->open.spec;
    stream->messages++;
    stream->torn = false;
    if (!stream->has_next_key ||
        stream->messages +
                (spec->iv == CORE_IV_COUNTER || spec->mac != CORE_MAC_NONE ? spec->first_unit : 0) <
            stream->next.first)
        return;
    stream->has_next_key = false;
    memcpy(stream->key, stream->next_key, stream->next.key_bytes);
    stream->open.key_kind = stream->next.key_kind;
    stream->open.key_bytes = stream->next.key_bytes;
}

static void tell_resumed(struct client_pool *pool, struct client_pool_stream *stream)
{
    const struct millrace_callbacks *callbacks = &pool->upper->callbacks;
    const struct client_stream *upper = client_streams_find(&pool->upper->streams, stream->id);
    if (!stream->in_gap || stream->place != CLIENT_POOL_THERE || (int32_t)(stream->told - stream->mended) < 0)
        return;
    const struct millrace_resumed gap = stream->gap;
    stream->in_gap = false;
    if (callbacks->on_resumed != NULL && upper != NULL && !upper->unwanted)
        callbacks->on_resumed(callbacks->argument, stream->id, &gap);
}

void client_pool_stream_result(struct client_pool_stream *stream, const struct protocol_header *header,
                               uint8_t *body)
{
    struct client_pool *pool = stream->link->pool;
    const uint8_t *record = record_at(stream, stream->answered_bytes);
    const struct protocol_header sent = record_header(record);
    const core_ns eligible = (core_ns)get_u64(record);
    const uint32_t sequence = stream->answered, id = stream->id;
    const bool again = (int32_t)(sequence - stream->told) < 0, encrypted = body[0] == PROTOCOL_RESULT_OK;
    const uint32_t ahead = PROTOCOL_RESULT_BYTES + (body[1] & PROTOCOL_RESULT_HAS_IV ? CORE_BLOCK_BYTES : 0);
    if (encrypted)
        follow_chain(stream, record + RECORD_HEAD_BYTES + PROTOCOL_HEADER_BYTES, sent.body_bytes,
                     body + ahead, header->body_bytes - ahead);
    stream->answered++;
    stream->answered_bytes += record_bytes(sent.body_bytes);
    if (stream->open.spec.unit == CORE_UNIT_STREAM || (sent.flags & PROTOCOL_DATA_LAST)) {
        if (stream->open.spec.unit == CORE_UNIT_MESSAGE)
            count_message(stream);
        let_go(stream);
    }
    if (!again) {
        if (stream->behind && !stream->catches_up && (int32_t)(sequence - stream->behind_end) >= 0)
            stream->behind = false;
        if (encrypted && stream->behind)
            mend_result(stream, body, core_time_max(pool->now_ns - eligible, 0),
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
static const char *resume_obstacle(const struct client_pool_stream *stream)
{
    const struct core_stream_spec *spec = &stream->open.spec;
    if (stream->torn)
        return "its message is longer than what is kept of a stream (kept_bytes_max)";
    if (has_chain(spec) && spec->crypt_blocks > 0)
        return "the chain of a pattern has no block to begin from that is known";
    if (spec->iv == CORE_IV_RANDOM && stream->told != stream->first)
        return "a part of its message has come back, and the next node would draw another IV";
    return NULL;
}

void client_pool_stream_detach(struct client_pool *pool, struct client_pool_stream *stream)
{
    stream->link->lost++;
    leave_link(pool, stream, PROTOCOL_REFUSED_BUSY);
    if (!stream->in_gap)
        stream->gap = (struct millrace_resumed){.size = sizeof stream->gap};
    if (stream->place == CLIENT_POOL_THERE)
        stream->lost_ns = pool->now_ns;
    if ((int32_t)(stream->handed - stream->told) > 0)
        stream->gap.resent += stream->handed - stream->told;
    stream->in_gap = stream->behind = stream->catches_up = true;
    stream->mended = stream->given;
    stream->place = CLIENT_POOL_LOST;
    stream->close_sent = false;
    stream->answered = stream->handed = stream->first;
    stream->answered_bytes = stream->handed_bytes = 0;
    memcpy(stream->chain_last, stream->chain, CORE_BLOCK_BYTES);
}

void client_pool_stream_settle(struct client_pool *pool, struct client_pool_stream *stream,
                               const char *address)
{
    const char *obstacle = resume_obstacle(stream);
    struct client_ask *ask;
    stream->place = CLIENT_POOL_ASKED;
    if (stream->doom != NULL)
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_LOST, "%s", stream->doom);
    else if (stream->closing && stream->told == stream->given)
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_ASKED, "%s", "");
    else if (obstacle != NULL)
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_LOST,
                               "%s is gone, and the stream can not go on elsewhere: %s", address, obstacle);
    else if ((ask = client_ask_create(pool, PROTOCOL_OPEN, 0, stream)) == NULL)
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_LOST, "no memory to ask for another node");
    else {
        ask->resumes = true;
        client_ask_place(pool, ask);
    }
}

static bool may_be_closed(const struct client_pool_stream *stream)
{
    const bool within = stream->open.spec.iv == CORE_IV_RANDOM && stream->handed != stream->first;
    return stream->place == CLIENT_POOL_THERE && !stream->closing && !stream->modifies && !stream->rekeys &&
           !stream->awaits_key && stream->doom == NULL && resume_obstacle(stream) == NULL && !within;
}

/* QUERY asks for all that OPEN will: the contract, the key, and whether it takes the chaining value as an IV. */
static bool seek(struct client_pool *pool, struct client_pool_stream *stream)
{
    struct client_ask *ask = client_ask_create(pool, PROTOCOL_QUERY, 0, stream);
    if (ask == NULL)
        return false;
    ask->resumes = true;
    stream->seek = ask;
    client_ask_place(pool, ask);
    return true;
}

void client_pool_stream_sought(struct client_pool *pool, struct client_pool_stream *stream,
                               const struct protocol_refused *refused)
{
    stream->seek = NULL;
    stream->may_move = refused == NULL;
    if (refused != NULL)
        stream->stays_ns = pool->now_ns + SEEK_NS;
}

bool client_pool_stream_move(struct client_pool *pool, struct client_pool_stream *stream, core_ns *next_ns)
{
    struct core_error error;
    if (!may_be_closed(stream) || stream->seek != NULL)
        return false;
    if (!stream->may_move) {
        if (pool->now_ns >= stream->stays_ns)
            return seek(pool, stream);
        *next_ns = core_time_min(*next_ns, stream->stays_ns);
        return false;
    }
    if (client_send_close(stream->link->node, stream->node_id, &error) != CORE_OK)
        return false;
    stream->place = CLIENT_POOL_MOVING;
    stream->lost_ns = pool->now_ns;
    return true;
}

struct protocol_open client_pool_stream_open(const struct client_pool_stream *stream, bool resumes)
{
    struct protocol_open open = stream->open;
    if (!resumes)
        return open;
    if (has_chain(&open.spec)) {
        open.has_iv = true;
        memcpy(open.iv, stream->chain, CORE_BLOCK_BYTES);
    }
    if (open.spec.iv == CORE_IV_COUNTER || open.spec.mac != CORE_MAC_NONE)
        open.spec.first_unit += stream->messages;
    return open;
}

/* The stream has two keys: the second one has to be there before a message of it. */
static bool ask_for_next_key(struct client_link *link, struct client_pool_stream *stream)
{
    struct client_ask *ask = client_ask_create(link->pool, PROTOCOL_REKEY, 0, stream);
    if (ask == NULL)
        return false;
    ask->resumes = stream->awaits_key = true;
    if (client_ask_send(link, ask) == CORE_OK)
        return true;
    client_ask_free(ask);
    return false;
}

void client_pool_stream_opened(struct client_link *link, struct client_ask *ask, uint8_t *body,
                               uint32_t bytes)
{
    struct client_pool *pool = link->pool;
    struct client_pool_stream *stream = ask->stream;
    struct client_stream *there = client_streams_find(&link->node->streams, get_u32(body));
    there->owner = stream;
    stream->place = CLIENT_POOL_THERE;
    stream->link = link;
    stream->node_id = there->id;
    stream->node_first = stream->first;
    stream->node_messages = stream->messages;
    stream->queue_packets = get_u32(body + 24);
    link->leaving = false; /* else it had said no */
    link->streams++;
    link->opened++;
    if (!ask->resumes) {
        memcpy(stream->chain, there->chain, CORE_BLOCK_BYTES);
        memcpy(stream->chain_last, there->chain, CORE_BLOCK_BYTES);
        put_u32(body, stream->id);
        client_pool_tell(pool, PROTOCOL_OPENED, ask->request, 0, body, bytes);
        return;
    }
    stream->gap.gap_ns += pool->now_ns - stream->lost_ns;
    stream->mended = stream->given;
    stream->catches_up = true;
    if (stream->has_next_key && !ask_for_next_key(link, stream))
        client_pool_stream_doom(pool, stream, "the next node could not be asked for its second key");
    client_pool_stream_hand(stream);
    tell_resumed(pool, stream);
}

/* ---- changes ---- */

static void changed_key(const struct client_ask *ask, uint8_t *body, bool granted)
{
    struct client_pool_stream *stream = ask->stream;
    if (ask->resumes) {
        stream->awaits_key = false;
        if (!granted)
            client_pool_stream_doom(stream->link->pool, stream, "the next node did not take its second key");
        client_pool_stream_hand(stream);
        return;
    }
    stream->rekeys = false;
    stream->has_next_key = granted;
    if (granted)
        put_u64(body + 8, stream->next.first);
}

void client_pool_stream_changed(struct client_link *link, struct client_ask *ask, uint8_t type, uint8_t *body,
                                uint32_t bytes)
{
    struct client_pool_stream *stream = ask->stream;
    const bool granted = type != PROTOCOL_REFUSED;
    if (ask->type == PROTOCOL_REKEY)
        changed_key(ask, body, granted);
    else
        stream->modifies = false;
    if (ask->type == PROTOCOL_MODIFY && granted) {
        stream->open.spec.burst_packets = stream->modify.burst_packets;
        stream->open.spec.interval_ns = stream->modify.interval_ns;
        stream->open.spec.latency_ns = stream->modify.latency_ns;
        put_u32(body + 32, get_u32(body + 32) + stream->node_first);
        stream->queue_packets = get_u32(body + 36);
    }
    if (ask->resumes)
        return;
    if (granted)
        put_u32(body, stream->id);
    client_pool_tell(link->pool, (enum protocol_type)type, ask->request, 0, body, bytes);
}

void client_pool_stream_closed(struct client_pool_stream *stream, enum millrace_close_reason reason)
{
    struct client_pool *pool = stream->link->pool;
    const bool asked = reason == MILLRACE_CLOSE_ASKED && stream->place != CLIENT_POOL_MOVING;
    stream->link->leaving |= reason == MILLRACE_CLOSE_DRAINED;
    if (asked || reason == MILLRACE_CLOSE_FAILED || reason == MILLRACE_CLOSE_IDLE)
        client_pool_stream_end(pool, stream, reason, "%s", "");
    else {
        const char *address = stream->link->address;
        client_pool_stream_detach(pool, stream);
        client_pool_stream_settle(pool, stream, address);
    }
}
