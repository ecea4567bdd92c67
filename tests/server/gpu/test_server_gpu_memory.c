/* How much memory the batches of cards take, by the functions that size it: at the start of a large machine, and
 * for many streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "server/gpu/gpus.h"
#include "server/gpu/internal.h"

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

/* ---- streams that come one by one ---- */

void __wrap_gpu_resizer_ask(struct gpu_resizer *resizer, const struct gpu_room *room);
core_status __wrap_gpu_resizer_done(struct gpu_resizer *resizer, struct core_error *error);
core_status __wrap_gpu_engine_resize(struct gpu_engine *engine, const struct gpu_room *room);

void __wrap_gpu_resizer_ask(struct gpu_resizer *resizer, const struct gpu_room *room)
{
    (void)resizer;
    (void)room;
}

core_status __wrap_gpu_resizer_done(struct gpu_resizer *resizer, struct core_error *error)
{
    (void)resizer;
    (void)error;
    return CORE_OK;
}

core_status __wrap_gpu_engine_resize(struct gpu_engine *engine, const struct gpu_room *room)
{
    (void)engine;
    (void)room;
    return CORE_OK;
}

/* The batcher with a plan of so much more: what it lacks it is given. */
static void follow(struct server_gpu *gpu, uint64_t bytes, uint64_t packets)
{
    gpu->plan.batch_bytes = bytes;
    gpu->plan.batch_packets = packets;
    (void)server_gpu_room_run(gpu, 0);
    while (gpu->room.phase != SERVER_GPU_ROOM_STEADY) {
        (void)server_gpu_room_run(gpu, 0);
        if (gpu->room.asked)
            server_gpu_room_done(gpu, "", 0);
    }
}

/* A batcher's arenas, grown by every packet, are in the pieces that server_gpu_room_next tells, none of them
 * shorter; by many packets at once, in fewer. */
static void little_by_little_makes_the_pieces_that_are_told(void **state)
{
    static const struct gpu_region_shape shapes[] = {
        {.arenas = 1, .slots = 1024, .segments = 40000, .arena_bytes = UINT64_C(1408) * 40000},
        {.arenas = 1, .slots = 1024, .segments = 150000, .arena_bytes = UINT64_C(64) * 150000},
        {.arenas = 1, .slots = 64, .segments = 8192, .arena_bytes = UINT64_C(16384) * 8192}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (uint64_t at_once = 1; at_once <= 1000; at_once *= 1000) {
            const struct gpu_region_shape *shape = &shapes[s];
            const struct server_gpu_room_limits limits = server_gpu_room_limits(shape);
            const struct gpu_arena_options options = {.shape = *shape, .room = &limits.least, .writers = 1};
            const uint64_t packet_bytes = shape->arena_bytes / shape->segments;
            struct server_gpu *gpu = calloc(1, sizeof *gpu);
            assert_non_null(gpu);
            assert_int_equal(gpu_arenas_create(&gpu->arenas, &options, NULL), CORE_OK);
            gpu->up = true;
            gpu->room.limits = limits;
            gpu->room.now = limits.least;
            server_gpu_room_up(gpu);
            assert_int_equal(gpu->room.step_count, 1);
            for (uint64_t packets = 1; packets <= shape->segments; packets += at_once)
                follow(gpu, packets * packet_bytes, packets);
            follow(gpu, shape->arena_bytes, shape->segments);

            struct gpu_room told = limits.least;
            const struct gpu_room most = gpu_room_most(shape);
            uint32_t pieces = 1;
            for (; !gpu_room_holds(&told, &most); pieces++) {
                told = server_gpu_room_next(shape, &told);
                if (pieces < gpu->room.step_count)
                    assert_true(gpu_room_holds(&gpu->room.steps[pieces], &told));
            }
            print_message("%llu bytes, %u packets, %llu at once: %u pieces, at most %u\n",
                          (unsigned long long)shape->arena_bytes, shape->segments,
                          (unsigned long long)at_once, gpu->room.step_count, pieces);
            assert_true(gpu->room.step_count <= pieces);
            assert_true(at_once > 1 || gpu->room.step_count + 1 >= pieces); /* a packet is more than a byte */
            gpu_arenas_destroy(gpu->arenas);
            free(gpu);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_machine_starts),
        cmocka_unit_test(many_streams_take_what_they_need),
        cmocka_unit_test(little_by_little_makes_the_pieces_that_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
