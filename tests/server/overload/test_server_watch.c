/* A card that takes longer than its profile says is seen to do so: it is counted, and shown with how much,
 * and the packets that were late are among the worst, with their time where it went. Admission tightens
 * itself until it is over. A batch that came back in time and is noticed late is no fault of a stage, and
 * lost time all the same. The linker puts functions in front of gpu_engine_open, which make the emulated card
 * slow, and of gpu_engine_poll, which keep a batch back (--wrap in CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "gpu/engine.h"
#include "server/net/io.h"
#include "server/overload/monitor.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/http.h"
#include "tests/support/stream.h"

#define SLOWER_NS    (90 * CORE_NS_PER_MS) /* less than what is taken for a hang */
#define SLOW_BATCHES 8
#define NOTICED_NS   (300 * CORE_NS_PER_MS)

core_status __real_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);
core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error);

core_status __real_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event);
core_status __wrap_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event);
core_ns __real_gpu_engine_wake_ns(const struct gpu_engine *engine);
core_ns __wrap_gpu_engine_wake_ns(const struct gpu_engine *engine);

static uint64_t slow_from;

/* One batch is kept back. */
static struct {
    _Atomic bool wanted; /* atomic: set by the test, cleared by the batcher, whose the others are */
    struct gpu_event event;
    core_ns until_ns; /* 0: none is */
} kept;

core_status __wrap_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event)
{
    if (kept.until_ns > 0) {
        if (core_time_now_ns() < kept.until_ns)
            return CORE_AGAIN;
        *event = kept.event;
        kept.until_ns = 0;
        return CORE_OK;
    }
    const core_status status = __real_gpu_engine_poll(engine, now_ns, event);
    if (status != CORE_OK || event->kind != GPU_EVENT_BATCH || !atomic_exchange(&kept.wanted, false))
        return status;
    kept.event = *event;
    kept.until_ns = event->batch.times[GPU_STAGE_DOWN].end_ns + NOTICED_NS;
    return CORE_AGAIN;
}

core_ns __wrap_gpu_engine_wake_ns(const struct gpu_engine *engine)
{
    const core_ns wake_ns = __real_gpu_engine_wake_ns(engine);
    return kept.until_ns > 0 ? core_time_min(wake_ns, kept.until_ns) : wake_ns;
}

core_status __wrap_gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                   struct core_error *error)
{
    struct gpu_emulation emulation = *options->emulation;
    struct gpu_engine_options changed = *options;
    emulation.failure = GPU_FAILURE_SLOW;
    emulation.failure_batch = slow_from;
    emulation.failure_last = slow_from + SLOW_BATCHES - 1;
    emulation.failure_ns = SLOWER_NS;
    changed.emulation = &emulation;
    changed.hang_least_ns = 10 * CORE_NS_PER_S; /* slow is not hung, also where others keep the cores */
    return __real_gpu_engine_open(engine, &changed, error);
}

