/* The burst scheduler in virtual time: which pieces it takes, in which order, and what it hands back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/secret.h"
#include "core/transport_stream.h"
#include "cpu/scheduler.h"
#include "tests/support/engine.h"

#define MS CORE_NS_PER_MS

/* An engine that encrypts nothing and writes down what it was asked, to see the scheduler's choices. */

#define CALLS_MAX 256

struct call {
    enum core_cipher cipher;
    bool decrypts;
    uint32_t count;
    void *keys[CPU_BURST_MAX];
    const uint8_t *sources[CPU_BURST_MAX];
    uint32_t bytes[CPU_BURST_MAX];
    uint8_t chains[CPU_BURST_MAX]; /* first byte going in */
};

static struct call calls[CALLS_MAX];
static uint32_t call_count;
static core_ns virtual_now_ns;          /* the fake engine moves it: 1 us per piece */
static enum core_cipher failing_cipher; /* 0: none */

static core_status fake_open(struct cpu_engine **engine, struct core_error *error)
{
    (void)error;
    *engine = NULL;
    return CORE_OK;
}

static void fake_close(struct cpu_engine *engine)
{
    (void)engine;
}

static uint32_t fake_lanes(const struct cpu_engine *engine)
{
    (void)engine;
    return 4;
}

static core_status fake_key_set(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                enum core_direction direction, const uint8_t *key)
{
    (void)engine;
    (void)cipher;
    (void)direction;
    memcpy(key_state, key, 1);
    return CORE_OK;
}

static void fake_key_wipe(void *key_state)
{
    core_secret_wipe(key_state, 1);
}

static core_status fake_encrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                                uint32_t count)
{
    (void)engine;
    assert_in_range(call_count, 0, CALLS_MAX - 1);
    struct call *call = &calls[call_count++];
    call->cipher = cipher;
    call->decrypts = false;
    call->count = count;
    for (uint32_t i = 0; i < count; i++) {
        call->keys[i] = pieces[i].key;
        call->bytes[i] = pieces[i].bytes;
        call->sources[i] = pieces[i].source;
        call->chains[i] = pieces[i].chain[0];
        pieces[i].chain[0] = 0xcc; /* the ciphertext's */
        assert_ptr_equal(pieces[i].source, pieces[i].target);
    }
    virtual_now_ns += count * CORE_NS_PER_US;
    return cipher == failing_cipher ? CORE_SYSTEM : CORE_OK;
}

static core_status fake_decrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                                uint32_t count)
{
    const core_status status = fake_encrypt(engine, cipher, pieces, count);
    calls[call_count - 1].decrypts = true;
    return status;
}

static const struct cpu_engine_ops fake = {.name = "fake",
                                           .key_state_bytes = 1,
                                           .open = fake_open,
                                           .close = fake_close,
                                           .lanes = fake_lanes,
                                           .key_set = fake_key_set,
                                           .key_wipe = fake_key_wipe,
                                           .encrypt = fake_encrypt,
                                           .decrypt = fake_decrypt};

static core_ns virtual_clock(void *argument)
{
    (void)argument;
    return virtual_now_ns;
}

static int reset_fake(void **state)
{
    (void)state;
    call_count = 0;
    virtual_now_ns = 0;
    failing_cipher = (enum core_cipher)0;
    return 0;
}

static struct cpu_scheduler *scheduler_open(const struct cpu_engine_ops *ops, uint32_t burst_pieces)
{
    struct cpu_scheduler *scheduler;
    struct cpu_scheduler_options options = {.ops = ops, .burst_pieces = burst_pieces, .far_capacity = 1024};
    assert_int_equal(cpu_scheduler_create(&scheduler, &options, NULL), CORE_OK);
    return scheduler;
}

static struct cpu_stream *stream_open_as(const struct cpu_engine_ops *ops,
                                         const struct cpu_stream_options *options, const uint8_t *key)
{
    struct cpu_engine *engine;
    static const uint8_t iv[CORE_BLOCK_BYTES] = {1, 2, 3};
    struct cpu_stream *stream = aligned_alloc(64, cpu_stream_bytes(ops, 1));
    assert_non_null(stream);
    assert_int_equal(ops->open(&engine, NULL), CORE_OK);
    assert_int_equal(cpu_stream_init(stream, ops, engine, options, key, iv), CORE_OK);
    ops->close(engine);
    return stream;
}

