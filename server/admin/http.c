#include "server/admin/http.h"

#include "core/log.h"
#include "core/realtime.h"
#include "server/admin/connections.h"
#include "server/admin/prometheus.h"
#include "server/admin/status_json.h"
#include "server/admin/stream_dump.h"
#include "server/overload/monitor.h"
#include "server/server.h"
#include "server/server_internal.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADERS_BYTES_MAX 8192
#define BODY_BYTES_MAX    4096 /* a GET has none; what others send along is refused beyond this */
#define TIMEOUT_S         5    /* of one read or write */
#define WAITERS_MAX       32   /* requests for the list of streams that wait for it at once */
#define ALL_METHODS                                                                                          \
    (EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |               \
     EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH)

struct server_admin {
    struct server *server;     /* set before start */
    struct core_address bound; /* set before start */
    int descriptor;            /* listens; -1 once it is evhttp's */
    struct event_base *base;   /* this and all below: owned by the admin thread while it runs */
    struct evhttp *http;
    struct server_admin_connections *connections;
    struct server_mailbox mailbox;
    struct event *mailbox_event;
    struct server_message stop_message;
    struct server_stream_dump *stream_dump;
    struct evbuffer *rows; /* JSON of the streams listed so far */
    bool rows_failed;      /* no memory for all of them */
    struct evhttp_request *waiters[WAITERS_MAX];
    size_t waiter_count;
    pthread_t thread;
};

/* ---- answers ---- */

/* One request a connection, so that nobody holds one for nothing. body: taken over, may be NULL. */
static void reply(struct evhttp_request *request, int code, const char *reason, const char *type,
                  struct evbuffer *body)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    evhttp_add_header(headers, "Connection", "close");
    evhttp_add_header(headers, "Cache-Control", "no-store");
    if (body != NULL)
        evhttp_add_header(headers, "Content-Type", type);
    if (body != NULL && evhttp_request_get_command(request) == EVHTTP_REQ_HEAD) {
        char length[24];
        snprintf(length, sizeof length, "%zu", evbuffer_get_length(body));
        evhttp_add_header(headers, "Content-Length", length);
        evbuffer_drain(body, evbuffer_get_length(body));
    }
    evhttp_send_reply(request, code, reason, body);
    if (body != NULL)
        evbuffer_free(body);
}

static void reply_line(struct evhttp_request *request, int code, const char *reason, const char *line)
{
    struct evbuffer *body = evbuffer_new();
    if (body != NULL)
        evbuffer_add_printf(body, "%s\n", line);
    reply(request, code, reason, "text/plain; charset=utf-8", body);
}

static void reply_no_memory(struct evhttp_request *request)
{
    reply_line(request, HTTP_INTERNAL, "Internal Server Error", "the server is out of memory");
}

static void free_text(const void *data, size_t bytes, void *text)
{
    (void)data, (void)bytes;
    free(text);
}

/* text: allocated with malloc, taken over; NULL: there was no memory for it. */
static void reply_text(struct evhttp_request *request, const char *type, char *text, size_t bytes)
{
    struct evbuffer *body = text == NULL ? NULL : evbuffer_new();
    if (body == NULL || evbuffer_add_reference(body, text, bytes, free_text, text) != 0) {
        if (body != NULL)
            evbuffer_free(body);
        free(text);
        reply_no_memory(request);
        return;
    }
    reply(request, HTTP_OK, "OK", type, body);
}

static void answer_health(struct server_admin *admin, struct evhttp_request *request)
{
    if (atomic_load_explicit(&admin->server->draining, memory_order_relaxed))
        reply_line(request, HTTP_SERVUNAVAIL, "Service Unavailable", "draining");
    else
        reply_line(request, HTTP_OK, "OK", "ok");
}

static void answer_lives(struct server_admin *admin, struct evhttp_request *request)
{
    char text[96];
    if (server_lives(admin->server, text, sizeof text))
        reply_line(request, HTTP_OK, "OK", "ok");
    else
        reply_line(request, HTTP_SERVUNAVAIL, "Service Unavailable", text);
}

static bool is_overloaded(const struct server *server)
{
    for (uint32_t io = 0; io < server->io_count; io++)
        if (server_monitor_io_level_ns(server->watch, io) > 0)
            return true;
    for (uint32_t unit = 0; unit < server->worker_count + server->gpu_count; unit++)
        if (server_monitor_level_ns(server->watch, unit) > 0)
            return true;
    return false;
}

