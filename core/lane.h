/* A lane: two rings of bytes in memory that a server and one client share, one for each direction. What goes through
 * them is what would go through their socket otherwise, frames (docs/protocol.md, "Lanes"); the socket itself then
 * only wakes: a byte on it, of any value, says *look*, and its end is the end of the lane.
 *
 * The memory, one memfd of 4096 + 2 * ring_bytes that can neither shrink nor grow; integers are little-endian:
 *
 *       0  client to server: u64 written   64  u64 read   128  u32 reader_waits   192  u32 writer_waits
 *     256  server to client: the same
 *    4096  ring of the client's bytes      4096 + ring_bytes  ring of the server's
 *
 * `written` and `read` count bytes since the beginning; a byte's place is its number modulo ring_bytes. The writer
 * writes bytes and then `written`, the reader reads them and then says `read`. Who finds a ring empty (full) and wants
 * to sleep sets reader_waits (writer_waits) and looks once more; who then changes it clears the word and sends the
 * byte. Both readers wait at the beginning. Nothing of the other side is trusted: own counts are kept outside, the
 * other's must be possible, and what is judged is judged in a copy.
 *
 * A client maps each ring twice, one behind the other, so that whatever begins in it lies in one piece: packets can be
 * made and taken where they are. It has no lane where pages are longer than 4096 bytes. A server has many lanes, and
 * would have twice as many addresses to lock: of what goes around the end of a ring it sees two pieces.
 *
 * One thread at a time has a side. Nothing waits: neither for the other side nor for the socket. */
#ifndef MILLRACE_CORE_LANE_H
#define MILLRACE_CORE_LANE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define CORE_LANE_RING_BYTES_MIN (UINT32_C(1) << 16) /* rings have a power of two */
#define CORE_LANE_RING_BYTES_MAX (UINT32_C(1) << 24)

struct core_lane_counts;

/* One direction, as this side has it. */
struct core_lane_ring {
    struct core_lane_counts *shared;
    uint8_t *bytes;
    uint64_t done; /* bytes that this side has written or read */
    /* Where this side writes: those of which the other side knows, and its count of those that it has read, as it was
     * when it was last asked for. */
    uint64_t told, known;
};

struct core_lane {
    void *memory;
    uint32_t ring_bytes;
    int socket; /* the owner's */
    /* Instead of recv on it, where descriptors may come; NULL: recv. */
    ssize_t (*receive)(void *receiver, int socket, void *buffer, size_t bytes);
    void *receiver;
    bool maps_twice;
    bool ended; /* no byte will come on it any more */
    bool owes;  /* a byte that was to be sent found no memory: core_lane_ring */
    struct core_lane_ring in, out;
};

static inline size_t core_lane_bytes(uint32_t ring_bytes)
{
    return 4096 + 2 * (size_t)ring_bytes;
}

bool core_lane_fits(uint32_t ring_bytes);

/* The client's side: makes the memory, all of it present, and returns its descriptor to be sent and closed. */
CORE_CHECKED core_status core_lane_create(struct core_lane *lane, uint32_t ring_bytes, int socket,
                                          int *descriptor, struct core_error *error);

/* The same, and sends it with LANE, in one message. CORE_AGAIN: the socket has no room for that. */
CORE_CHECKED core_status core_lane_ask(struct core_lane *lane, uint32_t ring_bytes, int socket,
                                       struct core_error *error);

/* The server's side, of memory that a client has sent and mapped; the descriptor stays the caller's, who sets `socket`.
 * Takes as long as to touch all of it. CORE_INVALID: it is not what a client must make. */
CORE_CHECKED core_status core_lane_attach(struct core_lane *lane, int descriptor, uint32_t ring_bytes,
                                          struct core_error *error);

void core_lane_free(struct core_lane *lane);

/* CORE_OK: *got > 0 bytes were copied. CORE_AGAIN: there are none; the socket will be readable when there are, as
 * after a read that has left none. CORE_NOT_FOUND: none will come.
 * CORE_INVALID: a count that can not be. */
CORE_CHECKED core_status core_lane_read(struct core_lane *lane, uint8_t *buffer, size_t bytes, size_t *got);

/* After a read: what it has brought may be written again. */
void core_lane_release(struct core_lane *lane);

/* A read without a copy: up to `most` of what is there, in one piece, which stays where it is until core_lane_take. The
 * other side can change it meanwhile. Results as those of core_lane_read: what is not taken is there again, and hides
 * that the other side has ended. */
CORE_CHECKED core_status core_lane_look(struct core_lane *lane, size_t most, uint8_t **bytes, size_t *count);

/* The first `count` bytes of what was looked at have been read, and may be written again. */
void core_lane_take(struct core_lane *lane, size_t count);

/* CORE_OK: all was taken. CORE_AGAIN: *taken of it, maybe nothing; the socket will be readable when there is room.
 * CORE_CLOSED: nobody reads it. CORE_INVALID: a count that can not be. */
CORE_CHECKED core_status core_lane_write(struct core_lane *lane, const struct iovec *vector, int count,
                                         size_t *taken);

/* Room for `bytes` behind all that was written, in one piece, which count as written; to be filled before
 * core_lane_publish or a core_lane_write. NULL: there is no such room now. */
uint8_t *core_lane_reserve(struct core_lane *lane, size_t bytes);

/* What was reserved and not published is wiped, and was not written. */
void core_lane_discard(struct core_lane *lane);

/* What was reserved may be read. CORE_CLOSED: nobody reads it. */
CORE_CHECKED core_status core_lane_publish(struct core_lane *lane);

static inline size_t core_lane_reserved_bytes(const struct core_lane *lane)
{
    return (size_t)(lane->out.done - lane->out.told);
}

/* Takes what has come on the socket, where the rings are not to be read now. */
void core_lane_hush(struct core_lane *lane);

/* Sends what is owed, if there is memory by now. */
void core_lane_ring(struct core_lane *lane);

/* Bytes that were not read yet, of this side and of the other; 0 where a count can not be. */
size_t core_lane_left_bytes(const struct core_lane *lane);
size_t core_lane_waiting_bytes(const struct core_lane *lane);

#endif
