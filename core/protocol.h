/* Protocol versions 1 to 4 on the wire: sizes, numbers, and the codec. docs/protocol.md is the
 * specification; this header is its C form, shared by server and client. Pure; any thread.
 *
 * Every frame is a 16-byte header and a body, all integers little-endian:
 *     0  u32 body_bytes     4  u8 type   5  u8 flags       6  u16 zero     8  u32 id    12  u32 sequence */
#ifndef MILLRACE_CORE_PROTOCOL_H
#define MILLRACE_CORE_PROTOCOL_H

#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION_MIN       1
#define PROTOCOL_VERSION           4                    /* the newest */
#define PROTOCOL_MAGIC             UINT32_C(0x43524C4D) /* "MLRC" */
#define PROTOCOL_HEADER_BYTES      16
#define PROTOCOL_RESULT_BYTES      16 /* fixed part of a RESULT body, before the ciphertext */
#define PROTOCOL_HELLO_BYTES       8  /* client's HELLO body */
#define PROTOCOL_WELCOME_BYTES     48 /* server's WELCOME body, fixed part */
#define PROTOCOL_OPEN_BYTES        48 /* fixed part of OPEN and QUERY in version 3 */
#define PROTOCOL_OPEN_BYTES_2      32 /* in versions 1 and 2 */
#define PROTOCOL_OPENED_BYTES      72 /* in version 2 */
#define PROTOCOL_OPENED_BYTES_1    48 /* in version 1 */
#define PROTOCOL_REFUSED_BYTES     32 /* fixed part, before the text, in version 2 */
#define PROTOCOL_REFUSED_BYTES_1   24 /* in version 1 */
#define PROTOCOL_CLOSED_BYTES      40
#define PROTOCOL_MODIFY_BYTES      24
#define PROTOCOL_MODIFIED_BYTES    56
#define PROTOCOL_NOTICE_BYTES      16 /* fixed part, before the text */
#define PROTOCOL_REKEY_BYTES       16 /* fixed part, before the key */
#define PROTOCOL_REKEYED_BYTES     24
#define PROTOCOL_LANE_BYTES        4
#define PROTOCOL_LANED_BYTES       4   /* fixed part, before the text */
#define PROTOCOL_ERROR_BYTES       4   /* fixed part, before the text */
#define PROTOCOL_CONTROL_BYTES_MAX 512 /* longest body of any frame but DATA and RESULT */
#define PROTOCOL_KEY_NAME_MAX      63
#define PROTOCOL_PING_BYTES_MAX    64

enum protocol_type {
    PROTOCOL_HELLO = 1,   /* client -> server */
    PROTOCOL_WELCOME = 2, /* server -> client */
    PROTOCOL_OPEN = 3,    /* client -> server */
    PROTOCOL_QUERY = 4,   /* client -> server */
    PROTOCOL_OPENED = 5,  /* server -> client */
    PROTOCOL_REFUSED = 6, /* server -> client */
    PROTOCOL_DATA = 7,    /* client -> server */
    PROTOCOL_RESULT = 8,  /* server -> client */
    PROTOCOL_CLOSE = 9,   /* client -> server */
    PROTOCOL_CLOSED = 10, /* server -> client */
    PROTOCOL_ERROR = 11,  /* server -> client */
    PROTOCOL_PING = 12,   /* client -> server */
    PROTOCOL_PONG = 13,   /* server -> client */
    /* from version 2 on: */
    PROTOCOL_MODIFY = 14,   /* client -> server */
    PROTOCOL_MODIFIED = 15, /* server -> client */
    PROTOCOL_NOTICE = 16,   /* server -> client */
    /* from version 3 on: */
    PROTOCOL_REKEY = 17,   /* client -> server */
    PROTOCOL_REKEYED = 18, /* server -> client */
    PROTOCOL_LANE = 19,    /* client -> server */
    PROTOCOL_LANED = 20    /* server -> client */
};

/* Flags of DATA in version 3: its packet begins a message, and ends one. */
#define PROTOCOL_DATA_FIRST 1u
#define PROTOCOL_DATA_LAST  2u

