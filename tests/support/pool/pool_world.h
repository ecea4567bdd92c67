/* The world of a pool, in one thread and on a virtual clock: attempts to connect, connections, epoll and timer are
 * this file's (they are wrapped at linking: tests/CMakeLists.txt, TEST_POOL_WRAPS), and behind each connection is a
 * node that keeps the protocol and does everything else wrong that a node, its machine and the way to it can do, as a
 * tape says: it answers late or never, refuses, leaves, stops, closes streams, is cut in the middle of a frame, reads
 * nothing, says what breaks the protocol. Its cipher is no AES, but chains alike (pool_world_crypt).
 *
 * Each stream of the program has a serial number, which is in its keys, so that nodes know whose it is. */
#ifndef MILLRACE_TESTS_POOL_WORLD_H
#define MILLRACE_TESTS_POOL_WORLD_H

#include "client/millrace.h"
#include "core/time.h"
#include "tests/support/tape.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_WORLD_SERIALS      64 /* of one sequence */
#define POOL_WORLD_PACKET_BYTES 96
#define POOL_WORLD_PATIENCE_MS  3000

/* What nodes know of the program's stream of this serial number. */
struct pool_world_fate {
    uint32_t closed_for; /* reasons of CLOSED other than ASKED and DRAINED, bit by bit */
    bool key_refused;    /* a REKEY of it */
    bool refused;        /* an OPEN of it, for what no other node is to judge */
};

/* A world without connections; `tape` says what becomes of the first attempts. */
void pool_world_begin(struct tape *tape);
core_ns pool_world_now_ns(void);
const struct pool_world_fate *pool_world_fate(uint32_t serial);
bool pool_world_was_left(void); /* some node has said that it is leaving, so that streams may move */

/* One operation of nodes, or of what is between. */
void pool_world_operate(struct tape *tape);

/* Time passes; the pool is processed whenever its descriptor is readable, as by a program that polls. */
void pool_world_pass(struct millrace *pool, core_ns time_ns);

/* From now on all attempts succeed, and all nodes serve what comes. */
void pool_world_heal(void);

/* Are streams open anywhere? */
bool pool_world_is_in_use(void);

/* kind 0 and 1: a stream's first and second key. Whole blocks; `chain` goes on. */
void pool_world_key(uint32_t serial, uint32_t kind, uint8_t key[16]);
void pool_world_crypt(const uint8_t key[16], uint8_t chain[16], bool decrypts, const uint8_t *from,
                      uint8_t *to, size_t bytes);

#endif
