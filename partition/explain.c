#include "partition/explain.h"

#include <stdarg.h>
#include <stdio.h>

#define PPB_PER_PERCENT 1e7

struct duration {
    char text[32];
};

static struct duration duration_of(core_ns ns)
{
    struct duration duration;
    if (ns < CORE_NS_PER_MS)
        snprintf(duration.text, sizeof duration.text, "%.3f us", (double)ns / (double)CORE_NS_PER_US);
    else if (ns < CORE_NS_PER_S)
        snprintf(duration.text, sizeof duration.text, "%.3f ms", (double)ns / (double)CORE_NS_PER_MS);
    else
        snprintf(duration.text, sizeof duration.text, "%.3f s", (double)ns / (double)CORE_NS_PER_S);
    return duration;
}

CORE_PRINTF(2, 3) static void say(struct partition_placement *placement, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(placement->reason, sizeof placement->reason, format, arguments);
    va_end(arguments);
}

static void explain_deadline(const struct partition_refusal *refusal, struct partition_placement *placement)
{
    say(placement,
        "a latency bound of %s is below what even an idle worker could keep; the shortest for this packet "
        "size, interval and burst is %s",
        duration_of(refusal->spec->latency_ns).text, duration_of(refusal->latency_least_ns).text);
}

/* No latency bound would do: the packets are too large for their interval. */
static void explain_rate(const struct partition_refusal *refusal, struct partition_placement *placement)
{
    const struct perfmodel_edf_result *test = &placement->test;
    const struct core_stream_spec *spec = refusal->spec;
    struct duration interval = duration_of(spec->interval_ns);
    if (test->binding == PERFMODEL_EDF_UTILISATION)
        say(placement,
            "packets of %u bytes every %s would take %.1f %% of a worker, and a stream has only one",
            spec->packet_bytes, interval.text, (double)test->utilisation_ppb / PPB_PER_PERCENT);
    else if (test->binding == PERFMODEL_EDF_DEMAND)
        say(placement,
            "even an idle worker could not carry packets of %u bytes every %s, whatever the latency bound: "
            "at windows of %s it would need %s; send less often",
            spec->packet_bytes, interval.text, duration_of(test->window_ns).text,
            duration_of(test->demand_ns + test->blocking_ns).text);
    else
        say(placement,
            "packets of %u bytes every %s, %u at once, leave no time between the pieces that they are "
            "encrypted in, whatever the latency bound; send less often",
            spec->packet_bytes, interval.text, spec->burst_packets);
}

static void explain_utilisation(const struct partition_refusal *refusal,
                                struct partition_placement *placement)
{
    say(placement,
        "every worker is taken: the least loaded of %u would need %.2f %% of its time in the long run, %.2f "
        "%% of it for this stream",
        refusal->worker_count, (double)placement->test.utilisation_ppb / PPB_PER_PERCENT,
        (double)refusal->stream_ppb / PPB_PER_PERCENT);
}

static void explain_demand(const struct partition_refusal *refusal, struct partition_placement *placement)
{
    const struct perfmodel_edf_result *test = &placement->test;
    struct duration window = duration_of(test->window_ns);
    say(placement,
        "at windows of %s worker %u, the closest of %u, would need %s of %s (load %.1f %%, of which this "
        "stream %.2f %%)",
        window.text, placement->worker, refusal->worker_count,
        duration_of(test->demand_ns + test->blocking_ns).text, window.text,
        (double)test->utilisation_ppb / PPB_PER_PERCENT, (double)refusal->stream_ppb / PPB_PER_PERCENT);
}

static void explain_io(const struct partition_refusal *refusal, struct partition_placement *placement)
{
    say(placement,
        "I/O thread %u would need %.2f %% of its time, %.2f %% of it for this stream, and may promise %.0f "
        "%%",
        refusal->io, (double)refusal->io_taken_ppb / PPB_PER_PERCENT,
        (double)placement->io_ppb / PPB_PER_PERCENT, (double)refusal->io_limit_ppb / PPB_PER_PERCENT);
}

void partition_explain(const struct partition_refusal *refusal, struct partition_placement *placement)
{
    if (placement->constraint == PARTITION_DEADLINE)
        explain_deadline(refusal, placement);
    else if (refusal->idle)
        explain_rate(refusal, placement);
    else if (placement->constraint == PARTITION_IO)
        explain_io(refusal, placement);
    else if (placement->constraint == PARTITION_CPU_UTILISATION)
        explain_utilisation(refusal, placement);
    else
        explain_demand(refusal, placement);
}

const char *partition_constraint_name(enum partition_constraint constraint)
{
    switch (constraint) {
    case PARTITION_FITS:
        return "fits";
    case PARTITION_DEADLINE:
        return "deadline";
    case PARTITION_CPU_UTILISATION:
        return "cpu-utilisation";
    case PARTITION_CPU_DEMAND:
        return "cpu-demand";
    case PARTITION_IO:
        return "io";
    }
    return "unknown";
}