static struct cpu_stream *stream_open(const struct cpu_engine_ops *ops, enum core_cipher cipher,
                                      const uint8_t *key, uint32_t piece_bytes, core_ns piece_deadline_ns)
{
    const struct cpu_stream_options options = {
        .cipher = cipher, .piece_bytes = piece_bytes, .piece_deadline_ns = piece_deadline_ns};
    return stream_open_as(ops, &options, key);
}

static void stream_close(struct cpu_stream *stream, const struct cpu_engine_ops *ops)
{
    cpu_stream_wipe(stream, ops);
    free(stream);
}

static struct cpu_stream *fake_stream(uint32_t piece_bytes, core_ns piece_deadline_ns)
{
    static const uint8_t key[32];
    return stream_open(&fake, CORE_CIPHER_AES_128_CBC, key, piece_bytes, piece_deadline_ns);
}

static uint8_t payload[1 << 16]; /* the fake engine does not touch it */

static struct cpu_packet packet_of(struct cpu_stream *stream, uint32_t bytes, core_ns release_ns)
{
    return (struct cpu_packet){.stream = stream, .data = payload, .bytes = bytes, .release_ns = release_ns};
}

static void push_one(struct cpu_scheduler *scheduler, struct cpu_packet *packet)
{
    cpu_scheduler_push(scheduler, &packet, 1, virtual_now_ns);
}

static uint32_t burst(struct cpu_scheduler *scheduler, struct cpu_packet **finished, uint32_t *pieces)
{
    return cpu_scheduler_burst(scheduler, finished, pieces, virtual_clock, NULL);
}

static void test_nothing_pending(void **state)
{
    (void)state;
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 8);
    struct cpu_packet *finished[8];
    uint32_t pieces = 99;
    assert_int_equal(burst(scheduler, finished, &pieces), 0);
    assert_int_equal(pieces, 0);
    assert_int_equal(call_count, 0);
    assert_int_equal(cpu_scheduler_pending(scheduler), 0);
    assert_true(cpu_scheduler_first_deadline_ns(scheduler) == CORE_NS_NEVER);
    assert_int_equal(atomic_load(&cpu_scheduler_counters_get(scheduler)->bursts), 0);
    cpu_scheduler_destroy(scheduler);
    cpu_scheduler_destroy(NULL);
}

static void test_burst_size_is_checked(void **state)
{
    (void)state;
    struct cpu_scheduler *scheduler;
    struct core_error error;
    struct cpu_scheduler_options options = {.ops = &fake};
    assert_int_equal(cpu_scheduler_create(&scheduler, &options, &error), CORE_INVALID);
    options.burst_pieces = CPU_BURST_MAX + 1;
    assert_int_equal(cpu_scheduler_create(&scheduler, &options, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "129"));
}

/* Earliest deadlines first, whatever the order of arrival; a burst takes no more than it may. */
static void test_deadline_order(void **state)
{
    (void)state;
    enum { STREAMS = 10, BURST = 4 };
    static const int deadline_ms[STREAMS] = {70, 10, 90, 30, 50, 20, 100, 40, 60, 80};
    struct cpu_scheduler *scheduler = scheduler_open(&fake, BURST);
    struct cpu_stream *streams[STREAMS];
    struct cpu_packet packets[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = fake_stream(1024, deadline_ms[i] * MS);
        packets[i] = packet_of(streams[i], 64, 0);
        push_one(scheduler, &packets[i]);
    }
    assert_int_equal(cpu_scheduler_pending(scheduler), STREAMS);
    assert_true(cpu_scheduler_first_deadline_ns(scheduler) == 10 * MS);
    int next_ms = 10;
    for (uint32_t left = STREAMS; left > 0;) {
        struct cpu_packet *finished[BURST];
        uint32_t pieces;
        uint32_t count = burst(scheduler, finished, &pieces);
        assert_int_equal(count, left < BURST ? left : BURST);
        assert_int_equal(pieces, count);
        for (uint32_t i = 0; i < count; i++, next_ms += 10) {
            assert_true(finished[i]->stream->piece_deadline_ns == next_ms * MS);
            assert_true(finished[i]->finished_ns == virtual_now_ns);
            assert_int_equal(finished[i]->status, CORE_OK);
            assert_int_equal(finished[i]->done_bytes, 64);
        }
        left -= count;
    }
    assert_int_equal(call_count, 3);
    for (int i = 0; i < STREAMS; i++)
        stream_close(streams[i], &fake);
    cpu_scheduler_destroy(scheduler);
}

/* Of transport-stream packets those that are marked and have whole blocks of payload are encrypted, each from the IV
 * ahead of the packet on, in pieces that end where it does. */
