#include "inputgen/streams.h"

#include "inputgen/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double draw_once(const struct config_distribution *distribution, struct inputgen_random *random)
{
    switch (distribution->kind) {
    case CONFIG_DISTRIBUTION_UNIFORM:
        return distribution->minimum +
               inputgen_random_uniform(random) * (distribution->maximum - distribution->minimum);
    case CONFIG_DISTRIBUTION_NORMAL:
        return distribution->mean + distribution->sd * inputgen_random_normal(random);
    case CONFIG_DISTRIBUTION_EXPONENTIAL:
        return distribution->mean * inputgen_random_exponential(random);
    case CONFIG_DISTRIBUTION_CONSTANT:
        break;
    }
    return distribution->mean;
}

/* Ends: the loading of workloads refuses bounds with less than a thousandth of the probability inside. */
static double draw(const struct config_distribution *distribution, struct inputgen_random *random)
{
    double value;

    do
        value = draw_once(distribution, random);
    while (value < distribution->minimum || value > distribution->maximum);
    return value;
}

/* The class of the next stream: each class earns its share of a stream each time, and the one to which most
 * is owed is served. */
static uint32_t class_next(const struct config_workload *workload, double weight_sum, double *owed)
{
    uint32_t chosen = 0;

    for (uint32_t i = 0; i < workload->class_count; i++) {
        owed[i] += workload->classes[i].weight / weight_sum;
        if (owed[i] > owed[chosen])
            chosen = i;
    }
    owed[chosen] -= 1;
    return chosen;
}

/* Rounded, and kept away from overflow; core_stream_spec_check refuses what is out of range. */
static core_ns ns_from(double value_ns)
{
    return value_ns < (double)CORE_NS_PER_S * 1e6 ? (core_ns)llround(value_ns) : CORE_NS_NEVER;
}

static core_status stream_make(const struct config_workload *workload, uint32_t class_index,
                               core_ns duration_ns, struct inputgen_random *random,
                               struct inputgen_stream *stream, struct core_error *error)
{
    const struct config_workload_class *class = &workload->classes[class_index];
    const double rate_mbit_per_s = draw(&class->rate_mbit_per_s, random);
    const double deadline_ms = draw(&class->deadline_ms, random);
    const core_ns start_ns = ns_from(inputgen_random_uniform(random) * workload->start_spread_s * 1e9);

    *stream = (struct inputgen_stream){
        .spec = class->spec,
        .start_ns = start_ns < duration_ns ? start_ns : duration_ns - 1, /* rounding */
        .stop_ns = duration_ns,
        .class_index = class_index,
        .message_packets = class->message_packets,
    };
    stream->spec.interval_ns = ns_from(class->spec.packet_bytes * 8e3 / rate_mbit_per_s);
    stream->spec.latency_ns = ns_from(deadline_ms * 1e6);
    const core_status status = config_workload_spec_check(&stream->spec, stream->message_packets, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "class %s, rate %g Mbit/s, deadline %g ms", class->name,
                                 rate_mbit_per_s, deadline_ms);
    return CORE_OK;
}

static struct inputgen_streams *list_create(const struct config_workload *workload, uint32_t count)
{
    struct inputgen_streams *list = calloc(1, sizeof *list);

    if (!list)
        return NULL;
    list->streams = calloc(count, sizeof *list->streams);
    list->classes = calloc(workload->class_count, sizeof *list->classes);
    if (!list->streams || !list->classes) {
        inputgen_streams_free(list);
        return NULL;
    }
    list->count = count;
    list->class_count = workload->class_count;
    for (size_t i = 0; i < list->class_count; i++)
        strncpy(list->classes[i].name, workload->classes[i].name, INPUTGEN_CLASS_NAME_MAX);
    return list;
}

static core_status streams_draw(const struct config_workload *workload, core_ns duration_ns, uint64_t seed,
                                struct inputgen_streams *list, struct core_error *error)
{
    struct inputgen_random random;
    double weight_sum = 0;
    core_status status = CORE_OK;
    double *owed = calloc(workload->class_count, sizeof *owed);

    if (!owed)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < workload->class_count; i++)
        weight_sum += workload->classes[i].weight;
    inputgen_random_seed(&random, seed);
    for (size_t i = 0; i < list->count && status == CORE_OK; i++)
        status = stream_make(workload, class_next(workload, weight_sum, owed), duration_ns, &random,
                             &list->streams[i], error);
    free(owed);
    return status;
}

core_status inputgen_streams_make(const struct config_workload *workload, uint32_t count, core_ns duration_ns,
                                  uint64_t seed, struct inputgen_streams **list, struct core_error *error)
{
    const uint32_t streams = count ? count : workload->streams;
    const core_ns stop_ns = duration_ns ? duration_ns : ns_from(workload->duration_s * 1e9);

    if (streams > INPUTGEN_STREAMS_MAX)
        return core_error_set(error, CORE_INVALID, "%u streams are too many; at most %d", (unsigned)streams,
                              INPUTGEN_STREAMS_MAX);
    if (stop_ns < 1 || stop_ns > INPUTGEN_TIME_NS_MAX)
        return core_error_set(error, CORE_INVALID, "the duration must be above 0 and at most a day");
    if ((double)stop_ns <= workload->start_spread_s * 1e9)
        return core_error_set(
            error, CORE_INVALID,
            "streams start within %g s (the workload's start_spread_s) but would stop after %g s; "
            "give --duration, or duration_s, more than that",
            workload->start_spread_s, (double)stop_ns / 1e9);
    struct inputgen_streams *made = list_create(workload, streams);
    if (!made)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory for %u streams", (unsigned)streams);
    const core_status status = streams_draw(workload, stop_ns, seed, made, error);
    if (status != CORE_OK) {
        inputgen_streams_free(made);
        return status;
    }
    *list = made;
    return CORE_OK;
}

void inputgen_streams_free(struct inputgen_streams *list)
{
    if (!list)
        return;
    free(list->streams);
    free(list->classes);
    free(list);
}
