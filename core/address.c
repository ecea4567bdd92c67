#include "core/address.h"

#include "core/time.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG           1024
#define UNIX_MODE_DEFAULT 0660U
#define ENDPOINT_MAX      8
#define RETRY_NS          CORE_NS_PER_MS
#define LOCK_NS           (5 * CORE_NS_PER_S) /* who has it looks, binds and listens, nothing else */

static const struct {
    const char *prefix;
    enum core_transport transport;
} transports[] = {
    {"unix:", CORE_TRANSPORT_UNIX},
    {"tcp:", CORE_TRANSPORT_TCP},
    {"tls:", CORE_TRANSPORT_TLS},
};
#define TRANSPORT_COUNT (sizeof transports / sizeof transports[0])

/* What the kernel takes: the places one address may mean (a name can resolve to several). */
struct endpoint {
    struct sockaddr_storage address;
    socklen_t bytes;
};

struct endpoints {
    struct endpoint list[ENDPOINT_MAX];
    size_t count;
};

/* ---- text ---- */

static core_status unix_parse(const char *text, const char *path, struct core_address *address,
                              struct core_error *error)
{
    const size_t length = strlen(path);
    const size_t room = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
    if (length == 0 || strcmp(path, "@") == 0)
        return core_error_set(error, CORE_INVALID, "address \"%s\" has no path", text);
    if (length > room)
        return core_error_set(error, CORE_INVALID,
                              "address \"%.200s\": the path has %zu bytes, a Unix socket allows %zu", text,
                              length, room);
    memcpy(address->host, path, length + 1);
    return CORE_OK;
}

static bool port_parse(const char *text, uint16_t *port)
{
    const size_t length = strlen(text);
    if (length == 0 || length > 5 || strspn(text, "0123456789") != length)
        return false;
    const long value = strtol(text, NULL, 10);
    *port = (uint16_t)value;
    return value <= UINT16_MAX;
}

/* "host:port" or "[address]:port". */
static core_status host_port_parse(const char *text, const char *rest, struct core_address *address,
                                   struct core_error *error)
{
    const bool bracketed = rest[0] == '[';
    const char *host = rest + (bracketed ? 1 : 0);
    const char *host_end = bracketed ? strchr(host, ']') : strrchr(host, ':');
    if (!host_end || host_end[bracketed ? 1 : 0] != ':')
        return core_error_set(error, CORE_INVALID, "address \"%s\" lacks a port: write host:port", text);
    const size_t length = (size_t)(host_end - host);
    if (length == 0 || length >= sizeof address->host)
        return core_error_set(error, CORE_INVALID,
                              "address \"%.200s\": the host has %zu bytes, must be 1 to %zu", text, length,
                              sizeof address->host - 1);
    if (memchr(host, '[', length) || memchr(host, ']', length))
        return core_error_set(error, CORE_INVALID, "address \"%s\": a host has no brackets in it", text);
    if (!bracketed && memchr(host, ':', length))
        return core_error_set(error, CORE_INVALID,
                              "address \"%s\": write an IPv6 address in brackets, as [::1]:7411", text);
    if (!port_parse(host_end + (bracketed ? 2 : 1), &address->port))
        return core_error_set(error, CORE_INVALID, "address \"%s\": the port must be 0 to 65535", text);
    memcpy(address->host, host, length);
    return CORE_OK;
}

core_status core_address_parse(const char *text, struct core_address *address, struct core_error *error)
{
    for (size_t i = 0; i < TRANSPORT_COUNT; i++) {
        const size_t length = strlen(transports[i].prefix);
        if (strncmp(text, transports[i].prefix, length) != 0)
            continue;
        struct core_address parsed = {.transport = transports[i].transport};
        const core_status status = parsed.transport == CORE_TRANSPORT_UNIX
                                       ? unix_parse(text, text + length, &parsed, error)
                                       : host_port_parse(text, text + length, &parsed, error);
        if (status == CORE_OK)
            *address = parsed;
        return status;
    }
    return core_error_set(error, CORE_INVALID,
                          "address \"%s\" must begin with unix:, tcp: or tls:, as unix:/run/millrace.sock or "
                          "tcp:127.0.0.1:7411",
                          text);
}

