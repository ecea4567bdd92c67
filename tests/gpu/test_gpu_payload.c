/* Payloads into arenas: every byte, and no other, however long and wherever it begins; and all of it is there
 * for whoever is told by another thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>

#include "gpu/payload.h"
#include "tests/support/require.h"

#define BYTES_MAX (5 * GPU_PAYLOAD_LONG_BYTES)
#define AROUND    64u
#define UNTOUCHED 0xee

static alignas(64) uint8_t arena[AROUND + 64 + BYTES_MAX + AROUND], expected[sizeof arena];
static uint8_t source[64 + BYTES_MAX];

static uint8_t byte_at(size_t at)
{
    return (uint8_t)(at * 131 + (at >> 8) * 7 + 1);
}

static void check(uint32_t input_at, uint32_t payload_at, uint32_t bytes)
{
    memset(arena, UNTOUCHED, sizeof arena);
    memset(expected, UNTOUCHED, sizeof expected);
    memcpy(expected + AROUND + input_at, source + payload_at, bytes);
    gpu_payload_write(arena + AROUND + input_at, source + payload_at, bytes);
    assert_memory_equal(arena, expected, sizeof arena);
}

static void every_byte_and_no_other(void **state)
{
    static const uint32_t lengths[] = {16,
                                       64,
                                       1408,
                                       GPU_PAYLOAD_LONG_BYTES - 16,
                                       GPU_PAYLOAD_LONG_BYTES,
                                       GPU_PAYLOAD_LONG_BYTES + 16,
                                       GPU_PAYLOAD_LONG_BYTES + 32,
                                       GPU_PAYLOAD_LONG_BYTES + 48,
                                       8192,
                                       BYTES_MAX};
    static const uint32_t payloads_at[] = {0, 1, 7, 15, 16, 63};
    (void)state;
    for (size_t at = 0; at < sizeof source; at++)
        source[at] = byte_at(at);
    for (size_t length = 0; length < sizeof lengths / sizeof *lengths; length++)
        for (uint32_t input_at = 0; input_at < 64; input_at += 16)
            for (size_t payload = 0; payload < sizeof payloads_at / sizeof *payloads_at; payload++)
                check(input_at, payloads_at[payload], lengths[length]);
}

/* ---- another thread ---- */

#define TURNS 20000
#define WORDS (GPU_PAYLOAD_LONG_BYTES / sizeof(uint64_t))
#define SPINS 10000 /* looks before a core is given away: what is not there yet is so for some 100 ns */

static alignas(64) uint64_t written[WORDS];
static _Atomic uint32_t told; /* atomic: odd: written, even: read */

static void wait_for(uint32_t what)
{
    for (uint32_t looks = 0; atomic_load_explicit(&told, memory_order_acquire) != what; looks++)
        if (looks >= SPINS)
            sched_yield();
}

static void *read_all(void *argument)
{
    (void)argument;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        wait_for(2 * turn + 1);
        for (size_t at = WORDS; at > 0; at--) /* what was written last comes last */
            TEST_REQUIRE(written[at - 1] == turn);
        atomic_store_explicit(&told, 2 * turn + 2, memory_order_release);
    }
    return NULL;
}

static void who_is_told_sees_it_all(void **state)
{
    uint64_t payload[WORDS];
    pthread_t reader;
    (void)state;
    atomic_store(&told, 0);
    assert_int_equal(pthread_create(&reader, NULL, read_all, NULL), 0);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        for (size_t at = 0; at < WORDS; at++)
            payload[at] = turn;
        gpu_payload_write((uint8_t *)written, (const uint8_t *)payload, sizeof payload);
        atomic_store_explicit(&told, 2 * turn + 1, memory_order_release);
        wait_for(2 * turn + 2);
    }
    assert_int_equal(pthread_join(reader, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_and_no_other),
        cmocka_unit_test(who_is_told_sees_it_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
