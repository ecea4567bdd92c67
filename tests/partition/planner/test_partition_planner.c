/* The planner, with a host that does what each test says: when capacity is reclaimed, what a migration and a
 * change keep reserved until they end, evacuation and return, requests that wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "partition/planner/internal.h"
#include "tests/support/admission.h"
#include "tests/support/allocator.h"

#define MS          CORE_NS_PER_MS
#define WORKERS     2
#define GPUS        2
#define OWNERS      4096
#define SLOWER      40
#define WAIT_NS     CORE_NS_PER_S
#define TUNE_NS     (10 * MS)
#define CALM_NS     (30 * MS)
#define SCAN_NS     (5 * MS)
#define PATIENCE_NS CORE_NS_PER_S

/* ---- the allocator, which takes the place of the real one by the linker (--wrap in CMakeLists.txt) ---- */

static int allocations_left = INT_MAX; /* then there is no memory */

static bool fails(void)
{
    return allocations_left != INT_MAX && allocations_left-- <= 0;
}

/* ---- the host ---- */

/* A reservation as its host knows it. */
struct owner {
    uint32_t number;
    bool reclaimed, superseded;
};

static struct {
    struct partition_planner *planner;
    struct config_profile *profile;
    core_ns now_ns;
    uint64_t quiet[WORKERS + GPUS];
    bool out[GPUS], holds_plans_back, has_no_memory, plans_lack_memory, lacking;
    uint64_t sent[GPUS], in_force[GPUS];
    struct owner owner[OWNERS];
    size_t owners;
    struct partition_planner_migration migration[OWNERS]; /* in progress, or ended */
    size_t migrations;
    void *agreed, *admitted, *refused;
    enum partition_planner_refusal why;
    bool withdrawn;
    struct partition_planner_search *search;
    size_t retunes, refusals;
} host;

static int request, change; /* names */

static bool quiescent(void *context, uint32_t unit, uint64_t mark)
{
    (void)context;
    return host.quiet[unit] > mark;
}

static bool in_service(void *context, uint32_t gpu)
{
    (void)context;
    return !host.out[gpu];
}

static uint64_t plan_in_force(void *context, uint32_t gpu)
{
    (void)context;
    return host.in_force[gpu];
}

static bool put_plan(void *context, uint32_t gpu, const struct partition_gpu_plan *plan)
{
    (void)context;
    host.sent[gpu] = plan->number;
    if (!host.holds_plans_back)
        host.in_force[gpu] = plan->number;
    return true;
}

static struct owner *new_owner(void)
{
    assert_true(host.owners < OWNERS);
    return &host.owner[host.owners++];
}

static void *migrate(void *context, const struct partition_planner_migration *migration)
{
    (void)context;
    if (host.has_no_memory)
        return NULL;
    struct owner *owner = new_owner();
    owner->number = migration->to;
    host.migration[host.migrations++] = *migration;
    return owner;
}

static bool plan_lacks(void *context, uint32_t gpu, uint64_t number)
{
    (void)context;
    return host.plans_lack_memory && number > host.in_force[gpu];
}

static void agreed(void *context, void *of, bool lacking)
{
    host.lacking = lacking;
    (void)context;
    host.agreed = of;
}

static void reclaimed(void *context, void *of, bool superseded)
{
    struct owner *owner = of;
    (void)context;
    assert_false(owner->reclaimed);
    owner->reclaimed = true;
    owner->superseded = superseded;
}

static void charged(void *context, uint32_t unit, uint32_t io)
{
    (void)context;
    assert_true(unit < WORKERS + GPUS && io == 0);
}

static void search(void *context, struct partition_planner_search *wanted)
{
    (void)context;
    assert_null(host.search); /* one at a time */
    host.search = wanted;
}

static void admit_waiting(void *context, void *of)
{
    (void)context;
    host.admitted = of;
}

static void refuse(void *context, void *of, enum partition_planner_refusal why)
{
    (void)context;
    host.refused = of;
    host.refusals++;
    host.why = why;
}

static bool still_waits(void *context, void *of)
{
    (void)context;
    (void)of;
    return !host.withdrawn;
}

static void service(void *context, uint32_t gpu, bool out)
{
    (void)context;
    assert_int_equal(out, host.out[gpu]);
}

static void retuned(void *context, uint32_t gpu, core_ns before_ns, core_ns after_ns)
{
    (void)context;
    (void)gpu;
    assert_true(after_ns != before_ns);
    host.retunes++;
}

static const struct partition_planner_host functions = {
    quiescent, in_service, plan_in_force, put_plan, migrate,     plan_lacks, agreed, reclaimed,
    charged,   search,     admit_waiting, refuse,   still_waits, service,    retuned};

/* ---- the machine ---- */

static void make_workers_slower(int64_t times)
{
    struct config_profile_cpu *cpu = &host.profile->cpu;

    cpu->per_piece_ns *= times;
    for (size_t n = 0; n < CORE_CIPHER_COUNT; n++) {
        cpu->per_byte_fs[n] *= times;
        cpu->lane_ns[n] *= times;
    }
}

static const struct partition_planner_options options = {.workers = WORKERS,
                                                         .gpus = GPUS,
                                                         .wait_ns = WAIT_NS,
                                                         .timeout_ns = PATIENCE_NS,
                                                         .scan_ns = SCAN_NS,
                                                         .retune_ns = TUNE_NS,
                                                         .calm_ns = CALM_NS};

