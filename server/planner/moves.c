/* Streams from one unit to another: room for them there, and the order to their I/O threads. */
#include "core/log.h"
#include "server/io_thread.h"
#include "server/planner/internal.h"
#include "server/stream/gpu_stream.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- orders ---- */

static const char *describe_unit(const struct server_planner *planner, uint32_t unit, char *text, size_t size)
{
    if (server_planner_is_gpu(planner, unit))
        snprintf(text, size, "GPU %u", server_unit_gpu(planner->server, unit));
    else
        snprintf(text, size, "worker %u", unit);
    return text;
}

/* As a field of the log. */
static void name_unit(const struct server_planner *planner, uint32_t unit, char *text, size_t size)
{
    if (server_planner_is_gpu(planner, unit))
        snprintf(text, size, "gpu-%u", server_unit_gpu(planner->server, unit));
    else
        snprintf(text, size, "cpu-%u", unit);
}

/* What the new unit's worker is to schedule by. A GPU's stand-by worker promises nothing, so that a contract
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

void server_planner_order_destroy(struct server_order *order)
{
    if (order == NULL)
        return;
    server_gpu_stream_destroy(order->place);
    server_gpu_stream_destroy(order->spare);
    free(order->catch_up);
    free(order->to);
    free(order);
}

struct server_order *server_planner_order_create(struct server_planner *planner,
                                                 const struct server_planner_move *move)
{
    const struct server_grant *from = move->grant;
    bool gpu = server_planner_is_gpu(planner, move->to);
    struct server_order *order = calloc(1, sizeof *order);
    if (order == NULL)
        return NULL;
    order->to = calloc(1, sizeof *order->to);
    order->place = gpu ? server_gpu_stream_create(0) : NULL;
    if (order->to == NULL || (gpu && order->place == NULL)) {
        server_planner_order_destroy(order);
        return NULL;
    }
    *order->to = (struct server_grant){
        .unit = move->to,
        .gpu = gpu ? server_unit_gpu(planner->server, move->to) : SERVER_NO_GPU,
        .spec = from->spec,
        .backup.unit = PARTITION_STANDING_NONE,
        .spare = {.gpu = SERVER_NO_GPU, .slot = SERVER_GPU_NO_SLOT},
        .io = from->io,
        .buffer_bytes = from->buffer_bytes,
        .movable = from->movable,
        .home = gpu && from->home == server_unit_gpu(planner->server, move->to) ? SERVER_NO_GPU : from->home,
        .home_period_ns = from->home_period_ns,
        .second = true,
        .gpu_slot = SERVER_GPU_NO_SLOT};
    order->from = move->grant;
    order->hold_from_ns = CORE_NS_NEVER;
    order->until_ns = core_time_now_ns() + move->patience_ns;
    order->owner = move->owner;
    return order;
}

/* What the stream is charged for there, and what its worker, or the one of its backup, is to schedule. False:
 * its backup is not on a worker. */
static bool fill_in(const struct server_planner *planner, struct server_order *order)
{
    struct server_grant *to = order->to;
    const struct partition_standing_placement placement =
        partition_standing_placement_of(planner->standing, to->stream);
    const struct partition_standing_stream stream =
        partition_standing_stream_of(planner->standing, to->stream);
    bool backed = placement.backup_unit != PARTITION_STANDING_NONE, gpu = to->gpu != SERVER_NO_GPU;

    to->spec = stream.spec;
    to->backup = server_planner_backup_of(&placement);
    order->task = task_of(planner->server, &stream.contract, gpu);
    order->late_task = task_of(planner->server, &stream.spec, gpu);
    if (backed) {
        order->task = placement.backup_task;
        order->task.spacing_ns = 0; /* a batch takes packets as they may go */
    }
    return !backed || !server_planner_is_gpu(planner, placement.backup_unit);
}

bool server_planner_order_settle(struct server_planner *planner, struct server_order *order, char *reason,
                                 size_t size)
{
    struct partition_standing_words words;
    struct server_grant *to = order->to;

    if (!fill_in(planner, order)) {
        snprintf(reason, size, "no worker has capacity for its backup");
        partition_standing_release(planner->standing, to->stream);
        server_planner_send_plans(planner);
        return false;
    }
    struct server_planner_plans plans = server_planner_plans_of(planner, to->stream);
    if (server_planner_in_service(planner, &plans, &words)) {
        server_planner_send_plans(planner);
        if (order->place != NULL)
            order->place->key.plan = plans.number[0];
        return true;
    }
    snprintf(reason, size, "%s", words.reason);
    partition_standing_release(planner->standing, to->stream);
    server_planner_send_plans(planner);
    return false;
}

