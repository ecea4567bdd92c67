/* Private to partition: a coarse grid of the streams over rate and latency bound. It estimates the load
 * inside and outside of a rectangle in a time that does not depend on the number of streams.
 *
 * Rows are ranks by latency bound, columns ranks by rate; both are finer where the workers could serve all
 * streams on the outer side of a cut. Each cell has sums over its streams: the load of a GPU
 * (perfmodel/flow.h), and for the workers the share and the demand at some windows. The estimates only select
 * candidates; these are then evaluated exactly (problem.h). */
#ifndef MILLRACE_PARTITION_SEARCH_GRID_H
#define MILLRACE_PARTITION_SEARCH_GRID_H

#include "partition/search/problem.h"

#define PARTITION_GRID_ROWS    64
#define PARTITION_GRID_COLUMNS 128

struct partition_grid;

/* A rectangle: the streams in rows low .. high-1 and columns left .. right-1 are on the GPUs. */
struct partition_cells {
    uint32_t low, high, left, right;
};

CORE_CHECKED core_status partition_grid_create(struct partition_problem *problem,
                                               struct partition_grid **grid);
void partition_grid_destroy(struct partition_grid *grid);

uint32_t partition_grid_rows(const struct partition_grid *grid);
uint32_t partition_grid_columns(const struct partition_grid *grid);

/* The rank at which a row or column begins; for the number of rows or columns: the number of streams. */
size_t partition_grid_row_rank(const struct partition_grid *grid, uint32_t row);
size_t partition_grid_column_rank(const struct partition_grid *grid, uint32_t column);

/* Estimated load of all GPUs with the streams of the rectangle, dealt evenly, and of the workers with the
 * rest; 1 is full. */
double partition_grid_gpu_load(const struct partition_grid *grid, const struct partition_cells *cells);
double partition_grid_worker_load(const struct partition_grid *grid, const struct partition_cells *cells);

/* The streams of the rectangle as the load of one GPU; rates and jobs rounded up. */
struct perfmodel_flow_load partition_grid_load(const struct partition_grid *grid,
                                               const struct partition_cells *cells);

#endif
