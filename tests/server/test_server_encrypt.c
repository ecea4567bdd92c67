/* From socket to ciphertext: NIST's vectors, every split of a message, all ciphers, paddings and sizes, both
 * engines, many threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define MESSAGE_BYTES 64
#define SPLIT_BLOCKS  9

static const char *const engines[] = {"engine: openssl", "engine: ipsec-mb"};

static const uint8_t vector_iv[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* NIST SP 800-38A, F.2.1, F.2.3 and F.2.5: CBC-AES128, 192 and 256, encryption. */
static const char vector_plain[] = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
                                   "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710";
static const struct vector {
    enum core_cipher cipher;
    const char *key, *encrypted;
} vectors[] = {
    {CORE_CIPHER_AES_128_CBC, "2b7e151628aed2a6abf7158809cf4f3c",
     "7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b2"
     "73bed6b8e3c1743b7116e69e222295163ff1caa1681fac09120eca307586e1a7"},
    {CORE_CIPHER_AES_192_CBC, "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
     "4f021db243bc633d7178183a9fa071e8b4d9ada9ad7dedf4e5e738763f69145a"
     "571b242012fb7ae07fa9baac3df102e008b0e27988598881d920a9e64f5615cd"},
    {CORE_CIPHER_AES_256_CBC, "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
     "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d"
     "39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b"},
};

