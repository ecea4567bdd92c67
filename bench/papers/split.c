/* The figures of GPU-SAM (Journal of Systems and Software 2016) and of GPU-SPARC: kernels split over GPUs.
 *
 * Numbers of the papers' machines are as printed. Random sets follow their sections on simulation; how they spread
 * times over stages is not printed, and is said in pipeline_stations.h. */
#include "bench/papers/papers.h"

#include "bench/analyses/assign.h"
#include "bench/papers/assign_times.h"
#include "bench/papers/attack.h"
#include "bench/papers/pipeline_stations.h"

#include <math.h>
#include <string.h>

#define DRAWS_PER_SET 20 /* at most, for each set that OPTIMAL passes */
#define JOBS          20

enum scheme { SINGLE, INDIVIDUAL, HEURISTIC, OPTIMAL, SCHEMES };

/* ---- bounds against simulation ---- */

struct attacked {
    const struct analyses_pipeline_set *set;
    struct papers_stations stations;
    int64_t response[ANALYSES_PIPELINE_TASKS];
};

/* Of the tasks that end within their periods, as do all of higher priority: the bounds need it. */
static double nearest(const void *context, const struct papers_job_source *source, int64_t horizon)
{
    const struct attacked *attacked = context;
    struct papers_stations_result result;
    double worst = 0;

    papers_stations_run(&attacked->stations, source, horizon, &result);
    for (size_t t = 0; t < attacked->set->count && attacked->response[t] <= attacked->set->tasks[t].period;
         t++)
        worst = fmax(worst, (double)result.response[t] / (double)attacked->response[t]);
    return worst;
}

/* ---- how many of random sets each scheme passes ---- */

struct family {
    bool two_modes; /* GPU-SPARC */
    size_t rule_count;
    enum analyses_pipeline_variant rules[3]; /* the printed one first */
};
static const struct family sam = {false, 3, {ANALYSES_SAM_TXT, ANALYSES_SAM_SAFE, ANALYSES_SAM_MIN}};
static const struct family sparc = {true, 2, {ANALYSES_SPARC_PRINTED, ANALYSES_SPARC_SAFE}};

/* m becomes the assignment, but for OPTIMAL's. */
static bool passes(const struct analyses_pipeline *pipeline, bool two_modes, enum scheme scheme, unsigned *m)
{
    int64_t response[ANALYSES_PIPELINE_TASKS];

    switch (scheme) {
    case SINGLE:
        analyses_assign_single(pipeline->set, m);
        break;
    case INDIVIDUAL:
        analyses_assign_individual(pipeline->set, two_modes, m);
        break;
    case HEURISTIC:
        return two_modes ? analyses_assign_gema(pipeline, m).passes : analyses_assign_gpa(pipeline, m).passes;
    default:
        return analyses_assign_optimal(pipeline, two_modes, true).passing > 0;
    }
    return analyses_pipeline_respond(pipeline, m, response, NULL);
}

/* Counts the set for each scheme. What others pass, OPTIMAL does: the longer searches are spared by the shorter.
 * Returns whether the heuristic passes it, by m. */
static bool count_set(const struct analyses_pipeline_set *set, const struct family *family,
                      enum analyses_pipeline_variant rule, unsigned *passed, unsigned *m)
{
    struct analyses_pipeline pipeline;
    bool pass[SCHEMES];

    analyses_pipeline_prepare(&pipeline, set, rule);
    pass[SINGLE] = passes(&pipeline, family->two_modes, SINGLE, m);
    pass[INDIVIDUAL] = passes(&pipeline, family->two_modes, INDIVIDUAL, m);
    pass[OPTIMAL] = pass[SINGLE] || pass[INDIVIDUAL] || passes(&pipeline, family->two_modes, OPTIMAL, m);
    pass[HEURISTIC] = pass[OPTIMAL] && passes(&pipeline, family->two_modes, HEURISTIC, m);
    for (enum scheme s = SINGLE; s < SCHEMES; s++)
        passed[s] += pass[s];
    return pass[HEURISTIC];
}

