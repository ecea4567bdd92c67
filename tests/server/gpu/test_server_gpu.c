/* Streams of a GPU from socket to ciphertext, through the emulated device in its child process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/gpu/gpus.h"
#include "server/server_internal.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/http.h"
#include "tests/support/random.h"
#include "tests/support/stream.h"

#define STREAMS 64

static struct test_server server;
static struct config_profile *profile;

/* 1408-byte packets, one each 5 ms, 100 ms to come back. */
static const struct core_stream_spec gpu_spec = {.packet_bytes = 1408,
                                                 .burst_packets = 4,
                                                 .interval_ns = 5 * CORE_NS_PER_MS,
                                                 .latency_ns = 100 * CORE_NS_PER_MS,
                                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                                 .padding = CORE_PADDING_NONE};

static void start(int64_t cost, const char *gpus)
{
    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(cost);
    test_gpu_server_start(&server, gpus, "admin: tcp:127.0.0.1:0\n", profile);
}

static int tear_down(void **state)
{
    (void)state;
    uint64_t lost = test_server_stop(&server);
    config_profile_free(profile);
    return lost == 0 ? 0 : -1;
}

static int set_up_gpu_only(void **state)
{
    (void)state;
    start(100000, "audit: 1");
    return 0;
}

/* Of the packets that are not compared a batch has the only plaintext. */
static int set_up_half_audited(void **state)
{
    (void)state;
    start(100000, "audit: 2");
    return 0;
}

static int set_up_mixed(void **state)
{
    (void)state;
    start(60, "audit: 3");
    return 0;
}

static void one_stream_goes_through_the_gpu(void **state)
{
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &gpu_spec, 1);
    assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
    assert_int_equal(stream->opened.unit_index, 0);
    assert_true(stream->opened.bound_ns <= gpu_spec.latency_ns);
    for (uint32_t i = 0; i < 100; i++) {
        assert_true(test_stream_send(stream, 16 * (1 + i * 7 % 88)));
        if (i % 4 == 3)
            test_stream_drain(stream);
    }
    test_stream_drain(stream);
    assert_int_equal(test_stream_close(stream).packets, 100);
    test_stream_free(stream);
    test_client_close(&client);
}

static void all_ciphers_paddings_and_both_units_side_by_side(void **state)
{
    struct test_stream *streams[STREAMS];
    struct test_random random = {.state = 5};
    struct test_client client;
    uint32_t on_gpu = 0, waiting = 0;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct core_stream_spec spec = gpu_spec;
        spec.cipher = (enum core_cipher)(1 + i % 3);
        spec.padding = i % 2 == 0 ? CORE_PADDING_PKCS7 : CORE_PADDING_NONE;
        spec.burst_packets = 8;
        streams[i] = test_stream_open(&client, &spec, i);
        on_gpu += streams[i]->opened.unit == PROTOCOL_UNIT_GPU ? 1 : 0;
    }
    assert_true(on_gpu > 0 && on_gpu < STREAMS);
    for (int i = 0; i < 8000; i++) {
        struct test_stream *stream = streams[test_random_in(&random, 0, STREAMS - 1)];
        uint32_t bytes = (uint32_t)test_random_in(&random, 1, 1408);
        if (stream->spec.padding == CORE_PADDING_NONE)
            bytes = (bytes + 15) / 16 * 16;
        assert_true(test_stream_send(stream, bytes));
        for (waiting++; waiting > 100; waiting--)
            (void)test_streams_take(&client, streams);
    }
    for (; waiting > 0; waiting--)
        (void)test_streams_take(&client, streams);
    for (uint32_t i = 0; i < STREAMS; i++) {
        (void)test_stream_close(streams[i]);
        test_stream_free(streams[i]);
    }
    test_client_close(&client);
}

