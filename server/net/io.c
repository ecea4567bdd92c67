/* The I/O thread's turns. */
#include "server/net/io.h"

#include "core/secret.h"
#include "server/net/units.h"
#include "server/stream/advance.h"
#include "server/stream/backup.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TICK_MS      100
#define TURN_BYTES   (4 * SERVER_READ_BYTES)
#define STRANGERS    16 /* connections without streams that are read in a turn */
#define REST_PACKETS 2  /* a rest that gathers fewer is not worth it */
#define LINE_NS                                                                                              \
    CORE_NS_PER_MS /* until connections in line are looked at, if nothing else begins a turn before */

void server_io_mark(struct server_connection *connection)
{
    if (connection->dirty)
        return;
    connection->dirty = true;
    connection->next_dirty = connection->io->dirty;
    connection->io->dirty = connection;
}

void server_io_put_off(struct server_connection *connection)
{
    struct server_io *io = connection->io;
    struct server_connection_line *line = connection->stream_count > 0 ? &io->again : &io->strangers;
    if (connection->waits_in_line)
        return;
    connection->waits_in_line = true;
    connection->next_in_line = NULL;
    if (line->first == NULL)
        line->first = connection;
    else
        line->last->next_in_line = connection;
    line->last = connection;
}

void server_io_look_again(struct server_connection *connection)
{
    if (connection->waits_in_line)
        return;
    server_io_put_off(connection);
    server_io_notify(connection->io); /* the next turn begins at once */
}

/* When the thread must be awake again: for a stream that waits, for who is in line, or to see that it is late
 * (stream/arrival.h). A timer that is set and soon enough for that stays. */
static core_ns next_wake_ns(struct server_io *io, core_ns now_ns)
{
    const bool in_line = io->again.first != NULL || io->strangers.first != NULL;
    struct server_waiter *waiter = server_eligible_queue_first(&io->waiting);
    core_ns wake_ns = core_time_min(waiter == NULL ? CORE_NS_NEVER : waiter->eligible_ns,
                                    in_line ? now_ns + LINE_NS : CORE_NS_NEVER);
    core_ns beat_ns = io->stream_count == 0 ? CORE_NS_NEVER : now_ns + io->beat_ns;

    if (wake_ns <= beat_ns)
        return wake_ns;
    return io->timer_ns > now_ns && io->timer_ns <= beat_ns ? io->timer_ns : beat_ns;
}

static void set_timer(struct server_io *io, core_ns now_ns)
{
    core_ns wake_ns = next_wake_ns(io, now_ns);
    struct itimerspec spec = {0};

    if (wake_ns == io->timer_ns)
        return;
    if (wake_ns != CORE_NS_NEVER)
        spec.it_value =
            (struct timespec){.tv_sec = wake_ns / CORE_NS_PER_S, .tv_nsec = wake_ns % CORE_NS_PER_S};
    if (timerfd_settime(io->timer.descriptor, TFD_TIMER_ABSTIME, &spec, NULL) == 0)
        io->timer_ns = wake_ns;
}

static void finish_dirty(struct server_io *io)
{
    struct server_connection *connection;
    while ((connection = io->dirty) != NULL) {
        io->dirty = connection->next_dirty;
        connection->dirty = false;
        if (connection->state < SERVER_CONNECTION_BROKEN) {
            server_output_flush(connection);
            server_input_resume(connection);
        }
        server_connection_settle(connection);
    }
}

/* serves: this thread has the time to do a worker's work. */
static void end_turn(struct server_io *io, bool serves)
{
    core_ns now_ns;

    io->turn_bytes = 0;
    server_units_collect(io, cpu_worker_poll); /* what came back while we were reading */
    now_ns = core_time_now_ns();
    server_units_release_waiting(io, now_ns, now_ns + PERFMODEL_CPU_EARLY_NS);
    server_units_flush(io, serves);
    finish_dirty(io);
    server_gpu_let_go(&io->streams);
    server_units_flush(io, false); /* what resumed input brought */
    io->served_ns = core_time_now_ns();
    if (server_units_serve(io)) {
        finish_dirty(io);
        server_units_flush(io, false);
    }
    io->served_ns = core_time_now_ns() - io->served_ns;
    now_ns = core_time_now_ns();
    set_timer(io, now_ns);
    if (io->stream_ended)
        core_secret_wipe(io->read_buffer, SERVER_READ_BYTES);
    io->stream_ended = false;
}

