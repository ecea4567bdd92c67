/* One GPU of the server: its batches (gpu/arena.h), its child process (gpu/engine.h), and the batcher, the
 * thread that owns both. The batcher opens a batch every period, closes it once the packets of the period
 * have had time to be appended, hands it to the child, and notifies the I/O threads when it is done.
 *
 *   I/O thread --append--> open batch --close--> child: up, kernel, down --DONE--> I/O thread: deliver
 *
 * Events. Each I/O thread learns the outcome of its batches from a ring of its own (one producer: the
 * batcher; one consumer: the I/O thread), in the order of the batches:
 *
 *   DONE n    the ciphertext of batch n is in its arena
 *   DOWN      the child has ended: what is in batches comes back as LOST, and none is open until UP
 *   LOST n    batch n was not run, or not to its end: its packets must be encrypted by another unit
 *   UP        batches are open again, with a new child that has no keys yet; it is not started before all
 *             I/O threads have done with all events, so that no packet comes to it by a key that it has not
 *
 * A thread gets DONE or LOST for exactly the batches that hold packets of it. It releases the batch when it
 * has delivered or copied its packets (gpu_arena_release). It may look at events before it takes them.
 *
 * Keys and plans come to the batcher as messages, in order with one another. */
#ifndef MILLRACE_SERVER_GPU_BATCHER_H
#define MILLRACE_SERVER_GPU_BATCHER_H

#include "config/profile.h"
#include "core/histogram.h"
#include "gpu/arena.h"
#include "server/gpu/plan_queue.h"
#include "server/mailbox.h"

#include <stdatomic.h>
#include <stdbool.h>

struct config_server;
struct gpu_listed;
struct server;
struct server_gpu;
struct server_io;

/* ---- from the batcher to an I/O thread ---- */

#define SERVER_GPU_NO_SLOT UINT32_MAX
#define SERVER_KEY_BYTES   32 /* room for every key */

enum server_gpu_event_kind {
    SERVER_GPU_DONE,
    SERVER_GPU_LOST,
    SERVER_GPU_DOWN,
    SERVER_GPU_UP,
};

/* The times at which a batch was closed, at which each of its stages ended, and at which the batcher noticed
 * that: of no two batches the same. */
struct server_gpu_times {
    core_ns closed_ns, up_ns, kernel_ns, ended_ns; /* ended_ns: end of the copy back */
    core_ns noticed_ns;
};

struct server_gpu_event {
    enum server_gpu_event_kind kind;
    uint32_t generation;           /* UP: of the child, 1 and up */
    uint64_t batch;                /* DONE, LOST */
    struct server_gpu_times times; /* DONE */
};

/* I/O thread `io`: its next event but `skipped`; false: there is none. It stays the thread's until the thread
 * has done with it, and with those before it. */
bool server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                         struct server_gpu_event *event);
void server_gpu_event_done(struct server_gpu *gpu, uint32_t io);

/* I/O thread: the arenas, in which it is writer number `io`. */
struct gpu_arenas *server_gpu_arenas(struct server_gpu *gpu);

/* I/O thread: a packet of this batch came back wrong. The card is taken out of service. */
void server_gpu_report_corrupt(struct server_gpu *gpu, uint64_t batch);

/* ---- keys: from an I/O thread and back ---- */

/* Keys of a stream that are set or cleared at a GPU, by bit. Embedded in the stream. The I/O thread fills it in
 * and leaves it alone until it is answered. */
struct server_gpu_key {
    struct server_message message; /* first member */
    struct server_mailbox *reply;  /* the I/O thread's */
    void (*answered)(void *io, struct server_message *message);
    uint64_t plan;       /* answered once this plan is in force; 0: at once */
    core_ns until_ns;    /* answered then at the latest, even if `plan` is not in force */
    const uint8_t *keys; /* secret memory: one every SERVER_KEY_BYTES */
    uint32_t key_bytes;
    uint8_t set, clear;
    uint32_t slot;
    uint32_t child; /* that has others of the stream's keys, and its chaining value; 0: none has */
    uint8_t chain[CORE_BLOCK_BYTES];
    uint32_t generation; /* the answer: the child that has them; 0: it is not running, or not any more */
    bool overdue; /* the answer: until_ns has passed and `plan` is not in force; or never will be, as */
    bool lacking; /* there is no memory for its batches, or none yet and the child has ended */
};

