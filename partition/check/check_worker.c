#include "partition/check/check_worker.h"

#include "perfmodel/edf_packets.h"

#include <assert.h>
#include <stdlib.h>

__extension__ typedef __int128 wide;

/* A stream as the worker sees it, in the letters of perfmodel/cpu.h. */
struct task {
    int64_t cost;           /* C, with its share of the lanes */
    int64_t s, t, delta, u; /* ns */
    int64_t k, m;
};

struct set {
    const struct task *task;
    size_t count;
    core_ns blocking_ns;
    /* for the packets (perfmodel/edf_packets.h) */
    int64_t burst;        /* B */
    int64_t lanes, share; /* l and l/B, ns */
    core_ns ahead_ns;     /* M */
    core_ns lag_ns;       /* theta of the certificate */
};

static wide ceiling(wide a, wide b)
{
    return (a + b - 1) / b;
}

static wide least(wide a, wide b)
{
    return a < b ? a : b;
}

/* With the IV that goes ahead of a message, unless its sender brings it or there is none. */
static int64_t padded(const struct core_stream_spec *spec)
{
    const int64_t iv = spec->iv == CORE_IV_CHAIN || spec->iv == CORE_IV_EXPLICIT ? 0 : 16;
    int64_t blocks =
        spec->padding == CORE_PADDING_PKCS7 ? spec->packet_bytes / 16 + 1 : (spec->packet_bytes + 15) / 16;
    if (spec->crypt_blocks == 0)
        return iv + 16 * blocks;
    int64_t cycle = spec->crypt_blocks + spec->skip_blocks, most = 0;
    for (int64_t from = 0; from < cycle; from++) { /* wherever in the pattern it begins */
        int64_t encrypted = blocks / cycle * spec->crypt_blocks;
        for (int64_t block = from; block < from + blocks % cycle; block++)
            encrypted += block % cycle < spec->crypt_blocks;
        most = encrypted > most ? encrypted : most;
    }
    return iv + 16 * most;
}

/* (1+m) (c0 + c1 x), in whole ns; more to decrypt. */
static int64_t piece_ns(const struct config_profile *profile, const struct core_stream_spec *spec,
                        int64_t bytes)
{
    const struct config_profile_cpu *cpu = &profile->cpu;
    wide fs = (wide)cpu->per_piece_ns * 1000000 + (wide)cpu->per_byte_fs[spec->cipher - 1] * bytes;
    int64_t percent = 100;
    if (spec->direction == CORE_DIRECTION_DECRYPT)
        percent += cpu->decrypt_more_percent;
    wide ns = ceiling(fs * percent * (100 + profile->margins.percent), (wide)100 * 100000000);
    return (int64_t)(ns > 0 ? least(ns, CORE_LATENCY_NS_MAX) : 1);
}

/* c: packets that come at their interval t are released no further apart, so that the worker catches up. */
static core_ns closest_ns(core_ns t, const struct config_profile *profile)
{
    core_ns way_ns = profile->margins.in_ns + profile->margins.out_ns + profile->io.rest_max_ns;
    core_ns most_ns = (core_ns)ceiling((wide)7 * t, 8);
    return t - way_ns > most_ns ? t - way_ns : most_ns;
}

/* False: no time is left for the work. */
static bool task_of(const struct core_stream_spec *spec, const struct config_profile *profile,
                    struct task *task)
{
    core_ns left_ns = spec->latency_ns - profile->margins.in_ns - profile->margins.out_ns;
    core_ns work_ns = left_ns - (core_ns)least(left_ns / 16, 2 * profile->io.rest_max_ns);
    task->k = spec->burst_packets;
    task->t = spec->interval_ns;
    /* of transport-stream packets each is encrypted by itself, 11 blocks at most */
    const int64_t chains = spec->records != CORE_RECORDS_NONE ? spec->packet_bytes / 188 : 1;
    const int64_t chain = spec->records != CORE_RECORDS_NONE ? 176 : padded(spec);
    const int64_t pieces = (int64_t)ceiling(chain, profile->cpu.piece_bytes);
    task->m = chains * pieces;
    task->s = (int64_t)least(closest_ns(task->t, profile), work_ns / task->k);
    task->delta = task->s / task->m;
    task->u = task->delta - profile->cpu.queue_granularity_ns;
    int64_t bytes = (int64_t)ceiling(ceiling(chain, pieces), 16) * 16;
    task->cost = piece_ns(profile, spec, bytes);
    return work_ns > 0 && task->u >= CORE_NS_PER_US;
}

