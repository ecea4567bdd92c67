#include "tests/support/worker_attack.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct state {
    core_ns at_ns[WORKER_ATTACK_STREAMS];
    bool early[WORKER_ATTACK_STREAMS];
};

struct attacker {
    struct simulator *simulator;
    const struct config_profile *profile;
    const struct simulator_stream *streams;
    size_t count;
    core_ns burst_ns; /* q */
    bool spaced;
    struct state state;
    struct worker_attack_result result;
};

static core_ns deadline_of(const struct perfmodel_cpu_task *task)
{
    return task->spacing_ns;
}

/* Streams in an order of the caller's. */
struct ranked {
    double rank;
    size_t stream;
};

static int by_rank(const void *a, const void *b)
{
    double x = ((const struct ranked *)a)->rank, y = ((const struct ranked *)b)->rank;
    return (x > y) - (x < y);
}

/* By how much of their time they need for themselves. */
static void rank_victims(const struct attacker *attacker, struct ranked *ranked)
{
    for (size_t i = 0; i < attacker->count; i++) {
        const struct perfmodel_cpu_task *task = &attacker->streams[i].task;
        double alone = (double)task->pieces * (double)(task->cost_ns + attacker->burst_ns);
        ranked[i] = (struct ranked){-alone / (double)deadline_of(task), i};
    }
    qsort(ranked, attacker->count, sizeof *ranked, by_rank);
}

static void rank_by_cost(const struct attacker *attacker, size_t victim, struct ranked *ranked)
{
    for (size_t i = 0; i < attacker->count; i++)
        ranked[i] = (struct ranked){i == victim ? 1 : -(double)attacker->streams[i].task.cost_ns, i};
    qsort(ranked, attacker->count, sizeof *ranked, by_rank);
}

/* How near a packet came to its deadline, of the time that there is for it at the least. */
static double run(struct attacker *attacker, const struct state *state, size_t victim)
{
    const struct perfmodel_cpu_task *task = &attacker->streams[victim].task;
    struct simulator_pattern pattern = {.arrivals = SIMULATOR_GIVEN,
                                        .given_ns = state->at_ns,
                                        .early = state->early,
                                        .window_ns = 4 * task->spacing_ns * task->burst_packets,
                                        .pieces_max = 40 * attacker->count + 400,
                                        .stop_at_miss = true,
                                        .spaced = attacker->spaced};
    struct simulator_result result =
        simulator_run(attacker->simulator, attacker->profile, attacker->streams, attacker->count, &pattern);
    attacker->result.runs++;
    if (result.misses > 0 && attacker->result.misses++ == 0)
        attacker->result.victim = result.first_missed;
    return 1 - (double)result.least_slack_ns / (double)attacker->burst_ns;
}

/* The first B of the dearest at once; 1 ns later the victim, and the rest so that it is due just before it.
 */
static void aim(struct attacker *attacker, size_t victim, bool together)
{
    struct ranked ranked[WORKER_ATTACK_STREAMS];
    const core_ns own_ns = deadline_of(&attacker->streams[victim].task);
    const core_ns from_ns = attacker->burst_ns + own_ns;
    rank_by_cost(attacker, victim, ranked);
    for (size_t k = 0; k < attacker->count; k++) {
        size_t i = ranked[k].stream;
        core_ns deadline_ns = deadline_of(&attacker->streams[i].task);
        core_ns at_ns = from_ns + 1;
        if (k < attacker->profile->cpu.burst_pieces)
            at_ns = from_ns;
        else if (!together && deadline_ns < own_ns)
            at_ns = from_ns + own_ns - deadline_ns;
        attacker->state.at_ns[i] = at_ns;
        attacker->state.early[i] = false;
    }
    attacker->state.at_ns[victim] = from_ns + 1;
}

static void move(const struct attacker *attacker, size_t victim, struct test_random *random,
                 struct state *state)
{
    size_t i = (size_t)test_random_in(random, 0, (int64_t)attacker->count - 1);
    size_t j = (size_t)test_random_in(random, 0, (int64_t)attacker->count - 1);
    const core_ns own_ns = deadline_of(&attacker->streams[victim].task);
    const core_ns other_ns = deadline_of(&attacker->streams[i].task);
    core_ns at_ns = state->at_ns[victim];
    switch (test_random_in(random, 0, 6)) {
    case 0:
        at_ns = state->at_ns[j];
        break;
    case 1:
        at_ns += test_random_in(random, -2, 2);
        break;
    case 2:
        at_ns += own_ns - other_ns;
        break;
    case 3:
        at_ns += test_random_in(random, -2 * attacker->burst_ns, 2 * attacker->burst_ns);
        break;
    case 4:
        at_ns += test_random_in(random, -own_ns, own_ns);
        break;
    case 5:
        at_ns = state->at_ns[i] - attacker->streams[i].spec.interval_ns;
        break;
    default:
        state->early[i] = !state->early[i];
        at_ns = state->at_ns[i] + (state->early[i] ? 1 : -1) * attacker->profile->margins.in_ns;
        break;
    }
    state->at_ns[i] = core_time_max(at_ns, 0);
}

static void climb(struct attacker *attacker, size_t victim, const struct worker_attack *attack,
                  struct test_random *random)
{
    for (int start = 0; start < 2; start++) {
        aim(attacker, victim, start == 1);
        double best = run(attacker, &attacker->state, victim);
        for (uint32_t step = 0; step < attack->climbs / 2; step++) {
            if (attack->stop_at_miss && attacker->result.misses > 0)
                return;
            struct state next = attacker->state;
            for (int64_t moves = test_random_in(random, 1, 3); moves > 0; moves--)
                move(attacker, victim, random, &next);
            double reached = run(attacker, &next, victim);
            if (reached < best)
                continue;
            best = reached;
            attacker->state = next;
        }
        if (best > attacker->result.nearest)
            attacker->result.nearest = best;
    }
}

struct worker_attack_result worker_attack_run(struct simulator *simulator,
                                              const struct config_profile *profile,
                                              const struct simulator_stream *streams, size_t count,
                                              const struct worker_attack *attack, struct test_random *random)
{
    static struct attacker attacker; /* large, and simulators run one at a time */
    struct ranked victims[WORKER_ATTACK_STREAMS];
    struct perfmodel_cpu_mix mix = {0};
    assert(count > 0 && count <= WORKER_ATTACK_STREAMS);
    for (size_t i = 0; i < count; i++)
        perfmodel_cpu_mix_add(&mix, profile->cpu.burst_pieces, &streams[i].task);
    attacker = (struct attacker){.simulator = simulator,
                                 .profile = profile,
                                 .streams = streams,
                                 .count = count,
                                 .spaced = attack->spaced,
                                 .burst_ns = perfmodel_cpu_blocking_ns(profile, &mix)};
    rank_victims(&attacker, victims);
    for (size_t k = 0; k < attack->victims && k < count; k++) {
        climb(&attacker, victims[k].stream, attack, random);
        if (attack->stop_at_miss && attacker.result.misses > 0)
            break;
    }
    return attacker.result;
}
