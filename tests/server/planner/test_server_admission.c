/* Admission over the wire: the boundary, the offers, and what closing gives back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define STREAMS_MAX 8192

static const uint8_t key[32] = {3, 1, 4};

static void start(struct test_server *server, struct test_client *client, const char *threads)
{
    char yaml[256];
    memset(server, 0, sizeof *server);
    snprintf(
        yaml, sizeof yaml,
        "threads: {%s, cores: 8, realtime: off, pin: false}\nlimits: {streams: 8192}\ntimeouts: {move_ms: 0}",
        threads);
    test_server_start(server, yaml, &test_profile_real);
    test_client_connect(client, test_server_unix(server), NULL);
}

static void stop(struct test_server *server, struct test_client *client)
{
    test_client_close(client);
    assert_int_equal(test_server_stop(server), 0);
}

static bool ask(struct test_client *client, enum protocol_type type, const struct core_stream_spec *spec,
                uint32_t *stream, struct protocol_refused *refused)
{
    struct protocol_open open = test_open_inline(spec, key);
    struct protocol_opened opened = {0};
    bool accepted = test_client_ask(client, type, &open, &opened, refused);
    if (accepted) {
        assert_true(opened.bound_ns > 0 && opened.bound_ns <= spec->latency_ns);
        assert_int_equal(opened.unit, PROTOCOL_UNIT_CPU);
    }
    if (stream != NULL)
        *stream = opened.stream;
    return accepted;
}

static void close_stream(struct test_client *client, uint32_t stream)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;
    assert_true(test_client_send(client, bytes, protocol_close_write(bytes, stream)));
    test_client_expect(client, PROTOCOL_CLOSED, &frame);
    assert_int_equal(frame.header.id, stream);
}

/* Each offer is accepted when asked next, and is the best: a nanosecond less is refused. */
static void check_offers(struct test_client *client, const struct core_stream_spec *spec,
                         const struct protocol_refused *refused)
{
    const core_ns offers_ns[] = {refused->offer_interval_ns, refused->offer_latency_ns};
    for (int i = 0; i < 2; i++) {
        struct core_stream_spec offered = *spec;
        core_ns *field_ns = i == 0 ? &offered.interval_ns : &offered.latency_ns;
        struct protocol_refused again;
        uint32_t stream;
        if (offers_ns[i] == 0)
            continue;
        assert_true(offers_ns[i] > *field_ns);
        *field_ns = offers_ns[i] - 1;
        assert_false(ask(client, PROTOCOL_QUERY, &offered, NULL, &again));
        *field_ns = offers_ns[i];
        assert_true(ask(client, PROTOCOL_QUERY, &offered, NULL, NULL));
        assert_true(ask(client, PROTOCOL_OPEN, &offered, &stream, NULL));
        close_stream(client, stream);
    }
}

struct boundary {
    const char *what;
    struct core_stream_spec spec;
    unsigned constraints;           /* a bit for each that may bind */
    bool has_interval, has_latency; /* offers */
};

static const struct boundary boundaries[] = {
    {"long packets",
     {65536, 1, 10 * CORE_NS_PER_MS, 500 * CORE_NS_PER_MS, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE,
      .guaranteed = false},
     1u << 2 | 1u << 3 | 1u << 4,
     true,
     false},
    {"short latency bounds",
     {1400, 4, 100 * CORE_NS_PER_MS, 5 * CORE_NS_PER_MS, CORE_CIPHER_AES_128_CBC, CORE_PADDING_PKCS7,
      .guaranteed = false},
     1u << 3,
     false,
     true},
    {"many small packets for the I/O thread",
     {16, 1, 50 * CORE_NS_PER_US, CORE_NS_PER_S, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE,
      .guaranteed = false},
     1u << 4,
     true,
     false},
};