struct protocol_header {
    uint32_t body_bytes;
    uint8_t type;
    uint8_t flags; /* DATA in version 3; else 0 */
    uint32_t
        id; /* stream id, or the request id of OPEN, QUERY, MODIFY, REKEY, PING and their answers, or 0 */
    uint32_t sequence; /* DATA and RESULT; else 0 */
};

enum protocol_key_kind { PROTOCOL_KEY_NONE = 0, PROTOCOL_KEY_INLINE = 1, PROTOCOL_KEY_NAMED = 2 };

/* WELCOME flags */
#define PROTOCOL_ALLOWS_INLINE_KEY 1u
#define PROTOCOL_ALLOWS_CLIENT_IV  2u
#define PROTOCOL_HAS_NAMED_KEYS    4u
#define PROTOCOL_HAS_LANES         8u /* version 3, on a Unix socket */

struct protocol_welcome {
    uint16_t version;
    uint16_t flags;
    uint32_t packet_bytes_max, burst_packets_max, streams_max; /* streams of this connection */
    uint64_t stream_buffer_bytes_max;
    uint64_t bytes_per_key;
    core_ns interval_ns_min, latency_ns_min;
};

struct protocol_open {
    struct core_stream_spec spec;
    enum protocol_key_kind key_kind;
    bool has_iv;
    uint8_t iv[CORE_BLOCK_BYTES];
    uint8_t mac_id[CORE_MAC_BYTES]; /* with a MAC */
    const uint8_t *key;             /* inline: key bytes, inside the body; named: name, not terminated */
    uint32_t key_bytes;             /* its length */
};

enum protocol_unit { PROTOCOL_UNIT_NONE = 0, PROTOCOL_UNIT_CPU = 1, PROTOCOL_UNIT_GPU = 2 };

/* What a stream has for the loss of any one GPU; version 2. All 0: a standard stream on a GPU, of which
 * nothing is promised then. A stream on a CPU worker, which no GPU can fail, has no unit and no share,
 * whatever its class, and the bound that it has always. */
struct protocol_backup {
    enum protocol_unit unit; /* where its packets go then; NONE: nowhere else */
    uint16_t unit_index;
    uint32_t
        reserved_ppb; /* share of that unit's time held for it: what the class costs, parts per billion */
    core_ns bound_ns; /* latency through the loss, at most what was asked */
};

struct protocol_opened {
    uint32_t stream; /* 0 in the answer to QUERY */
    enum protocol_unit unit;
    uint16_t unit_index;
    core_ns bound_ns;   /* guaranteed latency, at most what was asked */
    core_ns decided_ns; /* how long the decision took, from the request's receipt */
    uint32_t
        queue_packets; /* packets the server holds for this stream before it stops reading the connection */
    uint8_t iv[CORE_BLOCK_BYTES];
    core_ns in_force_ns; /* version 2: from the receipt until the promise held; 0 in the answer to QUERY */
    struct protocol_backup backup; /* version 2; all 0 in version 1 */
};

/* The contract that an open stream is to have; packet size, cipher, padding, key and class stay. */
struct protocol_modify {
    uint32_t stream;
    uint32_t burst_packets;
    core_ns interval_ns, latency_ns;
};

struct protocol_modified {
    uint32_t stream;
    enum protocol_unit unit; /* that serves it from now on */
    uint16_t unit_index;
    core_ns bound_ns;       /* guaranteed latency, at most what was asked */
    core_ns decided_ns;     /* how long the decision took, from the request's receipt */
    core_ns in_force_ns;    /* from the receipt until the new contract was in force */
    uint32_t first;         /* sequence of the first packet under the new contract */
    uint32_t queue_packets; /* as in OPENED */
    struct protocol_backup backup;
};

/* Another key for an open stream of messages, from number `first` on; the cipher stays. */
struct protocol_rekey {
    uint32_t stream;
    enum protocol_key_kind key_kind; /* not NONE */
    const uint8_t *key;              /* as in OPEN */
    uint32_t key_bytes;
    uint64_t first;
};

struct protocol_rekeyed {
    uint32_t stream;
    uint64_t first;      /* as asked for */
    core_ns in_force_ns; /* from the receipt until every unit of the stream had the key */
};

