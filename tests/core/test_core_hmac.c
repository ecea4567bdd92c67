/* HMAC-SHA-256 and HKDF against the vectors of RFC 4231 and RFC 5869, and against OpenSSL's own HMAC, in every cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/hmac.h"
#include "tests/support/random.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

static size_t from_hex(const char *text, uint8_t *bytes)
{
    size_t count = 0;
    for (; *text != '\0'; text += 2) {
        unsigned value;
        assert_int_equal(sscanf(text, "%2x", &value), 1);
        bytes[count++] = (uint8_t)value;
    }
    return count;
}

static void compute(const uint8_t *key, size_t key_bytes, const uint8_t *data, size_t count, size_t cut,
                    uint8_t tag[CORE_HMAC_BYTES])
{
    struct core_hmac_key states;
    SHA256_CTX code;

    core_hmac_key_set(&states, key, key_bytes);
    core_hmac_begin(&code, &states);
    core_hmac_add(&code, data, cut);
    core_hmac_add(&code, data + cut, count - cut);
    core_hmac_end(&code, &states, tag);
}

/* RFC 4231, section 4; the tag of case 5 is cut to 16 bytes. */
static const struct vector {
    const char *key, *data, *tag;
} vectors[] = {
    {"0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "4869205468657265",
     "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
    {"4a656665", "7768617420646f2079612077616e7420666f72206e6f7468696e673f",
     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
    {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
     "dddddddddddddddddddddddddddddddddddd",
     "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
    {"0102030405060708090a0b0c0d0e0f10111213141516171819",
     "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"
     "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
     "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
    {"0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c", "546573742057697468205472756e636174696f6e",
     "a3b6167473100ee06e0c796c2955552b"},
    {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "a"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "a"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     "54657374205573696e67204c6172676572205468616e20426c6f636b2d53697a65204b6579202d2048617368204b6579204669"
     "727374",
     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "a"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "a"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     "5468697320697320612074657374207573696e672061206c6172676572207468616e20626c6f636b2d73697a65206b65792061"
     "6e642061206c6172676572207468616e20626c6f636b2d73697a6520646174612e20546865206b6579206e656564732074"
     "6f20626520686173686564206265666f7265206265696e6720757365642062792074686520484d414320616c676f726974"
     "686d2e",
     "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
};

static void rfc_4231_in_every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint8_t key[256], data[256], expected[CORE_HMAC_BYTES], tag[CORE_HMAC_BYTES];
        const size_t key_bytes = from_hex(vectors[i].key, key), count = from_hex(vectors[i].data, data);
        const size_t tag_bytes = from_hex(vectors[i].tag, expected);
        for (size_t cut = 0; cut <= count; cut++) {
            compute(key, key_bytes, data, count, cut, tag);
            assert_memory_equal(tag, expected, tag_bytes);
        }
    }
}

static void lengths_and_keys_as_openssl_has_them(void **state)
{
    struct test_random random = {.state = 4231};
    uint8_t key[200], data[700], expected[CORE_HMAC_BYTES], tag[CORE_HMAC_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)test_random_next(&random);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)test_random_next(&random);
    for (size_t count = 0; count <= sizeof data; count++) {
        const size_t key_bytes = count % sizeof key;
        const size_t cut = (size_t)test_random_in(&random, 0, (int64_t)count);
        unsigned bytes = 0;
        assert_non_null(HMAC(EVP_sha256(), key, (int)key_bytes, data, count, expected, &bytes));
        compute(key, key_bytes, data, count, cut, tag);
        assert_memory_equal(tag, expected, sizeof tag);
    }
}

/* RFC 5869, appendix A.3: without salt and info. */
static void rfc_5869(void **state)
{
    uint8_t secret[22], expected[CORE_HMAC_BYTES], derived[CORE_HMAC_BYTES];

    (void)state;
    memset(secret, 0x0b, sizeof secret);
    from_hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d", expected);
    core_hmac_derive(secret, sizeof secret, "", derived);
    assert_memory_equal(derived, expected, sizeof derived);
    core_hmac_derive(secret, sizeof secret, "x", derived);
    assert_memory_not_equal(derived, expected, sizeof derived);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rfc_4231_in_every_cut),
        cmocka_unit_test(lengths_and_keys_as_openssl_has_them),
        cmocka_unit_test(rfc_5869),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
