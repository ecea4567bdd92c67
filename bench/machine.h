/* The machine that an estimate is for: a hardware profile, with other numbers of cards and workers where
 * asked for. One thread. */
#ifndef MILLRACE_BENCH_MACHINE_H
#define MILLRACE_BENCH_MACHINE_H

#include "config/profile.h"

#define BENCH_MACHINE_AS_PROFILE (-1)

/* Points into itself: not to be copied. */
struct bench_machine {
    struct config_profile *file;    /* as loaded; owned */
    struct config_profile_gpu card; /* the first kind, counted anew */
    struct config_profile profile;  /* what the estimate is for; borrows from both */
    uint32_t workers;
};

/* Loads the profile: a path, or the bare name of a shipped one (config/shipped.h). */
CORE_CHECKED core_status bench_machine_open(struct bench_machine *machine, const char *name,
                                            struct core_error *error);
void bench_machine_close(struct bench_machine *machine);

/* `gpus` cards of the profile's first kind and of no other, and `workers` CPU workers;
 * BENCH_MACHINE_AS_PROFILE leaves either as the file has it. CORE_INVALID where the profile has no card to
 * take more of, or the numbers are beyond CONFIG_PROFILE_GPU_COUNT_MAX and CONFIG_PROFILE_WORKERS_MAX. */
CORE_CHECKED core_status bench_machine_set(struct bench_machine *machine, int gpus, int workers,
                                           struct core_error *error);

/* Cards in all. */
uint32_t bench_machine_gpus(const struct bench_machine *machine);

#endif
