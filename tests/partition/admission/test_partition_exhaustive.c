/* What the admission accepts, a worker keeps, whatever comes: small contracts at the brim, through every
 * sequence of arrivals and every length of bursts on a grid of time (tests/support/exhaustive.h).
 *
 * MILLRACE_EXHAUSTIVE_CASES sets the number of drawn cases of each kind (default 30; 4 under a sanitizer),
 * MILLRACE_EXHAUSTIVE_SEED the first seed, MILLRACE_EXHAUSTIVE_STATES how many states of a case are looked at
 * (default 10,000; a case with fewer is complete: then no endless sequence on its grid is left). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/admission.h"
#include "tests/support/exhaustive.h"
#include "tests/support/random.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CASES_DEFAULT 4
#else
#define CASES_DEFAULT 30
#endif
#define STATES_DEFAULT 10000
#define STATES_FIXED   200000 /* enough for all of the constructed cases */
#define BURST_MOST     4
#define TICKS_MOST     400 /* of a latency bound */

/* A case that is drawn, and what it is drawn from. */
struct drawn {
    struct test_random random;
    struct config_profile profile;
    struct admission *admission;
    struct exhaustive_stream streams[EXHAUSTIVE_STREAMS];
    uint32_t first; /* number of the first stream */
    struct exhaustive_case run;
};

struct tally {
    uint64_t cases, complete, streams, with_bursts, with_long_packets, states, steps;
    uint32_t ticks_most;
};

static int64_t environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

static int64_t one_of(struct test_random *random, const int64_t *values, size_t count)
{
    return values[test_random_in(random, 0, (int64_t)count - 1)];
}
#define ONE_OF(random, ...)                                                                                  \
    one_of(random, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* A block of 16 bytes takes a tick, and all else whole ticks. */
static void draw_profile(struct drawn *drawn)
{
    struct test_random *random = &drawn->random;
    const core_ns tick_ns = ONE_OF(random, 2048, 4096, 16384, 65536);
    struct config_profile_cpu *cpu = &drawn->profile.cpu;
    cpu->lanes = 1;
    cpu->burst_pieces = (uint32_t)test_random_in(random, 1, BURST_MOST);
    cpu->piece_bytes = CORE_BLOCK_BYTES * (uint32_t)ONE_OF(random, 1, 2, 4, 6);
    cpu->per_piece_ns = tick_ns * ONE_OF(random, 0, 0, 1);
    cpu->decrypt_more_percent = 15;
    cpu->queue_granularity_ns = 4096;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        cpu->per_byte_fs[i] = tick_ns * 1000000 / CORE_BLOCK_BYTES;
        cpu->lane_ns[i] = tick_ns * ONE_OF(random, 0, 0, 1);
    }
    drawn->profile.io.limit_percent = 100;
    drawn->profile.margins.in_ns = 1 + tick_ns * ONE_OF(random, 0, 0, 1);
    drawn->profile.margins.out_ns = 7;
    drawn->run.tick_ns = tick_ns;
    drawn->run.phase_ns = ONE_OF(random, 0, 1, 4095);
}

static bool accepted(const struct drawn *drawn, const struct core_stream_spec *spec)
{
    return test_admission_query(drawn->admission, spec, false).accepted;
}

/* The brim: the shortest latency bound that the worker takes; 0: none. */
static core_ns shortest_ns(const struct drawn *drawn, const struct core_stream_spec *of)
{
    struct core_stream_spec spec = *of;
    core_ns low_ns = CORE_LATENCY_NS_MIN - 1, high_ns = TICKS_MOST * drawn->run.tick_ns;
    while (high_ns - low_ns > 1) {
        spec.latency_ns = (low_ns + high_ns) / 2;
        *(accepted(drawn, &spec) ? &high_ns : &low_ns) = spec.latency_ns;
    }
    return high_ns < TICKS_MOST * drawn->run.tick_ns ? high_ns : 0;
}

static void put(struct drawn *drawn, const struct core_stream_spec *spec, enum exhaustive_role role)
{
    struct exhaustive_stream *stream = &drawn->streams[drawn->run.count];
    struct admission_placement placement = test_admission_admit(drawn->admission, spec, 0);
    assert_true(placement.accepted);
    if (drawn->run.count++ == 0)
        drawn->first = placement.stream;
    *stream = (struct exhaustive_stream){.spec = *spec, .task = placement.task, .role = role};
}

