#include "server/admin/http.h"

#include "core/log.h"
#include "core/realtime.h"
#include "server/admin/agent.h"
#include "server/admin/connections.h"
#include "server/admin/prometheus.h"
#include "server/admin/status_json.h"
#include "server/admin/stream_dump.h"
#include "server/net/poller.h"
#include "server/overload/monitor.h"
#include "server/server.h"
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

#define TICK_MS 100 /* between looks for those whose time is over */

/* A text that grows. */
struct text {
    char *bytes; /* NULL: empty */
    size_t count, room;
    bool failed; /* no memory for all of it */
};

struct server_admin {
    struct server *server;       /* set before start */
    struct server_poller poller; /* this and all below: owned by the admin thread while it runs */
    struct server_watch mail;
    struct server_admin_connections *connections;
    struct server_agent *agent; /* NULL: none configured */
    struct server_mailbox mailbox;
    struct server_message stop_message;
    bool stopped;
    struct server_stream_dump *stream_dump;
    bool listing;     /* it is running, and serves all who ask meanwhile */
    struct text rows; /* JSON of the streams listed so far */
    pthread_t thread;
};

/* ---- texts ---- */

static void append(struct text *text, const char *bytes, size_t count)
{
    if (!text->failed && text->room - text->count < count) {
        const size_t room = 2 * (text->count + count);
        char *grown = realloc(text->bytes, room);
        text->failed = grown == NULL;
        text->bytes = text->failed ? text->bytes : grown;
        text->room = text->failed ? text->room : room;
    }
    if (text->failed || text->bytes == NULL)
        return;
    memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
}

static void append_string(struct text *text, const char *string)
{
    append(text, string, strlen(string));
}

static void forget(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}

/* ---- answers ---- */

static void answer_health(struct server_admin *admin, struct server_admin_guest *guest)
{
    if (atomic_load_explicit(&admin->server->draining, memory_order_relaxed))
        server_admin_reply_line(guest, 503, "draining");
    else
        server_admin_reply_line(guest, 200, "ok");
}

static void answer_lives(struct server_admin *admin, struct server_admin_guest *guest)
{
    char text[96];
    if (server_lives(admin->server, text, sizeof text))
        server_admin_reply_line(guest, 200, "ok");
    else
        server_admin_reply_line(guest, 503, text);
}

/* The first reason why a client should prefer another server; NULL: none. */
static const char *unready(const struct server *server)
{
    if (atomic_load_explicit(&server->draining, memory_order_relaxed))
        return "draining";
    if (atomic_load_explicit(&server->maintenance, memory_order_relaxed))
        return "in maintenance";
    if (server_is_leaving(server))
        return "leaving";
    if (server_monitor_is_overloaded(server->watch))
        return "overloaded";
    for (uint32_t g = 0; g < server->gpu_count; g++)
        if (!server_gpu_in_service(server->gpus[g]))
            return "a GPU is out of service";
    return NULL;
}

static void answer_ready(struct server_admin *admin, struct server_admin_guest *guest)
{
    char text[96];
    const char *reason = server_lives(admin->server, text, sizeof text) ? unready(admin->server) : text;
    if (reason == NULL)
        server_admin_reply_line(guest, 200, "ready");
    else
        server_admin_reply_line(guest, 503, reason);
}

static void answer_metrics(struct server_admin *admin, struct server_admin_guest *guest)
{
    struct server_snapshot *snapshot = NULL;
    char *text = NULL;
    size_t bytes = 0;

    if (server_snapshot_take(admin->server, &snapshot) == CORE_OK)
        text = server_metrics_text(snapshot, &bytes);
    server_snapshot_free(snapshot);
    server_admin_reply(guest, SERVER_METRICS_TYPE, server_admin_body_make(text, bytes, NULL, 0));
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

static void answer_status(struct server_admin *admin, struct server_admin_guest *guest)
{
    char *text = status_text(admin);
    server_admin_reply(guest, "application/json",
                       server_admin_body_make(text, text == NULL ? 0 : strlen(text), NULL, 0));
}

/* ---- the list of streams ---- */

static void on_row(void *argument, const struct server_stream_dump_row *row)
{
    struct text *rows = &((struct server_admin *)argument)->rows;
    char *text = server_status_stream_text(row);

    rows->failed |= text == NULL;
    if (rows->count > 0)
        append_string(rows, ",");
    if (text != NULL)
        append_string(rows, text);
    free(text);
}

/* The status, which is later than the rows, so that its sums are no less than theirs; without the closing
 * brace, and with the begin of the list. */
static struct text status_before_rows(const struct server_admin *admin, bool complete)
{
    struct text text = {0};
    char *status = status_text(admin);

    text.failed = status == NULL;
    if (status != NULL)
        append(&text, status, strlen(status) - 1);
    append_string(&text, complete ? ",\"streams_complete\":true" : ",\"streams_complete\":false");
    append_string(&text, ",\"streams\":[");
    free(status);
    return text;
}

static void on_listed(void *argument, bool complete)
{
    struct server_admin *admin = argument;
    struct text first = status_before_rows(admin, complete), *rows = &admin->rows;

    append_string(rows, "]}\n");
    if (first.failed || rows->failed)
        forget(&first);
    struct server_admin_body *body =
        server_admin_body_make(first.bytes, first.count, rows->bytes, rows->count);
    *rows = (struct text){0}; /* the body has it */
    admin->listing = false;
    server_admin_connections_serve(admin->connections, "application/json", body);
    server_admin_body_release(body);
}

/* A listing serves all who ask while it runs, so that many of them are no more work for the I/O threads. */
static void answer_streams(struct server_admin *admin, struct server_admin_guest *guest)
{
    server_admin_wait(guest);
    if (admin->listing)
        return;
    admin->listing = true;
    server_stream_dump_start(admin->stream_dump);
}

/* ---- requests ---- */

/* Is it the first of this name in the query? */
static bool wants_streams(const char *query)
{
    while (strncmp(query, "streams=", 8) != 0) {
        const char *end = strchr(query, '&');
        if (end == NULL)
            return false;
        query = end + 1;
    }
    return query[8] == '1' && (query[9] == '\0' || query[9] == '&');
}

static const struct route {
    const char *path;
    void (*answer)(struct server_admin *admin, struct server_admin_guest *guest);
} routes[] = {
    {"/health", answer_health},   {"/livez", answer_lives},   {"/readyz", answer_ready},
    {"/metrics", answer_metrics}, {"/status", answer_status},
};

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        if (strcmp(path, routes[i].path) == 0)
            return &routes[i];
    return NULL;
}

