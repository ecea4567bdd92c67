#include "partition/grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS      PARTITION_GRID_ROWS
#define COLUMNS   PARTITION_GRID_COLUMNS
#define COSTS     512 /* c(n) / Phi is kept up to so many jobs on an SM, and beyond taken for a line */
#define KINDS_MAX CONFIG_PROFILE_GPU_KINDS_MAX

struct cell {
    double bytes, jobs;
};

/* What a stream's job depends on, in the order of rates. */
struct ranked {
    core_ns interval_ns;
    uint32_t packet_bytes, burst_packets;
    uint8_t row;
};

struct partition_grid {
    struct partition_problem *problem;
    uint32_t rows, columns;
    size_t row_rank[ROWS + 1], column_rank[COLUMNS + 1];
    struct ranked *ranked;
    double share[ROWS][COLUMNS], share_sum; /* of workers */
    core_ns period_ns, shortest_ns;
    struct cell cell[ROWS][COLUMNS];
    /* of the rows selected */
    struct cell column[COLUMNS];
    double share_before[COLUMNS + 1]; /* in the columns before */
    uint32_t falling[COLUMNS];        /* columns by their mean job */
    /* by kind */
    double cost[KINDS_MAX][COSTS + 1]; /* c(n) / Phi in ns per byte */
};

/* The rank up to which streams, from the front or from the back, fit the workers. */
static size_t fits_front(const struct partition_problem *problem, const uint32_t *order, bool back)
{
    double room = (double)problem->input->workers * PARTITION_SHARE_ONE;
    size_t n = problem->count, k = 0;
    for (; k < n && room > 0; k++)
        room -= (double)problem->share_ppb[order[back ? n - 1 - k : k]];
    return k;
}

static int compare_ranks(const void *a, const void *b)
{
    size_t left = *(const size_t *)a, right = *(const size_t *)b;
    return (left > right) - (left < right);
}

static uint32_t without_twins(size_t *rank, uint32_t count)
{
    uint32_t kept = 1;
    qsort(rank, count, sizeof *rank, compare_ranks);
    for (uint32_t i = 1; i < count; i++)
        if (rank[i] != rank[kept - 1])
            rank[kept++] = rank[i];
    return kept;
}

static void spread(size_t *rank, uint32_t *used, uint32_t parts, size_t from, size_t to)
{
    for (uint32_t i = 0; i < parts; i++)
        rank[(*used)++] = from + (to - from) * i / parts;
}

static void cut(struct partition_grid *grid)
{
    const struct partition_problem *problem = grid->problem;
    size_t n = problem->count, edge;
    uint32_t used = 0;
    edge = fits_front(problem, problem->by_latency, false);
    spread(grid->row_rank, &used, ROWS / 2, 0, edge);
    edge = fits_front(problem, problem->by_latency, true);
    spread(grid->row_rank, &used, ROWS / 8, n - edge, n);
    spread(grid->row_rank, &used, ROWS / 8, 0, n);
    grid->row_rank[used++] = n;
    grid->rows = without_twins(grid->row_rank, used) - 1;
    used = 0;
    edge = fits_front(problem, problem->by_rate, true);
    spread(grid->column_rank, &used, COLUMNS / 2, n - edge, n);
    edge = fits_front(problem, problem->by_rate, false);
    spread(grid->column_rank, &used, COLUMNS / 8, 0, edge);
    spread(grid->column_rank, &used, COLUMNS / 4, 0, n);
    grid->column_rank[used++] = n;
    grid->columns = without_twins(grid->column_rank, used) - 1;
}

static void fill_ranked(struct partition_grid *grid, uint8_t *row_of)
{
    const struct partition_problem *problem = grid->problem;
    for (uint32_t row = 0; row < grid->rows; row++)
        for (size_t k = grid->row_rank[row]; k < grid->row_rank[row + 1]; k++)
            row_of[problem->by_latency[k]] = (uint8_t)row;
    for (uint32_t column = 0; column < grid->columns; column++) {
        for (size_t k = grid->column_rank[column]; k < grid->column_rank[column + 1]; k++) {
            uint32_t i = problem->by_rate[k];
            const struct core_stream_spec *spec = &problem->input->specs[i];
            uint32_t padded = core_stream_padded_bytes(spec->padding, spec->packet_bytes);
            double share = (double)problem->share_ppb[i] / PARTITION_SHARE_ONE;
            grid->ranked[k] =
                (struct ranked){.interval_ns = spec->interval_ns,
                                .packet_bytes = problem->input->paper ? spec->packet_bytes : padded,
                                .burst_packets = spec->burst_packets,
                                .row = row_of[i]};
            grid->share[row_of[i]][column] += share;
            grid->share_sum += share;
        }
    }
}

