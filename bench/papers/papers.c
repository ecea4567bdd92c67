/* millrace-bench papers: figures of four papers, computed anew, by their analyses as printed and repaired. */
#include "bench/papers/papers.h"

#include "bench/bench.h"
#include "bench/pictures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES   4096
#define COLUMNS_MAX  64
#define SETTINGS_MAX 128

enum { KEY_MODE = 256, KEY_SETS };

struct paper {
    const char *name;
    const struct papers_figure *figures;
    const size_t *count;
};

static const struct paper papers[] = {
    {"rgem", papers_rgem, &papers_rgem_count},
    {"gpu-sam", papers_gpu_sam, &papers_gpu_sam_count},
    {"gpu-sparc", papers_gpu_sparc, &papers_gpu_sparc_count},
    {"gpu-sync", papers_gpu_sync, &papers_gpu_sync_count},
};

static const struct argp_option option_table[] = {
    {"mode", KEY_MODE, "paper|safe|both", 0, "The analyses as printed, repaired, or both (default)", 0},
    {"sets", KEY_SETS, "N", 0, "Random sets for each point of a figure (default 200)", 0},
    {0},
};

static bool is_paper(const char *name)
{
    for (size_t p = 0; p < sizeof papers / sizeof papers[0]; p++)
        if (strcmp(papers[p].name, name) == 0)
            return true;
    return false;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct papers_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->output;
        return 0;
    case KEY_SETS:
        options->sets = (unsigned)core_options_count(state, "sets", argument, 1, 1000000);
        return 0;
    case KEY_MODE:
        options->as_printed = strcmp(argument, "safe") != 0;
        options->safe = strcmp(argument, "paper") != 0;
        if (options->as_printed && options->safe && strcmp(argument, "both") != 0)
            argp_error(state, "--mode %s: there are paper, safe and both", argument);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0 || !is_paper(argument))
            argp_error(state, "%s: one of rgem, gpu-sam, gpu-sparc, gpu-sync, or none for all of them",
                       argument);
        options->paper = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "[rgem|gpu-sam|gpu-sparc|gpu-sync]",
    "Compute the figures of four papers anew: RGEM (RTSS 2011), GPU-SAM (JSS 2016), GPU-SPARC, and globally "
    "scheduled GPU tasks (Elliott and Anderson 2012); by their analyses as printed, and by these repaired.\v"
    "The same seed gives the same files. A run that was stopped goes on where it was. The default takes "
    "minutes "
    "of one core. Needs gnuplot for the PNG files.",
    bench_options_output,
    NULL,
    NULL};

void papers_put_share(FILE *file, unsigned hits, unsigned total)
{
    const double z = 1.959964, n = total, share = total > 0 ? hits / n : 0;
    const double middle = (share + z * z / (2 * n)) / (1 + z * z / n);
    const double half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n));

    if (total == 0)
        fputs(",,,,", file);
    else
        fprintf(file, ",%u,%.4f,%.4f,%.4f", hits, share, fmax(0, middle - half), fmin(1, middle + half));
}

/* Lines of a file that are whole; the rest is cut off. 0 where there is no file. */
static core_status keep_whole_lines(const char *path, size_t *lines, struct core_error *error)
{
    FILE *file = fopen(path, "re");
    long whole = 0;

    *lines = 0;
    if (file == NULL)
        return CORE_OK;
    for (int c = fgetc(file); c != EOF; c = fgetc(file))
        if (c == '\n') {
            ++*lines;
            whole = ftell(file);
        }
    fclose(file);
    return truncate(path, whole) == 0 ? CORE_OK : core_error_errno(error, "%s", path);
}

static uint64_t hash_of(const char *text, uint64_t hash)
{
    for (; *text != '\0'; text++) /* FNV-1a */
        hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
    return hash;
}

static core_status write_rows(const struct papers_options *options, const struct papers_figure *figure,
                              FILE *file, size_t from, struct core_error *error)
{
    for (size_t row = from; row < figure->rows; row++) {
        struct inputgen_random random;
        inputgen_random_seed(
            &random, hash_of(figure->name, options->output.seed ^ UINT64_C(0xcbf29ce484222325)) + row);
        if (options->output.progress)
            fprintf(stderr, "%s: row %zu of %zu\n", figure->name, row + 1, figure->rows);
        figure->row(options, row, &random, file);
        if (fputc('\n', file) == EOF || fflush(file) != 0)
            return core_error_errno(error, "%s: can not be written", figure->name);
    }
    return CORE_OK;
}

static core_status path_of(const struct papers_options *options, const char *name, const char *ending,
                           char *path, struct core_error *error)
{
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s%s", options->output.folder, name, ending) >= PATH_MAX)
        return core_error_set(error, CORE_INVALID, "%s: the path is too long", options->output.folder);
    return CORE_OK;
}

/* Goes on with the file of the figure where it ends. */
static core_status write_figure(const struct papers_options *options, const struct papers_figure *figure,
                                struct core_error *error)
{
    char path[PATH_MAX];
    size_t lines;
    core_status status = path_of(options, figure->name, ".csv", path, error);

    if (status == CORE_OK)
        status = keep_whole_lines(path, &lines, error);
    if (status != CORE_OK || lines > figure->rows)
        return status;
    FILE *file = fopen(path, "ae");
    if (file == NULL)
        return core_error_errno(error, "%s: can not be written", path);
    if (lines == 0)
        fprintf(file, "%s\n", figure->columns);
    status = write_rows(options, figure, file, lines == 0 ? 0 : lines - 1, error);
    if (fclose(file) != 0 && status == CORE_OK)
        return core_error_errno(error, "%s: can not be written", path);
    return status;
}

