/* Room that is given back and promised again: an adversary who lets streams with long pieces leave just as
 * others have sent, and streams with short ones come that are due when those are.
 *
 * MILLRACE_LEAVERS sets how many streams leave (default 400; 100 under a sanitizer), MILLRACE_LEAVERS_SEED
 * the first seed: each is one search, uphill from a random place. 10,000 leavers take a quarter of an hour of
 * a core. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "partition/admission/unit_worker.h"
#include "tests/support/random.h"
#include "tests/support/share.h"
#include "tests/support/simulator.h"

#define US CORE_NS_PER_US

#define LEAVERS_DEFAULT TEST_SHARE(400)
#define STREAMS_MAX     4096
#define STEPS           30 /* of a search */
#define BURST_MOST      8

/* Whose streams leave, stand and come; how many of the first two there are at the most. */
struct scene {
    struct config_profile profile;
    struct core_stream_spec leaver, stander, request;
    size_t leavers, standers;
};

struct outcome {
    bool plays; /* leavers and standers have room together, and somebody came after */
    size_t standers;
    struct simulator_result result;
};

static struct simulator_stream streams[STREAMS_MAX];

static int64_t environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

static struct simulator *simulator_for(uint32_t burst_pieces)
{
    static struct simulator *simulators[129];
    if (simulators[burst_pieces] == NULL)
        simulators[burst_pieces] = simulator_create(burst_pieces);
    assert_non_null(simulators[burst_pieces]);
    return simulators[burst_pieces];
}

static size_t fill(struct partition_unit *worker, const struct scene *scene,
                   const struct core_stream_spec *spec, size_t from, size_t most)
{
    size_t count = from;
    const struct partition_demand demand = partition_demand_of(spec, &scene->profile);
    while (count < STREAMS_MAX && count - from < most && partition_unit_takes(worker, &demand)) {
        worker->ops->charge(worker, PARTITION_OWN, 0, NULL, &demand);
        streams[count].spec = *spec;
        streams[count].task = demand.task;
        count++;
    }
    return count;
}

static struct outcome play(const struct scene *scene)
{
    struct partition_unit *worker;
    assert_int_equal(partition_worker_create(&worker, &scene->profile, 0), CORE_OK);
    size_t leavers = fill(worker, scene, &scene->leaver, 0, scene->leavers);
    size_t count = fill(worker, scene, &scene->stander, leavers, scene->standers);
    worker->ops->destroy(worker);
    struct outcome outcome = {.standers = count - leavers};
    if (leavers < scene->leavers || count == leavers)
        return outcome;
    struct simulator_pattern pattern = {.arrivals = SIMULATOR_AFTER_LONG,
                                        .succession = true,
                                        .leavers = leavers,
                                        .request = &scene->request,
                                        .seed = 1};
    outcome.result = simulator_run(simulator_for(scene->profile.cpu.burst_pieces), &scene->profile, streams,
                                   count, &pattern);
    outcome.plays = outcome.result.came > 0;
    return outcome;
}

static void say(const struct scene *scene, const struct outcome *outcome)
{
    print_message("B %u, c0 %lld ns, c1 %lld fs/B, l %lld ns, in %lld ns: %zu of %u bytes leave, %zu of %u "
                  "bytes stand, d %lld ns, %llu of %u bytes come, d %lld ns: %llu late, slack %lld ns\n",
                  scene->profile.cpu.burst_pieces, (long long)scene->profile.cpu.per_piece_ns,
                  (long long)scene->profile.cpu.per_byte_fs[0], (long long)scene->profile.cpu.lane_ns[0],
                  (long long)scene->profile.margins.in_ns, scene->leavers, scene->leaver.packet_bytes,
                  outcome->standers, scene->stander.packet_bytes, (long long)scene->stander.latency_ns,
                  (unsigned long long)outcome->result.came, scene->request.packet_bytes,
                  (long long)scene->request.latency_ns, (unsigned long long)outcome->result.misses,
                  (long long)outcome->result.least_slack_ns);
}

static void no_miss(const struct scene *scene, const struct outcome *outcome)
{
    if (outcome->result.misses > 0)
        say(scene, outcome);
    assert_int_equal(outcome->result.misses, 0);
    assert_int_equal(outcome->result.long_bursts, 0);
}

static struct core_stream_spec contract(uint32_t bytes, core_ns latency_ns)
{
    return (struct core_stream_spec){.packet_bytes = bytes,
                                     .burst_packets = 1,
                                     .interval_ns = 30 * CORE_NS_PER_S,
                                     .latency_ns = latency_ns,
                                     .cipher = CORE_CIPHER_AES_128_CBC};
}

/* ---- constructed scenes ---- */

