/* Placement on workers: the boundary of admission, offers, reasons, and giving back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/admission.h"
#include "tests/support/random.h"

#define US          CORE_NS_PER_US
#define MS          CORE_NS_PER_MS
#define STREAMS_MAX 20000

static const struct config_profile profile = {
    .cpu = {.lanes = 8,
            .burst_pieces = 32,
            .piece_bytes = 4096,
            .per_piece_ns = 60,
            .per_byte_fs = {350000, 420000, 490000},
            .lane_ns = {6000, 6000, 6000},
            .queue_granularity_ns = 4096},
    .io = {.per_packet_ns = 1500, .per_byte_fs = 500000, .limit_percent = 85},
    .margins = {.in_ns = 300 * US, .out_ns = 300 * US, .percent = 10},
};

/* The same with I/O threads that never bind. */
static struct config_profile without_io(void)
{
    struct config_profile free_io = profile;
    free_io.io = (struct config_profile_io){.limit_percent = 100};
    return free_io;
}

static struct core_stream_spec spec_of(uint32_t packet_bytes, uint32_t burst, core_ns interval_ns,
                                       core_ns latency_ns)
{
    return (struct core_stream_spec){.packet_bytes = packet_bytes,
                                     .burst_packets = burst,
                                     .interval_ns = interval_ns,
                                     .latency_ns = latency_ns,
                                     .cipher = CORE_CIPHER_AES_128_CBC,
                                     .padding = CORE_PADDING_PKCS7};
}

static struct admission_placement ask(const struct admission *admission, const struct core_stream_spec *spec)
{
    return test_admission_query(admission, spec, true);
}

static bool accepts(const struct admission *admission, struct core_stream_spec spec)
{
    return test_admission_query(admission, &spec, false).accepted;
}

/* Admits streams alike until one is refused; returns how many and the refusal. */
static size_t fill(struct admission *admission, const struct core_stream_spec *spec,
                   struct admission_placement *placements, struct admission_placement *refused)
{
    for (size_t count = 0; count < STREAMS_MAX; count++) {
        placements[count] = test_admission_admit(admission, spec, 0);
        if (!placements[count].accepted) {
            *refused = placements[count];
            return count;
        }
    }
    fail_msg("%d streams fit", STREAMS_MAX);
    return 0;
}

/* An offer is accepted, and what is better by a nanosecond is not. */
static void check_offer(const struct admission *admission, const struct core_stream_spec *spec,
                        const struct partition_offer *offer)
{
    struct core_stream_spec asked = *spec;
    asked.interval_ns = offer->interval_ns > 0 ? offer->interval_ns : CORE_INTERVAL_NS_MAX;
    assert_int_equal(accepts(admission, asked), offer->interval_ns > 0);
    asked.interval_ns--;
    assert_false(accepts(admission, asked));
    asked = *spec;
    asked.latency_ns = offer->latency_ns > 0 ? offer->latency_ns : CORE_LATENCY_NS_MAX;
    assert_int_equal(accepts(admission, asked), offer->latency_ns > 0);
    asked.latency_ns--;
    assert_false(accepts(admission, asked));
}

static struct admission_placement placements[STREAMS_MAX];

/* The last accepted, the first refused, and the room that one release makes. */
static void test_boundary_of_demand(void **state)
{
    (void)state;
    struct config_profile free_io = without_io();
    for (uint32_t count = 1; count <= 3; count++) {
        struct admission *admission = test_admission_of(&free_io, count, 1);
        struct core_stream_spec spec = spec_of(1400, 4, 20 * MS, 10 * MS);
        struct admission_placement refused, again;
        size_t accepted = fill(admission, &spec, placements, &refused);
        assert_true(accepted > 100 * count);
        assert_int_equal(refused.constraint, PERFMODEL_LIMIT_CPU_DEMAND);
        assert_non_null(strstr(refused.reason, "in a window of "));
        assert_true(refused.offer.interval_ns == 0 || refused.offer.interval_ns > spec.interval_ns);
        assert_true(refused.offer.latency_ns > spec.latency_ns);
        check_offer(admission, &spec, &refused.offer);
        admission_release(admission, placements[accepted / 2].stream);
        again = ask(admission, &spec);
        assert_true(again.accepted);
        assert_int_equal(again.unit, placements[accepted / 2].unit);
        admission_destroy(admission);
    }
}

