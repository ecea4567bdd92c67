/* Which node is asked: the one with the fewest streams, of those that have not said no; and what becomes of a
 * request that nobody grants. */
#include "client/pool.h"

#include "core/secret.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_ASKS_MAX 16            /* OPENs of one link that wait for an answer */
#define FULL_NS       CORE_NS_PER_S /* that a node which has refused for want of room is asked after others */
#define STAYS_NS      CORE_NS_PER_S /* that a stream stays at a node that is leaving, behind refusals */
#define ROUND_NS                                                                                             \
    (100 * CORE_NS_PER_MS) /* pause behind the first round of refusals, doubled each time, up to */
#define ROUND_NS_MAX (800 * CORE_NS_PER_MS)
#define STREAMS_MANY 0x1p32 /* more than any node has */

struct client_ask *client_ask_create(struct client_pool *pool, enum protocol_type type, uint32_t request)
{
    struct client_ask *ask = calloc(1, sizeof *ask);
    if (ask == NULL)
        return NULL;
    pool->now_ns = core_time_now_ns();
    ask->type = type;
    ask->request = request;
    ask->begun_ns = pool->now_ns;
    ask->pause_ns = ROUND_NS;
    return ask;
}

void client_ask_bind(struct client_ask *ask, struct client_pool_stream *stream)
{
    ask->stream = stream;
    stream->ask = ask;
}

void client_ask_release(struct client_ask *ask)
{
    if (ask->stream != NULL)
        ask->stream->ask = NULL;
    ask->stream = NULL;
}

void client_ask_free(struct client_ask *ask)
{
    client_ask_release(ask);
    core_secret_wipe(ask->bytes, sizeof ask->bytes);
    free(ask);
}

bool client_ask_changes(const struct client_ask *ask)
{
    return ask->type == PROTOCOL_MODIFY || ask->type == PROTOCOL_REKEY;
}

/* Is its stream served meanwhile, by a node that is leaving? */
static bool is_of_mover(const struct client_ask *ask)
{
    return ask->own && ask->type == PROTOCOL_OPEN && ask->stream != NULL && ask->stream->link != NULL;
}

void client_ask_enqueue(struct client_pool *pool, struct client_ask *ask)
{
    ask->sent = false;
    ask->next = NULL;
    *pool->queue_end = ask;
    pool->queue_end = &ask->next;
    if (is_of_mover(ask))
        client_pool_stream_hand(ask->stream);
}

static void mark_full(struct client_link *link, core_ns time_ns)
{
    link->full_ns = link->pool->now_ns + time_ns;
    link->was_full = true;
}

/* ---- to a node ---- */

/* How long a node may take for an answer: as many attempts as there may be fit into the pool's patience. */
static core_ns answer_ns(const struct client_pool *pool)
{
    return pool->patience_ns / (pool->attempts < pool->link_count ? pool->attempts : pool->link_count);
}

/* When the node that has it is late: when all patience is at an end, at the latest. */
static core_ns late_ns(const struct client_pool *pool, const struct client_ask *ask)
{
    const core_ns end_ns = ask->begun_ns + pool->patience_ns;
    return ask->type == PROTOCOL_PING ? end_ns : core_time_min(ask->sent_ns + answer_ns(pool), end_ns);
}

static bool opens(const struct client_ask *ask)
{
    return ask->type == PROTOCOL_OPEN || ask->type == PROTOCOL_QUERY;
}

/* A change that the program asks for waits as long as its node is there. */
static bool may_be_late(const struct client_ask *ask)
{
    return ask->type == PROTOCOL_PING ? !ask->own : ask->stream != NULL && (opens(ask) || ask->own);
}

static core_status send_open(struct client_link *link, const struct client_ask *ask, uint32_t *request,
                             struct core_error *error)
{
    const struct protocol_open open = client_pool_stream_open(ask->stream, ask->own);
    return client_send_open(link->node, ask->type, &open, request, error);
}

static core_status send_modify(struct client_link *link, const struct client_ask *ask, uint32_t *request,
                               struct core_error *error)
{
    struct protocol_modify modify = ask->modify;
    modify.stream = ask->stream->node_id;
    return client_send_modify(link->node, &modify, request, error);
}

