/* Periods that grow back: a GPU that streams with short latency bounds have left gets the period that those
 * who are still there would get by themselves (partition_standing_retune).
 *
 * Longer batches cost less, but nobody is waiting for that, so it is done seldom and for a gain that is worth
 * it, not while anything else is under way on the card, and not soon after its period has changed: who has
 * left may come again. The way to the new period is proven as any other's (server/gpu/plan_queue.h). */
#include "core/log.h"
#include "server/planner/internal.h"

#define LOOK_NS CORE_NS_PER_S
#define CALM_NS (3 * CORE_NS_PER_S) /* after another period was seen */

/* Longer by at least a quarter. */
static bool is_worth_it(core_ns before_ns, core_ns after_ns)
{
    return after_ns / 5 >= before_ns / 4;
}

static bool has_order(const struct server_planner *planner, uint32_t gpu)
{
    for (const struct server_order *order = planner->orders; order != NULL; order = order->next)
        if (order->from->gpu == gpu || order->from->spare.gpu == gpu || order->to->gpu == gpu)
            return true;
    return false;
}

static bool has_change(const struct server_planner *planner, uint32_t gpu)
{
    for (const struct server_change *change = planner->changes; change != NULL; change = change->next)
        if (change->grant->gpu == gpu || change->grant->spare.gpu == gpu)
            return true;
    return false;
}

static bool is_quiet(const struct server_planner *planner, uint32_t gpu)
{
    const struct server_planner_card *card = &planner->cards[gpu];
    return !card->out && !card->passing && !server_planner_has_applicants(planner) &&
           server_gpu_plan_in_force(planner->server->gpus[gpu]) ==
               server_planner_batches(planner, gpu)->number &&
           !has_order(planner, gpu) && !has_change(planner, gpu);
}

static void retune(struct server_planner *planner, uint32_t gpu, core_ns before_ns)
{
    struct partition_standing_words words;
    core_ns after_ns;

    if (!partition_standing_retune(planner->standing, gpu, &after_ns))
        return;
    if (!is_worth_it(before_ns, after_ns) ||
        !partition_standing_plan_batches(planner->standing, gpu, &words)) {
        (void)!partition_standing_set_period(planner->standing, gpu, before_ns); /* it has held so far */
        return;
    }
    after_ns = server_planner_batches(planner, gpu)->period_ns;
    if (after_ns != before_ns)
        core_log_with(
            CORE_LOG_INFO, "planner.period",
            &(struct core_log_fields){.unit = server_gpu_name(planner->server->gpus[gpu])},
            "%s: batch period %s from %.3f ms to %.3f ms", server_gpu_name(planner->server->gpus[gpu]),
            after_ns > before_ns ? "raised" : "lowered", (double)before_ns / 1e6, (double)after_ns / 1e6);
}

void server_planner_retune(struct server_planner *planner)
{
    core_ns now_ns = core_time_now_ns();
    for (uint32_t gpu = 0; gpu < planner->server->gpu_count; gpu++) {
        struct server_planner_card *card = &planner->cards[gpu];
        core_ns period_ns = partition_standing_gpu_at(planner->standing, gpu).period_ns;
        bool changed = period_ns != card->period_ns;
        card->period_ns = period_ns;
        if (changed)
            card->tune_ns = now_ns + CALM_NS;
        if (now_ns < card->tune_ns)
            continue;
        card->tune_ns = now_ns + LOOK_NS;
        if (period_ns > 0 && is_quiet(planner, gpu))
            retune(planner, gpu, period_ns);
    }
}
