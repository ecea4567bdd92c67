/* The server's figures in Prometheus' text format 0.0.4: the answer to GET /metrics. Names, units and meaning
 * are listed in docs/operations/observe.md. Pure. */
#ifndef MILLRACE_SERVER_ADMIN_PROMETHEUS_H
#define MILLRACE_SERVER_ADMIN_PROMETHEUS_H

#include "server/admin/snapshot.h"

#include <stddef.h>

#define SERVER_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Allocated with malloc, NULL where there is no memory. */
char *server_metrics_text(const struct server_snapshot *snapshot, size_t *bytes);

#endif
