#include "tests/support/pipeline.h"

#include "perfmodel/cpu.h"
#include "tests/support/batches.h"

struct run {
    const struct pipeline_gpu *gpu;
    const struct pipeline_pattern *pattern;
    struct test_random random;
    struct batch batch[PIPELINE_BATCHES_MAX + 2]; /* from 1 on */
};

core_ns pipeline_close_ns(const struct pipeline_gpu *gpu, uint32_t n)
{
    if (gpu->change == 0 || n <= gpu->change)
        return n * gpu->period_ns;
    return gpu->change * gpu->period_ns + (n - gpu->change) * gpu->next_period_ns;
}

/* ---- how long and when ---- */

static core_ns taken_ns(struct run *run, core_ns most_ns, uint32_t n, enum pipeline_stage stage)
{
    bool most = false;
    if (run->pattern->arrivals == PIPELINE_SCRIPT)
        return most_ns * run->pattern->script->took[n][stage] / UINT8_MAX;
    switch (run->pattern->execution) {
    case PIPELINE_MOST:
        return most_ns;
    case PIPELINE_ONE_STAGE:
        most = run->pattern->seed % PIPELINE_STAGES == stage;
        break;
    case PIPELINE_BY_TURNS:
        most = (n + stage) % 2 == 0;
        break;
    case PIPELINE_ANY:
    case PIPELINE_AIMED:
        most = test_random_chance(&run->random, 60);
        if (!most && test_random_chance(&run->random, 50))
            return test_random_in(&run->random, 0, most_ns);
        break;
    default:
        break;
    }
    return most ? most_ns : most_ns / 10;
}

static core_ns closed_ns(struct run *run, uint32_t n)
{
    core_ns closing_ns = pipeline_close_ns(run->gpu, n), in_ns = run->gpu->profile->margins.in_ns;
    if (run->pattern->arrivals == PIPELINE_SCRIPT)
        return core_time_max(closing_ns + in_ns * run->pattern->script->late[n] / UINT8_MAX,
                             run->batch[n - 1].closed_ns);
    if (run->pattern->closing == PIPELINE_LATEST)
        return closing_ns + in_ns;
    if (run->pattern->closing == PIPELINE_AT_ONCE)
        return closing_ns;
    return core_time_max(closing_ns + test_random_in(&run->random, 0, in_ns), run->batch[n - 1].closed_ns);
}

/* When the batcher, who does one batch after another, is through with this one. */
static core_ns ready_ns(struct run *run, uint32_t n)
{
    const struct config_profile_gpu *card = run->gpu->card;
    const struct batch *batch = &run->batch[n], *before = batch - 1;
    core_ns most_ns = card->host_batch_ns + (core_ns)batch->packets * card->host_packet_ns;
    if (batch->packets == 0 || most_ns == 0)
        return core_time_max(batch->closed_ns, before->ready_ns);
    return core_time_max(batch->closed_ns, before->ready_ns) + taken_ns(run, most_ns, n, PIPELINE_UP);
}

static void set_times(struct run *run)
{
    for (uint32_t n = 1; n <= run->pattern->batches; n++) {
        struct batch *batch = &run->batch[n];
        batch->closed_ns = closed_ns(run, n);
        batch->ready_ns = ready_ns(run, n);
        batch->stages.up_ns = taken_ns(run, batch->stages.up_ns, n, PIPELINE_UP);
        batch->stages.kernel_ns = taken_ns(run, batch->stages.kernel_ns, n, PIPELINE_KERNEL);
        batch->stages.down_ns = taken_ns(run, batch->stages.down_ns, n, PIPELINE_DOWN);
    }
}

/* ---- the engines ---- */

/* A time for the kernel, if there is one, with which it ends at a closing or a ns before or after. */
static core_ns aimed_ns(struct run *run, uint32_t n, core_ns start_ns, core_ns most_ns)
{
    core_ns aside_ns = test_random_in(&run->random, -1, 1);
    for (uint32_t next = n + 1; next <= run->pattern->batches; next++) {
        core_ns taken_ns = run->batch[next].ready_ns + aside_ns - start_ns;
        if (taken_ns > most_ns)
            break;
        if (taken_ns >= 0 && test_random_chance(&run->random, 60))
            return taken_ns;
    }
    return most_ns;
}

