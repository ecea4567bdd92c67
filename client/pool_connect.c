/* How a pool begins, with its first node or none, and ends; and what it tells of its nodes. */
#include "client/pool.h"

#include "client/structs.h"
#include "client/translate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define ATTEMPT_MS     1000 /* of several connections, the first attempt to make one */
#define ATTEMPTS       3
#define PATIENCE_MS    10000
#define KEPT_BYTES     (UINT32_C(1) << 20)
#define KEPT_BYTES_MAX (UINT32_C(4) << 20)

/* ---- addresses ---- */

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

static core_status add_links(struct client_pool *pool, const char *address, unsigned connections,
                             struct core_error *error)
{
    if (begins_with(address, "embedded:"))
        return core_error_set(error, CORE_UNSUPPORTED,
                              "%.200s: the server inside this process can not be a node of a pool; give it a "
                              "unix: listener, and that address",
                              address);
    if (connections > CLIENT_POOL_LINKS_MAX - pool->link_count)
        return core_error_set(error, CORE_INVALID,
                              "a pool has %d connections at most: with %u to each address %.200s is too many",
                              CLIENT_POOL_LINKS_MAX, connections, address);
    for (unsigned i = 0; i < connections; i++)
        pool->links[pool->link_count++] = (struct client_link){.pool = pool, .dial.address = address};
    return CORE_OK;
}

/* Cuts the list at its commas. */
static core_status make_links(struct client_pool *pool, unsigned connections, struct core_error *error)
{
    core_status status = CORE_OK;
    for (char *address = pool->addresses, *comma; status == CORE_OK && address != NULL;
         address = comma == NULL ? NULL : comma + 1) {
        comma = end_of_first(address);
        if (comma != NULL)
            *comma = '\0';
        if (*address != '\0')
            status = add_links(pool, address, connections, error);
    }
    if (status == CORE_OK && pool->link_count == 0)
        return core_error_set(error, CORE_INVALID, "a pool without an address");
    return status;
}

/* ---- life ---- */

static void pool_close(struct client_transport *transport)
{
    struct client_pool *pool = transport->pool;
    for (uint32_t i = 0; i < pool->stream_room; i++)
        if (pool->streams[i] != NULL)
            client_pool_stream_free(pool, pool->streams[i]);
    for (unsigned i = 0; i < pool->link_count; i++) {
        client_dial_close(&pool->links[i].dial);
        if (pool->links[i].node != NULL)
            client_asks_recall(&pool->links[i]);
        millrace_disconnect(pool->links[i].node);
    }
    for (struct client_ask *ask; (ask = pool->queue) != NULL;) {
        pool->queue = ask->next;
        client_ask_free(ask);
    }
    for (size_t i = 0; i < sizeof pool->tls_texts / sizeof pool->tls_texts[0]; i++)
        free(pool->tls_texts[i]);
    close(pool->timer);
    free(pool->streams);
    free(pool->addresses);
    free(pool);
    close(transport->descriptor);
}

static core_status no_memory(struct core_error *error)
{
    return core_error_set(error, CORE_NO_MEMORY, "no memory for a pool");
}

/* It writes nothing: client_flush has the pool do that. And each read of it ends in CORE_AGAIN. */
static const struct client_transport_kind kind = {.read = client_pool_read, .close = pool_close};

/* From then on pool_close frees all of it, with the connection. */
static core_status create(struct millrace *upper, struct core_error *error)
{
    struct epoll_event event = {.events = EPOLLIN};
    struct client_pool *pool = calloc(1, sizeof *pool);
    const int descriptor = epoll_create1(EPOLL_CLOEXEC);
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (pool != NULL && epoll_ctl(descriptor, EPOLL_CTL_ADD, timer, &event) == 0) {
        pool->upper = upper;
        pool->timer = timer;
        upper->pool = pool;
        upper->transport = (struct client_transport){.kind = &kind, .descriptor = descriptor, .pool = pool};
        return CORE_OK;
    }
    core_error_errno(error, "making a pool");
    free(pool);
    if (descriptor >= 0)
        close(descriptor);
    if (timer >= 0)
        close(timer);
    return CORE_SYSTEM;
}

static core_status copy_tls(struct client_pool *pool, const struct millrace_tls *tls,
                            struct core_error *error)
{
    const char *const given[] = {tls->ca_file, tls->certificate_file, tls->key_file, tls->server_name};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        if (given[i] != NULL && (pool->tls_texts[i] = strdup(given[i])) == NULL)
            return no_memory(error);
    for (unsigned i = 0; i < pool->link_count; i++)
        pool->links[i].dial.tls = (struct millrace_tls){.size = sizeof(struct millrace_tls),
                                                        .ca_file = pool->tls_texts[0],
                                                        .certificate_file = pool->tls_texts[1],
                                                        .key_file = pool->tls_texts[2],
                                                        .server_name = pool->tls_texts[3]};
    return CORE_OK;
}

