/* The load of `millrace-bench hls`: renditions whose parts are put to `millrace hls` at their pace, by HTTP over a Unix
 * socket, and looked for in its output.
 *
 * A part is put when it is due, then the playlist that names it; it is published when the output has a playlist that
 * names it. From the first byte of the part until then is its latency; where a rendition's part before was still under
 * way when it fell due, from then on. Each that is published is decrypted under the key that its playlist names, and
 * compared. One thread, which sends, watches and compares. */
#ifndef MILLRACE_BENCH_HLS_LOAD_H
#define MILLRACE_BENCH_HLS_LOAD_H

#include "core/histogram.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hls_load_options {
    const char *socket; /* that `millrace hls` listens on, a path */
    const char *output; /* its folder */
    const char *keys;   /* and that of its keys, whose URIs are their names */
    unsigned renditions;
    size_t part_bytes;
    core_ns part_ns; /* one part every so long, spread over the renditions */
    core_ns deadline_ns;
    core_ns warm_up_ns; /* in which streams are opened: its parts are compared, and not timed */
    core_ns duration_ns;
    bool until_late; /* ends with the first part that is late */
};

struct hls_load_figures {
    uint64_t parts; /* published, all of them compared */
    uint64_t timed; /* of these, after the warm-up */
    uint64_t late;  /* of these, later than the deadline, or lost */
    uint64_t lost;  /* never published, as of streams that the server does not admit */
    uint64_t wrong;
    uint64_t refused;              /* requests that were not answered 201 */
    core_ns sent_late_ns;          /* the latest that one was begun of those due, by the bench's own fault */
    struct core_histogram latency; /* of those timed */
};

CORE_CHECKED core_status hls_load_run(const struct hls_load_options *options,
                                      struct hls_load_figures *figures, struct core_error *error);

#endif
