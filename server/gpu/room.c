/* The room of a GPU's arenas: how much memory they have, by the plans that there are. */
#include "core/log.h"
#include "server/gpu/internal.h"
#include "server/server_internal.h"

#define CARD_POLL_NS  CORE_NS_PER_MS       /* at a channel that has no room for the question */
#define RETRY_NS      (10 * CORE_NS_PER_S) /* after memory could not be had */
#define CALM_NS       (30 * CORE_NS_PER_S) /* with more than is needed, before it is given back */
#define LEAST_BYTES   (UINT64_C(2) << 20)  /* of payload, each way, in an arena that has hardly any */
#define LEAST_PACKETS UINT32_C(8192)

/* What there is to spare of bytes and of packets when memory is asked for: 3/8 of what is needed, but no more
 * than this much, or a twelfth. Less is asked for again before the last third of it is needed: so few who come
 * have to wait for it, and the child pins 1 GiB an arena in some 70 pieces. */
#define SPARE_BYTES   (UINT64_C(4) << 20)
#define SPARE_PACKETS UINT64_C(4096)

static uint64_t with_spare(uint64_t need, uint64_t much, uint64_t thirds)
{
    const uint64_t part = need * 3 / 8, most = need / 12 > much ? need / 12 : much;
    return need + ((part < most ? part : most) * thirds + 2) / 3;
}

static struct gpu_room room_for(const struct gpu_region_shape *shape, uint64_t bytes, uint64_t packets,
                                uint64_t thirds)
{
    bytes = with_spare(bytes, SPARE_BYTES, thirds);
    packets = with_spare(packets, SPARE_PACKETS, thirds);
    const struct gpu_room room = {
        .bytes = (bytes + GPU_REGION_PAGE_BYTES - 1) / GPU_REGION_PAGE_BYTES * GPU_REGION_PAGE_BYTES,
        .segments = packets < shape->segments ? (uint32_t)packets : shape->segments};
    return gpu_room_within(&room, shape);
}

struct server_gpu_room_limits server_gpu_room_limits(const struct gpu_region_shape *shape)
{
    const struct gpu_room least = {.bytes = LEAST_BYTES, .segments = LEAST_PACKETS};
    return (struct server_gpu_room_limits){
        .least = gpu_room_within(&least, shape), .calm_ns = CALM_NS, .retry_ns = RETRY_NS};
}

struct gpu_room server_gpu_room_of(const struct gpu_region_shape *shape,
                                   const struct partition_gpu_plan *plan)
{
    return room_for(shape, plan->batch_bytes, plan->batch_packets, 3);
}

static struct gpu_room most_of(const struct gpu_room *a, const struct gpu_room *b)
{
    return (struct gpu_room){.bytes = a->bytes > b->bytes ? a->bytes : b->bytes,
                             .segments = a->segments > b->segments ? a->segments : b->segments};
}

