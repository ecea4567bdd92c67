/* Global EDF and G-FL on m processors when deadlines may be missed: how late jobs can be.
 *
 * Sources: Devi and Anderson 2008 (x of their tardiness bound, implicit deadlines: a job ends by T + x + C); Erickson,
 * Devi, Baruah 2010 and Erickson, Anderson, Ward 2014 (compliant vectors: a job ends by Y + x + C after its release,
 * where its priority point is Y after it, x = (s - C) / m and
 *   s = sum S + (ceil U - 1 greatest of x u + C - S),  S = C max(0, 1 - Y / T)).
 * G-EDF has Y = D, G-FL Y = D - floor((m - 1) C / m). Priority points may be all moved by the same, which changes no
 * decision; bounds are best where the least is 0, and are reduced so here unless asked not to. Both bounds are sound
 * while U <= m and C <= T.
 *
 * Real numbers, since s is a quotient of sums of fractions. Pure functions, any thread. */
#ifndef MILLRACE_ANALYSES_SOFT_H
#define MILLRACE_ANALYSES_SOFT_H

#include "bench/analyses/gedf.h"

enum analyses_soft_rule { ANALYSES_SOFT_EDF, ANALYSES_SOFT_EDF_UNREDUCED, ANALYSES_SOFT_FL };

/* x of Devi and Anderson; tardiness is at most x + C. Infinite where it is not bounded. */
double analyses_soft_devi(unsigned m, const struct analyses_gedf_task *tasks, size_t count);

/* Fills response[i], at most so long after its release job i's end is; returns s. Infinite, as s and all responses,
 * where U > m or some C > T. */
double analyses_soft_compliant(unsigned m, const struct analyses_gedf_task *tasks, size_t count,
                               enum analyses_soft_rule rule, double *response);

/* The priority point of the rule, before it is reduced. */
int64_t analyses_soft_point(unsigned m, const struct analyses_gedf_task *task, enum analyses_soft_rule rule);

#endif
