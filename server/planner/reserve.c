/* The planner keeps new streams from what units lose to the machine. */
#include "core/log.h"
#include "core/value.h"
#include "server/planner/internal.h"

#include <stdio.h>

/* The shortest latency bound among a unit's streams; CORE_NS_NEVER: it has none. */
static core_ns shortest_ns(const struct server_planner *planner, uint32_t unit)
{
    core_ns shortest = CORE_NS_NEVER;
    for (size_t n = 0; n < admission_streams(partition_planner_admission(planner->inner)); n++) {
        struct admission_stream stream = admission_stream_at(partition_planner_admission(planner->inner), n);
        if (stream.unit == unit && stream.spec.latency_ns < shortest)
            shortest = stream.spec.latency_ns;
    }
    return shortest;
}

static void say(const struct server_planner *planner, uint32_t unit, int64_t before_ppb, int64_t share_ppb)
{
    bool gpu = server_planner_is_gpu(planner, unit);
    uint32_t number = gpu ? server_unit_gpu(planner->server, unit) : unit;
    const char *name = gpu ? "GPU" : "worker";
    char text[24], quiet[CORE_TEXT_BYTES];
    const struct core_log_fields fields = {.unit = text};
    snprintf(text, sizeof text, gpu ? "gpu-%u" : "cpu-%u", number);

    if (share_ppb == 0)
        core_log_with(CORE_LOG_INFO, "overload.over", &fields,
                      "%s %u meets its execution-time bounds again; admission uses its full capacity", name,
                      number);
    else if (share_ppb > before_ppb)
        core_log_with(CORE_LOG_WARNING, "overload.tighten", &fields,
                      "%s %u overran its bounds: %.1f %% of its capacity is withheld from admission until %s "
                      "pass without an overrun",
                      name, number, (double)share_ppb / 1e7,
                      core_duration_format(planner->server->config->overload.quiet_ns, quiet));
}

static void take_levels(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_planner_levels *levels = (struct server_planner_levels *)message;

    for (uint32_t unit = 0; unit < levels->unit_count; unit++) {
        int64_t before_ppb = admission_withheld_ppb(partition_planner_admission(planner->inner), unit);
        core_ns level_ns = levels->level_ns[unit];
        int64_t share_ppb = level_ns == 0 ? 0 : levels->share_ppb(level_ns, shortest_ns(planner, unit));
        if (share_ppb == before_ppb)
            continue;
        admission_set_withheld(partition_planner_admission(planner->inner), unit, share_ppb);
        levels->withheld(levels->monitor, unit, share_ppb);
        say(planner, unit, before_ppb, share_ppb);
    }
    levels->applied(levels->monitor);
}

void server_planner_withhold(struct server_planner *planner, struct server_planner_levels *levels)
{
    levels->message.run = take_levels;
    server_mailbox_post(&planner->mailbox, &levels->message);
}
