/* What a pool is asked for, and nodes that refuse, answer nothing, or are gone: who is asked, how often, and what the
 * answer is. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_everywhere),  cmocka_unit_test(test_one_has_room),
        cmocka_unit_test(test_refused_for_a_while), cmocka_unit_test(test_nobody_comes_back),
        cmocka_unit_test(test_no_answer_to_open),   cmocka_unit_test(test_a_limit_at_most_connections),
        cmocka_unit_test(test_asked_again_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
