/* The stalls of one thread: the last times at which it took longer than its bound allows, each with its cause
 * as far as the system reports one. The cause of a late packet is found among them (server/stream/cause.h).
 *
 * A stall's end is not the end of its harm: what gathered during it must be worked off, and what comes
 * meanwhile waits behind that. A stall is *settled* when the thread has caught up.
 *
 * **Why.** The thread asks for its CPU time and its page faults after a stall, and every 4 ms while it works
 * (core_stalls_mark). Of a stall of length L
 *
 *     on its core <= CPU time used since the last mark,    off its core >= L - that
 *
 * and it was off its core if that is at least L / 2. Of a thread that works without a pause this can not be
 * told of stalls below 8 ms. CPU time is as the kernel counts it: where that subtracts neither stolen time
 * nor interrupts (CONFIG_PARAVIRT_TIME_ACCOUNTING, CONFIG_IRQ_TIME_ACCOUNTING) they look like work, too.
 *
 * One thread owns it and adds; any thread reads; no thread waits for another (core/sequence.h). */
#ifndef MILLRACE_CORE_STALLS_H
#define MILLRACE_CORE_STALLS_H

#include "core/time.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CORE_STALLS         16                   /* the last ones */
#define CORE_STALLS_MARK_NS (4 * CORE_NS_PER_MS) /* a mark costs two system calls */

enum core_stall_why {
    CORE_STALL_AT_WORK,    /* it had its core, or that it had not can not be told */
    CORE_STALL_OFF_CORE,   /* ready without one, stopped, or blocked */
    CORE_STALL_PAGE_FAULT, /* off its core, and waited for pages to be read */
};

struct core_stall {
    core_ns from_ns, to_ns;
    core_ns settled_ns; /* CORE_NS_NEVER: not yet */
    uint64_t why;       /* enum core_stall_why */
};

#define CORE_STALL_WORDS (sizeof(struct core_stall) / sizeof(uint64_t))

struct core_stall_place {
    _Atomic uint32_t changes;                 /* atomic: written by the owner; odd while it writes */
    _Atomic uint64_t words[CORE_STALL_WORDS]; /* atomic: written by the owner, read by any */
};

/* Zeroed: no stall so far. All but the places and their count are the owner's. */
struct core_stalls {
    core_ns marked_ns, marked_cpu_ns; /* the last mark, */
    int64_t marked_faults;            /* and the pages that were read for the thread until then */
    _Atomic uint32_t count;           /* atomic: stalls so far; written by the owner, read by any */
    uint32_t unsettled;               /* of these, the last ones */
    struct core_stall last[CORE_STALLS];
    struct core_stall_place places[CORE_STALLS];
};

/* The owner, after a stretch of work: the thread's own accounts, if those of the last mark are old. */
void core_stalls_mark_now(struct core_stalls *stalls, core_ns now_ns);
static inline void core_stalls_mark(struct core_stalls *stalls, core_ns now_ns)
{
    if (now_ns - stalls->marked_ns >= CORE_STALLS_MARK_NS)
        core_stalls_mark_now(stalls, now_ns);
}

/* The owner: it has stalled from then on until just now. A stall with the from_ns of the last one is that,
 * and has gone on. */
void core_stalls_add(struct core_stalls *stalls, core_ns from_ns, core_ns to_ns);

/* The owner: it has caught up. */
void core_stalls_settle_all(struct core_stalls *stalls, core_ns now_ns);
static inline void core_stalls_settle(struct core_stalls *stalls, core_ns now_ns)
{
    if (stalls->unsettled > 0)
        core_stalls_settle_all(stalls, now_ns);
}

/* Any thread: the stalls that were not settled by since_ns, the last one first. Returns how many. */
uint32_t core_stalls_read(const struct core_stalls *stalls, core_ns since_ns,
                          struct core_stall list[CORE_STALLS]);

/* Why, of a stall of this length; used since the mark: this CPU time, and so many pages read. Pure. */
enum core_stall_why core_stall_why(core_ns length_ns, core_ns cpu_ns, int64_t faults);

#endif