/* A single-buffer engine, where one stream can take a large part of a worker. */
static struct config_profile one_by_one(void)
{
    struct config_profile slow = without_io();
    slow.cpu.lanes = slow.cpu.burst_pieces = 1;
    slow.cpu.lane_ns[0] = slow.cpu.lane_ns[1] = slow.cpu.lane_ns[2] = 0;
    slow.cpu.per_byte_fs[0] = slow.cpu.per_byte_fs[1] = slow.cpu.per_byte_fs[2] = 30000000; /* 30 ns */
    return slow;
}

static void test_boundary_of_utilisation(void **state)
{
    (void)state;
    struct config_profile slow = one_by_one(); /* 136 us a piece of 4096 bytes */
    struct admission *admission = test_admission_of(&slow, 2, 1);
    struct core_stream_spec spec = spec_of(4000, 1, 10 * MS, 50 * MS);
    struct admission_placement refused;
    for (int i = 0; i < 120; i++) {
        placements[i] = test_admission_admit(admission, &spec, 0);
        assert_true(placements[i].accepted);
    }
    spec.interval_ns = 500 * US;
    refused = ask(admission, &spec);
    assert_int_equal(refused.constraint, PERFMODEL_LIMIT_CPU_UTILISATION);
    assert_non_null(
        strstr(refused.reason, "no worker has capacity left: the least loaded of 2 would need 10"));
    assert_int_equal(refused.offer.latency_ns, 0); /* no patience makes up for that */
    check_offer(admission, &spec, &refused.offer);
    spec.interval_ns = refused.offer.interval_ns;
    placements[0] = test_admission_admit(admission, &spec, 0);
    assert_true(placements[0].accepted);
    admission_destroy(admission);
}

/* Worst fit: the least loaded worker, whatever the order of arrival; another one if that has no room. */
static void test_worst_fit(void **state)
{
    (void)state;
    struct config_profile free_io = without_io();
    struct admission *admission = test_admission_of(&free_io, 3, 1);
    struct core_stream_spec heavy = spec_of(4000, 1, 5 * MS, 20 * MS),
                            light = spec_of(400, 1, 5 * MS, 20 * MS);
    struct admission_placement placement;
    int64_t alone_ppb[2]; /* of a light and of a heavy stream */
    const struct {
        const struct core_stream_spec *spec;
        uint32_t worker;
    } rows[] = {{&light, 0}, {&heavy, 1}, {&light, 2}, {&heavy, 0}, {&light, 2}, {&light, 2}, {&heavy, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        placement = test_admission_admit(admission, rows[i].spec, 0);
        assert_true(placement.accepted);
        assert_int_equal(placement.unit, rows[i].worker);
        if (i < 2)
            alone_ppb[i] = admission_worker_at(admission, placement.unit).utilisation_ppb;
    }
    int64_t sum_ppb = 0;
    size_t streams = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct admission_worker load = admission_worker_at(admission, i);
        sum_ppb += load.utilisation_ppb;
        streams += load.streams;
        assert_true(load.headroom_ppb > 0 && load.headroom_ppb < 1000000000 - load.utilisation_ppb);
        assert_true(load.tightest_window_ns > 0);
    }
    assert_int_equal(streams, 7);
    assert_true(llabs(sum_ppb - 4 * alone_ppb[0] - 3 * alone_ppb[1]) <= 10); /* each is rounded up */
    admission_destroy(admission);
}

