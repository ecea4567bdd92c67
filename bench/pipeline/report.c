#include "bench/pipeline/report.h"

#include "bench/document.h"

#include <stdio.h>

static const char *const stage_names[GPU_STAGE_COUNT] = {"copy up", "kernel", "copy down"};
static const char *const stage_keys[GPU_STAGE_COUNT] = {"up", "kernel", "down"};

bool bench_pipeline_is_clean(const struct bench_pipeline_result *result)
{
    return result->cpu.missed + result->gpu.missed + result->cpu.wrong + result->gpu.wrong == 0;
}

static double gbit_per_s(uint64_t bytes, core_ns elapsed_ns)
{
    return elapsed_ns > 0 ? 8 * (double)bytes / (double)elapsed_ns : 0;
}

static double micro(double ns)
{
    return ns / 1000;
}

static double slack_us(const struct bench_pipeline_tally *tally)
{
    return tally->packets > 0 ? micro((double)tally->least_slack_ns) : 0;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a + b;
}

/* ---- text ---- */

static void tally_print(const char *name, const struct bench_pipeline_tally *tally, core_ns elapsed_ns)
{
    if (tally->packets == 0)
        return;
    printf("%-4s %11llu packets %8.3f Gbit/s  missed %llu  least slack %.0f us  latency us: half %.0f, 99 of "
           "100 %.0f, worst %.0f  compared %llu, wrong %llu\n",
           name, (unsigned long long)tally->packets, gbit_per_s(tally->bytes, elapsed_ns),
           (unsigned long long)tally->missed, slack_us(tally),
           micro((double)core_histogram_percentile_ns(tally->latency, 50)),
           micro((double)core_histogram_percentile_ns(tally->latency, 99)),
           micro((double)core_histogram_maximum_ns(tally->latency)), (unsigned long long)tally->compared,
           (unsigned long long)tally->wrong);
}

static void stages_print(const struct bench_pipeline_gpu *gpu)
{
    printf("  %-10s %10s %10s %10s %10s %10s   model's error %%: least, half, most\n", "stage, us", "half",
           "99 of 100", "worst", "bound", "worst/bound");
    for (int i = 0; i < GPU_STAGE_COUNT; i++) {
        const struct bench_pipeline_stage *stage = &gpu->stages[i];
        printf("  %-10s %10.1f %10.1f %10.1f %10.1f %10.2f   %+.1f %+.1f %+.1f\n", stage_names[i],
               micro(stage->median_ns), micro(stage->p99_ns), micro(stage->max_ns), micro(stage->bound_ns),
               stage->max_ns / stage->bound_ns, stage->error_least, stage->error_median, stage->error_most);
    }
}

static double limit_share(const struct bench_pipeline_gpu *gpu, core_ns elapsed_ns)
{
    return elapsed_ns > 0 ? (double)gpu->bytes * 1e9 / (double)elapsed_ns / gpu->copy_limit_bytes_per_s : 0;
}

static bool health_is_known(const struct gpu_nvml_health *health)
{
    return health->sm_most_mhz > 0 || health->celsius > 0;
}

static void health_print(const struct gpu_nvml_health *health)
{
    char reasons[160];
    if (!health_is_known(health))
        printf("  clocks and heat are not known\n");
    else
        printf("  at the end: clock of the SMs %u of %u MHz, %d C, held down by: %s\n", health->sm_mhz,
               health->sm_most_mhz, health->celsius,
               gpu_nvml_reasons_text(health->reasons, reasons, sizeof reasons));
}

