#include "bench/gpu/report.h"

#include "bench/pipeline/pipeline.h"

#include <math.h>

#define DRIFT_MOST 0.05 /* beyond, the card was in another state at the end */
#define APART_MOST 0.05 /* beyond, one entry for all cards wastes what the faster ones could do */

static double gb_per_s(uint64_t bytes, core_ns ns)
{
    return (double)bytes / (double)ns;
}

static double micro(core_ns ns)
{
    return (double)ns / CORE_NS_PER_US;
}

static void tables_report(FILE *report, const struct config_profile_gpu *gpu)
{
    const struct config_profile_copy *least = &gpu->copies[0], *most = &gpu->copies[gpu->copy_count - 1];

    fprintf(report, "  copies of %llu bytes, us: up %.1f, down %.1f; busy %.1f, %.1f\n",
            (unsigned long long)least->bytes, micro(least->up_ns), micro(least->down_ns),
            micro(least->up_busy_ns), micro(least->down_busy_ns));
    fprintf(report,
            "  copies of %llu bytes, GB/s: up %.2f, down %.2f; busy %.2f, %.2f; each way at once %.2f\n",
            (unsigned long long)most->bytes, gb_per_s(most->bytes, most->up_ns),
            gb_per_s(most->bytes, most->down_ns), gb_per_s(most->bytes, most->up_busy_ns),
            gb_per_s(most->bytes, most->down_busy_ns), bench_pipeline_copy_limit(gpu) / 1e9);
    fprintf(report, "  kernel: %.2f GB/s on %u SMs, one job alone on each %.2f, launch %.1f us\n",
            (double)gpu->sm_bytes_per_s * gpu->sms / 1e9, gpu->sms,
            (double)gpu->sm_bytes_per_s * gpu->sms * gpu->utilisation[0].share_ppm / 1e15,
            micro(gpu->launch_ns));
}

static void margin_report(FILE *report, const char *what, const struct bench_gpu_margin *margin)
{
    fprintf(report,
            "  margin of %s %.2f %%: of %u times of 100 us and more, 999 of 1000 were not above the table by "
            "more than %.2f %%, none by more than %.2f %%; at the end %+.2f %% beside the beginning\n",
            what, margin->ppm / 1e4, margin->times, 100 * margin->seen, 100 * margin->longest,
            100 * margin->drift);
    if (margin->exceeded)
        fprintf(report,
                "  warning: no margin covers that of %s; the profile is NOT safe: end whatever else uses the "
                "card or the processor, and calibrate again\n",
                what);
    if (fabs(margin->drift) > DRIFT_MOST)
        fprintf(
            report,
            "  warning: %s took %.1f %% %s at the end than in the beginning; the margin covers it, and the "
            "profile promises less: see what slows the card (nvidia-smi -q -d PERFORMANCE,TEMPERATURE), "
            "lock its clocks (nvidia-smi -lgc) or give it time (--gpu-seconds), and calibrate again\n",
            what, 100 * fabs(margin->drift), margin->drift > 0 ? "longer" : "less");
}

static void health_report(FILE *report, const struct bench_gpu_health *health)
{
    char reasons[160];
    if (health->readings == 0) {
        fprintf(report, "  clocks and heat are not known%s%s\n", health->why.text[0] != '\0' ? ": " : "",
                health->why.text);
        return;
    }
    fprintf(report, "  clock of the SMs %u to %u MHz, at most %d C, held down by: %s (%u readings)\n",
            health->least_mhz, health->most_mhz, health->celsius,
            gpu_nvml_reasons_text(health->reasons, reasons, sizeof reasons), health->readings);
    if ((health->reasons & GPU_NVML_THROTTLED) != 0)
        fprintf(
            report,
            "  warning: the card was held down while it was measured (%s); the profile has the times that "
            "it took then: see that it is cooled and fed as it will be, and calibrate again\n",
            gpu_nvml_reasons_text(health->reasons & GPU_NVML_THROTTLED, reasons, sizeof reasons));
}

void bench_gpu_report(FILE *report, const struct bench_gpu_calibration *calibration,
                      const struct gpu_device_facts *facts)
{
    const struct config_profile_gpu *gpu = &calibration->gpu;

    fprintf(report, "%u x %s, driver %s, kernel %s\n", gpu->count, facts->name, facts->driver, facts->kernel);
    tables_report(report, gpu);
    fprintf(report, "  a batch waits %.1f us to be copied and %.1f us to be noticed (999 of 1000)\n",
            micro(calibration->start_ns), micro(calibration->tell_ns));
    margin_report(report, "copies", &calibration->copies);
    margin_report(report, "kernels", &calibration->kernels);
    if (calibration->model_least <= calibration->model_most)
        fprintf(
            report,
            "  kernels of unequal jobs took %+.1f to %+.1f %% beside the model's time, without its margin\n",
            100 * calibration->model_least, 100 * calibration->model_most);
    health_report(report, &calibration->health);
    fprintf(report, "  %u shapes, %u of them unsettled, half of the times within %.1f %%\n",
            calibration->shapes, calibration->unsettled, 100 * calibration->spread_worst);
    if (calibration->apart > APART_MOST)
        fprintf(report,
                "  warning: the %u cards differ: card %u of them took %.1f %% longer than another one; the "
                "profile "
                "has the longest times for all: see its slot and link (nvidia-smi topo -m, nvidia-smi -q -d "
                "CLOCK)\n",
                gpu->count, calibration->apart_card, 100 * calibration->apart);
    if (calibration->raised > 0)
        fprintf(
            report,
            "  warning: %u figures of kernels were impossible, for the machine was busy, and were raised; "
            "the profile is safe, but promises less: calibrate again, with nothing else running\n",
            calibration->raised);
}
