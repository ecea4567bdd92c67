/* MODIFY over the wire: another contract for an open stream, on CPU workers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "server/planner/planner.h"
#include "server/server_internal.h"
#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define MS CORE_NS_PER_MS

static void start_with(struct test_server *server, const char *limits, const struct config_profile *profile)
{
    char yaml[256];
    memset(server, 0, sizeof *server);
    snprintf(yaml, sizeof yaml,
             "threads: {cores: 8, io: 1, workers: 1, realtime: off, pin: false}\nlimits: {%s}", limits);
    test_server_start(server, yaml, profile);
}

static void connect_to(struct test_client *client, const struct test_server *server)
{
    test_client_dial(client, test_server_unix(server));
    test_client_hello_version(client, 2, NULL);
}

static void start(struct test_server *server, struct test_client *client)
{
    start_with(server, "streams: 8192", &test_profile_real);
    connect_to(client, server);
}

static void stop(struct test_server *server, struct test_client *client)
{
    test_client_close(client);
    assert_int_equal(test_server_stop(server), 0);
}

static size_t write_modify(uint8_t *frame, uint32_t request, uint32_t stream,
                           const struct core_stream_spec *spec)
{
    const struct protocol_modify modify = {stream, spec->burst_packets, spec->interval_ns, spec->latency_ns};
    return protocol_modify_write(frame, request, &modify);
}

/* The answer to request 5, after RESULTs of the stream (NULL: none may come): true if MODIFIED. */
static bool take_answer(struct test_client *client, struct test_stream *stream,
                        struct protocol_modified *modified, struct protocol_refused *refused)
{
    struct protocol_modified modified_here;
    struct protocol_refused refused_here;
    struct test_frame frame;
    modified = modified != NULL ? modified : &modified_here;
    refused = refused != NULL ? refused : &refused_here;
    for (;;) {
        assert_int_equal(test_client_next(client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type != PROTOCOL_RESULT)
            break;
        assert_non_null(stream);
        test_stream_check(stream, &frame);
    }
    assert_int_equal(frame.header.id, 5);
    if (frame.header.type == PROTOCOL_MODIFIED) {
        assert_int_equal(protocol_modified_read(frame.body, frame.header.body_bytes, modified, NULL),
                         CORE_OK);
        return true;
    }
    assert_int_equal(frame.header.type, PROTOCOL_REFUSED);
    assert_int_equal(protocol_refused_read(2, frame.body, frame.header.body_bytes, refused, NULL), CORE_OK);
    assert_true(refused->text[0] != '\0' && refused->decided_ns > 0);
    return false;
}

static bool modify(struct test_stream *stream, const struct core_stream_spec *spec,
                   struct protocol_modified *modified, struct protocol_refused *refused)
{
    uint8_t frame[TEST_FRAME_BYTES];
    assert_true(test_client_send(stream->client, frame, write_modify(frame, 5, stream->id, spec)));
    return take_answer(stream->client, stream, modified, refused);
}

static struct core_stream_spec spec_of(core_ns interval_ns, uint32_t burst, core_ns latency_ns)
{
    struct core_stream_spec spec = test_spec;
    spec.interval_ns = interval_ns;
    spec.burst_packets = burst;
    spec.latency_ns = latency_ns;
    return spec;
}

/* ---- granted ---- */

static void up_and_down(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_modified modified;
    (void)state;
    start(&server, &client);
    const struct core_stream_spec specs[] = {
        spec_of(20 * MS, 2, 100 * MS),           spec_of(2 * MS, 2, 100 * MS),
        spec_of(2 * MS, 30, 100 * MS),           spec_of(2 * MS, 30, 40 * MS),
        spec_of(200 * MS, 1, 4 * CORE_NS_PER_S), spec_of(20 * MS, 4, 60 * MS)};
    struct test_stream *stream = test_stream_open(&client, &specs[0], 1);
    assert_int_equal(stream->opened.backup.unit, PROTOCOL_UNIT_NONE);
    assert_int_equal(stream->opened.backup.bound_ns, stream->opened.bound_ns); /* no GPU can fail it */
    for (size_t i = 0; i < 30; i++) {
        const struct core_stream_spec *spec = &specs[i % 6];
        for (uint32_t packet = 0; packet < 3; packet++)
            assert_true(test_stream_send(stream, 1408 - 16 * (uint32_t)(i % 5)));
        assert_true(modify(stream, spec, &modified, NULL));
        assert_int_equal(modified.stream, stream->id);
        assert_int_equal(modified.unit, PROTOCOL_UNIT_CPU);
        assert_int_equal(modified.unit_index, 0);
        assert_true(modified.bound_ns > 0 && modified.bound_ns <= spec->latency_ns);
        assert_int_equal(modified.backup.bound_ns, modified.bound_ns);
        assert_true(modified.decided_ns > 0 && modified.in_force_ns >= modified.decided_ns);
        assert_true(modified.first <= stream->sent);
        assert_true(modified.queue_packets >= spec->burst_packets);
        test_stream_drain(stream);
    }
    struct protocol_closed closed = test_stream_close(stream);
    assert_int_equal(closed.packets, 90);
    test_stream_free(stream);
    stop(&server, &client);
}

/* Packets that wait for their tokens come under the new contract: under the old one they would wait for
 * hours.
 */
static void waiting_packets_under_the_new_contract(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_modified modified;
    const struct core_stream_spec slow = spec_of(3600 * CORE_NS_PER_S, 3, CORE_NS_PER_S);
    const struct core_stream_spec fast = spec_of(MS, 3, CORE_NS_PER_S);
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &slow, 2);
    for (uint32_t packet = 0; packet < 4; packet++)
        assert_true(test_stream_send(stream, 1408)); /* the server has room for one above the burst */
    assert_true(modify(stream, &fast, &modified, NULL));
    assert_int_equal(modified.first, 3);
    test_stream_drain(stream);
    /* and what is sent now waits no longer either: tokens come every millisecond */
    for (uint32_t packet = 0; packet < 10; packet++)
        assert_true(test_stream_send(stream, 64));
    test_stream_drain(stream);
    test_stream_free(stream);
    stop(&server, &client);
}

