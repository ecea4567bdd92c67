#include "perfmodel/edf_set.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define LANES           8
#define BLOCKS_FIRST    16
#define PIECES_A_STREAM 4             /* kept at the most, on the average */
#define TIME_NS_MOST    0x1p48        /* of windows, intervals and bursts, and their sums */
#define SHARE_MOST      (1 - 0x1p-20) /* of which doubles tell the horizon well */
#define SHARE_KEPT      0x1p4         /* with the longest window it keeps sums below 2^53 */
#define SHARE_TOLD      1e3L          /* at the most */
#define UPWARDS         (1 + 0x1p-40) /* more than rounding takes away from a sum of shares */
#define PPB             1e9L
#define WHOLE           0x1.8p52 /* added and taken away: rounds to a whole number */

_Static_assert(FLT_EVAL_METHOD == 0, "rounding to whole numbers by addition needs plain doubles");
_Static_assert(LDBL_MANT_DIG >= 64, "sums of up to 2^25 shares, each as good as a double");

/* floor((window + more) / of) is what window * inverse + shift rounds to. */
struct floors {
    double inverse[LANES], shift[LANES];
};

/* Pieces of P(x) = floor(x/s) + 1, or of P(x) = k + floor(x/t): one of the two is enough. */
struct plain {
    double charge_ns[LANES];
    struct floors floors;
};

/* Pieces of which the least counts, up to windows of far_ns; beyond, that by the interval alone. */
struct burst {
    struct plain policed;
    struct floors spaced;
    double far_ns;
};

/* The sums over all pieces are most of what a plan takes: compiled for wider registers too, chosen when the
 * program is loaded. Sanitizers are not there yet by then. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&     \
    !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

struct perfmodel_edf_set {
    const struct perfmodel_cpu_task *tasks;
    size_t count;
    core_ns surcharge_ns, blocking_ns;
    size_t pieces_most, plains, bursts;    /* pieces of each */
    size_t plain_capacity, burst_capacity; /* blocks */
    struct plain *plain;
    struct burst *burst;
    bool exact; /* all of it is in the ranges above */
    /* U, and sum m C (k - u/t) with 1 for k where s = t, give or take roundings */
    long double share, ahead_ns;
};

static size_t blocks_of(size_t pieces)
{
    return (pieces + LANES - 1) / LANES;
}

core_status perfmodel_edf_set_create(struct perfmodel_edf_set **set)
{
    *set = calloc(1, sizeof **set);
    return *set != NULL ? CORE_OK : CORE_NO_MEMORY;
}

void perfmodel_edf_set_destroy(struct perfmodel_edf_set *set)
{
    if (set == NULL)
        return;
    free(set->plain);
    free(set->burst);
    free(set);
}

/* Room for one piece more of each kind, and the rest of its block. */
static bool reserve(struct perfmodel_edf_set *set)
{
    if (set->plains / LANES == set->plain_capacity) {
        size_t blocks = set->plain_capacity > 0 ? 2 * set->plain_capacity : BLOCKS_FIRST;
        struct plain *plain = realloc(set->plain, blocks * sizeof *plain);
        if (plain == NULL)
            return false;
        set->plain = plain;
        set->plain_capacity = blocks;
    }
    if (set->bursts / LANES == set->burst_capacity) {
        size_t blocks = set->burst_capacity > 0 ? 2 * set->burst_capacity : BLOCKS_FIRST;
        struct burst *burst = realloc(set->burst, blocks * sizeof *burst);
        if (burst == NULL)
            return false;
        set->burst = burst;
        set->burst_capacity = blocks;
    }
    return true;
}

static void set_floors(struct floors *floors, size_t lane, double more_ns, double of_ns)
{
    floors->inverse[lane] = 1 / of_ns;
    floors->shift[lane] = (more_ns + 0.5) / of_ns - 0.5;
}

static void add_plain(struct perfmodel_edf_set *set, double charge_ns, double more_ns, double of_ns)
{
    struct plain *plain = &set->plain[set->plains / LANES];
    size_t lane = set->plains++ % LANES;
    plain->charge_ns[lane] = charge_ns;
    set_floors(&plain->floors, lane, more_ns, of_ns);
}

