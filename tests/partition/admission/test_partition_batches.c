/* Batches of a GPU: whether its arenas hold those for its own streams and for those that come at the loss of
 * another one, and the plan of these. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "partition/admission/internal.h"
#include "tests/support/admission.h"

#define MS      CORE_NS_PER_MS
#define GPUS    3
#define SETS    200
#define STREAMS 60

static struct config_profile *profile;
static struct admission *admission; /* one worker, which takes no stream */
static struct test_random random_numbers;

static void begin_with(uint32_t gpus, uint64_t seed, const struct partition_gpu_arenas *arenas)
{
    random_numbers = (struct test_random){.state = seed};
    profile = test_admission_profile();
    profile->gpus[0].count = gpus;
    profile->gpus[0].memory_bytes = profile->pinned_bytes = UINT64_C(8) << 30;
    profile->cpu.per_piece_ns *= 1000000;
    admission = test_admission_of(profile, 1, 1);
    assert_int_equal(admission_set_arenas(admission, arenas), CORE_OK);
}

static void begin(uint32_t gpus, uint64_t seed)
{
    begin_with(gpus, seed,
               &(struct partition_gpu_arenas){.count = 64,
                                              .slots = 64,
                                              .segments = 65536,
                                              .bytes = UINT64_C(64) << 20,
                                              .lead_ns = MS,
                                              .hang_ns = CORE_NS_NEVER});
}

static void end(void)
{
    admission_destroy(admission);
    config_profile_free(profile);
}

static struct core_stream_spec draw(bool guaranteed)
{
    struct core_stream_spec spec = test_admission_spec(test_random_in(&random_numbers, 10, 60) * MS,
                                                       test_random_in(&random_numbers, 300, 900) * MS);
    spec.burst_packets = (uint32_t)test_random_in(&random_numbers, 1, 4);
    spec.guaranteed = guaranteed;
    return spec;
}

static core_ns work_of(const struct core_stream_spec *spec)
{
    return perfmodel_flow_load_of(spec, profile).shortest_ns;
}

static uint32_t enter(const struct core_stream_spec *spec, const struct admission_placement *placement)
{
    assert_int_equal(admission_allocate(admission, placement), CORE_OK);
    admission_set_periods(admission, placement);
    return admission_insert(admission, spec, 0, 0, placement);
}

/* GPU 0 is charged for it, whether there is room or not: as its own, or for the loss of another GPU. */
static uint32_t charge(uint32_t failure, const struct core_stream_spec *spec, core_ns period_ns)
{
    struct admission_placement own = {.unit = 1, .backup_unit = ADMISSION_NONE, .period_ns = period_ns};
    struct admission_placement backup = {.unit = 1 + failure,
                                         .backup_unit = 1,
                                         .period_ns = period_ns,
                                         .backup_period_ns = period_ns,
                                         .backup_spec = *spec,
                                         .gpu_bound_ns = spec->latency_ns};
    return enter(spec, failure == 0 ? &own : &backup);
}

static bool plan(void)
{
    struct admission_refusal words;
    return admission_plan_batches(admission, 0, &words);
}

/* No figure of the plan is below what this load takes at the plan's period. */
static void expect_covered(const struct perfmodel_flow_load *load, bool exactly)
{
    const struct partition_gpu_plan *plan = admission_batches(admission, 0);
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(plan->card, load, plan->period_ns);

    assert_true(plan->up_ns >= verdict.bounds.up_ns && plan->kernel_ns >= verdict.bounds.kernel_ns);
    assert_true(plan->down_ns >= verdict.bounds.down_ns && plan->latency_ns >= verdict.latency_ns);
    assert_true(plan->batch_bytes >= verdict.batch_bytes);
    assert_true(plan->load.streams >= load->streams && plan->load.burst_bytes >= load->burst_bytes);
    assert_true(plan->load.rate >= load->rate && plan->load.job_rate >= load->job_rate);
    assert_true(plan->load.job_burst_bytes >= load->job_burst_bytes);
    assert_true(plan->load.shortest_ns <= load->shortest_ns || load->streams == 0);
    if (exactly)
        assert_int_equal(plan->latency_ns, verdict.latency_ns);
}

