/* How much of a worker the tests of admission give away, on random heterogeneous sets: the load at which the
 * test refuses, over the load at which an adversary that aims (support/worker_attack.h) first makes a packet
 * late. That is a lower bound of what the test reaches, for the adversary may be no good.
 *
 * The load is how much slower the worker is made, all else equal. "promise": a packet is late if it is out
 * later than its stream was promised; "spaced": if it is finished later than s after its release, which
 * keeps a stream that sends no more than it may from ever filling the room for its packets. No set misses
 * either at its brim, and the half of the sets of each class has a ratio above 0.3.
 *
 * MILLRACE_RATIO_SETS: sets of each class (default 6, at most 4096); MILLRACE_RATIO_CLIMBS: steps for each
 * victim (40); MILLRACE_RATIO_SEED. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perfmodel/demand.h"
#include "tests/support/random.h"
#include "tests/support/simulator.h"
#include "tests/support/worker_attack.h"

#define US          CORE_NS_PER_US
#define SETS_MOST   4096
#define SLOWER_MOST 16.0 /* than where the test refuses */
#define STREAMS     48

static int64_t environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

static struct simulator *simulator_for(uint32_t burst_pieces)
{
    static struct simulator *simulators[PERFMODEL_CPU_BURST_MAX + 1];
    if (simulators[burst_pieces] == NULL)
        simulators[burst_pieces] = simulator_create(burst_pieces);
    assert_non_null(simulators[burst_pieces]);
    return simulators[burst_pieces];
}

enum size_class { ALONE, MANY, FEW, SHIPPED, ALIKE, SIZE_CLASSES };

static const char *const class_names[] = {"B = 1", "n >= B > 1", "n < B", "cpu-only's figures",
                                          "homogeneous"};

struct set {
    struct config_profile profile;
    struct simulator_stream streams[STREAMS];
    size_t count;
};

/* One core: lanes, pieces and costs at random. */
static void draw_profile(struct test_random *random, enum size_class class, struct config_profile *profile)
{
    static const uint32_t lanes[] = {1, 2, 4, 8};
    struct config_profile_cpu *cpu = &profile->cpu;
    *profile = (struct config_profile){0};
    cpu->lanes = class == ALONE ? 1 : lanes[test_random_in(random, class == MANY ? 1 : 0, 3)];
    cpu->burst_pieces = class == ALONE ? 1 : cpu->lanes * (uint32_t)test_random_in(random, 1, 4);
    if (class == FEW && cpu->burst_pieces < 4)
        cpu->burst_pieces = 4;
    cpu->piece_bytes = CORE_BLOCK_BYTES * (uint32_t)test_random_log(random, 16, 512);
    cpu->per_piece_ns = test_random_log(random, 20, 400);
    cpu->decrypt_more_percent = 15;
    cpu->queue_granularity_ns = 4096;
    int64_t per_byte_fs = test_random_log(random, 100000, 4000000);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        cpu->per_byte_fs[i] = per_byte_fs * (5 + i) / 5;
        cpu->lane_ns[i] = test_random_in(
            random, 0, cpu->per_byte_fs[i] * cpu->piece_bytes / 1000000 * (cpu->lanes - 1) + 100);
    }
    profile->margins.in_ns = test_random_chance(random, 50) ? 0 : test_random_log(random, US, 300 * US);
    if (class != SHIPPED)
        return;
    cpu->lanes = 8;
    cpu->burst_pieces = 32;
    cpu->piece_bytes = 4096;
    cpu->per_piece_ns = 60;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        cpu->per_byte_fs[i] = 350000 + 70000 * i;
        cpu->lane_ns[i] = 6000;
    }
    profile->margins = (struct config_profile_margins){.in_ns = 300 * US, .out_ns = 300 * US, .percent = 10};
}

