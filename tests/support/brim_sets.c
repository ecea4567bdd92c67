#include "tests/support/brim_sets.h"

#include "tests/support/require.h"

#include <string.h>

#define REFUSALS_MAX 6

enum kind { WILD, ALIKE, FOR_GPUS };

/* ---- machines ---- */

static core_ns within(double ns, core_ns low_ns, core_ns high_ns)
{
    return ns < (double)low_ns ? low_ns : ns > (double)high_ns ? high_ns : (core_ns)ns;
}

/* Mostly workers that block shortly. Returns what they carry in bytes per ns. */
static double balance_workers(struct test_plan_set *set, struct test_random *random, enum kind kind)
{
    struct config_profile_cpu *cpu = &set->profile.cpu;
    set->input.workers = kind == FOR_GPUS ? 1 : (uint32_t)test_random_in(random, 1, 3);
    if (kind != WILD || test_random_chance(random, 50)) {
        cpu->burst_pieces = 8 * (uint32_t)test_random_in(random, 1, 2);
        cpu->piece_bytes = 16 * (uint32_t)test_random_log(random, 16, 64);
        for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
            cpu->per_byte_fs[i] = test_random_log(random, 2000000, 20000000);
            cpu->lane_ns[i] = test_random_in(random, 0, 2000);
        }
    }
    return set->input.workers * 1e6 / (double)cpu->per_byte_fs[0];
}

/* Cards that are neither hopeless nor boundless beside the workers. Returns what they carry. */
static double balance_gpus(struct test_plan_set *set, struct test_random *random, enum kind kind,
                           double workers)
{
    double peak = 0;
    for (uint32_t k = 0; k < set->profile.gpu_count; k++) {
        struct config_profile_gpu *gpu = &set->gpus[k];
        gpu->count = (uint32_t)test_random_in(random, 1, kind == FOR_GPUS && k > 0 ? 1 : 2);
        gpu->sms = (uint32_t)test_random_log(random, 1, kind == FOR_GPUS ? 4 : 16);
        double bytes_per_ns = workers * (double)test_random_log(random, 64, 2048) / 1024;
        if (kind == FOR_GPUS)
            bytes_per_ns = workers * (double)test_random_in(random, 2, 16);
        if (kind != WILD || test_random_chance(random, 50))
            gpu->sm_bytes_per_s = 1 + (int64_t)(bytes_per_ns * 1e9 / gpu->sms);
        peak += gpu->count * (double)gpu->sms * (double)gpu->sm_bytes_per_s / 1e9;
    }
    return peak;
}

/* ---- streams ---- */

/* Of one kind, within a factor of four. */
static void draw_alike(struct test_plan_set *set, struct test_random *random)
{
    int64_t blocks = test_random_log(random, 1, 128), burst = 1;
    core_ns latency_ns = test_random_log(random, 2000000, 200000000);
    if (test_random_chance(random, 50))
        burst = test_random_log(random, 1, 16);
    set->input.count = (size_t)test_random_in(random, 50, TEST_PLAN_STREAMS);
    for (size_t i = 0; i < set->input.count; i++)
        set->specs[i] = (struct core_stream_spec){
            .packet_bytes = 16 * (uint32_t)test_random_in(random, blocks, 4 * blocks),
            .burst_packets = (uint32_t)test_random_in(random, 1, burst),
            .interval_ns = test_random_in(random, 1000000, 4000000),
            .latency_ns = test_random_in(random, latency_ns, 4 * latency_ns),
            .cipher = (enum core_cipher)test_random_in(random, 1, CORE_CIPHER_COUNT)};
}

/* Makes the streams ask for `load` of `peak`. */
static void scale(struct test_plan_set *set, double load, double peak)
{
    double rate = 0;
    for (size_t i = 0; i < set->input.count; i++)
        rate += set->specs[i].packet_bytes / (double)set->specs[i].interval_ns;
    for (size_t i = 0; i < set->input.count; i++)
        set->specs[i].interval_ns = within((double)set->specs[i].interval_ns * rate / (load * peak),
                                           CORE_INTERVAL_NS_MIN, CORE_INTERVAL_NS_MAX);
}

