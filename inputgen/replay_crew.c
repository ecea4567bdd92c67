#include "inputgen/replay_crew.h"

#include "core/realtime.h"
#include "inputgen/replay_process.h"

#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_DEFAULT 16
#define TIMEOUT_MS_DEFAULT  10000
#define DRAIN_NS_DEFAULT    (5 * CORE_NS_PER_S)
#define LEAD_NS             (20 * CORE_NS_PER_MS) /* from starting the threads to time 0 of the run */
#define TICK_NS_MAX         (500 * CORE_NS_PER_US)
#define TICK_NS_MIN         (20 * CORE_NS_PER_US)
#define FIFO_PRIORITY       5                     /* above ordinary load, below the server's threads */
#define POLL_NS             (20 * CORE_NS_PER_MS) /* how often to look whether the threads have ended */

int inputgen_crew_timeout_ms(const struct inputgen_replay_options *options)
{
    return options->timeout_ms ? options->timeout_ms : TIMEOUT_MS_DEFAULT;
}

/* ---- links ---- */

core_status inputgen_crew_links(struct inputgen_crew *crew, size_t streams, struct core_error *error)
{
    unsigned wanted = crew->options->connections ? crew->options->connections : CONNECTIONS_DEFAULT;
    crew->link_count = wanted < streams ? wanted : streams;
    crew->links = calloc(crew->link_count, sizeof *crew->links);
    crew->link_pointers = calloc(crew->link_count, sizeof *crew->link_pointers);
    if (!crew->links || !crew->link_pointers)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < crew->link_count; at++)
        crew->link_pointers[at] = &crew->links[at];
    return CORE_OK;
}

core_status inputgen_crew_connect(struct inputgen_crew *crew, struct core_error *error)
{
    const struct inputgen_replay_options *options = crew->options;
    for (size_t at = 0; at < crew->link_count; at++) {
        core_status status =
            (core_status)millrace_connect(options->address, options->tls, inputgen_crew_timeout_ms(options),
                                          &crew->links[at].millrace, error->text);
        if (status != CORE_OK)
            return status;
    }
    return CORE_OK;
}

core_status inputgen_crew_deal(struct inputgen_crew *crew, struct inputgen_live *lives, size_t count,
                               struct core_error *error)
{
    size_t share = (count + crew->link_count - 1) / crew->link_count;
    for (size_t at = 0; at < crew->link_count; at++)
        if (!(crew->links[at].lives = calloc(share, sizeof *crew->links[at].lives)))
            return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < count; at++) {
        struct inputgen_link *link = &crew->links[at % crew->link_count];
        lives[at].link = link;
        link->lives[link->live_count++] = &lives[at];
    }
    return CORE_OK;
}

/* ---- senders ---- */

static core_ns tick_chosen_ns(const struct inputgen_replay_options *options, core_ns latency_min_ns)
{
    core_ns tick_ns = latency_min_ns / 16; /* leave the bound to the server */
    if (options->tick_ns > 0)
        return options->tick_ns;
    if (tick_ns > TICK_NS_MAX)
        return TICK_NS_MAX;
    return core_time_max(tick_ns, TICK_NS_MIN);
}

size_t inputgen_crew_sender_count(const struct inputgen_crew *crew)
{
    unsigned half = core_cpu_count() / 2;
    size_t count = crew->options->threads ? crew->options->threads : half ? half : 1;
    return count < crew->link_count ? count : crew->link_count;
}

core_status inputgen_crew_senders(struct inputgen_crew *crew, core_ns duration_ns, core_ns latency_max_ns,
                                  struct inputgen_report *report, struct core_error *error)
{
    struct inputgen_sender_plan *plan = &crew->plan;
    size_t count = inputgen_crew_sender_count(crew);
    core_ns drain_ns = crew->options->drain_ns ? crew->options->drain_ns : DRAIN_NS_DEFAULT;
    plan->start_ns = core_time_now_ns() + LEAD_NS;
    plan->drain_ns = latency_max_ns + drain_ns;
    plan->give_up_ns = plan->start_ns + duration_ns + plan->drain_ns;
    plan->tick_ns = tick_chosen_ns(crew->options, report->latency_bound_min_ns);
    plan->fifo_priority = crew->options->ordinary_priority ? 0 : FIFO_PRIORITY;
    plan->stop = crew->options->stop;
    report->threads = count;
    crew->senders = calloc(count, sizeof *crew->senders);
    if (!crew->senders)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < count; at++) {
        size_t first = at * crew->link_count / count, end = (at + 1) * crew->link_count / count;
        crew->sender_count++;
        core_status status =
            inputgen_sender_init(&crew->senders[at], plan, crew->link_pointers + first, end - first, error);
        if (status != CORE_OK)
            return status;
    }
    return CORE_OK;
}

static bool senders_done(const struct inputgen_crew *crew)
{
    for (size_t at = 0; at < crew->sender_count; at++)
        if (!atomic_load(&crew->senders[at].done))
            return false;
    return true;
}

