/* The Rectangle method (SYSTOR 2012, section 4), for several GPUs with all of them as one: Virtual GPU.
 *
 * The papers at hand do not tell the order of the search. Ours: for every row of the grid as the least
 * deadline, with the period that goes with it, and some choices of the highest deadline and the least rate,
 * find the highest rate at which GPUs and workers are equally loaded, by estimate. The least loaded of each
 * row is a candidate. The best candidates are tried exactly, moving the highest rate until both sides hold:
 * more streams never make the GPUs' part easier, and fewer never the workers'. */
#include "partition/grid.h"
#include "partition/methods.h"

#include <stdlib.h>
#include <string.h>

#define CANDIDATES_TRIED 4
#define LOAD_TRIED       1.1 /* estimates are not that far off */

struct candidate {
    struct partition_cells cells;
    core_ns period_ns;
    double load;
};

struct search {
    struct partition_problem *problem;
    struct partition_grid *grid;
    struct partition_plan *plan;
    uint8_t *on_gpu;
    uint32_t *latency_rank; /* by stream */
    struct candidate candidate[PARTITION_GRID_ROWS];
    uint32_t candidates;
    bool refused; /* a reason was found; that of the best candidate stays */
};

/* ---- estimates ---- */

/* The highest rate at which both sides are equally loaded, give or take a column. */
static void balance(const struct search *search, struct candidate *candidate)
{
    struct partition_cells *cells = &candidate->cells;
    uint32_t low = cells->left, high = partition_grid_columns(search->grid);
    while (low < high) {
        uint32_t right = (low + high + 1) / 2;
        if (partition_grid_gpu_load(search->grid, cells->left, right) <=
            partition_grid_worker_load(search->grid, cells->left, right))
            low = right;
        else
            high = right - 1;
    }
    cells->right = low;
    candidate->load = partition_grid_worker_load(search->grid, cells->left, low);
    if (low == partition_grid_columns(search->grid))
        return;
    double load = partition_grid_gpu_load(search->grid, cells->left, low + 1);
    if (load < candidate->load) {
        candidate->load = load;
        cells->right = low + 1;
    }
}

/* Least rates worth a try: all of them to the GPUs, or those that the workers could have. */
static void balance_lefts(struct search *search, struct candidate candidate, struct candidate *best)
{
    uint32_t columns = partition_grid_columns(search->grid);
    for (uint32_t left = 0; left < columns; left = left == 0 ? 1 : 2 * left) {
        candidate.cells.left = left;
        if (partition_grid_worker_load(search->grid, left, columns) > LOAD_TRIED)
            return;
        balance(search, &candidate);
        if (candidate.load < best->load)
            *best = candidate;
    }
}

static void estimate_row(struct search *search, uint32_t row, uint32_t fraction)
{
    const struct partition_problem *problem = search->problem;
    uint32_t first = problem->by_latency[partition_grid_row_rank(search->grid, row)];
    core_ns shortest_ns = problem->work_ns[first];
    struct candidate best = {.load = LOAD_TRIED}, candidate = {.cells.low = row};
    if (shortest_ns <= 0)
        return;
    candidate.period_ns = partition_trial_period_ns(problem, shortest_ns, fraction);
    if (candidate.period_ns <= 0)
        return;
    partition_grid_period(search->grid, candidate.period_ns, shortest_ns, row);
    uint32_t rows = partition_grid_rows(search->grid);
    for (uint32_t above = 0; above < rows - row; above = above == 0 ? 1 : 4 * above) {
        candidate.cells.high = rows - above;
        partition_grid_select(search->grid, row, candidate.cells.high);
        balance_lefts(search, candidate, &best);
    }
    if (best.load < LOAD_TRIED)
        search->candidate[search->candidates++] = best;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;
    if (left->load != right->load)
        return left->load < right->load ? -1 : 1;
    return (left->cells.low > right->cells.low) - (left->cells.low < right->cells.low);
}