char *core_address_format(const struct core_address *address, char *text, size_t size)
{
    const char *prefix = transports[address->transport].prefix;
    if (address->transport == CORE_TRANSPORT_UNIX)
        snprintf(text, size, "%s%s", prefix, address->host);
    else if (strchr(address->host, ':'))
        snprintf(text, size, "%s[%s]:%u", prefix, address->host, address->port);
    else
        snprintf(text, size, "%s%s:%u", prefix, address->host, address->port);
    return text;
}

core_status core_address_default_folder(char *folder, size_t size, struct core_error *error)
{
    const char *runtime = geteuid() == 0 ? "/run" : getenv("XDG_RUNTIME_DIR");
    if (!runtime || runtime[0] != '/')
        return core_error_set(error, CORE_NOT_FOUND,
                              "XDG_RUNTIME_DIR names no folder for sockets; set it, or name an address");
    snprintf(folder, size, "%s/millrace", runtime);
    return CORE_OK;
}

char *core_address_default(char *text, size_t size)
{
    char folder[200], path[240];
    if (core_address_default_folder(folder, sizeof folder, NULL) == CORE_OK) {
        snprintf(path, sizeof path, "%s/millraced.sock", folder);
        if (access(path, F_OK) == 0) {
            snprintf(text, size, "unix:%s", path);
            return text;
        }
    }
    snprintf(text, size, "unix:/run/millrace/millraced.sock");
    return text;
}

/* ---- resolving ---- */

static core_status unix_resolve(const struct core_address *address, struct endpoints *endpoints,
                                struct core_error *error)
{
    struct sockaddr_un unix_address = {.sun_family = AF_UNIX};
    const size_t length = strlen(address->host);
    if (length == 0 || length >= sizeof unix_address.sun_path)
        return core_error_set(error, CORE_INVALID, "a Unix socket's path must have 1 to %zu bytes, not %zu",
                              sizeof unix_address.sun_path - 1, length);
    memcpy(unix_address.sun_path, address->host, length);
    const bool abstract = address->host[0] == '@';
    if (abstract)
        unix_address.sun_path[0] = '\0'; /* and its length ends the name, not a zero */
    endpoints->count = 1;
    memcpy(&endpoints->list[0].address, &unix_address, sizeof unix_address);
    endpoints->list[0].bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (abstract ? 0 : 1));
    return CORE_OK;
}

static core_status host_resolve(const struct core_address *address, int flags, struct endpoints *endpoints,
                                struct core_error *error)
{
    char port[8];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%u", address->port);
    const int code = getaddrinfo(address->host, port, &hints, &found);
    if (code == EAI_SYSTEM)
        return core_error_errno(error, "can not resolve \"%s\"", address->host);
    if (code != 0)
        return core_error_set(error, CORE_NOT_FOUND, "can not resolve \"%s\": %s", address->host,
                              gai_strerror(code));
    for (struct addrinfo *one = found; one && endpoints->count < ENDPOINT_MAX; one = one->ai_next) {
        struct endpoint *endpoint = &endpoints->list[endpoints->count++];
        memcpy(&endpoint->address, one->ai_addr, one->ai_addrlen);
        endpoint->bytes = one->ai_addrlen;
    }
    freeaddrinfo(found);
    return CORE_OK;
}

static core_status resolve(const struct core_address *address, int flags, struct endpoints *endpoints,
                           struct core_error *error)
{
    return address->transport == CORE_TRANSPORT_UNIX ? unix_resolve(address, endpoints, error)
                                                     : host_resolve(address, flags, endpoints, error);
}

