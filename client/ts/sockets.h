/* The UDP sockets of `millrace ts`: of groups and of single addresses, IPv4 and IPv6. Many datagrams a call, each with
 * the time at which the system received it. Non-blocking. */
#ifndef MILLRACE_CLIENT_TS_SOCKETS_H
#define MILLRACE_CLIENT_TS_SOCKETS_H

#include "config/ts.h"

#include <sys/uio.h>

#define TS_BATCH 32 /* datagrams a call, at most */

/* Joins the group, if it is one. *descriptor is the caller's. */
CORE_CHECKED core_status ts_socket_input(const struct config_ts_service *config, int *descriptor,
                                         struct core_error *error);
CORE_CHECKED core_status ts_socket_output(const struct config_ts_service *config, int *descriptor,
                                          struct core_error *error);

/* The monotonic clock less the one of Unix time, with which the system stamps datagrams. */
core_ns ts_clock_offset_ns(void);

struct ts_arrival {
    size_t bytes; /* SIZE_MAX: it was longer than the room for it */
    core_ns in_ns;
};

/* Fills up to `count` (at most TS_BATCH) rooms; returns how many. *overflows: those that this socket has lost because
 * it was read too late, ever; unchanged if unknown. */
unsigned ts_socket_receive(int descriptor, const struct iovec *rooms, unsigned count, core_ns offset_ns,
                           struct ts_arrival *arrivals, uint64_t *overflows);

/* Sends up to `count` (at most TS_BATCH); returns how many. 0: the first one can not be sent, as errno says. */
unsigned ts_socket_send(int descriptor, const struct config_ts_endpoint *to, const struct iovec *datagrams,
                        unsigned count);

#endif
