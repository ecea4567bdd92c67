#include "gpu/card_clock.h"

/* By how much a time that a card measured may be wrong. */
static core_ns slack_ns(core_ns card_ns)
{
    return card_ns / GPU_CARD_CLOCK_DRIFT + GPU_CARD_CLOCK_STEP_NS;
}

core_ns gpu_card_clock_take(struct gpu_card_clock *clock, const struct gpu_card_clock_batch *batch,
                            core_ns *uncertain_ns)
{
    const core_ns latest_ns = batch->seen_ns - batch->span_ns;
    const core_ns span_slack_ns = slack_ns(batch->span_ns), since_slack_ns = slack_ns(batch->since_ns);
    const struct gpu_card_clock own = {
        .set = true, .first_ns = batch->asked_ns, .last_ns = latest_ns + span_slack_ns};
    struct gpu_card_clock next = own;
    if (clock->set) {
        next.first_ns = core_time_max(own.first_ns, clock->first_ns + batch->since_ns - since_slack_ns);
        next.last_ns = core_time_min(own.last_ns, clock->last_ns + batch->since_ns + since_slack_ns);
        if (next.first_ns > next.last_ns)
            next = own;
    }
    *clock = next;
    const core_ns middle_ns = next.first_ns + (next.last_ns - next.first_ns) / 2;
    const core_ns told_ns = core_time_min(middle_ns, latest_ns);
    *uncertain_ns = core_time_max(told_ns - next.first_ns, next.last_ns - told_ns) + span_slack_ns;
    return told_ns;
}
