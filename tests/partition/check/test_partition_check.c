/* The checker: whatever is changed in a plan or in what it was made for, it finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/check/check.h"
#include "partition/check/check_flow.h"
#include "perfmodel/flow.h"
#include "tests/support/brim_sets.h"
#include "tests/support/share.h"

#define PLANS   TEST_SHARE(300)
#define LATE    10
#define EMPTY   10
#define FIGURES 40 /* GPUs by each rule, whose every figure is changed */

struct made {
    struct test_plan_set set;
    struct partition_plan *plan;
    uint32_t gpu; /* one with streams */
    size_t on_gpu, on_worker;
};

/* The first stream on a GPU and the first on a worker; false: a side has none. */
static bool find_sides(struct made *made)
{
    const struct partition_plan *plan = made->plan;
    bool gpu = false, worker = false;
    for (size_t i = plan->count; i-- > 0;) {
        if (plan->unit[i] >= plan->workers) {
            gpu = true;
            made->on_gpu = i;
            made->gpu = plan->unit[i] - plan->workers;
        } else {
            worker = true;
            made->on_worker = i;
        }
    }
    return gpu && worker;
}

/* Random sets until one has an accepted plan with streams on both sides. */
static void make(struct made *made, struct test_random *random)
{
    for (;;) {
        struct core_error error;
        test_plan_set_random(&made->set, random);
        assert_int_equal(partition_plan_make(partition_plan_method_find("rectangle"), &made->set.input,
                                             &made->plan, &error),
                         CORE_OK);
        if (made->plan->accepted && find_sides(made))
            return;
        partition_plan_destroy(made->plan);
    }
}

static bool holds(const struct made *made)
{
    struct core_error error = {{0}};
    core_status status = partition_check(&made->set.input, made->plan, &error);
    assert_true(status == CORE_OK || status == CORE_REFUSED);
    assert_true(status == CORE_OK || strlen(error.text) > 0);
    return status == CORE_OK;
}

static struct partition_plan_gpu *gpu_of(const struct made *made)
{
    return &made->plan->gpu[made->gpu];
}

/* ---- what can be wrong; each has an effect for every plan with streams on both sides ---- */

static void no_unit(struct made *made)
{
    made->plan->unit[made->on_gpu] = made->plan->workers + made->plan->gpus;
}

static void moved_to_worker(struct made *made)
{
    made->plan->unit[made->on_gpu] = 0;
}

static void moved_to_gpu(struct made *made)
{
    made->plan->unit[made->on_worker] = made->plan->workers + made->gpu;
}

/* with counts in order, a batch has more bytes than the certificate says */
static void moved_with_counts(struct made *made)
{
    made->plan->worker[made->plan->unit[made->on_worker]].streams--;
    gpu_of(made)->streams++;
    moved_to_gpu(made);
}

static void refused_plan(struct made *made)
{
    made->plan->accepted = false;
}

static void other_mode(struct made *made)
{
    made->plan->paper = !made->plan->paper;
}

static void other_count(struct made *made)
{
    made->plan->count--;
}

static void other_kind(struct made *made)
{
    gpu_of(made)->kind++;
}

static void period_longer(struct made *made)
{
    gpu_of(made)->period_ns *= 4;
}

static void period_none(struct made *made)
{
    gpu_of(made)->period_ns = 0;
}

static void kernel_shorter(struct made *made)
{
    gpu_of(made)->stages.kernel_ns /= 2;
}

static void copy_up_shorter(struct made *made)
{
    gpu_of(made)->stages.up_ns -= 1 + gpu_of(made)->stages.up_ns / 100;
}

static void copy_back_shorter(struct made *made)
{
    gpu_of(made)->stages.down_ns -= 1 + gpu_of(made)->stages.down_ns / 100;
}

static void latency_shorter(struct made *made)
{
    gpu_of(made)->latency_ns--;
}

static void shortest_longer(struct made *made)
{
    gpu_of(made)->shortest_ns++;
}

static void bytes_fewer(struct made *made)
{
    gpu_of(made)->batch_bytes--;
}

static void arenas_fewer(struct made *made)
{
    gpu_of(made)->arenas--;
}

static void other_rule(struct made *made)
{
    struct partition_plan_gpu *gpu = gpu_of(made);
    gpu->rule = gpu->rule == PARTITION_PLAN_BATCH ? PARTITION_PLAN_BACKLOG : PARTITION_PLAN_BATCH;
}

static void memory_less(struct made *made)
{
    gpu_of(made)->memory_bytes--;
}

