#include "client/translate.h"

#include "client/contract.h"
#include "client/structs.h"

#include <string.h>

/* ---- the same numbers: values pass as they are, also those of later servers ---- */

#define SAME(name, core_name)                                                                                \
    _Static_assert((int)MILLRACE_##name == (int)(core_name), "MILLRACE_" #name " is " #core_name)
#define SAME_CORE(name)     SAME(name, CORE_##name)
#define SAME_PROTOCOL(name) SAME(name, PROTOCOL_##name)

SAME_CORE(OK);
SAME_CORE(INVALID);
SAME_CORE(NO_MEMORY);
SAME_CORE(SYSTEM);
SAME_CORE(FULL);
SAME_CORE(NOT_FOUND);
SAME_CORE(REFUSED);
SAME_CORE(CLOSED);
SAME_CORE(DENIED);
SAME_CORE(TIMEOUT);
SAME_CORE(UNSUPPORTED);
SAME_CORE(BLOCK_BYTES);
SAME_CORE(PATTERN_BLOCKS_MAX);
SAME_CORE(CIPHER_AES_128_CBC);
SAME_CORE(CIPHER_AES_192_CBC);
SAME_CORE(CIPHER_AES_256_CBC);
SAME_CORE(PADDING_NONE);
SAME_CORE(PADDING_PKCS7);
SAME_CORE(PADDING_CLEAR);
SAME_CORE(UNIT_STREAM);
SAME_CORE(UNIT_MESSAGE);
SAME_CORE(IV_CHAIN);
SAME_CORE(IV_CONSTANT);
SAME_CORE(IV_COUNTER);
SAME_CORE(IV_EXPLICIT);
SAME_CORE(IV_RANDOM);
SAME_CORE(DIRECTION_ENCRYPT);
SAME_CORE(DIRECTION_DECRYPT);
SAME_CORE(RECORDS_NONE);
SAME_CORE(RECORDS_TS);
SAME_CORE(MAC_NONE);
SAME_CORE(MAC_HMAC_SHA_256_128);
SAME_CORE(MAC_BYTES);
SAME(TEXT_BYTES, PROTOCOL_CONTROL_BYTES_MAX);
SAME(KEY_NAME_BYTES_MAX, PROTOCOL_KEY_NAME_MAX);
SAME_PROTOCOL(KEY_NONE);
SAME_PROTOCOL(KEY_INLINE);
SAME_PROTOCOL(KEY_NAMED);
SAME_PROTOCOL(DATA_FIRST);
SAME_PROTOCOL(DATA_LAST);
SAME_PROTOCOL(ALLOWS_INLINE_KEY);
SAME_PROTOCOL(ALLOWS_CLIENT_IV);
SAME_PROTOCOL(HAS_NAMED_KEYS);
SAME_PROTOCOL(HAS_LANES);
SAME(SERVER_UNIT_NONE, PROTOCOL_UNIT_NONE);
SAME(SERVER_UNIT_CPU, PROTOCOL_UNIT_CPU);
SAME(SERVER_UNIT_GPU, PROTOCOL_UNIT_GPU);
SAME_PROTOCOL(REFUSED_CAPACITY);
SAME_PROTOCOL(REFUSED_SPEC);
SAME_PROTOCOL(REFUSED_LIMIT);
SAME_PROTOCOL(REFUSED_KEY);
SAME_PROTOCOL(REFUSED_IV);
SAME_PROTOCOL(REFUSED_DRAINING);
SAME_PROTOCOL(REFUSED_INTERNAL);
SAME_PROTOCOL(REFUSED_STREAM);
SAME_PROTOCOL(REFUSED_BUSY);
SAME_PROTOCOL(LIMIT_NONE);
SAME_PROTOCOL(LIMIT_DEADLINE);
SAME_PROTOCOL(LIMIT_CPU_UTILISATION);
SAME_PROTOCOL(LIMIT_CPU_DEMAND);
SAME_PROTOCOL(LIMIT_IO);
SAME_PROTOCOL(LIMIT_GPU_COPY);
SAME_PROTOCOL(LIMIT_GPU_KERNEL);
SAME_PROTOCOL(LIMIT_GPU_LATENCY);
SAME_PROTOCOL(LIMIT_GPU_MEMORY);
SAME_PROTOCOL(LIMIT_GPU_OUT);
SAME_PROTOCOL(LIMIT_RESERVE);
SAME_PROTOCOL(LIMIT_BACKUP);
SAME_PROTOCOL(RESULT_OK);
SAME_PROTOCOL(RESULT_NOT_BLOCKS);
SAME_PROTOCOL(RESULT_TOO_LONG);
SAME_PROTOCOL(RESULT_KEY_SPENT);
SAME_PROTOCOL(RESULT_FAILED);
SAME_PROTOCOL(RESULT_BROKEN);
SAME_PROTOCOL(RESULT_FORGED);
SAME_PROTOCOL(RESULT_MET);
SAME_PROTOCOL(RESULT_READER);
SAME_PROTOCOL(RESULT_POLICED);
SAME_PROTOCOL(RESULT_FAULT);
SAME_PROTOCOL(RESULT_HAS_IV);
SAME_PROTOCOL(CLOSE_ASKED);
SAME_PROTOCOL(CLOSE_DRAINED);
SAME_PROTOCOL(CLOSE_FAILED);
SAME_PROTOCOL(CLOSE_IDLE);
SAME_PROTOCOL(NOTICE_DEGRADED);
SAME_PROTOCOL(NOTICE_RESTORED);
SAME_PROTOCOL(NOTICE_MOVED);
SAME_PROTOCOL(NOTICE_LEAVING);
SAME_PROTOCOL(ERROR_MALFORMED);
SAME_PROTOCOL(ERROR_OVERSIZED);
SAME_PROTOCOL(ERROR_UNKNOWN_TYPE);
SAME_PROTOCOL(ERROR_STATE);
SAME_PROTOCOL(ERROR_VERSION);
SAME_PROTOCOL(ERROR_STREAM);
SAME_PROTOCOL(ERROR_SEQUENCE);
SAME_PROTOCOL(ERROR_TIMEOUT);
SAME_PROTOCOL(ERROR_LIMIT);
SAME_PROTOCOL(ERROR_SHUTDOWN);

/* ---- what callers give ---- */

/* `last` is the last member of the struct's first version. The assertion is about the present one. */
#define READ(type, own, given, last, error)                                                                  \
    client_struct_read(own, sizeof *(own), CLIENT_STRUCT_END(struct type, last), given, #type, error)
#define NO_PADDING_AFTER(type, member)                                                                       \
    _Static_assert(CLIENT_STRUCT_END(struct type, member) == sizeof(struct type), #type " ends in padding")

NO_PADDING_AFTER(millrace_tls, server_name);
NO_PADDING_AFTER(millrace_pool, kept_bytes_max);
NO_PADDING_AFTER(millrace_callbacks, on_resumed);
NO_PADDING_AFTER(millrace_open, mac_id);
NO_PADDING_AFTER(millrace_modify, latency_ns);
NO_PADDING_AFTER(millrace_rekey, first);

core_status client_read_tls(const struct millrace_tls *given, struct millrace_tls *tls,
                            struct core_error *error)
{
    return READ(millrace_tls, tls, given, server_name, error);
}

core_status client_read_pool(const struct millrace_pool *given, struct millrace_pool *pool,
                             struct core_error *error)
{
    return READ(millrace_pool, pool, given, kept_bytes_max, error);
}

core_status client_read_callbacks(const struct millrace_callbacks *given,
                                  struct millrace_callbacks *callbacks, struct core_error *error)
{
    return READ(millrace_callbacks, callbacks, given, argument, error);
}

/* Longer than any key: its check says so. */
static uint32_t key_bytes(size_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
}

/* The wire has one byte for each of these: what is no value must not become one. */
static core_status check_byte(const char *name, unsigned value, struct core_error *error)
{
    return value <= UINT8_MAX ? CORE_OK : core_error_set(error, CORE_INVALID, "%s is %u", name, value);
}

core_status client_read_open(const struct millrace_open *given, struct protocol_open *open,
                             struct core_error *error)
{
    struct millrace_open own;
    core_status status = READ(millrace_open, &own, given, mac_id, error);
    if (status || (status = check_byte("cipher", own.cipher, error)) ||
        (status = check_byte("padding", own.padding, error)) ||
        (status = check_byte("unit", own.unit, error)) ||
        (status = check_byte("iv_source", own.iv_source, error)) ||
        (status = check_byte("direction", own.direction, error)) ||
        (status = check_byte("records", own.records, error)) || (status = check_byte("mac", own.mac, error)))
        return status;
    *open = (struct protocol_open){.spec = client_contract_spec(&own),
                                   .key_kind = (enum protocol_key_kind)own.key_kind,
                                   .has_iv = own.has_iv,
                                   .key = own.key,
                                   .key_bytes = key_bytes(own.key_bytes)};
    memcpy(open->iv, own.iv, sizeof open->iv);
    memcpy(open->mac_id, own.mac_id, sizeof open->mac_id);
    return CORE_OK;
}

core_status client_read_modify(const struct millrace_modify *given, struct protocol_modify *modify,
                               struct core_error *error)
{
    struct millrace_modify own;
    core_status status = READ(millrace_modify, &own, given, latency_ns, error);
    if (status == CORE_OK)
        *modify = (struct protocol_modify){.stream = own.stream,
                                           .burst_packets = own.burst_packets,
                                           .interval_ns = own.interval_ns,
                                           .latency_ns = own.latency_ns};
    return status;
}

core_status client_read_rekey(const struct millrace_rekey *given, struct protocol_rekey *rekey,
                              struct core_error *error)
{
    struct millrace_rekey own;
    core_status status = READ(millrace_rekey, &own, given, first, error);
    if (status == CORE_OK)
        *rekey = (struct protocol_rekey){.stream = own.stream,
                                         .key_kind = (enum protocol_key_kind)own.key_kind,
                                         .key = own.key,
                                         .key_bytes = key_bytes(own.key_bytes),
                                         .first = own.first};
    return status;
}

/* ---- contracts ---- */

struct millrace_open client_contract_open(const struct core_stream_spec *spec)
{
    return (struct millrace_open){.size = sizeof(struct millrace_open),
                                  .packet_bytes = spec->packet_bytes,
                                  .burst_packets = spec->burst_packets,
                                  .interval_ns = spec->interval_ns,
                                  .latency_ns = spec->latency_ns,
                                  .cipher = (enum millrace_cipher)spec->cipher,
                                  .padding = (enum millrace_padding)spec->padding,
                                  .unit = (enum millrace_unit)spec->unit,
                                  .iv_source = (enum millrace_iv_source)spec->iv,
                                  .first_unit = spec->first_unit,
                                  .crypt_blocks = spec->crypt_blocks,
                                  .skip_blocks = spec->skip_blocks,
                                  .direction = (enum millrace_direction)spec->direction,
                                  .records = (enum millrace_records)spec->records,
                                  .mac = (enum millrace_mac)spec->mac,
                                  .message_packets = spec->message_packets,
                                  .guaranteed = spec->guaranteed};
}

/* In a contract each takes a byte; what is more is no value of any. */
static uint8_t byte_of(unsigned value)
{
    return value < UINT8_MAX ? (uint8_t)value : UINT8_MAX;
}

struct core_stream_spec client_contract_spec(const struct millrace_open *open)
{
    return (struct core_stream_spec){.packet_bytes = open->packet_bytes,
                                     .burst_packets = open->burst_packets,
                                     .interval_ns = open->interval_ns,
                                     .latency_ns = open->latency_ns,
                                     .cipher = (enum core_cipher)byte_of(open->cipher),
                                     .padding = (enum core_padding)byte_of(open->padding),
                                     .unit = (enum core_unit)byte_of(open->unit),
                                     .iv = (enum core_iv)byte_of(open->iv_source),
                                     .first_unit = open->first_unit,
                                     .crypt_blocks = open->crypt_blocks,
                                     .skip_blocks = open->skip_blocks,
                                     .direction = (enum core_direction)byte_of(open->direction),
                                     .records = (enum core_records)byte_of(open->records),
                                     .mac = (enum core_mac)byte_of(open->mac),
                                     .message_packets = open->message_packets,
                                     .guaranteed = open->guaranteed};
}

/* ---- what the server says ---- */

struct millrace_welcome client_show_welcome(const struct protocol_welcome *welcome)
{
    return (struct millrace_welcome){.size = sizeof(struct millrace_welcome),
                                     .version = welcome->version,
                                     .flags = welcome->flags,
                                     .packet_bytes_max = welcome->packet_bytes_max,
                                     .burst_packets_max = welcome->burst_packets_max,
                                     .streams_max = welcome->streams_max,
                                     .stream_buffer_bytes_max = welcome->stream_buffer_bytes_max,
                                     .bytes_per_key = welcome->bytes_per_key,
                                     .interval_ns_min = welcome->interval_ns_min,
                                     .latency_ns_min = welcome->latency_ns_min};
}

static struct millrace_backup show_backup(const struct protocol_backup *backup)
{
    return (struct millrace_backup){.unit = (enum millrace_server_unit)backup->unit,
                                    .unit_index = backup->unit_index,
                                    .reserved_ppb = backup->reserved_ppb,
                                    .bound_ns = backup->bound_ns};
}

struct millrace_opened client_show_opened(const struct protocol_opened *opened)
{
    struct millrace_opened shown = {.size = sizeof shown,
                                    .stream = opened->stream,
                                    .unit = (enum millrace_server_unit)opened->unit,
                                    .unit_index = opened->unit_index,
                                    .queue_packets = opened->queue_packets,
                                    .bound_ns = opened->bound_ns,
                                    .decided_ns = opened->decided_ns,
                                    .in_force_ns = opened->in_force_ns,
                                    .backup = show_backup(&opened->backup)};
    memcpy(shown.iv, opened->iv, sizeof shown.iv);
    return shown;
}

struct millrace_modified client_show_modified(const struct protocol_modified *modified)
{
    return (struct millrace_modified){.size = sizeof(struct millrace_modified),
                                      .stream = modified->stream,
                                      .unit = (enum millrace_server_unit)modified->unit,
                                      .unit_index = modified->unit_index,
                                      .queue_packets = modified->queue_packets,
                                      .first = modified->first,
                                      .bound_ns = modified->bound_ns,
                                      .decided_ns = modified->decided_ns,
                                      .in_force_ns = modified->in_force_ns,
                                      .backup = show_backup(&modified->backup)};
}

struct millrace_rekeyed client_show_rekeyed(const struct protocol_rekeyed *rekeyed)
{
    return (struct millrace_rekeyed){.size = sizeof(struct millrace_rekeyed),
                                     .stream = rekeyed->stream,
                                     .first = rekeyed->first,
                                     .in_force_ns = rekeyed->in_force_ns};
}

struct millrace_refused client_show_refused(const struct protocol_refused *refused)
{
    struct millrace_refused shown = {.size = sizeof shown,
                                     .code = (enum millrace_refusal)refused->code,
                                     .constraint = (enum millrace_limit)refused->constraint,
                                     .offer_interval_ns = refused->offer_interval_ns,
                                     .offer_latency_ns = refused->offer_latency_ns,
                                     .decided_ns = refused->decided_ns};
    memcpy(shown.text, refused->text, sizeof shown.text);
    return shown;
}

struct millrace_result client_show_result(const struct protocol_header *header,
                                          const struct protocol_result *result, const uint8_t *body)
{
    const uint32_t iv_bytes = (result->flags & PROTOCOL_RESULT_HAS_IV) != 0 ? CORE_BLOCK_BYTES : 0;
    return (struct millrace_result){.size = sizeof(struct millrace_result),
                                    .stream = header->id,
                                    .sequence = header->sequence,
                                    .status = (enum millrace_result_status)result->status,
                                    .flags = result->flags,
                                    .waited_us = result->waited_us,
                                    .bytes = header->body_bytes - PROTOCOL_RESULT_BYTES - iv_bytes,
                                    .latency_ns = result->latency_ns,
                                    .iv = iv_bytes > 0 ? body + PROTOCOL_RESULT_BYTES : NULL,
                                    .ciphertext = body + PROTOCOL_RESULT_BYTES + iv_bytes};
}

struct millrace_closed client_show_closed(const struct protocol_closed *closed)
{
    return (struct millrace_closed){.size = sizeof(struct millrace_closed),
                                    .reason = (enum millrace_close_reason)closed->reason,
                                    .packets = closed->packets,
                                    .bytes = closed->bytes,
                                    .met = closed->met,
                                    .missed = closed->missed};
}

struct millrace_notice client_show_notice(const struct protocol_notice *notice)
{
    struct millrace_notice shown = {.size = sizeof shown,
                                    .kind = (enum millrace_notice_kind)notice->kind,
                                    .unit = (enum millrace_server_unit)notice->unit,
                                    .unit_index = notice->unit_index,
                                    .bound_ns = notice->bound_ns};
    memcpy(shown.text, notice->text, sizeof shown.text);
    return shown;
}

/* ---- names ---- */

const char *millrace_version(void)
{
    return MILLRACE_VERSION;
}

const char *millrace_status_text(millrace_status status)
{
    return core_status_text((core_status)status);
}

const char *millrace_refusal_name(enum millrace_refusal code)
{
    return protocol_refusal_name((enum protocol_refusal)code);
}

const char *millrace_limit_name(enum millrace_limit limit)
{
    return protocol_limit_name((enum protocol_limit)limit);
}

const char *millrace_result_name(enum millrace_result_status status)
{
    return protocol_result_name((enum protocol_result_status)status);
}

const char *millrace_notice_name(enum millrace_notice_kind kind)
{
    return protocol_notice_name((enum protocol_notice_kind)kind);
}

const char *millrace_error_name(enum millrace_error code)
{
    return protocol_error_name((enum protocol_error)code);
}
