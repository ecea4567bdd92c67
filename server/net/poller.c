#include "server/net/poller.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#define ROOM_MIN 64

core_status server_poller_init(struct server_poller *poller, struct core_error *error)
{
    *poller = (struct server_poller){.descriptor = epoll_create1(EPOLL_CLOEXEC)};
    return poller->descriptor < 0 ? core_error_errno(error, "can not create an epoll") : CORE_OK;
}

void server_poller_free(struct server_poller *poller)
{
    if (poller->descriptor >= 0)
        close(poller->descriptor);
    free(poller->events);
    *poller = (struct server_poller){.descriptor = -1};
}

static bool make_room(struct server_poller *poller)
{
    if (poller->watched < poller->room)
        return true;
    const size_t room = poller->room == 0 ? ROOM_MIN : 2 * poller->room;
    struct epoll_event *events = realloc(poller->events, room * sizeof *events);
    if (events == NULL)
        return false;
    poller->events = events;
    poller->room = room;
    return true;
}

static void forget(struct server_poller *poller, struct server_watch *watch)
{
    (void)epoll_ctl(poller->descriptor, EPOLL_CTL_DEL, watch->descriptor, NULL);
    if (watch->named > 0)
        poller->events[watch->named - 1].data.ptr = NULL;
    watch->named = 0;
    watch->events = 0;
    poller->watched--;
}

bool server_poller_watch(struct server_poller *poller, struct server_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    const bool is_new = watch->events == 0;
    if (events == watch->events)
        return true;
    if (events == 0) {
        forget(poller, watch);
        return true;
    }
    if ((is_new && !make_room(poller)) ||
        epoll_ctl(poller->descriptor, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, watch->descriptor, &event) != 0)
        return false;
    poller->watched += is_new;
    watch->events = events;
    return true;
}

size_t server_poller_look(struct server_poller *poller, int timeout_ms)
{
    const int most = poller->room < INT_MAX ? (int)poller->room : INT_MAX;
    const int named = epoll_wait(poller->descriptor, poller->events, most, timeout_ms);
    poller->named = named > 0 ? (size_t)named : 0;
    for (size_t at = 0; at < poller->named; at++)
        ((struct server_watch *)poller->events[at].data.ptr)->named = at + 1;
    return poller->named;
}

void server_poller_run(struct server_poller *poller)
{
    for (size_t at = 0; at < poller->named; at++) {
        struct server_watch *watch = poller->events[at].data.ptr;
        if (watch == NULL)
            continue;
        uint32_t events = poller->events[at].events;
        watch->named = 0;
        if (events & (EPOLLERR | EPOLLHUP))
            events |= EPOLLIN | EPOLLOUT;
        if (events & watch->events)
            watch->ready(watch, events & watch->events);
    }
    poller->named = 0;
}