static void worker_share_less(struct made *made)
{
    made->plan->worker[made->plan->unit[made->on_worker]].test.utilisation_ppb /= 2;
    made->plan->worker[made->plan->unit[made->on_worker]].test.utilisation_ppb -= 2 * TEST_PLAN_STREAMS;
}

static void worker_refused(struct made *made)
{
    made->plan->worker[0].test.accepted = false;
}

static void bound_shorter_on_gpu(struct made *made)
{
    made->set.specs[made->on_gpu].latency_ns = gpu_of(made)->period_ns;
}

/* By a nanosecond, and the certificate says so. */
static void late_on_gpu(struct made *made)
{
    struct core_stream_spec *spec = &made->set.specs[made->on_gpu];
    core_ns work_ns = gpu_of(made)->latency_ns - 1, missing_ns;
    spec->latency_ns = work_ns;
    while ((missing_ns = work_ns - perfmodel_gpu_work_ns(spec, &made->set.profile)) > 0)
        spec->latency_ns += missing_ns;
    gpu_of(made)->shortest_ns = work_ns;
}

static void burst_on_gpu(struct made *made)
{
    made->set.specs[made->on_gpu].packet_bytes *= 8;
}

static void interval_on_worker(struct made *made)
{
    made->set.specs[made->on_worker].interval_ns = CORE_INTERVAL_NS_MIN;
    made->set.specs[made->on_worker].packet_bytes = CORE_PACKET_BYTES_MAX;
}

static void card_memory(struct made *made)
{
    made->set.gpus[gpu_of(made)->kind].memory_bytes = gpu_of(made)->memory_bytes - 1;
}

static void pinned(struct made *made)
{
    made->set.profile.pinned_bytes = gpu_of(made)->memory_bytes - 1;
}

static void launch_longer(struct made *made)
{
    made->set.gpus[gpu_of(made)->kind].launch_ns += 1000000;
}

static void batcher_slower(struct made *made)
{
    made->set.gpus[gpu_of(made)->kind].host_batch_ns += 1000000;
    if (made->set.input.paper) /* which has no batcher */
        gpu_of(made)->stages.host_ns++;
}

/* By its own word, with a latency that fits. */
static void batcher_faster(struct made *made)
{
    struct partition_plan_gpu *gpu = gpu_of(made);
    gpu->latency_ns += 1 - gpu->stages.host_ns;
    gpu->stages.host_ns = 1;
    made->set.gpus[gpu->kind].host_batch_ns = 2;
}

static void no_units(struct made *made)
{
    free(made->plan->unit);
    made->plan->unit = NULL;
}

static void other_workers(struct made *made)
{
    made->set.input.workers++;
}

static void other_cards(struct made *made)
{
    made->set.gpus[gpu_of(made)->kind].count++;
}

static void period_endless(struct made *made)
{
    gpu_of(made)->period_ns = CORE_NS_NEVER;
}

/* A stage that outlasts the period by its own word, with a latency that fits the figures. */
static void stage_over_period(struct made *made)
{
    struct partition_plan_gpu *gpu = gpu_of(made);
    gpu->latency_ns += gpu->period_ns + 1 - gpu->stages.kernel_ns;
    gpu->stages.kernel_ns = gpu->period_ns + 1;
    gpu->rule = PARTITION_PLAN_BATCH;
}

static void copies_margin_more(struct made *made)
{
    made->set.profile.margins.copies_ppm += 50000;
}

static void kernels_margin_more(struct made *made)
{
    made->set.profile.margins.kernels_ppm += 50000;
}

