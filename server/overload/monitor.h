/* The overload monitor: a thread that measures, ten times a second, by how much every unit overran its bounds
 * (reserve.h). It logs each new overrun, with its cause as far as the system reports one, and asks the
 * planner to withhold that much of the unit from admission until the overrun is over. It does so for I/O
 * threads, too: the worst overrun of any I/O thread counts for all units, since streams of all units pass
 * through it.
 *
 * It reads atomics that workers and batchers write anyway, and the system's own accounts of their threads
 * (/proc/.../schedstat, stat); packets do not pass through it. Units are numbered as in
 * partition/unit_number.h: the workers, then the GPUs. */
#ifndef MILLRACE_SERVER_OVERLOAD_MONITOR_H
#define MILLRACE_SERVER_OVERLOAD_MONITOR_H

#include "core/status.h"
#include "core/time.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct server;
struct server_monitor;

/* To be called after workers, GPUs and planner have been started. CORE_NO_MEMORY; CORE_SYSTEM. */
CORE_CHECKED core_status server_monitor_start(struct server_monitor **watch, struct server *server,
                                              struct core_error *error);
/* To be called before any of them ends: no message is sent afterwards. NULL is fine. */
void server_monitor_halt(struct server_monitor *watch);
/* To be called after the planner has ended. NULL is fine. */
void server_monitor_destroy(struct server_monitor *watch);

/* Any thread: the present level of a unit, and the share that the planner withholds for it. */
core_ns server_monitor_io_level_ns(const struct server_monitor *watch,
                                   uint32_t io); /* and of an I/O thread */
core_ns server_monitor_level_ns(const struct server_monitor *watch, uint32_t unit);
bool server_monitor_is_overloaded(const struct server_monitor *watch); /* is any level above 0? */
int64_t server_monitor_share_ppb(const struct server_monitor *watch, uint32_t unit);

#endif
