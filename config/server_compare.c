/* Which keys of two configurations differ. */
#include "config/server.h"

#include <stdio.h>
#include <string.h>

struct row {
    const char *key;
    size_t offset, bytes; /* bytes 0: a string, or NULL */
};

#define ROW(key, member)                                                                                     \
    {                                                                                                        \
        key, offsetof(struct config_server, member), sizeof(((struct config_server *)NULL)->member)          \
    }
#define TEXT_ROW(key, member)                                                                                \
    {                                                                                                        \
        key, offsetof(struct config_server, member), 0                                                       \
    }

/* All keys but those that a server takes from its configuration while it runs, and `listeners`, `admin` and `agent`.
 */
static const struct row rows[] = {
    TEXT_ROW("engine", engine),
    TEXT_ROW("profile", profile),
    ROW("client_iv", client_iv),
    ROW("check_plans", check_plans),
    ROW("sandbox", sandbox),
    ROW("threads.io", threads.io),
    ROW("threads.workers", threads.workers),
    ROW("threads.cores", threads.cores),
    ROW("threads.tls", threads.tls),
    ROW("threads.realtime", threads.realtime),
    ROW("threads.worker_priority", threads.worker_priority),
    ROW("threads.io_priority", threads.io_priority),
    ROW("threads.pin", threads.pin),
    ROW("gpus.use", gpus.use),
    ROW("gpus.cards", gpus.cards),
    TEXT_ROW("gpus.program", gpus.program),
    TEXT_ROW("gpus.user", gpus.user),
    ROW("gpus.audit", gpus.audit),
    ROW("gpus.hang_ms", gpus.hang_ns),
    ROW("limits.connections", limits.connections),
    ROW("limits.connections_per_peer", limits.connections_per_peer),
    ROW("limits.connections_per_listener", limits.connections_per_listener),
    ROW("limits.handshakes", limits.handshakes),
    ROW("limits.tls_handshakes_per_s", limits.tls_handshakes_per_s),
    ROW("limits.streams", limits.streams),
    ROW("limits.streams_per_connection", limits.streams_per_connection),
    ROW("limits.packet_bytes", limits.packet_bytes),
    ROW("limits.burst_packets", limits.burst_packets),
    ROW("limits.stream_buffer_kib", limits.stream_buffer_bytes),
    ROW("limits.buffer_mib", limits.buffer_bytes),
    ROW("limits.lane_mib", limits.lane_bytes),
    ROW("limits.bytes_per_key", limits.bytes_per_key),
    ROW("timeouts.hello_ms", timeouts.hello_ns),
    ROW("timeouts.frame_ms", timeouts.frame_ns),
    ROW("timeouts.idle_ms", timeouts.idle_ns),
    ROW("timeouts.stream_idle_ms", timeouts.stream_idle_ns),
    ROW("timeouts.stall_ms", timeouts.stall_ns),
    ROW("timeouts.leave_ms", timeouts.leave_ns),
    ROW("timeouts.drain_ms", timeouts.drain_ns),
    ROW("timeouts.move_ms", timeouts.move_ns),
    ROW("overload.tighten", overload.tighten),
    ROW("overload.quiet_ms", overload.quiet_ns),
    ROW("log.format", log_format),
};

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool row_differs(const struct row *row, const struct config_server *a, const struct config_server *b)
{
    const char *left = (const char *)a + row->offset, *right = (const char *)b + row->offset;
    const char *left_text, *right_text;

    if (row->bytes > 0)
        return memcmp(left, right, row->bytes) != 0;
    memcpy(&left_text, left, sizeof left_text);
    memcpy(&right_text, right, sizeof right_text);
    return !same_text(left_text, right_text);
}

static bool listeners_differ(const struct config_server *a, const struct config_server *b)
{
    if (a->listener_count != b->listener_count)
        return true;
    for (size_t i = 0; i < a->listener_count; i++)
        if (!config_same_address(&a->listeners[i].address, &b->listeners[i].address) ||
            a->listeners[i].mode != b->listeners[i].mode || a->listeners[i].proxy != b->listeners[i].proxy)
            return true;
    return false;
}

static bool admin_differs(const struct config_server *a, const struct config_server *b)
{
    return a->has_admin != b->has_admin || (a->has_admin && !config_same_address(&a->admin, &b->admin));
}

static bool agent_differs(const struct config_agent *a, const struct config_agent *b)
{
    return a->listens != b->listens || !config_same_address(&a->address, &b->address) ||
           a->typical.packet_bytes != b->typical.packet_bytes ||
           a->typical.burst_packets != b->typical.burst_packets ||
           a->typical.interval_ns != b->typical.interval_ns || a->typical.latency_ns != b->typical.latency_ns;
}

static void append(char *text, size_t size, const char *key)
{
    const size_t used = strlen(text);

    snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", key);
}

char *config_server_differences(const struct config_server *a, const struct config_server *b, char *text,
                                size_t size)
{
    text[0] = '\0';
    if (listeners_differ(a, b))
        append(text, size, "listeners");
    if (admin_differs(a, b))
        append(text, size, "admin");
    if (agent_differs(&a->agent, &b->agent))
        append(text, size, "agent");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (row_differs(&rows[i], a, b))
            append(text, size, rows[i].key);
    return text;
}