/* Does a simulation find a missed deadline? Does not draw from `random`: sets are the same with it and without. */
static bool is_missed(const struct analyses_pipeline_set *set, const unsigned *m,
                      const struct inputgen_random *random)
{
    struct inputgen_random own = *random;
    struct attacked attacked = {.set = set};
    struct papers_attack attack = {
        .task_count = set->count, .tries = 12, .periods = 3, .run = nearest, .context = &attacked};

    papers_pipeline_stations(set, m, &attacked.stations);
    for (size_t t = 0; t < set->count; t++) {
        attack.period[t] = set->tasks[t].period;
        attacked.response[t] = set->tasks[t].deadline;
    }
    return papers_attack_run(&attack, &own) > 1;
}

static bool rule_wanted(const struct papers_options *options, size_t rule)
{
    return rule == 0 ? options->as_printed : options->safe;
}

/* Draws until OPTIMAL passes options->sets by the first rule that is wanted, or 20 times as many are drawn. Writes
 * the shares of OPTIMAL for each rule, then the counts, and the limits of the heuristic's share. */
static void put_point(const struct papers_options *options, const struct family *family,
                      const struct papers_pipeline_draw *draw, struct inputgen_random *random, FILE *file)
{
    unsigned passed[3][SCHEMES] = {{0}}, drawn = 0, missed = 0;
    const size_t leading = options->as_printed ? 0 : 1;

    while (passed[leading][OPTIMAL] < options->sets && drawn < DRAWS_PER_SET * options->sets) {
        struct analyses_pipeline_set set;
        unsigned m[ANALYSES_PIPELINE_TASKS];
        if (!papers_pipeline_draw_set(draw, random, &set))
            continue;
        drawn++;
        for (size_t r = 0; r < family->rule_count; r++)
            if (rule_wanted(options, r) && count_set(&set, family, family->rules[r], passed[r], m) && r == 0)
                missed += is_missed(&set, m, random);
    }
    for (size_t r = 0; r < family->rule_count; r++)
        for (enum scheme s = SINGLE; s < OPTIMAL; s++)
            if (passed[r][OPTIMAL] > 0)
                fprintf(file, ",%.4f", (double)passed[r][s] / passed[r][OPTIMAL]);
            else
                fputc(',', file);
    fprintf(file, ",%u", drawn);
    for (size_t r = 0; r < family->rule_count; r++) {
        if (!rule_wanted(options, r)) {
            fputs(",,,,,,,,", file);
            continue;
        }
        for (enum scheme s = SINGLE; s < HEURISTIC; s++)
            fprintf(file, ",%u", passed[r][s]);
        papers_put_share(file, passed[r][HEURISTIC], passed[r][OPTIMAL]);
        fprintf(file, ",%u,%.4f", passed[r][OPTIMAL], (double)passed[r][OPTIMAL] / drawn);
    }
    fprintf(file, ",%u", missed);
}

#define SHARE_COLUMNS(rule, h) rule " SINGLE," rule " LOCAL," rule " " h
#define COUNT_COLUMNS(rule, h)                                                                               \
    rule "_single," rule "_local," rule "_" h "," rule "_share," rule "_low," rule "_high," rule             \
         "_optimal," rule "_of_drawn"
#define SAM_COLUMNS                                                                                          \
    SHARE_COLUMNS("paper", "GPA")                                                                            \
    "," SHARE_COLUMNS("safe", "GPA") "," SHARE_COLUMNS("min", "GPA") ",drawn," COUNT_COLUMNS(                \
        "paper", "gpa") "," COUNT_COLUMNS("safe", "gpa") "," COUNT_COLUMNS("min", "gpa") ",paper_gpa_missed"
#define SPARC_COLUMNS                                                                                        \
    SHARE_COLUMNS("paper", "GEMA")                                                                           \
    "," SHARE_COLUMNS("safe", "GEMA") ",drawn," COUNT_COLUMNS("paper", "gema") "," COUNT_COLUMNS(            \
        "safe", "gema") ",paper_gema_missed"

static double utilisation_of(size_t row)
{
    return 0.2 * (double)(row + 1);
}

static void put_utilisation(const struct papers_options *options, const struct family *family, size_t row,
                            struct inputgen_random *random, FILE *file)
{
    const struct papers_pipeline_draw draw = {.gpu_utilisation = utilisation_of(row),
                                              .mixed = !family->two_modes};

