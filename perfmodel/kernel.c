/* Kernel times: utilisation and jobs of different sizes on one SM and on all of them. */
#include "perfmodel/gpu.h"

#include "perfmodel/wide.h"

#include <assert.h>
#include <stdlib.h>

/* c(n) / Phi is kept in multiples of 2^-40 ns per byte, rounded up once: then sums of bytes times that are
 * exact, and as monotone as c. At a Phi of 10^12 the rounding is 10^-9 of it. */
#define COST_BITS     40
#define JOBS_MAX      (UINT64_C(1) << 32)
#define COST_LIMIT    ((perfmodel_wide)1 << 73) /* 8.6 s per byte */
#define JOB_BYTES_MAX (UINT64_C(1) << 53)       /* times COST_LIMIT: 2^126 */
#define SECOND_PPM    ((perfmodel_wide)CORE_NS_PER_S * CONFIG_PROFILE_SHARE_PPM)

/* Goes through c(n) for rising n. */
struct walk {
    const struct config_profile_gpu *gpu;
    bool measured;
    uint32_t row;        /* the first with at least the n last asked for */
    uint64_t jobs;       /* c(n) = jobs / share: the row that binds; 0 before the start */
    uint32_t share;      /* ppm */
    perfmodel_wide cost; /* c(n) / Phi; 0: not computed yet */
};

static void walk_charge(struct walk *walk, uint64_t jobs, uint32_t share)
{
    bool more = (perfmodel_wide)jobs * walk->share > (perfmodel_wide)walk->jobs * share;
    if (walk->jobs > 0 && !more && !walk->measured)
        return;
    walk->jobs = jobs;
    walk->share = share;
    walk->cost = 0;
}

static void walk_to(struct walk *walk, uint64_t n)
{
    const struct config_profile_utilisation *rows = walk->gpu->utilisation;
    uint32_t count = walk->gpu->utilisation_count;
    for (; walk->row < count && rows[walk->row].jobs < n; walk->row++)
        walk_charge(walk, rows[walk->row].jobs, rows[walk->row].share_ppm);
    if (walk->row < count)
        walk_charge(walk, rows[walk->row].jobs, rows[walk->row].share_ppm);
    else
        walk_charge(walk, n, rows[count - 1].share_ppm);
}

/* Below 2^32 * 10^15 * 2^40 < 2^122 before the division. */
static perfmodel_wide walk_cost(struct walk *walk)
{
    assert(walk->jobs >= 1 && walk->share >= 1);
    if (walk->cost == 0)
        walk->cost = perfmodel_wide_divide_up(walk->jobs * SECOND_PPM << COST_BITS,
                                              (perfmodel_wide)walk->share * walk->gpu->sm_bytes_per_s);
    assert(walk->cost > 0);
    return walk->cost;
}

uint32_t perfmodel_utilisation_ppm(const struct config_profile_gpu *gpu, uint32_t jobs)
{
    struct walk walk = {.gpu = gpu};
    assert(jobs >= 1);
    walk_to(&walk, jobs);
    return (uint32_t)((perfmodel_wide)jobs * walk.share / walk.jobs);
}

core_ns perfmodel_sm_ns(const struct config_profile_gpu *gpu, const uint64_t *sorted_bytes, size_t count,
                        bool measured)
{
    struct walk walk = {.gpu = gpu, .measured = measured};
    perfmodel_wide sum = 0;
    assert(count <= JOBS_MAX);
    if (count > 0 && sorted_bytes[count - 1] > JOB_BYTES_MAX)
        return CORE_NS_NEVER;
    /* From the end, where one job is left, to the start, where all run: n rises, and so does the row. */
    for (size_t n = 1; n <= count; n++) {
        uint64_t bytes = sorted_bytes[count - n];
        uint64_t before = n < count ? sorted_bytes[count - n - 1] : 0;
        assert(bytes >= before);
        if (bytes == before)
            continue;
        walk_to(&walk, n);
        if (walk_cost(&walk) > COST_LIMIT)
            return CORE_NS_NEVER;
        sum += (bytes - before) * walk_cost(&walk);
    }
    return perfmodel_wide_limit(perfmodel_wide_divide_up(sum, (perfmodel_wide)1 << COST_BITS), CORE_NS_NEVER);
}

/* ---- all SMs ---- */

/* The first SM is the longest. Of n jobs longer than some size it has one in each round over the SMs. */
core_ns perfmodel_kernel_falling_ns(const struct config_profile_gpu *gpu,
                                    const struct perfmodel_jobs *falling, size_t sizes)
{
    struct walk walk = {.gpu = gpu};
    perfmodel_wide sum = 0;
    uint64_t jobs = 0;
    if (sizes > 0 && falling[0].bytes > JOB_BYTES_MAX)
        return CORE_NS_NEVER;
    for (size_t i = 0; i < sizes; i++) {
        const uint64_t bytes = falling[i].bytes, next = i + 1 < sizes ? falling[i + 1].bytes : 0;
        assert(bytes >= next);
        if (falling[i].count > JOBS_MAX - jobs)
            return CORE_NS_NEVER;
        jobs += falling[i].count;
        if (bytes == next)
            continue;
        walk_to(&walk, (jobs + gpu->sms - 1) / gpu->sms);
        if (walk_cost(&walk) > COST_LIMIT)
            return CORE_NS_NEVER;
        sum += (bytes - next) * walk_cost(&walk);
    }
    return perfmodel_wide_limit(perfmodel_wide_divide_up(sum, (perfmodel_wide)1 << COST_BITS), CORE_NS_NEVER);
}

static int compare_bytes(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static bool falls(const uint64_t *bytes, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (bytes[i] > bytes[i - 1])
            return false;
    return true;
}

size_t perfmodel_kernel_dealt(uint32_t sms, uint32_t sm, size_t turn)
{
    return turn * sms + sm;
}

/* Time of one SM. */
static core_ns dealt_ns(const struct config_profile_gpu *gpu, uint32_t sms, const uint64_t *job_bytes,
                        size_t count, uint32_t sm, bool measured, uint64_t *scratch)
{
    size_t dealt = (count - sm + sms - 1) / sms;
    for (size_t turn = 0; turn < dealt; turn++) /* backwards: what falls need not be sorted */
        scratch[dealt - 1 - turn] = job_bytes[perfmodel_kernel_dealt(sms, sm, turn)];
    for (size_t i = 1; i < dealt; i++) {
        if (scratch[i] < scratch[i - 1]) {
            qsort(scratch, dealt, sizeof *scratch, compare_bytes);
            break;
        }
    }
    return perfmodel_sm_ns(gpu, scratch, dealt, measured);
}

core_ns perfmodel_kernel_ns(const struct config_profile_gpu *gpu, uint32_t sms, const uint64_t *job_bytes,
                            size_t count, bool measured, uint64_t *scratch)
{
    /* The first SM is the longest where c never falls; of a measured table that is not known. */
    uint32_t used = !measured && falls(job_bytes, count) ? 1 : sms;
    core_ns longest_ns = 0;
    assert(sms >= 1);
    for (uint32_t sm = 0; sm < used && sm < count; sm++) {
        core_ns ns = dealt_ns(gpu, sms, job_bytes, count, sm, measured, scratch);
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    return longest_ns;
}
