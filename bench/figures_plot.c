#include "bench/figures.h"

#include "bench/pictures.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *rules_title(int rules)
{
    return rules == 0 ? "by the rules of the paper" : "by the rules of the server";
}

/* ---- bars and lines, a column a method ---- */

static void put_bars(const struct bench_figures *figures, FILE *file, int rules)
{
    char name[64], title[128];

    snprintf(name, sizeof name, "fig10-%s", bench_figures_rules[rules]);
    snprintf(title, sizeof title, "Fig. 10: methods on 2 GPUs, %s", rules_title(rules));
    bench_pictures_begin(file, name, 900, 520, title);
    fprintf(file,
            "set style data histograms\nset style histogram clustered gap 1\n"
            "set xlabel 'workload'\nset ylabel 'Gbit/s'\nset yrange [0:*]\nset xtics auto\n"
            "plot for [m=2:%zu] '%s.csv' using m:xtic(1) title columnheader(m)\n",
            figures->method_count + 1, name);
}

/* Columns first to the last; `using` may speak of one as m. */
static void put_lines(const struct bench_figures *figures, FILE *file, const char *csv, unsigned first,
                      bool bound, const char *using)
{
    size_t methods = 0;

    for (size_t m = 0; m < figures->method_count; m++)
        methods += bound || partition_plan_methods[m].places;
    fprintf(file,
            "plot for [m=%u:%zu] '%s.csv' using %s with linespoints lw 2 pt m+4 title columnheader(m)\n",
            first, methods + first - 1, csv, using);
}

static void put_scaling(const struct bench_figures *figures, FILE *file, const char *figure, int rules,
                        const char *what, const char *axis)
{
    const bool bound = strcmp(axis, "Gbit/s") == 0; /* it has a total */
    char name[64], title[160];

    snprintf(name, sizeof name, "%s-%s", figure, bench_figures_rules[rules]);
    snprintf(title, sizeof title, "%s, %s", what, rules_title(rules));
    bench_pictures_begin(file, name, 720, 480, title);
    fprintf(file, "set xlabel 'GPUs'\nset ylabel '%s'\nset xtics 1\nset yrange [0:*]\n", axis);
    put_lines(figures, file, name, 2, bound, "1:m");
}

/* The throughput of the GPUs alone as a multiple of that of one. */
static void put_speedup(const struct bench_figures *figures, FILE *file, int rules)
{
    char name[64], title[160];

    snprintf(name, sizeof name, "fig12a-speedup-%s", bench_figures_rules[rules]);
    snprintf(title, sizeof title, "Fig. 12a: exp, GPUs alone, as a multiple of one, %s", rules_title(rules));
    bench_pictures_begin(file, name, 720, 480, title);
    fputs("set xlabel 'GPUs'\nset ylabel 'times one GPU'\nset xtics 1\nset yrange [0:*]\none = 1\n", file);
    snprintf(name, sizeof name, "fig12a-gpu-%s", bench_figures_rules[rules]);
    put_lines(figures, file, name, 2, false, "1:(one = int($0) == 0 ? column(m) : one, column(m) / one)");
}

static void put_bounds(const struct bench_figures *figures, FILE *file, int rules)
{
    char name[64], using[64];

    snprintf(name, sizeof name, "bound-%s", bench_figures_rules[rules]);
    bench_pictures_begin(file, name, 1500, 420, "");
    fprintf(file,
            "set multiplot layout 1,%d title 'Share of the fluid bound, %s'\n"
            "set xlabel 'GPUs'\nset ylabel '%%'\nset xtics 1\nset yrange [0:100]\nset key at graph 0.95,0.35 "
            "right top vertical samplen 1\n",
            BENCH_FIGURES_WORKLOADS, rules_title(rules));
    for (int w = 0; w < BENCH_FIGURES_WORKLOADS; w++) {
        fprintf(file, "set title '%s'\n", bench_figures_workloads[w]);
        snprintf(using, sizeof using, "(strcol(1) eq '%s' ? $2 : NaN):m", bench_figures_workloads[w]);
        put_lines(figures, file, name, 3, false, using);
        if (w == 0)
            fputs("unset key\n", file);
    }
    fputs("unset multiplot\nset key outside top center horizontal\n", file);
}

/* ---- streams as dots ---- */

