#include "tests/support/history_world.h"

#include "tests/support/require.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENAS_MIN   10  /* of the server's */
#define LEAVE_TURNS  400 /* until nothing is reserved any more, of an interval each; but twice as long */
#define LEAVE_DOUBLE 25  /* after each so many: what is worked on may have a deadline of minutes */
#define CHANCE       (HISTORY_SOURCES + HISTORY_UNITS)

const char *const history_event_names[HISTORY_EVENTS] = {
    "opened",
    "refused",
    "waited for a period",
    "closed",
    "rooms released",
    "moved at rest",
    "moved with packets held",
    "of these by GPUs",
    "moves given up",
    "contracts changed",
    "changes refused",
    "settled",
    "devices lost",
    "devices back",
    "streams restored",
    "streams served by their backups",
    "home again",
    "periods shrunk",
    "grown",
    "retuned",
    "admitted after migrations",
};

void history_totals_init(struct history_totals *totals)
{
    *totals = (struct history_totals){.least_slack_ppb = {INT64_MAX, INT64_MAX}};
}

/* ---- the story ---- */

static void tell(struct history_world *world, const char *format, va_list arguments)
{
    size_t room = world->text_size - world->text_used;
    int written = snprintf(world->text + world->text_used, room, "%12lld  ",
                           (long long)(world->now_ns - world->start_ns));
    if (written > 0 && (size_t)written < room) {
        int more =
            vsnprintf(world->text + world->text_used + written, room - (size_t)written, format, arguments);
        if (more > 0 && (size_t)(written + more) + 1 < room) {
            world->text_used += (size_t)(written + more);
            world->text[world->text_used++] = '\n';
        }
    }
    world->text[world->text_used < world->text_size ? world->text_used : world->text_size - 1] = '\0';
}

void history_say(struct history_world *world, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    tell(world, format, arguments);
    va_end(arguments);
}

void history_fail(struct history_world *world, const char *format, ...)
{
    va_list arguments;
    if (world->failed)
        return; /* the first is the one to look at */
    world->failed = true;
    va_start(arguments, format);
    tell(world, format, arguments);
    va_end(arguments);
}

void history_count(struct history_world *world, enum history_event event)
{
    world->totals->events[event]++;
}

/* ---- chance ---- */

static struct history_stream *any_open(struct history_world *world)
{
    if (world->streams_high == 0)
        return NULL;
    uint32_t first = (uint32_t)test_random_in(&world->random, 0, world->streams_high - 1);
    for (uint32_t i = 0; i < world->streams_high; i++) {
        struct history_stream *stream = &world->stream[(first + i) % world->streams_high];
        if (stream->state == HISTORY_OPEN)
            return stream;
    }
    return NULL;
}

static void open_any(struct history_world *world)
{
    size_t n = (size_t)test_random_in(&world->random, 0, (int64_t)world->machine.pool_count - 1);
    history_planner_open(world, &world->machine.pool[n]);
}

/* Of a few. */
static struct history_stream *most_urgent(struct history_world *world)
{
    struct history_stream *urgent = any_open(world);
    for (int i = 0; i < 3 && urgent != NULL; i++) {
        struct history_stream *stream = any_open(world);
        if (stream->spec.latency_ns < urgent->spec.latency_ns)
            urgent = stream;
    }
    return urgent;
}

static void close_any(struct history_world *world, bool again)
{
    struct history_stream *stream = again ? most_urgent(world) : any_open(world);
    if (stream == NULL)
        return;
    struct core_stream_spec spec = stream->spec;
    history_say(world, "stream %u: closes", stream->index);
    history_stream_close(world, stream);
    world->look = true;
    if (again)
        history_planner_wait(world, &spec);
}

/* A GPU's period: as it is, or another one. */
static core_ns any_period_ns(struct history_world *world, uint32_t unit, const struct core_stream_spec *spec)
{
    struct admission_gpu gpu = admission_gpu_at(world->admission, unit - world->machine.workers);
    if (gpu.period_ns == 0)
        return 1 + spec->latency_ns / test_random_in(&world->random, 3, 12);
    if (test_random_chance(&world->random, 40))
        return gpu.period_ns;
    return 1 + gpu.period_ns * test_random_in(&world->random, 50, 200) / 100;
}

