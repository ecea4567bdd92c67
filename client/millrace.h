/* libmillrace: the client side of a Millrace server (docs/protocol.md).
 *
 * A connection carries any number of streams. It may be driven in two ways:
 *   - blocking: millrace_open_stream, millrace_encrypt, millrace_close_stream do one thing and wait for it;
 *   - event-driven, for many streams at once: put packets into the output buffer (millrace_data), poll the
 *     descriptor (millrace_descriptor), let millrace_process write and read as much as the socket takes and
 * call the callbacks. Frames are batched: one write carries all that is buffered, one read may bring many
 * results.
 *
 * Threads: every function may be called from any thread; a connection has one lock, held during a call (a
 * blocking call gives it up while it sleeps). Callbacks run on the thread that happens to read, with the lock
 * held; from inside one, only functions of the same connection may be called, and of these not
 * millrace_process, millrace_disconnect or a blocking one. Different connections are independent.
 *
 * An answer that a blocking call waits for goes to that call and to no callback. If the call has given up
 * (CORE_TIMEOUT), a late RESULT or CLOSED, and a late answer to MODIFY, goes to the callbacks; a late OPENED
 * is dropped and its stream closed.
 *
 * Times: timeout_ms < 0 waits for ever. Signals: no call raises SIGPIPE.
 *
 * Errors: functions return a core_status; error (may be NULL) gets a sentence for a person. After
 * CORE_CLOSED, CORE_SYSTEM or CORE_INVALID from the wire the connection is dead: every further call says
 * CORE_CLOSED with the first cause. */
#ifndef MILLRACE_CLIENT_MILLRACE_H
#define MILLRACE_CLIENT_MILLRACE_H

#include "core/protocol.h"
#include "core/status.h"
#include "core/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct millrace; /* a connection */

struct millrace_tls { /* for tls: addresses; NULL members: system trust, no client certificate */
    const char *ca_file;
    const char *certificate_file, *key_file;
    const char *server_name; /* to verify; NULL: the host of the address */
};

struct millrace_result {
    uint32_t stream, sequence;
    struct protocol_result info;
    const uint8_t *iv;         /* with CORE_IV_RANDOM: of the message that begins here; else NULL */
    const uint8_t *ciphertext; /* valid during the callback, as the IV is */
    uint32_t bytes;
};

/* All optional. `argument` is passed through. on_refused answers OPEN, QUERY, MODIFY and REKEY. In on_closed
 * millrace_position still knows the stream. */
struct millrace_callbacks {
    void (*on_result)(void *argument, const struct millrace_result *result);
    void (*on_opened)(void *argument, uint32_t request, const struct protocol_opened *opened);
    void (*on_refused)(void *argument, uint32_t request, const struct protocol_refused *refused);
    void (*on_closed)(void *argument, uint32_t stream, const struct protocol_closed *closed);
    void (*on_pong)(void *argument, uint32_t request, const uint8_t *payload, uint32_t bytes);
    void (*on_error)(void *argument, uint32_t id, enum protocol_error code, bool fatal, const char *text);
    void (*on_modified)(void *argument, uint32_t request, const struct protocol_modified *modified);
    void (*on_notice)(void *argument, uint32_t stream, const struct protocol_notice *notice);
    void (*on_rekeyed)(void *argument, uint32_t request, const struct protocol_rekeyed *rekeyed);
    void *argument;
};

/* Connects to "unix:/path", "tcp:host:port" or "tls:host:port", says hello, waits for WELCOME. timeout_ms
 * covers all of that. On success *connection is the caller's, to be given to millrace_disconnect. */
CORE_CHECKED core_status millrace_connect(const char *address, const struct millrace_tls *tls, int timeout_ms,
                                          struct millrace **connection, struct core_error *error);
void millrace_disconnect(struct millrace *connection); /* NULL is fine; no other call may be running */

const struct protocol_welcome *millrace_welcome(const struct millrace *connection);
void millrace_set_callbacks(struct millrace *connection, const struct millrace_callbacks *callbacks);

/* ---- event-driven ---- */

int millrace_descriptor(const struct millrace *connection); /* for poll; owned by the connection */

/* POLLIN, and POLLOUT while output waits. */
short millrace_events(struct millrace *connection);

/* Writes what is buffered and reads what is there, calling back for every frame, until the socket would block
 * (or `reads` read calls were made; 0: no limit). CORE_OK also when there was nothing to do. */
CORE_CHECKED core_status millrace_process(struct millrace *connection, unsigned reads,
                                          struct core_error *error);

/* Only writes; reads too if writing fails, for the server's last words. */
CORE_CHECKED core_status millrace_flush(struct millrace *connection, struct core_error *error);

/* Buffers OPEN or QUERY; *request (may be NULL) is the id that the answer will carry. CORE_FULL: no room in
 * the output buffer, or 1,024 requests are unanswered; CORE_INVALID: the key fits its kind in no way;
 * CORE_UNSUPPORTED: a guaranteed stream of a server that speaks only version 1, or messages of one that speaks
 * no more than version 2. The contract is judged by the server. */
CORE_CHECKED core_status millrace_send_open(struct millrace *connection, enum protocol_type type,
                                            const struct protocol_open *open, uint32_t *request,
                                            struct core_error *error);
CORE_CHECKED core_status millrace_send_close(struct millrace *connection, uint32_t stream,
                                             struct core_error *error);
/* Buffers MODIFY for an open stream. The old contract holds until MODIFIED says from which packet on the new
 * one does, and stays if the answer is REFUSED. CORE_NOT_FOUND: the stream is not open, or being closed;
 * CORE_FULL as above; CORE_UNSUPPORTED: the server speaks only version 1. */
