/* The backlog rule: figures by hand, bounds against batches as full as they can be, pipelines in virtual
 * time, and that nothing falls as a load grows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "perfmodel/flow.h"
#include "tests/support/flow_crowd.h"
#include "tests/support/stages.h"

#define BATCHES   STAGES_BATCHES_MAX
#define PIPELINES 1500

/* ---- by hand ---- */

/* Copies 1000 ns + 1 ns a byte up, 500 ns + 0.5 ns a byte back; 2 SMs of 1 GB/s, a job alone at half of it,
 * two and more at all of it. */
static struct config_profile_copy copies[] = {{1000, 2000, 1000, 2000, 1000},
                                              {1 << 20, 1049576, 524788, 1049576, 524788}};
static struct config_profile_utilisation rows[] = {
    {1, 500000}, {2, 1000000}, {3, 1000000}, {4, 1000000}, {5, 1000000}};
static struct config_profile_gpu hand_card = {.count = 1,
                                              .sms = 2,
                                              .copy_engines = 2,
                                              .memory_bytes = 1 << 30,
                                              .sm_bytes_per_s = 1000000000,
                                              .launch_ns = 5000,
                                              .job_bytes = 16,
                                              .copies = copies,
                                              .copy_count = 2,
                                              .utilisation = rows,
                                              .utilisation_count = 5};
static struct config_profile hand_profile = {.gpus = &hand_card, .gpu_count = 1};

static struct perfmodel_flow_verdict judge(const struct config_profile *profile,
                                           const struct config_profile_gpu *gpu,
                                           const struct perfmodel_flow_load *load, core_ns period_ns)
{
    struct perfmodel_flow_gpu *card = NULL;
    assert_int_equal(perfmodel_flow_gpu_create(&card, profile, gpu, false), CORE_OK);
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(card, load, period_ns);
    perfmodel_flow_gpu_destroy(card);
    return verdict;
}

/* P + rho T, rounded up. */
static uint64_t batch_bytes(const struct perfmodel_flow_load *load, core_ns period_ns)
{
    unsigned __int128 flowing = (unsigned __int128)load->rate * (uint64_t)period_ns;
    return load->burst_bytes + (uint64_t)((flowing + UINT32_MAX) >> 32);
}

static void a_load_by_hand(void **state)
{
    (void)state;
    struct core_stream_spec spec = {.packet_bytes = 1000, /* 1008 padded */
                                    .burst_packets = 3,
                                    .interval_ns = 2016000,
                                    .latency_ns = 64 * CORE_NS_PER_MS,
                                    .cipher = CORE_CIPHER_AES_128_CBC,
                                    .padding = CORE_PADDING_PKCS7};
    struct config_profile profile = {.margins = {.in_ns = 300, .out_ns = 700}};
    struct perfmodel_flow_load one = perfmodel_flow_load_of(&spec, &profile), sum = {0};
    assert_int_equal(one.burst_bytes, 3 * 1008);
    assert_int_equal(one.rate, (UINT64_C(1) << 32) / 2000 + 1);
    assert_int_equal(one.shortest_ns, 64 * CORE_NS_PER_MS - 1000);
    spec.burst_packets = 1;
    spec.interval_ns *= 4;
    struct perfmodel_flow_load other = perfmodel_flow_load_of(&spec, &profile);
    perfmodel_flow_load_add(&sum, &one);
    perfmodel_flow_load_add(&sum, &other);
    assert_int_equal(sum.streams, 2);
    assert_int_equal(sum.burst_bytes, 4 * 1008);
    assert_int_equal(sum.rate, one.rate + other.rate);
    assert_int_equal(sum.job_burst_bytes, 3 * 1008);
    assert_int_equal(sum.job_rate, one.rate);
    assert_int_equal(sum.unit_bytes, 16);
    assert_int_equal(sum.burst_packets, 4);
    assert_int_equal(sum.packet_rate, one.packet_rate + other.packet_rate);
    assert_int_equal(batch_bytes(&sum, 8064000), 4 * 1008 + 5 * 1008 + 1);
    assert_int_equal(perfmodel_flow_batch_packets(&sum, 8064000), 4 + 6 + 1); /* 5, rounded up */
    perfmodel_flow_load_remove(&sum, &one);
    struct perfmodel_flow_load third = {.streams = 1, .unit_bytes = 48}, both = other;
    both.unit_bytes = 1008; /* 21 * 48 */
    perfmodel_flow_load_add(&both, &third);
    assert_int_equal(both.unit_bytes, 48);
    assert_int_equal(sum.burst_bytes, other.burst_bytes);
    assert_int_equal(sum.rate, other.rate);
    assert_int_equal(sum.job_burst_bytes, 3 * 1008); /* a maximum stays */
    perfmodel_flow_load_remove(&sum, &other);
    struct perfmodel_flow_load none = {0};
    assert_memory_equal(&sum, &none, sizeof sum);
}

