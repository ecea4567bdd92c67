/* Whose request is next at the planner. The peers that ask take turns, and so do the connections of one peer:
 * nobody waits for more than one request of each other peer, however many connections it has, and of each
 * other connection of its own, however many that one has sent.
 *
 * There are two lines. A request is in the first until it has been decided. One that was refused while
 * others waited goes to the second, where it waits to be told why: there nobody stands in the way of those in
 * the first. In each line the peers come round, each with the next of its connections, and that one with
 * the oldest of its requests.
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

/* A peer as one whose connections ask; there as long as one of them is (net/places.h). All zero at
 * first. */
struct server_turns_peer {
    struct server_asker *first[SERVER_TURNS_LINES], *last[SERVER_TURNS_LINES]; /* that wait; NULL: none */
    struct server_turns_peer *next[SERVER_TURNS_LINES];
};

/* A connection as one that asks; part of it, so that it is there as long as a request of it is. */
struct server_asker {
    _Atomic bool gone; /* atomic: written by its I/O thread, read by the planner: nobody awaits answers */
    struct server_turns_peer *peer; /* whose connection it is; set before it asks; NULL: nobody else's */
    struct server_turns_peer alone; /* itself, then */
    struct server_message *first[SERVER_TURNS_LINES], *last[SERVER_TURNS_LINES]; /* that wait; NULL: none */
    struct server_asker *next[SERVER_TURNS_LINES];
};

/* A request as one that waits for its turn; part of it. */
struct server_turn {
    struct server_asker *asker; /* set before it is posted */
    uint32_t cuts;              /* so often it was put off while it was told why */
};

struct server_turns {
    struct server_turns_peer *first[SERVER_TURNS_LINES], *last[SERVER_TURNS_LINES]; /* NULL: nobody waits */
};

/* To the end of its connection's in this line. */
void server_turns_add(struct server_turns *turns, enum server_turns_line line, struct server_asker *asker,
                      struct server_message *message);

/* Whose turn it is, of those in the first line if there are any; NULL: nobody waits. */
struct server_message *server_turns_take(struct server_turns *turns);

bool server_turns_wait(const struct server_turns *turns);

/* Does another connection than this one wait for a decision? */
bool server_turns_others(const struct server_turns *turns, const struct server_asker *asker);

#endif
