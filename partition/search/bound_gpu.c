/* What GPUs must spend on a stream, whatever its mix and the period.
 *
 * Let a GPU with period T hold a set of streams, by any rule of plan.h. Let b = rho T be the bytes of a
 * batch in the long run, f those of the fullest one, m the margins, U the best utilisation, c1 = c(1):
 *
 *   (a) in the long run   copies of b bytes take at most T (one copy engine: both together), and so does a
 *       kernel: by single batches launch + max(c1 k p^, b / (M U)) / Phi, by the backlog launch + min(c1 b,
 *       c1 (k-1) p^ + b / (M U)) / Phi, with the least k p^ and (k-1) p^ of any stream;
 *   (b) a full batch        T, its copies (one engine: that up twice, as a copy back has one beside it) and
 *       its kernel, launch + max(c1 k p^, f / (M U)) / Phi, take at most d' of every stream.
 *
 * For b <= f <= W of a single batch, and of the stairs, where no bound is below a full batch's own times; for
 * b and f = P + rho T of the backlog, since majorants are above tables; and for kernels of the backlog: w is
 * the longest job, x = b/w, so K = launch + w g^(x) / Phi. For x
 * <= 1 that is c1 b. Beyond, g^ is above the line from (1, c1) to (n, A), A = q n <= g(n), so
 *
 *     w g^(x) >= c1 (w - b/n) + A (b-w) / (n-1) >= (c1 - q) (w - b/n) + q b (1 - 1/n),
 *
 * and for A <= c1 even c1 (w - b/n) + q b; otherwise 1/n < q/c1. And w - b/n >= (k-1) p^: w is the largest k
 * p^ and the fastest stream's bytes of a period, less than the divisor of all p^ off, and b/n the mean of
 * such bytes. (By stairs it is the largest (k + floor(T/t)) p^, so no less than the mean of (k-1) p^ + p^
 * T/t.) Of a stream whose packets stand alone a job is a packet, p^ and nothing are for k p^ and (k-1) p^, and
 * n is the number of all jobs: w >= p^, which is more than the mean of its jobs in b/n.
 *
 * So with B(T) the most bytes that (a) allows, and F(x) the most that (b) allows in x, a GPU's streams have
 *
 *     sum r T / min(B(T), F(d' - T)) <= 1    and    sum max(k, k-1 + T/t) p^ / F(d' - T) <= 1.
 *
 * For each T one of the two may be chosen, the same for all streams; a stream's price is the least over T, as
 * nobody knows T. So a choice that asks more of all streams together may ask less of some: both are told,
 * the first sum at every T, and at each T the one that asks more. Between two periods of the search, stages
 * have the longer one, latency and rates the shorter, so that no period is better than what is found; B(T)/T
 * is found in smaller steps. With unlike cards, prices of kind g are weighted
 * by any lambda_g that sum to 1 over the cards, and the least of them counts. */
#include "partition/search/bound.h"

#include <math.h>
#include <stdlib.h>

#define PERIODS_PER_OCTAVE 32
#define PERIODS_MAX        (43 * PERIODS_PER_OCTAVE)
#define STEPS_PER_PERIOD   8
#define ROOMS_PER_OCTAVE   64
#define ROOMS_MAX          (43 * ROOMS_PER_OCTAVE)
#define SLACK              1e-9

struct card_bound {
    const struct config_profile_gpu *card;
    bool busy, turns;
    bool default_period;        /* T is d_min / 4 at most, whatever the stages take */
    double copies, kernels;     /* 1 and the margin */
    double per_byte_ns;         /* 1 / (M U Phi) */
    double alone_ns;            /* c1 / Phi */
    double job, rest;           /* least k p^ and (k-1) p^ */
    double full[ROOMS_MAX + 1]; /* F by the logarithm of x, at the next step; -1: not computed */
};

/* The greatest share of its peak that an SM ever reaches. */
static double best_share(const struct config_profile_gpu *card)
{
    uint32_t best = 0;
    for (uint32_t row = 0; row < card->utilisation_count; row++)
        if (card->utilisation[row].share_ppm > best)
            best = card->utilisation[row].share_ppm;
    return (double)best / CONFIG_PROFILE_SHARE_PPM;
}

static double with_margin(uint32_t margin_ppm)
{
    return 1 + (double)margin_ppm / CONFIG_PROFILE_MARGIN_PPM;
}

