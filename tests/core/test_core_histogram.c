/* The histogram against the exact answer: the same values in a sorted array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/histogram.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_COUNT 50000

static uint64_t random_state = 88172645463325252U;

/* xorshift64 (Marsaglia 2003): the same values in every run. */
static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static core_ns draw_small(void)
{
    return (core_ns)(random_next() % 64);
}
static core_ns draw_milliseconds(void)
{
    return (core_ns)(random_next() % (100 * CORE_NS_PER_MS));
}
static core_ns draw_any_magnitude(void)
{
    return (core_ns)(random_next() >> (24 + random_next() % 40)) % (INT64_C(1) << 40);
}
static core_ns draw_constant(void)
{
    return 123456789;
}

static int compare(const void *left, const void *right)
{
    const core_ns a = *(const core_ns *)left, b = *(const core_ns *)right;
    return (a > b) - (a < b);
}

static void percentiles_match_a_sorted_array(void **state)
{
    (void)state;
    static const struct {
        core_ns (*draw)(void);
        size_t count;
    } cases[] = {
        {draw_small, VALUE_COUNT}, {draw_milliseconds, VALUE_COUNT}, {draw_any_magnitude, VALUE_COUNT},
        {draw_constant, 1000},     {draw_milliseconds, 1},           {draw_milliseconds, 2},
        {draw_any_magnitude, 999}, {draw_any_magnitude, 1000}};
    static const unsigned parts_per_10000[] = {1,    10,   100,  2500, 3333, 5000,
                                               7500, 9000, 9900, 9990, 9999, 10000};
    static core_ns values_ns[VALUE_COUNT];
    static struct core_histogram histogram;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t count = cases[i].count;
        core_histogram_init(&histogram);
        for (size_t j = 0; j < count; j++) {
            values_ns[j] = cases[i].draw();
            core_histogram_record(&histogram, values_ns[j]);
        }
        qsort(values_ns, count, sizeof values_ns[0], compare);
        for (size_t j = 0; j < sizeof parts_per_10000 / sizeof parts_per_10000[0]; j++) {
            const size_t rank = (count * parts_per_10000[j] + 9999) / 10000;
            const core_ns exact_ns = values_ns[rank - 1];
            const core_ns told_ns = core_histogram_percentile_ns(&histogram, parts_per_10000[j] / 100.0);
            assert_true(told_ns >= exact_ns);
            assert_true(told_ns - exact_ns <= exact_ns / 64);
            assert_true(told_ns <= values_ns[count - 1]);
        }
        assert_int_equal(core_histogram_percentile_ns(&histogram, 0), values_ns[0]);
        assert_int_equal(core_histogram_percentile_ns(&histogram, 100), values_ns[count - 1]);
    }
}

static void totals_and_extremes_are_exact(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    core_ns sum_ns = 0, minimum_ns = INT64_MAX, maximum_ns = INT64_MIN;
    core_histogram_init(&histogram);
    for (int i = 0; i < VALUE_COUNT; i++) {
        const core_ns value_ns = draw_any_magnitude();
        core_histogram_record(&histogram, value_ns);
        sum_ns += core_time_max(value_ns, 0);
        minimum_ns = core_time_min(value_ns, minimum_ns);
        maximum_ns = core_time_max(value_ns, maximum_ns);
    }
    assert_int_equal(core_histogram_total(&histogram), VALUE_COUNT);
    assert_int_equal(core_histogram_mean_ns(&histogram), sum_ns / VALUE_COUNT);
    assert_int_equal(core_histogram_minimum_ns(&histogram), minimum_ns);
    assert_int_equal(core_histogram_maximum_ns(&histogram), maximum_ns);
}

static void an_empty_histogram_says_zero(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    core_histogram_init(&histogram);
    assert_int_equal(core_histogram_total(&histogram), 0);
    assert_int_equal(core_histogram_mean_ns(&histogram), 0);
    assert_int_equal(core_histogram_minimum_ns(&histogram), 0);
    assert_int_equal(core_histogram_maximum_ns(&histogram), 0);
    assert_int_equal(core_histogram_percentile_ns(&histogram, 99), 0);
}