/* Pieces in a window of length x: m (P-1) + min(m, floor((x - r_(P-1)) / delta) + 1). */
static wide pieces_in(const struct task *task, core_ns x_ns)
{
    if (x_ns < 0)
        return 0;
    wide packets = least(x_ns / task->s + 1, task->k + x_ns / task->t);
    wide j = packets - 1, spaced = j * task->s, policed = (j + 1 - task->k) * task->t;
    wide release = spaced > policed ? spaced : policed;
    return task->m * j + least(task->m, (x_ns - release) / task->delta + 1);
}

static wide demand_ns(const struct set *set, core_ns window_ns)
{
    wide sum = 0;
    for (size_t i = 0; i < set->count; i++)
        sum += pieces_in(&set->task[i], window_ns - set->task[i].u) * set->task[i].cost;
    return sum;
}

/* Does the demand of every window, with the blocking, fit it? All windows in (h, Z] fit if h = h(Z) <= Z; one
 * that fits just so is passed a nanosecond at a time, which is slow, but needs no other idea. Beyond the
 * first Z the demand grows by less than the window does. */
static bool windows_hold(const struct set *set)
{
    long double share = 0, ahead = (long double)set->blocking_ns;
    for (size_t i = 0; i < set->count; i++) {
        const struct task *task = &set->task[i];
        long double each = (long double)task->m * (long double)task->cost;
        share += each / (long double)task->t;
        ahead += each * ((long double)task->k - (long double)task->u / (long double)task->t);
    }
    if (share >= 1)
        return false;
    long double from = ahead / (1 - share) * (1 + 1e-9L) + 1;
    if (from > 0x1p62L)
        return false;
    core_ns window_ns = (core_ns)from;
    for (;;) {
        wide need_ns = demand_ns(set, window_ns);
        if (need_ns == 0)
            return true;
        if (need_ns + set->blocking_ns > window_ns)
            return false;
        need_ns += set->blocking_ns;
        window_ns = need_ns < window_ns ? (core_ns)need_ns : window_ns - 1;
    }
}

/* ---- by packets ---- */

static wide supply(const struct set *set, const struct task *task, wide length_ns)
{
    return task->m * (task->k + 1 + (length_ns + set->ahead_ns) / task->t);
}

/* Every burst has a piece of all who have one. */
static bool rounds_hold(const struct set *set, const struct task *own)
{
    wide length_ns = 0, need_ns = 0;
    do {
        wide bursts = own->m + (set->count > 1);
        length_ns = need_ns;
        need_ns = bursts * set->lanes + own->m * (own->cost - set->share);
        for (size_t i = 0; i < set->count; i++) {
            const struct task *task = &set->task[i];
            if (task != own)
                need_ns += least(bursts, supply(set, task, length_ns)) * (task->cost - set->share);
        }
    } while (need_ns > length_ns && need_ns <= own->s);
    return need_ns <= own->s;
}

/* The largest values together, as many as there may be. */
static wide largest(wide *value, size_t count, int64_t many)
{
    wide sum = 0;
    for (; many > 0; many--) {
        size_t top = 0;
        for (size_t i = 1; i < count; i++)
            top = value[i] > value[top] ? i : top;
        if (count == 0 || value[top] <= 0)
            break;
        sum += value[top];
        value[top] = 0;
    }
    return sum;
}

/* Pieces that are still there of packets from before, at most: all of a burst's lanes but one have some. */
static wide left_over(const struct set *set, wide pieces_due)
{
    wide left[PERFMODEL_EDF_PACKETS_MOST], lane[PERFMODEL_EDF_PACKETS_MOST];
    for (size_t i = 0; i < set->count; i++) {
        const struct task *task = &set->task[i];
        left[i] = least(task->m - 1, ceiling(set->lag_ns, task->delta)) * task->cost;
        lane[i] = task->m > 1 ? task->cost : 0;
    }
    wide all_ns = largest(left, set->count, set->burst - 1);
    return least(all_ns, pieces_due * largest(lane, set->count, set->burst - 1));
}

