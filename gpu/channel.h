/* The channel between the server and a GPU's child process: commands one way, completions the other, in one
 * shared memory of fixed size.
 *
 * Two rings with one producer and one consumer each. The server writes commands, the child completions; a
 * byte through the process's socket wakes the other side up (gpu/process.h). Keys lie beside the commands, in
 * pages that are kept out of core dumps and locked where permitted (channel->keys_locked); the child's take
 * wipes them, and so does a reset.
 *
 * The server does not trust the child, which runs drivers: it keeps its own indices in memory of its own,
 * copies each completion out before it looks at it, and finds CORE_INVALID whatever is not possible. The
 * memory is sealed, so that the child can not shrink it under the server. The child trusts the server, but
 * checks what it says.
 *
 * Each side has a struct gpu_channel of its own, used by one thread. */
#ifndef MILLRACE_GPU_CHANNEL_H
#define MILLRACE_GPU_CHANNEL_H

#include "gpu/device.h"
#include "gpu/emulation.h"
#include "gpu/nvml.h"

#include <stdbool.h>

#define GPU_KEY_BYTES_MAX   32
#define GPU_CHANNEL_ENTRIES 256 /* of each ring */

enum gpu_command_kind {
    GPU_COMMAND_KEY_SET = 1,
    GPU_COMMAND_KEY_CLEAR,
    GPU_COMMAND_BATCH,
    GPU_COMMAND_STOP, /* finish what is under way, overwrite the keys, exit 0 */
    GPU_COMMAND_ROOM  /* room; answered, batches go on meanwhile. Not before the last one is answered */
};

struct gpu_command {
    uint32_t kind;
    uint32_t key_slot;      /* KEY_SET, KEY_CLEAR */
    struct gpu_order order; /* BATCH */
    struct gpu_room room;   /* ROOM */
};

/* Goes with KEY_SET. */
struct gpu_channel_key {
    uint8_t key[GPU_KEY_BYTES_MAX];
    uint8_t chain[GPU_BLOCK_BYTES]; /* what the first block is combined with */
    uint32_t key_bytes;             /* 16, 24 or 32 */
    uint32_t has_chain;             /* else the stream's chaining value stays */
    uint32_t reserved[2];
};

enum gpu_completion_kind {
    GPU_COMPLETION_READY = 1, /* facts */
    GPU_COMPLETION_BATCH,     /* number, times, uncertain_ns */
    GPU_COMPLETION_ERROR,     /* text; the child exits then */
    GPU_COMPLETION_ROOM       /* text: why the room is what it was; empty: it is as asked for */
};

struct gpu_completion {
    uint32_t kind;
    int32_t thread; /* READY: number of the child's loop */
    union {
        struct gpu_device_facts facts;
        struct {
            uint64_t number;
            struct gpu_stage_time times[GPU_STAGE_COUNT];
            core_ns uncertain_ns; /* as in gpu_stage_end */
        } batch;
        char text[208];
    };
};

/* What the child must know to begin; the server fills it in before it starts the child. */
struct gpu_channel_start {
    core_ns beat_ns;    /* the child beats at least this often */
    core_ns silence_ns; /* and ends itself where the server has not beaten for so long; 0: never */
    int32_t fifo_priority;
    uint32_t has_emulation;
    uint32_t kernel_forms;          /* as in gpu_device_options */
    uint32_t sandbox;               /* enum core_sandbox_mode */
    struct gpu_room room;           /* of the arenas, when the child starts */
    struct gpu_emulation emulation; /* its pointers mean nothing here: rows follow in the channel */
};

struct gpu_channel_memory;

struct gpu_channel {
    struct gpu_channel_memory *memory;
    size_t bytes;
    int memory_descriptor; /* the server's; -1 in the child */
    bool keys_locked;
    uint32_t commands_at, completions_at; /* this side's own indices: the other can not change them */
    struct gpu_channel_start start;       /* own copy, with the emulation's rows */
    void *rows;
};

/* ---- the server's side ---- */

/* Makes the memory; copies the emulation's rows. */
CORE_CHECKED core_status gpu_channel_create(struct gpu_channel *channel,
                                            const struct gpu_channel_start *start, struct core_error *error);
/* Empties everything for a new child, and wipes the keys. Only where no child is there any more. */
void gpu_channel_reset(struct gpu_channel *channel);
void gpu_channel_destroy(struct gpu_channel *channel);

/* CORE_FULL: no room now. CORE_INVALID: the child wrote nonsense over the index. `key` is for KEY_SET. */
CORE_CHECKED core_status gpu_channel_command_put(struct gpu_channel *channel,
                                                 const struct gpu_command *command,
                                                 const struct gpu_channel_key *key);
/* CORE_AGAIN: none. CORE_INVALID: nonsense. Texts are ended and printable. */
CORE_CHECKED core_status gpu_channel_completion_take(struct gpu_channel *channel,
                                                     struct gpu_completion *completion);

/* ---- the child's side ---- */

/* Maps the memory that descriptor names, checks it, and copies `start` with its rows. The descriptor stays
 * the caller's. */
CORE_CHECKED core_status gpu_channel_attach(struct gpu_channel *channel, int memory_descriptor,
                                            struct core_error *error);
void gpu_channel_detach(struct gpu_channel *channel);

/* The next command without taking it; NULL: none. Stays valid until the take. */
const struct gpu_command *gpu_channel_command_peek(struct gpu_channel *channel);
/* The key of the peeked command. */
const struct gpu_channel_key *gpu_channel_command_key(struct gpu_channel *channel);
/* Takes it, and wipes its key. */
void gpu_channel_command_take(struct gpu_channel *channel);
/* CORE_FULL where the server does not take them any more. */
CORE_CHECKED core_status gpu_channel_completion_put(struct gpu_channel *channel,
                                                    const struct gpu_completion *completion);
/* For failure tests: noise over everything that this side can write. */
void gpu_channel_scribble(struct gpu_channel *channel);

/* ---- both ---- */

/* The child says how its card is; zeros, as long as it has not. Each figure by itself is right. Any thread. */
void gpu_channel_health_put(struct gpu_channel *channel, const struct gpu_nvml_health *health);
struct gpu_nvml_health gpu_channel_health(const struct gpu_channel *channel);

void gpu_channel_beat(struct gpu_channel *channel, bool server);
uint64_t gpu_channel_beats(const struct gpu_channel *channel, bool server); /* of that side; any thread */

#endif
