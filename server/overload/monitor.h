/* The watch: a thread that holds, ten times a second, what every unit lost beyond its bounds (reserve.h)
 * against what it is allowed, logs what is new of it with its cause as far as the system tells, and asks the
 * planner to keep newcomers from as much until it is over. The same of every I/O thread: what the worst of
 * them lost counts for all units, since streams of each go through it.
 *
 * It reads atomics that workers and batchers write anyway, and the system's own accounts of their threads
 * (/proc/.../schedstat, stat); no packet ever passes it. Units are numbered as in partition/unit_number.h:
 * the workers, then the GPUs. */
#ifndef MILLRACE_SERVER_OVERLOAD_MONITOR_H
#define MILLRACE_SERVER_OVERLOAD_MONITOR_H

#include "core/status.h"
#include "core/time.h"
#include "server/mailbox.h"

#include <stdatomic.h>
#include <stdint.h>

struct server;
struct server_watch;

/* What the planner is told: belongs to the watch, is the planner's between the post and server_watch_told. */
struct server_watch_levels {
    struct server_message message; /* first member */
    struct server_watch *watch;
    uint32_t unit_count;
    core_ns level_ns[]; /* by unit: struct server_overload; or of an I/O thread, if that is more */
};

/* After workers, GPUs and planner, whose figures it reads and whom it tells. CORE_NO_MEMORY; CORE_SYSTEM. */
CORE_CHECKED core_status server_watch_start(struct server_watch **watch, struct server *server,
                                            struct core_error *error);
/* Before any of them ends: nobody is told anything from then on. NULL is fine. */
void server_watch_halt(struct server_watch *watch);
/* After the planner's end. NULL is fine. */
void server_watch_destroy(struct server_watch *watch);

/* The planner: keeps this share of a unit from newcomers now. */
void server_watch_show_share(struct server_watch_levels *levels, uint32_t unit, int64_t share_ppb);
/* The planner: has done what the levels ask for, and lets go of them. */
void server_watch_told(struct server_watch_levels *levels);

/* Any thread: the present level of a unit, and what the planner makes of it. */
core_ns server_watch_io_level_ns(const struct server_watch *watch, uint32_t io); /* and of an I/O thread */
core_ns server_watch_level_ns(const struct server_watch *watch, uint32_t unit);
int64_t server_watch_share_ppb(const struct server_watch *watch, uint32_t unit);

#endif