static uint32_t open_until_refused(struct test_client *client, const struct core_stream_spec *spec,
                                   uint32_t *streams, struct protocol_refused *refused)
{
    uint32_t count = 0;
    while (count < STREAMS_MAX && ask(client, PROTOCOL_OPEN, spec, &streams[count], refused))
        count++;
    assert_true(count < STREAMS_MAX);
    assert_int_equal(refused->code, PROTOCOL_REFUSED_CAPACITY);
    return count;
}

static void the_last_accepted_and_the_first_refused(void **state)
{
    static uint32_t streams[STREAMS_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof boundaries / sizeof boundaries[0]; i++) {
        const struct boundary *boundary = &boundaries[i];
        struct protocol_refused refused, again;
        struct test_server server;
        struct test_client client;

        start(&server, &client, "io: 1, workers: 1");
        uint32_t count = open_until_refused(&client, &boundary->spec, streams, &refused);
        if (count == 0 || (boundary->constraints >> refused.constraint & 1) == 0)
            fail_msg("%s: %u streams, constraint %u: %s", boundary->what, count, refused.constraint,
                     refused.text);
        assert_int_equal(refused.offer_interval_ns > 0, boundary->has_interval);
        assert_int_equal(refused.offer_latency_ns > 0, boundary->has_latency);
        check_offers(&client, &boundary->spec, &refused);
        /* Asking left no trace: the same question has the same answer. */
        assert_false(ask(&client, PROTOCOL_QUERY, &boundary->spec, NULL, &again));
        assert_int_equal(again.offer_interval_ns, refused.offer_interval_ns);
        assert_int_equal(again.offer_latency_ns, refused.offer_latency_ns);
        assert_int_equal(again.constraint, refused.constraint);
        /* Every stream closed makes room for one, not for two. */
        for (uint32_t j = 0; j < count && j < 5; j++) {
            close_stream(&client, streams[j]);
            assert_true(ask(&client, PROTOCOL_QUERY, &boundary->spec, NULL, NULL));
            assert_true(ask(&client, PROTOCOL_OPEN, &boundary->spec, &streams[j], NULL));
            assert_false(ask(&client, PROTOCOL_OPEN, &boundary->spec, NULL, &again));
        }
        stop(&server, &client);
    }
}

static void two_workers_hold_more_than_one(void **state)
{
    static uint32_t streams[STREAMS_MAX];
    uint32_t counts[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct protocol_refused refused;
        struct test_server server;
        struct test_client client;
        start(&server, &client, i == 0 ? "io: 1, workers: 1" : "io: 1, workers: 2");
        counts[i] = open_until_refused(&client, &boundaries[1].spec, streams, &refused);
        stop(&server, &client);
    }
    assert_int_equal(counts[1], 2 * counts[0]);
}

/* Connections are spread over the I/O threads, each of which has room of its own. */
static void two_io_threads_hold_more_than_one(void **state)
{
    static uint32_t streams[STREAMS_MAX];
    struct protocol_refused refused;
    struct test_server server;
    struct test_client one, other;
    (void)state;
    start(&server, &one, "io: 2, workers: 1");
    test_client_connect(&other, test_server_unix(&server), NULL);
    uint32_t count = open_until_refused(&one, &boundaries[2].spec, streams, &refused);
    assert_int_equal(refused.constraint, 4);
    assert_int_equal(open_until_refused(&other, &boundaries[2].spec, streams, &refused), count);
    test_client_close(&other);
    stop(&server, &one);
}

