/* The contract of a rendition's stream: what `millrace hls` asks the server for. Pure. */
#ifndef MILLRACE_CLIENT_HLS_CONTRACT_H
#define MILLRACE_CLIENT_HLS_CONTRACT_H

#include "core/protocol.h"

#include <stdbool.h>
#include <stddef.h>

#define HLS_PACKET_BYTES (UINT32_C(32) << 10) /* of a packet, at most */
#define HLS_HEADROOM     1.5                  /* of a contract, for files that are larger than those before */

/* The contract for files of up to `bytes` bytes, one every target_s (twice that, if parts are encrypted beside
 * their segments), each to be encrypted within wait_ns: all packets of a file at once, where the server's limits
 * let them, else in the first half of the wait. With a half more than `bytes` for the files to come. */
void hls_contract(size_t bytes, double target_s, bool has_parts, core_ns wait_ns,
                  const struct protocol_welcome *welcome, struct core_stream_spec *spec);

#endif
