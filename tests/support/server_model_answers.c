#include "tests/support/server_model_client.h"

#include "perfmodel/cpu.h"
#include "tests/support/require.h"
#include "tests/support/virtual_threads.h"

#include <string.h>

static struct request *find_request(struct client *client, uint32_t id)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (client->requests[i].type != 0 && client->requests[i].id == id)
            return &client->requests[i];
    model_deviate(client, "an answer to request %u, which is not open", id);
}

static struct stream *find_stream(struct client *client, uint32_t id)
{
    for (uint32_t i = 0; i < client->stream_count; i++)
        if (client->streams[i].open && client->streams[i].id == id)
            return &client->streams[i];
    model_deviate(client, "stream %u is not open", id);
}

/* A MODIFY has its answer, with the new room or 0; its stream may have ended before. */
static void end_change(struct client *client, const struct request *request, uint32_t room)
{
    for (uint32_t i = 0; i < client->stream_count; i++) {
        struct stream *stream = &client->streams[i];
        if (stream->id != request->stream || stream->changing == 0)
            continue;
        stream->changing--;
        stream->room = room > 0 ? room : stream->room;
    }
}

static void begin_stream(struct client *client, const struct request *request,
                         const struct protocol_opened *opened)
{
    struct stream *stream = &client->streams[client->stream_count++];
    const EVP_CIPHER *const ciphers[] = {EVP_aes_128_cbc(), EVP_aes_192_cbc(), EVP_aes_256_cbc()};
    EVP_CIPHER_CTX *chain = stream->chain;

    TEST_REQUIRE(client->stream_count <= STREAMS);
    for (uint32_t i = 0; i + 1 < client->stream_count; i++)
        MUST(client, !client->streams[i].open || client->streams[i].id != opened->stream, "id used twice");
    MUST(client, opened->stream != 0, "stream id 0");
    MUST(client, !request->open.has_iv || memcmp(opened->iv, request->open.iv, 16) == 0, "another IV");
    *stream = (struct stream){.id = opened->stream,
                              .spec = request->open.spec,
                              .room = opened->queue_packets,
                              .open = true,
                              .given = request->open.spec.first_unit,
                              .number = request->open.spec.first_unit,
                              .gave_iv = request->open.has_iv,
                              .knows_key = request->open.key_kind == PROTOCOL_KEY_INLINE,
                              .losses = request->losses};
    stream->chain = chain == NULL ? EVP_CIPHER_CTX_new() : chain;
    TEST_REQUIRE(EVP_CipherInit_ex(
                     stream->chain, ciphers[request->open.spec.cipher - CORE_CIPHER_AES_128_CBC], NULL,
                     request->key, opened->iv, request->open.spec.direction == CORE_DIRECTION_ENCRYPT) == 1 &&
                 EVP_CIPHER_CTX_set_padding(stream->chain, 0) == 1);
    memcpy(stream->key, request->key, sizeof stream->key);
    memcpy(stream->iv, opened->iv, sizeof stream->iv);
    memcpy(stream->block, opened->iv, sizeof stream->block);
    memcpy(stream->mac_id, request->open.mac_id, sizeof stream->mac_id);
    stream->asked_to_close = client->half_closed;
}

/* For the loss of a card: a promise to a guaranteed stream, none to a standard one that is on a card. */
static void check_backup(const struct client *client, const struct request *request,
                         const struct protocol_opened *opened)
{
    const struct protocol_backup *backup = &opened->backup;
    const bool on_card = opened->unit == PROTOCOL_UNIT_GPU, guaranteed = request->open.spec.guaranteed;
    if (client->version < 2)
        return;
    MUST(client, (backup->unit != PROTOCOL_UNIT_NONE) == (on_card && guaranteed), "backup unit %d",
         backup->unit);
    MUST(client, (backup->bound_ns != 0) == (!on_card || guaranteed), "a bound of %lld ns after a loss",
         (long long)backup->bound_ns);
    MUST(client, backup->bound_ns <= request->open.spec.latency_ns,
         "a bound after a loss above the contract");
}

