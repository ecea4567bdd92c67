/* What SYSTOR 2012 states, or what follows from it (tests/data/verner_paper.json), by the model and by the
 * shipped profile of the paper's machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "perfmodel/gpu.h"

#define GIGA   1e9
#define LARGE  (UINT64_C(1) << 36) /* large enough for a rate to be the maximum */
#define MIBS_2 (UINT64_C(2) << 20)

static json_t *facts;
static struct config_profile *profile;

static int load(void **state)
{
    json_error_t problem;
    struct core_error error;
    (void)state;
    facts = json_load_file(MILLRACE_SOURCE_DIR "/tests/data/verner_paper.json", 0, &problem);
    if (facts == NULL)
        return -1;
    const char *path = MILLRACE_SOURCE_DIR "/config/profiles/gtx285-x2.yaml";
    return config_profile_load(path, &profile, &error) == CORE_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(facts);
    config_profile_free(profile);
    return 0;
}

/* The fact of this id. */
static const json_t *fact(const char *id)
{
    for (size_t i = 0; i < json_array_size(facts); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(facts, i), "id")), id) == 0)
            return json_array_get(facts, i);
    fail_msg("no fact '%s'", id);
    return NULL;
}

static double number(const json_t *object, const char *first, const char *second)
{
    const json_t *value = json_object_get(json_object_get(object, first), second);
    if (!json_is_number(value))
        fail_msg("no number '%s.%s'", first, second);
    return json_number_value(value);
}

static const json_t *list(const json_t *object, const char *first, const char *second)
{
    const json_t *value = json_object_get(json_object_get(object, first), second);
    assert_true(json_is_array(value));
    return value;
}

static double entry(const json_t *array, size_t i)
{
    assert_in_range(i, 0, json_array_size(array) - 1);
    return json_number_value(json_array_get(array, i));
}

static void expect_near(const char *what, double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%s: %.6f, expected %.6f", what, found, expected);
}

/* ---- kernels ---- */

static struct config_profile_copy no_copies[] = {{1, 1, 1, 1, 1}};

/* Fig. 6 with invented sizes: three periods of execution, in seconds at 1,000 bytes a second. */
static void figure_6(void **state)
{
    (void)state;
    const json_t *figure = fact("fig6-num");
    const json_t *shares = list(figure, "input", "U"), *sizes = list(figure, "input", "jobs");
    struct config_profile_utilisation rows[6];
    uint64_t jobs[6];
    for (uint32_t i = 0; i < 6; i++) {
        rows[i].jobs = i + 1;
        rows[i].share_ppm = (uint32_t)lround(1e6 * entry(shares, i + 1));
        jobs[i] = (uint64_t)entry(sizes, i);
    }
    const struct config_profile_gpu gpu = {.sms = 1,
                                           .copy_engines = 1,
                                           .sm_bytes_per_s = (int64_t)number(figure, "input", "flops"),
                                           .copies = no_copies,
                                           .copy_count = 1,
                                           .utilisation = rows,
                                           .utilisation_count = 6};
    const uint64_t first[] = {10, 10, 10, 10, 10, 10}, second[] = {10, 10, 30, 30, 30, 30};
    double total = number(figure, "expected", "total");
    double t1 = number(figure, "expected", "t1"), t2 = number(figure, "expected", "t2");
    double t3 = number(figure, "expected", "t3");
    for (int measured = 0; measured <= 1; measured++) {
        expect_near("t1", (double)perfmodel_sm_ns(&gpu, first, 6, measured) / 1e9, t1, 1e-9);
        expect_near("t1 + t2", (double)perfmodel_sm_ns(&gpu, second, 6, measured) / 1e9, t1 + t2, 1e-9);
        expect_near("total", (double)perfmodel_sm_ns(&gpu, jobs, 6, measured) / 1e9, total, 1e-9);
    }
    expect_near("t1 + t2 + t3", t1 + t2 + t3, total, 1e-9);
}

