/* The planner's account of a GPU: its own streams, and those that come at the loss of another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/planner/gpu_account.h"
#include "tests/support/standing.h"

#define MS      CORE_NS_PER_MS
#define GPUS    3
#define SETS    200
#define STREAMS 60

static struct config_profile *profile;
static struct server_gpu_account account;
static struct test_random random_numbers;

static void begin(uint32_t gpus, uint64_t seed)
{
    const struct gpu_region_shape shape = {
        .arenas = 64, .slots = 64, .segments = 65536, .arena_bytes = UINT64_C(64) << 20};
    random_numbers = (struct test_random){.state = seed};
    profile = test_standing_profile();
    profile->gpus[0].count = gpus;
    profile->gpus[0].memory_bytes = profile->pinned_bytes = UINT64_C(8) << 30;
    assert_int_equal(server_gpu_account_init(&account, profile, &profile->gpus[0], gpus, true, &shape, MS),
                     CORE_OK);
}

static void end(void)
{
    server_gpu_account_free(&account);
    config_profile_free(profile);
}

static struct core_stream_spec draw(bool guaranteed)
{
    struct core_stream_spec spec = test_standing_spec(test_random_in(&random_numbers, 10, 60) * MS,
                                                      test_random_in(&random_numbers, 300, 900) * MS);
    spec.burst_packets = (uint32_t)test_random_in(&random_numbers, 1, 4);
    spec.guaranteed = guaranteed;
    return spec;
}

static core_ns work_of(const struct core_stream_spec *spec)
{
    return perfmodel_flow_load_of(spec, profile).shortest_ns;
}

/* No figure of the plan is below what this load takes at the plan's period. */
static void expect_covered(const struct perfmodel_flow_load *load, bool exactly)
{
    const struct server_gpu_plan *plan = &account.plan;
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(account.card, load, plan->period_ns);

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
        char reason[256];

        begin(gpus, seed);
        for (uint32_t n = 0; n < STREAMS; n++) {
            struct core_stream_spec spec = draw(false);
            uint32_t where = (uint32_t)test_random_in(&random_numbers, 0, gpus - 1);
            struct perfmodel_flow_load load = perfmodel_flow_load_of(&spec, profile);
            load.unit_bytes = core_stream_padded_bytes(spec.padding, spec.packet_bytes);
            server_gpu_account_add(&account, where == 0 ? SERVER_GPU_OWN : where, &spec);
            perfmodel_flow_load_add(where == 0 ? &own : &at_loss[where], &load);
            backups += where > 0;
            shortest_ns = load.shortest_ns < shortest_ns ? load.shortest_ns : shortest_ns;
        }
        if (!server_gpu_account_plan(&account, shortest_ns / 4, shortest_ns, reason, sizeof reason))
            fail_msg("%s", reason);
        assert_int_equal(account.plan.streams, STREAMS - backups);
        assert_int_equal(account.plan.backups, backups);
        assert_true(account.plan.reserved_ppb >= 0 && account.plan.reserved_ppb <= 1000000000);
        expect_covered(&own, false);
        for (uint32_t loss = 1; loss < gpus; loss++) {
            struct perfmodel_flow_load load = own;
            perfmodel_flow_load_add(&load, &at_loss[loss]);
            expect_covered(&load, gpus == 2);
        }
        end();
    }
}

static void backups_alone_need_batches(void **state)
{
    char reason[256];
    (void)state;

    begin(2, 1);
    struct core_stream_spec spec = draw(true);
    server_gpu_account_add(&account, 1, &spec);
    assert_true(server_gpu_account_plan(&account, 50 * MS, work_of(&spec), reason, sizeof reason));
    assert_int_equal(account.plan.streams, 0);
    assert_int_equal(account.plan.backups, 1);
    assert_int_equal(account.plan.period_ns, 50 * MS);
    assert_int_equal(account.plan.load.shortest_ns, work_of(&spec));
    server_gpu_account_remove(&account, 1, &spec);
    assert_true(server_gpu_account_plan(&account, 0, 0, reason, sizeof reason));
    assert_int_equal(account.plan.period_ns, 0);
    assert_int_equal(account.plan.backups, 0);
    assert_int_equal(account.plan.load.streams, 0);
    end();
}

