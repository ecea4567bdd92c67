/* Random machines that some dozen streams fill, and contracts for them. */
#ifndef MILLRACE_TESTS_HISTORY_MACHINE_H
#define MILLRACE_TESTS_HISTORY_MACHINE_H

#include "core/stream.h"
#include "tests/support/gpu.h"

#define HISTORY_POOL    48 /* contracts */
#define HISTORY_KINDS   2  /* of cards */
#define HISTORY_GPUS    4
#define HISTORY_WORKERS 3

/* Points into itself: not to be copied. */
struct history_machine {
    struct config_profile profile;
    struct config_profile_gpu gpus[HISTORY_KINDS];
    struct test_gpu cards[HISTORY_KINDS];
    struct core_stream_spec pool[HISTORY_POOL];
    size_t pool_count;
    bool guaranteed;             /* streams are among them that survive the loss of a GPU */
    core_ns detection_ns;        /* of that */
    uint32_t workers, gpu_count; /* gpu_count: cards of all kinds */
    core_ns interval_ns;         /* of the contracts, about */
    size_t streams;              /* that fill it, about */
};

/* Workers and no to four cards, one copy engine or two, like or unlike, that carry one to 48 streams at their
 * peaks; now and then a single worker with a crowd of up to 100 that are much alike. Intervals of some
 * milliseconds to a fifth of a second, latency bounds below an interval to some dozens of them. */
void history_machine_random(struct history_machine *machine, struct test_random *random);

#endif
