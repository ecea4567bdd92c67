/* Slots: that none is given out again while its key or its last batch may still matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>

#include "gpu/slots.h"
#include "tests/support/random.h"

static struct gpu_slots *create(uint32_t count)
{
    struct gpu_slots *slots = NULL;
    assert_int_equal(gpu_slots_create(&slots, count), CORE_OK);
    return slots;
}

static void expect_usage(const struct gpu_slots *slots, uint32_t in_use, uint32_t leaving,
                         uint32_t free_count)
{
    struct gpu_slots_usage usage = gpu_slots_usage(slots);
    assert_int_equal(usage.in_use, in_use);
    assert_int_equal(usage.leaving, leaving);
    assert_int_equal(usage.free, free_count);
}

static void gives_each_slot_once(void **state)
{
    struct gpu_slots *slots = create(3);
    uint32_t slot;
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_OK);
        assert_int_equal(slot, i);
    }
    assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_FULL);
    expect_usage(slots, 3, 0, 0);
    gpu_slots_destroy(slots);
}

/* One slot; each row is what happens and whether the slot is free then. */
static void is_free_when_cleared_and_delivered(void **state)
{
    enum event { LEAVE_AFTER, SUBMITTED, CLEARED, DELIVERED, WIPED, END };
    static const struct {
        struct {
            enum event event;
            uint64_t batch; /* SUBMITTED: 100 + batch where the slot is to be named */
        } steps[8];
        bool free[8];
    } rows[] = {
        {{{LEAVE_AFTER, 5},
          {SUBMITTED, 4},
          {SUBMITTED, 105},
          {SUBMITTED, 6},
          {CLEARED, 0},
          {DELIVERED, 4},
          {DELIVERED, 5},
          {END, 0}},
         {false, false, false, false, false, false, true}},
        {{{LEAVE_AFTER, 5}, {SUBMITTED, 105}, {DELIVERED, 7}, {CLEARED, 0}, {END, 0}},
         {false, false, false, true}},
        {{{LEAVE_AFTER, 0}, {SUBMITTED, 100}, {CLEARED, 0}, {END, 0}}, {false, false, true}},
        {{{DELIVERED, 9}, {LEAVE_AFTER, 8}, {SUBMITTED, 109}, {DELIVERED, 3}, {CLEARED, 0}, {END, 0}},
         {false, false, false, false, true}},
        {{{LEAVE_AFTER, 5}, {WIPED, 0}, {SUBMITTED, 9}, {DELIVERED, 5}, {END, 0}},
         {false, false, false, true}},
        {{{LEAVE_AFTER, 5}, {SUBMITTED, 105}, {DELIVERED, 5}, {WIPED, 0}, {END, 0}},
         {false, false, false, true}},
    };
    uint32_t slot, named;
    (void)state;
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        struct gpu_slots *slots = create(1);
        assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_OK);
        for (size_t i = 0; rows[row].steps[i].event != END; i++) {
            uint64_t batch = rows[row].steps[i].batch;
            switch (rows[row].steps[i].event) {
            case LEAVE_AFTER:
                assert_int_equal(gpu_slots_leave(slots, 0, batch), CORE_OK);
                break;
            case SUBMITTED:
                assert_int_equal(gpu_slots_clearable(slots, batch % 100, &named, 1), batch / 100);
                break;
            case CLEARED:
                assert_int_equal(gpu_slots_cleared(slots, 0), CORE_OK);
                break;
            case DELIVERED:
                gpu_slots_delivered(slots, batch);
                break;
            case WIPED:
                gpu_slots_wiped(slots);
                break;
            default:
                break;
            }
            assert_int_equal(gpu_slots_usage(slots).free, rows[row].free[i]);
        }
        assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_OK);
        gpu_slots_destroy(slots);
    }
}

