#include "tests/support/server_model_client.h"

#include "tests/support/require.h"
#include "tests/support/virtual_threads.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool talks_messages;

void model_talk_messages(bool talk)
{
    talks_messages = talk;
}

/* The packets that the server can have whole by now have arrived. */
static void stamp(struct client *client)
{
    for (uint32_t i = 0; i < client->stream_count; i++) {
        struct stream *stream = &client->streams[i];
        for (; stream->sent < stream->next; stream->sent++) {
            struct packet *packet = &stream->packets[stream->sent];
            const core_ns now_ns = test_virtual_now_ns();
            if (packet->end > client->sent)
                break;
            client->held_up |= stream->sent - stream->done >= (stream->changing > 0 ? 1 : stream->room);
            if (stream->sent == 0)
                stream->tat_ns = now_ns;
            packet->arrival_ns = now_ns;
            packet->eligible_ns = core_time_max(now_ns, stream->tat_ns - (stream->spec.burst_packets - 1) *
                                                                             stream->spec.interval_ns);
            stream->tat_ns = core_time_max(stream->tat_ns, now_ns) + stream->spec.interval_ns;
        }
    }
}

static ssize_t put(struct client *client, size_t bytes)
{
    const struct iovec all = {.iov_base = client->output, .iov_len = bytes};
    size_t taken;
    const core_status status = core_lane_write(&client->lane, &all, 1, &taken);
    MUST(client, status != CORE_INVALID, "a lane's counts can not be");
    errno = status == CORE_CLOSED ? EPIPE : EAGAIN;
    return taken > 0 && status != CORE_CLOSED ? (ssize_t)taken : -1;
}

void model_push(struct client *client, size_t most)
{
    const size_t bytes = most < client->output_bytes ? most : client->output_bytes;
    if (client->descriptor < 0 || bytes == 0)
        return;
    const ssize_t sent = client->shares
                             ? put(client, bytes)
                             : send(client->descriptor, client->output, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    const size_t gone = sent > 0 ? (size_t)sent : errno == EAGAIN ? 0 : client->output_bytes;
    memmove(client->output, client->output + gone, client->output_bytes - gone);
    client->output_bytes -= gone;
    client->sent += gone;
    stamp(client);
}

bool model_has_room(const struct client *client)
{
    return client->descriptor >= 0 && !client->half_closed && !client->asks_lane && client->fatal == 0 &&
           !client->ended && client->output_bytes + FRAME_BYTES <= sizeof client->output;
}

void model_give(struct client *client, const void *frame, size_t bytes)
{
    memcpy(client->output + client->output_bytes, frame, bytes);
    client->output_bytes += bytes;
    client->given += bytes;
}

static void expect_note(struct client *client, struct note note)
{
    client->notes[(client->note_first + client->note_count++) % NOTES] = note;
}

/* Only after a HELLO, else what comes is ERROR 4. */
static enum protocol_error rule(const struct client *client, enum protocol_error broken)
{
    return client->greets ? broken : PROTOCOL_ERROR_STATE;
}

void model_give_hello(struct client *client, struct tape *tape, bool right)
{
    static const uint16_t good[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 9}, {2, 300}};
    static const uint16_t bad[][2] = {{PROTOCOL_VERSION + 1, 9}, {2, 1}, {0, 0}, {300, 301}};
    const uint32_t which = take(tape);
    const uint16_t *versions = right ? good[which % 5] : bad[which % 4];
    uint8_t frame[FRAME_BYTES];
    const uint32_t bytes = protocol_hello_write(frame, versions[0], versions[1]);

    if (client->greets) /* a second one */
        client->fatal = PROTOCOL_ERROR_STATE;
    else if (!right && which % 8 >= 4) {
        frame[PROTOCOL_HEADER_BYTES + which % 4] ^= 1;
        client->fatal = PROTOCOL_ERROR_MALFORMED;
    } else if (!right)
        client->fatal = versions[0] > versions[1] ? PROTOCOL_ERROR_MALFORMED : PROTOCOL_ERROR_VERSION;
    else
        client->version = versions[1] < PROTOCOL_VERSION ? versions[1] : PROTOCOL_VERSION;
    client->greets |= client->fatal == 0;
    model_give(client, frame, bytes);
}

