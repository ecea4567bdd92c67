/* Online admission control: the streams that a server has admitted, and the decision whether it can admit
 * one more.
 *
 * Keeps for every worker and every GPU the demand of its streams, as sums. The question whether a unit can
 * take one stream more takes some microseconds, however many streams there are, and moves none of them.
 * Where no unit has capacity, a new plan of all streams may have: it is proposed as a list of migrations.
 *
 * Units are numbered as partition/unit_number.h says: the workers, then the GPUs.
 *
 * **Where a stream is placed.** The test of a worker is that of perfmodel/demand.h, the tests of a GPU those
 * of perfmodel/flow.h. Of the units that pass their tests with the stream, in this order of preference:
 *
 *   1. the least loaded worker while it stays below a quarter: idle cores cost nothing, and answer sooner;
 *   2. a GPU at its present period, of several the one with the longest: short periods are left to streams
 *      that need them, and capacity of workers to streams that only a worker can serve;
 *   3. a GPU without streams;
 *   4. the least loaded worker;
 *   5. a GPU at a new period that holds for all its streams.
 *
 * The stream is refused if none passes. The preference order is a heuristic. The accept decision is
 * monotone: a stream that is accepted is also accepted with a longer interval or a longer latency bound,
 * all else equal.
 *
 * **Guaranteed streams** (core/stream.h) survive the failure of any one GPU. On a worker they need nothing
 * more. On GPU g one is admitted for a shorter bound, d_g, and has a *backup*: capacity of another unit,
 * reserved for the failure of g only, for the contract
 *
 *     interval t    burst k + ceil((d_g + delta) / t)    latency d - d_g - delta,
 *
 * delta being the time from the failure until the packets are sent to the backup (admission_set_detection). *Proof
 * that this is enough.* Let the failover be at tau <= failure + delta. Packets that became eligible by
 * failure - d_g were delivered. So every packet that the backup gets was eligible after tau - d_g - delta. Packets
 * that the GPU lost arrive at tau, later packets when they are eligible. So a window of length D has no more
 * arrivals than the contract allows in a window of length D + d_g + delta: k + floor((D + d_g + delta) / t)
 * <= k + ceil((d_g + delta) / t) + floor(D / t). No packet arrives later than d_g + delta after its eligible
 * time, so that d is kept.
 *
 * For every single-GPU failure there is a *failure scenario* per unit: its own streams plus that GPU's
 * backups. A stream must pass the test in all scenarios, a backup only in that of its own GPU. So whichever
 * GPU fails, every unit keeps the bounds of all its streams, of standard ones too. Scenarios share the
 * reserved capacity. While a GPU is out of service its scenario is the present state: new streams pass the
 * test in it, and a second failure is not covered.
 *
 * Where a guaranteed stream is placed: 1. as above; 2. if several GPUs are in service, a GPU at its present
 * period, else an idle GPU, with a backup; 3. the least loaded worker; 4. the only GPU, with a backup; 5. a
 * GPU at a new period, with a backup. With one GPU a worker is asked first, since the backup asks more of a
 * worker than the stream itself does (more packets at once, in less time), and there is only one scenario.
 * The backup goes to the least loaded worker in that scenario; else to another GPU at its present period,
 * to the one with the longest; else to an idle one. d_g is tried in this order: half of d, or less if the
 * GPU's streams have a shorter d' anyway; and the least that the GPU takes, which leaves most to the
 * backup. Both are of a fixed grid, so that what is accepted is so for longer intervals and bounds too.
 *
 * **Offers** are searched for with the decision itself, to the nanosecond: the offered contract was asked
 * for and accepted, and one that is a nanosecond shorter was asked for and refused.
 *
 * **When capacity may be reserved again.** As unit_worker.h says for workers: not before the unit has had a
 * grace period (here: *paused*) since the last packet of the released stream. A GPU has paused once each of
 * its stages (copy up, kernel, copy back) has had a moment with no batch to work on, after its part in the
 * batch of that packet. Why: the bound of a batch in a stage (perfmodel/flow.h) is that of the batches
 * since the stage last ran dry, L in a row, which hold at most W(L) = P + L rho T bytes of the streams then
 * promised. Had one of these streams left and another been admitted in its place, the bursts of both could
 * be among the L: W(L) + k p^. A stage that ran dry after the last batch of the stream that left begins its
 * next run behind that batch, and this run has only streams that still have a reservation. (Where no stage
 * of the fullest batch outlasts T no run is longer than a batch, and the batch after that of the last
 * packet is free of it.) That it ran dry must be certain, however late the ends of its batches were noticed
 * (server/gpu/pauses.h). With one copy engine a copy may wait for those of the other direction, so the
 * bounds are those of the batches since the card was last idle: there that is the pause.
 *
 * **When a period may change.** At a batch before which all stages have paused; or at any, if
 * perfmodel_flow_judge_change accepts the change for the streams that were there before. The first packet
 * of the new stream must wait until all stages have paused under the new period.
 *
 * Pure; the same questions in the same order get the same answers. One owner (the planner thread). */
