/* The limits of a server's units: what a set of streams, or one stream more, exceeds. Every test of the
 * model, every plan and every answer of the admission control names its verdict with these values.
 *
 * The values up to BACKUP are those that REFUSED carries (enum protocol_limit in core/protocol.h): the server
 * sends them as they are, and does not compile where they differ. */
#ifndef MILLRACE_PERFMODEL_LIMIT_H
#define MILLRACE_PERFMODEL_LIMIT_H

enum perfmodel_limit {
    PERFMODEL_LIMIT_NONE = 0,            /* accepted; of a plan: nothing binds, as there is no stream */
    PERFMODEL_LIMIT_DEADLINE = 1,        /* latency bound below what any idle unit could keep */
    PERFMODEL_LIMIT_CPU_UTILISATION = 2, /* long-run demand on a worker: 100 % or more of its time */
    PERFMODEL_LIMIT_CPU_DEMAND = 3,      /* demand within some window on a worker */
    PERFMODEL_LIMIT_IO = 4,              /* time of the connection's I/O thread */
    PERFMODEL_LIMIT_GPU_COPY = 5,        /* a GPU's copies against its period */
    PERFMODEL_LIMIT_GPU_KERNEL = 6,      /* a GPU's kernel against its period */
    PERFMODEL_LIMIT_GPU_LATENCY = 7,     /* a GPU's period and stages against the shortest bound on it */
    PERFMODEL_LIMIT_GPU_MEMORY = 8,      /* a GPU's arenas against its memory or the pinned budget */
    PERFMODEL_LIMIT_GPU_OUT = 9,         /* a GPU that would accept the stream is out of service */
    PERFMODEL_LIMIT_RESERVE = 10,        /* capacity that a unit withholds from admission after an overload */
    PERFMODEL_LIMIT_BACKUP = 11,         /* no unit can reserve the backup of a guaranteed stream */
    PERFMODEL_LIMIT_FLUID = 12           /* of a fluid upper bound, never sent: all units together */
};

/* "cpu-demand", ...; "unknown" for a value that is none. */
const char *perfmodel_limit_name(enum perfmodel_limit limit);

#endif
