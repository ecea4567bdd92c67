#include "server/stream/arrival.h"

#define BEAT_SHARE  8
#define BEAT_MIN_NS (CORE_NS_PER_MS / 2)
#define BEAT_MAX_NS (10 * CORE_NS_PER_MS)

void server_polls_init(struct server_polls *turns, core_ns now_ns)
{
    *turns = (struct server_polls){.polled_ns = now_ns,
                                   .since_ns = now_ns,
                                   .entered_ns = now_ns,
                                   .ended_ns = now_ns,
                                   .due_ns = CORE_NS_NEVER};
}

bool server_polls_first(const struct server_polls *turns, core_ns now_ns)
{
    return now_ns - turns->polled_ns > SERVER_POLLS_SHORT_NS;
}

void server_polls_enter(struct server_polls *turns, core_ns now_ns, core_ns due_ns, bool waits)
{
    turns->entered_ns = now_ns;
    turns->due_ns = due_ns;
    turns->waits = waits;
    turns->awake = false;
}

void server_polls_wake(struct server_polls *turns, core_ns now_ns)
{
    if (turns->awake)
        return;
    core_ns before_ns = turns->polled_ns;
    bool late = turns->due_ns != CORE_NS_NEVER && now_ns > turns->due_ns + SERVER_POLLS_SLACK_NS;
    bool slept = turns->waits && now_ns - turns->entered_ns > SERVER_POLLS_AWAKE_NS;
    turns->awake = true;
    turns->polled_ns = late ? turns->entered_ns : now_ns;
    turns->since_ns = slept ? turns->polled_ns : before_ns;
    turns->owed_ns = !slept ? before_ns : late ? core_time_max(turns->entered_ns, turns->due_ns) : now_ns;
}

void server_polls_found_nothing(struct server_polls *turns)
{
    turns->polled_ns = turns->entered_ns;
}

core_ns server_polls_from_ns(const struct server_polls *turns)
{
    return core_time_max(turns->owed_ns, turns->ended_ns);
}

core_ns server_polls_end(struct server_polls *turns, core_ns now_ns)
{
    core_ns from_ns = server_polls_from_ns(turns);
    turns->ended_ns = now_ns;
    return now_ns - from_ns;
}

core_ns server_polls_beat_ns(core_ns latency_ns)
{
    core_ns beat_ns = core_time_max(latency_ns / BEAT_SHARE, BEAT_MIN_NS);
    return core_time_min(beat_ns, BEAT_MAX_NS);
}

void server_arrival_read(struct server_arrival *arrival, const struct server_socket_clock *clock,
                         core_ns since_ns, core_ns read_ns, core_ns allowed_ns)
{
    core_ns earliest_ns = clock->left ? clock->empty_ns : core_time_max(since_ns, clock->empty_ns);
    core_ns ours_ns = core_time_max(earliest_ns, clock->again_ns);
    bool late = read_ns - ours_ns > allowed_ns;

    arrival->counted_ns = core_time_max(arrival->counted_ns, late ? ours_ns : read_ns);
    arrival->earliest_ns = earliest_ns;
    arrival->read_ns = read_ns;
    arrival->held = clock->held_bytes > 0;
}

void server_arrival_took(struct server_socket_clock *clock, const struct server_arrival *arrival,
                         size_t got_bytes, size_t left_bytes)
{
    core_ns read_ns = arrival->read_ns;

    clock->held_bytes -= got_bytes < clock->held_bytes ? got_bytes : clock->held_bytes;
    if (left_bytes == 0) {
        *clock = (struct server_socket_clock){.empty_ns = read_ns};
        return;
    }
    if (clock->left && clock->old_bytes > got_bytes) {
        size_t old_bytes = clock->old_bytes - got_bytes;
        clock->old_bytes = old_bytes < left_bytes ? old_bytes : left_bytes;
        return;
    }
    clock->empty_ns = clock->left ? clock->mark_ns : arrival->earliest_ns;
    clock->mark_ns = read_ns;
    clock->old_bytes = left_bytes;
    clock->left = true;
}

void server_arrival_since(struct server_arrival *arrival, core_ns from_ns, core_ns now_ns, bool held)
{
    arrival->counted_ns = core_time_max(arrival->counted_ns, now_ns);
    arrival->earliest_ns = core_time_min(from_ns, now_ns);
    arrival->read_ns = now_ns;
    arrival->held = held;
}

void server_arrival_goes_on(struct server_socket_clock *clock, core_ns from_ns, core_ns now_ns,
                            size_t left_bytes, bool held)
{
    *clock =
        (struct server_socket_clock){.empty_ns = left_bytes > 0 ? core_time_min(from_ns, now_ns) : now_ns,
                                     .mark_ns = now_ns,
                                     .again_ns = now_ns,
                                     .old_bytes = left_bytes,
                                     .left = left_bytes > 0,
                                     .held_bytes = held ? left_bytes : 0};
}