static int set_up_with(int64_t slower)
{
    const struct partition_gpu_arenas arenas = {.count = 16,
                                                .slots = 4096,
                                                .segments = 1 << 20,
                                                .bytes = UINT64_C(1) << 28,
                                                .hang_ns = CORE_NS_NEVER};
    struct admission *admission;

    memset(&host, 0, sizeof host);
    host.now_ns = CORE_NS_PER_S;
    host.profile = test_admission_profile();
    host.profile->io.per_packet_ns = host.profile->io.per_byte_fs = 0;
    host.profile->gpus[0].count = GPUS;
    make_workers_slower(slower);
    admission = test_admission_of(host.profile, WORKERS, 1);
    assert_int_equal(admission_set_arenas(admission, &arenas), CORE_OK);
    assert_int_equal(partition_planner_create(&host.planner, admission, &options, &functions, NULL, NULL),
                     CORE_OK);
    return 0;
}

/* Workers that some dozens of streams fill. */
static int set_up(void **state)
{
    (void)state;
    return set_up_with(SLOWER);
}

static int set_up_for_crowd(void **state)
{
    (void)state;
    return set_up_with(1);
}

/* Whatever a test has done: every owner comes back, once. */
static int tear_down(void **state)
{
    (void)state;
    partition_planner_destroy(host.planner);
    for (size_t n = 0; n < host.owners; n++)
        assert_true(host.owner[n].reclaimed);
    config_profile_free(host.profile);
    return 0;
}

static struct admission *admission(void)
{
    return partition_planner_admission(host.planner);
}

static void step(core_ns ns)
{
    host.now_ns += ns;
    partition_planner_step(host.planner, host.now_ns);
    partition_planner_maintain(host.planner, host.now_ns);
}

static bool fits(void *context, uint32_t unit, bool *movable)
{
    (void)unit;
    *movable = true;
    return context == NULL;
}

static const struct partition_planner_memory enough = {.fits = fits};

/* Returns the owner of the new reservation; NULL: refused. */
static struct owner *admit(const struct core_stream_spec *spec)
{
    struct admission_placement placement;
    struct owner *owner = new_owner();

    assert_int_equal(partition_planner_admit(host.planner, spec, 0, &enough, owner, &placement), CORE_OK);
    owner->number = placement.stream;
    if (placement.accepted)
        return owner;
    host.owners--;
    return NULL;
}

static uint32_t unit_of(const struct owner *owner)
{
    return admission_stream_of(admission(), owner->number).unit;
}

/* The first stream that comes to a GPU; those before it are on workers. */
static struct owner *admit_on_gpu(void)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 80 * MS);
    struct owner *owner;

    do {
        owner = admit(&spec);
        assert_non_null(owner);
    } while (unit_of(owner) < WORKERS);
    return owner;
}

static void retire(const struct owner *owner, bool used, uint64_t mark)
{
    const struct partition_planner_use use = {.used = used, .mark = mark};
    partition_planner_retire(host.planner, owner->number, &use);
}

static bool move(const struct owner *owner, uint32_t unit)
{
    char reason[256] = "";
    bool moves = partition_planner_move(host.planner, owner->number, unit, 10 * MS, PATIENCE_NS, NULL,
                                        host.now_ns, reason, sizeof reason);
    assert_true(moves == (reason[0] == '\0'));
    return moves;
}

static struct owner *target(size_t migration)
{
    for (size_t n = host.owners; n-- > 0;)
        if (host.owner[n].number == host.migration[migration].to && !host.owner[n].reclaimed)
            return &host.owner[n];
    fail();
    return NULL;
}

static uint32_t busy(void)
{
    uint32_t sum = 0;
    for (uint32_t gpu = 0; gpu < GPUS; gpu++)
        sum += host.planner->gpus[gpu].busy;
    return sum;
}

/* ---- reservations ---- */

static void reclaimed_after_quiescent_point(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    struct owner *used = admit(&spec), *unused = admit(&spec);
    uint32_t unit = unit_of(used);

    (void)state;
    host.quiet[unit] = 5;
    retire(used, true, 5);
    retire(unused, false, 0);
    step(MS);
    assert_true(unused->reclaimed);
    assert_false(used->reclaimed); /* the unit has not been quiescent since */
    assert_true(partition_planner_waits(host.planner));
    host.quiet[unit] = 6;
    step(MS);
    assert_true(used->reclaimed);
    assert_false(used->superseded);
    assert_int_equal(admission_streams(admission()), 0);
    assert_false(partition_planner_waits(host.planner));
}

static uint32_t backup_of(const struct owner *owner)
{
    return admission_stream_of(admission(), owner->number).backup_unit;
}

/* The first guaranteed stream that needs a backup: on a GPU. */
static struct owner *admit_with_backup(void)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 100 * MS);
    struct owner *owner;

    spec.guaranteed = true;
    do {
        owner = admit(&spec);
        assert_non_null(owner);
    } while (backup_of(owner) == ADMISSION_NONE);
    return owner;
}

static void backup_has_to_be_quiescent_too(void **state)
{
    struct owner *owner = admit_with_backup();
    uint32_t backup = backup_of(owner);

    (void)state;
    const struct partition_planner_use use = {.used = true, .mark = 1, .backup_used = true, .backup_mark = 7};
    host.quiet[unit_of(owner)] = 2;
    host.quiet[backup] = 7;
    partition_planner_retire(host.planner, owner->number, &use);
    step(MS);
    assert_false(owner->reclaimed);
    host.quiet[backup] = 8;
    step(MS);
    assert_true(owner->reclaimed);
}

static void stream_that_does_not_fit_leaves_nothing(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    struct admission_placement placement;
    const struct partition_planner_memory none = {.fits = fits, .context = &host};

    (void)state;
    assert_int_equal(partition_planner_admit(host.planner, &spec, 0, &none, &request, &placement), CORE_FULL);
    assert_int_equal(admission_streams(admission()), 0);
}

/* ---- migrations ---- */

