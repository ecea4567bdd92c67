#include "inputgen/replay_open.h"

#include "client/contract.h"
#include "core/secret.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define IN_FLIGHT_MAX 512 /* requests of a connection; the protocol allows 1,024 */

/* One link's part of a bulk request. */
struct batch {
    struct inputgen_link *link;
    size_t next, answered, wanted;
    struct inputgen_report *report;
};

typedef core_status batch_send(struct batch *batch, struct inputgen_live *live, const void *argument,
                               struct core_error *error);

/* ---- driving all batches ---- */

static void batch_fill(struct batch *batch, batch_send *send, const void *argument)
{
    struct core_error error;
    while (!batch->link->failed && batch->next < batch->link->live_count &&
           batch->next - batch->answered < IN_FLIGHT_MAX) {
        core_status status = send(batch, batch->link->lives[batch->next], argument, &error);
        if (status == CORE_FULL)
            return;
        if (status != CORE_OK) {
            inputgen_link_fail(batch->link, error.text);
            return;
        }
        batch->next++;
    }
}

static void batch_process(struct batch *batch)
{
    struct core_error error;
    core_status status = (core_status)millrace_process(batch->link->millrace, 0, error.text);
    if (status != CORE_OK && status != CORE_AGAIN)
        inputgen_link_fail(batch->link, error.text);
}

/* As long as answers that have come make room for more: nothing else may be left to wake for. */
static void batch_advance(struct batch *batch, batch_send *send, const void *argument)
{
    size_t before;
    do {
        before = batch->next + batch->answered;
        batch_fill(batch, send, argument);
        if (!batch->link->failed)
            batch_process(batch);
    } while (!batch->link->failed && batch->next + batch->answered > before &&
             batch->next < batch->link->live_count && batch->next - batch->answered < IN_FLIGHT_MAX);
}

/* Fills and processes every unfinished batch and prepares to poll it; returns how many there are. */
static nfds_t batches_advance(struct batch *batches, size_t count, batch_send *send, const void *argument,
                              struct pollfd *polls)
{
    nfds_t unfinished = 0;
    for (size_t at = 0; at < count; at++) {
        struct batch *batch = &batches[at];
        if (batch->link->failed || batch->answered >= batch->wanted)
            continue;
        batch_advance(batch, send, argument);
        if (batch->link->failed || batch->answered >= batch->wanted)
            continue;
        polls[unfinished++] = (struct pollfd){.fd = millrace_descriptor(batch->link->millrace),
                                              .events = millrace_events(batch->link->millrace)};
    }
    return unfinished;
}

static core_status batches_run(struct batch *batches, size_t count, batch_send *send, const void *argument,
                               int timeout_ms, struct core_error *error)
{
    core_ns end_ns = core_time_now_ns() + timeout_ms * CORE_NS_PER_MS;
    struct pollfd *polls = calloc(count, sizeof *polls);
    if (!polls)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    core_status status = CORE_OK;
    nfds_t unfinished;
    while ((unfinished = batches_advance(batches, count, send, argument, polls)) > 0) {
        core_ns left_ns = end_ns - core_time_now_ns();
        if (left_ns <= 0) {
            status =
                core_error_set(error, CORE_TIMEOUT, "no answer from the server within %d ms", timeout_ms);
            break;
        }
        (void)poll(polls, unfinished, (int)(left_ns / CORE_NS_PER_MS) + 1);
    }
    free(polls);
    for (size_t at = 0; at < count && status == CORE_OK; at++)
        if (batches[at].link->failed)
            status = core_error_set(error, CORE_CLOSED, "%s", batches[at].link->failure);
    return status;
}

/* ---- OPEN ---- */

struct millrace_open inputgen_open_request(const struct core_stream_spec *spec, const uint8_t *key,
                                           const char *key_name, const uint8_t iv[CORE_BLOCK_BYTES])
{
    struct millrace_open open = client_contract_open(spec);
    open.key_kind = MILLRACE_KEY_INLINE;
    open.key = key;
    open.key_bytes = core_cipher_key_bytes(spec->cipher);
    open.has_iv = spec->iv == CORE_IV_CONSTANT;
    if (open.has_iv)
        memcpy(open.iv, iv, CORE_BLOCK_BYTES);
    if (key_name) {
        open.key_kind = MILLRACE_KEY_NAMED;
        open.key = key_name;
        open.key_bytes = strlen(key_name);
    }
    return open;
}

core_status inputgen_open_send(struct inputgen_link *link, struct inputgen_live *live, const char *key_name,
                               struct core_error *error)
{
    struct millrace_open open = inputgen_open_request(&live->source.spec, live->key, key_name, live->iv);
    uint32_t request = 0;
    size_t before = millrace_unsent_bytes(link->millrace);
    core_status status = (core_status)millrace_send_open(link->millrace, &open, &request, error->text);
    if (status != CORE_OK)
        return status;
    inputgen_link_control(link, before);
    inputgen_map_put(&link->by_request, request, live);
    return CORE_OK;
}

struct inputgen_live *inputgen_open_answered(struct inputgen_link *link, uint32_t request)
{
    struct inputgen_live *live = inputgen_map_remove(&link->by_request, request);
    if (!live)
        inputgen_link_fail(link, "the server answered a request that was not made");
    return live;
}

