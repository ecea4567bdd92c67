#include "server/admin/connections.h"

#include "core/log.h"
#include "server/net/poller.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES_MAX 8192
#define BODY_BYTES_MAX 4096 /* a GET has none; what others send along is refused beyond this */
#define LINGER_NS      CORE_NS_PER_S
#define PARTS          3 /* of an answer: its head, and a body in two */

enum phase { READING, WAITING, WRITING, LINGERING };

struct server_admin_guest {
    struct server_watch watch; /* its descriptor -1: a free place */
    struct server_admin_connections *connections;
    enum phase phase;
    core_ns since_ns; /* in this phase */
    bool head_only;   /* HEAD: the answer has no body */
    size_t got;
    char request[HEAD_BYTES_MAX + 1];
    char head[384], line[128];      /* of the answer: status and headers; a short body */
    struct server_admin_body *body; /* a long one; NULL: none */
    struct iovec parts[PARTS];      /* what is still to be sent */
};

struct server_admin_body {
    char *text, *rest;
    size_t bytes, rest_bytes;
    unsigned uses;
};

struct server_admin_connections {
    struct server_poller *poller;
    struct server_watch listener; /* its descriptor -1: it does not listen yet */
    struct server_admin_port port;
    struct core_address bound;
    uint32_t count;
    struct server_admin_guest guests[SERVER_ADMIN_CONNECTIONS_MAX];
};

/* ---- bodies ---- */

struct server_admin_body *server_admin_body_make(char *text, size_t bytes, char *rest, size_t rest_bytes)
{
    struct server_admin_body *body = text == NULL ? NULL : malloc(sizeof *body);
    if (body != NULL)
        *body = (struct server_admin_body){text, rest, bytes, rest_bytes, 1};
    else {
        free(text);
        free(rest);
    }
    return body;
}

void server_admin_body_release(struct server_admin_body *body)
{
    if (body == NULL || --body->uses > 0)
        return;
    free(body->text);
    free(body->rest);
    free(body);
}

/* ---- places ---- */

static void listen_on(struct server_admin_connections *connections, bool wanted)
{
    (void)server_poller_watch(connections->poller, &connections->listener, wanted ? EPOLLIN : 0);
}

static void see_off(struct server_admin_guest *guest)
{
    (void)server_poller_watch(guest->connections->poller, &guest->watch, 0);
    close(guest->watch.descriptor);
    guest->watch.descriptor = -1;
    server_admin_body_release(guest->body);
    guest->body = NULL;
    guest->connections->count--;
}

static void watch_for(struct server_admin_guest *guest, uint32_t events)
{
    if (!server_poller_watch(guest->connections->poller, &guest->watch, events))
        see_off(guest);
}

static void enter(struct server_admin_guest *guest, enum phase phase)
{
    guest->phase = phase;
    guest->since_ns = core_time_now_ns();
}

/* ---- answers ---- */

