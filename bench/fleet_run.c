#include "bench/fleet.h"

#include "bench/samples.h"
#include "inputgen/random.h"
#include "inputgen/replay_schedule.h"
#include "partition/admission/admission.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define PROFILE      "cpu-only"
#define WORKLOAD     "uni"
#define IO_THREADS   16 /* so many that the worker binds, whose test is the finer one */
#define POOL_STREAMS 4000
#define FASTER       24 /* than the workload: a node then has room for some 170 streams */
#define FILLS        64

/* The middle of the workload's rates, as fast, and of its bounds. */
#define TYPICAL_INTERVAL_NS (150 * CORE_NS_PER_US)
#define TYPICAL_LATENCY_NS  (20 * CORE_NS_PER_MS)

#define WARM_HOLDS 3

/* What an ask takes, and when who was refused asks again: client/pool_ask.c paces so. */
#define DECIDE_NS     (100 * CORE_NS_PER_US) /* of a node, for one that asks; it answers one after another */
#define ROUND_TRIP_NS CORE_NS_PER_MS
#define PAUSE_NS      (100 * CORE_NS_PER_MS) /* behind a round of refusals, doubled each time, thrice at most */
#define PATIENCE_NS   (10 * CORE_NS_PER_S)

struct node {
    struct admission *admission;
    double load, weight; /* of workers' time; as it was last read, of 1 */
    core_ns busy_ns;
    uint64_t asked; /* the last round of asking that it was in */
    bool down;
};

struct stream {
    struct stream *next; /* of those that are not there */
    uint32_t node, number, spec;
    unsigned rounds; /* of asking in vain, since its node was lost */
};

struct fleet {
    const struct bench_fleet_run *run;
    const struct bench_fleet_mix *mix;
    struct inputgen_random random;
    struct node *nodes;
    uint64_t rounds;
    size_t stream_count;
    struct stream *streams, *spare; /* as many as there may ever be at once */
    struct inputgen_schedule departures;
    core_ns reading_ns; /* the next one */
    uint64_t readings;
};

/* ---- a node, and what it takes ---- */

static core_status node_create(const struct bench_fleet_mix *mix, struct admission **admission,
                               struct core_error *error)
{
    const core_status status =
        admission_create(admission, &mix->machine.profile, mix->machine.workers, IO_THREADS, error);
    if (status == CORE_OK)
        admission_set_cancel(*admission, admission_without_reasons, NULL);
    return status;
}

static double load_of(const struct admission *admission)
{
    return (double)admission_worker_at(admission, 0).utilisation_ppb / 1e9;
}

static bool admit(const struct bench_fleet_mix *mix, struct admission *admission, uint32_t spec,
                  uint32_t *number)
{
    struct admission_placement placement = {0};
    const core_status status = admission_admit(admission, &mix->pool.specs[spec],
                                               admission_emptiest_io(admission), 0, &placement, NULL);
    *number = placement.stream;
    return status == CORE_OK && placement.accepted;
}

static uint32_t draw_spec(const struct bench_fleet_mix *mix, struct inputgen_random *random)
{
    return (uint32_t)(inputgen_random_uniform(random) * (double)mix->pool.count);
}

static core_status find_capacity(struct bench_fleet_mix *mix, uint64_t seed, struct core_error *error)
{
    struct inputgen_random random;
    core_status status = CORE_OK;
    inputgen_random_seed(&random, seed);
    for (int fill = 0; fill < FILLS && status == CORE_OK; fill++) {
        struct admission *admission;
        uint32_t number;
        if ((status = node_create(mix, &admission, error)))
            break;
        while (admit(mix, admission, draw_spec(mix, &random), &number))
            mix->streams += 1.0 / FILLS;
        mix->capacity += load_of(admission) / FILLS;
        admission_destroy(admission);
    }
    return status;
}

core_status bench_fleet_mix_open(struct bench_fleet_mix *mix, uint64_t seed, struct core_error *error)
{
    const struct bench_pool_request request = {.workload = WORKLOAD, .count = POOL_STREAMS, .seed = seed};
    struct admission *empty;
    core_status status;
    *mix = (struct bench_fleet_mix){0};
    if ((status = bench_machine_open(&mix->machine, PROFILE, error)) ||
        (status = bench_pool_open(&mix->pool, &request, error)))
        return status;
    for (size_t i = 0; i < mix->pool.count; i++)
        mix->pool.specs[i].interval_ns =
            core_time_max(CORE_INTERVAL_NS_MIN, mix->pool.specs[i].interval_ns / FASTER);
    mix->typical = mix->pool.specs[0];
    mix->typical.interval_ns = TYPICAL_INTERVAL_NS;
    mix->typical.latency_ns = TYPICAL_LATENCY_NS;
    if ((status = find_capacity(mix, seed, error)) || (status = node_create(mix, &empty, error)))
        return status;
    mix->typical_streams = admission_fill(empty, &mix->typical, UINT32_MAX);
    admission_destroy(empty);
    return CORE_OK;
}

