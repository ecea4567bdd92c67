/* Putting the parts together, and taking them apart. */
#include "server/server.h"

#include "core/log.h"
#include "core/realtime.h"
#include "core/secret.h"
#include "core/tls.h"
#include "server/admin/http.h"
#include "server/calibrate/calibrate.h"
#include "server/gpu/gpus.h"
#include "server/net/files.h"
#include "server/net/io.h"
#include "server/net/keys.h"
#include "server/net/lane.h"
#include "server/overload/monitor.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define WORKER_RING_PACKETS    16384
#define DESCRIPTORS_BESIDE     1024         /* of listeners, threads, the admin port's clients, and GPUs */
#define FILE_SECRET_BYTES      (128 * 1024) /* a file with keys while it is read */
#define LISTENER_SECRET_BYTES  (64 * 1024)  /* the numbers of its private key, and of one that replaces it */
#define HANDSHAKE_SECRET_BYTES 1024
#define BUSY_MARGIN_NS         (2 * CORE_NS_PER_MS)
#define CALIBRATE_NS           (1600 * CORE_NS_PER_MS) /* with set-up, under 2 s */

/* Returns what it is then: raised, where the process is ours. */
static rlim_t descriptor_limit(const struct server *server)
{
    struct rlimit limit = {0};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max && !server->is_embedded) {
        rlim_t before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            limit.rlim_cur = before;
    }
    return limit.rlim_cur;
}

/* The kernel enlarges the table of descriptors when one is opened that it has no room for, and lets all
 * threads wait until no core looks at the old one, which takes some ms. So it is made large enough before
 * there are threads: whoever connects must not make an I/O thread wait. */
static void make_room_for_descriptors(const struct server *server)
{
    const struct config_server *config = server->config;
    uint32_t needed = (config->listener_count > 0 ? config->limits.connections : 0) + DESCRIPTORS_BESIDE;
    rlim_t permitted = descriptor_limit(server);
    int first = eventfd(0, EFD_CLOEXEC);
    int last = fcntl(first, F_DUPFD_CLOEXEC, (int)(permitted < needed ? permitted : needed) - 1);

    if (last < 0 || permitted < needed)
        core_log(CORE_LOG_WARNING, "start.descriptors",
                 "limits.connections of %u need %u descriptors, and the limit of open files is %llu: "
                 "connections will be refused; raise it (ulimit -n, LimitNOFILE)",
                 config->limits.connections, needed, (unsigned long long)permitted);
    if (last >= 0)
        close(last);
    if (first >= 0)
        close(first);
}

/* ---- what must be there before the first thread ---- */

/* Says in which line the key is to which an error belongs. */
static core_status at(const struct server *server, const char *key, core_status status,
                      struct core_error *error)
{
    char where[400];
    if (status == CORE_OK)
        return CORE_OK;
    return core_error_prefix(error, status, "%s",
                             config_server_where(server->config, key, where, sizeof where));
}

/* The end of a step: the start ends with what is wrong, a check tells it and goes on. */
static core_status judge(const struct server *server, core_status status, const struct core_error *error)
{
    struct server_check *check = server->check;
    if (status == CORE_OK || check == NULL)
        return status;
    check->found(check->argument, error->text);
    if (check->status == CORE_OK || check->status == CORE_IN_USE)
        check->status = status;
    return CORE_OK;
}

static bool speaks_tls(const struct config_server *config)
{
    for (size_t i = 0; i < config->listener_count; i++)
        if (config->listeners[i].address.transport == CORE_TRANSPORT_TLS)
            return true;
    return false;
}

/* Key states with their keys, which cards need, the keys of requests at the planner, and those of the
 * keyring; and for OpenSSL the private keys of listeners, and what handshakes have. */
static core_status prepare_secrets(struct server *server, struct core_error *error)
{
    const struct config_server *config = server->config;
    bool locked = false, tls_locked = true;
    const struct core_stream_spec largest = {.unit = CORE_UNIT_MESSAGE, .mac = CORE_MAC_HMAC_SHA_256_128};
    size_t state_bytes = CORE_SECRET_BLOCK_BYTES_MIN;
    if (server->engine == NULL)
        return CORE_OK; /* a check has told why */
    while (state_bytes < server_stream_secret_bytes(server->engine, &largest))
        state_bytes *= 2;
    core_status status = core_tls_ready(error);
    if (status == CORE_OK)
        status = (server->is_embedded ? core_secret_reserve : core_secret_init)(
            (config->limits.streams + 2048) * (state_bytes + CORE_SECRET_BLOCK_BYTES_MIN) + FILE_SECRET_BYTES,
            &locked, error);
    if (status == CORE_OK && speaks_tls(config))
        status = core_secret_init_openssl(config->listener_count * LISTENER_SECRET_BYTES +
                                              config->limits.handshakes * HANDSHAKE_SECRET_BYTES,
                                          &tls_locked, error);
    if (status == CORE_OK && !(locked && tls_locked))
        core_log(CORE_LOG_WARNING, "start.secrets",
                 "key memory could not be locked and may be swapped out; raise RLIMIT_MEMLOCK or run with "
                 "CAP_IPC_LOCK");
    return status;
}