/* In a burst before, or beside the `most` pieces of the packet that is looked at: the dearest. */
static wide mix(const struct set *set, wide window_ns, int64_t most)
{
    wide cost[PERFMODEL_EDF_PACKETS_MOST], sum = 0;
    int64_t room = set->burst + most * (set->burst - 1);
    for (size_t i = 0; i < set->count; i++)
        cost[i] = set->task[i].cost - set->share;
    for (size_t n = 0; n < set->count && room > 0; n++) {
        size_t top = 0;
        for (size_t i = 1; i < set->count; i++)
            top = cost[i] > cost[top] ? i : top;
        const struct task *task = &set->task[top];
        wide due = pieces_in(task, (core_ns)window_ns - task->u);
        wide more = supply(set, task, window_ns) - due;
        more = set->burst == 1 ? due == 0 : least(most + 1, more > 0 ? more : 0);
        more = least(more, room);
        sum += more * cost[top];
        room -= (int64_t)more;
        cost[top] = -1;
    }
    return sum;
}

/* Of whole packets, or of their pieces before the last: how many pieces at the least and at the most. */
static bool range_within(const struct set *set, bool packets, wide window_ns, int64_t *fewest, int64_t *most)
{
    *fewest = packets ? INT64_MAX : 1;
    *most = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct task *task = &set->task[i];
        int64_t pieces = packets ? (window_ns >= task->s ? task->m : 0)
                                 : (int64_t)least(task->m - 1, window_ns / task->delta);
        if (pieces == 0)
            continue;
        *most = pieces > *most ? pieces : *most;
        *fewest = packets && pieces < *fewest ? pieces : *fewest;
    }
    return *most > 0;
}

/* All windows with anything due, from the longest that matters down. */
static bool packets_hold(const struct set *set, bool packets)
{
    core_ns lag_ns = packets ? 0 : set->lag_ns;
    int64_t fewest, most, longest = 0;
    long double share = 0, ahead = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct task *task = &set->task[i];
        long double each = (long double)task->m * (long double)task->cost;
        longest = task->m > longest ? task->m : longest;
        share += each / (long double)task->t;
        ahead += each * ((long double)task->k + 1) * 2;
    }
    ahead += (long double)set->blocking_ns * ((long double)longest + 1);
    if (share >= 1 || ahead / (1 - share) > 0x1p61L)
        return false;
    wide window_ns = (wide)(ahead / (1 - share)) + 2;
    while (window_ns >= lag_ns && range_within(set, packets, window_ns - lag_ns, &fewest, &most)) {
        wide due = 0, need_ns = demand_ns(set, (core_ns)window_ns);
        for (size_t i = 0; i < set->count; i++)
            due += pieces_in(&set->task[i], (core_ns)window_ns - set->task[i].u);
        need_ns += left_over(set, due - fewest) + set->lanes + most * (set->lanes - set->share) +
                   mix(set, window_ns, most);
        if (need_ns > window_ns)
            return false;
        window_ns = need_ns < window_ns ? need_ns : window_ns - 1;
    }
    return true;
}

static bool few_hold(const struct set *set)
{
    if (set->count > PERFMODEL_EDF_PACKETS_MOST)
        return false;
    if ((int64_t)set->count > set->burst)
        return (set->lag_ns >= CORE_LATENCY_NS_MAX || packets_hold(set, false)) && packets_hold(set, true);
    for (size_t j = 0; j < set->count; j++)
        if (!rounds_hold(set, &set->task[j]))
            return false;
    return true;
}

