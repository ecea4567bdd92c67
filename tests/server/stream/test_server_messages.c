/* Messages (protocol version 3) through a running server, on workers and on an emulated GPU, whole, killed and
 * audited: every IV, every padding, every way to cut a message into packets, with a MAC and without, against
 * OpenSSL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_internal.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define MESSAGE_BYTES 4096
#define PACKETS       16 /* of a message, at most */
#define MESSAGES      4096
#define HELD          1024
#define PAST_COUNT    UINT64_C(0x0102030405060708)

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static struct {
    uint8_t crypt_blocks, skip_blocks;
} pattern;                      /* of the streams that are opened */
static uint8_t message_packets; /* likewise */
static uint64_t opened_count;   /* half of the streams have a MAC, where they may */
static bool loses;              /* cards are lost: else no packet goes another way */

/* What was sent of one message. */
struct message {
    uint32_t bytes, packets, cuts[PACKETS]; /* of plaintext, without an IV ahead of it */
    uint64_t seed;
    uint8_t iv[CORE_BLOCK_BYTES]; /* with CORE_IV_EXPLICIT */
    uint8_t key[32];
};

struct talker {
    uint32_t id, gpu; /* the card that it is on, if any */
    struct core_stream_spec spec;
    uint8_t key[32], chain[CORE_BLOCK_BYTES], mac_id[CORE_MAC_BYTES];
    uint32_t sent, received; /* packets */
    uint64_t number;         /* of the next message to be checked */
    struct message messages[MESSAGES];
    uint32_t message_count;
    uint8_t next_key[32]; /* from message number `next_from` on */
    uint64_t next_from;
    struct {
        uint8_t *bytes;
        struct protocol_header header;
    } held[HELD]; /* results that came ahead of another answer */
    uint32_t held_first, held_end;
};

static const struct core_stream_spec spec = {.packet_bytes = 1024,
                                             .burst_packets = 64,
                                             .interval_ns = CORE_NS_PER_MS,
                                             .latency_ns = 500 * CORE_NS_PER_MS,
                                             .cipher = CORE_CIPHER_AES_192_CBC,
                                             .unit = CORE_UNIT_MESSAGE};

static void fill(uint8_t *bytes, uint32_t count, uint64_t seed)
{
    struct test_random random = {seed};
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)test_random_next(&random);
}

/* ---- the reference ---- */

static const EVP_CIPHER *cipher_of(const struct talker *talker)
{
    static const EVP_CIPHER *(*const ciphers[])(void) = {NULL, EVP_aes_128_cbc, EVP_aes_192_cbc,
                                                         EVP_aes_256_cbc};
    return ciphers[talker->spec.cipher]();
}

/* Block by block, of which some are passed over. */
static uint32_t encrypt_pattern(const struct talker *talker, const uint8_t *key, const uint8_t *plain,
                                uint32_t bytes, const uint8_t *iv, uint8_t *cipher,
                                uint8_t chain[CORE_BLOCK_BYTES])
{
    const uint32_t cycle = talker->spec.crypt_blocks + talker->spec.skip_blocks;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int done = 0;
    TEST_REQUIRE(EVP_EncryptInit_ex(context, cipher_of(talker), NULL, key, iv) == 1);
    TEST_REQUIRE(EVP_CIPHER_CTX_set_padding(context, 0) == 1);
    memcpy(cipher, plain, bytes);
    for (uint32_t block = 0; block < bytes / 16; block++)
        if (block % cycle < talker->spec.crypt_blocks) {
            TEST_REQUIRE(EVP_EncryptUpdate(context, cipher + block * 16, &done, plain + block * 16, 16) == 1);
            memcpy(chain, cipher + block * 16, CORE_BLOCK_BYTES);
        }
    EVP_CIPHER_CTX_free(context);
    return bytes;
}

/* The message's ciphertext by the document; returns its length. *chain is what the next one chains to. */
static uint32_t encrypt(const struct talker *talker, const uint8_t *key, const uint8_t *plain, uint32_t bytes,
                        const uint8_t *iv, uint8_t *cipher, uint8_t chain[CORE_BLOCK_BYTES])
{
    const uint32_t whole = talker->spec.padding == CORE_PADDING_CLEAR ? bytes / 16 * 16 : bytes;
    if (talker->spec.crypt_blocks > 0)
        return encrypt_pattern(talker, key, plain, bytes, iv, cipher, chain);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int done = 0, last = 0;
    TEST_REQUIRE(EVP_EncryptInit_ex(context, cipher_of(talker), NULL, key, iv) == 1);
    TEST_REQUIRE(EVP_CIPHER_CTX_set_padding(context, talker->spec.padding == CORE_PADDING_PKCS7) == 1);
    TEST_REQUIRE(EVP_EncryptUpdate(context, cipher, &done, plain, (int)whole) == 1);
    TEST_REQUIRE(EVP_EncryptFinal_ex(context, cipher + done, &last) == 1);
    EVP_CIPHER_CTX_free(context);
    done += last;
    if (done > 0)
        memcpy(chain, cipher + done - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    memcpy(cipher + done, plain + whole, bytes - whole);
    return (uint32_t)done + bytes - whole;
}

/* The code of a message by the document, from OpenSSL's HKDF and HMAC; returns its length. */
static uint32_t authenticate(const struct talker *talker, const uint8_t *key, const uint8_t *iv,
                             const uint8_t *cipher, uint32_t bytes, uint8_t *tag)
{
    static uint8_t text[MESSAGE_BYTES + 96];
    uint8_t mac_key[32], code[32];
    size_t key_bytes = sizeof mac_key;

    if (talker->spec.mac == CORE_MAC_NONE)
        return 0;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, NULL);
    TEST_REQUIRE(EVP_PKEY_derive_init(context) == 1 && EVP_PKEY_CTX_set_hkdf_md(context, EVP_sha256()) == 1 &&
                 EVP_PKEY_CTX_set1_hkdf_key(context, key, (int)core_cipher_key_bytes(talker->spec.cipher)) ==
                     1 &&
                 EVP_PKEY_CTX_add1_hkdf_info(context, (const uint8_t *)"millrace mac", 12) == 1 &&
                 EVP_PKEY_derive(context, mac_key, &key_bytes) == 1);
    EVP_PKEY_CTX_free(context);
    memcpy(text, talker->mac_id, 16);
    for (int i = 0; i < 8; i++)
        text[16 + i] = (uint8_t)(talker->number >> (56 - 8 * i));
    memcpy(text + 24, iv, 16);
    memcpy(text + 40, cipher, bytes);
    TEST_REQUIRE(HMAC(EVP_sha256(), mac_key, sizeof mac_key, text, 40 + bytes, code, NULL) != NULL);
    memcpy(tag, code, CORE_MAC_BYTES);
    return CORE_MAC_BYTES;
}

