#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/log_ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRODUCERS 4
#define ENTRIES   50000 /* that each producer tries to hand over */

static struct core_log_ring ring;

static int make_empty(void **state)
{
    (void)state;
    core_log_ring_init(&ring);
    return 0;
}

static void put(uint64_t number)
{
    struct core_log_entry *entry = core_log_ring_claim(&ring);
    assert_non_null(entry);
    entry->connection = number;
    core_log_ring_publish(entry);
}

static void expect(uint64_t number)
{
    const struct core_log_entry *entry = core_log_ring_peek(&ring);
    assert_non_null(entry);
    assert_int_equal(entry->connection, number);
    core_log_ring_release(&ring);
}

/* In several rounds, so that cells are used again. */
static void a_full_ring_has_no_cell_until_one_is_released(void **state)
{
    uint64_t in = 0, out = 0;
    (void)state;
    for (int round = 0; round < 3; round++) {
        while (in - out < CORE_LOG_RING_CELLS)
            put(in++);
        assert_null(core_log_ring_claim(&ring));
        assert_null(core_log_ring_claim(&ring));
        expect(out++);
        put(in++);
        assert_null(core_log_ring_claim(&ring));
        while (out < in)
            expect(out++);
        assert_null(core_log_ring_peek(&ring));
    }
}

static void what_is_not_published_is_not_seen_and_keeps_its_place(void **state)
{
    (void)state;
    struct core_log_entry *first = core_log_ring_claim(&ring);
    assert_non_null(first);
    put(2);
    assert_null(core_log_ring_peek(&ring));
    first->connection = 1;
    core_log_ring_publish(first);
    expect(1);
    expect(2);
    assert_null(core_log_ring_peek(&ring));
}

struct producer {
    uint32_t number;
    uint32_t refused; /* claims that found no cell */
};

/* Each entry says thrice which it is, so that one that was mixed of two is seen. */
static void *produce(void *argument)
{
    struct producer *producer = argument;
    for (uint32_t i = 1; i <= ENTRIES; i++) {
        struct core_log_entry *entry = core_log_ring_claim(&ring);
        if (entry == NULL) {
            producer->refused++;
            sched_yield();
            continue;
        }
        entry->stream = producer->number;
        entry->connection = i;
        snprintf(entry->message, sizeof entry->message, "%u %u", producer->number, i);
        core_log_ring_publish(entry);
    }
    return NULL;
}

static void threads_lose_nothing_that_had_a_cell_and_keep_their_order(void **state)
{
    struct producer producers[PRODUCERS] = {{0}};
    pthread_t threads[PRODUCERS];
    uint64_t last[PRODUCERS] = {0}, taken = 0, refused = 0;
    (void)state;
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producers[i].number = i;
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    for (uint32_t running = PRODUCERS; running > 0 || core_log_ring_peek(&ring) != NULL;) {
        char expected[32];
        const struct core_log_entry *entry = core_log_ring_peek(&ring);
        if (entry == NULL) {
            if (pthread_tryjoin_np(threads[PRODUCERS - running], NULL) == 0)
                running--;
            continue;
        }
        assert_in_range(entry->stream, 0, PRODUCERS - 1);
        assert_true(entry->connection > last[entry->stream]);
        last[entry->stream] = entry->connection;
        snprintf(expected, sizeof expected, "%u %u", entry->stream, (unsigned)entry->connection);
        assert_string_equal(entry->message, expected);
        core_log_ring_release(&ring);
        taken++;
    }
    for (uint32_t i = 0; i < PRODUCERS; i++)
        refused += producers[i].refused;
    assert_int_equal(taken + refused, (uint64_t)PRODUCERS * ENTRIES);
    assert_true(taken >= CORE_LOG_RING_CELLS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_full_ring_has_no_cell_until_one_is_released, make_empty),
        cmocka_unit_test_setup(what_is_not_published_is_not_seen_and_keeps_its_place, make_empty),
        cmocka_unit_test_setup(threads_lose_nothing_that_had_a_cell_and_keep_their_order, make_empty),
    };
    return cmocka_run_group_tests_name("core/log_ring", tests, NULL, NULL);
}
