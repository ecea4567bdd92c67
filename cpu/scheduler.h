/* The burst scheduler of one worker: which pieces are encrypted next, and nothing else. No thread, no clock
 * of its own; the worker thread, the benches and the virtual-time simulator run this very code.
 *
 * Policy (model.md section 3): a stream's packets are served in order. A packet is cut into
 * pieces of stream->piece_bytes, the last one shorter; piece j (from 0) of a packet released at a has the
 * absolute deadline a + (j + 1) * piece_deadline_ns. A piece may start before its release; its deadline
 * stays. At each burst boundary the scheduler takes the up to B pending pieces with the earliest deadlines,
 * at most one of a stream, and never waits for a burst to fill.
 *
 * Threads: every function is called by whose the worker is (cpu/worker.h). A cpu_stream belongs to that thread
 * while any of its packets is inside; the I/O thread may set it up before its first packet and tear it down after
 * its last came back. */
#ifndef MILLRACE_CPU_SCHEDULER_H
#define MILLRACE_CPU_SCHEDULER_H

#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"
#include "cpu/edf.h"
#include "cpu/engine.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct cpu_stream;

/* One packet on its way through a worker. Set by the submitter, except where said. Encrypted in place. */
struct cpu_packet {
    struct cpu_packet *next; /* owned by the present owner of the packet: scheduler or submitter */
    struct cpu_stream *stream;
    uint8_t *data;  /* padded payload; ciphertext afterwards. Of one that begins a unit its IV is ahead */
    uint32_t bytes; /* to encrypt, of all records: multiple of 16, 16 .. stream's padded packet bytes */
    uint32_t done_bytes;  /* scheduler: encrypted so far; the submitter sets 0 */
    uint32_t offset;      /* scheduler: of the next piece, from data on */
    uint32_t chain_bytes; /* scheduler: left of the chain at hand: of the packet, or with records of one */
    union {
        core_ns release_ns; /* eligible + in_ns, spaced (perfmodel/cpu.h): not before it is handed over */
        core_ns started_ns; /* scheduler, of a finished packet: start of the burst that finished it */
    };
    core_ns finished_ns; /* scheduler: end of the burst that finished it */
    core_status status;  /* scheduler: CORE_OK, or CORE_SYSTEM if the engine failed: then the stream's chain
                            is not known any more, and all its later packets are worthless */
    uint16_t producer;   /* worker: the producer that submitted it and gets it back */
    bool begins_unit;    /* its chain, or of each record, starts from the CORE_BLOCK_BYTES ahead of data */
    bool fresh;          /* scheduler: the next piece begins another chain of the packet */
    uint8_t key;         /* of the stream's: 0, or 1 where it may have two */
    uint64_t pauses; /* scheduler: reservations of its stream are free once counters.pauses exceeds this */
};

/* The part of a stream that a worker touches. Allocate cpu_stream_bytes from secret memory, 64-byte aligned:
 * the key states follow the struct so that one stream is one run of cache lines. A stream that may change its
 * key has two of them, each set before the first packet that names it is handed over, and wiped by whoever
 * submits packets when the last one is back. */
struct cpu_stream {
    alignas(64) struct cpu_edf_entry entry; /* first member; key: deadline of the head packet's next piece */
    struct cpu_packet *head, *tail;         /* packets in order, owned by the scheduler */
    core_ns piece_deadline_ns;              /* set before start: relative deadline of one piece */
    uint32_t piece_bytes; /* set before start: bytes of every piece but a packet's last, multiple of 16 */
    uint8_t cipher : 2;   /* enum core_cipher; set before start, and so are: */
    uint8_t decrypts : 1; /* its packets are decrypted */
    uint8_t records : 1;  /* they consist of transport-stream packets */
    uint8_t key;          /* scheduler: of the head packet */
    uint8_t key_lines;    /* set before start: cache lines of a key state */
    uint8_t keys;         /* bit k: key k is set; the submitter's */
    uint8_t chain[CORE_BLOCK_BYTES];  /* IV, then the last ciphertext block */
    alignas(64) uint8_t key_states[]; /* of the worker's engine kind; what precedes them is one cache line */
};
#define CPU_STREAM_KEYS 2

/* With room for so many keys, 1 or 2. */
size_t cpu_stream_bytes(const struct cpu_engine_ops *ops, uint32_t keys);

static inline uint8_t *cpu_stream_key(struct cpu_stream *stream, uint32_t key)
{
    return stream->key_states + (size_t)64 * stream->key_lines * key;
}

struct cpu_stream_options {
    enum core_cipher cipher;
    enum core_direction direction;
    enum core_records records;
    uint32_t piece_bytes;
    core_ns piece_deadline_ns;
};

