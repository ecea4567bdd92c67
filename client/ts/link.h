/* The way of `millrace ts` to the server: one connection, and in it a stream for each service, whose messages are
 * datagrams, each of them packets of 188 bytes (DVB-CISSA, version 1).
 *
 * Control words change at a datagram. The server is told ahead of time which one that will be. That datagram, and all
 * behind it, wait until the server has granted it; so a packet's scrambling control bits always say under which word
 * it is. A server that goes away is looked for until it is back. One thread; the connection is event-driven. */
#ifndef MILLRACE_CLIENT_TS_LINK_H
#define MILLRACE_CLIENT_TS_LINK_H

#include "client/command.h"
#include "client/ts/words.h"

#include "config/ts.h"

/* The stream of one service. */
struct ts_stream {
    /* set by the caller */
    const struct config_ts_service *config;
    struct ts_words *words;
    void *owner;
    /* the link's */
    struct ts_stream *next;
    struct ts_link *link;
    struct ts_stream_keys *keys; /* in secret memory: the word of the next datagram, and the one behind it */
    bool has_word, has_next;
    bool told_refused;         /* that the server does not admit it */
    uint64_t next_first;       /* number of the first datagram under the next word */
    uint32_t id;               /* 0: none is open */
    uint32_t request;          /* OPEN or REKEY that waits for its answer; 0: none */
    core_ns ask_not_before_ns; /* after a refusal */
    core_ns opened_ns;
    uint64_t sent;                /* datagrams, on the open one: the number of the next */
    uint32_t unanswered, room;    /* datagrams */
    core_ns last_ns, interval_ns; /* of the datagrams as they come, about */
    uint64_t word_count, late_words, missed;
};

struct ts_link {
    /* set before start */
    const struct core_options_server *server;
    /* The oldest datagram of the owner that was sent and not answered: encrypted, as long as it was, or, with NULL,
     * not. */
    void (*done)(void *owner, const uint8_t *packets, size_t bytes);
    /* None of those that were sent and not answered will be. */
    void (*lost)(void *owner);
    void (*say)(const char *format, ...) CORE_PRINTF(1, 2);
    /* the link's */
    struct millrace *connection; /* NULL: none */
    core_ns connect_not_before_ns, looked_ns;
    bool told_lost; /* that it has no connection */
    struct ts_stream *streams;
    struct ts_stream **by_id; /* of the server's numbers */
    uint32_t by_id_room;
    uint64_t reconnects, refused;
};

/* CORE_NO_MEMORY. The caller owns the stream, which stays as it is until the link is closed. */
CORE_CHECKED core_status ts_stream_add(struct ts_link *link, struct ts_stream *stream);

/* Marks the packets, and buffers them. CORE_AGAIN: not now. CORE_CLOSED: the stream is not open, and they are not to be
 * kept for it. in_ns: when they came. `packets` of ts_datagram_read, `clear` of its tables. */
CORE_CHECKED core_status ts_stream_send(struct ts_stream *stream, uint8_t *packets, size_t bytes,
                                        const uint8_t *clear, core_ns in_ns);

/* Is it open, since before in_ns? */
bool ts_stream_takes(const struct ts_stream *stream, core_ns in_ns);

/* Connects, reads words, asks for what is to be asked for: from time to time. */
void ts_link_look(struct ts_link *link, core_ns now_ns);
/* Reads, and calls back. */
void ts_link_read(struct ts_link *link);
/* Writes what is buffered. */
void ts_link_flush(struct ts_link *link);

int ts_link_descriptor(const struct ts_link *link); /* -1 while there is no connection */
bool ts_link_wants_write(const struct ts_link *link);

/* Does any of its datagrams wait for an answer? */
bool ts_link_is_busy(const struct ts_link *link);
void ts_link_close(struct ts_link *link);

/* The contract of a service. Pure. */
void ts_contract(const struct config_ts_service *config, const struct millrace_welcome *welcome,
                 struct core_stream_spec *spec);

#endif