/* Losses share a batch's room, but not slots: all keys are there beforehand. */
static void every_backup_has_a_slot(void **state)
{
    char reason[256];
    uint32_t most;
    (void)state;

    begin(GPUS, 1);
    struct core_stream_spec spec = draw(true);
    most = server_gpu_account_streams_max(&account.shape);
    for (uint32_t n = 0; n < most; n++)
        server_gpu_account_add(&account, n % 3 == 0 ? SERVER_GPU_OWN : n % 3, &spec);
    assert_true(server_gpu_account_plan(&account, 50 * MS, work_of(&spec), reason, sizeof reason));
    server_gpu_account_add(&account, 2, &spec);
    assert_false(server_gpu_account_plan(&account, 50 * MS, work_of(&spec), reason, sizeof reason));
    server_gpu_account_remove(&account, 1, &spec);
    assert_true(server_gpu_account_plan(&account, 50 * MS, work_of(&spec), reason, sizeof reason));
    end();
}

/* Who is on the card for the loss of another one has no backup that a hang could send it to. */
static void only_its_own_guaranteed_streams_watch_for_hangs(void **state)
{
    char reason[256];
    (void)state;

    begin(2, 1);
    struct core_stream_spec spec = draw(true);
    account.hang_ns = 1;
    server_gpu_account_add(&account, 1, &spec);
    assert_true(server_gpu_account_plan(&account, 50 * MS, work_of(&spec), reason, sizeof reason));
    assert_int_equal(account.plan.guaranteed, 0);
    server_gpu_account_add(&account, SERVER_GPU_OWN, &spec);
    assert_false(server_gpu_account_plan(&account, 50 * MS, work_of(&spec), reason, sizeof reason));
    end();
}

/* Of a batch a period: opened ahead of its period by the lead, closed so late, and delivered once the stages
 * are through. How many have an arena when one is about to give it back? */
static uint32_t in_use_at_once(const struct server_gpu_plan *plan)
{
    core_ns freed_ns = plan->delay_ns + plan->latency_ns - plan->period_ns + profile->margins.out_ns;
    uint32_t count = 0;
    for (core_ns opened_ns = -plan->period_ns - account.lead_ns; opened_ns < freed_ns;
         opened_ns += plan->period_ns)
        count++;
    return count;
}

static void no_arena_too_few(void **state)
{
    char reason[256];
    int more_than_two = 0;
    (void)state;

    for (uint64_t seed = 1; seed <= SETS; seed++) {
        begin(1, seed);
        struct core_stream_spec spec = draw(false);
        core_ns period_ns = test_random_in(&random_numbers, MS / 2, 30 * MS);
        account.lead_ns = test_random_in(&random_numbers, 0, 3 * period_ns);
        server_gpu_account_add(&account, SERVER_GPU_OWN, &spec);
        if (server_gpu_account_plan(&account, period_ns, work_of(&spec), reason, sizeof reason)) {
            uint32_t least = in_use_at_once(&account.plan);
            more_than_two += least > 2;
            account.shape.arenas = least;
            assert_true(server_gpu_account_plan(&account, period_ns, work_of(&spec), reason, sizeof reason));
            account.shape.arenas = least - 1;
            assert_false(server_gpu_account_plan(&account, period_ns, work_of(&spec), reason, sizeof reason));
        }
        server_gpu_account_remove(&account, SERVER_GPU_OWN, &spec);
        end();
    }
    assert_true(more_than_two > SETS / 4);
}

static void expect_same(const struct server_gpu_crowd *a, const struct server_gpu_crowd *b)
{
    assert_int_equal(a->load.streams, b->load.streams);
    assert_int_equal(a->load.burst_bytes, b->load.burst_bytes);
    assert_int_equal(a->load.rate, b->load.rate);
    assert_int_equal(a->burst_packets, b->burst_packets);
}

/* As streams come and go in a standing plan whose workers take none of them: a recount adds up to what was
 * added and removed, and the plan is for the least d' of all. */
