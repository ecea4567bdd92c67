#include "core/protocol_bytes.h"

#include <assert.h>
#include <inttypes.h>

/* ---- header ---- */

void protocol_header_write(uint8_t *frame, const struct protocol_header *header)
{
    put_u32(frame, header->body_bytes);
    frame[4] = header->type;
    frame[5] = header->flags;
    put_u16(frame + 6, 0);
    put_u32(frame + 8, header->id);
    put_u32(frame + 12, header->sequence);
}

/* Highest type that there is in a version. */
static uint8_t type_last(uint16_t version)
{
    return version < 2 ? PROTOCOL_PONG : version < 3 ? PROTOCOL_NOTICE : PROTOCOL_LANED;
}

core_status protocol_header_read(uint16_t version, const uint8_t *frame, struct protocol_header *header)
{
    header->body_bytes = get_u32(frame);
    header->type = frame[4];
    header->flags = frame[5];
    header->id = get_u32(frame + 8);
    header->sequence = get_u32(frame + 12);
    const bool has_flags = version >= 3 && header->type == PROTOCOL_DATA;
    if (header->flags > (has_flags ? PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST : 0) || get_u16(frame + 6) != 0)
        return CORE_INVALID;
    if (header->type < PROTOCOL_HELLO || header->type > type_last(version))
        return CORE_OK;
    bool has_id = header->type != PROTOCOL_HELLO && header->type != PROTOCOL_WELCOME &&
                  header->type != PROTOCOL_LANE && header->type != PROTOCOL_LANED;
    bool has_sequence = header->type == PROTOCOL_DATA || header->type == PROTOCOL_RESULT;
    bool breach = (!has_id && header->id != 0) || (!has_sequence && header->sequence != 0);
    return breach ? CORE_INVALID : CORE_OK;
}

/* The fixed part of OPEN and QUERY. */
static uint32_t open_bytes(uint16_t version)
{
    return version < 3 ? PROTOCOL_OPEN_BYTES_2 : PROTOCOL_OPEN_BYTES;
}

static uint32_t open_bytes_max(uint16_t version)
{
    const uint32_t mac_bytes = version < 3 ? 0 : CORE_MAC_BYTES;
    return open_bytes(version) + CORE_BLOCK_BYTES + mac_bytes + PROTOCOL_KEY_NAME_MAX;
}

bool protocol_body_range(uint16_t version, uint8_t type, uint32_t packet_bytes_max, uint32_t *minimum,
                         uint32_t *maximum)
{
    *minimum = 0;
    *maximum = 0;
    switch (type) {
    case PROTOCOL_HELLO:
        *minimum = PROTOCOL_HELLO_BYTES;
        *maximum = PROTOCOL_HELLO_BYTES;
        return true;
    case PROTOCOL_OPEN:
    case PROTOCOL_QUERY:
        *minimum = open_bytes(version);
        *maximum = open_bytes_max(version);
        return true;
    case PROTOCOL_DATA:
        *maximum = packet_bytes_max;
        return true;
    case PROTOCOL_CLOSE:
        return true;
    case PROTOCOL_PING:
        *maximum = PROTOCOL_PING_BYTES_MAX;
        return true;
    case PROTOCOL_MODIFY:
        *minimum = PROTOCOL_MODIFY_BYTES;
        *maximum = PROTOCOL_MODIFY_BYTES;
        return type <= type_last(version);
    case PROTOCOL_REKEY:
        *minimum = PROTOCOL_REKEY_BYTES + 1;
        *maximum = PROTOCOL_REKEY_BYTES + PROTOCOL_KEY_NAME_MAX;
        return type <= type_last(version);
    case PROTOCOL_LANE:
        *minimum = PROTOCOL_LANE_BYTES;
        *maximum = PROTOCOL_LANE_BYTES;
        return type <= type_last(version);
    default:
        return false;
    }
}

/* ---- HELLO, WELCOME ---- */

