#include "partition/search/grid.h"

#include <math.h>
#include <stdlib.h>

#define ROWS      PARTITION_GRID_ROWS
#define COLUMNS   PARTITION_GRID_COLUMNS
#define WINDOWS   24
#define COSTS     512 /* c(n) / Phi is kept up to so many jobs on an SM, and beyond taken for a line */
#define KINDS_MAX CONFIG_PROFILE_GPU_KINDS_MAX
#define RATE_UNIT 0x1p32 /* of perfmodel/flow.h */
#define OVERLOAD  1e6

/* Over some cells. */
struct sums {
    double streams;
    double burst, rate;     /* P, rho in bytes per ns; paper: the payload's rate */
    double jobs, jobs_rate; /* of perfmodel/flow.h */
    double share;           /* of workers */
    double demand_ns[WINDOWS];
};

struct partition_grid {
    struct partition_problem *problem;
    uint32_t rows, columns;
    size_t row_rank[ROWS + 1], column_rank[COLUMNS + 1];
    double window_ns[WINDOWS];
    double blocking_ns;
    uint64_t job_burst[COLUMNS + 1], job_rate[COLUMNS + 1]; /* greatest in the columns before */
    uint32_t unit_bytes;
    struct sums *before;               /* by row and column: of all rows and columns before */
    double cost[KINDS_MAX][COSTS + 1]; /* paper: c(n) / Phi in ns per byte */
};

/* ---- where the lines are ---- */

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
    spread(grid->row_rank, &used, ROWS / 4, 0, n);
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

/* ---- sums ---- */

static struct sums *before(const struct partition_grid *grid, uint32_t row, uint32_t column)
{
    return &grid->before[row * (grid->columns + 1) + column];
}

/* From the least window in which anything is due to four times the longest deadline; and the blocking of a
 * worker with all kinds of streams. */
static void choose_windows(struct partition_grid *grid)
{
    const struct partition_problem *problem = grid->problem;
    struct perfmodel_cpu_mix mix = {0};
    double least = 1e18, most = 0;
    for (size_t i = 0; i < problem->count && !problem->input->paper; i++) {
        if (problem->share_ppb[i] > PARTITION_SHARE_ONE)
            continue;
        perfmodel_cpu_mix_add(&mix, problem->input->profile->cpu.burst_pieces, &problem->task[i]);
        least = fmin(least, (double)problem->task[i].urgency_ns);
        most = fmax(most, (double)problem->specs[i].latency_ns);
    }
    if (mix.ciphers == 0)
        least = most = 1;
    grid->blocking_ns = 2 * (double)perfmodel_cpu_blocking_ns(problem->input->profile, &mix);
    for (int z = 0; z < WINDOWS; z++)
        grid->window_ns[z] = least * pow(4 * most / least, z / (WINDOWS - 1.0));
}

/* dbf at the windows, give or take the pieces of one packet. */
static void add_demand(const struct partition_grid *grid, const struct perfmodel_cpu_task *task,
                       double charge_ns, struct sums *sums)
{
    double by_spacing = 1.0 / (double)task->spacing_ns, by_interval = 1.0 / (double)task->interval_ns;
    double packet_ns = charge_ns * task->pieces;
    for (int z = 0; z < WINDOWS; z++) {
        double x = grid->window_ns[z] - (double)task->urgency_ns;
        if (x < 0)
            continue;
        double spaced = 1 + (double)(int64_t)(x * by_spacing);
        double policed = task->burst_packets + (double)(int64_t)(x * by_interval);
        sums->demand_ns[z] += packet_ns * (spaced < policed ? spaced : policed);
    }
}

static void add_stream(struct partition_grid *grid, size_t i, core_ns surcharge_ns, struct sums *sums)
{
    const struct partition_problem *problem = grid->problem;
    const struct core_stream_spec *spec = &problem->specs[i];
    const struct perfmodel_flow_load load = partition_problem_load(problem, i);
    uint32_t padded = core_stream_packet_bytes(spec);
    double bytes = problem->input->paper ? spec->packet_bytes : padded;
    sums->streams++;
    sums->jobs += (double)load.jobs;
    sums->jobs_rate += (double)load.jobs_rate;
    sums->burst += (double)padded * spec->burst_packets;
    sums->rate += bytes / (double)spec->interval_ns;
    sums->share += (double)problem->share_ppb[i] / PARTITION_SHARE_ONE;
    if (!problem->input->paper && problem->share_ppb[i] <= PARTITION_SHARE_ONE)
        add_demand(grid, &problem->task[i], (double)(problem->task[i].cost_ns + surcharge_ns), sums);
}