/* Many frames in one piece, and frames in many: what is not whole where a read ends waits in its slot. */
static void frames_cut_anywhere(void **state)
{
    enum { FRAMES = 8 };
    static uint8_t frames[FRAMES * (PROTOCOL_HEADER_BYTES + 1408)];
    struct core_stream_spec spec = gpu_spec;
    struct test_random random = {.state = 8};
    struct test_client client;
    (void)state;

    spec.padding = CORE_PADDING_PKCS7;
    spec.burst_packets = FRAMES;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
    for (uint32_t round = 0; round < 100; round++) {
        size_t count = 0;
        for (uint32_t i = 0; i < FRAMES; i++)
            count += test_stream_frame(stream, (uint32_t)test_random_in(&random, 0, 1408), frames + count);
        test_client_send_cut(&client, frames, count, (size_t)test_random_in(&random, 1, (int64_t)count),
                             (size_t)test_random_in(&random, 300, (int64_t)count));
        test_stream_drain(stream);
    }
    assert_int_equal(test_stream_close(stream).packets, 100 * FRAMES);
    test_stream_free(stream);
    test_client_close(&client);
}

static void streams_come_and_go(void **state)
{
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint32_t i = 0; i < 60; i++) {
        struct core_stream_spec spec = gpu_spec;
        spec.latency_ns = (core_ns)(60 + 10 * (i % 5)) * CORE_NS_PER_MS; /* and periods with them */
        struct test_stream *stream = test_stream_open(&client, &spec, i);
        assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
        for (int j = 0; j < 3; j++)
            assert_true(test_stream_send(stream, 1408));
        if (i % 3 != 0)
            test_stream_drain(stream);
        if (i % 3 == 2) { /* the others are left behind with the connection, some with packets in batches */
            (void)test_stream_close(stream);
        } else if (i % 3 == 0) {
            test_client_close(&client);
            test_client_connect(&client, test_server_unix(&server), NULL);
        }
        test_stream_free(stream);
    }
    test_client_close(&client);
}

/* It gets its stream, whose key was still on its way to the card, and the stream's end. */
static void open_answered_after_half_close(void **state)
{
    static const uint8_t key[16];
    const struct protocol_open open = {
        .spec = gpu_spec, .key_kind = PROTOCOL_KEY_INLINE, .key = key, .key_bytes = sizeof key};
    (void)state;

    for (uint32_t i = 0; i < 20; i++) {
        uint8_t bytes[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
        struct test_client client;
        struct test_frame frame;
        test_client_connect(&client, test_server_unix(&server), NULL);
        assert_true(
            test_client_send(&client, bytes, protocol_open_write(2, bytes, PROTOCOL_OPEN, i + 1, &open)));
        test_client_half_close(&client);
        test_client_expect(&client, PROTOCOL_OPENED, &frame);
        test_client_expect(&client, PROTOCOL_CLOSED, &frame);
        test_client_expect_end(&client);
        test_client_close(&client);
    }
}

static core_ns period_ns(void)
{
    return atomic_load(&server_gpu_figures(server.server->gpus[0])->period_ns);
}

static void exchange(struct test_stream *stream)
{
    for (int i = 0; i < 4; i++)
        assert_true(test_stream_send(stream, 1408));
    test_stream_drain(stream);
}

/* The period is short for who needs it, and long again afterwards, while one stream never stops. */
static void a_period_shrinks_and_grows_back(void **state)
{
    struct test_client client;
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stays = test_stream_open(&client, &gpu_spec, 1);
    core_ns before_ns = period_ns();
    exchange(stays);
    struct core_stream_spec spec = gpu_spec;
    spec.latency_ns = 20 * CORE_NS_PER_MS;
    struct test_stream *urgent = test_stream_open(&client, &spec, 2);
    assert_true(period_ns() < before_ns); /* it was not answered before that */
    for (int i = 0; i < 20; i++) {
        exchange(urgent);
        exchange(stays);
    }
    (void)test_stream_close(urgent);
    test_stream_free(urgent);
    while (period_ns() < before_ns) {
        assert_true(core_time_now_ns() < until_ns);
        exchange(stays);
    }
    assert_int_equal(period_ns(), before_ns);
    exchange(stays);
    (void)test_stream_close(stays);
    test_stream_free(stays);
    test_client_close(&client);
}

static json_int_t whole(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("%s is missing or no integer", key);
    return json_integer_value(value);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is missing or no number", key);
    return json_number_value(value);
}

static void check_stage(const json_t *gpu, const char *name)
{
    const json_t *stage = json_object_get(gpu, name);
    assert_true(number(stage, "bound_us") > 0);
    assert_true(number(stage, "max_us") > 0 && number(stage, "mean_us") <= number(stage, "max_us"));
    assert_true(number(stage, "worst") > 0 && whole(stage, "exceeded") >= 0);
}

/* Rows of the worst packets: the least slack first, and no time unaccounted for. */
static void check_worst(const json_t *root)
{
    static const char *const stages[] = {"hand_over", "queue", "copy_up", "encrypt", "copy_down", "delivery"};
    const json_t *worst = json_object_get(root, "worst"), *row;
    double before_us = -1e18;
    size_t index;

    assert_int_equal(json_array_size(worst), SERVER_TAIL_LATENCY_PACKETS);
    json_array_foreach(worst, index, row)
    {
        double sum_us = 0;
        for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
            assert_true(number(json_object_get(row, "stages_us"), stages[i]) >= 0);
            sum_us += number(json_object_get(row, "stages_us"), stages[i]);
        }
        double took_us = number(row, "latency_us") - number(row, "slack_us");
        assert_true(sum_us > took_us - 0.01 && sum_us < took_us + 0.01);
        assert_true(number(row, "slack_us") >= before_us && number(row, "policed_us") >= 0);
        assert_true(whole(row, "connection") > 0 && whole(row, "stream") > 0 && whole(row, "sequence") >= 0);
        assert_string_equal(json_string_value(json_object_get(row, "unit")), "gpu-0");
        assert_true(number(json_object_get(row, "stages_us"), "copy_up") > 0);
        assert_true(number(row, "at_s") > 0 && json_is_false(json_object_get(row, "diverted")));
        before_us = number(row, "slack_us");
    }
}

