#include "client/ts/link.h"

#include "client/contract.h"
#include "client/ts/packet.h"

#include "core/secret.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS       1000                   /* an attempt */
#define CONNECT_PAUSE_NS (250 * CORE_NS_PER_MS) /* between two of them */
#define REFUSED_PAUSE_NS CORE_NS_PER_S          /* until what was refused is asked for again */
#define BUSY_PAUSE_NS    (5 * CORE_NS_PER_MS)   /* the same, while the stream still has two keys */
#define WORDS_PAUSE_NS   (50 * CORE_NS_PER_MS)  /* between two looks for new words */
#define LEAD_NS          (100 * CORE_NS_PER_MS) /* a change of words is asked for so long before */
#define LEAD_DATAGRAMS   2                      /* and at least so many */
#define HEADROOM         0.98 /* of the interval: clocks differ, and a contract is no place for that */
#define STREAM_ID_MAX    (UINT32_C(1) << 20)

static const uint8_t cissa_iv[CORE_BLOCK_BYTES] = {'D', 'V', 'B', 'T', 'M', 'C', 'P', 'T',
                                                   'A', 'E', 'S', 'C', 'I', 'S', 'S', 'A'};

struct ts_stream_keys {
    struct ts_word now, next;
};

/* ---- the contract ---- */

static core_ns within(core_ns value_ns, core_ns minimum_ns, core_ns maximum_ns)
{
    return core_time_min(core_time_max(value_ns, minimum_ns), maximum_ns);
}

void ts_contract(const struct config_ts_service *config, const struct millrace_welcome *welcome,
                 struct core_stream_spec *spec)
{
    double interval_ns = config->datagram_bytes * 8e9 / config->rate_bits_per_s * HEADROOM;
    double burst = 2 + (double)config->jitter_ns / interval_ns;
    uint64_t room = welcome->stream_buffer_bytes_max / (config->datagram_bytes + CORE_BLOCK_BYTES);
    uint64_t burst_max = welcome->burst_packets_max < room ? welcome->burst_packets_max : room;
    *spec = (struct core_stream_spec){
        .packet_bytes = config->datagram_bytes,
        .burst_packets = (uint32_t)(burst < (double)burst_max ? burst : (double)burst_max),
        .interval_ns =
            within((core_ns)interval_ns, core_time_max(welcome->interval_ns_min, CORE_INTERVAL_NS_MIN),
                   CORE_INTERVAL_NS_MAX),
        /* A quarter is for the sockets, and for us. */
        .latency_ns =
            within(config->bound_ns / 4 * 3, core_time_max(welcome->latency_ns_min, CORE_LATENCY_NS_MIN),
                   CORE_LATENCY_NS_MAX),
        .cipher = CORE_CIPHER_AES_128_CBC,
        .padding = CORE_PADDING_CLEAR,
        .unit = CORE_UNIT_MESSAGE,
        .iv = CORE_IV_CONSTANT,
        .guaranteed = config->guaranteed,
        .records = CORE_RECORDS_TS,
    };
}

/* ---- a stream of the server ---- */

static void forget_stream(struct ts_stream *stream)
{
    if (stream->id != 0)
        stream->link->by_id[stream->id] = NULL;
    if (stream->has_next && stream->request == 0) { /* it was granted, and so is no longer in the queue */
        stream->keys->now = stream->keys->next;
        stream->word_count++;
    }
    stream->id = stream->request = stream->unanswered = 0;
    stream->has_next = false;
    stream->sent = 0;
    stream->link->lost(stream->owner);
}

/* The connection is gone, and with it what was not answered. */
static void lose(struct ts_link *link, core_ns now_ns, const char *reason)
{
    if (!link->told_lost)
        link->say("%s; looking for the server", reason);
    link->told_lost = true;
    millrace_disconnect(link->connection);
    link->connection = NULL;
    link->connect_not_before_ns = now_ns + CONNECT_PAUSE_NS;
    for (struct ts_stream *stream = link->streams; stream != NULL; stream = stream->next)
        forget_stream(stream);
}

static struct ts_stream *stream_of_request(struct ts_link *link, uint32_t request)
{
    struct ts_stream *stream = link->streams;
    while (stream != NULL && stream->request != request)
        stream = stream->next;
    return stream;
}

