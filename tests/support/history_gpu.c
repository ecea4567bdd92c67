#include "tests/support/history_gpu.h"

#include "perfmodel/cpu.h"
#include "tests/support/require.h"

#include <stdlib.h>
#include <string.h>

#define RETRY_NS (100 * CORE_NS_PER_US) /* where an arena is not free, as the server's */

void history_gpu_create(struct history_gpu *gpu, const struct config_profile *profile,
                        const struct config_profile_gpu *card, bool busy, uint32_t arenas,
                        enum pipeline_execution execution, uint64_t seed)
{
    TEST_REQUIRE(arenas <= HISTORY_BATCHES);
    *gpu = (struct history_gpu){.profile = profile,
                                .card = card,
                                .busy = busy,
                                .lead_ns = server_gpu_lead_ns(profile),
                                .arenas = arenas,
                                .execution = execution,
                                .random = {seed},
                                .up = true,
                                .wake_ns = CORE_NS_NEVER};
    for (int stage = 0; stage < PIPELINE_STAGES; stage++)
        gpu->run_end_ns[stage] = CORE_NS_NEVER;
}

/* ---- pauses, as server/gpu/batches.c notes them ---- */

static void publish_paused(struct history_gpu *gpu, core_ns now_ns)
{
    uint64_t least = gpu->paused[0];
    for (int stage = 1; stage < PIPELINE_STAGES; stage++)
        least = gpu->paused[stage] < least ? gpu->paused[stage] : least;
    gpu->paused_least = least;
    if (gpu->changing && least >= gpu->plan_first && (now_ns >= gpu->from_ns || gpu->hurried)) {
        gpu->changing = false;
        gpu->in_force = gpu->plan.number;
    }
}

static void note_idle(struct history_gpu *gpu, core_ns now_ns)
{
    if (gpu->done < gpu->queued || gpu->submitted < gpu->closed)
        return;
    for (int stage = 0; stage < PIPELINE_STAGES; stage++)
        gpu->paused[stage] = gpu->submitted + 1;
    publish_paused(gpu, now_ns);
}

static void note_pauses(struct history_gpu *gpu, const struct history_batch *batch, core_ns now_ns)
{
    const core_ns came_ns[PIPELINE_STAGES] = {batch->submitted_ns, batch->end_ns[PIPELINE_UP],
                                              batch->end_ns[PIPELINE_KERNEL]};
    for (int stage = 0; stage < PIPELINE_STAGES; stage++) {
        if (gpu->card->copy_engines > 1 && gpu->last_end_ns[stage] < came_ns[stage])
            gpu->paused[stage] = batch->number;
        gpu->last_end_ns[stage] = batch->end_ns[stage];
    }
    publish_paused(gpu, now_ns);
}

/* ---- how long ---- */

static core_ns taken_ns(struct history_gpu *gpu, core_ns most_ns, uint64_t n, int stage)
{
    switch (gpu->execution) {
    case PIPELINE_ONE_STAGE:
        return gpu->random.state % PIPELINE_STAGES == (uint64_t)stage ? most_ns : most_ns / 10;
    case PIPELINE_BY_TURNS:
        return (n + (uint64_t)stage) % 2 == 0 ? most_ns : most_ns / 10;
    case PIPELINE_ANY:
    case PIPELINE_AIMED:
        return test_random_chance(&gpu->random, 60) ? most_ns : test_random_in(&gpu->random, 0, most_ns);
    default:
        return most_ns;
    }
}

static int falling(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left < right) - (left > right);
}

