/* Packets of streams with a pattern (core/stream.h). What is encrypted of one is one chain: it goes to the unit, worker
 * or GPU, as if the rest were not there, in one piece. So the I/O thread sorts a packet when it has been received,
 * the encrypted blocks first and behind them what passes as it is, and puts both back in their order when it is
 * delivered. To everything between it is a packet with a long end that is not encrypted.
 *
 * On the stream's I/O thread. Nothing is allocated. */
#ifndef MILLRACE_SERVER_STREAM_PATTERN_H
#define MILLRACE_SERVER_STREAM_PATTERN_H

#include <stdint.h>

struct server_packet;

/* A packet that was received whole, of which cpu.bytes are to be encrypted: sorts it, into its slot. Does nothing
 * without a pattern. */
void server_pattern_sort(struct server_packet *packet);

/* A packet in its slot that server_pattern_sort has sorted: puts it back in its order. Does nothing to others. */
void server_pattern_restore(struct server_packet *packet);

#endif