/* Few fit where they are not: several are asked. */
static void move_any(struct history_world *world)
{
    uint32_t units = world->machine.workers + world->machine.gpu_count;
    for (int tries = 0; tries < 12; tries++) {
        struct history_stream *stream = tries % 2 == 0 ? most_urgent(world) : any_open(world);
        if (stream == NULL)
            return;
        uint32_t to = (uint32_t)test_random_in(&world->random, 0, units - 1);
        core_ns period_ns = history_on_gpu(world, to) ? any_period_ns(world, to, &stream->spec) : 0;
        if (history_planner_move(world, stream, to, period_ns))
            return;
    }
}

static void change_any(struct history_world *world)
{
    struct history_stream *stream = any_open(world);
    if (stream == NULL)
        return;
    struct core_stream_spec spec = stream->spec;
    if (test_random_chance(&world->random, 70))
        spec.interval_ns = 1 + spec.interval_ns * test_random_in(&world->random, 50, 200) / 100;
    if (test_random_chance(&world->random, 50))
        spec.burst_packets = (uint32_t)test_random_in(&world->random, 1, 2 * spec.burst_packets);
    if (test_random_chance(&world->random, 50))
        spec.latency_ns = 1 + spec.latency_ns * test_random_in(&world->random, 50, 200) / 100;
    if (core_stream_spec_check(&spec, NULL) == CORE_OK)
        history_planner_change(world, stream, &spec);
}

/* Asks for less, and others want the room. */
static void shrink(struct history_world *world, struct history_stream *stream)
{
    struct core_stream_spec spec = stream->spec;
    int64_t most = test_random_chance(&world->random, 50) ? 3 : 16;
    history_planner_wait(world, &spec);
    spec.interval_ns *= test_random_in(&world->random, 1, most);
    spec.latency_ns *= test_random_in(&world->random, 1, 3);
    if (test_random_chance(&world->random, 70))
        spec.burst_packets = 1;
    if (core_stream_spec_check(&spec, NULL) == CORE_OK)
        history_planner_change(world, stream, &spec);
}

static void shrink_any(struct history_world *world)
{
    struct history_stream *stream = most_urgent(world);
    if (stream != NULL)
        shrink(world, stream);
}

/* All of a unit's streams, which have just sent their bursts. */
static void squeeze(struct history_world *world)
{
    for (uint32_t i = 0; i < world->streams_high; i++)
        if (world->stream[i].state == HISTORY_OPEN && world->stream[i].room.unit == world->squeezed)
            shrink(world, &world->stream[i]);
}

static void lose_or_return(struct history_world *world)
{
    if (world->machine.gpu_count == 0)
        return;
    uint32_t g = (uint32_t)test_random_in(&world->random, 0, world->machine.gpu_count - 1);
    if (world->gpu[g].up)
        history_planner_lose(world, g);
    else
        history_planner_return(world, g);
}

/* Those that are out come back soon enough. */
static void return_some(struct history_world *world)
{
    for (uint32_t g = 0; g < world->machine.gpu_count; g++)
        if (!world->gpu[g].up && test_random_chance(&world->random, world->machine.guaranteed ? 40 : 20))
            history_planner_return(world, g);
}

/* One unit is as full as it may be, and then its streams ask for less, all at once. */
static void begin_squeeze(struct history_world *world)
{
    struct history_stream *stream = any_open(world);
    core_ns at_ns = world->now_ns + world->machine.interval_ns * test_random_in(&world->random, 4, 12);
    if (stream == NULL)
        return;
    world->squeezed = stream->room.unit;
    history_stream_crowd(world, world->squeezed, at_ns, at_ns);
    world->relays = 1;
    world->relays_kind = HISTORY_SQUEEZES;
    world->wake_ns[CHANCE] = at_ns + test_random_log(&world->random, 1, world->machine.interval_ns / 256);
}

/* Many are silent for a while, in which bursts are earned back, and begin again in the same moment. Soon
 * after that some close or ask for less, and others want their room; or some move. */
