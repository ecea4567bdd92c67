#include "bench/papers/stations.h"

#include <string.h>

#define PIECES_MAX 512
#define FOREVER    INT64_MAX

struct job {
    bool used;
    size_t task, number, stage;
    int64_t release, asked,
        counted;                /* asked: when it came to its stage; counted: from when its time is told */
    int64_t head, body, rounds; /* of the stage; rounds left behind the one that is open */
    unsigned open;              /* pieces of this round that are not done */
};

struct piece {
    size_t job;
    int64_t head, body;  /* left */
    bool running, begun; /* begun: the body has, and is not to be stopped */
};

struct run {
    const struct papers_stations *stations;
    const struct papers_job_source *source;
    struct papers_stations_result *result;
    int64_t now, horizon;
    size_t next_job[PAPERS_STATION_TASKS];
    bool held[PAPERS_STATION_TASKS]; /* the next release, by the job before it */
    int64_t next_release[PAPERS_STATION_TASKS];
    struct job jobs[PAPERS_STATION_JOBS];
    struct piece pieces[PAPERS_STATIONS][PIECES_MAX];
    size_t piece_count[PAPERS_STATIONS];
};

static const struct papers_stage *stage_of(const struct run *run, const struct job *job)
{
    return &run->stations->tasks[job->task].stages[job->stage];
}

/* Does a come before b? */
static bool before(const struct run *run, const struct piece *a, const struct piece *b)
{
    const struct job *one = &run->jobs[a->job], *two = &run->jobs[b->job];

    if (a->begun != b->begun)
        return a->begun;
    if (run->stations->by_arrival && one->asked != two->asked)
        return one->asked < two->asked;
    if (one->task != two->task)
        return one->task < two->task;
    return one->number < two->number;
}

/* Gives the units of a station to the pieces that come first; a body begins when its piece has a unit. */
static void dispatch(struct run *run, unsigned station)
{
    struct piece *pieces = run->pieces[station];
    const size_t count = run->piece_count[station];
    size_t chosen[PIECES_MAX];

    for (size_t i = 0; i < count; i++) {
        pieces[i].running = false;
        chosen[i] = i;
    }
    for (size_t u = 0; u < run->stations->units[station] && u < count; u++) {
        size_t best = u;
        for (size_t i = u + 1; i < count; i++)
            if (before(run, &pieces[chosen[i]], &pieces[chosen[best]]))
                best = i;
        const size_t taken = chosen[best];
        chosen[best] = chosen[u];
        chosen[u] = taken;
        pieces[taken].running = true;
        pieces[taken].begun = pieces[taken].head == 0 && pieces[taken].body > 0;
    }
}

static void ask(struct run *run, size_t index)
{
    const struct job *job = &run->jobs[index];
    const struct papers_stage *stage = stage_of(run, job);

    for (unsigned p = 0; p < stage->parallel; p++) {
        if (run->piece_count[stage->station] == PIECES_MAX) {
            run->result->overflowed = true;
            return;
        }
        run->pieces[stage->station][run->piece_count[stage->station]++] =
            (struct piece){.job = index, .head = job->head, .body = job->body};
    }
}

static void finish(struct run *run, struct job *job)
{
    const int64_t response = run->now - job->release;

    if (response > run->result->response[job->task])
        run->result->response[job->task] = response;
    if (run->source->done != NULL)
        run->source->done(run->source->context, job->task, job->number, response);
    job->used = false;
    run->held[job->task] = false;
    if (run->next_release[job->task] < run->now)
        run->next_release[job->task] = run->now;
}

static int64_t length_of(const struct run *run, const struct job *job, int64_t most)
{
    if (run->source->length == NULL || most == 0)
        return most;
    return run->source->length(run->source->context, job->task, job->number, job->stage, most);
}