uint32_t protocol_hello_write(uint8_t *frame, uint16_t version_min, uint16_t version_max)
{
    uint8_t *body = begin_frame(frame, PROTOCOL_HELLO, 0, PROTOCOL_HELLO_BYTES);
    put_u32(body, PROTOCOL_MAGIC);
    put_u16(body + 4, version_min);
    put_u16(body + 6, version_max);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_HELLO_BYTES;
}

core_status protocol_hello_read(const uint8_t *body, uint32_t bytes, uint16_t *version_min,
                                uint16_t *version_max, struct core_error *error)
{
    core_status status = check_length("HELLO", bytes, PROTOCOL_HELLO_BYTES, PROTOCOL_HELLO_BYTES, error);
    if (status)
        return status;
    if (get_u32(body) != PROTOCOL_MAGIC)
        return core_error_set(error, CORE_INVALID,
                              "HELLO does not begin with \"MLRC\": the peer speaks another protocol");
    *version_min = get_u16(body + 4);
    *version_max = get_u16(body + 6);
    if (*version_min > *version_max)
        return core_error_set(error, CORE_INVALID, "HELLO names the versions %u to %u, an empty range",
                              *version_min, *version_max);
    return CORE_OK;
}

uint32_t protocol_welcome_write(uint8_t *frame, const struct protocol_welcome *welcome)
{
    uint8_t *body = begin_frame(frame, PROTOCOL_WELCOME, 0, PROTOCOL_WELCOME_BYTES);
    put_u16(body, welcome->version);
    put_u16(body + 2, welcome->flags);
    put_u32(body + 4, welcome->packet_bytes_max);
    put_u32(body + 8, welcome->burst_packets_max);
    put_u32(body + 12, welcome->streams_max);
    put_u64(body + 16, welcome->stream_buffer_bytes_max);
    put_u64(body + 24, welcome->bytes_per_key);
    put_ns(body + 32, welcome->interval_ns_min);
    put_ns(body + 40, welcome->latency_ns_min);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_WELCOME_BYTES;
}

core_status protocol_welcome_read(const uint8_t *body, uint32_t bytes, struct protocol_welcome *welcome,
                                  struct core_error *error)
{
    core_status status =
        check_length("WELCOME", bytes, PROTOCOL_WELCOME_BYTES, PROTOCOL_WELCOME_BYTES, error);
    if (status)
        return status;
    *welcome = (struct protocol_welcome){
        .version = get_u16(body),
        .flags = get_u16(body + 2),
        .packet_bytes_max = get_u32(body + 4),
        .burst_packets_max = get_u32(body + 8),
        .streams_max = get_u32(body + 12),
        .stream_buffer_bytes_max = get_u64(body + 16),
        .bytes_per_key = get_u64(body + 24),
        .interval_ns_min = get_ns(body + 32),
        .latency_ns_min = get_ns(body + 40),
    };
    if ((status = check_value("WELCOME version", welcome->version, 1, UINT16_MAX, error)) ||
        (status = check_value("WELCOME packet_bytes_max", welcome->packet_bytes_max, 1, CORE_PACKET_BYTES_MAX,
                              error)) ||
        (status = check_value("WELCOME burst_packets_max", welcome->burst_packets_max, 1, CORE_BURST_MAX,
                              error)) ||
        (status = check_ns("WELCOME interval_ns", body + 32, error)))
        return status;
    return check_ns("WELCOME latency_ns", body + 40, error);
}

/* ---- OPEN, QUERY and their answers ---- */

#define OPEN_GUARANTEED 1 /* flag of OPEN and QUERY */

static void write_unit(uint8_t at[PROTOCOL_OPEN_BYTES - PROTOCOL_OPEN_BYTES_2],
                       const struct core_stream_spec *spec)
{
    at[0] = (uint8_t)spec->unit;
    at[1] = (uint8_t)spec->iv;
    at[2] = spec->crypt_blocks;
    at[3] = spec->skip_blocks;
    at[4] = (uint8_t)spec->mac;
    at[5] = (uint8_t)spec->direction;
    at[6] = (uint8_t)spec->records;
    at[7] = spec->message_packets;
    put_u64(at + 8, spec->first_unit);
}

