#include "config/server.h"

#include "config/file.h"
#include "config/profile.h"
#include "config/report.h"
#include "config/server_raw.h"
#include "config/shipped.h"
#include "config/yaml.h"
#include "core/stream.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB            INT64_C(1024)
#define MIB            (1024 * KIB)
#define TIMEOUT_MS_MAX 3600000

/* A path in the file, seen from the file's own folder; NULL stays NULL. */
static char *path_from(struct config_report *report, const char *path)
{
    char *made = path ? config_file_beside(report->yaml->name, path) : NULL;

    if (path && !made)
        config_report_no_memory(report);
    return made;
}

/* Relative Unix paths are relative to the file, too. */
static void address_from(struct config_report *report, const char *path, const char *text,
                         struct core_address *address)
{
    struct core_error why;

    if (core_address_parse(text, address, &why) != CORE_OK) {
        config_report_invalid(report, path, "%s", why.text);
        return;
    }
    if (address->transport != CORE_TRANSPORT_UNIX || address->host[0] == '@')
        return;
    char *file = path_from(report, address->host);
    char *full = NULL;
    if (file && asprintf(&full, "unix:%s", file) >= 0) {
        if (core_address_parse(full, address, &why) != CORE_OK)
            config_report_invalid(report, path, "%s", why.text);
        free(full);
    } else {
        config_report_no_memory(report);
    }
    free(file);
}

bool config_same_address(const struct core_address *a, const struct core_address *b)
{
    return a->transport == b->transport && a->port == b->port && strcmp(a->host, b->host) == 0;
}

static bool same_place(const struct core_address *a, const struct core_address *b)
{
    const bool a_unix = a->transport == CORE_TRANSPORT_UNIX, b_unix = b->transport == CORE_TRANSPORT_UNIX;

    /* tcp and tls share the ports; port 0 is a new one each time */
    return a_unix == b_unix && strcmp(a->host, b->host) == 0 && a->port == b->port && (a_unix || a->port);
}

static void listener_check(struct config_report *report, size_t index, const struct config_listener *listener,
                           bool has_mode)
{
    const struct config_path path = config_path("listeners[%zu]", index);
    const bool tls = listener->address.transport == CORE_TRANSPORT_TLS;

    if (has_mode && listener->address.transport != CORE_TRANSPORT_UNIX)
        config_report_invalid(report, config_path("%s.mode", path.text).text,
                              "only a Unix socket has permissions; remove it");
    if (tls && !listener->certificate)
        config_report_invalid(report, config_path("%s.certificate", path.text).text,
                              "a tls: listener needs a certificate; name its PEM file");
    if (tls && !listener->key)
        config_report_invalid(report, config_path("%s.key", path.text).text,
                              "a tls: listener needs its certificate's key; name the PEM file");
    if (!tls && (listener->certificate || listener->key || listener->client_ca))
        config_report_invalid(report, path.text,
                              "certificate, key and client_ca are for tls: addresses; remove them or change "
                              "the address");
}

static void listener_from(struct config_report *report, size_t index, const struct raw_listener *raw,
                          struct config_listener *listener)
{
    const struct config_path path = config_path("listeners[%zu]", index);
    const int64_t mode = raw->mode ? *raw->mode : 0660;

    address_from(report, config_path("%s.address", path.text).text, raw->address, &listener->address);
    if (mode < 1 || mode > 0777)
        config_report_invalid(report, config_path("%s.mode", path.text).text,
                              "is no permission; write it in octal with a leading 0, as in 0660");
    listener->mode = (unsigned)mode;
    listener->certificate = path_from(report, raw->certificate);
    listener->key = path_from(report, raw->key);
    listener->client_ca = path_from(report, raw->client_ca);
    listener->proxy = raw->proxy && *raw->proxy;
    listener_check(report, index, listener, raw->mode);
}

