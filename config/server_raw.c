#include "config/server_raw.h"

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
static const cyaml_strval_t realtimes[] = {
    {"off", CONFIG_REALTIME_OFF}, {"auto", CONFIG_REALTIME_AUTO}, {"required", CONFIG_REALTIME_REQUIRED}};
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
    CYAML_FIELD_END,
};
static const cyaml_schema_value_t listener_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_listener, listener_fields),
};

static const cyaml_schema_field_t threads_fields[] = {
    INT_FIELD(struct raw_threads, io),
    INT_FIELD(struct raw_threads, workers),
    ENUM_FIELD(struct raw_threads, realtime, realtimes),
    INT_FIELD(struct raw_threads, worker_priority),
    INT_FIELD(struct raw_threads, io_priority),
    ENUM_FIELD(struct raw_threads, pin, truths),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t limits_fields[] = {
    INT_FIELD(struct raw_limits, connections),
    INT_FIELD(struct raw_limits, streams),
    INT_FIELD(struct raw_limits, streams_per_connection),
    INT_FIELD(struct raw_limits, packet_bytes),
    INT_FIELD(struct raw_limits, burst_packets),
    INT_FIELD(struct raw_limits, stream_buffer_kib),
    INT_FIELD(struct raw_limits, buffer_mib),
    INT_FIELD(struct raw_limits, bytes_per_key),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t timeouts_fields[] = {
    INT_FIELD(struct raw_timeouts, hello_ms), INT_FIELD(struct raw_timeouts, frame_ms),
    INT_FIELD(struct raw_timeouts, idle_ms),  INT_FIELD(struct raw_timeouts, stall_ms),
    INT_FIELD(struct raw_timeouts, drain_ms), CYAML_FIELD_END,
};

static const cyaml_schema_field_t log_fields[] = {
    ENUM_FIELD(struct raw_log, level, levels),
    ENUM_FIELD(struct raw_log, format, formats),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t server_fields[] = {
    CYAML_FIELD_SEQUENCE_COUNT("listeners", CYAML_FLAG_POINTER, struct raw_server, listeners, listener_count,
                               &listener_schema, 1, LISTENERS_MAX),
    PART_FIELD(struct raw_server, threads, threads_fields),
    PART_FIELD(struct raw_server, limits, limits_fields),
    PART_FIELD(struct raw_server, timeouts, timeouts_fields),
    TEXT_FIELD(struct raw_server, engine, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_server, profile, CYAML_FLAG_OPTIONAL),
    TEXT_FIELD(struct raw_server, keyring, CYAML_FLAG_OPTIONAL),
    ENUM_FIELD(struct raw_server, client_iv, truths),
    TEXT_FIELD(struct raw_server, admin, CYAML_FLAG_OPTIONAL),
    PART_FIELD(struct raw_server, log, log_fields),
    CYAML_FIELD_END,
};

const cyaml_schema_value_t config_server_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_server, server_fields),
};
