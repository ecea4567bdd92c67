/* The figures of Elliott and Anderson, "Globally scheduled real-time multiprocessor systems with GPUs" (Real-Time
 * Systems 2012).
 *
 * Sets are drawn as section 5.1 has it: a utilisation cap uniform in (0, m], tasks uniform in an interval of
 * utilisation and one of periods until the cap is exceeded, the last taken off again; a share of them, uniform in the
 * figure's interval, uses the GPU for 25, 50 or 75 % of the execution. Sets with fewer than two such tasks, or which
 * over-use the GPU at a glance, are discarded. Which of its three intervals of periods a figure of the paper has is not
 * said: 15 to 60 ms here. 1 tick is 1 us. */
#include "bench/papers/papers.h"

#include "bench/analyses/soft.h"
#include "bench/analyses/srm.h"
#include "bench/papers/attack.h"
#include "bench/papers/global.h"
#include "bench/pictures.h"

#include <math.h>
#include <string.h>

#define SPEEDS         4 /* 2, 4, 8, 16 times a processor */
#define BUCKETS        40
#define SETS_PER_POINT 20 /* so many times --sets are drawn for one picture */

/* ---- random sets ---- */

struct draw {
    unsigned m;
    double low, high;             /* utilisation of a task */
    double share_low, share_high; /* of tasks that use the GPU */
    double section;               /* share of the execution */
};

static double uniform(struct inputgen_random *random, double low, double high)
{
    return low + (high - low) * inputgen_random_uniform(random);
}

/* Returns the number of tasks, 0 for a set that is discarded. */
static size_t draw_set(const struct draw *draw, struct inputgen_random *random,
                       struct analyses_srm_task *tasks)
{
    const double cap = uniform(random, 0, draw->m);
    double sum = 0;
    size_t count = 0;

    while (count < ANALYSES_SRM_TASKS) {
        const double utilisation = uniform(random, draw->low, draw->high);
        const int64_t period = papers_random_in(random, 15000, 60000);
        sum += utilisation;
        if (sum > cap)
            break;
        tasks[count++] = (struct analyses_srm_task){.period = period,
                                                    .cpu = (int64_t)fmax(1, utilisation * (double)period)};
    }
    const double share = uniform(random, draw->share_low, draw->share_high);
    const size_t users = (size_t)lround(share * (double)count);
    double gpu = 0;
    for (size_t i = 0; i < users; i++) {
        struct analyses_srm_task *task = &tasks[i];
        task->section = (int64_t)fmax(1, draw->section * (double)task->cpu);
        task->gpu = task->section;
        task->cpu -= task->gpu;
        gpu += (double)task->section / (double)task->period;
    }
    return users < 2 || gpu > 1 ? 0 : count;
}

/* ---- how many of the sets of one U_eff pass (Fig. 6 to 13) ---- */

struct bucket {
    unsigned sets, shared, shared_cva, contained;
};
struct histogram {
    struct bucket of[SPEEDS][BUCKETS];
};

static double bucket_width(unsigned m)
{
    return (m + 16.0) / BUCKETS;
}

static void count_set(const struct papers_options *options, const struct draw *draw,
                      const struct analyses_srm_task *tasks, size_t count, struct histogram *histogram)
{
    const bool fmlp = analyses_srm_shared(draw->m, tasks, count, ANALYSES_SRM_FMLP).passes;
    const bool shared =
        options->as_printed && (fmlp || analyses_srm_shared(draw->m, tasks, count, ANALYSES_SRM_OMLP).passes);
    const bool cva =
        options->safe && (fmlp || analyses_srm_shared(draw->m, tasks, count, ANALYSES_SRM_OMLP2_CVA).passes);
    const bool contained = analyses_srm_contain(draw->m, tasks, count).passes;

    for (int f = 0; f < SPEEDS; f++) {
        const double at = analyses_srm_effective_utilisation(tasks, count, 2 << f) / bucket_width(draw->m);
        if (at >= BUCKETS)
            continue;
        struct bucket *bucket = &histogram->of[f][(size_t)at];
        bucket->sets++;
        bucket->shared += shared;
        bucket->shared_cva += cva;
        bucket->contained += contained;
    }
}

