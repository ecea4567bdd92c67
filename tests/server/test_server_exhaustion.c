/* No memory: each allocation of the I/O and planner threads fails once, one after the other, and also all
 * from each on, while a client says hello, opens, sends, changes, asks and closes. Whatever becomes of that
 * client, the server lives, and serves another one. The linker puts such an allocator in the place of the
 * real one for the server's own code (--wrap in CMakeLists.txt), so that sanitizers still see every block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#include "core/secret.h"
#include "tests/support/allocator.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define FAIL_NONE INT64_MAX
#define RUNS_MAX  2000 /* there are far fewer allocations in a run */

/* ---- the allocator ---- */

void *__real_core_secret_alloc(size_t bytes);
void *__wrap_core_secret_alloc(size_t bytes);

static _Atomic int64_t calls; /* on the server's threads, since the start of the run */
static _Atomic int64_t first_failing = FAIL_NONE, failing; /* so many from this call on fail */
static atomic_uint failed;

static bool fails(void)
{
    char name[16] = "";
    int64_t first = atomic_load(&first_failing);

    if (first == FAIL_NONE)
        return false;
    prctl(PR_GET_NAME, name);
    if (strncmp(name, "io-", 3) != 0 && strcmp(name, "planner") != 0 && strcmp(name, "memory") != 0)
        return false;
    int64_t call = atomic_fetch_add(&calls, 1);
    if (call < first || call - first >= atomic_load(&failing))
        return false;
    atomic_fetch_add(&failed, 1);
    return true;
}

void *__wrap_core_secret_alloc(size_t bytes)
{
    return fails() ? NULL : __real_core_secret_alloc(bytes);
}

/* ---- the client that it happens to ---- */

static const uint8_t key[32] = {7};

static uint32_t write_data(uint8_t *frame, uint32_t stream, uint32_t sequence)
{
    test_data_header(frame, stream, sequence, 64);
    memset(frame + PROTOCOL_HEADER_BYTES, 0x5a, 64);
    return PROTOCOL_HEADER_BYTES + 64;
}

static uint32_t write_modify(uint8_t *frame, const struct core_stream_spec *spec)
{
    const struct protocol_modify modify = {.stream = 1,
                                           .burst_packets = spec->burst_packets + 20,
                                           .interval_ns = spec->interval_ns,
                                           .latency_ns = spec->latency_ns};
    return protocol_modify_write(frame, 6, &modify);
}

/* Sends and awaits so many frames of any kind. False: the server has closed. */
static bool exchange(struct test_client *client, const uint8_t *bytes, uint32_t count, uint32_t answers)
{
    struct test_frame frame;

    if (!test_client_send(client, bytes, count))
        return false;
    for (; answers > 0; answers--) {
        enum test_outcome outcome = test_client_next(client, &frame, TEST_PATIENCE_MS);
        assert_int_not_equal(outcome, TEST_SILENCE);
        if (outcome == TEST_END)
            return false;
    }
    return true;
}

/* Each phase is one piece, so that the server handles its frames one inside the other's turn. */
static bool say_all(struct test_client *client, const struct core_stream_spec *spec)
{
    const struct protocol_open open = test_open_inline(spec, key);
    uint8_t bytes[4096];
    uint32_t count = protocol_hello_write(bytes, 1, 2);

    count += protocol_ping_write(bytes + count, PROTOCOL_PING, 1, "abc", 3);
    if (!exchange(client, bytes, count, 2))
        return false;
    count = protocol_open_write(2, bytes, PROTOCOL_OPEN, 2, &open);
    count += protocol_open_write(2, bytes + count, PROTOCOL_OPEN, 3, &open);
    count += protocol_open_write(2, bytes + count, PROTOCOL_QUERY, 4, &open);
    if (!exchange(client, bytes, count, 3))
        return false;
    count = 0;
    for (uint32_t sequence = 0; sequence < 3; sequence++)
        count += write_data(bytes + count, 1, sequence);
    count += write_modify(bytes + count, spec);
    count += protocol_ping_write(bytes + count, PROTOCOL_PING, 7, NULL, 0);
    if (!exchange(client, bytes, count, 5))
        return false;
    count = write_data(bytes, 2, 0);
    count += write_data(bytes + count, 9, 0);
    count += protocol_close_write(bytes + count, 1);
    count += protocol_close_write(bytes + count, 9);
    return exchange(client, bytes, count, 4);
}

/* What a client is told that ends its stream by closing its half. */
static void read_to_the_end(struct test_client *client)
{
    struct test_frame frame;
    enum test_outcome outcome;

    test_client_half_close(client);
    while ((outcome = test_client_next(client, &frame, TEST_PATIENCE_MS)) == TEST_FRAME)
        ;
    assert_int_equal(outcome, TEST_END);
}

/* ---- and another one, who is served ---- */

static void serve(const struct test_server *server, const struct core_stream_spec *spec)
{
    struct test_client client;

    test_client_connect(&client, test_server_unix(server), NULL);
    struct test_stream *stream = test_stream_open(&client, spec, 1);
    for (int i = 0; i < 4; i++)
        assert_true(test_stream_send(stream, 64));
    test_stream_drain(stream);
    assert_int_equal(test_stream_close(stream).packets, 4);
    test_stream_free(stream);
    test_client_close(&client);
}

/* ---- the runs ---- */

/* True: so many allocations were not made any more. */
static bool run(const struct test_server *server, const struct core_stream_spec *spec, int64_t first,
                int64_t count)
{
    struct test_client client;

    atomic_store(&failing, count);
    atomic_store(&calls, 0);
    atomic_store(&failed, 0);
    atomic_store(&first_failing, first);
    test_client_dial(&client, test_server_unix(server));
    if (say_all(&client, spec))
        read_to_the_end(&client);
    atomic_store(&first_failing, FAIL_NONE);
    test_client_close(&client);
    serve(server, spec);
    return atomic_load(&failed) == 0;
}

static void run_each(const struct test_server *server, const struct core_stream_spec *spec, int64_t count)
{
    int64_t first = 0;

    while (!run(server, spec, first, count)) {
        first++;
        assert_in_range(first, 1, RUNS_MAX);
    }
    assert_in_range(first, 15, RUNS_MAX); /* it was in the place of the server's allocator */
}

static void on_workers(void **state)
{
    struct test_server server = {0};
    (void)state;
    test_server_start(&server, "threads: {io: 1, workers: 1, realtime: off, pin: false}",
                      &test_profile_generous);
    run_each(&server, &test_spec, 1);
    run_each(&server, &test_spec, FAIL_NONE);
    (void)test_server_stop(&server);
}

static void on_a_gpu(void **state)
{
    struct config_profile *profile = test_gpu_profile(100000);
    struct core_stream_spec spec = test_spec;
    struct test_server server = {0};
    (void)state;
    spec.burst_packets = 8;
    spec.interval_ns = 4 * CORE_NS_PER_MS;
    spec.latency_ns = 200 * CORE_NS_PER_MS;
    test_gpu_server_start(&server, "audit: 1", "threads: {io: 1, workers: 1, realtime: off, pin: false}\n",
                          profile);
    run_each(&server, &spec, 1);
    run_each(&server, &spec, FAIL_NONE);
    (void)test_server_stop(&server);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_workers),
        cmocka_unit_test(on_a_gpu),
    };
    test_allocator_fails = fails;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