void server_io_has_read(struct server_io *io, size_t bytes)
{
    io->turn_bytes += bytes;
    if (io->turn_bytes >= TURN_BYTES)
        end_turn(io, false); /* more is there than it can read at once */
}

static void look_at_first(struct server_io *io, struct server_connection_line *line)
{
    struct server_connection *connection = line->first;
    line->first = connection->next_in_line;
    connection->waits_in_line = false;
    if (server_connection_is_read(connection))
        server_io_has_read(io, server_input_read(connection));
    else
        server_io_mark(
            connection); /* it goes on with what was read; or has ended, and only this has kept it */
}

/* However many connections come, speak or go at once: streams wait for a few of them at most, and the thread has time
 * between two turns for them: one that never sleeps is held up by the kernel (sched_rt_runtime_us). */
static void look_at_lines(struct server_io *io)
{
    const struct server_connection *const last = io->again.last;
    for (bool left = io->again.first != NULL; left;) { /* what comes in meanwhile is for the next turn */
        left = io->again.first != last;
        look_at_first(io, &io->again);
    }
    for (unsigned left = STRANGERS; left > 0 && io->strangers.first != NULL; left--)
        look_at_first(io, &io->strangers);
}

static void clear_descriptor(int descriptor)
{
    uint64_t count;
    ssize_t got = read(descriptor, &count, sizeof count);
    (void)got;
}

static void on_completion(struct server_watch *watch, uint32_t events)
{
    struct server_io *io = watch->owner;
    (void)events;
    clear_descriptor(watch->descriptor);
    server_units_collect(io, cpu_worker_collect); /* asks for the next notification, too */
}

static void on_timer(struct server_watch *watch, uint32_t events)
{
    struct server_io *io = watch->owner;
    (void)events;
    clear_descriptor(watch->descriptor);
    core_ns now_ns = core_time_now_ns();
    io->timer_ns = CORE_NS_NEVER;
    server_units_release_waiting(io, now_ns, now_ns + PERFMODEL_CPU_EARLY_NS);
}

static void on_mail(struct server_watch *watch, uint32_t events)
{
    struct server_io *io = watch->owner;
    (void)events;
    server_mailbox_run(&io->mailbox, io);
}

static void on_tick(struct server_watch *watch, uint32_t events)
{
    struct server_io *io = watch->owner;
    core_ns now_ns = core_time_now_ns();
    (void)events;

    clear_descriptor(watch->descriptor);
    server_modify_tick(&io->streams, now_ns);
    for (struct server_migration *migration = io->streams.migrations, *next; migration != NULL;
         migration = next) {
        next = migration->io_next;
        server_stream_advance(migration->stream, now_ns);
    }
    for (struct server_connection *connection = io->connections, *next; connection != NULL;
         connection = next) {
        next = connection->next;
        server_connection_tick(connection, now_ns);
        if (io->draining && now_ns > io->drain_until_ns) {
            connection->overdue = true;
            server_connection_abort(connection);
        }
    }
    if (!io->draining)
        server_io_listen_again(io);
    atomic_store_explicit(&io->cpu_ns, core_time_thread_cpu_ns(), memory_order_relaxed);
}

void server_io_notify(struct server_io *io)
{
    uint64_t one = 1;
    ssize_t written = write(io->completion.descriptor, &one, sizeof one);
    (void)written; /* fails only when the counter is full, and then the descriptor is readable */
}

static void stop_accepting(struct server_io *io)
{
    for (uint32_t i = 0; i < io->server->listener_count; i++)
        (void)server_poller_watch(&io->poller, &io->listening[i], 0);
    for (uint32_t i = 1; i < io->server->io_count; i++)
        server_io_drain(io->server->ios[i], io->drain_until_ns);
}

static void start_drain(void *owner, struct server_message *message)
{
    struct server_io *io = owner;
    const enum protocol_error shutdown = PROTOCOL_ERROR_SHUTDOWN;
    (void)message;

    io->draining = true;
    if (io->listening != NULL)
        stop_accepting(io);
    for (struct server_connection *connection = io->connections, *next; connection != NULL;
         connection = next) {
        next = connection->next;
        if (connection->state == SERVER_CONNECTION_READY)
            server_connection_finish(connection, PROTOCOL_CLOSE_DRAINED, &shutdown);
        else if (connection->state < SERVER_CONNECTION_READY)
            server_connection_fail(connection, 0, shutdown, "the server is stopping");
    }
}