    fprintf(file, "%.1f", draw.gpu_utilisation);
    put_point(options, family, &draw, random, file);
}

static void put_dependence(const struct papers_options *options, const struct family *family,
                           double utilisation, size_t row, struct inputgen_random *random, FILE *file)
{
    const struct papers_pipeline_draw draw = {
        .gpu_utilisation = utilisation, .mixed = !family->two_modes, .dependent = (double)row / 10};

    fprintf(file, "%.1f", draw.dependent);
    put_point(options, family, &draw, random, file);
}

static void row_sam_fig09(const struct papers_options *options, size_t row, struct inputgen_random *random,
                          FILE *file)
{
    put_utilisation(options, &sam, row, random, file);
}

static void row_sam_fig10(const struct papers_options *options, size_t row, struct inputgen_random *random,
                          FILE *file)
{
    put_dependence(options, &sam, 1.4, row, random, file);
}

static void row_sam_fig10_low(const struct papers_options *options, size_t row,
                              struct inputgen_random *random, FILE *file)
{
    put_dependence(options, &sam, 0.6, row, random, file);
}

static void row_sparc_fig07(const struct papers_options *options, size_t row, struct inputgen_random *random,
                            FILE *file)
{
    put_utilisation(options, &sparc, row, random, file);
}

static void row_sparc_fig08(const struct papers_options *options, size_t row, struct inputgen_random *random,
                            FILE *file)
{
    put_dependence(options, &sparc, 1.2, row, random, file);
}

static void row_sparc_fig08_low(const struct papers_options *options, size_t row,
                                struct inputgen_random *random, FILE *file)
{
    put_dependence(options, &sparc, 0.6, row, random, file);
}

/* ---- printed times of programs (Table 3, Fig. 4 and 5) ---- */

static void row_sam_table3(const struct papers_options *options, size_t row, struct inputgen_random *random,
                           FILE *file)
{
    static const struct {
        const char *name;
        double single[4], dual[4], single_printed,
            dual_printed; /* upload, kernel, download, merge; their sums */
    } programs[] = {
        {"AESEncrypt", {4.09, 69.11, 4.83, 0}, {9.96, 42.91, 9.04, 10.88}, 78.02, 78.79},
        {"AESDecrypt", {4.09, 209.50, 4.61, 0}, {9.97, 112.88, 9.07, 8.18}, 218.20, 140.11},
        {"BinomialOption", {0.72, 73.40, 0.83, 0}, {1.39, 39.58, 0.89, 0.60}, 74.65, 42.46},
        {"Filter", {0.31, 21.82, 0.34, 0}, {0.74, 13.21, 0.99, 0.51}, 22.48, 15.45},
        {"Histogram", {20.87, 16.67, 0.24, 0}, {54.23, 10.00, 0.95, 0.40}, 37.78, 65.59},
        {"K-nearest", {0.80, 111.97, 0.49, 0}, {2.90, 58.69, 2.83, 2.20}, 113.25, 66.63},
        {"MatrixMultiplication", {10.97, 249.74, 6.10, 0}, {26.05, 149.19, 13.52, 15.20}, 266.81, 203.97},
        {"Pagerank", {63.17, 838.05, 5.17, 0}, {297.63, 419.66, 60.36, 65.80}, 906.39, 843.46},
    };
    double single = 0, dual = 0;

    (void)options, (void)random;
    for (int i = 0; i < 4; i++) {
        single += programs[row].single[i];
        dual += programs[row].dual[i];
    }
    fprintf(file, "%s,%.2f,%.2f,%.2f,%.2f,%.1f,%.1f", programs[row].name, single, dual,
            programs[row].single_printed, programs[row].dual_printed, 100 * (dual / single - 1),
            100 * (programs[row].dual_printed / programs[row].single_printed - 1));
}

