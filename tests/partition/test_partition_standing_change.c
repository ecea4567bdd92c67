/* Standing plans: streams that change their contract, and GPUs that are out of service. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "partition/admission/admission.h"
#include "partition/admission/internal.h"
#include "tests/support/brim_sets.h"
#include "tests/support/plan_sets.h"
#include "tests/support/standing.h"

#define MS               CORE_NS_PER_MS
#define MACHINES         60
#define CHANGED_MACHINES 90

/* ---- changes ---- */

static struct partition_standing_placement change(struct partition_standing *standing, uint32_t stream,
                                                  const struct core_stream_spec *spec)
{
    struct partition_standing_placement placement;
    struct core_error error = {{0}};
    if (partition_standing_change(standing, stream, spec, &placement, &error) != CORE_OK)
        fail_msg("%s", error.text);
    return placement;
}

static bool would_change(struct partition_standing *standing, uint32_t stream,
                         const struct core_stream_spec *spec)
{
    struct partition_standing_placement placement;
    struct core_error error = {{0}};
    if (partition_standing_change_query(standing, stream, spec, false, &placement, &error) != CORE_OK)
        fail_msg("%s", error.text);
    return placement.accepted;
}

/* Between half and twice of each figure, or as it is. */
static struct core_stream_spec another(const struct core_stream_spec *spec, struct test_random *random)
{
    struct core_stream_spec other = *spec;
    if (test_random_chance(random, 70))
        other.interval_ns = test_random_in(random, spec->interval_ns / 2, 2 * spec->interval_ns);
    if (test_random_chance(random, 70))
        other.latency_ns = test_random_in(random, spec->latency_ns / 2, 2 * spec->latency_ns);
    if (test_random_chance(random, 50))
        other.burst_packets =
            (uint32_t)test_random_in(random, spec->burst_packets / 2 + 1, 2 * spec->burst_packets);
    other.interval_ns = core_time_max(other.interval_ns, CORE_INTERVAL_NS_MIN);
    other.interval_ns = core_time_min(other.interval_ns, CORE_INTERVAL_NS_MAX);
    other.latency_ns = core_time_max(other.latency_ns, CORE_LATENCY_NS_MIN);
    other.latency_ns = core_time_min(other.latency_ns, CORE_LATENCY_NS_MAX);
    other.burst_packets = other.burst_packets > CORE_BURST_MAX ? CORE_BURST_MAX : other.burst_packets;
    return other;
}

static void expect_same_spec(const struct core_stream_spec *a, const struct core_stream_spec *b)
{
    assert_int_equal(a->interval_ns, b->interval_ns);
    assert_int_equal(a->latency_ns, b->latency_ns);
    assert_int_equal(a->burst_packets, b->burst_packets);
}

/* Charged for no less than both: what it was charged for, and what it has now. */
static void expect_joined(const struct partition_standing_stream *before,
                          const struct partition_standing_stream *after, const struct core_stream_spec *spec,
                          const struct partition_standing_placement *placement)
{
    const struct core_stream_spec *was = &before->spec, *is = &after->spec;
    expect_same_spec(&after->contract, spec);
    assert_int_equal(is->interval_ns,
                     was->interval_ns < spec->interval_ns ? was->interval_ns : spec->interval_ns);
    assert_int_equal(is->latency_ns, core_time_min(was->latency_ns, spec->latency_ns));
    assert_int_equal(is->burst_packets,
                     was->burst_packets > spec->burst_packets ? was->burst_packets : spec->burst_packets);
    assert_int_equal(after->unit, before->unit);
    assert_int_equal(placement->unit, before->unit);
    assert_int_equal(placement->joined, after->joined);
    assert_true(placement->bound_ns > 0 && placement->bound_ns <= spec->latency_ns);
}

/* As it was to the last figure; and the offer is one. */
static void expect_refused(struct partition_standing *standing,
                           const struct partition_standing_stream *before,
                           const struct core_stream_spec *spec,
                           const struct partition_standing_placement *placement)
{
    struct partition_standing_stream after = partition_standing_stream_of(standing, before->stream);
    struct core_stream_spec asked = *spec;
    assert_memory_equal(&after.spec, &before->spec, sizeof after.spec);
    assert_memory_equal(&after.contract, &before->contract, sizeof after.contract);
    assert_true(strlen(placement->reason) > 40);
    assert_true(strlen(placement->reason) + 1 < sizeof placement->reason);
    assert_int_not_equal(placement->constraint, PERFMODEL_LIMIT_NONE);
    asked.interval_ns =
        placement->offer.interval_ns > 0 ? placement->offer.interval_ns : CORE_INTERVAL_NS_MAX;
    assert_int_equal(would_change(standing, before->stream, &asked), placement->offer.interval_ns > 0);
    asked.interval_ns--;
    assert_false(would_change(standing, before->stream, &asked));
    asked = *spec;
    asked.latency_ns = placement->offer.latency_ns > 0 ? placement->offer.latency_ns : CORE_LATENCY_NS_MAX;
    assert_int_equal(would_change(standing, before->stream, &asked), placement->offer.latency_ns > 0);
    asked.latency_ns--;
    assert_false(would_change(standing, before->stream, &asked));
}

