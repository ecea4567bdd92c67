/* The pipeline on a device of the test's own, in virtual time: the order of stages, the turns of a card with
 * one copy engine, and the bound on a batch's latency that the plan promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "gpu/pipeline.h"
#include "perfmodel/gpu.h"
#include "tests/support/random.h"

#define BATCHES 200

/* Engines work one stage at a time; a stage begins when it was launched, its engine is free and the batch's
 * stage before has ended. */
struct gpu_device {
    uint32_t copy_engines;
    core_ns now_ns;
    core_ns took_ns[BATCHES + 1][GPU_STAGE_COUNT]; /* by batch number */
    struct gpu_stage_time times[BATCHES + 1][GPU_STAGE_COUNT];
    core_ns free_ns[GPU_STAGE_COUNT]; /* by engine */
    struct gpu_stage_end ends[3 * BATCHES];
    uint32_t end_count;
    uint64_t copies[2 * BATCHES]; /* number * 4 + stage, in the order of launching */
    uint32_t copy_count;
};

static core_status virtual_launch(struct gpu_device *device, enum gpu_stage stage,
                                  const struct gpu_order *order, struct core_error *error)
{
    (void)error;
    const uint64_t number = order->number;
    const int engine = device->copy_engines < 2 && stage == GPU_STAGE_DOWN ? GPU_STAGE_UP : (int)stage;
    core_ns start_ns = device->now_ns;
    if (start_ns < device->free_ns[engine])
        start_ns = device->free_ns[engine];
    if (stage != GPU_STAGE_UP && start_ns < device->times[number][stage - 1].end_ns)
        start_ns = device->times[number][stage - 1].end_ns;
    const struct gpu_stage_time time = {.start_ns = start_ns,
                                        .end_ns = start_ns + device->took_ns[number][stage]};
    device->times[number][stage] = time;
    device->free_ns[engine] = time.end_ns;
    device->ends[device->end_count++] = (struct gpu_stage_end){.number = number, .stage = stage};
    if (stage != GPU_STAGE_KERNEL)
        device->copies[device->copy_count++] = number * 4 + stage;
    return CORE_OK;
}

static core_ns end_time(const struct gpu_device *device, const struct gpu_stage_end *end)
{
    return device->times[end->number][end->stage].end_ns;
}

/* The earliest end that is not told and not in the future. */
static struct gpu_stage_end *end_next(struct gpu_device *device, core_ns until_ns)
{
    struct gpu_stage_end *next = NULL;
    for (uint32_t i = 0; i < device->end_count; i++) {
        struct gpu_stage_end *end = &device->ends[i];
        if (end->number != 0 && end_time(device, end) <= until_ns &&
            (next == NULL || end_time(device, end) < end_time(device, next)))
            next = end;
    }
    return next;
}

static core_status virtual_poll(struct gpu_device *device, struct gpu_stage_end *end,
                                struct core_error *error)
{
    (void)error;
    struct gpu_stage_end *next = end_next(device, device->now_ns);
    if (next == NULL)
        return CORE_AGAIN;
    *end = *next;
    if (next->stage == GPU_STAGE_DOWN) {
        memcpy(end->times, device->times[next->number], sizeof end->times);
        end->uncertain_ns = (core_ns)next->number;
    }
    next->number = 0; /* told */
    return CORE_OK;
}

static const struct gpu_device_ops virtual_ops = {.launch = virtual_launch, .poll = virtual_poll};

/* Goes on to until_ns, stage end by stage end. */
static void run_until(struct gpu_pipeline *pipeline, struct gpu_device *device, core_ns until_ns)
{
    struct core_error error;
    struct gpu_stage_end *next;
    while ((next = end_next(device, until_ns)) != NULL) {
        device->now_ns = end_time(device, next);
        assert_int_equal(gpu_pipeline_step(pipeline, &error), CORE_OK);
    }
    device->now_ns = until_ns;
}

