/* What others published of formats in use, as messages through a running server, on a worker and on an emulated
 * GPU, in every cut at blocks: RFC 3602 (IPsec: each packet brings its IV) and DVB-CISSA (the payload of a
 * transport-stream packet; the IV is the same for all, and the end of less than a block stays clear). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "server/server_internal.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define VECTOR_BYTES 256
#define CUTS         64 /* of a message, by bit: a packet ends behind that block */

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;

struct vector {
    uint8_t key[16], iv[16], clear[VECTOR_BYTES], encrypted[VECTOR_BYTES];
    uint32_t bytes;
};

static int set_up(bool gpu)
{
    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(gpu ? 100000 : 1);
    if (gpu)
        test_gpu_server_start(&server, "audit: 0", "client_iv: true\n", profile);
    else
        test_server_start(&server, "client_iv: true\n", profile);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 3, NULL);
    return 0;
}

static int set_up_worker(void **state)
{
    (void)state;
    return set_up(false);
}

static int set_up_gpu(void **state)
{
    (void)state;
    return set_up(true);
}

static int tear_down(void **state)
{
    (void)state;
    test_client_close(&client);
    const uint64_t lost = test_server_stop(&server);
    config_profile_free(profile);
    return lost == 0 ? 0 : -1;
}

/* ---- files ---- */

static uint32_t read_hex(const char **line, uint8_t *bytes)
{
    uint32_t count = 0;
    for (unsigned byte; sscanf(*line, "%2x", &byte) == 1 && (*line)[0] != ','; *line += 2) {
        TEST_REQUIRE(count < VECTOR_BYTES);
        bytes[count++] = (uint8_t)byte;
    }
    *line += **line == ',';
    return count;
}

/* Key, IV, clear, encrypted, behind a first cell or not; returns how many there are. */
static size_t read_vectors(const char *name, bool numbered, struct vector *vectors, size_t most)
{
    char path[512], line[4096];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/tests/data/%s", MILLRACE_SOURCE_DIR, name);
    FILE *file = fopen(path, "r");
    TEST_REQUIRE(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        const char *at = numbered && line[0] != '#' ? strchr(line, ',') + 1 : line;
        if (line[0] == '#')
            continue;
        struct vector *vector = &vectors[count++];
        TEST_REQUIRE(count <= most);
        TEST_REQUIRE(read_hex(&at, vector->key) == 16 && read_hex(&at, vector->iv) == 16);
        vector->bytes = read_hex(&at, vector->clear);
        TEST_REQUIRE(vector->bytes > 0 && read_hex(&at, vector->encrypted) == vector->bytes);
    }
    fclose(file);
    return count;
}

/* ---- messages ---- */

static uint32_t open_stream(const struct vector *vector, enum core_iv iv, enum core_padding padding)
{
    const struct core_stream_spec spec = {.packet_bytes = VECTOR_BYTES,
                                          .burst_packets = 64,
                                          .interval_ns = CORE_NS_PER_MS,
                                          .latency_ns = 500 * CORE_NS_PER_MS,
                                          .cipher = CORE_CIPHER_AES_128_CBC,
                                          .padding = padding,
                                          .unit = CORE_UNIT_MESSAGE,
                                          .iv = iv};
    struct protocol_open open = test_open_inline(&spec, vector->key);
    struct protocol_opened opened;
    struct protocol_refused refused = {.text = ""};
    open.has_iv = iv == CORE_IV_CONSTANT;
    memcpy(open.iv, vector->iv, sizeof open.iv);
    if (!test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, &refused))
        fail_msg("refused: %s", refused.text);
    assert_int_equal(opened.unit, server.server->gpu_count > 0 ? PROTOCOL_UNIT_GPU : PROTOCOL_UNIT_CPU);
    return opened.stream;
}

static void send_part(uint32_t stream, uint32_t sequence, uint8_t flags, const uint8_t *iv,
                      const uint8_t *bytes, uint32_t count)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + 16 + VECTOR_BYTES];
    const uint32_t iv_bytes = iv != NULL ? 16 : 0;
    const struct protocol_header header = {.body_bytes = iv_bytes + count,
                                           .type = PROTOCOL_DATA,
                                           .flags = flags,
                                           .id = stream,
                                           .sequence = sequence};
    protocol_header_write(frame, &header);
    if (iv != NULL)
        memcpy(frame + PROTOCOL_HEADER_BYTES, iv, 16);
    memcpy(frame + PROTOCOL_HEADER_BYTES + iv_bytes, bytes, count);
    assert_true(test_client_send(&client, frame, PROTOCOL_HEADER_BYTES + iv_bytes + count));
}

