/* Orders: what the planner has decided about a stream's unit, for its I/O thread; and what became of it. */
#include "core/log.h"
#include "server/io_thread.h"
#include "server/planner/internal.h"
#include "server/stream/gpu_stream.h"

#include <stdio.h>
#include <stdlib.h>

/* As a field of the log. */
static void name_unit(const struct server_planner *planner, uint32_t unit, char *text, size_t size)
{
    if (server_planner_is_gpu(planner, unit))
        snprintf(text, size, "gpu-%u", server_planner_gpu_of(planner, unit));
    else
        snprintf(text, size, "cpu-%u", unit);
}

static const char *describe_unit(const struct server_planner *planner, uint32_t unit, char *text, size_t size)
{
    if (server_planner_is_gpu(planner, unit))
        snprintf(text, size, "GPU %u", server_planner_gpu_of(planner, unit));
    else
        snprintf(text, size, "worker %u", unit);
    return text;
}

/* ---- orders ---- */

static void destroy_order(struct server_order *order)
{
    if (order == NULL)
        return;
    server_gpu_stream_destroy(order->place);
    server_gpu_stream_destroy(order->spare);
    free(order->catch_up);
    free(order->to);
    free(order);
}

/* All that the order needs; NULL without memory. */
static struct server_order *allocate_order(bool gpu, bool holds)
{
    struct server_order *order = calloc(1, sizeof *order);

    if (order == NULL)
        return NULL;
    order->to = calloc(1, sizeof *order->to);
    order->place = gpu ? server_gpu_stream_create(0) : NULL;
    order->catch_up = holds ? calloc(1, sizeof *order->catch_up) : NULL;
    if (order->to != NULL && (!gpu || order->place != NULL) && (!holds || order->catch_up != NULL))
        return order;
    destroy_order(order);
    return NULL;
}

/* What the new unit's worker is to schedule by. A GPU's fallback worker promises nothing, so that a contract
 * which no worker could keep will do. */
static struct perfmodel_cpu_task task_of(const struct server *server, const struct core_stream_spec *spec,
                                         bool gpu)
{
    struct perfmodel_cpu_task task;

    if (perfmodel_cpu_task_from(spec, server->profile, &task, NULL) != CORE_OK)
        task = (struct perfmodel_cpu_task){.piece_bytes = server->profile->cpu.piece_bytes,
                                           .deadline_ns = spec->latency_ns};
    if (gpu)
        task.spacing_ns = 0; /* a batch takes packets as they may go */
    return task;
}

/* What is reserved for the stream there, and what its worker, or the one of its backup, is to schedule. */
static void fill_in(struct server_planner *planner, struct server_order *order)
{
    const struct partition_standing *standing = partition_planner_standing(planner->inner);
    struct server_grant *to = order->to;
    const struct partition_standing_placement placement =
        partition_standing_placement_of(standing, to->stream);
    const struct partition_standing_stream stream = partition_standing_stream_of(standing, to->stream);
    bool gpu = to->gpu != SERVER_NO_GPU;

    to->backup = server_planner_backup_of(&placement);
    order->task = task_of(planner->server, &stream.contract, gpu);
    order->late_task = task_of(planner->server, &stream.spec, gpu);
    if (placement.backup_unit != PARTITION_STANDING_NONE) {
        order->task = placement.backup_task;
        order->task.spacing_ns = 0; /* a batch takes packets as they may go */
    }
}

static void returned(void *owner, struct server_message *message);

static struct server_order *make_order(struct server_planner *planner,
                                       const struct partition_planner_migration *wanted)
{
    uint32_t gpu = server_planner_gpu_of(planner, wanted->unit);
    struct server_grant *from = wanted->from_owner;
    struct server_order *order = allocate_order(gpu != SERVER_NO_GPU, wanted->hold_ns > 0);

    if (order == NULL)
        return NULL;
    *order->to = (struct server_grant){.stream = wanted->to,
                                       .unit = wanted->unit,
                                       .gpu = gpu,
                                       .spare = {.gpu = SERVER_NO_GPU, .slot = SERVER_GPU_NO_SLOT},
                                       .io = from->io,
                                       .buffer_bytes = from->buffer_bytes,
                                       .gpu_slot = SERVER_GPU_NO_SLOT};
    order->from = from;
    order->returned = returned;
    order->changes = wanted->changes_contract;
    order->owner = wanted->purpose;
    order->hold_ns = wanted->hold_ns;
    order->hold_from_ns = wanted->hold_from_ns;
    order->until_ns = wanted->until_ns;
    fill_in(planner, order);
    if (order->place != NULL)
        order->place->key.plan = wanted->plan;
    if (order->catch_up != NULL)
        order->catch_up->grant = order->to;
    return order;
}