static void fill_costs(struct partition_grid *grid)
{
    const struct config_profile *profile = grid->problem->input->profile;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++) {
        const struct config_profile_gpu *card = &profile->gpus[kind];
        for (uint32_t n = 1; n <= COSTS; n++) {
            double share = (perfmodel_utilisation_ppm(card, n) + 0.5) / CONFIG_PROFILE_SHARE_PPM;
            grid->cost[kind][n] = n / share / (double)card->sm_bytes_per_s * CORE_NS_PER_S;
        }
    }
}

core_status partition_grid_create(struct partition_problem *problem, struct partition_grid **grid)
{
    struct partition_grid *made = calloc(1, sizeof *made);
    uint8_t *row_of = malloc(problem->count + 1);
    struct ranked *ranked = malloc((problem->count + 1) * sizeof *ranked);
    if (made == NULL || row_of == NULL || ranked == NULL) {
        free(made);
        free(row_of);
        free(ranked);
        return CORE_NO_MEMORY;
    }
    made->problem = problem;
    made->ranked = ranked;
    cut(made);
    fill_ranked(made, row_of);
    fill_costs(made);
    free(row_of);
    *grid = made;
    return CORE_OK;
}

void partition_grid_destroy(struct partition_grid *grid)
{
    if (grid == NULL)
        return;
    free(grid->ranked);
    free(grid);
}

uint32_t partition_grid_rows(const struct partition_grid *grid)
{
    return grid->rows;
}

uint32_t partition_grid_columns(const struct partition_grid *grid)
{
    return grid->columns;
}

size_t partition_grid_row_rank(const struct partition_grid *grid, uint32_t row)
{
    return grid->row_rank[row];
}

size_t partition_grid_column_rank(const struct partition_grid *grid, uint32_t column)
{
    return grid->column_rank[column];
}

static double job_of(const struct ranked *ranked, core_ns period_ns, bool paper)
{
    if (paper)
        return (double)ranked->packet_bytes * (double)period_ns / (double)ranked->interval_ns;
    int64_t more = ranked->interval_ns > period_ns ? 0 : period_ns / ranked->interval_ns;
    return (double)ranked->packet_bytes * (double)(ranked->burst_packets + more);
}

void partition_grid_period(struct partition_grid *grid, core_ns period_ns, core_ns shortest_ns, uint32_t low)
{
    bool paper = grid->problem->input->paper;
    grid->period_ns = period_ns;
    grid->shortest_ns = shortest_ns;
    partition_problem_weigh(grid->problem, period_ns);
    memset(grid->cell, 0, sizeof grid->cell);
    for (uint32_t column = 0; column < grid->columns; column++) {
        for (size_t k = grid->column_rank[column]; k < grid->column_rank[column + 1]; k++) {
            const struct ranked *ranked = &grid->ranked[k];
            if (ranked->row < low)
                continue;
            struct cell *cell = &grid->cell[ranked->row][column];
            cell->bytes += job_of(ranked, period_ns, paper);
            cell->jobs++;
        }
    }
}

static double mean(const struct cell *cell)
{
    return cell->jobs > 0 ? cell->bytes / cell->jobs : 0;
}

void partition_grid_select(struct partition_grid *grid, uint32_t low, uint32_t high)
{
    for (uint32_t column = 0; column < grid->columns; column++) {
        struct cell sum = {0};
        double share = 0;
        for (uint32_t row = low; row < high; row++) {
            sum.bytes += grid->cell[row][column].bytes;
            sum.jobs += grid->cell[row][column].jobs;
            share += grid->share[row][column];
        }
        grid->column[column] = sum;
        grid->share_before[column + 1] = grid->share_before[column] + share;
        /* by insertion: means nearly follow the rates */
        uint32_t at = column;
        for (; at > 0 && mean(&grid->column[grid->falling[at - 1]]) < mean(&sum); at--)
            grid->falling[at] = grid->falling[at - 1];
        grid->falling[at] = column;
    }
}

