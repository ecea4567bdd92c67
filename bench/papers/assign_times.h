/* How long GPU-SAM's assignments take (its Fig. 11): the only figure that is measured, and not the same each time. */
#ifndef MILLRACE_BENCH_PAPERS_ASSIGN_TIMES_H
#define MILLRACE_BENCH_PAPERS_ASSIGN_TIMES_H

#include "bench/papers/papers.h"

/* Row r: 2 (r + 1) tasks; median and longest ms of GPA, and up to twelve tasks of OPTIMAL; sets, and how many pass. */
void papers_assign_times(const struct papers_options *options, size_t row, struct inputgen_random *random,
                         FILE *file);

#endif