static int socket_open(const struct endpoint *endpoint)
{
    return socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static const struct sockaddr *socket_address(const struct endpoint *endpoint)
{
    return (const struct sockaddr *)&endpoint->address;
}

/* Keeps errno, so that the caller can still say why it gave up. */
static void socket_close(int descriptor)
{
    const int number = errno;
    close(descriptor);
    errno = number;
}

/* ---- the folder's lock ---- */

static bool has_file(const struct core_address *address)
{
    return address->transport == CORE_TRANSPORT_UNIX && address->host[0] != '\0' && address->host[0] != '@';
}

/* A descriptor of the folder that a path is in, or -1 and errno. */
static int folder_open(const char *path)
{
    char folder[sizeof((struct core_address *)NULL)->host];
    const char *slash = strrchr(path, '/');
    const int length = slash == NULL ? 0 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", length, path);
    return open(length == 0 ? "." : folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Locks the folder of a socket file. *lock is -1 where there is no file. */
static core_status folder_lock(const struct core_address *address, int *lock, struct core_error *error)
{
    *lock = -1;
    if (!has_file(address))
        return CORE_OK;
    const int folder = folder_open(address->host);
    if (folder < 0)
        return core_error_errno(error, "can not open the folder of %s", address->host);
    const core_ns until_ns = core_time_now_ns() + LOCK_NS;
    while (flock(folder, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK && core_time_now_ns() < until_ns) {
            core_time_sleep_until(core_time_now_ns() + RETRY_NS);
            continue;
        }
        const core_status status =
            errno == EWOULDBLOCK
                ? core_error_set(error, CORE_TIMEOUT, "another process keeps the folder of %s locked",
                                 address->host)
                : core_error_errno(error, "can not lock the folder of %s", address->host);
        close(folder);
        return status;
    }
    *lock = folder;
    return CORE_OK;
}

/* Also where a process that was forked meanwhile has the descriptor, too. */
static void folder_unlock(int lock)
{
    if (lock < 0)
        return;
    (void)flock(lock, LOCK_UN);
    close(lock);
}

/* ---- listening ---- */

/* Is this a socket file that no one serves? errno is EADDRINUSE where someone does, or it is none. */
static bool is_stale(const struct endpoint *endpoint, const char *path)
{
    struct stat about;
    if (path[0] == '@' || lstat(path, &about) != 0 || !S_ISSOCK(about.st_mode)) {
        errno = EADDRINUSE;
        return false;
    }
    const int probe = socket_open(endpoint);
    if (probe < 0)
        return false;
    const bool refused =
        connect(probe, socket_address(endpoint), endpoint->bytes) != 0 && errno == ECONNREFUSED;
    close(probe);
    errno = EADDRINUSE;
    return refused;
}

static bool stale_remove(const struct endpoint *endpoint, const char *path)
{
    return is_stale(endpoint, path) && (unlink(path) == 0 || errno == ENOENT);
}

/* The file is never, not even for a moment, open to more than `mode`: the kernel gives a new socket file the
 * mode of the descriptor, less the umask. */
static bool unix_bind(int descriptor, const struct endpoint *endpoint, const char *path, mode_t mode)
{
    const struct sockaddr *address = socket_address(endpoint);
    if (fchmod(descriptor, mode) != 0)
        return false;
    if (bind(descriptor, address, endpoint->bytes) != 0 &&
        (errno != EADDRINUSE || !stale_remove(endpoint, path) ||
         bind(descriptor, address, endpoint->bytes) != 0))
        return false;
    return true;
}

/* Who closes a descriptor that a client has sent may wait for as long as its sender likes: from Linux 6.16 on none
 * comes, to this socket or to those that it accepts, unless core_address_take_files says so. */
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

static void refuse_files(int descriptor)
{
    const int none = 0;
    (void)setsockopt(descriptor, SOL_SOCKET, SO_PASSRIGHTS, &none, sizeof none);
}

void core_address_take_files(int descriptor)
{
    const int some = 1;
    (void)setsockopt(descriptor, SOL_SOCKET, SO_PASSRIGHTS, &some, sizeof some);
}

/* Binds and listens; after a failure no file of ours stays. */
static bool unix_listen(int descriptor, const struct endpoint *endpoint, const char *path, mode_t mode)
{
    const bool abstract = path[0] == '@';
    if (!unix_bind(descriptor, endpoint, path, mode))
        return false;
    refuse_files(descriptor);
    if ((abstract || chmod(path, mode) == 0) && listen(descriptor, BACKLOG) == 0)
        return true;
    const int number = errno;
    if (!abstract)
        (void)unlink(path);
    errno = number;
    return false;
}

static bool tcp_listen(int descriptor, const struct endpoint *endpoint)
{
    const int yes = 1;
    return setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
           bind(descriptor, socket_address(endpoint), endpoint->bytes) == 0 &&
           listen(descriptor, BACKLOG) == 0;
}

/* A listening descriptor, or -1 and errno. */
static int endpoint_listen(const struct endpoint *endpoint, const struct core_address *address, mode_t mode)
{
    const int descriptor = socket_open(endpoint);
    if (descriptor < 0)
        return -1;
    if (address->transport == CORE_TRANSPORT_UNIX ? unix_listen(descriptor, endpoint, address->host, mode)
                                                  : tcp_listen(descriptor, endpoint))
        return descriptor;
    socket_close(descriptor);
    return -1;
}

static uint16_t bound_port(int descriptor)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof address;
    if (getsockname(descriptor, (struct sockaddr *)&address, &bytes) != 0)
        return 0;
    if (address.ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)&address)->sin_port);
    return address.ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)&address)->sin6_port) : 0;
}