struct tally {
    size_t accepted, refused, joined, new_periods, moved, elsewhere, same_unit;
};

static uint32_t any_stream(const struct partition_standing *standing, struct test_random *random)
{
    size_t count = partition_standing_streams(standing);
    return partition_standing_stream_at(standing, (size_t)test_random_in(random, 0, (int64_t)count - 1))
        .stream;
}

/* Its own unit has refused: as a newcomer beside itself, on whatever unit; then one of both numbers goes. */
static void change_elsewhere(struct partition_standing *standing,
                             const struct partition_standing_stream *before,
                             const struct core_stream_spec *spec, struct test_random *random,
                             struct tally *tally)
{
    struct partition_standing_placement placement = test_standing_admit(standing, spec, before->handle);
    struct partition_standing_stream old = partition_standing_stream_of(standing, before->stream);
    assert_memory_equal(&old.spec, &before->spec, sizeof old.spec);
    assert_memory_equal(&old.contract, &before->contract, sizeof old.contract);
    if (!placement.accepted)
        return;
    tally->elsewhere++;
    tally->same_unit += placement.unit == before->unit;
    struct partition_standing_stream again = partition_standing_stream_of(standing, placement.stream);
    expect_same_spec(&again.contract, spec);
    assert_true(placement.bound_ns > 0 && placement.bound_ns <= spec->latency_ns);
    test_standing_holds(standing);
    bool changed = test_random_chance(random, 70);
    partition_standing_release(standing, changed ? before->stream : placement.stream);
    test_standing_holds(standing);
}

static void change_one(struct partition_standing *standing, struct test_random *random, struct tally *tally)
{
    if (partition_standing_streams(standing) == 0)
        return;
    uint32_t stream = any_stream(standing, random);
    struct partition_standing_stream before = partition_standing_stream_of(standing, stream);
    struct core_stream_spec spec = another(&before.contract, random);
    if (before.moved)
        return;
    int64_t io_ppb = partition_standing_io_ppb(standing, 0);
    struct partition_standing_placement placement = change(standing, stream, &spec);
    tally->accepted += placement.accepted;
    tally->refused += !placement.accepted;
    tally->new_periods += placement.new_period;
    if (!placement.accepted) {
        expect_refused(standing, &before, &spec, &placement);
        assert_int_equal(partition_standing_io_ppb(standing, 0), io_ppb);
        change_elsewhere(standing, &before, &spec, random, tally);
        return;
    }
    struct partition_standing_stream after = partition_standing_stream_of(standing, stream);
    expect_joined(&before, &after, &spec, &placement);
    tally->joined += after.joined;
}

/* A stream goes to any unit that takes it, joined or not, and the old number is released later. */
static void move_one(struct partition_standing *standing, struct test_random *random, struct tally *tally)
{
    struct core_error error;
    if (partition_standing_streams(standing) == 0)
        return;
    uint32_t stream = any_stream(standing, random), again;
    uint32_t to = (uint32_t)test_random_in(random, 0, standing->worker_count + standing->gpus - 1);
    core_ns period_ns = 0;
    if (to >= standing->worker_count)
        period_ns = standing->gpu[to - standing->worker_count]->unit.period_ns;
    struct partition_standing_stream before = partition_standing_stream_of(standing, stream);
    if (partition_standing_move(standing, stream, to, period_ns, &again, &error) != CORE_OK)
        return;
    struct partition_standing_stream after = partition_standing_stream_of(standing, again);
    expect_same_spec(&after.spec, &before.spec);
    expect_same_spec(&after.contract, &before.contract);
    assert_true(partition_standing_stream_of(standing, stream).moved);
    tally->moved += before.joined;
}

/* The I/O thread is charged for every stream once, for the join. */
static void expect_io(const struct partition_standing *standing)
{
    int64_t sum = 0;
    for (size_t n = 0; n < partition_standing_streams(standing); n++) {
        struct partition_standing_stream stream = partition_standing_stream_at(standing, n);
        if (!stream.moved)
            sum += perfmodel_io_utilisation_ppb(&stream.spec, standing->profile);
    }
    assert_int_equal(partition_standing_io_ppb(standing, 0), sum);
}