static core_status senders_run(struct inputgen_crew *crew, void (*look)(void *argument), void *argument,
                               struct core_error *error)
{
    core_status status = CORE_OK;
    size_t started = 0;
    while (started < crew->sender_count && status == CORE_OK)
        if ((status = inputgen_sender_start(&crew->senders[started], error)) == CORE_OK)
            started++;
    while (status == CORE_OK && !senders_done(crew)) {
        core_ns now_ns = core_time_now_ns();
        if (look)
            look(argument);
        core_time_sleep_until(now_ns + POLL_NS);
    }
    for (size_t at = 0; at < started; at++)
        inputgen_sender_join(&crew->senders[at]);
    return status;
}

core_status inputgen_crew_run(struct inputgen_crew *crew, struct inputgen_report *report,
                              void (*look)(void *argument), void *argument, struct core_error *error)
{
    pid_t server = crew->options->server;
    report->server = server ? server : inputgen_process_behind(millrace_descriptor(crew->links[0].millrace));
    core_ns server_cpu_ns = inputgen_process_cpu_ns(report->server);
    core_ns own_cpu_ns = core_time_process_cpu_ns();
    core_status status = senders_run(crew, look, argument, error);
    report->generator_cpu_ns = core_time_process_cpu_ns() - own_cpu_ns;
    core_ns server_now_ns = inputgen_process_cpu_ns(report->server);
    report->server_cpu_ns = server_cpu_ns >= 0 && server_now_ns >= 0 ? server_now_ns - server_cpu_ns : -1;
    report->server_resident_bytes = inputgen_process_resident_bytes(report->server);
    return status;
}

void inputgen_crew_progress(const struct inputgen_crew *crew, core_ns duration_ns)
{
    struct inputgen_progress progress = {.elapsed_ns = core_time_now_ns() - crew->plan.start_ns,
                                         .duration_ns = duration_ns};
    if (!crew->options->progress)
        return;
    for (size_t at = 0; at < crew->sender_count; at++) {
        struct inputgen_sender *sender = &crew->senders[at];
        progress.sent += atomic_load_explicit(&sender->shown_sent, memory_order_relaxed); /* only figures */
        progress.received += atomic_load_explicit(&sender->shown_received, memory_order_relaxed);
        progress.missed += atomic_load_explicit(&sender->shown_missed, memory_order_relaxed);
        progress.bad += atomic_load_explicit(&sender->shown_bad, memory_order_relaxed);
    }
    crew->options->progress(crew->options->progress_argument, &progress);
}

/* ---- the account ---- */

core_ns inputgen_crew_bounds(const struct inputgen_live *lives, size_t count, struct inputgen_report *report)
{
    core_ns latency_max_ns = 0;
    report->latency_bound_min_ns = CORE_NS_NEVER;
    for (size_t at = 0; at < count; at++) {
        core_ns latency_ns = lives[at].source.spec.latency_ns;
        if (lives[at].state == INPUTGEN_LIVE_OPEN && latency_ns < report->latency_bound_min_ns)
            report->latency_bound_min_ns = latency_ns;
        if (latency_ns > latency_max_ns)
            latency_max_ns = latency_ns;
    }
    if (report->latency_bound_min_ns == CORE_NS_NEVER)
        report->latency_bound_min_ns = 0; /* nothing was opened */
    return latency_max_ns;
}

static void count_streams(const struct inputgen_live *lives, size_t count, struct inputgen_report *report)
{
    for (size_t at = 0; at < count; at++) {
        const struct inputgen_live *live = &lives[at];
        struct inputgen_figures *figures = &report->classes[live->class_index].figures;
        if (live->state == INPUTGEN_LIVE_REFUSED) {
            figures->refused++;
            continue;
        }
        figures->opened++;
        figures->planned += report->interrupted ? live->sent : live->planned;
        figures->lost += live->sent - live->received;
    }
}

static void count_senders(const struct inputgen_crew *crew, struct inputgen_report *report)
{
    core_ns last_ns = crew->plan.start_ns;
    for (size_t at = 0; at < crew->sender_count; at++) {
        struct inputgen_sender *sender = &crew->senders[at];
        for (size_t class = 0; class < report->class_count; class ++)
            inputgen_figures_add(&report->classes[class].figures, &sender->classes[class]);
        core_histogram_merge(&report->send_lateness, &sender->lateness);
        if (sender->last_result_ns > last_ns)
            last_ns = sender->last_result_ns;
    }
    report->run_ns = last_ns - crew->plan.start_ns;
}

void inputgen_crew_count(const struct inputgen_crew *crew, const struct inputgen_live *lives, size_t count,
                         struct inputgen_report *report)
{
    report->interrupted = crew->options->stop && atomic_load(crew->options->stop);
    count_streams(lives, count, report);
    count_senders(crew, report);
    for (size_t at = 0; at < report->class_count; at++)
        inputgen_figures_add(&report->all, &report->classes[at].figures);
    for (size_t at = 0; at < crew->link_count; at++)
        if (crew->links[at].failed && report->connections_failed++ == 0)
            memcpy(report->connection_error, crew->links[at].failure, sizeof report->connection_error);
}

void inputgen_crew_free(struct inputgen_crew *crew)
{
    for (size_t at = 0; at < crew->sender_count; at++)
        inputgen_sender_free(&crew->senders[at]);
    for (size_t at = 0; crew->links && at < crew->link_count; at++)
        inputgen_link_free(&crew->links[at]);
    free(crew->senders);
    free(crew->link_pointers);
    free(crew->links);
}