uint32_t protocol_open_write(uint16_t version, uint8_t *frame, enum protocol_type type, uint32_t request,
                             const struct protocol_open *open)
{
    assert(type == PROTOCOL_OPEN || type == PROTOCOL_QUERY);
    assert(open->key_bytes <= PROTOCOL_KEY_NAME_MAX);
    uint32_t iv_bytes = open->has_iv ? CORE_BLOCK_BYTES : 0;
    const uint32_t mac_bytes = version >= 3 && open->spec.mac != CORE_MAC_NONE ? CORE_MAC_BYTES : 0;
    const uint32_t fixed_bytes = open_bytes(version);
    uint32_t body_bytes = fixed_bytes + iv_bytes + mac_bytes + open->key_bytes;
    uint8_t *body = begin_frame(frame, type, request, body_bytes);
    put_u32(body, open->spec.packet_bytes);
    put_u32(body + 4, open->spec.burst_packets);
    put_ns(body + 8, open->spec.interval_ns);
    put_ns(body + 16, open->spec.latency_ns);
    body[24] = (uint8_t)open->spec.cipher;
    body[25] = (uint8_t)open->spec.padding;
    body[26] = (uint8_t)open->key_kind;
    body[27] = open->has_iv ? 1 : 0;
    put_u16(body + 28, (uint16_t)open->key_bytes);
    put_u16(body + 30, open->spec.guaranteed ? OPEN_GUARANTEED : 0);
    if (version >= 3)
        write_unit(body + PROTOCOL_OPEN_BYTES_2, &open->spec);
    memcpy(body + fixed_bytes, open->iv, iv_bytes);
    memcpy(body + fixed_bytes + iv_bytes, open->mac_id, mac_bytes);
    if (open->key_bytes > 0)
        memcpy(body + fixed_bytes + iv_bytes + mac_bytes, open->key, open->key_bytes);
    return PROTOCOL_HEADER_BYTES + body_bytes;
}

core_status protocol_key_check(enum protocol_key_kind kind, const uint8_t *key, uint32_t bytes,
                               struct core_error *error)
{
    switch (kind) {
    case PROTOCOL_KEY_NONE:
        return check_zero("key_bytes without a key", bytes, error);
    case PROTOCOL_KEY_INLINE:
        if (bytes == 16 || bytes == 24 || bytes == 32)
            return CORE_OK;
        return core_error_set(error, CORE_INVALID,
                              "key_bytes is %" PRIu32 " for an inline key, must be 16, 24 or 32", bytes);
    case PROTOCOL_KEY_NAMED:
        if (memchr(key, 0, bytes) != NULL)
            return core_error_set(error, CORE_INVALID, "the key name has a zero byte in it");
        return check_value("key_bytes of a key name", bytes, 1, PROTOCOL_KEY_NAME_MAX, error);
    }
    return core_error_set(error, CORE_INVALID, "the key kind is %d, must be 0, 1 or 2", (int)kind);
}

static void read_unit(const uint8_t at[PROTOCOL_OPEN_BYTES - PROTOCOL_OPEN_BYTES_2],
                      struct core_stream_spec *spec)
{
    spec->unit = (enum core_unit)at[0];
    spec->iv = (enum core_iv)at[1];
    spec->crypt_blocks = at[2];
    spec->skip_blocks = at[3];
    spec->mac = (enum core_mac)at[4];
    spec->direction = (enum core_direction)at[5];
    spec->records = (enum core_records)at[6];
    spec->message_packets = at[7];
    spec->first_unit = get_u64(at + 8);
}

