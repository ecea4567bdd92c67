/* One open stream on the server: its contract, its packets' memory, its order of delivery.
 *
 * Owned by the I/O thread of its connection, except `cpu`, which belongs to the worker while packets are
 * inside (cpu/scheduler.h). All memory is taken when the stream opens, or when its contract changes: blocks
 * of packets, a record and a slot for each; a slot is the RESULT frame in the making, 32 bytes for its header,
 * 16 for the IV where units are messages, and then the payload, encrypted in place, and 16 for
 * the code of a message where there is a MAC. A payload comes into it at once, or with server_packet_fill: at
 * the latest where the packet is not handed over to a GPU before the thread reads on. */
#ifndef MILLRACE_SERVER_STREAM_STREAM_H
#define MILLRACE_SERVER_STREAM_STREAM_H

#include "core/protocol.h"
#include "cpu/scheduler.h"
#include "perfmodel/cpu.h"
#include "server/mailbox.h"
#include "server/stream/arrival.h"
#include "server/stream/eligible_queue.h"
#include "server/stream/gpu_binding.h"
#include "server/stream/mac.h"
#include "server/stream/message.h"
#include "server/stream/migration.h"
#include "server/stream/notification.h"
#include "server/stream/pace.h"
#include "server/stream/path.h"
#include "server/stream/policer.h"
#include "server/stream/rekey.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>

struct server_stream_client;
struct server_reservation;
struct server_stream;

/* Something that waits to be written to a connection: a result, or a control frame. A result's ciphertext
 * lies behind its header in the packet's slot, or is borrowed from the memory of a batch, until the end of
 * the I/O thread's turn at the latest (server_packet_keep). */
struct server_output {
    struct server_output *next;
    uint8_t *frame;         /* a control frame, or the slot: a result's header */
    const uint8_t *payload; /* packets: the ciphertext */
    uint32_t payload_bytes;
    uint16_t frame_bytes;
    bool is_packet : 1;       /* embedded in a server_packet */
    bool is_notification : 1; /* embedded in a server_stream; neither: allocated with its frame */
    bool counted : 1;         /* its first byte was taken by the socket */
};

struct server_block;

/* cpu.data: the slot, or the plaintext in the read buffer, a lane or a batch. */
struct server_packet {
    struct cpu_packet cpu;       /* first member: what the worker hands back is this record */
    struct server_output output; /* frame: the slot */
    struct server_stream *stream;
    struct server_block *block; /* whose memory it is */
    struct server_packet *next; /* free list, or the stream's order of arrival */
    core_ns arrival_ns, eligible_ns;
    core_ns unseen_ns;   /* it may have waited so long before its arrival (server/stream/policer.h) */
    core_ns deadline_ns; /* eligible_ns - unseen_ns + the latency bound */
    uint32_t sequence;
    uint32_t bytes;    /* received payload, before padding, with the IV ahead of it and the code behind */
    int32_t handed_ns; /* from its eligible time to when its unit got it; at most INT32_MAX */
    enum protocol_result_status status : 8; /* other than OK: its result has no payload */
    uint8_t flags : 2;  /* of its DATA frame; of a stream without messages: each is a LAST */
    bool brings_iv : 1; /* the first 16 of its bytes are the IV of its message */
    bool ready : 1;     /* may be delivered once all before it are */
    bool policed : 1;
    bool keyed : 1;         /* counted among those under its key (server/stream/rekey.h) */
    bool held : 1;          /* it waited to be read because of its sender (server/stream/arrival.h) */
    bool diverted : 1;      /* of a stream on a GPU, but served by the fallback worker or a backup */
    bool sorted : 1;        /* by its stream's pattern (server/stream/pattern.h) */
    bool brings_tag : 1;    /* the last 16 of its bytes are the code of its message */
    bool forged : 1;        /* and it is not the right one */
    bool tagged : 1;        /* the code of its message lies behind it in the slot */
    bool audited : 1;       /* what a GPU makes of it is compared: its plaintext is in the slot, too */
    bool hot : 1;           /* of the slots that the streams of its I/O thread share */
    uint8_t pattern_blocks; /* blocks of the pattern's cycle before it */
    uint16_t unit;          /* unit that it was handed to (struct server_unit_stats) */
};

