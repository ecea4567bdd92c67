#include "perfmodel/demand.h"

#include "perfmodel/edf_packets.h"
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
#define CIPHER_SETS   PERFMODEL_CPU_CIPHER_SETS
#define LIST_FIRST    64

/* One stream's demand at a point is capped here: above any window, so still refused, and 2^19 of them fit.
 * The surcharges of all pieces of a point are capped at the second figure, so that sums of both fit. */
#define DEMAND_NS_MAX    (INT64_C(1) << 43)
#define SURCHARGE_NS_MAX (INT64_C(1) << 61)

/* 2^(1/64) - 1 in units of 2^-62. */
#define STEP 50217968235283385

/* A sum over streams of cost times something, kept in two parts: their own costs, and what one nanosecond of
 * surcharge adds. */
struct two_part {
    perfmodel_wide own, per_surcharge;
};

/* The streams one by one, in no order, for the test by packets. Without memory for it that test is left out
 * until the last stream has gone. */
struct list {
    struct perfmodel_cpu_task *tasks;
    uint32_t *marks; /* of each, to find it by */
    size_t capacity;
    bool lost;
};

#define KINDS_ROWS (2 * CORE_CIPHER_COUNT)

/* Pieces of one cipher, direction and length. */
struct kind {
    uint32_t streams;
    core_ns cost_ns;
};

struct perfmodel_demand {
    struct perfmodel_cpu_worker worker; /* of the profile */
    /* of the streams */
    size_t streams;
    struct list list;
    struct perfmodel_cpu_mix mix;
    int64_t utilisation_ppb;              /* U of the set as it stands */
    struct two_part share;                /* U in units of 2^-62; per_surcharge below 2^19 * 2^53 */
    struct two_part tail_ns;              /* the bounds at w_N; per_surcharge below 2^19 * 2^52 */
    core_ns window_ns[POINTS];            /* w */
    core_ns own_ns[POINTS];               /* demand at own costs */
    int64_t pieces[POINTS];               /* N, below 2^19 * 2^33 */
    uint32_t first_used;                  /* first point with a piece; POINTS if none */
    core_ns room_ns[CIPHER_SETS][BLOCKS]; /* smallest w_(j-1) - H_j of a block; where kept (see summarise) */
    uint32_t kind_most[KINDS_ROWS];       /* no larger piece of the row is there */
    uint32_t kind_sizes;                  /* from no block up to the profile's longest piece */
    struct kind kinds[];                  /* a row by direction and cipher, in it by blocks */
};

/* What a set would be charged. */
struct terms {
    uint32_t ciphers;
    core_ns surcharge_ns, blocking_ns; /* e, 2q */
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
};

static struct asked asked_of(const struct perfmodel_cpu_task *task)
{
    return (struct asked){.task = task,
                          .by_spacing = quotient_of(task->spacing_ns),
                          .by_interval = quotient_of(task->interval_ns),
                          .by_deadline = quotient_of(task->deadline_ns)};
}

/* Pieces in any window: perfmodel_cpu_count(window - u), without divisions. */
static inline int64_t asked_pieces(const struct asked *asked, core_ns window_ns)
{
    const struct perfmodel_cpu_task *task = asked->task;
    core_ns x_ns = window_ns - task->urgency_ns;
    if (x_ns < 0)
        return 0;
    struct perfmodel_wide_position last = perfmodel_wide_position_of(
        task, x_ns, quotient_get(asked->by_spacing, x_ns), quotient_get(asked->by_interval, x_ns));
    if (task->pieces == 1)
        return last.packet + 1;
    int64_t begun = quotient_get(asked->by_deadline, last.offset_ns) + 1;
    return last.packet * task->pieces + (begun < task->pieces ? begun : task->pieces);
}

/* pieces below 2^52, charge_ns at most 2^43. */
static inline core_ns product_ns(int64_t pieces, core_ns charge_ns, core_ns limit_ns)
{
    return perfmodel_wide_limit((perfmodel_wide)pieces * charge_ns, limit_ns);
}