static void row_sam_fig05(const struct papers_options *options, size_t row, struct inputgen_random *random,
                          FILE *file)
{
    /* The text has the changes of the kernel, of the copies at 256 only, and of the total, in percent. The kernel's
     * share of the time with one GPU follows, where the merge is left out: total = copies + share (kernel - copies). */
    static const struct {
        int size;
        double kernel, total;
    } sizes[] = {{256, -43, 48}, {512, -47, 4}, {1024, -50, -25}};
    const double copies = 77;

    (void)options, (void)random;
    fprintf(file, "%d,%.0f,%.0f,%.0f,%.3f", sizes[row].size, 100.0, 100 + sizes[row].total, sizes[row].kernel,
            (sizes[row].total - copies) / (sizes[row].kernel - copies));
}

/* ---- Table 5 and Fig. 7 of GPU-SAM, Table IV of GPU-SPARC: three programs on two GPUs, 1 tick is 0.1 ms ---- */

struct applications {
    int64_t period[3], copies[3], kernel[3];
    double slower[3]; /* copies with two GPUs over those with one */
};

/* Half of what is not kernel uploads, half downloads. */
static void build_set(const struct applications *of, struct analyses_pipeline_set *set)
{
    *set = (struct analyses_pipeline_set){.units = {4, 1, 2}, .count = 3};
    for (size_t t = 0; t < 3; t++) {
        struct analyses_pipeline_task *task = &set->tasks[t];
        task->period = task->deadline = of->period[t];
        task->stage_count = 3;
        for (size_t s = 0; s < 3; s++)
            task->stages[s] = (struct analyses_pipeline_stage){
                .resource = ANALYSES_PCI,
                .time = {of->copies[t] / 2, (int64_t)((double)of->copies[t] / 2 * of->slower[t])}};
        task->stages[1] = (struct analyses_pipeline_stage){.resource = ANALYSES_GPU,
                                                           .time = {of->kernel[t], (of->kernel[t] + 1) / 2}};
    }
}

struct jobs {
    const struct analyses_pipeline_set *set;
    int64_t response[3][JOBS];
    unsigned late[3], done[3];
};

static int64_t job_release(void *context, size_t task, size_t job)
{
    const struct jobs *jobs = context;

    return (int64_t)job * jobs->set->tasks[task].period +
           (task < 2 ? 100 : 0); /* the last one a little earlier */
}

static void job_done(void *context, size_t task, size_t job, int64_t response)
{
    struct jobs *jobs = context;

    if (job < JOBS)
        jobs->response[task][job] = response;
    jobs->late[task] += response > jobs->set->tasks[task].deadline;
    jobs->done[task]++;
}

/* Runs the programs; copies go in chunks of a tick, as the papers chunk them. */
static void run_jobs(const struct analyses_pipeline_set *set, const unsigned *m, struct jobs *jobs)
{
    struct papers_stations stations;
    struct papers_stations_result result;
    const struct papers_job_source source = {.context = jobs, .release = job_release, .done = job_done};

    *jobs = (struct jobs){.set = set};
    papers_pipeline_stations(set, m, &stations);
    for (size_t t = 0; t < set->count; t++) {
        stations.tasks[t].one_at_a_time = true;
        for (size_t s = 0; s < stations.tasks[t].stage_count; s += 2) {
            stations.tasks[t].stages[s].pieces = stations.tasks[t].stages[s].body;
            stations.tasks[t].stages[s].body = 1;
        }
    }
    papers_stations_run(&stations, &source, 100000, &result);
}

static const struct applications table5 = {{4000, 800, 5000}, {200, 20, 30}, {3200, 480, 770}, {2, 2, 2}};
static const unsigned table5_modes[3][3] = {{1, 1, 1}, {2, 2, 2}, {1, 1, 2}}; /* Single, INDIVIDUAL, GPA */

static void row_sam_fig07(const struct papers_options *options, size_t row, struct inputgen_random *random,
                          FILE *file)
{
    struct analyses_pipeline_set set;

    (void)options, (void)random;
    build_set(&table5, &set);
    fprintf(file, "%zu", row + 1);
    for (size_t i = 0; i < 3; i++) {
        struct jobs jobs;
        run_jobs(&set, table5_modes[i], &jobs);
        for (size_t t = 0; t < 3; t++)
            fprintf(file, ",%.1f", (double)jobs.response[t][row] / 10);
    }
}

static void put_late(const struct applications *of, const unsigned *m, FILE *file)
{
    struct analyses_pipeline_set set;
    struct jobs jobs;

    build_set(of, &set);
    run_jobs(&set, m, &jobs);
    for (size_t t = 0; t < 3; t++)
        fprintf(file, ",%u of %u", jobs.late[t], jobs.done[t]);
}