static void on_opened(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct request *request = find_request(client, header->id);
    struct protocol_opened opened;
    MUST(client, protocol_opened_read(client->version, body, header->body_bytes, &opened, NULL) == CORE_OK,
         "a bad OPENED");
    MUST(client, request->must == 0 && (request->type == PROTOCOL_OPEN || request->type == PROTOCOL_QUERY),
         "request %u granted", header->id);
    MUST(client, opened.bound_ns <= request->open.spec.latency_ns, "a bound above the contract");
    check_backup(client, request, &opened);
    if (request->type == PROTOCOL_OPEN)
        begin_stream(client, request, &opened);
    else
        MUST(client, opened.stream == 0, "a QUERY opened a stream");
    request->type = 0;
}

/* Would the client choose the block that the chain goes on from, under a key that is not for that? */
static bool chooses_block(const struct stream *stream, const struct request *request)
{
    const bool forbids =
        request->open.key_kind == PROTOCOL_KEY_NAMED && stream->spec.cipher == CORE_CIPHER_AES_192_CBC;
    const bool chooses = stream->knows_key || (stream->gave_iv && request->first == stream->spec.first_unit);
    return forbids && stream->spec.iv == CORE_IV_CHAIN && chooses;
}

/* Of a REKEY in which nothing was wrong. The first of a stream is refused only for its message, or the end. */
static void check_rekey_refused(struct client *client, const struct request *request,
                                const struct protocol_refused *refused)
{
    const struct stream *stream = NULL;
    for (uint32_t i = 0; i < client->stream_count; i++)
        if (client->streams[i].open && client->streams[i].id == request->stream)
            stream = &client->streams[i];
    if (refused->code == PROTOCOL_REFUSED_BUSY)
        MUST(client,
             stream == NULL || !request->may_be_early || (int64_t)(stream->given - request->first) > 0,
             "REKEY from message %llu on refused with 9, and the next message is %llu",
             (unsigned long long)request->first, (unsigned long long)stream->given);
    else if (refused->code == PROTOCOL_REFUSED_IV)
        MUST(client, stream != NULL && chooses_block(stream, request), "REKEY refused with 5");
    else
        MUST(client, refused->code == PROTOCOL_REFUSED_STREAM && (stream == NULL || stream->asked_to_close),
             "REKEY refused with %d", refused->code);
}

static void on_refused(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct request *request = find_request(client, header->id);
    struct protocol_refused refused;
    MUST(client, protocol_refused_read(client->version, body, header->body_bytes, &refused, NULL) == CORE_OK,
         "a bad REFUSED");
    if (client->drained && refused.code == PROTOCOL_REFUSED_DRAINING)
        ; /* whatever else is wrong with it */
    else if (request->must != 0)
        MUST(client,
             refused.code == request->must ||
                 (request->type == PROTOCOL_REKEY && refused.code == PROTOCOL_REFUSED_BUSY &&
                  !request->may_be_early && request->must != PROTOCOL_REFUSED_STREAM &&
                  request->must != PROTOCOL_REFUSED_SPEC),
             "refused with %d instead of %d", refused.code, request->must);
    else if (request->type == PROTOCOL_MODIFY)
        MUST(client,
             refused.code == PROTOCOL_REFUSED_CAPACITY || refused.code == PROTOCOL_REFUSED_LIMIT ||
                 refused.code == PROTOCOL_REFUSED_BUSY || refused.code == PROTOCOL_REFUSED_STREAM,
             "MODIFY refused with %d", refused.code);
    else if (request->type == PROTOCOL_REKEY)
        check_rekey_refused(client, request, &refused);
    else
        MUST(client, refused.code == PROTOCOL_REFUSED_CAPACITY || refused.code == PROTOCOL_REFUSED_LIMIT,
             "refused with %d", refused.code);
    if (request->type == PROTOCOL_MODIFY)
        end_change(client, request, 0);
    client->offer_interval_ns = refused.offer_interval_ns;
    request->type = 0;
}

