#include "bench/papers/attack.h"

#include <math.h>

enum style { FULL, FIRST_SHORT, RANDOM, STYLES };

/* One way in which the tasks may behave. */
struct behaviour {
    const struct papers_attack *attack;
    int64_t phase[PAPERS_STATION_TASKS];
    int64_t gap[PAPERS_STATION_TASKS]; /* more than the period between the first two jobs */
    enum style style[PAPERS_STATION_TASKS];
    uint64_t salt;
};

int64_t papers_random_in(struct inputgen_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)(inputgen_random_next(random) % ((uint64_t)(high - low) + 1));
}

int64_t papers_random_log(struct inputgen_random *random, int64_t low, int64_t high)
{
    const double from = log((double)low), to = log((double)high + 1);
    const int64_t value = (int64_t)exp(from + (to - from) * inputgen_random_uniform(random));

    return value < low ? low : value > high ? high : value;
}

static int64_t release(void *context, size_t task, size_t job)
{
    const struct behaviour *behaviour = context;

    return behaviour->phase[task] + (int64_t)job * behaviour->attack->period[task] +
           (job > 0 ? behaviour->gap[task] : 0);
}

/* 64 bits that depend on all of the arguments (splitmix64's finish). */
static uint64_t mixed(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t z = a + UINT64_C(0x9e3779b97f4a7c15) * (b + 1) + UINT64_C(0xbf58476d1ce4e5b9) * (c + 1) +
                 UINT64_C(0x94d049bb133111eb) * (d + 1);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t length(void *context, size_t task, size_t job, size_t stage, int64_t most)
{
    const struct behaviour *behaviour = context;
    const uint64_t bits = mixed(behaviour->salt, task, job, stage);

    if (behaviour->style[task] == FULL || (behaviour->style[task] == FIRST_SHORT && job > 0))
        return most;
    if (bits % 4 == 0)
        return most;
    return bits % 4 == 1 ? 1 : 1 + (int64_t)((bits >> 8) % (uint64_t)most);
}

static int64_t longest_period(const struct papers_attack *attack)
{
    int64_t longest = 1;

    for (size_t t = 0; t < attack->task_count; t++)
        longest = attack->period[t] > longest ? attack->period[t] : longest;
    return longest;
}

static void draw_task(struct behaviour *behaviour, size_t task, struct inputgen_random *random)
{
    const int64_t period = behaviour->attack->period[task];

    behaviour->phase[task] = papers_random_in(random, 0, period - 1);
    behaviour->gap[task] = papers_random_in(random, 0, 3) == 0 ? papers_random_in(random, 0, period) : 0;
    behaviour->style[task] = (enum style)papers_random_in(random, 0, 2 * STYLES) % STYLES;
}

/* One task behaves otherwise: anew, just before or with another one, or a little earlier or later. */
static void change(struct behaviour *behaviour, struct inputgen_random *random)
{
    const int64_t last = (int64_t)behaviour->attack->task_count - 1;
    const size_t task = (size_t)papers_random_in(random, 0, last),
                 other = (size_t)papers_random_in(random, 0, last);
    const int64_t period = behaviour->attack->period[task];
    int64_t *phase = &behaviour->phase[task];

    switch (papers_random_in(random, 0, 3)) {
    case 0:
        draw_task(behaviour, task, random);
        break;
    case 1:
        *phase = behaviour->phase[other] - papers_random_in(random, 0, 1);
        break;
    case 2:
        *phase += papers_random_in(random, -period / 8, period / 8);
        break;
    default:
        behaviour->style[task] = (enum style)papers_random_in(random, 0, STYLES - 1);
        behaviour->salt = inputgen_random_next(random);
        break;
    }
    if (*phase < 0)
        *phase = *phase < -period ? 0 : *phase + period;
}

double papers_attack_run(const struct papers_attack *attack, struct inputgen_random *random)
{
    const int64_t horizon = attack->periods * longest_period(attack);
    struct behaviour best = {.attack = attack, .salt = inputgen_random_next(random)}, tried;
    double best_score = -1;

    for (unsigned i = 0; i < attack->tries; i++) {
        tried = best;
        if (i == 0 && !attack->synchronous)
            for (size_t t = 0; t < attack->task_count; t++)
                draw_task(&tried, t, random);
        if (i > 0)
            change(&tried, random);
        const struct papers_job_source source = {.context = &tried, .release = release, .length = length};
        const double score = attack->run(attack->context, &source, horizon);
        if (score >= best_score) {
            best_score = score;
            best = tried;
        }
    }
    return best_score;
}