struct request *model_new_request(struct client *client, uint8_t type)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (client->requests[i].type == 0) {
            client->requests[i] = (struct request){
                .type = type, .id = 1000 + client->requests_made++, .losses = test_virtual_gpu_losses()};
            return &client->requests[i];
        }
    return NULL;
}

/* Each byte of key n is n n, for the cipher of that number. */
#define NAMED_1 "11111111111111111111111111111111"
#define NAMED_2 "222222222222222222222222222222222222222222222222"
#define NAMED_3 "3333333333333333333333333333333333333333333333333333333333333333"
const char model_keyring[] = "key-1 aes-128-cbc " NAMED_1 " client-iv\nkey-2 aes-192-cbc " NAMED_2
                             "\nkey-3 aes-256-cbc " NAMED_3 " client-iv\n";

/* The key of that number, or the name of none: 0. */
static void name_key(struct request *request, uint32_t number)
{
    static const char *const names[] = {"key-0", "key-1", "key-2", "key-3"};
    request->open.key_kind = PROTOCOL_KEY_NAMED;
    request->open.key = (const uint8_t *)names[number];
    request->open.key_bytes = (uint32_t)strlen(names[number]);
    memset(request->key, (int)(number * 0x11), sizeof request->key);
}

/* Every fourth can be kept through the loss of a card. */
static core_ns some_latency_ns(struct tape *tape)
{
    const uint32_t which = take(tape);
    return (core_ns)(1 + which) * 100000 * (which % 4 == 3 ? 16 : 1);
}

/* What a client chooses IVs by: they must be allowed. */
static bool chooses_ivs(const struct protocol_open *open)
{
    return open->has_iv || (open->spec.unit == CORE_UNIT_MESSAGE && open->spec.iv >= CORE_IV_CONSTANT &&
                            open->spec.iv <= CORE_IV_EXPLICIT);
}

/* Messages, of all kinds. */
static void fill_unit(struct protocol_open *open, struct tape *tape)
{
    const uint32_t what = take(tape);
    const bool decrypts = what >= 192;

    if (what % 4 == 0) {
        if (decrypts && open->spec.padding == CORE_PADDING_NONE)
            open->spec.direction = CORE_DIRECTION_DECRYPT;
        return;
    }
    open->spec.unit = CORE_UNIT_MESSAGE;
    open->spec.iv = (enum core_iv)(what / 4 % 5);
    open->spec.message_packets = what >> 5 & 1;
    open->spec.padding = (enum core_padding)(what / 20 % 3);
    open->has_iv = open->spec.iv == CORE_IV_CONSTANT || (open->has_iv && open->spec.iv == CORE_IV_CHAIN);
    if (open->spec.padding != CORE_PADDING_PKCS7 && what % 8 > 3) {
        open->spec.crypt_blocks = (uint8_t)(1 + what % 3);
        open->spec.skip_blocks = (uint8_t)(1 + what % 11);
    }
    if (decrypts && open->spec.padding != CORE_PADDING_PKCS7 && open->spec.iv != CORE_IV_RANDOM)
        open->spec.direction = CORE_DIRECTION_DECRYPT;
    if (open->spec.iv == CORE_IV_EXPLICIT)
        open->spec.packet_bytes += CORE_BLOCK_BYTES;
    if (open->spec.iv != CORE_IV_CHAIN && open->spec.direction == CORE_DIRECTION_ENCRYPT && what % 3 == 1)
        open->spec.mac = CORE_MAC_HMAC_SHA_256_128;
    memset(open->mac_id, (int)what, sizeof open->mac_id);
    if (open->spec.iv == CORE_IV_COUNTER || open->spec.mac != CORE_MAC_NONE)
        open->spec.first_unit = what < 128 ? UINT64_MAX - what % 3 : what; /* through 0 as well */
}