/* The first reason why a client should prefer another server; NULL: none. */
static const char *unready(const struct server *server)
{
    if (atomic_load_explicit(&server->draining, memory_order_relaxed))
        return "draining";
    if (is_overloaded(server))
        return "overloaded";
    for (uint32_t g = 0; g < server->gpu_count; g++)
        if (!server_gpu_in_service(server->gpus[g]))
            return "a GPU is out of service";
    return NULL;
}

static void answer_ready(struct server_admin *admin, struct evhttp_request *request)
{
    char text[96];
    const char *reason = server_lives(admin->server, text, sizeof text) ? unready(admin->server) : text;
    if (reason == NULL)
        reply_line(request, HTTP_OK, "OK", "ready");
    else
        reply_line(request, HTTP_SERVUNAVAIL, "Service Unavailable", reason);
}

static void answer_metrics(struct server_admin *admin, struct evhttp_request *request)
{
    struct server_snapshot *snapshot = NULL;
    char *text = NULL;
    size_t bytes = 0;

    if (server_snapshot_take(admin->server, &snapshot) == CORE_OK)
        text = server_metrics_text(snapshot, &bytes);
    server_snapshot_free(snapshot);
    reply_text(request, SERVER_METRICS_TYPE, text, bytes);
}

/* NULL without memory. */
static char *status_text(const struct server_admin *admin)
{
    struct server_snapshot *snapshot = NULL;
    char *text = NULL;

    if (server_snapshot_take(admin->server, &snapshot) == CORE_OK)
        text = server_status_text(snapshot);
    server_snapshot_free(snapshot);
    return text;
}

/* ---- the list of streams ---- */

static void on_row(void *argument, const struct server_stream_dump_row *row)
{
    struct server_admin *admin = argument;
    char *text = server_status_stream_text(row);

    if (text == NULL || (evbuffer_get_length(admin->rows) > 0 && evbuffer_add(admin->rows, ",", 1) != 0) ||
        evbuffer_add(admin->rows, text, strlen(text)) != 0)
        admin->rows_failed = true;
    free(text);
}

/* The status object with the streams behind its last member. NULL without memory. */
static struct evbuffer *listed_body(const struct server_admin *admin, bool complete)
{
    struct evbuffer *body = evbuffer_new();
    char *text = status_text(admin);
    bool good = body != NULL && text != NULL && !admin->rows_failed;

    good = good && evbuffer_add(body, text, strlen(text) - 1) == 0 && /* all but the closing brace */
           evbuffer_add_printf(body, ",\"streams_complete\":%s,\"streams\":[", complete ? "true" : "false") >=
               0 &&
           evbuffer_add_buffer_reference(body, admin->rows) == 0 && evbuffer_add(body, "]}\n", 3) == 0;
    free(text);
    if (!good && body != NULL) {
        evbuffer_free(body);
        body = NULL;
    }
    return body;
}

static void on_listed(void *argument, bool complete)
{
    struct server_admin *admin = argument;

    for (size_t i = 0; i < admin->waiter_count; i++) {
        struct evbuffer *body = listed_body(admin, complete);
        if (body == NULL)
            reply_no_memory(admin->waiters[i]);
        else
            reply(admin->waiters[i], HTTP_OK, "OK", "application/json", body);
    }
    admin->waiter_count = 0;
    admin->rows_failed = false;
    evbuffer_drain(admin->rows, evbuffer_get_length(admin->rows));
}

/* A listing serves all who ask while it runs, so that many of them are no more work for the I/O threads. */
static void answer_streams(struct server_admin *admin, struct evhttp_request *request)
{
    if (admin->waiter_count == WAITERS_MAX) {
        reply_line(request, HTTP_SERVUNAVAIL, "Service Unavailable", "too many ask for the streams at once");
        return;
    }
    admin->waiters[admin->waiter_count++] = request;
    if (admin->waiter_count == 1)
        server_stream_dump_start(admin->stream_dump);
}

/* ---- requests ---- */

