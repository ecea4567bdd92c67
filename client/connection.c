#include "client/connection.h"

#include "client/lane.h"
#include "client/pool.h"
#include "client/structs.h"
#include "client/translate.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_READS 8 /* reads before the deadline of a connect is looked at again */

void client_lock(struct millrace *connection)
{
    pthread_mutex_lock(&connection->lock);
}

void client_unlock(struct millrace *connection)
{
    pthread_mutex_unlock(&connection->lock);
}

/* ---- life and death ---- */

void client_discard(struct millrace *connection)
{
    client_output_discard(&connection->output);
    core_lane_discard(&connection->transport.lane);
}

core_status client_fail(struct millrace *connection, core_status status, const char *format, ...)
{
    if (connection->dead)
        return status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(connection->cause.text, sizeof connection->cause.text, format, arguments);
    va_end(arguments);
    connection->dead = true;
    client_discard(connection);
    shutdown(connection->transport.descriptor, SHUT_RDWR); /* the server is to know, and poll to return */
    client_wake(connection);
    return status;
}

core_status client_alive(const struct millrace *connection, struct core_error *error)
{
    if (!connection->dead)
        return CORE_OK;
    return core_error_set(error, CORE_CLOSED, "%s", connection->cause.text);
}

/* ---- set-up ---- */

