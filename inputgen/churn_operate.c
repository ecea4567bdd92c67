#include "inputgen/churn_operate.h"

#include "inputgen/replay_open.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A closed stream stays in the sender's schedule until its next packet would have been due, and has no answer
 * for a while: so there are more than can be open. */
#define POOL_MORE 256

#define DRAWS 8 /* to find a stream that may be changed */

size_t inputgen_churner_room(const struct inputgen_churn_plan *plan)
{
    return 2 * plan->open_max + POOL_MORE;
}

static struct inputgen_figures *figures_of(struct inputgen_sender *sender, const struct inputgen_live *live)
{
    return &sender->classes[live->class_index];
}

static bool is_opened_here(const struct inputgen_churner *churner, const struct inputgen_live *live)
{
    return live >= churner->pool && live < churner->pool + churner->pool_count;
}

static core_ns now_in_run_ns(const struct inputgen_sender *sender)
{
    return core_time_now_ns() - sender->plan->start_ns;
}

static size_t draw_below(struct inputgen_churner *churner, size_t count)
{
    return (size_t)(inputgen_random_uniform(&churner->random) * (double)count);
}

/* ---- the streams ---- */

static void open_remove(struct inputgen_churner *churner, struct inputgen_live *live)
{
    struct inputgen_live *last = churner->open[--churner->open_count];
    churner->open[live->place] = last;
    last->place = live->place;
}

static void spare_put(struct inputgen_churner *churner, struct inputgen_live *live)
{
    inputgen_live_free(live);
    live->state = INPUTGEN_LIVE_CLOSED;
    churner->spare[churner->spare_count++] = live;
}

/* Closed streams that the schedule has let go may be used again; where that would leave none, it lets go now.
 */
static void spare_collect(struct inputgen_churner *churner, struct inputgen_sender *sender)
{
    size_t kept = 0;
    if (churner->spare_count == 0 || churner->over)
        inputgen_sender_prune(sender);
    for (size_t at = 0; at < churner->closed_count; at++) {
        struct inputgen_live *live = churner->closed[at];
        if (live->scheduled)
            churner->closed[kept++] = live;
        else
            spare_put(churner, live);
    }
    churner->closed_count = kept;
}

/* One of the sender's links that work; NULL: none does. */
static struct inputgen_link *link_draw(struct inputgen_churner *churner, const struct inputgen_sender *sender)
{
    size_t first = draw_below(churner, sender->link_count);
    for (size_t at = 0; at < sender->link_count; at++) {
        struct inputgen_link *link = sender->links[(first + at) % sender->link_count];
        if (!link->failed)
            return link;
    }
    return NULL;
}

/* ---- OPEN ---- */

static core_status open_send(struct inputgen_churner *churner, const struct inputgen_sender *sender,
                             struct inputgen_live *live, struct core_error *error)
{
    const struct inputgen_churn_plan *plan = churner->plan;
    struct inputgen_stream drawn = plan->list->streams[draw_below(churner, plan->list->count)];
    struct inputgen_link *link = link_draw(churner, sender);
    if (!link)
        return core_error_set(error, CORE_CLOSED, "no connection is left");
    drawn.spec.guaranteed = inputgen_random_uniform(&churner->random) < plan->guaranteed;
    core_status status = inputgen_live_begin(live, plan->options, &drawn, churner->next_index, 0, error);
    if (status != CORE_OK)
        return status;
    churner->next_index += plan->index_step;
    live->class_index = inputgen_churn_class(INPUTGEN_CHURN_OPENED, drawn.spec.guaranteed);
    live->link = link;
    status = inputgen_open_send(link, live, plan->options->key_name, error);
    if (status != CORE_OK && status != CORE_FULL)
        inputgen_link_fail(link, error->text);
    return status;
}

static void operate_open(struct inputgen_churner *churner, struct inputgen_sender *sender, core_ns due_ns)
{
    struct inputgen_operation_figures *figures = &churner->figures.kinds[INPUTGEN_OPERATION_OPEN];
    struct core_error error;
    if (churner->spare_count == 0) {
        figures->unsent++;
        return;
    }
    struct inputgen_live *live = churner->spare[--churner->spare_count];
    if (open_send(churner, sender, live, &error) != CORE_OK) {
        figures->unsent++;
        spare_put(churner, live);
        return;
    }
    live->asked_ns = due_ns;
    figures->asked++;
    churner->asked_count++;
}

