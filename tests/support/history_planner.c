/* Histories: the host of the planner (partition/planner/planner.h), in virtual time. */
#include "tests/support/history_world.h"
#include "tests/support/require.h"

#include <stdlib.h>

#define ASKED_ENOUGH 48 /* a request that waits goes away */
#define SELDOM_NS    (INT64_C(1) << 60)

#define IO 0 /* there is one I/O thread, with all the capacity in the world */

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

/* ---- what the planner sees ---- */

static bool is_quiescent(void *host, uint32_t unit, uint64_t mark)
{
    struct history_world *world = host;

    return history_on_gpu(world, unit) ? history_gpu_of(world, unit)->paused_least > mark
                                       : world->worker[unit].pauses > mark;
}

static bool in_service(void *host, uint32_t gpu)
{
    return ((struct history_world *)host)->gpu[gpu].up;
}

static uint64_t plan_in_force(void *host, uint32_t gpu)
{
    const struct history_world *world = host;

    return world->fault == HISTORY_OPEN_AT_ONCE ? world->sent[gpu].number : world->gpu[gpu].in_force;
}

/* ---- what it does ---- */

static void count_period(struct history_world *world, uint32_t g, core_ns before_ns, core_ns period_ns)
{
    if (before_ns == 0 || period_ns == 0 || before_ns == period_ns)
        return;
    history_count(world, period_ns < before_ns ? HISTORY_SHRUNK : HISTORY_GREW);
    history_say(world, "GPU %u: period %lld after %lld", g, (long long)period_ns, (long long)before_ns);
}

static bool put_plan(void *host, uint32_t gpu, const struct partition_gpu_plan *plan)
{
    struct history_world *world = host;

    count_period(world, gpu, world->sent[gpu].period_ns, plan->period_ns);
    world->sent[gpu] = *plan;
    history_gpu_plan(&world->gpu[gpu], plan, world->now_ns);
    world->wake_ns[HISTORY_SOURCES + gpu] = history_gpu_next_ns(&world->gpu[gpu]);
    return true;
}

static bool plan_lacks(void *host, uint32_t gpu, uint64_t number)
{
    (void)host;
    (void)gpu;
    (void)number;
    return false;
}

static void agreed(void *host, void *change, bool lacking)
{
    (void)lacking;
    ((struct history_stream *)change)->change.agreed = true;
    ((struct history_world *)host)->look = true;
}

static void reclaimed(void *host, void *owner, bool superseded)
{
    struct history_world *world = host;

    (void)owner;
    (void)superseded;
    if (world->over)
        return;
    history_count(world, HISTORY_RELEASED);
    world->roomier = world->look = true;
}

static void charged(void *host, uint32_t unit, uint32_t io)
{
    (void)unit;
    (void)io;
    history_planner_check(host);
}

static void search(void *host, struct partition_planner_search *wanted)
{
    ((struct history_world *)host)->search = wanted;
}

static void service(void *host, uint32_t gpu, bool out)
{
    (void)host;
    (void)gpu;
    (void)out;
}

static void retuned(void *host, uint32_t gpu, core_ns before_ns, core_ns after_ns)
{
    (void)gpu;
    (void)before_ns;
    (void)after_ns;
    history_count(host, HISTORY_RETUNED);
    history_planner_check(host);
}

/* ---- reservations ---- */

void history_planner_note_plans(struct history_world *world, struct history_room *room)
{
    const struct partition_planner_plans plans = partition_planner_plans_of(world->planner, room->number);

    room->plan = plans.number[0];
    room->backup = admission_stream_of(world->admission, room->number).backup_unit;
    room->backup_plan = plans.number[1];
}

static bool gpu_in_force(struct history_world *world, uint32_t unit, uint64_t plan)
{
    if (!history_on_gpu(world, unit))
        return true;
    return in_service(world, history_gpu_number(world, unit)) &&
           plan <= plan_in_force(world, history_gpu_number(world, unit));
}

bool history_planner_in_force(struct history_world *world, const struct history_room *room)
{
    return gpu_in_force(world, room->unit, room->plan) &&
           (room->backup == HISTORY_NONE || gpu_in_force(world, room->backup, room->backup_plan));
}

static uint64_t mark_of(const struct history_world *world, const struct history_room *room)
{
    return history_on_gpu(world, room->unit) ? room->batch : room->pauses;
}

bool history_planner_is_over(struct history_world *world, const struct history_room *room)
{
    return !room->worked || is_quiescent(world, room->unit, mark_of(world, room));
}

struct partition_planner_use history_planner_use(const struct history_world *world,
                                                 const struct history_stream *stream)
{
    const struct history_room *room = &stream->room;
    uint64_t mark = mark_of(world, room);

    if (stream->home != HISTORY_NONE) /* at its backup; the unit that was lost has no packet of it */
        return (struct partition_planner_use){.backup_used = room->worked, .backup_mark = mark};
    return (struct partition_planner_use){.used = room->worked,
                                          .mark = mark,
                                          .backup_used = stream->sheltered,
                                          .backup_mark = stream->shelter_mark};
}