/* The first stream of above, whose packets stand alone: 3 + T/t jobs of a packet each. Where the IV goes on from
 * the message before, or messages may be longer, it is as above. */
static void a_load_of_packets_alone_by_hand(void **state)
{
    (void)state;
    struct core_stream_spec spec = {.packet_bytes = 1000, /* 1008 padded */
                                    .burst_packets = 3,
                                    .interval_ns = 2016000,
                                    .latency_ns = 64 * CORE_NS_PER_MS,
                                    .cipher = CORE_CIPHER_AES_128_CBC,
                                    .padding = CORE_PADDING_PKCS7,
                                    .unit = CORE_UNIT_MESSAGE,
                                    .iv = CORE_IV_EXPLICIT,
                                    .message_packets = 1};
    const struct config_profile profile = {.margins = {.in_ns = 300, .out_ns = 700}};
    const struct perfmodel_flow_load alone = perfmodel_flow_load_of(&spec, &profile);
    struct perfmodel_flow_load sum = {0};
    assert_int_equal(alone.streams, 1);
    assert_int_equal(alone.job_burst_bytes, 1008);
    assert_int_equal(alone.job_rate, 0);
    assert_int_equal(alone.burst_bytes, 3 * 1008);
    assert_int_equal(perfmodel_flow_batch_jobs(&alone, 2015000), 4);
    assert_int_equal(perfmodel_flow_batch_jobs(&alone, 4031000), 5);
    const struct perfmodel_flow_verdict verdict = judge(&hand_profile, &hand_card, &alone, 2015000);
    assert_int_equal(verdict.memory_bytes,
                     verdict.arenas * (2 * verdict.batch_bytes + 4 * 16)); /* four jobs */
    struct perfmodel_flow_load at = perfmodel_flow_load_at(&spec, &profile, 2015999);
    assert_int_equal(at.job_burst_bytes, 1008);
    assert_int_equal(perfmodel_flow_batch_jobs(&at, 2015999), 3);
    at = perfmodel_flow_load_at(&spec, &profile, 2016000);
    assert_int_equal(perfmodel_flow_batch_jobs(&at, 2016000), 4);
    struct core_stream_spec chained[] = {spec, spec};
    chained[0].iv = CORE_IV_CHAIN;
    chained[1].message_packets = 0;
    perfmodel_flow_load_add(&sum, &alone);
    for (size_t i = 0; i < 2; i++) {
        const struct perfmodel_flow_load one = perfmodel_flow_load_of(&chained[i], &profile);
        assert_int_equal(one.job_burst_bytes, 3 * 1008);
        assert_int_equal(one.job_rate, one.rate);
        assert_int_equal(perfmodel_flow_batch_jobs(&one, 4032000), 1);
        perfmodel_flow_load_add(&sum, &one);
    }
    assert_int_equal(perfmodel_flow_batch_jobs(&sum, 4031000), 5 + 2);
    struct perfmodel_flow_load cover = alone;
    perfmodel_flow_load_cover(&cover, &sum);
    assert_int_equal(perfmodel_flow_batch_jobs(&cover, 4031000), 5 + 2);
    perfmodel_flow_load_remove(&sum, &alone);
    assert_int_equal(perfmodel_flow_batch_jobs(&sum, 4031000), 2);
    assert_int_equal(sum.jobs_rate, 0);
}

/* Ten streams with bursts of 1,000 bytes, together 0.5 bytes per ns, so in periods of 50 us: 35,000 bytes at
 * most, 25,000 on average, jobs of at most 1000 + 0.05 * 50000 = 3,500 bytes. */
static const struct perfmodel_flow_load ten = {.streams = 10,
                                               .jobs = 10,
                                               .burst_bytes = 10000,
                                               .rate = UINT64_C(1) << 31,
                                               .job_burst_bytes = 1000,
                                               .job_rate = (UINT64_C(1) << 32) / 20,
                                               .unit_bytes = 1,
                                               .shortest_ns = CORE_NS_PER_MS};

