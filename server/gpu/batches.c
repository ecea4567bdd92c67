/* The batches of one GPU, from their opening to their end. */
#include "server/gpu/internal.h"
#include "server/server_internal.h"

#include <string.h>

#define RETRY_NS (100 * CORE_NS_PER_US) /* where an arena or the channel is not free */

static struct server_gpu_note *note_of(struct server_gpu *gpu, uint64_t batch)
{
    return &gpu->notes[batch % GPU_REGION_ARENAS_MAX];
}

/* ---- bounds ---- */

static struct server_gpu_bounds bounds_of(const struct partition_gpu_plan *plan)
{
    return (struct server_gpu_bounds){plan->up_ns, plan->kernel_ns, plan->down_ns, plan->batch_ns};
}

static struct server_gpu_bounds most_of(struct server_gpu_bounds a, struct server_gpu_bounds b)
{
    return (struct server_gpu_bounds){
        core_time_max(a.up_ns, b.up_ns), core_time_max(a.kernel_ns, b.kernel_ns),
        core_time_max(a.down_ns, b.down_ns), core_time_max(a.batch_ns, b.batch_ns)};
}

/* ---- pauses ---- */

static void publish_paused(struct server_gpu *gpu)
{
    const uint64_t least = server_gpu_pauses_least(&gpu->pauses);
    atomic_store_explicit(&gpu->paused_least, least, memory_order_relaxed);
    if (gpu->changing && least >= gpu->plan_first && core_time_now_ns() >= gpu->plan_from_ns) {
        gpu->changing = false;
        gpu->plan_in_force = gpu->plan.number;
        gpu->bounds = bounds_of(&gpu->plan);
    }
}

/* Where the card has nothing to do. */
static void note_idle(struct server_gpu *gpu)
{
    if (gpu->missing > 0 || gpu->submitted < gpu_arenas_closed(gpu->arenas))
        return;
    server_gpu_pauses_idle(&gpu->pauses, gpu->submitted + 1);
    publish_paused(gpu);
}

/* ---- figures ---- */

static void count_stage(struct server_gpu_stage_figures *figures, core_ns took_ns, core_ns bound_ns)
{
    int64_t ppb = bound_ns > 0 ? (int64_t)((double)took_ns * 1e9 / (double)bound_ns) : 0;

    if (took_ns > atomic_load_explicit(&figures->max_ns, memory_order_relaxed))
        atomic_store_explicit(&figures->max_ns, took_ns, memory_order_relaxed);
    if (ppb > atomic_load_explicit(&figures->worst_ppb, memory_order_relaxed))
        atomic_store_explicit(&figures->worst_ppb, ppb, memory_order_relaxed);
    server_stats_add_ns(&figures->total_ns, took_ns);
    if (bound_ns <= 0 || took_ns <= bound_ns)
        return;
    server_stats_add(&figures->exceeded, 1);
    server_stats_add_ns(&figures->excess_ns, took_ns - bound_ns);
}

static core_ns duration_ns(const struct gpu_stage_time *time)
{
    return time->end_ns - time->start_ns;
}

/* A stage's time is what the card took for it; the whole batch's also has waiting and hand-overs in it. How
 * late we noticed the end counts apart, against the margin of delivery, which begins with it. What is lost
 * counts from when the batch was due to be closed until its end was noticed. */
static void count_batch(struct server_gpu *gpu, const struct server_gpu_note *note,
                        const struct gpu_stage_time *times)
{
    struct server_gpu_figures *figures = &gpu->figures;
    core_ns out_ns = gpu->server->profile->margins.out_ns;
    core_ns whole_ns = times[GPU_STAGE_DOWN].end_ns - note->submitted_ns;
    core_ns late_ns = gpu->noticed_ns - note->due_ns - note->bounds.batch_ns - out_ns;
    count_stage(&figures->up, duration_ns(&times[GPU_STAGE_UP]), note->bounds.up_ns);
    count_stage(&figures->kernel, duration_ns(&times[GPU_STAGE_KERNEL]), note->bounds.kernel_ns);
    count_stage(&figures->down, duration_ns(&times[GPU_STAGE_DOWN]), note->bounds.down_ns);
    count_stage(&figures->batch, whole_ns, note->bounds.batch_ns);
    count_stage(&figures->notice, gpu->noticed_ns - times[GPU_STAGE_DOWN].end_ns, out_ns);
    server_stats_add_ns(&figures->lost_ns, note->bounds.batch_ns > 0 && late_ns > 0 ? late_ns : 0);
    core_histogram_record(&figures->batch_ns, whole_ns);
    server_stats_add(&figures->batches, 1);
    server_stats_add(&figures->packets, note->packets);
    server_stats_add(&figures->bytes, note->order.used_bytes);
}

