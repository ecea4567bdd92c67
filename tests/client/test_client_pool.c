/* A pool against nodes that refuse, stop, hang up and are cut in the middle of frames: whatever they do, what comes
 * out of each stream is what one server would have made of it, each packet once and in order. */
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

static void change_at_random(struct pool_rig *rig, struct test_random *random)
{
    struct pool_stream *stream = &rig->streams[test_random_in(random, 0, rig->count - 1)];
    if (stream->closed || stream->sent == POOL_RIG_PACKETS)
        return;
    const struct millrace_modify modify = {.size = sizeof modify,
                                           .stream = stream->id,
                                           .burst_packets = (uint32_t)test_random_in(random, 1, 8),
                                           .interval_ns = CORE_NS_PER_MS,
                                           .latency_ns = 10 * CORE_NS_PER_S};
    const struct millrace_rekey rekey = {.size = sizeof rekey,
                                         .stream = stream->id,
                                         .key_kind = MILLRACE_KEY_INLINE,
                                         .key = pool_rig_keys[1],
                                         .key_bytes = 16,
                                         .first = stream->open.first_unit + stream->message + 12};
    if (test_random_chance(random, 50))
        assert_int_equal(millrace_send_modify(rig->pool, &modify, NULL, NULL), MILLRACE_OK);
    else if (pool_stream_has_messages(stream) && stream->second_key == UINT64_MAX &&
             stream->sent < POOL_RIG_PACKETS / 2)
        assert_int_equal(millrace_send_rekey(rig->pool, &rekey, NULL, NULL), MILLRACE_OK);
}

/* The whole: three nodes that do everything wrong. */
static void test_chaos(void **state)
{
    static const enum pool_stream_kind kinds[STREAMS] = {
        POOL_CHAIN, POOL_PADDED, POOL_DECRYPTING, POOL_COUNTER, POOL_CONSTANT, POOL_MESSAGES_IN_A_CHAIN};
    unsigned cuts = 0, gaps = 0, rekeyed = 0, modified = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const struct chaos_options one = {
            .refuse_percent = 15, .hang_up_percent = 10, .drain_percent = 1, .cut_bytes = 6000};
        const struct chaos_options options[POOL_RIG_NODES] = {one, one, one};
        const struct millrace_pool pool = {.connections = 4, .patience_ms = POOL_RIG_PATIENCE_MS};
        struct test_random random = {seed};
        struct pool_rig rig;
        pool_rig_start(&rig, options, POOL_RIG_NODES, 8, seed, &pool);
        pool_rig_open(&rig, STREAMS, kinds, &random);
        while (!pool_rig_all_closed(&rig)) {
            for (unsigned i = 0; i < STREAMS; i++)
                if (test_random_chance(&random, 60))
                    pool_rig_send(&rig, &rig.streams[i]);
            if (test_random_chance(&random, 50))
                change_at_random(&rig, &random);
            pool_rig_turn(&rig);
        }
        pool_rig_check(&rig);
        for (unsigned i = 0; i < STREAMS; i++) {
            assert_false(rig.streams[i].lost);
            gaps += rig.streams[i].gaps;
        }
        for (unsigned i = 0; i < POOL_RIG_NODES; i++)
            cuts += atomic_load(&rig.nodes[i].cuts);
        rekeyed += rig.rekeyed;
        modified += rig.modified;
        pool_rig_stop(&rig);
    }
    print_message("%u cuts, %u gaps, %u rekeyed, %u modified\n", cuts, gaps, rekeyed, modified);
    assert_true(cuts > 20 && gaps > 20 && rekeyed > 0 && modified > 10);
}

/* As many as are said, each once, and the answer says how many. */
static void test_refused_everywhere(void **state)
{
    const struct chaos_options full = {.refuse_percent = 100}, options[POOL_RIG_NODES] = {full, full, full};
    static const unsigned attempts[] = {2, 0};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const struct millrace_pool pool = {.attempts = attempts[i]};
        struct pool_rig rig;
        struct pool_stream stream;
        struct test_random random = {1};
        pool_rig_start(&rig, options, POOL_RIG_NODES, 1000, 1, &pool);
        pool_stream_make(&stream, POOL_CHAIN, &random);
        assert_int_equal(millrace_send_open(rig.pool, &stream.open, NULL, NULL), MILLRACE_OK);
        while (rig.refused == 0)
            pool_rig_turn(&rig);
        assert_int_equal(rig.asked, attempts[i] > 0 ? attempts[i] : POOL_RIG_NODES);
        assert_non_null(strstr(rig.refusal, attempts[i] > 0 ? "full (connections asked: 2)"
                                                            : "full (connections asked: 3)"));
        unsigned opens = 0;
        for (unsigned n = 0; n < POOL_RIG_NODES; n++)
            opens += atomic_load(&rig.nodes[n].opens);
        assert_int_equal(opens, rig.asked);
        assert_int_equal(millrace_send_query(rig.pool, &stream.open, NULL, NULL), MILLRACE_OK);
        while (rig.refused == 1)
            pool_rig_turn(&rig);
        pool_rig_stop(&rig);
    }
}

