/* Ready-made kinds of streams, as formats in use have them: a share of a workload's streams is made of them.
 *
 *   hls        segments of 100 packets, padded, with their number as IV (RFC 8216, METHOD=AES-128)
 *   dvb-cissa  datagrams of seven transport-stream packets with a constant IV (ETSI TS 103 127)
 *   cbcs       samples of four packets of which one block in ten is encrypted, a constant IV (ISO/IEC 23001-7)
 *   packets    each packet with a random IV of the server's, padded (RFC 3602)
 *   decrypt    packets that bring their IV, decrypted
 *
 * The server must allow client_iv for all of them but `packets`. */
#ifndef MILLRACE_INPUTGEN_KINDS_H
#define MILLRACE_INPUTGEN_KINDS_H

#include "config/workload.h"
#include "core/status.h"

#define INPUTGEN_KINDS_HELP                                                                                  \
    "KIND=PERCENT of the streams of every class, with commas between: hls, dvb-cissa, cbcs, packets, "       \
    "decrypt"

/* "hls=20,dvb-cissa=10": of every class 20 % of the streams become HLS segments, 10 % datagrams. They are classes of
 * their own, video.hls beside video, and keep rate, deadline, burst and, but for dvb-cissa, the length of packets; all
 * have AES-128. So streams of each class get their shares evenly, and the draws are repeatable as ever
 * (inputgen_streams_make). CORE_INVALID with what is wrong in error; the workload is still to be freed. */
CORE_CHECKED core_status inputgen_kinds_share(struct config_workload *workload, const char *shares,
                                              struct core_error *error);

#endif