/* The kinds of outside reading: mixed, bursts, d << t, d >> t, tiny, huge, one key size, all. */
static bool draw_stream(struct test_random *random, const struct config_profile *profile, int kind,
                        struct simulator_stream *stream)
{
    struct core_stream_spec *spec = &stream->spec;
    const uint32_t piece = profile->cpu.piece_bytes;
    uint32_t most = kind == 4 ? 256 : kind == 5 ? 64 * piece : 8 * piece;
    most = most < CORE_PACKET_BYTES_MAX ? most : CORE_PACKET_BYTES_MAX;
    spec->cipher =
        kind == 6 ? (enum core_cipher)test_random_in(random, 1, CORE_CIPHER_COUNT) : CORE_CIPHER_AES_128_CBC;
    spec->padding = CORE_PADDING_NONE;
    spec->packet_bytes = CORE_BLOCK_BYTES * (uint32_t)test_random_log(random, kind == 5 ? piece / 16 : 1,
                                                                      most / CORE_BLOCK_BYTES);
    spec->burst_packets =
        (uint32_t)(kind == 1 ? test_random_log(random, 1, 50) : test_random_log(random, 1, 3));
    int64_t pieces = (spec->packet_bytes + piece - 1) / piece;
    core_ns least_ns = 12 * US * pieces * spec->burst_packets;
    core_ns latency_ns = test_random_log(random, least_ns, 64 * least_ns);
    core_ns interval_ns = test_random_log(random, latency_ns / spec->burst_packets / 2 + 1,
                                          4 * latency_ns / spec->burst_packets + 2);
    if (kind == 2)
        interval_ns = latency_ns * test_random_log(random, 8, 64);
    if (kind == 3)
        interval_ns = latency_ns / test_random_log(random, 4, 32) + 12 * US * pieces;
    spec->latency_ns = latency_ns + profile->margins.in_ns + profile->margins.out_ns;
    spec->interval_ns = core_time_max(interval_ns, CORE_INTERVAL_NS_MIN);
    return spec->latency_ns <= CORE_LATENCY_NS_MAX && spec->interval_ns <= CORE_INTERVAL_NS_MAX &&
           spec->latency_ns >= CORE_LATENCY_NS_MIN &&
           perfmodel_cpu_task_from(spec, profile, &stream->task, NULL) == CORE_OK;
}

static void draw(struct test_random *random, enum size_class class, struct set *set)
{
    draw_profile(random, class, &set->profile);
    int kind = (int)test_random_in(random, 0, 7);
    int64_t burst = set->profile.cpu.burst_pieces, least = 2, most = STREAMS;
    if (class == FEW || class == SHIPPED)
        most = burst - 1;
    if (class == MANY)
        least = burst;
    set->count = (size_t)test_random_log(random, least, most > least ? most : least + 1);
    for (size_t i = 0; i < set->count; i++) {
        int own = kind == 7 || kind == 6 ? (int)test_random_in(random, 0, kind == 6 ? 6 : 5) : kind;
        while (!draw_stream(random, &set->profile, kind == 6 ? 6 : own, &set->streams[i])) {
        }
        if (class == ALIKE)
            set->streams[i] = set->streams[0];
    }
}

/* The same worker, so much slower. */
static struct config_profile slowed(const struct config_profile *profile, double by)
{
    struct config_profile slow = *profile;
    slow.cpu.per_piece_ns = (core_ns)((double)profile->cpu.per_piece_ns * by);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        slow.cpu.per_byte_fs[i] = (int64_t)((double)profile->cpu.per_byte_fs[i] * by);
        slow.cpu.lane_ns[i] = (core_ns)((double)profile->cpu.lane_ns[i] * by);
    }
    return slow;
}

static void price(struct set *set, const struct config_profile *profile)
{
    for (size_t i = 0; i < set->count; i++)
        assert_int_equal(perfmodel_cpu_task_from(&set->streams[i].spec, profile, &set->streams[i].task, NULL),
                         CORE_OK);
}

static bool accepted(struct set *set, double by)
{
    struct config_profile profile = slowed(&set->profile, by);
    struct perfmodel_demand *demand = NULL;
    assert_int_equal(perfmodel_demand_create(&demand, &profile), CORE_OK);
    price(set, &profile);
    for (size_t i = 0; i < set->count; i++)
        perfmodel_demand_add(demand, &set->streams[i].task);
    bool yes = perfmodel_demand_test(demand, NULL).accepted;
    perfmodel_demand_destroy(demand);
    return yes;
}