/* The one that has room is found, also by blocking calls. */
static void test_one_has_room(void **state)
{
    static const struct chaos_options options[POOL_RIG_NODES] = {
        {.refuse_percent = 100}, {.refuse_percent = 100}, {0}};
    const struct millrace_pool pool = {.attempts = 3};
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_closed closed = {.size = sizeof closed};
    struct millrace_result result = {.size = sizeof result};
    struct pool_stream stream;
    struct test_random random = {1};
    struct pool_rig rig;
    uint8_t cipher[POOL_RIG_PACKET_MAX + 16];
    uint32_t bytes;
    int64_t round_trip_ns;
    (void)state;
    pool_rig_start(&rig, options, POOL_RIG_NODES, 1000, 1, &pool);
    pool_stream_make(&stream, POOL_PADDED, &random);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(millrace_query(rig.pool, &stream.open, POOL_RIG_PATIENCE_MS, &opened, NULL, NULL),
                         MILLRACE_OK);
        assert_int_equal(
            millrace_open_stream(rig.pool, &stream.open, POOL_RIG_PATIENCE_MS, &opened, NULL, NULL),
            MILLRACE_OK);
        assert_in_range(opened.asked, 1, 3);
        assert_int_equal(millrace_encrypt(rig.pool, opened.stream, "packet", 6, POOL_RIG_PATIENCE_MS, cipher,
                                          &bytes, &result, NULL),
                         MILLRACE_OK);
        assert_int_equal(bytes, 16);
        assert_int_equal(millrace_close_stream(rig.pool, opened.stream, POOL_RIG_PATIENCE_MS, &closed, NULL),
                         MILLRACE_OK);
        assert_int_equal(closed.packets, 1);
    }
    assert_int_equal(millrace_ping(rig.pool, POOL_RIG_PATIENCE_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(atomic_load(&rig.nodes[2].streams), 0);
    pool_rig_stop(&rig);
}

/* A key that takes no IV: what needs one ends, with the reason; what does not goes on. */
static void test_key_without_client_iv(void **state)
{
    const struct chaos_options cut = {.cut_bytes = 3000, .takes_no_iv = true},
                               options[POOL_RIG_NODES] = {cut, cut};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    (void)state;
    struct pool_rig rig;
    pool_rig_start(&rig, options, 2, 4, 3, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    pool_rig_run_to_the_end(&rig);
    assert_true(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].end.refused, MILLRACE_REFUSED_IV);
    assert_non_null(strstr(rig.streams[0].end.text,
                           "its node is gone, and it can not go on elsewhere: this key "
                           "takes no IV of a client"));
    pool_rig_stop(&rig);
    pool_rig_start(&rig, options, 2, 4, 3, &pool);
    pool_rig_open_one(&rig, POOL_COUNTER, 1);
    pool_rig_run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_true(rig.streams[0].gaps > 0);
    pool_rig_stop(&rig);
}

/* What can not be begun anew: a message longer than what is kept. */
static void test_message_too_long(void **state)
{
    static const struct chaos_options options[POOL_RIG_NODES] = {{.cut_bytes = 40000}, {0}};
    const struct millrace_pool pool = {.kept_bytes_max = 4000, .patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 1, 1, 7, &pool);
    pool_rig_open_one(&rig, POOL_COUNTER, 1);
    struct pool_stream *stream = &rig.streams[0];
    for (uint32_t i = 0; i < POOL_RIG_PACKETS; i++) {
        stream->flags[i] = i == 0 ? MILLRACE_DATA_FIRST : 0;
        stream->lengths[i] = POOL_RIG_PACKET_MAX;
    }
    while (!stream->closed) {
        while (!stream->closed && stream->sent < POOL_RIG_PACKETS &&
               millrace_data_part(rig.pool, stream->id, stream->plain[stream->sent], POOL_RIG_PACKET_MAX,
                                  stream->flags[stream->sent], NULL, NULL) == MILLRACE_OK)
            stream->sent++;
        pool_rig_turn(&rig);
    }
    assert_true(stream->lost);
    assert_non_null(strstr(stream->end.text, "its message is longer than what is kept"));
    pool_stream_check(stream);
    pool_rig_stop(&rig);
}

/* A node that answers nothing any more: its stream has so much that is kept, and no more; others are not harmed. */
static void test_kept_is_bounded(void **state)
{
    static const struct chaos_options options[POOL_RIG_NODES] = {{.silent_after = 10}};
    const struct millrace_pool pool = {.kept_bytes_max = 10000};
    static const enum pool_stream_kind kinds[2] = {POOL_CHAIN, POOL_CHAIN};
    struct test_random random = {1};
    char error[MILLRACE_TEXT_BYTES];
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 1, 0, 1, &pool);
    pool_rig_open(&rig, 2, kinds, &random);
    struct pool_stream *stream = &rig.streams[0];
    millrace_status status = MILLRACE_OK;
    unsigned given = 0;
    while (stream->done < 10) {
        stream->sent += millrace_data(rig.pool, stream->id, stream->plain[stream->sent], 16, NULL, NULL) == 0;
        pool_rig_turn(&rig);
    }
    while (status == MILLRACE_OK) {
        status = millrace_data(rig.pool, stream->id, stream->plain[0], POOL_RIG_PACKET_MAX, NULL, error);
        given += status == MILLRACE_OK;
        assert_int_equal(millrace_flush(rig.pool, NULL), MILLRACE_OK);
    }
    assert_int_equal(status, MILLRACE_FULL);
    assert_in_range(given, 10000 / (POOL_RIG_PACKET_MAX + 40), 10000 / POOL_RIG_PACKET_MAX);
    assert_non_null(strstr(error, "and its pool keeps 10000 of each"));
    assert_int_equal(
        millrace_data(rig.pool, rig.streams[1].id, stream->plain[0], POOL_RIG_PACKET_MAX, NULL, NULL),
        MILLRACE_OK);
    pool_rig_stop(&rig);
}

