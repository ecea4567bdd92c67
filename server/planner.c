#include "server/planner.h"

#include "core/log.h"
#include "core/realtime.h"
#include "server/state.h"

#include <stdlib.h>

#define SWEEP_MS 1 /* between looks at workers that have not paused yet */

struct server_planner {
    struct server *server;
    struct server_mailbox mailbox;
    struct server_message stop_message;
    struct partition_workers *workers; /* planner thread */
    uint64_t streams, buffer_bytes;    /* planner thread: granted in all */
    struct server_grant *leaving;      /* planner thread: given back, their worker has not paused since */
    bool stopping;                     /* planner thread */
    struct server_planner_load *worker_loads, *io_loads;
    pthread_t thread;
};

static void publish(struct server_planner *planner, uint32_t worker, uint32_t io)
{
    struct partition_worker_load load = partition_workers_load(planner->workers, worker);
    struct server_planner_load *target = &planner->worker_loads[worker];
    atomic_store_explicit(&target->streams, load.streams, memory_order_relaxed);
    atomic_store_explicit(&target->utilisation_ppb, load.utilisation_ppb, memory_order_relaxed);
    atomic_store_explicit(&target->headroom_ppb, load.headroom_ppb, memory_order_relaxed);
    int64_t io_ppb = partition_workers_io_ppb(planner->workers, io);
    atomic_store_explicit(&planner->io_loads[io].utilisation_ppb, io_ppb, memory_order_relaxed);
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

    if (atomic_load_explicit(&planner->server->draining, memory_order_relaxed))
        refuse(request, PROTOCOL_REFUSED_DRAINING, "the server is stopping; connect to another one");
    else if (planner->streams >= limits->streams)
        refuse(request, PROTOCOL_REFUSED_LIMIT,
               "the server's limit of open streams (limits.streams) is reached");
    else if (planner->buffer_bytes + request->buffer_bytes > limits->buffer_bytes)
        refuse(request, PROTOCOL_REFUSED_LIMIT,
               "the server's memory for packets (limits.buffer_mib) is used up; ask for a smaller burst or "
               "packet");
    else
        return true;
    return false;
}

static void admit(struct server_planner *planner, struct server_request *request)
{
    struct server_grant *grant = calloc(1, sizeof *grant);
    if (grant == NULL) {
        refuse(request, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory");
        return;
    }
    partition_workers_admit(planner->workers, &request->open.spec, request->io, &request->placement);
    if (!request->placement.accepted) {
        free(grant);
        refuse(request, PROTOCOL_REFUSED_CAPACITY, NULL);
        return;
    }
    grant->placement = request->placement;
    grant->io = request->io;
    grant->buffer_bytes = request->buffer_bytes;
    request->grant = grant;
    planner->streams++;
    planner->buffer_bytes += request->buffer_bytes;
    publish(planner, grant->placement.worker, grant->io);
}

static bool may_leave(const struct server_planner *planner, const struct server_grant *grant)
{
    const struct cpu_worker *worker = planner->server->workers[grant->placement.worker];
    return !grant->worked ||
           atomic_load_explicit(&cpu_worker_counters(worker)->pauses, memory_order_relaxed) > grant->pauses;
}

static void release(struct server_planner *planner, struct server_grant *grant)
{
    partition_workers_release(planner->workers, &grant->placement, grant->io);
    planner->streams--;
    planner->buffer_bytes -= grant->buffer_bytes;
    publish(planner, grant->placement.worker, grant->io);
    free(grant);
}

static struct server_grant *next_grant(const struct server_grant *grant)
{
    return (struct server_grant *)grant->message.next;
}

/* Releases those among the leaving whose worker has paused. */
static void sweep(struct server_planner *planner)
{
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

static void take_back(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    message->next = (struct server_message *)planner->leaving;
    planner->leaving = (struct server_grant *)message;
}

static void decide(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    struct server_request *request = (struct server_request *)message;

    sweep(planner);
    if (within_limits(planner, request)) {
        if (!request->is_query)
            admit(planner, request);
        else {
            partition_workers_query(planner->workers, &request->open.spec, request->io, true,
                                    &request->placement);
            if (!request->placement.accepted)
                refuse(request, PROTOCOL_REFUSED_CAPACITY, NULL);
        }
    }
    request->decided_ns = core_time_now_ns() - request->received_ns;
    request->message.run = request->answered;
    server_mailbox_post(request->reply, &request->message);
}

static void stop(void *owner, struct server_message *message)
{
    struct server_planner *planner = owner;
    (void)message;
    planner->stopping = true;
}

static void *run(void *argument)
{
    struct server_planner *planner = argument;
    while (!planner->stopping) {
        server_mailbox_wait(&planner->mailbox, planner, planner->leaving != NULL ? SWEEP_MS : -1);
        sweep(planner);
    }
    return NULL;
}

static void destroy(struct server_planner *planner)
{
    while (planner->leaving != NULL) {
        struct server_grant *grant = planner->leaving;
        planner->leaving = next_grant(grant);
        free(grant);
    }
    server_mailbox_destroy(&planner->mailbox);
    partition_workers_destroy(planner->workers);
    free(planner->worker_loads);
    free(planner->io_loads);
    free(planner);
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
    fresh->mailbox.descriptor = -1;
    fresh->worker_loads = calloc(server->worker_count, sizeof *fresh->worker_loads);
    fresh->io_loads = calloc(server->io_count, sizeof *fresh->io_loads);
    core_status status = fresh->worker_loads == NULL || fresh->io_loads == NULL
                             ? core_error_set(error, CORE_NO_MEMORY, "no memory for the planner")
                             : server_mailbox_init(&fresh->mailbox, error);
    if (status == CORE_OK)
        status = partition_workers_create(&fresh->workers, server->profile, server->worker_count,
                                          server->io_count, error);
    if (status == CORE_OK) {
        for (uint32_t worker = 0; worker < server->worker_count; worker++)
            publish(fresh, worker, 0);
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
    request->message.run = decide;
    server_mailbox_post(&planner->mailbox, &request->message);
}

void server_planner_release(struct server_planner *planner, struct server_grant *grant)
{
    grant->message.run = take_back;
    server_mailbox_post(&planner->mailbox, &grant->message);
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
