/* What a pipeline run found, as text or JSON on standard output. */
#ifndef MILLRACE_BENCH_PIPELINE_REPORT_H
#define MILLRACE_BENCH_PIPELINE_REPORT_H

#include "bench/pipeline/pipeline.h"

struct bench_pipeline_report {
    const struct bench_pipeline_options *options;
    const struct bench_pipeline_result *result;
    const char *streams; /* what they are: the workload's name, or "constant" */
};

/* An accepted plan: its rate, and of each GPU period, bounds and what it carries beside the limit of its
 * copies. */
void bench_pipeline_print_plan(const struct partition_plan_input *input, const struct partition_plan *plan);

void bench_pipeline_print(const struct bench_pipeline_report *report);
CORE_CHECKED core_status bench_pipeline_print_json(const struct bench_pipeline_report *report,
                                                   struct core_error *error);

/* No packet was late or wrong, and all that were sent came back. */
bool bench_pipeline_is_clean(const struct bench_pipeline_result *result);

#endif
