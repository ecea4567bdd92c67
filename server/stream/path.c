#include "server/stream/path.h"

#include <stddef.h>

enum {
    KEYED = SERVER_PATH_KEYED,
    OTHER = SERVER_PATH_OTHER,
    AT_BACKUP = SERVER_PATH_AT_BACKUP,
    AWAITED = SERVER_PATH_AWAITED,
    WORKER_EMPTY = SERVER_PATH_WORKER_EMPTY,
    GPU_EMPTY = SERVER_PATH_GPU_EMPTY,
    ON_TIME = SERVER_PATH_ON_TIME,
    LOST = SERVER_PATH_LOST,
    MIGRATING = SERVER_PATH_MIGRATING,
    READY = SERVER_PATH_READY,
    TO_GPU = SERVER_PATH_TO_GPU,
    FREE = SERVER_PATH_FREE,
    MAY_HOLD = SERVER_PATH_MAY_HOLD,
    OVERDUE = SERVER_PATH_OVERDUE,

    FAIL_OVER = SERVER_PATH_FAIL_OVER,
    REWIND = SERVER_PATH_REWIND,
    SWAP = SERVER_PATH_SWAP,
    SWITCH = SERVER_PATH_SWITCH,
    GIVE_UP = SERVER_PATH_GIVE_UP,
    USE_WORKER = SERVER_PATH_USE_WORKER,
    USE_GPU = SERVER_PATH_USE_GPU,
    PACED = SERVER_PATH_PACED,
    RELEASE = SERVER_PATH_RELEASE
};

struct transition {
    unsigned all, none; /* facts that must hold, and that must not; both 0: end of the list */
    enum server_path_state next;
    unsigned effects;
};

/* The stream goes to the new unit. */
#define MIGRATED(facts, more)                                                                                \
    {MIGRATING | FREE | TO_GPU | (facts), 0, SERVER_PATH_GPU, SWITCH | (more)},                              \
    {                                                                                                        \
        MIGRATING | FREE | (facts), 0, SERVER_PATH_WORKER, SWITCH | (more)                                   \
    }

#define TIMED_OUT(state)                                                                                     \
    {                                                                                                        \
        MIGRATING | OVERDUE, 0, SERVER_PATH_##state, GIVE_UP                                                 \
    }

#define TRANSITIONS_MAX 11 /* with the end of the list */

static const struct transition table[SERVER_PATH_STATES][TRANSITIONS_MAX] = {
    [SERVER_PATH_WORKER] =
        {
            MIGRATED(READY, 0),
            {MIGRATING | READY | MAY_HOLD, 0, SERVER_PATH_HELD_WORKER, 0},
            TIMED_OUT(WORKER),
            /* an answer of the primary GPU is awaited, one of the backup's is not */
            {OTHER | AT_BACKUP, KEYED, SERVER_PATH_WORKER, SWAP},
            {OTHER, KEYED | AWAITED, SERVER_PATH_WORKER, SWAP},
            {KEYED | WORKER_EMPTY, 0, SERVER_PATH_GPU, USE_GPU},
            {KEYED | ON_TIME, 0, SERVER_PATH_LEAVING_WORKER, 0},
        },
    [SERVER_PATH_LEAVING_WORKER] =
        {
            {OTHER, KEYED, SERVER_PATH_LEAVING_WORKER, FAIL_OVER | SWAP},
            {0, KEYED, SERVER_PATH_WORKER, FAIL_OVER | USE_WORKER},
            /* what waits is paced on the way to one GPU, not to the next one as well */
            {WORKER_EMPTY | OTHER | AT_BACKUP, 0, SERVER_PATH_GPU, SWAP | USE_GPU | PACED},
            {WORKER_EMPTY, 0, SERVER_PATH_GPU, USE_GPU | PACED},
            TIMED_OUT(LEAVING_WORKER),
        },
    [SERVER_PATH_GPU] =
        {
            {LOST, 0, SERVER_PATH_LOSING, 0},
            MIGRATED(READY, 0),
            {MIGRATING | READY | MAY_HOLD, 0, SERVER_PATH_HELD_GPU, 0},
            {GPU_EMPTY | OTHER, KEYED, SERVER_PATH_GPU, FAIL_OVER | SWAP | USE_GPU},
            {GPU_EMPTY, KEYED, SERVER_PATH_WORKER, FAIL_OVER | USE_WORKER},
            {GPU_EMPTY | OTHER | AT_BACKUP, 0, SERVER_PATH_GPU, SWAP | USE_GPU},
            TIMED_OUT(GPU),
            /* the last: it takes some time */
            {OTHER | AT_BACKUP | ON_TIME, 0, SERVER_PATH_RETURNING, 0},
        },
    [SERVER_PATH_LOSING] =
        {
            /* back to the primary GPU too soon: nothing is promised, but to the others there, that packets
             * come by the contract */
            {GPU_EMPTY | OTHER | AT_BACKUP, 0, SERVER_PATH_GPU, FAIL_OVER | REWIND | SWAP | USE_GPU | PACED},
            {GPU_EMPTY | OTHER, 0, SERVER_PATH_GPU, FAIL_OVER | REWIND | SWAP | USE_GPU},
            {GPU_EMPTY, 0, SERVER_PATH_WORKER, FAIL_OVER | REWIND | USE_WORKER},
            TIMED_OUT(LOSING),
        },
    [SERVER_PATH_RETURNING] =
        {
            {LOST, 0, SERVER_PATH_LOSING, 0},
            {0, OTHER, SERVER_PATH_GPU, RELEASE},
            {GPU_EMPTY, 0, SERVER_PATH_GPU, SWAP | USE_GPU | PACED},
            TIMED_OUT(RETURNING),
        },
    /* What is held goes to the new unit in any case, whether that is still ready or not. */
    [SERVER_PATH_HELD_WORKER] =
        {
            {0, MIGRATING, SERVER_PATH_WORKER, RELEASE},
            MIGRATED(0, PACED),
        },
    [SERVER_PATH_HELD_GPU] =
        {
            {0, MIGRATING, SERVER_PATH_GPU, RELEASE},
            MIGRATED(0, PACED),
            {GPU_EMPTY, KEYED, SERVER_PATH_HELD_WORKER, USE_WORKER},
        },
};

bool server_path_step(enum server_path_state *state, unsigned facts, unsigned *effects)
{
    const struct transition *transition = table[*state];

    for (; transition->all != 0 || transition->none != 0; transition++)
        if ((facts & transition->all) == transition->all && (facts & transition->none) == 0) {
            *state = transition->next;
            *effects = transition->effects;
            return true;
        }
    return false;
}