void server_gpu_send_key(struct server_gpu *gpu, struct server_gpu_key *key);

/* ---- the planner's side ---- */

/* Sends the newest plan, which comes into force as server/gpu/plan_queue.h says. Allocates nothing. False:
 * the batcher has not taken SERVER_GPU_PLANS_MAX of them yet; the last one stays, to be asked again. */
CORE_CHECKED bool server_gpu_put_plan(struct server_gpu *gpu, const struct partition_gpu_plan *plan);

/* What a stream leaves behind on a GPU. The first member of what is then returned to its owner. */
struct server_gpu_leave {
    struct server_message message; /* first member */
    struct server_mailbox *reply;  /* the planner's */
    void (*left)(void *planner, struct server_message *message);
    uint32_t slot;  /* or SERVER_GPU_NO_SLOT */
    uint64_t batch; /* newest batch with a packet of the stream, 0: none */
};

/* Any thread: the slot is free again when its key has been overwritten, which waits for that batch. `left` is
 * run as soon as the batcher knows; never, where it has been halted. */
void server_gpu_leave_slot(struct server_gpu *gpu, struct server_gpu_leave *leave);

/* Any thread. */
bool server_gpu_in_service(const struct server_gpu *gpu);

/* Any thread: the newest plan that is in force. */
uint64_t server_gpu_plan_in_force(const struct server_gpu *gpu);

/* Any thread: will a plan with this number or a newer one not be in force, as there is no memory for its
 * batches, or the card is lost? (There may be later.) */
bool server_gpu_plan_lacks(const struct server_gpu *gpu, uint64_t number);

/* Any thread: the newest batch before which every stage was idle, all earlier batches having been delivered:
 * the quiescent point after which reservations can be reclaimed (partition/admission/admission.h). */
uint64_t server_gpu_paused(const struct server_gpu *gpu);

/* delta of partition/admission/admission.h: the longest time from the moment at which a GPU with guaranteed
 * streams stops keeping its bounds until the I/O threads have handed its packets to the backups. A child that
 * ends is noticed at once, one that hangs after the configured gpus.hang_ms; to this come the time that the
 * kernel may take to kill it, and the wake-ups of two threads. */
core_ns server_gpu_detection_ns(const struct config_server *config, const struct config_profile *profile);

/* A batch is opened this long before its period begins. */
core_ns server_gpu_lead_ns(const struct config_profile *profile);
const struct config_profile_gpu *server_gpu_kind(const struct server_gpu *gpu);

/* ---- memory ---- */

struct server_gpu_room_limits {
    struct gpu_room least; /* of the arenas, from the start and whatever plan there is */
    core_ns calm_ns;       /* with more than is needed, before it is given back */
    core_ns retry_ns;      /* after it could not be had, before it is asked for again */
};
struct server_gpu_room_limits server_gpu_room_limits(const struct gpu_region_shape *shape);

/* Room that arenas of this shape are given for a plan, with something to spare. */
struct gpu_room server_gpu_room_of(const struct gpu_region_shape *shape,
                                   const struct partition_gpu_plan *plan);

/* The room that follows this one where streams come little by little, bytes and packets in the shape's
 * proportion: arenas that grow from the least room so have most pieces. The same again: it is the most. */
struct gpu_room server_gpu_room_next(const struct gpu_region_shape *shape, const struct gpu_room *now);

/* ---- life ---- */

