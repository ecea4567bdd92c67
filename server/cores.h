/* How many threads the server runs, and which share of a core admission assumes for each of them.
 *
 * Admission assumes one core for each worker and each I/O thread. Where there are fewer cores, all these
 * threads get an equal share of a core: their costs in the profile are divided by it, so that admission never
 * promises more than the cores that exist. core_cpu_thousandths says how many the process may use;
 * `threads.cores` may lower that, and may raise it only without real-time priority, where no thread is sure
 * of its core.
 *
 * At the start, before there are threads. */
#ifndef MILLRACE_SERVER_CORES_H
#define MILLRACE_SERVER_CORES_H

#include "config/profile.h"
#include "config/server.h"
#include "core/status.h"

struct server_cores {
    uint32_t io, workers;
    uint32_t thousandths; /* of a core, for all of them together */
    uint32_t there;       /* thousandths of a core that the process may use */
};

/* Threads by number, or by the cores where the configuration leaves it open. CORE_INVALID: more cores are
 * named than there are, with real time. */
CORE_CHECKED core_status server_cores_choose(const struct config_server_threads *threads, uint32_t there,
                                             struct server_cores *cores, struct core_error *error);

/* Thousandths of a core for each thread, 1,000 at most. */
uint32_t server_cores_share(const struct server_cores *cores);

/* The costs of workers and I/O threads, as they are on such a share of a core. */
void server_cores_scale(const struct server_cores *cores, struct config_profile *profile);

/* True if the profile was measured on another machine than this one, or names none; *text then says so. The
 * kernel's version is ignored. */
bool server_cores_are_others(const char *profile_machine, const char *machine, char *text, size_t size);

/* Logs what the operator should know: shares of cores, and pinning that is left out. */
void server_cores_warn(const struct server_cores *cores, const struct config_server_threads *threads);

/* Logs why a profile may not fit this machine (its figures are assumed, or from another machine), and stores
 * that in *doubt; empty: no doubt. profile NULL: the machine is measured at the start. */
void server_cores_doubt(const struct config_profile *profile, char *doubt, size_t size);

/* Are threads to be pinned? Only if pinned workers leave at least one core to other threads. */
bool server_cores_pin(const struct server_cores *cores, const struct config_server_threads *threads);

#endif