/* Messages that do not go together with what else is asked for. */
static void spoil_unit(struct protocol_open *open, uint32_t how)
{
    struct core_stream_spec *spec = &open->spec;

    if (how % 16 == 15)
        spec->records = (enum core_records)2;
    else if (how % 16 == 14)
        spec->message_packets = spec->unit == CORE_UNIT_MESSAGE ? 2 : 1;
    else if (how % 16 == 7 && spec->padding == CORE_PADDING_PKCS7)
        spec->direction = CORE_DIRECTION_DECRYPT;
    else if (spec->unit == CORE_UNIT_STREAM && how % 8 == 0)
        spec->crypt_blocks = spec->skip_blocks = 1;
    else if (spec->iv == CORE_IV_CHAIN && how % 8 == 1)
        spec->mac = CORE_MAC_HMAC_SHA_256_128;
    else if (spec->unit == CORE_UNIT_STREAM)
        spec->iv = (enum core_iv)(1 + how % 4);
    else if (spec->crypt_blocks > 0 && how % 2 == 0)
        spec->skip_blocks = how % 4 == 0 ? 16 : 0;
    else if (spec->iv == CORE_IV_CHAIN)
        spec->first_unit = 1;
    else if (spec->iv == CORE_IV_EXPLICIT && how % 2 == 0)
        spec->packet_bytes = CORE_BLOCK_BYTES;
    else
        open->has_iv = !open->has_iv;
}

static void fill_open(struct request *request, struct tape *tape, bool right, uint16_t version)
{
    struct protocol_open *open = &request->open;
    const uint32_t how = take(tape), wrong = take(tape);

    open->spec =
        (struct core_stream_spec){.packet_bytes = 16 * (1 + take(tape) % 64),
                                  .burst_packets = 1 + how % 4,
                                  .interval_ns = (core_ns)(1 + take(tape)) * 50000,
                                  .latency_ns = some_latency_ns(tape),
                                  .guaranteed = version >= 2 && how >> 7,
                                  .cipher = CORE_CIPHER_AES_128_CBC + (how >> 2) % 3,
                                  .padding = (how >> 5) & 1 ? CORE_PADDING_PKCS7 : CORE_PADDING_NONE};
    open->key_kind = PROTOCOL_KEY_INLINE;
    open->key_bytes = core_cipher_key_bytes(open->spec.cipher);
    memset(request->key, (int)how, sizeof request->key);
    open->key = request->key;
    open->has_iv = (how >> 6) & 1;
    memset(open->iv, (int)wrong, sizeof open->iv);
    const bool may_have_messages = talks_messages && version >= 3;
    if (may_have_messages)
        fill_unit(open, tape);
    if (wrong % 4 == 0)
        name_key(request, open->spec.cipher);
    const bool forbids_iv =
        open->key_kind == PROTOCOL_KEY_NAMED && open->spec.cipher == CORE_CIPHER_AES_192_CBC;
    if (right) {
        request->must = forbids_iv && chooses_ivs(open) ? PROTOCOL_REFUSED_IV : 0;
        return;
    }
    if (forbids_iv && chooses_ivs(open)) { /* it breaks one rule */
        open->has_iv = false;
        open->spec.unit = CORE_UNIT_STREAM;
        open->spec.iv = CORE_IV_CHAIN;
        open->spec.mac = CORE_MAC_NONE;
        open->spec.first_unit = 0;
        open->spec.message_packets = 0;
        open->spec.crypt_blocks = open->spec.skip_blocks = 0;
        open->spec.direction = CORE_DIRECTION_ENCRYPT;
        open->spec.padding =
            open->spec.padding == CORE_PADDING_CLEAR ? CORE_PADDING_PKCS7 : open->spec.padding;
    }
    request->must = PROTOCOL_REFUSED_SPEC;
    if (may_have_messages && wrong % 2 == 1)
        spoil_unit(open, how);
    else if (wrong % 5 == 0)
        open->spec.packet_bytes = 0;
    else if (wrong % 5 == 1)
        open->spec.burst_packets = 70000;
    else if (wrong % 5 == 2)
        open->spec.interval_ns = 999;
    else if (wrong % 5 == 3)
        open->spec.latency_ns = 9999;
    else {
        request->must = PROTOCOL_REFUSED_KEY;
        if (open->key_kind == PROTOCOL_KEY_NAMED)
            name_key(request, wrong % 8 == 0 ? 0 : open->spec.cipher % 3 + 1);
        else
            open->key_bytes = open->key_bytes == 16 ? 24 : 16;
    }
}