/* Every loss is covered; with two GPUs there is one, and the plan is for just that. */
static void a_plan_is_for_every_loss(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SETS; seed++) {
        struct perfmodel_flow_load own = {0}, at_loss[GPUS] = {{0}};
        core_ns shortest_ns = CORE_NS_NEVER;
        uint32_t gpus = seed % 2 == 0 ? 2 : GPUS, backups = 0;

        begin(gpus, seed);
        for (uint32_t n = 0; n < STREAMS; n++) {
            struct core_stream_spec spec = draw(false);
            uint32_t where = (uint32_t)test_random_in(&random_numbers, 0, gpus - 1);
            struct perfmodel_flow_load load = partition_demand_of(&spec, profile).load;
            shortest_ns = core_time_min(load.shortest_ns, shortest_ns);
            (void)charge(where, &spec, shortest_ns / 4);
            perfmodel_flow_load_add(where == 0 ? &own : &at_loss[where], &load);
            backups += where > 0;
        }
        assert_true(plan());
        const struct partition_gpu_plan *made = admission_batches(admission, 0);
        assert_int_equal(made->period_ns, shortest_ns / 4);
        assert_int_equal(made->streams, STREAMS - backups);
        assert_int_equal(made->backups, backups);
        assert_true(made->reserved_ppb >= 0 && made->reserved_ppb <= 1000000000);
        expect_covered(&own, false);
        for (uint32_t failure = 1; failure < gpus; failure++) {
            struct perfmodel_flow_load load = own;
            perfmodel_flow_load_add(&load, &at_loss[failure]);
            expect_covered(&load, gpus == 2);
        }
        end();
    }
}

static void backups_alone_need_batches(void **state)
{
    (void)state;

    begin(2, 1);
    struct core_stream_spec spec = draw(true);
    uint32_t stream = charge(1, &spec, 50 * MS);
    const struct partition_gpu_plan *made = admission_batches(admission, 0);
    assert_true(plan());
    assert_int_equal(made->streams, 0);
    assert_int_equal(made->backups, 1);
    assert_int_equal(made->period_ns, 50 * MS);
    assert_int_equal(made->load.shortest_ns, work_of(&spec));
    admission_release(admission, stream);
    assert_true(plan());
    assert_int_equal(made->period_ns, 0);
    assert_int_equal(made->backups, 0);
    assert_int_equal(made->load.streams, 0);
    end();
}

/* Losses share a batch's room, but not slots: all keys are there beforehand. */
static void every_backup_has_a_slot(void **state)
{
    uint32_t most, last = 0;
    (void)state;

    begin(GPUS, 1);
    struct core_stream_spec spec = draw(true);
    most = partition_gpu_arenas_streams(&admission->batches[0].arenas);
    for (uint32_t n = 0; n < most; n++)
        last = charge(n % 3, &spec, 50 * MS);
    assert_true(plan());
    uint64_t number = admission_batches(admission, 0)->number;
    (void)charge(2, &spec, 50 * MS);
    assert_false(plan());
    assert_int_equal(admission_batches(admission, 0)->number, number);
    admission_release(admission, last);
    assert_true(plan());
    end();
}

/* What comes to the card for the loss of another one has no backup that a hang could send it to. */
static void only_its_own_guaranteed_streams_watch_for_hangs(void **state)
{
    (void)state;

    begin(2, 1);
    struct core_stream_spec spec = draw(true);
    admission->batches[0].arenas.hang_ns = 1;
    (void)charge(1, &spec, 50 * MS);
    assert_true(plan());
    assert_int_equal(admission_batches(admission, 0)->guaranteed, 0);
    uint32_t own = charge(0, &spec, 50 * MS);
    assert_false(plan());
    admission_release(admission, own);
    assert_true(plan());
    end();
}

/* Of a batch a period: opened ahead of its period by the lead, closed so late, and delivered once the stages
 * are through. How many have an arena when one is about to give it back? */
