/* Retunes: a GPU that streams with short latency bounds have left gets the batch period that those which
 * are still there would get by themselves (admission_retune).
 *
 * Longer batches cost less, but nothing waits for that, so it is done seldom and for a gain that is worth it,
 * not while anything else is in progress on the GPU, and not soon after its period has changed: the stream
 * that has left may come again. The way to the new period is proven as any other (admission/gpu_plan.h). */
#include "partition/planner/internal.h"

/* Longer by at least a quarter. */
static bool is_worth_it(core_ns before_ns, core_ns after_ns)
{
    return after_ns / 5 >= before_ns / 4;
}

static bool is_quiet(const struct partition_planner *planner, uint32_t gpu)
{
    const struct planner_gpu *of = &planner->gpus[gpu];

    return !of->out && !of->scanning && of->busy == 0 && planner->pending_count == 0 &&
           planner->host.plan_in_force(planner->context, gpu) ==
               admission_batches(planner->admission, gpu)->number;
}

static void retune(struct partition_planner *planner, uint32_t gpu, core_ns before_ns)
{
    struct admission_refusal words;
    core_ns after_ns;

    if (!admission_retune(planner->admission, gpu, &after_ns))
        return;
    if (!is_worth_it(before_ns, after_ns) || !admission_plan_batches(planner->admission, gpu, &words)) {
        (void)!admission_set_period(planner->admission, gpu, before_ns); /* it has held so far */
        return;
    }
    after_ns = admission_batches(planner->admission, gpu)->period_ns;
    if (after_ns != before_ns)
        planner->host.retuned(planner->context, gpu, before_ns, after_ns);
}

void planner_retune(struct partition_planner *planner, core_ns now_ns)
{
    for (uint32_t gpu = 0; gpu < planner->options.gpus; gpu++) {
        struct planner_gpu *of = &planner->gpus[gpu];
        core_ns period_ns = admission_gpu_at(planner->admission, gpu).period_ns;
        bool changed = period_ns != of->period_ns;
        of->period_ns = period_ns;
        if (changed)
            of->tune_ns = now_ns + planner->options.calm_ns;
        if (now_ns < of->tune_ns)
            continue;
        of->tune_ns = now_ns + planner->options.retune_ns;
        if (period_ns > 0 && is_quiet(planner, gpu))
            retune(planner, gpu, period_ns);
    }
}