void *server_planner_migrate(void *host, const struct partition_planner_migration *wanted)
{
    struct server_planner *planner = host;
    struct server_order *order = make_order(planner, wanted);

    if (order == NULL)
        return NULL;
    order->next = planner->orders;
    planner->orders = order;
    server_planner_count_backup(planner, order->to, 1);
    if (order->changes)
        ((struct server_change *)wanted->purpose)->order = order;
    else
        server_route_order(server_io_mailbox(planner->server->ios[order->from->io]), order);
    return order->to;
}

/* ---- what became of it ---- */

static void log_move(const struct server_planner *planner, const struct server_order *order)
{
    char from[32], to[32], unit[24];
    const struct core_log_fields fields = {
        .connection = order->connection, .stream = order->number, .unit = unit};

    name_unit(planner, order->to->unit, unit, sizeof unit);
    (void)describe_unit(planner, order->from->unit, from, sizeof from);
    (void)describe_unit(planner, order->to->unit, to, sizeof to);
    if (order->outcome == SERVER_ORDER_MOVED)
        core_log_with(CORE_LOG_DEBUG, "stream.moved", &fields,
                      "migrated from %s to %s; packets were held for %.3f ms", from, to,
                      (double)order->held_ns / 1e6);
    else if (order->outcome == SERVER_ORDER_GIVEN_UP)
        core_log_with(CORE_LOG_DEBUG, "stream.stayed", &fields,
                      "migration from %s to %s timed out: the stream never drained", from, to);
}

static void count_move(struct server_planner_figures *figures, const struct server_order *order)
{
    server_stats_add(&figures->moved, order->outcome == SERVER_ORDER_MOVED ? 1 : 0);
    server_stats_add(&figures->stayed, order->outcome == SERVER_ORDER_GIVEN_UP ? 1 : 0);
    if (order->outcome == SERVER_ORDER_MOVED &&
        order->held_ns > atomic_load_explicit(&figures->held_max_ns, memory_order_relaxed))
        atomic_store_explicit(&figures->held_max_ns, order->held_ns, memory_order_relaxed);
}

static void take_off_list(struct server_planner *planner, const struct server_order *order)
{
    struct server_order **link = &planner->orders;
    while (*link != order)
        link = &(*link)->next;
    *link = order->next;
}

static enum partition_planner_outcome outcome_of(const struct server_order *order)
{
    switch (order->outcome) {
    case SERVER_ORDER_MOVED:
        return PARTITION_PLANNER_MOVED;
    case SERVER_ORDER_GIVEN_UP:
        return PARTITION_PLANNER_STAYED;
    default:
        return PARTITION_PLANNER_GONE;
    }
}

/* The stream has its new contract under the new reservation. If it has not moved, the change tells of that
 * itself, and may be gone. */
static void pass_change(struct server_order *order)
{
    struct server_change *change = order->owner;

    order->to->buffer_bytes = order->from->buffer_bytes;
    change->grant = order->to;
}

static void returned(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_order *order = (struct server_order *)message;
    bool moved = order->outcome == SERVER_ORDER_MOVED;

    log_move(planner, order);
    count_move(&planner->figures, order);
    take_off_list(planner, order);
    partition_planner_moved(planner->inner, order->to->stream, outcome_of(order), order->late);
    if (moved && order->changes)
        pass_change(order);
    if (!moved)
        server_planner_release(planner, order->to); /* never used */
    if (order->late)
        order->catch_up = NULL; /* the I/O thread's */
    order->to = NULL;
    destroy_order(order);
}

void server_planner_drop_orders(struct server_planner *planner)
{
    while (planner->orders != NULL) {
        struct server_order *order = planner->orders;
        planner->orders = order->next;
        order->to = NULL; /* goes with its reservation */
        destroy_order(order);
    }
}
