#include "perfmodel/demand.h"

#include "perfmodel/wide.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OCTAVE_FIRST  10
#define OCTAVE_LAST   42
#define PER_OCTAVE    64
#define POINTS        ((OCTAVE_LAST - OCTAVE_FIRST) * PER_OCTAVE + 2) /* with w_0 = 0 */
#define LAST          (POINTS - 1)
#define BLOCK         32
#define BLOCKS        ((LAST + BLOCK - 1) / BLOCK) /* block b holds points b * BLOCK + 1 and on */
#define WINDOW_NS_MAX (INT64_C(1) << OCTAVE_LAST)
#define STREAMS_MAX   ((size_t)1 << 19)

/* One stream's demand at a point is capped here: above any window, so still refused, and 2^19 of them fit. */
#define DEMAND_NS_MAX (INT64_C(1) << 43)

/* 2^(1/64) - 1 in units of 2^-62. */
#define STEP 50217968235283385

struct perfmodel_demand {
    core_ns blocking_ns; /* 2q */
    size_t streams;
    perfmodel_wide share;      /* U in units of 2^-62 */
    perfmodel_wide tail_ns;    /* sum of the bounds at w_N */
    uint32_t violated;         /* first point that fails as it stands; POINTS if none */
    core_ns window_ns[POINTS]; /* w */
    core_ns room_ns[POINTS];   /* w_(j-1) - 2q - H_j; [0] is not used */
    core_ns block_ns[BLOCKS];  /* smallest room of a block */
};

/* floor(x / divisor) without a division. inverse > 2^64 / divisor - 2, so the estimate is too small by less
 * than 1 + 2 x / 2^64, hence by at most 1 for x < 2^63. */
struct quotient {
    int64_t divisor;
    uint64_t inverse;
};

static struct quotient quotient_of(int64_t divisor)
{
    return (struct quotient){.divisor = divisor, .inverse = UINT64_MAX / (uint64_t)divisor};
}

static inline int64_t quotient_get(struct quotient quotient, int64_t x)
{
    perfmodel_wide product = (perfmodel_wide)x * (perfmodel_wide)quotient.inverse;
    int64_t estimate = (int64_t)(product >> 64);
    return estimate + (x - estimate * quotient.divisor >= quotient.divisor);
}

/* A task prepared for being asked at many windows. */
struct asked {
    const struct perfmodel_cpu_task *task;
    struct quotient by_spacing, by_interval, by_deadline;
    int64_t count_max; /* pieces that stay below DEMAND_NS_MAX */
};

static struct asked asked_of(const struct perfmodel_cpu_task *task)
{
    return (struct asked){.task = task,
                          .by_spacing = quotient_of(task->spacing_ns),
                          .by_interval = quotient_of(task->interval_ns),
                          .by_deadline = quotient_of(task->deadline_ns),
                          .count_max = DEMAND_NS_MAX / task->cost_ns};
}

/* perfmodel_cpu_demand_ns, capped at DEMAND_NS_MAX. */
static inline core_ns asked_demand_ns(const struct asked *asked, core_ns window_ns)
{
    const struct perfmodel_cpu_task *task = asked->task;
    core_ns x_ns = window_ns - task->urgency_ns;
    if (x_ns < 0)
        return 0;
    struct perfmodel_wide_place last = perfmodel_wide_place_of(
        task, x_ns, quotient_get(asked->by_spacing, x_ns), quotient_get(asked->by_interval, x_ns));
    int64_t count = last.packet + 1;
    if (task->pieces > 1) {
        int64_t begun = quotient_get(asked->by_deadline, last.offset_ns) + 1;
        count = last.packet * task->pieces + (begun < task->pieces ? begun : task->pieces);
    }
    return count > asked->count_max ? DEMAND_NS_MAX : count * task->cost_ns;
}

