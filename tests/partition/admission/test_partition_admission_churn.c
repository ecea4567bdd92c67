/* Standing plans: periods that grow back, and units that keep room in reserve. */
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
#include "tests/support/brim_sets.h"
#include "tests/support/plan_sets.h"
#include "tests/support/share.h"

#define MS       CORE_NS_PER_MS
#define PPB      INT64_C(1000000000)
#define MACHINES TEST_SHARE(20)
#define CHURNED  40 /* few of them grow back */

/* ---- growing back ---- */

/* Nobody's promise is touched, no period gets shorter, and once is enough. */
static size_t retune_all(struct admission *admission)
{
    size_t changed = 0;
    for (uint32_t g = 0; g < admission->gpus; g++) {
        core_ns before_ns = admission_gpu_at(admission, g).period_ns, period_ns, again_ns;
        bool other = admission_retune(admission, g, &period_ns);
        assert_int_equal(period_ns, admission_gpu_at(admission, g).period_ns);
        assert_int_equal(other, period_ns > before_ns);
        assert_true(period_ns >= before_ns);
        assert_int_equal(period_ns == 0, admission_gpu_at(admission, g).streams == 0);
        assert_false(admission_retune(admission, g, &again_ns));
        assert_int_equal(again_ns, period_ns);
        changed += other;
    }
    return changed;
}

static void fill(struct admission *admission, const struct test_plan_set *set, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        (void)test_admission_admit(admission, &set->specs[i], i);
}

static void release_from(struct admission *admission, uint64_t handle)
{
    for (size_t n = admission_streams(admission); n-- > 0;) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (stream.handle >= handle)
            admission_release(admission, stream.stream);
    }
}

/* A third of the streams stays. The others come and go, and periods with them; who would be taken before is
 * taken after. */
static void capacity_after_churn(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 41};
    size_t grown = 0, probes = 0, taken = 0, more = 0;
    for (int n = 0; n < CHURNED; n++) {
        bool before[TEST_PLAN_STREAMS];
        if (n % 2 == 0)
            test_plan_set_random(&set, &random);
        else
            test_brim_set_random(&set, &random);
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        size_t stay = set.input.count / 3;
        fill(admission, &set, 0, stay);
        (void)retune_all(admission);
        for (size_t i = stay; i < set.input.count; i++)
            before[i] = test_admission_query(admission, &set.specs[i], false).accepted;
        for (int round = 0; round < 3; round++) {
            fill(admission, &set, stay, set.input.count);
            test_admission_holds(admission);
            release_from(admission, stay);
            grown += retune_all(admission);
            test_admission_holds(admission);
        }
        for (size_t i = stay; i < set.input.count; i++) {
            bool after = test_admission_query(admission, &set.specs[i], false).accepted;
            assert_true(after || !before[i]);
            more += after && !before[i];
            taken += before[i];
            probes++;
        }
        admission_destroy(admission);
    }
    print_message("%zu periods grown back, %zu of %zu probes taken, %zu more than before\n", grown, taken,
                  probes, more);
    assert_true(grown > 8 && taken > 500 && probes > taken + 500);
}

/* The default period, d'/4, is back once the stream with the short deadline has left. */
static void retune_to_default_period(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec easy = test_admission_spec(8 * MS, 100 * MS);
    struct core_stream_spec urgent = test_admission_spec(8 * MS, 20 * MS);
    struct core_error error;
    core_ns period_ns = -1, again_ns;
    uint32_t moved = ADMISSION_NONE;
    assert_false(admission_retune(admission, 0, &period_ns));
    assert_int_equal(period_ns, 0);
    while (admission_gpu_at(admission, 0).streams < 8)
        assert_true(test_admission_admit(admission, &easy, 1).accepted);
    core_ns rhythm_ns = admission_gpu_at(admission, 0).period_ns;
    assert_int_equal(test_admission_admit(admission, &urgent, 2).unit, 0);
    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (stream.handle != 2)
            continue;
        assert_int_equal(admission_move(admission, stream.stream, 1, 4 * MS, &moved, &error), CORE_OK);
        admission_release(admission, stream.stream);
        break;
    }
    assert_int_equal(admission_gpu_at(admission, 0).period_ns, 4 * MS);
    test_admission_holds(admission);
    admission_release(admission, moved);
    assert_true(admission_retune(admission, 0, &again_ns));
    assert_int_equal(again_ns, rhythm_ns);
    test_admission_holds(admission);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* ---- reserves ---- */

