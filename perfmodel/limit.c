#include "perfmodel/limit.h"

#include <stddef.h>

const char *perfmodel_limit_name(enum perfmodel_limit limit)
{
    static const char *const names[] = {
        [PERFMODEL_LIMIT_NONE] = "none",
        [PERFMODEL_LIMIT_DEADLINE] = "deadline",
        [PERFMODEL_LIMIT_CPU_UTILISATION] = "cpu-utilisation",
        [PERFMODEL_LIMIT_CPU_DEMAND] = "cpu-demand",
        [PERFMODEL_LIMIT_IO] = "io",
        [PERFMODEL_LIMIT_GPU_COPY] = "gpu-copy",
        [PERFMODEL_LIMIT_GPU_KERNEL] = "gpu-kernel",
        [PERFMODEL_LIMIT_GPU_LATENCY] = "gpu-latency",
        [PERFMODEL_LIMIT_GPU_MEMORY] = "gpu-memory",
        [PERFMODEL_LIMIT_GPU_OUT] = "gpu-out",
        [PERFMODEL_LIMIT_RESERVE] = "reserve",
        [PERFMODEL_LIMIT_BACKUP] = "backup",
        [PERFMODEL_LIMIT_FLUID] = "fluid",
    };
    return (size_t)limit < sizeof names / sizeof *names ? names[limit] : "unknown";
}
