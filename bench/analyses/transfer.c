#include "bench/analyses/transfer.h"

double analyses_transfer_by_rate_ns(const struct analyses_transfer_row *rows, size_t count, double bytes)
{
    size_t above = 0;

    while (above < count && rows[above].bytes < bytes)
        above++;
    if (above == 0)
        return bytes / rows[0].bytes_per_ns;
    if (above == count)
        return bytes / rows[count - 1].bytes_per_ns;
    const struct analyses_transfer_row *low = &rows[above - 1], *high = &rows[above];
    const double part = (bytes - low->bytes) / (high->bytes - low->bytes);
    return bytes / (low->bytes_per_ns + part * (high->bytes_per_ns - low->bytes_per_ns));
}
