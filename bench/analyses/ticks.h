/* Whole numbers of time for the analyses of published papers.
 *
 * An analysis computes in the ticks of its input, whatever they are: nanoseconds, microseconds or the abstract
 * ticks of a worked example. So these variables carry no unit in their names. */
#ifndef MILLRACE_ANALYSES_TICKS_H
#define MILLRACE_ANALYSES_TICKS_H

#include <stdint.h>

#define ANALYSES_NEVER INT64_MAX /* a bound that does not exist, or was not found */

/* ceil(a / b) and floor(a / b) for any a and b > 0. */
static inline int64_t analyses_ceil(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

static inline int64_t analyses_floor(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static inline int64_t analyses_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t analyses_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* a + b, where either may be ANALYSES_NEVER. */
static inline int64_t analyses_sum(int64_t a, int64_t b)
{
    return a == ANALYSES_NEVER || b == ANALYSES_NEVER ? ANALYSES_NEVER : a + b;
}

#endif
