/* Copies of SYSTOR 2012 by their rates: the time of a copy when the rate between two measured sizes is interpolated,
 * and not the time (perfmodel_copy_ns, which is what a plan takes).
 *
 *   rate(b) = the line between the two rows around b; before the first row and after the last, the rate of that row
 *   time(b) = b / rate(b)
 *
 * Not sound: between rows a copy may come out shorter than its neighbours allow, below the first row it has no start-up
 * time at all. For comparison only. Pure, any thread. */
#ifndef MILLRACE_ANALYSES_TRANSFER_H
#define MILLRACE_ANALYSES_TRANSFER_H

#include <stddef.h>

struct analyses_transfer_row {
    double bytes, bytes_per_ns; /* sizes rise */
};

/* count: 1 or more. */
double analyses_transfer_by_rate_ns(const struct analyses_transfer_row *rows, size_t count, double bytes);

#endif
