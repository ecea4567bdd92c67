/* How much time a unit lost by overrunning its bounds, and which share of it is withheld from admission for
 * that.
 *
 * Admission assumes bounds on execution times: no burst of a worker takes longer than q, no batch longer than
 * its stages and the hand-overs between. Where the machine exceeds them (a stolen core, a page that must be
 * read, a slow device), the time beyond is *lost*, as far as no margin covers it: of the time that a burst or
 * a batch took,
 *
 *     lost = max(0, took - bound - out_ns)
 *
 * is lost. A burst counts from when its worker was wanted (cpu/worker.h), a batch from when it was due to be
 * closed until its end was noticed. out_ns is the margin of delivery, which a late unit may use up: an overrun
 * below it is counted and reported, but breaks no deadline. The rule applies to every unit, emulated GPUs
 * included, whose threads wait for cores like all others.
 *
 * An I/O thread has a bound as well: apart from its rests, no turn of its loop, from when the thread is
 * wanted until all packets of the turn are handed on, takes longer than in_ns. Only overruns that are certain
 * count: server/stream/arrival.h.
 *
 * **How much is withheld.** If a unit loses at most L in any window of length Z, the tests of admission hold
 * for a new stream with latency bound Z if they hold with the share L / Z of the unit's time withheld:
 *
 *     share = min(1, level / min(shortest latency bound on the unit, SERVER_OVERLOAD_INTERVAL_NS))
 *
 * where the level is the largest loss between two measurements (one interval apart, or more if one came late)
 * within the quiet time before now. Admitted streams keep their reservations. A request that is refused only
 * because of the withheld share is told so.
 *
 * **Hysteresis.** The level rises at the first measurement with a larger loss. Once the quiet time has passed
 * since the loss that it stems from, it falls to the largest loss since. So a single stall is forgotten after
 * the quiet time, recurring noise withholds as much as it takes, and nothing is withheld for ever.
 *
 * Pure; owned by the overload monitor (server/overload/monitor.h). */
#ifndef MILLRACE_SERVER_OVERLOAD_RESERVE_H
#define MILLRACE_SERVER_OVERLOAD_RESERVE_H

#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERVER_OVERLOAD_INTERVAL_NS (100 * CORE_NS_PER_MS)
#define SERVER_OVERLOAD_SLOTS       11 /* the quiet time is ten of them; one more is begun */

struct server_overload {
    core_ns slot_ns;                         /* length of a slot */
    core_ns seen_ns;                         /* total loss at the last measurement */
    int64_t slot;                            /* the newest one: now_ns / slot_ns */
    core_ns worst_ns[SERVER_OVERLOAD_SLOTS]; /* largest loss between two measurements, by slot modulo */
    core_ns level_ns;                        /* the worst of them */
};

/* quiet_ns: the quiet time; below 10 ns there is none. lost_ns: the total loss so far, which does not count.
 * */
void server_overload_init(struct server_overload *overload, core_ns quiet_ns, core_ns now_ns,
                          core_ns lost_ns);

/* A measurement: lost_ns is the total loss since the start. Neither it nor now_ns may decrease. True: the
 * level has changed. */
bool server_overload_poll(struct server_overload *overload, core_ns now_ns, core_ns lost_ns);

/* The share to be withheld, in parts per billion, for a level and the shortest latency bound of the unit's
 * streams (CORE_NS_NEVER: it has none). Rounded up; 0 .. 10^9. */
int64_t server_overload_share_ppb(core_ns level_ns, core_ns shortest_ns);

/* ---- causes ---- */

/* Scheduling figures of a unit's threads between two measurements. Negative: the system has none. */
struct server_overload_signs {
    core_ns delayed_ns; /* time in which they were ready but had no core; -1: not known */
    int64_t faults;     /* major page faults: pages that had to be read */
    core_ns stolen_ns;  /* time that the hypervisor took from all cores together */
};

/* Adds what the files schedstat and stat of a thread say. */
void server_overload_signs_add(struct server_overload_signs *signs, const char *schedstat, const char *stat);

/* Writes the likely cause of a loss: "its threads were off their cores for 5.2 ms". Names each sign that can
 * explain at least half of the loss; if none can, that the device or core itself was slow. */
void server_overload_cause(core_ns excess_ns, const struct server_overload_signs *signs, char *text,
                           size_t size);

#endif