/* Every packet is in the account of one unit. */
static void check_units(const json_t *root)
{
    const json_t *units = json_object_get(root, "units"), *totals = json_object_get(root, "totals"), *row;
    json_int_t packets = 0, missed = 0, reader_late = 0;
    size_t index;

    assert_int_equal(json_array_size(units), 3); /* a worker, the fallback worker, a card */
    json_array_foreach(units, index, row)
    {
        packets += whole(row, "packets");
        missed += whole(row, "missed");
        reader_late += whole(row, "reader_late");
    }
    assert_int_equal(packets, whole(totals, "packets"));
    assert_int_equal(missed, whole(totals, "missed"));
    assert_int_equal(reader_late, whole(totals, "reader_late"));
    row = json_array_get(units, 2);
    assert_string_equal(json_string_value(json_object_get(row, "unit")), "gpu-0");
    assert_int_equal(whole(row, "packets"), whole(totals, "gpu_packets"));
}

static double metric(const char *text, const char *name)
{
    const char *line = strstr(text, name);
    assert_non_null(line);
    return strtod(line + strlen(name), NULL);
}

/* A client may have its last RESULT before the account has it. What its reader kept has no slack of ours. */
static void await_account(double packets)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    double counted;
    do {
        struct http_answer metrics = http_ask(server_admin_address(server.server), "GET", "/metrics");
        assert_true(core_time_now_ns() < until_ns);
        counted = metric(metrics.body, "\nmillrace_gpu_slack_seconds_count ") +
                  metric(metrics.body, "\nmillrace_reader_late_total{io=\"0\"} ");
        http_free(&metrics);
    } while (counted != packets);
}

