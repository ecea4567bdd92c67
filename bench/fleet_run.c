#include "bench/fleet.h"

#include "inputgen/random.h"
#include "inputgen/replay_schedule.h"
#include "partition/admission/admission.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of what happens to the streams of a lost node; client/pool_ask.c paces them so. */
#define DECIDE_NS     (100 * CORE_NS_PER_US) /* of a node, for one that asks; it answers one after another */
#define ROUND_TRIP_NS CORE_NS_PER_MS
#define PAUSE_NS      (100 * CORE_NS_PER_MS) /* behind a round of refusals, doubled each time, thrice at most */
#define PATIENCE_NS   (10 * CORE_NS_PER_S)
#define WARM_HOLDS    3

struct node {
    struct admission *admission;
    double load, weight; /* of workers' time; as it was last read, of 1 */
    uint64_t changes;    /* of the admission, at that time */
    core_ns read_ns, busy_ns;
    bool tried, down;
};

struct stream {
    uint32_t node, number, spec;
    unsigned attempts, rounds; /* of one whose node is lost */
};

struct fleet {
    const struct bench_fleet_run *run;
    const struct bench_fleet_mix *mix;
    const struct bench_machine *machine;
    struct bench_fleet_result *result;
    struct inputgen_random random;
    struct node *nodes;
    struct stream *streams; /* as many as there may ever be at once */
    struct stream **spare;
    size_t stream_count, spare_count;
    struct inputgen_schedule departures;
};

static double draw(struct fleet *fleet)
{
    return inputgen_random_uniform(&fleet->random);
}

/* ---- weights ---- */

/* Share of the node's capacity that is left, in hundredths as agent-check tells it; one at least. */
static void read_weight(const struct fleet *fleet, struct node *node)
{
    struct admission *copy;
    if (node->changes == admission_changes(node->admission) && node->weight > 0)
        return;
    node->changes = admission_changes(node->admission);
    if (admission_copy(node->admission, &copy) != CORE_OK)
        return; /* the old one stays */
    const uint32_t room =
        admission_fill(copy, &fleet->mix->pool.specs[fleet->mix->typical], fleet->mix->capacity_streams);
    admission_destroy(copy);
    node->weight = fmax(1, floor(100.0 * room / fleet->mix->capacity_streams)) / 100;
}

/* To be called before anything changes at the node: what agent-check had read by then. */
static void read_due(const struct fleet *fleet, struct node *node, core_ns now_ns)
{
    const core_ns every_ns = fleet->run->weight_every_ns;
    if (every_ns == 0 || now_ns < node->read_ns + every_ns)
        return;
    read_weight(fleet, node);
    node->read_ns += (now_ns - node->read_ns) / every_ns * every_ns;
}

/* ---- placing ---- */

static uint32_t by_weight(struct fleet *fleet, core_ns now_ns)
{
    double sum = 0;
    for (uint32_t i = 0; i < fleet->run->nodes; i++) {
        struct node *node = &fleet->nodes[i];
        if (fleet->run->weight_every_ns == 0)
            read_weight(fleet, node);
        read_due(fleet, node, now_ns);
        sum += node->tried || node->down ? 0 : node->weight;
    }
    double at = draw(fleet) * sum;
    uint32_t last = ADMISSION_NONE;
    for (uint32_t i = 0; i < fleet->run->nodes; i++) {
        const struct node *node = &fleet->nodes[i];
        if (node->tried || node->down)
            continue;
        last = i;
        at -= node->weight;
        if (at < 0)
            break;
    }
    return last;
}

static uint32_t emptiest(const struct fleet *fleet)
{
    uint32_t best = ADMISSION_NONE;
    for (uint32_t i = 0; i < fleet->run->nodes; i++) {
        const struct node *node = &fleet->nodes[i];
        if (!node->tried && !node->down && (best == ADMISSION_NONE || node->load < fleet->nodes[best].load))
            best = i;
    }
    return best;
}

static bool admit(struct fleet *fleet, struct stream *stream, uint32_t at, core_ns now_ns)
{
    struct node *node = &fleet->nodes[at];
    struct admission_placement placement;
    const uint32_t io = bench_fleet_io(node->admission);
    read_due(fleet, node, now_ns);
    if (admission_admit(node->admission, &fleet->mix->pool.specs[stream->spec], io, 0, &placement, NULL) !=
            CORE_OK ||
        !placement.accepted)
        return false;
    stream->node = at;
    stream->number = placement.stream;
    node->load += fleet->mix->costs[stream->spec];
    return true;
}

static void release(struct fleet *fleet, const struct stream *stream, core_ns now_ns)
{
    struct node *node = &fleet->nodes[stream->node];
    if (node->down)
        return;
    read_due(fleet, node, now_ns);
    admission_release(node->admission, stream->number);
    node->load -= fleet->mix->costs[stream->spec];
}