static void both_reservations_stay_until_migration_ends(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    struct owner *old = admit(&spec);
    uint32_t to = 1 - unit_of(old);

    (void)state;
    assert_true(move(old, to));
    assert_false(move(old, WORKERS)); /* one at a time */
    struct owner *fresh = target(0);
    retire(old, false, 0); /* the I/O thread may be quicker than its answer */
    step(MS);
    assert_false(old->reclaimed);
    assert_int_equal(admission_streams(admission()), 2);
    partition_planner_moved(host.planner, fresh->number, PARTITION_PLANNER_MOVED, false);
    step(MS);
    assert_true(old->reclaimed);
    assert_true(old->superseded);
    assert_int_equal(unit_of(fresh), to);
    assert_int_equal(busy(), 0);
}

static void migration_that_ends_without_a_move(void **state)
{
    struct owner *old = admit_on_gpu();
    enum partition_planner_outcome outcome[] = {PARTITION_PLANNER_STAYED, PARTITION_PLANNER_GONE};
    struct core_stream_spec before = admission_stream_of(admission(), old->number).spec;

    (void)state;
    for (size_t n = 0; n < 2; n++) {
        assert_true(move(old, 0));
        assert_true(host.migration[n].hold_ns > 0); /* the GPU is charged for that */
        struct owner *fresh = target(n);
        partition_planner_moved(host.planner, fresh->number, outcome[n], false);
        /* until what it was to migrate to is released */
        assert_int_equal(partition_planner_readiness(host.planner, old->number), PARTITION_PLANNER_MIGRATING);
        retire(fresh, false, 0);
        step(MS);
        assert_true(fresh->reclaimed);
        assert_true(fresh->superseded);
        assert_int_equal(partition_planner_readiness(host.planner, old->number), PARTITION_PLANNER_READY);
        struct core_stream_spec after = admission_stream_of(admission(), old->number).spec;
        assert_memory_equal(&after, &before, sizeof before); /* nothing is charged for a hold any more */
    }
    retire(old, false, 0);
    step(MS);
    assert_true(old->reclaimed);
    assert_false(old->superseded);
}

static void held_packets_are_charged_until_none_is_late(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    struct owner *old = admit(&spec);
    const struct partition_planner_use use = {.used = true, .mark = 3};

    (void)state;
    assert_true(move(old, 1 - unit_of(old)));
    assert_true(host.migration[0].hold_ns > 0);
    assert_true(host.migration[0].hold_from_ns >= host.now_ns + spec.latency_ns);
    assert_true(host.migration[0].hold_from_ns < host.migration[0].until_ns);
    struct owner *fresh = target(0);
    partition_planner_moved(host.planner, fresh->number, PARTITION_PLANNER_MOVED, true);
    retire(old, false, 0);
    step(MS);
    assert_true(admission_stream_of(admission(), fresh->number).spec.latency_ns < spec.latency_ns);
    assert_false(move(fresh, unit_of(old))); /* not again before it has caught up */
    partition_planner_changed(host.planner, fresh->number, PARTITION_PLANNER_IN_FORCE, &use, false);
    host.quiet[unit_of(fresh)] = 3;
    step(MS);
    assert_true(admission_stream_of(admission(), fresh->number).spec.latency_ns < spec.latency_ns);
    host.quiet[unit_of(fresh)] = 4;
    step(MS);
    assert_int_equal(admission_stream_of(admission(), fresh->number).spec.latency_ns, spec.latency_ns);
    assert_true(move(fresh, 1 - unit_of(fresh)));
    assert_true(host.migration[1].hold_ns > 0); /* its packets still may be held */
    partition_planner_moved(host.planner, target(1)->number, PARTITION_PLANNER_GONE, false);
    assert_int_equal(busy(), 0);
}

static void migration_without_memory_leaves_nothing(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    struct owner *old = admit(&spec);
    struct core_stream_spec before = admission_stream_of(admission(), old->number).spec;

    (void)state;
    host.has_no_memory = true;
    assert_false(move(old, 1 - unit_of(old)));
    assert_int_equal(admission_streams(admission()), 1);
    struct core_stream_spec after = admission_stream_of(admission(), old->number).spec;
    assert_memory_equal(&after, &before, sizeof before);
}

/* ---- changes ---- */

static core_status ask(const struct owner *owner, const struct core_stream_spec *spec, bool *accepted,
                       bool *ready)
{
    struct admission_placement placement;

    core_status status =
        partition_planner_change(host.planner, owner->number, spec, &change, &placement, ready);
    *accepted = placement.accepted;
    return status;
}

static bool is_joined(const struct owner *owner)
{
    return admission_stream_of(admission(), owner->number).joined;
}

static void old_contract_is_reserved_until_quiescent(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS), slower = spec;
    struct owner *owner = admit(&spec);
    const struct partition_planner_use use = {.used = true, .mark = 9};
    bool accepted, ready;

    (void)state;
    slower.interval_ns *= 2;
    host.quiet[unit_of(owner)] = 9;
    assert_int_equal(ask(owner, &slower, &accepted, &ready), CORE_OK);
    assert_true(accepted && ready);
    assert_false(move(owner, 1 - unit_of(owner))); /* not with a change in progress */
    partition_planner_changed(host.planner, owner->number, PARTITION_PLANNER_IN_FORCE, &use, true);
    step(MS);
    assert_true(is_joined(owner));
    host.quiet[unit_of(owner)] = 10;
    step(MS);
    assert_false(is_joined(owner));
    assert_int_equal(admission_stream_of(admission(), owner->number).spec.interval_ns, slower.interval_ns);
    assert_int_equal(busy(), 0);
}

static void change_given_up_keeps_the_contract(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS), faster = spec;
    struct owner *owner = admit(&spec);
    const struct partition_planner_use unused = {.used = false};
    bool accepted, ready;

    (void)state;
    faster.interval_ns /= 2;
    assert_int_equal(ask(owner, &faster, &accepted, &ready), CORE_OK);
    assert_true(accepted && ready);
    partition_planner_changed(host.planner, owner->number, PARTITION_PLANNER_GIVEN_UP, &unused, true);
    step(MS);
    assert_false(is_joined(owner));
    assert_int_equal(admission_stream_of(admission(), owner->number).spec.interval_ns, spec.interval_ns);
}

