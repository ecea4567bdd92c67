/* What the CUDA device tells of a batch's times, on a card with a virtual clock (support/cuda/fake.h): stages of
 * 1 us to 10 ms, by a clock that runs apart from ours, ends that are noticed late or at once. Told must be what
 * the card did, however late that was seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/aes.h"
#include "gpu/device_cuda.h"
#include "gpu/pipeline.h"
#include "tests/support/cuda/fake.h"
#include "tests/support/gpu_crowd.h"

#define ARENAS     4
#define BATCHES    500
#define ROUNDED_NS 20 /* what cudaEventElapsedTime loses of 100 ms, at both ends of a stage */

core_ns __wrap_core_time_now_ns(void);

core_ns __wrap_core_time_now_ns(void)
{
    return cuda_fake_now_ns();
}

static struct gpu_crowd *crowd;
static struct gpu_device *device;
static struct gpu_pipeline pipeline;
static struct test_random random_numbers;

static void begin(uint32_t copy_engines, int drift_ppm, uint64_t seed)
{
    char card[128];
    struct core_error error = {""};
    struct gpu_device_facts facts;
    snprintf(card, sizeof card, "clock=1 engines=%u drift_ppm=%d late_us=8 busy_us=10000 seed=%u",
             copy_engines, drift_ppm, (unsigned)seed);
    cuda_fake_begin(card);
    random_numbers.state = seed;
    crowd = gpu_crowd_open(ARENAS, 4, 12, 1 << 12, seed);
    const struct gpu_device_options options = {.region = &crowd->region};
    if (gpu_device_cuda.open(&device, &options, &facts, &error) != CORE_OK)
        fail_msg("%s", error.text);
    for (uint32_t slot = 0; slot < 4; slot++) {
        struct gpu_key key;
        const struct gpu_crowd_stream *stream = &crowd->streams[slot];
        assert_int_equal(gpu_key_expand(&key, stream->key, stream->key_bytes), CORE_OK);
        assert_int_equal(gpu_device_cuda.key_set(device, gpu_key_slot(slot, 0), &key, stream->chain, &error),
                         CORE_OK);
    }
    gpu_pipeline_begin(&pipeline, &gpu_device_cuda, device, copy_engines);
}

static void end(void)
{
    gpu_device_cuda.close(device);
    assert_int_equal(cuda_fake_live(), 0);
    gpu_crowd_close(crowd);
}

static core_ns mark_ns(uint64_t index, int stage, bool is_end)
{
    const struct gpu_cuda_marks *marks = &device->runs[index % (ARENAS + 1)].marks[stage];
    return cuda_fake_event_ns(is_end ? marks->end : marks->begin);
}

/* What the card did, by the index of the batch; read before its events are recorded anew. With two copy engines
 * a stage behind the copy up begins when its batch has come and the one before is through. */
static struct gpu_stage_time true_time(uint64_t index, int stage)
{
    struct gpu_stage_time time = {.end_ns = mark_ns(index, stage, true)};
    if (stage == 0 || device->takes_turns) {
        time.start_ns = mark_ns(index, stage, false);
        return time;
    }
    time.start_ns = mark_ns(index, stage - 1, true);
    if (index > 0)
        time.start_ns = core_time_max(time.start_ns, mark_ns(index - 1, stage, true));
    return time;
}

static void check_batch(const struct gpu_pipeline_batch *batch, uint64_t index, int drift_ppm)
{
    assert_true(gpu_crowd_matches(crowd, &batch->order));
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        const struct gpu_stage_time took = true_time(index, stage), *told = &batch->times[stage];
        const core_ns took_ns = took.end_ns - took.start_ns, told_ns = told->end_ns - told->start_ns;
        const core_ns drift_ns = took_ns * abs(drift_ppm) / 1000000;
        assert_true(llabs(told_ns - took_ns) <= ROUNDED_NS + drift_ns);
        assert_true(llabs(told->start_ns - took.start_ns) <= batch->uncertain_ns);
        assert_true(llabs(told->end_ns - took.end_ns) <= batch->uncertain_ns);
        assert_true(stage == 0 || told->start_ns >= batch->times[stage - 1].end_ns);
    }
    assert_true(batch->times[GPU_STAGE_DOWN].end_ns <= cuda_fake_now_ns());
}

/* To the next end, and as late as the host may be. */
static void step(core_ns late_most_ns)
{
    struct core_error error;
    assert_true(cuda_fake_advance_to_call());
    cuda_fake_advance(test_random_log(&random_numbers, 1, late_most_ns));
    assert_int_equal(gpu_pipeline_step(&pipeline, &error), CORE_OK);
}

static void run_batches(int drift_ppm, core_ns late_most_ns)
{
    uint64_t submitted = 0, back = 0;
    struct core_error error;
    struct gpu_order orders[ARENAS];
    while (back < BATCHES) {
        const struct gpu_pipeline_batch *batch;
        if (submitted < BATCHES && submitted - back < ARENAS && test_random_chance(&random_numbers, 60)) {
            struct gpu_order *order = &orders[submitted++ % ARENAS];
            *order = gpu_crowd_batch(crowd, 2, 64);
            assert_int_equal(gpu_pipeline_submit(&pipeline, order, &error), CORE_OK);
        } else if (submitted > back) {
            step(late_most_ns);
        } else {
            cuda_fake_advance(test_random_log(&random_numbers, CORE_NS_PER_US, CORE_NS_PER_S));
        }
        while ((batch = gpu_pipeline_take(&pipeline)) != NULL)
            check_batch(batch, back++, drift_ppm);
    }
}

static void told_times_are_the_cards_own(void **state)
{
    (void)state;
    static const int drifts_ppm[] = {0, 500, -500};
    static const core_ns late_ns[] = {2, 60 * CORE_NS_PER_US, 20 * CORE_NS_PER_MS};
    for (uint32_t engines = 1; engines <= 2; engines++)
        for (int i = 0; i < 9; i++) {
            begin(engines, drifts_ppm[i / 3], (uint64_t)i + 1);
            run_batches(drifts_ppm[i / 3], late_ns[i % 3]);
            end();
        }
}

/* Each takes some us of the host. */
static void a_batch_costs_few_calls(void **state)
{
    struct core_error error;
    (void)state;
    begin(2, 0, 1);
    assert_int_equal(gpu_device_cuda.keys_start(device, &error), CORE_AGAIN);
    for (int batch = 0; batch < 3; batch++) {
        const struct gpu_order order = gpu_crowd_batch(crowd, 4, 64);
        assert_true(order.segment_count > 0);
        uint64_t before = cuda_fake_calls();
        assert_int_equal(gpu_pipeline_submit(&pipeline, &order, &error), CORE_OK);
        assert_int_equal(cuda_fake_calls() - before, 15); /* two of them ask for the card */
        before = cuda_fake_calls();
        step(2);
        assert_non_null(gpu_pipeline_take(&pipeline));
        assert_int_equal(cuda_fake_calls() - before, 5); /* the first has none before it, but keys */
    }
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(told_times_are_the_cards_own),
        cmocka_unit_test(a_batch_costs_few_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