static void gather(struct history_world *world)
{
    if (test_random_chance(&world->random, 25)) {
        begin_squeeze(world);
        return;
    }
    core_ns until_ns = world->now_ns + world->machine.interval_ns * test_random_in(&world->random, 1, 12);
    int percent = (int)test_random_in(&world->random, 30, 100);
    for (uint32_t i = 0; i < HISTORY_SOURCES; i++)
        if (world->stream[i].state == HISTORY_OPEN && test_random_chance(&world->random, percent))
            history_stream_behave(world, &world->stream[i], until_ns);
    if (test_random_chance(&world->random, 30))
        return;
    core_ns most_ns = world->machine.interval_ns / 2;
    world->relays = (int)test_random_log(&world->random, 1, 64);
    world->relays_at_once = test_random_chance(&world->random, 50);
    int64_t kind = test_random_in(&world->random, 1, world->machine.guaranteed ? 15 : 8);
    world->relays_kind = kind <= 4   ? HISTORY_CLOSES
                         : kind <= 6 ? HISTORY_MOVES
                         : kind <= 8 ? HISTORY_CHANGES
                                     : HISTORY_LOSSES;
    if (world->relays_kind == HISTORY_LOSSES)
        world->relays = 1;
    world->wake_ns[CHANCE] = until_ns + (test_random_chance(&world->random, 50)
                                             ? test_random_in(&world->random, 1, most_ns)
                                             : test_random_log(&world->random, most_ns / 1024, most_ns));
}

/* Of a history that is played: two bytes decide all that is drawn until it goes on. False: it is over. */
static bool go_on(struct history_world *world)
{
    if (world->tape.bytes == NULL)
        return true;
    if (world->tape.left == 0) {
        world->end_ns = world->now_ns;
        world->wake_ns[CHANCE] = CORE_NS_NEVER;
        return false;
    }
    world->random.state = take(&world->tape) << 8;
    world->random.state |= take(&world->tape);
    return true;
}

static void by_chance(struct history_world *world)
{
    if (!go_on(world))
        return;
    int64_t drawn = test_random_in(&world->random, 1, 100);
    world->wake_ns[CHANCE] =
        world->now_ns + test_random_in(&world->random, 0, 16) * world->machine.interval_ns / 2;
    if (world->relays > 0) {
        do {
            world->relays--;
            if (world->relays_kind == HISTORY_MOVES)
                move_any(world);
            else if (world->relays_kind == HISTORY_CHANGES)
                shrink_any(world);
            else if (world->relays_kind == HISTORY_SQUEEZES)
                squeeze(world);
            else if (world->relays_kind == HISTORY_LOSSES)
                lose_or_return(world);
            else
                close_any(world, true);
        } while (world->relays_at_once && world->relays > 0);
        world->wake_ns[CHANCE] =
            world->now_ns + test_random_log(&world->random, 1, world->machine.interval_ns / 8);
        return;
    }
    if (world->wake_ns[CHANCE] >= world->end_ns)
        world->wake_ns[CHANCE] = CORE_NS_NEVER;
    return_some(world);
    world->look = true; /* what the planner does by time */
    if (drawn <= 28)
        open_any(world);
    else if (drawn <= 48)
        close_any(world, drawn > 40);
    else if (drawn <= 66)
        move_any(world);
    else if (drawn <= 80)
        change_any(world);
    else if (drawn <= 90)
        gather(world);
    else if (drawn <= (world->machine.guaranteed ? 96 : 92))
        lose_or_return(world);
    else {
        struct history_stream *stream = any_open(world);
        if (stream != NULL)
            history_stream_behave(world, stream, world->now_ns);
    }
}

/* ---- time ---- */

static void run_gpu(struct history_world *world, uint32_t g)
{
    struct history_gpu *gpu = &world->gpu[g];
    uint64_t paused = gpu->paused_least, in_force = gpu->in_force, done = gpu->done;
    struct history_packet *packet = history_gpu_run(gpu, world->now_ns), *next;
    for (; packet != NULL; packet = next) {
        next = packet->next;
        history_packet_finished(world, packet, world->now_ns);
    }
    world->totals->batches += gpu->done - done;
    world->look =
        world->look || (world->awaits && (paused != gpu->paused_least || in_force != gpu->in_force));
    world->wake_ns[HISTORY_SOURCES + g] = history_gpu_next_ns(gpu);
}

static void run_worker(struct history_world *world, uint32_t w)
{
    struct history_worker *worker = &world->worker[w];
    uint64_t pauses = worker->pauses;
    if (worker->end_ns == world->now_ns) {
        history_worker_end(worker);
        for (uint32_t i = 0; i < worker->finished_count; i++)
            history_packet_finished(world, (struct history_packet *)worker->finished[i], world->now_ns);
    }
    history_worker_begin(worker, world->now_ns);
    world->look = world->look || (world->awaits && pauses != worker->pauses);
    world->wake_ns[HISTORY_SOURCES + world->machine.gpu_count + w] = worker->end_ns;
}

