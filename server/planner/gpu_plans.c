/* The planner's accounts of the GPUs: whether batches have room, and which plan each batcher keeps to. */
#include "server/planner/internal.h"

#include <stdio.h>

static bool in_service(const struct server_planner *planner, uint32_t gpu, enum perfmodel_limit *constraint,
                       char *reason, size_t size)
{
    if (server_gpu_in_service(planner->server->gpus[gpu]))
        return true;
    *constraint = PERFMODEL_LIMIT_GPU_OUT;
    snprintf(reason, size, "GPU %u is out of service; ask again when it is back", gpu);
    return false;
}

/* Makes the plan of a GPU, as the standing plan has it now. */
static bool make_plan(struct server_planner *planner, uint32_t gpu, enum perfmodel_limit *constraint,
                      char *reason, size_t size)
{
    return server_gpu_account_replan(&planner->accounts[gpu], planner->standing, gpu,
                                     planner->server->worker_count + gpu, constraint, reason, size);
}

static bool put_plan(struct server_planner *planner, uint32_t gpu)
{
    return server_gpu_put_plan(planner->server->gpus[gpu], &planner->accounts[gpu].plan) == CORE_OK;
}

struct server_planner_rooms server_planner_rooms_of(const struct server_planner *planner, uint32_t stream)
{
    const struct partition_standing_stream of = partition_standing_stream_of(planner->standing, stream);
    const uint32_t workers = planner->server->worker_count;
    struct server_planner_rooms rooms = {.count = 0};

    if (!server_planner_is_gpu(planner, of.unit))
        return rooms;
    rooms.room[rooms.count++] =
        (struct server_planner_room){.gpu = of.unit - workers, .loss = SERVER_GPU_OWN, .spec = of.spec};
    if (of.backup_unit != PARTITION_STANDING_NONE && server_planner_is_gpu(planner, of.backup_unit))
        rooms.room[rooms.count++] = (struct server_planner_room){
            .gpu = of.backup_unit - workers, .loss = of.unit - workers, .spec = of.backup_spec};
    return rooms;
}

bool server_planner_has_room(void *owner, const struct partition_standing *standing,
                             const struct partition_standing_room *room, enum perfmodel_limit *constraint,
                             char *reason, size_t size)
{
    struct server_planner *planner = owner;

    if (!in_service(planner, room->gpu, constraint, reason, size))
        return false;
    return server_gpu_account_takes(&planner->accounts[room->gpu], standing,
                                    planner->server->worker_count + room->gpu, room, constraint, reason,
                                    size);
}

bool server_planner_gpu_replan(struct server_planner *planner, uint32_t gpu)
{
    enum perfmodel_limit constraint;
    char reason[256];

    return make_plan(planner, gpu, &constraint, reason, sizeof reason) && put_plan(planner, gpu);
}

static bool take(struct server_planner *planner, struct server_planner_room *room,
                 enum perfmodel_limit *constraint, char *reason, size_t size)
{
    server_gpu_account_add(&planner->accounts[room->gpu], room->loss, &room->spec);
    if (in_service(planner, room->gpu, constraint, reason, size) &&
        make_plan(planner, room->gpu, constraint, reason, size) && put_plan(planner, room->gpu)) {
        room->plan = planner->accounts[room->gpu].plan.number;
        return true;
    }
    return false;
}

bool server_planner_rooms_take(struct server_planner *planner, struct server_planner_rooms *rooms,
                               enum perfmodel_limit *constraint, char *reason, size_t size)
{
    bool took = true;
    for (rooms->taken = 0; took && rooms->taken < rooms->count; rooms->taken++)
        took = take(planner, &rooms->room[rooms->taken], constraint, reason, size);
    return took;
}

void server_planner_rooms_forget(struct server_planner *planner, const struct server_planner_rooms *rooms)
{
    for (uint32_t n = 0; n < rooms->taken; n++)
        server_gpu_account_remove(&planner->accounts[rooms->room[n].gpu], rooms->room[n].loss,
                                  &rooms->room[n].spec);
}

void server_planner_rooms_leave(struct server_planner *planner, const struct server_planner_rooms *rooms)
{
    server_planner_rooms_forget(planner, rooms);
    for (uint32_t n = 0; n < rooms->taken; n++) /* the old plans hold as well */
        (void)!server_planner_gpu_replan(planner, rooms->room[n].gpu);
}

bool server_planner_rooms_in_force(const struct server_planner *planner,
                                   const struct server_planner_rooms *rooms)
{
    bool all = true;
    for (uint32_t n = 0; n < rooms->count; n++)
        all =
            all && rooms->room[n].plan <= server_gpu_plan_in_force(planner->server->gpus[rooms->room[n].gpu]);
    return all;
}

bool server_planner_gpu_paused(const struct server_planner *planner, uint32_t gpu, uint64_t batch)
{
    return server_gpu_paused(planner->server->gpus[gpu]) > batch;
}