static void test_records(void **state)
{
    static uint8_t bytes[CORE_BLOCK_BYTES + 6 * CORE_TS_BYTES] = {0x77};
    static const uint8_t key[32];
    const struct cpu_stream_options options = {.cipher = CORE_CIPHER_AES_128_CBC,
                                               .direction = CORE_DIRECTION_DECRYPT,
                                               .records = CORE_RECORDS_TS,
                                               .piece_bytes = 96,
                                               .piece_deadline_ns = 2 * MS};
    static const struct {
        uint32_t record, from, bytes;
        uint8_t chain;
    } expected[] = {
        {1, 4, 96, 0x77}, {1, 100, 80, 0xcc}, {3, 157, 16, 0x77}, {4, 5, 96, 0x77}, {4, 101, 80, 0xcc}};
    uint8_t *records = bytes + CORE_BLOCK_BYTES;
    struct cpu_packet *finished[16];
    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        records[i * CORE_TS_BYTES] = 0x47;
    records[0 * CORE_TS_BYTES + 3] = 0x50; /* marked 01, which is none */
    records[1 * CORE_TS_BYTES + 3] = 0x90;
    records[2 * CORE_TS_BYTES + 3] = 0xa0; /* no payload */
    records[3 * CORE_TS_BYTES + 3] = 0xf0;
    records[3 * CORE_TS_BYTES + 4] = 152; /* 31 bytes of payload */
    records[4 * CORE_TS_BYTES + 3] = 0xb0;
    records[5 * CORE_TS_BYTES + 3] = 0x10;
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 16);
    struct cpu_stream *stream = stream_open_as(&fake, &options, key);
    struct cpu_packet packet = packet_of(stream, 176 + 16 + 176, 0);
    packet.data = records;
    packet.begins_unit = true;
    push_one(scheduler, &packet);
    for (uint32_t i = 0; i < 7; i++) { /* those that pass have a burst each, too */
        uint32_t pieces;
        assert_int_equal(burst(scheduler, finished, &pieces), i == 6);
        assert_int_equal(pieces, 1);
    }
    assert_int_equal(call_count, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(calls[i].decrypts);
        assert_ptr_equal(calls[i].sources[0],
                         records + expected[i].record * CORE_TS_BYTES + expected[i].from);
        assert_int_equal(calls[i].bytes[0], expected[i].bytes);
        assert_int_equal(calls[i].chains[0], expected[i].chain);
    }
    assert_int_equal(cpu_scheduler_pending(scheduler), 0);
    stream_close(stream, &fake);
    cpu_scheduler_destroy(scheduler);
}

/* Streams of a cipher that encrypt, and that decrypt, are two calls. */
static void test_directions(void **state)
{
    static const uint8_t key[32];
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 16);
    struct cpu_stream *streams[4];
    struct cpu_packet packets[4], *finished[16];
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const struct cpu_stream_options options = {.cipher = CORE_CIPHER_AES_256_CBC,
                                                   .direction = (enum core_direction)(i % 2),
                                                   .piece_bytes = 64,
                                                   .piece_deadline_ns = MS};
        streams[i] = stream_open_as(&fake, &options, key);
        packets[i] = packet_of(streams[i], 32, 0);
        push_one(scheduler, &packets[i]);
    }
    assert_int_equal(burst(scheduler, finished, NULL), 4);
    assert_int_equal(call_count, 2);
    assert_true(!calls[0].decrypts && calls[1].decrypts);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(calls[i].count, 2);
        assert_int_equal(calls[i].cipher, CORE_CIPHER_AES_256_CBC);
        for (uint32_t piece = 0; piece < 2; piece++)
            assert_ptr_equal(calls[i].keys[piece], cpu_stream_key(streams[2 * piece + i], 0));
    }
    for (uint32_t i = 0; i < 4; i++)
        stream_close(streams[i], &fake);
    cpu_scheduler_destroy(scheduler);
}

