#include "client/hls/link.h"

#include <poll.h>
#include <string.h>

#define CONNECT_MS       1000                   /* an attempt */
#define CONNECT_PAUSE_NS (250 * CORE_NS_PER_MS) /* between two of them */
#define ATTEMPTS         3                      /* to encrypt one file, while the server itself is there */

/* The connection is gone, and with it what was not finished. */
static void lose(struct hls_link *link, core_ns now_ns, const char *reason)
{
    if (!link->told_lost)
        link->say("%s; looking for the server", reason);
    link->told_lost = true;
    link->must_reconnect = false;
    millrace_disconnect(link->connection);
    link->connection = NULL;
    link->connect_not_before_ns = now_ns + CONNECT_PAUSE_NS;
    for (struct hls_stream *stream = link->streams; stream != NULL; stream = stream->next) {
        hls_stream_forget(stream);
        hls_stream_begin_again(stream);
    }
}

/* ---- answers ---- */

static struct hls_stream *stream_of_request(struct hls_link *link, uint32_t request)
{
    struct hls_stream *stream = link->busy; /* nothing is asked for without a job */
    while (stream != NULL && stream->request != request)
        stream = stream->next_busy;
    return stream;
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct hls_stream *stream = stream_of_request(argument, request);
    if (stream != NULL)
        hls_stream_opened(stream, opened);
}

static void on_rekeyed(void *argument, uint32_t request, const struct millrace_rekeyed *rekeyed)
{
    struct hls_stream *stream = stream_of_request(argument, request);
    (void)rekeyed;
    if (stream != NULL)
        hls_stream_rekeyed(stream);
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct hls_stream *stream = stream_of_request(argument, request);
    if (stream != NULL)
        hls_stream_refused(stream, refused);
}

/* A stream that the server ends by itself. Files that it had can not just go to another stream, behind those that
 * are there already: results come in order. */
static void on_closed(void *argument, uint32_t id, const struct millrace_closed *closed)
{
    struct hls_link *link = argument;
    if (closed->reason == MILLRACE_CLOSE_ASKED)
        return;
    for (struct hls_stream *stream = link->streams; stream != NULL; stream = stream->next) {
        if (stream->id == id)
            hls_stream_forget(stream);
        for (const struct hls_job *job = stream->first; job != NULL; job = job->next)
            link->must_reconnect |= job->begun && job->stream == id && !hls_job_is_complete(job);
    }
}

/* ---- results ---- */

/* The oldest job of that stream of the server: results come in order. */
static struct hls_job *job_of(struct hls_link *link, uint32_t id, struct hls_stream **owner)
{
    for (*owner = link->busy; *owner != NULL; *owner = (*owner)->next_busy)
        for (struct hls_job *job = (*owner)->first; job != NULL && job->begun; job = job->next)
            if (job->stream == id && !hls_job_is_complete(job))
                return job;
    return NULL;
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct hls_link *link = argument;
    struct hls_stream *stream;
    struct hls_job *job = job_of(link, result->stream, &stream);
    if (job == NULL)
        return;
    if (stream->id == result->stream && stream->unanswered > 0)
        stream->unanswered--;
    if (result->status != MILLRACE_RESULT_OK) {
        if (!job->failed)
            link->say("%s: a file of %zu bytes was not encrypted: %s", stream->name, job->bytes,
                      millrace_result_name(result->status));
        job->failed = true;
        return;
    }
    if (result->bytes > job->bytes + CORE_BLOCK_BYTES - job->cipher_bytes) { /* no server does that */
        job->failed = true;
        return;
    }
    memcpy(job->cipher + job->cipher_bytes, result->ciphertext, result->bytes);
    job->cipher_bytes += result->bytes;
}

static void finish_job(struct hls_stream *stream, struct hls_job *job)
{
    hls_stream_take_out(stream, job);
    stream->link->done(stream->link->argument, job);
}

/* A file that was not encrypted is tried again with a new connection, where all begins anew. Not from within a
 * callback, since it may end the connection. */