/* All rows of one picture come of the same sets: they are drawn for the first that is asked for. */
static const struct histogram *histogram_of(const struct papers_options *options, const struct draw *draw)
{
    static struct histogram histogram;
    static uint64_t of;
    static struct papers_options by;
    struct inputgen_random random;
    /* the draw as one number */
    const uint64_t seed = options->output.seed * 1000003 + draw->m + (uint64_t)(draw->high * 1e3) * 64 +
                          (uint64_t)(draw->share_high * 1e3) * 65536 +
                          (uint64_t)(draw->section * 1e3) * 67108864;

    if (of == seed && by.output.seed == options->output.seed && by.sets == options->sets &&
        by.as_printed == options->as_printed && by.safe == options->safe)
        return &histogram;
    memset(&histogram, 0, sizeof histogram);
    of = seed;
    by = *options;
    inputgen_random_seed(&random, seed);
    for (unsigned i = 0; i < SETS_PER_POINT * options->sets; i++) {
        struct analyses_srm_task tasks[ANALYSES_SRM_TASKS];
        const size_t count = draw_set(draw, &random, tasks);
        if (count > 0)
            count_set(options, draw, tasks, count, &histogram);
    }
    return &histogram;
}

static void put_bucket(const struct bucket *bucket, FILE *file)
{
    fprintf(file, ",%u,%u,%u,%u", bucket->sets, bucket->shared, bucket->shared_cva, bucket->contained);
}

static const double intervals[3][2] = {{0.01, 0.1}, {0.1, 0.4}, {0.5, 0.9}};
static const char insets[] = "abcdefghi";

/* Insets by row of three: 25, 50, 75 % of the GPU; from this interval of utilisation on. */
static void put_inset(const struct papers_options *options, unsigned m, size_t interval, double share_low,
                      double share_high, size_t row, FILE *file)
{
    const size_t inset = row / BUCKETS, bucket = row % BUCKETS;
    struct draw draw;

    draw.m = m;
    draw.low = intervals[interval + inset / 3][0];
    draw.high = intervals[interval + inset / 3][1];
    draw.share_low = share_low;
    draw.share_high = share_high;
    draw.section = 0.25 * (double)(inset % 3 + 1);
    const struct histogram *histogram = histogram_of(options, &draw);
    fprintf(file, "%c,%.3f", insets[inset], ((double)bucket + 0.5) * bucket_width(m));
    for (int f = 0; f < SPEEDS; f++)
        put_bucket(&histogram->of[f][bucket], file);
}

static void row_fig06(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_inset(options, 4, 0, 0.2, 0.3, row, file);
}

static void row_fig07(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_inset(options, 4, 2, 0.3, 0.4, row, file);
}

static void row_fig08(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_inset(options, 8, 0, 0.1, 0.2, row, file);
}

static void row_fig09(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_inset(options, 12, 0, 0, 0.1, row, file);
}

static void row_fig10(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_inset(options, 12, 2, 0.1, 0.2, row, file);
}

/* By the share of tasks that use the GPU: medium tasks, 75 %, 16 times. */
static void put_share(const struct papers_options *options, unsigned m, size_t row, FILE *file)
{
    const size_t tenth = row / BUCKETS, bucket = row % BUCKETS;
    struct draw draw;

    draw.m = m;
    draw.low = intervals[1][0];
    draw.high = intervals[1][1];
    draw.share_low = 0.1 * (double)tenth;
    draw.share_high = draw.share_low + 0.1;
    draw.section = 0.75;
    fprintf(file, "%zu%%,%.3f", 10 * (tenth + 1), ((double)bucket + 0.5) * bucket_width(m));
    put_bucket(&histogram_of(options, &draw)->of[SPEEDS - 1][bucket], file);
}

static void row_fig11(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_share(options, 4, row, file);
}

static void row_fig12(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_share(options, 8, row, file);
}

static void row_fig13(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)random;
    put_share(options, 12, row, file);
}

/* ---- the example (Fig. 3 and 5) ---- */

static int64_t at_once(void *context, size_t task, size_t job)
{
    (void)context, (void)task;
    return job == 0 ? 0 : INT64_MAX;
}

/* Two tasks of 5 on processors only; five of 3 there and 2 on the GPU, of which 4 under the lock; in the container they
 * are 5 long, and the next begins when one has ended. */
static void row_example(const struct papers_options *options, size_t row, struct inputgen_random *random,
                        FILE *file)
{
    struct papers_global global = {.m = 4, .count = 7};
    struct papers_global_result shared, contained;
    const struct papers_job_source source = {.release = at_once};

    (void)options, (void)random;
    for (size_t t = 0; t < 7; t++)
        global.tasks[t] =
            t < 2 ? (struct papers_global_task){.point = 30, .before = 5}
                  : (struct papers_global_task){.point = 30, .before = 1, .section_cpu = 2, .section_gpu = 2};
    papers_global_run(&global, &source, 1, &shared);
    for (size_t t = 2; t < 7; t++)
        global.tasks[t] = (struct papers_global_task){.point = 30, .section_cpu = 5};
    papers_global_run(&global, &source, 1, &contained);
    fprintf(file, "%zu,%lld,%lld", row + 1, (long long)shared.response[row],
            (long long)contained.response[row]);
}

