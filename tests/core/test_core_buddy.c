/* Random runs are taken and given back; a map of the places, one by one, says what is free. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "core/buddy.h"
#include "tests/support/random.h"

#define ORDERS 9
#define PLACES ((size_t)1 << ORDERS)
#define STEPS  200000

static bool taken[PLACES];

static bool is_free(size_t place, uint32_t order)
{
    for (size_t i = 0; i < (size_t)1 << order; i++)
        if (taken[place + i])
            return false;
    return true;
}

static bool any_is_free(uint32_t order)
{
    for (size_t place = 0; place < PLACES; place += (size_t)1 << order)
        if (is_free(place, order))
            return true;
    return false;
}

struct run {
    size_t place;
    uint32_t order;
};

static void mark(struct run run, bool value)
{
    memset(taken + run.place, value, (size_t)1 << run.order);
}

/* Returns whether there was one; there must be where there can be. */
static bool take(struct core_buddy *buddy, struct run *run)
{
    run->place = core_buddy_take(buddy, run->order);
    if (run->place == CORE_BUDDY_NONE) {
        assert_false(any_is_free(run->order));
        return false;
    }
    assert_true(run->place < PLACES && run->place % ((size_t)1 << run->order) == 0);
    assert_true(is_free(run->place, run->order));
    mark(*run, true);
    return true;
}

static void give(struct core_buddy *buddy, struct run run)
{
    core_buddy_give(buddy, run.place, run.order);
    mark(run, false);
}

static void runs_never_overlap_and_none_is_refused_that_is_there(void **state)
{
    static struct run runs[PLACES];
    struct test_random random = {5};
    struct core_buddy buddy;
    size_t count = 0, refused = 0;
    (void)state;

    assert_int_equal(core_buddy_init(&buddy, ORDERS), CORE_OK);
    for (int step = 0; step < STEPS; step++) {
        bool taking = test_random_in(&random, 0, 99) < (step / 1000 % 2 == 0 ? 60 : 40);
        if (taking) {
            runs[count].order = (uint32_t)test_random_in(&random, 0, test_random_in(&random, 0, ORDERS));
            bool there = take(&buddy, &runs[count]);
            count += there;
            refused += !there;
        } else if (count > 0) {
            size_t which = (size_t)test_random_in(&random, 0, (int64_t)count - 1);
            give(&buddy, runs[which]);
            runs[which] = runs[--count];
        }
    }
    assert_true(refused > STEPS / 100);
    while (count > 0)
        give(&buddy, runs[--count]);
    runs[0].order = ORDERS;
    assert_true(take(&buddy, &runs[0]));
    core_buddy_free(&buddy);
}

static void one_place_is_all_of_it(void **state)
{
    struct core_buddy buddy;
    (void)state;
    assert_int_equal(core_buddy_init(&buddy, 0), CORE_OK);
    assert_int_equal(core_buddy_take(&buddy, 1), CORE_BUDDY_NONE);
    assert_int_equal(core_buddy_take(&buddy, 0), 0);
    assert_int_equal(core_buddy_take(&buddy, 0), CORE_BUDDY_NONE);
    core_buddy_give(&buddy, 0, 0);
    assert_int_equal(core_buddy_take(&buddy, 0), 0);
    core_buddy_free(&buddy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_never_overlap_and_none_is_refused_that_is_there),
        cmocka_unit_test(one_place_is_all_of_it),
    };
    return cmocka_run_group_tests_name("core/buddy", tests, NULL, NULL);
}
