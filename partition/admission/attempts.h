/* Private to partition: ways to make room for a newcomer by moving streams. */
#ifndef MILLRACE_PARTITION_ADMISSION_ATTEMPTS_H
#define MILLRACE_PARTITION_ADMISSION_ATTEMPTS_H

#include "partition/admission/internal.h"

struct partition_attempt {
    const struct partition_standing *standing;
    const struct core_stream_spec *spec; /* the newcomer */
    uint32_t io;
    /* Stream n of the plan is standing->listed[n], the last is the newcomer. */
    const struct partition_plan *plan;
    uint32_t unit;    /* that is to make room, */
    bool by_deadline; /* of its streams those with the shortest deadlines first; else the greatest jobs */
};

/* On `after`, a copy of the standing plan: if *holds, it has the newcomer, and its streams where they are to
 * be; else it is of no more use. */
typedef core_status partition_attempt_run(struct partition_attempt *attempt, struct partition_standing *after,
                                          bool *holds);

/* No stream is moved. */
CORE_CHECKED partition_attempt_run partition_attempt_present;
/* Streams of one unit go to units of another kind as long as those take them, until the newcomer fits. */
CORE_CHECKED partition_attempt_run partition_attempt_room;
/* The streams that the plan has on another kind of unit change over one by one, until the newcomer fits. */
CORE_CHECKED partition_attempt_run partition_attempt_one_by_one;
/* All streams go where the plan has them, but for the numbers of units of a kind. */
CORE_CHECKED partition_attempt_run partition_attempt_as_planned;

#endif