/* The least need that a third of its spare takes beyond this. */
static uint64_t need_beyond(uint64_t has, uint64_t much)
{
    uint64_t low = 0, high = has + 1;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (with_spare(middle, much, 1) > has)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct gpu_room server_gpu_room_next(const struct gpu_region_shape *shape, const struct gpu_room *now)
{
    const uint64_t bytes = need_beyond(now->bytes, SPARE_BYTES);
    const uint64_t packets = need_beyond(now->segments, SPARE_PACKETS);
    const bool bytes_first =
        now->segments == shape->segments ||
        (now->bytes < shape->arena_bytes && bytes * shape->segments <= packets * shape->arena_bytes);
    const struct gpu_room wanted =
        bytes_first ? room_for(shape, bytes, bytes * shape->segments / shape->arena_bytes, 3)
                    : room_for(shape, packets * shape->arena_bytes / shape->segments, packets, 3);
    return most_of(now, &wanted);
}

static const struct gpu_region_shape *shape_of(const struct server_gpu *gpu)
{
    return &gpu_arenas_region(gpu->arenas)->shape;
}

static struct gpu_room least_for(const struct server_gpu *gpu, const struct partition_gpu_plan *plan)
{
    return room_for(shape_of(gpu), plan->batch_bytes, plan->batch_packets, 0);
}

bool server_gpu_room_fits(const struct server_gpu *gpu, const struct partition_gpu_plan *plan)
{
    const struct server_gpu_room *room = &gpu->room;
    const struct gpu_room need = least_for(gpu, plan);
    return gpu_room_holds(room->phase == SERVER_GPU_ROOM_EMPTY ? &room->next : &room->now, &need);
}

bool server_gpu_room_is_open(const struct server_gpu *gpu, const struct partition_gpu_plan *plan)
{
    const struct gpu_room need = least_for(gpu, plan);
    return server_gpu_room_fits(gpu, plan) && gpu_arenas_open_hold(gpu->arenas, &need);
}

/* ---- what is needed ---- */

/* By the plan that batches follow and those that are to follow it. */
static struct gpu_room needed(const struct server_gpu *gpu, uint64_t thirds)
{
    uint64_t bytes = gpu->plan.batch_bytes, packets = gpu->plan.batch_packets;
    for (uint32_t i = 0; i < gpu->plans.count; i++) {
        const struct partition_gpu_plan *plan = &gpu->plans.waiting[i];
        bytes = plan->batch_bytes > bytes ? plan->batch_bytes : bytes;
        packets = plan->batch_packets > packets ? plan->batch_packets : packets;
    }
    return room_for(shape_of(gpu), bytes, packets, thirds);
}

static void show(struct server_gpu *gpu, const struct gpu_room *room)
{
    atomic_store_explicit(&gpu->figures.memory_bytes, gpu_arenas_bytes(shape_of(gpu), gpu->io_count, room),
                          memory_order_relaxed);
}

/* Plans with higher numbers have no memory; UINT64_MAX: the newest has. */
static uint64_t newest_that_fits(const struct server_gpu *gpu)
{
    uint64_t fits = gpu->plan.number;
    bool lacks = false;
    for (uint32_t i = 0; i < gpu->plans.count; i++) {
        lacks = !server_gpu_room_fits(gpu, &gpu->plans.waiting[i]);
        fits = lacks ? fits : gpu->plans.waiting[i].number;
    }
    return lacks ? fits : UINT64_MAX;
}

bool server_gpu_room_lacks(const struct server_gpu *gpu, uint64_t plan)
{
    return plan > newest_that_fits(gpu);
}

bool server_gpu_room_refused(const struct server_gpu *gpu, core_ns now_ns)
{
    return !gpu->up || now_ns < gpu->room.retry_ns;
}

bool server_gpu_plan_lacks(const struct server_gpu *gpu, uint64_t number)
{
    return number >
           atomic_load_explicit(&gpu->room.lacking, memory_order_relaxed); /* a figure, not an order */
}

/* Batches are opened with the room that there is, and plans that waited for it may follow. */
static void open_with(struct server_gpu *gpu, core_ns now_ns)
{
    gpu->room.phase = SERVER_GPU_ROOM_STEADY;
    gpu_arenas_set_room(gpu->arenas, &gpu->room.now);
    if (!gpu->scheduled && gpu->plans.count > 0)
        server_gpu_batches_begin(gpu, now_ns);
}

/* ---- growing ---- */

static void grow(struct server_gpu *gpu, core_ns now_ns)
{
    struct server_gpu_room *room = &gpu->room;
    const struct gpu_room soon = needed(gpu, 1), wanted = needed(gpu, 3);
    if (!gpu->up || now_ns < room->retry_ns || gpu_room_holds(&room->now, &soon) ||
        room->step_count == SERVER_GPU_ROOM_STEPS)
        return;
    room->next = most_of(&room->now, &wanted);
    room->phase = SERVER_GPU_ROOM_GROW_MEMORY;
    gpu_resizer_ask(room->resizer, &room->next);
}

static void not_grown(struct server_gpu *gpu, core_ns now_ns, const char *text)
{
    gpu->room.retry_ns = now_ns + gpu->room.limits.retry_ns;
    server_stats_add(&gpu->figures.memory_refused, 1);
    core_log_with(CORE_LOG_WARNING, "gpu.memory", &(struct core_log_fields){.unit = gpu->name},
                  "%s: batches of %llu bytes have no memory: %s; streams that need them are refused for %d s",
                  gpu->name, (unsigned long long)gpu->room.next.bytes, text, (int)(RETRY_NS / CORE_NS_PER_S));
}

static void grown(struct server_gpu *gpu, core_ns now_ns)
{
    struct server_gpu_room *room = &gpu->room;
    room->now = room->next;
    room->steps[room->step_count++] = room->now;
    show(gpu, &room->now);
    open_with(gpu, now_ns);
}

/* The server's memory goes back to what the batches have. */
static void undo(struct server_gpu *gpu)
{
    gpu->room.phase = SERVER_GPU_ROOM_UNDO;
    gpu_resizer_ask(gpu->room.resizer, &gpu->room.now);
}

/* ---- shrinking ---- */

/* The least room that holds this and that the child can go back to: where a piece ends that it has pinned.
 * Without a child, which is not started meanwhile, any. */
static struct gpu_room step_for(const struct server_gpu *gpu, const struct gpu_room *wanted)
{
    uint32_t step = 0;
    if (!gpu->up)
        return *wanted;
    while (step + 1 < gpu->room.step_count && !gpu_room_holds(&gpu->room.steps[step], wanted))
        step++;
    return gpu->room.steps[step];
}

static void shrink(struct server_gpu *gpu, core_ns now_ns)
{
    struct server_gpu_room *room = &gpu->room;
    const struct gpu_room need = needed(gpu, 3);
    const struct gpu_room wanted = most_of(&room->limits.least, &need), next = step_for(gpu, &wanted);
    const bool starts = !gpu->up && gpu_engine_state(gpu->engine) != GPU_ENGINE_DOWN;
    if (gpu_room_holds(&next, &room->now) || !gpu_room_holds(&room->now, &next) ||
        (gpu->changing && gpu->scheduled) || starts) {
        room->calm_ns = now_ns + room->limits.calm_ns;
        return;
    }
    if (now_ns < room->calm_ns)
        return;
    room->next = next;
    room->phase = SERVER_GPU_ROOM_EMPTY;
    gpu_arenas_set_room(gpu->arenas, &room->next);
}

/* Batches are opened with `next`: do plans need more by now, or is no arena held any more that has more? */
static void look_whether_within(struct server_gpu *gpu, core_ns now_ns)
{
    struct server_gpu_room *room = &gpu->room;
    const struct gpu_room need = needed(gpu, 1);
    if (!gpu_room_holds(&room->next, &need)) {
        room->calm_ns = now_ns + room->limits.calm_ns;
        open_with(gpu, now_ns);
    } else if (gpu_arenas_within(gpu->arenas, &room->next)) {
        room->now = room->next;
        gpu_engine_set_room(gpu->engine, &room->now);
        room->phase = SERVER_GPU_ROOM_SHRINK_CARD;
        room->asked = false;
    }
}

static void shrink_memory(struct server_gpu *gpu)
{
    struct server_gpu_room *room = &gpu->room;
    while (room->step_count > 1 && gpu_room_holds(&room->steps[room->step_count - 2], &room->now))
        room->step_count--;
    room->phase = SERVER_GPU_ROOM_SHRINK_MEMORY;
    gpu_resizer_ask(room->resizer, &room->now);
}

/* ---- steps ---- */

static void ask_card(struct server_gpu *gpu)
{
    gpu->room.asked = gpu->room.asked || gpu_engine_resize(gpu->engine, &gpu->room.next) == CORE_OK;
}

static void take_outcome(struct server_gpu *gpu, core_ns now_ns)
{
    struct server_gpu_room *room = &gpu->room;
    struct core_error error = {""};
    const core_status status = gpu_resizer_done(room->resizer, &error);
    if (status == CORE_AGAIN)
        return;
    if (room->phase != SERVER_GPU_ROOM_GROW_MEMORY) {
        room->phase = SERVER_GPU_ROOM_STEADY;
        show(gpu, &room->now);
    } else if (status != CORE_OK) {
        room->phase = SERVER_GPU_ROOM_STEADY;
        not_grown(gpu, now_ns, error.text);
    } else if (gpu->up) {
        room->phase = SERVER_GPU_ROOM_GROW_CARD;
        room->asked = false;
    } else
        undo(gpu);
}

core_ns server_gpu_room_run(struct server_gpu *gpu, core_ns now_ns)
{
    struct server_gpu_room *room = &gpu->room;
    switch (room->phase) {
    case SERVER_GPU_ROOM_STEADY:
        shrink(gpu, now_ns);
        if (room->phase == SERVER_GPU_ROOM_STEADY)
            grow(gpu, now_ns);
        break;
    case SERVER_GPU_ROOM_EMPTY:
        look_whether_within(gpu, now_ns);
        break;
    case SERVER_GPU_ROOM_GROW_CARD:
        ask_card(gpu);
        break;
    case SERVER_GPU_ROOM_SHRINK_CARD:
        if (gpu->up)
            ask_card(gpu);
        else if (!gpu->lingering)
            shrink_memory(gpu);
        break;
    default:
        take_outcome(gpu, now_ns);
    }
    atomic_store_explicit(&room->lacking,
                          server_gpu_room_refused(gpu, now_ns) ? newest_that_fits(gpu) : UINT64_MAX,
                          memory_order_relaxed);
    const bool card = room->phase == SERVER_GPU_ROOM_GROW_CARD || room->phase == SERVER_GPU_ROOM_SHRINK_CARD;
    return (card && !room->asked) || room->phase == SERVER_GPU_ROOM_EMPTY ? now_ns + CARD_POLL_NS
                                                                          : CORE_NS_NEVER;
}

bool server_gpu_room_is_steady(const struct server_gpu *gpu)
{
    return gpu->room.phase == SERVER_GPU_ROOM_STEADY;
}

void server_gpu_room_done(struct server_gpu *gpu, const char *text, core_ns now_ns)
{
    struct server_gpu_room *room = &gpu->room;
    if (room->phase == SERVER_GPU_ROOM_SHRINK_CARD) {
        if (text[0] != '\0')
            server_gpu_condemn(gpu, now_ns, text); /* it has what is about to be taken */
        shrink_memory(gpu);
    } else if (text[0] == '\0')
        grown(gpu, now_ns);
    else {
        not_grown(gpu, now_ns, text);
        undo(gpu);
    }
}

void server_gpu_room_up(struct server_gpu *gpu)
{
    gpu->room.step_count = gpu_room_parts(&gpu->room.now, gpu->room.steps);
}

void server_gpu_room_down(struct server_gpu *gpu, core_ns now_ns)
{
    if (gpu->room.phase != SERVER_GPU_ROOM_GROW_CARD)
        return;
    not_grown(gpu, now_ns, "its process ended meanwhile");
    undo(gpu);
}

static core_status resize(void *arenas, const struct gpu_room *room, struct core_error *error)
{
    return gpu_arenas_resize(arenas, room, error);
}

core_status server_gpu_room_start(struct server_gpu *gpu, struct core_error *error)
{
    gpu->room.now = gpu_arenas_region(gpu->arenas)->room;
    show(gpu, &gpu->room.now);
    return gpu_resizer_start(&gpu->room.resizer, resize, gpu->arenas, gpu->mailbox.descriptor, error);
}
