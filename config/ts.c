#include "config/ts.h"

#include "config/file.h"
#include "config/report.h"
#include "config/yaml.h"
#include "core/value.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIDS_MAX      8192
#define RATE_MAX_MBIT 10000.0

/* ---- the file as it is written, NULL where a key is absent ---- */

struct raw_words {
    char *file, *command;
};

struct raw_service {
    char *name, *input, *input_interface, *input_source, *output, *output_interface;
    int64_t *ttl, *datagram_bytes;
    double rate_mbit_per_s, *jitter_ms, *bound_ms;
    bool *hold, *guaranteed;
    uint16_t *clear_pids;
    uint32_t clear_pid_count;
    struct raw_words words;
};

struct raw_ts {
    struct raw_service *services;
    uint32_t service_count;
};

#define TEXT_FIELD(structure, member, flags)                                                                 \
    CYAML_FIELD_STRING_PTR(#member, CYAML_FLAG_POINTER | (flags), structure, member, 1, 4095)
#define WHOLE_FIELD(member)  CYAML_FIELD_INT_PTR(#member, CYAML_FLAG_OPTIONAL, struct raw_service, member)
#define NUMBER_FIELD(member) CYAML_FIELD_FLOAT_PTR(#member, CYAML_FLAG_OPTIONAL, struct raw_service, member)
#define SWITCH_FIELD(member)                                                                                 \
    CYAML_FIELD_ENUM_PTR(#member, CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT, struct raw_service, member,       \
                         truths, CYAML_ARRAY_LEN(truths))

static const cyaml_strval_t truths[] = {{"true", true}, {"false", false}};

static const cyaml_schema_field_t words_fields[] = {
    TEXT_FIELD(struct raw_words, file, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_words, command, CYAML_FLAG_OPTIONAL),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t pid_schema = {CYAML_VALUE_UINT(CYAML_FLAG_DEFAULT, uint16_t)};
static const cyaml_schema_field_t service_fields[] = {
    TEXT_FIELD(struct raw_service, name, 0),
    TEXT_FIELD(struct raw_service, input, 0),
    TEXT_FIELD(struct raw_service, input_interface, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_service, input_source, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_service, output, 0),
    TEXT_FIELD(struct raw_service, output_interface, CYAML_FLAG_OPTIONAL),
    WHOLE_FIELD(ttl),
    CYAML_FIELD_FLOAT("rate_mbit_per_s", CYAML_FLAG_DEFAULT, struct raw_service, rate_mbit_per_s),
    WHOLE_FIELD(datagram_bytes),
    NUMBER_FIELD(jitter_ms),
    NUMBER_FIELD(bound_ms),
    SWITCH_FIELD(hold),
    SWITCH_FIELD(guaranteed),
    CYAML_FIELD_SEQUENCE_COUNT("clear_pids", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw_service,
                               clear_pids, clear_pid_count, &pid_schema, 0, PIDS_MAX),
    CYAML_FIELD_MAPPING("words", CYAML_FLAG_DEFAULT, struct raw_service, words, words_fields),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t service_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_service, service_fields),
};
static const cyaml_schema_field_t ts_fields[] = {
    CYAML_FIELD_SEQUENCE_COUNT("services", CYAML_FLAG_POINTER, struct raw_ts, services, service_count,
                               &service_schema, 1, CONFIG_TS_SERVICES_MAX),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t ts_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_ts, ts_fields),
};

/* ---- addresses ---- */

/* Of digits: no name is asked for. */
static bool address_parse(const char *host, const char *port, struct sockaddr_storage *address,
                          socklen_t *bytes)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *found;

    if (getaddrinfo(host, port, &hints, &found) != 0)
        return false;
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

static bool is_group(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET
               ? IN_MULTICAST(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr))
               : IN6_IS_ADDR_MULTICAST(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool endpoint_parse(const char *text, struct config_ts_endpoint *endpoint)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    uint64_t port;

    if (strncmp(text, "udp:", 4) != 0 || colon < text + 4 || (size_t)(colon - text - 4) >= sizeof host ||
        !core_count_parse(colon + 1, UINT16_MAX, &port) || port == 0)
        return false;
    text += 4;
    size_t length = (size_t)(colon - text);
    const bool bracketed = length > 2 && text[0] == '[' && text[length - 1] == ']';
    length -= bracketed ? 2 : 0;
    memcpy(host, text + bracketed, length);
    host[length] = '\0';
    if (bracketed != (strchr(host, ':') != NULL) ||
        !address_parse(host, colon + 1, &endpoint->address, &endpoint->address_bytes))
        return false;
    endpoint->is_group = is_group(&endpoint->address);
    return true;
}