/* One piece of a stream in a burst, pieces cut as declared, each with its own deadline, packets in order. */
static void test_pieces_of_one_stream(void **state)
{
    (void)state;
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 16);
    struct cpu_stream *stream = fake_stream(1024, 2 * MS);
    struct cpu_packet first = packet_of(stream, 2 * 1024 + 16, 5 * MS);
    struct cpu_packet second = packet_of(stream, 1024, 20 * MS);
    push_one(scheduler, &first);
    push_one(scheduler, &second);
    static const struct {
        core_ns deadline_ns;
        uint32_t bytes;
        int finishes; /* 0: none, 1: first, 2: second */
    } expected[] = {{7 * MS, 1024, 0}, {9 * MS, 1024, 0}, {11 * MS, 16, 1}, {22 * MS, 1024, 2}};
    for (size_t i = 0; i < 4; i++) {
        struct cpu_packet *finished[16];
        uint32_t pieces;
        assert_true(cpu_scheduler_first_deadline_ns(scheduler) == expected[i].deadline_ns);
        assert_int_equal(cpu_scheduler_pending(scheduler), 1);
        uint32_t count = burst(scheduler, finished, &pieces);
        assert_int_equal(pieces, 1);
        assert_int_equal(calls[i].bytes[0], expected[i].bytes);
        assert_int_equal(count, expected[i].finishes != 0);
        if (count == 1)
            assert_ptr_equal(finished[0], expected[i].finishes == 1 ? &first : &second);
    }
    assert_int_equal(cpu_scheduler_pending(scheduler), 0);
    const struct cpu_scheduler_counters *counters = cpu_scheduler_counters_get(scheduler);
    assert_int_equal(atomic_load(&counters->bursts), 4);
    assert_int_equal(atomic_load(&counters->pieces), 4);
    assert_int_equal(atomic_load(&counters->packets), 2);
    assert_int_equal(atomic_load(&counters->bytes), 3 * 1024 + 16);
    assert_true(atomic_load(&counters->busy_ns) == 4 * CORE_NS_PER_US);
    assert_true(atomic_load(&counters->burst_max_ns) == CORE_NS_PER_US);
    stream_close(stream, &fake);
    cpu_scheduler_destroy(scheduler);
}

/* A burst of fewer than B pieces that no packet outlasts is a grace period, and so is one of none, but not
 * that a burst leaves none; packets wait for one that begins after the burst that finished them. */
static void test_pauses(void **state)
{
    (void)state;
    enum { BURST = 2, STREAMS = 3 };
    struct cpu_scheduler *scheduler = scheduler_open(&fake, BURST);
    const struct cpu_scheduler_counters *counters = cpu_scheduler_counters_get(scheduler);
    struct cpu_stream *streams[STREAMS];
    struct cpu_packet packets[STREAMS], *finished[BURST];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = fake_stream(1024, (i + 1) * MS);
        packets[i] = packet_of(streams[i], 64, 0);
        push_one(scheduler, &packets[i]);
    }
    assert_int_equal(burst(scheduler, finished, NULL), 2); /* full, and one is left */
    assert_int_equal(atomic_load(&counters->pauses), 0);
    assert_int_equal(burst(scheduler, finished, NULL), 1); /* not full, and none is left */
    assert_int_equal(atomic_load(&counters->pauses), 1);
    assert_int_equal(burst(scheduler, finished, NULL), 0); /* of none */
    assert_int_equal(atomic_load(&counters->pauses), 2);
    for (int i = 0; i < BURST; i++)
        assert_int_equal(packets[i].pauses, 0);
    assert_int_equal(packets[2].pauses, 1); /* the burst that finished it does not count for it */
    for (int i = 0; i < BURST; i++) {
        packets[i] = packet_of(streams[i], 64, MS);
        push_one(scheduler, &packets[i]);
    }
    assert_int_equal(burst(scheduler, finished, NULL), 2); /* full, and none is left */
    assert_int_equal(atomic_load(&counters->pauses), 2);
    assert_int_equal(packets[0].pauses, 2);
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    assert_int_equal(atomic_load(&counters->pauses), 3);
    for (int i = 0; i < STREAMS; i++)
        stream_close(streams[i], &fake);
    cpu_scheduler_destroy(scheduler);
}

/* A grace period waits for the packets that go on after its first burst, and what is finished meanwhile waits
 * for the next one. */
static void test_pause_of_long_packets(void **state)
{
    (void)state;
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 2);
    const struct cpu_scheduler_counters *counters = cpu_scheduler_counters_get(scheduler);
    struct cpu_stream *streams[2] = {fake_stream(1024, 10 * MS), fake_stream(1024, 20 * MS)};
    struct cpu_packet packets[2] = {packet_of(streams[0], 3 * 1024, 0), packet_of(streams[1], 64, 0)};
    struct cpu_packet *finished[2];
    push_one(scheduler, &packets[0]);
    push_one(scheduler, &packets[1]);
    assert_int_equal(burst(scheduler, finished, NULL), 1); /* full */
    assert_int_equal(packets[1].pauses, 0);
    assert_int_equal(burst(scheduler, finished, NULL), 0); /* the second piece of three */
    assert_int_equal(atomic_load(&counters->pauses), 0);
    packets[1] = packet_of(streams[1], 64, 0);
    push_one(scheduler, &packets[1]);
    assert_int_equal(burst(scheduler, finished, NULL), 2);
    assert_int_equal(atomic_load(&counters->pauses), 1);
    assert_int_equal(packets[0].pauses, 1);
    assert_int_equal(packets[1].pauses, 1);
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    assert_int_equal(atomic_load(&counters->pauses), 2);
    stream_close(streams[0], &fake);
    stream_close(streams[1], &fake);
    cpu_scheduler_destroy(scheduler);
}

