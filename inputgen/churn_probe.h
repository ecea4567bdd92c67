/* How many identical streams a server takes: it is asked for one after the other until it refuses, then all
 * are closed again. On the caller's thread, over connections that nothing else uses meanwhile. */
#ifndef MILLRACE_INPUTGEN_CHURN_PROBE_H
#define MILLRACE_INPUTGEN_CHURN_PROBE_H

#include "core/status.h"
#include "core/stream.h"
#include "inputgen/replay_link.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct inputgen_probe_plan {
    struct core_stream_spec spec; /* of every stream */
    const char *key_name;         /* NULL: a random key */
    uint64_t limit;               /* streams to ask for at most, 1 or more */
    int timeout_ms;               /* for each answer */
};

struct inputgen_probe {
    uint64_t streams; /* granted, of these */
    uint64_t on_gpus; /* by the server's word */
    bool bounded;     /* false: `limit` was reached without a refusal */
    bool held_back;   /* the server withheld capacity from admission: the count is lower than it could be */
    core_ns decided_max_ns;
    char refusal[512]; /* the server's words; "" where there was none */
};

/* Opens streams on the links in turn and closes them. Fails where a connection does or an answer does not
 * come. */
CORE_CHECKED core_status inputgen_probe_run(struct inputgen_link *links, size_t link_count,
                                            const struct inputgen_probe_plan *plan,
                                            struct inputgen_probe *probe, struct core_error *error);

#endif