static void row_sam_table5(const struct papers_options *options, size_t row, struct inputgen_random *random,
                           FILE *file)
{
    static const char *const schemes[3] = {"Single", "INDIVIDUAL", "GPA"};

    (void)options, (void)random;
    fputs(schemes[row], file);
    put_late(&table5, table5_modes[row], file);
}

static void row_sparc_table4(const struct papers_options *options, size_t row, struct inputgen_random *random,
                             FILE *file)
{
    /* The table has period and total; how much of it copies is as in Table 3 of GPU-SAM, of the same programs. */
    static const struct applications table4 = {
        {2000, 5000, 9000}, {14, 170, 460}, {1136, 2480, 5640}, {4.4, 2.3, 5.2}};
    static const char *const schemes[3] = {"Single", "LOCAL", "GEMA"};
    static const unsigned modes[3][3] = {{1, 1, 1}, {2, 2, 2}, {2, 1, 1}};

    (void)options, (void)random;
    fputs(schemes[row], file);
    put_late(&table4, modes[row], file);
}

static void put_sound(const struct papers_options *options, const struct family *family, size_t row,
                      struct inputgen_random *random, FILE *file)
{
    unsigned beaten[3] = {0};
    double worst[3] = {0};

    for (unsigned i = 0; i < options->sets; i++) {
        struct analyses_pipeline_set set;
        struct attacked attacked = {.set = &set};
        struct papers_attack attack = {.tries = 40, .periods = 4, .run = nearest, .context = &attacked};
        unsigned m[ANALYSES_PIPELINE_TASKS];
        papers_pipeline_draw_small(random, &set, m);
        for (size_t t = 0; t < set.count; t++) {
            if (family->two_modes && m[t] > 1)
                m[t] = set.units[ANALYSES_GPU];
            attack.period[t] = set.tasks[t].period;
        }
        papers_pipeline_stations(&set, m, &attacked.stations);
        attack.task_count = set.count;
        for (size_t r = 0; r < family->rule_count; r++) {
            struct analyses_pipeline pipeline;
            analyses_pipeline_prepare(&pipeline, &set, family->rules[r]);
            analyses_pipeline_respond(&pipeline, m, attacked.response, NULL);
            for (size_t t = 0; t < set.count;
                 t++) /* a task blocks with one stage at a time, however late it is */
                attacked.stations.tasks[t].one_at_a_time = attacked.response[t] > set.tasks[t].period;
            const double reached = papers_attack_run(&attack, random);
            beaten[r] += reached > 1;
            worst[r] = fmax(worst[r], reached);
        }
    }
    fprintf(file, "%zu,%u", row + 1, options->sets);
    for (size_t r = 0; r < family->rule_count; r++)
        fprintf(file, ",%u,%.4f", beaten[r], worst[r]);
}

static void row_sam_sound(const struct papers_options *options, size_t row, struct inputgen_random *random,
                          FILE *file)
{
    put_sound(options, &sam, row, random, file);
}

static void row_sparc_sound(const struct papers_options *options, size_t row, struct inputgen_random *random,
                            FILE *file)
{
    put_sound(options, &sparc, row, random, file);
}