static void settle_one(struct partition_standing *standing, struct test_random *random)
{
    if (partition_standing_streams(standing) == 0)
        return;
    uint32_t stream = any_stream(standing, random);
    struct partition_standing_stream before = partition_standing_stream_of(standing, stream);
    partition_standing_settle(standing, stream);
    struct partition_standing_stream after = partition_standing_stream_of(standing, stream);
    expect_same_spec(&after.spec, &before.contract);
    assert_false(after.joined);
}

/* Admissions, changes, moves, settles and releases in any order; what stands is proven at every step. */
static void histories(struct test_plan_set *set, struct test_random *random, struct tally *tally)
{
    struct partition_standing *standing = test_standing_of(&set->profile, set->input.workers, 1);
    for (size_t i = 0; i < set->input.count; i++) {
        (void)test_standing_admit(standing, &set->specs[i], i);
        if (test_random_chance(random, 40))
            change_one(standing, random, tally);
        if (test_random_chance(random, 15))
            settle_one(standing, random);
        if (test_random_chance(random, 10))
            move_one(standing, random, tally);
        if (test_random_chance(random, 20))
            test_standing_release_one(standing, random);
        if (i < 24 || i % 16 == 0)
            test_standing_holds(standing);
        expect_io(standing);
    }
    while (partition_standing_streams(standing) > 0)
        test_standing_release_one(standing, random);
    test_standing_holds(standing);
    expect_io(standing);
    partition_standing_destroy(standing);
}

static void random_changes(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 31};
    struct tally tally = {0};
    for (int n = 0; n < CHANGED_MACHINES; n++) {
        if (n % 2 == 0)
            test_plan_set_random(&set, &random);
        else
            test_brim_set_random(&set, &random);
        histories(&set, &random, &tally);
    }
    print_message("%zu changes, %zu of them joined, %zu with a new period, %zu moved while joined, %zu "
                  "refused; of these "
                  "%zu elsewhere, %zu on the same unit\n",
                  tally.accepted, tally.joined, tally.new_periods, tally.moved, tally.refused,
                  tally.elsewhere, tally.same_unit);
    assert_true(tally.accepted > 500 && tally.refused > 200 && tally.joined > 200);
    assert_true(tally.new_periods > 0 && tally.moved > 0 && tally.elsewhere > 20);
}

/* A full worker's stream is to be faster: refused while the card is full as well, and what stands is as it
 * was; taken by the card once it has room, and the worker has the old room again. */
static void modify_migrates_from_full_worker(void **state)
{
    (void)state;
    struct config_profile *profile = test_standing_profile();
    profile->io.per_packet_ns = profile->io.per_byte_fs = 0; /* not what binds here */
    struct partition_standing *standing = test_standing_of(profile, 1, 1);
    struct core_stream_spec spec = test_standing_spec(8 * MS, 100 * MS),
                            faster = test_standing_spec(2 * MS, 100 * MS);
    uint32_t mine = test_standing_admit(standing, &spec, 1).stream;
    assert_int_equal(partition_standing_stream_of(standing, mine).unit, 0);
    while (test_standing_admit(standing, &spec, 0).accepted)
        continue;
    assert_false(would_change(standing, mine, &faster));
    assert_false(test_standing_admit(standing, &faster, 1).accepted);
    test_standing_holds(standing);
    for (size_t n = partition_standing_streams(standing); n-- > 0;) {
        struct partition_standing_stream stream = partition_standing_stream_at(standing, n);
        if (stream.unit == 1)
            partition_standing_release(standing, stream.stream);
    }
    assert_false(would_change(standing, mine, &faster));
    struct partition_standing_placement placement = test_standing_admit(standing, &faster, 1);
    assert_true(placement.accepted && placement.unit == 1);
    test_standing_holds(standing);
    size_t on_worker = partition_standing_worker_at(standing, 0).streams;
    partition_standing_release(standing, mine);
    assert_int_equal(partition_standing_worker_at(standing, 0).streams, on_worker - 1);
    test_standing_holds(standing);
    partition_standing_destroy(standing);
    config_profile_free(profile);
}