/* ---- packets that may be held ---- */

/* What A keeps is known if its plan is in force; and held packets have to be somewhere. */
static bool may_hold(const struct server_planner *planner, const struct server_grant *from)
{
    if (!from->movable)
        return false;
    return from->gpu == SERVER_NO_GPU ||
           (!planner->cards[from->gpu].out && server_gpu_in_service(planner->server->gpus[from->gpu]) &&
            server_gpu_plan_in_force(planner->server->gpus[from->gpu]) ==
                server_planner_batches(planner, from->gpu)->number);
}

/* An idle moment delays nothing, and most streams have one; what a GPU has had before it was charged is back
 * within the latency bound. */
static core_ns wait_ns(const struct server_planner_move *move, core_ns latency_ns)
{
    core_ns half_ns = move->patience_ns / 2;
    if (half_ns < latency_ns)
        return latency_ns;
    return half_ns < 2 * latency_ns ? half_ns : 2 * latency_ns;
}

/* Room for the stream was taken at the new unit: both units are charged for packets being held, if they can
 * be (partition_standing_hold). */
static void charge_hold(struct server_planner *planner, const struct server_planner_move *move,
                        struct server_order *order)
{
    struct server_grant *from = order->from;
    core_ns batches_ns =
        from->gpu != SERVER_NO_GPU ? server_planner_batches(planner, from->gpu)->latency_ns : 0;
    core_ns wait =
        wait_ns(move, partition_standing_stream_of(planner->standing, from->stream).contract.latency_ns);
    bool may = may_hold(planner, from) && wait < move->patience_ns;
    struct server_change *catch_up = may ? calloc(1, sizeof *catch_up) : NULL;

    if (catch_up == NULL ||
        !partition_standing_hold(planner->standing, order->to->stream, batches_ns, &order->hold_ns)) {
        free(catch_up);
        return;
    }
    from->spec = partition_standing_stream_of(planner->standing, from->stream).spec;
    catch_up->grant = order->to;
    catch_up->movable = order->to->movable;
    order->catch_up = catch_up;
    order->hold_from_ns = core_time_now_ns() + wait;
}

/* ---- making a move ---- */

static bool enter(struct server_planner *planner, const struct server_planner_move *move,
                  struct server_order *order, char *reason, size_t size)
{
    struct core_error error = {""};

    if (server_planner_reserve(planner) == CORE_OK &&
        partition_standing_move(planner->standing, move->grant->stream, move->to, move->period_ns,
                                &order->to->stream, &error) == CORE_OK) {
        server_planner_send_plans(planner);
        return true;
    }
    snprintf(reason, size, "%s", error.text[0] != '\0' ? error.text : "the server is out of memory");
    return false;
}

/* Takes room at the new unit for the stream of the order: for packets that are held, if it has that. */
static bool take_room(struct server_planner *planner, const struct server_planner_move *move,
                      struct server_order *order, char *reason, size_t size)
{
    if (!enter(planner, move, order, reason, size))
        return false;
    charge_hold(planner, move, order);
    if (server_planner_order_settle(planner, order, reason, size))
        return true;
    if (order->catch_up != NULL)
        server_planner_settle(planner, order->from);
    return false;
}

void server_planner_order_begin(struct server_planner *planner, struct server_order *order,
                                void (*returned)(void *planner, struct server_message *message))
{
    server_planner_enter(planner, order->to);
    order->returned = returned;
    order->from->order = order;
    order->next = planner->orders;
    planner->orders = order;
}

