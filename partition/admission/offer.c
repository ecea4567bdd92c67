#include "partition/admission/offer.h"

core_ns partition_search_least(core_ns refused_ns, core_ns limit_ns, partition_search_ask *ask, void *owner)
{
    core_ns accepted_ns = refused_ns;
    do {
        if (accepted_ns >= limit_ns)
            return 0;
        refused_ns = accepted_ns;
        accepted_ns = refused_ns < limit_ns / 2 ? refused_ns * 2 : limit_ns;
    } while (!ask(owner, accepted_ns));
    while (accepted_ns - refused_ns > 1) {
        core_ns middle_ns = refused_ns + (accepted_ns - refused_ns) / 2;
        if (ask(owner, middle_ns))
            accepted_ns = middle_ns;
        else
            refused_ns = middle_ns;
    }
    return accepted_ns;
}
