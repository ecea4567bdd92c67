#include "partition/admission/unit_gpu.h"

#include <stdlib.h>

#define PER_OCTAVE   8
#define OCTAVE_FIRST 11 /* the shortest period is 8 << 11 ns, 16 us: no launch and two copies take less */
#define OCTAVE_LAST  38
#define PERIODS      ((OCTAVE_LAST - OCTAVE_FIRST + 1) * PER_OCTAVE)
#define RISES_ENOUGH 4
#define PPB          INT64_C(1000000000)

__extension__ typedef __int128 wide;

/* ---- periods ---- */

core_ns partition_gpu_grid_ns(uint32_t n)
{
    return (core_ns)(PER_OCTAVE + n % PER_OCTAVE) << (OCTAVE_FIRST + n / PER_OCTAVE);
}

uint32_t partition_gpu_grid_up_to(core_ns ns)
{
    uint32_t low = 0, high = PERIODS;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (partition_gpu_grid_ns(middle) <= ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- questions ---- */

#define NO_LOSS UINT32_MAX

struct question {
    const struct partition_gpu *gpu;
    struct perfmodel_flow_load own;    /* with the stream, if it is to be the GPU's own */
    struct perfmodel_flow_load backup; /* of `loss`, with the stream, if it is to be a backup */
    uint32_t loss;                     /* NO_LOSS: it is not */
    uint64_t room_bytes;
    int64_t reserve_ppb;
    struct partition_gpu_answer best;
};

static struct question question_of(const struct partition_gpu *gpu, const struct perfmodel_flow_load *more,
                                   uint64_t room_bytes)
{
    struct question question = {.gpu = gpu, .own = gpu->own.load, .loss = NO_LOSS, .room_bytes = room_bytes};
    question.best.verdict.headroom_ppb = -PPB - 1;
    question.reserve_ppb = more->streams > 0 ? gpu->reserve_ppb : 0;
    perfmodel_flow_load_add(&question.own, more);
    return question;
}

static struct question question_of_backup(const struct partition_gpu *gpu,
                                          const struct partition_gpu_backup *more, uint64_t room_bytes)
{
    const struct perfmodel_flow_load nobody = {0};
    struct question question = question_of(gpu, &nobody, room_bytes);
    question.reserve_ppb = gpu->reserve_ppb;
    question.loss = more->loss;
    if (gpu->backups[more->loss] != NULL)
        question.backup = gpu->backups[more->loss]->load;
    if (more->instead_of.streams > 0)
        perfmodel_flow_load_remove(&question.backup, &more->instead_of);
    perfmodel_flow_load_add(&question.backup, &more->load);
    return question;
}

/* The load of what comes at a loss; NULL: nobody. */
static const struct perfmodel_flow_load *load_at(const struct question *question, uint32_t loss)
{
    const struct partition_gpu_crowd *crowd = question->gpu->backups[loss];
    if (loss == question->loss)
        return &question->backup;
    return crowd != NULL && crowd->load.streams > 0 ? &crowd->load : NULL;
}

static bool stable(const struct perfmodel_flow_verdict *verdict)
{
    return verdict->binding != PERFMODEL_LIMIT_GPU_COPY && verdict->binding != PERFMODEL_LIMIT_GPU_KERNEL;
}

/* What falls behind is worst, then what has least room. */
static void keep_worst(struct perfmodel_flow_verdict *worst, const struct perfmodel_flow_verdict *verdict)
{
    uint64_t memory_bytes =
        verdict->memory_bytes > worst->memory_bytes ? verdict->memory_bytes : worst->memory_bytes;
    core_ns latency_ns = verdict->latency_ns > worst->latency_ns ? verdict->latency_ns : worst->latency_ns;
    bool worse =
        stable(verdict) == stable(worst) ? verdict->headroom_ppb < worst->headroom_ppb : !stable(verdict);
    if (worse)
        *worst = *verdict;
    worst->memory_bytes = memory_bytes;
    worst->latency_ns = latency_ns;
}

/* The GPU by itself, and at each loss. */
static struct perfmodel_flow_verdict judge_cases(const struct question *question, core_ns period_ns)
{
    const struct partition_gpu *gpu = question->gpu;
    struct perfmodel_flow_verdict worst = perfmodel_flow_judge(gpu->card, &question->own, period_ns);
    worst.period_ns = period_ns;
    for (uint32_t loss = 0; loss < gpu->losses; loss++) {
        const struct perfmodel_flow_load *more = load_at(question, loss);
        struct perfmodel_flow_load load = question->own;
        if (more == NULL)
            continue;
        perfmodel_flow_load_add(&load, more);
        struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(gpu->card, &load, period_ns);
        keep_worst(&worst, &verdict);
    }
    return worst;
}

/* The least d' of all cases. */
static core_ns shortest_of(const struct question *question)
{
    core_ns shortest_ns = question->own.streams > 0 ? question->own.shortest_ns : CORE_NS_NEVER;
    for (uint32_t loss = 0; loss < question->gpu->losses; loss++) {
        const struct perfmodel_flow_load *more = load_at(question, loss);
        if (more != NULL && more->shortest_ns < shortest_ns)
            shortest_ns = more->shortest_ns;
    }
    return shortest_ns;
}

static struct perfmodel_flow_verdict judge(const struct question *question, core_ns period_ns)
{
    struct perfmodel_flow_verdict verdict = judge_cases(question, period_ns);
    verdict.headroom_ppb -= question->reserve_ppb;
    if (verdict.binding == PERFMODEL_LIMIT_NONE && verdict.headroom_ppb < 0)
        verdict.binding = PERFMODEL_LIMIT_GPU_LATENCY;
    if (verdict.binding != PERFMODEL_LIMIT_NONE)
        return verdict;
    wide left = (wide)question->room_bytes - verdict.memory_bytes;
    int64_t room_ppb = (int64_t)(left * PPB / ((wide)verdict.memory_bytes + 1));
    if (left < 0)
        verdict.binding = PERFMODEL_LIMIT_GPU_MEMORY;
    if (left < 0 && room_ppb == 0)
        room_ppb = -1;
    if (room_ppb < verdict.headroom_ppb)
        verdict.headroom_ppb = room_ppb;
    return verdict;
}

/* Keeps the better one: accepted before refused, then by headroom. */
static void weigh(struct question *question, const struct perfmodel_flow_verdict *verdict)
{
    bool fits = verdict->binding == PERFMODEL_LIMIT_NONE;
    struct partition_gpu_answer *best = &question->best;
    if (fits < best->accepted ||
        (fits == best->accepted && verdict->headroom_ppb <= best->verdict.headroom_ppb))
        return;
    *best = (struct partition_gpu_answer){.accepted = fits, .verdict = *verdict};
}

/* The shortest period that the stages catch up at, of the first `periods`: what is stable is so at longer
 * ones. `periods` if none. */
static uint32_t first_stable(struct question *question, uint32_t periods)
{
    uint32_t low = 0, high = periods;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        struct perfmodel_flow_verdict verdict = judge(question, partition_gpu_grid_ns(middle));
        if (stable(&verdict))
            high = middle;
        else
            low = middle + 1;
        weigh(question, &verdict);
    }
    return low;
}

/* From the shortest stable period up. The latency falls at first, as the stages catch up sooner, and then
 * rises with the period: where it has risen a few times in a row, longer ones are left out. */
static void scan(struct question *question, bool any)
{
    uint32_t periods = partition_gpu_grid_up_to(shortest_of(question)), rises = 0;
    core_ns before_ns = CORE_NS_NEVER;
    for (uint32_t i = first_stable(question, periods); i < periods && rises < RISES_ENOUGH; i++) {
        if (any && question->best.accepted)
            return;
        struct perfmodel_flow_verdict verdict = judge(question, partition_gpu_grid_ns(i));
        weigh(question, &verdict);
        rises = verdict.latency_ns > before_ns ? rises + 1 : 0;
        before_ns = verdict.latency_ns;
    }
}

struct partition_gpu_answer partition_gpu_ask_at(const struct partition_gpu *gpu,
                                                 const struct perfmodel_flow_load *more, uint64_t room_bytes,
                                                 core_ns period_ns)
{
    struct question question = question_of(gpu, more, room_bytes);
    struct perfmodel_flow_verdict verdict = judge(&question, period_ns);
    weigh(&question, &verdict);
    return question.best;
}

struct partition_gpu_answer partition_gpu_ask_present(const struct partition_gpu *gpu,
                                                      const struct perfmodel_flow_load *more,
                                                      uint64_t room_bytes)
{
    if (gpu->period_ns == 0)
        return (struct partition_gpu_answer){.verdict.headroom_ppb = -PPB - 1};
    return partition_gpu_ask_at(gpu, more, room_bytes, gpu->period_ns);
}

/* The rhythm where it holds, else the roomiest. */
static struct partition_gpu_answer ask_grid(struct question *question, bool any)
{
    uint32_t rhythm = partition_gpu_grid_up_to(shortest_of(question) / 4);
    struct perfmodel_flow_verdict verdict =
        judge(question, partition_gpu_grid_ns(rhythm > 0 ? rhythm - 1 : 0));
    weigh(question, &verdict);
    if (!question->best.accepted)
        scan(question, any);
    return question->best;
}

struct partition_gpu_answer partition_gpu_ask_other(const struct partition_gpu *gpu,
                                                    const struct perfmodel_flow_load *more,
                                                    uint64_t room_bytes, bool any)
{
    struct question question = question_of(gpu, more, room_bytes);
    return ask_grid(&question, any);
}

struct partition_gpu_answer partition_gpu_ask_backup(const struct partition_gpu *gpu,
                                                     const struct partition_gpu_backup *more,
                                                     uint64_t room_bytes)
{
    struct question question = question_of_backup(gpu, more, room_bytes);
    if (gpu->period_ns == 0)
        return ask_grid(&question, false);
    struct perfmodel_flow_verdict verdict = judge(&question, gpu->period_ns);
    weigh(&question, &verdict);
    return question.best;
}

int64_t partition_gpu_backup_ppb(const struct partition_gpu *gpu, const struct partition_gpu_backup *more,
                                 core_ns period_ns)
{
    struct perfmodel_flow_load load = gpu->own.load;
    if (gpu->backups[more->loss] != NULL)
        perfmodel_flow_load_add(&load, &gpu->backups[more->loss]->load);
    int64_t before_ppb = perfmodel_flow_judge(gpu->card, &load, period_ns).busiest_ppb;
    perfmodel_flow_load_add(&load, &more->load);
    int64_t after_ppb = perfmodel_flow_judge(gpu->card, &load, period_ns).busiest_ppb;
    return after_ppb > before_ppb ? after_ppb - before_ppb : 1;
}

/* ---- the account ---- */

struct perfmodel_flow_load partition_gpu_load(const struct core_stream_spec *spec,
                                              const struct config_profile *profile)
{
    struct perfmodel_flow_load load = perfmodel_flow_load_of(spec, profile);
    load.unit_bytes = core_stream_padded_bytes(spec->padding, spec->packet_bytes);
    return load;
}

bool partition_gpu_alike(const struct partition_gpu *a, const struct partition_gpu *b)
{
    return a != NULL && b != NULL && a->kind == b->kind && a->reserve_ppb == b->reserve_ppb;
}

core_status partition_gpu_init(struct partition_gpu *gpu, const struct perfmodel_flow_card *card,
                               uint32_t kind, uint32_t gpus)
{
    *gpu = (struct partition_gpu){.card = card, .kind = kind, .losses = gpus};
    gpu->backups = calloc(gpus, sizeof(*gpu->backups));
    return gpu->backups != NULL ? CORE_OK : CORE_NO_MEMORY;
}

static core_status crowd_reserve(struct partition_gpu_crowd *crowd)
{
    core_status status = partition_sizes_reserve(&crowd->sizes);
    for (int h = 0; status == CORE_OK && h < PARTITION_GPU_HEAPS; h++)
        status = partition_heap_reserve(&crowd->heap[h]);
    return status;
}

core_status partition_gpu_reserve(struct partition_gpu *gpu)
{
    return crowd_reserve(&gpu->own);
}

core_status partition_gpu_reserve_backup(struct partition_gpu *gpu, uint32_t loss)
{
    if (gpu->backups[loss] == NULL)
        gpu->backups[loss] = calloc(1, sizeof *gpu->backups[loss]);
    return gpu->backups[loss] != NULL ? crowd_reserve(gpu->backups[loss]) : CORE_NO_MEMORY;
}

/* Least d' as a key of which the greatest counts: d' is at most an hour. */
static uint64_t urgency_of(core_ns work_ns)
{
    return (uint64_t)(CORE_NS_NEVER - work_ns);
}

static void crowd_add(struct partition_gpu_crowd *crowd, uint32_t *const place[PARTITION_GPU_HEAPS],
                      uint32_t stream, const struct perfmodel_flow_load *load)
{
    partition_heap_push(&crowd->heap[0], place[0], stream, load->job_burst_bytes);
    partition_heap_push(&crowd->heap[1], place[1], stream, load->job_rate);
    partition_heap_push(&crowd->heap[2], place[2], stream, urgency_of(load->shortest_ns));
    partition_sizes_add(&crowd->sizes, load->unit_bytes);
    perfmodel_flow_load_add(&crowd->load, load);
}

static void crowd_remove(struct partition_gpu_crowd *crowd, uint32_t *const place[PARTITION_GPU_HEAPS],
                         uint32_t stream, const struct perfmodel_flow_load *load)
{
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++)
        partition_heap_remove(&crowd->heap[h], place[h], stream);
    partition_sizes_remove(&crowd->sizes, load->unit_bytes);
    perfmodel_flow_load_remove(&crowd->load, load);
    if (crowd->load.streams == 0)
        return;
    crowd->load.job_burst_bytes = partition_heap_greatest(&crowd->heap[0]);
    crowd->load.job_rate = partition_heap_greatest(&crowd->heap[1]);
    crowd->load.unit_bytes = partition_sizes_divisor_bytes(&crowd->sizes);
    crowd->load.shortest_ns = CORE_NS_NEVER - (core_ns)partition_heap_greatest(&crowd->heap[2]);
}