static void unhex(const char *text, uint8_t *bytes)
{
    for (size_t i = 0; text[2 * i] != '\0'; i++) {
        const char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
        bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
}

static void start(struct test_server *server, const char *yaml)
{
    memset(server, 0, sizeof *server);
    test_server_start(server, yaml, &test_profile_generous);
}

/* ---- one message, however it is cut into packets ---- */

static uint32_t open_vector(struct test_client *client, enum core_cipher cipher, const uint8_t *key)
{
    struct core_stream_spec spec = test_spec;
    struct protocol_opened opened;
    spec.cipher = cipher;
    spec.packet_bytes = 16 * SPLIT_BLOCKS;
    struct protocol_open open = test_open_inline(&spec, key);
    open.has_iv = true;
    memcpy(open.iv, vector_iv, sizeof vector_iv);
    assert_true(test_client_ask(client, PROTOCOL_OPEN, &open, &opened, NULL));
    assert_memory_equal(opened.iv, vector_iv, sizeof vector_iv);
    return opened.stream;
}

/* Bit i of `cuts`: a packet ends after block i. Writes all DATA frames and the CLOSE; returns the bytes. */
static size_t write_split(uint8_t *frames, uint32_t stream, const uint8_t *message, uint32_t blocks,
                          uint32_t cuts)
{
    size_t count = 0;
    uint32_t sequence = 0;
    for (uint32_t first = 0, block = 0; block < blocks; block++) {
        if ((cuts >> block & 1) == 0 && block + 1 < blocks)
            continue;
        uint32_t bytes = 16 * (block + 1 - first);
        test_data_header(frames + count, stream, sequence++, bytes);
        memcpy(frames + count + PROTOCOL_HEADER_BYTES, message + 16 * (size_t)first, bytes);
        count += PROTOCOL_HEADER_BYTES + bytes;
        first = block + 1;
    }
    return count + protocol_close_write(frames + count, stream);
}

static void encrypt_split(struct test_client *client, enum core_cipher cipher, const uint8_t *key,
                          const uint8_t *message, uint32_t blocks, uint32_t cuts, uint8_t *encrypted)
{
    uint8_t frames[2048];
    struct test_frame frame;
    size_t got = 0;

    uint32_t stream = open_vector(client, cipher, key);
    size_t count = write_split(frames, stream, message, blocks, cuts);
    assert_true(test_client_send(client, frames, count));
    for (uint32_t sequence = 0;; sequence++) {
        assert_int_equal(test_client_next(client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type != PROTOCOL_RESULT)
            break;
        assert_true(frame.header.sequence == sequence && frame.body[0] == PROTOCOL_RESULT_OK);
        size_t bytes = frame.header.body_bytes - PROTOCOL_RESULT_BYTES;
        assert_true(got + bytes <= 16 * (size_t)blocks);
        memcpy(encrypted + got, frame.body + PROTOCOL_RESULT_BYTES, bytes);
        got += bytes;
    }
    assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
    assert_int_equal(got, 16 * blocks);
}

static void nist_vectors_in_every_split(void **state)
{
    uint8_t key[32], plain[MESSAGE_BYTES], expected[MESSAGE_BYTES], encrypted[MESSAGE_BYTES];
    (void)state;

    unhex(vector_plain, plain);
    for (size_t e = 0; e < 2; e++) {
        struct test_server server;
        struct test_client client;
        char yaml[64];
        snprintf(yaml, sizeof yaml, "%s\nclient_iv: true\n", engines[e]);
        start(&server, yaml);
        test_client_connect(&client, test_server_unix(&server), NULL);
        for (size_t v = 0; v < sizeof vectors / sizeof vectors[0]; v++) {
            unhex(vectors[v].key, key);
            unhex(vectors[v].encrypted, expected);
            for (uint32_t cuts = 0; cuts < 8; cuts++) {
                encrypt_split(&client, vectors[v].cipher, key, plain, 4, cuts, encrypted);
                assert_memory_equal(encrypted, expected, sizeof expected);
            }
        }
        test_client_close(&client);
        assert_int_equal(test_server_stop(&server), 0);
    }
}

static void every_split_gives_the_same(void **state)
{
    uint8_t key[32], message[16 * SPLIT_BLOCKS], whole[16 * SPLIT_BLOCKS], encrypted[16 * SPLIT_BLOCKS];
    struct test_random random = {.state = 12};
    (void)state;

    for (size_t i = 0; i < sizeof message; i++)
        message[i] = (uint8_t)test_random_next(&random);
    unhex(vectors[2].key, key);
    for (size_t e = 0; e < 2; e++) {
        struct test_server server;
        struct test_client client;
        char yaml[64];
        snprintf(yaml, sizeof yaml, "%s\nclient_iv: true\n", engines[e]);
        start(&server, yaml);
        test_client_connect(&client, test_server_unix(&server), NULL);
        for (uint32_t cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++)
            for (uint32_t cuts = 0; cuts < 1u << (SPLIT_BLOCKS - 1); cuts++) {
                encrypt_split(&client, (enum core_cipher)cipher, key, message, SPLIT_BLOCKS, cuts,
                              cuts == 0 ? whole : encrypted);
                if (cuts > 0)
                    assert_memory_equal(encrypted, whole, sizeof whole);
            }
        test_client_close(&client);
        assert_int_equal(test_server_stop(&server), 0);
    }
}

/* ---- many streams, random packets ---- */

struct load {
    const struct core_address *address;
    uint32_t streams, packets; /* packets in all */
    uint32_t packet_bytes;
    uint64_t seed;
};

static uint32_t draw_bytes(struct test_random *random, const struct core_stream_spec *spec)
{
    if (test_random_chance(random, 5))
        return (uint32_t)test_random_in(random, 0, 1);
    if (test_random_chance(random, 5)) /* rejected, unless PKCS#7 pads it: the chain must stay intact */
        return (uint32_t)test_random_in(random, 0, spec->packet_bytes + 32);
    uint32_t bytes = (uint32_t)test_random_log(random, 16, spec->packet_bytes);
    return spec->padding == CORE_PADDING_NONE ? bytes / 16 * 16 : bytes;
}

static struct core_stream_spec draw_spec(uint32_t index, const struct load *load)
{
    struct core_stream_spec spec = test_spec;
    spec.burst_packets = 16;
    spec.interval_ns = 20 * CORE_NS_PER_US + 5 * (core_ns)load->packet_bytes;
    spec.cipher = (enum core_cipher)(1 + index % 3);
    spec.padding = index / 3 % 2 == 0 ? CORE_PADDING_NONE : CORE_PADDING_PKCS7;
    spec.packet_bytes = load->packet_bytes - (spec.padding == CORE_PADDING_PKCS7 ? 3 : 0);
    return spec;
}

/* Its own connection; may run in any thread. */
static void *run_load(void *argument)
{
    const struct load *load = argument;
    struct test_random random = {.state = load->seed};
    struct test_stream *streams[64];
    struct test_client client;
    uint32_t waiting = 0;

    test_client_connect(&client, load->address, NULL);
    for (uint32_t i = 0; i < load->streams; i++) {
        struct core_stream_spec spec = draw_spec(i, load);
        streams[i] = test_stream_open(&client, &spec, load->seed + i);
        TEST_REQUIRE(streams[i]->id == i + 1);
    }
    for (uint32_t i = 0; i < load->packets; i++) {
        struct test_stream *stream = streams[test_random_in(&random, 0, load->streams - 1)];
        TEST_REQUIRE(test_stream_send(stream, draw_bytes(&random, &stream->spec)));
        for (waiting++; waiting > 200; waiting--)
            (void)test_streams_take(&client, streams);
    }
    for (; waiting > 0; waiting--)
        (void)test_streams_take(&client, streams);
    for (uint32_t i = 0; i < load->streams; i++) {
        struct protocol_closed closed = test_stream_close(streams[i]);
        TEST_REQUIRE(closed.bytes == streams[i]->key_bytes && closed.met + closed.missed == closed.packets);
        test_stream_free(streams[i]);
    }
    test_client_close(&client);
    return NULL;
}

static void all_ciphers_and_paddings(void **state)
{
    (void)state;
    for (size_t e = 0; e < 2; e++) {
        struct test_server server;
        start(&server, engines[e]);
        struct load load = {test_server_unix(&server), 12, 6000, 1504, 100 + e};
        (void)run_load(&load);
        assert_int_equal(test_server_stop(&server), 0);
    }
}

static void packets_longer_than_an_engine_takes_at_once(void **state)
{
    (void)state;
    for (size_t e = 0; e < 2; e++) {
        struct test_server server;
        char yaml[128];
        snprintf(yaml, sizeof yaml, "%s\nlimits: {packet_bytes: 1048576, stream_buffer_kib: 65536}",
                 engines[e]);
        start(&server, yaml);
        struct load load = {test_server_unix(&server), 6, 150, 1u << 20, 200 + e};
        (void)run_load(&load);
        assert_int_equal(test_server_stop(&server), 0);
    }
}

static void many_threads(void **state)
{
    enum { LOADS = 6 };
    struct test_server server;
    struct load loads[LOADS];
    pthread_t threads[LOADS];
    (void)state;

    start(&server, "threads: {cores: 8, io: 3, workers: 3, realtime: off, pin: false}");
    for (size_t i = 0; i < LOADS; i++) {
        loads[i] = (struct load){test_server_unix(&server), 18, 3000, 1504, 300 + i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_load, &loads[i]), 0);
    }
    for (size_t i = 0; i < LOADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- named keys, over TCP ---- */

static void named_keys(void **state)
{
    static const uint8_t old_key[16] = {0x11}, new_key[16] = {0x22};
    struct protocol_open open = {
        .spec = test_spec, .key_kind = PROTOCOL_KEY_NAMED, .key = (const uint8_t *)"cam", .key_bytes = 3};
    struct core_error error;
    struct protocol_opened opened;
    struct test_server server;
    struct test_client client;
    (void)state;

    test_server_prepare(&server);
    test_server_write(&server, "keyring",
                      "cam aes-128-cbc 11000000000000000000000000000000 listener=tcp:127.0.0.1:0\n");
    test_server_start(&server, "keyring: keyring", &test_profile_generous);
    test_client_connect(&client, test_server_tcp(&server), NULL);
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    struct test_stream *before = test_stream_adopt(&client, &test_spec, 1, old_key, &opened);
    assert_true(test_stream_send(before, 1408));
    test_stream_drain(before);

    test_server_write(&server, "keyring", "cam aes-128-cbc 2200\n");
    assert_int_not_equal(server_reload(server.server, server.config, &error),
                         CORE_OK); /* bad: the old stay */
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    struct test_stream *meanwhile = test_stream_adopt(&client, &test_spec, 2, old_key, &opened);
    test_server_write(&server, "keyring",
                      "cam aes-128-cbc 22000000000000000000000000000000 listener=tcp:127.0.0.1:0\n");
    assert_int_equal(server_reload(server.server, server.config, &error), CORE_OK);
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    struct test_stream *after = test_stream_adopt(&client, &test_spec, 3, new_key, &opened);
    struct test_stream *streams[] = {before, meanwhile, after};
    for (size_t i = 0; i < 3; i++) {
        assert_true(test_stream_send(streams[i], 1408)); /* open streams keep their keys */
        (void)test_stream_close(streams[i]);
        test_stream_free(streams[i]);
    }
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

static void ivs_are_not_used_twice(void **state)
{
    enum { IVS = 200 };
    uint8_t ivs[IVS][CORE_BLOCK_BYTES];
    struct protocol_opened opened;
    struct test_server server;
    struct test_client client;
    uint8_t key[32] = {1};
    struct protocol_open open = test_open_inline(&test_spec, key);
    (void)state;

    start(&server, "");
    test_client_connect(&client, test_server_unix(&server), NULL);
    for (size_t i = 0; i < IVS; i++) {
        assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
        memcpy(ivs[i], opened.iv, sizeof opened.iv);
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(ivs[i], ivs[j], CORE_BLOCK_BYTES);
    }
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nist_vectors_in_every_split),
        cmocka_unit_test(every_split_gives_the_same),
        cmocka_unit_test(all_ciphers_and_paddings),
        cmocka_unit_test(packets_longer_than_an_engine_takes_at_once),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(named_keys),
        cmocka_unit_test(ivs_are_not_used_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