static struct terms terms_of(const struct perfmodel_demand *demand, const struct perfmodel_cpu_mix *mix)
{
    core_ns burst_ns = mix->pieces_ns + demand->worker.lanes_ns[mix->ciphers];
    return (struct terms){.ciphers = mix->ciphers,
                          .surcharge_ns = demand->worker.surcharge_ns[mix->ciphers],
                          .blocking_ns = 2 * core_time_min(burst_ns, CORE_LATENCY_NS_MAX)};
}

/* H_j of the set as it stands, at a surcharge. */
static inline core_ns need_ns(const struct perfmodel_demand *demand, uint32_t point, core_ns surcharge_ns)
{
    return demand->own_ns[point] + product_ns(demand->pieces[point], surcharge_ns, SURCHARGE_NS_MAX);
}

static perfmodel_wide two_part_sum(const struct two_part *sum, core_ns surcharge_ns)
{
    return sum->own + sum->per_surcharge * surcharge_ns;
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

static uint32_t block_end(uint32_t block)
{
    uint32_t end = (block + 1) * BLOCK;
    return end < LAST ? end : LAST;
}

static void summarise_blocks(struct perfmodel_demand *demand, uint32_t ciphers)
{
    core_ns surcharge_ns = demand->worker.surcharge_ns[ciphers];
    for (uint32_t block = 0; block < BLOCKS; block++) {
        core_ns least_ns = INT64_MAX;
        if (block_end(block) < demand->first_used) { /* nothing is needed there, and windows grow */
            demand->room_ns[ciphers][block] = demand->window_ns[block * BLOCK];
            continue;
        }
        for (uint32_t point = block * BLOCK + 1; point <= block_end(block); point++) {
            core_ns room_ns = demand->window_ns[point - 1] - need_ns(demand, point, surcharge_ns);
            least_ns = core_time_min(room_ns, least_ns);
        }
        demand->room_ns[ciphers][block] = least_ns;
    }
}

/* After a change: smallest headrooms for the present ciphers, and for those with one more, as a new stream
 * may bring. */
static void summarise(struct perfmodel_demand *demand)
{
    demand->first_used = 1;
    while (demand->first_used < POINTS && demand->pieces[demand->first_used] == 0)
        demand->first_used++;
    uint32_t present = demand->mix.ciphers;
    summarise_blocks(demand, present);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++)
        if ((present >> i & 1) == 0)
            summarise_blocks(demand, present | 1U << i);
}

static size_t bytes_of(uint32_t kind_sizes)
{
    return sizeof(struct perfmodel_demand) + KINDS_ROWS * kind_sizes * sizeof(struct kind);
}

core_status perfmodel_demand_create(struct perfmodel_demand **demand, const struct config_profile *profile)
{
    const uint32_t kind_sizes = profile->cpu.piece_bytes / CORE_BLOCK_BYTES + 1;
    struct perfmodel_demand *made = calloc(1, bytes_of(kind_sizes));
    if (made == NULL)
        return CORE_NO_MEMORY;
    made->kind_sizes = kind_sizes;
    made->worker = perfmodel_cpu_worker_of(profile);
    fill_windows(made->window_ns);
    summarise(made);
    *demand = made;
    return CORE_OK;
}

/* ---- the list ---- */

static uint32_t mark_of(const struct perfmodel_cpu_task *task)
{
    uint64_t mix = (uint64_t)task->interval_ns * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)task->spacing_ns;
    mix = (mix ^ mix >> 29) * UINT64_C(0xbf58476d1ce4e5b9) + (uint64_t)task->cost_ns;
    return (uint32_t)(mix >> 32) ^ task->burst_packets ^ task->piece_bytes << 8;
}

static bool list_reserve(struct list *list, size_t capacity)
{
    if (capacity <= list->capacity)
        return true;
    struct perfmodel_cpu_task *tasks = realloc(list->tasks, capacity * sizeof *tasks);
    if (tasks == NULL)
        return false;
    list->tasks = tasks;
    uint32_t *marks = realloc(list->marks, capacity * sizeof *marks);
    if (marks == NULL)
        return false;
    list->marks = marks;
    list->capacity = capacity;
    return true;
}

