/* What streams know of their I/O thread and of their connection. server/net has both, calls into this folder,
 * and is called from here only through this table. Everything is on the I/O thread, except where said. */
#ifndef MILLRACE_SERVER_STREAM_IO_THREAD_H
#define MILLRACE_SERVER_STREAM_IO_THREAD_H

#include "core/log.h"
#include "server/planner/turns.h"
#include "server/server_internal.h"
#include "server/stream/modify.h"
#include "server/stream/stream.h"

struct server_stream_client;
struct server_stream_io;

struct server_stream_io_calls {
    /* Gathers a packet for the worker of its stream until the end of the turn. */
    void (*queue)(struct server_stream_io *io, struct server_packet *packet);
    /* The stream had to wait, and its packets may go on. */
    void (*release)(struct server_stream *stream);
    /* The stream's latency bound has changed, which limits how long the thread rests. */
    void (*count)(struct server_stream *stream);
    /* What waits for the connection is written at the end of the turn. */
    void (*mark)(struct server_stream_client *client);
    /* Queues all results that may be delivered. */
    void (*results)(struct server_stream *stream);
    /* Queues a frame of the stream's own. False: the connection takes none any more. */
    bool (*append)(struct server_stream *stream, struct server_output *output);
    /* The stream may have ended: it is freed then, unless the caller is called from there. */
    void (*settle)(struct server_stream *stream);
    struct core_log_fields (*fields)(const struct server_stream *stream);
    /* The answers to an OPEN whose GPUs have the key, or could not be ready in time; and to a MODIFY. */
    void (*armed)(struct server_request *request, struct server_stream *stream);
    void (*overdue)(struct server_request *request, struct server_stream *stream);
    void (*modified)(const struct server_modify *modify, uint32_t first);
    void (*not_modified)(const struct server_modify *modify, enum protocol_refusal code, const char *text,
                         core_ns decided_ns);
};

/* An I/O thread. First member of struct server_io, so that it is the owner of the mailbox's messages. */
struct server_stream_io {
    const struct server_stream_io_calls *calls; /* set before start, as are the next five */
    struct server *server;
    uint32_t index;                 /* writer number at the GPUs */
    struct server_mailbox *mailbox; /* any thread posts */
    struct server_stats *stats;
    struct server_eligible_queue *waiting;
    struct cpu_engine *engine;           /* expands keys, audits results */
    struct server_gpu_port *ports;       /* by GPU */
    uint8_t *audit_buffer;               /* of one packet; NULL without GPUs */
    struct server_migration *migrations; /* in progress */
    struct server_modify *modifies;      /* of contracts, that wait for a gap or for memory to become free */
    uint32_t stagger;                    /* of the next block of packets */
};

/* A connection. Part of struct server_connection. */
struct server_stream_client {
    struct server_stream_io *io;
    uint64_t number; /* unique in this server's life, for logs and status */
    struct server_asker asker;
    uint32_t requests; /* at the planner */
    bool abandoned;    /* results are discarded */
};

#endif
