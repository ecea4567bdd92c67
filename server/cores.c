#include "server/cores.h"

#include "core/log.h"
#include "server/calibrate/calibrate.h"

#include <stdio.h>
#include <string.h>

#define WHOLE 1000

core_status server_cores_choose(const struct config_server_threads *threads, uint32_t there,
                                struct server_cores *cores, struct core_error *error)
{
    uint32_t told = threads->cores * WHOLE, thousandths = told != 0 ? told : there;
    uint32_t whole = thousandths < 2 * WHOLE ? 1 : thousandths / WHOLE;
    *cores = (struct server_cores){.io = threads->io != 0 ? threads->io : (whole >= 8 ? whole / 4 : 1),
                                   .workers = threads->workers != 0 ? threads->workers
                                                                    : (whole >= 4 ? whole / 2 : 1),
                                   .thousandths = thousandths,
                                   .there = there};
    if (told > there && threads->realtime != CONFIG_REALTIME_OFF)
        return core_error_set(error, CORE_INVALID,
                              "%u are more than the %.2f that this process may use (affinity, "
                              "cpu.max); leave it out, or give fewer",
                              threads->cores, there / (double)WHOLE);
    return CORE_OK;
}

uint32_t server_cores_share(const struct server_cores *cores)
{
    uint32_t share = cores->thousandths / (cores->io + cores->workers);
    return share == 0 ? 1 : share > WHOLE ? WHOLE : share;
}

static int64_t divided(int64_t cost, uint32_t share)
{
    return (cost * WHOLE + share - 1) / share;
}

void server_cores_scale(const struct server_cores *cores, struct config_profile *profile)
{
    uint32_t share = server_cores_share(cores);
    if (share == WHOLE)
        return;
    profile->cpu.per_piece_ns = divided(profile->cpu.per_piece_ns, share);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        profile->cpu.per_byte_fs[i] = divided(profile->cpu.per_byte_fs[i], share);
        profile->cpu.lane_ns[i] = divided(profile->cpu.lane_ns[i], share);
        profile->io.audit_per_piece_ns[i] = divided(profile->io.audit_per_piece_ns[i], share);
        profile->io.audit_per_byte_fs[i] = divided(profile->io.audit_per_byte_fs[i], share);
    }
    profile->io.per_packet_ns = divided(profile->io.per_packet_ns, share);
    profile->io.per_byte_fs = divided(profile->io.per_byte_fs, share);
    profile->io.by_lane_per_packet_ns = divided(profile->io.by_lane_per_packet_ns, share);
    profile->io.by_lane_per_byte_fs = divided(profile->io.by_lane_per_byte_fs, share);
    profile->io.pattern_per_byte_fs = divided(profile->io.pattern_per_byte_fs, share);
    profile->io.mac_per_byte_fs = divided(profile->io.mac_per_byte_fs, share);
}

bool server_cores_are_others(const char *profile_machine, const char *machine, char *text, size_t size)
{
    const char *kernel = strstr(machine, ", Linux ");
    size_t same = kernel != NULL ? (size_t)(kernel - machine) : strlen(machine);
    if (strncmp(profile_machine, "assumed", strlen("assumed")) == 0)
        snprintf(text, size, "its figures are assumed (%s)", profile_machine);
    else if (strncmp(profile_machine, machine, same) != 0)
        snprintf(text, size, "it is of another machine (%s; this one: %s)", profile_machine, machine);
    else
        return false;
    return true;
}

bool server_cores_pin(const struct server_cores *cores, const struct config_server_threads *threads)
{
    /* Without precedence a pinned worker could not even evade a neighbour on its core. */
    return threads->pin && threads->realtime != CONFIG_REALTIME_OFF && cores->there / WHOLE > cores->workers;
}

void server_cores_warn(const struct server_cores *cores, const struct config_server_threads *threads)
{
    uint32_t share = server_cores_share(cores);
    if (share < WHOLE)
        core_log(
            CORE_LOG_WARNING, "start.cores",
            "%u workers and %u I/O threads share %.2f cores: admission counts on %.1f %% of a core for each",
            cores->workers, cores->io, cores->thousandths / (double)WHOLE, share / 10.0);
    if (cores->thousandths > cores->there)
        core_log(CORE_LOG_WARNING, "start.cores",
                 "threads.cores: this process may use %.2f cores, but admission counts on %.2f",
                 cores->there / (double)WHOLE, cores->thousandths / (double)WHOLE);
    if (threads->pin && threads->realtime != CONFIG_REALTIME_OFF && !server_cores_pin(cores, threads))
        core_log(CORE_LOG_WARNING, "start.cores",
                 "workers are not pinned: %u of them on %.2f cores would leave none to the other threads",
                 cores->workers, cores->there / (double)WHOLE);
}

void server_cores_doubt(const struct config_profile *profile, char *doubt, size_t size)
{
    char machine[256];
    doubt[0] = '\0';
    server_calibrate_machine(machine, sizeof machine);
    if (profile != NULL && server_cores_are_others(profile->machine, machine, doubt, size))
        core_log(CORE_LOG_WARNING, "start.profile",
                 "profile %s: %s, so that its latency bounds may not hold here; `millrace-bench calibrate` "
                 "measures this machine",
                 profile->name, doubt);
}