static void bounds_by_hand(void **state)
{
    (void)state;
    /* up: 1000 + 35000 + 160. Kernel: c(1) = c(2) = 2, then n. Two SMs: g is 2 up to 4 jobs, 3 from 5, 4 from
     * 7, 5 from 9. The hull of (1, 2), (3, 2), (5, 3), (9, 5) is one line from (1, 2) to (9, 5): 13/8 + 3/8
     * N. So 5000 + 13/8 * 3500 + 3/8 * 35000; but never more than 5 * 3500. Back: 500 + 17500. Each with 3 ns
     * for rounding. */
    struct perfmodel_flow_verdict verdict = judge(&hand_profile, &hand_card, &ten, 50000);
    assert_int_equal(verdict.binding, PERFMODEL_LIMIT_NONE);
    assert_int_equal(verdict.batch_bytes, 35000);
    assert_in_range(verdict.bounds.up_ns, 36160 + 3, 36160 + 4);
    assert_in_range(verdict.bounds.kernel_ns, 22500 + 3, 22500 + 4);
    assert_in_range(verdict.bounds.down_ns, 18000 + 3, 18000 + 4);
    assert_int_equal(verdict.latency_ns,
                     50000 + verdict.bounds.up_ns + verdict.bounds.kernel_ns + verdict.bounds.down_ns);
    assert_int_equal(verdict.arenas, 5);
    struct config_profile late = {.margins = {.in_ns = 1, .out_ns = 99}, .io = {.rest_max_ns = 1000}};
    assert_int_equal(perfmodel_flow_arenas(&late, 398900, 100000), 5);
    assert_int_equal(perfmodel_flow_arenas(&late, 398901, 100000), 6);
    assert_int_equal(verdict.memory_bytes, 5 * (2 * 35000 + 160));
    /* A table of two rows: beyond, c(n) = n + 1, so g is 4 from 5 jobs, 5 from 7, 6 from 9. The hull is 3/2 + N/2,
     * so 5000 + 3/2 * 3500 + 1/2 * 35000; but never more than 6 * 3500. */
    struct config_profile_gpu short_table = hand_card;
    short_table.utilisation_count = 2;
    const struct perfmodel_flow_verdict begun = judge(&hand_profile, &short_table, &ten, 50000);
    assert_in_range(begun.bounds.kernel_ns, 26000 + 3, 26000 + 4);
    /* up takes 2000 + 25160 * 34160 / 35160 in the long run: the least concave line above a table that is
     * flat up to 1,000 bytes */
    assert_int_equal(verdict.headroom_ppb, 1000000000 - 26448 * 20000);

    /* One engine. In the long run a period has 3 + 2000 + 25160 * 34160/35160 = 26447.4 ns of copies up and
     * 3 + 1000 + 25000 * 17000/35000 = 13145.9 ns of copies back; the bursts alone take 4857.1 ns back. So
     * (36163 + 4857.1 + 22503.1 * 0.262917) / (1 - 0.262917), and (36163 + 18003) / (1 - 0.528949). */
    hand_card.copy_engines = 1;
    verdict = judge(&hand_profile, &hand_card, &ten, 50000);
    assert_int_equal(verdict.binding, PERFMODEL_LIMIT_NONE);
    assert_in_range(verdict.bounds.up_ns, 63678, 63681);
    assert_in_range(verdict.bounds.down_ns, 114988, 114993);
    /* Closed late, a copy back has more copies up before it, but none of a batch has more before its own. */
    struct config_profile late_profile = {.gpus = &hand_card, .gpu_count = 1, .margins = {.in_ns = 1000}};
    assert_int_equal(judge(&late_profile, &hand_card, &ten, 50000).bounds.up_ns, verdict.bounds.up_ns);
    assert_in_range(judge(&late_profile, &hand_card, &ten, 50000).bounds.down_ns,
                    verdict.bounds.down_ns + 1122, verdict.bounds.down_ns + 1124);
    /* The fullest batch of a period of 60 us has 41160 ns up and 20500 ns back, that of 70 us 46160 and
     * 23000: the latter's copies are within the period. */
    assert_true(judge(&hand_profile, &hand_card, &ten, 60000).bounds.up_ns > 61660 + 6);
    assert_int_equal(judge(&hand_profile, &hand_card, &ten, 70000).bounds.up_ns, 69160 + 6);
    assert_int_equal(judge(&hand_profile, &hand_card, &ten, 70000).bounds.down_ns, 69160 + 6);
    hand_card.copy_engines = 2;
}

