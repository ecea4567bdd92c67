/* The admin port of a whole server: every path, what it says, and everything that must not harm it. */
#include "server/overload/beats.h"
#include "server/server_internal.h"
#include "tests/support/http.h"
#include "tests/support/random.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IO_THREADS 2
#define WORKERS    1

static struct test_server server; /* one for all tests: drained by the last */

static const struct core_address *admin(void)
{
    return server_admin_address(server.server);
}

static int start(void **state)
{
    (void)state;
    test_server_start(&server,
                      "admin: tcp:127.0.0.1:0\n"
                      "threads: {cores: 8, io: 2, workers: 1, realtime: off, pin: false}\n"
                      "timeouts: {stall_ms: 60000, drain_ms: 60000}\n",
                      &test_profile_generous);
    return 0;
}

/* ---- JSON ---- */

static json_int_t whole(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("%s is missing or not an integer", key);
    return json_integer_value(value);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is missing or no number", key);
    return json_number_value(value);
}

static const char *text(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        fail_msg("%s is missing or no text", key);
    return json_string_value(value);
}

static json_t *list(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!json_is_array(value))
        fail_msg("%s is missing or no array", key);
    return value;
}

/* ---- paths ---- */

static void health_says_ok(void **state)
{
    (void)state;
    struct http_answer answer = http_ask(admin(), "GET", "/health");
    assert_int_equal(answer.code, 200);
    assert_string_equal(answer.body, "ok\n");
    assert_non_null(strstr(answer.bytes, "Connection: close\r\n"));
    http_free(&answer);
}

static void only_known_paths_are_there(void **state)
{
    static const char *const paths[] = {"/",         "/Status",  "/status/", "/health/x",
                                        "/metricsx", "//status", "/%2e"};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        assert_int_equal(http_code(admin(), paths[i]), 404);
    assert_int_equal(http_code(admin(), "/health?whatever=1"), 200);
}

static void everything_can_only_be_read(void **state)
{
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
    static const char *const paths[] = {"/health", "/metrics", "/status", "/status?streams=1"};
    (void)state;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        for (size_t j = 0; j < sizeof paths / sizeof paths[0]; j++) {
            struct http_answer answer = http_ask(admin(), methods[i], paths[j]);
            assert_int_equal(answer.code, 405);
            assert_non_null(strstr(answer.bytes, "Allow: GET, HEAD\r\n"));
            http_free(&answer);
        }
}

static void head_has_a_length_and_no_body(void **state)
{
    (void)state;
    struct http_answer answer = http_ask(admin(), "HEAD", "/health");
    assert_int_equal(answer.code, 200);
    assert_non_null(strstr(answer.bytes, "Content-Length: 3\r\n"));
    assert_string_equal(answer.body, "");
    http_free(&answer);
    int descriptor = http_dial(admin()); /* who comes next has one, even if the request is none */
    http_send(descriptor, "\r\n\r\n", 4);
    answer = http_read(descriptor);
    assert_int_equal(answer.code, 400);
    assert_string_equal(answer.body, "this speaks HTTP/1.0 and HTTP/1.1\n");
    http_free(&answer);
}

/* ---- status ---- */