static void gpu_print(uint32_t index, const struct bench_pipeline_gpu *gpu, core_ns elapsed_ns)
{
    if (gpu->batches == 0) {
        printf("GPU %u: no streams\n", index);
        return;
    }
    printf("GPU %u, %s (driver %s, kernel %s): %zu streams, period %.1f us, %llu batches of %.0f KB, the "
           "largest %.0f KB of %.0f planned\n",
           index, gpu->facts.name, gpu->facts.driver, gpu->facts.kernel, gpu->plan->streams,
           micro((double)gpu->plan->period_ns), (unsigned long long)gpu->batches,
           (double)gpu->bytes / (double)gpu->batches / 1e3, (double)gpu->largest_bytes / 1e3,
           (double)gpu->plan->batch_bytes / 1e3);
    stages_print(gpu);
    printf("  batches carry %.3f GB/s each way: %.2f of the copies' limit, %.3f GB/s\n",
           (double)gpu->bytes / (double)(elapsed_ns > 0 ? elapsed_ns : 1), limit_share(gpu, elapsed_ns),
           gpu->copy_limit_bytes_per_s / 1e9);
    printf("  from close to copy, us: 99 of 100 %.1f, worst %.1f; from copy to batcher: %.1f, %.1f; late "
           "packets %llu, batches opened late %llu\n",
           micro(gpu->start_p99_ns), micro(gpu->start_max_ns), micro(gpu->tell_p99_ns),
           micro(gpu->tell_max_ns), (unsigned long long)gpu->late, (unsigned long long)gpu->held_up);
    health_print(&gpu->health);
}

/* Bytes of payload a second that its streams send. */
static double planned_rate(const struct partition_plan_input *input, const struct partition_plan *plan,
                           uint32_t unit)
{
    double bytes_per_s = 0;
    for (size_t i = 0; i < plan->count; i++)
        if (plan->unit[i] == unit)
            bytes_per_s += input->specs[i].packet_bytes * 1e9 / (double)input->specs[i].interval_ns;
    return bytes_per_s;
}

static void gpu_print_plan(const struct partition_plan_input *input, const struct partition_plan *plan,
                           uint32_t index)
{
    static const char *const rules[] = {
        [PARTITION_PLAN_BATCH] = "batch", [PARTITION_PLAN_BACKLOG] = "backlog", "staircase"};
    const struct partition_plan_gpu *gpu = &plan->gpu[index];
    const struct config_profile_gpu *kind = &input->profile->gpus[gpu->kind];
    const double limit = bench_pipeline_copy_limit(kind);
    const double rate = planned_rate(input, plan, plan->workers + index);
    if (gpu->streams == 0) {
        printf("GPU %u: no streams\n", index);
        return;
    }
    printf("GPU %u, %s: %zu streams, period %.3f ms, by the %s rule: copies of %.3f and %.3f ms, a kernel of "
           "%.3f ms, %.3f of %.3f ms in all; %u arenas, %.1f MB\n",
           index, kind->name, gpu->streams, (double)gpu->period_ns / 1e6, rules[gpu->rule],
           (double)gpu->stages.up_ns / 1e6, (double)gpu->stages.down_ns / 1e6,
           (double)gpu->stages.kernel_ns / 1e6, (double)gpu->latency_ns / 1e6, (double)gpu->shortest_ns / 1e6,
           gpu->arenas, (double)gpu->memory_bytes / 1e6);
    printf("  it carries %.3f GB/s each way: %.3f of the copies' limit, %.3f GB/s; the busiest stage is busy "
           "for "
           "%.1f %% of the time, margins included\n",
           rate / 1e9, rate / limit, limit / 1e9, (double)gpu->busiest_ppb / 1e7);
}

void bench_pipeline_print_plan(const struct partition_plan_input *input, const struct partition_plan *plan)
{
    double rate = 0;
    for (uint32_t unit = 0; unit < plan->workers + plan->gpus; unit++)
        rate += planned_rate(input, plan, unit);
    printf("%zu streams, profile %s (measured: %s), margins: copies %.1f %%, kernels %.1f %%\n", plan->count,
           input->profile->name, input->profile->measured, input->profile->margins.copies_ppm / 1e4,
           input->profile->margins.kernels_ppm / 1e4);
    printf("planned %.3f Gbit/s; %s\n", rate * 8 / 1e9, plan->reason);
    for (uint32_t index = 0; index < plan->gpus; index++)
        gpu_print_plan(input, plan, index);
}

