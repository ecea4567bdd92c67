/* Bands (the "future work" of SYSTOR 2012): the streams of the GPUs sorted by deadline, and each GPU takes
 * one contiguous band of them at a period of its own, instead of all having to keep the shortest deadline.
 *
 * The workers take what is due first and what is fastest: streams below a least deadline, and those above a
 * highest rate. For every least deadline of the grid the highest rate is found at which the GPUs' bands still
 * reach the end, by estimate; the candidate with most room is tried exactly.
 *
 * Cutting into bands is dynamic programming over which cards are used up: the furthest rank of a deadline
 * that a number of cards of each kind can reach, one band each. That is enough to know, since a band that
 * begins later has longer deadlines and fewer streams: it reaches at least as far.
 *
 * The plan of the rectangle, Virtual GPU, is a candidate always: first asked if it holds, and what is told if
 * no bands do. */
#include "partition/search/candidate.h"
#include "partition/search/grid.h"
#include "partition/search/methods.h"
#include "partition/search/rectangle.h"

#include <stdlib.h>
#include <string.h>

#define STATES_MAX       1024
#define CANDIDATES_TRIED 3
#define BLOCK            256

/* ---- loads of ranges of ranks by deadline ---- */

/* Of the streams on GPUs. */
struct line {
    const struct partition_problem *problem;
    size_t count;
    uint32_t *stream;                  /* by deadline */
    struct perfmodel_flow_load *load;  /* of each */
    struct perfmodel_flow_load *block; /* of every BLOCK of them */
};

static core_status line_create(const struct partition_problem *problem, struct line *line)
{
    size_t n = problem->count;
    *line = (struct line){.problem = problem,
                          .stream = malloc((n + 1) * sizeof *line->stream),
                          .load = malloc((n + 1) * sizeof *line->load),
                          .block = malloc((n / BLOCK + 1) * sizeof *line->block)};
    bool all = line->stream && line->load && line->block;
    return all ? CORE_OK : CORE_NO_MEMORY;
}

static void line_destroy(struct line *line)
{
    free(line->stream);
    free(line->load);
    free(line->block);
}

static void line_fill(struct line *line, const uint8_t *on_gpu)
{
    const struct partition_problem *problem = line->problem;
    line->count = 0;
    for (size_t k = 0; k < problem->count; k++) {
        uint32_t i = problem->by_latency[k];
        size_t at = line->count;
        if (!on_gpu[i])
            continue;
        line->stream[at] = i;
        line->load[at] = partition_problem_load(problem, i);
        if (at % BLOCK == 0)
            line->block[at / BLOCK] = (struct perfmodel_flow_load){0};
        perfmodel_flow_load_add(&line->block[at / BLOCK], &line->load[at]);
        line->count++;
    }
}

/* Streams from .. to-1; exact. */
static struct perfmodel_flow_load line_load(const struct line *line, size_t from, size_t to)
{
    struct perfmodel_flow_load sum = {0};
    for (size_t at = from; at < to;) {
        bool whole = at % BLOCK == 0 && to - at >= BLOCK;
        perfmodel_flow_load_add(&sum, whole ? &line->block[at / BLOCK] : &line->load[at]);
        at += whole ? BLOCK : 1;
    }
    return sum;
}

/* ---- cutting ---- */

struct cuts {
    uint32_t kinds, states;
    uint32_t count[CONFIG_PROFILE_GPU_KINDS_MAX]; /* cards of a kind; in the end those to the last state */
    size_t reach[STATES_MAX];                     /* by state: how far its cards get */
    uint8_t last[STATES_MAX];                     /* the kind of the card with the last band */
};