static bool init_lock(struct millrace *connection)
{
    pthread_mutexattr_t recursive;
    pthread_condattr_t monotonic;
    if (pthread_mutexattr_init(&recursive) != 0)
        return false;
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    bool done = pthread_mutex_init(&connection->lock, &recursive) == 0;
    pthread_mutexattr_destroy(&recursive);
    if (!done)
        return false;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    done = pthread_cond_init(&connection->changed, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    if (!done)
        pthread_mutex_destroy(&connection->lock);
    return done;
}

static core_status say_hello(struct millrace *connection, struct core_error *error)
{
    uint8_t *frame;
    core_status status =
        client_output_append(&connection->output, PROTOCOL_HEADER_BYTES + PROTOCOL_HELLO_BYTES, &frame);
    if (status)
        return core_error_set(error, status, "no memory for a connection");
    protocol_hello_write(frame, PROTOCOL_VERSION_MIN, connection->version_max);
    return CORE_OK;
}

core_status client_await_answer(struct millrace *connection, core_ns deadline_ns, struct core_error *error)
{
    for (;;) {
        core_status status = client_process(connection, CONNECT_READS, error);
        if (connection->fatal == PROTOCOL_ERROR_VERSION)
            return CORE_UNSUPPORTED;
        if (status || (connection->welcomed && !connection->awaits_lane))
            return status;
        struct pollfd ready = {.fd = connection->transport.descriptor, .events = client_events(connection)};
        int timeout_ms = client_milliseconds_until(deadline_ns);
        if (timeout_ms == 0)
            return core_error_set(error, CORE_TIMEOUT, "the server did not answer %s in time",
                                  connection->welcomed ? "LANE" : "HELLO");
        if (poll(&ready, 1, timeout_ms) < 0 && errno != EINTR)
            return core_error_errno(error, "poll");
    }
}

static core_status greet(struct millrace *connection, bool may_share, core_ns deadline_ns,
                         struct core_error *error)
{
    core_status status = say_hello(connection, error);
    if (status == CORE_OK)
        status = client_await_answer(connection, deadline_ns, error);
    if (status || !may_share || (connection->welcome.flags & PROTOCOL_HAS_LANES) == 0)
        return status;
    status = client_lane_ask(&connection->transport, error);
    if (status == CORE_UNSUPPORTED)
        return CORE_OK; /* the socket will do */
    connection->awaits_lane = status == CORE_OK;
    return status ? status : client_await_answer(connection, deadline_ns, error);
}

/* The path behind "embedded:"; NULL: it is another kind of address. */
static const char *embedded_path(const char *text)
{
    static const char embedded[] = "embedded:";
    const size_t bytes = sizeof embedded - 1;
    return strncmp(text, embedded, bytes) == 0 ? text + bytes : NULL;
}

/* "socket:/path" is "unix:/path" without a lane. */
static core_status parse_address(const char *text, struct core_address *address, bool *may_share,
                                 struct core_error *error)
{
    static const char socket_only[] = "socket:";
    char plain[sizeof address->host + 16];
    if (strncmp(text, socket_only, sizeof socket_only - 1) == 0) {
        snprintf(plain, sizeof plain, "unix:%s", text + sizeof socket_only - 1);
        *may_share = false;
        return core_address_parse(plain, address, error);
    }
    core_status status = core_address_parse(text, address, error);
    *may_share = status == CORE_OK && address->transport == CORE_TRANSPORT_UNIX;
    return status;
}

core_status client_create(struct millrace **connection, struct core_error *error)
{
    *connection = calloc(1, sizeof **connection);
    if (*connection == NULL || !init_lock(*connection)) {
        free(*connection);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a connection");
    }
    (*connection)->wake = (*connection)->transport.descriptor = -1;
    (*connection)->asked = 1;
    (*connection)->version_max = PROTOCOL_VERSION;
    return CORE_OK;
}

static core_ns deadline_in(int timeout_ms)
{
    return timeout_ms < 0 ? CORE_NS_NEVER : core_time_now_ns() + timeout_ms * CORE_NS_PER_MS;
}

core_status client_connect(const char *address_text, const struct millrace_tls *tls, uint16_t version_max,
                           int timeout_ms, struct millrace **connection_out, struct core_error *error)
{
    const char *path = embedded_path(address_text);
    core_ns deadline_ns = deadline_in(timeout_ms);
    struct core_address address;
    struct millrace *connection;
    bool may_share = true;
    core_status status = path != NULL ? CORE_OK : parse_address(address_text, &address, &may_share, error);
    if (status || (status = client_create(&connection, error)))
        return status;
    connection->version_max = version_max;
    if (path == NULL)
        status = client_transport_connect(&connection->transport, &address, tls, deadline_ns, error);
    else {
        status = client_transport_embed(&connection->transport, path, error);
        deadline_ns = deadline_in(timeout_ms); /* not for the server's start */
    }
    if (status == CORE_OK && (status = greet(connection, may_share, deadline_ns, error)))
        core_error_prefix(error, status, "%s", address_text);
    if (status) {
        millrace_disconnect(connection);
        return status;
    }
    *connection_out = connection;
    return CORE_OK;
}

millrace_status millrace_connect(const char *address, const struct millrace_tls *tls, int timeout_ms,
                                 struct millrace **connection, char error[MILLRACE_TEXT_BYTES])
{
    const struct millrace_pool pool = {.size = sizeof pool, .addresses = address};
    if (client_pool_names_several(address))
        return millrace_pool_connect(&pool, tls, timeout_ms, connection, error);
    struct millrace_tls options = {.size = sizeof options};
    core_status status = tls == NULL ? CORE_OK : client_read_tls(tls, &options, client_error(error));
    if (status == CORE_OK)
        status =
            client_connect(address, &options, PROTOCOL_VERSION, timeout_ms, connection, client_error(error));
    return (millrace_status)status;
}

void millrace_disconnect(struct millrace *connection)
{
    if (connection == NULL)
        return;
    if (connection->transport.descriptor >= 0)
        connection->transport.kind->close(&connection->transport);
    if (connection->transport.release != NULL)
        connection->transport.release();
    if (connection->wake >= 0)
        close(connection->wake);
    client_output_free(&connection->output);
    free(connection->input.bytes);
    client_streams_free(&connection->streams);
    client_requests_free(&connection->requests);
    pthread_cond_destroy(&connection->changed);
    pthread_mutex_destroy(&connection->lock);
    free(connection);
}

/* ---- small questions ---- */

const struct millrace_welcome *millrace_welcome_of(const struct millrace *connection)
{
    return &connection->welcome;
}

millrace_status millrace_set_callbacks(struct millrace *connection,
                                       const struct millrace_callbacks *callbacks,
                                       char error[MILLRACE_TEXT_BYTES])
{
    struct millrace_callbacks own = {.size = sizeof own};
    core_status status =
        callbacks == NULL ? CORE_OK : client_read_callbacks(callbacks, &own, client_error(error));
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    connection->callbacks = own;
    client_unlock(connection);
    return MILLRACE_OK;
}

int millrace_descriptor(const struct millrace *connection)
{
    return connection->transport.descriptor;
}

size_t client_unsent_bytes(const struct millrace *connection)
{
    return core_lane_reserved_bytes(&connection->transport.lane) + client_output_waiting(&connection->output);
}

short client_events(const struct millrace *connection)
{
    const struct core_lane *lane = &connection->transport.lane;
    const bool is_full = connection->transport.full && core_lane_reserved_bytes(lane) == 0;
    const bool writes = (client_unsent_bytes(connection) > 0 && !is_full) || lane->owes;
    return (short)(POLLIN | (writes ? POLLOUT : 0) | connection->transport.wants);
}

short millrace_events(struct millrace *connection)
{
    client_lock(connection);
    if (connection->pool != NULL)
        client_flush(connection); /* poll says nothing of what has not gone to a node */
    short events = client_events(connection);
    client_unlock(connection);
    return events;
}

static core_status find_position(struct millrace *connection, uint32_t stream_id,
                                 struct millrace_position *position, struct core_error *error)
{
    const struct client_stream *stream = client_streams_find(&connection->streams, stream_id);
    if (stream == NULL)
        return core_error_set(error, CORE_NOT_FOUND, "stream %u is not known on this connection", stream_id);
    position->answered = stream->answered;
    memcpy(position->chain, stream->chain, CORE_BLOCK_BYTES);
    return CORE_OK;
}

millrace_status millrace_position_of(struct millrace *connection, uint32_t stream,
                                     struct millrace_position *position, char error[MILLRACE_TEXT_BYTES])
{
    struct millrace_position own = {0};
    core_status status = client_struct_check(position, CLIENT_STRUCT_END(struct millrace_position, answered),
                                             "millrace_position", client_error(error));
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    status = find_position(connection, stream, &own, client_error(error));
    client_unlock(connection);
    if (status == CORE_OK)
        client_struct_write(position, &own, sizeof own);
    return (millrace_status)status;
}

size_t millrace_unsent_bytes(struct millrace *connection)
{
    client_lock(connection);
    size_t bytes = connection->pool != NULL ? client_pool_unsent_bytes(connection->pool)
                                            : client_unsent_bytes(connection);
    client_unlock(connection);
    return bytes;
}