#ifndef MILLRACE_PARTITION_ADMISSION_ADMISSION_H
#define MILLRACE_PARTITION_ADMISSION_ADMISSION_H

#include "partition/admission/gpu_plan.h"
#include "partition/plan.h"
#include "partition/unit_number.h"
#include "perfmodel/cpu.h"
#include "perfmodel/limit.h"

#define ADMISSION_NONE UINT32_MAX /* no stream, no unit */

struct admission;

/* The nearest contracts that would be accepted now; 0 where none is. Both are themselves accepted if asked
 * for with no change in between. */
struct partition_offer {
    core_ns interval_ns; /* shortest interval (highest rate) at the asked latency, packet size and burst */
    core_ns latency_ns;  /* shortest latency at the asked rate */
};

/* The answer of a decision: where the stream is or why it is refused, its bounds, and what would be granted.
 * One field for each thing that an answer tells. */
struct admission_placement {
    bool accepted;
    uint32_t unit;                  /* accepted */
    uint32_t stream;                /* admitted: its number until it is released; else NONE */
    struct perfmodel_cpu_task task; /* accepted on a worker: what it is charged for */
    core_ns period_ns;              /* accepted on a GPU: of its batches from now on */
    bool new_period;       /* accepted on a GPU with streams: period_ns differs from its present one */
    uint64_t memory_bytes; /* accepted on a GPU: its arenas, on the card and pinned */
    /* The backup_ fields, gpu_bound_ns, detection_ns and reserved_ppb: accepted, guaranteed, on a GPU. */
    uint32_t backup_unit; /* unit that serves the stream while its GPU is out of service; NONE: no backup */
    struct core_stream_spec backup_spec;   /* contract of the backup; its latency counts from the failover */
    struct perfmodel_cpu_task backup_task; /* backup on a worker: its task after the failover */
    core_ns gpu_bound_ns;                  /* d_g: guaranteed latency while no GPU is out of service */
    core_ns detection_ns;                  /* delta: time from a failure to the failover */
    core_ns backup_bound_ns;               /* guaranteed latency through a failure; <= spec->latency_ns */
    core_ns backup_period_ns;              /* backup on a GPU: batch period of that GPU from now on */
    uint64_t backup_memory_bytes;          /* backup on a GPU: arenas of that GPU */
    int64_t
        reserved_ppb; /* long-run share of the backup unit's time that is reserved: the price of the class */
    bool joined;      /* change accepted: the unit reserves capacity for both contracts until the settle */
    core_ns bound_ns; /* accepted: guaranteed latency, for any later admissions; <= spec->latency_ns */
    enum perfmodel_limit constraint; /* refused: the binding one, of the unit that came closest */
    struct partition_offer offer;    /* refused: of any unit, without moves */
    char reason[256];                /* refused: a sentence with the figures */
};

/* profile has passed config_profile_check, and is copied. */
CORE_CHECKED core_status admission_create(struct admission **admission, const struct config_profile *profile,
                                          uint32_t worker_count, uint32_t io_count, struct core_error *error);
void admission_destroy(struct admission *admission); /* NULL is fine */

/* A copy with the same streams and numbers, for trials on any thread: it shares no memory with the
 * original. CORE_NO_MEMORY. */
CORE_CHECKED core_status admission_copy(const struct admission *admission, struct admission **copy);

