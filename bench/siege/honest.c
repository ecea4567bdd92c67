#include "bench/siege/honest.h"

#include "core/realtime.h"
#include "inputgen/replay.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INTERVAL_NS  (20 * CORE_NS_PER_MS)
#define PACKET_BYTES 512
#define TICK_NS      (50 * CORE_NS_PER_US) /* it looks for results so often */
#define LONGEST_NS   (3600 * CORE_NS_PER_S)
#define START_NS     (20 * CORE_NS_PER_S)
#define PROBE_NS     (20 * CORE_NS_PER_MS) /* from one OPEN to the next */
#define ANSWER_MS    10000

struct siege_honest {
    const struct siege_attack *attack;
    const char *address;
    struct inputgen_streams list;
    pthread_t player, prober;
    _Atomic bool running; /* atomic: written by the player, read by the starter: packets run */
    _Atomic bool ended;   /* the same, when it has ended, however */
    atomic_bool stop;     /* atomic: written by the starter, read by both */
    /* the player's until it has ended */
    struct inputgen_report *report;
    core_status status;
    struct core_error error;
    struct siege_figures probe; /* the prober's until it has ended */
};

static core_status list_make(struct siege_honest *honest)
{
    static struct inputgen_class class = {"honest"};
    const struct siege_attack *attack = honest->attack;
    struct inputgen_streams *list = &honest->list;
    *list = (struct inputgen_streams){.count = attack->streams, .classes = &class, .class_count = 1};
    list->streams = calloc(attack->streams, sizeof *list->streams);
    if (list->streams == NULL)
        return CORE_NO_MEMORY;
    const core_ns span_ns = attack->latency_max_ns - attack->latency_min_ns;
    for (uint32_t at = 0; at < attack->streams; at++)
        list->streams[at] = (struct inputgen_stream){
            .spec = {.packet_bytes = attack->packet_bytes > 0 ? attack->packet_bytes : PACKET_BYTES,
                     .burst_packets = 2,
                     .interval_ns = INTERVAL_NS,
                     .latency_ns = attack->latency_min_ns + span_ns * at / attack->streams,
                     .cipher = (enum core_cipher)(1 + at % CORE_CIPHER_COUNT),
                     .padding = CORE_PADDING_PKCS7,
                     .guaranteed = attack->guaranteed},
            .start_ns = INTERVAL_NS * at / attack->streams,
            .stop_ns = LONGEST_NS,
            .message_packets = 1,
        };
    return CORE_OK;
}

uint64_t siege_honest_within_bound(const struct siege_attack *attack)
{
    return attack->streams * (uint64_t)(2 + attack->latency_max_ns / INTERVAL_NS);
}

/* ---- the streams ---- */

static void on_progress(void *argument, const struct inputgen_progress *progress)
{
    struct siege_honest *honest = argument;
    if (progress->received > 0)
        atomic_store(&honest->running, true);
}

static void *play(void *argument)
{
    struct siege_honest *honest = argument;
    const struct inputgen_replay_options options = {.address = honest->address,
                                                    .name = "siege",
                                                    .threads = 1,
                                                    .tick_ns = TICK_NS,
                                                    .seed = 1,
                                                    .timeout_ms = ANSWER_MS,
                                                    .progress = on_progress,
                                                    .progress_argument = honest,
                                                    .stop = &honest->stop};
    honest->status = inputgen_replay_run(&options, &honest->list, &honest->report, &honest->error);
    atomic_store(&honest->ended, true);
    return NULL;
}

/* ---- the probe ---- */

static core_status probe_once(struct millrace *connection, core_ns *took_ns, struct core_error *error)
{
    const struct millrace_open open = siege_open();
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_closed closed = {.size = sizeof closed};
    const core_ns start_ns = core_time_now_ns();
    core_status status =
        (core_status)millrace_open_stream(connection, &open, ANSWER_MS, &opened, NULL, error->text);
    *took_ns = core_time_now_ns() - start_ns;
    return status == CORE_OK ? (core_status)millrace_close_stream(connection, opened.stream, ANSWER_MS,
                                                                  &closed, error->text)
                             : status;
}

