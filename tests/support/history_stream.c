/* Histories: what streams send, and what becomes of it. */
#include "perfmodel/cpu.h"
#include "tests/support/history_world.h"
#include "tests/support/require.h"

#include <stdlib.h>

#define RETRY_NS (200 * CORE_NS_PER_US) /* where no batch is open, as the server's */

/* Its packets may be held from some time to come on. */
static bool awaits_holding(const struct history_world *world, const struct history_stream *stream)
{
    return stream->next_room.unit != HISTORY_NONE && !server_path_holds(stream->path) &&
           stream->hold_from_ns > world->now_ns;
}

static void set_wake(struct history_world *world, struct history_stream *stream)
{
    core_ns eligible_ns = stream->packet != NULL ? stream->packet->eligible_ns : CORE_NS_NEVER;
    world->wake_ns[stream->index] = core_time_min(core_time_max(eligible_ns, world->now_ns), stream->go_ns);
    if (stream->restoring && stream->resume_ns != CORE_NS_NEVER)
        world->wake_ns[stream->index] = core_time_min(world->wake_ns[stream->index], stream->resume_ns);
    if (awaits_holding(world, stream))
        world->wake_ns[stream->index] = core_time_min(world->wake_ns[stream->index], stream->hold_from_ns);
    world->wake_ns[stream->index] = core_time_min(world->wake_ns[stream->index], stream->flee_ns);
}

/* ---- the unit ---- */

void history_stream_serve(struct history_world *world, struct history_stream *stream,
                          const struct perfmodel_cpu_task *task)
{
    bool on_gpu = history_on_gpu(world, stream->room.unit);
    if (!on_gpu)
        history_worker_arm(stream->cpu, task);
    stream->pace.spacing_ns = on_gpu ? 0 : task->spacing_ns;
}

void history_stream_serve_for(struct history_world *world, struct history_stream *stream, core_ns latency_ns)
{
    struct perfmodel_cpu_task task = {0};
    struct core_stream_spec asked = stream->spec;
    asked.latency_ns = stream->asked_ns = latency_ns;
    if (!history_on_gpu(world, stream->room.unit))
        TEST_REQUIRE(perfmodel_cpu_task_from(&asked, &world->machine.profile, &task, NULL) == CORE_OK);
    history_stream_serve(world, stream, &task);
    stream->gpu_bound_ns = admission_stream_of(world->admission, stream->room.number).gpu_bound_ns;
}

bool history_stream_flees(const struct history_stream *stream)
{
    return stream->home != HISTORY_NONE || stream->flee_ns != CORE_NS_NEVER;
}

bool history_stream_rests(const struct history_stream *stream)
{
    return stream->inside == 0 && stream->queue == NULL;
}

/* The first in the queue comes to the unit, from its contract's point of view. */
static core_ns let_go_ns(const struct history_stream *stream)
{
    return core_time_max(server_pacer_next_ns(&stream->pace, stream->queue->eligible_ns), stream->arrived_ns);
}

/* When the first in the queue goes: into its batch at once, to a worker up to in_ns later. */
static void set_go(struct history_world *world, struct history_stream *stream)
{
    core_ns in_ns = world->machine.profile.margins.in_ns;
    bool waits = stream->queue == NULL || server_path_holds(stream->path) || stream->away ||
                 stream->flee_ns != CORE_NS_NEVER ||
                 (stream->restoring && stream->resume_ns != CORE_NS_NEVER);
    stream->go_ns = CORE_NS_NEVER;
    if (waits)
        return;
    core_ns at_ns = let_go_ns(stream);
    if (!history_on_gpu(world, stream->room.unit))
        at_ns += test_random_chance(&world->random, world->early_percent)
                     ? test_random_in(&world->random, 0, in_ns)
                     : in_ns;
    stream->go_ns = core_time_max(core_time_max(at_ns, stream->handed_over_ns), world->now_ns);
}

void history_stream_settle(struct history_world *world, struct history_stream *stream)
{
    set_go(world, stream);
    set_wake(world, stream);
}

/* ---- sending ---- */