const struct papers_figure papers_gpu_sam[] = {
    {.name = "gpu-sam-table3",
     .title = "Table 3, Fig. 4: programs on one GPU and on two",
     .columns = "program,one_ms,two_ms,one_printed_ms,two_printed_ms,change_percent,change_printed_percent",
     .rows = 8,
     .row = row_sam_table3},
    {.name = "gpu-sam-fig05",
     .title = "Fig. 5: multiplications on one GPU and on two",
     .x = "size",
     .y = "% of one GPU",
     .columns = "size,one GPU,two GPUs,kernel_change_percent,kernel_share_of_one",
     .first = 2,
     .last = 3,
     .step = 1,
     .log_x = true,
     .rows = 3,
     .row = row_sam_fig05},
    {.name = "gpu-sam-table5",
     .title = "Table 5: jobs that are late",
     .columns = "scheme,P1,P2,P3",
     .rows = 3,
     .row = row_sam_table5},
    {.name = "gpu-sam-fig07",
     .title = "Fig. 7: three programs on two GPUs",
     .x = "job",
     .y = "response, ms",
     .columns =
         "job,Single P1,Single P2,Single P3,INDIVIDUAL P1,INDIVIDUAL P2,INDIVIDUAL P3,GPA P1,GPA P2,GPA P3",
     .first = 2,
     .last = 10,
     .step = 1,
     .rows = JOBS,
     .row = row_sam_fig07},
    {.name = "gpu-sam-fig09",
     .title = "Fig. 9: sets that pass, of those of OPTIMAL, P_D 0",
     .x = "GPU utilisation",
     .y = "share",
     .columns = "gpu_utilisation," SAM_COLUMNS,
     .first = 2,
     .last = 10,
     .step = 1,
     .rows = 20,
     .row = row_sam_fig09},
    {.name = "gpu-sam-fig10",
     .title = "Fig. 10: sets that pass, of those of OPTIMAL, U_G 1.4",
     .x = "P_D",
     .y = "share",
     .columns = "dependent," SAM_COLUMNS,
     .first = 2,
     .last = 10,
     .step = 1,
     .rows = 11,
     .row = row_sam_fig10},
    {.name = "gpu-sam-fig10-low",
     .title = "Fig. 10 with U_G 0.6",
     .x = "P_D",
     .y = "share",
     .columns = "dependent," SAM_COLUMNS,
     .first = 2,
     .last = 10,
     .step = 1,
     .rows = 11,
     .row = row_sam_fig10_low},
    {.name = "gpu-sam-fig11",
     .title = "Fig. 11: how long it takes to assign",
     .x = "tasks",
     .y = "ms, measured",
     .columns = "tasks,GPA median,GPA longest,OPTIMAL median,OPTIMAL longest,sets,passed",
     .first = 2,
     .last = 5,
     .step = 1,
     .log_y = true,
     .rows = 15,
     .row = papers_assign_times},
    {.name = "gpu-sam-sound",
     .title = "random sets whose bounds a simulation exceeds",
     .columns = "block,sets,paper_beaten,worst_paper,safe_beaten,worst_safe,min_beaten,worst_min",
     .totals = true,
     .rows = 20,
     .row = row_sam_sound},
};
const size_t papers_gpu_sam_count = sizeof papers_gpu_sam / sizeof papers_gpu_sam[0];

const struct papers_figure papers_gpu_sparc[] = {
    {.name = "gpu-sparc-table4",
     .title = "Table IV: jobs that are late",
     .columns = "scheme,P1,P2,P3",
     .rows = 3,
     .row = row_sparc_table4},
    {.name = "gpu-sparc-fig07",
     .title = "Fig. 7: sets that pass, of those of GLOBAL, P_D 0",
     .x = "GPU utilisation",
     .y = "share",
     .columns = "gpu_utilisation," SPARC_COLUMNS,
     .first = 2,
     .last = 7,
     .step = 1,
     .rows = 20,
     .row = row_sparc_fig07},
    {.name = "gpu-sparc-fig08",
     .title = "Fig. 8: sets that pass, of those of GLOBAL, U_G 1.2",
     .x = "P_D",
     .y = "share",
     .columns = "dependent," SPARC_COLUMNS,
     .first = 2,
     .last = 7,
     .step = 1,
     .rows = 11,
     .row = row_sparc_fig08},
    {.name = "gpu-sparc-fig08-low",
     .title = "Fig. 8 with U_G 0.6",
     .x = "P_D",
     .y = "share",
     .columns = "dependent," SPARC_COLUMNS,
     .first = 2,
     .last = 7,
     .step = 1,
     .rows = 11,
     .row = row_sparc_fig08_low},
    {.name = "gpu-sparc-sound",
     .title = "random sets whose bounds a simulation exceeds",
     .columns = "block,sets,paper_beaten,worst_paper,safe_beaten,worst_safe",
     .totals = true,
     .rows = 20,
     .row = row_sparc_sound},
};
const size_t papers_gpu_sparc_count = sizeof papers_gpu_sparc / sizeof papers_gpu_sparc[0];
