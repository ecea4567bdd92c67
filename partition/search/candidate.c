#include "partition/search/candidate.h"

#include <string.h>

#define TESTS_MOST  12   /* the whole burst test, before bisection goes by it alone */
#define STREAMS_FEW 2048 /* so few are searched more thoroughly */

typedef bool trial(struct partition_problem *problem, const uint8_t *on_gpu, struct partition_plan *plan);

static bool takes(struct partition_problem *problem, const uint32_t *order, size_t first, uint8_t *on_gpu,
                  struct partition_plan *plan, trial *ask)
{
    for (size_t k = 0; k < problem->count; k++)
        on_gpu[order[k]] = k >= first;
    return ask(problem, on_gpu, plan);
}

/* No more than this many of the order can be taken: one more and the shares exceed all workers. */
static size_t most_of(const struct partition_problem *problem, const uint32_t *order)
{
    int64_t room_ppb = (int64_t)problem->input->workers * PARTITION_SHARE_ONE;
    size_t k = 0;
    for (; k < problem->count; k++) {
        int64_t share_ppb = problem->share_ppb[order[k]];
        if (share_ppb > room_ppb)
            break;
        room_ppb -= share_ppb;
    }
    return k;
}

/* One more stream may be refused, and some more not: dealt differently, they may get on better. */
static size_t look_above(struct partition_problem *problem, const uint32_t *order, size_t taken,
                         size_t refused, uint8_t *on_gpu, struct partition_plan *plan, trial *ask)
{
    for (size_t more = 2; taken + more < refused;) {
        bool higher = takes(problem, order, taken + more, on_gpu, plan, ask);
        taken += higher ? more : 0;
        more = higher ? 2 : more + 1 + more / 16;
    }
    return taken;
}

/* The most below `top` that are taken, as far as steps down and then bisection tell. */
static size_t most_below(struct partition_problem *problem, const uint32_t *order, size_t top,
                         uint8_t *on_gpu, struct partition_plan *plan, trial *ask)
{
    size_t refused = top, taken = 0;
    for (size_t step = 1; refused > 1; step *= 2) {
        size_t next = refused > step ? refused - step : 1;
        if (takes(problem, order, next, on_gpu, plan, ask)) {
            taken = next;
            break;
        }
        refused = next;
    }
    while (refused - taken > 1) {
        size_t middle = taken + (refused - taken) / 2;
        if (takes(problem, order, middle, on_gpu, plan, ask))
            taken = middle;
        else
            refused = middle;
    }
    return problem->count < STREAMS_FEW ? look_above(problem, order, taken, top, on_gpu, plan, ask) : taken;
}

/* The burst test is asked only where shares and windows leave hope, and each refusal of it adds a window. */
size_t partition_candidate_fill(struct partition_problem *problem, const uint32_t *order, uint8_t *on_gpu,
                                struct partition_plan *plan)
{
    size_t refused = most_of(problem, order) + 1, taken;
    for (int tests = 0; tests < TESTS_MOST; tests++) {
        taken = most_below(problem, order, refused, on_gpu, plan, partition_evaluate_workers_necessary);
        if (takes(problem, order, taken, on_gpu, plan, partition_evaluate_workers) || taken == 0)
            return taken;
        refused = taken;
    }
    taken = most_below(problem, order, refused, on_gpu, plan, partition_evaluate_workers);
    /* it was taken before; but whether streams are dealt a second time hangs on the window remembered first
     */
    while (!takes(problem, order, taken, on_gpu, plan, partition_evaluate_workers) && taken > 0)
        taken--;
    return taken;
}

void partition_candidate_keep_reason(struct partition_candidate_reason *reason, struct partition_plan *plan)
{
    if (!reason->known) {
        *reason = (struct partition_candidate_reason){
            .known = true, .binding = plan->binding, .binding_unit = plan->binding_unit};
        memcpy(reason->text, plan->reason, sizeof reason->text);
        return;
    }
    plan->binding = reason->binding;
    plan->binding_unit = reason->binding_unit;
    memcpy(plan->reason, reason->text, sizeof plan->reason);
}
