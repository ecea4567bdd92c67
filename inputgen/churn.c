#include "inputgen/churn.h"

#include "inputgen/churn_operate.h"
#include "inputgen/replay_crew.h"
#include "inputgen/replay_open.h"
#include "inputgen/replay_process.h"

#include <stdlib.h>
#include <string.h>

#define PROGRESS_NS (200 * CORE_NS_PER_MS)
#define SETTLE_NS   CORE_NS_PER_S /* for what an idle server still does by itself, as growing back */
#define CALM_MS     20000 /* for a server that keeps room back: twice the quiet time it has by default */
#define PROBES      4     /* of one class, at most */

/* One churn while it runs; everything is owned by the caller's thread, but what replay_sender.h lends out. */
struct churn {
    const struct inputgen_churn_options *options;
    const struct inputgen_streams *standing;
    struct inputgen_live *lives;
    struct inputgen_crew crew;
    struct inputgen_payload payload;
    struct inputgen_churn_plan plan;
    struct inputgen_sender_extra extra;
    struct inputgen_churner *churners;
    size_t churner_count;
    core_ns duration_ns;
    core_ns shown_ns;
    struct inputgen_churn_report *report;
};

/* ---- what there is before the first packet ---- */

static core_status report_init(struct churn *churn, struct core_error *error)
{
    static const char *const classes[INPUTGEN_CHURN_CLASSES] = {"standing", "opened", "standing, guaranteed",
                                                                "opened, guaranteed"};
    const struct inputgen_churn_options *options = churn->options;
    struct inputgen_churn_report *report = calloc(1, sizeof *report);
    churn->report = report;
    size_t count = options->guaranteed > 0 ? INPUTGEN_CHURN_CLASSES : INPUTGEN_CHURN_GUARANTEED;
    if (!report || !(report->live = inputgen_report_create(options->run.name, count)))
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < count; at++)
        if (!(report->live->classes[at].name = strdup(classes[at])))
            return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    report->live->connections = churn->crew.link_count;
    report->live->scale = options->run.scale > 0 ? options->run.scale : 1;
    report->operations_per_s = options->operations_per_s;
    inputgen_churn_figures_init(&report->figures);
    report->watch = (struct inputgen_watch){
        .admin = options->admin, .samples = options->samples, .sample_every_ns = options->sample_every_ns};
    return CORE_OK;
}

/* The longest packet, and the extreme latency bounds, of both lists. */
struct extent {
    uint32_t packet_bytes_max;
    core_ns latency_min_ns, latency_max_ns;
};

static void extent_add(struct extent *extent, const struct inputgen_streams *list)
{
    for (size_t at = 0; at < list->count; at++) {
        const struct core_stream_spec *spec = &list->streams[at].spec;
        if (spec->packet_bytes > extent->packet_bytes_max)
            extent->packet_bytes_max = spec->packet_bytes;
        if (spec->latency_ns < extent->latency_min_ns)
            extent->latency_min_ns = spec->latency_ns;
        if (spec->latency_ns > extent->latency_max_ns)
            extent->latency_max_ns = spec->latency_ns;
    }
}

static struct extent extent_of(const struct churn *churn)
{
    struct extent extent = {.latency_min_ns = CORE_NS_NEVER};
    extent_add(&extent, churn->standing);
    extent_add(&extent, churn->options->opened);
    return extent;
}

static core_status lives_init(struct churn *churn, struct core_error *error)
{
    struct inputgen_random random;
    inputgen_random_seed(&random, inputgen_mix(~churn->options->run.seed)); /* no churner has this one */
    churn->lives = calloc(churn->standing->count, sizeof *churn->lives);
    if (!churn->lives)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < churn->standing->count; at++) {
        core_status status = inputgen_live_init(&churn->lives[at], churn->crew.options, churn->standing, at,
                                                churn->duration_ns, error);
        if (status != CORE_OK)
            return status;
        churn->lives[at].source.spec.guaranteed =
            inputgen_random_uniform(&random) < churn->options->guaranteed;
        churn->lives[at].class_index =
            inputgen_churn_class(INPUTGEN_CHURN_STANDING, churn->lives[at].source.spec.guaranteed);
    }
    return inputgen_crew_deal(&churn->crew, churn->lives, churn->standing->count, error);
}

