#include "client/ts/packet.h"

#define SYNC             0x47
#define RTP_HEADER_BYTES 12

enum { BITS_SCRAMBLING = 0xC0, BIT_ADAPTATION = 0x20, BIT_PAYLOAD = 0x10, BIT_PCR = 0x10 };

/* 0: it is none. */
static size_t rtp_header_bytes(const uint8_t *bytes, size_t count)
{
    if (count < RTP_HEADER_BYTES || bytes[0] >> 6 != 2)
        return 0;
    size_t length = RTP_HEADER_BYTES + 4 * (size_t)(bytes[0] & 0x0F);
    if ((bytes[0] & 0x10) == 0)
        return length;
    if (count < length + 4)
        return 0;
    return length + 4 + 4 * ((size_t)bytes[length + 2] << 8 | bytes[length + 3]);
}

static bool read_packet(const uint8_t *packet, bool *has_pcr)
{
    if (packet[0] != SYNC || (packet[3] & BITS_SCRAMBLING) != 0)
        return false;
    if ((packet[3] & BIT_ADAPTATION) == 0)
        return true;
    *has_pcr |= packet[4] >= 7 && (packet[5] & BIT_PCR) != 0;
    return packet[4] <= TS_PACKET_BYTES - 5;
}

bool ts_datagram_read(const uint8_t *bytes, size_t count, struct ts_datagram *datagram)
{
    size_t header = 0, padding = 0;
    if (count > 0 && bytes[0] != SYNC) {
        header = rtp_header_bytes(bytes, count);
        padding = bytes[0] & 0x20 ? bytes[count - 1] : 0;
        if (header == 0)
            return false;
    }
    if (count <= header + padding || (count - header - padding) % TS_PACKET_BYTES != 0)
        return false;
    *datagram = (struct ts_datagram){.offset = header, .bytes = count - header - padding};
    for (size_t at = 0; at < datagram->bytes; at += TS_PACKET_BYTES)
        if (!read_packet(bytes + header + at, &datagram->has_pcr))
            return false;
    return true;
}

uint16_t ts_packet_pid(const uint8_t packet[TS_PACKET_BYTES])
{
    return (uint16_t)((packet[1] & 0x1F) << 8 | packet[2]);
}

size_t ts_packet_payload(const uint8_t packet[TS_PACKET_BYTES])
{
    if ((packet[3] & BIT_PAYLOAD) == 0)
        return TS_PACKET_BYTES;
    return packet[3] & BIT_ADAPTATION ? (size_t)packet[4] + 5 : 4;
}

unsigned ts_datagram_mark(uint8_t *packets, size_t bytes, const uint8_t clear[TS_PIDS / 8], bool odd)
{
    unsigned marked = 0;
    for (uint8_t *packet = packets; packet < packets + bytes; packet += TS_PACKET_BYTES) {
        uint16_t pid = ts_packet_pid(packet);
        if ((clear[pid / 8] >> (pid % 8) & 1) != 0 || ts_packet_payload(packet) >= TS_PACKET_BYTES)
            continue;
        packet[3] = (uint8_t)((packet[3] & ~BITS_SCRAMBLING) | (odd ? 0xC0 : 0x80));
        marked++;
    }
    return marked;
}