core_status protocol_open_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                               struct protocol_open *open, struct core_error *error)
{
    const uint64_t flags_known = version < 2 ? 0 : OPEN_GUARANTEED;
    const uint32_t fixed_bytes = open_bytes(version);
    core_status status = check_length("OPEN", bytes, fixed_bytes, open_bytes_max(version), error);
    if (status || (status = check_value("OPEN IV mark", body[27], 0, 1, error)) ||
        (status = check_value("OPEN flags", get_u16(body + 30), 0, flags_known, error)))
        return status;
    *open = (struct protocol_open){
        .spec = {.packet_bytes = get_u32(body),
                 .burst_packets = get_u32(body + 4),
                 .interval_ns = get_ns(body + 8),
                 .latency_ns = get_ns(body + 16),
                 .cipher = (enum core_cipher)body[24],
                 .padding = (enum core_padding)body[25],
                 .guaranteed = get_u16(body + 30) == OPEN_GUARANTEED},
        .key_kind = (enum protocol_key_kind)body[26],
        .has_iv = body[27] == 1,
        .key_bytes = get_u16(body + 28),
    };
    if (version >= 3)
        read_unit(body + PROTOCOL_OPEN_BYTES_2, &open->spec);
    uint32_t iv_bytes = open->has_iv ? CORE_BLOCK_BYTES : 0;
    const uint32_t mac_bytes = open->spec.mac != CORE_MAC_NONE ? CORE_MAC_BYTES : 0;
    uint32_t expected = fixed_bytes + iv_bytes + mac_bytes + open->key_bytes;
    if (bytes != expected)
        return core_error_set(error, CORE_INVALID,
                              "OPEN has a body of %" PRIu32
                              " bytes, its IV mark, mac and key_bytes say %" PRIu32,
                              bytes, expected);
    memcpy(open->iv, body + fixed_bytes, iv_bytes);
    memcpy(open->mac_id, body + fixed_bytes + iv_bytes, mac_bytes);
    open->key = body + fixed_bytes + iv_bytes + mac_bytes;
    return protocol_key_check(open->key_kind, open->key, open->key_bytes, error);
}

uint32_t protocol_opened_write(uint16_t version, uint8_t *frame, uint32_t request,
                               const struct protocol_opened *opened)
{
    uint32_t body_bytes = version < 2 ? PROTOCOL_OPENED_BYTES_1 : PROTOCOL_OPENED_BYTES;
    uint8_t *body = begin_frame(frame, PROTOCOL_OPENED, request, body_bytes);
    put_u32(body, opened->stream);
    body[4] = (uint8_t)opened->unit;
    body[5] = 0;
    put_u16(body + 6, opened->unit_index);
    put_ns(body + 8, opened->bound_ns);
    put_ns(body + 16, opened->decided_ns);
    put_u32(body + 24, opened->queue_packets);
    put_u32(body + 28, 0);
    memcpy(body + 32, opened->iv, CORE_BLOCK_BYTES);
    if (version >= 2) {
        put_ns(body + 48, opened->in_force_ns);
        protocol_backup_write(body + 56, &opened->backup);
    }
    return PROTOCOL_HEADER_BYTES + body_bytes;
}

core_status protocol_opened_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                                 struct protocol_opened *opened, struct core_error *error)
{
    uint32_t expected = version < 2 ? PROTOCOL_OPENED_BYTES_1 : PROTOCOL_OPENED_BYTES;
    core_status status = check_length("OPENED", bytes, expected, expected, error);
    if (status ||
        (status = check_value("OPENED unit", body[4], PROTOCOL_UNIT_CPU, PROTOCOL_UNIT_GPU, error)) ||
        (status = check_zero("OPENED field at 5", body[5], error)) ||
        (status = check_ns("OPENED bound", body + 8, error)) ||
        (status = check_ns("OPENED decision time", body + 16, error)) ||
        (status = check_zero("OPENED field at 28", get_u32(body + 28), error)))
        return status;
    *opened = (struct protocol_opened){
        .stream = get_u32(body),
        .unit = (enum protocol_unit)body[4],
        .unit_index = get_u16(body + 6),
        .bound_ns = get_ns(body + 8),
        .decided_ns = get_ns(body + 16),
        .queue_packets = get_u32(body + 24),
    };
    memcpy(opened->iv, body + 32, CORE_BLOCK_BYTES);
    if (version < 2)
        return CORE_OK;
    if ((status = check_ns("OPENED time until it was in force", body + 48, error)))
        return status;
    opened->in_force_ns = get_ns(body + 48);
    return protocol_backup_read(body + 56, &opened->backup, error);
}

