/* Standing plans: streams that survive the loss of a GPU. */
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
#include "tests/support/check_failover.h"
#include "tests/support/plan_sets.h"
#include "tests/support/share.h"
#include "tests/support/standing_plan.h"

#define MS       CORE_NS_PER_MS
#define PPB      INT64_C(1000000000)
#define MACHINES TEST_SHARE(24)
#define PROMISES 8192
#define SLOWER   40 /* workers that few streams fill */

struct tally {
    size_t on_workers, backed_by_workers, backed_by_gpus, refused, for_backups, standard;
    size_t changed, change_refused, moved, replans, retuned;
};

/* ---- what a placement says ---- */

static void expect_placement(const struct admission *admission, const struct core_stream_spec *spec,
                             const struct admission_placement *placement, struct tally *tally)
{
    bool backed = placement->backup_unit != ADMISSION_NONE;
    bool on_gpu = placement->unit >= admission->worker_count;
    assert_int_equal(backed, spec->guaranteed && on_gpu);
    tally->standard += !spec->guaranteed;
    tally->on_workers += spec->guaranteed && !on_gpu;
    assert_true(placement->bound_ns <= spec->latency_ns);
    if (!backed)
        return;
    bool by_worker = placement->backup_unit < admission->worker_count;
    tally->backed_by_workers += by_worker;
    tally->backed_by_gpus += !by_worker;
    assert_int_not_equal(placement->backup_unit, placement->unit);
    assert_true(placement->gpu_bound_ns > 0 && placement->backup_bound_ns <= spec->latency_ns);
    assert_true(placement->backup_bound_ns > placement->gpu_bound_ns + placement->detection_ns);
    assert_int_equal(placement->gpu_bound_ns + placement->detection_ns + placement->backup_spec.latency_ns,
                     spec->latency_ns);
    assert_true(placement->backup_spec.burst_packets > spec->burst_packets);
    assert_true(placement->reserved_ppb > 0);
    assert_int_equal(placement->backup_task.pieces > 0, by_worker);
    assert_int_equal(placement->backup_period_ns > 0, !by_worker);
}

/* The same figures as at its admission, as nothing has changed since. */
static void expect_told_again(const struct admission *admission, const struct admission_placement *placement)
{
    struct admission_placement again = admission_placement_of(admission, placement->stream);
    assert_int_equal(again.unit, placement->unit);
    assert_int_equal(again.backup_unit, placement->backup_unit);
    assert_int_equal(again.bound_ns, placement->bound_ns);
    assert_int_equal(again.gpu_bound_ns, placement->gpu_bound_ns);
    assert_int_equal(again.backup_bound_ns, placement->backup_bound_ns);
    assert_int_equal(again.period_ns, placement->period_ns);
    assert_int_equal(again.backup_period_ns, placement->backup_period_ns);
    assert_memory_equal(&again.task, &placement->task, sizeof again.task);
    assert_memory_equal(&again.backup_task, &placement->backup_task, sizeof again.backup_task);
    if (placement->backup_unit < admission->worker_count)
        assert_int_equal(again.reserved_ppb, placement->reserved_ppb);
}

/* An offer is accepted, if it is asked for next. */
static void expect_offers(const struct admission *admission, const struct core_stream_spec *spec,
                          const struct partition_offer *offer)
{
    struct core_stream_spec asked = *spec;
    asked.interval_ns = offer->interval_ns;
    assert_true(offer->interval_ns == 0 || test_admission_query(admission, &asked, false).accepted);
    asked = *spec;
    asked.latency_ns = offer->latency_ns;
    assert_true(offer->latency_ns == 0 || test_admission_query(admission, &asked, false).accepted);
}

static void admit_one(struct admission *admission, const struct core_stream_spec *spec, uint64_t handle,
                      bool offers, struct tally *tally)
{
    struct admission_placement before = test_admission_query(admission, spec, false);
    struct admission_placement placement = test_admission_admit(admission, spec, handle);
    assert_int_equal(before.accepted, placement.accepted);
    assert_int_equal(before.unit, placement.unit);
    assert_int_equal(before.backup_unit, placement.backup_unit);
    if (placement.accepted) {
        expect_placement(admission, spec, &placement, tally);
        expect_told_again(admission, &placement);
        return;
    }
    tally->refused += spec->guaranteed;
    tally->for_backups += placement.constraint == PERFMODEL_LIMIT_BACKUP;
    assert_true(strlen(placement.reason) > 40);
    if (offers)
        expect_offers(admission, spec, &placement.offer);
    struct core_stream_spec standard = *spec;
    standard.guaranteed = false;
    assert_int_equal(placement.constraint == PERFMODEL_LIMIT_BACKUP,
                     spec->guaranteed && test_admission_query(admission, &standard, false).accepted);
}

