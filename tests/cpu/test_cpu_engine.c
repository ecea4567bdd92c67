/* Engines against the vectors of NIST SP 800-38A (F.2), against plain OpenSSL, and against themselves:
 * however a message is cut, its ciphertext is the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/engine.h"

#define BYTES_MAX CPU_PIECE_BYTES_MAX

static const enum core_cipher ciphers[] = {CORE_CIPHER_AES_128_CBC, CORE_CIPHER_AES_192_CBC,
                                           CORE_CIPHER_AES_256_CBC};

/* One stream as a test sees it: a key in the engine under test, and the same key for the reference. */
struct stream {
    void *key_state, *back_state; /* to encrypt, to decrypt */
    uint8_t key[32];
    uint8_t chain[CORE_BLOCK_BYTES], back_chain[CORE_BLOCK_BYTES];
};

struct fixture {
    const struct cpu_engine_ops *ops;
    struct cpu_engine *engine;
    uint64_t random;
};

static uint64_t draw(struct fixture *fixture) /* splitmix64 */
{
    uint64_t z = fixture->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void draw_bytes(struct fixture *fixture, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)draw(fixture);
}

static int open_engine(void **state, const struct cpu_engine_ops *ops)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->ops = ops;
    fixture->random = 1;
    struct core_error error;
    core_status status = ops->open(&fixture->engine, &error);
    if (status == CORE_OK) {
        *state = fixture;
        return 0;
    }
    print_message("%s\n", error.text);
    free(fixture);
    *state = NULL;
    return status == CORE_UNSUPPORTED ? 0 : -1;
}

/* The engine under test; a machine that lacks its instructions skips. */
static struct fixture *fixture_of(void **state)
{
    if (*state == NULL)
        skip();
    return *state;
}

static int open_openssl(void **state)
{
    return open_engine(state, &cpu_engine_openssl);
}

static int open_vaes(void **state)
{
    return open_engine(state, &cpu_engine_vaes);
}

static int open_ipsec_mb(void **state)
{
    return open_engine(state, &cpu_engine_ipsec_mb);
}

static int close_engine(void **state)
{
    struct fixture *fixture = *state;
    if (fixture != NULL) {
        fixture->ops->close(fixture->engine);
        free(fixture);
    }
    return 0;
}

static void *key_state_of(struct fixture *fixture, enum core_cipher cipher, enum core_direction direction,
                          const uint8_t *key)
{
    void *state = aligned_alloc(64, (fixture->ops->key_state_bytes + 63) & ~(size_t)63);
    assert_non_null(state);
    assert_int_equal(fixture->ops->key_set(fixture->engine, state, cipher, direction, key), CORE_OK);
    return state;
}

static void stream_open(struct fixture *fixture, struct stream *stream, enum core_cipher cipher,
                        const uint8_t *key)
{
    memcpy(stream->key, key, core_cipher_key_bytes(cipher));
    stream->key_state = key_state_of(fixture, cipher, CORE_DIRECTION_ENCRYPT, key);
    stream->back_state = key_state_of(fixture, cipher, CORE_DIRECTION_DECRYPT, key);
}

static void stream_close(struct fixture *fixture, struct stream *stream)
{
    fixture->ops->key_wipe(stream->key_state);
    fixture->ops->key_wipe(stream->back_state);
    free(stream->key_state);
    free(stream->back_state);
}

