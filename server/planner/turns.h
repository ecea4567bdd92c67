/* Which request is next at the planner. The peers that ask take turns, and so do the connections of one
 * peer: a request waits for at most one request of each other peer, however many connections that peer has,
 * and for at most one of each other connection of its own peer, however many requests that has sent.
 *
 * There are two lines. A request is in the first until it has been decided. A request that was refused
 * while others waited goes to the second line, where it waits for the reason and the offer; it never delays
 * a request of the first line. In each line the peers take turns, and so do the connections of a peer; a
 * connection gives its oldest request.
 *
 * The planner thread's, but for `gone`. Nothing is allocated. */
#ifndef MILLRACE_SERVER_PLANNER_TURNS_H
#define MILLRACE_SERVER_PLANNER_TURNS_H

#include "server/mailbox.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum server_turns_line { SERVER_TURNS_DECIDE, SERVER_TURNS_EXPLAIN, SERVER_TURNS_LINES };

struct server_asker;

/* A peer as one whose connections ask; there as long as one of them is (net/connection_slots.h). All zero at
 * first. */
struct server_turns_peer {
    struct server_asker *first[SERVER_TURNS_LINES], *last[SERVER_TURNS_LINES]; /* that wait; NULL: none */
    struct server_turns_peer *next[SERVER_TURNS_LINES];
};

/* A connection as one that asks; part of it, so that it is there as long as a request of it is. */
struct server_asker {
    _Atomic bool gone; /* atomic: written by its I/O thread, read by the planner: no answers are needed */
    struct server_turns_peer *peer; /* whose connection it is; set before it asks; NULL: nobody else's */
    struct server_turns_peer alone; /* itself, then */
    struct server_message *first[SERVER_TURNS_LINES], *last[SERVER_TURNS_LINES]; /* that wait; NULL: none */
    struct server_asker *next[SERVER_TURNS_LINES];
};

/* A request as one that waits for its turn; part of it. */
struct server_turn {
    struct server_asker *asker; /* set before it is posted */
    uint32_t cuts;              /* how often its explanation was cut off */
};

struct server_turns {
    struct server_turns_peer *first[SERVER_TURNS_LINES],
        *last[SERVER_TURNS_LINES]; /* NULL: no request waits */
};

/* Appends the request to those of its connection in this line. */
void server_turns_add(struct server_turns *turns, enum server_turns_line line, struct server_asker *asker,
                      struct server_message *message);

/* The request whose turn it is, from the first line if that is not empty; NULL: no request waits. */
struct server_message *server_turns_take(struct server_turns *turns);

bool server_turns_wait(const struct server_turns *turns);

/* Does another connection than this one wait for a decision? */
bool server_turns_others(const struct server_turns *turns, const struct server_asker *asker);

#endif