/* How far one card gets from `from` on, with this much room left. */
static size_t reach_of(const struct line *line, uint32_t kind, size_t from, int64_t room_ppb)
{
    size_t low = from, high = line->count;
    while (low < high) {
        size_t middle = low + (high - low + 1) / 2;
        struct perfmodel_flow_load load = line_load(line, from, middle);
        if (perfmodel_flow_fit(line->problem->flow[kind], &load).headroom_ppb >= room_ppb)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* A state is how many cards of each kind are used, as digits of a mixed radix; the first kind counts least.
 */
static bool cuts_prepare(const struct partition_problem *problem, struct cuts *cuts)
{
    const struct config_profile *profile = problem->input->profile;
    cuts->kinds = profile->gpu_count;
    cuts->states = 1;
    for (uint32_t kind = 0; kind < cuts->kinds; kind++) {
        cuts->count[kind] = profile->gpus[kind].count;
        if (cuts->states * (cuts->count[kind] + 1) > STATES_MAX)
            return false;
        cuts->states *= cuts->count[kind] + 1;
    }
    return true;
}

/* Do bands with that much room reach the end? */
static bool cut(const struct line *line, int64_t room_ppb, struct cuts *cuts)
{
    cuts->reach[0] = 0;
    for (uint32_t state = 1; state < cuts->states; state++) {
        cuts->reach[state] = 0;
        cuts->last[state] = 0;
        uint32_t unit = 1;
        for (uint32_t kind = 0; kind < cuts->kinds; unit *= cuts->count[kind++] + 1) {
            if (state / unit % (cuts->count[kind] + 1) == 0)
                continue;
            size_t from = cuts->reach[state - unit];
            size_t reach = from < line->count ? reach_of(line, kind, from, room_ppb) : from;
            if (reach > cuts->reach[state] || cuts->reach[state] == 0) {
                cuts->reach[state] = reach;
                cuts->last[state] = (uint8_t)kind;
            }
        }
    }
    return cuts->reach[cuts->states - 1] == line->count;
}

/* The bands to the cards, from the last state back; cards of a kind by number. */
static void assign(const struct line *line, const struct cuts *cuts, struct partition_plan *plan)
{
    uint32_t next[CONFIG_PROFILE_GPU_KINDS_MAX], first = 0;
    for (uint32_t kind = 0; kind < cuts->kinds; kind++) {
        first += cuts->count[kind];
        next[kind] = first; /* the one after the last that is free */
    }
    for (uint32_t state = cuts->states - 1; state > 0;) {
        uint32_t kind = cuts->last[state], unit = 1;
        for (uint32_t k = 0; k < kind; k++)
            unit *= cuts->count[k] + 1;
        uint32_t g = --next[kind];
        for (size_t at = cuts->reach[state - unit]; at < cuts->reach[state]; at++)
            plan->unit[line->stream[at]] = partition_unit_of_gpu(plan->workers, g);
        state -= unit;
    }
}

/* As much room as there can be, to a thirtieth of it. */
static bool cut_evenly(const struct line *line, struct cuts *cuts)
{
    int64_t low_ppb = 0, high_ppb = PARTITION_SHARE_ONE / 2;
    if (!cut(line, 0, cuts))
        return false;
    for (int i = 0; i < 5; i++) {
        int64_t middle_ppb = low_ppb + (high_ppb - low_ppb) / 2;
        if (cut(line, middle_ppb, cuts))
            low_ppb = middle_ppb;
        else
            high_ppb = middle_ppb;
    }
    return cut(line, low_ppb, cuts);
}

/* ---- the workers' part ---- */

struct candidate {
    uint32_t low, right;
    double load;
};

struct search {
    struct partition_problem *problem;
    struct partition_grid *grid;
    struct partition_plan *plan;
    struct line line;
    struct cuts cuts;
    uint8_t *on_gpu;
    uint32_t *latency_rank;
    uint32_t *reach; /* by GPU */
    struct candidate candidate[PARTITION_GRID_ROWS];
    uint32_t candidates;
    struct partition_candidate_reason reason;
};

/* Has a card of this kind room for these rows, and up to column `right`? *load: how full it is then. */
static bool rows_fit(const struct search *search, uint32_t kind, uint32_t from, uint32_t to, uint32_t right,
                     double *load)
{
    struct partition_cells cells = {from, to, 0, right};
    struct perfmodel_flow_load band = partition_grid_load(search->grid, &cells);
    int64_t room_ppb = perfmodel_flow_fit(search->problem->flow[kind], &band).headroom_ppb;
    if (room_ppb >= 0)
        *load = 1 - (double)room_ppb / PARTITION_SHARE_ONE;
    return room_ppb >= 0;
}

/* By estimate: the load of the fullest band, were the rows given to the cards one after the other, each up to
 * where it is full. Above one: what is left over, in rows. reach: by card, in and out, where its band ends;
 * the search begins there, since the candidate before was much like this one. */
static double bands_load(const struct search *search, uint32_t low, uint32_t right, uint32_t *reach)
{
    const struct partition_problem *problem = search->problem;
    uint32_t rows = partition_grid_rows(search->grid), from = low;
    double fullest = 0;
    for (uint32_t g = 0; g < problem->gpus && from < rows; g++) {
        uint32_t kind = (uint32_t)(problem->card[g] - problem->input->profile->gpus);
        uint32_t least = from, most = rows, middle = reach[g];
        double load = 0;
        for (uint32_t step = 1; least < most; step *= 2) {
            if (middle <= least || middle > most)
                middle = least + (most - least + 1) / 2;
            if (rows_fit(search, kind, from, middle, right, &load)) {
                least = middle;
                middle += step;
            } else {
                most = middle - 1;
                middle = middle > step ? middle - step : 0;
            }
        }
        fullest = load > fullest ? load : fullest;
        reach[g] = from = least;
    }
    return from < rows ? 1 + (double)(rows - from) / rows : fullest;
}

/* The highest rate that leaves the workers just full; the GPUs have least then. */
static void fill(const struct search *search, struct candidate *candidate, uint32_t *reach)
{
    uint32_t low = 0, high = partition_grid_columns(search->grid);
    uint32_t rows = partition_grid_rows(search->grid);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        struct partition_cells cells = {candidate->low, rows, 0, middle};
        if (partition_grid_worker_load(search->grid, &cells) <= 1)
            high = middle;
        else
            low = middle + 1;
    }
    candidate->right = low;
    candidate->load = bands_load(search, candidate->low, low, reach);
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;
    if (left->load != right->load)
        return left->load < right->load ? -1 : 1;
    return (left->low > right->low) - (left->low < right->low);
}

static void estimate(struct search *search)
{
    const struct partition_problem *problem = search->problem;
    uint32_t rows = partition_grid_rows(search->grid);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t first = problem->by_latency[partition_grid_row_rank(search->grid, row)];
        struct partition_cells all = {row, rows, 0, partition_grid_columns(search->grid)};
        struct candidate candidate = {.low = row};
        if (problem->traffic[first].work_ns <= 0)
            continue;
        if (partition_grid_worker_load(search->grid, &all) > 1)
            break;
        fill(search, &candidate, search->reach);
        search->candidate[search->candidates++] = candidate;
    }
    qsort(search->candidate, search->candidates, sizeof *search->candidate, compare_candidates);
}

