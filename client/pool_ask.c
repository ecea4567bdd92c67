/* Which node is asked: the one with the fewest streams for its weight, of those that have not said no; and what
 * becomes of a request that nobody grants. */
#include "client/pool.h"

#include "core/secret.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_MIN      (1.0 / 64)
#define ROUND_NS        (100 * CORE_NS_PER_MS) /* pause behind the first round of refusals; doubled by each, */
#define ROUND_DOUBLINGS 3                      /* so often */

struct client_ask *client_ask_create(struct client_pool *pool, enum protocol_type type, uint32_t request,
                                     struct client_pool_stream *stream)
{
    struct client_ask *ask = calloc(1, sizeof *ask);
    if (ask == NULL)
        return NULL;
    ask->type = type;
    ask->request = request;
    ask->stream = stream;
    ask->begun_ns = pool->now_ns;
    ask->refused = (struct protocol_refused){.code = PROTOCOL_REFUSED_DRAINING,
                                             .text = "no node of the pool can be reached"};
    return ask;
}

void client_ask_free(struct client_ask *ask)
{
    free(ask);
}

void client_ask_enqueue(struct client_pool *pool, struct client_ask *ask, core_ns due_ns)
{
    ask->due_ns = due_ns;
    ask->next = NULL;
    *pool->queue_end = ask;
    pool->queue_end = &ask->next;
    pool->urgent = true;
}

/* ---- to a node ---- */

static bool opens(const struct client_ask *ask)
{
    return ask->type == PROTOCOL_OPEN || ask->type == PROTOCOL_QUERY;
}

static bool asks_for_node(const struct client_ask *ask)
{
    return opens(ask) || ask->type == PROTOCOL_PING;
}

static core_status send_rekey(struct client_link *link, const struct client_ask *ask, uint32_t *request,
                              struct core_error *error)
{
    const struct client_pool_stream *stream = ask->stream;
    const struct core_stream_spec *spec = &stream->open.spec;
    struct protocol_rekey rekey = stream->next;
    rekey.stream = stream->node_id;
    if (spec->iv != CORE_IV_COUNTER && spec->mac == CORE_MAC_NONE)
        rekey.first -= stream->node_messages; /* this node has counted from 0 */
    return client_send_rekey(link->node, &rekey, request, error);
}

core_status client_ask_send(struct client_link *link, struct client_ask *ask)
{
    struct core_error error;
    struct protocol_open open;
    struct protocol_modify modify;
    uint32_t request = 0;
    core_status status = CORE_INVALID;
    switch (ask->type) {
    case PROTOCOL_OPEN:
    case PROTOCOL_QUERY:
        open = client_pool_stream_open(ask->stream, ask->resumes);
        status = client_send_open(link->node, ask->type, &open, &request, &error);
        break;
    case PROTOCOL_MODIFY:
        modify = ask->stream->modify;
        modify.stream = ask->stream->node_id;
        status = client_send_modify(link->node, &modify, &request, &error);
        break;
    case PROTOCOL_REKEY:
        status = send_rekey(link, ask, &request, &error);
        break;
    case PROTOCOL_PING:
        status = client_send_ping(link->node, ask->payload, ask->payload_bytes, &request, &error);
        break;
    default:
        break;
    }
    if (status)
        return status;
    link->asks[request % CLIENT_REQUESTS_MAX] = ask;
    if (opens(ask)) {
        link->asking++;
        ask->asked++;
        ask->asked_now++;
    }
    link->pings += ask->type == PROTOCOL_PING && !ask->resumes;
    link->pool->urgent = true; /* the silence behind it is watched */
    return CORE_OK;
}

/* ---- which ---- */

static double weight_of(const struct client_link *link, core_ns now_ns)
{
    const double seconds = (double)(now_ns - link->refused_ns) / 1e9;
    return seconds > 10 ? 1 : fmin(1, link->weight * exp2(seconds));
}

void client_link_refuses(struct client_link *link)
{
    link->weight = fmax(weight_of(link, link->pool->now_ns) / 2, WEIGHT_MIN);
    link->refused_ns = link->pool->now_ns;
    link->refused++;
}

static struct client_link *choose_of(struct client_pool *pool, const struct client_ask *ask, bool leaving,
                                     bool *waits)
{
    struct client_link *best = NULL;
    double least = INFINITY;
    for (unsigned i = 0; i < pool->link_count; i++) {
        struct client_link *link = &pool->links[i];
        if (link->node == NULL || link->leaving != leaving || (ask->tried >> i & 1) != 0)
            continue;
        if (opens(ask) && link->asking >= CLIENT_POOL_ASKS_MAX) {
            *waits = true;
            continue;
        }
        const double crowd =
            (link->streams + link->asking + 0.5 + client_pool_draw(pool) / 2) / weight_of(link, pool->now_ns);
        if (crowd < least) {
            least = crowd;
            best = link;
        }
    }
    return best;
}

/* Is it for a stream that is about to leave its node? */
static bool seeks(const struct client_ask *ask)
{
    return ask->type == PROTOCOL_QUERY && ask->resumes;
}

/* One that is leaving is the last resort: it may have stayed. *waits: there is one that will do, later. */
static struct client_link *choose(struct client_pool *pool, const struct client_ask *ask, bool *waits)
{
    *waits = false;
    struct client_link *link = choose_of(pool, ask, false, waits);
    return link != NULL || *waits || seeks(ask) ? link : choose_of(pool, ask, true, waits);
}

