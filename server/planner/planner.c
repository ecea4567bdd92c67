/* The planner thread: its life, requests, and reservations that come back. */
#include "core/log.h"
#include "core/realtime.h"
#include "server/planner/internal.h"

#include <stdlib.h>

#define RECLAIM_MS 1  /* between looks at units that have not paused yet */
#define WATCH_MS   5  /* between looks at GPUs */
#define CUTS_MAX   32 /* a refusal that was cut off so often is told why, whoever waits */

#define MOVE_PATIENCE_NS CORE_NS_PER_S          /* timeout of migrations that no request waits for */
#define SCAN_NS          (200 * CORE_NS_PER_MS) /* after a scan in which some stream found no capacity */
#define RETUNE_NS        CORE_NS_PER_S
#define CALM_NS          (3 * CORE_NS_PER_S) /* after another batch period was seen */

#define MOVABLE_BYTES_MAX                                                                                    \
    (UINT64_C(256) << 10) /* packet memory of a stream on a worker that may go to a GPU */

const char server_planner_no_room[] =
    "the server's memory for packets (limits.buffer_mib) is used up; ask for a smaller burst or packet, or a "
    "shorter latency bound";

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
    else if (atomic_load_explicit(&planner->server->draining, memory_order_relaxed) ||
             atomic_load_explicit(&planner->server->leaving, memory_order_relaxed))
        refuse(request, PROTOCOL_REFUSED_DRAINING, "the server is stopping; connect to another one");
    else if (planner->streams >= limits->streams)
        refuse(request, PROTOCOL_REFUSED_LIMIT,
               "the server's limit of open streams (limits.streams) is reached");
    else if (admission_streams(partition_planner_admission(planner->inner)) >= PARTITION_PLAN_STREAMS_MAX)
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
    uint32_t packets = planner->stream_ops->queue_packets(spec, planner->stream_ops->gpu_packets(spec));

    *movable =
        server_planner_is_gpu(planner, unit) ||
        (server->gpu_count > 0 && planner->stream_ops->buffer_bytes(spec, packets) <= MOVABLE_BYTES_MAX);
    return *movable ? packets
                    : planner->stream_ops->queue_packets(
                          spec, perfmodel_cpu_backlog_packets(spec, server->profile));
}

/* Now that its unit is known. */
static bool reserve_memory(const struct server_planner *planner, struct server_request *request,
                           uint32_t unit)
{
    const struct core_stream_spec *spec = &request->open.spec;
    struct server_memory_request *memory = &request->memory;

    memory->packets = server_planner_queue_packets(planner, spec, unit, &request->movable);
    memory->bytes = planner->stream_ops->buffer_bytes(spec, memory->packets);
    if (server_planner_has_memory(planner, memory->bytes))
        return true;
    refuse(request, PROTOCOL_REFUSED_LIMIT, server_planner_no_room);
    return false;
}

struct server_backup server_planner_backup_of(const struct admission_placement *placement)
{
    return (struct server_backup){.unit = placement->backup_unit,
                                  .task = placement->backup_task,
                                  .gpu_bound_ns = placement->gpu_bound_ns,
                                  .detection_ns = placement->detection_ns,
                                  .bound_ns = placement->backup_bound_ns,
                                  .reserved_ppb = placement->reserved_ppb};
}

/* The binding of its backup to a GPU, if it is on one. */
static struct server_secondary secondary_of(const struct server_planner *planner,
                                            const struct admission_placement *placement)
{
    uint32_t unit = placement->backup_unit;

    return (struct server_secondary){.gpu = unit != ADMISSION_NONE ? server_planner_gpu_of(planner, unit)
                                                                   : SERVER_NO_GPU,
                                     .slot = SERVER_GPU_NO_SLOT};
}