/* Asks for locked memory as configured; says what was not permitted. All of the process's is locked, which one that
 * is not ours must have asked for. */
static core_status lock_memory(struct server *server, struct core_error *error)
{
    struct core_error reason = {""};
    enum config_realtime realtime = server->config->threads.realtime;
    if (realtime == CONFIG_REALTIME_OFF || (server->is_embedded && realtime != CONFIG_REALTIME_REQUIRED) ||
        core_memory_lock(&reason) == CORE_OK)
        return CORE_OK;
    if (realtime == CONFIG_REALTIME_REQUIRED)
        return at(server, "threads.realtime",
                  core_error_set(error, CORE_DENIED, "is required, but %s", reason.text), error);
    core_log(CORE_LOG_WARNING, "start.realtime", "not permitted: %s", reason.text);
    return CORE_OK;
}

/* What a thread was not permitted: a warning, or the end where it is required. */
static core_status judge_thread(const struct server *server, const struct core_error *not_permitted,
                                struct core_error *error)
{
    if (not_permitted->text[0] == '\0')
        return CORE_OK;
    if (server->config->threads.realtime == CONFIG_REALTIME_REQUIRED)
        return at(
            server, "threads.realtime",
            core_error_set(error, CORE_DENIED, "is required, but not permitted: %s", not_permitted->text),
            error);
    core_log(CORE_LOG_WARNING, "start.realtime", "not permitted: %s", not_permitted->text);
    return CORE_OK;
}

static core_status choose_threads(struct server *server, struct core_error *error)
{
    core_status status =
        server_cores_choose(&server->config->threads, core_cpu_thousandths(), &server->cores, error);
    server->io_count = server->cores.io;
    server->worker_count = server->cores.workers;
    return at(server, "threads.cores", status, error);
}

static core_status make_places(struct server *server, struct core_error *error)
{
    core_status status = server_connection_slots_init(&server->places, &server->config->limits);
    return status == CORE_OK ? status : core_error_set(error, status, "no memory for the table of peers");
}

static core_status open_listener(struct server *server, struct server_listener *listener,
                                 struct core_error *error)
{
    const struct config_listener *config = listener->config;
    char text[300];
    core_status status = CORE_OK;

    if (config->address.transport == CORE_TRANSPORT_TLS)
        status = server_transport_context(config, &listener->tls, error);
    if (status == CORE_OK && server->check != NULL)
        return core_address_try(&config->address, error);
    if (status == CORE_OK)
        status = core_address_listen(&config->address, config->mode, &listener->descriptor, &listener->bound,
                                     error);
    if (status == CORE_OK && server->config->limits.lane_bytes > 0)
        core_address_take_files(listener->descriptor);
    if (status == CORE_OK)
        core_log(CORE_LOG_INFO, "start.listen", "listening on %s%s",
                 core_address_format(&listener->bound, text, sizeof text),
                 config->proxy ? ", for proxies alone: what their PROXY headers say is believed" : "");
    return status;
}

