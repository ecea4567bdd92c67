#include "inputgen/replay.h"

#include "inputgen/replay_crew.h"
#include "inputgen/replay_open.h"

#include <stdlib.h>
#include <string.h>

#define PROGRESS_NS (200 * CORE_NS_PER_MS)

/* One replay while it runs; everything is owned by the caller's thread, but what replay_sender.h lends out.
 */
struct replay {
    const struct inputgen_streams *list;
    struct inputgen_live *lives;
    struct inputgen_crew crew;
    struct inputgen_payload payload;
    core_ns duration_ns; /* the last packet is due before this */
    core_ns shown_ns;
    struct inputgen_report *report;
};

static core_ns duration_of(const struct inputgen_replay_options *options, const struct inputgen_streams *list)
{
    core_ns last_ns = 0;
    for (size_t at = 0; at < list->count; at++)
        if (list->streams[at].stop_ns > last_ns)
            last_ns = list->streams[at].stop_ns;
    return options->duration_ns ? options->duration_ns : last_ns;
}

static core_status lives_init(struct replay *replay, struct core_error *error)
{
    replay->lives = calloc(replay->list->count, sizeof *replay->lives);
    if (!replay->lives)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < replay->list->count; at++) {
        core_status status = inputgen_live_init(&replay->lives[at], replay->crew.options, replay->list, at,
                                                replay->duration_ns, error);
        if (status != CORE_OK)
            return status;
    }
    return inputgen_crew_deal(&replay->crew, replay->lives, replay->list->count, error);
}

static core_status report_init(struct replay *replay, struct core_error *error)
{
    const struct inputgen_streams *list = replay->list;
    const struct inputgen_replay_options *options = replay->crew.options;
    struct inputgen_report *report = inputgen_report_create(options->name, list->class_count);
    replay->report = report;
    for (size_t at = 0; report && at < list->class_count; at++)
        if (!(report->classes[at].name = strdup(list->classes[at].name)))
            return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    if (!report)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    report->connections = replay->crew.link_count;
    report->scale = options->scale > 0 ? options->scale : 1;
    return CORE_OK;
}

static core_status payload_init(struct replay *replay, struct core_error *error)
{
    const struct inputgen_replay_options *options = replay->crew.options;
    struct inputgen_sender_plan *plan = &replay->crew.plan;
    for (size_t at = 0; at < replay->list->count; at++)
        if (replay->list->streams[at].spec.packet_bytes > plan->packet_bytes_max)
            plan->packet_bytes_max = replay->list->streams[at].spec.packet_bytes;
    plan->payload = &replay->payload;
    plan->class_count = replay->list->class_count;
    if (inputgen_payload_init(&replay->payload, options->seed, options->uniform_sizes,
                              plan->packet_bytes_max) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    return CORE_OK;
}

static core_status replay_prepare(struct replay *replay, struct core_error *error)
{
    if (replay->list->count == 0 || replay->list->class_count == 0)
        return core_error_set(error, CORE_INVALID, "there is no stream to replay");
    replay->duration_ns = duration_of(replay->crew.options, replay->list);
    core_status status = inputgen_crew_links(&replay->crew, replay->list->count, error);
    if (status == CORE_OK)
        status = report_init(replay, error);
    if (status == CORE_OK)
        status = payload_init(replay, error);
    if (status == CORE_OK)
        status = lives_init(replay, error);
    return status;
}

static void look(void *argument)
{
    struct replay *replay = argument;
    core_ns now_ns = core_time_now_ns();
    if (now_ns - replay->shown_ns < PROGRESS_NS)
        return;
    inputgen_crew_progress(&replay->crew, replay->duration_ns);
    replay->shown_ns = now_ns;
}

static core_status replay_perform(struct replay *replay, struct core_error *error)
{
    core_status status = replay_prepare(replay, error);
    struct inputgen_crew *crew = &replay->crew;
    struct inputgen_open_options open = {.key_name = crew->options->key_name,
                                         .timeout_ms = inputgen_crew_timeout_ms(crew->options)};
    if (status == CORE_OK)
        status = inputgen_crew_connect(crew, error);
    if (status == CORE_OK)
        status = inputgen_open_all(crew->links, crew->link_count, &open, replay->report, error);
    if (status != CORE_OK)
        return status;
    core_ns latency_max_ns = inputgen_crew_bounds(replay->lives, replay->list->count, replay->report);
    status = inputgen_crew_senders(crew, replay->duration_ns, latency_max_ns, replay->report, error);
    if (status == CORE_OK)
        status = inputgen_crew_run(crew, replay->report, look, replay, error);
    if (status != CORE_OK)
        return status;
    inputgen_close_all(crew->links, crew->link_count, open.timeout_ms, replay->report);
    inputgen_crew_count(crew, replay->lives, replay->list->count, replay->report);
    return CORE_OK;
}

static void replay_clean(struct replay *replay)
{
    inputgen_crew_free(&replay->crew);
    for (size_t at = 0; replay->lives && at < replay->list->count; at++)
        inputgen_live_free(&replay->lives[at]);
    inputgen_payload_free(&replay->payload);
    free(replay->lives);
}

core_status inputgen_replay_run(const struct inputgen_replay_options *options,
                                const struct inputgen_streams *list, struct inputgen_report **report,
                                struct core_error *error)
{
    struct replay replay = {.list = list, .crew.options = options};
    core_status status = replay_perform(&replay, error);
    if (status == CORE_OK)
        *report = replay.report;
    else
        inputgen_report_free(replay.report);
    replay_clean(&replay);
    return status;
}