static void check_io(const json_t *io)
{
    static const char *const counts[] = {"connections", "streams", "packets",     "bytes",
                                         "met",         "missed",  "reader_late", "policed"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        assert_true(whole(io, counts[i]) >= 0);
    assert_true(number(io, "utilisation") >= 0 && number(io, "utilisation") <= 1);
    assert_true(number(io, "cpu_s") >= 0);
}

static void check_worker(const json_t *worker)
{
    static const char *const counts[] = {"streams", "bursts", "pieces", "packets"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        assert_true(whole(worker, counts[i]) >= 0);
    assert_true(number(worker, "utilisation") >= 0 && number(worker, "utilisation") <= 1);
    assert_true(number(worker, "headroom") <= 1);
    assert_true(number(worker, "burst_max_us") >= 0);
    assert_true(number(worker, "burst_bound_us") > 0);
    assert_true(number(worker, "cpu_s") >= 0);
}

static void check_percentiles(const json_t *totals)
{
    const json_t *slack = json_object_get(totals, "slack_us"),
                 *latency = json_object_get(totals, "latency_us"),
                 *admission = json_object_get(totals, "admission_us"),
                 *in_force = json_object_get(totals, "in_force_us");
    assert_true(number(slack, "min") <= number(slack, "p0_01"));
    assert_true(number(slack, "p0_01") <= number(slack, "p1"));
    assert_true(number(slack, "p1") <= number(slack, "p50"));
    assert_true(number(slack, "p50") <= number(slack, "p99"));
    assert_true(number(latency, "p50") <= number(latency, "p99"));
    assert_true(number(latency, "p99") <= number(latency, "p99_9"));
    assert_true(number(latency, "p99_9") <= number(latency, "p99_99"));
    assert_true(number(latency, "p99_99") <= number(latency, "max"));
    assert_true(number(admission, "p50") <= number(admission, "p99"));
    assert_true(number(admission, "p99") <= number(admission, "max"));
    assert_true(number(in_force, "p50") <= number(in_force, "p99"));
    assert_true(number(in_force, "p99") <= number(in_force, "max"));
}

static void status_tells_every_figure(void **state)
{
    static const char *const counts[] = {"connections", "streams", "opened", "refused",     "packets",
                                         "bytes",       "met",     "missed", "reader_late", "policed",
                                         "rejected",    "lost",    "errors"};
    size_t index;
    json_t *row;
    (void)state;

    json_t *root = http_json(admin(), "/status");
    assert_string_equal(text(root, "version"), MILLRACE_VERSION);
    assert_string_equal(text(root, "state"), "serving");
    assert_string_equal(text(root, "engine"), "ipsec-mb");
    assert_string_equal(text(root, "profile"), "generous");
    assert_true(number(root, "uptime_s") > 0);
    assert_null(json_object_get(root, "streams"));
    assert_int_equal(json_array_size(list(root, "io_threads")), IO_THREADS);
    json_array_foreach(list(root, "io_threads"), index, row) check_io(row);
    assert_int_equal(json_array_size(list(root, "workers")), WORKERS);
    json_array_foreach(list(root, "workers"), index, row) check_worker(row);
    const json_t *totals = json_object_get(root, "totals");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        assert_true(whole(totals, counts[i]) >= 0);
    check_percentiles(totals);
    json_decref(root);
}

static void streams_are_listed_only_on_request(void **state)
{
    static const char *const others[] = {"/status?streams=0", "/status?streams=", "/status?streams",
                                         "/status?", "/status?stream=1"};
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        json_t *root = http_json(admin(), others[i]);
        assert_null(json_object_get(root, "streams"));
        json_decref(root);
    }
    json_t *root = http_json(admin(), "/status?x=2&streams=1");
    assert_true(json_is_true(json_object_get(root, "streams_complete")));
    assert_int_equal(json_array_size(list(root, "streams")), 0);
    json_decref(root);
}

/* The figures of a stream come from counters that are written after the socket took the bytes, so that a
 * client may hold a RESULT before they tell of it. */
static json_t *status_when(const char *path, bool (*good)(const json_t *root, const void *argument),
                           const void *argument)
{
    for (int waited_ms = 0;; waited_ms++) {
        json_t *root = http_json(admin(), path);
        if (good(root, argument))
            return root;
        if (waited_ms > TEST_PATIENCE_MS / 10)
            fail_msg("%s never became what it should be", path);
        json_decref(root);
        poll(NULL, 0, 10);
    }
}

static bool only_stream_has_packets(const json_t *root, const void *argument)
{
    const json_t *streams = json_object_get(root, "streams");
    const json_t *row = json_array_get(streams, 0);
    return json_array_size(streams) == 1 &&
           json_integer_value(json_object_get(row, "packets")) == *(const json_int_t *)argument;
}

static bool has_streams(const json_t *root, const void *argument)
{
    const json_t *totals = json_object_get(root, "totals");
    return json_integer_value(json_object_get(totals, "streams")) == *(const json_int_t *)argument;
}

static bool has_connections(const json_t *root, const void *argument)
{
    const json_t *totals = json_object_get(root, "totals");
    return json_integer_value(json_object_get(totals, "connections")) == *(const json_int_t *)argument;
}

static void await_empty(void)
{
    const json_int_t none = 0;
    json_decref(status_when("/status", has_connections, &none));
    json_decref(status_when("/status", has_streams, &none));
}

static void check_contract(const json_t *row, const struct test_stream *stream)
{
    assert_true(whole(row, "connection") > 0);
    assert_int_equal(strncmp(text(row, "peer"), "unix:pid=", 9), 0);
    assert_int_equal(whole(row, "stream"), stream->id);
    assert_string_equal(text(row, "unit"), "cpu-0");
    assert_int_equal(whole(row, "packet_bytes"), test_spec.packet_bytes);
    assert_true(number(row, "interval_us") == 1000);
    assert_true(number(row, "latency_us") == 1e7);
}

static void a_stream_shows_up_with_its_figures(void **state)
{
    const json_int_t packets = 150; /* more than its burst of 64 at once: some are held back */
    const json_int_t none = 0;
    struct test_client client;
    (void)state;

    json_t *before = http_json(admin(), "/status");
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
    json_t *root = status_when("/status?streams=1", only_stream_has_packets, &none);
    const json_t *row = json_array_get(list(root, "streams"), 0);
    check_contract(row, stream);
    assert_true(json_is_null(json_object_get(row, "slack_min_us")));
    json_decref(root);

    for (json_int_t i = 0; i < packets; i++)
        assert_true(test_stream_send(stream, test_spec.packet_bytes));
    test_stream_drain(stream);
    root = status_when("/status?streams=1", only_stream_has_packets, &packets);
    row = json_array_get(list(root, "streams"), 0);
    check_contract(row, stream);
    assert_int_equal(whole(row, "bytes"), packets * test_spec.packet_bytes);
    assert_int_equal(whole(row, "met"), packets);
    assert_int_equal(whole(row, "missed"), 0);
    assert_true(whole(row, "policed") <= packets - 64);
    assert_true(number(row, "slack_min_us") > 0 && number(row, "slack_min_us") < 1e7);
    const json_t *totals = json_object_get(root, "totals"), *old = json_object_get(before, "totals");
    assert_int_equal(whole(totals, "packets") - whole(old, "packets"), packets);
    assert_int_equal(whole(totals, "policed") - whole(old, "policed"), whole(row, "policed"));
    assert_int_equal(whole(totals, "opened") - whole(old, "opened"), 1);
    assert_int_equal(whole(totals, "streams"), 1);
    assert_int_equal(whole(totals, "connections"), 1);
    json_decref(root);
    json_decref(before);

    test_stream_close(stream);
    root = status_when("/status?streams=1", has_streams, &none);
    assert_int_equal(json_array_size(list(root, "streams")), 0);
    json_decref(root);
    test_stream_free(stream);
    test_client_close(&client);
    await_empty();
}

static void a_refusal_and_an_error_are_counted(void **state)
{
    struct core_stream_spec impossible = test_spec;
    struct test_client client;
    struct test_frame frame;
    uint8_t key[16] = {0}, data[PROTOCOL_HEADER_BYTES];
    (void)state;

    json_t *before = http_json(admin(), "/status");
    impossible.latency_ns = CORE_LATENCY_NS_MIN;
    impossible.interval_ns = CORE_INTERVAL_NS_MIN;
    struct protocol_open open = test_open_inline(&impossible, key);
    test_client_connect(&client, test_server_unix(&server), NULL);
    assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, NULL));
    test_data_header(data, 77, 0, 0);
    assert_true(test_client_send(&client, data, sizeof data));
    test_client_expect(&client, PROTOCOL_ERROR, &frame);
    test_client_close(&client);
    await_empty();
    json_t *after = http_json(admin(), "/status");
    const json_t *now = json_object_get(after, "totals"), *then = json_object_get(before, "totals");
    assert_int_equal(whole(now, "refused") - whole(then, "refused"), 1);
    assert_int_equal(whole(now, "errors") - whole(then, "errors"), 1);
    json_decref(before);
    json_decref(after);
}

