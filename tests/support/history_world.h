/* Private to histories: the world. */
#ifndef MILLRACE_TESTS_HISTORY_WORLD_H
#define MILLRACE_TESTS_HISTORY_WORLD_H

#include "partition/planner/planner.h"
#include "server/stream/pace.h"
#include "server/stream/path.h"
#include "server/stream/policer.h"
#include "tests/support/history.h"
#include "tests/support/history_gpu.h"
#include "tests/support/history_machine.h"
#include "tests/support/history_worker.h"
#include "tests/support/tape.h"

#define HISTORY_NONE    UINT32_MAX
#define HISTORY_ROOMS   (2 * HISTORY_SOURCES)
#define HISTORY_WAITERS 64
#define HISTORY_UNITS   (HISTORY_WORKERS + HISTORY_GPUS)

/* A stream's reservation, until it is released. */
struct history_room {
    uint32_t number, unit;
    bool worked;     /* the unit has served a packet of the stream */
    uint64_t pauses; /* worked, a worker: its count of pauses at the last packet */
    uint64_t batch;  /* worked, a GPU: the batch of the last packet */
    uint64_t plan;   /* a GPU: the plan with which the reservation was made */
    uint32_t backup; /* unit of the backup for the failure of that GPU; NONE */
    uint64_t backup_plan;
};

enum history_sending {
    HISTORY_FULL,     /* as much as the contract allows */
    HISTORY_PERIODIC, /* a packet an interval */
    HISTORY_PAUSING,  /* at random */
    HISTORY_SAVING,   /* the whole burst, and again when it has been earned back */
    HISTORY_SENDINGS
};

enum history_state { HISTORY_FREE, HISTORY_OPENING, HISTORY_OPEN, HISTORY_CLOSING };

/* Another contract on the way. */
struct history_change {
    bool asked;  /* accepted by the planner, not in force yet */
    bool agreed; /* and nothing is waited for any more but a moment of the stream */
    bool joined; /* in force, and the join still charged */
    struct core_stream_spec spec;
    struct perfmodel_cpu_task task; /* on a worker: of the join */
    struct history_room force;      /* the room, once it is in force */
};

struct history_stream {
    enum history_state state;
    uint32_t index;
    struct core_stream_spec spec;
    struct history_room room;
    struct history_room next_room;  /* of a move; unit NONE: none */
    enum server_path_state path;    /* WORKER or HELD_WORKER, whatever its unit: failovers are done here */
    core_ns hold_from_ns, until_ns; /* of its migration */
    struct server_pacer pace;
    core_ns hold_ns;        /* of a move: what the old unit keeps, and the new one was asked for so much less
                             than the latency bound; 0: packets are not held */
    core_ns silent_from_ns; /* silent from then on, so that it comes to a rest */
    core_ns asked_ns;       /* latency bound that its unit serves it for: */
    bool hasty;             /* less than its own, as packets that were held may be late */
    bool ambush;            /* packets are held from the moment on at which one is inside and others come */
    bool away;              /* its device is out of service */
    core_ns flee_ns;        /* its device is lost, and its packets are at the backup then; CORE_NS_NEVER */
    uint32_t home;          /* while it is served by its backup: the unit that was lost; NONE */
    bool sheltered;         /* its backup has served a packet of it since it came to its unit */
    uint64_t shelter_mark;  /* sheltered: the count of pauses, or the batch, of the last such packet */
    core_ns arrived_ns;     /* what was eligible before came to the unit at that time */
    core_ns gpu_bound_ns;   /* with a backup: guaranteed latency while there is no loss; else 0 */
    bool restoring;         /* it has returned, but what waited has not caught up */
    core_ns resume_ns;      /* the stand-by has returned all then; CORE_NS_NEVER: it has */
    struct history_change change;
    struct cpu_stream *cpu;
    struct server_policer policer, police_before; /* before the packet that is not eligible yet */
    enum history_sending sending;
    core_ns silent_until_ns, arrival_ns;
    uint64_t sent;
    struct history_packet *packet;             /* policed, not eligible yet */
    struct history_packet *queue, *queue_tail; /* eligible, to go to the unit */
    core_ns go_ns;          /* when the first of them goes; CORE_NS_NEVER: it waits for something else */
    core_ns handed_over_ns; /* the last one */
    uint32_t inside;        /* packets at the unit */
};

