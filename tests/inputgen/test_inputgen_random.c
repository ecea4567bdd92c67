/* The generator against its published sequences, the logarithm against the C library's, the moments of the
 * distributions against theory. Seeds are fixed: nothing here is left to chance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "inputgen/random.h"

#include <math.h>

/* The sequence from state 1, 2, 3, 4, as its authors' reference code prints it. */
static void xoshiro_gives_the_published_sequence(void **state)
{
    static const uint64_t expected[] = {
        UINT64_C(11520),
        UINT64_C(0),
        UINT64_C(1509978240),
        UINT64_C(1215971899390074240),
        UINT64_C(1216172134540287360),
        UINT64_C(607988272756665600),
        UINT64_C(16172922978634559625),
        UINT64_C(8476171486693032832),
        UINT64_C(10595114339597558777),
        UINT64_C(2904607092377533576),
    };
    struct inputgen_random random = {{1, 2, 3, 4}};

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_int_equal(inputgen_random_next(&random), expected[i]);
}

static void splitmix_fills_the_state_as_published(void **state)
{
    static const uint64_t expected[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                        UINT64_C(9817491932198370423), UINT64_C(4593380528125082431)};
    struct inputgen_random random;

    (void)state;
    inputgen_random_seed(&random, 1234567);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(random.state[i], expected[i]);
}

static void logarithm_is_within_two_units_in_the_last_place(void **state)
{
    struct inputgen_random random;

    (void)state;
    assert_true(inputgen_random_log(1) >= 0 && inputgen_random_log(1) <= 0);
    inputgen_random_seed(&random, 1);
    for (int i = 0; i < 200000; i++) {
        /* positive values of all magnitudes, and of those near 1 where the result is small */
        const double u = inputgen_random_uniform(&random);
        const double x = i % 2 ? ldexp(u + 0x1p-53, (int)(inputgen_random_next(&random) % 200) - 100)
                               : 1 + (u - 0.5) * 0x1p-6;
        const double expected = log(x), got = inputgen_random_log(x);
        const double unit = fabs(nextafter(expected, INFINITY) - expected);
        if (fabs(got - expected) > 2 * unit)
            fail_msg("log(%a) is %a, not %a", x, got, expected);
    }
}

struct moments {
    double mean, variance, skewness, minimum, maximum;
};

#define DRAWS 1000000

static struct moments moments_of(double (*draw)(struct inputgen_random *))
{
    struct inputgen_random random;
    struct moments moments = {.minimum = INFINITY, .maximum = -INFINITY};
    double sums[4] = {0};

    inputgen_random_seed(&random, 42);
    for (int i = 0; i < DRAWS; i++) {
        const double value = draw(&random);
        sums[1] += value;
        sums[2] += value * value;
        sums[3] += value * value * value;
        moments.minimum = fmin(moments.minimum, value);
        moments.maximum = fmax(moments.maximum, value);
    }
    const double mean = sums[1] / DRAWS, square = sums[2] / DRAWS, cube = sums[3] / DRAWS;
    moments.mean = mean;
    moments.variance = square - mean * mean;
    moments.skewness = (cube - 3 * mean * square + 2 * mean * mean * mean) / pow(moments.variance, 1.5);
    return moments;
}

/* Tolerances are about five standard errors of a million draws. */
static void moments_are_those_of_theory(void **state)
{
    const struct moments uniform = moments_of(inputgen_random_uniform);
    const struct moments normal = moments_of(inputgen_random_normal);
    const struct moments exponential = moments_of(inputgen_random_exponential);

    (void)state;
    assert_true(fabs(uniform.mean - 0.5) < 0.0015);
    assert_true(fabs(uniform.variance - 1.0 / 12) < 0.0004);
    assert_true(fabs(uniform.skewness) < 0.01);
    assert_true(uniform.minimum >= 0 && uniform.minimum < 1e-4);
    assert_true(uniform.maximum < 1 && uniform.maximum > 1 - 1e-4);
    assert_true(fabs(normal.mean) < 0.005);
    assert_true(fabs(normal.variance - 1) < 0.008);
    assert_true(fabs(normal.skewness) < 0.0125);
    assert_true(normal.minimum < -4 && normal.maximum > 4);
    assert_true(fabs(exponential.mean - 1) < 0.005);
    assert_true(fabs(exponential.variance - 1) < 0.015);
    assert_true(fabs(exponential.skewness - 2) < 0.1);
    assert_true(exponential.minimum >= 0 && exponential.maximum > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xoshiro_gives_the_published_sequence),
        cmocka_unit_test(splitmix_fills_the_state_as_published),
        cmocka_unit_test(logarithm_is_within_two_units_in_the_last_place),
        cmocka_unit_test(moments_are_those_of_theory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
