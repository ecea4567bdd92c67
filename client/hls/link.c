#include "client/hls/link.h"

#include "client/contract.h"
#include "core/secret.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PACKET_BYTES     (UINT32_C(32) << 10)
#define CONNECT_MS       1000                   /* an attempt */
#define CONNECT_PAUSE_NS (250 * CORE_NS_PER_MS) /* between two of them */
#define REFUSED_PAUSE_NS CORE_NS_PER_S          /* until what was refused is asked for again */
#define BUSY_PAUSE_NS    (5 * CORE_NS_PER_MS)   /* the same, while the stream still has two keys */
#define ATTEMPTS         3                      /* to encrypt one file, while the server itself is there */
#define HEADROOM         1.5 /* of a contract, for files that are larger than those before */

/* ---- the contract ---- */

static uint32_t packet_bytes_of(const struct millrace_welcome *welcome)
{
    uint32_t bytes = welcome->packet_bytes_max < PACKET_BYTES ? welcome->packet_bytes_max : PACKET_BYTES;
    return bytes / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
}

static uint32_t least(uint64_t one, uint64_t two)
{
    return (uint32_t)(one < two ? one : two);
}

static core_ns within(double value_ns, core_ns minimum_ns, core_ns maximum_ns)
{
    return value_ns < (double)minimum_ns   ? minimum_ns
           : value_ns > (double)maximum_ns ? maximum_ns
                                           : (core_ns)value_ns;
}

void hls_contract(size_t bytes, double target_s, bool has_parts, core_ns wait_ns,
                  const struct millrace_welcome *welcome, struct core_stream_spec *spec)
{
    uint32_t packet_bytes = packet_bytes_of(welcome);
    uint64_t packets = (uint64_t)((double)bytes * HEADROOM / packet_bytes) + 2; /* 1: the IV, 1: the rest */
    uint32_t burst_max = least(welcome->burst_packets_max,
                               welcome->stream_buffer_bytes_max / (packet_bytes + CORE_BLOCK_BYTES));
    core_ns latency_ns = wait_ns;
    double interval_ns = target_s * 1e9 / (double)(has_parts ? 2 * packets : packets);
    uint32_t burst = least(packets, burst_max > 0 ? burst_max : 1);
    if (burst < packets) {
        double paced_ns = (double)wait_ns / 2 / (double)(packets - burst);
        interval_ns = paced_ns < interval_ns ? paced_ns : interval_ns;
        latency_ns = wait_ns / 2;
    }
    core_ns shortest_ns =
        welcome->interval_ns_min > CORE_INTERVAL_NS_MIN ? welcome->interval_ns_min : CORE_INTERVAL_NS_MIN;
    *spec = (struct core_stream_spec){
        .packet_bytes = packet_bytes,
        .burst_packets = burst,
        .interval_ns = within(interval_ns, shortest_ns, CORE_INTERVAL_NS_MAX),
        .latency_ns = within((double)latency_ns, core_time_max(welcome->latency_ns_min, CORE_LATENCY_NS_MIN),
                             CORE_LATENCY_NS_MAX),
        .cipher = CORE_CIPHER_AES_128_CBC,
        .padding = CORE_PADDING_PKCS7,
        .unit = CORE_UNIT_MESSAGE,
        .iv = CORE_IV_EXPLICIT,
    };
}

/* ---- jobs ---- */

core_status hls_stream_submit(struct hls_stream *stream, struct hls_job *job)
{
    job->cipher = malloc(job->bytes + CORE_BLOCK_BYTES);
    if (job->cipher == NULL)
        return CORE_NO_MEMORY;
    job->next = NULL;
    if (stream->last != NULL)
        stream->last->next = job;
    else
        stream->first = job;
    stream->last = job;
    if (job->bytes > stream->largest_bytes)
        stream->largest_bytes = job->bytes;
    return CORE_OK;
}

void hls_job_free(struct hls_job *job)
{
    hls_key_drop(job->key);
    core_secret_wipe(job->clear, job->bytes);
    free(job->clear);
    free(job->cipher);
    free(job);
}

static void remove_job(struct hls_stream *stream, struct hls_job *job)
{
    struct hls_job **at = &stream->first, *before = NULL;
    while (*at != job) {
        before = *at;
        at = &(*at)->next;
    }
    *at = job->next;
    if (stream->last == job)
        stream->last = before;
}

static void finish_job(struct hls_stream *stream, struct hls_job *job)
{
    remove_job(stream, job);
    stream->link->done(stream->link->argument, job);
}

static void begin_again(struct hls_job *job)
{
    job->begun = job->sent_whole = false;
    job->sent = job->cipher_bytes = 0;
}

