#include "partition/check/check_flow.h"

#include "partition/check/check_card.h"

#include <math.h>
#include <stdlib.h>

#define LENGTH_MAX  0x1p50L /* batches in a row; beyond, P / L is nothing beside rho T */
#define ROUNDING_NS 6.0L /* that a stage may be rounded up by, in a batch: tables, margin, and both again */

struct point {
    long double x, y;
};

/* The least concave function above some points, by falling slopes between its corners. */
struct hull {
    struct point *corner;
    size_t count;
};

/* S of a batch of x bytes. */
struct stage {
    const struct partition_check_flow *flow;
    enum partition_check_stage which;
    struct hull up, kernel, down; /* those in use */
    long double mean_bytes;       /* rho T */
    long double job_bytes;        /* w */
    uint64_t jobs;                /* n */
    long double extra_ns;
};

/* ---- hulls ---- */

/* The next point to the right. */
static void hull_add(struct hull *hull, long double x, long double y)
{
    struct point at = {x, y};
    while (hull->count >= 2) {
        const struct point *b = &hull->corner[hull->count - 1], *a = b - 1;
        if ((b->y - a->y) * (at.x - a->x) > (at.y - a->y) * (b->x - a->x))
            break;
        hull->count--;
    }
    hull->corner[hull->count++] = at;
}

/* Left of the last corner on the hull, right of it as high as there. */
static long double hull_at(const struct hull *hull, long double x)
{
    size_t low = 0, high = hull->count - 1;
    if (x >= hull->corner[high].x)
        return hull->corner[high].y;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (hull->corner[middle].x <= x)
            low = middle;
        else
            high = middle;
    }
    const struct point *a = &hull->corner[low], *b = &hull->corner[high];
    return a->y + (b->y - a->y) / (b->x - a->x) * (x - a->x);
}

/* Of a copy, up to the fullest batch. */
static core_status hull_of_copy(const struct stage *stage, bool up, struct hull *hull)
{
    const struct partition_check_flow *flow = stage->flow;
    const struct config_profile_gpu *card = flow->card;
    long double end = flow->burst_bytes + stage->mean_bytes;
    if (up)
        end += (long double)stage->jobs * card->job_bytes;
    hull->corner = malloc((card->copy_count + 2) * sizeof *hull->corner);
    if (hull->corner == NULL)
        return CORE_NO_MEMORY;
    hull_add(hull, 0, partition_check_copy_ns(card, up, flow->busy, 1));
    for (uint32_t row = 0; row < card->copy_count; row++) {
        long double bytes = (long double)card->copies[row].bytes;
        if (bytes < end)
            hull_add(hull, bytes, partition_check_copy_ns(card, up, flow->busy, bytes));
    }
    hull_add(hull, end, partition_check_copy_ns(card, up, flow->busy, end));
    return CORE_OK;
}

/* Of c(ceil(N / M)): it rises with the first job of each round over the SMs. */
static core_status hull_of_kernel(const struct stage *stage, struct hull *hull)
{
    const struct partition_check_flow *flow = stage->flow;
    size_t sms = flow->card->sms, rounds = (stage->jobs + sms - 1) / sms;
    hull->corner = malloc((rounds + 2) * sizeof *hull->corner);
    if (hull->corner == NULL)
        return CORE_NO_MEMORY;
    hull_add(hull, 0, 0);
    for (size_t round = 1; round <= rounds; round++)
        hull_add(hull, (long double)((round - 1) * sms + 1), partition_check_price(flow->card, round, false));
    return CORE_OK;
}

/* ---- stages ---- */

static core_status stage_make(struct stage *stage)
{
    enum partition_check_stage which = stage->which;
    core_status status = CORE_OK;
    if (which == PARTITION_CHECK_KERNEL)
        return hull_of_kernel(stage, &stage->kernel);
    if (which != PARTITION_CHECK_DOWN)
        status = hull_of_copy(stage, true, &stage->up);
    if (which != PARTITION_CHECK_UP && status == CORE_OK)
        status = hull_of_copy(stage, false, &stage->down);
    return status;
}

static void stage_free(struct stage *stage)
{
    free(stage->up.corner);
    free(stage->kernel.corner);
    free(stage->down.corner);
}

static long double stage_ns(const struct stage *stage, long double bytes)
{
    const struct partition_check_flow *flow = stage->flow;
    long double copies_ns = 0, kernel_ns = 0;
    if (stage->up.count > 0)
        copies_ns += hull_at(&stage->up, bytes + (long double)stage->jobs * flow->card->job_bytes);
    if (stage->down.count > 0)
        copies_ns += hull_at(&stage->down, bytes);
    if (stage->kernel.count > 0) {
        long double jobs = bytes / stage->job_bytes;
        kernel_ns = (long double)flow->card->launch_ns +
                    stage->job_bytes * hull_at(&stage->kernel, jobs) * partition_check_byte_ns(flow->card);
    }
    return copies_ns * flow->copies + kernel_ns * flow->kernels + stage->extra_ns;
}

