/* Private to partition: the rectangle's search, for methods that have more to offer where it finds nothing.
 */
#ifndef MILLRACE_PARTITION_SEARCH_RECTANGLE_H
#define MILLRACE_PARTITION_SEARCH_RECTANGLE_H

#include "partition/search/grid.h"

/* Of streams that are not hopeless. Fills the plan, accepted or refused. */
CORE_CHECKED core_status partition_rectangle_search(struct partition_problem *problem,
                                                    struct partition_grid *grid, struct partition_plan *plan);

#endif