/* ---- talking ---- */

static struct talker *open_talker(enum core_iv iv, enum core_padding padding, bool guaranteed, bool gpu)
{
    struct talker *talker = calloc(1, sizeof *talker);
    struct protocol_opened opened;
    struct protocol_refused refused = {.text = ""};
    TEST_REQUIRE(talker != NULL);
    talker->spec = spec;
    talker->spec.iv = iv;
    talker->spec.padding = padding;
    talker->spec.guaranteed = guaranteed;
    talker->spec.crypt_blocks = pattern.crypt_blocks;
    talker->spec.skip_blocks = pattern.skip_blocks;
    if (guaranteed) { /* there is room for what comes while a loss is noticed */
        talker->spec.latency_ns = 20 * CORE_NS_PER_S;
        talker->spec.interval_ns = 50 * CORE_NS_PER_MS;
        talker->spec.burst_packets = 2;
        talker->spec.packet_bytes = 512;
    }
    struct test_random random = {opened_count++};
    talker->spec.mac =
        iv != CORE_IV_CHAIN && test_random_chance(&random, 50) ? CORE_MAC_HMAC_SHA_256_128 : CORE_MAC_NONE;
    talker->spec.message_packets = message_packets;
    fill(talker->mac_id, sizeof talker->mac_id, opened_count);
    talker->spec.first_unit =
        iv == CORE_IV_COUNTER || talker->spec.mac != CORE_MAC_NONE ? PAST_COUNT + opened_count : 0;
    talker->number = talker->spec.first_unit;
    talker->next_from = UINT64_MAX;
    fill(talker->key, sizeof talker->key, 77 + iv);
    struct protocol_open open = test_open_inline(&talker->spec, talker->key);
    open.has_iv = iv == CORE_IV_CONSTANT;
    fill(open.iv, sizeof open.iv, 99);
    memcpy(open.mac_id, talker->mac_id, sizeof open.mac_id);
    if (!test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, &refused))
        fail_msg("refused: %s", refused.text);
    assert_int_equal(opened.unit, gpu ? PROTOCOL_UNIT_GPU : PROTOCOL_UNIT_CPU);
    talker->id = opened.stream;
    talker->gpu = opened.unit_index;
    if (guaranteed)
        assert_int_equal(opened.backup.unit, PROTOCOL_UNIT_GPU);
    memcpy(talker->chain, opened.iv, CORE_BLOCK_BYTES);
    if (iv == CORE_IV_CONSTANT)
        assert_memory_equal(opened.iv, open.iv, CORE_BLOCK_BYTES);
    if (iv == CORE_IV_EXPLICIT || iv == CORE_IV_RANDOM) /* there is none yet */
        assert_memory_equal(opened.iv, (const uint8_t[CORE_BLOCK_BYTES]){0}, CORE_BLOCK_BYTES);
    return talker;
}

static void send_packet(struct talker *talker, const uint8_t *bytes, uint32_t count, uint8_t flags)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + MESSAGE_BYTES];
    const struct protocol_header header = {.body_bytes = count,
                                           .type = PROTOCOL_DATA,
                                           .flags = flags,
                                           .id = talker->id,
                                           .sequence = talker->sent++};
    protocol_header_write(frame, &header);
    memcpy(frame + PROTOCOL_HEADER_BYTES, bytes, count);
    assert_true(test_client_send(&client, frame, PROTOCOL_HEADER_BYTES + count));
}

/* The message's packets end at these places of its plaintext, the last at its end. */
static void send_message(struct talker *talker, uint32_t bytes, const uint32_t *ends, uint32_t packets)
{
    uint8_t plain[CORE_BLOCK_BYTES + MESSAGE_BYTES];
    struct message *message = &talker->messages[talker->message_count];
    const bool brings = talker->spec.iv == CORE_IV_EXPLICIT;
    uint32_t done = 0;

    TEST_REQUIRE(talker->message_count < MESSAGES && packets <= PACKETS);
    *message = (struct message){.bytes = bytes, .packets = packets, .seed = talker->message_count * 7 + 1};
    if (talker->number + talker->message_count == talker->next_from) {
        memcpy(talker->key, talker->next_key, sizeof talker->key);
        talker->next_from = UINT64_MAX;
    }
    memcpy(message->key, talker->key, sizeof message->key);
    talker->message_count++;
    fill(message->iv, sizeof message->iv, ~message->seed);
    memcpy(plain, message->iv, CORE_BLOCK_BYTES);
    fill(plain + CORE_BLOCK_BYTES, bytes, message->seed);
    for (uint32_t i = 0; i < packets; i++) {
        const uint32_t ahead = brings && i == 0 ? CORE_BLOCK_BYTES : 0;
        message->cuts[i] = ends[i] - done;
        send_packet(
            talker, plain + CORE_BLOCK_BYTES + done - ahead, ahead + ends[i] - done,
            (uint8_t)((i == 0 ? PROTOCOL_DATA_FIRST : 0) | (i == packets - 1 ? PROTOCOL_DATA_LAST : 0)));
        done = ends[i];
    }
    TEST_REQUIRE(done == bytes);
}

/* Cut every so many bytes; where a message has one packet, no more than that. */
static void send_even(struct talker *talker, uint32_t bytes, uint32_t each)
{
    uint32_t ends[PACKETS], packets = 0, done = 0;
    if (talker->spec.message_packets == 1 && bytes > each)
        bytes = each;
    do {
        done = done + each < bytes ? done + each : bytes;
        ends[packets++] = done;
    } while (done < bytes);
    send_message(talker, bytes, ends, packets);
}

