/* Other contracts for admitted streams: asked for, granted, given back. */
#include "server/planner/internal.h"

#include <stdlib.h>

static void refuse(struct server_modify *modify, enum protocol_refusal refusal, const char *text)
{
    modify->refusal = refusal;
    modify->refusal_text = text;
}

/* ---- the decision ---- */

/* A block for what is missing; one for all where that is less than half of what the stream has. False: there
 * is no room for that. */
static bool reserve_memory(const struct server_planner *planner, struct server_modify *modify, uint32_t unit)
{
    struct server_memory_request *memory = &modify->memory;
    uint32_t wanted = server_planner_queue_packets(planner, &modify->spec, unit, &modify->movable);
    uint32_t has = modify->has_packets;

    modify->replaces = wanted < has / 2;
    memory->packets = modify->replaces ? wanted : wanted > has ? wanted - has : 0;
    memory->bytes =
        memory->packets > 0 ? planner->stream_ops->buffer_bytes(&modify->spec, memory->packets) : 0;
    return planner->stream_ops->buffer_bytes(&modify->spec, wanted) != UINT64_MAX &&
           server_planner_has_memory(planner, memory->bytes);
}

static bool change_in_place(struct server_planner *planner, struct server_modify *modify)
{
    struct admission_placement *placement = &modify->placement;

    if (partition_planner_change(planner->inner, modify->reservation->stream, &modify->spec, modify,
                                 placement, &modify->agreed) != CORE_OK) {
        refuse(modify, PROTOCOL_REFUSED_INTERNAL, "the stream's unit can not be evaluated now; retry");
        return false;
    }
    if (!placement->accepted) {
        refuse(modify, PROTOCOL_REFUSED_CAPACITY, NULL);
        return false;
    }
    modify->backup = server_planner_backup_of(placement);
    modify->has_backup = placement->backup_unit != ADMISSION_NONE;
    return true;
}

struct memory_question {
    const struct server_planner *planner;
    struct server_modify *modify;
};

static bool fits(void *context, uint32_t unit, bool *movable)
{
    const struct memory_question *question = context;
    bool fit = reserve_memory(question->planner, question->modify, unit);

    *movable = question->modify->movable;
    return fit;
}

static bool change_elsewhere(struct server_planner *planner, struct server_modify *modify)
{
    struct memory_question question = {.planner = planner, .modify = modify};
    const struct partition_planner_memory memory = {.fits = fits, .context = &question};
    struct admission_placement placement;

    if (!partition_planner_change_elsewhere(planner->inner, modify->reservation->stream, &modify->spec,
                                            &memory, SERVER_MODIFY_TIMEOUT_NS, modify, core_time_now_ns(),
                                            &placement))
        return false;
    modify->stays = modify->placement;
    modify->placement = placement;
    modify->elsewhere = modify->agreed = true;
    modify->refusal = 0;
    return true;
}

static bool find_room(struct server_planner *planner, struct server_modify *modify)
{
    if (!reserve_memory(planner, modify, modify->reservation->unit)) {
        refuse(modify, PROTOCOL_REFUSED_LIMIT, server_planner_no_room);
        return false;
    }
    return change_in_place(planner, modify) || (modify->refusal == PROTOCOL_REFUSED_CAPACITY &&
                                                !planner->cut && change_elsewhere(planner, modify));
}

static bool may_change(const struct server_planner *planner, struct server_modify *modify)
{
    static const char *const busy[] = {
        [PARTITION_PLANNER_SUPERSEDED] = "the stream was migrated in the meantime; retry",
        [PARTITION_PLANNER_MIGRATING] = "the stream is migrating to another unit; retry",
        [PARTITION_PLANNER_GPU_OUT] = "the stream's GPU is out of service; retry when it is back",
        [PARTITION_PLANNER_BACKUP_GPU_OUT] =
            "the GPU that holds the stream's backup is out of service; retry when it is back"};
    enum partition_planner_readiness readiness =
        partition_planner_readiness(planner->inner, modify->reservation->stream);

    if (server_planner_is_gone(&modify->turn))
        refuse(modify, PROTOCOL_REFUSED_STREAM, "the connection is gone");
    else if (atomic_load_explicit(&planner->server->draining, memory_order_relaxed))
        refuse(modify, PROTOCOL_REFUSED_DRAINING, "the server is stopping; connect to another one");
    else if (readiness != PARTITION_PLANNER_READY)
        refuse(modify, PROTOCOL_REFUSED_BUSY, busy[readiness]);
    return modify->refusal == 0;
}