/* What can only be seen when a stream is opened is to be seen before the first one. */
static core_status opened_check(const struct churn *churn, struct core_error *error)
{
    const struct inputgen_streams *list = churn->options->opened;
    struct inputgen_live live;
    core_status status = CORE_OK;
    for (size_t at = 0; at < list->count && status == CORE_OK; at++) {
        status = inputgen_live_begin(&live, churn->crew.options, &list->streams[at], (uint32_t)at, 0, error);
        inputgen_live_free(&live);
    }
    return status;
}

static core_status churn_prepare(struct churn *churn, struct core_error *error)
{
    const struct inputgen_replay_options *run = &churn->options->run;
    uint32_t packet_bytes_max = extent_of(churn).packet_bytes_max;
    if (churn->standing->count == 0 || churn->options->opened->count == 0)
        return core_error_set(error, CORE_INVALID, "there is no stream to open");
    churn->duration_ns = run->duration_ns;
    for (size_t at = 0; at < churn->standing->count && run->duration_ns == 0; at++)
        if (churn->standing->streams[at].stop_ns > churn->duration_ns)
            churn->duration_ns = churn->standing->streams[at].stop_ns;
    core_status status = inputgen_crew_links(&churn->crew, churn->standing->count, error);
    if (status == CORE_OK)
        status = report_init(churn, error);
    if (status == CORE_OK)
        status = opened_check(churn, error);
    if (status == CORE_OK)
        status = lives_init(churn, error);
    if (status == CORE_OK &&
        inputgen_payload_init(&churn->payload, run->seed, run->uniform_sizes, packet_bytes_max) != CORE_OK)
        status = core_error_set(error, CORE_NO_MEMORY, "out of memory");
    churn->crew.plan.payload = &churn->payload;
    churn->crew.plan.class_count = INPUTGEN_CHURN_CLASSES;
    churn->crew.plan.packet_bytes_max = packet_bytes_max;
    churn->crew.plan.extra = &churn->extra;
    return status;
}

/* ---- capacity ---- */

/* The first stream of each class, at the probe's rate if its own is lower. */
static core_status capacities_init(struct churn *churn, struct core_error *error)
{
    const struct inputgen_streams *list = churn->options->opened;
    struct inputgen_churn_report *report = churn->report;
    if (churn->options->probe_max == 0)
        return CORE_OK;
    report->capacities = calloc(list->class_count, sizeof *report->capacities);
    if (!report->capacities)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (uint32_t class = 0; class < list->class_count; class ++) {
        size_t at = 0;
        while (at < list->count && list->streams[at].class_index != class)
            at++;
        if (at == list->count)
            continue; /* a short list may have none of it */
        struct inputgen_capacity *capacity = &report->capacities[report->capacity_count++];
        memcpy(capacity->class_name, list->classes[class].name, sizeof capacity->class_name);
        capacity->spec = list->streams[at].spec;
        double slowest_ns = capacity->spec.packet_bytes * 8e9 / churn->options->probe_bits_per_s;
        if ((double)capacity->spec.interval_ns > slowest_ns)
            capacity->spec.interval_ns =
                slowest_ns > (double)CORE_INTERVAL_NS_MIN ? (core_ns)slowest_ns : CORE_INTERVAL_NS_MIN;
        if (churn->options->run.key_name)
            capacity->spec.cipher = churn->options->run.key_cipher;
    }
    return CORE_OK;
}

static core_status probe_once(struct churn *churn, const struct inputgen_probe_plan *plan,
                              struct inputgen_probe *probe, struct core_error *error)
{
    struct inputgen_watch *watch = &churn->report->watch;
    core_status status = inputgen_watch_await_calm(watch, CALM_MS, error);
    bool held_back = watch->held_back > 0;
    if (status == CORE_OK)
        status = inputgen_probe_run(churn->crew.links, churn->crew.link_count, plan, probe, error);
    if (status == CORE_OK)
        status = inputgen_watch_await_idle(watch, plan->timeout_ms, error);
    probe->held_back = held_back || watch->held_back > 0;
    return status;
}