static core_status open_listeners(struct server *server, struct core_error *error)
{
    core_status status = CORE_OK;
    server->listeners = calloc(server->config->listener_count, sizeof *server->listeners);
    if (server->listeners == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the listeners");
    while (status == CORE_OK && server->listener_count < server->config->listener_count) {
        struct server_listener *listener = &server->listeners[server->listener_count];
        char key[32];
        snprintf(key, sizeof key, "listeners[%u]", server->listener_count++);
        listener->config = &server->config->listeners[server->listener_count - 1];
        listener->descriptor = -1;
        status = judge(server, at(server, key, open_listener(server, listener, error), error), error);
    }
    return status;
}

/* The admin port and that of HAProxy are opened with their thread. */
static core_status try_admin(struct server *server, struct core_error *error)
{
    const struct config_server *config = server->config;
    core_status status = CORE_OK;
    if (server->check != NULL && config->has_admin)
        status = judge(server, at(server, "admin", core_address_try(&config->admin, error), error), error);
    if (server->check != NULL && config->agent.listens && status == CORE_OK)
        status = at(server, "agent.address", core_address_try(&config->agent.address, error), error);
    return status;
}

static void notify(void *argument, uint32_t producer)
{
    struct server *server = argument;
    server_io_notify(server->ios[producer]);
}

static core_status start_worker(struct server *server, uint32_t index,
                                const struct core_thread_options *thread, struct core_error *error)
{
    struct core_error not_permitted = {""};
    const struct cpu_worker_options options = {
        .thread = *thread,
        .scheduler = {.ops = server->engine,
                      .burst_pieces = server->profile->cpu.burst_pieces,
                      .far_capacity = server->config->limits.streams,
                      .burst_bound_ns =
                          index < server->worker_count ? perfmodel_cpu_burst_ns(server->profile) : 0,
                      .spare_ns = server->profile->margins.out_ns},
        .producers = server->io_count,
        .ring_packets = WORKER_RING_PACKETS,
        .notify = notify,
        .notify_argument = server,
    };
    core_status status = cpu_worker_start(&server->workers[index], &options, &not_permitted, error);
    if (status != CORE_OK)
        return status;
    server->all_workers = index + 1;
    return judge_thread(server, &not_permitted, error);
}

static struct core_thread_options worker_thread(const struct server *server, uint32_t index, char *name,
                                                size_t size)
{
    const struct config_server_threads *threads = &server->config->threads;
    bool pin = server_cores_pin(&server->cores, threads);
    snprintf(name, size, "worker-%u", index);
    return (struct core_thread_options){
        .name = name,
        .fifo_priority = threads->realtime == CONFIG_REALTIME_OFF ? 0 : threads->worker_priority,
        .cpu = pin ? core_cpu_number(core_cpu_count() - 1 - index) : -1};
}

static core_status start_workers(struct server *server, struct core_error *error)
{

    server->workers = calloc(server->worker_count + 1, sizeof(struct cpu_worker *));
    if (server->workers == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the workers");
    for (uint32_t i = 0; i < server->worker_count; i++) {
        char name[24];
        const struct core_thread_options thread = worker_thread(server, i, name, sizeof name);
        core_status status = start_worker(server, i, &thread, error);
        if (status != CORE_OK)
            return status;
    }
    return CORE_OK;
}

static void *end_at_once(void *argument)
{
    return argument;
}

/* At the start the threads themselves are judged, of which workers ask for most. */
static core_status try_threads(struct server *server, struct core_error *error)
{
    core_status status = CORE_OK;
    for (uint32_t i = 0; server->check != NULL && status == CORE_OK && i < server->worker_count; i++) {
        struct core_error not_permitted = {""};
        pthread_t thread;
        char name[24];
        const struct core_thread_options options = worker_thread(server, i, name, sizeof name);
        status = core_thread_start(&thread, &options, end_at_once, NULL, &not_permitted, error);
        if (status == CORE_OK) {
            pthread_join(thread, NULL);
            status = judge_thread(server, &not_permitted, error);
        }
    }
    return status;
}

/* The worker that takes over for GPUs out of service, behind the others. Nothing is promised of it, so it
 * comes after every thread that keeps a promise. */
static core_status start_fallback(struct server *server, struct core_error *error)
{
    const struct config_server_threads *threads = &server->config->threads;
    int lowest =
        threads->worker_priority < threads->io_priority ? threads->worker_priority : threads->io_priority;
    const struct core_thread_options thread = {.name = "standby",
                                               .fifo_priority =
                                                   threads->realtime == CONFIG_REALTIME_OFF ? 0 : lowest - 1,
                                               .cpu = -1};
    return server->gpu_count == 0 ? CORE_OK : start_worker(server, server->worker_count, &thread, error);
}

static core_status create_ios(struct server *server, struct core_error *error)
{
    server->ios = calloc(server->io_count, sizeof(struct server_io *));
    if (server->ios == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the I/O threads");
    for (uint32_t i = 0; i < server->io_count; i++) {
        core_status status = server_io_create(&server->ios[i], server, i, error);
        if (status != CORE_OK)
            return status;
    }
    return server_io_listen(server->ios[0], error);
}

static core_status create_ports(struct server *server, struct core_error *error)
{
    for (uint32_t i = 0; i < server->io_count; i++)
        if (server_gpu_ports_create(&server->ios[i]->streams) != CORE_OK ||
            server_stats_make(&server->ios[i]->stats, server_units(server)) != CORE_OK)
            return core_error_set(error, CORE_NO_MEMORY,
                                  "no memory for the GPUs' ports or the figures of the units");
    return CORE_OK;
}

/* Stops and awaits the I/O threads from `first` on, which run. */
static void stop_ios(struct server *server, uint32_t first, core_ns until_ns)
{
    server_handshakes_halt(server->handshakes);
    for (uint32_t i = first; i < (first == 0 ? 1 : server->io_count); i++) /* 0 tells the others */
        server_io_drain(server->ios[i], until_ns);
    for (uint32_t i = first; i < server->io_count; i++)
        server_io_join(server->ios[i]);
}

/* Starts the I/O threads, the one that accepts last; on failure those started are stopped again. */
static core_status start_ios(struct server *server, struct core_error *error)
{
    core_status status = CORE_OK;
    uint32_t first = server->io_count;
    while (status == CORE_OK && first > 0) {
        struct core_error not_permitted = {""};
        status = server_io_start(server->ios[first - 1], &not_permitted, error);
        if (status != CORE_OK)
            break;
        first--;
        status = judge_thread(server, &not_permitted, error);
    }
    if (status != CORE_OK)
        stop_ios(server, first, 0);
    return status;
}

static core_status start_handshakes(struct server *server, struct core_error *error)
{
    for (uint32_t i = 0; i < server->listener_count; i++)
        if (server->listeners[i].tls != NULL || server->listeners[i].config->proxy)
            return server_handshakes_start(&server->handshakes, server, error);
    return CORE_OK;
}

static core_status choose_engine(struct server *server, struct core_error *error)
{
    const struct config_profile *profile = server->profile;
    const char *name = server->config->engine;
    if (profile != NULL && strcmp(name, "auto") == 0)
        name = profile->cpu.engine;
    server->engine = cpu_engine_find(name, error);
    if (server->engine == NULL)
        return at(server, "engine", CORE_UNSUPPORTED, error);
    if (profile != NULL && strcmp(server->engine->name, profile->cpu.engine) != 0)
        return at(server, "engine",
                  core_error_set(error, CORE_INVALID,
                                 "the profile was measured with engine %s, but the configuration asks for "
                                 "%s; calibrate again or set engine: auto",
                                 profile->cpu.engine, server->engine->name),
                  error);
    return CORE_OK;
}

/* No profile was given: a short measurement, and what it found. */
static core_status measure_machine(struct server *server, struct core_error *error)
{
    struct server_calibrate_options options = {
        .engine = server->engine, .realtime = server->config->threads.realtime, .time_ns = CALIBRATE_NS};
    core_status status = server_calibrate(&options, &server->profile, error);
    if (status != CORE_OK)
        return status;
    const struct config_profile *found = server->profile;
    core_log(CORE_LOG_INFO, "start.measured",
             "no profile: measured this machine: %s, bursts of %u pieces of %u bytes, %lld ns a piece, %.2f "
             "GB/s a "
             "worker (AES-128), %lld ns a packet and %.2f GB/s an I/O thread, margins %.0f us in and out; "
             "`millrace-bench calibrate` measures longer",
             found->cpu.engine, found->cpu.burst_pieces, found->cpu.piece_bytes,
             (long long)found->cpu.per_piece_ns, 1e6 / (double)found->cpu.per_byte_fs[0],
             (long long)found->io.per_packet_ns, 1e6 / (double)(found->io.per_byte_fs + 1),
             (double)found->margins.in_ns / 1e3);
    if (found->margins.in_ns > BUSY_MARGIN_NS)
        core_log(CORE_LOG_WARNING, "start.busy",
                 "something else kept this machine busy while it was measured: with margins of %.1f ms few "
                 "streams will be admitted; start again on a quiet machine or configure a profile",
                 (double)found->margins.in_ns / 1e6);
    return CORE_OK;
}

/* The profile that was given, or measured; at the costs that its threads have on their share of the cores. */
static core_status prepare_profile(struct server *server, struct core_error *error)
{
    core_status status = server->profile == NULL ? measure_machine(server, error) : CORE_OK;
    if (status == CORE_OK)
        server_cores_scale(&server->cores, server->profile);
    return status;
}

static core_status load_keys(struct server *server, struct core_error *error)
{
    core_status status = server_keys_load(server, server->config->keyring, &server->keyring, error);
    if (status == CORE_OK)
        server_keys_warn(server);
    return at(server, "keyring", status, error);
}

static core_status check_sandbox(struct server *server, struct core_error *error)
{
    core_status status = CORE_OK;
    if (server->config->sandbox == CORE_SANDBOX_REQUIRED)
        status = server->is_embedded
                     ? core_error_set(error, CORE_UNSUPPORTED,
                                      "a server inside a process has none, since it would hold for all of "
                                      "the process; leave it out, or run millraced")
                     : core_sandbox_check(error);
    return at(server, "sandbox", status, error);
}

/* Frees everything but the threads of the I/O, which must have ended. */
static void dismantle(struct server *server)
{
    server_handshakes_halt(server->handshakes);
    server_handshakes_destroy(server->handshakes);
    server_admin_stop(server->admin);
    server_monitor_halt(server->watch);
    server_gpus_halt(server);
    if (server->planner != NULL)
        server_planner_stop(server->planner);
    server_monitor_destroy(server->watch);
    for (uint32_t i = 0; i < server->all_workers; i++)
        cpu_worker_stop(server->workers[i]);
    server_gpus_destroy(server);
    server_lanes_stop(server->lanes);
    server_files_stop(server->files);
    for (uint32_t i = 0; server->ios != NULL && i < server->io_count; i++)
        server_io_destroy(server->ios[i]);
    server_beats_destroy(server->beats);
    for (uint32_t i = 0; i < server->listener_count; i++) {
        core_address_remove(&server->listeners[i].bound);
        close(server->listeners[i].descriptor);
        SSL_CTX_free(server->listeners[i].tls);
    }
    server_connection_slots_free(&server->places);
    free(server->listeners);
    free(server->ios);
    free(server->workers);
    config_keyring_free(server->keyring);
    config_profile_free(server->profile);
    pthread_mutex_destroy(&server->reload_lock);
    free(server);
}

static double unix_time_s(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static core_status create(struct server **server, const struct config_server *config,
                          const struct config_profile *profile, struct core_error *error)
{
    struct server *fresh = calloc(1, sizeof *fresh);

    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the server");
    fresh->config = config;
    fresh->started_ns = core_time_now_ns();
    fresh->started_s = unix_time_s();
    core_mutex_init(&fresh->reload_lock);
    if (profile != NULL && config_profile_copy(profile, &fresh->profile) != CORE_OK) {
        dismantle(fresh);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the profile");
    }
    *server = fresh;
    return CORE_OK;
}

/* All that can stand in the way of a start and is known without a measurement. Listeners are opened here:
 * what is wrong with them is known at once, and who connects meanwhile only waits. */
static core_status prepare(struct server *server, struct core_error *error)
{
    static core_status (*const steps[])(struct server *, struct core_error *) = {
        choose_threads, make_places,   choose_engine, server_gpus_check, server_gpus_user, prepare_secrets,
        lock_memory,    check_sandbox, try_threads,   load_keys,         open_listeners,   try_admin,
    };
    core_status status = CORE_OK;

    if (!server->is_embedded) /* there all our threads block it */
        signal(SIGPIPE, SIG_IGN);
    make_room_for_descriptors(server);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && status == CORE_OK; i++)
        status = judge(server, steps[i](server, error), error);
    if (status != CORE_OK)
        return status;
    server_cores_warn(&server->cores, &server->config->threads);
    server_cores_doubt(server->profile, server->profile_doubt, sizeof server->profile_doubt);
    return CORE_OK;
}

core_status server_check(const struct config_server *config, const struct config_profile *profile,
                         void (*found)(void *argument, const char *text), void *argument)
{
    struct server_check check = {.found = found, .argument = argument};
    struct core_error error = {""};
    struct server *server;
    core_status status = create(&server, config, profile, &error);

    if (status != CORE_OK) {
        found(argument, error.text);
        return status;
    }
    server->check = &check;
    status = prepare(server, &error); /* which goes through to the end */
    dismantle(server);
    return status == CORE_OK ? check.status : status;
}

static core_status start(struct server **server, const struct config_server *config,
                         const struct config_profile *profile, bool is_embedded, struct core_error *error)
{
    struct server *fresh;
    core_status status = create(&fresh, config, profile, error);

    if (status != CORE_OK)
        return status;
    fresh->is_embedded = is_embedded;
    if ((status = prepare(fresh, error)) != CORE_OK || (status = prepare_profile(fresh, error)) != CORE_OK ||
        (status = create_ios(fresh, error)) != CORE_OK ||
        (status = server_files_start(&fresh->files, error)) != CORE_OK ||
        (status = server_lanes_start(&fresh->lanes, config->limits.lane_bytes, fresh->files, error)) !=
            CORE_OK ||
        (status = server_gpus_start(fresh, server_io_notify, error)) != CORE_OK ||
        (status = create_ports(fresh, error)) != CORE_OK ||
        (status = start_workers(fresh, error)) != CORE_OK ||
        (status = start_fallback(fresh, error)) != CORE_OK ||
        (status = server_planner_start(&fresh->planner, fresh, &server_stream_ops, error)) != CORE_OK ||
        (status = server_beats_create(&fresh->beats, fresh)) != CORE_OK ||
        (status = server_monitor_start(&fresh->watch, fresh, error)) != CORE_OK ||
        (config->has_admin && (status = server_admin_start(&fresh->admin, fresh, error)) != CORE_OK) ||
        (status = start_handshakes(fresh, error)) != CORE_OK || (status = start_ios(fresh, error)) != CORE_OK)
        dismantle(fresh);
    else
        *server = fresh;
    return status;
}

core_status server_start(struct server **server, const struct config_server *config,
                         const struct config_profile *profile, struct core_error *error)
{
    return start(server, config, profile, false, error);
}

core_status server_start_embedded(struct server **server, const struct config_server *config,
                                  const struct config_profile *profile, struct core_error *error)
{
    return start(server, config, profile, true, error);
}

bool server_lives(const struct server *server, char *text, size_t size)
{
    return atomic_load_explicit(&server->draining, memory_order_relaxed) || /* its threads end */
           server_beats_all(server->beats, core_time_now_ns(), text, size);
}

char *server_describe(const struct server *server, char *text, size_t size)
{
    snprintf(text, size, "%u I/O threads, %u workers, engine %s, profile %s", server->io_count,
             server->worker_count, server->engine->name, server->profile->name);
    return text;
}

const struct core_address *server_address(const struct server *server, uint32_t index)
{
    return index < server->listener_count ? &server->listeners[index].bound : NULL;
}

const struct core_address *server_admin_address(const struct server *server)
{
    return server->admin == NULL ? NULL : server_admin_bound(server->admin);
}

const struct core_address *server_agent_address(const struct server *server)
{
    return server->admin == NULL ? NULL : server_admin_agent(server->admin);
}

core_status server_sandbox(const struct server *server, struct core_error *error)
{
    const enum core_sandbox_mode mode = server->config->sandbox;
    struct core_error reason = {""};
    if (core_sandbox_enter(server->gpu_count > 0 ? CORE_SANDBOX_SERVER_CARDS : CORE_SANDBOX_SERVER, mode,
                           &reason) == CORE_OK)
        return CORE_OK;
    if (mode == CORE_SANDBOX_REQUIRED)
        return core_error_set(error, CORE_DENIED, "sandbox is required, but %s", reason.text);
    core_log(CORE_LOG_WARNING, "start.sandbox", "not permitted: %s", reason.text);
    return CORE_OK;
}

void server_maintain(struct server *server, bool begins)
{
    atomic_store_explicit(&server->maintenance, begins, memory_order_relaxed);
    core_log(CORE_LOG_INFO, "maintenance",
             begins
                 ? "maintenance begins: clients are told to go elsewhere, and so is HAProxy (SIGUSR2 ends it)"
                 : "maintenance is over");
}

void server_leave(struct server *server)
{
    atomic_store_explicit(&server->leaving, true, memory_order_relaxed);
}

uint64_t server_streams(const struct server *server)
{
    uint64_t streams = 0;
    for (uint32_t i = 0; i < server->io_count; i++)
        streams += atomic_load_explicit(&server_io_stats(server->ios[i])->streams, memory_order_relaxed);
    return streams;
}

uint64_t server_stop(struct server *server)
{
    core_ns until_ns = core_time_now_ns() + server->config->timeouts.drain_ns;
    uint64_t lost = 0;

    /* Seen by the planner before any connection is told to finish. */
    atomic_store_explicit(&server->draining, true, memory_order_seq_cst);
    stop_ios(server, 0, until_ns);
    lost = atomic_load_explicit(&server->drain_lost, memory_order_relaxed);
    dismantle(server);
    return lost;
}
