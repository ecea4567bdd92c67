/* The deadline queue against a plain sorted list, over random operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/edf.h"

#define ENTRIES    512
#define HORIZON_NS (CPU_EDF_BUCKET_NS << 18)

/* What the header promises, spelled out: order by bucket, first in first out inside one; a key behind the
 * base counts as the base, which is the present or the earliest entry that still waits. */
struct reference {
    struct {
        struct cpu_edf_entry *entry;
        int64_t tick;
    } list[ENTRIES];
    uint32_t size;
    int64_t base_tick, now_tick;
};

static void reference_push(struct reference *reference, struct cpu_edf_entry *entry, core_ns key_ns,
                           core_ns now_ns)
{
    int64_t now_tick = now_ns / CPU_EDF_BUCKET_NS;
    if (now_tick > reference->now_tick) {
        reference->now_tick = now_tick;
        reference->base_tick = now_tick;
        if (reference->size > 0 && reference->list[0].tick < now_tick)
            reference->base_tick = reference->list[0].tick;
    }
    int64_t tick = key_ns / CPU_EDF_BUCKET_NS;
    tick = tick < reference->base_tick ? reference->base_tick : tick;
    uint32_t place = reference->size++;
    for (; place > 0 && reference->list[place - 1].tick > tick; place--)
        reference->list[place] = reference->list[place - 1];
    reference->list[place].entry = entry;
    reference->list[place].tick = tick;
}

static struct cpu_edf_entry *reference_pop(struct reference *reference)
{
    if (reference->size == 0)
        return NULL;
    struct cpu_edf_entry *first = reference->list[0].entry;
    memmove(&reference->list[0], &reference->list[1], --reference->size * sizeof reference->list[0]);
    return first;
}

static uint64_t draw(uint64_t *random)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *random >> 20;
}

static core_ns draw_key_ns(uint64_t *random, core_ns now_ns)
{
    switch (draw(random) % 8) {
    case 0: /* late */
        return now_ns - (core_ns)(draw(random) % (uint64_t)core_time_min(now_ns, HORIZON_NS));
    case 1: /* far beyond the horizon */
        return now_ns + HORIZON_NS + (core_ns)(draw(random) % (uint64_t)(4 * HORIZON_NS));
    case 2: /* at the horizon's edge */
        return now_ns + HORIZON_NS - 2 * CPU_EDF_BUCKET_NS + (core_ns)(draw(random) % (4 * 4096));
    case 3: /* crowded buckets */
        return now_ns + (core_ns)(draw(random) % (16 * 4096));
    default:
        return now_ns + (core_ns)(draw(random) % (uint64_t)HORIZON_NS);
    }
}

static core_ns draw_step_ns(uint64_t *random)
{
    switch (draw(random) % 64) {
    case 0: /* several turns of the wheel at once */
        return (core_ns)(draw(random) % (uint64_t)(3 * HORIZON_NS));
    case 1:
        return (core_ns)(draw(random) % (uint64_t)(HORIZON_NS / 8));
    default:
        return (core_ns)(draw(random) % 20000);
    }
}

static void check_first(const struct cpu_edf *queue, const struct reference *reference)
{
    assert_int_equal(cpu_edf_size(queue), reference->size);
    assert_true(cpu_edf_first_ns(queue) ==
                (reference->size == 0 ? CORE_NS_NEVER : reference->list[0].entry->key_ns));
}

