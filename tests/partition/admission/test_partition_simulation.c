/* What admission accepts, the worker keeps: random accepted sets in the virtual-time simulator, and how much
 * the tests give away.
 *
 * MILLRACE_SIMULATION_SETS sets the number of random sets (default 2,000; 400 under a sanitizer),
 * MILLRACE_SIMULATION_SEED the first seed, MILLRACE_SIMULATION_ROUNDS how often what is given away is
 * measured (default 1, at most 16). The figures of docs/results.md are of 20,000 sets and 2 rounds: five
 * minutes of a core. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perfmodel/demand.h"
#include "perfmodel/edf.h"
#include "tests/support/random.h"
#include "tests/support/share.h"
#include "tests/support/simulator.h"
#include "tests/support/units.h"

#define US CORE_NS_PER_US
#define MS CORE_NS_PER_MS

#define SETS_DEFAULT TEST_SHARE(2000)
#define ROUNDS_MAX   16

#define STREAMS_MAX 16384

static struct simulator_stream streams[STREAMS_MAX];
static struct perfmodel_cpu_task tasks[STREAMS_MAX]; /* of the streams, in the same order */

/* One simulator for each number of pieces per burst. */
static struct simulator *simulator_for(uint32_t burst_pieces)
{
    static struct simulator *simulators[129];
    if (simulators[burst_pieces] == NULL)
        simulators[burst_pieces] = simulator_create(burst_pieces);
    assert_non_null(simulators[burst_pieces]);
    return simulators[burst_pieces];
}

static int64_t environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

/* Random machines: any number of lanes and pieces, from 0.05 to 20 ns a byte, with and without margins. */
static struct config_profile random_profile(struct test_random *random)
{
    static const uint32_t lanes[] = {1, 1, 2, 4, 8};
    struct config_profile profile = {0};
    struct config_profile_cpu *cpu = &profile.cpu;
    cpu->lanes = lanes[test_random_in(random, 0, 4)];
    cpu->burst_pieces = cpu->lanes * (uint32_t)test_random_in(random, 1, 4);
    cpu->piece_bytes = CORE_BLOCK_BYTES * (uint32_t)test_random_log(random, 1, 512);
    cpu->per_piece_ns = test_random_log(random, 10, 4000);
    cpu->decrypt_more_percent = 15;
    cpu->queue_granularity_ns = 4096;
    int64_t per_byte_fs = test_random_log(random, 50000, 20000000);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        cpu->per_byte_fs[i] = per_byte_fs * (5 + i) / 5;
        /* Graham's bound has (1 - 1/lanes) of a piece alone, which takes `lanes` times its share */
        cpu->lane_ns[i] = test_random_in(
            random, 0, cpu->per_byte_fs[i] * cpu->piece_bytes / 1000000 * (cpu->lanes - 1) + 100);
    }
    profile.margins.percent = (uint32_t)test_random_in(random, 0, 20);
    profile.margins.in_ns = test_random_chance(random, 20) ? 0 : test_random_log(random, US, 400 * US);
    profile.margins.out_ns = test_random_log(random, US, 400 * US);
    return profile;
}

/* What the streams of a set have in common; lengths of time in bursts (q). */
struct flavour {
    uint32_t packet_bytes_most, burst_most;
    int64_t deadline_least, deadline_most; /* of one piece */
    bool one_cipher;
};

static struct flavour random_flavour(struct test_random *random, const struct config_profile *profile)
{
    static const uint32_t packets[] = {1, 1, 2, 6, 20};
    static const uint32_t bursts[] = {1, 1, 2, 5, 40};
    struct flavour flavour;
    flavour.packet_bytes_most = profile->cpu.piece_bytes * packets[test_random_in(random, 0, 4)];
    if (flavour.packet_bytes_most == profile->cpu.piece_bytes)
        flavour.packet_bytes_most -= CORE_BLOCK_BYTES - 1; /* one piece, padded too */
    flavour.burst_most = bursts[test_random_in(random, 0, 4)];
    flavour.deadline_least = test_random_in(random, 2, 4);
    flavour.deadline_most = flavour.deadline_least * test_random_log(random, 2, 100);
    flavour.one_cipher = test_random_chance(random, 50) != 0;
    return flavour;
}

