#include "gpu/emulation.h"

#define NS_MAX    (3600 * CORE_NS_PER_S) /* of one row */
#define SHARE     INT64_C(1000000)
#define BYTES_MAX (UINT64_C(1) << 44)

typedef __int128 wide;

/* Rounded up; d > 0. */
static core_ns divided(wide n, wide d)
{
    const wide q = (n + d - 1) / d;
    return q < CORE_NS_NEVER ? (core_ns)q : CORE_NS_NEVER;
}

static core_ns column_ns(const struct gpu_emulation_copy *row, bool up, bool busy)
{
    if (up)
        return busy ? row->up_busy_ns : row->up_ns;
    return busy ? row->down_busy_ns : row->down_ns;
}

static bool copy_is_good(const struct gpu_emulation_copy *row, const struct gpu_emulation_copy *before)
{
    for (int column = 0; column < 4; column++) {
        const core_ns ns = column_ns(row, column & 1, column & 2);
        if (ns < 1 || ns > NS_MAX || (before && ns < column_ns(before, column & 1, column & 2)))
            return false;
    }
    return row->bytes >= 1 && row->bytes <= BYTES_MAX && (!before || row->bytes > before->bytes);
}

static bool share_is_good(const struct gpu_emulation_share *row, const struct gpu_emulation_share *before)
{
    return row->share_ppm >= 1 && row->share_ppm <= SHARE &&
           (before ? row->jobs > before->jobs : row->jobs == 1);
}

core_status gpu_emulation_check(const struct gpu_emulation *emulation, struct core_error *error)
{
    if (emulation->copy_count < 1 || emulation->copy_count > GPU_EMULATION_COPIES_MAX ||
        emulation->share_count < 1 || emulation->share_count > GPU_EMULATION_SHARES_MAX)
        return core_error_set(error, CORE_INVALID, "emulated card: %u copy rows and %u utilisation rows",
                              emulation->copy_count, emulation->share_count);
    if (emulation->sms < 1 || emulation->sms > 4096 || emulation->sm_bytes_per_s < 1 ||
        emulation->launch_ns < 0 || emulation->launch_ns > CORE_NS_PER_S || emulation->copy_engines < 1 ||
        emulation->copy_engines > 2 || emulation->failure >= GPU_FAILURE_COUNT || emulation->failure_ns < 0 ||
        emulation->failure_ns > 3600 * CORE_NS_PER_S)
        return core_error_set(
            error, CORE_INVALID,
            "emulated card: %u SMs of %lld bytes/s, %u copy engines, launch %lld ns, failure %u",
            emulation->sms, (long long)emulation->sm_bytes_per_s, emulation->copy_engines,
            (long long)emulation->launch_ns, emulation->failure);
    for (uint32_t i = 0; i < emulation->copy_count; i++)
        if (!copy_is_good(&emulation->copies[i], i ? &emulation->copies[i - 1] : NULL))
            return core_error_set(error, CORE_INVALID, "emulated card: row %u of the copies", i);
    for (uint32_t i = 0; i < emulation->share_count; i++)
        if (!share_is_good(&emulation->shares[i], i ? &emulation->shares[i - 1] : NULL))
            return core_error_set(error, CORE_INVALID, "emulated card: row %u of the utilisation", i);
    return CORE_OK;
}

/* On the line through two rows, at or beyond the first of them. */
static core_ns on_line_ns(const struct gpu_emulation_copy *a, const struct gpu_emulation_copy *b, bool up,
                          bool busy, uint64_t bytes)
{
    const core_ns a_ns = column_ns(a, up, busy), b_ns = column_ns(b, up, busy);
    return a_ns + divided((wide)(b_ns - a_ns) * (bytes - a->bytes), (wide)(b->bytes - a->bytes));
}

/* Beyond the last row. */
static core_ns beyond_ns(const struct gpu_emulation *emulation, bool up, bool busy, uint64_t bytes)
{
    const struct gpu_emulation_copy *last = &emulation->copies[emulation->copy_count - 1];
    const core_ns rate_ns = divided((wide)column_ns(last, up, busy) * bytes, (wide)last->bytes);
    const core_ns line_ns = emulation->copy_count > 1 ? on_line_ns(last - 1, last, up, busy, bytes) : 0;
    return core_time_max(rate_ns, line_ns);
}

