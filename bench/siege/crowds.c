/* Attacks by connections: many, silent, broken, slow. */
#include "bench/siege/siege.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/command.h"

#define SILENT    4096
#define AT_ONCE   2000
#define EVERY_NS  (500 * CORE_NS_PER_MS)
#define SLOW      200
#define GARBAGE   100 /* connections a second, half of them to the TLS port */
#define HEALTH_MS 5000

static struct sockaddr_in local(uint32_t host, uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(UINT32_C(0x7f000000) + host)}};
}

int siege_dial(uint16_t port, unsigned peer)
{
    const struct sockaddr_in from = local(2 + peer % SIEGE_PEERS, 0), to = local(1, port);
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0)
        return -1;
    if (bind(descriptor, (const struct sockaddr *)&from, sizeof from) == 0 &&
        (connect(descriptor, (const struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS))
        return descriptor;
    (void)close(descriptor);
    return -1;
}

bool siege_await(int descriptor, short events, int timeout_ms)
{
    struct pollfd ready = {.fd = descriptor, .events = events};
    return poll(&ready, 1, timeout_ms) == 1 && (ready.revents & (POLLERR | POLLHUP)) == 0;
}

static void close_all(const int *descriptors, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (descriptors[at] >= 0)
            (void)close(descriptors[at]);
}

/* How many of them the server has let in, which says nothing to them, or turned away, which ends them. */
static size_t still_open(const int *descriptors, size_t count)
{
    size_t open = 0;
    char byte[512];
    for (size_t at = 0; at < count; at++)
        open += descriptors[at] >= 0 && recv(descriptors[at], byte, sizeof byte, MSG_DONTWAIT) < 0 &&
                errno == EAGAIN;
    return open;
}

core_status siege_silent(struct siege *siege, struct core_error *error)
{
    int *sockets = malloc(SILENT * sizeof *sockets);
    if (sockets == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %d sockets", SILENT);
    for (unsigned at = 0; at < SILENT; at++)
        siege->done += (sockets[at] = siege_dial(siege->tcp_port, at)) >= 0;
    core_time_sleep_until(siege->end_ns);
    (void)snprintf(siege->note, sizeof siege->note, "%zu of them open at the end",
                   still_open(sockets, SILENT));
    close_all(sockets, SILENT);
    free(sockets);
    return siege->done > 0 ? CORE_OK : core_error_set(error, CORE_SYSTEM, "no connection could be made");
}

/* Connects to the server's Unix socket without waiting; -1: its queue is full. */
static int dial_unix(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    (void)snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor >= 0 && connect(descriptor, (const struct sockaddr *)&to, sizeof to) == 0)
        return descriptor;
    if (descriptor >= 0)
        (void)close(descriptor);
    return -1;
}

/* Half by TCP, half by the Unix socket, whose queue takes 1,024. */
core_status siege_connections(struct siege *siege, struct core_error *error)
{
    const char *path = siege->daemon->address + sizeof "unix:" - 1;
    int *sockets = malloc(AT_ONCE * sizeof *sockets);
    unsigned volleys = 0;
    if (sockets == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %d sockets", AT_ONCE);
    for (core_ns at_ns = core_time_now_ns(); siege_goes_on(siege); at_ns += EVERY_NS, volleys++) {
        core_time_sleep_until(at_ns);
        for (unsigned at = 0; at < AT_ONCE; at++) {
            sockets[at] = at % 2 ? siege_dial(siege->tcp_port, at) : dial_unix(path);
            siege->done += sockets[at] >= 0;
        }
        core_time_sleep_until(at_ns + EVERY_NS / 2);
        close_all(sockets, AT_ONCE);
    }
    (void)snprintf(siege->note, sizeof siege->note, "%u volleys", volleys);
    free(sockets);
    return siege->done > 0 ? CORE_OK : core_error_set(error, CORE_SYSTEM, "no connection could be made");
}

core_status siege_garbage(struct siege *siege, struct core_error *error)
{
    static const char nonsense[] = "GET / HTTP/1.0\r\nHost: millrace\r\n\r\n";
    (void)error;
    for (core_ns at_ns = core_time_now_ns(); siege_goes_on(siege); at_ns += CORE_NS_PER_S / GARBAGE) {
        core_time_sleep_until(at_ns);
        const uint16_t port = siege->done % 2 ? siege->tls_port : siege->tcp_port;
        const int descriptor = siege_dial(port, (unsigned)siege->done);
        if (descriptor < 0)
            continue;
        if (siege_await(descriptor, POLLOUT, 1000))
            siege->done += write(descriptor, nonsense, sizeof nonsense - 1) > 0;
        (void)siege_await(descriptor, POLLIN, 100); /* its answer, or its end */
        (void)close(descriptor);
    }
    return CORE_OK;
}

/* Those that were turned away come again, so that all places are always asked for. */
core_status siege_admin(struct siege *siege, struct core_error *error)
{
    const char *path = siege->daemon->admin + sizeof "unix:" - 1;
    int sockets[SLOW];
    core_ns worst_ns = 0;
    unsigned asked = 0, unanswered = 0;
    (void)error;
    memset(sockets, -1, sizeof sockets);
    while (siege_goes_on(siege)) {
        for (unsigned at = 0; at < SLOW; at++) {
            if (sockets[at] < 0)
                siege->done += (sockets[at] = dial_unix(path)) >= 0;
            if (sockets[at] >= 0 && send(sockets[at], "G", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
                (void)close(sockets[at]);
                sockets[at] = -1;
            }
        }
        char *body = NULL;
        size_t bytes;
        const core_ns start_ns = core_time_now_ns();
        unanswered +=
            command_http_get(siege->daemon->admin, "/health", HEALTH_MS, &body, &bytes, NULL) != CORE_OK;
        const core_ns took_ns = core_time_now_ns() - start_ns;
        worst_ns = core_time_max(took_ns, worst_ns);
        asked++;
        free(body);
        core_time_sleep_until(core_time_now_ns() + 50 * CORE_NS_PER_MS);
    }
    close_all(sockets, SLOW);
    siege->failed = unanswered > 0;
    (void)snprintf(siege->note, sizeof siege->note,
                   "/health asked %u times, worst %.1f ms; %u not answered within %d s", asked,
                   (double)worst_ns / 1e6, unanswered, HEALTH_MS / 1000);
    return CORE_OK;
}
