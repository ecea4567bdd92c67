#include "core/transport_stream.h"

#include "core/stream.h"

#define SYNC           0x47
#define HEADER_BYTES   4
#define SCRAMBLED      0x80 /* scrambling control 10 or 11 */
#define HAS_ADAPTATION 0x20
#define HAS_PAYLOAD    0x10

bool core_ts_is_packet(const uint8_t packet[CORE_TS_BYTES])
{
    return packet[0] == SYNC;
}

uint32_t core_ts_scrambled_bytes(const uint8_t packet[CORE_TS_BYTES], uint32_t *offset)
{
    const uint8_t control = packet[3];

    *offset = HEADER_BYTES + ((control & HAS_ADAPTATION) != 0 ? 1u + packet[HEADER_BYTES] : 0u);
    if ((control & SCRAMBLED) == 0 || (control & HAS_PAYLOAD) == 0 || *offset >= CORE_TS_BYTES)
        return 0;
    return (CORE_TS_BYTES - *offset) / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
}
