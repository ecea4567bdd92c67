#include "perfmodel/cpu.h"

#include "perfmodel/wide.h"

#include <assert.h>

#define FS_PER_NS      1000000
#define IO_RESTS_SHARE 16
/* An urgency below this leaves no room for anything; it also keeps counts small (see the header). */
#define URGENCY_NS_MIN CORE_NS_PER_US
/* Work longer than this fits no window, so that charging no more than this refuses it all the same. */
#define COST_NS_MAX CORE_LATENCY_NS_MAX

/* x * (100 + percent) / 100 fs in whole ns, rounded up. The largest profile figures (2^63 ns, 2^63 fs per
 * byte) times 128 pieces of 2^16 bytes, a margin of 2 and the percents of decryption stay below 2^110. */
static perfmodel_wide with_margin_ns(const struct config_profile *profile, perfmodel_wide fs)
{
    return perfmodel_wide_divide_up(fs * (100 + profile->margins.percent), (perfmodel_wide)FS_PER_NS * 100);
}

static perfmodel_wide bytes_fs(const struct config_profile_cpu *cpu, enum core_cipher cipher, uint32_t bytes)
{
    return (perfmodel_wide)cpu->per_byte_fs[cipher - 1] * bytes;
}

/* (1+m) l(K) / parts. */
static perfmodel_wide lanes_ns(const struct config_profile *profile, uint32_t ciphers, uint32_t parts)
{
    perfmodel_wide sum_ns = 0;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        sum_ns += ciphers >> i & 1 ? profile->cpu.lane_ns[i] : 0;
    return perfmodel_wide_divide_up(sum_ns * (100 + profile->margins.percent), (perfmodel_wide)100 * parts);
}

core_ns perfmodel_cpu_piece_cost_ns(const struct config_profile *profile, enum core_cipher cipher,
                                    enum core_direction direction, uint32_t bytes)
{
    const struct config_profile_cpu *cpu = &profile->cpu;
    perfmodel_wide fs = (perfmodel_wide)cpu->per_piece_ns * FS_PER_NS + bytes_fs(cpu, cipher, bytes);
    const uint32_t percent = direction == CORE_DIRECTION_DECRYPT ? 100 + cpu->decrypt_more_percent : 100;
    perfmodel_wide ns = perfmodel_wide_divide_up(fs * percent * (100 + profile->margins.percent),
                                                 (perfmodel_wide)FS_PER_NS * 100 * 100);
    return perfmodel_wide_limit(ns > 0 ? ns : 1, COST_NS_MAX);
}

/* Puts a cost where it belongs among the largest. */
static void take_cost(struct perfmodel_cpu_mix *mix, uint32_t most, core_ns cost_ns)
{
    uint32_t at = mix->count;
    if (at == most) {
        at--;
        if (cost_ns <= mix->piece_ns[at])
            return;
        mix->pieces_ns -= mix->piece_ns[at];
        mix->count--;
    }
    for (; at > 0 && mix->piece_ns[at - 1] < cost_ns; at--)
        mix->piece_ns[at] = mix->piece_ns[at - 1];
    mix->piece_ns[at] = cost_ns;
    mix->pieces_ns += cost_ns;
    mix->count++;
}

void perfmodel_cpu_mix_add(struct perfmodel_cpu_mix *mix, uint32_t burst_pieces,
                           const struct perfmodel_cpu_task *task)
{
    assert(burst_pieces > 0 && burst_pieces <= PERFMODEL_CPU_BURST_MAX);
    mix->ciphers |= 1U << (task->cipher - 1);
    take_cost(mix, burst_pieces, task->cost_ns);
}

core_ns perfmodel_cpu_surcharge_ns(const struct config_profile *profile, uint32_t ciphers)
{
    return perfmodel_wide_limit(lanes_ns(profile, ciphers, profile->cpu.burst_pieces), COST_NS_MAX);
}

static core_ns burst_ns(const struct config_profile *profile, perfmodel_wide pieces_ns, uint32_t ciphers)
{
    return perfmodel_wide_limit(pieces_ns + lanes_ns(profile, ciphers, 1), COST_NS_MAX);
}

core_ns perfmodel_cpu_blocking_ns(const struct config_profile *profile, const struct perfmodel_cpu_mix *mix)
{
    return burst_ns(profile, mix->pieces_ns, mix->ciphers);
}

core_ns perfmodel_cpu_burst_ns(const struct config_profile *profile)
{
    core_ns dearest_ns = 0;
    for (int i = 1; i <= CORE_CIPHER_COUNT; i++) {
        core_ns cost_ns = perfmodel_cpu_piece_cost_ns(profile, (enum core_cipher)i, CORE_DIRECTION_DECRYPT,
                                                      profile->cpu.piece_bytes);
        dearest_ns = core_time_max(cost_ns, dearest_ns);
    }
    return burst_ns(profile, (perfmodel_wide)profile->cpu.burst_pieces * dearest_ns,
                    PERFMODEL_CPU_CIPHER_SETS - 1);
}

