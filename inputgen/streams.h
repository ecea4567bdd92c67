/* A list of streams: what `millrace-gen make` draws from a workload and `millrace-gen replay` plays.
 *
 * As a file it is CSV, one stream a line behind a line that names the columns, all numbers decimal integers:
 *
 *   stream,class,packet_bytes,interval_ns,burst_packets,latency_ns,cipher,padding,start_ns,stop_ns
 *   0,video,1400,22400000,4,41200000,aes-256-cbc,pkcs7,0,10000000000
 *
 * Streams are numbered from 0 in order. start_ns and stop_ns count from the start of the replay: packet n of
 * a stream is due at start_ns + n * interval_ns, as long as that is below stop_ns.
 *
 * Those ten columns every list has, in any order. These it may have beside them; without one, all streams have
 * the value in brackets, and what is written has it only where some stream has another:
 *
 *   unit [stream], message_packets [1], iv [chain], first_unit [0], pattern [none], direction [encrypt],
 *   records [none]
 *
 * with the words of core/stream.h. message_packets is how many packets each message has: a replay sends so many
 * as one message, the first with FIRST and the last with LAST; with 1 a stream of messages declares so. */
#ifndef MILLRACE_INPUTGEN_STREAMS_H
#define MILLRACE_INPUTGEN_STREAMS_H

#include "config/workload.h"
#include "core/status.h"
#include "core/stream.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define INPUTGEN_STREAMS_MAX    1000000
#define INPUTGEN_CLASSES_MAX    4096
#define INPUTGEN_CLASS_NAME_MAX 63                      /* letters, digits, '.', '_', '-' */
#define INPUTGEN_TIME_NS_MAX    (86400 * CORE_NS_PER_S) /* of start_ns and stop_ns */

struct inputgen_stream {
    struct core_stream_spec spec; /* passes, with message_packets, config_workload_spec_check */
    core_ns start_ns, stop_ns;    /* 0 <= start_ns < stop_ns <= INPUTGEN_TIME_NS_MAX */
    uint32_t class_index;         /* into the list's classes */
    uint32_t message_packets;     /* of each message; 1 without messages */
};

struct inputgen_class {
    char name[INPUTGEN_CLASS_NAME_MAX + 1];
};

struct inputgen_streams {
    struct inputgen_stream *streams;
    size_t count;
    struct inputgen_class *classes;
    size_t class_count;
};

/* Draws `count` streams (0: as many as the workload says) that last until `duration_ns` (0: the workload's).
 *
 * The same workload, duration and seed give the same streams on every machine, and the first n of a longer
 * list are the list of n streams. Classes get their shares evenly: of any first n streams a class of weight w
 * among W in all has about n * w / W. The interval is packet_bytes * 8 / rate, rounded to the nanosecond.
 * A draw outside its distribution's [minimum, maximum] is drawn again. CORE_INVALID if a stream comes out
 * that the protocol does not allow; error names class, field and range. */
CORE_CHECKED core_status inputgen_streams_make(const struct config_workload *workload, uint32_t count,
                                               core_ns duration_ns, uint64_t seed,
                                               struct inputgen_streams **list, struct core_error *error);

/* Writes the list as CSV. CORE_SYSTEM on a write error (the caller flushes and closes). */
CORE_CHECKED core_status inputgen_streams_write(const struct inputgen_streams *list, FILE *file,
                                                struct core_error *error);

/* Reads a list, strictly: error has "file:line: column: what, and what to do". The list must have a stream. */
CORE_CHECKED core_status inputgen_streams_read(const char *path, struct inputgen_streams **list,
                                               struct core_error *error);
CORE_CHECKED core_status inputgen_streams_parse(const char *text, size_t bytes, const char *name,
                                                struct inputgen_streams **list, struct core_error *error);

void inputgen_streams_free(struct inputgen_streams *list); /* NULL is fine */

#endif
