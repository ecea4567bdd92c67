#include "bench/gpu/fit.h"

#include <math.h>

#define RAISED      1.02 /* by more than this: noise */
#define OVERLAP_MIN 0.25 /* below, what is measured of the other pace is mostly noise */

static void raise(core_ns *value_ns, core_ns least_ns)
{
    if (*value_ns < least_ns)
        *value_ns = least_ns;
}

void bench_gpu_fit_copies(struct config_profile_copy *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct config_profile_copy *row = &rows[i];
        const struct config_profile_copy *before = i > 0 ? &rows[i - 1] : row;
        raise(&row->up_ns, core_time_max(before->up_ns, 1));
        raise(&row->down_ns, core_time_max(before->down_ns, 1));
        raise(&row->up_busy_ns, before->up_busy_ns);
        raise(&row->down_busy_ns, before->down_busy_ns);
        raise(&row->up_busy_ns, row->up_ns);
        raise(&row->down_busy_ns, row->down_ns);
    }
}

core_ns bench_gpu_fit_busy_ns(core_ns taken_ns, core_ns alone_ns, double overlap)
{
    if (overlap < OVERLAP_MIN || taken_ns <= alone_ns)
        return taken_ns;
    /* what was done alone; the rest was done at the busy pace */
    const double alone = (1 - overlap) * (double)taken_ns / (double)alone_ns;
    const double busy_ns = overlap * (double)taken_ns / (1 - alone);
    return alone < 1 && busy_ns > (double)taken_ns ? (core_ns)ceil(busy_ns) : taken_ns;
}

/* Nanoseconds for each byte of a job: c(n) / Phi. */
static double slope(const struct bench_gpu_kernel_point *point)
{
    return (double)(point->long_ns - point->short_ns) / (double)(point->long_bytes - point->short_bytes);
}

/* The slope of point `at`, not below what it can be: `before`, that of the point before; or, of the first,
 * its share of every other's. */
static double slope_raised(const struct bench_gpu_kernel_point *points, uint32_t count, uint32_t at,
                           double before)
{
    double raised = fmax(slope(&points[at]), before);
    for (uint32_t i = 1; at == 0 && i < count; i++)
        raised = fmax(raised, slope(&points[i]) / points[i].jobs);
    return raised;
}

core_status bench_gpu_fit_kernel(const struct bench_gpu_kernel_point *points, uint32_t count,
                                 struct bench_gpu_kernel_fit *fit, struct core_error *error)
{
    double peak = 0, launch_ns = 0, raised = 0;

    fit->raised = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_gpu_kernel_point *point = &points[i];
        raised = slope_raised(points, count, i, raised);
        if (raised <= 0)
            return core_error_set(
                error, CORE_INVALID,
                "kernels of %u jobs on each SM do not take longer with longer jobs, nor do others: %lld ns "
                "and %lld ns; calibrate again, with nothing else on the card",
                point->jobs, (long long)point->short_ns, (long long)point->long_ns);
        fit->raised += raised > RAISED * slope(point);
        peak = fmax(peak, point->jobs / raised);
        launch_ns = fmax(launch_ns, (double)point->short_ns - (double)point->short_bytes * raised);
    }
    peak = fmin(peak, CONFIG_PROFILE_SM_RATE_MAX / 1e9);
    fit->launch_ns = (core_ns)ceil(launch_ns);
    fit->sm_bytes_per_s = (int64_t)floor(peak * 1e9);
    raised = 0;
    for (uint32_t i = 0; i < count; i++) {
        raised = slope_raised(points, count, i, raised);
        const double ppm = floor(points[i].jobs / raised / peak * CONFIG_PROFILE_SHARE_PPM);
        fit->rows[i] = (struct config_profile_utilisation){
            .jobs = points[i].jobs, .share_ppm = ppm < 1 ? 1 : (uint32_t)fmin(ppm, CONFIG_PROFILE_SHARE_PPM)};
    }
    return CORE_OK;
}

/* How long the row's jobs take for each byte of one, without launch. */
static double row_time(const struct config_profile_gpu *gpu, uint32_t row)
{
    return gpu->utilisation[row].jobs / (double)gpu->utilisation[row].share_ppm / (double)gpu->sm_bytes_per_s;
}

bool bench_gpu_fit_is_faster(const struct config_profile_gpu *b, const struct config_profile_gpu *a)
{
    const uint32_t rows =
        a->utilisation_count < b->utilisation_count ? a->utilisation_count : b->utilisation_count;
    double ratio = 0;
    for (uint32_t row = 0; row < rows; row++)
        ratio += log(row_time(b, row) / row_time(a, row));
    return ratio < 0;
}