/* Kernels run one after another; the end of the last one before an empty batch is kept in it. */
static void run_kernel(struct run *run, uint32_t n)
{
    struct batch *batch = &run->batch[n];
    core_ns free_ns = run->batch[n - 1].end_ns[PIPELINE_KERNEL];
    batch->end_ns[PIPELINE_KERNEL] = free_ns;
    if (batch->packets == 0)
        return;
    core_ns start_ns = core_time_max(batch->end_ns[PIPELINE_UP], free_ns);
    if (run->pattern->execution == PIPELINE_AIMED)
        batch->stages.kernel_ns = aimed_ns(run, n, start_ns, batch->stages.kernel_ns);
    batch->end_ns[PIPELINE_KERNEL] = start_ns + batch->stages.kernel_ns;
}

static void run_two_engines(struct run *run)
{
    for (uint32_t n = 1; n <= run->pattern->batches; n++) {
        struct batch *batch = &run->batch[n], *before = batch - 1;
        bool full = batch->packets > 0;
        core_ns free_ns = before->end_ns[PIPELINE_UP];
        batch->end_ns[PIPELINE_UP] =
            full ? core_time_max(batch->ready_ns, free_ns) + batch->stages.up_ns : free_ns;
        run_kernel(run, n);
        free_ns = before->end_ns[PIPELINE_DOWN];
        batch->end_ns[PIPELINE_DOWN] =
            full ? core_time_max(batch->end_ns[PIPELINE_KERNEL], free_ns) + batch->stages.down_ns : free_ns;
    }
}

/* Whether a copy up goes next where both wait. By turns, what became ready in this very moment may be too
 * late to be seen. */
static bool up_goes_next(struct run *run, bool last_up, core_ns now_ns, core_ns up_ready_ns,
                         core_ns down_ready_ns)
{
    if (run->pattern->order == PIPELINE_FIRST_COME)
        return up_ready_ns <= down_ready_ns;
    if (run->pattern->order != PIPELINE_TURNS)
        return run->pattern->order == PIPELINE_UP_FIRST;
    if (up_ready_ns == now_ns && test_random_chance(&run->random, 30))
        return false;
    if (down_ready_ns == now_ns && test_random_chance(&run->random, 30))
        return true;
    return !last_up;
}

static uint32_t next_full(const struct run *run, uint32_t n)
{
    do
        n++;
    while (n <= run->pattern->batches && run->batch[n].packets == 0);
    return n;
}

/* The copy up, and the kernel of this batch and of the empty ones before it. */
static core_ns run_up(struct run *run, uint32_t n, uint32_t last_up, core_ns now_ns)
{
    for (uint32_t empty = last_up + 1; empty < n; empty++)
        run_kernel(run, empty);
    run->batch[n].end_ns[PIPELINE_UP] = now_ns + run->batch[n].stages.up_ns;
    run_kernel(run, n);
    return run->batch[n].end_ns[PIPELINE_UP];
}

static void run_one_engine(struct run *run)
{
    uint32_t last = run->pattern->batches, up_done = 0;
    core_ns now_ns = 0;
    bool last_up = false;
    for (uint32_t up = next_full(run, 0), down = up; down <= last;) {
        core_ns up_ready_ns = up <= last ? run->batch[up].ready_ns : CORE_NS_NEVER;
        core_ns down_ready_ns = down < up ? run->batch[down].end_ns[PIPELINE_KERNEL] : CORE_NS_NEVER;
        now_ns = core_time_max(now_ns, core_time_min(up_ready_ns, down_ready_ns));
        bool up_goes = up_ready_ns <= now_ns;
        if (up_goes && down_ready_ns <= now_ns)
            up_goes = up_goes_next(run, last_up, now_ns, up_ready_ns, down_ready_ns);
        last_up = up_goes;
        if (up_goes) {
            now_ns = run_up(run, up, up_done, now_ns);
            up_done = up;
            up = next_full(run, up);
        } else {
            now_ns += run->batch[down].stages.down_ns;
            run->batch[down].end_ns[PIPELINE_DOWN] = now_ns;
            down = next_full(run, down);
        }
    }
}

