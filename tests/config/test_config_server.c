/* The server's configuration: defaults, every key, and every mistake by file and line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct config_server *parsed(const char *text, const char *name)
{
    struct config_server *server = NULL;
    struct core_error error = {""};

    if (config_server_parse(text, strlen(text), name, &server, &error) != CORE_OK)
        fail_msg("refused: %s", error.text);
    return server;
}

static void defaults_are_as_documented(void **state)
{
    struct config_server *server = parsed("listeners:\n  - address: unix:/run/m.sock\n", "m.yaml");

    (void)state;
    assert_int_equal(server->listener_count, 1);
    assert_int_equal(server->listeners[0].address.transport, CORE_TRANSPORT_UNIX);
    assert_string_equal(server->listeners[0].address.host, "/run/m.sock");
    assert_int_equal(server->listeners[0].mode, 0660);
    assert_null(server->listeners[0].certificate);
    assert_null(server->listeners[0].key);
    assert_null(server->listeners[0].client_ca);
    assert_int_equal(server->threads.io, 0);
    assert_int_equal(server->threads.workers, 0);
    assert_int_equal(server->threads.realtime, CONFIG_REALTIME_AUTO);
    assert_int_equal(server->threads.worker_priority, 20);
    assert_int_equal(server->threads.io_priority, 10);
    assert_true(server->threads.pin);
    assert_int_equal(server->threads.tls, 2);
    assert_int_equal(server->limits.connections, 4096);
    assert_int_equal(server->limits.connections_per_peer, 1024);
    assert_int_equal(server->limits.connections_per_listener, 4096);
    assert_int_equal(server->limits.handshakes, 1024);
    assert_int_equal(server->limits.tls_handshakes_per_s, 500);
    assert_int_equal(server->limits.streams, 65536);
    assert_int_equal(server->limits.streams_per_connection, 16384);
    assert_int_equal(server->limits.packet_bytes, 65536);
    assert_int_equal(server->limits.burst_packets, 1024);
    assert_int_equal(server->limits.stream_buffer_bytes, 16 << 20);
    assert_int_equal(server->limits.buffer_bytes, UINT64_C(2) << 30);
    assert_int_equal(server->limits.lane_bytes, 0);
    assert_int_equal(server->limits.bytes_per_key, UINT64_C(1) << 40);
    assert_int_equal(server->timeouts.hello_ns, 5 * CORE_NS_PER_S);
    assert_int_equal(server->timeouts.frame_ns, 30 * CORE_NS_PER_S);
    assert_int_equal(server->timeouts.idle_ns, 60 * CORE_NS_PER_S);
    assert_int_equal(server->timeouts.stall_ns, 10 * CORE_NS_PER_S);
    assert_int_equal(server->timeouts.drain_ns, 10 * CORE_NS_PER_S);
    assert_int_equal(server->timeouts.move_ns, CORE_NS_PER_S);
    assert_true(server->overload.tighten);
    assert_int_equal(server->overload.quiet_ns, 10 * CORE_NS_PER_S);
    assert_string_equal(server->engine, "auto");
    assert_null(server->profile);
    assert_null(server->keyring);
    assert_int_equal(server->gpus.use, CONFIG_GPUS_AUTO);
    assert_null(server->gpus.program);
    assert_null(server->gpus.user);
    assert_int_equal(server->gpus.audit, 1000);
    assert_int_equal(server->gpus.hang_ns, 100 * CORE_NS_PER_MS);
    assert_false(server->client_iv);
    assert_false(server->check_plans);
    assert_int_equal(server->sandbox, CORE_SANDBOX_AUTO);
    assert_false(server->has_admin);
    assert_false(server->agent.listens);
    assert_int_equal(server->timeouts.leave_ns, 0);
    assert_int_equal(server->log_level, CORE_LOG_INFO);
    assert_int_equal(server->log_format, CORE_LOG_TEXT);
    config_server_free(server);
}

static const char everything[] =
    "listeners:\n"
    "  - {address: 'unix:x.sock', mode: 0600}\n"
    "  - {address: 'unix:@abstract'}\n"
    "  - {address: 'tcp:127.0.0.1:0'}\n"
    "  - {address: 'tcp:127.0.0.1:0'}\n"
    "  - address: tls:[::]:7412\n"
    "    certificate: cert.pem\n"
    "    key: /etc/key.pem\n"
    "    client_ca: ca/clients.pem\n"
    "    proxy: v2\n"
    "threads: {io: 2, workers: 3, cores: 9, realtime: required, worker_priority: 50,\n"
    "          io_priority: 40, pin: false, tls: 4}\n"
    "limits: {connections: 7, streams: 100, streams_per_connection: 50,\n"
    "         connections_per_peer: 2, connections_per_listener: 5,\n"
    "         handshakes: 3, tls_handshakes_per_s: 0,\n"
    "         packet_bytes: 1024, burst_packets: 4, stream_buffer_kib: 64,\n"
    "         buffer_mib: 3, lane_mib: 7, bytes_per_key: 4096}\n"
    "timeouts: {hello_ms: 1, frame_ms: 2, idle_ms: 3, stream_idle_ms: 7, "
    "stall_ms: 4, leave_ms: 8, drain_ms: 5, move_ms: 0}\n"
    "overload: {tighten: false, quiet_ms: 6}\n"
    "gpus: {use: emulated, program: bin/millrace-gpu, user: 65534, audit: 1, hang_ms: 30}\n"
    "engine: openssl\n"
    "profile: p/here.yaml\n"
    "keyring: keys\n"
    "client_iv: true\n"
    "check_plans: true\n"
    "sandbox: off\n"
    "admin: tcp:127.0.0.1:7413\n"
    "agent: {address: 'tcp:127.0.0.1:7414', packet_bytes: 1000, burst_packets: 3, interval_us: 2ms, "
    "latency_us: 70}\n"
    "log: {level: debug, format: json}\n";

static void every_key_arrives(void **state)
{
    struct config_server *server = parsed(everything, "/etc/millrace/m.yaml");

    (void)state;
    assert_int_equal(server->listener_count, 5);
    assert_string_equal(server->listeners[0].address.host, "/etc/millrace/x.sock");
    assert_int_equal(server->listeners[0].mode, 0600);
    assert_string_equal(server->listeners[1].address.host, "@abstract");
    assert_int_equal(server->listeners[2].address.transport, CORE_TRANSPORT_TCP);
    assert_int_equal(server->listeners[4].address.transport, CORE_TRANSPORT_TLS);
    assert_int_equal(server->listeners[4].address.port, 7412);
    assert_string_equal(server->listeners[4].certificate, "/etc/millrace/cert.pem");
    assert_string_equal(server->listeners[4].key, "/etc/key.pem");
    assert_string_equal(server->listeners[4].client_ca, "/etc/millrace/ca/clients.pem");
    assert_int_equal(server->threads.io, 2);
    assert_int_equal(server->threads.workers, 3);
    assert_int_equal(server->threads.cores, 9);
    assert_int_equal(server->threads.realtime, CONFIG_REALTIME_REQUIRED);
    assert_int_equal(server->threads.worker_priority, 50);
    assert_int_equal(server->threads.io_priority, 40);
    assert_false(server->threads.pin);
    assert_int_equal(server->threads.tls, 4);
    assert_int_equal(server->limits.connections, 7);
    assert_int_equal(server->limits.connections_per_peer, 2);
    assert_int_equal(server->limits.connections_per_listener, 5);
    assert_int_equal(server->limits.handshakes, 3);
    assert_int_equal(server->limits.tls_handshakes_per_s, 0);
    assert_int_equal(server->limits.streams, 100);
    assert_int_equal(server->limits.streams_per_connection, 50);
    assert_int_equal(server->limits.packet_bytes, 1024);
    assert_int_equal(server->limits.burst_packets, 4);
    assert_int_equal(server->limits.stream_buffer_bytes, 64 << 10);
    assert_int_equal(server->limits.buffer_bytes, 3 << 20);
    assert_int_equal(server->limits.bytes_per_key, 4096);
    assert_int_equal(server->timeouts.hello_ns, 1 * CORE_NS_PER_MS);
    assert_int_equal(server->timeouts.frame_ns, 2 * CORE_NS_PER_MS);
    assert_int_equal(server->timeouts.idle_ns, 3 * CORE_NS_PER_MS);
    assert_int_equal(server->timeouts.stream_idle_ns, 7 * CORE_NS_PER_MS);
    assert_int_equal(server->timeouts.stall_ns, 4 * CORE_NS_PER_MS);
    assert_int_equal(server->timeouts.drain_ns, 5 * CORE_NS_PER_MS);
    assert_int_equal(server->timeouts.move_ns, 0);
    assert_false(server->overload.tighten);
    assert_int_equal(server->overload.quiet_ns, 6 * CORE_NS_PER_MS);
    assert_string_equal(server->engine, "openssl");
    assert_string_equal(server->profile, "/etc/millrace/p/here.yaml");
    assert_string_equal(server->keyring, "/etc/millrace/keys");
    assert_int_equal(server->gpus.use, CONFIG_GPUS_EMULATED);
    assert_string_equal(server->gpus.program, "/etc/millrace/bin/millrace-gpu");
    assert_string_equal(server->gpus.user, "65534");
    assert_int_equal(server->gpus.audit, 1);
    assert_int_equal(server->gpus.hang_ns, 30 * CORE_NS_PER_MS);
    assert_true(server->client_iv);
    assert_true(server->check_plans);
    assert_int_equal(server->sandbox, CORE_SANDBOX_OFF);
    assert_true(server->has_admin);
    assert_int_equal(server->admin.port, 7413);
    assert_true(server->agent.listens);
    assert_int_equal(server->agent.address.port, 7414);
    assert_int_equal(server->agent.typical.packet_bytes, 1000);
    assert_int_equal(server->agent.typical.burst_packets, 3);
    assert_int_equal(server->agent.typical.interval_ns, 2 * CORE_NS_PER_MS);
    assert_int_equal(server->agent.typical.latency_ns, 70 * CORE_NS_PER_US);
    assert_false(server->listeners[0].proxy);
    assert_true(server->listeners[4].proxy);
    assert_int_equal(server->timeouts.leave_ns, 8 * CORE_NS_PER_MS);
    assert_int_equal(server->log_level, CORE_LOG_DEBUG);
    assert_int_equal(server->log_format, CORE_LOG_JSON);
    config_server_free(server);
}

static void inner_defaults_give_way_to_outer_limits(void **state)
{
    struct config_server *server =
        parsed("listeners: [{address: 'unix:x'}]\nlimits: {streams: 10, buffer_mib: 1}\n", "m.yaml");

    (void)state;
    assert_int_equal(server->limits.streams_per_connection, 10);
    assert_int_equal(server->limits.stream_buffer_bytes, 1 << 20);
    config_server_free(server);
}

static void shares_of_the_connections(void **state)
{
    static const struct {
        uint32_t connections, per_peer, alone, beside, handshakes;
    } rows[] = {
        {4096, 1024, 4096, 3072, 1024}, {100, 64, 100, 75, 100}, {80, 64, 80, 64, 80}, {3, 3, 3, 3, 3}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int listeners = 1; listeners <= 2; listeners++) {
            char text[128];
            snprintf(text, sizeof text, "listeners: [{address: 'unix:x'}%s]\nlimits: {connections: %u}\n",
                     listeners == 2 ? ", {address: 'unix:y'}" : "", rows[i].connections);
            struct config_server *server = parsed(text, "m.yaml");
            assert_int_equal(server->limits.connections_per_peer, rows[i].per_peer);
            assert_int_equal(server->limits.connections_per_listener,
                             listeners == 1 ? rows[i].alone : rows[i].beside);
            assert_int_equal(server->limits.handshakes, rows[i].handshakes);
            config_server_free(server);
        }
}

#define LISTENER "listeners: [{address: 'unix:x'}]\n" /* line 1 */