static void estimate(struct search *search, uint32_t fraction)
{
    const struct partition_problem *problem = search->problem;
    core_ns before_ns = -1;
    search->candidates = 0;
    for (uint32_t row = 0; row < partition_grid_rows(search->grid); row++) {
        uint32_t first = problem->by_latency[partition_grid_row_rank(search->grid, row)];
        core_ns latency_ns = problem->input->specs[first].latency_ns;
        if (latency_ns == before_ns)
            continue; /* the same period with fewer streams to choose from */
        before_ns = latency_ns;
        estimate_row(search, row, fraction);
    }
    qsort(search->candidate, search->candidates, sizeof *search->candidate, compare_candidates);
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

/* partition_plan_refuse has spoken of this trial: keep what the first said. */
static void keep_reason(struct search *search, const struct partition_plan *before)
{
    if (search->refused) {
        search->plan->binding = before->binding;
        search->plan->binding_unit = before->binding_unit;
        memcpy(search->plan->reason, before->reason, sizeof before->reason);
    }
    search->refused = true;
}

enum outcome { HOLDS, GPUS_LACK, WORKERS_LACK };

static enum outcome try_at(struct search *search, const struct candidate *candidate, size_t right)
{
    struct partition_plan before = *search->plan;
    enum outcome outcome = HOLDS;
    mark(search, &candidate->cells, right);
    if (!partition_trial_virtual(search->problem, search->on_gpu, search->plan))
        outcome = GPUS_LACK;
    else if (!partition_trial_workers(search->problem, search->on_gpu, search->plan))
        outcome = WORKERS_LACK;
    if (outcome != HOLDS)
        keep_reason(search, &before);
    return outcome;
}

/* Starts at the estimate and moves the highest rate by bisection. */
static bool try_candidate(struct search *search, const struct candidate *candidate)
{
    size_t low = partition_grid_column_rank(search->grid, candidate->cells.left);
    size_t high = search->problem->count;
    size_t right = partition_grid_column_rank(search->grid, candidate->cells.right);
    partition_problem_period(search->problem, candidate->period_ns);
    for (;;) {
        enum outcome outcome = try_at(search, candidate, right);
        if (outcome == HOLDS)
            return true;
        if (outcome == GPUS_LACK && right > low)
            high = right - 1;
        else if (outcome == WORKERS_LACK && right < high)
            low = right + 1;
        else
            return false;
        if (low > high)
            return false;
        right = low + (high - low) / 2;
    }
}

static bool try_all(struct search *search)
{
    uint32_t tried = search->candidates < CANDIDATES_TRIED ? search->candidates : CANDIDATES_TRIED;
    for (uint32_t i = 0; i < tried; i++)
        if (try_candidate(search, &search->candidate[i]))
            return true;
    return false;
}

/* ---- the method ---- */

static void tell_rectangle(const struct search *search)
{
    const struct partition_problem *problem = search->problem;
    struct partition_plan_rectangle *rectangle = &search->plan->rectangle;
    for (size_t i = 0; i < problem->count; i++) {
        const struct core_stream_spec *spec = &problem->input->specs[i];
        double rate = (double)spec->packet_bytes * CORE_NS_PER_S / (double)spec->interval_ns;
        if (!search->on_gpu[i])
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

static bool try_workers(struct search *search)
{
    struct partition_plan before = *search->plan;
    if (partition_trial_workers(search->problem, search->on_gpu, search->plan))
        return true;
    keep_reason(search, &before);
    return false;
}

static bool try_workers_only(struct search *search)
{
    memset(search->on_gpu, 0, search->problem->count);
    partition_trial_no_gpu(search->problem, search->plan);
    return try_workers(search);
}

/* The first `first` of an order to the workers, counted from its end if `back`. */
static void mark_but(struct search *search, const uint32_t *order, bool back, size_t first)
{
    size_t n = search->problem->count;
    for (size_t k = 0; k < n; k++)
        search->on_gpu[order[back ? n - 1 - k : k]] = k >= first;
}

static core_ns shortest_marked_ns(const struct search *search)
{
    core_ns shortest_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < search->problem->count; i++)
        if (search->on_gpu[i] && search->problem->work_ns[i] < shortest_ns)
            shortest_ns = search->problem->work_ns[i];
    return shortest_ns;
}

/* The GPUs as they were dealt to, each at the period that suits it. */
static bool own_periods(struct search *search)
{
    for (uint32_t g = 0; g < search->problem->gpus; g++)
        if (!partition_trial_gpu(search->problem, g, search->plan))
            return false;
    return partition_trial_pinned(search->problem, search->plan);
}

/* The streams that are marked to the GPUs, at a common period if one holds. */
static bool try_brim_gpus(struct search *search)
{
    core_ns shortest_ns = shortest_marked_ns(search), period_ns;
    if (shortest_ns == CORE_NS_NEVER)
        return false; /* all are on workers: not for this trial */
    for (uint32_t n = 0; (period_ns = partition_trial_period_ns(search->problem, shortest_ns, n)) > 0; n++) {
        struct partition_plan before = *search->plan;
        partition_problem_period(search->problem, period_ns);
        if (partition_trial_virtual(search->problem, search->on_gpu, search->plan) || own_periods(search))
            return true;
        keep_reason(search, &before);
    }
    return false;
}

/* The baselines' splits are rectangles too: the shortest deadlines or the highest rates to the workers, to
 * the last one that they take. So this method is not below them where the grid is too coarse for the brim. */
static bool try_brim(struct search *search, const uint32_t *order, bool back)
{
    struct partition_problem *problem = search->problem;
    size_t taken = 0, refused = problem->count + 1;
    while (refused - taken > 1) {
        size_t middle = taken + (refused - taken) / 2;
        mark_but(search, order, back, middle);
        if (try_workers(search))
            taken = middle;
        else
            refused = middle;
    }
    mark_but(search, order, back, taken);
    return try_brim_gpus(search) && try_workers(search);
}

/* The rhythm of d_min / 4 wherever it holds; other periods only where it does not. */
static bool run(struct search *search)
{
    const core_ns any_ns = CORE_NS_PER_S;
    const struct partition_problem *problem = search->problem;
    if (problem->gpus == 0 || problem->count == 0)
        return try_workers_only(search);
    for (uint32_t n = 0; partition_trial_period_ns(problem, any_ns, n) > 0; n++) {
        estimate(search, n);
        if (try_all(search))
            return true;
    }
    return try_brim(search, problem->by_latency, false) || try_brim(search, problem->by_rate, true) ||
           try_workers_only(search);
}

static core_status search_prepare(struct search *search, const struct partition_plan_input *input)
{
    core_status status = partition_problem_create(input, &search->problem);
    if (status == CORE_OK)
        status = partition_grid_create(search->problem, &search->grid);
    search->on_gpu = calloc(input->count + 1, sizeof *search->on_gpu);
    search->latency_rank = calloc(input->count + 1, sizeof *search->latency_rank);
    if (status == CORE_OK && (search->on_gpu == NULL || search->latency_rank == NULL))
        status = CORE_NO_MEMORY;
    for (size_t k = 0; status == CORE_OK && k < input->count; k++)
        search->latency_rank[search->problem->by_latency[k]] = (uint32_t)k;
    return status;
}

core_status partition_rectangle_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    struct search search = {.plan = plan};
    core_status status = search_prepare(&search, input);
    if (status == CORE_OK && !partition_problem_hopeless(search.problem, plan) && run(&search)) {
        tell_rectangle(&search);
        partition_trial_conclude(search.problem, plan);
    }
    free(search.latency_rank);
    free(search.on_gpu);
    partition_grid_destroy(search.grid);
    partition_problem_destroy(search.problem);
    return status;
}
