/* Workers and GPUs through their one table of functions: what a scenario counts, and that questions leave no
 * trace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "partition/admission/internal.h"
#include "tests/support/admission.h"

#define MS      CORE_NS_PER_MS
#define GPUS    3 /* that may fail */
#define PPB     INT64_C(1000000000)
#define STREAMS 40000

/* A machine with three GPUs; its unit 0 is a worker, unit 1 a GPU. */
struct rig {
    struct config_profile *profile;
    struct admission *admission;
    struct partition_demand demand;
};

static void begin(struct rig *rig)
{
    const struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    rig->profile = test_admission_profile();
    rig->profile->gpus[0].count = GPUS;
    rig->admission = test_admission_of(rig->profile, 1, 1);
    rig->demand = partition_demand_of(&spec, rig->profile);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        rig->admission->shared.place[h] = calloc(STREAMS, sizeof(uint32_t));
        rig->admission->shared.backup_place[h] = calloc(STREAMS, sizeof(uint32_t));
        assert_true(rig->admission->shared.place[h] != NULL &&
                    rig->admission->shared.backup_place[h] != NULL);
    }
    rig->admission->unit[1]->ops->retarget(rig->admission->unit[1], 10 * MS, 0);
}

static void end(struct rig *rig)
{
    admission_destroy(rig->admission);
    config_profile_free(rig->profile);
}

static void charge(struct rig *rig, uint32_t u, uint32_t scenario, uint32_t stream)
{
    struct partition_unit *unit = rig->admission->unit[u];
    assert_int_equal(unit->ops->reserve(unit, scenario), CORE_OK);
    unit->ops->charge(unit, scenario, stream, NULL, &rig->demand);
}

static void give_back(struct rig *rig, uint32_t u, uint32_t scenario, uint32_t stream)
{
    struct partition_unit *unit = rig->admission->unit[u];
    unit->ops->charge(unit, scenario, stream, &rig->demand, NULL);
}

static bool takes(const struct rig *rig, uint32_t u, uint32_t scenario, bool instead)
{
    const struct partition_question question = {.more = &rig->demand,
                                                .instead_of = instead ? &rig->demand : NULL,
                                                .scenario = scenario,
                                                .period = PARTITION_PERIOD_PRESENT};
    return partition_unit_ask(rig->admission->unit[u], &question).accepted;
}

/* Numbers of streams from `first` on, until the unit refuses. */
static uint32_t fill(struct rig *rig, uint32_t u, uint32_t scenario, uint32_t first)
{
    uint32_t stream = first;
    while (stream < STREAMS && takes(rig, u, scenario, false))
        charge(rig, u, scenario, stream++);
    assert_true(stream > first && stream < STREAMS);
    return stream;
}

/* Backups of one scenario take nothing from those of another, but from the unit's own streams. */
static void scenarios_share_capacity(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < 2; u++) {
        struct rig rig;
        begin(&rig);
        uint32_t one = fill(&rig, u, 1, 0), both = fill(&rig, u, 2, one);
        assert_int_equal(both - one, one);
        assert_false(takes(&rig, u, PARTITION_OWN, false));
        give_back(&rig, u, 1, 0);
        assert_true(takes(&rig, u, 1, false));
        assert_false(takes(&rig, u, PARTITION_OWN, false)); /* the other scenario is full still */
        give_back(&rig, u, 2, one);
        assert_true(takes(&rig, u, PARTITION_OWN, false));
        charge(&rig, u, PARTITION_OWN, both);
        assert_false(takes(&rig, u, 1, false));
        assert_false(takes(&rig, u, 2, false));
        end(&rig);
    }
}

/* A full unit takes a stream in the place of one that it has, in the same scenario; the question changes
 * nothing. */
static void replaced_stream_is_not_counted(void **state)
{
    static const uint32_t scenarios[] = {PARTITION_OWN, 1};
    (void)state;
    for (uint32_t n = 0; n < 4; n++) {
        uint32_t u = n / 2, scenario = scenarios[n % 2];
        struct rig rig;
        begin(&rig);
        (void)fill(&rig, u, scenario, 0);
        for (int time = 0; time < 3; time++) {
            assert_true(takes(&rig, u, scenario, true));
            assert_false(takes(&rig, u, scenario, false));
        }
        end(&rig);
    }
}

