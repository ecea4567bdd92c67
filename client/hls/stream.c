#include "client/hls/stream.h"

#include "client/contract.h"
#include "client/hls/contract.h"
#include "client/hls/link.h"
#include "core/secret.h"

#include <stdlib.h>
#include <string.h>

#define REFUSED_PAUSE_NS CORE_NS_PER_S        /* until what was refused is asked for again */
#define BUSY_PAUSE_NS    (5 * CORE_NS_PER_MS) /* the same, while the stream still has two keys */

/* ---- jobs ---- */

core_status hls_stream_submit(struct hls_stream *stream, struct hls_job *job)
{
    job->cipher = malloc(job->bytes + CORE_BLOCK_BYTES);
    if (job->cipher == NULL)
        return CORE_NO_MEMORY;
    job->next = NULL;
    if (stream->last != NULL) {
        stream->last->next = job;
    } else {
        stream->first = job;
        stream->next_busy = stream->link->busy;
        stream->link->busy = stream;
    }
    stream->last = job;
    if (job->bytes > stream->paces[job->kind].bytes)
        stream->paces[job->kind].bytes = job->bytes;
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

static void take_off_busy(struct hls_stream *stream)
{
    struct hls_stream **at = &stream->link->busy;
    while (*at != stream)
        at = &(*at)->next_busy;
    *at = stream->next_busy;
}

void hls_stream_take_out(struct hls_stream *stream, struct hls_job *job)
{
    struct hls_job **at = &stream->first, *before = NULL;
    while (*at != job) {
        before = *at;
        at = &(*at)->next;
    }
    *at = job->next;
    if (stream->last == job)
        stream->last = before;
    if (stream->first == NULL)
        take_off_busy(stream);
}

void hls_stream_begin_again(struct hls_stream *stream)
{
    for (struct hls_job *job = stream->first; job != NULL; job = job->next) {
        job->begun = job->sent_whole = false;
        job->sent = job->cipher_bytes = 0;
    }
}

bool hls_job_is_complete(const struct hls_job *job)
{
    return job->sent_whole && job->cipher_bytes == (job->bytes / CORE_BLOCK_BYTES + 1) * CORE_BLOCK_BYTES;
}

/* ---- the stream at the server ---- */

static void forget_request(struct hls_stream *stream)
{
    hls_key_drop(stream->asked_key);
    stream->asked_key = NULL;
    stream->request = 0;
}

void hls_stream_forget(struct hls_stream *stream)
{
    forget_request(stream);
    hls_key_drop(stream->key);
    stream->key = NULL;
    stream->id = stream->unanswered = 0;
    stream->messages = 0;
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
    struct hls_pace paces[HLS_KINDS];
    for (int kind = 0; kind < HLS_KINDS; kind++) {
        double told_bytes = link->bandwidth_bits_per_s / 8 * stream->paces[kind].every_s;
        paces[kind] = stream->paces[kind];
        if (paces[kind].bytes > 0 && told_bytes > (double)paces[kind].bytes)
            paces[kind].bytes = (size_t)told_bytes;
        stream->contract_bytes[kind] = (size_t)((double)paces[kind].bytes * HLS_HEADROOM);
    }
    hls_contract(paces, stream->wait_ns, millrace_welcome_of(link->connection), &stream->spec);
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
    hls_stream_forget(stream);
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

void hls_stream_opened(struct hls_stream *stream, const struct millrace_opened *opened)
{
    take_asked_key(stream);
    stream->id = opened->stream;
    stream->room_packets = opened->queue_packets > 0 ? opened->queue_packets : 1;
}

void hls_stream_rekeyed(struct hls_stream *stream)
{
    take_asked_key(stream);
}

/* Of OPEN: there is no stream. Of REKEY: it goes on under the key that it has, which the next message is not
 * for. Either is asked for again. */
void hls_stream_refused(struct hls_stream *stream, const struct millrace_refused *refused)
{
    struct hls_link *link = stream->link;
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

/* ---- sending ---- */

/* The next packet of the job; the first one begins with the IV. CORE_FULL: not now. */
static core_status send_packet(struct hls_stream *stream, struct hls_job *job, struct core_error *error)
{
    static uint8_t first[HLS_PACKET_BYTES];
    uint32_t head = job->begun ? 0 : CORE_BLOCK_BYTES;
    size_t left = job->bytes - job->sent;
    uint32_t room = stream->spec.packet_bytes - head;
    uint32_t bytes = left < room ? (uint32_t)left : room;
    unsigned flags = (job->begun ? 0 : MILLRACE_DATA_FIRST) | (bytes == left ? MILLRACE_DATA_LAST : 0);
    const uint8_t *packet = job->clear + job->sent;
    if (head > 0) {
        memcpy(first, job->iv, head);
        memcpy(first + head, packet, bytes);
        packet = first;
    }
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
    return job->bytes <= stream->contract_bytes[job->kind];
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

core_status hls_stream_send(struct hls_stream *stream, core_ns now_ns, struct core_error *error)
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

/* ---- of the link ---- */

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
    hls_stream_forget(stream);
    while (stream->first != NULL) {
        struct hls_job *job = stream->first;
        hls_stream_take_out(stream, job);
        hls_job_free(job);
    }
}
