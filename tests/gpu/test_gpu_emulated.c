/* The emulated device: its times against the performance model's, and the stages of real batches, as they
 * ran, against what a card does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/aes.h"
#include "gpu/emulated_tell.h"
#include "gpu/pipeline.h"
#include "perfmodel/gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_crowd.h"

/* ---- times ---- */

/* The same card for both. */
static struct gpu_emulation emulation_of(const struct test_gpu *card)
{
    static struct gpu_emulation_copy copies[TEST_GPU_ROWS];
    static struct gpu_emulation_share shares[TEST_GPU_ROWS];
    const struct config_profile_gpu *gpu = &card->gpu;
    for (uint32_t i = 0; i < gpu->copy_count; i++)
        copies[i] = (struct gpu_emulation_copy){.bytes = gpu->copies[i].bytes,
                                                .up_ns = gpu->copies[i].up_ns,
                                                .down_ns = gpu->copies[i].down_ns,
                                                .up_busy_ns = gpu->copies[i].up_busy_ns,
                                                .down_busy_ns = gpu->copies[i].down_busy_ns};
    for (uint32_t i = 0; i < gpu->utilisation_count; i++)
        shares[i] = (struct gpu_emulation_share){gpu->utilisation[i].jobs, gpu->utilisation[i].share_ppm};
    return (struct gpu_emulation){.name = "random",
                                  .memory_bytes = gpu->memory_bytes,
                                  .sms = gpu->sms,
                                  .copy_engines = gpu->copy_engines,
                                  .sm_bytes_per_s = gpu->sm_bytes_per_s,
                                  .launch_ns = gpu->launch_ns,
                                  .copies = copies,
                                  .shares = shares,
                                  .copy_count = gpu->copy_count,
                                  .share_count = gpu->utilisation_count};
}

/* Copies are the model's to the nanosecond. */
static void copies_take_what_the_model_says(void **state)
{
    (void)state;
    struct test_random random = {1};
    static struct test_gpu card;
    struct core_error error = {""};
    for (int round = 0; round < 300; round++) {
        test_gpu_random(&card, &random);
        const struct gpu_emulation emulation = emulation_of(&card);
        if (gpu_emulation_check(&emulation, &error) != CORE_OK)
            fail_msg("%s", error.text);
        for (int i = 0; i < 50; i++) {
            const uint64_t bytes = (uint64_t)test_random_log(&random, 1, INT64_C(1) << 33);
            for (int column = 0; column < 4; column++)
                assert_int_equal(gpu_emulation_copy_ns(&emulation, column & 1, column & 2, bytes),
                                 perfmodel_copy_ns(&card.gpu, column & 1 ? PERFMODEL_UP : PERFMODEL_DOWN,
                                                   column & 2, bytes));
        }
        assert_int_equal(gpu_emulation_copy_ns(&emulation, true, true, 0), 0);
    }
}

#define JOBS_MAX 3000

struct kernel {
    struct gpu_job jobs[JOBS_MAX];
    uint64_t bytes[JOBS_MAX];
    uint32_t count;
};

static void job_set(struct kernel *kernel, uint32_t i, uint32_t blocks)
{
    kernel->jobs[i] = (struct gpu_job){.blocks = blocks};
    kernel->bytes[i] = (uint64_t)blocks * GPU_BLOCK_BYTES;
}

/* Falling, by little or by much. */
static void draw_jobs(struct kernel *kernel, struct test_random *random)
{
    const int64_t steps = test_random_log(random, 1, 4096);
    uint32_t blocks = 1u << 20;
    kernel->count = (uint32_t)test_random_log(random, 1, JOBS_MAX);
    for (uint32_t i = 0; i < kernel->count; i++) {
        blocks = (uint32_t)test_random_in(random, blocks - blocks / steps, blocks);
        job_set(kernel, i, blocks);
    }
}

static core_ns model_of(const struct test_gpu *card, const struct kernel *kernel, bool measured)
{
    static uint64_t scratch[JOBS_MAX];
    const core_ns sms_ns =
        perfmodel_kernel_ns(&card->gpu, card->gpu.sms, kernel->bytes, kernel->count, measured, scratch);
    return sms_ns == CORE_NS_NEVER ? CORE_NS_NEVER : sms_ns + card->gpu.launch_ns;
}

/* By how much two ways to add up the same may differ. */
static core_ns rounding_of(core_ns ns)
{
    return 2 + ns / 100000000; /* the model rounds its prices up */
}

