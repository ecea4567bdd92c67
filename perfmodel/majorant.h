/* Private to perfmodel: the least concave function above a curve, as straight lines (see perfmodel/flow.h).
 *
 * A curve is given by its corners, of rising x and never falling y. Over [0, end] its least concave majorant
 * is the upper hull of the corners up to the end and of the end itself, which is the minimum of the hull's
 * edges, each prolonged. Which edges these are depends on the end, so the hull of every prefix of the corners
 * is kept. One edge for each corner suffices, since the hull of a prefix contains the hull of what precedes
 * its last edge. */
#ifndef MILLRACE_PERFMODEL_MAJORANT_H
#define MILLRACE_PERFMODEL_MAJORANT_H

#include "perfmodel/gpu.h"
#include "perfmodel/wide.h"

#define PERFMODEL_LINE_BITS 40                        /* figures of a line are ns times 2^40 */
#define PERFMODEL_LINE_MOST ((perfmodel_wide)1 << 72) /* no line is steeper: 4.3 s per byte */

/* start + slope x, the curve's majorant from the corner at `left` on. */
struct perfmodel_line {
    perfmodel_wide start, slope, left;
};

struct perfmodel_corner {
    perfmodel_wide x;           /* at most 2^53 */
    perfmodel_wide y;           /* at most 2^72, and x y at most 2^104 */
    size_t before;              /* previous corner on the hull that ends here; of the first corner: itself */
    struct perfmodel_line line; /* the hull's edge from corner `before` to this one */
};

struct perfmodel_majorant {
    struct perfmodel_corner *corner;
    size_t count;        /* 0: the curve is out of range */
    unsigned shift;      /* y is shifted left by this to be a figure of a line */
    uint32_t margin_ppm; /* that is added to y */
};

/* A copy of x bytes, in ns; and c(ceil(x / M)) / Phi of x jobs, in ns per byte times 2^40. */
CORE_CHECKED core_status perfmodel_majorant_copy(struct perfmodel_majorant *majorant,
                                                 const struct config_profile_gpu *gpu,
                                                 enum perfmodel_direction direction, bool busy,
                                                 uint32_t margin_ppm);
CORE_CHECKED core_status perfmodel_majorant_kernel(struct perfmodel_majorant *majorant,
                                                   const struct config_profile_gpu *gpu, uint32_t margin_ppm);
void perfmodel_majorant_free(struct perfmodel_majorant *majorant);

/* The lines over [0, end], from the last edge to the first, so by rising slope:
 *
 *     struct perfmodel_majorant_walk walk = perfmodel_majorant_to(majorant, x, y);
 *     while (perfmodel_majorant_next(majorant, &walk, &line)) ...
 *
 * y is the curve's value at x, not below the corners before. */
struct perfmodel_majorant_walk {
    struct perfmodel_line line; /* the hull's last edge, to the end */
    bool end;                   /* `line` has not been returned yet */
    size_t corner;
};
struct perfmodel_majorant_walk perfmodel_majorant_to(const struct perfmodel_majorant *majorant,
                                                     perfmodel_wide x, perfmodel_wide y);
bool perfmodel_majorant_next(const struct perfmodel_majorant *majorant, struct perfmodel_majorant_walk *walk,
                             struct perfmodel_line *line);

/* The line y for every x. */
struct perfmodel_line perfmodel_majorant_flat(const struct perfmodel_majorant *majorant, perfmodel_wide y);

/* c(ceil(jobs / M)) / Phi as the kernel's corners have it, and the first x with that value. */
struct perfmodel_corner perfmodel_majorant_jobs(const struct perfmodel_majorant *kernel,
                                                const struct config_profile_gpu *gpu, uint64_t jobs);

#endif
