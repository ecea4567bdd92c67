#include "gpu/emulated_tell.h"

#include <sys/timerfd.h>
#include <unistd.h>

core_status gpu_emulated_tell_open(struct gpu_emulated_tell *tell, core_ns now_ns, struct core_error *error)
{
    *tell = (struct gpu_emulated_tell){.zero_ns = now_ns};
    tell->descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return tell->descriptor < 0 ? core_error_errno(error, "can not make a timerfd") : CORE_OK;
}

void gpu_emulated_tell_close(struct gpu_emulated_tell *tell)
{
    if (tell->descriptor >= 0)
        close(tell->descriptor);
}

void gpu_emulated_tell_wake(struct gpu_emulated_tell *tell, core_ns at_ns)
{
    const struct itimerspec at = {
        .it_value = {.tv_sec = at_ns / CORE_NS_PER_S, .tv_nsec = at_ns % CORE_NS_PER_S}};
    (void)timerfd_settime(tell->descriptor, TFD_TIMER_ABSTIME, &at, NULL);
}

/* What the card's clock shows. */
static core_ns card_ns(const struct gpu_emulated_tell *tell, core_ns our_ns)
{
    const core_ns since_ns = our_ns - tell->zero_ns;
    const core_ns ns = since_ns + since_ns / GPU_EMULATED_CLOCK_FAST;
    return ns - ns % GPU_EMULATED_CLOCK_STEP_NS;
}

void gpu_emulated_tell_put(struct gpu_emulated_tell *tell, const struct gpu_stage_end *end, core_ns asked_ns,
                           core_ns ended_ns)
{
    struct gpu_emulated_end *entry = &tell->ends[tell->put++ % GPU_EMULATED_ENDS_MAX];
    *entry = (struct gpu_emulated_end){
        .end = *end, .asked_ns = asked_ns, .due_ns = ended_ns + GPU_EMULATED_REACTION_NS};
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        entry->end.times[stage].start_ns = card_ns(tell, end->times[stage].start_ns);
        entry->end.times[stage].end_ns = card_ns(tell, end->times[stage].end_ns);
    }
    if (tell->put == tell->taken + 1)
        gpu_emulated_tell_wake(tell, entry->due_ns);
}

/* From the card's clock to ours. */
static void times_turn(struct gpu_emulated_tell *tell, core_ns asked_ns, core_ns seen_ns,
                       struct gpu_stage_end *end)
{
    const core_ns mark_ns = end->times[GPU_STAGE_UP].start_ns;
    const struct gpu_card_clock_batch batch = {
        .asked_ns = asked_ns,
        .since_ns = tell->clock.set ? mark_ns - tell->mark_ns : 0,
        .span_ns = end->times[GPU_STAGE_DOWN].end_ns - mark_ns,
        .seen_ns = seen_ns,
    };
    const core_ns base_ns = gpu_card_clock_take(&tell->clock, &batch, &end->uncertain_ns) - mark_ns;
    tell->mark_ns = mark_ns;
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        end->times[stage].start_ns += base_ns;
        end->times[stage].end_ns += base_ns;
    }
}

core_status gpu_emulated_tell_take(struct gpu_emulated_tell *tell, core_ns now_ns, struct gpu_stage_end *end)
{
    uint64_t count;
    (void)!read(tell->descriptor, &count, sizeof count);
    if (tell->taken == tell->put)
        return CORE_AGAIN;
    const struct gpu_emulated_end *oldest = &tell->ends[tell->taken % GPU_EMULATED_ENDS_MAX];
    if (oldest->due_ns > now_ns) {
        gpu_emulated_tell_wake(tell, oldest->due_ns);
        return CORE_AGAIN;
    }
    *end = oldest->end;
    if (end->stage == GPU_STAGE_DOWN)
        times_turn(tell, oldest->asked_ns, now_ns, end);
    tell->taken++;
    return CORE_OK;
}
