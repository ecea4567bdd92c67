#include "gpu/engine.h"

#include "core/secret.h"
#include "gpu/child.h"
#include "gpu/keeper.h"
#include "gpu/process.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define FLIGHTS      GPU_REGION_ARENAS_MAX
#define HANG_PERIODS 8
#define START_NS     (30 * CORE_NS_PER_S)
#define SILENCE_NS   CORE_NS_PER_S
#define RESTART_NS   (100 * CORE_NS_PER_MS)
#define RESTART_MAX  (30 * CORE_NS_PER_S)
#define KILL_NS      (250 * CORE_NS_PER_MS) /* how long the kernel may take to end a child */
#define PAUSE_TIMES  10                     /* the child's patience with the server, in silence_ns */
#define POLL_NS      (4 * CORE_NS_PER_MS)   /* with batches under way: whether the child's loop is there */
#define BEATS        8                      /* of the child, in silence_ns */

/* A batch that the child has. */
struct flight {
    struct gpu_order order;
    core_ns period_ns, submitted_ns;
};

/* A GPU as its server process sees it: the child, the memory shared with it, and the orders under way. */
struct gpu_engine {
    struct gpu_engine_options options; /* texts are our own copies */
    char *program, *backend, *uuid;
    struct gpu_process_options child; /* the keeper's to read */
    struct gpu_channel channel;
    bool asked; /* a process is being started */
    struct gpu_process process;
    pid_t loop;                 /* the thread of a READY child that serves */
    struct gpu_process_end end; /* of the process that ended last */
    struct gpu_keeper *keeper;  /* starts children, and collects those that have ended */
    int news;                   /* eventfd: the keeper's, who has started one */
    int descriptor;             /* epoll: news, the channel's wake-ups, and the process's end */
    enum gpu_engine_state state;
    struct flight flights[FLIGHTS]; /* ring */
    uint64_t flights_put, flights_taken;
    core_ns started_ns, polled_ns;
    core_ns progress_ns;    /* a batch came back, or the first was submitted */
    uint64_t beats;         /* the child's, as last seen */
    core_ns beats_ns;       /* when they last changed */
    struct gpu_fault fault; /* ENDING: to be told once the child is gone */
    bool unexplained;       /* ENDING: the child ends by itself, how is to be told with the fault */
    core_ns ending_ns;
    core_ns back_off_ns, restart_ns;
    bool resizing; /* the child was asked for next_room */
    struct gpu_room next_room;
};

const char *gpu_fault_name(enum gpu_fault_kind kind)
{
    static const char *const names[] = {
        [GPU_FAULT_START] = "start", [GPU_FAULT_EXITED] = "exited", [GPU_FAULT_SIGNALLED] = "signalled",
        [GPU_FAULT_HUNG] = "hung",   [GPU_FAULT_DEVICE] = "device", [GPU_FAULT_CORRUPT] = "corrupt"};
    return kind >= GPU_FAULT_START && kind <= GPU_FAULT_CORRUPT ? names[kind] : "unknown";
}

/* ---- opening ---- */

static void default_ns(core_ns *value_ns, core_ns default_value_ns)
{
    if (*value_ns == 0)
        *value_ns = default_value_ns;
}

static core_status options_take(struct gpu_engine *engine, const struct gpu_engine_options *options,
                                struct core_error *error)
{
    struct gpu_engine_options *own = &engine->options;
    *own = *options;
    if (own->hang_periods == 0)
        own->hang_periods = HANG_PERIODS;
    default_ns(&own->start_ns, START_NS);
    default_ns(&own->silence_ns, SILENCE_NS);
    default_ns(&own->kill_ns, KILL_NS);
    default_ns(&own->restart_first_ns, RESTART_NS);
    default_ns(&own->restart_max_ns, RESTART_MAX);
    if (own->start_ns < 0 || own->silence_ns < 0 || own->kill_ns < 0 || own->restart_first_ns < 0 ||
        own->restart_max_ns < own->restart_first_ns)
        return core_error_set(error, CORE_INVALID, "the GPU engine's timeouts are out of range");
    if (access(options->program, X_OK) != 0) {
        (void)core_error_errno(error, "%s can not be run", options->program);
        return CORE_NOT_FOUND;
    }
    own->program = engine->program = strdup(options->program);
    own->backend = engine->backend = strdup(options->backend);
    if (options->uuid != NULL)
        own->uuid = engine->uuid = strdup(options->uuid);
    if (engine->program == NULL || engine->backend == NULL || (options->uuid != NULL && engine->uuid == NULL))
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU engine");
    return options->emulation != NULL ? gpu_emulation_check(options->emulation, error) : CORE_OK;
}

