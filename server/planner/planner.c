/* The planner thread: its life, requests, and grants that come back. */
#include "core/log.h"
#include "core/realtime.h"
#include "server/planner/internal.h"
#include "server/stream/stream.h"

#include <assert.h>
#include <stdlib.h>

#define SWEEP_MS 1  /* between looks at units that have not paused yet */
#define WATCH_MS 5  /* between looks at cards */
#define CUTS_MAX 32 /* a refusal that was cut off so often is told why, whoever waits */

#define MOVABLE_BYTES_MAX                                                                                    \
    (UINT64_C(256) << 10) /* packet memory of a stream on a worker that may go to a GPU */

const char server_planner_no_room[] =
    "the server's memory for packets (limits.buffer_mib) is used up; ask for a smaller burst or packet, or a "
    "shorter latency bound";

static void publish_worker(struct server_planner *planner, uint32_t worker)
{
    struct partition_standing_worker load = partition_standing_worker_at(planner->standing, worker);
    struct server_planner_load *target = &planner->worker_loads[worker];
    atomic_store_explicit(&target->streams, load.streams, memory_order_relaxed);
    atomic_store_explicit(&target->utilisation_ppb, load.utilisation_ppb, memory_order_relaxed);
    atomic_store_explicit(&target->headroom_ppb, load.headroom_ppb, memory_order_relaxed);
    atomic_store_explicit(&target->reserved_ppb, load.reserved_ppb, memory_order_relaxed);
}

void server_planner_publish(struct server_planner *planner, uint32_t unit, uint32_t io)
{
    if (!server_planner_is_gpu(planner, unit))
        publish_worker(planner, unit);
    atomic_store_explicit(&planner->io_loads[io].utilisation_ppb,
                          partition_standing_io_ppb(planner->standing, io), memory_order_relaxed);
}

static void refuse(struct server_request *request, enum protocol_refusal refusal, const char *text)
{
    request->refusal = refusal;
    request->refusal_text = text;
}

/* The limits that are not about time; what is over them is refused without a look at the schedule. */
static bool within_limits(const struct server_planner *planner, struct server_request *request)
{
    const struct config_server_limits *limits = &planner->server->config->limits;

    if (server_planner_is_gone(&request->turn))
        refuse(request, PROTOCOL_REFUSED_DRAINING, "the connection is gone");
    else if (atomic_load_explicit(&planner->server->draining, memory_order_relaxed))
        refuse(request, PROTOCOL_REFUSED_DRAINING, "the server is stopping; connect to another one");
    else if (planner->streams >= limits->streams)
        refuse(request, PROTOCOL_REFUSED_LIMIT,
               "the server's limit of open streams (limits.streams) is reached");
    else if (partition_standing_streams(planner->standing) >= PARTITION_PLAN_STREAMS_MAX)
        refuse(request, PROTOCOL_REFUSED_LIMIT,
               "the server has reached the largest number of streams that it can plan");
    else if (!server_planner_has_memory(planner, request->memory.bytes))
        refuse(request, PROTOCOL_REFUSED_LIMIT, server_planner_no_room);
    else
        return true;
    return false;
}

/* ---- requests ---- */

bool server_planner_has_memory(const struct server_planner *planner, uint64_t bytes)
{
    uint64_t limit_bytes = planner->server->config->limits.buffer_bytes;

    return bytes <= limit_bytes && planner->buffer_bytes <= limit_bytes - bytes;
}

/* A stream on a worker may come to be on a GPU later, if it is worth its memory. */
uint32_t server_planner_queue_packets(const struct server_planner *planner,
                                      const struct core_stream_spec *spec, uint32_t unit, bool *movable)
{
    const struct server *server = planner->server;
    uint32_t packets = server_stream_queue_packets(spec, server_stream_gpu_packets(spec));

    *movable = server_planner_is_gpu(planner, unit) ||
               (server->gpu_count > 0 && server_stream_buffer_bytes(spec, packets) <= MOVABLE_BYTES_MAX);
    return *movable ? packets
                    : server_stream_queue_packets(spec, perfmodel_cpu_backlog_packets(spec, server->profile));
}

/* Now that its unit is known. */
static bool reserve_memory(struct server_planner *planner, struct server_request *request)
{
    const struct core_stream_spec *spec = &request->open.spec;
    struct server_memory_order *order = &request->memory;

    order->packets = server_planner_queue_packets(planner, spec, request->placement.unit, &request->movable);
    order->bytes = server_stream_buffer_bytes(spec, order->packets);
    if (server_planner_has_memory(planner, order->bytes))
        return true;
    refuse(request, PROTOCOL_REFUSED_LIMIT, server_planner_no_room);
    return false;
}

