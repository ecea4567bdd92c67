#include "inputgen/replay.h"

#include "core/realtime.h"
#include "inputgen/replay_open.h"
#include "inputgen/replay_process.h"
#include "inputgen/replay_sender.h"

#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_DEFAULT 16
#define TIMEOUT_MS_DEFAULT  10000
#define DRAIN_NS_DEFAULT    (5 * CORE_NS_PER_S)
#define LEAD_NS             (20 * CORE_NS_PER_MS) /* from starting the threads to time 0 of the run */
#define TICK_NS_MAX         (500 * CORE_NS_PER_US)
#define TICK_NS_MIN         (20 * CORE_NS_PER_US)
#define FIFO_PRIORITY       5                     /* above ordinary load, below the server's threads */
#define LOOK_NS             (20 * CORE_NS_PER_MS) /* how often to look whether the threads have ended */
#define PROGRESS_NS         (200 * CORE_NS_PER_MS)

/* One replay while it runs; everything is owned by the caller's thread, but what replay_sender.h lends out.
 */
struct replay {
    const struct inputgen_replay_options *options;
    const struct inputgen_streams *list;
    struct inputgen_live *lives;
    struct inputgen_link *links;
    size_t link_count;
    struct inputgen_link **link_pointers;
    struct inputgen_sender *senders;
    size_t sender_count;
    struct inputgen_payload payload;
    struct inputgen_sender_plan plan;
    uint32_t packet_bytes_max;
    core_ns duration_ns; /* the last packet is due before this */
    int timeout_ms;
    struct inputgen_report *report;
};

/* ---- streams ---- */

static core_ns duration_of(const struct inputgen_replay_options *options, const struct inputgen_streams *list)
{
    core_ns last_ns = 0;
    for (size_t at = 0; at < list->count; at++)
        if (list->streams[at].stop_ns > last_ns)
            last_ns = list->streams[at].stop_ns;
    return options->duration_ns ? options->duration_ns : last_ns;
}

/* Streams are dealt to the connections in turn, so that each carries about the same load. */
static core_status lives_init(struct replay *replay, struct core_error *error)
{
    size_t count = replay->list->count;
    size_t share = (count + replay->link_count - 1) / replay->link_count;
    replay->lives = calloc(count, sizeof *replay->lives);
    for (size_t at = 0; at < replay->link_count; at++)
        if (!(replay->links[at].lives = calloc(share, sizeof *replay->links[at].lives)))
            return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    if (!replay->lives)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < count; at++) {
        struct inputgen_live *live = &replay->lives[at];
        core_status status =
            inputgen_live_init(live, replay->options, replay->list, at, replay->duration_ns, error);
        if (status != CORE_OK)
            return status;
        struct inputgen_link *link = &replay->links[at % replay->link_count];
        live->link = link;
        link->lives[link->live_count++] = live;
    }
    return CORE_OK;
}

/* ---- connections ---- */

static core_status connect_all(struct replay *replay, struct core_error *error)
{
    for (size_t at = 0; at < replay->link_count; at++) {
        core_status status = millrace_connect(replay->options->address, replay->options->tls,
                                              replay->timeout_ms, &replay->links[at].millrace, error);
        if (status != CORE_OK)
            return status;
    }
    return CORE_OK;
}

static core_status links_init(struct replay *replay)
{
    unsigned wanted = replay->options->connections ? replay->options->connections : CONNECTIONS_DEFAULT;
    replay->link_count = wanted < replay->list->count ? wanted : replay->list->count;
    replay->links = calloc(replay->link_count, sizeof *replay->links);
    replay->link_pointers = calloc(replay->link_count, sizeof *replay->link_pointers);
    if (!replay->links || !replay->link_pointers)
        return CORE_NO_MEMORY;
    for (size_t at = 0; at < replay->link_count; at++)
        replay->link_pointers[at] = &replay->links[at];
    return CORE_OK;
}

/* ---- threads ---- */

static core_ns tick_chosen_ns(const struct replay *replay)
{
    core_ns tick_ns = replay->report->latency_bound_min_ns / 16; /* leave the bound to the server */
    if (replay->options->tick_ns > 0)
        return replay->options->tick_ns;
    if (tick_ns > TICK_NS_MAX)
        return TICK_NS_MAX;
    return tick_ns < TICK_NS_MIN ? TICK_NS_MIN : tick_ns;
}

static void plan_set(struct replay *replay)
{
    const struct inputgen_replay_options *options = replay->options;
    core_ns latency_max_ns = 0;
    for (size_t at = 0; at < replay->list->count; at++)
        if (replay->lives[at].spec.latency_ns > latency_max_ns)
            latency_max_ns = replay->lives[at].spec.latency_ns;
    core_ns drain_ns = latency_max_ns + (options->drain_ns ? options->drain_ns : DRAIN_NS_DEFAULT);
    core_ns start_ns = core_time_now_ns() + LEAD_NS;
    replay->plan = (struct inputgen_sender_plan){
        .payload = &replay->payload,
        .class_count = replay->list->class_count,
        .packet_bytes_max = replay->packet_bytes_max,
        .start_ns = start_ns,
        .give_up_ns = start_ns + replay->duration_ns + drain_ns,
        .tick_ns = tick_chosen_ns(replay),
        .drain_ns = drain_ns,
        .fifo_priority = options->ordinary_priority ? 0 : FIFO_PRIORITY,
        .stop = options->stop,
    };
}

