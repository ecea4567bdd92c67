/* Other contracts for admitted streams, in place: asked for, in force, settled. */
#include "server/planner/internal.h"
#include "server/stream/stream.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static void refuse(struct server_change *change, enum protocol_refusal refusal, const char *text)
{
    change->refusal = refusal;
    change->refusal_text = text;
}

/* What the standing plan charges for the stream. */
static struct core_stream_spec charge_of(const struct server_planner *planner,
                                         const struct server_grant *grant)
{
    return partition_standing_stream_of(planner->standing, grant->stream).spec;
}

/* The stream keeps the contract that it had: less than what is charged, so that nobody can refuse it. */
static void put_back(struct server_planner *planner, const struct server_grant *grant,
                     const struct core_stream_spec *before)
{
    struct partition_standing_placement placement;
    core_status status =
        partition_standing_change(planner->standing, grant->stream, before, &placement, NULL);
    assert(status == CORE_OK && placement.accepted);
    (void)status;
}

static uint32_t backup_of(const struct server_planner *planner, const struct server_grant *grant)
{
    return partition_standing_stream_of(planner->standing, grant->stream).backup_unit;
}

static core_ns period_of(const struct server_planner *planner, uint32_t unit)
{
    return partition_standing_gpu_at(planner->standing, server_unit_gpu(planner->server, unit)).period_ns;
}

/* Does no GPU get another period with this placement? A backup on a GPU that has one is only ever asked for
 * at that. */
static bool keeps_periods(const struct server_planner *planner,
                          const struct partition_standing_placement *placement)
{
    uint32_t backup = placement->backup_unit;
    return placement->period_ns == period_of(planner, placement->unit) &&
           (!server_planner_is_gpu(planner, backup) ||
            placement->backup_period_ns == period_of(planner, backup));
}

/* Would its backup stay where it is, and the periods of its GPU and the backup's? A backup that has to move
 * would leave its room before the I/O thread knows. And where the batches have no room for another period,
 * what was charged for it would stay: a d_g that is kept at that period only. */
static bool keeps_backup(struct server_planner *planner, struct server_change *change)
{
    uint32_t unit = backup_of(planner, change->grant);
    struct partition_standing_placement *placement = &change->placement;

    if (unit == PARTITION_STANDING_NONE ||
        partition_standing_change_query(planner->standing, change->grant->stream, &change->spec, false,
                                        placement, NULL) != CORE_OK ||
        !placement->accepted || (placement->backup_unit == unit && keeps_periods(planner, placement)))
        return true;
    placement->accepted = false;
    placement->constraint = PERFMODEL_LIMIT_BACKUP;
    snprintf(placement->reason, sizeof placement->reason, "%s",
             placement->backup_unit == unit
                 ? "the stream's GPU would need another batch period, which the capacity reserved for its "
                   "backup does not cover"
                 : "the unit that holds the stream's backup has no capacity for this contract");
    return false;
}

/* Asks the stream's own unit. */
static bool change_in_place(struct server_planner *planner, struct server_change *change)
{
    struct server_grant *grant = change->grant;
    struct partition_standing_placement *placement = &change->placement;
    struct partition_standing_words words;

    change->before = partition_standing_stream_of(planner->standing, grant->stream).contract;
    if (!keeps_backup(planner, change)) {
        refuse(change, PROTOCOL_REFUSED_CAPACITY, NULL);
        return false;
    }
    if (partition_standing_change(planner->standing, grant->stream, &change->spec, placement, NULL) !=
        CORE_OK) {
        refuse(change, PROTOCOL_REFUSED_INTERNAL, "the stream's unit can not be evaluated now; retry");
        return false;
    }
    if (!placement->accepted) {
        refuse(change, PROTOCOL_REFUSED_CAPACITY, NULL);
        return false;
    }
    if (grant->gpu == SERVER_NO_GPU) {
        grant->spec = charge_of(planner, grant);
        return true;
    }
    change->backup = server_planner_backup_of(placement);
    change->has_backup = placement->backup_unit != PARTITION_STANDING_NONE;
    change->plans = server_planner_plans_of(planner, grant->stream);
    if (server_planner_in_service(planner, &change->plans, &words)) {
        grant->spec = charge_of(planner, grant);
        server_planner_send_plans(planner);
        return true;
    }
    put_back(planner, grant, &change->before);
    if (grant->change == NULL)
        partition_standing_settle(planner->standing, grant->stream);
    server_planner_send_plans(planner);
    grant->spec = charge_of(planner, grant);
    server_planner_say(&words, placement);
    placement->accepted = false;
    refuse(change, PROTOCOL_REFUSED_CAPACITY, NULL);
    return false;
}

/* A block for what is missing; one for all where that is less than half of what the stream has. */
bool server_planner_change_memory(const struct server_planner *planner, struct server_change *change,
                                  uint32_t unit)
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

static bool find_room(struct server_planner *planner, struct server_change *change)
{
    if (!server_planner_change_memory(planner, change, change->grant->unit)) {
        refuse(change, PROTOCOL_REFUSED_LIMIT, server_planner_no_room);
        return false;
    }
    return change_in_place(planner, change) ||
           (change->refusal == PROTOCOL_REFUSED_CAPACITY && !planner->cut &&
            server_planner_change_elsewhere(planner, change));
}

