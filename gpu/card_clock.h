/* When on our clock a card did what it timed on its own.
 *
 * A card tells only the time between two of its marks (events), by its own clock. The marks of its batches
 * are chained: from the first mark of a batch to that of the next. Where a batch's mark m lies on
 * CLOCK_MONOTONIC is known between two bounds:
 *
 *   asked <= m              when the host asked for it,
 *   m <= seen - span        when the host saw an end of the batch, and the card's time from m to that end,
 *
 * and between those of the batch before, carried on by the card's time between the two marks. The closer
 * count. So an end that was noticed late moves no time of a batch, as long as one of the last few was not.
 * Told is the middle t between the bounds, or seen - span if that is earlier, and how far m may be from it:
 *
 *   |m - t| <= uncertain,   t + span <= seen
 *
 * The clocks may run apart by GPU_CARD_CLOCK_DRIFT of the time, and a card's time between two marks be wrong
 * by GPU_CARD_CLOCK_STEP_NS: the bounds are widened by that. If they contradict the batch's own all the same,
 * the clocks ran apart further, and the batch's own alone count.
 *
 * Pure; owned by the child's thread. */
#ifndef MILLRACE_GPU_CARD_CLOCK_H
#define MILLRACE_GPU_CARD_CLOCK_H

#include "core/time.h"

#include <stdbool.h>

#define GPU_CARD_CLOCK_DRIFT   1000 /* one in so many: the system slews its clock by up to 1 in 2000 */
#define GPU_CARD_CLOCK_STEP_NS 1000 /* twice the resolution of CUDA's events */

/* Zeroed: no batch yet. */
struct gpu_card_clock {
    bool set;
    core_ns first_ns, last_ns; /* bounds of the last batch's mark */
};

struct gpu_card_clock_batch {
    core_ns asked_ns; /* ours: the mark is not before */
    core_ns since_ns; /* the card's: from the mark of the batch before to this one's, 0 or more */
    core_ns span_ns;  /* the card's: from the mark to the end that was seen, 0 or more */
    core_ns seen_ns;  /* ours */
};

/* The next batch. Returns the told moment of its mark; *uncertain_ns holds for what follows the mark by up to
 * span_ns, too. */
core_ns gpu_card_clock_take(struct gpu_card_clock *clock, const struct gpu_card_clock_batch *batch,
                            core_ns *uncertain_ns);

#endif