static const char *reason_of(int code)
{
    static const struct {
        int code;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {400, "Bad Request"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {413, "Content Too Large"},
                   {431, "Request Header Fields Too Large"},
                   {503, "Service Unavailable"}};
    for (size_t at = 0; at < sizeof reasons / sizeof *reasons; at++)
        if (reasons[at].code == code)
            return reasons[at].reason;
    return "Internal Server Error";
}

/* All is sent: what the client still sends is thrown away, or the kernel would take the answer back. */
static void linger(struct server_admin_guest *guest)
{
    enter(guest, LINGERING);
    (void)shutdown(guest->watch.descriptor, SHUT_WR);
    watch_for(guest, EPOLLIN);
}

static void go_past(struct server_admin_guest *guest, size_t sent)
{
    for (size_t at = 0; at < PARTS && sent > 0; at++) {
        const size_t now = sent < guest->parts[at].iov_len ? sent : guest->parts[at].iov_len;
        guest->parts[at].iov_base = (char *)guest->parts[at].iov_base + now;
        guest->parts[at].iov_len -= now;
        sent -= now;
    }
}

static void send_on(struct server_admin_guest *guest)
{
    const struct msghdr message = {.msg_iov = guest->parts, .msg_iovlen = PARTS};
    while (guest->parts[0].iov_len + guest->parts[1].iov_len + guest->parts[2].iov_len > 0) {
        const ssize_t sent = sendmsg(guest->watch.descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            go_past(guest, (size_t)sent);
        else if (errno == EAGAIN) {
            watch_for(guest, EPOLLOUT);
            return;
        } else if (errno != EINTR) {
            see_off(guest);
            return;
        }
    }
    linger(guest);
}

static void send_answer(struct server_admin_guest *guest, int code, const char *type,
                        const struct server_admin_body *body)
{
    const size_t bytes = body->bytes + body->rest_bytes;
    const time_t now = time(NULL);
    struct tm parts;
    char date[40];
    (void)strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &parts));
    const int head_bytes =
        snprintf(guest->head, sizeof guest->head,
                 "HTTP/1.1 %d %s\r\nDate: %s\r\nConnection: close\r\nCache-Control: no-store\r\n%s"
                 "Content-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                 code, reason_of(code), date, code == 405 ? "Allow: GET, HEAD\r\n" : "", type, bytes);
    enter(guest, WRITING);
    guest->parts[0] = (struct iovec){guest->head, (size_t)head_bytes};
    guest->parts[1] = (struct iovec){body->text, guest->head_only ? 0 : body->bytes};
    guest->parts[2] = (struct iovec){body->rest, guest->head_only ? 0 : body->rest_bytes};
    send_on(guest);
}

void server_admin_reply_line(struct server_admin_guest *guest, int code, const char *line)
{
    const int bytes = snprintf(guest->line, sizeof guest->line, "%.126s\n", line);
    send_answer(guest, code, "text/plain; charset=utf-8",
                &(struct server_admin_body){.text = guest->line, .bytes = (size_t)bytes});
}

void server_admin_say(struct server_admin_guest *guest, const char *line)
{
    const int bytes = snprintf(guest->line, sizeof guest->line, "%.126s\n", line);
    enter(guest, WRITING);
    memset(guest->parts, 0, sizeof guest->parts);
    guest->parts[0] = (struct iovec){guest->line, (size_t)bytes};
    send_on(guest);
}

void server_admin_reply(struct server_admin_guest *guest, const char *type, struct server_admin_body *body)
{
    if (body == NULL) {
        server_admin_reply_line(guest, 500, "the server is out of memory");
        return;
    }
    guest->body = body;
    send_answer(guest, 200, type, body);
}

void server_admin_wait(struct server_admin_guest *guest)
{
    enter(guest, WAITING);
    watch_for(guest, 0);
}

void server_admin_connections_serve(struct server_admin_connections *connections, const char *type,
                                    struct server_admin_body *body)
{
    for (size_t at = 0; at < SERVER_ADMIN_CONNECTIONS_MAX; at++) {
        struct server_admin_guest *guest = &connections->guests[at];
        if (guest->watch.descriptor < 0 || guest->phase != WAITING)
            continue;
        if (body != NULL)
            body->uses++;
        server_admin_reply(guest, type, body);
    }
}

void server_admin_connections_serve_line(struct server_admin_connections *connections, int code,
                                         const char *line)
{
    for (size_t at = 0; at < SERVER_ADMIN_CONNECTIONS_MAX; at++)
        if (connections->guests[at].watch.descriptor >= 0 && connections->guests[at].phase == WAITING)
            server_admin_reply_line(&connections->guests[at], code, line);
}

/* ---- requests (RFC 9112) ---- */

#define TOKEN "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&'*+-.^_`|~"

/* What is wrong with it. */
struct fault {
    int code; /* 0: nothing */
    const char *text;
};

static const struct fault malformed = {400, "this is no HTTP request"};

/* Cuts the next line off: NUL in the place of its end. NULL: none is left. */
static char *cut_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');
    if (end == NULL)
        return NULL;
    *rest = end + 1;
    if (end > line && end[-1] == '\r')
        end--;
    *end = '\0';
    return line;
}

/* What its fields say. */
struct fields {
    bool needs_host, has_host;
    const char *length; /* of a body; NULL: nothing */
};

static bool is_version(const char *text)
{
    return strcmp(text, "HTTP/1.1") == 0 || strcmp(text, "HTTP/1.0") == 0;
}

static bool is_visible(const char *text)
{
    while (*text > ' ' && *text < 0x7f)
        text++;
    return *text == '\0';
}

