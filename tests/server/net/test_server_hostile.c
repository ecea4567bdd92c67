/* Two hundred connections that send garbage, clients killed in the middle of a packet, and one that sends
 * more than it declared: none of it is felt on a good connection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define VANDALS     4
#define CONNECTIONS 50 /* of each */
#define ACTS        1500
#define KILLS       24

static const uint8_t key[32] = {13};

/* ---- garbage ---- */

struct vandal {
    pthread_t thread;
    const struct core_address *unix_address, *tcp_address;
    struct test_random random;
    struct test_client clients[CONNECTIONS];
};

/* HELLO, OPEN, DATA and CLOSE for streams that may be there, PING: what a client would send. */
static size_t write_plausible(struct test_random *random, uint8_t *bytes)
{
    struct protocol_open open = test_open_inline(&test_spec, key);
    size_t count = protocol_hello_write(bytes, 1, 1);
    count += protocol_open_write(2, bytes + count, PROTOCOL_OPEN, 1, &open);
    count += protocol_open_write(2, bytes + count, PROTOCOL_QUERY, 2, &open);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t size = (uint32_t)test_random_in(random, 0, 20) * 16;
        test_data_header(bytes + count, (uint32_t)test_random_in(random, 0, 2), i, size);
        memset(bytes + count + PROTOCOL_HEADER_BYTES, (int)i, size);
        count += PROTOCOL_HEADER_BYTES + size;
    }
    count += protocol_ping_write(bytes + count, PROTOCOL_PING, 3, "?", 1);
    return count + protocol_close_write(bytes + count, 1);
}

/* Until the server takes no more, because its answers are not read (TCP's buffers may hold more than this).
 */
static void flood_with_pings(struct test_client *client)
{
    uint8_t bytes[200 * (PROTOCOL_HEADER_BYTES + sizeof key)];
    size_t count = protocol_hello_write(bytes, 1, 1);
    (void)test_client_push(client, bytes, count);
    for (count = 0; count < sizeof bytes;)
        count += protocol_ping_write(bytes + count, PROTOCOL_PING, 1, key, sizeof key);
    for (int pushes = 0; pushes < 50 && test_client_push(client, bytes, count) == count; pushes++)
        ;
}

static void misbehave(struct vandal *vandal, struct test_client *client)
{
    struct test_random *random = &vandal->random;
    uint8_t bytes[8192];
    size_t count = write_plausible(random, bytes);

    switch (test_random_in(random, 0, 5)) {
    case 0: /* noise */
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)test_random_next(random);
        (void)test_client_push(client, bytes, (size_t)test_random_in(random, 1, sizeof bytes));
        break;
    case 1: /* a few bits of a good conversation turned over */
        for (int64_t flips = test_random_in(random, 1, 6); flips > 0; flips--)
            bytes[test_random_in(random, 0, (int64_t)count - 1)] ^=
                (uint8_t)(1u << test_random_in(random, 0, 7));
        (void)test_client_push(client, bytes, count);
        break;
    case 2: /* one that breaks off */
        (void)test_client_push(client, bytes, (size_t)test_random_in(random, 1, (int64_t)count));
        break;
    case 3:
        flood_with_pings(client);
        break;
    case 4: /* takes some of what came */
        (void)test_client_fill(client, 4096);
        client->input_start = client->input_end = 0;
        break;
    default:
        test_client_close(client);
        break;
    }
}

static void *vandalise(void *argument)
{
    struct vandal *vandal = argument;
    for (int i = 0; i < CONNECTIONS; i++)
        test_client_dial(&vandal->clients[i], vandal->unix_address);
    for (int act = 0; act < ACTS; act++) {
        struct test_client *client = &vandal->clients[test_random_in(&vandal->random, 0, CONNECTIONS - 1)];
        misbehave(vandal, client);
        if (client->descriptor < 0 || client->ended) {
            test_client_close(client);
            test_client_dial(client, act % 3 == 0 ? vandal->tcp_address : vandal->unix_address);
        }
    }
    for (int i = 0; i < CONNECTIONS; i++)
        test_client_close(&vandal->clients[i]);
    return NULL;
}