struct perfmodel_cpu_worker perfmodel_cpu_worker_of(const struct config_profile *profile)
{
    struct perfmodel_cpu_worker worker = {.burst_ns = perfmodel_cpu_burst_ns(profile),
                                          .burst_pieces = profile->cpu.burst_pieces};
    worker.ahead_ns = profile->margins.in_ns + profile->io.rest_max_ns + PERFMODEL_CPU_EARLY_NS;
    for (uint32_t ciphers = 0; ciphers < PERFMODEL_CPU_CIPHER_SETS; ciphers++) {
        worker.lanes_ns[ciphers] = burst_ns(profile, 0, ciphers);
        worker.surcharge_ns[ciphers] = perfmodel_cpu_surcharge_ns(profile, ciphers);
    }
    return worker;
}

static uint32_t pieces_of(const struct core_stream_spec *spec, const struct config_profile *profile,
                          uint32_t *piece_bytes)
{
    uint32_t padded, chains = core_stream_packet_chains(spec, &padded);
    uint32_t pieces = (padded + profile->cpu.piece_bytes - 1) / profile->cpu.piece_bytes;
    uint32_t even = (padded + pieces - 1) / pieces;
    *piece_bytes = (even + CORE_BLOCK_BYTES - 1) / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
    return chains * pieces;
}

/* Shortest spacing of packets that leaves every piece the least urgency. */
static core_ns spacing_floor_ns(const struct core_stream_spec *spec, const struct config_profile *profile)
{
    uint32_t piece_bytes;
    return pieces_of(spec, profile, &piece_bytes) * (profile->cpu.queue_granularity_ns + URGENCY_NS_MIN);
}

core_ns perfmodel_io_rest_ns(core_ns latency_ns, const struct config_profile *profile)
{
    core_ns left_ns = latency_ns - profile->margins.in_ns - profile->margins.out_ns;
    core_ns share_ns = left_ns > 0 ? left_ns / IO_RESTS_SHARE : 0, most_ns = 2 * profile->io.rest_max_ns;
    return core_time_min(share_ns, most_ns);
}

/* M of the header: the longest way of a packet outside its worker. */
static core_ns way_ns(const struct config_profile *profile)
{
    return profile->margins.in_ns + profile->margins.out_ns + profile->io.rest_max_ns;
}

/* c of the header. Grows with the interval. */
static core_ns spacing_cap_ns(core_ns interval_ns, const struct config_profile *profile)
{
    core_ns share_ns = interval_ns - interval_ns / 8;
    core_ns rest_ns = interval_ns - way_ns(profile);
    return core_time_max(share_ns, rest_ns);
}

/* The least interval that allows packets to be spaced so. */
static core_ns interval_floor_ns(core_ns spacing_ns, const struct config_profile *profile)
{
    core_ns interval_ns = spacing_ns; /* c(t) <= t */
    while (spacing_cap_ns(interval_ns, profile) < spacing_ns)
        interval_ns += spacing_ns - spacing_cap_ns(interval_ns, profile);
    return interval_ns;
}

uint32_t perfmodel_cpu_backlog_packets(const struct core_stream_spec *spec,
                                       const struct config_profile *profile)
{
    core_ns spacing_ns = spec->latency_ns / spec->burst_packets; /* at least d' / k: holds more, never less */
    if (spacing_ns > spacing_cap_ns(spec->interval_ns, profile))
        spacing_ns = spacing_cap_ns(spec->interval_ns, profile);
    core_ns inside_ns = way_ns(profile) + spacing_ns;
    return spec->burst_packets - 1 + (uint32_t)((inside_ns + spec->interval_ns - 1) / spec->interval_ns);
}

core_ns perfmodel_cpu_latency_floor_ns(const struct core_stream_spec *spec,
                                       const struct config_profile *profile)
{
    core_ns spacing_ns = spacing_floor_ns(spec, profile);
    if (spacing_ns > spacing_cap_ns(spec->interval_ns, profile))
        return CORE_NS_NEVER;
    core_ns work_ns = spacing_ns * spec->burst_packets;
    core_ns needed_ns = profile->margins.in_ns + profile->margins.out_ns + work_ns;
    core_ns floor_ns = needed_ns;
    core_ns next_ns;
    /* The rest grows with the bound: from below, this ends at the least bound that covers its own rest. */
    while ((next_ns = needed_ns + perfmodel_io_rest_ns(floor_ns, profile)) > floor_ns)
        floor_ns = next_ns;
    if (floor_ns > CORE_LATENCY_NS_MAX)
        return CORE_NS_NEVER;
    return core_time_max(floor_ns, CORE_LATENCY_NS_MIN);
}

static core_status refuse(const struct core_stream_spec *spec, const struct config_profile *profile,
                          struct core_error *error)
{
    core_ns floor_ns = perfmodel_cpu_latency_floor_ns(spec, profile);
    if (floor_ns == CORE_NS_NEVER)
        return core_error_set(error, CORE_REFUSED,
                              "%u packets of %u bytes at once, every %.3f us, leave no time between their "
                              "pieces at any latency bound: %.3f us a packet are the least",
                              spec->burst_packets, spec->packet_bytes, (double)spec->interval_ns / 1e3,
                              (double)interval_floor_ns(spacing_floor_ns(spec, profile), profile) / 1e3);
    return core_error_set(error, CORE_REFUSED,
                          "a latency bound of %.3f ms leaves no time for the work after the margins: the "
                          "shortest that leaves any is %.3f ms",
                          (double)spec->latency_ns / 1e6, (double)floor_ns / 1e6);
}

