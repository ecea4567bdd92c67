/* Rings of bytes in shared memory: what goes through them, when the socket is used, and what is not believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/lane.h"
#include "tests/support/random.h"
#include "tests/support/require.h"

#define RING      CORE_LANE_RING_BYTES_MIN
#define STEPS     200000
#define STREAMED  (UINT64_C(64) << 20)
#define SILENT_MS 20000

/* The system has no memory for what is sent, so many times. */
static int sends_without_memory;

ssize_t __real_send(int socket, const void *bytes, size_t count, int flags);
ssize_t __wrap_send(int socket, const void *bytes, size_t count, int flags);
ssize_t __wrap_send(int socket, const void *bytes, size_t count, int flags)
{
    if (sends_without_memory == 0)
        return __real_send(socket, bytes, count, flags);
    sends_without_memory--;
    errno = ENOBUFS;
    return -1;
}

struct pair {
    struct core_lane client, server;
    int sockets[2];
};

static void make_pair(struct pair *pair)
{
    struct core_error error = {""};
    int file;
    TEST_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair->sockets) == 0);
    TEST_REQUIRE(core_lane_create(&pair->client, RING, pair->sockets[0], &file, &error) == CORE_OK);
    TEST_REQUIRE(core_lane_attach(&pair->server, file, RING, &error) == CORE_OK);
    pair->server.socket = pair->sockets[1];
    close(file);
}

static void end_pair(struct pair *pair)
{
    core_lane_free(&pair->client);
    core_lane_free(&pair->server);
    close(pair->sockets[0]);
    close(pair->sockets[1]);
}

static bool is_told(int socket)
{
    struct pollfd ready = {.fd = socket, .events = POLLIN};
    return poll(&ready, 1, 0) > 0;
}

static uint8_t byte_at(uint64_t number)
{
    return (uint8_t)(number * 167 + number / 251);
}

/* One direction, and what its user knows. */
struct way {
    struct core_lane *from, *to;
    uint64_t sent, received;
    uint64_t seen;                   /* of what was sent, by the reader when it last looked */
    bool reader_waits, writer_waits; /* the last call has said AGAIN */
};

/* In place: none where there is no room in one piece. */
static void reserve_some(struct way *way, size_t count)
{
    const size_t piece = way->from->maps_twice ? RING : RING - way->sent % RING;
    uint8_t *const room = core_lane_reserve(way->from, count);
    assert_true((room != NULL) == (count <= RING - (way->sent - way->received) && count <= piece));
    for (size_t i = 0; room != NULL && i < count; i++)
        room[i] = byte_at(way->sent + i);
    way->sent += room != NULL ? count : 0;
    assert_int_equal(core_lane_reserved_bytes(way->from), room != NULL ? count : 0);
    assert_int_equal(core_lane_publish(way->from), CORE_OK);
    assert_int_equal(core_lane_reserved_bytes(way->from), 0);
}

/* All that is there, or as much as lies in one piece; some of it is taken. */
static void look_at_all(struct way *way, struct test_random *random)
{
    uint8_t *bytes;
    size_t count;
    const core_status status = core_lane_look(way->to, SIZE_MAX, &bytes, &count);
    assert_int_equal(status, way->sent > way->received ? CORE_OK : CORE_AGAIN);
    const uint64_t there = way->sent - way->received, piece = RING - way->received % RING;
    assert_int_equal(count, way->to->maps_twice || there < piece ? there : piece);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(bytes[i], byte_at(way->received + i));
    way->reader_waits = count == there; /* others look again by themselves */
    way->seen = way->sent;
    const size_t taken = (size_t)test_random_in(random, 0, (int64_t)count);
    core_lane_take(way->to, taken);
    way->received += taken;
}

static void write_some(struct way *way, struct test_random *random)
{
    uint8_t bytes[RING + 999];
    size_t count = (size_t)test_random_log(random, 1, sizeof bytes - 1), taken;
    if (test_random_chance(random, 30))
        reserve_some(way, count);
    const size_t first = (size_t)test_random_in(random, 0, (int64_t)count);
    for (size_t i = 0; i < count; i++)
        bytes[i] = byte_at(way->sent + i);
    const struct iovec pieces[] = {{bytes, first}, {bytes + first, count - first}};
    const core_status status = core_lane_write(way->from, pieces, 2, &taken);
    assert_int_equal(status, taken == count ? CORE_OK : CORE_AGAIN);
    way->sent += taken;
    way->writer_waits = status == CORE_AGAIN;
    assert_true(taken == count || way->sent - way->received == RING);
}