bool server_planner_move(struct server_planner *planner, const struct server_planner_move *move,
                         void (*returned)(void *planner, struct server_message *message), char *reason,
                         size_t size)
{
    if (move->grant->order != NULL || move->grant->change != NULL || move->grant->second ||
        move->grant->leaving) {
        snprintf(reason, size, "the stream is already migrating or being modified, or it is closing");
        return false;
    }
    if (server_planner_is_gpu(planner, move->to) && !move->grant->movable) {
        snprintf(reason, size, "the packet memory reserved for the stream is enough for workers only");
        return false;
    }
    struct server_order *order = server_planner_order_create(planner, move);
    if (order == NULL) {
        snprintf(reason, size, "the server is out of memory");
        return false;
    }
    if (!take_room(planner, move, order, reason, size)) {
        server_planner_order_destroy(order);
        return false;
    }
    server_planner_order_begin(planner, order, returned);
    server_route_order(server_io_mailbox(planner->server->ios[order->from->io]), order);
    return true;
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

static void log_stayed(const struct server_planner *planner, uint32_t to, const char *reason)
{
    char text[32], unit[24];
    const struct core_log_fields fields = {.unit = unit};

    name_unit(planner, to, unit, sizeof unit);
    core_log_with(CORE_LOG_DEBUG, "stream.stayed", &fields, "not migrated: %s refused the stream: %s",
                  describe_unit(planner, to, text, sizeof text), reason);
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

/* Where packets may be late, the stream's I/O thread gives the change back in time. Else nobody is any more,
 * nor was, served as it was charged for that: at the new unit, or at the old one where it stays. */
static void end_hold(struct server_planner *planner, struct server_order *order, struct server_grant *grant)
{
    if (order->late) {
        grant->change = order->catch_up;
        order->catch_up = NULL;
    } else if (order->catch_up != NULL)
        server_planner_settle(planner, grant);
}

enum server_order_outcome server_planner_moved(struct server_planner *planner, struct server_order *order)
{
    enum server_order_outcome outcome = order->outcome;

    log_move(planner, order);
    count_move(&planner->figures, order);
    take_off_list(planner, order);
    order->from->order = NULL; /* its room is free when its unit has paused */
    if (outcome == SERVER_ORDER_MOVED) {
        order->from->second = true;
        order->to->second = false;
        end_hold(planner, order, order->to);
        if (order->to->gpu != SERVER_NO_GPU && planner->cards[order->to->gpu].out)
            server_planner_look_again(planner,
                                      order->to->gpu); /* it went out while packets were held for it */
    } else {
        end_hold(planner, order, order->from);
        server_planner_release(planner, order->to); /* never used */
    }
    order->to = NULL;
    server_planner_order_destroy(order);
    return outcome;
}

void server_planner_drop_orders(struct server_planner *planner)
{
    while (planner->orders != NULL) {
        struct server_order *order = planner->orders;
        planner->orders = order->next;
        server_planner_order_destroy(order);
    }
}

/* ---- shifts ---- */

static struct server_grant *find_on(const struct server_planner *planner, uint32_t unit)
{
    for (uint32_t n = 0; n < planner->grant_capacity; n++) {
        struct server_grant *grant = planner->grants[n];
        if (grant != NULL && grant->unit == unit && grant->order == NULL && grant->change == NULL &&
            !grant->second && !grant->leaving)
            return grant;
    }
    return NULL;
}

static void shift_on(struct server_planner *planner, struct server_shift *shift);

static void shift_returned(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_order *order = (struct server_order *)message;
    struct server_shift *shift = order->owner;

    if (server_planner_moved(planner, order) == SERVER_ORDER_MOVED)
        shift->moved++;
    shift_on(planner, shift);
}

/* The next one, or the end. */
static void shift_on(struct server_planner *planner, struct server_shift *shift)
{
    char reason[256];
    struct server_grant *grant = shift->asked < shift->streams ? find_on(planner, shift->from) : NULL;
    struct server_planner_move move = {
        .grant = grant, .to = shift->to, .patience_ns = shift->patience_ns, .owner = shift};

    if (grant != NULL && server_planner_is_gpu(planner, shift->to))
        move.period_ns =
            partition_standing_gpu_at(planner->standing, server_unit_gpu(planner->server, shift->to))
                .period_ns;
    if (grant != NULL && move.period_ns == 0)
        move.period_ns = grant->spec.latency_ns / 4;
    if (grant != NULL && server_planner_move(planner, &move, shift_returned, reason, sizeof reason)) {
        shift->asked++;
        return;
    }
    if (grant != NULL)
        log_stayed(planner, shift->to, reason);
    shift->answered(shift);
}

static void take_shift(void *owner, struct server_message *message)
{
    struct server_shift *shift = (struct server_shift *)message;
    shift->asked = shift->moved = 0;
    shift_on(owner, shift);
}

void server_planner_shift(struct server_planner *planner, struct server_shift *shift)
{
    shift->message.run = take_shift;
    server_mailbox_post(&planner->mailbox, &shift->message);
}
