/* Which GPUs the server has: those that the configuration asks for, the profile describes and the machine
 * has.
 *
 *   none       none
 *   listed     just these; it is an error if one is not there
 *   emulated   the profile's, each played by a child process; it is an error if that can not be
 *   auto       cards that are there and whose name the profile has; without any, or without the program, the
 *              CPU workers serve alone, and the log says what is missing */
#ifndef MILLRACE_SERVER_GPU_GPUS_H
#define MILLRACE_SERVER_GPU_GPUS_H

#include "core/status.h"
#include "gpu/region.h"

#include <stddef.h>

struct config_profile;
struct config_profile_gpu;
struct server;
struct server_io;

/* Checks all that can be checked without starting a GPU: that the program exists, that the profile describes
 * GPUs if the configuration asks for some, and that there is memory for the batches of emulated ones. A
 * failure here would be a failure at the start. If the configuration is only checked (--check-config),
 * detects the GPUs, too. */
CORE_CHECKED core_status server_gpus_check(struct server *server, struct core_error *error);

/* Chooses the user of the GPU processes: the configured one; if none is configured and the server runs as
 * root, the user `nobody`. Fails if the configured user is unknown, or if the server may not start processes
 * of other users. If `nobody` can not be used, logs a warning that the processes run as the server's user. */
CORE_CHECKED core_status server_gpus_user(struct server *server, struct core_error *error);

/* Starts server->gpus, in the order of the profile, and takes out of server->profile the cards that are not
 * there. `notify` wakes an I/O thread that has an event. After server_gpus_check, and after the I/O threads'
 * structs are made, before they run. */
CORE_CHECKED core_status server_gpus_start(struct server *server, void (*notify)(struct server_io *io),
                                           struct core_error *error);

/* After all I/O threads: ends the children and the batchers. Then, after the planner, the rest. */
void server_gpus_halt(struct server *server);
void server_gpus_destroy(struct server *server);

/* The arenas of a card of this kind, where so many cards share the profile's pinned_bytes and there may be so
 * many streams: what they may grow to. Pure; the profile has passed server_gpus_check. */
struct gpu_region_shape server_gpus_shape(const struct config_profile *profile,
                                          const struct config_profile_gpu *kind, uint32_t cards,
                                          uint64_t streams);

#endif