static void read_some(struct way *way, struct test_random *random)
{
    uint8_t bytes[RING + 999];
    size_t count = (size_t)test_random_log(random, 1, sizeof bytes - 1), got;
    if (test_random_chance(random, 30)) {
        look_at_all(way, random);
        return;
    }
    if (test_random_chance(random, 10) && way->sent > way->received)
        count = (size_t)(way->sent - way->received);
    const core_status status = core_lane_read(way->to, bytes, count, &got);
    assert_int_equal(status, got > 0 ? CORE_OK : CORE_AGAIN);
    for (size_t i = 0; i < got; i++)
        assert_int_equal(bytes[i], byte_at(way->received + i));
    if (got > 0)
        core_lane_release(way->to);
    way->received += got;
    way->reader_waits = way->received == way->sent; /* others look again by themselves */
    way->seen = way->received;
    assert_true(got == count || way->reader_waits);
}

/* Who was told that there is nothing, or no room, and of whom that is no longer true, has a byte on its socket. */
static void expect_told(const struct way *way)
{
    if (way->reader_waits && way->sent > way->seen)
        assert_true(is_told(way->to->socket));
    if (way->writer_waits && way->sent - way->received < RING)
        assert_true(is_told(way->from->socket));
    assert_int_equal(core_lane_left_bytes(way->to), way->sent - way->received);
    assert_int_equal(core_lane_waiting_bytes(way->from), way->sent - way->received);
}

/* A read takes what the socket tells, also that there is room: who waits for that looks as well. */
static void look(struct way *in, struct way *out, struct test_random *random)
{
    read_some(in, random);
    if (out->writer_waits)
        write_some(out, random);
}

static void bytes_go_both_ways_and_nobody_sleeps(void **state)
{
    (void)state;
    struct test_random random = {.state = 1};
    struct pair pair;
    make_pair(&pair);
    struct way ways[] = {{.from = &pair.client, .to = &pair.server, .reader_waits = true},
                         {.from = &pair.server, .to = &pair.client, .reader_waits = true}};
    for (int step = 0; step < STEPS; step++) {
        const size_t at = (size_t)test_random_in(&random, 0, 1);
        struct way *way = &ways[at], *other = &ways[1 - at];
        if (test_random_chance(&random, 5)) {
            core_lane_hush(way->to);
            look(way, other, &random);
        } else if (test_random_chance(&random, 50))
            write_some(way, &random);
        else
            look(way, other, &random);
        expect_told(way);
        expect_told(other);
    }
    assert_true(ways[0].received > STREAMED && ways[1].received > STREAMED);
    end_pair(&pair);
}

/* While a reader is behind, the socket stays quiet. */
static void a_reader_that_is_awake_is_not_told(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t bytes[100] = {0};
    size_t count;
    const struct iovec piece = {bytes, sizeof bytes};
    make_pair(&pair);
    assert_int_equal(core_lane_write(&pair.client, &piece, 1, &count), CORE_OK);
    assert_true(is_told(pair.sockets[1]));
    core_lane_hush(&pair.server);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(core_lane_write(&pair.client, &piece, 1, &count), CORE_OK);
        assert_int_equal(core_lane_read(&pair.server, bytes, sizeof bytes, &count), CORE_OK);
        assert_int_equal(count, sizeof bytes);
        core_lane_release(&pair.server);
        assert_false(is_told(pair.sockets[0]) || is_told(pair.sockets[1]));
    }
    end_pair(&pair);
}

/* ---- two threads that sleep ---- */

static void sleep_until_told(const struct core_lane *lane)
{
    struct pollfd ready = {.fd = lane->socket, .events = POLLIN};
    TEST_REQUIRE(poll(&ready, 1, SILENT_MS) > 0);
}

static void *send_all(void *argument)
{
    struct core_lane *lane = argument;
    struct test_random random = {.state = 2};
    static uint8_t bytes[3 * RING];
    for (uint64_t sent = 0; sent < STREAMED;) {
        size_t count = (size_t)test_random_log(&random, 1, sizeof bytes), taken;
        count = count < STREAMED - sent ? count : (size_t)(STREAMED - sent);
        for (size_t i = 0; i < count; i++)
            bytes[i] = byte_at(sent + i);
        for (size_t done = 0; done < count; done += taken) {
            const struct iovec piece = {bytes + done, count - done};
            if (core_lane_write(lane, &piece, 1, &taken) == CORE_OK)
                continue;
            if (taken == 0) {
                sleep_until_told(lane);
                core_lane_hush(lane);
            }
        }
        sent += count;
    }
    return NULL;
}