static core_ns within(core_ns value_ns, core_ns least_ns, core_ns most_ns)
{
    if (value_ns < least_ns)
        return least_ns;
    return core_time_min(value_ns, most_ns);
}

/* A stream whose pieces have deadlines of the flavour's lengths; its interval is anywhere from far below to
 * far above its latency bound. */
static bool random_stream(struct test_random *random, const struct config_profile *profile,
                          const struct flavour *flavour, struct simulator_stream *stream)
{
    core_ns burst_ns = perfmodel_cpu_burst_ns(profile);
    struct core_stream_spec *spec = &stream->spec;
    *spec = (struct core_stream_spec){0}; /* the array is used again */
    spec->cipher = flavour->one_cipher ? CORE_CIPHER_AES_256_CBC
                                       : (enum core_cipher)test_random_in(random, 1, CORE_CIPHER_COUNT);
    spec->padding = test_random_chance(random, 50) ? CORE_PADDING_NONE : CORE_PADDING_PKCS7;
    spec->packet_bytes = (uint32_t)test_random_log(random, 1, flavour->packet_bytes_most);
    if (test_random_chance(random, 30))
        spec->packet_bytes = flavour->packet_bytes_most;
    struct test_random units = test_units_beside(random);
    if (test_random_chance(&units, 10))
        test_units_message(spec, &units);
    spec->burst_packets = (uint32_t)test_random_in(random, 1, flavour->burst_most);
    core_ns deadline_ns =
        4096 +
        burst_ns * test_random_log(random, 16 * flavour->deadline_least, 16 * flavour->deadline_most) / 16;
    core_ns pieces = spec->packet_bytes / profile->cpu.piece_bytes + 1;
    core_ns work_ns = deadline_ns * pieces * spec->burst_packets;
    core_ns latency_ns = work_ns + profile->margins.in_ns + profile->margins.out_ns;
    core_ns interval_ns = work_ns / spec->burst_packets / 4 * test_random_log(random, 2, 64);
    spec->latency_ns = within(latency_ns, CORE_LATENCY_NS_MIN, CORE_LATENCY_NS_MAX);
    spec->interval_ns = within(interval_ns, CORE_INTERVAL_NS_MIN, CORE_INTERVAL_NS_MAX);
    return perfmodel_cpu_task_from(spec, profile, &stream->task, NULL) == CORE_OK;
}

static bool exact_takes(const struct config_profile *profile, size_t count)
{
    struct perfmodel_cpu_mix mix = {0};
    for (size_t i = 0; i < count; i++)
        perfmodel_cpu_mix_add(&mix, profile->cpu.burst_pieces, &tasks[i]);
    return perfmodel_edf_test(tasks, count, perfmodel_cpu_surcharge_ns(profile, mix.ciphers),
                              2 * perfmodel_cpu_blocking_ns(profile, &mix))
        .accepted;
}

struct acceptor {
    bool exact; /* by QPA, not by the grid */
    const struct config_profile *profile;
    struct perfmodel_demand *grid;
};

static bool accepts(const struct acceptor *acceptor, size_t count, const struct perfmodel_cpu_task *task)
{
    if (!acceptor->exact)
        return perfmodel_demand_test(acceptor->grid, task).accepted;
    tasks[count] = *task;
    return exact_takes(acceptor->profile, count + 1);
}

/* Fills a worker with random streams until `refusals` were turned away. */
static size_t fill(struct test_random *random, const struct config_profile *profile,
                   const struct flavour *flavour, struct acceptor *acceptor, size_t most, int refusals)
{
    size_t count = 0;
    for (int tries = 0; count < most && refusals > 0 && tries < 2000; tries++) {
        if (!random_stream(random, profile, flavour, &streams[count]))
            continue;
        if (accepts(acceptor, count, &streams[count].task)) {
            tasks[count] = streams[count].task;
            perfmodel_demand_add(acceptor->grid, &tasks[count]);
            count++;
        } else {
            refusals--;
        }
    }
    return count;
}

/* Long enough for the tightest window, twice, and for every deadline. */
static core_ns window_of(const struct perfmodel_demand *grid, size_t count)
{
    core_ns window_ns;
    (void)perfmodel_demand_headroom_ppb(grid, &window_ns);
    window_ns = within(2 * window_ns, 0, 30 * CORE_NS_PER_S);
    for (size_t i = 0; i < count; i++) {
        core_ns burst_ns = streams[i].task.spacing_ns * streams[i].task.burst_packets;
        window_ns = core_time_max(burst_ns, window_ns);
    }
    return window_ns;
}

