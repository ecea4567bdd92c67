/* The library against a whole server: many streams at once, decrypted by OpenSSL; queries, offers, stopping.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "client/millrace.h"
#include "tests/support/server.h"

#define LONG_MS      20000
#define STREAMS      200
#define PACKETS      50
#define PACKET_BYTES 700

static const uint8_t key[16] = "0123456789abcdef";

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = PACKET_BYTES,
    .burst_packets = PACKETS,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 60 * CORE_NS_PER_S,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .padding = MILLRACE_PADDING_PKCS7,
    .key_kind = MILLRACE_KEY_INLINE,
    .key = key,
    .key_bytes = sizeof key,
};

static struct millrace *connect_to(const struct test_server *server)
{
    char address[300];
    struct millrace *connection;
    struct core_error error;
    core_address_format(test_server_unix(server), address, sizeof address);
    if (millrace_connect(address, NULL, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    return connection;
}

/* ---- many streams ---- */

struct stream {
    uint32_t next;  /* sequence of the next RESULT */
    uint8_t iv[16]; /* to decrypt it with */
};

struct receiver {
    struct stream streams[STREAMS + 1]; /* by id: the server numbers them from 1 */
    EVP_CIPHER_CTX *context;
    unsigned opened, results, closed;
};

static uint32_t packet_length(uint32_t stream, uint32_t sequence)
{
    return (stream * 7919 + sequence * 104729) % (PACKET_BYTES + 1);
}

static void make_packet(uint8_t *packet, uint32_t stream, uint32_t sequence)
{
    for (uint32_t i = 0; i < PACKET_BYTES; i++)
        packet[i] = (uint8_t)(stream + sequence * 3 + i);
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct receiver *receiver = argument;
    (void)request;
    assert_in_range(opened->stream, 1, STREAMS);
    assert_true(opened->bound_ns <= contract.latency_ns);
    memcpy(receiver->streams[opened->stream].iv, opened->iv, 16);
    receiver->opened++;
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct receiver *receiver = argument;
    struct stream *stream = &receiver->streams[result->stream];
    uint8_t plain[PACKET_BYTES + 32], expected[PACKET_BYTES];
    int first = 0, last = 0;
    assert_int_equal(result->status, MILLRACE_RESULT_OK);
    assert_int_equal(result->sequence, stream->next++);
    assert_int_equal(EVP_DecryptInit_ex2(receiver->context, NULL, NULL, stream->iv, NULL), 1);
    assert_int_equal(
        EVP_DecryptUpdate(receiver->context, plain, &first, result->ciphertext, (int)result->bytes), 1);
    assert_int_equal(EVP_DecryptFinal_ex(receiver->context, plain + first, &last), 1);
    make_packet(expected, result->stream, result->sequence);
    assert_int_equal(first + last, packet_length(result->stream, result->sequence));
    assert_memory_equal(plain, expected, (size_t)first + (size_t)last);
    memcpy(stream->iv, result->ciphertext + result->bytes - 16, 16);
    receiver->results++;
}

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct receiver *receiver = argument;
    assert_int_equal(closed->packets, receiver->streams[stream].next);
    assert_int_equal(closed->met + closed->missed, closed->packets);
    receiver->closed++;
}

static void process_until(struct millrace *connection, const unsigned *counter, unsigned value)
{
    struct core_error error;
    while (*counter < value) {
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = millrace_events(connection)};
        assert_int_equal(poll(&ready, 1, LONG_MS), 1);
        if (millrace_process(connection, 0, error.text) != MILLRACE_OK)
            fail_msg("%s", error.text);
    }
}

static void send_all(struct millrace *connection)
{
    for (uint32_t sequence = 0; sequence < PACKETS; sequence++) {
        for (uint32_t stream = 1; stream <= STREAMS; stream++) {
            uint8_t packet[PACKET_BYTES];
            make_packet(packet, stream, sequence);
            assert_int_equal(
                millrace_data(connection, stream, packet, packet_length(stream, sequence), NULL, NULL),
                MILLRACE_OK);
        }
    }
}

static void test_many_streams(void **state)
{
    (void)state;
    struct test_server server = {0};
    static struct receiver receiver;
    test_server_start(&server, "", &test_profile_generous);
    struct millrace *connection = connect_to(&server);
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-128-CBC", NULL);
    receiver.context = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_DecryptInit_ex2(receiver.context, cipher, key, NULL, NULL), 1);
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_opened = on_opened,
                                                 .on_result = on_result,
                                                 .on_closed = on_closed,
                                                 .argument = &receiver};
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    for (unsigned i = 0; i < STREAMS; i++)
        assert_int_equal(millrace_send_open(connection, &contract, NULL, NULL), MILLRACE_OK);
    process_until(connection, &receiver.opened, STREAMS);
    send_all(connection);
    process_until(connection, &receiver.results, STREAMS * PACKETS);
    for (uint32_t stream = 1; stream <= STREAMS; stream++)
        assert_int_equal(millrace_send_close(connection, stream, NULL), MILLRACE_OK);
    process_until(connection, &receiver.closed, STREAMS);
    EVP_CIPHER_CTX_free(receiver.context);
    EVP_CIPHER_free(cipher);
    millrace_disconnect(connection);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- refusals ---- */

