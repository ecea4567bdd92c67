#include "server/police.h"

static core_ns later(core_ns a, core_ns b)
{
    return a > b ? a : b;
}

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

struct server_police_times server_police_packet(struct server_police *police, core_ns arrival_ns)
{
    core_ns theoretical_ns = later(police->theoretical_ns, arrival_ns);
    struct server_police_times times;

    times.eligible_ns = later(arrival_ns, theoretical_ns - police->tolerance_ns);
    police->theoretical_ns = theoretical_ns + police->interval_ns;
    times.release_ns = later(times.eligible_ns, police->next_release_ns);
    police->next_release_ns = times.release_ns + police->spacing_ns;
    return times;
}
