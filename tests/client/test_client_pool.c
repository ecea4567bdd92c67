/* A pool against nodes that refuse, stop, hang up and are cut in the middle of frames: whatever they do, what comes
 * out of each stream is what one server would have made of it, each packet once and in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_key_without_client_iv),
        cmocka_unit_test(test_message_too_long),
        cmocka_unit_test(test_kept_is_bounded),
        cmocka_unit_test(test_silent_node),
        cmocka_unit_test(test_ended_during_a_change),
        cmocka_unit_test(test_second_key_refused),
        cmocka_unit_test(test_used_while_a_node_is_lost),
        cmocka_unit_test(test_a_packet_for_an_ended_stream),
        cmocka_unit_test(test_no_packets_ahead),
        cmocka_unit_test(test_in_time_across_a_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