/* The mix's terms: l(K) / B on every piece, and two whole bursts of blocking, of the B dearest pieces. */
static void set_terms(const struct partition_plan_input *input, const size_t *member, size_t count,
                      struct task *task, struct set *set)
{
    const struct config_profile *profile = input->profile;
    wide lanes = 0;
    int64_t dearest[PERFMODEL_CPU_BURST_MAX + 1] = {0}, filled = 0, burst = profile->cpu.burst_pieces;
    unsigned seen = 0;
    assert(burst > 0);
    for (size_t i = 0; i < count; i++) {
        enum core_cipher cipher = input->specs[member[i]].cipher;
        lanes += seen >> cipher & 1 ? 0 : profile->cpu.lane_ns[cipher - 1];
        seen |= 1U << cipher;
        int64_t at = filled < burst ? filled++ : burst;
        for (; at > 0 && dearest[at - 1] < task[i].cost; at--)
            dearest[at] = dearest[at - 1];
        dearest[at] = task[i].cost;
    }
    wide scaled = lanes * (100 + profile->margins.percent), pieces = 0;
    for (int64_t i = 0; i < filled; i++)
        pieces += dearest[i];
    set->burst = burst;
    set->share = (int64_t)least(ceiling(scaled, (wide)100 * burst), CORE_LATENCY_NS_MAX);
    set->lanes = (int64_t)least(ceiling(scaled, 100), CORE_LATENCY_NS_MAX);
    set->blocking_ns = 2 * (int64_t)least(pieces + ceiling(scaled, 100), CORE_LATENCY_NS_MAX);
    set->ahead_ns = profile->margins.in_ns + profile->io.rest_max_ns + 100 * CORE_NS_PER_US;
    for (size_t i = 0; i < count; i++)
        task[i].cost += set->share;
}

static core_status check_tasks(const struct partition_plan_input *input,
                               const struct partition_plan_worker *worker, const size_t *member, size_t count,
                               struct task *task, struct core_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (!task_of(&input->specs[member[i]], input->profile, &task[i]))
            return core_error_set(error, CORE_REFUSED, "no work time is left for stream %zu", member[i]);
    struct set set = {.task = task, .count = count, .lag_ns = worker->test.lag_ns};
    set_terms(input, member, count, task, &set);
    if (set.share != worker->surcharge_ns || set.blocking_ns != worker->test.blocking_ns)
        return core_error_set(error, CORE_REFUSED, "the blocking is %lld and the surcharge %lld",
                              (long long)set.blocking_ns, (long long)set.share);
    long double share = 0;
    for (size_t i = 0; i < count; i++)
        share += (long double)(task[i].m * task[i].cost) / (long double)task[i].t;
    if ((long double)worker->test.utilisation_ppb < share * 1e9L - 1 ||
        (long double)worker->test.utilisation_ppb > share * 1e9L + 2)
        return core_error_set(error, CORE_REFUSED, "its long-run share is %.3Lf ppb", share * 1e9L);
    if (worker->test.by_packets ? !few_hold(&set) : !windows_hold(&set))
        return core_error_set(error, CORE_REFUSED, "a window has more demand than time");
    return CORE_OK;
}

/* A fluid at the cost of a whole packet in one piece. */
static core_status check_fluid(const struct partition_plan_input *input,
                               const struct partition_plan_worker *worker, const size_t *member, size_t count,
                               struct core_error *error)
{
    long double share = 0;
    for (size_t i = 0; i < count; i++) {
        const struct core_stream_spec *spec = &input->specs[member[i]];
        share +=
            (long double)piece_ns(input->profile, spec, spec->packet_bytes) / (long double)spec->interval_ns;
    }
    if (share > 1 || (long double)worker->test.utilisation_ppb < share * 1e9L - 1 ||
        (long double)worker->test.utilisation_ppb > share * 1e9L + (long double)count + 1)
        return core_error_set(error, CORE_REFUSED, "its long-run share is %.3Lf ppb", share * 1e9L);
    return CORE_OK;
}

core_status partition_check_worker(const struct partition_plan_input *input,
                                   const struct partition_plan_worker *worker, const size_t *member,
                                   size_t count, struct core_error *error)
{
    if (worker->streams != count)
        return core_error_set(error, CORE_REFUSED, "it has %zu streams, not %zu", count, worker->streams);
    if (!worker->test.accepted)
        return core_error_set(error, CORE_REFUSED, "the test of the plan itself refused it");
    if (input->paper)
        return check_fluid(input, worker, member, count, error);
    struct task *task = malloc((count + 1) * sizeof *task);
    if (task == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %zu tasks", count);
    core_status status = check_tasks(input, worker, member, count, task, error);
    free(task);
    return status;
}