/* The address with what the kernel has added to it. */
static struct core_address bound_address(const struct core_address *address, int descriptor)
{
    struct core_address bound = *address;
    struct stat about;
    bound.port = bound_port(descriptor);
    if (has_file(address) && lstat(address->host, &about) == 0) {
        bound.device = about.st_dev;
        bound.inode = about.st_ino;
    }
    return bound;
}

/* Why errno says that an address can not be listened on. */
static core_status listen_error(const struct core_address *address, const char *text,
                                struct core_error *error)
{
    struct stat about;
    if (errno != EADDRINUSE)
        return core_error_errno(error, "can not listen on %s", text);
    if (has_file(address) && lstat(address->host, &about) == 0 && !S_ISSOCK(about.st_mode))
        return core_error_set(error, CORE_INVALID,
                              "can not listen on %s: the file exists and is no socket; remove it, or give "
                              "another path",
                              text);
    return core_error_set(error, CORE_IN_USE,
                          "can not listen on %s: Address already in use: a server listens there", text);
}

/* Where to listen. */
struct listening {
    struct endpoints endpoints;
    char text[sizeof((struct core_address){0}.host) + 16]; /* for errors */
    int lock;                                              /* of the file's folder; -1: no file */
};

/* Resolves and locks; the caller unlocks. */
static core_status listening_begin(const struct core_address *address, struct listening *listening,
                                   struct core_error *error)
{
    *listening = (struct listening){.lock = -1};
    core_address_format(address, listening->text, sizeof listening->text);
    core_status status = resolve(address, AI_PASSIVE, &listening->endpoints, error);
    if (status == CORE_OK && (status = folder_lock(address, &listening->lock, error)) != CORE_OK)
        status = core_error_prefix(error, status, "can not listen on %s", listening->text);
    return status;
}

core_status core_address_listen(const struct core_address *address, unsigned mode, int *descriptor,
                                struct core_address *bound, struct core_error *error)
{
    struct listening at;
    int listener = -1;
    core_status status = listening_begin(address, &at, error);
    if (status != CORE_OK)
        return status;
    for (size_t i = 0; i < at.endpoints.count && listener < 0; i++)
        listener = endpoint_listen(&at.endpoints.list[i], address, (mode_t)(mode ? mode : UNIX_MODE_DEFAULT));
    if (listener < 0)
        status = listen_error(address, at.text, error);
    else if (bound)
        *bound = bound_address(address, listener);
    folder_unlock(at.lock);
    if (status == CORE_OK)
        *descriptor = listener;
    return status;
}

/* Could a file be made beside the one at the path? Nothing is left behind. */
static bool unix_try(const struct endpoint *endpoint, const char *path, int folder)
{
    struct stat about;
    if (faccessat(folder, ".", W_OK | X_OK, AT_EACCESS) != 0)
        return false;
    return lstat(path, &about) != 0 ? errno == ENOENT : is_stale(endpoint, path);
}

/* Binds for a moment, without listening, which disturbs nobody who connects. */
static bool name_try(const struct endpoint *endpoint)
{
    const int yes = 1, descriptor = socket_open(endpoint);
    if (descriptor < 0)
        return false;
    const bool good = setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                      bind(descriptor, socket_address(endpoint), endpoint->bytes) == 0;
    socket_close(descriptor);
    return good;
}

