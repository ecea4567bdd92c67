/* Stalls of a thread: why one was, from worked figures; what is kept, settled and read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/stalls.h"

#define MS CORE_NS_PER_MS

static void why_a_stall_was(void **state)
{
    static const struct {
        core_ns length_ns, cpu_ns;
        int64_t faults;
        enum core_stall_why why;
    } rows[] = {
        {45 * MS, 0, 0, CORE_STALL_OFF_CORE},
        {45 * MS, 22 * MS, 0, CORE_STALL_OFF_CORE},
        {45 * MS, 23 * MS, 0, CORE_STALL_AT_WORK},
        {45 * MS, 46 * MS, 0, CORE_STALL_AT_WORK}, /* work before it counts, too */
        {MS, MS, 0, CORE_STALL_AT_WORK},
        {45 * MS, MS, 3, CORE_STALL_PAGE_FAULT},
        {45 * MS, 45 * MS, 3, CORE_STALL_AT_WORK}, /* they did not take long */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(core_stall_why(rows[i].length_ns, rows[i].cpu_ns, rows[i].faults), rows[i].why);
}

static uint32_t with_end(const struct core_stalls *stalls, core_ns since_ns, core_ns to_ns)
{
    struct core_stall list[CORE_STALLS];
    uint32_t found = 0, count = core_stalls_read(stalls, since_ns, list);
    for (uint32_t i = 0; i < count; i++)
        found += list[i].to_ns == to_ns ? 1 : 0;
    return found;
}

static void the_last_ones_are_kept_until_they_are_settled(void **state)
{
    static struct core_stalls stalls;
    struct core_stall list[CORE_STALLS];
    (void)state;

    assert_int_equal(core_stalls_read(&stalls, 0, list), 0);
    core_stalls_settle(&stalls, MS);
    core_stalls_add(&stalls, MS, 3 * MS);
    assert_int_equal(with_end(&stalls, 100 * MS, 3 * MS), 1); /* its harm goes on */
    core_stalls_settle(&stalls, 5 * MS);
    assert_int_equal(with_end(&stalls, 5 * MS - 1, 3 * MS), 1);
    assert_int_equal(with_end(&stalls, 5 * MS, 3 * MS), 0);
    for (int i = 0; i < 3 * CORE_STALLS; i++)
        core_stalls_add(&stalls, (10 + 2 * i) * MS, (11 + 2 * i) * MS);
    assert_int_equal(core_stalls_read(&stalls, 0, list), CORE_STALLS);
    assert_int_equal(with_end(&stalls, 0, (11 + 2 * (2 * CORE_STALLS - 1)) * MS), 0);
    assert_int_equal(with_end(&stalls, 0, (11 + 2 * (2 * CORE_STALLS)) * MS), 1);
    core_stalls_settle(&stalls, 900 * MS);
    assert_int_equal(core_stalls_read(&stalls, 900 * MS, list), 0);
    assert_int_equal(core_stalls_read(&stalls, 899 * MS, list), CORE_STALLS);
}

/* Told twice, since it was asked for before its end: one stall, as long as it was in the end. */
static void a_stall_that_goes_on_is_one(void **state)
{
    static struct core_stalls stalls;
    struct core_stall list[CORE_STALLS];
    (void)state;

    core_stalls_add(&stalls, MS, 3 * MS);
    core_stalls_add(&stalls, MS, 7 * MS);
    assert_int_equal(core_stalls_read(&stalls, 0, list), 1);
    assert_int_equal(list[0].to_ns, 7 * MS);
    core_stalls_settle(&stalls, 8 * MS);
    core_stalls_add(&stalls, MS, 9 * MS); /* another one */
    assert_int_equal(core_stalls_read(&stalls, 0, list), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(why_a_stall_was),
        cmocka_unit_test(the_last_ones_are_kept_until_they_are_settled),
        cmocka_unit_test(a_stall_that_goes_on_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