core_status perfmodel_cpu_task_from(const struct core_stream_spec *spec, const struct config_profile *profile,
                                    struct perfmodel_cpu_task *task, struct core_error *error)
{
    core_ns work_ns = spec->latency_ns - profile->margins.in_ns - profile->margins.out_ns -
                      perfmodel_io_rest_ns(spec->latency_ns, profile);
    core_ns spacing_ns = work_ns / spec->burst_packets;
    if (spacing_ns > spacing_cap_ns(spec->interval_ns, profile))
        spacing_ns = spacing_cap_ns(spec->interval_ns, profile);
    uint32_t piece_bytes;
    uint32_t pieces = pieces_of(spec, profile, &piece_bytes);
    core_ns deadline_ns = spacing_ns / pieces;
    core_ns urgency_ns = deadline_ns - profile->cpu.queue_granularity_ns;
    if (urgency_ns < URGENCY_NS_MIN)
        return refuse(spec, profile, error);
    *task = (struct perfmodel_cpu_task){
        .cost_ns = perfmodel_cpu_piece_cost_ns(profile, spec->cipher, spec->direction, piece_bytes),
        .deadline_ns = deadline_ns,
        .urgency_ns = urgency_ns,
        .spacing_ns = spacing_ns,
        .interval_ns = spec->interval_ns,
        .pieces = pieces,
        .burst_packets = spec->burst_packets,
        .piece_bytes = piece_bytes,
        .cipher = spec->cipher,
        .direction = spec->direction,
    };
    return CORE_OK;
}

int64_t perfmodel_cpu_utilisation_ppb(const struct perfmodel_cpu_task *task)
{
    perfmodel_wide scaled = (perfmodel_wide)task->pieces * task->cost_ns * PERFMODEL_PPB;
    return perfmodel_wide_limit(perfmodel_wide_divide_up(scaled, task->interval_ns), PERFMODEL_PPB_MAX);
}

/* m packets' pieces are at most x / 1000 + m because s >= 1000 m: no product overflows. */
int64_t perfmodel_cpu_count(const struct perfmodel_cpu_task *task, core_ns x_ns)
{
    assert(x_ns >= 0);
    struct perfmodel_wide_position last =
        perfmodel_wide_position_of(task, x_ns, x_ns / task->spacing_ns, x_ns / task->interval_ns);
    int64_t begun = last.offset_ns / task->deadline_ns + 1;
    return last.packet * task->pieces + (begun < task->pieces ? begun : task->pieces);
}

static perfmodel_wide audit_fs(enum core_cipher cipher, uint32_t padded, const struct config_profile *profile)
{
    int64_t pieces = (padded + profile->cpu.piece_bytes - 1) / profile->cpu.piece_bytes;
    return (perfmodel_wide)pieces * profile->io.audit_per_piece_ns[cipher - 1] * FS_PER_NS +
           (perfmodel_wide)profile->io.audit_per_byte_fs[cipher - 1] * padded;
}

/* What all bytes of a packet cost the I/O thread; by a pattern it sorts them as well, and puts them back, and for a
 * MAC it reads them once more, with what stands before and behind them. */
static perfmodel_wide io_bytes_fs(const struct core_stream_spec *spec, const struct config_profile *profile)
{
    const perfmodel_wide bytes = core_stream_held_bytes(spec);
    perfmodel_wide fs = bytes * (spec->by_lane ? profile->io.by_lane_per_byte_fs : profile->io.per_byte_fs);

    if (spec->crypt_blocks > 0)
        fs += bytes * profile->io.pattern_per_byte_fs;
    if (spec->mac != CORE_MAC_NONE)
        fs += (bytes + PERFMODEL_MAC_BYTES) * profile->io.mac_per_byte_fs;
    return fs;
}

int64_t perfmodel_io_utilisation_ppb(const struct core_stream_spec *spec,
                                     const struct config_profile *profile)
{
    uint32_t padded = core_stream_packet_bytes(spec);
    const core_ns packet_ns = spec->by_lane ? profile->io.by_lane_per_packet_ns : profile->io.per_packet_ns;
    perfmodel_wide fs = (perfmodel_wide)packet_ns * FS_PER_NS + io_bytes_fs(spec, profile);
    if (spec->audit_one_in > 0)
        fs += perfmodel_wide_divide_up(audit_fs(spec->cipher, padded, profile), spec->audit_one_in);
    perfmodel_wide share =
        perfmodel_wide_divide_up(with_margin_ns(profile, fs) * PERFMODEL_PPB, spec->interval_ns);
    return perfmodel_wide_limit(share, PERFMODEL_PPB_MAX);
}

int64_t perfmodel_io_limit_ppb(const struct config_profile *profile)
{
    return (int64_t)profile->io.limit_percent * (PERFMODEL_PPB / 100);
}