/* Tokens that were used stay used: a larger burst is not there at once. */
static void the_bucket_is_carried_over(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_modified modified;
    const struct core_stream_spec before = spec_of(3600 * CORE_NS_PER_S, 3, CORE_NS_PER_S);
    const struct core_stream_spec after = spec_of(3600 * CORE_NS_PER_S, 8, CORE_NS_PER_S);
    struct test_frame frame;
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &before, 3);
    assert_true(test_stream_send(stream, 64));
    assert_true(test_stream_send(stream, 64));
    test_stream_drain(stream);
    assert_true(modify(stream, &after, &modified, NULL));
    assert_int_equal(modified.first, 2);
    assert_true(test_stream_send(stream, 64)); /* the third token of the old bucket */
    test_stream_drain(stream);
    assert_true(test_stream_send(stream, 64)); /* there is none more for an hour */
    test_client_ping(&client);
    assert_int_equal(test_client_next(&client, &frame, 20), TEST_SILENCE);
    test_stream_free(stream);
    test_client_close(&client);
    (void)test_server_stop(&server); /* with a packet that is lost */
}

/* ---- refused ---- */

static void modify_rejected_keeps_contract(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_refused refused;
    struct protocol_modified modified;
    const struct core_stream_spec before = spec_of(20 * MS, 2, 100 * MS);
    struct core_stream_spec asked = spec_of(CORE_INTERVAL_NS_MIN, 2, 100 * MS);
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &before, 4);
    assert_false(modify(stream, &asked, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_CAPACITY);
    assert_true(refused.constraint >= 1 && refused.constraint <= 4);
    assert_true(refused.offer_interval_ns > asked.interval_ns);
    for (int i = 0; i < 10; i++) {
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
    asked.interval_ns = refused.offer_interval_ns - 1;
    assert_false(modify(stream, &asked, NULL, &refused));
    asked.interval_ns = refused.offer_interval_ns;
    assert_true(modify(stream, &asked, &modified, NULL));
    asked.latency_ns = CORE_LATENCY_NS_MIN;
    assert_false(modify(stream, &asked, NULL, &refused));
    assert_int_equal(refused.constraint, 1);
    assert_true(refused.offer_latency_ns == 0 || refused.offer_latency_ns > CORE_LATENCY_NS_MIN);
    assert_true(test_stream_send(stream, 1408));
    test_stream_close(stream);
    test_stream_free(stream);
    stop(&server, &client);
}

static void values_out_of_range(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_refused refused;
    const struct core_stream_spec good = spec_of(20 * MS, 2, 100 * MS);
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &good, 5);
    const struct {
        uint64_t stream, burst, interval_ns, latency_ns;
        enum protocol_refusal code;
    } rows[] = {
        {stream->id, 2, 0, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, 2, CORE_INTERVAL_NS_MIN - 1, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, 2, CORE_INTERVAL_NS_MAX + 1, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, 2, UINT64_MAX, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, 2, UINT64_C(1) << 63, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, 2, 20 * MS, 0, PROTOCOL_REFUSED_SPEC},
        {stream->id, 2, 20 * MS, UINT64_MAX, PROTOCOL_REFUSED_SPEC},
        {stream->id, 2, 20 * MS, CORE_LATENCY_NS_MAX + 1, PROTOCOL_REFUSED_SPEC},
        {stream->id, 0, 20 * MS, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, CORE_BURST_MAX + 1, 20 * MS, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, UINT32_MAX, 20 * MS, 100 * MS, PROTOCOL_REFUSED_SPEC},
        {stream->id, CORE_BURST_MAX, 20 * MS, 100 * MS, PROTOCOL_REFUSED_LIMIT},
        {0, 2, 20 * MS, 100 * MS, PROTOCOL_REFUSED_STREAM},
        {stream->id + 1, 2, 20 * MS, 100 * MS, PROTOCOL_REFUSED_STREAM},
        {UINT32_MAX, 2, 20 * MS, 100 * MS, PROTOCOL_REFUSED_STREAM},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t frame[TEST_FRAME_BYTES];
        uint8_t *body = frame + PROTOCOL_HEADER_BYTES;
        size_t bytes = write_modify(frame, 5, (uint32_t)rows[i].stream, &good);
        for (int byte = 0; byte < 8; byte++) { /* as they are, without the codec's mind */
            body[8 + byte] = (uint8_t)(rows[i].interval_ns >> 8 * byte);
            body[16 + byte] = (uint8_t)(rows[i].latency_ns >> 8 * byte);
            if (byte < 4)
                body[4 + byte] = (uint8_t)(rows[i].burst >> 8 * byte);
        }
        assert_true(test_client_send(&client, frame, bytes));
        assert_false(take_answer(&client, NULL, NULL, &refused));
        assert_int_equal(refused.code, rows[i].code);
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
    test_stream_close(stream);
    test_stream_free(stream);
    stop(&server, &client);
}

static void frames_that_are_none(void **state)
{
    struct test_server server;
    struct test_client client;
    static const struct {
        uint16_t version;
        uint32_t body_bytes, sequence;
        enum protocol_error code;
    } rows[] = {
        {2, 0, 0, PROTOCOL_ERROR_OVERSIZED},     {2, 23, 0, PROTOCOL_ERROR_OVERSIZED},
        {2, 25, 0, PROTOCOL_ERROR_OVERSIZED},    {2, UINT32_MAX, 0, PROTOCOL_ERROR_OVERSIZED},
        {2, 24, 1, PROTOCOL_ERROR_MALFORMED},    {1, 24, 0, PROTOCOL_ERROR_UNKNOWN_TYPE},
        {1, 24, 1, PROTOCOL_ERROR_UNKNOWN_TYPE},
    };
    (void)state;
    start_with(&server, "streams: 10", &test_profile_real);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t frame[PROTOCOL_HEADER_BYTES];
        const struct protocol_header header = {rows[i].body_bytes, PROTOCOL_MODIFY, 0, 5, rows[i].sequence};
        test_client_dial(&client, test_server_unix(&server));
        test_client_hello_version(&client, rows[i].version, NULL);
        protocol_header_write(frame, &header);
        assert_true(test_client_send(&client, frame, sizeof frame));
        test_client_expect_error(&client, rows[i].code, 0, true);
        test_client_close(&client);
    }
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- what may cross ---- */

static void one_at_a_time(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_refused refused;
    const struct core_stream_spec before = spec_of(20 * MS, 2, 100 * MS);
    const struct core_stream_spec after = spec_of(10 * MS, 3, 90 * MS);
    uint8_t frames[2 * TEST_FRAME_BYTES];
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &before, 6);
    size_t bytes = write_modify(frames, 5, stream->id, &after);
    bytes += write_modify(frames + bytes, 5, stream->id, &after);
    assert_true(test_client_send(&client, frames, bytes)); /* read at once: the second finds the first */
    assert_false(take_answer(&client, stream, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_BUSY);
    assert_true(take_answer(&client, stream, NULL, NULL));
    assert_true(modify(stream, &before, NULL, NULL));
    test_stream_free(stream);
    stop(&server, &client);
}

static void close_before_modify(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_refused refused;
    struct test_frame frame;
    const struct core_stream_spec before = spec_of(20 * MS, 2, 100 * MS);
    uint8_t frames[2 * TEST_FRAME_BYTES];
    (void)state;
    start(&server, &client);
    for (int order = 0; order < 2; order++) {
        struct test_stream *stream = test_stream_open(&client, &before, 7);
        size_t bytes = 0;
        if (order == 0)
            bytes += write_modify(frames, 5, stream->id, &before);
        bytes += protocol_close_write(frames + bytes, stream->id);
        if (order == 1)
            bytes += write_modify(frames + bytes, 5, stream->id, &before);
        assert_true(test_client_send(&client, frames, bytes));
        if (order == 0) {
            assert_false(take_answer(&client, stream, NULL, &refused));
            test_client_expect(&client, PROTOCOL_CLOSED, &frame);
        } else {
            test_client_expect(&client, PROTOCOL_CLOSED, &frame);
            assert_false(take_answer(&client, NULL, NULL, &refused));
        }
        assert_int_equal(refused.code, PROTOCOL_REFUSED_STREAM);
        test_stream_free(stream);
    }
    stop(&server, &client);
}

static void half_close_before_modify(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_refused refused;
    struct test_frame frame;
    const struct core_stream_spec before = spec_of(3600 * CORE_NS_PER_S, 1, CORE_NS_PER_S);
    uint8_t frames[TEST_FRAME_BYTES];
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &before, 8);
    assert_true(test_client_send(&client, frames, write_modify(frames, 5, stream->id, &before)));
    test_client_half_close(&client);
    if (!take_answer(&client, stream, NULL, &refused)) /* it may have been granted before */
        assert_int_equal(refused.code, PROTOCOL_REFUSED_STREAM);
    test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    test_client_expect_end(&client);
    test_stream_free(stream);
    stop(&server, &client);
}