/* All that is given back leaves the unit as it was. */
static void charges_leave_no_trace(void **state)
{
    static const uint32_t scenarios[] = {PARTITION_OWN, 0};
    (void)state;
    for (uint32_t n = 0; n < 4; n++) {
        uint32_t u = n / 2, scenario = scenarios[n % 2];
        struct rig rig;
        begin(&rig);
        struct partition_unit *unit = rig.admission->unit[u];
        unit->ops->retarget(unit, 10 * MS, 1 << 20);
        uint32_t count = fill(&rig, u, scenario, 0);
        for (uint32_t stream = 0; stream < count; stream++)
            give_back(&rig, u, scenario, stream);
        assert_int_equal(unit->period_ns, 0);
        assert_int_equal(rig.admission->shared.pinned_bytes, 0);
        unit->ops->retarget(unit, 10 * MS, 0);
        assert_int_equal(fill(&rig, u, scenario, 0), count);
        end(&rig);
    }
}

/* What is withheld from admission is there for a question that asks for the whole. */
static void whole_unit_has_what_is_withheld(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < 2; u++) {
        struct rig rig;
        begin(&rig);
        struct partition_question question = {
            .more = &rig.demand, .scenario = PARTITION_OWN, .period = PARTITION_PERIOD_PRESENT};
        rig.admission->unit[u]->reserve_ppb = PPB;
        assert_false(partition_unit_ask(rig.admission->unit[u], &question).accepted);
        question.whole = true;
        assert_true(partition_unit_ask(rig.admission->unit[u], &question).accepted);
        end(&rig);
    }
}

/* A unit without a period takes a stream at another one only. */
static void period_is_asked_for(void **state)
{
    (void)state;
    struct rig rig;
    begin(&rig);
    struct partition_unit *gpu = rig.admission->unit[1];
    struct partition_question question = {.more = &rig.demand, .scenario = PARTITION_OWN};
    gpu->ops->retarget(gpu, 0, 0);
    question.period = PARTITION_PERIOD_PRESENT;
    assert_false(partition_unit_ask(gpu, &question).accepted);
    question.period = PARTITION_PERIOD_BEST;
    assert_true(partition_unit_ask(gpu, &question).accepted);
    question.period = PARTITION_PERIOD_AT;
    question.period_ns = 7 * MS;
    assert_int_equal(partition_unit_ask(gpu, &question).verdict.period_ns, 7 * MS);
    assert_true(partition_unit_takes(gpu, &rig.demand));
    end(&rig);
}

/* The longest packet, padded and with an IV that the server puts ahead of it, is one of the sizes, too. */
static void longest_packet_is_counted(void **state)
{
    (void)state;
    struct partition_sizes sizes = {0};
    const struct core_stream_spec spec = {.packet_bytes = CORE_PACKET_BYTES_MAX,
                                          .padding = CORE_PADDING_PKCS7,
                                          .unit = CORE_UNIT_MESSAGE,
                                          .iv = CORE_IV_RANDOM};
    const uint32_t bytes = core_stream_packet_bytes(&spec);
    assert_int_equal(bytes, PARTITION_SIZES_BLOCKS_MAX * CORE_BLOCK_BYTES);
    assert_int_equal(partition_sizes_reserve(&sizes), CORE_OK);
    partition_sizes_add(&sizes, bytes);
    assert_int_equal(partition_sizes_divisor_bytes(&sizes), bytes);
    partition_sizes_remove(&sizes, bytes);
    assert_int_equal(partition_sizes_divisor_bytes(&sizes), 0);
    partition_sizes_free(&sizes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scenarios_share_capacity), cmocka_unit_test(replaced_stream_is_not_counted),
        cmocka_unit_test(charges_leave_no_trace),   cmocka_unit_test(whole_unit_has_what_is_withheld),
        cmocka_unit_test(period_is_asked_for),      cmocka_unit_test(longest_packet_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
