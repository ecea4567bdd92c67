/* Private to perfmodel: 128-bit integers, the roundings that keep every bound on the safe side, and where a
 * window ends in a stream's densest pattern.
 *
 * Shares of a worker (m C / t) are kept as multiples of 2^-62, rounded up: at most 2^62 each when below one,
 * so a sum over 2^20 streams errs by 2^-42 at most, upwards. */
#ifndef MILLRACE_PERFMODEL_WIDE_H
#define MILLRACE_PERFMODEL_WIDE_H

#include "perfmodel/cpu.h"

__extension__ typedef __int128 perfmodel_wide;

#define PERFMODEL_SHARE_ONE ((perfmodel_wide)1 << 62)
#define PERFMODEL_PPB       INT64_C(1000000000)
#define PERFMODEL_PPB_MAX   (1000 * PERFMODEL_PPB)

/* ceil(a / b) for a >= 0, b > 0. */
static inline perfmodel_wide perfmodel_wide_divide_up(perfmodel_wide a, perfmodel_wide b)
{
    return (a + b - 1) / b;
}

/* (1 + m) value, rounded up, for 0 <= value <= 2^105. */
static inline perfmodel_wide perfmodel_wide_with_margin(perfmodel_wide value, uint32_t margin_ppm)
{
    return perfmodel_wide_divide_up(value * (CONFIG_PROFILE_MARGIN_PPM + margin_ppm),
                                    CONFIG_PROFILE_MARGIN_PPM);
}

static inline int64_t perfmodel_wide_limit(perfmodel_wide value, int64_t limit)
{
    return value < limit ? (int64_t)value : limit;
}

/* m C / t in multiples of 2^-62, rounded up, for a charge of C <= 2^43: below 2^60 * 2^62. */
static inline perfmodel_wide perfmodel_wide_share(const struct perfmodel_cpu_task *task, core_ns charge_ns)
{
    return perfmodel_wide_divide_up(((perfmodel_wide)task->pieces * charge_ns) << 62, task->interval_ns);
}

static inline int64_t perfmodel_wide_share_ppb(perfmodel_wide share)
{
    if (share >= PERFMODEL_SHARE_ONE * (PERFMODEL_PPB_MAX / PERFMODEL_PPB))
        return PERFMODEL_PPB_MAX;
    return (int64_t)perfmodel_wide_divide_up(share * PERFMODEL_PPB, PERFMODEL_SHARE_ONE);
}

/* m C (k + (Z - u) / t), rounded up: at least dbf(Z), and beyond Z the slope is m C / t. Never negative,
 * since u < k t. Below 2^60 * (2^58 + 2^42). */
static inline perfmodel_wide perfmodel_wide_tail(const struct perfmodel_cpu_task *task, core_ns charge_ns,
                                                 core_ns window_ns)
{
    perfmodel_wide credit_ns =
        (perfmodel_wide)task->burst_packets * task->interval_ns + window_ns - task->urgency_ns;
    return perfmodel_wide_divide_up((perfmodel_wide)task->pieces * charge_ns * credit_ns, task->interval_ns);
}

/* The last packet released within x_ns of the first in the pattern that attains count(x) (cpu.h). */
struct perfmodel_wide_position {
    int64_t packet;    /* its number, from 0 */
    core_ns offset_ns; /* x - r_packet */
};

/* by_spacing = floor(x / s) and by_policing = floor(x / t); x at most 2^62. Both products are at most x. */
static inline struct perfmodel_wide_position perfmodel_wide_position_of(const struct perfmodel_cpu_task *task,
                                                                        core_ns x_ns, int64_t by_spacing,
                                                                        int64_t by_policing)
{
    int64_t policed = by_policing + task->burst_packets - 1;
    int64_t packet = by_spacing < policed ? by_spacing : policed;
    core_ns spaced_ns = packet * task->spacing_ns;
    core_ns policed_ns = (packet + 1 - task->burst_packets) * task->interval_ns;
    core_ns release_ns = core_time_max(spaced_ns, policed_ns);
    return (struct perfmodel_wide_position){.packet = packet, .offset_ns = x_ns - release_ns};
}

#endif