static void checker_rejects_every_corruption(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*corrupt)(struct made *made);
    } corruptions[] = {
        {"no such unit", no_unit},
        {"moved to a worker", moved_to_worker},
        {"moved to a GPU", moved_to_gpu},
        {"moved, with counts", moved_with_counts},
        {"refused", refused_plan},
        {"other mode", other_mode},
        {"other count", other_count},
        {"other kind", other_kind},
        {"longer period", period_longer},
        {"no period", period_none},
        {"shorter kernel", kernel_shorter},
        {"shorter copy up", copy_up_shorter},
        {"shorter copy back", copy_back_shorter},
        {"shorter latency", latency_shorter},
        {"longer d'", shortest_longer},
        {"fewer bytes", bytes_fewer},
        {"fewer arenas", arenas_fewer},
        {"other rule", other_rule},
        {"less memory", memory_less},
        {"less share", worker_share_less},
        {"worker refused", worker_refused},
        {"bound shorter", bound_shorter_on_gpu},
        {"larger packets on a GPU", burst_on_gpu},
        {"faster on a worker", interval_on_worker},
        {"smaller card", card_memory},
        {"less pinned memory", pinned},
        {"longer launch", launch_longer},
        {"a slower batcher", batcher_slower},
        {"a faster batcher", batcher_faster},
        {"larger margin of copies", copies_margin_more},
        {"larger margin of kernels", kernels_margin_more},
        {"no units", no_units},
        {"other workers", other_workers},
        {"other cards", other_cards},
        {"endless period", period_endless},
        {"a stage over the period", stage_over_period},
    };
    static struct made made;
    struct test_random random = {.state = 3};
    for (int n = 0; n < PLANS; n++) {
        size_t which = (size_t)n % (sizeof corruptions / sizeof *corruptions);
        make(&made, &random);
        assert_true(holds(&made));
        corruptions[which].corrupt(&made);
        if (holds(&made))
            fail_msg("plan %d: %s was not found", n, corruptions[which].name);
        partition_plan_destroy(made.plan);
    }
}

/* By the server's rules: in paper mode a stream is late by other ones. */
static void checker_rejects_late_stream(void **state)
{
    (void)state;
    static struct made made;
    struct test_random random = {.state = 5};
    for (int found = 0; found < LATE;) {
        make(&made, &random);
        if (!made.set.input.paper) {
            late_on_gpu(&made);
            assert_false(holds(&made));
            found++;
        }
        partition_plan_destroy(made.plan);
    }
}

/* A card without streams has no figures. */
static void checker_rejects_figures_of_an_empty_card(void **state)
{
    (void)state;
    static struct made made;
    struct test_random random = {.state = 7};
    for (int found = 0; found < EMPTY;) {
        make(&made, &random);
        for (uint32_t g = 0; g < made.plan->gpus && found < EMPTY; g++) {
            struct partition_plan_gpu *gpu = &made.plan->gpu[g];
            if (gpu->streams > 0)
                continue;
            int64_t *const figures[] = {&gpu->period_ns, (int64_t *)&gpu->memory_bytes,
                                        &gpu->stages.kernel_ns};
            for (size_t at = 0; at < sizeof figures / sizeof *figures; at++) {
                (*figures[at])++;
                assert_false(holds(&made));
                (*figures[at])--;
            }
            assert_true(holds(&made));
            found++;
        }
        partition_plan_destroy(made.plan);
    }
}

/* ---- every figure of a certificate ---- */

/* A hundred-thousandth, and some: a figure that others tell exactly. */
static int64_t nudged(int64_t figure, int sign)
{
    return figure + sign * (figure / 100000 + 64);
}

/* With the figures that follow from it: what is told may be for a number of batches that is not whole, and a
 * bound for whole ones, some percent below, is a proof as well. */
static int64_t shifted(int64_t figure, int sign)
{
    return figure + sign * (figure / 5 + 200);
}

static void expect_refused(const struct made *made, const char *figure, int sign)
{
    if (holds(made))
        fail_msg("%s %+d was not found (rule %d)", figure, sign, gpu_of(made)->rule);
}