static struct ts_stream *stream_of_id(const struct ts_link *link, uint32_t id)
{
    return id < link->by_id_room ? link->by_id[id] : NULL;
}

static bool note_id(struct ts_link *link, uint32_t id, struct ts_stream *stream)
{
    if (id >= link->by_id_room) {
        uint32_t room = 2 * id + 64;
        struct ts_stream **larger =
            id > STREAM_ID_MAX ? NULL : realloc(link->by_id, room * sizeof(struct ts_stream *));
        if (larger == NULL)
            return false;
        memset(larger + link->by_id_room, 0, (room - link->by_id_room) * sizeof(struct ts_stream *));
        link->by_id = larger;
        link->by_id_room = room;
    }
    link->by_id[id] = stream;
    return true;
}

/* ---- what is asked for ---- */

static void note_request(struct ts_stream *stream, core_ns now_ns, millrace_status status,
                         const struct core_error *error)
{
    if (status == MILLRACE_OK)
        return;
    stream->request = 0;
    stream->ask_not_before_ns = now_ns + REFUSED_PAUSE_NS;
    if (status != MILLRACE_FULL)
        stream->link->say("%s: %s", stream->config->name, error->text);
}

static void open_stream(struct ts_stream *stream, core_ns now_ns)
{
    const struct ts_word *word = &stream->keys->now;
    struct core_stream_spec spec;
    struct core_error error;
    ts_contract(stream->config, millrace_welcome_of(stream->link->connection), &spec);
    stream->interval_ns = spec.interval_ns;
    stream->last_ns = 0;
    struct millrace_open open = client_contract_open(&spec);
    open.key_kind = word->named ? MILLRACE_KEY_NAMED : MILLRACE_KEY_INLINE;
    open.key = word->key;
    open.key_bytes = word->key_bytes;
    open.has_iv = true;
    memcpy(open.iv, cissa_iv, sizeof open.iv);
    note_request(stream, now_ns,
                 millrace_send_open(stream->link->connection, &open, &stream->request, error.text), &error);
}

/* The datagram with which the word comes into force: the one that is about to come when it is due. */
static uint64_t first_under(const struct ts_stream *stream, const struct ts_word *word, core_ns now_ns)
{
    core_ns until_ns = core_time_max(word->due_ns - now_ns, word->has_time ? 0 : LEAD_NS);
    uint64_t datagrams = (uint64_t)(until_ns / stream->interval_ns);
    return stream->sent + (datagrams > LEAD_DATAGRAMS ? datagrams : LEAD_DATAGRAMS);
}

static void change_word(struct ts_stream *stream, const struct ts_word *word, core_ns now_ns)
{
    struct core_error error;
    stream->keys->next = *word;
    stream->next_first = first_under(stream, word, now_ns);
    const struct millrace_rekey rekey = {.size = sizeof rekey,
                                         .stream = stream->id,
                                         .key_kind = word->named ? MILLRACE_KEY_NAMED : MILLRACE_KEY_INLINE,
                                         .key = stream->keys->next.key,
                                         .key_bytes = word->key_bytes,
                                         .first = stream->next_first};
    millrace_status status =
        millrace_send_rekey(stream->link->connection, &rekey, &stream->request, error.text);
    note_request(stream, now_ns, status, &error);
    stream->has_next = status == MILLRACE_OK;
}

/* Receivers tell words apart by their parity alone. */
static bool suits(struct ts_stream *stream, const struct ts_word *word)
{
    const struct ts_word *now = &stream->keys->now;
    if (word->odd != now->odd)
        return true;
    if (!ts_word_is_same(word, now)) {
        stream->words->refused++;
        stream->link->say("%s: a word is left out: it is %s, as the present one", stream->config->name,
                          word->odd ? "odd" : "even");
    }
    return false;
}