static double share(core_ns cpu_ns, core_ns elapsed_ns)
{
    return elapsed_ns > 0 ? 100 * (double)cpu_ns / (double)elapsed_ns : 0;
}

static void cpu_print(const struct bench_pipeline_result *result)
{
    printf("%% of a core: generators");
    for (uint32_t i = 0; i < result->generators; i++)
        printf(" %.0f", share(result->generator_cpu_ns[i], result->elapsed_ns));
    printf(", workers");
    for (uint32_t i = 0; i < result->workers; i++)
        printf(" %.0f", share(result->worker_cpu_ns[i], result->elapsed_ns));
    for (uint32_t i = 0; i < result->gpus; i++)
        printf(", GPU %u: batcher %.0f, child %.0f", i,
               share(result->gpu_results[i].batcher_cpu_ns, result->elapsed_ns),
               share(result->gpu_results[i].child_cpu_ns, result->elapsed_ns));
    printf("\n");
}

void bench_pipeline_print(const struct bench_pipeline_report *report)
{
    const struct bench_pipeline_result *result = report->result;
    const struct partition_plan_input *input = report->options->input;

    printf("%zu streams (%s), profile %s, backend %s, %s payload, %.1f s\n", input->count, report->streams,
           input->profile->name, report->options->program.backend,
           report->options->copied ? "copied" : "unwritten", (double)result->elapsed_ns / 1e9);
    printf("all  %11llu packets %8.3f Gbit/s  missed %llu  wrong %llu\n",
           (unsigned long long)sum(result->cpu.packets, result->gpu.packets),
           gbit_per_s(result->cpu.bytes + result->gpu.bytes, result->elapsed_ns),
           (unsigned long long)sum(result->cpu.missed, result->gpu.missed),
           (unsigned long long)sum(result->cpu.wrong, result->gpu.wrong));
    tally_print("CPU", &result->cpu, result->elapsed_ns);
    tally_print("GPU", &result->gpu, result->elapsed_ns);
    for (uint32_t i = 0; i < result->gpus; i++)
        gpu_print(i, &result->gpu_results[i], result->elapsed_ns);
    if (result->gpus > 0 && result->gpu.packets == 0)
        printf(
            "no stream is on a GPU, the CPU workers keep them all: --gpus-alone, more --streams or a higher "
            "--rate\n");
    cpu_print(result);
    if (result->started_late_packets > 0)
        printf("%llu packets were made over 1 ms late: more --generators, or less to do\n",
               (unsigned long long)result->started_late_packets);
    printf("SYSTOR 2012: 22 Gbit/s, 12,000 streams at 40 ms, two GTX 285 and two cores\n");
}

/* ---- JSON ---- */

static json_t *tally_json(const struct bench_pipeline_tally *tally, core_ns elapsed_ns)
{
    return json_pack(
        "{s:I, s:I, s:f, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I}", "packets", (json_int_t)tally->packets,
        "bytes", (json_int_t)tally->bytes, "gbit_per_s", gbit_per_s(tally->bytes, elapsed_ns), "missed",
        (json_int_t)tally->missed, "least_slack_us", slack_us(tally), "latency_median_us",
        micro((double)core_histogram_percentile_ns(tally->latency, 50)), "latency_p99_us",
        micro((double)core_histogram_percentile_ns(tally->latency, 99)), "latency_max_us",
        micro((double)core_histogram_maximum_ns(tally->latency)), "compared", (json_int_t)tally->compared,
        "wrong", (json_int_t)tally->wrong, "refused", (json_int_t)tally->refused);
}

static json_t *stage_json(const struct bench_pipeline_stage *stage)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "median_us", micro(stage->median_ns),
                     "p99_us", micro(stage->p99_ns), "max_us", micro(stage->max_ns), "bound_us",
                     micro(stage->bound_ns), "max_to_bound", stage->max_ns / stage->bound_ns,
                     "model_error_least_percent", stage->error_least, "model_error_median_percent",
                     stage->error_median, "model_error_most_percent", stage->error_most);
}