/* What the model says of the batch's jobs. */
static void set_times(struct history_gpu *gpu, struct history_batch *batch)
{
    uint64_t bytes[HISTORY_SOURCES] = {0};
    size_t jobs = 0, most = HISTORY_SOURCES;
    for (const struct history_packet *packet = batch->head; packet != NULL; packet = packet->next)
        most += packet->alone;
    uint64_t *job = malloc(2 * most * sizeof *job);
    TEST_REQUIRE(job != NULL);
    for (const struct history_packet *packet = batch->head; packet != NULL; packet = packet->next)
        if (packet->alone)
            job[jobs++] = packet->cpu.bytes;
        else
            bytes[packet->source] += packet->cpu.bytes;
    for (size_t i = 0; i < HISTORY_SOURCES; i++)
        if (bytes[i] > 0)
            job[jobs++] = bytes[i];
    qsort(job, jobs, sizeof *job, falling);
    struct perfmodel_stages stages =
        perfmodel_gpu_stages(gpu->card, &gpu->profile->margins, job, jobs, gpu->busy, job + most);
    free(job);
    batch->took_ns[PIPELINE_UP] = taken_ns(gpu, stages.up_ns, batch->number, PIPELINE_UP);
    batch->took_ns[PIPELINE_KERNEL] = taken_ns(gpu, stages.kernel_ns, batch->number, PIPELINE_KERNEL);
    batch->took_ns[PIPELINE_DOWN] = taken_ns(gpu, stages.down_ns, batch->number, PIPELINE_DOWN);
}

/* ---- opening, closing, submitting ---- */

static struct history_batch *open_batch(struct history_gpu *gpu, uint64_t number)
{
    return &gpu->batch[number % HISTORY_BATCHES];
}

/* Arenas in use: batches open, and on the card. */
static uint64_t arenas_used(const struct history_gpu *gpu)
{
    return gpu->opened - gpu->closed + gpu->queued - gpu->done;
}

static bool open_next(struct history_gpu *gpu, uint64_t number)
{
    if (arenas_used(gpu) >= gpu->arenas) {
        gpu->held_up++;
        return false;
    }
    gpu->opened = number;
    gpu->last_close_ns = gpu_schedule_close_ns(&gpu->schedule, number);
    *open_batch(gpu, number) = (struct history_batch){.number = number};
    return true;
}

/* To the card, where it is by the end of in_ns after the end of its period and of the rest that packets may
 * have had before they were read: all that the plan has time for. */
static void submit(struct history_gpu *gpu, struct history_batch *batch, core_ns now_ns)
{
    gpu->submitted = batch->number;
    batch->submitted_ns = now_ns;
    if (batch->head == NULL)
        return;
    core_ns left_ns = gpu->profile->margins.in_ns - gpu->profile->margins.in_ns / 2;
    batch->ready_ns = now_ns + left_ns;
    if (gpu->execution == PIPELINE_ANY)
        batch->ready_ns = now_ns + test_random_in(&gpu->random, 0, left_ns);
    if (batch->ready_ns < gpu->last_ready_ns)
        batch->ready_ns = gpu->last_ready_ns;
    gpu->last_ready_ns = batch->ready_ns;
    set_times(gpu, batch);
    TEST_REQUIRE(gpu->queued - gpu->done < HISTORY_BATCHES);
    gpu->queue[gpu->queued++ % HISTORY_BATCHES] = *batch;
}

static void close_next(struct history_gpu *gpu, core_ns now_ns)
{
    gpu->closed++;
    submit(gpu, open_batch(gpu, gpu->closed), now_ns);
    note_idle(gpu, now_ns);
}

static void follow(struct history_gpu *gpu);

static void run_batcher(struct history_gpu *gpu, core_ns now_ns)
{
    bool held_up = false;
    if (!gpu->scheduled) {
        gpu->wake_ns = CORE_NS_NEVER;
        return;
    }
    if (gpu->changing)
        publish_paused(gpu, now_ns);
    follow(gpu);
    struct gpu_schedule_due due = gpu_schedule_due(&gpu->schedule, now_ns, gpu->lead_ns, gpu->plan.delay_ns);
    for (bool progress = true; progress && !held_up;) {
        progress = false;
        if (gpu->opened + 1 <= due.open_until) {
            held_up = !open_next(gpu, gpu->opened + 1);
            progress = !held_up;
        }
        if (gpu->closed < due.close_until && gpu->closed < gpu->opened) {
            close_next(gpu, now_ns);
            progress = true;
        }
    }
    gpu->wake_ns = held_up ? core_time_min(now_ns + RETRY_NS, due.wake_ns) : due.wake_ns;
    if (gpu->changing)
        publish_paused(gpu, now_ns);
    if (now_ns < gpu->from_ns)
        gpu->wake_ns = core_time_min(gpu->wake_ns, gpu->from_ns);
}

