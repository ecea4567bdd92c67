/* What happens to open streams: MODIFY, REKEY, their answers, NOTICE. */
#include "core/protocol_bytes.h"

#include <assert.h>

void protocol_backup_write(uint8_t at[PROTOCOL_BACKUP_BYTES], const struct protocol_backup *backup)
{
    at[0] = (uint8_t)backup->unit;
    at[1] = 0;
    put_u16(at + 2, backup->unit_index);
    put_u32(at + 4, backup->reserved_ppb);
    put_ns(at + 8, backup->bound_ns);
}

core_status protocol_backup_read(const uint8_t at[PROTOCOL_BACKUP_BYTES], struct protocol_backup *backup,
                                 struct core_error *error)
{
    core_status status;
    if ((status = check_value("backup unit", at[0], PROTOCOL_UNIT_NONE, PROTOCOL_UNIT_GPU, error)) ||
        (status = check_zero("field behind the backup unit", at[1], error)) ||
        (status = check_ns("bound after a loss", at + 8, error)))
        return status;
    *backup = (struct protocol_backup){
        .unit = (enum protocol_unit)at[0],
        .unit_index = get_u16(at + 2),
        .reserved_ppb = get_u32(at + 4),
        .bound_ns = get_ns(at + 8),
    };
    if (backup->unit == PROTOCOL_UNIT_NONE && (backup->unit_index != 0 || backup->reserved_ppb != 0))
        return core_error_set(error, CORE_INVALID, "a share is reserved on no backup unit");
    return CORE_OK;
}

uint32_t protocol_modify_write(uint8_t *frame, uint32_t request, const struct protocol_modify *modify)
{
    uint8_t *body = begin_frame(frame, PROTOCOL_MODIFY, request, PROTOCOL_MODIFY_BYTES);
    put_u32(body, modify->stream);
    put_u32(body + 4, modify->burst_packets);
    put_ns(body + 8, modify->interval_ns);
    put_ns(body + 16, modify->latency_ns);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_MODIFY_BYTES;
}

core_status protocol_modify_read(const uint8_t *body, uint32_t bytes, struct protocol_modify *modify,
                                 struct core_error *error)
{
    core_status status = check_length("MODIFY", bytes, PROTOCOL_MODIFY_BYTES, PROTOCOL_MODIFY_BYTES, error);
    if (status)
        return status;
    *modify = (struct protocol_modify){
        .stream = get_u32(body),
        .burst_packets = get_u32(body + 4),
        .interval_ns = get_ns(body + 8),
        .latency_ns = get_ns(body + 16),
    };
    return CORE_OK;
}

uint32_t protocol_modified_write(uint8_t *frame, uint32_t request, const struct protocol_modified *modified)
{
    uint8_t *body = begin_frame(frame, PROTOCOL_MODIFIED, request, PROTOCOL_MODIFIED_BYTES);
    put_u32(body, modified->stream);
    body[4] = (uint8_t)modified->unit;
    body[5] = 0;
    put_u16(body + 6, modified->unit_index);
    put_ns(body + 8, modified->bound_ns);
    put_ns(body + 16, modified->decided_ns);
    put_ns(body + 24, modified->in_force_ns);
    put_u32(body + 32, modified->first);
    put_u32(body + 36, modified->queue_packets);
    protocol_backup_write(body + 40, &modified->backup);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_MODIFIED_BYTES;
}

core_status protocol_modified_read(const uint8_t *body, uint32_t bytes, struct protocol_modified *modified,
                                   struct core_error *error)
{
    core_status status =
        check_length("MODIFIED", bytes, PROTOCOL_MODIFIED_BYTES, PROTOCOL_MODIFIED_BYTES, error);
    if (status ||
        (status = check_value("MODIFIED unit", body[4], PROTOCOL_UNIT_CPU, PROTOCOL_UNIT_GPU, error)) ||
        (status = check_zero("MODIFIED field at 5", body[5], error)) ||
        (status = check_ns("MODIFIED bound", body + 8, error)) ||
        (status = check_ns("MODIFIED decision time", body + 16, error)) ||
        (status = check_ns("MODIFIED time until it was in force", body + 24, error)))
        return status;
    *modified = (struct protocol_modified){
        .stream = get_u32(body),
        .unit = (enum protocol_unit)body[4],
        .unit_index = get_u16(body + 6),
        .bound_ns = get_ns(body + 8),
        .decided_ns = get_ns(body + 16),
        .in_force_ns = get_ns(body + 24),
        .first = get_u32(body + 32),
        .queue_packets = get_u32(body + 36),
    };
    return protocol_backup_read(body + 40, &modified->backup, error);
}

uint32_t protocol_rekey_write(uint8_t *frame, uint32_t request, const struct protocol_rekey *rekey)
{
    uint32_t body_bytes = PROTOCOL_REKEY_BYTES + rekey->key_bytes;
    assert(rekey->key_bytes <= PROTOCOL_KEY_NAME_MAX);
    uint8_t *body = begin_frame(frame, PROTOCOL_REKEY, request, body_bytes);
    put_u32(body, rekey->stream);
    body[4] = (uint8_t)rekey->key_kind;
    body[5] = 0;
    put_u16(body + 6, (uint16_t)rekey->key_bytes);
    put_u64(body + 8, rekey->first);
    if (rekey->key_bytes > 0)
        memcpy(body + PROTOCOL_REKEY_BYTES, rekey->key, rekey->key_bytes);
    return PROTOCOL_HEADER_BYTES + body_bytes;
}