/* Where the stream's packets are, and the GPUs that have its key or are to have it. */
struct server_stream_units {
    uint32_t worker;                      /* its worker; on a GPU: the backup, or the fallback worker */
    uint32_t at_worker;                   /* packets inside that worker */
    bool worked;                          /* a packet has been inside it under the present reservation */
    uint64_t pauses;                      /* worked: its count of pauses when the last packet came back */
    struct server_gpu_binding *gpu;       /* the present binding; NULL: the stream is on a worker */
    struct server_gpu_binding *secondary; /* with a backup on a GPU: the other binding */
};

/* Packets in their order of arrival, until they are handed to the connection. */
struct server_stream_queue {
    struct server_packet *head, *tail; /* received, not yet ready in turn */
    struct server_packet *waiting;     /* first of those that no unit has yet (later ones follow it) */
    uint32_t next_sequence;            /* of the next DATA frame */
    uint32_t accepted;                 /* sequence of the next packet that is complete */
};

/* Slots that the streams of an I/O thread share, beside their own: what one has given back last the next one takes
 * first, and finds it in the cache. A packet has one if it fits, there is one, and it will not stay long: its stream is
 * on a worker, keeps its contract, and has a client that takes its results. The stream has a slot of its own for it all
 * the same, so that nothing depends on them. When a shared slot is given back no plaintext is left in it. */
#define SERVER_HOT_SLOTS 256 /* about as many packets as a turn reads */
struct server_hot_slots {
    struct server_block *block;
    struct server_packet *free;
};

/* Packet memory. */
struct server_stream_memory {
    struct server_packet *free;
    struct server_hot_slots *hot; /* its I/O thread's; NULL: its packets do not fit */
    uint32_t packets;             /* records and slots, without those of retired blocks */
    uint32_t busy;                /* packets in use */
    uint32_t leaving;             /* of these, from before the blocks were retired */
    uint32_t first;               /* sequence of the first packet after that */
    struct server_block *blocks;
};

/* What became of the stream's packets. */
#define SERVER_SLACK_CLASSES 8
struct server_stream_account {
    struct protocol_closed totals;
    uint64_t key_bytes;       /* encrypted or accepted under the present key */
    core_ns slack_minimum_ns; /* CORE_NS_NEVER before the first packet */
    /* Packets by what was left of their latency bound: none (missed), below 1/64, 1/32, .. 1/2 of it, and the
     * rest. When one of the counts has reached 2^32 all are halved: the shape stays. */
    uint32_t slack[SERVER_SLACK_CLASSES];
    uint64_t policed;     /* packets that were held back */
    uint64_t reader_late; /* of met: ready in time, handed over late because of the reader */
    uint64_t fault_late;  /* of missed: served by another unit because of a failed GPU */
};

/* Latency bounds of the stream. */
struct server_stream_bounds {
    core_ns opened_ns;   /* when OPENED was sent; 0: not yet */
    core_ns promised_ns; /* the bound in OPENED or MODIFIED */
    core_ns late_ns;     /* b_A: its unit serves it with a latency bound shorter by this (modify.h) */
    core_ns counted_ns;  /* what limits the rest of its I/O thread (net/io.h) */
};

enum server_stream_state { SERVER_STREAM_OPEN, SERVER_STREAM_CLOSING };

/* The stream's notice, server/stream/notification.h. */
struct server_stream_notice {
    struct server_output output;
    bool queued, degraded;
    enum protocol_notice_kind kind; /* queued: which */
    enum protocol_notice_kind next; /* follows the queued one; 0: none */
    uint8_t frame[SERVER_NOTIFICATION_BYTES];
};