/* The least loaded worker may have no room in some window where a fuller one has. */
static void test_next_worker(void **state)
{
    (void)state;
    struct config_profile free_io = without_io();
    struct admission *admission = test_admission_of(&free_io, 2, 1);
    struct admission_placement placement;
    /* next to nothing in the long run, but a piece every 0.5 ms while a burst lasts */
    struct core_stream_spec rare = spec_of(4000, 1000, CORE_INTERVAL_NS_MAX, 500 * MS);
    size_t count = fill(admission, &rare, placements, &placement);
    assert_int_equal(placement.constraint, PERFMODEL_LIMIT_CPU_DEMAND);
    for (size_t i = 0; i < count; i++)
        if (placements[i].unit == 0)
            admission_release(admission, placements[i].stream);
    struct core_stream_spec steady = spec_of(4000, 1, 100 * MS, 90 * MS);
    placement = test_admission_admit(admission, &steady, 0);
    assert_true(placement.accepted && placement.unit == 0);
    assert_true(admission_worker_at(admission, 0).utilisation_ppb >
                admission_worker_at(admission, 1).utilisation_ppb);
    placement = test_admission_admit(admission, &rare, 0);
    assert_true(placement.accepted && placement.unit == 0);
    admission_destroy(admission);
}

/* After all is released the account is as it was: the same streams fit again, and nothing is charged. */
static void test_release(void **state)
{
    (void)state;
    struct admission *admission = test_admission_of(&profile, 2, 1);
    struct core_stream_spec spec = spec_of(16000, 4, 10 * MS, 10 * MS);
    struct admission_placement refused;
    size_t first = fill(admission, &spec, placements, &refused);
    for (size_t i = 0; i < first; i++)
        admission_release(admission, placements[i].stream);
    assert_int_equal(admission_io_ppb(admission, 0), 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct admission_worker load = admission_worker_at(admission, i);
        assert_int_equal(load.streams, 0);
        assert_int_equal(load.utilisation_ppb, 0);
        assert_int_equal(load.headroom_ppb, 1000000000);
        assert_int_equal(load.tightest_window_ns, 0);
    }
    struct partition_offer offer = refused.offer;
    assert_int_equal(fill(admission, &spec, placements, &refused), first);
    assert_int_equal(refused.offer.interval_ns, offer.interval_ns);
    assert_int_equal(refused.offer.latency_ns, offer.latency_ns);
    admission_destroy(admission);
}

static void test_query_commits_nothing(void **state)
{
    (void)state;
    struct admission *admission = test_admission_of(&profile, 1, 1);
    struct core_stream_spec spec = spec_of(1400, 2, 20 * MS, 50 * MS);
    struct admission_placement queried, admitted;
    queried = ask(admission, &spec);
    queried = ask(admission, &spec);
    assert_int_equal(admission_worker_at(admission, 0).streams, 0);
    assert_int_equal(admission_io_ppb(admission, 0), 0);
    admitted = test_admission_admit(admission, &spec, 0);
    assert_true(queried.accepted && admitted.accepted);
    assert_int_equal(queried.bound_ns, admitted.bound_ns);
    assert_int_equal(admission_worker_at(admission, 0).streams, 1);
    assert_int_equal(admission_io_ppb(admission, 0), perfmodel_io_utilisation_ppb(&spec, &profile));
    admission_destroy(admission);
}

static void test_io(void **state)
{
    (void)state;
    struct config_profile slow_io = profile;
    slow_io.io.per_packet_ns = 1000 * US; /* 1.1 ms with the margin */
    slow_io.io.per_byte_fs = 0;
    slow_io.io.limit_percent = 55;
    struct admission *admission = test_admission_of(&slow_io, 1, 2);
    struct core_stream_spec spec = spec_of(1400, 1, 20 * MS, 50 * MS); /* 5.5 % each */
    struct admission_placement refused, other;
    assert_int_equal(fill(admission, &spec, placements, &refused), 10);
    assert_int_equal(refused.constraint, PERFMODEL_LIMIT_IO);
    assert_string_equal(refused.reason, "I/O thread 0 would need 60.50 % of its time, 5.50 % of it for this "
                                        "stream, and at most 55 % may be reserved");
    assert_int_equal(refused.offer.interval_ns, 0);
    assert_int_equal(refused.offer.latency_ns, 0);
    assert_int_equal(admission_query(admission, &spec, 1, true, &other, NULL), CORE_OK);
    assert_true(other.accepted); /* I/O thread 1 has no streams */
    admission_release(admission, placements[0].stream);
    spec.interval_ns = 10 * MS;
    refused = ask(admission, &spec);
    assert_int_equal(refused.constraint, PERFMODEL_LIMIT_IO);
    assert_int_equal(refused.offer.interval_ns, 20 * MS);
    check_offer(admission, &spec, &refused.offer);
    admission_destroy(admission);
}

