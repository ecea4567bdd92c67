/* The batcher thread of one GPU: its life, its child's, and what it tells the I/O threads. */
#include "core/log.h"
#include "core/realtime.h"
#include "gpu/kernel.h"
#include "perfmodel/cpu.h"
#include "server/gpu/internal.h"
#include "server/server_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STOP_GRACE_NS  CORE_NS_PER_S
#define LEAD_SPARE_NS  (400 * CORE_NS_PER_US) /* for a batcher that comes late */
#define LINGER_POLL_NS (10 * CORE_NS_PER_MS)  /* between looks at a child that does not end */
#define KEY_POLL_NS    (200 * CORE_NS_PER_US) /* at a channel that has no room for keys */
#define KNOW_POLL_NS   (10 * CORE_NS_PER_MS)  /* at an I/O thread that does not take its events */

/* From the order to end a child to its streams' going elsewhere. It may take longer to end, and keeps its
 * arenas until then. */
#define KILL_NS (10 * CORE_NS_PER_MS)

/* An I/O thread's part of a loss: waking up and putting what is missing into the queues of other units. */
#define HAND_OVER_NS (5 * CORE_NS_PER_MS)

/* ---- events ---- */

void server_gpu_push(struct server_gpu *gpu, uint32_t io, const struct server_gpu_event *event)
{
    struct server_gpu_link *link = &gpu->links[io];
    uint32_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
    link->events[tail % SERVER_GPU_LINK_EVENTS] = *event;
    /* release: the event, and what the batcher did to its batch, before the count */
    atomic_store_explicit(&link->tail, tail + 1, memory_order_release);
    gpu->notify(gpu->server->ios[io]);
}

bool server_gpu_event_at(const struct server_gpu *gpu, uint32_t io, uint32_t skipped,
                         struct server_gpu_event *event)
{
    const struct server_gpu_link *link = &gpu->links[io];
    uint32_t at = atomic_load_explicit(&link->head, memory_order_relaxed) + skipped; /* our own */
    /* acquire: pairs with the release of the push; whoever skips counts from 0 without gaps */
    if (at == atomic_load_explicit(&link->tail, memory_order_acquire))
        return false;
    *event = link->events[at % SERVER_GPU_LINK_EVENTS];
    return true;
}

void server_gpu_event_done(struct server_gpu *gpu, uint32_t io)
{
    struct server_gpu_link *link = &gpu->links[io];
    uint32_t head = atomic_load_explicit(&link->head, memory_order_relaxed);
    /* release: the event was read before its place is used again, and carried out before the batcher counts
     * on that */
    atomic_store_explicit(&link->head, head + 1, memory_order_release);
}

static void push_all(struct server_gpu *gpu, enum server_gpu_event_kind kind)
{
    const struct server_gpu_event event = {.kind = kind, .generation = gpu->generation};
    for (uint32_t io = 0; io < gpu->io_count; io++)
        server_gpu_push(gpu, io, &event);
}

/* Have all I/O threads done with all events of the loss? One that has not may still put packets into the next
 * batches that are opened, by keys that only the child before had; or hold their arenas. */
static bool all_know(const struct server_gpu *gpu)
{
    for (uint32_t io = 0; io < gpu->io_count; io++) {
        const struct server_gpu_link *link = &gpu->links[io];
        /* acquire: pairs with the release of event_done */
        if (atomic_load_explicit(&link->head, memory_order_acquire) !=
            atomic_load_explicit(&link->tail, memory_order_relaxed))
            return false;
    }
    return true;
}

/* ---- service ---- */

static void show_state(struct server_gpu *gpu, enum server_gpu_state state, core_ns now_ns)
{
    struct server_gpu_figures *figures = &gpu->figures;
    atomic_store_explicit(&figures->since_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&figures->process, gpu_engine_process(gpu->engine), memory_order_relaxed);
    atomic_store_explicit(&figures->state, state, memory_order_release);
}