static void add_burst(struct perfmodel_edf_set *set, const struct perfmodel_cpu_task *task, double charge_ns,
                      double after_ns)
{
    struct burst *burst = &set->burst[set->bursts / LANES];
    size_t lane = set->bursts++ % LANES;
    double spacing_ns = (double)task->spacing_ns, interval_ns = (double)task->interval_ns;
    double far_ns = after_ns + task->burst_packets * spacing_ns * interval_ns / (interval_ns - spacing_ns);
    if (lane == 0 || far_ns * UPWARDS > burst->far_ns)
        burst->far_ns = far_ns * UPWARDS;
    burst->policed.charge_ns[lane] = charge_ns;
    set_floors(&burst->policed.floors, lane, task->burst_packets * interval_ns - after_ns, interval_ns);
    set_floors(&burst->spaced, lane, spacing_ns - after_ns, spacing_ns);
}

/* Its pieces; false if they are out of range, or there is no memory. */
static bool add_task(struct perfmodel_edf_set *set, const struct perfmodel_cpu_task *task)
{
    double charge_ns = (double)(task->cost_ns + set->surcharge_ns), interval_ns = (double)task->interval_ns;
    bool spaced = task->spacing_ns == task->interval_ns; /* packets never come closer than by the interval */
    double burst_ns = (spaced ? 1 : task->burst_packets) * interval_ns;
    if (burst_ns > TIME_NS_MOST || set->plains + set->bursts + task->pieces > set->pieces_most)
        return false;
    for (uint32_t piece = 0; piece < task->pieces; piece++) {
        if (!reserve(set))
            return false;
        double after_ns = (double)(task->urgency_ns + piece * task->deadline_ns);
        if (spaced || task->burst_packets == 1)
            add_plain(set, charge_ns, interval_ns - after_ns, interval_ns);
        else
            add_burst(set, task, charge_ns, after_ns);
    }
    set->share += task->pieces * charge_ns / interval_ns;
    set->ahead_ns += task->pieces * charge_ns * (burst_ns - (double)task->urgency_ns) / interval_ns;
    return true;
}

/* The rest of the last blocks costs nothing. */
static void pad(struct perfmodel_edf_set *set)
{
    while (set->plains % LANES != 0)
        add_plain(set, 0, 0, 1);
    for (size_t lane = set->bursts % LANES; lane != 0; lane = (lane + 1) % LANES) {
        struct burst *burst = &set->burst[set->bursts++ / LANES];
        burst->policed.charge_ns[lane] = 0;
        set_floors(&burst->policed.floors, lane, 0, 1);
        set_floors(&burst->spaced, lane, 0, 1);
    }
}

void perfmodel_edf_set_fill(struct perfmodel_edf_set *set, const struct perfmodel_cpu_task *tasks,
                            size_t count, core_ns surcharge_ns, core_ns blocking_ns)
{
    set->pieces_most = PIECES_A_STREAM * (count + 1);
    set->tasks = tasks;
    set->count = count;
    set->surcharge_ns = surcharge_ns;
    set->blocking_ns = blocking_ns;
    set->plains = set->bursts = 0;
    set->share = set->ahead_ns = 0;
    set->exact = true;
    for (size_t i = 0; i < count && set->exact; i++)
        set->exact = add_task(set, &tasks[i]);
    set->exact =
        set->exact && set->share < SHARE_KEPT && set->ahead_ns + blocking_ns < (long double)TIME_NS_MOST;
    if (set->exact)
        pad(set);
}

static double sum_of(const double *lane)
{
    double sum = 0;
    for (size_t i = 0; i < LANES; i++)
        sum += lane[i];
    return sum;
}

WIDE static double plain_demand(const struct plain *restrict plain, size_t blocks, double window_ns)
{
    double sum[LANES] = {0};
    for (size_t b = 0; b < blocks; b++)
        for (size_t i = 0; i < LANES; i++) {
            double packets = window_ns * plain[b].floors.inverse[i] + plain[b].floors.shift[i];
            sum[i] += (packets + WHOLE - WHOLE) * plain[b].charge_ns[i];
        }
    return sum_of(sum);
}

