#include "config/workload.h"

#include "config/report.h"
#include "config/yaml.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES_MAX    4096
#define STREAMS_MAX    1000000
#define DURATION_S_MAX 86400.0
#define WEIGHT_MAX     1e9
#define VALUE_MAX      1e9  /* of a rate in Mbit/s or a deadline in ms; the stream's own check is tighter */
#define SHARE_MIN      1e-3 /* least probability of a draw inside the truncation, so that redrawing ends */

/* ---- the file as it is written, NULL where a key is absent ---- */

struct raw_distribution {
    enum config_distribution_kind distribution;
    double *value, *mean, *sd, *minimum, *maximum;
};

struct raw_class {
    char *name;
    double *weight;
    struct raw_distribution rate_mbit_per_s, deadline_ms;
    uint32_t packet_bytes;
    uint32_t *burst_packets, *message_packets;
    enum core_cipher *cipher;
    enum core_padding *padding;
    enum core_unit unit;
    enum core_iv iv;
    uint64_t *first_unit;
    char *pattern;
    enum core_direction direction;
    enum core_records records;
};

struct raw_workload {
    char *name, *description;
    uint32_t *streams;
    double *duration_s, *start_spread_s;
    struct raw_class *classes;
    uint32_t class_count;
};

static const cyaml_strval_t kinds[] = {{"constant", CONFIG_DISTRIBUTION_CONSTANT},
                                       {"uniform", CONFIG_DISTRIBUTION_UNIFORM},
                                       {"normal", CONFIG_DISTRIBUTION_NORMAL},
                                       {"exponential", CONFIG_DISTRIBUTION_EXPONENTIAL}};
static const cyaml_strval_t ciphers[] = {{"aes-128-cbc", CORE_CIPHER_AES_128_CBC},
                                         {"aes-192-cbc", CORE_CIPHER_AES_192_CBC},
                                         {"aes-256-cbc", CORE_CIPHER_AES_256_CBC}};
static const cyaml_strval_t paddings[] = {
    {"none", CORE_PADDING_NONE}, {"pkcs7", CORE_PADDING_PKCS7}, {"clear", CORE_PADDING_CLEAR}};
static const cyaml_strval_t units[] = {{"stream", CORE_UNIT_STREAM}, {"message", CORE_UNIT_MESSAGE}};
static const cyaml_strval_t ivs[] = {{"chain", CORE_IV_CHAIN},
                                     {"constant", CORE_IV_CONSTANT},
                                     {"counter", CORE_IV_COUNTER},
                                     {"explicit", CORE_IV_EXPLICIT},
                                     {"random", CORE_IV_RANDOM}};
static const cyaml_strval_t directions[] = {{"encrypt", CORE_DIRECTION_ENCRYPT},
                                            {"decrypt", CORE_DIRECTION_DECRYPT}};
static const cyaml_strval_t records[] = {{"none", CORE_RECORDS_NONE}, {"ts", CORE_RECORDS_TS}};

#define NUMBER_FIELD(structure, member) CYAML_FIELD_FLOAT_PTR(#member, CYAML_FLAG_OPTIONAL, structure, member)
#define ENUM_PTR_FIELD(structure, member, names)                                                             \
    CYAML_FIELD_ENUM_PTR(#member, CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT, structure, member, names,         \
                         CYAML_ARRAY_LEN(names))
/* Whose first value, 0, is the one without the key. */
#define ENUM_FIELD(structure, member, names)                                                                 \
    CYAML_FIELD_ENUM(#member, CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT, structure, member, names,             \
                     CYAML_ARRAY_LEN(names))