static void card_bound_prepare(struct card_bound *of, const struct partition_problem *problem, uint32_t kind)
{
    const struct partition_plan_input *input = problem->input;
    const struct config_profile_gpu *card = &input->profile->gpus[kind];
    double ns_per_byte = 1e9 / (double)card->sm_bytes_per_s;
    *of = (struct card_bound){.card = card,
                              .busy = partition_problem_busy(problem, card),
                              .default_period = input->paper,
                              .turns = card->copy_engines < 2 && !input->paper,
                              .copies = with_margin(input->profile->margins.copies_ppm),
                              .kernels = with_margin(input->profile->margins.kernels_ppm),
                              .per_byte_ns = ns_per_byte / best_share(card) / card->sms,
                              .job = INFINITY,
                              .rest = INFINITY};
    /* the share was rounded down by less than one ppm */
    of->alone_ns = ns_per_byte * CONFIG_PROFILE_SHARE_PPM / (perfmodel_utilisation_ppm(card, 1) + 1.0);
    for (size_t i = 0; i < problem->count && !input->paper; i++) {
        const struct core_stream_spec *spec = &problem->specs[i];
        const double packet = core_stream_packet_bytes(spec);
        const double packets = core_stream_packets_alone(spec) ? 1 : spec->burst_packets;
        of->job = fmin(of->job, packet * packets);
        of->rest = fmin(of->rest, packet * (packets - 1));
    }
    if (input->paper)
        of->job = of->rest = 0;
    for (int room = 0; room <= ROOMS_MAX; room++)
        of->full[room] = -1;
}

static double copy_ns(const struct card_bound *of, enum perfmodel_direction direction, uint64_t bytes)
{
    return of->copies * (double)perfmodel_copy_ns(of->card, direction, of->busy, bytes);
}

/* (a) */
static bool lasts(const struct card_bound *of, double bytes, double period_ns)
{
    double up_ns = copy_ns(of, PERFMODEL_UP, (uint64_t)bytes),
           down_ns = copy_ns(of, PERFMODEL_DOWN, (uint64_t)bytes);
    double fluid_ns = bytes * of->per_byte_ns;
    double single_ns = fmax(of->alone_ns * of->job, fluid_ns);
    double tail_ns =
        (of->alone_ns - of->per_byte_ns) * of->rest + (1 - of->per_byte_ns / of->alone_ns) * fluid_ns;
    double backlog_ns = fmax(fluid_ns, fmin(of->alone_ns * bytes, tail_ns));
    double kernel_ns = of->kernels * ((double)of->card->launch_ns + fmin(single_ns, backlog_ns));
    double copies_ns = of->turns ? up_ns + down_ns : fmax(up_ns, down_ns);
    return copies_ns <= period_ns && kernel_ns <= period_ns;
}

/* (b) */
static bool passes(const struct card_bound *of, double bytes, double room_ns)
{
    double up_ns = copy_ns(of, PERFMODEL_UP, (uint64_t)bytes),
           down_ns = copy_ns(of, PERFMODEL_DOWN, (uint64_t)bytes);
    double kernel_ns =
        of->kernels * ((double)of->card->launch_ns + fmax(of->alone_ns * of->job, bytes * of->per_byte_ns));
    return kernel_ns + (of->turns ? 2 : 1) * up_ns + down_ns <= room_ns;
}

/* At least what really is the most, given that so many do hold, or 0. */
static double most_bytes(const struct card_bound *of,
                         bool (*holds)(const struct card_bound *, double, double), double ns, uint64_t known)
{
    uint64_t low = known, high = known, step = 1 + known / 256;
    do {
        low = high;
        high = CONFIG_PROFILE_COPY_BYTES_MAX - low > step ? low + step : CONFIG_PROFILE_COPY_BYTES_MAX;
        step *= 4;
    } while (high > low && holds(of, (double)high, ns));
    while (high - low > 1 + low / 65536) {
        uint64_t middle = low + (high - low) / 2;
        if (holds(of, (double)middle, ns))
            low = middle;
        else
            high = middle;
    }
    return low > 0 ? (double)high : 0;
}

/* F(x), or a little more. */
static double full_bytes(struct card_bound *of, double room_ns)
{
    if (room_ns < 1)
        return 0;
    int room = (int)floor(log2(room_ns) * ROOMS_PER_OCTAVE) + 1;
    if (room > ROOMS_MAX)
        room = ROOMS_MAX;
    if (of->full[room] < 0)
        of->full[room] = most_bytes(of, passes, exp2((double)room / ROOMS_PER_OCTAVE + SLACK), 0);
    return of->full[room];
}

