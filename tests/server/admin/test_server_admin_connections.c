/* Who may stay on the admin port, and how long. The admin thread's clock is the test's, so that nobody goes
 * because a busy machine takes long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/time.h"
#include "server/admin/connections.h"
#include "tests/support/http.h"
#include "tests/support/server.h"

#define SLOW    200
#define STEP_MS 20
#define HALF    "GET /health HTTP/1.1\r\nHost: lo"

static struct test_server server;
static _Atomic core_ns admin_ns = CORE_NS_PER_S;

core_ns __real_core_time_now_ns(void);
core_ns __wrap_core_time_now_ns(void);

static bool is_admin(void)
{
    static _Thread_local int is = -1;
    char name[16] = "";
    if (is < 0)
        is = pthread_getname_np(pthread_self(), name, sizeof name) == 0 && strcmp(name, "admin") == 0;
    return is;
}

core_ns __wrap_core_time_now_ns(void)
{
    return is_admin() ? atomic_load(&admin_ns) : __real_core_time_now_ns();
}

static void pass(core_ns ns)
{
    atomic_fetch_add(&admin_ns, ns);
}

static const struct core_address *admin(void)
{
    return server_admin_address(server.server);
}

static int start(void **state)
{
    (void)state;
    test_server_start(&server,
                      "admin: tcp:127.0.0.1:0\nthreads: {io: 1, workers: 1, realtime: off, pin: false}\n",
                      &test_profile_generous);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    assert_int_equal(test_server_stop(&server), 0);
    return 0;
}

/* The n-th who did not finish. */
static int dial_slow(size_t n)
{
    int descriptor = http_dial(admin());
    http_send(descriptor, HALF, n % (sizeof HALF)); /* from nothing to nearly all */
    return descriptor;
}

/* A byte more from each, for which evhttp gives them more time. */
static void trickle(const int *slow, size_t count)
{
    for (size_t i = 0; i < count; i++)
        http_send(slow[i], "x", 1);
}

/* Is there something to read, or the end? Else time goes on for the admin thread. */
static bool is_answered(int descriptor, core_ns else_ns)
{
    struct pollfd answered = {.fd = descriptor, .events = POLLIN};
    if (poll(&answered, 1, 100) > 0)
        return true;
    pass(else_ns);
    return false;
}

/* Their time is not over by far; who is behind them is answered all the same. */
static void slow_admin_clients_evicted(void **state)
{
    static int slow[SLOW];
    int steps = SERVER_ADMIN_CONNECTIONS_REQUEST_S * 1000 / STEP_MS - 1;
    (void)state;

    for (size_t i = 0; i < SLOW; i++)
        slow[i] = dial_slow(i);
    int descriptor = http_dial(admin());
    http_send(descriptor, "GET /health HTTP/1.0\r\n\r\n", 24);
    for (; steps > 0 && !is_answered(descriptor, STEP_MS * CORE_NS_PER_MS); steps--)
        trickle(slow, SLOW);
    assert_true(steps > 0);
    struct http_answer answer = http_read(descriptor);
    assert_int_equal(answer.code, 200);
    http_free(&answer);
    for (size_t i = 0; i < SLOW; i++)
        close(slow[i]);
}

/* Also where there are places: but not before. */
static void admin_request_timeout(void **state)
{
    (void)state;
    int slow = dial_slow(sizeof HALF - 1), other = dial_slow(sizeof HALF - 1);
    assert_int_equal(http_code(admin(), "/health"), 200); /* both have been accepted */
    pass(SERVER_ADMIN_CONNECTIONS_REQUEST_S * CORE_NS_PER_S - CORE_NS_PER_MS);
    assert_int_equal(http_code(admin(), "/health"), 200);
    http_send(other, "calhost\r\n\r\n", 11);
    struct http_answer answer = http_read(other);
    assert_int_equal(answer.code, 200);
    http_free(&answer);
    pass(2 * CORE_NS_PER_MS);
    for (int n = 0; n < 600 && !is_answered(slow, 0); n++)
        trickle(&slow, 1);
    assert_true(is_answered(slow, 0)); /* by the end */
    answer = http_read(slow);
    assert_int_equal(answer.code, 0);
    http_free(&answer);
}

static void two_lengths_are_refused(void **state)
{
    static const struct {
        const char *request;
        int code;
    } rows[] = {
        {"POST /health HTTP/1.0\r\nContent-Length: 0\r\nContent-Length: 3\r\n\r\nabc", 400},
        {"GET /health HTTP/1.0\r\nContent-Length: 3\r\ncontent-length: 0\r\n\r\nabc", 400},
        {"GET /health HTTP/1.0\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 200},
        {"GET /health HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", 200},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int descriptor = http_dial(admin());
        http_send(descriptor, rows[i].request, strlen(rows[i].request));
        struct http_answer answer = http_read(descriptor);
        assert_int_equal(answer.code, rows[i].code);
        http_free(&answer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(admin_request_timeout),
        cmocka_unit_test(slow_admin_clients_evicted),
        cmocka_unit_test(two_lengths_are_refused),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