/* Batches 1 .. BATCHES, one every period, with the device's times. All must come back in order. */
static void run_batches(struct gpu_device *device, core_ns period_ns)
{
    static struct gpu_pipeline pipeline;
    struct core_error error;
    const struct gpu_pipeline_batch *batch;
    uint64_t back = 0;
    gpu_pipeline_begin(&pipeline, &virtual_ops, device, device->copy_engines);
    for (uint64_t number = 1; number <= BATCHES; number++) {
        run_until(&pipeline, device, (core_ns)number * period_ns);
        assert_int_equal(gpu_pipeline_submit(&pipeline, &(struct gpu_order){.number = number}, &error),
                         CORE_OK);
        while ((batch = gpu_pipeline_take(&pipeline)) != NULL) {
            assert_int_equal(batch->order.number, ++back);
            assert_memory_equal(batch->times, device->times[back], sizeof batch->times);
            assert_int_equal(batch->uncertain_ns, (core_ns)back);
        }
    }
    run_until(&pipeline, device, (core_ns)BATCHES * 10 * period_ns);
    while ((batch = gpu_pipeline_take(&pipeline)) != NULL)
        assert_int_equal(batch->order.number, ++back);
    assert_int_equal(back, BATCHES);
    assert_int_equal(gpu_pipeline_under_way(&pipeline), 0);
}

static void check_order(const struct gpu_device *device)
{
    for (int number = 1; number <= BATCHES; number++)
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
            const struct gpu_stage_time *time = &device->times[number][stage];
            if (stage > 0)
                assert_true(time->start_ns >= device->times[number][stage - 1].end_ns);
            if (number > 1)
                assert_true(time->start_ns >= device->times[number - 1][stage].end_ns);
        }
}

/* Two copies of one direction follow each other only if none of the other direction was ready. */
static void check_turns(const struct gpu_device *device, core_ns period_ns)
{
    for (uint32_t i = 0; i + 1 < device->copy_count; i++) {
        const uint64_t number = device->copies[i] / 4;
        const enum gpu_stage stage = (enum gpu_stage)(device->copies[i] % 4);
        if (stage != device->copies[i + 1] % 4)
            continue;
        const core_ns end_ns = device->times[number][stage].end_ns;
        uint64_t other = 0; /* the first copy of the other direction that comes later */
        for (uint32_t j = i + 2; j < device->copy_count && other == 0; j++)
            if (device->copies[j] % 4 != (uint64_t)stage)
                other = device->copies[j] / 4;
        if (other == 0)
            continue;
        const core_ns ready_ns = stage == GPU_STAGE_UP ? device->times[other][GPU_STAGE_KERNEL].end_ns
                                                       : (core_ns)other * period_ns;
        if (stage == GPU_STAGE_UP)
            assert_true(ready_ns > end_ns);
        else
            assert_true(ready_ns >= end_ns); /* a batch that comes in the moment in which the copy ends */
    }
}

/* Draws stage times up to the given ones, often the longest. */
static void draw_times(struct gpu_device *device, struct test_random *random,
                       const struct perfmodel_stages *most)
{
    const core_ns most_ns[GPU_STAGE_COUNT] = {most->up_ns, most->kernel_ns, most->down_ns};
    for (int number = 1; number <= BATCHES; number++)
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
            const core_ns some_ns = test_random_in(random, 1, most_ns[stage]);
            device->took_ns[number][stage] = test_random_chance(random, 33) ? some_ns : most_ns[stage];
        }
}