/* A probe by itself is no measure: a machine that takes time from the server makes it keep room back, a card
 * may be lost and come back, and how many a server admits that moves others out of the way (timeouts.move_ms)
 * depends on when each move is done. So what was before counts where two in a row say the same, and after it
 * the server may find that again. Room that is lost is not found however often one looks. */
static core_status capacity_probe(struct churn *churn, struct inputgen_capacity *capacity, bool after,
                                  struct core_error *error)
{
    struct inputgen_probe *probe = after ? &capacity->after : &capacity->before, last;
    struct inputgen_probe_plan plan = {.spec = capacity->spec,
                                       .key_name = churn->options->run.key_name,
                                       .limit = churn->options->probe_max,
                                       .timeout_ms = inputgen_crew_timeout_ms(churn->crew.options)};
    core_status status = CORE_OK;
    bool known = after, agreed = false;
    last = capacity->before;
    for (int tries = 0; status == CORE_OK && !agreed && tries < PROBES; tries++) {
        status = probe_once(churn, &plan, probe, error);
        agreed = known && !probe->held_back && probe->streams == last.streams;
        if (!after) {
            last = *probe;
            known = !probe->held_back;
        }
    }
    return status;
}

static core_status capacities_probe(struct churn *churn, bool after, struct core_error *error)
{
    struct inputgen_churn_report *report = churn->report;
    core_status status = CORE_OK;
    for (size_t at = 0; at < report->capacity_count && status == CORE_OK; at++)
        status = capacity_probe(churn, &report->capacities[at], after, error);
    return status;
}

/* Looks, when all is closed, whether the server has as much room as before. What goes wrong here is a
 * finding, not a failure to run. */
static void capacities_compare(struct churn *churn)
{
    struct inputgen_churn_report *report = churn->report;
    struct core_error error;
    core_status status =
        inputgen_watch_await_idle(&report->watch, inputgen_crew_timeout_ms(churn->crew.options), &error);
    core_time_sleep_until(core_time_now_ns() + SETTLE_NS);
    if (status == CORE_OK && report->live->connections_failed == 0 && !report->live->interrupted) {
        status = capacities_probe(churn, true, &error);
        report->probed_after = status == CORE_OK;
    }
    if (status == CORE_OK)
        status = inputgen_watch_now(&report->watch, &error);
    if (status != CORE_OK)
        memcpy(report->remain, error.text, sizeof report->remain);
}

/* ---- the run ---- */

static void look(void *argument)
{
    struct churn *churn = argument;
    core_ns now_ns = core_time_now_ns();
    inputgen_watch_look(&churn->report->watch, now_ns);
    if (now_ns - churn->shown_ns < PROGRESS_NS)
        return;
    inputgen_crew_progress(&churn->crew, churn->duration_ns);
    churn->shown_ns = now_ns;
}

static void plan_set(struct churn *churn)
{
    const struct inputgen_churn_options *options = churn->options;
    size_t senders = inputgen_crew_sender_count(&churn->crew);
    churn->plan = (struct inputgen_churn_plan){
        .options = &options->run,
        .list = options->opened,
        .operations_per_s = options->operations_per_s / (double)senders,
        .open_max = (options->open_max + senders - 1) / senders,
        .duration_ns = churn->duration_ns,
        .index_first = (uint32_t)churn->standing->count,
        .index_step = (uint32_t)senders,
        .guaranteed = options->guaranteed,
    };
    memcpy(churn->plan.weights, options->weights, sizeof churn->plan.weights);
    if (millrace_welcome_of(churn->crew.links[0].millrace)->version < 2)
        churn->plan.weights[INPUTGEN_OPERATION_MODIFY] = 0;
    churn->extra = inputgen_churner_extra(&churn->plan);
}

static core_status churners_init(struct churn *churn, struct core_error *error)
{
    churn->churners = calloc(churn->crew.sender_count, sizeof *churn->churners);
    if (!churn->churners)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < churn->crew.sender_count; at++) {
        churn->churner_count++;
        core_status status = inputgen_churner_init(&churn->churners[at], &churn->plan, (uint32_t)at, error);
        if (status != CORE_OK)
            return status;
        churn->crew.senders[at].extra = &churn->churners[at];
    }
    return CORE_OK;
}