/* ---- exact trials ---- */

static void mark(struct search *search, size_t low, size_t right)
{
    const struct partition_problem *problem = search->problem;
    for (size_t k = 0; k < problem->count; k++) {
        uint32_t i = problem->by_rate[k];
        search->on_gpu[i] = k < right && search->latency_rank[i] >= low;
    }
}

/* The least highest rate, from *right on, at which there is hope that the workers hold. */
static bool fill_workers(struct search *search, size_t low, size_t *right)
{
    size_t n = search->problem->count, step = 1 + (n - *right) / 64;
    for (;; step *= 2) {
        mark(search, low, *right);
        if (partition_evaluate_workers_necessary(search->problem, search->on_gpu, search->plan))
            return true;
        partition_candidate_keep_reason(&search->reason, search->plan);
        if (*right == n)
            return false;
        *right = n - *right > step ? *right + step : n;
    }
}

/* The rest to the GPUs, in bands. */
static bool place_bands(struct search *search)
{
    line_fill(&search->line, search->on_gpu);
    if (!cut_evenly(&search->line, &search->cuts))
        return false;
    assign(&search->line, &search->cuts, search->plan);
    return partition_evaluate_gpus(search->problem, search->plan);
}

/* The workers' burst test comes last, as it takes longest; where it refuses, they get fewer streams. The
 * rough trial remembers only some windows in which it did: it may hope again for what has been refused. */
static bool try_candidate(struct search *search, const struct candidate *candidate)
{
    size_t low = partition_grid_row_rank(search->grid, candidate->low);
    size_t right = partition_grid_column_rank(search->grid, candidate->right);
    size_t n = search->problem->count, refused = SIZE_MAX;
    while (fill_workers(search, low, &right)) {
        if (right == refused) {
            if (right == n)
                return false;
            right += 1 + (n - right) / 64;
            continue;
        }
        bool placed = place_bands(search);
        if (placed && partition_evaluate_workers(search->problem, search->on_gpu, search->plan))
            return true;
        partition_candidate_keep_reason(&search->reason, search->plan);
        if (!placed)
            return false;
        refused = right;
    }
    return false;
}

static void run(struct search *search)
{
    if (!cuts_prepare(search->problem, &search->cuts))
        return; /* so many unlike cards that there is no telling */
    estimate(search);
    for (uint32_t i = 0; i < search->candidates && i < CANDIDATES_TRIED && !search->plan->accepted; i++)
        if (try_candidate(search, &search->candidate[i]))
            partition_plan_conclude(search->problem, search->plan);
}

/* ---- the method ---- */

static core_status search_prepare(struct search *search)
{
    const struct partition_problem *problem = search->problem;
    core_status status = line_create(problem, &search->line);
    search->on_gpu = calloc(problem->count + 1, sizeof *search->on_gpu);
    search->latency_rank = calloc(problem->count + 1, sizeof *search->latency_rank);
    search->reach = calloc(problem->gpus + 1, sizeof *search->reach);
    if (status != CORE_OK || search->on_gpu == NULL || search->latency_rank == NULL || search->reach == NULL)
        return CORE_NO_MEMORY;
    for (size_t k = 0; k < problem->count; k++)
        search->latency_rank[problem->by_latency[k]] = (uint32_t)k;
    return CORE_OK;
}

/* The plan was refused; that reason stays if bands do not help. */
static core_status search_bands(struct partition_problem *problem, struct partition_grid *grid,
                                struct partition_plan *plan)
{
    struct search *search = calloc(1, sizeof *search);
    if (search == NULL)
        return CORE_NO_MEMORY;
    search->problem = problem;
    search->grid = grid;
    search->plan = plan;
    partition_candidate_keep_reason(&search->reason, plan);
    core_status status = search_prepare(search);
    if (status == CORE_OK)
        run(search);
    free(search->reach);
    free(search->latency_rank);
    free(search->on_gpu);
    line_destroy(&search->line);
    free(search);
    return status;
}

/* Bands where the rectangle finds nothing. */
static core_status search_both(struct partition_problem *problem, struct partition_grid *grid,
                               struct partition_plan *plan)
{
    core_status status = partition_rectangle_search(problem, grid, plan);
    if (status == CORE_OK && !plan->accepted && !problem->input->paper && problem->gpus > 0)
        status = search_bands(problem, grid, plan);
    return status;
}

core_status partition_bands_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    return partition_grid_method(input, plan, search_both);
}