/* Latency bounds from half an interval to some: a period is then a part of an interval or a few. */
static void bind_to_intervals(struct test_plan_set *set, struct test_random *random)
{
    double intervals = (double)test_random_log(random, 1, 128) / 2;
    for (size_t i = 0; i < set->input.count; i++)
        set->specs[i].latency_ns =
            within((double)set->specs[i].interval_ns * intervals, CORE_LATENCY_NS_MIN, 20 * CORE_NS_PER_S);
}

static struct partition_plan *plan_of(const struct partition_plan_method *method,
                                      const struct partition_plan_input *input)
{
    struct partition_plan *plan = NULL;
    TEST_REQUIRE(partition_plan_make(method, input, &plan, NULL) == CORE_OK);
    return plan;
}

/* Without the streams that have no plan even alone. */
static void leave_out_hopeless(struct test_plan_set *set)
{
    struct partition_plan_input alone = set->input;
    size_t kept = 0;
    alone.count = 1;
    for (size_t i = 0; i < set->input.count; i++) {
        alone.specs = &set->specs[i];
        struct partition_plan *plan = plan_of(&partition_plan_methods[0], &alone);
        if (plan->accepted)
            set->specs[kept++] = set->specs[i];
        partition_plan_destroy(plan);
    }
    set->input.count = kept;
}

void test_brim_set_random(struct test_plan_set *set, struct test_random *random)
{
    enum kind kind = (enum kind)test_random_in(random, WILD, FOR_GPUS);
    do
        test_plan_set_random(set, random);
    while (set->profile.gpu_count == 0 && (kind == FOR_GPUS || !test_random_chance(random, 5)));
    set->input.paper = false;
    set->profile.cpu.decrypt_more_percent = 15;
    set->profile.cpu.queue_granularity_ns = 4096; /* the workers' own */
    double workers = balance_workers(set, random, kind);
    double peak = workers + balance_gpus(set, random, kind, workers);
    if (kind != WILD)
        draw_alike(set, random);
    scale(set, (double)test_random_log(random, 128, 2048) / 1024, peak);
    if (kind == FOR_GPUS)
        bind_to_intervals(set, random);
    leave_out_hopeless(set);
}

/* ---- plans ---- */

/* The plan of the first streams of a set, or NULL. */
static struct partition_plan *prefix_plan(const struct partition_plan_method *method,
                                          struct partition_plan_input *input, size_t count)
{
    input->count = count;
    struct partition_plan *plan = plan_of(method, input);
    if (plan->accepted)
        return plan;
    partition_plan_destroy(plan);
    return NULL;
}

/* Makes *low, the accepted prefix with *plan, as long as it goes within `high`, in growing and then halving
 * steps. */
static void lengthen(const struct partition_plan_method *method, struct partition_plan_input *input,
                     size_t high, size_t *low, struct partition_plan **plan)
{
    size_t refused = high + 1;
    for (size_t step = 1 + *low / 8; refused - *low > 1;) {
        size_t middle = *low + step < refused ? *low + step : *low + (refused - *low) / 2;
        struct partition_plan *longer = prefix_plan(method, input, middle);
        if (longer == NULL) {
            refused = middle;
            step = (refused - *low) / 2;
            continue;
        }
        partition_plan_destroy(*plan);
        *plan = longer;
        *low = middle;
        step *= 2;
    }
}

struct partition_plan *test_brim_set_fill(struct test_plan_set *set,
                                          const struct partition_plan_method *method, bool *brim)
{
    size_t count = set->input.count, low = 0;
    struct partition_plan *plan = prefix_plan(method, &set->input, 0);
    TEST_REQUIRE(plan != NULL);
    *brim = false;
    for (int refusals = 0; refusals < REFUSALS_MAX; refusals++) {
        lengthen(method, &set->input, count, &low, &plan);
        if (low == count)
            break;
        *brim = true;
        memmove(&set->specs[low], &set->specs[low + 1], (count - low - 1) * sizeof *set->specs);
        count--;
    }
    set->input.count = low;
    return plan;
}
