/* Other contracts for admitted streams: asked for, granted, given back. */
#include "server/planner/internal.h"
#include "server/stream/stream.h"

#include <stdlib.h>

static void refuse(struct server_change *change, enum protocol_refusal refusal, const char *text)
{
    change->refusal = refusal;
    change->refusal_text = text;
}

/* ---- the decision ---- */

/* A block for what is missing; one for all where that is less than half of what the stream has. False: there
 * is no room for that. */
static bool reserve_memory(const struct server_planner *planner, struct server_change *change, uint32_t unit)
{
    struct server_memory_order *order = &change->memory;
    uint32_t wanted = server_planner_queue_packets(planner, &change->spec, unit, &change->movable);
    uint32_t has = change->has_packets;

    change->replaces = wanted < has / 2;
    order->packets = change->replaces ? wanted : wanted > has ? wanted - has : 0;
    order->bytes = order->packets > 0 ? server_stream_buffer_bytes(&change->spec, order->packets) : 0;
    return server_stream_buffer_bytes(&change->spec, wanted) != UINT64_MAX &&
           server_planner_has_memory(planner, order->bytes);
}

static bool change_in_place(struct server_planner *planner, struct server_change *change)
{
    struct partition_standing_placement *placement = &change->placement;

    if (partition_planner_change(planner->inner, change->grant->stream, &change->spec, change, placement,
                                 &change->agreed) != CORE_OK) {
        refuse(change, PROTOCOL_REFUSED_INTERNAL, "the stream's unit can not be evaluated now; retry");
        return false;
    }
    if (!placement->accepted) {
        refuse(change, PROTOCOL_REFUSED_CAPACITY, NULL);
        return false;
    }
    change->backup = server_planner_backup_of(placement);
    change->has_backup = placement->backup_unit != PARTITION_STANDING_NONE;
    return true;
}

struct memory_question {
    const struct server_planner *planner;
    struct server_change *change;
};

static bool fits(void *context, uint32_t unit, bool *movable)
{
    const struct memory_question *question = context;
    bool fit = reserve_memory(question->planner, question->change, unit);

    *movable = question->change->movable;
    return fit;
}

static bool change_elsewhere(struct server_planner *planner, struct server_change *change)
{
    struct memory_question question = {.planner = planner, .change = change};
    const struct partition_planner_memory memory = {.fits = fits, .context = &question};
    struct partition_standing_placement placement;

    if (!partition_planner_change_elsewhere(planner->inner, change->grant->stream, &change->spec, &memory,
                                            SERVER_CHANGE_PATIENCE_NS, change, core_time_now_ns(),
                                            &placement))
        return false;
    change->stays = change->placement;
    change->placement = placement;
    change->elsewhere = change->agreed = true;
    change->refusal = 0;
    return true;
}

static bool find_room(struct server_planner *planner, struct server_change *change)
{
    if (!reserve_memory(planner, change, change->grant->unit)) {
        refuse(change, PROTOCOL_REFUSED_LIMIT, server_planner_no_room);
        return false;
    }
    return change_in_place(planner, change) || (change->refusal == PROTOCOL_REFUSED_CAPACITY &&
                                                !planner->cut && change_elsewhere(planner, change));
}

static bool may_change(const struct server_planner *planner, struct server_change *change)
{
    static const char *const busy[] = {
        [PARTITION_PLANNER_SUPERSEDED] = "the stream was migrated in the meantime; retry",
        [PARTITION_PLANNER_MIGRATING] = "the stream is migrating to another unit; retry",
        [PARTITION_PLANNER_GPU_OUT] = "the stream's GPU is out of service; retry when it is back",
        [PARTITION_PLANNER_BACKUP_GPU_OUT] =
            "the GPU that holds the stream's backup is out of service; retry when it is back"};
    enum partition_planner_readiness readiness =
        partition_planner_readiness(planner->inner, change->grant->stream);

    if (server_planner_is_gone(&change->turn))
        refuse(change, PROTOCOL_REFUSED_STREAM, "the connection is gone");
    else if (atomic_load_explicit(&planner->server->draining, memory_order_relaxed))
        refuse(change, PROTOCOL_REFUSED_DRAINING, "the server is stopping; connect to another one");
    else if (readiness != PARTITION_PLANNER_READY)
        refuse(change, PROTOCOL_REFUSED_BUSY, busy[readiness]);
    return change->refusal == 0;
}