/* Expands key 0 and sets the IV; `engine` is an instance owned by the calling thread. */
CORE_CHECKED core_status cpu_stream_init(struct cpu_stream *stream, const struct cpu_engine_ops *ops,
                                         struct cpu_engine *engine, const struct cpu_stream_options *options,
                                         const uint8_t *key, const uint8_t iv[CORE_BLOCK_BYTES]);
/* Expands key number `which`, or wipes it. No packet that names it may be inside a scheduler. */
CORE_CHECKED core_status cpu_stream_key_set(struct cpu_stream *stream, const struct cpu_engine_ops *ops,
                                            struct cpu_engine *engine, uint32_t which, const uint8_t *key);
void cpu_stream_key_wipe(struct cpu_stream *stream, const struct cpu_engine_ops *ops, uint32_t which);
/* Wipes keys and chain. No packet of the stream may be inside a scheduler. */
void cpu_stream_wipe(struct cpu_stream *stream, const struct cpu_engine_ops *ops);

struct cpu_scheduler;

struct cpu_scheduler_options {
    const struct cpu_engine_ops *ops;
    uint32_t burst_pieces; /* B: 1 .. CPU_BURST_MAX */
    uint32_t
        far_capacity; /* streams that may wait beyond the queue's horizon: number of streams on the worker */
    core_ns burst_bound_ns; /* q: the bound on the time of a burst; 0: bursts are not checked */
    core_ns spare_ns;       /* a burst may exceed q by this before the time counts as lost */
};

struct cpu_scheduler_counters { /* atomic: written by the worker, read by any */
    _Atomic uint64_t bursts, pieces, packets, bytes;
    _Atomic core_ns busy_ns;      /* time inside bursts; what the caller's clock said */
    _Atomic core_ns burst_max_ns; /* longest burst, to hold against q */
    /* Bursts that overran their bound q; a burst that only exceeded q + spare_ns when counted from the time
     * at which the caller was wanted (cpu_scheduler_want) is one of them. */
    _Atomic uint64_t exceeded;
    _Atomic core_ns excess_ns; /* total time by which they overran it */
    _Atomic core_ns lost_ns;   /* total time beyond q + spare_ns, counted from when the caller was wanted */
    /* Quiescent points passed, as in epoch-based reclamation. A grace period begins with a burst of fewer
     * than B pieces, none of which is past its deadline, and ends when all packets that are unfinished after
     * that burst are finished; a call of cpu_scheduler_burst with nothing pending is one by itself. (A burst
     * that leaves nothing pending is not enough: packets that arrived during it have waited for it, and have
     * not been pushed yet.) Once this exceeds `pauses` of a stream's last packet, a whole grace period has
     * passed since that packet was finished: no packet of the stream delays any later deadline, and its
     * reservation can be reclaimed (unit_worker.h of partition). */
    _Atomic uint64_t pauses;
};

CORE_CHECKED core_status cpu_scheduler_create(struct cpu_scheduler **scheduler,
                                              const struct cpu_scheduler_options *options,
                                              struct core_error *error);
void cpu_scheduler_destroy(struct cpu_scheduler *scheduler);

/* Takes `count` packets into the queue. now_ns must not run backwards between calls. */
void cpu_scheduler_push(struct cpu_scheduler *scheduler, struct cpu_packet *const *packets, uint32_t count,
                        core_ns now_ns);

/* The next burst could have begun at wanted_ns: the caller was woken then, or its last burst had ended then,
 * and pieces were waiting. The burst's time is measured from wanted_ns on, so that time lost between bursts
 * counts as time lost inside of them. Without this call a burst counts from the last push. */
void cpu_scheduler_want(struct cpu_scheduler *scheduler, core_ns wanted_ns);

/* The latest time known to the scheduler: the end of the last burst, or a later push. */
core_ns cpu_scheduler_now_ns(const struct cpu_scheduler *scheduler);

/* Runs one burst. Returns how many packets it finished (0 .. B) in `finished` (room for B), in the order of
 * their deadlines; *pieces (may be NULL) says how many pieces the burst had, 0 when nothing was pending. Call
 * it with nothing pending, too: this ends a grace period. `clock` is called after the burst to stamp
 * finished_ns (core_time_now_ns in the worker, virtual time in the simulator). */
uint32_t cpu_scheduler_burst(struct cpu_scheduler *scheduler, struct cpu_packet **finished, uint32_t *pieces,
                             core_ns (*clock)(void *), void *clock_argument);

uint32_t cpu_scheduler_pending(const struct cpu_scheduler *scheduler); /* streams with pending packets */
core_ns cpu_scheduler_first_deadline_ns(const struct cpu_scheduler *scheduler);
const struct cpu_scheduler_counters *cpu_scheduler_counters_get(const struct cpu_scheduler *scheduler);

#endif