static void listeners_from(struct config_report *report, const struct raw_server *raw,
                           struct config_server *server)
{
    server->listeners = calloc(raw->listener_count, sizeof *server->listeners);
    if (!server->listeners) {
        config_report_no_memory(report);
        return;
    }
    server->listener_count = raw->listener_count;
    for (size_t i = 0; i < server->listener_count; i++) {
        listener_from(report, i, &raw->listeners[i], &server->listeners[i]);
        for (size_t j = 0; j < i; j++)
            if (same_place(&server->listeners[i].address, &server->listeners[j].address))
                config_report_invalid(report, config_path("listeners[%zu].address", i).text,
                                      "is the same as that of listeners[%zu]; remove one", j);
    }
}

static void threads_from(struct config_report *report, const struct raw_threads *raw,
                         struct config_server_threads *threads)
{
    threads->io = (uint32_t)config_report_integer(report, "threads.io", raw->io, 0, 0, 256);
    threads->workers = (uint32_t)config_report_integer(report, "threads.workers", raw->workers, 0, 0, 256);
    threads->cores = (uint32_t)config_report_integer(report, "threads.cores", raw->cores, 0, 0, 1024);
    threads->tls = (uint32_t)config_report_integer(report, "threads.tls", raw->tls, 2, 1, 256);
    threads->realtime = raw->realtime ? *raw->realtime : CONFIG_REALTIME_AUTO;
    threads->worker_priority =
        (int)config_report_integer(report, "threads.worker_priority", raw->worker_priority, 20, 1, 99);
    threads->io_priority =
        (int)config_report_integer(report, "threads.io_priority", raw->io_priority, 10, 1, 99);
    threads->pin = raw->pin ? *raw->pin : true;
    if (threads->realtime != CONFIG_REALTIME_OFF && threads->io_priority >= threads->worker_priority)
        config_report_invalid(report, "threads.io_priority",
                              "%d is not below threads.worker_priority, %d: I/O threads would hold up the "
                              "workers, of which deadlines are proved",
                              threads->io_priority, threads->worker_priority);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

uint32_t config_server_share(uint32_t all, uint32_t quarters)
{
    const uint32_t share = (uint32_t)((uint64_t)all * quarters / 4), least = all < 64 ? all : 64;

    return share > least ? share : least;
}

/* A peer may have a quarter, a listener beside others three quarters of what there is. */
static void connections_from(struct config_report *report, const struct raw_limits *raw, size_t listeners,
                             struct config_server_limits *limits)
{
    const uint32_t all =
        (uint32_t)config_report_integer(report, "limits.connections", raw->connections, 4096, 1, 1024 * KIB);

    limits->connections = all;
    limits->connections_per_peer =
        (uint32_t)config_report_integer(report, "limits.connections_per_peer", raw->connections_per_peer,
                                        config_server_share(all, 1), 1, 1024 * KIB);
    limits->connections_per_listener = (uint32_t)config_report_integer(
        report, "limits.connections_per_listener", raw->connections_per_listener,
        config_server_share(all, listeners > 1 ? 3 : 4), 1, 1024 * KIB);
    limits->handshakes = (uint32_t)config_report_integer(report, "limits.handshakes", raw->handshakes,
                                                         smaller(1024, all), 1, 1024 * KIB);
    limits->tls_handshakes_per_s = (uint32_t)config_report_integer(
        report, "limits.tls_handshakes_per_s", raw->tls_handshakes_per_s, 500, 0, 1024 * KIB);
}

/* Where one limit bounds another, the default of the inner one gives way. */
static void limits_from(struct config_report *report, const struct raw_limits *raw,
                        struct config_server_limits *limits)
{
    const int64_t streams = config_report_integer(report, "limits.streams", raw->streams, 65536, 1, 4 * MIB);
    const int64_t per_connection =
        config_report_integer(report, "limits.streams_per_connection", raw->streams_per_connection,
                              smaller(16384, streams), 1, 4 * MIB);
    const int64_t buffer_mib =
        config_report_integer(report, "limits.buffer_mib", raw->buffer_mib, 2048, 1, 1024 * KIB);
    const int64_t stream_buffer_kib =
        config_report_integer(report, "limits.stream_buffer_kib", raw->stream_buffer_kib,
                              smaller(16 * KIB, buffer_mib * 1024), 1, 64 * MIB);