static bool wants_streams(struct evhttp_request *request)
{
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    struct evkeyvalq parameters;
    const char *value;

    if (query == NULL || evhttp_parse_query_str(query, &parameters) != 0)
        return false;
    value = evhttp_find_header(&parameters, "streams");
    bool wanted = value != NULL && strcmp(value, "1") == 0;
    evhttp_clear_headers(&parameters);
    return wanted;
}

static void answer_status(struct server_admin *admin, struct evhttp_request *request)
{
    if (wants_streams(request)) {
        answer_streams(admin, request);
        return;
    }
    char *text = status_text(admin);
    if (text != NULL)
        reply_text(request, "application/json", text, strlen(text));
    else
        reply_no_memory(request);
}

static const struct route {
    const char *path;
    void (*answer)(struct server_admin *admin, struct evhttp_request *request);
} routes[] = {
    {"/health", answer_health},   {"/livez", answer_lives},   {"/readyz", answer_ready},
    {"/metrics", answer_metrics}, {"/status", answer_status},
};

static const struct route *find_route(struct evhttp_request *request)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri == NULL ? NULL : evhttp_uri_get_path(uri);

    for (size_t i = 0; path != NULL && i < sizeof routes / sizeof routes[0]; i++)
        if (strcmp(path, routes[i].path) == 0)
            return &routes[i];
    return NULL;
}

/* evhttp goes by the first of them; who is in front of us may go by another one. */
static bool lengths_differ(struct evhttp_request *request)
{
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(request);
    const char *length = evhttp_find_header(headers, "Content-Length");

    for (const struct evkeyval *header = headers->tqh_first; header != NULL; header = header->next.tqe_next)
        if (evutil_ascii_strcasecmp(header->key, "Content-Length") == 0 && strcmp(header->value, length) != 0)
            return true;
    return false;
}

/* In a version that the asker may understand: evhttp answers in the request's. */
static void refuse_version(struct evhttp_request *request)
{
    request->major = 1;
    request->minor = 0;
    reply_line(request, HTTP_BADREQUEST, "Bad Request", "this speaks HTTP/1.0 and HTTP/1.1");
}

static void on_request(struct evhttp_request *request, void *argument)
{
    struct server_admin *admin = argument;
    enum evhttp_cmd_type method = evhttp_request_get_command(request);
    const struct route *route = find_route(request);

    server_admin_connections_asked(admin->connections,
                                   evhttp_connection_get_bufferevent(evhttp_request_get_connection(request)));
    if (request->major != 1)
        refuse_version(request);
    else if (lengths_differ(request))
        reply_line(request, HTTP_BADREQUEST, "Bad Request", "two different lengths");
    else if (route == NULL)
        reply_line(request, HTTP_NOTFOUND, "Not Found",
                   "there are /health, /livez, /readyz, /metrics and /status");
    else if (method == EVHTTP_REQ_GET || method == EVHTTP_REQ_HEAD)
        route->answer(admin, request);
    else {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Allow", "GET, HEAD");
        reply_line(request, HTTP_BADMETHOD, "Method Not Allowed", "this can only be read");
    }
}

/* ---- the thread ---- */

static void on_mail(evutil_socket_t descriptor, short events, void *argument)
{
    struct server_admin *admin = argument;
    (void)descriptor, (void)events;
    server_mailbox_run(&admin->mailbox, admin);
}

static void stop(void *owner, struct server_message *message)
{
    struct server_admin *admin = owner;
    (void)message;
    event_base_loopbreak(admin->base);
}

static void *run(void *argument)
{
    struct server_admin *admin = argument;
    event_base_dispatch(admin->base);
    return NULL;
}

/* ---- putting together and taking apart ---- */

/* Peers can cause these, and they must not break the log's format. */
static void log_libevent(int severity, const char *message)
{
    core_log(severity >= EVENT_LOG_WARN ? CORE_LOG_WARNING : CORE_LOG_DEBUG, "admin.libevent", "%s", message);
}

static bool is_local(int descriptor)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;

    if (getsockname(descriptor, (struct sockaddr *)&address, &length) != 0)
        return false;
    if (address.ss_family == AF_INET)
        return ntohl(((struct sockaddr_in *)&address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return address.ss_family != AF_INET6 ||
           IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&address)->sin6_addr);
}