static struct protocol_result next_result(struct talker *talker, const uint8_t **body, uint32_t *bytes)
{
    static uint8_t copy[PROTOCOL_RESULT_BYTES + MESSAGE_BYTES];
    struct protocol_result result;
    struct test_frame frame;
    if (talker->held_first < talker->held_end) {
        frame.header = talker->held[talker->held_first].header;
        frame.body = memcpy(copy, talker->held[talker->held_first].bytes, frame.header.body_bytes);
        free(talker->held[talker->held_first++].bytes);
    } else
        do
            TEST_REQUIRE(test_client_next(&client, &frame, TEST_PATIENCE_MS) == TEST_FRAME);
        while (frame.header.type == PROTOCOL_NOTICE);
    TEST_REQUIRE(frame.header.type == PROTOCOL_RESULT && frame.header.id == talker->id);
    TEST_REQUIRE(frame.header.sequence == talker->received++);
    TEST_REQUIRE(protocol_result_read(3, frame.body, frame.header.body_bytes, &result, NULL) == CORE_OK);
    TEST_REQUIRE(loses || (result.flags & PROTOCOL_RESULT_FAULT) == 0);
    *body = frame.body + PROTOCOL_RESULT_BYTES;
    *bytes = frame.header.body_bytes - PROTOCOL_RESULT_BYTES;
    return result;
}

static void check_message(struct talker *talker, const struct message *message)
{
    static uint8_t plain[MESSAGE_BYTES], expected[MESSAGE_BYTES + 48], got[MESSAGE_BYTES + 64];
    uint8_t iv[CORE_BLOCK_BYTES] = {0};
    uint32_t got_bytes = 0;
    const enum core_iv kind = talker->spec.iv;

    fill(plain, message->bytes, message->seed);
    if (kind == CORE_IV_CHAIN || kind == CORE_IV_CONSTANT)
        memcpy(iv, talker->chain, sizeof iv);
    for (int i = 0; kind == CORE_IV_COUNTER && i < 8; i++)
        iv[15 - i] = (uint8_t)(talker->number >> 8 * i);
    if (kind == CORE_IV_EXPLICIT)
        memcpy(iv, message->iv, sizeof iv);
    for (uint32_t i = 0; i < message->packets; i++) {
        const uint8_t *body;
        uint32_t bytes;
        const struct protocol_result result = next_result(talker, &body, &bytes);
        TEST_REQUIRE(result.status == PROTOCOL_RESULT_OK);
        const bool told = (result.flags & PROTOCOL_RESULT_HAS_IV) != 0;
        TEST_REQUIRE(told == (i == 0 && kind == CORE_IV_RANDOM));
        if (told) {
            TEST_REQUIRE(memcmp(iv, body, sizeof iv) != 0);
            memcpy(iv, body, sizeof iv);
            memcpy(talker->chain, iv, sizeof iv); /* the next one is another */
            body += CORE_BLOCK_BYTES;
            bytes -= CORE_BLOCK_BYTES;
        }
        if (i < message->packets - 1)
            TEST_REQUIRE(bytes == message->cuts[i]);
        memcpy(got + got_bytes, body, bytes);
        got_bytes += bytes;
    }
    uint8_t chain[CORE_BLOCK_BYTES];
    memcpy(chain, iv, sizeof chain);
    uint32_t bytes = encrypt(talker, message->key, plain, message->bytes, iv, expected, chain);
    bytes += authenticate(talker, message->key, iv, expected, bytes, expected + bytes);
    assert_int_equal(got_bytes, bytes);
    assert_memory_equal(got, expected, bytes);
    if (kind == CORE_IV_CHAIN)
        memcpy(talker->chain, chain, sizeof chain);
    talker->number++;
}

static void check_all(struct talker *talker)
{
    for (uint32_t i = 0; i < talker->message_count; i++)
        check_message(talker, &talker->messages[i]);
    talker->message_count = 0;
    TEST_REQUIRE(talker->held_first == talker->held_end);
    talker->held_first = talker->held_end = 0;
}

static void close_talker(struct talker *talker)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES];
    struct test_frame closed;
    assert_true(test_client_send(&client, frame, protocol_close_write(frame, talker->id)));
    do
        TEST_REQUIRE(test_client_next(&client, &closed, TEST_PATIENCE_MS) == TEST_FRAME);
    while (closed.header.type == PROTOCOL_NOTICE);
    assert_int_equal(closed.header.type, PROTOCOL_CLOSED);
    free(talker);
}

/* ---- life ---- */

static void prepare(int64_t cost, uint32_t cards)
{
    memset(&server, 0, sizeof server);
    loses = false;
    message_packets = 0;
    profile = test_gpu_profile(cost);
    profile->gpus[0].count = cards;
}

static void dial(void)
{
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 3, NULL);
}

/* gpus NULL: no cards. */
static void start(int64_t cost, uint32_t cards, const char *gpus, const char *yaml)
{
    prepare(cost, cards);
    if (gpus != NULL)
        test_gpu_server_start(&server, gpus, yaml, profile);
    else
        test_server_start(&server, yaml, profile);
    dial();
}

static int set_up_workers(void **state)
{
    (void)state;
    start(1, 1, NULL, "client_iv: true\n");
    return 0;
}

static int set_up_gpu(void **state)
{
    (void)state;
    start(100000, 1, "audit: 0, hang_ms: 5000", "client_iv: true\n");
    return 0;
}

static int set_up_whole(void **state)
{
    const int status = set_up_gpu(state);
    message_packets = 1;
    return status;
}

