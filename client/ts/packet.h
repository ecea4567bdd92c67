/* Datagrams of MPEG transport streams: what of one is RTP, what are packets of 188 bytes, and which of these are
 * to be scrambled. Pure. */
#ifndef MILLRACE_CLIENT_TS_PACKET_H
#define MILLRACE_CLIENT_TS_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TS_PACKET_BYTES 188
#define TS_PIDS         8192

/* Where the packets are in a datagram: behind an RTP header (RFC 3550, with sources and extension), if it has one,
 * and before its padding. Whether it is RTP tells the first byte of each datagram: that of a packet is 0x47. */
struct ts_datagram {
    size_t offset, bytes; /* of the packets, one at least */
    bool has_pcr;
};

/* False: not whole packets, one without 0x47, with an adaptation field that is longer than it, or with scrambling
 * control bits set already. */
bool ts_datagram_read(const uint8_t *bytes, size_t count, struct ts_datagram *datagram);

uint16_t ts_packet_pid(const uint8_t packet[TS_PACKET_BYTES]);

/* Where the payload begins; TS_PACKET_BYTES: there is none. */
size_t ts_packet_payload(const uint8_t packet[TS_PACKET_BYTES]);

/* Marks packets of ts_datagram_read as to be scrambled with the odd or the even word: all with payload whose PID's
 * bit is not set in `clear` (TS_PIDS bits). Returns how many these are. */
unsigned ts_datagram_mark(uint8_t *packets, size_t bytes, const uint8_t clear[TS_PIDS / 8], bool odd);

#endif