    limits->streams = (uint32_t)streams;
    limits->streams_per_connection = (uint32_t)per_connection;
    limits->packet_bytes = (uint32_t)config_report_integer(report, "limits.packet_bytes", raw->packet_bytes,
                                                           65536, 16, CORE_PACKET_BYTES_MAX);
    limits->burst_packets = (uint32_t)config_report_integer(report, "limits.burst_packets",
                                                            raw->burst_packets, 1024, 1, CORE_BURST_MAX);
    limits->stream_buffer_bytes = (uint64_t)(stream_buffer_kib * KIB);
    limits->buffer_bytes = (uint64_t)(buffer_mib * MIB);
    limits->lane_bytes =
        (uint64_t)(config_report_integer(report, "limits.lane_mib", raw->lane_mib, 0, 0, 1024 * KIB) * MIB);
    limits->bytes_per_key = (uint64_t)config_report_integer(
        report, "limits.bytes_per_key", raw->bytes_per_key, INT64_C(1) << 40, CORE_BLOCK_BYTES, INT64_MAX);
    if (per_connection > streams)
        config_report_invalid(report, "limits.streams_per_connection",
                              "is more than limits.streams; lower it or raise that");
    if (limits->stream_buffer_bytes > limits->buffer_bytes)
        config_report_invalid(report, "limits.stream_buffer_kib",
                              "is more than limits.buffer_mib; lower it or raise that");
    if (core_stream_padded_bytes(CORE_PADDING_PKCS7, limits->packet_bytes) > limits->stream_buffer_bytes)
        config_report_invalid(report, "limits.stream_buffer_kib",
                              "has no room for one packet of limits.packet_bytes; raise it or lower that");
}

static core_ns timeout_from(struct config_report *report, const char *path, const int64_t *given,
                            int64_t fallback_ms)
{
    return config_report_integer(report, path, given, fallback_ms, 1, TIMEOUT_MS_MAX) * CORE_NS_PER_MS;
}

/* One that 0 switches off. */
static core_ns timeout_if_any(struct config_report *report, const char *path, const int64_t *given,
                              int64_t fallback_ms)
{
    return config_report_integer(report, path, given, fallback_ms, 0, TIMEOUT_MS_MAX) * CORE_NS_PER_MS;
}

static void timeouts_from(struct config_report *report, const struct raw_timeouts *raw,
                          struct config_server_timeouts *timeouts)
{
    timeouts->hello_ns = timeout_from(report, "timeouts.hello_ms", raw->hello_ms, 5000);
    timeouts->frame_ns = timeout_from(report, "timeouts.frame_ms", raw->frame_ms, 30000);
    timeouts->idle_ns = timeout_from(report, "timeouts.idle_ms", raw->idle_ms, 60000);
    timeouts->stream_idle_ns = timeout_if_any(report, "timeouts.stream_idle_ms", raw->stream_idle_ms, 600000);
    timeouts->stall_ns = timeout_from(report, "timeouts.stall_ms", raw->stall_ms, 10000);
    timeouts->leave_ns = timeout_if_any(report, "timeouts.leave_ms", raw->leave_ms, 0);
    timeouts->drain_ns = timeout_from(report, "timeouts.drain_ms", raw->drain_ms, 10000);
    timeouts->move_ns = timeout_if_any(report, "timeouts.move_ms", raw->move_ms, 1000);
}

/* "GPU-" or "MIG-" and a UUID: 36 characters, 0 to f and hyphens. */
static bool is_uuid(const char *text)
{
    static const char form[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    if (strlen(text) != 4 + sizeof form - 1 ||
        (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0))
        return false;
    for (size_t i = 0; i < sizeof form - 1; i++)
        if (form[i] == '-' ? text[4 + i] != '-' : !isxdigit((unsigned char)text[4 + i]))
            return false;
    return true;
}

/* Writes it as we compare it: a number without zeros before it, a UUID in lower case. */
static bool card_from(const char *given, char card[CONFIG_GPUS_CARD_BYTES])
{
    char *end;
    if (is_uuid(given)) {
        snprintf(card, CONFIG_GPUS_CARD_BYTES, "%s", given);
        for (char *at = card + 4; *at != '\0'; at++)
            *at = (char)tolower((unsigned char)*at);
        return true;
    }
    const unsigned long index = strtoul(given, &end, 10);
    snprintf(card, CONFIG_GPUS_CARD_BYTES, "%lu", index);
    return isdigit((unsigned char)given[0]) && *end == '\0' && index <= CONFIG_GPUS_INDEX_MAX;
}

static void cards_from(struct config_report *report, const struct raw_gpus *raw,
                       struct config_server_gpus *gpus)
{
    if (raw->use != NULL && *raw->use != CONFIG_GPUS_AUTO)
        config_report_invalid(report, "gpus.cards", "goes with use: auto; remove one of the two");
    gpus->use = CONFIG_GPUS_LISTED;
    for (uint32_t i = 0; i < raw->card_count; i++) {
        if (!card_from(raw->cards[i], gpus->cards[i]))
            config_report_invalid(report, "gpus",
                                  "'%s' is no card; give the index of one (0 to %d), or its UUID, GPU-... or "
                                  "MIG-..., as `millrace-gpu --list` and `nvidia-smi -L` show them",
                                  raw->cards[i], CONFIG_GPUS_INDEX_MAX);
        for (uint32_t before = 0; before < i; before++)
            if (strcmp(gpus->cards[before], gpus->cards[i]) == 0)
                config_report_invalid(report, "gpus", "card %s is listed twice; remove one", gpus->cards[i]);
        gpus->card_count++;
    }
}

static void gpus_from(struct config_report *report, const struct raw_gpus *raw,
                      struct config_server_gpus *gpus)
{
    gpus->use = raw->use ? *raw->use : CONFIG_GPUS_AUTO;
    if (raw->card_count > 0)
        cards_from(report, raw, gpus);
    gpus->program = path_from(report, raw->program);
    if (raw->user != NULL && (gpus->user = strdup(raw->user)) == NULL)
        config_report_no_memory(report);
    gpus->audit = (uint32_t)config_report_integer(report, "gpus.audit", raw->audit, 1000, 0, 1000000000);
    gpus->hang_ns =
        CORE_NS_PER_MS * config_report_integer(report, "gpus.hang_ms", raw->hang_ms, 100, 1, 600000);
}

static void admin_from(struct config_report *report, const char *text, struct config_server *server)
{
    if (!text)
        return;
    server->has_admin = true;
    address_from(report, "admin", text, &server->admin);
    if (server->admin.transport == CORE_TRANSPORT_TLS)
        config_report_invalid(report, "admin",
                              "speaks plain HTTP; give a tcp: address of this machine or "
                              "a unix: path");
    for (size_t i = 0; i < server->listener_count; i++)
        if (same_place(&server->admin, &server->listeners[i].address))
            config_report_invalid(report, "admin", "is the same address as listeners[%zu]; change one", i);
}

/* The admin thread answers it. */
static void agent_address_from(struct config_report *report, const char *text, struct config_server *server)
{
    const struct core_address *address = &server->agent.address;

    address_from(report, "agent.address", text, &server->agent.address);
    if (address->transport == CORE_TRANSPORT_TLS)
        config_report_invalid(report, "agent.address",
                              "speaks plain text; give a tcp: address or a unix: path");
    if (!server->has_admin)
        config_report_invalid(report, "agent",
                              "needs the admin port, whose thread answers it; give admin: too");
    else if (same_place(address, &server->admin))
        config_report_invalid(report, "agent.address", "is the same address as admin; change one");
    for (size_t i = 0; i < server->listener_count; i++)
        if (same_place(address, &server->listeners[i].address))
            config_report_invalid(report, "agent.address",
                                  "is the same address as listeners[%zu]; change one", i);
}

/* The typical contract: unless given, video of 2 Mbit/s. */
static void agent_from(struct config_report *report, const struct raw_agent *raw,
                       struct config_server *server)
{
    struct core_stream_spec *typical = &server->agent.typical;

    if (raw == NULL)
        return;
    server->agent.listens = true;
    agent_address_from(report, raw->address, server);
    *typical = (struct core_stream_spec){.cipher = CORE_CIPHER_AES_128_CBC, .padding = CORE_PADDING_PKCS7};
    typical->packet_bytes = (uint32_t)config_report_integer(report, "agent.packet_bytes", raw->packet_bytes,
                                                            smaller(1316, server->limits.packet_bytes), 1,
                                                            server->limits.packet_bytes);
    typical->burst_packets = (uint32_t)config_report_integer(
        report, "agent.burst_packets", raw->burst_packets, smaller(4, server->limits.burst_packets), 1,
        server->limits.burst_packets);
    typical->interval_ns =
        CORE_NS_PER_US * config_report_integer(report, "agent.interval_us", raw->interval_us, 5000,
                                               CORE_INTERVAL_NS_MIN / CORE_NS_PER_US,
                                               CORE_INTERVAL_NS_MAX / CORE_NS_PER_US);
    typical->latency_ns = CORE_NS_PER_US * config_report_integer(report, "agent.latency_us", raw->latency_us,
                                                                 50000, CORE_LATENCY_NS_MIN / CORE_NS_PER_US,
                                                                 CORE_LATENCY_NS_MAX / CORE_NS_PER_US);
}

static void engine_from(struct config_report *report, const char *name, struct config_server *server)
{
    static const char *const known[] = {"auto", "vaes", "ipsec-mb", "openssl"};

    server->engine = strdup(name ? name : known[0]);
    if (!server->engine)
        config_report_no_memory(report);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!name || strcmp(name, known[i]) == 0)
            return;
    config_report_invalid(report, "engine", "'%.40s' is no engine; give auto, vaes, ipsec-mb or openssl",
                          name);
}

/* A shipped name, or a path as all others; NULL stays NULL. */
static char *profile_from(struct config_report *report, const char *name)
{
    char path[PATH_MAX];
    struct core_error why;

    if (!name)
        return NULL;
    if (config_shipped_find(CONFIG_SHIPPED_PROFILE, name, report->yaml->name, path, sizeof path, &why) !=
        CORE_OK) {
        config_report_invalid(report, "profile", "%s", why.text);
        return NULL;
    }
    char *made = strdup(path);
    if (!made)
        config_report_no_memory(report);
    return made;
}

static core_status server_convert(const struct config_yaml *yaml, const struct raw_server *raw,
                                  bool is_embedded, struct config_server *server, struct core_error *error)
{
    struct config_report report = {.yaml = yaml, .error = error};

    if (raw->listener_count == 0 && !is_embedded)
        report.status = core_error_set(error, CORE_INVALID, "%s:%zu: the key 'listeners' is missing; add it",
                                       yaml->name, config_yaml_line(yaml, "listeners"));
    listeners_from(&report, raw, server);
    threads_from(&report, &raw->threads, &server->threads);
    connections_from(&report, &raw->limits, server->listener_count, &server->limits);
    limits_from(&report, &raw->limits, &server->limits);
    timeouts_from(&report, &raw->timeouts, &server->timeouts);
    server->overload.tighten = raw->overload.tighten == NULL || *raw->overload.tighten;
    server->overload.quiet_ns = timeout_from(&report, "overload.quiet_ms", raw->overload.quiet_ms, 10000);
    gpus_from(&report, &raw->gpus, &server->gpus);
    engine_from(&report, raw->engine, server);
    server->profile = profile_from(&report, raw->profile);
    server->keyring = path_from(&report, raw->keyring);
    server->client_iv = raw->client_iv && *raw->client_iv;
    server->check_plans = raw->check_plans && *raw->check_plans;
    server->sandbox = raw->sandbox ? *raw->sandbox : CORE_SANDBOX_AUTO;
    admin_from(&report, raw->admin, server);
    agent_from(&report, raw->agent, server);
    server->log_level = raw->log.level ? *raw->log.level : CORE_LOG_INFO;
    server->log_format = raw->log.format ? *raw->log.format : CORE_LOG_TEXT;
    return report.status;
}

/* The document is the configuration's from here on. */
static core_status server_from(struct config_yaml *yaml, bool is_embedded, struct config_server **server,
                               struct core_error *error)
{
    void *raw;
    const cyaml_schema_value_t *schema = config_server_schema(yaml);
    core_status status = config_yaml_load(yaml, schema, &raw, error);

