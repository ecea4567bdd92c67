/* Memory for the packets of streams: how it is allocated, wiped and freed.
 *
 * A block (server/stream/stream.h) may be anything between a few hundred bytes and all of limits.buffer_mib,
 * and to make, wipe and free it takes as long as to write it: tens of milliseconds for a hundred MiB. No I/O
 * thread does that. The planner reserves the bytes first, against the limit, and then has the block made:
 * what is small it makes itself, so that an ordinary OPEN waits for no thread but the planner; the rest is
 * made by a thread of its own without real-time priority. That one also wipes and frees all blocks, whatever
 * their size: many streams may end at once.
 *
 * The limit is on the memory that exists, not only on what is reserved: a block is made at once only if it
 * fits beside all blocks that still wait to be freed; else the thread makes it after freeing these. */
#ifndef MILLRACE_SERVER_MEMORY_H
#define MILLRACE_SERVER_MEMORY_H

#include "core/status.h"
#include "core/stream.h"
#include "server/mailbox.h"

#include <stdint.h>

#define SERVER_MEMORY_SMALL_BYTES (UINT64_C(256) << 10) /* a block of no more is made at once */

struct server_block;
struct server_memory;

/* A block to be made, part of the message that waits for it. All but `block` is set by the caller. */
struct server_memory_request {
    struct server_message message;
    const struct core_stream_spec *spec; /* of the stream, there until the answer has come */
    uint32_t packets;                    /* 0: none is needed */
    uint64_t bytes;                      /* of the block, UINT64_MAX if there can be none so large */
    uint32_t stagger;                    /* any number; spreads slots over cache sets */
    struct server_block *block;          /* the answer; NULL: there is no memory */
    struct server_message *answer;       /* posted to `reply` when the block is made */
    struct server_mailbox *reply;
};

/* What blocks are (server/stream/stream.h). Any thread. */
struct server_memory_ops {
    struct server_block *(*create)(const struct core_stream_spec *spec, uint32_t packets, uint32_t stagger);
    uint64_t (*bytes)(const struct server_block *blocks); /* of all blocks of a list */
    void (*destroy)(struct server_block *blocks);         /* wipes and frees all of a list */
};

/* ops: constant. limit_bytes: limit on all blocks that exist at once. */
CORE_CHECKED core_status server_memory_start(struct server_memory **memory,
                                             const struct server_memory_ops *ops, uint64_t limit_bytes,
                                             struct core_error *error);
/* Wipes and frees all that it was given. After the last call of the others below. NULL is fine. */
void server_memory_stop(struct server_memory *memory);

/* Planner thread: makes the block, then posts the answer. granted_bytes: of all streams, with this block. */
void server_memory_make(struct server_memory *memory, struct server_memory_request *request,
                        uint64_t granted_bytes);

/* Any thread: wipes and frees a list of blocks that are no longer used; the first one begins with a struct
 * server_message. NULL is fine. */
void server_memory_wipe(struct server_memory *memory, struct server_block *blocks);

#endif
