#include "partition/admission/reasons.h"

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

/* No latency bound would do: the packets are too large for their interval. */
static void explain_rate(const struct core_stream_spec *spec, const struct perfmodel_edf_result *test,
                         char reason[PARTITION_REASON_BYTES])
{
    struct duration interval = duration_of(spec->interval_ns);
    if (test->binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        snprintf(reason, PARTITION_REASON_BYTES,
                 "packets of %u bytes every %s would take %.1f %% of a worker, and a stream can use only one",
                 spec->packet_bytes, interval.text, (double)test->utilisation_ppb / PPB_PER_PERCENT);
    else if (test->binding == PERFMODEL_LIMIT_CPU_DEMAND)
        snprintf(
            reason, PARTITION_REASON_BYTES,
            "even an idle worker could not carry packets of %u bytes every %s, whatever the latency bound: "
            "in a window of %s it would need %s; send less often",
            spec->packet_bytes, interval.text, duration_of(test->window_ns).text,
            duration_of(test->demand_ns + test->blocking_ns).text);
    else
        snprintf(reason, PARTITION_REASON_BYTES,
                 "packets of %u bytes every %s, %u at once, leave no time between the pieces that they are "
                 "encrypted in, whatever the latency bound; send less often",
                 spec->packet_bytes, interval.text, spec->burst_packets);
}

void partition_explain_idle_worker(const struct core_stream_spec *spec,
                                   const struct perfmodel_edf_result *test, core_ns least_ns,
                                   char reason[PARTITION_REASON_BYTES])
{
    if (least_ns == 0)
        explain_rate(spec, test, reason);
    else
        snprintf(reason, PARTITION_REASON_BYTES,
                 "a latency bound of %s is below what even an idle worker could keep; the shortest for this "
                 "packet "
                 "size, interval and burst is %s",
                 duration_of(spec->latency_ns).text, duration_of(least_ns).text);
}

void partition_explain_worker(const struct perfmodel_edf_result *test, uint32_t worker, uint32_t workers,
                              int64_t stream_ppb, char reason[PARTITION_REASON_BYTES])
{
    if (test->binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        snprintf(reason, PARTITION_REASON_BYTES,
                 "no worker has capacity left: the least loaded of %u would need %.2f %% of its time in the "
                 "long run, %.2f %% of it for this stream",
                 workers, (double)test->utilisation_ppb / PPB_PER_PERCENT,
                 (double)stream_ppb / PPB_PER_PERCENT);
    else
        snprintf(reason, PARTITION_REASON_BYTES,
                 "worker %u, the closest of %u, would need %s in a window of %s (load %.1f %%, of which this "
                 "stream %.2f %%)",
                 worker, workers, duration_of(test->demand_ns + test->blocking_ns).text,
                 duration_of(test->window_ns).text, (double)test->utilisation_ppb / PPB_PER_PERCENT,
                 (double)stream_ppb / PPB_PER_PERCENT);
}

void partition_explain_io(uint32_t io, int64_t taken_ppb, int64_t stream_ppb, int64_t limit_ppb,
                          char reason[PARTITION_REASON_BYTES])
{
    snprintf(
        reason, PARTITION_REASON_BYTES,
        "I/O thread %u would need %.2f %% of its time, %.2f %% of it for this stream, and at most %.0f %% "
        "may be reserved",
        io, (double)taken_ppb / PPB_PER_PERCENT, (double)stream_ppb / PPB_PER_PERCENT,
        (double)limit_ppb / PPB_PER_PERCENT);
}

void partition_explain_latency(const struct core_stream_spec *spec, core_ns least_ns,
                               char reason[PARTITION_REASON_BYTES])
{
    snprintf(
        reason, PARTITION_REASON_BYTES,
        "a latency bound of %s is below what even an idle worker or GPU could keep; the shortest for this "
        "packet size, interval and burst is %s",
        duration_of(spec->latency_ns).text, duration_of(least_ns).text);
}

void partition_explain_gpu(const struct partition_gpu_refusal *refusal, char reason[PARTITION_REASON_BYTES])
{
    const struct perfmodel_flow_verdict *verdict = refusal->verdict;
    struct duration period = duration_of(verdict->period_ns);
    double lack_percent = (double)-verdict->headroom_ppb / PPB_PER_PERCENT;
    char which[48] = "which serves the stream";
    if (!refusal->change)
        snprintf(which, sizeof which, "the closest of %u", refusal->gpus);
    int told =
        snprintf(reason, PARTITION_REASON_BYTES, "GPU %u, %s, with %llu streams and a batch every %s, ",
                 refusal->gpu, which, (unsigned long long)refusal->streams, period.text);
    const char *with = refusal->change ? "the change" : "this stream";
    char *rest = reason + told;
    size_t room = PARTITION_REASON_BYTES - (size_t)told;
    if (verdict->binding == PERFMODEL_LIMIT_GPU_LATENCY)
        snprintf(rest, room,
                 "would need %s for a batch with %s, and the shortest latency bound on it leaves %s",
                 duration_of(verdict->latency_ns).text, with, duration_of(refusal->shortest_ns).text);
    else if (verdict->binding == PERFMODEL_LIMIT_GPU_MEMORY)
        snprintf(rest, room, "would need %.1f MB for its batches with %s, %.2f %% more than it has",
                 (double)verdict->memory_bytes / 1e6, with, lack_percent);
    else
        snprintf(rest, room, "would exceed its time by %.2f %% for %s with %s", lack_percent,
                 verdict->binding == PERFMODEL_LIMIT_GPU_COPY ? "copies" : "the kernel", with);
}

void partition_explain_out(uint32_t gpu, char reason[PARTITION_REASON_BYTES])
{
    snprintf(reason, PARTITION_REASON_BYTES,
             "GPU %u would accept the stream, but is out of service; retry when it is back", gpu);
}

void partition_explain_backup(uint32_t gpu, char reason[PARTITION_REASON_BYTES])
{
    snprintf(reason, PARTITION_REASON_BYTES,
             "no unit has capacity for the backup that the stream needs in case GPU %u fails, and only a GPU "
             "can serve it; a standard stream would be accepted there",
             gpu);
}

void partition_explain_change_backup(uint32_t gpu, char reason[PARTITION_REASON_BYTES])
{
    snprintf(reason, PARTITION_REASON_BYTES,
             "with the change no unit would have capacity for the backup that the stream needs in case GPU "
             "%u fails",
             gpu);
}

void partition_explain_reserve(const char *unit, uint32_t number, int64_t share_ppb,
                               char reason[PARTITION_REASON_BYTES])
{
    snprintf(reason, PARTITION_REASON_BYTES,
             "%s %u would accept the stream, but %.1f %% of its capacity is withheld from admission after an "
             "overrun; retry when that is over",
             unit, number, (double)share_ppb / PPB_PER_PERCENT);
}

void partition_explain_change(uint32_t worker, const struct perfmodel_edf_result *test,
                              char reason[PARTITION_REASON_BYTES])
{
    if (test->binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        snprintf(reason, PARTITION_REASON_BYTES,
                 "worker %u, which serves the stream, would need %.2f %% of its time in the long run with "
                 "the change",
                 worker, (double)test->utilisation_ppb / PPB_PER_PERCENT);
    else
        snprintf(reason, PARTITION_REASON_BYTES,
                 "worker %u, which serves the stream, would need %s in a window of %s with the change (load "
                 "%.1f %%)",
                 worker, duration_of(test->demand_ns + test->blocking_ns).text,
                 duration_of(test->window_ns).text, (double)test->utilisation_ppb / PPB_PER_PERCENT);
}