static void test_offer_is_accepted(void **state)
{
    (void)state;
    struct test_server server = {0};
    test_server_start(&server, "", &test_profile_real);
    struct millrace *connection = connect_to(&server);
    struct millrace_open open = contract;
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_refused refused = {.size = sizeof refused};
    struct core_error error;
    open.burst_packets = 1;
    open.interval_ns = 2 * CORE_NS_PER_US;
    open.latency_ns = 20 * CORE_NS_PER_MS;
    assert_int_equal(millrace_query(connection, &open, LONG_MS, &opened, &refused, error.text),
                     MILLRACE_REFUSED);
    assert_int_equal(refused.code, MILLRACE_REFUSED_CAPACITY);
    assert_true(refused.offer_interval_ns > open.interval_ns);
    open.interval_ns = refused.offer_interval_ns;
    if (millrace_open_stream(connection, &open, LONG_MS, &opened, &refused, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_true(opened.stream > 0 && opened.bound_ns <= open.latency_ns);
    millrace_disconnect(connection);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- the server stops while a call waits ---- */

static void *stop(void *server)
{
    test_server_stop(server);
    return NULL;
}

static void test_server_stops(void **state)
{
    (void)state;
    struct test_server server = {0};
    pthread_t stopper;
    test_server_start(&server, "", &test_profile_generous);
    struct millrace *connection = connect_to(&server);
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    core_ns round_trip_ns;
    assert_int_equal(millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, NULL), MILLRACE_OK);
    assert_int_equal(pthread_create(&stopper, NULL, stop, &server), 0);
    while (millrace_ping(connection, LONG_MS, &round_trip_ns, error.text) == MILLRACE_OK)
        continue;
    assert_non_null(strstr(error.text, "shutdown"));
    pthread_join(stopper, NULL);
    millrace_disconnect(connection);
}

/* ---- messages ---- */

static void expect_decrypted(const uint8_t iv[16], const uint8_t *ciphertext, uint32_t bytes,
                             const char *plain)
{
    uint8_t got[256];
    int done = 0, last = 0;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_DecryptInit_ex(context, EVP_aes_128_cbc(), NULL, key, iv), 1);
    assert_int_equal(EVP_DecryptUpdate(context, got, &done, ciphertext, (int)bytes), 1);
    assert_int_equal(EVP_DecryptFinal_ex(context, got + done, &last), 1);
    EVP_CIPHER_CTX_free(context);
    assert_int_equal(done + last, strlen(plain));
    assert_memory_equal(got, plain, strlen(plain));
}

struct parts {
    uint8_t iv[16], ciphertext[256];
    uint32_t bytes, results;
};

static void on_part(void *argument, const struct millrace_result *result)
{
    struct parts *parts = argument;
    assert_int_equal(result->status, MILLRACE_RESULT_OK);
    assert_int_equal(result->iv != NULL, parts->results == 0);
    if (result->iv != NULL)
        memcpy(parts->iv, result->iv, 16);
    memcpy(parts->ciphertext + parts->bytes, result->ciphertext, result->bytes);
    parts->bytes += result->bytes;
    parts->results++;
}

static uint32_t open_messages(struct millrace *connection, enum millrace_iv_source iv)
{
    struct millrace_open open = contract;
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    open.unit = MILLRACE_UNIT_MESSAGE;
    open.iv_source = iv;
    open.first_unit = iv == MILLRACE_IV_COUNTER ? 41 : 0;
    if (millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    return opened.stream;
}

static void messages_whole_and_in_parts(void **state)
{
    static const char text[] = "forty-one bytes of a message, and no more";
    struct test_server server = {0};
    struct parts parts = {.bytes = 0};
    struct millrace_result result = {.size = sizeof result};
    struct core_error error;
    uint8_t ciphertext[256], iv[16] = {0};
    uint32_t bytes;
    (void)state;
    test_server_start(&server, "client_iv: true\n", &test_profile_generous);
    struct millrace *connection = connect_to(&server);
    const uint32_t counted = open_messages(connection, MILLRACE_IV_COUNTER);
    for (iv[15] = 41; iv[15] < 44; iv[15]++) {
        assert_int_equal(millrace_encrypt(connection, counted, text, sizeof text - 1, LONG_MS, ciphertext,
                                          &bytes, &result, error.text),
                         MILLRACE_OK);
        expect_decrypted(iv, ciphertext, bytes, text);
    }
    const uint32_t drawn = open_messages(connection, MILLRACE_IV_RANDOM);
    assert_int_equal(millrace_encrypt(connection, drawn, text, sizeof text - 1, LONG_MS, ciphertext, &bytes,
                                      &result, error.text),
                     MILLRACE_OK);
    expect_decrypted(ciphertext, ciphertext + 16, bytes - 16, text);

    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_result = on_part, .argument = &parts};
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    assert_int_equal(millrace_data_part(connection, drawn, text, 16, 0, NULL, error.text), MILLRACE_INVALID);
    assert_non_null(strstr(error.text, "no message of stream 2 has begun"));
    assert_int_equal(millrace_data_part(connection, drawn, text, 16, 4, NULL, error.text), MILLRACE_INVALID);
    assert_int_equal(millrace_data_part(connection, drawn, text, 16, MILLRACE_DATA_FIRST, NULL, error.text),
                     MILLRACE_OK);
    assert_int_equal(millrace_data(connection, drawn, text, 16, NULL, error.text), MILLRACE_INVALID);
    assert_non_null(strstr(error.text, "a message of stream 2 has begun, and has not ended"));
    assert_int_equal(millrace_data_part(connection, drawn, text + 16, 16, 0, NULL, error.text), MILLRACE_OK);
    assert_int_equal(millrace_data_part(connection, drawn, text + 32, sizeof text - 1 - 32,
                                        MILLRACE_DATA_LAST, NULL, error.text),
                     MILLRACE_OK);
    while (parts.results < 3) {
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = millrace_events(connection)};
        assert_true(poll(&ready, 1, LONG_MS) > 0);
        assert_int_equal(millrace_process(connection, 0, error.text), MILLRACE_OK);
    }
    expect_decrypted(parts.iv, parts.ciphertext, parts.bytes, text);

    struct millrace_open opens[3] = {contract, contract, contract};
    struct millrace_opened whole = {.size = sizeof whole}, plain = {.size = sizeof plain};
    for (unsigned i = 0; i < 3; i++)
        opens[i].unit = MILLRACE_UNIT_MESSAGE;
    opens[0].iv_source = MILLRACE_IV_COUNTER; /* whose MAC is checked */
    opens[0].mac = MILLRACE_MAC_HMAC_SHA_256_128;
    opens[0].padding = MILLRACE_PADDING_NONE;
    opens[0].packet_bytes = 64;
    opens[0].direction = MILLRACE_DIRECTION_DECRYPT;
    opens[1].iv_source = MILLRACE_IV_CONSTANT; /* with records */
    opens[1].has_iv = true;
    opens[1].records = MILLRACE_RECORDS_TS;
    opens[1].padding = MILLRACE_PADDING_CLEAR;
    opens[1].packet_bytes = 188;
    opens[2].message_packets = 1;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(millrace_open_stream(connection, &opens[i], LONG_MS, &whole, NULL, error.text),
                         MILLRACE_OK);
        for (unsigned flags = 0; flags < (MILLRACE_DATA_FIRST | MILLRACE_DATA_LAST); flags++) {
            assert_int_equal(millrace_data_part(connection, whole.stream, text, 16, flags, NULL, error.text),
                             MILLRACE_INVALID);
            assert_non_null(strstr(error.text, "is one packet, by its message_packets, records or MAC"));
        }
    }
    assert_int_equal(millrace_data_part(connection, whole.stream, text, 16,
                                        MILLRACE_DATA_FIRST | MILLRACE_DATA_LAST, NULL, error.text),
                     MILLRACE_OK);
    assert_int_equal(millrace_data(connection, whole.stream, text, 16, NULL, error.text), MILLRACE_OK);

    assert_int_equal(millrace_open_stream(connection, &contract, LONG_MS, &plain, NULL, error.text),
                     MILLRACE_OK);
    assert_int_equal(
        millrace_data_part(connection, plain.stream, text, 16, MILLRACE_DATA_FIRST, NULL, error.text),
        MILLRACE_INVALID);
    assert_non_null(strstr(error.text, "has no messages"));
    assert_int_equal(millrace_data_part(connection, plain.stream, text, 16, 0, NULL, error.text),
                     MILLRACE_OK);
    millrace_disconnect(connection);
    (void)test_server_stop(&server);
}