static void fill_cells(struct partition_grid *grid, const uint8_t *row_of)
{
    const struct partition_problem *problem = grid->problem;
    core_ns surcharge_ns = perfmodel_cpu_surcharge_ns(problem->input->profile, (1U << CORE_CIPHER_COUNT) - 1);
    struct perfmodel_flow_load all = {0};
    for (uint32_t column = 0; column < grid->columns; column++) {
        for (size_t k = grid->column_rank[column]; k < grid->column_rank[column + 1]; k++) {
            uint32_t i = problem->by_rate[k];
            struct perfmodel_flow_load load = partition_problem_load(problem, i);
            perfmodel_flow_load_add(&all, &load);
            add_stream(grid, i, surcharge_ns, before(grid, row_of[i] + 1U, column + 1));
        }
        grid->job_burst[column + 1] = all.job_burst_bytes;
        grid->job_rate[column + 1] = all.job_rate;
    }
    grid->unit_bytes = all.unit_bytes;
}

static void add(struct sums *to, const struct sums *more, double sign)
{
    to->streams += sign * more->streams;
    to->jobs += sign * more->jobs;
    to->jobs_rate += sign * more->jobs_rate;
    to->burst += sign * more->burst;
    to->rate += sign * more->rate;
    to->share += sign * more->share;
    for (int z = 0; z < WINDOWS; z++)
        to->demand_ns[z] += sign * more->demand_ns[z];
}