/* Whatever comes before them on the line and in the file, they are found in their places. */
static void values_take_units(void **state)
{
    static const char *const marks[] = {"", "\xEF\xBB\xBF"};
    static const char form[] = "%s# \xC3\xBC\xE2\x82\xAC\xF0\x9F\x94\x92\r\n" LISTENER
                               "timeouts: {hello_ms: 5s, frame_ms: 2 min, # \xC3\xA9\n"
                               "  idle_ms: %s, drain_ms: \"7ms\", stall_ms: '1s'}\n"
                               "limits:\n"
                               "  packet_bytes: 64k\n"
                               "  buffer_mib: 3GiB\n"
                               "  stream_buffer_kib: 2MiB\n"
                               "  bytes_per_key: 1024GiB\n"
                               "gpus: {hang_ms: 0.1s}\n"
                               "engine: openssl\n";
    (void)state;

    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        char text[1024];
        struct core_error error = {""};
        struct config_server *server;
        snprintf(text, sizeof text, form, marks[i], "1500us"); /* no whole number of ms */
        assert_int_equal(config_server_parse(text, strlen(text), "m.yaml", &server, &error), CORE_INVALID);
        assert_non_null(strstr(error.text, "m.yaml:4: timeouts.idle_ms: is not a whole number"));
        snprintf(text, sizeof text, form, marks[i], "1.5s");
        server = parsed(text, "m.yaml");
        assert_int_equal(server->timeouts.hello_ns, 5 * CORE_NS_PER_S);
        assert_int_equal(server->timeouts.frame_ns, 120 * CORE_NS_PER_S);
        assert_int_equal(server->timeouts.idle_ns, 1500 * CORE_NS_PER_MS);
        assert_int_equal(server->timeouts.drain_ns, 7 * CORE_NS_PER_MS);
        assert_int_equal(server->timeouts.stall_ns, CORE_NS_PER_S);
        assert_int_equal(server->limits.packet_bytes, 65536);
        assert_int_equal(server->limits.buffer_bytes, UINT64_C(3) << 30);
        assert_int_equal(server->limits.stream_buffer_bytes, 2 << 20);
        assert_int_equal(server->limits.bytes_per_key, UINT64_C(1) << 40);
        assert_int_equal(server->gpus.hang_ns, 100 * CORE_NS_PER_MS);
        assert_string_equal(server->engine, "openssl");
        config_server_free(server);
    }
}

