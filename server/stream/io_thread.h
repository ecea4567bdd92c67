/* What streams know of their I/O thread and of their connection. server/net has both, calls into this folder,
 * and is called from here only through this table. Everything is on the I/O thread, except where said. */
#ifndef MILLRACE_SERVER_STREAM_IO_THREAD_H
#define MILLRACE_SERVER_STREAM_IO_THREAD_H

#include "core/log.h"
#include "server/planner/turns.h"
#include "server/server_internal.h"
#include "server/stream/modify.h"
#include "server/stream/stream.h"

struct server_ivs;

struct server_stream_io_calls {
    /* Gathers a packet for the worker of its stream until the end of the turn. */
    void (*queue)(struct server_stream_io *io, struct server_packet *packet);
    /* Hands over what is eligible of a stream that had to wait. */
    void (*release)(struct server_stream *stream);
    /* Notes the stream's present latency bound, which limits how long the thread rests. */
    void (*count)(struct server_stream *stream);
    /* At the end of the turn the connection is written to, and read from if that had stopped. */
    void (*mark)(struct server_stream_client *client);
    /* Queues the results that may be delivered. */
    void (*results)(struct server_stream *stream);
    /* Queues a frame of the stream's own. False: the connection takes none any more. */
    bool (*append)(struct server_stream *stream, struct server_output *output);
    /* Frees the stream if it has finished. */
    void (*settle)(struct server_stream *stream);
    /* Answer an OPEN whose GPUs have the key, or were not ready in time: then the stream ends, of which its
     * client never heard. Answer a MODIFY; `text` unless the refusal is about capacity. */
    void (*armed)(struct server_request *request, struct server_stream *stream);
    void (*overdue)(struct server_request *request, struct server_stream *stream);
    void (*modified)(const struct server_modify *modify, uint32_t first);
    /* Answers a REKEY: 0, or a refusal with its text. */
    void (*rekeyed)(struct server_stream *stream, enum protocol_refusal refusal, const char *text);
    void (*not_modified)(const struct server_modify *modify, enum protocol_refusal code, const char *text,
                         core_ns decided_ns);
};

/* An I/O thread. First member of struct server_io, so that it is the owner of the mailbox's messages. */
struct server_stream_io {
    const struct server_stream_io_calls *calls; /* set before start, as are the next nine */
    struct server *server;
    uint32_t index;                 /* writer number at the GPUs */
    struct server_mailbox *mailbox; /* any thread posts */
    struct server_stats *stats;
    struct server_eligible_queue *waiting;
    struct cpu_engine *engine;           /* expands keys, audits results */
    struct server_ivs *ivs;              /* for messages and streams whose client gives none */
    struct server_gpu_port *ports;       /* by GPU */
    uint8_t *scratch;                    /* room for a packet, within a call */
    struct server_migration *migrations; /* in progress */
    struct server_modify *modifies;      /* of contracts, that wait for a gap or for memory to become free */
    struct server_hot_slots hot;         /* of its streams */
    uint32_t stagger;                    /* of the next block of packets */
};

/* A connection. First member of struct server_connection. */
struct server_stream_client {
    struct server_stream_io *io;
    uint64_t number; /* unique in this server's life, for logs and status */
    struct server_asker asker;
    uint32_t requests; /* at the planner */
    bool abandoned;    /* results are discarded */
    bool lags;         /* it takes no more results at present */
    char peer[96];     /* its address, for logs and status */
};

/* What its lines of the log are about; stream: an id, or 0. Valid as long as the connection. */
static inline struct core_log_fields server_stream_client_fields(const struct server_stream_client *client,
                                                                 uint32_t stream)
{
    return (struct core_log_fields){.connection = client->number, .peer = client->peer, .stream = stream};
}

#endif
