/* The figures of RGEM (Kato et al., RTSS 2011).
 *
 * The copies of its GeForce GTX 480 are solved from the four times that the paper prints. What it does not print is
 * assumed, and said here: the matrix multiplication copies 4 MiB up and 4 MiB down, and its kernel takes the rest
 * of the 33 ms that the whole takes alone; the search uploads its data, reads them once at the card's memory
 * bandwidth (177.4 GB/s), downloads 4 bytes, and begins again, every 0.1 ms at most. Calls of the scheduler and switches cost nothing beside the
 * overhead of a chunk, which was measured with them. */
#include "bench/papers/papers.h"

#include "bench/analyses/rgem.h"
#include "bench/papers/attack.h"

#include <math.h>
#include <string.h>

#define MIB                 (INT64_C(1) << 20)
#define MATRIX_BYTES        (4 * MIB)
#define MATRIX_NS           INT64_C(33000000)
#define INTERVAL_NS         INT64_C(50000000)
#define MEMORY_BYTES_PER_NS 177.4
#define CHOSEN_CHUNK        MIB
#define CHUNK_SIZES         5
#define JOBS                20
#define TASKS_MAX           6

enum { COPIES, KERNELS, COPIES_DOWN }; /* stations; the last where the directions have a queue each */

static const int64_t chunk_sizes[CHUNK_SIZES] = {32, 1 << 10, 32 << 10, MIB, 16 * MIB};

/* ---- copies (figures 7 and 8) ---- */

static struct analyses_rgem_fit up_fit(void)
{
    return analyses_rgem_fit(16 * MIB, 32, 3892e6, 32 << 10, 15e6);
}

static struct analyses_rgem_fit down_fit(void)
{
    return analyses_rgem_fit(16 * MIB, 32, 4088e6, 32 << 10, 21e6);
}

static double copy_ns(struct analyses_rgem_fit fit, int64_t bytes, int64_t chunk_bytes)
{
    return fit.overhead * (double)analyses_ceil(bytes, chunk_bytes) +
           fit.base * (double)bytes / (double)(16 * MIB);
}

static void put_copies(struct analyses_rgem_fit fit, size_t row, FILE *file)
{
    const int64_t bytes = INT64_C(32) << row;

    fprintf(file, "%lld", (long long)bytes);
    for (int c = 0; c < CHUNK_SIZES; c++)
        fprintf(file, ",%.4f", copy_ns(fit, bytes, chunk_sizes[c]) / 1e6);
}

static void row_fig07(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)options, (void)random;
    put_copies(up_fit(), row, file);
}

static void row_fig08(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)options, (void)random;
    put_copies(down_fit(), row, file);
}

/* ---- measured runs, simulated (figures 9 to 12) ---- */

struct program {
    int64_t bytes_up, bytes_down, kernel_ns, interval_ns;
};

/* Responses of the jobs of each task. */
struct watch {
    const struct program *programs;
    size_t count[PAPERS_STATION_TASKS];
    double sum_ns[PAPERS_STATION_TASKS], last_ns[PAPERS_STATION_TASKS][JOBS];
};

static int64_t watch_release(void *context, size_t task, size_t job)
{
    const struct watch *watch = context;

    /* the last task a little earlier, as in the paper */
    return (int64_t)job * watch->programs[task].interval_ns +
           (task == 0 ? 1000000 : 100000 * (int64_t)(task - 1));
}

static void watch_done(void *context, size_t task, size_t job, int64_t response)
{
    struct watch *watch = context;

    watch->count[task]++;
    watch->sum_ns[task] += (double)response;
    if (job < JOBS)
        watch->last_ns[task][job] = (double)response;
}

static struct papers_stage copy_stage(struct analyses_rgem_fit fit, int64_t bytes, int64_t chunk_bytes)
{
    const int64_t piece_bytes = bytes < chunk_bytes ? bytes : chunk_bytes;

