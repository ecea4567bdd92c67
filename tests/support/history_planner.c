/* Histories: the planner. What server/planner/planner.c does. */
#include "tests/support/history_world.h"
#include "tests/support/require.h"

#include <stdlib.h>
#include <string.h>

#define ASKED_ENOUGH 48 /* a newcomer who waits goes away */

#define IO 0 /* there is one I/O thread, with all the room in the world */

bool history_on_gpu(const struct history_world *world, uint32_t unit)
{
    return unit >= world->machine.workers;
}

uint32_t history_gpu_number(const struct history_world *world, uint32_t unit)
{
    return unit - world->machine.workers;
}

struct history_gpu *history_gpu_of(struct history_world *world, uint32_t unit)
{
    return &world->gpu[history_gpu_number(world, unit)];
}

const struct partition_gpu_plan *history_batches_of(const struct history_world *world, uint32_t unit)
{
    return partition_standing_batches(world->standing, history_gpu_number(world, unit));
}

/* ---- plans of GPUs ---- */

static void count_period(struct history_world *world, uint32_t g, core_ns before_ns, core_ns period_ns)
{
    if (before_ns == 0 || period_ns == 0 || before_ns == period_ns)
        return;
    history_count(world, period_ns < before_ns ? HISTORY_SHRUNK : HISTORY_GREW);
    history_say(world, "GPU %u: period %lld after %lld", g, (long long)period_ns, (long long)before_ns);
}

void history_planner_send_plans(struct history_world *world)
{
    for (uint32_t g = 0; g < world->machine.gpu_count; g++) {
        const struct partition_gpu_plan *plan = partition_standing_batches(world->standing, g);
        if (plan->number == world->sent[g].number)
            continue;
        count_period(world, g, world->sent[g].period_ns, plan->period_ns);
        world->sent[g] = *plan;
        history_gpu_plan(&world->gpu[g], plan, world->now_ns);
        world->wake_ns[HISTORY_SOURCES + g] = history_gpu_next_ns(&world->gpu[g]);
    }
}

void history_planner_retune(struct history_world *world, uint32_t g)
{
    struct partition_standing_words words;
    core_ns before_ns = partition_standing_gpu_at(world->standing, g).period_ns, after_ns;
    if (!world->gpu[g].up || before_ns == 0 || !partition_standing_retune(world->standing, g, &after_ns))
        return;
    if (!partition_standing_plan_batches(world->standing, g, &words)) {
        history_count(world, HISTORY_UNPROVEN);
        TEST_REQUIRE(partition_standing_set_period(world->standing, g, before_ns));
    }
    if (partition_standing_batches(world->standing, g)->period_ns > before_ns)
        history_count(world, HISTORY_RETUNED);
    history_planner_send_plans(world);
    history_planner_check(world);
    world->look = true;
}

void history_planner_note_plans(struct history_world *world, struct history_room *room)
{
    history_planner_send_plans(world);
    if (history_on_gpu(world, room->unit))
        room->plan = history_batches_of(world, room->unit)->number;
    room->backup = partition_standing_stream_of(world->standing, room->number).backup_unit;
    if (room->backup != HISTORY_NONE && history_on_gpu(world, room->backup))
        room->backup_plan = history_batches_of(world, room->backup)->number;
}

static bool gpu_in_force(struct history_world *world, uint32_t unit, uint64_t plan)
{
    if (!history_on_gpu(world, unit))
        return true;
    const struct history_gpu *gpu = history_gpu_of(world, unit);
    return gpu->up && (world->fault == HISTORY_OPEN_AT_ONCE || plan <= gpu->in_force);
}

bool history_planner_in_force(struct history_world *world, const struct history_room *room)
{
    return gpu_in_force(world, room->unit, room->plan) &&
           (room->backup == HISTORY_NONE || gpu_in_force(world, room->backup, room->backup_plan));
}

/* ---- rooms ---- */

static void give_back(struct history_world *world, const struct history_room *room)
{
    partition_standing_release(world->standing, room->number);
    history_planner_send_plans(world);
    if (world->newcomer.old_number == room->number)
        world->newcomer.old_number = HISTORY_NONE;
    history_count(world, HISTORY_RELEASED);
    history_planner_check(world);
}

void history_planner_leave(struct history_world *world, const struct history_room *room)
{
    TEST_REQUIRE(world->leaving_count < HISTORY_ROOMS);
    world->leaving[world->leaving_count++] = *room;
    world->look = true;
}