/* Every OPEN comes on a new connection: clients at the Unix socket must be let in, too. */
static void *probe(void *argument)
{
    struct siege_honest *honest = argument;
    struct siege_figures *figures = &honest->probe;
    while (!atomic_load(&honest->stop)) {
        struct millrace *connection = NULL;
        struct core_error error = {""};
        core_ns took_ns = 0;
        core_status status =
            (core_status)millrace_connect(honest->address, NULL, ANSWER_MS, &connection, error.text);
        if (status == CORE_OK)
            status = probe_once(connection, &took_ns, &error);
        millrace_disconnect(connection);
        if (status == CORE_OK) {
            figures->opens++;
            if (took_ns > figures->open_ns)
                figures->open_ns = took_ns;
        } else if (figures->opens_failed++ == 0) {
            (void)snprintf(figures->open_error, sizeof figures->open_error, "%.159s", error.text);
        }
        core_time_sleep_until(core_time_now_ns() + PROBE_NS);
    }
    return NULL;
}

/* ---- both ---- */

static void add(struct siege_figures *figures, const struct siege_honest *honest)
{
    const struct inputgen_figures *all = &honest->report->all;
    const core_ns worst_ns = core_histogram_maximum_ns(&all->latency);
    const core_ns own_ns = core_histogram_maximum_ns(&honest->report->send_lateness);
    figures->packets += all->received;
    figures->missed += all->missed;
    figures->late += all->late;
    figures->untrue += all->untrue;
    figures->untrue_ns = core_time_max(all->untrue_ns, figures->untrue_ns);
    figures->spoilt += all->lost + all->mismatched + all->disordered + all->rejected;
    figures->refused += all->refused;
    figures->gpu += honest->report->streams_on_gpus;
    figures->worst_ns = core_time_max(worst_ns, figures->worst_ns);
    figures->own_ns = core_time_max(own_ns, figures->own_ns);
    figures->opens += honest->probe.opens;
    if (figures->opens_failed == 0)
        memcpy(figures->open_error, honest->probe.open_error, sizeof figures->open_error);
    figures->opens_failed += honest->probe.opens_failed;
    if (honest->probe.open_ns > figures->open_ns)
        figures->open_ns = honest->probe.open_ns;
}

static core_status refused_none(const struct siege_honest *honest, struct core_error *error)
{
    if (honest->report->all.refused == 0 || honest->attack->guaranteed)
        return CORE_OK;
    return core_error_set(error, CORE_REFUSED, "%llu honest streams were refused: %s",
                          (unsigned long long)honest->report->all.refused, honest->report->refusals[0].text);
}

static void honest_free(struct siege_honest *honest)
{
    if (honest->report)
        inputgen_report_free(honest->report);
    free(honest->list.streams);
    free(honest);
}

core_status siege_honest_stop(struct siege_honest *honest, struct siege_figures *figures,
                              struct core_error *error)
{
    atomic_store(&honest->stop, true);
    (void)pthread_join(honest->player, NULL);
    (void)pthread_join(honest->prober, NULL);
    core_status status = honest->status;
    if (status == CORE_OK)
        status = refused_none(honest, error);
    else if (error)
        *error = honest->error;
    if (status == CORE_OK)
        add(figures, honest);
    honest_free(honest);
    return status;
}

core_status siege_honest_start(const struct siege_attack *attack, const char *address,
                               struct siege_honest **started, struct core_error *error)
{
    static const struct core_thread_options player = {.name = "honest", .cpu = -1};
    static const struct core_thread_options prober = {.name = "probe", .cpu = -1};
    struct siege_honest *honest = calloc(1, sizeof *honest);
    if (honest == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the honest streams");
    honest->attack = attack;
    honest->address = address;
    if (list_make(honest) != CORE_OK) {
        honest_free(honest);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the honest streams");
    }
    core_status status = core_thread_start(&honest->player, &player, play, honest, NULL, error);
    if (status != CORE_OK) {
        honest_free(honest);
        return status;
    }
    const core_ns until_ns = core_time_now_ns() + START_NS;
    while (!atomic_load(&honest->running) && !atomic_load(&honest->ended) && core_time_now_ns() < until_ns)
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    status = core_thread_start(&honest->prober, &prober, probe, honest, NULL, error);
    if (status != CORE_OK) {
        atomic_store(&honest->stop, true);
        (void)pthread_join(honest->player, NULL);
        honest_free(honest);
        return status;
    }
    *started = honest;
    return CORE_OK;
}