static void *run_vandals(void *argument)
{
    struct vandal *vandals = argument;
    for (int i = 0; i < VANDALS; i++)
        TEST_REQUIRE(pthread_create(&vandals[i].thread, NULL, vandalise, &vandals[i]) == 0);
    for (int i = 0; i < VANDALS; i++)
        TEST_REQUIRE(pthread_join(vandals[i].thread, NULL) == 0);
    return NULL;
}

static void valid_stream_beside_garbage(void **state)
{
    static struct vandal vandals[VANDALS];
    struct core_stream_spec spec = test_spec;
    struct test_server server;
    struct test_client client;
    pthread_t gang;
    (void)state;

    memset(&server, 0, sizeof server);
    test_server_start(&server, "threads: {cores: 8, io: 2, workers: 2, realtime: off, pin: false}",
                      &test_profile_generous);
    spec.interval_ns = 50 * CORE_NS_PER_US;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *good = test_stream_open(&client, &spec, 1);
    for (uint64_t i = 0; i < VANDALS; i++)
        vandals[i] = (struct vandal){.unix_address = test_server_unix(&server),
                                     .tcp_address = test_server_tcp(&server),
                                     .random = {.state = 50 + i}};
    assert_int_equal(pthread_create(&gang, NULL, run_vandals, vandals), 0);
    while (pthread_tryjoin_np(gang, NULL) != 0) {
        for (int i = 0; i < 32; i++)
            assert_true(test_stream_send(good, 1408));
        test_stream_drain(good);
    }
    struct protocol_closed closed = test_stream_close(good);
    assert_true(closed.packets == good->sent && closed.packets > 0);
    test_stream_free(good);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- killed clients ---- */

struct victim {
    pid_t process;
    int go, ready; /* it reads the address to connect to; writes when it is in the middle of a packet */
};

/* Streams, packets that have to wait, results that nobody reads, and half a packet. */
_Noreturn static void die_young(int go, int ready)
{
    static uint8_t frame[PROTOCOL_HEADER_BYTES + 1408];
    struct core_stream_spec spec = test_spec;
    struct test_stream *streams[3];
    struct core_address address;
    struct test_client client;

    spec.burst_packets = 2;
    spec.interval_ns = 20 * CORE_NS_PER_MS;
    if (read(go, &address, sizeof address) != sizeof address)
        _exit(1);
    test_client_connect(&client, &address, NULL);
    for (uint64_t i = 0; i < 3; i++)
        streams[i] = test_stream_open(&client, &spec, i);
    for (int packet = 0; packet < 10; packet++)
        for (int i = 0; i < 3; i++)
            TEST_REQUIRE(test_stream_send(streams[i], 1408));
    size_t bytes = test_stream_frame(streams[1], 1408, frame);
    TEST_REQUIRE(test_client_send(&client, frame, bytes / 2));
    TEST_REQUIRE(write(ready, "", 1) == 1);
    for (;;)
        pause();
}

static void breed(struct victim *victim)
{
    int go[2], ready[2];
    TEST_REQUIRE(pipe(go) == 0 && pipe(ready) == 0);
    victim->process = fork();
    TEST_REQUIRE(victim->process >= 0);
    if (victim->process == 0) {
        close(go[1]);
        close(ready[0]);
        die_young(go[0], ready[1]);
    }
    close(go[0]);
    close(ready[1]);
    victim->go = go[1];
    victim->ready = ready[0];
}

static void kill_in_mid_packet(struct victim *victim, const struct core_address *address)
{
    char byte;
    assert_int_equal(write(victim->go, address, sizeof *address), sizeof *address);
    assert_int_equal(read(victim->ready, &byte, 1), 1);
    assert_int_equal(kill(victim->process, SIGKILL), 0);
    assert_int_equal(waitpid(victim->process, NULL, 0), victim->process);
    close(victim->go);
    close(victim->ready);
}

/* The shortest interval that would be accepted now. */
static core_ns capacity_ns(struct test_client *client)
{
    struct core_stream_spec spec = test_spec;
    struct protocol_refused refused;
    spec.burst_packets = 1;
    spec.interval_ns = 5 * CORE_NS_PER_US;
    struct protocol_open open = test_open_inline(&spec, key);
    assert_false(test_client_ask(client, PROTOCOL_QUERY, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_CAPACITY);
    assert_true(refused.offer_interval_ns > spec.interval_ns);
    return refused.offer_interval_ns;
}

static void killed_clients_release_everything(void **state)
{
    static struct victim victims[KILLS];
    struct test_server server;
    struct test_client client;
    (void)state;

    test_server_prepare(&server);
    test_server_write(&server, "keyring", TEST_KEYRING);
    for (int i = 0; i < KILLS; i++) /* before the server's threads are there */
        breed(&victims[i]);
    test_server_start(&server, "keyring: keyring\nlimits: {streams: 100}", &test_profile_real);
    test_client_connect(&client, test_server_unix(&server), NULL);
    core_ns before_ns = capacity_ns(&client);
    for (int i = 0; i < KILLS; i++)
        kill_in_mid_packet(&victims[i], i % 2 == 0 ? test_server_unix(&server) : test_server_tcp(&server));
    while (capacity_ns(&client) != before_ns) /* the last ones have still to be noticed */
        sched_yield();
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- more than was declared ---- */

struct excess {
    const struct core_address *address;
    core_ns interval_ns;
    uint32_t packets;
    _Atomic bool done;
};

/* Everything at once. What waits, waits in order, exactly as long as its contract says. */
static void *send_too_fast(void *argument)
{
    static uint8_t frames[1000 * (PROTOCOL_HEADER_BYTES + 16)];
    struct excess *excess = argument;
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    uint32_t waited_us = 0, policed = 0;
    size_t bytes = 0;

    spec.packet_bytes = 16;
    spec.burst_packets = 4;
    spec.interval_ns = excess->interval_ns;
    test_client_connect(&client, excess->address, NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 2);
    uint32_t room = stream->opened.queue_packets; /* one read, so one arrival time, for so many */
    for (uint32_t i = 0; i < excess->packets; i++)
        bytes += test_stream_frame(stream, 16, frames + bytes);
    TEST_REQUIRE(bytes < 65536 && test_client_send(&client, frames, bytes));
    for (uint32_t i = 0; i < excess->packets; i++) {
        struct protocol_result result = test_streams_take(&client, &stream);
        bool held = (result.flags & PROTOCOL_RESULT_POLICED) != 0;
        int64_t step_us = (int64_t)result.waited_us - waited_us;
        TEST_REQUIRE(held || result.waited_us == 0);
        TEST_REQUIRE(i >= 4 || !held);
        if (i >= 4 && i < room)
            TEST_REQUIRE(held && llabs(step_us - spec.interval_ns / 1000) <= 1);
        waited_us = result.waited_us;
        policed += held ? 1 : 0;
    }
    TEST_REQUIRE(policed >
                 excess->packets / 2); /* all that come after the burst, but where the server was away */
    (void)test_stream_close(stream);
    test_stream_free(stream);
    test_client_close(&client);
    atomic_store(&excess->done, true);
    return NULL;
}

static void a_conforming_stream_beside_one_that_is_not(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct excess excess = {.interval_ns = 2 * CORE_NS_PER_MS, .packets = 300};
    struct test_server server;
    struct test_client client;
    pthread_t thread;
    (void)state;

    memset(&server, 0, sizeof server);
    test_server_start(&server, "", &test_profile_generous);
    excess.address = test_server_unix(&server);
    spec.interval_ns = 500 * CORE_NS_PER_US;
    spec.latency_ns = 5 * CORE_NS_PER_S;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    assert_int_equal(pthread_create(&thread, NULL, send_too_fast, &excess), 0);
    while (!atomic_load(&excess.done)) {
        assert_true(test_stream_send(stream, 1408));
        struct protocol_result result = test_streams_take(&client, &stream);
        assert_int_equal(result.flags, PROTOCOL_RESULT_MET);
        assert_int_equal(result.waited_us, 0);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    struct protocol_closed closed = test_stream_close(stream);
    assert_true(closed.missed == 0 && closed.met == stream->sent);
    test_stream_free(stream);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_clients_release_everything), /* forks: first */
        cmocka_unit_test(valid_stream_beside_garbage),
        cmocka_unit_test(a_conforming_stream_beside_one_that_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
