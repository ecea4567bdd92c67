/* Preemptive EDF on one processor, exactly: what the demand test of SYSTOR 2012's CPU side rests on, as values.
 *
 * Sources: Baruah, Rosier, Howell 1990 (demand), Spuri 1996 (response times, deadline busy periods). Sporadic tasks
 * (C, D, T), D <= T. All exact, so sound; nothing had to be repaired.
 *
 *   dbf(t) = sum (floor((t - D) / T) + 1) C over D <= t;     slack(t) = t - dbf(t)
 *   busy period: the least L = sum ceil(L / T) C
 *   horizon: max(max D, min(L, ceil(sum (T - D) U / (1 - U)))): what is violated is violated by then
 *   response of task i: max over a of L(a) - a, a where the deadline a + D_i is one of a synchronous schedule, L(a) the
 *   least fixed point of (floor(a / T_i) + 1) C_i + sum over D_j <= a + D_i of min(ceil(L / T_j), 1 + floor((a + D_i -
 *   D_j) / T_j)) C_j
 *
 * Integer ticks. Pure functions, any thread. */
#ifndef MILLRACE_ANALYSES_PEDF_H
#define MILLRACE_ANALYSES_PEDF_H

#include "bench/analyses/gedf.h"

struct analyses_pedf {
    bool passes;
    bool overloaded; /* sum C / T > 1: there is nothing else to tell */
    int64_t busy_period, horizon;
    int64_t violation, demand; /* the first t with dbf(t) > t, and dbf there; -1: none */
    int64_t slack, slack_at;   /* the least slack(t) of all deadlines t up to the horizon, and its first t */
};
struct analyses_pedf analyses_pedf_test(const struct analyses_gedf_task *tasks, size_t count);

/* The longest response of a job of the task; the set is not overloaded. */
int64_t analyses_pedf_respond(const struct analyses_gedf_task *tasks, size_t count, size_t task);

#endif
