/* Cost measurement against a simulated engine whose cost is known: list scheduling on a number of lanes, in
 * virtual time, so that the figures must come out right and the bound must hold. And once against each real
 * engine, where only what must be true of any figures is checked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "cpu/measure.h"
#include "tests/support/engine.h"

#define LANES        8
#define PER_PIECE_NS 40
/* Nanoseconds of one byte in one lane, by cipher - 1: the bound's c1 is an eighth. */
static const double lane_ns_per_byte[CORE_CIPHER_COUNT] = {1.0, 1.2, 1.4};

static double virtual_ns;
static uint32_t failures_left; /* calls until the engine fails; 0: never */
static uint64_t calls;
static double decrypt_times = 0.5; /* as long as encryption */

static core_status simulated_open(struct cpu_engine **engine, struct core_error *error)
{
    (void)error;
    *engine = NULL;
    return CORE_OK;
}

static void simulated_close(struct cpu_engine *engine)
{
    (void)engine;
}

static uint32_t simulated_lanes(const struct cpu_engine *engine)
{
    (void)engine;
    return LANES;
}

static core_status simulated_key_set(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                     enum core_direction direction, const uint8_t *key)
{
    (void)engine;
    (void)cipher;
    (void)direction;
    memcpy(key_state, key, 1);
    return CORE_OK;
}

static void simulated_key_wipe(void *key_state)
{
    memset(key_state, 0, 1);
}

static core_status simulated_encrypt(struct cpu_engine *engine, enum core_cipher cipher,
                                     struct cpu_piece *pieces, uint32_t count)
{
    (void)engine;
    double lanes[LANES] = {0}, longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = 0;
        for (uint32_t lane = 1; lane < LANES; lane++)
            first = lanes[lane] < lanes[first] ? lane : first;
        lanes[first] += pieces[i].bytes * lane_ns_per_byte[cipher - 1];
        longest = lanes[first] > longest ? lanes[first] : longest;
    }
    virtual_ns += longest + PER_PIECE_NS * count;
    calls++;
    /* every two hundredth call is disturbed, as a system would */
    virtual_ns += calls % 200 == 0 ? 500000 : 0;
    return failures_left > 0 && --failures_left == 0 ? CORE_SYSTEM : CORE_OK;
}

static core_status simulated_decrypt(struct cpu_engine *engine, enum core_cipher cipher,
                                     struct cpu_piece *pieces, uint32_t count)
{
    const double before_ns = virtual_ns;
    core_status status = simulated_encrypt(engine, cipher, pieces, count);
    virtual_ns = before_ns + (virtual_ns - before_ns) * decrypt_times;
    return status;
}

static const struct cpu_engine_ops simulated = {.name = "simulated",
                                                .key_state_bytes = 1,
                                                .open = simulated_open,
                                                .close = simulated_close,
                                                .lanes = simulated_lanes,
                                                .key_set = simulated_key_set,
                                                .key_wipe = simulated_key_wipe,
                                                .encrypt = simulated_encrypt,
                                                .decrypt = simulated_decrypt};

static core_ns virtual_clock(void *argument)
{
    (void)argument;
    return (core_ns)virtual_ns;
}

static struct cpu_measure_options simulated_options(void)
{
    return (struct cpu_measure_options){
        .ops = &simulated, .budget_ns = CORE_NS_PER_S, .clock = virtual_clock};
}

static void assert_near(double value, double expected, double tolerance)
{
    assert_true(value >= expected * (1 - tolerance));
    assert_true(value <= expected * (1 + tolerance));
}

static void test_figures_of_a_known_engine(void **state)
{
    (void)state;
    struct cpu_measure_options options = simulated_options();
    options.burst_pieces = 32;
    options.piece_bytes = 4096;
    struct cpu_measure_result result;
    struct core_error error;
    assert_int_equal(cpu_measure(&options, &result, &error), CORE_OK);
    assert_int_equal(result.cost.lanes, LANES);
    assert_int_equal(result.cost.burst_pieces, 32);
    assert_int_equal(result.cost.piece_bytes, 4096);
    assert_near(result.raised, 1, 0.03);
    assert_int_equal(result.cost.decrypt_more_percent, 0);
    assert_near((double)result.cost.per_piece_ns, PER_PIECE_NS, 0.1);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        assert_near((double)result.cost.per_byte_fs[i], lane_ns_per_byte[i] / LANES * 1e6, 0.05);
        assert_near((double)result.cost.lane_ns[i], lane_ns_per_byte[i] * 4096 * (LANES - 1) / LANES, 0.05);
    }
    assert_true(result.bursts >= 100);
    assert_true(result.over <= result.bursts / 100 + 1);
    assert_true(result.worst_ratio > 1); /* the disturbance is told, not believed */
    assert_true(result.bytes_per_s > 0);
    assert_near((double)result.burst_ns, 32 * (PER_PIECE_NS + 1.4 / LANES * 4096) + 3.6 * 4096 * 7 / 8, 0.05);
}

