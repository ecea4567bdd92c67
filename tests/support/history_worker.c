#include "tests/support/history_worker.h"

#include "tests/support/require.h"
#include "tests/support/virtual_engine.h"

#include "perfmodel/cpu.h"

#define STREAMS_WAITING 1024 /* beyond the queue's horizon */

/* ---- life ---- */

core_status history_worker_create(struct history_worker *worker, const struct config_profile *profile,
                                  int least_percent, uint64_t seed)
{
    const struct cpu_scheduler_options options = {
        .ops = &virtual_engine, .burst_pieces = profile->cpu.burst_pieces, .far_capacity = STREAMS_WAITING};
    worker->profile = profile;
    worker->random = (struct test_random){seed};
    worker->least_percent = least_percent;
    worker->end_ns = CORE_NS_NEVER;
    worker->arrived_count = worker->finished_count = 0;
    worker->pauses = 0;
    return cpu_scheduler_create(&worker->scheduler, &options, NULL);
}

void history_worker_destroy(struct history_worker *worker)
{
    cpu_scheduler_destroy(worker->scheduler);
}

size_t history_worker_stream_bytes(void)
{
    return cpu_stream_bytes(&virtual_engine, 1);
}

void history_worker_arm(struct cpu_stream *stream, const struct perfmodel_cpu_task *task)
{
    static const uint8_t nothing[2 * CORE_BLOCK_BYTES];
    const struct cpu_stream_options options = {
        .cipher = task->cipher, .piece_bytes = task->piece_bytes, .piece_deadline_ns = task->deadline_ns};
    TEST_REQUIRE(cpu_stream_init(stream, &virtual_engine, NULL, &options, nothing, nothing) == CORE_OK);
}

/* ---- bursts ---- */

void history_worker_put(struct history_worker *worker, struct cpu_packet *packet)
{
    TEST_REQUIRE(worker->arrived_count < HISTORY_WAITING);
    worker->arrived[worker->arrived_count++] = packet;
}

void history_worker_end(struct history_worker *worker)
{
    worker->end_ns = CORE_NS_NEVER;
    worker->pauses = cpu_scheduler_counters_get(worker->scheduler)->pauses;
}

struct running {
    struct history_worker *worker;
    core_ns end_ns;
};

/* The scheduler asks for the time when a burst has ended. */
static core_ns burst_end(void *argument)
{
    struct running *running = argument;
    struct history_worker *worker = running->worker;
    worker->pauses = cpu_scheduler_counters_get(worker->scheduler)->pauses; /* while it lasts */
    core_ns took_ns = virtual_engine_took_ns();
    if (test_random_chance(&worker->random, worker->least_percent))
        took_ns = test_random_in(&worker->random, took_ns / 10, took_ns);
    running->end_ns += took_ns;
    return running->end_ns;
}

void history_worker_begin(struct history_worker *worker, core_ns now_ns)
{
    struct running running = {worker, now_ns};
    uint32_t pieces;
    worker->finished_count = 0;
    cpu_scheduler_push(worker->scheduler, worker->arrived, worker->arrived_count, now_ns);
    worker->arrived_count = 0;
    virtual_engine_use(worker->profile);
    worker->finished_count =
        cpu_scheduler_burst(worker->scheduler, worker->finished, &pieces, burst_end, &running);
    if (pieces > 0)
        worker->end_ns = running.end_ns;
    else
        worker->pauses = cpu_scheduler_counters_get(worker->scheduler)->pauses;
}