/* A lost stream that is refused asks again, by the pool's own clock: nothing else happens meanwhile. */
static void test_refused_for_a_while(void **state)
{
    static const struct chaos_options options[POOL_RIG_NODES] = {{.cut_bytes = 3000, .refuse_percent = 100}};
    const struct millrace_pool pool = {.attempts = 1, .patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 1, 0, 9, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    atomic_store(&rig.nodes[0].faults_left, 5);
    pool_rig_run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_true(rig.streams[0].gaps > 0);
    assert_true(atomic_load(&rig.nodes[0].opens) > rig.streams[0].gaps + 1);
    pool_rig_stop(&rig);
}

/* A node that is there and says nothing any more, not even PONG: as if its machine were gone. */
static void test_silent_node(void **state)
{
    static const struct chaos_options options[POOL_RIG_NODES] = {{.silent_after = 30}, {.silent_after = 30}};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 0, 1, &pool);
    pool_rig_open_one(&rig, POOL_PADDED, 1);
    while (rig.streams[0].gaps == 0) {
        pool_rig_send(&rig, &rig.streams[0]);
        pool_rig_turn(&rig);
    }
    assert_in_range(rig.streams[0].done, 30, 60);
    pool_stream_check(&rig.streams[0]);
    pool_rig_stop(&rig);
}

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

/* All are gone and stay so: streams end when the patience does, and requests are answered. */
static void test_nobody_comes_back(void **state)
{
    static const struct chaos_options options[POOL_RIG_NODES] = {{.cut_bytes = 2000}};
    const struct millrace_pool pool = {.patience_ms = 300};
    struct test_random random = {1};
    struct pool_rig rig;
    struct pool_stream other;
    (void)state;
    pool_rig_start(&rig, options, 1, 1, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    atomic_store(&rig.nodes[0].hangs_up, true);
    pool_rig_run_to_the_end(&rig);
    assert_true(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].end.refused, 0);
    assert_non_null(strstr(rig.streams[0].end.text, "no node can be reached: unix:"));
    pool_stream_make(&other, POOL_CHAIN, &random);
    assert_int_equal(millrace_send_open(rig.pool, &other.open, NULL, NULL), MILLRACE_OK);
    while (rig.refused == 0)
        pool_rig_turn(&rig);
    assert_int_equal(rig.asked, 0);
    pool_rig_stop(&rig);
}