struct tally {
    uint64_t sets, streams, packets, pieces, bursts, left, came;
    uint64_t by_acceptor[2];
    uint64_t with_bursts, with_long_packets, with_mixed_ciphers, at_the_brim;
    core_ns least_slack_ns;
};

static void explain_miss(const struct config_profile *profile, size_t count,
                         const struct simulator_pattern *pattern, const struct simulator_result *result,
                         uint64_t seed)
{
    const struct perfmodel_cpu_task *task = &result->missed.task;
    print_error(
        "seed %llu: %llu misses (slack %lld ns) of %llu packets, %llu long bursts; arrivals %d%s sizes %d "
        "execution %d hand-over %d; %zu streams, B %u Q %u q %lld ns\n",
        (unsigned long long)seed, (unsigned long long)result->misses, (long long)result->least_slack_ns,
        (unsigned long long)result->packets, (unsigned long long)result->long_bursts, pattern->arrivals,
        pattern->succession ? " in succession" : "", pattern->sizes, pattern->execution, pattern->hand_over,
        count, profile->cpu.burst_pieces, profile->cpu.piece_bytes,
        (long long)perfmodel_cpu_burst_ns(profile));
    print_error("stream %zu: C %lld delta %lld s %lld t %lld m %u k %u\n", result->first_missed,
                (long long)task->cost_ns, (long long)task->deadline_ns, (long long)task->spacing_ns,
                (long long)task->interval_ns, task->pieces, task->burst_packets);
}

/* Every kind of arrivals at its most hostile, a mixture, and streams that follow each other. */
static void simulate(const struct config_profile *profile, size_t count, core_ns window_ns, uint64_t seed,
                     struct tally *tally)
{
    struct test_random random = {seed};
    const int kinds =
        SIMULATOR_ARRIVALS + 1 + (seed % 8 < 2); /* streams that follow others take their time */
    for (int kind = 0; kind < kinds; kind++) {
        struct simulator_pattern pattern = {.window_ns = window_ns, .pieces_max = 800, .seed = seed};
        pattern.arrivals = (enum simulator_arrivals)kind;
        pattern.succession = kind == SIMULATOR_ARRIVALS + 1;
        if (kind >= SIMULATOR_ARRIVALS)
            pattern.arrivals = (enum simulator_arrivals)test_random_in(&random, 0, SIMULATOR_ARRIVALS - 1);
        if (kind == SIMULATOR_ARRIVALS || kind == SIMULATOR_RANDOM) {
            pattern.sizes = (enum simulator_choice)test_random_in(&random, SIMULATOR_MOST, SIMULATOR_ANY);
            pattern.execution = (enum simulator_choice)test_random_in(&random, SIMULATOR_MOST, SIMULATOR_ANY);
            pattern.hand_over = (enum simulator_choice)test_random_in(&random, SIMULATOR_MOST, SIMULATOR_ANY);
        }
        struct simulator_result result =
            simulator_run(simulator_for(profile->cpu.burst_pieces), profile, streams, count, &pattern);
        if (result.misses > 0 || result.long_bursts > 0)
            explain_miss(profile, count, &pattern, &result, seed);
        assert_int_equal(result.misses, 0);
        assert_int_equal(result.long_bursts, 0);
        tally->packets += result.packets;
        tally->left += result.left;
        tally->came += result.came;
        tally->pieces += result.pieces;
        tally->bursts += result.bursts;
        if (result.least_slack_ns < tally->least_slack_ns)
            tally->least_slack_ns = result.least_slack_ns;
    }
}

static void tally_set(struct tally *tally, const struct acceptor *acceptor, size_t count, bool brim)
{
    bool bursts = false, long_packets = false, mixed = false;
    for (size_t i = 0; i < count; i++) {
        bursts = bursts || tasks[i].burst_packets > 1;
        long_packets = long_packets || tasks[i].pieces > 1;
        mixed = mixed || tasks[i].cipher != tasks[0].cipher;
    }
    tally->sets++;
    tally->streams += count;
    tally->by_acceptor[acceptor->exact]++;
    tally->with_bursts += bursts;
    tally->with_long_packets += long_packets;
    tally->with_mixed_ciphers += mixed;
    tally->at_the_brim += brim;
}

