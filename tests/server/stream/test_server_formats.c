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

/* A worker that takes so many times as long as this machine's; beyond one a GPU is there, too. */
static int set_up(uint32_t times)
{
    const bool gpu = times > 1;

    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(times);
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
    return set_up(1);
}

static int set_up_gpu(void **state)
{
    (void)state;
    return set_up(100000);
}

/* A worker that could serve a stream, where a GPU is preferred. */
static int set_up_both(void **state)
{
    (void)state;
    return set_up(20);
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

static uint32_t open_like(struct core_stream_spec spec, const struct vector *vector)
{
    struct protocol_open open = test_open_inline(&spec, vector->key);
    struct protocol_opened opened;
    struct protocol_refused refused = {.text = ""};
    const bool on_worker = server.server->gpu_count == 0 || core_stream_needs_worker(&spec);
    open.has_iv = spec.iv == CORE_IV_CONSTANT;
    memcpy(open.iv, vector->iv, sizeof open.iv);
    if (!test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, &refused))
        fail_msg("refused: %s", refused.text);
    assert_int_equal(opened.unit, on_worker ? PROTOCOL_UNIT_CPU : PROTOCOL_UNIT_GPU);
    return opened.stream;
}

static uint32_t open_stream(const struct vector *vector, enum core_direction direction, enum core_iv iv,
                            enum core_padding padding)
{
    const struct core_stream_spec spec = {.packet_bytes = VECTOR_BYTES,
                                          .burst_packets = 64,
                                          .interval_ns = CORE_NS_PER_MS,
                                          .latency_ns = 500 * CORE_NS_PER_MS,
                                          .cipher = CORE_CIPHER_AES_128_CBC,
                                          .padding = padding,
                                          .unit = CORE_UNIT_MESSAGE,
                                          .iv = iv,
                                          .direction = direction};
    return open_like(spec, vector);
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
static void check_message(const struct vector *vector, uint32_t from, enum core_direction direction,
                          enum core_iv iv, enum core_padding padding)
{
    const uint32_t stream = open_stream(vector, direction, iv, padding);
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
        check_message(&vectors[i], 0, CORE_DIRECTION_ENCRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE);
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
        check_message(&vectors[i], payload_of(vectors[i].clear), CORE_DIRECTION_ENCRYPT, CORE_IV_CONSTANT,
                      CORE_PADDING_CLEAR);
    }
}

/* ---- records ---- */

#define RECORDS 12

static uint32_t open_records(const struct vector *vector, enum core_direction direction)
{
    const struct core_stream_spec spec = {.packet_bytes = RECORDS * 188,
                                          .burst_packets = 64,
                                          .interval_ns = 20 * CORE_NS_PER_MS,
                                          .latency_ns = 1000 * CORE_NS_PER_MS,
                                          .cipher = CORE_CIPHER_AES_128_CBC,
                                          .padding = CORE_PADDING_CLEAR,
                                          .unit = CORE_UNIT_MESSAGE,
                                          .iv = CORE_IV_CONSTANT,
                                          .direction = direction,
                                          .records = CORE_RECORDS_TS};
    return open_like(spec, vector);
}

static void send_data(uint32_t stream, uint32_t sequence, uint8_t flags, const uint8_t *bytes, uint32_t count)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + RECORDS * 188];
    const struct protocol_header header = {
        .body_bytes = count, .type = PROTOCOL_DATA, .flags = flags, .id = stream, .sequence = sequence};
    protocol_header_write(frame, &header);
    memcpy(frame + PROTOCOL_HEADER_BYTES, bytes, count);
    assert_true(test_client_send(&client, frame, PROTOCOL_HEADER_BYTES + count));
}

static void expect_data(enum protocol_result_status status, const uint8_t *bytes, uint32_t count)
{
    struct test_frame frame;
    test_client_expect(&client, PROTOCOL_RESULT, &frame);
    assert_int_equal(frame.body[0], status);
    assert_int_equal(frame.header.body_bytes, PROTOCOL_RESULT_BYTES + count);
    assert_memory_equal(frame.body + PROTOCOL_RESULT_BYTES, bytes, count);
}