    if (status != CORE_OK) {
        config_yaml_close(yaml);
        return status;
    }
    struct config_server *made = calloc(1, sizeof *made);
    if (made) {
        made->yaml = yaml;
        status = server_convert(yaml, raw, is_embedded, made, error);
    } else {
        status = core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", yaml->name);
        config_yaml_close(yaml);
    }
    if (status == CORE_OK)
        *server = made;
    else
        config_server_free(made);
    config_yaml_free(schema, raw);
    return status;
}

static core_status load(const char *path, bool is_embedded, struct config_server **server,
                        struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_open(path, &yaml, error);

    return status == CORE_OK ? server_from(yaml, is_embedded, server, error) : status;
}

core_status config_server_load(const char *path, struct config_server **server, struct core_error *error)
{
    return load(path, false, server, error);
}

core_status config_server_load_embedded(const char *path, struct config_server **server,
                                        struct core_error *error)
{
    return load(path, true, server, error);
}

core_status config_server_parse(const char *text, size_t bytes, const char *name,
                                struct config_server **server, struct core_error *error)
{
    struct config_yaml *yaml;
    const core_status status = config_yaml_parse(text, bytes, name, &yaml, error);

    return status == CORE_OK ? server_from(yaml, false, server, error) : status;
}

void config_server_free(struct config_server *server)
{
    if (!server)
        return;
    for (size_t i = 0; i < server->listener_count; i++) {
        free(server->listeners[i].certificate);
        free(server->listeners[i].key);
        free(server->listeners[i].client_ca);
    }
    config_yaml_close(server->yaml);
    free(server->listeners);
    free(server->gpus.program);
    free(server->gpus.user);
    free(server->engine);
    free(server->profile);
    free(server->keyring);
    free(server);
}

core_status config_server_default(const char *folder, struct config_server **server, struct core_error *error)
{
    static const char yaml[] =
        "listeners: [{address: 'unix:/millraced.sock', mode: 0600}]\nadmin: 'unix:/admin.sock'\n";
    char listener[300], admin[300];
    struct config_server *made;
    core_status status = config_server_parse(yaml, strlen(yaml), "no configuration file", &made, error);

    if (status != CORE_OK)
        return status;
    snprintf(listener, sizeof listener, "unix:%s/millraced.sock", folder);
    snprintf(admin, sizeof admin, "unix:%s/admin.sock", folder);
    status = core_address_parse(listener, &made->listeners[0].address, error);
    if (status == CORE_OK)
        status = core_address_parse(admin, &made->admin, error);
    if (status == CORE_OK)
        *server = made;
    else
        config_server_free(made);
    return status;
}

core_status config_server_profile(const struct config_server *server, struct config_profile **profile,
                                  struct core_error *error)
{
    char where[400];
    *profile = NULL;
    if (server->profile == NULL)
        return CORE_OK;
    const core_status status = config_profile_load(server->profile, profile, error);
    if (status != CORE_OK)
        core_error_prefix(error, status, "%s", config_server_where(server, "profile", where, sizeof where));
    return status;
}

char *config_server_where(const struct config_server *server, const char *key, char *text, size_t size)
{
    if (server->yaml)
        snprintf(text, size, "%s:%zu: %s", server->yaml->name, config_yaml_line(server->yaml, key), key);
    else
        snprintf(text, size, "%s", key);
    return text;
}