static uint32_t packet_bytes(struct history_world *world, const struct core_stream_spec *spec)
{
    uint32_t most = core_stream_packet_bytes(spec);
    if (!test_random_chance(&world->random, world->small_percent))
        return most;
    return CORE_BLOCK_BYTES * (uint32_t)test_random_in(&world->random, 1, most / CORE_BLOCK_BYTES);
}

/* When the next packet wants to be sent; policing delays it as it must. */
static core_ns next_arrival_ns(struct history_world *world, struct history_stream *stream)
{
    const struct core_stream_spec *spec = &stream->spec;
    core_ns arrival_ns = stream->arrival_ns;
    if (stream->silent_until_ns > arrival_ns && stream->silent_until_ns > world->now_ns)
        return stream->silent_until_ns;
    switch (stream->sending) {
    case HISTORY_PERIODIC:
        return stream->sent == 0 ? arrival_ns : arrival_ns + spec->interval_ns;
    case HISTORY_PAUSING:
        return test_random_chance(&world->random, 70)
                   ? arrival_ns
                   : core_time_max(arrival_ns, world->now_ns) +
                         test_random_in(&world->random, 0, spec->interval_ns * (spec->burst_packets + 1));
    case HISTORY_SAVING:
        return stream->sent % spec->burst_packets != 0 ? arrival_ns
                                                       : arrival_ns + spec->interval_ns * spec->burst_packets;
    default:
        return arrival_ns;
    }
}

static struct history_packet *take_packet(struct history_world *world)
{
    struct history_packet *packet = world->free;
    if (packet == NULL) {
        struct history_made *made = malloc(sizeof *made);
        TEST_REQUIRE(made != NULL);
        made->next = world->made;
        world->made = made;
        return &made->packet;
    }
    world->free = packet->next;
    return packet;
}

static void give_packet(struct history_world *world, struct history_packet *packet)
{
    packet->next = world->free;
    world->free = packet;
}

/* Polices the next packet. */
static void send_next(struct history_world *world, struct history_stream *stream)
{
    static uint8_t payload[CORE_PACKET_BYTES_MAX + CORE_BLOCK_BYTES]; /* never read: nothing is encrypted */
    stream->arrival_ns = next_arrival_ns(world, stream);
    if (stream->arrival_ns >= world->end_ns)
        return;
    stream->police_before = stream->policer;
    struct server_policer_times times = server_policer_packet(&stream->policer, stream->arrival_ns);
    if (times.eligible_ns >= world->end_ns)
        return;
    struct history_packet *packet = take_packet(world);
    *packet = (struct history_packet){.stream = stream,
                                      .source = stream->index,
                                      .eligible_ns = times.eligible_ns,
                                      .deadline_ns = times.eligible_ns + stream->spec.latency_ns,
                                      .policed = times.eligible_ns > stream->arrival_ns,
                                      .alone = core_stream_packets_alone(&stream->spec),
                                      .promised = true};
    packet->cpu = (struct cpu_packet){
        .stream = stream->cpu, .data = payload, .bytes = packet_bytes(world, &stream->spec)};
    stream->sent++;
    stream->packet = packet;
}

/* What was policed ahead and is not eligible yet was never sent. */
static void take_back(struct history_world *world, struct history_stream *stream)
{
    if (stream->packet == NULL)
        return;
    stream->policer = stream->police_before;
    give_packet(world, stream->packet);
    stream->packet = NULL;
}

/* Goes on from now on. */
static void send_anew(struct history_world *world, struct history_stream *stream)
{
    take_back(world, stream);
    stream->arrival_ns = world->now_ns;
    stream->sent = 0;
    send_next(world, stream);
    set_wake(world, stream);
}

void history_stream_behave(struct history_world *world, struct history_stream *stream,
                           core_ns silent_until_ns)
{
    stream->sending = (enum history_sending)test_random_in(&world->random, 0, HISTORY_SENDINGS - 1);
    if (test_random_chance(&world->random, 50))
        stream->sending = HISTORY_FULL;
    stream->silent_until_ns = silent_until_ns;
    if (stream->packet == NULL || stream->packet->eligible_ns > world->now_ns)
        send_anew(world, stream);
}