static void on_modified(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct request *request = find_request(client, header->id);
    struct protocol_modified modified;
    MUST(client, protocol_modified_read(body, header->body_bytes, &modified, NULL) == CORE_OK,
         "a bad MODIFIED");
    MUST(client, request->type == PROTOCOL_MODIFY && request->must == 0, "request %u modified", header->id);
    MUST(client, modified.stream == request->stream, "MODIFIED for stream %u", modified.stream);
    MUST(client, modified.bound_ns <= request->latency_ns, "a bound above the new contract");
    end_change(client, request, modified.queue_packets);
    request->type = 0;
}

static void on_rekeyed(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct request *request = find_request(client, header->id);
    struct protocol_rekeyed rekeyed;
    MUST(client, protocol_rekeyed_read(body, header->body_bytes, &rekeyed, NULL) == CORE_OK, "a bad REKEYED");
    MUST(client, request->type == PROTOCOL_REKEY && request->must == 0, "request %u rekeyed", header->id);
    MUST(client, rekeyed.stream == request->stream && rekeyed.first == request->first,
         "REKEYED for stream %u from message %llu on", rekeyed.stream, (unsigned long long)rekeyed.first);
    struct stream *stream = find_stream(client, rekeyed.stream);
    MUST(client, !chooses_block(stream, request), "a key under which its client chooses an IV, stream %u",
         stream->id);
    stream->knows_key = request->open.key_kind == PROTOCOL_KEY_INLINE;
    MUST(client,
         stream->changes == 0 ||
             (stream->changes == 1 && (int64_t)(stream->given - stream->change[0].first) > 0),
         "a third key of stream %u", stream->id);
    MUST(client, (int64_t)(stream->number - rekeyed.first) <= 0, "REKEYED behind message %llu",
         (unsigned long long)rekeyed.first);
    struct change *change = &stream->change[stream->changes++];
    change->first = rekeyed.first;
    memcpy(change->key, request->key, sizeof change->key);
    request->type = 0;
}

static bool has_messages(const struct stream *stream)
{
    return stream->spec.unit == CORE_UNIT_MESSAGE;
}

/* How many bytes its sender's IV takes. */
static uint32_t brought_bytes(const struct stream *stream, const struct packet *packet)
{
    return stream->spec.iv == CORE_IV_EXPLICIT && packet->first ? CORE_BLOCK_BYTES : 0;
}

static enum protocol_result_status message_status_of(const struct stream *stream, const struct packet *packet)
{
    const uint32_t iv_bytes = brought_bytes(stream, packet);

    if (stream->broken && !packet->first)
        return PROTOCOL_RESULT_BROKEN;
    if (packet->bytes > stream->spec.packet_bytes)
        return PROTOCOL_RESULT_TOO_LONG;
    if (packet->bytes < iv_bytes)
        return PROTOCOL_RESULT_NOT_BLOCKS;
    const uint32_t bytes = packet->bytes - iv_bytes;
    if ((!packet->last || stream->spec.padding == CORE_PADDING_NONE) && (bytes == 0 || bytes % 16 != 0))
        return PROTOCOL_RESULT_NOT_BLOCKS;
    return PROTOCOL_RESULT_OK;
}

static enum protocol_result_status status_of(const struct stream *stream, const struct packet *packet)
{
    if (has_messages(stream))
        return message_status_of(stream, packet);
    if (packet->bytes > stream->spec.packet_bytes)
        return PROTOCOL_RESULT_TOO_LONG;
    if (stream->spec.padding == CORE_PADDING_NONE && (packet->bytes == 0 || packet->bytes % 16 != 0))
        return PROTOCOL_RESULT_NOT_BLOCKS;
    return PROTOCOL_RESULT_OK;
}

