/* Every rule for GPUs under attack: sets accepted at the brim, and a search for arrivals, times and closings
 * that break a bound (tests/support/flow_attack.h). No deadline is missed, no stage is beyond its promise;
 * and each comes near enough for that to mean something.
 *
 * MILLRACE_ATTACK_SETS: so many of each kind instead of the default; MILLRACE_ATTACK_SEED: from this one on;
 * MILLRACE_ATTACK_STEPS: of each search; MILLRACE_ATTACK_KIND: this kind only, 0 .. 7. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/flow_attack.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SETS_DEFAULT 10
#else
#define SETS_DEFAULT 100
#endif
#define STEPS_DEFAULT 480

static const struct kind {
    const char *name;
    enum flow_attack_rule rule;
    uint32_t engines;
} kinds[] = {
    {"two engines, a batch by itself", FLOW_ATTACK_BATCH, 2},
    {"two engines, sums", FLOW_ATTACK_SUMS, 2},
    {"two engines, stairs", FLOW_ATTACK_STAIRS, 2},
    {"two engines, another period", FLOW_ATTACK_CHANGE, 2},
    {"one engine, a batch by itself", FLOW_ATTACK_BATCH, 1},
    {"one engine, sums", FLOW_ATTACK_SUMS, 1},
    {"one engine, stairs", FLOW_ATTACK_STAIRS, 1},
    {"one engine, another period", FLOW_ATTACK_CHANGE, 1},
};

static int64_t environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

#define PERCENTS 100
struct tally {
    uint64_t sets, misses, late, arenas;
    int64_t latency_ppb, stage_ppb[PIPELINE_STAGES];
    uint64_t by_percent[PERCENTS + 1]; /* sets by latency / d' */
};

static void count(struct tally *tally, const struct flow_attack_found *found)
{
    tally->sets++;
    tally->misses += found->missed;
    tally->late += found->late;
    tally->arenas += found->arenas;
    if (found->latency_ppb > tally->latency_ppb)
        tally->latency_ppb = found->latency_ppb;
    for (int stage = 0; stage < PIPELINE_STAGES; stage++)
        if (found->stage_ppb[stage] > tally->stage_ppb[stage])
            tally->stage_ppb[stage] = found->stage_ppb[stage];
    int64_t percent = found->latency_ppb / 10000000;
    tally->by_percent[percent < PERCENTS ? percent : PERCENTS]++;
}

static int half_of(const struct tally *tally)
{
    uint64_t sum = 0;
    int percent = 0;
    while (percent < PERCENTS && (sum += tally->by_percent[percent]) * 2 < tally->sets)
        percent++;
    return percent;
}

static void report(const struct kind *kind, const struct tally *tally)
{
    print_message(
        "%s: %llu sets, %llu with a miss, %llu with a stage beyond its bound, %llu short of arenas; "
        "latency / d' %.3f at the most, %.2f with half of the sets; up %.3f, kernel %.3f, back %.3f\n",
        kind->name, (unsigned long long)tally->sets, (unsigned long long)tally->misses,
        (unsigned long long)tally->late, (unsigned long long)tally->arenas, (double)tally->latency_ppb / 1e9,
        half_of(tally) / 100.0, (double)tally->stage_ppb[PIPELINE_UP] / 1e9,
        (double)tally->stage_ppb[PIPELINE_KERNEL] / 1e9, (double)tally->stage_ppb[PIPELINE_DOWN] / 1e9);
    fflush(stdout); /* a long run is watched */
}

static void attack(const struct kind *kind, uint64_t from, uint64_t sets, struct tally *tally)
{
    static struct flow_attack_set set;
    const uint32_t steps = (uint32_t)environment("MILLRACE_ATTACK_STEPS", STEPS_DEFAULT);
    uint64_t seed = from << 20; /* ranges do not meet */
    for (uint64_t n = 0; n < sets; n++) {
        while (!flow_attack_set_make(&set, kind->rule, kind->engines, seed))
            seed++;
        struct flow_attack_found found = flow_attack_run(&set, steps, seed);
        if (found.missed || found.late || found.arenas)
            print_message("%s: seed %llu: latency %.4f, stages %.4f %.4f %.4f%s\n", kind->name,
                          (unsigned long long)seed, (double)found.latency_ppb / 1e9,
                          (double)found.stage_ppb[0] / 1e9, (double)found.stage_ppb[1] / 1e9,
                          (double)found.stage_ppb[2] / 1e9, found.arenas ? ", arenas" : "");
        count(tally, &found);
        seed++;
    }
}

static void no_bound_is_broken(void **state)
{
    (void)state;
    const int64_t only = environment("MILLRACE_ATTACK_KIND", -1);
    const uint64_t sets = (uint64_t)environment("MILLRACE_ATTACK_SETS", SETS_DEFAULT);
    uint64_t broken = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct tally tally = {0};
        if (only >= 0 && (size_t)only != k)
            continue;
        attack(&kinds[k], (uint64_t)environment("MILLRACE_ATTACK_SEED", 0), sets, &tally);
        report(&kinds[k], &tally);
        broken += tally.misses + tally.late + tally.arenas;
    }
    assert_int_equal(broken, 0);
}

/* One copy engine, busy for nine tenths of the time, and two streams whose bursts are earned back within ten
 * periods. Where the copies back among copies up were counted as of batches in a row, this broke the bounds.
 */
static void bursts_that_are_earned_back(void **state)
{
    (void)state;
    static struct flow_attack_set set;
    struct test_gpu *card = &set.card;
    card->copies[0] = (struct config_profile_copy){1, 156, 113, 156, 113};
    card->copies[1] = (struct config_profile_copy){1000000, 155700000, 112600000, 155700000, 112600000};
    card->utilisation[0] = (struct config_profile_utilisation){1, CONFIG_PROFILE_SHARE_PPM};
    card->gpu = (struct config_profile_gpu){.count = 1,
                                            .sms = 1,
                                            .copy_engines = 1,
                                            .memory_bytes = (int64_t)1 << 40,
                                            .sm_bytes_per_s = 8447021,
                                            .launch_ns = 10159,
                                            .copies = card->copies,
                                            .copy_count = 2,
                                            .utilisation = card->utilisation,
                                            .utilisation_count = 1};
    set.specs[0] = set.specs[1] = (struct core_stream_spec){.packet_bytes = 3840,
                                                            .burst_packets = 4,
                                                            .interval_ns = 2222532,
                                                            .latency_ns = CORE_LATENCY_NS_MAX,
                                                            .cipher = CORE_CIPHER_AES_128_CBC};
    set.gpu.count = 2;
    set.gpu.period_ns = 859442;
    assert_true(flow_attack_set_promise(&set));
    struct flow_attack_found found = flow_attack_run(&set, 20000, 1);
    print_message("latency / d' %.3f; up %.3f, kernel %.3f, back %.3f\n", (double)found.latency_ppb / 1e9,
                  (double)found.stage_ppb[PIPELINE_UP] / 1e9, (double)found.stage_ppb[PIPELINE_KERNEL] / 1e9,
                  (double)found.stage_ppb[PIPELINE_DOWN] / 1e9);
    assert_false(found.missed || found.late || found.arenas);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bursts_that_are_earned_back),
        cmocka_unit_test(no_bound_is_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