    return (struct papers_stage){.station = COPIES,
                                 .head = chunk_bytes == INT64_MAX ? 0 : (int64_t)fit.overhead,
                                 .body = (int64_t)ceil(fit.base * (double)piece_bytes / (double)(16 * MIB)),
                                 .pieces = bytes == 0                 ? 0
                                           : chunk_bytes == INT64_MAX ? 1
                                                                      : analyses_ceil(bytes, chunk_bytes),
                                 .parallel = 1};
}

/* The programs by priority under RGEM with chunks of this size, or with whole copies first come first served
 * (INT64_MAX). */
static void run_programs(const struct program *programs, size_t count, int64_t chunk_bytes,
                         int64_t horizon_ns, struct watch *watch, struct papers_stations_result *result)
{
    struct papers_stations stations = {
        .units = {1, 1, 1}, .by_arrival = chunk_bytes == INT64_MAX, .eager = true, .task_count = count};
    const struct papers_job_source source = {.context = watch, .release = watch_release, .done = watch_done};

    *watch = (struct watch){.programs = programs};
    for (size_t t = 0; t < count; t++) {
        struct papers_stage *stages = stations.tasks[t].stages;
        stations.tasks[t].one_at_a_time = true;
        stations.tasks[t].stage_count = 3;
        stages[0] = copy_stage(up_fit(), programs[t].bytes_up, chunk_bytes);
        stages[1] = (struct papers_stage){
            .station = KERNELS, .body = programs[t].kernel_ns, .pieces = 1, .parallel = 1};
        stages[2] = copy_stage(down_fit(), programs[t].bytes_down, chunk_bytes);
    }
    papers_stations_run(&stations, &source, horizon_ns, result);
}

static struct program matrix_of(int64_t bytes)
{
    const int64_t copies_ns = (int64_t)(copy_ns(up_fit(), MATRIX_BYTES, 4 * MATRIX_BYTES) +
                                        copy_ns(down_fit(), MATRIX_BYTES, 4 * MATRIX_BYTES));
    const double share = pow((double)bytes / (double)MATRIX_BYTES, 1.5); /* n^3 of n^2 */

    return (struct program){.bytes_up = bytes,
                            .bytes_down = bytes,
                            .kernel_ns = (int64_t)((double)(MATRIX_NS - copies_ns) * share),
                            .interval_ns = INTERVAL_NS};
}

static struct program search_of(int64_t bytes)
{
    return (struct program){.bytes_up = bytes,
                            .bytes_down = 4,
                            .kernel_ns = (int64_t)((double)bytes / MEMORY_BYTES_PER_NS),
                            .interval_ns = 100000};
}

static void row_fig09(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    const int64_t chunk_bytes = INT64_C(32) << row;
    struct program programs[2] = {matrix_of(MATRIX_BYTES), search_of(16 * MIB)};
    struct watch watch;
    struct papers_stations_result result;

    (void)options, (void)random;
    programs[0].interval_ns = 3 * (int64_t)copy_ns(up_fit(), MATRIX_BYTES, chunk_bytes) + 97000003;
    run_programs(programs, 2, chunk_bytes, 8 * programs[0].interval_ns, &watch, &result);
    fprintf(file, "%lld,%.4f,%.4f", (long long)chunk_bytes, (double)result.stage[0][0] / 1e6,
            (double)result.stage[0][2] / 1e6);
}

static void put_fig10(int64_t matrix_bytes, size_t row, FILE *file)
{
    const int64_t bytes = INT64_C(32) << row;
    const struct program programs[2] = {matrix_of(matrix_bytes), search_of(bytes)};

    fprintf(file, "%lld", (long long)bytes);
    for (int vanilla = 0; vanilla < 2; vanilla++) {
        struct watch watch;
        struct papers_stations_result result;
        run_programs(programs, 2, vanilla ? INT64_MAX : CHOSEN_CHUNK, 20 * INTERVAL_NS, &watch, &result);
        fprintf(file, ",%.4f,%.4f", watch.sum_ns[0] / (double)watch.count[0] / 1e6,
                (double)result.response[0] / 1e6);
    }
}