/* A message begins: its number counts up, and the key may change. */
static void count_message(struct stream *stream)
{
    if (stream->changes > 0 && stream->number == stream->change[0].first) {
        memcpy(stream->key, stream->change[0].key, sizeof stream->key);
        stream->change[0] = stream->change[1];
        stream->changes--;
    }
    stream->number++;
}

static void begin_code(struct stream *stream, const uint8_t *iv)
{
    uint8_t key[CORE_HMAC_BYTES], number[8];

    if (stream->spec.mac == CORE_MAC_NONE)
        return;
    for (int i = 0; i < 8; i++)
        number[7 - i] = (uint8_t)((stream->number - 1) >> 8 * i);
    core_hmac_derive(stream->key, core_cipher_key_bytes(stream->spec.cipher), "millrace mac", key);
    core_hmac_key_set(&stream->mac_key, key, sizeof key);
    core_hmac_begin(&stream->code, &stream->mac_key);
    core_hmac_add(&stream->code, stream->mac_id, sizeof stream->mac_id);
    core_hmac_add(&stream->code, number, sizeof number);
    core_hmac_add(&stream->code, iv, CORE_BLOCK_BYTES);
}

/* Key and IV of a message; `brought` and `told` are those that its sender or the server gives. */
static void begin_message(struct stream *stream, const uint8_t *brought, const uint8_t *told)
{
    uint8_t number[16] = {0};
    for (int i = 0; i < 8; i++)
        number[15 - i] = (uint8_t)((stream->number - 1) >> 8 * i);
    const uint8_t *const ivs[] = {[CORE_IV_CHAIN] = stream->block,
                                  [CORE_IV_CONSTANT] = stream->iv,
                                  [CORE_IV_COUNTER] = number,
                                  [CORE_IV_EXPLICIT] = brought,
                                  [CORE_IV_RANDOM] = told};
    stream->position = 0;
    begin_code(stream, ivs[stream->spec.iv]);
    TEST_REQUIRE(EVP_CipherInit_ex(stream->chain, NULL, NULL, stream->key, ivs[stream->spec.iv], -1) == 1 &&
                 EVP_CIPHER_CTX_set_padding(stream->chain, 0) == 1);
}

/* What becomes of a packet's bytes, with their padding; returns how many are encrypted, or decrypted. */
static uint32_t encrypt(struct stream *stream, uint8_t *bytes, uint32_t count)
{
    const uint32_t cycle = stream->spec.crypt_blocks + stream->spec.skip_blocks;
    uint32_t encrypted = 0;
    int made = 0;

    for (uint32_t at = 0; at + CORE_BLOCK_BYTES <= count; at += CORE_BLOCK_BYTES) {
        if (cycle > 0 && stream->position++ % cycle >= stream->spec.crypt_blocks)
            continue;
        uint8_t block[CORE_BLOCK_BYTES];
        TEST_REQUIRE(EVP_CipherUpdate(stream->chain, block, &made, bytes + at, CORE_BLOCK_BYTES) == 1 &&
                     made == CORE_BLOCK_BYTES);
        memcpy(stream->block, stream->spec.direction == CORE_DIRECTION_ENCRYPT ? block : bytes + at,
               CORE_BLOCK_BYTES);
        memcpy(bytes + at, block, CORE_BLOCK_BYTES);
        encrypted += CORE_BLOCK_BYTES;
    }
    return encrypted;
}

/* The code behind what ends a message. */
static void check_code(struct client *client, struct stream *stream, const uint8_t *cipher, uint32_t bytes,
                       uint32_t tag_bytes)
{
    uint8_t tag[CORE_HMAC_BYTES];

    if (stream->spec.mac == CORE_MAC_NONE)
        return;
    core_hmac_add(&stream->code, cipher, bytes);
    if (tag_bytes == 0)
        return;
    core_hmac_end(&stream->code, &stream->mac_key, tag);
    MUST(client, memcmp(cipher + bytes, tag, tag_bytes) == 0, "stream %u, packet %u: a wrong code",
         stream->id, stream->done);
}