static bool is_any_up(const struct client_pool *pool)
{
    for (unsigned i = 0; i < pool->link_count; i++)
        if (pool->links[i].node != NULL && !pool->links[i].leaving)
            return true;
    return false;
}

void client_ask_answer(struct client_pool *pool, const struct client_ask *ask,
                       const struct protocol_refused *refused)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const uint32_t bytes =
        protocol_refused_write(pool->upper->welcome.version, frame, ask->request, refused) -
        PROTOCOL_HEADER_BYTES;
    pool->upper->asked = ask->asked;
    client_pool_tell(pool, PROTOCOL_REFUSED, ask->request, 0, frame + PROTOCOL_HEADER_BYTES, bytes);
    pool->upper->asked = 1;
}

static const char *cause_of(const struct client_pool *pool)
{
    for (unsigned i = 0; i < pool->link_count; i++)
        if (pool->links[i].node == NULL && pool->links[i].cause.text[0] != '\0')
            return pool->links[i].cause.text;
    return "all are stopping";
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
    if (seeks(ask)) {
        client_pool_stream_sought(pool, stream, &ask->refused);
        client_ask_free(ask);
        return;
    }
    if (ask->asked == 0)
        snprintf(refused.text, sizeof refused.text, "no node can be reached: %.400s", cause_of(pool));
    else
        snprintf(refused.text, sizeof refused.text, "%.440s (nodes asked: %u)", ask->refused.text,
                 ask->asked);
    if (ask->resumes) {
        stream->sums.refused =
            may_pass(refused.code) ? (enum millrace_refusal)0 : (enum millrace_refusal)refused.code;
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_LOST,
                               "its node is gone, and it can not go on elsewhere: %s", refused.text);
    } else {
        if (stream != NULL)
            client_pool_stream_free(pool, stream);
        client_ask_answer(pool, ask, &refused);
    }
    client_ask_free(ask);
}

static void end_round(struct client_pool *pool, struct client_ask *ask)
{
    if (seeks(ask) || (!ask->resumes && is_any_up(pool))) {
        give_up(pool, ask);
        return;
    }
    const unsigned doublings = ask->rounds < ROUND_DOUBLINGS ? ask->rounds : ROUND_DOUBLINGS;
    const core_ns pause_ns = (core_ns)((double)(ROUND_NS << doublings) * (0.75 + client_pool_draw(pool) / 2));
    ask->rounds++;
    ask->tried = 0;
    ask->asked_now = 0;
    client_ask_enqueue(pool, ask, pool->now_ns + pause_ns);
}

static bool try_to_place(struct client_pool *pool, struct client_ask *ask)
{
    bool waits;
    struct client_link *link = choose(pool, ask, &waits);
    return link != NULL && client_ask_send(link, ask) == CORE_OK; /* else its output is full: another turn */
}

void client_ask_place(struct client_pool *pool, struct client_ask *ask)
{
    if (pool->queue != NULL || !try_to_place(pool, ask))
        client_ask_enqueue(pool, ask, 0);
}

void client_ask_again(struct client_pool *pool, struct client_ask *ask)
{
    const bool is_own_ping = ask->type == PROTOCOL_PING && ask->resumes;
    if (!asks_for_node(ask) || is_own_ping || (opens(ask) && ask->stream == NULL)) {
        client_ask_free(ask); /* its stream knows by itself */
        return;
    }
    if (opens(ask) && !may_pass(ask->refused.code))
        give_up(pool, ask);
    else if (ask->asked_now >= pool->attempts)
        end_round(pool, ask);
    else
        client_ask_enqueue(pool, ask, 0);
}

/* ---- the queue ---- */

/* True: it is out of the queue, or in it anew. */
static bool look_at(struct client_pool *pool, struct client_ask *ask)
{
    bool waits;
    if (!asks_for_node(ask)) {
        client_ask_answer(pool, ask, &ask->refused);
        client_ask_free(ask);
        return true;
    }
    if (opens(ask) && ask->stream == NULL) {
        client_ask_free(ask);
        return true;
    }
    if (ask->due_ns <= pool->now_ns && try_to_place(pool, ask))
        return true;
    if (pool->now_ns >= ask->begun_ns + pool->patience_ns) {
        give_up(pool, ask);
        return true;
    }
    if (ask->due_ns <= pool->now_ns && choose(pool, ask, &waits) == NULL && !waits && is_any_up(pool)) {
        end_round(pool, ask); /* all were asked */
        return true;
    }
    return false;
}

/* What waits for a node to be there, or to answer, is looked at when that happens. */
static core_ns next_look(const struct client_pool *pool)
{
    core_ns next_ns = CORE_NS_NEVER;
    for (const struct client_ask *ask = pool->queue; ask != NULL; ask = ask->next) {
        next_ns =
            core_time_min(next_ns, asks_for_node(ask) ? ask->begun_ns + pool->patience_ns : pool->now_ns);
        if (ask->due_ns > pool->now_ns)
            next_ns = core_time_min(next_ns, ask->due_ns);
    }
    return next_ns;
}

core_ns client_asks_look(struct client_pool *pool)
{
    struct client_ask *ask = pool->queue, *next;
    pool->queue = NULL; /* what comes in meanwhile is new */
    pool->queue_end = &pool->queue;
    for (; ask != NULL; ask = next) {
        next = ask->next;
        const core_ns due_ns = ask->due_ns;
        if (!look_at(pool, ask))
            client_ask_enqueue(pool, ask, due_ns);
    }
    return next_look(pool);
}