static uint32_t choose(struct fleet *fleet, core_ns now_ns)
{
    return fleet->run->attempts == 0 ? emptiest(fleet) : by_weight(fleet, now_ns);
}

/* *asked grows by the nodes that were asked. */
static bool place(struct fleet *fleet, struct stream *stream, core_ns now_ns, uint64_t *asked)
{
    const unsigned attempts = fleet->run->attempts == 0 ? fleet->run->nodes : fleet->run->attempts;
    uint32_t tried[1024] = {0}, count = 0, at;
    bool placed = false;
    while (!placed && count < attempts && (at = choose(fleet, now_ns)) != ADMISSION_NONE) {
        placed = admit(fleet, stream, at, now_ns);
        fleet->nodes[at].tried = true;
        tried[count++] = at;
    }
    for (uint32_t i = 0; i < count; i++)
        fleet->nodes[tried[i]].tried = false;
    *asked += count;
    return placed;
}

/* ---- coming and going ---- */

static void depart_until(struct fleet *fleet, core_ns now_ns)
{
    core_ns time_ns;
    while ((time_ns = inputgen_schedule_next_ns(&fleet->departures)) <= now_ns) {
        struct stream *stream = inputgen_schedule_top(&fleet->departures);
        inputgen_schedule_pop(&fleet->departures);
        release(fleet, stream, time_ns);
        fleet->spare[fleet->spare_count++] = stream;
    }
}

static void note_load(struct fleet *fleet)
{
    double sum = 0, most = 0;
    for (uint32_t i = 0; i < fleet->run->nodes; i++) {
        sum += fleet->nodes[i].load;
        most = fmax(most, fleet->nodes[i].load);
    }
    fleet->result->reached += sum / (fleet->run->nodes * fleet->mix->capacity);
    fleet->result->fullest += most / fleet->mix->capacity;
}

static void arrive(struct fleet *fleet, core_ns now_ns, bool counts)
{
    uint64_t asked = 0;
    depart_until(fleet, now_ns);
    if (fleet->spare_count == 0)
        return; /* twice as many as are expected are there: the load is beyond what is sensible */
    struct stream *stream = fleet->spare[fleet->spare_count - 1];
    stream->spec = (uint32_t)(draw(fleet) * (double)fleet->mix->pool.count);
    const bool placed = place(fleet, stream, now_ns, &asked);
    const double stays = inputgen_random_exponential(&fleet->random) * (double)fleet->run->hold_ns;
    if (placed) {
        fleet->spare_count--;
        inputgen_schedule_push(&fleet->departures, now_ns + (core_ns)stays, stream);
    }
    if (!counts)
        return;
    fleet->result->asked++;
    fleet->result->refused += !placed;
    fleet->result->attempts += asked;
    if (fleet->result->asked % (fleet->run->nodes > 100 ? 100 : 10) == 1)
        note_load(fleet);
}

/* ---- a loss ---- */

static int by_time(const void *a, const void *b)
{
    const core_ns x = *(const core_ns *)a, y = *(const core_ns *)b;
    return (x > y) - (x < y);
}

/* One more answer for a stream without a node; when it will ask again, or CORE_NS_NEVER: it has one, or none. */
static core_ns ask_again(struct fleet *fleet, struct stream *stream, core_ns now_ns, core_ns lost_ns,
                         core_ns *placed_ns)
{
    const unsigned attempts = fleet->run->attempts == 0 ? fleet->run->nodes : fleet->run->attempts;
    const uint32_t at = choose(fleet, now_ns); /* of a round's nodes one may come twice: they are many */
    struct node *node = &fleet->nodes[at];
    const core_ns answered_ns =
        core_time_max(now_ns + ROUND_TRIP_NS / 2, node->busy_ns) + DECIDE_NS + ROUND_TRIP_NS / 2;
    node->busy_ns = answered_ns - ROUND_TRIP_NS / 2;
    fleet->result->loss_attempts++;
    stream->attempts++;
    if (admit(fleet, stream, at, now_ns)) {
        *placed_ns = answered_ns - lost_ns;
        return CORE_NS_NEVER;
    }
    if (stream->attempts % attempts != 0)
        return answered_ns;
    const core_ns pause_ns =
        (core_ns)((double)(PAUSE_NS << (stream->rounds < 3 ? stream->rounds : 3)) * (0.75 + draw(fleet) / 2));
    stream->rounds++;
    return answered_ns + pause_ns < lost_ns + PATIENCE_NS ? answered_ns + pause_ns : CORE_NS_NEVER;
}

