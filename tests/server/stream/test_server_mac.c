/* Messages with a MAC that are decrypted: what one stream encrypted comes back from another, and nothing that is
 * forged does: a bit anywhere, another id, number, key or place. What codes are is held against OpenSSL in
 * test_server_messages.c; here also against the example of docs/protocol.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/hmac.h"
#include "server/net/io.h"
#include "server/server_internal.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define PLAIN_BYTES 512
#define BODY_BYTES  (16 + PLAIN_BYTES + 16 + CORE_MAC_BYTES) /* IV, padding, code */
#define FORGED      10000
#define ROUND       50 /* messages that are on their way */

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static uint64_t seed;

static const uint8_t key[32] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t id[CORE_MAC_BYTES] = {0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7,
                                           0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};

static int set_up(void **state)
{
    (void)state;
    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(1);
    test_server_start(&server, "client_iv: true\n", profile);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 3, NULL);
    seed = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_client_close(&client);
    const uint64_t lost = test_server_stop(&server);
    config_profile_free(profile);
    return lost == 0 ? 0 : -1;
}

/* ---- streams ---- */

struct peer {
    uint32_t stream, sent;
    struct core_stream_spec spec;
};

static struct peer open_peer(enum core_direction direction, enum core_iv iv, enum core_padding padding,
                             uint64_t first, const uint8_t *its_key, const uint8_t *its_id)
{
    struct peer peer = {.spec = {.packet_bytes = BODY_BYTES,
                                 .burst_packets = 2 * ROUND,
                                 .interval_ns = 200 * CORE_NS_PER_US,
                                 .latency_ns = 500 * CORE_NS_PER_MS,
                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                 .padding = padding,
                                 .unit = CORE_UNIT_MESSAGE,
                                 .iv = iv,
                                 .first_unit = first,
                                 .direction = direction,
                                 .mac = CORE_MAC_HMAC_SHA_256_128}};
    struct protocol_open open = test_open_inline(&peer.spec, its_key);
    struct protocol_opened opened;
    struct protocol_refused refused = {.text = ""};
    open.has_iv = iv == CORE_IV_CONSTANT;
    memset(open.iv, 0x5a, sizeof open.iv);
    memcpy(open.mac_id, its_id, sizeof open.mac_id);
    if (!test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, &refused))
        fail_msg("refused: %s", refused.text);
    peer.stream = opened.stream;
    return peer;
}

static void send_flags(struct peer *peer, const uint8_t *body, uint32_t bytes, uint8_t flags)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + BODY_BYTES];
    const struct protocol_header header = {.body_bytes = bytes,
                                           .type = PROTOCOL_DATA,
                                           .flags = flags,
                                           .id = peer->stream,
                                           .sequence = peer->sent++};
    protocol_header_write(frame, &header);
    memcpy(frame + PROTOCOL_HEADER_BYTES, body, bytes);
    assert_true(test_client_send(&client, frame, PROTOCOL_HEADER_BYTES + bytes));
}

static void send_whole(struct peer *peer, const uint8_t *body, uint32_t bytes)
{
    send_flags(peer, body, bytes, PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST);
}

/* The next RESULT, which must be of this status; its bytes, with an IV that is told ahead of them. */
static uint32_t take(const struct peer *peer, enum protocol_result_status status, uint8_t *body)
{
    struct test_frame frame;
    test_client_expect(&client, PROTOCOL_RESULT, &frame);
    assert_int_equal(frame.header.id, peer->stream);
    assert_int_equal(frame.body[0], status);
    const uint32_t bytes = frame.header.body_bytes - PROTOCOL_RESULT_BYTES;
    memcpy(body, frame.body + PROTOCOL_RESULT_BYTES, bytes);
    return bytes;
}

static void expect(const struct peer *peer, enum protocol_result_status status, const uint8_t *bytes,
                   uint32_t count)
{
    uint8_t body[BODY_BYTES];
    assert_int_equal(take(peer, status, body), count);
    if (count > 0)
        assert_memory_equal(body, bytes, count);
}

struct sample {
    uint8_t clear[16 + PLAIN_BYTES], body[BODY_BYTES]; /* explicit IV and plaintext; what its receiver gets */
    uint32_t clear_bytes, body_bytes, ahead;
};

/* A message of random bytes, encrypted; its number is how many the peer has sent. */
static void make(struct peer *from, struct test_random *random, struct sample *sample)
{
    const bool brings = from->spec.iv == CORE_IV_EXPLICIT;
    sample->ahead = brings ? 16 : 0;
    sample->clear_bytes =
        (uint32_t)test_random_in(random, from->spec.padding == CORE_PADDING_CLEAR ? 0 : 1, PLAIN_BYTES);
    if (from->spec.padding == CORE_PADDING_NONE)
        sample->clear_bytes = (sample->clear_bytes + 15) / 16 * 16;
    for (uint32_t i = 0; i < sample->ahead + sample->clear_bytes; i++)
        sample->clear[i] = (uint8_t)test_random_next(random);
    send_whole(from, sample->clear, sample->ahead + sample->clear_bytes);
    memcpy(sample->body, sample->clear, sample->ahead);
    sample->body_bytes = sample->ahead + take(from, PROTOCOL_RESULT_OK, sample->body + sample->ahead);
    assert_int_equal(sample->body_bytes, sample->ahead + sample->clear_bytes + CORE_MAC_BYTES);
}

