/* /livez and /readyz of a server whose threads are held up one after the other. The linker puts an engine in
 * the place of the real ones (--wrap in CMakeLists.txt) that waits while it is told to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "cpu/engine.h"
#include "server/net/io.h"
#include "server/overload/beats.h"
#include "server/planner/planner.h"
#include "server/server.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/http.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

const struct cpu_engine_ops *__wrap_cpu_engine_find(const char *name, struct core_error *error);

static struct cpu_engine_ops gated_engine;
static atomic_bool held;

static void wait_while_held(void)
{
    while (atomic_load(&held))
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
}

static core_status encrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                           uint32_t count)
{
    wait_while_held();
    return cpu_engine_openssl.encrypt(engine, cipher, pieces, count);
}

const struct cpu_engine_ops *__wrap_cpu_engine_find(const char *name, struct core_error *error)
{
    (void)name;
    (void)error;
    gated_engine = cpu_engine_openssl;
    gated_engine.encrypt = encrypt;
    return &gated_engine;
}

static struct test_server server;

static int start(void **state)
{
    struct config_profile *profile = test_gpu_profile(8);
    profile->margins.in_ns = CORE_NS_PER_US; /* no I/O thread has time to do the work of a worker */
    (void)state;
    test_gpu_server_start(&server, "audit: 0",
                          "admin: unix:admin\nagent: {address: 'unix:agent'}\nengine: openssl\n", profile);
    config_profile_free(profile);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return test_server_stop(&server) == 0 ? 0 : -1;
}

/* Until the path says this; returns its code. */
static int await(const char *path, const char *words)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    for (;;) {
        struct http_answer answer = http_ask(server_admin_address(server.server), "GET", path);
        bool says = strstr(answer.body, words) != NULL;
        int code = answer.code;
        http_free(&answer);
        if (says)
            return code;
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + 20 * CORE_NS_PER_MS);
    }
}

/* What HAProxy is told. */
static void expect_agent_down(const char *name)
{
    struct http_answer answer = http_read(http_dial(server_agent_address(server.server)));
    assert_memory_equal(answer.bytes, "down #", 6);
    assert_non_null(strstr(answer.bytes, name));
    http_free(&answer);
}

static void hold_up(void *owner, struct server_message *message)
{
    (void)owner;
    (void)message;
    wait_while_held();
}

/* The thread of this mailbox waits; nothing else does. */
static void expect_named(struct server_mailbox *mailbox, struct server_message *message, const char *name)
{
    message->run = hold_up;
    atomic_store(&held, true);
    server_mailbox_post(mailbox, message);
    assert_int_equal(await("/livez", name), 503);
    assert_int_equal(await("/readyz", name), 503);
    expect_agent_down(name);
    atomic_store(&held, false);
    assert_int_equal(await("/livez", "ok"), 200);
}

static void waiting_thread_named(void **state)
{
    static struct server_message message[3];
    (void)state;
    assert_int_equal(await("/livez", "ok"), 200);
    expect_named(&server.server->ios[0]->mailbox, &message[0], "I/O thread 0");
    expect_named(server_planner_mailbox(server.server->planner), &message[1], "planner 0");
    expect_named(server_gpu_mailbox(server.server->gpus[0]), &message[2], "batcher 0");
}

static void waiting_worker_named(void **state)
{
    static const struct core_stream_spec spec = {.packet_bytes = 1408,
                                                 .burst_packets = 1,
                                                 .interval_ns = 20 * CORE_NS_PER_MS,
                                                 .latency_ns = 20 * CORE_NS_PER_MS,
                                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                                 .padding = CORE_PADDING_NONE};
    struct test_client client;
    (void)state;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    atomic_store(&held, true);
    assert_true(test_stream_send(stream, 1408));
    assert_int_equal(await("/livez", "worker 0"), 503);
    atomic_store(&held, false);
    test_stream_drain(stream);
    assert_int_equal(await("/livez", "ok"), 200);
    test_stream_free(stream);
    test_client_close(&client);
}

/* Whoever sleeps answers, too, after longer than any may be silent. */
static void idle_threads_live(void **state)
{
    (void)state;
    core_time_sleep_until(core_time_now_ns() + 2 * SERVER_BEAT_LATE_NS);
    assert_int_equal(await("/livez", "ok"), 200);
    assert_int_equal(await("/readyz", "ready"), 200);
}

/* A card that dies as often as it comes back is none to send new streams to; its server lives. */
static void server_survives_gpu_failure(void **state)
{
    pid_t killed = 0;
    bool told = false;
    (void)state;
    for (core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
         !told && core_time_now_ns() < until_ns;) {
        const pid_t process = test_gpu_process(&server, 0);
        if (process > 0 && process != killed) /* the server may not know yet that it is gone */
            assert_int_equal(kill(process, SIGKILL), 0);
        killed = process > 0 ? process : killed;
        struct http_answer answer = http_ask(server_admin_address(server.server), "GET", "/readyz");
        told = answer.code == 503 && strcmp(answer.body, "a GPU is out of service\n") == 0;
        http_free(&answer);
    }
    assert_true(told);
    assert_int_equal(await("/livez", "ok"), 200);
    assert_int_equal(await("/readyz", "ready"), 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(waiting_thread_named, start, stop),
        cmocka_unit_test_setup_teardown(waiting_worker_named, start, stop),
        cmocka_unit_test_setup_teardown(idle_threads_live, start, stop),
        cmocka_unit_test_setup_teardown(server_survives_gpu_failure, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