/* The burst that finishes the leaver's last packet is short, but others wait for its end. */
static void test_one_long_piece(void **state)
{
    (void)state;
    struct scene scene = {.leaver = contract(65520, 30 * CORE_NS_PER_S),
                          .stander = contract(12000, 340 * US),
                          .request = contract(12000, 340 * US - 65520),
                          .leavers = 1,
                          .standers = 6};
    scene.profile.cpu = (struct config_profile_cpu){
        .lanes = 1, .burst_pieces = 2, .piece_bytes = 65520, .queue_granularity_ns = 4096};
    scene.profile.cpu.per_byte_fs[0] = 1000000;
    scene.profile.io.limit_percent = 100;
    for (core_ns sooner_ns = 0; sooner_ns < 20 * US; sooner_ns += 500) {
        scene.request.latency_ns = 340 * US - 65520 - sooner_ns;
        struct outcome outcome = play(&scene);
        assert_true(outcome.plays);
        no_miss(&scene, &outcome);
    }
}

/* Of the shipped profile: all but one piece of a burst are of streams that leave. */
static void test_shipped_profile(void **state)
{
    (void)state;
    struct config_profile *profile = NULL;
    struct core_error error;
    assert_int_equal(
        config_profile_load(MILLRACE_SOURCE_DIR "/config/profiles/cpu-only.yaml", &profile, &error), CORE_OK);
    const core_ns margins_ns = profile->margins.in_ns + profile->margins.out_ns;
    const core_ns latency_ns = 650 * US * 16 / 15 + margins_ns;
    struct scene scene = {.profile = *profile, .leavers = 31, .standers = 1277};
    scene.leaver = contract(4096, 30 * CORE_NS_PER_S);
    scene.stander = contract(16, latency_ns);
    for (core_ns sooner_ns = 320 * US; sooner_ns <= 400 * US; sooner_ns += 10 * US) {
        scene.request = contract(16, latency_ns - sooner_ns);
        struct outcome outcome = play(&scene);
        assert_true(outcome.plays);
        no_miss(&scene, &outcome);
    }
    config_profile_free(profile);
}

/* ---- searches ---- */

static uint32_t any_bytes(struct test_random *random, int64_t most)
{
    return CORE_BLOCK_BYTES * (uint32_t)test_random_log(random, 1, most / CORE_BLOCK_BYTES);
}

static struct scene any_scene(struct test_random *random)
{
    struct scene scene = {.leavers = 1, .standers = 400};
    struct config_profile_cpu *cpu = &scene.profile.cpu;
    cpu->lanes = 1;
    cpu->burst_pieces = (uint32_t)test_random_in(random, 1, BURST_MOST);
    cpu->piece_bytes = any_bytes(random, 65520);
    cpu->per_piece_ns = test_random_log(random, 1, 1000);
    cpu->queue_granularity_ns = 4096;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        cpu->per_byte_fs[i] = test_random_log(random, 100000, 10000000);
        cpu->lane_ns[i] = test_random_log(random, 1, 20 * US);
    }
    scene.profile.io.limit_percent = 100;
    scene.profile.margins.in_ns = test_random_chance(random, 50) ? 0 : test_random_log(random, 1, 50 * US);
    scene.leaver = contract(cpu->piece_bytes, 30 * CORE_NS_PER_S);
    scene.stander =
        contract(any_bytes(random, cpu->piece_bytes), test_random_log(random, 20 * US, 5000 * US));
    scene.request = contract(any_bytes(random, cpu->piece_bytes), scene.stander.latency_ns);
    return scene;
}

static core_ns near(struct test_random *random, core_ns ns, core_ns least_ns)
{
    core_ns by_ns = ns / test_random_log(random, 2, 1000) + 1;
    ns += test_random_in(random, -by_ns, by_ns);
    return ns > least_ns ? ns : least_ns;
}

/* The scene with one thing changed. */
static struct scene like(struct test_random *random, struct scene scene)
{
    struct config_profile_cpu *cpu = &scene.profile.cpu;
    switch (test_random_in(random, 0, 6)) {
    case 0:
        scene.stander.latency_ns = near(random, scene.stander.latency_ns, CORE_LATENCY_NS_MIN);
        break;
    case 1:
    case 2:
        scene.request.latency_ns = near(random, scene.request.latency_ns, CORE_LATENCY_NS_MIN);
        break;
    case 3:
        scene.stander.packet_bytes = any_bytes(random, cpu->piece_bytes);
        break;
    case 4:
        scene.request.packet_bytes = any_bytes(random, cpu->piece_bytes);
        break;
    case 5:
        scene.leavers = (size_t)test_random_in(random, 1, cpu->burst_pieces);
        break;
    default:
        scene.request.packet_bytes = scene.stander.packet_bytes;
        scene.request.latency_ns = scene.stander.latency_ns;
    }
    return scene;
}