static void profiles_are_shipped_ones_or_paths(void **state)
{
    struct config_server *server = parsed(LISTENER "profile: cpu-only\n", "m.yaml");
    (void)state;

    assert_non_null(strstr(server->profile, "/profiles/cpu-only.yaml"));
    config_server_free(server);
    server = parsed(LISTENER "profile: ./cpu-only\n", "folder/m.yaml");
    assert_string_equal(server->profile, "folder/./cpu-only");
    config_server_free(server);
}

/* All that a restart is needed for, and nothing else. */
static void keys_that_differ_are_named(void **state)
{
    static const char reloadable[] = "listeners:\n"
                                     "  - {address: 'tls:h:1', certificate: a, key: b, client_ca: c}\n"
                                     "keyring: k\nlog: {level: debug}\n",
                      other[] = "listeners:\n  - {address: 'tls:h:1', certificate: x, key: y}\n",
                      mode[] = "listeners:\n  - {address: 'unix:/a', mode: 0600}\n",
                      proxy[] = "listeners:\n  - {address: 'unix:/a', proxy: v2}\n",
                      default_mode[] = "listeners:\n  - {address: 'unix:/a', mode: 0660}\n"
                                       "threads: {tls: 2}\n",
                      minimal[] = "listeners:\n  - {address: 'unix:/a'}\n";
    static const struct {
        const char *before, *after, *differences;
    } rows[] = {
        {reloadable, other, ""},
        {minimal, default_mode, ""},
        {minimal, mode, "listeners"},
        {minimal, proxy, "listeners"},
        {other, minimal, "listeners"},
        {minimal, everything,
         "listeners, admin, agent, engine, profile, client_iv, check_plans, sandbox, threads.io, "
         "threads.workers, "
         "threads.cores, "
         "threads.tls, threads.realtime, threads.worker_priority, threads.io_priority, threads.pin, "
         "gpus.use, "
         "gpus.program, gpus.user, gpus.audit, gpus.hang_ms, limits.connections, "
         "limits.connections_per_peer, "
         "limits.connections_per_listener, limits.handshakes, limits.tls_handshakes_per_s, limits.streams, "
         "limits.streams_per_connection, "
         "limits.packet_bytes, limits.burst_packets, limits.stream_buffer_kib, limits.buffer_mib, "
         "limits.lane_mib, "
         "limits.bytes_per_key, timeouts.hello_ms, timeouts.frame_ms, timeouts.idle_ms, "
         "timeouts.stream_idle_ms, timeouts.stall_ms, timeouts.leave_ms, timeouts.drain_ms, "
         "timeouts.move_ms, "
         "overload.tighten, overload.quiet_ms, log.format"},
        {"listeners:\n  - {address: 'unix:/a'}\ngpus: [1]\n",
         "listeners:\n  - {address: 'unix:/a'}\ngpus: [2]\n", "gpus.cards"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[1200];
        struct config_server *before = parsed(rows[i].before, "before"),
                             *after = parsed(rows[i].after, "after");
        assert_string_equal(config_server_differences(before, after, text, sizeof text), rows[i].differences);
        assert_string_equal(config_server_differences(after, before, text, sizeof text), rows[i].differences);
        assert_string_equal(config_server_differences(after, after, text, sizeof text), "");
        config_server_free(before);
        config_server_free(after);
    }
}

static void gpus_have_three_forms(void **state)
{
    struct config_server *server = parsed(LISTENER "gpus: emulated\n", "m.yaml");
    (void)state;
    assert_int_equal(server->gpus.use, CONFIG_GPUS_EMULATED);
    assert_int_equal(server->gpus.audit, 1000);
    config_server_free(server);

    server = parsed(LISTENER "gpus: [4, 0]\n", "m.yaml");
    assert_int_equal(server->gpus.use, CONFIG_GPUS_LISTED);
    assert_int_equal(server->gpus.card_count, 2);
    assert_string_equal(server->gpus.cards[0], "4");
    assert_string_equal(server->gpus.cards[1], "0");
    config_server_free(server);

    server = parsed(LISTENER "gpus: {cards: [07, GPU-3B2E1F00-0011-2233-4455-66778899aabb,\n"
                             "               MIG-3b2e1f00-0011-2233-4455-66778899aabb], audit: 5}\n",
                    "m.yaml");
    assert_int_equal(server->gpus.use, CONFIG_GPUS_LISTED);
    assert_int_equal(server->gpus.card_count, 3);
    assert_string_equal(server->gpus.cards[0], "7");
    assert_string_equal(server->gpus.cards[1], "GPU-3b2e1f00-0011-2233-4455-66778899aabb");
    assert_string_equal(server->gpus.cards[2], "MIG-3b2e1f00-0011-2233-4455-66778899aabb");
    assert_int_equal(server->gpus.audit, 5);
    config_server_free(server);
}

/* Each begins with what the message must begin with. */
static const struct {
    const char *text, *message;
} mistakes[] = {
    /* the shape of the document */
    {"", "m.yaml:1: the file is empty"},
    {"# only a comment\n", "m.yaml:1: the file is empty"},
    {"listeners\n", "m.yaml:1: must be made of 'key: value' lines"},
    {"- a\n", "m.yaml:1: must be made of 'key: value' lines"},
    {"engine: auto\n", "m.yaml:1: the key 'listeners' is missing"},
    {LISTENER "a: [\n", "m.yaml:3: while parsing a flow node"},
    {LISTENER "\ta: 1\n", "m.yaml:2: while scanning for the next token"},
    {LISTENER "engine: a: b\n", "m.yaml:2: mapping values are not allowed"},
    {LISTENER "engine: \xff\n", "m.yaml:2: invalid leading UTF-8 octet"},
    {LISTENER "---\nengine: auto\n", "m.yaml:2: a second document begins"},
    {LISTENER "engine: &a auto\nkeyring: *a\n", "m.yaml:3: aliases are not supported"},
    {LISTENER "engine: \"a\\0b\"\n", "m.yaml:2: a value contains a NUL character"},
    {LISTENER "engine: \"a\\nb\"\n", "m.yaml:2: engine: contains a control character"},
    {LISTENER "? [a]\n: b\n", "m.yaml:2: a key must be a plain word"},
    {LISTENER "\n\nspeed: 3\n", "m.yaml:4: unknown key 'speed'; known here: listeners, threads, limits"},
    {LISTENER "engine: auto\nengine: auto\n", "m.yaml:3: engine: is given twice"},
    {LISTENER "limits: 3\n", "m.yaml:2: limits: must be made of 'key: value' lines"},
    {LISTENER "limits: {packets: 3}\n", "m.yaml:2: limits: unknown key 'packets'"},
    /* values of the wrong kind */
    {LISTENER "engine:\n", "m.yaml:2: engine: has no value"},
    {LISTENER "engine: ~\n", "m.yaml:2: engine: has no value"},
    {LISTENER "engine: [auto]\n", "m.yaml:2: engine: must be a single text"},
    {LISTENER "engine: fast\n", "m.yaml:2: engine: 'fast' is no engine"},
    {LISTENER "gpus: {use: some}\n", "m.yaml:2: gpus.use: is none of: auto, none, emulated"},
    {LISTENER "gpus: some\n", "m.yaml:2: gpus: is none of: auto, none, emulated"},
    {LISTENER "gpus: []\n", "m.yaml:2: gpus: has 0 entries; give 1 to 64"},
    {LISTENER "gpus: [0, one]\n", "m.yaml:2: gpus: 'one' is no card; give the index of one (0 to 1023), or"},
    {LISTENER "gpus: [-1]\n", "m.yaml:2: gpus: '-1' is no card"},
    {LISTENER "gpus: [1024]\n", "m.yaml:2: gpus: '1024' is no card"},
    {LISTENER "gpus: [2x]\n", "m.yaml:2: gpus: '2x' is no card"},
    {LISTENER "gpus: [GPU-3b2e1f00]\n", "m.yaml:2: gpus: 'GPU-3b2e1f00' is no card"},
    {LISTENER "gpus: [GPU-3b2e1f00-0011-2233-4455-66778899aabg]\n", "m.yaml:2: gpus: 'GPU-3b2e1f00-0011-2"},
    {LISTENER "gpus: [CPU-3b2e1f00-0011-2233-4455-66778899aabb]\n", "m.yaml:2: gpus: 'CPU-3b2e1f00-0011-2"},
    {LISTENER "gpus: [GPU-3b2e1f00-0011-2233-4455-66778899aabb0]\n", "m.yaml:2: gpus: 'GPU-3b2e1f00-0011-2"},
    {LISTENER "gpus: [3, 0, 3]\n", "m.yaml:2: gpus: card 3 is listed twice"},
    {LISTENER "gpus: [3, 03]\n", "m.yaml:2: gpus: card 3 is listed twice"},
    {LISTENER "gpus: [GPU-3b2e1f00-0011-2233-4455-66778899aabb, GPU-3B2E1F00-0011-2233-4455-66778899AABB]\n",
     "m.yaml:2: gpus: card GPU-3b2e1f00-0011-2233-4455-66778899aabb is listed twice"},
    {LISTENER "gpus:\n  use: none\n  cards: [0]\n", "m.yaml:4: gpus.cards: goes with use: auto"},
    {LISTENER "gpus:\n  audit: -1\n", "m.yaml:3: gpus.audit:"},
    {LISTENER "gpus:\n  hang_ms: 0\n", "m.yaml:3: gpus.hang_ms:"},
    {LISTENER "client_iv: yes\n", "m.yaml:2: client_iv: is none of: true, false"},
    {LISTENER "threads:\n  pin: 1\n", "m.yaml:3: threads.pin: is none of"},
    {LISTENER "threads:\n  realtime: no\n", "m.yaml:3: threads.realtime: is none of: off, auto, required"},
    {LISTENER "log: {level: loud}\n", "m.yaml:2: log.level: is none of: error, warning, info, debug"},
    {LISTENER "log: {format: xml}\n", "m.yaml:2: log.format: is none of: text, json"},
    {LISTENER "threads: {io: 2k}\n", "m.yaml:2: threads.io: is not a whole number"},
    {LISTENER "threads: {io: 2ms}\n", "m.yaml:2: threads.io: is not a whole number"},
    {LISTENER "timeouts:\n  hello_ms: |\n    5s\n", "m.yaml:3: timeouts.hello_ms: is not a whole number"},
    {LISTENER "timeouts: {hello_ms: 5KiB}\n", "m.yaml:2: timeouts.hello_ms: is not a whole number"},
    {LISTENER "timeouts:\n  frame_ms: 5s\n  hello_ms: 2h\n",
     "m.yaml:4: timeouts.hello_ms: 7200000 is out of range"},
    {LISTENER "threads: {io: 1.5}\n", "m.yaml:2: threads.io: is not a whole number"},
    {LISTENER "threads: {io: 1e2}\n", "m.yaml:2: threads.io: is not a whole number"},
    {LISTENER "threads: {io: nan}\n", "m.yaml:2: threads.io: is not a whole number"},
    {LISTENER "threads: {io: ''}\n", "m.yaml:2: threads.io: is not a whole number"},
    {LISTENER "threads: {io: 99999999999999999999}\n", "m.yaml:2: threads.io: is too large"},
    /* listeners */
    {"listeners: []\n", "m.yaml:1: listeners: has 0 entries; give 1 to 64"},
    {"listeners: unix:x\n", "m.yaml:1: listeners: must be a list"},
    {"listeners:\n  - mode: 0600\n", "m.yaml:2: listeners[0]: the key 'address' is missing"},
    {"listeners:\n  - address: file:x\n", "m.yaml:2: listeners[0].address: address \"file:x\" must begin"},
    {"listeners:\n  - address: tcp:localhost\n", "m.yaml:2: listeners[0].address: address \"tcp:localhost\""},
    {"listeners:\n  - address: unix:x\n    mode: 660\n", "m.yaml:3: listeners[0].mode: is no permission"},
    {"listeners:\n  - address: unix:x\n    mode: 0\n", "m.yaml:3: listeners[0].mode: is no permission"},
    {"listeners:\n  - address: tcp:h:1\n    mode: 0600\n", "m.yaml:3: listeners[0].mode: only a Unix socket"},
    {"listeners:\n  - address: tls:h:1\n    key: k\n", "m.yaml:2: listeners[0].certificate: a tls: listener"},
    {"listeners:\n  - address: tls:h:1\n    certificate: k\n", "m.yaml:2: listeners[0].key: a tls: listener"},
    {"listeners:\n  - address: tcp:h:1\n    key: k\n",
     "m.yaml:2: listeners[0]: certificate, key and client_ca"},
    {"listeners:\n  - address: unix:x\n    client_ca: k\n", "m.yaml:2: listeners[0]: certificate, key and"},
    {"listeners:\n  - address: unix:x\n  - address: unix:x\n", "m.yaml:3: listeners[1].address: is the same"},
    {"listeners:\n  - address: tcp:h:1\n  - address: tcp:h:2\n  - {address: 'tls:h:1', certificate: c, key: "
     "k}\n",
     "m.yaml:4: listeners[2].address: is the same as that of listeners[0]"},
    {LISTENER "admin: tls:h:1\n", "m.yaml:2: admin: speaks plain HTTP"},
    {LISTENER "admin: h:1\n", "m.yaml:2: admin: address \"h:1\" must begin"},
    {LISTENER "admin: unix:x\n", "m.yaml:2: admin: is the same address as listeners[0]"},
    {LISTENER "agent: {address: 'tcp:h:1'}\n", "m.yaml:2: agent: needs the admin port"},
    {LISTENER "admin: unix:y\nagent: {}\n", "m.yaml:3: agent: "},
    {LISTENER "admin: unix:y\nagent: {address: 'tls:h:1'}\n", "m.yaml:3: agent.address: speaks plain text"},
    {LISTENER "admin: unix:y\nagent: {address: 'unix:y'}\n",
     "m.yaml:3: agent.address: is the same address as admin"},
    {LISTENER "admin: unix:y\nagent: {address: 'unix:x'}\n",
     "m.yaml:3: agent.address: is the same address as listeners[0]"},
    {LISTENER "admin: unix:y\nagent: {address: 'tcp:h:1', interval_us: 0}\n",
     "m.yaml:3: agent.interval_us: "},
    {LISTENER "admin: unix:y\nagent: {address: 'tcp:h:1', packet_bytes: 65537}\n",
     "m.yaml:3: agent.packet_bytes: "},
    {"listeners: [{address: 'unix:x', proxy: v1}]\n", "m.yaml:1: listeners[0].proxy: "},
    /* ranges and combinations */
    {LISTENER "threads:\n  io: 257\n", "m.yaml:3: threads.io: 257 is out of range; give 0 to 256"},
    {LISTENER "threads:\n  workers: -1\n", "m.yaml:3: threads.workers: -1 is out of range"},
    {LISTENER "threads:\n  worker_priority: 0\n", "m.yaml:3: threads.worker_priority: 0 is out of range"},
    {LISTENER "threads:\n  cores: 1025\n", "m.yaml:3: threads.cores: 1025 is out of range; give 0 to 1024"},
    {LISTENER "threads:\n  io_priority: 20\n",
     "m.yaml:3: threads.io_priority: 20 is not below threads.worker_priority, 20"},
    {LISTENER "threads:\n  io_priority: 100\n", "m.yaml:3: threads.io_priority: 100 is out of range"},
    {LISTENER "limits:\n  connections: 0\n", "m.yaml:3: limits.connections: 0 is out of range"},
    {LISTENER "limits:\n  streams: 0\n", "m.yaml:3: limits.streams: 0 is out of range"},
    {LISTENER "limits:\n  streams_per_connection: 0\n", "m.yaml:3: limits.streams_per_connection: 0 is out"},
    {LISTENER "limits:\n  packet_bytes: 8\n", "m.yaml:3: limits.packet_bytes: 8 is out of range"},
    {LISTENER "limits:\n  packet_bytes: 1048577\n", "m.yaml:3: limits.packet_bytes: 1048577 is out of range"},
    {LISTENER "limits:\n  burst_packets: 65537\n", "m.yaml:3: limits.burst_packets: 65537 is out of range"},
    {LISTENER "limits:\n  buffer_mib: 0\n", "m.yaml:3: limits.buffer_mib: 0 is out of range"},
    {LISTENER "limits:\n  buffer_mib: 9223372036854775807\n", "m.yaml:3: limits.buffer_mib: 92233720368547"},
    {LISTENER "limits:\n  stream_buffer_kib: 0\n", "m.yaml:3: limits.stream_buffer_kib: 0 is out of range"},
    {LISTENER "limits:\n  stream_buffer_kib: 9223372036854775807\n",
     "m.yaml:3: limits.stream_buffer_kib: 92"},
    {LISTENER "limits:\n  bytes_per_key: 15\n", "m.yaml:3: limits.bytes_per_key: 15 is out of range"},
    {LISTENER "limits:\n  streams: 5\n  streams_per_connection: 6\n",
     "m.yaml:4: limits.streams_per_connection: is more than limits.streams"},
    {LISTENER "limits:\n  buffer_mib: 1\n  stream_buffer_kib: 1025\n",
     "m.yaml:4: limits.stream_buffer_kib: is more than limits.buffer_mib"},
    {LISTENER "limits:\n  stream_buffer_kib: 64\n",
     "m.yaml:3: limits.stream_buffer_kib: has no room for one packet"},
    {LISTENER "timeouts:\n  hello_ms: 0\n", "m.yaml:3: timeouts.hello_ms: 0 is out of range"},
    {LISTENER "timeouts:\n  frame_ms: 3600001\n", "m.yaml:3: timeouts.frame_ms: 3600001 is out of range"},
    {LISTENER "timeouts:\n  idle_ms: 0\n", "m.yaml:3: timeouts.idle_ms: 0 is out of range"},
    {LISTENER "timeouts:\n  move_ms: -1\n", "m.yaml:3: timeouts.move_ms: -1 is out of range"},
    {LISTENER "timeouts:\n  stall_ms: 0\n", "m.yaml:3: timeouts.stall_ms: 0 is out of range"},
    {LISTENER "overload:\n  quiet_ms: 0\n", "m.yaml:3: overload.quiet_ms: 0 is out of range"},
    {LISTENER "overload:\n  tighten: perhaps\n", "m.yaml:3"},
    {LISTENER "timeouts:\n  drain_ms: 9223372036854775807\n", "m.yaml:3: timeouts.drain_ms: 92233720368"},
};

static void mistakes_are_named_with_file_and_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        struct config_server *server = NULL;
        struct core_error error = {""};
        const core_status status =
            config_server_parse(mistakes[i].text, strlen(mistakes[i].text), "m.yaml", &server, &error);
        if (status != CORE_INVALID ||
            strncmp(error.text, mistakes[i].message, strlen(mistakes[i].message)) != 0)
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, status, error.text,
                     mistakes[i].message);
        assert_null(server);
    }
}

