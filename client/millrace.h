/* libmillrace: the client side of a Millrace server (docs/protocol.md). Installed as <millrace/millrace.h>;
 * C11 and C++; includes nothing of ours.
 *
 * A connection carries any number of streams. It may be driven in two ways:
 *   - blocking: millrace_open_stream, millrace_encrypt, millrace_close_stream do one thing and wait for it;
 *   - event-driven, for many streams at once: put packets into the output buffer (millrace_data), poll the
 *     descriptor (millrace_descriptor), let millrace_process write and read as much as the socket takes and
 *     call the callbacks. Frames are batched: one write carries all that is buffered, one read may bring many
 *     results.
 *
 * Threads: every function may be called from any thread; a connection has one lock, held during a call (a
 * blocking call gives it up while it sleeps). Callbacks run on the thread that happens to read, with the lock
 * held; from inside one, only functions of the same connection may be called, and of these not
 * millrace_process, millrace_disconnect or a blocking one. Different connections are independent.
 *
 * An answer that a blocking call waits for goes to that call and to no callback. If the call has given up
 * (MILLRACE_TIMEOUT), a late RESULT or CLOSED, and a late answer to MODIFY or REKEY, goes to the callbacks; one to
 * QUERY or PING is dropped, and so is a late OPENED, whose stream is closed.
 *
 * Times: timeout_ms < 0 waits for ever; what ends in _ns is nanoseconds. Signals: no call raises SIGPIPE.
 *
 * Errors: functions return a millrace_status; error (may be NULL) gets a sentence for a person. A connection dies
 * with its socket, by a frame that breaks the protocol, and where there is no memory for what comes: from then on every
 * call says MILLRACE_CLOSED with the first cause. MILLRACE_CLOSED of millrace_encrypt may also say that its stream has
 * ended.
 *
 * Structs grow at their end, and programs that were built before go on. Each begins with `size`, its bytes as
 * its owner knows it. In a struct of yours you set it, and make 0 what you do not set:
 *     struct millrace_open open = {.size = sizeof open, .packet_bytes = 1316};     C
 *     millrace_open open = {};  open.size = sizeof open;                           C++
 *   - One that the library reads: members that yours does not have yet count as 0, which is always what was
 *     before there was the member. MILLRACE_UNSUPPORTED: yours is longer, and what this library does not know
 *     of it is not 0.
 *   - One that the library fills (NULL: not wanted): it fills what yours has, and makes the rest of it 0.
 *   - One that the library shows, in a callback: its size is the library's. Where a program built with this
 *     header may meet an older library, it looks at size before it reads a member that came later.
 * A size that the struct never had is MILLRACE_INVALID: somebody has forgotten to set it. Enumerations get new
 * values too; a later server may send one that has no name here. */
#ifndef MILLRACE_CLIENT_MILLRACE_H
#define MILLRACE_CLIENT_MILLRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MILLRACE_CHECKED __attribute__((warn_unused_result))
#else
#define MILLRACE_CHECKED
#endif

/* Of this header; for #if: major * 1,000,000 + minor * 1,000 + patch. */
#define MILLRACE_VERSION        "0.2.0"
#define MILLRACE_VERSION_NUMBER 2000

const char *millrace_version(void); /* of the library that runs */

/* ---- status ---- */

typedef enum millrace_status {
    MILLRACE_OK = 0,
    MILLRACE_INVALID = 1,      /* an argument, a file or a frame breaks its rules */
    MILLRACE_NO_MEMORY = 2,    /* allocation failed */
    MILLRACE_SYSTEM = 3,       /* a system call failed; the error text has errno's words */
    MILLRACE_FULL = 4,         /* the output buffer or the table of requests has no room now */
    MILLRACE_NOT_FOUND = 5,    /* no such file, host or stream */
    MILLRACE_REFUSED = 6,      /* the server said no */
    MILLRACE_CLOSED = 8,       /* the connection or the stream is gone */
    MILLRACE_DENIED = 10,      /* permissions forbid it */
    MILLRACE_TIMEOUT = 11,     /* did not happen in the time given */
    MILLRACE_UNSUPPORTED = 12, /* this server or this library can not do it */
} millrace_status;

const char *millrace_status_text(millrace_status status); /* "invalid", "no memory", ...; never NULL */

#define MILLRACE_TEXT_BYTES 512 /* of a text, its end included: of an error, a refusal, a notice */

/* ---- what a stream is to be ---- */

#define MILLRACE_BLOCK_BYTES        16 /* AES block, IV and chaining value */
#define MILLRACE_KEY_NAME_BYTES_MAX 63
#define MILLRACE_PATTERN_BLOCKS_MAX 15 /* of each kind in a pattern */

