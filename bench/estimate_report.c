#include "bench/estimate_report.h"

#include "bench/document.h"

#include <math.h>
#include <stdio.h>

static double ms(core_ns time_ns)
{
    return (double)time_ns / 1e6;
}

static double gbit(double bits_per_s)
{
    return bits_per_s / 1e9;
}

/* How far below the bound, in percent of it; NaN without one. */
static double below_bound(const struct bench_estimate *estimate, const struct bench_capacity *capacity)
{
    if (estimate->bound_bits_per_s <= 0)
        return NAN;
    return 100 * (1 - capacity->total_bits_per_s / estimate->bound_bits_per_s);
}

/* ---- for people ---- */

static void print_row(const struct bench_estimate *estimate, const struct bench_capacity *capacity)
{
    const struct bench_capacity_gpus gpus = bench_capacity_gpus(capacity);
    const double below = below_bound(estimate, capacity);
    char period[32] = "-", shortest[32] = "-", distance[32] = "-";

    printf("%-14s %8zu %9.3f", capacity->method->name, capacity->streams, gbit(capacity->total_bits_per_s));
    if (capacity->method->places)
        printf(" %9.3f %9.3f", gbit(capacity->cpu_bits_per_s), gbit(capacity->gpu_bits_per_s));
    else
        printf(" %9s %9s", "-", "-");
    if (gpus.used > 0) {
        snprintf(shortest, sizeof shortest, "%.3f", ms(gpus.shortest_ns));
        if (gpus.period_low_ns == gpus.period_high_ns)
            snprintf(period, sizeof period, "%.3f", ms(gpus.period_low_ns));
        else
            snprintf(period, sizeof period, "%.3f..%.3f", ms(gpus.period_low_ns), ms(gpus.period_high_ns));
    }
    if (capacity->method->places && !isnan(below))
        snprintf(distance, sizeof distance, "%.1f %%", below);
    printf(" %15s %8s %8s %9.2f ms\n", period, shortest, distance, ms(capacity->planning_ns));
}

static void print_rectangle(const struct partition_plan_rectangle *rectangle)
{
    printf("    on the GPUs: rates %.3f to %.3f Mbit/s, deadlines %.3f to %.3f ms\n",
           rectangle->rate_low * 8e-6, rectangle->rate_high * 8e-6, ms(rectangle->latency_low_ns),
           ms(rectangle->latency_high_ns));
}

static void print_why(const struct bench_capacity *capacity)
{
    printf("  %s\n", capacity->method->name);
    if (capacity->whole_pool)
        printf("    all of the pool is carried: this is a lower figure than the true one; enlarge --pool\n");
    else
        printf("    one stream more: %s: %s\n", perfmodel_limit_name(capacity->binding), capacity->reason);
    if (capacity->plan->rectangle.used)
        print_rectangle(&capacity->plan->rectangle);
    if (capacity->refused_below != 0)
        printf("    not monotone: %zu streams are refused, though fewer\n", capacity->refused_below);
}

void bench_estimate_print(const struct bench_estimate *estimate)
{
    printf("%s: %u GPUs, %u CPU workers; %s rules\n", estimate->machine->profile.name,
           bench_machine_gpus(estimate->machine), estimate->machine->workers,
           estimate->paper ? "the paper's" : "the server's");
    printf("workload %s, the first N of a pool of %zu, seed %llu\n\n", estimate->workload, estimate->pool,
           (unsigned long long)estimate->seed);
    printf("%-14s %8s %9s %9s %9s %15s %8s %8s %12s\n", "method", "streams", "total", "CPU", "GPU", "period",
           "d_min", "below", "planned");
    printf("%-14s %8s %9s %9s %9s %15s %8s %8s %12s\n", "", "N", "Gbit/s", "Gbit/s", "Gbit/s", "ms", "ms",
           "bound", "in");
    for (size_t i = 0; i < estimate->count; i++)
        print_row(estimate, &estimate->capacities[i]);
    putchar('\n');
    for (size_t i = 0; i < estimate->count; i++)
        print_why(&estimate->capacities[i]);
}

/* ---- JSON ---- */

static json_t *gpus_json(const struct partition_plan *plan)
{
    json_t *list = json_array();

    for (uint32_t g = 0; g < plan->gpus; g++) {
        const struct partition_plan_gpu *gpu = &plan->gpu[g];
        json_array_append_new(
            list,
            json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "streams", (json_int_t)gpu->streams, "period_ns",
                      (json_int_t)gpu->period_ns, "shortest_ns", (json_int_t)gpu->shortest_ns, "up_ns",
                      (json_int_t)gpu->stages.up_ns, "kernel_ns", (json_int_t)gpu->stages.kernel_ns,
                      "down_ns", (json_int_t)gpu->stages.down_ns, "latency_ns", (json_int_t)gpu->latency_ns));
    }
    return list;
}

static json_t *rectangle_json(const struct partition_plan_rectangle *rectangle)
{
    return json_pack("{s:f,s:f,s:I,s:I}", "rate_low_bits_per_s", rectangle->rate_low * 8,
                     "rate_high_bits_per_s", rectangle->rate_high * 8, "latency_low_ns",
                     (json_int_t)rectangle->latency_low_ns, "latency_high_ns",
                     (json_int_t)rectangle->latency_high_ns);
}

static json_t *capacity_json(const struct bench_estimate *estimate, const struct bench_capacity *capacity)
{
    const double below = below_bound(estimate, capacity);
    json_t *row =
        json_pack("{s:s,s:b,s:I,s:b,s:I,s:f,s:I,s:s,s:s,s:i}", "method", capacity->method->name, "places",
                  (int)capacity->method->places, "streams", (json_int_t)capacity->streams, "whole_pool",
                  (int)capacity->whole_pool, "refused_below", (json_int_t)capacity->refused_below,
                  "total_bits_per_s", capacity->total_bits_per_s, "planning_ns",
                  (json_int_t)capacity->planning_ns, "binding", perfmodel_limit_name(capacity->binding),
                  "reason", capacity->whole_pool ? "" : capacity->reason, "plans", (int)capacity->plans);

    if (row == NULL)
        return NULL;
    if (!isnan(below))
        json_object_set_new(row, "below_bound_percent", json_real(below));
    if (capacity->method->places) {
        json_object_set_new(row, "cpu_bits_per_s", json_real(capacity->cpu_bits_per_s));
        json_object_set_new(row, "gpu_bits_per_s", json_real(capacity->gpu_bits_per_s));
        json_object_set_new(row, "gpus", gpus_json(capacity->plan));
    }
    if (capacity->plan->rectangle.used)
        json_object_set_new(row, "rectangle", rectangle_json(&capacity->plan->rectangle));
    return row;
}

core_status bench_estimate_print_json(const struct bench_estimate *estimate, struct core_error *error)
{
    json_t *document =
        json_pack("{s:s,s:i,s:i,s:s,s:I,s:I,s:b,s:[]}", "profile", estimate->machine->profile.name, "gpus",
                  (int)bench_machine_gpus(estimate->machine), "workers", (int)estimate->machine->workers,
                  "workload", estimate->workload, "pool", (json_int_t)estimate->pool, "seed",
                  (json_int_t)estimate->seed, "paper", (int)estimate->paper, "methods");

    for (size_t i = 0; i < estimate->count; i++) /* appending to what is NULL does nothing */
        json_array_append_new(json_object_get(document, "methods"),
                              capacity_json(estimate, &estimate->capacities[i]));
    return bench_document_print(document, error);
}
