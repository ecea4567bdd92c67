/* One open stream on the server: its contract, its packets' memory, its order of delivery.
 *
 * Owned by the I/O thread of its connection, except `cpu`, which belongs to the worker while packets are
 * inside (cpu/scheduler.h). All memory is taken when the stream opens: a record and a slot for each of
 * queue_packets packets; a slot is the RESULT frame in the making, 32 bytes for its header and then the
 * payload, encrypted in place. */
#ifndef MILLRACE_SERVER_STREAM_H
#define MILLRACE_SERVER_STREAM_H

#include "cpu/scheduler.h"
#include "perfmodel/cpu.h"
#include "server/police.h"
#include "server/protocol.h"
#include "server/waiting.h"

#include <stdbool.h>
#include <stddef.h>

struct server_connection;
struct server_grant;
struct server_stream;

/* Something that waits to be written to a connection: a result, or a control frame. */
struct server_output {
    struct server_output *next;
    uint8_t *frame;
    uint32_t bytes;
    bool is_packet; /* embedded in a server_packet; else allocated with its frame */
    bool counted;   /* its first byte was taken by the socket */
};

struct server_packet {
    struct cpu_packet cpu;       /* first member: what the worker hands back is this record */
    struct server_output output; /* frame: the slot */
    struct server_stream *stream;
    struct server_packet *next; /* free list, or the stream's order of arrival */
    core_ns arrival_ns, eligible_ns, deadline_ns;
    uint32_t sequence;
    uint32_t bytes;                     /* received payload, before padding */
    enum protocol_result_status status; /* other than OK: never went to a worker */
    bool ready;                         /* may be delivered once all before it are */
    bool policed;
};

enum server_stream_state { SERVER_STREAM_OPEN, SERVER_STREAM_CLOSING };

struct server_stream {
    struct server_waiter waiter; /* first member: place among the streams that wait to be eligible */
    struct server_connection *connection;
    uint32_t id;
    uint32_t worker;
    struct core_stream_spec spec;
    struct cpu_stream *cpu;     /* secret memory */
    bool worked;                /* a packet has been at the worker; */
    uint64_t pauses;            /* the worker's pauses as of the last one that came back */
    struct server_grant *grant; /* the planner's record, given back with the stream */
    struct server_police police;
    core_ns in_ns; /* margin between a packet's eligible time and its release */
    enum server_stream_state state;
    enum protocol_close_reason close_reason;
    uint32_t next_sequence;
    uint32_t queue_packets; /* records and slots */
    uint32_t busy_packets;  /* of these, not free */
    struct server_packet *free;
    struct server_packet *order_head, *order_tail; /* received, not yet ready in turn */
    struct server_packet *wait_head; /* first of those not yet eligible (later ones follow it) */
    uint64_t key_bytes;              /* encrypted or accepted under this key */
    struct protocol_closed totals;
    uint64_t policed;               /* packets that were held back */
    core_ns slack_minimum_ns;       /* CORE_NS_NEVER before the first packet */
    uint64_t buffer_bytes;          /* charged to the server's budget */
    struct server_packet packets[]; /* queue_packets of them, the slots behind */
};

/* Packets the server holds for a stream: as many as its contract may have inside at once
 * (perfmodel_cpu_backlog_packets), and as many more as fit, with their records, into 2 KiB. */
uint32_t server_stream_queue_packets(const struct core_stream_spec *spec, uint32_t backlog_packets);

/* Memory of so many packets' records and slots. */
uint64_t server_stream_buffer_bytes(const struct core_stream_spec *spec, uint32_t queue_packets);

/* Allocates and sets up everything but the cipher. CORE_NO_MEMORY. stagger: any number; spreads slots over
 * cache sets. */
CORE_CHECKED core_status server_stream_create(struct server_stream **stream,
                                              const struct core_stream_spec *spec, uint32_t queue_packets,
                                              uint32_t stagger);

/* Expands the key and arms the chain for one worker; key material is copied. in_ns: the margin that admission
 * left for a packet to reach the worker; releases count from eligible + in_ns (cpu/scheduler.h). */
CORE_CHECKED core_status server_stream_arm(struct server_stream *stream, const struct cpu_engine_ops *ops,
                                           struct cpu_engine *engine, const struct perfmodel_cpu_task *task,
                                           core_ns in_ns, const uint8_t *key,
                                           const uint8_t iv[CORE_BLOCK_BYTES]);

/* Wipes and frees. No packet may be busy. */
void server_stream_destroy(struct server_stream *stream, const struct cpu_engine_ops *ops);

/* Takes a free packet for DATA `sequence`, NULL when all are busy. */
struct server_packet *server_stream_take(struct server_stream *stream, uint32_t sequence, uint32_t bytes);
/* Gives it back after delivery or loss. */
void server_stream_give(struct server_stream *stream, struct server_packet *packet);

/* Where the payload of a packet goes. */
static inline uint8_t *server_packet_payload(struct server_packet *packet)
{
    return packet->output.frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES;
}

/* The packet is complete: judges its length, polices it, sets its times, pads it, and appends it to the
 * stream's order. Returns true if it is to be encrypted (else it is ready as it is). */
bool server_stream_accept(struct server_stream *stream, struct server_packet *packet, core_ns now_ns,
                          uint64_t bytes_per_key);

/* Removes and returns the next packet of the stream that may be delivered, NULL if none. */
struct server_packet *server_stream_next_ready(struct server_stream *stream);

/* Completes the RESULT header as of hand-over at now_ns; blocked_ns: since when the reader has kept this
 * connection waiting, CORE_NS_NEVER if it has not. */
struct protocol_result server_packet_stamp(struct server_packet *packet, core_ns now_ns, core_ns blocked_ns);

#endif