/* ---- random histories ---- */

static uint32_t any_stream(const struct admission *admission, struct test_random *random)
{
    size_t count = admission_streams(admission);
    return admission_stream_at(admission, (size_t)test_random_in(random, 0, (int64_t)count - 1)).stream;
}

static core_ns scaled(struct test_random *random, core_ns ns, core_ns low, core_ns high)
{
    ns = test_random_in(random, ns / 2, 2 * ns);
    return ns < low ? low : ns > high ? high : ns;
}

static void expect_same_spec(const struct core_stream_spec *a, const struct core_stream_spec *b)
{
    assert_int_equal(a->interval_ns, b->interval_ns);
    assert_int_equal(a->latency_ns, b->latency_ns);
    assert_int_equal(a->burst_packets, b->burst_packets);
}

static void expect_same(const struct admission_stream *a, const struct admission_stream *b)
{
    expect_same_spec(&a->spec, &b->spec);
    expect_same_spec(&a->contract, &b->contract);
    expect_same_spec(&a->join, &b->join);
    expect_same_spec(&a->backup_spec, &b->backup_spec);
    assert_int_equal(a->backup_unit, b->backup_unit);
    assert_int_equal(a->gpu_bound_ns, b->gpu_bound_ns);
    assert_int_equal(a->unit, b->unit);
}

static void change_one(struct admission *admission, struct test_random *random, struct tally *tally)
{
    uint32_t stream = any_stream(admission, random);
    struct admission_stream before = admission_stream_of(admission, stream);
    struct core_stream_spec spec = before.contract;
    struct admission_placement placement;
    struct core_error error;
    if (before.moved)
        return;
    spec.interval_ns = scaled(random, spec.interval_ns, CORE_INTERVAL_NS_MIN, CORE_INTERVAL_NS_MAX);
    spec.latency_ns = scaled(random, spec.latency_ns, CORE_LATENCY_NS_MIN, CORE_LATENCY_NS_MAX);
    assert_int_equal(admission_change(admission, stream, &spec, &placement, &error), CORE_OK);
    struct admission_stream after = admission_stream_of(admission, stream);
    if (!placement.accepted) {
        tally->change_refused += before.backup_unit != ADMISSION_NONE;
        expect_same(&after, &before);
        assert_true(strlen(placement.reason) > 40);
        struct core_stream_spec asked = spec;
        asked.latency_ns = placement.offer.latency_ns;
        if (asked.latency_ns > 0) {
            assert_int_equal(admission_change_query(admission, stream, &asked, false, &placement, &error),
                             CORE_OK);
            assert_true(placement.accepted);
        }
        return;
    }
    tally->changed += before.backup_unit != ADMISSION_NONE;
    assert_int_equal(after.unit, before.unit);
    assert_int_equal(after.contract.interval_ns, spec.interval_ns);
    assert_true(after.join.interval_ns <= spec.interval_ns && after.join.latency_ns <= spec.latency_ns);
    assert_int_equal(placement.backup_unit, after.backup_unit);
    assert_int_equal(placement.gpu_bound_ns, after.gpu_bound_ns);
}

static void move_one(struct admission *admission, struct test_random *random, struct tally *tally)
{
    uint32_t stream = any_stream(admission, random), again;
    uint32_t to = (uint32_t)test_random_in(random, 0, admission->worker_count + admission->gpus - 1);
    struct core_error error;
    core_ns period_ns = 0;
    if (to >= admission->worker_count) {
        period_ns = admission->gpu[to - admission->worker_count]->unit.period_ns;
        period_ns = period_ns > 0 ? period_ns : test_random_log(random, MS / 4, 40 * MS);
    }
    if (admission_move(admission, stream, to, period_ns, &again, &error) != CORE_OK)
        return;
    tally->moved += admission_stream_of(admission, again).backup_unit != ADMISSION_NONE;
    if (test_random_chance(random, 50))
        admission_release(admission, stream);
}

