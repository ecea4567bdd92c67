/* Tasks of which some use one GPU, on m processors: the shared-resource method and the container method.
 *
 * Source: Elliott and Anderson, "Globally scheduled real-time multiprocessor systems with GPUs" (Real-Time Systems
 * 2012), section 4. A task has a period p, its jobs take e on a processor and s on the GPU, and hold the GPU's lock
 * for cs, all of which counts as execution.
 *
 *   shared resource:  e + s + b <= p (equation 9) and sum (e + s + b) / p <= m (10), b the blocking by the lock:
 *     FMLP       b = sum of others' cs (2)
 *     OMLP       theorem 2 with p + x for response times (8), x the tardiness by Devi and Anderson: found together, from
 *                x = 0 on, until neither changes
 *     OMLP2      the same with two requests of a task at most, and first come first served up to m + 1 tasks
 *     OMLP2_CVA  OMLP2 with tardiness by compliant vectors
 *   container:   sum over GPU tasks (e + s) / p <= 1 (11), and that with the others' e / p within m (12)
 *
 * All sound: the tardiness that is found is never exceeded. The container method promises that tardiness is bounded,
 * and prints no bound. Integer ticks; verdicts are exact, tardiness is rounded up from a real number. Pure functions,
 * any thread. */
#ifndef MILLRACE_ANALYSES_SRM_H
#define MILLRACE_ANALYSES_SRM_H

#include "bench/analyses/gedf.h"

#define ANALYSES_SRM_TASKS ANALYSES_GEDF_TASKS

enum analyses_srm_variant {
    ANALYSES_SRM_FMLP,
    ANALYSES_SRM_OMLP,
    ANALYSES_SRM_OMLP2,
    ANALYSES_SRM_OMLP2_CVA,
    ANALYSES_SRM_VARIANTS
};

struct analyses_srm_task {
    int64_t period, cpu, gpu, section; /* p, e, s, cs; section 0: does not use the GPU */
};

struct analyses_srm_result {
    bool passes;
    unsigned turns;     /* of the search for b and x */
    double utilisation; /* of equation 10, in the last turn */
    int64_t blocking[ANALYSES_SRM_TASKS];
    int64_t tardiness[ANALYSES_SRM_TASKS]; /* where it passes */
};
struct analyses_srm_result analyses_srm_shared(unsigned m, const struct analyses_srm_task *tasks,
                                               size_t count, enum analyses_srm_variant variant);

struct analyses_srm_container {
    bool passes;
    double gpu, total; /* left sides of equations 11 and 12 */
};
struct analyses_srm_container analyses_srm_contain(unsigned m, const struct analyses_srm_task *tasks,
                                                   size_t count);

/* sum cs / p (equation 13). */
double analyses_srm_gpu_utilisation(const struct analyses_srm_task *tasks, size_t count);

/* sum u_eff (equation 1): what is done under the lock counts as often as the GPU is faster than a processor. */
double analyses_srm_effective_utilisation(const struct analyses_srm_task *tasks, size_t count, double speed);

#endif