enum protocol_notice_kind {
    PROTOCOL_NOTICE_DEGRADED = 1, /* its GPU is lost: served as far as it goes, in the order of deadlines */
    PROTOCOL_NOTICE_RESTORED = 2, /* its promise holds again */
    PROTOCOL_NOTICE_MOVED = 3,    /* another unit serves it from now on; the promise has held all the time */
    /* version 4, of the connection (stream 0; no unit and no bound): the server is about to stop or to be worked on,
     * and serves its streams until then: they are to be opened at another one */
    PROTOCOL_NOTICE_LEAVING = 4
};

struct protocol_notice {
    enum protocol_notice_kind kind;
    enum protocol_unit unit; /* that serves it now */
    uint16_t unit_index;
    core_ns bound_ns; /* guaranteed latency from now on; 0: none (DEGRADED) */
    char text[PROTOCOL_CONTROL_BYTES_MAX];
};

enum protocol_refusal {
    PROTOCOL_REFUSED_CAPACITY = 1, /* can not be promised; see constraint and offer */
    PROTOCOL_REFUSED_SPEC = 2,     /* a value is outside its range */
    PROTOCOL_REFUSED_LIMIT = 3,    /* a configured limit: streams, packet, burst, buffers */
    PROTOCOL_REFUSED_KEY = 4,      /* key name unknown or not for this client, wrong key length, or inline
                                      key not allowed here */
    PROTOCOL_REFUSED_IV = 5,       /* client IV not allowed, or not with this key */
    PROTOCOL_REFUSED_DRAINING = 6, /* the server is stopping */
    PROTOCOL_REFUSED_INTERNAL = 7, /* out of memory */
    /* from version 2 on, of MODIFY and REKEY: */
    PROTOCOL_REFUSED_STREAM = 8, /* the stream is not open on this connection */
    PROTOCOL_REFUSED_BUSY = 9    /* another one of it is under way, or it is too late or too early for it */
};

/* What a contract that is refused with CAPACITY exceeds. Later servers may send more; see docs/protocol.md,
 * section 4. The planner's enum perfmodel_limit has the same values. */
enum protocol_limit {
    PROTOCOL_LIMIT_NONE = 0,
    PROTOCOL_LIMIT_DEADLINE = 1,
    PROTOCOL_LIMIT_CPU_UTILISATION = 2,
    PROTOCOL_LIMIT_CPU_DEMAND = 3,
    PROTOCOL_LIMIT_IO = 4,
    PROTOCOL_LIMIT_GPU_COPY = 5,
    PROTOCOL_LIMIT_GPU_KERNEL = 6,
    PROTOCOL_LIMIT_GPU_LATENCY = 7,
    PROTOCOL_LIMIT_GPU_MEMORY = 8,
    PROTOCOL_LIMIT_GPU_OUT = 9,
    PROTOCOL_LIMIT_RESERVE = 10,
    PROTOCOL_LIMIT_BACKUP = 11
};

struct protocol_refused {
    enum protocol_refusal code;
    uint16_t constraint;       /* enum protocol_limit for CAPACITY, else 0 */
    core_ns offer_interval_ns; /* 0: none */
    core_ns offer_latency_ns;  /* 0: none */
    core_ns decided_ns;        /* version 2: from the request's receipt until it was refused */
    char text[PROTOCOL_CONTROL_BYTES_MAX];
};

enum protocol_result_status {
    PROTOCOL_RESULT_OK = 0,
    PROTOCOL_RESULT_NOT_BLOCKS = 1, /* padding none and a length that is no multiple of 16; chain unchanged */
    PROTOCOL_RESULT_TOO_LONG = 2,   /* longer than the stream's packet_bytes; chain unchanged */
    PROTOCOL_RESULT_KEY_SPENT =
        3,                      /* bytes_per_key reached; chain unchanged; open a new stream with a new key */
    PROTOCOL_RESULT_FAILED = 4, /* the engine failed; the stream can not go on and is closed */
    PROTOCOL_RESULT_BROKEN = 5, /* version 3: an earlier packet of its message was not encrypted */
    PROTOCOL_RESULT_FORGED = 6  /* version 3: its MAC is not right, so that it is not decrypted */
};

#define PROTOCOL_RESULT_MET 1u /* deadline met */
#define PROTOCOL_RESULT_READER                                                                               \
    2u /* ready in time; handed over late only because the reader kept it waiting */
