/* How many threads the server runs, and what of a core each of them is promised.
 *
 * Admission reckons with a core for each worker and each I/O thread. Where there are fewer cores, each of
 * them gets the same share of one: all their costs in the profile are divided by it, so that together nothing
 * is promised beyond the cores that are there. What the process may use is told by core_cpu_thousandths;
 * `threads.cores` may say less, and more only without real time, where no core is promised to anybody.
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
    uint32_t there;       /* what the process may use, in the same unit */
};

/* Threads by number, or by the cores where the configuration leaves it open. CORE_INVALID: more cores are
 * named than there are, with real time. */
CORE_CHECKED core_status server_cores_choose(const struct config_server_threads *threads, uint32_t there,
                                             struct server_cores *cores, struct core_error *error);

/* Thousandths of a core for each thread, 1,000 at most. */
uint32_t server_cores_share(const struct server_cores *cores);

/* The costs of workers and I/O threads, as they are on such a share of a core. */
void server_cores_scale(const struct server_cores *cores, struct config_profile *profile);

/* Is this profile of another machine than the one that runs, or of none? Then *text says so. Kernels may
 * differ. */
bool server_cores_are_others(const char *profile_machine, const char *machine, char *text, size_t size);

/* Logs what the operator should know: shares of cores, and pinning that is left out. */
void server_cores_warn(const struct server_cores *cores, const struct config_server_threads *threads);

/* Logs, and leaves in *doubt, what speaks against a profile here: that it is assumed, or of another machine;
 * empty: nothing. profile NULL: the machine is measured. */
void server_cores_doubt(const struct config_profile *profile, char *doubt, size_t size);

/* Pinned workers leave a core to the others. */
bool server_cores_pin(const struct server_cores *cores, const struct config_server_threads *threads);

#endif
