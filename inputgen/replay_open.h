/* The two ends of a replay: opening every stream before the first packet, and closing it after the last.
 *
 * Both work on all connections at once, with hundreds of requests in flight on each, on the caller's thread,
 * while no sending thread runs. */
#ifndef MILLRACE_INPUTGEN_REPLAY_OPEN_H
#define MILLRACE_INPUTGEN_REPLAY_OPEN_H

#include "core/status.h"
#include "inputgen/replay_link.h"
#include "inputgen/replay_report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct inputgen_open_options {
    const char *key_name; /* NULL: the stream's own key, inline */
    int timeout_ms;       /* for all of them */
    size_t more;          /* streams that each link is to have room for beside those it has now */
};

/* An OPEN for such a stream: with the named key if there is a name, else with this one; points to both. iv is for
 * streams with iv constant. */
struct millrace_open inputgen_open_request(const struct core_stream_spec *spec, const uint8_t *key,
                                           const char *key_name, const uint8_t iv[CORE_BLOCK_BYTES]);

/* Puts an OPEN for the stream (its own key, or the named one) into the link's output buffer; the stream waits
 * in link->by_request. CORE_FULL: no room now. */
CORE_CHECKED core_status inputgen_open_send(struct inputgen_link *link, struct inputgen_live *live,
                                            const char *key_name, struct core_error *error);

/* Takes the stream that waits for the answer to this request out of link->by_request. NULL: there is none,
 * and the link has failed: the server answers what was not asked. */
struct inputgen_live *inputgen_open_answered(struct inputgen_link *link, uint32_t request);

/* The stream is open: its checker is ready, its key wiped, and it is found by its id. False: the link has
 * failed, since there is no memory. */
bool inputgen_open_granted(struct inputgen_link *link, struct inputgen_live *live,
                           const struct millrace_opened *opened);

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