static void query(struct server_planner *planner, struct server_request *request)
{
    struct admission_placement *placement = &request->placement;

    if (admission_query(partition_planner_admission(planner->inner), &request->open.spec, request->io, true,
                        placement, NULL) != CORE_OK)
        refuse(request, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory");
    else if (!placement->accepted)
        refuse(request, PROTOCOL_REFUSED_CAPACITY, NULL);
    else if (reserve_memory(planner, request, placement->unit))
        request->gpu = server_planner_gpu_of(planner, placement->unit);
}

struct memory_question {
    const struct server_planner *planner;
    struct server_request *request;
};

static bool fits(void *context, uint32_t unit, bool *movable)
{
    const struct memory_question *question = context;

    bool fit = reserve_memory(question->planner, question->request, unit);

    *movable = question->request->movable;
    return fit;
}

/* The stream was admitted. */
static void fill_in(struct server_planner *planner, struct server_request *request,
                    struct server_reservation *reservation)
{
    const struct admission_placement *placement = &request->placement;
    const struct partition_planner_plans plans =
        partition_planner_plans_of(planner->inner, placement->stream);

    request->gpu = server_planner_gpu_of(planner, placement->unit);
    request->plan = plans.number[0];
    request->secondary_plan = plans.number[1];
    request->reservation = reservation;
    *reservation = (struct server_reservation){.stream = placement->stream,
                                               .unit = placement->unit,
                                               .gpu = request->gpu,
                                               .backup = server_planner_backup_of(placement),
                                               .secondary = secondary_of(planner, placement),
                                               .io = request->io,
                                               .mailbox = request->reply,
                                               .buffer_bytes = request->memory.bytes,
                                               .gpu_slot = SERVER_GPU_NO_SLOT};
    server_planner_count_backup(planner, reservation, 1);
    planner->streams++;
    planner->buffer_bytes += request->memory.bytes;
}

void server_planner_admit(struct server_planner *planner, struct server_request *request)
{
    struct memory_question question = {.planner = planner, .request = request};
    const struct partition_planner_memory memory = {.fits = fits, .context = &question};
    struct server_reservation *reservation = calloc(1, sizeof *reservation);
    core_status status = reservation == NULL
                             ? CORE_NO_MEMORY
                             : partition_planner_admit(planner->inner, &request->open.spec, request->io,
                                                       &memory, reservation, &request->placement);

    if (status == CORE_OK && request->placement.accepted) {
        fill_in(planner, request, reservation);
        return;
    }
    free(reservation);
    if (status == CORE_OK)
        refuse(request, PROTOCOL_REFUSED_CAPACITY, NULL);
    else if (status != CORE_FULL) /* that refusal is set */
        refuse(request, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory");
}

/* ---- reservations that come back ---- */

static void take_back(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    const struct server_reservation *reservation = (struct server_reservation *)message;

    partition_planner_retire(planner->inner, reservation->stream, &reservation->use);
}

/* The batcher returns it to `left`. */
static void leave_slot(struct server_planner *planner, struct server_reservation *reservation, uint32_t gpu,
                       uint32_t slot, uint64_t last_batch, void (*left)(void *, struct server_message *))
{
    reservation->leave.reply = &planner->mailbox;
    reservation->leave.left = left;
    reservation->leave.slot = slot;
    reservation->leave.batch = last_batch;
    server_gpu_leave_slot(planner->server->gpus[gpu], &reservation->leave);
}

static void leave_secondary(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_reservation *reservation = (struct server_reservation *)message;
    const struct server_secondary *secondary = &reservation->secondary;

    if (secondary->gpu != SERVER_NO_GPU)
        leave_slot(planner, reservation, secondary->gpu, secondary->slot, reservation->use.backup_mark,
                   take_back);
    else
        take_back(planner, message);
}

/* ---- turns ---- */

static bool cancelled(void *owner)
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
    if (!server_planner_put_off(planner, message) && !server_planner_wait_for_room(planner, request))
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
    if (request->reservation == NULL) {
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
    if (partition_planner_waits(planner->inner))
        return RECLAIM_MS;
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
    planner->house_ns = now_ns + RECLAIM_MS * CORE_NS_PER_MS;
    partition_planner_step(planner->inner, now_ns);
    partition_planner_maintain(planner->inner, now_ns);
}

/* Mail before each request, so that no connection is overlooked whose turn it is. */
static void *run(void *argument)
{
    struct server_planner *planner = argument;
    while (!planner->stopping) {
        server_mailbox_wait(&planner->mailbox, planner, patience_ms(planner));
        partition_planner_step(planner->inner, core_time_now_ns());
        take_turn(planner);
        keep_house(planner);
        server_planner_check_plan(planner);
    }
    return NULL;
}

static void destroy(struct server_planner *planner)
{
    server_planner_stop_replanner(planner);
    server_planner_drop_migrations(planner);
    server_planner_drop_modifies(planner);
    partition_planner_destroy(planner->inner);
    server_memory_stop(planner->memory);
    server_mailbox_destroy(&planner->mailbox);
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

/* GPUs of a kind have arenas of one shape. */
static core_status set_arenas(const struct server *server, struct admission *admission,
                              struct core_error *error)
{
    struct partition_gpu_arenas arenas[CONFIG_PROFILE_GPU_KINDS_MAX];
    uint32_t gpu = 0;

    for (uint32_t kind = 0; kind < server->profile->gpu_count; kind++) {
        arenas[kind] = arenas_of(server, gpu);
        gpu += server->profile->gpus[kind].count;
    }
    if (admission_set_arenas(admission, arenas) == CORE_OK)
        return CORE_OK;
    return core_error_set(error, CORE_NO_MEMORY, "no memory for the plans of the GPUs");
}

static core_status create_inner(struct server_planner *planner, struct core_error *error)
{
    const struct server *server = planner->server;
    const struct partition_planner_options options = {.workers = server->worker_count,
                                                      .gpus = server->gpu_count,
                                                      .wait_ns = server->config->timeouts.move_ns,
                                                      .timeout_ns = MOVE_PATIENCE_NS,
                                                      .scan_ns = SCAN_NS,
                                                      .retune_ns = RETUNE_NS,
                                                      .calm_ns = CALM_NS};
    struct admission *admission;

    core_status status =
        admission_create(&admission, server->profile, server->worker_count, server->io_count, error);
    if (status != CORE_OK)
        return status;
    status = set_arenas(server, admission, error);
    if (status != CORE_OK) {
        admission_destroy(admission);
        return status;
    }
    admission_set_cancel(admission, cancelled, planner);
    admission_set_detection(admission, server_gpu_detection_ns(server->config, server->profile));
    return partition_planner_create(&planner->inner, admission, &options, &server_planner_host, planner,
                                    error);
}

static core_status create(struct server_planner *planner, struct core_error *error)
{
    const struct server *server = planner->server;

    planner->mailbox.descriptor = -1;
    planner->worker_loads = calloc(server->worker_count, sizeof *planner->worker_loads);
    planner->io_loads = calloc(server->io_count, sizeof *planner->io_loads);
    if (planner->worker_loads == NULL || planner->io_loads == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the planner");
    core_status status = server_mailbox_init(&planner->mailbox, error);
    if (status == CORE_OK)
        status = server_memory_start(&planner->memory, planner->stream_ops->memory,
                                     server->config->limits.buffer_bytes, error);
    if (status == CORE_OK)
        status = create_inner(planner, error);
    return status == CORE_OK ? server_planner_start_replanner(planner, error) : status;
}

core_status server_planner_start(struct server_planner **planner, struct server *server,
                                 const struct server_planner_stream_ops *stream_ops, struct core_error *error)
{
    bool realtime = server->config->threads.realtime != CONFIG_REALTIME_OFF;
    /* Below every thread that packets pass through, above everything that is not real-time: an answer takes
     * tens of microseconds and must not wait for some other process's turn. */
    struct core_thread_options thread = {.name = "planner", .fifo_priority = realtime ? 1 : 0, .cpu = -1};
    struct server_planner *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the planner");
    fresh->server = server;
    fresh->stream_ops = stream_ops;
    core_status status = create(fresh, error);
    if (status == CORE_OK) {
        for (uint32_t worker = 0; worker < server->worker_count; worker++)
            server_planner_publish(fresh, worker, 0);
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

void server_planner_release(struct server_planner *planner, struct server_reservation *reservation)
{
    reservation->leave.message.run = take_back;
    if (reservation->gpu != SERVER_NO_GPU)
        leave_slot(planner, reservation, reservation->gpu, reservation->gpu_slot, reservation->use.mark,
                   leave_secondary);
    else
        server_mailbox_post(&planner->mailbox, &reservation->leave.message);
}

/* As limits.streams and limits.buffer_mib allow, were they all on workers. */
static uint32_t streams_left(const struct server_planner *planner, const struct core_stream_spec *spec)
{
    const struct config_server_limits *limits = &planner->server->config->limits;
    bool movable;
    const uint32_t packets = server_planner_queue_packets(planner, spec, 0, &movable);
    const uint64_t bytes = planner->stream_ops->buffer_bytes(spec, packets);
    const uint64_t by_memory = (limits->buffer_bytes - planner->buffer_bytes) / bytes;
    const uint64_t by_count = planner->streams < limits->streams ? limits->streams - planner->streams : 0;

    return (uint32_t)(by_memory < by_count ? by_memory : by_count);
}

static void make_copy(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_planner_copy *copy = (struct server_planner_copy *)message;
    const struct admission *admission = partition_planner_admission(planner->inner);

    copy->admission = NULL;
    if (copy->changes != admission_changes(admission) &&
        admission_copy(admission, &copy->admission) == CORE_OK) {
        copy->changes = admission_changes(admission);
        copy->streams_max = streams_left(planner, copy->typical);
    }
    message->run = copy->copied;
    server_mailbox_post(copy->reply, message);
}

void server_planner_copy(struct server_planner *planner, struct server_planner_copy *copy)
{
    copy->message.run = make_copy;
    server_mailbox_post(&planner->mailbox, &copy->message);
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
