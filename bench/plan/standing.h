/* How long an admission state (partition/admission/admission.h) takes over one stream more or less. One
 * thread.
 */
#ifndef MILLRACE_BENCH_PLAN_STANDING_H
#define MILLRACE_BENCH_PLAN_STANDING_H

#include "bench/plan/sets.h"
#include "bench/samples.h"

/* Microseconds each. */
struct bench_standing_times {
    size_t streams;               /* that stood */
    double slowness;              /* at which they all found room, one after the other */
    struct bench_samples fill;    /* each of the streams until they stood */
    struct bench_samples admit;   /* one stream more, accepted ... */
    struct bench_samples release; /* ... and gone again */
    struct bench_samples change;  /* another contract for a stream that stands, and its settling */
    /* With guaranteed streams among them: */
    size_t guaranteed;             /* so many, or as many as found room */
    struct bench_samples backed;   /* one more of these, accepted */
    struct bench_samples beside;   /* one more that is not */
    struct bench_samples unbacked; /* one that no machine has room for, with the search for offers */
    struct bench_samples refuse;   /* a stream that no machine has room for, with the search for offers */
};

/* Lets the first streams of the case's pool join, `slowness` times as slow or, if one is refused, slower, and
 * then times `probes` new streams of each kind. The case's method and rules do not matter. */
CORE_CHECKED core_status bench_standing_measure(const struct bench_plan_case *of, double slowness,
                                                uint32_t probes, struct core_stream_spec *specs,
                                                struct bench_standing_times *times, struct core_error *error);
void bench_standing_times_free(struct bench_standing_times *times);

#endif