/* A batch of 50 us has at most 20 + 20 + 1 packets: 700 + 41 * 50 = 2,750 ns of the batcher. */
static void the_batcher_by_hand(void **state)
{
    (void)state;
    struct perfmodel_flow_load load = ten;
    load.burst_packets = 20;
    load.packet_rate = (UINT64_C(1) << 44) / 2500;
    struct config_profile_gpu card = hand_card;
    card.host_batch_ns = 700;
    card.host_packet_ns = 50;
    struct perfmodel_flow_verdict bare = judge(&hand_profile, &hand_card, &load, 50000);
    struct perfmodel_flow_verdict verdict = judge(&hand_profile, &card, &load, 50000);
    assert_int_equal(verdict.bounds.host_ns, 2750);
    assert_int_equal(verdict.latency_ns, bare.latency_ns + 2750);
    assert_int_equal(verdict.bounds.up_ns, bare.bounds.up_ns);
    struct perfmodel_flow_gpu *flow = NULL; /* and at most 20 + 24 + 1 in 60 us */
    assert_int_equal(perfmodel_flow_gpu_create(&flow, &hand_profile, &card, false), CORE_OK);
    for (int grows = 0; grows < 2; grows++) {
        core_ns from_ns = grows ? 50000 : 60000, to_ns = grows ? 60000 : 50000;
        struct perfmodel_flow_change change = perfmodel_flow_judge_change(flow, &load, from_ns, to_ns);
        assert_int_equal(change.latency_ns, to_ns + change.bounds.up_ns + change.bounds.kernel_ns +
                                                change.bounds.down_ns + 2950);
    }
    perfmodel_flow_gpu_destroy(flow);
    /* as if batches were closed so much later */
    struct config_profile late = {.gpus = &card, .gpu_count = 1, .margins = {.in_ns = 2750}};
    card.copy_engines = 1;
    verdict = judge(&hand_profile, &card, &load, 50000);
    card.host_batch_ns = card.host_packet_ns = 0;
    assert_int_equal(verdict.bounds.down_ns, judge(&late, &card, &load, 50000).bounds.down_ns);
    card.copy_engines = 2;
    load.shortest_ns = CORE_NS_PER_S;
    card.host_batch_ns = 50000;
    assert_int_equal(judge(&hand_profile, &card, &load, 50000).binding, PERFMODEL_LIMIT_NONE);
    assert_int_equal(judge(&hand_profile, &card, &load, 50000).headroom_ppb, 0);
    card.host_batch_ns++; /* the batcher would fall behind */
    assert_int_equal(judge(&hand_profile, &card, &load, 50000).binding, PERFMODEL_LIMIT_GPU_LATENCY);
    assert_true(judge(&hand_profile, &card, &load, 50000).headroom_ppb < 0);
}

static void what_binds(void **state)
{
    (void)state;
    struct perfmodel_flow_load load = ten;
    /* 1000 + 0.5 T + 160 + 3 <= T for T >= 2326; 5000 + 13/8 (1000 + 0.05 T) + 3/16 T + 3 <= T for T >= 9063
     */
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 2000).binding, PERFMODEL_LIMIT_GPU_COPY);
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 9060).binding, PERFMODEL_LIMIT_GPU_KERNEL);
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 9070).binding, PERFMODEL_LIMIT_NONE);
    load.shortest_ns = judge(&hand_profile, &hand_card, &load, 20000).latency_ns;
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 20000).binding, PERFMODEL_LIMIT_NONE);
    load.shortest_ns--;
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 20000).binding, PERFMODEL_LIMIT_GPU_LATENCY);
    load.shortest_ns = 0;
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 20000).headroom_ppb, -1000000000);
    load.shortest_ns = CORE_NS_PER_S;
    hand_card.memory_bytes = judge(&hand_profile, &hand_card, &load, 20000).memory_bytes;
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 20000).binding, PERFMODEL_LIMIT_NONE);
    hand_card.memory_bytes--;
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 20000).binding, PERFMODEL_LIMIT_GPU_MEMORY);
    hand_card.memory_bytes = 1 << 30;
    /* bursts so large that 64 arenas do not last */
    load.burst_bytes = 10000000;
    assert_int_equal(judge(&hand_profile, &hand_card, &load, 20000).binding, PERFMODEL_LIMIT_GPU_MEMORY);
    assert_true(judge(&hand_profile, &hand_card, &load, 20000).headroom_ppb < 0);
}

