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
#include "tests/support/admission.h"
#include "tests/support/brim_sets.h"
#include "tests/support/plan_sets.h"
#include "tests/support/share.h"

#define MS               CORE_NS_PER_MS
#define MACHINES         TEST_SHARE(60)
#define CHANGED_MACHINES TEST_SHARE(90)
#define BRIM_WORKERS     TEST_SHARE(400)

/* ---- changes ---- */

static struct admission_placement change(struct admission *admission, uint32_t stream,
                                         const struct core_stream_spec *spec)
{
    struct admission_placement placement;
    struct core_error error = {{0}};
    if (admission_change(admission, stream, spec, &placement, &error) != CORE_OK)
        fail_msg("%s", error.text);
    return placement;
}

static bool would_change(struct admission *admission, uint32_t stream, const struct core_stream_spec *spec)
{
    struct admission_placement placement;
    struct core_error error = {{0}};
    if (admission_change_query(admission, stream, spec, false, &placement, &error) != CORE_OK)
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
static void expect_joined(const struct admission_stream *before, const struct admission_stream *after,
                          const struct core_stream_spec *spec, const struct admission_placement *placement)
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
static void expect_refused(struct admission *admission, const struct admission_stream *before,
                           const struct core_stream_spec *spec, const struct admission_placement *placement)
{
    struct admission_stream after = admission_stream_of(admission, before->stream);
    struct core_stream_spec asked = *spec;
    assert_memory_equal(&after.spec, &before->spec, sizeof after.spec);
    assert_memory_equal(&after.contract, &before->contract, sizeof after.contract);
    assert_true(strlen(placement->reason) > 40);
    assert_true(strlen(placement->reason) + 1 < sizeof placement->reason);
    assert_int_not_equal(placement->constraint, PERFMODEL_LIMIT_NONE);
    asked.interval_ns =
        placement->offer.interval_ns > 0 ? placement->offer.interval_ns : CORE_INTERVAL_NS_MAX;
    assert_int_equal(would_change(admission, before->stream, &asked), placement->offer.interval_ns > 0);
    asked.interval_ns--;
    assert_false(would_change(admission, before->stream, &asked));
    asked = *spec;
    asked.latency_ns = placement->offer.latency_ns > 0 ? placement->offer.latency_ns : CORE_LATENCY_NS_MAX;
    assert_int_equal(would_change(admission, before->stream, &asked), placement->offer.latency_ns > 0);
    asked.latency_ns--;
    assert_false(would_change(admission, before->stream, &asked));
}

struct tally {
    size_t accepted, refused, joined, new_periods, moved, elsewhere, same_unit;
};

static uint32_t any_stream(const struct admission *admission, struct test_random *random)
{
    size_t count = admission_streams(admission);
    return admission_stream_at(admission, (size_t)test_random_in(random, 0, (int64_t)count - 1)).stream;
}

/* Its own unit has refused: as a new stream beside itself, on whatever unit; then one of both numbers goes.
 * */
static void change_elsewhere(struct admission *admission, const struct admission_stream *before,
                             const struct core_stream_spec *spec, struct test_random *random,
                             struct tally *tally)
{
    struct admission_placement placement = test_admission_admit(admission, spec, before->handle);
    struct admission_stream old = admission_stream_of(admission, before->stream);
    assert_memory_equal(&old.spec, &before->spec, sizeof old.spec);
    assert_memory_equal(&old.contract, &before->contract, sizeof old.contract);
    if (!placement.accepted)
        return;
    tally->elsewhere++;
    tally->same_unit += placement.unit == before->unit;
    struct admission_stream again = admission_stream_of(admission, placement.stream);
    expect_same_spec(&again.contract, spec);
    assert_true(placement.bound_ns > 0 && placement.bound_ns <= spec->latency_ns);
    test_admission_holds(admission);
    bool changed = test_random_chance(random, 70);
    admission_release(admission, changed ? before->stream : placement.stream);
    test_admission_holds(admission);
}

static void change_one(struct admission *admission, struct test_random *random, struct tally *tally)
{
    if (admission_streams(admission) == 0)
        return;
    uint32_t stream = any_stream(admission, random);
    struct admission_stream before = admission_stream_of(admission, stream);
    struct core_stream_spec spec = another(&before.contract, random);
    if (before.moved)
        return;
    int64_t io_ppb = admission_io_ppb(admission, 0);
    struct admission_placement placement = change(admission, stream, &spec);
    tally->accepted += placement.accepted;
    tally->refused += !placement.accepted;
    tally->new_periods += placement.new_period;
    if (!placement.accepted) {
        expect_refused(admission, &before, &spec, &placement);
        assert_int_equal(admission_io_ppb(admission, 0), io_ppb);
        change_elsewhere(admission, &before, &spec, random, tally);
        return;
    }
    struct admission_stream after = admission_stream_of(admission, stream);
    expect_joined(&before, &after, &spec, &placement);
    tally->joined += after.joined;
}

/* A stream goes to any unit that takes it, joined or not, and the old number is released later. */
static void move_one(struct admission *admission, struct test_random *random, struct tally *tally)
{
    struct core_error error;
    if (admission_streams(admission) == 0)
        return;
    uint32_t stream = any_stream(admission, random), again;
    uint32_t to = (uint32_t)test_random_in(random, 0, admission->worker_count + admission->gpus - 1);
    core_ns period_ns = 0;
    if (to >= admission->worker_count)
        period_ns = admission->gpu[to - admission->worker_count]->unit.period_ns;
    struct admission_stream before = admission_stream_of(admission, stream);
    if (admission_move(admission, stream, to, period_ns, &again, &error) != CORE_OK)
        return;
    struct admission_stream after = admission_stream_of(admission, again);
    expect_same_spec(&after.spec, &before.spec);
    expect_same_spec(&after.contract, &before.contract);
    assert_true(admission_stream_of(admission, stream).moved);
    tally->moved += before.joined;
}

/* The I/O thread is charged for every stream once, for the join. */
static void expect_io(const struct admission *admission)
{
    int64_t sum = 0;
    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (!stream.moved)
            sum += perfmodel_io_utilisation_ppb(&stream.spec, admission->profile);
    }
    assert_int_equal(admission_io_ppb(admission, 0), sum);
}

