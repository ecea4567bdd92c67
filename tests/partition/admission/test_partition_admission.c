/* Standing plans: histories of streams that come and leave, offers, reasons, plans anew. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "partition/admission/admission.h"
#include "partition/admission/internal.h"
#include "tests/support/admission.h"
#include "tests/support/plan_sets.h"
#include "tests/support/share.h"

#define MS       CORE_NS_PER_MS
#define MACHINES TEST_SHARE(100)

/* ---- histories ---- */

/* Each of the set's streams comes once; some leave again. Proven at every step. */
static void random_histories(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 21};
    size_t on_workers = 0, on_gpus = 0, refused = 0, new_periods = 0;
    for (int n = 0; n < MACHINES; n++) {
        test_plan_set_random(&set, &random);
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        for (size_t i = 0; i < set.input.count; i++) {
            struct admission_placement placement = test_admission_admit(admission, &set.specs[i], i);
            on_workers += placement.accepted && placement.unit < set.input.workers;
            on_gpus += placement.accepted && placement.unit >= set.input.workers;
            refused += !placement.accepted;
            new_periods += placement.new_period;
            if (test_random_chance(&random, 25))
                test_admission_release_one(admission, &random);
            if (i < 24 || i % 16 == 0)
                test_admission_holds(admission);
        }
        while (admission_streams(admission) > 0)
            test_admission_release_one(admission, &random);
        test_admission_holds(admission);
        admission_destroy(admission);
    }
    print_message("%zu on workers, %zu on GPUs, %zu refused, %zu new periods\n", on_workers, on_gpus, refused,
                  new_periods);
    assert_true(on_workers > TEST_SHARE(1000) && on_gpus > TEST_SHARE(1000) && refused > TEST_SHARE(1000) &&
                new_periods > TEST_SHARE(50));
}

/* ---- offers ---- */

/* An offer is accepted, and what is better by a nanosecond is not. */
static void expect_offer(const struct admission *admission, const struct core_stream_spec *spec,
                         const struct partition_offer *offer)
{
    struct core_stream_spec asked = *spec;
    asked.interval_ns = offer->interval_ns > 0 ? offer->interval_ns : CORE_INTERVAL_NS_MAX;
    assert_int_equal(test_admission_query(admission, &asked, false).accepted, offer->interval_ns > 0);
    asked.interval_ns--;
    assert_false(test_admission_query(admission, &asked, false).accepted);
    asked = *spec;
    asked.latency_ns = offer->latency_ns > 0 ? offer->latency_ns : CORE_LATENCY_NS_MAX;
    assert_int_equal(test_admission_query(admission, &asked, false).accepted, offer->latency_ns > 0);
    asked.latency_ns--;
    assert_false(test_admission_query(admission, &asked, false).accepted);
}

/* With reasons, beside whatever stands. */
static void offers_are_accepted(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 22};
    size_t refused = 0, by[PERFMODEL_LIMIT_GPU_MEMORY + 1] = {0}, rates = 0, latencies = 0;
    for (int n = 0; n < MACHINES; n++) {
        test_plan_set_random(&set, &random);
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        for (size_t i = 0; i < set.input.count; i++) {
            struct admission_placement placement = test_admission_admit(admission, &set.specs[i], i);
            if (placement.accepted) {
                assert_true(placement.bound_ns <= set.specs[i].latency_ns);
                assert_int_equal(placement.constraint, PERFMODEL_LIMIT_NONE);
                continue;
            }
            assert_true(strlen(placement.reason) > 40);
            assert_true(strlen(placement.reason) + 1 < sizeof placement.reason);
            refused++;
            by[placement.constraint]++;
            rates += placement.offer.interval_ns > 0;
            latencies += placement.offer.latency_ns > 0;
            if (refused % 8 == 0)
                expect_offer(admission, &set.specs[i], &placement.offer);
        }
        admission_destroy(admission);
    }
    for (int c = 0; c <= PERFMODEL_LIMIT_GPU_MEMORY; c++)
        print_message("%s: %zu\n", perfmodel_limit_name((enum perfmodel_limit)c), by[c]);
    print_message("%zu offers of a rate, %zu of a latency\n", rates, latencies);
    assert_int_equal(by[PERFMODEL_LIMIT_NONE], 0);
    assert_true(by[PERFMODEL_LIMIT_DEADLINE] > 0 && by[PERFMODEL_LIMIT_CPU_DEMAND] > 0 &&
                by[PERFMODEL_LIMIT_GPU_COPY] > 0 && by[PERFMODEL_LIMIT_GPU_KERNEL] > 0 &&
                by[PERFMODEL_LIMIT_GPU_LATENCY] > 0 && by[PERFMODEL_LIMIT_GPU_MEMORY] > 0);
    assert_true(rates > TEST_SHARE(100) && latencies > TEST_SHARE(100));
}

/* ---- plans anew ---- */

static struct admission_proposal replan(const struct admission *admission,
                                        const struct core_stream_spec *spec)
{
    struct admission_proposal proposal;
    struct core_error error = {{0}};
    const struct partition_plan_method *method = partition_plan_method_find("rectangle");
    if (admission_replan(admission, method, spec, 0, &proposal, &error) != CORE_OK)
        fail_msg("%s", error.text);
    return proposal;
}

/* Every move is of a stream that is there, from where it is to another unit, and of none twice. */
static void expect_real_moves(const struct admission *admission, const struct admission_proposal *proposal)
{
    static bool moved[TEST_PLAN_STREAMS];
    memset(moved, 0, sizeof moved);
    for (size_t n = 0; n < proposal->moves; n++) {
        const struct admission_move *move = &proposal->move[n];
        const struct admission_record *record = &admission->record[move->stream];
        assert_int_equal(admission->listed[record->rank], move->stream);
        assert_int_equal(record->unit, move->from);
        assert_int_equal(record->handle, move->handle);
        assert_int_not_equal(move->from, move->to);
        assert_true(move->to < admission->worker_count + admission->gpus);
        assert_int_equal(move->period_ns > 0, move->to >= admission->worker_count);
        assert_false(moved[move->stream]);
        moved[move->stream] = true;
    }
}