/* And counts what was encrypted of it. */
static void check_cipher(struct client *client, struct stream *stream, const struct packet *packet,
                         const uint8_t *cipher, uint32_t cipher_bytes)
{
    uint8_t expected[FRAME_BYTES];
    const uint32_t skipped = brought_bytes(stream, packet), plain_bytes = packet->bytes - skipped;
    const uint32_t told = packet->first && stream->spec.iv == CORE_IV_RANDOM ? CORE_BLOCK_BYTES : 0;
    const bool pads = stream->spec.padding == CORE_PADDING_PKCS7 && (packet->last || !has_messages(stream));
    const uint32_t padding = pads ? 16 - plain_bytes % 16 : 0, bytes = plain_bytes + padding;

    const uint32_t tag_bytes = packet->last ? core_stream_tag_bytes(&stream->spec) : 0;

    model_fill_packet(expected, packet->bytes, packet->seed);
    MUST(client, cipher_bytes == told + bytes + tag_bytes, "stream %u, packet %u: %u bytes", stream->id,
         stream->done, cipher_bytes);
    if (packet->first)
        begin_message(stream, expected, cipher);
    memset(expected + packet->bytes, (int)padding, padding);
    stream->counts.bytes += encrypt(stream, expected + skipped, bytes);
    MUST(client, memcmp(cipher + told, expected + skipped, bytes) == 0, "stream %u, packet %u: wrong bytes",
         stream->id, stream->done);
    check_code(client, stream, cipher + told, bytes, tag_bytes);
    stream->counts.packets++;
}

/* A card was lost since the stream was asked for. */
static bool saw_loss(const struct stream *stream)
{
    return stream->losses.all != test_virtual_gpu_losses().all;
}

/* What the loss of any one card does not end. */
static bool is_promised(const struct stream *stream)
{
    return !saw_loss(stream) ||
           (stream->spec.guaranteed && stream->losses.together == test_virtual_gpu_losses().together);
}

static void check_time(const struct client *client, struct stream *stream, const struct packet *packet,
                       const struct protocol_result *result)
{
    const bool met = result->flags & PROTOCOL_RESULT_MET, reader = result->flags & PROTOCOL_RESULT_READER;
    const core_ns true_ns = test_virtual_now_ns() - packet->eligible_ns;

    stream->counts.met += met;
    stream->counts.missed += !met;
    MUST(client, met || !reader, "flag 2 without flag 1");
    MUST(client, saw_loss(stream) || !(result->flags & PROTOCOL_RESULT_FAULT),
         "flag 8, and no card was lost");
    if ((result->flags & PROTOCOL_RESULT_FAULT) && stream->fault_ns == 0)
        stream->fault_ns = test_virtual_now_ns();
    MUST(client,
         stream->fault_ns == 0 || test_virtual_now_ns() < stream->fault_ns + CORE_NS_PER_MS ||
             stream->noticed || stream->asked_to_close || client->held_up || client->drained,
         "stream %u goes round a lost card, and there was no NOTICE", stream->id);
    if (stream->modified)
        return; /* when the new contract came into force is not known */
    MUST(client, reader || met == (result->latency_ns <= stream->spec.latency_ns),
         "latency of %lld ns, and met is %d", (long long)result->latency_ns, met);
    MUST(client, client->held_up || result->waited_us == (packet->eligible_ns - packet->arrival_ns) / 1000,
         "stream %u, packet %u: waited for %u us instead of %lld us", stream->id, stream->done,
         result->waited_us, (long long)(packet->eligible_ns - packet->arrival_ns) / 1000);
    MUST(client, client->held_up || true_ns >= -PERFMODEL_CPU_EARLY_NS,
         "stream %u, packet %u: its result is there %lld ns before its time", stream->id, stream->done,
         (long long)-true_ns);
    MUST(client, client->held_up || result->latency_ns >= true_ns,
         "stream %u, packet %u: latency of %lld ns, in truth %lld ns", stream->id, stream->done,
         (long long)result->latency_ns, (long long)true_ns);
    MUST(client, met || client->held_up || client->workers_late || !is_promised(stream),
         "stream %u, packet %u: latency of %lld ns, and %lld ns were promised", stream->id, stream->done,
         (long long)result->latency_ns, (long long)stream->spec.latency_ns);
}

