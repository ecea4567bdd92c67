#include "tests/support/virtual_gpu.h"

#include "gpu/aes.h"
#include "gpu/card.h"
#include "gpu/emulation.h"
#include "gpu/engine.h"
#include "gpu/kernel.h"
#include "server/gpu/batcher.h"
#include "tests/support/require.h"
#include "tests/support/virtual_threads.h"

#include <stdlib.h>
#include <string.h>

#define START_NS   (20 * CORE_NS_PER_MS)
#define RESTART_NS (100 * CORE_NS_PER_MS)
#define PIN_NS     (3 * CORE_NS_PER_MS)
#define SCRIBBLE   0x5a
#define REFUSED    7 /* one in so many times that arenas are to grow the card can not */

core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);
void __wrap_gpu_engine_close(struct gpu_engine *engine);
core_status __wrap_gpu_engine_start(struct gpu_engine *engine, core_ns now_ns, struct core_error *error);
core_status __wrap_gpu_engine_key_set(struct gpu_engine *engine, uint32_t key_slot, const uint8_t *key,
                                      uint32_t key_bytes, const uint8_t *chain);
core_status __wrap_gpu_engine_key_clear(struct gpu_engine *engine, uint32_t key_slot);
core_status __wrap_gpu_engine_submit(struct gpu_engine *engine, const struct gpu_order *order,
                                     core_ns period_ns, core_ns now_ns, struct core_error *error);
void __wrap_gpu_engine_set_room(struct gpu_engine *engine, const struct gpu_room *room);
core_status __wrap_gpu_engine_resize(struct gpu_engine *engine, const struct gpu_room *room);
core_status __real_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place);
core_status __wrap_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place);
struct server_gpu_room_limits __wrap_server_gpu_room_limits(const struct gpu_region_shape *shape);
core_status __wrap_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event);
int __wrap_gpu_engine_descriptor(const struct gpu_engine *engine);
core_ns __wrap_gpu_engine_wake_ns(const struct gpu_engine *engine);
bool __wrap_gpu_engine_gone(struct gpu_engine *engine);
void __wrap_gpu_engine_condemn(struct gpu_engine *engine, core_ns now_ns, const char *text);
void __wrap_gpu_engine_stop(struct gpu_engine *engine, core_ns grace_ns);
enum gpu_engine_state __wrap_gpu_engine_state(const struct gpu_engine *engine);
pid_t __wrap_gpu_engine_process(const struct gpu_engine *engine);
struct gpu_nvml_health __wrap_gpu_engine_health(const struct gpu_engine *engine);

struct run {
    struct gpu_order order;
    struct gpu_stage_time times[GPU_STAGE_COUNT];
};

/* What stands behind a struct gpu_engine. */
struct virtual_gpu {
    struct gpu_engine_options options;
    struct gpu_emulation emulation;
    struct gpu_card card;
    enum gpu_engine_state state;
    core_ns ready_ns;                /* STARTING: when it is ready */
    core_ns lost_ns;                 /* what has not ended by then does not; NEVER */
    core_ns fault_ns;                /* when that is told; NEVER: nothing is to be told */
    core_ns gone_ns;                 /* when the child is gone */
    core_ns restart_ns;              /* not before */
    struct gpu_room room, next_room; /* pinned; and what was asked for, */
    core_ns room_ns;                 /* which is told then; NEVER: nothing was */
    struct run runs[GPU_REGION_ARENAS_MAX];
    uint32_t first, count; /* under way, a ring; not come back, while the child lingers */
};

static struct virtual_gpu *gpus[TEST_VIRTUAL_GPUS];
static struct test_virtual_gpu_losses losses;
static uint64_t rooms;

static struct virtual_gpu *of(const struct gpu_engine *engine)
{
    struct virtual_gpu *gpu;
    memcpy(&gpu, &engine, sizeof gpu);
    return gpu;
}

static struct run *run_at(struct virtual_gpu *gpu, uint32_t at)
{
    return &gpu->runs[(gpu->first + at) % GPU_REGION_ARENAS_MAX];
}

/* ---- what the test does ---- */