static size_t sender_count_chosen(const struct replay *replay)
{
    unsigned half = core_cpu_count() / 2;
    size_t count = replay->options->threads ? replay->options->threads : half ? half : 1;
    return count < replay->link_count ? count : replay->link_count;
}

static core_status senders_init(struct replay *replay, struct core_error *error)
{
    size_t count = sender_count_chosen(replay);
    replay->senders = calloc(count, sizeof *replay->senders);
    if (!replay->senders)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    replay->report->threads = count;
    plan_set(replay);
    for (size_t at = 0; at < count; at++) {
        size_t first = at * replay->link_count / count, end = (at + 1) * replay->link_count / count;
        replay->sender_count++;
        core_status status = inputgen_sender_init(&replay->senders[at], &replay->plan,
                                                  replay->link_pointers + first, end - first, error);
        if (status != CORE_OK)
            return status;
    }
    return CORE_OK;
}

static void progress_show(const struct replay *replay)
{
    struct inputgen_progress progress = {.elapsed_ns = core_time_now_ns() - replay->plan.start_ns,
                                         .duration_ns = replay->duration_ns};
    for (size_t at = 0; at < replay->sender_count; at++) {
        struct inputgen_sender *sender = &replay->senders[at];
        progress.sent += atomic_load_explicit(&sender->shown_sent, memory_order_relaxed); /* only figures */
        progress.received += atomic_load_explicit(&sender->shown_received, memory_order_relaxed);
        progress.missed += atomic_load_explicit(&sender->shown_missed, memory_order_relaxed);
        progress.bad += atomic_load_explicit(&sender->shown_bad, memory_order_relaxed);
    }
    replay->options->progress(replay->options->progress_argument, &progress);
}

static bool senders_done(const struct replay *replay)
{
    for (size_t at = 0; at < replay->sender_count; at++)
        if (!atomic_load(&replay->senders[at].done))
            return false;
    return true;
}

static core_status senders_run(struct replay *replay, struct core_error *error)
{
    core_status status = CORE_OK;
    size_t started = 0;
    pid_t server = replay->options->server;
    replay->report->server =
        server ? server : inputgen_process_behind(millrace_descriptor(replay->links[0].millrace));
    core_ns server_cpu_ns = inputgen_process_cpu_ns(replay->report->server);
    core_ns own_cpu_ns = core_time_process_cpu_ns();
    while (started < replay->sender_count && status == CORE_OK)
        if ((status = inputgen_sender_start(&replay->senders[started], error)) == CORE_OK)
            started++;
    /* If one could not start, the others still run to their end. */
    for (core_ns shown_ns = 0; status == CORE_OK && !senders_done(replay);) {
        core_ns now_ns = core_time_now_ns();
        if (replay->options->progress && now_ns - shown_ns >= PROGRESS_NS) {
            progress_show(replay);
            shown_ns = now_ns;
        }
        core_time_sleep_until(now_ns + LOOK_NS);
    }
    for (size_t at = 0; at < started; at++)
        inputgen_sender_join(&replay->senders[at]);
    replay->report->generator_cpu_ns = core_time_process_cpu_ns() - own_cpu_ns;
    core_ns server_now_ns = inputgen_process_cpu_ns(replay->report->server);
    replay->report->server_cpu_ns =
        server_cpu_ns >= 0 && server_now_ns >= 0 ? server_now_ns - server_cpu_ns : -1;
    replay->report->server_resident_bytes = inputgen_process_resident_bytes(replay->report->server);
    return status;
}

/* ---- the account ---- */

static core_status report_init(struct replay *replay)
{
    const struct inputgen_streams *list = replay->list;
    struct inputgen_report *report = calloc(1, sizeof *report);
    replay->report = report;
    if (!report)
        return CORE_NO_MEMORY;
    report->name = strdup(replay->options->name);
    report->classes = calloc(list->class_count, sizeof *report->classes);
    if (!report->name || !report->classes)
        return CORE_NO_MEMORY;
    inputgen_figures_init(&report->all);
    core_histogram_init(&report->send_lateness);
    for (size_t at = 0; at < list->class_count; at++) {
        inputgen_figures_init(&report->classes[at].figures);
        report->class_count++;
        if (!(report->classes[at].name = strdup(list->classes[at].name)))
            return CORE_NO_MEMORY;
    }
    report->connections = replay->link_count;
    report->scale = replay->options->scale > 0 ? replay->options->scale : 1;
    return CORE_OK;
}

