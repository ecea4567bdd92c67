/* The tests of gedf.h that look at many points of time: BAR, FFDBF, LOAD. For gedf.c, which has seen that each task
 * and all of them fit. */
#ifndef MILLRACE_ANALYSES_GEDF_POINTS_H
#define MILLRACE_ANALYSES_GEDF_POINTS_H

#include "bench/analyses/gedf.h"

bool analyses_gedf_bar(unsigned m, const struct analyses_gedf_task *tasks, size_t count);
bool analyses_gedf_ffdbf(unsigned m, const struct analyses_gedf_task *tasks, size_t count);
bool analyses_gedf_load(unsigned m, const struct analyses_gedf_task *tasks, size_t count);

#endif
