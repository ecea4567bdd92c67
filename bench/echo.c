#include "bench/echo.h"

#include "core/realtime.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES ((size_t)64 << 10) /* what one read takes at most */
#define EVENTS     64
#define POLL_MS    50 /* how soon the threads see that it is over */

/* One end of a connection; owned by its thread. */
struct end {
    int socket;
    size_t unsent_bytes; /* still to be written; while there are any, nothing is read */
    size_t part_bytes;   /* client: received of a message that is not whole yet */
    uint8_t *unsent;     /* echo: those bytes; NULL in the client, whose messages are all alike */
};

struct side {
    int epoll;
    struct end *ends;
    uint8_t *chunk;
};

struct echo {
    const struct bench_echo_options *options;
    struct side server, client;
    core_ns measure_from_ns, end_ns;
    uint64_t bytes;     /* received by the client while measuring */
    atomic_bool stop;   /* atomic: written by the client's thread, read by the echo's */
    atomic_bool failed; /* atomic: written by both threads, read by both */
};

static void watch(const struct side *side, struct end *end, uint32_t events, int operation)
{
    struct epoll_event event = {.events = events, .data.ptr = end};
    (void)epoll_ctl(side->epoll, operation, end->socket, &event);
}

/* Room for the longest read and for the longest message. */
static size_t chunk_bytes(const struct bench_echo_options *options)
{
    return options->packet_bytes > READ_BYTES ? options->packet_bytes : READ_BYTES;
}

/* Writes and returns how many bytes the socket took; marks the run as failed on an error. */
static size_t write_some(struct echo *echo, const struct end *end, const uint8_t *bytes, size_t count)
{
    ssize_t written = send(end->socket, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno != EAGAIN && errno != EINTR)
        atomic_store(&echo->failed, true);
    return written < 0 ? 0 : (size_t)written;
}

