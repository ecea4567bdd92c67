/* Streams on GPUs, on one I/O thread: packets into batches, results out of them, and the keys that GPUs need
 * first. Everything here is called on the I/O thread, except where said.
 *
 * A stream that is on a GPU, or is migrating to it, has a binding (a "place") there: a slot of the GPU with
 * the stream's key. GPUs get keys in advance. While a GPU is out of service, or does not have the key yet,
 * packets go to a worker: the best-effort fallback worker ("standby" to users), an ordinary CPU worker that
 * guarantees nothing, or the backup of a guaranteed stream (server/stream/backup.h). A backup on a GPU is a
 * second binding: stream->units.gpu is the binding that packets go to, stream->units.secondary the one that
 * is not used. When the primary GPU fails the two are swapped; when it has the key again they are swapped
 * back. server/stream/path.h says when packets go where.
 *
 * cpu->chain is authoritative: the last ciphertext block that was delivered, or the IV. The first packet that
 * goes into a batch after packets went to another unit carries the chaining value.
 *
 * The plaintext of a packet that goes into a batch where it is read is in the batch alone (cpu.data), which is
 * the I/O thread's too until server_gpu_let_go: a lost one goes from there into its slot, to be encrypted by a
 * worker. What waited before, is audited, or belongs to a guaranteed stream is in its slot all the time.
 *
 * **The loss of a card.** From DOWN on, or from the first packet that fails the audit, no place of the card is
 * keyed, so that a stream with nothing inside goes elsewhere with its next packet. What was inside of
 * guaranteed streams leaves at once, and before all else. The rest is copied a little in each turn, and streams
 * without a packet are advanced so, too: the thread's other streams do not wait for what a full card had, and
 * no new process of the card is started before all of it is done.
 *
 * gpu_binding.c: keys, and packets into batches. gpu_results.c: messages of the batchers, and packets that
 * come back. */
#ifndef MILLRACE_SERVER_STREAM_GPU_BINDING_H
#define MILLRACE_SERVER_STREAM_GPU_BINDING_H

#include "server/gpu/batcher.h"

#include <stdbool.h>
#include <stdint.h>

struct server_stream_io;
struct server_packet;
struct server_request;
struct server_stream;

/* A stream's binding to a GPU. Owned by the I/O thread while attached. */
struct server_gpu_binding {
    struct server_stream *stream;
    struct server_gpu_port *port;
    struct server_gpu_binding *next, **previous; /* of the port */
    uint64_t newest;                             /* batch of the packet that was appended last; 0: none yet */
    uint32_t inside;                             /* packets in batches */
    bool asking;                                 /* `key` is at the batcher */
    uint32_t keyed;                 /* process that has keys of the stream (is_keyed, below); 0: none */
    uint32_t keys;                  /* which of them it has, by bit */
    bool lost;                      /* with a backup: it has returned a packet as it was; not keyed */
    bool fresh;                     /* the next packet brings the chaining value along */
    struct server_gpu_key key;      /* its key.keys are the stream's own */
    struct server_request *request; /* the OPEN, until the card has the key for the first time */
};

/* An event that is being taken, in more than one turn where there is much to do. */
struct server_gpu_taking {
    bool begun;
    struct gpu_record_list left;      /* DONE, LOST: of the batch */
    struct server_gpu_binding *place; /* DOWN, UP: the next one to be told */
};

/* An I/O thread's port to one GPU. */
struct server_gpu_port {
    struct server_gpu *gpu;
    struct server_gpu_binding *places;
    uint32_t generation; /* of the GPU's process, as of the last UP */
    bool up;             /* no DOWN since the last UP */
    bool distrusted;     /* a batch failed the audit: nothing of this process is delivered any more */
    struct server_gpu_taking taking;
    uint64_t cleared;    /* of batches that were lost up to here guaranteed streams have what was theirs */
    uint32_t done_count; /* batches delivered in this turn, to be released at its end */
    uint64_t done[GPU_REGION_ARENAS_MAX];
    struct server_gpu_times times[GPU_REGION_ARENAS_MAX]; /* of the batches taken last, by number modulo */
};

