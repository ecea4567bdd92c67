/* The server's figures as JSON: the answer to GET /status. Its schema is described in
 * docs/operations/observe.md. Pure; texts are allocated with malloc, NULL where there is no memory. */
#ifndef MILLRACE_SERVER_ADMIN_STATUS_JSON_H
#define MILLRACE_SERVER_ADMIN_STATUS_JSON_H

#include "server/admin/snapshot.h"
#include "server/admin/stream_dump.h"

/* One object, ended by "}" and no line end. */
char *server_status_text(const struct server_snapshot *snapshot);

/* One element of the object's "streams". */
char *server_status_stream_text(const struct server_stream_dump_row *row);

#endif