static uint32_t refused_bytes(uint16_t version)
{
    return version < 2 ? PROTOCOL_REFUSED_BYTES_1 : PROTOCOL_REFUSED_BYTES;
}

uint32_t protocol_refused_write(uint16_t version, uint8_t *frame, uint32_t request,
                                const struct protocol_refused *refused)
{
    uint32_t fixed_bytes = refused_bytes(version);
    uint32_t text_bytes = text_fit(refused->text, PROTOCOL_CONTROL_BYTES_MAX - fixed_bytes);
    uint32_t body_bytes = fixed_bytes + text_bytes;
    uint8_t *body = begin_frame(frame, PROTOCOL_REFUSED, request, body_bytes);
    put_u16(body, (uint16_t)refused->code);
    put_u16(body + 2, refused->constraint);
    put_u32(body + 4, 0);
    put_ns(body + 8, refused->offer_interval_ns);
    put_ns(body + 16, refused->offer_latency_ns);
    if (version >= 2)
        put_ns(body + 24, refused->decided_ns);
    memcpy(body + fixed_bytes, refused->text, text_bytes);
    return PROTOCOL_HEADER_BYTES + body_bytes;
}

core_status protocol_refused_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                                  struct protocol_refused *refused, struct core_error *error)
{
    enum protocol_refusal code_last = version < 2 ? PROTOCOL_REFUSED_INTERNAL : PROTOCOL_REFUSED_BUSY;
    uint32_t fixed_bytes = refused_bytes(version);
    core_status status = check_length("REFUSED", bytes, fixed_bytes, PROTOCOL_CONTROL_BYTES_MAX, error);
    if (status ||
        (status = check_value("REFUSED code", get_u16(body), PROTOCOL_REFUSED_CAPACITY, code_last, error)) ||
        (status = check_zero("REFUSED field at 4", get_u32(body + 4), error)) ||
        (status = check_ns("REFUSED offered interval_ns", body + 8, error)) ||
        (status = check_ns("REFUSED offered latency_ns", body + 16, error)) ||
        (version >= 2 && (status = check_ns("REFUSED decision time", body + 24, error))))
        return status;
    refused->code = (enum protocol_refusal)get_u16(body);
    refused->constraint = get_u16(body + 2);
    refused->offer_interval_ns = get_ns(body + 8);
    refused->offer_latency_ns = get_ns(body + 16);
    refused->decided_ns = version < 2 ? 0 : get_ns(body + 24);
    text_read(body + fixed_bytes, bytes - fixed_bytes, refused->text, sizeof refused->text);
    return CORE_OK;
}

/* ---- RESULT ---- */

void protocol_result_write(uint8_t *frame, uint32_t stream, uint32_t sequence,
                           const struct protocol_result *result, uint32_t cipher_bytes)
{
    const struct protocol_header header = {.body_bytes = PROTOCOL_RESULT_BYTES + cipher_bytes,
                                           .type = PROTOCOL_RESULT,
                                           .id = stream,
                                           .sequence = sequence};
    protocol_header_write(frame, &header);
    uint8_t *body = frame + PROTOCOL_HEADER_BYTES;
    body[0] = (uint8_t)result->status;
    body[1] = result->flags;
    put_u16(body + 2, 0);
    put_u32(body + 4, result->waited_us);
    put_ns(body + 8, result->latency_ns);
}

/* The end of a message may pass as it is, and be all that there is of it. */
static bool result_fits(uint16_t version, const struct protocol_result *result, uint32_t bytes)
{
    if (result->status != PROTOCOL_RESULT_OK)
        return bytes == 0 && (result->flags & PROTOCOL_RESULT_HAS_IV) == 0;
    if (version < 3)
        return bytes > 0 && bytes % CORE_BLOCK_BYTES == 0;
    return (result->flags & PROTOCOL_RESULT_HAS_IV) == 0 || bytes >= CORE_BLOCK_BYTES;
}