enum millrace_cipher {
    MILLRACE_CIPHER_AES_128_CBC = 1,
    MILLRACE_CIPHER_AES_192_CBC = 2,
    MILLRACE_CIPHER_AES_256_CBC = 3,
};

/* What becomes of the end of a unit that is no whole block. CLEAR: whole blocks are encrypted, the rest
 * passes as it is. */
enum millrace_padding { MILLRACE_PADDING_NONE = 0, MILLRACE_PADDING_PKCS7 = 1, MILLRACE_PADDING_CLEAR = 2 };

/* What is encrypted as one: the whole stream, each packet padded by itself; or a message of one packet or
 * more, padded at its end. */
enum millrace_unit { MILLRACE_UNIT_STREAM = 0, MILLRACE_UNIT_MESSAGE = 1 };

/* Where the IV of a message comes from: the last ciphertext block of the one before; the same for all; its
 * number, as 16 bytes, big-endian; 16 bytes ahead of its first packet's payload; drawn by the server. */
enum millrace_iv_source {
    MILLRACE_IV_CHAIN = 0,
    MILLRACE_IV_CONSTANT = 1,
    MILLRACE_IV_COUNTER = 2,
    MILLRACE_IV_EXPLICIT = 3,
    MILLRACE_IV_RANDOM = 4,
};

enum millrace_direction { MILLRACE_DIRECTION_ENCRYPT = 0, MILLRACE_DIRECTION_DECRYPT = 1 };

/* What a packet consists of. TS: transport-stream packets of 188 bytes, each encrypted by itself where its scrambling
 * bits are set; every packet is a message, unit is MESSAGE, iv_source CONSTANT, and padding CLEAR. */
enum millrace_records { MILLRACE_RECORDS_NONE = 0, MILLRACE_RECORDS_TS = 1 };

/* A code behind each message, by which who has the key can tell that it is genuine: HMAC-SHA-256 of mac_id, its
 * number, its IV and its ciphertext, cut to 16 bytes (docs/protocol.md). With it go unit MESSAGE, an iv_source other
 * than CHAIN, and no records. Encrypting, the code is the end of the result of a message's last packet. Decrypting,
 * every packet is a whole message with its code behind it; one that is not genuine is answered with status FORGED and
 * nothing else. */
enum millrace_mac { MILLRACE_MAC_NONE = 0, MILLRACE_MAC_HMAC_SHA_256_128 = 1 };
#define MILLRACE_MAC_BYTES 16

enum millrace_key_kind { MILLRACE_KEY_NONE = 0, MILLRACE_KEY_INLINE = 1, MILLRACE_KEY_NAMED = 2 };

/* A contract and its key, for OPEN and QUERY. Packets of at most packet_bytes, one every interval_ns in the
 * long run, at most burst_packets at once; each back within latency_ns. */
struct millrace_open {
    size_t size;
    /* 1 .. 2^20, before padding; with no padding whole blocks; with a pattern or a MAC at most 65,536; with records
     * n x 188; with a MAC, DECRYPT, more than 16 (EXPLICIT: 32) */
    uint32_t packet_bytes;
    uint32_t burst_packets; /* 1 .. 65,536 */
    int64_t interval_ns;    /* 1 us .. 1 hour */
    int64_t latency_ns;     /* 10 us .. 1 hour */
    enum millrace_cipher cipher;
    enum millrace_padding padding;
    enum millrace_unit unit;
    enum millrace_iv_source iv_source; /* with messages; else CHAIN */
    uint64_t first_unit;               /* number of the first message, with COUNTER or a MAC; else 0 */
    /* Pattern: of each message so many blocks are encrypted, so many pass as they are, and so on; their chain
     * goes from one encrypted block to the next. 0 and 0: all are encrypted. 1 and 9 is what `cbcs` prescribes
     * for video (ISO 23001-7). */
    uint8_t crypt_blocks, skip_blocks;
    enum millrace_direction direction; /* DECRYPT: not with padding PKCS7, nor with iv_source RANDOM */
    enum millrace_records records;
    enum millrace_mac mac;
    uint8_t message_packets; /* 1: each message is one packet, so that a GPU may encrypt them side by side,
                                and promise more, where iv_source is not CHAIN; 0: any number */
    bool guaranteed;         /* survives the loss of any one GPU */
    bool has_iv; /* iv is given: with CONSTANT it must be, with CHAIN it may be, else the server draws it */
    enum millrace_key_kind key_kind;
    const void *key;  /* INLINE: 16, 24 or 32 bytes; NAMED: the name of one of the server's, not terminated */
    size_t key_bytes; /* its length */
    uint8_t iv[MILLRACE_BLOCK_BYTES];
    uint8_t mac_id[MILLRACE_MAC_BYTES]; /* with a MAC: what the owner likes, the same where it is decrypted */
};

