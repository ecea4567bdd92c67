/* A folder of figures: CSV files, and a gnuplot script that makes the PNG files of them. One thread. */
#ifndef MILLRACE_BENCH_PICTURES_H
#define MILLRACE_BENCH_PICTURES_H

#include "core/status.h"

#include <limits.h>
#include <stdio.h>

/* Makes the folder if it is not there, and sees that it can be written to: before a long computation, not after. */
CORE_CHECKED core_status bench_pictures_folder(const char *folder, struct core_error *error);

/* A CSV file in the folder that is being written. */
struct bench_csv {
    FILE *file;
    char path[PATH_MAX];
};

/* Opens folder/NAME.csv, NAME as of printf, empty. */
CORE_CHECKED core_status bench_csv_open(const char *folder, struct bench_csv *csv, struct core_error *error,
                                        const char *format, ...) CORE_PRINTF(4, 5);
CORE_CHECKED core_status bench_csv_close(struct bench_csv *csv, struct core_error *error);

/* ---- the script, in the order of calls ---- */

/* What holds of all pictures. */
void bench_pictures_head(FILE *script);

/* Begins NAME.png, of so many pixels. */
void bench_pictures_begin(FILE *script, const char *name, int width, int height, const char *title);

/* Writes figures.gp, as `put` does with its context, and runs it. CORE_NOT_FOUND where there is no gnuplot: the
 * script is there then. */
CORE_CHECKED core_status bench_pictures_draw(const char *folder,
                                             void (*put)(const void *context, FILE *script),
                                             const void *context, struct core_error *error);

#endif