/* The job is at the beginning of job->stage: asks for its pieces, or passes stages that have none. */
static void enter(struct run *run, size_t index)
{
    struct job *job = &run->jobs[index];

    for (; job->stage < run->stations->tasks[job->task].stage_count; job->stage++) {
        const struct papers_stage *stage = stage_of(run, job);
        if (stage->pieces == 0)
            continue;
        job->head = length_of(run, job, stage->head);
        job->body = length_of(run, job, stage->body);
        if (job->head + job->body == 0)
            continue;
        job->asked = run->now;
        if (!stage->joined)
            job->counted = run->now;
        job->rounds = stage->pieces - 1;
        job->open = stage->parallel;
        ask(run, index);
        return;
    }
    finish(run, job);
}

static void release(struct run *run, size_t task)
{
    size_t index = 0;

    while (index < PAPERS_STATION_JOBS && run->jobs[index].used)
        index++;
    if (index == PAPERS_STATION_JOBS) {
        run->result->overflowed = true;
        return;
    }
    run->jobs[index] =
        (struct job){.used = true, .task = task, .number = run->next_job[task], .release = run->now};
    run->next_job[task]++;
    run->next_release[task] = run->source->release(run->source->context, task, run->next_job[task]);
    run->held[task] = run->stations->tasks[task].one_at_a_time;
    enter(run, index);
}

/* One piece of the job is done: the next of its row, the next stage, or nothing while others are open. */
static void piece_done(struct run *run, size_t index)
{
    struct job *job = &run->jobs[index];
    const struct papers_stage *stage = stage_of(run, job);
    int64_t *longest = &run->result->stage[job->task][job->stage];

    if (--job->open > 0)
        return;
    if (job->rounds > 0) {
        job->rounds--;
        job->open = stage->parallel;
        ask(run, index);
        return;
    }
    if (run->now - job->counted > *longest)
        *longest = run->now - job->counted;
    if (run->stations->eager)
        dispatch(run, stage->station);
    job->stage++;
    enter(run, index);
}

static void take_done(struct run *run, unsigned station)
{
    for (size_t i = 0; i < run->piece_count[station];) {
        struct piece *piece = &run->pieces[station][i];
        if (piece->head + piece->body > 0) {
            i++;
            continue;
        }
        const size_t job = piece->job;
        *piece = run->pieces[station][--run->piece_count[station]];
        piece_done(run, job);
    }
}

/* When the next head or body ends, or the next job comes. */
static int64_t next_event(const struct run *run)
{
    int64_t next = FOREVER;

    for (size_t t = 0; t < run->stations->task_count; t++)
        if (!run->held[t] && run->next_release[t] < run->horizon && run->next_release[t] < next)
            next = run->next_release[t];
    for (unsigned s = 0; s < PAPERS_STATIONS; s++)
        for (size_t i = 0; i < run->piece_count[s]; i++) {
            const struct piece *piece = &run->pieces[s][i];
            const int64_t left = piece->head > 0 ? piece->head : piece->body;
            if (piece->running && run->now + left < next)
                next = run->now + left;
        }
    return next;
}

static void advance(struct run *run, int64_t to)
{
    for (unsigned s = 0; s < PAPERS_STATIONS; s++)
        for (size_t i = 0; i < run->piece_count[s]; i++) {
            struct piece *piece = &run->pieces[s][i];
            if (!piece->running)
                continue;
            if (piece->head > 0)
                piece->head -= to - run->now;
            else
                piece->body -= to - run->now;
        }
    run->now = to;
}

void papers_stations_run(const struct papers_stations *stations, const struct papers_job_source *source,
                         int64_t horizon, struct papers_stations_result *result)
{
    struct run run = {.stations = stations, .source = source, .result = result, .horizon = horizon};

    memset(result, 0, sizeof *result);
    for (size_t t = 0; t < stations->task_count; t++)
        run.next_release[t] = source->release(source->context, t, 0);
    for (;;) {
        const int64_t next = next_event(&run);
        if (next == FOREVER || result->overflowed)
            return;
        advance(&run, next);
        for (unsigned s = 0; s < PAPERS_STATIONS; s++)
            take_done(&run, s);
        for (size_t t = 0; t < stations->task_count; t++)
            while (!run.held[t] && run.next_release[t] == run.now && run.now < horizon)
                release(&run, t);
        for (unsigned s = 0; s < PAPERS_STATIONS; s++)
            dispatch(&run, s);
    }
}