static void change_on_a_gpu_waits_for_its_plan(void **state)
{
    struct owner *owner = admit_on_gpu();
    struct core_stream_spec faster = admission_stream_of(admission(), owner->number).contract;
    const struct partition_planner_use unused = {.used = false};
    bool accepted, ready;

    (void)state;
    faster.burst_packets *= 2;
    host.holds_plans_back = true;
    assert_int_equal(ask(owner, &faster, &accepted, &ready), CORE_OK);
    assert_true(accepted);
    assert_false(ready);
    step(MS);
    assert_null(host.agreed);
    memcpy(host.in_force, host.sent, sizeof host.sent);
    step(MS);
    assert_ptr_equal(host.agreed, &change);
    host.agreed = NULL;
    step(MS);
    assert_null(host.agreed); /* once */
    assert_false(host.lacking);
    partition_planner_changed(host.planner, owner->number, PARTITION_PLANNER_IN_FORCE, &unused, true);
    step(MS);
    assert_int_equal(busy(), 0);
}

/* It waits for no plan that will not be in force, and is given up. */
static void change_on_a_gpu_without_memory(void **state)
{
    struct owner *owner = admit_on_gpu();
    const struct core_stream_spec before = admission_stream_of(admission(), owner->number).contract;
    struct core_stream_spec faster = before;
    const struct partition_planner_use unused = {.used = false};
    bool accepted, ready;

    (void)state;
    faster.burst_packets *= 2;
    host.holds_plans_back = true;
    assert_int_equal(ask(owner, &faster, &accepted, &ready), CORE_OK);
    assert_false(ready);
    step(MS);
    assert_null(host.agreed);
    host.plans_lack_memory = true;
    step(MS);
    assert_ptr_equal(host.agreed, &change);
    assert_true(host.lacking);
    host.agreed = NULL;
    partition_planner_changed(host.planner, owner->number, PARTITION_PLANNER_GIVEN_UP, &unused, true);
    step(MS);
    assert_null(host.agreed); /* once */
    assert_int_equal(busy(), 0);
    assert_false(is_joined(owner));
    assert_int_equal(admission_stream_of(admission(), owner->number).contract.burst_packets,
                     before.burst_packets);
}

static void change_on_another_unit(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS), other = spec;
    struct owner *old = admit(&spec);
    struct admission_placement placement;
    const struct partition_planner_use unused = {.used = false};

    (void)state;
    other.latency_ns /= 2;
    partition_planner_ask(host.planner, old->number);
    assert_int_equal(partition_planner_readiness(host.planner, old->number), PARTITION_PLANNER_READY);
    assert_true(partition_planner_change_elsewhere(host.planner, old->number, &other, &enough, PATIENCE_NS,
                                                   &change, host.now_ns, &placement));
    partition_planner_drop(host.planner, old->number);
    assert_true(host.migration[0].changes_contract);
    assert_ptr_equal(host.migration[0].purpose, &change);
    assert_int_equal(host.migration[0].hold_ns, 0);
    assert_int_equal(partition_planner_readiness(host.planner, old->number), PARTITION_PLANNER_MIGRATING);
    struct owner *fresh = target(0);
    partition_planner_moved(host.planner, fresh->number, PARTITION_PLANNER_MOVED, false);
    assert_int_equal(partition_planner_readiness(host.planner, old->number), PARTITION_PLANNER_SUPERSEDED);
    retire(old, false, 0);
    partition_planner_changed(host.planner, fresh->number, PARTITION_PLANNER_IN_FORCE, &unused, true);
    step(MS);
    assert_true(old->reclaimed);
    assert_int_equal(admission_stream_of(admission(), fresh->number).contract.latency_ns, other.latency_ns);
    assert_int_equal(busy(), 0);
}

static void number_stays_while_a_change_waits_for_its_turn(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    struct owner *owner = admit(&spec);

    (void)state;
    partition_planner_ask(host.planner, owner->number);
    retire(owner, false, 0);
    step(MS);
    assert_false(owner->reclaimed);
    assert_int_equal(partition_planner_readiness(host.planner, owner->number), PARTITION_PLANNER_SUPERSEDED);
    partition_planner_drop(host.planner, owner->number);
    step(MS);
    assert_true(owner->reclaimed);
}

static bool change_elsewhere(const struct owner *owner, const struct core_stream_spec *spec,
                             const struct partition_planner_memory *memory)
{
    struct admission_placement placement;
    return partition_planner_change_elsewhere(host.planner, owner->number, spec, memory, PATIENCE_NS, &change,
                                              host.now_ns, &placement);
}

/* No room for its packets there, no memory for the migration, no unit that takes it: the stream keeps what it
 * has, and nothing else is reserved. */
static void change_on_another_unit_that_comes_to_nothing(void **state)
{
    const struct partition_planner_memory none = {.fits = fits, .context = &host};
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS), other = spec;
    struct owner *old = admit(&spec);

    (void)state;
    other.latency_ns /= 2;
    assert_false(change_elsewhere(old, &other, &none));
    host.has_no_memory = true;
    assert_false(change_elsewhere(old, &other, &enough));
    host.has_no_memory = false;
    other.latency_ns = CORE_LATENCY_NS_MIN;
    assert_false(change_elsewhere(old, &other, &enough));
    assert_int_equal(host.migrations, 0);
    assert_int_equal(admission_streams(admission()), 1);
    assert_int_equal(admission_stream_of(admission(), old->number).contract.latency_ns, spec.latency_ns);
    assert_int_equal(partition_planner_readiness(host.planner, old->number), PARTITION_PLANNER_READY);
    assert_int_equal(busy(), 0);
}

