/* Private to partition/check/check.c: a card's tables, as perfmodel/gpu.h defines them, in real numbers. */
#ifndef MILLRACE_PARTITION_CHECK_CHECK_CARD_H
#define MILLRACE_PARTITION_CHECK_CHECK_CARD_H

#include "config/profile.h"

#include <stdbool.h>
#include <stddef.h>

/* One copy, without margin; `busy`: at contended times, and never less than alone. */
long double partition_check_copy_ns(const struct config_profile_gpu *card, bool up, bool busy,
                                    long double bytes);

/* c(n), how much longer n equal jobs take on an SM than one at the peak; `measured`: by the row above alone. */
long double partition_check_price(const struct config_profile_gpu *card, size_t jobs, bool measured);

/* ns per byte of one job at an SM's peak: 1 / Phi. */
long double partition_check_byte_ns(const struct config_profile_gpu *card);

#endif