static bool watch(const struct gpu_engine *engine, int descriptor)
{
    struct epoll_event readable = {.events = EPOLLIN};
    return epoll_ctl(engine->descriptor, EPOLL_CTL_ADD, descriptor, &readable) == 0;
}

static void ignore(const struct gpu_engine *engine, int descriptor)
{
    (void)epoll_ctl(engine->descriptor, EPOLL_CTL_DEL, descriptor, NULL);
}

static core_status channel_open(struct gpu_engine *engine, struct core_error *error)
{
    const struct gpu_engine_options *options = &engine->options;
    struct gpu_channel_start start = {
        .fifo_priority = options->fifo_priority,
        .beat_ns = options->silence_ns / BEATS,
        .silence_ns = options->silence_ns * PAUSE_TIMES,
        .has_emulation = options->emulation != NULL,
        .kernel_forms = options->kernel_forms,
        .sandbox = (uint32_t)options->sandbox,
        .room = options->region->room,
    };
    if (options->emulation != NULL)
        start.emulation = *options->emulation;
    core_status status = gpu_channel_create(&engine->channel, &start, error);
    if (status != CORE_OK)
        return status;
    engine->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->news >= 0)
        engine->descriptor = epoll_create1(EPOLL_CLOEXEC);
    if (engine->descriptor < 0 || !watch(engine, engine->news))
        return core_error_errno(error, "can not make the descriptors of a GPU engine");
    engine->child = (struct gpu_process_options){
        .program = engine->program,
        .backend = engine->backend,
        .device = options->device,
        .uuid = engine->uuid,
        .user = options->user,
        .inherited = {options->region->descriptor, engine->channel.memory_descriptor},
    };
    return CORE_OK;
}

core_status gpu_engine_open(struct gpu_engine **opened, const struct gpu_engine_options *options,
                            struct core_error *error)
{
    struct gpu_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU engine");
    engine->descriptor = engine->news = -1;
    engine->process = GPU_PROCESS_NONE;
    engine->channel = (struct gpu_channel){.memory_descriptor = -1};
    core_status status = options_take(engine, options, error);
    if (status == CORE_OK)
        status = channel_open(engine, error);
    if (status == CORE_OK)
        status = gpu_keeper_start(&engine->keeper, &engine->child, engine->news, error);
    if (status != CORE_OK) {
        gpu_engine_close(engine);
        return status;
    }
    *opened = engine;
    return CORE_OK;
}

void gpu_engine_close(struct gpu_engine *engine)
{
    if (engine == NULL)
        return;
    gpu_engine_stop(engine, CORE_NS_PER_S);
    gpu_keeper_stop(engine->keeper);
    gpu_channel_destroy(&engine->channel);
    if (engine->descriptor >= 0)
        close(engine->descriptor);
    if (engine->news >= 0)
        close(engine->news);
    free(engine->program);
    free(engine->backend);
    free(engine->uuid);
    free(engine);
}

/* ---- starting ---- */

static void back_off(struct gpu_engine *engine, core_ns now_ns)
{
    const struct gpu_engine_options *options = &engine->options;
    const bool soon = engine->back_off_ns > 0 && now_ns - engine->started_ns < options->restart_max_ns;
    engine->back_off_ns = soon ? engine->back_off_ns * 2 : options->restart_first_ns;
    if (engine->back_off_ns > options->restart_max_ns)
        engine->back_off_ns = options->restart_max_ns;
    engine->restart_ns = now_ns + engine->back_off_ns;
}

