#include "bench/machine.h"

#include "config/shipped.h"

#include <limits.h>

core_status bench_machine_open(struct bench_machine *machine, const char *name, struct core_error *error)
{
    char path[PATH_MAX];

    *machine = (struct bench_machine){0};
    core_status status = config_shipped_find(CONFIG_SHIPPED_PROFILE, name, NULL, path, sizeof path, error);
    if (status == CORE_OK)
        status = config_profile_load(path, &machine->file, error);
    if (status == CORE_OK)
        status = bench_machine_set(machine, BENCH_MACHINE_AS_PROFILE, BENCH_MACHINE_AS_PROFILE, error);
    return status;
}

void bench_machine_close(struct bench_machine *machine)
{
    config_profile_free(machine->file);
    machine->file = NULL;
}

core_status bench_machine_set(struct bench_machine *machine, int gpus, int workers, struct core_error *error)
{
    const struct config_profile *file = machine->file;

    if (gpus > 0 && file->gpu_count == 0)
        return core_error_set(error, CORE_INVALID,
                              "profile %s describes no GPU, so %d of them can not be estimated; take a "
                              "profile that does, as gtx285-x2",
                              file->name, gpus);
    if (gpus > CONFIG_PROFILE_GPU_COUNT_MAX || workers == 0 || workers > (int)CONFIG_PROFILE_WORKERS_MAX)
        return core_error_set(error, CORE_INVALID, "%d GPUs and %d workers: 0 to %d, and 1 to %u can be",
                              gpus, workers, CONFIG_PROFILE_GPU_COUNT_MAX, CONFIG_PROFILE_WORKERS_MAX);
    machine->profile = *file;
    machine->workers = file->workers > 0 ? file->workers : 1;
    if (workers > 0)
        machine->workers = (uint32_t)workers;
    if (gpus < 0)
        return CORE_OK;
    machine->profile.gpu_count = 0;
    machine->profile.gpus = NULL;
    if (gpus > 0) {
        machine->card = file->gpus[0];
        machine->card.count = (uint32_t)gpus;
        machine->profile.gpus = &machine->card;
        machine->profile.gpu_count = 1;
    }
    return CORE_OK;
}

uint32_t bench_machine_gpus(const struct bench_machine *machine)
{
    uint32_t gpus = 0;

    for (uint32_t kind = 0; kind < machine->profile.gpu_count; kind++)
        gpus += machine->profile.gpus[kind].count;
    return gpus;
}
