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

/* c(n) as jobs / share of the row that binds; `row` is the first that was not looked at for a smaller n. */
struct slowdown {
    uint32_t row, jobs, share_ppm;
};

static void slowdown_charge(struct slowdown *slowdown, uint32_t jobs, uint32_t share_ppm)
{
    if ((wide)jobs * slowdown->share_ppm <= (wide)slowdown->jobs * share_ppm)
        return;
    slowdown->jobs = jobs;
    slowdown->share_ppm = share_ppm;
}

/* Moves on to n, which rises from call to call. */
static void slowdown_move(struct slowdown *slowdown, const struct gpu_emulation *emulation, uint32_t n)
{
    const struct gpu_emulation_share *rows = emulation->shares;
    const uint32_t count = emulation->share_count;
    for (; slowdown->row < count && rows[slowdown->row].jobs < n; slowdown->row++)
        slowdown_charge(slowdown, rows[slowdown->row].jobs, rows[slowdown->row].share_ppm);
    if (slowdown->row < count)
        slowdown_charge(slowdown, rows[slowdown->row].jobs, rows[slowdown->row].share_ppm);
    else
        slowdown_charge(slowdown, n, rows[count - 1].share_ppm);
}

core_ns gpu_emulation_kernel_ns(const struct gpu_emulation *emulation, const struct gpu_job *jobs,
                                uint32_t count)
{
    /* The first SM has the longest jobs: 0, M, 2M, ... While the n longest of them run, what is done is the
     * n-th one's lead over the next. */
    const wide second = (wide)CORE_NS_PER_S * SHARE;
    struct slowdown slowdown = {.share_ppm = 1};
    wide ns = count > 0 ? emulation->launch_ns : 0;
    uint32_t running = 0;
    for (uint64_t i = 0; i < count; i += emulation->sms) {
        const uint64_t next = i + emulation->sms;
        const int64_t lead = (int64_t)jobs[i].blocks - (next < count ? (int64_t)jobs[next].blocks : 0);
        slowdown_move(&slowdown, emulation, ++running);
        if (lead > 0)
            ns += divided((wide)lead * GPU_BLOCK_BYTES * slowdown.jobs * second,
                          (wide)slowdown.share_ppm * emulation->sm_bytes_per_s);
    }
    return ns < CORE_NS_NEVER ? (core_ns)ns : CORE_NS_NEVER;
}