/* `count` records of the vectors, marked as their scrambled forms are; those whose bit is set in `clear` are not, so
 * that they pass, and of some of these others of the formats' ways to have no payload to encrypt are made. */
static void make_records(const struct vector *vectors, size_t kinds, uint32_t count, uint32_t clear,
                         uint8_t *sent, uint8_t *expected)
{
    for (uint32_t i = 0; i < count; i++, sent += 188, expected += 188) {
        const struct vector *vector = &vectors[(i + clear) % kinds];
        const bool passes = (clear >> i & 1) != 0;
        memcpy(sent, vector->clear, 188);
        memcpy(expected, passes ? vector->clear : vector->encrypted, 188);
        sent[3] = expected[3];
        if (passes && i % 3 == 1)
            sent[3] = expected[3] = 0xa0 | (sent[3] & 0xf); /* marked, and no payload */
        if (passes && i % 3 == 2) {
            sent[3] = expected[3] = 0xf0; /* marked, and a payload shorter than a block, or beyond the end */
            sent[4] = expected[4] = (uint8_t)(168 + clear % 80);
        }
    }
}

static void transport_stream_records(void **state)
{
    static struct vector vectors[8];
    static uint8_t sent[RECORDS * 188], expected[RECORDS * 188];
    (void)state;
    const size_t kinds = read_vectors("dvb_cissa.csv", true, vectors, 8);
    const uint32_t stream = open_records(&vectors[0], CORE_DIRECTION_ENCRYPT);
    const uint32_t back = open_records(&vectors[0], CORE_DIRECTION_DECRYPT);
    for (uint32_t clear = 0, sequence = 0; clear < 1u << RECORDS; clear += 1 + clear / 7, sequence++) {
        const uint32_t count = 1 + clear % RECORDS;
        make_records(vectors, kinds, count, clear, sent, expected);
        send_data(stream, sequence, 3, sent, 188 * count);
        expect_data(PROTOCOL_RESULT_OK, expected, 188 * count);
        send_data(back, sequence, 3, expected, 188 * count);
        expect_data(PROTOCOL_RESULT_OK, sent, 188 * count);
    }
}

/* From message `first` on; asked again until the key before is gone. */
static void change_key(uint32_t stream, uint64_t first, const uint8_t key[16])
{
    const struct protocol_rekey rekey = {
        .stream = stream, .key_kind = PROTOCOL_KEY_INLINE, .key = key, .key_bytes = 16, .first = first};
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct test_frame answer;
    do {
        assert_true(test_client_send(&client, frame, protocol_rekey_write(frame, 1, &rekey)));
        TEST_REQUIRE(test_client_next(&client, &answer, TEST_PATIENCE_MS) == TEST_FRAME);
    } while (answer.header.type == PROTOCOL_REFUSED && answer.body[0] == PROTOCOL_REFUSED_BUSY);
    assert_int_equal(answer.header.type, PROTOCOL_REKEYED);
}

/* A pair of streams changes to another key and back, each time this many messages ahead. Under the key of the
 * vectors all is as these say; under the other one it is not, and comes back. */
static void check_keys(const struct vector *vectors, size_t kinds, uint32_t ahead)
{
    static uint8_t sent[RECORDS * 188], expected[RECORDS * 188], got[RECORDS * 188];
    const uint8_t other[16] = {(uint8_t)ahead, 1, 2, 3};
    const uint32_t stream = open_records(&vectors[0], CORE_DIRECTION_ENCRYPT);
    const uint32_t back = open_records(&vectors[0], CORE_DIRECTION_DECRYPT);
    make_records(vectors, kinds, RECORDS, 1u << ahead % RECORDS, sent, expected);
    for (uint32_t sequence = 0, period = ahead + 2; sequence < 6 * period; sequence++) {
        const bool under_other = sequence / period % 2 != 0;
        struct test_frame frame;
        if (sequence % period == 1) { /* from the next multiple of the period on */
            const uint64_t first = sequence - 1 + period;
            change_key(stream, first, under_other ? vectors[0].key : other);
            change_key(back, first, under_other ? vectors[0].key : other);
        }
        send_data(stream, sequence, 3, sent, sizeof sent);
        test_client_expect(&client, PROTOCOL_RESULT, &frame);
        assert_int_equal(frame.header.body_bytes, PROTOCOL_RESULT_BYTES + sizeof got);
        memcpy(got, frame.body + PROTOCOL_RESULT_BYTES, sizeof got);
        assert_int_equal(memcmp(got, expected, sizeof got) != 0, under_other);
        send_data(back, sequence, 3, got, sizeof got);
        expect_data(PROTOCOL_RESULT_OK, sent, sizeof sent);
    }
    uint8_t frame[PROTOCOL_HEADER_BYTES];
    struct test_frame closed;
    for (int i = 0; i < 2; i++) {
        assert_true(test_client_send(&client, frame, protocol_close_write(frame, i == 0 ? stream : back)));
        test_client_expect(&client, PROTOCOL_CLOSED, &closed);
    }
}