static void sum_up(struct partition_grid *grid)
{
    for (uint32_t row = 1; row <= grid->rows; row++) {
        for (uint32_t column = 1; column <= grid->columns; column++) {
            struct sums *here = before(grid, row, column);
            add(here, before(grid, row - 1, column), 1);
            add(here, before(grid, row, column - 1), 1);
            add(here, before(grid, row - 1, column - 1), -1);
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
    if (made != NULL) {
        made->problem = problem;
        cut(made);
        made->before = calloc((made->rows + 1) * (made->columns + 1), sizeof *made->before);
    }
    if (made == NULL || row_of == NULL || made->before == NULL) {
        free(row_of);
        partition_grid_destroy(made);
        return CORE_NO_MEMORY;
    }
    choose_windows(made);
    for (uint32_t row = 0; row < made->rows; row++)
        for (size_t k = made->row_rank[row]; k < made->row_rank[row + 1]; k++)
            row_of[problem->by_latency[k]] = (uint8_t)row;
    fill_cells(made, row_of);
    sum_up(made);
    if (problem->input->paper)
        fill_costs(made);
    free(row_of);
    *grid = made;
    return CORE_OK;
}

void partition_grid_destroy(struct partition_grid *grid)
{
    if (grid == NULL)
        return;
    free(grid->before);
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

/* ---- estimates ---- */

static struct sums inside(const struct partition_grid *grid, const struct partition_cells *cells)
{
    struct sums sums = *before(grid, cells->high, cells->right);
    add(&sums, before(grid, cells->low, cells->right), -1);
    add(&sums, before(grid, cells->high, cells->left), -1);
    add(&sums, before(grid, cells->low, cells->left), 1);
    return sums;
}

double partition_grid_worker_load(const struct partition_grid *grid, const struct partition_cells *cells)
{
    struct sums outside = *before(grid, grid->rows, grid->columns), gone = inside(grid, cells);
    double workers = grid->problem->input->workers, load;
    add(&outside, &gone, -1);
    load = outside.share / workers;
    for (int z = 0; z < WINDOWS && !grid->problem->input->paper; z++) {
        double room_ns = workers * (grid->window_ns[z] - grid->blocking_ns);
        if (outside.demand_ns[z] > 0.5)
            load = fmax(load, room_ns > 0 ? outside.demand_ns[z] / room_ns : OVERLOAD);
    }
    return load;
}

static core_ns shortest_ns(const struct partition_grid *grid, uint32_t row)
{
    return grid->problem->traffic[grid->problem->by_latency[grid->row_rank[row]]].work_ns;
}

/* `part` of the sums, and a job more, since whole jobs are dealt. */
static struct perfmodel_flow_load load_of(const struct partition_grid *grid,
                                          const struct partition_cells *cells, const struct sums *sums,
                                          double part)
{
    struct perfmodel_flow_load load = {.streams = (uint64_t)ceil(fmax(0, sums->streams * part - 1e-6)),
                                       .job_burst_bytes = grid->job_burst[cells->right],
                                       .job_rate = grid->job_rate[cells->right],
                                       .unit_bytes = grid->unit_bytes,
                                       .shortest_ns = shortest_ns(grid, cells->low)};
    if (load.streams == 0)
        return (struct perfmodel_flow_load){0};
    load.jobs = (uint64_t)ceil(fmax(1, sums->jobs * part - 1e-6));
    load.jobs_rate = (uint64_t)fmax(0, sums->jobs_rate * part);
    load.burst_bytes = (uint64_t)(sums->burst * part);
    load.rate = (uint64_t)(sums->rate * part * RATE_UNIT);
    if (part < 1 && load.streams > 1) {
        load.burst_bytes += load.job_burst_bytes / 2;
        load.rate += load.job_rate / 2;
    }
    return load;
}

struct perfmodel_flow_load partition_grid_load(const struct partition_grid *grid,
                                               const struct partition_cells *cells)
{
    struct sums sums = inside(grid, cells);
    return load_of(grid, cells, &sums, 1);
}

static double cost_of(const struct partition_grid *grid, uint32_t kind, double jobs)
{
    if (jobs >= COSTS)
        return grid->cost[kind][COSTS] * jobs / COSTS;
    return grid->cost[kind][(uint32_t)ceil(jobs)];
}

/* Paper: of one SM with `part` of the jobs of every column, in ns per ns of period: sum of (r - r') c(n),
 * from the highest rates down. */
static double kernel_share(const struct partition_grid *grid, const struct partition_cells *cells,
                           uint32_t kind, double part)
{
    double jobs = 0, above = 0, sum = 0;
    for (uint32_t column = cells->right; column-- > cells->left;) {
        struct partition_cells one = {cells->low, cells->high, column, column + 1};
        struct sums sums = inside(grid, &one);
        if (sums.streams < 0.5)
            continue;
        double rate = sums.rate / sums.streams;
        sum += jobs > 0 ? (above - rate) * cost_of(grid, kind, jobs) : 0;
        above = rate;
        jobs += sums.streams * part;
    }
    return sum + (jobs > 0 ? above * cost_of(grid, kind, jobs) : 0);
}

static double paper_load_at(const struct partition_grid *grid, const struct partition_cells *cells,
                            const struct sums *sums, uint32_t kind, double part, double period_ns)
{
    const struct partition_plan_input *input = grid->problem->input;
    const struct config_profile *profile = input->profile;
    const struct config_profile_gpu *card = &profile->gpus[kind];
    double bytes = sums->rate * part * period_ns;
    double whole = CONFIG_PROFILE_MARGIN_PPM, copies = 1 + profile->margins.copies_ppm / whole,
           kernels = 1 + profile->margins.kernels_ppm / whole;
    bool busy = partition_problem_busy(grid->problem, card);
    if (period_ns < 1)
        return OVERLOAD;
    double up_ns = (double)perfmodel_copy_ns(card, PERFMODEL_UP, busy,
                                             (uint64_t)(bytes + sums->streams * part * card->job_bytes));
    double down_ns = (double)perfmodel_copy_ns(card, PERFMODEL_DOWN, busy, (uint64_t)bytes);
    double kernel_ns =
        (double)card->launch_ns + period_ns * kernel_share(grid, cells, kind, part / card->sms);
    return fmax(kernels * kernel_ns, copies * fmax(up_ns, down_ns)) / period_ns;
}

static double paper_load(const struct partition_grid *grid, const struct partition_cells *cells,
                         const struct sums *sums, uint32_t kind, double part)
{
    double least = OVERLOAD;
    core_ns period_ns, work_ns = shortest_ns(grid, cells->low);
    for (uint32_t n = 0; (period_ns = partition_candidate_period_ns(grid->problem, work_ns, n)) > 0; n++)
        least = fmin(least, paper_load_at(grid, cells, sums, kind, part, (double)period_ns));
    return least;
}

static double card_load(const struct partition_grid *grid, const struct partition_cells *cells,
                        const struct sums *sums, uint32_t kind, double part)
{
    if (grid->problem->input->paper)
        return paper_load(grid, cells, sums, kind, part);
    struct perfmodel_flow_load load = load_of(grid, cells, sums, part);
    struct perfmodel_flow_verdict verdict = perfmodel_flow_fit(grid->problem->flow[kind], &load);
    return 1 - (double)verdict.headroom_ppb / PARTITION_SHARE_ONE;
}

double partition_grid_gpu_load(const struct partition_grid *grid, const struct partition_cells *cells)
{
    struct partition_problem *problem = grid->problem;
    struct sums sums = inside(grid, cells);
    double sum = 0, worst = 0;
    if (sums.streams < 0.5)
        return 0;
    core_ns period_ns = shortest_ns(grid, cells->low) / 4;
    if (period_ns <= 0)
        return OVERLOAD;
    partition_problem_weigh(problem, period_ns);
    for (uint32_t g = 0; g < problem->gpus; g++)
        sum += (double)problem->capacity[g];
    for (uint32_t g = 0; g < problem->gpus; g++) {
        const struct config_profile_gpu *card = problem->card[g];
        if ((g > 0 && card == problem->card[g - 1]) || problem->capacity[g] == 0)
            continue;
        uint32_t kind = (uint32_t)(card - problem->input->profile->gpus);
        worst = fmax(worst, card_load(grid, cells, &sums, kind, (double)problem->capacity[g] / sum));
    }
    return worst;
}
