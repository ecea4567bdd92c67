#include "bench/analyses/rgem.h"

#include <stdbool.h>

enum operation { UP, DOWN, KERNEL };

/* One operation of one task under analysis. */
struct view {
    const struct analyses_rgem_system *system;
    const struct analyses_rgem_task *tasks;
    size_t count, own;
    enum analyses_rgem_variant variant;
    enum operation operation;
};

int64_t analyses_rgem_chunks(const struct analyses_rgem_system *system, int64_t bytes)
{
    return analyses_ceil(bytes, system->chunk_bytes);
}

static int64_t overhead_ns(const struct analyses_rgem_system *system)
{
    return system->scheduler_ns + system->setup_ns + system->switch_ns;
}

static bool one_queue(const struct view *view)
{
    return view->variant >= ANALYSES_RGEM_HALF;
}

static int64_t bytes_of(const struct analyses_rgem_task *task, enum operation operation)
{
    return operation == UP ? task->up_bytes : task->down_bytes;
}

static int64_t chunk_ns(const struct analyses_rgem_system *system, enum operation operation)
{
    return operation == UP ? system->up_ns : system->down_ns;
}

static int64_t copy_work_ns(const struct view *view, const struct analyses_rgem_task *task,
                            enum operation operation)
{
    return analyses_rgem_chunks(view->system, bytes_of(task, operation)) *
           (overhead_ns(view->system) + chunk_ns(view->system, operation));
}

static int64_t kernel_work_ns(const struct view *view, const struct analyses_rgem_task *task)
{
    const int64_t launches = view->variant == ANALYSES_RGEM_LIT ? task->kernels > 0 : (int64_t)task->kernels;
    int64_t work_ns = launches * overhead_ns(view->system);

    for (size_t k = 0; k < task->kernels; k++)
        work_ns += task->kernel_ns[k];
    return work_ns;
}

/* What one job of the task puts in the way of the operation. */
static int64_t interference_ns(const struct view *view, const struct analyses_rgem_task *task)
{
    if (view->operation == KERNEL)
        return kernel_work_ns(view, task);
    if (one_queue(view))
        return copy_work_ns(view, task, UP) + copy_work_ns(view, task, DOWN);
    return copy_work_ns(view, task, view->operation);
}

static int64_t chunk_blocking_ns(const struct view *view, enum operation operation)
{
    bool copies = view->variant == ANALYSES_RGEM_LIT;

    for (size_t l = view->own + 1; l < view->count; l++)
        copies = copies || bytes_of(&view->tasks[l], operation) > 0;
    return copies ? chunk_ns(view->system, operation) : 0;
}

static int64_t kernel_blocking_ns(const struct view *view)
{
    int64_t longest_ns = 0;

    for (size_t l = view->own + 1; l < view->count; l++)
        for (size_t k = 0; k < view->tasks[l].kernels; k++)
            longest_ns = analyses_max(longest_ns, view->tasks[l].kernel_ns[k]);
    return longest_ns;
}

/* The longest piece of lower priority that may have begun. */
static int64_t blocking_ns(const struct view *view)
{
    if (view->operation == KERNEL)
        return kernel_blocking_ns(view);
    if (one_queue(view))
        return analyses_max(chunk_blocking_ns(view, UP), chunk_blocking_ns(view, DOWN));
    return chunk_blocking_ns(view, view->operation);
}

/* The least x = base + sum over higher priority (ceil(x / T) + 1) work. */
static int64_t fixed_point_ns(const struct view *view, int64_t base_ns)
{
    int64_t x_ns = base_ns, next_ns = base_ns;
    double utilisation = 0;

    for (size_t h = 0; h < view->own; h++)
        utilisation += (double)interference_ns(view, &view->tasks[h]) / (double)view->tasks[h].period_ns;
    if (utilisation >= 1 + 1e-9) /* ends only above the limit; nearer to 1 the iteration tells */
        return ANALYSES_NEVER;
    do {
        x_ns = next_ns;
        next_ns = base_ns;
        for (size_t h = 0; h < view->own; h++)
            next_ns +=
                (analyses_ceil(x_ns, view->tasks[h].period_ns) + 1) * interference_ns(view, &view->tasks[h]);
    } while (next_ns != x_ns && next_ns <= ANALYSES_RGEM_LIMIT_NS);
    return next_ns <= ANALYSES_RGEM_LIMIT_NS ? next_ns : ANALYSES_NEVER;
}

/* Pieces of the operation, and their work with its overhead. */
static int64_t pieces_of(const struct view *view)
{
    const struct analyses_rgem_task *task = &view->tasks[view->own];

    return view->operation == KERNEL ? (int64_t)task->kernels
                                     : analyses_rgem_chunks(view->system, bytes_of(task, view->operation));
}

static int64_t own_work_ns(const struct view *view)
{
    const struct analyses_rgem_task *task = &view->tasks[view->own];

    if (view->operation != KERNEL)
        return copy_work_ns(view, task, view->operation);
    int64_t work_ns = (int64_t)task->kernels * overhead_ns(view->system);
    for (size_t k = 0; k < task->kernels; k++)
        work_ns += task->kernel_ns[k];
    return work_ns;
}

/* R of the operation, and B where the variant has one. */
static int64_t response_ns(const struct view *view, int64_t *block_ns)
{
    const int64_t pieces = pieces_of(view);
    const int64_t queue_ns =
        view->operation == KERNEL ? view->system->kernel_queue_ns : view->system->copy_queue_ns;

    *block_ns = 0;
    if (view->variant == ANALYSES_RGEM_ONCE) {
        const int64_t times = view->operation == KERNEL ? pieces : 1;
        return pieces == 0 ? 0
                           : fixed_point_ns(view, queue_ns + own_work_ns(view) + times * blocking_ns(view));
    }
    *block_ns = fixed_point_ns(view, blocking_ns(view));
    if (*block_ns == ANALYSES_NEVER)
        return ANALYSES_NEVER;
    if (pieces == 0 && view->variant != ANALYSES_RGEM_LIT)
        return 0;
    return queue_ns + own_work_ns(view) + pieces * *block_ns;
}

void analyses_rgem_bound(const struct analyses_rgem_system *system, const struct analyses_rgem_task *tasks,
                         size_t count, enum analyses_rgem_variant variant,
                         struct analyses_rgem_bounds *bounds)
{
    for (size_t i = 0; i < count; i++) {
        struct view view = {
            .system = system, .tasks = tasks, .count = count, .own = i, .variant = variant, .operation = UP};
        bounds[i].up_ns = response_ns(&view, &bounds[i].block_up_ns);
        view.operation = DOWN;
        bounds[i].down_ns = response_ns(&view, &bounds[i].block_down_ns);
        view.operation = KERNEL;
        bounds[i].kernel_ns = response_ns(&view, &bounds[i].block_kernel_ns);
    }
}

int64_t analyses_rgem_response_ns(const struct analyses_rgem_bounds *bounds)
{
    return analyses_sum(bounds->up_ns, analyses_sum(bounds->kernel_ns, bounds->down_ns));
}

struct analyses_rgem_fit analyses_rgem_fit(int64_t bytes, int64_t chunk_a, double time_a, int64_t chunk_b,
                                           double time_b)
{
    const double chunks_a = (double)analyses_ceil(bytes, chunk_a),
                 chunks_b = (double)analyses_ceil(bytes, chunk_b);
    const double overhead = (time_a - time_b) / (chunks_a - chunks_b);

    return (struct analyses_rgem_fit){.overhead = overhead, .base = time_b - chunks_b * overhead};
}