static core_status send_rekey(struct client_link *link, const struct client_ask *ask, uint32_t *request,
                              struct core_error *error)
{
    const struct client_pool_stream *stream = ask->stream;
    struct protocol_rekey rekey = ask->own ? stream->next : ask->rekey;
    rekey.stream = stream->node_id;
    rekey.key = ask->own ? stream->next_key : ask->bytes;
    if (!client_pool_stream_is_numbered(&stream->open.spec))
        rekey.first -= stream->node_messages; /* this node has counted from 0 */
    return client_send_rekey(link->node, &rekey, request, error);
}

core_status client_ask_send(struct client_link *link, struct client_ask *ask)
{
    struct core_error error;
    uint32_t request = 0;
    core_status status = opens(ask)                     ? send_open(link, ask, &request, &error)
                         : ask->type == PROTOCOL_MODIFY ? send_modify(link, ask, &request, &error)
                         : ask->type == PROTOCOL_REKEY
                             ? send_rekey(link, ask, &request, &error)
                             : client_send_ping(link->node, ask->bytes, ask->byte_count, &request, &error);
    if (status)
        return status;
    client_requests_find(&link->node->requests, request)->ask = ask;
    ask->sent = true;
    if (ask->type != PROTOCOL_PING)
        ask->tried |= UINT64_C(1) << (link - link->pool->links);
    ask->sent_ns = link->pool->now_ns;
    if (may_be_late(ask))
        link->overdue_ns = core_time_min(link->overdue_ns, late_ns(link->pool, ask));
    return CORE_OK;
}

void client_asks_recall(struct client_link *link)
{
    const struct client_requests *requests = &link->node->requests;
    for (uint16_t i = 0; i < requests->capacity; i++)
        if (requests->slots[i].type != 0 && requests->slots[i].ask != NULL)
            client_ask_enqueue(link->pool, requests->slots[i].ask);
}

/* Another ask is in its place; its answer, if there is ever one, is for nobody: what that opens is closed. */
static void withdraw(struct client_link *link, struct client_ask *ask)
{
    struct client_pool_stream *stream = ask->stream;
    struct client_ask *again = malloc(sizeof *again);
    if (again == NULL)
        return; /* later */
    *again = *ask;
    client_ask_release(ask);
    ask->own = true;
    if (stream != NULL)
        client_ask_bind(again, stream);
    client_ask_enqueue(link->pool, again);
    if (stream != NULL)
        mark_full(link, answer_ns(link->pool));
}

static void take_back(struct client_link *link, struct client_ask *ask)
{
    struct client_pool_stream *stream = ask->stream;
    if (!client_ask_changes(ask)) {
        withdraw(link, ask);
        return;
    }
    client_ask_release(ask);
    client_close_soon(link->node, stream->node_id);
    client_pool_stream_end(link->pool, stream, MILLRACE_CLOSE_LOST,
                           "the next node did not take its second key in time");
}

void client_asks_withdraw(struct client_link *link)
{
    const struct client_requests *requests = &link->node->requests;
    const core_ns now_ns = link->pool->now_ns;
    core_ns next_ns = CORE_NS_NEVER;
    if (now_ns < link->overdue_ns)
        return;
    for (uint16_t i = 0; i < requests->capacity; i++) {
        struct client_ask *ask = requests->slots[i].type != 0 ? requests->slots[i].ask : NULL;
        if (ask == NULL || !may_be_late(ask))
            continue;
        core_ns again_ns = late_ns(link->pool, ask);
        if (now_ns >= again_ns) {
            take_back(link, ask);
            again_ns = now_ns + ROUND_NS; /* where there was no memory for that */
        }
        if (may_be_late(ask))
            next_ns = core_time_min(next_ns, again_ns);
    }
    link->overdue_ns = next_ns;
}

/* ---- which ---- */

/* What has refused comes after what has not: for a while; and then, until it has granted something, behind the first
 * refusal. What is leaving comes last: it may have stayed. */
static double crowd_of(const struct client_link *link, const struct client_ask *ask)
{
    const bool full = link->pool->now_ns < link->full_ns || (link->was_full && ask->tried != 0);
    const double rank = link->leaving ? 2 : full ? 1 : 0;
    return rank * STREAMS_MANY + (double)link->node->streams.count + link->node->requests.count +
           client_pool_draw(link->pool);
}