/* The first time only: whoever waits for it is gone then. */
static void report_start(struct server_gpu *gpu, core_status status, const char *text)
{
    if (gpu->start_told)
        return;
    gpu->start_told = true;
    gpu->start_status = core_error_set(&gpu->start_error, status, "%s", text);
    sem_post(&gpu->started);
}

static void log_ready(const struct server_gpu *gpu)
{
    const struct gpu_device_facts *card = &gpu->card.facts, *facts = &gpu->facts;
    const bool is_real = card->uuid[0] != '\0';
    core_log_with(CORE_LOG_INFO, "gpu.ready", &(struct core_log_fields){.unit = gpu->name},
                  "%s: %s%s%s%s%s, driver %s, kernel %s, %u SMs, %u copy engines", gpu->name, facts->name,
                  is_real ? ", " : "", card->uuid, is_real ? " at " : "", card->pci, facts->driver,
                  facts->kernel, facts->sms, facts->copy_engines);
}

static void go_up(struct server_gpu *gpu, const struct gpu_device_facts *facts, core_ns now_ns)
{
    gpu->generation++;
    gpu->up = true;
    gpu->facts = *facts;
    if (gpu->numbered)
        log_ready(gpu);
    server_gpu_room_up(gpu);
    show_state(gpu, SERVER_GPU_STATE_UP, now_ns);
    push_all(gpu, SERVER_GPU_UP);
    server_gpu_batches_begin(gpu, now_ns);
    server_stats_add(&gpu->figures.restarts, gpu->generation > 1 ? 1 : 0);
    report_start(gpu, CORE_OK, "");
}

static void remember_fault(struct server_gpu *gpu, const struct gpu_fault *fault)
{
    server_stats_add(&gpu->figures.faults, 1);
    pthread_mutex_lock(&gpu->fault_lock);
    snprintf(gpu->fault_text, sizeof gpu->fault_text, "%s: %s", gpu_fault_name(fault->kind), fault->text);
    pthread_mutex_unlock(&gpu->fault_lock);
}

/* Diverts every packet of every batch to the backup of its stream, or to the fallback worker. */
static void go_down(struct server_gpu *gpu, const struct gpu_fault *fault, core_ns now_ns)
{
    bool was_up = gpu->up;

    gpu->up = false;
    gpu->lingering = !fault->gone;
    gpu->restart_ns = fault->restart_ns;
    remember_fault(gpu, fault);
    if (was_up)
        push_all(gpu, SERVER_GPU_DOWN);
    server_gpu_batches_lose(gpu, fault->gone);
    server_gpu_room_down(gpu, now_ns);
    server_gpu_keys_lost(gpu);
    show_state(gpu, SERVER_GPU_STATE_DOWN, now_ns);
    if (gpu->start_told) /* else who waits for the first start says it, and ends it */
        core_log_with(CORE_LOG_ERROR, "gpu.fault", &(struct core_log_fields){.unit = gpu->name},
                      "%s out of service: %s: %s; the packets of %u batches are encrypted again on other "
                      "units; restart in %lld ms",
                      gpu->name, gpu_fault_name(fault->kind), fault->text, fault->unfinished,
                      (long long)((fault->restart_ns - now_ns) / CORE_NS_PER_MS));
    report_start(gpu, CORE_UNSUPPORTED, fault->text);
}

/* Relaxed throughout: figures, on which nothing hangs. */
static void show_health(struct server_gpu *gpu)
{
    const struct gpu_nvml_health health = gpu_engine_health(gpu->engine);
    struct server_gpu_figures *figures = &gpu->figures;
    atomic_store_explicit(&figures->sm_hz, UINT64_C(1000000) * health.sm_mhz, memory_order_relaxed);
    atomic_store_explicit(&figures->sm_most_hz, UINT64_C(1000000) * health.sm_most_mhz, memory_order_relaxed);
    atomic_store_explicit(&figures->celsius, health.celsius > 0 ? (uint64_t)health.celsius : 0,
                          memory_order_relaxed);
    atomic_store_explicit(&figures->reasons, health.reasons, memory_order_relaxed);
}

