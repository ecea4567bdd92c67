#include "core/histogram.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#define SUB_BUCKETS (UINT64_C(1) << CORE_HISTOGRAM_SUB_BITS)
#define VALUE_MAX   ((INT64_C(1) << CORE_HISTOGRAM_MAX_BITS) - 1)

/* There is one writer, so a plain load, add and store is enough, and it is far cheaper than a locked add.
 * Relaxed everywhere: each counter stands for itself and orders nothing. */
#define LOAD(object)         atomic_load_explicit(&(object), memory_order_relaxed)
#define STORE(object, value) atomic_store_explicit(&(object), value, memory_order_relaxed)
#define ADD(object, value)   STORE(object, LOAD(object) + (value))

/* Who asks for bounds of an hour reaches the end of 63 bits; there the sum stays. */
static core_ns sum_of(core_ns sum_ns, core_ns more_ns)
{
    return more_ns < INT64_MAX - sum_ns ? sum_ns + more_ns : INT64_MAX;
}

/* Buckets are one wide below SUB_BUCKETS; above, each power of two is cut into SUB_BUCKETS equal ones. */
static unsigned bucket_of(core_ns value_ns)
{
    if (value_ns < (core_ns)SUB_BUCKETS)
        return value_ns < 0 ? 0 : (unsigned)value_ns;
    if (value_ns > VALUE_MAX)
        return CORE_HISTOGRAM_BUCKETS - 1;
    const uint64_t value = (uint64_t)value_ns;
    const unsigned shift = 63U - (unsigned)__builtin_clzll(value) - CORE_HISTOGRAM_SUB_BITS;
    return (shift << CORE_HISTOGRAM_SUB_BITS) + (unsigned)(value >> shift);
}

/* The largest value that bucket_of puts into the bucket. */
static core_ns bucket_top_ns(unsigned bucket)
{
    if (bucket < SUB_BUCKETS)
        return bucket;
    const unsigned shift = (bucket >> CORE_HISTOGRAM_SUB_BITS) - 1;
    const uint64_t lead = bucket - ((uint64_t)shift << CORE_HISTOGRAM_SUB_BITS);
    return (core_ns)(((lead + 1) << shift) - 1);
}

void core_histogram_init(struct core_histogram *histogram)
{
    for (unsigned i = 0; i < CORE_HISTOGRAM_BUCKETS; i++)
        STORE(histogram->count[i], 0);
    STORE(histogram->total, 0);
    STORE(histogram->sum_ns, 0);
    STORE(histogram->minimum_ns, CORE_NS_NEVER);
    STORE(histogram->maximum_ns, INT64_MIN);
}

static void extremes_widen(struct core_histogram *histogram, core_ns low_ns, core_ns high_ns)
{
    if (low_ns < LOAD(histogram->minimum_ns))
        STORE(histogram->minimum_ns, low_ns);
    if (high_ns > LOAD(histogram->maximum_ns))
        STORE(histogram->maximum_ns, high_ns);
}

void core_histogram_record(struct core_histogram *histogram, core_ns value_ns)
{
    ADD(histogram->count[bucket_of(value_ns)], 1);
    ADD(histogram->total, 1);
    STORE(histogram->sum_ns, sum_of(LOAD(histogram->sum_ns), core_time_max(value_ns, 0)));
    extremes_widen(histogram, value_ns, value_ns);
}

void core_histogram_merge(struct core_histogram *target, const struct core_histogram *source)
{
    for (unsigned i = 0; i < CORE_HISTOGRAM_BUCKETS; i++) {
        const uint64_t count = LOAD(source->count[i]);
        if (count != 0)
            ADD(target->count[i], count);
    }
    ADD(target->total, LOAD(source->total));
    STORE(target->sum_ns, sum_of(LOAD(target->sum_ns), LOAD(source->sum_ns)));
    extremes_widen(target, LOAD(source->minimum_ns), LOAD(source->maximum_ns));
}

/* What one bucket says: its top, but never outside the exact extremes. The first and the last bucket also
 * hold what lies beyond the range, so only the exact extremes bound them. */
static core_ns bucket_value_ns(const struct core_histogram *histogram, unsigned bucket)
{
    const core_ns minimum_ns = LOAD(histogram->minimum_ns), maximum_ns = LOAD(histogram->maximum_ns);
    const core_ns top_ns = bucket == CORE_HISTOGRAM_BUCKETS - 1 ? maximum_ns : bucket_top_ns(bucket);
    if (top_ns > maximum_ns)
        return maximum_ns;
    return core_time_max(top_ns, minimum_ns);
}

/* The buckets' own sum: while another thread records, `total` may differ from it. */
static uint64_t counted(const struct core_histogram *histogram)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < CORE_HISTOGRAM_BUCKETS; i++)
        sum += LOAD(histogram->count[i]);
    return sum;
}

/* How many of the smallest values are `percent` of them all. 99.9 % of 1000 must give 999, although 99.9 is
 * no binary fraction and the product comes out a hair above. */
static double rank_of(double percent, uint64_t total)
{
    return percent >= 100 ? (double)total : ceil(percent * (double)total / 100 * (1 - 4 * DBL_EPSILON));
}

