#include "bench/figures.h"
#include "bench/pictures.h"

#include "perfmodel/gpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TABLE1_BYTES (UINT64_C(16) << 20) /* where the copies of the profile reach their maximum */
enum { CONST = 0, EXP = BENCH_FIGURES_WORKLOADS - 1 }; /* of bench_figures_workloads */

#define SAMPLE        500
#define SAMPLE_FIG12B 200 /* as in the paper */

static double gbit(double bits_per_s)
{
    return bits_per_s / 1e9;
}

static double ms(core_ns time_ns)
{
    return (double)time_ns / 1e6;
}

/* An empty field for what is not a number. */
static void put(FILE *file, double value, int digits)
{
    if (isnan(value))
        fputc(',', file);
    else
        fprintf(file, ",%.*f", digits, value);
}

enum quantity { TOTAL, GPU, SHORTEST, SHARE_OF_BOUND };

/* Only of the total does a method that places nothing have one. */
static bool has(size_t method, enum quantity quantity)
{
    return quantity == TOTAL || partition_plan_methods[method].places;
}

static void put_method_names(const struct bench_figures *figures, FILE *file, enum quantity quantity)
{
    for (size_t m = 0; m < figures->method_count; m++)
        if (has(m, quantity))
            fprintf(file, ",%s", partition_plan_methods[m].name);
    fputc('\n', file);
}

/* ---- everything, a line a cell ---- */

static void put_cell(FILE *file, const struct partition_plan_method *method,
                     const struct bench_figures_cell *cell)
{
    fprintf(file, ",%s,%zu", method->name, cell->streams);
    put(file, gbit(cell->total_bits_per_s), 4);
    put(file, method->places ? gbit(cell->cpu_bits_per_s) : NAN, 4);
    put(file, method->places ? gbit(cell->gpu_bits_per_s) : NAN, 4);
    put(file, cell->gpus.used > 0 ? ms(cell->gpus.period_low_ns) : NAN, 4);
    put(file, cell->gpus.used > 0 ? ms(cell->gpus.period_high_ns) : NAN, 4);
    put(file, cell->gpus.used > 0 ? ms(cell->gpus.shortest_ns) : NAN, 4);
    put(file, cell->below_bound_percent, 2);
    fprintf(file, ",%s,%zu,%d\n", perfmodel_limit_name(cell->binding), cell->refused_below, cell->whole_pool);
}

static core_status write_capacity(const struct bench_figures *figures, struct core_error *error)
{
    struct bench_csv csv;
    core_status status = bench_csv_open(figures->options.output.folder, &csv, error, "capacity");

    if (status != CORE_OK)
        return status;
    fputs("rules,workload,gpus,method,streams,total_gbit_per_s,cpu_gbit_per_s,gpu_gbit_per_s,period_low_ms,"
          "period_high_ms,d_min_ms,below_bound_percent,binding,refused_below,whole_pool\n",
          csv.file);
    for (int rules = 0; rules < BENCH_FIGURES_RULES; rules++)
        for (int w = 0; w < BENCH_FIGURES_WORKLOADS; w++)
            for (uint32_t g = 0; g < figures->options.gpus; g++)
                for (size_t m = 0; m < figures->method_count; m++) {
                    fprintf(csv.file, "%s,%s,%u", bench_figures_rules[rules], bench_figures_workloads[w],
                            g + 1);
                    put_cell(csv.file, &partition_plan_methods[m], &figures->cells[rules][w][g][m]);
                }
    return bench_csv_close(&csv, error);
}

/* ---- one figure a file: a column a method ---- */

static double quantity_of(const struct bench_figures_cell *cell, enum quantity quantity)
{
    switch (quantity) {
    case TOTAL:
        return gbit(cell->total_bits_per_s);
    case GPU:
        return gbit(cell->gpu_bits_per_s);
    case SHORTEST:
        return cell->gpus.used > 0 ? ms(cell->gpus.shortest_ns) : NAN;
    case SHARE_OF_BOUND:
        break;
    }
    return 100 - cell->below_bound_percent;
}