/* The contract that an open stream is to have; packet size, cipher, padding, key and class stay. */
struct millrace_modify {
    size_t size;
    uint32_t stream;
    uint32_t burst_packets;
    int64_t interval_ns, latency_ns;
};

/* Another key for an open stream of messages, from number `first` on; the cipher stays. */
struct millrace_rekey {
    size_t size;
    uint32_t stream;
    enum millrace_key_kind key_kind; /* not NONE */
    const void *key;                 /* as in OPEN */
    size_t key_bytes;
    uint64_t first;
};

/* Flags of a packet: it begins a message, and ends one. */
#define MILLRACE_DATA_FIRST 1u
#define MILLRACE_DATA_LAST  2u

/* ---- what the server answers ---- */

#define MILLRACE_ALLOWS_INLINE_KEY 1u
#define MILLRACE_ALLOWS_CLIENT_IV  2u
#define MILLRACE_HAS_NAMED_KEYS    4u
#define MILLRACE_HAS_LANES         8u /* this connection may go through shared memory */

struct millrace_welcome {
    size_t size;
    uint16_t version;                                          /* of the protocol, that is spoken */
    uint16_t flags;                                            /* what is allowed, above */
    uint32_t packet_bytes_max, burst_packets_max, streams_max; /* streams of this connection */
    uint64_t stream_buffer_bytes_max;
    uint64_t bytes_per_key;
    int64_t interval_ns_min, latency_ns_min;
};

/* What serves a stream: a worker on a CPU core, or a GPU. */
enum millrace_server_unit {
    MILLRACE_SERVER_UNIT_NONE = 0,
    MILLRACE_SERVER_UNIT_CPU = 1,
    MILLRACE_SERVER_UNIT_GPU = 2,
};

/* What a stream has for the loss of any one GPU; part of other structs, so it never grows. All 0: a standard
 * stream on a GPU, of which nothing is promised then. A stream on a CPU worker, which no GPU can fail, has no
 * unit and no share, whatever its class, and the bound that it has always. */
struct millrace_backup {
    enum millrace_server_unit unit; /* where its packets go then; NONE: nowhere else */
    uint32_t unit_index;
    uint32_t
        reserved_ppb; /* share of that unit's time held for it: what the class costs, parts per billion */
    int64_t bound_ns; /* latency through the loss, at most what was asked */
};

struct millrace_opened {
    size_t size;
    uint32_t stream; /* 0 in the answer to QUERY */
    enum millrace_server_unit unit;
    uint32_t unit_index;
    uint32_t queue_packets; /* that the server holds for this stream before it stops reading the connection */
    int64_t bound_ns;       /* guaranteed latency, at most what was asked */
    int64_t decided_ns;     /* how long the decision took, from the request's receipt */
    int64_t in_force_ns;    /* from the receipt until the promise held; 0 in the answer to QUERY */
    struct millrace_backup backup;
    uint8_t iv[MILLRACE_BLOCK_BYTES];
    uint32_t asked; /* nodes that were asked for it: 1, or of a pool's connections how many */
};

struct millrace_modified {
    size_t size;
    uint32_t stream;
    enum millrace_server_unit unit; /* that serves it from now on */
    uint32_t unit_index;
    uint32_t queue_packets;       /* as in OPENED */
    uint32_t first;               /* sequence of the first packet under the new contract */
    int64_t bound_ns, decided_ns; /* as in OPENED */
    int64_t in_force_ns;          /* from the receipt until the new contract was in force */
    struct millrace_backup backup;
};

struct millrace_rekeyed {
    size_t size;
    uint32_t stream;
    uint64_t first;      /* as asked for */
    int64_t in_force_ns; /* from the receipt until every unit of the stream had the key */
};

enum millrace_refusal {
    MILLRACE_REFUSED_CAPACITY = 1, /* can not be promised; see constraint and offer */
    MILLRACE_REFUSED_SPEC = 2,     /* a value is outside its range */
    MILLRACE_REFUSED_LIMIT = 3,    /* a configured limit: streams, packet, burst, buffers */
    MILLRACE_REFUSED_KEY = 4,      /* key name unknown or not for this client, wrong key length, or inline
                                      key not allowed here */
    MILLRACE_REFUSED_IV = 5,       /* client IV not allowed, or not with this key */
    MILLRACE_REFUSED_DRAINING = 6, /* the server is stopping */
    MILLRACE_REFUSED_INTERNAL = 7, /* out of memory */
    MILLRACE_REFUSED_STREAM = 8,   /* the stream is not open on this connection */
    MILLRACE_REFUSED_BUSY = 9,     /* another one of it is under way, or it is too late or too early for it */
};