static void collect(struct hls_link *link, core_ns now_ns)
{
    if (link->must_reconnect)
        lose(link, now_ns, "the server has ended a stream");
    for (struct hls_stream *stream = link->busy, *next_stream; stream != NULL; stream = next_stream) {
        next_stream = stream->next_busy;
        for (struct hls_job *job = stream->first, *next; job != NULL; job = next) {
            next = job->next;
            if (job->failed) {
                job->failed = ++job->attempts == ATTEMPTS;
                if (job->failed)
                    finish_job(stream, job);
                lose(link, now_ns, "the server has not encrypted a file");
                return;
            }
            if (hls_job_is_complete(job))
                finish_job(stream, job);
        }
    }
}

/* ---- the connection ---- */

/* What the server must be for us. */
static bool is_suitable(const struct millrace_welcome *welcome)
{
    const unsigned needed = MILLRACE_ALLOWS_INLINE_KEY | MILLRACE_ALLOWS_CLIENT_IV;
    return welcome->version >= 3 && (welcome->flags & needed) == needed;
}

static void begin_connection(struct hls_link *link)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_result = on_result,
                                                 .on_opened = on_opened,
                                                 .on_refused = on_refused,
                                                 .on_rekeyed = on_rekeyed,
                                                 .on_closed = on_closed,
                                                 .argument = link};
    if (link->told_lost) {
        link->say("the server is there again");
        link->counts.reconnects++;
    }
    link->told_lost = false;
    (void)!millrace_set_callbacks(link->connection, &callbacks,
                                  NULL); /* which have the size that they must have */
}

/* Begins an attempt, or sees what has come of it. */
static void look_for_server(struct hls_link *link, core_ns now_ns)
{
    struct core_error error;
    core_status status = CORE_AGAIN;
    if (link->dial.begun) {
        status = client_dial_take(&link->dial, &link->connection, &error);
    } else if (now_ns >= link->connect_not_before_ns) {
        link->dial.address = link->server->address;
        link->dial.tls = command_tls(link->server);
        link->dial.timeout_ms = CONNECT_MS;
        status = client_dial_begin(&link->dial, &error) ? CORE_SYSTEM : CORE_AGAIN;
    }
    if (status == CORE_AGAIN)
        return;
    if (status)
        lose(link, now_ns, error.text);
    else if (!is_suitable(millrace_welcome_of(link->connection)))
        lose(link, now_ns,
             "the server must speak version 3 of the protocol and allow inline keys (on unix: and tls:) and "
             "IVs (client_iv: true)");
    else
        begin_connection(link);
}

void hls_link_receive(struct hls_link *link, core_ns now_ns)
{
    struct core_error error;
    if (link->connection == NULL)
        look_for_server(link, now_ns);
    if (link->connection != NULL && millrace_process(link->connection, 0, error.text) != MILLRACE_OK)
        lose(link, now_ns, error.text);
    collect(link, now_ns);
}

void hls_link_send(struct hls_link *link, core_ns now_ns)
{
    struct core_error error;
    core_status status = CORE_OK;
    if (link->connection == NULL)
        return;
    for (struct hls_stream *stream = link->busy; stream != NULL && status == CORE_OK;
         stream = stream->next_busy)
        status = hls_stream_send(stream, now_ns, &error);
    if (status == CORE_OK)
        status = (core_status)millrace_flush(link->connection, error.text);
    if (status)
        lose(link, now_ns, error.text);
}

int hls_link_descriptor(const struct hls_link *link)
{
    return link->connection == NULL ? client_dial_descriptor(&link->dial)
                                    : millrace_descriptor(link->connection);
}

short hls_link_events(const struct hls_link *link)
{
    return link->connection == NULL ? POLLIN : millrace_events(link->connection);
}

int hls_link_wait_ms(const struct hls_link *link, core_ns now_ns, int most_ms)
{
    core_ns wait_ns = most_ms * CORE_NS_PER_MS;
    for (const struct hls_stream *stream = link->busy; stream != NULL; stream = stream->next_busy)
        if (stream->ask_not_before_ns > now_ns && stream->ask_not_before_ns - now_ns < wait_ns)
            wait_ns = stream->ask_not_before_ns - now_ns;
    return (int)((wait_ns + CORE_NS_PER_MS - 1) / CORE_NS_PER_MS);
}

bool hls_link_is_busy(const struct hls_link *link)
{
    return link->busy != NULL;
}

void hls_link_close(struct hls_link *link)
{
    client_dial_close(&link->dial);
    millrace_disconnect(link->connection);
    link->connection = NULL;
}