static void an_error_need_not_be_taken(void **state)
{
    struct config_server *server = NULL;

    (void)state;
    assert_int_equal(config_server_parse("x", 1, "m.yaml", &server, NULL), CORE_INVALID);
    config_server_free(NULL);
}

static void long_relative_socket_paths_are_refused(void **state)
{
    char name[160];
    struct config_server *server;
    struct core_error error;

    (void)state;
    memset(name, 'd', sizeof name);
    memcpy(name + sizeof name - 8, "/m.yaml", 8);
    assert_int_equal(config_server_parse(LISTENER, strlen(LISTENER), name, &server, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "listeners[0].address"));
}

static void shipped_example_loads_and_shows_the_defaults(void **state)
{
    struct config_server *shipped, *minimal = parsed(LISTENER, "m.yaml");
    struct core_error error = {""};

    (void)state;
    if (config_server_load(MILLRACE_SOURCE_DIR "/config/millraced.yaml", &shipped, &error) != CORE_OK)
        fail_msg("%s", error.text);
    assert_memory_equal(&shipped->limits, &minimal->limits, sizeof shipped->limits);
    assert_memory_equal(&shipped->timeouts, &minimal->timeouts, sizeof shipped->timeouts);
    assert_int_equal(shipped->overload.tighten, minimal->overload.tighten);
    assert_int_equal(shipped->overload.quiet_ns, minimal->overload.quiet_ns);
    assert_int_equal(shipped->threads.realtime, minimal->threads.realtime);
    assert_int_equal(shipped->threads.worker_priority, minimal->threads.worker_priority);
    assert_int_equal(shipped->threads.io_priority, minimal->threads.io_priority);
    assert_int_equal(shipped->threads.pin, minimal->threads.pin);
    assert_int_equal(shipped->threads.io, 0);
    assert_int_equal(shipped->threads.workers, 0);
    assert_string_equal(shipped->engine, minimal->engine);
    assert_int_equal(shipped->gpus.use, minimal->gpus.use);
    assert_int_equal(shipped->gpus.audit, minimal->gpus.audit);
    assert_int_equal(shipped->gpus.hang_ns, minimal->gpus.hang_ns);
    assert_int_equal(shipped->client_iv, minimal->client_iv);
    assert_int_equal(shipped->check_plans, minimal->check_plans);
    assert_int_equal(shipped->sandbox, minimal->sandbox);
    assert_int_equal(shipped->log_level, minimal->log_level);
    assert_int_equal(shipped->log_format, minimal->log_format);
    config_server_free(shipped);
    config_server_free(minimal);
}