static void ask(struct ts_stream *stream, core_ns now_ns)
{
    const struct ts_word *word = ts_words_first(stream->words);
    for (; stream->id == 0 && word != NULL && word->due_ns <= now_ns; word = ts_words_first(stream->words)) {
        stream->keys->now = *word;
        stream->word_count++;
        stream->has_word = true;
        ts_words_drop_first(stream->words);
    }
    if (!stream->has_word || now_ns < stream->ask_not_before_ns)
        return;
    if (stream->id == 0)
        open_stream(stream, now_ns);
    else if (stream->has_next || word == NULL || word->due_ns > now_ns + LEAD_NS)
        return;
    else if (suits(stream, word))
        change_word(stream, word, now_ns);
    else
        ts_words_drop_first(stream->words);
}

/* ---- what is answered ---- */

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct ts_link *link = argument;
    struct ts_stream *stream = stream_of_request(link, request);
    struct core_error error;
    if (stream == NULL)
        return;
    stream->request = 0;
    if (!note_id(link, opened->stream, stream)) {
        (void)!millrace_send_close(link->connection, opened->stream, error.text);
        stream->ask_not_before_ns = core_time_now_ns() + REFUSED_PAUSE_NS;
        return;
    }
    stream->id = opened->stream;
    stream->told_refused = false;
    stream->opened_ns = core_time_now_ns();
    stream->room = opened->queue_packets > 0 ? opened->queue_packets : 1;
}

static void on_rekeyed(void *argument, uint32_t request, const struct millrace_rekeyed *rekeyed)
{
    struct ts_stream *stream = stream_of_request(argument, request);
    (void)rekeyed;
    if (stream == NULL)
        return;
    stream->request = 0;
    ts_words_drop_first(stream->words);
}

/* Of REKEY: the present word goes on; the next one is asked for again if only the time was not right. */
static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct ts_link *link = argument;
    struct ts_stream *stream = stream_of_request(link, request);
    if (stream == NULL)
        return;
    char offer[CORE_TEXT_BYTES];
    bool is_rekey = stream->has_next, is_busy = is_rekey && refused->code == MILLRACE_REFUSED_BUSY;
    stream->request = 0;
    stream->has_next = false;
    stream->ask_not_before_ns = core_time_now_ns() + (is_busy ? BUSY_PAUSE_NS : REFUSED_PAUSE_NS);
    if (is_busy)
        return;
    if (is_rekey) {
        ts_words_drop_first(stream->words);
        stream->words->refused++;
        stream->ask_not_before_ns = 0;
    }
    link->refused += !is_rekey;
    if (!is_rekey && stream->told_refused)
        return;
    stream->told_refused = !is_rekey;
    link->say("%s: the server refuses the %s (%s): %s%s%s%s", stream->config->name,
              is_rekey ? "next word" : "stream", millrace_refusal_name(refused->code), refused->text,
              refused->offer_latency_ns > 0 ? "; it would admit a latency of " : "",
              refused->offer_latency_ns > 0 ? core_duration_format(refused->offer_latency_ns, offer) : "",
              is_rekey ? "; the present one goes on" : "; asking again");
}

static void on_closed(void *argument, uint32_t id, const struct millrace_closed *closed)
{
    struct ts_link *link = argument;
    struct ts_stream *stream = stream_of_id(link, id);
    (void)closed;
    if (stream != NULL)
        forget_stream(stream);
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct ts_link *link = argument;
    struct ts_stream *stream = stream_of_id(link, result->stream);
    if (stream == NULL || stream->unanswered == 0)
        return;
    stream->unanswered--;
    bool is_encrypted = result->status == MILLRACE_RESULT_OK;
    stream->missed += is_encrypted && (result->flags & MILLRACE_RESULT_MET) == 0;
    link->done(stream->owner, is_encrypted ? result->ciphertext : NULL, result->bytes);
}

/* ---- sending ---- */

static void change_now(struct ts_stream *stream)
{
    core_ns late_ns = core_time_now_ns() - stream->keys->next.due_ns;
    char text[CORE_TEXT_BYTES];
    stream->keys->now = stream->keys->next;
    stream->has_next = false;
    stream->word_count++;
    if (!stream->keys->now.has_time || late_ns <= LEAD_NS)
        return;
    stream->late_words++;
    stream->link->say("%s: the %s word is in force %s too late", stream->config->name,
                      stream->keys->now.odd ? "odd" : "even", core_duration_format(late_ns, text));
}

bool ts_stream_takes(const struct ts_stream *stream, core_ns in_ns)
{
    return stream->id != 0 && in_ns >= stream->opened_ns;
}

