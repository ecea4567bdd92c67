/* A scripted node of a pool that encrypts rightly (OpenSSL) and does everything else wrong at random: it refuses,
 * cuts its connections after any byte it writes, resets them, stops in good order, hangs up on who connects. As many
 * connections as come, each a thread. What it does wrong ends after so many faults, so that every test does. */
#ifndef TESTS_SUPPORT_CHAOS_NODE_H
#define TESTS_SUPPORT_CHAOS_NODE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct chaos_options {
    int refuse_percent;    /* of OPENs, for capacity */
    int hang_up_percent;   /* of connections, before WELCOME */
    int drain_percent;     /* of DATA: all streams CLOSED, ERROR 10, and the end */
    uint32_t cut_bytes;    /* written, on average, until a connection is cut; 0: never */
    bool limits;           /* all OPENs, for a limit */
    bool grants_leaving;   /* OPEN is granted although it leaves, as by a server that is worked on */
    bool takes_none;       /* OPENED says that it takes no packets ahead, queue_packets 0 */
    bool takes_no_iv;      /* an OPEN with an IV is REFUSED 5 */
    uint32_t silent_after; /* DATA of a connection, behind which nothing is answered any more; 0: never */
    uint32_t cut_after;    /* DATA of a connection, behind which it is cut; 0: never. A fault */
    bool idle_at_modify;   /* MODIFY: the stream is CLOSED, idle, and the answer REFUSED 8 */
    bool idle_at_ping;     /* PING: PONG, and in the same write stream 2 is CLOSED, idle. A fault */
    bool cut_at_ping;      /* PING: the connection is cut. A fault */
    bool stuck_at_ping;    /* PING is not answered */
    bool opens_nothing;    /* OPEN: the answer names stream 0, which breaks the protocol. A fault */
    bool drains_at_rekey;  /* REKEY: REFUSED 6, then as with drain_percent. A fault */
    bool notices; /* each DATA but the first one of its connection: ahead of its RESULT a NOTICE, restored */
    uint32_t packet_bytes_max; /* in WELCOME; 0: the fake server's */
};

struct chaos_node {
    char address[64];
    struct chaos_options options;
    uint64_t seed;
    atomic_int faults_left; /* shared by all connections */
    atomic_uint connections, streams, opens, cuts;
    atomic_bool hangs_up;     /* on all who connect from now on; not counted as a fault */
    atomic_bool holds;        /* RESULTs are written when their stream is closed, all of them before CLOSED */
    atomic_bool ponders;      /* OPEN is not answered as long as this is so */
    atomic_bool postpones;    /* OPEN is answered when this is so no more, and all else as ever */
    atomic_bool refuses_keys; /* REKEY is REFUSED 4 */
    atomic_bool leaves;       /* NOTICE leaving, once on each connection, and OPEN is REFUSED 6 */
    atomic_uint version;      /* of the protocol, the newest that it speaks */
    atomic_uint closes;       /* CLOSEs that came */
    atomic_bool stopping;
    int listener;
    pthread_t thread;
};

/* Aborts the test program if it can not be set up. */
void chaos_node_start(struct chaos_node *node, const struct chaos_options *options, int faults,
                      uint64_t seed);
/* After all clients have gone. */
void chaos_node_stop(struct chaos_node *node);

#endif