/* The reference: OpenSSL's CBC, one shot, chain moved on. */
static void reference_encrypt(enum core_cipher cipher, const uint8_t *key, uint8_t *chain,
                              const uint8_t *source, uint8_t *target, uint32_t bytes)
{
    static const EVP_CIPHER *(*const by_cipher[])(void) = {NULL, EVP_aes_128_cbc, EVP_aes_192_cbc,
                                                           EVP_aes_256_cbc};
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int written = 0;
    assert_int_equal(EVP_EncryptInit_ex(context, by_cipher[cipher](), NULL, key, chain), 1);
    assert_int_equal(EVP_EncryptUpdate(context, target, &written, source, (int)bytes), 1);
    assert_int_equal(written, bytes);
    memcpy(chain, target + bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    EVP_CIPHER_CTX_free(context);
}

static void from_hex(const char *hex, uint8_t *bytes)
{
    for (; *hex != '\0'; hex += 2) {
        char pair[3] = {hex[0], hex[1], '\0'};
        *bytes++ = (uint8_t)strtoul(pair, NULL, 16);
    }
}

static const char vector_iv[] = "000102030405060708090a0b0c0d0e0f";
static const char vector_plain[] = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
                                   "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710";
static const struct {
    enum core_cipher cipher;
    const char *key, *ciphertext;
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

/* The vectors, in every cut of their four blocks into pieces: bit b of `cuts` ends a piece behind block b. */
static void test_vectors(void **state)
{
    struct fixture *fixture = fixture_of(state);
    for (size_t v = 0; v < sizeof vectors / sizeof vectors[0]; v++) {
        uint8_t key[32], iv[16], plain[64], expected[64], actual[64];
        from_hex(vectors[v].key, key);
        from_hex(vector_iv, iv);
        from_hex(vector_plain, plain);
        from_hex(vectors[v].ciphertext, expected);
        struct stream stream;
        stream_open(fixture, &stream, vectors[v].cipher, key);
        for (uint32_t cuts = 0; cuts < 8; cuts++) {
            memcpy(stream.chain, iv, sizeof iv);
            memset(actual, 0, sizeof actual);
            uint32_t start = 0;
            for (uint32_t block = 0; block < 4; block++) {
                if (block < 3 && (cuts >> block & 1) == 0)
                    continue;
                struct cpu_piece piece = {.source = plain + 16 * start,
                                          .target = actual + 16 * start,
                                          .bytes = 16 * (block + 1 - start),
                                          .chain = stream.chain,
                                          .key = stream.key_state};
                assert_int_equal(fixture->ops->encrypt(fixture->engine, vectors[v].cipher, &piece, 1),
                                 CORE_OK);
                start = block + 1;
            }
            assert_memory_equal(actual, expected, sizeof expected);
            assert_memory_equal(stream.chain, expected + 48, CORE_BLOCK_BYTES);
        }
        stream_close(fixture, &stream);
    }
}

/* Lengths that a burst may mix: short ones mostly, the longest sometimes. */
static uint32_t draw_length(struct fixture *fixture, uint32_t limit_bytes)
{
    uint32_t blocks = limit_bytes / CORE_BLOCK_BYTES;
    switch (draw(fixture) % 4) {
    case 0:
        return CORE_BLOCK_BYTES;
    case 1:
        return limit_bytes;
    default:
        return CORE_BLOCK_BYTES * (1 + (uint32_t)(draw(fixture) % blocks));
    }
}

/* Decrypts what the pieces of a burst have become, in place, or beside them. */
static void check_back(struct fixture *fixture, enum core_cipher cipher, struct stream *streams,
                       const struct cpu_piece *encrypted, uint8_t *const *plain, uint32_t count)
{
    struct cpu_piece *pieces = calloc(count, sizeof *pieces);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *source = encrypted[i].target;
        pieces[i] = (struct cpu_piece){.source = source,
                                       .target = i % 2 == 0 ? source : malloc(encrypted[i].bytes),
                                       .bytes = encrypted[i].bytes,
                                       .chain = streams[i].back_chain,
                                       .key = streams[i].back_state};
    }
    assert_int_equal(fixture->ops->decrypt(fixture->engine, cipher, pieces, count), CORE_OK);
    for (uint32_t i = 0; i < count; i++) {
        assert_memory_equal(pieces[i].target, plain[i], pieces[i].bytes);
        assert_memory_equal(streams[i].back_chain, streams[i].chain, CORE_BLOCK_BYTES);
        if (pieces[i].target != pieces[i].source)
            free(pieces[i].target);
    }
    free(pieces);
}

/* One burst of `count` pieces of own streams against the reference, and back; several rounds carry the chains on. */
static void check_burst(struct fixture *fixture, enum core_cipher cipher, uint32_t count,
                        uint32_t limit_bytes)
{
    struct stream *streams = calloc(count, sizeof *streams);
    struct cpu_piece *pieces = calloc(count, sizeof *pieces);
    uint8_t **plain = calloc(count, sizeof *plain);
    uint8_t **cipher_text = calloc(count, sizeof *cipher_text);
    uint8_t *expected = malloc(BYTES_MAX);
    uint8_t(*chains)[CORE_BLOCK_BYTES] = calloc(count, sizeof *chains);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t key[32];
        draw_bytes(fixture, key, sizeof key);
        stream_open(fixture, &streams[i], cipher, key);
        draw_bytes(fixture, streams[i].chain, CORE_BLOCK_BYTES);
        memcpy(chains[i], streams[i].chain, CORE_BLOCK_BYTES);
        memcpy(streams[i].back_chain, streams[i].chain, CORE_BLOCK_BYTES);
    }
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t bytes = draw_length(fixture, limit_bytes);
            plain[i] = malloc(bytes);
            cipher_text[i] = malloc(bytes); /* exact sizes: the sanitizers see a byte too many */
            draw_bytes(fixture, plain[i], bytes);
            bool in_place = draw(fixture) % 2 == 0;
            if (in_place)
                memcpy(cipher_text[i], plain[i], bytes);
            pieces[i] = (struct cpu_piece){.source = in_place ? cipher_text[i] : plain[i],
                                           .target = cipher_text[i],
                                           .bytes = bytes,
                                           .chain = streams[i].chain,
                                           .key = streams[i].key_state};
        }
        assert_int_equal(fixture->ops->encrypt(fixture->engine, cipher, pieces, count), CORE_OK);
        for (uint32_t i = 0; i < count; i++) {
            reference_encrypt(cipher, streams[i].key, chains[i], plain[i], expected, pieces[i].bytes);
            assert_memory_equal(cipher_text[i], expected, pieces[i].bytes);
            assert_memory_equal(streams[i].chain, chains[i], CORE_BLOCK_BYTES);
        }
        check_back(fixture, cipher, streams, pieces, plain, count);
        for (uint32_t i = 0; i < count; i++) {
            free(plain[i]);
            free(cipher_text[i]);
        }
    }
    for (uint32_t i = 0; i < count; i++)
        stream_close(fixture, &streams[i]);
    free(chains);
    free(expected);
    free(cipher_text);
    free(plain);
    free(pieces);
    free(streams);
}

