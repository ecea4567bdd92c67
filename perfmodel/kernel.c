/* Kernel times: utilisation and jobs of different sizes on one SM and on all of them. */
#include "perfmodel/gpu.h"

#include "perfmodel/kernel.h"

#include <assert.h>
#include <stdlib.h>

#define JOBS_MAX      (UINT64_C(1) << 32)
#define JOB_BYTES_MAX (UINT64_C(1) << 53) /* times PERFMODEL_COST_MOST: 2^126 */
#define SECOND_PPM    ((perfmodel_wide)CORE_NS_PER_S * CONFIG_PROFILE_SHARE_PPM)

perfmodel_wide perfmodel_cost_row(const struct config_profile_gpu *gpu, uint64_t jobs, uint32_t share_ppm)
{
    assert(jobs >= 1 && share_ppm >= 1);
    return perfmodel_wide_divide_up(jobs * SECOND_PPM << PERFMODEL_COST_BITS,
                                    (perfmodel_wide)share_ppm * gpu->sm_bytes_per_s);
}

/* Of r jobs, c(r) is farthest above c(N) r / N where a row begins to count: with one more than the row before. */
struct perfmodel_cost_tail perfmodel_cost_tail(const struct config_profile_gpu *gpu)
{
    const struct config_profile_utilisation *rows = gpu->utilisation;
    const uint32_t count = gpu->utilisation_count;
    struct perfmodel_cost_tail tail = {.jobs = rows[count - 1].jobs};
    perfmodel_wide cost = 0;
    for (uint32_t i = 0; i < count; i++) {
        const perfmodel_wide row = perfmodel_cost_row(gpu, rows[i].jobs, rows[i].share_ppm);
        tail.last = row > tail.last ? row : tail.last;
    }
    if (tail.last > PERFMODEL_COST_MOST)
        return (struct perfmodel_cost_tail){.last = tail.last};
    for (uint32_t i = 0; i < count; i++) {
        const perfmodel_wide row = perfmodel_cost_row(gpu, rows[i].jobs, rows[i].share_ppm);
        const uint64_t least = i > 0 ? (uint64_t)rows[i - 1].jobs + 1 : 1;
        cost = row > cost ? row : cost;
        const perfmodel_wide begun = cost * (perfmodel_wide)tail.jobs - (perfmodel_wide)least * tail.last;
        tail.begun = begun > tail.begun ? begun : tail.begun;
    }
    return tail;
}

perfmodel_wide perfmodel_cost_beyond(const struct perfmodel_cost_tail *tail, uint64_t jobs)
{
    if (tail->jobs == 0)
        return tail->last;
    return perfmodel_wide_divide_up(tail->last * (perfmodel_wide)jobs + tail->begun,
                                    (perfmodel_wide)tail->jobs);
}

/* Goes through c(n) for rising n. */
struct walk {
    const struct config_profile_gpu *gpu;
    bool measured;
    uint32_t row;                    /* the first with at least the n last asked for */
    uint64_t jobs;                   /* c(n) = jobs / share: the row that binds; 0 before the start */
    uint32_t share;                  /* ppm */
    perfmodel_wide cost;             /* c(n) / Phi; 0: not computed yet */
    struct perfmodel_cost_tail tail; /* its `last` is 0 until n is beyond the rows */
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
    if (walk->row < count) {
        walk_charge(walk, rows[walk->row].jobs, rows[walk->row].share_ppm);
    } else if (walk->measured) {
        walk_charge(walk, n, rows[count - 1].share_ppm);
    } else {
        if (walk->tail.last == 0)
            walk->tail = perfmodel_cost_tail(walk->gpu);
        walk->cost = perfmodel_cost_beyond(&walk->tail, n);
    }
}

static perfmodel_wide walk_cost(struct walk *walk)
{
    if (walk->cost == 0)
        walk->cost = perfmodel_cost_row(walk->gpu, walk->jobs, walk->share);
    assert(walk->cost > 0);
    return walk->cost;
}

uint32_t perfmodel_utilisation_ppm(const struct config_profile_gpu *gpu, uint32_t jobs)
{
    struct walk walk = {.gpu = gpu};
    assert(jobs >= 1);
    walk_to(&walk, jobs);
    if (walk.row == gpu->utilisation_count)
        return (uint32_t)((jobs * SECOND_PPM << PERFMODEL_COST_BITS) /
                          (walk_cost(&walk) * gpu->sm_bytes_per_s));
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
        if (walk_cost(&walk) > PERFMODEL_COST_MOST)
            return CORE_NS_NEVER;
        sum += (bytes - before) * walk_cost(&walk);
    }
    return perfmodel_wide_limit(perfmodel_wide_divide_up(sum, (perfmodel_wide)1 << PERFMODEL_COST_BITS),
                                CORE_NS_NEVER);
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
        if (walk_cost(&walk) > PERFMODEL_COST_MOST)
            return CORE_NS_NEVER;
        sum += (bytes - next) * walk_cost(&walk);
    }
    return perfmodel_wide_limit(perfmodel_wide_divide_up(sum, (perfmodel_wide)1 << PERFMODEL_COST_BITS),
                                CORE_NS_NEVER);
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
