/* HAProxy's agent-check: the weight is what admission would still grant, and every state has its line; who connects
 * and does harm does none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/admin/agent.h"
#include "server/overload/monitor.h"
#include "server/server_internal.h"
#include "tests/support/http.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

static _Atomic bool overloaded;

bool __wrap_server_monitor_is_overloaded(const struct server_monitor *watch);
bool __wrap_server_monitor_is_overloaded(const struct server_monitor *watch)
{
    (void)watch;
    return atomic_load(&overloaded);
}

static const struct core_stream_spec typical = {.packet_bytes = 1400,
                                                .burst_packets = 4,
                                                .interval_ns = CORE_NS_PER_MS,
                                                .latency_ns = 50 * CORE_NS_PER_MS,
                                                .cipher = CORE_CIPHER_AES_128_CBC,
                                                .padding = CORE_PADDING_PKCS7};

static void start(struct test_server *server, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "admin: unix:admin\n"
             "agent: {address: 'tcp:127.0.0.1:0', packet_bytes: 1400, burst_packets: 4, interval_us: 1ms, "
             "latency_us: 50ms}\n"
             "threads: {cores: 8, io: 2, workers: 2, realtime: off, pin: false}\n%s",
             more);
    test_server_start(server, text, &test_profile_real);
}

static void line(const struct test_server *server, const char *said, char text[128])
{
    int descriptor = http_dial(server_agent_address(server->server));
    http_send(descriptor, said, strlen(said));
    struct http_answer answer = http_read(descriptor);
    snprintf(text, 128, "%s", answer.bytes);
    http_free(&answer);
}

static void await_line(const struct test_server *server, const char *expected)
{
    const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    char text[128];
    for (line(server, "", text); strcmp(text, expected) != 0; line(server, "", text)) {
        if (core_time_now_ns() > until_ns)
            fail_msg("'%s', not '%s'", text, expected);
        core_time_sleep_until(core_time_now_ns() + 10 * CORE_NS_PER_MS);
    }
}

static void await_weight(const struct test_server *server, uint32_t percent)
{
    char text[128];
    snprintf(text, sizeof text, "up ready %u%%\n", percent);
    await_line(server, text);
}

/* So many more streams, on connections of both I/O threads in turn; returns how many were granted. */
static uint32_t open_streams(struct test_client clients[2], uint32_t opened, uint32_t count)
{
    static const uint8_t key[16] = {1};
    const struct protocol_open open = test_open_inline(&typical, key);
    uint32_t granted = 0;
    while (granted < count &&
           test_client_ask(&clients[(opened + granted) % 2], PROTOCOL_OPEN, &open, NULL, NULL))
        granted++;
    return granted;
}

/* By hand: so many streams a server like this one grants in all. */
static uint32_t capacity(const char *more)
{
    struct test_server server;
    struct test_client clients[2];
    start(&server, more);
    for (int i = 0; i < 2; i++)
        test_client_connect(&clients[i], test_server_unix(&server), NULL);
    const uint32_t count = open_streams(clients, 0, 1000000);
    for (int i = 0; i < 2; i++)
        test_client_close(&clients[i]);
    assert_int_equal(test_server_stop(&server), 0);
    return count;
}

static void the_weight_is_what_would_be_granted(void **state)
{
    static const char *const limits[] = {"", "limits: {streams: 37}",
                                         "limits: {buffer_mib: 4, stream_buffer_kib: 256}"};
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const uint32_t whole = capacity(limits[i]);
        struct test_server server;
        struct test_client clients[2];
        uint32_t opened = 0;
        start(&server, limits[i]);
        for (int c = 0; c < 2; c++)
            test_client_connect(&clients[c], test_server_unix(&server), NULL);
        assert_true(whole > 30);
        await_weight(&server, 100);
        for (uint32_t more = whole / 4; opened < whole;
             more = whole - opened < more ? whole - opened : more) {
            assert_int_equal(open_streams(clients, opened, more), more);
            opened += more;
            const uint32_t share = 100 * (whole - opened) / whole;
            await_weight(&server, share > 0 ? share : 1);
        }
        assert_int_equal(open_streams(clients, opened, 1), 0);
        test_client_close(&clients[0]);
        test_client_close(&clients[1]);
        await_weight(&server, 100); /* all is free again */
        assert_int_equal(test_server_stop(&server), 0);
    }
}

static _Atomic bool without_memory;
static _Atomic uint32_t copies_of_none; /* that were made while nothing was admitted */