/* Its backup would have to come into being while its packets are on the way. */
static void guaranteed_stream_does_not_change_to_a_gpu(void **state)
{
    const struct owner *last = admit_on_gpu();
    struct core_stream_spec spec = admission_stream_of(admission(), last->number).contract;
    const size_t before = admission_streams(admission());

    (void)state;
    spec.guaranteed = true;
    assert_true(test_admission_query(admission(), &spec, false).unit >= WORKERS);
    assert_false(change_elsewhere(&host.owner[0], &spec, &enough));
    assert_int_equal(admission_streams(admission()), before);
    assert_int_equal(host.migrations, 0);
}

/* ---- GPUs that fail ---- */

static void streams_leave_a_failed_gpu_and_return(void **state)
{
    struct owner *old = admit_on_gpu();
    uint32_t unit = unit_of(old), gpu = unit - WORKERS;
    bool accepted, ready;
    struct core_stream_spec spec = admission_stream_of(admission(), old->number).contract;

    (void)state;
    host.out[gpu] = true;
    step(MS);
    assert_int_equal(host.migrations, 1);
    assert_true(host.migration[0].unit != unit);
    assert_int_equal(ask(old, &spec, &accepted, &ready), CORE_OK);
    assert_false(accepted); /* on a GPU that is out of service */
    struct owner *fresh = target(0);
    partition_planner_moved(host.planner, fresh->number, PARTITION_PLANNER_MOVED, false);
    retire(old, false, 0);
    step(SCAN_NS);
    assert_true(old->reclaimed);
    assert_int_equal(host.migrations, 1);
    host.out[gpu] = false;
    step(MS);
    assert_int_equal(host.migrations, 2);
    assert_int_equal(host.migration[1].unit, unit);
    partition_planner_moved(host.planner, target(1)->number, PARTITION_PLANNER_STAYED, false);
    retire(target(1), false, 0);
    step(SCAN_NS); /* it is tried again */
    assert_int_equal(host.migrations, 3);
    partition_planner_moved(host.planner, target(2)->number, PARTITION_PLANNER_MOVED, false);
    retire(fresh, false, 0);
    step(SCAN_NS);
    step(SCAN_NS);
    assert_int_equal(host.migrations, 3); /* it is at home */
    assert_int_equal(busy(), 0);
}

/* It stays where it is, as its backup does, and takes no change until its GPU is back. */
static void contract_of_a_guaranteed_stream_waits_for_its_gpu(void **state)
{
    struct owner *owner = admit_with_backup();
    const uint32_t unit = unit_of(owner);
    const struct core_stream_spec spec = admission_stream_of(admission(), owner->number).contract;
    bool accepted, ready;

    (void)state;
    assert_int_equal(partition_planner_readiness(host.planner, owner->number), PARTITION_PLANNER_READY);
    host.out[unit - WORKERS] = true;
    step(MS);
    assert_int_equal(partition_planner_readiness(host.planner, owner->number), PARTITION_PLANNER_GPU_OUT);
    assert_int_equal(ask(owner, &spec, &accepted, &ready), CORE_OK);
    assert_false(accepted);
    host.out[unit - WORKERS] = false;
    step(MS);
    assert_int_equal(unit_of(owner), unit);
    assert_int_equal(partition_planner_readiness(host.planner, owner->number), PARTITION_PLANNER_READY);
}

/* ---- retunes ---- */

static void period_grows_back_when_nothing_is_in_progress(void **state)
{
    struct owner *patient = admit_on_gpu();
    uint32_t gpu = unit_of(patient) - WORKERS;
    struct core_stream_spec hasty = test_admission_spec(4 * MS, 16 * MS);
    struct owner *owner;
    core_ns period_ns = admission_gpu_at(admission(), gpu).period_ns;

    (void)state;
    do {
        owner = admit(&hasty);
        assert_non_null(owner);
    } while (unit_of(owner) != WORKERS + gpu);
    assert_true(admission_gpu_at(admission(), gpu).period_ns < period_ns);
    retire(owner, false, 0);
    step(MS);
    step(TUNE_NS); /* soon after a change of the period: not yet */
    assert_int_equal(host.retunes, 0);
    host.holds_plans_back = true;
    host.in_force[gpu] = 0;
    step(CALM_NS); /* the last plan is not in force */
    assert_int_equal(host.retunes, 0);
    host.holds_plans_back = false;
    host.in_force[gpu] = host.sent[gpu];
    step(CALM_NS);
    assert_int_equal(host.retunes, 1);
}

/* ---- requests that wait ---- */

static struct core_stream_spec crowd_spec(void)
{
    return test_admission_spec(MS / 20, 60 * MS); /* a GPU is too slow for one of them */
}

static void wait_for_room_of(const struct core_stream_spec *wanted)
{
    struct core_stream_spec spec = crowd_spec();

    while (admit(&spec) != NULL)
        ;
    assert_true(partition_planner_may_help(host.planner, PERFMODEL_LIMIT_CPU_DEMAND));
    assert_false(partition_planner_may_help(host.planner, PERFMODEL_LIMIT_IO));
    assert_true(partition_planner_wait(host.planner, wanted, 0, &request, host.now_ns));
    step(MS);
    assert_non_null(host.search);
}

static void wait_for_room(void)
{
    const struct core_stream_spec spec = crowd_spec();
    wait_for_room_of(&spec);
}

/* The host ends the search with this proposal. */
static void found(bool accepted, uint32_t stream, uint32_t from, uint32_t to)
{
    struct partition_planner_search *ended = host.search;

    host.search = NULL;
    if (accepted) {
        ended->proposal = (struct admission_proposal){.accepted = true, .moves = 1};
        ended->proposal.move = calloc(1, sizeof *ended->proposal.move);
        assert_non_null(ended->proposal.move);
        *ended->proposal.move =
            (struct admission_move){.stream = stream, .from = from, .to = to, .period_ns = 10 * MS};
    }
    partition_planner_found(host.planner, ended, host.now_ns);
}