/* The figure's own two shares are in the shipped table. */
static void figure_6_shares(void **state)
{
    (void)state;
    const json_t *figure = fact("fig6");
    expect_near("U(6)", perfmodel_utilisation_ppm(&profile->gpus[0], 6) / 1e6, number(figure, "input", "U6"),
                0);
    expect_near("U(4)", perfmodel_utilisation_ppm(&profile->gpus[0], 4) / 1e6, number(figure, "input", "U4"),
                0);
}

/* Two cards as one of twice the SMs take as long for twice the jobs. */
static void virtual_gpu(void **state)
{
    (void)state;
    const json_t *example = fact("virtual");
    const struct config_profile_gpu *gpu = &profile->gpus[0];
    double cards = json_number_value(json_object_get(json_object_get(example, "input"), "count"));
    uint32_t sms = (uint32_t)number(example, "expected", "sm");
    assert_int_equal(sms, gpu->sms * (uint32_t)cards);
    expect_near("memory", (double)gpu->memory_bytes * cards / (1 << 30),
                number(example, "expected", "mem_GB"), 0);
    enum { jobs_count = 12000 };
    static uint64_t jobs[jobs_count], scratch[jobs_count];
    for (size_t i = 0; i < jobs_count; i++)
        jobs[i] = 1000 + i * i % 977;
    for (size_t i = 0; i < jobs_count / 2; i++) /* each card's share the same */
        jobs[(i / gpu->sms * 2 + 1) * gpu->sms + i % gpu->sms] =
            jobs[i / gpu->sms * 2 * gpu->sms + i % gpu->sms];
    uint64_t half[jobs_count / 2];
    for (size_t i = 0; i < jobs_count / 2; i++)
        half[i] = jobs[i / gpu->sms * 2 * gpu->sms + i % gpu->sms];
    assert_int_equal(perfmodel_kernel_ns(gpu, sms, jobs, jobs_count, false, scratch),
                     perfmodel_kernel_ns(gpu, gpu->sms, half, jobs_count / 2, false, scratch));
}

/* ---- copies ---- */

static double copy_rate(enum perfmodel_direction direction, bool busy)
{
    return (double)LARGE / (double)perfmodel_copy_ns(&profile->gpus[0], direction, busy, LARGE);
}

static double round_trip_rate(bool busy)
{
    const struct config_profile_gpu *gpu = &profile->gpus[0];
    return (double)LARGE / (double)(perfmodel_copy_ns(gpu, PERFMODEL_UP, busy, LARGE) +
                                    perfmodel_copy_ns(gpu, PERFMODEL_DOWN, busy, LARGE));
}

/* One number of Table 1, by what the profile makes of it. */
static double table_1(const char *column, const char *row)
{
    const json_t *input = json_object_get(fact("table1"), "input");
    return number(input, column, row);
}

static void table_1_rates(void **state)
{
    (void)state;
    const json_t *table = fact("table1");
    double tolerance = json_number_value(json_object_get(table, "tolerance"));
    double kernel = (double)profile->gpus[0].sm_bytes_per_s * profile->gpus[0].sms / GIGA;
    expect_near("one, up", copy_rate(PERFMODEL_UP, false), table_1("one", "h2d"), 1e-6);
    expect_near("one, down", copy_rate(PERFMODEL_DOWN, false), table_1("one", "d2h"), 1e-6);
    expect_near("two, up", 2 * copy_rate(PERFMODEL_UP, true), table_1("two", "h2d"), 1e-6);
    expect_near("two, down", 2 * copy_rate(PERFMODEL_DOWN, true), table_1("two", "d2h"), 1e-6);
    expect_near("one, kernel", kernel, table_1("one", "kernel"), 0);
    expect_near("two, kernel", 2 * kernel, table_1("two", "kernel"), 0);
    /* half duplex: a round trip takes both times */
    expect_near("one, round trip", round_trip_rate(false), number(table, "expected", "rt1"), tolerance);
    expect_near("two, round trip", 2 * round_trip_rate(true), number(table, "expected", "rt2"), tolerance);
    expect_near("gain down", 2 * copy_rate(PERFMODEL_DOWN, true) / copy_rate(PERFMODEL_DOWN, false),
                number(table, "expected", "s_d2h"), tolerance);
    expect_near("gain up", 2 * copy_rate(PERFMODEL_UP, true) / copy_rate(PERFMODEL_UP, false),
                number(table, "expected", "s_h2d"), tolerance);
    expect_near("gain of a round trip", 2 * round_trip_rate(true) / round_trip_rate(false),
                number(table, "expected", "s_rt"), tolerance);
}

