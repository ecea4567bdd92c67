#include "server/overload/monitor.h"

#include "core/log.h"
#include "core/proc.h"
#include "core/realtime.h"
#include "server/net/io_thread.h"
#include "server/overload/reserve.h"
#include "server/server_internal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define POLL_MS ((int)(SERVER_OVERLOAD_INTERVAL_NS / CORE_NS_PER_MS))

struct unit {
    struct server_overload overload;
    struct server_overload_signs signs; /* so far, of all its threads */
    core_ns excess_ns;                  /* beyond its bounds, so far */
    _Atomic core_ns level_ns;           /* atomic: written by the watch, read by any */
    _Atomic int64_t share_ppb;          /* atomic: written by the planner, read by any */
};

struct server_monitor {
    struct server *server;
    struct server_mailbox mailbox; /* the end alone */
    struct server_message stop_message;
    pthread_t thread;
    bool stopping;                        /* this and all below: the watch's */
    bool stuck;                           /* some thread does not answer, and that was said */
    bool news;                            /* levels that the planner does not know of */
    struct server_planner_levels *levels; /* the watch's while not `away` */
    _Atomic bool away;                    /* atomic: set by the watch, cleared by the planner */
    uint32_t unit_count, all_count;       /* the I/O threads come behind the units */
    struct unit units[];
};

/* ---- what the system says ---- */

/* Adds what a thread's folder below /proc says. */
static void add_thread(const char *folder, struct server_overload_signs *signs)
{
    char path[96], schedstat[128], stat[512];

    snprintf(path, sizeof path, "%s/schedstat", folder);
    (void)core_proc_read(path, schedstat, sizeof schedstat);
    snprintf(path, sizeof path, "%s/stat", folder);
    (void)core_proc_read(path, stat, sizeof stat);
    server_overload_signs_add(signs, schedstat, stat);
}

static void add_own_thread(int32_t thread, struct server_overload_signs *signs)
{
    char folder[64];
    snprintf(folder, sizeof folder, "/proc/self/task/%d", (int)thread);
    add_thread(folder, signs);
}

/* All threads of a GPU's child. */
static void add_process(int32_t process, struct server_overload_signs *signs)
{
    char folder[64];
    snprintf(folder, sizeof folder, "/proc/%d/task", (int)process);
    DIR *tasks = process > 0 ? opendir(folder) : NULL;
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        char path[96];
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%.64s/%.20s", folder, task->d_name);
        add_thread(path, signs);
    }
    if (tasks != NULL)
        closedir(tasks);
}

/* Of all cores since the system's start. */
static core_ns stolen_ns(void)
{
    char text[256]; /* cpu  user nice system idle iowait irq softirq steal ... */
    (void)core_proc_read("/proc/stat", text, sizeof text);
    return core_time_max(core_proc_figure(text, 9, CORE_NS_PER_S / sysconf(_SC_CLK_TCK)), 0);
}

/* ---- the units ---- */