/* The CUDA device's code and its kernels, on the runtime without a card. */
static int set_up_cuda_whole(void **state)
{
    (void)state;
    assert_int_equal(setenv("MILLRACE_FAKE_CUDA", "late_us=500", 1), 0); /* before there are threads */
    prepare(100000, 1);
    free(profile->gpus[0].name);
    profile->gpus[0].name = strdup("Fake card");
    profile->pinned_bytes = UINT64_C(32) << 20; /* the trial of the kernels at the start fills a batch */
    test_server_start(&server,
                      "client_iv: true\ngpus: {cards: [0], program: " MILLRACE_BINARY_DIR
                      "/tests/millrace-gpu-fake, audit: 0, hang_ms: 5000}\n",
                      profile);
    dial();
    message_packets = 1;
    return 0;
}

static int set_up_audited(void **state)
{
    (void)state;
    start(100000, 1, "audit: 1, hang_ms: 5000", "client_iv: true\n");
    return 0;
}

static int set_up_two(void **state)
{
    (void)state;
    start(100000, 2, "audit: 2, hang_ms: 5000", "client_iv: true\n");
    return 0;
}

static int set_up_two_whole(void **state)
{
    const int status = set_up_two(state);
    message_packets = 1;
    return status;
}

static int set_up_limited(void **state)
{
    (void)state;
    start(1, 1, NULL, "limits: {packet_bytes: 2048, stream_buffer_kib: 64}\n");
    return 0;
}

static int set_up_strict(void **state)
{
    (void)state;
    start(1, 1, NULL, "client_iv: false\n");
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

static bool on_gpu(void)
{
    return server.server->gpu_count > 0;
}

/* ---- right messages ---- */

static bool may_be(enum core_padding padding, uint32_t bytes)
{
    return padding != CORE_PADDING_NONE || (bytes > 0 && bytes % 16 == 0);
}

static void every_iv_every_padding(void **state)
{
    static const uint32_t sizes[] = {0,   1,   15,  16,   17,   31,   32,   33,
                                     160, 161, 512, 1000, 1008, 1024, 2048, 2050};
    (void)state;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++)
        for (int padding = CORE_PADDING_NONE; padding <= CORE_PADDING_CLEAR; padding++) {
            struct talker *talker =
                open_talker((enum core_iv)iv, (enum core_padding)padding, false, on_gpu());
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                for (uint32_t each = 160; may_be(talker->spec.padding, sizes[i]) && each <= 1008; each += 848)
                    send_even(talker, sizes[i], each);
            check_all(talker);
            close_talker(talker);
        }
}

/* All the ways to cut six blocks, and a piece of one more, into packets. */
static void every_cut(void **state)
{
    (void)state;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
        struct talker *talker = open_talker((enum core_iv)iv, CORE_PADDING_PKCS7, false, on_gpu());
        for (uint32_t cuts = 0; cuts < 64; cuts++) {
            uint32_t ends[PACKETS], packets = 0;
            for (uint32_t block = 1; block <= 6; block++)
                if ((cuts >> (block - 1) & 1) != 0)
                    ends[packets++] = block * 16;
            ends[packets++] = 6 * 16 + cuts % 16;
            send_message(talker, ends[packets - 1], ends, packets);
        }
        check_all(talker);
        close_talker(talker);
    }
}

/* Blocks that pass are where they were, and the chain goes from one that is encrypted to the next; also where a
 * packet has none of them. */
static void every_pattern(void **state)
{
    static const uint8_t patterns[][2] = {{1, 9}, {1, 1}, {2, 1}, {5, 5}, {15, 15}, {15, 1}};
    static const uint32_t sizes[] = {16, 160, 176, 512, 1024, 1040, 2048}, each[] = {16, 48, 160, 1008};
    (void)state;
    for (size_t which = 0; which < sizeof patterns / sizeof *patterns; which++)
        for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
            const enum core_padding padding =
                (which + (size_t)iv) % 3 == 0 ? CORE_PADDING_NONE : CORE_PADDING_CLEAR;
            pattern.crypt_blocks = patterns[which][0];
            pattern.skip_blocks = patterns[which][1];
            struct talker *talker = open_talker((enum core_iv)iv, padding, false, on_gpu());
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                const uint32_t tail = padding == CORE_PADDING_CLEAR ? (uint32_t)i : 0;
                for (size_t j = sizes[i] > 1000  ? 2
                                : sizes[i] > 400 ? 1
                                                 : 0;
                     j < sizeof each / sizeof *each; j++)
                    send_even(talker, sizes[i] + tail, each[j]);
            }
            check_all(talker);
            close_talker(talker);
        }
    pattern.crypt_blocks = pattern.skip_blocks = 0;
}

/* What was inside is encrypted again elsewhere, messages that have begun, that begin and that wait: by a worker
 * or, where there are two cards, by the other one, which is the backup. */
static void messages_survive_the_loss_of_their_card(void **state)
{
    (void)state;
    loses = true;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
        pattern.crypt_blocks = pattern.skip_blocks = (uint8_t)(iv % 2); /* some */
        struct talker *talker = open_talker((enum core_iv)iv, CORE_PADDING_CLEAR, false, true);
        pattern.crypt_blocks = pattern.skip_blocks = 0;
        const pid_t child = test_gpu_process(&server, 0);
        for (uint32_t i = 0; i < 60; i++) {
            if (i == 20)
                assert_int_equal(kill(child, SIGSTOP), 0);
            if (i == 40)
                assert_int_equal(kill(child, SIGKILL), 0);
            send_even(talker, 100 + i * 7, 48);
        }
        check_all(talker);
        test_gpu_await_up(&server, talker->gpu, child);
        send_even(talker, 1000, 512);
        check_all(talker);
        close_talker(talker);
    }
}

/* Whether some batch of the card has had a job that stands alone. */
static bool had_jobs_alone(void)
{
    const struct gpu_region *region = gpu_arenas_region(server_gpu_arenas(server.server->gpus[0]));
    for (uint32_t arena = 0; arena < region->shape.arenas; arena++)
        if ((gpu_region_jobs(region, arena)->flags & GPU_JOB_ALONE) != 0)
            return true;
    return false;
}

