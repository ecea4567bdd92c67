/* Pauses of a card's stages, by times that are told wrong by as much as they may be: none may be told that was
 * none, since capacity is given out again for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/gpu/pauses.h"
#include "tests/support/random.h"

#define BATCHES 200000

struct card {
    struct test_random random;
    core_ns free_ns[GPU_STAGE_COUNT]; /* true end of the last batch */
    uint64_t idle_before[GPU_STAGE_COUNT];
    core_ns now_ns, uncertain_most_ns;
    struct gpu_stage_time told[GPU_STAGE_COUNT];
    core_ns uncertain_ns;
};

/* A batch comes now: what it does in truth, and what is told, all of it shifted alike. */
static void run_batch(struct card *card, uint64_t number)
{
    core_ns came_ns = card->now_ns;
    card->uncertain_ns = test_random_in(&card->random, 0, card->uncertain_most_ns);
    const core_ns shift_ns = test_random_chance(&card->random, 50)
                                 ? (test_random_chance(&card->random, 50) ? 1 : -1) * card->uncertain_ns
                                 : test_random_in(&card->random, -card->uncertain_ns, card->uncertain_ns);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        if (card->free_ns[stage] < came_ns)
            card->idle_before[stage] = number;
        const core_ns start_ns = core_time_max(came_ns, card->free_ns[stage]);
        came_ns = card->free_ns[stage] = start_ns + test_random_log(&card->random, 1000, 200000);
        card->told[stage] = (struct gpu_stage_time){start_ns + shift_ns, came_ns + shift_ns};
    }
}

static void no_pause_is_told_that_was_none(void **state)
{
    (void)state;
    struct card card = {.random = {7}, .now_ns = CORE_NS_PER_S, .uncertain_most_ns = 60000};
    struct server_gpu_pauses pauses = {0};
    uint64_t told[GPU_STAGE_COUNT] = {0}, true_pauses = 0, told_pauses = 0;
    for (uint64_t number = 1; number <= BATCHES; number++) {
        card.now_ns += test_random_in(&card.random, 60000, 130000);
        run_batch(&card, number);
        server_gpu_pauses_done(&pauses,
                               &(struct server_gpu_pauses_batch){.number = number,
                                                                 .submitted_ns = card.now_ns,
                                                                 .times = card.told,
                                                                 .uncertain_ns = card.uncertain_ns},
                               2);
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
            true_pauses += card.idle_before[stage] == number;
            told_pauses += pauses.before[stage] == number;
            if (pauses.before[stage] != told[stage])
                assert_int_equal(card.idle_before[stage], number);
            told[stage] = pauses.before[stage];
        }
    }
    print_message("%.1f %% of the pauses are told\n", 100.0 * (double)told_pauses / (double)true_pauses);
    assert_true(told_pauses > true_pauses / 4);
}

/* With times that are certain every pause is told. */
static void every_pause_is_told_by_certain_times(void **state)
{
    (void)state;
    struct card card = {.random = {9}, .now_ns = CORE_NS_PER_S};
    struct server_gpu_pauses pauses = {0};
    for (uint64_t number = 1; number <= BATCHES; number++) {
        card.now_ns += test_random_in(&card.random, 60000, 130000);
        run_batch(&card, number);
        server_gpu_pauses_done(&pauses,
                               &(struct server_gpu_pauses_batch){
                                   .number = number, .submitted_ns = card.now_ns, .times = card.told},
                               2);
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
            assert_int_equal(pauses.before[stage], card.idle_before[stage]);
    }
}

static void only_an_idle_card_tells_with_one_copy_engine(void **state)
{
    (void)state;
    struct server_gpu_pauses pauses = {0};
    const struct gpu_stage_time times[GPU_STAGE_COUNT] = {{10, 20}, {20, 30}, {30, 40}};
    server_gpu_pauses_done(
        &pauses, &(struct server_gpu_pauses_batch){.number = 1, .submitted_ns = 10, .times = times}, 1);
    assert_int_equal(server_gpu_pauses_least(&pauses), 0);
    server_gpu_pauses_idle(&pauses, 2);
    assert_int_equal(server_gpu_pauses_least(&pauses), 2);
    pauses.before[GPU_STAGE_KERNEL] = 1;
    assert_int_equal(server_gpu_pauses_least(&pauses), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_pause_is_told_that_was_none),
        cmocka_unit_test(every_pause_is_told_by_certain_times),
        cmocka_unit_test(only_an_idle_card_tells_with_one_copy_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