/* ---- the end of a batch ---- */

static void push_to_writers(struct server_gpu *gpu, const struct server_gpu_note *note,
                            const struct server_gpu_event *event)
{
    for (uint32_t io = 0; io < gpu->io_count; io++)
        if ((note->writers >> io & 1) != 0)
            server_gpu_push(gpu, io, event);
}

static void let_go(struct server_gpu *gpu, uint64_t batch)
{
    (void)!gpu_arena_release(gpu->arenas, GPU_ARENA_BATCHER, batch);
    gpu_slots_delivered(gpu->slots, batch);
}

/* Moves `done` over batches that had nothing for the child. So done + 1 is under way, if any is, and holds
 * its arena: no batch after it has taken its note, and what may be lost is never more than there are arenas,
 * however long nothing was sent. */
static void pass_empty(struct server_gpu *gpu)
{
    while (gpu->done < gpu->submitted && note_of(gpu, gpu->done + 1)->order.job_count == 0)
        gpu->done++;
}

void server_gpu_batches_done(struct server_gpu *gpu, const struct gpu_event *event)
{
    uint64_t batch = event->batch.order.number;
    struct server_gpu_note *note = note_of(gpu, batch);
    const struct gpu_stage_time *times = event->batch.times;

    /* never the same twice: it names the batch to its packets (server_gpu_port_times) */
    gpu->noticed_ns = core_time_max(core_time_now_ns(), gpu->noticed_ns + 1);
    gpu->done = batch;
    pass_empty(gpu);
    gpu->missing--;
    count_batch(gpu, note, times); /* who has a packet of it finds it in the figures */
    push_to_writers(gpu, note,
                    &(struct server_gpu_event){.kind = SERVER_GPU_DONE,
                                               .batch = batch,
                                               .times = {.closed_ns = note->submitted_ns,
                                                         .up_ns = times[GPU_STAGE_UP].end_ns,
                                                         .kernel_ns = times[GPU_STAGE_KERNEL].end_ns,
                                                         .ended_ns = times[GPU_STAGE_DOWN].end_ns,
                                                         .noticed_ns = gpu->noticed_ns}});
    let_go(gpu, batch);
    server_gpu_pauses_done(&gpu->pauses,
                           &(struct server_gpu_pauses_batch){.number = batch,
                                                             .submitted_ns = note->submitted_ns,
                                                             .times = times,
                                                             .uncertain_ns = event->batch.uncertain_ns},
                           gpu->kind.copy_engines);
    publish_paused(gpu);
    note_idle(gpu);
}

/* ---- closing and submitting ---- */

/* False: none is open. */
static bool close_batch(struct server_gpu *gpu)
{
    struct gpu_arena_batch batch;
    if (gpu_arena_close(gpu->arenas, &batch) != CORE_OK)
        return false;
    struct server_gpu_note *note = note_of(gpu, batch.number);
    *note = (struct server_gpu_note){.due_ns = batch.close_ns + gpu->plan.delay_ns,
                                     .bounds = gpu->bounds,
                                     .writers = batch.writers,
                                     .packets = batch.segment_count,
                                     .order = {.number = batch.number,
                                               .arena = batch.arena,
                                               .job_count = batch.job_count,
                                               .segment_count = batch.segment_count,
                                               .used_bytes = batch.used_bytes}};
    return true;
}

/* What the watchdog counts with: eight of them are the limit, where hang_ms is not longer. */
static core_ns watched_period_ns(const struct partition_gpu_plan *plan)
{
    return plan->guaranteed > 0 ? 1 : plan->period_ns;
}

/* Hands closed batches to the child, in order. False: it has no room now. */
static bool submit_closed(struct server_gpu *gpu, core_ns now_ns)
{
    struct core_error error = {""};
    while (gpu->submitted < gpu_arenas_closed(gpu->arenas)) {
        struct server_gpu_note *note = note_of(gpu, gpu->submitted + 1);
        core_status status = CORE_OK;
        note->submitted_ns = now_ns;
        if (note->order.job_count > 0)
            status =
                gpu_engine_submit(gpu->engine, &note->order, watched_period_ns(&gpu->plan), now_ns, &error);
        if (status == CORE_INVALID)
            server_gpu_condemn(gpu, now_ns, error.text);
        if (status != CORE_OK)
            return false; /* no room; or a fault that is about to be told */
        gpu->submitted++;
        if (note->order.job_count > 0)
            gpu->missing++;
        else
            let_go(gpu, gpu->submitted);
        pass_empty(gpu);
        note_idle(gpu);
    }
    return true;
}

