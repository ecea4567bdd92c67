/* A pool whose nodes answer wrongly or not at all, which has no memory, names that are found late, and arguments that can
 * not be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/millrace.h"
#include "core/address.h"
#include "tests/support/allocator.h"
#include "tests/support/pool_rig.h"

/* What a node says in place of an answer breaks the protocol: it is lost, and others are asked. */
static void test_an_answer_that_breaks_the_protocol(void **state)
{
    static const struct chaos_options options = {.opens_nothing = true};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 1, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    pool_rig_send(&rig, &rig.streams[0]);
    pool_rig_ping(&rig);
    atomic_store(&rig.nodes[0].faults_left, 2); /* one for the cut, one for the answer behind it */
    rig.nodes[0].options.cut_at_ping = true;
    pool_rig_ping(&rig);
    pool_rig_run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].gaps, 1);
    assert_true(atomic_load(&rig.nodes[0].faults_left) <= 0);
    pool_rig_stop(&rig);
}

/* Who was asked is gone without an answer, and nobody else is to be asked: that is a refusal as others are. */
static void test_gone_without_an_answer(void **state)
{
    static const struct chaos_options options[2] = {{.opens_nothing = true}, {.opens_nothing = true}};
    const struct millrace_pool pool = {.attempts = 1, .patience_ms = POOL_RIG_PATIENCE_MS};
    struct test_random random = {1};
    struct pool_stream stream;
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 1, 1, &pool);
    pool_stream_make(&stream, POOL_CHAIN, &random);
    assert_int_equal(millrace_send_open(rig.pool, &stream.open, NULL, NULL), MILLRACE_OK);
    while (rig.refused == 0)
        pool_rig_turn(&rig);
    assert_int_equal(rig.asked, 1);
    assert_non_null(strstr(rig.refusal, "no node has answered: unix:"));
    pool_rig_stop(&rig);
}

/* The next node stops between OPENED and the answer to the second key: the stream goes on at the one behind it. */
static void test_stopping_before_the_second_key(void **state)
{
    static const struct chaos_options options = {.cut_after = 40};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    pool_rig_open_one(&rig, POOL_COUNTER, 1);
    assert_int_equal(pool_rig_rekey(&rig, &rig.streams[0], rig.streams[0].open.first_unit + 30), MILLRACE_OK);
    while (rig.rekeyed == 0)
        pool_rig_turn(&rig);
    rig.nodes[0].options.drains_at_rekey = true;
    atomic_store(&rig.nodes[0].faults_left, 2);
    pool_rig_run_to_the_end(&rig);
    assert_true(atomic_load(&rig.nodes[0].faults_left) <= 0);
    assert_false(rig.streams[0].lost);
    pool_rig_stop(&rig);
}

/* A stream waits for the node behind one that is leaving, and is served, when its node is lost in a message that can
 * not begin anew: it could be moved when that was asked for, and now it can not. */
