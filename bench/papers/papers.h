/* The figures and tables of four papers, computed anew: what a figure is, and the folder that it is written to.
 *
 * Every row of a figure depends on the seed, the name of the figure and the number of the row only. So a run that
 * was stopped goes on where it was, and gives the same files. One thread. */
#ifndef MILLRACE_BENCH_PAPERS_PAPERS_H
#define MILLRACE_BENCH_PAPERS_PAPERS_H

#include "bench/options.h"
#include "core/status.h"
#include "inputgen/random.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct papers_options {
    struct bench_options_output output;
    const char *paper; /* NULL: all */
    bool as_printed, safe;
    unsigned sets; /* to draw for each row that is about random sets */
};

/* One figure or table: a CSV file and a picture. A table of these is a file of its paper. */
struct papers_figure {
    const char *name; /* of its files, "<paper>-fig09" */
    const char *title, *x, *y;
    const char *columns; /* first line of the CSV file */
    unsigned first, last,
        step; /* columns that are drawn over the first column; first 0: there is no picture */
    bool log_x, log_y;
    bool
        totals; /* tell the sums of the columns, and the greatest of those named worst_..., when it is done */
    size_t rows;
    /* Writes one row, without the end of its line. */
    void (*row)(const struct papers_options *options, size_t row, struct inputgen_random *random, FILE *file);
    void (*put)(const struct papers_figure *figure, FILE *script); /* NULL: the picture is of first .. last */
};

extern const struct papers_figure papers_rgem[], papers_gpu_sam[], papers_gpu_sparc[], papers_gpu_sync[];
extern const size_t papers_rgem_count, papers_gpu_sam_count, papers_gpu_sparc_count, papers_gpu_sync_count;

/* Writes ",hits,ratio,low,high": the share of hits in `total` and the limits between which it is with 95 %
 * confidence (Wilson). Four empty cells where total is 0. */
void papers_put_share(FILE *file, unsigned hits, unsigned total);

#endif