static void close_send(struct inputgen_churner *churner, struct inputgen_live *live, core_ns due_ns);

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct inputgen_link *link = argument;
    struct inputgen_sender *sender = link->owner;
    struct inputgen_churner *churner = sender->extra;
    struct inputgen_operation_figures *figures = &churner->figures.kinds[INPUTGEN_OPERATION_OPEN];
    struct inputgen_live *live = inputgen_open_answered(link, request);
    if (live && live->state != INPUTGEN_LIVE_WAITING)
        inputgen_link_fail(link, "the server opened a stream where a contract was to change");
    if (!live || link->failed || !inputgen_open_granted(link, live, opened))
        return;
    core_ns now_ns = now_in_run_ns(sender);
    figures->granted++;
    churner->asked_count--;
    churner->figures.on_gpus += opened->unit == MILLRACE_SERVER_UNIT_GPU;
    core_histogram_record(&figures->decided, opened->decided_ns);
    core_histogram_record(&figures->in_force, opened->in_force_ns);
    core_histogram_record(&figures->round_trip, now_ns - live->asked_ns);
    figures_of(sender, live)->opened++;
    live->place = churner->open_count;
    churner->open[churner->open_count++] = live;
    if (churner->open_count > churner->figures.open_peak)
        churner->figures.open_peak = churner->open_count;
    if (churner->over) {
        close_send(churner, live, now_ns);
        return;
    }
    live->now.first_ns = now_ns;
    inputgen_sender_schedule(sender, live);
}

static void open_refused(struct inputgen_churner *churner, struct inputgen_sender *sender,
                         struct inputgen_live *live)
{
    churner->asked_count--;
    figures_of(sender, live)->refused++;
    spare_put(churner, live);
}

/* An offer is what is asked for the next time. */
static void modify_refused(struct inputgen_live *live, const struct millrace_refused *refused)
{
    live->changing = false;
    live->offer = refused->offer_interval_ns > 0 || refused->offer_latency_ns > 0;
    if (refused->offer_interval_ns > 0)
        live->wanted.interval_ns = refused->offer_interval_ns;
    else if (refused->offer_latency_ns > 0)
        live->wanted.latency_ns = refused->offer_latency_ns;
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct inputgen_link *link = argument;
    struct inputgen_sender *sender = link->owner;
    struct inputgen_churner *churner = sender->extra;
    struct inputgen_live *live = inputgen_open_answered(link, request);
    if (!live)
        return;
    bool opening = live->state == INPUTGEN_LIVE_WAITING;
    struct inputgen_operation_figures *figures =
        &churner->figures.kinds[opening ? INPUTGEN_OPERATION_OPEN : INPUTGEN_OPERATION_MODIFY];
    figures->refused++;
    if (refused->code != MILLRACE_REFUSED_BUSY)
        core_histogram_record(&figures->decided, refused->decided_ns);
    core_histogram_record(&figures->round_trip, now_in_run_ns(sender) - live->asked_ns);
    inputgen_refusal_note(churner->figures.refusals, &churner->figures.refusal_kinds, refused);
    if (opening)
        open_refused(churner, sender, live);
    else
        modify_refused(live, refused);
}

/* ---- MODIFY ---- */

/* 1/2 to 2 times, all factors of the same size equally likely. */
static core_ns draw_around(struct inputgen_churner *churner, core_ns value_ns)
{
    double factor = exp2(2 * inputgen_random_uniform(&churner->random) - 1);
    return (core_ns)((double)value_ns * factor);
}

/* The offer of the last refusal, or a contract around the one that the stream began with. */
static void wanted_draw(struct inputgen_churner *churner, struct inputgen_live *live)
{
    if (live->offer)
        return;
    live->wanted = live->origin;
    live->wanted.interval_ns = draw_around(churner, live->origin.interval_ns);
    live->wanted.latency_ns = draw_around(churner, live->origin.latency_ns);
    live->wanted.burst_packets = 1 + (uint32_t)draw_below(churner, 2 * (size_t)live->origin.burst_packets);
}

