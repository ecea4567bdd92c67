/* A pool's links, and its turn: what is ready is read, what is due is done. */
#include "client/pool.h"

#include "core/protocol_bytes.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#define ATTEMPT_MS   1000                   /* an attempt to connect, once the pool is there */
#define READS        16                     /* of one node in one turn */
#define RETRY_NS     (100 * CORE_NS_PER_MS) /* until a link is tried again, doubled each time, up to */
#define RETRY_NS_MAX (10 * CORE_NS_PER_S)
#define RENEW_NS                                                                                             \
    CORE_NS_PER_S /* that an idle connection to a node that is leaving stays, where no other is up */
#define SILENCE_NS (2 * CORE_NS_PER_S) /* that a node with streams may say nothing; and then, not even PONG */
#define WOKEN_NS   CORE_NS_PER_MS      /* between a turn and the one that who is called back in it asks for */

void client_pool_hand_filled(struct client_pool *pool)
{
    if (pool->filled != NULL)
        client_pool_stream_hand(pool->filled);
    pool->filled = NULL;
}

size_t client_pool_unsent_bytes(struct client_pool *pool)
{
    size_t bytes = 0;
    client_pool_hand_filled(pool);
    for (unsigned i = 0; i < pool->link_count; i++)
        if (pool->links[i].node != NULL)
            bytes += client_unsent_bytes(pool->links[i].node);
    return bytes;
}

double client_pool_draw(struct client_pool *pool)
{
    return rand_r(&pool->random) / (RAND_MAX + 1.0);
}

core_ns client_pool_back_off(struct client_pool *pool, core_ns *delay_ns, core_ns most_ns)
{
    const core_ns delay = (core_ns)((double)*delay_ns * (0.75 + client_pool_draw(pool) / 2));
    *delay_ns = core_time_min(2 * *delay_ns, most_ns);
    return pool->now_ns + delay;
}

bool client_pool_is_any_up(const struct client_pool *pool)
{
    for (unsigned i = 0; i < pool->link_count; i++)
        if (pool->links[i].node != NULL && !pool->links[i].leaving)
            return true;
    return false;
}

void client_pool_tell(struct client_pool *pool, enum protocol_type type, uint32_t id, uint32_t sequence,
                      const uint8_t *body, uint32_t bytes)
{
    const struct protocol_header header = {
        .body_bytes = bytes, .type = (uint8_t)type, .id = id, .sequence = sequence};
    struct millrace *upper = pool->upper;
    client_frame_handler *handler = client_frame_handler_of(upper->welcome.version, (uint8_t)type);
    if (!upper->dead && handler != NULL)
        (void)!handler(upper, &header, body); /* what fails ends the connection, and the next call says so */
}