bool inputgen_open_granted(struct inputgen_link *link, struct inputgen_live *live,
                           const struct millrace_opened *opened)
{
    const bool constant = live->source.spec.iv == CORE_IV_CONSTANT;
    if (inputgen_checker_init(&live->checker, &live->source, live->key, constant ? live->iv : opened->iv) !=
        CORE_OK) {
        inputgen_link_fail(link, "OpenSSL has no room for another cipher context");
        return false;
    }
    core_secret_wipe(live->key, sizeof live->key);
    live->state = INPUTGEN_LIVE_OPEN;
    live->id = opened->stream;
    inputgen_map_put(&link->by_id, live->id, live);
    return true;
}

static core_status send_open(struct batch *batch, struct inputgen_live *live, const void *argument,
                             struct core_error *error)
{
    return inputgen_open_send(batch->link, live, argument, error);
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct batch *batch = argument;
    struct inputgen_live *live = inputgen_open_answered(batch->link, request);
    if (!live || !inputgen_open_granted(batch->link, live, opened))
        return;
    batch->answered++;
    batch->report->streams_on_gpus += opened->unit == MILLRACE_SERVER_UNIT_GPU ? 1 : 0;
    if (opened->decided_ns > batch->report->decision_max_ns)
        batch->report->decision_max_ns = opened->decided_ns;
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct batch *batch = argument;
    struct inputgen_live *live = inputgen_open_answered(batch->link, request);
    if (!live)
        return;
    batch->answered++;
    live->state = INPUTGEN_LIVE_REFUSED;
    core_secret_wipe(live->key, sizeof live->key);
    inputgen_refusal_note(batch->report->refusals, &batch->report->refusal_kinds, refused);
}

static core_status batch_open_init(struct batch *batch, struct inputgen_link *link,
                                   const struct inputgen_open_options *options,
                                   struct inputgen_report *report, struct core_error *error)
{
    *batch = (struct batch){.link = link, .wanted = link->live_count, .report = report};
    if (inputgen_map_init(&link->by_request, link->live_count + options->more) != CORE_OK ||
        inputgen_map_init(&link->by_id, link->live_count + options->more) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_opened = on_opened, .on_refused = on_refused, .argument = batch};
    return (core_status)millrace_set_callbacks(link->millrace, &callbacks, error->text);
}

core_status inputgen_open_all(struct inputgen_link *links, size_t link_count,
                              const struct inputgen_open_options *options, struct inputgen_report *report,
                              struct core_error *error)
{
    struct batch *batches = calloc(link_count, sizeof *batches);
    core_status status = batches ? CORE_OK : core_error_set(error, CORE_NO_MEMORY, "out of memory");
    for (size_t at = 0; at < link_count && status == CORE_OK; at++)
        status = batch_open_init(&batches[at], &links[at], options, report, error);

    core_ns begin_ns = core_time_now_ns();
    if (status == CORE_OK)
        status = batches_run(batches, link_count, send_open, options->key_name, options->timeout_ms, error);
    report->open_ns = core_time_now_ns() - begin_ns;

    for (size_t at = 0; batches && at < link_count; at++)
        (void)!millrace_set_callbacks(links[at].millrace, NULL, NULL);
    free(batches);
    return status;
}

/* ---- CLOSE ---- */

static core_status send_close(struct batch *batch, struct inputgen_live *live, const void *argument,
                              struct core_error *error)
{
    (void)argument;
    if (live->state != INPUTGEN_LIVE_OPEN) {
        batch->answered++; /* nothing to ask */
        return CORE_OK;
    }
    return (core_status)millrace_send_close(batch->link->millrace, live->id, error->text);
}

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct batch *batch = argument;
    struct inputgen_live *live = inputgen_map_get(&batch->link->by_id, stream);
    if (!live || live->state != INPUTGEN_LIVE_OPEN)
        return;
    live->state = INPUTGEN_LIVE_CLOSED;
    batch->answered++;
    if (closed->packets != live->received - live->rejected)
        batch->report->accounts_differ++;
}

void inputgen_close_all(struct inputgen_link *links, size_t link_count, int timeout_ms,
                        struct inputgen_report *report)
{
    struct batch *batches = calloc(link_count, sizeof *batches);
    if (!batches)
        return; /* disconnecting closes the streams too */
    for (size_t at = 0; at < link_count; at++) {
        batches[at] = (struct batch){.link = &links[at], .wanted = links[at].live_count, .report = report};
        struct millrace_callbacks callbacks = {
            .size = sizeof callbacks, .on_closed = on_closed, .argument = &batches[at]};
        (void)!millrace_set_callbacks(links[at].millrace, &callbacks, NULL);
    }
    struct core_error ignored; /* what did not answer is counted below */
    (void)!batches_run(batches, link_count, send_close, NULL, timeout_ms, &ignored);
    for (size_t at = 0; at < link_count; at++)
        for (size_t n = 0; n < links[at].live_count; n++)
            report->accounts_differ += links[at].lives[n]->state == INPUTGEN_LIVE_OPEN;
    free(batches);
}
