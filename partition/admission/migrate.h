/* Private to partition: from one plan of the same streams to another. */
#ifndef MILLRACE_PARTITION_ADMISSION_MIGRATE_H
#define MILLRACE_PARTITION_ADMISSION_MIGRATE_H

#include "partition/admission/internal.h"

struct partition_migrations {
    const struct partition_demand *request; /* the stream that the moves free capacity for */
    uint32_t io;                            /* I/O thread of its connection */
    struct admission_move *move;            /* room for all streams */
    size_t count, in_turn;
    bool admits; /* all moves can be made in turn, and the new stream is accepted then */
};

/* Lets a stream change over to a unit of one of these kinds (unit.h) that takes it as things stand, if any
 * does. */
CORE_CHECKED core_status partition_migrations_change(struct admission *admission, uint32_t stream,
                                                     uint32_t kind, bool *found);

/* May a stream change over to this unit as things stand, while it is on its old one too? A GPU at the period
 * that it is to have, or at its present one. Fills unit, period and memory. */
bool partition_migrations_may(const struct admission *admission, uint32_t stream, uint32_t unit,
                              core_ns period_ns, struct admission_placement *placement);

/* Renumbers units: unit u of a plan becomes number[u], of the same kind, so that many of the `count` streams
 * are where they were: from[i] before, to[i] in the plan. Greedy, by the number of streams that stay. */
CORE_CHECKED core_status partition_migrations_renumber(const struct admission *admission,
                                                       const uint32_t *from, const uint32_t *to, size_t count,
                                                       uint32_t *number);

/* The moves from `admission` to `after`, with as many as can be made in turn, and in which order, in front;
 * and whether the new stream is accepted then. */
CORE_CHECKED core_status partition_migrations_order(const struct admission *admission,
                                                    const struct admission *after,
                                                    struct partition_migrations *moves);

#endif