/* METHOD SP target SP version; the target a path, or a whole address as proxies send it. */
static struct fault read_start(struct server_admin_guest *guest, char *line,
                               struct server_admin_request *request, struct fields *fields)
{
    char *target = strchr(line, ' '), *version = target == NULL ? NULL : strchr(target + 1, ' ');
    if (version == NULL || target == line || !is_version(version + 1))
        return (struct fault){400, "this speaks HTTP/1.0 and HTTP/1.1"};
    *target++ = *version = '\0';
    if (!is_visible(target))
        return malformed;
    fields->needs_host = strcmp(version + 1, "HTTP/1.1") == 0;
    guest->head_only = strcmp(line, "HEAD") == 0;
    request->reads = guest->head_only || strcmp(line, "GET") == 0;
    if (strncasecmp(target, "http://", 7) == 0)
        target += 7 + strcspn(target + 7, "/?#");
    target[strcspn(target, "#")] = '\0';
    char *query = strchr(target, '?');
    request->query = query == NULL ? "" : query + 1;
    if (query != NULL)
        *query = '\0';
    request->path = target;
    return (struct fault){0, NULL};
}

/* We read no body; but who is in front of us may go by another of two lengths. */
static struct fault read_length(const char *value, const char **length)
{
    if (*value == '\0' || value[strspn(value, "0123456789")] != '\0')
        return malformed;
    if (*length != NULL && strcmp(*length, value) != 0)
        return (struct fault){400, "two different lengths"};
    *length = value;
    value += strspn(value, "0");
    if (strlen(value) > 9 || strtol(value, NULL, 10) > BODY_BYTES_MAX)
        return (struct fault){413, "this can only be read"};
    return (struct fault){0, NULL};
}

static struct fault read_field(char *line, struct fields *fields)
{
    char *colon = strchr(line, ':');
    if (colon == NULL || colon == line || strspn(line, TOKEN) < (size_t)(colon - line))
        return malformed;
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    for (size_t bytes = strlen(value); bytes > 0 && strchr(" \t", value[bytes - 1]) != NULL; bytes--)
        value[bytes - 1] = '\0';
    if (strcasecmp(line, "Content-Length") == 0)
        return read_length(value, &fields->length);
    if (strcasecmp(line, "Transfer-Encoding") == 0)
        return (struct fault){400, "a body without a length"};
    if (strcasecmp(line, "Host") == 0 && fields->has_host)
        return (struct fault){400, "two hosts"};
    fields->has_host |= strcasecmp(line, "Host") == 0;
    return (struct fault){0, NULL};
}

static struct fault read_request(struct server_admin_guest *guest, struct server_admin_request *request)
{
    char *rest = guest->request, *line = cut_line(&rest);
    struct fields fields = {.length = NULL};
    struct fault fault = read_start(guest, line, request, &fields);
    while (fault.code == 0 && (line = cut_line(&rest)) != NULL && *line != '\0')
        fault = read_field(line, &fields);
    if (fault.code == 0 && fields.needs_host && !fields.has_host)
        return (struct fault){400, "HTTP/1.1 needs a Host"};
    return fault;
}

/* Where the head ends: behind an empty line. 0: it is not here whole. */
static size_t head_bytes(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        if (text[at] == '\n' && (at + 1 < bytes && text[at + 1] == '\n'))
            return at + 2;
        else if (text[at] == '\n' && at + 2 < bytes && text[at + 1] == '\r' && text[at + 2] == '\n')
            return at + 3;
    return 0;
}

static void answer(struct server_admin_guest *guest, size_t bytes)
{
    struct server_admin_request request = {.path = ""};
    guest->request[bytes] = '\0';
    const struct fault fault =
        strlen(guest->request) < bytes ? malformed : read_request(guest, &request); /* no NUL inside */
    if (fault.code != 0)
        server_admin_reply_line(guest, fault.code, fault.text);
    else
        guest->connections->port.answer(guest->connections->port.argument, guest, &request);
}

/* ---- events ---- */

static void read_on(struct server_admin_guest *guest)
{
    const ssize_t got =
        recv(guest->watch.descriptor, guest->request + guest->got, HEAD_BYTES_MAX - guest->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        see_off(guest);
        return;
    }
    guest->got += (size_t)got;
    const size_t bytes = head_bytes(guest->request, guest->got);
    if (bytes > 0)
        answer(guest, bytes);
    else if (guest->got == HEAD_BYTES_MAX)
        server_admin_reply_line(guest, 431, "the request is too long");
}