static bool within_limits(const struct server_planner *planner, struct server_change *change)
{
    if (server_planner_is_gone(&change->turn))
        refuse(change, PROTOCOL_REFUSED_STREAM, "the connection is gone");
    else if (atomic_load_explicit(&planner->server->draining, memory_order_relaxed))
        refuse(change, PROTOCOL_REFUSED_DRAINING, "the server is stopping; connect to another one");
    else if (change->grant->second || change->grant->leaving)
        refuse(change, PROTOCOL_REFUSED_BUSY, "the stream was migrated in the meantime; retry");
    else if (backup_of(planner, change->grant) != PARTITION_STANDING_NONE &&
             planner->cards[change->grant->gpu].out)
        refuse(change, PROTOCOL_REFUSED_BUSY, "the stream's GPU is out of service; retry when it is back");
    else if (change->grant->spare.gpu != SERVER_NO_GPU && planner->cards[change->grant->spare.gpu].out)
        refuse(change, PROTOCOL_REFUSED_BUSY,
               "the GPU that holds the stream's backup is out of service; retry when it is back");
    else if (change->grant->order != NULL)
        refuse(change, PROTOCOL_REFUSED_BUSY, "the stream is migrating to another unit; retry");
    else
        return true;
    return false;
}

/* ---- the list of those that the planner has ---- */

static void enlist(struct server_planner *planner, struct server_change *change)
{
    change->next = planner->changes;
    planner->changes = change;
}

static void delist(struct server_planner *planner, const struct server_change *change)
{
    struct server_change **link = &planner->changes;
    while (*link != NULL && *link != change)
        link = &(*link)->next;
    if (*link != NULL)
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

static void decide(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_change *change = (struct server_change *)message;
    struct server_grant *grant = change->grant;

    change->refusal = 0;
    server_planner_begin_turn(planner, &change->turn);
    bool granted = within_limits(planner, change) && find_room(planner, change);
    if (server_planner_put_off(planner, message))
        return;
    grant->asking = false;
    change->decided_ns = core_time_now_ns() - change->received_ns;
    if (!granted) {
        answer(planner, change);
        return;
    }
    server_planner_forget_change(planner, grant); /* the one before settles with this one */
    grant->change = change;
    grant->buffer_bytes += change->memory.bytes;
    planner->buffer_bytes += change->memory.bytes;
    server_planner_publish(planner, grant->unit, grant->io);
    if (change->order == NULL && !server_planner_plans_in_force(planner, &change->plans))
        enlist(planner, change);
    else
        answer(planner, change);
}

/* The grant stays until it is decided, also if the stream ends or goes to another unit meanwhile. */
static void wait_for_turn(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_change *change = (struct server_change *)message;

    change->grant->asking = true;
    message->run = decide;
    server_turns_add(&planner->turns, SERVER_TURNS_DECIDE, change->turn.asker, message);
}

/* ---- in force, given up, or gone ---- */

void server_planner_settle(struct server_planner *planner, struct server_grant *grant)
{
    partition_standing_settle(planner->standing, grant->stream);
    grant->spec = charge_of(planner, grant);
    server_planner_send_plans(planner);
    server_planner_publish(planner, grant->unit, grant->io);
}

static bool has_paused(const struct server_planner *planner, const struct server_change *change)
{
    const struct server_grant *grant = change->grant;
    if (change->diverted && !server_planner_worker_paused(planner, backup_of(planner, grant), change->pauses))
        return false;
    if (change->spare_batch > 0 && !server_planner_gpu_paused(planner, grant->spare.gpu, change->spare_batch))
        return false;
    if (!change->worked)
        return true;
    if (grant->gpu != SERVER_NO_GPU)
        return server_planner_gpu_paused(planner, grant->gpu, change->gpu_batch);
    return server_planner_worker_paused(planner, grant->unit, change->pauses);
}

static void take_back(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_change *change = (struct server_change *)message;
    struct server_grant *grant = change->grant;

    grant->buffer_bytes -= change->freed_bytes;
    planner->buffer_bytes -= change->freed_bytes;
    if (change->outcome == SERVER_CHANGE_GONE) {
        grant->change = NULL; /* all that is charged is released with the grant */
        free(change);
        return;
    }
    if (change->outcome == SERVER_CHANGE_GIVEN_UP && !change->elsewhere)
        put_back(planner, grant, &change->before);
    if (change->outcome == SERVER_CHANGE_IN_FORCE)
        grant->movable = change->movable;
    change->settling = true;
    enlist(planner, change);
}

void server_planner_forget_change(struct server_planner *planner, struct server_grant *grant)
{
    struct server_change *change = grant->change;

    if (change == NULL)
        return;
    assert(change->settling); /* with the I/O thread it holds the grant */
    delist(planner, change);
    grant->change = NULL;
    free(change);
}

void server_planner_sweep_changes(struct server_planner *planner)
{
    struct server_change *change = planner->changes, *next;

    for (; change != NULL; change = next) {
        struct server_grant *grant = change->grant;
        next = change->next;
        if (!change->settling) {
            if (!server_planner_plans_in_force(planner, &change->plans))
                continue;
            delist(planner, change);
            answer(planner, change);
        } else if (has_paused(planner, change)) {
            server_planner_settle(planner, grant);
            server_planner_forget_change(planner, grant);
        }
    }
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