/* None begins while a piece is late. */
static void test_no_pause_while_late(void **state)
{
    (void)state;
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 2);
    const struct cpu_scheduler_counters *counters = cpu_scheduler_counters_get(scheduler);
    struct cpu_stream *stream = fake_stream(1024, MS);
    struct cpu_packet packet = packet_of(stream, 2 * 1024, -10 * MS), *finished[2];
    struct cpu_packet *pushed = &packet;
    cpu_scheduler_push(scheduler, &pushed, 1, 0);
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    assert_int_equal(burst(scheduler, finished, NULL), 1);
    assert_int_equal(atomic_load(&counters->pauses), 0);
    assert_int_equal(packet.pauses, 0);
    assert_int_equal(burst(scheduler, finished, NULL), 0); /* nothing is left */
    assert_int_equal(atomic_load(&counters->pauses), 1);
    stream_close(stream, &fake);
    cpu_scheduler_destroy(scheduler);
}

/* A new stream with an earlier deadline goes before the rest of a long packet. */
/* A burst of n pieces takes n us here. q is 3 us, of which 2 us more are nobody's loss. */
static void test_bursts_are_held_against_their_bound(void **state)
{
    static const struct {
        int pieces;
        uint64_t exceeded;
        core_ns excess_ns, lost_ns; /* so far */
    } rows[] = {{1, 0, 0, 0}, {3, 0, 0, 0}, {4, 1, 1000, 0}, {8, 2, 6000, 3000}, {5, 3, 8000, 3000}};
    static const uint8_t key[32];
    struct cpu_scheduler_options options = {.ops = &fake,
                                            .burst_pieces = 8,
                                            .far_capacity = 8,
                                            .burst_bound_ns = 3 * CORE_NS_PER_US,
                                            .spare_ns = 2 * CORE_NS_PER_US};
    struct cpu_scheduler *scheduler;
    struct cpu_stream *streams[8];
    struct cpu_packet packets[8], *finished[8];
    (void)state;

    assert_int_equal(cpu_scheduler_create(&scheduler, &options, NULL), CORE_OK);
    for (int i = 0; i < 8; i++)
        streams[i] = stream_open(&fake, CORE_CIPHER_AES_128_CBC, key, 64, MS);
    const struct cpu_scheduler_counters *counters = cpu_scheduler_counters_get(scheduler);
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        core_ns begin_ns = virtual_now_ns;
        uint32_t pieces;
        for (int i = 0; i < rows[row].pieces; i++) {
            packets[i] = packet_of(streams[i], 64, virtual_now_ns);
            push_one(scheduler, &packets[i]);
        }
        assert_int_equal(burst(scheduler, finished, &pieces), rows[row].pieces);
        for (int i = 0; i < rows[row].pieces; i++) {
            assert_int_equal(packets[i].started_ns, begin_ns);
            assert_int_equal(packets[i].finished_ns, begin_ns + rows[row].pieces * CORE_NS_PER_US);
        }
        assert_int_equal(atomic_load(&counters->exceeded), rows[row].exceeded);
        assert_int_equal(atomic_load(&counters->excess_ns), rows[row].excess_ns);
        assert_int_equal(atomic_load(&counters->lost_ns), rows[row].lost_ns);
    }
    for (int i = 0; i < 8; i++)
        stream_close(streams[i], &fake);
    cpu_scheduler_destroy(scheduler);
}

/* A burst of 1 us that could have begun before: the time until it did is lost beyond q (3 us) and 2 us, once,
 * whatever it was that kept the worker. */