void server_io_drain(struct server_io *io, core_ns drain_until_ns)
{
    io->drain_until_ns = drain_until_ns;
    io->drain_message.run = start_drain;
    server_mailbox_post(&io->mailbox, &io->drain_message);
}

static uint32_t *class_of(const struct server_stream *stream)
{
    unsigned long long latency_ns = (unsigned long long)stream->bounds.counted_ns;
    return &server_connection_of(stream)->io->latency_classes[63 - __builtin_clzll(latency_ns)];
}

void server_io_discount_stream(struct server_stream *stream)
{
    --*class_of(stream);
    stream->bounds.counted_ns = 0;
}

void server_io_count_stream(struct server_stream *stream)
{
    if (stream->bounds.counted_ns > 0)
        server_io_discount_stream(stream);
    stream->bounds.counted_ns = server_backup_shortest_ns(stream) - stream->bounds.late_ns;
    ++*class_of(stream);
}

/* The shortest latency bound that counts, rounded down to a power of two; CORE_LATENCY_NS_MAX without any. */
static core_ns shortest_ns(const struct server_io *io)
{
    for (int class = 0; class < 64; class ++)
        if (io->latency_classes[class] > 0)
            return INT64_C(1) << class;
    return CORE_LATENCY_NS_MAX;
}

core_ns server_io_rest_ns(const struct server_io *io)
{
    core_ns rest_ns = perfmodel_io_rest_ns(shortest_ns(io), io->server->profile) / 2;
    return io->packets_per_ns * (double)rest_ns >= REST_PACKETS ? rest_ns : 0;
}

static void take_rate(struct server_io *io, core_ns now_ns)
{
    core_ns elapsed_ns = now_ns - io->rate_ns;
    if (elapsed_ns < CORE_NS_PER_MS)
        return;
    io->packets_per_ns = (double)(io->packets - io->rate_packets) / (double)elapsed_ns;
    io->rate_packets = io->packets;
    io->rate_ns = now_ns;
}

/* How long a turn may take without being late, beside the rest before it. */
static core_ns allowed_ns(const struct server_io *io)
{
    core_ns in_ns = io->server->profile->margins.in_ns;
    return core_time_max(in_ns, SERVER_POLLS_LATE_NS);
}

void server_io_admit_stall(struct server_io *io, core_ns now_ns)
{
    core_ns from_ns = server_polls_from_ns(&io->turns);
    if (now_ns - from_ns > io->allowed_ns)
        core_stalls_add(&io->stats.stalls, from_ns, now_ns);
}

/* Holds the turn that has just ended against what promises reckon with (overload/reserve.h). */
static void account_turn(struct server_io *io, core_ns rest_ns)
{
    const struct config_profile_margins *margins = &io->server->profile->margins;
    core_ns now_ns = core_time_now_ns(), from_ns = server_polls_from_ns(&io->turns);
    core_ns took_ns = server_polls_end(&io->turns, now_ns) - rest_ns;
    core_ns excess_ns = took_ns - margins->in_ns, lost_ns = excess_ns - margins->out_ns;

    if (io->stream_count == 0)
        return; /* nothing is promised */
    core_histogram_record(&io->stats.turn, took_ns);
    if (excess_ns > 0) {
        server_stats_add_ns(&io->stats.turn_excess_ns, excess_ns);
        core_stalls_add(&io->stats.stalls, from_ns, now_ns);
    } else
        core_stalls_settle(&io->stats.stalls, now_ns);
    core_stalls_mark(&io->stats.stalls, now_ns);
    if (lost_ns > 0)
        server_stats_add_ns(&io->stats.turn_lost_ns, lost_ns);
}

/* Handles what is ready. False: nothing is. */
static bool look(struct server_io *io, core_ns entered_ns, bool waits)
{
    server_polls_enter(&io->turns, entered_ns, io->timer_ns, waits);
    if (server_poller_look(&io->poller, waits ? -1 : 0) == 0)
        return false;
    server_polls_wake(&io->turns, core_time_now_ns());
    server_poller_run(&io->poller);
    return true;
}

static void wait_events(struct server_io *io)
{
    /* One reading for both looks: who is stopped between them, or before them, has entered before that. */
    const core_ns now_ns = core_time_now_ns();
    if (server_polls_first(&io->turns, now_ns)) {
        if (look(io, now_ns, false))
            return;
        server_polls_found_nothing(&io->turns);
    }
    (void)look(io, now_ns, true);
}

