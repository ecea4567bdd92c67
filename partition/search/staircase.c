#include "partition/search/staircase.h"

#include <math.h>

#define SAMPLE    256
#define LACK_PPB  (PARTITION_SHARE_ONE / 40) /* a sample is not that far off */
#define NEAR_PPB  (PARTITION_SHARE_ONE / 8)  /* nor is a period from the best one near it */
#define PARTS_MAX 96

struct search {
    const struct partition_problem *problem;
    uint32_t kind;
    const uint32_t *member;
    const struct perfmodel_flow_load *load;
    size_t step;                     /* every so many members are in the sample */
    struct perfmodel_flow_load part; /* of the sample */
    core_ns best_ns;
    int64_t room_ppb;
};

static const struct core_stream_spec *sampled(const struct search *search, size_t n)
{
    size_t k = search->step / 2 + n * search->step;
    return k < search->load->streams ? &search->problem->specs[search->member[k]] : NULL;
}

static void sum_sample(struct search *search)
{
    const struct core_stream_spec *spec;
    for (size_t n = 0; (spec = sampled(search, n)) != NULL; n++) {
        struct perfmodel_flow_load one = perfmodel_flow_load_of(spec, search->problem->input->profile);
        perfmodel_flow_load_add(&search->part, &one);
    }
}

/* The sums at a period are to the sample's as those at any are. */
static struct perfmodel_flow_load load_at(const struct search *search, core_ns period_ns)
{
    struct perfmodel_flow_load load = {0};
    const struct core_stream_spec *spec;
    for (size_t n = 0; (spec = sampled(search, n)) != NULL; n++) {
        struct perfmodel_flow_load one =
            perfmodel_flow_load_at(spec, search->problem->input->profile, period_ns);
        perfmodel_flow_load_add(&load, &one);
    }
    load.jobs = (uint64_t)ceil((double)load.jobs * (double)search->load->streams / (double)load.streams);
    load.streams = search->load->streams;
    load.shortest_ns = search->load->shortest_ns;
    load.burst_bytes = (uint64_t)((double)search->load->burst_bytes * (double)load.burst_bytes /
                                  (double)search->part.burst_bytes);
    load.rate = (uint64_t)((double)search->load->rate * (double)load.rate / (double)search->part.rate);
    return load;
}

static bool try_period(struct search *search, core_ns period_ns)
{
    if (period_ns <= 0)
        return false;
    struct perfmodel_flow_load load = load_at(search, period_ns);
    int64_t room_ppb =
        perfmodel_flow_judge(search->problem->flow[search->kind], &load, period_ns).headroom_ppb;
    bool better = room_ppb > search->room_ppb;
    if (better) {
        search->best_ns = period_ns;
        search->room_ppb = room_ppb;
    }
    return better;
}

/* All over the range; where most streams are alike, just below their interval, from which on batches have a
 * packet more of each; then in ever smaller steps around the best. */
core_ns partition_staircase_period_ns(const struct partition_problem *problem, uint32_t kind,
                                      const uint32_t *member, const struct perfmodel_flow_load *load)
{
    if (problem->input->sums || load->streams == 0 || load->shortest_ns <= 0)
        return 0;
    struct search search = {.problem = problem,
                            .kind = kind,
                            .member = member,
                            .load = load,
                            .step = 1 + (size_t)load->streams / SAMPLE,
                            .room_ppb = INT64_MIN};
    sum_sample(&search);
    for (core_ns per_mille = 450; per_mille > 30; per_mille -= per_mille / 10)
        (void)try_period(&search, load->shortest_ns * per_mille / 1000);
    core_ns interval_ns = problem->specs[member[load->streams / 2]].interval_ns;
    for (core_ns part = 8; part <= 64 && interval_ns < load->shortest_ns / 2; part *= 2)
        (void)try_period(&search, interval_ns - interval_ns / part);
    for (core_ns part = 24; part <= PARTS_MAX && search.room_ppb > -NEAR_PPB; part *= 2) {
        core_ns at_ns = search.best_ns, step_ns = at_ns / part;
        if (!try_period(&search, at_ns + step_ns))
            (void)try_period(&search, at_ns - step_ns);
    }
    return search.room_ppb >= -LACK_PPB ? search.best_ns : 0;
}
