/* Where a card's marks lie on our clock, by an adversary who knows: delays and lateness drawn at random, and
 * clocks that run apart. Told moments must be as near as they claim, and near where one of the last few
 * batches was noticed soon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "gpu/card_clock.h"
#include "tests/support/random.h"

#define BATCHES 100000

/* A card whose clock counts so many parts in a million more than ours. */
struct card {
    struct test_random random;
    int drift_ppm;
    core_ns gap_ns, delay_most_ns, late_most_ns;
    int soon_percent; /* of the batches are begun and noticed without delay */
    core_ns mark_ns;  /* the last batch's, on our clock */
};

static core_ns on_card(const struct card *card, core_ns ns)
{
    return ns + ns * card->drift_ppm / 1000000;
}

/* Returns the true moment of the mark. */
static core_ns next_batch(struct card *card, struct gpu_card_clock_batch *batch)
{
    const bool soon = test_random_chance(&card->random, card->soon_percent);
    const core_ns since_ns = test_random_in(&card->random, card->gap_ns / 2, card->gap_ns);
    const core_ns span_ns = test_random_log(&card->random, 15 * CORE_NS_PER_US, 30 * CORE_NS_PER_MS);
    const core_ns delay_ns = soon ? 0 : test_random_in(&card->random, 0, card->delay_most_ns);
    const core_ns late_ns = soon ? 0 : test_random_in(&card->random, 0, card->late_most_ns);
    card->mark_ns += since_ns;
    *batch = (struct gpu_card_clock_batch){.asked_ns = card->mark_ns - delay_ns,
                                           .since_ns = on_card(card, since_ns),
                                           .span_ns = on_card(card, span_ns),
                                           .seen_ns = card->mark_ns + span_ns + late_ns};
    return card->mark_ns;
}

/* How far off told moments were claimed to be, at most, once the clock has had some batches. */
static core_ns run(struct card *card)
{
    struct gpu_card_clock clock = {0};
    core_ns most_ns = 0;
    card->random.state = 11;
    card->mark_ns = CORE_NS_PER_S;
    for (int i = 0; i < BATCHES; i++) {
        struct gpu_card_clock_batch batch;
        core_ns uncertain_ns;
        const core_ns mark_ns = next_batch(card, &batch);
        const core_ns told_ns = gpu_card_clock_take(&clock, &batch, &uncertain_ns);
        const core_ns end_ns = mark_ns + (batch.span_ns - batch.span_ns * card->drift_ppm / 1000000);
        assert_true(llabs(told_ns - mark_ns) <= uncertain_ns);
        assert_true(llabs(told_ns + batch.span_ns - end_ns) <= uncertain_ns);
        assert_true(told_ns + batch.span_ns <= batch.seen_ns);
        if (i >= 100)
            most_ns = core_time_max(most_ns, uncertain_ns);
    }
    return most_ns;
}

static void told_is_true_within_what_is_claimed(void **state)
{
    (void)state;
    static const int drifts_ppm[] = {0, 100, -100, 900, -900};
    static const core_ns gaps_ns[] = {120 * CORE_NS_PER_US, 10 * CORE_NS_PER_MS, CORE_NS_PER_S};
    for (int i = 0; i < 15; i++) {
        struct card card = {.drift_ppm = drifts_ppm[i % 5],
                            .gap_ns = gaps_ns[i / 5],
                            .delay_most_ns = 30 * CORE_NS_PER_US,
                            .late_most_ns = 20 * CORE_NS_PER_MS,
                            .soon_percent = i};
        run(&card);
    }
}

/* Nine batches in ten wait for 10 ms and are noticed 10 ms late: no time is told by more than some us wrong
 * for that. */
static void lateness_of_some_moves_none(void **state)
{
    (void)state;
    struct card card = {.drift_ppm = 20,
                        .gap_ns = 200 * CORE_NS_PER_US,
                        .delay_most_ns = 10 * CORE_NS_PER_MS,
                        .late_most_ns = 10 * CORE_NS_PER_MS,
                        .soon_percent = 10};
    const core_ns most_ns = run(&card);
    print_message("uncertain by at most %.1f us\n", (double)most_ns / 1e3);
    assert_true(most_ns < 300 * CORE_NS_PER_US);
}

/* Clocks that run apart further than they may: a batch's own bounds still hold. */
static void clocks_that_run_away_are_followed(void **state)
{
    (void)state;
    struct card card = {.drift_ppm = 5000, .gap_ns = 10 * CORE_NS_PER_MS, .soon_percent = 100};
    struct gpu_card_clock clock = {0};
    card.random.state = 3;
    for (int i = 0; i < 1000; i++) {
        struct gpu_card_clock_batch batch;
        core_ns uncertain_ns;
        const core_ns mark_ns = next_batch(&card, &batch);
        const core_ns told_ns = gpu_card_clock_take(&clock, &batch, &uncertain_ns);
        assert_true(llabs(told_ns - mark_ns) <= 5 * batch.span_ns / 1000 + 200 * CORE_NS_PER_US);
        assert_true(told_ns + batch.span_ns <= batch.seen_ns && uncertain_ns >= 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(told_is_true_within_what_is_claimed),
        cmocka_unit_test(lateness_of_some_moves_none),
        cmocka_unit_test(clocks_that_run_away_are_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
