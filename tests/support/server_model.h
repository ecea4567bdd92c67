/* A server and a model of it: what its clients must be told, by docs/protocol.md alone.
 *
 * A sequence is a string of bytes, each run of which is an operation of a client: HELLO, OPEN, QUERY, DATA,
 * MODIFY, REKEY, CLOSE, PING, right ones as often as wrong ones, on several connections, in pieces cut anywhere; an
 * end of sending, a reset, a client that does not read, time that passes, a worker that is late, a card that is
 * lost and comes back. Every eighth sequence breaks no rule; in the middle of one in 128 the server stops; one in
 * 64 has a server of its own, whose I/O thread does work of its workers. Every string is a sequence. In a quarter
 * clients ask for streams with messages, of all kinds, and change their keys. The server is a whole one on a virtual
 * clock (virtual_threads.h) with two cards (virtual_gpu.h), so a sequence goes the same way each time.
 *
 * Checked are: each request has one answer, of a kind that may answer it; results come in order, each once,
 * with the status and the ciphertext (OpenSSL's CBC chain) of what was sent; waited_us is what the document's
 * formula says, and latency_ns no less than the time since the packet was eligible by it; the mark "met" says
 * whether latency_ns is within the contract, as it is unless a worker was late, or the loss of cards ended the
 * promise: of any card to a standard stream, of two together to a guaranteed one. NOTICE and flag 8 tell of
 * losses that were; CLOSED has the counts of what came; a fatal ERROR has the code of the first rule that was
 * broken, and ends that connection only. A server that stops delivers all packets that were sent whole,
 * answers all requests, and tells each client the end. Else all connections have ended in the end, the cards are
 * back, and admission grants what it offered to the empty server and, where it is asked, offers the same to the
 * nanosecond. Of a stream that a MODIFY may have changed, and of a client that the server may have stopped
 * reading, times are not checked.
 *
 * The first deviation is told on stderr, with what test_model_name says, and aborts the program. */
#ifndef MILLRACE_TESTS_SERVER_MODEL_H
#define MILLRACE_TESTS_SERVER_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* Starts the server, once for all sequences. */
void test_model_start(void);
void test_model_stop(void);

/* How a deviation is told: what repeats the sequence. Borrowed. */
void test_model_name(const char *name);

/* From the empty server to the empty server. */
void test_model_run(const uint8_t *bytes, size_t count);

#endif
