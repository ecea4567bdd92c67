/* The way of `millrace hls` to the server: one connection, and a stream for each rendition.
 *
 * A server that goes away is looked for until it is back; what was not finished is sent again from its
 * beginning. Nothing is lost by that, only late. One thread, which never waits for the server. */
#ifndef MILLRACE_CLIENT_HLS_LINK_H
#define MILLRACE_CLIENT_HLS_LINK_H

#include "client/command.h"
#include "client/dial.h"
#include "client/hls/stream.h"

struct hls_link_counts {
    uint64_t reconnects, refused; /* refused: streams and keys, by the server */
};

struct hls_link {
    /* set before start */
    const struct core_options_server *server;
    double bandwidth_bits_per_s; /* each rendition has at least that; 0: only what is seen */
    void *argument;
    /* whole, or failed; the job is out of the stream, to be freed by hls_job_free */
    void (*done)(void *argument, struct hls_job *job);
    void (*say)(const char *format, ...) CORE_PRINTF(1, 2);
    /* the link's */
    struct client_dial dial;
    struct millrace *connection; /* NULL: none */
    core_ns connect_not_before_ns;
    bool told_lost;      /* that it has no connection */
    bool must_reconnect; /* as soon as no callback runs */
    struct hls_stream *streams;
    struct hls_stream *busy; /* those of them that have jobs */
    struct hls_link_counts counts;
};

/* Connects, if it must, and takes what the server has sent; calls `done`. */
void hls_link_receive(struct hls_link *link, core_ns now_ns);
/* Sends what may be sent now, and asks for what is missing. */
void hls_link_send(struct hls_link *link, core_ns now_ns);

/* For poll; -1 while there is nothing to wait for. */
int hls_link_descriptor(const struct hls_link *link);
short hls_link_events(const struct hls_link *link);

/* How long to wait for that, at most most_ms: until something that was refused is to be asked for again. */
int hls_link_wait_ms(const struct hls_link *link, core_ns now_ns, int most_ms);

/* Whether any stream has jobs. */
bool hls_link_is_busy(const struct hls_link *link);
void hls_link_close(struct hls_link *link);

#endif
