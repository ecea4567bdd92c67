/* An adversary for GPUs: sets of streams that a rule accepts at the brim (perfmodel/gpu.h, perfmodel/flow.h),
 * and a search for what makes their batches as late as they can be.
 *
 * A set is made so that the latency bound of all its streams equals the bound of the rule. The search is hill
 * climbing over scripts of a pipeline (tests/support/pipeline.h): how much each stream sends in each batch,
 * how long each stage takes, how late each batch is closed. It begins at patterns that are known to hurt:
 * full bursts, bursts earned back many periods later, full bursts while small ones wait to be copied back.
 * Pure; the same seed gives the same set and the same search. */
#ifndef MILLRACE_TESTS_FLOW_ATTACK_H
#define MILLRACE_TESTS_FLOW_ATTACK_H

#include "perfmodel/flow.h"
#include "tests/support/gpu.h"
#include "tests/support/pipeline.h"

#define FLOW_ATTACK_STREAMS 6
#define FLOW_ATTACK_BATCHES 48

enum flow_attack_rule {
    FLOW_ATTACK_BATCH,  /* a batch by itself */
    FLOW_ATTACK_SUMS,   /* the backlog rule */
    FLOW_ATTACK_STAIRS, /* the backlog rule with staircase arrival curves */
    FLOW_ATTACK_CHANGE, /* from one period to another, at any batch */
    FLOW_ATTACK_RULES
};

/* It points into itself: not to be copied. */
struct flow_attack_set {
    struct config_profile profile;
    struct test_gpu card;
    struct core_stream_spec specs[FLOW_ATTACK_STREAMS];
    struct perfmodel_flow_load load;
    struct pipeline_gpu gpu; /* with the promises */
    uint32_t arenas;         /* 0: not told */
    bool any_order;          /* one engine: the promises hold in whatever order the directions take it */
};

/* False: the rule takes no such set at any bound; another seed may do. */
bool flow_attack_set_make(struct flow_attack_set *set, enum flow_attack_rule rule, uint32_t engines,
                          uint64_t seed);

/* A set of one's own, with a card of its own and streams, for the backlog rule at its period. */
bool flow_attack_set_promise(struct flow_attack_set *set);

/* What the search found: of d' and of each promise the greatest part that was needed, 10^9 being all of it.
 */
struct flow_attack_found {
    bool missed, late, arenas; /* a deadline; a promise of a stage; more arenas than told */
    int64_t latency_ppb, stage_ppb[PIPELINE_STAGES];
};

/* So many steps of the search. */
struct flow_attack_found flow_attack_run(const struct flow_attack_set *set, uint32_t steps, uint64_t seed);

#endif
