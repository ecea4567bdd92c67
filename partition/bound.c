/* The fluid bound: what no plan whatever can exceed, with a period of its own for each GPU.
 *
 * A stream of rate r (p^ / t; paper: p / t) on GPU g takes at least r / R_g(d') of it, where R_g(x) is the
 * most bytes a second that the GPU carries with any period that leaves a latency of x: copies and kernel of a
 * batch of W bytes, dealt evenly, at the best utilisation, fit T, and T and all stages fit x; R = max W / T.
 * It grows with x, and T <= d' holds for every stream of a GPU, so a GPU that holds its streams has sum r /
 * R_g(d') <= 1. Weighted by any lambda_g that sum to 1, the GPUs together: what is on them takes sum r min_g
 * lambda_g / R_g(d') <= 1. The workers: sum of shares <= their number. If even the best fractional split,
 * which sends to the workers what saves most GPU for its share, breaks that, no plan holds. */
#include "partition/methods.h"

#include "partition/order.h"
#include "partition/problem.h"

#include <math.h>
#include <stdlib.h>

#define STEPS_PER_OCTAVE   32
#define POINTS             (43 * STEPS_PER_OCTAVE) /* d' is at most an hour */
#define PERIODS_PER_OCTAVE 24
#define SLACK              1e-9

/* The greatest share of its peak that an SM ever reaches. */
static double best_share(const struct config_profile_gpu *card)
{
    uint32_t best = 0;
    for (uint32_t row = 0; row < card->utilisation_count; row++)
        if (card->utilisation[row].share_ppm > best)
            best = card->utilisation[row].share_ppm;
    return (double)best / CONFIG_PROFILE_SHARE_PPM;
}

struct card_bound {
    const struct config_profile_gpu *card;
    bool busy, paper;
    double margin, share;
};

static double copy_ns(const struct card_bound *of, enum perfmodel_direction direction, uint64_t bytes)
{
    return of->margin * (double)perfmodel_copy_ns(of->card, direction, of->busy, bytes);
}

/* Could a batch of so many bytes keep the period and the latency, at the very best? */
static bool holds(const struct card_bound *of, uint64_t bytes, double period_ns, double latency_ns)
{
    double up_ns = copy_ns(of, PERFMODEL_UP, bytes), down_ns = copy_ns(of, PERFMODEL_DOWN, bytes);
    double peak = (double)of->card->sms * (double)of->card->sm_bytes_per_s * of->share / 1e9;
    double kernel_ns = of->margin * ((double)of->card->launch_ns + (double)bytes / peak);
    bool turns = of->card->copy_engines < 2 && !of->paper;
    double copies_ns = turns ? up_ns + down_ns : fmax(up_ns, down_ns);
    if (copies_ns > period_ns || kernel_ns > period_ns)
        return false;
    return of->paper || kernel_ns + (turns ? 2 : 1) * (up_ns + down_ns) <= latency_ns;
}

static double most_bytes(const struct card_bound *of, double period_ns, double latency_ns)
{
    uint64_t low = 0, high = CONFIG_PROFILE_COPY_BYTES_MAX;
    while (high - low > 1 + low / 65536) {
        uint64_t middle = low + (high - low) / 2;
        if (holds(of, middle, period_ns, latency_ns))
            low = middle;
        else
            high = middle;
    }
    return low > 0 ? (double)high : 0; /* high: at least what really is the most */
}

/* R(x), in bytes per ns, of the periods down to 2^(-steps/24) x. Between two periods of the search, the
 * stages have the longer one and the latency the shorter, so that no period is better than what is found. */
static double best_rate(const struct card_bound *of, double latency_ns, int steps)
{
    if (of->paper)
        return most_bytes(of, latency_ns / 4, latency_ns) / (latency_ns / 4);
    double best = 0, longer_ns = latency_ns;
    for (int i = 1; i <= steps && longer_ns > 1; i++) {
        double shorter_ns = latency_ns * exp2(-(double)i / PERIODS_PER_OCTAVE);
        double rate = most_bytes(of, longer_ns, latency_ns - shorter_ns) / shorter_ns;
        best = rate > best ? rate : best;
        longer_ns = shorter_ns;
    }
    return best;
}

/* No d' of a point's streams is longer than this. */
static double point_latency_ns(int point)
{
    return exp2((double)(point + 1) / STEPS_PER_OCTAVE + SLACK);
}

static int point_of(core_ns work_ns)
{
    return (int)floor(log2((double)work_ns) * STEPS_PER_OCTAVE);
}

struct prices {
    int low, high; /* points in use */
    double price[POINTS];
};

static void find_points(const struct partition_problem *problem, struct prices *prices)
{
    prices->low = POINTS - 1;
    prices->high = 0;
    for (size_t i = 0; i < problem->count; i++) {
        if (problem->work_ns[i] <= 0)
            continue;
        int point = point_of(problem->work_ns[i]);
        prices->low = point < prices->low ? point : prices->low;
        prices->high = point > prices->high ? point : prices->high;
    }
}