/* An IV and a block of padding come back with the longest packet. */
static void longest_message_in_one_packet(void **state)
{
    enum { LONGEST_BYTES = 1024 };
    static const uint8_t plain[LONGEST_BYTES];
    uint8_t ciphertext[LONGEST_BYTES + 32];
    struct test_server server = {0};
    struct millrace_open open = contract;
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_result result = {.size = sizeof result};
    struct core_error error = {""};
    uint32_t bytes;
    (void)state;
    open.packet_bytes = LONGEST_BYTES;
    open.padding = MILLRACE_PADDING_PKCS7;
    open.unit = MILLRACE_UNIT_MESSAGE;
    open.iv_source = MILLRACE_IV_RANDOM;
    open.has_iv = false;
    test_server_start(&server, "limits: {packet_bytes: 1024}\n", &test_profile_generous);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_OK);
    if (millrace_encrypt(connection, opened.stream, plain, sizeof plain, LONG_MS, ciphertext, &bytes, &result,
                         error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(bytes, sizeof ciphertext);
    millrace_disconnect(connection);
    (void)test_server_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_offer_is_accepted),
        cmocka_unit_test(test_server_stops),
        cmocka_unit_test(messages_whole_and_in_parts),
        cmocka_unit_test(longest_message_in_one_packet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