/* *waits: there is one that will do, later. */
static struct client_link *choose(struct client_pool *pool, const struct client_ask *ask, bool *waits)
{
    struct client_link *best = NULL;
    double least = INFINITY;
    *waits = is_of_mover(ask) && !client_pool_stream_may_move(ask->stream);
    if (*waits || (unsigned)__builtin_popcountll(ask->tried) >= pool->attempts)
        return NULL;
    for (unsigned i = 0; i < pool->link_count; i++) {
        struct client_link *link = &pool->links[i];
        const bool is_worse = link->leaving || pool->now_ns < link->full_ns; /* than where a mover is */
        if (link->node == NULL || (ask->tried >> i & 1) != 0 || (is_worse && is_of_mover(ask)))
            continue;
        if (opens(ask) && link->node->requests.count >= LINK_ASKS_MAX) {
            *waits |= !link->leaving;
            continue;
        }
        const double crowd = crowd_of(link, ask);
        if (crowd < least) {
            least = crowd;
            best = link;
        }
    }
    return best != NULL && best->leaving && *waits ? NULL : best;
}

/* ---- what nobody grants ---- */

void client_ask_answer(struct client_pool *pool, struct client_ask *ask, enum protocol_type type,
                       const uint8_t *body, uint32_t bytes)
{
    pool->upper->asked = (unsigned)__builtin_popcountll(ask->tried);
    if (!ask->own)
        client_pool_tell(pool, type, ask->request, 0, body, bytes);
    pool->upper->asked = 1;
    client_ask_free(ask);
}

static void refuse(struct client_pool *pool, struct client_ask *ask, const struct protocol_refused *refused)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const uint32_t bytes = protocol_refused_write(pool->upper->welcome.version, frame, ask->request, refused);
    client_ask_answer(pool, ask, PROTOCOL_REFUSED, frame + PROTOCOL_HEADER_BYTES,
                      bytes - PROTOCOL_HEADER_BYTES);
}

static const char *cause_of(const struct client_pool *pool, const char *other)
{
    for (unsigned i = 0; i < pool->link_count; i++)
        if (pool->links[i].node == NULL && pool->links[i].cause.text[0] != '\0')
            return pool->links[i].cause.text;
    return other;
}

/* A contract or a key that one node does not take is not for others to judge. */
static bool may_pass(enum protocol_refusal code)
{
    return code == PROTOCOL_REFUSED_CAPACITY || code == PROTOCOL_REFUSED_LIMIT ||
           code == PROTOCOL_REFUSED_DRAINING || code == PROTOCOL_REFUSED_INTERNAL;
}

/* Nobody has granted it, and nobody else is to be asked. */
static void give_up(struct client_pool *pool, struct client_ask *ask)
{
    struct client_pool_stream *stream = ask->stream;
    struct protocol_refused refused = ask->refused;
    if (ask->tried == 0 || ask->refused.code == 0) { /* nobody was asked; or who was, is gone */
        refused = (struct protocol_refused){.code = PROTOCOL_REFUSED_DRAINING};
        const bool asked = ask->tried != 0 ||
                           (ask->type == PROTOCOL_PING && ask->sent_ns > 0 && client_pool_is_any_up(pool));
        snprintf(refused.text, sizeof refused.text, "%s: %.400s",
                 asked ? "no node has answered" : "no node can be reached",
                 cause_of(pool, asked ? "those that are asked say nothing" : "all are stopping"));
    } else {
        snprintf(refused.text, sizeof refused.text, "%.440s (connections asked: %d)", ask->refused.text,
                 __builtin_popcountll(ask->tried));
    }
    const bool moves = is_of_mover(ask);
    client_ask_release(ask);
    if (moves) {
        stream->stays_ns = pool->now_ns + STAYS_NS;
        client_pool_stream_hand(stream);
    } else if (ask->own) {
        stream->sums.refused =
            may_pass(refused.code) ? (enum millrace_refusal)0 : (enum millrace_refusal)refused.code;
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_LOST, refused.text);
    } else if (stream != NULL) {
        client_pool_stream_free(pool, stream);
    }
    refuse(pool, ask, &refused);
}