#define PROTOCOL_RESULT_POLICED 4u  /* came faster than the contract; waited_us says how long it was held */
#define PROTOCOL_RESULT_FAULT   8u  /* version 2: went the way round a lost device */
#define PROTOCOL_RESULT_HAS_IV  16u /* version 3: 16 bytes, the IV of the message, precede the ciphertext */

struct protocol_result {
    enum protocol_result_status status;
    uint8_t flags;
    uint32_t waited_us; /* eligible time - arrival */
    core_ns latency_ns; /* hand-over to the socket - eligible time */
};

enum protocol_close_reason {
    PROTOCOL_CLOSE_ASKED = 0,
    PROTOCOL_CLOSE_DRAINED = 1,
    PROTOCOL_CLOSE_FAILED = 2,
    PROTOCOL_CLOSE_IDLE = 3 /* version 1 is told DRAINED */
};

struct protocol_closed {
    enum protocol_close_reason reason;
    uint64_t packets, bytes, met, missed; /* bytes: of ciphertext */
};

enum protocol_error {
    PROTOCOL_ERROR_MALFORMED = 1, /* frame or body breaks the format */
    PROTOCOL_ERROR_OVERSIZED = 2, /* body longer than this type allows */
    PROTOCOL_ERROR_UNKNOWN_TYPE = 3,
    PROTOCOL_ERROR_STATE = 4,    /* a frame that is not allowed now (before HELLO, second HELLO) */
    PROTOCOL_ERROR_VERSION = 5,  /* no common version */
    PROTOCOL_ERROR_STREAM = 6,   /* no such stream on this connection */
    PROTOCOL_ERROR_SEQUENCE = 7, /* DATA out of sequence */
    PROTOCOL_ERROR_TIMEOUT = 8,  /* hello, frame, idle or stall time ran out */
    PROTOCOL_ERROR_LIMIT = 9,    /* too many connections, or too many requests unanswered */
    PROTOCOL_ERROR_SHUTDOWN = 10 /* the server is stopping */
};

/* Where a frame is not the same in every version, its functions take the version in force (WELCOME); before
 * that, any.
 *
 * Every encoder writes header and body into `frame` (PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX at
 * most) and returns the frame's length. Texts are cut to fit. Every decoder takes a body and its length and
 * returns CORE_OK or CORE_INVALID with the reason in error; it reads nothing outside the body. */
void protocol_header_write(uint8_t *frame, const struct protocol_header *header);
/* CORE_INVALID if a field that must be 0 is not: flags of all but DATA in version 3, the zero field, the id of
 * HELLO and WELCOME, the sequence of all but DATA and RESULT. Fills *header in any case; does not judge type and length. */
CORE_CHECKED core_status protocol_header_read(uint16_t version, const uint8_t *frame,
                                              struct protocol_header *header);

/* Longest body allowed for a frame type from the client (DATA: packet_bytes_max), and shortest; false if the
 * type is unknown or comes from the server only. */
bool protocol_body_range(uint16_t version, uint8_t type, uint32_t packet_bytes_max, uint32_t *minimum,
                         uint32_t *maximum);

uint32_t protocol_hello_write(uint8_t *frame, uint16_t version_min, uint16_t version_max);
CORE_CHECKED core_status protocol_hello_read(const uint8_t *body, uint32_t bytes, uint16_t *version_min,
                                             uint16_t *version_max, struct core_error *error);
uint32_t protocol_welcome_write(uint8_t *frame, const struct protocol_welcome *welcome);
CORE_CHECKED core_status protocol_welcome_read(const uint8_t *body, uint32_t bytes,
                                               struct protocol_welcome *welcome, struct core_error *error);
/* type is PROTOCOL_OPEN or PROTOCOL_QUERY. open->key points at the key or name to copy. A guaranteed stream
 * can be asked for from version 2 on, messages from version 3 on. */
uint32_t protocol_open_write(uint16_t version, uint8_t *frame, enum protocol_type type, uint32_t request,
                             const struct protocol_open *open);
/* Checks the format; the values of the contract are for core_stream_spec_check. open->key points into body.
 */
CORE_CHECKED core_status protocol_open_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                                            struct protocol_open *open, struct core_error *error);
uint32_t protocol_opened_write(uint16_t version, uint8_t *frame, uint32_t request,
                               const struct protocol_opened *opened);
