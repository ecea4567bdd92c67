/* The way of `millrace hls` to the server: one connection, a stream for each rendition, and in each stream one
 * message after the other, whole files.
 *
 * A server that goes away is looked for until it is back; what was not finished is sent again from its
 * beginning. Nothing is lost by that, only late. A message begins when the server has said that its key is in
 * force, and so none is ever under another key. One thread; the connection is event-driven. */
#ifndef MILLRACE_CLIENT_HLS_LINK_H
#define MILLRACE_CLIENT_HLS_LINK_H

#include "client/command.h"
#include "client/hls/keys.h"

struct hls_link;

/* A file to be encrypted as one message, AES-128-CBC with PKCS#7. */
struct hls_job {
    struct hls_job *next; /* of its stream, in the order in which they were given */
    /* set by the caller */
    void *owner;
    uint8_t *clear; /* allocated; the job's */
    size_t bytes;
    struct hls_key *key; /* the job's own reference */
    uint8_t iv[CORE_BLOCK_BYTES];
    /* the link's */
    uint8_t *cipher; /* room for all of it */
    size_t cipher_bytes;
    uint32_t stream; /* that it is on, if begun */
    bool begun, sent_whole;
    size_t sent; /* bytes of `clear` */
    unsigned attempts;
    bool failed; /* given up: the server has not encrypted it, time and again */
};

/* The stream of one rendition. */
struct hls_stream {
    struct hls_stream *next;
    const char *name; /* for messages */
    struct hls_link *link;
    struct hls_job *first, *last; /* not done yet */
    double target_s;              /* set by the caller: duration of a segment, */
    bool has_parts;               /* whether its parts are encrypted, too, */
    core_ns wait_ns;              /* and how long a file may wait for its encryption */
    size_t largest_bytes;         /* of a file so far */
    size_t contract_bytes;        /* of a file, for which the contract is */
    /* of the stream at the server */
    uint32_t id;               /* 0: none is open */
    uint32_t request;          /* OPEN or REKEY that waits for its answer; 0: none */
    core_ns ask_not_before_ns; /* after a refusal */
    struct core_stream_spec spec;
    struct hls_key *key, *asked_key; /* of the next message of the open one, and of the request */
    uint64_t messages;               /* begun on the open one: the number of the next */
    uint32_t room_packets, unanswered;
};

struct hls_link_counts {
    uint64_t packets, missed, reconnects, refused, bytes;
};

struct hls_link {
    /* set before start */
    const struct core_options_server *server;
    double bandwidth_bits_per_s; /* each rendition has at least that; 0: only what is seen */
    void *argument;
    /* whole, or failed; the job is out of the stream, to be freed by hls_job_free */
    void (*done)(void *argument, struct hls_job *job);
    void (*say)(const char *format, ...) CORE_PRINTF(1, 2);
    /* the link's */
    struct millrace *connection; /* NULL: none */
    core_ns connect_not_before_ns;
    bool told_lost;      /* that it has no connection */
    bool must_reconnect; /* as soon as no callback runs */
    struct hls_stream *streams;
    struct hls_link_counts counts;
};

/* Adds the stream to the link; the caller owns it, and the link is used until neither is. */
void hls_stream_add(struct hls_link *link, struct hls_stream *stream);
/* Takes it off, with all its jobs, which are freed. */
void hls_stream_remove(struct hls_stream *stream);

/* Gives the job to the stream: it is done after those before it. CORE_NO_MEMORY: it stays the caller's. */
CORE_CHECKED core_status hls_stream_submit(struct hls_stream *stream, struct hls_job *job);
void hls_job_free(struct hls_job *job);

/* Does what can be done now: connects, opens, sends, reads. Calls `done`. */
void hls_link_turn(struct hls_link *link, core_ns now_ns);

/* For poll: -1 while there is no connection. */
int hls_link_descriptor(const struct hls_link *link);
short hls_link_events(const struct hls_link *link);

/* How long to wait for that, at most most_ms: until something that was refused is to be asked for again. */
int hls_link_wait_ms(const struct hls_link *link, core_ns now_ns, int most_ms);

/* Whether any stream has jobs. */
bool hls_link_is_busy(const struct hls_link *link);
void hls_link_close(struct hls_link *link);

/* The contract for files of up to `bytes` bytes, one every target_s (twice that, if parts are encrypted beside
 * their segments), each to be encrypted within wait_ns: all packets of a file at once, where the server's limits
 * let them, else in the first half of the wait. With a half more than `bytes` for the files to come. Pure. */
void hls_contract(size_t bytes, double target_s, bool has_parts, core_ns wait_ns,
                  const struct millrace_welcome *welcome, struct core_stream_spec *spec);

#endif
