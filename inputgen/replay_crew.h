/* The connections and sending threads of a run: what replay and churn have in common. All on the caller's
 * thread.
 *
 * In this order: zeroed, links, connect, (the caller fills the links' streams and opens them), senders, run,
 * (close), free. free may follow any of them. */
#ifndef MILLRACE_INPUTGEN_REPLAY_CREW_H
#define MILLRACE_INPUTGEN_REPLAY_CREW_H

#include "core/status.h"
#include "inputgen/replay.h"
#include "inputgen/replay_link.h"
#include "inputgen/replay_sender.h"

#include <stddef.h>

struct inputgen_crew {
    const struct inputgen_replay_options *options; /* set by the caller */
    struct inputgen_link *links;
    size_t link_count;
    struct inputgen_link **link_pointers;
    struct inputgen_sender *senders; /* each for some of the links, in their order */
    size_t sender_count;
    struct inputgen_sender_plan plan;
};

/* What the options say, or the default. */
int inputgen_crew_timeout_ms(const struct inputgen_replay_options *options);

/* As many links as the options ask for, but not more than `streams`, none of them connected. */
CORE_CHECKED core_status inputgen_crew_links(struct inputgen_crew *crew, size_t streams,
                                             struct core_error *error);
CORE_CHECKED core_status inputgen_crew_connect(struct inputgen_crew *crew, struct core_error *error);

/* Deals the streams to the links in turn, so that each carries about the same load. */
CORE_CHECKED core_status inputgen_crew_deal(struct inputgen_crew *crew, struct inputgen_live *lives,
                                            size_t count, struct core_error *error);

/* How many senders there will be; the links are known. */
size_t inputgen_crew_sender_count(const struct inputgen_crew *crew);

/* Makes the senders of a run that starts now (plan.start_ns lies a little ahead) and whose last packet is due
 * duration_ns later. The smallest latency bound is the report's, the largest is given. payload, class_count,
 * packet_bytes_max and extra of crew->plan are the caller's to set before. */
CORE_CHECKED core_status inputgen_crew_senders(struct inputgen_crew *crew, core_ns duration_ns,
                                               core_ns latency_max_ns, struct inputgen_report *report,
                                               struct core_error *error);

/* Starts the senders and waits for their end; meanwhile calls look(argument), if there is one, about every
 * 20 ms. Fills in the report what server and generator took. Fails if a sender could not be started; the
 * others run to their end all the same. */
CORE_CHECKED core_status inputgen_crew_run(struct inputgen_crew *crew, struct inputgen_report *report,
                                           void (*look)(void *argument), void *argument,
                                           struct core_error *error);

/* Sums up what the senders show of themselves, and gives it to the options' progress, if there is one. */
void inputgen_crew_progress(const struct inputgen_crew *crew, core_ns duration_ns);

/* The smallest latency bound among the open streams, for the report; the largest of all is returned. */
core_ns inputgen_crew_bounds(const struct inputgen_live *lives, size_t count, struct inputgen_report *report);

/* Adds to the report what the senders counted, the streams themselves (each in its class) and failed links,
 * then adds the classes up. */
void inputgen_crew_count(const struct inputgen_crew *crew, const struct inputgen_live *lives, size_t count,
                         struct inputgen_report *report);

/* Disconnects and frees; the streams stay the caller's. */
void inputgen_crew_free(struct inputgen_crew *crew);

#endif