static void run_random(uint64_t seed, uint32_t target_size)
{
    static struct cpu_edf_entry entries[ENTRIES];
    struct cpu_edf_entry *free_entries[ENTRIES];
    uint32_t free_count = 0;
    for (uint32_t i = 0; i < ENTRIES; i++)
        free_entries[free_count++] = &entries[i];
    struct reference reference = {0};
    struct cpu_edf *queue;
    assert_int_equal(cpu_edf_create(&queue, ENTRIES), CORE_OK);
    core_ns now_ns = 1 + (core_ns)(draw(&seed) % (uint64_t)(100 * HORIZON_NS));
    for (int step = 0; step < 40000; step++) {
        now_ns += draw_step_ns(&seed);
        if (free_count > 0 && (reference.size < target_size || draw(&seed) % 4 == 0)) {
            struct cpu_edf_entry *entry = free_entries[--free_count];
            core_ns key_ns = draw_key_ns(&seed, now_ns);
            cpu_edf_push(queue, entry, key_ns, now_ns);
            reference_push(&reference, entry, key_ns, now_ns);
            assert_true(entry->key_ns == key_ns);
        } else {
            struct cpu_edf_entry *popped[16];
            uint32_t wanted = 1 + (uint32_t)(draw(&seed) % 16);
            uint32_t count = cpu_edf_pop_many(queue, popped, wanted);
            assert_int_equal(count, wanted < reference.size ? wanted : reference.size);
            for (uint32_t i = 0; i < count; i++) {
                assert_ptr_equal(popped[i], reference_pop(&reference));
                free_entries[free_count++] = popped[i];
            }
        }
        check_first(queue, &reference);
    }
    cpu_edf_destroy(queue);
}

static void test_random(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {2, 20, 200, 500};
    for (uint64_t seed = 1; seed <= 12; seed++)
        run_random(seed, sizes[seed % 4]);
}

static void expect_first(struct cpu_edf *queue, const struct cpu_edf_entry *expected)
{
    struct cpu_edf_entry *popped;
    assert_int_equal(cpu_edf_pop_many(queue, &popped, 1), 1);
    assert_ptr_equal(popped, expected);
}

static void test_empty(void **state)
{
    (void)state;
    struct cpu_edf *queue;
    struct cpu_edf_entry *popped[2];
    assert_int_equal(cpu_edf_create(&queue, 0), CORE_OK);
    assert_int_equal(cpu_edf_pop_many(queue, popped, 2), 0);
    assert_int_equal(cpu_edf_size(queue), 0);
    assert_true(cpu_edf_first_ns(queue) == CORE_NS_NEVER);
    cpu_edf_destroy(queue);
    cpu_edf_destroy(NULL);
}

/* Growing the room for far keys keeps those that wait. */
static void test_reserve_keeps_far_entries(void **state)
{
    (void)state;
    struct cpu_edf *queue;
    struct cpu_edf_entry entries[64];
    assert_int_equal(cpu_edf_create(&queue, 1), CORE_OK);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(cpu_edf_reserve(queue, i + 1), CORE_OK);
        cpu_edf_push(queue, &entries[i], (100 - (core_ns)i) * HORIZON_NS, 1);
    }
    assert_int_equal(cpu_edf_reserve(queue, 1), CORE_OK); /* never shrinks */
    for (uint32_t i = 64; i > 0; i--)
        expect_first(queue, &entries[i - 1]);
    cpu_edf_destroy(queue);
}

/* An entry that nobody took while the wheel turned stays first, however late it gets. */
static void test_overdue_entry_stays_first(void **state)
{
    (void)state;
    struct cpu_edf *queue;
    struct cpu_edf_entry overdue, late, next;
    assert_int_equal(cpu_edf_create(&queue, 3), CORE_OK);
    cpu_edf_push(queue, &overdue, 5 * CPU_EDF_BUCKET_NS, 0);
    cpu_edf_push(queue, &next, 3 * HORIZON_NS + CPU_EDF_BUCKET_NS, 3 * HORIZON_NS);
    cpu_edf_push(queue, &late, 2 * HORIZON_NS, 3 * HORIZON_NS);
    expect_first(queue, &overdue);
    expect_first(queue, &late);
    expect_first(queue, &next);
    cpu_edf_destroy(queue);
}

static void test_never_is_a_key(void **state)
{
    (void)state;
    struct cpu_edf *queue;
    struct cpu_edf_entry never, soon;
    assert_int_equal(cpu_edf_create(&queue, 2), CORE_OK);
    cpu_edf_push(queue, &never, CORE_NS_NEVER, 0);
    cpu_edf_push(queue, &soon, 100, 0);
    expect_first(queue, &soon);
    assert_true(cpu_edf_first_ns(queue) == CORE_NS_NEVER);
    expect_first(queue, &never);
    cpu_edf_destroy(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_reserve_keeps_far_entries),
        cmocka_unit_test(test_overdue_entry_stays_first),
        cmocka_unit_test(test_never_is_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