/* One turn, and the rest after it. Workers need not wake a thread that rests. */
static void turn(struct server_io *io)
{
    core_ns now_ns, rest_ns = 0;

    io->turn++;
    io->controls = 0;
    wait_events(io);
    look_at_lines(io);
    now_ns = core_time_now_ns();
    take_rate(io, now_ns);
    if (io->turn_bytes > 0 && !io->behind)
        rest_ns = server_io_rest_ns(io);
    for (uint32_t worker = 0; rest_ns > 0 && worker < io->server->all_workers; worker++)
        cpu_worker_mute(io->server->workers[worker], io->index);
    if (rest_ns > 0) /* what becomes eligible meanwhile must not wait for the end of the rest */
        server_units_release_waiting(io, now_ns, now_ns + rest_ns + PERFMODEL_CPU_EARLY_NS);
    io->rest_until_ns = now_ns + rest_ns;
    end_turn(io, true);
    account_turn(io, rest_ns > 0 ? io->served_ns : 0);
    io->rest_until_ns = 0;
    io->beat_ns = server_polls_beat_ns(shortest_ns(io));
    io->allowed_ns = allowed_ns(io) + rest_ns;
    if (rest_ns > 0) {
        core_time_sleep_until(now_ns + rest_ns);
        server_units_collect(io, cpu_worker_collect);
        end_turn(io, true);
        account_turn(io, rest_ns);
    }
}

static void *run(void *argument)
{
    struct server_io *io = argument;

    ERR_clear_error(); /* makes OpenSSL's record of this thread, under a lock: nothing is promised yet */
    atomic_store_explicit(&io->thread_id, gettid(), memory_order_release);
    /* mail: of a connection whose PROXY header was whole when the drain began */
    while (!io->draining || io->connections != NULL || server_mailbox_has_mail(&io->mailbox))
        turn(io);
    atomic_store_explicit(&io->cpu_ns, core_time_thread_cpu_ns(), memory_order_relaxed);
    atomic_store_explicit(&io->ended, true, memory_order_relaxed);
    return NULL;
}

/* Destroy may come before they are created. */
static void init_watches(struct server_io *io)
{
    io->poller.descriptor = -1;
    io->mail = (struct server_watch){.descriptor = -1, .ready = on_mail, .owner = io};
    io->completion = (struct server_watch){.descriptor = -1, .ready = on_completion, .owner = io};
    io->timer = (struct server_watch){.descriptor = -1, .ready = on_timer, .owner = io};
    io->tick = (struct server_watch){.descriptor = -1, .ready = on_tick, .owner = io};
}

static bool start_tick(const struct server_io *io)
{
    const struct timespec period = {.tv_nsec = TICK_MS * CORE_NS_PER_MS};
    const struct itimerspec spec = {.it_interval = period, .it_value = period};
    return timerfd_settime(io->tick.descriptor, 0, &spec, NULL) == 0;
}

static core_status create_watches(struct server_io *io, struct core_error *error)
{
    core_status status = server_poller_init(&io->poller, error);
    if (status != CORE_OK)
        return status;
    io->mail.descriptor = io->mailbox.descriptor;
    io->completion.descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    io->timer.descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    io->tick.descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (io->completion.descriptor < 0 || io->timer.descriptor < 0 || io->tick.descriptor < 0 ||
        !start_tick(io))
        return core_error_errno(error, "can not create the timers of an I/O thread");
    struct server_watch *const own[] = {&io->mail, &io->completion, &io->timer, &io->tick};
    for (size_t at = 0; at < sizeof own / sizeof *own; at++)
        if (!server_poller_watch(&io->poller, own[at], EPOLLIN))
            return core_error_set(error, CORE_NO_MEMORY, "no memory for the events of an I/O thread");
    return CORE_OK;
}

/* ---- what streams call ---- */

static void mark(struct server_stream_client *client)
{
    server_io_mark((struct server_connection *)client);
}

static bool append(struct server_stream *stream, struct server_output *output)
{
    struct server_connection *connection = server_connection_of(stream);

    if (connection->state >= SERVER_CONNECTION_LINGERING)
        return false;
    server_output_append(connection, output);
    return true;
}

static const struct server_stream_io_calls calls = {.queue = server_units_queue,
                                                    .release = server_units_release,
                                                    .count = server_io_count_stream,
                                                    .mark = mark,
                                                    .results = server_output_results,
                                                    .append = append,
                                                    .settle = server_connection_settle_stream,
                                                    .armed = server_frame_armed,
                                                    .overdue = server_frame_overdue,
                                                    .modified = server_frame_modified,
                                                    .not_modified = server_frame_not_modified,
                                                    .rekeyed = server_frame_rekeyed};

