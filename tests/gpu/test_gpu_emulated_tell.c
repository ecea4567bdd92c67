/* What an emulated card tells of its stages against what was: not before its time, in order, and as near to the
 * truth as it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>

#include "gpu/emulated_tell.h"
#include "tests/support/random.h"

#define BATCHES 3000

static bool within(core_ns a_ns, core_ns b_ns, core_ns by_ns)
{
    return a_ns >= b_ns - by_ns && a_ns <= b_ns + by_ns;
}

/* A batch asked for at now_ns, back to back with its stages or with gaps. */
static struct gpu_stage_end draw(struct test_random *random, uint64_t number, core_ns now_ns)
{
    struct gpu_stage_end end = {.number = number, .stage = GPU_STAGE_DOWN};
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        end.times[stage].start_ns = now_ns += test_random_log(random, 1, 100 * CORE_NS_PER_US);
        end.times[stage].end_ns = now_ns += test_random_log(random, 1, 20 * CORE_NS_PER_MS);
    }
    return end;
}

static void check(const struct gpu_stage_end *told, const struct gpu_stage_end *true_end, core_ns seen_ns)
{
    assert_int_equal(told->number, true_end->number);
    assert_true(told->uncertain_ns >= 0);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        const struct gpu_stage_time *is = &told->times[stage], *was = &true_end->times[stage];
        const core_ns length_ns = was->end_ns - was->start_ns;
        assert_true(within(is->start_ns, was->start_ns, told->uncertain_ns));
        assert_true(within(is->end_ns, was->end_ns, told->uncertain_ns));
        assert_true(within(is->end_ns - is->start_ns, length_ns,
                           GPU_EMULATED_CLOCK_STEP_NS + length_ns / GPU_EMULATED_CLOCK_FAST + 1));
        assert_true(is->end_ns <= seen_ns);
    }
}

static void what_is_told_is_near_the_truth(void **state)
{
    (void)state;
    static struct gpu_emulated_tell tell;
    struct test_random random = {1};
    core_ns now_ns = CORE_NS_PER_S;
    int moved = 0;
    assert_int_equal(gpu_emulated_tell_open(&tell, now_ns, NULL), CORE_OK);
    for (uint64_t number = 1; number <= BATCHES; number++) {
        const struct gpu_stage_end end = draw(&random, number, now_ns);
        const core_ns ended_ns = end.times[GPU_STAGE_DOWN].end_ns;
        struct gpu_stage_end told;
        gpu_emulated_tell_put(&tell, &end, now_ns, ended_ns);
        assert_int_equal(gpu_emulated_tell_take(&tell, ended_ns + GPU_EMULATED_REACTION_NS - 1, &told),
                         CORE_AGAIN);
        now_ns = ended_ns + GPU_EMULATED_REACTION_NS + test_random_log(&random, 1, CORE_NS_PER_MS) - 1;
        assert_int_equal(gpu_emulated_tell_take(&tell, now_ns, &told), CORE_OK);
        check(&told, &end, now_ns);
        moved += told.times[GPU_STAGE_UP].start_ns != end.times[GPU_STAGE_UP].start_ns;
        assert_int_equal(gpu_emulated_tell_take(&tell, now_ns, &told), CORE_AGAIN);
    }
    assert_true(moved > BATCHES / 2); /* by a clock of its own */
    gpu_emulated_tell_close(&tell);
}

/* Ends that wait are told in order, and the descriptor wakes for each. */
static void ends_come_in_order(void **state)
{
    (void)state;
    static struct gpu_emulated_tell tell;
    struct gpu_stage_end told, end = {.stage = GPU_STAGE_KERNEL};
    const core_ns now_ns = core_time_now_ns();
    assert_int_equal(gpu_emulated_tell_open(&tell, now_ns, NULL), CORE_OK);
    struct pollfd ready = {.fd = tell.descriptor, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 0), 0);
    for (end.number = 1; end.number <= GPU_EMULATED_ENDS_MAX; end.number++)
        gpu_emulated_tell_put(&tell, &end, now_ns, now_ns + (core_ns)end.number * 100);
    for (uint64_t number = 1; number <= GPU_EMULATED_ENDS_MAX; number++) {
        const core_ns due_ns = now_ns + (core_ns)number * 100 + GPU_EMULATED_REACTION_NS;
        assert_int_equal(gpu_emulated_tell_take(&tell, due_ns - 1, &told), CORE_AGAIN);
        assert_int_equal(poll(&ready, 1, 60000), 1);
        assert_int_equal(gpu_emulated_tell_take(&tell, due_ns, &told), CORE_OK);
        assert_int_equal(told.number, number);
    }
    gpu_emulated_tell_close(&tell);
}

static void a_wake_is_seen(void **state)
{
    (void)state;
    static struct gpu_emulated_tell tell;
    assert_int_equal(gpu_emulated_tell_open(&tell, core_time_now_ns(), NULL), CORE_OK);
    struct pollfd ready = {.fd = tell.descriptor, .events = POLLIN};
    gpu_emulated_tell_wake(&tell, core_time_now_ns());
    assert_int_equal(poll(&ready, 1, 60000), 1);
    gpu_emulated_tell_close(&tell);
    tell.descriptor = -1;
    gpu_emulated_tell_close(&tell); /* one that did not open */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_told_is_near_the_truth),
        cmocka_unit_test(ends_come_in_order),
        cmocka_unit_test(a_wake_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