static void test_lost_while_it_waits_to_move(void **state)
{
    static const struct chaos_options options[2] = {{.opens_nothing = true, .cut_at_ping = true},
                                                    {.opens_nothing = true, .cut_at_ping = true}};
    const struct millrace_pool pool = {.kept_bytes_max = 4000, .patience_ms = POOL_RIG_PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, options, 2, 0, 1, &pool);
    pool_rig_open_one(&rig, POOL_COUNTER, 1);
    struct pool_stream *stream = &rig.streams[0];
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    struct chaos_node *here = &rig.nodes[node.streams == 1 ? 0 : 1],
                      *next = &rig.nodes[node.streams == 1 ? 1 : 0];
    atomic_store(&next->ponders, true);
    atomic_store(&here->leaves, true);
    while (atomic_load(&next->opens) == 0)
        pool_rig_turn(&rig);
    atomic_store(&next->hangs_up, true);
    atomic_store(&next->faults_left, 1);
    atomic_store(&next->ponders, false);
    do
        pool_rig_turn(&rig);
    while (millrace_pool_node(rig.pool, (unsigned)(next - rig.nodes), &node, NULL) == MILLRACE_OK &&
           node.losses == 0);
    for (uint32_t i = 0; i < POOL_RIG_PACKETS; i++) {
        stream->flags[i] = i == 0 ? MILLRACE_DATA_FIRST : 0;
        stream->lengths[i] = POOL_RIG_PACKET_MAX;
    }
    while (stream->done < POOL_RIG_PACKETS / 2) {
        while (stream->sent < POOL_RIG_PACKETS / 2 && stream->sent < stream->done + 4) {
            assert_int_equal(millrace_data_part(rig.pool, stream->id, stream->plain[stream->sent],
                                                POOL_RIG_PACKET_MAX, stream->flags[stream->sent], NULL, NULL),
                             MILLRACE_OK);
            stream->sent++;
        }
        pool_rig_turn(&rig);
    }
    atomic_store(&here->faults_left, 1);
    assert_int_equal(millrace_send_ping(rig.pool, NULL, 0, NULL, NULL), MILLRACE_OK);
    atomic_store(&next->hangs_up, false);
    while (!stream->closed && stream->gaps == 0)
        pool_rig_turn(&rig);
    assert_true(stream->lost);
    assert_non_null(strstr(stream->end.text, "its message is longer than what is kept"));
    pool_stream_check(stream);
    pool_rig_stop(&rig);
}

/* Closed while it has no node, with nothing to come: that is the end, and nobody is asked or waited for. */
static void test_closed_without_a_node(void **state)
{
    static const struct chaos_options options = {.cut_at_ping = true};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 1, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    struct pool_stream *stream = &rig.streams[0];
    pool_rig_send(&rig, stream);
    while (stream->done < stream->sent)
        pool_rig_turn(&rig);
    atomic_store(&rig.nodes[0].hangs_up, true);
    assert_int_equal(millrace_send_ping(rig.pool, NULL, 0, NULL, NULL), MILLRACE_OK);
    do
        pool_rig_turn(&rig);
    while (millrace_pool_node(rig.pool, 0, &node, NULL) == MILLRACE_OK && node.losses == 0);
    assert_int_equal(millrace_send_close(rig.pool, stream->id, NULL), MILLRACE_OK);
    while (!stream->closed)
        pool_rig_turn(&rig);
    assert_int_equal(stream->end.reason, MILLRACE_CLOSE_ASKED);
    assert_int_equal(stream->end.packets, POOL_RIG_AHEAD);
    pool_rig_stop(&rig);
}

/* A call that waits for room finds what has come while nobody read: nothing more is to come. */
static void test_room_that_is_there(void **state)
{
    static const struct chaos_options options = {0};
    const struct millrace_pool pool = {.kept_bytes_max = 4000};
    struct millrace_result result = {.size = sizeof result};
    struct pool_rig rig;
    uint8_t cipher[POOL_RIG_PACKET_MAX + 16];
    uint32_t bytes;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    struct pool_stream *stream = &rig.streams[0];
    while (millrace_data(rig.pool, stream->id, stream->plain[stream->sent],
                         stream->lengths[stream->sent] = POOL_RIG_PACKET_MAX, NULL, NULL) == MILLRACE_OK)
        stream->sent++;
    assert_int_equal(millrace_flush(rig.pool, NULL), MILLRACE_OK);
    poll(NULL, 0,
         300); /* if that is too short for the node, there is nothing to find, and the test says nothing */
    assert_int_equal(millrace_encrypt(rig.pool, stream->id, stream->plain[stream->sent], POOL_RIG_PACKET_MAX,
                                      1000, cipher, &bytes, &result, NULL),
                     MILLRACE_OK);
    assert_int_equal(stream->done, stream->sent);
    pool_rig_stop(&rig);
}

