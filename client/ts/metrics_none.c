/* The HTTP side of a build that links everything statically: there is none, since Debian has no static archives of
 * all that its libmicrohttpd needs. */
#include "client/ts/metrics.h"

core_status ts_metrics_start(struct ts_metrics *metrics, const struct ts_set *set, const char *address,
                             struct core_error *error)
{
    (void)metrics;
    (void)set;
    return core_error_set(error, CORE_UNSUPPORTED, "--listen=%s: this static build has no HTTP", address);
}

int ts_metrics_descriptor(const struct ts_metrics *metrics)
{
    (void)metrics;
    return -1;
}

void ts_metrics_turn(struct ts_metrics *metrics)
{
    (void)metrics;
}

void ts_metrics_stop(struct ts_metrics *metrics)
{
    (void)metrics;
}