void history_stream_crowd(struct history_world *world, uint32_t unit, core_ns from_ns, core_ns to_ns)
{
    for (uint32_t i = 0; i < world->streams_high; i++) {
        struct history_stream *stream = &world->stream[i];
        if (stream->state != HISTORY_OPEN || stream->room.unit != unit || stream->ambush)
            continue;
        history_stream_behave(world, stream, test_random_in(&world->random, from_ns, to_ns));
        stream->sending = HISTORY_FULL;
    }
}

void history_stream_open(struct history_world *world, struct history_stream *stream)
{
    struct core_stream_spec policed = stream->spec;
    if (world->fault == HISTORY_PROMISE_MORE)
        policed.interval_ns -= policed.interval_ns / 8;
    stream->state = HISTORY_OPEN;
    server_policer_init(&stream->policer, &policed, 0);
    server_pacer_init(&stream->pace, &policed, 0);
    history_stream_serve_for(world, stream, stream->spec.latency_ns);
    stream->handed_over_ns = world->now_ns;
    stream->go_ns = CORE_NS_NEVER;
    history_stream_behave(world, stream, world->now_ns);
    if (test_random_chance(&world->random, 70))
        stream->sending = HISTORY_FULL;
}

void history_stream_close(struct history_world *world, struct history_stream *stream)
{
    stream->state = HISTORY_CLOSING;
    if (stream->packet == NULL || stream->packet->eligible_ns > world->now_ns)
        take_back(world, stream); /* else it has been sent */
    set_wake(world, stream);
}

/* ---- into units ---- */

/* What was promised, at the unit: a backup's of a contract of its own, a GPU's with a backup sooner. */
static core_ns due_ns(const struct history_world *world, const struct history_stream *stream,
                      const struct history_packet *packet)
{
    const struct config_profile *profile = &world->machine.profile;
    core_ns latency_ns = stream->hasty ? stream->asked_ns : packet->deadline_ns - packet->eligible_ns;
    core_ns due_ns = packet->deadline_ns - profile->margins.out_ns;
    if (stream->home != HISTORY_NONE)
        latency_ns = admission_stream_of(world->admission, stream->room.number).backup_spec.latency_ns;
    if (!history_on_gpu(world, stream->room.unit))
        return due_ns - perfmodel_io_rest_ns(latency_ns, profile);
    if (stream->home == HISTORY_NONE && stream->gpu_bound_ns > 0)
        due_ns = core_time_min(due_ns, packet->eligible_ns + stream->gpu_bound_ns - profile->margins.out_ns);
    return due_ns;
}

/* Lets the first in the queue go. False: not yet, no batch is open for it. */
static bool put_packet(struct history_world *world, struct history_stream *stream)
{
    struct history_packet *packet = stream->queue;
    struct history_packet *rest = packet->next;
    bool on_gpu = history_on_gpu(world, stream->room.unit);
    packet->promised = packet->promised && !stream->restoring; /* nor when it is run again elsewhere */
    packet->due_ns = due_ns(world, stream, packet);
    if (on_gpu && !history_gpu_put(history_gpu_of(world, stream->room.unit), packet, let_go_ns(stream),
                                   &stream->room.batch)) {
        packet->next = rest;
        return false;
    }
    struct server_policer_times times =
        server_pacer_take(&stream->pace, packet->eligible_ns, packet->policed);
    stream->queue = rest;
    if (on_gpu)
        return true;
    uint32_t slot = HISTORY_SOURCES + world->machine.gpu_count + stream->room.unit;
    packet->cpu.release_ns = times.release_ns + world->machine.profile.margins.in_ns;
    history_worker_put(&world->worker[stream->room.unit], &packet->cpu);
    if (world->worker[stream->room.unit].end_ns == CORE_NS_NEVER)
        world->wake_ns[slot] = world->now_ns;
    return true;
}