/* Would this stream, on a connection of I/O thread `io`, be accepted without moving any other? Fills the
 * whole placement; with_offer = false skips the search for an offer. Commits nothing. CORE_INVALID: the spec
 * or io is out of range. */
CORE_CHECKED core_status admission_query(const struct admission *admission,
                                         const struct core_stream_spec *spec, uint32_t io, bool with_offer,
                                         struct admission_placement *placement, struct core_error *error);

/* Decides as admission_query does, with an offer, and commits if the stream is accepted.
 * `handle` is the caller's name for the stream; it need not be unique. CORE_REFUSED: there are
 * PARTITION_PLAN_STREAMS_MAX streams already; CORE_NO_MEMORY. */
CORE_CHECKED core_status admission_admit(struct admission *admission, const struct core_stream_spec *spec,
                                         uint32_t io, uint64_t handle, struct admission_placement *placement,
                                         struct core_error *error);

/* Releases the reservation of an admitted stream; not before its unit has paused ("When capacity may be
 * reserved again"). The stream's number may be given to another stream. */
void admission_release(struct admission *admission, uint32_t stream);

/* ---- GPUs out of service ---- */

/* Sets whether GPU `gpu` is out of service: admissions, migrations and offers leave it out. Its streams
 * keep their reservations there, and can be changed, migrated away and released. */
void admission_set_out(struct admission *admission, uint32_t gpu, bool out);

/* delta of the guaranteed streams that are admitted, moved or changed from now on, 0 .. 1 h: the time from
 * the moment at which a GPU stops keeping its bound until the streams' packets are on their way to the
 * backups. It is 2 ms until it is set. */
void admission_set_detection(struct admission *admission, core_ns ns);

/* ---- batches ----
 *
 * Times and memory as bytes are what the flow of a GPU needs (perfmodel/flow.h). Its batches need arenas,
 * too: so many at once, each with room for its bytes and packets, and a slot for each stream's key. Where
 * the arenas are known, a stream, a move, a change and a hold are accepted on a GPU only if its batches have
 * room with them, and if the plan of these may follow the last one (partition/admission/gpu_plan.h); that
 * plan is made at once, as it is when streams leave or settle. The offers for new streams know of it, those
 * for changes do not. A copy of the admission state knows no arenas.
 *
 * **Losses.** A GPU has streams of its own, and for each other GPU those that come here when that is lost.
 * The plan of its batches is for all these cases: for a load that none of them exceeds, its own and the most
 * of each figure that comes at any loss. With two GPUs that is the one case there is. With more it may be
 * more than any, so that a plan is refused which would hold; then the streams go elsewhere. Keys are on the
 * card beforehand: a slot is taken by each stream of its own, and by each that may come at whatever loss. */

/* The arenas of each GPU of a kind, by kind; before the first stream. The memory of a GPU is no more from now
 * on than its arenas have where the least number of batches is on the way. CORE_NO_MEMORY. */
CORE_CHECKED core_status admission_set_arenas(struct admission *admission,
                                              const struct partition_gpu_arenas *arenas);

/* Streams that may have a slot at once: one in so many is kept for those that are leaving. */
uint32_t partition_gpu_arenas_streams(const struct partition_gpu_arenas *arenas);

/* Why a unit does not do. */
struct admission_refusal {
    enum perfmodel_limit constraint;
    char reason[256];
};

/* After a retune: makes the plan of the batches of GPU g, whose arenas are known, for what it is charged for
 * now, so that it may follow the last one: where another period may not, the GPU is given the last one's, if
 * that holds for all. Without streams and backups it is a plan without batches. False: *words say why; the
 * last plan is what it was. */
bool admission_plan_batches(struct admission *admission, uint32_t g, struct admission_refusal *words);

/* The last plan that was made of them, until the next one; arenas are known. */
const struct partition_gpu_plan *admission_batches(const struct admission *admission, uint32_t g);

/* ---- refusals that can wait ----
 *
 * A decision takes microseconds; finding the reason and the offer of a refusal takes up to thousands of
 * them. `cancelled` is asked before that and during it. Once it returns true it must do so until the question
 * is over: the search is then cut off, and constraint and offer of the refusal are undefined. To get them,
 * repeat the whole question. A copy of the admission state has none. NULL: never. */