/* ---- a stream of the server ---- */

static void forget_request(struct hls_stream *stream)
{
    hls_key_drop(stream->asked_key);
    stream->asked_key = NULL;
    stream->request = 0;
}

static void forget_stream(struct hls_stream *stream)
{
    forget_request(stream);
    hls_key_drop(stream->key);
    stream->key = NULL;
    stream->id = stream->unanswered = 0;
    stream->messages = 0;
}

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
        forget_stream(stream);
        for (struct hls_job *job = stream->first; job != NULL; job = job->next)
            begin_again(job);
    }
}

static struct hls_stream *stream_of_request(struct hls_link *link, uint32_t request)
{
    struct hls_stream *stream = link->streams;
    while (stream != NULL && stream->request != request)
        stream = stream->next;
    return stream;
}

/* An OPEN or REKEY for this key has been sent, or could not be. */
static void note_request(struct hls_stream *stream, struct hls_key *key, millrace_status status,
                         const struct core_error *error)
{
    if (status == MILLRACE_OK) {
        stream->asked_key = hls_key_take(key);
        return;
    }
    stream->ask_not_before_ns = core_time_now_ns() + REFUSED_PAUSE_NS;
    if (status != MILLRACE_FULL)
        stream->link->say("%s: %s", stream->name, error->text);
}

static void open_stream(struct hls_stream *stream, struct hls_key *key)
{
    struct hls_link *link = stream->link;
    struct core_error error;
    double told_bytes = link->bandwidth_bits_per_s / 8 * stream->target_s;
    size_t bytes = stream->largest_bytes;
    if (told_bytes > (double)bytes)
        bytes = (size_t)told_bytes;
    stream->contract_bytes = (size_t)((double)bytes * HEADROOM);
    hls_contract(bytes, stream->target_s, stream->has_parts, stream->wait_ns,
                 millrace_welcome_of(link->connection), &stream->spec);
    struct millrace_open open = client_contract_open(&stream->spec);
    open.key_kind = MILLRACE_KEY_INLINE;
    open.key = key->bytes;
    open.key_bytes = HLS_KEY_BYTES;
    note_request(stream, key, millrace_send_open(link->connection, &open, &stream->request, error.text),
                 &error);
}

/* A stream for larger files takes the place of the one before, which the server closes when it has answered what
 * it has of it. Called between two messages. */
static void replace_stream(struct hls_stream *stream, struct hls_key *key)
{
    struct core_error error;
    if (stream->id != 0 &&
        millrace_send_close(stream->link->connection, stream->id, error.text) == MILLRACE_FULL)
        return; /* later */
    forget_stream(stream);
    open_stream(stream, key);
}

/* The next message is to be under `key`. It has not begun and does not before the answer, which alone tells that
 * it will be. Called between two messages. */
static void change_key(struct hls_stream *stream, struct hls_key *key)
{
    struct core_error error;
    const struct millrace_rekey rekey = {.size = sizeof rekey,
                                         .stream = stream->id,
                                         .key_kind = MILLRACE_KEY_INLINE,
                                         .key = key->bytes,
                                         .key_bytes = HLS_KEY_BYTES,
                                         .first = stream->messages};
    note_request(stream, key,
                 millrace_send_rekey(stream->link->connection, &rekey, &stream->request, error.text), &error);
}

static void take_asked_key(struct hls_stream *stream)
{
    hls_key_drop(stream->key);
    stream->key = stream->asked_key;
    stream->asked_key = NULL;
    stream->request = 0;
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct hls_stream *stream = stream_of_request(argument, request);
    if (stream == NULL)
        return;
    take_asked_key(stream);
    stream->id = opened->stream;
    stream->room_packets = opened->queue_packets > 0 ? opened->queue_packets : 1;
}

static void on_rekeyed(void *argument, uint32_t request, const struct millrace_rekeyed *rekeyed)
{
    struct hls_stream *stream = stream_of_request(argument, request);
    (void)rekeyed;
    if (stream != NULL)
        take_asked_key(stream);
}

/* Of OPEN: there is no stream. Of REKEY: it goes on under the key that it has, which the next message is not
 * for. Either is asked for again. */