static void take_events(struct server_gpu *gpu)
{
    struct gpu_event event;
    core_ns now_ns = core_time_now_ns();
    while (gpu_engine_poll(gpu->engine, now_ns, &event) == CORE_OK)
        if (event.kind == GPU_EVENT_READY)
            go_up(gpu, &event.facts, now_ns);
        else if (event.kind == GPU_EVENT_BATCH)
            server_gpu_batches_done(gpu, &event);
        else if (event.kind == GPU_EVENT_ROOM)
            server_gpu_room_done(gpu, event.room.text, now_ns);
        else
            go_down(gpu, &event.fault, now_ns);
    show_health(gpu);
}

/* Down: starts the child when it is time. Returns when to look again. */
static core_ns start_again(struct server_gpu *gpu, core_ns now_ns)
{
    struct core_error error = {""};

    if (gpu->lingering) {
        if (!gpu_engine_gone(gpu->engine))
            return now_ns + LINGER_POLL_NS;
        gpu->lingering = false;
        server_gpu_batches_gone(gpu);
    }
    if (gpu_engine_state(gpu->engine) != GPU_ENGINE_DOWN)
        return CORE_NS_NEVER; /* starting, or ending: the engine tells */
    if (now_ns < gpu->restart_ns)
        return gpu->restart_ns;
    if (!server_gpu_room_is_steady(gpu))
        return CORE_NS_NEVER; /* a step of it wakes us */
    if (!all_know(gpu))
        return now_ns + KNOW_POLL_NS;
    core_status status = gpu_engine_start(gpu->engine, now_ns, &error);
    return status == CORE_OK ? CORE_NS_NEVER : now_ns + LINGER_POLL_NS;
}

void server_gpu_condemn(struct server_gpu *gpu, core_ns now_ns, const char *text)
{
    gpu_engine_condemn(gpu->engine, now_ns, text);
}

/* ---- messages ---- */

static void take_plan(void *owner, struct server_message *message)
{
    struct server_gpu_plan_message *sent = (struct server_gpu_plan_message *)message;

    server_gpu_batches_plan(owner, &sent->plan, core_time_now_ns());
    /* acquire/release with server_gpu_put_plan: the message may be posted again from here on */
    atomic_store_explicit(&sent->posted, false, memory_order_release);
}

uint64_t server_gpu_plan_in_force(const struct server_gpu *gpu)
{
    return atomic_load_explicit(&gpu->plan_in_force, memory_order_relaxed); /* a figure, not an order */
}

bool server_gpu_put_plan(struct server_gpu *gpu, const struct partition_gpu_plan *plan)
{
    struct server_gpu_plan_message *message = &gpu->plan_messages[gpu->next_plan_message];

    if (atomic_load_explicit(&message->posted, memory_order_acquire)) /* acquire: the message is back */
        return false;
    gpu->next_plan_message = (gpu->next_plan_message + 1) % SERVER_GPU_PLANS_MAX;
    message->plan = *plan;
    message->message.run = take_plan;
    atomic_store_explicit(&message->posted, true, memory_order_relaxed); /* the mailbox orders it */
    server_mailbox_post(&gpu->mailbox, &message->message);
    return true;
}

static void take_corrupt(void *owner, struct server_message *message)
{
    struct server_gpu *gpu = owner;
    char text[112];
    (void)message;
    snprintf(text, sizeof text, "batch %llu failed the audit: its ciphertext differs from the CPU reference",
             (unsigned long long)atomic_load_explicit(&gpu->corrupt_batch, memory_order_relaxed));
    /* acquire/release with report_corrupt: the message may be posted again from here on */
    atomic_store_explicit(&gpu->corrupt_batch, 0, memory_order_release);
    if (gpu->up)
        server_gpu_condemn(gpu, core_time_now_ns(), text);
}

