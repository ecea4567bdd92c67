/* The task sets of tests/data/gpusam_*.csv and gpusparc_*.csv. */
#ifndef MILLRACE_TESTS_PIPELINE_SETS_H
#define MILLRACE_TESTS_PIPELINE_SETS_H

#include "bench/analyses/pipeline.h"

struct test_pipeline_sets;

/* "gpusam" or "gpusparc". GPU-SPARC's times of multi-GPU mode are those of all GPUs. */
struct test_pipeline_sets *test_pipeline_sets_open(const char *name);
void test_pipeline_sets_free(struct test_pipeline_sets *sets);

/* The set of this number, which must be there. */
const struct analyses_pipeline_set *test_pipeline_set(const struct test_pipeline_sets *sets, int64_t number);

#endif
