/* Histories: streams on their way. Moves by server/stream/path.h, contracts that change. */
#include "perfmodel/cpu.h"
#include "tests/support/history_world.h"
#include "tests/support/require.h"

/* ---- moves ---- */

/* What a GPU has had before it was charged is back within the latency bound. */
static core_ns hold_from_ns(struct history_world *world, const struct history_stream *stream)
{
    core_ns wait_ns = test_random_chance(&world->random, 50)
                          ? 0
                          : test_random_in(&world->random, 0, 2) * stream->spec.latency_ns;
    if (world->fault == HISTORY_HOLD_ANYHOW && stream->hold_ns == 0)
        return world->now_ns;
    if (stream->hold_ns == 0)
        return CORE_NS_NEVER;
    return world->now_ns + wait_ns + (history_on_gpu(world, stream->room.unit) ? stream->spec.latency_ns : 0);
}

/* Not before then, and just too late for a batch: the next packet waits for the whole of another period. */
static core_ns too_late_ns(struct history_world *world, uint32_t unit, core_ns ns)
{
    if (!history_on_gpu(world, unit) || !history_gpu_of(world, unit)->scheduled)
        return ns;
    const struct history_gpu *gpu = history_gpu_of(world, unit);
    core_ns before_ns = ns > gpu->last_close_ns ? ns - gpu->last_close_ns : 0;
    return gpu->last_close_ns + (before_ns / gpu->plan.period_ns + 1) * gpu->plan.period_ns + 1;
}

/* Earns its burst back, and sends it: packets are held as soon as the first is inside. */
static void lie_in_wait(struct history_world *world, struct history_stream *stream, uint32_t to,
                        core_ns hold_ns)
{
    core_ns earned_ns = world->now_ns + stream->spec.burst_packets * stream->spec.interval_ns;
    earned_ns = core_time_max(earned_ns, hold_ns);
    core_ns at_ns = too_late_ns(world, stream->room.unit, earned_ns);
    stream->ambush = true;
    history_stream_behave(world, stream, at_ns);
    stream->sending = HISTORY_FULL;
    if (test_random_chance(&world->random, 40))
        return;
    history_stream_crowd(world, stream->room.unit, at_ns, at_ns);
    history_stream_crowd(world, to, at_ns, at_ns + stream->spec.latency_ns);
}

static bool may_migrate(const struct history_stream *stream)
{
    return stream->state == HISTORY_OPEN && stream->next_room.unit == HISTORY_NONE && !stream->hasty &&
           !stream->restoring && !history_stream_flees(stream) && !stream->change.asked &&
           !stream->change.joined;
}

/* Gives up at some time, or never. */
static void begin_transfer(struct history_world *world, struct history_stream *stream, uint32_t to)
{
    stream->silent_from_ns = world->now_ns + test_random_in(&world->random, 0, 4) * stream->spec.latency_ns;
    bool gives_up = test_random_chance(&world->random, 20);
    core_ns hold_ns = hold_from_ns(world, stream);
    if (hold_ns != CORE_NS_NEVER && !stream->away && test_random_chance(&world->random, 70))
        lie_in_wait(world, stream, to, hold_ns);
    stream->hold_from_ns = hold_ns;
    stream->until_ns = gives_up ? stream->silent_from_ns : CORE_NS_NEVER;
}

/* A stream that is in no state for it is as one that closes. */
void *history_planner_migrate(void *host, const struct partition_planner_migration *migration)
{
    struct history_world *world = host;
    struct history_stream *stream = migration->from_owner;

    world->look = true;
    if (!may_migrate(stream)) {
        TEST_REQUIRE(world->dropped_count < HISTORY_ROOMS);
        world->dropped[world->dropped_count++] = migration->to;
        return stream;
    }
    stream->next_room = (struct history_room){.number = migration->to, .unit = migration->unit};
    history_planner_note_plans(world, &stream->next_room);
    stream->hold_ns = migration->hold_ns;
    begin_transfer(world, stream, migration->unit);
    history_stream_settle(world, stream);
    history_say(world, "stream %u: is to move from unit %u to %u, which is asked for %lld less",
                stream->index, stream->room.unit, migration->unit, (long long)stream->hold_ns);
    return stream;
}

