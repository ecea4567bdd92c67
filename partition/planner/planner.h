/* The planner: makes, moves, changes and reclaims the reservations of streams.
 *
 * Admission (partition/admission/admission.h) proves one step; the planner decides which step is next. It
 * knows every reservation from its admission until its capacity is reclaimed, the migrations and the changes
 * of contracts that are in progress, the GPUs that are out of service, and the requests that wait until other
 * streams have made room.
 *
 * Pure: time is an argument. What the units do is asked of the host (quiescent, in_service, plan_in_force),
 * what is to be done is told to it (the other functions of struct partition_planner_host). The same calls
 * with the same answers of the host have the same results. The server's planner thread is a host
 * (server/planner/planner.h), and so are the virtual-time histories of the tests. One owner; the host's
 * functions are called from within the calls below, and must not call the planner but where said.
 *
 * **Life of a reservation.** It has the number that the stream has in the admission state. A migration makes
 * a second one, for the new unit: the stream has both until the migration ends. One that is given up is
 * *retired*: its capacity is reclaimed once its unit, and that of its backup, has been quiescent since the
 * last packet served under it ("When capacity may be reserved again" in admission.h). This is epoch-based
 * reclamation; the epochs are the moments at which a unit has nothing to do.
 *
 * **Life of a change of contract.** ASKED: waits until the host decides on it, in its turn. AGREED: both
 * contracts are reserved; it waits for the plans of GPUs' batches that it counts on, then for a moment at
 * which the stream can change. SETTLING: it is in force, or was given up, and the capacity of the contract
 * that is over is reclaimed once the units have been quiescent. */
#ifndef MILLRACE_PARTITION_PLANNER_PLANNER_H
#define MILLRACE_PARTITION_PLANNER_PLANNER_H

#include "partition/admission/admission.h"

#include <stdbool.h>
#include <stdint.h>

struct partition_planner;

/* The GPUs whose batches a reservation counts on: the one that the stream is on, and the one that holds its
 * backup. None on a worker. */
struct partition_planner_plans {
    uint32_t gpu[2], count;
    uint64_t number[2]; /* of the plan that must be in force there */
};

/* What was served under a reservation. A mark is what the unit said of the last packet: of a worker its count
 * of quiescent moments, of a GPU the number of the batch. */
struct partition_planner_use {
    bool used;            /* at least one packet was at the reservation's unit: */
    uint64_t mark;        /* the last one */
    bool backup_used;     /* at least one packet was at the unit of its backup: */
    uint64_t backup_mark; /* the last one */
};

/* A migration that begins. */
struct partition_planner_migration {
    void *from_owner;      /* of the stream's present reservation */
    void *purpose;         /* as it was passed in; NULL: the planner's own */
    uint32_t from, to;     /* numbers of the present and of the new reservation */
    uint32_t unit;         /* new */
    uint64_t plan;         /* to a GPU: number of the plan that must be in force there first */
    bool changes_contract; /* the contract changes with the switch; purpose is the change */
    core_ns hold_ns;       /* b_A: packets may be held, `to` is reserved for a latency bound shorter by this;
                            0: they may not (server/stream/pace.h) */
    core_ns hold_from_ns;  /* not before then; CORE_NS_NEVER with hold_ns 0 */
    core_ns until_ns;      /* timeout */
};

enum partition_planner_outcome {
    PARTITION_PLANNER_MOVED,  /* the stream is on the new unit */
    PARTITION_PLANNER_STAYED, /* timed out: the stream never drained and stays on its unit */
    PARTITION_PLANNER_GONE    /* the stream is closing */
};

/* Why a request that waited is refused. */
enum partition_planner_refusal {
    PARTITION_PLANNER_NO_PLAN,   /* no feasible plan even after migrating other streams */
    PARTITION_PLANNER_TRIED,     /* several plans were tried; streams that came and went made them stale */
    PARTITION_PLANNER_TIMED_OUT, /* the time to wait is over */
    PARTITION_PLANNER_WITHDRAWN  /* the host said so (still_waits) */
};

/* A plan of migrations that the host is to search for, on any thread. The planner's but between `search` and
 * partition_planner_found. */
struct partition_planner_search {
    struct admission *copy;       /* of the admission state; the host's to use */
    struct core_stream_spec spec; /* of the request */
    uint32_t io;
    struct admission_proposal proposal; /* result of admission_replan; all zero: none */
};