CORE_CHECKED core_status protocol_opened_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                                              struct protocol_opened *opened, struct core_error *error);
uint32_t protocol_modify_write(uint8_t *frame, uint32_t request, const struct protocol_modify *modify);
/* Checks the format; the values are for core_stream_spec_check. */
CORE_CHECKED core_status protocol_modify_read(const uint8_t *body, uint32_t bytes,
                                              struct protocol_modify *modify, struct core_error *error);
uint32_t protocol_modified_write(uint8_t *frame, uint32_t request, const struct protocol_modified *modified);
CORE_CHECKED core_status protocol_modified_read(const uint8_t *body, uint32_t bytes,
                                                struct protocol_modified *modified, struct core_error *error);
uint32_t protocol_rekey_write(uint8_t *frame, uint32_t request, const struct protocol_rekey *rekey);
/* rekey->key points into body. */
CORE_CHECKED core_status protocol_rekey_read(const uint8_t *body, uint32_t bytes,
                                             struct protocol_rekey *rekey, struct core_error *error);
uint32_t protocol_rekeyed_write(uint8_t *frame, uint32_t request, const struct protocol_rekeyed *rekeyed);
CORE_CHECKED core_status protocol_rekeyed_read(const uint8_t *body, uint32_t bytes,
                                               struct protocol_rekeyed *rekeyed, struct core_error *error);
/* Bytes of each ring; LANED: 0 with the reason why there is no lane, else the text is empty. */
uint32_t protocol_lane_write(uint8_t *frame, uint32_t ring_bytes);
CORE_CHECKED core_status protocol_lane_read(const uint8_t *body, uint32_t bytes, uint32_t *ring_bytes,
                                            struct core_error *error);
uint32_t protocol_laned_write(uint8_t *frame, uint32_t ring_bytes, const char *text);
CORE_CHECKED core_status protocol_laned_read(const uint8_t *body, uint32_t bytes, uint32_t *ring_bytes,
                                             char *text, size_t text_bytes, struct core_error *error);
uint32_t protocol_notice_write(uint8_t *frame, uint32_t stream, const struct protocol_notice *notice);
CORE_CHECKED core_status protocol_notice_read(const uint8_t *body, uint32_t bytes,
                                              struct protocol_notice *notice, struct core_error *error);
uint32_t protocol_refused_write(uint16_t version, uint8_t *frame, uint32_t request,
                                const struct protocol_refused *refused);
CORE_CHECKED core_status protocol_refused_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                                               struct protocol_refused *refused, struct core_error *error);
/* Header and fixed part of a RESULT that `cipher_bytes` follow, the ciphertext and what precedes it: 32 bytes.
 * The flags must be of the version in force. */
void protocol_result_write(uint8_t *frame, uint32_t stream, uint32_t sequence,
                           const struct protocol_result *result, uint32_t cipher_bytes);
CORE_CHECKED core_status protocol_result_read(uint16_t version, const uint8_t *body, uint32_t bytes,
                                              struct protocol_result *result, struct core_error *error);
uint32_t protocol_close_write(uint8_t *frame, uint32_t stream);
uint32_t protocol_closed_write(uint8_t *frame, uint32_t stream, const struct protocol_closed *closed);
CORE_CHECKED core_status protocol_closed_read(const uint8_t *body, uint32_t bytes,
                                              struct protocol_closed *closed, struct core_error *error);
uint32_t protocol_error_write(uint8_t *frame, uint32_t id, enum protocol_error code, bool fatal,
                              const char *text);
CORE_CHECKED core_status protocol_error_read(const uint8_t *body, uint32_t bytes, enum protocol_error *code,
                                             bool *fatal, char *text, size_t text_bytes,
                                             struct core_error *error);
uint32_t protocol_ping_write(uint8_t *frame, enum protocol_type type, uint32_t request, const void *payload,
                             uint32_t bytes);

/* Names for people ("capacity", "sequence", ...); never NULL. */
const char *protocol_error_name(enum protocol_error code);
const char *protocol_refusal_name(enum protocol_refusal code);
const char *protocol_limit_name(enum protocol_limit limit);
const char *protocol_result_name(enum protocol_result_status status);
const char *protocol_notice_name(enum protocol_notice_kind kind);

#endif