static struct core_stream_spec draw_spec(struct drawn *drawn, int64_t blocks_most, int64_t burst_most)
{
    struct test_random *random = &drawn->random;
    int64_t blocks = test_random_in(random, 1, blocks_most);
    int64_t interval = (blocks + 1) * ONE_OF(random, 3, 4, 6, 10, 20) + test_random_in(random, 0, 2);
    return (struct core_stream_spec){.packet_bytes = (uint32_t)blocks * CORE_BLOCK_BYTES,
                                     .burst_packets = (uint32_t)test_random_in(random, 1, burst_most),
                                     .interval_ns = interval * drawn->run.tick_ns,
                                     .latency_ns = CORE_LATENCY_NS_MAX,
                                     .cipher = (enum core_cipher)test_random_in(random, 1, 2)};
}

/* Two streams that stand, without an end to what they send; or three or four that send a burst and a packet.
 */
static bool draw_standing(struct drawn *drawn)
{
    struct test_random *random = &drawn->random;
    int64_t count = test_random_in(random, 2, 4);
    for (int64_t i = 0; i < count; i++) {
        struct core_stream_spec spec = draw_spec(drawn, 4, 2);
        spec.latency_ns = shortest_ns(drawn, &spec);
        if (spec.latency_ns == 0)
            return false;
        spec.latency_ns += drawn->run.tick_ns * ONE_OF(random, 0, 0, 0, 1, 4);
        put(drawn, &spec, EXHAUSTIVE_STANDS);
        drawn->streams[i].packets = count > 2 ? spec.burst_packets + 1 : 0;
    }
    drawn->run.short_packets = test_random_chance(random, 30);
    drawn->run.short_bursts = test_random_chance(random, 30);
    drawn->run.early_ns = drawn->run.tick_ns * ONE_OF(random, 0, 0, 1);
    return true;
}

/* One with a long piece that leaves, alike ones with short pieces that stand, and others just like them, but
 * due when those are that were sent as the long piece was begun, as many as find room once it is done. Each
 * sends once: so many burst at once as there are. */
struct leaving {
    uint32_t leaver_blocks, blocks, stand;
    core_ns later_ns; /* what the new streams have more */
};

static bool put_leaving(struct drawn *drawn, const struct leaving *leaving)
{
    const core_ns tick_ns = drawn->run.tick_ns;
    struct core_stream_spec spec = {.packet_bytes = leaving->leaver_blocks * CORE_BLOCK_BYTES,
                                    .burst_packets = 1,
                                    .interval_ns = 1000 * tick_ns,
                                    .latency_ns = TICKS_MOST * tick_ns,
                                    .cipher = CORE_CIPHER_AES_128_CBC};
    if (!accepted(drawn, &spec))
        return false;
    put(drawn, &spec, EXHAUSTIVE_LEAVES);
    spec.packet_bytes = leaving->blocks * CORE_BLOCK_BYTES;
    spec.latency_ns = shortest_ns(drawn, &spec) + (leaving->stand - 1) * leaving->blocks * tick_ns;
    for (uint32_t i = 0; i < leaving->stand && accepted(drawn, &spec); i++)
        put(drawn, &spec, EXHAUSTIVE_STANDS);
    admission_release(drawn->admission, drawn->first);
    spec.latency_ns += leaving->later_ns - leaving->leaver_blocks * tick_ns;
    while (drawn->run.count < EXHAUSTIVE_STREAMS && spec.latency_ns >= CORE_LATENCY_NS_MIN &&
           accepted(drawn, &spec))
        put(drawn, &spec, EXHAUSTIVE_COMES);
    for (size_t i = 0; i < drawn->run.count; i++)
        drawn->streams[i].packets = 1;
    return drawn->streams[drawn->run.count - 1].role == EXHAUSTIVE_COMES;
}

static bool draw_leaving(struct drawn *drawn)
{
    struct test_random *random = &drawn->random;
    const struct leaving leaving = {.leaver_blocks = (uint32_t)test_random_in(random, 3, 6),
                                    .blocks = (uint32_t)ONE_OF(random, 1, 1, 2),
                                    .stand = (uint32_t)test_random_in(random, 1, 4),
                                    .later_ns = drawn->run.tick_ns * ONE_OF(random, -1, 0, 0, 1)};
    drawn->run.short_bursts = test_random_chance(random, 20);
    return put_leaving(drawn, &leaving);
}