static void fill_windows(core_ns window_ns[POINTS])
{
    uint64_t factor = (uint64_t)1 << 62;
    for (uint32_t step = 0; step < PER_OCTAVE; step++) {
        for (uint32_t octave = OCTAVE_FIRST; octave < OCTAVE_LAST; octave++)
            window_ns[(octave - OCTAVE_FIRST) * PER_OCTAVE + step + 1] = (core_ns)(factor >> (62 - octave));
        factor += (uint64_t)(((perfmodel_wide)factor * STEP) >> 62);
    }
    window_ns[0] = 0;
    window_ns[LAST] = WINDOW_NS_MAX;
}

static core_ns need_ns(const struct perfmodel_demand *demand, uint32_t point)
{
    return demand->window_ns[point - 1] - demand->blocking_ns - demand->room_ns[point];
}

static uint32_t block_end(uint32_t block)
{
    uint32_t end = (block + 1) * BLOCK;
    return end < LAST ? end : LAST;
}

/* Smallest rooms and the first violation, after room_ns has changed. */
static void summarise(struct perfmodel_demand *demand)
{
    demand->violated = POINTS;
    for (uint32_t block = 0; block < BLOCKS; block++) {
        core_ns least_ns = INT64_MAX;
        for (uint32_t point = block * BLOCK + 1; point <= block_end(block); point++)
            least_ns = demand->room_ns[point] < least_ns ? demand->room_ns[point] : least_ns;
        demand->block_ns[block] = least_ns;
    }
    for (uint32_t block = 0; block < BLOCKS && demand->violated == POINTS; block++) {
        for (uint32_t point = block * BLOCK + 1; demand->block_ns[block] < 0 && point <= block_end(block);
             point++) {
            if (demand->room_ns[point] < 0 && need_ns(demand, point) > 0) {
                demand->violated = point;
                break;
            }
        }
    }
}

core_status perfmodel_demand_create(struct perfmodel_demand **demand, core_ns burst_ns)
{
    assert(burst_ns >= 0 && burst_ns <= CORE_LATENCY_NS_MAX);
    struct perfmodel_demand *made = calloc(1, sizeof *made);
    if (made == NULL)
        return CORE_NO_MEMORY;
    made->blocking_ns = 2 * burst_ns;
    fill_windows(made->window_ns);
    for (uint32_t point = 1; point < POINTS; point++)
        made->room_ns[point] = made->window_ns[point - 1] - made->blocking_ns;
    summarise(made);
    *demand = made;
    return CORE_OK;
}

core_status perfmodel_demand_copy(const struct perfmodel_demand *demand, struct perfmodel_demand **copy)
{
    struct perfmodel_demand *made = malloc(sizeof *made);
    if (made == NULL)
        return CORE_NO_MEMORY;
    memcpy(made, demand, sizeof *made);
    *copy = made;
    return CORE_OK;
}

void perfmodel_demand_destroy(struct perfmodel_demand *demand)
{
    free(demand);
}

