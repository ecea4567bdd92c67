/* Private to batcher.c, batches.c, keys.c and room.c: what a GPU's batcher thread owns.
 *
 * batcher.c: life, service, faults. batches.c: opening, closing, submitting, completing. keys.c: keys and
 * slots. room.c: memory of the arenas. Where nothing else is said a field is the batcher's own. */
#ifndef MILLRACE_SERVER_GPU_INTERNAL_H
#define MILLRACE_SERVER_GPU_INTERNAL_H

#include "gpu/engine.h"
#include "gpu/listing.h"
#include "gpu/resizer.h"
#include "gpu/schedule.h"
#include "gpu/slots.h"
#include "server/gpu/batcher.h"
#include "server/gpu/pauses.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdalign.h>

#define SERVER_GPU_LINK_EVENTS 256 /* a power of two */

/* Events for one I/O thread. Never full: every DONE and LOST holds an arena, of which there are at most 64,
 * and no child is started before all events have been taken. */
struct server_gpu_link {
    alignas(64) _Atomic uint32_t tail; /* atomic: written by the batcher */
    alignas(64) _Atomic uint32_t head; /* atomic: written by the I/O thread */
    struct server_gpu_event events[SERVER_GPU_LINK_EVENTS];
};

/* What no batch may take longer than. */
struct server_gpu_bounds {
    core_ns up_ns, kernel_ns, down_ns, batch_ns;
};

/* A closed batch until it is done or lost. */
struct server_gpu_note {
    struct gpu_order order;
    core_ns due_ns; /* when it was to be closed */
    struct server_gpu_bounds bounds;
    uint64_t writers, packets;
    core_ns submitted_ns;
    bool abandoned; /* lost, but its child is not gone: the arena is not free yet */
};

/* A plan on its way from the planner to the batcher. */
struct server_gpu_plan_message {
    struct server_message message; /* first member */
    struct partition_gpu_plan plan;
    _Atomic bool posted; /* atomic: set by the planner, cleared by the batcher, which has read the plan */
};

/* Where a change of the arenas' room is. */
enum server_gpu_room_phase {
    SERVER_GPU_ROOM_STEADY,
    SERVER_GPU_ROOM_GROW_MEMORY,  /* the resizer takes memory; */
    SERVER_GPU_ROOM_GROW_CARD,    /* the child maps and pins it; */
    SERVER_GPU_ROOM_UNDO,         /* or can not, and the resizer gives it back */
    SERVER_GPU_ROOM_EMPTY,        /* batches are opened with less, but some have more; */
    SERVER_GPU_ROOM_SHRINK_CARD,  /* none has: the child lets go; */
    SERVER_GPU_ROOM_SHRINK_MEMORY /* and the resizer gives it back */
};

#define SERVER_GPU_ROOM_STEPS 120 /* the child can pin a few more pieces */

/* The room of the arenas, in memory that server and child have. A plan that needs more than `now` waits. */
struct server_gpu_room {
    struct server_gpu_room_limits limits; /* set before start */
    enum server_gpu_room_phase phase;
    struct gpu_room now;                          /* that plans may count on */
    struct gpu_room next;                         /* while it changes */
    bool asked;                                   /* the child was asked for `next` */
    core_ns retry_ns;                             /* not to grow before */
    core_ns calm_ns;                              /* not to shrink before */
    struct gpu_room steps[SERVER_GPU_ROOM_STEPS]; /* up: rising, where pieces that the child has pinned end */
    uint32_t step_count;
    struct gpu_resizer *resizer;
    _Atomic uint64_t
        lacking; /* atomic: written by the batcher, read by the planner: plans with higher numbers
                                 lack memory; UINT64_MAX: none does */
};

/* One GPU: all that its batcher, one thread, decides by; nothing in it is for another thread but what is
 * marked atomic. Long because a batch, a plan, a key and the end of the child each have some state that
 * outlasts a call. */
struct server_gpu {
    /* set before start */
    struct server *server;
    void (*notify)(struct server_io *io);
    uint32_t io_count;
    struct config_profile_gpu kind; /* its tables are the profile's */
    char *program;
    const char *backend;
    struct gpu_listed card;
    struct gpu_arenas *arenas;
    struct server_gpu_link *links; /* by I/O thread */
    core_ns lead_ns;               /* a batch is opened so long before its period */
    pthread_t thread;
    struct server_mailbox mailbox; /* keys, plans, reservations, and the end */
    struct server_message stop_message, corrupt_message, number_message;
    struct server_gpu_plan_message plan_messages[SERVER_GPU_PLANS_MAX];
    uint32_t next_plan_message; /* the planner's */

    /* the start, told to server_gpu_start */
    sem_t started;
    bool start_told;
    uint32_t index; /* set before number_message */
    bool numbered;  /* has the name of its number: */
    char name[24];  /* "gpu-0"; read by any once it is numbered */
    core_status start_status;
    struct core_error start_error;