static void a_recount_tells_the_same(void **state)
{
    uint32_t admitted[STREAMS], count = 0, backed = 0;
    char reason[256];
    (void)state;

    begin(2, 7);
    profile->cpu.per_piece_ns *= 1000000;
    struct partition_standing *standing = test_standing_of(profile, 1, 1);
    for (int step = 0; step < 300; step++) {
        bool comes = count == 0 || (count < STREAMS && test_random_chance(&random_numbers, 55));
        struct partition_standing_stream stream;
        uint32_t n = 0;
        if (comes) {
            struct core_stream_spec spec = draw(test_random_chance(&random_numbers, 60));
            struct partition_standing_placement placement = test_standing_admit(standing, &spec, 0);
            if (!placement.accepted)
                fail_msg("%s", placement.reason);
            assert_true(placement.unit > 0);
            admitted[count++] = placement.stream;
            n = count - 1;
        } else {
            n = (uint32_t)test_random_in(&random_numbers, 0, count - 1);
        }
        stream = partition_standing_stream_of(standing, admitted[n]);
        void (*change)(struct server_gpu_account *, uint32_t, const struct core_stream_spec *) =
            comes ? server_gpu_account_add : server_gpu_account_remove;
        if (stream.unit == 1)
            change(&account, SERVER_GPU_OWN, &stream.spec);
        else if (stream.backup_unit == 1)
            change(&account, 1, &stream.backup_spec);
        backed += comes && stream.backup_unit == 1;
        if (!comes) {
            partition_standing_release(standing, admitted[n]);
            admitted[n] = admitted[--count];
        }
        struct server_gpu_crowd own = account.own, at_loss = account.losses[1];
        uint32_t guaranteed = account.guaranteed;
        server_gpu_account_recount(&account, standing, 0, 1);
        expect_same(&account.own, &own);
        expect_same(&account.losses[1], &at_loss);
        assert_int_equal(account.guaranteed, guaranteed);
        struct partition_standing_gpu gpu = partition_standing_gpu_at(standing, 0);
        assert_int_equal(gpu.streams, own.load.streams);
        assert_int_equal(gpu.backups, at_loss.load.streams);
        assert_int_equal(gpu.period_ns == 0, own.load.streams + at_loss.load.streams == 0);
        assert_true(server_gpu_account_plan(&account, gpu.period_ns, gpu.shortest_ns, reason, sizeof reason));
        assert_int_equal(account.plan.backups, gpu.backups);
        if (at_loss.load.streams > 0)
            assert_true(gpu.shortest_ns <= account.losses[1].load.shortest_ns);
    }
    assert_true(backed > 20);
    partition_standing_destroy(standing);
    end();
}

/* Asks for the room of the placement on GPU 0 and leaves no trace. */
static bool takes(const struct partition_standing *standing, const struct core_stream_spec *spec,
                  const struct partition_standing_placement *placement)
{
    const struct server_gpu_crowd own = account.own;
    const struct server_gpu_plan plan = account.plan;
    struct partition_standing_room room = {.gpu = 0,
                                           .loss = PARTITION_STANDING_NONE,
                                           .spec = *spec,
                                           .period_ns = placement->period_ns,
                                           .shortest_ns = work_of(spec)};
    core_ns shortest_ns = partition_standing_gpu_at(standing, 0).shortest_ns;
    enum perfmodel_limit constraint;
    char reason[256];
    if (shortest_ns > 0 && shortest_ns < room.shortest_ns)
        room.shortest_ns = shortest_ns;
    bool does = server_gpu_account_takes(&account, standing, 1, &room, &constraint, reason, sizeof reason);
    expect_same(&account.own, &own);
    assert_int_equal(account.plan.number, plan.number);
    assert_int_equal(account.plan.period_ns, plan.period_ns);
    return does;
}

/* What is said of a newcomer beforehand is what comes of it, and greatest jobs that have left do not count.
 * The card has few arenas, and little room in each. */
