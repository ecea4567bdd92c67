/* The checker: whatever is changed in a plan or in what it was made for, it finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "partition/check.h"
#include "tests/support/plan_sets.h"

#define PLANS 300

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

static void margin_more(struct made *made)
{
    made->set.profile.margins.percent += 5;
}

static void every_corruption_is_found(void **state)
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
        {"less memory", memory_less},
        {"less share", worker_share_less},
        {"worker refused", worker_refused},
        {"bound shorter", bound_shorter_on_gpu},
        {"larger packets on a GPU", burst_on_gpu},
        {"faster on a worker", interval_on_worker},
        {"smaller card", card_memory},
        {"less pinned memory", pinned},
        {"longer launch", launch_longer},
        {"larger margin", margin_more},
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

/* A worker by hand, whose certificate tells the true figures whether it holds or not: the checker accepts as
 * many streams as their first deadline has room for, and not one more. */
static void a_full_worker_is_found(void **state)
{
    (void)state;
    static struct core_stream_spec specs[64];
    uint32_t unit[64] = {0};
    struct config_profile profile = {
        .cpu = {.lanes = 1, .burst_pieces = 1, .piece_bytes = 4096, .per_byte_fs = {1000000, 0, 0}},
        .io = {.limit_percent = 100}};
    /* 992 ns of work every 50 us, due within 10 us: eight, with two of blocking */
    for (int i = 0; i < 64; i++)
        specs[i] = (struct core_stream_spec){
            992, 1, 50 * CORE_NS_PER_US, 10 * CORE_NS_PER_US, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE};
    for (size_t count = 1; count <= 64; count++) {
        struct partition_plan_input input = {
            .specs = specs, .count = count, .profile = &profile, .workers = 1};
        struct partition_plan_worker worker = {.streams = count};
        worker.test.accepted = true;
        worker.test.blocking_ns = 2 * 992;
        worker.test.utilisation_ppb = (int64_t)count * 992 * 20000;
        struct partition_plan plan = {
            .accepted = true, .count = count, .workers = 1, .unit = unit, .worker = &worker};
        bool fits = count * 992 + 2 * 992 <= 10000;
        assert_int_equal(partition_check(&input, &plan, NULL), fits ? CORE_OK : CORE_REFUSED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_corruption_is_found),
        cmocka_unit_test(a_full_worker_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