static void on_result(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct stream *stream = find_stream(client, header->id);
    const struct packet *packet = &stream->packets[stream->done];
    struct protocol_result result;

    MUST(client, protocol_result_read(client->version, body, header->body_bytes, &result, NULL) == CORE_OK,
         "a bad RESULT");
    MUST(client, header->sequence == stream->done && stream->done < stream->sent,
         "stream %u: result %u instead of %u", stream->id, header->sequence, stream->done);
    if (packet->first)
        count_message(stream);
    MUST(client, result.status == status_of(stream, packet), "status %d instead of %d", result.status,
         status_of(stream, packet));
    stream->broken = result.status != PROTOCOL_RESULT_OK && !packet->last;
    if (result.status == PROTOCOL_RESULT_OK) {
        const bool has_iv = result.flags & PROTOCOL_RESULT_HAS_IV;
        MUST(client, has_iv == (packet->first && stream->spec.iv == CORE_IV_RANDOM), "flag 16 is %d", has_iv);
        check_cipher(client, stream, packet, body + 16, header->body_bytes - 16);
        check_time(client, stream, packet, &result);
    } else
        MUST(client,
             header->body_bytes == 16 && result.flags == 0 && result.latency_ns == 0 && result.waited_us == 0,
             "figures of a packet that was not encrypted");
    stream->done++;
}

static void on_closed(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct stream *stream = find_stream(client, header->id);
    struct protocol_closed closed;
    MUST(client, protocol_closed_read(body, header->body_bytes, &closed, NULL) == CORE_OK, "a bad CLOSED");
    MUST(client,
         closed.reason == PROTOCOL_CLOSE_ASKED ? stream->asked_to_close
                                               : closed.reason == PROTOCOL_CLOSE_DRAINED && client->drained,
         "closed unasked, reason %d", closed.reason);
    MUST(client,
         stream->done == stream->next || (client->drained && stream->done == stream->sent) ||
             (client->drained && client->held_up),
         "stream %u closed before result %u", stream->id, stream->done);
    MUST(client,
         closed.packets == stream->counts.packets && closed.bytes == stream->counts.bytes &&
             closed.met == stream->counts.met && closed.missed == stream->counts.missed,
         "CLOSED counts %llu packets, %llu bytes, %llu met, %llu missed; %llu, %llu, %llu, %llu came",
         (unsigned long long)closed.packets, (unsigned long long)closed.bytes, (unsigned long long)closed.met,
         (unsigned long long)closed.missed, (unsigned long long)stream->counts.packets,
         (unsigned long long)stream->counts.bytes, (unsigned long long)stream->counts.met,
         (unsigned long long)stream->counts.missed);
    stream->open = false;
}

static void on_note(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    const struct note note = client->notes[client->note_first];
    MUST(client, client->note_count > 0 && note.type == header->type && note.id == header->id,
         "frame of type %u and id %u", header->type, header->id);
    if (note.type == PROTOCOL_PONG) {
        MUST(client, header->body_bytes == note.bytes, "a PONG of another length");
        for (uint32_t i = 0; i < note.bytes; i++)
            MUST(client, body[i] == note.fill, "a PONG of other bytes");
    }
    client->note_first = (client->note_first + 1) % NOTES;
    client->note_count--;
}

