/* Histories: streams on their way. Moves by server/stream/transfer.h, contracts that change. */
#include "perfmodel/cpu.h"
#include "tests/support/history_world.h"
#include "tests/support/require.h"

/* ---- moves ---- */

/* Charged for the contract alone, as nothing is late at the unit. */
static void stop_holding(struct history_world *world, uint32_t number)
{
    partition_standing_settle(world->standing, number);
    history_planner_send_plans(world);
    world->roomier = true;
    history_planner_check(world);
}

static bool keeps_its_bound(struct history_world *world, uint32_t unit)
{
    if (!history_on_gpu(world, unit))
        return true;
    const struct history_gpu *gpu = history_gpu_of(world, unit);
    return gpu->up && gpu->in_force == history_batches_of(world, unit)->number;
}

/* Both units are charged so that packets may be held, if they can be. */
static void prepare_to_hold(struct history_world *world, struct history_stream *stream,
                            struct history_room *room)
{
    uint32_t from = stream->room.unit;
    core_ns batches_ns = history_on_gpu(world, from) ? history_batches_of(world, from)->latency_ns : 0;
    if (stream->away || !keeps_its_bound(world, from))
        return;
    (void)!partition_standing_hold(world->standing, room->number, batches_ns, &stream->hold_ns);
    if (history_on_gpu(world, room->unit))
        history_planner_note_plans(world, room);
    else
        history_planner_send_plans(world);
    history_planner_check(world);
}

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

bool history_planner_move(struct history_world *world, struct history_stream *stream, uint32_t to,
                          core_ns period_ns)
{
    struct history_room room = {.unit = to, .spec = stream->spec};
    if (stream->state != HISTORY_OPEN || stream->next_room.unit != HISTORY_NONE || to == stream->room.unit ||
        stream->hasty || stream->stuck || stream->restoring || history_stream_flees(stream) ||
        stream->change.asked || stream->change.joined ||
        partition_standing_streams(world->standing) + 2 > HISTORY_ROOMS)
        return false;
    if (partition_standing_move(world->standing, stream->room.number, to, period_ns, &room.number, NULL) !=
        CORE_OK) {
        history_planner_send_plans(world);
        return false;
    }
    history_planner_settle_room(world, &room);
    history_planner_check(world);
    stream->hold_ns = 0;
    if (test_random_chance(&world->random, 60))
        prepare_to_hold(world, stream, &room);
    stream->next_room = room;
    stream->patience_ns = world->now_ns + test_random_in(&world->random, 0, 4) * stream->spec.latency_ns;
    bool gives_up = test_random_chance(&world->random, 20);
    core_ns hold_ns = hold_from_ns(world, stream);
    if (hold_ns != CORE_NS_NEVER && !stream->away && test_random_chance(&world->random, 70))
        lie_in_wait(world, stream, to, hold_ns);
    server_transfer_begin(&stream->transfer, hold_ns, gives_up ? stream->patience_ns : CORE_NS_NEVER);
    history_stream_settle(world, stream);
    history_say(world, "stream %u: is to move from unit %u to %u, which is asked for %lld less",
                stream->index, stream->room.unit, to, (long long)stream->hold_ns);
    world->look = true;
    return true;
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
    struct history_room old = stream->room;
    history_count(world, held ? HISTORY_HELD : HISTORY_MOVED);
    if (held && history_on_gpu(world, old.unit))
        history_count(world, HISTORY_HELD_UP);
    history_say(world, "stream %u: is on unit %u%s", stream->index, stream->next_room.unit,
                held ? ", packets were held" : "");
    if (held)
        check_lag(world, stream);
    history_planner_leave(world, &old);
    history_stream_switch(world, stream, held);
    if (stream->hold_ns > 0 && !stream->hasty)
        stop_holding(world, stream->room.number);
    if (history_on_gpu(world, stream->room.unit) && !history_gpu_of(world, stream->room.unit)->up)
        history_stream_lose(world, stream);
}

static void give_up(struct history_world *world, struct history_stream *stream)
{
    history_say(world, "stream %u: stays on unit %u", stream->index, stream->room.unit);
    history_count(world, HISTORY_GIVEN_UP);
    if (stream->hold_ns > 0)
        stop_holding(world, stream->room.number);
    history_planner_leave(world, &stream->next_room);
    stream->next_room.unit = HISTORY_NONE;
    stream->stuck = true;
    history_stream_settle(world, stream);
}

/* Silent from some time on, so that it comes to a rest. */
static void lose_patience(struct history_stream *stream)
{
    if (stream->silent_until_ns < stream->patience_ns)
        stream->silent_until_ns = stream->patience_ns;
}