static void put_quantities(const struct bench_figures *figures, FILE *file,
                           const struct bench_figures_cell *cells, enum quantity quantity)
{
    for (size_t m = 0; m < figures->method_count; m++)
        if (has(m, quantity))
            put(file, quantity_of(&cells[m], quantity), 4);
    fputc('\n', file);
}

/* Rows are workloads, on two GPUs as in the paper. */
static core_status write_fig10(const struct bench_figures *figures, int rules, struct core_error *error)
{
    struct bench_csv csv;
    core_status status =
        bench_csv_open(figures->options.output.folder, &csv, error, "fig10-%s", bench_figures_rules[rules]);

    if (status != CORE_OK)
        return status;
    fputs("workload", csv.file);
    put_method_names(figures, csv.file, TOTAL);
    for (int w = 0; w < BENCH_FIGURES_WORKLOADS && figures->options.gpus >= 2; w++) {
        fputs(bench_figures_workloads[w], csv.file);
        put_quantities(figures, csv.file, figures->cells[rules][w][1], TOTAL);
    }
    return bench_csv_close(&csv, error);
}

/* Rows are numbers of GPUs. */
static core_status write_scaling(const struct bench_figures *figures, const char *name, int rules,
                                 int workload, enum quantity quantity, struct core_error *error)
{
    struct bench_csv csv;
    core_status status = bench_csv_open(figures->options.output.folder, &csv, error, "%s-%s", name,
                                        bench_figures_rules[rules]);

    if (status != CORE_OK)
        return status;
    fputs("gpus", csv.file);
    put_method_names(figures, csv.file, quantity);
    for (uint32_t g = 0; g < figures->options.gpus; g++) {
        fprintf(csv.file, "%u", g + 1);
        put_quantities(figures, csv.file, figures->cells[rules][workload][g], quantity);
    }
    return bench_csv_close(&csv, error);
}

static core_status write_scalings(const struct bench_figures *figures, int rules, struct core_error *error)
{
    core_status status = write_scaling(figures, "fig11", rules, CONST, TOTAL, error);

    if (status == CORE_OK)
        status = write_scaling(figures, "fig12a-total", rules, EXP, TOTAL, error);
    if (status == CORE_OK)
        status = write_scaling(figures, "fig12a-gpu", rules, EXP, GPU, error);
    if (status == CORE_OK)
        status = write_scaling(figures, "fig12c", rules, EXP, SHORTEST, error);
    return status;
}

/* Of all workloads in one file. */
static core_status write_bounds(const struct bench_figures *figures, int rules, struct core_error *error)
{
    struct bench_csv csv;
    core_status status =
        bench_csv_open(figures->options.output.folder, &csv, error, "bound-%s", bench_figures_rules[rules]);

    if (status != CORE_OK)
        return status;
    fputs("workload,gpus", csv.file);
    put_method_names(figures, csv.file, SHARE_OF_BOUND);
    for (int w = 0; w < BENCH_FIGURES_WORKLOADS; w++)
        for (uint32_t g = 0; g < figures->options.gpus; g++) {
            fprintf(csv.file, "%s,%u", bench_figures_workloads[w], g + 1);
            put_quantities(figures, csv.file, figures->cells[rules][w][g], SHARE_OF_BOUND);
        }
    return bench_csv_close(&csv, error);
}

/* ---- streams ---- */

static void put_stream(FILE *file, const struct core_stream_spec *spec)
{
    fprintf(file, "%.4f,%.4f", core_stream_rate_bits_per_s(spec) / 1e6, ms(spec->latency_ns));
}

/* Of all workloads in one file. */
static core_status write_workloads(const struct bench_figures *figures, struct core_error *error)
{
    struct bench_csv csv;
    core_status status = bench_csv_open(figures->options.output.folder, &csv, error, "fig10-workloads");

    if (status != CORE_OK)
        return status;
    fputs("workload,rate_mbit_per_s,deadline_ms\n", csv.file);
    for (int w = 0; w < BENCH_FIGURES_WORKLOADS; w++)
        for (size_t i = 0; i < SAMPLE && i < figures->pools[w].count; i++) {
            fprintf(csv.file, "%s,", bench_figures_workloads[w]);
            put_stream(csv.file, &figures->pools[w].specs[i]);
            fputc('\n', csv.file);
        }
    return bench_csv_close(&csv, error);
}