static void settle_one(struct admission *admission, struct test_random *random)
{
    if (admission_streams(admission) == 0)
        return;
    uint32_t stream = any_stream(admission, random);
    struct admission_stream before = admission_stream_of(admission, stream);
    admission_finalize(admission, stream);
    struct admission_stream after = admission_stream_of(admission, stream);
    expect_same_spec(&after.spec, &before.contract);
    assert_false(after.joined);
}

/* Admissions, changes, moves, settles and releases in any order; what stands is proven at every step. */
static void histories(struct test_plan_set *set, struct test_random *random, struct tally *tally)
{
    struct admission *admission = test_admission_of(&set->profile, set->input.workers, 1);
    for (size_t i = 0; i < set->input.count; i++) {
        (void)test_admission_admit(admission, &set->specs[i], i);
        if (test_random_chance(random, 40))
            change_one(admission, random, tally);
        if (test_random_chance(random, 15))
            settle_one(admission, random);
        if (test_random_chance(random, 10))
            move_one(admission, random, tally);
        if (test_random_chance(random, 20))
            test_admission_release_one(admission, random);
        if (i < 24 || i % 16 == 0)
            test_admission_holds(admission);
        expect_io(admission);
    }
    while (admission_streams(admission) > 0)
        test_admission_release_one(admission, random);
    test_admission_holds(admission);
    expect_io(admission);
    admission_destroy(admission);
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
    assert_true(tally.accepted > TEST_SHARE(500) && tally.refused > TEST_SHARE(200) &&
                tally.joined > TEST_SHARE(200));
    assert_true(tally.new_periods > 0 && tally.moved > 0 && tally.elsewhere > TEST_SHARE(20));
}

/* A full worker's stream is to be faster: refused while the card is full as well, and what stands is as it
 * was; taken by the card once it has room, and the worker has the old room again. */
