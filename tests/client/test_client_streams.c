/* The tables of a connection: streams by id, unanswered requests by id. */
#include "client/requests.h"
#include "client/streams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ---- streams ---- */

static void test_streams_empty(void **state)
{
    (void)state;
    struct client_streams streams = {0};
    assert_null(client_streams_find(&streams, 0));
    assert_null(client_streams_find(&streams, 1));
    assert_int_equal(client_streams_reserve(&streams, 1), CORE_OK);
    assert_null(client_streams_find(&streams, 0));
    assert_null(client_streams_insert(&streams, 0));
    assert_non_null(client_streams_insert(&streams, 7));
    assert_int_equal(client_streams_reserve(&streams, 2), CORE_OK);
    assert_null(client_streams_insert(&streams, 7)); /* taken */
    assert_int_equal(streams.count, 1);
    client_streams_free(&streams);
}

static void test_streams_keep_their_state_while_growing(void **state)
{
    (void)state;
    struct client_streams streams = {0};
    for (uint32_t id = 1; id <= 10000; id++) {
        assert_int_equal(client_streams_reserve(&streams, streams.count + 1), CORE_OK);
        client_streams_insert(&streams, id)->next = id * 3;
    }
    for (uint32_t id = 1; id <= 10000; id++)
        assert_int_equal(client_streams_find(&streams, id)->next, id * 3);
    assert_null(client_streams_find(&streams, 10001));
    client_streams_free(&streams);
}

/* A server counts up; to find or remove a stream takes a few steps all the same, however many there are. */
static void test_streams_of_ids_in_a_row(void **state)
{
    (void)state;
    struct client_streams streams = {0};
    for (uint32_t id = 1; id <= 10000; id++) {
        size_t run = 0;
        assert_int_equal(client_streams_reserve(&streams, streams.count + 1), CORE_OK);
        const struct client_stream *slot = client_streams_insert(&streams, id);
        while (slot > streams.slots && slot[-1].id != 0)
            slot--;
        for (; slot < streams.slots + streams.capacity && slot->id != 0; slot++)
            run++;
        assert_in_range(run, 1, 16);
    }
    client_streams_free(&streams);
}

/* Ids that all want the same few slots, inserted and removed in a changing order. */
static void test_streams_of_colliding_ids(void **state)
{
    (void)state;
    struct client_streams streams = {0};
    bool open[64] = {false};
    uint32_t ids[64], random = 99, next = 1;
    assert_int_equal(client_streams_reserve(&streams, 64), CORE_OK);
    /* around the end of the table: its last two slots, its first two */
    for (unsigned n = 0; n < 64; next++) {
        struct client_stream *stream = client_streams_insert(&streams, next);
        const size_t slot = (size_t)(stream - streams.slots);
        client_streams_remove(&streams, stream);
        if (slot < 2 || slot >= streams.capacity - 2)
            ids[n++] = next;
    }
    for (unsigned step = 0; step < 20000; step++) {
        random = random * 1664525 + 1013904223;
        uint32_t pick = (random >> 16) % 64;
        struct client_stream *stream = client_streams_find(&streams, ids[pick]);
        assert_int_equal(stream != NULL, open[pick]);
        if (stream != NULL)
            client_streams_remove(&streams, stream);
        else
            assert_non_null(client_streams_insert(&streams, ids[pick]));
        open[pick] = !open[pick];
    }
    client_streams_free(&streams);
}

/* ---- requests ---- */

static void test_requests_limit_and_order(void **state)
{
    (void)state;
    struct client_requests requests = {0};
    struct client_request *request;
    uint32_t ids[CLIENT_REQUESTS_MAX];
    assert_null(client_requests_find(&requests, 0));
    for (unsigned i = 0; i < CLIENT_REQUESTS_MAX; i++) {
        assert_int_equal(client_requests_add(&requests, PROTOCOL_OPEN, &request), CORE_OK);
        ids[i] = request->id;
        assert_true(ids[i] != 0);
    }
    assert_int_equal(client_requests_add(&requests, PROTOCOL_OPEN, &request), CORE_FULL);
    for (unsigned i = 0; i < CLIENT_REQUESTS_MAX; i++) {
        unsigned picked = i * 517 % CLIENT_REQUESTS_MAX;
        request = client_requests_find(&requests, ids[picked]);
        assert_non_null(request);
        assert_int_equal(request->id, ids[picked]);
        client_requests_remove(&requests, request);
        assert_null(client_requests_find(&requests, ids[picked]));
    }
    assert_int_equal(requests.count, 0);
    client_requests_free(&requests);
}

static void test_requests_ids_do_not_come_back_soon(void **state)
{
    (void)state;
    struct client_requests requests = {0};
    struct client_request *request;
    uint32_t last = 0;
    for (unsigned i = 0; i < 100000; i++) {
        assert_int_equal(client_requests_add(&requests, PROTOCOL_PING, &request), CORE_OK);
        assert_true(request->id != last);
        assert_null(client_requests_find(&requests, last));
        last = request->id;
        client_requests_remove(&requests, request);
    }
    client_requests_free(&requests);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_empty),
        cmocka_unit_test(test_streams_keep_their_state_while_growing),
        cmocka_unit_test(test_streams_of_ids_in_a_row),
        cmocka_unit_test(test_streams_of_colliding_ids),
        cmocka_unit_test(test_requests_limit_and_order),
        cmocka_unit_test(test_requests_ids_do_not_come_back_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