static void arm(struct client_pool *pool, core_ns next_ns)
{
    struct itimerspec when = {0};
    if (next_ns != CORE_NS_NEVER) {
        when.it_value.tv_sec = next_ns / CORE_NS_PER_S;
        when.it_value.tv_nsec = next_ns % CORE_NS_PER_S;
    }
    (void)timerfd_settime(pool->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

void client_pool_wake(struct client_pool *pool)
{
    pool->woken = true;
    arm(pool, 1);
}

/* ---- links ---- */

static core_status epoll_set(struct client_link *link, int operation, int descriptor, short events,
                             struct core_error *error)
{
    struct epoll_event event = {.events = (uint32_t)events, .data.ptr = link};
    link->events = events;
    if (epoll_ctl(link->pool->upper->transport.descriptor, operation, descriptor, &event) == 0)
        return CORE_OK;
    return core_error_errno(error, "epoll_ctl");
}

/* It has no node, and is tried again: later each time, but for one that was there for long. */
static void go_down(struct client_link *link, const char *why)
{
    struct client_pool *pool = link->pool;
    core_error_set(&link->cause, CORE_CLOSED, "%s: %s", link->dial.address, why);
    if (link->delay_ns == 0 || pool->now_ns - link->retry_ns > RETRY_NS_MAX)
        link->delay_ns = RETRY_NS;
    link->retry_ns = client_pool_back_off(pool, &link->delay_ns, RETRY_NS_MAX);
    link->node = NULL;
}

/* Its streams and requests go elsewhere, in this turn. */
static void lose(struct client_link *link, const char *why)
{
    struct client_pool *pool = link->pool;
    struct millrace *node = link->node;
    struct core_error error;
    for (uint32_t i = 0; i < pool->stream_room; i++)
        if (pool->streams[i] != NULL && pool->streams[i]->link == link)
            client_pool_stream_detach(pool, pool->streams[i]);
    client_asks_recall(link);
    link->blocked = link->leaving = false;
    link->losses++;
    go_down(link, why);
    (void)!epoll_set(link, EPOLL_CTL_DEL, node->transport.descriptor, 0,
                     &error); /* a child may keep it open */
    millrace_disconnect(node);
}

/* Does the node fit those that are there? */
static core_status check_node(const struct client_pool *pool, const struct millrace_welcome *welcome,
                              struct core_error *error)
{
    const struct millrace_welcome *first = &pool->upper->welcome;
    if (welcome->version != first->version) /* older; or newer, dialled before the first was there */
        return core_error_set(error, CORE_UNSUPPORTED,
                              "it speaks version %u of the protocol, and the pool's first node version %u: a "
                              "pool that is connected anew has the older one",
                              welcome->version, first->version);
    if (welcome->packet_bytes_max < first->packet_bytes_max)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "it takes packets of %u bytes at most, and the pool's first node %u: set the "
                              "same limit for all",
                              welcome->packet_bytes_max, first->packet_bytes_max);
    return CORE_OK;
}

static core_status adopt(struct client_link *link, struct core_error *error)
{
    struct millrace *node = link->node;
    struct millrace_welcome *first = &link->pool->upper->welcome;
    if (first->version == 0) {
        *first = node->welcome;
        first->flags &= (uint16_t)~MILLRACE_HAS_LANES;
    }
    core_status status = check_node(link->pool, &node->welcome, error);
    if (status == CORE_OK)
        status = epoll_set(link, EPOLL_CTL_ADD, node->transport.descriptor, POLLIN, error);
    if (status)
        return status;
    node->link = link;
    link->leaving = node->leaving;
    link->made_ns = link->heard_ns = link->pool->now_ns;
    link->pinged_ns = link->full_ns = 0;
    link->heard = node->input.read;
    link->was_full = link->refuses = false;
    link->overdue_ns = CORE_NS_NEVER;
    return CORE_OK;
}

static void take_dial(struct client_link *link)
{
    struct core_error error;
    core_status status = client_dial_take(&link->dial, &link->node, &error);
    if (status == CORE_AGAIN)
        return;
    if (status == CORE_OK && (status = adopt(link, &error)))
        millrace_disconnect(link->node);
    if (status)
        go_down(link, error.text);
}

static void dial(struct client_link *link)
{
    struct core_error error;
    const struct millrace *upper = link->pool->upper;
    link->dial.timeout_ms = upper->welcomed ? ATTEMPT_MS : link->pool->attempt_ms;
    link->dial.version_max = /* a newer node speaks that of the first one too */
        upper->welcome.version > 0 ? upper->welcome.version : PROTOCOL_VERSION;
    core_status status = client_dial_begin(&link->dial, &error);
    if (status == CORE_OK &&
        (status = epoll_set(link, EPOLL_CTL_ADD, client_dial_descriptor(&link->dial), POLLIN, &error)))
        client_dial_close(&link->dial);
    if (status)
        go_down(link, error.text);
}

/* Streams that waited for room. */
static void unblock(struct client_link *link)
{
    const struct client_pool *pool = link->pool;
    if (!link->blocked || client_output_waiting(&link->node->output) > CLIENT_OUTPUT_BYTES_MAX / 2)
        return;
    link->blocked = false;
    for (uint32_t i = 0; i < pool->stream_room; i++)
        if (pool->streams[i] != NULL && pool->streams[i]->link == link)
            client_pool_stream_hand(pool->streams[i]);
}

void client_pool_flush(struct client_pool *pool)
{
    struct core_error error;
    client_pool_hand_filled(pool);
    for (unsigned i = 0; i < pool->link_count; i++) {
        struct client_link *link = &pool->links[i];
        if (link->node == NULL)
            continue;
        client_flush(link->node);
        unblock(link);
        const short events = client_events(link->node);
        if (events != link->events)
            (void)!epoll_set(link, EPOLL_CTL_MOD, link->node->transport.descriptor, events, &error);
    }
}

/* ---- frames of a node ---- */

/* Granted, or a change that its node refuses. */
static void take_grant(struct client_link *link, struct client_ask *ask, uint8_t type, uint8_t *body)
{
    if (client_ask_changes(ask))
        client_pool_stream_changed(ask->stream, ask, type != PROTOCOL_REFUSED, body);
    else if (ask->type == PROTOCOL_QUERY && ask->stream != NULL)
        client_pool_stream_free(link->pool, ask->stream);
    else if (ask->type == PROTOCOL_OPEN && ask->stream != NULL)
        client_pool_stream_opened(link, ask, body);
    else if (ask->type == PROTOCOL_OPEN)
        client_close_soon(link->node, get_u32(body)); /* it has ended meanwhile, or others were asked */
}

static void take_answer(struct client_link *link, struct client_ask *ask, uint8_t type, uint8_t *body,
                        uint32_t bytes)
{
    struct client_pool *pool = link->pool;
    if (client_ask_changes(ask) && ask->stream == NULL) {
        client_ask_enqueue(pool, ask); /* to be refused, whatever the node says */
    } else if (type == PROTOCOL_REFUSED && !client_ask_changes(ask)) {
        client_ask_refused(link, ask, body, bytes);
    } else {
        take_grant(link, ask, type, body);
        client_ask_answer(pool, ask, (enum protocol_type)type, body, bytes);
    }
}

core_status client_pool_take_frame(struct millrace *node, const struct protocol_header *header,
                                   const uint8_t *body)
{
    struct client_link *link = node->link;
    const struct client_stream *there = client_streams_find(&node->streams, header->id);
    const struct client_request *request = client_requests_find(&node->requests, header->id);
    struct client_pool_stream *stream = there == NULL ? NULL : there->owner;
    struct client_ask *ask = request == NULL ? NULL : request->ask;
    if (header->type == PROTOCOL_RESULT && stream != NULL && header->sequence == there->answered &&
        !client_pool_stream_fits(stream, header->body_bytes - PROTOCOL_RESULT_BYTES, there->more_bytes))
        return client_fail(node, CORE_INVALID,
                           CLIENT_BREACH "a result of %" PRIu32 " bytes, more than its packet can become",
                           header->body_bytes - PROTOCOL_RESULT_BYTES);
    core_status status = client_frame_handler_of(node->welcome.version, header->type)(node, header, body);
    uint8_t *own = node->input.bytes + (body - node->input.bytes); /* which may be changed */
    if (status) {
        if (ask != NULL && client_requests_find(&node->requests, header->id) == NULL)
            client_ask_enqueue(link->pool, ask); /* an answer that breaks the protocol is none */
        return status;
    }
    switch (header->type) {
    case PROTOCOL_RESULT: /* without a stream, these three: it was ended here, or has gone on elsewhere */
        if (stream != NULL)
            client_pool_stream_result(stream, header, own);
        break;
    case PROTOCOL_CLOSED:
        if (stream != NULL)
            client_pool_stream_closed(stream, (enum millrace_close_reason)get_u32(body));
        break;
    case PROTOCOL_NOTICE:
        if (stream != NULL)
            client_pool_tell(link->pool, PROTOCOL_NOTICE, stream->id, 0, body, header->body_bytes);
        else if (header->id == 0)
            link->leaving = true; /* of the connection: there is no other notice of that kind */
        break;
    case PROTOCOL_ERROR: /* of a packet that crossed CLOSED, or it ends the connection */
        break;
    default:
        if (ask != NULL)
            take_answer(link, ask, header->type, own, header->body_bytes);
    }
    return CORE_OK;
}

/* ---- the turn ---- */

/* Whatever it says, and be it a part of a long frame on a slow line. */
static void note_heard(struct client_link *link)
{
    if (link->node->input.read == link->heard)
        return;
    link->heard = link->node->input.read;
    link->heard_ns = link->pool->now_ns;
    link->pinged_ns = 0;
}

static void process(struct client_link *link)
{
    struct core_error error;
    if (link->dial.begun)
        take_dial(link);
    else if (link->node != NULL && client_process(link->node, READS, &error) != CORE_OK)
        lose(link, error.text);
    else if (link->node != NULL)
        note_heard(link);
}

static bool is_idle(const struct client_link *link)
{
    return link->node->streams.count + link->node->requests.count == 0;
}

/* A node that vanished without a word: its machine, or the way to it. Returns when to look again. */
static core_ns watch_silence(struct client_link *link)
{
    const core_ns now_ns = link->pool->now_ns;
    const core_ns since_ns = link->pinged_ns > 0 ? link->pinged_ns : link->heard_ns;
    struct core_error error;
    if (is_idle(link)) {
        link->heard_ns = now_ns;
        return CORE_NS_NEVER;
    }
    if (now_ns < since_ns + SILENCE_NS)
        return since_ns + SILENCE_NS;
    if (link->pinged_ns > 0) {
        lose(link, "it says nothing any more");
        return now_ns;
    }
    (void)!client_send_ping(link->node, NULL, 0, NULL, &error); /* no room: then it has not read for long */
    link->pinged_ns = now_ns;
    return now_ns + SILENCE_NS;
}

/* Connecting is over when each link has had its first attempt, or when time is up and one is there. */
static core_ns look_at_connecting(struct client_pool *pool)
{
    struct millrace *upper = pool->upper;
    bool all_tried = true;
    for (unsigned i = 0; i < pool->link_count; i++)
        all_tried &= pool->links[i].node != NULL || pool->links[i].cause.text[0] != '\0';
    if (upper->welcome.version > 0)
        upper->welcomed |= all_tried || pool->now_ns >= pool->connect_ns;
    else if (all_tried)
        client_fail(upper, CORE_CLOSED, "%s", pool->links[0].cause.text);
    const bool is_over =
        upper->welcomed || pool->now_ns >= pool->connect_ns; /* with none there, until one is */
    return is_over ? CORE_NS_NEVER : pool->connect_ns;
}

/* Whether a node that was leaving has stayed, only a new connection tells: it is made when nothing needs this one.
 * Returns when to look again. */
static core_ns renew(struct client_link *link)
{
    const struct client_pool *pool = link->pool;
    const bool any_up = client_pool_is_any_up(pool);
    if (!link->leaving || !is_idle(link))
        return CORE_NS_NEVER;
    if (!any_up && !link->refuses && pool->now_ns < link->made_ns + RENEW_NS)
        return link->made_ns + RENEW_NS;
    if (!any_up && !link->refuses)
        link->delay_ns = 0; /* who asks meanwhile is not to wait for long */
    lose(link, "it is leaving");
    return CORE_NS_NEVER;
}

/* What a link has to do by the clock; returns when to look again. */
static core_ns look_at_link(struct client_link *link)
{
    core_ns next_ns = CORE_NS_NEVER;
    if (link->node != NULL) {
        link->pool->astray |= link->leaving;
        next_ns = renew(link);
    }
    if (link->node == NULL && !link->dial.begun && link->retry_ns <= link->pool->now_ns)
        dial(link);
    if (link->node != NULL) {
        client_asks_withdraw(link);
        return next_ns;
    }
    return link->dial.begun ? CORE_NS_NEVER : link->retry_ns;
}

/* What is due by the clock. */
static void look(struct client_pool *pool)
{
    core_ns next_ns = CORE_NS_NEVER;
    pool->woken = false;
    for (unsigned i = 0; i < pool->link_count; i++)
        next_ns = core_time_min(next_ns, look_at_link(&pool->links[i]));
    if (!pool->upper->welcomed)
        next_ns = core_time_min(next_ns, look_at_connecting(pool));
    next_ns = core_time_min(next_ns, client_pool_streams_look(pool));
    next_ns = core_time_min(next_ns, client_asks_look(pool));
    for (unsigned i = 0; i < pool->link_count; i++) /* behind what may have been asked just now */
        if (pool->links[i].node != NULL)
            next_ns = core_time_min(next_ns,
                                    core_time_min(pool->links[i].overdue_ns, watch_silence(&pool->links[i])));
    client_pool_flush(pool);
    arm(pool, pool->woken ? core_time_min(next_ns, pool->now_ns + WOKEN_NS) : next_ns);
}

core_status client_pool_read(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                             struct core_error *error)
{
    struct client_pool *pool = transport->pool;
    struct epoll_event events[CLIENT_POOL_LINKS_MAX];
    (void)room, (void)bytes, (void)error;
    pool->now_ns = core_time_now_ns();
    const int ready = epoll_wait(transport->descriptor, events, CLIENT_POOL_LINKS_MAX, 0);
    for (int i = 0; i < ready; i++)
        if (events[i].data.ptr != NULL) /* the timer */
            process(events[i].data.ptr);
    look(pool);
    *got = 0;
    return pool->upper->dead ? CORE_CLOSED : CORE_AGAIN;
}