static void refuses_what_does_not_fit_its_state(void **state)
{
    struct gpu_slots *slots = create(2);
    uint32_t slot, named[2];
    (void)state;
    assert_int_equal(gpu_slots_leave(slots, 0, 1), CORE_INVALID); /* free */
    assert_int_equal(gpu_slots_leave(slots, 2, 1), CORE_INVALID);
    assert_int_equal(gpu_slots_cleared(slots, 0), CORE_INVALID);
    assert_int_equal(gpu_slots_cleared(slots, 2), CORE_INVALID);
    assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_OK);
    assert_int_equal(gpu_slots_cleared(slots, slot), CORE_INVALID); /* in use */
    assert_int_equal(gpu_slots_leave(slots, slot, 1), CORE_OK);
    assert_int_equal(gpu_slots_leave(slots, slot, 1), CORE_INVALID);
    assert_int_equal(gpu_slots_cleared(slots, slot), CORE_INVALID); /* not sent */
    assert_int_equal(gpu_slots_clearable(slots, 1, named, 0), 0);
    assert_int_equal(gpu_slots_clearable(slots, 1, named, 2), 1);
    assert_int_equal(gpu_slots_cleared(slots, slot), CORE_OK);
    assert_int_equal(gpu_slots_cleared(slots, slot), CORE_INVALID);
    gpu_slots_wiped(slots); /* does not touch what is not leaving, but settles nothing undelivered either */
    expect_usage(slots, 0, 1, 1);
    gpu_slots_destroy(NULL);
    gpu_slots_destroy(slots);
}

static void gives_the_one_first_that_was_free_first(void **state)
{
    struct gpu_slots *slots = create(3);
    uint32_t slot, named[3];
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(gpu_slots_leave(slots, 2 - i, 0), CORE_OK);
    assert_int_equal(gpu_slots_clearable(slots, 0, named, 3), 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(gpu_slots_cleared(slots, (i + 1) % 3), CORE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_OK);
        assert_int_equal(slot, (i + 1) % 3);
    }
    gpu_slots_destroy(slots);
}

#define SLOTS 37

/* What a plain table says about each slot. */
struct shadow {
    bool used, left, sent, cleared;
    uint64_t last_batch;
};

static struct shadow *free_slot_of(struct shadow *table, uint64_t delivered, uint32_t slot)
{
    struct shadow *shadow = &table[slot];
    if (shadow->left && shadow->cleared && shadow->last_batch <= delivered)
        *shadow = (struct shadow){0};
    return shadow->used || shadow->left ? NULL : shadow;
}

static uint32_t free_slots_of(struct shadow *table, uint64_t delivered)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        count += free_slot_of(table, delivered, i) != NULL;
    return count;
}

/* Streams come and go at random; the table says after every step what must be so. */
static void agrees_with_a_plain_table(void **state)
{
    struct test_random random = {3};
    struct gpu_slots *slots = create(SLOTS);
    struct shadow table[SLOTS] = {0};
    uint64_t batch = 1, delivered = 0;
    uint32_t slot, named[5], reused = 0;
    (void)state;
    for (int step = 0; step < 60000; step++) {
        uint32_t chosen = (uint32_t)test_random_in(&random, 0, SLOTS - 1);
        struct shadow *shadow = &table[chosen];
        switch (test_random_in(&random, 0, 6)) {
        case 0:
        case 1:
            if (free_slots_of(table, delivered) == 0) {
                assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_FULL);
                break;
            }
            assert_int_equal(gpu_slots_allocate(slots, &slot), CORE_OK);
            assert_non_null(free_slot_of(table, delivered, slot));
            table[slot].used = true;
            reused++;
            break;
        case 2:
            if (!shadow->used)
                break;
            *shadow = (struct shadow){.left = true, .last_batch = batch - (uint64_t)(step % 2)};
            assert_int_equal(gpu_slots_leave(slots, chosen, shadow->last_batch), CORE_OK);
            break;
        case 3:
            for (uint32_t n = gpu_slots_clearable(slots, batch - 1, named, 5); n > 0; n--) {
                assert_true(table[named[n - 1]].left && !table[named[n - 1]].sent);
                assert_true(table[named[n - 1]].last_batch < batch);
                table[named[n - 1]].sent = true;
            }
            break;
        case 4:
            assert_int_equal(gpu_slots_cleared(slots, chosen),
                             shadow->sent && !shadow->cleared ? CORE_OK : CORE_INVALID);
            shadow->cleared = shadow->sent;
            break;
        case 5:
            batch++;
            break;
        default:
            delivered += delivered + 1 < batch;
            gpu_slots_delivered(slots, delivered);
            break;
        }
        assert_int_equal(gpu_slots_usage(slots).free, free_slots_of(table, delivered));
    }
    assert_true(reused > 10 * SLOTS);
    gpu_slots_destroy(slots);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_each_slot_once),
        cmocka_unit_test(is_free_when_cleared_and_delivered),
        cmocka_unit_test(refuses_what_does_not_fit_its_state),
        cmocka_unit_test(gives_the_one_first_that_was_free_first),
        cmocka_unit_test(agrees_with_a_plain_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
