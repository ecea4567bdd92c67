/* Histories: devices that go and come, and what becomes of their streams. */
#include "tests/support/history_world.h"
#include "tests/support/require.h"

/* A stand-by takes what has no backup, without a promise. */
static bool gone(const struct history_world *world, uint32_t unit)
{
    return history_on_gpu(world, unit) && !world->gpu[history_gpu_number(world, unit)].up;
}

/* What is held for a loss is held for one at a time: another is covered once all are home again, and the
 * units that took them have paused. */
static bool loss_weighs(const struct history_world *world)
{
    if (world->shelter_count > 0)
        return true;
    for (uint32_t g = 0; g < world->machine.gpu_count; g++)
        if (!world->gpu[g].up)
            return true;
    for (uint32_t i = 0; i < world->streams_high; i++)
        if (world->stream[i].state != HISTORY_FREE &&
            (world->stream[i].home != HISTORY_NONE || world->stream[i].flee_ns != CORE_NS_NEVER))
            return true;
    return false;
}

static bool is_there(const struct history_stream *stream, uint32_t unit)
{
    return (stream->state == HISTORY_OPEN || stream->state == HISTORY_CLOSING) && stream->room.unit == unit;
}

/* ---- away ---- */

/* A migration comes to nothing: the old reservation has the backup. */
static void stay(struct history_world *world, struct history_stream *stream)
{
    if (stream->next_room.unit == HISTORY_NONE)
        return;
    partition_planner_moved(world->planner, stream->next_room.number, PARTITION_PLANNER_STAYED, false);
    history_planner_retire_unused(world, stream->next_room.number);
    stream->next_room.unit = HISTORY_NONE;
    stream->path = SERVER_PATH_WORKER;
    history_count(world, HISTORY_GIVEN_UP);
}

static void begin_flight(struct history_world *world, struct history_stream *stream)
{
    core_ns most_ns = admission_stream_of(world->admission, stream->room.number).detection_ns;
    core_ns after_ns =
        test_random_chance(&world->random, 60) ? most_ns : test_random_in(&world->random, 0, most_ns);
    if (world->fault == HISTORY_FLEE_LATE)
        after_ns += stream->spec.latency_ns / 2;
    stay(world, stream);
    stream->ambush = false;
    stream->flee_ns = world->now_ns + after_ns;
    history_stream_settle(world, stream);
}

static bool may_flee(const struct history_world *world, const struct history_stream *stream)
{
    uint32_t backup = admission_stream_of(world->admission, stream->room.number).backup_unit;
    return backup != ADMISSION_NONE && !gone(world, backup) && !stream->restoring;
}

static void lose_packets(struct history_world *world, struct history_packet *packet)
{
    for (struct history_packet *next; packet != NULL; packet = next) {
        next = packet->next;
        if (packet->stream->flee_ns != CORE_NS_NEVER)
            history_packet_again(world, packet);
        else
            history_packet_lost(world, packet);
    }
}

void history_planner_lose(struct history_world *world, uint32_t g)
{
    uint32_t unit = world->machine.workers + g;
    bool covered = !loss_weighs(world);
    struct history_packet *lost = history_gpu_lose(&world->gpu[g], world->now_ns);
    history_count(world, HISTORY_LOST);
    history_say(world, "GPU %u: is lost%s", g, covered ? "" : ", and another loss weighs still");
    for (uint32_t i = 0; i < world->streams_high; i++) {
        struct history_stream *stream = &world->stream[i];
        if (is_there(stream, unit) && covered && may_flee(world, stream))
            begin_flight(world, stream);
    }
    lose_packets(world, lost);
    for (uint32_t i = 0; i < world->streams_high; i++) {
        struct history_stream *stream = &world->stream[i];
        if (is_there(stream, unit) && stream->flee_ns == CORE_NS_NEVER)
            history_stream_lose(world, stream);
    }
    world->wake_ns[HISTORY_SOURCES + g] = history_gpu_next_ns(&world->gpu[g]);
    history_planner_check(world);
    world->look = true;
}

void history_planner_flee(struct history_world *world, struct history_stream *stream)
{
    uint32_t backup = admission_stream_of(world->admission, stream->room.number).backup_unit;
    stream->flee_ns = CORE_NS_NEVER;
    if (gone(world, backup)) { /* a second loss */
        history_stream_lose(world, stream);
        return;
    }
    history_count(world, HISTORY_FLED);
    history_say(world, "stream %u: is served by its backup, unit %u", stream->index, backup);
    stream->home = stream->room.unit;
    stream->room.unit = backup;
    history_stream_arrive(world, stream);
}

/* ---- home ---- */

/* The stand-by has returned what it had, and the first batch has begun. */
static core_ns stood_by_until_ns(struct history_world *world, uint32_t g, const struct history_stream *stream)
{
    core_ns until_ns = world->now_ns + test_random_in(&world->random, 0, 2 * stream->spec.latency_ns);
    return core_time_max(until_ns, world->gpu[g].from_ns);
}

void history_planner_return(struct history_world *world, uint32_t g)
{
    uint32_t unit = world->machine.workers + g;
    history_count(world, HISTORY_RETURNED);
    history_say(world, "GPU %u: is back", g);
    history_gpu_return(&world->gpu[g], world->now_ns);
    for (uint32_t i = 0; i < HISTORY_SOURCES; i++) {
        struct history_stream *stream = &world->stream[i];
        if (is_there(stream, unit) && stream->away)
            history_stream_return(world, stream, stood_by_until_ns(world, g, stream));
        if (stream->home == unit)
            stream->silent_from_ns =
                world->now_ns + test_random_in(&world->random, 0, 4) * stream->spec.latency_ns;
    }
    world->wake_ns[HISTORY_SOURCES + g] = history_gpu_next_ns(&world->gpu[g]);
    world->look = true;
}

/* At a moment with nothing inside: what comes from then on comes as the contract allows. */
void history_planner_go_home(struct history_world *world, struct history_stream *stream)
{
    struct history_room home = stream->room;
    home.unit = stream->home;
    home.backup = HISTORY_NONE;
    if (stream->home == HISTORY_NONE || stream->away || stream->restoring ||
        !history_planner_in_force(world, &home))
        return;
    if (!history_stream_rests(stream)) {
        if (stream->silent_from_ns <= world->now_ns && stream->silent_until_ns <= world->now_ns)
            stream->silent_until_ns = world->now_ns + stream->spec.latency_ns;
        return;
    }
    history_planner_shelter(world, &stream->room);
    stream->sheltered = stream->room.worked;
    stream->shelter_mark = history_planner_use(world, stream).backup_mark;
    history_count(world, HISTORY_CAME_HOME);
    history_say(world, "stream %u: is on unit %u again", stream->index, stream->home);
    stream->room.unit = stream->home;
    stream->home = HISTORY_NONE;
    history_stream_arrive(world, stream);
}

void history_planner_shelter(struct history_world *world, const struct history_room *room)
{
    TEST_REQUIRE(world->shelter_count < HISTORY_ROOMS);
    world->shelter[world->shelter_count++] = *room;
}

void history_planner_sweep_shelters(struct history_world *world)
{
    for (size_t i = 0; i < world->shelter_count;)
        if (history_planner_is_over(world, &world->shelter[i]))
            world->shelter[i] = world->shelter[--world->shelter_count];
        else
            i++;
}
