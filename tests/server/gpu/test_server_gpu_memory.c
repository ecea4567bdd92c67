/* How much memory the batches of cards take, by the functions that size it: at the start of a large machine, and
 * for many streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "server/gpu/batcher.h"
#include "server/gpu/gpus.h"

#define GIB (UINT64_C(1) << 30)

/* 48 GB/s each way, 132 SMs of 4 GB/s; assumed. */
static struct config_profile_copy copies[] = {{65536, 9000, 9000, 9000, 9000},
                                              {1 << 30, 22370000, 22370000, 22370000, 22370000}};
static struct config_profile_utilisation rows[] = {{1, 35000}, {32, 250000}, {512, 1000000}};
static struct config_profile_gpu card = {.sms = 132,
                                         .copy_engines = 2,
                                         .memory_bytes = UINT64_C(141000000000),
                                         .sm_bytes_per_s = INT64_C(4000000000),
                                         .launch_ns = 10000,
                                         .job_bytes = 336,
                                         .copies = copies,
                                         .copy_count = 2,
                                         .utilisation = rows,
                                         .utilisation_count = 3};
static struct config_profile profile = {.gpus = &card, .gpu_count = 1, .margins.percent = 10};

/* 64 cores, 8 cards, 2 TiB, of which a quarter may be pinned: 16 I/O threads, as many as there may be (63),
 * and the default limit of streams, or the highest. */
static void a_large_machine_starts(void **state)
{
    static const uint64_t streams[] = {65536, UINT64_C(4) << 20};
    static const uint32_t writers[] = {16, 63};
    (void)state;
    profile.pinned_bytes = 512 * GIB;
    for (size_t s = 0; s < 2; s++)
        for (size_t w = 0; w < 2; w++) {
            const struct gpu_region_shape shape = server_gpus_shape(&profile, &card, 8, streams[s]);
            const struct server_gpu_room_limits limits = server_gpu_room_limits(&shape);
            const struct gpu_room most = gpu_room_most(&shape);
            const uint64_t start_bytes = 8 * gpu_arenas_bytes(&shape, writers[w], &limits.least);
            const uint64_t pinned_bytes = 8 * gpu_region_room_bytes(&shape, &limits.least);
            const uint64_t most_bytes = 8 * gpu_arenas_bytes(&shape, writers[w], &most);
            print_message(
                "%llu streams, %u I/O threads: %.3f GiB at the start, %.3f of it pinned; %.0f GiB at "
                "the most\n",
                (unsigned long long)streams[s], writers[w], (double)start_bytes / (double)GIB,
                (double)pinned_bytes / (double)GIB, (double)most_bytes / (double)GIB);
            assert_true(pinned_bytes <= GIB / 2);
            assert_true(start_bytes <= GIB);
            assert_true(8 * gpu_region_room_bytes(&shape, &most) <= profile.pinned_bytes);
            assert_true(most_bytes <= profile.pinned_bytes + profile.pinned_bytes / 5);
        }
}

/* 12,000 streams of 2 Mbit/s in packets of 1,408 bytes, 40 ms: the plan's batches, with all that is to spare,
 * in at most 1 GiB. */
static void many_streams_take_what_they_need(void **state)
{
    const struct core_stream_spec spec = {.cipher = CORE_CIPHER_AES_128_CBC,
                                          .packet_bytes = 1408,
                                          .interval_ns = 5632000,
                                          .burst_packets = 1,
                                          .latency_ns = 40 * CORE_NS_PER_MS};
    struct perfmodel_flow_load load = {.streams = 0};
    struct perfmodel_flow_gpu *flow = NULL;
    (void)state;
    profile.pinned_bytes = 32 * GIB;
    assert_int_equal(perfmodel_flow_gpu_create(&flow, &profile, &card, true), CORE_OK);
    const struct perfmodel_flow_load one = perfmodel_flow_load_of(&spec, &profile);
    for (int i = 0; i < 12000; i++)
        perfmodel_flow_load_add(&load, &one);
    const struct perfmodel_flow_verdict verdict = perfmodel_flow_fit(flow, &load);
    assert_int_equal(verdict.binding, PERFMODEL_LIMIT_NONE);
    const struct partition_gpu_plan plan = {.batch_bytes = verdict.batch_bytes,
                                            .batch_packets =
                                                perfmodel_flow_batch_packets(&load, verdict.period_ns)};
    const struct gpu_region_shape shape = server_gpus_shape(&profile, &card, 1, 65536);
    const struct gpu_room room = server_gpu_room_of(&shape, &plan);
    const uint64_t bytes = gpu_arenas_bytes(&shape, 16, &room);
    print_message("period %.2f ms, batches of %.1f MB and %llu packets: %.3f GiB, %.3f of it pinned\n",
                  (double)verdict.period_ns / 1e6, (double)plan.batch_bytes / 1e6,
                  (unsigned long long)plan.batch_packets, (double)bytes / (double)GIB,
                  (double)gpu_region_room_bytes(&shape, &room) / (double)GIB);
    assert_true(room.bytes >= plan.batch_bytes && room.segments >= plan.batch_packets);
    assert_true(gpu_region_room_bytes(&shape, &room) <= GIB);
    perfmodel_flow_gpu_destroy(flow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_machine_starts),
        cmocka_unit_test(many_streams_take_what_they_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
