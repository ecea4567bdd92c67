/* Streams through CPU workers and an emulated GPU, by a plan: every packet comes back, right to the byte, and
 * no stage takes less than its table says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/machine.h"
#include "bench/pipeline/report.h"
#include "bench/pool.h"
#include "tests/support/command.h"

#include <stdlib.h>
#include <string.h>

#define BENCH      MILLRACE_BINARY_DIR "/bench/millrace-bench "
#define STREAMS    24
#define DURATION   (400 * CORE_NS_PER_MS)
#define PATIENCE   (240 * CORE_NS_PER_S) /* no packet is given up, however slow this machine */
#define MARGIN     10.0                  /* of the profile, percent */
#define SLOW_PIECE (120 * CORE_NS_PER_US)

/* A machine, streams and their plan. */
struct setting {
    struct bench_machine machine;
    struct bench_pool pool;
    struct partition_plan_input input;
    struct partition_plan *plan;
    char program[512];
    struct bench_pipeline_options options;
};

static void setting_open(struct setting *setting, const char *method, int gpus, core_ns per_piece_ns)
{
    struct core_error error = {""};
    if (bench_machine_open(&setting->machine, "emulated-small", &error) != CORE_OK ||
        bench_machine_set(&setting->machine, gpus, 1, &error) != CORE_OK ||
        bench_pool_open(&setting->pool,
                        &(struct bench_pool_request){.workload = "const", .count = STREAMS, .seed = 1},
                        &error) != CORE_OK)
        fail_msg("%s", error.text);
    setting->machine.profile.cpu.per_piece_ns = per_piece_ns;
    setting->machine.profile.cpu.burst_pieces = 8;
    setting->input = (struct partition_plan_input){
        .specs = setting->pool.specs, .count = STREAMS, .profile = &setting->machine.profile, .workers = 1};
    if (partition_plan_make(partition_plan_method_find(method), &setting->input, &setting->plan, &error) !=
        CORE_OK)
        fail_msg("%s", error.text);
    assert_true(setting->plan->accepted);
    setting->options = (struct bench_pipeline_options){
        .input = &setting->input,
        .plan = setting->plan,
        .program = {.path = bench_gpu_program_find(setting->program, sizeof setting->program),
                    .backend = "emulated"},
        .engine = &cpu_engine_openssl,
        .generators = 2,
        .compared = STREAMS,
        .copied = true,
        .duration_ns = DURATION,
        .grace_ns = PATIENCE,
        .seed = 7};
}

static void setting_close(struct setting *setting)
{
    partition_plan_destroy(setting->plan);
    bench_pool_free(&setting->pool);
    bench_machine_close(&setting->machine);
}

/* Least and most packets that a stream makes, whatever its phase. */
static void require_packets(const struct setting *setting, const struct bench_pipeline_result *result)
{
    const uint64_t each = (uint64_t)(DURATION / setting->pool.specs[0].interval_ns);
    const uint64_t packets = result->cpu.packets + result->gpu.packets;
    assert_in_range(packets, each * STREAMS, (each + 1) * STREAMS);
    assert_int_equal(result->cpu.compared + result->gpu.compared, packets);
    assert_int_equal(result->cpu.wrong + result->gpu.wrong, 0);
    assert_int_equal((result->cpu.bytes + result->gpu.bytes) / packets, setting->pool.specs[0].packet_bytes);
}

static void require_stages(const struct bench_pipeline_gpu *gpu)
{
    assert_true(gpu->batches > 0 && gpu->bytes > 0);
    assert_string_equal(gpu->facts.name, "emulated-small");
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        assert_true(gpu->stages[stage].median_ns > 0);
        assert_true(gpu->stages[stage].median_ns <= gpu->stages[stage].p99_ns);
        assert_true(gpu->stages[stage].p99_ns <= gpu->stages[stage].max_ns);
    }
    /* An emulated kernel takes what the model says or more: with the margin the model is above by no more. */
    assert_true(gpu->stages[GPU_STAGE_KERNEL].error_most < MARGIN + 0.1);
}