/* ---- bounds against simulation ---- */

struct attacked {
    struct papers_global global;
    double bound[PAPERS_GLOBAL_TASKS];
};

static double nearest(const void *context, const struct papers_job_source *source, int64_t horizon)
{
    const struct attacked *attacked = context;
    struct papers_global_result result;
    double worst = 0;

    papers_global_run(&attacked->global, source, horizon, &result);
    for (size_t t = 0; t < attacked->global.count; t++)
        worst = fmax(worst, (double)result.response[t] / attacked->bound[t]);
    return worst;
}

/* Bounds under attack; after the tests, each of which has a verdict. */
enum claim { DEVI = ANALYSES_GEDF_TESTS, CVA, GFL, FMLP, OMLP, OMLP2, CLAIMS };

struct tally {
    unsigned passed, beaten;
    double worst;
};

static void attack(struct attacked *attacked, const struct analyses_srm_task *tasks,
                   struct inputgen_random *random, struct tally *tally)
{
    struct papers_attack search = {.task_count = attacked->global.count,
                                   .tries = 12,
                                   .periods = 4,
                                   .synchronous = true,
                                   .run = nearest,
                                   .context = attacked};

    for (size_t t = 0; t < search.task_count; t++)
        search.period[t] = tasks[t].period;
    const double reached = papers_attack_run(&search, random);
    tally->passed++;
    tally->beaten += reached > 1 + 1e-9;
    tally->worst = fmax(tally->worst, reached);
}

/* Small numbers, from easy to more than the processors can do; deadlines within periods for the tests. */
static void draw_small(struct inputgen_random *random, unsigned m, struct analyses_gedf_task *tasks,
                       size_t count)
{
    const int64_t crowd = papers_random_in(random, 1, 3); /* a quarter to three quarters full on average */

    for (size_t i = 0; i < count; i++) {
        tasks[i].period = papers_random_in(random, 4, 40);
        const int64_t most = 1 + crowd * m * tasks[i].period / (2 * (int64_t)count);
        tasks[i].cost = papers_random_in(random, 1, analyses_min(tasks[i].period, most));
        tasks[i].deadline = papers_random_in(random, (tasks[i].cost + tasks[i].period) / 2, tasks[i].period);
    }
}

static void try_tests(struct inputgen_random *random, unsigned m, struct analyses_gedf_task *tasks,
                      size_t count, struct attacked *attacked, const struct analyses_srm_task *periods,
                      struct tally *tallies)
{
    bool any = false, passes[ANALYSES_GEDF_TESTS];
    struct tally one = {0};

    for (int t = 0; t < ANALYSES_GEDF_TESTS; t++)
        any |= passes[t] = analyses_gedf_passes((enum analyses_gedf_test)t, m, tasks, count);
    if (!any)
        return;
    for (size_t i = 0; i < count; i++)
        attacked->bound[i] = (double)tasks[i].deadline;
    attack(attacked, periods, random, &one);
    for (int t = 0; t < ANALYSES_GEDF_TESTS; t++)
        if (passes[t]) {
            tallies[t].passed++;
            tallies[t].beaten += one.beaten;
            tallies[t].worst = fmax(tallies[t].worst, one.worst);
        }
}

static void try_soft(struct inputgen_random *random, unsigned m, struct analyses_gedf_task *tasks,
                     size_t count, struct attacked *attacked, const struct analyses_srm_task *periods,
                     struct tally *tallies)
{
    const double x = analyses_soft_devi(m, tasks, count);

    if (isinf(x))
        return;
    for (size_t i = 0; i < count; i++)
        attacked->bound[i] = x + (double)(tasks[i].period + tasks[i].cost);
    attack(attacked, periods, random, &tallies[DEVI]);
    analyses_soft_compliant(m, tasks, count, ANALYSES_SOFT_EDF, attacked->bound);
    attack(attacked, periods, random, &tallies[CVA]);
    analyses_soft_compliant(m, tasks, count, ANALYSES_SOFT_FL, attacked->bound);
    for (size_t i = 0; i < count; i++)
        attacked->global.tasks[i].point = analyses_soft_point(m, &tasks[i], ANALYSES_SOFT_FL);
    attack(attacked, periods, random, &tallies[GFL]);
}

