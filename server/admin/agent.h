/* HAProxy's agent-check: to whoever connects goes one line with the whole state, and the connection is closed.
 *
 *   up ready 75%       75 of 100 streams of the typical contract (`agent` in the configuration) that this server
 *                      could have, were it empty, admission would still grant; at least 1%
 *   up ready 7%        the same while a thread or a unit overruns its bounds: a tenth of it
 *   up drain           it is stopping
 *   up maint           it is in maintenance (server_maintain)
 *   down #reason       a thread does not go round: /livez says 503
 *
 * How many are left is counted on a copy of what is admitted, with the code that admits: a piece at a time, on the
 * admin thread, again when what is admitted has changed, and in a twentieth of its time at the most. So a line is
 * older than the last change by what the rest behind a count takes, which is 20 times the count and
 * SERVER_AGENT_PERIOD_MS at least, and by the next count: 1.4 s with some 900 streams, 9 s with 14,000, 43 s with
 * 143,000 (docs/fleet.md). Decisions wait for the copy alone, which the planner's thread makes: 0.3 ms, 21 ms and
 * 159 ms.
 *
 * Nothing is read: what a client sends, it sends for itself. So that the line reaches who has sent something, the
 * socket stays open until the client ends it, for a second at the most, or until the places are needed for others
 * (connections.h). Owned by the admin thread. */
#ifndef MILLRACE_SERVER_ADMIN_AGENT_H
#define MILLRACE_SERVER_ADMIN_AGENT_H

#include "core/address.h"
#include "core/time.h"

#include <stdbool.h>

#define SERVER_AGENT_PERIOD_MS 200

struct server;
struct server_agent;
struct server_mailbox;
struct server_poller;

/* Listens, and asks the planner, which must run, for what there is while nothing is admitted. Its answers come
 * through `mailbox`, which the admin thread runs. */
CORE_CHECKED core_status server_agent_create(struct server_agent **agent, struct server *server,
                                             struct server_poller *poller, struct server_mailbox *mailbox,
                                             struct core_error *error);

/* In every round of the thread. True: a count goes on, come again at once. NULL is fine. */
bool server_agent_go_on(struct server_agent *agent, core_ns now_ns);

/* The planner has a question of it, whose answer is still to come. NULL: no. */
bool server_agent_is_asking(const struct server_agent *agent);

/* While it is not asking. NULL is fine. */
void server_agent_destroy(struct server_agent *agent);

/* With the port that the kernel chose. */
const struct core_address *server_agent_bound(const struct server_agent *agent);

#endif
