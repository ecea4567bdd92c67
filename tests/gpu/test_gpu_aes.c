/* The kernel's AES against FIPS-197: the table from its definition, key schedules (appendix A), blocks
 * (appendix C) and random blocks against OpenSSL, in both forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/aes.h"
#include "tests/support/random.h"

static void from_hex(const char *hex, uint8_t *bytes)
{
    for (; *hex != '\0'; hex += 2) {
        const char pair[3] = {hex[0], hex[1], '\0'};
        *bytes++ = (uint8_t)strtoul(pair, NULL, 16);
    }
}

static uint8_t multiply(uint8_t a, uint8_t b) /* in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1 */
{
    unsigned product = 0;
    for (unsigned shifted = a; b != 0; b >>= 1) {
        product ^= (b & 1) != 0 ? shifted : 0;
        shifted = shifted << 1 ^ (shifted >> 7) * 0x11b;
    }
    return (uint8_t)product;
}

static uint8_t s_box(uint8_t a) /* FIPS-197, 5.1.1 */
{
    uint8_t inverse = 0, result = 0x63;
    for (unsigned candidate = 1; candidate < 256; candidate++)
        inverse = multiply(a, (uint8_t)candidate) == 1 ? (uint8_t)candidate : inverse;
    for (unsigned turn = 0; turn < 5; turn++)
        result ^= (uint8_t)(inverse << turn | inverse >> (8 - turn));
    return result;
}

static void test_table(void **state)
{
    (void)state;
    for (unsigned a = 0; a < GPU_AES_TABLE_ENTRIES; a++) {
        const uint8_t s = s_box((uint8_t)a);
        const uint32_t expected =
            multiply(s, 2) | (uint32_t)s << 8 | (uint32_t)s << 16 | (uint32_t)multiply(s, 3) << 24;
        assert_int_equal(gpu_aes_table[a], expected);
    }
}

static void test_key_schedule(void **state)
{
    (void)state;
    static const struct {
        uint32_t key_bytes, rounds;
        const char *key, *last;
    } rows[] = {
        {16, 10, "2b7e151628aed2a6abf7158809cf4f3c", "d014f9a8c9ee2589e13f0cc8b6630ca6"},
        {24, 12, "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b", "e98ba06f448c773c8ecc720401002202"},
        {32, 14, "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
         "fe4890d1e6188d0b046df344706c631e"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t key[32], last[16];
        static const uint32_t none[GPU_ROUND_WORDS_MAX];
        struct gpu_key slot;
        from_hex(rows[i].key, key);
        from_hex(rows[i].last, last);
        assert_int_equal(gpu_key_expand(&slot, key, rows[i].key_bytes), CORE_OK);
        assert_int_equal(slot.rounds, rows[i].rounds);
        assert_memory_equal(slot.round_words, key, rows[i].key_bytes);
        assert_memory_equal(slot.round_words + 4 * slot.rounds, last, sizeof last);
        const size_t words = 4 * slot.rounds + 4;
        assert_memory_equal(slot.round_words + words, none, (GPU_ROUND_WORDS_MAX - words) * sizeof none[0]);
    }
}

static void test_key_length(void **state)
{
    (void)state;
    const uint8_t key[64] = {1};
    for (uint32_t bytes = 0; bytes <= sizeof key; bytes++) {
        struct gpu_key slot;
        const core_status expected = bytes == 16 || bytes == 24 || bytes == 32 ? CORE_OK : CORE_INVALID;
        assert_int_equal(gpu_key_expand(&slot, key, bytes), expected);
    }
}

/* Both forms of one block, which must agree. */
static void encrypt(const uint8_t *key, uint32_t key_bytes, const uint8_t *plain, uint8_t *cipher)
{
    const struct gpu_aes_view view = {gpu_aes_table};
    struct gpu_key slot;
    assert_int_equal(gpu_key_expand(&slot, key, key_bytes), CORE_OK);
    struct gpu_block_key block_key;
    gpu_block_key_load(&block_key, &slot);
    struct gpu_block block = gpu_block_load(plain);
    gpu_block_encrypt(view, &block_key, &block);
    gpu_block_store(cipher, block);

    struct gpu_columns_key columns_key;
    gpu_columns_key_load(&columns_key, &slot);
    columns_key.rounds_most = gpu_warp_most(columns_key.rounds);
    struct gpu_columns columns = gpu_columns_load(plain);
    gpu_columns_encrypt(view, &columns_key, &columns);
    uint8_t other[GPU_BLOCK_BYTES];
    gpu_columns_store(other, columns);
    assert_memory_equal(other, cipher, sizeof other);
}

static void test_blocks(void **state)
{
    (void)state;
    static const struct {
        uint32_t key_bytes;
        const char *cipher;
    } rows[] = {{16, "69c4e0d86a7b0430d8cdb78070b4c55a"},
                {24, "dda97ca4864cdfe06eaf70a0ec0d7191"},
                {32, "8ea2b7ca516745bfeafc49904b496089"}};
    uint8_t key[32], plain[16], expected[16], actual[16];
    from_hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", key);
    from_hex("00112233445566778899aabbccddeeff", plain);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        from_hex(rows[i].cipher, expected);
        encrypt(key, rows[i].key_bytes, plain, actual);
        assert_memory_equal(actual, expected, sizeof expected);
    }
}

/* Every round of every key size, on enough random blocks for each entry of the table to be met at each place.
 */
static void test_random_blocks(void **state)
{
    (void)state;
    const EVP_CIPHER *const ciphers[] = {EVP_aes_128_ecb(), EVP_aes_192_ecb(), EVP_aes_256_ecb()};
    struct test_random random = {1};
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_non_null(context);
    for (int round = 0; round < 6000; round++) {
        uint8_t key[32], plain[16], expected[16], actual[16];
        for (size_t i = 0; i < sizeof key; i++)
            key[i] = (uint8_t)test_random_next(&random);
        for (size_t i = 0; i < sizeof plain; i++)
            plain[i] = (uint8_t)test_random_next(&random);
        int written = 0;
        assert_int_equal(EVP_EncryptInit_ex(context, ciphers[round % 3], NULL, key, NULL), 1);
        assert_int_equal(EVP_EncryptUpdate(context, expected, &written, plain, sizeof plain), 1);
        assert_int_equal(written, sizeof expected);
        encrypt(key, 16 + 8 * (uint32_t)(round % 3), plain, actual);
        assert_memory_equal(actual, expected, sizeof expected);
    }
    EVP_CIPHER_CTX_free(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_key_schedule),
        cmocka_unit_test(test_key_length),    cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_random_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