static void list_add(struct list *list, size_t streams, const struct perfmodel_cpu_task *task)
{
    size_t capacity = streams < LIST_FIRST ? LIST_FIRST : 2 * streams;
    if (list->lost || (streams == list->capacity && !list_reserve(list, capacity))) {
        list->lost = true;
        return;
    }
    list->tasks[streams] = *task;
    list->marks[streams] = mark_of(task);
}

static bool same_task(const struct perfmodel_cpu_task *a, const struct perfmodel_cpu_task *b)
{
    return a->cost_ns == b->cost_ns && a->deadline_ns == b->deadline_ns && a->urgency_ns == b->urgency_ns &&
           a->spacing_ns == b->spacing_ns && a->interval_ns == b->interval_ns && a->pieces == b->pieces &&
           a->burst_packets == b->burst_packets && a->piece_bytes == b->piece_bytes &&
           a->cipher == b->cipher && a->direction == b->direction;
}

/* The last stream takes the place. */
static void list_remove(struct list *list, size_t streams, const struct perfmodel_cpu_task *task)
{
    const uint32_t mark = mark_of(task);
    size_t at = 0;
    if (!list->lost) {
        while (at < streams && (list->marks[at] != mark || !same_task(&list->tasks[at], task)))
            at++;
        assert(at < streams);
        list->tasks[at] = list->tasks[streams - 1];
        list->marks[at] = list->marks[streams - 1];
    }
    list->lost = list->lost && streams > 1;
}

core_status perfmodel_demand_copy(const struct perfmodel_demand *demand, struct perfmodel_demand **copy)
{
    struct perfmodel_demand *made = malloc(bytes_of(demand->kind_sizes));
    if (made == NULL)
        return CORE_NO_MEMORY;
    memcpy(made, demand, bytes_of(demand->kind_sizes));
    made->list = (struct list){.lost = demand->list.lost};
    if (!made->list.lost && !list_reserve(&made->list, demand->streams)) {
        perfmodel_demand_destroy(made);
        return CORE_NO_MEMORY;
    }
    if (!made->list.lost && demand->streams > 0) {
        memcpy(made->list.tasks, demand->list.tasks, demand->streams * sizeof *made->list.tasks);
        memcpy(made->list.marks, demand->list.marks, demand->streams * sizeof *made->list.marks);
    }
    *copy = made;
    return CORE_OK;
}

void perfmodel_demand_destroy(struct perfmodel_demand *demand)
{
    if (demand == NULL)
        return;
    free(demand->list.tasks);
    free(demand->list.marks);
    free(demand);
}

/* ---- changes ---- */

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

static uint32_t row_of(const struct perfmodel_cpu_task *task)
{
    return (uint32_t)task->direction * CORE_CIPHER_COUNT + (uint32_t)task->cipher - 1;
}

/* Adds a row's pieces to the mix, the largest first; of two pieces the longer never costs less. */
static void mix_of_row(struct perfmodel_demand *demand, uint32_t row)
{
    const struct kind *kinds = &demand->kinds[row * demand->kind_sizes];
    uint32_t size = demand->kind_most[row];
    while (size > 0 && kinds[size].streams == 0)
        size--;
    demand->kind_most[row] = size;
    for (uint32_t taken = 0; size > 0 && taken < demand->worker.burst_pieces; size--) {
        const struct perfmodel_cpu_task task = {.cost_ns = kinds[size].cost_ns,
                                                .cipher = (enum core_cipher)(row % CORE_CIPHER_COUNT + 1)};
        for (uint32_t i = 0; i < kinds[size].streams; i++, taken++) {
            if (taken == demand->worker.burst_pieces)
                return;
            perfmodel_cpu_mix_add(&demand->mix, demand->worker.burst_pieces, &task);
        }
    }
}

static struct kind *kind_of(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task)
{
    uint32_t size = task->piece_bytes / CORE_BLOCK_BYTES;
    assert(size < demand->kind_sizes);
    return &demand->kinds[row_of(task) * demand->kind_sizes + size];
}

