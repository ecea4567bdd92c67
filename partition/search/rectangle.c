/* The Rectangle method (SYSTOR 2012, section 4), for several GPUs with all of them as one: Virtual GPU.
 *
 * The papers at hand do not tell the order of the search. Ours: for every row of the grid as the least
 * deadline, find the highest rate at which GPUs and workers are equally loaded, by estimate; around the best
 * rows also with a highest deadline and a least rate. The least loaded candidates are tried exactly, moving
 * the highest rate until both sides hold: more streams never make the GPUs' part easier, and fewer never the
 * workers'. If none holds the splits of the baselines are tried, dealt as they deal: they are rectangles too,
 * so this method is never below them. */
#include "partition/search/rectangle.h"
#include "partition/search/baseline.h"
#include "partition/search/candidate.h"
#include "partition/search/grid.h"
#include "partition/search/methods.h"

#include <stdlib.h>
#include <string.h>

#define CANDIDATES_TRIED 3
#define ROWS_VARIED      4
#define TRIALS           8
#define LOAD_TRIED       1.1 /* estimates are not that far off */

struct candidate {
    struct partition_cells cells;
    double load;
};

struct search {
    struct partition_problem *problem;
    struct partition_grid *grid;
    struct partition_plan *plan;
    uint8_t *on_gpu;
    uint32_t *latency_rank; /* by stream */
    uint32_t *order;        /* scratch */
    struct candidate candidate[PARTITION_GRID_ROWS];
    uint32_t candidates;
    struct partition_candidate_reason reason;
};

/* ---- estimates ---- */

/* The highest rate at which both sides are equally loaded, give or take a column. */
static void balance(const struct search *search, struct candidate *candidate)
{
    struct partition_cells *cells = &candidate->cells;
    uint32_t low = cells->left, high = partition_grid_columns(search->grid);
    while (low < high) {
        cells->right = (low + high + 1) / 2;
        if (partition_grid_gpu_load(search->grid, cells) <= partition_grid_worker_load(search->grid, cells))
            low = cells->right;
        else
            high = cells->right - 1;
    }
    cells->right = low;
    candidate->load = partition_grid_worker_load(search->grid, cells);
    if (low == partition_grid_columns(search->grid))
        return;
    cells->right = low + 1;
    double load = partition_grid_gpu_load(search->grid, cells);
    if (load < candidate->load)
        candidate->load = load;
    else
        cells->right = low;
}

/* Lower highest deadlines, higher least rates: all of them to the GPUs, or those that the workers could have.
 */
static void vary(const struct search *search, struct candidate *best)
{
    const struct candidate start = *best;
    uint32_t rows = partition_grid_rows(search->grid), columns = partition_grid_columns(search->grid);
    for (uint32_t above = 1; above < rows - start.cells.low; above *= 4) {
        struct candidate candidate = start;
        candidate.cells.high = rows - above;
        candidate.cells.right = columns;
        if (partition_grid_worker_load(search->grid, &candidate.cells) > LOAD_TRIED)
            break;
        balance(search, &candidate);
        *best = candidate.load < best->load ? candidate : *best;
    }
    for (uint32_t left = 1; left < columns; left *= 2) {
        struct candidate candidate = start;
        candidate.cells.left = left;
        candidate.cells.right = columns;
        if (partition_grid_worker_load(search->grid, &candidate.cells) > LOAD_TRIED)
            break;
        balance(search, &candidate);
        *best = candidate.load < best->load ? candidate : *best;
    }
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;
    if (left->load != right->load)
        return left->load < right->load ? -1 : 1;
    return (left->cells.low > right->cells.low) - (left->cells.low < right->cells.low);
}

static void sort_candidates(struct search *search)
{
    qsort(search->candidate, search->candidates, sizeof *search->candidate, compare_candidates);
}