core_status protocol_result_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                                 struct protocol_result *result, struct core_error *error)
{
    const uint8_t flags_known = PROTOCOL_RESULT_MET | PROTOCOL_RESULT_READER | PROTOCOL_RESULT_POLICED |
                                (version < 2 ? 0 : PROTOCOL_RESULT_FAULT) |
                                (version < 3 ? 0 : PROTOCOL_RESULT_HAS_IV);
    const uint32_t more_bytes = version < 3 ? 0 : CORE_BLOCK_BYTES + CORE_MAC_BYTES;
    const uint8_t status_last = version < 3 ? PROTOCOL_RESULT_FAILED : PROTOCOL_RESULT_FORGED;
    uint8_t own[PROTOCOL_RESULT_BYTES]; /* what it judges: body may be in a lane, where others write */
    core_status status =
        check_length("RESULT", bytes, PROTOCOL_RESULT_BYTES,
                     PROTOCOL_RESULT_BYTES + more_bytes + CORE_PACKET_BYTES_MAX + CORE_BLOCK_BYTES, error);
    if (status)
        return status;
    memcpy(own, body, sizeof own);
    if ((status = check_value("RESULT status", own[0], 0, status_last, error)) ||
        (status = check_value("RESULT flags", own[1], 0, flags_known, error)) ||
        (status = check_zero("RESULT field at 2", get_u16(own + 2), error)) ||
        (status = check_ns("RESULT latency", own + 8, error)))
        return status;
    *result = (struct protocol_result){
        .status = (enum protocol_result_status)own[0],
        .flags = own[1],
        .waited_us = get_u32(own + 4),
        .latency_ns = get_ns(own + 8),
    };
    if (!result_fits(version, result, bytes - PROTOCOL_RESULT_BYTES))
        return core_error_set(error, CORE_INVALID, "RESULT of status %d has %" PRIu32 " bytes of ciphertext",
                              (int)result->status, bytes - PROTOCOL_RESULT_BYTES);
    return CORE_OK;
}

/* ---- CLOSE, CLOSED, ERROR, PING, PONG ---- */

uint32_t protocol_close_write(uint8_t *frame, uint32_t stream)
{
    begin_frame(frame, PROTOCOL_CLOSE, stream, 0);
    return PROTOCOL_HEADER_BYTES;
}

uint32_t protocol_closed_write(uint8_t *frame, uint32_t stream, const struct protocol_closed *closed)
{
    uint8_t *body = begin_frame(frame, PROTOCOL_CLOSED, stream, PROTOCOL_CLOSED_BYTES);
    put_u32(body, (uint32_t)closed->reason);
    put_u32(body + 4, 0);
    put_u64(body + 8, closed->packets);
    put_u64(body + 16, closed->bytes);
    put_u64(body + 24, closed->met);
    put_u64(body + 32, closed->missed);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_CLOSED_BYTES;
}

core_status protocol_closed_read(const uint8_t *body, uint32_t bytes, struct protocol_closed *closed,
                                 struct core_error *error)
{
    core_status status = check_length("CLOSED", bytes, PROTOCOL_CLOSED_BYTES, PROTOCOL_CLOSED_BYTES, error);
    if (status || (status = check_value("CLOSED reason", get_u32(body), 0, PROTOCOL_CLOSE_IDLE, error)) ||
        (status = check_zero("CLOSED field at 4", get_u32(body + 4), error)))
        return status;
    *closed = (struct protocol_closed){
        .reason = (enum protocol_close_reason)get_u32(body),
        .packets = get_u64(body + 8),
        .bytes = get_u64(body + 16),
        .met = get_u64(body + 24),
        .missed = get_u64(body + 32),
    };
    return CORE_OK;
}

