#include "tests/support/server.h"

#include "core/log.h"
#include "tests/support/require.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

const struct config_profile test_profile_generous = {
    .name = "generous",
    .machine = "assumed",
    .measured = "assumed",
    .cpu = {.lanes = 8,
            .burst_pieces = 32,
            .piece_bytes = 4096,
            .per_piece_ns = 1,
            .per_byte_fs = {1000, 1000, 1000},
            .lane_ns = {10, 10, 10},
            .queue_granularity_ns = 4096},
    .io = {.per_packet_ns = 1, .per_byte_fs = 1, .limit_percent = 100},
    .margins = {.in_ns = 1000, .out_ns = 1000, .percent = 0},
};

const struct config_profile test_profile_real = {
    .name = "real",
    .machine = "assumed",
    .measured = "assumed",
    .cpu = {.lanes = 8,
            .burst_pieces = 32,
            .piece_bytes = 4096,
            .per_piece_ns = 60,
            .per_byte_fs = {350000, 420000, 490000},
            .lane_ns = {6000, 6000, 6000},
            .queue_granularity_ns = 4096},
    .io = {.per_packet_ns = 1500, .per_byte_fs = 500000, .limit_percent = 85},
    .margins = {.in_ns = 300000, .out_ns = 300000, .percent = 10},
};

static void add(char *text, size_t size, const char *line)
{
    size_t used = strlen(text);
    TEST_REQUIRE(snprintf(text + used, size - used, "%s", line) < (int)(size - used));
}

/* A line of the configuration unless the test has its own for that key. */
static void add_default(char *text, size_t size, const char *yaml, const char *key, const char *line)
{
    if (strstr(yaml, key) == NULL)
        add(text, size, line);
}

void test_server_prepare(struct test_server *server)
{
    memset(server, 0, sizeof *server);
    snprintf(server->folder, sizeof server->folder, "/tmp/millrace-test-XXXXXX");
    TEST_REQUIRE(mkdtemp(server->folder) != NULL);
}

void test_server_start(struct test_server *server, const char *yaml, const struct config_profile *profile)
{
    char text[4096] = "", name[128];
    struct core_error error = {""};

    if (strncmp(server->folder, "/tmp/", 5) != 0)
        test_server_prepare(server);
    core_log_set_level(CORE_LOG_ERROR);
    add_default(text, sizeof text, yaml,
                "listeners:", "listeners: [{address: 'unix:socket'}, {address: 'tcp:127.0.0.1:0'}]\n");
    add_default(text, sizeof text, yaml, "threads:", /* the same on every machine */
                "threads: {cores: 8, io: 1, workers: 1, realtime: off, pin: false}\n");
    add_default(text, sizeof text, yaml, "limits:", "limits: {lane_mib: 64}\n");
    add_default(text, sizeof text, yaml, "engine:", "engine: ipsec-mb\n");
    add_default(text, sizeof text, yaml, "timeouts:", /* of minutes: no test waits for them */
                "timeouts: {hello_ms: 240000, frame_ms: 240000, idle_ms: 480000, stall_ms: 240000, "
                "drain_ms: 240000}\n");
    add_default(text, sizeof text, yaml, "overload:", "overload: {tighten: false}\n");
    add(text, sizeof text, yaml);
    snprintf(name, sizeof name, "%s/test.yaml", server->folder);
    if (config_server_parse(text, strlen(text), name, &server->config, &error) != CORE_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    server->profile = *profile;
    server->profile.cpu.engine = server->config->engine;
    if (server_start(&server->server, server->config, &server->profile, &error) != CORE_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
}

static void remove_folder(const char *folder)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    TEST_REQUIRE(directory != NULL);
    while ((entry = readdir(directory)) != NULL)
        if (entry->d_name[0] != '.')
            TEST_REQUIRE(unlinkat(dirfd(directory), entry->d_name, 0) == 0);
    closedir(directory);
    TEST_REQUIRE(rmdir(folder) == 0);
}

uint64_t test_server_stop(struct test_server *server)
{
    uint64_t lost = server_stop(server->server);
    config_server_free(server->config);
    remove_folder(server->folder);
    memset(server, 0, sizeof *server);
    return lost;
}

const struct core_address *test_server_unix(const struct test_server *server)
{
    return server_address(server->server, 0);
}

const struct core_address *test_server_tcp(const struct test_server *server)
{
    return server_address(server->server, 1);
}

void test_server_write(const struct test_server *server, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", server->folder, name);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    TEST_REQUIRE(descriptor >= 0);
    TEST_REQUIRE(write(descriptor, text, strlen(text)) == (ssize_t)strlen(text));
    close(descriptor);
}
