#include "server/admin/status_json.h"

#include "server/admin/figures.h"

#include <jansson.h>

#define DUMP_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(12))

static double us(core_ns time_ns)
{
    return (double)time_ns / (double)CORE_NS_PER_US;
}

static double seconds(core_ns time_ns)
{
    return (double)time_ns / (double)CORE_NS_PER_S;
}

static double share(int64_t ppb)
{
    return (double)ppb / 1e9;
}

/* Counters stay far below 2^63. */
static json_int_t whole(uint64_t count)
{
    return (json_int_t)count;
}

static json_t *figure_json(const struct server_figure *figure, const void *of)
{
    const void *member = (const char *)of + figure->offset;
    switch (figure->kind) {
    case SERVER_FIGURE_SHARE:
        return json_real(share(*(const int64_t *)member));
    case SERVER_FIGURE_SECONDS:
        return json_real(seconds(*(const core_ns *)member));
    case SERVER_FIGURE_TIME:
        return json_real(us(*(const core_ns *)member));
    default:
        return json_integer(whole(*(const uint64_t *)member));
    }
}

/* Adds a member, or an element. Where there is no memory for it the whole becomes NULL, and stays so. */
static void set(json_t **object, const char *name, json_t *value)
{
    if (json_object_set_new(*object, name, value) == 0)
        return;
    json_decref(*object);
    *object = NULL;
}

static void append(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) == 0)
        return;
    json_decref(*array);
    *array = NULL;
}

/* The object, which may be NULL, with the figures of a struct. */
static json_t *add_figures(json_t *object, const struct server_figure *figures, const void *of)
{
    for (const struct server_figure *figure = figures; figure->help != NULL; figure++)
        if (figure->status != NULL)
            set(&object, figure->status, figure_json(figure, of));
    return object;
}

/* An array of the objects that `make` makes of `count` things. */
typedef json_t *make_object(const struct server_snapshot *snapshot, uint32_t at);

static json_t *array_of(const struct server_snapshot *snapshot, uint32_t count, make_object *make)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++)
        append(&array, make(snapshot, i));
    return array;
}

/* Where memory ends inside a json_pack it fails as a whole, also through its members. */
static json_t *io_json(const struct server_snapshot *snapshot, uint32_t at)
{
    return add_figures(json_object(), server_figures_io, &snapshot->ios[at]);
}

static json_t *worker_json(const struct server_snapshot *snapshot, uint32_t at)
{
    return add_figures(json_object(), server_figures_worker, &snapshot->workers[at]);
}

static double percentile_us(const struct core_histogram *histogram, double percent)
{
    return us(core_histogram_percentile_ns(histogram, percent));
}

static json_t *slack_json(const struct core_histogram *slack)
{
    return json_pack("{sf sf sf sf sf}", "p0_01", percentile_us(slack, 0.01), "p1", percentile_us(slack, 1),
                     "p50", percentile_us(slack, 50), "p99", percentile_us(slack, 99), "min",
                     us(core_histogram_minimum_ns(slack)));
}

static json_t *latency_json(const struct core_histogram *latency)
{
    return json_pack("{sf sf sf sf sf}", "p50", percentile_us(latency, 50), "p99", percentile_us(latency, 99),
                     "p99_9", percentile_us(latency, 99.9), "p99_99", percentile_us(latency, 99.99), "max",
                     us(core_histogram_maximum_ns(latency)));
}

static json_t *admission_json(const struct core_histogram *admission)
{
    return json_pack("{sf sf sf}", "p50", percentile_us(admission, 50), "p99", percentile_us(admission, 99),
                     "max", us(core_histogram_maximum_ns(admission)));
}

/* Misses by cause; none has the cause none. */
static json_t *missed_by_json(const struct server_snapshot *snapshot)
{
    json_t *object = json_object();
    for (int i = SERVER_CAUSE_NONE + 1; i < SERVER_CAUSES; i++)
        set(&object, server_cause_name((enum server_cause)i), json_integer(whole(snapshot->missed_by[i])));
    return object;
}

static json_t *totals_json(const struct server_snapshot *snapshot)
{
    json_t *object = json_pack("{so so so so so}", "missed_by", missed_by_json(snapshot), "slack_us",
                               slack_json(&snapshot->slack), "latency_us", latency_json(&snapshot->latency),
                               "admission_us", admission_json(&snapshot->admission), "in_force_us",
                               admission_json(&snapshot->in_force));
    return add_figures(object, server_figures_totals, &snapshot->totals);
}

static json_t *gpu_json(const struct server_snapshot *snapshot, uint32_t at)
{
    const struct server_snapshot_gpu *gpu = &snapshot->gpus[at];
    json_t *object =
        json_pack("{ss ss ss ss ss ss}", "card", gpu->card, "uuid", gpu->uuid, "pci", gpu->pci, "state",
                  gpu->up != 0 ? "up" : "down", "fault", gpu->fault, "throttled_by", gpu->throttled_by);
    for (size_t i = 0; i < SERVER_FIGURES_STAGES; i++) {
        const struct server_figure_stage *stage = &server_figures_stages[i];
        set(&object, stage->status, add_figures(json_object(), stage->figures, gpu));
    }
    return add_figures(object, server_figures_gpu, gpu);
}

static json_t *unit_json(const struct server_snapshot *snapshot, uint32_t at)
{
    const struct server_snapshot_unit *unit = server_snapshot_unit_in_row(snapshot, at);
    return add_figures(json_pack("{ss so}", "unit", unit->name, "slack_us", slack_json(&unit->slack)),
                       server_figures_unit, unit);
}