/* After a stream with this task has left: only one of the dearest is missed. */
static void mix_remove(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task)
{
    const struct perfmodel_cpu_mix *mix = &demand->mix;
    bool last = kind_of(demand, task)->streams == 0;
    if (!last && task->cost_ns < mix->piece_ns[mix->count - 1])
        return;
    demand->mix = (struct perfmodel_cpu_mix){0};
    for (uint32_t row = 0; row < KINDS_ROWS; row++)
        mix_of_row(demand, row);
}

static void change(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task, int sign)
{
    struct asked asked = asked_of(task);
    for (uint32_t point = first_point(demand, task); point < POINTS; point++) {
        int64_t pieces = asked_pieces(&asked, demand->window_ns[point]);
        demand->pieces[point] += sign * pieces;
        demand->own_ns[point] += sign * product_ns(pieces, task->cost_ns, DEMAND_NS_MAX);
    }
    demand->share.own += sign * perfmodel_wide_share(task, task->cost_ns);
    demand->share.per_surcharge += sign * perfmodel_wide_share(task, 1);
    demand->tail_ns.own += sign * perfmodel_wide_tail(task, task->cost_ns, WINDOW_NS_MAX);
    demand->tail_ns.per_surcharge += sign * perfmodel_wide_tail(task, 1, WINDOW_NS_MAX);
    demand->utilisation_ppb = perfmodel_wide_share_ppb(
        two_part_sum(&demand->share, demand->worker.surcharge_ns[demand->mix.ciphers]));
    summarise(demand);
}

void perfmodel_demand_add(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task)
{
    assert(demand->streams < PERFMODEL_DEMAND_STREAMS_MAX);
    struct kind *kind = kind_of(demand, task);
    uint32_t size = task->piece_bytes / CORE_BLOCK_BYTES, *most = &demand->kind_most[row_of(task)];
    list_add(&demand->list, demand->streams++, task);
    assert(kind->streams == 0 || kind->cost_ns == task->cost_ns);
    kind->cost_ns = task->cost_ns;
    kind->streams++;
    *most = size > *most ? size : *most;
    perfmodel_cpu_mix_add(&demand->mix, demand->worker.burst_pieces, task);
    change(demand, task, 1);
}

void perfmodel_demand_remove(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task)
{
    assert(demand->streams > 0);
    list_remove(&demand->list, demand->streams--, task);
    kind_of(demand, task)->streams--;
    mix_remove(demand, task);
    change(demand, task, -1);
}

/* A set to be tested: the standing one, and a task more if asked.task is not NULL. */
struct question {
    const struct perfmodel_demand *demand;
    struct asked asked;
    struct terms terms;
    core_ns charge_ns; /* of a piece of the task */
    int64_t reserve_ppb;
};

/* Of a window of at most 2^42 ns, what is not there. */
static inline core_ns question_kept_ns(const struct question *question, core_ns window_ns)
{
    if (question->reserve_ppb == 0)
        return 0;
    return (core_ns)perfmodel_wide_divide_up((perfmodel_wide)window_ns * question->reserve_ppb,
                                             PERFMODEL_PPB);
}

static core_ns question_more_ns(const struct question *question, core_ns window_ns)
{
    if (question->asked.task == NULL)
        return 0;
    return product_ns(asked_pieces(&question->asked, window_ns), question->charge_ns, DEMAND_NS_MAX);
}

static core_ns question_need_ns(const struct question *question, uint32_t point)
{
    return need_ns(question->demand, point, question->terms.surcharge_ns) +
           question_more_ns(question, question->demand->window_ns[point]);
}

/* First point in [from, end] that does not hold; POINTS if all do. */
static uint32_t first_lack(const struct question *question, uint32_t from, uint32_t end)
{
    for (uint32_t point = from; point <= end; point++) {
        core_ns sum_ns = question_need_ns(question, point),
                before_ns = question->demand->window_ns[point - 1];
        core_ns kept_ns = question_kept_ns(question, before_ns);
        if (sum_ns > 0 && sum_ns > before_ns - kept_ns - question->terms.blocking_ns)
            return point;
    }
    return POINTS;
}

/* The same over the whole grid. A block whose smallest room holds the blocking and the task's demand at its
 * end holds everywhere. */
