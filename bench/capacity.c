#include "bench/capacity.h"

#include <string.h>

#define FIRST_HINT 1024
#define ROUNDS_MAX 16 /* of going on above an answer */

struct search {
    const struct bench_capacity_options *options;
    struct bench_capacity *best;
    size_t accepted, refused; /* refused: 0 as long as none was */
};

static void keep(struct search *search, struct partition_plan *plan, size_t streams, core_ns planning_ns)
{
    struct bench_capacity *best = search->best;

    partition_plan_destroy(best->plan);
    best->plan = plan;
    best->streams = streams;
    best->planning_ns = planning_ns;
    search->accepted = streams;
}

static void note_refusal(struct search *search, const struct partition_plan *plan, size_t streams)
{
    search->refused = streams;
    search->best->binding = plan->binding;
    memcpy(search->best->reason, plan->reason, sizeof search->best->reason);
}

/* Plans for the first `streams`, and narrows the search where that is within. */
static core_status try(struct search *search, size_t streams, bool *accepted, struct core_error *error)
{
    const struct bench_capacity_options *options = search->options;
    const struct partition_plan_input input = {.specs = options->pool->specs,
                                               .count = streams,
                                               .profile = &options->machine->profile,
                                               .workers = options->machine->workers,
                                               .paper = options->paper,
                                               .seed = options->seed};
    struct partition_plan *plan;

    if (options->progress != NULL)
        options->progress(options->argument, options->method, search->accepted, search->refused);
    const core_ns start_ns = core_time_now_ns();
    const core_status status = partition_plan_make(options->method, &input, &plan, error);
    if (status != CORE_OK)
        return status;
    search->best->plans++;
    *accepted = plan->accepted;
    if (plan->accepted && (streams > search->accepted || search->best->plan == NULL)) {
        keep(search, plan, streams, core_time_now_ns() - start_ns);
        return CORE_OK;
    }
    if (!plan->accepted && streams > search->accepted && (search->refused == 0 || streams < search->refused))
        note_refusal(search, plan, streams);
    partition_plan_destroy(plan);
    return CORE_OK;
}

/* From an accepted number upwards, in growing steps, until one is refused or the pool ends. */
static core_status climb(struct search *search, struct core_error *error)
{
    const size_t count = search->options->pool->count;
    size_t step = search->accepted / 32 + 1;
    core_status status = CORE_OK;
    bool accepted = true;

    for (; status == CORE_OK && accepted && search->accepted < count; step *= 2) {
        const size_t left = count - search->accepted;
        status = try(search, search->accepted + (step < left ? step : left), &accepted, error);
    }
    return status;
}

static core_status descend(struct search *search, struct core_error *error)
{
    size_t step = search->refused / 32 + 1;
    core_status status = CORE_OK;
    bool accepted = false;

    for (; status == CORE_OK && !accepted && search->refused > 1; step *= 2)
        status = try(search, search->refused > step ? search->refused - step : 1, &accepted, error);
    return status;
}

static core_status bisect(struct search *search, struct core_error *error)
{
    core_status status = CORE_OK;
    bool accepted;

    while (status == CORE_OK && search->refused > search->accepted + 1)
        status = try(search, search->accepted + (search->refused - search->accepted) / 2, &accepted, error);
    return status;
}

/* Numbers above the answer that are tried: so many thousandths of it, and 2, more. *higher: one of them has a
 * plan, so the search is open above again. It comes as false. */
static core_status look_above(struct search *search, bool *higher, struct core_error *error)
{
    static const size_t thousandths[] = {0, 4, 16, 31, 62, 94, 125, 188, 250, 375, 500, 1000};
    const size_t at = search->accepted;
    core_status status = CORE_OK;

    for (size_t i = 0; status == CORE_OK && !*higher && i < sizeof thousandths / sizeof *thousandths; i++) {
        const size_t streams = at + 2 + at * thousandths[i] / 1000;
        if (streams <= search->options->pool->count && search->refused != 0)
            status = try(search, streams, higher, error);
    }
    if (*higher)
        search->refused = 0;
    return status;
}