static void row_fig10a(const struct papers_options *options, size_t row, struct inputgen_random *random,
                       FILE *file)
{
    (void)options, (void)random;
    put_fig10(MATRIX_BYTES, row, file);
}

static void row_fig10b(const struct papers_options *options, size_t row, struct inputgen_random *random,
                       FILE *file)
{
    (void)options, (void)random;
    put_fig10(MATRIX_BYTES / 16, row, file);
}

/* One line a job: the responses of each task, and their sum. */
static void put_jobs(size_t tasks, size_t row, FILE *file)
{
    struct program programs[4];

    for (size_t t = 0; t < tasks; t++)
        programs[t] = matrix_of(MATRIX_BYTES);
    fprintf(file, "%zu", row + 1);
    for (int vanilla = 0; vanilla < 2; vanilla++) {
        struct watch watch;
        struct papers_stations_result result;
        double sum_ns = 0;
        run_programs(programs, tasks, vanilla ? INT64_MAX : CHOSEN_CHUNK, 400 * INTERVAL_NS, &watch, &result);
        for (size_t t = 0; t < tasks; t++) {
            if (watch.last_ns[t][row] > 0 && watch.last_ns[t][row] < 100.0 * INTERVAL_NS)
                fprintf(file, ",%.4f", watch.last_ns[t][row] / 1e6);
            else
                fputc(',', file); /* starved */
            sum_ns += watch.last_ns[t][row];
        }
        fprintf(file, ",%.4f", sum_ns / 1e6);
    }
}

static void row_fig11(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)options, (void)random;
    put_jobs(2, row, file);
}

static void row_fig12(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    (void)options, (void)random;
    put_jobs(4, row, file);
}

/* ---- the bounds of the appendix against simulation ---- */

struct drawn {
    struct analyses_rgem_system system;
    struct analyses_rgem_task tasks[TASKS_MAX];
    size_t count;
    struct analyses_rgem_bounds bounds[ANALYSES_RGEM_VARIANTS][TASKS_MAX];
    enum analyses_rgem_variant aim;
    struct papers_stations stations;
};

static void draw_set(struct drawn *drawn, struct inputgen_random *random)
{
    struct analyses_rgem_system *system = &drawn->system;

    drawn->count = (size_t)papers_random_in(random, 2, TASKS_MAX);
    system->chunk_bytes = INT64_C(1) << papers_random_in(random, 15, 20);
    system->up_ns = system->chunk_bytes * papers_random_in(random, 200, 700) / 1000;
    system->down_ns = system->chunk_bytes * papers_random_in(random, 200, 1000) / 1000;
    system->scheduler_ns = papers_random_in(random, 500, 5000);
    system->setup_ns = papers_random_in(random, 1000, 8000);
    system->switch_ns = papers_random_in(random, 500, 4000);
    system->copy_queue_ns = papers_random_in(random, 0, 3000);
    system->kernel_queue_ns = papers_random_in(random, 0, 3000);
    for (size_t i = 0; i < drawn->count; i++) {
        struct analyses_rgem_task *task = &drawn->tasks[i];
        const int64_t longest_ns = 20000000 / (int64_t)drawn->count;
        *task = (struct analyses_rgem_task){.period_ns = papers_random_log(random, 20000000, 100000000)};
        task->up_bytes =
            papers_random_in(random, 0, 2) == 0 ? 0 : papers_random_log(random, 1, 8 * system->chunk_bytes);
        task->down_bytes =
            papers_random_in(random, 0, 2) == 0 ? 0 : papers_random_log(random, 1, 8 * system->chunk_bytes);
        task->kernels = (size_t)papers_random_in(random, 0, 3);
        for (size_t k = 0; k < task->kernels; k++)
            task->kernel_ns[k] = papers_random_log(random, 10000, longest_ns);
    }
}

static void add_stage(struct papers_stations *stations, size_t task, struct papers_stage stage)
{
    stations->tasks[task].stages[stations->tasks[task].stage_count++] = stage;
}