core_ns core_histogram_percentile_ns(const struct core_histogram *histogram, double percent)
{
    const uint64_t total = counted(histogram);
    if (total == 0)
        return 0;
    if (!(percent > 0))
        return core_histogram_minimum_ns(histogram);
    const double rank = rank_of(percent, total);
    uint64_t seen = 0;
    for (unsigned i = 0; i < CORE_HISTOGRAM_BUCKETS; i++) {
        seen += LOAD(histogram->count[i]);
        if ((double)seen >= rank)
            return bucket_value_ns(histogram, i);
    }
    return core_histogram_maximum_ns(histogram);
}

core_ns core_histogram_mean_ns(const struct core_histogram *histogram)
{
    const uint64_t total = LOAD(histogram->total);
    return total == 0 ? 0 : LOAD(histogram->sum_ns) / (core_ns)total;
}

core_ns core_histogram_minimum_ns(const struct core_histogram *histogram)
{
    return LOAD(histogram->total) == 0 ? 0 : LOAD(histogram->minimum_ns);
}

core_ns core_histogram_maximum_ns(const struct core_histogram *histogram)
{
    return LOAD(histogram->total) == 0 ? 0 : LOAD(histogram->maximum_ns);
}

uint64_t core_histogram_total(const struct core_histogram *histogram)
{
    return LOAD(histogram->total);
}

uint64_t core_histogram_count_within(const struct core_histogram *histogram, core_ns limit_ns)
{
    const unsigned end =
        limit_ns >= VALUE_MAX ? CORE_HISTOGRAM_BUCKETS : (limit_ns < 0 ? 0 : bucket_of(limit_ns + 1));
    uint64_t sum = 0;
    for (unsigned i = 0; i < end; i++)
        sum += LOAD(histogram->count[i]);
    return sum;
}

/* From the buckets' middles, so that their width cancels out; the tops would widen every spread. */
static double deviation_ns(const struct core_histogram *histogram, double mean_ns)
{
    double squares = 0;
    for (unsigned i = 0; i < CORE_HISTOGRAM_BUCKETS; i++) {
        const uint64_t count = LOAD(histogram->count[i]);
        if (count != 0) {
            const core_ns top_ns = bucket_value_ns(histogram, i);
            const core_ns below_ns = i == 0 ? 0 : bucket_top_ns(i - 1);
            const double middle_ns = (double)(top_ns < below_ns ? top_ns : below_ns / 2 + top_ns / 2);
            const double distance_ns = middle_ns - mean_ns;
            squares += (double)count * distance_ns * distance_ns;
        }
    }
    return sqrt(squares / (double)LOAD(histogram->total));
}

/* The next quantile to report: five steps in every halving of the distance to 1, as HdrHistogram does. */
static double quantile_next(double quantile)
{
    const double halvings = floor(-log2(1 - quantile)) + 1;
    return quantile + 1 / (5 * exp2(halvings));
}

/* One line for each quantile that falls into a bucket, then the line of the maximum. */
static int distribution_write(const struct core_histogram *histogram, FILE *file, double unit_ns)
{
    const uint64_t total = LOAD(histogram->total);
    double quantile = 0;
    uint64_t seen = 0;
    for (unsigned i = 0; i < CORE_HISTOGRAM_BUCKETS && seen < total; i++) {
        const uint64_t count = LOAD(histogram->count[i]);
        seen += count;
        for (; count != 0 && seen < total && quantile <= (double)seen / (double)total;
             quantile = quantile_next(quantile)) {
            const double value = (double)bucket_value_ns(histogram, i) / unit_ns;
            if (fprintf(file, "%12.3f %14.12f %10" PRIu64 " %14.2f\n", value, quantile, seen,
                        1 / (1 - quantile)) < 0)
                return -1;
        }
    }
    return fprintf(file, "%12.3f %14.12f %10" PRIu64 "\n",
                   (double)core_histogram_maximum_ns(histogram) / unit_ns, 1.0, total);
}

int core_histogram_write_hgrm(const struct core_histogram *histogram, FILE *file, double unit_ns)
{
    /* A copy, whose total is what its buckets hold: the original may be recorded into meanwhile. */
    struct core_histogram copy;
    core_histogram_init(&copy);
    core_histogram_merge(&copy, histogram);
    STORE(copy.total, counted(&copy));

    const uint64_t total = LOAD(copy.total);
    const double mean_ns = total == 0 ? 0 : (double)LOAD(copy.sum_ns) / (double)total;
    const double spread_ns = total == 0 ? 0 : deviation_ns(&copy, mean_ns);
    if (fprintf(file, "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)") <
            0 ||
        distribution_write(&copy, file, unit_ns) < 0)
        return -1;
    return fprintf(file,
                   "#[Mean    = %12.3f, StdDeviation   = %12.3f]\n"
                   "#[Max     = %12.3f, Total count    = %12" PRIu64 "]\n"
                   "#[Buckets = %12d, SubBuckets     = %12d]\n",
                   mean_ns / unit_ns, spread_ns / unit_ns, (double)core_histogram_maximum_ns(&copy) / unit_ns,
                   total, CORE_HISTOGRAM_MAX_BITS - CORE_HISTOGRAM_SUB_BITS + 1, (int)SUB_BUCKETS);
}