/* Streams that ask for less get it always, and settle to exactly what a newcomer would be charged. */
static void modify_for_less_always_accepted(void **state)
{
    (void)state;
    struct config_profile *profile = test_standing_profile();
    struct partition_standing *standing = test_standing_of(profile, 1, 1);
    struct core_stream_spec spec = test_standing_spec(MS, 20 * MS),
                            less = test_standing_spec(4 * MS, 40 * MS);
    struct partition_standing_placement last = test_standing_admit(standing, &spec, 0);
    spec.burst_packets = 4;
    while (last.accepted)
        last = test_standing_admit(standing, &spec, 0);
    size_t count = partition_standing_streams(standing);
    for (size_t n = 0; n < count; n++) {
        uint32_t stream = partition_standing_stream_at(standing, n).stream;
        struct partition_standing_placement placement = change(standing, stream, &less);
        assert_true(placement.accepted && placement.joined);
    }
    test_standing_holds(standing);
    assert_false(test_standing_query(standing, &spec, false).accepted); /* no room before the settle */
    for (size_t n = 0; n < count; n++)
        partition_standing_settle(standing, partition_standing_stream_at(standing, n).stream);
    test_standing_holds(standing);
    assert_true(test_standing_query(standing, &spec, false).accepted);
    partition_standing_destroy(standing);
    config_profile_free(profile);
}

static void changes_rejected(void **state)
{
    (void)state;
    struct config_profile *profile = test_standing_profile();
    struct partition_standing *standing = test_standing_of(profile, 2, 1);
    struct core_stream_spec spec = test_standing_spec(4 * MS, 100 * MS), bad = spec;
    struct partition_standing_placement placement = test_standing_admit(standing, &spec, 1);
    struct core_error error;
    uint32_t stream = placement.stream, again;
    bad.packet_bytes++;
    assert_int_equal(partition_standing_change(standing, stream, &bad, &placement, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "1401 bytes"));
    bad = spec;
    bad.cipher = CORE_CIPHER_AES_256_CBC;
    assert_int_equal(partition_standing_change(standing, stream, &bad, &placement, &error), CORE_INVALID);
    bad = spec;
    bad.latency_ns = 0;
    assert_int_equal(partition_standing_change(standing, stream, &bad, &placement, &error), CORE_INVALID);
    bad = test_standing_spec(4 * MS, CORE_LATENCY_NS_MIN);
    assert_false(change(standing, stream, &bad).accepted);
    assert_int_equal(partition_standing_move(standing, stream, 1, 0, &again, &error), CORE_OK);
    assert_int_equal(partition_standing_change(standing, stream, &spec, &placement, &error), CORE_REFUSED);
    assert_true(change(standing, again, &spec).accepted);
    partition_standing_destroy(standing);
    config_profile_free(profile);
}

/* Whichever of a stream's two numbers goes, the other one is the stream, with its I/O thread's share. */
static void undone_moves_restore_the_stream(void **state)
{
    (void)state;
    struct config_profile *profile = test_standing_profile();
    struct partition_standing *standing = test_standing_of(profile, 2, 1);
    struct core_stream_spec spec = test_standing_spec(4 * MS, 100 * MS);
    uint32_t stream = test_standing_admit(standing, &spec, 1).stream, again, third;
    int64_t io_ppb = partition_standing_io_ppb(standing, 0);
    struct core_error error;
    for (int time = 0; time < 3; time++) { /* given up */
        assert_int_equal(partition_standing_move(standing, stream, 1, 0, &again, &error), CORE_OK);
        assert_int_equal(partition_standing_move(standing, stream, 1, 0, &third, &error), CORE_REFUSED);
        assert_int_equal(partition_standing_io_ppb(standing, 0), io_ppb);
        partition_standing_release(standing, again);
        assert_int_equal(partition_standing_io_ppb(standing, 0), io_ppb);
        assert_true(change(standing, stream, &spec).accepted);
    }
    assert_int_equal(partition_standing_move(standing, stream, 1, 0, &again, &error), CORE_OK);
    assert_int_equal(partition_standing_move(standing, again, 0, 0, &third, &error), CORE_OK);
    partition_standing_release(standing, again); /* between two others */
    assert_int_equal(partition_standing_io_ppb(standing, 0), io_ppb);
    partition_standing_release(standing, stream);
    assert_int_equal(partition_standing_io_ppb(standing, 0), io_ppb);
    assert_int_equal(partition_standing_move(standing, third, 1, 0, &again, &error), CORE_OK);
    partition_standing_release(standing, third); /* made */
    assert_int_equal(partition_standing_io_ppb(standing, 0), io_ppb);
    test_standing_holds(standing);
    partition_standing_release(standing, again);
    assert_int_equal(partition_standing_io_ppb(standing, 0), 0);
    partition_standing_destroy(standing);
    config_profile_free(profile);
}