/* Where a stream declares that they are messages, and their IVs do not chain. */
static void packets_are_jobs_of_their_own(void **state)
{
    static const struct {
        enum core_iv iv;
        uint8_t message_packets;
    } rows[] = {{CORE_IV_CHAIN, 0},    {CORE_IV_CONSTANT, 0}, {CORE_IV_COUNTER, 0},  {CORE_IV_EXPLICIT, 0},
                {CORE_IV_RANDOM, 0},   {CORE_IV_CHAIN, 1},    {CORE_IV_CONSTANT, 1}, {CORE_IV_COUNTER, 1},
                {CORE_IV_EXPLICIT, 1}, {CORE_IV_RANDOM, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)set_up_gpu(state); /* no batch of another stream before */
        message_packets = rows[i].message_packets;
        struct talker *talker = open_talker(rows[i].iv, CORE_PADDING_PKCS7, false, true);
        for (uint32_t j = 0; j < 12; j++)
            send_even(talker, 900, 900);
        check_all(talker);
        assert_int_equal(had_jobs_alone(), message_packets == 1 && rows[i].iv != CORE_IV_CHAIN);
        close_talker(talker);
        assert_int_equal(tear_down(state), 0);
    }
}

/* ---- keys ---- */

/* The next answer that is no RESULT, which are held. */
static struct test_frame await_answer(struct talker *talker)
{
    struct test_frame frame;
    for (;;) {
        TEST_REQUIRE(test_client_next(&client, &frame, TEST_PATIENCE_MS) == TEST_FRAME);
        if (frame.header.type == PROTOCOL_NOTICE)
            continue;
        if (frame.header.type != PROTOCOL_RESULT)
            return frame;
        TEST_REQUIRE(talker->held_end < HELD);
        talker->held[talker->held_end].bytes = malloc(frame.header.body_bytes);
        TEST_REQUIRE(talker->held[talker->held_end].bytes != NULL);
        memcpy(talker->held[talker->held_end].bytes, frame.body, frame.header.body_bytes);
        talker->held[talker->held_end++].header = frame.header;
    }
}

static void send_rekey(const struct talker *talker, uint64_t first, const uint8_t *key, uint32_t key_bytes)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_rekey rekey = {.stream = talker->id,
                                         .key_kind = PROTOCOL_KEY_INLINE,
                                         .key = key,
                                         .key_bytes = key_bytes,
                                         .first = first};
    assert_true(test_client_send(&client, frame, protocol_rekey_write(frame, 7, &rekey)));
}

/* 0, or the code of the refusal. */
static enum protocol_refusal ask_rekey(struct talker *talker, uint64_t first, uint64_t seed)
{
    struct protocol_rekeyed rekeyed;
    struct protocol_refused refused;
    uint8_t key[32];

    fill(key, sizeof key, seed);
    send_rekey(talker, first, key, core_cipher_key_bytes(talker->spec.cipher));
    const struct test_frame frame = await_answer(talker);
    assert_int_equal(frame.header.id, 7);
    if (frame.header.type == PROTOCOL_REFUSED) {
        assert_int_equal(protocol_refused_read(3, frame.body, frame.header.body_bytes, &refused, NULL),
                         CORE_OK);
        return refused.code;
    }
    assert_int_equal(frame.header.type, PROTOCOL_REKEYED);
    assert_int_equal(protocol_rekeyed_read(frame.body, frame.header.body_bytes, &rekeyed, NULL), CORE_OK);
    assert_true(rekeyed.stream == talker->id && rekeyed.first == first && rekeyed.in_force_ns > 0);
    memcpy(talker->next_key, key, sizeof key);
    talker->next_from = first;
    return 0;
}

/* Until the key before the last one is gone everywhere. */
static void rekey(struct talker *talker, uint64_t first, uint64_t seed)
{
    enum protocol_refusal refusal;
    while ((refusal = ask_rekey(talker, first, seed)) == PROTOCOL_REFUSED_BUSY)
        ;
    assert_int_equal(refusal, 0);
}

/* Messages under either key are inside side by side, cut in every way. */
static void keys_change_at_any_message(void **state)
{
    (void)state;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
        struct talker *talker = open_talker((enum core_iv)iv, CORE_PADDING_PKCS7, false, on_gpu());
        for (uint32_t round = 0; round < 12; round++) {
            for (uint32_t i = 0; i < round % 4; i++)
                send_even(talker, 100 + 60 * i, 48);
            rekey(talker, talker->number + talker->message_count + round % 3, 1000 + round);
            for (uint32_t i = 0; i < 5; i++)
                send_even(talker, 33 * i, 16 + 32 * (round % 5));
            check_all(talker);
        }
        close_talker(talker);
    }
}

/* A lost batch is encrypted again under the keys that were in force, whichever of the two it was. */
static void keys_survive_the_loss_of_their_card(void **state)
{
    (void)state;
    loses = true;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
        pattern.crypt_blocks = pattern.skip_blocks = (uint8_t)(iv % 2); /* some */
        struct talker *talker = open_talker((enum core_iv)iv, CORE_PADDING_CLEAR, false, true);
        pattern.crypt_blocks = pattern.skip_blocks = 0;
        const pid_t child = test_gpu_process(&server, 0);
        rekey(talker, talker->number + 30, 5);
        for (uint32_t i = 0; i < 60; i++) {
            if (i == 20)
                assert_int_equal(kill(child, SIGSTOP), 0);
            if (i == 40)
                assert_int_equal(kill(child, SIGKILL), 0);
            send_even(talker, 100 + i * 7, 48);
        }
        check_all(talker);
        rekey(talker, talker->number + 2, 6); /* the new process has it, or gets it with the others */
        for (uint32_t i = 0; i < 5; i++)
            send_even(talker, 100 + i * 7, 48);
        check_all(talker);
        test_gpu_await_up(&server, 0, child);
        for (uint32_t round = 0; round < 4; round++) {
            rekey(talker, talker->number + round % 2, 7 + round);
            for (uint32_t i = 0; i < 3; i++)
                send_even(talker, 1000, 512);
            check_all(talker);
        }
        close_talker(talker);
    }
}

/* A guaranteed stream has its backup on the other card, which has each of its keys before it counts; and the card
 * that comes back gets what it has missed. */