static void the_admin_port_shows_the_card(void **state)
{
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &gpu_spec, 3);
    for (int i = 0; i < 4; i++)
        assert_true(test_stream_send(stream, 1408));
    test_stream_drain(stream);
    await_account(4);
    json_t *root = http_json(server_admin_address(server.server), "/status?streams=1");
    const json_t *gpu = json_array_get(json_object_get(root, "gpus"), 0);
    assert_string_equal(json_string_value(json_object_get(gpu, "state")), "up");
    assert_string_equal(json_string_value(json_object_get(gpu, "card")), "emulated-small");
    assert_string_equal(json_string_value(json_object_get(gpu, "uuid")), ""); /* no card at all */
    assert_string_equal(json_string_value(json_object_get(gpu, "pci")), "");
    assert_int_equal(whole(gpu, "process"), test_gpu_process(&server, 0));
    assert_int_equal(whole(gpu, "streams"), 1);
    assert_int_equal(whole(gpu, "packets"), 4);
    assert_int_equal(whole(gpu, "bytes"), 4 * 1408);
    assert_int_equal(whole(gpu, "faults"), 0);
    assert_true(whole(gpu, "batch_bytes") <= whole(gpu, "arena_bytes"));
    assert_true(number(gpu, "latency_bound_us") <= (double)stream->opened.bound_ns / 1e3);
    check_stage(gpu, "copy_up");
    check_stage(gpu, "kernel");
    check_stage(gpu, "copy_down");
    check_stage(gpu, "whole");
    const json_t *totals = json_object_get(root, "totals");
    assert_int_equal(whole(totals, "gpu_packets"), 4);
    assert_int_equal(whole(totals, "audited"), 4);
    const json_t *row = json_array_get(json_object_get(root, "streams"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "unit")), "gpu-0");
    json_int_t classified = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(row, "slack_counts")); i++)
        classified += json_integer_value(json_array_get(json_object_get(row, "slack_counts"), i));
    assert_int_equal(classified + whole(row, "reader_late"), 4);
    assert_int_equal(whole(row, "fault_late"), 0);
    check_units(root);
    json_decref(root);
    for (int i = 0; i < SERVER_TAIL_LATENCY_PACKETS; i++, test_stream_drain(stream))
        assert_true(test_stream_send(stream, 1408));
    await_account(4 + SERVER_TAIL_LATENCY_PACKETS);
    root = http_json(server_admin_address(server.server), "/status");
    check_worst(root);
    json_decref(root);
    struct http_answer metrics = http_ask(server_admin_address(server.server), "GET", "/metrics");
    assert_non_null(strstr(metrics.body, "\nmillrace_unit_slack_seconds_count{unit=\"standby\"} 0\n"));
    assert_non_null(strstr(metrics.body, "\nmillrace_worst_slack_seconds{rank=\"10\"} "));
    assert_non_null(strstr(metrics.body, "\nmillrace_gpu_up{gpu=\"0\"} 1\n"));
    assert_non_null(strstr(metrics.body, "\nmillrace_gpu_packets_total{gpu=\"0\"} 14\n"));
    http_free(&metrics);
    test_stream_free(stream);
    test_client_close(&client);
}

/* A client that takes nothing must not keep the batches of others. */
static void stopped_reader_does_not_block_others(void **state)
{
    struct core_stream_spec spec = gpu_spec;
    struct test_client lazy, brisk;
    uint8_t frame[PROTOCOL_HEADER_BYTES + 1408];
    (void)state;

    spec.burst_packets = 8;
    spec.interval_ns = 3 * CORE_NS_PER_MS;
    test_client_connect(&lazy, test_server_unix(&server), NULL);
    test_client_connect(&brisk, test_server_unix(&server), NULL);
    struct test_stream *stuck = test_stream_open(&lazy, &spec, 1),
                       *other = test_stream_open(&brisk, &spec, 2);
    assert_int_equal(other->opened.unit, PROTOCOL_UNIT_GPU);
    for (uint32_t full = 0; full < 20;) { /* until neither takes any more */
        size_t bytes = test_stream_frame(stuck, 1408, frame), sent = test_client_push(&lazy, frame, bytes);
        full = sent == bytes ? 0 : full + 1;
        if (sent < bytes) { /* the rest of it later */
            core_time_sleep_until(core_time_now_ns() + 10 * CORE_NS_PER_MS);
            while (sent < bytes && full < 20) {
                size_t more = test_client_push(&lazy, frame + sent, bytes - sent);
                sent += more;
                full = more > 0 ? 0 : full + 1;
                core_time_sleep_until(core_time_now_ns() + 10 * CORE_NS_PER_MS);
            }
        }
    }
    for (uint32_t i = 0; i < 300; i++) {
        assert_true(test_stream_send(other, 1408));
        test_stream_drain(other);
    }
    json_t *root = http_json(server_admin_address(server.server), "/status");
    const json_t *gpu = json_array_get(json_object_get(root, "gpus"), 0);
    /* Now and then one waits for a device that has no processor; an arena that a result keeps would hold up
     * all. */
    assert_true(whole(gpu, "held_up") < whole(gpu, "batches") / 4);
    json_decref(root);
    (void)test_stream_close(other);
    test_stream_free(other);
    test_stream_free(stuck);
    test_client_close(&brisk);
    test_client_close(&lazy);
}