void model_give_open(struct client *client, struct tape *tape, bool right, uint8_t type)
{
    uint8_t frame[FRAME_BYTES];
    struct request *request;
    if ((type == PROTOCOL_OPEN && client->opens == STREAMS) ||
        (request = model_new_request(client, type)) == NULL)
        return;
    client->opens += type == PROTOCOL_OPEN;
    fill_open(request, tape, right, client->version);
    model_give(client, frame, protocol_open_write(client->version, frame, type, request->id, &request->open));
    request->end = client->given;
    if (!client->greets)
        client->fatal = PROTOCOL_ERROR_STATE;
}

static struct stream *some_stream(struct client *client, struct tape *tape)
{
    const uint32_t which = take(tape);
    for (uint32_t i = 0; i < client->stream_count; i++) {
        struct stream *stream = &client->streams[(which + i) % client->stream_count];
        if (stream->open && !stream->asked_to_close)
            return stream;
    }
    return NULL;
}

static void write_flags(uint8_t *frame, uint8_t type, uint8_t flags, uint32_t id, uint32_t sequence,
                        uint32_t bytes)
{
    const struct protocol_header header = {
        .body_bytes = bytes, .type = type, .flags = flags, .id = id, .sequence = sequence};
    protocol_header_write(frame, &header);
}

static void write_header(uint8_t *frame, uint8_t type, uint32_t id, uint32_t sequence, uint32_t bytes)
{
    write_flags(frame, type, 0, id, sequence, bytes);
}

void model_fill_packet(uint8_t *bytes, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(seed + i * 31 + (i >> 8));
}

static bool has_messages(const struct stream *stream)
{
    return stream->spec.unit == CORE_UNIT_MESSAGE;
}

/* May it be the last of its message, or must it? */
static bool is_last(const struct stream *stream, bool wanted)
{
    return wanted || stream->spec.message_packets == 1;
}

/* What the next DATA must have. */
static uint8_t right_flags(const struct stream *stream, bool last)
{
    if (!has_messages(stream))
        return 0;
    return (uint8_t)((stream->within ? 0 : PROTOCOL_DATA_FIRST) | (last ? PROTOCOL_DATA_LAST : 0));
}

static void give_data(struct client *client, struct stream *stream, uint32_t bytes, uint32_t seed, bool last)
{
    uint8_t frame[FRAME_BYTES];
    struct packet *packet = &stream->packets[stream->next];
    const uint8_t flags = right_flags(stream, last);

    if (stream->next == PACKETS)
        return;
    write_flags(frame, PROTOCOL_DATA, flags, stream->id, stream->next, bytes);
    model_fill_packet(frame + PROTOCOL_HEADER_BYTES, bytes, seed);
    model_give(client, frame, PROTOCOL_HEADER_BYTES + bytes);
    *packet = (struct packet){.bytes = bytes,
                              .seed = seed,
                              .end = client->given,
                              .first = (flags & PROTOCOL_DATA_FIRST) != 0,
                              .last = (flags & PROTOCOL_DATA_LAST) != 0};
    stream->given += packet->first;
    stream->within = has_messages(stream) && !last;
    stream->next++;
}

/* A length that the packet may have, from any number. */
static uint32_t right_bytes(const struct stream *stream, uint32_t number, bool last)
{
    const bool brings_iv = stream->spec.iv == CORE_IV_EXPLICIT && !stream->within;
    const bool whole = stream->spec.padding == CORE_PADDING_NONE || (has_messages(stream) && !last);
    uint32_t bytes = 1 + number * 37 % stream->spec.packet_bytes;

    if (!whole && stream->spec.padding == CORE_PADDING_CLEAR && number % 4 == 0)
        bytes %= CORE_BLOCK_BYTES; /* all of it passes as it is */
    if (brings_iv && bytes < 2 * CORE_BLOCK_BYTES)
        bytes = 2 * CORE_BLOCK_BYTES - (whole ? 0 : bytes % CORE_BLOCK_BYTES);
    return whole ? (bytes + 15) / 16 * 16 : bytes;
}

void model_give_right_data(struct client *client, struct tape *tape)
{
    struct stream *stream = some_stream(client, tape);
    const uint32_t length = take(tape), how = take(tape), burst = how % 8;
    if (stream == NULL)
        return;
    for (uint32_t i = 0; i <= burst && model_has_room(client); i++) {
        const bool last = is_last(stream, how >> 3 >> i % 5 & 1);
        give_data(client, stream, right_bytes(stream, has_messages(stream) ? length + i : length, last),
                  length + i, last);
    }
}

