/* Histories: a server's planner and units in virtual time, while streams open, close and move and periods
 * change.
 *
 * One world has the planner itself (partition/planner/planner.h; the world is its host), workers with the
 * server's own scheduler, GPUs with the server's own schedule and accounts (history_worker.h, history_gpu.h),
 * and streams that send what their contracts allow, often all of it at once. What happens, and when, is drawn
 * at random. When a plan of a GPU's batches comes into force is decided as in server/gpu/batches.c.
 *
 * A packet counts as missed if it is finished later than eligible + latency - out_ns (and the rest of its I/O
 * thread, perfmodel_io_rest_ns, on a worker), for the contract in force when it became eligible. After every
 * change the certificate of what stands is judged by the independent checker, and now and then that of what
 * is to be after the loss of a GPU; and the units' figures are those of the streams.
 *
 * In histories with an even seed the batch periods of GPUs grow back whenever nothing is in progress there.
 *
 * In half of the machines with GPUs some streams are guaranteed. On a GPU their packets are held to d_g. When
 * it is lost, what is missing goes to the backup by the time of detection after that, and the packets are
 * held to the whole latency bound, as those of the streams that were there are; at a moment with nothing
 * inside they go home, once the GPU is back. A loss while another one weighs is not covered: guaranteed
 * streams are then as standard ones, which a stand-by serves, without a promise, until their GPU is back.
 *
 * At the end all streams close, and nothing must be reserved any more.
 *
 * The same seed gives the same history. One at a time in a process. */
#ifndef MILLRACE_TESTS_HISTORY_H
#define MILLRACE_TESTS_HISTORY_H

#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What happened. */
enum history_event {
    HISTORY_OPENED,
    HISTORY_REFUSED,
    HISTORY_WAITED, /* for a period, before it was opened */
    HISTORY_CLOSED,
    HISTORY_RELEASED,  /* rooms, of closed streams and of moved ones */
    HISTORY_MOVED,     /* at a moment with nothing inside the old unit, */
    HISTORY_HELD,      /* or with packets held until there is one, */
    HISTORY_HELD_UP,   /* of which these had a GPU to leave */
    HISTORY_GIVEN_UP,  /* moves for which no moment came */
    HISTORY_CHANGED,   /* contracts */
    HISTORY_UNCHANGED, /* refused */
    HISTORY_SETTLED,
    HISTORY_LOST, /* devices */
    HISTORY_RETURNED,
    HISTORY_RESTORED, /* streams of a device that has returned, whose promise holds again */
    HISTORY_FLED,     /* guaranteed streams whose device failed and which a backup serves */
    HISTORY_CAME_HOME,
    HISTORY_SHRUNK, /* periods of GPUs with streams */
    HISTORY_GREW,
    HISTORY_RETUNED,   /* of these and with nobody asking: growing back */
    HISTORY_REPLANNED, /* streams that were admitted after migrations of others */
    HISTORY_EVENTS
};

extern const char *const history_event_names[HISTORY_EVENTS];

/* Rules that may be broken, to see that it is found. */
enum history_fault {
    HISTORY_RIGHT,
    HISTORY_RELEASE_AT_ONCE, /* room is promised again without a pause of the unit */
    HISTORY_OPEN_AT_ONCE,    /* a new stream sends before its period is in force */
    HISTORY_BEGIN_AT_ONCE,   /* nor until the batch that was open has ended, on a GPU begun anew */
    HISTORY_NO_PACING,       /* those that waited go to the new unit all at once */
    HISTORY_FULL_BUCKET,     /* a changed contract begins with a full bucket */
    HISTORY_PROMISE_MORE,    /* streams may send an eighth faster than they are charged for */
    HISTORY_HOLD_ANYHOW,     /* packets are held although the new unit was asked for the whole latency */
    HISTORY_SETTLE_AT_ONCE,  /* a changed contract is charged alone without a pause of the unit */
    HISTORY_FLEE_LATE,       /* packets of a lost GPU reach the backups later than was counted on */
    HISTORY_FAULTS
};

struct history_totals {
    uint64_t histories, failed;
    uint64_t events[HISTORY_EVENTS];
    uint64_t plans;      /* certificates that the checker accepted, */
    uint64_t failures;   /* and of those for the loss of one GPU */
    uint64_t packets[2]; /* with a promise: on workers, on GPUs, */
    uint64_t fled;       /* and of those by a backup */
    uint64_t again;      /* of a lost device: packets that went to a backup */
    uint64_t rerun, stood_by,
        late; /* of a lost device: packets lost, come while it was out, without a promise yet */
    uint64_t misses, batches;
    uint64_t held_up; /* times that no arena was free */
    core_ns virtual_ns;
    int64_t least_slack_ppb[2]; /* of a packet, relative to its latency bound */
};

void history_totals_init(struct history_totals *totals);

/* Runs one history and adds to the totals. False: a promise was broken, or a certificate was not accepted,
 * and what happened is in `text` (as far as there is room). */
bool history_run(uint64_t seed, enum history_fault fault, struct history_totals *totals, char *text,
                 size_t text_size);

/* The same, decided by these bytes: the first four are the machine, one more is how many streams it begins with,
 * and each two that follow are what happens by chance at one time, until they are used up. So that many are
 * played in a second, it begins with half as many at most, and the checker judges one change in four until then. */
bool history_play(const uint8_t *bytes, size_t count, struct history_totals *totals, char *text,
                  size_t text_size);

#endif