static core_status look_below(struct search *search, struct core_error *error)
{
    static const size_t parts[] = {0, 256, 64, 16};
    const size_t at = search->accepted;
    core_status status = CORE_OK;

    for (size_t i = 0; status == CORE_OK && i < sizeof parts / sizeof *parts; i++) {
        const size_t less = 1 + (parts[i] != 0 ? at / parts[i] : 0);
        bool accepted = true;
        if (less < at)
            status = try(search, at - less, &accepted, error);
        if (!accepted)
            search->best->refused_below = at - less;
    }
    return status;
}

static core_status find(struct search *search, struct core_error *error)
{
    const size_t count = search->options->pool->count;
    const size_t hint = search->options->hint != 0 ? search->options->hint : FIRST_HINT;
    bool accepted, higher = true;
    core_status status = try(search, hint < count ? hint : count, &accepted, error);

    if (status == CORE_OK && !accepted)
        status = descend(search, error);
    for (unsigned round = 0; status == CORE_OK && higher && round < ROUNDS_MAX; round++) {
        if (search->refused == 0)
            status = climb(search, error);
        if (status == CORE_OK)
            status = bisect(search, error);
        higher = false;
        if (status == CORE_OK && search->options->method->places && round + 1 < ROUNDS_MAX)
            status = look_above(search, &higher, error);
    }
    if (status == CORE_OK && search->options->method->places)
        status = look_below(search, error);
    return status;
}

static void add_up(const struct bench_capacity_options *options, struct bench_capacity *capacity)
{
    const struct partition_plan *plan = capacity->plan;

    for (size_t i = 0; i < capacity->streams; i++) {
        const double rate = core_stream_rate_bits_per_s(&options->pool->specs[i]);
        capacity->total_bits_per_s += rate;
        if (plan->unit == NULL)
            continue;
        if (!partition_unit_is_gpu(plan->workers, plan->unit[i]))
            capacity->cpu_bits_per_s += rate;
        else
            capacity->gpu_bits_per_s += rate;
    }
}

core_status bench_capacity_find(const struct bench_capacity_options *options, struct bench_capacity *capacity,
                                struct core_error *error)
{
    struct search search = {.options = options, .best = capacity};

    *capacity = (struct bench_capacity){.method = options->method};
    core_status status = find(&search, error);
    if (status == CORE_OK && capacity->plan == NULL) { /* not even one stream: the plan of none */
        bool accepted;
        status = try(&search, 0, &accepted, error);
    }
    if (status == CORE_OK && capacity->plan == NULL)
        status = core_error_set(error, CORE_MISMATCH, "method %s refuses even a plan of no stream",
                                options->method->name);
    if (status != CORE_OK) {
        bench_capacity_free(capacity);
        return status;
    }
    capacity->whole_pool = capacity->streams == options->pool->count;
    if (capacity->whole_pool)
        capacity->binding = PERFMODEL_LIMIT_NONE;
    add_up(options, capacity);
    return CORE_OK;
}

void bench_capacity_free(struct bench_capacity *capacity)
{
    partition_plan_destroy(capacity->plan);
    capacity->plan = NULL;
}

struct bench_capacity_gpus bench_capacity_gpus(const struct bench_capacity *capacity)
{
    struct bench_capacity_gpus all = {.shortest_ns = 0};
    const struct partition_plan *plan = capacity->plan;

    for (uint32_t g = 0; g < plan->gpus; g++) {
        const struct partition_plan_gpu *gpu = &plan->gpu[g];
        if (gpu->streams == 0)
            continue;
        if (all.used++ == 0 || gpu->shortest_ns < all.shortest_ns)
            all.shortest_ns = gpu->shortest_ns;
        if (all.used == 1 || gpu->period_ns < all.period_low_ns)
            all.period_low_ns = gpu->period_ns;
        if (gpu->period_ns > all.period_high_ns)
            all.period_high_ns = gpu->period_ns;
    }
    return all;
}