static void nothing_and_too_much(void **state)
{
    (void)state;
    struct perfmodel_flow_load none = {0};
    struct perfmodel_flow_verdict verdict = judge(&hand_profile, &hand_card, &none, 1000);
    assert_int_equal(verdict.binding, PERFMODEL_LIMIT_NONE);
    assert_int_equal(verdict.latency_ns, 0);
    assert_int_equal(verdict.headroom_ppb, 1000000000);

    struct core_stream_spec most = {.packet_bytes = CORE_PACKET_BYTES_MAX,
                                    .burst_packets = CORE_BURST_MAX,
                                    .interval_ns = CORE_INTERVAL_NS_MIN,
                                    .latency_ns = CORE_LATENCY_NS_MAX,
                                    .cipher = CORE_CIPHER_AES_128_CBC,
                                    .padding = CORE_PADDING_PKCS7};
    struct perfmodel_flow_load load = perfmodel_flow_load_of(&most, &hand_profile);
    for (int doubled = 0; doubled < 20; doubled++)
        perfmodel_flow_load_add(&load, &load);
    assert_int_equal(load.streams, 1 << 20);
    assert_true(load.rate / (1 << 20) == perfmodel_flow_load_of(&most, &hand_profile).rate);
    static const core_ns periods_ns[] = {1, 1000, CORE_NS_PER_S, CORE_LATENCY_NS_MAX};
    for (int i = 0; i < 4; i++) {
        verdict = judge(&hand_profile, &hand_card, &load, periods_ns[i]);
        assert_int_equal(verdict.binding, PERFMODEL_LIMIT_GPU_COPY);
        assert_int_equal(verdict.latency_ns, CORE_NS_NEVER);
        assert_true(verdict.headroom_ppb < 0);
    }
}

/* The default period where it holds, else the most headroom. */
static void the_period_that_suits(void **state)
{
    (void)state;
    struct perfmodel_flow_gpu *card = NULL;
    assert_int_equal(perfmodel_flow_gpu_create(&card, &hand_profile, &hand_card, false), CORE_OK);
    struct perfmodel_flow_load load = ten;
    load.shortest_ns = 1000000;
    assert_int_equal(perfmodel_flow_fit(card, &load).period_ns, 250000);
    /* With bursts this large d'/4 is too much, and a shorter period does: 20160 + 0.5 T + ... */
    load.burst_bytes = 100000;
    load.shortest_ns = 300000;
    assert_int_equal(perfmodel_flow_judge(card, &load, 75000).binding, PERFMODEL_LIMIT_GPU_LATENCY);
    struct perfmodel_flow_verdict verdict = perfmodel_flow_fit(card, &load);
    assert_int_equal(verdict.binding, PERFMODEL_LIMIT_NONE);
    assert_true(verdict.period_ns < 75000 && verdict.latency_ns <= load.shortest_ns);
    load.shortest_ns = 1000;
    assert_true(perfmodel_flow_fit(card, &load).binding != PERFMODEL_LIMIT_NONE);
    load.shortest_ns = -5;
    assert_int_equal(perfmodel_flow_fit(card, &load).headroom_ppb, -1000000000);
    perfmodel_flow_gpu_destroy(card);
}

/* Packets of 992 bytes, two at once, and what counts of them at a period: half a packet less in a batch, and
 * half a packet with each, where two periods are just below an interval; and so on. */
static const struct {
    core_ns interval_ns, period_ns;
    uint64_t burst_bytes, batch_bytes, job_bytes;
} steps[] = {
    {30000, 14000, 2 * 992 - 496, 496, 2 * 992}, {30000, 29000, 992, 992, 2 * 992},
    {30000, 30000, 2 * 992, 992, 3 * 992},       {18000, 50000, 992, 3 * 992, 4 * 992},
    {30000, 50000, 2 * 992, 1654, 3 * 992}, /* three packets every two periods: the straight line is lower */
};

static void loads_at_a_period(void **state)
{
    (void)state;
    struct core_stream_spec spec = {.packet_bytes = 992,
                                    .burst_packets = 2,
                                    .latency_ns = CORE_NS_PER_MS,
                                    .cipher = CORE_CIPHER_AES_128_CBC};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        spec.interval_ns = steps[i].interval_ns;
        struct perfmodel_flow_load load = perfmodel_flow_load_at(&spec, &hand_profile, steps[i].period_ns);
        assert_int_equal(load.burst_bytes, steps[i].burst_bytes);
        assert_in_range(batch_bytes(&load, steps[i].period_ns) - load.burst_bytes, steps[i].batch_bytes,
                        steps[i].batch_bytes + 1);
        assert_int_equal(load.job_burst_bytes, steps[i].job_bytes);
        assert_int_equal(load.job_rate, 0);
    }
}