static json_t *health_json(const struct gpu_nvml_health *health)
{
    char reasons[160];
    if (!health_is_known(health))
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:s}", "sm_mhz", (json_int_t)health->sm_mhz, "sm_most_mhz",
                     (json_int_t)health->sm_most_mhz, "celsius", (json_int_t)health->celsius, "held_down_by",
                     gpu_nvml_reasons_text(health->reasons, reasons, sizeof reasons));
}

static json_t *gpu_json(const struct bench_pipeline_gpu *gpu, core_ns elapsed_ns)
{
    if (gpu->batches == 0)
        return json_pack("{s:i}", "streams", 0);
    json_t *stages = json_object();
    for (int i = 0; i < GPU_STAGE_COUNT; i++)
        json_object_set_new(stages, stage_keys[i], stage_json(&gpu->stages[i]));
    return json_pack("{s:s, s:s, s:s, s:I, s:f, s:I, s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:I, "
                     "s:I, s:f, s:f, s:o}",
                     "name", gpu->facts.name, "driver", gpu->facts.driver, "kernel", gpu->facts.kernel,
                     "streams", (json_int_t)gpu->plan->streams, "period_us",
                     micro((double)gpu->plan->period_ns), "batches", (json_int_t)gpu->batches, "bytes",
                     (json_int_t)gpu->bytes, "largest_bytes", (json_int_t)gpu->largest_bytes, "planned_bytes",
                     (json_int_t)gpu->plan->batch_bytes, "stages", stages, "copy_limit_gb_per_s",
                     gpu->copy_limit_bytes_per_s / 1e9, "copy_limit_share", limit_share(gpu, elapsed_ns),
                     "start_p99_us", micro(gpu->start_p99_ns), "start_max_us", micro(gpu->start_max_ns),
                     "tell_p99_us", micro(gpu->tell_p99_ns), "tell_max_us", micro(gpu->tell_max_ns), "late",
                     (json_int_t)gpu->late, "held_up", (json_int_t)gpu->held_up, "batcher_cpu_percent",
                     share(gpu->batcher_cpu_ns, elapsed_ns), "child_cpu_percent",
                     share(gpu->child_cpu_ns, elapsed_ns), "health", health_json(&gpu->health));
}

static json_t *shares_json(const core_ns *cpu_ns, uint32_t count, core_ns elapsed_ns)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(array, json_real(share(cpu_ns[i], elapsed_ns)));
    return array;
}

core_status bench_pipeline_print_json(const struct bench_pipeline_report *report, struct core_error *error)
{
    const struct bench_pipeline_result *result = report->result;
    const struct partition_plan_input *input = report->options->input;
    json_t *gpus = json_array();

    for (uint32_t i = 0; i < result->gpus; i++)
        json_array_append_new(gpus, gpu_json(&result->gpu_results[i], result->elapsed_ns));
    json_t *document = json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:I, s:f, s:f, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "streams_of",
        report->streams, "profile", input->profile->name, "backend", report->options->program.backend,
        "method", report->options->plan->method->name, "copied", (int)report->options->copied, "streams",
        (json_int_t)input->count, "elapsed_s", (double)result->elapsed_ns / 1e9, "gbit_per_s",
        gbit_per_s(result->cpu.bytes + result->gpu.bytes, result->elapsed_ns), "missed",
        (json_int_t)sum(result->cpu.missed, result->gpu.missed), "wrong",
        (json_int_t)sum(result->cpu.wrong, result->gpu.wrong), "cpu",
        tally_json(&result->cpu, result->elapsed_ns), "gpu", tally_json(&result->gpu, result->elapsed_ns),
        "gpus", gpus, "generator_cpu_percent",
        shares_json(result->generator_cpu_ns, result->generators, result->elapsed_ns), "worker_cpu_percent",
        shares_json(result->worker_cpu_ns, result->workers, result->elapsed_ns), "made_late",
        (json_int_t)result->started_late_packets);

    return bench_document_print(document, error);
}