static void stopping_delivers_what_is_in_batches(void **state)
{
    struct test_stream *streams[8];
    struct protocol_closed closed;
    struct test_client client;
    struct test_frame frame;
    uint32_t results = 0, ended = 0;
    (void)state;

    start(100000, "audit: 1");
    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint32_t i = 0; i < 8; i++)
        streams[i] = test_stream_open(&client, &gpu_spec, i);
    for (uint32_t i = 0; i < 8 * 4; i++)
        assert_true(test_stream_send(streams[i % 8], 1408));
    test_client_ping(&client); /* all of it was read */
    assert_int_equal(test_server_stop(&server), 0);
    while (test_client_next(&client, &frame, TEST_PATIENCE_MS) == TEST_FRAME)
        if (frame.header.type == PROTOCOL_RESULT) {
            (void)test_stream_check(streams[frame.header.id - 1], &frame);
            results++;
        } else if (frame.header.type == PROTOCOL_CLOSED) {
            assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL),
                             CORE_OK);
            assert_int_equal(closed.reason, PROTOCOL_CLOSE_DRAINED);
            ended++;
        } else
            assert_int_equal(frame.header.type, PROTOCOL_ERROR);
    assert_true(results == 8 * 4 && ended == 8);
    for (uint32_t i = 0; i < 8; i++)
        test_stream_free(streams[i]);
    test_client_close(&client);
    config_profile_free(profile);
}

/* ---- what there is not ---- */

static core_status start_with(const char *gpus, const struct config_profile *described,
                              struct server **started, struct config_server **config,
                              struct core_error *error)
{
    char text[512];
    snprintf(text, sizeof text,
             "listeners: [{address: 'unix:@millrace-test-gpu'}]\nthreads: {realtime: off, pin: false}\n"
             "engine: ipsec-mb\ngpus: {%s}\n",
             gpus);
    assert_int_equal(config_server_parse(text, strlen(text), "/tmp/test.yaml", config, NULL), CORE_OK);
    return server_start(started, *config, described, error);
}

static void missing_gpu_program_leaves_workers_only(void **state)
{
    struct config_profile *described = test_gpu_profile(1);
    struct config_server *config;
    struct server *started;
    struct core_error error = {""};
    (void)state;

    assert_int_equal(start_with("program: /nonexistent/millrace-gpu", described, &started, &config, &error),
                     CORE_OK);
    assert_int_equal(started->gpu_count, 0);
    assert_int_equal(server_stop(started), 0);
    config_server_free(config);
    assert_int_equal(
        start_with("use: emulated, program: /nonexistent/millrace-gpu", described, &started, &config, &error),
        CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "gpus.program: /nonexistent/millrace-gpu"));
    config_server_free(config);
    assert_int_equal(
        start_with("cards: [0], program: /nonexistent/millrace-gpu", described, &started, &config, &error),
        CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "gpus.program: /nonexistent/millrace-gpu"));
    config_server_free(config);
    assert_int_equal(start_with("use: emulated, program: /bin/true", described, &started, &config, &error),
                     CORE_UNSUPPORTED);
    config_server_free(config);
    assert_int_equal(start_with("cards: [0], program: /bin/true", described, &started, &config, &error),
                     CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "card 0"));
    config_server_free(config);
    assert_int_equal(start_with("use: none", described, &started, &config, &error), CORE_OK);
    assert_int_equal(started->gpu_count, 0);
    assert_int_equal(server_stop(started), 0);
    config_server_free(config);
    const uint32_t none[CONFIG_PROFILE_GPU_KINDS_MAX] = {0};
    config_profile_keep_gpus(described, none);
    assert_int_equal(start_with("use: emulated", described, &started, &config, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "profile"));
    config_server_free(config);
    config_profile_free(described);
}