struct tally {
    uint64_t left, came, scenes;
    int64_t least_slack_ppb; /* of the bound that was nearest to be missed */
};

/* Uphill: towards what leaves the least slack. */
static void climb(uint64_t seed, struct tally *tally)
{
    struct test_random random = {seed};
    struct scene best = any_scene(&random);
    int64_t best_ppb = INT64_MAX;
    for (int step = 0; step < STEPS; step++) {
        struct scene scene = step == 0 ? best : like(&random, best);
        struct outcome outcome = play(&scene);
        if (!outcome.plays)
            continue;
        if (outcome.result.misses > 0)
            print_message("seed %llu: ", (unsigned long long)seed);
        no_miss(&scene, &outcome);
        int64_t ppb = outcome.result.least_slack_ns * 1000000 / (scene.stander.latency_ns / 1000);
        tally->left += outcome.result.left;
        tally->came += outcome.result.came;
        tally->scenes++;
        if (ppb > best_ppb)
            continue;
        best = scene;
        best_ppb = ppb;
    }
    tally->least_slack_ppb = best_ppb < tally->least_slack_ppb ? best_ppb : tally->least_slack_ppb;
}

/* A stream's packet waits through the leaver's last burst, and its next two come while another one, which has
 * as little time as its test lets it, is encrypted beside who comes: that a packet is there no longer than
 * its pieces take bursts of those who stay is not so, and the test by packets must not build on it. Refused,
 * or kept; a test that took this for granted took 15.5 ms, and missed by 1 ms. */
static void test_waited_through_the_last_burst(void **state)
{
    static const core_ns given_ns[] = {0, 1, 4900 * US};
    static const bool early[] = {false, true, false};
    struct core_stream_spec request = {
        60 * 4096,          1, 1000000 * US, 1000000 * US, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE,
        .guaranteed = false};
    struct core_stream_spec specs[] = {
        {4096, 1, 1000000 * US, 1000000 * US, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE,
         .guaranteed = false},
        {4096, 1, 10000 * US, 10000 * US, CORE_CIPHER_AES_192_CBC, CORE_PADDING_NONE, .guaranteed = false},
        {75 * 4096, 1, 1000000 * US, 0, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE, .guaranteed = false}};
    struct config_profile profile = {
        .cpu = {.lanes = 1, .burst_pieces = 8, .piece_bytes = 4096, .queue_granularity_ns = 4096},
        .io = {.limit_percent = 100}};
    static const int64_t piece_us[] = {100, 1000, 4900};
    (void)state;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        profile.cpu.per_byte_fs[i] = piece_us[i] * 1000000000 / 4096;
    for (core_ns latency_us = 15000; latency_us < 22000; latency_us += 50) {
        struct partition_unit *worker;
        bool all = true;
        assert_int_equal(partition_worker_create(&worker, &profile, 0), CORE_OK);
        specs[2].latency_ns = latency_us * US;
        for (int i = 0; i < 3; i++) {
            const struct partition_demand demand = partition_demand_of(&specs[i], &profile);
            streams[i].spec = specs[i];
            streams[i].task = demand.task;
            all = all && partition_unit_takes(worker, &demand);
            if (all)
                worker->ops->charge(worker, PARTITION_OWN, 0, NULL, &demand);
        }
        worker->ops->destroy(worker);
        if (!all)
            continue;
        struct simulator_pattern pattern = {.arrivals = SIMULATOR_GIVEN,
                                            .succession = true,
                                            .leavers = 1,
                                            .request = &request,
                                            .given_ns = given_ns,
                                            .early = early,
                                            .window_ns = 30000 * US,
                                            .pieces_max = 100000,
                                            .seed = 1};
        struct simulator_result result = simulator_run(simulator_for(8), &profile, streams, 3, &pattern);
        assert_int_equal(result.misses, 0);
    }
}

static void test_searches(void **state)
{
    (void)state;
    struct tally tally = {.least_slack_ppb = INT64_MAX};
    uint64_t leavers = (uint64_t)environment("MILLRACE_LEAVERS", LEAVERS_DEFAULT);
    uint64_t seed = (uint64_t)environment("MILLRACE_LEAVERS_SEED", 1);
    while (tally.left < leavers)
        climb(seed++, &tally);
    print_message(
        "%llu streams left in %llu scenes and %llu came, up to seed %llu: no miss, least slack %.3f %% "
        "of the latency bound\n",
        (unsigned long long)tally.left, (unsigned long long)tally.scenes, (unsigned long long)tally.came,
        (unsigned long long)seed - 1, (double)tally.least_slack_ppb / 1e7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_long_piece),
        cmocka_unit_test(test_shipped_profile),
        cmocka_unit_test(test_waited_through_the_last_burst),
        cmocka_unit_test(test_searches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
