/* Private to partition: a coarse map of the streams over rate and deadline, from which the cost of a
 * rectangle is estimated in a time that does not depend on how many streams there are.
 *
 * Rows are ranks by latency bound, columns ranks by rate; both are finer where the workers could have the
 * streams on the outer side of a cut. For one period the map knows the bytes of a batch in every cell. The
 * estimate is for choosing only: what was chosen is tried exactly (problem.h). */
#ifndef MILLRACE_PARTITION_GRID_H
#define MILLRACE_PARTITION_GRID_H

#include "partition/problem.h"

#define PARTITION_GRID_ROWS    64
#define PARTITION_GRID_COLUMNS 128

struct partition_grid;

/* Rows low .. high-1 and columns left .. right-1 are on the GPUs. */
struct partition_cells {
    uint32_t low, high, left, right;
};

CORE_CHECKED core_status partition_grid_create(struct partition_problem *problem,
                                               struct partition_grid **grid);
void partition_grid_destroy(struct partition_grid *grid);

uint32_t partition_grid_rows(const struct partition_grid *grid);
uint32_t partition_grid_columns(const struct partition_grid *grid);

/* Ranks where a row or column begins; of the last + 1: the number of streams. */
size_t partition_grid_row_rank(const struct partition_grid *grid, uint32_t row);
size_t partition_grid_column_rank(const struct partition_grid *grid, uint32_t column);

/* Makes the map one for batches of this period, for streams with at least this d', of rows from `low` on. */
void partition_grid_period(struct partition_grid *grid, core_ns period_ns, core_ns shortest_ns, uint32_t low);

/* Of the cells' rows; then partition_grid_load and partition_grid_balance are of these rows. */
void partition_grid_select(struct partition_grid *grid, uint32_t low, uint32_t high);

/* Estimated load of the GPUs and of the workers: 1 is full. */
double partition_grid_gpu_load(const struct partition_grid *grid, uint32_t left, uint32_t right);
double partition_grid_worker_load(const struct partition_grid *grid, uint32_t left, uint32_t right);

#endif