static void check_backup(enum core_padding padding)
{
    loses = true;
    struct talker *talker = open_talker(CORE_IV_COUNTER, padding, true, true);
    for (uint32_t round = 0; round < 2; round++) {
        const uint32_t card = round % 2;
        const pid_t child = test_gpu_process(&server, card);
        rekey(talker, talker->number + 5 + round, round);
        for (uint32_t i = 0; i < 14; i++) {
            if (i == 7)
                assert_int_equal(kill(child, SIGKILL), 0);
            send_even(talker, 200 + i, pattern.crypt_blocks > 0 ? 80 : 208);
        }
        check_all(talker);
        rekey(talker, talker->number + 1, 50 + round); /* one card is away, or has just come back */
        for (uint32_t i = 0; i < 10; i++)
            send_even(talker, 200 + i, pattern.crypt_blocks > 0 ? 80 : 208);
        check_all(talker);
        test_gpu_await_up(&server, card, child);
    }
    close_talker(talker);
}

static void keys_are_at_the_backup(void **state)
{
    (void)state;
    check_backup(CORE_PADDING_PKCS7);
}

/* Sorted packets are sent again from their slots, and some of which nothing is encrypted are between them. */
static void patterns_are_at_the_backup(void **state)
{
    (void)state;
    pattern.crypt_blocks = 3;
    pattern.skip_blocks = 15;
    check_backup(CORE_PADDING_CLEAR);
    pattern.crypt_blocks = pattern.skip_blocks = 0;
}

static void a_key_that_comes_too_late_or_too_early(void **state)
{
    static const uint8_t block[16];
    (void)state;
    struct talker *talker = open_talker(CORE_IV_CONSTANT, CORE_PADDING_NONE, false, on_gpu());
    send_even(talker, 64, 64);
    check_all(talker);
    assert_int_equal(ask_rekey(talker, 0, 1), PROTOCOL_REFUSED_BUSY); /* it is over */
    send_packet(talker, block, 16, PROTOCOL_DATA_FIRST);
    assert_int_equal(ask_rekey(talker, 1, 1), PROTOCOL_REFUSED_BUSY); /* it has begun */
    send_packet(talker, block, 16, PROTOCOL_DATA_LAST);
    const uint8_t *body;
    uint32_t bytes;
    assert_int_equal(next_result(talker, &body, &bytes).status, PROTOCOL_RESULT_OK);
    assert_int_equal(next_result(talker, &body, &bytes).status, PROTOCOL_RESULT_OK);
    talker->held_first = talker->held_end = 0;
    talker->number++;
    rekey(talker, talker->number + 1, 2);
    assert_int_equal(ask_rekey(talker, talker->number + 2, 3), PROTOCOL_REFUSED_BUSY); /* there are two */
    for (uint32_t i = 0; i < 3; i++)
        send_even(talker, 64, 64);
    check_all(talker);
    rekey(talker, talker->number, 4);
    send_even(talker, 64, 64);
    check_all(talker);
    close_talker(talker);
}

static void keys_that_do_not_fit_are_refused_by_name(void **state)
{
    static const uint8_t key[32];
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct core_stream_spec one = spec;
    struct protocol_opened opened;
    (void)state;
    struct talker *talker = open_talker(CORE_IV_RANDOM, CORE_PADDING_NONE, false, on_gpu());
    one.unit = CORE_UNIT_STREAM;
    struct protocol_open open = test_open_inline(&one, key);
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    const struct {
        struct protocol_rekey rekey;
        enum protocol_refusal code;
    } rows[] = {
        {{opened.stream, PROTOCOL_KEY_INLINE, key, 24, 0}, PROTOCOL_REFUSED_SPEC},
        {{opened.stream + 9, PROTOCOL_KEY_INLINE, key, 24, 0}, PROTOCOL_REFUSED_STREAM},
        {{talker->id, PROTOCOL_KEY_INLINE, key, 16, 0}, PROTOCOL_REFUSED_KEY},
        {{talker->id, PROTOCOL_KEY_NAMED, (const uint8_t *)"none", 4, 0}, PROTOCOL_REFUSED_KEY},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct protocol_refused refused;
        assert_true(test_client_send(&client, frame, protocol_rekey_write(frame, 7, &rows[i].rekey)));
        const struct test_frame answer = await_answer(talker);
        assert_int_equal(answer.header.type, PROTOCOL_REFUSED);
        assert_int_equal(protocol_refused_read(3, answer.body, answer.header.body_bytes, &refused, NULL),
                         CORE_OK);
        assert_int_equal(refused.code, rows[i].code);
    }
    rekey(talker, talker->number, 9);
    send_even(talker, 64, 64);
    check_all(talker);
    close_talker(talker);
}

/* ---- wrong ones ---- */

static void expect_status(struct talker *talker, enum protocol_result_status status)
{
    const uint8_t *body;
    uint32_t bytes;
    assert_int_equal(next_result(talker, &body, &bytes).status, status);
}

/* The rest of a message of which a packet was not encrypted is not, either, and the next one is right. */
static void a_broken_message_harms_no_other(void **state)
{
    static const uint8_t some[2048];
    (void)state;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
        struct talker *talker = open_talker((enum core_iv)iv, CORE_PADDING_PKCS7, false, on_gpu());
        send_even(talker, 100, 48);
        check_all(talker);
        send_packet(talker, some, 17, PROTOCOL_DATA_FIRST); /* no whole blocks, and not the last */
        expect_status(talker, PROTOCOL_RESULT_NOT_BLOCKS);
        send_packet(talker, some, 16, 0);
        expect_status(talker, PROTOCOL_RESULT_BROKEN);
        send_packet(talker, some, 2000, 0);
        expect_status(talker, PROTOCOL_RESULT_BROKEN);
        send_packet(talker, some, 16, PROTOCOL_DATA_LAST);
        expect_status(talker, PROTOCOL_RESULT_BROKEN);
        talker->number++;
        send_packet(talker, some, 1025, PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST);
        expect_status(talker, PROTOCOL_RESULT_TOO_LONG);
        talker->number++;
        if (iv == CORE_IV_EXPLICIT) {
            send_packet(talker, some, 15, PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST);
            expect_status(talker, PROTOCOL_RESULT_NOT_BLOCKS);
            talker->number++;
        }
        send_even(talker, 100, 48);
        check_all(talker);
        close_talker(talker);
    }
}