static void comes_back(struct peer *to, const struct sample *sample)
{
    send_whole(to, sample->body, sample->body_bytes);
    expect(to, PROTOCOL_RESULT_OK, sample->clear + sample->ahead, sample->clear_bytes);
}

/* ---- tests ---- */

static void what_was_encrypted_comes_back(void **state)
{
    static const enum core_iv ivs[] = {CORE_IV_CONSTANT, CORE_IV_COUNTER, CORE_IV_EXPLICIT};
    static const enum core_padding paddings[] = {CORE_PADDING_NONE, CORE_PADDING_CLEAR};
    struct test_random random = {seed};
    struct sample sample;
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        struct peer from =
            open_peer(CORE_DIRECTION_ENCRYPT, ivs[i % 3], paddings[i / 3], UINT64_MAX - 5, key, id);
        struct peer to =
            open_peer(CORE_DIRECTION_DECRYPT, ivs[i % 3], paddings[i / 3], UINT64_MAX - 5, key, id);
        for (int message = 0; message < 100; message++) {
            make(&from, &random, &sample);
            comes_back(&to, &sample);
        }
    }
}

/* Each is the last of many that are genuine, or stands between them; every bit is turned some time. */
static void ten_thousand_forged_messages(void **state)
{
    struct test_random random = {seed};
    struct peer from = open_peer(CORE_DIRECTION_ENCRYPT, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, 0, key, id);
    struct peer to = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, 0, key, id);
    static struct sample samples[ROUND];
    static bool forged[ROUND];
    uint32_t count = 0;
    (void)state;
    for (uint32_t done = 0; done < FORGED;) {
        const uint32_t before = done;
        for (int i = 0; i < ROUND; i++) {
            make(&from, &random, &samples[i]);
            forged[i] = test_random_chance(&random, 80);
            const int64_t bit = test_random_in(&random, 0, 8 * (int64_t)samples[i].body_bytes - 1);
            if (forged[i])
                samples[i].body[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        for (int i = 0; i < ROUND; i++)
            send_whole(&to, samples[i].body, samples[i].body_bytes);
        for (int i = 0; i < ROUND; i++) {
            const struct sample *sample = &samples[i];
            if (forged[i])
                expect(&to, PROTOCOL_RESULT_FORGED, NULL, 0);
            else
                expect(&to, PROTOCOL_RESULT_OK, sample->clear + sample->ahead, sample->clear_bytes);
            done += forged[i];
        }
        count += done - before;
    }
    assert_int_equal(server_stats_get(&server.server->ios[0]->stats.forged), count);
}

/* A code is about its place, its stream and its key. */
static void genuine_messages_in_the_wrong_place(void **state)
{
    uint8_t other_key[32], other_id[CORE_MAC_BYTES];
    struct test_random random = {seed};
    struct sample first, second;
    (void)state;
    memcpy(other_key, key, sizeof other_key);
    memcpy(other_id, id, sizeof other_id);
    other_key[15] ^= 1;
    other_id[0] ^= 0x80;
    struct peer from = open_peer(CORE_DIRECTION_ENCRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE, 7, key, id);
    make(&from, &random, &first);
    make(&from, &random, &second);
    struct peer to = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE, 7, key, id);
    struct peer keyed =
        open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE, 7, other_key, id);
    struct peer named =
        open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE, 7, key, other_id);
    struct peer later = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE, 8, key, id);
    struct peer swapped = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE, 7, key, id);
    struct peer *const wrong[] = {&keyed, &named, &later};
    for (size_t i = 0; i < 3; i++) {
        send_whole(wrong[i], first.body, first.body_bytes);
        expect(wrong[i], PROTOCOL_RESULT_FORGED, NULL, 0);
    }
    comes_back(&to, &first);
    send_whole(&to, first.body, first.body_bytes); /* again */
    expect(&to, PROTOCOL_RESULT_FORGED, NULL, 0);
    send_whole(&swapped, second.body, second.body_bytes);
    expect(&swapped, PROTOCOL_RESULT_FORGED, NULL, 0);
    comes_back(&swapped, &second); /* its place, now */
    struct peer resumed = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE, 8, key, id);
    comes_back(&resumed, &second);
}

/* A message that is too short for a code has none, and takes its place all the same. */
static void lengths(void **state)
{
    struct test_random random = {seed};
    struct sample samples[3];
    uint8_t body[BODY_BYTES] = {0};
    (void)state;
    struct peer from = open_peer(CORE_DIRECTION_ENCRYPT, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, 40, key, id);
    struct peer to = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, 0, key, id);
    for (uint32_t bytes = 0; bytes < 32; bytes++) {
        send_whole(&to, body, bytes);
        expect(&to, PROTOCOL_RESULT_NOT_BLOCKS, NULL, 0);
    }
    for (uint32_t bytes = 32; bytes < 40; bytes++) { /* nothing, and its code */
        send_whole(&to, body, bytes);
        expect(&to, PROTOCOL_RESULT_FORGED, NULL, 0);
    }
    for (int i = 0; i < 3; i++)
        make(&from, &random, &samples[i]);
    for (int i = 0; i < 3; i++)
        comes_back(&to, &samples[i]);
}

