/* How capacities are told: as a table for people, or as one JSON document. One thread. */
#ifndef MILLRACE_BENCH_ESTIMATE_REPORT_H
#define MILLRACE_BENCH_ESTIMATE_REPORT_H

#include "bench/capacity.h"

struct bench_estimate {
    const char *workload;
    const struct bench_machine *machine;
    size_t pool;
    uint64_t seed;
    bool paper;
    struct bench_capacity *capacities; /* by method */
    size_t count;
    double bound_bits_per_s; /* of the method that only gives a bound; 0: none was asked */
};

void bench_estimate_print(const struct bench_estimate *estimate);
CORE_CHECKED core_status bench_estimate_print_json(const struct bench_estimate *estimate,
                                                   struct core_error *error);

#endif
