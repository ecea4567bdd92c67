/* Fleets in virtual time: the same each time; with what must be where the answer is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/fleet.h"

#include <string.h>

#define NODES   6
#define STREAMS 8000

static struct bench_fleet_mix mix;

static int open_mix(void **state)
{
    struct core_error error;
    (void)state;
    return bench_fleet_mix_open(&mix, 1, &error) != CORE_OK;
}

static int close_mix(void **state)
{
    (void)state;
    bench_fleet_mix_free(&mix);
    return 0;
}

static struct bench_fleet_result run(double load, unsigned attempts, double weights_s)
{
    const struct bench_fleet_run fleet = {.nodes = NODES,
                                          .streams = STREAMS,
                                          .load = load,
                                          .attempts = attempts,
                                          .weight_every_ns = (core_ns)(weights_s * 1e9),
                                          .seed = 7};
    struct bench_fleet_result result;
    struct core_error error;
    if (bench_fleet_run(&fleet, &mix, &result, &error) != CORE_OK)
        fail_msg("%s", error.text);
    assert_true(result.asked > STREAMS / 20);
    return result;
}

static void the_mix_is_what_was_asked_for(void **state)
{
    (void)state;
    assert_true(mix.capacity > 0.5 && mix.capacity < 1);
    assert_in_range((int)mix.streams, 100, 200);
    assert_in_range(mix.typical_streams, 80, 200);
}

static void the_same_seed_gives_the_same_figures(void **state)
{
    (void)state;
    const struct bench_fleet_result one = run(0.9, 3, 2), other = run(0.9, 3, 2);
    assert_memory_equal(&one, &other, sizeof one);
}

static void where_there_is_room_nobody_is_refused(void **state)
{
    (void)state;
    const struct bench_fleet_result planner = run(0.4, 0, 2), weighted = run(0.4, 3, 2);
    assert_int_equal(planner.refused, 0);
    assert_int_equal(planner.attempts, planner.asked);
    assert_int_equal(weighted.refused, 0);
    assert_true(planner.reached > 0.35 && planner.reached < 0.45);
    assert_true(planner.fullest < weighted.fullest);
    assert_true(weighted.lost > 0);
    assert_int_equal(weighted.homeless, 0);
    assert_true(weighted.half_ms >= 1 && weighted.last_ms < 10000);
    assert_true(weighted.half_ms <= weighted.most_ms && weighted.most_ms <= weighted.last_ms);
}

/* Twice what there is room for: half is refused at least, and no placement gets beyond the capacity. */
static void what_is_too_much_is_refused(void **state)
{
    (void)state;
    const struct bench_fleet_result planner = run(2, 0, 2), weighted = run(2, 3, 2);
    assert_true(planner.refused > planner.asked / 5 && planner.refused < planner.asked * 3 / 5);
    assert_true(planner.reached > 0.9 &&
                planner.reached < 1.25); /* small ones fit beyond the first refusal */
    assert_true(weighted.reached < planner.reached);
}

static void each_retry_gains(void **state)
{
    (void)state;
    uint64_t refused[4];
    for (unsigned attempts = 0; attempts < 4; attempts++)
        refused[attempts] = run(1, attempts, 2).refused;
    assert_true(refused[1] > refused[2] && refused[2] > refused[3] && refused[3] > 0);
    assert_true(refused[3] > refused[0]);
}

/* Read once a thousand seconds they are of the beginning, and as good as none. */
static void weights_that_are_read_gain(void **state)
{
    (void)state;
    const struct bench_fleet_result weighted = run(0.9, 1, 2), drawn = run(0.9, 1, 1000);
    assert_true(weighted.refused < drawn.refused * 3 / 4);
    assert_true(weighted.fullest < drawn.fullest - 0.02);
    assert_true(weighted.half_ms < 10 && weighted.last_ms > 75); /* the last one behind a pause */
}

/* The load of six nodes on five. */
static void a_loss_beyond_the_room_is_told(void **state)
{
    (void)state;
    const struct bench_fleet_result result = run(1, 3, 2);
    assert_true(result.homeless > 0 && result.homeless <= result.lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mix_is_what_was_asked_for),
        cmocka_unit_test(the_same_seed_gives_the_same_figures),
        cmocka_unit_test(where_there_is_room_nobody_is_refused),
        cmocka_unit_test(what_is_too_much_is_refused),
        cmocka_unit_test(each_retry_gains),
        cmocka_unit_test(weights_that_are_read_gain),
        cmocka_unit_test(a_loss_beyond_the_room_is_told),
    };
    return cmocka_run_group_tests(tests, open_mix, close_mix);
}
