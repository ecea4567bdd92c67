/* The stream of one rendition: in it one message after the other, whole files.
 *
 * A message begins when the server has said that its key is in force, and so none is ever under another key. One
 * thread, that of the link, which passes on what the server says. */
#ifndef MILLRACE_CLIENT_HLS_STREAM_H
#define MILLRACE_CLIENT_HLS_STREAM_H

#include "client/hls/contract.h"
#include "client/hls/keys.h"

struct hls_link;

/* A file to be encrypted as one message, AES-128-CBC with PKCS#7. */
struct hls_job {
    struct hls_job *next; /* of its stream, in the order in which they were given */
    /* set by the caller */
    void *owner;
    uint8_t *clear; /* allocated; the job's */
    size_t bytes;
    enum hls_kind kind;
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

struct hls_stream {
    struct hls_stream *next;
    const char *name; /* for messages */
    struct hls_link *link;
    struct hls_job *first, *last;     /* not done yet */
    struct hls_stream *next_busy;     /* while there are */
    struct hls_pace paces[HLS_KINDS]; /* every_s is set by the caller; bytes: of files so far */
    core_ns wait_ns;                  /* set by the caller: how long a file may wait for its encryption */
    size_t contract_bytes[HLS_KINDS]; /* of a file, for which the contract is */
    /* of the stream at the server */
    uint32_t id;               /* 0: none is open */
    uint32_t request;          /* OPEN or REKEY that waits for its answer; 0: none */
    core_ns ask_not_before_ns; /* after a refusal */
    struct core_stream_spec spec;
    struct hls_key *key, *asked_key; /* of the next message of the open one, and of the request */
    uint64_t messages;               /* begun on the open one: the number of the next */
    uint32_t room_packets, unanswered;
};

/* Adds the stream to the link; the caller owns it, and the link is used until neither is. */
void hls_stream_add(struct hls_link *link, struct hls_stream *stream);
/* Takes it off, with all its jobs, which are freed. */
void hls_stream_remove(struct hls_stream *stream);

/* Gives the job to the stream: it is done after those before it. CORE_NO_MEMORY: it stays the caller's. */
CORE_CHECKED core_status hls_stream_submit(struct hls_stream *stream, struct hls_job *job);
void hls_job_free(struct hls_job *job);

/* ---- for the link ---- */

/* Sends what may be sent now of all jobs, and asks for the stream or the key that is missing. */
CORE_CHECKED core_status hls_stream_send(struct hls_stream *stream, core_ns now_ns, struct core_error *error);

/* The request is answered: the stream is opened, the key is in force, or neither. */
void hls_stream_opened(struct hls_stream *stream, const struct millrace_opened *opened);
void hls_stream_rekeyed(struct hls_stream *stream);
void hls_stream_refused(struct hls_stream *stream, const struct millrace_refused *refused);

/* The server's stream is no more. */
void hls_stream_forget(struct hls_stream *stream);
/* All that is not done is to be sent again from its beginning. */
void hls_stream_begin_again(struct hls_stream *stream);

bool hls_job_is_complete(const struct hls_job *job);
void hls_stream_take_out(struct hls_stream *stream, struct hls_job *job);

#endif