/* What a contract that is refused with CAPACITY exceeds (docs/protocol.md, section 4). */
enum millrace_limit {
    MILLRACE_LIMIT_NONE = 0,
    MILLRACE_LIMIT_DEADLINE = 1,
    MILLRACE_LIMIT_CPU_UTILISATION = 2,
    MILLRACE_LIMIT_CPU_DEMAND = 3,
    MILLRACE_LIMIT_IO = 4,
    MILLRACE_LIMIT_GPU_COPY = 5,
    MILLRACE_LIMIT_GPU_KERNEL = 6,
    MILLRACE_LIMIT_GPU_LATENCY = 7,
    MILLRACE_LIMIT_GPU_MEMORY = 8,
    MILLRACE_LIMIT_GPU_OUT = 9,
    MILLRACE_LIMIT_RESERVE = 10,
    MILLRACE_LIMIT_BACKUP = 11,
};

struct millrace_refused {
    size_t size;
    enum millrace_refusal code;
    enum millrace_limit constraint; /* with CAPACITY; else NONE */
    int64_t offer_interval_ns;      /* 0: none */
    int64_t offer_latency_ns;       /* 0: none */
    int64_t decided_ns;             /* from the request's receipt until it was refused */
    char text[MILLRACE_TEXT_BYTES];
    uint32_t
        asked; /* nodes that were asked for it: 1, or of a pool's connections how many, the last of which says
                  why; 0: none, as where none could be reached, and the pool itself says no */
};

enum millrace_result_status {
    MILLRACE_RESULT_OK = 0,
    MILLRACE_RESULT_NOT_BLOCKS = 1, /* padding none and a length that is no multiple of 16; chain unchanged */
    MILLRACE_RESULT_TOO_LONG = 2,   /* longer than the stream's packet_bytes; chain unchanged */
    MILLRACE_RESULT_KEY_SPENT = 3,  /* bytes_per_key reached; chain unchanged; a new key is needed */
    MILLRACE_RESULT_FAILED = 4,     /* the engine failed; the stream can not go on and is closed */
    MILLRACE_RESULT_BROKEN = 5,     /* an earlier packet of its message was not encrypted */
    MILLRACE_RESULT_FORGED = 6,     /* its MAC is not right, so that it is not decrypted */
};

#define MILLRACE_RESULT_MET     1u  /* deadline met */
#define MILLRACE_RESULT_READER  2u  /* ready in time; late only because the reader kept it waiting */
#define MILLRACE_RESULT_POLICED 4u  /* came faster than the contract; waited_us says how long it was held */
#define MILLRACE_RESULT_FAULT   8u  /* went the way round a lost device */
#define MILLRACE_RESULT_HAS_IV  16u /* the IV of the message that begins here comes with it */

/* What a callback is shown may lie where the server has written it, in memory that both share. */
struct millrace_result {
    size_t size;
    uint32_t stream, sequence;
    enum millrace_result_status status;
    uint32_t flags;            /* above */
    uint32_t waited_us;        /* eligible time - arrival */
    uint32_t bytes;            /* of ciphertext */
    int64_t latency_ns;        /* hand-over to the socket - eligible time */
    const uint8_t *iv;         /* with MILLRACE_IV_RANDOM: of the message that begins here; else NULL */
    const uint8_t *ciphertext; /* as the IV valid during the callback, or in the caller's buffer */
};

enum millrace_close_reason {
    MILLRACE_CLOSE_ASKED = 0,
    MILLRACE_CLOSE_DRAINED = 1,
    MILLRACE_CLOSE_FAILED = 2,
    MILLRACE_CLOSE_IDLE = 3,
    MILLRACE_CLOSE_LOST =
        4, /* by a pool: its node is gone, and it can not go on at another one; text says why */
};

struct millrace_closed {
    size_t size;
    enum millrace_close_reason reason;
    /* bytes: encrypted or decrypted, without what passed as it is; of a pool all that came back */
    uint64_t packets, bytes, met, missed;
    char text[MILLRACE_TEXT_BYTES]; /* with LOST: why; else "" */
    enum millrace_refusal refused;  /* with LOST: what no other node will judge otherwise; 0: nothing */
};

enum millrace_notice_kind {
    MILLRACE_NOTICE_DEGRADED = 1, /* its GPU is lost: served as far as it goes, in the order of deadlines */
    MILLRACE_NOTICE_RESTORED = 2, /* its promise holds again */
    MILLRACE_NOTICE_MOVED = 3,    /* another unit serves it from now on; the promise has held all the time */
    MILLRACE_NOTICE_LEAVING =
        4, /* of the connection (stream 0): the server is about to stop, and serves all its
                                     streams until then: open them at another server (unit: none, 0). If it was
                                     leaving when the connection was made, the first millrace_process tells */
};