typedef bool admission_cancel(void *owner);
void admission_set_cancel(struct admission *admission, admission_cancel *cancelled, void *owner);

/* One that always returns true: for who does not ask why. */
admission_cancel admission_without_reasons;

/* ---- overload ---- */

/* Withholds a share of a unit from admission, migrations to it, and changes for more: 0 .. 10^9 ppb of any
 * window of a worker; of a GPU's period, latency and memory. Admitted streams and their certificate are not
 * affected. */
void admission_set_withheld(struct admission *admission, uint32_t unit, int64_t share_ppb);
int64_t admission_withheld_ppb(const struct admission *admission, uint32_t unit);

/* ---- growing back ---- */

/* Gives a GPU the best period for the streams that it has now, if that is longer than its present one. True:
 * it has another period from now on (see above from when). *period_ns: the one it has; 0 without streams and
 * backups.
 *
 * Best is what a GPU without a history would get for the same streams: the default period, d'/4 of the
 * shortest d', where it holds; else the period of the grid (partition/admission/unit_gpu.h) with most room.
 * So no stream that has left keeps the period shorter than the remaining streams need. Never shorter: the
 * present period holds, shorter periods cost more launches and copies, and are set when a new stream needs
 * one. Whether a GPU accepts a stream hardly depends on its present period, since all of the grid is tried;
 * but whether it is preferred to the workers, and accepts without a new period, does. Holds for all its
 * streams, in the case of each loss, within the card and the pinned budget. */
bool admission_retune(struct admission *admission, uint32_t gpu, core_ns *period_ns);

/* Sets the period of a GPU, > 0, back to one that it had before an admission or a retune. False: the period
 * does not hold for its streams and backups, or it has none; nothing changes. */
bool admission_set_period(struct admission *admission, uint32_t gpu, core_ns period_ns);

/* ---- another contract for a stream ----
 *
 * A stream changes its contract (t, k, d) in place: packet size, padding and cipher stay. From the change on
 * its unit is charged for the *join* of both,
 *
 *     t^ = min(t, t')    k^ = max(k, k')    d^ = min(d, d'),
 *
 * and for the new one alone after a settle. More of everything (t' <= t, k' >= k, d' <= d) is its own join:
 * it is in force at once. Less of everything: the join is what was charged, so it is never refused.
 *
 * **Why the join covers the transition.** The policer carries its bucket over: level' = min(k', level), and
 * fills at 1/t' from then on. Next to it let a bucket of the join, full at the stream's start, take a token
 * for every packet that the policer lets through. Its level is never below the policer's: both lose a token
 * at a packet; the join's gains at least as fast, up to no less; and the change itself can only lower the
 * policer's. So whatever the policer finds eligible, at whatever moment of whatever history of changes, the
 * join's bucket would, too: in any window of length D at most k^ + floor(D / t^) packets are eligible. Each
 * has d or d' to be finished, both at least d^. That is the join's contract, which the unit was asked for;
 * and a join of joins is the join of all contracts in it, so a stream can change again before it settles.
 *
 * **Serving it.** From a change until its settle a worker serves the stream as the placement's task says (the
 * join's): packets are spaced by s^, so that what the old contract left in its queue drains as fast as the
 * bucket fills. On a GPU there is nothing to be set.
 *
 * **When it settles.** As room is given back (above): once the unit has paused since the last packet that
 * became eligible under the old contract. What comes after conforms to the new one, by the bucket's level of
 * k' at most, and the windows of what is unfinished begin after the pause. */

/* **On another unit.** Where its own unit, A, refuses, the stream may be admitted a second time with its
 * new contract, as a new stream: by the same test, on whatever unit B, beside itself under the old contract.
 * It changes over at a moment s when nothing of it is inside A and nothing waits that is eligible; then its
 * number on A is released, as above from when. *Proof that this is enough.* All packets that were eligible
 * by s went to A, under contracts that A has reserved capacity for until the release. All later packets go
 * to B; with the bucket carried over they conform to the new contract from the first one on (level' <= k'
 * at s), and have d' to be finished, as B was asked for. So no window of either has more than what is
 * charged there, and where B is A its windows have the old one's and the new one's packets, and are charged
 * for both. If there is no such moment the second number is released, and the stream keeps its old contract
 * on A. The I/O thread, too, is charged for both until then.
 */

