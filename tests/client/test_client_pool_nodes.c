/* Nodes of a pool that come and go: that leave and stay, are older or newer than the others, and hang up; and the
 * streams that move from one to another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/millrace.h"
#include "core/time.h"
#include "tests/support/pool_rig.h"

#define STREAMS 6

/* A node that hangs up on who connects is left alone, longer each time. */
static void test_flapping_node(void **state)
{
    static const struct chaos_options options[POOL_RIG_NODES] = {{.cut_bytes = 4000},
                                                                 {.hang_up_percent = 100}};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct pool_rig rig;
    (void)state;
    const core_ns start_ns = core_time_now_ns();
    pool_rig_start(&rig, options, 2, 6, 5, &pool);
    atomic_store(&rig.nodes[1].faults_left, 1000000);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    pool_rig_run_to_the_end(&rig);
    while (core_time_now_ns() < start_ns + CORE_NS_PER_S) {
        struct pollfd ready = {.fd = millrace_descriptor(rig.pool), .events = millrace_events(rig.pool)};
        (void)poll(&ready, 1, 100);
        assert_int_equal(millrace_process(rig.pool, 0, NULL), MILLRACE_OK);
    }
    const int attempts = 1000000 - atomic_load(&rig.nodes[1].faults_left);
    int most = 3; /* 0.1 s, 0.2 s, ... less a quarter */
    for (core_ns gone_ns = core_time_now_ns() - start_ns, pause_ns = 75 * CORE_NS_PER_MS; gone_ns > pause_ns;
         pause_ns *= 2, most++)
        gone_ns -= pause_ns;
    assert_in_range(attempts, 2, most);
    assert_int_equal(millrace_pool_node(rig.pool, 1, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_DOWN);
    assert_non_null(strstr(node.text, node.address));
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    assert_true(node.opened > 0 && node.losses > 0 && node.lost > 0);
    assert_int_equal(millrace_pool_node(rig.pool, 2, &node, NULL), MILLRACE_NOT_FOUND);
    pool_rig_stop(&rig);
}

/* Servers are replaced by newer ones: those speak the version that the pool has with the first one, too. */
static void test_newer_node(void **state)
{
    static const struct chaos_options options = {.cut_after = 20};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    millrace_disconnect(rig.pool);
    atomic_store(&rig.nodes[0].version, 3);
    char several[128];
    snprintf(several, sizeof several, "%s,unix:/none", rig.nodes[0].address);
    assert_int_equal(millrace_connect(several, NULL, POOL_RIG_PATIENCE_MS, &rig.pool, NULL), MILLRACE_OK);
    pool_rig_listen(&rig);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    atomic_store(&rig.nodes[0].version, 4);
    atomic_store(&rig.nodes[0].faults_left, 1);
    pool_rig_run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].gaps, 1);
    pool_rig_stop(&rig);
}

/* The only node is leaving, and stays after all: it is used again. */
static void test_a_node_that_stays(void **state)
{
    static const struct chaos_options options = {0};
    static const enum pool_stream_kind kinds[2] = {POOL_CHAIN, POOL_CHAIN};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct test_random random = {1};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    atomic_store(&rig.nodes[0].leaves, true);
    do { /* without a stream its connection is ended, and made anew, later each time */
        pool_rig_turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    } while (node.losses < 2);
    atomic_store(&rig.nodes[0].leaves, false);
    pool_rig_open(&rig, 1, kinds, &random);
    atomic_store(&rig.nodes[0].leaves, true);
    do
        pool_rig_ping(&rig);
    while (millrace_pool_node(rig.pool, 0, &node, NULL) == MILLRACE_OK &&
           node.state != MILLRACE_NODE_LEAVING);
    atomic_store(&rig.nodes[0].leaves, false);
    rig.streams = realloc(rig.streams, 2 * sizeof *rig.streams);
    pool_stream_make(&rig.streams[1], POOL_CHAIN, &random);
    rig.count = 2;
    assert_int_equal(millrace_send_open(rig.pool, &rig.streams[1].open, NULL, NULL), MILLRACE_OK);
    while (rig.opened < 2)
        pool_rig_turn(&rig);
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_LEAVING); /* that it grants does not say that it stays */
    pool_rig_run_to_the_end(&rig);
    assert_int_equal(rig.streams[0].gaps + rig.streams[1].gaps, 0);
    while (node.state != MILLRACE_NODE_UP) { /* a new connection does */
        pool_rig_turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    }
    pool_rig_stop(&rig);
}

/* A node that is worked on grants what was asked for before it said so, and all that comes later: its streams leave it
 * nevertheless, and no new ones come. */
