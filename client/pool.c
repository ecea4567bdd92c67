/* A pool's links, and its turn: what is ready is read, what is due is done. */
#include "client/pool.h"

#include "client/structs.h"
#include "client/translate.h"
#include "core/protocol_bytes.h"
#include "core/secret.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define ATTEMPT_MS     1000
#define ATTEMPTS       3
#define PATIENCE_MS    10000
#define KEPT_BYTES     (UINT32_C(1) << 20)
#define KEPT_BYTES_MAX (UINT32_C(4) << 20)
#define READS          16 /* of one node in one turn */
#define EVENTS         CLIENT_POOL_LINKS_MAX
#define RETRY_NS       (100 * CORE_NS_PER_MS) /* until a link is tried again, doubled each time, up to */
#define RETRY_NS_MAX   (10 * CORE_NS_PER_S)
#define SILENCE_NS     (2 * CORE_NS_PER_S) /* that a node with streams may say nothing; and then, not even PONG */
#define STEADY_NS      (10 * CORE_NS_PER_S) /* a link that has lasted so long begins anew with RETRY_NS */

static bool begins_with(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

/* The comma that ends the first address of the list; NULL: the list is one address. A path may have commas: one that
 * ends an address has the next one's kind behind it, or nothing. */
static char *end_of_first(char *list)
{
    static const char *const kinds[] = {"unix:", "socket:", "tcp:", "tls:", "embedded:", ","};
    for (char *comma = strchr(list, ','); comma != NULL; comma = strchr(comma + 1, ',')) {
        if (comma[1] == '\0')
            return comma;
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
            if (begins_with(comma + 1, kinds[i]))
                return comma;
    }
    return NULL;
}

bool client_pool_names_several(const char *address)
{
    const char *comma = begins_with(address, "embedded:") ? NULL : end_of_first((char *)address);
    return comma != NULL && comma[1] != '\0' && comma[1] != ',';
}

size_t client_pool_unsent_bytes(const struct client_pool *pool)
{
    size_t bytes = 0;
    for (unsigned i = 0; pool != NULL && i < pool->link_count; i++)
        if (pool->links[i].node != NULL)
            bytes += client_output_waiting(&pool->links[i].node->output);
    return bytes;
}

/* xorshift64*, G. Marsaglia and S. Vigna: to spread, not to hide. */
double client_pool_draw(struct client_pool *pool)
{
    pool->random ^= pool->random >> 12;
    pool->random ^= pool->random << 25;
    pool->random ^= pool->random >> 27;
    return (double)((pool->random * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1p-53;
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

/* ---- links ---- */

static int epoll_of(const struct client_pool *pool)
{
    return pool->upper->transport.descriptor;
}

static void watch(struct client_link *link)
{
    const short events = client_events(link->node);
    struct epoll_event event = {.events = (uint32_t)events, .data.ptr = link};
    if (events != link->events)
        (void)epoll_ctl(epoll_of(link->pool), EPOLL_CTL_MOD, link->node->transport.descriptor, &event);
    link->events = events;
}

static void retry_later(struct client_link *link)
{
    struct client_pool *pool = link->pool;
    if (link->delay_ns == 0 || (link->up_ns > 0 && pool->now_ns - link->up_ns > STEADY_NS))
        link->delay_ns = RETRY_NS;
    link->retry_ns = pool->now_ns + (core_ns)((double)link->delay_ns * (0.75 + client_pool_draw(pool) / 2));
    link->delay_ns = core_time_min(2 * link->delay_ns, RETRY_NS_MAX);
    link->up_ns = 0;
}

/* Its streams and requests go elsewhere. */
static void lose(struct client_link *link, bool again_at_once, const char *why)
{
    struct client_pool *pool = link->pool;
    struct millrace *node = link->node;
    core_error_set(&link->cause, CORE_CLOSED, "%s: %s", link->address, why);
    link->node = NULL;
    link->blocked = link->leaving = false;
    link->pinged_ns = 0;
    link->asking = link->pings = 0;
    link->losses++;
    retry_later(link);
    if (again_at_once)
        link->retry_ns = pool->now_ns;
    for (uint32_t i = 0; i < pool->stream_room; i++)
        if (pool->streams[i] != NULL && pool->streams[i]->link == link)
            client_pool_stream_detach(pool, pool->streams[i]);
    for (uint32_t i = 0; i < pool->stream_room; i++)
        if (pool->streams[i] != NULL && pool->streams[i]->place == CLIENT_POOL_LOST)
            client_pool_stream_settle(pool, pool->streams[i], link->address);
    for (size_t i = 0; i < CLIENT_REQUESTS_MAX; i++) {
        struct client_ask *ask = link->asks[i];
        link->asks[i] = NULL;
        if (ask != NULL)
            client_ask_again(pool, ask);
    }
    millrace_disconnect(node);
}

static core_status adopt(struct client_link *link, struct core_error *error)
{
    struct millrace *upper = link->pool->upper, *node = link->node;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    if (!upper->welcomed) {
        upper->welcome = node->welcome;
        upper->welcome.flags &= (uint16_t)~MILLRACE_HAS_LANES;
        upper->welcomed = true;
    }
    if (node->welcome.version !=
        upper->welcome.version) /* older; or newer, dialled before the first was there */
        return core_error_set(error, CORE_UNSUPPORTED,
                              "it speaks version %u of the protocol, and the pool's first node version %u: a "
                              "pool that is connected anew has the older one",
                              node->welcome.version, upper->welcome.version);
    if (epoll_ctl(epoll_of(link->pool), EPOLL_CTL_ADD, node->transport.descriptor, &event) != 0)
        return core_error_errno(error, "epoll_ctl");
    node->link = link;
    link->leaving = node->leaving;
    link->events = POLLIN;
    link->up_ns = link->heard_ns = link->pool->now_ns;
    link->weight = 1;
    return CORE_OK;
}

static void take_dial(struct client_link *link)
{
    struct core_error error;
    core_status status = client_dial_take(&link->dial, &link->node, &error);
    if (status == CORE_AGAIN)
        return;
    link->tried = true;
    if (status == CORE_OK) {
        status = adopt(link, &error);
        if (status)
            millrace_disconnect(link->node);
    }
    if (status == CORE_OK)
        return;
    link->node = NULL;
    core_error_set(&link->cause, status, "%s: %s", link->address, error.text);
    retry_later(link);
}

static void dial(struct client_link *link)
{
    struct core_error error;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    link->dial.timeout_ms = link->pool->attempt_ms;
    link->dial.version_max = /* a newer node speaks that of the first one too */
        link->pool->upper->welcomed ? link->pool->upper->welcome.version : PROTOCOL_VERSION;
    core_status status = client_dial_begin(&link->dial, &error);
    if (status == CORE_OK &&
        epoll_ctl(epoll_of(link->pool), EPOLL_CTL_ADD, client_dial_descriptor(&link->dial), &event) == 0)
        return;
    if (status == CORE_OK) {
        client_dial_close(&link->dial);
        core_error_errno(&error, "epoll_ctl");
    }
    link->tried = true;
    link->cause = error;
    retry_later(link);
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

static void process(struct client_link *link)
{
    struct core_error error;
    if (link->dial.begun)
        take_dial(link);
    else if (link->node != NULL && client_process(link->node, READS, &error) != CORE_OK)
        lose(link, link->leaving, error.text); /* behind HAProxy another node is there */
}

/* ---- frames of a node ---- */

static void refused(struct client_link *link, struct client_ask *ask, const uint8_t *body, uint32_t bytes)
{
    struct core_error error;
    if (protocol_refused_read(link->node->welcome.version, body, bytes, &ask->refused, &error))
        return; /* its own handler has read the same */
    if (ask->refused.code == PROTOCOL_REFUSED_CAPACITY)
        client_link_refuses(link);
    link->leaving |= ask->refused.code == PROTOCOL_REFUSED_DRAINING;
    ask->tried |= UINT64_C(1) << (link - link->pool->links);
    client_ask_again(link->pool, ask);
}

static void answered(struct client_link *link, const struct protocol_header *header, uint8_t *body)
{
    struct client_pool *pool = link->pool;
    struct client_ask **slot = &link->asks[header->id % CLIENT_REQUESTS_MAX], *ask = *slot;
    *slot = NULL;
    if (ask == NULL)
        return; /* of a stream that has gone on without the answer */
    if (ask->type == PROTOCOL_PING) {
        link->pings -= !ask->resumes;
        if (!ask->resumes)
            client_pool_tell(pool, PROTOCOL_PONG, ask->request, 0, body, header->body_bytes);
    } else if (ask->type == PROTOCOL_MODIFY || ask->type == PROTOCOL_REKEY) {
        client_pool_stream_changed(link, ask, header->type, body, header->body_bytes);
    } else {
        link->asking--;
        if (header->type == PROTOCOL_REFUSED) {
            refused(link, ask, body, header->body_bytes);
            return;
        }
        pool->upper->asked = ask->asked;
        if (ask->stream == NULL || (ask->type == PROTOCOL_QUERY && ask->resumes)) {
            if (ask->stream != NULL)
                client_pool_stream_sought(pool, ask->stream, NULL);
        } else if (ask->type == PROTOCOL_QUERY) {
            client_pool_stream_free(pool, ask->stream);
            client_pool_tell(pool, PROTOCOL_OPENED, ask->request, 0, body, header->body_bytes);
        } else {
            client_pool_stream_opened(link, ask, body, header->body_bytes);
        }
        pool->upper->asked = 1;
    }
    client_ask_free(ask);
}

core_status client_pool_take_frame(struct millrace *node, const struct protocol_header *header,
                                   const uint8_t *body)
{
    struct client_link *link = node->link;
    const struct client_stream *there = client_streams_find(&node->streams, header->id);
    struct client_pool_stream *stream = there == NULL ? NULL : there->owner;
    core_status status = client_frame_handler_of(node->welcome.version, header->type)(node, header, body);
    uint8_t *own = node->input.bytes + (body - node->input.bytes); /* which may be changed */
    link->heard_ns = link->pool->now_ns;
    link->pinged_ns = 0;
    if (status)
        return status;
    switch (header->type) {
    case PROTOCOL_OPENED:
    case PROTOCOL_REFUSED:
    case PROTOCOL_MODIFIED:
    case PROTOCOL_REKEYED:
    case PROTOCOL_PONG:
        answered(link, header, own);
        break;
    case PROTOCOL_RESULT: /* without a stream, these three: it has been ended here, and its CLOSE is on its way */
        if (stream != NULL)
            client_pool_stream_result(stream, header, own);
        break;
    case PROTOCOL_NOTICE:
        if (stream != NULL)
            client_pool_tell(link->pool, PROTOCOL_NOTICE, stream->id, 0, body, header->body_bytes);
        else if (header->id == 0)
            link->leaving = true; /* of the connection: there is no other notice of that kind */
        break;
    case PROTOCOL_CLOSED:
        if (stream != NULL)
            client_pool_stream_closed(stream, (enum millrace_close_reason)get_u32(body));
        break;
    default: /* ERROR: of a packet that crossed CLOSED, or it ends the connection */
        break;
    }
    return CORE_OK;
}

/* ---- the turn ---- */

static void arm(struct client_pool *pool, core_ns next_ns)
{
    struct itimerspec when = {0};
    if (next_ns != CORE_NS_NEVER) {
        when.it_value.tv_sec = next_ns / CORE_NS_PER_S;
        when.it_value.tv_nsec = next_ns % CORE_NS_PER_S;
    }
    (void)timerfd_settime(pool->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void flush_all(struct client_pool *pool)
{
    for (unsigned i = 0; i < pool->link_count; i++)
        if (pool->links[i].node != NULL) {
            client_flush(pool->links[i].node);
            unblock(&pool->links[i]);
            watch(&pool->links[i]);
        }
}

/* One that has no node is ended when it has one, or is given up. */
static void end_doomed(struct client_pool *pool)
{
    pool->doomed = false;
    for (uint32_t i = 0; i < pool->stream_room; i++) {
        struct client_pool_stream *stream = pool->streams[i];
        struct core_error error;
        if (stream == NULL || stream->doom == NULL || stream->link == NULL)
            continue;
        if (client_send_close(stream->link->node, stream->node_id, &error) == CORE_FULL) {
            stream->link->blocked = true; /* later: the node would keep the stream */
            continue;
        }
        client_pool_stream_end(pool, stream, MILLRACE_CLOSE_LOST, "%s", stream->doom);
    }
}

/* The streams of a node that is about to stop go elsewhere, a few at a time: those that wait for their turn are
 * served meanwhile. */
static core_ns leave(struct client_pool *pool, struct client_link *link)
{
    unsigned moving = 0;
    bool elsewhere = false;
    core_ns next_ns = CORE_NS_NEVER;
    for (unsigned i = 0; i < pool->link_count; i++)
        elsewhere |= pool->links[i].node != NULL && !pool->links[i].leaving;
    for (uint32_t i = 0; i < pool->stream_room; i++)
        moving += pool->streams[i] != NULL &&
                  (pool->streams[i]->place == CLIENT_POOL_MOVING || pool->streams[i]->seek != NULL);
    for (uint32_t i = 0; elsewhere && moving < CLIENT_POOL_ASKS_MAX && i < pool->stream_room; i++)
        if (pool->streams[i] != NULL && pool->streams[i]->link == link)
            moving += client_pool_stream_move(pool, pool->streams[i], &next_ns);
    return next_ns;
}

/* A node that vanished without a word: its machine, or the way to it. Returns when to look again. */
static core_ns watch_silence(struct client_pool *pool, struct client_link *link)
{
    const core_ns since_ns = link->pinged_ns > 0 ? link->pinged_ns : link->heard_ns;
    if (link->streams + link->asking + link->pings == 0) {
        link->heard_ns = pool->now_ns;
        return CORE_NS_NEVER;
    }
    if (pool->now_ns < since_ns + SILENCE_NS)
        return since_ns + SILENCE_NS;
    if (link->pinged_ns > 0) {
        lose(link, false, "it says nothing any more");
        return pool->now_ns;
    }
    struct client_ask *ask = client_ask_create(pool, PROTOCOL_PING, 0, NULL);
    if (ask != NULL)
        ask->resumes = true; /* the pool's own */
    if (ask != NULL && client_ask_send(link, ask) != CORE_OK)
        client_ask_free(ask);
    link->pinged_ns = pool->now_ns;
    return pool->now_ns + SILENCE_NS;
}

/* What is due by the clock. */
static void look(struct client_pool *pool)
{
    core_ns next_ns = CORE_NS_NEVER;
    if (pool->doomed)
        end_doomed(pool);
    pool->urgent = false;
    for (unsigned i = 0; i < pool->link_count; i++) {
        struct client_link *link = &pool->links[i];
        if (link->node != NULL && link->leaving)
            next_ns = core_time_min(next_ns, leave(pool, link));
        if (link->node != NULL && link->leaving && link->streams + link->asking + link->pings == 0)
            lose(link, false, "it is leaving"); /* whether it has stayed, only a new connection tells */
        if (link->node != NULL || link->dial.begun)
            continue;
        if (link->retry_ns <= pool->now_ns)
            dial(link);
        if (!link->dial.begun)
            next_ns = core_time_min(next_ns, link->retry_ns);
    }
    next_ns = core_time_min(next_ns, client_asks_look(pool));
    for (unsigned i = 0; i < pool->link_count; i++) /* behind what may have been asked just now */
        if (pool->links[i].node != NULL)
            next_ns = core_time_min(next_ns, watch_silence(pool, &pool->links[i]));
    flush_all(pool);
    arm(pool, pool->doomed ? pool->now_ns : next_ns);
}

static core_status pool_read(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                             struct core_error *error)
{
    struct client_pool *pool = transport->pool;
    struct epoll_event events[EVENTS];
    (void)room, (void)bytes, (void)error;
    pool->now_ns = core_time_now_ns();
    const int ready = epoll_wait(transport->descriptor, events, EVENTS, 0);
    for (int i = 0; i < ready; i++)
        if (events[i].data.ptr != NULL)
            process(events[i].data.ptr);
    look(pool);
    *got = 0;
    return CORE_AGAIN;
}

static core_status take_request(struct client_pool *pool, const struct protocol_header *header,
                                const uint8_t *body, struct core_error *error)
{
    struct protocol_open open;
    struct client_pool_stream *stream = NULL;
    core_status status = CORE_OK;
    if (header->type != PROTOCOL_PING) {
        status = protocol_open_read(pool->upper->welcome.version, body, header->body_bytes, &open, error);
        if (status == CORE_OK)
            status = client_pool_stream_create(pool, &open, &stream);
    }
    struct client_ask *ask =
        status ? NULL : client_ask_create(pool, (enum protocol_type)header->type, header->id, stream);
    if (ask == NULL) {
        if (stream != NULL)
            client_pool_stream_free(pool, stream);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a request to a pool");
    }
    if (header->type == PROTOCOL_PING) {
        memcpy(ask->payload, body, header->body_bytes);
        ask->payload_bytes = header->body_bytes;
    }
    client_ask_place(pool, ask);
    return CORE_OK;
}

static core_status take(struct client_pool *pool, const struct protocol_header *header, const uint8_t *body,
                        struct core_error *error)
{
    const bool changes = header->type == PROTOCOL_MODIFY || header->type == PROTOCOL_REKEY;
    const uint32_t id = changes ? get_u32(body) : header->id;
    if (header->type == PROTOCOL_OPEN || header->type == PROTOCOL_QUERY || header->type == PROTOCOL_PING)
        return take_request(pool, header, body, error);
    struct client_pool_stream *stream = id >= 1 && id <= pool->stream_room ? pool->streams[id - 1] : NULL;
    if (client_pool_stream_take(pool, stream, header, body) == CORE_OK)
        return CORE_OK;
    return core_error_set(error, CORE_NO_MEMORY, "no memory for a request to a pool");
}

static core_status pool_write(struct client_transport *transport, const struct iovec *parts, int count,
                              size_t *written, struct core_error *error)
{
    struct client_pool *pool = transport->pool;
    core_status status = CORE_OK;
    *written = 0;
    pool->writes++;
    pool->now_ns = core_time_now_ns();
    for (int i = 0; i < count; i++) {
        const uint8_t *frame = parts[i].iov_base, *end = frame + parts[i].iov_len;
        while (frame < end && status == CORE_OK) { /* whole frames, which this library has made */
            const struct protocol_header header = {.body_bytes = get_u32(frame),
                                                   .type = frame[4],
                                                   .flags = frame[5],
                                                   .id = get_u32(frame + 8),
                                                   .sequence = get_u32(frame + 12)};
            status = take(pool, &header, frame + PROTOCOL_HEADER_BYTES, error);
            frame += PROTOCOL_HEADER_BYTES + (size_t)header.body_bytes;
        }
        *written += parts[i].iov_len;
    }
    flush_all(pool);
    if (pool->urgent || pool->doomed)
        arm(pool, 1);
    return status;
}

static bool pool_pending(const struct client_transport *transport)
{
    (void)transport;
    return false;
}

/* ---- life ---- */

static void pool_close(struct client_transport *transport)
{
    struct client_pool *pool = transport->pool;
    for (unsigned i = 0; i < pool->link_count; i++) {
        struct client_link *link = &pool->links[i];
        client_dial_close(&link->dial);
        millrace_disconnect(link->node);
        for (size_t n = 0; n < CLIENT_REQUESTS_MAX; n++)
            client_ask_free(link->asks[n]);
    }
    for (struct client_ask *ask = pool->queue, *next; ask != NULL; ask = next) {
        next = ask->next;
        client_ask_free(ask);
    }
    for (uint32_t i = 0; i < pool->stream_room; i++)
        if (pool->streams[i] != NULL) {
            pool->streams[i]->link = NULL;
            client_pool_stream_free(pool, pool->streams[i]);
        }
    for (size_t i = 0; i < sizeof pool->tls_texts / sizeof pool->tls_texts[0]; i++)
        free(pool->tls_texts[i]);
    if (pool->timer >= 0)
        close(pool->timer);
    free(pool->streams);
    free(pool->freed);
    free(pool->links);
    free(pool->addresses);
    free(pool);
    close(transport->descriptor);
}

static const struct client_transport_kind kind = {
    .read = pool_read, .write = pool_write, .pending = pool_pending, .close = pool_close};

static core_status no_memory(struct core_error *error)
{
    return core_error_set(error, CORE_NO_MEMORY, "no memory for a pool");
}

/* Cuts the first address off the list. */
static char *cut_address(char **rest)
{
    char *address = *rest, *comma = end_of_first(address);
    *rest = comma == NULL ? address + strlen(address) : comma + 1;
    if (comma != NULL)
        *comma = '\0';
    return address;
}

/* Cuts the list at its commas. */
static core_status make_links(struct client_pool *pool, unsigned connections, struct core_error *error)
{
    unsigned count = 1;
    for (char *at = pool->addresses; (at = end_of_first(at)) != NULL; at++)
        count++;
    if (connections > CLIENT_POOL_LINKS_MAX || count * connections > CLIENT_POOL_LINKS_MAX)
        return core_error_set(error, CORE_INVALID,
                              "a pool has %d connections at most, not %u to each of %u addresses",
                              CLIENT_POOL_LINKS_MAX, connections, count);
    pool->links = calloc((size_t)count * connections, sizeof *pool->links);
    if (pool->links == NULL)
        return no_memory(error);
    for (char *rest = pool->addresses; *rest != '\0';) {
        const char *address = cut_address(&rest);
        if (begins_with(address, "embedded:"))
            return core_error_set(
                error, CORE_UNSUPPORTED,
                "%.200s: the server inside this process can not be a node of a pool; give it a "
                "unix: listener, and that address",
                address);
        for (unsigned i = 0; *address != '\0' && i < connections; i++)
            pool->links[pool->link_count++] =
                (struct client_link){.pool = pool, .address = address, .weight = 1};
    }
    return pool->link_count > 0 ? CORE_OK : core_error_set(error, CORE_INVALID, "a pool without an address");
}

static core_status copy_tls(struct client_pool *pool, const struct millrace_tls *tls,
                            struct core_error *error)
{
    const char *const given[] = {tls->ca_file, tls->certificate_file, tls->key_file, tls->server_name};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        if (given[i] != NULL && (pool->tls_texts[i] = strdup(given[i])) == NULL)
            return no_memory(error);
    for (unsigned i = 0; i < pool->link_count; i++) {
        pool->links[i].dial.address = pool->links[i].address;
        pool->links[i].dial.tls = (struct millrace_tls){.size = sizeof(struct millrace_tls),
                                                        .ca_file = pool->tls_texts[0],
                                                        .certificate_file = pool->tls_texts[1],
                                                        .key_file = pool->tls_texts[2],
                                                        .server_name = pool->tls_texts[3]};
    }
    return CORE_OK;
}

static core_status set_up(struct client_pool *pool, const struct millrace_pool *given,
                          const struct millrace_tls *tls, struct core_error *error)
{
    struct epoll_event event = {.events = EPOLLIN};
    core_status status;
    pool->attempts = given->attempts > 0 ? given->attempts : ATTEMPTS;
    pool->patience_ns = (given->patience_ms > 0 ? given->patience_ms : PATIENCE_MS) * CORE_NS_PER_MS;
    pool->kept_bytes_max = given->kept_bytes_max > 0 ? given->kept_bytes_max : KEPT_BYTES;
    pool->queue_end = &pool->queue;
    pool->writes = 1; /* ids that were never used are free at the first one */
    pool->random = (uint64_t)core_time_now_ns() | 1;
    pool->addresses = strdup(given->addresses);
    if (pool->addresses == NULL)
        return no_memory(error);
    if ((status = make_links(pool, given->connections > 0 ? given->connections : 1, error)) ||
        (status = copy_tls(pool, tls, error)))
        return status;
    pool->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (pool->timer < 0 || epoll_ctl(epoll_of(pool), EPOLL_CTL_ADD, pool->timer, &event) != 0)
        return core_error_errno(error, "the timer of a pool");
    return CORE_OK;
}

static bool all_tried(const struct client_pool *pool)
{
    for (unsigned i = 0; i < pool->link_count; i++)
        if (!pool->links[i].tried)
            return false;
    return true;
}

/* Every link has its first attempt, and one of them must succeed. */
static core_status connect_all(struct client_pool *pool, core_ns deadline_ns, int timeout_ms,
                               struct core_error *error)
{
    struct millrace *upper = pool->upper;
    const bool attempt_is_short = pool->link_count > 1 && (timeout_ms < 0 || timeout_ms > ATTEMPT_MS);
    core_status status = CORE_OK;
    pool->attempt_ms = attempt_is_short ? ATTEMPT_MS : timeout_ms;
    while (status == CORE_OK) {
        status = client_process(upper, 0, error);
        if (all_tried(pool))
            break;
        struct pollfd ready = {.fd = epoll_of(pool), .events = POLLIN};
        const int left_ms = client_milliseconds_until(deadline_ns);
        if (left_ms == 0 && !upper->welcomed)
            return core_error_set(error, CORE_TIMEOUT, "no node of the pool answered in time");
        if (left_ms == 0)
            break;
        if (poll(&ready, 1, left_ms) < 0 && errno != EINTR)
            return core_error_errno(error, "poll");
    }
    pool->attempt_ms = timeout_ms >= 0 && timeout_ms < ATTEMPT_MS ? timeout_ms : ATTEMPT_MS;
    if (status == CORE_OK && !upper->welcomed)
        return core_error_set(error, CORE_CLOSED, "%s", pool->links[0].cause.text);
    return status;
}

static core_status pool_connect(const struct millrace_pool *given, const struct millrace_tls *tls,
                                int timeout_ms, struct millrace **connection, struct core_error *error)
{
    const core_ns deadline_ns =
        timeout_ms < 0 ? CORE_NS_NEVER : core_time_now_ns() + timeout_ms * CORE_NS_PER_MS;
    struct millrace *upper;
    core_status status = client_create(&upper, error);
    if (status)
        return status;
    struct client_pool *pool = calloc(1, sizeof *pool);
    const int descriptor = pool == NULL ? -1 : epoll_create1(EPOLL_CLOEXEC);
    if (descriptor < 0) {
        free(pool);
        millrace_disconnect(upper);
        return no_memory(error);
    }
    upper->pool = pool;
    upper->transport = (struct client_transport){.kind = &kind, .descriptor = descriptor, .pool = pool};
    pool->upper = upper;
    pool->timer = -1;
    if ((status = set_up(pool, given, tls, error)) == CORE_OK)
        status = connect_all(pool, deadline_ns, timeout_ms, error);
    if (status) {
        millrace_disconnect(upper);
        return status;
    }
    *connection = upper;
    return CORE_OK;
}

millrace_status millrace_pool_connect(const struct millrace_pool *given, const struct millrace_tls *tls,
                                      int timeout_ms, struct millrace **connection,
                                      char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    struct millrace_pool pool = {0};
    struct millrace_tls options = {.size = sizeof options};
    core_status status = client_read_pool(given, &pool, error);
    if (status == CORE_OK && tls != NULL)
        status = client_read_tls(tls, &options, error);
    if (status == CORE_OK && (pool.addresses == NULL || pool.kept_bytes_max > KEPT_BYTES_MAX))
        status =
            core_error_set(error, CORE_INVALID,
                           "a pool needs addresses, and keeps at most %u bytes of a stream", KEPT_BYTES_MAX);
    if (status == CORE_OK)
        status = pool_connect(&pool, &options, timeout_ms, connection, error);
    return (millrace_status)status;
}

millrace_status millrace_pool_node(struct millrace *connection, unsigned index, struct millrace_node *given,
                                   char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    core_status status =
        client_struct_check(given, CLIENT_STRUCT_END(struct millrace_node, text), "millrace_node", error);
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    if (connection->pool == NULL || index >= connection->pool->link_count) {
        client_unlock(connection);
        return (millrace_status)core_error_set(error, CORE_NOT_FOUND, "the pool has no connection %u", index);
    }
    const struct client_link *link = &connection->pool->links[index];
    struct millrace_node node = {.state = link->node == NULL ? MILLRACE_NODE_DOWN
                                          : link->leaving    ? MILLRACE_NODE_LEAVING
                                                             : MILLRACE_NODE_UP,
                                 .streams = link->streams,
                                 .opened = link->opened,
                                 .refused = link->refused,
                                 .lost = link->lost,
                                 .losses = link->losses};
    snprintf(node.address, sizeof node.address, "%s", link->address);
    if (link->node == NULL)
        snprintf(node.text, sizeof node.text, "%s", link->cause.text);
    client_unlock(connection);
    client_struct_write(given, &node, sizeof node);
    return MILLRACE_OK;
}