/* ---- many streams ---- */

#define CONNECTIONS    3
#define PER_CONNECTION 400 /* together more than four pages of 256 */

static void open_plenty(struct test_client *client, uint32_t count)
{
    uint8_t key[16] = {0};
    struct core_stream_spec spec = test_spec;
    spec.burst_packets = 1;
    spec.interval_ns = CORE_NS_PER_S;
    struct protocol_open open = test_open_inline(&spec, key);
    for (uint32_t i = 0; i < count; i++)
        assert_true(test_client_ask(client, PROTOCOL_OPEN, &open, NULL, NULL));
}

/* How many streams of the listed connection have each id; ids from 1 to PER_CONNECTION. */
static void check_connection(const json_t *streams, json_int_t connection)
{
    static unsigned seen[PER_CONNECTION + 1];
    size_t index;
    json_t *row;

    memset(seen, 0, sizeof seen);
    json_array_foreach(streams, index, row)
    {
        if (whole(row, "connection") != connection)
            continue;
        assert_in_range(whole(row, "stream"), 1, PER_CONNECTION);
        seen[whole(row, "stream")]++;
    }
    for (unsigned id = 1; id <= PER_CONNECTION; id++)
        assert_int_equal(seen[id], 1);
}

/* The numbers of the CONNECTIONS connections that are listed, and of no others. */
static void find_connections(const json_t *streams, json_int_t numbers[CONNECTIONS])
{
    size_t index, count = 0;
    json_t *row;
    json_array_foreach(streams, index, row)
    {
        bool known = false;
        for (size_t i = 0; i < count; i++)
            known = known || numbers[i] == whole(row, "connection");
        if (!known && count < CONNECTIONS)
            numbers[count++] = whole(row, "connection");
    }
    assert_int_equal(count, CONNECTIONS);
}