static void replan_one(struct admission *admission, const struct core_stream_spec *spec, struct tally *tally)
{
    const struct partition_plan_method *method = partition_plan_method_find("rectangle");
    struct admission_proposal proposal;
    struct core_error error;
    assert_int_equal(admission_replan(admission, method, spec, 0, &proposal, &error), CORE_OK);
    if (proposal.accepted) {
        uint32_t stream = test_admission_make_room(admission, &proposal, spec, 1);
        tally->replans += admission_stream_of(admission, stream).contract.guaranteed;
    }
    free(proposal.move);
}

static void do_something(struct admission *admission, const struct core_stream_spec *spec,
                         struct test_random *random, struct tally *tally)
{
    core_ns period_ns;
    uint32_t gpu = admission->gpus > 0 ? (uint32_t)test_random_in(random, 0, admission->gpus - 1) : 0;
    bool any = admission_streams(admission) > 0;
    if (any && test_random_chance(random, 30))
        change_one(admission, random, tally);
    if (any && test_random_chance(random, 20))
        admission_finalize(admission, any_stream(admission, random));
    if (any && test_random_chance(random, 20))
        move_one(admission, random, tally);
    if (test_random_chance(random, 20))
        test_admission_release_one(admission, random);
    if (test_random_chance(random, 2))
        replan_one(admission, spec, tally);
    if (admission->gpus == 0)
        return;
    if (test_random_chance(random, 10))
        admission_set_out(admission, gpu, test_random_chance(random, 40));
    if (test_random_chance(random, 10))
        tally->retuned += admission_retune(admission, gpu, &period_ns);
    if (test_random_chance(random, 5))
        admission_set_withheld(admission, test_random_chance(random, 50) ? 0 : admission->worker_count + gpu,
                               test_random_chance(random, 50) ? 0 : PPB / 10);
}

/* Every stream guaranteed but for some; at every step the checker verifies the loss of every GPU. */
static void random_histories(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 62};
    struct tally tally = {0};
    for (int n = 0; n < 2 * MACHINES; n++) {
        if (n % 2 == 0)
            test_plan_set_random(&set, &random);
        else
            test_brim_set_random(&set, &random);
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        admission_set_detection(admission, test_random_log(&random, 1000, 5 * MS));
        for (size_t i = 0; i < set.input.count; i++) {
            set.specs[i].guaranteed = test_random_chance(&random, 80);
            admit_one(admission, &set.specs[i], i, i % 8 == 0, &tally);
            do_something(admission, &set.specs[i], &random, &tally);
            if (i < 24 || i % 16 == 0)
                test_admission_holds(admission);
        }
        test_admission_holds(admission);
        while (admission_streams(admission) > 0)
            test_admission_release_one(admission, &random);
        test_admission_holds(admission);
        assert_int_equal(admission->protected, 0);
        admission_destroy(admission);
    }
    print_message(
        "%zu on workers, %zu backed by workers, %zu by GPUs, %zu standard; %zu refused, %zu of them for a "
        "backup\n",
        tally.on_workers, tally.backed_by_workers, tally.backed_by_gpus, tally.standard, tally.refused,
        tally.for_backups);
    print_message("%zu changed with a backup, %zu not, %zu moved, %zu plans anew, %zu retuned\n",
                  tally.changed, tally.change_refused, tally.moved, tally.replans, tally.retuned);
    assert_true(tally.on_workers > TEST_SHARE(500) && tally.backed_by_workers > TEST_SHARE(50) &&
                tally.backed_by_gpus > TEST_SHARE(200));
    assert_true(tally.for_backups > TEST_SHARE(100) && tally.changed > TEST_SHARE(50) &&
                tally.change_refused > TEST_SHARE(10));
    assert_true(tally.moved > TEST_SHARE(50) && tally.replans > 0 && tally.retuned > 0);
}

/* ---- by example ---- */

/* The shipped machine with so many cards, on which I/O threads are not what binds. */
static struct config_profile *machine(uint32_t cards)
{
    struct config_profile *profile = test_admission_profile();
    profile->io.per_packet_ns = profile->io.per_byte_fs = 0;
    profile->gpus[0].count = cards;
    return profile;
}