static void estimate(struct search *search)
{
    const struct partition_problem *problem = search->problem;
    uint32_t rows = partition_grid_rows(search->grid), columns = partition_grid_columns(search->grid);
    core_ns before_ns = -1;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t first = problem->by_latency[partition_grid_row_rank(search->grid, row)];
        core_ns latency_ns = problem->specs[first].latency_ns;
        struct candidate candidate = {.cells = {row, rows, 0, columns}};
        if (latency_ns == before_ns || problem->traffic[first].work_ns <= 0)
            continue; /* the same period with fewer streams to choose from */
        before_ns = latency_ns;
        if (partition_grid_worker_load(search->grid, &candidate.cells) > LOAD_TRIED)
            break; /* and more and more from here on */
        balance(search, &candidate);
        search->candidate[search->candidates++] = candidate;
    }
    sort_candidates(search);
    for (uint32_t i = 0; i < ROWS_VARIED && i < search->candidates; i++)
        vary(search, &search->candidate[i]);
    sort_candidates(search);
}

/* ---- exact trials ---- */

/* Marks the streams of the cells, with rates up to rank `right`. */
static void mark(struct search *search, const struct partition_cells *cells, size_t right)
{
    const struct partition_problem *problem = search->problem;
    size_t low = partition_grid_row_rank(search->grid, cells->low);
    size_t high = partition_grid_row_rank(search->grid, cells->high);
    memset(search->on_gpu, 0, problem->count);
    for (size_t k = partition_grid_column_rank(search->grid, cells->left); k < right; k++) {
        uint32_t i = problem->by_rate[k];
        search->on_gpu[i] = search->latency_rank[i] >= low && search->latency_rank[i] < high;
    }
}

enum outcome { HOLDS, GPUS_LACK, WORKERS_LACK };

static enum outcome try_at(struct search *search, const struct candidate *candidate, size_t right)
{
    enum outcome outcome = WORKERS_LACK;
    mark(search, &candidate->cells, right);
    if (partition_evaluate_workers_necessary(search->problem, search->on_gpu, search->plan)) {
        if (!partition_evaluate_virtual(search->problem, search->on_gpu, search->plan))
            outcome = GPUS_LACK;
        else if (partition_evaluate_workers(search->problem, search->on_gpu, search->plan))
            outcome = HOLDS;
    }
    if (outcome != HOLDS)
        partition_candidate_keep_reason(&search->reason, search->plan);
    return outcome;
}

/* Starts at the estimate and moves the highest rate, in growing steps and then by bisection. */
static bool try_candidate(struct search *search, const struct candidate *candidate)
{
    size_t low = partition_grid_column_rank(search->grid, candidate->cells.left);
    size_t high = search->problem->count,
           right = partition_grid_column_rank(search->grid, candidate->cells.right);
    size_t step = 1 + (high - right) / 64;
    bool bounded[2] = {false, false}; /* known to lack: below, above */
    for (int trial = 0; trial < TRIALS; trial++, step *= 2) {
        enum outcome outcome = try_at(search, candidate, right);
        if (outcome == HOLDS)
            return true;
        bounded[outcome == GPUS_LACK] = true;
        if (outcome == GPUS_LACK && right > low)
            high = right - 1;
        else if (outcome == WORKERS_LACK && right < high)
            low = right + 1;
        else
            return false;
        if (low > high)
            return false;
        if (bounded[0] && bounded[1])
            right = low + (high - low) / 2;
        else if (outcome == WORKERS_LACK)
            right = high - right > step ? right + step : high;
        else
            right = right - low > step ? right - step : low;
    }
    return false;
}

static bool try_candidates(struct search *search)
{
    for (uint32_t i = 0; i < search->candidates && i < CANDIDATES_TRIED; i++)
        if (search->candidate[i].load < LOAD_TRIED && try_candidate(search, &search->candidate[i]))
            return true;
    return false;
}

static core_status try_baseline(struct search *search, bool rates)
{
    struct partition_problem *problem = search->problem;
    const uint32_t *order = rates ? problem->by_rate : problem->by_latency;
    size_t n = problem->count;
    for (size_t k = 0; k < n; k++)
        search->order[k] = order[rates ? n - 1 - k : k];
    core_status status = partition_baseline_make(problem, search->order, search->plan);
    if (status == CORE_OK && !search->plan->accepted)
        partition_candidate_keep_reason(&search->reason, search->plan);
    return status;
}

