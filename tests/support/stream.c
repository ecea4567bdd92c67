#include "tests/support/stream.h"

#include "tests/support/random.h"
#include "tests/support/require.h"

#include <string.h>

const struct core_stream_spec test_spec = {.packet_bytes = 1408,
                                           .burst_packets = 64,
                                           .interval_ns = CORE_NS_PER_MS,
                                           .latency_ns = 10 * CORE_NS_PER_S,
                                           .cipher = CORE_CIPHER_AES_128_CBC,
                                           .padding = CORE_PADDING_NONE};

struct protocol_open test_open_inline(const struct core_stream_spec *spec, const uint8_t *key)
{
    return (struct protocol_open){.spec = *spec,
                                  .key_kind = PROTOCOL_KEY_INLINE,
                                  .key = key,
                                  .key_bytes = core_cipher_key_bytes(spec->cipher)};
}

static void fill(uint64_t seed, uint8_t *bytes, size_t count)
{
    struct test_random random = {.state = seed};
    for (size_t i = 0; i < count; i += 8) {
        uint64_t value = test_random_next(&random);
        memcpy(bytes + i, &value, count - i < 8 ? count - i : 8);
    }
}

static const EVP_CIPHER *reference_cipher(enum core_cipher cipher)
{
    return cipher == CORE_CIPHER_AES_128_CBC   ? EVP_aes_128_cbc()
           : cipher == CORE_CIPHER_AES_192_CBC ? EVP_aes_192_cbc()
                                               : EVP_aes_256_cbc();
}

struct test_stream *test_stream_adopt(struct test_client *client, const struct core_stream_spec *spec,
                                      uint64_t seed, const uint8_t *key, const struct protocol_opened *opened)
{
    struct test_stream *stream = calloc(1, sizeof *stream);
    TEST_REQUIRE(stream != NULL);
    stream->client = client;
    stream->id = opened->stream;
    stream->spec = *spec;
    stream->opened = *opened;
    stream->seed = seed;
    stream->bytes_per_key = UINT64_MAX;
    stream->scratch = malloc(spec->packet_bytes + CORE_BLOCK_BYTES);
    stream->expected = malloc(spec->packet_bytes + 2 * CORE_BLOCK_BYTES);
    stream->reference = EVP_CIPHER_CTX_new();
    TEST_REQUIRE(stream->scratch != NULL && stream->expected != NULL && stream->reference != NULL);
    TEST_REQUIRE(
        EVP_EncryptInit_ex(stream->reference, reference_cipher(spec->cipher), NULL, key, opened->iv) == 1);
    TEST_REQUIRE(EVP_CIPHER_CTX_set_padding(stream->reference, 0) == 1);
    return stream;
}

struct test_stream *test_stream_open(struct test_client *client, const struct core_stream_spec *spec,
                                     uint64_t seed)
{
    struct protocol_opened opened;
    struct protocol_refused refused;
    uint8_t key[32];

    fill(seed ^ UINT64_C(0x6b6579), key, sizeof key);
    struct protocol_open open = test_open_inline(spec, key);
    if ((client->welcome_flags & PROTOCOL_ALLOWS_INLINE_KEY) == 0) {
        static const char *const names[] = {"", "test-1", "test-2", "test-3"};
        for (size_t i = 0; i < sizeof key; i++)
            key[i] = (uint8_t)i;
        open.key_kind = PROTOCOL_KEY_NAMED;
        open.key = (const uint8_t *)names[spec->cipher];
        open.key_bytes = 6;
    }
    if (!test_client_ask(client, PROTOCOL_OPEN, &open, &opened, &refused)) {
        fprintf(stderr, "refused (%d): %s\n", (int)refused.code, refused.text);
        abort();
    }
    return test_stream_adopt(client, spec, seed, key, &opened);
}

void test_stream_free(struct test_stream *stream)
{
    if (stream == NULL)
        return;
    EVP_CIPHER_CTX_free(stream->reference);
    free(stream->scratch);
    free(stream->expected);
    free(stream);
}

static uint64_t packet_seed(const struct test_stream *stream, uint32_t sequence)
{
    return stream->seed * UINT64_C(0x9e3779b97f4a7c15) + sequence;
}

/* How the server must judge the next packet. */
static enum protocol_result_status judge(const struct test_stream *stream, uint32_t bytes)
{
    if (bytes > stream->spec.packet_bytes)
        return PROTOCOL_RESULT_TOO_LONG;
    if (stream->spec.padding == CORE_PADDING_NONE && (bytes == 0 || bytes % CORE_BLOCK_BYTES != 0))
        return PROTOCOL_RESULT_NOT_BLOCKS;
    if (stream->key_bytes + core_stream_padded_bytes(stream->spec.padding, bytes) > stream->bytes_per_key)
        return PROTOCOL_RESULT_KEY_SPENT;
    return PROTOCOL_RESULT_OK;
}

