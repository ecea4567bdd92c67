/* Addresses of sockets as people write them:
 *
 *   unix:/run/millrace/millraced.sock     a path (at most 107 bytes); "unix:@name" is an abstract socket
 *   tcp:127.0.0.1:7411   tcp:[::1]:7411   host or address, port 1..65535 (0 lets the kernel choose, listeners
 * only) tls:host:7412                         the same, TLS 1.3 on top (the caller does the TLS)
 */
#ifndef MILLRACE_CORE_ADDRESS_H
#define MILLRACE_CORE_ADDRESS_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

enum core_transport { CORE_TRANSPORT_UNIX, CORE_TRANSPORT_TCP, CORE_TRANSPORT_TLS };

struct core_address {
    enum core_transport transport;
    char host[256];         /* path for unix (leading '@' kept), host or address without brackets otherwise */
    uint16_t port;          /* 0 for unix */
    uint64_t device, inode; /* of the socket file that a listener has made; 0: none, or not known */
};

CORE_CHECKED core_status core_address_parse(const char *text, struct core_address *address,
                                            struct core_error *error);

/* The folder of the sockets of a server that nobody has told where to listen: $XDG_RUNTIME_DIR/millrace, or
 * /run/millrace for root. CORE_NOT_FOUND: not root, and no such variable. */
CORE_CHECKED core_status core_address_default_folder(char *folder, size_t size, struct core_error *error);

/* Where a program that is not told looks for the server: a socket in that folder, if there is one, else the
 * one of an installed server, unix:/run/millrace/millraced.sock. Returns text. */
char *core_address_default(char *text, size_t size);

/* Writes the address as above, cut to size; returns text. */
char *core_address_format(const struct core_address *address, char *text, size_t size);

/* Binds and listens, non-blocking and close-on-exec, backlog 1024. A Unix path that no one serves is
 * replaced, a served one is CORE_IN_USE (as is a port) and a file that is no socket CORE_INVALID; `mode` are
 * the permission bits of a Unix path (0: 0660). On success *descriptor is the caller's and *bound (may be
 * NULL) the address with the port the kernel chose; after a failure there is no socket file of ours. Of
 * several who listen on one path at once, one succeeds: from the look at what is there until it listens, each
 * has the path's folder locked (flock), which takes 5 s at most or fails: CORE_TIMEOUT. */
CORE_CHECKED core_status core_address_listen(const struct core_address *address, unsigned mode,
                                             int *descriptor, struct core_address *bound,
                                             struct core_error *error);

/* Would core_address_listen succeed now? Fails as that does, and leaves all as it is: no socket file is made
 * or removed, and no client that connects meanwhile reaches this one. */
CORE_CHECKED core_status core_address_try(const struct core_address *address, struct core_error *error);

/* Removes a listener's socket file, unless somebody else's has its name by now. Before the listener's
 * descriptor is closed, which keeps the file's number from being used again. Nothing for what is no file. */
void core_address_remove(const struct core_address *bound);

/* Connects within timeout_ms (blocking connect, descriptor left non-blocking, close-on-exec, TCP_NODELAY). */
CORE_CHECKED core_status core_address_connect(const struct core_address *address, int timeout_ms,
                                              int *descriptor, struct core_error *error);

/* Descriptors may be sent on what this Unix socket accepts from now on. */
void core_address_take_files(int descriptor);

#endif
