/* What a unit lost to the machine, and how much of it newcomers are to be kept from until that is over.
 *
 * Promises reckon with bounds: no burst of a worker takes longer than q, no batch longer than its stages and
 * the hand-overs between. Where the machine does not keep them (a stolen core, a page that must be read, a
 * slow device) the time beyond is *lost*, as far as the model has nothing left for it: of what a burst or a
 * batch took
 *
 *     lost = max(0, took - bound - out_ns)
 *
 * where a burst counts from when its worker was wanted (cpu/worker.h), out_ns being the margin that delivery
 * has and that a late unit may use up: what is late by less is counted and shown, and no promise has been
 * broken by it. It is the same rule for every unit; an emulated card, whose threads wait for cores like all
 * others, is late when it is late.
 *
 * An I/O thread has a bound as well: no turn, from when the thread is wanted to when what it brought is on
 * its way, takes longer than in_ns, beside a rest. That is held against what is certain:
 * server/stream/arrival.h.
 *
 * **How much is held back.** A unit that lost L of some stretch of time did not have L of it to give. If L is
 * lost in any window of Z, the model's conditions hold for a newcomer with latency bound Z as long as they
 * hold with the share L / Z of the unit's time gone:
 *
 *     share = min(1, level / min(shortest latency bound on the unit, SERVER_OVERLOAD_INTERVAL_NS))
 *
 * where the level is the most that was lost between two looks (one interval apart, or longer where the look
 * came late) within the quiet time before now. Streams that were admitted keep their room; who is refused for
 * the share is told so.
 *
 * **Hysteresis.** The level rises at once, with the first look that sees a larger loss. It falls when the
 * quiet time has passed since the loss that it comes from, to the worst of what came after. So a single stall
 * is over after the quiet time, noise holds back what noise takes, and nothing is held back for ever.
 *
 * Pure; owned by who watches (server/overload/monitor.h). */
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
    core_ns seen_ns;                         /* lost in all, as of the last look */
    int64_t slot;                            /* the newest one: now_ns / slot_ns */
    core_ns worst_ns[SERVER_OVERLOAD_SLOTS]; /* most lost between two looks, by slot modulo */
    core_ns level_ns;                        /* the worst of them */
};

/* quiet_ns: less than 10 ns is as good as none. lost_ns: what has been lost so far, which is not held against
 * the unit. */
void server_overload_init(struct server_overload *overload, core_ns quiet_ns, core_ns now_ns,
                          core_ns lost_ns);

/* A look: the unit has lost so much since it began (never less than at the look before). Times must not run
 * backwards. True: the level is another one. */
bool server_overload_look(struct server_overload *overload, core_ns now_ns, core_ns lost_ns);

/* The share to be held back, in parts per billion, for a level and the shortest latency bound of the unit's
 * streams (CORE_NS_NEVER: it has none). Rounded up; 0 .. 10^9. */
int64_t server_overload_share_ppb(core_ns level_ns, core_ns shortest_ns);

/* ---- causes ---- */

/* What the system says of a unit's threads, between two looks. Negative: it does not say. */
struct server_overload_signs {
    core_ns delayed_ns; /* they were ready and had no core */
    int64_t faults;     /* pages that they had to wait for until they were read */
    core_ns stolen_ns;  /* the hypervisor gave to others, of all cores together */
};

/* Why so much was lost, as far as the signs tell: "its threads were off their cores for 5.2 ms". Each of them
 * that can explain at least half is named; if none does: that what they ran on was slow. */
void server_overload_cause(core_ns excess_ns, const struct server_overload_signs *signs, char *text,
                           size_t size);

#endif
