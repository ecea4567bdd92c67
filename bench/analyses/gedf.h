/* Global EDF on m processors: tests that say yes only where no deadline can be missed.
 *
 * Sporadic tasks (C, D, T), D <= T (LOAD takes any), jobs are preempted and migrate at no cost. Each test is
 * sufficient, none is necessary, and none includes all others. All are sound; nothing of them had to be repaired.
 *
 *   GFB    Goossens, Funk, Baruah 2003:     sum lambda <= m - (m - 1) max lambda, lambda = C / min(D, T)
 *   BAK    Baker 2003:                      for each k: sum min(1, beta) <= m (1 - lambda_k) + lambda_k
 *   BAR    Baruah 2007:                     for each k and A: sum I1 + (m - 1 greatest of I2 - I1) <= m (A + D_k - C_k)
 *   BCL    Bertogna, Cirinei, Lipari 2005:  for each k: sum of others min(beta, 1 - lambda_k) < m (1 - lambda_k)
 *   BCLI   the same 2009, iterated with what slack was found
 *   RTA    Bertogna and Cirinei 2007:       R_k = C_k + floor(sum of others min(W(R_k), EDF workload, R_k - C_k + 1) / m)
 *   FFDBF  Baruah, Bonifaci, Marchetti-Spaccamela, Stiller 2009: for a speed sigma, and all t below sum C / epsilon:
 *          sum ffdbf(t, sigma) <= (m - (m - 1) sigma) t. Here epsilon is 1/10, sigma max density and then multiples of 1/50.
 *   LOAD   Baker and Baruah 2009, corollary 2: load <= max(mu - (ceil mu - 1) d, (ceil mu - 1) - (ceil mu - 2) d), mu = m -
 *          (m - 1) d, d = max C / D; the load is approximated from above by 1/10.
 *
 * Integer ticks; verdicts are exact, but for BAR's last A, where a rounding can add one. BAR gives up, and says no,
 * after a million points. Pure functions, any thread. */
#ifndef MILLRACE_ANALYSES_GEDF_H
#define MILLRACE_ANALYSES_GEDF_H

#include "bench/analyses/ticks.h"

#include <stdbool.h>
#include <stddef.h>

#define ANALYSES_GEDF_TASKS 256

struct analyses_gedf_task {
    int64_t cost, deadline, period;
};

enum analyses_gedf_test {
    ANALYSES_GFB,
    ANALYSES_BAK,
    ANALYSES_BAR,
    ANALYSES_BCL,
    ANALYSES_BCLI,
    ANALYSES_RTA,
    ANALYSES_FFDBF,
    ANALYSES_LOAD,
    ANALYSES_GEDF_TESTS
};
extern const char *const analyses_gedf_names[ANALYSES_GEDF_TESTS]; /* "GFB", ... */

/* Will no deadline be missed? false: it may be. Up to ANALYSES_GEDF_TASKS tasks. */
bool analyses_gedf_passes(enum analyses_gedf_test test, unsigned m, const struct analyses_gedf_task *tasks,
                          size_t count);

/* -1, 0, 1: is the sum of C / T less than, equal to, more than a whole number? */
int analyses_gedf_compare_utilisation(const struct analyses_gedf_task *tasks, size_t count, int64_t bound);

/* RTA with the responses that it found, ANALYSES_NEVER for a task whose deadline they pass. */
bool analyses_gedf_respond(unsigned m, const struct analyses_gedf_task *tasks, size_t count,
                           int64_t *response);

#endif