struct millrace_notice {
    size_t size;
    enum millrace_notice_kind kind;
    enum millrace_server_unit unit; /* that serves it now */
    uint32_t unit_index;
    int64_t bound_ns; /* guaranteed latency from now on; 0: none (DEGRADED) */
    char text[MILLRACE_TEXT_BYTES];
};

/* A stream of a pool that has gone on at another node, when all that it had been given by then has come back. */
struct millrace_resumed {
    size_t size;
    int64_t gap_ns;  /* from the loss of its node until another one had it; 0: it had it before */
    uint64_t resent; /* packets that had been sent, without a result, and were sent again, each time */
    uint64_t late;   /* of these, and of those given during the gap: whose deadline was missed */
};

/* Why the server complains of the connection or of a frame; if it is fatal, the connection ends. */
enum millrace_error {
    MILLRACE_ERROR_MALFORMED = 1, /* frame or body breaks the format */
    MILLRACE_ERROR_OVERSIZED = 2, /* body longer than this type allows */
    MILLRACE_ERROR_UNKNOWN_TYPE = 3,
    MILLRACE_ERROR_STATE = 4,     /* a frame that is not allowed now */
    MILLRACE_ERROR_VERSION = 5,   /* no common version */
    MILLRACE_ERROR_STREAM = 6,    /* no such stream on this connection */
    MILLRACE_ERROR_SEQUENCE = 7,  /* DATA out of sequence */
    MILLRACE_ERROR_TIMEOUT = 8,   /* hello, frame, idle or stall time ran out */
    MILLRACE_ERROR_LIMIT = 9,     /* too many connections, or too many requests unanswered */
    MILLRACE_ERROR_SHUTDOWN = 10, /* the server is stopping */
};

/* Names for people ("capacity", "sequence", ...); never NULL. */
const char *millrace_refusal_name(enum millrace_refusal code);
const char *millrace_limit_name(enum millrace_limit limit);
const char *millrace_result_name(enum millrace_result_status status);
const char *millrace_notice_name(enum millrace_notice_kind kind);
const char *millrace_error_name(enum millrace_error code);

/* ---- a connection ---- */

struct millrace;

struct millrace_tls { /* for tls: addresses; NULL members: system trust, no client certificate */
    size_t size;
    const char *ca_file;
    const char *certificate_file, *key_file;
    const char *server_name; /* to verify; NULL: the host of the address */
};

/* All optional (NULL instead of the struct: none). `argument` is passed through. on_refused answers OPEN, QUERY,
 * MODIFY and REKEY, and of a pool a PING that no node answers. In on_closed millrace_position_of still knows the stream. */
struct millrace_callbacks {
    size_t size;
    void (*on_result)(void *argument, const struct millrace_result *result);
    void (*on_opened)(void *argument, uint32_t request, const struct millrace_opened *opened);
    void (*on_refused)(void *argument, uint32_t request, const struct millrace_refused *refused);
    void (*on_closed)(void *argument, uint32_t stream, const struct millrace_closed *closed);
    void (*on_pong)(void *argument, uint32_t request, const uint8_t *payload, uint32_t bytes);
    void (*on_error)(void *argument, uint32_t id, enum millrace_error code, bool fatal, const char *text);
    void (*on_modified)(void *argument, uint32_t request, const struct millrace_modified *modified);
    void (*on_notice)(void *argument, uint32_t stream, const struct millrace_notice *notice);
    void (*on_rekeyed)(void *argument, uint32_t request, const struct millrace_rekeyed *rekeyed);
    void *argument;
    void (*on_resumed)(void *argument, uint32_t stream,
                       const struct millrace_resumed *resumed); /* of a pool */
};

/* Connects to "unix:/path", "socket:/path", "tcp:host:port", "tls:host:port" or "embedded:/path.yaml", says hello,
 * waits for WELCOME. On "unix:" packets go through memory that is shared with the server, where it offers that
 * (docs/protocol.md, "Lanes"): nothing else changes but what they cost. On "socket:", the same socket, they do not.
 * Several addresses, separated by commas, are a pool, below. timeout_ms covers all of that but the system's look-up of
 * a host's name. On success *connection is the caller's, to be given to millrace_disconnect.
 *
 * "embedded:" and the path of a server's configuration: the server is inside this process (docs/library.md). The
 * first connection starts it, which timeout_ms does not cover, and the end of the last one stops it, in
 * millrace_disconnect: then its threads, processes, descriptors and locked memory are gone. Connections to the same
 * configuration share it; to another one MILLRACE_INVALID. It needs libmillraced, of the same version as this
 * library, or MILLRACE_UNSUPPORTED. After a fork only the parent has it. */
MILLRACE_CHECKED millrace_status millrace_connect(const char *address, const struct millrace_tls *tls,
                                                  int timeout_ms, struct millrace **connection,
                                                  char error[MILLRACE_TEXT_BYTES]);