/* The connection ends, and its client is told why. */
static void expect_malformed(uint32_t id, const char *why)
{
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    enum protocol_error code;
    struct test_frame frame;
    bool fatal;

    test_client_expect(&client, PROTOCOL_ERROR, &frame);
    assert_int_equal(frame.header.id, id);
    assert_int_equal(
        protocol_error_read(frame.body, frame.header.body_bytes, &code, &fatal, text, sizeof text, NULL),
        CORE_OK);
    assert_true(code == PROTOCOL_ERROR_MALFORMED && fatal);
    assert_non_null(strstr(text, why));
    test_client_expect_end(&client);
}

static void flags_that_do_not_follow(void **state)
{
    static const struct {
        enum core_unit unit;
        uint8_t before, flags; /* before: of a packet ahead of it; PROTOCOL_DATA_LAST: none */
        uint8_t message_packets;
        const char *text;
    } rows[] = {
        {CORE_UNIT_MESSAGE, PROTOCOL_DATA_LAST, PROTOCOL_DATA_FIRST, 1, "each message of the stream is one"},
        {CORE_UNIT_MESSAGE, PROTOCOL_DATA_LAST, 0, 1, "each message of the stream is one packet"},
        {CORE_UNIT_MESSAGE, PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST, PROTOCOL_DATA_FIRST, 1,
         "as its message_packets, records or mac says"},
        {CORE_UNIT_MESSAGE, PROTOCOL_DATA_LAST, 0, 0, "DATA has no FIRST, and there is no message"},
        {CORE_UNIT_MESSAGE, PROTOCOL_DATA_LAST, PROTOCOL_DATA_LAST, 0, "DATA has no FIRST"},
        {CORE_UNIT_MESSAGE, PROTOCOL_DATA_FIRST, PROTOCOL_DATA_FIRST, 0, "DATA has FIRST, and the message"},
        {CORE_UNIT_STREAM, PROTOCOL_DATA_LAST, PROTOCOL_DATA_FIRST, 0, "a stream without messages has none"},
        {CORE_UNIT_STREAM, PROTOCOL_DATA_LAST, PROTOCOL_DATA_LAST, 0, "a stream without messages has none"}};
    static const uint8_t block[16], key[32];
    (void)state;
    struct talker *other = open_talker(CORE_IV_COUNTER, CORE_PADDING_PKCS7, false, on_gpu());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct talker talker = {.spec = spec};
        struct protocol_opened opened;
        talker.spec.unit = rows[i].unit;
        talker.spec.message_packets = rows[i].message_packets;
        struct protocol_open open = test_open_inline(&talker.spec, key);
        send_even(other, 100, 100);
        const struct test_client right = client;
        test_client_dial(&client, test_server_unix(&server));
        test_client_hello_version(&client, 3, NULL);
        assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
        talker.id = opened.stream;
        if (rows[i].before != PROTOCOL_DATA_LAST) {
            send_packet(&talker, block, 16, rows[i].before);
            expect_status(&talker, PROTOCOL_RESULT_OK);
        }
        send_packet(&talker, block, 16, rows[i].flags);
        expect_malformed(talker.id, rows[i].text);
        test_client_close(&client);
        client = right;
        send_even(other, 100, 100);
        check_all(other); /* another connection's stream goes on */
    }
    close_talker(other);
}

static void what_makes_no_sense_is_refused_by_name(void **state)
{
    static const struct {
        enum core_unit unit;
        enum core_iv iv;
        enum core_padding padding;
        bool has_iv;
        uint32_t packet_bytes;
        uint64_t first_unit;
        const char *text;
        uint8_t crypt_blocks, skip_blocks;
    } rows[] = {
        {CORE_UNIT_STREAM, CORE_IV_COUNTER, CORE_PADDING_PKCS7, false, 64, 0,
         "iv is counter, which a stream of", 0, 0},
        {CORE_UNIT_STREAM, CORE_IV_CHAIN, CORE_PADDING_CLEAR, false, 64, 0,
         "padding is clear, which a stream of", 0, 0},
        {CORE_UNIT_MESSAGE, CORE_IV_CONSTANT, CORE_PADDING_CLEAR, false, 64, 0,
         "iv is constant, and there is none", 0, 0},
        {CORE_UNIT_MESSAGE, CORE_IV_RANDOM, CORE_PADDING_CLEAR, true, 64, 0, "iv is random, and the one in",
         0, 0},
        {CORE_UNIT_MESSAGE, CORE_IV_EXPLICIT, CORE_PADDING_CLEAR, true, 64, 0,
         "iv is explicit, and the one in", 0, 0},
        {CORE_UNIT_MESSAGE, CORE_IV_CHAIN, CORE_PADDING_PKCS7, false, 64, 3,
         "first_unit is 3, must be 0 with iv chain", 0, 0},
        {CORE_UNIT_MESSAGE, CORE_IV_EXPLICIT, CORE_PADDING_PKCS7, false, 16, 0,
         "packet_bytes is 16, must be more", 0, 0},
        {CORE_UNIT_MESSAGE, CORE_IV_CHAIN, CORE_PADDING_NONE, false, 60, 0,
         "packet_bytes is 60, must be a multiple", 0, 0},
        {2, CORE_IV_CHAIN, CORE_PADDING_NONE, false, 64, 0, "unit is 2, must be 0 to 1", 0, 0},
        {CORE_UNIT_MESSAGE, 5, CORE_PADDING_NONE, false, 64, 0, "iv is 5, must be 0 to 4", 0, 0},
        {CORE_UNIT_MESSAGE, CORE_IV_CHAIN, 3, false, 64, 0, "padding is 3, must be 0 to 2", 0, 0},
        {CORE_UNIT_STREAM, CORE_IV_CHAIN, CORE_PADDING_NONE, false, 64, 0,
         "there is a pattern, which a stream of", 1, 9},
        {CORE_UNIT_MESSAGE, CORE_IV_CHAIN, CORE_PADDING_PKCS7, false, 64, 0,
         "padding is pkcs7, which does not go", 1, 9},
        {CORE_UNIT_MESSAGE, CORE_IV_CHAIN, CORE_PADDING_CLEAR, false, 64, 0,
         "crypt_blocks of a pattern is 0, must be 1 to 15", 0, 9},
        {CORE_UNIT_MESSAGE, CORE_IV_CHAIN, CORE_PADDING_CLEAR, false, 64, 0,
         "skip_blocks of a pattern is 16, must be 1 to 15", 15, 16},
    };
    static const uint8_t key[32];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct core_stream_spec wrong = spec;
        struct protocol_refused refused;
        wrong.unit = rows[i].unit;
        wrong.iv = rows[i].iv;
        wrong.padding = rows[i].padding;
        wrong.packet_bytes = rows[i].packet_bytes;
        wrong.first_unit = rows[i].first_unit;
        wrong.crypt_blocks = rows[i].crypt_blocks;
        wrong.skip_blocks = rows[i].skip_blocks;
        struct protocol_open open = test_open_inline(&wrong, key);
        open.has_iv = rows[i].has_iv;
        assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused));
        assert_int_equal(refused.code, PROTOCOL_REFUSED_SPEC);
        if (strstr(refused.text, rows[i].text) == NULL)
            fail_msg("row %zu: %s", i, refused.text);
    }
}

