#include "config/server_raw.h"

#include <string.h>

#define LISTENERS_MAX  64
#define PATH_BYTES_MAX 4096

#define INT_FIELD(structure, member) CYAML_FIELD_INT_PTR(#member, CYAML_FLAG_OPTIONAL, structure, member)
#define TEXT_FIELD(structure, member, optional)                                                              \
    CYAML_FIELD_STRING_PTR(#member, CYAML_FLAG_POINTER | (optional), structure, member, 1, PATH_BYTES_MAX)
#define ENUM_FIELD(structure, member, names)                                                                 \
    CYAML_FIELD_ENUM_PTR(#member, CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT, structure, member, names,         \
                         CYAML_ARRAY_LEN(names))
#define PART_FIELD(structure, member, fields)                                                                \
    CYAML_FIELD_MAPPING(#member, CYAML_FLAG_OPTIONAL, structure, member, fields)

/* libcyaml takes any word that is not one of its five kinds of "no" for true; so truth is an enum here. */
static const cyaml_strval_t truths[] = {{"true", true}, {"false", false}};
static const cyaml_strval_t proxies[] = {{"none", false}, {"v2", true}};
static const cyaml_strval_t realtimes[] = {
    {"off", CONFIG_REALTIME_OFF}, {"auto", CONFIG_REALTIME_AUTO}, {"required", CONFIG_REALTIME_REQUIRED}};
static const cyaml_strval_t sandboxes[] = {
    {"off", CORE_SANDBOX_OFF}, {"auto", CORE_SANDBOX_AUTO}, {"required", CORE_SANDBOX_REQUIRED}};
static const cyaml_strval_t uses[] = {
    {"auto", CONFIG_GPUS_AUTO}, {"none", CONFIG_GPUS_NONE}, {"emulated", CONFIG_GPUS_EMULATED}};
static const cyaml_strval_t levels[] = {{"error", CORE_LOG_ERROR},
                                        {"warning", CORE_LOG_WARNING},
                                        {"info", CORE_LOG_INFO},
                                        {"debug", CORE_LOG_DEBUG}};
static const cyaml_strval_t formats[] = {{"text", CORE_LOG_TEXT}, {"json", CORE_LOG_JSON}};

static const cyaml_schema_field_t listener_fields[] = {
    TEXT_FIELD(struct raw_listener, address, CYAML_FLAG_DEFAULT),
    INT_FIELD(struct raw_listener, mode),
    TEXT_FIELD(struct raw_listener, certificate, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_listener, key, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_listener, client_ca, CYAML_FLAG_OPTIONAL),
    ENUM_FIELD(struct raw_listener, proxy, proxies),
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t listener_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_listener, listener_fields),
};

static const cyaml_schema_field_t threads_fields[] = {
    INT_FIELD(struct raw_threads, io),
    INT_FIELD(struct raw_threads, workers),
    INT_FIELD(struct raw_threads, cores),
    INT_FIELD(struct raw_threads, tls),
    ENUM_FIELD(struct raw_threads, realtime, realtimes),
    INT_FIELD(struct raw_threads, worker_priority),
    INT_FIELD(struct raw_threads, io_priority),
    ENUM_FIELD(struct raw_threads, pin, truths),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t limits_fields[] = {
    INT_FIELD(struct raw_limits, connections),
    INT_FIELD(struct raw_limits, connections_per_peer),
    INT_FIELD(struct raw_limits, connections_per_listener),
    INT_FIELD(struct raw_limits, handshakes),
    INT_FIELD(struct raw_limits, tls_handshakes_per_s),
    INT_FIELD(struct raw_limits, streams),
    INT_FIELD(struct raw_limits, streams_per_connection),
    INT_FIELD(struct raw_limits, packet_bytes),
    INT_FIELD(struct raw_limits, burst_packets),
    INT_FIELD(struct raw_limits, stream_buffer_kib),
    INT_FIELD(struct raw_limits, buffer_mib),
    INT_FIELD(struct raw_limits, lane_mib),
    INT_FIELD(struct raw_limits, bytes_per_key),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t timeouts_fields[] = {
    INT_FIELD(struct raw_timeouts, hello_ms),
    INT_FIELD(struct raw_timeouts, frame_ms),
    INT_FIELD(struct raw_timeouts, idle_ms),
    INT_FIELD(struct raw_timeouts, stream_idle_ms),
    INT_FIELD(struct raw_timeouts, stall_ms),
    INT_FIELD(struct raw_timeouts, leave_ms),
    INT_FIELD(struct raw_timeouts, drain_ms),
    INT_FIELD(struct raw_timeouts, move_ms),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t overload_fields[] = {
    ENUM_FIELD(struct raw_overload, tighten, truths),
    INT_FIELD(struct raw_overload, quiet_ms),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t card_schema = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char, 1, CONFIG_GPUS_CARD_BYTES - 1),
};
static const cyaml_schema_field_t gpus_fields[] = {
    ENUM_FIELD(struct raw_gpus, use, uses),
    CYAML_FIELD_SEQUENCE_COUNT("cards", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw_gpus, cards,
                               card_count, &card_schema, 1, CONFIG_GPUS_CARDS_MAX),
    TEXT_FIELD(struct raw_gpus, program, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_gpus, user, CYAML_FLAG_OPTIONAL),
    INT_FIELD(struct raw_gpus, audit),
    INT_FIELD(struct raw_gpus, hang_ms),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t agent_fields[] = {
    TEXT_FIELD(struct raw_agent, address, CYAML_FLAG_DEFAULT),
    INT_FIELD(struct raw_agent, packet_bytes),
    INT_FIELD(struct raw_agent, burst_packets),
    INT_FIELD(struct raw_agent, interval_us),
    INT_FIELD(struct raw_agent, latency_us),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t log_fields[] = {
    ENUM_FIELD(struct raw_log, level, levels),
    ENUM_FIELD(struct raw_log, format, formats),
    CYAML_FIELD_END,
};

/* All but `gpus`, which has three forms. */
#define SERVER_FIELDS                                                                                        \
    CYAML_FIELD_SEQUENCE_COUNT("listeners", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw_server,     \
                               listeners, listener_count, &listener_schema, 1, LISTENERS_MAX),               \
        PART_FIELD(struct raw_server, threads, threads_fields),                                              \
        PART_FIELD(struct raw_server, limits, limits_fields),                                                \
        PART_FIELD(struct raw_server, timeouts, timeouts_fields),                                            \
        PART_FIELD(struct raw_server, overload, overload_fields),                                            \
        TEXT_FIELD(struct raw_server, engine, CYAML_FLAG_OPTIONAL),                                          \
        TEXT_FIELD(struct raw_server, profile, CYAML_FLAG_OPTIONAL),                                         \
        TEXT_FIELD(struct raw_server, keyring, CYAML_FLAG_OPTIONAL),                                         \
        ENUM_FIELD(struct raw_server, client_iv, truths),                                                    \
        ENUM_FIELD(struct raw_server, check_plans, truths),                                                  \
        ENUM_FIELD(struct raw_server, sandbox, sandboxes),                                                   \
        TEXT_FIELD(struct raw_server, admin, CYAML_FLAG_OPTIONAL),                                           \
        CYAML_FIELD_MAPPING_PTR("agent", CYAML_FLAG_OPTIONAL, struct raw_server, agent, agent_fields),       \
        PART_FIELD(struct raw_server, log, log_fields)

static const cyaml_schema_field_t fields_with_parts[] = {
    SERVER_FIELDS,
    PART_FIELD(struct raw_server, gpus, gpus_fields),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t fields_with_word[] = {
    SERVER_FIELDS,
    CYAML_FIELD_ENUM_PTR("gpus", CYAML_FLAG_STRICT, struct raw_server, gpus.use, uses, CYAML_ARRAY_LEN(uses)),
    CYAML_FIELD_END,
};
static const cyaml_schema_field_t fields_with_list[] = {
    SERVER_FIELDS,
    CYAML_FIELD_SEQUENCE_COUNT("gpus", CYAML_FLAG_POINTER, struct raw_server, gpus.cards, gpus.card_count,
                               &card_schema, 1, CONFIG_GPUS_CARDS_MAX),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t with_parts = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_server, fields_with_parts),
};
static const cyaml_schema_value_t with_word = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_server, fields_with_word),
};
static const cyaml_schema_value_t with_list = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_server, fields_with_list),
};

const cyaml_schema_value_t *config_server_schema(const struct config_yaml *yaml)
{
    const yaml_node_t *root = yaml_document_get_root_node((yaml_document_t *)&yaml->document);
    const yaml_node_t *gpus = NULL;

    if (root != NULL && root->type == YAML_MAPPING_NODE)
        gpus = config_yaml_find(yaml, root, "gpus", strlen("gpus"), NULL);
    if (gpus != NULL && gpus->type == YAML_SCALAR_NODE)
        return &with_word;
    return gpus != NULL && gpus->type == YAML_SEQUENCE_NODE ? &with_list : &with_parts;
}
