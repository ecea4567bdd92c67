/* The streams of the GPUs on one I/O thread: packets into batches, results out of them, and failover to a
 * backup or to the best-effort fallback worker ("fallback worker") while a GPU is out of service.
 * Everything here is called on the I/O thread, except where said.
 *
 * A stream that is on a GPU (server/stream/migration.h), or is migrating to it, has a binding (a "place")
 * there: a slot of the GPU with the stream's key. The binding of a stream on a GPU is in one of these
 * states:
 *
 *   RIDING    packets go into batches
 *   AWAY      the GPU is out of service, or does not have the key yet: packets go to the fallback worker, an
 *             ordinary CPU worker that guarantees nothing
 *   HELD      on the way from AWAY to RIDING: packets wait until the fallback worker has returned all
 *
 * A guaranteed stream has a backup (server/stream/backup.h). A backup on a worker replaces the fallback
 * worker. A backup on a GPU is a second binding: stream->gpu is the binding that packets go to,
 * stream->spare the binding that is not used. When the primary GPU fails the two are swapped; when it has
 * the key again they are swapped back. If neither GPU can take packets, they go to the fallback worker.
 * Streams with a backup have two more states:
 *
 *   LOSING    the GPU has lost packets: all packets wait until it has returned what it has
 *   RETURNING of the backup GPU: packets wait until it has returned what it has, and then go to the primary
 *
 * A stream never has packets at two units at once, so that their order and chain are kept. cpu->chain is
 * authoritative: the last ciphertext block that was delivered, or the IV. GPUs get the key in advance; the
 * first packet that goes into a batch after packets went to another unit carries the chaining value. The
 * plaintext stays in the packet's slot until its ciphertext has left; a lost batch is encrypted from there.
 *
 * gpu_stream.c: where packets go. gpu_results.c: messages of the batchers, and packets that come back. */
#ifndef MILLRACE_SERVER_STREAM_GPU_BINDING_H
#define MILLRACE_SERVER_STREAM_GPU_BINDING_H

#include "server/gpu/batcher.h"

#include <stdbool.h>
#include <stdint.h>

struct server_io;
struct server_packet;
struct server_request;
struct server_stream;

enum server_gpu_binding_state {
    SERVER_GPU_UNUSED, /* not in use (also the state of stream->spare) */
    SERVER_GPU_HELD,
    SERVER_GPU_ACTIVE,
    SERVER_GPU_LOSING,
    SERVER_GPU_RETURNING
};

/* A stream's binding to a GPU. Owned by the I/O thread while attached. */
struct server_gpu_binding {
    struct server_stream *stream;
    struct server_gpu_port *port;
    struct server_gpu_binding *next, **previous; /* of the port */
    enum server_gpu_binding_state state;
    uint64_t newest;                /* batch of the packet that was appended last; 0: none yet */
    uint32_t inside;                /* packets in batches */
    bool asking;                    /* `key` is at the batcher */
    bool keyed;                     /* the card has the key */
    bool fresh;                     /* the next packet brings the chaining value along */
    struct server_gpu_key key;      /* its key.key is the stream's own */
    struct server_request *request; /* the OPEN, until the card has the key for the first time */
};

/* An I/O thread's port to one GPU. */
struct server_gpu_port {
    struct server_gpu *gpu;
    struct server_gpu_binding *places;
    uint32_t generation; /* of the GPU's process, as of the last UP */
    bool up;             /* no DOWN since the last UP */
    bool distrusted;     /* a batch failed the audit: nothing of this process is delivered any more */
    uint32_t done_count; /* batches delivered in this turn, to be released at its end */
    uint64_t done[GPU_REGION_ARENAS_MAX];
    struct server_gpu_times times[GPU_REGION_ARENAS_MAX]; /* of the batches taken last, by number modulo */
};

/* The times of the batch whose copy back ended at ended_ns; NULL: it is no longer among the last ones. */
const struct server_gpu_times *server_gpu_port_times(const struct server_gpu_port *port, core_ns ended_ns);

/* Creates a port to each of the server's GPUs. Before the thread runs. */
CORE_CHECKED core_status server_gpu_ports_create(struct server_io *io);
void server_gpu_ports_destroy(struct server_io *io);

/* Any thread: creates a binding that is not attached. It is not used before plan number `plan` of the GPU
 * is in force. NULL without memory. */
struct server_gpu_binding *server_gpu_binding_create(uint64_t plan);
/* Any thread; not attached, NULL is fine. */
void server_gpu_binding_destroy(struct server_gpu_binding *place);

/* Attaches the binding to the stream and this GPU, and sends the key to the GPU. Then server_migration_keyed
 * is called; or, if place->request is set, the request is answered: by server_frame_armed, or by
 * server_frame_overdue if the GPU's plan is not in force by until_ns. */
void server_gpu_binding_attach(struct server_io *io, struct server_gpu_binding *place,
                               struct server_stream *stream, uint32_t gpu, core_ns until_ns);
/* Detaches a binding that has no packet in a batch and no key request at the batcher. */
void server_gpu_binding_detach(struct server_gpu_binding *place);

/* The stream is on this GPU from now on; none of its packets is inside any unit. */
void server_gpu_binding_arrive(struct server_gpu_binding *place);

/* A packet that may go at ready_ns (its eligible time, or later: server/stream/transfer.h), now or about
 * now: puts it into its batch or hands it to the fallback worker. False: neither is possible now; try again
 * at *wake_ns > after_ns, or (CORE_NS_NEVER) when server_io_release_stream is called. */
bool server_gpu_binding_put(struct server_io *io, struct server_packet *packet, core_ns ready_ns,
                            core_ns after_ns, core_ns *wake_ns);

/* The fallback worker, or the worker that is the backup, has returned all packets of the stream. */
void server_gpu_binding_returned(struct server_stream *stream);

/* The primary binding of a stream on a GPU, and its secondary binding (the backup on a GPU) or NULL. */
const struct server_gpu_binding *server_gpu_binding_at_primary(const struct server_stream *stream);
const struct server_gpu_binding *server_gpu_binding_at_backup(const struct server_stream *stream);

/* Is the stream failed over: do its packets go to another unit than its GPU? */
bool server_gpu_binding_is_unused(const struct server_stream *stream);

/* Number of the GPU of an attached binding. */
uint32_t server_gpu_binding_gpu(const struct server_gpu_binding *place);

/* ---- gpu_results.c to gpu_stream.c ---- */

/* The GPU has received the key, or lost it. If it lost the key, no packet is in a batch there any more. */
void server_gpu_binding_set_keyed(struct server_gpu_binding *place, bool keyed);
void server_gpu_binding_send_key(struct server_gpu_binding *place);

/* A packet came back encrypted. */
void server_gpu_binding_delivered(struct server_stream *stream);
/* A packet of a stream with a backup came back without having been encrypted: it goes to the backup, with
 * all packets of the stream that the GPU still has. */
void server_gpu_binding_lose(struct server_stream *stream);

/* Hands the packet to the fallback worker, or to the worker that is the backup. */
void server_gpu_binding_divert(struct server_io *io, struct server_packet *packet, core_ns ready_ns);

/* ---- */

/* Handles the messages of the batchers. */
void server_gpu_collect(struct server_io *io);

/* At the end of a turn, when all results were written or copied: releases the batches. */
void server_gpu_let_go(struct server_io *io);

#endif