/* A request for which other streams migrate. */
struct history_request {
    bool waits;
    struct core_stream_spec spec;
};

struct history_world {
    struct history_machine machine;
    enum history_fault fault;
    uint64_t seed;
    struct test_random random;
    struct tape tape; /* bytes NULL: chance alone decides */
    core_ns now_ns, start_ns, end_ns;
    struct partition_planner *planner;
    struct admission *admission;                  /* the planner's */
    struct partition_gpu_plan sent[HISTORY_GPUS]; /* the last plans that batchers were sent */
    struct history_gpu gpu[HISTORY_GPUS];
    struct history_worker worker[HISTORY_WORKERS];
    struct history_stream stream[HISTORY_SOURCES];
    uint32_t streams_high; /* no stream from here on is in use */
    char *cpu_streams;
    uint32_t dropped[HISTORY_ROOMS]; /* new reservations for streams that are in no state to migrate */
    size_t dropped_count;
    struct history_room shelter[HISTORY_ROOMS]; /* served as a backup: until the unit has paused since */
    size_t shelter_count;
    struct history_request request;
    struct partition_planner_search *search; /* to be made; NULL: none */
    int relays; /* streams to which something is to happen next, one after the other or at once */
    bool relays_at_once;
    enum { HISTORY_CLOSES, HISTORY_MOVES, HISTORY_CHANGES, HISTORY_SQUEEZES, HISTORY_LOSSES } relays_kind;
    uint32_t squeezed; /* unit of which all are to ask for less */
    struct history_waiter {
        struct core_stream_spec spec;
        int asked; /* so often */
    } waiting[HISTORY_WAITERS];
    size_t waiting_count;
    int small_percent; /* of packets that are smaller than they may be, */
    int early_percent; /* and that reach their worker sooner */
    bool look;         /* the planner has reason to, */
    bool roomier;      /* a contract has settled, */
    bool awaits;       /* some stream waits for a report of the units */
    /* streams, GPUs, workers, and what happens by chance: when each is to be called, first come first served
     * and in this order */
    core_ns wake_ns[HISTORY_SOURCES + HISTORY_UNITS + 1];
    struct history_packet *free;
    struct history_made *made;
    struct history_totals *totals;
    uint32_t changes; /* for which a certificate was to be judged, while bytes decide */
    bool failed;
    bool over; /* what is left goes with the planner */
    char *text;
    size_t text_size, text_used;
};

