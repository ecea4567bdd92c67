#include "tests/support/flow_crowd.h"

#include "tests/support/require.h"
#include "tests/support/units.h"

#include <stdlib.h>
#include <string.h>

/* Copies with a start and rates that change, a few SMs, a utilisation with kinks. */
static void plausible_card(struct test_gpu *card, struct test_random *random)
{
    struct config_profile_copy row = {.bytes = 4096};
    row.up_ns = row.down_ns = test_random_in(random, 100, 20000);
    card->gpu.copy_count = 3;
    for (int i = 0; i < 3; i++) {
        row.up_busy_ns = row.up_ns + row.up_ns / 2;
        row.down_busy_ns = row.down_ns + row.down_ns / 3;
        card->copies[i] = row;
        row.up_ns += (core_ns)row.bytes * 15 / test_random_in(random, 1, 60);
        row.down_ns += (core_ns)row.bytes * 15 / test_random_in(random, 1, 60);
        row.bytes *= 16;
    }
    card->gpu.sms = (uint32_t)test_random_in(random, 1, 8);
    card->gpu.sm_bytes_per_s = test_random_log(random, 50000000, 2000000000);
    card->gpu.launch_ns = test_random_in(random, 0, 20000);
    card->gpu.utilisation_count = 4;
    for (uint32_t i = 0; i < 4; i++)
        card->utilisation[i] = (struct config_profile_utilisation){
            1 + 3 * i, (uint32_t)test_random_in(random, 100000 + 200000 * i, 400000 + 200000 * i)};
}

void flow_crowd_random(struct flow_crowd *crowd, struct test_random *random)
{
    struct test_random beside = {~random->state}; /* the rest is as it would be without */
    const int alone_percent = test_random_chance(&beside, 50) ? 50 : 0;
    memset(crowd, 0, sizeof *crowd);
    test_gpu_random(&crowd->gpu, random);
    if (test_random_chance(random, 85))
        plausible_card(&crowd->gpu, random);
    test_gpu_margins_random(&crowd->profile.margins, random);
    crowd->profile.margins.in_ns = test_random_in(random, 0, 100000);
    crowd->profile.io.rest_max_ns = test_random_in(random, 0, 500000);
    crowd->profile.margins.out_ns = test_random_in(random, 0, 100000);
    crowd->busy = test_random_chance(random, 50);
    crowd->count = (size_t)test_random_in(random, 1, FLOW_CROWD_STREAMS);
    for (size_t i = 0; i < crowd->count; i++) {
        struct core_stream_spec *spec = &crowd->specs[i];
        *spec = (struct core_stream_spec){.packet_bytes = 16 * (uint32_t)test_random_log(random, 1, 512),
                                          .burst_packets = (uint32_t)test_random_in(random, 1, 4),
                                          .interval_ns =
                                              test_random_log(random, 2000, 4000000) * (int64_t)crowd->count,
                                          .latency_ns = CORE_NS_PER_S,
                                          .cipher = CORE_CIPHER_AES_128_CBC};
        test_units_stand_alone(spec, &beside, alone_percent);
        struct perfmodel_flow_load one = perfmodel_flow_load_of(spec, &crowd->profile);
        perfmodel_flow_load_add(&crowd->load, &one);
    }
    TEST_REQUIRE(perfmodel_flow_gpu_create(&crowd->card, &crowd->profile, &crowd->gpu.gpu, crowd->busy) ==
                 CORE_OK);
}

void flow_crowd_free(struct flow_crowd *crowd)
{
    perfmodel_flow_gpu_destroy(crowd->card);
}

static int compare_falling(const void *a, const void *b)
{
    const struct perfmodel_jobs *left = a, *right = b;
    return (left->bytes < right->bytes) - (left->bytes > right->bytes);
}

struct perfmodel_jobs flow_crowd_jobs(const struct core_stream_spec *spec, uint64_t bytes)
{
    if (!core_stream_packets_alone(spec))
        return (struct perfmodel_jobs){bytes, 1};
    return (struct perfmodel_jobs){spec->packet_bytes, bytes / spec->packet_bytes};
}

struct perfmodel_stages flow_crowd_stages(const struct flow_crowd *crowd, struct perfmodel_jobs *jobs,
                                          size_t count)
{
    qsort(jobs, count, sizeof *jobs, compare_falling);
    return perfmodel_gpu_stages_falling(&crowd->gpu.gpu, &crowd->profile.margins, jobs, count, crowd->busy);
}

uint64_t flow_crowd_send(const struct core_stream_spec *spec, core_ns *tat_ns, core_ns open_ns,
                         core_ns close_ns)
{
    uint64_t bytes = 0;
    for (;;) {
        core_ns at_ns = core_time_max(open_ns, *tat_ns - (spec->burst_packets - 1) * spec->interval_ns);
        if (at_ns >= close_ns)
            return bytes;
        *tat_ns = core_time_max(*tat_ns, at_ns) + spec->interval_ns;
        bytes += spec->packet_bytes;
    }
}
