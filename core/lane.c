#include "core/lane.h"

#include "core/protocol.h"
#include "core/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_BYTES     4096
#define SEALS          (F_SEAL_SHRINK | F_SEAL_GROW)
#define HUSH_BYTES     256
#define BELL_TRIES     4
#define PREFETCH_BYTES 2048

/* Each in a cache line of its own. */
struct core_lane_counts {
    _Atomic uint64_t written;                  /* atomic: by the writer */
    alignas(64) _Atomic uint64_t read;         /* atomic: by the reader */
    alignas(64) _Atomic uint32_t reader_waits; /* atomic: set by the reader, cleared by the writer */
    alignas(64) _Atomic uint32_t writer_waits; /* atomic: set by the writer, cleared by the reader */
};

_Static_assert(sizeof(struct core_lane_counts) == 256, "as the header says");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "counts are used where they lie");

bool core_lane_fits(uint32_t ring_bytes)
{
    return ring_bytes >= CORE_LANE_RING_BYTES_MIN && ring_bytes <= CORE_LANE_RING_BYTES_MAX &&
           (ring_bytes & (ring_bytes - 1)) == 0;
}

/* ---- memory ---- */

static size_t mapped_bytes(const struct core_lane *lane)
{
    return HEAD_BYTES + (lane->maps_twice ? 4 : 2) * (size_t)lane->ring_bytes;
}

/* The counts, and each ring twice: into addresses that are taken already, where nothing else comes in between. */
static bool map_twice(uint8_t *memory, size_t ring_bytes, int descriptor)
{
    const int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE, rights = PROT_READ | PROT_WRITE;
    bool mapped = mmap(memory, HEAD_BYTES, rights, flags, descriptor, 0) != MAP_FAILED;
    for (size_t at = 0; at < 4 && mapped; at++)
        mapped = mmap(memory + HEAD_BYTES + at * ring_bytes, ring_bytes, rights, flags, descriptor,
                      (off_t)(HEAD_BYTES + at / 2 * ring_bytes)) != MAP_FAILED;
    return mapped;
}