/* So max(T_D, T_K, T_R) <= T alone is unsafe with one copy engine: at the maximum rates of copies and kernel
 * it takes what the engine can not carry. */
static void half_duplex_is_what_binds(void **state)
{
    (void)state;
    const struct config_profile_gpu *gpu = &profile->gpus[0];
    core_ns period_ns = 10 * CORE_NS_PER_MS;
    uint64_t bytes = 16000000; /* 1.6 GB/s in all: more than 1.517, less than 1.875, 2.77 and 3.355 */
    struct perfmodel_stages stages = {
        .up_ns = perfmodel_copy_ns(gpu, PERFMODEL_UP, false, bytes),
        .kernel_ns = (core_ns)((double)bytes / table_1("one", "kernel")),
        .down_ns = perfmodel_copy_ns(gpu, PERFMODEL_DOWN, false, bytes),
    };
    assert_int_equal(perfmodel_gpu_judge(gpu, &stages, period_ns, 4 * period_ns, true), PERFMODEL_LIMIT_NONE);
    assert_int_equal(perfmodel_gpu_judge(gpu, &stages, period_ns, 4 * period_ns, false),
                     PERFMODEL_LIMIT_GPU_COPY);
    double most = (double)bytes / (double)(stages.up_ns + stages.down_ns);
    assert_true(most < 1.6 && most > 1.5);
}

static void figure_13(void **state)
{
    (void)state;
    const json_t *figure = fact("xfer");
    uint64_t small = (uint64_t)number(figure, "input", "small_bytes");
    core_ns small_ns = (core_ns)number(figure, "input", "small_us") * CORE_NS_PER_US;
    double tolerance = json_number_value(json_object_get(figure, "tolerance"));
    assert_int_equal((uint64_t)number(figure, "input", "full95_bytes"), MIBS_2);
    for (int busy = 0; busy <= 1; busy++) {
        for (enum perfmodel_direction direction = PERFMODEL_UP; direction <= PERFMODEL_DOWN; direction++) {
            const struct config_profile_gpu *gpu = &profile->gpus[0];
            assert_int_equal(perfmodel_copy_ns(gpu, direction, busy, small), small_ns);
            assert_int_equal(perfmodel_copy_ns(gpu, direction, busy, 1), small_ns);
            expect_near("small rate", (double)small / (double)small_ns,
                        number(figure, "expected", "small_rate_GBps"), tolerance);
            double at_2_mib = (double)MIBS_2 / (double)perfmodel_copy_ns(gpu, direction, busy, MIBS_2);
            expect_near("95 %", at_2_mib / copy_rate(direction, busy), 0.95, 1e-5);
        }
    }
}

/* ---- periods and deadlines ---- */

static void periods_are_fourths(void **state)
{
    (void)state;
    const json_t *period = fact("period");
    const json_t *deadlines = list(period, "input", "dmin_ms"), *periods = list(period, "expected", "T_ms");
    const struct perfmodel_stages stages = {0};
    for (size_t i = 0; i < json_array_size(deadlines); i++) {
        core_ns shortest_ns = (core_ns)entry(deadlines, i) * CORE_NS_PER_MS;
        core_ns period_ns = (core_ns)(entry(periods, i) * 1e6);
        assert_int_equal(perfmodel_gpu_judge(&profile->gpus[0], &stages, period_ns, shortest_ns, true),
                         PERFMODEL_LIMIT_NONE);
        assert_int_equal(perfmodel_gpu_judge(&profile->gpus[0], &stages, period_ns + 1, shortest_ns, true),
                         PERFMODEL_LIMIT_GPU_LATENCY);
    }
}