static void run_next(struct history_world *world, size_t n)
{
    uint32_t unit = (uint32_t)(n - HISTORY_SOURCES), gpus = world->machine.gpu_count;
    if (n < HISTORY_SOURCES)
        history_stream_run(world, &world->stream[n]);
    else if (n == CHANCE)
        by_chance(world);
    else if (unit < gpus)
        run_gpu(world, unit);
    else
        run_worker(world, unit - gpus);
    if (world->look)
        history_planner_look(world);
}

static bool under_way(const struct history_world *world)
{
    for (uint32_t i = 0; i < world->streams_high; i++)
        if (world->stream[i].packet != NULL || !history_stream_rests(&world->stream[i]))
            return true;
    return false;
}

/* The first of the streams, else of the GPUs, else of the workers, else chance. */
static size_t next_to_run(const struct history_world *world)
{
    size_t next = 0;
    for (size_t n = 1; n < world->streams_high; n++)
        if (world->wake_ns[n] < world->wake_ns[next])
            next = n;
    for (size_t n = HISTORY_SOURCES; n <= CHANCE; n++)
        if (world->wake_ns[n] < world->wake_ns[next])
            next = n;
    return next;
}

/* Until then, and until nothing is inside any more. */
static void run(struct history_world *world, const core_ns *until_ns)
{
    while (!world->failed) {
        size_t next = next_to_run(world);
        if (world->wake_ns[next] >= *until_ns && !under_way(world)) {
            world->now_ns = core_time_max(world->now_ns, *until_ns);
            return;
        }
        if (world->wake_ns[next] == CORE_NS_NEVER) {
            history_fail(world, "packets are under way, and nothing is due any more");
            return;
        }
        TEST_REQUIRE(world->wake_ns[next] >= world->now_ns);
        world->now_ns = world->wake_ns[next];
        run_next(world, next);
    }
}

/* All close, and their reservations end as soon as the units have paused. */
static void leave(struct history_world *world)
{
    core_ns until_ns = world->now_ns;
    for (int turns = 0; turns < LEAVE_TURNS && !world->failed && admission_streams(world->admission) > 0;
         turns++) {
        world->waiting_count = 0;
        for (uint32_t g = 0; g < world->machine.gpu_count; g++)
            if (!world->gpu[g].up)
                history_planner_return(world, g);
        for (uint32_t i = 0; i < world->streams_high; i++)
            if (world->stream[i].state == HISTORY_OPEN)
                history_stream_close(world, &world->stream[i]);
        world->look = true;
        history_planner_look(world);
        until_ns += world->machine.interval_ns << turns / LEAVE_DOUBLE;
        run(world, &until_ns);
    }
    if (!world->failed)
        history_planner_check_empty(world);
}

/* ---- the world ---- */

static void create_gpus(struct history_world *world, struct admission *admission,
                        const struct partition_gpu_arenas *shape)
{
    struct history_machine *machine = &world->machine;
    enum pipeline_execution execution =
        (enum pipeline_execution)test_random_in(&world->random, 0, PIPELINE_ANY);
    struct partition_gpu_arenas arenas[CONFIG_PROFILE_GPU_KINDS_MAX];
    uint32_t g = 0;
    if (execution == PIPELINE_LEAST || test_random_chance(&world->random, 50))
        execution = PIPELINE_MOST;
    for (uint32_t kind = 0; kind < machine->profile.gpu_count; kind++) {
        const struct config_profile_gpu *card = &machine->gpus[kind];
        bool busy = machine->gpu_count > 1 || card->copy_engines > 1;
        for (uint32_t i = 0; i < card->count; i++, g++) {
            history_gpu_create(&world->gpu[g], &machine->profile, card, busy, shape->count, execution,
                               test_random_next(&world->random));
            world->gpu[g].hurried = world->fault == HISTORY_BEGIN_AT_ONCE;
            arenas[kind] = *shape;
            arenas[kind].lead_ns = world->gpu[g].lead_ns;
        }
    }
    TEST_REQUIRE(admission_set_arenas(admission, arenas) == CORE_OK);
}