/* A child that has the descriptors keeps the kernel from forgetting those of a lost node: they are not watched. */
static void test_lost_with_a_child(void **state)
{
    static const struct chaos_options options = {.cut_at_ping = true};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 1, 1, &pool);
    pool_rig_open_one(&rig, POOL_CHAIN, 1);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            pause();
    pool_rig_ping(&rig);
    int rounds = 0, ready;
    do {
        struct pollfd quiet = {.fd = millrace_descriptor(rig.pool), .events = millrace_events(rig.pool)};
        ready = poll(&quiet, 1, 20);
        assert_int_equal(millrace_process(rig.pool, 0, NULL), MILLRACE_OK);
    } while (ready > 0 && ++rounds < 1000);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ready, 0);
    pool_rig_stop(&rig);
}

/* ---- want of memory ---- */

static _Thread_local int fails_in; /* the allocation of this thread that fails, counted from 1; 0: none */

static bool fails(void)
{
    return fails_in > 0 && --fails_in == 0;
}

/* Any one allocation fails, in calls or in turns, while a stream is opened, changed, and loses its node: a call says
 * so, and is called again; the stream goes on. */
static bool run_without(int allocation)
{
    static const struct chaos_options options[2] = {{.cut_after = 30}, {.cut_after = 30}};
    const struct millrace_pool pool = {.patience_ms = POOL_RIG_PATIENCE_MS};
    struct test_random random = {1};
    struct pool_rig rig;
    millrace_status status;
    pool_rig_start(&rig, options, 2, 2, 1, &pool);
    rig.streams = calloc(1, sizeof *rig.streams);
    rig.count = 1;
    struct pool_stream *stream = &rig.streams[0];
    pool_stream_make(stream, POOL_COUNTER, &random);
    fails_in = allocation;
    do
        status = millrace_send_open(rig.pool, &stream->open, NULL, NULL);
    while (status == MILLRACE_NO_MEMORY);
    assert_int_equal(status, MILLRACE_OK);
    while (rig.opened == 0)
        pool_rig_turn(&rig);
    do
        status = pool_rig_rekey(&rig, stream, stream->open.first_unit + 20);
    while (status == MILLRACE_NO_MEMORY);
    assert_int_equal(status, MILLRACE_OK);
    while (rig.rekeyed + rig.busy == 0)
        pool_rig_turn(&rig);
    while (!stream->closed) {
        for (unsigned i = 0; i < POOL_RIG_AHEAD && stream->sent < POOL_RIG_PACKETS; i++) {
            const uint32_t n = stream->sent;
            status = millrace_data_part(rig.pool, stream->id, stream->plain[n], stream->lengths[n],
                                        stream->flags[n], NULL, NULL);
            if (status == MILLRACE_OK)
                stream->sent++;
            else
                assert_int_equal(status, MILLRACE_NO_MEMORY);
            if (stream->sent == POOL_RIG_PACKETS)
                assert_int_equal(millrace_send_close(rig.pool, stream->id, NULL), MILLRACE_OK);
        }
        pool_rig_turn(&rig);
    }
    const bool has_failed = fails_in == 0;
    fails_in = 0;
    pool_rig_check(&rig);
    if (stream->lost)
        fail_msg("without allocation %d: %s", allocation, stream->end.text);
    pool_rig_stop(&rig);
    return has_failed;
}

static void test_without_memory(void **state)
{
    int allocation = 1;
    (void)state;
    while (run_without(allocation))
        allocation++;
    print_message("%d allocations\n", allocation - 1);
    assert_true(allocation > 10);
}

/* What other streams have buffered is not what this one keeps. */
static void test_full_by_its_own_bytes(void **state)
{
    static const struct chaos_options options = {0};
    static const enum pool_stream_kind kinds[2] = {POOL_CHAIN, POOL_CHAIN};
    const struct millrace_pool pool = {.kept_bytes_max = 10000};
    struct test_random random = {1};
    struct pool_rig rig;
    (void)state;
    pool_rig_start(&rig, &options, 1, 0, 1, &pool);
    pool_rig_open(&rig, 2, kinds, &random);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned n = 0; n < 20; n++, rig.streams[i].sent++)
            assert_int_equal(millrace_data(rig.pool, rig.streams[i].id, rig.streams[i].plain[n],
                                           rig.streams[i].lengths[n] = POOL_RIG_PACKET_MAX, NULL, NULL),
                             MILLRACE_OK);
    pool_rig_run_to_the_end(&rig);
    pool_rig_stop(&rig);
}