static const cyaml_schema_field_t distribution_fields[] = {
    CYAML_FIELD_ENUM("distribution", CYAML_FLAG_STRICT, struct raw_distribution, distribution, kinds,
                     CYAML_ARRAY_LEN(kinds)),
    NUMBER_FIELD(struct raw_distribution, value),
    NUMBER_FIELD(struct raw_distribution, mean),
    NUMBER_FIELD(struct raw_distribution, sd),
    NUMBER_FIELD(struct raw_distribution, minimum),
    NUMBER_FIELD(struct raw_distribution, maximum),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t class_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct raw_class, name, 1, 63),
    NUMBER_FIELD(struct raw_class, weight),
    CYAML_FIELD_MAPPING("rate_mbit_per_s", CYAML_FLAG_DEFAULT, struct raw_class, rate_mbit_per_s,
                        distribution_fields),
    CYAML_FIELD_MAPPING("deadline_ms", CYAML_FLAG_DEFAULT, struct raw_class, deadline_ms,
                        distribution_fields),
    CYAML_FIELD_UINT("packet_bytes", CYAML_FLAG_DEFAULT, struct raw_class, packet_bytes),
    CYAML_FIELD_UINT_PTR("burst_packets", CYAML_FLAG_OPTIONAL, struct raw_class, burst_packets),
    ENUM_PTR_FIELD(struct raw_class, cipher, ciphers),
    ENUM_PTR_FIELD(struct raw_class, padding, paddings),
    ENUM_FIELD(struct raw_class, unit, units),
    CYAML_FIELD_UINT_PTR("message_packets", CYAML_FLAG_OPTIONAL, struct raw_class, message_packets),
    ENUM_FIELD(struct raw_class, iv, ivs),
    CYAML_FIELD_UINT_PTR("first_unit", CYAML_FLAG_OPTIONAL, struct raw_class, first_unit),
    CYAML_FIELD_STRING_PTR("pattern", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw_class, pattern, 1,
                           CORE_PATTERN_TEXT_BYTES - 1),
    ENUM_FIELD(struct raw_class, direction, directions),
    ENUM_FIELD(struct raw_class, records, records),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t class_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_class, class_fields),
};

static const cyaml_schema_field_t workload_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct raw_workload, name, 1, 63),
    CYAML_FIELD_STRING_PTR("description", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw_workload,
                           description, 1, 4096),
    CYAML_FIELD_UINT_PTR("streams", CYAML_FLAG_OPTIONAL, struct raw_workload, streams),
    NUMBER_FIELD(struct raw_workload, duration_s),
    NUMBER_FIELD(struct raw_workload, start_spread_s),
    CYAML_FIELD_SEQUENCE_COUNT("classes", CYAML_FLAG_POINTER, struct raw_workload, classes, class_count,
                               &class_schema, 1, CLASSES_MAX),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t workload_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_workload, workload_fields),
};

/* ---- distributions ---- */

/* Reports a key that is needed but absent, or given where it means nothing. */
static void key_check(struct config_report *report, const char *path, const char *key, const double *given,
                      bool needed, bool allowed)
{
    if (needed && !given)
        config_report_invalid(report, path, "needs '%s' for this distribution; add it", key);
    if (!allowed && given)
        config_report_invalid(report, config_path("%s.%s", path, key).text,
                              "means nothing for this distribution; remove it");
}

static void keys_check(struct config_report *report, const char *path, const struct raw_distribution *raw)
{
    const bool constant = raw->distribution == CONFIG_DISTRIBUTION_CONSTANT;
    const bool uniform = raw->distribution == CONFIG_DISTRIBUTION_UNIFORM;
    const bool normal = raw->distribution == CONFIG_DISTRIBUTION_NORMAL;
    const bool exponential = raw->distribution == CONFIG_DISTRIBUTION_EXPONENTIAL;

    key_check(report, path, "value", raw->value, constant, constant);
    key_check(report, path, "mean", raw->mean, normal || (exponential && !raw->sd), normal || exponential);
    key_check(report, path, "sd", raw->sd, normal, normal || exponential);
    key_check(report, path, "minimum", raw->minimum, uniform, !constant);
    key_check(report, path, "maximum", raw->maximum, uniform, !constant);
}

static double parameter(struct config_report *report, const char *path, const char *key, const double *given,
                        double fallback)
{
    return config_report_number(report, config_path("%s.%s", path, key).text, given, fallback, 1e-9,
                                VALUE_MAX);
}

