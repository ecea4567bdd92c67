#include "inputgen/replay_figures.h"

void inputgen_figures_init(struct inputgen_figures *figures)
{
    *figures = (struct inputgen_figures){0};
    core_histogram_init(&figures->latency);
    core_histogram_init(&figures->service);
    core_histogram_init(&figures->slack);
}

void inputgen_figures_add(struct inputgen_figures *target, const struct inputgen_figures *source)
{
    target->opened += source->opened;
    target->refused += source->refused;
    target->planned += source->planned;
    target->sent += source->sent;
    target->received += source->received;
    target->met += source->met;
    target->missed += source->missed;
    target->rejected += source->rejected;
    target->reader_late += source->reader_late;
    target->late += source->late;
    target->untrue += source->untrue;
    if (source->untrue_ns > target->untrue_ns)
        target->untrue_ns = source->untrue_ns;
    target->fault += source->fault;
    target->fault_missed += source->fault_missed;
    target->gaps += source->gaps;
    target->resent += source->resent;
    target->gap_late += source->gap_late;
    target->gap_ns = core_time_max(target->gap_ns, source->gap_ns);
    target->policed += source->policed;
    target->lost += source->lost;
    target->mismatched += source->mismatched;
    target->disordered += source->disordered;
    target->payload_bytes += source->payload_bytes;
    target->cipher_bytes += source->cipher_bytes;
    core_histogram_merge(&target->latency, &source->latency);
    core_histogram_merge(&target->service, &source->service);
    core_histogram_merge(&target->slack, &source->slack);
}