/* No row of batches holds more than the line; and a single one as much. */
static void loads_at_a_period_cover_all(void **state)
{
    (void)state;
    struct test_random random = {.state = 6};
    int lower = 0;
    for (int i = 0; i < 20000; i++) {
        struct core_stream_spec spec = {.packet_bytes = 16 * (uint32_t)test_random_log(&random, 1, 4096),
                                        .burst_packets = (uint32_t)test_random_log(&random, 1, 100),
                                        .interval_ns = test_random_log(&random, 1000, 100000),
                                        .latency_ns = CORE_NS_PER_S,
                                        .cipher = CORE_CIPHER_AES_128_CBC};
        core_ns period_ns = test_random_log(&random, 100, 1000000);
        struct perfmodel_flow_load load = perfmodel_flow_load_at(&spec, &hand_profile, period_ns);
        for (core_ns row = 1; row < 200; row++) {
            uint64_t packets = spec.burst_packets + (uint64_t)(row * period_ns / spec.interval_ns);
            assert_true(batch_bytes(&load, row * period_ns) >= packets * spec.packet_bytes);
        }
        uint64_t job_bytes = perfmodel_gpu_job_bytes(&spec, period_ns, false);
        assert_int_equal(load.job_burst_bytes, job_bytes);
        if (load.burst_bytes < spec.burst_packets * spec.packet_bytes) {
            assert_true(batch_bytes(&load, period_ns) <= job_bytes + 2);
            lower++;
        }
    }
    assert_true(lower > 5000);
}

/* Ten streams as above, of which a batch has 30,000 bytes. A copy up takes 1000 + 30000 + 160 then, which is
 * within the period and so the bound. The kernel is told to outlast it, so its lines count: 5000 + 13/8 *
 * 3000 + 3/8 * 30000, but never more than 5 * 3000. */
static void stairs_by_hand(void **state)
{
    (void)state;
    struct perfmodel_flow_load load = ten;
    load.burst_bytes = 5000;
    load.job_burst_bytes = 3000;
    load.job_rate = 0;
    struct perfmodel_stages fullest = {.up_ns = 31160, .kernel_ns = 60000, .down_ns = 15500};
    struct perfmodel_flow_gpu *card = NULL;
    assert_int_equal(perfmodel_flow_gpu_create(&card, &hand_profile, &hand_card, false), CORE_OK);
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge_staircase(card, &load, &fullest, 50000);
    assert_int_equal(verdict.binding, PERFMODEL_LIMIT_NONE);
    assert_int_equal(verdict.batch_bytes, 30000);
    assert_int_equal(verdict.bounds.up_ns, 31160);
    assert_int_equal(verdict.bounds.down_ns, 15500);
    assert_in_range(verdict.bounds.kernel_ns, 20000 + 3, 20000 + 4);
    fullest.kernel_ns = 19000;
    assert_int_equal(perfmodel_flow_judge_staircase(card, &load, &fullest, 50000).bounds.kernel_ns, 19000);
    hand_card.copy_engines = 1;
    verdict = perfmodel_flow_judge_staircase(card, &load, &fullest, 50000);
    assert_int_equal(verdict.bounds.up_ns, 31160 + 15500);
    assert_int_equal(verdict.bounds.down_ns, 31160 + 15500);
    hand_card.copy_engines = 2;
    perfmodel_flow_gpu_destroy(card);
}

/* ---- random cards and streams ---- */

static struct perfmodel_flow_verdict judge_stairs(const struct flow_crowd *crowd, core_ns period_ns)
{
    struct perfmodel_flow_load load = {0};
    struct perfmodel_jobs jobs[FLOW_CROWD_STREAMS];
    for (size_t k = 0; k < crowd->count; k++) {
        struct perfmodel_flow_load one = perfmodel_flow_load_at(&crowd->specs[k], &crowd->profile, period_ns);
        perfmodel_flow_load_add(&load, &one);
        jobs[k] = perfmodel_gpu_jobs(&crowd->specs[k], period_ns, false);
    }
    struct perfmodel_stages fullest = flow_crowd_stages(crowd, jobs, crowd->count);
    return perfmodel_flow_judge_staircase(crowd->card, &load, &fullest, period_ns);
}

struct pipeline {
    core_ns period_ns;
    struct stages stages; /* batch n is closed at n T; its oldest packet came at (n-1) T */
};

/* Streams that send all they may, from some batch on, or pause now and then, at the police's earliest times.
 */