void millrace_disconnect(struct millrace *connection); /* NULL is fine; no other call may be running */

/* ---- a pool ---- */

/* Many servers, its nodes, as one connection: every call below does with it what it does with one server's, and
 * streams survive their node.
 *
 * A stream is opened at the node with the fewest; one that has refused for capacity or a limit comes behind the others
 * for a second, and then, until it has granted something, behind the first refusal. A refusal is not the last word:
 * others are asked, `attempts` in all; so they are where one does not answer within its part of patience_ms, one of
 * `attempts`, or of the connections where these are fewer. When a node dies, or stops
 * in good order, its streams are opened at others, from the last block that came back, and what had no result is sent
 * again; one that is leaving serves them until another one has them. So the results are
 * those of one server that was always there: in order, each once, the ciphertext one CBC encryption. on_resumed
 * tells how long that took, and how many deadlines it cost. Results of packets that crossed a gap have flag FAULT,
 * and MET only where the first time they were given, and the contract, make it true.
 *
 * What a stream needs for that: the server allows IVs of clients, and its named key does too, unless its messages
 * have random IVs. Where it lacks that, and where a pattern, or a message too long to be kept, leaves nothing to
 * begin from, it ends at the loss of its node: CLOSED with reason LOST, and a text. So it does where no node takes
 * it within patience_ms.
 *
 * - MODIFY and REKEY that are unanswered at a loss, or asked while another node is asked for the stream, are
 *   REFUSED with BUSY: what was before goes on, at the next node too. Ask again. One that its node does not answer
 *   waits as long as the node is there, as with one server.
 * - Packets are kept until they have come back: kept_bytes_max of a stream, behind which millrace_data is
 *   MILLRACE_FULL for this stream, and goes on when results have come. A buffer may be twice as long.
 * - A node that can not be reached is tried again after 0.1 s, and each time later, up to 10 s; so is one that
 *   ends its connections soon after they were made. A node with streams that says nothing for 2 s, and does not
 *   answer PING in 2 s more, is lost. At each connection at most 16 streams at a time wait for an answer:
 *   those of a lost node come one after another, and go where there is room.
 * - The keys of its streams stay in the pool until they are closed.
 * - Only connecting waits, and millrace_disconnect, for attempts to connect that are under way: a second at most,
 *   and as long as the system's look-up of a host's name takes, which nothing here can bound.
 * - The first node decides the version of the protocol, and later ones are offered no newer one. One that speaks
 *   only an older one, or takes shorter packets than the first, is turned away while the connection lives.
 *
 * Behind HAProxy one address is many nodes: make several connections to it, about two for each. */
struct millrace_pool {
    size_t size;
    const char *addresses; /* 1 to 64, as millrace_connect has them but embedded:, separated by commas */
    unsigned connections;  /* to each address; 0: 1. 64 in all at most */
    unsigned attempts;     /* connections that are asked for one stream in a row; 0: 3 */
    int patience_ms; /* that a stream may be without a node, and OPEN, QUERY and PING without an answer; 0: 10,000 */
    uint32_t kept_bytes_max; /* 0: 1 MiB; 4 MiB at most */
};

/* Connects to all, and is content with one. Also what millrace_connect does where its address is several. */
MILLRACE_CHECKED millrace_status millrace_pool_connect(const struct millrace_pool *pool,
                                                       const struct millrace_tls *tls, int timeout_ms,
                                                       struct millrace **connection,
                                                       char error[MILLRACE_TEXT_BYTES]);

enum millrace_node_state {
    MILLRACE_NODE_DOWN = 0, /* text says why */
    MILLRACE_NODE_UP = 1,
    MILLRACE_NODE_LEAVING = 2, /* it is stopping: streams go there only where no other is left */
};

struct millrace_node {
    size_t size;
    enum millrace_node_state state;
    uint32_t streams;               /* there now */
    uint64_t opened, refused, lost; /* ever: streams that it took, that it had no room for, that it lost */
    uint64_t losses;                /* of the connection */
    char address[MILLRACE_TEXT_BYTES], text[MILLRACE_TEXT_BYTES];
};

/* Connection `index` of a pool, from 0 on. MILLRACE_NOT_FOUND: there is none of this number. */
MILLRACE_CHECKED millrace_status millrace_pool_node(struct millrace *connection, unsigned index,
                                                    struct millrace_node *node,
                                                    char error[MILLRACE_TEXT_BYTES]);

/* What the server said of itself, of a pool the node that was there first; the connection's. */
const struct millrace_welcome *millrace_welcome_of(const struct millrace *connection);

MILLRACE_CHECKED millrace_status millrace_set_callbacks(struct millrace *connection,
                                                        const struct millrace_callbacks *callbacks,
                                                        char error[MILLRACE_TEXT_BYTES]);