static struct card_bound card_bound_of(const struct partition_problem *problem, uint32_t kind)
{
    const struct config_profile *profile = problem->input->profile;
    return (struct card_bound){.card = &profile->gpus[kind],
                               .busy = partition_problem_busy(problem, &profile->gpus[kind]),
                               .paper = problem->input->paper,
                               .margin = 1 + profile->margins.percent / 100.0,
                               .share = best_share(&profile->gpus[kind])};
}

/* R at every point in use, never falling. Periods up to x/4 are good for x wherever they are good at all (all
 * stages fit them), so what a point does not look at was looked at below it, and the lowest looks at all. */
static void rate_points(const struct card_bound *of, const struct prices *prices, double *rate)
{
    double most = 0;
    for (int point = prices->low; point <= prices->high; point++) {
        int octaves = point == prices->low ? POINTS / STEPS_PER_OCTAVE : 3;
        double here = best_rate(of, point_latency_ns(point), octaves * PERIODS_PER_OCTAVE);
        most = here > most ? here : most;
        rate[point] = most;
    }
}

/* min over g of lambda_g / R_g at each point; the lambdas are the shares of the rates at the highest. */
static void price_points(const struct partition_problem *problem, struct prices *prices)
{
    const struct config_profile *profile = problem->input->profile;
    double rate[CONFIG_PROFILE_GPU_KINDS_MAX][POINTS]; /* 176 kB */
    double sum = 0;
    find_points(problem, prices);
    for (int point = 0; point < POINTS; point++)
        prices->price[point] = INFINITY;
    for (uint32_t kind = 0; kind < profile->gpu_count && prices->low <= prices->high; kind++) {
        struct card_bound of = card_bound_of(problem, kind);
        rate_points(&of, prices, rate[kind]);
        sum += rate[kind][prices->high] * profile->gpus[kind].count;
    }
    for (uint32_t kind = 0; kind < profile->gpu_count && sum > 0; kind++) {
        double lambda = rate[kind][prices->high] / sum;
        for (int point = prices->low; point <= prices->high; point++)
            if (rate[kind][point] > 0)
                prices->price[point] = fmin(prices->price[point], lambda / rate[kind][point]);
    }
}

/* What a stream takes of all GPUs; INFINITY: no GPU can have it. */
static double gpu_price(const struct partition_problem *problem, const struct prices *prices, size_t i)
{
    const struct core_stream_spec *spec = &problem->input->specs[i];
    if (problem->work_ns[i] <= 0)
        return INFINITY;
    double bytes = problem->input->paper ? spec->packet_bytes
                                         : core_stream_padded_bytes(spec->padding, spec->packet_bytes);
    return bytes / (double)spec->interval_ns * prices->price[point_of(problem->work_ns[i])];
}

/* What the GPUs must take at the least when the workers take what saves most; INFINITY if the workers can not
 * even take what they must. by_stream becomes the gpu_price of each. */
static double least_gpu_load(struct partition_problem *problem, const struct prices *prices,
                             double *by_stream)
{
    double room = problem->input->workers, load = 0;
    for (size_t i = 0; i < problem->count; i++) {
        double share = (double)(problem->share_ppb[i] - 1) / 1e9; /* it was rounded up */
        by_stream[i] = gpu_price(problem, prices, i);
        bool never = problem->share_ppb[i] > PARTITION_SHARE_ONE;
        if (never && isinf(by_stream[i]))
            return INFINITY;
        if (isinf(by_stream[i]))
            room -= share;
        double worth = never || isinf(by_stream[i]) ? 0 : by_stream[i] / fmax(share, 1e-12);
        problem->dealt_bytes[i] = ~(uint64_t)fmin(worth * 1e9, 1e18);
        load += isinf(by_stream[i]) ? 0 : by_stream[i];
    }
    if (room < 0)
        return INFINITY;
    partition_order(problem->by_job, problem->dealt_bytes, problem->count, problem->order,
                    problem->sort_bytes);
    for (size_t k = 0; k < problem->count && room > 0; k++) {
        size_t i = problem->by_job[k];
        if (isinf(by_stream[i]) || problem->share_ppb[i] > PARTITION_SHARE_ONE)
            continue;
        double share = fmax((double)(problem->share_ppb[i] - 1) / 1e9, 1e-12);
        double part = fmin(1, room / share);
        room -= part * share;
        load -= part * by_stream[i];
    }
    return load;
}

core_status partition_bound_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    struct partition_problem *problem = NULL;
    double *by_stream = malloc((input->count + 1) * sizeof *by_stream);
    struct prices *prices = malloc(sizeof *prices);
    core_status status = CORE_NO_MEMORY;
    if (by_stream == NULL || prices == NULL)
        goto done;
    status = partition_problem_create(input, &problem);
    if (status != CORE_OK)
        goto done;
    price_points(problem, prices);
    double load = least_gpu_load(problem, prices, by_stream);
    plan->accepted = load <= 1 + SLACK;
    if (!plan->accepted)
        partition_plan_refuse(plan, PARTITION_PLAN_FLUID, 0,
                              "as a fluid, with full workers, the streams would need %.2f %% of all GPUs",
                              load * 100);
done:
    partition_problem_destroy(problem);
    free(prices);
    free(by_stream);
    return status;
}