/* A stream ends while its MODIFY is out: that is refused, once, whatever its node says of it. */
static void test_ended_during_a_change(void **state)
{
    static const struct chaos_options options = {.idle_at_modify = true};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    assert_int_equal(pool_rig_modify(&rig, &rig.streams[0]), MILLRACE_OK);
    while (rig.gone == 0)
        pool_rig_turn(&rig);
    assert_int_equal(rig.streams[0].end.reason, MILLRACE_CLOSE_IDLE);
    assert_non_null(strstr(rig.refusal, "the stream has ended"));
    pool_rig_ping(&rig);
    assert_int_equal(rig.gone, 1);
    pool_rig_stop(&rig);
}

/* The next node does not take the second key: the stream is ended, and what that node still says of it is for
 * nobody. */
static void test_second_key_refused(void **state)
{
    static const struct chaos_options options = {.cut_after = 40};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 1, 1, &pool);
    pool_rig_open_one(&rig, POOL_COUNTER, 1);
    assert_int_equal(pool_rig_rekey(&rig, &rig.streams[0], 100000), MILLRACE_OK);
    while (rig.rekeyed == 0)
        pool_rig_turn(&rig);
    atomic_store(&rig.nodes[0].refuses_keys, true);
    rig.streams[0].second_key = UINT64_MAX;
    pool_rig_run_to_the_end(&rig);
    assert_true(rig.streams[0].lost);
    assert_non_null(strstr(rig.streams[0].end.text, "the next node did not take its second key"));
    pool_rig_ping(&rig);
    assert_int_equal(atomic_load(&rig.nodes[0].closes), 1);
    pool_rig_stop(&rig);
}

static void use_the_other(struct pool_rig *rig)
{
    if (!rig->streams[0].closed || rig->streams[1].closed || rig->streams[1].sent == POOL_RIG_PACKETS)
        return;
    pool_rig_send(rig, &rig->streams[1]);
    assert_int_equal(pool_rig_modify(rig, &rig->streams[1]), MILLRACE_OK);
    assert_int_equal(millrace_flush(rig->pool, NULL), MILLRACE_OK);
    (void)millrace_events(rig->pool);
}

/* A node is lost, and with it a stream that can not go on: when that is told, another one of the node is used. */
static void test_used_while_a_node_is_lost(void **state)
{
    static const struct chaos_options options = {.cut_at_ping = true};
    static const enum pool_stream_kind kinds[2] = {POOL_MESSAGES_IN_A_CHAIN, POOL_COUNTER};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct test_random random = {1};
    struct millrace_opened opened = {.size = sizeof opened};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 1, 1, &pool);
    rig.streams = calloc(2, sizeof *rig.streams);
    rig.count = 2;
    for (unsigned i = 0; i < 2; i++) {
        pool_stream_make(&rig.streams[i], kinds[i], &random);
        rig.streams[i].open.crypt_blocks = rig.streams[i].open.skip_blocks =
            i == 0; /* a pattern can not go on */
        assert_int_equal(
            millrace_open_stream(rig.pool, &rig.streams[i].open, POOL_RIG_PATIENCE_MS, &opened, NULL, NULL),
            MILLRACE_OK);
        rig.streams[i].id = opened.stream;
    }
    rig.at_closed = use_the_other;
    pool_rig_ping(&rig);
    assert_true(rig.streams[0].lost);
    assert_non_null(strstr(rig.streams[0].end.text, "the chain of a pattern"));
    while (rig.busy == 0)
        pool_rig_turn(&rig);
    pool_rig_run_to_the_end(&rig);
    assert_false(rig.streams[1].lost);
    assert_int_equal(rig.streams[1].gaps, 1);
    pool_rig_stop(&rig);
}

static void open_and_send(struct pool_rig *rig)
{
    if (rig->pongs > 1)
        return;
    assert_int_equal(millrace_send_open(rig->pool, &rig->streams[2].open, NULL, NULL), MILLRACE_OK);
    assert_int_equal(millrace_data(rig->pool, rig->streams[1].id, rig->streams[1].plain[0], 16, NULL, NULL),
                     MILLRACE_OK);
}