static void lose(struct virtual_gpu *gpu, core_ns now_ns, core_ns noticed_ns, core_ns lingers_ns)
{
    gpu->lost_ns = now_ns;
    gpu->fault_ns = now_ns + noticed_ns;
    gpu->gone_ns = gpu->fault_ns + lingers_ns;
}

bool test_virtual_gpu_lose(uint32_t card, uint32_t noticed_permille, core_ns lingers_ns)
{
    struct virtual_gpu *gpu = card < TEST_VIRTUAL_GPUS ? gpus[card] : NULL;
    if (gpu == NULL || gpu->state != GPU_ENGINE_READY || gpu->lost_ns != CORE_NS_NEVER)
        return false;
    const core_ns longest_ns = gpu->options.hang_least_ns + gpu->options.kill_ns;
    lose(gpu, test_virtual_now_ns(), longest_ns * noticed_permille / 1000, lingers_ns);
    return true;
}

struct test_virtual_gpu_losses test_virtual_gpu_losses(void)
{
    return losses;
}

bool test_virtual_gpus_ready(void)
{
    for (size_t i = 0; i < TEST_VIRTUAL_GPUS; i++)
        if (gpus[i] != NULL && (gpus[i]->state != GPU_ENGINE_READY || gpus[i]->lost_ns != CORE_NS_NEVER))
            return false;
    return true;
}

/* ---- life ---- */

core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error)
{
    struct virtual_gpu *gpu = calloc(1, sizeof *gpu);
    (void)error;
    TEST_REQUIRE(gpu != NULL && options->device < TEST_VIRTUAL_GPUS && gpus[options->device] == NULL);
    gpu->options = *options;
    gpu->emulation = *options->emulation;
    gpu->state = GPU_ENGINE_DOWN;
    gpu->lost_ns = gpu->fault_ns = gpu->room_ns = CORE_NS_NEVER;
    gpu->room = options->region->room;
    gpu_card_lay_out(&gpu->card, &options->region->shape, NULL);
    uint8_t *memory = aligned_alloc(256, gpu->card.bytes);
    TEST_REQUIRE(memory != NULL);
    gpu_card_lay_out(&gpu->card, &options->region->shape, memory);
    gpus[options->device] = gpu;
    memcpy(engine, &gpu, sizeof gpu);
    return CORE_OK;
}

void __wrap_gpu_engine_close(struct gpu_engine *engine)
{
    struct virtual_gpu *gpu = of(engine);
    gpus[gpu->options.device] = NULL;
    free(gpu->card.memory);
    free(gpu);
}

/* A card that begins knows no keys and no chaining values. */
core_status __wrap_gpu_engine_start(struct gpu_engine *engine, core_ns now_ns, struct core_error *error)
{
    struct virtual_gpu *gpu = of(engine);
    const uint32_t slots = gpu->options.region->shape.slots;
    TEST_REQUIRE(gpu->state == GPU_ENGINE_DOWN);
    if (now_ns < gpu->restart_ns || now_ns < gpu->gone_ns)
        return core_error_set(error, CORE_AGAIN, "not yet");
    memset(gpu->card.keys, 0, slots * sizeof *gpu->card.keys);
    memset(gpu->card.chains, SCRIBBLE, slots * sizeof *gpu->card.chains);
    gpu->state = GPU_ENGINE_STARTING;
    gpu->ready_ns = now_ns + START_NS;
    return CORE_OK;
}

void __wrap_gpu_engine_stop(struct gpu_engine *engine, core_ns grace_ns)
{
    (void)grace_ns;
    of(engine)->state = GPU_ENGINE_DOWN;
}

void __wrap_gpu_engine_condemn(struct gpu_engine *engine, core_ns now_ns, const char *text)
{
    fprintf(stderr, "the card is condemned: %s\n", text);
    TEST_REQUIRE(false); /* what this card writes is right */
    (void)engine, (void)now_ns;
}

/* ---- work ---- */

static bool has_key_slot(const struct virtual_gpu *gpu, uint32_t key_slot)
{
    return key_slot < gpu_key_slot(gpu->options.region->shape.slots, 0);
}