static struct core_stream_spec guaranteed(core_ns interval_ns, core_ns latency_ns)
{
    struct core_stream_spec spec = test_admission_spec(interval_ns, latency_ns);
    spec.guaranteed = true;
    return spec;
}

/* With one GPU a backup would ask more of a worker than the stream: it goes there, and needs none. */
static void one_gpu(void **state)
{
    (void)state;
    struct config_profile *profile = machine(1);
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = guaranteed(4 * MS, 100 * MS);
    struct admission_placement placement;
    while ((placement = test_admission_admit(admission, &spec, 1)).accepted) {
        assert_int_equal(placement.unit, 0);
        assert_int_equal(placement.backup_unit, ADMISSION_NONE);
        assert_int_equal(placement.reserved_ppb, 0);
    }
    assert_int_equal(placement.constraint, PERFMODEL_LIMIT_BACKUP);
    assert_string_equal(placement.reason,
                        "no unit has capacity for the backup that the stream needs in case GPU 0 fails, and "
                        "only a GPU can serve it; a standard stream would be accepted there");
    spec.guaranteed = false;
    assert_int_equal(test_admission_admit(admission, &spec, 1).unit, 1);
    test_admission_holds(admission);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* Two GPUs share the room that a worker holds for their losses: there are more guaranteed streams than with
 * the worker alone. Both are used, and so are both cases of the worker. */
static void two_gpus_share(void **state)
{
    (void)state;
    size_t streams[2];
    for (uint32_t cards = 0; cards < 2; cards++) {
        struct config_profile *profile = machine(cards * 2);
        profile->gpu_count = cards;
        struct admission *admission = test_admission_of(profile, 1, 1);
        struct core_stream_spec spec = guaranteed(4 * MS, 100 * MS);
        while (test_admission_admit(admission, &spec, 1).accepted)
            continue;
        streams[cards] = admission_streams(admission);
        test_admission_holds(admission);
        struct admission_worker load = admission_worker_at(admission, 0);
        assert_int_equal(load.reserved_ppb > 0, cards > 0);
        admission_destroy(admission);
        profile->gpu_count = 1;
        config_profile_free(profile);
    }
    print_message("%zu streams on the worker alone, %zu with two GPUs\n", streams[0], streams[1]);
    assert_true(streams[1] > streams[0] + streams[0] / 4);
}

/* A change settles to what the new contract asks of both units, and no less is promised in between. */
static void change_and_settle(void **state)
{
    (void)state;
    struct config_profile *profile = machine(2);
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = guaranteed(4 * MS, 100 * MS), slow = guaranteed(8 * MS, 200 * MS);
    struct admission_placement placement;
    struct core_error error;
    do
        placement = test_admission_admit(admission, &spec, 1);
    while (placement.unit == 0);
    assert_int_equal(placement.gpu_bound_ns + placement.detection_ns + placement.backup_spec.latency_ns,
                     100 * MS);
    uint32_t stream = placement.stream;
    assert_int_equal(admission_change(admission, stream, &slow, &placement, &error), CORE_OK);
    assert_true(placement.accepted && placement.joined);
    struct admission_stream is = admission_stream_of(admission, stream);
    assert_int_equal(is.join.interval_ns, 4 * MS);
    assert_int_equal(is.backup_spec.interval_ns, 4 * MS);
    test_admission_holds(admission);
    admission_finalize(admission, stream);
    is = admission_stream_of(admission, stream);
    assert_int_equal(is.spec.interval_ns, 8 * MS);
    assert_int_equal(is.spec.latency_ns, is.gpu_bound_ns);
    assert_int_equal(is.backup_spec.interval_ns, 8 * MS);
    assert_int_equal(is.gpu_bound_ns + is.detection_ns + is.backup_spec.latency_ns, 200 * MS);
    test_admission_holds(admission);
    slow.guaranteed = false;
    assert_int_equal(admission_change(admission, stream, &slow, &placement, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "standard: a stream keeps"));
    admission_destroy(admission);
    config_profile_free(profile);
}

/* A stream that changes keeps the unit of its backup where that has room, though new streams would get
 * another one by now: that of a worker, which is asked before any GPU. */
static void a_change_keeps_the_unit(void **state)
{
    (void)state;
    struct config_profile *profile = machine(2);
    profile->cpu.per_piece_ns *= SLOWER;
    for (int cipher = 0; cipher < CORE_CIPHER_COUNT; cipher++) {
        profile->cpu.per_byte_fs[cipher] *= SLOWER;
        profile->cpu.lane_ns[cipher] *= SLOWER;
    }
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = guaranteed(20 * MS, 1000 * MS), more = spec;
    struct admission_placement placement;
    struct core_error error;
    uint32_t filler[2048], fillers = 0;
    do {
        placement = test_admission_admit(admission, &spec, 2);
        assert_true(placement.accepted && fillers < 2048);
        filler[fillers++] = placement.stream;
    } while (placement.unit == 0 || placement.backup_unit == 0);
    uint32_t stream = filler[--fillers], unit = placement.backup_unit;
    for (uint32_t n = 0; n < fillers; n++)
        admission_release(admission, filler[n]);
    more.burst_packets++;
    assert_int_equal(admission_change(admission, stream, &more, &placement, &error), CORE_OK);
    assert_true(placement.accepted);
    assert_int_equal(placement.backup_unit, unit);
    assert_int_equal(admission_stream_of(admission, stream).backup_unit, unit);
    test_admission_holds(admission);
    admission_finalize(admission, stream);
    test_admission_holds(admission);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* ---- the checker itself ---- */

struct case_of_loss {
    struct check_failover_promise *promise;
    size_t count;
    struct partition_plan *after;
};

static core_status checked(const struct admission *admission, const struct case_of_loss *failure)
{
    struct core_error error = {{0}};
    return check_failover(admission->profile, admission->worker_count, failure->promise, failure->count, 0,
                          failure->after, &error);
}

/* Promises that are not what the certificate is of, or that nobody could keep, are found. */
static void checker_rejects_corrupted_plan(void **state)
{
    (void)state;
    struct config_profile *profile = machine(2);
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = guaranteed(4 * MS, 100 * MS);
    static struct check_failover_promise promise[PROMISES];
    struct case_of_loss failure = {.promise = promise};
    while (failure.count < PROMISES && test_admission_admit(admission, &spec, 1).accepted)
        failure.count++;
    size_t backed = PROMISES, elsewhere = PROMISES;
    for (size_t n = 0; n < failure.count; n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        promise[n] = (struct check_failover_promise){.contract = stream.join,
                                                     .unit = stream.unit,
                                                     .backed = stream.backup_unit != ADMISSION_NONE,
                                                     .backup_unit = stream.backup_unit,
                                                     .gpu_bound_ns = stream.gpu_bound_ns,
                                                     .detection_ns = stream.detection_ns};
        if (stream.unit == admission->worker_count && promise[n].backed)
            backed = n;
        if (stream.unit == admission->worker_count + 1 && promise[n].backed)
            elsewhere = n;
    }
    assert_true(backed < PROMISES && elsewhere < PROMISES);
    failure.after = test_admission_plan_after(admission, 0);
    assert_int_equal(checked(admission, &failure), CORE_OK);
    struct check_failover_promise *one = &promise[backed], was = *one;
    one->backed = false;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    one->backup_unit = one->unit;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    one->backup_unit = admission->worker_count + 1 - was.backup_unit;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    one->contract.guaranteed = false;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    one->detection_ns = 100 * MS;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    one->gpu_bound_ns = 0;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    one->contract.burst_packets = 4096; /* a worker has no time for so many at once */
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    one = &promise[elsewhere]; /* of no effect at this loss, but at that of its own GPU */
    was = *one;
    one->backed = false;
    one->contract.latency_ns = one->gpu_bound_ns;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    *one = was;
    failure.count--;
    assert_int_equal(checked(admission, &failure), CORE_REFUSED);
    failure.count++;
    assert_int_equal(checked(admission, &failure), CORE_OK);
    partition_plan_destroy(failure.after);
    admission_destroy(admission);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gpu),
        cmocka_unit_test(two_gpus_share),
        cmocka_unit_test(change_and_settle),
        cmocka_unit_test(a_change_keeps_the_unit),
        cmocka_unit_test(checker_rejects_corrupted_plan),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