struct partition_planner_host {
    /* Has the unit been quiescent since the mark? */
    bool (*quiescent)(void *host, uint32_t unit, uint64_t mark);
    bool (*in_service)(void *host, uint32_t gpu);
    uint64_t (*plan_in_force)(void *host, uint32_t gpu); /* its number */
    /* The plan goes to the GPU's batcher. False: that is busy now; the last one holds as well, and the plan
     * comes again. */
    bool (*put_plan)(void *host, uint32_t gpu, const struct partition_gpu_plan *plan);
    /* The stream is to migrate; ends with partition_planner_moved. Returns the owner of the new reservation.
     * NULL: there is no memory, and nothing comes of it. */
    void *(*migrate)(void *host, const struct partition_planner_migration *migration);
    /* Will a plan with this number not be in force, as there is no memory for its batches? */
    bool (*plan_lacks)(void *host, uint32_t gpu, uint64_t number);
    /* The plans that an agreed change counts on are in force; or, lacking, will not be: the change is to be
     * given up. */
    void (*agreed)(void *host, void *change, bool lacking);
    /* The capacity of a retired reservation was reclaimed; the owner is the host's again. superseded: it was
     * not, or not any more, the one that the stream was served under. */
    void (*reclaimed)(void *host, void *owner, bool superseded);
    /* What is reserved at the unit and at the I/O thread has changed; for what the host shows of it. */
    void (*charged)(void *host, uint32_t unit, uint32_t io);
    /* Begins a search, which ends with partition_planner_found. One at a time. */
    void (*search)(void *host, struct partition_planner_search *search);
    /* A unit accepts the stream of a request that waited: to be admitted, with partition_planner_admit, and
     * answered. */
    void (*admit)(void *host, void *request);
    void (*refuse)(void *host, void *request, enum partition_planner_refusal why);
    bool (*still_waits)(void *host, void *request);
    /* A GPU has gone out of service, or is in service again. */
    void (*service)(void *host, uint32_t gpu, bool out);
    /* The batch period of a GPU was raised without a request. */
    void (*retuned)(void *host, uint32_t gpu, core_ns before_ns, core_ns after_ns);
};

struct partition_planner_options {
    uint32_t workers, gpus;
    core_ns wait_ns;            /* how long a request waits for migrations of others; 0: never */
    core_ns timeout_ns;         /* timeout of evacuations and returns */
    core_ns scan_ns;            /* between two evacuation scans over all streams */
    core_ns retune_ns, calm_ns; /* between two retunes of a GPU; and after its period has changed */
};

/* `admission` is the planner's from now on, in any case. host and options->... are copied; `context` is passed
 * to the host's functions. CORE_NO_MEMORY. */
CORE_CHECKED core_status partition_planner_create(struct partition_planner **planner,
                                                  struct admission *admission,
                                                  const struct partition_planner_options *options,
                                                  const struct partition_planner_host *host, void *context,
                                                  struct core_error *error);
/* NULL is fine. `reclaimed` is called for every reservation that is left; a search that was begun has ended,
 * or will never be told of. */
void partition_planner_destroy(struct partition_planner *planner);

/* The admission state, for questions, the cancelling of searches and withheld shares; reservations are made below. */
struct admission *partition_planner_admission(struct partition_planner *planner);

/* ---- time ---- */

/* Reclaims what may be reclaimed, passes on what agreed changes waited for, notes which GPUs are in service,
 * and goes on with evacuations: the streams of a GPU that is out of service migrate where there is room, and
 * return when it is back. Short; to be called before each decision. */
void partition_planner_step(struct partition_planner *planner, core_ns now_ns);

/* What takes longer: goes on with requests that wait, raises batch periods, sends plans again. */
void partition_planner_maintain(struct partition_planner *planner, core_ns now_ns);

/* Does anything wait for what a unit does? Then the calls above are due every millisecond. */
bool partition_planner_waits(const struct partition_planner *planner);

/* ---- reservations ---- */

/* Asked of the caller, with the unit that accepts the stream. */
struct partition_planner_memory {
    /* Is there memory for its packets there? *movable: enough for a GPU, so that it may migrate to one. */
    bool (*fits)(void *context, uint32_t unit, bool *movable);
    void *context; /* passed on */
};

/* Admits a stream as admission_admit does, if its packets fit. owner: the caller's name of the
 * reservation, not NULL. CORE_OK: the placement tells whether it was accepted. CORE_FULL: accepted, and did
 * not fit. CORE_NO_MEMORY. */
CORE_CHECKED core_status partition_planner_admit(struct partition_planner *planner,
                                                 const struct core_stream_spec *spec, uint32_t io,
                                                 const struct partition_planner_memory *memory, void *owner,
                                                 struct admission_placement *placement);

