/* A histogram of durations with bounded relative error: log-linear buckets, fixed memory, no allocation.
 *
 * Values are nanoseconds from 0 to 2^40 - 1 (about 18 minutes); larger ones count in the last bucket,
 * negative ones count as 0, in the sum as well, which so never falls; minimum and maximum are kept exactly. A
 * percentile is the upper edge of its bucket, never more than 1/64 (1.6 %) above the true value and never
 * below it.
 *
 * One thread records. Any thread may read at the same time: counters are relaxed atomics, so a reader sees
 * each counter whole, but a sum may run a few records behind. */
#ifndef MILLRACE_CORE_HISTOGRAM_H
#define MILLRACE_CORE_HISTOGRAM_H

#include "core/time.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define CORE_HISTOGRAM_SUB_BITS 6
#define CORE_HISTOGRAM_MAX_BITS 40
#define CORE_HISTOGRAM_BUCKETS                                                                               \
    ((CORE_HISTOGRAM_MAX_BITS - CORE_HISTOGRAM_SUB_BITS + 1) << CORE_HISTOGRAM_SUB_BITS)

struct core_histogram {
    _Atomic uint64_t count[CORE_HISTOGRAM_BUCKETS]; /* atomic: written by the recorder, read by any */
    _Atomic uint64_t total;
    _Atomic int64_t sum_ns;
    _Atomic core_ns minimum_ns; /* CORE_NS_NEVER while empty */
    _Atomic core_ns maximum_ns; /* INT64_MIN while empty */
};

void core_histogram_init(struct core_histogram *histogram);

/* Adds one value. Wait-free; recorder only. */
void core_histogram_record(struct core_histogram *histogram, core_ns value_ns);

/* target += source. Both may be read by others meanwhile; target must have no other recorder. */
void core_histogram_merge(struct core_histogram *target, const struct core_histogram *source);

/* The smallest bucket edge at or above `percent` (0..100) of the values, clamped to the exact minimum and
 * maximum; 0 while empty. */
core_ns core_histogram_percentile_ns(const struct core_histogram *histogram, double percent);

core_ns core_histogram_mean_ns(const struct core_histogram *histogram);    /* 0 while empty */
core_ns core_histogram_minimum_ns(const struct core_histogram *histogram); /* 0 while empty */
core_ns core_histogram_maximum_ns(const struct core_histogram *histogram); /* 0 while empty */
uint64_t core_histogram_total(const struct core_histogram *histogram);

/* How many values are at most limit_ns: those in buckets that end there or below, so never too many, and too
 * few only by values within 1/64 of the limit. CORE_NS_NEVER counts all; below 0 is 0. */
uint64_t core_histogram_count_within(const struct core_histogram *histogram, core_ns limit_ns);

/* Writes the percentile distribution in the text format of HdrHistogram (.hgrm), values divided by unit_ns
 * (1000 for microseconds). Returns what fprintf says: negative on a write error. */
int core_histogram_write_hgrm(const struct core_histogram *histogram, FILE *file, double unit_ns);

#endif