core_status __real_admission_copy(const struct admission *admission, struct admission **copy);
core_status __wrap_admission_copy(const struct admission *admission, struct admission **copy);
core_status __wrap_admission_copy(const struct admission *admission, struct admission **copy)
{
    if (atomic_load(&without_memory))
        return CORE_NO_MEMORY;
    if (admission_streams(admission) == 0)
        atomic_fetch_add(&copies_of_none, 1);
    return __real_admission_copy(admission, copy);
}

/* The first that is counted has streams already; what is left then is not the whole for good. */
static void a_first_copy_without_memory(void **state)
{
    const uint32_t whole = capacity("");
    struct test_server server;
    struct test_client clients[2];
    (void)state;
    atomic_store(&without_memory, true);
    start(&server, "");
    for (int i = 0; i < 2; i++)
        test_client_connect(&clients[i], test_server_unix(&server), NULL);
    const uint32_t opened = open_streams(clients, 0, whole / 2);
    await_weight(&server, 1);
    atomic_store(&without_memory, false);
    await_weight(&server, 100); /* of what it knows */
    const uint32_t before = atomic_load(&copies_of_none);
    test_client_close(&clients[0]);
    test_client_close(&clients[1]);
    const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (atomic_load(&copies_of_none) == before) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    for (int i = 0; i < 2; i++)
        test_client_connect(&clients[i], test_server_unix(&server), NULL);
    assert_int_equal(open_streams(clients, 0, opened), opened);
    await_weight(&server, 100 * (whole - opened) / whole);
    for (int i = 0; i < 2; i++)
        test_client_close(&clients[i]);
    assert_int_equal(test_server_stop(&server), 0);
}

static void *stop(void *argument)
{
    assert_int_equal(test_server_stop(argument), 0);
    return NULL;
}

static void every_state_has_its_line(void **state)
{
    struct test_server server;
    struct test_client clients[2];
    struct test_frame frame;
    pthread_t stopping;
    (void)state;
    start(&server, "timeouts: {stall_ms: 60000, drain_ms: 60000}");
    await_weight(&server, 100);
    assert_int_equal(http_code(server_admin_address(server.server), "/readyz"), 200);
    atomic_store(&overloaded, true);
    await_weight(&server, 10);
    atomic_store(&overloaded, false);
    server_maintain(server.server, true);
    await_line(&server, "up maint\n");
    assert_int_equal(http_code(server_admin_address(server.server), "/readyz"), 503);
    server_maintain(server.server, false);
    await_weight(&server, 100);
    for (int i = 0; i < 2; i++)
        test_client_connect(&clients[i], test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&clients[0], &test_spec, 1);
    server_leave(server.server);
    await_line(&server, "up drain\n");
    assert_int_equal(http_code(server_admin_address(server.server), "/readyz"), 503);
    assert_int_equal(open_streams(clients, 0, 1), 0); /* nothing new, but */
    assert_true(test_stream_send(stream, 1408));
    test_stream_drain(stream);
    for (int i = 0; i < 64; i++)
        assert_true(test_stream_send(stream, 1408)); /* is not read: the drain waits */
    const struct core_address agent = *server_agent_address(server.server);
    assert_int_equal(pthread_create(&stopping, NULL, stop, &server), 0);
    test_client_expect(&clients[1], PROTOCOL_ERROR, &frame);
    int descriptor = http_dial(&agent);
    struct http_answer answer = http_read(descriptor);
    assert_true(strcmp(answer.bytes, "up drain\n") == 0 || answer.bytes[0] == '\0');
    http_free(&answer);
    test_client_close(&clients[1]);
    test_client_close(&clients[0]);
    pthread_join(stopping, NULL);
    test_stream_free(stream);
}

/* Many that connect and say nothing, or a lot, and never go. */
static void strangers_harm_nobody(void **state)
{
    enum { STRANGERS = 300 };
    static char much[100000];
    static int strangers[STRANGERS];
    struct test_server server;
    char text[128];
    (void)state;
    start(&server, "");
    await_weight(&server, 100);
    memset(much, 'x', sizeof much);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = http_dial(server_agent_address(server.server));
        if (i % 3 == 0)
            (void)!send(strangers[i], much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    line(&server, "agent-send string\n", text);
    assert_string_equal(text, "up ready 100%\n");
    assert_int_equal(http_code(server_admin_address(server.server), "/livez"), 200);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    line(&server, "", text);
    assert_string_equal(text, "up ready 100%\n");
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_weight_is_what_would_be_granted),
        cmocka_unit_test(a_first_copy_without_memory),
        cmocka_unit_test(every_state_has_its_line),
        cmocka_unit_test(strangers_harm_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
