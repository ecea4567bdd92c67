/* The fluid bound: what no plan whatever can exceed, with a period of its own for each GPU.
 *
 * Every stream has a price g on the GPUs such that those of the streams that are there add up to at most 1,
 * by either of two rules (bound_gpu.c); and several prices w on the workers: its share of their number; and
 * for a window Z, what of its packets must be out in Z, as a part of the time that all workers have in Z.
 * Each of these adds up to at most 1 over the workers' streams. So with any exchange rate mu >= 0, a plan has
 *
 *     sum over all streams of min(g, mu w) <= 1 + mu.
 *
 * If any pair of prices breaks that for some mu, no plan holds. The greatest of the left side less mu is what
 * the GPUs need at the least: it is what a fractional split leaves to them that sends to the workers what
 * saves most GPU for its price there. */
#include "partition/search/bound.h"
#include "partition/search/methods.h"

#include <math.h>
#include <stdlib.h>

#define SLACK    1e-9
#define WINDOWS  12
#define TANGENTS 30
#define RATE_MIN 0x1p-60
#define RATE_MAX 0x1p60

struct bound {
    struct partition_problem *problem;
    struct partition_bound_prices gpu;
    double *worker; /* prices */
};

/* ---- the best exchange rate ---- */

/* The sum less mu, a concave function of the rate mu, touched at one. */
struct tangent {
    double rate, load, slope;
};

static struct tangent touch(const struct bound *bound, const double *gpu, double rate)
{
    double load = 0, taken = 0;
    for (size_t i = 0; i < bound->problem->count; i++) {
        double worker = bound->worker[i] * rate;
        bool cheaper = worker < gpu[i];
        load += cheaper ? worker : gpu[i];
        taken += cheaper ? bound->worker[i] : 0;
    }
    return (struct tangent){rate, load - rate * (1 + SLACK), taken - (1 + SLACK)};
}

/* Do the workers have room for what no GPU can have, and is there nothing that nobody can? */
static bool workers_take_theirs(const struct bound *bound, const double *gpu)
{
    double taken = 0;
    for (size_t i = 0; i < bound->problem->count; i++)
        taken += isinf(gpu[i]) ? bound->worker[i] : 0;
    return taken <= 1 + SLACK;
}

/* What the GPUs must take at the least; INFINITY if the workers can not even take what they must. The top is
 * below where the tangents on both sides of it meet, and where these touch the function it is found. */
static double least_gpu_load(const struct bound *bound, const double *gpu)
{
    if (!workers_take_theirs(bound, gpu))
        return INFINITY;
    struct tangent low = touch(bound, gpu, RATE_MIN), high = touch(bound, gpu, 1);
    while (high.slope > 0 && high.rate < RATE_MAX) {
        low = high;
        high = touch(bound, gpu, high.rate * 2);
    }
    double most = fmax(low.load, high.load);
    for (int i = 0; i < TANGENTS && low.slope > 0 && high.slope < 0; i++) {
        double rate =
            (low.load - low.slope * low.rate - high.load + high.slope * high.rate) / (high.slope - low.slope);
        if (low.load + low.slope * (rate - low.rate) <= most + SLACK) /* where they meet: no more than that */
            break;
        struct tangent middle = touch(bound, gpu, rate);
        most = fmax(most, middle.load);
        *(middle.slope > 0 ? &low : &high) = middle;
    }
    return most;
}

/* By the rule that asks more. */
static double greatest_load(const struct bound *bound)
{
    double load = 0;
    for (int rule = 0; rule < PARTITION_BOUND_RULES; rule++)
        load = fmax(load, least_gpu_load(bound, bound->gpu.by_stream[rule]));
    return load;
}

/* ---- prices on the workers ---- */

static void price_shares(struct bound *bound)
{
    const struct partition_problem *problem = bound->problem;
    for (size_t i = 0; i < problem->count; i++)
        bound->worker[i] = problem->share_ppb[i] > PARTITION_SHARE_ONE
                               ? INFINITY
                               : (double)(problem->share_ppb[i] - 1) / 1e9 / problem->input->workers;
}

/* Whole packets that must be out within a window, at their own costs. */
static double due_ns(const struct perfmodel_cpu_task *task, core_ns window_ns)
{
    if (window_ns < task->spacing_ns)
        return 0;
    core_ns x_ns = window_ns - task->spacing_ns;
    core_ns spaced = x_ns / task->spacing_ns + 1, policed = x_ns / task->interval_ns + task->burst_packets;
    double packets = (double)(spaced < policed ? spaced : policed);
    return packets * task->pieces * (double)task->cost_ns;
}

static void price_window(struct bound *bound, core_ns window_ns)
{
    const struct partition_problem *problem = bound->problem;
    for (size_t i = 0; i < problem->count; i++) {
        bound->worker[i] = INFINITY;
        if (problem->share_ppb[i] > PARTITION_SHARE_ONE)
            continue;
        double part = due_ns(&problem->task[i], window_ns) / (double)window_ns;
        if (part <= 1)
            bound->worker[i] = part / problem->input->workers;
    }
}

/* Shares, and windows at the spacings of streams all through the order of deadlines. */
static double load_of_all(struct bound *bound)
{
    struct partition_problem *problem = bound->problem;
    price_shares(bound);
    double load = greatest_load(bound);
    if (problem->input->paper)
        return load;
    for (int n = 0; n < WINDOWS && load <= 1 + SLACK && problem->count > 0; n++) {
        size_t i = problem->by_latency[(problem->count - 1) * (size_t)(n + 1) / (WINDOWS + 1)];
        if (problem->share_ppb[i] > PARTITION_SHARE_ONE)
            continue;
        price_window(bound, problem->task[i].spacing_ns);
        load = fmax(load, greatest_load(bound));
    }
    return load;
}

core_status partition_bound_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    struct bound bound = {.worker = malloc((input->count + 1) * sizeof *bound.worker)};
    core_status status = bound.worker != NULL ? CORE_OK : CORE_NO_MEMORY;
    if (status == CORE_OK)
        status = partition_problem_create(input, &bound.problem);
    if (status == CORE_OK)
        status = partition_bound_prices_create(bound.problem, &bound.gpu);
    if (status == CORE_OK) {
        double load = load_of_all(&bound);
        plan->accepted = load <= 1 + SLACK;
        if (isinf(load))
            partition_plan_refuse(
                plan, PERFMODEL_LIMIT_FLUID, 0,
                "even fully loaded workers can not carry the streams that no GPU can serve");
        else if (!plan->accepted)
            partition_plan_refuse(
                plan, PERFMODEL_LIMIT_FLUID, 0,
                "with fully loaded workers, the other streams would need at least %.2f %% of all GPUs",
                load * 100);
    }
    partition_bound_prices_free(&bound.gpu);
    partition_problem_destroy(bound.problem);
    free(bound.worker);
    return status;
}
