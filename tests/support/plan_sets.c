#include "tests/support/plan_sets.h"

#include "tests/support/units.h"

#include <string.h>

static void random_cpu(struct config_profile *profile, struct test_random *random)
{
    profile->cpu.lanes = 8;
    profile->cpu.burst_pieces = 8 * (uint32_t)test_random_in(random, 1, 8);
    profile->cpu.piece_bytes = 16 * (uint32_t)test_random_log(random, 4, 4095);
    profile->cpu.per_piece_ns = test_random_in(random, 0, 500);
    profile->cpu.queue_granularity_ns = test_random_in(random, 0, 8192);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        profile->cpu.per_byte_fs[i] = test_random_log(random, 1000000, 30000000);
        profile->cpu.lane_ns[i] = test_random_in(random, 0, 20000);
    }
    profile->io = (struct config_profile_io){.limit_percent = 100};
    profile->io.rest_max_ns = test_random_chance(random, 50) ? 0 : 500 * CORE_NS_PER_US;
    profile->margins.in_ns = test_random_in(random, 0, 200000);
    profile->margins.out_ns = test_random_in(random, 0, 200000);
    test_gpu_margins_random(&profile->margins, random);
}

/* A card that could be: neither hopeless nor boundless beside the workers. */
static void plausible_card(struct test_gpu *card, struct test_random *random)
{
    card->gpu.sms = (uint32_t)test_random_in(random, 2, 32);
    card->gpu.sm_bytes_per_s = test_random_log(random, 20000000, 500000000);
    card->gpu.memory_bytes = UINT64_C(1) << 30;
    for (int row = 0; row < 3; row++) { /* each direction at a price per byte of its own */
        core_ns start_ns = row == 0 ? test_random_in(random, 2000, 20000) : card->copies[row - 1].up_ns;
        uint64_t bytes = UINT64_C(4096) << (6 * row);
        core_ns up_ns = start_ns + (core_ns)bytes / test_random_in(random, 2, 20);
        core_ns down_ns = row == 0 ? up_ns : card->copies[row - 1].down_ns + up_ns / 2;
        card->copies[row] = (struct config_profile_copy){bytes, up_ns, down_ns, 2 * up_ns, 2 * down_ns};
    }
    card->gpu.copy_count = 3;
    card->utilisation[0].jobs = 1;
    card->utilisation[0].share_ppm = (uint32_t)test_random_in(random, 20000, 200000);
    card->utilisation[1].jobs = 32;
    card->utilisation[1].share_ppm = CONFIG_PROFILE_SHARE_PPM;
    card->gpu.utilisation_count = 2;
}

static void random_cards(struct test_plan_set *set, struct test_random *random)
{
    struct config_profile *profile = &set->profile;
    profile->gpu_count = (uint32_t)test_random_in(random, 0, TEST_PLAN_KINDS);
    profile->gpus = set->gpus;
    profile->pinned_bytes = (uint64_t)test_random_log(random, 1 << 24, INT64_C(1) << 34);
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++) {
        test_gpu_random(&set->cards[kind], random);
        if (test_random_chance(random, 80))
            plausible_card(&set->cards[kind], random);
        set->gpus[kind] = set->cards[kind].gpu; /* its tables stay beside the card */
        set->gpus[kind].count = (uint32_t)test_random_in(random, 1, 3);
    }
}

static struct core_stream_spec random_spec(struct test_random *random)
{
    struct core_stream_spec spec = {.padding = CORE_PADDING_NONE};
    int64_t blocks = test_random_log(random, 1, test_random_chance(random, 2) ? 65536 : 256);
    spec.packet_bytes = (uint32_t)(16 * blocks);
    if (test_random_chance(random, 50)) {
        spec.padding = CORE_PADDING_PKCS7;
        spec.packet_bytes -= (uint32_t)test_random_in(random, 0, 15);
    }
    spec.burst_packets = test_random_chance(random, 80) ? 1 : (uint32_t)test_random_log(random, 1, 64);
    spec.cipher = (enum core_cipher)test_random_in(random, 1, CORE_CIPHER_COUNT);
    spec.interval_ns = blocks * test_random_log(random, 1000, 16000); /* to be scaled */
    spec.latency_ns = test_random_chance(random, 5) ? test_random_log(random, 500000, 100000000)
                                                    : test_random_log(random, 10000000, 200000000);
    return spec;
}

/* Bytes per ns that workers and GPUs could carry if nothing but their peaks mattered. */
static double peak_of(const struct test_plan_set *set)
{
    double peak = set->input.workers * 1e6 / (double)set->profile.cpu.per_byte_fs[0];
    for (uint32_t kind = 0; kind < set->profile.gpu_count; kind++)
        peak += set->gpus[kind].count * (double)set->gpus[kind].sms * (double)set->gpus[kind].sm_bytes_per_s /
                1e9;
    return peak;
}

static core_ns within(double ns, core_ns low_ns, core_ns high_ns)
{
    return ns < (double)low_ns ? low_ns : ns > (double)high_ns ? high_ns : (core_ns)ns;
}

static void scale_rates(struct test_plan_set *set, double load)
{
    double rate = 0;
    for (size_t i = 0; i < set->input.count; i++)
        rate += set->specs[i].packet_bytes / (double)set->specs[i].interval_ns;
    for (size_t i = 0; i < set->input.count; i++)
        set->specs[i].interval_ns = within((double)set->specs[i].interval_ns * rate / (load * peak_of(set)),
                                           CORE_INTERVAL_NS_MIN, CORE_INTERVAL_NS_MAX);
}

static void make_messages(struct test_plan_set *set, struct test_random *random)
{
    for (size_t i = 0; i < set->input.count; i++)
        if (test_random_chance(random, 60))
            test_units_message(&set->specs[i], random);
}

void test_plan_set_random(struct test_plan_set *set, struct test_random *random)
{
    memset(set, 0, sizeof *set);
    random_cpu(&set->profile, random);
    random_cards(set, random);
    bool alike = test_random_chance(random, 10);
    size_t count = (size_t)test_random_in(random, 0, TEST_PLAN_STREAMS);
    for (size_t i = 0; i < count; i++)
        set->specs[i] = alike && i > 0 ? set->specs[0] : random_spec(random);
    set->input = (struct partition_plan_input){.specs = set->specs,
                                               .count = count,
                                               .profile = &set->profile,
                                               .workers = (uint32_t)test_random_in(random, 1, 6),
                                               .paper = test_random_chance(random, 30),
                                               .seed = test_random_next(random)};
    scale_rates(set, (double)test_random_log(random, 1, 1024) / 1024);
    struct test_random units = test_units_beside(random);
    if (test_random_chance(&units, 20))
        make_messages(set, &units);
}
