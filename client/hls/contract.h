/* The contract of a rendition's stream: what `millrace hls` asks the server for. Pure. */
#ifndef MILLRACE_CLIENT_HLS_CONTRACT_H
#define MILLRACE_CLIENT_HLS_CONTRACT_H

#include "client/millrace.h"
#include "core/stream.h"

#include <stdbool.h>
#include <stddef.h>

#define HLS_PACKET_BYTES (UINT32_C(32) << 10) /* of a packet, at most */
#define HLS_HEADROOM     1.25                 /* of a contract, for files that are larger than those before */

/* Two kinds of files come in a rendition, each at its pace. */
enum hls_kind { HLS_KIND_SEGMENT, HLS_KIND_PART, HLS_KINDS };
struct hls_pace {
    size_t bytes;   /* of the largest; 0: none comes */
    double every_s; /* one every so long */
};

/* The contract for such files and, so much larger as HLS_HEADROOM says, those to come, each to be encrypted within
 * wait_ns: all packets of one of each kind at once, where the server's limits let them, else in the first half of the
 * wait. */
void hls_contract(const struct hls_pace paces[HLS_KINDS], core_ns wait_ns,
                  const struct millrace_welcome *welcome, struct core_stream_spec *spec);

#endif