static core_status set_up(struct client_pool *pool, const struct millrace_pool *given,
                          const struct millrace_tls *tls, struct core_error *error)
{
    core_status status;
    pool->attempts = given->attempts > 0 ? given->attempts : ATTEMPTS;
    pool->patience_ns = (given->patience_ms > 0 ? given->patience_ms : PATIENCE_MS) * CORE_NS_PER_MS;
    pool->kept_bytes_max = given->kept_bytes_max > 0 ? given->kept_bytes_max : KEPT_BYTES;
    pool->queue_end = &pool->queue;
    pool->random = (unsigned)core_time_now_ns();
    pool->addresses = strdup(given->addresses);
    if (pool->addresses == NULL)
        return no_memory(error);
    if ((status = make_links(pool, given->connections > 0 ? given->connections : 1, error)))
        return status;
    return copy_tls(pool, tls, error);
}

/* Each link has its first attempt, and one of them must succeed. */
static core_status await_nodes(struct client_pool *pool, int timeout_ms, struct core_error *error)
{
    const core_ns begun_ns = core_time_now_ns();
    const core_ns deadline_ns = timeout_ms < 0 ? CORE_NS_NEVER : begun_ns + timeout_ms * CORE_NS_PER_MS;
    const bool is_short = pool->link_count > 1 && (timeout_ms < 0 || timeout_ms > ATTEMPT_MS);
    pool->attempt_ms = is_short ? ATTEMPT_MS : timeout_ms;
    pool->connect_ns = is_short ? begun_ns + ATTEMPT_MS * CORE_NS_PER_MS : deadline_ns;
    const core_status status = client_await_answer(pool->upper, deadline_ns, error);
    if (status &&
        core_time_now_ns() >= deadline_ns) /* and so are the attempts' ends, which may have been first */
        return core_error_set(error, CORE_TIMEOUT, "no node of the pool answered in time");
    return status;
}

millrace_status millrace_pool_connect(const struct millrace_pool *given, const struct millrace_tls *tls,
                                      int timeout_ms, struct millrace **connection,
                                      char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    struct millrace_pool pool = {0};
    struct millrace_tls options = {.size = sizeof options};
    struct millrace *upper = NULL;
    core_status status = client_read_pool(given, &pool, error);
    if (status == CORE_OK && tls != NULL)
        status = client_read_tls(tls, &options, error);
    if (status == CORE_OK && (pool.addresses == NULL || pool.kept_bytes_max > KEPT_BYTES_MAX))
        status =
            core_error_set(error, CORE_INVALID,
                           "a pool needs addresses, and keeps at most %u bytes of a stream", KEPT_BYTES_MAX);
    if (status || (status = client_create(&upper, error)))
        return (millrace_status)status;
    if ((status = create(upper, error)) == CORE_OK &&
        (status = set_up(upper->pool, &pool, &options, error)) == CORE_OK)
        status = await_nodes(upper->pool, timeout_ms, error);
    if (status)
        millrace_disconnect(upper);
    else
        *connection = upper;
    return (millrace_status)status;
}

/* ---- what it tells ---- */

millrace_status millrace_pool_node(struct millrace *connection, unsigned index, struct millrace_node *given,
                                   char error_text[MILLRACE_TEXT_BYTES])
{
    struct core_error *error = client_error(error_text);
    core_status status =
        client_struct_check(given, CLIENT_STRUCT_END(struct millrace_node, text), "millrace_node", error);
    if (status)
        return (millrace_status)status;
    if (connection->pool == NULL || index >= connection->pool->link_count) /* constant, both */
        return (millrace_status)core_error_set(error, CORE_NOT_FOUND, "the pool has no connection %u", index);
    client_lock(connection);
    const struct client_link *link = &connection->pool->links[index];
    struct millrace_node node = {.state = link->node == NULL ? MILLRACE_NODE_DOWN
                                          : link->leaving    ? MILLRACE_NODE_LEAVING
                                                             : MILLRACE_NODE_UP,
                                 .opened = link->opened,
                                 .refused = link->refused,
                                 .lost = link->lost,
                                 .losses = link->losses};
    snprintf(node.address, sizeof node.address, "%s", link->dial.address);
    if (link->node == NULL)
        snprintf(node.text, sizeof node.text, "%s", link->cause.text);
    else
        node.streams = (uint32_t)link->node->streams.count;
    client_unlock(connection);
    client_struct_write(given, &node, sizeof node);
    return MILLRACE_OK;
}
