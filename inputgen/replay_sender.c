#include "inputgen/replay_sender.h"

#include "core/realtime.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#define BATCH_BYTES_MAX                                                                                      \
    ((size_t)256                                                                                             \
     << 10) /* a flush this early keeps the server busy during a long batch                      \
                         */
#define EVENTS         64
#define TIMER_SLACK_NS UINT64_C(10000) /* Linux gives ordinary threads 50 us: too coarse for a tick */

/* ---- results ---- */

/* Which packet of the stream is this? Sequences are modulo 2^32; the nearest to the next one is meant. */
static uint64_t packet_number(const struct inputgen_live *live, uint32_t sequence)
{
    int32_t distance = (int32_t)(sequence - (uint32_t)live->received);
    return live->received + (uint64_t)(int64_t)distance;
}

/* The server's word against ours: met, it says, and still the packet was out for longer than its bound,
 * whatever this generator itself has added: it was handed to the socket no later than that, and its result
 * was not there at the look before. One that was early waits for its contract: of that we know nothing. */
static void count_untrue(struct inputgen_figures *figures, const struct inputgen_live *live, core_ns due_ns,
                         core_ns bound_ns, uint32_t flags)
{
    core_ns over_ns = live->link->empty_ns - (due_ns + live->sent_late_ns) - bound_ns;
    if ((flags & MILLRACE_RESULT_MET) == 0 ||
        (flags & (MILLRACE_RESULT_READER | MILLRACE_RESULT_POLICED)) != 0 || over_ns <= 0)
        return;
    figures->untrue++;
    figures->untrue_ns = core_time_max(over_ns, figures->untrue_ns);
}

static void count_time(struct inputgen_sender *sender, struct inputgen_figures *figures,
                       const struct inputgen_live *live, uint64_t n, const struct millrace_result *info)
{
    core_ns due_ns = sender->plan->start_ns + inputgen_live_due_ns(live, n);
    core_ns latency_ns = sender->read_ns - due_ns;
    core_ns bound_ns = inputgen_live_latency_ns(live, n);
    bool late = latency_ns > bound_ns;
    bool fault = (info->flags & MILLRACE_RESULT_FAULT) != 0;
    bool met = (info->flags & (MILLRACE_RESULT_MET | MILLRACE_RESULT_READER)) != 0;
    figures->met += met;
    figures->missed += !met;
    figures->late += late;
    count_untrue(figures, live, due_ns, bound_ns, info->flags);
    figures->reader_late += (info->flags & MILLRACE_RESULT_READER) != 0;
    figures->fault += fault;
    figures->fault_missed += fault && !met;
    figures->policed += (info->flags & MILLRACE_RESULT_POLICED) != 0;
    sender->missed += !met || late;
    core_histogram_record(&figures->latency, latency_ns);
    core_histogram_record(&figures->service, info->latency_ns);
    core_histogram_record(&figures->slack, bound_ns - latency_ns);
}

static void count_content(struct inputgen_sender *sender, struct inputgen_figures *figures,
                          struct inputgen_live *live, uint64_t n, const struct millrace_result *result)
{
    const struct inputgen_payload *payload = sender->plan->payload;
    bool encrypted = result->status == MILLRACE_RESULT_OK;
    struct inputgen_check_result checked = {
        .part = inputgen_payload_part(payload, &live->source, n),
        .bytes = encrypted ? result->ciphertext : NULL,
        .count = result->bytes,
        .iv = result->iv,
    };
    struct inputgen_check_verdict verdict =
        inputgen_checker_take(&live->checker, payload, &checked, sender->scratch);
    figures->disordered += !verdict.in_order;
    figures->mismatched += !verdict.right;
    sender->bad += !verdict.in_order || !verdict.right || !encrypted;
    if (encrypted && verdict.right) {
        figures->payload_bytes += checked.part.bytes - checked.part.iv_bytes;
        figures->cipher_bytes += checked.count;
    }
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct inputgen_link *link = argument;
    struct inputgen_sender *sender = link->owner;
    struct inputgen_live *live = inputgen_map_get(&link->by_id, result->stream);
    if (sender->read_ns == 0) /* one look at the clock for all frames of a chunk */
        sender->read_ns = sender->last_result_ns = core_time_now_ns();
    uint64_t n = live ? packet_number(live, result->sequence) : 0;
    if (!live || live->received >= live->sent || n >= live->sent) {
        inputgen_link_fail(link, "the server sent a RESULT for a packet that it was not given");
        return;
    }
    struct inputgen_figures *figures = &sender->classes[live->class_index];
    figures->received++;
    if (result->status == MILLRACE_RESULT_OK) {
        count_time(sender, figures, live, n, result);
    } else {
        figures->rejected++;
        live->rejected++;
    }
    count_content(sender, figures, live, n, result);
    live->received++;
    if (live->received == live->sent)
        live->sent_late_ns = 0; /* nothing is out */
    link->waiting--;
    sender->received++;
}

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct inputgen_link *link = argument;
    struct inputgen_live *live = inputgen_map_get(&link->by_id, stream);
    (void)closed;
    if (live)
        live->state = INPUTGEN_LIVE_CLOSED; /* unasked: the server stops, or its cipher failed */
}