void model_give_unknown(struct client *client, struct tape *tape, uint8_t type)
{
    const uint32_t id = 0xffff0000 + take(tape), bytes = type == PROTOCOL_DATA ? take(tape) : 0;
    uint8_t frame[FRAME_BYTES];

    if (client->note_count == NOTES)
        return;
    write_header(frame, type, id, 0, bytes);
    memset(frame + PROTOCOL_HEADER_BYTES, 0, bytes);
    model_give(client, frame, PROTOCOL_HEADER_BYTES + bytes);
    if (client->greets)
        expect_note(client, (struct note){.type = PROTOCOL_ERROR, .id = id});
    else
        client->fatal = PROTOCOL_ERROR_STATE;
}

void model_give_wrong_data(struct client *client, struct tape *tape)
{
    const uint32_t what = take(tape), how = talks_messages ? what % 7 : what % 5;
    struct stream *stream = some_stream(client, tape);
    const bool last = stream != NULL && is_last(stream, what & 1);
    uint8_t frame[FRAME_BYTES];

    if (stream == NULL || how == 0)
        model_give_unknown(client, tape, PROTOCOL_DATA);
    else if (how == 1) /* longer than its stream's */
        give_data(client, stream, stream->spec.packet_bytes + 1 + take(tape), how, last);
    else if (how == 2) /* empty */
        give_data(client, stream, 0, how, last);
    else if (how == 3 || how == 5)
        give_data(client, stream, 1 + take(tape) % stream->spec.packet_bytes, how, last);
    else if (how == 6) { /* FIRST within a message, or none where one would begin */
        write_flags(frame, PROTOCOL_DATA, right_flags(stream, last) ^ PROTOCOL_DATA_FIRST, stream->id,
                    stream->next, 16);
        model_give(client, frame, PROTOCOL_HEADER_BYTES);
        client->fatal = PROTOCOL_ERROR_MALFORMED;
    } else {
        const bool too_long = take(tape) & 1;
        write_header(frame, PROTOCOL_DATA, stream->id, stream->next + !too_long,
                     too_long ? PACKET_BYTES + 1 : 16);
        model_give(client, frame, PROTOCOL_HEADER_BYTES);
        client->fatal = too_long ? PROTOCOL_ERROR_OVERSIZED : PROTOCOL_ERROR_SEQUENCE;
    }
}

void model_give_close(struct client *client, struct tape *tape)
{
    struct stream *stream = some_stream(client, tape);
    uint8_t frame[FRAME_BYTES];

    if (stream == NULL) {
        model_give_unknown(client, tape, PROTOCOL_CLOSE);
        return;
    }
    model_give(client, frame, protocol_close_write(frame, stream->id));
    stream->asked_to_close = true;
}

static bool may_ask_for_lane(const struct client *client)
{
    bool asks = client->opens > 0 || client->output_bytes > 0 || !client->may_share;
    for (uint32_t i = 0; i < REQUESTS; i++)
        asks |= client->requests[i].type != 0;
    return !asks;
}

static void ask_for_lane(struct client *client)
{
    struct core_error error;
    const core_status status =
        core_lane_ask(&client->lane, CORE_LANE_RING_BYTES_MIN, client->descriptor, &error);
    TEST_REQUIRE(status == CORE_OK || status == CORE_AGAIN);
    client->asks_lane = status == CORE_OK;
    client->may_share = false;
}

void model_give_ping(struct client *client, struct tape *tape)
{
    if (may_ask_for_lane(client)) {
        ask_for_lane(client);
        return;
    }
    const struct note note = {.type = PROTOCOL_PONG,
                              .id = take(tape) * 16777259,
                              .bytes = (uint8_t)(take(tape) % 65),
                              .fill = (uint8_t)take(tape)};
    uint8_t frame[FRAME_BYTES], body[64];

    if (client->note_count == NOTES)
        return;
    memset(body, note.fill, sizeof body);
    model_give(client, frame, protocol_ping_write(frame, PROTOCOL_PING, note.id, body, note.bytes));
    if (client->greets)
        expect_note(client, note);
    else
        client->fatal = PROTOCOL_ERROR_STATE;
}