static char *text_from(struct config_report *report, const char *text)
{
    char *copy = text ? strdup(text) : NULL;

    if (text && !copy)
        config_report_no_memory(report);
    return copy;
}

static void endpoint_from(struct config_report *report, const char *path, const char *key, const char *text,
                          const char *interface, struct config_ts_endpoint *endpoint)
{
    if (!endpoint_parse(text, endpoint))
        config_report_invalid(report, config_path("%s.%s", path, key).text,
                              "'%.80s' is no udp:ADDRESS:PORT, as udp:239.1.1.1:5000 or udp:[ff15::1]:5000",
                              text);
    else if (interface && !endpoint->is_group)
        config_report_invalid(report, config_path("%s.%s_interface", path, key).text,
                              "is for multicast groups; remove it");
    endpoint->interface = text_from(report, interface);
}

static void source_from(struct config_report *report, const char *path, const char *text,
                        struct config_ts_service *service)
{
    socklen_t bytes;

    if (!text)
        return;
    service->has_source = true;
    if (!address_parse(text, NULL, &service->source, &bytes) ||
        service->source.ss_family != service->input.address.ss_family || is_group(&service->source))
        config_report_invalid(report, config_path("%s.input_source", path).text,
                              "'%.80s' is no address of a sender to this input", text);
    else if (!service->input.is_group)
        config_report_invalid(report, config_path("%s.input_source", path).text,
                              "is for multicast groups; remove it");
}

/* ---- services ---- */

static void words_from(struct config_report *report, const char *path, const struct raw_words *raw,
                       struct config_ts_service *service)
{
    if ((raw->file == NULL) == (raw->command == NULL))
        config_report_invalid(report, config_path("%s.words", path).text, "give either file or command");
    service->words_command = text_from(report, raw->command);
    if (!raw->file)
        return;
    service->words_file = config_file_beside(report->yaml->name, raw->file);
    if (!service->words_file)
        config_report_no_memory(report);
}

static void pids_from(struct config_report *report, const char *path, const struct raw_service *raw,
                      struct config_ts_service *service)
{
    if (raw->clear_pid_count == 0)
        return;
    service->clear_pids = calloc(raw->clear_pid_count, sizeof *service->clear_pids);
    if (!service->clear_pids) {
        config_report_no_memory(report);
        return;
    }
    service->clear_pid_count = raw->clear_pid_count;
    for (size_t i = 0; i < raw->clear_pid_count; i++) {
        service->clear_pids[i] = raw->clear_pids[i];
        config_report_range(report, config_path("%s.clear_pids[%zu]", path, i).text, raw->clear_pids[i], 0,
                            PIDS_MAX - 1);
    }
}

static core_ns time_from(struct config_report *report, const char *path, const char *key, const double *given,
                         double fallback_ms, double minimum_ms, double maximum_ms)
{
    const double value_ms = config_report_number(report, config_path("%s.%s", path, key).text, given,
                                                 fallback_ms, minimum_ms, maximum_ms);
    return (core_ns)(value_ms * (double)CORE_NS_PER_MS);
}

/* Names are labels of metrics. */
static void name_from(struct config_report *report, const char *path, const char *name,
                      struct config_ts_service *service)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (strlen(name) > 63 || name[strspn(name, allowed)] != '\0')
        config_report_invalid(report, config_path("%s.name", path).text,
                              "'%.63s' must have at most 63 letters, digits, '.', '_' and '-'", name);
    service->name = text_from(report, name);
}

static void service_from(struct config_report *report, size_t index, const struct raw_service *raw,
                         struct config_ts_service *service)
{
    const struct config_path at = config_path("services[%zu]", index);
    const char *path = at.text;