/* Tells the story. */
void history_say(struct history_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
void history_fail(struct history_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
void history_count(struct history_world *world, enum history_event event);

/* ---- streams (history_stream.c) ---- */

/* The stream may send from now on. */
void history_stream_open(struct history_world *world, struct history_stream *stream);
/* Its next moment has come. */
void history_stream_run(struct history_world *world, struct history_stream *stream);
/* Draws how it goes on sending, silent until then. */
void history_stream_behave(struct history_world *world, struct history_stream *stream,
                           core_ns silent_until_ns);
/* All of a unit's streams earn their bursts back, and send them at some time between. */
void history_stream_crowd(struct history_world *world, uint32_t unit, core_ns from_ns, core_ns to_ns);
/* Sends nothing more. */
void history_stream_close(struct history_world *world, struct history_stream *stream);
/* Nothing of it is inside: its packets go to the unit of the next room from now on. */
void history_stream_switch(struct history_world *world, struct history_stream *stream, bool held);
/* From now on its packets go, or wait, as its state says. */
void history_stream_settle(struct history_world *world, struct history_stream *stream);
/* Its device is lost, and it is on its way to its backup, or there. */
bool history_stream_flees(const struct history_stream *stream);
/* Nothing is on its way to a unit or at it. */
bool history_stream_rests(const struct history_stream *stream);
/* The contract of the change is in force. */
void history_stream_change(struct history_world *world, struct history_stream *stream);
/* Serves it by the figures of this task from now on; on a GPU there are none. */
void history_stream_serve(struct history_world *world, struct history_stream *stream,
                          const struct perfmodel_cpu_task *task);
/* The same as of a unit that was asked for this latency bound. */
void history_stream_serve_for(struct history_world *world, struct history_stream *stream, core_ns latency_ns);
/* Its device is lost; it is back, and the stand-by has returned what it had by resume_ns. */
void history_stream_lose(struct history_world *world, struct history_stream *stream);
void history_stream_return(struct history_world *world, struct history_stream *stream, core_ns resume_ns);
/* A packet was in a batch of a lost device; again: it goes to the backup. */
void history_packet_lost(struct history_world *world, struct history_packet *packet);
void history_packet_again(struct history_world *world, struct history_packet *packet);
/* Nothing of it is inside any unit: the one of its room, its backup's or its own, serves it from now on. */
void history_stream_arrive(struct history_world *world, struct history_stream *stream);
void history_packet_finished(struct history_world *world, struct history_packet *packet, core_ns end_ns);

/* ---- the planner's host (history_planner.c) ---- */

/* `admission` is the planner's from now on. */
void history_planner_create(struct history_world *world, struct admission *admission);
void history_planner_open(struct history_world *world, const struct core_stream_spec *spec);
/* Opens as soon as capacity is reclaimed that will do. */
void history_planner_wait(struct history_world *world, const struct core_stream_spec *spec);
/* Has the planner do what is due, and streams what they wait for. */
void history_planner_look(struct history_world *world);
bool history_on_gpu(const struct history_world *world, uint32_t unit);
uint32_t history_gpu_number(const struct history_world *world, uint32_t unit);
struct history_gpu *history_gpu_of(struct history_world *world, uint32_t unit);
/* The plans that a reservation counts on, as it stands. */
void history_planner_note_plans(struct history_world *world, struct history_room *room);
/* Does the unit keep what it promised with this reservation? */
bool history_planner_in_force(struct history_world *world, const struct history_room *room);
/* Has the unit been quiescent since the last packet there? */
bool history_planner_is_over(struct history_world *world, const struct history_room *room);
/* What was served under the stream's present reservation. */
struct partition_planner_use history_planner_use(const struct history_world *world,
                                                 const struct history_stream *stream);
/* The stream's reservation is given up; or one that was never used. */
void history_planner_retire(struct history_world *world, const struct history_stream *stream);
void history_planner_retire_unused(struct history_world *world, uint32_t number);

/* Has the certificate of what stands judged, and now and then that of a loss (history_check.c); of a history that
 * is played, some of them. */
void history_planner_check(struct history_world *world);
/* Every stream has closed, and every unit has paused since: nothing is reserved. */
void history_planner_check_empty(struct history_world *world);

/* ---- on their way (history_moves.c) ---- */

/* False: not possible, or not now. */
bool history_planner_move(struct history_world *world, struct history_stream *stream, uint32_t to,
                          core_ns period_ns);
/* The planner begins a migration: an action of its host. */
void *history_planner_migrate(void *host, const struct partition_planner_migration *migration);
/* Asks for another contract. */
void history_planner_change(struct history_world *world, struct history_stream *stream,
                            const struct core_stream_spec *spec);
void history_planner_go_on_moving(struct history_world *world, struct history_stream *stream);
void history_planner_go_on_changing(struct history_world *world, struct history_stream *stream);
/* What was held has caught up: the unit serves it for its latency bound again. */
void history_planner_relax(struct history_world *world, struct history_stream *stream);

/* ---- devices that go and come (history_loss.c) ---- */

void history_planner_lose(struct history_world *world, uint32_t g);
void history_planner_return(struct history_world *world, uint32_t g);
/* A stream that its backup serves goes back to its device, if it may. */
void history_planner_go_home(struct history_world *world, struct history_stream *stream);
/* Its packets have reached their backup. */
void history_planner_flee(struct history_world *world, struct history_stream *stream);
/* A backup has served at this room until now. */
void history_planner_shelter(struct history_world *world, const struct history_room *room);
/* Forgets where streams were served by backups, once those units have paused. */
void history_planner_sweep_shelters(struct history_world *world);

#endif