/* ---- what it costs, and that it is given back ---- */

/* What the worker is charged for. */
static int64_t charge(const struct test_server *server)
{
    return atomic_load(&server_planner_worker_load(server->server->planner, 0)->utilisation_ppb);
}

/* Room comes back when the worker has paused, which is soon. */
static void await_charge(const struct test_server *server, int64_t ppb)
{
    for (int waited_ms = 0; charge(server) != ppb; waited_ms++) {
        assert_in_range(waited_ms, 0, TEST_PATIENCE_MS);
        core_time_sleep_until(core_time_now_ns() + MS);
    }
}

static void modify_changes_reservation(void **state)
{
    struct test_server server;
    struct test_client client;
    const struct core_stream_spec small = spec_of(20 * MS, 2, 100 * MS), large = spec_of(MS, 5, 90 * MS);
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &small, 9);
    int64_t with_small_ppb = charge(&server);
    assert_true(with_small_ppb > 0);
    for (int i = 0; i < 20; i++) {
        assert_true(modify(stream, &large, NULL, NULL));
        assert_true(charge(&server) > 10 * with_small_ppb);
        assert_true(test_stream_send(stream, 1408));
        assert_true(modify(stream, &small, NULL, NULL));
        test_stream_drain(stream);
        await_charge(&server, with_small_ppb);
    }
    test_stream_close(stream);
    test_stream_free(stream);
    await_charge(&server, 0);
    stop(&server, &client);
}

