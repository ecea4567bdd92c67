#include "partition/check_flow.h"

#include "partition/check_card.h"

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
    long double end = flow->stairs ? flow->row_bytes[0] : flow->burst_bytes + stage->mean_bytes;
    if (up)
        end += (long double)flow->jobs * card->job_bytes;
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
static core_status hull_of_kernel(const struct partition_check_flow *flow, struct hull *hull)
{
    size_t sms = flow->card->sms, rounds = (flow->jobs + sms - 1) / sms;
    hull->corner = malloc((rounds + 2) * sizeof *hull->corner);
    if (hull->corner == NULL)
        return CORE_NO_MEMORY;
    hull_add(hull, 0, 0);
    for (size_t round = 1; round <= rounds; round++)
        hull_add(hull, (long double)((round - 1) * sms + 1), partition_check_price(flow->card, round));
    return CORE_OK;
}

/* ---- stages ---- */

static core_status stage_make(struct stage *stage)
{
    enum partition_check_stage which = stage->which;
    core_status status = CORE_OK;
    if (which == PARTITION_CHECK_KERNEL)
        return hull_of_kernel(stage->flow, &stage->kernel);
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
    long double ns = 0;
    if (stage->up.count > 0)
        ns += hull_at(&stage->up, bytes + (long double)flow->jobs * flow->card->job_bytes);
    if (stage->down.count > 0)
        ns += hull_at(&stage->down, bytes);
    if (stage->kernel.count > 0) {
        long double jobs = bytes / stage->job_bytes;
        ns += (long double)flow->card->launch_ns +
              stage->job_bytes * hull_at(&stage->kernel, jobs) * partition_check_byte_ns(flow->card);
    }
    return ns * flow->margin + stage->extra_ns;
}

/* L S(P/L + rho T) - (L-1) T, as T and what it grows by, so that it is exact where that is little. */
static long double late_ns(const struct stage *stage, long double length)
{
    const struct partition_check_flow *flow = stage->flow;
    long double bytes = flow->burst_bytes / length + stage->mean_bytes;
    return flow->period_ns + length * (stage_ns(stage, bytes) - flow->period_ns);
}

/* The least length of which nothing else is known. */
static long double first_length(const struct stage *stage)
{
    return stage->flow->stairs ? PARTITION_CHECK_ROWS + 1 : 1;
}

/* The whole length from which on it does not grow. */
static long double peak(const struct stage *stage)
{
    long double low = first_length(stage), high = low;
    while (high < LENGTH_MAX && late_ns(stage, 2 * high) > late_ns(stage, high))
        high *= 2;
    low = fmaxl(first_length(stage), high / 2);
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

/* Over all lengths from the first on: the peak is less than 1 from the whole one. */
static long double most_ns(const struct stage *stage)
{
    if (!keeps_up(stage))
        return INFINITY;
    long double at = peak(stage), low = fmaxl(first_length(stage), at - 1), high = at + 1;
    for (int i = 0; i < 200; i++) {
        long double a = low + (high - low) / 3, b = high - (high - low) / 3;
        if (late_ns(stage, a) < late_ns(stage, b))
            low = a;
        else
            high = b;
    }
    return late_ns(stage, low);
}

/* ---- stairs ---- */

/* Of the fullest batch, exactly. */
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

/* With what is known of a single batch, which was rounded up as each of a row, and of short rows; longest_ns
 * is the most of longer ones. */
static long double stairs_ns(const struct stage *stage, long double longest_ns)
{
    const struct partition_check_flow *flow = stage->flow;
    const long double alone_ns = single_ns(stage) + stage->extra_ns;
    if (alone_ns <= flow->period_ns)
        return alone_ns;
    for (int n = 1; n <= PARTITION_CHECK_ROWS; n++) {
        long double each_ns = fminl(alone_ns, stage_ns(stage, flow->row_bytes[n - 1] / n));
        longest_ns = fmaxl(longest_ns, n * each_ns - (n - 1) * flow->period_ns);
    }
    return longest_ns;
}

static long double mean_ns(const struct stage *stage)
{
    long double ns = stage_ns(stage, stage->mean_bytes), alone_ns = single_ns(stage) + stage->extra_ns;
    bool alone = stage->flow->stairs && alone_ns <= stage->flow->period_ns;
    return alone ? fminl(ns, alone_ns) : ns;
}

core_status partition_check_flow(const struct partition_check_flow *flow, enum partition_check_stage which,
                                 struct partition_check_range *range)
{
    long double extra_ns = which == PARTITION_CHECK_COPIES ? 2 * ROUNDING_NS : ROUNDING_NS;
    struct stage exact = {.flow = flow, .which = which}, rounded = exact;
    exact.mean_bytes = flow->rate * flow->period_ns;
    exact.job_bytes = flow->job_bytes;
    rounded.mean_bytes = ceill(flow->rate_max * flow->period_ns);
    rounded.job_bytes = flow->job_bytes_max;
    rounded.extra_ns = extra_ns;
    core_status status = stage_make(&exact);
    if (status == CORE_OK)
        status = stage_make(&rounded);
    if (status == CORE_OK)
        *range = (struct partition_check_range){.least_ns = least_ns(&exact),
                                                .most_ns = most_ns(&rounded),
                                                .mean_least_ns = mean_ns(&exact),
                                                .mean_most_ns = mean_ns(&rounded)};
    if (status == CORE_OK && flow->stairs) {
        range->least_ns = stairs_ns(&exact, range->least_ns);
        range->most_ns = stairs_ns(&rounded, range->most_ns);
    }
    stage_free(&exact);
    stage_free(&rounded);
    return status;
}