static void random_batches(const struct flow_crowd *crowd, struct pipeline *pipeline,
                           struct test_random *random)
{
    core_ns tat_ns[FLOW_CROWD_STREAMS] = {0};
    core_ns start_ns = test_random_in(random, 0, BATCHES / 2) * pipeline->period_ns;
    int pause = test_random_chance(random, 50) ? 0 : (int)test_random_in(random, 1, 60);
    for (int n = 0; n < BATCHES; n++) {
        struct perfmodel_jobs jobs[FLOW_CROWD_STREAMS];
        size_t count = 0;
        for (size_t i = 0; i < crowd->count; i++) {
            const struct core_stream_spec *spec = &crowd->specs[i];
            core_ns open_ns = n * pipeline->period_ns + 1, close_ns = open_ns + pipeline->period_ns;
            if (close_ns <= start_ns || test_random_chance(random, pause))
                continue;
            if (test_random_chance(random, 20)) /* late in the period, all that has saved up */
                open_ns = close_ns - 1;
            uint64_t bytes = flow_crowd_send(spec, &tat_ns[i], open_ns, close_ns);
            if (bytes > 0)
                jobs[count++] = flow_crowd_jobs(spec, bytes);
        }
        pipeline->stages.close_ns[n] = n * pipeline->period_ns;
        pipeline->stages.takes[n] = flow_crowd_stages(crowd, jobs, count);
    }
}

struct tally {
    int runs, backlogs, close; /* with a stage longer than T; and later than half the bound */
};

static void expect_in_time(const struct flow_crowd *crowd, const struct pipeline *pipeline,
                           const struct perfmodel_flow_verdict *verdict, struct tally *tally)
{
    bool turns = crowd->gpu.gpu.copy_engines == 1, backlog = false;
    core_ns worst_ns = 0;
    for (int n = 0; n < BATCHES; n++) {
        const struct perfmodel_stages *batch = &pipeline->stages.takes[n];
        core_ns copies_ns =
            turns ? batch->up_ns + batch->down_ns : core_time_max(batch->up_ns, batch->down_ns);
        backlog |= core_time_max(copies_ns, batch->kernel_ns) > pipeline->period_ns;
        core_ns took_ns = pipeline->stages.down_end_ns[n] - (n - 1) * pipeline->period_ns;
        worst_ns = core_time_max(worst_ns, took_ns);
        assert_true(took_ns <= verdict->latency_ns);
        const struct config_profile_margins *margins = &crowd->profile.margins;
        core_ns kept_ns = margins->in_ns + margins->out_ns + crowd->profile.io.rest_max_ns;
        assert_true(took_ns + kept_ns <= verdict->arenas * pipeline->period_ns);
    }
    tally->runs++;
    tally->backlogs += backlog;
    tally->close += 2 * worst_ns > verdict->latency_ns;
}

static struct perfmodel_flow_verdict judge_sums(const struct flow_crowd *crowd, core_ns period_ns)
{
    return perfmodel_flow_judge(crowd->card, &crowd->load, period_ns);
}

typedef struct perfmodel_flow_verdict judge_crowd(const struct flow_crowd *crowd, core_ns period_ns);

/* The shortest period, to a tenth, at which all stages are stable; 0 if none is up to half a second. */
static core_ns brink_ns(const struct flow_crowd *crowd, judge_crowd *judge_it)
{
    for (core_ns period_ns = 2000; period_ns < CORE_NS_PER_S / 2; period_ns += period_ns / 10) {
        struct perfmodel_flow_verdict verdict = judge_it(crowd, period_ns);
        if (verdict.latency_ns < CORE_NS_NEVER && verdict.arenas < PERFMODEL_FLOW_ARENAS_MAX)
            return period_ns;
    }
    return 0;
}

static void keep_the_bound(judge_crowd *judge_it, uint64_t seed)
{
    struct test_random random = {.state = seed};
    struct tally tally = {0};
    static struct flow_crowd crowd;
    for (int i = 0; i < PIPELINES; i++) {
        flow_crowd_random(&crowd, &random);
        core_ns period_ns = brink_ns(&crowd, judge_it);
        if (period_ns > 0) {
            period_ns += test_random_in(&random, 0, period_ns / 10);
            struct pipeline pipeline = {.period_ns = period_ns, .stages.count = BATCHES};
            struct perfmodel_flow_verdict verdict = judge_it(&crowd, period_ns);
            random_batches(&crowd, &pipeline, &random);
            if (crowd.gpu.gpu.copy_engines == 1)
                stages_one_engine(&pipeline.stages, !test_random_chance(&random, 50), NULL, NULL);
            else
                stages_two_engines(&pipeline.stages);
            if (verdict.latency_ns < CORE_NS_NEVER)
                expect_in_time(&crowd, &pipeline, &verdict, &tally);
        }
        flow_crowd_free(&crowd);
    }
    print_message("%d pipelines, %d with a stage longer than the period, %d later than half the bound\n",
                  tally.runs, tally.backlogs, tally.close);
    assert_true(tally.runs > PIPELINES / 2 && tally.backlogs > PIPELINES / 10 &&
                tally.close > PIPELINES / 20);
}

