/* Histories: the certificates of what stands, and of what is to be after a loss. */
#include "partition/check/check.h"
#include "tests/support/check_failover.h"
#include "tests/support/history_world.h"
#include "tests/support/require.h"
#include "tests/support/standing_plan.h"

#define LOSSES_PERCENT 10 /* of the plans, of which one loss is looked at, too */
#define CHANGES_PLAYED 4  /* one change of so many is judged while bytes decide, and each of the last */

static void check_plan(struct history_world *world)
{
    struct core_stream_spec specs[HISTORY_ROOMS];
    size_t count = admission_streams(world->admission);
    struct partition_plan_input input = {.specs = specs,
                                         .count = count,
                                         .profile = &world->machine.profile,
                                         .workers = world->machine.workers};
    struct partition_plan *plan = test_admission_plan(world->admission);
    struct core_error error = {{0}};
    TEST_REQUIRE(count <= HISTORY_ROOMS);
    for (size_t n = 0; n < count; n++)
        specs[n] = admission_stream_at(world->admission, n).spec;
    if (!plan->accepted)
        history_fail(world, "what stands has no certificate: %s", plan->reason);
    else if (partition_check(&input, plan, &error) != CORE_OK)
        history_fail(world, "the checker refuses what stands: %s", error.text);
    else
        world->totals->plans++;
    partition_plan_destroy(plan);
}

static struct check_failover_promise promise_of(const struct admission_stream *stream)
{
    return (struct check_failover_promise){.contract = stream->join,
                                           .unit = stream->unit,
                                           .backed = stream->backup_unit != ADMISSION_NONE,
                                           .backup_unit = stream->backup_unit,
                                           .gpu_bound_ns = stream->gpu_bound_ns,
                                           .detection_ns = stream->detection_ns};
}

static void check_loss(struct history_world *world, uint32_t lost)
{
    struct check_failover_promise promise[HISTORY_ROOMS];
    size_t count = admission_streams(world->admission);
    const struct history_machine *machine = &world->machine;
    struct partition_plan *after = test_admission_plan_after(world->admission, lost);
    struct core_error error = {{0}};
    for (size_t n = 0; n < count; n++) {
        struct admission_stream stream = admission_stream_at(world->admission, n);
        promise[n] = promise_of(&stream);
    }
    if (!after->accepted)
        history_fail(world, "no certificate for the loss of GPU %u: %s", lost, after->reason);
    else if (check_failover(&machine->profile, machine->workers, promise, count, lost, after, &error) !=
             CORE_OK)
        history_fail(world, "the checker refuses what is to be after a loss: %s", error.text);
    else
        world->totals->failures++;
    partition_plan_destroy(after);
}

/* A unit counts the streams that name it, and nothing else. */
static void check_books(struct history_world *world)
{
    size_t streams[HISTORY_UNITS] = {0}, backups[HISTORY_UNITS] = {0};
    const size_t count = admission_streams(world->admission);
    const uint32_t workers = world->machine.workers;
    for (size_t n = 0; n < count; n++) {
        const struct admission_stream stream = admission_stream_at(world->admission, n);
        streams[stream.unit]++;
        if (stream.backup_unit != ADMISSION_NONE)
            backups[stream.backup_unit]++;
    }
    for (uint32_t w = 0; w < workers; w++)
        if (admission_worker_at(world->admission, w).streams != streams[w])
            history_fail(world, "worker %u does not count its %zu streams", w, streams[w]);
    for (uint32_t g = 0; g < world->machine.gpu_count; g++) {
        const struct admission_gpu gpu = admission_gpu_at(world->admission, g);
        if (gpu.streams != streams[workers + g] || gpu.backups != backups[workers + g])
            history_fail(world, "GPU %u counts %zu streams and %zu backups, not %zu and %zu", g, gpu.streams,
                         gpu.backups, streams[workers + g], backups[workers + g]);
    }
}

void history_planner_check_empty(struct history_world *world)
{
    const struct admission *admission = world->admission;
    if (admission_streams(admission) > 0)
        history_fail(world, "%zu reservations are left of streams that have closed",
                     admission_streams(admission));
    if (admission_io_ppb(admission, 0) != 0)
        history_fail(world, "the I/O thread is charged for nobody");
    for (uint32_t w = 0; w < world->machine.workers; w++) {
        const struct admission_worker worker = admission_worker_at(admission, w);
        if (worker.streams > 0 || worker.utilisation_ppb != 0 || worker.reserved_ppb != 0)
            history_fail(world, "worker %u is charged for nobody", w);
    }
    for (uint32_t g = 0; g < world->machine.gpu_count; g++) {
        const struct admission_gpu gpu = admission_gpu_at(admission, g);
        if (gpu.streams > 0 || gpu.backups > 0 || gpu.period_ns != 0 || gpu.memory_bytes > 0)
            history_fail(world, "GPU %u is charged for nobody", g);
    }
}

void history_planner_check(struct history_world *world)
{
    uint32_t gpus = world->machine.gpu_count;
    if (world->tape.left > 0 && world->changes++ % CHANGES_PLAYED != 0)
        return;
    check_plan(world);
    check_books(world);
    if (world->machine.guaranteed && test_random_chance(&world->random, LOSSES_PERCENT))
        check_loss(world, (uint32_t)test_random_in(&world->random, 0, gpus - 1));
}