/* L S(P/L + rho T) - (L-1) T, as T and what it grows by, so that it is exact where that is little. */
static long double late_ns(const struct stage *stage, long double length)
{
    const struct partition_check_flow *flow = stage->flow;
    long double bytes = flow->burst_bytes / length + stage->mean_bytes;
    return flow->period_ns + length * (stage_ns(stage, bytes) - flow->period_ns);
}

/* The whole length from which on it does not grow. */
static long double peak(const struct stage *stage)
{
    long double low = 1, high = low;
    while (high < LENGTH_MAX && late_ns(stage, 2 * high) > late_ns(stage, high))
        high *= 2;
    low = fmaxl(1, high / 2);
    high *= 2;
    while (high - low > 1) {
        long double middle = floorl((low + high) / 2);
        if (late_ns(stage, middle + 1) > late_ns(stage, middle))
            low = middle;
        else
            high = middle;
    }
    return late_ns(stage, low) >= late_ns(stage, high) ? low : high;
}

static bool keeps_up(const struct stage *stage)
{
    return stage_ns(stage, stage->mean_bytes) <= stage->flow->period_ns;
}

/* Over whole lengths. */
static long double least_ns(const struct stage *stage)
{
    return keeps_up(stage) ? late_ns(stage, peak(stage)) : INFINITY;
}

/* Over all lengths from 1 on: the peak is less than 1 from the whole one. */
static long double most_ns(const struct stage *stage)
{
    if (!keeps_up(stage))
        return INFINITY;
    long double at = peak(stage), low = fmaxl(1, at - 1), high = at + 1;
    for (int i = 0; i < 200; i++) {
        long double a = low + (high - low) / 3, b = high - (high - low) / 3;
        if (late_ns(stage, a) < late_ns(stage, b))
            low = a;
        else
            high = b;
    }
    return late_ns(stage, low);
}

/* ---- the fullest batch by itself ---- */

static long double single_ns(const struct stage *stage)
{
    const struct partition_check_flow *flow = stage->flow;
    switch (stage->which) {
    case PARTITION_CHECK_UP:
        return flow->up_ns;
    case PARTITION_CHECK_KERNEL:
        return flow->kernel_ns;
    case PARTITION_CHECK_DOWN:
        return flow->down_ns;
    case PARTITION_CHECK_COPIES:
        return flow->up_ns + flow->down_ns;
    }
    return INFINITY;
}

/* Of a stage of which no batch outlasts the period; else the other. */
static long double or_single_ns(const struct stage *stage, long double ns)
{
    long double alone_ns = single_ns(stage) + stage->extra_ns;
    return alone_ns <= stage->flow->period_ns ? fminl(ns, alone_ns) : ns;
}

static long double mean_ns(const struct stage *stage)
{
    return or_single_ns(stage, stage_ns(stage, stage->mean_bytes));
}

/* ---- one stage ---- */

/* Exactly, and as rounding may make it. */
static core_status stages_make(const struct partition_check_flow *flow, enum partition_check_stage which,
                               struct stage *exact, struct stage *rounded)
{
    *exact = *rounded = (struct stage){.flow = flow, .which = which};
    exact->mean_bytes = flow->rate * flow->period_ns;
    exact->job_bytes = flow->job_bytes;
    exact->jobs = flow->jobs;
    rounded->mean_bytes = ceill(flow->rate_max * flow->period_ns);
    rounded->job_bytes = flow->job_bytes_max;
    rounded->jobs = flow->jobs_max;
    rounded->extra_ns = which == PARTITION_CHECK_COPIES ? 2 * ROUNDING_NS : ROUNDING_NS;
    core_status status = stage_make(exact);
    return status == CORE_OK ? stage_make(rounded) : status;
}

core_status partition_check_flow(const struct partition_check_flow *flow, enum partition_check_stage which,
                                 struct partition_check_range *range)
{
    struct stage exact, rounded;
    core_status status = stages_make(flow, which, &exact, &rounded);
    if (status == CORE_OK)
        *range = (struct partition_check_range){.least_ns = or_single_ns(&exact, least_ns(&exact)),
                                                .most_ns = or_single_ns(&rounded, most_ns(&rounded)),
                                                .mean_least_ns = mean_ns(&exact),
                                                .mean_most_ns = mean_ns(&rounded)};
    stage_free(&exact);
    stage_free(&rounded);
    return status;
}

/* ---- one copy engine ---- */

/* A time for which the engine is busy up to the moment at which a copy is to have ended: so many batches of
 * each direction may have come. */
struct busy {
    const struct stage *copies;
    long double ups, downs; /* at a time of 0, more by one with every period */
};

/* What they take beyond the time that there is, the copy's own bound included; they are counted by parts, and
 * less than one batch takes no less than its part of the fullest. */
static long double beyond_ns(const struct busy *busy, long double periods)
{
    const struct partition_check_flow *flow = busy->copies->flow;
    long double ups = busy->ups + periods, downs = busy->downs + periods;
    struct stage up = *busy->copies, down = *busy->copies;
    up.down.count = down.up.count = 0;
    long double ns = ups * stage_ns(&up, flow->burst_bytes / ups + up.mean_bytes);
    if (downs > 0)
        ns += downs * stage_ns(&down, flow->burst_bytes / downs + down.mean_bytes);
    return ns - periods * flow->period_ns;
}