/* Probability that an untruncated draw lies inside the truncation. */
static double share_inside(const struct config_distribution *distribution)
{
    const double low = distribution->minimum - distribution->mean;
    const double high = distribution->maximum - distribution->mean;
    const double scale = distribution->sd * sqrt(2.0);

    if (distribution->kind == CONFIG_DISTRIBUTION_NORMAL)
        return low > 0 ? 0.5 * (erfc(low / scale) - erfc(high / scale))
                       : 0.5 * (erfc(-high / scale) - erfc(-low / scale));
    return exp(-distribution->minimum / distribution->mean) -
           exp(-distribution->maximum / distribution->mean);
}

/* The truncation rule of the SYSTOR paper, section 5.2, narrowed by what the file says. */
static void truncation_from(struct config_report *report, const char *path,
                            const struct raw_distribution *raw, struct config_distribution *distribution)
{
    const bool normal = distribution->kind == CONFIG_DISTRIBUTION_NORMAL;
    const double low = (normal ? 0.002 : 0.1) * distribution->mean;
    const double high = (normal ? 100.0 : 30.0) * distribution->mean;

    distribution->minimum = fmax(low, parameter(report, path, "minimum", raw->minimum, low));
    distribution->maximum = fmin(high, parameter(report, path, "maximum", raw->maximum, high));
    if (report->status != CORE_OK)
        return;
    if (distribution->minimum > distribution->maximum)
        config_report_invalid(report, path, "nothing lies between %g and %g, the bounds in force",
                              distribution->minimum, distribution->maximum);
    else if (share_inside(distribution) < SHARE_MIN)
        config_report_invalid(report, path, "hardly any draw lies between %g and %g; widen the bounds",
                              distribution->minimum, distribution->maximum);
}

static void distribution_from(struct config_report *report, const char *path,
                              const struct raw_distribution *raw, struct config_distribution *distribution)
{
    keys_check(report, path, raw);
    if (report->status != CORE_OK)
        return;
    distribution->kind = raw->distribution;
    switch (raw->distribution) {
    case CONFIG_DISTRIBUTION_CONSTANT:
        distribution->mean = parameter(report, path, "value", raw->value, 0);
        distribution->minimum = distribution->maximum = distribution->mean;
        break;
    case CONFIG_DISTRIBUTION_UNIFORM:
        distribution->minimum = parameter(report, path, "minimum", raw->minimum, 0);
        distribution->maximum = parameter(report, path, "maximum", raw->maximum, 0);
        distribution->mean = (distribution->minimum + distribution->maximum) / 2;
        distribution->sd = (distribution->maximum - distribution->minimum) / sqrt(12.0);
        if (distribution->minimum > distribution->maximum)
            config_report_invalid(report, path, "minimum is above maximum; swap them");
        break;
    case CONFIG_DISTRIBUTION_NORMAL:
        distribution->mean = parameter(report, path, "mean", raw->mean, 0);
        distribution->sd = parameter(report, path, "sd", raw->sd, 0);
        truncation_from(report, path, raw, distribution);
        break;
    case CONFIG_DISTRIBUTION_EXPONENTIAL:
        distribution->mean = parameter(report, path, "mean", raw->mean ? raw->mean : raw->sd, 0);
        distribution->sd = parameter(report, path, "sd", raw->sd, distribution->mean);
        if (raw->mean && raw->sd && !(*raw->mean >= *raw->sd && *raw->mean <= *raw->sd))
            config_report_invalid(report, path,
                                  "mean and sd of an exponential distribution are equal; give one of them");
        truncation_from(report, path, raw, distribution);
        break;
    }
}

/* ---- classes ---- */

/* Names end up in stream lists and file names. */
static char *name_from(struct config_report *report, const char *path, const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (name[strspn(name, allowed)] != '\0')
        config_report_invalid(report, path, "'%.63s' has more than letters, digits, '.', '_' and '-'", name);
    char *copy = strdup(name);
    if (!copy)
        config_report_no_memory(report);
    return copy;
}