static void count_all(struct churn *churn)
{
    struct inputgen_churn_report *report = churn->report;
    for (size_t at = 0; at < churn->churner_count; at++) {
        inputgen_churner_settle(&churn->churners[at], &churn->crew.senders[at]);
        inputgen_churn_figures_add(&report->figures, &churn->churners[at].figures);
    }
    inputgen_crew_count(&churn->crew, churn->lives, churn->standing->count, report->live);
}

static core_status open_standing(struct churn *churn, struct core_error *error)
{
    struct inputgen_open_options open = {.key_name = churn->options->run.key_name,
                                         .timeout_ms = inputgen_crew_timeout_ms(churn->crew.options),
                                         .more = inputgen_churner_room(&churn->plan)};
    return inputgen_open_all(churn->crew.links, churn->crew.link_count, &open, churn->report->live, error);
}

static core_status churn_run(struct churn *churn, struct core_error *error)
{
    struct extent extent = extent_of(churn);
    struct inputgen_report *live = churn->report->live;
    plan_set(churn);
    core_status status = open_standing(churn, error);
    if (status != CORE_OK)
        return status;
    (void)inputgen_crew_bounds(churn->lives, churn->standing->count, live);
    if (extent.latency_min_ns < live->latency_bound_min_ns)
        live->latency_bound_min_ns = extent.latency_min_ns;
    status = inputgen_crew_senders(&churn->crew, churn->duration_ns, extent.latency_max_ns, live, error);
    if (status == CORE_OK)
        status = churners_init(churn, error);
    if (status == CORE_OK)
        status = inputgen_crew_run(&churn->crew, live, look, churn, error);
    if (status != CORE_OK)
        return status;
    inputgen_close_all(churn->crew.links, churn->crew.link_count,
                       inputgen_crew_timeout_ms(churn->crew.options), live);
    count_all(churn);
    return CORE_OK;
}

static core_status churn_perform(struct churn *churn, struct core_error *error)
{
    core_status status = churn_prepare(churn, error);
    if (status == CORE_OK)
        status = inputgen_crew_connect(&churn->crew, error);
    if (status != CORE_OK)
        return status;
    if (churn->options->guaranteed > 0 && millrace_welcome_of(churn->crew.links[0].millrace)->version < 2)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "the server speaks version 1 of the protocol, which has no guaranteed streams");
    pid_t server = churn->options->run.server;
    churn->report->watch.server =
        server ? server : inputgen_process_behind(millrace_descriptor(churn->crew.links[0].millrace));
    if ((status = inputgen_watch_now(&churn->report->watch, error)) != CORE_OK ||
        (status = capacities_init(churn, error)) != CORE_OK ||
        (status = capacities_probe(churn, false, error)) != CORE_OK ||
        (status = inputgen_watch_now(&churn->report->watch, error)) != CORE_OK ||
        (status = churn_run(churn, error)) != CORE_OK)
        return status;
    capacities_compare(churn);
    return CORE_OK;
}

static void churn_clean(struct churn *churn)
{
    for (size_t at = 0; at < churn->churner_count; at++)
        inputgen_churner_free(&churn->churners[at]);
    inputgen_crew_free(&churn->crew);
    for (size_t at = 0; churn->lives && at < churn->standing->count; at++)
        inputgen_live_free(&churn->lives[at]);
    inputgen_payload_free(&churn->payload);
    free(churn->churners);
    free(churn->lives);
}

core_status inputgen_churn_run(const struct inputgen_churn_options *options,
                               const struct inputgen_streams *standing, struct inputgen_churn_report **report,
                               struct core_error *error)
{
    struct churn churn = {.options = options, .standing = standing, .crew.options = &options->run};
    core_status status = churn_perform(&churn, error);
    if (status == CORE_OK)
        *report = churn.report;
    else
        inputgen_churn_report_free(churn.report);
    churn_clean(&churn);
    return status;
}