CORE_CHECKED core_status millrace_send_modify(struct millrace *connection,
                                              const struct protocol_modify *modify, uint32_t *request,
                                              struct core_error *error);
/* Buffers REKEY for an open stream with messages: another key from message number rekey->first on. Messages are
 * counted from the spec's first_unit on (0 but with CORE_IV_COUNTER). The message may be sent at once, but which
 * key it is under tells the answer alone: after REFUSED the old one goes on. CORE_NOT_FOUND, CORE_FULL and
 * CORE_INVALID as above; CORE_UNSUPPORTED: the server speaks no more than version 2. */
CORE_CHECKED core_status millrace_send_rekey(struct millrace *connection, const struct protocol_rekey *rekey,
                                             uint32_t *request, struct core_error *error);
CORE_CHECKED core_status millrace_send_ping(struct millrace *connection, const void *payload, uint32_t bytes,
                                            uint32_t *request, struct core_error *error);

/* Buffers one packet and returns its sequence number (which may be NULL). Of a stream with messages it is a whole
 * one, and with CORE_IV_EXPLICIT begins with its IV. CORE_NOT_FOUND: the stream is not open, or being closed;
 * CORE_INVALID: longer than packet_bytes_max of WELCOME, or a message has begun; CORE_FULL when the output
 * buffer (8 MiB) has no room: process, then try again. */
CORE_CHECKED core_status millrace_data(struct millrace *connection, uint32_t stream, const void *packet,
                                       uint32_t bytes, uint32_t *sequence, struct core_error *error);

/* The same for a part of a message: flags is PROTOCOL_DATA_FIRST, PROTOCOL_DATA_LAST, both or none. CORE_INVALID
 * also where they do not follow: a message begins where the one before has ended, and nowhere else. */
CORE_CHECKED core_status millrace_data_part(struct millrace *connection, uint32_t stream, const void *packet,
                                            uint32_t bytes, unsigned flags, uint32_t *sequence,
                                            struct core_error *error);

/* millrace_data without a copy: *packet is room for `bytes` in the output buffer, to be filled before the next
 * call on this connection. For one thread per connection only. */
CORE_CHECKED core_status millrace_data_reserve(struct millrace *connection, uint32_t stream, uint32_t bytes,
                                               uint8_t **packet, uint32_t *sequence,
                                               struct core_error *error);

size_t millrace_unsent_bytes(struct millrace *connection);

/* How far a stream has come back: what is needed to go on with it elsewhere, or after the server was started
 * anew. Open it again with `chain` as its IV (protocol_open.iv; WELCOME must allow that) and send from packet
 * `answered` on: the ciphertexts together are one CBC encryption, as if nothing had been in between. What had
 * been sent beyond that is to be sent again. Known as long as the connection exists, dead or not, and the
 * stream has not been closed. CORE_NOT_FOUND.
 *
 * Of a stream with messages so with CORE_IV_CHAIN and without a pattern alone, where packet `answered` is sent as a
 * FIRST. Else `chain` is of no use, and the message that this packet belongs to is sent again from its beginning. With
 * CORE_IV_CHAIN and a pattern its IV is the last block that was *encrypted* before it, which need not be the last that
 * came back. */
struct millrace_position {
    uint32_t answered;               /* sequence of the first packet without a RESULT */
    uint8_t chain[CORE_BLOCK_BYTES]; /* last block of ciphertext that came back, or the IV in force */
};
CORE_CHECKED core_status millrace_position(struct millrace *connection, uint32_t stream,
                                           struct millrace_position *position, struct core_error *error);

/* ---- blocking ---- */

/* OPEN and wait. CORE_OK: *opened; CORE_REFUSED: *refused (may be NULL) and its text in error. */
CORE_CHECKED core_status millrace_open_stream(struct millrace *connection, const struct protocol_open *open,
                                              int timeout_ms, struct protocol_opened *opened,
                                              struct protocol_refused *refused, struct core_error *error);
CORE_CHECKED core_status millrace_query(struct millrace *connection, const struct protocol_open *open,
                                        int timeout_ms, struct protocol_opened *opened,
                                        struct protocol_refused *refused, struct core_error *error);

/* MODIFY and wait. CORE_OK: *modified; CORE_REFUSED: *refused (may be NULL) and its text in error. */
CORE_CHECKED core_status millrace_modify(struct millrace *connection, const struct protocol_modify *modify,
                                         int timeout_ms, struct protocol_modified *modified,
                                         struct protocol_refused *refused, struct core_error *error);

/* REKEY and wait. CORE_OK: *rekeyed (may be NULL); CORE_REFUSED: *refused (may be NULL) and its text in error. */
CORE_CHECKED core_status millrace_rekey(struct millrace *connection, const struct protocol_rekey *rekey,
                                        int timeout_ms, struct protocol_rekeyed *rekeyed,
                                        struct protocol_refused *refused, struct core_error *error);

/* One packet there and back, or one message (millrace_data). ciphertext: room for bytes + 16, and for 16 more
 * with CORE_IV_RANDOM, where the IV comes first. CORE_INVALID with the server's reason if the
 * result's status is not OK. */
CORE_CHECKED core_status millrace_encrypt(struct millrace *connection, uint32_t stream, const void *packet,
                                          uint32_t bytes, int timeout_ms, uint8_t *ciphertext,
                                          uint32_t *ciphertext_bytes, struct protocol_result *result,
                                          struct core_error *error);
CORE_CHECKED core_status millrace_close_stream(struct millrace *connection, uint32_t stream, int timeout_ms,
                                               struct protocol_closed *closed, struct core_error *error);
CORE_CHECKED core_status millrace_ping(struct millrace *connection, int timeout_ms, core_ns *round_trip_ns,
                                       struct core_error *error);

#endif