static core_status crowd_copy(const struct partition_gpu_crowd *crowd, struct partition_gpu_crowd *copy)
{
    core_status status = partition_sizes_copy(&crowd->sizes, &copy->sizes);
    copy->load = crowd->load;
    for (int h = 0; status == CORE_OK && h < PARTITION_GPU_HEAPS; h++)
        status = partition_heap_copy(&crowd->heap[h], &copy->heap[h]);
    return status;
}

static void crowd_free(struct partition_gpu_crowd *crowd)
{
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++)
        partition_heap_free(&crowd->heap[h]);
    partition_sizes_free(&crowd->sizes);
}

size_t partition_gpu_backups(const struct partition_gpu *gpu)
{
    size_t count = 0;
    for (uint32_t loss = 0; loss < gpu->losses; loss++)
        count += gpu->backups[loss] != NULL ? gpu->backups[loss]->load.streams : 0;
    return count;
}

bool partition_gpu_any_backup(const struct partition_gpu *gpu)
{
    return partition_gpu_backups(gpu) > 0;
}

core_ns partition_gpu_shortest_ns(const struct partition_gpu *gpu)
{
    const struct perfmodel_flow_load nobody = {0};
    struct question question = question_of(gpu, &nobody, 0);
    core_ns shortest_ns = shortest_of(&question);
    return shortest_ns < CORE_NS_NEVER ? shortest_ns : 0;
}