/* ---- the verdict ---- */

/* Longest that an I/O thread may leave results where they are. */
static core_ns rest_ns(const struct pipeline_gpu *gpu)
{
    core_ns most_ns = 0;
    for (size_t i = 0; i < gpu->count; i++)
        most_ns = core_time_max(most_ns, perfmodel_io_rest_ns(gpu->specs[i].latency_ns, gpu->profile) / 2);
    return most_ns;
}

/* Batches from the oldest that is not delivered when batch n is opened, n included. */
static uint32_t arenas_of(const struct run *run, uint32_t n, uint32_t *oldest, core_ns deliver_ns)
{
    core_ns opening_ns = pipeline_close_ns(run->gpu, n - 1);
    while (*oldest < n && (run->batch[*oldest].packets == 0 ||
                           run->batch[*oldest].end_ns[PIPELINE_DOWN] + deliver_ns <= opening_ns))
        (*oldest)++;
    return n - *oldest + 1;
}

static void judge_batch(const struct run *run, uint32_t n, struct pipeline_result *result)
{
    const struct batch *batch = &run->batch[n];
    const struct pipeline_gpu *gpu = run->gpu;
    const core_ns *end_ns = gpu->change > 0 && n > gpu->change ? gpu->next_end_ns : gpu->end_ns;
    core_ns closed_ns = pipeline_close_ns(gpu, n) + gpu->profile->margins.in_ns;
    core_ns slack_ns = batch->due_ns - batch->end_ns[PIPELINE_DOWN];
    result->batches++;
    result->packets += batch->packets;
    result->misses += slack_ns < 0;
    if (slack_ns < result->least_slack_ns)
        result->least_slack_ns = slack_ns;
    int64_t ppb = (int64_t)((long double)slack_ns / (long double)batch->work_ns * 1e9L);
    if (ppb < result->least_slack_ppb)
        result->least_slack_ppb = ppb;
    for (int stage = 0; stage < PIPELINE_STAGES; stage++) {
        core_ns took_ns = batch->end_ns[stage] - closed_ns;
        result->late_ns[stage] = core_time_max(result->late_ns[stage], took_ns - end_ns[stage]);
        ppb = end_ns[stage] > 0 ? (int64_t)((long double)took_ns / (long double)end_ns[stage] * 1e9L) : 0;
        result->nearest_ppb[stage] = core_time_max(result->nearest_ppb[stage], ppb);
    }
}

static void judge(const struct run *run, struct pipeline_result *result)
{
    core_ns deliver_ns = run->gpu->profile->margins.out_ns + rest_ns(run->gpu);
    uint32_t oldest = 1;
    *result = (struct pipeline_result){.least_slack_ns = CORE_NS_NEVER, .least_slack_ppb = INT64_MAX};
    for (int stage = 0; stage < PIPELINE_STAGES; stage++)
        result->late_ns[stage] = INT64_MIN;
    for (uint32_t n = 1; n <= run->pattern->batches; n++) {
        if (run->batch[n].packets == 0)
            continue;
        uint32_t arenas = arenas_of(run, n, &oldest, deliver_ns);
        result->arenas = arenas > result->arenas ? arenas : result->arenas;
        judge_batch(run, n, result);
    }
}

core_status pipeline_run(const struct pipeline_gpu *gpu, const struct pipeline_pattern *pattern,
                         struct pipeline_result *result)
{
    struct run run = {.gpu = gpu, .pattern = pattern, .random = {pattern->seed}};
    core_status status = batches_fill(gpu, pattern, &run.random, run.batch);
    if (status != CORE_OK)
        return status;
    set_times(&run);
    if (gpu->card->copy_engines < 2)
        run_one_engine(&run);
    else
        run_two_engines(&run);
    judge(&run, result);
    return CORE_OK;
}