static const struct core_stream_spec spec = {.packet_bytes = 1408,
                                             .burst_packets = 8,
                                             .interval_ns = 4 * CORE_NS_PER_MS,
                                             .latency_ns = 80 * CORE_NS_PER_MS,
                                             .cipher = CORE_CIPHER_AES_128_CBC,
                                             .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct test_stream *stream;

static const struct server_gpu_figures *figures(void)
{
    return server_gpu_figures(server.server->gpus[0]);
}

static void start(const char *yaml)
{
    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(100000); /* nothing is for the workers */
    test_gpu_server_start(&server, "audit: 1", yaml, profile);
    test_client_connect(&client, test_server_unix(&server), NULL);
    stream = test_stream_open(&client, &spec, 7);
    assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
}

static void stop(void)
{
    assert_int_equal(test_stream_close(stream).packets, stream->sent);
    test_stream_free(stream);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

/* Packet for packet, each in a batch of its own, until the slow batches are through. */
static void send_through(void)
{
    const struct gpu_arenas *arenas = server_gpu_arenas(server.server->gpus[0]);
    while (gpu_arenas_closed(arenas) < slow_from + SLOW_BATCHES) {
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
}

/* On a busy machine the batches that are to be slow may have come and gone before there was a packet for
 * them. */
static void start_and_be_slow(const char *yaml)
{
    for (slow_from = 40;; slow_from *= 2) {
        start(yaml);
        send_through();
        if (atomic_load(&figures()->kernel.max_ns) >= SLOWER_NS)
            return;
        stop();
    }
}

static const json_t *first(const json_t *root, const char *list, const char *key, const char *value)
{
    const json_t *row;
    size_t index;
    json_array_foreach(json_object_get(root, list), index, row)
    {
        const char *text = json_string_value(json_object_get(row, key));
        if (text != NULL && strcmp(text, value) == 0)
            return row;
    }
    fail_msg("%s has no %s %s", list, key, value);
    return NULL;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is missing or no number", key);
    return json_number_value(value);
}

static void check_status(void)
{
    json_t *root = http_json(server_admin_address(server.server), "/status");
    const json_t *gpu = json_array_get(json_object_get(root, "gpus"), 0),
                 *kernel = json_object_get(gpu, "kernel");
    const json_t *unit = first(root, "units", "unit", "gpu-0"), *worst;
    size_t index;
    bool found = false;

    double excess_us =
        (double)SLOWER_NS / 1e3 - number(kernel, "bound_us"); /* of one slow batch, at the least */
    assert_true(number(kernel, "exceeded") >= 1 && number(kernel, "excess_us") >= excess_us);
    assert_true(number(json_object_get(gpu, "whole"), "exceeded") >= 1);
    assert_true(number(unit, "lost_us") > 0 && number(unit, "missed") >= 1);
    json_array_foreach(json_object_get(root, "worst"), index, worst)
    {
        double encrypt_us = number(json_object_get(worst, "stages_us"), "encrypt");
        const char *cause = json_string_value(json_object_get(worst, "cause")),
                   *holder = json_string_value(json_object_get(worst, "held_by"));
        assert_true(cause != NULL && holder != NULL && number(worst, "held_us") >= 0);
        found |= number(worst, "slack_us") < 0 && encrypt_us >= (double)SLOWER_NS / 1e3 &&
                 strcmp(cause, "stage_over_bound") == 0 && strcmp(holder, "gpu-0") == 0;
    }
    assert_true(found);
    json_decref(root);
}

static void slow_gpu_reported_as_overload(void **state)
{
    core_ns until_ns;
    (void)state;

    start_and_be_slow("admin: 'unix:admin'\n");
    assert_true(atomic_load(&figures()->lost_ns) > 0);
    until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (server_monitor_level_ns(server.server->watch, server.server->worker_count) == 0) {
        assert_true(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    check_status();
    assert_int_equal(server_monitor_share_ppb(server.server->watch, server.server->worker_count),
                     0);                                  /* not asked for */
    assert_int_equal(atomic_load(&figures()->faults), 0); /* slow is not broken */
    stop();
}

static bool was_noticed_late(const json_t *row)
{
    return number(json_object_get(row, "stages_us"), "delivery") >= (double)NOTICED_NS / 1e3 &&
           strcmp(json_string_value(json_object_get(row, "held_by")), "gpu-0") == 0 &&
           strcmp(json_string_value(json_object_get(row, "cause")), "held") == 0;
}

static bool worst_was_noticed_late(void)
{
    json_t *root = http_json(server_admin_address(server.server), "/status");
    const json_t *worst = json_object_get(root, "worst");
    const size_t count = json_array_size(worst);
    size_t index = 0;
    while (index < count && !was_noticed_late(json_array_get(worst, index)))
        index++;
    json_decref(root);
    return index < count;
}

static void be_noticed_late(void)
{
    atomic_store(&kept.wanted, true);
    assert_true(test_stream_send(stream, 1408));
    test_stream_drain(stream);
    assert_false(atomic_load(&kept.wanted));
}

static void late_notice_is_told_apart_and_lost(void **state)
{
    (void)state;
    slow_from = 1; /* and never again */
    start("admin: 'unix:admin'\n");
    send_through();
    const core_ns out_ns = profile->margins.out_ns, lost_ns = atomic_load(&figures()->lost_ns),
                  excess_ns = atomic_load(&figures()->notice.excess_ns);
    be_noticed_late();
    const core_ns batch_ns = atomic_load(&figures()->batch.bound_ns);
    assert_true(atomic_load(&figures()->notice.excess_ns) - excess_ns >= NOTICED_NS - out_ns);
    assert_true(atomic_load(&figures()->notice.max_ns) >= NOTICED_NS);
    assert_true(atomic_load(&figures()->lost_ns) - lost_ns >= NOTICED_NS - out_ns - batch_ns);
    /* on a busy machine something else may have held the packet longer */
    for (int tries = 0; !worst_was_noticed_late(); tries++) {
        assert_true(tries < 20);
        be_noticed_late();
    }
    stop();
}

static bool ask(struct protocol_refused *refused)
{
    static const uint8_t key[16];
    struct protocol_open open = test_open_inline(&spec, key);
    memset(refused, 0, sizeof *refused);
    return test_client_ask(&client, PROTOCOL_QUERY, &open, NULL, refused);
}

/* Newcomers are refused with that reason, whoever is there goes on, and when it is over all is as before.
 * Batches are made for packets alone: while none is sent, none is late. */
static void admission_tightened_until_overload_ends(void **state)
{
    core_ns until_ns = CORE_NS_NEVER;
    struct protocol_refused refused;
    (void)state;

    start_and_be_slow("overload: {tighten: true, quiet_ms: 3000}\n");
    uint32_t unit = server.server->worker_count;
    until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (ask(&refused))
        assert_true(core_time_now_ns() < until_ns);
    assert_int_equal(refused.code, PROTOCOL_REFUSED_CAPACITY);
    assert_int_equal(refused.constraint, PERFMODEL_LIMIT_RESERVE);
    assert_non_null(strstr(refused.text, "GPU 0"));
    assert_non_null(strstr(refused.text, "withheld from admission"));
    assert_true(server_monitor_share_ppb(server.server->watch, unit) > 0);
    assert_true(test_stream_send(stream, 1408));
    test_stream_drain(stream);
    assert_true(ask(&refused) || refused.constraint == PERFMODEL_LIMIT_RESERVE);
    while (!ask(&refused)) {
        assert_true(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + 10 * CORE_NS_PER_MS);
    }
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_gpu_reported_as_overload),
        cmocka_unit_test(late_notice_is_told_apart_and_lost),
        cmocka_unit_test(admission_tightened_until_overload_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
