#include "bench/papers/global.h"

#include <string.h>

#define JOBS_MAX 128
#define FOREVER  INT64_MAX

enum phase { HELD, BEFORE, WAITS, SECTION, ON_GPU, SECTION_END, AFTER }; /* HELD: by the job before it */

struct job {
    size_t task, number;
    int64_t release, point, asked; /* asked: the turn in which it asked for the lock */
    enum phase phase;
    int64_t left, section, gpu, after; /* left: of the phase; the others to come */
    bool running, queued;              /* queued: in the first queue of the lock */
};

struct run {
    const struct papers_global *global;
    const struct papers_job_source *source;
    struct papers_global_result *result;
    int64_t now, horizon, turn;
    size_t next_job[PAPERS_GLOBAL_TASKS];
    int64_t next_release[PAPERS_GLOBAL_TASKS];
    struct job jobs[JOBS_MAX];
    size_t count;
    bool locked;
};

static bool in_section(const struct job *job)
{
    return job->phase == SECTION || job->phase == ON_GPU || job->phase == SECTION_END;
}

static bool executes(const struct job *job)
{
    return job->phase == BEFORE || job->phase == SECTION || job->phase == SECTION_END || job->phase == AFTER;
}

/* Is (point, task) of a before that of b? */
static bool first(const struct job *a, const struct job *b)
{
    return a->point != b->point ? a->point < b->point
           : a->task != b->task ? a->task < b->task
                                : a->number < b->number;
}

/* Whose priority the job has: its own, or that of the first who waits for what it holds. */
static const struct job *priority_of(const struct run *run, const struct job *job)
{
    const struct job *best = job;

    for (size_t i = 0; i < run->count && in_section(job); i++)
        if (run->jobs[i].phase == WAITS && first(&run->jobs[i], best))
            best = &run->jobs[i];
    return best;
}

static void choose(struct run *run)
{
    for (size_t i = 0; i < run->count; i++)
        run->jobs[i].running = false;
    for (unsigned u = 0; u < run->global->m; u++) {
        struct job *best = NULL;
        for (size_t i = 0; i < run->count; i++) {
            struct job *job = &run->jobs[i];
            if (executes(job) && !job->running &&
                (best == NULL || first(priority_of(run, job), priority_of(run, best))))
                best = job;
        }
        if (best == NULL)
            return;
        best->running = true;
    }
}

/* ---- the lock ---- */

static bool is_before_in_lock(const struct run *run, const struct job *a, const struct job *b)
{
    if (a->queued != b->queued)
        return a->queued;
    return a->queued || run->global->lock == PAPERS_LOCK_FIFO ? a->asked < b->asked : first(a, b);
}

/* Fills the first queue, in which its holder is too, in the order of asking or, beyond m, of priority. */
static void fill_queue(struct run *run)
{
    size_t queued = run->locked;

    for (size_t i = 0; i < run->count; i++)
        queued += run->jobs[i].phase == WAITS && run->jobs[i].queued;
    while (run->global->lock == PAPERS_LOCK_FIFO || queued < run->global->m) {
        struct job *next = NULL;
        for (size_t i = 0; i < run->count; i++)
            if (run->jobs[i].phase == WAITS && !run->jobs[i].queued &&
                (next == NULL || is_before_in_lock(run, &run->jobs[i], next)))
                next = &run->jobs[i];
        if (next == NULL)
            return;
        next->queued = true;
        next->asked = run->turn++; /* behind those who are in it */
        queued++;
    }
}

static void grant(struct run *run)
{
    struct job *next = NULL;

    fill_queue(run);
    for (size_t i = 0; i < run->count && !run->locked; i++)
        if (run->jobs[i].phase == WAITS && (next == NULL || is_before_in_lock(run, &run->jobs[i], next)))
            next = &run->jobs[i];
    if (next == NULL)
        return;
    run->locked = true;
    next->phase = SECTION;
    next->left = next->section / 2;
}

/* ---- jobs ---- */

static int64_t length_of(const struct run *run, const struct job *job, size_t stage, int64_t most)
{
    if (run->source->length == NULL || most == 0)
        return most;
    return run->source->length(run->source->context, job->task, job->number, stage, most);
}

