#include "tests/support/shift.h"

#include "partition/planner/internal.h"
#include "server/planner/internal.h"
#include "tests/support/client.h"
#include "tests/support/require.h"

static uint64_t moved_in_all(const struct server_planner *thread)
{
    return atomic_load_explicit(&thread->figures.moved, memory_order_relaxed);
}

/* A migration that failed is asked for again, but not of a stream that is still busy with it. */
static uint32_t find_on(const struct partition_planner *planner, uint32_t unit)
{
    for (uint32_t n = 0; n < planner->capacity; n++) {
        const struct planner_reservation *reservation = &planner->reservations[n];
        if (reservation->owner != NULL && reservation->unit == unit && reservation->target == PLANNER_NONE &&
            reservation->change.state == PLANNER_UNCHANGED && !reservation->superseded &&
            !reservation->retired)
            return n;
    }
    return PLANNER_NONE;
}

static core_ns period_ns(struct partition_planner *planner, uint32_t number, uint32_t to)
{
    const struct admission *admission = partition_planner_admission(planner);
    uint32_t gpu = planner_gpu_of(planner, to);
    core_ns period_ns = gpu != PLANNER_NONE ? admission_gpu_at(admission, gpu).period_ns : 0;

    return period_ns > 0 ? period_ns : admission_stream_of(admission, number).spec.latency_ns / 4;
}

/* A reservation that is gone already was its stream's until that ended, if it has moved at all. */
static void note_end(struct test_shift *shift, const struct server_planner *thread)
{
    const struct planner_reservation *target = &thread->inner->reservations[shift->target];
    bool same = target->owner != NULL && target->born == shift->born;

    if (same && target->source != PLANNER_NONE)
        return;
    shift->source = PLANNER_NONE;
    shift->moved += same ? !target->superseded : moved_in_all(thread) > shift->moved_before;
}

static void begin_next(struct test_shift *shift, struct server_planner *thread)
{
    struct partition_planner *planner = thread->inner;
    char reason[256];
    uint32_t number = shift->asked < shift->streams ? find_on(planner, shift->from) : PLANNER_NONE;

    if (number == PLANNER_NONE ||
        !partition_planner_move(planner, number, shift->to, period_ns(planner, number, shift->to),
                                shift->timeout_ns, NULL, core_time_now_ns(), reason, sizeof reason)) {
        shift->over = true;
        return;
    }
    shift->asked++;
    shift->moved_before = moved_in_all(thread);
    shift->source = number;
    shift->target = planner->reservations[number].target;
    shift->born = planner->reservations[shift->target].born;
}

static void look(void *owner, struct server_message *message)
{
    struct server_planner *thread = owner;
    struct test_shift *shift = (struct test_shift *)message;

    if (shift->source != PLANNER_NONE)
        note_end(shift, thread);
    if (shift->source == PLANNER_NONE && !shift->over)
        begin_next(shift, thread);
    /* release: what was written comes before */
    atomic_store_explicit(&shift->looking, false, memory_order_release);
}

static void look_soon(struct test_shift *shift)
{
    shift->message.run = look;
    atomic_store_explicit(&shift->looking, true, memory_order_relaxed); /* the mailbox orders it */
    server_mailbox_post(server_planner_mailbox(shift->planner), &shift->message);
}

void test_shift_begin(struct test_shift *shift, struct server_planner *planner, uint32_t from, uint32_t to,
                      size_t streams, core_ns timeout_ns)
{
    *shift = (struct test_shift){.planner = planner,
                                 .from = from,
                                 .to = to,
                                 .streams = streams,
                                 .timeout_ns = timeout_ns,
                                 .source = PLANNER_NONE};
    look_soon(shift);
}

bool test_shift_is_over(struct test_shift *shift)
{
    if (atomic_load_explicit(&shift->looking, memory_order_acquire)) /* acquire: pairs with `look` */
        return false;
    bool over = shift->over;
    if (!over)
        look_soon(shift);
    return over;
}

void test_shift_await(struct test_shift *shift)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;

    while (!test_shift_is_over(shift)) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}