void history_planner_retire(struct history_world *world, const struct history_stream *stream)
{
    struct partition_planner_use use = history_planner_use(world, stream);

    if (world->fault == HISTORY_RELEASE_AT_ONCE)
        use = (struct partition_planner_use){.used = false};
    partition_planner_retire(world->planner, stream->room.number, &use);
    world->look = true;
}

void history_planner_retire_unused(struct history_world *world, uint32_t number)
{
    partition_planner_retire(world->planner, number, &(struct partition_planner_use){.used = false});
    world->look = true;
}

/* ---- requests ---- */

static struct history_stream *free_stream(struct history_world *world)
{
    for (uint32_t i = 0; i < HISTORY_SOURCES; i++)
        if (world->stream[i].state == HISTORY_FREE) {
            world->streams_high = i < world->streams_high ? world->streams_high : i + 1;
            return &world->stream[i];
        }
    return NULL;
}

static bool fits(void *context, uint32_t unit, bool *movable)
{
    struct history_world *world = context;

    *movable = history_on_gpu(world, unit) || test_random_chance(&world->random, 95);
    return true;
}

static void begin(struct history_world *world, struct history_stream *stream,
                  const struct core_stream_spec *spec, const struct admission_placement *placement)
{
    *stream = (struct history_stream){.state = HISTORY_OPENING,
                                      .index = stream->index,
                                      .spec = *spec,
                                      .room = {.number = placement->stream, .unit = placement->unit},
                                      .next_room.unit = HISTORY_NONE,
                                      .cpu = stream->cpu,
                                      .home = HISTORY_NONE,
                                      .flee_ns = CORE_NS_NEVER,
                                      .arrived_ns = INT64_MIN,
                                      .go_ns = CORE_NS_NEVER};
    history_planner_note_plans(world, &stream->room);
    history_count(world, HISTORY_OPENED);
    bool waits = !history_planner_in_force(world, &stream->room);
    if (waits)
        history_count(world, HISTORY_WAITED);
    history_say(world, "stream %u: %u bytes, interval %lld, burst %u, latency %lld on unit %u%s",
                stream->index, spec->packet_bytes, (long long)spec->interval_ns, spec->burst_packets,
                (long long)spec->latency_ns, placement->unit, waits ? ", waits for its period" : "");
    world->look = true;
}

static bool admit(struct history_world *world, const struct core_stream_spec *spec)
{
    const struct partition_planner_memory memory = {.fits = fits, .context = world};
    struct admission_placement asked, placement;
    struct history_stream *stream = free_stream(world);

    if (stream == NULL || admission_streams(world->admission) + 2 > HISTORY_ROOMS)
        return false;
    partition_planner_step(world->planner, world->now_ns);
    TEST_REQUIRE(admission_query(world->admission, spec, IO, false, &asked, NULL) == CORE_OK);
    if (!asked.accepted) /* a refusal would be explained at length */
        return false;
    TEST_REQUIRE(partition_planner_admit(world->planner, spec, IO, &memory, stream, &placement) == CORE_OK);
    TEST_REQUIRE(placement.accepted); /* what a query answers holds until something changes */
    begin(world, stream, spec, &placement);
    return true;
}

/* The planner's own state is between two of its steps: it is not stepped here. */
static void admit_waiting(void *host, void *request)
{
    struct history_world *world = host;
    const struct partition_planner_memory memory = {.fits = fits, .context = world};
    struct admission_placement placement;
    struct history_stream *stream = free_stream(world);

    ((struct history_request *)request)->waits = false;
    if (stream == NULL || admission_streams(world->admission) + 2 > HISTORY_ROOMS)
        return;
    TEST_REQUIRE(partition_planner_admit(world->planner, &world->request.spec, IO, &memory, stream,
                                         &placement) == CORE_OK);
    TEST_REQUIRE(placement.accepted);
    begin(world, stream, &world->request.spec, &placement);
    history_count(world, HISTORY_REPLANNED);
}

static void refuse(void *host, void *request, enum partition_planner_refusal why)
{
    (void)host;
    (void)why;
    ((struct history_request *)request)->waits = false;
}

static bool still_waits(void *host, void *request)
{
    (void)request;
    return test_random_chance(&((struct history_world *)host)->random, 99);
}

static void wait_for_migrations(struct history_world *world, const struct core_stream_spec *spec)
{
    world->request = (struct history_request){.waits = true, .spec = *spec};
    TEST_REQUIRE(partition_planner_wait(world->planner, spec, IO, &world->request, world->now_ns));
    world->look = true;
}

static const struct partition_plan_method *any_method(struct history_world *world)
{
    static const char *const names[] = {"rectangle", "min-rate", "max-deadline"};
    const struct partition_plan_method *method =
        partition_plan_method_find(names[test_random_in(&world->random, 0, 2)]);
    TEST_REQUIRE(method != NULL);
    return method;
}

