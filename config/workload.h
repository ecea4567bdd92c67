/* A workload: classes of streams with distributions of rate and deadline, from which a generator draws
 * streams.
 *
 *   name: norm
 *   classes:
 *     - name: norm
 *       weight: 1
 *       rate_mbit_per_s: {distribution: normal, mean: 3.1, sd: 1.1}
 *       deadline_ms: {distribution: normal, mean: 20.5, sd: 7.5}
 *       packet_bytes: 1400
 *       burst_packets: 2
 *
 * A class may have messages, with the words of core/stream.h:
 *
 *     - name: segments                # HLS: as `openssl enc` makes them, with their numbers as IV
 *       packet_bytes: 1408
 *       unit: message
 *       message_packets: 100          # a segment
 *       iv: counter
 *       first_unit: 7                 # its first number
 *       padding: pkcs7
 *
 * beside them `pattern: "1:9"`, `records: ts` and `direction: decrypt`. With message_packets 1, the default,
 * its streams declare that each message is one packet (docs/protocol.md), so that a GPU may encrypt those of a
 * stream side by side.
 *
 * Truncation as in the SYSTOR paper, section 5.2: normal draws are limited to [0.002 mu, 100 mu], exponential
 * ones to [0.1 mu, 30 mu]; `minimum` and `maximum` narrow that. A draw outside is drawn again. */
#ifndef MILLRACE_CONFIG_WORKLOAD_H
#define MILLRACE_CONFIG_WORKLOAD_H

#include "core/status.h"
#include "core/stream.h"

#include <stddef.h>
#include <stdint.h>

enum config_distribution_kind {
    CONFIG_DISTRIBUTION_CONSTANT,   /* value: mean */
    CONFIG_DISTRIBUTION_UNIFORM,    /* [minimum, maximum] */
    CONFIG_DISTRIBUTION_NORMAL,     /* mean, sd */
    CONFIG_DISTRIBUTION_EXPONENTIAL /* mean (= sd) */
};

struct config_distribution {
    enum config_distribution_kind kind;
    double mean, sd;
    double minimum, maximum; /* truncation in force, after the paper's rule; always minimum <= maximum */
};

struct config_workload_class {
    char *name;
    double weight;                              /* share of the streams, relative */
    struct config_distribution rate_mbit_per_s; /* 10^6 bit/s of payload */
    struct config_distribution deadline_ms;
    /* Of every stream alike, without interval and latency bound. */
    struct core_stream_spec spec;
    uint32_t message_packets; /* of each message; 1 without messages */
};

#define CONFIG_MESSAGE_PACKETS_MAX 1000000

/* A stream whose messages have one packet each declares so, and all others do not. */
void config_workload_declare(struct core_stream_spec *spec, uint32_t message_packets);

/* CORE_OK, or CORE_INVALID with what is wrong in error: beside core_stream_spec_check, can messages of that many
 * packets be sent? All but the last bring whole blocks, and a stream that declares one packet has no more. */
CORE_CHECKED core_status config_workload_spec_check(const struct core_stream_spec *spec,
                                                    uint32_t message_packets, struct core_error *error);

struct config_workload {
    char *name;
    char *description;
    uint32_t streams;      /* how many, unless the command line says */
    double duration_s;     /* how long, unless the command line says */
    double start_spread_s; /* streams start at times uniform in [0, start_spread_s] */
    struct config_workload_class *classes;
    size_t class_count;
};

CORE_CHECKED core_status config_workload_load(const char *path, struct config_workload **workload,
                                              struct core_error *error);
CORE_CHECKED core_status config_workload_parse(const char *text, size_t bytes, const char *name,
                                               struct config_workload **workload, struct core_error *error);
void config_workload_free(struct config_workload *workload);

#endif