void server_gpu_report_corrupt(struct server_gpu *gpu, uint64_t batch)
{
    uint64_t none = 0;
    /* acquire: the message is back; whoever comes second has nothing to add */
    if (!atomic_compare_exchange_strong_explicit(&gpu->corrupt_batch, &none, batch, memory_order_acquire,
                                                 memory_order_relaxed))
        return;
    gpu->corrupt_message.run = take_corrupt;
    server_mailbox_post(&gpu->mailbox, &gpu->corrupt_message);
}

static void take_number(void *owner, struct server_message *message)
{
    struct server_gpu *gpu = owner;
    char name[24];
    (void)message;
    snprintf(gpu->name, sizeof gpu->name, "gpu-%u", gpu->index);
    snprintf(name, sizeof name, "batcher-%u", gpu->index);
    (void)pthread_setname_np(pthread_self(), name);
    gpu->numbered = true;
    if (gpu->up)
        log_ready(gpu);
    sem_post(&gpu->started);
}

static void take_stop(void *owner, struct server_message *message)
{
    struct server_gpu *gpu = owner;
    (void)message;
    gpu->stopping = true;
}

/* ---- the thread ---- */

static void sleep_until(struct server_gpu *gpu, core_ns wake_ns)
{
    struct pollfd ready[2] = {{.fd = gpu->mailbox.descriptor, .events = POLLIN},
                              {.fd = gpu_engine_descriptor(gpu->engine), .events = POLLIN}};
    core_ns left_ns = wake_ns == CORE_NS_NEVER ? CORE_NS_PER_S : wake_ns - core_time_now_ns();
    if (left_ns < 0)
        left_ns = 0;
    const struct timespec timeout = {.tv_sec = left_ns / CORE_NS_PER_S, .tv_nsec = left_ns % CORE_NS_PER_S};
    if (ppoll(ready, 2, &timeout, NULL) > 0 && ready[0].revents != 0)
        server_mailbox_run(&gpu->mailbox, gpu);
}

static void run_loop(struct server_gpu *gpu)
{
    while (!gpu->stopping) {
        take_events(gpu);
        core_ns now_ns = core_time_now_ns(), keys_ns;
        core_ns room_ns = server_gpu_room_run(gpu, now_ns);
        bool all_handed = server_gpu_keys_run(gpu, now_ns, &keys_ns);
        core_ns wake_ns = gpu->up ? server_gpu_batches_run(gpu, now_ns) : start_again(gpu, now_ns);
        if (!all_handed)
            wake_ns = core_time_min(wake_ns, now_ns + KEY_POLL_NS);
        wake_ns = core_time_min(wake_ns, core_time_min(keys_ns, room_ns));
        sleep_until(gpu, core_time_min(wake_ns, gpu_engine_wake_ns(gpu->engine)));
    }
}

static void build_emulation(const struct server_gpu *gpu, struct gpu_emulation *emulation)
{
    const struct config_profile_gpu *kind = &gpu->kind;
    *emulation = (struct gpu_emulation){.memory_bytes = kind->memory_bytes,
                                        .sms = kind->sms,
                                        .copy_engines = kind->copy_engines,
                                        .sm_bytes_per_s = kind->sm_bytes_per_s,
                                        .launch_ns = kind->launch_ns,
                                        .copies = (const struct gpu_emulation_copy *)kind->copies,
                                        .shares = (const struct gpu_emulation_share *)kind->utilisation,
                                        .copy_count = kind->copy_count,
                                        .share_count = kind->utilisation_count};
    snprintf(emulation->name, sizeof emulation->name, "%.63s", kind->name);
}

/* The profile's rows are handed over as they are. */
_Static_assert(sizeof(struct gpu_emulation_copy) == sizeof(struct config_profile_copy) &&
                   offsetof(struct gpu_emulation_copy, down_busy_ns) ==
                       offsetof(struct config_profile_copy, down_busy_ns),
               "rows of copies are alike");
_Static_assert(sizeof(struct gpu_emulation_share) == sizeof(struct config_profile_utilisation),
               "rows of shares are alike");

/* The profile's figures are those of one form of the kernel; 0: it does not say of which. */
static uint32_t kernel_forms(const char *name)
{
    enum gpu_kernel_form form;
    return name != NULL && gpu_kernel_form_parse(name, &form) == CORE_OK ? UINT32_C(1) << form : 0;
}