static void one_set(uint64_t seed, struct tally *tally)
{
    struct test_random random = {seed};
    struct config_profile profile = random_profile(&random);
    struct flavour flavour = random_flavour(&random, &profile);
    struct acceptor acceptor = {.exact = seed % 2 != 0, .profile = &profile};
    assert_int_equal(perfmodel_demand_create(&acceptor.grid, &profile), CORE_OK);
    bool brim = test_random_chance(&random, 80);
    size_t most = brim ? 150 : (size_t)test_random_in(&random, 1, 30);
    size_t count = fill(&random, &profile, &flavour, &acceptor, most, brim ? 6 : 2);
    if (count > 0) {
        simulate(&profile, count, window_of(acceptor.grid, count), seed, tally);
        tally_set(tally, &acceptor, count, brim && count < most);
    }
    perfmodel_demand_destroy(acceptor.grid);
}

static void test_no_miss(void **state)
{
    (void)state;
    struct tally tally = {.least_slack_ns = CORE_NS_NEVER};
    uint64_t sets = (uint64_t)environment("MILLRACE_SIMULATION_SETS", SETS_DEFAULT);
    uint64_t seed = (uint64_t)environment("MILLRACE_SIMULATION_SEED", 1);
    for (uint64_t end = seed + 2 * sets; tally.sets < sets && seed < end; seed++)
        one_set(seed, &tally);
    print_message(
        "%llu accepted sets (%llu by the grid, %llu by the exact test), %llu streams: with bursts %llu, "
        "long packets %llu, several ciphers %llu, filled to the brim %llu\n",
        (unsigned long long)tally.sets, (unsigned long long)tally.by_acceptor[0],
        (unsigned long long)tally.by_acceptor[1], (unsigned long long)tally.streams,
        (unsigned long long)tally.with_bursts, (unsigned long long)tally.with_long_packets,
        (unsigned long long)tally.with_mixed_ciphers, (unsigned long long)tally.at_the_brim);
    print_message(
        "%llu packets, %llu pieces, %llu bursts, %llu streams left and %llu came, no miss; least slack "
        "%lld ns\n",
        (unsigned long long)tally.packets, (unsigned long long)tally.pieces, (unsigned long long)tally.bursts,
        (unsigned long long)tally.left, (unsigned long long)tally.came, (long long)tally.least_slack_ns);
    assert_int_equal(tally.sets, sets);
}

/* How much is given away: a class of streams on the shipped profile, one stream after the other in random
 * order, until the grid, the exact test and the simulation first say no. */
struct stream_class {
    const char *name;
    uint32_t packet_bytes_least, packet_bytes_most, burst_least, burst_most;
    core_ns interval_least_ns, interval_most_ns, latency_least_ns, latency_most_ns;
    bool one_cipher;
};

static const struct stream_class classes[] = {
    {"1400 bytes, 20-100 ms", 1400, 1400, 1, 2, 3 * MS, 6 * MS, 20 * MS, 100 * MS, true},
    {"1400 bytes, 1-3 ms", 1400, 1400, 1, 1, 3 * MS, 6 * MS, 1 * MS, 3 * MS, true},
    {"1400 bytes, bursts of 8-16 in 5-20 ms", 1400, 1400, 8, 16, 3 * MS, 6 * MS, 5 * MS, 20 * MS, true},
    {"64-4096 bytes, all ciphers, 2-50 ms", 64, 4096, 1, 4, 3 * MS, 10 * MS, 2 * MS, 50 * MS, false},
    {"16-64 KiB, 20-100 ms", 16384, 65536, 1, 2, 20 * MS, 40 * MS, 20 * MS, 100 * MS, true},
};
#define CLASSES (sizeof classes / sizeof *classes)