static core_status write_fig12b(const struct bench_figures *figures, struct core_error *error)
{
    const struct bench_pool *pool = &figures->pools[EXP];
    struct bench_csv csv;
    core_status status = bench_csv_open(figures->options.output.folder, &csv, error, "fig12b");

    if (status != CORE_OK)
        return status;
    fputs("rate_mbit_per_s,deadline_ms\n", csv.file);
    for (size_t i = 0; i < SAMPLE_FIG12B && i < pool->count; i++) {
        put_stream(csv.file, &pool->specs[i]);
        fputc('\n', csv.file);
    }
    return bench_csv_close(&csv, error);
}

/* ---- Fig. 7 ---- */

static core_status plan_fig7(const struct bench_figures *figures, const struct bench_pool *pool, int rules,
                             size_t method, struct partition_plan **plan, struct core_error *error)
{
    const struct partition_plan_input input = {.specs = pool->specs,
                                               .count = pool->count,
                                               .profile = &figures->machine->profile,
                                               .workers = figures->machine->workers,
                                               .paper = rules == 0,
                                               .seed = figures->options.output.seed};
    return partition_plan_make(&partition_plan_methods[method], &input, plan, error);
}

static void put_rectangle(FILE *file, const char *rules, uint32_t gpus, const struct partition_plan *plan)
{
    const struct partition_plan_rectangle *rectangle = &plan->rectangle;

    fprintf(file, "%s,%u,%s,%d", rules, gpus, plan->method->name, plan->accepted);
    put(file, rectangle->used ? rectangle->rate_low * 8e-6 : NAN, 3);
    put(file, rectangle->used ? rectangle->rate_high * 8e-6 : NAN, 3);
    put(file, rectangle->used ? ms(rectangle->latency_low_ns) : NAN, 3);
    put(file, rectangle->used ? ms(rectangle->latency_high_ns) : NAN, 3);
    fprintf(file, ",%s,%.2f\n", perfmodel_limit_name(plan->binding),
            plan->accepted ? (double)plan->headroom_ppb / 1e7 : 0);
}

static core_status write_fig7_streams(const struct bench_figures *figures, const struct bench_pool *pool,
                                      const struct partition_plan *plan, const char *rules, uint32_t gpus,
                                      struct core_error *error)
{
    struct bench_csv csv;
    core_status status = bench_csv_open(figures->options.output.folder, &csv, error, "fig07-%s-%s-%u", rules,
                                        plan->method->name, gpus);

    if (status != CORE_OK)
        return status;
    fputs("rate_mbit_per_s,deadline_ms,gpu\n", csv.file); /* gpu: 0 is the CPU, g + 1 is GPU g */
    for (size_t i = 0; i < pool->count; i++) {
        const bool worker = !partition_unit_is_gpu(plan->workers, plan->unit[i]);
        put_stream(csv.file, &pool->specs[i]);
        fprintf(csv.file, ",%u\n", worker ? 0 : partition_unit_gpu(plan->workers, plan->unit[i]) + 1);
    }
    return bench_csv_close(&csv, error);
}

bool bench_figures_fig7_drawn(int rules, uint32_t gpus, const struct partition_plan_method *method)
{
    const bool papers = method == partition_plan_methods;

    return rules == 0 ? gpus == 1 && papers : gpus == 2 && (papers || strcmp(method->name, "bands") == 0);
}