static void values_out_of_range_keep_exact_extremes(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    core_histogram_init(&histogram);
    core_histogram_record(&histogram, -5);
    core_histogram_record(&histogram, -7);
    assert_int_equal(core_histogram_percentile_ns(&histogram, 50), -5);
    core_histogram_record(&histogram, INT64_C(1) << 50);
    core_histogram_record(&histogram, (INT64_C(1) << 40) - 1);
    assert_int_equal(core_histogram_total(&histogram), 4);
    assert_int_equal(core_histogram_minimum_ns(&histogram), -7);
    assert_int_equal(core_histogram_maximum_ns(&histogram), INT64_C(1) << 50);
    assert_int_equal(core_histogram_percentile_ns(&histogram, 50), 0); /* the top of the first bucket */
    assert_int_equal(core_histogram_percentile_ns(&histogram, 100), INT64_C(1) << 50);
}

static void percentages_out_of_range_are_clamped(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    core_histogram_init(&histogram);
    core_histogram_record(&histogram, 10);
    core_histogram_record(&histogram, 20);
    assert_int_equal(core_histogram_percentile_ns(&histogram, -3), 10);
    assert_int_equal(core_histogram_percentile_ns(&histogram, 250), 20);
    assert_int_equal(core_histogram_percentile_ns(&histogram, (double)NAN), 10);
}

static void every_edge_lies_in_its_own_bucket(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    for (unsigned bits = 0; bits < CORE_HISTOGRAM_MAX_BITS; bits++) {
        for (core_ns offset = -1; offset <= 1; offset++) {
            const core_ns value_ns = (INT64_C(1) << bits) + offset;
            core_histogram_init(&histogram);
            core_histogram_record(&histogram, value_ns);
            core_histogram_record(&histogram, INT64_C(1) << 41); /* so that the maximum clamps nothing */
            const core_ns told_ns = core_histogram_percentile_ns(&histogram, 50);
            assert_true(told_ns >= value_ns && told_ns - value_ns <= value_ns / 64);
        }
    }
}

static void merging_equals_recording_all(void **state)
{
    (void)state;
    static struct core_histogram all, half[2], empty;
    core_histogram_init(&all);
    core_histogram_init(&half[0]);
    core_histogram_init(&half[1]);
    core_histogram_init(&empty);
    for (int i = 0; i < VALUE_COUNT; i++) {
        const core_ns value_ns = draw_any_magnitude();
        core_histogram_record(&all, value_ns);
        core_histogram_record(&half[i % 2], value_ns);
    }
    core_histogram_merge(&half[0], &half[1]);
    core_histogram_merge(&half[0], &empty);
    assert_memory_equal(&half[0], &all, sizeof all);
    core_histogram_merge(&empty, &all);
    assert_memory_equal(&empty, &all, sizeof all);
}

static void *record_many(void *histogram)
{
    for (int i = 1; i <= VALUE_COUNT; i++)
        core_histogram_record(histogram, i);
    return NULL;
}

static void others_may_read_while_one_records(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    static struct core_histogram copy;
    pthread_t recorder;
    core_histogram_init(&histogram);
    assert_int_equal(pthread_create(&recorder, NULL, record_many, &histogram), 0);
    uint64_t last = 0;
    while (last < VALUE_COUNT) {
        core_histogram_init(&copy);
        core_histogram_merge(&copy, &histogram);
        const uint64_t total = core_histogram_total(&copy);
        assert_true(total >= last && total <= VALUE_COUNT);
        assert_true(core_histogram_percentile_ns(&histogram, 99) <= VALUE_COUNT);
        last = total;
    }
    assert_int_equal(pthread_join(recorder, NULL), 0);
    assert_int_equal(core_histogram_mean_ns(&histogram), (VALUE_COUNT + 1) / 2);
}

/* Reads back what was written: quantiles and counts rise to 1 and the total, values never fall. */
static void counts_within_a_limit_are_never_too_many(void **state)
{
    static const core_ns limits[] = {-1, 0, 1, 63, 64, 1000, 4095, 4096, 1000000, 123456789};
    struct core_histogram histogram;
    (void)state;

    core_histogram_init(&histogram);
    core_histogram_record(&histogram, -5);
    for (core_ns value_ns = 1; value_ns < 400000000; value_ns += 1 + value_ns / 500)
        core_histogram_record(&histogram, value_ns);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        uint64_t within = limits[i] < 0 ? 0 : 1, surely = within;
        for (core_ns value_ns = 1; value_ns < 400000000; value_ns += 1 + value_ns / 500) {
            within += value_ns <= limits[i];
            surely += value_ns <= limits[i] - limits[i] / 64;
        }
        uint64_t counted = core_histogram_count_within(&histogram, limits[i]);
        assert_true(counted <= within);
        assert_true(counted >= surely);
    }
    assert_int_equal(core_histogram_count_within(&histogram, CORE_NS_NEVER),
                     core_histogram_total(&histogram));
}