size_t test_stream_frame(struct test_stream *stream, uint32_t bytes, uint8_t *frame)
{
    TEST_REQUIRE(stream->sent - stream->received < TEST_WINDOW);
    test_data_header(frame, stream->id, stream->sent, bytes);
    fill(packet_seed(stream, stream->sent), frame + PROTOCOL_HEADER_BYTES, bytes);
    enum protocol_result_status status = judge(stream, bytes);
    if (status == PROTOCOL_RESULT_OK)
        stream->key_bytes += core_stream_padded_bytes(stream->spec.padding, bytes);
    stream->statuses[stream->sent % TEST_WINDOW] = status;
    stream->sizes[stream->sent++ % TEST_WINDOW] = bytes;
    return PROTOCOL_HEADER_BYTES + (size_t)bytes;
}

bool test_stream_send(struct test_stream *stream, uint32_t bytes)
{
    uint8_t *frame = malloc(PROTOCOL_HEADER_BYTES + (size_t)bytes);
    TEST_REQUIRE(frame != NULL);
    bool sent = test_client_send(stream->client, frame, test_stream_frame(stream, bytes, frame));
    free(frame);
    return sent;
}

/* What packet `sequence` must be encrypted to, into stream->expected; packets come in order. */
static uint32_t expect(struct test_stream *stream, uint32_t sequence)
{
    uint32_t bytes = stream->sizes[sequence % TEST_WINDOW];
    int encrypted = 0;

    fill(packet_seed(stream, sequence), stream->scratch, bytes);
    if (stream->spec.padding == CORE_PADDING_PKCS7) {
        uint32_t padding = CORE_BLOCK_BYTES - bytes % CORE_BLOCK_BYTES;
        memset(stream->scratch + bytes, (int)padding, padding);
        bytes += padding;
    }
    TEST_REQUIRE(
        EVP_EncryptUpdate(stream->reference, stream->expected, &encrypted, stream->scratch, (int)bytes) == 1);
    TEST_REQUIRE(encrypted == (int)bytes);
    return bytes;
}

struct protocol_result test_stream_check(struct test_stream *stream, const struct test_frame *frame)
{
    struct protocol_result result;

    TEST_REQUIRE(frame->header.type == PROTOCOL_RESULT && frame->header.id == stream->id);
    TEST_REQUIRE(frame->header.sequence == stream->received);
    TEST_REQUIRE(stream->received != stream->sent);
    TEST_REQUIRE(protocol_result_read(stream->client->version, frame->body, frame->header.body_bytes, &result,
                                      NULL) == CORE_OK);
    TEST_REQUIRE(result.status == stream->statuses[stream->received % TEST_WINDOW]);
    if (result.status != PROTOCOL_RESULT_OK) {
        TEST_REQUIRE(result.flags == 0 && result.latency_ns == 0 && result.waited_us == 0);
        TEST_REQUIRE(frame->header.body_bytes == PROTOCOL_RESULT_BYTES);
    } else {
        uint32_t bytes = expect(stream, stream->received);
        TEST_REQUIRE(frame->header.body_bytes == PROTOCOL_RESULT_BYTES + bytes);
        TEST_REQUIRE(memcmp(frame->body + PROTOCOL_RESULT_BYTES, stream->expected, bytes) == 0);
    }
    stream->received++;
    return result;
}

struct protocol_result test_streams_take(struct test_client *client, struct test_stream *const *streams)
{
    struct test_frame frame;
    test_client_expect(client, PROTOCOL_RESULT, &frame);
    return test_stream_check(streams[frame.header.id - 1], &frame);
}

void test_stream_drain(struct test_stream *stream)
{
    struct test_frame frame;
    while (stream->received != stream->sent) {
        test_client_expect(stream->client, PROTOCOL_RESULT, &frame);
        (void)test_stream_check(stream, &frame);
    }
}

struct protocol_closed test_stream_close(struct test_stream *stream)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_closed closed;
    struct test_frame frame;

    TEST_REQUIRE(test_client_send(stream->client, bytes, protocol_close_write(bytes, stream->id)));
    test_stream_drain(stream);
    test_client_expect(stream->client, PROTOCOL_CLOSED, &frame);
    TEST_REQUIRE(frame.header.id == stream->id);
    TEST_REQUIRE(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL) == CORE_OK);
    return closed;
}
