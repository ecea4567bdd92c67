/* A sending thread: the hot half of a replay, for some of its connections.
 *
 * It wakes at most once a tick. Each time it puts every packet that is due into the output buffers, flushes
 * each connection once, and takes what has come back, in big chunks. Nothing is allocated but the growth of
 * a connection's list of unsent packets. */
#ifndef MILLRACE_INPUTGEN_REPLAY_SENDER_H
#define MILLRACE_INPUTGEN_REPLAY_SENDER_H

#include "core/status.h"
#include "core/time.h"
#include "inputgen/replay_figures.h"
#include "inputgen/replay_link.h"
#include "inputgen/replay_payload.h"
#include "inputgen/replay_schedule.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct inputgen_sender;

/* What a run does on each sender's thread beside sending and receiving, as a churn does. The callbacks of the
 * protocol get the link (its owner is the sender), which still has its packets sent and results checked. */
struct inputgen_sender_extra {
    size_t streams_max; /* that one sender ever has scheduled beside those of its links at the start */

    /* Once a tick, after what was due is in the output buffers, until the sender is done. Returns when it
     * wants to be called again; CORE_NS_NEVER: only as it comes. */
    core_ns (*turn)(struct inputgen_sender *sender, core_ns now_ns);
    bool (*busy)(const struct inputgen_sender *sender); /* the sender is not done yet */
    struct millrace_callbacks callbacks;                /* on_result stays the sender's */
};

/* The same for all senders; set before they start. */
struct inputgen_sender_plan {
    const struct inputgen_payload *payload;
    size_t class_count;
    uint32_t packet_bytes_max;
    core_ns start_ns;   /* absolute: time 0 of the run */
    core_ns give_up_ns; /* absolute: results that did not come by then are lost */
    core_ns tick_ns;
    core_ns drain_ns;                          /* after an interruption: how long to wait for results */
    int fifo_priority;                         /* SCHED_FIFO where the system permits it; 0: not asked for */
    const atomic_bool *stop;                   /* may be NULL */
    const struct inputgen_sender_extra *extra; /* may be NULL */
};

/* One sending thread: what it is to send, and what became of it, which nobody else reads before it has ended.
 * */
struct inputgen_sender {
    /* set before start */
    const struct inputgen_sender_plan *plan;
    struct inputgen_link **links;
    size_t link_count;
    void *extra; /* the plan's extra keeps here what it wants */

    /* owned by the thread until it is joined */
    struct inputgen_schedule schedule; /* of streams by the next packet's time */
    struct inputgen_figures *classes;
    struct core_histogram lateness;
    uint8_t *scratch; /* of a packet to be sent, and of one that is checked */
    int epoll;
    uint64_t look;              /* looks for results so far */
    core_ns look_ns, before_ns; /* when the last one began, and the one before */
    core_ns read_ns;            /* when the chunk being handled was read; 0: not yet asked */
    core_ns last_result_ns;     /* absolute; 0: none */
    core_ns extra_ns;           /* when the extra's turn is next wanted */
    core_ns stopped_ns;         /* when an interruption was seen; 0: none */
    uint64_t sent, received, missed, bad;

    /* atomic: written by the thread, read by the one that shows progress */
    _Atomic uint64_t shown_sent, shown_received, shown_missed, shown_bad;
    atomic_bool done;
    pthread_t thread;
};

/* `links` (link_count of them) stay the caller's; their streams are all answered. */
CORE_CHECKED core_status inputgen_sender_init(struct inputgen_sender *sender,
                                              const struct inputgen_sender_plan *plan,
                                              struct inputgen_link **links, size_t link_count,
                                              struct core_error *error);
CORE_CHECKED core_status inputgen_sender_start(struct inputgen_sender *sender, struct core_error *error);

/* On the sender's thread: from now on the open stream's packets are sent as its timetable says. */
void inputgen_sender_schedule(struct inputgen_sender *sender, struct inputgen_live *live);

/* The same thread: takes streams that are no longer open out of the schedule, which else lets go of them when
 * their next packet would have been due. Takes time with the number of streams. */
void inputgen_sender_prune(struct inputgen_sender *sender);
void inputgen_sender_join(struct inputgen_sender *sender);
void inputgen_sender_free(struct inputgen_sender *sender);

#endif