core_status protocol_rekey_read(const uint8_t *body, uint32_t bytes, struct protocol_rekey *rekey,
                                struct core_error *error)
{
    core_status status = check_length("REKEY", bytes, PROTOCOL_REKEY_BYTES,
                                      PROTOCOL_REKEY_BYTES + PROTOCOL_KEY_NAME_MAX, error);
    if (status ||
        (status = check_value("REKEY key kind", body[4], PROTOCOL_KEY_INLINE, PROTOCOL_KEY_NAMED, error)) ||
        (status = check_zero("REKEY field at 5", body[5], error)))
        return status;
    *rekey = (struct protocol_rekey){.stream = get_u32(body),
                                     .key_kind = (enum protocol_key_kind)body[4],
                                     .key = body + PROTOCOL_REKEY_BYTES,
                                     .key_bytes = get_u16(body + 6),
                                     .first = get_u64(body + 8)};
    if (bytes != PROTOCOL_REKEY_BYTES + rekey->key_bytes)
        return core_error_set(error, CORE_INVALID,
                              "REKEY has a body of %" PRIu32 " bytes, its key_bytes say %" PRIu32, bytes,
                              PROTOCOL_REKEY_BYTES + rekey->key_bytes);
    return protocol_key_check(rekey->key_kind, rekey->key, rekey->key_bytes, error);
}

uint32_t protocol_rekeyed_write(uint8_t *frame, uint32_t request, const struct protocol_rekeyed *rekeyed)
{
    uint8_t *body = begin_frame(frame, PROTOCOL_REKEYED, request, PROTOCOL_REKEYED_BYTES);
    put_u32(body, rekeyed->stream);
    put_u32(body + 4, 0);
    put_u64(body + 8, rekeyed->first);
    put_ns(body + 16, rekeyed->in_force_ns);
    return PROTOCOL_HEADER_BYTES + PROTOCOL_REKEYED_BYTES;
}

core_status protocol_rekeyed_read(const uint8_t *body, uint32_t bytes, struct protocol_rekeyed *rekeyed,
                                  struct core_error *error)
{
    core_status status =
        check_length("REKEYED", bytes, PROTOCOL_REKEYED_BYTES, PROTOCOL_REKEYED_BYTES, error);
    if (status || (status = check_zero("REKEYED field at 4", get_u32(body + 4), error)) ||
        (status = check_ns("REKEYED time until it was in force", body + 16, error)))
        return status;
    *rekeyed = (struct protocol_rekeyed){
        .stream = get_u32(body), .first = get_u64(body + 8), .in_force_ns = get_ns(body + 16)};
    return CORE_OK;
}

uint32_t protocol_notice_write(uint8_t *frame, uint32_t stream, const struct protocol_notice *notice)
{
    uint32_t text_bytes = text_fit(notice->text, PROTOCOL_CONTROL_BYTES_MAX - PROTOCOL_NOTICE_BYTES);
    uint32_t body_bytes = PROTOCOL_NOTICE_BYTES + text_bytes;
    uint8_t *body = begin_frame(frame, PROTOCOL_NOTICE, stream, body_bytes);
    put_u16(body, (uint16_t)notice->kind);
    body[2] = (uint8_t)notice->unit;
    body[3] = 0;
    put_u16(body + 4, notice->unit_index);
    put_u16(body + 6, 0);
    put_ns(body + 8, notice->bound_ns);
    memcpy(body + PROTOCOL_NOTICE_BYTES, notice->text, text_bytes);
    return PROTOCOL_HEADER_BYTES + body_bytes;
}

static core_status check_notice_unit(const uint8_t *body, struct core_error *error)
{
    core_status status;
    if (get_u16(body) != PROTOCOL_NOTICE_LEAVING)
        return check_value("NOTICE unit", body[2], PROTOCOL_UNIT_CPU, PROTOCOL_UNIT_GPU, error);
    if ((status = check_zero("NOTICE unit of leaving", body[2], error)) ||
        (status = check_zero("NOTICE unit number of leaving", get_u16(body + 4), error)))
        return status;
    return check_zero("NOTICE bound of leaving", get_u64(body + 8) != 0, error);
}

core_status protocol_notice_read(const uint8_t *body, uint32_t bytes, struct protocol_notice *notice,
                                 struct core_error *error)
{
    core_status status =
        check_length("NOTICE", bytes, PROTOCOL_NOTICE_BYTES, PROTOCOL_CONTROL_BYTES_MAX, error);
    if (status ||
        (status = check_value("NOTICE kind", get_u16(body), PROTOCOL_NOTICE_DEGRADED, PROTOCOL_NOTICE_LEAVING,
                              error)) ||
        (status = check_notice_unit(body, error)) ||
        (status = check_zero("NOTICE field at 3", body[3], error)) ||
        (status = check_zero("NOTICE field at 6", get_u16(body + 6), error)) ||
        (status = check_ns("NOTICE bound", body + 8, error)))
        return status;
    notice->kind = (enum protocol_notice_kind)get_u16(body);
    notice->unit = (enum protocol_unit)body[2];
    notice->unit_index = get_u16(body + 4);
    notice->bound_ns = get_ns(body + 8);
    text_read(body + PROTOCOL_NOTICE_BYTES, bytes - PROTOCOL_NOTICE_BYTES, notice->text, sizeof notice->text);
    return CORE_OK;
}