static uint32_t in_use_at_once(const struct partition_gpu_plan *made, core_ns lead_ns)
{
    core_ns freed_ns = made->delay_ns + made->latency_ns - made->period_ns + profile->margins.out_ns;
    uint32_t count = 0;
    for (core_ns opened_ns = -made->period_ns - lead_ns; opened_ns < freed_ns; opened_ns += made->period_ns)
        count++;
    return count;
}

static void no_arena_too_few(void **state)
{
    int more_than_two = 0;
    (void)state;

    for (uint64_t seed = 1; seed <= SETS; seed++) {
        begin(1, seed);
        struct core_stream_spec spec = draw(false);
        core_ns period_ns = test_random_in(&random_numbers, MS / 2, 30 * MS);
        struct partition_gpu_arenas *arenas = &admission->batches[0].arenas;
        arenas->lead_ns = test_random_in(&random_numbers, 0, 3 * period_ns);
        (void)charge(0, &spec, period_ns);
        if (plan()) {
            uint32_t least = in_use_at_once(admission_batches(admission, 0), arenas->lead_ns);
            more_than_two += least > 2;
            arenas->count = least;
            assert_true(plan());
            arenas->count = least - 1;
            assert_false(plan());
        }
        end();
    }
    assert_true(more_than_two > SETS / 4);
}

static void no_packet_too_many(void **state)
{
    (void)state;

    for (uint64_t seed = 1; seed <= SETS; seed++) {
        begin(1, seed);
        uint64_t packets = 1;
        core_ns period_ns = test_random_in(&random_numbers, 10 * MS, 60 * MS);
        for (uint32_t n = 0; n < STREAMS; n++) {
            struct core_stream_spec spec = draw(false);
            (void)charge(0, &spec, period_ns);
            packets += spec.burst_packets + (uint64_t)(period_ns / spec.interval_ns);
        }
        admission->batches[0].arenas.segments = (uint32_t)packets - 1;
        assert_false(plan());
        admission->batches[0].arenas.segments = (uint32_t)packets + STREAMS; /* parts of an interval */
        assert_true(plan());
        end();
    }
}

static void expect_same(const struct perfmodel_flow_load *a, const struct perfmodel_flow_load *b)
{
    assert_int_equal(a->streams, b->streams);
    assert_int_equal(a->burst_bytes, b->burst_bytes);
    assert_int_equal(a->rate, b->rate);
    assert_int_equal(a->burst_packets, b->burst_packets);
    assert_int_equal(a->packet_rate, b->packet_rate);
    assert_int_equal(a->job_burst_bytes, b->job_burst_bytes);
    assert_int_equal(a->job_rate, b->job_rate);
    assert_int_equal(a->unit_bytes, b->unit_bytes);
    assert_int_equal(a->shortest_ns, b->shortest_ns);
}

/* GPU 0 is charged for just those streams that there are. */
static void expect_exact(void)
{
    const struct partition_gpu *gpu = admission->gpu[0];
    struct perfmodel_flow_load own = {0}, at_loss = {0};
    uint32_t guaranteed = 0;

    for (size_t n = 0; n < admission_streams(admission); n++) {
        struct admission_stream stream = admission_stream_at(admission, n);
        bool here = stream.unit == 1;
        if (!here && stream.backup_unit != 1)
            continue;
        struct perfmodel_flow_load load =
            partition_demand_of(here ? &stream.spec : &stream.backup_spec, profile).load;
        perfmodel_flow_load_add(here ? &own : &at_loss, &load);
        guaranteed += here && stream.spec.guaranteed;
    }
    expect_same(&gpu->own.load, &own);
    if (gpu->backups[1] != NULL)
        expect_same(&gpu->backups[1]->load, &at_loss);
    assert_int_equal(gpu->guaranteed, guaranteed);
    assert_int_equal(admission_batches(admission, 0)->streams, own.streams);
    assert_int_equal(admission_batches(admission, 0)->backups, at_loss.streams);
    assert_int_equal(admission_batches(admission, 0)->guaranteed, guaranteed);
}