static void bound_find(struct replay *replay)
{
    replay->report->latency_bound_min_ns = CORE_NS_NEVER;
    for (size_t at = 0; at < replay->list->count; at++)
        if (replay->lives[at].state == INPUTGEN_LIVE_OPEN &&
            replay->lives[at].spec.latency_ns < replay->report->latency_bound_min_ns)
            replay->report->latency_bound_min_ns = replay->lives[at].spec.latency_ns;
    if (replay->report->latency_bound_min_ns == CORE_NS_NEVER)
        replay->report->latency_bound_min_ns = 0; /* nothing was opened */
}

static void count_streams(struct replay *replay)
{
    bool interrupted = replay->options->stop && atomic_load(replay->options->stop);
    for (size_t at = 0; at < replay->list->count; at++) {
        const struct inputgen_live *live = &replay->lives[at];
        struct inputgen_figures *figures = &replay->report->classes[live->class_index].figures;
        if (live->state == INPUTGEN_LIVE_REFUSED) {
            figures->refused++;
            continue;
        }
        figures->opened++;
        figures->planned += interrupted ? live->sent : live->planned;
        figures->lost += live->sent - live->received;
    }
    replay->report->interrupted = interrupted;
}

static void count_senders(struct replay *replay)
{
    core_ns last_ns = replay->plan.start_ns;
    for (size_t at = 0; at < replay->sender_count; at++) {
        struct inputgen_sender *sender = &replay->senders[at];
        for (size_t class = 0; class < replay->report->class_count; class ++)
            inputgen_figures_add(&replay->report->classes[class].figures, &sender->classes[class]);
        core_histogram_merge(&replay->report->send_lateness, &sender->lateness);
        if (sender->last_result_ns > last_ns)
            last_ns = sender->last_result_ns;
    }
    replay->report->run_ns = last_ns - replay->plan.start_ns;
}

static void count_all(struct replay *replay)
{
    count_streams(replay);
    count_senders(replay);
    for (size_t at = 0; at < replay->report->class_count; at++)
        inputgen_figures_add(&replay->report->all, &replay->report->classes[at].figures);
    for (size_t at = 0; at < replay->link_count; at++)
        if (replay->links[at].failed && replay->report->connections_failed++ == 0)
            memcpy(replay->report->connection_error, replay->links[at].failure,
                   sizeof replay->report->connection_error);
}

/* ---- all of it ---- */

static core_status replay_prepare(struct replay *replay, struct core_error *error)
{
    if (replay->list->count == 0 || replay->list->class_count == 0)
        return core_error_set(error, CORE_INVALID, "there is no stream to replay");
    for (size_t at = 0; at < replay->list->count; at++)
        if (replay->list->streams[at].spec.packet_bytes > replay->packet_bytes_max)
            replay->packet_bytes_max = replay->list->streams[at].spec.packet_bytes;
    replay->duration_ns = duration_of(replay->options, replay->list);
    replay->timeout_ms = replay->options->timeout_ms ? replay->options->timeout_ms : TIMEOUT_MS_DEFAULT;
    if (links_init(replay) != CORE_OK || report_init(replay) != CORE_OK ||
        inputgen_payload_init(&replay->payload, replay->options->seed, replay->options->uniform_sizes,
                              replay->packet_bytes_max) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    return lives_init(replay, error);
}

static core_status replay_perform(struct replay *replay, struct core_error *error)
{
    core_status status = replay_prepare(replay, error);
    struct inputgen_open_options open = {.key_name = replay->options->key_name,
                                         .timeout_ms = replay->timeout_ms};
    if (status == CORE_OK)
        status = connect_all(replay, error);
    if (status == CORE_OK)
        status = inputgen_open_all(replay->links, replay->link_count, &open, replay->report, error);
    if (status != CORE_OK)
        return status;
    bound_find(replay);
    status = senders_init(replay, error);
    if (status == CORE_OK)
        status = senders_run(replay, error);
    if (status != CORE_OK)
        return status;
    inputgen_close_all(replay->links, replay->link_count, replay->timeout_ms, replay->report);
    count_all(replay);
    return CORE_OK;
}

static void replay_clean(struct replay *replay)
{
    for (size_t at = 0; at < replay->sender_count; at++)
        inputgen_sender_free(&replay->senders[at]);
    for (size_t at = 0; replay->links && at < replay->link_count; at++)
        inputgen_link_free(&replay->links[at]);
    for (size_t at = 0; replay->lives && at < replay->list->count; at++)
        inputgen_live_free(&replay->lives[at]);
    inputgen_payload_free(&replay->payload);
    free(replay->senders);
    free(replay->link_pointers);
    free(replay->links);
    free(replay->lives);
}

core_status inputgen_replay_run(const struct inputgen_replay_options *options,
                                const struct inputgen_streams *list, struct inputgen_report **report,
                                struct core_error *error)
{
    struct replay replay = {.options = options, .list = list};
    core_status status = replay_perform(&replay, error);
    if (status == CORE_OK)
        *report = replay.report;
    else
        inputgen_report_free(replay.report);
    replay_clean(&replay);
    return status;
}
