/* Private to server/planner: what the planner thread owns.
 *
 * planner.c: the thread, requests, turns. host.c: what the planner (partition/planner/planner.h) sees of the
 * units and tells the batchers. migrations.c: messages to I/O threads. modify.c: other contracts.
 * replanner.c: the search for migrations and the check of plans, on a thread of its own. reserve.c: shares
 * withheld after an overload. All but that search and that check is on the planner thread. */
#ifndef MILLRACE_SERVER_PLANNER_INTERNAL_H
#define MILLRACE_SERVER_PLANNER_INTERNAL_H

#include "server/planner/messages.h"
#include "server/server_internal.h"

struct server_planner {
    struct server *server;
    const struct server_planner_stream_ops *stream_ops;
    struct server_mailbox mailbox;
    struct server_message stop_message;
    /* the planner thread's: */
    struct partition_planner *inner; /* decides */
    struct server_turns turns;       /* requests that wait */
    struct server_turn *turn;        /* request whose explanation may be cut off; or NULL */
    bool cut;                        /* that explanation was cut off */
    bool stopping;
    core_ns house_ns;                    /* deadline of the next maintenance */
    uint64_t streams, buffer_bytes;      /* granted in all */
    struct server_migration *migrations; /* all that are in progress */
    struct server_modify *modifies;      /* granted, and wait for plans to come into force */
    struct server_memory *memory;        /* for packets */
    struct server_replanner *replanner;  /* NULL: no streams are migrated for new ones, nor plans checked */
    /* any thread reads: */
    struct server_planner_load *worker_loads, *io_loads;
    struct server_planner_figures figures;
    pthread_t thread;
};

/* ---- planner.c ---- */

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

static inline bool server_planner_is_gpu(const struct server_planner *planner, uint32_t unit)
{
    return partition_unit_is_gpu(planner->server->worker_count, unit);
}

/* SERVER_NO_GPU: it is a worker. */
static inline uint32_t server_planner_gpu_of(const struct server_planner *planner, uint32_t unit)
{
    return server_planner_is_gpu(planner, unit) ? partition_unit_gpu(planner->server->worker_count, unit)
                                                : SERVER_NO_GPU;
}

/* The backup of a placement; unit NONE: it has none. */
struct server_backup server_planner_backup_of(const struct admission_placement *placement);

/* ---- host.c ---- */

extern const struct partition_planner_host server_planner_host;

/* A reservation was made, or is back for good: counts its backup. */
void server_planner_count_backup(struct server_planner *planner, const struct server_reservation *reservation,
                                 uint64_t more);
void server_planner_publish(struct server_planner *planner, uint32_t unit, uint32_t io);

/* ---- migrations.c ---- */

/* The host's: makes the message, and sends it to the stream's I/O thread unless it belongs to a change, which
 * takes it along. */
void *server_planner_migrate(void *host, const struct partition_planner_migration *wanted);

/* At the end, when no I/O thread runs any more. */
void server_planner_drop_migrations(struct server_planner *planner);

/* ---- modify.c ---- */

/* The host's: the plans that a granted change waited for are in force. */
void server_planner_agreed(void *host, void *modify, bool lacking);
void server_planner_drop_modifies(struct server_planner *planner);

/* ---- replanner.c ---- */

/* Lets a refused request wait until other streams have been migrated. False: the refusal is to be sent: it
 * was not for lack of capacity, or migrations can not help, or too many requests wait for migrations, or the
 * request is a QUERY (its advice then says that an OPEN would try). True: the request is answered later. */
bool server_planner_wait_for_room(struct server_planner *planner, struct server_request *request);

/* Where check_plans is set: has the plan in force checked if it has changed since the last check began, none
 * is running and no request waits. */
void server_planner_check_plan(struct server_planner *planner);

/* The host's. */
void server_planner_search(void *host, struct partition_planner_search *search);
void server_planner_admit_waiting(void *host, void *request);
void server_planner_refuse_waiting(void *host, void *request, enum partition_planner_refusal why);
bool server_planner_still_waits(void *host, void *request);

CORE_CHECKED core_status server_planner_start_replanner(struct server_planner *planner,
                                                        struct core_error *error);
/* After the planner's thread has ended. */
void server_planner_stop_replanner(struct server_planner *planner);

#endif