void history_planner_go_on_moving(struct history_world *world, struct history_stream *stream)
{
    struct server_transfer *transfer = &stream->transfer;
    bool held = transfer->state == SERVER_TRANSFER_HELD;
    if (stream->next_room.unit == HISTORY_NONE || stream->ambush || history_stream_flees(stream))
        return;
    server_transfer_set_ready(transfer, history_planner_in_force(world, &stream->next_room));
    /* Packets on their way to the unit are inside. */
    uint32_t inside = stream->inside + (held || stream->queue == NULL || stream->away ? 0 : 1);
    switch (server_transfer_next(transfer, inside, world->now_ns)) {
    case SERVER_TRANSFER_SWITCH:
        switch_unit(world, stream, held);
        break;
    case SERVER_TRANSFER_HOLD:
        history_stream_settle(world, stream);
        world->look = true; /* what was on its way waits, too: there may be nothing inside */
        break;
    case SERVER_TRANSFER_GIVE_UP:
        give_up(world, stream);
        break;
    default:
        lose_patience(stream);
    }
}

/* ---- changes ---- */

/* A stream with a backup changes at the period that its GPU has: another one may come to nothing, and its d_g
 * would be what the new one gives. */
static bool may_change(struct history_world *world, const struct history_stream *stream,
                       const struct core_stream_spec *spec)
{
    struct partition_standing_placement placement;
    return partition_standing_change_query(world->standing, stream->room.number, spec, false, &placement,
                                           NULL) == CORE_OK &&
           (stream->room.backup == HISTORY_NONE || !placement.accepted || !placement.new_period);
}

void history_planner_change(struct history_world *world, struct history_stream *stream,
                            const struct core_stream_spec *spec)
{
    struct partition_standing_placement placement;
    struct history_change *change = &stream->change;
    if (stream->state != HISTORY_OPEN || stream->next_room.unit != HISTORY_NONE || stream->hasty ||
        stream->stuck || stream->away || stream->restoring || history_stream_flees(stream) || change->asked ||
        change->joined || !may_change(world, stream, spec) ||
        partition_standing_change(world->standing, stream->room.number, spec, &placement, NULL) != CORE_OK)
        return;
    if (!placement.accepted) {
        history_planner_send_plans(world);
        history_count(world, HISTORY_UNCHANGED);
        return;
    }
    struct history_room force = stream->room;
    if (history_on_gpu(world, stream->room.unit))
        history_planner_note_plans(world, &force);
    history_planner_check(world);
    *change = (struct history_change){.asked = true, .spec = *spec, .task = placement.task, .force = force};
    change->joined = placement.joined;
    stream->patience_ns = world->now_ns + test_random_in(&world->random, 0, 4) * stream->spec.latency_ns;
    history_say(world, "stream %u: asks for interval %lld, burst %u, latency %lld", stream->index,
                (long long)spec->interval_ns, spec->burst_packets, (long long)spec->latency_ns);
    world->look = true;
}

static void settle(struct history_world *world, struct history_stream *stream)
{
    struct perfmodel_cpu_task task = {0};
    partition_standing_settle(world->standing, stream->room.number);
    if (history_on_gpu(world, stream->room.unit)) {
        history_planner_note_plans(world, &stream->room);
    } else {
        TEST_REQUIRE(perfmodel_cpu_task_from(&stream->spec, &world->machine.profile, &task, NULL) == CORE_OK);
        history_stream_serve(world, stream, &task);
    }
    stream->change.joined = false;
    world->roomier = true;
    history_count(world, HISTORY_SETTLED);
    history_planner_check(world);
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
    if (change->asked && history_planner_in_force(world, &change->force)) {
        change->asked = false;
        stream->room.plan = change->force.plan;
        stream->room.backup = change->force.backup;
        stream->room.backup_plan = change->force.backup_plan;
        history_stream_change(world, stream);
        history_count(world, HISTORY_CHANGED);
        history_say(world, "stream %u: has its new contract%s", stream->index,
                    change->joined ? ", the old one still weighs" : "");
    }
    bool paused = world->fault == HISTORY_SETTLE_AT_ONCE || history_planner_may_leave(world, &change->before);
    if (!change->asked && change->joined && paused)
        settle(world, stream);
}

/* At a gap; the unit is charged for the latency bound alone when it has paused. */
void history_planner_relax(struct history_world *world, struct history_stream *stream)
{
    bool on_gpu = history_on_gpu(world, stream->room.unit);
    if (!stream->hasty || history_stream_flees(stream) || stream->queue != NULL ||
        (!on_gpu && stream->inside > 0) || !server_pace_caught_up(&stream->pace, true, world->now_ns))
        return;
    stream->hasty = false;
    history_stream_serve_for(world, stream, stream->spec.latency_ns);
    stream->change = (struct history_change){.joined = true, .spec = stream->spec, .before = stream->room};
    stream->patience_ns = world->now_ns + stream->spec.latency_ns;
}