static void try_locks(struct inputgen_random *random, unsigned m, const struct analyses_srm_task *tasks,
                      size_t count, struct attacked *attacked, struct tally *tallies)
{
    static const enum analyses_srm_variant variants[3] = {ANALYSES_SRM_FMLP, ANALYSES_SRM_OMLP,
                                                          ANALYSES_SRM_OMLP2_CVA};

    for (int v = 0; v < 3; v++) {
        const struct analyses_srm_result result = analyses_srm_shared(m, tasks, count, variants[v]);
        if (!result.passes)
            continue;
        attacked->global.lock = v == 0 ? PAPERS_LOCK_FIFO : PAPERS_LOCK_OMLP;
        for (size_t i = 0; i < count; i++)
            attacked->bound[i] = (double)(tasks[i].period + result.tardiness[i]);
        attack(attacked, tasks, random, &tallies[FMLP + v]);
    }
}

/* The same set with the GPU: some of each job's time, all of it under the lock or a little outside. */
static void use_gpu(struct inputgen_random *random, struct analyses_srm_task *tasks, size_t count,
                    struct papers_global *global)
{
    for (size_t i = 0; i < count; i++) {
        struct papers_global_task *to = &global->tasks[i];
        const int64_t cost = tasks[i].cpu;
        to->point = tasks[i].period;
        if (papers_random_in(random, 0, 2) == 0 || cost < 3)
            continue;
        tasks[i].section = papers_random_in(random, 1, cost);
        tasks[i].gpu = papers_random_in(random, 0, tasks[i].section);
        tasks[i].cpu = cost - tasks[i].gpu;
        *to = (struct papers_global_task){.point = tasks[i].period,
                                          .before = cost - tasks[i].section,
                                          .section_cpu = tasks[i].section - tasks[i].gpu,
                                          .section_gpu = tasks[i].gpu};
    }
}

static void try_set(struct inputgen_random *random, struct tally *tallies)
{
    const unsigned m = (unsigned)papers_random_in(random, 2, 4);
    const size_t count = (size_t)papers_random_in(random, m, 2 * m + 4);
    struct analyses_gedf_task tasks[PAPERS_GLOBAL_TASKS];
    struct analyses_srm_task shared[PAPERS_GLOBAL_TASKS];
    struct attacked attacked = {.global = {.m = m, .count = count}};

    draw_small(random, m, tasks, count);
    for (size_t i = 0; i < count; i++) {
        shared[i] = (struct analyses_srm_task){.period = tasks[i].period, .cpu = tasks[i].cost};
        attacked.global.tasks[i] =
            (struct papers_global_task){.point = tasks[i].deadline, .before = tasks[i].cost};
    }
    try_tests(random, m, tasks, count, &attacked, shared, tallies);
    for (size_t i = 0; i < count; i++)
        attacked.global.tasks[i].point = tasks[i].deadline = tasks[i].period;
    try_soft(random, m, tasks, count, &attacked, shared, tallies);
    use_gpu(random, shared, count, &attacked.global);
    try_locks(random, m, shared, count, &attacked, tallies);
}

static void row_sound(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    struct tally tallies[CLAIMS] = {{0}};

    for (unsigned i = 0; i < options->sets; i++)
        try_set(random, tallies);
    fprintf(file, "%zu,%u", row + 1, options->sets);
    for (int c = 0; c < CLAIMS; c++)
        fprintf(file, ",%u,%u,%.4f", tallies[c].passed, tallies[c].beaten, tallies[c].worst);
}

/* ---- pictures ---- */

/* A picture for each inset: the shares of the two methods at each speed. */
static void put_insets(const struct papers_figure *figure, FILE *script)
{
    const size_t count = figure->rows / BUCKETS;

    bench_pictures_begin(script, figure->name, 1500, (int)(400 * ((count + 2) / 3)), "");
    fprintf(script, "set multiplot layout %zu,3 title '%s'\nset xlabel 'U_{eff}'\nset yrange [0:1]\n",
            (count + 2) / 3, figure->title);
    for (size_t i = 0; i < count; i++) {
        fprintf(script, "set title '%c'\nplot for [f=0:3] '%s.csv' ", insets[i], figure->name);
        fprintf(
            script,
            "using (strcol(1) eq '%c' ? $2 : NaN):(column(4*f+4)/column(4*f+3)) with lines lw 2 lc f+1 title "
            "sprintf('SRM %%dx', 2**(f+1)), for [f=0:3] '%s.csv' using (strcol(1) eq '%c' ? $2 : "
            "NaN):(column(4*f+6)/column(4*f+3)) with lines lw 2 dt 2 lc f+1 title sprintf('CM %%dx', "
            "2**(f+1))\n",
            insets[i], figure->name, insets[i]);
        if (i == 0)
            fputs("unset key\n", script);
    }
    fputs("unset multiplot\nset key outside top center horizontal\nset yrange [*:*]\n", script);
}