static void *come_and_go(void *argument)
{
    const atomic_bool *enough = argument;
    struct core_stream_spec spec = test_spec;
    while (!atomic_load(enough)) {
        struct test_client clients[4];
        for (size_t i = 0; i < 4; i++) {
            test_client_connect(&clients[i], test_server_unix(&server), NULL);
            for (uint64_t seed = 0; seed < 3; seed++)
                test_stream_free(test_stream_open(&clients[i], &spec, seed));
        }
        for (size_t i = 0; i < 4; i++)
            test_client_close(&clients[(i * 3) % 4]);
    }
    return NULL;
}

static void each_of_many_streams_is_listed_once(void **state)
{
    const json_int_t all = CONNECTIONS * PER_CONNECTION;
    struct test_client clients[CONNECTIONS];
    json_int_t numbers[CONNECTIONS] = {0};
    atomic_bool enough = false;
    pthread_t thread;
    (void)state;

    for (size_t i = 0; i < CONNECTIONS; i++) {
        test_client_connect(&clients[i], test_server_unix(&server), NULL);
        open_plenty(&clients[i], PER_CONNECTION);
    }
    json_t *root = status_when("/status?streams=1", has_streams, &all);
    assert_true(json_is_true(json_object_get(root, "streams_complete")));
    assert_int_equal(json_array_size(list(root, "streams")), all);
    find_connections(list(root, "streams"), numbers);
    json_decref(root);

    /* The same beside streams and connections that come and go all the time. */
    assert_int_equal(pthread_create(&thread, NULL, come_and_go, &enough), 0);
    for (int round = 0; round < 30; round++) {
        root = http_json(admin(), "/status?streams=1");
        assert_true(json_is_true(json_object_get(root, "streams_complete")));
        for (size_t i = 0; i < CONNECTIONS; i++)
            check_connection(list(root, "streams"), numbers[i]);
        json_decref(root);
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < CONNECTIONS; i++)
        test_client_close(&clients[i]);
    await_empty();
}

static void *ask_for_streams(void *argument)
{
    json_t *root = http_json(admin(), "/status?streams=1");
    *(size_t *)argument = json_array_size(json_object_get(root, "streams"));
    json_decref(root);
    return NULL;
}

static void many_may_ask_for_the_streams_at_once(void **state)
{
    enum { ASKERS = 12 };
    pthread_t threads[ASKERS];
    size_t sizes[ASKERS] = {0};
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    open_plenty(&client, 300);
    for (size_t i = 0; i < ASKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_streams, &sizes[i]), 0);
    for (size_t i = 0; i < ASKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(sizes[i], 300);
    }
    test_client_close(&client);
    await_empty();
}

/* ---- metrics ---- */

#define FAMILIES_MAX 128

struct exposition {
    char names[FAMILIES_MAX][96], types[FAMILIES_MAX][160];
    size_t families;
    size_t samples;
};

static size_t name_length(const char *line)
{
    size_t length = 0;
    while (isalnum((unsigned char)line[length]) || line[length] == '_' || line[length] == ':')
        length++;
    return isdigit((unsigned char)line[0]) ? 0 : length;
}

/* "{name="value",...}"; returns what follows. */
static const char *skip_labels(const char *next)
{
    do {
        size_t length = name_length(++next);
        assert_true(length > 0);
        next += length;
        assert_int_equal(strncmp(next, "=\"", 2), 0);
        for (next += 2; *next != '"'; next++) {
            assert_true(*next != '\0' && *next != '\n');
            next += *next == '\\';
        }
        next++;
    } while (*next == ',');
    assert_int_equal(*next, '}');
    return next + 1;
}