static void test_a_node_that_grants_while_it_leaves(void **state)
{
    static const struct chaos_options options[2] = {{.grants_leaving = true}, {.grants_leaving = true}};
    static const enum pool_stream_kind kinds[STREAMS] = {POOL_CHAIN};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct test_random random = {1};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 0, 1, &pool);
    pool_rig_open(&rig, STREAMS - 1, kinds, &random);
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    const unsigned there = node.streams < STREAMS / 2 ? 0 : 1; /* where the next one is opened */
    atomic_store(&rig.nodes[there].ponders, true);
    rig.streams = realloc(rig.streams, STREAMS * sizeof *rig.streams);
    pool_stream_make(&rig.streams[STREAMS - 1], POOL_CHAIN, &random);
    rig.count = STREAMS;
    const unsigned asked = atomic_load(&rig.nodes[there].opens);
    assert_int_equal(millrace_send_open(rig.pool, &rig.streams[STREAMS - 1].open, NULL, NULL), MILLRACE_OK);
    while (atomic_load(&rig.nodes[there].opens) == asked)
        pool_rig_turn(&rig);
    atomic_store(&rig.nodes[there].leaves, true);
    atomic_store(&rig.nodes[there].ponders, false);
    while (atomic_load(&rig.nodes[there].streams) > 0 || rig.opened < STREAMS)
        pool_rig_turn(&rig);
    assert_int_equal(atomic_load(&rig.nodes[1 - there].streams), STREAMS);
    pool_rig_run_to_the_end(&rig);
    pool_rig_stop(&rig);
}

/* All nodes are worked on: who asks for something has it at once, on the connections that are there. */
static void test_all_are_leaving(void **state)
{
    static const struct chaos_options options[2] = {{.grants_leaving = true}, {.grants_leaving = true}};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 0, 1, &pool);
    atomic_store(&rig.nodes[0].leaves, true);
    atomic_store(&rig.nodes[1].leaves, true);
    for (unsigned leaving = 0; leaving < 2;) {
        struct millrace_node node = {.size = sizeof node};
        pool_rig_turn(&rig);
        leaving = 0;
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(millrace_pool_node(rig.pool, i, &node, NULL), MILLRACE_OK);
            leaving += node.state == MILLRACE_NODE_LEAVING;
        }
    }
    for (unsigned i = 0; i < 20; i++)
        pool_rig_ping(&rig);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    pool_rig_run_to_the_end(&rig);
    assert_int_equal(rig.streams[0].gaps + rig.refused, 0);
    pool_rig_stop(&rig);
}

/* The only node refuses since it is stopping, and somebody waits: connections are made anew, which may lead elsewhere. */
static void test_refused_by_the_only_one(void **state)
{
    static const struct chaos_options options = {0};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct test_random random = {1};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    atomic_store(&rig.nodes[0].leaves, true);
    rig.streams = calloc(1, sizeof *rig.streams);
    rig.count = 1;
    pool_stream_make(&rig.streams[0], POOL_CHAIN, &random);
    assert_int_equal(millrace_send_open(rig.pool, &rig.streams[0].open, NULL, NULL), MILLRACE_OK);
    for (unsigned turns = 0; node.losses < 3; turns++) {
        assert_in_range(turns, 0, 10000); /* it sleeps between them */
        pool_rig_turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    }
    atomic_store(&rig.nodes[0].leaves, false);
    while (rig.opened == 0)
        pool_rig_turn(&rig);
    pool_rig_run_to_the_end(&rig);
    pool_rig_stop(&rig);
}

/* A node is leaving, and the other one does not take the stream: it stays, and is served, until the other one does. */
static void test_stays_without_room_elsewhere(void **state)
{
    static const struct chaos_options all[3][2] = {{{.refuse_percent = 100}, {.refuse_percent = 100}},
                                                   {{.takes_no_iv = true}, {.takes_no_iv = true}},
                                                   {{0}, {0}}};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct millrace_node node = {.size = sizeof node};
        struct pool_rig rig;
        pool_rig_start(&rig, all[i], 2, 0, 1, &pool);
        pool_rig_open_one(&rig, POOL_CHAIN, 1);
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
        const unsigned there = node.streams == 1 ? 0 : 1;
        atomic_store(&rig.nodes[0].faults_left, i == 0 ? 1000 : 0);
        atomic_store(&rig.nodes[1].faults_left, i == 0 ? 1000 : 0);
        atomic_store(&rig.nodes[there].leaves, true);
        while (!rig.streams[0].closed) {
            const bool asked = atomic_load(&rig.nodes[1 - there].opens) > 0;
            if (rig.streams[0].sent < POOL_RIG_PACKETS / 2 || (asked && rig.streams[0].gaps == (i == 2)))
                pool_rig_send(&rig, &rig.streams[0]);
            pool_rig_turn(&rig);
        }
        pool_rig_check(&rig);
        assert_false(rig.streams[0].lost);
        assert_int_equal(rig.streams[0].gaps, i == 2);
        while (atomic_load(&rig.nodes[there].closes) == 0) /* a node that was left may be slow to read that */
            poll(NULL, 0, 1);
        assert_int_equal(atomic_load(&rig.nodes[there].closes), 1);
        pool_rig_stop(&rig);
    }
}