void config_workload_declare(struct core_stream_spec *spec, uint32_t message_packets)
{
    spec->message_packets = spec->unit == CORE_UNIT_MESSAGE && message_packets == 1;
}

core_status config_workload_spec_check(const struct core_stream_spec *spec, uint32_t message_packets,
                                       struct core_error *error)
{
    const uint32_t least = CORE_BLOCK_BYTES + (spec->iv == CORE_IV_EXPLICIT ? CORE_BLOCK_BYTES : 0);
    const core_status status = core_stream_spec_check(spec, error);

    if (status != CORE_OK || message_packets == 1)
        return status;
    if (spec->unit != CORE_UNIT_MESSAGE || spec->records != CORE_RECORDS_NONE)
        return core_error_set(error, CORE_INVALID, "message_packets is %" PRIu32 ", must be 1 %s",
                              message_packets,
                              spec->records != CORE_RECORDS_NONE ? "with records" : "with unit stream");
    if (spec->message_packets == 1)
        return core_error_set(error, CORE_INVALID,
                              "message_packets is %" PRIu32 ", must be 1 where the stream declares so",
                              message_packets);
    if (message_packets < 1 || message_packets > CONFIG_MESSAGE_PACKETS_MAX)
        return core_error_set(error, CORE_INVALID, "message_packets is %" PRIu32 ", must be 1 to %d",
                              message_packets, CONFIG_MESSAGE_PACKETS_MAX);
    if (spec->packet_bytes < least)
        return core_error_set(error, CORE_INVALID,
                              "packet_bytes is %" PRIu32 ", must be at least %" PRIu32
                              " where a message has more than one packet",
                              spec->packet_bytes, least);
    return CORE_OK;
}

/* What the streams of a class are alike in. Times are drawn, and checked then; here any will do. */
static void spec_from(struct config_report *report, const char *path, const struct raw_class *raw,
                      struct config_workload_class *class)
{
    struct core_stream_spec *spec = &class->spec;
    struct core_error why;

    *spec = (struct core_stream_spec){
        .packet_bytes = raw->packet_bytes,
        .burst_packets = raw->burst_packets ? *raw->burst_packets : 2,
        .interval_ns = CORE_INTERVAL_NS_MAX,
        .latency_ns = CORE_LATENCY_NS_MAX,
        .cipher = raw->cipher ? *raw->cipher : CORE_CIPHER_AES_128_CBC,
        .padding = raw->padding ? *raw->padding : CORE_PADDING_PKCS7,
        .unit = raw->unit,
        .iv = raw->iv,
        .first_unit = raw->first_unit ? *raw->first_unit : 0,
        .direction = raw->direction,
        .records = raw->records,
    };
    class->message_packets = raw->message_packets ? *raw->message_packets : 1;
    config_workload_declare(spec, class->message_packets);
    config_report_range(report, config_path("%s.packet_bytes", path).text, spec->packet_bytes, 1,
                        CORE_PACKET_BYTES_MAX);
    config_report_range(report, config_path("%s.burst_packets", path).text, spec->burst_packets, 1,
                        CORE_BURST_MAX);
    if (spec->padding == CORE_PADDING_NONE && spec->packet_bytes % CORE_BLOCK_BYTES != 0)
        config_report_invalid(report, config_path("%s.packet_bytes", path).text,
                              "must be a multiple of 16 without padding; change it, or set padding: pkcs7");
    if (raw->pattern && core_pattern_parse(raw->pattern, spec) != CORE_OK)
        config_report_invalid(report, config_path("%s.pattern", path).text,
                              "must be blocks that are encrypted and that pass, \"1:9\", or none");
    if (report->status == CORE_OK &&
        config_workload_spec_check(spec, class->message_packets, &why) != CORE_OK)
        config_report_invalid(report, path, "%s", why.text);
}

