#include "server/stream/policer.h"

void server_police_init(struct server_police *police, const struct core_stream_spec *spec, core_ns spacing_ns)
{
    *police = (struct server_police){
        .interval_ns = spec->interval_ns,
        .spacing_ns = spacing_ns,
        .tolerance_ns = ((core_ns)spec->burst_packets - 1) * spec->interval_ns, /* <= 2^16 * 2^42 */
        .theoretical_ns = INT64_MIN,
        .next_release_ns = INT64_MIN,
    };
}

__extension__ typedef __int128 wide;

void server_police_change(struct server_police *police, const struct core_stream_spec *spec,
                          core_ns spacing_ns, core_ns now_ns)
{
    const struct server_police before = *police;
    core_ns burst_ns = before.tolerance_ns + before.interval_ns;

    server_police_init(police, spec, spacing_ns);
    police->next_release_ns = before.next_release_ns;
    police->unseen_ns = before.unseen_ns;
    if (before.theoretical_ns == INT64_MIN)
        return;
    /* Where the last packet had to wait it is eligible at TAT - k t; where not it had come by now. */
    core_ns from_ns = core_time_max(now_ns, before.theoretical_ns - burst_ns);
    core_ns debt_ns = core_time_max(0, before.theoretical_ns - from_ns); /* (k - level) t <= k t */
    wide packets = (wide)debt_ns * spec->interval_ns;
    core_ns scaled_ns = (core_ns)((packets + before.interval_ns - 1) / before.interval_ns);
    core_ns more_ns = police->tolerance_ns + police->interval_ns -
                      (burst_ns / before.interval_ns) * police->interval_ns; /* (k_new - k) t_new */
    police->theoretical_ns = from_ns + core_time_max(0, scaled_ns + more_ns);
}

struct server_police_times server_police_packet(struct server_police *police, core_ns arrival_ns)
{
    return server_police_unseen(police, arrival_ns, 0);
}

struct server_police_times server_police_unseen(struct server_police *police, core_ns arrival_ns,
                                                core_ns unseen_ns)
{
    core_ns theoretical_ns = core_time_max(police->theoretical_ns, arrival_ns);
    struct server_police_times times;

    if (arrival_ns >= police->theoretical_ns)
        police->unseen_ns = unseen_ns;
    times.eligible_ns = core_time_max(arrival_ns, theoretical_ns - police->tolerance_ns);
    times.unseen_ns = times.eligible_ns > arrival_ns ? police->unseen_ns : unseen_ns;
    police->theoretical_ns = theoretical_ns + police->interval_ns;
    times.release_ns = core_time_max(times.eligible_ns, police->next_release_ns);
    police->next_release_ns = times.release_ns + police->spacing_ns;
    return times;
}