core_status __wrap_gpu_engine_key_set(struct gpu_engine *engine, uint32_t key_slot, const uint8_t *key,
                                      uint32_t key_bytes, const uint8_t *chain)
{
    struct virtual_gpu *gpu = of(engine);
    TEST_REQUIRE(has_key_slot(gpu, key_slot));
    if (gpu->state != GPU_ENGINE_READY)
        return CORE_AGAIN;
    TEST_REQUIRE(gpu_key_expand(&gpu->card.keys[key_slot], key, key_bytes) == CORE_OK);
    for (int i = 0; i < 2 && chain != NULL; i++)
        memcpy(gpu->card.chains[key_slot / GPU_SLOT_KEYS].value[i], chain, GPU_BLOCK_BYTES);
    return CORE_OK;
}

core_status __wrap_gpu_engine_key_clear(struct gpu_engine *engine, uint32_t key_slot)
{
    struct virtual_gpu *gpu = of(engine);
    TEST_REQUIRE(has_key_slot(gpu, key_slot));
    if (gpu->state != GPU_ENGINE_READY)
        return CORE_AGAIN;
    memset(&gpu->card.keys[key_slot], 0, sizeof gpu->card.keys[key_slot]);
    return CORE_OK;
}

/* For the next start, where it changes while there is a child it is less. */
void __wrap_gpu_engine_set_room(struct gpu_engine *engine, const struct gpu_room *room)
{
    of(engine)->room = *room;
}

core_status __wrap_gpu_engine_resize(struct gpu_engine *engine, const struct gpu_room *room)
{
    struct virtual_gpu *gpu = of(engine);
    if (gpu->state != GPU_ENGINE_READY)
        return CORE_AGAIN;
    TEST_REQUIRE(gpu->room_ns == CORE_NS_NEVER);
    gpu->next_room = *room;
    gpu->room_ns = test_virtual_now_ns() + PIN_NS;
    return CORE_OK;
}

/* Every key of the job is there. */
static void check_keys(const struct gpu_batch *batch, const struct gpu_job *job)
{
    for (uint32_t at = job->first_segment; at != GPU_SEGMENT_NONE; at = batch->segments[at].next) {
        const uint32_t other = (batch->segments[at].flags & GPU_SEGMENT_OTHER_KEY) != 0 ? 1 : 0;
        TEST_REQUIRE(batch->keys[job->key_slot ^ other].rounds != 0);
    }
}

/* The keys are those of now, so the work is done at once; it shows when its time is over. */
static void encrypt(struct virtual_gpu *gpu, const struct gpu_order *order)
{
    const struct gpu_region *region = gpu->options.region;
    const struct gpu_card_batch *to = &gpu->card.batches[order->arena];
    struct gpu_batch batch = to->batch;
    struct core_error error;

    memcpy(to->input, gpu_region_input(region, order->arena), order->used_bytes);
    memcpy(to->jobs, gpu_region_jobs(region, order->arena), order->job_count * sizeof *to->jobs);
    memcpy(to->segments, gpu_region_segments(region, order->arena),
           order->segment_count * sizeof *to->segments);
    batch.job_count = order->job_count;
    batch.segment_count = order->segment_count;
    TEST_REQUIRE(gpu_batch_check(&batch, &error) == CORE_OK);
    for (uint32_t i = 0; i < batch.job_count; i++)
        check_keys(&batch, &to->jobs[i]);
    gpu_kernel_run_host(GPU_KERNEL_WHOLE, &batch, 0, batch.job_count);
}

