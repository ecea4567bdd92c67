/* The server as a library: what main() and the tests start, look at, and stop. */
#ifndef MILLRACE_SERVER_SERVER_H
#define MILLRACE_SERVER_SERVER_H

#include "config/profile.h"
#include "config/server.h"
#include "core/address.h"

#include <stddef.h>
#include <stdint.h>

struct server;

/* Binds the listeners, measures this machine if profile is NULL (at most 2 s, logged), starts every thread.
 * The configuration is borrowed until server_stop; the profile is copied. Process-wide: ignores SIGPIPE,
 * raises the limit of descriptors, forbids core dumps. */
CORE_CHECKED core_status server_start(struct server **server, const struct config_server *config,
                                      const struct config_profile *profile, struct core_error *error);

/* The same in a process that is not ours, of which it changes nothing: no limit, no signal, no core dump, and with
 * threads.realtime of `auto` no locked memory but that of keys. The caller's thread blocks all signals, as the
 * server's do then, and lives until server_stop: when it ends the processes of GPUs do. There may be no listener.
 * server_sandbox does not follow, and core_secret_end may follow server_stop. */
CORE_CHECKED core_status server_start_embedded(struct server **server, const struct config_server *config,
                                               const struct config_profile *profile,
                                               struct core_error *error);

/* Would server_start succeed now? Runs the same steps as far as they start no thread that stays, open no
 * socket and measure nothing, and calls `found` for each thing that would prevent the start; what is only a
 * warning is logged as at the start. A server that runs is not disturbed: the addresses that it listens on
 * are told as in use. CORE_OK; CORE_IN_USE: that alone was found; else the status of what was found. The
 * profile is NULL where none is configured. */
CORE_CHECKED core_status server_check(const struct config_server *config,
                                      const struct config_profile *profile,
                                      void (*found)(void *argument, const char *text), void *argument);

/* The address of listener `index` with the port the kernel chose. NULL past the last. */
const struct core_address *server_address(const struct server *server, uint32_t index);

/* The same of the admin address, and of the agent's; NULL if none is configured. */
const struct core_address *server_admin_address(const struct server *server);
const struct core_address *server_agent_address(const struct server *server);

/* Do all its threads go round (overload/beats.h)? If not, *text says which one does not. Any thread. */
bool server_lives(const struct server *server, char *text, size_t size);

/* "1 I/O threads, 1 workers, engine ipsec-mb, profile cpu-only"; returns text. */
char *server_describe(const struct server *server, char *text, size_t size);

/* Serves a connected stream socket as if a Unix listener had accepted it (inline keys allowed); the server's
 * from here on, also on failure. Any thread. */
CORE_CHECKED core_status server_adopt(struct server *server, int descriptor, struct core_error *error);

/* Takes from a configuration that was read again what can change while the server runs: the keyring, the log
 * level, and the certificates, keys and client CAs of the TLS listeners that it still has, all of them from
 * their files as they are now. On failure all stays as it was. Streams keep the key, and connections the
 * certificate, that they began with. From one thread at a time; not borrowed. */
CORE_CHECKED core_status server_reload(struct server *server, const struct config_server *config,
                                       struct core_error *error);

/* Forbids all threads what they need no more, as configured (core/sandbox.h); says where it could not. The
 * process's, and for good: after the start of everything. */
CORE_CHECKED core_status server_sandbox(const struct server *server, struct core_error *error);

/* Maintenance, or its end: HAProxy is told to send nobody here (server/admin/agent.h), and all clients are told that
 * the server is leaving (docs/protocol.md, section 10). All that comes nevertheless is served. Any thread. */
void server_maintain(struct server *server, bool begins);

/* The time before a stop in which clients may open their streams elsewhere: they are told so, new streams are
 * refused, and all others are served as before. Any thread. */
void server_leave(struct server *server);

/* Streams that are open. Any thread. */
uint64_t server_streams(const struct server *server);

/* Refuses what is new, finishes and delivers what was accepted within the configured drain time, ends every
 * thread and frees the server. Returns the number of accepted packets that could not be delivered in that
 * time. */
uint64_t server_stop(struct server *server);

#endif