/* A stream that has left leaves no trace. */
static void streams_come_and_go(void **state)
{
    uint32_t admitted[STREAMS], count = 0, backed = 0;
    (void)state;

    begin(2, 7);
    for (int step = 0; step < 300; step++) {
        if (count == 0 || (count < STREAMS && test_random_chance(&random_numbers, 55))) {
            struct core_stream_spec spec = draw(test_random_chance(&random_numbers, 60));
            struct admission_placement placement = test_admission_admit(admission, &spec, 0);
            if (!placement.accepted)
                fail_msg("%s", placement.reason);
            admitted[count++] = placement.stream;
            backed += placement.backup_unit == 1;
        } else {
            uint32_t n = (uint32_t)test_random_in(&random_numbers, 0, count - 1);
            admission_release(admission, admitted[n]);
            admitted[n] = admitted[--count];
        }
        assert_true(plan());
        expect_exact();
    }
    assert_true(backed > 20);
    end();
}

/* Would times and memory alone let it in? */
static bool fits_but_for_batches(const struct core_stream_spec *spec, struct admission_placement *placement)
{
    struct admission without = *admission;
    without.batches = NULL;
    *placement = test_admission_query(&without, spec, false);
    return placement->accepted;
}

/* A new stream is taken just if its batches have room. The card has few arenas, and little room in each. */
static void what_is_asked_beforehand_comes_true(void **state)
{
    uint32_t admitted[STREAMS], count = 0, yes = 0, no = 0;
    (void)state;

    begin(1, 16);
    admission->batches[0].arenas.count = 8;
    admission->batches[0].arenas.bytes = 40000;
    for (int step = 0; step < 2000; step++) {
        struct admission_placement placement;
        struct core_stream_spec spec = draw(false);
        spec.latency_ns /= test_random_in(&random_numbers, 1, 12);
        spec.packet_bytes = (uint32_t)test_random_in(&random_numbers, 1, 16000);
        bool leaves = count == STREAMS || test_random_chance(&random_numbers, 45);
        if (leaves && count > 0) {
            uint32_t n = (uint32_t)test_random_in(&random_numbers, 0, count - 1);
            admission_release(admission, admitted[n]);
            assert_true(plan());
            admitted[n] = admitted[--count];
        }
        if (leaves || !fits_but_for_batches(&spec, &placement))
            continue;
        struct admission_placement answer = test_admission_admit(admission, &spec, 0);
        uint32_t stream = answer.accepted ? answer.stream : enter(&spec, &placement);
        assert_int_equal(plan(), answer.accepted);
        if (answer.accepted) {
            admitted[count++] = stream;
            yes++;
            continue;
        }
        no++;
        assert_true(answer.constraint == PERFMODEL_LIMIT_GPU_MEMORY ||
                    answer.constraint == PERFMODEL_LIMIT_GPU_LATENCY);
        admission_release(admission, stream);
        assert_true(plan());
    }
    print_message("%u were taken, %u not\n", yes, no);
    assert_true(yes > 200 && no > 50);
    end();
}

static void expect_unchanged(const struct admission_stream *before, const struct partition_gpu_plan *made,
                             core_ns period_ns)
{
    struct admission_stream now = admission_stream_of(admission, before->stream);
    assert_int_equal(now.gpu_bound_ns, before->gpu_bound_ns);
    assert_int_equal(now.backup_unit, before->backup_unit);
    assert_int_equal(now.join.interval_ns, before->join.interval_ns);
    assert_int_equal(now.join.latency_ns, before->join.latency_ns);
    assert_int_equal(now.spec.latency_ns, before->spec.latency_ns);
    assert_int_equal(admission_gpu_at(admission, before->unit - 1).period_ns, period_ns);
    assert_int_equal(admission_batches(admission, before->unit - 1)->period_ns, made->period_ns);
    assert_int_equal(admission_batches(admission, before->unit - 1)->latency_ns, made->latency_ns);
}

/* A change that is refused because batches have no room for it leaves what is charged as it was, down to the
 * bound that the GPU keeps and the periods. */
