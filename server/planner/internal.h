/* Private to planner*.c: what the planner thread owns.
 *
 * planner.c: life, requests, grants. gpu_plans.c: plans of GPUs. moves.c: streams from one unit to another.
 * modify.c: other contracts. elsewhere.c: other contracts on other units. replan.c: admission by migrating
 * other streams. watch.c: GPUs that fail and return. retune.c: periods that grow back. Everything is called
 * on the planner thread. */
#ifndef MILLRACE_SERVER_PLANNER_INTERNAL_H
#define MILLRACE_SERVER_PLANNER_INTERNAL_H

#include "server/planner/planner.h"
#include "server/server_internal.h"
#include "server/stream/modify.h"
#include "server/stream/route.h"

/* Timeout of planner-initiated migrations. */
#define SERVER_PLANNER_PATIENCE_NS CORE_NS_PER_S

/* What the planner thread knows of a GPU. */
struct server_planner_card {
    bool out;          /* out of service */
    bool passing;      /* an evacuation scan over the streams is in progress */
    bool missed;       /* rescan: some stream could not be migrated */
    uint32_t next;     /* number of the next stream of the scan */
    core_ns look_ns;   /* the scan goes on then */
    uint64_t sent;     /* number of the last plan that its batcher was sent */
    core_ns period_ns; /* batch period when it was last checked */
    core_ns tune_ns;   /* earliest time of the next retune */
};

struct server_planner {
    struct server *server;
    struct server_mailbox mailbox;
    struct server_message stop_message;
    struct server_turns turns; /* planner thread: requests that wait */
    struct server_turn *turn;  /* planner thread: request whose explanation may be cut off; or NULL */
    bool cut;                  /* planner thread: that explanation was cut off */
    core_ns house_ns;          /* planner thread: deadline of the next housekeeping */
    struct partition_standing *standing; /* planner thread */
    struct server_grant **grants;        /* planner thread: by number of the standing plan; NULL: none */
    uint32_t grant_capacity;
    uint64_t streams, buffer_bytes;     /* planner thread: granted in all */
    struct server_grant *leaving;       /* planner thread: given back, their unit has not paused since */
    struct server_order *orders;        /* planner thread: all that are under way */
    struct server_change *changes;      /* planner thread: those that wait for a plan or a pause */
    uint64_t born;                      /* planner thread: number of the last grant */
    struct server_planner_card *cards;  /* planner thread; by GPU */
    struct server_memory *memory;       /* for packets */
    struct server_replanner *replanner; /* NULL: no streams are migrated for new ones */
    bool stopping;                      /* planner thread */
    struct server_planner_load *worker_loads, *io_loads;
    struct server_planner_figures figures;
    pthread_t thread;
};

/* ---- planner.c ---- */

/* Shows the loads of a worker (a GPU's are its batcher's) and an I/O thread. */
void server_planner_publish(struct server_planner *planner, uint32_t unit, uint32_t io);

/* Between these two calls, the explanation of a refusal is cut off as soon as another connection waits for
 * a decision. True: it was cut off, and the request (`message`) waits until no decision does; then it is
 * decided again. */
void server_planner_begin_turn(struct server_planner *planner, struct server_turn *turn);
bool server_planner_put_off(struct server_planner *planner, struct server_message *message);

/* The connection of the request is closed: the answer is not needed any more. */
bool server_planner_is_gone(const struct server_turn *turn);

/* Admits the stream of the request if a unit accepts it without migrations; else sets the refusal. */
void server_planner_admit(struct server_planner *planner, struct server_request *request);

/* Sends the answer. */
void server_planner_answer(struct server_planner *planner, struct server_request *request);

/* Are so many more bytes of packet memory within limits.buffer_mib? server_planner_no_room is the text of
 * the refusal if they are not. */
bool server_planner_has_memory(const struct server_planner *planner, uint64_t bytes);
extern const char server_planner_no_room[];

/* Packets that a stream needs on that unit; *movable: they are enough for a GPU. */
uint32_t server_planner_queue_packets(const struct server_planner *planner,
                                      const struct core_stream_spec *spec, uint32_t unit, bool *movable);

/* Makes sure that one grant more can be entered. */
CORE_CHECKED core_status server_planner_reserve(struct server_planner *planner);

/* Enters a grant under its number; it is removed when its reservation is reclaimed. */
void server_planner_enter(struct server_planner *planner, struct server_grant *grant);

/* The grant is given back, or was never used. */
void server_planner_leave(struct server_planner *planner, struct server_grant *grant);

/* Reclaims the reservations of all grants that were given back and whose unit has paused since. */
void server_planner_sweep(struct server_planner *planner);

static inline bool server_planner_is_gpu(const struct server_planner *planner, uint32_t unit)
{
    return partition_unit_is_gpu(planner->server->worker_count, unit);
}

/* Has the worker paused since its count of pauses was `pauses`? */
bool server_planner_worker_paused(const struct server_planner *planner, uint32_t worker, uint64_t pauses);

/* The backup of a placement; unit NONE: it has none. And the binding of that backup to a GPU, if it is on
 * one. */
struct server_backup server_planner_backup_of(const struct partition_standing_placement *placement);
struct server_spare server_planner_spare_of(const struct server_planner *planner,
                                            const struct partition_standing_placement *placement);

