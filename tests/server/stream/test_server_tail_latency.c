/* The table of the worst packets: which stay, in which order, and what a reader sees while one is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>

#include "server/stream/tail_latency.h"
#include "tests/support/random.h"

/* A packet whose every field follows from its slack, so that a mixture of two is seen. */
static struct server_tail_latency_packet packet_of(core_ns slack_ns)
{
    struct server_tail_latency_packet packet = {.slack_ns = slack_ns,
                                                .at_ns = slack_ns + 1,
                                                .bound_ns = slack_ns + 2,
                                                .waited_ns = slack_ns + 3,
                                                .connection = (uint64_t)slack_ns + 4,
                                                .stream = (uint32_t)slack_ns + 5,
                                                .sequence = (uint32_t)slack_ns + 6,
                                                .unit = (uint32_t)slack_ns + 7,
                                                .diverted = (uint32_t)slack_ns & 1};
    for (int i = 0; i < SERVER_TAIL_LATENCY_STAGES; i++)
        packet.stage_ns[i] = slack_ns * (i + 2);
    return packet;
}

static void check_packet(const struct server_tail_latency_packet *packet)
{
    struct server_tail_latency_packet whole = packet_of(packet->slack_ns);
    assert_memory_equal(packet, &whole, sizeof whole);
}

static void offer(struct server_tail_latency *worst, core_ns slack_ns)
{
    struct server_tail_latency_packet packet = packet_of(slack_ns);
    if (server_tail_latency_wants(worst, slack_ns))
        server_tail_latency_enter(worst, &packet);
}

static void an_empty_table_has_none(void **state)
{
    struct server_tail_latency worst;
    struct server_tail_latency_packet list[SERVER_TAIL_LATENCY_PACKETS];
    (void)state;

    server_tail_latency_init(&worst);
    assert_true(server_tail_latency_wants(&worst, 100 * CORE_NS_PER_S));
    assert_int_equal(server_tail_latency_join(&worst, list, 0), 0);
    offer(&worst, 7);
    assert_int_equal(server_tail_latency_join(&worst, list, 0), 1);
    check_packet(&list[0]);
    assert_int_equal(list[0].slack_ns, 7);
}

static int by_value(const void *a, const void *b)
{
    core_ns left = *(const core_ns *)a, right = *(const core_ns *)b;
    return left < right ? -1 : left > right;
}

/* Against sorting all that was offered, to several tables. */
static void the_worst_of_all_tables_stay(void **state)
{
    enum { TABLES = 3, OFFERS = 400 };
    struct test_random random = {.state = 5};
    (void)state;

    for (int round = 0; round < 200; round++) {
        struct server_tail_latency tables[TABLES];
        struct server_tail_latency_packet list[SERVER_TAIL_LATENCY_PACKETS];
        core_ns offered[OFFERS];
        uint32_t offers = (uint32_t)test_random_in(&random, 0, OFFERS), count = 0;
        int64_t range = test_random_in(&random, 5, 100000); /* small: many are alike */

        for (int i = 0; i < TABLES; i++)
            server_tail_latency_init(&tables[i]);
        for (uint32_t i = 0; i < offers; i++) {
            offered[i] = test_random_in(&random, -range, range);
            offer(&tables[test_random_in(&random, 0, TABLES - 1)], offered[i]);
        }
        qsort(offered, offers, sizeof offered[0], by_value);
        for (int i = 0; i < TABLES; i++)
            count = server_tail_latency_join(&tables[i], list, count);
        assert_int_equal(count, offers < SERVER_TAIL_LATENCY_PACKETS ? offers : SERVER_TAIL_LATENCY_PACKETS);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(list[i].slack_ns, offered[i]);
            check_packet(&list[i]);
        }
    }
}

struct race {
    struct server_tail_latency worst;
    _Atomic int ended;
};

static void *write_ever_worse(void *argument)
{
    struct race *race = argument;
    for (core_ns slack_ns = 200000; slack_ns > -200000; slack_ns--)
        offer(&race->worst, slack_ns);
    atomic_store(&race->ended, 1);
    return NULL;
}

/* Every packet that is read is whole, and none is better than what was there when the reader came. */
static void a_reader_sees_whole_packets(void **state)
{
    static struct race race;
    struct server_tail_latency_packet list[SERVER_TAIL_LATENCY_PACKETS];
    core_ns least_ns = CORE_NS_NEVER;
    pthread_t writer;
    int ended = 0;
    (void)state;

    server_tail_latency_init(&race.worst);
    assert_int_equal(pthread_create(&writer, NULL, write_ever_worse, &race), 0);
    while (!ended) {
        ended = atomic_load(&race.ended);
        uint32_t count = server_tail_latency_join(&race.worst, list, 0);
        for (uint32_t i = 0; i < count; i++) {
            check_packet(&list[i]);
            assert_true(i == 0 || list[i - 1].slack_ns <= list[i].slack_ns);
        }
        if (count == SERVER_TAIL_LATENCY_PACKETS) {
            assert_true(list[0].slack_ns <= least_ns);
            least_ns = list[0].slack_ns;
        }
    }
    pthread_join(writer, NULL);
    assert_int_equal(server_tail_latency_join(&race.worst, list, 0), SERVER_TAIL_LATENCY_PACKETS);
    for (int i = 0; i < SERVER_TAIL_LATENCY_PACKETS; i++)
        assert_int_equal(list[i].slack_ns, -199999 + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_table_has_none),
        cmocka_unit_test(the_worst_of_all_tables_stay),
        cmocka_unit_test(a_reader_sees_whole_packets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