    name_from(report, path, raw->name, service);
    endpoint_from(report, path, "input", raw->input, raw->input_interface, &service->input);
    endpoint_from(report, path, "output", raw->output, raw->output_interface, &service->output);
    if (report->status != CORE_OK)
        return;
    source_from(report, path, raw->input_source, service);
    service->ttl = (int)config_report_integer(report, config_path("%s.ttl", path).text, raw->ttl, 1, 0, 255);
    service->rate_bits_per_s =
        1e6 * config_report_number(report, config_path("%s.rate_mbit_per_s", path).text,
                                   &raw->rate_mbit_per_s, 1, 1e-3, RATE_MAX_MBIT);
    service->datagram_bytes = (uint32_t)config_report_integer(
        report, config_path("%s.datagram_bytes", path).text, raw->datagram_bytes, 7 * CONFIG_TS_PACKET_BYTES,
        CONFIG_TS_PACKET_BYTES, CONFIG_TS_DATAGRAM_BYTES_MAX);
    if (service->datagram_bytes % CONFIG_TS_PACKET_BYTES != 0)
        config_report_invalid(report, config_path("%s.datagram_bytes", path).text,
                              "must be a multiple of 188");
    service->jitter_ns = time_from(report, path, "jitter_ms", raw->jitter_ms, 10, 0, 1000);
    service->bound_ns = time_from(report, path, "bound_ms", raw->bound_ms, 5, 0.2, 10000);
    service->hold = raw->hold && *raw->hold;
    service->guaranteed = raw->guaranteed && *raw->guaranteed;
    pids_from(report, path, raw, service);
    words_from(report, path, &raw->words, service);
}

static bool same_endpoint(const struct config_ts_endpoint *one, const struct config_ts_endpoint *two)
{
    return one->address_bytes == two->address_bytes &&
           memcmp(&one->address, &two->address, one->address_bytes) == 0;
}

static void compare_services(struct config_report *report, const struct config_ts *ts, size_t i, size_t j)
{
    const struct config_ts_service *one = &ts->services[i], *two = &ts->services[j];

    if (strcmp(one->name, two->name) == 0)
        config_report_invalid(report, config_path("services[%zu].name", i).text,
                              "is the same as that of services[%zu]; rename one", j);
    if (same_endpoint(&one->output, &two->output))
        config_report_invalid(report, config_path("services[%zu].output", i).text,
                              "is the same as that of services[%zu]; change one", j);
    if (same_endpoint(&one->input, &two->output) || same_endpoint(&two->input, &one->output))
        config_report_invalid(report, config_path("services[%zu].output", i).text,
                              "what services[%zu] sends would be taken in again; change one", j);
}

static core_status convert(const struct config_yaml *yaml, const struct raw_ts *raw, struct config_ts *ts,
                           struct core_error *error)
{
    struct config_report report = {.yaml = yaml, .error = error};

    ts->services = calloc(raw->service_count, sizeof *ts->services);
    if (!ts->services) {
        config_report_no_memory(&report);
        return report.status;
    }
    ts->service_count = raw->service_count;
    for (size_t i = 0; i < ts->service_count && report.status == CORE_OK; i++)
        service_from(&report, i, &raw->services[i], &ts->services[i]);
    for (size_t i = 0; i < ts->service_count && report.status == CORE_OK; i++) {
        if (same_endpoint(&ts->services[i].input, &ts->services[i].output))
            config_report_invalid(&report, config_path("services[%zu].output", i).text,
                                  "is the same as its input; change one");
        for (size_t j = 0; j < i && report.status == CORE_OK; j++)
            compare_services(&report, ts, i, j);
    }
    return report.status;
}

/* Closes the document. */
static core_status from_yaml(struct config_yaml *yaml, struct config_ts **ts, struct core_error *error)
{
    void *raw;
    core_status status = config_yaml_load(yaml, &ts_schema, &raw, error);

    if (status != CORE_OK)
        goto close;
    struct config_ts *made = calloc(1, sizeof *made);
    if (made)
        status = convert(yaml, raw, made, error);
    else
        status = core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
    if (status == CORE_OK)
        *ts = made;
    else
        config_ts_free(made);
    config_yaml_free(&ts_schema, raw);
close:
    config_yaml_close(yaml);
    return status;
}

core_status config_ts_load(const char *path, struct config_ts **ts, struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_open(path, &yaml, error);

    return status == CORE_OK ? from_yaml(yaml, ts, error) : status;
}

core_status config_ts_parse(const char *text, size_t bytes, const char *name, struct config_ts **ts,
                            struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_parse(text, bytes, name, &yaml, error);

    return status == CORE_OK ? from_yaml(yaml, ts, error) : status;
}

void config_ts_free(struct config_ts *ts)
{
    if (!ts)
        return;
    for (size_t i = 0; i < ts->service_count; i++) {
        struct config_ts_service *service = &ts->services[i];
        free(service->name);
        free(service->input.interface);
        free(service->output.interface);
        free(service->clear_pids);
        free(service->words_file);
        free(service->words_command);
    }
    free(ts->services);
    free(ts);
}