static void on_resumed(void *argument, uint32_t stream, const struct millrace_resumed *resumed)
{
    struct inputgen_link *link = argument;
    const struct inputgen_sender *sender = link->owner;
    const struct inputgen_live *live = inputgen_map_get(&link->by_id, stream);
    if (!live)
        return;
    struct inputgen_figures *figures = &sender->classes[live->class_index];
    figures->gaps++;
    figures->resent += resumed->resent;
    figures->gap_late += resumed->late;
    figures->gap_ns = core_time_max(figures->gap_ns, resumed->gap_ns);
}

static void process(struct inputgen_sender *sender, struct inputgen_link *link)
{
    struct core_error error;
    sender->read_ns = 0;
    if (link->look + 1 < sender->look)
        link->empty_ns = sender->before_ns; /* the look before found nothing here */
    link->look = sender->look;
    core_status status = (core_status)millrace_process(link->millrace, 1, error.text);
    if (status != CORE_OK && status != CORE_AGAIN)
        inputgen_link_fail(link, error.text);
    if (link->failed)
        (void)epoll_ctl(sender->epoll, EPOLL_CTL_DEL, millrace_descriptor(link->millrace), NULL);
}

/* Takes one chunk from every connection that has something; more waits for the next tick, so that a flood
 * of results can not hold up what is to be sent. */
static void receive(struct inputgen_sender *sender)
{
    struct epoll_event events[EVENTS];
    int ready = EVENTS;
    sender->look++;
    sender->before_ns = sender->look_ns;
    sender->look_ns = core_time_now_ns();
    for (size_t seen = 0; ready == EVENTS && seen < sender->link_count; seen += EVENTS) {
        ready = epoll_wait(sender->epoll, events, EVENTS, 0);
        for (int at = 0; at < ready; at++) {
            struct inputgen_link *link = events[at].data.ptr;
            if (!link->failed)
                process(sender, link);
        }
    }
}

/* ---- packets ---- */

/* False: the output buffer has no room now. */
static bool send_packet(struct inputgen_sender *sender, struct inputgen_live *live)
{
    const struct inputgen_payload *payload = sender->plan->payload;
    struct inputgen_link *link = live->link;
    const struct inputgen_part part = inputgen_payload_part(payload, &live->source, live->sent);
    core_ns due_ns = sender->plan->start_ns + inputgen_live_due_ns(live, live->sent);
    inputgen_payload_fill(payload, &live->source, &part, sender->scratch);
    core_status status = inputgen_link_send(link, live, &part, sender->scratch, due_ns);
    if (status != CORE_OK)
        return status != CORE_FULL;
    live->sent++;
    link->waiting++;
    sender->classes[live->class_index].sent++;
    sender->sent++;
    if (link->batch_bytes > BATCH_BYTES_MAX)
        inputgen_link_flush(link, &sender->lateness);
    return true;
}

/* Everything due by now_ns goes into the output buffers. A stream whose connection is full tries again a tick
 * later: its packet keeps its due time. */