/* ---- the list of those that wait for plans ---- */

static void enlist(struct server_planner *planner, struct server_change *change)
{
    change->next = planner->changes;
    planner->changes = change;
}

static void delist(struct server_planner *planner, const struct server_change *change)
{
    struct server_change **link = &planner->changes;
    while (*link != change)
        link = &(*link)->next;
    *link = change->next;
}

static void answer(struct server_planner *planner, struct server_change *change)
{
    change->message.run = change->answered;
    change->memory.spec = &change->spec;
    change->memory.answer = &change->message;
    change->memory.reply = change->reply;
    if (change->refusal != 0)
        change->memory.packets = 0;
    server_memory_make(planner->memory, &change->memory, planner->buffer_bytes);
}

void server_planner_agreed(void *host, void *agreed)
{
    delist(host, agreed);
    answer(host, agreed);
}

static void grant_change(struct server_planner *planner, struct server_change *change)
{
    struct server_grant *grant = change->grant;

    grant->buffer_bytes += change->memory.bytes;
    planner->buffer_bytes += change->memory.bytes;
    server_planner_publish(planner, grant->unit, grant->io);
    if (change->agreed)
        answer(planner, change);
    else
        enlist(planner, change);
}

static void decide(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_change *change = (struct server_change *)message;

    change->refusal = 0;
    server_planner_begin_turn(planner, &change->turn);
    bool granted = may_change(planner, change) && find_room(planner, change);
    if (server_planner_put_off(planner, message))
        return;
    partition_planner_drop(planner->inner, change->grant->stream);
    change->decided_ns = core_time_now_ns() - change->received_ns;
    if (granted)
        grant_change(planner, change);
    else
        answer(planner, change);
}

/* The grant stays until it is decided, also if the stream ends or goes to another unit meanwhile. */
static void wait_for_turn(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_change *change = (struct server_change *)message;

    partition_planner_ask(planner->inner, change->grant->stream);
    message->run = decide;
    server_turns_add(&planner->turns, SERVER_TURNS_DECIDE, change->turn.asker, message);
}

/* ---- in force, given up, or gone ---- */

static enum partition_planner_end end_of(const struct server_change *change)
{
    switch (change->outcome) {
    case SERVER_CHANGE_IN_FORCE:
        return PARTITION_PLANNER_IN_FORCE;
    case SERVER_CHANGE_GIVEN_UP:
        return PARTITION_PLANNER_GIVEN_UP;
    default:
        return PARTITION_PLANNER_CLOSING;
    }
}

static struct partition_planner_use use_of(const struct server_change *change)
{
    struct partition_planner_use use = {.used = change->worked,
                                        .mark = change->grant->gpu != SERVER_NO_GPU ? change->gpu_batch
                                                                                    : change->pauses};

    use.backup_used = change->diverted || change->spare_batch > 0;
    use.backup_mark = change->diverted ? change->pauses : change->spare_batch;
    return use;
}

static void take_back(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_change *change = (struct server_change *)message;
    const struct partition_planner_use use = use_of(change);

    change->grant->buffer_bytes -= change->freed_bytes;
    planner->buffer_bytes -= change->freed_bytes;
    partition_planner_changed(planner->inner, change->grant->stream, end_of(change), &use, change->movable);
    free(change);
}

void server_planner_drop_changes(struct server_planner *planner)
{
    while (planner->changes != NULL) {
        struct server_change *change = planner->changes;
        planner->changes = change->next;
        free(change);
    }
}

/* ---- from the I/O threads ---- */

void server_planner_change(struct server_planner *planner, struct server_change *change)
{
    change->message.run = wait_for_turn;
    server_mailbox_post(&planner->mailbox, &change->message);
}

void server_planner_changed(struct server_planner *planner, struct server_change *change)
{
    change->message.run = take_back;
    server_mailbox_post(&planner->mailbox, &change->message);
}