/* Would the stream's unit keep the contract `spec` instead? A GPU at its present period, or another one that
 * holds for all its streams. Fills the placement as admission_query does; `stream` is the stream's
 * number, `bound_ns` holds for the packets under `spec`, the join's service included. An offer is the nearest
 * contract that the same unit would change to. Nothing is left changed. CORE_INVALID: spec or its packet
 * size, padding or cipher; CORE_REFUSED: the stream has been moved to another number. */
CORE_CHECKED core_status admission_change_query(struct admission *admission, uint32_t stream,
                                                const struct core_stream_spec *spec, bool with_offer,
                                                struct admission_placement *placement,
                                                struct core_error *error);

/* Decides as admission_change_query does, with an offer, and commits if the change is accepted:
 * the unit and the I/O thread reserve capacity for the join. */
CORE_CHECKED core_status admission_change(struct admission *admission, uint32_t stream,
                                          const struct core_stream_spec *spec,
                                          struct admission_placement *placement, struct core_error *error);

/* The change ("When it settles"), or the hold (below), is over: from now on capacity is reserved for the
 * present contract alone. Does nothing for a stream with neither. */
void admission_finalize(struct admission *admission, uint32_t stream);

/* ---- a plan anew ---- */

struct admission_move {
    uint32_t stream;
    uint64_t handle; /* the caller's */
    uint32_t from, to;
    core_ns period_ns; /* to a GPU: of its batches from then on */
};

struct admission_proposal {
    bool accepted;
    size_t moves;                /* accepted: of other streams, each from one unit to another, */
    struct admission_move *move; /* in the order in which they are to be made: to be freed */
};

/* Would there be room for this stream if others moved? None have to where it fits as things stand. Else,
 * until an answer is found:
 *
 *   1. streams of one unit go to units of another kind (worker, kinds of GPU) that have room for them: of the
 *      worker that comes closest, and of each GPU;
 *   2. `method` makes a plan anew, and the streams that it has on another kind of unit change over one by
 *      one, first those that make room where the new stream is to be, until it fits;
 *   3. the plan is taken as it is, with the units of each kind renumbered so that many streams stay.
 *
 * An answer counts if its moves, in some order, can each be made by itself (admission_move): the new
 * unit holds with the stream beside all those it has then, with the stream still on its old unit too; and if
 * admission_admit accepts the new stream after the last. So a server lets one stream after the other
 * change units (the old room is free again after a pause, as above), then admits the new one, and no promise
 * is ever unproven.
 *
 * Nothing changes. Takes as long as a plan of all streams does. Status as of admission_admit. */
CORE_CHECKED core_status admission_replan(const struct admission *admission,
                                          const struct partition_plan_method *method,
                                          const struct core_stream_spec *spec, uint32_t io,
                                          struct admission_proposal *proposal, struct core_error *error);

/* Makes one move: enters the stream at unit `to` (a GPU: at this period) under another number, *again, which
 * is the stream from now on. The old number keeps the room on the old unit until it is released, and counts
 * as a stream until then. A stream whose change has not settled is charged for the join on both: packets of
 * the old contract that are eligible yet to come may go to either. A move comes to nothing if *again is
 * released before the old number: that one is the stream again. CORE_REFUSED: the unit does not hold with it
 * as things stand, or there is no such unit or period; CORE_NO_MEMORY. */
CORE_CHECKED core_status admission_move(struct admission *admission, uint32_t stream, uint32_t to,
                                        core_ns period_ns, uint32_t *again, struct core_error *error);

