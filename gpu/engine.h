/* One GPU as the server sees it: a child process that runs batches, watched.
 *
 *   open -> start -> [poll: READY] -> key_set, submit ... [poll: BATCH] ... -> stop -> close
 *                        ^                                  |
 *                        +---- start, after the back-off <- [poll: FAULT] -> unfinished: run on the CPU
 *
 * Batches come back in the order in which they were submitted. Anything that goes wrong - an error of the
 * device, a batch or the child that makes no progress, an exit, a signal, nonsense on the channel - ends the
 * child, and poll reports one fault with its reason. What was submitted and had not come back is listed then,
 * and is the caller's: its plaintext is still in the arenas. A child that is started again knows no keys and
 * no chaining values: the caller hands them over again.
 *
 * The child is not trusted. Whatever it writes, the server sees a batch or a fault; only bytes of output may
 * be wrong, which is for the caller to audit (gpu_engine_condemn), and when in its time a batch was ready.
 *
 * The end of a child is noticed within 4 ms while batches are in flight, by the end of its serving thread;
 * its other threads and its memory may take far longer to disappear on a busy machine.
 *
 * One thread owns the engine and makes all calls (the batcher), which may be a real-time thread: children
 * are started, and collected when they have ended, by one that is not (gpu/keeper.h). The child ends with the
 * server, however that ends, and ignores the signals that stop a process group: its server needs it for the
 * drain. Nothing blocks but stop and close; nothing is allocated after open. */
#ifndef MILLRACE_GPU_ENGINE_H
#define MILLRACE_GPU_ENGINE_H

#include "core/sandbox.h"
#include "gpu/arena.h"
#include "gpu/channel.h"

#include <sys/types.h>

struct gpu_engine;

struct gpu_engine_options {
    const char *program;                   /* path of millrace-gpu */
    const char *backend;                   /* "cuda" or "emulated" */
    uint32_t device;                       /* index of the card */
    const char *uuid;                      /* of the card; NULL: emulated, by index; copied */
    const struct gpu_region *region;       /* of the arenas; outlives the engine */
    const struct gpu_emulation *emulation; /* with "emulated"; copied */
    const struct core_user *user;          /* that the child becomes; outlives the engine; NULL: as we are */
    int fifo_priority;                     /* of the child's loop; 0: the default policy */
    uint32_t kernel_forms;          /* bit f: enum gpu_kernel_form f may be used, the fastest is; 0: all */
    enum core_sandbox_mode sandbox; /* of the child, once it has opened its device */
    uint32_t hang_periods; /* hang: no progress for this many of the shortest period in flight; 0: 8 */
    core_ns hang_least_ns; /* a hang is never reported earlier than this */
    core_ns start_ns;      /* longest from start to READY; 0: 30 s */
    core_ns silence_ns;    /* longest without a sign of life of a READY child; 0: 1 s. A paused server
                              ends the child after 10 times that */
    core_ns kill_ns;       /* longest time from the kill, or from the child's observed end, to the report of
                              the fault; 0: 250 ms */
    core_ns restart_first_ns; /* back-off: least time from a fault to the next start; 0: 100 ms. Doubled by
                                 each fault within restart_max_ns of a start */
    core_ns restart_max_ns;   /* longest back-off; 0: 30 s */
};

enum gpu_fault_kind {
    GPU_FAULT_START = 1, /* not ready in time, or could not begin */
    GPU_FAULT_EXITED,    /* code: exit code */
    GPU_FAULT_SIGNALLED, /* code: signal; 0: it is ending, how was not known yet when the fault was told */
    GPU_FAULT_HUNG,      /* code: periods without progress; 0: the child itself was silent */
    GPU_FAULT_DEVICE,    /* the device reported an error */
    GPU_FAULT_CORRUPT    /* nonsense on the channel, or condemned by the caller */
};

struct gpu_fault {
    enum gpu_fault_kind kind;
    int code;
    /* The child is gone: nothing writes to the arenas any more. False where the kernel could not end it in
     * time (a driver that is stuck): then output must go elsewhere, and arenas stay taken, until
     * gpu_engine_gone. */
    bool gone;
    uint32_t unfinished; /* batches that were submitted and did not come back */
    core_ns restart_ns;  /* not before */
    char text[256];
};

enum gpu_event_kind { GPU_EVENT_READY = 1, GPU_EVENT_BATCH, GPU_EVENT_ROOM, GPU_EVENT_FAULT };