/* The model is a bound of what the launch takes, on any card, and not an empty one. */
static void no_kernel_takes_longer_than_the_model_says(void **state)
{
    (void)state;
    struct test_random random = {2};
    static struct test_gpu card;
    static struct kernel kernel;
    int near = 0, below = 0;
    for (int round = 0; round < 600; round++) {
        const enum gpu_kernel_form form = round % 2 ? GPU_KERNEL_QUAD : GPU_KERNEL_WHOLE;
        test_gpu_random(&card, &random);
        const struct gpu_emulation emulation = emulation_of(&card);
        draw_jobs(&kernel, &random);
        const core_ns model_ns = model_of(&card, &kernel, false);
        const core_ns ns = gpu_emulation_kernel_ns(&emulation, form, kernel.jobs, kernel.count);
        if (model_ns > 3600 * CORE_NS_PER_S)
            continue;
        assert_true(ns <= model_ns + rounding_of(model_ns));
        near += ns >= model_ns - rounding_of(model_ns);
        below += ns < model_ns - model_ns / 20;
    }
    assert_true(near > 20 && below > 20);
    assert_int_equal(gpu_emulation_kernel_ns(&(struct gpu_emulation){0}, GPU_KERNEL_WHOLE, kernel.jobs, 0),
                     0);
}

/* As calibration measures: n jobs of a size on each SM. */
static void equal_jobs_take_what_the_table_says(void **state)
{
    (void)state;
    struct test_random random = {3};
    static struct test_gpu card;
    static struct kernel kernel;
    for (int round = 0; round < 300; round++) {
        test_gpu_random(&card, &random);
        const struct gpu_emulation emulation = emulation_of(&card);
        const uint32_t blocks = (uint32_t)test_random_log(&random, 1, 1 << 20);
        for (uint32_t row = 0; row < emulation.share_count; row++) {
            kernel.count = emulation.shares[row].jobs * card.gpu.sms;
            if (kernel.count > JOBS_MAX)
                break;
            for (uint32_t i = 0; i < kernel.count; i++)
                job_set(&kernel, i, blocks);
            const core_ns model_ns = model_of(&card, &kernel, true);
            if (model_ns <= 3600 * CORE_NS_PER_S)
                assert_in_range(
                    gpu_emulation_kernel_ns(&emulation, GPU_KERNEL_WHOLE, kernel.jobs, kernel.count),
                    model_ns - rounding_of(model_ns), model_ns + rounding_of(model_ns));
        }
    }
}

/* An error of the model shows: of a table that is not sorted it says too little, since it takes an SM's jobs
 * as sorted, while the SM has them in the table's order. */
static void kernels_of_tables_not_sorted_take_longer(void **state)
{
    (void)state;
    struct test_random random = {4};
    static struct test_gpu card;
    static struct kernel kernel;
    int longer = 0;
    for (int round = 0; round < 300; round++) {
        test_gpu_random(&card, &random);
        const struct gpu_emulation emulation = emulation_of(&card);
        draw_jobs(&kernel, &random);
        for (uint32_t i = 0, j = kernel.count - 1; i < j; i++, j--) {
            const uint32_t blocks = kernel.jobs[i].blocks;
            job_set(&kernel, i, kernel.jobs[j].blocks);
            job_set(&kernel, j, blocks);
        }
        const core_ns model_ns = model_of(&card, &kernel, false);
        longer += gpu_emulation_kernel_ns(&emulation, GPU_KERNEL_WHOLE, kernel.jobs, kernel.count) >
                  model_ns + model_ns / 10;
    }
    assert_true(longer > 20);
}

static void bad_tables_are_refused(void **state)
{
    (void)state;
    const struct gpu_emulation good = gpu_crowd_card(2);
    struct gpu_emulation_copy copies[2] = {good.copies[0], good.copies[1]};
    struct gpu_emulation_share shares[2] = {good.shares[0], good.shares[1]};
    struct gpu_emulation bad;
    assert_int_equal(gpu_emulation_check(&good, NULL), CORE_OK);
#define REFUSED(change)                                                                                      \
    (bad = good, (change), assert_int_equal(gpu_emulation_check(&bad, NULL), CORE_INVALID))
    REFUSED(bad.sms = 0);
    REFUSED(bad.copy_engines = 3);
    REFUSED(bad.copy_engines = 0);
    REFUSED(bad.sm_bytes_per_s = 0);
    REFUSED(bad.launch_ns = -1);
    REFUSED(bad.failure = GPU_FAILURE_COUNT);
    REFUSED(bad.failure_ns = -1);
    REFUSED(bad.failure_ns = 3601 * CORE_NS_PER_S);
    REFUSED(bad.copy_count = 0);
    REFUSED(bad.share_count = 0);
    REFUSED(bad.copy_count = GPU_EMULATION_COPIES_MAX + 1);
    copies[1].bytes = copies[0].bytes;
    REFUSED(bad.copies = copies);
    copies[1] = good.copies[1], copies[1].down_busy_ns = copies[0].down_busy_ns - 1;
    REFUSED(bad.copies = copies);
    copies[1] = good.copies[1], copies[0].up_ns = 0;
    REFUSED(bad.copies = copies);
    shares[0].jobs = 2;
    REFUSED(bad.shares = shares);
    shares[0] = good.shares[0], shares[1].share_ppm = 0;
    REFUSED(bad.shares = shares);
#undef REFUSED
}