static void a_sleeping_side_is_woken(void **state)
{
    (void)state;
    static uint8_t bytes[RING];
    struct pair pair;
    pthread_t sender;
    make_pair(&pair);
    TEST_REQUIRE(pthread_create(&sender, NULL, send_all, &pair.client) == 0);
    for (uint64_t received = 0; received < STREAMED;) {
        size_t got;
        const core_status status = core_lane_read(&pair.server, bytes, sizeof bytes, &got);
        if (status == CORE_AGAIN) {
            sleep_until_told(&pair.server);
            continue;
        }
        TEST_REQUIRE(status == CORE_OK);
        for (size_t i = 0; i < got; i++)
            TEST_REQUIRE(bytes[i] == byte_at(received + i));
        core_lane_release(&pair.server);
        received += got;
    }
    pthread_join(sender, NULL);
    end_pair(&pair);
}

/* What is shared can not be taken from under the server, nor grow at its cost. */
static void nobody_punches_holes(void **state)
{
    (void)state;
    struct core_lane client, server;
    struct core_error error;
    int file;
    assert_int_equal(core_lane_create(&client, RING, -1, &file, &error), CORE_OK);
    assert_int_equal(core_lane_attach(&server, file, RING, &error), CORE_OK);
    assert_int_not_equal(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, RING), 0);
    assert_int_not_equal(madvise((uint8_t *)client.memory + 4096, RING, MADV_REMOVE), 0);
    client.out.bytes[17] = 42;
    assert_int_equal(server.in.bytes[17], 42);
    core_lane_free(&client);
    core_lane_free(&server);
    close(file);
}

/* ---- ends, secrets, lies ---- */

static void what_was_written_before_the_end_is_read(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t bytes[64] = {7};
    size_t count;
    const struct iovec piece = {bytes, sizeof bytes};
    make_pair(&pair);
    assert_int_equal(core_lane_read(&pair.server, bytes, sizeof bytes, &count), CORE_AGAIN);
    assert_int_equal(core_lane_write(&pair.client, &piece, 1, &count), CORE_OK);
    shutdown(pair.sockets[0], SHUT_WR);
    assert_int_equal(core_lane_read(&pair.server, bytes, 10, &count), CORE_OK);
    core_lane_release(&pair.server);
    core_status status;
    size_t received = count;
    for (int looks = 0;
         (status = core_lane_read(&pair.server, bytes, sizeof bytes, &count)) != CORE_NOT_FOUND;) {
        assert_true(status == CORE_OK || status == CORE_AGAIN);
        assert_in_range(looks++, 0, 4);
        if (count > 0)
            core_lane_release(&pair.server);
        received += count;
    }
    assert_int_equal(received, sizeof bytes);
    close(pair.sockets[1]); /* nobody listens any more */
    assert_int_equal(core_lane_write(&pair.client, &piece, 1, &count), CORE_CLOSED);
    pair.sockets[1] = dup(pair.sockets[0]);
    end_pair(&pair);
}

/* What nobody was told of is gone, and the next bytes are in its place. */
static void what_is_discarded_is_wiped(void **state)
{
    (void)state;
    struct pair pair;
    uint8_t byte = 7, *bytes;
    size_t count;
    const struct iovec piece = {&byte, 1};
    make_pair(&pair);
    core_lane_discard(&pair.client);
    memset(core_lane_reserve(&pair.client, 100), 0xAA, 100);
    core_lane_discard(&pair.client);
    assert_int_equal(core_lane_reserved_bytes(&pair.client), 0);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(pair.client.out.bytes[i], 0);
    assert_int_equal(core_lane_publish(&pair.client), CORE_OK);
    assert_int_equal(core_lane_look(&pair.server, SIZE_MAX, &bytes, &count), CORE_AGAIN);
    assert_int_equal(core_lane_write(&pair.client, &piece, 1, &count), CORE_OK);
    assert_int_equal(core_lane_look(&pair.server, SIZE_MAX, &bytes, &count), CORE_OK);
    assert_int_equal(count, 1);
    assert_int_equal(*bytes, byte);
    end_pair(&pair);
}