void bench_fleet_mix_free(struct bench_fleet_mix *mix)
{
    bench_pool_free(&mix->pool);
    bench_machine_close(&mix->machine);
}

/* ---- coming and going ---- */

/* Share of the node's capacity that is left, in hundredths as agent-check tells it; one at least. */
static void read_weight(const struct fleet *fleet, struct node *node)
{
    struct admission *copy;
    if (admission_copy(node->admission, &copy) != CORE_OK)
        return; /* the old one stays */
    const uint32_t whole = fleet->mix->typical_streams;
    const uint32_t room = admission_fill(copy, &fleet->mix->typical, whole);
    admission_destroy(copy);
    node->weight = fmax(1, floor(100.0 * room / whole)) / 100;
}

static void depart(struct fleet *fleet)
{
    struct stream *stream = inputgen_schedule_top(&fleet->departures);
    struct node *node = &fleet->nodes[stream->node];
    inputgen_schedule_pop(&fleet->departures);
    admission_release(node->admission, stream->number);
    node->load = load_of(node->admission);
    stream->next = fleet->spare;
    fleet->spare = stream;
}

/* Nodes are read in turn, each at intervals of weight_every_ns. */
static void go_on_until(struct fleet *fleet, core_ns now_ns)
{
    const uint32_t nodes = fleet->run->nodes;
    core_ns departure_ns;
    while ((departure_ns = inputgen_schedule_next_ns(&fleet->departures)) <= now_ns ||
           fleet->reading_ns <= now_ns)
        if (departure_ns <= fleet->reading_ns) {
            depart(fleet);
        } else {
            read_weight(fleet, &fleet->nodes[fleet->readings++ % nodes]);
            fleet->reading_ns += fleet->run->weight_every_ns / nodes;
        }
}

/* Of the nodes that this round has not asked yet: one by weight, or the emptiest. NULL: none is left. */
static struct node *choose(struct fleet *fleet)
{
    struct node *chosen = NULL;
    double weights = 0;
    for (uint32_t i = 0; i < fleet->run->nodes; i++) {
        struct node *node = &fleet->nodes[i];
        if (node->down || node->asked == fleet->rounds)
            continue;
        weights += node->weight;
        if (fleet->run->attempts == 0 ? chosen == NULL || node->load < chosen->load
                                      : inputgen_random_uniform(&fleet->random) * weights < node->weight)
            chosen = node;
    }
    return chosen;
}

/* One round of asking, from *now_ns until the last answer. */
static bool place(struct fleet *fleet, struct stream *stream, core_ns *now_ns, uint64_t *attempts)
{
    const unsigned most = fleet->run->attempts == 0 ? fleet->run->nodes : fleet->run->attempts;
    bool placed = false;
    fleet->rounds++;
    for (unsigned i = 0; i < most && !placed; i++) {
        struct node *node = choose(fleet);
        if (node == NULL)
            break;
        node->asked = fleet->rounds;
        node->busy_ns = core_time_max(*now_ns + ROUND_TRIP_NS / 2, node->busy_ns) + DECIDE_NS;
        *now_ns = node->busy_ns + ROUND_TRIP_NS / 2;
        placed = admit(fleet->mix, node->admission, stream->spec, &stream->number);
        stream->node = (uint32_t)(node - fleet->nodes);
        node->load = load_of(node->admission);
        ++*attempts;
    }
    return placed;
}

static void note_load(const struct fleet *fleet, struct bench_fleet_result *result)
{
    double most = 0;
    for (uint32_t i = 0; i < fleet->run->nodes; i++) {
        const double load = fleet->nodes[i].load / fleet->mix->capacity;
        result->reached += load / fleet->run->nodes;
        most = fmax(most, load);
    }
    result->fullest += most;
}

static void arrive(struct fleet *fleet, core_ns now_ns, struct bench_fleet_result *result)
{
    uint64_t attempts = 0;
    core_ns answered_ns = now_ns;
    go_on_until(fleet, now_ns);
    struct stream *stream = fleet->spare;
    assert(stream != NULL); /* twice as many as are there on average */
    stream->rounds = 0;
    stream->spec = draw_spec(fleet->mix, &fleet->random);
    const bool placed = place(fleet, stream, &answered_ns, &attempts);
    const double stays = inputgen_random_exponential(&fleet->random) * (double)BENCH_FLEET_HOLD_NS;
    if (placed) {
        fleet->spare = stream->next;
        inputgen_schedule_push(&fleet->departures, now_ns + (core_ns)stays, stream);
    }
    if (now_ns < WARM_HOLDS * BENCH_FLEET_HOLD_NS)
        return;
    result->asked++;
    result->refused += !placed;
    result->attempts += attempts;
    if (result->asked % fleet->run->nodes == 0)
        note_load(fleet, result);
}