static void check_head(struct exposition *found, const char *line)
{
    char kind[8], name[96] = "", rest[160] = "";
    assert_int_equal(sscanf(line, "# %7s %95s %159[^\n]", kind, name, rest), 3);
    assert_int_equal(name_length(name), strlen(name));
    if (strcmp(kind, "HELP") == 0) {
        for (size_t i = 0; i < found->families; i++)
            assert_string_not_equal(found->names[i], name);
        assert_true(found->families < FAMILIES_MAX);
        memcpy(found->names[found->families++], name, sizeof name);
        return;
    }
    assert_string_equal(kind, "TYPE");
    assert_string_equal(found->names[found->families - 1], name);
    assert_true(strcmp(rest, "counter") == 0 || strcmp(rest, "gauge") == 0 || strcmp(rest, "histogram") == 0);
    memcpy(found->types[found->families - 1], rest, sizeof rest);
}

/* A sample belongs to the family whose head came last. */
static void check_sample(struct exposition *found, const char *line)
{
    const char *family = found->names[found->families - 1], *type = found->types[found->families - 1];
    size_t length = name_length(line), stem = strlen(family);
    char *end;

    assert_true(length >= stem && strncmp(line, family, stem) == 0);
    if (strcmp(type, "histogram") == 0)
        assert_true(strncmp(line + stem, "_bucket", length - stem) == 0 ||
                    strncmp(line + stem, "_sum", length - stem) == 0 ||
                    strncmp(line + stem, "_count", length - stem) == 0);
    else
        assert_int_equal(length, stem);
    if (strcmp(type, "counter") == 0)
        assert_string_equal(family + stem - 6, "_total");
    line += length;
    if (*line == '{')
        line = skip_labels(line);
    assert_int_equal(*line, ' ');
    double value = strtod(line + 1, &end);
    assert_true(end != line + 1 && *end == '\n' && isfinite(value));
    found->samples++;
}

static void check_lines(const char *page, struct exposition *found)
{
    memset(found, 0, sizeof *found);
    for (const char *line = page; *line != '\0'; line = strchr(line, '\n') + 1) {
        assert_non_null(strchr(line, '\n'));
        if (*line == '#')
            check_head(found, line);
        else
            check_sample(found, line);
    }
}

/* Value of the sample that starts with `sample`. */
static double sample(const char *page, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = page; *line != '\0'; line = strchr(line, '\n') + 1)
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            return strtod(line + length, NULL);
    fail_msg("no sample %s", name);
    return 0;
}

static void check_histogram(const char *page, const char *name)
{
    char prefix[96], total[96];
    double last_edge = -1, last_count = 0;
    bool ended = false;

    snprintf(prefix, sizeof prefix, "%s_bucket{le=\"", name);
    snprintf(total, sizeof total, "%s_count", name);
    for (const char *line = strstr(page, prefix); line != NULL; line = strstr(line + 1, prefix)) {
        const char *edge_text = line + strlen(prefix);
        double edge = strtod(edge_text, NULL), count = strtod(strchr(line, ' '), NULL);
        assert_false(ended);
        ended = strncmp(edge_text, "+Inf", 4) == 0;
        assert_true(edge > last_edge && count >= last_count);
        last_edge = edge;
        last_count = count;
    }
    assert_true(ended);
    assert_true(last_count == sample(page, total));
}

static void metrics_are_in_prometheus_format(void **state)
{
    static struct exposition found;
    (void)state;

    struct http_answer answer = http_ask(admin(), "GET", "/metrics");
    assert_int_equal(answer.code, 200);
    assert_non_null(strstr(answer.bytes, "Content-Type: text/plain; version=0.0.4"));
    check_lines(answer.body, &found);
    assert_true(found.families >= 30);
    assert_true(found.samples > found.families);
    check_histogram(answer.body, "millrace_latency_seconds");
    check_histogram(answer.body, "millrace_slack_seconds");
    check_histogram(answer.body, "millrace_admission_seconds");
    check_histogram(answer.body, "millrace_in_force_seconds");
    assert_non_null(strstr(answer.body,
                           "millrace_build_info{version=\"" MILLRACE_VERSION "\",engine=\"ipsec-mb\","
                           "profile=\"generous\"} 1\n"));
    assert_true(sample(answer.body, "millrace_draining") == 0);
    http_free(&answer);
}

