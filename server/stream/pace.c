#include "server/stream/pace.h"

void server_pacer_init(struct server_pacer *pace, const struct core_stream_spec *spec, core_ns spacing_ns)
{
    *pace = (struct server_pacer){
        .interval_ns = spec->interval_ns,
        .tolerance_ns = ((core_ns)spec->burst_packets - 1) * spec->interval_ns, /* <= 2^16 * 2^42 */
        .spacing_ns = spacing_ns,
        .switched_ns = INT64_MIN,
        .theoretical_ns = INT64_MIN,
        .next_release_ns = INT64_MIN,
    };
}

static bool lags(const struct server_pacer *pace)
{
    return pace->switched_ns != INT64_MIN;
}

static void forget_lag(struct server_pacer *pace)
{
    pace->switched_ns = pace->theoretical_ns = INT64_MIN;
}

void server_pacer_switch(struct server_pacer *pace, core_ns spacing_ns, core_ns first_ns, bool held,
                         core_ns now_ns)
{
    bool waited = (held || lags(pace)) && first_ns < now_ns;

    pace->spacing_ns = spacing_ns;
    pace->next_release_ns = INT64_MIN;
    forget_lag(pace);
    if (waited)
        pace->switched_ns = pace->theoretical_ns = now_ns;
}

core_ns server_pacer_next_ns(const struct server_pacer *pace, core_ns eligible_ns)
{
    if (!lags(pace))
        return eligible_ns;
    return core_time_max(core_time_max(eligible_ns, pace->switched_ns),
                         pace->theoretical_ns - pace->tolerance_ns);
}

core_ns server_pacer_release_ns(const struct server_pacer *pace, core_ns paced_ns)
{
    return core_time_max(paced_ns, pace->next_release_ns);
}

struct server_policer_times server_pacer_take(struct server_pacer *pace, core_ns eligible_ns, bool policed)
{
    struct server_policer_times times = {.eligible_ns = server_pacer_next_ns(pace, eligible_ns)};

    if (lags(pace)) {
        core_ns bucket_ns = policed ? eligible_ns + pace->tolerance_ns : eligible_ns;
        bool caught_up = pace->switched_ns <= eligible_ns && pace->theoretical_ns <= bucket_ns;
        core_ns came_ns = core_time_max(eligible_ns, pace->switched_ns);
        pace->theoretical_ns = core_time_max(pace->theoretical_ns, came_ns) + pace->interval_ns;
        if (caught_up)
            forget_lag(pace);
    }
    times.release_ns = server_pacer_release_ns(pace, times.eligible_ns);
    pace->next_release_ns = times.release_ns + pace->spacing_ns;
    return times;
}

bool server_pacer_caught_up(struct server_pacer *pace, bool nothing_waits, core_ns now_ns)
{
    if (lags(pace) && nothing_waits && pace->theoretical_ns <= now_ns)
        forget_lag(pace);
    return !lags(pace);
}