    struct gpu_device_facts facts; /* that the child gave when it was ready */
    struct gpu_engine *engine;
    struct server_gpu_room room;
    struct gpu_slots *slots;
    uint32_t generation; /* of the child; 0: none was ready yet */
    bool up, stopping;
    core_ns restart_ns;
    bool lingering; /* the child was ended and is not gone */

    struct partition_gpu_plan plan; /* whose period the next batch has */
    struct server_gpu_plans plans;  /* that are to follow it */
    struct server_gpu_bounds
        bounds;     /* of the plan; while it is not in force, the most of it and of those before */
    bool scheduled; /* batches are opened by `schedule` */
    struct gpu_schedule schedule;
    core_ns last_close_ns; /* of the batch opened last */
    bool changing;         /* the plan is not in force: */
    uint64_t plan_first;   /* first batch with its period; it is once all stages have paused before that or a
                              later one, */
    core_ns plan_from_ns;  /* and not before that batch begins */
    _Atomic uint64_t plan_in_force; /* atomic: written by the batcher, read by the planner */

    uint64_t submitted; /* newest batch that the child has, or that had nothing for it */
    uint64_t done; /* all up to here are done, lost or had nothing; done + 1 is under way, or not submitted */
    struct server_gpu_note notes[GPU_REGION_ARENAS_MAX]; /* by number modulo */
    core_ns noticed_ns;                                  /* when the end of the batch done last was noticed */
    struct server_gpu_pauses pauses;
    uint32_t missing; /* batches submitted that are not done */

    uint32_t clearing;                       /* slot to be overwritten next, or SERVER_GPU_NO_SLOT */
    struct server_message *keys, *keys_tail; /* struct server_gpu_key: to be handed to the child */
    struct server_message *ready;            /* handed over, waiting for their plan */

    _Atomic uint64_t paused_least;  /* atomic: least of `pauses`, read by the planner */
    _Atomic uint64_t corrupt_batch; /* atomic: written by I/O threads, before corrupt_message; 0: none */
    struct server_gpu_figures figures;
    pthread_mutex_t fault_lock; /* guards fault_text; control path */
    char fault_text[288];
};

/* batcher.c */
void server_gpu_push(struct server_gpu *gpu, uint32_t io, const struct server_gpu_event *event);
/* Ends the child: it is not to be trusted any more. */
void server_gpu_condemn(struct server_gpu *gpu, core_ns now_ns, const char *text);

/* batches.c */
void server_gpu_batches_begin(struct server_gpu *gpu, core_ns now_ns); /* (re)starts the schedule */
/* Opens, closes and submits what is due; returns when to be called again. */
core_ns server_gpu_batches_run(struct server_gpu *gpu, core_ns now_ns);
void server_gpu_batches_done(struct server_gpu *gpu, const struct gpu_event *event);
/* The child has ended: closes what is open, and tells of all that is not done that it is lost. At most as
 * many batches as there are arenas. */
void server_gpu_batches_lose(struct server_gpu *gpu, bool child_gone);
/* The child that was not gone is. */
void server_gpu_batches_gone(struct server_gpu *gpu);
void server_gpu_batches_plan(struct server_gpu *gpu, const struct partition_gpu_plan *plan, core_ns now_ns);

/* room.c */
CORE_CHECKED core_status server_gpu_room_start(struct server_gpu *gpu, struct core_error *error);
/* Is there memory for its batches? And have those that are open by now so much, so that packets may come at once? */
bool server_gpu_room_fits(const struct server_gpu *gpu, const struct partition_gpu_plan *plan);
bool server_gpu_room_is_open(const struct server_gpu *gpu, const struct partition_gpu_plan *plan);
/* Is there no plan of this number or a newer one that there is memory for? */
bool server_gpu_room_lacks(const struct server_gpu *gpu, uint64_t plan);
/* Was there no more memory lately, or is there no child, so that none is asked for? */
bool server_gpu_room_refused(const struct server_gpu *gpu, core_ns now_ns);
/* Takes the steps that can be taken; returns when to be called again, if nothing wakes the batcher. */
core_ns server_gpu_room_run(struct server_gpu *gpu, core_ns now_ns);
/* Does it stay as it is, so that a child may start with it? */
bool server_gpu_room_is_steady(const struct server_gpu *gpu);
/* The child's answer; empty: it has the room. */
void server_gpu_room_done(struct server_gpu *gpu, const char *text, core_ns now_ns);
/* A new child has the room that there is; there is none any more. */
void server_gpu_room_up(struct server_gpu *gpu);
void server_gpu_room_down(struct server_gpu *gpu, core_ns now_ns);

/* keys.c */
/* Hands over and answers what it can. False: some wait for room. *wake_ns: when the patience of one that
 * waits for its plan is over; CORE_NS_NEVER. */
bool server_gpu_keys_run(struct server_gpu *gpu, core_ns now_ns, core_ns *wake_ns);
void server_gpu_keys_lost(struct server_gpu *gpu); /* answers all: there is no child */

#endif
