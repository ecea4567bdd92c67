/* Private to the bench `siege`: an attack, what it is given, and what is reported of it.
 *
 * For each attack a server is started, with listeners for Unix sockets, TCP and TLS and an admin port.
 * Honest streams run beside the attack, and a client that opens and closes a stream all the time
 * (siege_honest.h). The attack runs on the caller's thread. */
#ifndef MILLRACE_BENCH_SIEGE_SIEGE_H
#define MILLRACE_BENCH_SIEGE_SIEGE_H

#include "bench/daemon.h"
#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIEGE_PEERS 16 /* addresses that attackers come from, 127.0.0.2 and on: peers of their own */

/* Goals of a row of the report, besides those that the attack judges itself. Whatever they are, no RESULT may
 * be lost, wrong, or marked as met although it came late. */
enum siege_goal {
    SIEGE_ON_TIME = 1, /* nothing late at the client */
    SIEGE_MET = 2,     /* no deadline missed, by the server's count */
    SIEGE_OPENS = 4,   /* no OPEN during the attack fails or takes SIEGE_OPEN_MS */
    SIEGE_COUNTED = 8  /* the server counts all that is late as missed, and little more: siege_honest.h */
};
#define SIEGE_OPEN_MS 20

/* What an attack is given and may say. */
struct siege {
    const struct bench_daemon *daemon;
    const struct bench_daemon_options *server; /* its program and profile, for one more of it */
    const char *folder;                        /* of ours: certificate server.pem and key server.key */
    uint16_t tcp_port, tls_port;               /* at 127.0.0.1 */
    core_ns end_ns;                            /* when the attack should end: siege_goes_on */
    core_ns notice_ns;                         /* over all rounds: longest time in which the
                                                  end of a GPU's process was noticed */
    uint64_t noticed_late;                     /* over all rounds: ends that were noticed too late */
    uint64_t done;                             /* attacks made: key updates, connections, kills ... */
    char note[240];                            /* what it found, for the report */
    bool failed;                               /* that is not what was to be reached */
};

typedef core_status siege_run(struct siege *siege, struct core_error *error);

struct siege_attack {
    const char *name, *what;
    siege_run *run;
    unsigned goals;        /* enum siege_goal */
    const char *keys;      /* of the server's configuration; NULL: none */
    const char *profile;   /* "emulated-demo": a shipped one; NULL: as for all */
    bool emulated;         /* the server's GPUs are emulated */
    bool guaranteed;       /* the honest streams are guaranteed, as many of them as are admitted */
    bool log_full;         /* the server's log is a pipe without a reader */
    uint32_t packet_bytes; /* of the honest streams; 0: 512 */
    uint32_t streams;      /* honest streams; 0: none, and no probe */
    core_ns latency_min_ns, latency_max_ns; /* of the honest streams */
    unsigned rounds;                        /* servers, one after another; 0: 1 */
};

/* siege_tls.c */
siege_run siege_updates_live;      /* KeyUpdates before HELLO, one after another */
siege_run siege_updates_made;      /* the same, all made before the first is sent */
siege_run siege_updates_requested; /* behind HELLO, each asks for an answer that is never read */
siege_run siege_hellos;            /* 64 ClientHellos at once, again and again */

/* Writes the certificate and the key of a server at 127.0.0.1. */
CORE_CHECKED core_status siege_certificate_write(const char *folder, struct core_error *error);

/* siege_crowds.c */
siege_run siege_silent;      /* connections that say nothing */
siege_run siege_connections; /* 2,000 connections at once, closed again, twice a second */
siege_run siege_garbage;     /* connections that break the protocol */
siege_run siege_admin;       /* slow connections at the admin port */

/* siege_requests.c */
siege_run siege_modify_huge;  /* MODIFY for 100 s of latency at an interval of 1 us */
siege_run siege_modify_storm; /* MODIFYs as fast as they are answered, 64 under way */
siege_run siege_queries;      /* QUERYs of connections that are closed at once */

/* siege_faults.c */
siege_run siege_cards;   /* cards' processes killed while /proc of them is read */
siege_run siege_stop;    /* the server stopped for a second */
siege_run siege_threads; /* a server with more threads than there are cores */

/* A stream that any server admits: two packets of 256 bytes a second, bound 100 ms. */
struct millrace_open siege_open(void);

/* Connects to 127.0.0.1:port from 127.0.0.(2 + peer % SIEGE_PEERS), without waiting. -1: it could not. */
int siege_dial(uint16_t port, unsigned peer);

/* Should the attack go on? It ends when its time is over and it was made at least once, however slow this
 * machine is; and after half a minute in which it was not made at all. */
bool siege_goes_on(const struct siege *siege);

/* Waits until the descriptor is ready for these poll events, for so long. */
bool siege_await(int descriptor, short events, int timeout_ms);

#endif