/* With all of a machine in reserve nobody comes in; without, who came before comes again. */
static void random_reserves(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 42};
    size_t told = 0, taken = 0, changed = 0;
    for (int n = 0; n < MACHINES; n++) {
        test_plan_set_random(&set, &random);
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        uint32_t units = set.input.workers + admission->gpus;
        for (size_t i = 0; i < set.input.count; i++) {
            bool before = test_admission_query(admission, &set.specs[i], false).accepted;
            for (uint32_t u = 0; u < units; u++)
                admission_set_withheld(admission, u, test_random_in(&random, 0, PPB / 2));
            struct admission_placement with = test_admission_query(admission, &set.specs[i], i % 8 == 0);
            assert_true(before || !with.accepted);
            told += with.constraint == PERFMODEL_LIMIT_RESERVE;
            assert_true((with.constraint == PERFMODEL_LIMIT_RESERVE) == (before && !with.accepted));
            if (with.constraint == PERFMODEL_LIMIT_RESERVE && i % 8 == 0) {
                struct core_stream_spec asked = set.specs[i];
                assert_non_null(strstr(with.reason, "withheld from admission after an overrun"));
                asked.latency_ns = with.offer.latency_ns;
                if (asked.latency_ns > 0)
                    assert_true(test_admission_query(admission, &asked, false).accepted);
            }
            if (admission_streams(admission) > 0) {
                struct admission_stream stream = admission_stream_at(admission, 0);
                struct admission_placement placement;
                struct core_error error;
                struct core_stream_spec less = stream.contract;
                less.interval_ns =
                    less.interval_ns < CORE_INTERVAL_NS_MAX / 2 ? 2 * less.interval_ns : less.interval_ns;
                assert_int_equal(admission_change(admission, stream.stream, &less, &placement, &error),
                                 CORE_OK);
                assert_true(placement.accepted); /* less of everything: no new stream */
                admission_finalize(admission, stream.stream);
                changed++;
            }
            for (uint32_t u = 0; u < units; u++)
                admission_set_withheld(admission, u, u == i % units ? PPB : 0);
            struct admission_placement placement = test_admission_admit(admission, &set.specs[i], i);
            assert_true(!placement.accepted || placement.unit != i % units);
            taken += placement.accepted;
            for (uint32_t u = 0; u < units; u++)
                admission_set_withheld(admission, u, 0);
            if (i % 16 == 0)
                test_admission_holds(admission);
        }
        admission_destroy(admission);
    }
    print_message("%zu told of a reserve, %zu taken by other units, %zu changed\n", told, taken, changed);
    assert_true(told > TEST_SHARE(100) && taken > TEST_SHARE(500) && changed > TEST_SHARE(500));
}

/* A share in reserve is a share less of capacity; the certificate is what it was. */
static void reserve_reduces_capacity(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct core_stream_spec spec = test_admission_spec(4 * MS, 100 * MS);
    profile->io.per_packet_ns = profile->io.per_byte_fs = 0; /* not what binds here */
    profile->gpu_count = 0;
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct admission_placement placement;
    admission_set_withheld(admission, 0, PPB / 5);
    assert_int_equal(admission_withheld_ppb(admission, 0), PPB / 5);
    while ((placement = test_admission_admit(admission, &spec, 1)).accepted)
        continue;
    assert_int_equal(placement.constraint, PERFMODEL_LIMIT_RESERVE);
    assert_string_equal(placement.reason,
                        "worker 0 would accept the stream, but 20.0 % of its capacity is withheld from "
                        "admission after an overrun; retry when that is over");
    struct admission_worker load = admission_worker_at(admission, 0);
    assert_true(load.headroom_ppb >= PPB / 5 && load.utilisation_ppb <= PPB - PPB / 5);
    size_t with = admission_streams(admission);
    admission_set_withheld(admission, 0, 0);
    while (test_admission_admit(admission, &spec, 1).accepted)
        continue;
    size_t without = admission_streams(admission);
    assert_true(with < without && with > without / 2);
    admission_set_withheld(admission, 0, PPB / 2); /* more than there is left: who is there stays */
    test_admission_holds(admission);
    assert_int_equal(admission_streams(admission), without);
    admission_destroy(admission);
    profile->gpu_count = 1;
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retune_to_default_period),
        cmocka_unit_test(capacity_after_churn),
        cmocka_unit_test(reserve_reduces_capacity),
        cmocka_unit_test(random_reserves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