static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct hls_link *link = argument;
    struct hls_stream *stream = stream_of_request(link, request);
    if (stream == NULL)
        return;
    char offer[CORE_TEXT_BYTES];
    bool is_busy = stream->id != 0 && refused->code == MILLRACE_REFUSED_BUSY;
    forget_request(stream);
    stream->ask_not_before_ns = core_time_now_ns() + (is_busy ? BUSY_PAUSE_NS : REFUSED_PAUSE_NS);
    if (is_busy)
        return;
    link->counts.refused++;
    link->say("%s: the server refuses the %s (%s): %s%s%s; asking again", stream->name,
              stream->id != 0 ? "next key" : "stream", millrace_refusal_name(refused->code), refused->text,
              refused->offer_latency_ns > 0 ? "; it would admit --wait=" : "",
              refused->offer_latency_ns > 0 ? core_duration_format(refused->offer_latency_ns, offer) : "");
}

static bool is_complete(const struct hls_job *job)
{
    return job->sent_whole && job->cipher_bytes == (job->bytes / CORE_BLOCK_BYTES + 1) * CORE_BLOCK_BYTES;
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
            forget_stream(stream);
        for (const struct hls_job *job = stream->first; job != NULL; job = job->next)
            link->must_reconnect |= job->begun && job->stream == id && !is_complete(job);
    }
}

/* ---- results ---- */

/* The oldest job of that stream of the server: results come in order. */
static struct hls_job *job_of(struct hls_link *link, uint32_t id, struct hls_stream **owner)
{
    for (*owner = link->streams; *owner != NULL; *owner = (*owner)->next)
        for (struct hls_job *job = (*owner)->first; job != NULL && job->begun; job = job->next)
            if (job->stream == id && !is_complete(job))
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
    link->counts.packets++;
    if (stream->id == result->stream && stream->unanswered > 0)
        stream->unanswered--;
    if (result->status != MILLRACE_RESULT_OK) {
        if (!job->failed)
            link->say("%s: a file of %zu bytes was not encrypted: %s", stream->name, job->bytes,
                      millrace_result_name(result->status));
        job->failed = true;
        return;
    }
    link->counts.missed += (result->flags & MILLRACE_RESULT_MET) == 0;
    if (result->bytes > job->bytes + CORE_BLOCK_BYTES - job->cipher_bytes) { /* no server does that */
        job->failed = true;
        return;
    }
    memcpy(job->cipher + job->cipher_bytes, result->ciphertext, result->bytes);
    job->cipher_bytes += result->bytes;
    link->counts.bytes += result->bytes;
}

/* A file that was not encrypted is tried again with a new connection, where all begins anew. Not from within a
 * callback, since it may end the connection. */
static void collect(struct hls_link *link, core_ns now_ns)
{
    if (link->must_reconnect)
        lose(link, now_ns, "the server has ended a stream");
    for (struct hls_stream *stream = link->streams; stream != NULL; stream = stream->next)
        for (struct hls_job *job = stream->first, *next; job != NULL; job = next) {
            next = job->next;
            if (job->failed) {
                job->failed = ++job->attempts == ATTEMPTS;
                if (job->failed)
                    finish_job(stream, job);
                lose(link, now_ns, "the server has not encrypted a file");
                return;
            }
            if (is_complete(job))
                finish_job(stream, job);
        }
}

/* ---- sending ---- */

/* The next packet of the job; the first one begins with the IV. CORE_FULL: not now. */
static core_status send_packet(struct hls_stream *stream, struct hls_job *job, struct core_error *error)
{
    static uint8_t packet[PACKET_BYTES];
    uint32_t head = job->begun ? 0 : CORE_BLOCK_BYTES;
    size_t left = job->bytes - job->sent;
    uint32_t room = stream->spec.packet_bytes - head;
    uint32_t bytes = left < room ? (uint32_t)left : room;
    unsigned flags = (job->begun ? 0 : MILLRACE_DATA_FIRST) | (bytes == left ? MILLRACE_DATA_LAST : 0);
    memcpy(packet, job->iv, head);
    if (bytes > 0)
        memcpy(packet + head, job->clear + job->sent, bytes);
    core_status status = (core_status)millrace_data_part(stream->link->connection, stream->id, packet,
                                                         head + bytes, flags, NULL, error->text);
    if (status)
        return status;
    stream->messages += !job->begun;
    job->begun = true;
    job->stream = stream->id;
    job->sent += bytes;
    job->sent_whole = bytes == left;
    stream->unanswered++;
    return CORE_OK;
}

static bool fits(const struct hls_stream *stream, const struct hls_job *job)
{
    return job->bytes <= stream->contract_bytes;
}

/* Whether the next packet of the job may be sent now; asks for what is missing. */
static bool is_ready_for(struct hls_stream *stream, struct hls_job *job, core_ns now_ns)
{
    if (stream->request != 0)
        return false;
    if (job->begun || (stream->id != 0 && stream->key == job->key && fits(stream, job)))
        return true;
    if (now_ns < stream->ask_not_before_ns)
        return false;
    if (stream->id == 0 || !fits(stream, job))
        replace_stream(stream, job->key);
    else
        change_key(stream, job->key);
    return false;
}