/* Where clients may not choose IVs they may neither count them nor bring them along. */
static void ivs_that_clients_choose_need_permission(void **state)
{
    static const uint8_t key[32];
    (void)state;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
        const bool drawn = iv == CORE_IV_CHAIN || iv == CORE_IV_RANDOM;
        struct core_stream_spec asked = spec;
        struct protocol_refused refused;
        asked.iv = (enum core_iv)iv;
        struct protocol_open open = test_open_inline(&asked, key);
        open.has_iv = iv == CORE_IV_CONSTANT;
        assert_int_equal(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused), drawn);
        if (!drawn)
            assert_int_equal(refused.code, PROTOCOL_REFUSED_IV);
    }
}

/* The server holds them whole: 64 packets of 1,024 bytes are 64 KiB. */
static void a_pattern_does_not_stretch_the_limit_of_a_burst(void **state)
{
    static const uint8_t key[32];
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct core_stream_spec asked = spec;
        struct protocol_refused refused = {.text = ""};
        asked.padding = CORE_PADDING_NONE;
        asked.burst_packets += i % 2;
        asked.crypt_blocks = asked.skip_blocks = (uint8_t)(i / 2);
        const struct protocol_open open = test_open_inline(&asked, key);
        assert_int_equal(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused), i % 2 == 0);
        assert_int_equal(refused.code, i % 2 == 0 ? 0 : PROTOCOL_REFUSED_LIMIT);
    }
}

#define ON_WORKERS(test)                                                                                     \
    {                                                                                                        \
#test " on workers", test, set_up_workers, tear_down, NULL                                           \
    }
#define ON_GPU(test)                                                                                         \
    {                                                                                                        \
#test " on a GPU", test, set_up_gpu, tear_down, NULL                                                 \
    }
#define ON_TWO(test)                                                                                         \
    {                                                                                                        \
#test " on two GPUs", test, set_up_two, tear_down, NULL                                              \
    }
#define WHOLE(test)                                                                                          \
    {                                                                                                        \
#test " on a GPU, of one packet each", test, set_up_whole, tear_down, NULL                           \
    }
#define CUDA_WHOLE(test)                                                                                     \
    {                                                                                                        \
#test " on a CUDA device, of one packet each", test, set_up_cuda_whole, tear_down, NULL              \
    }
#define TWO_WHOLE(test)                                                                                      \
    {                                                                                                        \
#test " on two GPUs, of one packet each", test, set_up_two_whole, tear_down, NULL                    \
    }
#define AUDITED(test)                                                                                        \
    {                                                                                                        \
#test " audited", test, set_up_audited, tear_down, NULL                                              \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_WORKERS(every_iv_every_padding),
        ON_GPU(every_iv_every_padding),
        WHOLE(every_iv_every_padding),
        CUDA_WHOLE(every_iv_every_padding),
        AUDITED(every_iv_every_padding),
        ON_WORKERS(every_cut),
        ON_GPU(every_cut),
        ON_WORKERS(every_pattern),
        ON_GPU(every_pattern),
        WHOLE(every_pattern),
        AUDITED(every_pattern),
        ON_GPU(messages_survive_the_loss_of_their_card),
        WHOLE(messages_survive_the_loss_of_their_card),
        CUDA_WHOLE(messages_survive_the_loss_of_their_card),
        cmocka_unit_test(packets_are_jobs_of_their_own),
        ON_WORKERS(keys_change_at_any_message),
        ON_GPU(keys_change_at_any_message),
        WHOLE(keys_change_at_any_message),
        CUDA_WHOLE(keys_change_at_any_message),
        AUDITED(keys_change_at_any_message),
        ON_GPU(keys_survive_the_loss_of_their_card),
        WHOLE(keys_survive_the_loss_of_their_card),
        ON_TWO(keys_are_at_the_backup),
        TWO_WHOLE(keys_are_at_the_backup),
        ON_TWO(patterns_are_at_the_backup),
        ON_WORKERS(a_key_that_comes_too_late_or_too_early),
        ON_GPU(a_key_that_comes_too_late_or_too_early),
        ON_WORKERS(keys_that_do_not_fit_are_refused_by_name),
        ON_WORKERS(a_broken_message_harms_no_other),
        ON_GPU(a_broken_message_harms_no_other),
        ON_WORKERS(flags_that_do_not_follow),
        ON_WORKERS(what_makes_no_sense_is_refused_by_name),
        cmocka_unit_test_setup_teardown(a_pattern_does_not_stretch_the_limit_of_a_burst, set_up_limited,
                                        tear_down),
        cmocka_unit_test_setup_teardown(ivs_that_clients_choose_need_permission, set_up_strict, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
