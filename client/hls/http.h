/* The HTTP side of `millrace hls`: PUT and POST bring clear files, DELETE takes one away, GET and HEAD serve what
 * is encrypted, and /metrics tells the figures. For loopback and Unix sockets: there are no users. One thread. */
#ifndef MILLRACE_CLIENT_HLS_HTTP_H
#define MILLRACE_CLIENT_HLS_HTTP_H

#include "client/hls/hls.h"

#include "core/address.h"

struct hls_http {
    struct hls *hls;
    struct MHD_Daemon *daemon;
    struct core_address bound;
    int listener;
    size_t uploading_bytes; /* of requests that are not whole yet */
    bool told_full;         /* that a file does not fit into the memory */
};

/* Listens on "unix:/path" or "tcp:host:port", the host 127.0.0.1, ::1 or localhost. CORE_INVALID: another. */
CORE_CHECKED core_status hls_http_start(struct hls_http *http, struct hls *hls, const char *address,
                                        struct core_error *error);
int hls_http_descriptor(const struct hls_http *http);           /* for poll, POLLIN */
int hls_http_wait_ms(const struct hls_http *http, int most_ms); /* how long, for that, at most most_ms */
void hls_http_turn(struct hls_http *http);
void hls_http_stop(struct hls_http *http);

#endif