/* A frame that breaks a rule by its header alone. */
void model_give_malformed(struct client *client, struct tape *tape)
{
    uint8_t frame[FRAME_BYTES];
    const uint32_t how = take(tape) % 5;

    write_header(frame, PROTOCOL_PING, 7, 0, 0);
    if (how == 0)
        frame[5] = 1;
    else if (how == 1)
        frame[6] = 1;
    else if (how == 2)
        frame[12] = 1;
    else if (how == 3)
        frame[4] = (uint8_t)(take(tape) & 1 ? 0 : PROTOCOL_WELCOME);
    else
        frame[0] = 65;
    model_give(client, frame, PROTOCOL_HEADER_BYTES);
    client->fatal = rule(client, how < 3    ? PROTOCOL_ERROR_MALFORMED
                                 : how == 3 ? PROTOCOL_ERROR_UNKNOWN_TYPE
                                            : PROTOCOL_ERROR_OVERSIZED);
}

void model_give_modify(struct client *client, struct tape *tape)
{
    struct stream *stream = some_stream(client, tape);
    struct protocol_modify modify = {.burst_packets = 1 + take(tape) % 4,
                                     .interval_ns = (core_ns)(1 + take(tape)) * 50000,
                                     .latency_ns = some_latency_ns(tape)};
    uint8_t frame[FRAME_BYTES];
    struct request *request;

    if (!client->welcomed || (request = model_new_request(client, PROTOCOL_MODIFY)) == NULL)
        return;
    modify.stream = stream == NULL ? 0xffffffff : stream->id;
    if (client->version < 2)
        client->fatal = PROTOCOL_ERROR_UNKNOWN_TYPE;
    else if (stream == NULL)
        request->must = PROTOCOL_REFUSED_STREAM;
    else {
        stream->modified = true;
        stream->changing++;
    }
    model_give(client, frame, protocol_modify_write(frame, request->id, &modify));
    request->end = client->given;
    request->stream = modify.stream;
    request->latency_ns = modify.latency_ns;
}

/* The new key, or a wrong one. */
static void choose_key(struct request *request, const struct stream *stream, uint32_t how)
{
    const enum core_cipher cipher = stream->spec.cipher;
    const struct protocol_open ivs = {.spec = stream->spec, .has_iv = false};
    const bool right = how % 8 != 0;

    memset(request->key, (int)how, sizeof request->key);
    request->open =
        (struct protocol_open){.key_kind = PROTOCOL_KEY_INLINE,
                               .key = request->key,
                               .key_bytes = core_cipher_key_bytes(right ? cipher : cipher % 3 + 1)};
    if (how & 64)
        name_key(request, right ? cipher : how & 128 ? 0 : cipher % 3 + 1);
    if (!right)
        request->must = PROTOCOL_REFUSED_KEY;
    else if ((how & 64) && cipher == CORE_CIPHER_AES_192_CBC && chooses_ivs(&ivs))
        request->must = PROTOCOL_REFUSED_IV;
}

void model_give_rekey(struct client *client, struct tape *tape)
{
    struct stream *stream = some_stream(client, tape);
    const uint32_t how = take(tape), when = take(tape) % 4;
    static const struct stream none = {.id = 0xffffffff, .spec = {.cipher = CORE_CIPHER_AES_128_CBC}};
    uint8_t frame[FRAME_BYTES];
    struct request *request;

    if (!client->welcomed || (request = model_new_request(client, PROTOCOL_REKEY)) == NULL)
        return;
    choose_key(request, stream == NULL ? &none : stream, how);
    request->stream = stream == NULL ? none.id : stream->id;
    if (client->version < 3)
        client->fatal = PROTOCOL_ERROR_UNKNOWN_TYPE;
    else if (stream == NULL)
        request->must = PROTOCOL_REFUSED_STREAM;
    else if (!has_messages(stream))
        request->must = PROTOCOL_REFUSED_SPEC;
    else {
        request->first = when == 3 ? stream->given - 1 : stream->given + when;
        request->may_be_early = stream->rekeys++ == 0;
    }
    const struct protocol_rekey rekey = {.stream = request->stream,
                                         .key_kind = request->open.key_kind,
                                         .key = request->open.key,
                                         .key_bytes = request->open.key_bytes,
                                         .first = request->first};
    model_give(client, frame, protocol_rekey_write(frame, request->id, &rekey));
    request->end = client->given;
}