/* All pieces full, so that the bound is reached: what is slower by a quarter exceeds it by a quarter. */
static void test_decryption_that_is_slower(void **state)
{
    struct cpu_measure_options options = simulated_options();
    struct cpu_measure_result result;
    struct core_error error;
    (void)state;
    options.burst_pieces = 32;
    options.piece_bytes = 4096;
    decrypt_times = 1.25;
    assert_int_equal(cpu_measure(&options, &result, &error), CORE_OK);
    decrypt_times = 0.5;
    assert_in_range(result.cost.decrypt_more_percent, 20, 26);
}

/* Left to itself it takes a burst and a piece from its candidates, and none much slower than the best of
 * them. */
static void test_choice(void **state)
{
    (void)state;
    struct cpu_measure_options options = simulated_options();
    options.budget_ns = 200 * CORE_NS_PER_MS; /* of the virtual clock */
    struct cpu_measure_result chosen;
    assert_int_equal(cpu_measure(&options, &chosen, NULL), CORE_OK);
    assert_true(chosen.cost.burst_pieces % LANES == 0 && chosen.cost.burst_pieces <= 8 * LANES);
    for (uint32_t burst_pieces = LANES; burst_pieces <= 8 * LANES; burst_pieces *= 2) {
        for (uint32_t piece_bytes = 1024; piece_bytes <= 16384; piece_bytes *= 2) {
            struct cpu_measure_result other;
            options.burst_pieces = burst_pieces;
            options.piece_bytes = piece_bytes;
            assert_int_equal(cpu_measure(&options, &other, NULL), CORE_OK);
            assert_true((double)chosen.bytes_per_s > 0.9 * (double)other.bytes_per_s);
            bool better = (double)other.bytes_per_s > 1.05 * (double)chosen.bytes_per_s;
            assert_false(better && other.burst_ns < chosen.burst_ns);
        }
    }
}

static void test_bound(void **state)
{
    (void)state;
    struct cpu_cost cost = {
        .per_piece_ns = 10, .per_byte_fs = {1000000, 2000000, 500}, .lane_ns = {7, 70, 700}};
    static const enum core_cipher ciphers[] = {CORE_CIPHER_AES_128_CBC, CORE_CIPHER_AES_256_CBC,
                                               CORE_CIPHER_AES_128_CBC};
    static const uint32_t bytes[] = {16, 32, 64};
    assert_true(cpu_cost_bound_ns(&cost, ciphers, bytes, 1) == 10 + 16 + 7);
    assert_true(cpu_cost_bound_ns(&cost, ciphers, bytes, 2) == 20 + 17 + 707); /* 16,000 fs round up */
    assert_true(cpu_cost_bound_ns(&cost, ciphers, bytes, 3) == 30 + 81 + 707);
}

static void test_bad_options(void **state)
{
    (void)state;
    static const struct {
        uint32_t burst_pieces, piece_bytes;
        core_ns budget_ns;
        const char *told;
    } cases[] = {{0, 1000, CORE_NS_PER_S, "1000"}, {0, 16400, CORE_NS_PER_S, "16400"},
                 {0, 16, CORE_NS_PER_S, "16"},     {12, 0, CORE_NS_PER_S, "12"},
                 {136, 0, CORE_NS_PER_S, "136"},   {0, 0, CORE_NS_PER_MS, "too short"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cpu_measure_options options = simulated_options();
        struct cpu_measure_result result;
        struct core_error error;
        options.burst_pieces = cases[i].burst_pieces;
        options.piece_bytes = cases[i].piece_bytes;
        options.budget_ns = cases[i].budget_ns;
        assert_int_equal(cpu_measure(&options, &result, &error), CORE_INVALID);
        assert_non_null(strstr(error.text, cases[i].told));
    }
}

static void test_engine_failure(void **state)
{
    (void)state;
    struct cpu_measure_options options = simulated_options();
    struct cpu_measure_result result;
    struct core_error error;
    failures_left = 50;
    assert_int_equal(cpu_measure(&options, &result, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "simulated"));
    failures_left = 0;
}

static void test_real_engines(void **state)
{
    (void)state;
    for (const struct cpu_engine_ops *const *ops = cpu_engines; *ops != NULL; ops++) {
        struct cpu_measure_options options = {.ops = *ops, .budget_ns = 100 * CORE_NS_PER_MS};
        struct cpu_measure_result result;
        struct core_error error;
        if (!test_engine_works(*ops)) {
            assert_int_equal(cpu_measure(&options, &result, &error), CORE_UNSUPPORTED);
            continue;
        }
        assert_int_equal(cpu_measure(&options, &result, &error), CORE_OK);
        assert_true(result.cost.per_piece_ns > 0);
        assert_int_equal(result.cost.burst_pieces % result.cost.lanes, 0);
        assert_int_equal(result.cost.piece_bytes % CORE_BLOCK_BYTES, 0);
        for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
            assert_true(result.cost.per_byte_fs[i] > 0);
            assert_true(result.cost.lane_ns[i] >= 0);
        }
        assert_true(result.bytes_per_s > 0);
        assert_true(result.burst_ns > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures_of_a_known_engine),
        cmocka_unit_test(test_decryption_that_is_slower),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_engine_failure),
        cmocka_unit_test(test_real_engines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