WIDE static double burst_demand(const struct burst *restrict burst, size_t blocks, double window_ns)
{
    double sum[LANES] = {0};
    for (size_t b = 0; b < blocks; b++) {
        const struct floors *restrict policed = &burst[b].policed.floors;
        /* beyond far_ns the least is the first of the two anyhow */
        const struct floors *restrict spaced = window_ns < burst[b].far_ns ? &burst[b].spaced : policed;
        for (size_t i = 0; i < LANES; i++) {
            double by_policing = window_ns * policed->inverse[i] + policed->shift[i];
            double by_spacing = window_ns * spaced->inverse[i] + spaced->shift[i];
            double packets = by_policing < by_spacing ? by_policing : by_spacing;
            sum[i] += (packets + WHOLE - WHOLE) * burst[b].policed.charge_ns[i];
        }
    }
    return sum_of(sum);
}

/* 1 ns .. TIME_NS_MOST */
static core_ns demand_ns(const struct perfmodel_edf_set *set, core_ns window_ns)
{
    double sum = plain_demand(set->plain, blocks_of(set->plains), (double)window_ns);
    return (core_ns)(sum + burst_demand(set->burst, blocks_of(set->bursts), (double)window_ns));
}

/* False, and the figures into the result, if the demand exceeds the window. */
static bool window_holds(const struct perfmodel_edf_set *set, core_ns window_ns, core_ns need_ns,
                         struct perfmodel_edf_result *result)
{
    if (need_ns == 0 || need_ns <= window_ns - set->blocking_ns)
        return true;
    result->accepted = false;
    result->binding = PERFMODEL_LIMIT_CPU_DEMAND;
    result->window_ns = window_ns;
    result->demand_ns = need_ns;
    return false;
}

static struct perfmodel_edf_result result_of(const struct perfmodel_edf_set *set)
{
    return (struct perfmodel_edf_result){.accepted = true,
                                         .blocking_ns = set->blocking_ns,
                                         .utilisation_ppb =
                                             (int64_t)ceill(fminl(set->share * UPWARDS, SHARE_TOLD) * PPB)};
}

struct perfmodel_edf_result perfmodel_edf_set_test_windows(const struct perfmodel_edf_set *set,
                                                           const core_ns *windows_ns, size_t count)
{
    struct perfmodel_edf_result result = result_of(set);
    for (size_t i = 0; i < count && result.accepted && set->exact; i++)
        (void)window_holds(set, windows_ns[i], demand_ns(set, windows_ns[i]), &result);
    return result;
}

/* QPA, as perfmodel/edf.c has it; but a step of a nanosecond stands for that to the next deadline below. */
static void check_windows(const struct perfmodel_edf_set *set, core_ns from_ns,
                          struct perfmodel_edf_result *result)
{
    core_ns need_ns;
    for (core_ns window_ns = from_ns; window_ns > 0;
         window_ns = need_ns < window_ns ? need_ns : window_ns - 1) {
        need_ns = demand_ns(set, window_ns);
        if (need_ns == 0 || !window_holds(set, window_ns, need_ns, result))
            return;
        need_ns += set->blocking_ns;
    }
}

struct perfmodel_edf_result perfmodel_edf_set_test(const struct perfmodel_edf_set *set)
{
    const long double share = set->share * UPWARDS;
    long double horizon_ns = TIME_NS_MOST;
    if (set->exact && share < SHARE_MOST)
        horizon_ns = (set->ahead_ns + set->blocking_ns) * UPWARDS / (1 - share) + 1;
    if (horizon_ns >= (long double)TIME_NS_MOST)
        return perfmodel_edf_test(set->tasks, set->count, set->surcharge_ns, set->blocking_ns);
    struct perfmodel_edf_result result = result_of(set);
    check_windows(set, (core_ns)horizon_ns, &result);
    return result;
}