/* A PING that no node answers is refused: where none is there, and where the one that is says nothing. */
static void test_ping_without_an_answer(void **state)
{
    static const struct chaos_options options[2] = {{0}, {.stuck_at_ping = true}};
    static const char *const words[2] = {"no node can be reached: unix:", "no node has answered: "};
    const struct millrace_pool pool = {.patience_ms = 300};
    struct millrace_node node = {.size = sizeof node};
    char error[MILLRACE_TEXT_BYTES];
    int64_t round_trip_ns;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct pool_rig rig;
        pool_rig_start(&rig, &options[i], 1, 1, 1, &pool);
        atomic_store(&rig.nodes[0].hangs_up, true);
        if (i == 0) {
            atomic_store(&rig.nodes[0].leaves, true); /* and so its connection is ended */
            do
                pool_rig_turn(&rig);
            while (millrace_pool_node(rig.pool, 0, &node, NULL) == MILLRACE_OK &&
                   node.state != MILLRACE_NODE_DOWN);
        }
        assert_int_equal(millrace_send_ping(rig.pool, NULL, 0, NULL, NULL), MILLRACE_OK);
        while (rig.refused == 0)
            pool_rig_turn(&rig);
        assert_non_null(strstr(rig.refusal, words[i]));
        assert_int_equal(millrace_ping(rig.pool, POOL_RIG_PATIENCE_MS, &round_trip_ns, error),
                         MILLRACE_REFUSED);
        assert_non_null(strstr(error, words[i]));
        pool_rig_stop(&rig);
    }
}

static void on_alarm(int number)
{
    (void)number;
}