static void test_every_count(void **state)
{
    for (uint32_t count = 1; count <= CPU_BURST_MAX; count++)
        check_burst(fixture_of(state), ciphers[count % 3], count, 272);
}

/* Bursts without any longer piece: engines may have a way of their own for them. */
static void test_short_pieces(void **state)
{
    for (uint32_t count = 1; count <= CPU_BURST_MAX; count++)
        check_burst(fixture_of(state), ciphers[count % 3], count, count % 5 == 0 ? 16 : 128);
}

static void test_long_pieces(void **state)
{
    for (size_t i = 0; i < 3; i++)
        check_burst(fixture_of(state), ciphers[i], 21, BYTES_MAX);
    check_burst(fixture_of(state), CORE_CIPHER_AES_128_CBC, 1, BYTES_MAX);
}

/* A chain set from outside (a new IV, a stream that moved here) wins over what the engine remembers. */
static void test_chain_is_the_callers(void **state)
{
    struct fixture *fixture = fixture_of(state);
    uint8_t key[32] = {7}, plain[32] = {1}, first[32], second[32];
    struct stream stream;
    stream_open(fixture, &stream, CORE_CIPHER_AES_256_CBC, key);
    for (uint8_t *target = first;; target = second) {
        memset(stream.chain, 9, sizeof stream.chain);
        struct cpu_piece piece = {plain, target, 32, stream.chain, stream.key_state};
        assert_int_equal(fixture->ops->encrypt(fixture->engine, CORE_CIPHER_AES_256_CBC, &piece, 1), CORE_OK);
        if (target == second)
            break;
    }
    assert_memory_equal(first, second, sizeof first);
    stream_close(fixture, &stream);
}

