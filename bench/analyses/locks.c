#include "bench/analyses/locks.h"

#include <stdlib.h>

/* Requests of one other task that may be in the way. */
struct rival {
    int64_t length, times;
    unsigned cluster;
};

struct view {
    const struct analyses_lock_system *system;
    const struct analyses_lock_task *tasks;
    size_t count, task;
    struct rival rivals[ANALYSES_LOCK_TASKS];
    size_t rival_count;
};

static int longest_first(const void *left, const void *right)
{
    const struct rival *a = left, *b = right;

    return (a->length < b->length) - (a->length > b->length);
}

static const struct analyses_lock_request *request_of(const struct analyses_lock_task *task,
                                                      unsigned resource)
{
    for (size_t r = 0; r < task->request_count; r++)
        if (task->requests[r].resource == resource)
            return &task->requests[r];
    return NULL;
}

/* What the other tasks can request of the resource while a job of this one is pending, the longest first. */
static void find_rivals(struct view *view, unsigned resource)
{
    const struct analyses_lock_task *own = &view->tasks[view->task];

    view->rival_count = 0;
    for (size_t j = 0; j < view->count; j++) {
        const struct analyses_lock_task *other = &view->tasks[j];
        const struct analyses_lock_request *request = request_of(other, resource);
        if (j == view->task || request == NULL)
            continue;
        view->rivals[view->rival_count++] = (struct rival){
            .length = request->length,
            .times = analyses_ceil(own->response + other->response, other->period) * request->count,
            .cluster = other->cluster};
    }
    qsort(view->rivals, view->rival_count, sizeof view->rivals[0], longest_first);
}

/* The sum of the longest: of each task at most `of_each`, of all at most `of_all`. */
static int64_t longest(const struct view *view, int64_t of_each, int64_t of_all)
{
    int64_t sum = 0;

    for (size_t i = 0; i < view->rival_count; i++) {
        const int64_t times = analyses_min(analyses_min(view->rivals[i].times, of_each), of_all);
        sum += times * view->rivals[i].length;
        of_all -= times;
    }
    return sum;
}

static int64_t global(const struct view *view, enum analyses_lock_protocol protocol, int64_t issued)
{
    const int64_t m = view->system->m, users = (int64_t)view->rival_count + 1;

    if (protocol == ANALYSES_LOCK_FMLP || users <= (protocol == ANALYSES_LOCK_OMLP ? m + 1 : m))
        return longest(view, issued, ANALYSES_NEVER);
    return longest(view, protocol == ANALYSES_LOCK_OMLP ? 2 * issued : ANALYSES_NEVER, (2 * m - 1) * issued);
}

static unsigned cluster_count(const struct view *view)
{
    unsigned last = 0;

    for (size_t i = 0; i < view->count; i++)
        last = view->tasks[i].cluster > last ? view->tasks[i].cluster : last;
    return last + 1;
}

/* Cuts what each cluster can have in the queue, then sums the longest of all. */
static int64_t clustered(struct view *view, bool replicated, int64_t issued)
{
    const unsigned clusters = cluster_count(view), own = view->tasks[view->task].cluster;
    const int64_t k = view->system->replicas, used = (int64_t)clusters * view->system->per_cluster;

    for (unsigned c = 0; c < clusters; c++) {
        int64_t room = (view->system->per_cluster - (c == own)) * issued;
        for (size_t i = 0; i < view->rival_count; i++) {
            struct rival *rival = &view->rivals[i];
            if (rival->cluster != c)
                continue;
            rival->times = analyses_min(analyses_min(rival->times, issued), room);
            room -= rival->times;
        }
    }
    return longest(view, ANALYSES_NEVER,
                   replicated ? analyses_max(0, analyses_ceil(used - k, k)) * issued : ANALYSES_NEVER);
}

static int64_t request_blocking(struct view *view, enum analyses_lock_protocol protocol,
                                const struct analyses_lock_request *request, int64_t issued)
{
    find_rivals(view, request->resource);
    if (protocol == ANALYSES_LOCK_CLUSTERED || protocol == ANALYSES_LOCK_CLUSTERED_KX)
        return clustered(view, protocol == ANALYSES_LOCK_CLUSTERED_KX, issued);
    return global(view, protocol, issued);
}

/* The longest time from a request of the task to its end. */
static int64_t span(struct view *view, enum analyses_lock_protocol protocol)
{
    const struct analyses_lock_task *task = &view->tasks[view->task];
    int64_t most = 0;

    for (size_t r = 0; r < task->request_count; r++)
        most = analyses_max(most, request_blocking(view, protocol, &task->requests[r], 1) +
                                      task->requests[r].length);
    return most;
}

int64_t analyses_lock_blocking(const struct analyses_lock_system *system,
                               const struct analyses_lock_task *tasks, size_t count,
                               enum analyses_lock_protocol protocol, size_t task, int64_t *arrival)
{
    struct view view = {.system = system, .tasks = tasks, .count = count, .task = task};
    int64_t sum = 0;

    for (size_t r = 0; r < tasks[task].request_count; r++)
        sum += request_blocking(&view, protocol, &tasks[task].requests[r], tasks[task].requests[r].count);
    *arrival = 0;
    if (protocol != ANALYSES_LOCK_CLUSTERED && protocol != ANALYSES_LOCK_CLUSTERED_KX)
        return sum;
    for (view.task = 0; view.task < count; view.task++)
        if (view.task != task && tasks[view.task].cluster == tasks[task].cluster &&
            tasks[view.task].period >= tasks[task].period)
            *arrival = analyses_max(*arrival, span(&view, protocol));
    return sum + *arrival;
}