static core_status process_watch(struct gpu_engine *engine, struct core_error *error)
{
    if (watch(engine, engine->process.descriptor) && watch(engine, engine->process.socket))
        return CORE_OK;
    return core_error_errno(error, "can not watch a GPU's process");
}

static void fail(struct gpu_engine *engine, core_ns now_ns, enum gpu_fault_kind kind, int code,
                 const char *text);

/* Fetches the process that was asked for. Where a fault has come meanwhile it ends at once. */
static void process_fetch(struct gpu_engine *engine)
{
    struct core_error error = {""};
    core_status status = gpu_keeper_asked(engine->keeper, &engine->process, &error);
    if (status == CORE_AGAIN)
        return;
    engine->asked = false;
    if (status == CORE_OK)
        status = process_watch(engine, &error);
    if (status != CORE_OK)
        fail(engine, engine->polled_ns, GPU_FAULT_START, 0, error.text);
    if (engine->state != GPU_ENGINE_STARTING)
        gpu_process_kill(&engine->process);
}

/* Whether there is none any more. One that has just ended is the keeper's from here on. */
static bool process_ended(struct gpu_engine *engine)
{
    if (engine->asked)
        process_fetch(engine);
    if (engine->process.pid == 0)
        return !engine->asked;
    if (!gpu_process_ended(&engine->process, &engine->end))
        return false;
    ignore(engine, engine->process.descriptor); /* both stay readable */
    ignore(engine, engine->process.socket);
    gpu_keeper_take(engine->keeper, &engine->process);
    return true;
}

core_status gpu_engine_start(struct gpu_engine *engine, core_ns now_ns, struct core_error *error)
{
    if (engine->state != GPU_ENGINE_DOWN)
        return core_error_set(error, CORE_INVALID, "the GPU's process is already running");
    if (now_ns < engine->restart_ns || !gpu_engine_gone(engine) || !gpu_keeper_has_room(engine->keeper))
        return core_error_set(error, CORE_AGAIN,
                              "the GPU's process may not be restarted before its back-off ends");
    gpu_channel_reset(&engine->channel);
    engine->flights_put = engine->flights_taken = 0;
    engine->beats = 0;
    engine->resizing = false;
    engine->beats_ns = engine->polled_ns = now_ns;
    engine->loop = 0;
    engine->asked = true;
    engine->started_ns = now_ns;
    gpu_keeper_ask(engine->keeper);
    engine->state = GPU_ENGINE_STARTING;
    return CORE_OK;
}

/* ---- commands ---- */