bool history_planner_move(struct history_world *world, struct history_stream *stream, uint32_t to,
                          core_ns period_ns)
{
    core_ns timeout_ns = stream->spec.latency_ns * test_random_in(&world->random, 1, 8);
    char reason[256];

    if (!may_migrate(stream) || to == stream->room.unit ||
        admission_streams(world->admission) + 2 > HISTORY_ROOMS)
        return false;
    return partition_planner_move(world->planner, stream->room.number, to, period_ns, timeout_ns, NULL,
                                  world->now_ns, reason, sizeof reason);
}

/* All that the old unit had came before the first that waits. */
static void check_lag(struct history_world *world, const struct history_stream *stream)
{
    core_ns lag_ns = stream->queue != NULL ? world->now_ns - stream->queue->eligible_ns : 0;
    if (world->fault != HISTORY_HOLD_ANYHOW && !stream->away && !stream->restoring &&
        lag_ns > stream->hold_ns)
        history_fail(world, "stream %u: held for %lld, where unit %u was to return all within %lld",
                     stream->index, (long long)lag_ns, stream->room.unit, (long long)stream->hold_ns);
}

static void switch_unit(struct history_world *world, struct history_stream *stream, bool held)
{
    struct history_stream old = *stream;
    history_count(world, held ? HISTORY_HELD : HISTORY_MOVED);
    if (held && history_on_gpu(world, old.room.unit))
        history_count(world, HISTORY_HELD_UP);
    history_say(world, "stream %u: is on unit %u%s", stream->index, stream->next_room.unit,
                held ? ", packets were held" : "");
    if (held)
        check_lag(world, stream);
    history_planner_retire(world, &old);
    history_stream_switch(world, stream, held);
    partition_planner_moved(world->planner, stream->room.number, PARTITION_PLANNER_MOVED, stream->hasty);
    history_planner_note_plans(world, &stream->room);
    world->roomier = true;
    history_planner_check(world);
    if (history_on_gpu(world, stream->room.unit) && !history_gpu_of(world, stream->room.unit)->up)
        history_stream_lose(world, stream);
}

static void give_up(struct history_world *world, struct history_stream *stream)
{
    history_say(world, "stream %u: stays on unit %u", stream->index, stream->room.unit);
    history_count(world, HISTORY_GIVEN_UP);
    partition_planner_moved(world->planner, stream->next_room.number, PARTITION_PLANNER_STAYED, false);
    history_planner_retire_unused(world, stream->next_room.number);
    stream->next_room.unit = HISTORY_NONE;
    world->roomier = true;
    history_planner_check(world);
    history_stream_settle(world, stream);
}

/* Silent from some time on, so that it comes to a rest. */
static void lose_patience(struct history_stream *stream)
{
    if (stream->silent_until_ns < stream->silent_from_ns)
        stream->silent_until_ns = stream->silent_from_ns;
}

/* Packets on their way to the unit are inside. */
static unsigned facts(struct history_world *world, const struct history_stream *stream)
{
    bool held = server_path_holds(stream->path);
    uint32_t inside = stream->inside + (held || stream->queue == NULL || stream->away ? 0 : 1);

    return SERVER_PATH_GPU_EMPTY | SERVER_PATH_MIGRATING |
           (history_planner_in_force(world, &stream->next_room) ? SERVER_PATH_READY : 0) |
           (inside == 0 ? SERVER_PATH_WORKER_EMPTY | SERVER_PATH_FREE : 0) |
           (world->now_ns >= stream->hold_from_ns ? SERVER_PATH_MAY_HOLD : 0) |
           (world->now_ns >= stream->until_ns ? SERVER_PATH_OVERDUE : 0);
}

void history_planner_go_on_moving(struct history_world *world, struct history_stream *stream)
{
    unsigned effects;

    if (stream->next_room.unit == HISTORY_NONE || stream->ambush || history_stream_flees(stream))
        return;
    if (!server_path_step(&stream->path, facts(world, stream), &effects)) {
        if (!server_path_holds(stream->path))
            lose_patience(stream);
    } else if ((effects & SERVER_PATH_SWITCH) != 0)
        switch_unit(world, stream, (effects & SERVER_PATH_PACED) != 0);
    else if ((effects & SERVER_PATH_GIVE_UP) != 0)
        give_up(world, stream);
    else {
        history_stream_settle(world, stream);
        world->look = true; /* what was on its way waits, too: there may be nothing inside */
    }
}