static void modify_migrates_from_full_worker(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    profile->io.per_packet_ns = profile->io.per_byte_fs = 0; /* not what binds here */
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = test_admission_spec(8 * MS, 100 * MS),
                            faster = test_admission_spec(2 * MS, 100 * MS);
    uint32_t mine = test_admission_admit(admission, &spec, 1).stream;
    assert_int_equal(admission_stream_of(admission, mine).unit, 0);
    while (test_admission_admit(admission, &spec, 0).accepted)
        continue;
    assert_false(would_change(admission, mine, &faster));
    assert_false(test_admission_admit(admission, &faster, 1).accepted);
    test_admission_holds(admission);
    for (size_t n = admission_streams(admission); n-- > 0;) {
        struct admission_stream stream = admission_stream_at(admission, n);
        if (stream.unit == 1)
            admission_release(admission, stream.stream);
    }
    assert_false(would_change(admission, mine, &faster));
    struct admission_placement placement = test_admission_admit(admission, &faster, 1);
    assert_true(placement.accepted && placement.unit == 1);
    test_admission_holds(admission);
    size_t on_worker = admission_worker_at(admission, 0).streams;
    admission_release(admission, mine);
    assert_int_equal(admission_worker_at(admission, 0).streams, on_worker - 1);
    test_admission_holds(admission);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* Streams that ask for less get it always, and settle to exactly what a new stream would be charged. */
static void modify_for_less_always_accepted(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = test_admission_spec(MS, 20 * MS),
                            less = test_admission_spec(4 * MS, 40 * MS);
    struct admission_placement last = test_admission_admit(admission, &spec, 0);
    spec.burst_packets = 4;
    while (last.accepted)
        last = test_admission_admit(admission, &spec, 0);
    size_t count = admission_streams(admission);
    for (size_t n = 0; n < count; n++) {
        uint32_t stream = admission_stream_at(admission, n).stream;
        struct admission_placement placement = change(admission, stream, &less);
        assert_true(placement.accepted && placement.joined);
    }
    test_admission_holds(admission);
    assert_false(test_admission_query(admission, &spec, false).accepted); /* no room before the settle */
    for (size_t n = 0; n < count; n++)
        admission_finalize(admission, admission_stream_at(admission, n).stream);
    test_admission_holds(admission);
    assert_true(test_admission_query(admission, &spec, false).accepted);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* A worker without GPUs that some dozens of streams fill: mostly bursts of one piece. */
static struct config_profile lone_worker(struct test_random *random)
{
    struct config_profile profile = {.io = {.limit_percent = 100, .per_packet_ns = 1}};
    profile.cpu.lanes = profile.cpu.burst_pieces = test_random_chance(random, 60) ? 1 : 2;
    profile.cpu.piece_bytes = 16 * (uint32_t)test_random_log(random, 40, 4000);
    profile.cpu.queue_granularity_ns = 4096;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        profile.cpu.per_byte_fs[i] = INT64_C(1000000000) / test_random_in(random, 1, 8);
        profile.cpu.lane_ns[i] = test_random_log(random, 1000, 2 * MS);
    }
    return profile;
}

static struct core_stream_spec often_or_rare(struct test_random *random, bool rare)
{
    const core_ns interval_ns =
        test_random_log(random, rare ? 500 * MS : 20 * MS, rare ? 60000 * MS : 100 * MS);
    const int64_t blocks = rare ? test_random_in(random, 1, 40) : test_random_log(random, 20, 400);
    return (struct core_stream_spec){
        .packet_bytes = 16 * (uint32_t)blocks,
        .burst_packets = test_random_chance(random, 80) ? 1 : (uint32_t)test_random_in(random, 2, 4),
        .interval_ns = interval_ns,
        .latency_ns = test_random_in(random, interval_ns / 2, 3 * interval_ns),
        .cipher = CORE_CIPHER_AES_128_CBC,
        .padding = CORE_PADDING_NONE,
    };
}

/* Less of one kind, most often of packets in the long run. */
static struct core_stream_spec less_than(const struct core_stream_spec *spec, struct test_random *random)
{
    struct core_stream_spec less = *spec;
    const int64_t percent = test_random_in(random, 101, 300);
    if (test_random_chance(random, 70))
        less.interval_ns = core_time_min(spec->interval_ns * percent / 100, CORE_INTERVAL_NS_MAX);
    else if (test_random_chance(random, 70))
        less.latency_ns = core_time_min(spec->latency_ns * percent / 100, CORE_LATENCY_NS_MAX);
    else
        less.burst_packets = (uint32_t)test_random_in(random, 1, spec->burst_packets);
    return less;
}

/* The adversary of what stands: a worker is filled to the brim, first with streams that are often due, then with
 * rare ones; and these ask for less and leave, one after the other. Nobody judges that anew but the checker and
 * the certificate, which must hold every time. */
static void less_at_the_brim_is_certified(void **state)
{
    (void)state;
    struct test_random random = {31};
    size_t changes = 0;
    for (int machine = 0; machine < BRIM_WORKERS; machine++) {
        const struct config_profile profile = lone_worker(&random);
        struct admission *admission = test_admission_of(&profile, 1, 1);
        for (int tries = 0; tries < 200 && admission_streams(admission) < 64; tries++) {
            const struct core_stream_spec spec = often_or_rare(&random, tries >= 60);
            if (test_admission_query(admission, &spec, false).accepted)
                (void)test_admission_admit(admission, &spec, 0);
        }
        for (int round = 0; round < 12 && admission_streams(admission) > 0; round++) {
            const size_t n = (size_t)test_random_in(&random, 0, (int64_t)admission_streams(admission) - 1);
            const struct admission_stream stream = admission_stream_at(admission, n);
            const struct core_stream_spec less = less_than(&stream.contract, &random);
            if (test_random_chance(&random, 5)) {
                admission_release(admission, stream.stream);
            } else {
                assert_true(change(admission, stream.stream, &less).accepted);
                admission_finalize(admission, stream.stream);
            }
            test_admission_holds(admission);
            changes++;
        }
        admission_destroy(admission);
    }
    print_message("%zu changes\n", changes);
}

static void changes_rejected(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 2, 1);
    struct core_stream_spec spec = test_admission_spec(4 * MS, 100 * MS), bad = spec;
    struct admission_placement placement = test_admission_admit(admission, &spec, 1);
    struct core_error error;
    uint32_t stream = placement.stream, again;
    bad.packet_bytes++;
    assert_int_equal(admission_change(admission, stream, &bad, &placement, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "1401 bytes"));
    bad = spec;
    bad.cipher = CORE_CIPHER_AES_256_CBC;
    assert_int_equal(admission_change(admission, stream, &bad, &placement, &error), CORE_INVALID);
    struct core_stream_spec whole = spec; /* blocks, which may be padded or not */
    whole.packet_bytes = 1408;
    bad = whole;
    bad.padding = whole.padding == CORE_PADDING_NONE ? CORE_PADDING_PKCS7 : CORE_PADDING_NONE;
    placement = test_admission_admit(admission, &whole, 1);
    assert_int_equal(admission_change(admission, placement.stream, &bad, &placement, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "a stream keeps what it was opened with"));
    bad = spec;
    bad.latency_ns = 0;
    assert_int_equal(admission_change(admission, stream, &bad, &placement, &error), CORE_INVALID);
    bad = test_admission_spec(4 * MS, CORE_LATENCY_NS_MIN);
    assert_false(change(admission, stream, &bad).accepted);
    assert_int_equal(admission_move(admission, stream, 1, 0, &again, &error), CORE_OK);
    assert_int_equal(admission_change(admission, stream, &spec, &placement, &error), CORE_REFUSED);
    assert_true(change(admission, again, &spec).accepted);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* Whichever of a stream's two numbers goes, the other one is the stream, with its I/O thread's share. */
static void undone_moves_restore_the_stream(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    struct admission *admission = test_admission_of(profile, 2, 1);
    struct core_stream_spec spec = test_admission_spec(4 * MS, 100 * MS);
    uint32_t stream = test_admission_admit(admission, &spec, 1).stream, again, third;
    int64_t io_ppb = admission_io_ppb(admission, 0);
    struct core_error error;
    for (int time = 0; time < 3; time++) { /* given up */
        assert_int_equal(admission_move(admission, stream, 1, 0, &again, &error), CORE_OK);
        assert_int_equal(admission_move(admission, stream, 1, 0, &third, &error), CORE_REFUSED);
        assert_int_equal(admission_io_ppb(admission, 0), io_ppb);
        admission_release(admission, again);
        assert_int_equal(admission_io_ppb(admission, 0), io_ppb);
        assert_true(change(admission, stream, &spec).accepted);
    }
    assert_int_equal(admission_move(admission, stream, 1, 0, &again, &error), CORE_OK);
    assert_int_equal(admission_move(admission, again, 0, 0, &third, &error), CORE_OK);
    admission_release(admission, again); /* between two others */
    assert_int_equal(admission_io_ppb(admission, 0), io_ppb);
    admission_release(admission, stream);
    assert_int_equal(admission_io_ppb(admission, 0), io_ppb);
    assert_int_equal(admission_move(admission, third, 1, 0, &again, &error), CORE_OK);
    admission_release(admission, third); /* made */
    assert_int_equal(admission_io_ppb(admission, 0), io_ppb);
    test_admission_holds(admission);
    admission_release(admission, again);
    assert_int_equal(admission_io_ppb(admission, 0), 0);
    admission_destroy(admission);
    config_profile_free(profile);
}

/* ---- out of service ---- */

static void gpu_out_of_service_rejects_admission(void **state)
{
    (void)state;
    struct config_profile *profile = test_admission_profile();
    profile->io.per_packet_ns = profile->io.per_byte_fs = 0; /* not what binds here */
    struct admission *admission = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = test_admission_spec(4 * MS, 100 * MS);
    struct admission_placement placement = {.unit = 0};
    struct core_error error;
    uint32_t first = ADMISSION_NONE, again;
    while (placement.unit == 0) {
        placement = test_admission_admit(admission, &spec, 1);
        if (first == ADMISSION_NONE)
            first = placement.stream;
    }
    uint32_t on_gpu = placement.stream;
    admission_set_out(admission, 0, true);
    assert_true(admission_gpu_at(admission, 0).out);
    while (placement.accepted) {
        placement = test_admission_admit(admission, &spec, 1);
        assert_true(!placement.accepted || placement.unit == 0);
    }
    assert_int_equal(placement.constraint, PERFMODEL_LIMIT_GPU_OUT);
    assert_string_equal(placement.reason,
                        "GPU 0 would accept the stream, but is out of service; retry when it is back");
    assert_int_equal(placement.offer.interval_ns > 0, true);
    core_ns period_ns = admission_gpu_at(admission, 0).period_ns;
    assert_int_equal(admission_move(admission, first, 1, period_ns, &again, &error), CORE_REFUSED);
    assert_string_equal(error.text, "GPU 0 is out of service");
    test_admission_holds(admission);
    assert_int_equal(admission_gpu_at(admission, 0).streams, 1);
    admission_set_out(admission, 0, false);
    assert_int_equal(test_admission_query(admission, &spec, false).unit, 1);
    admission_set_out(admission, 0, true);
    admission_release(admission, on_gpu);
    assert_int_equal(admission_gpu_at(admission, 0).streams, 0);
    assert_int_equal(test_admission_query(admission, &spec, false).constraint, PERFMODEL_LIMIT_GPU_OUT);
    admission_destroy(admission);
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
        struct admission *admission = test_admission_of(&set.profile, set.input.workers, 1);
        for (size_t i = 0, tried = 0; i < set.input.count; i++) {
            struct admission_placement placement;
            size_t streams[64] = {0};
            for (uint32_t g = 0; g < admission->gpus; g++) {
                if (test_random_chance(&random, 20))
                    admission_set_out(admission, g, test_random_chance(&random, 50));
                streams[g] = admission_gpu_at(admission, g).streams;
            }
            placement = test_admission_admit(admission, &set.specs[i], i);
            told += placement.constraint == PERFMODEL_LIMIT_GPU_OUT;
            if (!placement.accepted && tried++ < 3) {
                struct admission_proposal proposal;
                struct core_error error;
                assert_int_equal(admission_replan(admission, method, &set.specs[i], 0, &proposal, &error),
                                 CORE_OK);
                if (proposal.accepted) {
                    replans++;
                    (void)test_admission_make_room(admission, &proposal, &set.specs[i], i);
                }
                free(proposal.move);
            }
            for (uint32_t g = 0; g < admission->gpus; g++)
                if (admission_gpu_at(admission, g).out)
                    assert_true(admission_gpu_at(admission, g).streams <= streams[g]);
            if (i < 24 || i % 16 == 0)
                test_admission_holds(admission);
        }
        admission_destroy(admission);
    }
    print_message("%zu told of a GPU that is out, %zu plans anew\n", told, replans);
    assert_true(told > TEST_SHARE(100) && replans > TEST_SHARE(5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modify_for_less_always_accepted),
        cmocka_unit_test(less_at_the_brim_is_certified),
        cmocka_unit_test(changes_rejected),
        cmocka_unit_test(undone_moves_restore_the_stream),
        cmocka_unit_test(random_changes),
        cmocka_unit_test(modify_migrates_from_full_worker),
        cmocka_unit_test(gpu_out_of_service_rejects_admission),
        cmocka_unit_test(random_outages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