/* ---- periods ---- */

struct period {
    double shorter_ns;
    double rate; /* B/T, at the most */
    bool full;   /* full batches ask more than the long run */
};

struct periods {
    struct period period[PERIODS_MAX];
    int count;
};

/* What of a stream counts: r bytes a ns in the long run, packets of p^, (k-1) p^. */
struct bytes {
    double rate, packet, rest;
};

static struct bytes bytes_of(const struct partition_problem *problem, size_t i)
{
    const struct core_stream_spec *spec = &problem->specs[i];
    double packet = problem->input->paper ? spec->packet_bytes : core_stream_packet_bytes(spec);
    return (struct bytes){packet / (double)spec->interval_ns, packet, packet * (spec->burst_packets - 1.0)};
}

/* Of a full batch. */
static double full_of(const struct bytes *bytes, double period_ns)
{
    double mean = bytes->rate * period_ns;
    return bytes->rest + (mean > bytes->packet ? mean : bytes->packet);
}

/* 1 / min(B/T, F/T), for the rate of a stream beside a d' of this. */
static double per_rate(struct card_bound *of, const struct period *period, double work_ns)
{
    if (of->default_period)
        return period->shorter_ns <= work_ns / 4 ? 1 / period->rate : INFINITY;
    double full = full_bytes(of, work_ns - period->shorter_ns);
    return full > 0 ? fmax(1 / period->rate, period->shorter_ns / full) : INFINITY;
}

/* Which of the two sums is larger, over some of the streams: those that could go to a GPU in this period. */
static bool full_asks_more(struct card_bound *of, const struct partition_problem *problem,
                           const struct period *period)
{
    double sum[2] = {0, 0};
    size_t step = 1 + problem->count / 256;
    for (size_t at = 0; at < problem->count && !problem->input->paper; at += step) {
        size_t i = problem->number[at];
        double work_ns = (double)problem->traffic[i].work_ns,
               full = full_bytes(of, work_ns - period->shorter_ns);
        if (full <= 0)
            continue;
        struct bytes bytes = bytes_of(problem, i);
        sum[0] += bytes.rate * per_rate(of, period, work_ns);
        sum[1] += full_of(&bytes, period->shorter_ns) / full;
    }
    return sum[1] > sum[0];
}

/* The most of B(T)/T from the shorter to the longer; B at the shorter, at least `known`, becomes that at the
 * longer. */
static double best_rate_in(const struct card_bound *of, double shorter_ns, double *known)
{
    double best = 0, from_ns = shorter_ns;
    for (int step = 1; step <= STEPS_PER_PERIOD; step++) {
        double to_ns = shorter_ns * exp2((double)step / STEPS_PER_PERIOD / PERIODS_PER_OCTAVE + SLACK);
        double bytes = most_bytes(of, lasts, to_ns, (uint64_t)*known);
        best = fmax(best, bytes / from_ns);
        *known = bytes - bytes / 32768 - 1 > *known ? floor(bytes - bytes / 32768 - 1) : *known;
        from_ns = to_ns;
    }
    return best;
}

