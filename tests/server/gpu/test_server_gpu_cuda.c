/* A server with a real card, on the CUDA runtime without one (support/cuda/fake.h): its child is killed under
 * load, calls fail, contexts break; each packet comes back, right to the byte, and the card is taken again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/stream.h"

#define STREAMS 20
#define ON_WAY  100 /* packets at a time */

static const struct core_stream_spec gpu_spec = {.packet_bytes = 1408,
                                                 .burst_packets = 8,
                                                 .interval_ns = 4 * CORE_NS_PER_MS,
                                                 .latency_ns = 80 * CORE_NS_PER_MS,
                                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                                 .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct test_stream *streams[STREAMS];
static struct test_random random_numbers;
static uint32_t waiting; /* packets on their way */

static const struct server_stats *stats(void)
{
    return &server.server->ios[0]->stats;
}

static const struct server_gpu_figures *figures(void)
{
    return server_gpu_figures(server.server->gpus[0]);
}

/* With a card like this. */
static void start(const char *card)
{
    memset(&server, 0, sizeof server);
    random_numbers = (struct test_random){.state = 7};
    waiting = 0;
    assert_int_equal(setenv("MILLRACE_FAKE_CUDA", card, 1), 0); /* before there are threads */
    profile = test_gpu_profile(100000);                         /* nothing is for the workers */
    free(profile->gpus[0].name);
    profile->gpus[0].name = strdup("Fake card");
    profile->pinned_bytes = UINT64_C(8) << 20; /* the trial of the kernels at the start fills a batch */
    test_server_start(
        &server, "gpus: {cards: [0], program: " MILLRACE_BINARY_DIR "/tests/millrace-gpu-fake, audit: 1}\n",
        profile);
    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct core_stream_spec spec = gpu_spec;
        spec.cipher = (enum core_cipher)(1 + i % 3);
        streams[i] = test_stream_open(&client, &spec, i);
        assert_int_equal(streams[i]->opened.unit, PROTOCOL_UNIT_GPU);
    }
}

/* Sends packets, and takes results and compares them; the last ones stay on their way. */
static void exchange(uint32_t packets)
{
    for (uint32_t i = 0; i < packets; i++) {
        struct test_stream *stream = streams[test_random_in(&random_numbers, 0, STREAMS - 1)];
        assert_true(test_stream_send(stream, (uint32_t)test_random_in(&random_numbers, 1, 88) * 16));
        for (waiting++; waiting > ON_WAY; waiting--)
            (void)test_streams_take(&client, streams);
    }
}

static void stop(void)
{
    uint64_t sent = 0;
    for (; waiting > 0; waiting--)
        (void)test_streams_take(&client, streams);
    for (uint32_t i = 0; i < STREAMS; i++) {
        sent += streams[i]->sent;
        assert_int_equal(test_stream_close(streams[i]).packets, streams[i]->sent);
        test_stream_free(streams[i]);
    }
    assert_int_equal(server_stats_get(&stats()->packets), sent);
    assert_int_equal(server_stats_get(&stats()->lost), 0);
    assert_int_equal(server_stats_get(&stats()->corrupt), 0);
    assert_true(server_stats_get(&stats()->gpu_packets) > 0);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

/* Until batches were lost that were under way. */
static void killed_child_loses_no_packet(void **state)
{
    static const char *const cards[] = {"late_us=8000", "engines=1 late_us=8000 open_ms=200"};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        start(cards[i]);
        const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
        while (server_stats_get(&figures()->lost_batches) < 2) {
            const pid_t child = test_gpu_process(&server, 0);
            assert_true(core_time_now_ns() < until_ns);
            exchange(200);
            assert_int_equal(kill(child, SIGKILL), 0);
            exchange(200);
            test_gpu_await_up(&server, 0, child);
        }
        stop();
    }
}

/* Each child fails after a while. */
static void failing_calls_and_broken_contexts_lose_no_packet(void **state)
{
    static const char *const cards[] = {"fail=cudaEventRecord:400", "sticky=1 fail=cudaMemcpyAsync:150",
                                        "fault=kernel:200"};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        start(cards[i]);
        const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
        while (server_stats_get(&figures()->faults) < 2) {
            assert_true(core_time_now_ns() < until_ns);
            exchange(20);
        }
        stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_child_loses_no_packet),
        cmocka_unit_test(failing_calls_and_broken_contexts_lose_no_packet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
