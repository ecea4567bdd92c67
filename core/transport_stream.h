/* Transport-stream packets (ISO/IEC 13818-1, 2.4.3.2), as far as scrambling them is concerned. Pure; any thread. */
#ifndef MILLRACE_CORE_TRANSPORT_STREAM_H
#define MILLRACE_CORE_TRANSPORT_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#define CORE_TS_BYTES 188
#define CORE_TS_SCRAMBLED_BYTES                                                                              \
    176 /* most of a packet that is encrypted: whole blocks behind a header of 4 bytes */

/* Does it begin with the byte that each of them begins with? */
bool core_ts_is_packet(const uint8_t packet[CORE_TS_BYTES]);

/* Bytes of the packet that are encrypted where it is scrambled: the whole blocks of its payload, from *offset on,
 * behind header and adaptation field. 0: none, because its scrambling control says that it is clear (00, or the
 * reserved 01) or because its payload is shorter than a block. */
uint32_t core_ts_scrambled_bytes(const uint8_t packet[CORE_TS_BYTES], uint32_t *offset);

#endif