/* Two pictures, a line for each tenth of tasks that use the GPU. */
static void put_shares(const struct papers_figure *figure, FILE *script)
{
    bench_pictures_begin(script, figure->name, 1300, 480, "");
    fprintf(script, "set multiplot layout 1,2 title '%s'\nset xlabel 'U_{eff}'\nset yrange [0:1]\n",
            figure->title);
    for (int method = 0; method < 2; method++)
        fprintf(script,
                "set title '%s'\nplot for [s=10:100:10] '%s.csv' using (strcol(1) eq sprintf('%%d%%%%', s) ? "
                "$2 : "
                "NaN):($%d/$3) with lines lw 2 title sprintf('%%d%%%%', s)\n",
                method == 0 ? "SRM" : "CM", figure->name, method == 0 ? 4 : 6);
    fputs("unset multiplot\nset yrange [*:*]\n", script);
}

#define SPEED_COLUMNS(f) f "x_sets," f "x_srm," f "x_srm_omlp2_cva," f "x_cm"
#define INSET_COLUMNS                                                                                        \
    "inset,u_eff," SPEED_COLUMNS("2") "," SPEED_COLUMNS("4") "," SPEED_COLUMNS("8") "," SPEED_COLUMNS("16")
#define SHARE_COLUMNS       "share_up_to,u_eff," SPEED_COLUMNS("16")
#define CLAIM_COLUMNS(name) name "_passed," name "_beaten,worst_" name

#define INSETS(figure, what, count, row_of)                                                                  \
    {                                                                                                        \
        .name = (figure), .title = (what), .columns = INSET_COLUMNS, .rows = (count)*BUCKETS,                \
        .row = (row_of), .put = put_insets                                                                   \
    }
#define SHARES(figure, what, row_of)                                                                         \
    {                                                                                                        \
        .name = (figure), .title = (what), .columns = SHARE_COLUMNS, .rows = 10 * BUCKETS, .row = (row_of),  \
        .put = put_shares                                                                                    \
    }

const struct papers_figure papers_gpu_sync[] = {
    {.name = "gpu-sync-example",
     .title = "Fig. 3 and 5: ends of the example's jobs",
     .columns = "task,shared,contained",
     .rows = 7,
     .row = row_example},
    INSETS("gpu-sync-fig06", "Fig. 6: 4 CPUs, 20 to 30 % of tasks use the GPU", 9, row_fig06),
    INSETS("gpu-sync-fig07", "Fig. 7: 4 CPUs, heavy tasks, 30 to 40 %", 3, row_fig07),
    INSETS("gpu-sync-fig08", "Fig. 8: 8 CPUs, 10 to 20 %", 9, row_fig08),
    INSETS("gpu-sync-fig09", "Fig. 9: 12 CPUs, up to 10 %", 6, row_fig09),
    INSETS("gpu-sync-fig10", "Fig. 10: 12 CPUs, heavy tasks, 10 to 20 %", 3, row_fig10),
    SHARES("gpu-sync-fig11", "Fig. 11: 4 CPUs, medium tasks, 75 %, 16x, by share of tasks that use the GPU",
           row_fig11),
    SHARES("gpu-sync-fig12", "Fig. 12: 8 CPUs, medium tasks, 75 %, 16x, by share of tasks that use the GPU",
           row_fig12),
    SHARES("gpu-sync-fig13", "Fig. 13: 12 CPUs, medium tasks, 75 %, 16x, by share of tasks that use the GPU",
           row_fig13),
    {.name = "gpu-sync-sound",
     .title = "random sets whose bounds a simulation exceeds",
     .columns =
         "block,sets," CLAIM_COLUMNS("gfb") "," CLAIM_COLUMNS("bak") "," CLAIM_COLUMNS("bar") "," CLAIM_COLUMNS("bcl") "," CLAIM_COLUMNS("bcli") "," CLAIM_COLUMNS("rta") "," CLAIM_COLUMNS(
             "ffdbf") "," CLAIM_COLUMNS("load") "," CLAIM_COLUMNS("devi") "," CLAIM_COLUMNS("cva") "," CLAIM_COLUMNS("gfl") "," CLAIM_COLUMNS("fmlp") "," CLAIM_COLUMNS("omlp") "," CLAIM_COLUMNS("omlp2"),
     .totals = true,
     .rows = 20,
     .row = row_sound},
};
const size_t papers_gpu_sync_count = sizeof papers_gpu_sync / sizeof papers_gpu_sync[0];
