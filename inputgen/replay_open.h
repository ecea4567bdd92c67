/* The two ends of a replay: opening every stream before the first packet, and closing it after the last.
 *
 * Both work on all connections at once, with hundreds of requests in flight on each, on the caller's thread,
 * while no sending thread runs. */
#ifndef MILLRACE_INPUTGEN_REPLAY_OPEN_H
#define MILLRACE_INPUTGEN_REPLAY_OPEN_H

#include "core/status.h"
#include "inputgen/replay_link.h"
#include "inputgen/replay_report.h"

#include <stddef.h>

struct inputgen_open_options {
    const char *key_name; /* NULL: the stream's own key, inline */
    int timeout_ms;       /* for all of them */
};

/* Sends OPEN for every stream of every link and waits for every answer. Afterwards each stream is open (its
 * checker ready) or refused (noted in report->refusals). Fills report->open_ns and decision_max_ns. Fails if
 * a connection does or an answer does not come in time; keys are wiped either way. */
CORE_CHECKED core_status inputgen_open_all(struct inputgen_link *links, size_t link_count,
                                           const struct inputgen_open_options *options,
                                           struct inputgen_report *report, struct core_error *error);

/* Sends CLOSE for every open stream of every link that has not failed and waits for the answers, at most
 * timeout_ms. Counts streams whose CLOSED disagrees with our count in report->accounts_differ; a stream whose
 * answer does not come counts there too. */
void inputgen_close_all(struct inputgen_link *links, size_t link_count, int timeout_ms,
                        struct inputgen_report *report);

#endif