/* Each stage begins when the batch and the stage's part of the card are ready. */
static void set_times(struct virtual_gpu *gpu, struct run *run, core_ns now_ns)
{
    const struct gpu_order *order = &run->order;
    const struct run *before = gpu->count > 0 ? run_at(gpu, gpu->count - 1) : NULL;
    const uint64_t tables =
        order->job_count * sizeof(struct gpu_job) + order->segment_count * sizeof(struct gpu_segment);
    const struct gpu_job *jobs = gpu->card.batches[order->arena].jobs;
    const core_ns took_ns[GPU_STAGE_COUNT] = {
        gpu_emulation_copy_ns(&gpu->emulation, true, true, order->used_bytes + tables),
        gpu_emulation_kernel_ns(&gpu->emulation, GPU_KERNEL_WHOLE, jobs, order->job_count),
        gpu_emulation_copy_ns(&gpu->emulation, false, true, order->used_bytes)};

    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        struct gpu_stage_time *time = &run->times[stage];
        time->start_ns = before == NULL ? now_ns : core_time_max(now_ns, before->times[stage].end_ns);
        time->end_ns = now_ns = time->start_ns + took_ns[stage];
    }
}

core_status __wrap_gpu_engine_submit(struct gpu_engine *engine, const struct gpu_order *order,
                                     core_ns period_ns, core_ns now_ns, struct core_error *error)
{
    struct virtual_gpu *gpu = of(engine);
    (void)period_ns;
    const struct gpu_room need = {.bytes = order->used_bytes, .segments = order->segment_count};
    TEST_REQUIRE(gpu_order_check(order, &gpu->options.region->shape, error) == CORE_OK);
    TEST_REQUIRE(gpu_room_holds(&gpu->room, &need));
    if (gpu->state != GPU_ENGINE_READY)
        return CORE_AGAIN;
    TEST_REQUIRE(gpu->count < gpu->options.region->shape.arenas);
    for (uint32_t i = 0; i < gpu->count; i++)
        TEST_REQUIRE(run_at(gpu, i)->order.arena != order->arena);
    struct run *run = run_at(gpu, gpu->count);
    run->order = *order;
    encrypt(gpu, order);
    set_times(gpu, run, now_ns);
    gpu->count++;
    return CORE_OK;
}

/* ---- what is told ---- */

static bool batch_came_back(const struct virtual_gpu *gpu, const struct run *run, core_ns now_ns)
{
    const core_ns end_ns = run->times[GPU_STAGE_DOWN].end_ns;
    return gpu->count > 0 && end_ns <= now_ns && end_ns <= gpu->lost_ns;
}

static void take_batch(struct virtual_gpu *gpu, struct gpu_event *event)
{
    const struct run *run = run_at(gpu, 0);
    memcpy(gpu_region_output(gpu->options.region, run->order.arena),
           gpu->card.batches[run->order.arena].batch.output, run->order.used_bytes);
    *event = (struct gpu_event){.kind = GPU_EVENT_BATCH, .batch.order = run->order};
    memcpy(event->batch.times, run->times, sizeof run->times);
    gpu->first = (gpu->first + 1) % GPU_REGION_ARENAS_MAX;
    gpu->count--;
}

static uint32_t count_down(void)
{
    uint32_t down = 0;
    for (size_t i = 0; i < TEST_VIRTUAL_GPUS; i++)
        down += gpus[i] != NULL && gpus[i]->state != GPU_ENGINE_READY;
    return down;
}

/* Hardly any, so that almost every stream needs more, and given back at once. */
struct server_gpu_room_limits __wrap_server_gpu_room_limits(const struct gpu_region_shape *shape)
{
    const struct gpu_room least = {.bytes = GPU_REGION_PAGE_BYTES, .segments = 4};
    return (struct server_gpu_room_limits){.least = gpu_room_within(&least, shape),
                                           .calm_ns = 20 * CORE_NS_PER_MS,
                                           .retry_ns = 5 * CORE_NS_PER_S};
}

/* No packet finds a batch full, however little memory arenas have: none comes before its plan has it. */
core_status __wrap_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place)
{
    const core_status status = __real_gpu_arena_append(arenas, writer, packet, place);
    TEST_REQUIRE(status != CORE_FULL);
    return status;
}

uint64_t test_virtual_gpu_rooms(void)
{
    return rooms;
}