/* The first step at which a kernel of one byte, and its copies, last. */
static int first_lasting(const struct card_bound *of)
{
    int low = 0, high = PERIODS_MAX;
    while (low < high) {
        int middle = (low + high) / 2;
        if (lasts(of, 1, exp2((middle + 1.0) / PERIODS_PER_OCTAVE + SLACK)))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void find_periods(struct card_bound *of, const struct partition_problem *problem,
                         struct periods *periods)
{
    double longest_ns = 0, known = 0;
    for (size_t i = 0; i < problem->count; i++)
        longest_ns = fmax(longest_ns, (double)problem->traffic[i].work_ns);
    periods->count = 0;
    for (int step = first_lasting(of); step < PERIODS_MAX; step++) {
        struct period *period = &periods->period[periods->count];
        *period = (struct period){.shorter_ns = exp2((double)step / PERIODS_PER_OCTAVE)};
        if (period->shorter_ns > longest_ns)
            break;
        period->rate = best_rate_in(of, period->shorter_ns, &known);
        period->full = full_asks_more(of, problem, period);
        periods->count++;
    }
}

/* What is left to do for a stream, once its d' is known to a step. */
struct point {
    int number, full;
    double per_rate;                                      /* the least, where the long run counts */
    double period_ns[PERIODS_MAX], per_byte[PERIODS_MAX]; /* 1 / F, where full batches do */
};

static void point_fill(struct point *point, struct card_bound *of, const struct periods *periods,
                       enum partition_bound_rule rule)
{
    double work_ns = exp2((point->number + 1.0) / ROOMS_PER_OCTAVE + SLACK);
    point->full = 0;
    point->per_rate = INFINITY;
    for (int n = 0; n < periods->count && periods->period[n].shorter_ns <= work_ns; n++) {
        const struct period *period = &periods->period[n];
        if (rule == PARTITION_BOUND_LONG_RUN || !period->full) {
            point->per_rate = fmin(point->per_rate, per_rate(of, period, work_ns));
            continue;
        }
        double full = full_bytes(of, work_ns - period->shorter_ns);
        point->period_ns[point->full] = period->shorter_ns;
        point->per_byte[point->full++] = full > 0 ? 1 / full : INFINITY;
    }
}

static double least_price(const struct bytes *bytes, const struct point *point)
{
    double least = bytes->rate * point->per_rate;
    for (int n = 0; n < point->full; n++) {
        double price = full_of(bytes, point->period_ns[n]) * point->per_byte[n];
        least = price < least ? price : least;
    }
    return least;
}

static void price_kind(const struct partition_problem *problem, struct card_bound *of,
                       const struct periods *periods, enum partition_bound_rule rule, double lambda,
                       double *by_stream)
{
    struct point point = {.number = -1};
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = problem->by_latency[k];
        if (problem->traffic[i].work_ns <= 0)
            continue;
        int number = (int)floor(log2((double)problem->traffic[i].work_ns) * ROOMS_PER_OCTAVE);
        if (number != point.number) {
            point.number = number;
            point_fill(&point, of, periods, rule);
        }
        struct bytes bytes = bytes_of(problem, i);
        by_stream[i] = fmin(by_stream[i], lambda * least_price(&bytes, &point));
    }
}

/* Most bytes per ns of the kind in any period: what the lambdas are in proportion to. */
static double best_rate(const struct periods *periods)
{
    double best = 0;
    for (int n = 0; n < periods->count; n++)
        best = fmax(best, periods->period[n].rate);
    return best;
}

static void price(const struct partition_problem *problem, struct card_bound *of, struct periods *periods,
                  struct partition_bound_prices *prices)
{
    const struct config_profile *profile = problem->input->profile;
    double sum = 0;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++) {
        card_bound_prepare(of, problem, kind);
        find_periods(of, problem, &periods[kind]);
        sum += best_rate(&periods[kind]) * profile->gpus[kind].count;
    }
    for (uint32_t kind = 0; kind < profile->gpu_count && sum > 0; kind++) {
        double lambda = best_rate(&periods[kind]) / sum;
        card_bound_prepare(of, problem, kind);
        for (int rule = 0; rule < PARTITION_BOUND_RULES; rule++)
            price_kind(problem, of, &periods[kind], (enum partition_bound_rule)rule, lambda,
                       prices->by_stream[rule]);
    }
}

core_status partition_bound_prices_create(const struct partition_problem *problem,
                                          struct partition_bound_prices *prices)
{
    struct card_bound *of = malloc(sizeof *of);
    struct periods *periods = malloc((problem->input->profile->gpu_count + 1) * sizeof *periods);
    core_status status = of != NULL && periods != NULL ? CORE_OK : CORE_NO_MEMORY;
    *prices = (struct partition_bound_prices){0};
    for (int rule = 0; rule < PARTITION_BOUND_RULES && status == CORE_OK; rule++) {
        double *by_stream = prices->by_stream[rule] = malloc((problem->count + 1) * sizeof *by_stream);
        status = by_stream != NULL ? CORE_OK : CORE_NO_MEMORY;
        for (size_t i = 0; status == CORE_OK && i < problem->count; i++)
            by_stream[i] = INFINITY;
    }
    if (status == CORE_OK)
        price(problem, of, periods, prices);
    free(periods);
    free(of);
    return status;
}

void partition_bound_prices_free(struct partition_bound_prices *prices)
{
    for (int rule = 0; rule < PARTITION_BOUND_RULES; rule++)
        free(prices->by_stream[rule]);
}