bool history_planner_may_leave(struct history_world *world, const struct history_room *room)
{
    if (!room->worked || world->fault == HISTORY_RELEASE_AT_ONCE)
        return true;
    if (history_on_gpu(world, room->unit))
        return history_gpu_of(world, room->unit)->paused_least > room->batch;
    return world->worker[room->unit].pauses > room->pauses;
}

static bool sweep(struct history_world *world)
{
    bool given = false;
    for (size_t i = 0; i < world->leaving_count;) {
        struct history_room room = world->leaving[i];
        if (!history_planner_may_leave(world, &room)) {
            i++;
            continue;
        }
        world->leaving[i] = world->leaving[--world->leaving_count];
        give_back(world, &room);
        given = true;
    }
    return given;
}

/* ---- newcomers ---- */

static struct history_stream *free_stream(struct history_world *world)
{
    for (uint32_t i = 0; i < HISTORY_SOURCES; i++)
        if (world->stream[i].state == HISTORY_FREE) {
            world->streams_high = i < world->streams_high ? world->streams_high : i + 1;
            return &world->stream[i];
        }
    return NULL;
}

void history_planner_settle_room(struct history_world *world, struct history_room *room)
{
    room->worked = false;
    room->batch = room->pauses = room->plan = room->backup_plan = 0;
    room->backup = HISTORY_NONE;
    if (history_on_gpu(world, room->unit))
        history_planner_note_plans(world, room);
}

static bool admit(struct history_world *world, const struct core_stream_spec *spec)
{
    struct partition_standing_placement placement;
    struct history_stream *stream = free_stream(world);
    if (stream == NULL || partition_standing_streams(world->standing) + 2 > HISTORY_ROOMS)
        return false;
    TEST_REQUIRE(partition_standing_query(world->standing, spec, IO, false, &placement, NULL) == CORE_OK);
    if (!placement.accepted)
        return false;
    TEST_REQUIRE(partition_standing_admit(world->standing, spec, IO, stream->index, &placement, NULL) ==
                 CORE_OK);
    TEST_REQUIRE(placement.accepted); /* what a query answers holds until something changes */
    struct history_room room = {.number = placement.stream, .unit = placement.unit, .spec = *spec};
    history_planner_settle_room(world, &room);
    history_planner_check(world);
    *stream = (struct history_stream){.state = HISTORY_OPENING,
                                      .index = stream->index,
                                      .spec = *spec,
                                      .room = room,
                                      .next_room.unit = HISTORY_NONE,
                                      .cpu = stream->cpu,
                                      .home = HISTORY_NONE,
                                      .flee_ns = CORE_NS_NEVER,
                                      .arrived_ns = INT64_MIN,
                                      .go_ns = CORE_NS_NEVER};
    history_count(world, HISTORY_OPENED);
    if (!history_planner_in_force(world, &room))
        history_count(world, HISTORY_WAITED);
    history_say(world, "stream %u: %u bytes, interval %lld, burst %u, latency %lld on unit %u%s",
                stream->index, spec->packet_bytes, (long long)spec->interval_ns, spec->burst_packets,
                (long long)spec->latency_ns, room.unit,
                history_planner_in_force(world, &room) ? "" : ", waits for its period");
    world->look = true;
    return true;
}

static const struct partition_plan_method *any_method(struct history_world *world)
{
    static const char *const names[] = {"rectangle", "min-rate", "max-deadline"};
    const struct partition_plan_method *method =
        partition_plan_method_find(names[test_random_in(&world->random, 0, 2)]);
    TEST_REQUIRE(method != NULL);
    return method;
}

/* Room is made by moves in turn, or not at all. */
static void ask_for_moves(struct history_world *world, const struct core_stream_spec *spec)
{
    struct partition_standing_proposal proposal;
    struct history_newcomer *newcomer = &world->newcomer;
    TEST_REQUIRE(partition_standing_replan(world->standing, any_method(world), spec, IO, &proposal, NULL) ==
                 CORE_OK);
    if (!proposal.accepted)
        return;
    history_say(world, "%zu moves for a newcomer", proposal.moves);
    *newcomer = (struct history_newcomer){
        .waits = true, .spec = *spec, .proposal = proposal, .old_number = HISTORY_NONE};
    world->look = true;
}

void history_planner_wait(struct history_world *world, const struct core_stream_spec *spec)
{
    if (world->waiting_count < HISTORY_WAITERS)
        world->waiting[world->waiting_count++] = (struct history_waiter){.spec = *spec};
}