static void metrics_agree_with_status(void **state)
{
    (void)state;
    await_empty();
    struct http_answer answer = http_ask(admin(), "GET", "/metrics");
    json_t *root = http_json(admin(), "/status");
    const json_t *totals = json_object_get(root, "totals");
    static const struct {
        const char *metric, *key;
    } pairs[] = {
        {"streams_opened_total", "opened"},
        {"packets_total", "packets"},
        {"bytes_total", "bytes"},
        {"deadlines_met_total", "met"},
        {"deadlines_missed_total", "missed"},
        {"policed_total", "policed"},
        {"errors_total", "errors"},
        {"modified_total", "modified"},
        {"streams_idled_total", "idled"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        double sum = 0;
        for (int io = 0; io < IO_THREADS; io++) {
            char name[96];
            snprintf(name, sizeof name, "millrace_%s{io=\"%d\"}", pairs[i].metric, io);
            sum += sample(answer.body, name);
        }
        assert_true(sum == (double)whole(totals, pairs[i].key));
    }
    assert_true(whole(totals, "packets") > 0);
    assert_true(sample(answer.body, "millrace_worker_packets_total{worker=\"0\"}") ==
                (double)whole(totals, "packets"));
    assert_true(sample(answer.body, "millrace_latency_seconds_count") == (double)whole(totals, "packets"));
    json_decref(root);
    http_free(&answer);
}

/* ---- what must do no harm ---- */

static int send_and_read(const void *bytes, size_t count)
{
    int descriptor = http_dial(admin());
    http_send(descriptor, bytes, count);
    shutdown(descriptor, SHUT_WR);
    struct http_answer answer = http_read(descriptor);
    http_free(&answer);
    return answer.code;
}

static void admin_rejects_garbage(void **state)
{
    static const char *const requests[] = {
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET /status\r\n\r\n",
        "GET /status HTTP/9.9\r\n\r\n",
        "GET /status HTTP/1.1\r\nno colon here\r\n\r\n",
        "FETCH /status HTTP/1.1\r\n\r\n",
        "GET http://[::1/status HTTP/1.1\r\n\r\n",
        "CONNECT localhost:1 HTTP/1.1\r\n\r\n",
        "GET /status?streams=1%00&& HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST /status HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST /status HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nx",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "MLRC\x01\x00\x01\x00",
    };
    struct test_random random = {.state = 1};
    uint8_t noise[3000];
    (void)state;

    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        assert_true(send_and_read(requests[i], strlen(requests[i])) != 500);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (uint8_t)test_random_next(&random);
        assert_true(send_and_read(noise, sizeof noise) != 200);
    }
    assert_int_equal(http_code(admin(), "/health"), 200);
}

static void ambiguous_and_old_requests_are_refused(void **state)
{
    static const char *const requests[] = {
        "GET /health\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n", /* whose? */
        "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /health?\x01 HTTP/1.0\r\n\r\n",
        "GET /health HTTP/1.0\r\nX(Y: 1\r\n\r\n",
        "GET /health HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /health HTTP/0.9\r\n\r\n",
        "GET /health HTTP/1.0\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "GET /health HTTP/1.0\r\nContent-Length: 0\r\nX: 1\r\ncontent-length: 00\r\n\r\n",
        "GET /health HTTP/1.0\r\nContent-Length: \r\n\r\n",
        "GET /health HTTP/1.0\r\n: 1\r\n\r\n",
        "GET /health\x7f HTTP/1.0\r\n\r\n",
        " /health HTTP/1.0\r\n\r\n",
        "\n\n",
    };
    static const char alike[] = "GET /health HTTP/1.0\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
                      plain[] = "GET /health HTTP/1.0\r\n\r\n";
    (void)state;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        assert_int_equal(send_and_read(requests[i], strlen(requests[i])), 400);
    assert_int_equal(send_and_read(alike, strlen(alike)), 200);
    assert_int_equal(send_and_read(plain, strlen(plain)), 200);
}