/* ---- changes ---- */

static bool may_change(const struct history_world *world, const struct history_stream *stream)
{
    return may_migrate(stream) && !stream->away &&
           partition_planner_readiness(world->planner, stream->room.number) == PARTITION_PLANNER_READY;
}

void history_planner_change(struct history_world *world, struct history_stream *stream,
                            const struct core_stream_spec *spec)
{
    struct admission_placement placement;
    struct history_change *change = &stream->change;
    bool ready = false;
    if (!may_change(world, stream) || partition_planner_change(world->planner, stream->room.number, spec,
                                                               stream, &placement, &ready) != CORE_OK)
        return;
    history_planner_check(world);
    if (!placement.accepted) {
        history_count(world, HISTORY_UNCHANGED);
        return;
    }
    *change = (struct history_change){.asked = true, .agreed = ready, .spec = *spec, .task = placement.task};
    stream->silent_from_ns = world->now_ns + test_random_in(&world->random, 0, 4) * stream->spec.latency_ns;
    history_say(world, "stream %u: asks for interval %lld, burst %u, latency %lld", stream->index,
                (long long)spec->interval_ns, spec->burst_packets, (long long)spec->latency_ns);
    world->look = true;
}

/* Tells the planner that what it had agreed to is in force: charged beside it is what was served until then.
 * */
static void tell_in_force(struct history_world *world, struct history_stream *stream)
{
    struct partition_planner_use use = history_planner_use(world, stream);

    if (world->fault == HISTORY_SETTLE_AT_ONCE)
        use = (struct partition_planner_use){.used = false};
    partition_planner_changed(world->planner, stream->room.number, PARTITION_PLANNER_IN_FORCE, &use, true);
    stream->change.joined = true;
    world->look = true;
}

/* The planner has reclaimed what was charged for the contract that is over. */
static void note_settled(struct history_world *world, struct history_stream *stream)
{
    struct perfmodel_cpu_task task = {0};
    if (history_on_gpu(world, stream->room.unit)) {
        history_planner_note_plans(world, &stream->room);
    } else {
        TEST_REQUIRE(perfmodel_cpu_task_from(&stream->spec, &world->machine.profile, &task, NULL) == CORE_OK);
        history_stream_serve(world, stream, &task);
    }
    stream->change.joined = false;
    world->roomier = true;
    history_count(world, HISTORY_SETTLED);
}

void history_planner_go_on_changing(struct history_world *world, struct history_stream *stream)
{
    struct history_change *change = &stream->change;
    bool on_gpu = history_on_gpu(world, stream->room.unit);
    /* A worker's figures for a stream are set while none of its packets is there. */
    bool may_set = stream->queue == NULL && (on_gpu || stream->inside == 0);
    if ((!change->asked && !change->joined) || history_stream_flees(stream))
        return;
    if (!may_set) {
        lose_patience(stream);
        return;
    }
    if (change->asked && change->agreed) {
        change->asked = false;
        history_planner_note_plans(world, &stream->room);
        history_stream_change(world, stream);
        tell_in_force(world, stream);
        history_count(world, HISTORY_CHANGED);
        history_say(world, "stream %u: has its new contract", stream->index);
    }
    if (!change->asked && change->joined &&
        !admission_stream_of(world->admission, stream->room.number).joined)
        note_settled(world, stream);
}

/* At a gap; the unit is charged for the latency bound alone when it has been quiescent. */
void history_planner_relax(struct history_world *world, struct history_stream *stream)
{
    bool on_gpu = history_on_gpu(world, stream->room.unit);
    if (!stream->hasty || history_stream_flees(stream) || stream->queue != NULL ||
        (!on_gpu && stream->inside > 0) || !server_pacer_caught_up(&stream->pace, true, world->now_ns))
        return;
    stream->hasty = false;
    history_stream_serve_for(world, stream, stream->spec.latency_ns);
    stream->change = (struct history_change){.spec = stream->spec};
    stream->silent_from_ns = world->now_ns + stream->spec.latency_ns;
    tell_in_force(world, stream);
}