static void test_time_between_bursts_is_lost_when_work_waits(void **state)
{
    static const struct {
        core_ns idle_ns, wanted_ns; /* before the burst; CORE_NS_NEVER: nobody says */
        uint64_t exceeded;
        core_ns lost_ns; /* so far */
    } rows[] = {{4000, 4000, 0, 0},       {5000, 5000, 1, 1000},   {45000, CORE_NS_NEVER, 1, 1000},
                {45000, 45000, 2, 42000}, {45000, 3000, 2, 42000}, {0, -1000, 2, 42000}};
    static const uint8_t key[32];
    struct cpu_scheduler_options options = {.ops = &fake,
                                            .burst_pieces = 8,
                                            .far_capacity = 8,
                                            .burst_bound_ns = 3 * CORE_NS_PER_US,
                                            .spare_ns = 2 * CORE_NS_PER_US};
    struct cpu_scheduler *scheduler;
    struct cpu_packet packet, *finished[8];
    (void)state;

    assert_int_equal(cpu_scheduler_create(&scheduler, &options, NULL), CORE_OK);
    struct cpu_stream *stream = stream_open(&fake, CORE_CIPHER_AES_128_CBC, key, 64, MS);
    const struct cpu_scheduler_counters *counters = cpu_scheduler_counters_get(scheduler);
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        virtual_now_ns += rows[row].idle_ns;
        packet = packet_of(stream, 64, virtual_now_ns);
        push_one(scheduler, &packet);
        assert_int_equal(cpu_scheduler_now_ns(scheduler), virtual_now_ns);
        if (rows[row].wanted_ns != CORE_NS_NEVER)
            cpu_scheduler_want(scheduler, virtual_now_ns - rows[row].wanted_ns);
        assert_int_equal(burst(scheduler, finished, NULL), 1);
        assert_int_equal(atomic_load(&counters->exceeded), rows[row].exceeded);
        assert_int_equal(atomic_load(&counters->lost_ns), rows[row].lost_ns);
        assert_int_equal(atomic_load(&counters->excess_ns), rows[row].lost_ns);
        assert_int_equal(atomic_load(&counters->burst_max_ns), CORE_NS_PER_US);
    }
    cpu_scheduler_want(scheduler, 0);
    assert_int_equal(burst(scheduler, finished, NULL), 0); /* nothing was there: it is forgotten */
    packet = packet_of(stream, 64, virtual_now_ns);
    push_one(scheduler, &packet);
    assert_int_equal(burst(scheduler, finished, NULL), 1);
    assert_int_equal(atomic_load(&counters->lost_ns), 42000);
    stream_close(stream, &fake);
    cpu_scheduler_destroy(scheduler);
}

static void test_urgent_packet_overtakes(void **state)
{
    (void)state;
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 1);
    struct cpu_stream *bulky = fake_stream(1024, 10 * MS);
    struct cpu_stream *urgent = fake_stream(1024, 1 * MS);
    struct cpu_packet long_packet = packet_of(bulky, 4096, 0);
    struct cpu_packet short_packet = packet_of(urgent, 16, 0);
    struct cpu_packet *finished[1];
    push_one(scheduler, &long_packet);
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    push_one(scheduler, &short_packet);
    assert_int_equal(burst(scheduler, finished, NULL), 1);
    assert_ptr_equal(finished[0], &short_packet);
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    assert_int_equal(burst(scheduler, finished, NULL), 1);
    assert_ptr_equal(finished[0], &long_packet);
    stream_close(bulky, &fake);
    stream_close(urgent, &fake);
    cpu_scheduler_destroy(scheduler);
}

/* Key sizes may mix in a burst: one engine call for each, the results still in order of deadlines. */
static void test_ciphers_are_grouped(void **state)
{
    (void)state;
    enum { STREAMS = 9 };
    static const uint8_t key[32];
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 16);
    struct cpu_stream *streams[STREAMS];
    struct cpu_packet packets[STREAMS], *pushed[STREAMS], *finished[16];
    for (int i = 0; i < STREAMS; i++) {
        enum core_cipher cipher = (enum core_cipher)(1 + i % 3);
        streams[i] = stream_open(&fake, cipher, key, 1024, (20 - i) * MS);
        packets[i] = packet_of(streams[i], 64, 0);
        pushed[i] = &packets[i];
    }
    failing_cipher = CORE_CIPHER_AES_192_CBC;
    cpu_scheduler_push(scheduler, pushed, STREAMS, 0);
    assert_int_equal(burst(scheduler, finished, NULL), STREAMS);
    assert_int_equal(call_count, 3);
    for (uint32_t call = 0; call < 3; call++)
        assert_int_equal(calls[call].count, 3);
    for (int i = 0; i < STREAMS; i++) {
        assert_ptr_equal(finished[i], &packets[STREAMS - 1 - i]);
        enum core_cipher cipher = finished[i]->stream->cipher;
        assert_int_equal(finished[i]->status, cipher == failing_cipher ? CORE_SYSTEM : CORE_OK);
    }
    for (int i = 0; i < STREAMS; i++)
        stream_close(streams[i], &fake);
    cpu_scheduler_destroy(scheduler);
}