struct gpu_event {
    enum gpu_event_kind kind;
    union {
        struct gpu_device_facts facts; /* READY */
        struct {
            struct gpu_order order;
            struct gpu_stage_time times[GPU_STAGE_COUNT]; /* from its submission to the poll */
            core_ns uncertain_ns;                         /* as in gpu_stage_end */
        } batch;
        struct core_error room; /* empty: the child has it. Else why it has not, and what it had */
        struct gpu_fault fault;
    };
};

enum gpu_engine_state { GPU_ENGINE_DOWN, GPU_ENGINE_STARTING, GPU_ENGINE_READY, GPU_ENGINE_ENDING };

/* "start", "exited", ... for logs and metrics. */
const char *gpu_fault_name(enum gpu_fault_kind kind);

/* Allocates everything. CORE_INVALID where options make no sense, CORE_NOT_FOUND where the program can not be
 * run. */
CORE_CHECKED core_status gpu_engine_open(struct gpu_engine **engine, const struct gpu_engine_options *options,
                                         struct core_error *error);

/* Stops a child that runs (see stop); overwrites what the channel holds of keys. NULL is fine. */
void gpu_engine_close(struct gpu_engine *engine);

/* Has the child started; poll says READY or FAULT later. CORE_AGAIN: the
 * back-off is not over, or the child before is not gone. CORE_INVALID: one runs. */
CORE_CHECKED core_status gpu_engine_start(struct gpu_engine *engine, core_ns now_ns,
                                          struct core_error *error);

/* Keys take effect in order with the batches: a key serves the batches submitted after it. key_slot: of
 * gpu_key_slot. key_bytes: 16, 24 or 32. chain: what the stream's next block is combined with; NULL: its
 * chaining value stays. Cleared keys are overwritten on the device.
 * CORE_AGAIN: not READY. CORE_FULL: the channel has no room now; poll, and try again. CORE_INVALID: no such
 * slot or length. */
CORE_CHECKED core_status gpu_engine_key_set(struct gpu_engine *engine, uint32_t key_slot, const uint8_t *key,
                                            uint32_t key_bytes, const uint8_t *chain);
CORE_CHECKED core_status gpu_engine_key_clear(struct gpu_engine *engine, uint32_t key_slot);

/* The room of the arenas, in memory that is there as long as the engine is told so: of the child that is
 * started next (set_room; at first what the region has), and of the one that runs (resize: told by a ROOM
 * event, or by none where there is a FAULT; not again before; the next child's as well, if it works out).
 * CORE_AGAIN and CORE_FULL as above. */
void gpu_engine_set_room(struct gpu_engine *engine, const struct gpu_room *room);
CORE_CHECKED core_status gpu_engine_resize(struct gpu_engine *engine, const struct gpu_room *room);

/* The order for a batch that gpu_arena_close gave out. */
struct gpu_order gpu_order_of(const struct gpu_arena_batch *batch);

/* Hands a closed batch over. period_ns is what the watchdog counts with. CORE_INVALID with the reason where
 * the order is not sound; CORE_AGAIN and CORE_FULL as above. */
CORE_CHECKED core_status gpu_engine_submit(struct gpu_engine *engine, const struct gpu_order *order,
                                           core_ns period_ns, core_ns now_ns, struct core_error *error);

/* Returns one event; CORE_AGAIN: none. Call it when the descriptor is readable and at gpu_engine_wake_ns at
 * the latest, until CORE_AGAIN. */
CORE_CHECKED core_status gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event);
int gpu_engine_descriptor(const struct gpu_engine *engine);
core_ns gpu_engine_wake_ns(const struct gpu_engine *engine);

/* Whether no child of this engine exists: all its threads have ended. */
bool gpu_engine_gone(struct gpu_engine *engine);

/* The caller found wrong output: ends the child; the fault (CORRUPT, with this text) comes by poll. */
void gpu_engine_condemn(struct gpu_engine *engine, core_ns now_ns, const char *text);

/* Lets the child finish what is under way, and ends it: for grace_ns at most, then with SIGKILL. Batches that
 * came back meanwhile are not reported: poll first. */
void gpu_engine_stop(struct gpu_engine *engine, core_ns grace_ns);

enum gpu_engine_state gpu_engine_state(const struct gpu_engine *engine);
pid_t gpu_engine_process(const struct gpu_engine *engine); /* 0: none */
/* How the card is by what the child said last; zeros: nothing yet, or it can not tell. */
struct gpu_nvml_health gpu_engine_health(const struct gpu_engine *engine);

#endif