/* The promise holds again once what waited has caught up. */
static void note_caught_up(struct history_world *world, struct history_stream *stream)
{
    if (!server_pacer_caught_up(&stream->pace, stream->queue == NULL, world->now_ns))
        return;
    if (stream->restoring && stream->resume_ns == CORE_NS_NEVER) {
        stream->restoring = false;
        history_count(world, HISTORY_RESTORED);
    }
    world->look = world->look || stream->hasty;
}

static void let_go(struct history_world *world, struct history_stream *stream)
{
    if (!put_packet(world, stream)) {
        stream->go_ns = world->now_ns + RETRY_NS;
        return;
    }
    stream->handed_over_ns = world->now_ns;
    stream->inside++;
    stream->room.worked = true;
    world->look = world->look || stream->ambush;
    stream->ambush = false;
    note_caught_up(world, stream);
    set_go(world, stream);
}

static void queue_packet(struct history_world *world, struct history_stream *stream)
{
    struct history_packet *packet = stream->packet;
    bool first = stream->queue == NULL;
    stream->packet = NULL;
    packet->next = NULL;
    if (stream->away) { /* to the stand-by, which promises nothing */
        world->totals->stood_by++;
        give_packet(world, packet);
    } else if (first)
        stream->queue = stream->queue_tail = packet;
    else
        stream->queue_tail = stream->queue_tail->next = packet;
    if (stream->state == HISTORY_OPEN)
        send_next(world, stream);
    if (first)
        set_go(world, stream);
}

/* ---- units that go and come ---- */

/* The stand-by has returned all: what waits goes to the device, as the contract allows. */
static void resume(struct history_world *world, struct history_stream *stream)
{
    core_ns first_ns = stream->queue != NULL ? stream->queue->eligible_ns : CORE_NS_NEVER;
    stream->resume_ns = CORE_NS_NEVER;
    if (world->fault != HISTORY_NO_PACING)
        server_pacer_switch(&stream->pace, 0, first_ns, true, world->now_ns);
    note_caught_up(world, stream);
    set_go(world, stream);
}

void history_stream_run(struct history_world *world, struct history_stream *stream)
{
    if (stream->flee_ns <= world->now_ns)
        history_planner_flee(world, stream);
    if (stream->restoring && stream->resume_ns <= world->now_ns)
        resume(world, stream);
    if (stream->packet != NULL && stream->packet->eligible_ns <= world->now_ns)
        queue_packet(world, stream);
    if (stream->go_ns <= world->now_ns)
        let_go(world, stream);
    if (stream->next_room.unit != HISTORY_NONE && stream->hold_from_ns == world->now_ns)
        world->look = true;
    set_wake(world, stream);
}

void history_stream_switch(struct history_world *world, struct history_stream *stream, bool held)
{
    core_ns first_ns = stream->queue != NULL ? stream->queue->eligible_ns : CORE_NS_NEVER;
    TEST_REQUIRE(stream->inside == 0);
    stream->room = stream->next_room;
    stream->next_room.unit = HISTORY_NONE;
    if (world->fault != HISTORY_NO_PACING)
        server_pacer_switch(&stream->pace, 0, first_ns, held, world->now_ns);
    stream->pace.next_release_ns = INT64_MIN;
    stream->away = stream->sheltered = false;
    stream->resume_ns = CORE_NS_NEVER; /* what waited for its device has no promise until it caught up */
    stream->hasty = stream->hold_ns > 0 &&
                    !server_pacer_caught_up(&stream->pace, first_ns == CORE_NS_NEVER, world->now_ns);
    history_stream_serve_for(world, stream, stream->spec.latency_ns - (stream->hasty ? stream->hold_ns : 0));
    stream->handed_over_ns = world->now_ns;
    note_caught_up(world, stream);
    history_stream_settle(world, stream);
}