/* The load at which the test refuses, to half a per cent. 0: it refuses a worker 4,000 times as fast. */
static double brim_of(struct set *set)
{
    double low = 0x1p-12, high = 0x1p12;
    if (!accepted(set, low))
        return 0;
    while (high / low > 1.005) {
        double middle = sqrt(low * high);
        *(accepted(set, middle) ? &low : &high) = middle;
    }
    return low;
}

static bool survives(struct set *set, double by, const struct worker_attack *attack,
                     struct test_random *random)
{
    struct config_profile profile = slowed(&set->profile, by);
    price(set, &profile);
    struct worker_attack_result result = worker_attack_run(simulator_for(profile.cpu.burst_pieces), &profile,
                                                           set->streams, set->count, attack, random);
    return result.misses == 0;
}

static double share_at(struct set *set, double by)
{
    struct config_profile profile = slowed(&set->profile, by);
    double share = 0;
    price(set, &profile);
    for (size_t i = 0; i < set->count; i++)
        share += (double)perfmodel_cpu_utilisation_ppb(&set->streams[i].task) / 1e9;
    return share;
}

/* Of the test's brim and the first miss. */
static double ratio_of(struct set *set, double brim, const struct worker_attack *attack,
                       struct test_random *random)
{
    assert_true(survives(set, brim, attack, random));
    double low = brim, high = brim;
    do {
        low = high;
        high *= 1.25;
    } while (high < SLOWER_MOST * brim && survives(set, high, attack, random));
    for (int step = 0; step < 4; step++) {
        double middle = sqrt(low * high);
        *(survives(set, middle, attack, random) ? &low : &high) = middle;
    }
    return brim / high;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* p50 of the ratios. */
static double print_row(const char *name, const char *late, double *ratios, size_t count)
{
    assert_true(count > 0);
    qsort(ratios, count, sizeof *ratios, rising);
    printf("%-24s %-8s n %4zu  min %.2f  p10 %.2f  p50 %.2f  p90 %.2f  max %.3f\n", name, late, count,
           ratios[0], ratios[count / 10], ratios[count / 2], ratios[count * 9 / 10], ratios[count - 1]);
    return ratios[count / 2];
}

/* What is late: beyond its promise, or beyond the s after its release that keeps the room for its stream. */
enum { PROMISE, SPACED, LATES };
static const char *const late_names[LATES] = {"promise", "spaced"};

static double ratios[SIZE_CLASSES][LATES][SETS_MOST], full[LATES][SIZE_CLASSES * SETS_MOST];

/* False: the set is accepted by no worker. */
static bool measure(enum size_class class, uint64_t seed, struct worker_attack *attack, size_t at,
                    size_t *fulls)
{
    static struct set set;
    struct test_random random = {seed};
    draw(&random, class, &set);
    double brim = brim_of(&set);
    if (brim <= 0)
        return false;
    bool counts = class != ALIKE && share_at(&set, brim) >= 0.3;
    for (int late = 0; late < LATES; late++) {
        attack->spaced = late == SPACED;
        ratios[class][late][at] = ratio_of(&set, brim, attack, &random);
        if (counts)
            full[late][*fulls] = ratios[class][late][at];
    }
    *fulls += counts;
    return true;
}

static void test_ratios(void **state)
{
    (void)state;
    size_t fulls = 0, sets = (size_t)environment("MILLRACE_RATIO_SETS", 6);
    uint64_t seed = (uint64_t)environment("MILLRACE_RATIO_SEED", 1);
    struct worker_attack attack = {.victims = 4, .stop_at_miss = true};
    attack.climbs = (uint32_t)environment("MILLRACE_RATIO_CLIMBS", 40);
    sets = sets < SETS_MOST ? sets : SETS_MOST;
    for (int class = 0; class < SIZE_CLASSES; class ++) {
        size_t count = 0;
        for (size_t tries = 0; count < sets && tries < 4 * sets; tries++)
            count +=
                measure((enum size_class) class, seed * 1000003 + tries * SIZE_CLASSES + (uint64_t) class,
                        &attack, count, &fulls);
        for (int late = 0; late < LATES; late++)
            assert_true(print_row(class_names[class], late_names[late], ratios[class][late], count) > 0.3);
    }
    for (int late = 0; late < LATES; late++)
        (void)print_row("share >= 0.3 at the brim", late_names[late], full[late], fulls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ratios)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