static void what_is_asked_beforehand_comes_true(void **state)
{
    uint32_t admitted[STREAMS], count = 0, yes = 0, no = 0, anew = 0;
    enum perfmodel_limit constraint;
    char reason[256];
    (void)state;

    begin(1, 16);
    profile->cpu.per_piece_ns *= 1000000;
    account.shape.arenas = 8;
    account.shape.arena_bytes = 40000;
    struct partition_standing *standing = test_standing_of(profile, 1, 1);
    for (int step = 0; step < 2000; step++) {
        struct core_stream_spec spec = draw(false);
        spec.latency_ns /= test_random_in(&random_numbers, 1, 12);
        spec.packet_bytes = (uint32_t)test_random_in(&random_numbers, 1, 16000);
        struct partition_standing_placement placement = test_standing_query(standing, &spec, false);
        if (count == STREAMS || test_random_chance(&random_numbers, 45) || !placement.accepted) {
            uint32_t n = count > 0 ? (uint32_t)test_random_in(&random_numbers, 0, count - 1) : 0;
            if (count == 0)
                continue;
            spec = partition_standing_stream_of(standing, admitted[n]).spec;
            partition_standing_release(standing, admitted[n]);
            server_gpu_account_remove(&account, SERVER_GPU_OWN, &spec);
            assert_true(
                server_gpu_account_replan(&account, standing, 0, 1, &constraint, reason, sizeof reason));
            admitted[n] = admitted[--count];
            continue;
        }
        bool stale = account.stale, does = takes(standing, &spec, &placement);
        anew += stale && !account.stale && does;
        placement = test_standing_admit(standing, &spec, 0);
        server_gpu_account_add(&account, SERVER_GPU_OWN, &spec);
        assert_int_equal(
            server_gpu_account_replan(&account, standing, 0, 1, &constraint, reason, sizeof reason), does);
        (*(does ? &yes : &no))++;
        if (does) {
            admitted[count++] = placement.stream;
            continue;
        }
        partition_standing_release(standing, placement.stream);
        server_gpu_account_remove(&account, SERVER_GPU_OWN, &spec);
        assert_true(server_gpu_account_replan(&account, standing, 0, 1, &constraint, reason, sizeof reason));
    }
    print_message("%u were taken, %u not; %u after the account had been counted anew\n", yes, no, anew);
    assert_true(yes > 200 && no > 50 && anew > 0);
    partition_standing_destroy(standing);
    end();
}

/* A GPU that has backups only keeps a period like any other. */
static void periods_of_backups_alone(void **state)
{
    core_ns period_ns, long_ns;
    (void)state;

    begin(2, 9);
    profile->cpu.per_piece_ns *= 1000000;
    struct partition_standing *standing = test_standing_of(profile, 1, 1);
    struct core_stream_spec spec = draw(true);
    struct partition_standing_placement placement = test_standing_admit(standing, &spec, 0);
    assert_true(placement.accepted && placement.unit > 0 && placement.backup_unit > 0);
    uint32_t other = placement.backup_unit - 1;
    assert_int_equal(partition_standing_gpu_at(standing, other).streams, 0);
    assert_int_equal(partition_standing_gpu_at(standing, other).backups, 1);
    long_ns = partition_standing_gpu_at(standing, other).period_ns;
    assert_int_equal(long_ns, placement.backup_period_ns);
    assert_true(partition_standing_set_period(standing, other, long_ns / 2));
    assert_int_equal(partition_standing_gpu_at(standing, other).period_ns, long_ns / 2);
    assert_false(partition_standing_set_period(standing, other, spec.latency_ns));
    assert_true(partition_standing_retune(standing, other, &period_ns));
    assert_int_equal(period_ns, long_ns);
    test_standing_holds(standing);
    partition_standing_release(standing, placement.stream);
    assert_int_equal(partition_standing_gpu_at(standing, other).period_ns, 0);
    assert_false(partition_standing_retune(standing, other, &period_ns));
    assert_false(partition_standing_set_period(standing, other, long_ns));
    partition_standing_destroy(standing);
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
        cmocka_unit_test(a_recount_tells_the_same),
        cmocka_unit_test(what_is_asked_beforehand_comes_true),
        cmocka_unit_test(periods_of_backups_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