/* After somebody left: no more memory than before, and no more than those who are left need. */
static void shrink(struct partition_gpu *gpu)
{
    const struct perfmodel_flow_load nobody = {0};
    if (gpu->own.load.streams == 0 && !partition_gpu_any_backup(gpu)) {
        partition_gpu_set(gpu, 0, 0);
        return;
    }
    struct question question = question_of(gpu, &nobody, 0);
    struct perfmodel_flow_verdict verdict = judge_cases(&question, gpu->period_ns);
    if (verdict.memory_bytes < gpu->memory_bytes)
        gpu->memory_bytes = verdict.memory_bytes;
}

void partition_gpu_add(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS], uint32_t stream,
                       const struct perfmodel_flow_load *load)
{
    crowd_add(&gpu->own, place, stream, load);
}

void partition_gpu_remove(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                          uint32_t stream, const struct perfmodel_flow_load *load)
{
    crowd_remove(&gpu->own, place, stream, load);
    shrink(gpu);
}

void partition_gpu_replace(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                           uint32_t stream, const struct perfmodel_flow_load *load,
                           const struct perfmodel_flow_load *by)
{
    crowd_remove(&gpu->own, place, stream, load);
    crowd_add(&gpu->own, place, stream, by);
    shrink(gpu);
}

void partition_gpu_add_backup(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                              uint32_t stream, const struct partition_gpu_backup *backup)
{
    crowd_add(gpu->backups[backup->loss], place, stream, &backup->load);
}

