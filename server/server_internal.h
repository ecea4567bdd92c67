/* The server's parts and what they share. Private to the folder. */
#ifndef MILLRACE_SERVER_SERVER_INTERNAL_H
#define MILLRACE_SERVER_SERVER_INTERNAL_H

#include "config/keyring.h"
#include "config/profile.h"
#include "config/server.h"
#include "core/user.h"
#include "cpu/worker.h"
#include "partition/unit_number.h"
#include "server/cores.h"
#include "server/gpu/batcher.h"
#include "server/net/connection_slots.h"
#include "server/net/handshake.h"
#include "server/overload/beats.h"
#include "server/planner/planner.h"
#include "server/stats.h"

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct server_io;
struct server_files;
struct server_lanes;
struct server_admin;
struct server_monitor;

struct server_listener {
    const struct config_listener *config;
    struct core_address bound; /* with the port the kernel chose */
    int descriptor;
    SSL_CTX *tls;                                 /* guarded by reload_lock once threads run; NULL: plain */
    _Atomic uint32_t connections;                 /* atomic: open, raised by I/O thread 0, lowered by any */
    _Atomic uint64_t turned[SERVER_TURNED_COUNT]; /* atomic: by reason, counted by whoever does it */
};

/* Set while a configuration is only checked (server_check): what is found goes there, and the next is looked
 * at. */
struct server_check {
    void (*found)(void *argument, const char *text);
    void *argument;
    core_status status; /* of the finding that weighs most: any but CORE_IN_USE before that */
};

/* The server: what all threads share. Long because it is the one place that owns every other object. */
struct server {
    struct server_check *check;                      /* NULL: it starts; set before that */
    bool is_embedded;                                /* in a process that is not ours; set before that */
    const struct config_server *config;              /* borrowed for the server's life; set before start */
    struct config_profile *profile;                  /* owned; set before start */
    char profile_doubt[512];                         /* server_cores_doubt; set before start */
    const struct cpu_engine_ops *engine;             /* set before start */
    struct server_cores cores;                       /* set before start */
    uint32_t io_count, worker_count, listener_count; /* set before start */
    struct server_listener *listeners;               /* set before start; events belong to I/O thread 0 */
    struct cpu_worker **workers; /* behind worker_count others, with GPUs, the fallback worker */
    uint32_t all_workers;        /* set before start */
    struct server_gpu **gpus;    /* set before start */
    uint32_t gpu_count;          /* set before start */
    struct core_user gpu_user;   /* of the cards' processes, where gpu_user_differs; set before start */
    bool gpu_user_differs;       /* from ours; set before start */
    struct server_io **ios;
    struct server_planner *planner;
    struct server_beats *beats; /* set before the watch starts */
    struct server_monitor *watch;
    struct server_admin *admin;     /* NULL: none configured */
    struct config_keyring *keyring; /* guarded by reload_lock; NULL: none */
    pthread_mutex_t reload_lock;    /* what SIGHUP replaces */
    core_ns started_ns;
    double started_s;                   /* the same as Unix time */
    _Atomic uint64_t connection_number; /* atomic: the last one given out; I/O thread 0 */
    struct server_connection_slots places;
    struct server_files *files;           /* set before start */
    struct server_lanes *lanes;           /* set before start */
    struct server_handshakes *handshakes; /* set before start; NULL: no listener that needs them */
    _Atomic uint64_t handshakes_done;     /* atomic: established, counted by their threads */
    _Atomic bool maintenance;             /* atomic: set and cleared by server_maintain, read by all */
    _Atomic bool leaving;                 /* atomic: set once by server_leave, read by all */
    _Atomic bool draining;                /* atomic: set once by server_stop, read by all */
    _Atomic uint64_t drain_lost;          /* atomic: packets not delivered when the drain time was over */
};

/* Clients are told to go elsewhere. */
static inline bool server_is_leaving(const struct server *server)
{
    return atomic_load_explicit(&server->leaving, memory_order_relaxed) ||
           atomic_load_explicit(&server->maintenance, memory_order_relaxed);
}

static inline bool server_listener_is_tls(const struct server_listener *listener)
{
    return listener->config->address.transport == CORE_TRANSPORT_TLS;
}

/* Units (partition/unit_number.h): the workers, the GPUs and, where there are GPUs, the best-effort fallback
 * worker, which no plan knows. */
static inline uint32_t server_units(const struct server *server)
{
    return server->worker_count + server->gpu_count + (server->gpu_count > 0 ? 1 : 0);
}

static inline uint32_t server_unit_of_gpu(const struct server *server, uint32_t gpu)
{
    return partition_unit_of_gpu(server->worker_count, gpu);
}

static inline bool server_unit_is_gpu(const struct server *server, uint32_t unit)
{
    return partition_unit_is_gpu(server->worker_count, unit) &&
           unit < server->worker_count + server->gpu_count;
}

static inline uint32_t server_unit_gpu(const struct server *server, uint32_t unit)
{
    return partition_unit_gpu(server->worker_count, unit);
}

/* Of server->workers, where the fallback worker is the last. */
static inline uint32_t server_unit_of_worker(const struct server *server, uint32_t worker)
{
    return worker < server->worker_count ? worker : server->worker_count + server->gpu_count;
}

static inline uint32_t server_unit_worker(const struct server *server, uint32_t unit)
{
    return unit < server->worker_count ? unit : server->worker_count;
}

#endif