core_status server_io_create(struct server_io **io, struct server *server, uint32_t index,
                             struct core_error *error)
{
    struct server_io *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for an I/O thread");
    fresh->streams = (struct server_stream_io){.calls = &calls,
                                               .server = server,
                                               .index = index,
                                               .mailbox = &fresh->mailbox,
                                               .stats = &fresh->stats,
                                               .waiting = &fresh->waiting,
                                               .ivs = &fresh->ivs};
    fresh->server = server;
    fresh->index = index;
    fresh->timer_ns = CORE_NS_NEVER;
    server_polls_init(&fresh->turns, core_time_now_ns());
    fresh->allowed_ns = allowed_ns(fresh);
    fresh->beat_ns = server_polls_beat_ns(CORE_LATENCY_NS_MAX);
    fresh->worker = perfmodel_cpu_worker_of(server->profile);
    fresh->mailbox.descriptor = -1;
    init_watches(fresh);
    fresh->read_buffer = malloc(SERVER_READ_BYTES);
    fresh->streams.scratch = malloc(server->config->limits.packet_bytes + CORE_BLOCK_BYTES);
    fresh->submissions = calloc(server->worker_count + 1, sizeof *fresh->submissions);
    fresh->unserved = calloc(server->worker_count + 1, sizeof *fresh->unserved);
    core_status status = server_mailbox_init(&fresh->mailbox, error);
    if (status == CORE_OK)
        status = create_watches(fresh, error);
    if (status == CORE_OK)
        status = server->engine->open(&fresh->streams.engine, error);
    if (status == CORE_OK)
        status = server_ivs_init(&fresh->ivs, error);
    if (status == CORE_OK)
        status = server_hot_slots_create(&fresh->streams.hot);
    if (status == CORE_OK &&
        (fresh->read_buffer == NULL || fresh->streams.scratch == NULL || fresh->submissions == NULL ||
         fresh->unserved == NULL || server_eligible_queue_reserve(&fresh->waiting, 64) != CORE_OK))
        status = core_error_set(error, CORE_NO_MEMORY, "no memory for an I/O thread");
    if (status != CORE_OK) {
        server_io_destroy(fresh);
        return status;
    }
    *io = fresh;
    return CORE_OK;
}

core_status server_io_start(struct server_io *io, struct core_error *not_permitted, struct core_error *error)
{
    const struct config_server_threads *threads = &io->server->config->threads;
    char name[24];
    snprintf(name, sizeof name, "io-%u", io->index);
    struct core_thread_options options = {.name = name, .cpu = -1};
    if (threads->realtime != CONFIG_REALTIME_OFF)
        options.fifo_priority = threads->io_priority;
    return core_thread_start(&io->thread, &options, run, io, not_permitted, error);
}

struct server_mailbox *server_io_mailbox(struct server_io *io)
{
    return &io->mailbox;
}

const struct server_stats *server_io_stats(const struct server_io *io)
{
    return &io->stats;
}

bool server_io_has_ended(const struct server_io *io)
{
    return atomic_load_explicit(&io->ended, memory_order_relaxed);
}

int32_t server_io_thread_id(const struct server_io *io)
{
    return atomic_load_explicit(&io->thread_id, memory_order_relaxed);
}

core_status server_io_cpu_clock(const struct server_io *io, clockid_t *clock)
{
    return pthread_getcpuclockid(io->thread, clock) == 0 ? CORE_OK : CORE_UNSUPPORTED;
}

void server_io_join(struct server_io *io)
{
    pthread_join(io->thread, NULL);
}

static void close_watch(const struct server_watch *watch)
{
    if (watch->descriptor >= 0)
        close(watch->descriptor);
}

void server_io_destroy(struct server_io *io)
{
    if (io == NULL)
        return;
    server_poller_free(&io->poller);
    close_watch(&io->completion);
    close_watch(&io->timer);
    close_watch(&io->tick);
    free(io->listening);
    if (io->streams.engine != NULL)
        io->server->engine->close(io->streams.engine);
    server_ivs_free(&io->ivs);
    server_mailbox_destroy(&io->mailbox);
    server_eligible_queue_free(&io->waiting);
    server_gpu_ports_destroy(&io->streams);
    server_hot_slots_destroy(&io->streams.hot);
    server_stats_free(&io->stats);
    free(io->read_buffer);
    free(io->streams.scratch);
    free(io->submissions);
    free(io->unserved);
    free(io);
}