static core_status send_jobs(struct hls_stream *stream, core_ns now_ns, struct core_error *error)
{
    struct hls_job *job = stream->first;
    while (job != NULL) {
        if (job->sent_whole) {
            job = job->next;
            continue;
        }
        if (!is_ready_for(stream, job, now_ns) || stream->unanswered >= stream->room_packets)
            return CORE_OK;
        core_status status = send_packet(stream, job, error);
        if (status)
            return status == CORE_FULL ? CORE_OK : status;
    }
    return CORE_OK;
}

/* ---- the connection ---- */

static void connect_server(struct hls_link *link, core_ns now_ns)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_result = on_result,
                                                 .on_opened = on_opened,
                                                 .on_refused = on_refused,
                                                 .on_rekeyed = on_rekeyed,
                                                 .on_closed = on_closed,
                                                 .argument = link};
    struct core_error error;
    if (now_ns < link->connect_not_before_ns)
        return;
    if (command_connect_within(link->server, CONNECT_MS, &link->connection, &error) != CORE_OK) {
        lose(link, core_time_now_ns(), error.text);
        return;
    }
    const struct millrace_welcome *welcome = millrace_welcome_of(link->connection);
    const unsigned needed = MILLRACE_ALLOWS_INLINE_KEY | MILLRACE_ALLOWS_CLIENT_IV;
    if (welcome->version < 3 || (welcome->flags & needed) != needed) {
        lose(link, core_time_now_ns(),
             "the server must speak version 3 of the protocol and allow inline keys (on unix: and tls:) and "
             "IVs (client_iv: true)");
        return;
    }
    if (link->told_lost) {
        link->say("the server is there again");
        link->counts.reconnects++;
    }
    link->told_lost = false;
    if (millrace_set_callbacks(link->connection, &callbacks, error.text) != MILLRACE_OK)
        lose(link, core_time_now_ns(), error.text);
}

static core_status exchange(struct hls_link *link, core_ns now_ns, struct core_error *error)
{
    core_status status = (core_status)millrace_process(link->connection, 0, error->text);
    if (link->must_reconnect)
        return status;
    for (struct hls_stream *stream = link->streams; stream != NULL && status == CORE_OK;
         stream = stream->next)
        status = send_jobs(stream, now_ns, error);
    return status ? status : (core_status)millrace_flush(link->connection, error->text);
}

void hls_link_turn(struct hls_link *link, core_ns now_ns)
{
    struct core_error error;
    if (link->connection == NULL)
        connect_server(link, now_ns);
    if (link->connection != NULL && exchange(link, now_ns, &error) != CORE_OK)
        lose(link, now_ns, error.text);
    collect(link, now_ns);
}

int hls_link_descriptor(const struct hls_link *link)
{
    return link->connection == NULL ? -1 : millrace_descriptor(link->connection);
}

short hls_link_events(const struct hls_link *link)
{
    return link->connection == NULL ? 0 : millrace_events(link->connection);
}

int hls_link_wait_ms(const struct hls_link *link, core_ns now_ns, int most_ms)
{
    core_ns wait_ns = most_ms * CORE_NS_PER_MS;
    for (const struct hls_stream *stream = link->streams; stream != NULL; stream = stream->next)
        if (stream->first != NULL && stream->ask_not_before_ns > now_ns &&
            stream->ask_not_before_ns - now_ns < wait_ns)
            wait_ns = stream->ask_not_before_ns - now_ns;
    return (int)((wait_ns + CORE_NS_PER_MS - 1) / CORE_NS_PER_MS);
}

bool hls_link_is_busy(const struct hls_link *link)
{
    for (const struct hls_stream *stream = link->streams; stream != NULL; stream = stream->next)
        if (stream->first != NULL)
            return true;
    return false;
}

void hls_stream_add(struct hls_link *link, struct hls_stream *stream)
{
    stream->link = link;
    stream->next = link->streams;
    link->streams = stream;
}

void hls_stream_remove(struct hls_stream *stream)
{
    struct hls_stream **at = &stream->link->streams;
    struct core_error error;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    if (stream->id != 0 && stream->link->connection != NULL)
        (void)!millrace_send_close(stream->link->connection, stream->id, error.text);
    forget_stream(stream);
    while (stream->first != NULL) {
        struct hls_job *job = stream->first;
        remove_job(stream, job);
        hls_job_free(job);
    }
}

void hls_link_close(struct hls_link *link)
{
    millrace_disconnect(link->connection);
    link->connection = NULL;
}