static void on_request(void *argument, struct server_admin_guest *guest,
                       const struct server_admin_request *request)
{
    struct server_admin *admin = argument;
    const struct route *route = find_route(request->path);

    if (route == NULL)
        server_admin_reply_line(guest, 404, "there are /health, /livez, /readyz, /metrics and /status");
    else if (!request->reads)
        server_admin_reply_line(guest, 405, "this can only be read");
    else if (route->answer == answer_status && wants_streams(request->query))
        answer_streams(admin, guest);
    else
        route->answer(admin, guest);
}

/* ---- the thread ---- */

static void on_mail(struct server_watch *watch, uint32_t events)
{
    struct server_admin *admin = watch->owner;
    (void)events;
    server_mailbox_run(&admin->mailbox, admin);
}

static void end_overdue(struct server_admin *admin)
{
    const core_ns now_ns = core_time_now_ns();
    server_admin_connections_end_overdue(admin->connections, now_ns);
    server_stream_dump_end_overdue(admin->stream_dump, now_ns);
}

static void stop(void *owner, struct server_message *message)
{
    struct server_admin *admin = owner;
    (void)message;
    admin->stopped = true;
}

static void *run(void *argument)
{
    struct server_admin *admin = argument;
    bool busy = false;
    while (!admin->stopped) {
        if (server_poller_look(&admin->poller, busy ? 0 : TICK_MS) > 0)
            server_poller_run(&admin->poller);
        end_overdue(admin);
        busy = !admin->stopped && server_agent_go_on(admin->agent, core_time_now_ns());
    }
    return NULL;
}

/* ---- putting together and taking apart ---- */

static core_status watch_mail(struct server_admin *admin, struct core_error *error)
{
    core_status status = server_poller_init(&admin->poller, error);

    if (status != CORE_OK)
        return status;
    admin->mail.descriptor = admin->mailbox.descriptor;
    if (!server_poller_watch(&admin->poller, &admin->mail, EPOLLIN))
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the admin thread");
    return CORE_OK;
}

static core_status start_listening(struct server_admin *admin, struct core_error *error)
{
    const struct server_admin_port port = {
        .name = "admin", .address = &admin->server->config->admin, .answer = on_request, .argument = admin};
    char text[300];
    core_status status = server_admin_connections_create(&admin->connections, &admin->poller, &port, error);
    if (status != CORE_OK)
        return status;
    core_address_format(server_admin_bound(admin), text, sizeof text);
    core_log(CORE_LOG_INFO, "start.admin", "metrics, health and status on %s", text);
    if (!server_admin_connections_are_local(admin->connections))
        core_log(
            CORE_LOG_WARNING, "start.admin",
            "%s can be reached from other machines and asks for no password; a unix: or loopback address "
            "is safer",
            text);
    return CORE_OK;
}

static void destroy(struct server_admin *admin)
{
    if (admin->connections != NULL)
        server_admin_connections_serve_line(admin->connections, 503, "the server is stopping");
    while (server_agent_is_asking(admin->agent)) /* the planner answers */
        server_mailbox_wait(&admin->mailbox, admin, -1);
    server_agent_destroy(admin->agent);
    server_stream_dump_destroy(admin->stream_dump);
    server_admin_connections_destroy(admin->connections);
    forget(&admin->rows);
    server_poller_free(&admin->poller);
    server_mailbox_destroy(&admin->mailbox);
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
    fresh->mailbox.descriptor = fresh->poller.descriptor = -1;
    fresh->mail = (struct server_watch){.descriptor = -1, .ready = on_mail, .owner = fresh};
    core_status status = server_mailbox_init(&fresh->mailbox, error);
    if (status == CORE_OK)
        status = watch_mail(fresh, error);
    if (status == CORE_OK)
        status = start_listening(fresh, error);
    if (status == CORE_OK)
        status = server_stream_dump_create(&fresh->stream_dump, server, &fresh->mailbox, &calls, error);
    if (status == CORE_OK && server->config->agent.listens)
        status = server_agent_create(&fresh->agent, server, &fresh->poller, &fresh->mailbox, error);
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

const struct core_address *server_admin_agent(const struct server_admin *admin)
{
    return admin->agent == NULL ? NULL : server_agent_bound(admin->agent);
}

const struct core_address *server_admin_bound(const struct server_admin *admin)
{
    return server_admin_connections_bound(admin->connections);
}
