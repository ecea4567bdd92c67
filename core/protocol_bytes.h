/* What the files of the codec share: integers at any place, and the checks that decoders are made of. For
 * core/protocol*.c, and for client/pool*.c, which changes frames on their way. */
#ifndef MILLRACE_CORE_PROTOCOL_BYTES_H
#define MILLRACE_CORE_PROTOCOL_BYTES_H

#include "core/protocol.h"

#include <inttypes.h>
#include <string.h>

/* ---- little-endian integers at any alignment; compilers turn these into plain loads and stores ---- */

static inline void put_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static inline void put_u32(uint8_t *at, uint32_t value)
{
    put_u16(at, (uint16_t)value);
    put_u16(at + 2, (uint16_t)(value >> 16));
}

static inline void put_u64(uint8_t *at, uint64_t value)
{
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

/* Times on the wire are unsigned; a time before zero says nothing to the peer. */
static inline void put_ns(uint8_t *at, core_ns value_ns)
{
    put_u64(at, value_ns < 0 ? 0 : (uint64_t)value_ns);
}

static inline uint16_t get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (at[1] << 8));
}

static inline uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)get_u16(at) | (uint32_t)get_u16(at + 2) << 16;
}

static inline uint64_t get_u64(const uint8_t *at)
{
    return (uint64_t)get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

/* A time beyond the type becomes CORE_NS_NEVER, which every range check downstream refuses. */
static inline core_ns get_ns(const uint8_t *at)
{
    uint64_t value = get_u64(at);
    return value > INT64_MAX ? CORE_NS_NEVER : (core_ns)value;
}

/* ---- what all frames share ---- */

static inline uint8_t *begin_frame(uint8_t *frame, enum protocol_type type, uint32_t id, uint32_t body_bytes)
{
    const struct protocol_header header = {.body_bytes = body_bytes, .type = (uint8_t)type, .id = id};
    protocol_header_write(frame, &header);
    return frame + PROTOCOL_HEADER_BYTES;
}

static inline core_status check_length(const char *frame, uint32_t bytes, uint32_t minimum, uint32_t maximum,
                                       struct core_error *error)
{
    if (bytes < minimum || bytes > maximum)
        return core_error_set(error, CORE_INVALID,
                              "%s has a body of %" PRIu32 " bytes, must be %" PRIu32 " to %" PRIu32, frame,
                              bytes, minimum, maximum);
    return CORE_OK;
}

static inline core_status check_value(const char *field, uint64_t value, uint64_t minimum, uint64_t maximum,
                                      struct core_error *error)
{
    if (value < minimum || value > maximum)
        return core_error_set(error, CORE_INVALID, "%s is %" PRIu64 ", must be %" PRIu64 " to %" PRIu64,
                              field, value, minimum, maximum);
    return CORE_OK;
}

static inline core_status check_ns(const char *field, const uint8_t *at, struct core_error *error)
{
    return check_value(field, get_u64(at), 0, INT64_MAX, error);
}

static inline core_status check_zero(const char *field, uint32_t value, struct core_error *error)
{
    return check_value(field, value, 0, 0, error);
}

/* Bytes of `text` that fit into `room` without cutting a UTF-8 character in two. */
static inline uint32_t text_fit(const char *text, uint32_t room)
{
    size_t bytes = strnlen(text, (size_t)room + 1);
    if (bytes <= room)
        return (uint32_t)bytes;
    bytes = room;
    while (bytes > 0 && ((uint8_t)text[bytes] & 0xC0) == 0x80)
        bytes--;
    return (uint32_t)bytes;
}

/* Copies a text out of a frame, terminated and cut to fit. It may end on a terminal or in a log line, so
 * control characters, which a well-meaning peer has no use for, come out as '?'. */
static inline void text_read(const uint8_t *from, uint32_t bytes, char *text, size_t text_bytes)
{
    if (text_bytes == 0)
        return;
    size_t length = bytes < text_bytes ? bytes : text_bytes - 1;
    for (size_t i = 0; i < length; i++)
        text[i] = from[i] < 0x20 || from[i] == 0x7F ? '?' : (char)from[i];
    text[length] = '\0';
}

/* ---- what several bodies have in common ---- */

/* Of OPEN, QUERY and REKEY. */
CORE_CHECKED core_status protocol_key_check(enum protocol_key_kind kind, const uint8_t *key, uint32_t bytes,
                                            struct core_error *error);

/* Of OPENED and MODIFIED. */

#define PROTOCOL_BACKUP_BYTES 16

void protocol_backup_write(uint8_t at[PROTOCOL_BACKUP_BYTES], const struct protocol_backup *backup);
CORE_CHECKED core_status protocol_backup_read(const uint8_t at[PROTOCOL_BACKUP_BYTES],
                                              struct protocol_backup *backup, struct core_error *error);

#endif
