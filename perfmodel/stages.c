/* Batches: their stages, their memory, and whether they hold a period and a deadline. */
#include "perfmodel/gpu.h"

#include "perfmodel/cpu.h"
#include "perfmodel/wide.h"

#include <assert.h>

static uint64_t saturated(perfmodel_wide value)
{
    return value < (perfmodel_wide)UINT64_MAX ? (uint64_t)value : UINT64_MAX;
}

static core_ns with_margin_ns(perfmodel_wide ns, uint32_t margin_ppm)
{
    return perfmodel_wide_limit(perfmodel_wide_with_margin(ns, margin_ppm), CORE_NS_NEVER);
}

static struct perfmodel_stages stages_of(const struct config_profile_gpu *gpu,
                                         const struct config_profile_margins *margins, perfmodel_wide bytes,
                                         perfmodel_wide jobs, core_ns kernel_ns, bool busy)
{
    const uint64_t up_bytes = saturated(bytes + jobs * gpu->job_bytes);
    return (struct perfmodel_stages){
        .up_ns = with_margin_ns(perfmodel_copy_ns(gpu, PERFMODEL_UP, busy, up_bytes), margins->copies_ppm),
        .kernel_ns = with_margin_ns((perfmodel_wide)gpu->launch_ns + kernel_ns, margins->kernels_ppm),
        .down_ns = with_margin_ns(perfmodel_copy_ns(gpu, PERFMODEL_DOWN, busy, saturated(bytes)),
                                  margins->copies_ppm),
    };
}

static struct perfmodel_stages stages_by(const struct config_profile_gpu *gpu,
                                         const struct config_profile_margins *margins,
                                         const uint64_t *job_bytes, size_t count, bool busy, bool measured,
                                         uint64_t *scratch)
{
    perfmodel_wide bytes = 0;
    if (count == 0)
        return (struct perfmodel_stages){0};
    for (size_t i = 0; i < count; i++)
        bytes += job_bytes[i];
    const core_ns kernel_ns = perfmodel_kernel_ns(gpu, gpu->sms, job_bytes, count, measured, scratch);
    return stages_of(gpu, margins, bytes, (perfmodel_wide)count, kernel_ns, busy);
}

struct perfmodel_stages perfmodel_gpu_stages(const struct config_profile_gpu *gpu,
                                             const struct config_profile_margins *margins,
                                             const uint64_t *job_bytes, size_t count, bool busy,
                                             uint64_t *scratch)
{
    return stages_by(gpu, margins, job_bytes, count, busy, false, scratch);
}

struct perfmodel_stages perfmodel_gpu_stages_measured(const struct config_profile_gpu *gpu,
                                                      const struct config_profile_margins *margins,
                                                      const uint64_t *job_bytes, size_t count, bool busy,
                                                      uint64_t *scratch)
{
    return stages_by(gpu, margins, job_bytes, count, busy, true, scratch);
}

struct perfmodel_stages perfmodel_gpu_stages_falling(const struct config_profile_gpu *gpu,
                                                     const struct config_profile_margins *margins,
                                                     const struct perfmodel_jobs *falling, size_t sizes,
                                                     bool busy)
{
    perfmodel_wide bytes = 0, jobs = 0;
    if (sizes == 0)
        return (struct perfmodel_stages){0};
    for (size_t i = 0; i < sizes; i++) {
        bytes += (perfmodel_wide)falling[i].bytes * falling[i].count;
        jobs += falling[i].count;
    }
    return stages_of(gpu, margins, bytes, jobs, perfmodel_kernel_falling_ns(gpu, falling, sizes), busy);
}

core_ns perfmodel_gpu_host_ns(const struct config_profile_gpu *gpu, uint64_t packets)
{
    return perfmodel_wide_limit(gpu->host_batch_ns + (perfmodel_wide)packets * gpu->host_packet_ns,
                                CORE_NS_NEVER);
}

uint64_t perfmodel_gpu_job_packets(const struct core_stream_spec *spec, core_ns period_ns)
{
    assert(period_ns > 0);
    return spec->burst_packets + (uint64_t)(period_ns / spec->interval_ns);
}

struct perfmodel_jobs perfmodel_gpu_jobs(const struct core_stream_spec *spec, core_ns period_ns, bool paper)
{
    if (paper || !core_stream_packets_alone(spec))
        return (struct perfmodel_jobs){.bytes = perfmodel_gpu_job_bytes(spec, period_ns, paper), .count = 1};
    return (struct perfmodel_jobs){.bytes = core_stream_packet_bytes(spec),
                                   .count = perfmodel_gpu_job_packets(spec, period_ns)};
}

uint64_t perfmodel_gpu_job_bytes(const struct core_stream_spec *spec, core_ns period_ns, bool paper)
{
    assert(period_ns > 0);
    if (paper)
        return saturated(
            perfmodel_wide_divide_up((perfmodel_wide)spec->packet_bytes * period_ns, spec->interval_ns));
    perfmodel_wide packets = perfmodel_gpu_job_packets(spec, period_ns);
    return saturated(packets * core_stream_packet_bytes(spec));
}

core_ns perfmodel_gpu_work_ns(const struct core_stream_spec *spec, const struct config_profile *profile)
{
    if (core_stream_needs_worker(spec))
        return 0;
    return spec->latency_ns - profile->margins.in_ns - profile->margins.out_ns -
           perfmodel_io_rest_ns(spec->latency_ns, profile);
}

/* ---- verdicts ---- */

static bool takes_turns(const struct config_profile_gpu *gpu)
{
    return gpu->copy_engines < 2;
}

static perfmodel_wide copies_ns(const struct perfmodel_stages *stages)
{
    return (perfmodel_wide)stages->up_ns + stages->down_ns;
}

core_ns perfmodel_gpu_latency_ns(const struct config_profile_gpu *gpu, const struct perfmodel_stages *stages,
                                 core_ns period_ns)
{
    int rounds = takes_turns(gpu) ? 2 : 1;
    perfmodel_wide ns = (perfmodel_wide)period_ns + stages->host_ns + stages->kernel_ns;
    return perfmodel_wide_limit(ns + rounds * copies_ns(stages), CORE_NS_NEVER);
}

static bool copies_fit(const struct config_profile_gpu *gpu, const struct perfmodel_stages *stages,
                       core_ns period_ns, bool paper)
{
    if (takes_turns(gpu) && !paper)
        return copies_ns(stages) <= period_ns;
    return stages->up_ns <= period_ns && stages->down_ns <= period_ns;
}

enum perfmodel_limit perfmodel_gpu_judge(const struct config_profile_gpu *gpu,
                                         const struct perfmodel_stages *stages, core_ns period_ns,
                                         core_ns shortest_ns, bool paper)
{
    assert(period_ns > 0);
    if (!copies_fit(gpu, stages, period_ns, paper))
        return PERFMODEL_LIMIT_GPU_COPY;
    if (stages->kernel_ns > period_ns)
        return PERFMODEL_LIMIT_GPU_KERNEL;
    if (paper ? period_ns > shortest_ns / 4
              : stages->host_ns > period_ns || perfmodel_gpu_latency_ns(gpu, stages, period_ns) > shortest_ns)
        return PERFMODEL_LIMIT_GPU_LATENCY;
    return PERFMODEL_LIMIT_NONE;
}
