/* Standing plans: moves on which packets may be held, while others come and go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "partition/admission/admission.h"
#include "partition/admission/internal.h"
#include "tests/support/admission.h"
#include "tests/support/brim_sets.h"
#include "tests/support/plan_sets.h"
#include "tests/support/share.h"

#define MS       CORE_NS_PER_MS
#define MACHINES TEST_SHARE(36)

/* ---- what a unit keeps ---- */

static void add_load(struct perfmodel_flow_load *sum, const struct core_stream_spec *spec,
                     const struct config_profile *profile)
{
    struct perfmodel_flow_load load = partition_demand_of(spec, profile).load;
    perfmodel_flow_load_add(sum, &load);
}

/* Period and stages of a GPU as they are bounded now with what comes at the loss of another (NONE: nothing),
 * added up anew. */
static core_ns latency_at(const struct admission *admission, uint32_t unit, uint32_t lost)
{
    const struct partition_gpu *gpu = admission->gpu[unit - admission->worker_count];
    struct perfmodel_flow_load sum = {0};
    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (stream.unit == unit)
            add_load(&sum, &stream.spec, admission->profile);
        if (stream.backup_unit == unit && stream.unit == lost)
            add_load(&sum, &stream.backup_spec, admission->profile);
    }
    return perfmodel_flow_judge(gpu->card, &sum, gpu->unit.period_ns).latency_ns;
}

static core_ns latency_of(const struct admission *admission, uint32_t unit)
{
    core_ns most_ns = latency_at(admission, unit, ADMISSION_NONE);
    for (uint32_t lost = admission->worker_count; lost < admission->worker_count + admission->gpus; lost++) {
        core_ns then_ns = latency_at(admission, unit, lost);
        most_ns = core_time_max(then_ns, most_ns);
    }
    return most_ns;
}

static core_ns bound_of(const struct admission *admission, uint32_t unit,
                        const struct core_stream_spec *contract)
{
    const struct config_profile *profile = admission->profile;
    const struct partition_demand demand = partition_demand_of(contract, profile);
    if (unit < admission->worker_count)
        return admission->unit[unit]->ops->bound_ns(admission->unit[unit], &demand);
    return latency_of(admission, unit) + profile->margins.in_ns + profile->margins.out_ns +
           perfmodel_io_rest_ns(contract->latency_ns, profile);
}

/* ---- any machine ---- */

struct held {
    uint32_t from, to; /* numbers */
    core_ns bound_ns;  /* that was told */
};

struct tally {
    size_t moved, held[2], halves, refused, settled, undone, watched;
};

static struct held holds[TEST_PLAN_STREAMS];
static size_t hold_count;

static void expect_same(const struct core_stream_spec *a, const struct core_stream_spec *b)
{
    assert_int_equal(a->interval_ns, b->interval_ns);
    assert_int_equal(a->burst_packets, b->burst_packets);
    assert_int_equal(a->latency_ns, b->latency_ns);
}

/* It is charged for the least latency bound that leaves so much. */
static void expect_charged(const struct admission *admission, const struct admission_stream *stream,
                           core_ns work_ns)
{
    struct core_stream_spec spec = stream->spec;
    assert_true(perfmodel_gpu_work_ns(&spec, admission->profile) >= work_ns);
    spec.latency_ns--;
    assert_true(perfmodel_gpu_work_ns(&spec, admission->profile) < work_ns);
}

static void hold(struct admission *admission, uint32_t from, uint32_t to, struct test_random *random,
                 struct tally *tally)
{
    struct admission_stream old = admission_stream_of(admission, from);
    struct admission_stream new = admission_stream_of(admission, to);
    core_ns bound_ns = bound_of(admission, old.unit, &old.contract), told_ns;
    bool on_gpu = old.unit >= admission->worker_count;
    core_ns batches_ns = on_gpu ? latency_of(admission, old.unit) : 0;
    core_ns more_ns = test_random_chance(random, 30) ? test_random_in(random, 0, batches_ns / 2) : 0;
    bool held = admission_reserve_catch_up(admission, to, more_ns > 0 ? batches_ns + more_ns : 0, &told_ns);
    struct admission_stream old_now = admission_stream_of(admission, from);
    struct admission_stream new_now = admission_stream_of(admission, to);
    expect_same(&old_now.contract, &old.contract);
    expect_same(&new_now.contract, &new.contract);
    if (!held) {
        expect_same(&old_now.spec, &old.spec);
        expect_same(&new_now.spec, &new.spec);
        tally->refused++;
        return;
    }
    assert_false(old.joined || new.joined);
    assert_int_equal(old.backup_unit, ADMISSION_NONE);
    assert_int_equal(new.backup_unit, ADMISSION_NONE);
    core_ns work_ns = batches_ns + more_ns, half_ns = 0;
    if (on_gpu)
        half_ns = (perfmodel_gpu_work_ns(&old.contract, admission->profile) - work_ns) / 2;
    assert_true(told_ns == bound_ns + more_ns || told_ns == bound_ns + more_ns + half_ns);
    assert_int_equal(new_now.spec.latency_ns, new.contract.latency_ns - told_ns);
    new_now.spec.latency_ns = new.contract.latency_ns;
    expect_same(&new_now.spec, &new.contract);
    if (on_gpu)
        expect_charged(admission, &old_now, batches_ns + told_ns - bound_ns);
    else
        expect_same(&old_now.spec, &old.contract);
    tally->held[on_gpu]++;
    tally->halves += on_gpu && told_ns > bound_ns + more_ns;
    holds[hold_count++] = (struct held){from, to, told_ns};
}