/* The failovers of a stream with a backup: server/stream/backup.h. */
struct server_failover {
    core_ns lost_ns;    /* packets that were eligible before this came late to the backup */
    core_ns release_ns; /* backup on a worker: earliest release of the next packet there */
    bool told;          /* its client was told that it is on its backup */
};

/* One stream. What several of its fields are about is a struct of its own; what is left are the parts that a
 * stream consists of. Those that every packet touches come first, in eight cache lines. */
struct server_stream {
    alignas(
        64) struct server_waiter waiter; /* first member: place among the streams that wait to be eligible */
    struct server_stream_client *client;
    struct cpu_stream *cpu; /* secret memory */
    core_ns in_ns;          /* margin between a packet's eligible time and its release */
    uint32_t id;
    enum server_path_state path; /* which unit packets go to, or what they wait for */
    uint16_t version;            /* of the protocol on its connection */
    bool unannounced;            /* its OPEN was refused late: no CLOSED is sent */
    bool early;                  /* its last packet came before its contract lets it go */
    enum server_stream_state state : 8;
    enum protocol_close_reason close_reason : 8;
    struct core_stream_spec spec;
    struct server_mac *mac;             /* secret memory; NULL: the stream has none */
    struct server_migration *migration; /* in progress (server/stream/migration.h); NULL: none */
    struct server_modify *modify;       /* renegotiation in progress (server/stream/modify.h); NULL: none */
    struct server_stream_queue queue;
    struct server_stream_memory memory;
    struct server_policer policer;
    struct server_stream_units units;
    struct server_pacer pace; /* when packets may go to the unit */
    struct server_stream_keys keys;
    struct server_message_state message;
    struct server_stream_account account;
    struct server_rekey rekey; /* in progress; keys has both keys then */
    struct server_failover failover;
    struct server_reservation *reservation; /* at its unit, given back when the stream leaves */
    struct server_stream_bounds bounds;
    struct server_stream_notice notice;
};
#define SERVER_STREAM_HOT_BYTES 512
_Static_assert(offsetof(struct server_stream, account.policed) <= SERVER_STREAM_HOT_BYTES,
               "what every packet touches is in eight lines");

/* Memory for packets of one stream: each one's record, and its slot behind it. */
struct server_block {
    struct server_message message; /* first member: to be wiped (server/memory.h) */
    struct server_block *next;
    uint64_t bytes;      /* charged to the server's budget */
    uint64_t room_bytes; /* of records and slots; <= bytes */
    uint8_t *slots;      /* the first one, of which each next one is */
    uint64_t stride;     /* bytes ahead */
    uint32_t count;      /* packets */
    bool retired;
};

/* Packets the server holds for a stream: as many as its contract may have inside at once
 * (perfmodel_cpu_backlog_packets), and one that comes ahead of it, where that takes no more than 2 KiB. */
uint32_t server_stream_queue_packets(const struct core_stream_spec *spec, uint32_t backlog_packets);

/* Packets that the contract may have inside a GPU at once: all that are eligible within its latency bound. As
 * perfmodel_cpu_backlog_packets has it for a worker. */
uint32_t server_stream_gpu_packets(const struct core_stream_spec *spec);

/* A block for so many packets of a stream like this, at least one. stagger: any number; spreads slots over
 * cache sets. NULL without memory. This and the next take long for large blocks: server/memory.h. */
struct server_block *server_block_create(const struct core_stream_spec *spec, uint32_t packets,
                                         uint32_t stagger);
/* The shared slots of an I/O thread. CORE_NO_MEMORY. None of them may be in use in the end. */
CORE_CHECKED core_status server_hot_slots_create(struct server_hot_slots *hot);
void server_hot_slots_destroy(struct server_hot_slots *hot);
/* The stream, of which no packet was taken yet, takes part in them if its packets fit. */
void server_stream_share(struct server_stream *stream, struct server_hot_slots *hot);