static void class_draw(struct test_random *random, const struct stream_class *class,
                       const struct config_profile *profile)
{
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct core_stream_spec *spec = &streams[i].spec;
        spec->packet_bytes =
            (uint32_t)test_random_in(random, class->packet_bytes_least, class->packet_bytes_most);
        spec->burst_packets = (uint32_t)test_random_in(random, class->burst_least, class->burst_most);
        spec->interval_ns = test_random_in(random, class->interval_least_ns, class->interval_most_ns);
        spec->latency_ns = test_random_in(random, class->latency_least_ns, class->latency_most_ns);
        spec->cipher = class->one_cipher ? CORE_CIPHER_AES_128_CBC
                                         : (enum core_cipher)test_random_in(random, 1, CORE_CIPHER_COUNT);
        spec->padding = CORE_PADDING_PKCS7;
        assert_int_equal(perfmodel_cpu_task_from(spec, profile, &streams[i].task, NULL), CORE_OK);
        tasks[i] = streams[i].task;
    }
}

static bool grid_takes(const struct config_profile *profile, size_t count)
{
    struct perfmodel_demand *grid = NULL;
    assert_int_equal(perfmodel_demand_create(&grid, profile), CORE_OK);
    for (size_t i = 0; i < count; i++)
        perfmodel_demand_add(grid, &tasks[i]);
    bool accepted = perfmodel_demand_test(grid, NULL).accepted;
    perfmodel_demand_destroy(grid);
    return accepted;
}

/* No miss in any pattern with the largest packets and the longest bursts. */
static bool simulation_survives(const struct config_profile *profile, size_t count)
{
    for (int kind = 0; kind < SIMULATOR_ARRIVALS; kind++) {
        struct simulator_pattern pattern = {.arrivals = (enum simulator_arrivals)kind,
                                            .window_ns = 200 * MS,
                                            .pieces_max = 30 * count,
                                            .stop_at_miss = true,
                                            .seed = count};
        if (simulator_run(simulator_for(profile->cpu.burst_pieces), profile, streams, count, &pattern).misses)
            return false;
    }
    return true;
}

/* The largest number of streams that is taken, at least `from`. */
static size_t most_taken(bool (*takes)(const struct config_profile *, size_t),
                         const struct config_profile *profile, size_t from)
{
    size_t taken = from, refused = from;
    do {
        taken = refused;
        refused += 1 + refused / 8;
        assert_true(refused <= STREAMS_MAX);
    } while (takes(profile, refused));
    while (refused - taken > 1) {
        size_t middle = (taken + refused) / 2;
        if (takes(profile, middle))
            taken = middle;
        else
            refused = middle;
    }
    return taken;
}

/* Of the streams' own costs: the surcharge does not scale with what is sent. */
static double load_of(size_t count)
{
    double load = 0;
    for (size_t i = 0; i < count; i++)
        load += (double)perfmodel_cpu_utilisation_ppb(&tasks[i]) / 1e9;
    return load;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void given_away(const struct stream_class *class, const struct config_profile *profile, size_t rounds)
{
    double by_grid[ROUNDS_MAX], by_exact[ROUNDS_MAX], load = 0;
    for (size_t round = 0; round < rounds; round++) {
        struct test_random random = {1000 + round};
        class_draw(&random, class, profile);
        size_t grid = most_taken(grid_takes, profile, 0);
        size_t exact = most_taken(exact_takes, profile, grid);
        size_t survived = most_taken(simulation_survives, profile, exact);
        by_grid[round] = load_of(grid) / load_of(survived);
        by_exact[round] = load_of(exact) / load_of(survived);
        load += load_of(grid) / (double)rounds;
    }
    qsort(by_grid, rounds, sizeof *by_grid, compare);
    qsort(by_exact, rounds, sizeof *by_exact, compare);
    print_message(
        "%-38s load accepted %.3f; accepted / survived: grid median %.3f min %.3f, exact median %.3f min "
        "%.3f\n",
        class->name, load, by_grid[rounds / 2], by_grid[0], by_exact[rounds / 2], by_exact[0]);
}

static void test_given_away(void **state)
{
    (void)state;
    struct config_profile *profile = NULL;
    struct core_error error;
    core_status status =
        config_profile_load(MILLRACE_SOURCE_DIR "/config/profiles/cpu-only.yaml", &profile, &error);
    assert_int_equal(status, CORE_OK);
    const int64_t rounds = environment("MILLRACE_SIMULATION_ROUNDS", 1);
    assert_in_range(rounds, 1, ROUNDS_MAX);
    for (size_t i = 0; i < CLASSES; i++)
        given_away(&classes[i], profile, (size_t)rounds);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_miss),
        cmocka_unit_test(test_given_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