/* The shortest latency bound that there is room for, and now and then some ticks more. */
static bool put_at_brim(struct drawn *drawn, enum exhaustive_role role, uint32_t more)
{
    struct core_stream_spec spec = draw_spec(drawn, 5, 2);
    spec.latency_ns = shortest_ns(drawn, &spec);
    if (spec.latency_ns == 0)
        return false;
    spec.latency_ns += drawn->run.tick_ns * ONE_OF(&drawn->random, 0, 0, 1, 4);
    put(drawn, &spec, role);
    drawn->streams[drawn->run.count - 1].packets = spec.burst_packets + more;
    return true;
}

/* Whatever leaves, stands and comes, and the room of the one is all the other has. */
static bool draw_any_leaving(struct drawn *drawn)
{
    struct test_random *random = &drawn->random;
    int64_t stand = test_random_in(random, 1, 2), come = test_random_in(random, 1, 2);
    if (!put_at_brim(drawn, EXHAUSTIVE_LEAVES, 0))
        return false;
    for (int64_t i = 0; i < stand; i++)
        if (!put_at_brim(drawn, EXHAUSTIVE_STANDS, (uint32_t)test_random_in(random, 0, 1)))
            return false;
    admission_release(drawn->admission, drawn->first);
    for (int64_t i = 0; i < come; i++)
        if (!put_at_brim(drawn, EXHAUSTIVE_COMES, 0))
            return false;
    drawn->run.short_bursts = test_random_chance(random, 20);
    drawn->run.short_packets = test_random_chance(random, 10);
    return true;
}

static struct exhaustive_result run(struct drawn *drawn)
{
    static struct exhaustive *searches[BURST_MOST + 1];
    struct exhaustive **search = &searches[drawn->profile.cpu.burst_pieces];
    int64_t states = environment("MILLRACE_EXHAUSTIVE_STATES", STATES_DEFAULT);
    drawn->run.profile = &drawn->profile;
    drawn->run.streams = drawn->streams;
    if (drawn->run.states_max == 0)
        drawn->run.states_max = (uint32_t)states;
    if (*search == NULL)
        *search = exhaustive_create(drawn->profile.cpu.burst_pieces,
                                    (uint32_t)(states > STATES_FIXED ? states : STATES_FIXED));
    assert_non_null(*search);
    return exhaustive_run(*search, &drawn->run);
}

static void say(const struct drawn *drawn, const struct exhaustive_result *result)
{
    const struct config_profile *profile = &drawn->profile;
    static const char *const roles[] = {"stands", "leaves", "comes"};
    print_message("B %u, pieces of %u bytes, %lld ns each, tick %lld ns, in_ns %lld:\n",
                  profile->cpu.burst_pieces, profile->cpu.piece_bytes, (long long)profile->cpu.per_piece_ns,
                  (long long)drawn->run.tick_ns, (long long)profile->margins.in_ns);
    for (size_t i = 0; i < drawn->run.count; i++) {
        const struct core_stream_spec *spec = &drawn->streams[i].spec;
        print_message("%zu %s: %u bytes, k %u, t %lld, d %lld ns\n", i, roles[drawn->streams[i].role],
                      spec->packet_bytes, spec->burst_packets, (long long)spec->interval_ns,
                      (long long)spec->latency_ns);
    }
    print_message("%s%lld ns late\n", result->how, (long long)result->late_ns);
}

static void count(struct tally *tally, const struct drawn *drawn, const struct exhaustive_result *result)
{
    bool bursts = false, long_packets = false;
    for (size_t i = 0; i < drawn->run.count; i++) {
        bursts = bursts || drawn->streams[i].task.burst_packets > 1;
        long_packets = long_packets || drawn->streams[i].task.pieces > 1;
    }
    tally->cases++;
    tally->complete += result->complete;
    tally->streams += drawn->run.count;
    tally->with_bursts += bursts;
    tally->with_long_packets += long_packets;
    tally->states += result->states;
    tally->steps += result->steps;
    tally->ticks_most = result->ticks > tally->ticks_most ? result->ticks : tally->ticks_most;
}

static void say_all(const struct tally *tally)
{
    print_message(
        "%llu cases with %llu streams (with bursts %llu, long packets %llu), %llu of them complete: "
        "%llu states, up to %u ticks away, %llu ways from one to the next, no miss\n",
        (unsigned long long)tally->cases, (unsigned long long)tally->streams,
        (unsigned long long)tally->with_bursts, (unsigned long long)tally->with_long_packets,
        (unsigned long long)tally->complete, (unsigned long long)tally->states, tally->ticks_most,
        (unsigned long long)tally->steps);
}