static void create_streams(struct history_world *world)
{
    size_t bytes = history_worker_stream_bytes();
    world->cpu_streams = aligned_alloc(64, HISTORY_SOURCES * bytes);
    TEST_REQUIRE(world->cpu_streams != NULL);
    for (uint32_t i = 0; i < HISTORY_SOURCES; i++) {
        world->stream[i].index = i;
        world->stream[i].room.number = world->stream[i].home = HISTORY_NONE;
        world->stream[i].flee_ns = CORE_NS_NEVER;
        world->stream[i].cpu = (struct cpu_stream *)(void *)(world->cpu_streams + i * bytes);
    }
}

static void create(struct history_world *world)
{
    struct history_machine *machine = &world->machine;
    struct admission *admission;
    struct partition_gpu_arenas shape = {
        .slots = 4096, .segments = 1 << 20, .bytes = UINT64_C(1) << 30, .hang_ns = CORE_NS_NEVER};
    shape.count = (uint32_t)test_random_in(&world->random, ARENAS_MIN, HISTORY_BATCHES);
    history_machine_random(machine, &world->random);
    world->start_ns = world->now_ns = CORE_NS_PER_S;
    world->end_ns = world->start_ns + machine->interval_ns * test_random_log(&world->random, 100, 400);
    for (size_t n = 0; n <= CHANCE; n++)
        world->wake_ns[n] = CORE_NS_NEVER;
    world->wake_ns[CHANCE] = world->now_ns;
    world->small_percent = test_random_chance(&world->random, 70) ? 0 : 20;
    world->early_percent = test_random_chance(&world->random, 60) ? 0 : 40;
    TEST_REQUIRE(admission_create(&admission, &machine->profile, machine->workers, 1, NULL) == CORE_OK);
    admission_set_detection(admission, machine->detection_ns);
    create_gpus(world, admission, &shape);
    history_planner_create(world, admission);
    for (uint32_t w = 0; w < machine->workers; w++)
        TEST_REQUIRE(history_worker_create(&world->worker[w], &machine->profile,
                                           test_random_chance(&world->random, 50) ? 0 : 40,
                                           test_random_next(&world->random)) == CORE_OK);
    create_streams(world);
}

static void free_packets(struct history_made *made)
{
    for (struct history_made *next; made != NULL; made = next) {
        next = made->next;
        free(made);
    }
}

static void destroy(struct history_world *world)
{
    for (uint32_t w = 0; w < world->machine.workers; w++)
        history_worker_destroy(&world->worker[w]);
    world->over = true;
    partition_planner_destroy(world->planner);
    free(world->cpu_streams);
    free_packets(world->made);
}

static void begin(struct history_world *world, struct history_totals *totals, char *text, size_t text_size)
{
    memset(world, 0, sizeof *world);
    world->totals = totals;
    world->text = text;
    world->text_size = text_size;
}

static bool live(struct history_world *world)
{
    create(world);
    size_t first = 2 * world->machine.streams;
    if (world->tape.bytes != NULL)
        first = take(&world->tape) % (world->machine.streams + 1);
    for (size_t n = 0; n < first; n++)
        open_any(world);
    run(world, &world->end_ns);
    leave(world);
    world->totals->histories++;
    world->totals->failed += world->failed;
    world->totals->virtual_ns += world->now_ns - world->start_ns;
    for (uint32_t g = 0; g < world->machine.gpu_count; g++)
        world->totals->held_up += world->gpu[g].held_up;
    destroy(world);
    return !world->failed;
}

static struct history_world the_world; /* too large for a stack */

bool history_run(uint64_t seed, enum history_fault fault, struct history_totals *totals, char *text,
                 size_t text_size)
{
    begin(&the_world, totals, text, text_size);
    the_world.fault = fault;
    the_world.seed = seed;
    the_world.random = (struct test_random){seed};
    the_world.random.state = test_random_next(&the_world.random); /* neighbours have nothing in common */
    return live(&the_world);
}

bool history_play(const uint8_t *bytes, size_t count, struct history_totals *totals, char *text,
                  size_t text_size)
{
    begin(&the_world, totals, text, text_size);
    the_world.tape = (struct tape){bytes, count};
    for (int i = 0; i < 4; i++)
        the_world.random.state = the_world.random.state << 8 | take(&the_world.tape);
    the_world.seed = the_world.random.state;
    return live(&the_world);
}