/* ---- gpu_plans.c ---- */

/* The last plan of the GPU's batches, which may not be in force yet. */
const struct partition_gpu_plan *server_planner_batches(const struct server_planner *planner, uint32_t gpu);

/* The GPUs that the standing plan charges for a stream, and the plans of their batches that it counts on. */
struct server_planner_plans server_planner_plans_of(const struct server_planner *planner, uint32_t stream);

/* False: a GPU is not, and *words say so; it may have gone out of service since the planner looked. */
bool server_planner_in_service(const struct server_planner *planner, const struct server_planner_plans *plans,
                               struct partition_standing_words *words);

/* After anything that the standing plan was charged or released: the plans that are new go to their batchers.
 * One for which there is no memory goes with the next look; the one before holds as well until then. */
void server_planner_send_plans(struct server_planner *planner);

/* Refused for that. */
void server_planner_say(const struct partition_standing_words *words,
                        struct partition_standing_placement *placement);

/* Are the plans in force? */
bool server_planner_plans_in_force(const struct server_planner *planner,
                                   const struct server_planner_plans *plans);

/* Have all stages of the GPU paused since this batch? */
bool server_planner_gpu_paused(const struct server_planner *planner, uint32_t gpu, uint64_t batch);

/* ---- moves.c ---- */

struct server_planner_move {
    struct server_grant *grant; /* of the stream that migrates */
    uint32_t to;
    core_ns period_ns; /* to a GPU: of its batches from then on */
    core_ns patience_ns;
    void *owner; /* passed on */
};

/* Begins a migration: reserves capacity at the new unit and sends the order. `returned` is run with the
 * order (struct server_order) when it is back, and calls server_planner_moved first. False: the unit
 * refuses the stream, or the stream is already migrating; reason says so. An order carries one GPU binding,
 * so a guaranteed stream migrates to a GPU only if its backup is on a worker. (A stream whose backup is on
 * a GPU can migrate away.) */
bool server_planner_move(struct server_planner *planner, const struct server_planner_move *move,
                         void (*returned)(void *planner, struct server_message *message), char *reason,
                         size_t size);

/* Finishes an order that is back: updates grants and counts, and frees it. Returns its outcome. */
enum server_order_outcome server_planner_moved(struct server_planner *planner, struct server_order *order);

/* Creates an order for the move; nothing is reserved yet. NULL without memory. */
struct server_order *server_planner_order_create(struct server_planner *planner,
                                                 const struct server_planner_move *move);
void server_planner_order_destroy(struct server_order *order); /* NULL is fine */

/* The stream is order->to->stream in the standing plan: fills in what it has there. False: the GPU is out of
 * service, or no worker holds its backup, and reason says so; it is released. */
bool server_planner_order_settle(struct server_planner *planner, struct server_order *order, char *reason,
                                 size_t size);

/* Enters the order among those in progress. */
void server_planner_order_begin(struct server_planner *planner, struct server_order *order,
                                void (*returned)(void *planner, struct server_message *message));

/* ---- elsewhere.c ---- */

/* The stream's own unit has refused the change: is there another that takes it? Then the change has an order
 * (server/stream/modify.h), and keeps the refusal for the case that nothing comes of it. */
bool server_planner_change_elsewhere(struct server_planner *planner, struct server_change *change);

/* ---- modify.c ---- */

/* What packet memory the change needs on that unit. False: there is no room for that. */
bool server_planner_change_memory(const struct server_planner *planner, struct server_change *change,
                                  uint32_t unit);

/* The stream is charged for its contract alone from now on, which is no more than before. */
void server_planner_settle(struct server_planner *planner, struct server_grant *grant);

/* Goes on with the changes whose plan is in force, or whose unit has paused. */
void server_planner_sweep_changes(struct server_planner *planner);

/* The grant has none any more; it must be settling, if there is one. */
void server_planner_forget_change(struct server_planner *planner, struct server_grant *grant);
void server_planner_drop_changes(struct server_planner *planner);

/* At the end, when no I/O thread runs any more. */
void server_planner_drop_orders(struct server_planner *planner);

/* ---- replan.c ---- */

/* Tries to admit a refused stream by migrating others. False: the refusal is to be sent: it was not for
 * lack of capacity, or migrations can not help, or too many requests wait for migrations, or the request is
 * a QUERY (its advice then says that an OPEN would try). True: the request is answered later. */
bool server_planner_apply(struct server_planner *planner, struct server_request *request);
bool server_planner_has_applicants(const struct server_planner *planner);
/* Advances the requests that wait for migrations. */
void server_planner_replan(struct server_planner *planner);
CORE_CHECKED core_status server_planner_start_replanner(struct server_planner *planner,
                                                        struct core_error *error);
/* After every I/O thread has stopped, before the planner itself stops: no request waits then. */
void server_planner_stop_replanner(struct server_planner *planner);

/* ---- watch.c ---- */

/* Checks the state of the GPUs, and migrates streams that are not on the unit where they belong. */
void server_planner_watch(struct server_planner *planner);

/* Starts another evacuation scan over all streams because of this GPU. */
void server_planner_look_again(struct server_planner *planner, uint32_t gpu);

/* ---- retune.c ---- */

/* Raises the batch periods of GPUs where that is possible. */
void server_planner_retune(struct server_planner *planner);

#endif