static void a_refused_change_leaves_no_trace(void **state)
{
    uint32_t by_batches = 0, changed = 0;
    (void)state;

    for (uint64_t seed = 1; seed <= SETS; seed++) {
        begin(2, seed);
        for (uint32_t g = 0; g < 2; g++)
            admission->batches[g].arenas.count = (uint32_t)test_random_in(&random_numbers, 7, 12);
        struct core_stream_spec spec = draw(test_random_chance(&random_numbers, 70));
        struct admission_placement placement = test_admission_admit(admission, &spec, 0);
        if (placement.accepted && placement.unit > 0) {
            uint32_t stream = placement.stream;
            const struct admission_stream before = admission_stream_of(admission, stream);
            const struct partition_gpu_plan made = *admission_batches(admission, before.unit - 1);
            spec.latency_ns /= test_random_in(&random_numbers, 2, 12);
            assert_int_equal(admission_change(admission, stream, &spec, &placement, NULL), CORE_OK);
            by_batches += !placement.accepted && strstr(placement.reason, "would need room for") != NULL;
            by_batches += !placement.accepted && strstr(placement.reason, "while it changes") != NULL;
            changed += placement.accepted;
            if (!placement.accepted)
                expect_unchanged(&before, &made, made.period_ns);
        }
        end();
    }
    print_message("%u changed, %u refused by batches\n", changed, by_batches);
    assert_true(changed > 10 && by_batches > 10);
}

/* Also in a copy, which knows nothing else of them. */
static void memory_is_that_of_the_arenas(void **state)
{
    struct admission *copy = NULL;
    (void)state;

    begin_with(1, 1,
               &(struct partition_gpu_arenas){
                   .count = 64, .slots = 64, .segments = 65536, .bytes = 16384, .hang_ns = CORE_NS_NEVER});
    struct admission *unlimited = test_admission_of(profile, 1, 1);
    struct core_stream_spec spec = draw(false);
    spec.packet_bytes = 40000;
    assert_int_equal(admission_copy(admission, &copy), CORE_OK);
    assert_true(test_admission_query(unlimited, &spec, false).accepted);
    assert_false(test_admission_query(copy, &spec, false).accepted);
    admission_destroy(copy);
    admission_destroy(unlimited);
    end();
}

/* A GPU that has backups only keeps a period like any other. */
static void periods_of_backups_alone(void **state)
{
    core_ns period_ns, long_ns;
    (void)state;

    begin(2, 9);
    struct core_stream_spec spec = draw(true);
    struct admission_placement placement = test_admission_admit(admission, &spec, 0);
    assert_true(placement.accepted && placement.unit > 0 && placement.backup_unit > 0);
    uint32_t other = placement.backup_unit - 1;
    assert_int_equal(admission_gpu_at(admission, other).streams, 0);
    assert_int_equal(admission_gpu_at(admission, other).backups, 1);
    long_ns = admission_gpu_at(admission, other).period_ns;
    assert_int_equal(long_ns, placement.backup_period_ns);
    assert_true(admission_set_period(admission, other, long_ns / 2));
    assert_int_equal(admission_gpu_at(admission, other).period_ns, long_ns / 2);
    assert_false(admission_set_period(admission, other, spec.latency_ns));
    assert_true(admission_retune(admission, other, &period_ns));
    assert_int_equal(period_ns, long_ns);
    test_admission_holds(admission);
    admission_release(admission, placement.stream);
    assert_int_equal(admission_gpu_at(admission, other).period_ns, 0);
    assert_false(admission_retune(admission, other, &period_ns));
    assert_false(admission_set_period(admission, other, long_ns));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_for_every_loss),
        cmocka_unit_test(backups_alone_need_batches),
        cmocka_unit_test(every_backup_has_a_slot),
        cmocka_unit_test(only_its_own_guaranteed_streams_watch_for_hangs),
        cmocka_unit_test(no_arena_too_few),
        cmocka_unit_test(no_packet_too_many),
        cmocka_unit_test(streams_come_and_go),
        cmocka_unit_test(what_is_asked_beforehand_comes_true),
        cmocka_unit_test(a_refused_change_leaves_no_trace),
        cmocka_unit_test(memory_is_that_of_the_arenas),
        cmocka_unit_test(periods_of_backups_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
