/* What the planner sees of the units, tells the batchers, and shows to others. */
#include "core/log.h"
#include "server/planner/internal.h"

#include <stdlib.h>

/* ---- what units do ---- */

static bool is_quiescent(void *host, uint32_t unit, uint64_t mark)
{
    const struct server_planner *planner = host;
    const struct server *server = planner->server;

    if (server_planner_is_gpu(planner, unit))
        return server_gpu_paused(server->gpus[server_planner_gpu_of(planner, unit)]) > mark;
    const struct cpu_scheduler_counters *counters = cpu_worker_counters(server->workers[unit]);
    return atomic_load_explicit(&counters->pauses, memory_order_relaxed) > mark;
}

static bool in_service(void *host, uint32_t gpu)
{
    const struct server_planner *planner = host;
    return server_gpu_in_service(planner->server->gpus[gpu]);
}

static uint64_t plan_in_force(void *host, uint32_t gpu)
{
    const struct server_planner *planner = host;
    return server_gpu_plan_in_force(planner->server->gpus[gpu]);
}

static bool plan_lacks(void *host, uint32_t gpu, uint64_t number)
{
    const struct server_planner *planner = host;
    return server_gpu_plan_lacks(planner->server->gpus[gpu], number);
}

static bool put_plan(void *host, uint32_t gpu, const struct partition_gpu_plan *plan)
{
    struct server_planner *planner = host;
    return server_gpu_put_plan(planner->server->gpus[gpu], plan);
}

/* ---- what is shown ---- */

static void publish_worker(struct server_planner *planner, uint32_t worker)
{
    const struct admission *admission = partition_planner_admission(planner->inner);
    struct admission_worker load = admission_worker_at(admission, worker);
    struct server_planner_load *target = &planner->worker_loads[worker];

    atomic_store_explicit(&target->streams, load.streams, memory_order_relaxed);
    atomic_store_explicit(&target->utilisation_ppb, load.utilisation_ppb, memory_order_relaxed);
    atomic_store_explicit(&target->headroom_ppb, load.headroom_ppb, memory_order_relaxed);
    atomic_store_explicit(&target->reserved_ppb, load.reserved_ppb, memory_order_relaxed);
}

/* A GPU's load is its batcher's. */
void server_planner_publish(struct server_planner *planner, uint32_t unit, uint32_t io)
{
    const struct admission *admission = partition_planner_admission(planner->inner);

    if (!server_planner_is_gpu(planner, unit))
        publish_worker(planner, unit);
    atomic_store_explicit(&planner->io_loads[io].utilisation_ppb, admission_io_ppb(admission, io),
                          memory_order_relaxed);
}

static void charged(void *host, uint32_t unit, uint32_t io)
{
    server_planner_publish(host, unit, io);
}

void server_planner_count_backup(struct server_planner *planner, const struct server_reservation *reservation,
                                 uint64_t more)
{
    if (reservation->backup.unit >= planner->server->worker_count)
        return;
    server_stats_add(&planner->worker_loads[reservation->backup.unit].backups, more);
    publish_worker(planner, reservation->backup.unit);
}

static void reclaimed(void *host, void *owner, bool superseded)
{
    struct server_planner *planner = host;
    struct server_reservation *reservation = owner;

    server_planner_count_backup(planner, reservation, (uint64_t)-1);
    if (!superseded) {
        planner->streams--;
        planner->buffer_bytes -= reservation->buffer_bytes;
    }
    free(reservation);
}

static void service(void *host, uint32_t gpu, bool out)
{
    const struct server_planner *planner = host;
    const char *name = server_gpu_name(planner->server->gpus[gpu]);

    core_log_with(CORE_LOG_INFO, "planner.gpu", &(struct core_log_fields){.unit = name},
                  out ? "%s is down: its streams are being migrated to other units where capacity allows"
                      : "%s is up: placement resumed",
                  name);
}

static void retuned(void *host, uint32_t gpu, core_ns before_ns, core_ns after_ns)
{
    const struct server_planner *planner = host;
    const char *name = server_gpu_name(planner->server->gpus[gpu]);

    core_log_with(CORE_LOG_INFO, "planner.period", &(struct core_log_fields){.unit = name},
                  "%s: batch period %s from %.3f ms to %.3f ms", name,
                  after_ns > before_ns ? "raised" : "lowered", (double)before_ns / 1e6,
                  (double)after_ns / 1e6);
}

const struct partition_planner_host server_planner_host = {
    .quiescent = is_quiescent,
    .in_service = in_service,
    .plan_in_force = plan_in_force,
    .plan_lacks = plan_lacks,
    .put_plan = put_plan,
    .migrate = server_planner_migrate,
    .agreed = server_planner_agreed,
    .reclaimed = reclaimed,
    .charged = charged,
    .search = server_planner_search,
    .admit = server_planner_admit_waiting,
    .refuse = server_planner_refuse_waiting,
    .still_waits = server_planner_still_waits,
    .service = service,
    .retuned = retuned,
};
