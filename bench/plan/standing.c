#include "bench/plan/standing.h"

#include "partition/admission/admission.h"

#define SLOWER     2.0
#define TRIES_MAX  8
#define GUARANTEED 1000

static double us_since(core_ns start_ns)
{
    return (double)(core_time_now_ns() - start_ns) / 1e3;
}

/* *fits: all of them were accepted. */
static core_status fill(struct admission *admission, const struct bench_plan_case *of,
                        const struct core_stream_spec *specs, struct bench_standing_times *times, bool *fits,
                        struct core_error *error)
{
    core_status status = CORE_OK;

    *fits = true;
    times->fill.count = 0;
    for (size_t i = 0; status == CORE_OK && *fits && i < of->streams; i++) {
        struct admission_placement placement;
        const core_ns start_ns = core_time_now_ns();
        status = admission_admit(admission, &specs[i], 0, i, &placement, error);
        bench_samples_add(&times->fill, us_since(start_ns));
        *fits = status == CORE_OK && placement.accepted;
    }
    return status;
}

/* Streams of which each has its like among those that stand. */
static core_status probe_newcomers(struct admission *admission, const struct bench_plan_case *of,
                                   const struct core_stream_spec *specs, uint32_t probes, bool guaranteed,
                                   struct bench_samples *admit, struct bench_samples *release,
                                   struct core_error *error)
{
    core_status status = CORE_OK;

    for (uint32_t i = 0; status == CORE_OK && i < probes; i++) {
        struct core_stream_spec spec = specs[(size_t)i * 7919 % of->streams];
        struct admission_placement placement;
        spec.guaranteed = guaranteed;
        core_ns start_ns = core_time_now_ns();
        status = admission_admit(admission, &spec, 0, i, &placement, error);
        if (status != CORE_OK || !placement.accepted)
            continue;
        bench_samples_add(admit, us_since(start_ns));
        start_ns = core_time_now_ns();
        admission_release(admission, placement.stream);
        if (release != NULL)
            bench_samples_add(release, us_since(start_ns));
    }
    return status;
}

/* Half the rate, and back again: the first is a join that settles, the other is in force at once. */
static core_status probe_changes(struct admission *admission, uint32_t probes,
                                 struct bench_standing_times *times, struct core_error *error)
{
    const size_t count = admission_streams(admission);
    core_status status = CORE_OK;

    for (uint32_t i = 0; status == CORE_OK && i < probes; i++) {
        const struct admission_stream stream = admission_stream_at(admission, (size_t)i * 7919 % count);
        struct core_stream_spec spec = stream.contract;
        struct admission_placement placement;
        if (spec.interval_ns > CORE_INTERVAL_NS_MAX / 2)
            continue;
        spec.interval_ns *= 2;
        const core_ns start_ns = core_time_now_ns();
        status = admission_change(admission, stream.stream, &spec, &placement, error);
        if (status != CORE_OK)
            break;
        admission_finalize(admission, stream.stream);
        bench_samples_add(&times->change, us_since(start_ns));
        status = admission_change(admission, stream.stream, &stream.contract, &placement, error);
    }
    return status;
}

/* Lets guaranteed streams join, which stay. */
static core_status add_guaranteed(struct admission *admission, const struct bench_plan_case *of,
                                  const struct core_stream_spec *specs, struct bench_standing_times *times,
                                  struct core_error *error)
{
    core_status status = CORE_OK;

    for (size_t i = 0; status == CORE_OK && i < GUARANTEED; i++) {
        struct core_stream_spec spec = specs[i * 7919 % of->streams];
        struct admission_placement placement;
        spec.guaranteed = true;
        status = admission_admit(admission, &spec, 0, i, &placement, error);
        times->guaranteed += status == CORE_OK && placement.accepted;
    }
    return status;
}

/* A rate that no machine has room for, so that both offers are looked for. */
static core_status probe_refusals(const struct admission *admission, uint32_t probes, bool guaranteed,
                                  struct bench_samples *refuse, struct core_error *error)
{
    core_status status = CORE_OK;