/* What was told stays, whoever comes. */
static void expect_bounds(const struct admission *admission, struct tally *tally)
{
    for (size_t i = 0; i < hold_count; i++) {
        struct admission_stream from = admission_stream_of(admission, holds[i].from);
        assert_true(bound_of(admission, from.unit, &from.contract) <= holds[i].bound_ns);
        tally->watched++;
    }
}

static uint32_t any_stream(const struct admission *admission, struct test_random *random)
{
    size_t count = admission_streams(admission);
    return admission_stream_at(admission, (size_t)test_random_in(random, 0, (int64_t)count - 1)).stream;
}

static bool is_held(uint32_t stream)
{
    bool found = false;
    for (size_t i = 0; i < hold_count; i++)
        found = found || holds[i].from == stream || holds[i].to == stream;
    return found;
}

static void move_one(struct admission *admission, struct test_random *random, struct tally *tally)
{
    uint32_t from = any_stream(admission, random), to;
    uint32_t unit = (uint32_t)test_random_in(random, 0, admission->worker_count + admission->gpus - 1);
    core_ns period_ns = unit < admission->worker_count
                            ? 0
                            : admission_gpu_at(admission, unit - admission->worker_count).period_ns;
    if (is_held(from) || admission_move(admission, from, unit, period_ns, &to, NULL) != CORE_OK)
        return;
    tally->moved++;
    hold(admission, from, to, random, tally);
}

/* The stream is on B for good, where it has caught up, or not yet; or it stays on A. */
static void end_one(struct admission *admission, struct test_random *random, struct tally *tally)
{
    if (hold_count == 0)
        return;
    struct held *held = &holds[test_random_in(random, 0, (int64_t)hold_count - 1)];
    struct admission_stream from = admission_stream_of(admission, held->from);
    if (test_random_chance(random, 50)) {
        admission_release(admission, held->from);
        if (test_random_chance(random, 80))
            admission_finalize(admission, held->to);
        tally->settled++;
    } else {
        if (test_random_chance(random, 50))
            admission_finalize(admission, held->from);
        admission_release(admission, held->to);
        admission_finalize(admission, held->from);
        struct admission_stream now = admission_stream_of(admission, held->from);
        assert_false(now.moved || now.joined);
        expect_same(&now.spec, &from.contract);
        tally->undone++;
    }
    *held = holds[--hold_count];
}

static void release_one(struct admission *admission, struct test_random *random)
{
    uint32_t stream = any_stream(admission, random);
    if (!is_held(stream))
        admission_release(admission, stream);
}

static void history(struct test_plan_set *set, struct test_random *random, struct tally *tally)
{
    struct admission *admission = test_admission_of(&set->profile, set->input.workers, 1);
    hold_count = 0;
    for (size_t i = 0; i < set->input.count; i++) {
        set->specs[i].guaranteed = test_random_chance(random, 15);
        (void)test_admission_admit(admission, &set->specs[i], i);
        if (admission_streams(admission) == 0)
            continue;
        if (test_random_chance(random, 40))
            move_one(admission, random, tally);
        if (test_random_chance(random, 20))
            end_one(admission, random, tally);
        if (test_random_chance(random, 15))
            release_one(admission, random);
        expect_bounds(admission, tally);
        if (i < 24 || i % 16 == 0)
            test_admission_holds(admission);
    }
    while (hold_count > 0)
        end_one(admission, random, tally);
    test_admission_holds(admission);
    while (admission_streams(admission) > 0)
        test_admission_release_one(admission, random);
    test_admission_holds(admission);
    admission_destroy(admission);
}

static void random_holds(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 41};
    struct tally tally = {0};
    for (int n = 0; n < MACHINES; n++) {
        if (n % 2 == 0)
            test_plan_set_random(&set, &random);
        else
            test_brim_set_random(&set, &random);
        history(&set, &random, &tally);
    }
    print_message("%zu moves, %zu may be held by workers and %zu by GPUs, %zu of them half way, %zu may not; "
                  "%zu settled, %zu came "
                  "to nothing; %zu times a bound was looked at\n",
                  tally.moved, tally.held[0], tally.held[1], tally.halves, tally.refused, tally.settled,
                  tally.undone, tally.watched);
    assert_true(tally.held[0] > TEST_SHARE(50) && tally.held[1] > TEST_SHARE(20) &&
                tally.halves > TEST_SHARE(5) && tally.halves < tally.held[1] &&
                tally.refused > TEST_SHARE(50));
    assert_true(tally.settled > TEST_SHARE(30) && tally.undone > TEST_SHARE(30) &&
                tally.watched > TEST_SHARE(1000));
}

