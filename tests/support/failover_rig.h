/* Guaranteed streams on a running server with emulated GPUs, one client that owns all streams, and the
 * notifications that it receives. One I/O thread, two workers. Only the GPUs that the test kills fail, and of a
 * loss the I/O thread learns bit by bit: a test that uses this is linked with --wrap=gpu_engine_open and
 * --wrap=server_gpu_event_at (CMakeLists.txt). Test thread. */
#ifndef MILLRACE_TESTS_FAILOVER_RIG_H
#define MILLRACE_TESTS_FAILOVER_RIG_H

#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/stream.h"

#define FAILOVER_RIG_WORKERS 2
#define FAILOVER_RIG_STREAMS 600
#define FAILOVER_RIG_INSIDE  120 /* packets on their way at once */

/* The notifications that the client received of one stream. */
struct failover_told {
    uint32_t notices[4];         /* by kind */
    struct protocol_notice last; /* kind 0: none */
    uint32_t faults;             /* results of packets that were diverted by a fault */
};

struct failover_rig {
    struct test_server server;
    struct config_profile *profile;
    struct test_client client;
    struct test_random random;
    struct test_stream *stream[FAILOVER_RIG_STREAMS]; /* by id - 1 */
    struct failover_told told[FAILOVER_RIG_STREAMS];
    uint32_t count;
    uint32_t waiting; /* packets on their way */
    uint64_t closed;  /* packets of streams that have been closed */
    bool broken;      /* other clients have broken off, and lost packets */
};

/* `cards` cards, workers that take `cost` times as long as they do; `gpus` and `yaml` are put into the
 * configuration. */
void failover_rig_start(struct failover_rig *rig, uint32_t cards, int64_t cost, const char *gpus,
                        const char *yaml);

/* The next stream; it must be accepted. */
struct test_stream *failover_rig_open(struct failover_rig *rig, const struct core_stream_spec *spec);
bool failover_rig_on_card(const struct test_stream *stream, uint32_t card);

/* One frame: a RESULT, which is checked, or a NOTICE. */
void failover_rig_take(struct failover_rig *rig);

/* Sends packets of the streams from `first` on, at random. */
void failover_rig_exchange(struct failover_rig *rig, uint32_t first, uint32_t packets);

/* Takes all that is on its way, and awaits that the server has counted it. */
void failover_rig_settle(struct failover_rig *rig);

/* Asks for another contract: 0, or the refusal. Nothing is on its way. */
enum protocol_refusal failover_rig_modify(struct failover_rig *rig, struct test_stream *stream,
                                          uint32_t burst, core_ns interval_ns, core_ns latency_ns,
                                          struct protocol_modified *modified);

const struct server_stats *failover_rig_stats(const struct failover_rig *rig);

/* Packets that a unit has encrypted (server_units of server/server_internal.h); the fallback worker; all
 * other workers. */
uint64_t failover_rig_of_unit(const struct failover_rig *rig, uint32_t unit);
uint64_t failover_rig_of_fallback(const struct failover_rig *rig);
uint64_t failover_rig_of_workers(const struct failover_rig *rig);

/* The stream was told that it went to its backup and back so many times in all, and nothing else. */
void failover_rig_expect_told(struct failover_rig *rig, uint32_t i, uint32_t failures);

/* Lets so many streams of one unit go to another one (partition/unit_number.h numbers units), with no
 * packets on their way; returns how many went. */
size_t failover_rig_shift(struct failover_rig *rig, uint32_t from, uint32_t to, size_t streams);

/* Closes the streams from `first` on. */
void failover_rig_close(struct failover_rig *rig, uint32_t first);

/* Closes all, holds the sums against the server's, and ends it. */
void failover_rig_stop(struct failover_rig *rig);

#endif