static size_t read_some(struct echo *echo, const struct end *end, uint8_t *chunk)
{
    ssize_t got = recv(end->socket, chunk, READ_BYTES, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        atomic_store(&echo->failed, true);
    return got < 0 ? 0 : (size_t)got;
}

/* ---- the echo ---- */

static void echo_ready(struct echo *echo, struct end *end, uint32_t events)
{
    struct side *side = &echo->server;
    if (end->unsent_bytes > 0 && (events & EPOLLOUT)) {
        size_t written = write_some(echo, end, end->unsent, end->unsent_bytes);
        end->unsent_bytes -= written;
        memmove(end->unsent, end->unsent + written, end->unsent_bytes);
        if (end->unsent_bytes == 0)
            watch(side, end, EPOLLIN, EPOLL_CTL_MOD);
        return;
    }
    size_t got = read_some(echo, end, side->chunk);
    size_t written = got ? write_some(echo, end, side->chunk, got) : 0;
    if (written < got) {
        end->unsent_bytes = got - written;
        memcpy(end->unsent, side->chunk + written, end->unsent_bytes);
        watch(side, end, EPOLLOUT, EPOLL_CTL_MOD);
    }
}

static void *echo_run(void *argument)
{
    struct echo *echo = argument;
    struct epoll_event events[EVENTS];
    while (!atomic_load(&echo->stop)) {
        int ready = epoll_wait(echo->server.epoll, events, EVENTS, POLL_MS);
        for (int at = 0; at < ready; at++)
            echo_ready(echo, events[at].data.ptr, events[at].events);
    }
    return NULL;
}

/* ---- the client ---- */

/* Writes what is due, `unit` bytes a write; what the socket does not take waits for it. */
static void client_send(struct echo *echo, struct end *end, size_t unit)
{
    struct side *side = &echo->client;
    while (end->unsent_bytes > 0) {
        size_t bytes = end->unsent_bytes < unit ? end->unsent_bytes : unit;
        size_t written = write_some(echo, end, side->chunk, bytes);
        end->unsent_bytes -= written;
        if (written < bytes) {
            watch(side, end, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
            return;
        }
    }
}

static void client_ready(struct echo *echo, struct end *end, uint32_t events, size_t unit)
{
    struct side *side = &echo->client;
    bool was_full = end->unsent_bytes > 0;
    size_t packet_bytes = echo->options->packet_bytes;
    if (events & EPOLLIN) {
        size_t got = read_some(echo, end, side->chunk);
        end->part_bytes += got;
        end->unsent_bytes += end->part_bytes / packet_bytes * packet_bytes;
        end->part_bytes %= packet_bytes;
        echo->bytes += got;
    }
    if (was_full && !(events & EPOLLOUT))
        return;
    client_send(echo, end, unit);
    if (was_full && end->unsent_bytes == 0)
        watch(side, end, EPOLLIN, EPOLL_CTL_MOD);
}

static void client_begin(struct echo *echo, size_t unit)
{
    for (size_t at = 0; at < echo->options->connections; at++) {
        struct end *end = &echo->client.ends[at];
        end->unsent_bytes = echo->options->outstanding * echo->options->packet_bytes;
        client_send(echo, end, unit);
    }
}

static void *client_run(void *argument)
{
    struct echo *echo = argument;
    struct epoll_event events[EVENTS];
    size_t unit = echo->options->batch ? chunk_bytes(echo->options) : echo->options->packet_bytes;
    bool measuring = false;
    core_ns now_ns;
    client_begin(echo, unit);
    while ((now_ns = core_time_now_ns()) < echo->end_ns && !atomic_load(&echo->failed)) {
        if (!measuring && now_ns >= echo->measure_from_ns) {
            measuring = true;
            echo->measure_from_ns = now_ns;
            echo->bytes = 0;
        }
        int ready = epoll_wait(echo->client.epoll, events, EVENTS, POLL_MS);
        for (int at = 0; at < ready; at++)
            client_ready(echo, events[at].data.ptr, events[at].events, unit);
    }
    echo->end_ns = now_ns;
    atomic_store(&echo->stop, true);
    return NULL;
}

/* ---- setting up ---- */

static core_status side_open(struct side *side, const struct bench_echo_options *options)
{
    side->epoll = epoll_create1(EPOLL_CLOEXEC);
    side->ends = calloc(options->connections, sizeof *side->ends);
    side->chunk = calloc(1, chunk_bytes(options));
    if (side->epoll < 0 || !side->ends || !side->chunk)
        return CORE_NO_MEMORY;
    for (size_t at = 0; at < options->connections; at++)
        side->ends[at].socket = -1;
    return CORE_OK;
}

static core_status pairs_open(struct echo *echo, struct core_error *error)
{
    for (size_t at = 0; at < echo->options->connections; at++) {
        struct end *server = &echo->server.ends[at], *client = &echo->client.ends[at];
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
            return core_error_errno(error, "socketpair %zu (see ulimit -n)", at + 1);
        server->socket = pair[0];
        client->socket = pair[1];
        if (!(server->unsent = malloc(READ_BYTES)))
            return core_error_set(error, CORE_NO_MEMORY, "out of memory");
        watch(&echo->server, server, EPOLLIN, EPOLL_CTL_ADD);
        watch(&echo->client, client, EPOLLIN, EPOLL_CTL_ADD);
    }
    return CORE_OK;
}

static void side_close(struct side *side, size_t connections)
{
    for (size_t at = 0; side->ends && at < connections; at++) {
        free(side->ends[at].unsent);
        if (side->ends[at].socket >= 0)
            (void)close(side->ends[at].socket);
    }
    if (side->epoll >= 0)
        (void)close(side->epoll);
    free(side->ends);
    free(side->chunk);
}

static core_status threads_run(struct echo *echo, struct core_error *error)
{
    /* As the server's threads and its clients' here, so that other load on the machine meets all alike. */
    const struct core_thread_options options = {.name = "millrace-echo", .cpu = -1, .fifo_priority = 5};
    pthread_t server, client;
    core_ns now_ns = core_time_now_ns();
    echo->measure_from_ns = now_ns + echo->options->duration_ns / 5;
    echo->end_ns = echo->measure_from_ns + echo->options->duration_ns;
    core_status status = core_thread_start(&server, &options, echo_run, echo, NULL, error);
    if (status != CORE_OK)
        return status;
    status = core_thread_start(&client, &options, client_run, echo, NULL, error);
    if (status == CORE_OK)
        (void)pthread_join(client, NULL);
    atomic_store(&echo->stop, true);
    (void)pthread_join(server, NULL);
    if (status != CORE_OK)
        return status;
    if (atomic_load(&echo->failed))
        return core_error_set(error, CORE_SYSTEM, "a socket of the echo failed");
    return CORE_OK;
}

core_status bench_echo_run(const struct bench_echo_options *options, struct bench_echo_result *result,
                           struct core_error *error)
{
    struct echo echo = {.options = options, .server.epoll = -1, .client.epoll = -1};
    core_status status = CORE_OK;
    if (side_open(&echo.server, options) != CORE_OK || side_open(&echo.client, options) != CORE_OK)
        status = core_error_set(error, CORE_NO_MEMORY, "out of memory or descriptors");
    if (status == CORE_OK)
        status = pairs_open(&echo, error);
    if (status == CORE_OK)
        status = threads_run(&echo, error);
    double seconds = (double)(echo.end_ns - echo.measure_from_ns) / 1e9;
    if (status == CORE_OK)
        *result = (struct bench_echo_result){.bytes_per_s = (double)echo.bytes / seconds};
    side_close(&echo.server, options->connections);
    side_close(&echo.client, options->connections);
    return status;
}
