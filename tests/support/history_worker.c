#include "tests/support/history_worker.h"

#include "tests/support/require.h"

#include "perfmodel/cpu.h"

#define STREAMS_WAITING 1024 /* beyond the queue's horizon */

__extension__ typedef __int128 wide;

/* ---- the engine: adds up what its calls may take ---- */

/* The engine's table has no argument to carry them, hence one burst at a time in the process. */
static const struct config_profile_cpu *burst_cpu;
static wide burst_fs;

static core_status engine_open(struct cpu_engine **engine, struct core_error *error)
{
    (void)error;
    *engine = NULL;
    return CORE_OK;
}

static void engine_close(struct cpu_engine *engine)
{
    (void)engine;
}

static uint32_t engine_lanes(const struct cpu_engine *engine)
{
    (void)engine;
    return burst_cpu->lanes;
}

static core_status engine_key_set(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                  const uint8_t *key)
{
    (void)engine;
    (void)key_state;
    (void)cipher;
    (void)key;
    return CORE_OK;
}

static void engine_key_wipe(void *key_state)
{
    (void)key_state;
}

static core_status engine_encrypt(struct cpu_engine *engine, enum core_cipher cipher,
                                  struct cpu_piece *pieces, uint32_t count)
{
    (void)engine;
    burst_fs += ((wide)count * burst_cpu->per_piece_ns + burst_cpu->lane_ns[cipher - 1]) * 1000000;
    for (uint32_t i = 0; i < count; i++)
        burst_fs += (wide)burst_cpu->per_byte_fs[cipher - 1] * pieces[i].bytes;
    return CORE_OK;
}

static const struct cpu_engine_ops engine = {.name = "simulated",
                                             .key_state_bytes = 1,
                                             .open = engine_open,
                                             .close = engine_close,
                                             .lanes = engine_lanes,
                                             .key_set = engine_key_set,
                                             .key_wipe = engine_key_wipe,
                                             .encrypt = engine_encrypt};

/* ---- life ---- */

core_status history_worker_create(struct history_worker *worker, const struct config_profile *profile,
                                  int least_percent, uint64_t seed)
{
    const struct cpu_scheduler_options options = {
        .ops = &engine, .burst_pieces = profile->cpu.burst_pieces, .far_capacity = STREAMS_WAITING};
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
    return cpu_stream_bytes(&engine);
}

void history_worker_arm(struct cpu_stream *stream, const struct perfmodel_cpu_task *task)
{
    static const uint8_t nothing[2 * CORE_BLOCK_BYTES];
    TEST_REQUIRE(cpu_stream_init(stream, &engine, NULL, task->cipher, nothing, nothing, task->piece_bytes,
                                 task->deadline_ns) == CORE_OK);
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
    core_ns took_ns = (core_ns)(burst_fs * (100 + worker->profile->margins.percent) / 100 / 1000000);
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
    burst_cpu = &worker->profile->cpu;
    burst_fs = 0;
    worker->finished_count =
        cpu_scheduler_burst(worker->scheduler, worker->finished, &pieces, burst_end, &running);
    if (pieces > 0)
        worker->end_ns = running.end_ns;
    else
        worker->pauses = cpu_scheduler_counters_get(worker->scheduler)->pauses;
}