/* ---- event-driven ---- */

int millrace_descriptor(const struct millrace *connection); /* for poll; owned by the connection */

/* POLLIN; and POLLOUT while output waits, but for a lane that is full: then the descriptor is readable when it is not. */
short millrace_events(struct millrace *connection);

/* Writes what is buffered and reads what is there, calling back for every frame, until the socket would block, or all
 * that was in a lane has been handled; what has come since is told by poll. Or until `reads` read calls were made (0: no
 * limit), and TLS has nothing left of which poll would not tell. MILLRACE_OK also when there was nothing to do. */
MILLRACE_CHECKED millrace_status millrace_process(struct millrace *connection, unsigned reads,
                                                  char error[MILLRACE_TEXT_BYTES]);

/* Only writes; reads too if writing fails, for the server's last words. */
MILLRACE_CHECKED millrace_status millrace_flush(struct millrace *connection, char error[MILLRACE_TEXT_BYTES]);

/* Buffers OPEN or QUERY; *request (may be NULL) is the id that the answer will carry. MILLRACE_FULL: no room
 * in the output buffer, or 1,024 requests are unanswered; MILLRACE_INVALID: the key fits its kind in no way;
 * MILLRACE_UNSUPPORTED: a guaranteed stream of a server that speaks only version 1, or messages or decryption of
 * one that speaks no more than version 2. The contract is judged by the server. */
MILLRACE_CHECKED millrace_status millrace_send_open(struct millrace *connection,
                                                    const struct millrace_open *open, uint32_t *request,
                                                    char error[MILLRACE_TEXT_BYTES]);
MILLRACE_CHECKED millrace_status millrace_send_query(struct millrace *connection,
                                                     const struct millrace_open *open, uint32_t *request,
                                                     char error[MILLRACE_TEXT_BYTES]);
MILLRACE_CHECKED millrace_status millrace_send_close(struct millrace *connection, uint32_t stream,
                                                     char error[MILLRACE_TEXT_BYTES]);
/* Buffers MODIFY for an open stream. The old contract holds until MODIFIED says from which packet on the new
 * one does, and stays if the answer is REFUSED. MILLRACE_NOT_FOUND: the stream is not open, or being closed;
 * MILLRACE_FULL as above; MILLRACE_UNSUPPORTED: the server speaks only version 1. */
MILLRACE_CHECKED millrace_status millrace_send_modify(struct millrace *connection,
                                                      const struct millrace_modify *modify, uint32_t *request,
                                                      char error[MILLRACE_TEXT_BYTES]);
/* Buffers REKEY for an open stream with messages: another key from message number rekey->first on. Messages are
 * counted from first_unit on (0 without MILLRACE_IV_COUNTER and without a MAC). The message may be sent at once, but
 * which key it is under tells the answer alone: after REFUSED the old one goes on. MILLRACE_NOT_FOUND, MILLRACE_FULL
 * and MILLRACE_INVALID as above; MILLRACE_UNSUPPORTED: the server speaks no more than version
 * 2. */
MILLRACE_CHECKED millrace_status millrace_send_rekey(struct millrace *connection,
                                                     const struct millrace_rekey *rekey, uint32_t *request,
                                                     char error[MILLRACE_TEXT_BYTES]);
MILLRACE_CHECKED millrace_status millrace_send_ping(struct millrace *connection, const void *payload,
                                                    uint32_t bytes, uint32_t *request,
                                                    char error[MILLRACE_TEXT_BYTES]);

/* Buffers one packet and returns its sequence number (which may be NULL). Of a stream with messages it is a
 * whole one, and with MILLRACE_IV_EXPLICIT begins with its IV. MILLRACE_NOT_FOUND: the stream is not open, or
 * being closed; MILLRACE_INVALID: longer than packet_bytes_max of WELCOME, or a message has begun;
 * MILLRACE_FULL when the output buffer (8 MiB) has no room: process, then try again. */
MILLRACE_CHECKED millrace_status millrace_data(struct millrace *connection, uint32_t stream,
                                               const void *packet, uint32_t bytes, uint32_t *sequence,
                                               char error[MILLRACE_TEXT_BYTES]);

/* The same for a part of a message: flags is MILLRACE_DATA_FIRST, MILLRACE_DATA_LAST, both or none.
 * MILLRACE_INVALID also where they do not follow: a message begins where the one before has ended, and
 * nowhere else, and is one packet where message_packets is 1, with records, and where a MAC is checked. */
MILLRACE_CHECKED millrace_status millrace_data_part(struct millrace *connection, uint32_t stream,
                                                    const void *packet, uint32_t bytes, unsigned flags,
                                                    uint32_t *sequence, char error[MILLRACE_TEXT_BYTES]);