uint32_t protocol_error_write(uint8_t *frame, uint32_t id, enum protocol_error code, bool fatal,
                              const char *text)
{
    uint32_t text_bytes = text_fit(text, PROTOCOL_CONTROL_BYTES_MAX - PROTOCOL_ERROR_BYTES);
    uint32_t body_bytes = PROTOCOL_ERROR_BYTES + text_bytes;
    uint8_t *body = begin_frame(frame, PROTOCOL_ERROR, id, body_bytes);
    put_u16(body, (uint16_t)code);
    put_u16(body + 2, fatal ? 1 : 0);
    memcpy(body + PROTOCOL_ERROR_BYTES, text, text_bytes);
    return PROTOCOL_HEADER_BYTES + body_bytes;
}

core_status protocol_error_read(const uint8_t *body, uint32_t bytes, enum protocol_error *code, bool *fatal,
                                char *text, size_t text_bytes, struct core_error *error)
{
    core_status status =
        check_length("ERROR", bytes, PROTOCOL_ERROR_BYTES, PROTOCOL_CONTROL_BYTES_MAX, error);
    if (status ||
        (status = check_value("ERROR code", get_u16(body), PROTOCOL_ERROR_MALFORMED, PROTOCOL_ERROR_SHUTDOWN,
                              error)) ||
        (status = check_value("ERROR fatal mark", get_u16(body + 2), 0, 1, error)))
        return status;
    *code = (enum protocol_error)get_u16(body);
    *fatal = get_u16(body + 2) == 1;
    text_read(body + PROTOCOL_ERROR_BYTES, bytes - PROTOCOL_ERROR_BYTES, text, text_bytes);
    return CORE_OK;
}

uint32_t protocol_ping_write(uint8_t *frame, enum protocol_type type, uint32_t request, const void *payload,
                             uint32_t bytes)
{
    assert(type == PROTOCOL_PING || type == PROTOCOL_PONG);
    assert(bytes <= PROTOCOL_PING_BYTES_MAX);
    uint8_t *body = begin_frame(frame, type, request, bytes);
    if (bytes > 0)
        memcpy(body, payload, bytes);
    return PROTOCOL_HEADER_BYTES + bytes;
}

/* ---- LANE, LANED ---- */

uint32_t protocol_lane_write(uint8_t *frame, uint32_t ring_bytes)
{
    uint8_t *body = begin_frame(frame, PROTOCOL_LANE, 0, PROTOCOL_LANE_BYTES);
    put_u32(body, ring_bytes);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_LANE_BYTES;
}

core_status protocol_lane_read(const uint8_t *body, uint32_t bytes, uint32_t *ring_bytes,
                               struct core_error *error)
{
    core_status status = check_length("LANE", bytes, PROTOCOL_LANE_BYTES, PROTOCOL_LANE_BYTES, error);
    if (status == CORE_OK)
        *ring_bytes = get_u32(body);
    return status;
}

uint32_t protocol_laned_write(uint8_t *frame, uint32_t ring_bytes, const char *text)
{
    const uint32_t text_bytes = text_fit(text, PROTOCOL_CONTROL_BYTES_MAX - PROTOCOL_LANED_BYTES);
    uint8_t *body = begin_frame(frame, PROTOCOL_LANED, 0, PROTOCOL_LANED_BYTES + text_bytes);
    put_u32(body, ring_bytes);
    memcpy(body + PROTOCOL_LANED_BYTES, text, text_bytes);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_LANED_BYTES + text_bytes;
}

core_status protocol_laned_read(const uint8_t *body, uint32_t bytes, uint32_t *ring_bytes, char *text,
                                size_t text_bytes, struct core_error *error)
{
    core_status status =
        check_length("LANED", bytes, PROTOCOL_LANED_BYTES, PROTOCOL_CONTROL_BYTES_MAX, error);
    if (status)
        return status;
    *ring_bytes = get_u32(body);
    text_read(body + PROTOCOL_LANED_BYTES, bytes - PROTOCOL_LANED_BYTES, text, text_bytes);
    return CORE_OK;
}