/* The times of the batch that was noticed at noticed_ns; NULL: it is no longer among the last ones. */
const struct server_gpu_times *server_gpu_port_times(const struct server_gpu_port *port, core_ns noticed_ns);

/* Creates a port to each of the server's GPUs. Before the thread runs. */
CORE_CHECKED core_status server_gpu_ports_create(struct server_stream_io *io);
void server_gpu_ports_destroy(struct server_stream_io *io);

/* Any thread: creates a binding that is not attached. It is not used before plan number `plan` of the GPU
 * is in force. NULL without memory. */
struct server_gpu_binding *server_gpu_binding_create(uint64_t plan);
/* Any thread; not attached, NULL is fine. */
void server_gpu_binding_destroy(struct server_gpu_binding *place);

/* Attaches the binding to the stream and this GPU, and sends the key to the GPU. Then the stream is
 * advanced (server/stream/advance.h); or, if place->request is set, the request is answered: by
 * server_frame_armed, or by server_frame_overdue if the GPU's plan is not in force by until_ns. */
void server_gpu_binding_attach(struct server_stream_io *io, struct server_gpu_binding *place,
                               struct server_stream *stream, uint32_t gpu, core_ns until_ns);
/* Detaches a binding that has no packet in a batch and no key request at the batcher. */
void server_gpu_binding_detach(struct server_gpu_binding *place);

/* The stream is on this GPU from now on; none of its packets is inside any unit. */
void server_gpu_binding_arrive(struct server_gpu_binding *place);

/* A packet that may go at ready_ns (its eligible time, or later: server/stream/pace.h), now or about now, of
 * a stream whose packets do not wait: puts it into its batch or hands it to the worker. False: no batch takes
 * it now; try again at *wake_ns > after_ns. */
bool server_gpu_binding_put(struct server_stream_io *io, struct server_packet *packet, core_ns ready_ns,
                            core_ns after_ns, core_ns *wake_ns);

/* The primary binding of a stream on a GPU, and its secondary binding (the backup on a GPU) or NULL. */
const struct server_gpu_binding *server_gpu_binding_at_primary(const struct server_stream *stream);
const struct server_gpu_binding *server_gpu_binding_at_backup(const struct server_stream *stream);

/* The OPEN of the stream while it waits for the answer of a GPU; else NULL. */
struct server_request *server_gpu_binding_request(const struct server_stream *stream);

/* Number of the GPU of an attached binding. */
uint32_t server_gpu_binding_gpu(const struct server_gpu_binding *place);
/* Has the GPU the keys that packets may come under (server/stream/rekey.h), and is it in service? If not no
 * packet is put into its batches. */
bool server_gpu_binding_is_keyed(const struct server_gpu_binding *place);
/* The keys of the stream that the GPU's present process has, by bit. */
uint32_t server_gpu_binding_keys(const struct server_gpu_binding *place);
/* Do the stream's packets go to a GPU that is not, so that the stream is to be advanced before the next one? */
bool server_gpu_binding_is_stale(const struct server_stream *stream);
/* Is that the GPU which the stream's reservation is on, and not the one of its backup? */
bool server_gpu_binding_is_primary(const struct server_gpu_binding *place);

/* Sends what the GPU lacks of the stream's keys, and clears what the stream has no more; nothing while an answer
 * is awaited, after which it is done again. */
void server_gpu_binding_send_again(struct server_gpu_binding *place);

/* ---- gpu_results.c to gpu_binding.c ---- */

/* Hands the packet to the fallback worker, or to the worker that is the backup. */
void server_gpu_binding_divert(struct server_stream_io *io, struct server_packet *packet, core_ns ready_ns);

/* What a packet's record says of it: packets of streams with a backup are told without a look at them. */
#define SERVER_GPU_BACKED 1

static inline uint64_t server_gpu_cookie(const struct server_packet *packet, bool backed)
{
    return (uintptr_t)packet | (backed ? SERVER_GPU_BACKED : 0);
}

/* ---- */

/* Handles the messages of the batchers. True: of what a card has lost some is left for the next turn. */
bool server_gpu_collect(struct server_stream_io *io);

/* At the end of a turn, when all results were written or copied: releases the batches. */
void server_gpu_let_go(struct server_stream_io *io);

#endif