/* ---- one by one ---- */

/* B refuses what is left of the latency bound, and takes it all: an idle moment will have to do. */
static void a_worker_that_takes_all_of_the_latency_only(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 2, 1);
    struct core_stream_spec spec = test_admission_spec(100 * MS, 4 * MS);
    uint32_t from = test_admission_admit(admission, &spec, 1).stream, to;
    core_ns bound_ns;
    assert_int_equal(admission_stream_of(admission, from).unit, 0);
    assert_int_equal(admission_move(admission, from, 1, 0, &to, NULL), CORE_OK);
    /* t is more than d: a worker takes all of d for one packet */
    assert_true(admission_placement_of(admission, from).bound_ns > 4 * MS - MS / 10);
    assert_false(admission_reserve_catch_up(admission, to, 0, &bound_ns));
    admission_release(admission, to);
    assert_false(admission_stream_of(admission, from).joined);
    test_admission_holds(admission);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* While packets may be held new streams find the rest; once they are not, as much as before. */
static void hold_reservation_released(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct core_stream_spec spec = test_admission_spec(10 * MS, 100 * MS);
    struct core_stream_spec urgent = test_admission_spec(40 * MS, 3 * MS); /* its short windows tell */
    core_ns bound_ns;
    size_t room[3];
    spec.packet_bytes = 400000;
    urgent.packet_bytes = 60000;
    spec.burst_packets = 8;                /* all of which A may have 80 ms for, so that B is left 20 */
    for (int step = 0; step < 3; step++) { /* before, held, settled */
        struct admission *admission = test_admission_of(profile, 2, 1);
        uint32_t from = test_admission_admit(admission, &spec, 1).stream, to;
        uint32_t other = 1 - admission_stream_of(admission, from).unit;
        assert_true(other < 2);
        assert_int_equal(admission_move(admission, from, other, 0, &to, NULL), CORE_OK);
        if (step > 0)
            assert_true(admission_reserve_catch_up(admission, to, 0, &bound_ns));
        admission_release(admission, from);
        if (step == 2)
            admission_finalize(admission, to);
        while (test_admission_admit(admission, &urgent, 0).accepted)
            continue;
        room[step] = admission_streams(admission);
        test_admission_holds(admission);
        admission_destroy(admission);
    }
    print_message("%zu streams, %zu while one may be held\n", room[0], room[1]);
    assert_true(room[1] < room[0]);
    assert_int_equal(room[2], room[0]);
    config_profile_free(profile);
}

static void holds_rejected(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 2, 1);
    struct core_stream_spec spec = test_admission_spec(4 * MS, 100 * MS), less = spec;
    struct admission_placement placement;
    core_ns bound_ns, period_ns = 25 * MS;
    uint32_t card = 2, mine = test_admission_admit(admission, &spec, 1).stream, to, again;
    assert_false(admission_reserve_catch_up(admission, mine, 0, &bound_ns)); /* it does not move */

    less.latency_ns = 50 * MS;
    assert_int_equal(admission_change(admission, mine, &less, &placement, NULL), CORE_OK);
    assert_int_equal(admission_change(admission, mine, &spec, &placement, NULL), CORE_OK);
    assert_true(admission_stream_of(admission, mine).joined);
    assert_int_equal(admission_move(admission, mine, card, period_ns, &to, NULL), CORE_OK);
    assert_false(admission_reserve_catch_up(admission, to, 0, &bound_ns)); /* it has changed */
    admission_release(admission, mine);
    admission_finalize(admission, to);

    assert_int_equal(admission_move(admission, to, 1, 0, &again, NULL), CORE_OK);
    admission_set_out(admission, 0, true);
    assert_false(admission_reserve_catch_up(admission, again, 0, &bound_ns)); /* its GPU is out of service */
    admission_set_out(admission, 0, false);
    assert_true(admission_reserve_catch_up(admission, again, 0, &bound_ns));
    assert_true(bound_ns > period_ns && bound_ns < 70 * MS);
    assert_false(admission_reserve_catch_up(admission, again, 0, &bound_ns)); /* it may be already */
    admission_release(admission, to);
    assert_int_equal(admission_move(admission, again, 0, 0, &to, NULL), CORE_OK);
    assert_false(admission_reserve_catch_up(admission, to, 0, &bound_ns)); /* the last one has not settled */
    test_admission_holds(admission);
    admission_destroy(admission);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_holds),
        cmocka_unit_test(a_worker_that_takes_all_of_the_latency_only),
        cmocka_unit_test(hold_reservation_released),
        cmocka_unit_test(holds_rejected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
