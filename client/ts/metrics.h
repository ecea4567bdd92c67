/* The figures of `millrace ts` by HTTP, for Prometheus, on loopback and Unix sockets alone. One thread. */
#ifndef MILLRACE_CLIENT_TS_METRICS_H
#define MILLRACE_CLIENT_TS_METRICS_H

#include "client/ts/report.h"

#include "core/address.h"

struct ts_metrics {
    const struct ts_set *set;
    struct MHD_Daemon *daemon;
    struct core_address bound;
    int listener;
};

/* Listens on "unix:/path" or "tcp:host:port", the host 127.0.0.1, ::1 or localhost. CORE_INVALID: another. */
CORE_CHECKED core_status ts_metrics_start(struct ts_metrics *metrics, const struct ts_set *set,
                                          const char *address, struct core_error *error);
int ts_metrics_descriptor(const struct ts_metrics *metrics); /* for poll; -1: it was not started */
void ts_metrics_turn(struct ts_metrics *metrics);
void ts_metrics_stop(struct ts_metrics *metrics);

#endif