struct server_backup server_planner_backup_of(const struct partition_standing_placement *placement)
{
    return (struct server_backup){.unit = placement->backup_unit,
                                  .task = placement->backup_task,
                                  .gpu_bound_ns = placement->gpu_bound_ns,
                                  .detection_ns = placement->detection_ns,
                                  .bound_ns = placement->backup_bound_ns,
                                  .reserved_ppb = placement->reserved_ppb};
}

struct server_spare server_planner_spare_of(const struct server_planner *planner,
                                            const struct partition_standing_placement *placement)
{
    uint32_t unit = placement->backup_unit;
    bool is_gpu = unit != PARTITION_STANDING_NONE && server_planner_is_gpu(planner, unit);

    return (struct server_spare){.gpu = is_gpu ? server_unit_gpu(planner->server, unit) : SERVER_NO_GPU,
                                 .slot = SERVER_GPU_NO_SLOT};
}

static core_status ask(struct server_planner *planner, struct server_request *request)
{
    const struct core_stream_spec *spec = &request->open.spec;
    struct partition_standing_placement *placement = &request->placement;

    if (request->is_query)
        return partition_standing_query(planner->standing, spec, request->io, true, placement, NULL);
    return partition_standing_admit(planner->standing, spec, request->io, 0, placement, NULL);
}

