/* Arbitrary bytes for every decoder of the wire protocol. The input is one frame: header, then body. What a
 * decoder accepts must survive being written and read again. */
#include "server/protocol.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void fuzz_open(const uint8_t *body, uint32_t bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_open open, again;
    if (protocol_open_read(body, bytes, &open, NULL) != CORE_OK)
        return;
    require(open.key + open.key_bytes == body + bytes);
    uint32_t written = protocol_open_write(frame, PROTOCOL_OPEN, 1, &open) - PROTOCOL_HEADER_BYTES;
    require(written == bytes);
    require(protocol_open_read(frame + PROTOCOL_HEADER_BYTES, written, &again, NULL) == CORE_OK);
    require(again.key_bytes == open.key_bytes && memcmp(again.key, open.key, open.key_bytes) == 0);
}

static void fuzz_texts(const uint8_t *body, uint32_t bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_refused refused;
    if (protocol_refused_read(body, bytes, &refused, NULL) == CORE_OK)
        require(protocol_refused_write(frame, 1, &refused) == PROTOCOL_HEADER_BYTES + bytes);
    enum protocol_error code;
    bool fatal;
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    if (protocol_error_read(body, bytes, &code, &fatal, text, sizeof text, NULL) == CORE_OK)
        require(protocol_error_write(frame, 1, code, fatal, text) == PROTOCOL_HEADER_BYTES + bytes);
}

static void fuzz_fixed(const uint8_t *body, uint32_t bytes)
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
    if (protocol_opened_read(body, bytes, &opened, NULL) == CORE_OK) {
        protocol_opened_write(frame, 1, &opened);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
    if (protocol_closed_read(body, bytes, &closed, NULL) == CORE_OK) {
        protocol_closed_write(frame, 1, &closed);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, bytes) == 0);
    }
    if (protocol_result_read(body, bytes, &result, NULL) == CORE_OK) {
        protocol_result_write(frame, 1, 1, &result, bytes - PROTOCOL_RESULT_BYTES);
        require(memcmp(frame + PROTOCOL_HEADER_BYTES, body, PROTOCOL_RESULT_BYTES) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < PROTOCOL_HEADER_BYTES || size > PROTOCOL_HEADER_BYTES + 4096)
        return 0;
    struct protocol_header header;
    if (protocol_header_read(data, &header) == CORE_OK) {
        uint8_t frame[PROTOCOL_HEADER_BYTES];
        protocol_header_write(frame, &header);
        require(memcmp(frame, data, sizeof frame) == 0);
        uint32_t minimum, maximum;
        if (protocol_body_range(header.type, CORE_PACKET_BYTES_MAX, &minimum, &maximum))
            require(minimum <= maximum && maximum <= CORE_PACKET_BYTES_MAX);
    }
    const uint8_t *body = data + PROTOCOL_HEADER_BYTES;
    uint32_t bytes = (uint32_t)(size - PROTOCOL_HEADER_BYTES);
    fuzz_open(body, bytes);
    fuzz_texts(body, bytes);
    fuzz_fixed(body, bytes);
    return 0;
}
