/* The heap of waiting streams against a plain array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>

#include "server/stream/eligible_queue.h"
#include "tests/support/random.h"

#define WAITERS 300

static struct server_waiter waiters[WAITERS];
static bool inside[WAITERS];

static core_ns earliest_ns(void)
{
    core_ns earliest = CORE_NS_NEVER;
    for (size_t i = 0; i < WAITERS; i++)
        if (inside[i] && waiters[i].eligible_ns < earliest)
            earliest = waiters[i].eligible_ns;
    return earliest;
}

static void check(const struct server_eligible_queue *waiting, size_t count)
{
    struct server_waiter *first = server_eligible_queue_first(waiting);
    assert_int_equal(waiting->count, count);
    if (count == 0) {
        assert_null(first);
        return;
    }
    assert_true(inside[first - waiters]);
    assert_int_equal(first->eligible_ns, earliest_ns());
    for (size_t i = 0; i < WAITERS; i++)
        assert_int_equal(waiters[i].position != 0, inside[i]);
}

static void random_operations_against_an_array(void **state)
{
    struct server_eligible_queue waiting = {0};
    struct test_random random = {.state = 4};
    size_t count = 0;
    (void)state;

    for (size_t i = 0; i < WAITERS; i++) {
        waiters[i] = (struct server_waiter){0};
        inside[i] = false;
    }
    assert_int_equal(server_eligible_queue_reserve(&waiting, WAITERS), CORE_OK);
    for (int step = 0; step < 60000; step++) {
        size_t i = (size_t)test_random_in(&random, 0, WAITERS - 1);
        /* phases that fill it up, and phases that empty it */
        bool fill = test_random_chance(&random, step / 5000 % 2 == 0 ? 70 : 30);
        if (fill && !inside[i]) {
            server_eligible_queue_add(&waiting, &waiters[i], test_random_in(&random, 0, 200)); /* many ties */
            inside[i] = true;
            count++;
        } else if (!fill) {
            server_eligible_queue_remove(&waiting, &waiters[i]); /* fine if it is not inside */
            count -= inside[i] ? 1 : 0;
            inside[i] = false;
        }
        check(&waiting, count);
    }
    server_eligible_queue_free(&waiting);
}

static void the_first_comes_out_in_order(void **state)
{
    struct server_eligible_queue waiting = {0};
    struct test_random random = {.state = 5};
    core_ns previous_ns = 0;
    (void)state;

    assert_int_equal(server_eligible_queue_reserve(&waiting, WAITERS), CORE_OK);
    for (size_t i = 0; i < WAITERS; i++) {
        waiters[i] = (struct server_waiter){0};
        server_eligible_queue_add(&waiting, &waiters[i], test_random_in(&random, 0, INT64_MAX - 1));
    }
    for (size_t i = 0; i < WAITERS; i++) {
        struct server_waiter *first = server_eligible_queue_first(&waiting);
        assert_true(first->eligible_ns >= previous_ns);
        previous_ns = first->eligible_ns;
        server_eligible_queue_remove(&waiting, first);
    }
    assert_null(server_eligible_queue_first(&waiting));
    server_eligible_queue_free(&waiting);
}

static void reserve_keeps_entries(void **state)
{
    struct server_eligible_queue waiting = {0};
    (void)state;

    for (size_t i = 0; i < WAITERS; i++) {
        waiters[i] = (struct server_waiter){0};
        assert_int_equal(server_eligible_queue_reserve(&waiting, i + 1), CORE_OK);
        assert_true(waiting.capacity >= i + 1);
        server_eligible_queue_add(&waiting, &waiters[i], (core_ns)(WAITERS - i));
    }
    assert_ptr_equal(server_eligible_queue_first(&waiting), &waiters[WAITERS - 1]);
    assert_int_equal(waiting.count, WAITERS);
    assert_int_equal(server_eligible_queue_reserve(&waiting, 1), CORE_OK); /* never shrinks */
    assert_true(waiting.capacity >= WAITERS);
    server_eligible_queue_free(&waiting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_against_an_array),
        cmocka_unit_test(the_first_comes_out_in_order),
        cmocka_unit_test(reserve_keeps_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
