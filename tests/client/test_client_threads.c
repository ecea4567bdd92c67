/* One connection, several threads: blocking calls beside each other and beside an event loop. */
#include "client/millrace.h"
#include "tests/support/fake_server.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LONG_MS 20000
#define THREADS 4
#define PACKETS 200

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = 2000,
    .burst_packets = 4,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 20 * CORE_NS_PER_MS,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .padding = MILLRACE_PADDING_PKCS7,
    .key_kind = MILLRACE_KEY_NAMED,
    .key = (const uint8_t *)"some-key",
    .key_bytes = 8,
};

/* Set before the thread starts; `failed` is read after it was joined. */
struct worker {
    pthread_t thread;
    struct millrace *connection;
    uint32_t seed;
    const char *failed;
};

static const char *encrypt_one(struct worker *worker, uint32_t stream, uint32_t number)
{
    uint8_t packet[2000], ciphertext[2016], expected[2016];
    uint32_t bytes = (worker->seed * 71 + number * 13) % 2001, got;
    struct millrace_result result = {.size = sizeof result};
    memset(packet, (int)(worker->seed + number), sizeof packet);
    if (millrace_encrypt(worker->connection, stream, packet, bytes, LONG_MS, ciphertext, &got, &result, NULL))
        return "encrypt";
    if (got != fake_encrypt(CORE_PADDING_PKCS7, packet, bytes, expected) ||
        memcmp(ciphertext, expected, got) != 0)
        return "ciphertext of another packet";
    return NULL;
}

/* A stream of its own from open to close, with pings in between. */
static void *live_alone(void *argument)
{
    struct worker *worker = argument;
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_closed closed = {.size = sizeof closed};
    core_ns round_trip_ns;
    if (millrace_open_stream(worker->connection, &contract, LONG_MS, &opened, NULL, NULL)) {
        worker->failed = "open";
        return NULL;
    }
    for (uint32_t i = 0; i < PACKETS && worker->failed == NULL; i++) {
        worker->failed = encrypt_one(worker, opened.stream, i);
        if (i % 16 == 0 && millrace_ping(worker->connection, LONG_MS, &round_trip_ns, NULL))
            worker->failed = "ping";
    }
    if (millrace_close_stream(worker->connection, opened.stream, LONG_MS, &closed, NULL) ||
        closed.packets != PACKETS)
        worker->failed = "close";
    return NULL;
}

static void start(struct worker *worker, struct millrace *connection, uint32_t seed, void *(*run)(void *))
{
    *worker = (struct worker){.connection = connection, .seed = seed};
    assert_int_equal(pthread_create(&worker->thread, NULL, run, worker), 0);
}

static void join(struct worker *worker)
{
    pthread_join(worker->thread, NULL);
    if (worker->failed != NULL)
        fail_msg("thread %u: %s", worker->seed, worker->failed);
}

static struct millrace *begin(struct fake_server *server, fake_script *script)
{
    struct millrace *connection = NULL;
    struct core_error error;
    fake_server_start(server, script, NULL);
    if (millrace_connect(server->address, NULL, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    return connection;
}

static void test_blocking_calls_beside_each_other(void **state)
{
    (void)state;
    struct fake_server server;
    struct millrace *connection = begin(&server, fake_serve);
    struct worker workers[THREADS];
    for (uint32_t i = 0; i < THREADS; i++)
        start(&workers[i], connection, i, live_alone);
    for (uint32_t i = 0; i < THREADS; i++)
        join(&workers[i]);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* Two threads, one stream: each gets the result of its own packets. */
struct shared {
    struct worker worker;
    uint32_t stream;
};

static void *encrypt_on_shared(void *argument)
{
    struct shared *shared = argument;
    for (uint32_t i = 0; i < PACKETS && shared->worker.failed == NULL; i++)
        shared->worker.failed = encrypt_one(&shared->worker, shared->stream, i);
    return NULL;
}

static void test_two_threads_on_one_stream(void **state)
{
    (void)state;
    struct fake_server server;
    struct millrace *connection = begin(&server, fake_serve);
    struct millrace_opened opened = {.size = sizeof opened};
    struct shared shared[2];
    assert_int_equal(millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, NULL), MILLRACE_OK);
    for (uint32_t i = 0; i < 2; i++) {
        shared[i] = (struct shared){{.connection = connection, .seed = i}, opened.stream};
        assert_int_equal(pthread_create(&shared[i].worker.thread, NULL, encrypt_on_shared, &shared[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        join(&shared[i].worker);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* An event loop reads everybody's answers while others block. */
static void count_result(void *argument, const struct millrace_result *result)
{
    (void)result;
    atomic_fetch_add((atomic_uint *)argument, 1);
}

static void test_event_loop_beside_blocking_calls(void **state)
{
    (void)state;
    struct fake_server server;
    struct millrace *connection = begin(&server, fake_serve);
    struct millrace_opened opened = {.size = sizeof opened};
    struct worker workers[2];
    atomic_uint results = 0;
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_result = count_result, .argument = &results};
    static const uint8_t packet[64];
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    assert_int_equal(millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, NULL), MILLRACE_OK);
    for (uint32_t i = 0; i < 2; i++)
        start(&workers[i], connection, i, live_alone);
    for (unsigned sent = 0; atomic_load(&results) < 1000;) {
        while (sent < 1000 && sent < atomic_load(&results) + 10) {
            assert_int_equal(millrace_data(connection, opened.stream, packet, 64, NULL, NULL), MILLRACE_OK);
            sent++;
        }
        assert_int_equal(millrace_process(connection, 1, NULL), MILLRACE_OK);
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = millrace_events(connection)};
        poll(&ready, 1, 1);
    }
    for (uint32_t i = 0; i < 2; i++)
        join(&workers[i]);
    assert_int_equal(atomic_load(&results), 1000);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* The server goes while several wait: all are told. */
static void leave_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct protocol_header header;
    (void)argument;
    if (!fake_welcome(descriptor))
        return;
    for (int i = 0; i < THREADS; i++)
        if (!fake_read_frame(descriptor, &header, body))
            return;
}

static void *expect_closed(void *argument)
{
    struct worker *worker = argument;
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    if (millrace_open_stream(worker->connection, &contract, -1, &opened, NULL, error.text) != MILLRACE_CLOSED)
        worker->failed = "not told that the server has gone";
    return NULL;
}

static void test_all_are_told_when_the_server_goes(void **state)
{
    (void)state;
    struct fake_server server;
    struct millrace *connection = begin(&server, leave_script);
    struct worker workers[THREADS];
    for (uint32_t i = 0; i < THREADS; i++)
        start(&workers[i], connection, i, expect_closed);
    for (uint32_t i = 0; i < THREADS; i++)
        join(&workers[i]);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocking_calls_beside_each_other),
        cmocka_unit_test(test_two_threads_on_one_stream),
        cmocka_unit_test(test_event_loop_beside_blocking_calls),
        cmocka_unit_test(test_all_are_told_when_the_server_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