double partition_grid_worker_load(const struct partition_grid *grid, uint32_t left, uint32_t right)
{
    double inside = grid->share_before[right] - grid->share_before[left];
    return (grid->share_sum - inside) / grid->problem->input->workers;
}

static double cost_of(const struct partition_grid *grid, uint32_t kind, double jobs)
{
    if (jobs >= COSTS)
        return grid->cost[kind][COSTS] * jobs / COSTS;
    return grid->cost[kind][(uint32_t)ceil(jobs)];
}

/* Of one SM with `part` of the jobs of every column: sum of (w - w') c(n), from the longest jobs down. */
static double kernel_ns(const struct partition_grid *grid, uint32_t left, uint32_t right, uint32_t kind,
                        double part)
{
    double jobs = 0, above = 0, sum_ns = 0;
    for (uint32_t k = 0; k < grid->columns; k++) {
        uint32_t column = grid->falling[k];
        if (column < left || column >= right || grid->column[column].jobs == 0)
            continue;
        double bytes = mean(&grid->column[column]);
        sum_ns += jobs > 0 ? (above - bytes) * cost_of(grid, kind, jobs) : 0;
        above = bytes;
        jobs += grid->column[column].jobs * part;
    }
    return sum_ns + (jobs > 0 ? above * cost_of(grid, kind, jobs) : 0);
}

static core_ns in_ns(double ns)
{
    return ns < 0x1p61 ? (core_ns)ns : INT64_C(1) << 61; /* two of them still add up */
}

/* The fullest of what one card with `part` of all jobs has. */
static double card_load(const struct partition_grid *grid, uint32_t left, uint32_t right, uint32_t kind,
                        double part)
{
    const struct config_profile *profile = grid->problem->input->profile;
    const struct config_profile_gpu *card = &profile->gpus[kind];
    bool busy = partition_problem_busy(grid->problem, card), paper = grid->problem->input->paper;
    double margin = 1 + profile->margins.percent / 100.0, bytes = 0, jobs = 0;
    for (uint32_t column = left; column < right; column++) {
        bytes += grid->column[column].bytes * part;
        jobs += grid->column[column].jobs * part;
    }
    if (jobs == 0)
        return 0;
    uint64_t up_bytes = (uint64_t)(bytes + jobs * card->job_bytes);
    struct perfmodel_stages stages = {
        .up_ns = in_ns(margin * (double)perfmodel_copy_ns(card, PERFMODEL_UP, busy, up_bytes)),
        .down_ns = in_ns(margin * (double)perfmodel_copy_ns(card, PERFMODEL_DOWN, busy, (uint64_t)bytes)),
        .kernel_ns =
            in_ns(margin * ((double)card->launch_ns + kernel_ns(grid, left, right, kind, part / card->sms)))};
    core_ns copies_ns = card->copy_engines < 2 && !paper ? stages.up_ns + stages.down_ns
                        : stages.up_ns > stages.down_ns  ? stages.up_ns
                                                         : stages.down_ns;
    core_ns stage_ns = copies_ns > stages.kernel_ns ? copies_ns : stages.kernel_ns;
    double load = (double)stage_ns / (double)grid->period_ns;
    if (!paper)
        load = fmax(load, (double)perfmodel_gpu_latency_ns(card, &stages, grid->period_ns) /
                              (double)grid->shortest_ns);
    double arenas = (double)perfmodel_gpu_memory_bytes(card, (uint64_t)bytes, (size_t)jobs);
    load = fmax(load, arenas / (double)card->memory_bytes);
    return fmax(load, arenas / part / (double)(profile->pinned_bytes + 1));
}

double partition_grid_gpu_load(const struct partition_grid *grid, uint32_t left, uint32_t right)
{
    const struct partition_problem *problem = grid->problem;
    double sum = 0, worst = 0;
    for (uint32_t g = 0; g < problem->gpus; g++)
        sum += (double)problem->capacity[g];
    for (uint32_t g = 0; g < problem->gpus; g++) {
        const struct config_profile_gpu *card = problem->card[g];
        if ((g > 0 && card == problem->card[g - 1]) || problem->capacity[g] == 0)
            continue;
        uint32_t kind = (uint32_t)(card - problem->input->profile->gpus);
        worst = fmax(worst, card_load(grid, left, right, kind, (double)problem->capacity[g] / sum));
    }
    return worst;
}