static void hgrm_is_a_rising_distribution(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    core_histogram_init(&histogram);
    for (int i = 1; i <= 10000; i++)
        core_histogram_record(&histogram, i * CORE_NS_PER_US);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    assert_true(core_histogram_write_hgrm(&histogram, file, 1000) > 0);
    assert_int_equal(fclose(file), 0);

    char *rest = NULL;
    const char *line = strtok_r(text, "\n", &rest);
    assert_string_equal(line, "       Value     Percentile TotalCount 1/(1-Percentile)");
    double last_value = 0, last_quantile = -1;
    unsigned long last_count = 0, lines = 0;
    while ((line = strtok_r(NULL, "\n", &rest)) && line[0] != '#') {
        double value, quantile;
        unsigned long count;
        assert_int_equal(sscanf(line, "%lf %lf %lu", &value, &quantile, &count), 3);
        assert_true(value >= last_value && quantile > last_quantile && count >= last_count);
        assert_true(value >= quantile * 10000 && value <= quantile * 10000 * 65 / 64 + 160);
        last_value = value, last_quantile = quantile, last_count = count;
        lines++;
    }
    assert_true(lines > 20);
    assert_true(last_value == 10000 && last_quantile == 1 && last_count == 10000);
    double mean, deviation;
    assert_int_equal(sscanf(line, "#[Mean    = %lf, StdDeviation   = %lf]", &mean, &deviation), 2);
    assert_true(mean == 5000.5);
    assert_true(deviation > 2886.751 * 0.999 && deviation < 2886.751 * 1.001); /* (n^2 - 1) / 12, its root */
    assert_string_equal(strtok_r(NULL, "\n", &rest),
                        "#[Max     =    10000.000, Total count    =        10000]");
    assert_string_equal(strtok_r(NULL, "\n", &rest),
                        "#[Buckets =           35, SubBuckets     =           64]");
    assert_null(strtok_r(NULL, "\n", &rest));
    free(text);
}

static void hgrm_of_nothing_is_still_a_table(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    char text[1024] = "";
    core_histogram_init(&histogram);
    FILE *file = fmemopen(text, sizeof text, "w");
    assert_non_null(file);
    assert_true(core_histogram_write_hgrm(&histogram, file, 1) > 0);
    assert_int_equal(fclose(file), 0);
    assert_non_null(strstr(text, "Total count    =            0]"));
}

static void hgrm_tells_a_write_error(void **state)
{
    (void)state;
    static struct core_histogram histogram;
    core_histogram_init(&histogram);
    core_histogram_record(&histogram, 1);
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    setbuf(full, NULL);
    assert_true(core_histogram_write_hgrm(&histogram, full, 1) < 0);
    fclose(full);
}

/* Slack below bounds of an hour: 2,562,048 packets are enough for that. */
static void a_sum_beyond_63_bits_stays_at_their_end(void **state)
{
    static struct core_histogram histogram, other;
    (void)state;
    core_histogram_init(&histogram);
    core_histogram_init(&other);
    for (int i = 0; i < 3; i++)
        core_histogram_record(&histogram, INT64_MAX / 2);
    core_histogram_record(&other, INT64_MAX / 2);
    assert_true(atomic_load(&histogram.sum_ns) == INT64_MAX);
    core_histogram_merge(&other, &histogram);
    assert_true(atomic_load(&other.sum_ns) == INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_match_a_sorted_array),
        cmocka_unit_test(totals_and_extremes_are_exact),
        cmocka_unit_test(an_empty_histogram_says_zero),
        cmocka_unit_test(values_out_of_range_keep_exact_extremes),
        cmocka_unit_test(percentages_out_of_range_are_clamped),
        cmocka_unit_test(every_edge_lies_in_its_own_bucket),
        cmocka_unit_test(merging_equals_recording_all),
        cmocka_unit_test(others_may_read_while_one_records),
        cmocka_unit_test(counts_within_a_limit_are_never_too_many),
        cmocka_unit_test(a_sum_beyond_63_bits_stays_at_their_end),
        cmocka_unit_test(hgrm_is_a_rising_distribution),
        cmocka_unit_test(hgrm_of_nothing_is_still_a_table),
        cmocka_unit_test(hgrm_tells_a_write_error),
    };
    return cmocka_run_group_tests_name("core/histogram", tests, NULL, NULL);
}
