/* Private to partition: the search for a rectangle, and what methods that search the grid share. */
#ifndef MILLRACE_PARTITION_SEARCH_RECTANGLE_H
#define MILLRACE_PARTITION_SEARCH_RECTANGLE_H

#include "partition/search/grid.h"

/* A search for a plan. Fills the plan, accepted or refused. No stream may be infeasible alone
 * (partition_problem_infeasible). */
typedef core_status partition_grid_search(struct partition_problem *problem, struct partition_grid *grid,
                                          struct partition_plan *plan);

CORE_CHECKED partition_grid_search partition_rectangle_search;

/* A whole method: makes the problem of the input and its grid, and gives them to the search unless a stream
 * is infeasible alone. */
CORE_CHECKED core_status partition_grid_method(const struct partition_plan_input *input,
                                               struct partition_plan *plan, partition_grid_search *search);

#endif