/* ---- stages ---- */

#define BATCHES 12 /* all under way at once */

struct records {
    struct gpu_order orders[BATCHES];
    struct gpu_stage_time times[BATCHES][GPU_STAGE_COUNT];
    core_ns uncertain_ns[BATCHES];
};

static void keys_set(struct gpu_crowd *crowd, struct gpu_device *device)
{
    for (uint32_t slot = 0; slot < crowd->region.shape.slots; slot++) {
        const struct gpu_crowd_stream *stream = &crowd->streams[slot];
        struct core_error error = {""};
        struct gpu_key key;
        assert_int_equal(gpu_key_expand(&key, stream->key, stream->key_bytes), CORE_OK);
        assert_int_equal(
            gpu_device_emulated.key_set(device, gpu_key_slot(slot, 0), &key, stream->chain, &error), CORE_OK);
    }
}

static void run_until_taken(struct gpu_pipeline *pipeline, struct gpu_device *device, struct records *records)
{
    struct core_error error = {""};
    for (int back = 0; back < BATCHES;) {
        const struct gpu_pipeline_batch *batch;
        struct pollfd ready = {.fd = gpu_device_emulated.descriptor(device), .events = POLLIN};
        assert_int_equal(poll(&ready, 1, 60000), 1);
        if (gpu_pipeline_step(pipeline, &error) != CORE_OK)
            fail_msg("%s", error.text);
        while ((batch = gpu_pipeline_take(pipeline)) != NULL) {
            assert_int_equal(batch->order.number, records->orders[back].number);
            records->uncertain_ns[back] = batch->uncertain_ns;
            memcpy(records->times[back++], batch->times, sizeof batch->times);
        }
    }
}

/* Submits all batches at once and records when their stages ran. The output must be right. */
static void run(struct gpu_crowd *crowd, const struct gpu_emulation *card, struct records *records)
{
    static struct gpu_pipeline pipeline;
    struct gpu_device *device;
    struct gpu_device_facts facts;
    struct core_error error = {""};
    const struct gpu_device_options options = {.region = &crowd->region, .emulation = card};
    if (gpu_device_emulated.open(&device, &options, &facts, &error) != CORE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(facts.copy_engines, card->copy_engines);
    keys_set(crowd, device);
    gpu_pipeline_begin(&pipeline, &gpu_device_emulated, device, facts.copy_engines);
    for (int i = 0; i < BATCHES; i++)
        records->orders[i] = gpu_crowd_batch(crowd, 30, 1500);
    for (int i = 0; i < BATCHES; i++)
        assert_int_equal(gpu_pipeline_submit(&pipeline, &records->orders[i], &error), CORE_OK);
    run_until_taken(&pipeline, device, records);
    for (int i = 0; i < BATCHES; i++)
        assert_true(gpu_crowd_matches(crowd, &records->orders[i]));
    gpu_device_emulated.close(device);
}

/* No stage is shorter than the table says for a card that does nothing else. */
static void check_lengths(const struct gpu_crowd *crowd, const struct gpu_emulation *card,
                          const struct records *records, bool busy)
{
    for (int i = 0; i < BATCHES; i++) {
        const struct gpu_order *order = &records->orders[i];
        const struct gpu_stage_time *times = records->times[i];
        const uint64_t tables =
            order->job_count * sizeof(struct gpu_job) + order->segment_count * sizeof(struct gpu_segment);
        const core_ns least_ns[GPU_STAGE_COUNT] = {
            gpu_emulation_copy_ns(card, true, busy, order->used_bytes + tables),
            gpu_emulation_kernel_ns(card, GPU_KERNEL_WHOLE, gpu_region_jobs(&crowd->region, order->arena),
                                    order->job_count),
            gpu_emulation_copy_ns(card, false, busy, order->used_bytes),
        };
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
            assert_true(times[stage].end_ns - times[stage].start_ns >=
                        least_ns[stage] - GPU_EMULATED_CLOCK_STEP_NS);
    }
}

/* By how much moments of all batches may be told wrong against each other. */
static core_ns uncertain_ns(const struct records *records)
{
    core_ns most_ns = 0;
    for (int i = 0; i < BATCHES; i++)
        most_ns = core_time_max(most_ns, records->uncertain_ns[i]);
    return 2 * most_ns;
}

static void check_order(const struct records *records)
{
    const core_ns near_ns = uncertain_ns(records);
    for (int i = 0; i < BATCHES; i++)
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
            if (stage > 0)
                assert_true(records->times[i][stage].start_ns >= records->times[i][stage - 1].end_ns);
            if (i > 0)
                assert_true(records->times[i][stage].start_ns >=
                            records->times[i - 1][stage].end_ns - near_ns);
        }
}