/* Lines that end as those of Unix, spaces around a value, and fields without one are understood. */
static void lax_requests_are_answered(void **state)
{
    static const char *const requests[] = {
        "GET /health HTTP/1.0\n\n",
        "GET /health HTTP/1.1\nHost: a \t\n\n",
        "GET /health HTTP/1.1\r\nX:\r\nHost:\t \r\n\r\n",
        "GET /health HTTP/1.0\r\nContent-Length:\t0 \r\n\r\n",
    };
    static const struct {
        const char *path;
        bool streams;
    } queries[] = {{"/status?streams=1", true},   {"/status?streams=1&a", true},
                   {"/status?a&streams=1", true}, {"/status?streams=12", false},
                   {"/status?streams=0", false},  {"/status?a&b", false}};
    (void)state;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        if (send_and_read(requests[i], strlen(requests[i])) != 200)
            fail_msg("'%s'", requests[i]);
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++) {
        json_t *root = http_json(admin(), queries[i].path);
        if ((json_object_get(root, "streams_complete") != NULL) != queries[i].streams)
            fail_msg("%s", queries[i].path);
        json_decref(root);
    }
}

static void oversized_requests_are_refused(void **state)
{
    static char request[1 << 20];
    (void)state;

    int head = snprintf(request, sizeof request, "GET /health HTTP/1.1\r\nX: ");
    memset(request + head, 'x', sizeof request - (size_t)head);
    assert_true(send_and_read(request, sizeof request) != 200); /* a header without end */
    head = snprintf(request, sizeof request, "GET /");
    memset(request + head, 'y', sizeof request - (size_t)head);
    assert_true(send_and_read(request, sizeof request) != 200); /* a path without end */
    head = snprintf(request, sizeof request, "POST /health HTTP/1.1\r\nContent-Length: %zu\r\n\r\n",
                    sizeof request - 64);
    memset(request + head, 'z', sizeof request - (size_t)head);
    int code = send_and_read(request, sizeof request);
    assert_true(code == 0 || code == 413 || code == 400); /* a body */
    assert_int_equal(http_code(admin(), "/health"), 200);
}

static void slow_clients_do_not_block_others(void **state)
{
    int slow[10];
    static const char half[] = "GET /status?streams=1 HTTP/1.1\r\nHost: lo";
    (void)state;

    for (size_t i = 0; i < 10; i++) {
        slow[i] = http_dial(admin());
        http_send(slow[i], half, i < 5 ? sizeof half - 1 : 0);
    }
    assert_int_equal(http_code(admin(), "/health"), 200);
    http_send(slow[0], "calhost\r\n\r\n", 11); /* the rest is good at last, unless its time was over */
    struct http_answer answer = http_read(slow[0]);
    assert_true(answer.code == 200 || answer.code == 0);
    http_free(&answer);
    for (size_t i = 1; i < 10; i++)
        close(slow[i]);
    assert_int_equal(http_code(admin(), "/health"), 200);
}

static void more_connections_than_places_wait_their_turn(void **state)
{
    int idle[100];
    (void)state;
    for (size_t i = 0; i < 100; i++)
        idle[i] = http_dial(admin());
    for (size_t i = 0; i < 100; i++)
        close(idle[i]);
    assert_int_equal(http_code(admin(), "/health"), 200);
}

static void admin_client_disconnects_before_the_answer(void **state)
{
    static const char request[] = "GET /status?streams=1 HTTP/1.0\r\n\r\n";
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    open_plenty(&client, 300);
    for (int i = 0; i < 60; i++) {
        int descriptor = http_dial(admin());
        http_send(descriptor, request, sizeof request - 1);
        if (i % 2 == 0)
            close(descriptor);
        else {
            struct http_answer answer = http_read(descriptor);
            assert_int_equal(answer.code, 200);
            http_free(&answer);
        }
    }
    test_client_close(&client);
    await_empty();
}

/* ---- the end ---- */

static atomic_bool
    looked; /* atomic: the test has looked at the beats, which the stopping thread frees then */

void __real_server_beats_destroy(struct server_beats *beats);
void __wrap_server_beats_destroy(struct server_beats *beats);
void __wrap_server_beats_destroy(struct server_beats *beats)
{
    (void)atomic_load(&looked);
    __real_server_beats_destroy(beats);
}

#define DRAIN_PACKETS 60
#define DRAIN_BYTES   16384

static void *stop(void *lost)
{
    *(uint64_t *)lost = test_server_stop(&server);
    return NULL;
}

/* More results than a socket takes, so that the server can not finish before the client reads. */
static struct test_stream *fill_up(struct test_client *client)
{
    static uint8_t frames[DRAIN_PACKETS * (DRAIN_BYTES + PROTOCOL_HEADER_BYTES)];
    struct core_stream_spec spec = test_spec;
    size_t bytes = 0, sent = 0;

