/* Private to partition: ways to free capacity for a new stream by migrating others. */
#ifndef MILLRACE_PARTITION_ADMISSION_ATTEMPTS_H
#define MILLRACE_PARTITION_ADMISSION_ATTEMPTS_H

#include "partition/admission/internal.h"

struct partition_attempt {
    const struct admission *admission;
    const struct partition_demand *demand; /* of the new stream */
    uint32_t io;
    /* Stream n of the plan is admission->listed[n], the last is the new stream. */
    const struct partition_plan *plan;
    uint32_t unit;    /* that is to make room, */
    bool by_deadline; /* of its streams those with the shortest deadlines first; else the greatest jobs */
};

/* Works on `after`, a copy of the admission state. If *holds, `after` has admitted the new stream and has all
 * streams on their new units; else its contents are undefined. */
typedef core_status partition_attempt_run(struct partition_attempt *attempt, struct admission *after,
                                          bool *holds);

/* No stream is moved. */
CORE_CHECKED partition_attempt_run partition_attempt_present;
/* Streams of one unit go to units of another kind as long as those accept them, until the new stream fits. */
CORE_CHECKED partition_attempt_run partition_attempt_room;
/* The streams that the plan has on another kind of unit change over one by one, until the new stream fits. */
CORE_CHECKED partition_attempt_run partition_attempt_one_by_one;
/* All streams go where the plan has them, but for the numbers of units of a kind. */
CORE_CHECKED partition_attempt_run partition_attempt_as_planned;

#endif
