#include "tests/support/gpu_rig.h"

#include "tests/support/require.h"

void gpu_rig_start(struct gpu_rig *rig)
{
    struct gpu_event event;
    struct core_error error = {""};
    core_status status;
    while ((status = gpu_engine_start(rig->engine, core_time_now_ns(), &error)) == CORE_AGAIN)
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    TEST_REQUIRE(status == CORE_OK);
    TEST_REQUIRE(gpu_crowd_wait(rig->engine, &event));
    if (event.kind == GPU_EVENT_FAULT)
        fprintf(stderr, "%s\n", event.fault.text);
    TEST_REQUIRE(event.kind == GPU_EVENT_READY);
    gpu_crowd_hand_keys(rig->crowd, rig->engine);
}

void gpu_rig_open(struct gpu_rig *rig, struct gpu_crowd *crowd, const struct gpu_emulation *emulation,
                  const struct gpu_engine_options *options)
{
    struct core_error error = {""};
    const struct gpu_engine_options patient = gpu_crowd_options(crowd, emulation);
    *rig = (struct gpu_rig){.crowd = crowd};
    if (gpu_engine_open(&rig->engine, options != NULL ? options : &patient, &error) != CORE_OK)
        fprintf(stderr, "%s\n", error.text);
    TEST_REQUIRE(rig->engine != NULL);
    gpu_rig_start(rig);
}

void gpu_rig_close(struct gpu_rig *rig)
{
    gpu_engine_close(rig->engine);
    gpu_crowd_close(rig->crowd);
}

/* Makes a batch and hands it over. False: a fault has begun, and the batch, which the caller has still, is
 * run in the GPU's stead. */
static bool submit(struct gpu_rig *rig, uint32_t jobs, uint32_t bytes_max)
{
    struct core_error error = {""};
    const struct gpu_order order = gpu_crowd_batch(rig->crowd, jobs, bytes_max);
    const core_status status =
        gpu_engine_submit(rig->engine, &order, GPU_RIG_PERIOD_NS, core_time_now_ns(), &error);
    if (status == CORE_AGAIN && gpu_engine_state(rig->engine) != GPU_ENGINE_READY) {
        gpu_crowd_stand_in(rig->crowd, &order);
        return false;
    }
    if (status != CORE_OK)
        fprintf(stderr, "%s\n", error.text);
    TEST_REQUIRE(status == CORE_OK);
    rig->under_way[rig->submitted++ % GPU_REGION_ARENAS_MAX] = order;
    return true;
}

void gpu_rig_submit(struct gpu_rig *rig, uint32_t jobs, uint32_t bytes_max)
{
    TEST_REQUIRE(submit(rig, jobs, bytes_max));
}

static void check_back(struct gpu_rig *rig, const struct gpu_event *event)
{
    TEST_REQUIRE(event->kind == GPU_EVENT_BATCH && rig->back < rig->submitted);
    const struct gpu_order *order = &rig->under_way[rig->back++ % GPU_REGION_ARENAS_MAX];
    TEST_REQUIRE(event->batch.order.number == order->number);
    TEST_REQUIRE(gpu_crowd_matches(rig->crowd, order));
    rig->back_ns = core_time_now_ns();
}

void gpu_rig_take_back(struct gpu_rig *rig)
{
    struct gpu_event event;
    TEST_REQUIRE(gpu_crowd_wait(rig->engine, &event));
    if (event.kind == GPU_EVENT_FAULT)
        fprintf(stderr, "fault: %s\n", event.fault.text);
    check_back(rig, &event);
}

void gpu_rig_take_all(struct gpu_rig *rig)
{
    while (rig->back < rig->submitted)
        gpu_rig_take_back(rig);
}

void gpu_rig_go_on(struct gpu_rig *rig, uint32_t most, uint32_t jobs, uint32_t bytes_max)
{
    while (rig->submitted - rig->back >= most)
        gpu_rig_take_back(rig);
    gpu_rig_submit(rig, jobs, bytes_max);
}

/* The fault must count what is under way: the packets are encrypted here instead. */
static void stand_in(struct gpu_rig *rig, const struct gpu_fault *fault)
{
    TEST_REQUIRE(fault->unfinished == rig->submitted - rig->back);
    for (uint32_t i = 0; i < fault->unfinished; i++) {
        const struct gpu_order *order = &rig->under_way[rig->back++ % GPU_REGION_ARENAS_MAX];
        gpu_crowd_stand_in(rig->crowd, order);
        TEST_REQUIRE(gpu_crowd_matches(rig->crowd, order));
    }
}

struct gpu_fault gpu_rig_fault(struct gpu_rig *rig, uint32_t most, uint32_t jobs, uint32_t bytes_max)
{
    struct gpu_event event;
    for (;;) {
        while (rig->submitted - rig->back < most && gpu_engine_state(rig->engine) == GPU_ENGINE_READY &&
               submit(rig, jobs, bytes_max))
            ;
        TEST_REQUIRE(gpu_crowd_wait(rig->engine, &event));
        if (event.kind == GPU_EVENT_FAULT)
            break;
        check_back(rig, &event);
    }
    stand_in(rig, &event.fault);
    return event.fault;
}