static uint32_t first_lack_in_grid(const struct question *question)
{
    const struct perfmodel_demand *demand = question->demand;
    const core_ns *room_ns = demand->room_ns[question->terms.ciphers];
    uint32_t from = demand->first_used;
    if (question->asked.task != NULL) {
        uint32_t first = first_point(demand, question->asked.task);
        from = first < from ? first : from;
    }
    while (from < POINTS) {
        uint32_t block = (from - 1) / BLOCK;
        uint32_t end = block_end(block);
        core_ns more_ns = question_more_ns(question, demand->window_ns[end]) +
                          question_kept_ns(question, demand->window_ns[end]);
        if (more_ns + question->terms.blocking_ns > room_ns[block]) {
            uint32_t lack = first_lack(question, from, end);
            if (lack < POINTS)
                return lack;
        }
        from = end + 1;
    }
    return POINTS;
}

static void refuse(struct perfmodel_edf_result *result, core_ns window_ns, perfmodel_wide sum_ns)
{
    result->accepted = false;
    result->binding = PERFMODEL_LIMIT_CPU_DEMAND;
    result->window_ns = window_ns;
    result->demand_ns = perfmodel_wide_limit(sum_ns, INT64_MAX);
}

static struct question question_of(const struct perfmodel_demand *demand,
                                   const struct perfmodel_cpu_task *task)
{
    struct question question = {.demand = demand};
    if (task == NULL) {
        question.terms = terms_of(demand, &demand->mix);
        return question;
    }
    struct perfmodel_cpu_mix mix = demand->mix;
    perfmodel_cpu_mix_add(&mix, demand->worker.burst_pieces, task);
    question.asked = asked_of(task);
    question.terms = terms_of(demand, &mix);
    question.charge_ns = task->cost_ns + question.terms.surcharge_ns;
    return question;
}

struct perfmodel_edf_result perfmodel_demand_test(const struct perfmodel_demand *demand,
                                                  const struct perfmodel_cpu_task *task)
{
    return perfmodel_demand_test_within(demand, task, 0);
}

/* The part of the long run that there is, in units of 2^-62, rounded down. */
static perfmodel_wide share_there(int64_t reserve_ppb)
{
    return (perfmodel_wide)PERFMODEL_SHARE_ONE * (PERFMODEL_PPB - reserve_ppb) / PERFMODEL_PPB;
}

/* By the pieces. */
static struct perfmodel_edf_result test_pieces(const struct question *question)
{
    const struct perfmodel_demand *demand = question->demand;
    const struct perfmodel_cpu_task *task = question->asked.task;
    const struct terms *terms = &question->terms;
    perfmodel_wide share = two_part_sum(&demand->share, terms->surcharge_ns);
    perfmodel_wide tail_ns = two_part_sum(&demand->tail_ns, terms->surcharge_ns);
    if (task != NULL) {
        share += perfmodel_wide_share(task, question->charge_ns);
        tail_ns += perfmodel_wide_tail(task, question->charge_ns, WINDOW_NS_MAX);
    }
    struct perfmodel_edf_result result = {.accepted = true,
                                          .blocking_ns = terms->blocking_ns,
                                          .utilisation_ppb = perfmodel_wide_share_ppb(share)};
    if (share >= share_there(question->reserve_ppb)) {
        result.accepted = false;
        result.binding = PERFMODEL_LIMIT_CPU_UTILISATION;
        return result;
    }
    uint32_t lack = first_lack_in_grid(question);
    if (lack < POINTS)
        refuse(&result, demand->window_ns[lack - 1], question_need_ns(question, lack));
    else if (tail_ns > 0 &&
             tail_ns + terms->blocking_ns + question_kept_ns(question, WINDOW_NS_MAX) > WINDOW_NS_MAX)
        refuse(&result, WINDOW_NS_MAX, tail_ns);
    return result;
}

/* By the packets, of few streams. */
static struct perfmodel_edf_result test_packets(const struct question *question)
{
    const struct perfmodel_demand *demand = question->demand;
    struct perfmodel_cpu_task tasks[PERFMODEL_EDF_PACKETS_MOST];
    size_t count = demand->streams;
    if (demand->list.lost || count + (question->asked.task != NULL) > PERFMODEL_EDF_PACKETS_MOST)
        return (struct perfmodel_edf_result){.accepted = false};
    if (count > 0)
        memcpy(tasks, demand->list.tasks, count * sizeof *tasks);
    if (question->asked.task != NULL)
        tasks[count++] = *question->asked.task;
    struct perfmodel_edf_result result =
        perfmodel_edf_packets_test(tasks, count, &demand->worker, question->reserve_ppb);
    result.blocking_ns = question->terms.blocking_ns;
    return result;
}

