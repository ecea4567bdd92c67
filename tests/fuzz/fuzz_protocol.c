/* Arbitrary bytes for every decoder of the wire protocol. The input is one frame: header, then body. What a
 * decoder accepts must survive being written and read again. */
#include "core/protocol.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void fuzz_open(uint16_t version, const uint8_t *body, uint32_t bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_open open, again;
    if (protocol_open_read(version, body, bytes, &open, NULL) != CORE_OK)
        return;
    require(version > 1 || !open.spec.guaranteed);
    require(open.key + open.key_bytes == body + bytes);
    uint32_t written = protocol_open_write(version, frame, PROTOCOL_OPEN, 1, &open) - PROTOCOL_HEADER_BYTES;
    require(written == bytes);
    require(protocol_open_read(version, frame + PROTOCOL_HEADER_BYTES, written, &again, NULL) == CORE_OK);
    require(again.key_bytes == open.key_bytes && memcmp(again.key, open.key, open.key_bytes) == 0);
    require(again.spec.guaranteed == open.spec.guaranteed);
    require(again.spec.unit == open.spec.unit && again.spec.iv == open.spec.iv &&
            again.spec.first_unit == open.spec.first_unit &&
            again.spec.message_packets == open.spec.message_packets);
    require(version > 2 || open.spec.unit == CORE_UNIT_STREAM);
}

static void fuzz_texts(uint16_t version, const uint8_t *body, uint32_t bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_refused refused;
    if (protocol_refused_read(version, body, bytes, &refused, NULL) == CORE_OK)
        require(protocol_refused_write(version, frame, 1, &refused) == PROTOCOL_HEADER_BYTES + bytes);
    struct protocol_notice notice;
    if (protocol_notice_read(body, bytes, &notice, NULL) == CORE_OK) {
        require(protocol_notice_write(frame, 1, &notice) == PROTOCOL_HEADER_BYTES + bytes);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, PROTOCOL_NOTICE_BYTES) == 0);
    }
    enum protocol_error code;
    bool fatal;
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    if (protocol_error_read(body, bytes, &code, &fatal, text, sizeof text, NULL) == CORE_OK)
        require(protocol_error_write(frame, 1, code, fatal, text) == PROTOCOL_HEADER_BYTES + bytes);
}

static void fuzz_changes(const uint8_t *body, uint32_t bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_modify modify;
    struct protocol_modified modified;
    if (protocol_modify_read(body, bytes, &modify, NULL) == CORE_OK) {
        require(modify.interval_ns >= 0 && modify.latency_ns >= 0);
        require(protocol_modify_write(frame, 1, &modify) == PROTOCOL_HEADER_BYTES + bytes);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, 8) == 0); /* times may be saturated */
    }
    if (protocol_modified_read(body, bytes, &modified, NULL) == CORE_OK) {
        protocol_modified_write(frame, 1, &modified);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
    struct protocol_rekey rekey;
    struct protocol_rekeyed rekeyed;
    if (protocol_rekey_read(body, bytes, &rekey, NULL) == CORE_OK) {
        require(rekey.key + rekey.key_bytes == body + bytes);
        require(protocol_rekey_write(frame, 1, &rekey) == PROTOCOL_HEADER_BYTES + bytes);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
    if (protocol_rekeyed_read(body, bytes, &rekeyed, NULL) == CORE_OK) {
        protocol_rekeyed_write(frame, 1, &rekeyed);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
}

static void fuzz_fixed(uint16_t version, const uint8_t *body, uint32_t bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_welcome welcome;
    struct protocol_opened opened;
    struct protocol_closed closed;
    struct protocol_result result;
    uint16_t low, high;
    if (protocol_hello_read(body, bytes, &low, &high, NULL) == CORE_OK)
        require(low <= high);
    if (protocol_welcome_read(body, bytes, &welcome, NULL) == CORE_OK) {
        protocol_welcome_write(frame, &welcome);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
    if (protocol_opened_read(version, body, bytes, &opened, NULL) == CORE_OK) {
        protocol_opened_write(version, frame, 1, &opened);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
    if (protocol_closed_read(body, bytes, &closed, NULL) == CORE_OK) {
        protocol_closed_write(frame, 1, &closed);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
    if (protocol_result_read(version, body, bytes, &result, NULL) == CORE_OK) {
        protocol_result_write(frame, 1, 1, &result, bytes - PROTOCOL_RESULT_BYTES);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, PROTOCOL_RESULT_BYTES) == 0);
    }
}

static void fuzz_version(uint16_t version, const uint8_t *data, size_t size)
{
    struct protocol_header header;
    if (protocol_header_read(version, data, &header) == CORE_OK) {
        uint8_t frame[PROTOCOL_HEADER_BYTES];
        protocol_header_write(frame, &header);
        require(memcmp(frame, data, sizeof frame) == 0);
        uint32_t minimum, maximum;
        if (protocol_body_range(version, header.type, CORE_PACKET_BYTES_MAX, &minimum, &maximum))
            require(minimum <= maximum && maximum <= CORE_PACKET_BYTES_MAX);
    }
    const uint8_t *body = data + PROTOCOL_HEADER_BYTES;
    uint32_t bytes = (uint32_t)(size - PROTOCOL_HEADER_BYTES);
    fuzz_open(version, body, bytes);
    fuzz_texts(version, body, bytes);
    fuzz_fixed(version, body, bytes);
    fuzz_changes(body, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < PROTOCOL_HEADER_BYTES || size > PROTOCOL_HEADER_BYTES + 4096)
        return 0;
    for (uint16_t version = PROTOCOL_VERSION_MIN; version <= PROTOCOL_VERSION; version++)
        fuzz_version(version, data, size);
    return 0;
}