static void on_notice(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct stream *stream = find_stream(client, header->id);
    struct protocol_notice notice;
    MUST(client, client->version >= 2, "a NOTICE in version 1");
    MUST(client, protocol_notice_read(body, header->body_bytes, &notice, NULL) == CORE_OK, "a bad NOTICE");
    MUST(client, (notice.bound_ns == 0) == (notice.kind == PROTOCOL_NOTICE_DEGRADED),
         "NOTICE %d with a bound of %lld ns", notice.kind, (long long)notice.bound_ns);
    if (notice.kind == PROTOCOL_NOTICE_DEGRADED)
        MUST(client, !is_promised(stream), "stream %u is degraded", stream->id);
    else
        MUST(client, stream->modified || notice.bound_ns <= stream->spec.latency_ns,
             "NOTICE %d with a bound above the contract", notice.kind);
    MUST(client, stream->degraded || notice.kind != PROTOCOL_NOTICE_RESTORED, "restored, and not degraded");
    stream->degraded = notice.kind == PROTOCOL_NOTICE_DEGRADED;
    stream->noticed = true;
}

static void on_error(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct core_error error;
    enum protocol_error code;
    char text[512];
    bool fatal;
    MUST(client,
         protocol_error_read(body, header->body_bytes, &code, &fatal, text, sizeof text, &error) == CORE_OK,
         "a bad ERROR");
    MUST(client, fatal == (code != PROTOCOL_ERROR_STREAM), "ERROR %d with fatal %d", code, fatal);
    if (!fatal) {
        on_note(client, header, body);
        return;
    }
    MUST(client, client->fatal == code || (client->drained && code == PROTOCOL_ERROR_SHUTDOWN),
         "ERROR %d instead of %d: %s", code, client->fatal, text);
    client->drained &= code == PROTOCOL_ERROR_SHUTDOWN; /* else it has ended before */
    client->ended = true;
}

static void on_welcome(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    struct protocol_welcome welcome;
    MUST(client, client->greets && !client->welcomed, "a WELCOME unasked");
    MUST(client, protocol_welcome_read(body, header->body_bytes, &welcome, NULL) == CORE_OK, "a bad WELCOME");
    MUST(client, welcome.version == client->version && welcome.packet_bytes_max == PACKET_BYTES,
         "WELCOME to version %u", welcome.version);
    client->welcomed = true;
    client->may_share = (welcome.flags & PROTOCOL_HAS_LANES) != 0;
    MUST(client, client->may_share == (client->version >= 3), "lanes in version %u", client->version);
}

static void on_laned(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    struct core_error error;
    uint32_t ring_bytes;
    MUST(client, client->asks_lane, "a LANED unasked");
    MUST(client,
         protocol_laned_read(body, header->body_bytes, &ring_bytes, text, sizeof text, &error) == CORE_OK,
         "a bad LANED");
    MUST(client, ring_bytes == client->lane.ring_bytes, "no lane: %s", text);
    client->asks_lane = false;
    client->shares = true;
}

void model_on_frame(struct client *client, const struct protocol_header *header, const uint8_t *body)
{
    static void (*const handlers[])(struct client *, const struct protocol_header *, const uint8_t *) = {
        [PROTOCOL_WELCOME] = on_welcome,   [PROTOCOL_OPENED] = on_opened, [PROTOCOL_REFUSED] = on_refused,
        [PROTOCOL_RESULT] = on_result,     [PROTOCOL_CLOSED] = on_closed, [PROTOCOL_ERROR] = on_error,
        [PROTOCOL_MODIFIED] = on_modified, [PROTOCOL_PONG] = on_note,     [PROTOCOL_NOTICE] = on_notice,
        [PROTOCOL_REKEYED] = on_rekeyed,   [PROTOCOL_LANED] = on_laned};
    MUST(client, !client->ended, "a frame of type %u after a fatal ERROR", header->type);
    MUST(client, header->type < sizeof handlers / sizeof *handlers && handlers[header->type] != NULL,
         "a frame of type %u", header->type);
    handlers[header->type](client, header, body);
}