/* Upload, kernels, download; one queue for both directions. */
static void build_stations(const struct drawn *drawn, struct papers_stations *stations)
{
    const struct analyses_rgem_system *system = &drawn->system;
    const int64_t head_ns = system->scheduler_ns + system->setup_ns + system->switch_ns;

    *stations = (struct papers_stations){.units = {1, 1, 1}, .eager = true, .task_count = drawn->count};
    for (size_t i = 0; i < drawn->count; i++) {
        const struct analyses_rgem_task *task = &drawn->tasks[i];
        struct papers_stage stage = {.station = COPIES, .head = head_ns, .parallel = 1};
        stage.body = system->up_ns;
        stage.pieces = analyses_rgem_chunks(system, task->up_bytes);
        add_stage(stations, i, stage);
        stage.station = KERNELS;
        stage.pieces = 1;
        for (size_t k = 0; k < task->kernels; k++) {
            stage.body = task->kernel_ns[k];
            stage.joined = k > 0;
            add_stage(stations, i, stage);
        }
        stage.joined = false;
        stage.station = COPIES;
        stage.body = system->down_ns;
        stage.pieces = analyses_rgem_chunks(system, task->down_bytes);
        add_stage(stations, i, stage);
    }
}

static double over(int64_t seen_ns, int64_t bound_ns)
{
    return seen_ns == 0 || bound_ns == ANALYSES_NEVER ? 0 : (double)seen_ns / (double)bound_ns;
}

/* The longest of the operations of a task, over its bound. */
static double nearest(const struct drawn *drawn, const struct papers_stations_result *result, size_t task,
                      enum analyses_rgem_variant variant)
{
    const struct analyses_rgem_bounds *bounds = &drawn->bounds[variant][task];
    const size_t kernels = drawn->tasks[task].kernels;
    double worst = over(result->stage[task][0], bounds->up_ns - drawn->system.copy_queue_ns);

    if (kernels > 0) /* the last is told from the first on */
        worst = fmax(worst,
                     over(result->stage[task][kernels], bounds->kernel_ns - drawn->system.kernel_queue_ns));
    return fmax(worst, over(result->stage[task][kernels + 1], bounds->down_ns - drawn->system.copy_queue_ns));
}

/* Do this task and those of higher priority end their jobs within their periods, as the bounds need? */
static bool within_periods(const struct drawn *drawn, size_t task)
{
    for (size_t h = 0; h <= task; h++)
        if (analyses_rgem_response_ns(&drawn->bounds[ANALYSES_RGEM_ONCE][h]) > drawn->tasks[h].period_ns)
            return false;
    return true;
}

static double attacked(const void *context, const struct papers_job_source *source, int64_t horizon)
{
    const struct drawn *drawn = context;
    struct papers_stations_result result;
    double worst = 0;

    papers_stations_run(&drawn->stations, source, horizon, &result);
    for (size_t i = 0; i < drawn->count && within_periods(drawn, i); i++)
        worst = fmax(worst, nearest(drawn, &result, i, drawn->aim));
    return worst;
}

static void row_sound(const struct papers_options *options, size_t row, struct inputgen_random *random,
                      FILE *file)
{
    unsigned beaten[ANALYSES_RGEM_VARIANTS] = {0};
    double worst[ANALYSES_RGEM_VARIANTS] = {0};

    for (unsigned s = 0; s < options->sets; s++) {
        struct drawn drawn;
        struct papers_attack attack = {.tries = 12, .periods = 3, .run = attacked, .context = &drawn};
        draw_set(&drawn, random);
        build_stations(&drawn, &drawn.stations);
        attack.task_count = drawn.count;
        for (size_t i = 0; i < drawn.count; i++)
            attack.period[i] = drawn.tasks[i].period_ns;
        for (int v = 0; v < ANALYSES_RGEM_VARIANTS; v++)
            analyses_rgem_bound(&drawn.system, drawn.tasks, drawn.count, (enum analyses_rgem_variant)v,
                                drawn.bounds[v]);
        for (int v = 0; v < ANALYSES_RGEM_VARIANTS; v++) {
            drawn.aim = (enum analyses_rgem_variant)v;
            const double reached = papers_attack_run(&attack, random);
            beaten[v] += reached > 1;
            worst[v] = fmax(worst[v], reached);
        }
    }
    fprintf(file, "%zu,%u", row + 1, options->sets);
    for (int v = 0; v < ANALYSES_RGEM_VARIANTS; v++)
        fprintf(file, ",%u,%.4f", beaten[v], worst[v]);
}