    spec.packet_bytes = DRAIN_BYTES;
    struct test_stream *stream = test_stream_open(client, &spec, 5);
    for (int i = 0; i < DRAIN_PACKETS; i++)
        bytes += test_stream_frame(stream, DRAIN_BYTES, frames + bytes);
    while (sent < bytes) {
        struct pollfd ready = {.fd = client->descriptor, .events = POLLOUT};
        assert_true(poll(&ready, 1, TEST_PATIENCE_MS) == 1);
        sent += test_client_push(client, frames + sent, bytes - sent);
    }
    return stream;
}

static json_int_t encrypted(const json_t *root)
{
    return whole(json_array_get(list(root, "workers"), 0), "packets");
}

static bool has_encrypted(const json_t *root, const void *argument)
{
    return encrypted(root) == *(const json_int_t *)argument;
}

static bool is_draining(const json_t *root, const void *argument)
{
    (void)argument;
    return strcmp(text(root, "state"), "draining") == 0;
}

/* The I/O thread that has nothing to finish is gone: the list says that it may lack something. */
static bool lacks_a_thread(const json_t *root, const void *argument)
{
    return is_draining(root, argument) && json_is_false(json_object_get(root, "streams_complete"));
}

static void admin_reports_draining_until_the_end(void **state)
{
    struct core_address address = *admin();
    struct test_client client;
    struct test_frame frame;
    pthread_t thread;
    uint64_t lost = 1;
    char said[96];
    (void)state;

    json_t *root = http_json(&address, "/status");
    const json_int_t goal = encrypted(root) + DRAIN_PACKETS;
    json_decref(root);
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = fill_up(&client);
    json_decref(status_when("/status", has_encrypted, &goal)); /* all of it has been received */
    assert_int_equal(http_code(&address, "/health"), 200);
    assert_int_equal(pthread_create(&thread, NULL, stop, &lost), 0);
    json_decref(status_when("/status", is_draining, NULL));
    struct http_answer answer = http_ask(&address, "GET", "/health");
    assert_int_equal(answer.code, 503);
    assert_string_equal(answer.body, "draining\n");
    http_free(&answer);
    answer = http_ask(&address, "GET", "/readyz");
    assert_int_equal(answer.code, 503);
    assert_string_equal(answer.body, "draining\n");
    http_free(&answer);
    answer = http_ask(&address, "GET", "/metrics");
    assert_true(sample(answer.body, "millrace_draining") == 1);
    http_free(&answer);
    root = status_when("/status?streams=1", lacks_a_thread, NULL);
    assert_int_equal(json_array_size(list(root, "streams")), 1);
    json_decref(root);
    usleep(SERVER_BEAT_LATE_NS / CORE_NS_PER_US); /* that thread need not answer */
    if (!server_beats_all(server.server->beats, core_time_now_ns(), said, sizeof said))
        fail_msg("%s", said);
    atomic_store(&looked, true);

    for (int i = 0; i < DRAIN_PACKETS; i++) {
        test_client_expect(&client, PROTOCOL_RESULT, &frame);
        test_stream_check(stream, &frame);
    }
    test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    test_client_expect_error(&client, PROTOCOL_ERROR_SHUTDOWN, 0, true);
    pthread_join(thread, NULL);
    assert_int_equal(lost, 0);
    test_stream_free(stream);
    test_client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(health_says_ok),
        cmocka_unit_test(only_known_paths_are_there),
        cmocka_unit_test(everything_can_only_be_read),
        cmocka_unit_test(head_has_a_length_and_no_body),
        cmocka_unit_test(status_tells_every_figure),
        cmocka_unit_test(streams_are_listed_only_on_request),
        cmocka_unit_test(a_stream_shows_up_with_its_figures),
        cmocka_unit_test(a_refusal_and_an_error_are_counted),
        cmocka_unit_test(each_of_many_streams_is_listed_once),
        cmocka_unit_test(many_may_ask_for_the_streams_at_once),
        cmocka_unit_test(metrics_are_in_prometheus_format),
        cmocka_unit_test(metrics_agree_with_status),
        cmocka_unit_test(admin_rejects_garbage),
        cmocka_unit_test(ambiguous_and_old_requests_are_refused),
        cmocka_unit_test(lax_requests_are_answered),
        cmocka_unit_test(oversized_requests_are_refused),
        cmocka_unit_test(slow_clients_do_not_block_others),
        cmocka_unit_test(more_connections_than_places_wait_their_turn),
        cmocka_unit_test(admin_client_disconnects_before_the_answer),
        cmocka_unit_test(admin_reports_draining_until_the_end),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