/* No room in the socket, or no child: either way it needs no waking. */
static void child_wake(const struct gpu_engine *engine)
{
    while (send(engine->process.socket, "", 1, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

static core_status command_put(struct gpu_engine *engine, const struct gpu_command *command,
                               const struct gpu_channel_key *key)
{
    if (engine->state != GPU_ENGINE_READY)
        return CORE_AGAIN;
    const core_status status = gpu_channel_command_put(&engine->channel, command, key);
    if (status == CORE_OK)
        child_wake(engine);
    if (status != CORE_INVALID)
        return status;
    fail(engine, engine->polled_ns, GPU_FAULT_CORRUPT, 0,
         "the GPU's process wrote an invalid index to the channel");
    return CORE_AGAIN;
}

static bool has_key_slot(const struct gpu_engine *engine, uint32_t key_slot)
{
    return key_slot < gpu_key_slot(engine->options.region->shape.slots, 0);
}

core_status gpu_engine_key_set(struct gpu_engine *engine, uint32_t key_slot, const uint8_t *key,
                               uint32_t key_bytes, const uint8_t *chain)
{
    if (!has_key_slot(engine, key_slot) || (key_bytes != 16 && key_bytes != 24 && key_bytes != 32))
        return CORE_INVALID;
    const struct gpu_command command = {.kind = GPU_COMMAND_KEY_SET, .key_slot = key_slot};
    struct gpu_channel_key entry = {.key_bytes = key_bytes, .has_chain = chain != NULL};
    memcpy(entry.key, key, key_bytes);
    if (chain != NULL)
        memcpy(entry.chain, chain, GPU_BLOCK_BYTES);
    const core_status status = command_put(engine, &command, &entry);
    core_secret_wipe(&entry, sizeof entry);
    return status;
}

core_status gpu_engine_key_clear(struct gpu_engine *engine, uint32_t key_slot)
{
    if (!has_key_slot(engine, key_slot))
        return CORE_INVALID;
    return command_put(engine, &(struct gpu_command){.kind = GPU_COMMAND_KEY_CLEAR, .key_slot = key_slot},
                       NULL);
}

void gpu_engine_set_room(struct gpu_engine *engine, const struct gpu_room *room)
{
    engine->channel.start.room = *room;
}

core_status gpu_engine_resize(struct gpu_engine *engine, const struct gpu_room *room)
{
    const core_status status =
        command_put(engine, &(struct gpu_command){.kind = GPU_COMMAND_ROOM, .room = *room}, NULL);
    if (status == CORE_OK) {
        engine->resizing = true;
        engine->next_room = *room;
    }
    return status;
}

struct gpu_order gpu_order_of(const struct gpu_arena_batch *batch)
{
    return (struct gpu_order){.number = batch->number,
                              .arena = batch->arena,
                              .job_count = batch->job_count,
                              .segment_count = batch->segment_count,
                              .used_bytes = batch->used_bytes};
}

static bool arena_in_flight(const struct gpu_engine *engine, uint32_t arena)
{
    for (uint64_t i = engine->flights_taken; i < engine->flights_put; i++)
        if (engine->flights[i % FLIGHTS].order.arena == arena)
            return true;
    return false;
}

core_status gpu_engine_submit(struct gpu_engine *engine, const struct gpu_order *order, core_ns period_ns,
                              core_ns now_ns, struct core_error *error)
{
    const unsigned long long number = order->number;
    core_status status = gpu_order_check(order, &engine->options.region->shape, error);
    if (status != CORE_OK)
        return status;
    if (period_ns <= 0 || arena_in_flight(engine, order->arena))
        return core_error_set(error, CORE_INVALID,
                              "batch %llu: its period is 0, or its arena is still in use", number);
    if (engine->flights_put > engine->flights_taken &&
        engine->flights[(engine->flights_put - 1) % FLIGHTS].order.number >= number)
        return core_error_set(error, CORE_INVALID, "batch %llu was submitted after a later batch", number);
    status = command_put(engine, &(struct gpu_command){.kind = GPU_COMMAND_BATCH, .order = *order}, NULL);
    if (status != CORE_OK)
        return core_error_set(error, status, "batch %llu: the GPU's process does not accept it now", number);
    if (engine->flights_put == engine->flights_taken)
        engine->progress_ns = now_ns;
    engine->flights[engine->flights_put++ % FLIGHTS] =
        (struct flight){.order = *order, .period_ns = period_ns, .submitted_ns = now_ns};
    return CORE_OK;
}

/* ---- faults ---- */

/* A fault begins; what becomes of the child is the caller's. */
static void fault_begin(struct gpu_engine *engine, core_ns now_ns, enum gpu_fault_kind kind, int code,
                        const char *text)
{
    engine->fault = (struct gpu_fault){.kind = kind, .code = code};
    snprintf(engine->fault.text, sizeof engine->fault.text, "%s", text);
    engine->state = GPU_ENGINE_ENDING;
    engine->unexplained = false;
    engine->ending_ns = now_ns;
}

static void fail(struct gpu_engine *engine, core_ns now_ns, enum gpu_fault_kind kind, int code,
                 const char *text)
{
    if (engine->state == GPU_ENGINE_DOWN || engine->state == GPU_ENGINE_ENDING)
        return;
    fault_begin(engine, now_ns, kind, code, text);
    gpu_process_kill(&engine->process);
}

void gpu_engine_condemn(struct gpu_engine *engine, core_ns now_ns, const char *text)
{
    fail(engine, now_ns, GPU_FAULT_CORRUPT, 0, text);
}

/* How it ended is known. */
static void fault_of_end(struct gpu_engine *engine, core_ns now_ns)
{
    char text[128];
    const struct gpu_process_end *end = &engine->end;
    const bool started = engine->state != GPU_ENGINE_STARTING;
    snprintf(text, sizeof text, "the GPU's process ended with %s %d", end->signalled ? "signal" : "exit code",
             end->code);
    fault_begin(engine, now_ns,
                end->signalled ? GPU_FAULT_SIGNALLED
                : started      ? GPU_FAULT_EXITED
                               : GPU_FAULT_START,
                end->code, text);
}

/* The child's loop is gone: nothing comes back any more. The rest of the child has priorities below those of
 * real-time threads, and on a busy machine may take long to follow it; how it ended is known only then. */
static void fault_of_loop(struct gpu_engine *engine, core_ns now_ns)
{
    fault_begin(engine, now_ns, GPU_FAULT_SIGNALLED, 0, "the GPU's process is ending, but slowly");
    engine->unexplained = true;
}

/* ENDING: tells the fault when the child is gone, or when the kernel takes too long to end it. */
static core_status poll_ending(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event)
{
    struct gpu_fault *fault = &engine->fault;
    fault->gone = gpu_engine_gone(engine);
    if (!fault->gone && now_ns - engine->ending_ns < engine->options.kill_ns)
        return CORE_AGAIN;
    if (fault->gone && engine->unexplained) {
        fault_of_end(engine, engine->ending_ns);
        fault->gone = true;
    }
    gpu_process_kill(&engine->process); /* where it was left to end by itself */
    fault->unfinished = (uint32_t)(engine->flights_put - engine->flights_taken);
    back_off(engine, now_ns);
    fault->restart_ns = engine->restart_ns;
    engine->state = GPU_ENGINE_DOWN;
    *event = (struct gpu_event){.kind = GPU_EVENT_FAULT, .fault = *fault};
    return CORE_OK;
}

/* ---- events ---- */

static core_ns hang_ns(const struct gpu_engine *engine)
{
    core_ns period_ns = CORE_NS_PER_S * 3600; /* whoever is in the most hurry waits for all before it */
    for (uint64_t i = engine->flights_taken; i < engine->flights_put; i++)
        if (engine->flights[i % FLIGHTS].period_ns < period_ns)
            period_ns = engine->flights[i % FLIGHTS].period_ns;
    const core_ns most_ns = period_ns * (core_ns)engine->options.hang_periods;
    return core_time_max(most_ns, engine->options.hang_least_ns);
}

/* When the watchdog bites, as things are now; what it says then. */
static core_ns watchdog_ns(const struct gpu_engine *engine, enum gpu_fault_kind *kind, int *code,
                           const char **text)
{
    if (engine->state == GPU_ENGINE_STARTING) {
        *kind = GPU_FAULT_START, *code = 0, *text = "the GPU's process was not ready in time";
        return engine->started_ns + engine->options.start_ns;
    }
    const core_ns silent_ns = engine->beats_ns + engine->options.silence_ns;
    const bool flying = engine->flights_put > engine->flights_taken;
    const core_ns hung_ns = flying ? engine->progress_ns + hang_ns(engine) : CORE_NS_NEVER;
    *kind = GPU_FAULT_HUNG;
    if (hung_ns < silent_ns) {
        *code = (int)engine->options.hang_periods, *text = "no batch came back in time";
        return hung_ns;
    }
    *code = 0, *text = "the GPU's process gives no sign of life";
    return silent_ns;
}

static void watchdog_look(struct gpu_engine *engine, core_ns now_ns)
{
    enum gpu_fault_kind kind;
    int code;
    const char *text;
    const uint64_t beats = gpu_channel_beats(&engine->channel, false);
    if (beats != engine->beats) {
        engine->beats = beats;
        engine->beats_ns = now_ns;
    }
    if (now_ns > watchdog_ns(engine, &kind, &code, &text))
        fail(engine, now_ns, kind, code, text);
}

static bool times_make_sense(const struct gpu_completion *completion)
{
    const struct gpu_stage_time *times = completion->batch.times;
    core_ns last_ns = 0;
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        if (times[stage].start_ns < last_ns || times[stage].end_ns < times[stage].start_ns)
            return false;
        last_ns = times[stage].end_ns;
    }
    const core_ns now_ns = core_time_now_ns(), uncertain_ns = completion->batch.uncertain_ns;
    return last_ns <= now_ns && uncertain_ns >= 0 && uncertain_ns <= now_ns;
}

static core_status batch_event(struct gpu_engine *engine, core_ns now_ns,
                               const struct gpu_completion *completion, struct gpu_event *event)
{
    const struct flight *oldest = &engine->flights[engine->flights_taken % FLIGHTS];
    if (engine->state != GPU_ENGINE_READY || engine->flights_taken == engine->flights_put ||
        oldest->order.number != completion->batch.number || !times_make_sense(completion)) {
        fail(engine, now_ns, GPU_FAULT_CORRUPT, 0,
             "the GPU's process reported a batch that was not submitted");
        return CORE_AGAIN;
    }
    *event = (struct gpu_event){.kind = GPU_EVENT_BATCH};
    event->batch.order = oldest->order;
    event->batch.uncertain_ns = completion->batch.uncertain_ns;
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        const struct gpu_stage_time *time = &completion->batch.times[stage];
        event->batch.times[stage] =
            (struct gpu_stage_time){.start_ns = core_time_max(time->start_ns, oldest->submitted_ns),
                                    .end_ns = core_time_max(time->end_ns, oldest->submitted_ns)};
    }
    engine->flights_taken++;
    engine->progress_ns = now_ns;
    return CORE_OK;
}

static core_status ready_event(struct gpu_engine *engine, core_ns now_ns,
                               const struct gpu_completion *completion, struct gpu_event *event)
{
    if (engine->state != GPU_ENGINE_STARTING) {
        fail(engine, now_ns, GPU_FAULT_CORRUPT, 0, "the GPU's process reported twice that it is ready");
        return CORE_AGAIN;
    }
    engine->state = GPU_ENGINE_READY;
    engine->loop = completion->thread;
    engine->beats_ns = now_ns; /* until now the start's limit alone counted */
    *event = (struct gpu_event){.kind = GPU_EVENT_READY, .facts = completion->facts};
    return CORE_OK;
}

static core_status room_event(struct gpu_engine *engine, core_ns now_ns,
                              const struct gpu_completion *completion, struct gpu_event *event)
{
    if (engine->state != GPU_ENGINE_READY || !engine->resizing) {
        fail(engine, now_ns, GPU_FAULT_CORRUPT, 0,
             "the GPU's process reported memory that was not asked for");
        return CORE_AGAIN;
    }
    engine->resizing = false;
    *event = (struct gpu_event){.kind = GPU_EVENT_ROOM};
    snprintf(event->room.text, sizeof event->room.text, "%s", completion->text);
    if (completion->text[0] == '\0')
        engine->channel.start.room = engine->next_room;
    return CORE_OK;
}

/* One completion as an event; CORE_AGAIN: there was none, or it began a fault. */
static core_status poll_channel(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event)
{
    struct gpu_completion completion;
    const core_status status = gpu_channel_completion_take(&engine->channel, &completion);
    if (status == CORE_AGAIN)
        return CORE_AGAIN;
    if (status != CORE_OK) {
        fail(engine, now_ns, GPU_FAULT_CORRUPT, 0,
             "the GPU's process wrote an invalid message to the channel");
        return CORE_AGAIN;
    }
    if (completion.kind == GPU_COMPLETION_READY)
        return ready_event(engine, now_ns, &completion, event);
    if (completion.kind == GPU_COMPLETION_BATCH)
        return batch_event(engine, now_ns, &completion, event);
    if (completion.kind == GPU_COMPLETION_ROOM)
        return room_event(engine, now_ns, &completion, event);
    fail(engine, now_ns, engine->state == GPU_ENGINE_STARTING ? GPU_FAULT_START : GPU_FAULT_DEVICE, 0,
         completion.text);
    return CORE_AGAIN;
}

/* A child that has closed its end is heard no more; its own end tells itself. */
static void wakes_clear(struct gpu_engine *engine)
{
    char wakes[GPU_PROCESS_WAKES];
    uint64_t count;
    (void)!read(engine->news, &count, sizeof count);
    if (read(engine->process.socket, wakes, sizeof wakes) == 0)
        ignore(engine, engine->process.socket);
}

core_status gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event)
{
    wakes_clear(engine); /* also of a child that is to be gone and is not yet */
    if (engine->state == GPU_ENGINE_DOWN)
        return CORE_AGAIN;
    engine->polled_ns = now_ns;
    gpu_channel_beat(&engine->channel, true);
    if (engine->state != GPU_ENGINE_ENDING) {
        /* First whether it has ended: then what it wrote before is all there. */
        const bool ended = process_ended(engine);
        const bool loop_ended = !ended && gpu_process_thread_ended(&engine->process, engine->loop);
        /* A child may be ready before the keeper has said that there is one. */
        const core_status status = engine->asked ? CORE_AGAIN : poll_channel(engine, now_ns, event);
        if (status == CORE_OK)
            return CORE_OK;
        if (engine->state != GPU_ENGINE_ENDING && ended)
            fault_of_end(engine, now_ns);
        else if (engine->state != GPU_ENGINE_ENDING && loop_ended)
            fault_of_loop(engine, now_ns);
        else if (engine->state != GPU_ENGINE_ENDING)
            watchdog_look(engine, now_ns);
    }
    return engine->state == GPU_ENGINE_ENDING ? poll_ending(engine, now_ns, event) : CORE_AGAIN;
}