#define ROWS_32B_TO_16MIB  20
#define ROWS_32B_TO_512MIB 25

const struct papers_figure papers_rgem[] = {
    {.name = "rgem-fig07",
     .title = "Fig. 7: upload by data and chunk",
     .x = "data, bytes",
     .y = "ms",
     .columns = "data_bytes,chunk 32 B,chunk 1 KiB,chunk 32 KiB,chunk 1 MiB,chunk 16 MiB",
     .first = 2,
     .last = 6,
     .step = 1,
     .log_x = true,
     .log_y = true,
     .rows = ROWS_32B_TO_16MIB,
     .row = row_fig07},
    {.name = "rgem-fig08",
     .title = "Fig. 8: download by data and chunk",
     .x = "data, bytes",
     .y = "ms",
     .columns = "data_bytes,chunk 32 B,chunk 1 KiB,chunk 32 KiB,chunk 1 MiB,chunk 16 MiB",
     .first = 2,
     .last = 6,
     .step = 1,
     .log_x = true,
     .log_y = true,
     .rows = ROWS_32B_TO_16MIB,
     .row = row_fig08},
    {.name = "rgem-fig09",
     .title = "Fig. 9: longest copies beside a search of 16 MiB",
     .x = "chunk, bytes",
     .y = "ms",
     .columns = "chunk_bytes,upload,download",
     .first = 2,
     .last = 3,
     .step = 1,
     .log_x = true,
     .log_y = true,
     .rows = ROWS_32B_TO_16MIB,
     .row = row_fig09},
    {.name = "rgem-fig10a",
     .title = "Fig. 10a: multiplication of 4 MiB beside a search",
     .x = "data of the search, bytes",
     .y = "ms",
     .columns = "data_bytes,RGEM mean,RGEM longest,vanilla mean,vanilla longest",
     .first = 2,
     .last = 5,
     .step = 1,
     .log_x = true,
     .log_y = true,
     .rows = ROWS_32B_TO_512MIB,
     .row = row_fig10a},
    {.name = "rgem-fig10b",
     .title = "Fig. 10b: multiplication of 256 KiB beside a search",
     .x = "data of the search, bytes",
     .y = "ms",
     .columns = "data_bytes,RGEM mean,RGEM longest,vanilla mean,vanilla longest",
     .first = 2,
     .last = 5,
     .step = 1,
     .log_x = true,
     .log_y = true,
     .rows = ROWS_32B_TO_512MIB,
     .row = row_fig10b},
    {.name = "rgem-fig11",
     .title = "Fig. 11: two multiplications",
     .x = "job",
     .y = "response, ms",
     .columns = "job,RGEM high,RGEM low,RGEM sum,vanilla high,vanilla low,vanilla sum",
     .first = 2,
     .last = 7,
     .step = 1,
     .rows = JOBS,
     .row = row_fig11},
    {.name = "rgem-fig12",
     .title = "Fig. 12: four multiplications",
     .x = "job",
     .y = "response, ms",
     .columns =
         "job,RGEM 1,RGEM 2,RGEM 3,RGEM 4,RGEM sum,vanilla 1,vanilla 2,vanilla 3,vanilla 4,vanilla sum",
     .first = 2,
     .last = 11,
     .step = 1,
     .rows = JOBS,
     .row = row_fig12},
    {.name = "rgem-sound",
     .title = "random sets whose bounds a simulation exceeds",
     .columns =
         "block,sets,lit_beaten,worst_lit,fix_beaten,worst_fix,half_beaten,worst_half,once_beaten,worst_once",
     .totals = true,
     .rows = 20,
     .row = row_sound},
};
const size_t papers_rgem_count = sizeof papers_rgem / sizeof papers_rgem[0];