struct perfmodel_edf_result perfmodel_demand_test_within(const struct perfmodel_demand *demand,
                                                         const struct perfmodel_cpu_task *task,
                                                         int64_t reserve_ppb)
{
    assert(reserve_ppb >= 0 && reserve_ppb <= PERFMODEL_PPB);
    struct question question = question_of(demand, task);
    question.reserve_ppb = reserve_ppb;
    struct perfmodel_edf_result result = test_pieces(&question);
    if (task != NULL && demand->streams == PERFMODEL_DEMAND_STREAMS_MAX) {
        result.accepted = false;
        result.binding = PERFMODEL_LIMIT_CPU_UTILISATION;
    }
    if (result.binding != PERFMODEL_LIMIT_CPU_DEMAND)
        return result;
    struct perfmodel_edf_result packets = test_packets(&question);
    return packets.accepted ? packets : result;
}

int64_t perfmodel_demand_utilisation_ppb(const struct perfmodel_demand *demand)
{
    return demand->utilisation_ppb;
}

/* The room of a window, and the window. */
struct room {
    core_ns left_ns, of_ns, at_ns;
};

static void room_take(struct room *room, core_ns left_ns, core_ns at_ns)
{
    core_ns of_ns = at_ns > 0 ? at_ns : 1;
    if ((perfmodel_wide)left_ns * room->of_ns < (perfmodel_wide)room->left_ns * of_ns)
        *room = (struct room){.left_ns = left_ns, .of_ns = of_ns, .at_ns = at_ns};
}

/* The largest reserve of some that the packets leave, in thousandths; the window that is too short beyond. */
static int64_t packets_headroom_ppb(struct question *question, core_ns *window_ns)
{
    const int64_t step_ppb = PERFMODEL_PPB / 1024;
    int64_t low = 0, high = 1024;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        question->reserve_ppb = middle * step_ppb;
        struct perfmodel_edf_result result = test_packets(question);
        *(result.accepted ? &low : &high) = middle;
        *window_ns = result.accepted ? *window_ns : result.window_ns;
    }
    return low * step_ppb;
}

int64_t perfmodel_demand_headroom_ppb(const struct perfmodel_demand *demand, core_ns *window_ns)
{
    const struct terms terms = terms_of(demand, &demand->mix);
    struct room room = {.left_ns = 1, .of_ns = 1, .at_ns = 0};
    if (demand->streams > 0) {
        core_ns tail_ns =
            perfmodel_wide_limit(two_part_sum(&demand->tail_ns, terms.surcharge_ns), 2 * WINDOW_NS_MAX);
        room_take(&room, WINDOW_NS_MAX - terms.blocking_ns - tail_ns, WINDOW_NS_MAX);
    }
    for (uint32_t point = demand->first_used; point < POINTS; point++) {
        core_ns before_ns = demand->window_ns[point - 1];
        room_take(&room, before_ns - terms.blocking_ns - need_ns(demand, point, terms.surcharge_ns),
                  before_ns);
    }
    if (window_ns != NULL)
        *window_ns = room.at_ns;
    struct question question = question_of(demand, NULL);
    if (room.left_ns < 0 && test_packets(&question).accepted)
        return packets_headroom_ppb(&question, window_ns != NULL ? window_ns : &room.at_ns);
    if (room.left_ns <= -room.of_ns)
        return -PERFMODEL_PPB;
    perfmodel_wide scaled = (perfmodel_wide)room.left_ns * PERFMODEL_PPB;
    return (int64_t)(scaled >= 0 ? scaled / room.of_ns : -perfmodel_wide_divide_up(-scaled, room.of_ns));
}

size_t perfmodel_demand_streams(const struct perfmodel_demand *demand)
{
    return demand->streams;
}