/* Some stream that may be changed, opened or standing; NULL: none was found in a few draws. */
static struct inputgen_live *changed_draw(struct inputgen_churner *churner,
                                          const struct inputgen_sender *sender)
{
    for (int tries = 0; tries < DRAWS; tries++) {
        const struct inputgen_link *link = sender->links[draw_below(churner, sender->link_count)];
        struct inputgen_live *live = NULL;
        if (churner->open_count > 0 && tries % 2 == 0)
            live = churner->open[draw_below(churner, churner->open_count)];
        else if (link->live_count > 0)
            live = link->lives[draw_below(churner, link->live_count)];
        if (live && !live->link->failed && inputgen_live_may_change(live))
            return live;
    }
    return NULL;
}

static core_status modify_send(struct inputgen_live *live, struct core_error *error)
{
    const struct millrace_modify modify = {.size = sizeof modify,
                                           .stream = live->id,
                                           .burst_packets = live->wanted.burst_packets,
                                           .interval_ns = live->wanted.interval_ns,
                                           .latency_ns = live->wanted.latency_ns};
    struct inputgen_link *link = live->link;
    uint32_t request;
    size_t before = millrace_unsent_bytes(link->millrace);
    core_status status = (core_status)millrace_send_modify(link->millrace, &modify, &request, error->text);
    if (status == CORE_OK) {
        inputgen_link_control(link, before);
        inputgen_map_put(&link->by_request, request, live);
    } else if (status != CORE_FULL) {
        inputgen_link_fail(link, error->text);
    }
    return status;
}

static void operate_modify(struct inputgen_churner *churner, struct inputgen_sender *sender, core_ns due_ns)
{
    struct inputgen_operation_figures *figures = &churner->figures.kinds[INPUTGEN_OPERATION_MODIFY];
    struct inputgen_live *live = changed_draw(churner, sender);
    struct core_error error;
    if (live)
        wanted_draw(churner, live);
    if (!live || core_stream_spec_check(&live->wanted, NULL) != CORE_OK ||
        modify_send(live, &error) != CORE_OK) {
        figures->unsent++;
        return;
    }
    live->asked_ns = due_ns;
    live->changing = true;
    live->offer = false;
    figures->asked++;
}

static void on_modified(void *argument, uint32_t request, const struct millrace_modified *modified)
{
    struct inputgen_link *link = argument;
    struct inputgen_sender *sender = link->owner;
    struct inputgen_churner *churner = sender->extra;
    struct inputgen_operation_figures *figures = &churner->figures.kinds[INPUTGEN_OPERATION_MODIFY];
    struct inputgen_live *live = inputgen_open_answered(link, request);
    if (!live)
        return;
    if (!live->changing || live->id != modified->stream) {
        inputgen_link_fail(link, "the server changed a contract that it was not asked to");
        return;
    }
    figures->granted++;
    core_histogram_record(&figures->decided, modified->decided_ns);
    core_histogram_record(&figures->in_force, modified->in_force_ns);
    core_histogram_record(&figures->round_trip, now_in_run_ns(sender) - live->asked_ns);
    live->changing = false;
    /* Sequences are modulo 2^32; the nearest to the next one is meant. */
    int32_t distance = (int32_t)(modified->first - (uint32_t)live->sent);
    inputgen_live_change(live, churner->plan->options, &live->wanted,
                         live->sent + (uint64_t)(int64_t)distance);
}

static void on_notice(void *argument, uint32_t stream, const struct millrace_notice *notice)
{
    struct inputgen_link *link = argument;
    struct inputgen_sender *sender = link->owner;
    struct inputgen_churner *churner = sender->extra;
    size_t kinds = sizeof churner->figures.notices / sizeof *churner->figures.notices;
    (void)stream;
    churner->figures.notices[(size_t)notice->kind < kinds ? notice->kind : 0]++;
}

/* ---- CLOSE ---- */

/* The stream's link may be full: then it stays open, and is tried again at the end at the latest. */
static void close_send(struct inputgen_churner *churner, struct inputgen_live *live, core_ns due_ns)
{
    struct inputgen_operation_figures *figures = &churner->figures.kinds[INPUTGEN_OPERATION_CLOSE];
    struct inputgen_link *link = live->link;
    struct core_error error;
    if (link->failed || live->changing)
        return;
    size_t before = millrace_unsent_bytes(link->millrace);
    core_status status = (core_status)millrace_send_close(link->millrace, live->id, error.text);
    if (status == CORE_FULL) {
        figures->unsent++;
        return;
    }
    if (status != CORE_OK) {
        inputgen_link_fail(link, error.text);
        return;
    }
    inputgen_link_control(link, before);
    figures->asked++;
    live->asked_ns = due_ns;
    live->state = INPUTGEN_LIVE_CLOSING;
    open_remove(churner, live);
}