/* A failure in any piece marks its packet, also if the last piece succeeds. */
static void test_failure_sticks(void **state)
{
    (void)state;
    struct cpu_scheduler *scheduler = scheduler_open(&fake, 4);
    struct cpu_stream *stream = fake_stream(16, MS);
    struct cpu_packet packet = packet_of(stream, 48, 0);
    struct cpu_packet *finished[4];
    push_one(scheduler, &packet);
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    failing_cipher = CORE_CIPHER_AES_128_CBC;
    assert_int_equal(burst(scheduler, finished, NULL), 0);
    failing_cipher = (enum core_cipher)0;
    assert_int_equal(burst(scheduler, finished, NULL), 1);
    assert_int_equal(packet.status, CORE_SYSTEM);
    stream_close(stream, &fake);
    cpu_scheduler_destroy(scheduler);
}

/* The real engines through the scheduler. */

static void reference_encrypt(enum core_cipher cipher, const uint8_t *key, const uint8_t *iv,
                              const uint8_t *source, uint8_t *target, uint32_t bytes)
{
    static const EVP_CIPHER *(*const by_cipher[])(void) = {NULL, EVP_aes_128_cbc, EVP_aes_192_cbc,
                                                           EVP_aes_256_cbc};
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int written = 0;
    assert_int_equal(EVP_EncryptInit_ex(context, by_cipher[cipher](), NULL, key, iv), 1);
    assert_int_equal(EVP_EncryptUpdate(context, target, &written, source, (int)bytes), 1);
    EVP_CIPHER_CTX_free(context);
}

/* However a message of 8 blocks is cut into packets (bit b: a cut behind block b), and those into pieces, the
 * ciphertext is the same. All 128 cuts ride together, one stream each. */
static void check_every_split(const struct cpu_engine_ops *ops, enum core_cipher cipher, uint32_t piece_bytes)
{
    enum { CUTS = 128, BLOCKS = 8, BYTES = BLOCKS * CORE_BLOCK_BYTES };
    static uint8_t text[CUTS][BYTES];
    static struct cpu_packet packets[CUTS][BLOCKS];
    struct cpu_stream *streams[CUTS];
    struct cpu_scheduler *scheduler = scheduler_open(ops, 16);
    uint8_t key[32], iv[CORE_BLOCK_BYTES] = {1, 2, 3}, plain[BYTES], expected[BYTES];
    memset(key, 0x42 + (int)cipher, sizeof key);
    memset(plain, 0x17, sizeof plain);
    reference_encrypt(cipher, key, iv, plain, expected, BYTES);
    uint32_t left = 0;
    for (uint32_t cuts = 0; cuts < CUTS; cuts++) {
        memcpy(text[cuts], plain, BYTES);
        streams[cuts] = stream_open(ops, cipher, key, piece_bytes, (1 + cuts * 7 % 50) * MS);
        uint32_t count = 0, start = 0;
        for (uint32_t block = 0; block < BLOCKS; block++) {
            if (block < BLOCKS - 1 && (cuts >> block & 1) == 0)
                continue;
            struct cpu_packet *packet = &packets[cuts][count++];
            *packet = packet_of(streams[cuts], CORE_BLOCK_BYTES * (block + 1 - start), (core_ns)count * MS);
            packet->data = text[cuts] + CORE_BLOCK_BYTES * start;
            push_one(scheduler, packet);
            start = block + 1;
        }
        left += count;
    }
    while (left > 0) {
        struct cpu_packet *finished[16];
        uint32_t pieces;
        left -= burst(scheduler, finished, &pieces);
        assert_in_range(pieces, 1, 16);
    }
    for (uint32_t cuts = 0; cuts < CUTS; cuts++) {
        assert_memory_equal(text[cuts], expected, BYTES);
        stream_close(streams[cuts], ops);
    }
    cpu_scheduler_destroy(scheduler);
}

static void test_every_split(void **state)
{
    (void)state;
    for (const struct cpu_engine_ops *const *ops = cpu_engines; *ops != NULL; ops++) {
        if (!test_engine_works(*ops))
            continue;
        for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++) {
            check_every_split(*ops, (enum core_cipher)cipher, 16);
            check_every_split(*ops, (enum core_cipher)cipher, 48);
            check_every_split(*ops, (enum core_cipher)cipher, 4096);
        }
    }
}