void client_ask_refused(struct client_link *link, struct client_ask *ask, const uint8_t *body, uint32_t bytes)
{
    struct core_error error;
    struct client_pool *pool = link->pool;
    if (protocol_refused_read(link->node->welcome.version, body, bytes, &ask->refused, &error))
        ask->refused.code = PROTOCOL_REFUSED_INTERNAL; /* its own handler has read the same */
    if (ask->refused.code == PROTOCOL_REFUSED_CAPACITY || ask->refused.code == PROTOCOL_REFUSED_LIMIT) {
        mark_full(link, FULL_NS);
        link->refused++;
    }
    link->refuses |= ask->refused.code == PROTOCOL_REFUSED_DRAINING;
    link->leaving |= link->refuses;
    if (ask->stream == NULL || may_pass(ask->refused.code))
        client_ask_enqueue(pool, ask);
    else
        give_up(pool, ask);
}

/* A MODIFY or REKEY that its node will not answer, or that none was asked for. */
static void refuse_change(struct client_pool *pool, struct client_ask *ask)
{
    const bool ended = ask->refused.code == PROTOCOL_REFUSED_STREAM;
    struct protocol_refused refused = {.code = ended ? PROTOCOL_REFUSED_STREAM : PROTOCOL_REFUSED_BUSY};
    snprintf(refused.text, sizeof refused.text, "%s",
             ended ? "the stream has ended"
                   : "the stream is between two nodes, or has another request; ask again later");
    refuse(pool, ask, &refused);
}

/* ---- the queue ---- */

/* Places it, or ends it. Returns when to look at it again; 0: it is out of the queue. */
static core_ns look_at(struct client_pool *pool, struct client_ask *ask)
{
    const core_ns end_ns = ask->begun_ns + pool->patience_ns;
    if (ask->due_ns > pool->now_ns && pool->now_ns < end_ns)
        return core_time_min(ask->due_ns, end_ns);
    if (ask->due_ns > 0 && pool->now_ns < end_ns)
        ask->tried = 0; /* another round */
    ask->due_ns = 0;
    if (ask->sent_ns > 0 && pool->now_ns >= end_ns) { /* somebody was asked, for nothing */
        give_up(pool, ask);
        return 0;
    }
    bool waits;
    struct client_link *link = choose(pool, ask, &waits);
    if (link != NULL && client_ask_send(link, ask) == CORE_OK)
        return 0;
    const bool all_asked = link == NULL && !waits;
    const bool may_wait = (ask->own && !is_of_mover(ask)) || !client_pool_is_any_up(pool);
    if (pool->now_ns >= end_ns || (all_asked && !may_wait)) {
        give_up(pool, ask);
        return 0;
    }
    if (link != NULL)
        return core_time_min(pool->now_ns + ROUND_NS, end_ns); /* its output is full, or there is no memory */
    if (waits || ask->tried == 0)
        return end_ns; /* what it waits for makes a turn */
    ask->due_ns = client_pool_back_off(pool, &ask->pause_ns, ROUND_NS_MAX);
    return core_time_min(ask->due_ns, end_ns);
}

/* What comes in meanwhile, of who is called back, is for the next turn: who asks again as soon as he is refused would
 * else never let this one end. */
core_ns client_asks_look(struct client_pool *pool)
{
    struct client_ask *round = pool->queue, *waiting = NULL, **waiting_end = &waiting;
    core_ns next_ns = CORE_NS_NEVER;
    pool->queue = NULL;
    pool->queue_end = &pool->queue;
    for (struct client_ask *ask; (ask = round) != NULL;) {
        round = ask->next;
        ask->next = NULL;
        if (client_ask_changes(ask)) {
            refuse_change(pool, ask);
            continue;
        }
        if ((opens(ask) || ask->own) && ask->stream == NULL) { /* it is nobody's any more */
            client_ask_free(ask);
            continue;
        }
        const core_ns again_ns = look_at(pool, ask);
        if (again_ns == 0)
            continue;
        *waiting_end = ask;
        waiting_end = &ask->next;
        next_ns = core_time_min(next_ns, again_ns);
    }
    *waiting_end = pool->queue;
    if (pool->queue == NULL)
        pool->queue_end = waiting == NULL ? &pool->queue : waiting_end;
    pool->queue = waiting;
    return next_ns;
}