static bool follow(struct server_gpu *gpu);

/* There are no streams. What is open is empty, and is closed, so that nothing holds its memory. */
static core_ns close_unscheduled(struct server_gpu *gpu, core_ns now_ns)
{
    const core_ns due_ns = gpu->last_close_ns + gpu->lead_ns;
    if (gpu->submitted == gpu_arenas_opened(gpu->arenas))
        return CORE_NS_NEVER;
    if (now_ns < due_ns)
        return due_ns;
    while (close_batch(gpu)) {
    }
    return submit_closed(gpu, now_ns) ? CORE_NS_NEVER : now_ns + RETRY_NS;
}

core_ns server_gpu_batches_run(struct server_gpu *gpu, core_ns now_ns)
{
    bool held_up = false, progress = true;
    const uint64_t closed = gpu_arenas_closed(gpu->arenas);
    struct gpu_schedule_due due;

    if (!gpu->scheduled)
        return close_unscheduled(gpu, now_ns);
    if (gpu->changing) {
        publish_paused(gpu);
        if (!gpu->changing)
            return now_ns; /* keys wait for it */
    }
    if (follow(gpu))
        return now_ns; /* the same */
    due = gpu_schedule_due(&gpu->schedule, now_ns, gpu->lead_ns, gpu->plan.delay_ns);
    while (progress && !held_up) {
        uint64_t next = gpu_arenas_opened(gpu->arenas) + 1;
        progress = false;
        if (next <= due.open_until) {
            core_ns close_ns = gpu_schedule_close_ns(&gpu->schedule, next);
            held_up = gpu_arena_open(gpu->arenas, close_ns) != CORE_OK;
            progress = !held_up;
            gpu->last_close_ns = held_up ? gpu->last_close_ns : close_ns;
        }
        if (gpu_arenas_closed(gpu->arenas) < due.close_until)
            progress |= close_batch(gpu);
        held_up |= !submit_closed(gpu, now_ns);
    }
    if (gpu->plans.count > 0 && gpu_arenas_closed(gpu->arenas) > closed)
        return now_ns; /* a plan may have waited for that: for batches with more room */
    if (gpu->changing && gpu->plan_from_ns > now_ns)
        due.wake_ns = core_time_min(due.wake_ns, gpu->plan_from_ns);
    return held_up ? core_time_min(due.wake_ns, now_ns + RETRY_NS) : due.wake_ns;
}

/* ---- plans ---- */

static void show_plan(struct server_gpu_figures *figures, const struct partition_gpu_plan *plan,
                      core_ns out_ns)
{
    atomic_store_explicit(&figures->period_ns, plan->period_ns, memory_order_relaxed);
    atomic_store_explicit(&figures->latency_ns, plan->latency_ns, memory_order_relaxed);
    atomic_store_explicit(&figures->streams, plan->streams, memory_order_relaxed);
    atomic_store_explicit(&figures->guaranteed, plan->guaranteed, memory_order_relaxed);
    atomic_store_explicit(&figures->backups, plan->backups, memory_order_relaxed);
    atomic_store_explicit(&figures->reserved_ppb, plan->reserved_ppb, memory_order_relaxed);
    atomic_store_explicit(&figures->batch_bytes, plan->batch_bytes, memory_order_relaxed);
    atomic_store_explicit(&figures->up.bound_ns, plan->up_ns, memory_order_relaxed);
    atomic_store_explicit(&figures->kernel.bound_ns, plan->kernel_ns, memory_order_relaxed);
    atomic_store_explicit(&figures->down.bound_ns, plan->down_ns, memory_order_relaxed);
    atomic_store_explicit(&figures->batch.bound_ns, plan->batch_ns, memory_order_relaxed);
    atomic_store_explicit(&figures->notice.bound_ns, out_ns, memory_order_relaxed);
}

static void take_over(struct server_gpu *gpu, const struct partition_gpu_plan *plan)
{
    core_ns old_ns = gpu->plan.period_ns;

    server_stats_add(&gpu->figures.period_changes,
                     old_ns > 0 && plan->period_ns > 0 && plan->period_ns != old_ns ? 1 : 0);
    gpu->plan = *plan;
    gpu->bounds = most_of(gpu->bounds, bounds_of(plan));
    show_plan(&gpu->figures, plan, gpu->server->profile->margins.out_ns);
}

static bool has_room(const void *gpu, const struct partition_gpu_plan *plan)
{
    return server_gpu_room_fits(gpu, plan);
}

static bool has_open_room(const void *gpu, const struct partition_gpu_plan *plan)
{
    return server_gpu_room_is_open(gpu, plan);
}

