/* Private to partition: the rectangle's search, and what methods that search the grid share. */
#ifndef MILLRACE_PARTITION_SEARCH_RECTANGLE_H
#define MILLRACE_PARTITION_SEARCH_RECTANGLE_H

#include "partition/search/grid.h"

/* A search for a plan of streams that are not hopeless. Fills the plan, accepted or refused. */
typedef core_status partition_grid_search(struct partition_problem *problem, struct partition_grid *grid,
                                          struct partition_plan *plan);

CORE_CHECKED partition_grid_search partition_rectangle_search;

/* The whole method: the input as a problem with its grid, given to the search unless it is hopeless. */
CORE_CHECKED core_status partition_grid_method(const struct partition_plan_input *input,
                                               struct partition_plan *plan, partition_grid_search *search);

#endif