/* ---- out of service ---- */

static void gpu_out_of_service_rejects_admission(void **state)
{
    (void)state;
    struct config_profile *profile = test_standing_profile();
    profile->io.per_packet_ns = profile->io.per_byte_fs = 0; /* not what binds here */
    struct partition_standing *standing = test_standing_of(profile, 1, 1);
    struct core_stream_spec spec = test_standing_spec(4 * MS, 100 * MS);
    struct partition_standing_placement placement = {.unit = 0};
    struct core_error error;
    uint32_t first = PARTITION_STANDING_NONE, again;
    while (placement.unit == 0) {
        placement = test_standing_admit(standing, &spec, 1);
        if (first == PARTITION_STANDING_NONE)
            first = placement.stream;
    }
    uint32_t on_gpu = placement.stream;
    partition_standing_set_out(standing, 0, true);
    assert_true(partition_standing_gpu_at(standing, 0).out);
    while (placement.accepted) {
        placement = test_standing_admit(standing, &spec, 1);
        assert_true(!placement.accepted || placement.unit == 0);
    }
    assert_int_equal(placement.constraint, PERFMODEL_LIMIT_GPU_OUT);
    assert_string_equal(placement.reason,
                        "GPU 0 would accept the stream, but is out of service; retry when it is back");
    assert_int_equal(placement.offer.interval_ns > 0, true);
    core_ns period_ns = partition_standing_gpu_at(standing, 0).period_ns;
    assert_int_equal(partition_standing_move(standing, first, 1, period_ns, &again, &error), CORE_REFUSED);
    assert_string_equal(error.text, "GPU 0 is out of service");
    test_standing_holds(standing);
    assert_int_equal(partition_standing_gpu_at(standing, 0).streams, 1);
    partition_standing_set_out(standing, 0, false);
    assert_int_equal(test_standing_query(standing, &spec, false).unit, 1);
    partition_standing_set_out(standing, 0, true);
    partition_standing_release(standing, on_gpu);
    assert_int_equal(partition_standing_gpu_at(standing, 0).streams, 0);
    assert_int_equal(test_standing_query(standing, &spec, false).constraint, PERFMODEL_LIMIT_GPU_OUT);
    partition_standing_destroy(standing);
    config_profile_free(profile);
}

/* Random machines with GPUs that come and go: nobody joins one that is out, whatever the way. */
static void random_outages(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 32};
    const struct partition_plan_method *method = partition_plan_method_find("rectangle");
    size_t told = 0, replans = 0;
    for (int n = 0; n < MACHINES; n++) {
        test_plan_set_random(&set, &random);
        struct partition_standing *standing = test_standing_of(&set.profile, set.input.workers, 1);
        for (size_t i = 0, tried = 0; i < set.input.count; i++) {
            struct partition_standing_placement placement;
            size_t streams[64] = {0};
            for (uint32_t g = 0; g < standing->gpus; g++) {
                if (test_random_chance(&random, 20))
                    partition_standing_set_out(standing, g, test_random_chance(&random, 50));
                streams[g] = partition_standing_gpu_at(standing, g).streams;
            }
            placement = test_standing_admit(standing, &set.specs[i], i);
            told += placement.constraint == PERFMODEL_LIMIT_GPU_OUT;
            if (!placement.accepted && tried++ < 3) {
                struct partition_standing_proposal proposal;
                struct core_error error;
                assert_int_equal(
                    partition_standing_replan(standing, method, &set.specs[i], 0, &proposal, &error),
                    CORE_OK);
                if (proposal.accepted) {
                    replans++;
                    (void)test_standing_make_room(standing, &proposal, &set.specs[i], i);
                }
                free(proposal.move);
            }
            for (uint32_t g = 0; g < standing->gpus; g++)
                if (partition_standing_gpu_at(standing, g).out)
                    assert_true(partition_standing_gpu_at(standing, g).streams <= streams[g]);
            if (i < 24 || i % 16 == 0)
                test_standing_holds(standing);
        }
        partition_standing_destroy(standing);
    }
    print_message("%zu told of a GPU that is out, %zu plans anew\n", told, replans);
    assert_true(told > 100 && replans > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modify_for_less_always_accepted),
        cmocka_unit_test(changes_rejected),
        cmocka_unit_test(undone_moves_restore_the_stream),
        cmocka_unit_test(random_changes),
        cmocka_unit_test(modify_migrates_from_full_worker),
        cmocka_unit_test(gpu_out_of_service_rejects_admission),
        cmocka_unit_test(random_outages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