/* Random traffic: pushes and bursts interleaved, many streams, all key sizes. Checks what must hold at every
 * burst: at most one piece a stream, no pending piece left behind that is more urgent by over one bucket,
 * order in each stream, no packet lost. */
static void test_random_traffic(void **state)
{
    (void)state;
    enum { STREAMS = 60, PACKETS = 4000, BURST = 8 };
    static struct cpu_packet packets[PACKETS];
    static core_ns releases_ns[PACKETS]; /* a finished packet does not have it any more */
    static const uint8_t key[32];
    struct cpu_scheduler *scheduler = scheduler_open(&fake, BURST);
    struct cpu_stream *streams[STREAMS];
    core_ns last_release_ns[STREAMS] = {0};
    uint32_t last_finished[STREAMS] = {0};
    uint64_t random = 7;
    for (int i = 0; i < STREAMS; i++)
        streams[i] = stream_open(&fake, (enum core_cipher)(1 + i % 3), key, 1024, (1 + i % 13) * MS);
    uint32_t pushed = 0, done = 0;
    while (done < PACKETS) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        if (pushed < PACKETS && (random >> 33) % 3 != 0) {
            uint32_t i = (uint32_t)(random >> 40) % STREAMS;
            last_release_ns[i] = virtual_now_ns + (core_ns)((random >> 20) % (2 * MS));
            packets[pushed] =
                packet_of(streams[i], 16 * (1 + (uint32_t)(random >> 50) % 200), last_release_ns[i]);
            releases_ns[pushed] = last_release_ns[i];
            push_one(scheduler, &packets[pushed++]);
            continue;
        }
        struct cpu_packet *finished[BURST];
        uint32_t pieces;
        call_count = 0;
        uint32_t count = burst(scheduler, finished, &pieces);
        core_ns latest_ns = INT64_MIN;
        uint32_t seen = 0;
        for (uint32_t call = 0; call < call_count; call++) {
            for (uint32_t i = 0; i < calls[call].count; i++, seen++)
                for (uint32_t other = 0; other < i; other++)
                    assert_ptr_not_equal(calls[call].keys[i], calls[call].keys[other]);
        }
        assert_int_equal(seen, pieces);
        for (uint32_t i = 0; i < count; i++) {
            struct cpu_packet *packet = finished[i];
            uint32_t stream = 0;
            while (streams[stream] != packet->stream)
                stream++;
            uint32_t number = (uint32_t)(packet - packets) + 1;
            assert_true(number > last_finished[stream]);
            last_finished[stream] = number;
            uint32_t piece_count = (packet->bytes + 1023) / 1024;
            core_ns deadline_ns = releases_ns[number - 1] + piece_count * packet->stream->piece_deadline_ns;
            assert_true(latest_ns == INT64_MIN || deadline_ns > latest_ns - CPU_EDF_BUCKET_NS);
            latest_ns = deadline_ns;
        }
        done += count;
    }
    assert_int_equal(cpu_scheduler_pending(scheduler), 0);
    for (int i = 0; i < STREAMS; i++)
        stream_close(streams[i], &fake);
    cpu_scheduler_destroy(scheduler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nothing_pending, reset_fake),
        cmocka_unit_test_setup(test_burst_size_is_checked, reset_fake),
        cmocka_unit_test_setup(test_deadline_order, reset_fake),
        cmocka_unit_test_setup(test_records, reset_fake),
        cmocka_unit_test_setup(test_directions, reset_fake),
        cmocka_unit_test_setup(test_pieces_of_one_stream, reset_fake),
        cmocka_unit_test_setup(test_pauses, reset_fake),
        cmocka_unit_test_setup(test_pause_of_long_packets, reset_fake),
        cmocka_unit_test_setup(test_no_pause_while_late, reset_fake),
        cmocka_unit_test_setup(test_bursts_are_held_against_their_bound, reset_fake),
        cmocka_unit_test_setup(test_time_between_bursts_is_lost_when_work_waits, reset_fake),
        cmocka_unit_test_setup(test_urgent_packet_overtakes, reset_fake),
        cmocka_unit_test_setup(test_ciphers_are_grouped, reset_fake),
        cmocka_unit_test_setup(test_failure_sticks, reset_fake),
        cmocka_unit_test_setup(test_every_split, reset_fake),
        cmocka_unit_test_setup(test_random_traffic, reset_fake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