static void impossible_contracts_rejected(void **state)
{
    static const struct {
        struct core_stream_spec spec;
        bool has_interval, has_latency; /* offers */
    } rows[] = {
        /* below what an idle server could keep: later would do, slower would not */
        {{1400, 1, 10 * CORE_NS_PER_MS, 10 * CORE_NS_PER_US, CORE_CIPHER_AES_128_CBC, CORE_PADDING_PKCS7,
          .guaranteed = false},
         false,
         true},
        /* more than a core can encrypt: slower would do, later would not */
        {{65536, 1, 10 * CORE_NS_PER_US, CORE_NS_PER_S, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE,
          .guaranteed = false},
         true,
         false},
        {{16, 1, CORE_INTERVAL_NS_MIN, CORE_NS_PER_S, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE,
          .guaranteed = false},
         true,
         false},
        /* both at once: neither alone would do */
        {{65536, 1, CORE_INTERVAL_NS_MIN, CORE_LATENCY_NS_MIN, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE,
          .guaranteed = false},
         false,
         false},
    };
    struct test_server server;
    struct test_client client;
    (void)state;
    start(&server, &client, "io: 1, workers: 1");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int query = 0; query < 2; query++) {
            struct protocol_refused refused;
            assert_false(
                ask(&client, query != 0 ? PROTOCOL_QUERY : PROTOCOL_OPEN, &rows[i].spec, NULL, &refused));
            assert_int_equal(refused.code, PROTOCOL_REFUSED_CAPACITY);
            assert_in_range(refused.constraint, 1, 4);
            assert_int_equal(refused.offer_interval_ns != 0, rows[i].has_interval);
            assert_int_equal(refused.offer_latency_ns != 0, rows[i].has_latency);
            check_offers(&client, &rows[i].spec, &refused);
        }
    stop(&server, &client);
}

static struct core_stream_spec draw_spec(struct test_random *random)
{
    return (struct core_stream_spec){
        .packet_bytes = (uint32_t)test_random_log(random, 16, 65536) / 16 * 16,
        .burst_packets = (uint32_t)test_random_log(random, 1, 16),
        .interval_ns = test_random_log(random, 20 * CORE_NS_PER_US, CORE_NS_PER_S),
        .latency_ns = test_random_log(random, 500 * CORE_NS_PER_US, CORE_NS_PER_S),
        .cipher = (enum core_cipher)test_random_in(random, 1, 3),
        .padding = (enum core_padding)test_random_in(random, 0, 1),
    };
}

/* QUERY and OPEN agree, offers hold, and whatever came and went, nothing of it stays. */
static void random_asks(void **state)
{
    static uint32_t streams[STREAMS_MAX];
    struct test_random random = {.state = 77};
    struct protocol_refused refused, first;
    struct test_server server;
    struct test_client client;
    uint32_t count = 0, accepted_in_all = 0, refused_in_all = 0;
    (void)state;

    start(&server, &client, "io: 1, workers: 2");
    struct core_stream_spec greedy = test_spec;
    greedy.interval_ns = CORE_INTERVAL_NS_MIN;
    assert_false(ask(&client, PROTOCOL_QUERY, &greedy, NULL, &first));
    for (int round = 0; round < 400; round++) {
        struct core_stream_spec spec = draw_spec(&random);
        bool would = ask(&client, PROTOCOL_QUERY, &spec, NULL, &refused);
        assert_int_equal(ask(&client, PROTOCOL_OPEN, &spec, &streams[count], &refused), would);
        if (would) {
            count++;
            accepted_in_all++;
        } else if (refused.code == PROTOCOL_REFUSED_CAPACITY) {
            check_offers(&client, &spec, &refused);
            refused_in_all++;
        }
        while (count > 0 && test_random_chance(&random, 30)) {
            uint32_t i = (uint32_t)test_random_in(&random, 0, count - 1);
            close_stream(&client, streams[i]);
            streams[i] = streams[--count];
        }
    }
    assert_true(accepted_in_all > 20 && refused_in_all > 20);
    while (count > 0)
        close_stream(&client, streams[--count]);
    assert_false(ask(&client, PROTOCOL_QUERY, &greedy, NULL, &refused));
    assert_int_equal(refused.offer_interval_ns, first.offer_interval_ns);
    stop(&server, &client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_accepted_and_the_first_refused),
        cmocka_unit_test(two_workers_hold_more_than_one),
        cmocka_unit_test(two_io_threads_hold_more_than_one),
        cmocka_unit_test(impossible_contracts_rejected),
        cmocka_unit_test(random_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