/* ---- the list of those that wait for plans ---- */

static void enlist(struct server_planner *planner, struct server_modify *modify)
{
    modify->next = planner->modifies;
    planner->modifies = modify;
}

static void delist(struct server_planner *planner, const struct server_modify *modify)
{
    struct server_modify **link = &planner->modifies;
    while (*link != modify)
        link = &(*link)->next;
    *link = modify->next;
}

static void answer(struct server_planner *planner, struct server_modify *modify)
{
    modify->message.run = modify->answered;
    modify->memory.spec = &modify->spec;
    modify->memory.answer = &modify->message;
    modify->memory.reply = modify->reply;
    if (modify->refusal != 0)
        modify->memory.packets = 0;
    server_memory_make(planner->memory, &modify->memory, planner->buffer_bytes);
}

void server_planner_agreed(void *host, void *agreed, bool lacking)
{
    struct server_modify *modify = agreed;

    delist(host, agreed);
    modify->lacking = lacking;
    answer(host, agreed);
}

static void grant_change(struct server_planner *planner, struct server_modify *modify)
{
    struct server_reservation *reservation = modify->reservation;

    reservation->buffer_bytes += modify->memory.bytes;
    planner->buffer_bytes += modify->memory.bytes;
    server_planner_publish(planner, reservation->unit, reservation->io);
    if (modify->agreed)
        answer(planner, modify);
    else
        enlist(planner, modify);
}

static void decide(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_modify *modify = (struct server_modify *)message;

    modify->refusal = 0;
    server_planner_begin_turn(planner, &modify->turn);
    bool granted = may_change(planner, modify) && find_room(planner, modify);
    if (server_planner_put_off(planner, message))
        return;
    partition_planner_drop(planner->inner, modify->reservation->stream);
    modify->decided_ns = core_time_now_ns() - modify->received_ns;
    if (granted)
        grant_change(planner, modify);
    else
        answer(planner, modify);
}

/* The reservation stays until it is decided, also if the stream ends or goes to another unit meanwhile. */
static void wait_for_turn(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_modify *modify = (struct server_modify *)message;

    partition_planner_ask(planner->inner, modify->reservation->stream);
    message->run = decide;
    server_turns_add(&planner->turns, SERVER_TURNS_DECIDE, modify->turn.asker, message);
}

/* ---- in force, given up, or gone ---- */

static enum partition_planner_end end_of(const struct server_modify *modify)
{
    switch (modify->outcome) {
    case SERVER_MODIFY_IN_FORCE:
        return PARTITION_PLANNER_IN_FORCE;
    case SERVER_MODIFY_TIMED_OUT:
        return PARTITION_PLANNER_GIVEN_UP;
    default:
        return PARTITION_PLANNER_CLOSING;
    }
}

static void take_back(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_modify *modify = (struct server_modify *)message;

    modify->reservation->buffer_bytes -= modify->freed_bytes;
    planner->buffer_bytes -= modify->freed_bytes;
    partition_planner_changed(planner->inner, modify->reservation->stream, end_of(modify), &modify->use,
                              modify->movable);
    free(modify);
}

void server_planner_drop_modifies(struct server_planner *planner)
{
    while (planner->modifies != NULL) {
        struct server_modify *modify = planner->modifies;
        planner->modifies = modify->next;
        free(modify);
    }
}

/* ---- from the I/O threads ---- */

void server_planner_modify(struct server_planner *planner, struct server_modify *modify)
{
    modify->message.run = wait_for_turn;
    server_mailbox_post(&planner->mailbox, &modify->message);
}

void server_planner_modified(struct server_planner *planner, struct server_modify *modify)
{
    modify->message.run = take_back;
    server_mailbox_post(&planner->mailbox, &modify->message);
}
