/* The interface of an I/O thread to the rest of the server: its life, its mailbox and its figures. Its work
 * and its data are private to server/net (net/io.h). */
#ifndef MILLRACE_SERVER_NET_IO_THREAD_H
#define MILLRACE_SERVER_NET_IO_THREAD_H

#include "core/status.h"
#include "core/time.h"

#include <stdint.h>
#include <time.h>

struct server;
struct server_io;
struct server_mailbox;
struct server_stats;

CORE_CHECKED core_status server_io_create(struct server_io **io, struct server *server, uint32_t index,
                                          struct core_error *error);

/* Before the threads start: this one accepts connections. */
CORE_CHECKED core_status server_io_listen(struct server_io *io, struct core_error *error);

CORE_CHECKED core_status server_io_start(struct server_io *io, struct core_error *not_permitted,
                                         struct core_error *error);

/* Any thread: a worker has put results into the thread's ring. */
void server_io_notify(struct server_io *io);

/* Any thread: finish and deliver until drain_until_ns, then close everything and end the thread. Thread 0
 * passes it on to all others when it has stopped accepting, so that no connection is handed to one that has
 * ended. */
void server_io_drain(struct server_io *io, core_ns drain_until_ns);
void server_io_join(struct server_io *io);
void server_io_destroy(struct server_io *io);

/* Any thread, from create to destroy: */

struct server_mailbox *server_io_mailbox(struct server_io *io);
const struct server_stats *server_io_stats(const struct server_io *io);

/* The system's number of the thread; 0 before it runs. */
int32_t server_io_thread_id(const struct server_io *io);

/* Any thread: it has delivered all, and ended. */
bool server_io_has_ended(const struct server_io *io);

/* The clock of the thread's CPU time, while it runs. CORE_UNSUPPORTED: the system has none. */
CORE_CHECKED core_status server_io_cpu_clock(const struct server_io *io, clockid_t *clock);

#endif