static void *run(void *argument)
{
    struct server_gpu *gpu = argument;
    const struct config_server_threads *threads = &gpu->server->config->threads;
    struct core_error error = {""};
    struct gpu_emulation emulation;

    atomic_store_explicit(&gpu->figures.thread, (int32_t)gettid(), memory_order_relaxed);
    build_emulation(gpu, &emulation);
    const struct gpu_engine_options options = {
        .program = gpu->program,
        .backend = gpu->backend,
        .device = gpu->card.index,
        .uuid = gpu->card.facts.uuid[0] != '\0' ? gpu->card.facts.uuid : NULL,
        .user = gpu->server->gpu_user_differs ? &gpu->server->gpu_user : NULL,
        .region = gpu_arenas_region(gpu->arenas),
        .emulation = strcmp(gpu->backend, "emulated") == 0 ? &emulation : NULL,
        .fifo_priority = threads->realtime == CONFIG_REALTIME_OFF ? 0 : threads->worker_priority,
        .hang_least_ns = gpu->server->config->gpus.hang_ns,
        .kill_ns = KILL_NS,
        .sandbox = gpu->server->config->sandbox,
        .kernel_forms = kernel_forms(gpu->kind.kernel)};
    core_status status = gpu_engine_open(&gpu->engine, &options, &error);
    if (status == CORE_OK)
        status = server_gpu_room_start(gpu, &error);
    if (status != CORE_OK) {
        gpu_engine_close(gpu->engine);
        report_start(gpu, status, error.text);
        return NULL;
    }
    run_loop(gpu);
    gpu_engine_stop(gpu->engine, STOP_GRACE_NS);
    gpu_engine_close(gpu->engine);
    return NULL;
}

/* ---- life ---- */

void server_gpu_destroy(struct server_gpu *gpu)
{
    server_mailbox_destroy(&gpu->mailbox);
    gpu_slots_destroy(gpu->slots);
    gpu_arenas_destroy(gpu->arenas);
    sem_destroy(&gpu->started);
    pthread_mutex_destroy(&gpu->fault_lock);
    free(gpu->links);
    free(gpu->program);
    free(gpu);
}

static core_status create(struct server_gpu *gpu, const struct server_gpu_options *options,
                          struct core_error *error)
{
    const struct gpu_arena_options arenas = {
        .shape = options->shape, .room = &options->room.least, .writers = gpu->io_count};
    size_t bytes = gpu->io_count * sizeof *gpu->links;