/* Signals do not end the wait for the first node. */
static void test_signals_while_connecting(void **state)
{
    const struct sigaction act = {.sa_handler = on_alarm}; /* without SA_RESTART */
    const struct itimerval often = {{0, 5000}, {0, 5000}}, never = {0};
    struct sigaction before;
    struct core_address address;
    struct millrace_pool pool = {.size = sizeof pool};
    struct millrace *connection;
    char text[64], error[MILLRACE_TEXT_BYTES];
    int listener;
    (void)state;
    snprintf(text, sizeof text, "unix:@millrace-silent-%d", (int)getpid());
    pool.addresses = text;
    assert_int_equal(core_address_parse(text, &address, NULL), CORE_OK);
    assert_int_equal(core_address_listen(&address, 0, &listener, NULL, NULL), CORE_OK);
    assert_int_equal(sigaction(SIGALRM, &act, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(millrace_pool_connect(&pool, NULL, 200, &connection, error), MILLRACE_TIMEOUT);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_string_equal(error, "no node of the pool answered in time");
    close(listener);
}

/* ---- a name that is looked up for long ---- */

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
int __real_timerfd_settime(int timer, int flags, const struct itimerspec *when, struct itimerspec *before);
int __wrap_timerfd_settime(int timer, int flags, const struct itimerspec *when, struct itimerspec *before);

static atomic_uint turns; /* of all pools: each sets its timer */

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    if (host == NULL || strcmp(host, "slow.test") != 0)
        return __real_getaddrinfo(host, port, hints, found);
    poll(NULL, 0, 1500); /* longer than an attempt may take */
    return EAI_FAIL;
}

int __wrap_timerfd_settime(int timer, int flags, const struct itimerspec *when, struct itimerspec *before)
{
    atomic_fetch_add(&turns, 1);
    return __real_timerfd_settime(timer, flags, when, before);
}

/* The time for the first attempts is over, and one of them is not: that is waited for, and nothing is done meanwhile. */
static void test_slow_name(void **state)
{
    const struct millrace_pool pool = {.size = sizeof pool, .addresses = "tcp:slow.test:1,unix:/none"};
    struct millrace *connection;
    (void)state;
    const unsigned before = atomic_load(&turns);
    assert_int_not_equal(millrace_pool_connect(&pool, NULL, POOL_RIG_PATIENCE_MS, &connection, NULL),
                         MILLRACE_OK);
    assert_in_range(atomic_load(&turns) - before, 1, 20);
}

/* A path may have commas; a server inside the process is no node. */
static void test_addresses(void **state)
{
    struct millrace *pool;
    char error[MILLRACE_TEXT_BYTES];
    const struct millrace_pool embedded = {.size = sizeof embedded,
                                           .addresses = "unix:/none,embedded:/a.yaml"};
    const struct millrace_pool comma = {.size = sizeof comma, .addresses = "unix:/none/a,b,unix:/none/c"};
    (void)state;
    assert_int_equal(millrace_pool_connect(&embedded, NULL, 1000, &pool, error), MILLRACE_UNSUPPORTED);
    assert_non_null(
        strstr(error, "embedded:/a.yaml: the server inside this process can not be a node of a pool"));
    assert_int_not_equal(millrace_pool_connect(&comma, NULL, 1000, &pool, error), MILLRACE_OK);
    assert_non_null(strstr(error, "unix:/none/a,b"));
    assert_int_not_equal(millrace_connect("embedded:/none/a,unix:b", NULL, 1000, &pool, error), MILLRACE_OK);
    assert_null(strstr(error, "pool"));
}

static void test_arguments(void **state)
{
    static const struct millrace_pool bad[] = {
        {.size = sizeof bad[0]},
        {.size = 1, .addresses = "unix:/none"},
        {.size = sizeof bad[0], .addresses = "unix:/none", .connections = 65},
        {.size = sizeof bad[0], .addresses = ","},
        {.size = sizeof bad[0], .addresses = "unix:/none", .kept_bytes_max = 5u << 20},
        {.size = sizeof bad[0], .addresses = "unix:/none,tcp:nonsense", .connections = 33}};
    const struct millrace_pool gone = {.size = sizeof gone, .addresses = "unix:/none/1,unix:/none/2"};
    struct millrace_node node = {.size = sizeof node};
    struct millrace *pool;
    struct chaos_node plain;
    char error[MILLRACE_TEXT_BYTES], several[256];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(millrace_pool_connect(&bad[i], NULL, 1000, &pool, error), MILLRACE_INVALID);
    assert_int_not_equal(millrace_pool_connect(&gone, NULL, 1000, &pool, error), MILLRACE_OK);
    assert_non_null(strstr(error, "unix:/none/1"));
    chaos_node_start(&plain, &(struct chaos_options){0}, 0, 1);
    assert_int_equal(millrace_connect(plain.address, NULL, POOL_RIG_PATIENCE_MS, &pool, NULL), MILLRACE_OK);
    assert_int_equal(millrace_pool_node(pool, 0, &node, NULL), MILLRACE_NOT_FOUND);
    millrace_disconnect(pool);
    snprintf(several, sizeof several, "%s,unix:/none/2", plain.address);
    assert_int_equal(millrace_connect(several, NULL, POOL_RIG_PATIENCE_MS, &pool, NULL), MILLRACE_OK);
    assert_int_equal(millrace_pool_node(pool, 0, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_UP);
    millrace_disconnect(pool);
    chaos_node_stop(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_that_breaks_the_protocol),
        cmocka_unit_test(test_gone_without_an_answer),
        cmocka_unit_test(test_stopping_before_the_second_key),
        cmocka_unit_test(test_lost_while_it_waits_to_move),
        cmocka_unit_test(test_closed_without_a_node),
        cmocka_unit_test(test_room_that_is_there),
        cmocka_unit_test(test_lost_with_a_child),
        cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_full_by_its_own_bytes),
        cmocka_unit_test(test_ping_without_an_answer),
        cmocka_unit_test(test_signals_while_connecting),
        cmocka_unit_test(test_slow_name),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_arguments),
    };
    test_allocator_fails = fails;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