/* OPEN, and a packet of a stream that ends in the same turn: it is no packet of the stream that is opened. */
static void test_a_packet_for_an_ended_stream(void **state)
{
    static const struct chaos_options options = {.idle_at_ping = true};
    static const enum pool_stream_kind kinds[2] = {POOL_CHAIN, POOL_CHAIN};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct test_random random = {1};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 1, 1, &pool);
    pool_rig_open(&rig, 2, kinds, &random);
    rig.streams = realloc(rig.streams, 3 * sizeof *rig.streams);
    pool_stream_make(&rig.streams[2], POOL_CHAIN, &random);
    rig.count = 3;
    rig.at_pong = open_and_send;
    pool_rig_ping(&rig);
    while (rig.opened < 3)
        pool_rig_turn(&rig);
    assert_int_equal(rig.streams[1].end.reason, MILLRACE_CLOSE_IDLE);
    assert_int_equal(rig.streams[1].done, 0);
    pool_rig_ping(&rig);
    assert_int_equal(rig.streams[2].done, 0);
    while (!rig.streams[0].closed || !rig.streams[2].closed) {
        pool_rig_send(&rig, &rig.streams[0]);
        pool_rig_send(&rig, &rig.streams[2]);
        pool_rig_turn(&rig);
    }
    pool_stream_check(&rig.streams[2]);
    assert_int_equal(rig.streams[2].done, POOL_RIG_PACKETS);
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

/* A node that leaves OPEN without an answer: another one is asked in time, and what it says at last is for nobody. */
static void test_no_answer_to_open(void **state)
{
    static const struct chaos_options options[2] = {{0}, {0}};
    static const enum pool_stream_kind kinds[4] = {POOL_CHAIN, POOL_CHAIN, POOL_CHAIN, POOL_CHAIN};
    const struct millrace_pool pool = {.patience_ms = 1000};
    struct pool_stream stream;
    struct test_random random = {1};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 0, 1, &pool);
    atomic_store(&rig.nodes[0].postpones, true);
    pool_rig_open(&rig, 4, kinds, &random);
    assert_int_equal(rig.refused, 0);
    assert_int_equal(rig.asked, 2); /* the first one was, at the first node */
    assert_int_equal(atomic_load(&rig.nodes[1].streams), 4);
    atomic_store(&rig.nodes[1].postpones, true);
    pool_stream_make(&stream, POOL_CHAIN, &random);
    assert_int_equal(millrace_send_query(rig.pool, &stream.open, NULL, NULL), MILLRACE_OK);
    while (rig.refused == 0)
        pool_rig_turn(&rig);
    assert_non_null(strstr(rig.refusal, "no node has answered"));
    atomic_store(&rig.nodes[0].postpones, false);
    atomic_store(&rig.nodes[1].postpones, false);
    pool_rig_run_to_the_end(&rig);
    while (atomic_load(&rig.nodes[0].streams) > 0)
        pool_rig_turn(&rig);
    pool_rig_stop(&rig);
}

/* Most connections are to a node that has as many streams as it may: that is found again by one request at a time,
 * not by all attempts of one. */
static void test_a_limit_at_most_connections(void **state)
{
    static const struct chaos_options options[2] = {{.limits = true}, {0}};
    static enum pool_stream_kind kinds[12]; /* chains */
    const struct millrace_pool pool = {.connections = 3, .patience_ms = POOL_RIG_PATIENCE_MS};
    struct test_random random = {1};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 0, 1, &pool);
    for (unsigned i = 0; i < 12; i++) {
        struct pool_stream *larger = realloc(rig.streams, (i + 1) * sizeof *larger);
        assert_non_null(larger);
        rig.streams = larger;
        pool_stream_make(&rig.streams[i], kinds[i], &random);
        rig.count = i + 1;
        const unsigned refused = rig.refused;
        assert_int_equal(millrace_send_open(rig.pool, &rig.streams[i].open, NULL, NULL), MILLRACE_OK);
        while (rig.opened <= i && rig.refused == refused)
            pool_rig_turn(&rig);
        if (rig.opened <= i)
            i--; /* refused: the first one only, before anybody knows */
        else if (i % 4 == 3)
            core_time_sleep_until(core_time_now_ns() + 1100 * CORE_NS_PER_MS); /* marks have an end */
    }
    assert_in_range(rig.refused, 0, 1);
    pool_rig_run_to_the_end(&rig);
    pool_rig_stop(&rig);
}

/* Who is refused, and asks again at once. */
static void ask_again(struct pool_rig *rig)
{
    assert_in_range(rig->busy, 0, 100000); /* within one turn it would have no end */
    assert_int_equal(pool_rig_modify(rig, &rig->streams[0]), MILLRACE_OK);
}