static void pipelines_keep_the_bound(void **state)
{
    (void)state;
    keep_the_bound(judge_sums, 1);
}

static void pipelines_keep_the_stairs(void **state)
{
    (void)state;
    keep_the_bound(judge_stairs, 1);
    keep_the_bound(judge_stairs, 4);
}

/* The fullest batch by itself. */
static void no_bound_is_below_a_batch(void **state)
{
    (void)state;
    struct test_random random = {.state = 2};
    static struct flow_crowd crowd;
    int seen = 0;
    for (int i = 0; i < 4000; i++) {
        flow_crowd_random(&crowd, &random);
        core_ns period_ns = test_random_log(&random, 1000, 100000000);
        struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(crowd.card, &crowd.load, period_ns);
        struct perfmodel_jobs jobs[FLOW_CROWD_STREAMS];
        uint64_t bytes = 0, count = 0;
        for (size_t k = 0; k < crowd.count; k++) {
            jobs[k] = perfmodel_gpu_jobs(&crowd.specs[k], period_ns, false);
            bytes += jobs[k].bytes * jobs[k].count;
            count += jobs[k].count;
        }
        assert_true(perfmodel_flow_batch_jobs(&crowd.load, period_ns) >= count);
        struct perfmodel_stages stages = flow_crowd_stages(&crowd, jobs, crowd.count);
        assert_true(verdict.batch_bytes >= bytes);
        assert_true(verdict.bounds.up_ns >= stages.up_ns && verdict.bounds.down_ns >= stages.down_ns &&
                    verdict.bounds.kernel_ns >= stages.kernel_ns);
        verdict = judge_stairs(&crowd, period_ns);
        assert_true(verdict.batch_bytes >= bytes);
        assert_true(verdict.bounds.up_ns >= stages.up_ns && verdict.bounds.down_ns >= stages.down_ns &&
                    verdict.bounds.kernel_ns >= stages.kernel_ns);
        seen += verdict.latency_ns < CORE_NS_NEVER;
        flow_crowd_free(&crowd);
    }
    assert_true(seen > 1000);
}

static void expect_no_less(const struct perfmodel_flow_verdict *less,
                           const struct perfmodel_flow_verdict *more)
{
    const core_ns rounding_ns = 2;
    assert_true(more->bounds.up_ns >= less->bounds.up_ns - rounding_ns);
    assert_true(more->bounds.down_ns >= less->bounds.down_ns - rounding_ns);
    assert_true(more->bounds.kernel_ns >= less->bounds.kernel_ns - rounding_ns);
    assert_true(more->latency_ns >= less->latency_ns - 3 * rounding_ns);
    assert_true(more->arenas >= less->arenas || more->latency_ns == CORE_NS_NEVER);
    assert_true((more->headroom_ppb >= 0) == (more->binding == PERFMODEL_LIMIT_NONE));
}

static void more_load_is_never_less(void **state)
{
    (void)state;
    struct test_random random = {.state = 3};
    static struct flow_crowd crowd;
    for (int i = 0; i < 3000; i++) {
        flow_crowd_random(&crowd, &random);
        core_ns period_ns = test_random_log(&random, 1000, 100000000);
        struct perfmodel_flow_load load = {0};
        struct perfmodel_flow_verdict before = perfmodel_flow_judge(crowd.card, &load, period_ns);
        for (size_t k = 0; k < crowd.count; k++) {
            crowd.specs[k].latency_ns = test_random_log(&random, 1000000, CORE_NS_PER_S);
            struct perfmodel_flow_load one = perfmodel_flow_load_of(&crowd.specs[k], &crowd.profile);
            perfmodel_flow_load_add(&load, &one);
            struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(crowd.card, &load, period_ns);
            expect_no_less(&before, &verdict);
            before = verdict;
        }
        flow_crowd_free(&crowd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_by_hand),
        cmocka_unit_test(a_load_of_packets_alone_by_hand),
        cmocka_unit_test(bounds_by_hand),
        cmocka_unit_test(loads_at_a_period),
        cmocka_unit_test(loads_at_a_period_cover_all),
        cmocka_unit_test(stairs_by_hand),
        cmocka_unit_test(the_batcher_by_hand),
        cmocka_unit_test(what_binds),
        cmocka_unit_test(nothing_and_too_much),
        cmocka_unit_test(the_period_that_suits),
        cmocka_unit_test(pipelines_keep_the_bound),
        cmocka_unit_test(pipelines_keep_the_stairs),
        cmocka_unit_test(no_bound_is_below_a_batch),
        cmocka_unit_test(more_load_is_never_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
