/* check_plans: the plan in force is checked after it has changed, and one that does not hold is counted and
 * logged. The linker lets the test spoil certificates (--wrap in CMakeLists.txt), so that the real checker
 * has something to reject. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

#include "core/log.h"
#include "partition/certificate.h"
#include "server/server_internal.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"
#include "tests/support/server.h"

core_status __real_partition_certify(const struct admission *admission, uint32_t lost,
                                     struct partition_certificate *certificate, struct core_error *error);
core_status __wrap_partition_certify(const struct admission *admission, uint32_t lost,
                                     struct partition_certificate *certificate, struct core_error *error);

static atomic_bool spoiled;
static atomic_size_t streams, streams_after; /* of the last certificate; of that after a failure */

core_status __wrap_partition_certify(const struct admission *admission, uint32_t lost,
                                     struct partition_certificate *certificate, struct core_error *error)
{
    core_status status = __real_partition_certify(admission, lost, certificate, error);
    if (status == CORE_OK && atomic_load(&spoiled))
        certificate->plan->worker[0].test.utilisation_ppb /= 2;
    if (status == CORE_OK)
        atomic_store(lost == ADMISSION_NONE ? &streams : &streams_after, certificate->input.count);
    return status;
}

static atomic_uint rejections; /* lines of the log */

static bool take_entry(const struct core_log_entry *entry)
{
    if (strcmp(entry->cause, "plan.rejected") == 0 && strstr(entry->message, "worker 0") != NULL)
        atomic_fetch_add(&rejections, 1);
    return true;
}

static struct test_server server;
static struct test_client client;

static int set_up(void **state)
{
    const struct core_log_options log = {.level = CORE_LOG_INFO, .descriptor = 2, .sink = take_entry};
    (void)state;
    memset(&server, 0, sizeof server);
    atomic_store(&spoiled, false);
    atomic_store(&rejections, 0);
    atomic_store(&streams, 0);
    atomic_store(&streams_after, 0);
    core_log_configure(&log);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_client_close(&client);
    return test_server_stop(&server) == 0 ? 0 : -1;
}

static const struct server_planner_figures *figures(void)
{
    return server_planner_figures(server.server->planner);
}

static uint64_t checked(void)
{
    return server_stats_get(&figures()->checked);
}

static uint64_t rejected(void)
{
    return server_stats_get(&figures()->rejected);
}

static void open_stream(bool guaranteed)
{
    const struct protocol_open open = {.spec = {.packet_bytes = 1408,
                                                .burst_packets = 2,
                                                .interval_ns = 10 * CORE_NS_PER_MS,
                                                .latency_ns = 400 * CORE_NS_PER_MS,
                                                .cipher = CORE_CIPHER_AES_128_CBC,
                                                .padding = CORE_PADDING_NONE,
                                                .guaranteed = guaranteed},
                                       .key_kind = PROTOCOL_KEY_INLINE,
                                       .key = (const uint8_t *)"0123456789abcdef",
                                       .key_bytes = 16};
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, NULL));
}

static void start(const char *yaml)
{
    test_server_start(&server, yaml, &test_profile_real);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 2, NULL);
}

/* A check begins with the certificate, when those before it have ended. */
static void await_certificate(const atomic_size_t *of, size_t count)
{
    while (atomic_load(of) != count)
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
}

/* One worker, which has nobody to migrate streams to. */
static void a_plan_is_checked_after_each_change(void **state)
{
    (void)state;
    start("check_plans: true\nthreads: {io: 1, workers: 1, realtime: off, pin: false}\n");
    for (size_t count = 1; count <= 3; count++) {
        open_stream(false);
        await_certificate(&streams, count);
    }
    assert_true(checked() >= 2);
    assert_int_equal(rejected(), 0);
    assert_int_equal(atomic_load(&rejections), 0);
}

static void a_plan_that_does_not_hold_is_counted_and_logged(void **state)
{
    (void)state;
    start("check_plans: true\nthreads: {io: 1, workers: 1, realtime: off, pin: false}\n");
    atomic_store(&spoiled, true);
    open_stream(false);
    while (rejected() == 0)
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    assert_true(atomic_load(&rejections) >= 1);
    open_stream(false); /* it stays in force, and the server serves */
}

/* The failure of the GPU, too: the backup of the guaranteed stream is on a worker. */
static void plans_after_a_failure_are_checked(void **state)
{
    struct config_profile *profile = test_gpu_profile(500);
    (void)state;
    test_gpu_server_start(&server, "audit: 0",
                          "check_plans: true\n"
                          "threads: {cores: 8, io: 1, workers: 2, realtime: off, pin: false}\n",
                          profile);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 2, NULL);
    open_stream(true);
    await_certificate(&streams_after, 1);
    open_stream(true);
    await_certificate(&streams_after, 2);
    assert_true(checked() >= 1);
    assert_int_equal(rejected(), 0);
    config_profile_free(profile);
}

static void nothing_is_checked_unless_asked_for(void **state)
{
    (void)state;
    start("threads: {io: 1, workers: 2, realtime: off, pin: false}\n");
    open_stream(false);
    test_client_ping(&client);
    assert_int_equal(checked(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_plan_is_checked_after_each_change, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_plan_that_does_not_hold_is_counted_and_logged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(plans_after_a_failure_are_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_checked_unless_asked_for, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
