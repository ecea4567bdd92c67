/* Other contracts for admitted streams whose own unit refuses: on another unit, as newcomers there. */
#include "server/planner/internal.h"

/* Enters the stream as a newcomer with its new contract, as admission would; no unit holds anything of it yet
 * but the standing plan. A guaranteed one goes to workers alone. */
static bool admit(struct server_planner *planner, const struct server_change *change,
                  struct partition_standing_placement *placement)
{
    struct partition_standing *standing = planner->standing;
    const struct core_stream_spec *spec = &change->spec;
    uint32_t io = change->grant->io;

    if (partition_standing_query(standing, spec, io, false, placement, NULL) != CORE_OK ||
        !placement->accepted || (spec->guaranteed && server_planner_is_gpu(planner, placement->unit)) ||
        server_planner_reserve(planner) != CORE_OK)
        return false;
    return partition_standing_admit(standing, spec, io, 0, placement, NULL) == CORE_OK && placement->accepted;
}

/* The change tells of everything but this itself, and may be gone. */
static void returned(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_order *order = (struct server_order *)message;
    struct server_grant *from = order->from, *to = order->to;
    struct server_change *change = order->owner;

    if (server_planner_moved(planner, order) != SERVER_ORDER_MOVED)
        return;
    to->buffer_bytes = from->buffer_bytes;
    to->movable = change->movable;
    to->home = SERVER_NO_GPU;
    to->change = change;
    change->grant = to;
    from->change = NULL;
}

bool server_planner_change_elsewhere(struct server_planner *planner, struct server_change *change)
{
    struct partition_standing_placement placement;
    struct server_planner_move move = {
        .grant = change->grant, .patience_ns = SERVER_CHANGE_PATIENCE_NS, .owner = change};
    char reason[256];

    if (!admit(planner, change, &placement))
        return false;
    move.to = placement.unit;
    struct server_order *order = server_planner_change_memory(planner, change, placement.unit)
                                     ? server_planner_order_create(planner, &move)
                                     : NULL;
    if (order == NULL) {
        partition_standing_release(planner->standing, placement.stream);
        return false;
    }
    order->to->stream = placement.stream;
    order->changes = true;
    if (!server_planner_order_settle(planner, order, reason, sizeof reason)) {
        server_planner_order_destroy(order);
        return false;
    }
    server_planner_order_begin(planner, order, returned);
    change->stays = change->placement;
    change->placement = placement;
    change->order = order;
    change->elsewhere = true;
    change->refusal = 0;
    return true;
}
