/* The server's configuration as it is written: units as in the keys, NULL where a key is absent. Private to
 * this folder; config/server.c turns it into struct config_server. */
#ifndef MILLRACE_CONFIG_SERVER_RAW_H
#define MILLRACE_CONFIG_SERVER_RAW_H

#include "config/server.h"
#include "config/yaml.h"

#include <cyaml/cyaml.h>
#include <stdbool.h>
#include <stdint.h>

struct raw_listener {
    char *address, *certificate, *key, *client_ca;
    int64_t *mode;
    bool *proxy;
};

struct raw_threads {
    int64_t *io, *workers, *cores, *tls, *worker_priority, *io_priority;
    enum config_realtime *realtime;
    bool *pin;
};

struct raw_limits {
    int64_t *connections, *connections_per_peer, *connections_per_listener, *handshakes,
        *tls_handshakes_per_s;
    int64_t *streams, *streams_per_connection, *packet_bytes, *burst_packets;
    int64_t *stream_buffer_kib, *buffer_mib, *lane_mib, *bytes_per_key;
};

struct raw_timeouts {
    int64_t *hello_ms, *frame_ms, *idle_ms, *stream_idle_ms, *stall_ms, *leave_ms, *drain_ms, *move_ms;
};

struct raw_overload {
    bool *tighten;
    int64_t *quiet_ms;
};

struct raw_gpus {
    enum config_gpus_use *use;
    char **cards;
    uint32_t card_count;
    char *program, *user;
    int64_t *audit, *hang_ms;
};

struct raw_agent {
    char *address;
    int64_t *packet_bytes, *burst_packets, *interval_us, *latency_us;
};

struct raw_log {
    enum core_log_level *level;
    enum core_log_format *format;
};

struct raw_server {
    struct raw_listener *listeners;
    uint32_t listener_count;
    struct raw_threads threads;
    struct raw_limits limits;
    struct raw_timeouts timeouts;
    struct raw_overload overload;
    struct raw_gpus gpus;
    char *engine, *profile, *keyring, *admin;
    bool *client_iv, *check_plans;
    enum core_sandbox_mode *sandbox;
    struct raw_agent *agent;
    struct raw_log log;
};

/* Of struct raw_server, for the form in which the document has `gpus`: parts, one word, or a list of cards.
 */
const cyaml_schema_value_t *config_server_schema(const struct config_yaml *yaml);

#endif