static void request_is_admitted_once_there_is_room(void **state)
{
    (void)state;
    wait_for_room();
    /* the migration has no room as long as those that leave are not gone */
    retire(&host.owner[1], false, 0);
    retire(&host.owner[2], false, 0);
    found(true, host.owner[0].number, unit_of(&host.owner[0]), 1 - unit_of(&host.owner[0]));
    assert_null(host.admitted);
    step(MS);
    assert_ptr_equal(host.admitted, &request);
    assert_null(host.refused);
}

static void request_without_a_plan_is_refused(void **state)
{
    (void)state;
    wait_for_room();
    found(false, 0, 0, 0);
    assert_ptr_equal(host.refused, &request);
    assert_int_equal(host.why, PARTITION_PLANNER_NO_PLAN);
    assert_false(partition_planner_waits(host.planner));
}

static void retire_on(uint32_t unit, unsigned streams)
{
    for (size_t n = 1; streams > 0; n++)
        if (!host.owner[n].reclaimed && unit_of(&host.owner[n]) == unit) {
            retire(&host.owner[n], false, 0);
            step(MS);
            streams--;
        }
}

/* A stream that migrates has capacity at two units; what is not found then may be found when it has arrived.
 * */
static void request_without_a_plan_waits_for_streams_that_migrate(void **state)
{
    const struct owner *mover = &host.owner[0];
    struct core_stream_spec twice = test_admission_spec(MS / 40, 60 * MS);
    (void)state;
    wait_for_room_of(&twice);
    uint32_t from = unit_of(mover);
    retire_on(1 - from, 1);
    found(true, mover->number, from, 1 - from);
    assert_int_equal(host.migrations, 1);
    assert_null(host.admitted);
    while (host.admitted == NULL)
        retire_on(from, 1);
    assert_ptr_equal(host.admitted, &request); /* and the stream still migrates */
    while (admit(&twice) != NULL)
        ;
    assert_true(partition_planner_wait(host.planner, &twice, 0, &change, host.now_ns));
    step(MS);
    found(false, 0, 0, 0);
    step(MS);
    assert_null(host.refused);
    assert_null(host.search);
    partition_planner_moved(host.planner, target(0)->number, PARTITION_PLANNER_STAYED, false);
    retire(target(0), false, 0);
    step(MS);
    assert_non_null(host.search);
    found(false, 0, 0, 0);
    assert_ptr_equal(host.refused, &change);
    assert_int_equal(host.why, PARTITION_PLANNER_NO_PLAN);
}

static void request_without_a_plan_waits_no_longer_than_it_may(void **state)
{
    const struct owner *mover = &host.owner[0];
    struct core_stream_spec twice = test_admission_spec(MS / 40, 60 * MS);
    (void)state;
    wait_for_room_of(&twice);
    uint32_t from = unit_of(mover);
    retire_on(1 - from, 1);
    found(true, mover->number, from, 1 - from);
    while (host.admitted == NULL)
        retire_on(from, 1);
    while (admit(&twice) != NULL)
        ;
    assert_true(partition_planner_wait(host.planner, &twice, 0, &change, host.now_ns));
    step(MS);
    found(false, 0, 0, 0);
    step(WAIT_NS - 2 * MS);
    assert_null(host.refused);
    step(2 * MS);
    assert_ptr_equal(host.refused, &change);
    assert_int_equal(host.why, PARTITION_PLANNER_NO_PLAN);
}

/* A request that waits for those that migrate, and has not been told that there is no plan. */
static void wait_behind_a_migration(const struct core_stream_spec *spec)
{
    const struct owner *mover = &host.owner[0];
    wait_for_room_of(spec);
    uint32_t from = unit_of(mover);
    retire_on(1 - from, 1);
    found(true, mover->number, from, 1 - from);
    while (host.admitted == NULL)
        retire_on(from, 1);
    host.admitted = NULL;
    while (admit(spec) != NULL)
        ;
    assert_true(partition_planner_wait(host.planner, spec, 0, &change, host.now_ns));
    step(MS);
    assert_non_null(host.search);
}

static void request_without_a_plan_is_admitted_when_others_leave(void **state)
{
    struct core_stream_spec twice = test_admission_spec(MS / 40, 60 * MS);
    (void)state;
    wait_behind_a_migration(&twice);
    found(false, 0, 0, 0);
    while (host.admitted == NULL)
        retire_on(unit_of(&host.owner[0]), 1);
    assert_ptr_equal(host.admitted, &change);
    assert_null(host.refused);
}

static void search_that_ends_too_late_was_the_last(void **state)
{
    struct core_stream_spec twice = test_admission_spec(MS / 40, 60 * MS);
    (void)state;
    wait_behind_a_migration(&twice);
    host.now_ns += WAIT_NS;
    found(false, 0, 0, 0);
    assert_ptr_equal(host.refused, &change);
    assert_int_equal(host.why, PARTITION_PLANNER_NO_PLAN);
}

static void request_that_waited_for_a_search_may_be_too_late(void **state)
{
    struct core_stream_spec spec = crowd_spec();
    (void)state;
    wait_for_room();
    assert_true(partition_planner_wait(host.planner, &spec, 0, &change, host.now_ns));
    host.now_ns += WAIT_NS;
    found(false, 0, 0, 0);
    assert_ptr_equal(host.refused, &request);
    step(MS);
    assert_null(host.search);
    assert_ptr_equal(host.refused, &change);
    assert_int_equal(host.why, PARTITION_PLANNER_TIMED_OUT);
}