static void release(struct run *run, size_t task)
{
    const struct papers_global_task *of = &run->global->tasks[task];

    if (run->count == JOBS_MAX) {
        run->result->overflowed = true;
        return;
    }
    struct job *job = &run->jobs[run->count++];
    *job = (struct job){.task = task, .number = run->next_job[task]++, .release = run->now};
    job->point = run->now + of->point;
    job->phase = BEFORE;
    job->left = length_of(run, job, 0, of->before);
    job->section = length_of(run, job, 1, of->section_cpu);
    job->gpu = length_of(run, job, 2, of->section_gpu);
    job->after = length_of(run, job, 3, of->after);
    for (size_t i = 0; i + 1 < run->count; i++)
        if (run->jobs[i].task == task)
            job->phase = HELD;
    run->next_release[task] = run->source->release(run->source->context, task, run->next_job[task]);
}

static void end_job(struct run *run, size_t index)
{
    const struct job *job = &run->jobs[index];
    const size_t task = job->task;
    const int64_t response = run->now - job->release;
    struct job *held = NULL;

    if (response > run->result->response[task])
        run->result->response[task] = response;
    if (run->source->done != NULL)
        run->source->done(run->source->context, task, job->number, response);
    run->jobs[index] = run->jobs[--run->count];
    for (size_t i = 0; i < run->count; i++)
        if (run->jobs[i].task == task && (held == NULL || run->jobs[i].number < held->number))
            held = &run->jobs[i];
    if (held != NULL)
        held->phase = BEFORE;
}

/* The job has done its phase: it goes on to the next. */
static void pass(struct run *run, size_t index)
{
    struct job *job = &run->jobs[index];

    switch (job->phase) {
    case BEFORE:
        if (job->section + job->gpu == 0) {
            job->phase = AFTER;
            job->left = job->after;
        } else {
            job->phase = WAITS;
            job->queued = false;
            job->asked = run->turn++;
        }
        break;
    case SECTION:
        job->phase = ON_GPU;
        job->left = job->gpu;
        break;
    case ON_GPU:
        job->phase = SECTION_END;
        job->left = job->section - job->section / 2;
        break;
    case SECTION_END:
        run->locked = false;
        job->phase = AFTER;
        job->left = job->after;
        break;
    default:
        end_job(run, index);
        break;
    }
}

/* Lets all jobs pass that have nothing left in their phases. */
static void settle(struct run *run)
{
    bool changed;

    do {
        changed = false;
        grant(run);
        for (size_t i = 0; i < run->count && !changed; i++)
            if (run->jobs[i].phase != HELD && run->jobs[i].phase != WAITS && run->jobs[i].left == 0) {
                pass(run, i);
                changed = true;
            }
    } while (changed);
}

static int64_t next_event(const struct run *run)
{
    int64_t next = FOREVER;

    for (size_t t = 0; t < run->global->count; t++)
        if (run->next_release[t] < run->horizon && run->next_release[t] < next)
            next = run->next_release[t];
    for (size_t i = 0; i < run->count; i++)
        if ((run->jobs[i].running || run->jobs[i].phase == ON_GPU) && run->now + run->jobs[i].left < next)
            next = run->now + run->jobs[i].left;
    return next;
}

void papers_global_run(const struct papers_global *global, const struct papers_job_source *source,
                       int64_t horizon, struct papers_global_result *result)
{
    struct run run = {.global = global, .source = source, .result = result, .horizon = horizon};

    memset(result, 0, sizeof *result);
    for (size_t t = 0; t < global->count; t++)
        run.next_release[t] = source->release(source->context, t, 0);
    for (;;) {
        const int64_t next = next_event(&run);
        if (next == FOREVER || result->overflowed)
            return;
        for (size_t i = 0; i < run.count; i++)
            if (run.jobs[i].running || run.jobs[i].phase == ON_GPU)
                run.jobs[i].left -= next - run.now;
        run.now = next;
        settle(&run);
        for (size_t t = 0; t < global->count; t++)
            while (run.next_release[t] == run.now && run.now < horizon && !result->overflowed)
                release(&run, t);
        settle(&run);
        choose(&run);
    }
}
