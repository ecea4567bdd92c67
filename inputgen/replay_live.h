/* A stream being replayed: its contract, its timetable, and how far it has come.
 *
 * Opened by the caller's thread (replay_open.h); while packets run it belongs to one sending thread. */
#ifndef MILLRACE_INPUTGEN_REPLAY_LIVE_H
#define MILLRACE_INPUTGEN_REPLAY_LIVE_H

#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"
#include "inputgen/replay.h"
#include "inputgen/replay_check.h"
#include "inputgen/streams.h"

#include <stddef.h>
#include <stdint.h>

struct inputgen_link;

enum inputgen_live_state {
    INPUTGEN_LIVE_WAITING, /* not asked for, or not answered */
    INPUTGEN_LIVE_OPEN,
    INPUTGEN_LIVE_REFUSED,
    INPUTGEN_LIVE_CLOSED
};

struct inputgen_live {
    struct core_stream_spec spec; /* as declared to the server */
    uint32_t index;               /* among all streams; part of every payload */
    uint32_t class_index;
    uint32_t group;   /* packets due at one time: 1, or the burst */
    core_ns group_ns; /* time from one group to the next */
    core_ns first_ns; /* when the first group is due, from the start of the run */
    uint64_t planned; /* packets */
    uint64_t sent, received, rejected;
    enum inputgen_live_state state;
    uint32_t id; /* the server's number, once open */
    uint8_t key[32];
    struct inputgen_checker checker;
    struct inputgen_link *link;
};

/* When packet n is due, from the start of the run. */
static inline core_ns inputgen_live_due_ns(const struct inputgen_live *live, uint64_t n)
{
    return live->first_ns + (core_ns)(n / live->group) * live->group_ns;
}

/* Stream `index` of the list, scaled and timed as the options say, with its key: the named one or a random
 * one. Nothing is due from duration_ns on. */
CORE_CHECKED core_status inputgen_live_init(struct inputgen_live *live,
                                            const struct inputgen_replay_options *options,
                                            const struct inputgen_streams *list, size_t index,
                                            core_ns duration_ns, struct core_error *error);
void inputgen_live_free(struct inputgen_live *live); /* wipes the key */

#endif
