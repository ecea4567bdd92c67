/* The server's configuration, as loaded from YAML. Every key is documented in config/millraced.yaml. */
#ifndef MILLRACE_CONFIG_SERVER_H
#define MILLRACE_CONFIG_SERVER_H

#include "core/address.h"
#include "core/log.h"
#include "core/sandbox.h"
#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config_listener {
    struct core_address address;
    unsigned mode;           /* permission bits of a Unix socket */
    char *certificate, *key; /* PEM files, tls only */
    char *client_ca; /* PEM file: clients must present a certificate signed by it; NULL: none asked for */
    bool proxy;      /* every connection begins with a PROXY v2 header, which says who the client is */
};

/* HAProxy's agent-check. */
struct config_agent {
    bool listens;
    struct core_address address;
    struct core_stream_spec typical; /* of such streams the room that is left is told */
};

struct config_server_limits {
    uint32_t connections; /* in all */
    uint32_t connections_per_peer, connections_per_listener;
    uint32_t handshakes;           /* TLS handshakes under way at once, in all */
    uint32_t tls_handshakes_per_s; /* begun by a peer; a burst is twice that; 0: no limit */
    uint32_t streams;              /* in all */
    uint32_t streams_per_connection;
    uint32_t packet_bytes;
    uint32_t burst_packets;
    uint64_t stream_buffer_bytes; /* one stream's declared burst */
    uint64_t buffer_bytes;        /* all streams' buffers */
    uint64_t lane_bytes;          /* memory of all lanes; 0: there are none */
    uint64_t bytes_per_key;       /* a stream must be re-opened with a new key after this much */
};

struct config_server_timeouts {
    core_ns hello_ns;       /* to the end of the client's HELLO, and of a TLS handshake */
    core_ns frame_ns;       /* from a frame's first byte to its last */
    core_ns idle_ns;        /* a connection without streams and without a frame */
    core_ns stream_idle_ns; /* a stream without a packet, from when the next one was due; 0: never */
    core_ns stall_ns;       /* a reader that takes nothing while results wait */
    core_ns leave_ns;       /* SIGTERM: first of all, for clients to open their streams elsewhere; 0: none */
    core_ns drain_ns;       /* then, to finish and deliver what was accepted */
    core_ns move_ns;        /* longest wait of an OPEN while other streams migrate for it; 0: none does */
};

enum config_realtime { CONFIG_REALTIME_OFF, CONFIG_REALTIME_AUTO, CONFIG_REALTIME_REQUIRED };

struct config_server_threads {
    uint32_t io;      /* 0: chosen from the cores */
    uint32_t workers; /* 0: chosen from the cores */
    uint32_t cores;   /* that all of them may count on; 0: those that the process may use */
    uint32_t tls;     /* for handshakes */
    enum config_realtime
        realtime; /* SCHED_FIFO and mlockall: not asked for, where permitted, or start fails */
    int worker_priority, io_priority; /* SCHED_FIFO 1..99 */
    bool pin;                         /* workers to cores of their own */
};

struct config_server_overload {
    bool tighten;     /* withhold from admission what a unit overruns its bounds by */
    core_ns quiet_ns; /* until that long after */
};

#define CONFIG_GPUS_CARDS_MAX  64
#define CONFIG_GPUS_INDEX_MAX  1023
#define CONFIG_GPUS_CARD_BYTES 48

enum config_gpus_use { CONFIG_GPUS_AUTO, CONFIG_GPUS_NONE, CONFIG_GPUS_EMULATED, CONFIG_GPUS_LISTED };

struct config_server_gpus {
    /* The cards that are there and in the profile; none; the profile's, played by processors; those listed,
     * all of which must be there. */
    enum config_gpus_use use;
    /* LISTED: index ("2") or UUID ("GPU-...", "MIG-...", in lower case) as `millrace-gpu --list` and
     * `nvidia-smi -L` show them, all unlike. */
    char cards[CONFIG_GPUS_CARDS_MAX][CONFIG_GPUS_CARD_BYTES];
    uint32_t card_count;
    char *program;   /* path of millrace-gpu, or NULL: beside millraced, then in libexec */
    char *user;      /* name or number, of the user that millrace-gpu becomes; NULL: nobody, if we are root */
    uint32_t audit;  /* one packet in so many is encrypted again on the CPU and compared; 0: none */
    core_ns hang_ns; /* a card that has batches and returns none for so long is hung */
};

struct config_yaml;

struct config_server {
    struct config_yaml *yaml; /* for config_server_where; NULL: not read from YAML */
    struct config_listener *listeners;
    size_t listener_count;
    struct config_server_threads threads;
    struct config_server_limits limits;
    struct config_server_timeouts timeouts;
    struct config_server_overload overload;
    struct config_server_gpus gpus;
    char *engine;                   /* "auto", "vaes", "ipsec-mb", "openssl" */
    char *profile;                  /* path, or NULL: measure at start */
    char *keyring;                  /* path, or NULL: no named keys */
    bool client_iv;                 /* may clients choose the IV? (test vectors, resuming a chain) */
    bool check_plans;               /* is every plan in force checked by partition/check/check.h? */
    enum core_sandbox_mode sandbox; /* seccomp: where the kernel has it, not asked for, or start fails */
    bool has_admin;
    struct core_address admin;
    struct config_agent agent;
    enum core_log_level log_level;
    enum core_log_format log_format;
};

/* Reads and checks a configuration; paths in it are relative to the file's folder. On failure error has
 * "file:line: what, and what to do". */
CORE_CHECKED core_status config_server_load(const char *path, struct config_server **server,
                                            struct core_error *error);
/* The same for a server inside a process (core/embedded.h), which may have no listeners. */
CORE_CHECKED core_status config_server_load_embedded(const char *path, struct config_server **server,
                                                     struct core_error *error);
CORE_CHECKED core_status config_server_parse(const char *text, size_t bytes, const char *name,
                                             struct config_server **server, struct core_error *error);
void config_server_free(struct config_server *server);

/* Loads the profile that it names; NULL where it names none. The error begins with where it is named. */
struct config_profile;
CORE_CHECKED core_status config_server_profile(const struct config_server *server,
                                               struct config_profile **profile, struct core_error *error);

/* What a server without a configuration file does: all defaults, and Unix sockets of mode 0600 in `folder`:
 * millraced.sock and, for admin, admin.sock. */
CORE_CHECKED core_status config_server_default(const char *folder, struct config_server **server,
                                               struct core_error *error);

/* Where a key is: "file:line: key", for what turns out later; returns text. The key as in
 * "listeners[0].address". */
char *config_server_where(const struct config_server *server, const char *key, char *text, size_t size);

/* The keys that differ between two configurations, as "listeners, threads.io", and "" if none does; returns
 * text, cut off if it is too short. Not those that a running server takes from its file (server_reload):
 * keyring, log.level, and certificate, key and client_ca of a listener. */
char *config_server_differences(const struct config_server *a, const struct config_server *b, char *text,
                                size_t size);

/* Are these written alike? */
bool config_same_address(const struct core_address *a, const struct core_address *b);

/* So many quarters of `all`, but 64 at least where there are as many: what one of several may have. */
uint32_t config_server_share(uint32_t all, uint32_t quarters);

#endif