/* A list of blocks: the memory of all; and the end of all, wiped and freed. NULL is fine. */
uint64_t server_blocks_bytes(const struct server_block *blocks);
void server_blocks_destroy(struct server_block *blocks);

/* The stream has the block from now on, and its packets are free. */
void server_stream_adopt(struct server_stream *stream, struct server_block *block);

/* No packet of the blocks that the stream has now is taken any more, so that they are free once those that
 * are taken have been given. */
void server_stream_retire(struct server_stream *stream);

/* Returns the retired blocks, as a list, if all packets of all of them are free; they are not the stream's any more. */
CORE_CHECKED struct server_block *server_stream_shed(struct server_stream *stream);

/* Has it retired blocks? */
bool server_stream_sheds(const struct server_stream *stream);

/* Memory of a block of so many packets. UINT64_MAX: no memory holds so many (2^31 and more). */
uint64_t server_stream_buffer_bytes(const struct core_stream_spec *spec, uint32_t queue_packets);

/* For the planner: the memory of streams, their bindings, their migrations. */
extern const struct server_planner_stream_ops server_stream_ops;

/* Sets up everything but the cipher. The block is the stream's then. CORE_NO_MEMORY. */
CORE_CHECKED core_status server_stream_create(struct server_stream **stream,
                                              const struct core_stream_spec *spec,
                                              struct server_block *block);

/* Expands the key and arms the chain for one worker; key material is copied. in_ns: the margin that admission
 * left for a packet to reach the worker; releases count from eligible + in_ns (cpu/scheduler.h). */
CORE_CHECKED core_status server_stream_arm(struct server_stream *stream, const struct cpu_engine_ops *ops,
                                           struct cpu_engine *engine, const struct perfmodel_cpu_task *task,
                                           core_ns in_ns, const uint8_t *key,
                                           const uint8_t iv[CORE_BLOCK_BYTES],
                                           const uint8_t mac_id[CORE_MAC_BYTES]);

/* Secret memory of a stream: the worker's part, and the keys as the client gave them, two where they may change,
 * and what a MAC needs. */
size_t server_stream_secret_bytes(const struct cpu_engine_ops *ops, const struct core_stream_spec *spec);

/* All its blocks, as a list: they are not the stream's any more, which ends. No packet may be busy. */
CORE_CHECKED struct server_block *server_stream_take_blocks(struct server_stream *stream);

/* Wipes and frees, with the blocks that it still has. No packet may be busy. */
void server_stream_destroy(struct server_stream *stream, const struct cpu_engine_ops *ops);

/* Takes a free packet for DATA `sequence` with these flags, which follow (server/stream/message.h). NULL when all
 * are busy. */
struct server_packet *server_stream_take(struct server_stream *stream, uint32_t sequence, uint32_t bytes,
                                         uint8_t flags);
/* Gives it back after delivery or loss. */
void server_stream_give(struct server_stream *stream, struct server_packet *packet);

/* Has its next packet one of the shared slots? As far as its client takes its results. */
static inline bool server_stream_shares(const struct server_stream *stream)
{
    const struct server_hot_slots *hot = stream->memory.hot;
    return hot != NULL && hot->free != NULL && stream->units.gpu == NULL && !stream->early;
}

/* Ask memory for what a packet of the stream will touch, and then, when the stream has come, for the packet, and for
 * what its worker will touch. Always inlined: a function that does nothing but this is dropped by GCC where it is
 * called, as one without effect. */
#define SERVER_PREFETCHES static inline __attribute__((always_inline)) void
SERVER_PREFETCHES server_stream_prefetch(const struct server_stream *stream)
{
    for (size_t at = 0; at < SERVER_STREAM_HOT_BYTES; at += 64)
        __builtin_prefetch((const char *)stream + at, 1);
}
/* With the line behind it, where its payload begins. */
SERVER_PREFETCHES server_packet_prefetch(const struct server_packet *packet)
{
    for (size_t at = 0; at < sizeof *packet; at += 64)
        __builtin_prefetch((const char *)packet + at, 1);
    __builtin_prefetch(packet + 1, 1);
}
SERVER_PREFETCHES server_stream_prefetch_packet(const struct server_stream *stream)
{
    if (stream->memory.free != NULL && !server_stream_shares(stream))
        server_packet_prefetch(stream->memory.free);
    __builtin_prefetch(stream->cpu, 1);
}

