/* Which descriptors of a thread are ready: an epoll of its own, level-triggered.
 *
 * A look names every descriptor that is ready, however many there are: there is room for all that are
 * watched. The times of arrival (server/stream/arrival.h) rest on it: what a look has not named had nothing.
 * The loops of libraries take so many at a time and leave the others for their next look, which would then
 * take what has waited for what is new.
 *
 * Used on one thread alone but for init and free. */
#ifndef MILLRACE_SERVER_NET_POLLER_H
#define MILLRACE_SERVER_NET_POLLER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

/* A descriptor, in what it belongs to. Set `descriptor`, `ready` and `owner`, all else zero. */
struct server_watch {
    int descriptor;
    /* `events`: those of the watched that have happened; both kinds if the socket has broken or the peer is
     * gone. It may change and forget any watch, and free what owns it. */
    void (*ready)(struct server_watch *watch, uint32_t events);
    void *owner;
    uint32_t events; /* watched for: EPOLLIN, EPOLLOUT, both or none */
    size_t named;    /* its place in the present look, from 1 on; 0: none */
};

struct server_poller {
    int descriptor; /* -1: none */
    struct epoll_event *events;
    size_t room, watched; /* watched <= room */
    size_t named;         /* in the present look */
};

/* CORE_SYSTEM: no descriptor for it. */
core_status server_poller_init(struct server_poller *poller, struct core_error *error);
void server_poller_free(struct server_poller *poller);

/* From now on it is watched for these events alone; none: it is forgotten, and is not named any more, not
 * even by the present look. Forget it before the descriptor is closed. False: no memory, all is as before;
 * watching for less never fails. */
bool server_poller_watch(struct server_poller *poller, struct server_watch *watch, uint32_t events);

/* Waits until something is ready, for timeout_ms at most (0: it only looks; below: for ever). Returns how
 * many are: call server_poller_run then. 0 also after a signal. */
size_t server_poller_look(struct server_poller *poller, int timeout_ms);

/* Calls `ready` of all that the look has named and that nobody has forgotten since. */
void server_poller_run(struct server_poller *poller);

#endif