static void put_samples(FILE *file)
{
    bench_pictures_begin(file, "fig10-workloads", 1500, 360, "");
    fprintf(file,
            "set multiplot layout 1,%d title 'Fig. 10: streams of the workloads'\n"
            "set xlabel 'rate, Mbit/s'\nset ylabel 'deadline, ms'\nset xtics auto\nset yrange [0:45]\n"
            "set xrange [0:7]\n",
            BENCH_FIGURES_WORKLOADS);
    for (int w = 0; w < BENCH_FIGURES_WORKLOADS; w++)
        fprintf(file,
                "set title '%s'\n"
                "plot 'fig10-workloads.csv' using (strcol(1) eq '%s' ? $2 : NaN):3 with points pt 7 ps 0.3 "
                "notitle\n",
                bench_figures_workloads[w], bench_figures_workloads[w]);
    fputs("unset multiplot\n", file);
    bench_pictures_begin(file, "fig12b", 600, 480, "Fig. 12b: 200 streams of exp");
    fputs("set yrange [0:*]\nplot 'fig12b.csv' using 1:2 with points pt 7 ps 0.6 notitle\nset xrange [*:*]\n",
          file);
}

/* The streams of a plan, a colour a GPU; what the paper prints as its rectangle is drawn around. */
static void put_fig7(FILE *file, const char *csv, uint32_t gpus, const char *title)
{
    bench_pictures_begin(file, csv, 800, 600, title);
    fprintf(file,
            "set xlabel 'deadline, ms'\nset ylabel 'rate, Mbit/s'\nset xtics auto\nset xrange [0:110]\n"
            "set yrange [0:3]\n"
            "set object 1 rectangle from 27,0 to 81,1.8 front fs empty border rgb 'black' lw 2\n"
            "plot for [g=0:%u] '%s.csv' using 2:($3 == g ? $1 : NaN) with points pt 7 ps 0.25 lc g+1 "
            "title g == 0 ? 'CPU' : sprintf('GPU %%d', g - 1), "
            "NaN with lines lc rgb 'black' lw 2 title 'rectangle that the paper prints'\n"
            "unset object 1\nset xrange [*:*]\n",
            gpus, csv);
}

static bool is_there(const struct bench_figures *figures, const char *csv)
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/%s.csv", figures->options.output.folder, csv);

    return length > 0 && (size_t)length < sizeof path && access(path, R_OK) == 0;
}

static void put_fig7_of(const struct bench_figures *figures, FILE *file, int rules, uint32_t gpus,
                        const struct partition_plan_method *method)
{
    char csv[64], title[128];

    snprintf(csv, sizeof csv, "fig07-%s-%s-%u", bench_figures_rules[rules], method->name, gpus);
    snprintf(title, sizeof title, "Fig. 7: %s on %u GPU%s, %s", method->name, gpus, gpus == 1 ? "" : "s",
             rules_title(rules));
    if (bench_figures_fig7_drawn(rules, gpus, method) && is_there(figures, csv)) /* unless refused */
        put_fig7(file, csv, gpus, title);
}

static void put_fig7s(const struct bench_figures *figures, FILE *file)
{
    for (int rules = 0; rules < BENCH_FIGURES_RULES; rules++)
        for (uint32_t gpus = 1; gpus <= 2; gpus++)
            for (size_t m = 0; m < figures->method_count; m++)
                put_fig7_of(figures, file, rules, gpus, &partition_plan_methods[m]);
}

static void put_script(const void *context, FILE *file)
{
    const struct bench_figures *figures = context;

    bench_pictures_head(file);
    put_fig7s(figures, file);
    put_samples(file);
    for (int rules = 0; rules < BENCH_FIGURES_RULES; rules++) {
        if (figures->options.gpus >= 2)
            put_bars(figures, file, rules);
        put_scaling(figures, file, "fig11", rules, "Fig. 11: const, CPU and GPUs", "Gbit/s");
        put_scaling(figures, file, "fig12a-total", rules, "Fig. 12a: exp, CPU and GPUs", "Gbit/s");
        put_speedup(figures, file, rules);
        put_scaling(figures, file, "fig12c", rules, "Fig. 12c: exp, shortest deadline on a GPU", "ms");
        put_bounds(figures, file, rules);
    }
}

core_status bench_figures_plot(const struct bench_figures *figures, struct core_error *error)
{
    return bench_pictures_draw(figures->options.output.folder, put_script, figures, error);
}
