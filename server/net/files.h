/* Descriptors that clients send on Unix sockets, asked for or not. To close one may take as long as its sender likes:
 * a TCP socket that lingers, a file of a file system that does not answer. The kernel closes those for which a read
 * has no room, and those that lie in a socket that is closed, in the thread that reads or closes, whatever its
 * priority. So all that come are taken, and closed, as their sockets are, by a thread of its own. */
#ifndef MILLRACE_SERVER_NET_FILES_H
#define MILLRACE_SERVER_NET_FILES_H

#include "core/status.h"

#include <stddef.h>
#include <sys/types.h>

struct server_files;

CORE_CHECKED core_status server_files_start(struct server_files **files, struct core_error *error);
/* After the last call of the others, all of which it carries out, or for two seconds. NULL is fine. */
void server_files_stop(struct server_files *files);

/* As recv, of a socket that does not block. The only descriptor that has come is left in *kept; NULL, or with several:
 * none may come, and the socket is as a broken one (EPROTO). */
ssize_t server_files_receive(struct server_files *files, int socket, void *buffer, size_t bytes, int *kept);

/* It is closed when those before it are. */
void server_files_close(struct server_files *files, int file);

#endif
