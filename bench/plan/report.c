#include "bench/plan/report.h"

#include "bench/document.h"

#include <stdio.h>

static void print_head(const struct bench_setup *setup, const struct bench_machine *machine)
{
    printf("%s: %u GPUs, %u CPU workers; workload %s, seed %llu; %s rules; one core\n\n",
           machine->profile.name, bench_machine_gpus(machine), machine->workers, setup->workload,
           (unsigned long long)setup->seed, setup->paper ? "the paper's" : "the server's");
    puts("Plans anew, milliseconds:");
    printf("  %-14s %8s  %-8s %9s %6s %9s %9s %9s %9s %9s\n", "method", "streams", "", "slowness", "plans",
           "half", "p99", "least", "most", "half, CPU");
    fflush(stdout);
}

core_status bench_plan_report_begin(struct bench_plan_report *report, const struct bench_setup *setup,
                                    const struct bench_machine *machine, struct core_error *error)
{
    *report = (struct bench_plan_report){.document = NULL};
    if (!setup->json) {
        print_head(setup, machine);
        return CORE_OK;
    }
    report->document = json_pack("{s:s,s:i,s:i,s:s,s:I,s:b,s:[],s:[],s:[]}", "profile", machine->profile.name,
                                 "gpus", (int)bench_machine_gpus(machine), "workers", (int)machine->workers,
                                 "workload", setup->workload, "seed", (json_int_t)setup->seed, "paper",
                                 (int)setup->paper, "cold", "skipped", "standing");
    return report->document != NULL
               ? CORE_OK
               : core_error_set(error, CORE_INVALID, "the names of profile and workload must be UTF-8");
}

static json_t *percentiles(struct bench_samples *samples)
{
    return json_pack("{s:f,s:f,s:f,s:f}", "min", bench_samples_percentile(samples, 0), "p50",
                     bench_samples_percentile(samples, 50), "p99", bench_samples_percentile(samples, 99),
                     "max", bench_samples_percentile(samples, 100));
}

static json_t *percentiles_if_any(struct bench_samples *samples)
{
    return samples->count > 0 ? percentiles(samples) : json_null();
}

static void append(struct bench_plan_report *report, const char *list, json_t *row)
{
    json_array_append_new(json_object_get(report->document, list), row);
}

void bench_plan_report_cold(struct bench_plan_report *report, struct bench_plan_timing *timing)
{
    if (report->document != NULL) {
        append(report, "cold",
               json_pack("{s:s,s:I,s:b,s:f,s:i,s:o,s:o}", "method", timing->of->method->name, "streams",
                         (json_int_t)timing->of->streams, "accepted", (int)timing->accepted, "slowness",
                         timing->slowness, "plans", (int)timing->wall.count, "wall_ms",
                         percentiles(&timing->wall), "cpu_ms", percentiles(&timing->cpu)));
        return;
    }
    printf("  %-14s %8zu  %-8s %9.3g %6u %9.3f %9.3f %9.3f %9.3f %9.3f\n", timing->of->method->name,
           timing->of->streams, timing->accepted ? "accepted" : "refused", timing->slowness,
           timing->wall.count, bench_samples_percentile(&timing->wall, 50),
           bench_samples_percentile(&timing->wall, 99), bench_samples_percentile(&timing->wall, 0),
           bench_samples_percentile(&timing->wall, 100), bench_samples_percentile(&timing->cpu, 50));
    fflush(stdout);
}

void bench_plan_report_skipped(struct bench_plan_report *report, const struct bench_plan_case *of, double ms)
{
    if (report->document != NULL)
        append(report, "skipped",
               json_pack("{s:s,s:I,s:f}", "method", of->method->name, "streams", (json_int_t)of->streams,
                         "fewer_ms", ms));
    else
        printf("  %-14s %8zu  not asked: it took %.0f ms for fewer (see --limit)\n", of->method->name,
               of->streams, ms);
}

static void print_samples(const struct bench_standing_times *times, const char *what,
                          struct bench_samples *samples)
{
    if (samples->count > 0)
        printf("  %8zu %9.3g  %-28s %8u %9.2f %9.2f %9.2f\n", times->streams, times->slowness, what,
               samples->count, bench_samples_percentile(samples, 50), bench_samples_percentile(samples, 99),
               bench_samples_percentile(samples, 100));
}

void bench_plan_report_standing(struct bench_plan_report *report, struct bench_standing_times *times)
{
    if (report->document != NULL) {
        append(report, "standing",
               json_pack("{s:I,s:f,s:i,s:o,s:o,s:o,s:o,s:o,s:I,s:o,s:o,s:o}", "streams",
                         (json_int_t)times->streams, "slowness", times->slowness, "accepted",
                         (int)times->admit.count, "fill_us", percentiles(&times->fill), "admit_us",
                         percentiles(&times->admit), "release_us", percentiles(&times->release), "refuse_us",
                         percentiles(&times->refuse), "change_us", percentiles_if_any(&times->change),
                         "guaranteed", (json_int_t)times->guaranteed, "guaranteed_admit_us",
                         percentiles_if_any(&times->backed), "beside_us", percentiles_if_any(&times->beside),
                         "guaranteed_refuse_us", percentiles(&times->unbacked)));
        return;
    }
    if (!report->standing) {
        puts("\nOne stream beside those that stand, microseconds:");
        printf("  %8s %9s  %-28s %8s %9s %9s %9s\n", "standing", "slowness", "", "times", "half", "p99",
               "most");
    }
    report->standing = true;
    print_samples(times, "each of these, as it came", &times->fill);
    print_samples(times, "one more", &times->admit);
    print_samples(times, "one less", &times->release);
    print_samples(times, "a refusal with both offers", &times->refuse);
    print_samples(times, "half the rate, and settled", &times->change);
    if (times->guaranteed > 0)
        printf("  with %zu guaranteed streams more:\n", times->guaranteed);
    print_samples(times, "one more, guaranteed", &times->backed);
    print_samples(times, "one more, standard", &times->beside);
    print_samples(times, "a refusal, guaranteed", &times->unbacked);
    fflush(stdout);
}

core_status bench_plan_report_end(struct bench_plan_report *report, struct core_error *error)
{
    if (report->document == NULL)
        return CORE_OK;
    json_t *document = report->document;
    report->document = NULL;
    return bench_document_print(document, error);
}