static core_status lose_fullest(struct fleet *fleet, core_ns now_ns)
{
    struct bench_fleet_result *result = fleet->result;
    struct inputgen_schedule asking;
    uint32_t fullest = 0, placed = 0;
    for (uint32_t i = 1; i < fleet->run->nodes; i++)
        if (fleet->nodes[i].load > fleet->nodes[fullest].load)
            fullest = i;
    core_ns *times_ns = calloc(fleet->stream_count, sizeof *times_ns);
    if (times_ns == NULL || inputgen_schedule_init(&asking, fleet->stream_count) != CORE_OK) {
        free(times_ns);
        return CORE_NO_MEMORY;
    }
    for (size_t i = 0; i < fleet->departures.count; i++) {
        struct stream *stream = fleet->departures.heap[i].item;
        if (stream->node == fullest) {
            result->lost++;
            inputgen_schedule_push(&asking, now_ns, stream);
        }
    }
    fleet->nodes[fullest].down = true;
    while (asking.count > 0) { /* nobody else comes or goes meanwhile: a second is little beside hold_ns */
        const core_ns time_ns = inputgen_schedule_next_ns(&asking);
        struct stream *stream = inputgen_schedule_top(&asking);
        core_ns placed_ns = CORE_NS_NEVER;
        inputgen_schedule_pop(&asking);
        const core_ns next_ns = ask_again(fleet, stream, time_ns, now_ns, &placed_ns);
        if (placed_ns != CORE_NS_NEVER)
            times_ns[placed++] = placed_ns;
        else if (next_ns != CORE_NS_NEVER)
            inputgen_schedule_push(&asking, next_ns, stream);
    }
    result->homeless = result->lost - placed;
    qsort(times_ns, placed, sizeof *times_ns, by_time);
    if (placed > 0) {
        result->half_ns = times_ns[placed / 2];
        result->most_ns = times_ns[(uint64_t)placed * 99 / 100];
        result->last_ns = times_ns[placed - 1];
    }
    inputgen_schedule_free(&asking);
    free(times_ns);
    return CORE_OK;
}

/* ---- a run ---- */

static core_status set_up(struct fleet *fleet, core_ns *gap_ns, struct core_error *error)
{
    const struct bench_fleet_run *run = fleet->run;
    const double expected = run->load * run->nodes * fleet->mix->capacity / fleet->mix->cost;
    *gap_ns = (core_ns)((double)run->hold_ns / expected);
    fleet->stream_count = (size_t)(2 * expected) + 100;
    fleet->nodes = calloc(run->nodes, sizeof *fleet->nodes);
    fleet->streams = calloc(fleet->stream_count, sizeof *fleet->streams);
    fleet->spare = calloc(fleet->stream_count, sizeof *fleet->spare);
    if (fleet->nodes == NULL || fleet->streams == NULL || fleet->spare == NULL ||
        inputgen_schedule_init(&fleet->departures, fleet->stream_count) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < fleet->stream_count; i++)
        fleet->spare[fleet->spare_count++] = &fleet->streams[i];
    for (uint32_t i = 0; i < run->nodes; i++) {
        struct node *node = &fleet->nodes[i];
        const core_status status = bench_fleet_node(fleet->machine, &node->admission, error);
        if (status)
            return status;
        node->read_ns = -(core_ns)(draw(fleet) * (double)run->weight_every_ns);
        node->weight = 1;
        node->changes = UINT64_MAX;
    }
    return CORE_OK;
}

static void tear_down(struct fleet *fleet)
{
    for (uint32_t i = 0; fleet->nodes != NULL && i < fleet->run->nodes; i++)
        admission_destroy(fleet->nodes[i].admission);
    inputgen_schedule_free(&fleet->departures);
    free(fleet->nodes);
    free(fleet->streams);
    free(fleet->spare);
}

core_status bench_fleet_run(const struct bench_fleet_run *run, const struct bench_fleet_mix *mix,
                            const struct bench_machine *machine, struct bench_fleet_result *result,
                            struct core_error *error)
{
    struct fleet fleet = {.run = run, .mix = mix, .machine = machine, .result = result};
    core_ns now_ns = 0, gap_ns = 0;
    memset(result, 0, sizeof *result);
    inputgen_random_seed(&fleet.random, run->seed);
    core_status status = set_up(&fleet, &gap_ns, error);
    uint64_t looks = 0;
    for (uint32_t i = 0; i < run->streams && status == CORE_OK; i++) {
        now_ns += (core_ns)(inputgen_random_exponential(&fleet.random) * (double)gap_ns);
        arrive(&fleet, now_ns, now_ns > WARM_HOLDS * run->hold_ns);
    }
    looks = (result->asked + (run->nodes > 100 ? 99 : 9)) / (run->nodes > 100 ? 100 : 10);
    if (looks > 0) {
        result->reached /= (double)looks;
        result->fullest /= (double)looks;
    }
    if (status == CORE_OK && run->loses && lose_fullest(&fleet, now_ns) != CORE_OK)
        status = core_error_set(error, CORE_NO_MEMORY, "out of memory");
    tear_down(&fleet);
    return status;
}