/* ---- plans ---- */

static void begin(struct history_gpu *gpu, core_ns now_ns)
{
    core_ns base_ns = core_time_max(now_ns, gpu->last_close_ns);
    if (gpu->plans.count > 0)
        gpu->plan = gpu->plans.waiting[gpu->plans.count - 1];
    gpu->plans.count = 0;
    gpu->scheduled =
        gpu->plan.period_ns > 0 && gpu_schedule_init(&gpu->schedule, base_ns, gpu->plan.period_ns) == CORE_OK;
    gpu->schedule.rows[0].first = gpu->opened + 1;
    gpu->plan_first = gpu->opened + 1;
    gpu->from_ns = base_ns;
    gpu->changing = true;
    if (base_ns > now_ns)
        gpu->in_force = 0;
    note_idle(gpu, now_ns);
}

static void change_period(struct history_gpu *gpu, core_ns period_ns)
{
    uint64_t next = gpu->opened + 1;
    if (gpu_schedule_change(&gpu->schedule, next, period_ns) != CORE_OK)
        gpu->schedule.rows[0].period_ns = period_ns; /* none of its batches was opened yet */
    gpu->changing = true;
    gpu->plan_first = next;
}

static bool fits(const void *gpu, const struct partition_gpu_plan *plan)
{
    (void)gpu;
    return plan->period_ns > 0; /* there is memory for all */
}

static void follow(struct history_gpu *gpu)
{
    struct partition_gpu_plan next;
    if (!gpu->scheduled || gpu->plans.count == 0 || gpu->changing ||
        !server_gpu_plans_next(&gpu->plans, &gpu->plan, fits, NULL, &next))
        return;
    gpu->plan = next;
    change_period(gpu, next.period_ns);
}

void history_gpu_plan(struct history_gpu *gpu, const struct partition_gpu_plan *plan, core_ns now_ns)
{
    bool begins = !gpu->scheduled || plan->period_ns == 0;
    if (!begins && plan->period_ns != gpu->plan.period_ns) {
        server_gpu_plans_add(&gpu->plans, plan);
        follow(gpu);
    } else {
        gpu->plans.count = 0;
        gpu->plan = *plan;
        if (begins)
            begin(gpu, now_ns);
        else if (!gpu->changing)
            gpu->in_force = plan->number;
    }
    run_batcher(gpu, now_ns);
}

static struct history_packet *chain(struct history_packet *before, const struct history_batch *batch)
{
    if (batch->head == NULL)
        return before;
    batch->tail->next = before;
    return batch->head;
}

struct history_packet *history_gpu_lose(struct history_gpu *gpu, core_ns now_ns)
{
    struct history_packet *lost = NULL;
    for (; gpu->done < gpu->queued; gpu->done++)
        lost = chain(lost, &gpu->queue[gpu->done % HISTORY_BATCHES]);
    for (; gpu->closed < gpu->opened; gpu->closed++)
        lost = chain(lost, open_batch(gpu, gpu->closed + 1));
    for (int stage = 0; stage < PIPELINE_STAGES; stage++) {
        gpu->begun[stage] = gpu->queued;
        gpu->run_end_ns[stage] = CORE_NS_NEVER;
    }
    gpu->submitted = gpu->closed;
    gpu->up = gpu->scheduled = false;
    gpu->wake_ns = CORE_NS_NEVER;
    note_idle(gpu, now_ns);
    return lost;
}

void history_gpu_return(struct history_gpu *gpu, core_ns now_ns)
{
    gpu->up = true;
    begin(gpu, now_ns);
    run_batcher(gpu, now_ns);
}

bool history_gpu_put(struct history_gpu *gpu, struct history_packet *packet, core_ns eligible_ns,
                     uint64_t *batch)
{
    uint64_t number = gpu_schedule_batch(&gpu->schedule, eligible_ns);
    if (number <= gpu->closed)
        number = gpu->closed + 1;
    if (number < *batch)
        number = *batch;
    if (!gpu->scheduled || number > gpu->opened)
        return false;
    struct history_batch *into = open_batch(gpu, number);
    packet->next = NULL;
    if (into->head == NULL)
        into->head = packet;
    else
        into->tail->next = packet;
    into->tail = packet;
    *batch = number;
    return true;
}