/* millrace_data without a copy: *packet is room for `bytes` where they are sent from, to be filled before the
 * next call on this connection. For one thread per connection only. Where packets go through memory that is
 * shared with the server, it is in there, or in the output buffer while that memory is full. */
MILLRACE_CHECKED millrace_status millrace_data_reserve(struct millrace *connection, uint32_t stream,
                                                       uint32_t bytes, uint8_t **packet, uint32_t *sequence,
                                                       char error[MILLRACE_TEXT_BYTES]);

size_t millrace_unsent_bytes(struct millrace *connection);

/* How far a stream has come back: what is needed to go on with it elsewhere, or after the server was started
 * anew. Open it again with `chain` as its IV (millrace_open.iv; WELCOME must allow that) and send from packet
 * `answered` on: the ciphertexts together are one CBC encryption, as if nothing had been in between. What had
 * been sent beyond that is to be sent again. Known as long as the connection exists, dead or not, and the
 * stream has not been closed. MILLRACE_NOT_FOUND.
 *
 * Of a stream with messages so with MILLRACE_IV_CHAIN and without a pattern alone, where packet `answered` is
 * sent as a FIRST. Else `chain` is of no use, and the message that this packet belongs to is sent again from
 * its beginning. With MILLRACE_IV_CHAIN and a pattern its IV is the last block that was *encrypted* before
 * it, which need not be the last that came back. */
struct millrace_position {
    size_t size;
    /* Last block of ciphertext that came back, or the IV in force. Of no use where the server decrypts: there it is
     * the last one that was sent. */
    uint8_t chain[MILLRACE_BLOCK_BYTES];
    uint32_t answered; /* sequence of the first packet without a RESULT */
};
MILLRACE_CHECKED millrace_status millrace_position_of(struct millrace *connection, uint32_t stream,
                                                      struct millrace_position *position,
                                                      char error[MILLRACE_TEXT_BYTES]);

/* ---- blocking ---- */

/* OPEN and wait. MILLRACE_OK: *opened; MILLRACE_REFUSED: *refused, and its text in error. */
MILLRACE_CHECKED millrace_status millrace_open_stream(struct millrace *connection,
                                                      const struct millrace_open *open, int timeout_ms,
                                                      struct millrace_opened *opened,
                                                      struct millrace_refused *refused,
                                                      char error[MILLRACE_TEXT_BYTES]);
MILLRACE_CHECKED millrace_status millrace_query(struct millrace *connection, const struct millrace_open *open,
                                                int timeout_ms, struct millrace_opened *opened,
                                                struct millrace_refused *refused,
                                                char error[MILLRACE_TEXT_BYTES]);

/* MODIFY and wait. MILLRACE_OK: *modified; MILLRACE_REFUSED: *refused, and its text in error. */
MILLRACE_CHECKED millrace_status millrace_modify_stream(struct millrace *connection,
                                                        const struct millrace_modify *modify, int timeout_ms,
                                                        struct millrace_modified *modified,
                                                        struct millrace_refused *refused,
                                                        char error[MILLRACE_TEXT_BYTES]);

/* REKEY and wait. MILLRACE_OK: *rekeyed; MILLRACE_REFUSED: *refused, and its text in error. */
MILLRACE_CHECKED millrace_status millrace_rekey_stream(struct millrace *connection,
                                                       const struct millrace_rekey *rekey, int timeout_ms,
                                                       struct millrace_rekeyed *rekeyed,
                                                       struct millrace_refused *refused,
                                                       char error[MILLRACE_TEXT_BYTES]);

/* One packet there and back, or one message (millrace_data). ciphertext: room for bytes + 16, for 16 more with
 * MILLRACE_IV_RANDOM, where the IV comes first, and for 16 more with a MAC; *ciphertext_bytes is all of that, and the pointers of
 * *result are into it. MILLRACE_INVALID with the server's reason if the result's status is not OK. */
MILLRACE_CHECKED millrace_status millrace_encrypt(struct millrace *connection, uint32_t stream,
                                                  const void *packet, uint32_t bytes, int timeout_ms,
                                                  uint8_t *ciphertext, uint32_t *ciphertext_bytes,
                                                  struct millrace_result *result,
                                                  char error[MILLRACE_TEXT_BYTES]);
MILLRACE_CHECKED millrace_status millrace_close_stream(struct millrace *connection, uint32_t stream,
                                                       int timeout_ms, struct millrace_closed *closed,
                                                       char error[MILLRACE_TEXT_BYTES]);
MILLRACE_CHECKED millrace_status millrace_ping(struct millrace *connection, int timeout_ms,
                                               int64_t *round_trip_ns, char error[MILLRACE_TEXT_BYTES]);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