/* One engine: never two copies at once. Which of two is next depends on what the pipeline has heard by then, and with
 * that on when this machine lets its threads run: test_gpu_pipeline checks the turns, in virtual time. */
static void check_one_engine(const struct records *records)
{
    const core_ns near_ns = uncertain_ns(records);
    int up = 0, down = 0;
    core_ns end_ns = 0;
    while (up < BATCHES || down < BATCHES) {
        const bool is_up =
            up < BATCHES && (down == BATCHES || records->times[up][GPU_STAGE_UP].start_ns <
                                                    records->times[down][GPU_STAGE_DOWN].start_ns);
        const struct gpu_stage_time *copy =
            is_up ? &records->times[up][GPU_STAGE_UP] : &records->times[down][GPU_STAGE_DOWN];
        assert_true(copy->start_ns >= end_ns - near_ns);
        end_ns = copy->end_ns;
        up += is_up;
        down += !is_up;
    }
}

static void stages_run_as_on_a_card(void **state)
{
    (void)state;
    static struct records records;
    for (uint32_t engines = 1; engines <= 2; engines++)
        for (int busy = 0; busy < 2; busy++) {
            struct gpu_crowd *crowd = gpu_crowd_open(BATCHES, 40, 120, 1 << 17, engines);
            struct gpu_emulation card = gpu_crowd_card(engines);
            card.always_busy = (uint32_t)busy;
            run(crowd, &card, &records);
            check_order(&records);
            check_lengths(crowd, &card, &records, busy);
            if (engines < 2)
                check_one_engine(&records);
            gpu_crowd_close(crowd);
        }
}

/* Copies up with copies down beside them take longer than alone: by the share of the time that they meet. */
static void copies_that_meet_are_slower(void **state)
{
    (void)state;
    static struct records records;
    struct gpu_crowd *crowd = gpu_crowd_open(BATCHES, 40, 120, 1 << 17, 3);
    static const struct gpu_emulation_copy slow[] = {
        {.bytes = 1, .up_ns = 3000000, .down_ns = 3000000, .up_busy_ns = 5000000, .down_busy_ns = 5000000},
        {.bytes = 1 << 20,
         .up_ns = 3000000,
         .down_ns = 3000000,
         .up_busy_ns = 5000000,
         .down_busy_ns = 5000000},
    };
    struct gpu_emulation card = gpu_crowd_card(2);
    int met = 0;
    card.copies = slow;
    card.copy_count = 2;
    run(crowd, &card, &records);
    const core_ns near_ns = uncertain_ns(&records);
    for (int i = 0; i < BATCHES; i++) {
        const struct gpu_stage_time *up = &records.times[i][GPU_STAGE_UP];
        const core_ns length_ns = up->end_ns - up->start_ns;
        core_ns met_ns = 0;
        for (int j = 0; j < BATCHES; j++) {
            const struct gpu_stage_time *down = &records.times[j][GPU_STAGE_DOWN];
            const core_ns from_ns = core_time_max(up->start_ns, down->start_ns);
            const core_ns to_ns = core_time_min(up->end_ns, down->end_ns);
            met_ns += to_ns > from_ns ? to_ns - from_ns : 0;
        }
        const struct gpu_order *order = &records.orders[i];
        const uint64_t bytes = order->used_bytes + order->job_count * sizeof(struct gpu_job) +
                               order->segment_count * sizeof(struct gpu_segment);
        const core_ns alone_ns = gpu_emulation_copy_ns(&card, true, false, bytes);
        const core_ns busy_ns = gpu_emulation_copy_ns(&card, true, true, bytes);
        /* Work done: what was alone at the pace of alone, the rest at the contended pace. They may have met
         * for less than is told, at either end of this copy. */
        const double sure_ns = (double)core_time_max(met_ns - 2 * near_ns, 0);
        const double done = ((double)length_ns - sure_ns) / (double)alone_ns + sure_ns / (double)busy_ns;
        assert_true(done >= 0.999);
        met += met_ns > 0;
    }
    gpu_crowd_close(crowd);
    if (met == 0)
        skip(); /* a machine that stalls lets no two copies meet */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_take_what_the_model_says),
        cmocka_unit_test(no_kernel_takes_longer_than_the_model_says),
        cmocka_unit_test(equal_jobs_take_what_the_table_says),
        cmocka_unit_test(kernels_of_tables_not_sorted_take_longer),
        cmocka_unit_test(bad_tables_are_refused),
        cmocka_unit_test(stages_run_as_on_a_card),
        cmocka_unit_test(copies_that_meet_are_slower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