static void files_that_can_not_be_read_are_named(void **state)
{
    char folder[] = "/tmp/millrace-test-XXXXXX", fifo[64];
    struct config_server *server;
    struct core_error error;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(config_server_load("/nonexistent/m.yaml", &server, &error), CORE_SYSTEM);
    assert_string_equal(error.text, "/nonexistent/m.yaml: can not be opened: No such file or directory");
    assert_int_equal(config_server_load(folder, &server, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "is not a regular file"));
    assert_int_equal(config_server_load(fifo, &server, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "is not a regular file"));
    unlink(fifo);
    rmdir(folder);
}

static void files_above_16_mib_are_refused(void **state)
{
    char path[] = "/tmp/millrace-test-XXXXXX";
    struct config_server *server;
    struct core_error error;
    const int descriptor = mkstemp(path);

    (void)state;
    assert_true(descriptor >= 0);
    assert_int_equal(ftruncate(descriptor, (16 << 20) + 1), 0);
    assert_int_equal(config_server_load(path, &server, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "are too much"));
    close(descriptor);
    unlink(path);
    assert_int_equal(config_server_parse("x", (16 << 20) + 1, "m.yaml", &server, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "are too much"));
}

/* Large in memory or time for their size: refused before a tree is built. */
static void floods_are_refused(void **state)
{
    const size_t bytes = (size_t)8 << 20;
    char *text = malloc(bytes);
    struct config_server *server = NULL;
    struct core_error error;

    (void)state;
    assert_non_null(text);
    snprintf(text, bytes, "listeners: [");
    for (size_t i = strlen("listeners: ["); i < bytes; i++)
        text[i] = i % 2 ? ',' : 'a';
    assert_int_equal(config_server_parse(text, bytes, "m.yaml", &server, &error), CORE_INVALID);
    assert_string_equal(error.text, "m.yaml:1: more than 1000000 values; split the file");
    memset(text, '[', bytes);
    assert_int_equal(config_server_parse(text, bytes, "m.yaml", &server, &error), CORE_INVALID);
    assert_string_equal(error.text, "m.yaml:1: nested more than 32 deep; flatten it");
    assert_null(server);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_as_documented),
        cmocka_unit_test(every_key_arrives),
        cmocka_unit_test(values_take_units),
        cmocka_unit_test(profiles_are_shipped_ones_or_paths),
        cmocka_unit_test(keys_that_differ_are_named),
        cmocka_unit_test(gpus_have_three_forms),
        cmocka_unit_test(inner_defaults_give_way_to_outer_limits),
        cmocka_unit_test(shares_of_the_connections),
        cmocka_unit_test(mistakes_are_named_with_file_and_line),
        cmocka_unit_test(an_error_need_not_be_taken),
        cmocka_unit_test(long_relative_socket_paths_are_refused),
        cmocka_unit_test(shipped_example_loads_and_shows_the_defaults),
        cmocka_unit_test(files_that_can_not_be_read_are_named),
        cmocka_unit_test(files_above_16_mib_are_refused),
        cmocka_unit_test(floods_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