/* Clients that ask and are gone: whatever the moment, all room is free again afterwards. */
static void modify_released_on_disconnect(void **state)
{
    struct test_server server;
    struct test_client watcher, client;
    const struct core_stream_spec small = spec_of(20 * MS, 2, 100 * MS), large = spec_of(MS, 20, 90 * MS);
    uint8_t frame[TEST_FRAME_BYTES];
    (void)state;
    start(&server, &watcher);
    for (uint64_t i = 0; i < 100; i++) {
        connect_to(&client, &server);
        struct test_stream *stream = test_stream_open(&client, &small, i);
        if (i % 2 == 0)
            assert_true(test_stream_send(stream, 1408));
        assert_true(test_client_send(&client, frame, write_modify(frame, 5, stream->id, &large)));
        if (i % 3 == 0)
            core_time_sleep_until(core_time_now_ns() + (core_ns)(i % 7) * 20 * CORE_NS_PER_US);
        test_client_close(&client);
        test_stream_free(stream);
    }
    await_charge(&server, 0);
    test_client_close(&watcher);
    (void)test_server_stop(&server); /* packets of those who left are lost */
}

/* ---- memory ---- */

static void a_larger_burst_has_room(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_modified modified;
    const struct core_stream_spec small = spec_of(10 * MS, 2, 3600 * CORE_NS_PER_S);
    const struct core_stream_spec large = spec_of(MS, 200, 3600 * CORE_NS_PER_S);
    (void)state;
    start(&server, &client);
    struct test_stream *stream = test_stream_open(&client, &small, 10);
    for (int round = 0; round < 6; round++) {
        assert_true(modify(stream, &large, &modified, NULL));
        assert_true(modified.queue_packets >= 200);
        for (uint32_t packet = 0; packet < 200; packet++)
            assert_true(test_stream_send(stream, 16 + 16 * (packet % 88)));
        test_stream_drain(stream);
        assert_true(modify(stream, &small, &modified, NULL));
        assert_true(modified.queue_packets < 100);
        for (uint32_t packet = 0; packet < 5; packet++)
            assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
    test_stream_close(stream);
    test_stream_free(stream);
    stop(&server, &client);
}

static void the_budget_of_memory_counts(void **state)
{
    struct test_server server;
    struct test_client client;
    struct protocol_refused refused;
    const struct core_stream_spec small = spec_of(10 * MS, 2, 3600 * CORE_NS_PER_S);
    const struct core_stream_spec large = spec_of(10 * MS, 500, 3600 * CORE_NS_PER_S);
    struct test_stream *streams[8];
    int granted = 0;
    (void)state;
    start_with(&server, "streams: 100, buffer_mib: 2", &test_profile_generous);
    connect_to(&client, &server);
    for (uint64_t i = 0; i < 8; i++)
        streams[i] = test_stream_open(&client, &small, i);
    for (int i = 0; i < 8; i++) { /* 0.75 MiB each: there is room for two */
        if (modify(streams[i], &large, NULL, &refused)) {
            granted++;
            continue;
        }
        assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
        assert_non_null(strstr(refused.text, "buffer_mib"));
    }
    assert_int_equal(granted, 2);
    assert_true(modify(streams[0], &small, NULL, NULL));
    assert_true(modify(streams[1], &small, NULL, NULL));
    for (int i = 0; i < 50; i++) { /* what is given back is there for the next, again and again */
        struct test_stream *stream = streams[2 + i % 5];
        for (int waited_ms = 0; !modify(stream, &large, NULL, &refused); waited_ms++) {
            assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT); /* not yet */
            assert_in_range(waited_ms, 0, TEST_PATIENCE_MS);
            core_time_sleep_until(core_time_now_ns() + MS);
        }
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
        assert_true(modify(stream, &small, NULL, NULL));
    }
    for (int i = 0; i < 8; i++)
        test_stream_free(streams[i]);
    stop(&server, &client);
}