static void put_totals(const struct papers_figure *figure, FILE *file)
{
    char head[LINE_BYTES], line[LINE_BYTES], *names[COLUMNS_MAX];
    double sum[COLUMNS_MAX] = {0};
    size_t count = 0;

    if (fgets(head, sizeof head, file) == NULL)
        return;
    head[strcspn(head, "\n")] = '\0';
    for (char *rest = head; rest != NULL && count < COLUMNS_MAX;)
        names[count++] = strsep(&rest, ",");
    while (fgets(line, sizeof line, file) != NULL) {
        char *rest = line;
        for (size_t i = 0; i < count && rest != NULL; i++) {
            const double value = strtod(strsep(&rest, ","), NULL);
            sum[i] = strncmp(names[i], "worst", 5) == 0 ? fmax(sum[i], value) : sum[i] + value;
        }
    }
    printf("%s, %s:", figure->name, figure->title);
    for (size_t i = 1; i < count; i++)
        printf(" %s %.*f%s", names[i], strncmp(names[i], "worst", 5) == 0 ? 4 : 0, sum[i],
               i + 1 < count ? "," : "\n");
}

static core_status tell_totals(const struct papers_options *options, const struct papers_figure *figure,
                               struct core_error *error)
{
    char path[PATH_MAX];
    const core_status status = path_of(options, figure->name, ".csv", path, error);

    if (status != CORE_OK)
        return status;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return core_error_errno(error, "%s", path);
    put_totals(figure, file);
    fclose(file);
    return CORE_OK;
}

/* Numbers of other settings are not to be mixed with these. */
static core_status check_settings(const struct papers_options *options, struct core_error *error)
{
    char path[PATH_MAX], mine[SETTINGS_MAX], there[SETTINGS_MAX] = "";
    const core_status status = path_of(options, "papers", ".settings", path, error);

    if (status != CORE_OK)
        return status;
    snprintf(mine, sizeof mine, "--mode %s --sets %u --seed %llu\n",
             !options->safe         ? "paper"
             : !options->as_printed ? "safe"
                                    : "both",
             options->sets, (unsigned long long)options->output.seed);
    FILE *file = fopen(path, "a+e");
    if (file == NULL)
        return core_error_errno(error, "%s: can not be written", path);
    rewind(file);
    if (fgets(there, sizeof there, file) == NULL)
        fputs(mine, file);
    if (fclose(file) != 0)
        return core_error_errno(error, "%s: can not be written", path);
    if (*there != '\0' && strcmp(there, mine) != 0)
        return core_error_set(error, CORE_INVALID, "%s: holds figures of %.*s: name another folder",
                              options->output.folder, (int)strcspn(there, "\n"), there);
    return CORE_OK;
}

static void put_picture(const struct papers_figure *figure, FILE *script)
{
    bench_pictures_begin(script, figure->name, 760, 480, figure->title);
    fprintf(script, "set xlabel '%s'\nset ylabel '%s'\n%s\n%s\n", figure->x, figure->y,
            figure->log_x ? "set logscale x 2" : "unset logscale x",
            figure->log_y ? "set logscale y" : "unset logscale y\nset yrange [0:*]");
    fprintf(script,
            "plot for [m=%u:%u:%u] '%s.csv' using 1:m with linespoints lw 2 title columnheader(m)\n"
            "unset logscale\nset yrange [*:*]\n",
            figure->first, figure->last, figure->step, figure->name);
}

static bool wanted(const struct papers_options *options, const struct paper *paper)
{
    return options->paper == NULL || strcmp(options->paper, paper->name) == 0;
}

static void put_script(const void *context, FILE *script)
{
    const struct papers_options *options = context;

    bench_pictures_head(script);
    for (size_t p = 0; p < sizeof papers / sizeof papers[0]; p++)
        for (size_t i = 0; wanted(options, &papers[p]) && i < *papers[p].count; i++)
            if (papers[p].figures[i].put != NULL)
                papers[p].figures[i].put(&papers[p].figures[i], script);
            else if (papers[p].figures[i].first > 0)
                put_picture(&papers[p].figures[i], script);
}

static core_status write_all(const struct papers_options *options, struct core_error *error)
{
    core_status status = CORE_OK;

    for (size_t p = 0; p < sizeof papers / sizeof papers[0]; p++)
        for (size_t i = 0; wanted(options, &papers[p]) && i < *papers[p].count && status == CORE_OK; i++) {
            status = write_figure(options, &papers[p].figures[i], error);
            if (status == CORE_OK && papers[p].figures[i].totals)
                status = tell_totals(options, &papers[p].figures[i], error);
        }
    return status;
}

int bench_papers(int argc, char **argv)
{
    struct papers_options options = {.as_printed = true, .safe = true, .sets = 200};
    struct core_error error = {"out of memory"};

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    core_status status = bench_pictures_folder(options.output.folder, &error);
    if (status == CORE_OK)
        status = check_settings(&options, &error);
    if (status == CORE_OK)
        status = write_all(&options, &error);
    if (status == CORE_OK)
        status = bench_pictures_draw(options.output.folder, put_script, &options, &error);
    if (status == CORE_OK)
        return 0;
    fprintf(stderr, "millrace-bench papers: %s\n", error.text);
    return 1;
}
