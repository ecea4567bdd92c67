/* A pool, the nodes that it has (tests/support/chaos_node.h), and streams whose every byte is known: what tests of
 * pools use together. All functions are for the test's thread; what must be is asserted in them. */
#ifndef TESTS_SUPPORT_POOL_RIG_H
#define TESTS_SUPPORT_POOL_RIG_H

#include "client/millrace.h"
#include "tests/support/chaos_node.h"
#include "tests/support/random.h"

#include <stdbool.h>
#include <stdint.h>

#define POOL_RIG_PATIENCE_MS 120000
#define POOL_RIG_NODES       3
#define POOL_RIG_PACKETS     240 /* of a stream */
#define POOL_RIG_PACKET_MAX  320 /* bytes */
#define POOL_RIG_AHEAD       24  /* packets that are sent before the first of them comes back */

extern const uint8_t pool_rig_keys[2][16];

enum pool_stream_kind {
    POOL_CHAIN,
    POOL_PADDED,
    POOL_DECRYPTING,
    POOL_COUNTER,
    POOL_CONSTANT,
    POOL_MESSAGES_IN_A_CHAIN,
    POOL_KINDS
};

struct pool_stream {
    enum pool_stream_kind kind;
    struct millrace_open open;
    uint32_t id;
    uint32_t lengths[POOL_RIG_PACKETS];
    unsigned flags[POOL_RIG_PACKETS];
    uint8_t plain[POOL_RIG_PACKETS][POOL_RIG_PACKET_MAX];
    uint8_t cipher[POOL_RIG_PACKETS][POOL_RIG_PACKET_MAX + 16];
    uint32_t bytes[POOL_RIG_PACKETS];
    uint32_t sent, done;
    uint8_t iv[16];
    uint64_t second_key; /* number of the first message under it; UINT64_MAX: none */
    uint64_t message;    /* of the next packet that is sent */
    bool closed, lost;
    struct millrace_closed end;
    unsigned gaps;
};

struct pool_rig {
    struct chaos_node nodes[POOL_RIG_NODES];
    unsigned node_count;
    struct millrace *pool;
    struct pool_stream *streams;
    unsigned count, opened, refused, late;
    uint32_t asked;
    char refusal[MILLRACE_TEXT_BYTES];
    unsigned modified, rekeyed, busy, gone, pongs, notices;
    unsigned crossed, crossed_met; /* results with flag FAULT; and of these with MET */
    void (*at_closed)(struct pool_rig *rig), (*at_pong)(struct pool_rig *rig),
        (*at_busy)(struct pool_rig *rig);
};

bool pool_stream_has_messages(const struct pool_stream *stream);

/* Draws what will be sent, and the contract for it. */
void pool_stream_make(struct pool_stream *stream, enum pool_stream_kind kind, struct test_random *random);

/* Packet by packet as docs/protocol.md says, by OpenSSL alone. */
void pool_stream_check(const struct pool_stream *stream);

/* faults: so many does each node make, as its options have them. */
void pool_rig_start(struct pool_rig *rig, const struct chaos_options *options, unsigned nodes, int faults,
                    uint64_t seed, const struct millrace_pool *pool);
void pool_rig_stop(struct pool_rig *rig);

/* Has the rig hear what its pool says, as a start does. */
void pool_rig_listen(struct pool_rig *rig);

/* Waits for what the pool waits for, and lets it go on. */
void pool_rig_turn(struct pool_rig *rig);

/* Makes and opens so many streams, one by one, each until a node takes it. */
void pool_rig_open(struct pool_rig *rig, unsigned count, const enum pool_stream_kind *kinds,
                   struct test_random *random);
void pool_rig_open_one(struct pool_rig *rig, enum pool_stream_kind kind, uint64_t seed);

/* As many packets as may be out, and CLOSE behind the last one. */
void pool_rig_send(struct pool_rig *rig, struct pool_stream *stream);

bool pool_rig_all_closed(const struct pool_rig *rig);

/* All that was sent has come back right, and the account is that of one server. */
void pool_rig_check(const struct pool_rig *rig);
void pool_rig_run_to_the_end(struct pool_rig *rig);

/* Until all that the nodes have said is heard. */
void pool_rig_ping(struct pool_rig *rig);

millrace_status pool_rig_modify(struct pool_rig *rig, const struct pool_stream *stream);
/* The second key, from message `first` on. */
millrace_status pool_rig_rekey(struct pool_rig *rig, const struct pool_stream *stream, uint64_t first);

#endif