/* Notes that the packet goes to this unit now. */
static inline void server_packet_hand(struct server_packet *packet, uint32_t unit, core_ns now_ns)
{
    core_ns after_ns = now_ns - packet->eligible_ns; /* little below 0, where it is early */
    packet->handed_ns = after_ns < INT32_MAX ? (int32_t)after_ns : INT32_MAX;
    packet->unit = (uint16_t)unit;
}

/* Where the payload of a packet goes. */
static inline uint8_t *server_packet_payload(const struct server_packet *packet)
{
    const uint32_t iv_bytes = packet->stream->spec.unit == CORE_UNIT_MESSAGE ? CORE_BLOCK_BYTES : 0;
    return packet->output.frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + iv_bytes;
}

/* Bytes of the IV that a packet has received ahead of its payload, and of the payload without a code behind it. */
static inline uint32_t server_packet_iv_bytes(const struct server_packet *packet)
{
    return packet->brings_iv ? CORE_BLOCK_BYTES : 0;
}
static inline uint32_t server_packet_plain_bytes(const struct server_packet *packet)
{
    return packet->bytes - server_packet_iv_bytes(packet) - (packet->brings_tag ? CORE_MAC_BYTES : 0);
}

/* Bytes at the end of a payload that pass as they are. */
static inline uint32_t server_packet_clear_bytes(const struct server_packet *packet)
{
    const uint32_t plain_bytes = server_packet_plain_bytes(packet);
    return plain_bytes > packet->cpu.bytes ? plain_bytes - packet->cpu.bytes : 0;
}

static inline uint32_t server_packet_padding_bytes(const struct server_packet *packet)
{
    const uint32_t plain_bytes = server_packet_plain_bytes(packet);
    return packet->cpu.bytes > plain_bytes ? packet->cpu.bytes - plain_bytes : 0;
}

/* Is the ciphertext somewhere else than in the slot? */
static inline bool server_packet_borrows(const struct server_packet *packet)
{
    return packet->output.payload != server_packet_payload(packet);
}

/* Copies ciphertext that is borrowed into the slot. */
void server_packet_keep(struct server_packet *packet);

/* Copies plaintext that lies elsewhere (cpu.data) into the slot, and pads it. */
void server_packet_fill(struct server_packet *packet);

/* Where what is received of the packet goes if it is not whole in a read: its payload, or the IV ahead of it. */
static inline uint8_t *server_packet_target(struct server_packet *packet)
{
    return server_packet_payload(packet) - server_packet_iv_bytes(packet);
}

/* The packet is complete, in the slot or where cpu.data says: judges its length, polices it, sets its times, pads
 * or sorts it, and appends it to the stream's order. False: its status is an error, and it is ready as it is. */
bool server_stream_accept(struct server_stream *stream, struct server_packet *packet,
                          const struct server_arrival *arrival, uint64_t bytes_per_key);

/* Removes and returns the next packet of the stream that may be delivered, in its order again; NULL if none. */
struct server_packet *server_stream_next_ready(struct server_stream *stream);

/* Counts a packet that had slack_ns left of its latency bound. */
void server_stream_account_slack(struct server_stream_account *account, core_ns slack_ns, core_ns latency_ns);

/* Completes the RESULT header as of hand-over at now_ns; blocked_ns: since when the reader has kept this
 * connection waiting, CORE_NS_NEVER if it has not. */
struct protocol_result server_packet_stamp(struct server_packet *packet, core_ns now_ns, core_ns blocked_ns);

#endif
