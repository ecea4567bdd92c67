/* Token buckets, by a clock that the test moves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/net/buckets.h"

static struct server_buckets buckets;

static uint32_t taken(uint32_t bucket, uint32_t per_s, core_ns now_ns)
{
    uint32_t count = 0;
    while (count < 10000 && server_buckets_consume(&buckets, bucket, per_s, now_ns))
        count++;
    return count;
}

static void a_burst_then_the_rate(void **state)
{
    (void)state;
    buckets = (struct server_buckets){0};
    assert_int_equal(taken(3, 500, 0), 1000);
    assert_int_equal(taken(3, 500, 0), 0);
    assert_int_equal(taken(3, 500, 2 * CORE_NS_PER_MS - 1), 0);
    assert_int_equal(taken(3, 500, 2 * CORE_NS_PER_MS), 1);
    assert_int_equal(taken(3, 500, 102 * CORE_NS_PER_MS), 50);
    assert_int_equal(taken(3, 500, 3600 * CORE_NS_PER_S), 1000); /* never more than full */
}

static void buckets_are_apart(void **state)
{
    (void)state;
    buckets = (struct server_buckets){0};
    assert_int_equal(taken(0, 1, 5), 2);
    assert_int_equal(taken(1, 1, 5), 2);
    assert_int_equal(taken(SERVER_BUCKETS - 1, 1, 5), 2);
    assert_int_equal(taken(0, 1, 5), 0);
}

static void none_means_no_limit(void **state)
{
    (void)state;
    assert_int_equal(taken(7, 0, 0), 10000);
}

/* Taking at every instant where there is one gains nothing on (2 + t) x per_s; nor does a rate that divides
 * no second. */
static void rate_never_exceeded(void **state)
{
    static const uint32_t rates[] = {1, 3, 7, 500, 999, 1001};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        uint32_t count = 0;
        buckets = (struct server_buckets){0};
        for (core_ns now_ns = 0; now_ns <= 5 * CORE_NS_PER_S; now_ns += 77777)
            count += taken(9, rates[i], now_ns);
        assert_true(count <= 7 * rates[i]);
        assert_true(count + 2 >= 7 * rates[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_burst_then_the_rate),
        cmocka_unit_test(buckets_are_apart),
        cmocka_unit_test(none_means_no_limit),
        cmocka_unit_test(rate_never_exceeded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