static core_status write_fig7_plans(struct bench_figures *figures, const struct bench_pool *pool, int rules,
                                    uint32_t gpus, FILE *file, struct core_error *error)
{
    core_status status = CORE_OK;

    for (size_t m = 0; status == CORE_OK && m < figures->method_count; m++) {
        struct partition_plan *plan = NULL;
        if (!partition_plan_methods[m].places)
            continue;
        status = plan_fig7(figures, pool, rules, m, &plan, error);
        if (status != CORE_OK)
            break;
        put_rectangle(file, bench_figures_rules[rules], gpus, plan);
        if (plan->accepted && bench_figures_fig7_drawn(rules, gpus, plan->method))
            status = write_fig7_streams(figures, pool, plan, bench_figures_rules[rules], gpus, error);
        partition_plan_destroy(plan);
    }
    return status;
}

static core_status write_fig7(struct bench_figures *figures, struct core_error *error)
{
    struct bench_pool pool;
    struct bench_csv csv;
    const struct bench_pool_request request = {
        .workload = "fig7", .count = figures->options.streams, .seed = figures->options.output.seed};
    core_status status = bench_pool_open(&pool, &request, error);

    if (status != CORE_OK)
        return status;
    status = bench_csv_open(figures->options.output.folder, &csv, error, "fig07");
    if (status == CORE_OK) {
        fputs("rules,gpus,method,accepted,rate_low_mbit_per_s,rate_high_mbit_per_s,deadline_low_ms,"
              "deadline_high_ms,binding,headroom_percent\n",
              csv.file);
        for (int rules = 0; rules < BENCH_FIGURES_RULES; rules++)
            for (int gpus = 1; status == CORE_OK && gpus <= 2; gpus++) {
                status = bench_machine_set(figures->machine, gpus, BENCH_MACHINE_AS_PROFILE, error);
                if (status == CORE_OK)
                    status = write_fig7_plans(figures, &pool, rules, (uint32_t)gpus, csv.file, error);
            }
        core_status closed = bench_csv_close(&csv, error);
        status = status == CORE_OK ? closed : status;
    }
    bench_pool_free(&pool);
    return status;
}

/* ---- Table 1 ---- */

static void put_rates(FILE *file, const struct config_profile_gpu *card, bool busy, unsigned cards)
{
    const double up_ns = (double)perfmodel_copy_ns(card, PERFMODEL_UP, busy, TABLE1_BYTES);
    const double down_ns = (double)perfmodel_copy_ns(card, PERFMODEL_DOWN, busy, TABLE1_BYTES);
    const double bytes = cards * (double)TABLE1_BYTES;
    const double kernel = cards * (double)card->sms * (double)card->sm_bytes_per_s / 1e9;

    fprintf(file, "%u,%.4f,%.4f,%.4f,%.4f,%.4f\n", cards, bytes / down_ns, bytes / up_ns,
            bytes / fmax(up_ns, down_ns), bytes / (up_ns + down_ns), kernel);
}

/* GB/s of the profile's copies and kernel, without the margin; in turns as its one copy engine must. */
static core_status write_table1(const struct bench_figures *figures, struct core_error *error)
{
    const struct config_profile_gpu *card = &figures->machine->file->gpus[0];
    struct bench_csv csv;
    core_status status = bench_csv_open(figures->options.output.folder, &csv, error, "table1");

    if (status != CORE_OK)
        return status;
    fputs("gpus,down,up,slower_of_both,in_turns,kernel\n", csv.file);
    put_rates(csv.file, card, false, 1);
    put_rates(csv.file, card, true, 2);
    return bench_csv_close(&csv, error);
}

core_status bench_figures_write(struct bench_figures *figures, struct core_error *error)
{
    core_status status = write_capacity(figures, error);

    for (int rules = 0; status == CORE_OK && rules < BENCH_FIGURES_RULES; rules++) {
        status = write_fig10(figures, rules, error);
        if (status == CORE_OK)
            status = write_scalings(figures, rules, error);
        if (status == CORE_OK)
            status = write_bounds(figures, rules, error);
    }
    if (status == CORE_OK)
        status = write_workloads(figures, error);
    if (status == CORE_OK)
        status = write_fig12b(figures, error);
    if (status == CORE_OK)
        status = write_table1(figures, error);
    return status == CORE_OK ? write_fig7(figures, error) : status;
}