static void send_due(struct inputgen_sender *sender, core_ns now_ns)
{
    struct inputgen_schedule *schedule = &sender->schedule;
    core_ns key_ns;
    while ((key_ns = inputgen_schedule_next_ns(schedule)) <= now_ns) {
        struct inputgen_live *live = inputgen_schedule_top(schedule);
        core_ns next_ns = now_ns + sender->plan->tick_ns;
        if (live->state == INPUTGEN_LIVE_OPEN && !live->link->failed && send_packet(sender, live))
            next_ns = sender->plan->start_ns + inputgen_live_due_ns(live, live->sent);
        live->scheduled =
            live->state == INPUTGEN_LIVE_OPEN && !live->link->failed && live->sent < live->planned;
        if (live->scheduled)
            inputgen_schedule_move_top(schedule, core_time_max(next_ns, key_ns));
        else
            inputgen_schedule_pop(schedule);
    }
}

static void flush(struct inputgen_sender *sender)
{
    for (size_t at = 0; at < sender->link_count; at++)
        inputgen_link_flush(sender->links[at], &sender->lateness);
}

/* ---- the thread ---- */

static void show(struct inputgen_sender *sender)
{
    atomic_store_explicit(&sender->shown_sent, sender->sent, memory_order_relaxed); /* only figures */
    atomic_store_explicit(&sender->shown_received, sender->received, memory_order_relaxed);
    atomic_store_explicit(&sender->shown_missed, sender->missed, memory_order_relaxed);
    atomic_store_explicit(&sender->shown_bad, sender->bad, memory_order_relaxed);
}

/* Once interrupted, nothing more is sent. */
static void look_for_stop(struct inputgen_sender *sender, core_ns now_ns)
{
    const atomic_bool *stop = sender->plan->stop;
    if (stop && sender->stopped_ns == 0 && atomic_load_explicit(stop, memory_order_relaxed)) {
        sender->stopped_ns = now_ns;
        sender->schedule.count = 0;
    }
}

static bool results_wait(const struct inputgen_sender *sender)
{
    for (size_t at = 0; at < sender->link_count; at++)
        if (!sender->links[at]->failed && sender->links[at]->waiting > 0)
            return true;
    return false;
}

static bool finished(const struct inputgen_sender *sender, core_ns now_ns)
{
    const struct inputgen_sender_extra *extra = sender->plan->extra;
    if (now_ns > sender->plan->give_up_ns ||
        (sender->stopped_ns && now_ns > sender->stopped_ns + sender->plan->drain_ns))
        return true; /* streams that have to wait for an answer may still be sending */
    return sender->schedule.count == 0 && !results_wait(sender) && !(extra && extra->busy(sender));
}

/* The next tick, or the next packet if nothing can happen before. */
static core_ns next_wake_ns(const struct inputgen_sender *sender, core_ns now_ns)
{
    core_ns tick_ns = now_ns + sender->plan->tick_ns;
    core_ns next_ns = inputgen_schedule_next_ns(&sender->schedule);
    if (sender->extra_ns < next_ns)
        next_ns = sender->extra_ns;
    if (next_ns == CORE_NS_NEVER || next_ns <= tick_ns || results_wait(sender))
        return tick_ns;
    core_ns look_ns = now_ns + 100 * CORE_NS_PER_MS; /* for an interruption, and for what comes unasked */
    return core_time_min(next_ns, look_ns);
}

static void *run(void *argument)
{
    struct inputgen_sender *sender = argument;
    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS); /* an older kernel refuses: coarser ticks, no harm */
    core_ns now_ns = core_time_now_ns();
    while (!finished(sender, now_ns)) {
        send_due(sender, now_ns);
        if (sender->plan->extra)
            sender->extra_ns = sender->plan->extra->turn(sender, now_ns);
        flush(sender);
        receive(sender);
        show(sender);
        core_time_sleep_until(next_wake_ns(sender, now_ns));
        now_ns = core_time_now_ns();
        look_for_stop(sender, now_ns);
    }
    show(sender);
    atomic_store(&sender->done, true);
    return NULL;
}