/* A key expanded by one instance serves another: how an I/O thread opens streams for a worker. */
static void test_key_of_another_instance(void **state)
{
    struct fixture *fixture = fixture_of(state);
    struct fixture opener = *fixture;
    assert_int_equal(fixture->ops->open(&opener.engine, NULL), CORE_OK);
    uint8_t key[32] = {3}, plain[48] = {5}, actual[48], expected[48], chain[16] = {0};
    struct stream stream = {0};
    stream_open(&opener, &stream, CORE_CIPHER_AES_192_CBC, key);
    fixture->ops->close(opener.engine);
    struct cpu_piece piece = {plain, actual, 48, stream.chain, stream.key_state};
    assert_int_equal(fixture->ops->encrypt(fixture->engine, CORE_CIPHER_AES_192_CBC, &piece, 1), CORE_OK);
    reference_encrypt(CORE_CIPHER_AES_192_CBC, key, chain, plain, expected, 48);
    assert_memory_equal(actual, expected, sizeof expected);
    stream_close(fixture, &stream);
}

static void test_wipe_leaves_nothing(void **state)
{
    struct fixture *fixture = fixture_of(state);
    size_t bytes = (fixture->ops->key_state_bytes + 63) & ~(size_t)63;
    uint8_t *key_state = aligned_alloc(64, bytes);
    memset(key_state, 0, bytes);
    uint8_t key[32] = {0x55};
    assert_int_equal(fixture->ops->key_set(fixture->engine, key_state, CORE_CIPHER_AES_256_CBC,
                                           CORE_DIRECTION_ENCRYPT, key),
                     CORE_OK);
    fixture->ops->key_wipe(key_state);
    for (size_t i = 0; i < fixture->ops->key_state_bytes; i++)
        assert_int_equal(key_state[i], 0);
    free(key_state);
}

static void test_find(void **state)
{
    (void)state;
    struct core_error error;
    assert_ptr_equal(cpu_engine_find("openssl", &error), &cpu_engine_openssl);
    assert_ptr_equal(cpu_engine_find("ipsec-mb", &error), &cpu_engine_ipsec_mb);
    assert_non_null(cpu_engine_find("auto", &error));
    error.text[0] = '\0';
    assert_null(cpu_engine_find("enigma", &error));
    assert_non_null(strstr(error.text, "enigma"));
    assert_non_null(strstr(error.text, "ipsec-mb"));
}

static void test_lanes(void **state)
{
    struct fixture *fixture = fixture_of(state);
    uint32_t lanes = fixture->ops->lanes(fixture->engine);
    assert_true(lanes >= 1 && lanes <= CPU_BURST_MAX);
    assert_int_equal(CPU_BURST_MAX % lanes, 0);
}

#define ON_EVERY_ENGINE(test)                                                                                \
    {#test " (openssl)", test, open_openssl, close_engine, NULL},                                            \
        {#test " (ipsec-mb)", test, open_ipsec_mb, close_engine, NULL},                                      \
    {                                                                                                        \
#test " (vaes)", test, open_vaes, close_engine, NULL                                                 \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EVERY_ENGINE(test_vectors),
        ON_EVERY_ENGINE(test_every_count),
        ON_EVERY_ENGINE(test_short_pieces),
        ON_EVERY_ENGINE(test_long_pieces),
        ON_EVERY_ENGINE(test_chain_is_the_callers),
        ON_EVERY_ENGINE(test_key_of_another_instance),
        ON_EVERY_ENGINE(test_wipe_leaves_nothing),
        ON_EVERY_ENGINE(test_lanes),
        cmocka_unit_test(test_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