static void admit_waiting(struct history_world *world)
{
    size_t kept = 0;
    for (size_t i = 0; i < world->waiting_count; i++)
        if (!admit(world, &world->waiting[i].spec) && ++world->waiting[i].asked < ASKED_ENOUGH)
            world->waiting[kept++] = world->waiting[i];
    world->waiting_count = kept;
}

void history_planner_open(struct history_world *world, const struct core_stream_spec *spec)
{
    if (admit(world, spec))
        return;
    history_count(world, HISTORY_REFUSED);
    if (world->now_ns > world->start_ns && !world->newcomer.waits && test_random_chance(&world->random, 10))
        ask_for_moves(world, spec);
}

static void forget_newcomer(struct history_world *world)
{
    free(world->newcomer.proposal.move);
    world->newcomer = (struct history_newcomer){.old_number = HISTORY_NONE};
    for (uint32_t i = 0; i < HISTORY_SOURCES; i++)
        world->stream[i].of_plan = false;
}

/* The next move, once the room of the one before is free. */
static void go_on_with_newcomer(struct history_world *world)
{
    struct history_newcomer *newcomer = &world->newcomer;
    if (!newcomer->waits || newcomer->old_number != HISTORY_NONE)
        return;
    if (newcomer->moved == newcomer->proposal.moves) {
        if (admit(world, &newcomer->spec))
            history_count(world, HISTORY_REPLANNED);
        forget_newcomer(world);
        return;
    }
    const struct partition_standing_move *move = &newcomer->proposal.move[newcomer->moved];
    struct history_stream *stream = &world->stream[move->handle];
    if (stream->room.number != move->stream ||
        !history_planner_move(world, stream, move->to, move->period_ns)) {
        forget_newcomer(world);
        return;
    }
    stream->of_plan = true;
    newcomer->old_number = stream->room.number;
    newcomer->moved++;
}

/* ---- the look ---- */

static void end_stream(struct history_world *world, struct history_stream *stream)
{
    history_planner_leave(world, &stream->room);
    if (stream->home != HISTORY_NONE)
        history_planner_shelter(world, &stream->room);
    if (stream->next_room.unit != HISTORY_NONE)
        history_planner_leave(world, &stream->next_room);
    stream->state = HISTORY_FREE;
    stream->room.number = HISTORY_NONE;
    world->wake_ns[stream->index] = CORE_NS_NEVER; /* it may have waited for its device */
    history_count(world, HISTORY_CLOSED);
}

static void look_at_stream(struct history_world *world, struct history_stream *stream)
{
    if (stream->state == HISTORY_OPENING && history_planner_in_force(world, &stream->room))
        history_stream_open(world, stream);
    else if (stream->state == HISTORY_OPEN) {
        history_planner_go_home(world, stream);
        history_planner_go_on_moving(world, stream);
        history_planner_relax(world, stream);
        history_planner_go_on_changing(world, stream);
    } else if (stream->state == HISTORY_CLOSING) {
        if (stream->transfer.state == SERVER_TRANSFER_HELD)
            history_planner_go_on_moving(world, stream); /* what is held goes to the new unit */
        if (history_stream_rests(stream) && stream->packet == NULL)
            end_stream(world, stream);
    }
}

static bool awaits(const struct history_world *world)
{
    if (world->leaving_count > 0 || world->shelter_count > 0 || world->newcomer.waits)
        return true;
    for (uint32_t i = 0; i < world->streams_high; i++) {
        const struct history_stream *stream = &world->stream[i];
        if (stream->state == HISTORY_OPENING || stream->state == HISTORY_CLOSING ||
            (stream->state == HISTORY_OPEN &&
             (stream->next_room.unit != HISTORY_NONE || stream->hasty || stream->home != HISTORY_NONE ||
              stream->change.asked || stream->change.joined)))
            return true;
    }
    return false;
}

void history_planner_look(struct history_world *world)
{
    while (world->look && !world->failed) {
        world->look = false;
        for (uint32_t i = 0; i < world->streams_high; i++)
            look_at_stream(world, &world->stream[i]);
        if (sweep(world) || world->roomier)
            admit_waiting(world);
        world->roomier = false;
        go_on_with_newcomer(world);
        history_planner_sweep_shelters(world);
    }
    while (world->streams_high > 0 && world->stream[world->streams_high - 1].state == HISTORY_FREE)
        world->streams_high--;
    world->awaits = awaits(world);
}