static bool place(struct server_planner *planner, struct server_request *request)
{
    const struct partition_standing_placement *placement = &request->placement;

    if (ask(planner, request) != CORE_OK) {
        refuse(request, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory");
        return false;
    }
    if (!placement->accepted) {
        refuse(request, PROTOCOL_REFUSED_CAPACITY, NULL);
        return false;
    }
    return true;
}

static void query(struct server_planner *planner, struct server_request *request)
{
    if (place(planner, request) && reserve_memory(planner, request) &&
        server_planner_is_gpu(planner, request->placement.unit))
        request->gpu = server_unit_gpu(planner->server, request->placement.unit);
}

/* A stream was admitted: there must be memory for it. On a GPU the plans of that GPU, and of its backup's,
 * come into force; it may have gone out of service since. */
static bool settle(struct server_planner *planner, struct server_request *request)
{
    struct partition_standing_placement *placement = &request->placement;
    struct server_planner_plans plans = server_planner_plans_of(planner, placement->stream);
    struct partition_standing_words words;

    bool reserved = reserve_memory(planner, request);
    if (reserved && server_planner_in_service(planner, &plans, &words)) {
        server_planner_send_plans(planner);
        request->gpu = plans.count > 0 ? plans.gpu[0] : SERVER_NO_GPU;
        request->plan = plans.number[0];
        request->spare_plan = plans.number[1];
        return true;
    }
    if (reserved) {
        server_planner_say(&words, placement);
        refuse(request, PROTOCOL_REFUSED_CAPACITY, NULL);
    }
    partition_standing_release(planner->standing, placement->stream);
    server_planner_send_plans(planner);
    placement->accepted = false;
    return false;
}

void server_planner_admit(struct server_planner *planner, struct server_request *request)
{
    struct server_grant *grant = calloc(1, sizeof *grant);
    if (grant == NULL || server_planner_reserve(planner) != CORE_OK) {
        refuse(request, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory");
        free(grant);
        return;
    }
    if (!place(planner, request)) {
        free(grant);
        return;
    }
    if (!settle(planner, request)) {
        free(grant);
        return;
    }
    *grant = (struct server_grant){
        .stream = request->placement.stream,
        .unit = request->placement.unit,
        .gpu = request->gpu,
        .spec = partition_standing_stream_of(planner->standing, request->placement.stream).spec,
        .backup = server_planner_backup_of(&request->placement),
        .spare = server_planner_spare_of(planner, &request->placement),
        .io = request->io,
        .buffer_bytes = request->memory.bytes,
        .movable = request->movable,
        .home = SERVER_NO_GPU,
        .gpu_slot = SERVER_GPU_NO_SLOT};
    request->grant = grant;
    server_planner_enter(planner, grant);
    planner->streams++;
    planner->buffer_bytes += request->memory.bytes;
}

/* ---- grants ---- */

core_status server_planner_reserve(struct server_planner *planner)
{
    uint32_t capacity = planner->grant_capacity < 64 ? 64 : 2 * planner->grant_capacity;

    /* Numbers in use have no gaps that matter: a free one is given out before there are more (partition). */
    if (partition_standing_streams(planner->standing) < planner->grant_capacity)
        return CORE_OK;
    struct server_grant **grown = realloc(planner->grants, capacity * sizeof(struct server_grant *));
    if (grown == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t n = planner->grant_capacity; n < capacity; n++)
        grown[n] = NULL;
    planner->grants = grown;
    planner->grant_capacity = capacity;
    return CORE_OK;
}

/* One backup more, or less, on the worker that holds room for the stream; it is the same while it is granted.
 */
static void count_backup(struct server_planner *planner, const struct server_grant *grant, uint64_t more)
{
    uint32_t unit = partition_standing_stream_of(planner->standing, grant->stream).backup_unit;

    if (server_planner_is_gpu(planner, unit))
        return;
    server_stats_add(&planner->worker_loads[unit].backups, more);
    publish_worker(planner, unit);
}

void server_planner_enter(struct server_planner *planner, struct server_grant *grant)
{
    assert(grant->stream < planner->grant_capacity && planner->grants[grant->stream] == NULL);
    grant->born = ++planner->born;
    planner->grants[grant->stream] = grant;
    count_backup(planner, grant, 1);
    server_planner_publish(planner, grant->unit, grant->io);
}

bool server_planner_worker_paused(const struct server_planner *planner, uint32_t worker, uint64_t pauses)
{
    const struct cpu_scheduler_counters *counters = cpu_worker_counters(planner->server->workers[worker]);
    return atomic_load_explicit(&counters->pauses, memory_order_relaxed) > pauses;
}

static bool may_leave(const struct server_planner *planner, const struct server_grant *grant)
{
    if (grant->asking || grant->order != NULL || (grant->change != NULL && !grant->change->settling))
        return false;
    if (grant->diverted && !server_planner_worker_paused(planner, grant->backup.unit, grant->pauses))
        return false;
    if (grant->spare.batch > 0 && !server_planner_gpu_paused(planner, grant->spare.gpu, grant->spare.batch))
        return false;
    if (!grant->worked)
        return true;
    if (grant->gpu != SERVER_NO_GPU)
        return server_planner_gpu_paused(planner, grant->gpu, grant->gpu_batch);
    return server_planner_worker_paused(planner, grant->unit, grant->pauses);
}

static void release(struct server_planner *planner, struct server_grant *grant)
{
    uint32_t backup = partition_standing_stream_of(planner->standing, grant->stream).backup_unit;

    server_planner_forget_change(planner, grant);
    count_backup(planner, grant, (uint64_t)-1);
    partition_standing_release(planner->standing, grant->stream);
    if (!server_planner_is_gpu(planner, backup))
        publish_worker(planner, backup);
    planner->grants[grant->stream] = NULL;
    server_planner_send_plans(planner);
    if (!grant->second) {
        planner->streams--;
        planner->buffer_bytes -= grant->buffer_bytes;
    }
    server_planner_publish(planner, grant->unit, grant->io);
    free(grant);
}

static struct server_grant *next_grant(const struct server_grant *grant)
{
    return (struct server_grant *)grant->message.next;
}

/* Releases those among the leaving whose unit has paused. */
void server_planner_sweep(struct server_planner *planner)
{
    server_planner_sweep_changes(planner);
    struct server_grant *grant = planner->leaving;
    planner->leaving = NULL;
    while (grant != NULL) {
        struct server_grant *next = next_grant(grant);
        if (may_leave(planner, grant))
            release(planner, grant);
        else {
            grant->message.next = (struct server_message *)planner->leaving;
            planner->leaving = grant;
        }
        grant = next;
    }
}

void server_planner_leave(struct server_planner *planner, struct server_grant *grant)
{
    grant->leaving = true;
    grant->message.next = (struct server_message *)planner->leaving;
    planner->leaving = grant;
}

static void take_back(void *owner, struct server_message *message)
{
    server_planner_leave(owner, (struct server_grant *)message);
}

/* ---- turns ---- */

static bool hurried(void *owner)
{
    struct server_planner *planner = owner;

    planner->cut = planner->cut || (planner->turn != NULL && planner->turn->cuts < CUTS_MAX &&
                                    (server_turns_others(&planner->turns, planner->turn->asker) ||
                                     server_mailbox_has_mail(&planner->mailbox)));
    return planner->cut;
}

void server_planner_begin_turn(struct server_planner *planner, struct server_turn *turn)
{
    planner->turn = turn;
    planner->cut = false;
}

bool server_planner_put_off(struct server_planner *planner, struct server_message *message)
{
    struct server_turn *turn = planner->turn;
    bool cut = planner->cut;

    planner->turn = NULL;
    planner->cut = false;
    if (cut) {
        turn->cuts++;
        server_turns_add(&planner->turns, SERVER_TURNS_EXPLAIN, turn->asker, message);
    }
    return cut;
}

bool server_planner_is_gone(const struct server_turn *turn)
{
    return atomic_load_explicit(&turn->asker->gone, memory_order_relaxed); /* a hint: the I/O thread knows */
}

static void judge(struct server_planner *planner, struct server_request *request)
{
    if (!within_limits(planner, request))
        return;
    if (request->is_query)
        query(planner, request);
    else
        server_planner_admit(planner, request);
}

static void decide(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_request *request = (struct server_request *)message;

    request->refusal = 0;
    server_planner_begin_turn(planner, &request->turn);
    judge(planner, request);
    if (!server_planner_put_off(planner, message) && !server_planner_apply(planner, request))
        server_planner_answer(planner, request);
}

static void wait_for_turn(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_request *request = (struct server_request *)message;

    message->run = decide;
    server_turns_add(&planner->turns, SERVER_TURNS_DECIDE, request->turn.asker, message);
}

void server_planner_answer(struct server_planner *planner, struct server_request *request)
{
    request->decided_ns = core_time_now_ns() - request->received_ns;
    request->message.run = request->answered;
    if (request->grant == NULL) {
        server_mailbox_post(request->reply, &request->message);
        return;
    }
    request->memory.spec = &request->open.spec;
    request->memory.answer = &request->message;
    request->memory.reply = request->reply;
    server_memory_make(planner->memory, &request->memory, planner->buffer_bytes);
}

static void stop(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    (void)message;
    planner->stopping = true;
}

/* How long nothing needs to be looked at. */
static int patience_ms(const struct server_planner *planner)
{
    if (server_turns_wait(&planner->turns))
        return 0;
    if (planner->leaving != NULL || planner->changes != NULL || server_planner_has_applicants(planner))
        return SWEEP_MS;
    return planner->server->gpu_count > 0 ? WATCH_MS : -1;
}

static void take_turn(struct server_planner *planner)
{
    struct server_message *message = server_turns_take(&planner->turns);
    if (message != NULL)
        message->run(planner, message);
}

/* What takes longer is not done between any two requests. */
static void keep_house(struct server_planner *planner)
{
    core_ns now_ns = core_time_now_ns();

    if (server_turns_wait(&planner->turns) && now_ns < planner->house_ns)
        return;
    planner->house_ns = now_ns + SWEEP_MS * CORE_NS_PER_MS;
    server_planner_sweep(planner);
    server_planner_replan(planner);
    server_planner_retune(planner);
    server_planner_send_plans(planner);
}

/* Mail before each request, so that nobody is overlooked whose turn it is. */
static void *run(void *argument)
{
    struct server_planner *planner = argument;
    while (!planner->stopping) {
        server_mailbox_wait(&planner->mailbox, planner, patience_ms(planner));
        server_planner_sweep(planner);
        server_planner_watch(planner);
        take_turn(planner);
        keep_house(planner);
    }
    return NULL;
}

static void destroy(struct server_planner *planner)
{
    server_planner_stop_replanner(planner);
    while (planner->leaving != NULL) {
        struct server_grant *grant = planner->leaving;
        planner->leaving = next_grant(grant);
        free(grant);
    }
    server_planner_drop_orders(planner);
    server_planner_drop_changes(planner);
    server_memory_stop(planner->memory);
    server_mailbox_destroy(&planner->mailbox);
    partition_standing_destroy(planner->standing);
    free(planner->grants);
    free(planner->cards);
    free(planner->worker_loads);
    free(planner->io_loads);
    free(planner);
}

static struct partition_gpu_arenas arenas_of(const struct server *server, uint32_t gpu)
{
    const struct gpu_region_shape *shape = &gpu_arenas_region(server_gpu_arenas(server->gpus[gpu]))->shape;

    return (struct partition_gpu_arenas){.count = shape->arenas,
                                         .slots = shape->slots,
                                         .segments = shape->segments,
                                         .bytes = shape->arena_bytes,
                                         .lead_ns = server_gpu_lead_ns(server->profile),
                                         .hang_ns = server->config->gpus.hang_ns};
}

/* Cards of a kind have arenas of one shape. */
static core_status set_arenas(struct server_planner *planner, struct core_error *error)
{
    const struct server *server = planner->server;
    struct partition_gpu_arenas arenas[CONFIG_PROFILE_GPU_KINDS_MAX];
    uint32_t gpu = 0;

    for (uint32_t kind = 0; kind < server->profile->gpu_count; kind++) {
        arenas[kind] = arenas_of(server, gpu);
        gpu += server->profile->gpus[kind].count;
    }
    if (partition_standing_set_arenas(planner->standing, arenas) == CORE_OK)
        return CORE_OK;
    return core_error_set(error, CORE_NO_MEMORY, "no memory for the plans of the GPUs");
}

static core_status create_standing(struct server_planner *planner, struct core_error *error)
{
    const struct server *server = planner->server;

    core_status status = partition_standing_create(&planner->standing, server->profile, server->worker_count,
                                                   server->io_count, error);
    if (status == CORE_OK)
        status = set_arenas(planner, error);
    if (status != CORE_OK)
        return status;
    partition_standing_set_hurried(planner->standing, hurried, planner);
    partition_standing_set_detection(planner->standing,
                                     server_gpu_detection_ns(server->config, server->profile));
    return CORE_OK;
}

static core_status create(struct server_planner *planner, struct core_error *error)
{
    const struct server *server = planner->server;

    planner->mailbox.descriptor = -1;
    planner->worker_loads = calloc(server->worker_count, sizeof *planner->worker_loads);
    planner->io_loads = calloc(server->io_count, sizeof *planner->io_loads);
    planner->cards = calloc(server->gpu_count + 1, sizeof *planner->cards);
    if (planner->worker_loads == NULL || planner->io_loads == NULL || planner->cards == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the planner");
    core_status status = server_mailbox_init(&planner->mailbox, error);
    if (status == CORE_OK)
        status = server_memory_start(&planner->memory, server->config->limits.buffer_bytes, error);
    if (status == CORE_OK)
        status = create_standing(planner, error);
    return status == CORE_OK ? server_planner_start_replanner(planner, error) : status;
}

core_status server_planner_start(struct server_planner **planner, struct server *server,
                                 struct core_error *error)
{
    bool realtime = server->config->threads.realtime != CONFIG_REALTIME_OFF;
    /* Below every thread that packets pass through, above everything that is not real-time: an answer takes
     * tens of microseconds and must not wait for some other process's turn. */
    struct core_thread_options thread = {.name = "planner", .fifo_priority = realtime ? 1 : 0, .cpu = -1};
    struct server_planner *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the planner");
    fresh->server = server;
    core_status status = create(fresh, error);
    if (status == CORE_OK) {
        for (uint32_t worker = 0; worker < server->worker_count; worker++)
            publish_worker(fresh, worker);
        status = core_thread_start(&fresh->thread, &thread, run, fresh, NULL, error);
    }
    if (status != CORE_OK) {
        destroy(fresh);
        return status;
    }
    *planner = fresh;
    return CORE_OK;
}

void server_planner_stop(struct server_planner *planner)
{
    planner->stop_message.run = stop;
    server_mailbox_post(&planner->mailbox, &planner->stop_message);
    pthread_join(planner->thread, NULL);
    destroy(planner);
}

void server_planner_ask(struct server_planner *planner, struct server_request *request)
{
    request->message.run = wait_for_turn;
    server_mailbox_post(&planner->mailbox, &request->message);
}

void server_planner_wipe(struct server_planner *planner, struct server_block *blocks)
{
    server_memory_wipe(planner->memory, blocks);
}

struct server_mailbox *server_planner_mailbox(struct server_planner *planner)
{
    return &planner->mailbox;
}

void server_planner_cleared(struct server_planner *planner, struct server_grant *grant)
{
    grant->message.run = take_back;
    server_mailbox_post(&planner->mailbox, &grant->message);
}

void server_planner_release(struct server_planner *planner, struct server_grant *grant)
{
    if (grant->gpu != SERVER_NO_GPU)
        server_gpu_clear(planner->server->gpus[grant->gpu], grant); /* and from there to us */
    else
        server_planner_cleared(planner, grant);
}

const struct server_planner_load *server_planner_worker_load(const struct server_planner *planner,
                                                             uint32_t worker)
{
    return &planner->worker_loads[worker];
}

const struct server_planner_load *server_planner_io_load(const struct server_planner *planner, uint32_t io)
{
    return &planner->io_loads[io];
}

const struct server_planner_figures *server_planner_figures(const struct server_planner *planner)
{
    return &planner->figures;
}