/* All jobs of the batch closed at nT are due by (n-1) T + d_min; stages of T each just make it. */
static void effective_deadlines(void **state)
{
    (void)state;
    const json_t *effective = fact("effdl");
    const json_t *batches = list(effective, "input", "n");
    const json_t *deadlines = list(effective, "expected", "absolute_effective_deadline");
    core_ns shortest_ns = (core_ns)number(effective, "input", "dmin"), period_ns = shortest_ns / 4;
    const struct config_profile_gpu two_engines = {.copy_engines = 2};
    const struct perfmodel_stages stages = {.up_ns = period_ns, .kernel_ns = period_ns, .down_ns = period_ns};
    core_ns latency_ns = perfmodel_gpu_latency_ns(&two_engines, &stages, period_ns);
    for (size_t i = 0; i < json_array_size(batches); i++) {
        core_ns opened_ns = ((core_ns)entry(batches, i) - 1) * period_ns;
        assert_int_equal(opened_ns + latency_ns, (core_ns)entry(deadlines, i));
    }
}

/* In ten-thousandths of bytes and in whole ones. */
static void job_of_the_constant_workload(void **state)
{
    (void)state;
    const json_t *job = fact("const-job");
    core_ns latency_ns = (core_ns)(number(job, "input", "deadline_ms") * 1e6);
    core_ns period_ns = (core_ns)(number(job, "expected", "T_ms") * 1e6);
    double bytes = number(job, "expected", "job_bytes");
    double bytes_per_s = number(job, "input", "rate_mbps") * 1e6 / 8;
    struct core_stream_spec spec = {.burst_packets = 1, .latency_ns = latency_ns};
    assert_int_equal(latency_ns / 4, period_ns);
    spec.interval_ns = 10 * CORE_NS_PER_MS;
    spec.packet_bytes = (uint32_t)(bytes_per_s / 100);
    assert_int_equal(perfmodel_gpu_job_bytes(&spec, period_ns, true), (uint64_t)ceil(bytes));
    spec.interval_ns = 100 * CORE_NS_PER_US;
    spec.packet_bytes = (uint32_t)bytes_per_s;
    expect_near("bytes", (double)perfmodel_gpu_job_bytes(&spec, period_ns, true) / 10000, bytes, 1e-6);
}

/* Table 2: a stage never took more than 1 / 0.94 of what the model said; the margin covers it. */
static void margin_covers_the_model_error(void **state)
{
    (void)state;
    const json_t *errors = fact("table2");
    double margin = number(errors, "expected", "safety_margin");
    assert_int_equal(profile->margins.copies_ppm, lround(1e6 * margin));
    assert_int_equal(profile->margins.kernels_ppm, lround(1e6 * margin));
    uint64_t job = 100000, scratch[1];
    const struct config_profile_margins none = {0};
    struct perfmodel_stages bare = perfmodel_gpu_stages(&profile->gpus[0], &none, &job, 1, false, scratch);
    struct perfmodel_stages safe =
        perfmodel_gpu_stages(&profile->gpus[0], &profile->margins, &job, 1, false, scratch);
    double never_below = number(errors, "expected", "never_below");
    assert_true((double)safe.up_ns * never_below >= (double)bare.up_ns);
    assert_true((double)safe.kernel_ns * never_below >= (double)bare.kernel_ns);
    assert_true((double)safe.down_ns * never_below >= (double)bare.down_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figure_6),
        cmocka_unit_test(figure_6_shares),
        cmocka_unit_test(virtual_gpu),
        cmocka_unit_test(table_1_rates),
        cmocka_unit_test(half_duplex_is_what_binds),
        cmocka_unit_test(figure_13),
        cmocka_unit_test(periods_are_fourths),
        cmocka_unit_test(effective_deadlines),
        cmocka_unit_test(job_of_the_constant_workload),
        cmocka_unit_test(margin_covers_the_model_error),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