/* The plans that the reservation counts on, as it stands. */
struct partition_planner_plans partition_planner_plans_of(const struct partition_planner *planner,
                                                          uint32_t stream);
bool partition_planner_in_force(const struct partition_planner *planner,
                                const struct partition_planner_plans *plans);

/* The reservation is given up, or was never used. It may still be part of a migration or a change whose end
 * has not been told. */
void partition_planner_retire(struct partition_planner *planner, uint32_t stream,
                              const struct partition_planner_use *use);

/* ---- migrations ---- */

/* Begins a migration to `unit`; to a GPU that has no streams, with this batch period. False: the unit refuses
 * the stream, its packet memory is enough for workers only, a migration or a change of it is in progress, or
 * a guaranteed stream would have its backup on another GPU; reason says so. */
bool partition_planner_move(struct partition_planner *planner, uint32_t stream, uint32_t unit,
                            core_ns period_ns, core_ns timeout_ns, void *purpose, core_ns now_ns,
                            char *reason, size_t size);

/* A migration ended. late: moved, with packets that may be late as they were held: partition_planner_changed
 * tells when none is any more. What is not needed any more (MOVED: the old reservation; else the new one) is
 * retired by the caller, before or after. */
void partition_planner_moved(struct partition_planner *planner, uint32_t to,
                             enum partition_planner_outcome outcome, bool late);

/* ---- changes of contracts ---- */

enum partition_planner_readiness {
    PARTITION_PLANNER_READY,
    PARTITION_PLANNER_SUPERSEDED,    /* the stream has migrated to another reservation, or is closing */
    PARTITION_PLANNER_MIGRATING,     /* or has not done with a migration that was given up */
    PARTITION_PLANNER_GPU_OUT,       /* a stream with a backup, whose GPU is out of service */
    PARTITION_PLANNER_BACKUP_GPU_OUT /* the GPU that holds its backup is */
};

/* A change of the reservation's contract waits for its turn: the number stays valid until it is decided or
 * dropped. */
void partition_planner_ask(struct partition_planner *planner, uint32_t stream);
void partition_planner_drop(struct partition_planner *planner, uint32_t stream);
enum partition_planner_readiness partition_planner_readiness(const struct partition_planner *planner,
                                                             uint32_t stream);

/* Asks the stream's unit to reserve capacity for another contract, too. Accepted: the change is AGREED;
 * *ready: the plans it counts on are in force, else `agreed` is called with it, sooner or later. Ends with
 * partition_planner_changed. CORE_INVALID: as of admission_change. */
CORE_CHECKED core_status partition_planner_change(struct partition_planner *planner, uint32_t stream,
                                                  const struct core_stream_spec *spec, void *change,
                                                  struct admission_placement *placement, bool *ready);

/* The stream's unit has refused: asks the others, as for a new stream. True: it is admitted there, a
 * migration that changes the contract has begun, with `change` as its purpose, and the change is AGREED. */
bool partition_planner_change_elsewhere(struct partition_planner *planner, uint32_t stream,
                                        const struct core_stream_spec *spec,
                                        const struct partition_planner_memory *memory, core_ns timeout_ns,
                                        void *change, core_ns now_ns, struct admission_placement *placement);

enum partition_planner_end {
    PARTITION_PLANNER_IN_FORCE,
    PARTITION_PLANNER_GIVEN_UP, /* timed out; the stream keeps its contract */
    PARTITION_PLANNER_CLOSING   /* the stream is closing; all is reclaimed with the reservation */
};

/* An agreed change ended. use: what was served until then. movable: in force; as in struct
 * partition_planner_memory, but for what comes of a hold. */
void partition_planner_changed(struct partition_planner *planner, uint32_t stream,
                               enum partition_planner_end end, const struct partition_planner_use *use,
                               bool movable);

/* ---- requests that wait ---- */

/* A request was refused: can migrations of other streams help, as far as the reason tells? */
bool partition_planner_may_help(const struct partition_planner *planner, enum perfmodel_limit constraint);

/* Lets the request wait until others have made room; it ends with `admit` or `refuse`. False: too many wait,
 * or there is no memory. */
bool partition_planner_wait(struct partition_planner *planner, const struct core_stream_spec *spec,
                            uint32_t io, void *request, core_ns now_ns);

/* A search ended. */
void partition_planner_found(struct partition_planner *planner, struct partition_planner_search *search,
                             core_ns now_ns);

#endif