void inputgen_sender_schedule(struct inputgen_sender *sender, struct inputgen_live *live)
{
    live->scheduled = true;
    inputgen_schedule_push(&sender->schedule, sender->plan->start_ns + inputgen_live_due_ns(live, live->sent),
                           live);
}

void inputgen_sender_prune(struct inputgen_sender *sender)
{
    struct inputgen_schedule *schedule = &sender->schedule;
    size_t count = schedule->count;
    schedule->count = 0;
    for (size_t at = 0; at < count; at++) { /* what is put back never reaches beyond what was read */
        struct inputgen_schedule_entry entry = schedule->heap[at];
        struct inputgen_live *live = entry.item;
        live->scheduled = live->state == INPUTGEN_LIVE_OPEN;
        if (live->scheduled)
            inputgen_schedule_push(schedule, entry.time_ns, live);
    }
}

static core_status schedule_fill(struct inputgen_sender *sender)
{
    size_t streams = sender->plan->extra ? sender->plan->extra->streams_max : 0;
    for (size_t at = 0; at < sender->link_count; at++)
        streams += sender->links[at]->live_count;
    core_status status = inputgen_schedule_init(&sender->schedule, streams);
    for (size_t at = 0; at < sender->link_count && status == CORE_OK; at++)
        for (size_t n = 0; n < sender->links[at]->live_count; n++) {
            struct inputgen_live *live = sender->links[at]->lives[n];
            if (live->state == INPUTGEN_LIVE_OPEN && live->planned > 0)
                inputgen_sender_schedule(sender, live);
        }
    return status;
}

static core_status links_register(struct inputgen_sender *sender, struct core_error *error)
{
    sender->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (sender->epoll < 0)
        return core_error_errno(error, "epoll_create1");
    for (size_t at = 0; at < sender->link_count; at++) {
        struct inputgen_link *link = sender->links[at];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
        if (epoll_ctl(sender->epoll, EPOLL_CTL_ADD, millrace_descriptor(link->millrace), &event) != 0)
            return core_error_errno(error, "epoll_ctl");
        struct millrace_callbacks callbacks = {.size = sizeof callbacks, .on_closed = on_closed};
        if (sender->plan->extra)
            callbacks = sender->plan->extra->callbacks;
        callbacks.on_result = on_result;
        callbacks.on_resumed = on_resumed;
        callbacks.argument = link;
        link->owner = sender;
        core_status status = (core_status)millrace_set_callbacks(link->millrace, &callbacks, error->text);
        if (status)
            return status;
    }
    return CORE_OK;
}

core_status inputgen_sender_init(struct inputgen_sender *sender, const struct inputgen_sender_plan *plan,
                                 struct inputgen_link **links, size_t link_count, struct core_error *error)
{
    *sender = (struct inputgen_sender){
        .plan = plan, .links = links, .link_count = link_count, .extra_ns = CORE_NS_NEVER, .epoll = -1};
    core_histogram_init(&sender->lateness);
    sender->classes = calloc(plan->class_count, sizeof *sender->classes);
    sender->scratch = malloc(INPUTGEN_CHECK_SCRATCH_BYTES(plan->packet_bytes_max));
    if (!sender->classes || !sender->scratch || schedule_fill(sender) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < plan->class_count; at++)
        inputgen_figures_init(&sender->classes[at]);
    return links_register(sender, error);
}

core_status inputgen_sender_start(struct inputgen_sender *sender, struct core_error *error)
{
    struct core_thread_options options = {
        .name = "millrace-sender", .cpu = -1, .fifo_priority = sender->plan->fifo_priority};
    return core_thread_start(&sender->thread, &options, run, sender, NULL, error);
}

void inputgen_sender_join(struct inputgen_sender *sender)
{
    (void)pthread_join(sender->thread, NULL);
}

void inputgen_sender_free(struct inputgen_sender *sender)
{
    if (sender->epoll >= 0)
        (void)close(sender->epoll);
    inputgen_schedule_free(&sender->schedule);
    free(sender->classes);
    free(sender->scratch);
}