/* ---- a loss ---- */

/* One round of asking of whoever is next; if it is in vain, another one behind a pause. */
static void ask_next(struct fleet *fleet, struct inputgen_schedule *asking, core_ns lost_ns,
                     struct bench_samples *times_ms)
{
    core_ns now_ns = inputgen_schedule_next_ns(asking);
    struct stream *stream = inputgen_schedule_top(asking);
    uint64_t attempts = 0;
    inputgen_schedule_pop(asking);
    if (place(fleet, stream, &now_ns, &attempts)) {
        bench_samples_add(times_ms, (double)(now_ns - lost_ns) / 1e6);
        return;
    }
    const unsigned doubled = stream->rounds < 3 ? stream->rounds : 3;
    const double spread = 0.75 + inputgen_random_uniform(&fleet->random) / 2;
    stream->rounds++;
    now_ns += (core_ns)((double)(PAUSE_NS << doubled) * spread);
    if (now_ns < lost_ns + PATIENCE_NS)
        inputgen_schedule_push(asking, now_ns, stream);
}

/* Nobody else comes or goes behind it, and weights stay: what follows takes little time beside a stream's stay. */
static core_status lose_fullest(struct fleet *fleet, core_ns lost_ns, struct bench_fleet_result *result)
{
    struct inputgen_schedule *asking = &fleet->departures; /* of nobody any more */
    struct bench_samples times_ms;
    uint32_t fullest = 0;
    for (uint32_t i = 1; i < fleet->run->nodes; i++)
        if (fleet->nodes[i].load > fleet->nodes[fullest].load)
            fullest = i;
    fleet->nodes[fullest].down = true;
    for (size_t i = 0; i < asking->count; i++) {
        struct stream *stream = asking->heap[i].item;
        if (stream->node == fullest)
            asking->heap[result->lost++] = (struct inputgen_schedule_entry){lost_ns, stream};
    }
    asking->count = result->lost;
    if (bench_samples_init(&times_ms, result->lost) != CORE_OK)
        return CORE_NO_MEMORY;
    while (asking->count > 0)
        ask_next(fleet, asking, lost_ns, &times_ms);
    result->homeless = result->lost - times_ms.count;
    result->half_ms = bench_samples_percentile(&times_ms, 50);
    result->most_ms = bench_samples_percentile(&times_ms, 99);
    result->last_ms = bench_samples_percentile(&times_ms, 100);
    bench_samples_free(&times_ms);
    return CORE_OK;
}

/* ---- a run ---- */

static core_status set_up(struct fleet *fleet, struct core_error *error)
{
    core_status status = CORE_OK;
    fleet->nodes = calloc(fleet->run->nodes, sizeof *fleet->nodes);
    fleet->streams = calloc(fleet->stream_count, sizeof *fleet->streams);
    if (fleet->nodes == NULL || fleet->streams == NULL ||
        inputgen_schedule_init(&fleet->departures, fleet->stream_count) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < fleet->stream_count; i++) {
        fleet->streams[i].next = fleet->spare;
        fleet->spare = &fleet->streams[i];
    }
    for (uint32_t i = 0; i < fleet->run->nodes && status == CORE_OK; i++) {
        fleet->nodes[i].weight = 1;
        status = node_create(fleet->mix, &fleet->nodes[i].admission, error);
    }
    return status;
}

static void tear_down(struct fleet *fleet)
{
    for (uint32_t i = 0; fleet->nodes != NULL && i < fleet->run->nodes; i++)
        admission_destroy(fleet->nodes[i].admission);
    inputgen_schedule_free(&fleet->departures);
    free(fleet->nodes);
    free(fleet->streams);
}

core_status bench_fleet_run(const struct bench_fleet_run *run, const struct bench_fleet_mix *mix,
                            struct bench_fleet_result *result, struct core_error *error)
{
    const double expected = run->load * run->nodes * mix->streams;
    struct fleet fleet = {.run = run,
                          .mix = mix,
                          .reading_ns = run->attempts == 0 ? CORE_NS_NEVER : 0,
                          .stream_count = (size_t)(2 * expected) + 100};
    core_ns now_ns = 0;
    *result = (struct bench_fleet_result){0};
    inputgen_random_seed(&fleet.random, run->seed);
    core_status status = set_up(&fleet, error);
    for (uint32_t i = 0; i < run->streams && status == CORE_OK; i++) {
        now_ns += (core_ns)(inputgen_random_exponential(&fleet.random) * BENCH_FLEET_HOLD_NS / expected);
        arrive(&fleet, now_ns, result);
    }
    const double looks = fmax(1, floor((double)result->asked / run->nodes));
    result->reached /= looks;
    result->fullest /= looks;
    if (status == CORE_OK && lose_fullest(&fleet, now_ns, result) != CORE_OK)
        status = core_error_set(error, CORE_NO_MEMORY, "out of memory");
    tear_down(&fleet);
    return status;
}
