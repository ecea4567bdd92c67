/* The operations of a churn: opens, closes and changes of contracts at random, on the thread of a sender.
 *
 * Operations are due at random times (exponential gaps), whatever the server does. Which kind comes next is
 * drawn by weights; where no stream is open a close becomes an open, where as many are open as may be an open
 * becomes a close. Any open stream may be changed, also a standing one; it sends by its old contract until
 * the server says that the new one is in force. An opened stream sends from its OPENED until its CLOSE, and
 * all of it is checked as a replay's streams are. When the run is over all of them are closed.
 *
 * Made by the caller's thread before the sender starts, then owned by the sender's until it is joined. */
#ifndef MILLRACE_INPUTGEN_CHURN_OPERATE_H
#define MILLRACE_INPUTGEN_CHURN_OPERATE_H

#include "inputgen/churn_figures.h"
#include "inputgen/random.h"
#include "inputgen/replay_sender.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Classes of the figures: of standard streams, and so much further of guaranteed ones. */
#define INPUTGEN_CHURN_STANDING   0
#define INPUTGEN_CHURN_OPENED     1
#define INPUTGEN_CHURN_GUARANTEED 2
#define INPUTGEN_CHURN_CLASSES    4

static inline uint32_t inputgen_churn_class(uint32_t class, bool guaranteed)
{
    return class + (guaranteed ? INPUTGEN_CHURN_GUARANTEED : 0);
}

/* The same for all senders; set before they start. */
struct inputgen_churn_plan {
    const struct inputgen_replay_options *options;
    const struct inputgen_streams *list; /* what is opened is drawn from */
    double operations_per_s;             /* of one sender */
    double weights[INPUTGEN_OPERATION_KINDS];
    size_t open_max;      /* opened by one sender at once */
    core_ns duration_ns;  /* operations are due before that */
    uint32_t index_first; /* parts of payloads: those below are taken */
    double guaranteed;    /* share of the opened streams that ask to survive the loss of a GPU */
    uint32_t index_step;  /* sender n takes index_first + n, and every index_step-th from there */
};

struct inputgen_churner {
    const struct inputgen_churn_plan *plan;
    struct inputgen_random random;
    struct inputgen_live *pool; /* every stream there can be */
    size_t pool_count;
    struct inputgen_live **spare; /* of these, those without a use */
    size_t spare_count;
    struct inputgen_live **open;
    size_t open_count;
    struct inputgen_live **closed; /* some may still be in the sender's schedule */
    size_t closed_count;
    size_t asked_count; /* opens without an answer */
    core_ns next_ns;    /* when the next operation is due, from the start of the run */
    uint32_t next_index;
    bool over; /* all are being closed */
    struct inputgen_churn_figures figures;
};

/* Streams that a sender must have room for beside its own (struct inputgen_sender_extra). */
size_t inputgen_churner_room(const struct inputgen_churn_plan *plan);

CORE_CHECKED core_status inputgen_churner_init(struct inputgen_churner *churner,
                                               const struct inputgen_churn_plan *plan, uint32_t number,
                                               struct core_error *error);
void inputgen_churner_free(struct inputgen_churner *churner);

/* The extra of every sender's plan: its `extra` is to point to the sender's churner. */
struct inputgen_sender_extra inputgen_churner_extra(const struct inputgen_churn_plan *plan);

/* After the sender was joined: adds the streams that did not come to their end to the sender's figures and
 * the churner's. */
void inputgen_churner_settle(struct inputgen_churner *churner, struct inputgen_sender *sender);

#endif