/* First point whose window holds the task's urgency; POINTS if none does. */
static uint32_t first_point(const struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task)
{
    uint32_t low = 1, high = POINTS;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (demand->window_ns[middle] >= task->urgency_ns)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void change(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task, int sign)
{
    struct asked asked = asked_of(task);
    for (uint32_t point = first_point(demand, task); point < POINTS; point++)
        demand->room_ns[point] -= sign * asked_demand_ns(&asked, demand->window_ns[point]);
    demand->share += sign * perfmodel_wide_share(task);
    demand->tail_ns += sign * perfmodel_wide_tail(task, WINDOW_NS_MAX);
    summarise(demand);
}

void perfmodel_demand_add(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task)
{
    assert(demand->streams < STREAMS_MAX);
    demand->streams++;
    change(demand, task, 1);
}

void perfmodel_demand_remove(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task)
{
    assert(demand->streams > 0);
    demand->streams--;
    change(demand, task, -1);
}

/* First point in [from, end] where the task no longer fits; POINTS if it fits at all. */
static uint32_t first_lack(const struct perfmodel_demand *demand, const struct asked *asked, uint32_t from,
                           uint32_t end)
{
    for (uint32_t point = from; point <= end; point++) {
        if (asked_demand_ns(asked, demand->window_ns[point]) > demand->room_ns[point])
            return point;
    }
    return POINTS;
}

/* The same over the whole grid, for a set that is not violated without the task. A block whose smallest room
 * holds the demand at its end has room everywhere. */
static uint32_t first_lack_in_grid(const struct perfmodel_demand *demand, const struct asked *asked)
{
    uint32_t from = first_point(demand, asked->task);
    while (from < POINTS) {
        uint32_t block = (from - 1) / BLOCK;
        uint32_t end = block_end(block);
        if (asked_demand_ns(asked, demand->window_ns[end]) > demand->block_ns[block]) {
            uint32_t lack = first_lack(demand, asked, from, end);
            if (lack < POINTS)
                return lack;
        }
        from = end + 1;
    }
    return POINTS;
}

static void refuse(struct perfmodel_edf_result *result, core_ns window_ns, perfmodel_wide sum)
{
    result->accepted = false;
    result->binding = PERFMODEL_EDF_DEMAND;
    result->window_ns = window_ns;
    result->demand_ns = perfmodel_wide_limit(sum, INT64_MAX);
}

struct perfmodel_edf_result perfmodel_demand_test(const struct perfmodel_demand *demand,
                                                  const struct perfmodel_cpu_task *task)
{
    perfmodel_wide share = demand->share + (task != NULL ? perfmodel_wide_share(task) : 0);
    struct perfmodel_edf_result result = {.accepted = true,
                                          .utilisation_ppb = perfmodel_wide_share_ppb(share)};
    if (share >= PERFMODEL_SHARE_ONE) {
        result.accepted = false;
        result.binding = PERFMODEL_EDF_UTILISATION;
        return result;
    }
    uint32_t lack = demand->violated;
    core_ns more_ns = 0;
    perfmodel_wide tail_ns = demand->tail_ns;
    if (task != NULL) {
        struct asked asked = asked_of(task);
        if (lack == POINTS)
            lack = first_lack_in_grid(demand, &asked);
        more_ns = lack < POINTS ? asked_demand_ns(&asked, demand->window_ns[lack]) : 0;
        tail_ns += perfmodel_wide_tail(task, WINDOW_NS_MAX);
    }
    if (lack < POINTS)
        refuse(&result, demand->window_ns[lack - 1], (perfmodel_wide)need_ns(demand, lack) + more_ns);
    else if (tail_ns > 0 && tail_ns + demand->blocking_ns > WINDOW_NS_MAX)
        refuse(&result, WINDOW_NS_MAX, tail_ns);
    return result;
}

int64_t perfmodel_demand_utilisation_ppb(const struct perfmodel_demand *demand)
{
    return perfmodel_wide_share_ppb(demand->share);
}

/* a / b < c / d for b, d > 0. */
static bool less(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (perfmodel_wide)a * d < (perfmodel_wide)c * b;
}

int64_t perfmodel_demand_headroom_ppb(const struct perfmodel_demand *demand, core_ns *window_ns)
{
    core_ns room_ns = 1, of_ns = 1, at_ns = 0;
    if (demand->streams > 0) {
        of_ns = at_ns = WINDOW_NS_MAX;
        room_ns =
            WINDOW_NS_MAX - demand->blocking_ns - perfmodel_wide_limit(demand->tail_ns, 2 * WINDOW_NS_MAX);
    }
    for (uint32_t point = 1; point < POINTS; point++) {
        core_ns before_ns = demand->window_ns[point - 1] > 0 ? demand->window_ns[point - 1] : 1;
        if (need_ns(demand, point) > 0 && less(demand->room_ns[point], before_ns, room_ns, of_ns)) {
            room_ns = demand->room_ns[point];
            of_ns = before_ns;
            at_ns = demand->window_ns[point - 1];
        }
    }
    if (window_ns != NULL)
        *window_ns = at_ns;
    if (room_ns <= -of_ns)
        return -PERFMODEL_PPB;
    perfmodel_wide scaled = (perfmodel_wide)room_ns * PERFMODEL_PPB;
    return (int64_t)(scaled >= 0 ? scaled / of_ns : -perfmodel_wide_divide_up(-scaled, of_ns));
}

size_t perfmodel_demand_streams(const struct perfmodel_demand *demand)
{
    return demand->streams;
}