/* ---- packets that are held ----
 *
 * A stream that moves from unit A to B may have its packets held until A has returned all
 * (server/stream/pace.h), if A is known to return each within b_A of when it was let go there, and B has
 * been asked for a latency of d - b_A.
 *
 * **b_A.** A worker keeps the bound (unit.h) of what it is charged for, whoever comes. On a GPU the batches
 * may come to take as long as the least d' there allows. So A is charged for a latency bound L whose
 * d' is no less than T and the stages, as they are bounded now, in all cases of losses (or by whoever makes
 * the batches, if that is more). From then on that is kept as any promise is, whoever comes and whatever the
 * period becomes, and
 *
 *     b_A = in + d'(L) + out + rest(d)
 *
 * with the rest of d, not of L: the stream's I/O thread goes on to count d (a thread's rest is that of the
 * shortest bound that it counts). d'(L) is half way to d', which leaves room for new streams to A, or the
 * least that it may be where B has no room for what that leaves. b_A holds for packets let go to A once what
 * stands is in force there and A is charged for L. Those of before are back within d: packets are held no
 * sooner than d after the charge.
 *
 * **B** is charged for (t, k, d - b_A), and serves the stream so as long as something may be late; the I/O
 * thread counts d - b_A meanwhile.
 *
 * Both charges are as those of a change that has not settled, while the contract stays. A settle takes them
 * back: B's once it has paused since the last packet that it served as for d - b_A (at once if there was
 * none), A's if the move comes to nothing. Nobody can refuse that: it is less than what is charged. */

/* For a move just made: `stream` is the number that it gave. batches_ns: T and the stages of A, a GPU, as its
 * batches' maker bounds them; or 0. True: A and B are charged so, and *bound_ns is b_A. False: nothing has
 * changed: B, or A, has no room for it at its present period, or A is out of service; the stream has a
 * backup, which counts on packets that come in time; or it had a change, or an earlier hold, that has not
 * settled, so that there may be a lag already. */
bool admission_reserve_catch_up(struct admission *admission, uint32_t stream, core_ns batches_ns,
                                core_ns *bound_ns);

/* ---- what stands ---- */

size_t admission_streams(const struct admission *admission);

/* Differs from what it was before if anything has changed since: a stream, a reservation, a period. */
uint64_t admission_changes(const struct admission *admission);

/* Share of an I/O thread that is reserved. */
int64_t admission_io_ppb(const struct admission *admission, uint32_t io);

/* The I/O thread with the most room. */
uint32_t admission_emptiest_io(const struct admission *admission);

/* The least loaded worker that accepts this stream, on a connection of I/O thread `io`. NONE: no worker
 * does. */
uint32_t admission_worker_for(const struct admission *admission, const struct core_stream_spec *spec,
                              uint32_t io);

struct admission_stream {
    uint32_t stream;
    uint64_t handle;
    uint32_t unit, io;
    struct core_stream_spec spec; /* what the unit is charged for: the join; its latency d_g with a backup */
    struct core_stream_spec contract; /* what the stream has */
    struct core_stream_spec join;     /* of the contracts that have not settled; else the contract */
    uint32_t backup_unit;             /* NONE; and what is charged there in the case of the loss of `unit` */
    struct core_stream_spec backup_spec;
    core_ns gpu_bound_ns, detection_ns; /* d_g and delta; 0 without a backup */
    bool joined;                        /* changed, or held, and not settled yet */
    bool moved;                         /* to another number; this one only keeps the room */
};
/* The n-th of the streams, in no order; n below their number. */
struct admission_stream admission_stream_at(const struct admission *admission, size_t n);
/* By number; and as its admission would have told, had it been decided as it stands now. */
struct admission_placement admission_placement_of(const struct admission *admission, uint32_t stream);
struct admission_stream admission_stream_of(const struct admission *admission, uint32_t stream);

/* Admits so many more streams of this contract to a copy, which is the caller's to spend, each on the I/O thread
 * with the most room. Returns how many were: fewer than were asked for if there is room for no more without
 * moving others. */
uint32_t admission_fill(struct admission *copy, const struct core_stream_spec *spec, uint32_t wanted);

struct admission_worker {
    size_t streams; /* its own streams */
    int64_t utilisation_ppb;
    int64_t headroom_ppb; /* smallest over all windows */
    core_ns tightest_window_ns;
    int64_t reserved_ppb; /* reserved for backups, in the failure scenario that reserves most */
};
struct admission_worker admission_worker_at(const struct admission *admission, uint32_t worker);

struct admission_gpu {
    size_t streams;      /* its own streams */
    size_t backups;      /* streams of other GPUs whose backup is here */
    core_ns period_ns;   /* 0 without streams and backups */
    core_ns shortest_ns; /* least d' of streams and backups; 0 without any */
    uint64_t memory_bytes;
    bool out; /* of service */
};
struct admission_gpu admission_gpu_at(const struct admission *admission, uint32_t g);

#endif