/* The most, over all times. */
static long double busiest_ns(const struct busy *busy)
{
    long double low = 0, high = 1;
    while (high < LENGTH_MAX && beyond_ns(busy, 2 * high) > beyond_ns(busy, high))
        high *= 2;
    high *= 2;
    for (int i = 0; i < 300; i++) {
        long double a = low + (high - low) / 3, b = high - (high - low) / 3;
        if (beyond_ns(busy, a) < beyond_ns(busy, b))
            low = a;
        else
            high = b;
    }
    return beyond_ns(busy, low);
}

/* A straight line above a hull, from one of its corners to the next; level from the last one. */
static struct point edge(const struct hull *hull, size_t n)
{
    if (n + 1 == hull->count)
        return (struct point){0, hull->corner[n].y};
    const struct point *a = &hull->corner[n], *b = a + 1;
    long double slope = (b->y - a->y) / (b->x - a->x);
    return (struct point){slope, a->y - slope * a->x}; /* slope, and where it begins */
}

/* The least x = most + (x + more) share / T. */
static long double solved_ns(long double most_ns, long double more_ns, long double share)
{
    return (most_ns + more_ns * share) / (1 - share);
}

/* By one line of each direction, if the two keep up. */
static void try_lines(const struct stage *copies, struct point up, struct point down,
                      struct partition_check_turns *turns)
{
    const struct partition_check_flow *flow = copies->flow;
    const long double T = flow->period_ns, P = flow->burst_bytes, rounding_ns = copies->extra_ns / 2;
    const long double tables = (long double)copies->jobs * flow->card->job_bytes;
    long double up_first_ns = flow->copies * (up.y + up.x * (P + copies->mean_bytes + tables)) + rounding_ns;
    long double down_first_ns = flow->copies * (down.y + down.x * (P + copies->mean_bytes)) + rounding_ns;
    long double up_ns = up_first_ns - flow->copies * up.x * P;
    long double down_ns = down_first_ns - flow->copies * down.x * P;
    if (up_ns + down_ns > T)
        return;
    long double first_ns = up_first_ns + flow->copies * down.x * P;
    turns->up.most_ns = fminl(turns->up.most_ns, solved_ns(first_ns, turns->kernel_ns, down_ns / T));
    first_ns = up_first_ns + down_first_ns;
    turns->down.most_ns = fminl(turns->down.most_ns, solved_ns(first_ns, flow->in_ns, up_ns / T));
}

static void try_all_lines(const struct stage *copies, struct partition_check_turns *turns)
{
    const struct hull *ups = &copies->up, *downs = &copies->down;
    for (size_t up = 0; up < ups->count; up++)
        for (size_t down = 0; down < downs->count; down++)
            try_lines(copies, edge(ups, up), edge(downs, down), turns);
}

/* Both copies of the fullest batch, as their hulls have it. */
static long double fullest_ns(const struct stage *copies)
{
    return stage_ns(copies, copies->flow->burst_bytes + copies->mean_bytes);
}

static void range_turns(const struct stage *exact, const struct stage *rounded,
                        struct partition_check_turns *turns)
{
    const struct partition_check_flow *flow = exact->flow;
    const long double T = flow->period_ns, single_ns = or_single_ns(exact, INFINITY);
    struct busy up = {exact, 1, (turns->up_ns + turns->kernel_ns) / T};
    struct busy down = {exact, 1 + (turns->down_ns + flow->in_ns) / T, 1};
    turns->up.least_ns = keeps_up(exact) ? busiest_ns(&up) : INFINITY;
    turns->down.least_ns = keeps_up(exact) ? busiest_ns(&down) : INFINITY;
    turns->up.most_ns = turns->down.most_ns = INFINITY;
    try_all_lines(rounded, turns);
    long double most_ns = or_single_ns(rounded, INFINITY), least_ns = single_ns;
    if (fullest_ns(exact) <= T)
        least_ns = fminl(least_ns, fullest_ns(exact));
    if (fullest_ns(rounded) <= T)
        most_ns = fminl(most_ns, fullest_ns(rounded));
    turns->up.least_ns = fminl(turns->up.least_ns, least_ns);
    turns->down.least_ns = fminl(turns->down.least_ns, least_ns);
    turns->up.most_ns = fminl(turns->up.most_ns, most_ns);
    turns->down.most_ns = fminl(turns->down.most_ns, most_ns);
}

core_status partition_check_turns(const struct partition_check_flow *flow,
                                  struct partition_check_turns *turns)
{
    struct stage exact, rounded;
    core_status status = stages_make(flow, PARTITION_CHECK_COPIES, &exact, &rounded);
    if (status == CORE_OK)
        range_turns(&exact, &rounded, turns);
    stage_free(&exact);
    stage_free(&rounded);
    return status;
}