/* One figure of the certificate, as a field of 64 bits. */
#define NUDGE(field)                                                                                         \
    do {                                                                                                     \
        struct partition_plan_gpu kept = *gpu_of(made);                                                      \
        for (int sign = -1; sign <= 1; sign += 2) {                                                          \
            gpu_of(made)->field = (__typeof__(kept.field))nudged((int64_t)kept.field, sign);                 \
            expect_refused(made, #field, sign);                                                              \
            *gpu_of(made) = kept;                                                                            \
        }                                                                                                    \
    } while (0)

static void nudge_figures(struct made *made)
{
    NUDGE(streams);
    NUDGE(period_ns);
    NUDGE(shortest_ns);
    NUDGE(stages.up_ns);
    NUDGE(stages.kernel_ns);
    NUDGE(stages.host_ns);
    NUDGE(stages.down_ns);
    NUDGE(latency_ns);
    NUDGE(batch_bytes);
    NUDGE(memory_bytes);
    NUDGE(kind);
}

/* What is rounded there is ns, and the share is of a period. */
static void nudge_share(struct made *made)
{
    struct partition_plan_gpu *gpu = gpu_of(made), kept = *gpu;
    int64_t rounding_ppb = 100 * CORE_NS_PER_S / gpu->period_ns;
    for (int sign = -1; sign <= 1; sign += 2) {
        gpu->busiest_ppb = shifted(kept.busiest_ppb, sign) + sign * rounding_ppb;
        expect_refused(made, "busiest_ppb", sign);
        *gpu = kept;
    }
}

/* One bound, with the latency that follows from it. */
static void nudge_bound(struct made *made, core_ns *bound_ns, const char *figure)
{
    struct partition_plan_gpu *gpu = gpu_of(made), kept = *gpu;
    bool turns = made->set.gpus[gpu->kind].copy_engines == 1;
    for (int sign = -1; sign <= 1; sign += 2) {
        core_ns before_ns = *bound_ns;
        *bound_ns = shifted(before_ns, sign);
        gpu->latency_ns += (*bound_ns - before_ns) * (turns && bound_ns != &gpu->stages.kernel_ns ? 2 : 1);
        expect_refused(made, figure, sign);
        *gpu = kept;
    }
}

/* Arenas, with the memory that follows from them. */
static void nudge_arenas(struct made *made)
{
    struct partition_plan_gpu *gpu = gpu_of(made), kept = *gpu;
    for (int sign = -1; sign <= 1; sign += 2) {
        gpu->arenas += (uint32_t)sign;
        expect_refused(made, "arenas", sign);
        gpu->memory_bytes += (uint64_t)sign * (kept.memory_bytes / kept.arenas);
        expect_refused(made, "arenas with memory", sign);
        *gpu = kept;
    }
}

/* Stairs are asked last, and few plans need them. */
static const size_t figures[] = {FIGURES, FIGURES, FIGURES / 4};

static bool all_had_their_turn(const size_t by_rule[3])
{
    return by_rule[0] >= figures[0] && by_rule[1] >= figures[1] && by_rule[2] >= figures[2];
}

/* By each method, until all rules had their turn: no figure can be a little other than it is. */
static void every_figure_is_checked(void **state)
{
    (void)state;
    static struct made made;
    struct test_random random = {.state = 5};
    size_t by_rule[3] = {0, 0, 0};
    for (int n = 0; n < 4000 && !all_had_their_turn(by_rule); n++) {
        size_t methods = 0;
        while (partition_plan_methods[methods].places)
            methods++;
        test_brim_set_random(&made.set, &random);
        if (made.set.input.count > 150)
            made.set.input.count = 150;
        bool brim;
        made.plan = test_brim_set_fill(&made.set, &partition_plan_methods[(size_t)n % methods], &brim);
        for (made.gpu = 0; made.gpu < made.plan->gpus; made.gpu++) {
            if (gpu_of(&made)->streams == 0 || by_rule[gpu_of(&made)->rule] >= figures[gpu_of(&made)->rule])
                continue;
            assert_true(holds(&made));
            by_rule[gpu_of(&made)->rule]++;
            nudge_figures(&made);
            nudge_share(&made);
            nudge_bound(&made, &gpu_of(&made)->stages.up_ns, "up");
            nudge_bound(&made, &gpu_of(&made)->stages.kernel_ns, "kernel");
            nudge_bound(&made, &gpu_of(&made)->stages.down_ns, "down");
            nudge_arenas(&made);
            assert_true(holds(&made));
        }
        partition_plan_destroy(made.plan);
    }
    print_message("%zu GPUs by batch, %zu by backlog, %zu by stairs\n", by_rule[0], by_rule[1], by_rule[2]);
    assert_true(all_had_their_turn(by_rule));
}

/* A worker by hand, whose certificate tells the true figures whether it holds or not: the checker accepts as
 * many streams as there is room for by hand, and not one more. Each has 992 ns of work every 50 us, due
 * within 10 us. */
static void expect_room(uint32_t burst_pieces, core_ns granularity_ns, bool by_packets, size_t most)
{
    static struct core_stream_spec specs[64];
    uint32_t unit[64] = {0};
    struct config_profile profile = {.cpu = {.lanes = 1,
                                             .burst_pieces = burst_pieces,
                                             .piece_bytes = 4096,
                                             .per_byte_fs = {1000000, 0, 0},
                                             .decrypt_more_percent = 15,
                                             .queue_granularity_ns = granularity_ns},
                                     .io = {.limit_percent = 100}};
    for (int i = 0; i < 64; i++)
        specs[i] = (struct core_stream_spec){.packet_bytes = 992,
                                             .burst_packets = 1,
                                             .interval_ns = 50 * CORE_NS_PER_US,
                                             .latency_ns = 10 * CORE_NS_PER_US,
                                             .cipher = CORE_CIPHER_AES_128_CBC,
                                             .padding = CORE_PADDING_NONE};
    for (size_t count = 1; count <= 64; count++) {
        struct partition_plan_input input = {
            .specs = specs, .count = count, .profile = &profile, .workers = 1};
        struct partition_plan_worker worker = {.streams = count};
        core_ns burst = count < burst_pieces ? (core_ns)count : burst_pieces;
        worker.test.accepted = true;
        worker.test.by_packets = by_packets;
        worker.test.blocking_ns = 2 * burst * 992;
        worker.test.utilisation_ppb = (int64_t)count * 992 * 20000;
        struct partition_plan plan = {
            .accepted = true, .count = count, .workers = 1, .unit = unit, .worker = &worker};
        assert_int_equal(partition_check(&input, &plan, NULL), count <= most ? CORE_OK : CORE_REFUSED);
    }
}

static void checker_rejects_full_worker(void **state)
{
    (void)state;
    expect_room(1, 0, false, 8);    /* with two of blocking */
    expect_room(1, 4096, false, 3); /* and 5,904 ns to be sure of */
    expect_room(1, 0, true, 10);    /* a piece in front is one of those that are due */
    /* every stream may have a packet in the burst before and one more beside: 2 n - 1 */
    expect_room(32, 0, true, 5);
    /* n are due, two are in the burst before, and one is beside */
    expect_room(2, 0, true, 7);
}

/* ---- the backlog rule ---- */

#define CROWDS        TEST_SHARE(20000)
#define CROWD_STREAMS 60

/* Streams on a card, as the definition wants them and as perfmodel/flow.h does. */
struct crowd {
    struct config_profile profile;
    struct test_gpu card;
    struct perfmodel_flow_load load;
    struct partition_check_flow flow;
};

static void crowd_stream(struct crowd *crowd, struct test_random *random, core_ns period_ns)
{
    struct core_stream_spec spec = {.packet_bytes = 16 * (uint32_t)test_random_log(random, 1, 512),
                                    .burst_packets = (uint32_t)test_random_log(random, 1, 8),
                                    .interval_ns =
                                        test_random_log(random, period_ns / 16 + 1000, 8 * period_ns),
                                    .latency_ns = CORE_NS_PER_S};
    struct perfmodel_flow_load one = perfmodel_flow_load_of(&spec, &crowd->profile);
    perfmodel_flow_load_add(&crowd->load, &one);
    long double packet = spec.packet_bytes, burst = spec.burst_packets * packet;
    crowd->flow.jobs_max = ++crowd->flow.jobs;
    crowd->flow.burst_bytes += burst;
    crowd->flow.rate += packet / (long double)spec.interval_ns;
    crowd->flow.rate_max = crowd->flow.rate + (long double)crowd->flow.jobs * 0x1p-32L;
    core_ns whole = period_ns / spec.interval_ns;
    long double job = burst + packet * (long double)whole;
    if (job > crowd->flow.job_bytes)
        crowd->flow.job_bytes = job;
}

/* Copies and a kernel that carry about as much as comes. */
static void crowd_card(struct crowd *crowd, struct test_random *random)
{
    struct test_gpu *card = &crowd->card;
    test_gpu_random(card, random);
    uint64_t full = (uint64_t)(crowd->flow.burst_bytes + crowd->flow.rate * crowd->flow.period_ns) + 1;
    core_ns period_ns = (core_ns)crowd->flow.period_ns, up_ns = 1 + period_ns / 50, down_ns = up_ns;
    for (uint64_t row = 0; row < 4; row++) {
        card->copies[row] = (struct config_profile_copy){1 + full * row / 3, up_ns, down_ns, up_ns, down_ns};
        up_ns += test_random_in(random, 0, period_ns / 2);
        down_ns += test_random_in(random, 0, period_ns / 2);
    }
    card->gpu.copy_count = 4;
    card->gpu.sms = (uint32_t)test_random_in(random, 1, 16);
    card->gpu.launch_ns = test_random_in(random, 0, period_ns / 8);
    for (uint32_t row = 0; row < 4; row++)
        card->utilisation[row] = (struct config_profile_utilisation){
            1 + 3 * row, (uint32_t)test_random_in(random, 50000 + 200000 * row, 400000 + 200000 * row)};
    card->gpu.utilisation_count = 4;
    card->gpu.sm_bytes_per_s = 1 + (int64_t)((double)full / (double)period_ns / card->gpu.sms *
                                             (double)test_random_log(random, 1, 32) * 1e9);
}

static void expect_in(const struct crowd *crowd, const struct partition_check_range *range, core_ns told_ns,
                      int *stable, int *above)
{
    if (told_ns == CORE_NS_NEVER) {
        assert_true(isinf(range->most_ns));
        return;
    }
    ++*stable;
    *above += range->least_ns > crowd->flow.period_ns;
    if (range->least_ns > (long double)told_ns || range->most_ns * (1 + 1e-6L) + 2 < (long double)told_ns)
        fail_msg("%lld is not within %.3Lf and %.3Lf", (long long)told_ns, range->least_ns, range->most_ns);
}

static void expect_within(const struct crowd *crowd, enum partition_check_stage stage, core_ns told_ns,
                          int *stable, int *above)
{
    struct partition_check_range range;
    assert_int_equal(partition_check_flow(&crowd->flow, stage, &range), CORE_OK);
    expect_in(crowd, &range, told_ns, stable, above);
}

/* One engine: what is told of a kernel that falls behind counts in the copies, too. */
static void expect_turns(const struct crowd *crowd, const struct perfmodel_stages *told, int *stable,
                         int *above)
{
    struct partition_check_turns turns = {(long double)told->up_ns, (long double)told->kernel_ns,
                                          (long double)told->down_ns, .up = {0}};
    if (told->kernel_ns == CORE_NS_NEVER)
        return;
    assert_int_equal(partition_check_turns(&crowd->flow, &turns), CORE_OK);
    expect_in(crowd, &turns.up, told->up_ns, stable, above);
    expect_in(crowd, &turns.down, told->down_ns, stable, above);
}

/* Two ways to the same bounds: lines in integers, and the definition with hulls in real numbers. */
static void backlog_bounds_are_as_defined(void **state)
{
    (void)state;
    struct test_random random = {.state = 4};
    int stable = 0, above = 0;
    for (int n = 0; n < CROWDS; n++) {
        static struct crowd crowd;
        crowd = (struct crowd){0};
        test_gpu_margins_random(&crowd.profile.margins, &random);
        crowd.flow.up_ns = crowd.flow.kernel_ns = crowd.flow.down_ns = INFINITY;
        core_ns period_ns = test_random_log(&random, 100000, 50000000);
        crowd.profile.margins.in_ns = test_random_in(&random, 0, period_ns / 4);
        crowd.flow.in_ns = (long double)crowd.profile.margins.in_ns;
        crowd.flow.period_ns = (long double)period_ns;
        crowd.flow.copies = 1 + crowd.profile.margins.copies_ppm / 1e6L;
        crowd.flow.kernels = 1 + crowd.profile.margins.kernels_ppm / 1e6L;
        for (int64_t streams = test_random_log(&random, 1, CROWD_STREAMS); streams > 0; streams--)
            crowd_stream(&crowd, &random, period_ns);
        crowd_card(&crowd, &random);
        crowd.flow.card = &crowd.card.gpu;
        crowd.flow.job_bytes_max = (long double)crowd.load.job_burst_bytes +
                                   (long double)crowd.load.job_rate / 0x1p32L * crowd.flow.period_ns + 1;
        struct perfmodel_flow_gpu *card;
        assert_int_equal(perfmodel_flow_gpu_create(&card, &crowd.profile, &crowd.card.gpu, false), CORE_OK);
        struct perfmodel_stages told = perfmodel_flow_judge(card, &crowd.load, period_ns).bounds;
        crowd.flow.in_ns += (long double)told.host_ns;
        expect_within(&crowd, PARTITION_CHECK_KERNEL, told.kernel_ns, &stable, &above);
        if (crowd.card.gpu.copy_engines == 1) {
            expect_turns(&crowd, &told, &stable, &above);
        } else {
            expect_within(&crowd, PARTITION_CHECK_UP, told.up_ns, &stable, &above);
            expect_within(&crowd, PARTITION_CHECK_DOWN, told.down_ns, &stable, &above);
        }
        perfmodel_flow_gpu_destroy(card);
    }
    print_message("%d stable stages, %d of them longer than the period\n", stable, above);
    assert_true(stable > CROWDS && above > CROWDS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checker_rejects_every_corruption),
        cmocka_unit_test(checker_rejects_late_stream),
        cmocka_unit_test(checker_rejects_figures_of_an_empty_card),
        cmocka_unit_test(every_figure_is_checked),
        cmocka_unit_test(checker_rejects_full_worker),
        cmocka_unit_test(backlog_bounds_are_as_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