void history_stream_arrive(struct history_world *world, struct history_stream *stream)
{
    TEST_REQUIRE(stream->inside == 0);
    stream->room.worked = stream->away = stream->restoring = false;
    stream->room.batch = stream->room.pauses = 0;
    server_pacer_init(&stream->pace, &stream->spec, 0);
    stream->arrived_ns = stream->handed_over_ns = stream->pace.next_release_ns = world->now_ns;
    if (stream->home == HISTORY_NONE)
        history_stream_serve_for(world, stream, stream->spec.latency_ns);
    else {
        struct admission_placement placement = admission_placement_of(world->admission, stream->room.number);
        history_stream_serve(world, stream, &placement.backup_task);
    }
    history_stream_settle(world, stream);
}

void history_stream_change(struct history_world *world, struct history_stream *stream)
{
    struct history_change *change = &stream->change;
    struct core_stream_spec policed = change->spec;
    take_back(world, stream);
    if (world->fault == HISTORY_FULL_BUCKET)
        server_policer_init(&stream->policer, &policed, 0);
    else
        server_policer_modify(&stream->policer, &policed, 0, world->now_ns);
    stream->spec = change->spec;
    core_ns next_release_ns = stream->pace.next_release_ns;
    server_pacer_init(&stream->pace, &policed, 0);
    stream->pace.next_release_ns = next_release_ns;
    history_stream_serve(world, stream, &change->task);
    stream->gpu_bound_ns = admission_stream_of(world->admission, stream->room.number).gpu_bound_ns;
    send_anew(world, stream);
}

static void drop_queue(struct history_world *world, struct history_stream *stream)
{
    while (stream->queue != NULL) {
        struct history_packet *packet = stream->queue;
        stream->queue = packet->next;
        world->totals->rerun++;
        give_packet(world, packet);
    }
}

void history_stream_lose(struct history_world *world, struct history_stream *stream)
{
    stream->away = true;
    stream->restoring = stream->ambush = false;
    stream->flee_ns = CORE_NS_NEVER;
    drop_queue(world, stream);
    history_stream_settle(world, stream);
}

void history_stream_return(struct history_world *world, struct history_stream *stream, core_ns resume_ns)
{
    stream->away = false;
    stream->restoring = true;
    stream->resume_ns = resume_ns;
    history_stream_settle(world, stream);
}

/* ---- out of them ---- */

static void judge(struct history_world *world, const struct history_packet *packet, core_ns end_ns)
{
    const struct history_stream *stream = packet->stream;
    bool on_gpu = history_on_gpu(world, stream->room.unit);
    core_ns latency_ns = packet->deadline_ns - packet->eligible_ns, slack_ns = packet->due_ns - end_ns;
    world->totals->packets[on_gpu]++;
    world->totals->fled += stream->home != HISTORY_NONE;
    int64_t ppb = (int64_t)((double)slack_ns / (double)latency_ns * 1e9);
    if (ppb < world->totals->least_slack_ppb[on_gpu])
        world->totals->least_slack_ppb[on_gpu] = ppb;
    if (slack_ns >= 0)
        return;
    world->totals->misses++;
    history_fail(world, "stream %u on unit %u: eligible %lld, bound %lld, finished %lld ns late",
                 stream->index, stream->room.unit, (long long)(packet->eligible_ns - world->start_ns),
                 (long long)latency_ns, (long long)-slack_ns);
}

void history_packet_finished(struct history_world *world, struct history_packet *packet, core_ns end_ns)
{
    struct history_stream *stream = packet->stream;
    stream->inside--;
    stream->room.pauses = packet->cpu.pauses;
    if (packet->promised)
        judge(world, packet, end_ns);
    else
        world->totals->late++;
    world->look = world->look || (world->awaits && stream->inside == 0);
    give_packet(world, packet);
}

void history_packet_lost(struct history_world *world, struct history_packet *packet)
{
    packet->stream->inside--;
    world->totals->rerun++;
    give_packet(world, packet);
}

void history_packet_again(struct history_world *world, struct history_packet *packet)
{
    struct history_stream *stream = packet->stream;
    struct history_packet **at = &stream->queue;
    stream->inside--;
    while (*at != NULL && (*at)->eligible_ns <= packet->eligible_ns)
        at = &(*at)->next;
    packet->next = *at;
    *at = packet;
    if (packet->next == NULL)
        stream->queue_tail = packet;
    world->totals->again++;
}
