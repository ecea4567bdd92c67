/* The streams of the GPUs on one I/O thread: packets into batches, results out of them, and the way round
 * over the stand-by worker where a card is out of service. Everything here is called on the I/O thread,
 * except where said.
 *
 * A stream that is on a GPU (server/stream/route.h), or about to go there, has a place there: a slot of the
 * card with its key. One that is there is in one of these states:
 *
 *   RIDING    packets go into batches
 *   AWAY      the card is out of service, or has not got the key yet: packets go to the stand-by worker, an
 *             ordinary CPU worker that nothing is promised of
 *   HELD      between the two: packets wait until the stand-by worker has returned all
 *
 * A guaranteed stream has a backup (server/stream/backup.h). On a worker, that is in the stand-by worker's
 * place. On a GPU, the stream has a second place, there: stream->gpu is the place that its packets go to,
 * stream->spare the other one. With the loss of the card at home the two are swapped, and again when that has
 * the key again. Only where neither card can take them packets go to the stand-by worker. Such streams know
 * more states:
 *
 *   LOSING    the card has lost packets: all wait until it has returned what it has
 *   RETURNING of the backup's card: packets wait until it has returned what it has, and then go home
 *
 * so that packets are never in two places at once, and their order and chain are kept. cpu->chain is the
 * truth: the last ciphertext block that was delivered, or the IV. The cards get the key ahead; the first
 * packet into a batch after another unit brings the chaining value along. The plaintext stays in the packet's
 * slot until its ciphertext has left; a lost batch is encrypted from there.
 *
 * gpu_stream.c: where packets go. gpu_results.c: what the batchers tell, and packets that come back. */
#ifndef MILLRACE_SERVER_STREAM_GPU_STREAM_H
#define MILLRACE_SERVER_STREAM_GPU_STREAM_H

#include "server/gpu/batcher.h"

#include <stdbool.h>
#include <stdint.h>

struct server_io;
struct server_packet;
struct server_request;
struct server_stream;

enum server_gpu_stream_state {
    SERVER_GPU_AWAY, /* as is whatever is not stream->gpu */
    SERVER_GPU_HELD,
    SERVER_GPU_RIDING,
    SERVER_GPU_LOSING,
    SERVER_GPU_RETURNING
};

/* A stream's place at a GPU. The I/O thread's while attached. */
struct server_gpu_stream {
    struct server_stream *stream;
    struct server_gpu_seat *seat;
    struct server_gpu_stream *next, **previous; /* of the seat */
    enum server_gpu_stream_state state;
    uint64_t newest;                /* batch of the packet that was appended last; 0: none yet */
    uint32_t inside;                /* packets in batches */
    bool asking;                    /* `key` is at the batcher */
    bool keyed;                     /* the card has the key */
    bool fresh;                     /* the next packet brings the chaining value along */
    struct server_gpu_key key;      /* its key.key is the stream's own */
    struct server_request *request; /* the OPEN, until the card has the key for the first time */
};

/* An I/O thread's place at one GPU. */
struct server_gpu_seat {
    struct server_gpu *gpu;
    struct server_gpu_stream *places;
    uint32_t generation; /* of the child, as of the last UP; */
    bool up;             /* and no DOWN since */
    bool distrusted;     /* a batch came back wrong: nothing of this child is delivered any more */
    uint32_t done_count; /* batches delivered in this turn, to let go of at its end */
    uint64_t done[GPU_REGION_ARENAS_MAX];
    struct server_gpu_times times[GPU_REGION_ARENAS_MAX]; /* of the batches taken last, by number modulo */
};

/* The times of the batch whose copy back ended then; NULL: it was too long ago. */
const struct server_gpu_times *server_gpu_seat_times(const struct server_gpu_seat *seat, core_ns ended_ns);

/* A seat at each of the server's GPUs. Before the thread runs. */
CORE_CHECKED core_status server_gpu_seats_create(struct server_io *io);
void server_gpu_seats_destroy(struct server_io *io);

/* Any thread: a place that is attached nowhere. plan: not to be used before this plan of the GPU is in force.
 * NULL without memory. */
struct server_gpu_stream *server_gpu_stream_create(uint64_t plan);
/* Any thread; not attached, NULL is fine. */
void server_gpu_stream_destroy(struct server_gpu_stream *place);

/* The stream gets the place at this GPU, and its key goes to the card: server_route_keyed tells, or, if
 * place->request is set, the request is answered: by server_frame_armed, or by server_frame_overdue if the
 * GPU's plan is not in force by until_ns. */
void server_gpu_stream_attach(struct server_io *io, struct server_gpu_stream *place,
                              struct server_stream *stream, uint32_t gpu, core_ns until_ns);
/* No packet is in a batch and no key at the batcher. */
void server_gpu_stream_detach(struct server_gpu_stream *place);

/* The stream is on this GPU from now on; nothing of it is inside any unit. */
void server_gpu_stream_arrive(struct server_gpu_stream *place);

/* A packet that may go at ready_ns (its eligible time, or later: server/stream/transfer.h), now or about now:
 * puts it into its batch or hands it to the stand-by worker. False: neither is possible now; the stream must
 * wait, until *wake_ns > after_ns or until it is told (server_io_release_stream; CORE_NS_NEVER). */
bool server_gpu_stream_put(struct server_io *io, struct server_packet *packet, core_ns ready_ns,
                           core_ns after_ns, core_ns *wake_ns);

/* The stand-by worker, or the worker that is the backup, has returned all. */
void server_gpu_stream_returned(struct server_stream *stream);

/* The place that a stream on a GPU has there; and the one at its backup's GPU, or NULL. */
const struct server_gpu_stream *server_gpu_stream_at_home(const struct server_stream *stream);
const struct server_gpu_stream *server_gpu_stream_at_backup(const struct server_stream *stream);

/* Do packets of the stream go anywhere else than to its GPU? */
bool server_gpu_stream_is_away(const struct server_stream *stream);

/* Number of the GPU of an attached place. */
uint32_t server_gpu_stream_card(const struct server_gpu_stream *place);

/* ---- gpu_results.c to gpu_stream.c ---- */

/* The card has got the key, or lost it: then nothing is in a batch there any more. */
void server_gpu_stream_set_keyed(struct server_gpu_stream *place, bool keyed);
void server_gpu_stream_send_key(struct server_gpu_stream *place);

/* A packet is back: encrypted; or not, and the stream has a backup, where it goes with all that the card
 * still has of it. */
void server_gpu_stream_delivered(struct server_stream *stream);
void server_gpu_stream_lose(struct server_stream *stream);

/* To the stand-by worker, or the worker that is the backup. */
void server_gpu_stream_divert(struct server_io *io, struct server_packet *packet, core_ns ready_ns);

/* ---- */

/* Takes what the batchers have to tell. */
void server_gpu_collect(struct server_io *io);

/* The end of a turn, when everything was written or copied: lets go of the batches. */
void server_gpu_let_go(struct server_io *io);

#endif