static void counts_that_can_not_be_are_told(void **state)
{
    (void)state;
    static const uint64_t written[] = {RING + 1, UINT64_C(1) << 40, UINT64_MAX};
    static const uint64_t read[] = {1, UINT64_C(1) << 40, UINT64_MAX - RING}; /* of nothing */
    uint8_t bytes[64] = {0};
    size_t count;
    const struct iovec piece = {bytes, sizeof bytes};
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++) {
        struct pair pair;
        make_pair(&pair);
        memcpy((uint8_t *)pair.client.in.shared + 64, &read[i], sizeof read[i]);
        assert_int_equal(core_lane_write(&pair.server, &piece, 1, &count), CORE_INVALID);
        assert_int_equal(count, 0);
        assert_int_equal(core_lane_waiting_bytes(&pair.server), 0);
        memcpy(pair.client.out.shared, &written[i], sizeof written[i]);
        assert_int_equal(core_lane_read(&pair.server, bytes, sizeof bytes, &count), CORE_INVALID);
        assert_int_equal(core_lane_left_bytes(&pair.server), 0);
        uint8_t *all;
        assert_int_equal(core_lane_look(&pair.server, SIZE_MAX, &all, &count), CORE_INVALID);
        assert_non_null(core_lane_reserve(&pair.client, RING));
        memcpy((uint8_t *)pair.client.out.shared + 64, &written[i],
               sizeof written[i]); /* more than there were */
        for (int tries = 0; tries < 3; tries++)
            assert_null(core_lane_reserve(&pair.client, 1));
        end_pair(&pair);
    }
}

static void only_a_sealed_memfd_is_mapped(void **state)
{
    (void)state;
    char path[] = "/tmp/millrace-test-lane-XXXXXX";
    const int ordinary = mkstemp(path), open_end = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const off_t bytes = (off_t)core_lane_bytes(RING);
    struct core_lane lane;
    struct core_error error;
    TEST_REQUIRE(ordinary >= 0 && open_end >= 0 && unlink(path) == 0);
    TEST_REQUIRE(ftruncate(ordinary, bytes) == 0 && ftruncate(open_end, bytes) == 0);
    assert_int_equal(core_lane_attach(&lane, ordinary, RING, &error), CORE_INVALID);
    assert_int_equal(core_lane_attach(&lane, STDIN_FILENO, RING, &error), CORE_INVALID);
    assert_int_equal(core_lane_attach(&lane, -1, RING, &error), CORE_INVALID);
    assert_int_equal(core_lane_attach(&lane, open_end, RING, &error), CORE_INVALID);
    TEST_REQUIRE(fcntl(open_end, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    assert_int_equal(core_lane_attach(&lane, open_end, RING, &error), CORE_INVALID);
    TEST_REQUIRE(fcntl(open_end, F_ADD_SEALS, F_SEAL_GROW) == 0);
    assert_int_equal(core_lane_attach(&lane, open_end, 2 * RING, &error), CORE_INVALID);
    assert_int_equal(core_lane_attach(&lane, open_end, RING + 1, &error), CORE_INVALID);
    assert_int_equal(core_lane_attach(&lane, open_end, RING, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "holes"));
    close(ordinary);
    close(open_end);
    assert_false(core_lane_fits(0) || core_lane_fits(RING / 2) || core_lane_fits(3 * RING) ||
                 core_lane_fits(2 * CORE_LANE_RING_BYTES_MAX));
    assert_true(core_lane_fits(RING) && core_lane_fits(CORE_LANE_RING_BYTES_MAX));
}

/* Who waits for bytes is told of them when there is memory again, though nothing more is written. */
static void what_is_owed_is_sent_later(void **state)
{
    uint8_t byte = 1, got_byte;
    const struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct pair pair;
    size_t count;
    (void)state;
    make_pair(&pair);
    sends_without_memory = 1000;
    assert_int_equal(core_lane_write(&pair.client, &vector, 1, &count), CORE_OK);
    assert_false(is_told(pair.sockets[1]));
    core_lane_ring(&pair.client);
    assert_false(is_told(pair.sockets[1]));
    assert_true(pair.client.owes);
    sends_without_memory = 0;
    core_lane_ring(&pair.client);
    assert_true(is_told(pair.sockets[1]));
    assert_false(pair.client.owes);
    assert_int_equal(core_lane_read(&pair.server, &got_byte, 1, &count), CORE_OK);
    core_lane_release(&pair.server);
    end_pair(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_go_both_ways_and_nobody_sleeps),
        cmocka_unit_test(a_reader_that_is_awake_is_not_told),
        cmocka_unit_test(a_sleeping_side_is_woken),
        cmocka_unit_test(what_was_written_before_the_end_is_read),
        cmocka_unit_test(nobody_punches_holes),
        cmocka_unit_test(what_is_discarded_is_wiped),
        cmocka_unit_test(counts_that_can_not_be_are_told),
        cmocka_unit_test(only_a_sealed_memfd_is_mapped),
        cmocka_unit_test(what_is_owed_is_sent_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