static void parts_are_an_error(void **state)
{
    uint8_t body[64] = {0};
    struct test_frame frame;
    (void)state;
    struct peer to = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, 0, key, id);
    send_flags(&to, body, sizeof body, PROTOCOL_DATA_FIRST);
    test_client_expect(&client, PROTOCOL_ERROR, &frame);
    assert_int_equal(frame.body[0], PROTOCOL_ERROR_MALFORMED);
}

/* A broken message has no code, and the one behind it has its own. */
static void broken_messages_have_none(void **state)
{
    uint8_t plain[64] = {1, 2, 3}, body[BODY_BYTES];
    (void)state;
    struct peer from = open_peer(CORE_DIRECTION_ENCRYPT, CORE_IV_COUNTER, CORE_PADDING_NONE, 3, key, id);
    struct peer to = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_COUNTER, CORE_PADDING_NONE, 4, key, id);
    send_flags(&from, plain, 32, PROTOCOL_DATA_FIRST);
    send_flags(&from, plain, 17, 0);
    send_flags(&from, plain, 32, PROTOCOL_DATA_LAST);
    send_whole(&from, plain, 64);
    assert_int_equal(take(&from, PROTOCOL_RESULT_OK, body), 32);
    assert_int_equal(take(&from, PROTOCOL_RESULT_NOT_BLOCKS, body), 0);
    assert_int_equal(take(&from, PROTOCOL_RESULT_BROKEN, body), 0);
    assert_int_equal(take(&from, PROTOCOL_RESULT_OK, body), 64 + CORE_MAC_BYTES);
    send_whole(&to, body, 64 + CORE_MAC_BYTES);
    expect(&to, PROTOCOL_RESULT_OK, plain, 64);
}

/* With the key the codes change, at the same message on both sides. */
static void new_keys(void **state)
{
    struct test_random random = {seed};
    struct sample sample;
    (void)state;
    struct peer from = open_peer(CORE_DIRECTION_ENCRYPT, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, 0, key, id);
    struct peer to = open_peer(CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, 0, key, id);
    for (uint64_t number = 0; number < 40; number++) {
        struct peer *const peers[] = {&from, &to};
        for (int i = 0; i < 2 && number % 4 == 1; i++) {
            uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX],
                its_key[16] = {(uint8_t)number};
            struct test_frame answer;
            const struct protocol_rekey rekey = {.stream = peers[i]->stream,
                                                 .key_kind = PROTOCOL_KEY_INLINE,
                                                 .key = its_key,
                                                 .key_bytes = sizeof its_key,
                                                 .first = number + 1};
            do { /* not before the key before is gone */
                assert_true(test_client_send(&client, frame, protocol_rekey_write(frame, 7, &rekey)));
                TEST_REQUIRE(test_client_next(&client, &answer, TEST_PATIENCE_MS) == TEST_FRAME);
            } while (answer.header.type == PROTOCOL_REFUSED && answer.body[0] == PROTOCOL_REFUSED_BUSY);
            assert_int_equal(answer.header.type, PROTOCOL_REKEYED);
        }
        make(&from, &random, &sample);
        comes_back(&to, &sample);
    }
}

static bool page_has(const uint8_t *bytes, uint32_t count)
{
    static char page[1 << 17];
    char text[2 * BODY_BYTES + 8] = "\n    ";
    FILE *file = fopen(MILLRACE_SOURCE_DIR "/docs/protocol.md", "r");
    TEST_REQUIRE(file != NULL);
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    fclose(file);
    for (uint32_t i = 0; i < count; i++)
        snprintf(text + 5 + 2 * i, 3, "%02x", bytes[i]);
    strcat(text, "\n");
    return strstr(page, text) != NULL;
}

static void the_example_of_the_page(void **state)
{
    uint8_t body[BODY_BYTES], mac_key[CORE_HMAC_BYTES];
    (void)state;
    struct peer from = open_peer(CORE_DIRECTION_ENCRYPT, CORE_IV_COUNTER, CORE_PADDING_PKCS7, 5, key, id);
    send_whole(&from, (const uint8_t *)"one message", 11);
    assert_int_equal(take(&from, PROTOCOL_RESULT_OK, body), 16 + CORE_MAC_BYTES);
    assert_true(page_has(body, 16));
    assert_true(page_has(body + 16, CORE_MAC_BYTES));
    core_hmac_derive(key, 16, "millrace mac", mac_key);
    assert_true(page_has(mac_key, sizeof mac_key));
    assert_false(page_has(body, 15));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_encrypted_comes_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ten_thousand_forged_messages, set_up, tear_down),
        cmocka_unit_test_setup_teardown(genuine_messages_in_the_wrong_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lengths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parts_are_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(broken_messages_have_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(new_keys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_example_of_the_page, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