/* It has left since, and what it leaves is not enough. */
static void proposal_for_a_stream_that_has_left_moves_nobody(void **state)
{
    struct core_stream_spec twice = test_admission_spec(MS / 40, 60 * MS);
    (void)state;
    wait_for_room_of(&twice);
    struct owner *gone = &host.owner[host.owners - 1];
    while (unit_of(gone) != 0)
        gone--;
    const uint32_t number = gone->number;
    retire(gone, false, 0);
    step(MS);
    assert_true(gone->reclaimed);
    found(true, number, 0, 1);
    assert_int_equal(host.migrations, 0);
    assert_null(host.admitted);
    step(MS);
    assert_non_null(host.search); /* again */
}

static void request_is_refused_after_several_plans(void **state)
{
    (void)state;
    wait_for_room();
    for (int attempt = 0; attempt < 3; attempt++) {
        assert_null(host.refused);
        assert_non_null(host.search);
        found(true, OWNERS, 0, 1); /* a stream that is not there any more */
        step(MS);
        step(MS);
    }
    assert_ptr_equal(host.refused, &request);
    assert_int_equal(host.why, PARTITION_PLANNER_TRIED);
}

/* Streams that were to make room have gone since, or moved; a number may be another stream's by now. */
static void proposal_that_is_out_of_date_moves_nobody(void **state)
{
    struct core_stream_spec spec = crowd_spec();
    (void)state;
    wait_for_room();
    struct owner *gone = &host.owner[host.owners - 1], *again;
    const uint32_t number = gone->number;
    found(true, host.owner[0].number, 1 - unit_of(&host.owner[0]), unit_of(&host.owner[0]));
    assert_int_equal(host.migrations, 0); /* it is on the other unit */
    step(MS);
    assert_non_null(host.search);
    retire(gone, false, 0);
    step(MS);
    assert_true(gone->reclaimed);
    again = admit(&spec);
    assert_non_null(again);
    assert_int_equal(again->number, number);
    found(true, number, unit_of(again), 1 - unit_of(again));
    assert_int_equal(host.migrations, 0); /* it was not there when the copy was made */
    step(MS);
    assert_non_null(host.search);
    retire(again, false, 0);
    step(MS);
    found(true, number, 0, 1);
    assert_int_equal(host.migrations, 0); /* nobody's number */
    step(MS);
    assert_ptr_equal(host.admitted, &request); /* as it has left */
}

static void so_many_requests_wait_and_no_more(void **state)
{
    struct core_stream_spec spec = crowd_spec();
    unsigned waiting = 0;
    (void)state;
    while (admit(&spec) != NULL)
        ;
    while (partition_planner_wait(host.planner, &spec, 0, &request, host.now_ns))
        assert_true(++waiting < 100000);
    assert_true(waiting > 1);
    host.withdrawn = true;
    step(MS);
    assert_int_equal(host.refusals, waiting);
    assert_false(partition_planner_waits(host.planner));
    assert_true(partition_planner_wait(host.planner, &spec, 0, &request, host.now_ns));
}

/* ---- no memory ---- */

static void planner_without_memory_is_not_made(void **state)
{
    (void)state;
    for (int allocations = 0; allocations < 2; allocations++) {
        struct admission *fresh = test_admission_of(host.profile, WORKERS, 1);
        struct partition_planner *planner = NULL;
        struct core_error error = {""};
        allocations_left = allocations;
        const core_status status =
            partition_planner_create(&planner, fresh, &options, &functions, NULL, &error);
        allocations_left = INT_MAX;
        assert_int_equal(status, CORE_NO_MEMORY);
        assert_string_not_equal(error.text, "");
        assert_null(planner);
    }
}

static void stream_without_memory_is_not_admitted(void **state)
{
    struct core_stream_spec spec = test_admission_spec(4 * MS, 60 * MS);
    struct admission_placement placement;
    (void)state;
    allocations_left = 0;
    const core_status status = partition_planner_admit(host.planner, &spec, 0, &enough, &request, &placement);
    allocations_left = INT_MAX;
    assert_int_equal(status, CORE_NO_MEMORY);
    assert_int_equal(admission_streams(admission()), 0);
    assert_non_null(admit(&spec));
}

/* The table of reservations is full to the last. */
static void move_without_memory_says_so(void **state)
{
    struct core_stream_spec spec = test_admission_spec(1000 * MS, 80 * MS);
    char reason[256] = "";
    (void)state;
    while (host.planner->capacity == 0 || admission_streams(admission()) < host.planner->capacity)
        assert_non_null(admit(&spec));
    const size_t before = admission_streams(admission());
    const struct owner *owner = &host.owner[0];
    allocations_left = 0;
    const bool moves = partition_planner_move(host.planner, owner->number, 1 - unit_of(owner), 10 * MS,
                                              PATIENCE_NS, NULL, host.now_ns, reason, sizeof reason);
    allocations_left = INT_MAX;
    assert_false(moves);
    assert_non_null(strstr(reason, "out of memory"));
    assert_int_equal(admission_streams(admission()), before);
    assert_true(move(owner, 1 - unit_of(owner)));
}

/* A request that there is no memory for is not taken; one whose search there is none for goes on later. */
static void search_without_memory_begins_later(void **state)
{
    struct core_stream_spec spec = crowd_spec();
    (void)state;
    while (admit(&spec) != NULL)
        ;
    allocations_left = 0;
    const bool waits = partition_planner_wait(host.planner, &spec, 0, &request, host.now_ns);
    allocations_left = INT_MAX;
    assert_false(waits);
    assert_true(partition_planner_wait(host.planner, &spec, 0, &request, host.now_ns));
    allocations_left = 0;
    step(MS);
    allocations_left = INT_MAX;
    assert_null(host.search);
    assert_null(host.refused);
    step(MS);
    assert_non_null(host.search);
    found(false, 0, 0, 0);
    assert_ptr_equal(host.refused, &request);
}