core_status ts_stream_send(struct ts_stream *stream, uint8_t *packets, size_t bytes, const uint8_t *clear,
                           core_ns in_ns)
{
    struct core_error error;
    if (stream->id == 0)
        return CORE_CLOSED;
    if (stream->unanswered >= stream->room)
        return CORE_AGAIN;
    if (stream->has_next && stream->sent == stream->next_first) {
        if (stream->request != 0)
            return CORE_AGAIN;
        change_now(stream);
    }
    ts_datagram_mark(packets, bytes, clear, stream->keys->now.odd);
    if (millrace_data_part(stream->link->connection, stream->id, packets, (uint32_t)bytes,
                           MILLRACE_DATA_FIRST | MILLRACE_DATA_LAST, NULL, error.text) != MILLRACE_OK)
        return CORE_AGAIN; /* the buffer is full; or the connection is dead, which reading tells */
    if (stream->last_ns > 0)
        stream->interval_ns = core_time_max(
            stream->interval_ns + (in_ns - stream->last_ns - stream->interval_ns) / 64, CORE_NS_PER_US);
    stream->last_ns = in_ns;
    stream->sent++;
    stream->unanswered++;
    return CORE_OK;
}

/* ---- the connection ---- */

static void connect_server(struct ts_link *link, core_ns now_ns)
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
    if (welcome->version < 3 || (welcome->flags & MILLRACE_ALLOWS_CLIENT_IV) == 0) {
        lose(link, core_time_now_ns(),
             "the server must speak version 3 of the protocol and allow IVs (client_iv: true)");
        return;
    }
    if (link->told_lost) {
        link->say("the server is there again");
        link->reconnects++;
    }
    link->told_lost = false;
    if (millrace_set_callbacks(link->connection, &callbacks, error.text) != MILLRACE_OK)
        lose(link, core_time_now_ns(), error.text);
}

void ts_link_look(struct ts_link *link, core_ns now_ns)
{
    bool has_words = now_ns - link->looked_ns >= WORDS_PAUSE_NS;
    if (link->connection == NULL)
        connect_server(link, now_ns);
    if (has_words)
        link->looked_ns = now_ns;
    for (struct ts_stream *stream = link->streams; stream != NULL; stream = stream->next) {
        if (has_words)
            ts_words_read(stream->words, now_ns);
        if (link->connection != NULL && stream->request == 0)
            ask(stream, now_ns);
    }
}

void ts_link_read(struct ts_link *link)
{
    struct core_error error;
    if (link->connection != NULL && millrace_process(link->connection, 0, error.text) != MILLRACE_OK)
        lose(link, core_time_now_ns(), error.text);
}

void ts_link_flush(struct ts_link *link)
{
    struct core_error error;
    if (link->connection != NULL && millrace_flush(link->connection, error.text) != MILLRACE_OK)
        lose(link, core_time_now_ns(), error.text);
}

int ts_link_descriptor(const struct ts_link *link)
{
    return link->connection != NULL ? millrace_descriptor(link->connection) : -1;
}

bool ts_link_wants_write(const struct ts_link *link)
{
    return link->connection != NULL && (millrace_events(link->connection) & POLLOUT) != 0;
}

bool ts_link_is_busy(const struct ts_link *link)
{
    for (const struct ts_stream *stream = link->streams; stream != NULL; stream = stream->next)
        if (stream->unanswered > 0)
            return true;
    return false;
}

core_status ts_stream_add(struct ts_link *link, struct ts_stream *stream)
{
    stream->keys = core_secret_alloc(sizeof *stream->keys);
    if (stream->keys == NULL)
        return CORE_NO_MEMORY;
    stream->link = link;
    stream->next = link->streams;
    link->streams = stream;
    return CORE_OK;
}

void ts_link_close(struct ts_link *link)
{
    millrace_disconnect(link->connection);
    link->connection = NULL;
    for (; link->streams != NULL; link->streams = link->streams->next) {
        core_secret_free(link->streams->keys, sizeof *link->streams->keys);
        link->streams->keys = NULL;
    }
    free(link->by_id);
    link->by_id = NULL;
    link->by_id_room = 0;
}
