/* How the ends of an emulated card's stages come to the host: late, and timed by another clock, as a card's.
 *
 * The card stamps by a clock of its own, which began at another moment, is a little fast, and goes in steps.
 * A batch's stamps are told as a CUDA device tells them, by when the host can have seen them (card_clock.h),
 * so that what is told lies as far from the truth as there. An end is told GPU_EMULATED_REACTION_NS after it
 * at the earliest.
 *
 * The descriptor of a tell is readable when there is something to take. Whoever calls holds the device's
 * lock. */
#ifndef MILLRACE_GPU_EMULATED_TELL_H
#define MILLRACE_GPU_EMULATED_TELL_H

#include "gpu/card_clock.h"
#include "gpu/device.h"

/* From the end of a stage to the wake-up of the child's loop: a card's interrupt, the driver's thread that
 * calls back, an eventfd. Assumed, not measured. */
#define GPU_EMULATED_REACTION_NS (30 * CORE_NS_PER_US)

#define GPU_EMULATED_CLOCK_FAST    50000 /* by one in so many */
#define GPU_EMULATED_CLOCK_STEP_NS 500   /* about that of CUDA's events */

#define GPU_EMULATED_ENDS_MAX (GPU_STAGE_COUNT * GPU_REGION_ARENAS_MAX)

struct gpu_emulated_tell {
    int descriptor;
    core_ns zero_ns; /* ours, when the card's clock was 0 */
    core_ns mark_ns; /* the card's: where the last told batch began */
    struct gpu_card_clock clock;
    struct gpu_emulated_end {
        struct gpu_stage_end end; /* its times by the card's clock */
        core_ns asked_ns, due_ns;
    } ends[GPU_EMULATED_ENDS_MAX]; /* ring */
    uint64_t put, taken;
};

/* now_ns: no stamp is older. */
CORE_CHECKED core_status gpu_emulated_tell_open(struct gpu_emulated_tell *tell, core_ns now_ns,
                                                struct core_error *error);
void gpu_emulated_tell_close(struct gpu_emulated_tell *tell); /* one that failed to open, too */

/* The descriptor is readable from at_ns on. */
void gpu_emulated_tell_wake(struct gpu_emulated_tell *tell, core_ns at_ns);

/* A stage that ended just now, at ended_ns; with DOWN the batch's times, all by our clock, and asked_ns, when
 * the batch was launched. At most GPU_EMULATED_ENDS_MAX wait. */
void gpu_emulated_tell_put(struct gpu_emulated_tell *tell, const struct gpu_stage_end *end, core_ns asked_ns,
                           core_ns ended_ns);

/* The oldest end, if it is due: times and uncertain_ns as in device.h. CORE_AGAIN: none is; the descriptor
 * wakes for the next. */
CORE_CHECKED core_status gpu_emulated_tell_take(struct gpu_emulated_tell *tell, core_ns now_ns,
                                                struct gpu_stage_end *end);

#endif