/* Sends `bytes` of the vector from `from` on, cut behind each block whose bit is set; returns the packets. */
static uint32_t send_message(uint32_t stream, uint32_t sequence, const struct vector *vector, uint32_t from,
                             uint32_t cuts, bool brings_iv)
{
    const uint32_t bytes = vector->bytes - from;
    uint32_t done = 0, packets = 0;
    for (uint32_t block = 1; done < bytes || packets == 0; block++) {
        const bool last = block * 16 >= bytes;
        if (!last && (block > 31 || (cuts >> (block - 1) & 1) == 0))
            continue;
        const uint32_t end = last ? bytes : block * 16;
        const uint8_t flags =
            (uint8_t)((packets == 0 ? PROTOCOL_DATA_FIRST : 0) | (last ? PROTOCOL_DATA_LAST : 0));
        send_part(stream, sequence + packets, flags, packets == 0 && brings_iv ? vector->iv : NULL,
                  vector->clear + from + done, end - done);
        done = end;
        packets++;
    }
    return packets;
}

static void expect_message(uint32_t stream, uint32_t packets, const struct vector *vector, uint32_t from)
{
    uint8_t got[VECTOR_BYTES];
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < packets; i++) {
        struct test_frame frame;
        test_client_expect(&client, PROTOCOL_RESULT, &frame);
        assert_int_equal(frame.header.id, stream);
        assert_int_equal(frame.body[0], PROTOCOL_RESULT_OK);
        const uint32_t count = frame.header.body_bytes - PROTOCOL_RESULT_BYTES;
        assert_true(bytes + count <= sizeof got);
        memcpy(got + bytes, frame.body + PROTOCOL_RESULT_BYTES, count);
        bytes += count;
    }
    assert_int_equal(bytes, vector->bytes - from);
    assert_memory_equal(got, vector->encrypted + from, bytes);
}

/* In every cut of its first blocks. */
static void check_vector(const struct vector *vector, uint32_t from, enum core_iv iv,
                         enum core_padding padding)
{
    const uint32_t stream = open_stream(vector, iv, padding);
    uint32_t packets[CUTS], sequence = 0;
    for (uint32_t cuts = 0; cuts < CUTS; cuts++)
        sequence += packets[cuts] =
            send_message(stream, sequence, vector, from, cuts, iv == CORE_IV_EXPLICIT);
    for (uint32_t cuts = 0; cuts < CUTS; cuts++)
        expect_message(stream, packets[cuts], vector, from);
    uint8_t frame[PROTOCOL_HEADER_BYTES];
    struct test_frame closed;
    assert_true(test_client_send(&client, frame, protocol_close_write(frame, stream)));
    test_client_expect(&client, PROTOCOL_CLOSED, &closed);
}

static void ipsec_packets(void **state)
{
    static struct vector vectors[4];
    (void)state;
    assert_int_equal(read_vectors("rfc3602.csv", false, vectors, 4), 4);
    for (size_t i = 0; i < 4; i++)
        check_vector(&vectors[i], 0, CORE_IV_EXPLICIT, CORE_PADDING_NONE);
}

/* Where the payload of a transport-stream packet begins (ISO/IEC 13818-1, 2.4.3). */
static uint32_t payload_of(const uint8_t packet[188])
{
    TEST_REQUIRE(packet[0] == 0x47 && (packet[3] & 0x10) != 0);
    return (packet[3] & 0x20) != 0 ? 5u + packet[4] : 4;
}

static void transport_stream_packets(void **state)
{
    static struct vector vectors[8];
    (void)state;
    const size_t count = read_vectors("dvb_cissa.csv", true, vectors, 8);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(vectors[i].bytes, 188);
        check_vector(&vectors[i], payload_of(vectors[i].clear), CORE_IV_CONSTANT, CORE_PADDING_CLEAR);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"ipsec_packets on a worker", ipsec_packets, set_up_worker, tear_down, NULL},
        {"ipsec_packets on a GPU", ipsec_packets, set_up_gpu, tear_down, NULL},
        {"transport_stream_packets on a worker", transport_stream_packets, set_up_worker, tear_down, NULL},
        {"transport_stream_packets on a GPU", transport_stream_packets, set_up_gpu, tear_down, NULL}};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
