/* Plans in paper mode answer the reference sets of SYSTOR 2012 (tests/data/verner_*.csv) as the paper computes: by its
 * utilisation table itself, which falls here and there, and not by the safe envelope of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "partition/plan.h"
#include "perfmodel/gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/table.h"

#include <math.h>
#include <stdlib.h>

#define STREAMS_MAX    256
#define MARGIN_PPM     100000
#define PIECE_NEVER_NS CORE_NS_PER_S

/* The card of the files in bytes and ns. */
static void read_card(struct test_gpu *card, uint32_t sms, double sm_bytes_per_ns)
{
    struct test_table copies = test_table_open("verner_xfer.csv"),
                      shares = test_table_open("verner_util.csv");

    *card = (struct test_gpu){.gpu = {.name = (char *)"reference", .count = 1, .copy_engines = 2}};
    card->gpu.sms = sms;
    card->gpu.memory_bytes = CONFIG_PROFILE_MEMORY_BYTES_MAX;
    card->gpu.sm_bytes_per_s = llround(sm_bytes_per_ns * 1e9);
    card->gpu.copies = card->copies;
    card->gpu.utilisation = card->utilisation;
    while (test_table_next(&copies)) {
        struct config_profile_copy *row = &card->copies[card->gpu.copy_count++];
        row->bytes = (uint64_t)test_table_int(&copies, "size_bytes");
        row->up_ns = row->up_busy_ns =
            (core_ns)ceil((double)row->bytes / test_table_real(&copies, "h2d_bytes_per_ns"));
        row->down_ns = row->down_busy_ns =
            (core_ns)ceil((double)row->bytes / test_table_real(&copies, "d2h_bytes_per_ns"));
    }
    while (test_table_next(&shares)) {
        struct config_profile_utilisation *row = &card->utilisation[card->gpu.utilisation_count++];
        row->jobs = (uint32_t)test_table_int(&shares, "jobs");
        row->share_ppm = (uint32_t)llround(1e6 * test_table_real(&shares, "utilization"));
    }
}

/* With a processor that can do nothing in time. */
static bool is_accepted(struct test_gpu *card, const struct core_stream_spec *specs, size_t count)
{
    const struct config_profile profile = {
        .cpu = {.engine = (char *)"openssl",
                .lanes = 1,
                .burst_pieces = 1,
                .piece_bytes = 16,
                .per_piece_ns = PIECE_NEVER_NS,
                .per_byte_fs = {INT64_C(1000000000000), INT64_C(1000000000000)},
                .lane_ns = {PIECE_NEVER_NS, PIECE_NEVER_NS}},
        .margins = {.copies_ppm = MARGIN_PPM, .kernels_ppm = MARGIN_PPM},
        .pinned_bytes = UINT64_C(1) << 50,
        .gpus = &card->gpu,
        .gpu_count = 1};
    const struct partition_plan_input input = {
        .specs = specs, .count = count, .profile = &profile, .workers = 1, .paper = true};
    struct partition_plan *plan = NULL;
    struct core_error error;

    assert_int_equal(partition_plan_make(&partition_plan_methods[0], &input, &plan, &error), CORE_OK);
    const bool accepted = plan->accepted;
    if (accepted)
        for (size_t i = 0; i < count; i++)
            assert_true(partition_unit_is_gpu(plan->workers, plan->unit[i]));
    partition_plan_destroy(plan);
    return accepted;
}

static int longest_first(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a < b) - (a > b);
}

/* Does the batch fit with the kernel by the envelope, or by the table itself, jobs in the order of the file or falling? */
static bool fits_by(const struct test_gpu *card, const struct core_stream_spec *specs, size_t count,
                    bool table, bool falling)
{
    const struct config_profile_margins margins = {.copies_ppm = MARGIN_PPM, .kernels_ppm = MARGIN_PPM};
    core_ns shortest_ns = CORE_NS_NEVER;
    uint64_t jobs[STREAMS_MAX], scratch[STREAMS_MAX];

    for (size_t i = 0; i < count; i++)
        shortest_ns = core_time_min(shortest_ns, specs[i].latency_ns);
    for (size_t i = 0; i < count; i++)
        jobs[i] = perfmodel_gpu_job_bytes(&specs[i], shortest_ns / 4, true);
    if (falling)
        qsort(jobs, count, sizeof jobs[0], longest_first);
    const struct perfmodel_stages stages =
        table ? perfmodel_gpu_stages_measured(&card->gpu, &margins, jobs, count, false, scratch)
              : perfmodel_gpu_stages(&card->gpu, &margins, jobs, count, false, scratch);
    return perfmodel_gpu_judge(&card->gpu, &stages, shortest_ns / 4, shortest_ns, true) ==
           PERFMODEL_LIMIT_NONE;
}

static void reference_sets_are_answered_as_the_paper_computes(void **state)
{
    (void)state;
    struct test_table sets = test_table_open("verner_sets.csv"), rows = test_table_open("verner_streams.csv");
    static struct test_gpu card;
    int seen = 0, accepted = 0, of_the_table = 0, answered = 0, dealt_otherwise = 0;

    for (; test_table_next(&sets); seen++) {
        struct core_stream_spec specs[STREAMS_MAX];
        const size_t count = (size_t)test_table_int(&sets, "n_streams");
        const bool fits = test_table_int(&sets, "ok_paper_margin10") != 0;
        assert_in_range(count, 1, STREAMS_MAX);
        read_card(&card, (uint32_t)test_table_int(&sets, "n_sm"),
                  test_table_real(&sets, "flops_bytes_per_ns_per_sm"));
        for (size_t i = 0; i < count; i++) {
            assert_true(test_table_next(&rows));
            specs[i] = (struct core_stream_spec){.packet_bytes =
                                                     (uint32_t)test_table_int(&rows, "rate_bytes_per_ms"),
                                                 .burst_packets = 1,
                                                 .interval_ns = CORE_NS_PER_MS,
                                                 .latency_ns = (core_ns)test_table_real(&rows, "deadline_ns"),
                                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                                 .padding = CORE_PADDING_PKCS7};
        }
        const bool dealt = fits_by(&card, specs, count, true, true); /* plans deal the longest jobs first */
        assert_int_equal(fits_by(&card, specs, count, true, false), fits);
        if (is_accepted(&card, specs, count) != dealt)
            fail_msg("set %s is %s", test_table_text(&sets, "set"), dealt ? "refused" : "accepted");
        accepted += fits;
        dealt_otherwise += dealt != fits;
        if (fits && !fits_by(&card, specs, count, false, false)) {
            of_the_table++;
            answered += dealt;
        }
    }
    assert_int_equal(seen, 60);
    print_message(
        "%d of %d fit, %d only by the table itself; plans accept %d of these, and differ in %d sets, "
        "since they deal the longest jobs first and not in the order of the file\n",
        accepted, seen, of_the_table, answered, dealt_otherwise);
    assert_int_equal(of_the_table, 13);
    assert_true(answered >= 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_sets_are_answered_as_the_paper_computes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