int gpu_engine_descriptor(const struct gpu_engine *engine)
{
    return engine->descriptor;
}

core_ns gpu_engine_wake_ns(const struct gpu_engine *engine)
{
    enum gpu_fault_kind kind;
    int code;
    const char *text;
    if (engine->state == GPU_ENGINE_DOWN)
        return engine->restart_ns;
    if (engine->state == GPU_ENGINE_ENDING)
        return engine->ending_ns + engine->options.kill_ns;
    const core_ns bite_ns = watchdog_ns(engine, &kind, &code, &text);
    const core_ns look_ns =
        engine->flights_put > engine->flights_taken ? POLL_NS : engine->options.silence_ns / 2;
    const core_ns beat_ns = engine->polled_ns + look_ns;
    return bite_ns < beat_ns ? bite_ns + 1 : beat_ns;
}

bool gpu_engine_gone(struct gpu_engine *engine)
{
    return process_ended(engine);
}

/* ---- stopping ---- */

static void wait_for_end(struct gpu_engine *engine, core_ns longest_ns)
{
    const core_ns until_ns = core_time_now_ns() + longest_ns;
    for (;;) {
        wakes_clear(engine);
        const core_ns left_ns = until_ns - core_time_now_ns();
        if (gpu_engine_gone(engine) || left_ns <= 0)
            return;
        struct pollfd news = {.fd = engine->descriptor, .events = POLLIN};
        (void)poll(&news, 1, (int)(left_ns / CORE_NS_PER_MS) + 1);
    }
}

void gpu_engine_stop(struct gpu_engine *engine, core_ns grace_ns)
{
    const struct gpu_command stop = {.kind = GPU_COMMAND_STOP};
    if (engine->state == GPU_ENGINE_READY && command_put(engine, &stop, NULL) == CORE_OK)
        wait_for_end(engine, grace_ns);
    gpu_process_kill(&engine->process);
    wait_for_end(engine, KILL_NS);
    engine->state = GPU_ENGINE_DOWN;
    engine->restart_ns = 0;
    engine->back_off_ns = 0;
}

enum gpu_engine_state gpu_engine_state(const struct gpu_engine *engine)
{
    return engine->state;
}

struct gpu_nvml_health gpu_engine_health(const struct gpu_engine *engine)
{
    return gpu_channel_health(&engine->channel);
}

pid_t gpu_engine_process(const struct gpu_engine *engine)
{
    return engine->process.pid;
}