static void class_from(struct config_report *report, size_t index, const struct raw_class *raw,
                       struct config_workload_class *class)
{
    const struct config_path path = config_path("classes[%zu]", index);

    class->name = name_from(report, config_path("%s.name", path.text).text, raw->name);
    class->weight =
        config_report_number(report, config_path("%s.weight", path.text).text, raw->weight, 1, 0, WEIGHT_MAX);
    distribution_from(report, config_path("%s.rate_mbit_per_s", path.text).text, &raw->rate_mbit_per_s,
                      &class->rate_mbit_per_s);
    distribution_from(report, config_path("%s.deadline_ms", path.text).text, &raw->deadline_ms,
                      &class->deadline_ms);
    spec_from(report, path.text, raw, class);
}

static void classes_from(struct config_report *report, const struct raw_workload *raw,
                         struct config_workload *workload)
{
    double total = 0;

    workload->classes = calloc(raw->class_count, sizeof *workload->classes);
    if (!workload->classes) {
        config_report_no_memory(report);
        return;
    }
    workload->class_count = raw->class_count;
    for (size_t i = 0; i < workload->class_count; i++) {
        class_from(report, i, &raw->classes[i], &workload->classes[i]);
        total += workload->classes[i].weight;
        for (size_t j = 0; j < i && report->status == CORE_OK; j++)
            if (strcmp(workload->classes[i].name, workload->classes[j].name) == 0)
                config_report_invalid(report, config_path("classes[%zu].name", i).text,
                                      "is the same as that of classes[%zu]; rename one", j);
    }
    if (!(total > 0))
        config_report_invalid(report, "classes", "all weights are zero; give one class a weight above 0");
}

static core_status workload_convert(const struct config_yaml *yaml, const struct raw_workload *raw,
                                    struct config_workload *workload, struct core_error *error)
{
    struct config_report report = {.yaml = yaml, .error = error};

    workload->name = name_from(&report, "name", raw->name);
    workload->description = strdup(raw->description ? raw->description : "");
    if (!workload->description)
        config_report_no_memory(&report);
    workload->streams = raw->streams ? *raw->streams : 1000;
    config_report_range(&report, "streams", workload->streams, 1, STREAMS_MAX);
    workload->duration_s =
        config_report_number(&report, "duration_s", raw->duration_s, 10, 1e-3, DURATION_S_MAX);
    workload->start_spread_s =
        config_report_number(&report, "start_spread_s", raw->start_spread_s, 0, 0, DURATION_S_MAX);
    if (workload->start_spread_s >= workload->duration_s)
        config_report_invalid(&report, "start_spread_s",
                              "must be below duration_s, or streams would end before they start");
    classes_from(&report, raw, workload);
    return report.status;
}

/* Closes the document. */
static core_status workload_from(struct config_yaml *yaml, struct config_workload **workload,
                                 struct core_error *error)
{
    void *raw;
    core_status status = config_yaml_load(yaml, &workload_schema, &raw, error);

    if (status != CORE_OK)
        goto close;
    struct config_workload *made = calloc(1, sizeof *made);
    if (made)
        status = workload_convert(yaml, raw, made, error);
    else
        status = core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    if (status == CORE_OK)
        *workload = made;
    else
        config_workload_free(made);
    config_yaml_free(&workload_schema, raw);
close:
    config_yaml_close(yaml);
    return status;
}

core_status config_workload_load(const char *path, struct config_workload **workload,
                                 struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_open(path, &yaml, error);

    return status == CORE_OK ? workload_from(yaml, workload, error) : status;
}

core_status config_workload_parse(const char *text, size_t bytes, const char *name,
                                  struct config_workload **workload, struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_parse(text, bytes, name, &yaml, error);

    return status == CORE_OK ? workload_from(yaml, workload, error) : status;
}

void config_workload_free(struct config_workload *workload)
{
    if (!workload)
        return;
    for (size_t i = 0; i < workload->class_count; i++)
        free(workload->classes[i].name);
    free(workload->classes);
    free(workload->name);
    free(workload->description);
    free(workload);
}