static void test_asked_again_at_once(void **state)
{
    static const struct chaos_options options = {0};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    rig.at_busy = ask_again;
    assert_int_equal(pool_rig_modify(&rig, &rig.streams[0]), MILLRACE_OK);
    assert_int_equal(pool_rig_modify(&rig, &rig.streams[0]), MILLRACE_OK);
    while (rig.modified < 2)
        pool_rig_turn(&rig);
    assert_true(rig.busy > 0);
    pool_rig_run_to_the_end(&rig);
    pool_rig_stop(&rig);
}

/* No packets ahead is one at a time, also where a gap is made up for. */
static void test_no_packets_ahead(void **state)
{
    static const struct chaos_options options = {.takes_none = true, .cut_after = 20};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 2, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    pool_rig_run_to_the_end(&rig);
    assert_true(rig.streams[0].gaps > 0);
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

/* Packets that crossed a gap, or waited for them, say whether they were in time by the time at which they were given,
 * not by the next node's word; others have that. Notices go on meanwhile. */
static void test_in_time_across_a_gap(void **state)
{
    static const struct chaos_options options = {.cut_after = 40, .notices = true};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        struct pool_rig rig;
        struct test_random random = {1};
        pool_rig_start(&rig, &options, 1, 1, 1, &pool);
        rig.streams = calloc(1, sizeof *rig.streams);
        rig.count = 1;
        pool_stream_make(&rig.streams[0], POOL_CHAIN, &random);
        rig.streams[0].open.latency_ns = late ? 1 : 100 * CORE_NS_PER_S;
        rig.streams[0].open.burst_packets = POOL_RIG_PACKETS; /* none is given ahead of its time */
        assert_int_equal(millrace_send_open(rig.pool, &rig.streams[0].open, NULL, NULL), MILLRACE_OK);
        while (rig.opened == 0)
            pool_rig_turn(&rig);
        while (rig.streams[0].done < POOL_RIG_PACKETS / 2) {
            pool_rig_send(&rig, &rig.streams[0]);
            pool_rig_turn(&rig);
        }
        while (rig.streams[0].done < rig.streams[0].sent) /* it catches up */
            pool_rig_turn(&rig);
        const unsigned crossed = rig.crossed;
        pool_rig_run_to_the_end(&rig);
        const struct millrace_closed *end = &rig.streams[0].end;
        assert_int_equal(rig.streams[0].gaps, 1);
        assert_true(crossed >= rig.streams[0].sent / 2 - 40 - POOL_RIG_AHEAD && rig.crossed == crossed);
        assert_int_equal(rig.crossed_met, late ? 0 : crossed);
        assert_int_equal(end->missed, late ? crossed : 0);
        assert_int_equal(end->met + end->missed, POOL_RIG_PACKETS);
        assert_true(late ? rig.late > 0 && rig.late <= crossed : rig.late == 0);
        assert_in_range(rig.notices, POOL_RIG_PACKETS - 2, POOL_RIG_PACKETS + POOL_RIG_AHEAD);
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
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_refused_everywhere),
        cmocka_unit_test(test_one_has_room),
        cmocka_unit_test(test_key_without_client_iv),
        cmocka_unit_test(test_message_too_long),
        cmocka_unit_test(test_kept_is_bounded),
        cmocka_unit_test(test_refused_for_a_while),
        cmocka_unit_test(test_silent_node),
        cmocka_unit_test(test_flapping_node),
        cmocka_unit_test(test_nobody_comes_back),
        cmocka_unit_test(test_ended_during_a_change),
        cmocka_unit_test(test_second_key_refused),
        cmocka_unit_test(test_used_while_a_node_is_lost),
        cmocka_unit_test(test_a_packet_for_an_ended_stream),
        cmocka_unit_test(test_newer_node),
        cmocka_unit_test(test_a_node_that_stays),
        cmocka_unit_test(test_a_node_that_grants_while_it_leaves),
        cmocka_unit_test(test_all_are_leaving),
        cmocka_unit_test(test_refused_by_the_only_one),
        cmocka_unit_test(test_no_answer_to_open),
        cmocka_unit_test(test_a_limit_at_most_connections),
        cmocka_unit_test(test_asked_again_at_once),
        cmocka_unit_test(test_no_packets_ahead),
        cmocka_unit_test(test_stays_without_room_elsewhere),
        cmocka_unit_test(test_in_time_across_a_gap),
        cmocka_unit_test(test_results_of_a_node_that_was_left),
        cmocka_unit_test(test_node_of_shorter_packets),
        cmocka_unit_test(test_served_while_another_one_ponders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