void partition_gpu_remove_backup(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                                 uint32_t stream, const struct partition_gpu_backup *backup)
{
    crowd_remove(gpu->backups[backup->loss], place, stream, &backup->load);
    shrink(gpu);
}

void partition_gpu_replace_backup(struct partition_gpu *gpu, uint32_t *const place[PARTITION_GPU_HEAPS],
                                  uint32_t stream, const struct partition_gpu_backup *by)
{
    crowd_remove(gpu->backups[by->loss], place, stream, &by->instead_of);
    crowd_add(gpu->backups[by->loss], place, stream, &by->load);
    shrink(gpu);
}

void partition_gpu_set(struct partition_gpu *gpu, core_ns period_ns, uint64_t memory_bytes)
{
    gpu->period_ns = period_ns;
    gpu->memory_bytes = memory_bytes;
}

core_status partition_gpu_copy(const struct partition_gpu *gpu, struct partition_gpu *copy)
{
    core_status status = crowd_copy(&gpu->own, &copy->own);
    copy->guaranteed = gpu->guaranteed;
    copy->out = gpu->out;
    copy->reserve_ppb = gpu->reserve_ppb;
    partition_gpu_set(copy, gpu->period_ns, gpu->memory_bytes);
    for (uint32_t loss = 0; status == CORE_OK && loss < gpu->losses; loss++) {
        if (gpu->backups[loss] == NULL)
            continue;
        copy->backups[loss] = calloc(1, sizeof *copy->backups[loss]);
        status = copy->backups[loss] != NULL ? crowd_copy(gpu->backups[loss], copy->backups[loss])
                                             : CORE_NO_MEMORY;
    }
    return status;
}

void partition_gpu_free(struct partition_gpu *gpu)
{
    for (uint32_t loss = 0; gpu->backups != NULL && loss < gpu->losses; loss++) {
        if (gpu->backups[loss] != NULL)
            crowd_free(gpu->backups[loss]);
        free(gpu->backups[loss]);
    }
    free(gpu->backups);
    crowd_free(&gpu->own);
}
