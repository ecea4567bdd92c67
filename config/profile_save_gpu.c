/* The GPU part of a profile as YAML. */
#include "config/profile_gpu.h"

#include <inttypes.h>

static void copies_write(FILE *file, const struct config_profile_gpu *gpu)
{
    fputs("    copies: # up: host to device, down: device to host; busy: while all other cards copy too\n",
          file);
    for (uint32_t i = 0; i < gpu->copy_count; i++)
        fprintf(file,
                "      - {bytes: %" PRIu64 ", up_ns: %" PRId64 ", down_ns: %" PRId64 ", up_busy_ns: %" PRId64
                ", down_busy_ns: %" PRId64 "}\n",
                gpu->copies[i].bytes, gpu->copies[i].up_ns, gpu->copies[i].down_ns, gpu->copies[i].up_busy_ns,
                gpu->copies[i].down_busy_ns);
}

static void utilisation_write(FILE *file, const struct config_profile_gpu *gpu)
{
    fputs("    utilisation: # share of an SM's peak that so many equal jobs side by side reach\n", file);
    for (uint32_t i = 0; i < gpu->utilisation_count; i++)
        fprintf(file, "      - {jobs: %" PRIu32 ", share_ppm: %" PRIu32 "}\n", gpu->utilisation[i].jobs,
                gpu->utilisation[i].share_ppm);
}

static void gpu_write(FILE *file, const struct config_profile_gpu *gpu)
{
    config_profile_text_write(file, "  - name", gpu->name);
    if (gpu->kernel)
        config_profile_text_write(file, "    kernel", gpu->kernel);
    fprintf(file, "    count: %" PRIu32 "\n", gpu->count);
    fprintf(file, "    sms: %" PRIu32 "\n", gpu->sms);
    fprintf(file, "    copy_engines: %" PRIu32 " # 1: both directions take turns\n", gpu->copy_engines);
    fprintf(file, "    memory_bytes: %" PRIu64 "\n", gpu->memory_bytes);
    fprintf(file, "    sm_bytes_per_s: %" PRId64 " # of one SM with jobs enough\n", gpu->sm_bytes_per_s);
    fprintf(file, "    launch_ns: %" PRId64 " # of one kernel\n", gpu->launch_ns);
    fprintf(file, "    job_bytes: %" PRIu32 " # that go up with each job beside its data\n", gpu->job_bytes);
    fprintf(file, "    host_batch_ns: %" PRId64 " # of the host for a batch, before it is copied up\n",
            gpu->host_batch_ns);
    fprintf(file, "    host_packet_ns: %" PRId64 " # and for each packet of it\n", gpu->host_packet_ns);
    copies_write(file, gpu);
    utilisation_write(file, gpu);
}

void config_profile_gpus_write(FILE *file, const struct config_profile *profile)
{
    fprintf(file, "\n# CPU workers that estimates count on.\nworkers: %" PRIu32 "\n",
            profile->workers > 0 ? profile->workers : 1);
    if (profile->pinned_bytes > 0)
        fprintf(file, "\n# Host memory that batches for GPUs may pin.\npinned_bytes: %" PRIu64 "\n",
                profile->pinned_bytes);
    if (profile->gpu_count == 0)
        return;
    fputs("\n# Kinds of cards, `count` of each.\ngpus:\n", file);
    for (uint32_t i = 0; i < profile->gpu_count; i++)
        gpu_write(file, &profile->gpus[i]);
}
