/* Private to partition/planner: what the planner knows.
 *
 * planner.c: life, reservations, plans of GPUs. migrations.c: streams from one unit to another. changes.c:
 * other contracts, in place and on other units. evacuation.c: GPUs that fail and return. retune.c: batch
 * periods that grow back. waiting.c: requests for which other streams migrate. */
#ifndef MILLRACE_PARTITION_PLANNER_INTERNAL_H
#define MILLRACE_PARTITION_PLANNER_INTERNAL_H

#include "partition/planner/planner.h"
#include "partition/unit_number.h"

#define PLANNER_NONE UINT32_MAX /* no reservation, no GPU */

enum planner_change_state { PLANNER_UNCHANGED, PLANNER_AGREED, PLANNER_SETTLING };

/* A change of a reservation's contract. */
struct planner_change {
    enum planner_change_state state;
    void *owner;                          /* AGREED: the host's name of it; NULL: it comes of a hold */
    bool awaits_plans;                    /* AGREED: the host has not been told that it may come into force */
    bool elsewhere;                       /* AGREED: on another unit, by a migration */
    struct partition_planner_plans plans; /* awaits_plans: these */
    struct core_stream_spec before;       /* AGREED, in place: the contract before it */
    struct partition_planner_use use;     /* SETTLING: what was served under the contract that is over */
};

struct planner_pending;

struct planner_reservation {
    void *owner; /* the host's; NULL: the number is free */
    uint32_t unit, io;
    uint64_t born;                    /* serial number */
    uint32_t requests;                /* changes that wait for their turn */
    bool movable;                     /* its packet memory is enough for a GPU */
    bool superseded;                  /* the stream is served under another one, or not yet under this one */
    bool retired;                     /* given up */
    struct partition_planner_use use; /* retired: what was served */
    struct planner_change change;
    uint32_t target; /* of a migration in progress: the new reservation; else NONE */
    /* of the new reservation, while the migration is in progress: */
    uint32_t source;                      /* the present one; else NONE */
    bool holds;                           /* both are charged for packets that are held */
    struct planner_pending *pending;      /* request that it makes room for; NULL: none */
    uint32_t evacuated_from;              /* GPU that the stream was evacuated from; else NONE */
    core_ns evacuated_period_ns;          /* batch period there at that time */
    uint32_t next_retired, next_changing; /* in the planner's lists; NONE: the last one */
};

struct planner_gpu {
    bool out;          /* of service */
    bool scanning;     /* an evacuation scan over the reservations is in progress */
    bool again;        /* some stream could not be migrated: another scan is due */
    uint32_t next;     /* the scan goes on with this number, */
    core_ns scan_ns;   /* at this time */
    uint64_t sent;     /* number of the last plan that the host took */
    core_ns period_ns; /* batch period when it was last looked at */
    core_ns tune_ns;   /* earliest time of the next retune */
    uint32_t busy;     /* migrations and changes in progress of reservations here */
};

struct partition_planner {
    struct admission *admission;
    struct partition_planner_options options;
    struct partition_planner_host host;
    void *context;                            /* of the host */
    struct planner_reservation *reservations; /* by number */
    uint32_t capacity;
    uint64_t born;     /* serial number of the last reservation */
    uint32_t retired;  /* list: given up, and not reclaimed; NONE: empty */
    uint32_t changing; /* list: changes that await plans, or settle */
    struct planner_gpu *gpus;
    struct planner_pending *pending_requests; /* list, the oldest first */
    uint32_t pending_count;                   /* of these, that have not been answered */
    struct planner_pending *searching;        /* NULL: no search is in progress */
};

/* ---- planner.c ---- */

static inline bool planner_on_gpu(const struct partition_planner *planner, uint32_t unit)
{
    return unit != ADMISSION_NONE && partition_unit_is_gpu(planner->options.workers, unit);
}

static inline uint32_t planner_gpu_of(const struct partition_planner *planner, uint32_t unit)
{
    return planner_on_gpu(planner, unit) ? partition_unit_gpu(planner->options.workers, unit) : PLANNER_NONE;
}

/* Sends the plans that are new; after anything that changes what is reserved. */
void planner_send_plans(struct partition_planner *planner);

/* Makes sure that there is a place for one reservation more. */
CORE_CHECKED core_status planner_reserve(struct partition_planner *planner);

/* Enters a reservation that the admission state has just made. */
struct planner_reservation *planner_enter(struct partition_planner *planner, uint32_t number, void *owner,
                                          bool movable);

/* Something of the stream begins (+1) or ends (-1) that keeps its GPUs from a retune. */
void planner_count_busy(struct partition_planner *planner, uint32_t number, int more);

/* Releases what a reservation has reserved for the contract, or the hold, that is over. */
void planner_settle(struct partition_planner *planner, uint32_t number);

/* Has everything that was served been over for a quiescent moment of its unit? */
bool planner_is_quiescent(const struct partition_planner *planner, uint32_t number,
                          const struct partition_planner_use *use);

/* ---- migrations.c ---- */

struct planner_move {
    uint32_t stream, unit;
    core_ns period_ns, timeout_ns, now_ns;
    void *purpose;
    struct planner_pending *pending;
};

/* As partition_planner_move. */
bool planner_move(struct partition_planner *planner, const struct planner_move *move, char *reason,
                  size_t size);

/* Begins the migration to reservation `to`, which the admission state has made. changes: the contract changes
 * with it. False: released, and reason says why. */
bool planner_begin(struct partition_planner *planner, const struct planner_move *move, uint32_t to,
                   bool changes, char *reason, size_t size);

/* ---- changes.c ---- */

/* The reservation has an agreed change that comes of a hold: until no packet is late any more. */
void planner_agree_to_hold(struct partition_planner *planner, uint32_t number);

/* The new reservation has the agreed change of the present one from now on. */
void planner_pass_change(struct partition_planner *planner, uint32_t from, uint32_t to);

void planner_step_changes(struct partition_planner *planner);

/* The reservation is reclaimed, with a change that settles, if it has one. */
void planner_forget_change(struct partition_planner *planner, uint32_t number);

/* ---- evacuation.c ---- */

/* Notes which GPUs are in service. */
void planner_note_service(struct partition_planner *planner);
void planner_step_evacuation(struct partition_planner *planner, core_ns now_ns);
/* Begins another scan over all streams because of this GPU. */
void planner_scan(struct partition_planner *planner, uint32_t gpu);

/* ---- retune.c ---- */

void planner_retune(struct partition_planner *planner, core_ns now_ns);

/* ---- waiting.c ---- */

void planner_maintain_requests(struct partition_planner *planner, core_ns now_ns);
/* A migration that was to make room for a request ended. */
void planner_made_room(struct planner_pending *pending);
void planner_drop_pending(struct partition_planner *planner);

#endif