/* ---- the card ---- */

static struct history_batch *queued_batch(struct history_gpu *gpu, uint64_t n)
{
    return &gpu->queue[n % HISTORY_BATCHES];
}

/* When the next batch of a stage is at hand. */
static core_ns ready_ns(const struct history_gpu *gpu, int stage)
{
    uint64_t n = gpu->begun[stage];
    const struct history_batch *batch = &gpu->queue[n % HISTORY_BATCHES];
    if (stage == PIPELINE_UP)
        return n < gpu->queued ? batch->ready_ns : CORE_NS_NEVER;
    bool before_done = n < gpu->begun[stage - 1] &&
                       !(n + 1 == gpu->begun[stage - 1] && gpu->run_end_ns[stage - 1] != CORE_NS_NEVER);
    return before_done ? batch->end_ns[stage - 1] : CORE_NS_NEVER;
}

static bool runs(const struct history_gpu *gpu, int stage)
{
    return gpu->run_end_ns[stage] != CORE_NS_NEVER;
}

/* May the stage begin its next batch now? Copies on one engine by turns; what became ready in this very
 * moment may be too late to be seen. */
static bool may_begin(struct history_gpu *gpu, int stage, core_ns now_ns)
{
    if (runs(gpu, stage) || ready_ns(gpu, stage) > now_ns)
        return false;
    if (stage == PIPELINE_KERNEL || gpu->card->copy_engines > 1)
        return true;
    int other = stage == PIPELINE_UP ? PIPELINE_DOWN : PIPELINE_UP;
    if (runs(gpu, other))
        return false;
    bool its_turn = gpu->last_up == (stage == PIPELINE_DOWN);
    core_ns other_ns = ready_ns(gpu, other);
    return its_turn || other_ns > now_ns || (other_ns == now_ns && test_random_chance(&gpu->random, 30));
}

static void begin_stage(struct history_gpu *gpu, int stage, core_ns now_ns)
{
    struct history_batch *batch = queued_batch(gpu, gpu->begun[stage]++);
    gpu->run_end_ns[stage] = batch->end_ns[stage] = now_ns + batch->took_ns[stage];
    if (stage != PIPELINE_KERNEL)
        gpu->last_up = stage == PIPELINE_UP;
}

static void begin_stages(struct history_gpu *gpu, core_ns now_ns)
{
    for (int stage = PIPELINE_DOWN; stage >= PIPELINE_UP; stage--)
        if (may_begin(gpu, stage, now_ns))
            begin_stage(gpu, stage, now_ns);
}

static struct history_packet *end_stages(struct history_gpu *gpu, core_ns now_ns)
{
    for (int stage = PIPELINE_UP; stage < PIPELINE_DOWN; stage++)
        if (gpu->run_end_ns[stage] <= now_ns)
            gpu->run_end_ns[stage] = CORE_NS_NEVER;
    if (gpu->run_end_ns[PIPELINE_DOWN] > now_ns)
        return NULL;
    struct history_batch *batch = queued_batch(gpu, gpu->done++);
    gpu->run_end_ns[PIPELINE_DOWN] = CORE_NS_NEVER;
    note_pauses(gpu, batch, now_ns);
    note_idle(gpu, now_ns);
    return batch->head;
}

core_ns history_gpu_next_ns(const struct history_gpu *gpu)
{
    core_ns next_ns = gpu->wake_ns;
    for (int stage = 0; stage < PIPELINE_STAGES; stage++)
        next_ns = core_time_min(next_ns, gpu->run_end_ns[stage]);
    bool engine_free = !runs(gpu, PIPELINE_UP) && (gpu->card->copy_engines > 1 || !runs(gpu, PIPELINE_DOWN));
    return engine_free ? core_time_min(next_ns, ready_ns(gpu, PIPELINE_UP)) : next_ns;
}

struct history_packet *history_gpu_run(struct history_gpu *gpu, core_ns now_ns)
{
    if (gpu->wake_ns <= now_ns)
        run_batcher(gpu, now_ns);
    struct history_packet *finished = end_stages(gpu, now_ns);
    begin_stages(gpu, now_ns);
    return finished;
}
