#include "inputgen/churn_figures.h"

const char *inputgen_operation_name(enum inputgen_operation kind)
{
    static const char *const names[INPUTGEN_OPERATION_KINDS] = {"open", "close", "modify"};
    return names[kind];
}

void inputgen_churn_figures_init(struct inputgen_churn_figures *figures)
{
    *figures = (struct inputgen_churn_figures){0};
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++) {
        core_histogram_init(&figures->kinds[kind].decided);
        core_histogram_init(&figures->kinds[kind].in_force);
        core_histogram_init(&figures->kinds[kind].round_trip);
    }
}

static void operation_add(struct inputgen_operation_figures *target,
                          const struct inputgen_operation_figures *source)
{
    target->asked += source->asked;
    target->granted += source->granted;
    target->refused += source->refused;
    target->unanswered += source->unanswered;
    target->unsent += source->unsent;
    core_histogram_merge(&target->decided, &source->decided);
    core_histogram_merge(&target->in_force, &source->in_force);
    core_histogram_merge(&target->round_trip, &source->round_trip);
}

void inputgen_churn_figures_add(struct inputgen_churn_figures *target,
                                const struct inputgen_churn_figures *source)
{
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++)
        operation_add(&target->kinds[kind], &source->kinds[kind]);
    inputgen_refusals_add(target->refusals, &target->refusal_kinds, source->refusals, source->refusal_kinds);
    target->on_gpus += source->on_gpus;
    for (size_t kind = 0; kind < sizeof target->notices / sizeof *target->notices; kind++)
        target->notices[kind] += source->notices[kind];
    target->ended += source->ended;
    target->accounts_differ += source->accounts_differ;
    target->open_peak += source->open_peak;
}