static core_status start_listening(struct server_admin *admin, struct core_error *error)
{
    char text[300];
    core_status status =
        core_address_listen(&admin->server->config->admin, 0, &admin->descriptor, &admin->bound, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "admin");
    core_address_format(&admin->bound, text, sizeof text);
    core_log(CORE_LOG_INFO, "start.admin", "metrics, health and status on %s", text);
    if (!is_local(admin->descriptor))
        core_log(
            CORE_LOG_WARNING, "start.admin",
            "%s can be reached from other machines and asks for no password; a unix: or loopback address "
            "is safer",
            text);
    return CORE_OK;
}

static core_status create_base(struct server_admin *admin, struct core_error *error)
{
    struct event_config *config = event_config_new();
    if (config != NULL) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
        admin->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    return admin->base != NULL ? CORE_OK
                               : core_error_set(error, CORE_NO_MEMORY, "no memory for the admin thread");
}

static core_status create_http(struct server_admin *admin, struct core_error *error)
{
    admin->mailbox_event =
        event_new(admin->base, admin->mailbox.descriptor, EV_READ | EV_PERSIST, on_mail, admin);
    admin->rows = evbuffer_new();
    admin->http = evhttp_new(admin->base);
    if (admin->mailbox_event == NULL || admin->rows == NULL || admin->http == NULL ||
        event_add(admin->mailbox_event, NULL) != 0)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the admin thread");
    evhttp_set_max_headers_size(admin->http, HEADERS_BYTES_MAX);
    evhttp_set_max_body_size(admin->http, BODY_BYTES_MAX);
    evhttp_set_timeout(admin->http, TIMEOUT_S);
    evhttp_set_allowed_methods(admin->http, ALL_METHODS);
    evhttp_set_gencb(admin->http, on_request, admin);
    core_status status = server_admin_connections_create(&admin->connections, admin->base, admin->http,
                                                         admin->descriptor, error);
    if (status == CORE_OK)
        admin->descriptor = -1;
    return status;
}

static void destroy(struct server_admin *admin)
{
    /* evhttp forgets requests that a client gave up, so those that wait are answered before it goes. */
    for (size_t i = 0; i < admin->waiter_count; i++)
        reply_line(admin->waiters[i], HTTP_SERVUNAVAIL, "Service Unavailable", "the server is stopping");
    server_stream_dump_destroy(admin->stream_dump);
    core_address_remove(&admin->bound);
    if (admin->http != NULL)
        evhttp_free(admin->http);
    server_admin_connections_destroy(admin->connections);
    if (admin->rows != NULL)
        evbuffer_free(admin->rows);
    if (admin->mailbox_event != NULL)
        event_free(admin->mailbox_event);
    if (admin->base != NULL)
        event_base_free(admin->base);
    server_mailbox_destroy(&admin->mailbox);
    if (admin->descriptor >= 0)
        close(admin->descriptor);
    free(admin);
}

core_status server_admin_start(struct server_admin **admin, struct server *server, struct core_error *error)
{
    const struct core_thread_options thread = {.name = "admin", .cpu = -1};
    struct server_admin *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the admin thread");
    const struct server_stream_dump_calls calls = {.row = on_row, .done = on_listed, .argument = fresh};
    fresh->server = server;
    fresh->descriptor = fresh->mailbox.descriptor = -1;
    event_set_log_callback(log_libevent);
    core_status status = start_listening(fresh, error);
    if (status == CORE_OK)
        status = server_mailbox_init(&fresh->mailbox, error);
    if (status == CORE_OK)
        status = create_base(fresh, error);
    if (status == CORE_OK)
        status = create_http(fresh, error);
    if (status == CORE_OK)
        status = server_stream_dump_create(&fresh->stream_dump, server, fresh->base, &fresh->mailbox, &calls,
                                           error);
    if (status == CORE_OK)
        status = core_thread_start(&fresh->thread, &thread, run, fresh, NULL, error);
    if (status != CORE_OK) {
        destroy(fresh);
        return status;
    }
    *admin = fresh;
    return CORE_OK;
}

void server_admin_stop(struct server_admin *admin)
{
    if (admin == NULL)
        return;
    admin->stop_message.run = stop;
    server_mailbox_post(&admin->mailbox, &admin->stop_message);
    pthread_join(admin->thread, NULL);
    destroy(admin);
}

const struct core_address *server_admin_bound(const struct server_admin *admin)
{
    return &admin->bound;
}