core_ns gpu_emulation_copy_ns(const struct gpu_emulation *emulation, bool up, bool busy, uint64_t bytes)
{
    const struct gpu_emulation_copy *rows = emulation->copies;
    uint32_t above = 0;
    busy = busy || emulation->always_busy;
    if (bytes == 0)
        return 0;
    if (bytes > rows[emulation->copy_count - 1].bytes) {
        const core_ns alone_ns = beyond_ns(emulation, up, false, bytes);
        const core_ns busy_ns = busy ? beyond_ns(emulation, up, true, bytes) : 0;
        return core_time_max(alone_ns, busy_ns);
    }
    while (rows[above].bytes < bytes)
        above++;
    return above == 0 ? column_ns(&rows[0], up, busy)
                      : on_line_ns(&rows[above - 1], &rows[above], up, busy, bytes);
}

static double row_slowdown(const struct gpu_emulation_share *row)
{
    return (double)row->jobs * (double)SHARE / (double)row->share_ppm;
}

/* How much longer n jobs of a size take an SM side by side than one takes at its peak. */
static double slowdown(const struct gpu_emulation *emulation, uint32_t n)
{
    const struct gpu_emulation_share *rows = emulation->shares;
    uint32_t low = 0, high = emulation->share_count; /* the first row with at least n is in low .. high */
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (rows[middle].jobs < n)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == emulation->share_count)
        return row_slowdown(&rows[low - 1]) * (double)n / (double)rows[low - 1].jobs;
    if (rows[low].jobs == n)
        return row_slowdown(&rows[low]);
    const double below = row_slowdown(&rows[low - 1]), above = row_slowdown(&rows[low]);
    return below +
           (above - below) * (double)(n - rows[low - 1].jobs) / (double)(rows[low].jobs - rows[low - 1].jobs);
}

struct launch {
    const struct gpu_job *jobs;
    uint32_t count, blocks, block_jobs;
};

/* Blocks of the cipher that one place after another, from the SM's last to its first, is charged for: by how
 * much its job is longer than those of all places behind it. Until then those are at work, and the places
 * before it hold their warps and lanes. */
static double sm_ns(const struct gpu_emulation *emulation, const struct launch *launch, uint32_t sm)
{
    const double byte_ns = (double)CORE_NS_PER_S / (double)emulation->sm_bytes_per_s;
    const uint32_t passes = (launch->blocks - sm + emulation->sms - 1) / emulation->sms;
    uint32_t longest = 0;
    double ns = 0;
    for (uint32_t n = passes * launch->block_jobs; n > 0; n--) {
        const uint32_t block = (n - 1) / launch->block_jobs * emulation->sms + sm;
        const uint32_t job =
            gpu_kernel_job(emulation->sms, launch->block_jobs, block, (n - 1) % launch->block_jobs);
        if (job >= launch->count || launch->jobs[job].blocks <= longest)
            continue;
        ns +=
            (double)(launch->jobs[job].blocks - longest) * GPU_BLOCK_BYTES * byte_ns * slowdown(emulation, n);
        longest = launch->jobs[job].blocks;
    }
    return ns;
}

core_ns gpu_emulation_kernel_ns(const struct gpu_emulation *emulation, enum gpu_kernel_form form,
                                const struct gpu_job *jobs, uint32_t count)
{
    double longest_ns = 0;
    if (count == 0)
        return 0;
    const struct gpu_kernel_shape shape = gpu_kernel_shape(form, count, emulation->sms);
    const struct launch launch = {.jobs = jobs,
                                  .count = count,
                                  .blocks = shape.blocks,
                                  .block_jobs = shape.block_threads / gpu_kernel_job_threads(form)};
    for (uint32_t sm = 0; sm < emulation->sms && sm < shape.blocks; sm++) {
        const double ns = sm_ns(emulation, &launch, sm);
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    return longest_ns < (double)NS_MAX ? emulation->launch_ns + (core_ns)longest_ns + 1 : CORE_NS_NEVER;
}