/* What is no millrace-gpu may print for ever: that is no list, and keeps nobody waiting. */
static void an_endless_list_is_none(void **state)
{
    char gpus[128], path[] = "/tmp/millrace-test-XXXXXX";
    static const char script[] = "#!/bin/sh\nexec cat /dev/zero\n";
    struct config_profile *described = test_gpu_profile(1);
    struct config_server *config;
    struct server *started;
    struct core_error error;
    const int descriptor = mkstemp(path);
    (void)state;

    assert_int_equal(write(descriptor, script, strlen(script)), strlen(script));
    assert_int_equal(fchmod(descriptor, 0700), 0);
    close(descriptor);
    snprintf(gpus, sizeof gpus, "program: %s", path);
    assert_int_equal(start_with(gpus, described, &started, &config, &error), CORE_OK);
    assert_int_equal(started->gpu_count, 0);
    assert_int_equal(server_stop(started), 0);
    config_server_free(config);
    config_profile_free(described);
    unlink(path);
}

static void note_finding(void *argument, const char *text)
{
    struct core_error *error = argument;
    snprintf(error->text, sizeof error->text, "%s", text);
}

static void what_is_pinned_must_hold_a_batch(void **state)
{
    const char *gpus = "use: emulated, program: " MILLRACE_BINARY_DIR "/gpu/millrace-gpu";
    static const struct {
        uint64_t bytes;
        core_status status;
    } rows[] = {{1, CORE_INVALID}, {16, CORE_INVALID}, {131071, CORE_INVALID}, {131072, CORE_OK}};
    struct config_profile *described = test_gpu_profile(1);
    struct config_server *config;
    struct server *started;
    struct core_error error = {""};
    char text[80];
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        described->pinned_bytes = rows[i].bytes;
        assert_int_equal(start_with(gpus, described, &started, &config, &error), rows[i].status);
        if (rows[i].status == CORE_OK)
            assert_int_equal(server_stop(started), 0);
        assert_int_equal(server_check(config, described, note_finding, &error), rows[i].status);
        snprintf(text, sizeof text, "pinned_bytes: %llu leaves no room for a batch",
                 (unsigned long long)rows[i].bytes);
        if (rows[i].status != CORE_OK)
            assert_non_null(strstr(error.text, text));
        config_server_free(config);
    }
    config_profile_free(described);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_stream_goes_through_the_gpu, set_up_gpu_only, tear_down),
        cmocka_unit_test_setup_teardown(all_ciphers_paddings_and_both_units_side_by_side, set_up_mixed,
                                        tear_down),
        cmocka_unit_test_setup_teardown(open_answered_after_half_close, set_up_gpu_only, tear_down),
        cmocka_unit_test_setup_teardown(frames_cut_anywhere, set_up_half_audited, tear_down),
        cmocka_unit_test_setup_teardown(streams_come_and_go, set_up_gpu_only, tear_down),
        cmocka_unit_test_setup_teardown(a_period_shrinks_and_grows_back, set_up_gpu_only, tear_down),
        cmocka_unit_test_setup_teardown(the_admin_port_shows_the_card, set_up_gpu_only, tear_down),
        cmocka_unit_test_setup_teardown(stopped_reader_does_not_block_others, set_up_gpu_only, tear_down),
        cmocka_unit_test(stopping_delivers_what_is_in_batches),
        cmocka_unit_test(missing_gpu_program_leaves_workers_only),
        cmocka_unit_test(an_endless_list_is_none),
        cmocka_unit_test(what_is_pinned_must_hold_a_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