/* The next batch begins now, or where the last one that was open ends. What comes before it begins waits for
 * longer than its period, so the plan is not in force until then; nor until all that were open are closed. */
void server_gpu_batches_begin(struct server_gpu *gpu, core_ns now_ns)
{
    core_ns base_ns = core_time_max(now_ns, gpu->last_close_ns);

    struct partition_gpu_plan next;

    if (server_gpu_plans_take(&gpu->plans, has_room, gpu, &next))
        take_over(gpu, &next);
    gpu->scheduled = gpu->up && gpu->plan.period_ns > 0 &&
                     gpu_schedule_init(&gpu->schedule, base_ns, gpu->plan.period_ns) == CORE_OK;
    gpu->schedule.rows[0].first = gpu_arenas_opened(gpu->arenas) + 1;
    gpu->plan_first = gpu->schedule.rows[0].first;
    gpu->plan_from_ns = base_ns;
    gpu->changing = true;
    if (base_ns > now_ns)
        gpu->plan_in_force = 0;
    note_idle(gpu);
}

static void change_period(struct server_gpu *gpu, core_ns period_ns)
{
    uint64_t next = gpu_arenas_opened(gpu->arenas) + 1;
    if (gpu_schedule_change(&gpu->schedule, next, period_ns) != CORE_OK)
        gpu->schedule.rows[0].period_ns = period_ns; /* none of its batches was opened yet */
    gpu->changing = true;
    gpu->plan_first = next;
    gpu->plan_from_ns = gpu_schedule_close_ns(&gpu->schedule, next - 1);
}

static void put_in_force(struct server_gpu *gpu)
{
    gpu->plan_in_force = gpu->plan.number;
    gpu->bounds = bounds_of(&gpu->plan);
}

/* To the next period, or to more in a batch, if it is time for one. Whether a plan is in force thereby. */
static bool follow(struct server_gpu *gpu)
{
    struct partition_gpu_plan next;

    if (gpu->plans.count == 0 || gpu->changing ||
        !server_gpu_plans_next(&gpu->plans, &gpu->plan, has_open_room, gpu, &next))
        return false;
    bool same = next.period_ns == gpu->plan.period_ns;
    take_over(gpu, &next);
    if (same)
        put_in_force(gpu);
    else
        change_period(gpu, next.period_ns);
    return same;
}

void server_gpu_batches_plan(struct server_gpu *gpu, const struct partition_gpu_plan *plan, core_ns now_ns)
{
    bool begins = !gpu->scheduled || plan->period_ns == 0;

    if (!(begins ? has_room(gpu, plan)
                 : has_open_room(gpu, plan) && plan->period_ns == gpu->plan.period_ns)) {
        server_gpu_plans_add(&gpu->plans, plan);
        (void)follow(gpu);
        return;
    }
    gpu->plans.count = 0;
    take_over(gpu, plan);
    if (begins)
        server_gpu_batches_begin(gpu, now_ns);
    else if (!gpu->changing)
        put_in_force(gpu);
}

/* ---- the end of the child ---- */

static void lose(struct server_gpu *gpu, uint64_t batch, bool child_gone)
{
    struct server_gpu_note *note = note_of(gpu, batch);
    bool was_submitted = batch <= gpu->submitted;

    if (was_submitted && note->order.job_count == 0)
        return; /* let go long ago */
    push_to_writers(gpu, note, &(struct server_gpu_event){.kind = SERVER_GPU_LOST, .batch = batch});
    note->abandoned = was_submitted && !child_gone;
    if (!note->abandoned)
        let_go(gpu, batch);
    server_stats_add(&gpu->figures.lost_batches, note->order.job_count > 0 ? 1 : 0);
}

void server_gpu_batches_lose(struct server_gpu *gpu, bool child_gone)
{
    gpu->scheduled = false;
    while (close_batch(gpu)) {
    }
    uint64_t closed = gpu_arenas_closed(gpu->arenas);
    for (uint64_t batch = gpu->done + 1; batch <= closed; batch++)
        lose(gpu, batch, child_gone);
    gpu->done = gpu->submitted = closed;
    gpu->missing = 0;
    gpu->clearing = SERVER_GPU_NO_SLOT;
    gpu_slots_wiped(gpu->slots);
    note_idle(gpu);
}

void server_gpu_batches_gone(struct server_gpu *gpu)
{
    for (size_t i = 0; i < GPU_REGION_ARENAS_MAX; i++) {
        struct server_gpu_note *note = &gpu->notes[i];
        if (note->abandoned)
            let_go(gpu, note->order.number);
        note->abandoned = false;
    }
}