static void test_deadline(void **state)
{
    (void)state;
    struct admission *admission = test_admission_of(&profile, 2, 1);
    struct admission_placement refused;
    static const struct core_stream_spec rows[] = {
        {1400, 1, 20 * MS, 10 * US, CORE_CIPHER_AES_128_CBC, CORE_PADDING_PKCS7,
         .guaranteed = false}, /* below the margins */
        {1400, 1, 20 * MS, 601 * US, CORE_CIPHER_AES_128_CBC, CORE_PADDING_PKCS7,
         .guaranteed = false}, /* below one bucket */
        {1408, 1, 20 * MS, 606 * US, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE,
         .guaranteed = false}, /* below one burst */
        {1 << 20, 8, 90 * MS, 15 * MS, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE, .guaranteed = false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        refused = ask(admission, &rows[i]);
        assert_false(refused.accepted);
        assert_int_equal(refused.constraint, PERFMODEL_LIMIT_DEADLINE);
        assert_non_null(strstr(refused.reason, "below what even an idle worker could keep; the shortest"));
        check_offer(admission, &rows[i], &refused.offer);
        assert_true(refused.offer.latency_ns > rows[i].latency_ns);
    }
    admission_destroy(admission);
}

/* The reason of constraint 1 names what an empty worker could keep, also where the present ones could not. */
static void test_deadline_beside_others(void **state)
{
    (void)state;
    struct config_profile free_io = without_io();
    struct admission *admission = test_admission_of(&free_io, 1, 1),
                     *empty = test_admission_of(&free_io, 1, 1);
    struct core_stream_spec spec = spec_of(1400, 1, 10 * MS, 10 * MS);
    struct admission_placement refused, idle;
    (void)fill(admission, &spec, placements, &refused);
    spec.latency_ns = 606 * US;
    refused = ask(admission, &spec);
    idle = ask(empty, &spec);
    assert_int_equal(refused.constraint, PERFMODEL_LIMIT_DEADLINE);
    assert_string_equal(refused.reason, idle.reason);
    assert_true(refused.offer.latency_ns == 0 || refused.offer.latency_ns > idle.offer.latency_ns);
    check_offer(admission, &spec, &refused.offer);
    admission_destroy(admission);
    admission_destroy(empty);
}

/* No latency bound would help even an idle worker: not a matter of the deadline. */
static void test_rate_beyond_a_worker(void **state)
{
    (void)state;
    struct config_profile free_io = without_io();
    struct admission *admission = test_admission_of(&free_io, 1, 1);
    const struct {
        struct core_stream_spec spec;
        enum perfmodel_limit constraint;
        const char *words;
    } rows[] = {
        {spec_of(1 << 20, 1, 400 * US, 50 * MS), PERFMODEL_LIMIT_CPU_DEMAND,
         "leave no time between the pieces"},
        {spec_of(60000, 1, 130 * US, 50 * MS), PERFMODEL_LIMIT_CPU_DEMAND,
         "even an idle worker could not carry"},
        {spec_of(4000, 1, 6 * US, 50 * MS), PERFMODEL_LIMIT_CPU_DEMAND,
         "even an idle worker could not carry"},
        {spec_of(400, 1, US, 50 * MS), PERFMODEL_LIMIT_CPU_DEMAND, "leave no time between the pieces"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct admission_placement refused;
        refused = ask(admission, &rows[i].spec);
        assert_int_equal(refused.constraint, rows[i].constraint);
        assert_non_null(strstr(refused.reason, rows[i].words));
        assert_int_equal(refused.offer.latency_ns, 0);
        check_offer(admission, &rows[i].spec, &refused.offer);
    }
    admission_destroy(admission);
}

/* One stream that alone would take a worker more than whole. */
static void test_utilisation_of_one(void **state)
{
    (void)state;
    struct config_profile slow = one_by_one();
    struct admission *admission = test_admission_of(&slow, 1, 1);
    struct core_stream_spec spec = spec_of(4000, 1, 100 * US, 50 * MS);
    struct admission_placement refused;
    refused = ask(admission, &spec);
    assert_int_equal(refused.constraint, PERFMODEL_LIMIT_CPU_UTILISATION);
    assert_non_null(strstr(refused.reason, "of a worker, and a stream can use only one"));
    check_offer(admission, &spec, &refused.offer);
    admission_destroy(admission);
}

/* Offers are exact whatever is asked beside whatever stands. */
static void test_offers_of_random_questions(void **state)
{
    (void)state;
    struct test_random random = {11};
    int refusals = 0;
    for (int round = 0; round < 12; round++) {
        struct admission *admission = test_admission_of(&profile, 1 + (uint32_t)round % 3, 1);
        for (int i = 0; i < 300; i++) {
            struct core_stream_spec spec = spec_of(
                (uint32_t)test_random_log(&random, 1, 1 << 17), (uint32_t)test_random_log(&random, 1, 32),
                test_random_log(&random, 200 * US, 200 * MS), test_random_log(&random, 500 * US, 500 * MS));
            struct admission_placement placement;
            placement = test_admission_admit(admission, &spec, 0);
            if (placement.accepted) {
                assert_true(placement.bound_ns <= spec.latency_ns);
                assert_int_equal(placement.constraint, PERFMODEL_LIMIT_NONE);
                continue;
            }
            refusals++;
            assert_true(strlen(placement.reason) > 40);
            assert_true(strlen(placement.reason) + 1 < sizeof placement.reason);
            check_offer(admission, &spec, &placement.offer);
        }
        admission_destroy(admission);
    }
    assert_true(refusals > 300);
}

static void test_bound(void **state)
{
    (void)state;
    struct admission *admission = test_admission_of(&profile, 1, 1);
    struct admission_placement placement;
    struct core_stream_spec spec = spec_of(1400, 1, 5 * MS, 50 * MS);
    placement = ask(admission, &spec);
    assert_int_equal(placement.bound_ns, 5 * MS); /* one spacing, 5 ms less the margins, and the margins */
    spec.latency_ns = 4 * MS;
    placement = ask(admission, &spec);
    assert_int_equal(placement.bound_ns, 4 * MS);
    spec = spec_of(1400, 3, 5 * MS, 50 * MS);
    placement = ask(admission, &spec);
    assert_int_equal(placement.bound_ns, 13800 * US); /* three spacings and the margins */
    admission_destroy(admission);
}

static void test_create_refuses(void **state)
{
    (void)state;
    struct admission *admission = NULL;
    struct core_error error;
    assert_int_equal(admission_create(&admission, &profile, 0, 1, &error), CORE_INVALID);
    assert_int_equal(admission_create(&admission, &profile, 1, 0, &error), CORE_INVALID);
    assert_int_equal(admission_create(&admission, &profile, 1000000, 1, &error), CORE_INVALID);
    assert_null(admission);
    admission_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boundary_of_demand),
        cmocka_unit_test(test_boundary_of_utilisation),
        cmocka_unit_test(test_worst_fit),
        cmocka_unit_test(test_next_worker),
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_query_commits_nothing),
        cmocka_unit_test(test_io),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_deadline_beside_others),
        cmocka_unit_test(test_rate_beyond_a_worker),
        cmocka_unit_test(test_utilisation_of_one),
        cmocka_unit_test(test_offers_of_random_questions),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_create_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
