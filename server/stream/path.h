/* The path of a stream's packets: which unit they go to, or what they wait for. A pure machine: from the
 * state and from facts about the stream it tells the next step. No clock, no I/O, no memory of its own.
 *
 * A stream on a worker has packets at that worker. A stream on a GPU has packets in batches of a GPU or,
 * while the GPU is out of service or has not the key yet, at a worker: its backup, or the best-effort
 * fallback worker. A stream whose backup is on a GPU has two bindings (server/stream/gpu_binding.h): the
 * *present* one, whose GPU packets go to, and the *other* one. At any moment the stream may be asked to
 * migrate to a new unit.
 *
 *   WORKER          packets go to the worker
 *   LEAVING_WORKER  they wait until the worker has returned all, and then go to the present GPU
 *   GPU             packets go into batches of the present GPU
 *   LOSING          they wait until that GPU, which has lost packets, has returned all, and then go elsewhere
 *   RETURNING       they wait until the GPU of the backup has returned all, and then go to the primary GPU
 *   HELD_WORKER     they wait until the worker has returned all, and then go to the new unit
 *   HELD_GPU        they wait until the GPU has returned all, and then go to the new unit
 *
 * The machine is one const table (path.c): for each state its transitions, in order; the first whose
 * conditions hold is the step. Whoever changes a fact asks for steps until there is none
 * (server_stream_advance): there is no event that can be missed, and none that comes in the middle of another
 * one.
 *
 * Guarantees, for any facts that can come together (test_server_path tries all of them):
 *   - Packets are let go to a unit only when every other unit has returned all that it had, so that order and
 *     chaining value are kept.
 *   - Packets that wait are let go again: no state waits for a unit that has none of them.
 *   - As long as the facts stay, the steps come to an end, after three at the most. */
#ifndef MILLRACE_SERVER_STREAM_PATH_H
#define MILLRACE_SERVER_STREAM_PATH_H

#include <stdbool.h>

enum server_path_state {
    SERVER_PATH_WORKER, /* first: a stream begins there, on a GPU until the GPU has the key */
    SERVER_PATH_LEAVING_WORKER,
    SERVER_PATH_GPU,
    SERVER_PATH_LOSING,
    SERVER_PATH_RETURNING,
    SERVER_PATH_HELD_WORKER,
    SERVER_PATH_HELD_GPU,
    SERVER_PATH_STATES
};

/* What holds now. Without a binding: not KEYED, GPU_EMPTY. Without a migration: none from MIGRATING on.
 *
 * A GPU that is lost is not KEYED any more, before it returns what it had: new packets wait for that. One that
 * it returns as it was is LOST, if the stream has a backup; without one it goes to the worker at once.
 * FREE: nothing keeps the stream at its unit: WORKER_EMPTY, GPU_EMPTY, no key is on its way to a GPU, the old
 * contract is served, and so is what came late to a backup.
 * MAY_HOLD: by server/stream/pace.h; of a stream without a backup, at its own worker or on its GPU. */
enum server_path_fact {
    SERVER_PATH_KEYED = 1 << 0,        /* the present GPU has the key */
    SERVER_PATH_OTHER = 1 << 1,        /* the other GPU has the key */
    SERVER_PATH_AT_BACKUP = 1 << 2,    /* the present GPU is the backup, the other one the primary */
    SERVER_PATH_AWAITED = 1 << 3,      /* the present GPU has been sent the key and has not answered */
    SERVER_PATH_WORKER_EMPTY = 1 << 4, /* the worker has none of the stream's packets */
    SERVER_PATH_GPU_EMPTY = 1 << 5,    /* the present GPU has none; the other one never has */
    SERVER_PATH_ON_TIME = 1 << 6,      /* no packet is at the backup that came late to it */
    SERVER_PATH_LOST = 1 << 7,         /* the present GPU has returned a packet as it was */
    SERVER_PATH_MIGRATING = 1 << 8,    /* the stream is to go to a new unit */
    SERVER_PATH_READY = 1 << 9,        /* the new unit can take packets at once */
    SERVER_PATH_TO_GPU = 1 << 10,      /* the new unit is a GPU, and has the key */
    SERVER_PATH_FREE = 1 << 11,        /* nothing keeps the stream at its unit */
    SERVER_PATH_MAY_HOLD = 1 << 12,    /* packets may be held from now on */
    SERVER_PATH_OVERDUE = 1 << 13,     /* the migration has timed out */
    SERVER_PATH_FACTS_END = 1 << 14
};

/* To be carried out in this order, with the next state set. */
enum server_path_effect {
    SERVER_PATH_FAIL_OVER = 1 << 0,  /* what waits comes late to the backup, if there is one */
    SERVER_PATH_REWIND = 1 << 1,     /* what the GPU returned as it was waits again, before all others */
    SERVER_PATH_SWAP = 1 << 2,       /* the other binding becomes the present one */
    SERVER_PATH_SWITCH = 1 << 3,     /* the stream is on the new unit; the migration has ended */
    SERVER_PATH_GIVE_UP = 1 << 4,    /* the stream stays; the migration has ended */
    SERVER_PATH_USE_WORKER = 1 << 5, /* packets go to the worker from now on */
    SERVER_PATH_USE_GPU = 1 << 6,    /* packets go to the present GPU from now on */
    SERVER_PATH_PACED = 1 << 7,      /* with USE_GPU, SWITCH: packets have waited for another unit (pace.h) */
    SERVER_PATH_RELEASE = 1 << 8     /* packets that wait may go; USE_* and SWITCH imply it */
};

/* Do packets wait, whatever their eligible time? */
static inline bool server_path_waits(enum server_path_state state)
{
    return state != SERVER_PATH_WORKER && state != SERVER_PATH_GPU;
}

/* Are packets held for a migration? */
static inline bool server_path_holds(enum server_path_state state)
{
    return state == SERVER_PATH_HELD_WORKER || state == SERVER_PATH_HELD_GPU;
}

/* The next step: changes *state and sets *effects. False: nothing is to be done. */
bool server_path_step(enum server_path_state *state, unsigned facts, unsigned *effects);

#endif
