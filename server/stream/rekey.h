/* The keys of a stream: one, and a second one while a stream with messages changes its key (REKEY).
 *
 *   STEADY --ask--> ASKED (GPUs get the new key) --> SET (REKEYED) --message `first` begins--> STEADY
 *                     \--> STEADY (REFUSED): that message had begun by then, or the stream ends
 *
 * A key counts only where it is: the new one is expanded for workers when it is asked for, and a GPU that the
 * stream's packets go to, or its backup, has it before REKEYED is sent. One that has no key of the stream at
 * the time gets all of them before packets go there again (server/stream/gpu_binding.h). So no packet waits for
 * a key, and every packet is encrypted under the key that was in force when it was received, by whatever unit.
 *
 * A key that no packet is under any more, and none will be, is wiped: here, and at the GPUs. Only then there is
 * room for another one.
 *
 * On the stream's I/O thread. Nothing is allocated. */
#ifndef MILLRACE_SERVER_STREAM_REKEY_H
#define MILLRACE_SERVER_STREAM_REKEY_H

#include "core/protocol.h"

#include <stdbool.h>
#include <stdint.h>

struct server_stream;

#define SERVER_STREAM_KEYS 2

enum server_rekey_state { SERVER_REKEY_STEADY, SERVER_REKEY_ASKED, SERVER_REKEY_SET };

struct server_stream_keys {
    uint8_t *bytes;  /* secret memory: room for each key */
    uint8_t current; /* key that the next packet is encrypted under */
    uint8_t held;    /* bit k: key k is here, and is to be at the GPUs */
    uint8_t inlines; /* bit k: key k, while it is here, came in a frame: its client knows it */
    uint32_t packets[SERVER_STREAM_KEYS]; /* received under it, and not yet given back */
};

/* The change to the other key. */
struct server_rekey {
    enum server_rekey_state state;
    uint32_t request; /* ASKED: to be answered */
    uint64_t first;   /* ASKED, SET: number of the message with which the other key comes into force */
    core_ns received_ns;
};

/* Where the bytes of key number `which` are. */
uint8_t *server_stream_key(const struct server_stream *stream, uint32_t which);

/* The keys that packets may come to a unit under, by bit: without that of a change that is not answered. */
uint32_t server_stream_keys_needed(const struct server_stream *stream);

/* Where a new key is to be put by the caller, before server_rekey_begin; NULL: a change is in progress, or the
 * last key is not wiped everywhere. */
uint8_t *server_rekey_room(const struct server_stream *stream);

/* The key is there: from message `first` on. Counts as one of the client's requests, and
 * is answered by the call `rekeyed`, perhaps at once. CORE_SYSTEM: the engine does not take it; the room is
 * wiped. */
CORE_CHECKED core_status server_rekey_begin(struct server_stream *stream, uint64_t first, uint32_t request,
                                            core_ns received_ns);

/* The message begins, whose packets come under the key in force then. */
void server_rekey_message(struct server_stream *stream, uint64_t number);

/* Something has changed at a GPU, or the last packet under a key has left: goes on as far as it can. */
void server_rekey_step(struct server_stream *stream);

/* The stream ends: refuses a change that is not answered. */
void server_rekey_end(struct server_stream *stream);

#endif