static void begin(struct drawn *drawn)
{
    drawn->admission = test_admission_of(&drawn->profile, 1, 1);
}

static void no_miss(struct drawn *drawn, struct tally *tally)
{
    struct exhaustive_result result = run(drawn);
    if (result.missed)
        say(drawn, &result);
    assert_false(result.missed);
    count(tally, drawn, &result);
}

static void draw_all(bool (*draw)(struct drawn *), uint32_t piece_bytes)
{
    struct tally tally = {0};
    uint64_t seed = (uint64_t)environment("MILLRACE_EXHAUSTIVE_SEED", 1);
    uint64_t cases = (uint64_t)environment("MILLRACE_EXHAUSTIVE_CASES", CASES_DEFAULT);
    for (uint64_t end = seed + 100 * cases; tally.cases < cases && seed < end; seed++) {
        struct drawn drawn = {.random = {seed}};
        draw_profile(&drawn);
        if (piece_bytes > 0)
            drawn.profile.cpu.piece_bytes = piece_bytes;
        begin(&drawn);
        if (draw(&drawn))
            no_miss(&drawn, &tally);
        admission_destroy(drawn.admission);
    }
    assert_int_equal(tally.cases, cases);
    say_all(&tally);
}

static void test_streams_that_stand(void **state)
{
    (void)state;
    draw_all(draw_standing, 0);
}

static void test_streams_that_leave(void **state)
{
    (void)state;
    draw_all(draw_any_leaving, 0);
}

static void test_long_pieces_that_leave(void **state)
{
    (void)state;
    draw_all(draw_leaving, 6 * CORE_BLOCK_BYTES);
}

/* Bursts of one piece: what was sent as the leaver's long piece was begun, and what comes once it is done, is
 * more than was promised unless another pause parts them. */
static void begin_constructed(struct drawn *drawn)
{
    *drawn = (struct drawn){.run.tick_ns = 65536, .run.states_max = STATES_FIXED};
    drawn->profile.cpu = (struct config_profile_cpu){
        .lanes = 1, .burst_pieces = 1, .piece_bytes = 6 * CORE_BLOCK_BYTES, .queue_granularity_ns = 4096};
    drawn->profile.cpu.per_byte_fs[0] = INT64_C(65536) * 1000000 / CORE_BLOCK_BYTES;
    drawn->profile.io.limit_percent = 100;
    drawn->profile.margins.in_ns = 1;
    begin(drawn);
}

static void test_a_burst_is_no_pause_for_its_own_packets(void **state)
{
    (void)state;
    struct tally tally = {0};
    static const struct leaving cases[] = {{5, 1, 3, 0}, {4, 1, 3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct drawn drawn;
        begin_constructed(&drawn);
        assert_true(put_leaving(&drawn, &cases[i]));
        no_miss(&drawn, &tally);
        admission_destroy(drawn.admission);
    }
    say_all(&tally);
}

/* Does a packet miss, with any number of streams that stand? */
static bool any_miss(uint32_t leaver_blocks, bool at_once, core_ns left_ns)
{
    bool missed = false;
    for (uint32_t stand = 1; stand <= 3 && !missed; stand++) {
        struct drawn drawn;
        begin_constructed(&drawn);
        if (put_leaving(&drawn, &(struct leaving){leaver_blocks, 1, stand, 0})) {
            drawn.run.at_once = at_once;
            if (left_ns > 0)
                drawn.streams[1].spec.latency_ns = left_ns;
            missed = run(&drawn).missed;
        }
        admission_destroy(drawn.admission);
    }
    return missed;
}

/* The search tells: room that is given away at once, and a bound that is shorter than any brim. */
static void test_broken_promises_are_found(void **state)
{
    (void)state;
    assert_true(any_miss(4, true, 0) || any_miss(5, true, 0));
    assert_true(any_miss(5, false, INT64_C(5) * 65536)); /* it may wait for as long, and takes time itself */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_that_stand),
        cmocka_unit_test(test_streams_that_leave),
        cmocka_unit_test(test_long_pieces_that_leave),
        cmocka_unit_test(test_a_burst_is_no_pause_for_its_own_packets),
        cmocka_unit_test(test_broken_promises_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