/* ---- the method ---- */

static void report_rectangle(const struct search *search)
{
    const struct partition_problem *problem = search->problem;
    struct partition_plan_rectangle *rectangle = &search->plan->rectangle;
    for (size_t i = 0; i < problem->count; i++) {
        const struct core_stream_spec *spec = &problem->input->specs[i];
        double rate = (double)spec->packet_bytes * CORE_NS_PER_S / (double)spec->interval_ns;
        if (search->plan->unit[i] < search->plan->workers)
            continue;
        if (!rectangle->used)
            *rectangle =
                (struct partition_plan_rectangle){true, spec->latency_ns, spec->latency_ns, rate, rate};
        if (spec->latency_ns < rectangle->latency_low_ns)
            rectangle->latency_low_ns = spec->latency_ns;
        if (spec->latency_ns > rectangle->latency_high_ns)
            rectangle->latency_high_ns = spec->latency_ns;
        rectangle->rate_low = rate < rectangle->rate_low ? rate : rectangle->rate_low;
        rectangle->rate_high = rate > rectangle->rate_high ? rate : rectangle->rate_high;
    }
}

static bool try_workers_only(struct search *search)
{
    memset(search->on_gpu, 0, search->problem->count);
    partition_plan_clear_gpus(search->problem, search->plan);
    if (partition_evaluate_workers(search->problem, search->on_gpu, search->plan))
        return true;
    partition_candidate_keep_reason(&search->reason, search->plan);
    return false;
}

static core_status run(struct search *search)
{
    if (search->problem->gpus > 0 && search->problem->count > 0) {
        estimate(search);
        if (try_candidates(search)) {
            partition_plan_conclude(search->problem, search->plan);
            return CORE_OK;
        }
    }
    if (try_workers_only(search)) {
        partition_plan_conclude(search->problem, search->plan);
        return CORE_OK;
    }
    if (search->problem->gpus == 0)
        return CORE_OK;
    core_status status = try_baseline(search, false);
    return status == CORE_OK && !search->plan->accepted ? try_baseline(search, true) : status;
}

static core_status search_prepare(struct search *search)
{
    const struct partition_problem *problem = search->problem;
    search->on_gpu = calloc(problem->count + 1, sizeof *search->on_gpu);
    search->latency_rank = calloc(problem->count + 1, sizeof *search->latency_rank);
    search->order = calloc(problem->count + 1, sizeof *search->order);
    if (search->on_gpu == NULL || search->latency_rank == NULL || search->order == NULL)
        return CORE_NO_MEMORY;
    for (size_t k = 0; k < problem->count; k++)
        search->latency_rank[problem->by_latency[k]] = (uint32_t)k;
    return CORE_OK;
}

core_status partition_rectangle_search(struct partition_problem *problem, struct partition_grid *grid,
                                       struct partition_plan *plan)
{
    struct search search = {.problem = problem, .grid = grid, .plan = plan};
    core_status status = search_prepare(&search);
    if (status == CORE_OK)
        status = run(&search);
    if (status == CORE_OK && plan->accepted)
        report_rectangle(&search);
    free(search.order);
    free(search.latency_rank);
    free(search.on_gpu);
    return status;
}

core_status partition_grid_method(const struct partition_plan_input *input, struct partition_plan *plan,
                                  partition_grid_search *search)
{
    struct partition_problem *problem = NULL;
    struct partition_grid *grid = NULL;
    core_status status = partition_problem_create(input, &problem);
    if (status == CORE_OK)
        status = partition_grid_create(problem, &grid);
    if (status == CORE_OK && !partition_problem_infeasible(problem, plan))
        status = search(problem, grid, plan);
    partition_grid_destroy(grid);
    partition_problem_destroy(problem);
    return status;
}

core_status partition_rectangle_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    return partition_grid_method(input, plan, partition_rectangle_search);
}
