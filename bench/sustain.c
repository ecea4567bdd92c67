#include "bench/sustain.h"

#include "inputgen/random.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define LATENCY_MIN_MS    20
#define LATENCY_MAX_MS    100
#define RELATIVE_STEP     1.04 /* the bisection ends when its bounds are this close */
#define REASON_CHARACTERS 140  /* of the server's words */
#define FLOOR             0.02 /* of the ceiling: below this a server sustains nothing worth telling */

core_status bench_sustain_list(const struct bench_sustain_options *options, double bytes_per_s,
                               struct inputgen_streams *list)
{
    static struct inputgen_class class = {"stream"};
    struct inputgen_random random;
    double interval_ns = 1e9 * (double)options->streams * options->packet_bytes / bytes_per_s;
    inputgen_random_seed(&random, 1);
    *list = (struct inputgen_streams){.count = options->streams, .classes = &class, .class_count = 1};
    list->streams = calloc(options->streams, sizeof *list->streams);
    if (!list->streams)
        return CORE_NO_MEMORY;
    for (size_t at = 0; at < options->streams; at++) {
        double latency_ms =
            LATENCY_MIN_MS + inputgen_random_uniform(&random) * (LATENCY_MAX_MS - LATENCY_MIN_MS);
        list->streams[at] = (struct inputgen_stream){
            .spec = {.packet_bytes = options->packet_bytes,
                     .burst_packets = 2,
                     .interval_ns = (core_ns)interval_ns,
                     .latency_ns = (core_ns)(latency_ms * 1e6),
                     .cipher = CORE_CIPHER_AES_128_CBC,
                     .padding = CORE_PADDING_PKCS7},
            .start_ns = (core_ns)(inputgen_random_uniform(&random) * interval_ns),
            .stop_ns = options->trial_ns,
            .message_packets = 1,
        };
    }
    return CORE_OK;
}

static core_status trial(const struct bench_sustain_options *options, double bytes_per_s,
                         struct bench_sustained *found, bool *passed, struct core_error *error)
{
    static const struct inputgen_judgement strict;
    char sentence[256];
    struct inputgen_streams list;
    struct inputgen_report *report;
    struct inputgen_replay_options replay = {.address = options->address,
                                             .name = "sustain",
                                             .connections = (unsigned)options->connections,
                                             .drain_ns = 2 * CORE_NS_PER_S,
                                             .seed = 1};
    if (bench_sustain_list(options, bytes_per_s, &list) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    core_status status = inputgen_replay_run(&replay, &list, &report, error);
    free(list.streams);
    if (status != CORE_OK)
        return status;
    *passed = inputgen_report_judge(report, &strict, sentence, sizeof sentence) == 0;
    if (*passed)
        found->bytes_per_s = bytes_per_s;
    else
        (void)snprintf(found->beyond, sizeof found->beyond, "%s%s%.*s", sentence,
                       report->refusal_kinds ? ": " : "", REASON_CHARACTERS, report->refusals[0].text);
    inputgen_report_free(report);
    return CORE_OK;
}

core_status bench_sustain_find(const struct bench_sustain_options *options, double ceiling_bytes_per_s,
                               struct bench_sustained *found, struct core_error *error)
{
    double low = ceiling_bytes_per_s * FLOOR, high = ceiling_bytes_per_s;
    *found = (struct bench_sustained){0};
    while (high / low > RELATIVE_STEP) {
        double middle = (low + high) / 2;
        bool passed;
        core_status status = trial(options, middle, found, &passed, error);
        if (status != CORE_OK)
            return status;
        if (passed)
            low = middle;
        else
            high = middle;
    }
    return CORE_OK;
}