/* A stream has gone on elsewhere, and the node that it has left answers what it had: that is for nobody. */
static void test_results_of_a_node_that_was_left(void **state)
{
    static const struct chaos_options options[2] = {{0}, {0}};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 0, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    struct pool_stream *stream = &rig.streams[0];
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    const unsigned there = node.streams == 1 ? 0 : 1;
    atomic_store(&rig.nodes[there].holds, true);
    pool_rig_send(&rig, stream);
    atomic_store(&rig.nodes[there].leaves, true);
    while (atomic_load(&rig.nodes[there].closes) == 0)
        pool_rig_turn(&rig);
    do { /* what it says is read, and then its connection is ended */
        pool_rig_turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, there, &node, NULL), MILLRACE_OK);
    } while (node.losses == 0);
    assert_int_equal(millrace_send_close(rig.pool, stream->id, NULL), MILLRACE_OK);
    while (!stream->closed)
        pool_rig_turn(&rig);
    assert_int_equal(stream->gaps, 1);
    assert_int_equal(stream->done, POOL_RIG_AHEAD);
    assert_int_equal(stream->end.packets, POOL_RIG_AHEAD);
    pool_stream_check(stream);
    pool_rig_stop(&rig);
}

/* A node that takes shorter packets than the first one could not have all its streams. */
static void test_node_of_shorter_packets(void **state)
{
    static const struct chaos_options options[2] = {{0}, {.packet_bytes_max = 1000}};
    struct millrace_pool pool = {.size = sizeof pool};
    struct millrace_node node = {.size = sizeof node};
    struct chaos_node nodes[2];
    struct pool_rig rig = {0};
    char both[256];
    (void)state;
    for (unsigned i = 0; i < 2; i++)
        chaos_node_start(&nodes[i], &options[i], 0, 1);
    snprintf(both, sizeof both, "%s,%s", nodes[0].address, nodes[1].address);
    pool.addresses = both;
    atomic_store(&nodes[1].hangs_up, true);
    assert_int_equal(millrace_pool_connect(&pool, NULL, POOL_RIG_PATIENCE_MS, &rig.pool, NULL), MILLRACE_OK);
    atomic_store(&nodes[1].hangs_up, false);
    do {
        pool_rig_turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, 1, &node, NULL), MILLRACE_OK);
        assert_int_equal(node.state, MILLRACE_NODE_DOWN);
    } while (strstr(node.text, "it takes packets of 1000 bytes at most") == NULL);
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_UP);
    millrace_disconnect(rig.pool);
    for (unsigned i = 0; i < 2; i++)
        chaos_node_stop(&nodes[i]);
}

/* While another node ponders whether it takes a stream, the one that is leaving serves it, and what the other one was
 * told stays true. */
static void test_served_while_another_one_ponders(void **state)
{
    static const struct chaos_options options[2] = {{0}, {0}};
    static const enum pool_stream_kind kinds[2] = {POOL_CHAIN, POOL_COUNTER};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct millrace_node node = {.size = sizeof node};
        struct pool_rig rig;
        pool_rig_start(&rig, options, 2, 0, 1, &pool);
        pool_rig_open_one(&rig, kinds[i], 1);
        struct pool_stream *stream = &rig.streams[0];
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
        const unsigned there = node.streams == 1 ? 0 : 1;
        atomic_store(&rig.nodes[1 - there].ponders, true);
        atomic_store(&rig.nodes[there].leaves, true);
        while (atomic_load(&rig.nodes[1 - there].opens) == 0)
            pool_rig_turn(&rig);
        while (stream->done < POOL_RIG_PACKETS / 2) {
            pool_rig_send(&rig, stream);
            pool_rig_turn(&rig);
        }
        atomic_store(&rig.nodes[1 - there].ponders, false);
        while (stream->gaps == 0)
            pool_rig_turn(&rig);
        pool_rig_run_to_the_end(&rig);
        pool_rig_stop(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flapping_node),
        cmocka_unit_test(test_newer_node),
        cmocka_unit_test(test_a_node_that_stays),
        cmocka_unit_test(test_a_node_that_grants_while_it_leaves),
        cmocka_unit_test(test_all_are_leaving),
        cmocka_unit_test(test_refused_by_the_only_one),
        cmocka_unit_test(test_stays_without_room_elsewhere),
        cmocka_unit_test(test_results_of_a_node_that_was_left),
        cmocka_unit_test(test_node_of_shorter_packets),
        cmocka_unit_test(test_served_while_another_one_ponders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