/* Whichever of its allocations fails: it begins later. */
static void copy_without_memory_is_made_later(void **state)
{
    struct core_stream_spec spec = crowd_spec();
    int enough_of_them = 0;
    (void)state;
    while (admit(&spec) != NULL)
        ;
    assert_true(partition_planner_wait(host.planner, &spec, 0, &request, host.now_ns));
    for (; host.search == NULL; enough_of_them++) {
        allocations_left = enough_of_them;
        step(1);
        allocations_left = INT_MAX;
        assert_null(host.refused);
    }
    assert_true(enough_of_them > 4);
    found(false, 0, 0, 0);
    assert_ptr_equal(host.refused, &request);
}

/* Whichever fails: that is told, the copy is as before, and nothing is left behind (as the sanitizers see). */
static void plan_without_memory_is_not_made(void **state)
{
    const struct partition_plan_method *method = partition_plan_method_find("rectangle");
    struct core_error error;
    int enough_of_them = 0;
    core_status status;
    (void)state;
    wait_for_room();
    const size_t streams = admission_streams(host.search->copy);
    do {
        struct admission_proposal proposal = {.accepted = false};
        allocations_left = enough_of_them++;
        status = admission_replan(host.search->copy, method, &host.search->spec, 0, &proposal, &error);
        allocations_left = INT_MAX;
        assert_true(status == CORE_OK || status == CORE_NO_MEMORY);
        assert_int_equal(admission_streams(host.search->copy), streams);
        assert_true(status == CORE_OK || proposal.move == NULL);
        free(proposal.move);
    } while (status != CORE_OK);
    assert_true(enough_of_them > 4);
    found(false, 0, 0, 0);
}

static void request_is_refused_in_time_or_when_withdrawn(void **state)
{
    struct core_stream_spec spec = crowd_spec();

    (void)state;
    wait_for_room();
    host.withdrawn = true;
    step(MS); /* the search goes on, for nobody */
    assert_ptr_equal(host.refused, &request);
    assert_int_equal(host.why, PARTITION_PLANNER_WITHDRAWN);
    host.refused = NULL;
    host.withdrawn = false;
    assert_true(partition_planner_wait(host.planner, &spec, 0, &change, host.now_ns));
    step(WAIT_NS); /* one search at a time: this one has not begun */
    assert_ptr_equal(host.refused, &change);
    assert_int_equal(host.why, PARTITION_PLANNER_TIMED_OUT);
    found(true, host.owner[0].number, unit_of(&host.owner[0]), 1);
    assert_int_equal(host.migrations, 0);
}

/* The search's thread has ended; what it was for is freed (as the sanitizers see). */
static void planner_ends_during_a_search(void **state)
{
    (void)state;
    wait_for_room();
    host.withdrawn = true;
    step(MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reclaimed_after_quiescent_point, set_up, tear_down),
        cmocka_unit_test_setup_teardown(backup_has_to_be_quiescent_too, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stream_that_does_not_fit_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(both_reservations_stay_until_migration_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(migration_that_ends_without_a_move, set_up, tear_down),
        cmocka_unit_test_setup_teardown(held_packets_are_charged_until_none_is_late, set_up, tear_down),
        cmocka_unit_test_setup_teardown(migration_without_memory_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(old_contract_is_reserved_until_quiescent, set_up, tear_down),
        cmocka_unit_test_setup_teardown(change_given_up_keeps_the_contract, set_up, tear_down),
        cmocka_unit_test_setup_teardown(change_on_a_gpu_waits_for_its_plan, set_up, tear_down),
        cmocka_unit_test_setup_teardown(change_on_a_gpu_without_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(change_on_another_unit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(change_on_another_unit_that_comes_to_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(guaranteed_stream_does_not_change_to_a_gpu, set_up, tear_down),
        cmocka_unit_test_setup_teardown(contract_of_a_guaranteed_stream_waits_for_its_gpu, set_up, tear_down),
        cmocka_unit_test_setup_teardown(number_stays_while_a_change_waits_for_its_turn, set_up, tear_down),
        cmocka_unit_test_setup_teardown(streams_leave_a_failed_gpu_and_return, set_up, tear_down),
        cmocka_unit_test_setup_teardown(period_grows_back_when_nothing_is_in_progress, set_up, tear_down),
        cmocka_unit_test_setup_teardown(request_is_admitted_once_there_is_room, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(request_without_a_plan_is_refused, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(request_without_a_plan_waits_for_streams_that_migrate,
                                        set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(request_without_a_plan_waits_no_longer_than_it_may, set_up_for_crowd,
                                        tear_down),
        cmocka_unit_test_setup_teardown(request_without_a_plan_is_admitted_when_others_leave,
                                        set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(search_that_ends_too_late_was_the_last, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(request_that_waited_for_a_search_may_be_too_late, set_up_for_crowd,
                                        tear_down),
        cmocka_unit_test_setup_teardown(proposal_for_a_stream_that_has_left_moves_nobody, set_up_for_crowd,
                                        tear_down),
        cmocka_unit_test_setup_teardown(request_is_refused_after_several_plans, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(proposal_that_is_out_of_date_moves_nobody, set_up_for_crowd,
                                        tear_down),
        cmocka_unit_test_setup_teardown(so_many_requests_wait_and_no_more, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(planner_without_memory_is_not_made, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stream_without_memory_is_not_admitted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(move_without_memory_says_so, set_up, tear_down),
        cmocka_unit_test_setup_teardown(search_without_memory_begins_later, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(copy_without_memory_is_made_later, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(plan_without_memory_is_not_made, set_up_for_crowd, tear_down),
        cmocka_unit_test_setup_teardown(request_is_refused_in_time_or_when_withdrawn, set_up_for_crowd,
                                        tear_down),
        cmocka_unit_test_setup_teardown(planner_ends_during_a_search, set_up_for_crowd, tear_down),
    };
    test_allocator_fails = fails;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