static const char *holder_name(const struct server_snapshot *snapshot, uint32_t holder, char text[16])
{
    if (holder == SERVER_TAIL_LATENCY_NONE)
        return "";
    if (holder < SERVER_TAIL_LATENCY_IO)
        return snapshot->units[holder].name;
    snprintf(text, 16, "io-%u", holder - SERVER_TAIL_LATENCY_IO);
    return text;
}

static json_t *worst_json(const struct server_snapshot *snapshot, uint32_t at)
{
    const struct server_tail_latency_packet *packet = &snapshot->worst[at];
    const core_ns *stage_ns = packet->stage_ns;
    char holder[16];
    json_t *stages = json_pack(
        "{sf sf sf sf sf sf}", "hand_over", us(stage_ns[SERVER_TAIL_LATENCY_HAND_OVER]), "queue",
        us(stage_ns[SERVER_TAIL_LATENCY_QUEUE]), "copy_up", us(stage_ns[SERVER_TAIL_LATENCY_COPY_UP]),
        "encrypt", us(stage_ns[SERVER_TAIL_LATENCY_ENCRYPT]), "copy_down",
        us(stage_ns[SERVER_TAIL_LATENCY_COPY_DOWN]), "delivery", us(stage_ns[SERVER_TAIL_LATENCY_DELIVERY]));
    return json_pack("{sI sI sI ss sf sf sf sf sb ss ss sf so}", "connection", whole(packet->connection),
                     "stream", whole(packet->stream), "sequence", whole(packet->sequence), "unit",
                     snapshot->units[packet->unit].name, "slack_us", us(packet->slack_ns), "latency_us",
                     us(packet->bound_ns), "policed_us", us(packet->waited_ns), "at_s",
                     seconds(packet->at_ns - snapshot->started_ns), "diverted", packet->diverted != 0,
                     "cause", server_cause_name((enum server_cause)packet->cause), "held_by",
                     holder_name(snapshot, packet->holder, holder), "held_us", us(packet->held_ns),
                     "stages_us", stages);
}

static json_t *turned_json(const struct server_snapshot *snapshot)
{
    json_t *object = json_object();
    for (int i = 0; i < SERVER_TURNED_COUNT; i++)
        set(&object, server_turned_name((enum server_turned)i), json_integer(whole(snapshot->turned[i])));
    return object;
}

static json_t *arrivals_json(const struct server_snapshot *snapshot)
{
    return json_pack("{sI sI so}", "tls_handshakes", whole(snapshot->handshakes), "tls_established",
                     whole(snapshot->handshakes_done), "turned", turned_json(snapshot));
}

static char *dump(json_t *object)
{
    char *text = object == NULL ? NULL : json_dumps(object, DUMP_FLAGS);
    json_decref(object);
    return text;
}

char *server_status_text(const struct server_snapshot *snapshot)
{
    return dump(json_pack(
        "{ss sf ss ss ss ss sf sf sI so so so so so so so so so}", "version", MILLRACE_VERSION, "uptime_s",
        seconds(snapshot->uptime_ns), "state", snapshot->draining ? "draining" : "serving", "engine",
        snapshot->engine, "profile", snapshot->profile, "profile_doubt", snapshot->profile_doubt, "cores",
        snapshot->cores, "core_share", snapshot->core_share, "log_lost", whole(snapshot->log_lost),
        "io_threads", array_of(snapshot, snapshot->io_count, io_json), "workers",
        array_of(snapshot, snapshot->worker_count, worker_json), "gpus",
        array_of(snapshot, snapshot->gpu_count, gpu_json), "units",
        array_of(snapshot, snapshot->unit_count, unit_json), "moves",
        add_figures(json_object(), server_figures_moves, snapshot), "plans",
        add_figures(json_object(), server_figures_plans, snapshot), "arrivals", arrivals_json(snapshot),
        "worst", array_of(snapshot, snapshot->worst_count, worst_json), "totals", totals_json(snapshot)));
}

static json_t *slack_counts_json(const struct server_stream_account *account)
{
    json_t *array = json_array();
    for (int i = 0; i < SERVER_SLACK_CLASSES; i++)
        append(&array, json_integer(account->slack[i]));
    return array;
}

char *server_status_stream_text(const struct server_stream_dump_row *row)
{
    char unit[24], backup[24];
    json_t *slack = row->account.slack_minimum_ns == CORE_NS_NEVER
                        ? json_null()
                        : json_real(us(row->account.slack_minimum_ns));

    snprintf(unit, sizeof unit, row->on_gpu ? "gpu-%u" : "cpu-%u", row->unit);
    backup[0] = '\0';
    if (row->backed)
        snprintf(backup, sizeof backup, row->backup_on_gpu ? "gpu-%u" : "cpu-%u", row->backup);
    return dump(json_pack("{sI ss sI ss ss ss ss sI sf sf sI sI sI sI sI sI sI so so}", "connection",
                          whole(row->connection), "peer", row->peer, "stream", whole(row->stream), "unit",
                          unit, "state", server_stream_dump_state_name(row->state), "class",
                          row->spec.guaranteed ? "guaranteed" : "standard", "backup", backup, "packet_bytes",
                          whole(row->spec.packet_bytes), "interval_us", us(row->spec.interval_ns),
                          "latency_us", us(row->spec.latency_ns), "packets",
                          whole(row->account.totals.packets), "bytes", whole(row->account.totals.bytes),
                          "met", whole(row->account.totals.met), "missed", whole(row->account.totals.missed),
                          "policed", whole(row->account.policed), "reader_late",
                          whole(row->account.reader_late), "fault_late", whole(row->account.fault_late),
                          "slack_min_us", slack, "slack_counts", slack_counts_json(&row->account)));
}