struct server_gpu_options {
    struct server *server;
    void (*notify)(struct server_io *io);  /* wakes an I/O thread */
    const struct config_profile_gpu *kind; /* of the server's profile */
    const char *program, *backend;
    const struct gpu_listed *card; /* which it is; of an emulated one the index alone */
    struct gpu_region_shape shape;
    struct server_gpu_room_limits room;
};

/* Creates the arenas, starts the child and awaits that it is ready; then the batcher. The I/O threads'
 * structs are there already. Any thread: GPUs are started side by side. */
CORE_CHECKED core_status server_gpu_start(struct server_gpu **gpu, const struct server_gpu_options *options,
                                          struct core_error *not_permitted, struct core_error *error);

/* Its place among the server's GPUs, which is known when all have been started: for names in log and figures.
 * Once, after server_gpu_start and before the I/O threads run. */
void server_gpu_number(struct server_gpu *gpu, uint32_t index);

/* After all I/O threads have ended, before the planner stops, which still may call: ends child and batcher.
 */
void server_gpu_halt(struct server_gpu *gpu);
/* After server_gpu_halt and the planner's end. */
void server_gpu_destroy(struct server_gpu *gpu);

/* ---- figures: atomic, written by the batcher, read by any ---- */

enum server_gpu_state { SERVER_GPU_STATE_UP, SERVER_GPU_STATE_DOWN };

struct server_gpu_stage_figures {
    _Atomic core_ns bound_ns;  /* of the plan in force */
    _Atomic core_ns max_ns;    /* longest so far */
    _Atomic int64_t worst_ppb; /* largest share of its bound that a batch took */
    _Atomic uint64_t exceeded; /* batches that took longer than the bound of their plan */
    _Atomic core_ns excess_ns; /* total time by which batches exceeded it */
    _Atomic core_ns total_ns;
};

/* What is measured of a GPU: atomic, written by its batcher, read by any thread. One field for each figure
 * that is told. */
struct server_gpu_figures {
    _Atomic uint32_t state; /* enum server_gpu_state */
    _Atomic core_ns since_ns;
    _Atomic int32_t process;
    _Atomic int32_t thread;  /* of the batcher, the system's number */
    _Atomic core_ns lost_ns; /* of batches, beyond what bounds and margins allow (overload/reserve.h) */
    _Atomic uint64_t faults, restarts, batches, lost_batches, packets, bytes;
    _Atomic core_ns period_ns, latency_ns;
    _Atomic uint64_t period_changes; /* from one period to another */
    _Atomic uint64_t streams, guaranteed, batch_bytes;
    _Atomic uint64_t memory_bytes;   /* of the arenas, in the region and beside it */
    _Atomic uint64_t memory_refused; /* times that there was no more */
    _Atomic uint64_t backups;        /* streams of other GPUs whose backup is on this one */
    _Atomic int64_t reserved_ppb;    /* reserved for backups, in the failure scenario that needs most */
    struct server_gpu_stage_figures up, kernel, down, batch;
    struct server_gpu_stage_figures notice; /* from the last byte to when the batcher noticed it */
    _Atomic uint64_t sm_hz, sm_most_hz, celsius, reasons; /* of the card (gpu/nvml.h); 0: not told */
    struct core_histogram batch_ns;                       /* from a batch's closing to its last byte */
};

const struct server_gpu_figures *server_gpu_figures(const struct server_gpu *gpu);
const char *server_gpu_name(const struct server_gpu *gpu);
/* Which card it is (gpu/device.h): empty texts, if it is emulated. */
const char *server_gpu_uuid(const struct server_gpu *gpu);
const char *server_gpu_pci(const struct server_gpu *gpu);

/* Why it is down, or was last: up to `size` bytes; empty if it never was. Any thread. */
void server_gpu_fault_text(struct server_gpu *gpu, char *text, size_t size);

/* Of its batcher. Any thread. */
struct server_mailbox *server_gpu_mailbox(struct server_gpu *gpu);

#endif