static void expect_same_proposal(const struct admission_proposal *a, const struct admission_proposal *b)
{
    assert_int_equal(a->accepted, b->accepted);
    assert_int_equal(a->moves, b->moves);
    for (size_t n = 0; n < a->moves; n++) {
        assert_int_equal(a->move[n].stream, b->move[n].stream);
        assert_int_equal(a->move[n].to, b->move[n].to);
    }
}

/* What no unit takes as things stand may be taken with moves, each of which can be made by itself; what
 * stands afterwards is proven, and goes on as any other plan. */
static void random_replans(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 24};
    size_t asked = 0, accepted = 0, moves = 0;
    for (int n = 0; n < MACHINES; n++) {
        test_plan_set_random(&set, &random);
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        size_t tried = 0;
        for (size_t i = 0; i < set.input.count; i++) {
            if (test_admission_admit(admission, &set.specs[i], i).accepted || tried == 5)
                continue;
            tried++;
            asked++;
            struct admission_proposal proposal = replan(admission, &set.specs[i]);
            if (tried == 1) {
                struct admission_proposal same = replan(admission, &set.specs[i]);
                expect_same_proposal(&proposal, &same);
                free(same.move);
            }
            if (proposal.accepted) {
                accepted++;
                moves += proposal.moves;
                expect_real_moves(admission, &proposal);
                (void)test_admission_make_room(admission, &proposal, &set.specs[i], i);
                test_admission_release_one(admission, &random);
                test_admission_holds(admission);
            } else {
                assert_null(proposal.move);
            }
            free(proposal.move);
        }
        admission_destroy(admission);
    }
    print_message("%zu asked, %zu accepted with %zu moves\n", asked, accepted, moves);
    assert_true(accepted > TEST_SHARE(20) && moves > TEST_SHARE(20));
}

/* ---- by example ---- */

/* Workers up to a quarter, then the GPU, whose room that many more find; who is too urgent for it, and for
 * its period, finds room on a worker. */
static void placement_preference_order(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec easy = test_admission_spec(4 * MS, 100 * MS),
                            urgent = test_admission_spec(4 * MS, 3 * MS);
    struct admission_placement first = test_admission_admit(admission, &easy, 1), last = first;
    assert_int_equal(first.unit, 0);
    assert_int_equal(first.period_ns, 0);
    while (last.unit == 0)
        last = test_admission_admit(admission, &easy, 1);
    assert_true(admission_worker_at(admission, 0).utilisation_ppb < 250000000);
    assert_int_equal(last.unit, 1);
    assert_false(last.new_period); /* no stream was there that it would be new to */
    assert_true(last.period_ns <= 25 * MS && last.period_ns > 20 * MS);
    assert_int_equal(last.bound_ns, easy.latency_ns);
    assert_int_equal(admission_gpu_at(admission, 0).period_ns, last.period_ns);
    assert_int_equal(admission_gpu_at(admission, 0).memory_bytes, last.memory_bytes);
    assert_int_equal(test_admission_admit(admission, &easy, 1).unit, 1);
    struct admission_placement placement = test_admission_admit(admission, &urgent, 2);
    assert_true(placement.accepted && placement.bound_ns <= urgent.latency_ns);
    assert_int_equal(placement.unit, 0);
    assert_int_equal(admission_gpu_at(admission, 0).period_ns, last.period_ns);
    test_admission_holds(admission);
    admission_destroy(admission);
    config_profile_free(profile);
}

static void bad_input(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = NULL;
    struct admission_proposal proposal;
    struct admission_placement placement;
    struct core_error error = {{0}};
    uint32_t again;
    assert_int_equal(admission_create(&admission, profile, 0, 1, &error), CORE_INVALID);
    assert_int_equal(admission_create(&admission, profile, 1, 0, &error), CORE_INVALID);
    assert_null(admission);
    admission_destroy(NULL);
    admission = test_admission_of(profile, 1, 2);
    struct core_stream_spec good = test_admission_spec(10 * MS, 50 * MS),
                            bad = test_admission_spec(10 * MS, 1);
    assert_int_equal(admission_query(admission, &bad, 0, true, &placement, &error), CORE_INVALID);
    assert_int_equal(admission_admit(admission, &bad, 0, 1, &placement, &error), CORE_INVALID);
    assert_int_equal(admission_admit(admission, &good, 2, 1, &placement, &error), CORE_INVALID);
    assert_string_equal(error.text, "I/O thread 2: there are 2, from 0 on");
    assert_int_equal(
        admission_replan(admission, partition_plan_method_find("bound"), &good, 0, &proposal, &error),
        CORE_INVALID);
    assert_non_null(strstr(error.text, "bound"));
    assert_false(proposal.accepted);
    assert_null(proposal.move);
    placement = test_admission_admit(admission, &good, 1);
    assert_true(placement.accepted);
    assert_int_equal(admission_move(admission, placement.stream, 99, MS, &again, &error), CORE_REFUSED);
    assert_int_equal(admission_move(admission, placement.stream, 1, 0, &again, &error), CORE_REFUSED);
    assert_int_equal(admission_streams(admission), 1);
    admission_destroy(admission);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_preference_order),
        cmocka_unit_test(bad_input),
        cmocka_unit_test(random_replans),
        cmocka_unit_test(offers_are_accepted),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