static void run(struct setting *setting, struct bench_pipeline_result *result)
{
    struct core_error error = {""};
    if (bench_pipeline_run(&setting->options, result, &error) != CORE_OK)
        fail_msg("%s", error.text);
    require_packets(setting, result);
}

static void gpus_carry_all_streams(void **state)
{
    (void)state;
    for (int gpus = 1; gpus <= 2; gpus++) {
        struct setting setting;
        struct bench_pipeline_result result;
        setting_open(&setting, "rectangle", gpus, CORE_NS_PER_S);
        run(&setting, &result);
        assert_int_equal(result.cpu.packets, 0);
        assert_int_equal(result.gpus, gpus);
        for (int g = 0; g < gpus; g++)
            require_stages(&result.gpu_results[g]);
        bench_pipeline_result_free(&result);
        setting_close(&setting);
    }
}

static void workers_and_a_gpu_share_the_streams(void **state)
{
    (void)state;
    struct setting setting;
    struct bench_pipeline_result result;
    setting_open(&setting, "min-rate", 1, SLOW_PIECE);
    run(&setting, &result);
    assert_true(result.cpu.packets > 0);
    assert_true(result.gpu.packets > 0);
    require_stages(&result.gpu_results[0]);
    bench_pipeline_result_free(&result);
    setting_close(&setting);
}

static void unwritten_payload_is_compared_where_it_is_written(void **state)
{
    (void)state;
    struct setting setting;
    struct bench_pipeline_result result;
    struct core_error error = {""};
    setting_open(&setting, "rectangle", 1, CORE_NS_PER_S);
    setting.options.copied = false;
    setting.options.compared = 5;
    if (bench_pipeline_run(&setting.options, &result, &error) != CORE_OK)
        fail_msg("%s", error.text);
    const uint64_t each = (uint64_t)(DURATION / setting.pool.specs[0].interval_ns);
    assert_in_range(result.gpu.compared, 5 * each, 5 * (each + 1));
    assert_int_equal(result.gpu.wrong, 0);
    bench_pipeline_result_free(&result);
    setting_close(&setting);
}

static void a_gpu_that_does_not_start_is_told_of(void **state)
{
    static const char *const programs[] = {"/nowhere/millrace-gpu", "/bin/false"};
    (void)state;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        struct setting setting;
        struct bench_pipeline_result result;
        struct core_error error = {""};
        setting_open(&setting, "rectangle", 1, CORE_NS_PER_S);
        setting.options.program.path = programs[i];
        assert_int_not_equal(bench_pipeline_run(&setting.options, &result, &error), CORE_OK);
        assert_non_null(strstr(error.text, "GPU 0"));
        setting_close(&setting);
    }
}

/* Also where nothing could be run. */
static void a_plan_is_told_beside_the_limit_of_copies(void **state)
{
    static char text[4096];
    (void)state;
    assert_int_equal(test_command(BENCH
                                  "pipeline --plan --profile h200-assumed --streams 12000 --packet 8192 "
                                  "--deadline 40 --rate max --gpus-alone --backend cuda",
                                  text, sizeof text),
                     0);
    const char *share = strstr(text, "GB/s each way: ");
    assert_non_null(strstr(text, "(measured: assumed), margins: copies 3.0 %, kernels 10.0 %"));
    assert_non_null(share);
    assert_true(strtod(share + strlen("GB/s each way: "), NULL) >= 0.95);
    assert_int_not_equal(test_command(BENCH "pipeline --plan --profile h200-assumed --streams 12000 "
                                            "--deadline 40 --rate 40 --gpus-alone",
                                      text, sizeof text),
                         0);
    assert_non_null(strstr(text, "a lower --rate"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_carry_all_streams),
        cmocka_unit_test(workers_and_a_gpu_share_the_streams),
        cmocka_unit_test(unwritten_payload_is_compared_where_it_is_written),
        cmocka_unit_test(a_gpu_that_does_not_start_is_told_of),
        cmocka_unit_test(a_plan_is_told_beside_the_limit_of_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