/* It may take its time. */
static void make_search(struct history_world *world)
{
    struct partition_planner_search *wanted = world->search;

    if (wanted == NULL || test_random_chance(&world->random, 30))
        return;
    world->search = NULL;
    TEST_REQUIRE(admission_replan(wanted->copy, any_method(world), &wanted->spec, wanted->io,
                                  &wanted->proposal, NULL) == CORE_OK);
    if (wanted->proposal.accepted)
        history_say(world, "%zu migrations for a request", wanted->proposal.moves);
    partition_planner_found(world->planner, wanted, world->now_ns);
    world->look = true;
}

void history_planner_wait(struct history_world *world, const struct core_stream_spec *spec)
{
    if (world->waiting_count < HISTORY_WAITERS)
        world->waiting[world->waiting_count++] = (struct history_waiter){.spec = *spec};
}

static void open_waiting(struct history_world *world)
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
    if (world->now_ns > world->start_ns && !world->request.waits && test_random_chance(&world->random, 10) &&
        partition_planner_may_help(world->planner, PERFMODEL_LIMIT_CPU_DEMAND))
        wait_for_migrations(world, spec);
}

/* ---- the look ---- */

static void drop_migrations(struct history_world *world)
{
    while (world->dropped_count > 0) {
        uint32_t number = world->dropped[--world->dropped_count];
        partition_planner_moved(world->planner, number, PARTITION_PLANNER_GONE, false);
        history_planner_retire_unused(world, number);
    }
}

static void end_stream(struct history_world *world, struct history_stream *stream)
{
    const struct partition_planner_use unused = {.used = false};

    if (stream->next_room.unit != HISTORY_NONE) {
        partition_planner_moved(world->planner, stream->next_room.number, PARTITION_PLANNER_GONE, false);
        history_planner_retire_unused(world, stream->next_room.number);
    }
    if (stream->change.asked || stream->hasty)
        partition_planner_changed(world->planner, stream->room.number, PARTITION_PLANNER_CLOSING, &unused,
                                  false);
    if (stream->home != HISTORY_NONE)
        history_planner_shelter(world, &stream->room);
    history_planner_retire(world, stream);
    stream->state = HISTORY_FREE;
    stream->room.number = HISTORY_NONE;
    world->wake_ns[stream->index] = CORE_NS_NEVER; /* it may have waited for its device */
    history_count(world, HISTORY_CLOSED);
}

/* Nothing of it is on its way, and the planner owes it no answer. */
static bool may_end(const struct history_stream *stream)
{
    return history_stream_rests(stream) && stream->packet == NULL &&
           (!stream->change.asked || stream->change.agreed);
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
        if (server_path_holds(stream->path))
            history_planner_go_on_moving(world, stream); /* what is held goes to the new unit */
        if (may_end(stream))
            end_stream(world, stream);
    }
}

static bool awaits(const struct history_world *world)
{
    if (partition_planner_waits(world->planner) || world->shelter_count > 0 || world->search != NULL)
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
        partition_planner_step(world->planner, world->now_ns);
        drop_migrations(world);
        for (uint32_t i = 0; i < world->streams_high; i++)
            look_at_stream(world, &world->stream[i]);
        if (world->roomier) {
            world->roomier = false;
            open_waiting(world);
        }
        make_search(world);
        partition_planner_maintain(world->planner, world->now_ns);
        drop_migrations(world);
        history_planner_sweep_shelters(world);
    }
    while (world->streams_high > 0 && world->stream[world->streams_high - 1].state == HISTORY_FREE)
        world->streams_high--;
    world->awaits = awaits(world);
}

/* ---- life ---- */

/* In every other history batch periods grow back whenever nothing is in progress, else never. */
void history_planner_create(struct history_world *world, struct admission *admission)
{
    static const struct partition_planner_host host = {.quiescent = is_quiescent,
                                                       .in_service = in_service,
                                                       .plan_in_force = plan_in_force,
                                                       .put_plan = put_plan,
                                                       .migrate = history_planner_migrate,
                                                       .plan_lacks = plan_lacks,
                                                       .agreed = agreed,
                                                       .reclaimed = reclaimed,
                                                       .charged = charged,
                                                       .search = search,
                                                       .admit = admit_waiting,
                                                       .refuse = refuse,
                                                       .still_waits = still_waits,
                                                       .service = service,
                                                       .retuned = retuned};
    core_ns interval_ns = world->machine.interval_ns;
    bool retunes = world->seed % 2 == 0;
    const struct partition_planner_options options = {
        .workers = world->machine.workers,
        .gpus = world->machine.gpu_count,
        .wait_ns = interval_ns * test_random_in(&world->random, 1, 64),
        .timeout_ns = interval_ns * test_random_in(&world->random, 1, 64),
        .scan_ns = interval_ns * test_random_in(&world->random, 1, 8),
        .retune_ns = retunes ? interval_ns / 4 : SELDOM_NS,
        .calm_ns = retunes ? interval_ns / 4 * test_random_in(&world->random, 0, 4) : SELDOM_NS};

    world->admission = admission;
    TEST_REQUIRE(partition_planner_create(&world->planner, admission, &options, &host, world, NULL) ==
                 CORE_OK);
}