static core_status map(struct core_lane *lane, int descriptor, bool is_server, struct core_error *error)
{
    lane->maps_twice = !is_server;
    uint8_t *const memory =
        is_server ? mmap(NULL, mapped_bytes(lane), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
                  : mmap(NULL, mapped_bytes(lane), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return core_error_errno(error, "can not map a lane");
    lane->memory = memory;
    if (!is_server && !map_twice(memory, lane->ring_bytes, descriptor)) {
        const core_status status = core_error_errno(error, "can not map a lane");
        core_lane_free(lane);
        return status;
    }
    struct core_lane_ring rings[2];
    for (size_t i = 0; i < 2; i++)
        rings[i] = (struct core_lane_ring){
            .shared = (struct core_lane_counts *)(memory + i * sizeof(struct core_lane_counts)),
            .bytes = memory + HEAD_BYTES + i * (is_server ? 1 : 2) * lane->ring_bytes};
    lane->in = rings[is_server ? 0 : 1];
    lane->out = rings[is_server ? 1 : 0];
    return CORE_OK;
}

core_status core_lane_create(struct core_lane *lane, uint32_t ring_bytes, int socket, int *descriptor,
                             struct core_error *error)
{
    *lane = (struct core_lane){.ring_bytes = ring_bytes, .socket = socket};
    *descriptor = memfd_create("millrace-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*descriptor < 0)
        return core_error_errno(error, "can not make the memory of a lane");
    core_status status = CORE_OK;
    if (fallocate(*descriptor, 0, 0, (off_t)core_lane_bytes(ring_bytes)) != 0 ||
        fcntl(*descriptor, F_ADD_SEALS, SEALS) != 0)
        status = core_error_errno(error, "can not make the memory of a lane");
    if (status == CORE_OK)
        status = map(lane, *descriptor, false, error);
    if (status == CORE_OK) { /* both sides wait */
        atomic_store_explicit(&lane->in.shared->reader_waits, 1, memory_order_relaxed);
        atomic_store_explicit(&lane->out.shared->reader_waits, 1, memory_order_relaxed);
        return status;
    }
    close(*descriptor);
    *descriptor = -1;
    return status;
}

/* Frame and memory in one message, which a socket takes whole or not at all. */
static bool send_lane(int socket, uint32_t ring_bytes, int descriptor)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_LANE_BYTES];
    union {
        struct cmsghdr header;
        uint8_t room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec all = {.iov_base = frame, .iov_len = protocol_lane_write(frame, ring_bytes)};
    const struct msghdr message = {
        .msg_iov = &all, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

    control.header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)all.iov_len;
}

core_status core_lane_ask(struct core_lane *lane, uint32_t ring_bytes, int socket, struct core_error *error)
{
    int descriptor;
    const core_status status = core_lane_create(lane, ring_bytes, socket, &descriptor, error);
    if (status != CORE_OK)
        return status;
    const bool sent = send_lane(socket, ring_bytes, descriptor);
    close(descriptor);
    if (sent)
        return CORE_OK;
    core_lane_free(lane);
    return core_error_set(error, CORE_AGAIN, "the socket takes no LANE");
}

/* Sealed against shrinking and growing, and open for what the server adds: nobody punches holes into it then. */
static bool is_sealed(int descriptor)
{
    const int seals = fcntl(descriptor, F_GET_SEALS); /* of other files there are none, whatever they are */
    return seals >= 0 && (seals & (SEALS | F_SEAL_SEAL)) == SEALS;
}

/* Who wrote its pages has paid for them: the server adds none. */
static bool is_whole(int descriptor, off_t bytes)
{
    return fcntl(descriptor, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0 &&
           lseek(descriptor, 0, SEEK_HOLE) == bytes;
}

core_status core_lane_attach(struct core_lane *lane, int descriptor, uint32_t ring_bytes,
                             struct core_error *error)
{
    const off_t bytes = (off_t)core_lane_bytes(ring_bytes);
    struct stat what;
    *lane = (struct core_lane){.ring_bytes = ring_bytes, .socket = -1};
    if (!core_lane_fits(ring_bytes) || !is_sealed(descriptor) || fstat(descriptor, &what) != 0 ||
        what.st_size != bytes)
        return core_error_set(
            error, CORE_INVALID,
            "LANE has come with a file that is not a memfd of 4096 + 2 * %u bytes, sealed against "
            "shrinking and growing and nothing else",
            ring_bytes);
    core_status status = map(lane, descriptor, true, error);
    if (status != CORE_OK)
        return status;
    if (!is_whole(descriptor, bytes)) {
        core_lane_free(lane);
        return core_error_set(error, CORE_INVALID,
                              "the memfd of LANE has holes: each of its pages must be written");
    }
    (void)madvise(lane->memory, (size_t)bytes, MADV_POPULATE_WRITE);
    (void)!mlock(lane->memory, (size_t)bytes); /* keys pass through it; else it may be swapped out */
    return CORE_OK;
}

void core_lane_free(struct core_lane *lane)
{
    if (lane->memory != NULL)
        (void)munmap(lane->memory, mapped_bytes(lane));
    lane->memory = NULL;
}

/* ---- the socket ---- */

/* CORE_AGAIN: the other side has many to read. CORE_NO_MEMORY: it may have none. CORE_CLOSED: nobody listens. */
static core_status ring_bell(const struct core_lane *lane)
{
    ssize_t sent = -1;
    for (int tries = 0; tries < BELL_TRIES && sent < 0; tries++) {
        sent = send(lane->socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR && errno != EAGAIN && errno != ENOBUFS)
            return CORE_CLOSED;
    }
    return sent >= 0 ? CORE_OK : errno == ENOBUFS ? CORE_NO_MEMORY : CORE_AGAIN;
}

static ssize_t take_bells(const struct core_lane *lane)
{
    uint8_t bells[HUSH_BYTES];
    return lane->receive != NULL ? lane->receive(lane->receiver, lane->socket, bells, sizeof bells)
                                 : recv(lane->socket, bells, sizeof bells, MSG_DONTWAIT);
}

void core_lane_hush(struct core_lane *lane)
{
    if (lane->ended)
        return;
    const ssize_t heard = take_bells(lane);
    lane->ended = heard == 0 || (heard < 0 && errno != EAGAIN && errno != EINTR);
}

/* ---- bytes ---- */

/* Sequentially consistent, as all of the other three: of two sides of which one publishes a count and then asks whether
 * it is waited for, and the other says that it waits and then looks at the count, one sees what the other wrote. */
static uint64_t load(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_seq_cst);
}

static void publish(_Atomic uint64_t *count, uint64_t value)
{
    atomic_store_explicit(count, value, memory_order_seq_cst);
}

/* Says that the other side is to be waited for; its count must be looked at after that. */
static void arm(_Atomic uint32_t *waits)
{
    atomic_store_explicit(waits, 1, memory_order_seq_cst);
}

/* After the own count was published. False: nobody listens. */
static bool wake(struct core_lane *lane, _Atomic uint32_t *waits)
{
    if (atomic_load_explicit(waits, memory_order_seq_cst) == 0)
        return true;
    atomic_store_explicit(waits, 0, memory_order_relaxed);
    const core_status status = ring_bell(lane);
    if (status != CORE_OK)
        atomic_store_explicit(waits, 1, memory_order_relaxed);
    lane->owes |= status == CORE_NO_MEMORY;
    return status != CORE_CLOSED;
}

void core_lane_ring(struct core_lane *lane)
{
    if (!lane->owes)
        return;
    lane->owes = false;
    if (!wake(lane, &lane->in.shared->writer_waits) || !wake(lane, &lane->out.shared->reader_waits))
        lane->ended = true;
}

/* Where the byte of this number is. */
static uint8_t *place(const struct core_lane *lane, const struct core_lane_ring *ring, uint64_t number)
{
    return ring->bytes + (number & (lane->ring_bytes - 1));
}

/* Bytes from this number on that lie in one piece. */
static size_t piece_of(const struct core_lane *lane, uint64_t number)
{
    return lane->maps_twice ? lane->ring_bytes : lane->ring_bytes - (number & (lane->ring_bytes - 1));
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void copy_out(const struct core_lane *lane, uint8_t *buffer, size_t bytes)
{
    const struct core_lane_ring *in = &lane->in;
    const size_t piece = smaller(bytes, piece_of(lane, in->done));
    memcpy(buffer, place(lane, in, in->done), piece);
    memcpy(buffer + piece, in->bytes, bytes - piece);
}

static void copy_in(const struct core_lane *lane, uint64_t number, const uint8_t *buffer, size_t bytes)
{
    const struct core_lane_ring *out = &lane->out;
    const size_t piece = smaller(bytes, piece_of(lane, number));
    memcpy(place(lane, out, number), buffer, piece);
    memcpy(out->bytes, buffer + piece, bytes - piece);
}

/* Up to `most` of what is there. */
static core_status look(struct core_lane *lane, size_t most, size_t *count)
{
    struct core_lane_ring *in = &lane->in;
    uint64_t there = load(&in->shared->written) - in->done;
    core_status status = CORE_AGAIN;

    *count = 0;
    if (there <= most) { /* it is all: the next to come must be heard of */
        status = lane->ended ? CORE_NOT_FOUND : CORE_AGAIN;
        core_lane_hush(lane);
        arm(&in->shared->reader_waits);
        there = load(&in->shared->written) - in->done;
    }
    if (there > lane->ring_bytes)
        return CORE_INVALID;
    if (there == 0)
        return status;
    *count = there < most ? (size_t)there : most;
    return CORE_OK;
}

core_status core_lane_read(struct core_lane *lane, uint8_t *buffer, size_t bytes, size_t *got)
{
    const core_status status = look(lane, bytes, got);
    if (status == CORE_OK)
        copy_out(lane, buffer, *got);
    lane->in.done += *got;
    return status;
}

core_status core_lane_look(struct core_lane *lane, size_t most, uint8_t **bytes, size_t *count)
{
    *bytes = place(lane, &lane->in, lane->in.done);
    return look(lane, smaller(most, piece_of(lane, lane->in.done)), count);
}

void core_lane_release(struct core_lane *lane)
{
    const struct core_lane_ring *in = &lane->in;
    publish(&in->shared->read, in->done);
    if (!wake(lane, &in->shared->writer_waits))
        lane->ended = true;
}

void core_lane_take(struct core_lane *lane, size_t count)
{
    lane->in.done += count;
    core_lane_release(lane);
}

/* CORE_INVALID: the reader's count can not be. */
static core_status find_room(struct core_lane *lane, uint64_t done, size_t *room)
{
    const uint64_t read = load(&lane->out.shared->read), waiting = done - read;
    *room = 0;
    if (waiting > lane->ring_bytes)
        return CORE_INVALID;
    lane->out.known = read;
    *room = lane->ring_bytes - (size_t)waiting;
    return CORE_OK;
}

/* Asks memory for what will be written next: the other side had it last. */
static void prefetch_room(const uint8_t *room, size_t bytes)
{
    for (size_t at = 0; at < smaller(bytes, PREFETCH_BYTES); at += 64)
        __builtin_prefetch(room + at, 1);
}

core_status core_lane_write(struct core_lane *lane, const struct iovec *vector, int count, size_t *taken)
{
    struct core_lane_ring *out = &lane->out;
    size_t room;
    core_status status = find_room(lane, out->done, &room);

    *taken = 0;
    for (int i = 0; i < count && status == CORE_OK; i++) {
        size_t left = vector[i].iov_len;
        if (left > room) {
            arm(&out->shared->writer_waits);
            status = find_room(lane, out->done + *taken, &room);
        }
        const size_t piece = left < room ? left : room;
        if (i + 1 < count)
            prefetch_room(place(lane, out, out->done + *taken + piece), vector[i + 1].iov_len);
        copy_in(lane, out->done + *taken, vector[i].iov_base, piece);
        *taken += piece;
        room -= piece;
        if (piece < left && status == CORE_OK)
            status = CORE_AGAIN;
    }
    out->done += *taken;
    return core_lane_publish(lane) == CORE_OK ? status : CORE_CLOSED;
}

uint8_t *core_lane_reserve(struct core_lane *lane, size_t bytes)
{
    struct core_lane_ring *out = &lane->out;
    size_t room = lane->ring_bytes - (size_t)(out->done - out->known);

    if (bytes > room && (find_room(lane, out->done, &room) != CORE_OK || bytes > room))
        return NULL;
    if (bytes > piece_of(lane, out->done))
        return NULL;
    out->done += bytes;
    uint8_t *const first = place(lane, out, out->done - bytes);
    prefetch_room(first + bytes, bytes); /* the next one */
    return first;
}

void core_lane_discard(struct core_lane *lane)
{
    struct core_lane_ring *out = &lane->out;
    if (out->done == out->told)
        return;
    core_secret_wipe(place(lane, out, out->told), core_lane_reserved_bytes(lane));
    out->done = out->told;
}

core_status core_lane_publish(struct core_lane *lane)
{
    struct core_lane_ring *out = &lane->out;
    if (out->told == out->done)
        return CORE_OK;
    out->told = out->done;
    publish(&out->shared->written, out->told);
    return wake(lane, &out->shared->reader_waits) ? CORE_OK : CORE_CLOSED;
}

size_t core_lane_left_bytes(const struct core_lane *lane)
{
    const uint64_t left = load(&lane->in.shared->written) - lane->in.done;
    return left <= lane->ring_bytes ? (size_t)left : 0;
}

size_t core_lane_waiting_bytes(const struct core_lane *lane)
{
    const uint64_t waiting = lane->out.done - load(&lane->out.shared->read);
    return waiting <= lane->ring_bytes ? (size_t)waiting : 0;
}
