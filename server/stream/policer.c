#include "server/stream/policer.h"

void server_policer_init(struct server_policer *policer, const struct core_stream_spec *spec,
                         core_ns spacing_ns)
{
    *policer = (struct server_policer){
        .interval_ns = spec->interval_ns,
        .spacing_ns = spacing_ns,
        .tolerance_ns = ((core_ns)spec->burst_packets - 1) * spec->interval_ns, /* <= 2^16 * 2^42 */
        .theoretical_ns = INT64_MIN,
        .next_release_ns = INT64_MIN,
    };
}

__extension__ typedef __int128 wide;

void server_policer_modify(struct server_policer *policer, const struct core_stream_spec *spec,
                           core_ns spacing_ns, core_ns now_ns)
{
    const struct server_policer before = *policer;
    core_ns burst_ns = before.tolerance_ns + before.interval_ns;

    server_policer_init(policer, spec, spacing_ns);
    policer->next_release_ns = before.next_release_ns;
    policer->unseen_ns = before.unseen_ns;
    if (before.theoretical_ns == INT64_MIN)
        return;
    /* Where the last packet had to wait it is eligible at TAT - k t; where not it had come by now. */
    core_ns from_ns = core_time_max(now_ns, before.theoretical_ns - burst_ns);
    core_ns debt_ns = core_time_max(0, before.theoretical_ns - from_ns); /* (k - level) t <= k t */
    wide packets = (wide)debt_ns * spec->interval_ns;
    core_ns scaled_ns = (core_ns)((packets + before.interval_ns - 1) / before.interval_ns);
    core_ns more_ns = policer->tolerance_ns + policer->interval_ns -
                      (burst_ns / before.interval_ns) * policer->interval_ns; /* (k_new - k) t_new */
    policer->theoretical_ns = from_ns + core_time_max(0, scaled_ns + more_ns);
}

struct server_policer_times server_policer_packet(struct server_policer *policer, core_ns arrival_ns)
{
    return server_policer_unseen(policer, arrival_ns, 0);
}

/* Of what is not encrypted nothing waits for a token, but uses it: TAT may run ahead of any clock. */
#define THEORETICAL_NS_MAX (INT64_MAX / 2)

struct server_policer_times server_policer_unseen(struct server_policer *policer, core_ns arrival_ns,
                                                  core_ns unseen_ns)
{
    core_ns theoretical_ns = core_time_max(policer->theoretical_ns, arrival_ns);
    struct server_policer_times times;

    if (arrival_ns >= policer->theoretical_ns)
        policer->unseen_ns = unseen_ns;
    times.eligible_ns = core_time_max(arrival_ns, theoretical_ns - policer->tolerance_ns);
    times.unseen_ns = times.eligible_ns > arrival_ns ? policer->unseen_ns : unseen_ns;
    policer->theoretical_ns = core_time_min(theoretical_ns + policer->interval_ns, THEORETICAL_NS_MAX);
    times.release_ns = core_time_max(times.eligible_ns, policer->next_release_ns);
    policer->next_release_ns = times.release_ns + policer->spacing_ns;
    return times;
}