/* Random stage times that fit the period: no batch is later than the plan's bound says. */
static void latency_keeps_the_bound(void **state)
{
    (void)state;
    static struct gpu_device device;
    struct test_random random = {17};
    for (int round = 0; round < 400; round++) {
        const uint32_t engines = 1 + (uint32_t)(round % 2);
        const core_ns period_ns = test_random_in(&random, 1000, 10000);
        const core_ns up_ns = test_random_in(&random, 1, period_ns - 1);
        const core_ns room_ns = engines < 2 ? period_ns - up_ns : period_ns;
        const struct perfmodel_stages stages = {
            .up_ns = up_ns,
            .kernel_ns = period_ns - test_random_in(&random, 0, 99),
            .down_ns = room_ns,
        };
        const struct config_profile_gpu card = {.copy_engines = engines};
        const core_ns bound_ns = perfmodel_gpu_latency_ns(&card, &stages, period_ns);
        memset(&device, 0, sizeof device);
        device.copy_engines = engines;
        draw_times(&device, &random, &stages);
        run_batches(&device, period_ns);
        check_order(&device);
        if (engines < 2)
            check_turns(&device, period_ns);
        for (int number = 1; number <= BATCHES;
             number++) /* its first packet came a period before its close */
            assert_true(device.times[number][GPU_STAGE_DOWN].end_ns <=
                        (core_ns)(number - 1) * period_ns + bound_ns);
    }
}

static core_status wrong_poll(struct gpu_device *device, struct gpu_stage_end *end, struct core_error *error)
{
    (void)error;
    *end = (struct gpu_stage_end){.number = device->copies[0] / 4 + 1, .stage = GPU_STAGE_KERNEL};
    return CORE_OK;
}

static core_status broken_poll(struct gpu_device *device, struct gpu_stage_end *end, struct core_error *error)
{
    (void)device;
    (void)end;
    return core_error_set(error, CORE_SYSTEM, "broken");
}

static void a_device_that_errs_is_found(void **state)
{
    (void)state;
    static struct gpu_device device;
    static struct gpu_pipeline pipeline;
    struct core_error error;
    const struct gpu_device_ops wrong = {.launch = virtual_launch, .poll = wrong_poll},
                                broken = {.launch = virtual_launch, .poll = broken_poll};
    memset(&device, 0, sizeof device);
    device.copy_engines = 2;
    gpu_pipeline_begin(&pipeline, &wrong, &device, 2);
    assert_int_equal(gpu_pipeline_submit(&pipeline, &(struct gpu_order){.number = 3}, &error), CORE_OK);
    assert_int_equal(gpu_pipeline_submit(&pipeline, &(struct gpu_order){.number = 3}, &error), CORE_INVALID);
    assert_int_equal(gpu_pipeline_step(&pipeline, &error), CORE_MISMATCH);
    gpu_pipeline_begin(&pipeline, &broken, &device, 2);
    assert_int_equal(gpu_pipeline_step(&pipeline, &error), CORE_SYSTEM);
    assert_string_equal(error.text, "broken");
}

/* Key commands wait until the kernels of all batches before them are launched. */
static void keys_wait_for_kernels(void **state)
{
    (void)state;
    static struct gpu_device device;
    static struct gpu_pipeline pipeline;
    struct core_error error;
    memset(&device, 0, sizeof device);
    device.copy_engines = 1;
    for (int number = 1; number <= 2; number++)
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
            device.took_ns[number][stage] = 100;
    gpu_pipeline_begin(&pipeline, &virtual_ops, &device, 1);
    assert_true(gpu_pipeline_keys_may_change(&pipeline));
    assert_int_equal(gpu_pipeline_submit(&pipeline, &(struct gpu_order){.number = 1}, &error), CORE_OK);
    assert_true(gpu_pipeline_keys_may_change(&pipeline));
    assert_int_equal(gpu_pipeline_submit(&pipeline, &(struct gpu_order){.number = 2}, &error), CORE_OK);
    assert_false(gpu_pipeline_keys_may_change(&pipeline)); /* the copy up of 2 waits for that of 1 */
    run_until(&pipeline, &device, 100);
    assert_true(gpu_pipeline_keys_may_change(&pipeline));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latency_keeps_the_bound),
        cmocka_unit_test(a_device_that_errs_is_found),
        cmocka_unit_test(keys_wait_for_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