static void operate_close(struct inputgen_churner *churner, core_ns due_ns)
{
    struct inputgen_live *live = churner->open[draw_below(churner, churner->open_count)];
    if (live->changing) /* one request of a stream at a time */
        churner->figures.kinds[INPUTGEN_OPERATION_CLOSE].unsent++;
    else
        close_send(churner, live, due_ns);
}

/* The packets of a stream that has come to its end. */
static void stream_count(struct inputgen_sender *sender, struct inputgen_live *live)
{
    struct inputgen_figures *figures = figures_of(sender, live);
    uint64_t lost = live->sent - live->received;
    figures->planned += live->sent;
    figures->lost += lost;
    live->link->waiting -= lost;
}

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct inputgen_link *link = argument;
    struct inputgen_sender *sender = link->owner;
    struct inputgen_churner *churner = sender->extra;
    struct inputgen_operation_figures *figures = &churner->figures.kinds[INPUTGEN_OPERATION_CLOSE];
    struct inputgen_live *live = inputgen_map_remove(&link->by_id, stream);
    if (!live) {
        inputgen_link_fail(link, "the server closed a stream that is not open");
        return;
    }
    churner->figures.accounts_differ += closed->packets != live->received - live->rejected;
    if (live->state == INPUTGEN_LIVE_CLOSING) {
        figures->granted++;
        core_histogram_record(&figures->round_trip, now_in_run_ns(sender) - live->asked_ns);
    } else {
        churner->figures.ended++; /* unasked: the server stops, or its cipher failed */
        if (is_opened_here(churner, live))
            open_remove(churner, live);
    }
    live->state = INPUTGEN_LIVE_CLOSED;
    if (!is_opened_here(churner, live))
        return;
    stream_count(sender, live);
    if (!live->changing) /* else its MODIFY is still to be answered, and must not find another stream here */
        churner->closed[churner->closed_count++] = live;
}

/* ---- when, and which ---- */

/* The more streams are open, the rarer opens become and the likelier closes. */
static enum inputgen_operation kind_draw(struct inputgen_churner *churner)
{
    double full = (double)(churner->open_count + churner->asked_count) / (double)churner->plan->open_max;
    double weights[INPUTGEN_OPERATION_KINDS], sum = 0;
    memcpy(weights, churner->plan->weights, sizeof weights);
    weights[INPUTGEN_OPERATION_OPEN] *= full < 1 ? 1 - full : 0;
    weights[INPUTGEN_OPERATION_CLOSE] *= churner->open_count > 0 ? full : 0;
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++)
        sum += weights[kind];
    double draw = inputgen_random_uniform(&churner->random) * sum;
    size_t kind = 0;
    while (kind + 1 < INPUTGEN_OPERATION_KINDS && draw >= weights[kind])
        draw -= weights[kind++];
    return sum > 0 ? (enum inputgen_operation)kind : INPUTGEN_OPERATION_KINDS;
}

static void operate(struct inputgen_churner *churner, struct inputgen_sender *sender, core_ns due_ns)
{
    switch (kind_draw(churner)) {
    case INPUTGEN_OPERATION_OPEN:
        operate_open(churner, sender, due_ns);
        break;
    case INPUTGEN_OPERATION_CLOSE:
        operate_close(churner, due_ns);
        break;
    case INPUTGEN_OPERATION_MODIFY:
        operate_modify(churner, sender, due_ns);
        break;
    case INPUTGEN_OPERATION_KINDS: /* nothing can be done now, as where all that is open waits for an answer
                                    */
        break;
    }
}

static core_ns gap_draw_ns(struct inputgen_churner *churner)
{
    double mean_ns = 1e9 / churner->plan->operations_per_s;
    return (core_ns)(inputgen_random_exponential(&churner->random) * mean_ns) + 1;
}

/* Each tick tries again those whose connections were full. */
static void close_all(struct inputgen_churner *churner, core_ns now_ns)
{
    for (size_t at = churner->open_count;
         at-- > 0;) /* a stream that is closed leaves its place to the last */
        close_send(churner, churner->open[at], now_ns);
}

