#include "partition/check/check_card.h"

#include <math.h>

static long double column_ns(const struct config_profile_copy *row, bool up, bool busy)
{
    core_ns alone_ns = up ? row->up_ns : row->down_ns;
    core_ns busy_ns = up ? row->up_busy_ns : row->down_busy_ns;
    return (long double)(busy ? busy_ns : alone_ns);
}

/* On the straight line between two rows; before the first its time; beyond the last row the steeper of the
 * last segment and the last row's own rate. */
static long double table_ns(const struct config_profile_gpu *card, bool up, bool busy, long double bytes)
{
    const struct config_profile_copy *row = card->copies;
    uint32_t last = card->copy_count - 1, above = 0;
    while (above < last && (long double)row[above].bytes < bytes)
        above++;
    long double at = (long double)row[above].bytes, at_ns = column_ns(&row[above], up, busy), slope = 0;
    if (above > 0)
        slope = (at_ns - column_ns(&row[above - 1], up, busy)) / (at - (long double)row[above - 1].bytes);
    if (bytes <= at)
        return above == 0 ? at_ns : at_ns - slope * (at - bytes);
    return fmaxl(at_ns + slope * (bytes - at), at_ns / at * bytes);
}

long double partition_check_copy_ns(const struct config_profile_gpu *card, bool up, bool busy,
                                    long double bytes)
{
    long double alone_ns = table_ns(card, up, false, bytes);
    return busy ? fmaxl(alone_ns, table_ns(card, up, true, bytes)) : alone_ns;
}

/* The largest j / u of the rows up to n and the next one at n or above. */
static long double within(const struct config_profile_gpu *card, size_t jobs)
{
    long double most = 0;
    for (uint32_t row = 0; row < card->utilisation_count; row++) {
        const struct config_profile_utilisation *at = &card->utilisation[row];
        most = fmaxl(most, (long double)at->jobs / (long double)at->share_ppm);
        if (at->jobs >= jobs)
            break;
    }
    return most * CONFIG_PROFILE_SHARE_PPM;
}

/* That of the next row at n or above alone; beyond the last, n / u. */
static long double as_measured(const struct config_profile_gpu *card, size_t jobs)
{
    const struct config_profile_utilisation *last = &card->utilisation[card->utilisation_count - 1];
    for (const struct config_profile_utilisation *at = card->utilisation; at <= last; at++)
        if (at->jobs >= jobs)
            return (long double)at->jobs / (long double)at->share_ppm * CONFIG_PROFILE_SHARE_PPM;
    return (long double)jobs / (long double)last->share_ppm * CONFIG_PROFILE_SHARE_PPM;
}

/* c(n): beyond the last row as a line above whole passes of it and any part of one, which between two rows is
 * worst with the fewest jobs. */
long double partition_check_price(const struct config_profile_gpu *card, size_t jobs, bool measured)
{
    size_t last = card->utilisation[card->utilisation_count - 1].jobs;
    if (measured)
        return as_measured(card, jobs);
    if (jobs <= last)
        return within(card, jobs);
    long double full = within(card, last), begun = 0;
    for (uint32_t row = 0; row < card->utilisation_count; row++) {
        size_t part = row > 0 ? card->utilisation[row - 1].jobs + (size_t)1 : 1;
        begun = fmaxl(begun, within(card, part) - full * (long double)part / (long double)last);
    }
    return full * (long double)jobs / (long double)last + begun;
}

long double partition_check_byte_ns(const struct config_profile_gpu *card)
{
    return 1e9L / (long double)card->sm_bytes_per_s;
}