core_status core_address_try(const struct core_address *address, struct core_error *error)
{
    struct listening at;
    bool good = false;
    core_status status = listening_begin(address, &at, error);
    if (status != CORE_OK)
        return status;
    for (size_t i = 0; i < at.endpoints.count && !good; i++)
        good = at.lock >= 0 ? unix_try(&at.endpoints.list[i], address->host, at.lock)
                            : name_try(&at.endpoints.list[i]);
    if (!good)
        status = listen_error(address, at.text, error);
    folder_unlock(at.lock);
    return status;
}

void core_address_remove(const struct core_address *bound)
{
    struct stat about;
    int lock;
    if (bound->inode == 0 || !has_file(bound) || folder_lock(bound, &lock, NULL) != CORE_OK)
        return; /* what stays is found to be stale */
    if (lstat(bound->host, &about) == 0 && about.st_dev == bound->device && about.st_ino == bound->inode)
        (void)unlink(bound->host);
    folder_unlock(lock);
}

/* ---- connecting ---- */

/* Waits for a connect under way. 0, or the errno it ended with. */
static int connect_finish(int descriptor, core_ns deadline_ns)
{
    for (;;) {
        const core_ns left_ns = deadline_ns - core_time_now_ns();
        struct pollfd ready = {.fd = descriptor, .events = POLLOUT};
        const int count = left_ns <= 0 ? 0 : poll(&ready, 1, (int)(left_ns / CORE_NS_PER_MS) + 1);
        if (count == 0)
            return ETIMEDOUT;
        if (count < 0 && errno != EINTR)
            return errno;
        if (count > 0) {
            int number = 0;
            socklen_t bytes = sizeof number;
            return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &number, &bytes) == 0 ? number : errno;
        }
    }
}

/* 0, or the errno of the failure. A Unix listener whose backlog is full says EAGAIN: try again then. */
static int connect_until(int descriptor, const struct endpoint *endpoint, core_ns deadline_ns)
{
    while (connect(descriptor, socket_address(endpoint), endpoint->bytes) != 0) {
        if (errno == EINPROGRESS || errno == EINTR)
            return connect_finish(descriptor, deadline_ns);
        if (errno != EAGAIN)
            return errno;
        const core_ns now_ns = core_time_now_ns();
        if (now_ns >= deadline_ns)
            return ETIMEDOUT;
        core_time_sleep_until(now_ns + RETRY_NS);
    }
    return 0;
}

/* A connected descriptor, or -1 and errno. */
static int endpoint_connect(const struct endpoint *endpoint, core_ns deadline_ns)
{
    const int yes = 1;
    const int descriptor = socket_open(endpoint);
    if (descriptor < 0)
        return -1;
    errno = connect_until(descriptor, endpoint, deadline_ns);
    if (errno == 0 && (endpoint->address.ss_family == AF_UNIX ||
                       setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0))
        return descriptor;
    socket_close(descriptor);
    return -1;
}

core_status core_address_connect(const struct core_address *address, int timeout_ms, int *descriptor,
                                 struct core_error *error)
{
    struct endpoints endpoints = {.count = 0};
    char text[sizeof address->host + 16];
    const core_ns deadline_ns = core_time_now_ns() + (timeout_ms > 0 ? timeout_ms : 0) * CORE_NS_PER_MS;
    core_address_format(address, text, sizeof text);
    if (address->transport != CORE_TRANSPORT_UNIX && address->port == 0)
        return core_error_set(error, CORE_INVALID, "can not connect to %s: port 0 is only for listening",
                              text);
    const core_status status = resolve(address, 0, &endpoints, error);
    if (status != CORE_OK)
        return status;
    int connected = -1;
    for (size_t i = 0; i < endpoints.count && connected < 0; i++)
        connected = endpoint_connect(&endpoints.list[i], deadline_ns);
    if (connected >= 0) {
        *descriptor = connected;
        return CORE_OK;
    }
    if (errno == ETIMEDOUT)
        return core_error_set(error, CORE_TIMEOUT, "no connection to %s within %d ms", text, timeout_ms);
    const bool absent = errno == ECONNREFUSED || errno == ENOENT;
    return core_error_errno(error, "can not connect to %s%s", text,
                            absent ? " (is the server running?)" : "");
}