static void take_room(struct virtual_gpu *gpu, struct gpu_event *event)
{
    const bool grows = !gpu_room_holds(&gpu->room, &gpu->next_room);
    const bool refused = grows && ++rooms % REFUSED == 0;
    gpu->room_ns = CORE_NS_NEVER;
    *event = (struct gpu_event){.kind = GPU_EVENT_ROOM};
    if (refused)
        (void)core_error_set(&event->room, CORE_SYSTEM, "the test lets no more be pinned");
    else
        gpu->room = gpu->next_room;
}

static void take_fault(struct virtual_gpu *gpu, core_ns now_ns, struct gpu_event *event)
{
    gpu->state = GPU_ENGINE_DOWN;
    gpu->room_ns = CORE_NS_NEVER;
    gpu->lost_ns = gpu->fault_ns = CORE_NS_NEVER;
    gpu->restart_ns = now_ns + RESTART_NS;
    losses.all++;
    losses.together += count_down() > 1;
    *event = (struct gpu_event){.kind = GPU_EVENT_FAULT,
                                .fault = {.kind = GPU_FAULT_HUNG,
                                          .gone = now_ns >= gpu->gone_ns,
                                          .unfinished = gpu->count,
                                          .restart_ns = gpu->restart_ns}};
    if (event->fault.gone)
        gpu->count = 0;
}

core_status __wrap_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event)
{
    struct virtual_gpu *gpu = of(engine);
    if (gpu->state == GPU_ENGINE_STARTING && now_ns >= gpu->ready_ns) {
        gpu->state = GPU_ENGINE_READY;
        *event = (struct gpu_event){.kind = GPU_EVENT_READY,
                                    .facts = {.name = "virtual",
                                              .sms = gpu->emulation.sms,
                                              .copy_engines = gpu->emulation.copy_engines,
                                              .memory_bytes = gpu->emulation.memory_bytes}};
    } else if (gpu->state == GPU_ENGINE_READY && batch_came_back(gpu, run_at(gpu, 0), now_ns))
        take_batch(gpu, event);
    else if (gpu->state == GPU_ENGINE_READY && now_ns >= gpu->fault_ns)
        take_fault(gpu, now_ns, event);
    else if (gpu->state == GPU_ENGINE_READY && now_ns >= gpu->room_ns && gpu->lost_ns == CORE_NS_NEVER)
        take_room(gpu, event);
    else
        return CORE_AGAIN;
    return CORE_OK;
}

int __wrap_gpu_engine_descriptor(const struct gpu_engine *engine)
{
    (void)engine;
    return -1; /* it is known beforehand when something happens */
}

core_ns __wrap_gpu_engine_wake_ns(const struct gpu_engine *engine)
{
    struct virtual_gpu *gpu = of(engine);
    if (gpu->state == GPU_ENGINE_STARTING)
        return gpu->ready_ns;
    if (gpu->state != GPU_ENGINE_READY)
        return CORE_NS_NEVER;
    const core_ns batch_ns = gpu->count > 0 ? run_at(gpu, 0)->times[GPU_STAGE_DOWN].end_ns : CORE_NS_NEVER;
    const core_ns end_ns = core_time_min(batch_ns, gpu->room_ns);
    return end_ns <= gpu->lost_ns ? core_time_min(end_ns, gpu->fault_ns) : gpu->fault_ns;
}

/* Until it is gone it writes. */
bool __wrap_gpu_engine_gone(struct gpu_engine *engine)
{
    struct virtual_gpu *gpu = of(engine);
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct gpu_order *order = &run_at(gpu, i)->order;
        memset(gpu_region_output(gpu->options.region, order->arena), SCRIBBLE, order->used_bytes);
    }
    if (test_virtual_now_ns() < gpu->gone_ns)
        return false;
    gpu->count = 0;
    return true;
}

enum gpu_engine_state __wrap_gpu_engine_state(const struct gpu_engine *engine)
{
    return of(engine)->state;
}

pid_t __wrap_gpu_engine_process(const struct gpu_engine *engine)
{
    (void)engine;
    return 0; /* none */
}

struct gpu_nvml_health __wrap_gpu_engine_health(const struct gpu_engine *engine)
{
    (void)engine;
    return (struct gpu_nvml_health){0}; /* it can not tell */
}
