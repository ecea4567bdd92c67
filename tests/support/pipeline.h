/* One GPU of a plan in virtual time: packets that keep their contracts, batches, two copies and a kernel.
 *
 * Batch n holds what becomes eligible in [(n-1)T, nT), one job a stream. It is closed at nT, or up to in_ns
 * later, when the last of its packets has been handed over. Then copy up, kernel, copy back, each in the
 * order of the batches, one kernel at a time. With two copy engines each direction has its own; with one,
 * whole copies take turns between the directions where both wait, and a copy back is queued when its kernel
 * has ended. A stage takes what the model says of the batch's actual jobs, margin included, or less.
 *
 * With `change` the batches after that one have another period, and other promises.
 *
 * Every packet must be copied back by eligible + latency - out_ns - rest (perfmodel_io_rest_ns), which is
 * in_ns + d' after it was eligible. Pure; the same seed gives the same run. */
#ifndef MILLRACE_TESTS_PIPELINE_H
#define MILLRACE_TESTS_PIPELINE_H

#include "config/profile.h"
#include "core/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PIPELINE_BATCHES_MAX 256

enum pipeline_stage { PIPELINE_UP, PIPELINE_KERNEL, PIPELINE_DOWN, PIPELINE_STAGES };

struct pipeline_gpu {
    const struct config_profile *profile;
    const struct config_profile_gpu *card;
    const struct core_stream_spec *specs;
    size_t count;
    bool busy; /* charge copies at their contended times */
    core_ns period_ns;
    core_ns end_ns[PIPELINE_STAGES]; /* the plan's promise: each stage ends so long after the closing */
    uint32_t change;                 /* the last batch of that period; 0: all are */
    core_ns next_period_ns, next_end_ns[PIPELINE_STAGES];
};

/* The end of a batch's period. */
core_ns pipeline_close_ns(const struct pipeline_gpu *gpu, uint32_t n);

/* For searches: what each stream does in each batch, and the outcome. */
#define PIPELINE_SCRIPT_STREAMS 8
enum pipeline_wish { PIPELINE_NOTHING, PIPELINE_ALL, PIPELINE_ALL_LATE, PIPELINE_ONE, PIPELINE_WISHES };
struct pipeline_script {
    uint8_t wish[PIPELINE_BATCHES_MAX + 1][PIPELINE_SCRIPT_STREAMS]; /* the longest job first */
    uint8_t took[PIPELINE_BATCHES_MAX + 1][PIPELINE_STAGES];         /* of what it may, in 255 parts */
    uint8_t late[PIPELINE_BATCHES_MAX + 1];                          /* of in_ns, in 255 parts */
};

/* Who sends when. "At full rate": the burst at once, then as soon as policing allows. */
enum pipeline_arrivals {
    PIPELINE_AT_OPENING,     /* all at full rate from the opening of a batch on */
    PIPELINE_BEFORE_CLOSING, /* all at full rate from the last moment of a batch on */
    PIPELINE_SPREAD,         /* each burst in even parts over a few batches, then at full rate */
    PIPELINE_GROUPS,         /* at full rate, but groups of streams start one batch after another */
    PIPELINE_SAVED,          /* a packet an interval for some batches, then the saved bursts */
    PIPELINE_LONG_SHORT,     /* the half with the larger jobs in even batches, the other half in odd ones */
    PIPELINE_UNEVEN,         /* a full batch, one of the few smallest jobs, an empty one, and again */
    PIPELINE_AGAIN,          /* full batches, with silence between them in which bursts are earned back */
    PIPELINE_PERIODIC,       /* a packet an interval, all in phase */
    PIPELINE_RANDOM,         /* of each stream and batch: nothing, something or everything */
    PIPELINE_ARRIVALS,       /* how many kinds */
    PIPELINE_SCRIPT          /* as the script has it, and so are the stages and the closings */
};

enum pipeline_execution {
    PIPELINE_MOST,      /* as long as the model says */
    PIPELINE_LEAST,     /* a tenth */
    PIPELINE_ONE_STAGE, /* one stage as long as it may, the others a tenth */
    PIPELINE_BY_TURNS,  /* batches as long as they may and a tenth by turns, the stages out of step */
    PIPELINE_ANY,       /* often as long as it may, else in between */
    PIPELINE_AIMED,     /* the same, and kernels end around closings, so that copies of both kinds meet */
    PIPELINE_EXECUTIONS
};

enum pipeline_closing {
    PIPELINE_LATEST, /* in_ns late */
    PIPELINE_AT_ONCE,
    PIPELINE_ANY_TIME, /* in between, but in order */
    PIPELINE_CLOSINGS
};

enum pipeline_order {
    PIPELINE_TURNS,
    PIPELINE_FIRST_COME,
    PIPELINE_UP_FIRST,
    PIPELINE_DOWN_FIRST,
    PIPELINE_ORDERS
};

struct pipeline_pattern {
    enum pipeline_arrivals arrivals;
    enum pipeline_execution execution;
    enum pipeline_closing closing;
    enum pipeline_order order; /* of copies on one engine; a batch by itself counts on TURNS */
    bool small_too;            /* packets of any size; else all are as large as they may be */
    uint32_t batches;          /* 1 .. PIPELINE_BATCHES_MAX */
    const struct pipeline_script *script;
    uint64_t seed;
};

struct pipeline_result {
    uint64_t packets, batches, misses; /* batches that are not empty; packets missed are counted by batch */
    core_ns least_slack_ns;            /* of a packet; CORE_NS_NEVER without one */
    int64_t least_slack_ppb;           /* the same relative to its d' */
    core_ns late_ns[PIPELINE_STAGES];  /* most by which a stage ended after the plan's promise; <= 0: kept */
    int64_t nearest_ppb[PIPELINE_STAGES]; /* of a promise, how much of it was needed at the most */
    uint32_t arenas;                      /* that had to be in rotation */
};

/* period_ns > 0 and count > 0. CORE_NO_MEMORY, or CORE_OK and a result. */
CORE_CHECKED core_status pipeline_run(const struct pipeline_gpu *gpu, const struct pipeline_pattern *pattern,
                                      struct pipeline_result *result);

#endif
