/* Migrations: what the planner has decided about a stream's unit, for its I/O thread; and its outcome. */
#include "core/log.h"
#include "server/planner/internal.h"

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

/* ---- messages ---- */

static void destroy_migration(const struct server_planner *planner, struct server_migration *migration)
{
    if (migration == NULL)
        return;
    planner->stream_ops->destroy_binding(migration->place);
    planner->stream_ops->destroy_binding(migration->secondary);
    free(migration->catch_up);
    free(migration->to);
    free(migration);
}

/* All that it needs; NULL without memory. */
static struct server_migration *allocate_migration(const struct server_planner *planner,
                                                   const struct partition_planner_migration *wanted)
{
    bool gpu = server_planner_is_gpu(planner, wanted->unit), holds = wanted->hold_ns > 0;
    struct server_migration *migration = calloc(1, sizeof *migration);

    if (migration == NULL)
        return NULL;
    migration->to = calloc(1, sizeof *migration->to);
    migration->place = gpu ? planner->stream_ops->create_binding(wanted->plan) : NULL;
    migration->catch_up = holds ? calloc(1, sizeof *migration->catch_up) : NULL;
    if (migration->to != NULL && (!gpu || migration->place != NULL) &&
        (!holds || migration->catch_up != NULL))
        return migration;
    destroy_migration(planner, migration);
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
static void fill_in(struct server_planner *planner, struct server_migration *migration)
{
    const struct admission *admission = partition_planner_admission(planner->inner);
    struct server_reservation *to = migration->to;
    const struct admission_placement placement = admission_placement_of(admission, to->stream);
    const struct admission_stream stream = admission_stream_of(admission, to->stream);
    bool gpu = to->gpu != SERVER_NO_GPU;

    to->backup = server_planner_backup_of(&placement);
    migration->task = task_of(planner->server, &stream.contract, gpu);
    migration->late_task = task_of(planner->server, &stream.spec, gpu);
    if (placement.backup_unit != ADMISSION_NONE) {
        migration->task = placement.backup_task;
        migration->task.spacing_ns = 0; /* a batch takes packets as they may go */
    }
}

static void returned(void *owner, struct server_message *message);

static struct server_migration *make_migration(struct server_planner *planner,
                                               const struct partition_planner_migration *wanted)
{
    uint32_t gpu = server_planner_gpu_of(planner, wanted->unit);
    struct server_reservation *from = wanted->from_owner;
    struct server_migration *migration = allocate_migration(planner, wanted);

    if (migration == NULL)
        return NULL;
    *migration->to =
        (struct server_reservation){.stream = wanted->to,
                                    .unit = wanted->unit,
                                    .gpu = gpu,
                                    .secondary = {.gpu = SERVER_NO_GPU, .slot = SERVER_GPU_NO_SLOT},
                                    .io = from->io,
                                    .mailbox = from->mailbox,
                                    .buffer_bytes = from->buffer_bytes,
                                    .gpu_slot = SERVER_GPU_NO_SLOT};
    migration->from = from;
    migration->returned = returned;
    migration->modifies = wanted->changes_contract;
    migration->owner = wanted->purpose;
    migration->hold_ns = wanted->hold_ns;
    migration->hold_from_ns = wanted->hold_from_ns;
    migration->until_ns = wanted->until_ns;
    fill_in(planner, migration);
    if (migration->catch_up != NULL)
        migration->catch_up->reservation = migration->to;
    return migration;
}

/* To the I/O thread of its stream. */
static void send(const struct server_planner *planner, struct server_migration *migration)
{
    migration->message.run = planner->stream_ops->migrate;
    server_mailbox_post(migration->from->mailbox, &migration->message);
}

void *server_planner_migrate(void *host, const struct partition_planner_migration *wanted)
{
    struct server_planner *planner = host;
    struct server_migration *migration = make_migration(planner, wanted);

    if (migration == NULL)
        return NULL;
    migration->next = planner->migrations;
    planner->migrations = migration;
    server_planner_count_backup(planner, migration->to, 1);
    if (migration->modifies)
        ((struct server_modify *)wanted->purpose)->migration = migration;
    else
        send(planner, migration);
    return migration->to;
}

/* ---- what became of it ---- */

static void log_move(const struct server_planner *planner, const struct server_migration *migration)
{
    char from[32], to[32], unit[24];
    const struct core_log_fields fields = {
        .connection = migration->connection, .stream = migration->number, .unit = unit};

    name_unit(planner, migration->to->unit, unit, sizeof unit);
    (void)describe_unit(planner, migration->from->unit, from, sizeof from);
    (void)describe_unit(planner, migration->to->unit, to, sizeof to);
    if (migration->outcome == SERVER_MIGRATION_DONE)
        core_log_with(CORE_LOG_DEBUG, "stream.moved", &fields,
                      "migrated from %s to %s; packets were held for %.3f ms", from, to,
                      (double)migration->held_ns / 1e6);
    else if (migration->outcome == SERVER_MIGRATION_TIMED_OUT)
        core_log_with(CORE_LOG_DEBUG, "stream.stayed", &fields,
                      "migration from %s to %s timed out: the stream never drained", from, to);
}

static void count_move(struct server_planner_figures *figures, const struct server_migration *migration)
{
    server_stats_add(&figures->moved, migration->outcome == SERVER_MIGRATION_DONE ? 1 : 0);
    server_stats_add(&figures->stayed, migration->outcome == SERVER_MIGRATION_TIMED_OUT ? 1 : 0);
    if (migration->outcome == SERVER_MIGRATION_DONE &&
        migration->held_ns > atomic_load_explicit(&figures->held_max_ns, memory_order_relaxed))
        atomic_store_explicit(&figures->held_max_ns, migration->held_ns, memory_order_relaxed);
}

static void take_off_list(struct server_planner *planner, const struct server_migration *migration)
{
    struct server_migration **link = &planner->migrations;
    while (*link != migration)
        link = &(*link)->next;
    *link = migration->next;
}

static enum partition_planner_outcome outcome_of(const struct server_migration *migration)
{
    switch (migration->outcome) {
    case SERVER_MIGRATION_DONE:
        return PARTITION_PLANNER_MOVED;
    case SERVER_MIGRATION_TIMED_OUT:
        return PARTITION_PLANNER_STAYED;
    default:
        return PARTITION_PLANNER_GONE;
    }
}

/* The stream has its new contract under the new reservation. If it has not moved, the change tells of that
 * itself, and may be gone. */
static void pass_change(struct server_migration *migration)
{
    struct server_modify *modify = migration->owner;

    migration->to->buffer_bytes = migration->from->buffer_bytes;
    modify->reservation = migration->to;
}

static void returned(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_migration *migration = (struct server_migration *)message;
    bool moved = migration->outcome == SERVER_MIGRATION_DONE;

    log_move(planner, migration);
    count_move(&planner->figures, migration);
    take_off_list(planner, migration);
    partition_planner_moved(planner->inner, migration->to->stream, outcome_of(migration), migration->late);
    if (moved && migration->modifies)
        pass_change(migration);
    if (!moved)
        server_planner_release(planner, migration->to); /* never used */
    if (migration->late)
        migration->catch_up = NULL; /* the I/O thread's */
    migration->to = NULL;
    destroy_migration(planner, migration);
}

void server_planner_drop_migrations(struct server_planner *planner)
{
    while (planner->migrations != NULL) {
        struct server_migration *migration = planner->migrations;
        planner->migrations = migration->next;
        migration->to = NULL; /* goes with its reservation */
        destroy_migration(planner, migration);
    }
}