    gpu->program = strdup(options->program);
    gpu->links = aligned_alloc(64, bytes);
    if (gpu->program == NULL || gpu->links == NULL ||
        gpu_slots_create(&gpu->slots, options->shape.slots) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU");
    memset(gpu->links, 0, bytes);
    core_status status = gpu_arenas_create(&gpu->arenas, &arenas, error);
    return status == CORE_OK ? server_mailbox_init(&gpu->mailbox, error) : status;
}

static void await_told(struct server_gpu *gpu)
{
    while (sem_wait(&gpu->started) != 0 && errno == EINTR) {
    }
}

static core_status start_thread(struct server_gpu *gpu, struct core_error *not_permitted,
                                struct core_error *error)
{
    const struct config_server_threads *threads = &gpu->server->config->threads;
    struct core_thread_options thread = {
        .name = "batcher",
        .cpu = -1,
        .fifo_priority = threads->realtime == CONFIG_REALTIME_OFF ? 0 : threads->worker_priority};
    core_status status = core_thread_start(&gpu->thread, &thread, run, gpu, not_permitted, error);
    if (status != CORE_OK)
        return status;
    await_told(gpu);
    if (gpu->start_status == CORE_OK)
        return CORE_OK;
    server_gpu_halt(gpu);
    return core_error_set(error, gpu->start_status, "%s", gpu->start_error.text);
}

core_status server_gpu_start(struct server_gpu **gpu, const struct server_gpu_options *options,
                             struct core_error *not_permitted, struct core_error *error)
{
    struct server_gpu *fresh = aligned_alloc(64, (sizeof *fresh + 63) & ~(size_t)63);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU");
    memset(fresh, 0, sizeof *fresh);
    fresh->server = options->server;
    fresh->notify = options->notify;
    fresh->io_count = options->server->io_count;
    fresh->kind = *options->kind;
    fresh->backend = options->backend;
    fresh->card = *options->card;
    fresh->mailbox.descriptor = -1;
    fresh->clearing = SERVER_GPU_NO_SLOT;
    fresh->room.limits = options->room;
    atomic_store_explicit(&fresh->room.lacking, UINT64_MAX, memory_order_relaxed);
    fresh->lead_ns = server_gpu_lead_ns(options->server->profile);
    snprintf(fresh->name, sizeof fresh->name, "gpu");
    sem_init(&fresh->started, 0, 0);
    core_mutex_init(&fresh->fault_lock);
    core_histogram_init(&fresh->figures.batch_ns);
    atomic_store_explicit(&fresh->figures.state, SERVER_GPU_STATE_DOWN, memory_order_relaxed);
    core_status status = create(fresh, options, error);
    if (status == CORE_OK)
        status = start_thread(fresh, not_permitted, error);
    if (status != CORE_OK) {
        server_gpu_destroy(fresh);
        return status;
    }
    *gpu = fresh;
    return CORE_OK;
}

void server_gpu_number(struct server_gpu *gpu, uint32_t index)
{
    gpu->index = index;
    gpu->number_message.run = take_number;
    server_mailbox_post(&gpu->mailbox, &gpu->number_message);
    await_told(gpu);
}

void server_gpu_halt(struct server_gpu *gpu)
{
    gpu->stop_message.run = take_stop;
    server_mailbox_post(&gpu->mailbox, &gpu->stop_message);
    pthread_join(gpu->thread, NULL);
    gpu_resizer_stop(gpu->room.resizer);
}

/* ---- what others may know ---- */

struct gpu_arenas *server_gpu_arenas(struct server_gpu *gpu)
{
    return gpu->arenas;
}

bool server_gpu_in_service(const struct server_gpu *gpu)
{
    return atomic_load_explicit(&gpu->figures.state, memory_order_acquire) == SERVER_GPU_STATE_UP;
}

core_ns server_gpu_detection_ns(const struct config_server *config, const struct config_profile *profile)
{
    return config->gpus.hang_ns + KILL_NS + 2 * profile->margins.in_ns + profile->io.rest_max_ns +
           HAND_OVER_NS;
}

core_ns server_gpu_lead_ns(const struct config_profile *profile)
{
    return PERFMODEL_CPU_EARLY_NS + profile->io.rest_max_ns + LEAD_SPARE_NS;
}

const struct config_profile_gpu *server_gpu_kind(const struct server_gpu *gpu)
{
    return &gpu->kind;
}

uint64_t server_gpu_paused(const struct server_gpu *gpu)
{
    return atomic_load_explicit(&gpu->paused_least, memory_order_relaxed);
}

const struct server_gpu_figures *server_gpu_figures(const struct server_gpu *gpu)
{
    return &gpu->figures;
}

const char *server_gpu_name(const struct server_gpu *gpu)
{
    return gpu->name;
}

const char *server_gpu_uuid(const struct server_gpu *gpu)
{
    return gpu->card.facts.uuid;
}

const char *server_gpu_pci(const struct server_gpu *gpu)
{
    return gpu->card.facts.pci;
}

void server_gpu_fault_text(struct server_gpu *gpu, char *text, size_t size)
{
    pthread_mutex_lock(&gpu->fault_lock);
    snprintf(text, size, "%s", gpu->fault_text);
    pthread_mutex_unlock(&gpu->fault_lock);
}

struct server_mailbox *server_gpu_mailbox(struct server_gpu *gpu)
{
    return &gpu->mailbox;
}