static void throw_away(struct server_admin_guest *guest)
{
    const ssize_t got = recv(guest->watch.descriptor, guest->request, HEAD_BYTES_MAX, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        see_off(guest);
}

static void on_guest(struct server_watch *watch, uint32_t events)
{
    struct server_admin_guest *guest = watch->owner;
    (void)events;
    if (guest->phase == READING)
        read_on(guest);
    else if (guest->phase == WRITING)
        send_on(guest);
    else
        throw_away(guest);
}

static void let_in(struct server_admin_connections *connections, int descriptor)
{
    struct server_admin_guest *guest = connections->guests;
    while (guest->watch.descriptor >= 0)
        guest++;
    guest->watch = (struct server_watch){.descriptor = descriptor, .ready = on_guest, .owner = guest};
    guest->connections = connections;
    enter(guest, READING);
    guest->got = 0;
    guest->head_only = false;
    connections->count++;
    if (connections->port.speaks_first)
        connections->port.answer(connections->port.argument, guest, NULL);
    else
        watch_for(guest, EPOLLIN);
}

/* Without descriptors until the next tick; else the lack would keep this thread busy. */
static void on_connect(struct server_watch *watch, uint32_t events)
{
    struct server_admin_connections *connections = watch->owner;
    (void)events;
    const int descriptor = accept4(watch->descriptor, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0)
        let_in(connections, descriptor);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        core_log(CORE_LOG_WARNING, "admin.accept", "can not accept on the %s port: %m; trying again",
                 connections->port.name);
        listen_on(connections, false);
    }
    if (connections->count == SERVER_ADMIN_CONNECTIONS_MAX)
        listen_on(connections, false);
}

/* ---- time ---- */

static core_ns limit_ns(enum phase phase, bool crowded)
{
    if (phase == LINGERING)
        return crowded ? 0 : LINGER_NS;
    if (phase == READING)
        return crowded ? SERVER_ADMIN_CONNECTIONS_CROWD_REQUEST_MS * CORE_NS_PER_MS
                       : SERVER_ADMIN_CONNECTIONS_REQUEST_S * CORE_NS_PER_S;
    return crowded ? SERVER_ADMIN_CONNECTIONS_CROWD_ANSWER_MS * CORE_NS_PER_MS
                   : SERVER_ADMIN_CONNECTIONS_ANSWER_S * CORE_NS_PER_S;
}

void server_admin_connections_end_overdue(struct server_admin_connections *connections, core_ns now_ns)
{
    const bool crowded = connections->count == SERVER_ADMIN_CONNECTIONS_MAX;
    for (size_t at = 0; at < SERVER_ADMIN_CONNECTIONS_MAX; at++) {
        struct server_admin_guest *guest = &connections->guests[at];
        if (guest->watch.descriptor >= 0 && now_ns > guest->since_ns + limit_ns(guest->phase, crowded))
            see_off(guest);
    }
    if (connections->count < SERVER_ADMIN_CONNECTIONS_MAX)
        listen_on(connections, true);
}

/* ---- life ---- */

core_status server_admin_connections_create(struct server_admin_connections **connections,
                                            struct server_poller *poller,
                                            const struct server_admin_port *port, struct core_error *error)
{
    struct server_admin_connections *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the %s port", port->name);
    fresh->poller = poller;
    fresh->port = *port;
    fresh->listener = (struct server_watch){.descriptor = -1, .ready = on_connect, .owner = fresh};
    for (size_t at = 0; at < SERVER_ADMIN_CONNECTIONS_MAX; at++)
        fresh->guests[at].watch.descriptor = -1;
    core_status status =
        core_address_listen(port->address, 0, &fresh->listener.descriptor, &fresh->bound, error);
    if (status != CORE_OK)
        core_error_prefix(error, status, "%s", port->name);
    else if (!server_poller_watch(poller, &fresh->listener, EPOLLIN))
        status = core_error_set(error, CORE_NO_MEMORY, "no memory for the %s port", port->name);
    if (status == CORE_OK)
        *connections = fresh;
    else
        server_admin_connections_destroy(fresh);
    return status;
}

void server_admin_connections_destroy(struct server_admin_connections *connections)
{
    if (connections == NULL)
        return;
    for (size_t at = 0; at < SERVER_ADMIN_CONNECTIONS_MAX; at++)
        if (connections->guests[at].watch.descriptor >= 0)
            see_off(&connections->guests[at]);
    if (connections->listener.descriptor >= 0) {
        listen_on(connections, false);
        core_address_remove(&connections->bound);
        close(connections->listener.descriptor);
    }
    free(connections);
}

const struct core_address *server_admin_connections_bound(const struct server_admin_connections *connections)
{
    return &connections->bound;
}

bool server_admin_connections_are_local(const struct server_admin_connections *connections)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;

    if (getsockname(connections->listener.descriptor, (struct sockaddr *)&address, &length) != 0)
        return false;
    if (address.ss_family == AF_INET)
        return ntohl(((struct sockaddr_in *)&address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return address.ss_family != AF_INET6 ||
           IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&address)->sin6_addr);
}