/* ---- many, at random ---- */

static void streams_that_change_all_the_time(void **state)
{
    enum { STREAMS = 20, STEPS = 800 };
    struct test_server server;
    struct test_client client;
    struct test_stream *streams[STREAMS];
    struct test_random random = {99};
    uint64_t changed = 0;
    (void)state;
    start(&server, &client);
    for (uint64_t i = 0; i < STREAMS; i++) {
        const struct core_stream_spec spec = spec_of(5 * MS, 2, 400 * MS);
        streams[i] = test_stream_open(&client, &spec, i);
    }
    for (int step = 0; step < STEPS; step++) {
        struct test_stream *stream = streams[test_random_next(&random) % STREAMS];
        struct core_stream_spec spec =
            spec_of((core_ns)(250 + test_random_next(&random) % 5000) * CORE_NS_PER_US,
                    1 + (uint32_t)(test_random_next(&random) % 12),
                    (core_ns)(20 + test_random_next(&random) % 400) * MS);
        uint32_t packets = (uint32_t)(test_random_next(&random) % 4);
        for (uint32_t i = 0; i < packets; i++)
            assert_true(test_stream_send(stream, 16 + 16 * (uint32_t)(test_random_next(&random) % 88)));
        changed += modify(stream, &spec, NULL, NULL);
        test_stream_drain(stream);
    }
    assert_true(changed > STEPS / 4);
    for (uint64_t i = 0; i < STREAMS; i++) {
        test_stream_close(streams[i]);
        test_stream_free(streams[i]);
    }
    await_charge(&server, 0);
    stop(&server, &client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(up_and_down),
        cmocka_unit_test(waiting_packets_under_the_new_contract),
        cmocka_unit_test(the_bucket_is_carried_over),
        cmocka_unit_test(modify_rejected_keeps_contract),
        cmocka_unit_test(values_out_of_range),
        cmocka_unit_test(frames_that_are_none),
        cmocka_unit_test(one_at_a_time),
        cmocka_unit_test(close_before_modify),
        cmocka_unit_test(half_close_before_modify),
        cmocka_unit_test(modify_changes_reservation),
        cmocka_unit_test(modify_released_on_disconnect),
        cmocka_unit_test(a_larger_burst_has_room),
        cmocka_unit_test(the_budget_of_memory_counts),
        cmocka_unit_test(streams_that_change_all_the_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