static core_ns turn(struct inputgen_sender *sender, core_ns now_ns)
{
    struct inputgen_churner *churner = sender->extra;
    core_ns run_ns = now_ns - sender->plan->start_ns;
    spare_collect(churner, sender);
    if (run_ns >= churner->plan->duration_ns || sender->stopped_ns != 0)
        churner->over = true;
    if (churner->over) {
        close_all(churner, run_ns);
        return CORE_NS_NEVER;
    }
    while (churner->next_ns <= run_ns) {
        operate(churner, sender, churner->next_ns);
        churner->next_ns += gap_draw_ns(churner);
    }
    return sender->plan->start_ns + churner->next_ns;
}

/* Standing streams whose change is unanswered. */
static uint64_t changing_standing(const struct inputgen_sender *sender, bool on_failed_links)
{
    uint64_t count = 0;
    for (size_t at = 0; at < sender->link_count; at++) {
        const struct inputgen_link *link = sender->links[at];
        for (size_t n = 0; n < link->live_count && (on_failed_links || !link->failed); n++)
            count += link->lives[n]->changing;
    }
    return count;
}

/* Until the run is over, and every answer has come that can come. */
static bool busy(const struct inputgen_sender *sender)
{
    const struct inputgen_churner *churner = sender->extra;
    if (!churner->over)
        return true;
    for (size_t at = 0; at < churner->pool_count; at++) {
        const struct inputgen_live *live = &churner->pool[at];
        if (live->link && !live->link->failed && live->state != INPUTGEN_LIVE_CLOSED)
            return true;
    }
    return changing_standing(sender, false) > 0;
}

struct inputgen_sender_extra inputgen_churner_extra(const struct inputgen_churn_plan *plan)
{
    return (struct inputgen_sender_extra){
        .streams_max = inputgen_churner_room(plan),
        .turn = turn,
        .busy = busy,
        .callbacks = {.size = sizeof(struct millrace_callbacks),
                      .on_opened = on_opened,
                      .on_refused = on_refused,
                      .on_closed = on_closed,
                      .on_modified = on_modified,
                      .on_notice = on_notice},
    };
}

/* ---- beginning and end ---- */

core_status inputgen_churner_init(struct inputgen_churner *churner, const struct inputgen_churn_plan *plan,
                                  uint32_t number, struct core_error *error)
{
    size_t count = inputgen_churner_room(plan);
    *churner = (struct inputgen_churner){
        .plan = plan, .pool_count = count, .next_index = plan->index_first + number};
    churner->pool = calloc(count, sizeof *churner->pool);
    churner->spare = calloc(count, sizeof(struct inputgen_live *));
    churner->open = calloc(count, sizeof(struct inputgen_live *));
    churner->closed = calloc(count, sizeof(struct inputgen_live *));
    if (!churner->pool || !churner->spare || !churner->open || !churner->closed)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = count; at-- > 0;)
        spare_put(churner, &churner->pool[at]);
    inputgen_random_seed(&churner->random, inputgen_mix(plan->options->seed) + number);
    inputgen_churn_figures_init(&churner->figures);
    churner->next_ns = gap_draw_ns(churner);
    return CORE_OK;
}

void inputgen_churner_free(struct inputgen_churner *churner)
{
    for (size_t at = 0; churner->pool && at < churner->pool_count; at++)
        inputgen_live_free(&churner->pool[at]);
    free(churner->pool);
    free(churner->spare);
    free(churner->open);
    free(churner->closed);
}

void inputgen_churner_settle(struct inputgen_churner *churner, struct inputgen_sender *sender)
{
    churner->figures.kinds[INPUTGEN_OPERATION_MODIFY].unanswered = changing_standing(sender, true);
    for (size_t at = 0; at < churner->pool_count; at++) {
        struct inputgen_live *live = &churner->pool[at];
        if (live->state == INPUTGEN_LIVE_CLOSED)
            continue;
        if (live->state == INPUTGEN_LIVE_WAITING)
            churner->figures.kinds[INPUTGEN_OPERATION_OPEN].unanswered++;
        else
            stream_count(sender, live);
        if (live->state == INPUTGEN_LIVE_CLOSING)
            churner->figures.kinds[INPUTGEN_OPERATION_CLOSE].unanswered++;
        churner->figures.kinds[INPUTGEN_OPERATION_MODIFY].unanswered += live->changing;
    }
}