static void records_under_changing_keys(void **state)
{
    static struct vector vectors[8];
    (void)state;
    const size_t kinds = read_vectors("dvb_cissa.csv", true, vectors, 8);
    for (uint32_t ahead = 0; ahead < RECORDS; ahead++)
        check_keys(vectors, kinds, ahead);
}

static void wrong_records_are_told(void **state)
{
    static struct vector vectors[8];
    static uint8_t sent[RECORDS * 188], expected[RECORDS * 188];
    struct test_frame frame;
    (void)state;
    const size_t kinds = read_vectors("dvb_cissa.csv", true, vectors, 8);
    const uint32_t stream = open_records(&vectors[0], CORE_DIRECTION_ENCRYPT);
    make_records(vectors, kinds, RECORDS, 0, sent, expected);
    send_data(stream, 0, 3, sent, 187);
    expect_data(PROTOCOL_RESULT_NOT_BLOCKS, NULL, 0);
    send_data(stream, 1, 3, sent, 0);
    expect_data(PROTOCOL_RESULT_NOT_BLOCKS, NULL, 0);
    sent[188] = 0x48;
    send_data(stream, 2, 3, sent, 3 * 188);
    expect_data(PROTOCOL_RESULT_NOT_BLOCKS, NULL, 0);
    send_data(stream, 3, 3, sent, 188);
    expect_data(PROTOCOL_RESULT_OK, expected, 188);
    send_data(stream, 4, PROTOCOL_DATA_FIRST, sent, 188);
    test_client_expect(&client, PROTOCOL_ERROR, &frame);
    assert_int_equal(frame.body[0], PROTOCOL_ERROR_MALFORMED);
}

/* ---- decryption ---- */

static void ipsec_packets_back(void **state)
{
    static struct vector vectors[4];
    (void)state;
    assert_int_equal(read_vectors("rfc3602.csv", false, vectors, 4), 4);
    for (size_t i = 0; i < 4; i++) {
        struct vector back = vectors[i];
        memcpy(back.clear, vectors[i].encrypted, sizeof back.clear);
        memcpy(back.encrypted, vectors[i].clear, sizeof back.encrypted);
        check_message(&back, 0, CORE_DIRECTION_DECRYPT, CORE_IV_EXPLICIT, CORE_PADDING_NONE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"ipsec_packets on a worker", ipsec_packets, set_up_worker, tear_down, NULL},
        {"ipsec_packets on a GPU", ipsec_packets, set_up_gpu, tear_down, NULL},
        {"transport_stream_records on a worker", transport_stream_records, set_up_worker, tear_down, NULL},
        {"transport_stream_records beside a GPU", transport_stream_records, set_up_both, tear_down, NULL},
        {"records_under_changing_keys", records_under_changing_keys, set_up_worker, tear_down, NULL},
        {"wrong_records_are_told", wrong_records_are_told, set_up_worker, tear_down, NULL},
        {"ipsec_packets_back on a worker", ipsec_packets_back, set_up_worker, tear_down, NULL},
        {"ipsec_packets_back beside a GPU", ipsec_packets_back, set_up_both, tear_down, NULL},
        {"transport_stream_packets on a worker", transport_stream_packets, set_up_worker, tear_down, NULL},
        {"transport_stream_packets on a GPU", transport_stream_packets, set_up_gpu, tear_down, NULL}};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