    for (uint32_t i = 0; status == CORE_OK && i < probes; i++) {
        const struct core_stream_spec spec = {.packet_bytes = 60000,
                                              .burst_packets = 2,
                                              .interval_ns = CORE_NS_PER_US + i,
                                              .latency_ns = 20 * CORE_NS_PER_MS,
                                              .cipher = CORE_CIPHER_AES_128_CBC,
                                              .padding = CORE_PADDING_NONE,
                                              .guaranteed = guaranteed};
        struct admission_placement placement;
        const core_ns start_ns = core_time_now_ns();
        status = admission_query(admission, &spec, 0, true, &placement, error);
        bench_samples_add(refuse, us_since(start_ns));
        if (status == CORE_OK && placement.accepted)
            status = core_error_set(error, CORE_MISMATCH, "480 Gbit/s in one stream were accepted");
    }
    return status;
}

static core_status samples_init(struct bench_standing_times *times, size_t streams, uint32_t probes)
{
    core_status status = bench_samples_init(&times->fill, (uint32_t)streams);

    if (status == CORE_OK)
        status = bench_samples_init(&times->admit, probes);
    if (status == CORE_OK)
        status = bench_samples_init(&times->release, probes);
    if (status == CORE_OK)
        status = bench_samples_init(&times->change, probes);
    if (status == CORE_OK)
        status = bench_samples_init(&times->backed, probes);
    if (status == CORE_OK)
        status = bench_samples_init(&times->beside, probes);
    if (status == CORE_OK)
        status = bench_samples_init(&times->unbacked, probes);
    return status == CORE_OK ? bench_samples_init(&times->refuse, probes) : status;
}

core_status bench_standing_measure(const struct bench_plan_case *of, double slowness, uint32_t probes,
                                   struct core_stream_spec *specs, struct bench_standing_times *times,
                                   struct core_error *error)
{
    struct admission *admission = NULL;
    bool fits = false;

    *times = (struct bench_standing_times){.streams = of->streams, .slowness = slowness};
    core_status status = samples_init(times, of->streams, probes);
    for (int tries = 0; status == CORE_OK && !fits && tries < TRIES_MAX; tries++) {
        admission_destroy(admission);
        admission = NULL;
        times->slowness = tries == 0 ? slowness : times->slowness * SLOWER;
        status = bench_plan_slow_down(of, times->slowness, specs, error);
        if (status == CORE_OK)
            status = admission_create(&admission, &of->machine->profile, of->machine->workers, 1, error);
        if (status == CORE_OK)
            status = fill(admission, of, specs, times, &fits, error);
    }
    if (status == CORE_OK && !fits)
        status = core_error_set(error, CORE_REFUSED, "%zu streams find no room, however slow", of->streams);
    if (status == CORE_OK)
        status = probe_newcomers(admission, of, specs, probes, false, &times->admit, &times->release, error);
    if (status == CORE_OK)
        status = probe_refusals(admission, probes, false, &times->refuse, error);
    if (status == CORE_OK)
        status = probe_changes(admission, probes, times, error);
    if (status == CORE_OK)
        status = add_guaranteed(admission, of, specs, times, error);
    if (status == CORE_OK)
        status = probe_newcomers(admission, of, specs, probes, true, &times->backed, NULL, error);
    if (status == CORE_OK)
        status = probe_newcomers(admission, of, specs, probes, false, &times->beside, NULL, error);
    if (status == CORE_OK)
        status = probe_refusals(admission, probes, true, &times->unbacked, error);
    admission_destroy(admission);
    if (status != CORE_OK)
        bench_standing_times_free(times);
    return status;
}

void bench_standing_times_free(struct bench_standing_times *times)
{
    bench_samples_free(&times->fill);
    bench_samples_free(&times->admit);
    bench_samples_free(&times->release);
    bench_samples_free(&times->change);
    bench_samples_free(&times->backed);
    bench_samples_free(&times->beside);
    bench_samples_free(&times->unbacked);
    bench_samples_free(&times->refuse);
}
