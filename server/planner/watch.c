/* What the planner does of its own accord: streams of a card that is out of service take refuge where there
 * is room, and go back when it is in service again. */
#include "core/log.h"
#include "server/planner/internal.h"

#include <stdlib.h>

#define ORDERS_AT_ONCE 16                     /* of one look, so that requests are answered between */
#define AGAIN_NS       (200 * CORE_NS_PER_MS) /* after a pass over all streams in which some found no room */

static core_ns later(core_ns a, core_ns b)
{
    return a > b ? a : b;
}

static void watch_returned(void *owner, struct server_message *message)
{
    (void)server_planner_moved(owner, (struct server_order *)message);
}

static bool may_move(const struct server_grant *grant)
{
    return grant != NULL && grant->order == NULL && !grant->second && !grant->leaving;
}

/* Room is held for it elsewhere, where its I/O thread takes it by itself (server/stream/backup.h). */
static bool has_backup(const struct server_planner *planner, const struct server_grant *grant)
{
    return partition_standing_stream_of(planner->standing, grant->stream).backup_unit !=
           PARTITION_STANDING_NONE;
}

static bool send(struct server_planner *planner, struct server_grant *grant, uint32_t to, core_ns period_ns)
{
    char reason[256];
    struct server_planner_move move = {
        .grant = grant, .to = to, .period_ns = period_ns, .patience_ns = SERVER_PLANNER_PATIENCE_NS};
    return server_planner_move(planner, &move, watch_returned, reason, sizeof reason);
}

/* The least loaded worker that takes it, or another card. The stand-by worker serves it until then, and ever
 * after if there is none. */
static bool find_refuge(struct server_planner *planner, struct server_grant *grant)
{
    uint32_t home = grant->gpu;
    uint32_t worker = partition_standing_worker_for(planner->standing, &grant->spec, grant->io);

    grant->home = home;
    grant->home_period_ns = partition_standing_gpu_at(planner->standing, home).period_ns;
    if (worker != PARTITION_STANDING_NONE && send(planner, grant, worker, 0))
        return true;
    for (uint32_t gpu = 0; gpu < planner->server->gpu_count; gpu++) {
        core_ns period_ns = partition_standing_gpu_at(planner->standing, gpu).period_ns;
        if (gpu != home && send(planner, grant, server_unit_of_gpu(planner->server, gpu),
                                period_ns > 0 ? period_ns : grant->home_period_ns))
            return true;
    }
    return false;
}

/* Back home, at the period that it had or the one that it has now. */
static bool send_home(struct server_planner *planner, struct server_grant *grant)
{
    core_ns period_ns = partition_standing_gpu_at(planner->standing, grant->home).period_ns;
    return send(planner, grant, server_unit_of_gpu(planner->server, grant->home),
                period_ns > 0 ? period_ns : grant->home_period_ns);
}

/* One card: goes on with its pass over all streams. */
static void pass(struct server_planner *planner, uint32_t gpu, core_ns now_ns)
{
    struct server_planner_card *card = &planner->cards[gpu];
    uint32_t orders = 0;

    for (; card->next < planner->grant_capacity && orders < ORDERS_AT_ONCE; card->next++) {
        struct server_grant *grant = planner->grants[card->next];
        bool wanted = may_move(grant) && !has_backup(planner, grant) &&
                      (card->out ? grant->gpu == gpu : grant->home == gpu && grant->gpu != gpu);
        if (!wanted)
            continue;
        orders++;
        card->missed |= card->out ? !find_refuge(planner, grant) : !send_home(planner, grant);
        card->missed |= !card->out; /* it may be given up */
    }
    if (card->next < planner->grant_capacity)
        return;
    card->passing = card->missed;
    card->missed = false;
    card->next = 0;
    card->look_ns = now_ns + AGAIN_NS;
}

void server_planner_look_again(struct server_planner *planner, uint32_t gpu)
{
    struct server_planner_card *card = &planner->cards[gpu];

    card->passing = true;
    card->missed = false;
    card->next = 0;
    card->look_ns = 0;
}

static void note_service(struct server_planner *planner, uint32_t gpu)
{
    struct server_planner_card *card = &planner->cards[gpu];
    bool out = !server_gpu_in_service(planner->server->gpus[gpu]);

    if (out == card->out)
        return;
    card->out = out;
    server_planner_look_again(planner, gpu);
    partition_standing_set_out(planner->standing, gpu, out);
    core_log_with(CORE_LOG_INFO, "planner.gpu",
                  &(struct core_log_fields){.unit = server_gpu_name(planner->server->gpus[gpu])},
                  out ? "%s is down: its streams are being migrated to other units where capacity allows"
                      : "%s is up: placement resumed",
                  server_gpu_name(planner->server->gpus[gpu]));
}

void server_planner_watch(struct server_planner *planner)
{
    core_ns now_ns = core_time_now_ns();
    for (uint32_t gpu = 0; gpu < planner->server->gpu_count; gpu++) {
        struct server_planner_card *card = &planner->cards[gpu];
        note_service(planner, gpu);
        if (card->passing && now_ns >= later(card->look_ns, 0))
            pass(planner, gpu, now_ns);
    }
}