static core_ns read_ns(const _Atomic core_ns *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

struct account {
    core_ns lost_ns, excess_ns; /* so far */
    struct server_overload_signs signs;
    char name[24]; /* for people */
    char unit[24]; /* as /status has it */
};

static void read_io_account(const struct server_io *io, uint32_t index, struct account *account)
{
    const struct server_stats *stats = server_io_stats(io);
    account->lost_ns = read_ns(&stats->turn_lost_ns);
    account->excess_ns = read_ns(&stats->turn_excess_ns);
    add_own_thread(server_io_thread_id(io), &account->signs);
    snprintf(account->name, sizeof account->name, "I/O thread %u", index);
    snprintf(account->unit, sizeof account->unit, "io-%u", index);
}

static void read_account(const struct server *server, uint32_t index, struct account *account)
{
    uint32_t units = server->worker_count + server->gpu_count;
    *account = (struct account){.signs = {.stolen_ns = stolen_ns()}};
    if (index < server->worker_count) {
        const struct cpu_scheduler_counters *counters = cpu_worker_counters(server->workers[index]);
        account->lost_ns = read_ns(&counters->lost_ns);
        account->excess_ns = read_ns(&counters->excess_ns);
        add_own_thread(cpu_worker_thread_id(server->workers[index]), &account->signs);
        snprintf(account->name, sizeof account->name, "worker %u", index);
        snprintf(account->unit, sizeof account->unit, "cpu-%u", index);
        return;
    }
    if (index >= units) {
        read_io_account(server->ios[index - units], index - units, account);
        return;
    }
    uint32_t gpu = server_unit_gpu(server, index);
    const struct server_gpu_figures *figures = server_gpu_figures(server->gpus[gpu]);
    account->lost_ns = read_ns(&figures->lost_ns);
    account->excess_ns = read_ns(&figures->batch.excess_ns);
    add_own_thread(atomic_load_explicit(&figures->thread, memory_order_relaxed), &account->signs);
    add_process(atomic_load_explicit(&figures->process, memory_order_relaxed), &account->signs);
    snprintf(account->name, sizeof account->name, "GPU %u", gpu);
    snprintf(account->unit, sizeof account->unit, "gpu-%u", gpu);
}

/* What is new since the last look; threads that came or went make it unknown. */
static struct server_overload_signs signs_since(const struct server_overload_signs *before,
                                                const struct server_overload_signs *now)
{
    struct server_overload_signs since = {.delayed_ns = now->delayed_ns - before->delayed_ns,
                                          .faults = now->faults - before->faults,
                                          .stolen_ns = now->stolen_ns - before->stolen_ns};
    if (now->delayed_ns < 0 || before->delayed_ns < 0)
        since.delayed_ns = -1;
    return since;
}

static void look_at(struct server_monitor *watch, uint32_t index, core_ns now_ns)
{
    struct unit *unit = &watch->units[index];
    core_ns before_ns = unit->overload.level_ns;
    struct account account;
    char cause[256];

    read_account(watch->server, index, &account);
    core_ns lost_ns = account.lost_ns - unit->overload.seen_ns;
    struct server_overload_signs signs = signs_since(&unit->signs, &account.signs);
    if (server_overload_poll(&unit->overload, now_ns, account.lost_ns)) {
        watch->news = true;
        atomic_store_explicit(&unit->level_ns, unit->overload.level_ns, memory_order_relaxed);
    }
    if (unit->overload.level_ns > before_ns) {
        server_overload_cause(account.excess_ns - unit->excess_ns, &signs, cause, sizeof cause);
        core_log_with(CORE_LOG_WARNING, "overload.late", &(struct core_log_fields){.unit = account.unit},
                      "%s took %.1f ms more than its bounds and margins allow: %s", account.name,
                      (double)lost_ns / 1e6, cause);
    }
    unit->signs = account.signs;
    unit->excess_ns = account.excess_ns;
}

/* ---- the planner ---- */

/* The most that an I/O thread has lost. Streams of every unit go through each of them. */
static core_ns io_level_ns(const struct server_monitor *watch)
{
    core_ns level_ns = 0;
    for (uint32_t i = watch->unit_count; i < watch->all_count; i++)
        if (watch->units[i].overload.level_ns > level_ns)
            level_ns = watch->units[i].overload.level_ns;
    return level_ns;
}

static void tell(struct server_monitor *watch)
{
    /* acquire: the planner is through with the levels */
    if (!watch->news || atomic_load_explicit(&watch->away, memory_order_acquire))
        return;
    core_ns io_ns = io_level_ns(watch);
    for (uint32_t i = 0; i < watch->unit_count; i++)
        watch->levels->level_ns[i] =
            watch->units[i].overload.level_ns > io_ns ? watch->units[i].overload.level_ns : io_ns;
    watch->news = false;
    atomic_store_explicit(&watch->away, true, memory_order_relaxed); /* the mailbox publishes it */
    server_planner_withhold(watch->server->planner, watch->levels);
}

static void note_share(void *monitor, uint32_t unit, int64_t share_ppb)
{
    struct server_monitor *watch = monitor;
    atomic_store_explicit(&watch->units[unit].share_ppb, share_ppb, memory_order_relaxed);
}

static void take_back(void *monitor)
{
    struct server_monitor *watch = monitor;
    /* release: the levels were read before they are written again */
    atomic_store_explicit(&watch->away, false, memory_order_release);
}

/* ---- the thread ---- */

static void stop(void *owner, struct server_message *message)
{
    struct server_monitor *watch = owner;
    (void)message;
    watch->stopping = true;
}

static void poll_beats(struct server_monitor *watch, core_ns now_ns)
{
    char text[96];
    bool stuck = !server_beats_all(watch->server->beats, now_ns, text, sizeof text);
    if (stuck && !watch->stuck)
        core_log(CORE_LOG_ERROR, "watch.stuck", "%s", text);
    else if (!stuck && watch->stuck)
        core_log(CORE_LOG_INFO, "watch.moving", "every thread answers again");
    watch->stuck = stuck;
    server_beats_ask(watch->server->beats, now_ns);
}

static void *run(void *argument)
{
    struct server_monitor *watch = argument;

    while (!watch->stopping) {
        server_mailbox_wait(&watch->mailbox, watch, POLL_MS);
        core_ns now_ns = core_time_now_ns();
        poll_beats(watch, now_ns);
        for (uint32_t i = 0; !watch->stopping && i < watch->all_count; i++)
            look_at(watch, i, now_ns);
        if (!watch->stopping && watch->server->config->overload.tighten)
            tell(watch);
    }
    return NULL;
}

/* What was lost while the server started is nobody's. */
static void begin(struct server_monitor *watch)
{
    core_ns now_ns = core_time_now_ns();

    for (uint32_t i = 0; i < watch->all_count; i++) {
        struct unit *unit = &watch->units[i];
        struct account account;
        read_account(watch->server, i, &account);
        server_overload_init(&unit->overload, watch->server->config->overload.quiet_ns, now_ns,
                             account.lost_ns);
        unit->signs = account.signs;
        unit->excess_ns = account.excess_ns;
    }
}

core_status server_monitor_start(struct server_monitor **watch, struct server *server,
                                 struct core_error *error)
{
    bool realtime = server->config->threads.realtime != CONFIG_REALTIME_OFF;
    /* As the planner: an overloaded machine is what it is there to see. */
    const struct core_thread_options thread = {.name = "watch", .fifo_priority = realtime ? 1 : 0, .cpu = -1};
    uint32_t units = server->worker_count + server->gpu_count, all = units + server->io_count;
    struct server_monitor *fresh = calloc(1, sizeof *fresh + all * sizeof fresh->units[0]);
    core_status status = CORE_NO_MEMORY;

    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the overload monitor");
    fresh->server = server;
    fresh->unit_count = units;
    fresh->all_count = all;
    fresh->mailbox.descriptor = -1;
    fresh->levels = calloc(1, sizeof *fresh->levels + units * sizeof fresh->levels->level_ns[0]);
    if (fresh->levels == NULL) {
        server_monitor_destroy(fresh);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the overload monitor");
    }
    fresh->levels->share_ppb = server_overload_share_ppb;
    fresh->levels->withheld = note_share;
    fresh->levels->applied = take_back;
    fresh->levels->monitor = fresh;
    fresh->levels->unit_count = units;
    begin(fresh);
    status = server_mailbox_init(&fresh->mailbox, error);
    if (status == CORE_OK)
        status = core_thread_start(&fresh->thread, &thread, run, fresh, NULL, error);
    if (status != CORE_OK) {
        server_monitor_destroy(fresh);
        return status;
    }
    *watch = fresh;
    return CORE_OK;
}

void server_monitor_halt(struct server_monitor *watch)
{
    if (watch == NULL)
        return;
    watch->stop_message.run = stop;
    server_mailbox_post(&watch->mailbox, &watch->stop_message);
    pthread_join(watch->thread, NULL);
}

void server_monitor_destroy(struct server_monitor *watch)
{
    if (watch == NULL)
        return;
    server_mailbox_destroy(&watch->mailbox);
    free(watch->levels);
    free(watch);
}

core_ns server_monitor_level_ns(const struct server_monitor *watch, uint32_t unit)
{
    return unit < watch->unit_count ? read_ns(&watch->units[unit].level_ns) : 0;
}

core_ns server_monitor_io_level_ns(const struct server_monitor *watch, uint32_t io)
{
    return read_ns(&watch->units[watch->unit_count + io].level_ns);
}

bool server_monitor_is_overloaded(const struct server_monitor *watch)
{
    for (uint32_t i = 0; i < watch->all_count; i++)
        if (read_ns(&watch->units[i].level_ns) > 0)
            return true;
    return false;
}

int64_t server_monitor_share_ppb(const struct server_monitor *watch, uint32_t unit)
{
    return unit < watch->unit_count
               ? atomic_load_explicit(&watch->units[unit].share_ppb, memory_order_relaxed)
               : 0;
}
