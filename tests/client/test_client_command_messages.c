/* `millrace encrypt` with messages, records and decryption, against a whole server: what it writes is what OpenSSL
 * makes, and comes back; what makes no sense is refused before anything is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/address.h"
#include "core/value.h"
#include "tests/support/command.h"
#include "tests/support/fake_server.h"
#include "tests/support/server.h"

#define KEY_HEX "000102030405060708090a0b0c0d0e0f"
#define IV_HEX  "f0e0d0c0b0a090807060504030201000"
#define IV      " --iv " IV_HEX
#define FAR     "--latency 1min --key-file F/key "

static const uint8_t key[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t iv[16] = {0xf0, 0xe0, 0xd0, 0xc0, 0xb0, 0xa0, 0x90, 0x80,
                               0x70, 0x60, 0x50, 0x40, 0x30, 0x20, 0x10, 0x00};

static struct test_server server;
static char text[1 << 16];
static uint8_t input[200000], expected[300000], got[300000];

static int start(void **state)
{
    char address[CORE_TEXT_BYTES + 256], pipe[128];
    (void)state;
    test_server_prepare(&server);
    test_server_write(&server, "key", KEY_HEX "\n");
    test_server_start(&server, "client_iv: true\n", &test_profile_real);
    core_address_format(test_server_unix(&server), address, sizeof address);
    snprintf(pipe, sizeof pipe, "%s/pipe", server.folder);
    for (size_t i = 0; i < sizeof input; i++)
        input[i] = (uint8_t)(i * i >> 5);
    return mkfifo(pipe, 0600) || setenv("MILLRACE_SERVER", address, 1);
}

static int stop(void **state)
{
    (void)state;
    return test_server_stop(&server) != 0;
}

/* F/ in the options is the private folder. */
static void expect(const char *options, int status, const char *words)
{
    char line[1536];
    size_t used = (size_t)snprintf(line, sizeof line, "exec 2>&1; " MILLRACE_BINARY_DIR "/client/millrace ");
    for (const char *from = options; *from != '\0'; from++) {
        const bool folder = from[0] == 'F' && from[1] == '/';
        used += (size_t)snprintf(line + used, sizeof line - used, "%.*s",
                                 folder ? (int)strlen(server.folder) : 1, folder ? server.folder : from);
        assert_true(used + 1 < sizeof line);
    }
    const int exit = test_command(line, text, sizeof text);
    if (exit != status || strstr(text, words) == NULL)
        fail_msg("%s: exit %d, not %d with '%s':\n%s", line, exit, status, words, text);
}

static void path_of(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", server.folder, name);
}

static void write_file(const char *name, const uint8_t *bytes, size_t count)
{
    char path[128];
    path_of(name, path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void expect_file(const char *what, const char *name, const uint8_t *bytes, size_t count)
{
    char path[128];
    path_of(name, path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t read = fread(got, 1, sizeof got, file);
    fclose(file);
    if (read != count || memcmp(got, bytes, count) != 0)
        fail_msg("%s: %s has %zu bytes that are not the %zu expected", what, name, read, count);
}

/* What `openssl enc` makes of `count` bytes; without padding the count is whole blocks. */
static size_t openssl(const uint8_t *plain, size_t count, const uint8_t start[16], bool padded,
                      uint8_t *cipher)
{
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int first = 0, last = 0;
    assert_int_equal(EVP_EncryptInit_ex2(context, EVP_aes_128_cbc(), key, start, NULL), 1);
    EVP_CIPHER_CTX_set_padding(context, padded);
    assert_int_equal(EVP_EncryptUpdate(context, cipher, &first, plain, (int)count), 1);
    assert_int_equal(EVP_EncryptFinal_ex(context, cipher + first, &last), 1);
    EVP_CIPHER_CTX_free(context);
    return (size_t)first + (size_t)last;
}

static const size_t lengths[] = {0, 1, 15, 16, 1407, 1408, 1409, 2816, 100000};
#define LENGTHS (sizeof lengths / sizeof lengths[0])

static void a_whole_input_is_what_openssl_makes(void **state)
{
    uint8_t number[16] = {[14] = 1, [15] = 2};
    (void)state;
    for (size_t i = 0; i < LENGTHS; i++) {
        write_file("in", input, lengths[i]);
        size_t bytes = openssl(input, lengths[i], iv, true, expected);
        expect("encrypt " FAR "--unit message" IV " -o F/out F/in", 0, "IV: " IV_HEX);
        expect_file("end", "out", expected, bytes);
        expect("encrypt " FAR "--unit message --padding pkcs7" IV " -o F/out F/in", 0, "IV: ");
        expect_file("pkcs7", "out", expected, bytes);
        expect("encrypt " FAR "--unit message --padding pkcs7" IV " < F/pipe > F/out 2>/dev/null & "
               "cat F/in > F/pipe; wait $!",
               0, "");
        expect_file("a pipe", "out", expected, bytes);
        bytes = openssl(input, lengths[i], number, true, expected);
        expect("encrypt " FAR "--unit message --iv counter --first-unit 258 -o F/out F/in", 0,
               "IV: 00000000000000000000000000000102");
        expect_file("counter", "out", expected, bytes);
    }
}

static void what_openssl_made_comes_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTHS; i++) {
        const size_t bytes = openssl(input, lengths[i], iv, true, expected);
        write_file("in", expected, bytes);
        expect("encrypt " FAR "--decrypt" IV " -o F/out F/in", 0, "packets");
        expect_file("a stream", "out", input, lengths[i]);
        expect("encrypt " FAR "--decrypt --unit message" IV " -o F/out F/in", 0, "packets");
        expect_file("a message", "out", input, lengths[i]);
        expect("encrypt " FAR "--decrypt --unit message" IV " < F/pipe 2>/dev/null > F/out & "
               "cat F/in > F/pipe; wait $!",
               0, "");
        expect_file("a pipe", "out", input, lengths[i]);
    }
}

/* A block at the end that is no padding is told, and kept. */
static void a_padding_that_is_none_is_told(void **state)
{
    static const uint8_t ends[][2] = {{0, 0}, {17, 17}, {1, 2}, {255, 16}};
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        uint8_t plain[64];
        memset(plain, 7, sizeof plain);
        plain[62] = ends[i][0];
        plain[63] = ends[i][1];
        write_file("in", expected, openssl(plain, sizeof plain, iv, false, expected));
        expect("encrypt " FAR "--decrypt" IV " -o F/out F/in", 1, "there is no padding at the end");
        expect_file("wrong padding", "out", plain, sizeof plain);
        expect("encrypt " FAR "--decrypt --padding none" IV " -o F/out F/in", 0, "");
        expect_file("no padding", "out", plain, sizeof plain);
    }
    write_file("in", input, 0);
    expect("encrypt " FAR "--decrypt" IV " -o F/out F/in", 1, "there is no padding at the end");
}

/* Messages of two packets of 160 bytes; the last one is of what is left. */
static void packets_make_messages(void **state)
{
    uint8_t number[16] = {0};
    size_t bytes = 0;
    (void)state;
    write_file("in", input, 1000);
    for (size_t at = 0; at < 1000; at += 320, number[15]++)
        bytes += openssl(input + at, at + 320 <= 1000 ? 320 : 1000 - at, number, true, expected + bytes);
    expect("encrypt " FAR
           "--unit message --iv counter --padding pkcs7 -p 160 --message-packets 2 -o F/out F/in",
           0, "7 packets");
    expect_file("two a message", "out", expected, bytes);
    for (size_t at = bytes = 0; at < 960; at += 160)
        bytes += openssl(input + at, 160, iv, false, expected + bytes);
    write_file("in", input, 960);
    expect("encrypt " FAR "--unit message --padding none -p 160 --message-packets 1" IV " -o F/out F/in", 0,
           "6 packets");
    expect_file("one a message", "out", expected, bytes);
    write_file("in", expected, bytes);
    expect("encrypt " FAR "--unit message --padding none -p 160 --message-packets 1" IV
           " --decrypt -o F/out F/in",
           0, "6 packets");
    expect_file("one a message, back", "out", input, 960);
    /* without padding the last packet of all is told apart, however the input is cut */
    bytes = openssl(input, 960, iv, false, expected);
    write_file("in", input, 960);
    expect("encrypt " FAR "--unit message --padding none -p 160 --message-packets 4 --iv chain" IV
           " -o F/out F/in",
           0, "6 packets");
    expect_file("a chain of messages", "out", expected, bytes);
}

static void random_ivs_are_written_and_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTHS; i++) {
        write_file("in", input, lengths[i]);
        expect("encrypt " FAR "--unit message --iv random -o F/out F/in", 0, "IV: ");
        expect("encrypt " FAR "--unit message --iv explicit --decrypt -o F/back F/out", 0, "packets");
        assert_null(strstr(text, "IV: "));
        expect_file("random", "back", input, lengths[i]);
    }
    /* an IV that its sender brings does not come back */
    write_file("in", iv, 16);
    expect("encrypt " FAR "--unit message --iv explicit -o F/out F/in < F/in", 0, "");
    expect_file("explicit", "out", expected, openssl(input, 0, iv, true, expected));
}

/* Every tenth block as in a chain of their own, what is left passes. */
static void patterns_leave_blocks_as_they_are(void **state)
{
    static uint8_t some[16 * 100], made[16 * 100 + 16];
    size_t count = 0;
    (void)state;
    write_file("in", input, 5007);
    for (size_t at = 0; at + 16 <= 5007; at += 160, count += 16)
        memcpy(some + count, input + at, 16);
    (void)openssl(some, count, iv, false, made);
    memcpy(expected, input, 5007);
    for (size_t at = 0, from = 0; at + 16 <= 5007; at += 160, from += 16)
        memcpy(expected + at, made + from, 16);
    expect("encrypt " FAR "--unit message --pattern 1:9" IV " -o F/out F/in", 0, "4 packets");
    expect_file("cbcs", "out", expected, 5007);
    expect("encrypt " FAR "--unit message --pattern 1:9" IV " --decrypt -o F/back F/out", 0, "4 packets");
    expect_file("cbcs, back", "back", input, 5007);
    write_file("in", input, 9); /* less than a block passes whole */
    expect("encrypt " FAR "--unit message --padding clear" IV " -o F/out F/in", 0, "1 packets, 9 bytes");
    expect_file("a clear end", "out", input, 9);
}

/* 20 records, of which every other one is to be scrambled. */
static void records_are_encrypted_one_by_one(void **state)
{
    static uint8_t records[20 * 188];
    (void)state;
    memcpy(records, input, sizeof records);
    memcpy(expected, input, sizeof records);
    for (size_t at = 0; at < sizeof records; at += 188) {
        records[at] = expected[at] = 0x47;
        records[at + 3] = expected[at + 3] = at % 376 == 0 ? 0x90 : 0x10;
        if (at % 376 == 0)
            (void)openssl(records + at + 4, 176, iv, false, expected + at + 4);
        memcpy(expected + at + 180, records + at + 180, 8);
    }
    write_file("in", records, sizeof records);
    expect("encrypt " FAR "--unit message --records ts" IV " -o F/out F/in", 0, "3 packets");
    expect_file("records", "out", expected, sizeof records);
    expect("encrypt " FAR "--unit message --records ts --decrypt" IV " -o F/back F/out", 0, "3 packets");
    expect_file("records, back", "back", records, sizeof records);
    write_file("in", records, sizeof records - 1);
    expect("encrypt " FAR "--unit message --records ts" IV " -o F/out F/in", 2,
           "/in has 3759 bytes, and with --records=ts it must be a multiple of 188");
    expect("encrypt " FAR "--unit message --records ts" IV
           " < F/pipe 2>&1 > F/out & cat F/in > F/pipe; wait $!",
           1, "packet 2 was not encrypted: not blocks (with --records=ts the input must be transport-stream");
    assert_null(strstr(text, "go on with"));
}

/* ---- what is sent ---- */

/* Keeps what each DATA is of a message, F, L, B for both or -, and sends all back as it came. */
static void keep_flags(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX], frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_opened opened = {.stream = 1, .unit = PROTOCOL_UNIT_CPU, .bound_ns = 1000};
    const struct protocol_result result = {.status = PROTOCOL_RESULT_OK, .flags = PROTOCOL_RESULT_MET};
    struct protocol_closed closed = {.reason = PROTOCOL_CLOSE_ASKED};
    struct protocol_header header;
    char *flags = argument;
    if (!fake_welcome(descriptor) || !fake_await_frame(descriptor, PROTOCOL_OPEN, &header, body) ||
        !fake_write(descriptor, frame, protocol_opened_write(PROTOCOL_VERSION, frame, header.id, &opened)))
        return;
    while (fake_read_frame(descriptor, &header, body) && header.type == PROTOCOL_DATA) {
        *flags++ = "-FLB"[header.flags];
        *flags = '\0';
        closed.packets++;
        protocol_result_write(frame, 1, header.sequence, &result, header.body_bytes);
        if (!fake_write(descriptor, frame, PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES) ||
            !fake_write(descriptor, body, header.body_bytes))
            return;
    }
    (void)fake_write(descriptor, frame, protocol_closed_write(frame, 1, &closed));
}

/* docs/protocol.md, section 5: a message begins with FIRST and ends with LAST, wherever the input ends. */
static void messages_begin_and_end(void **state)
{
    static const struct {
        const char *options, *flags;
        size_t bytes;
    } cases[] = {
        {"--padding none", "---", 48},
        {"--unit message", "F-L", 47}, /* padded by the command: at 48 there is a packet of padding */
        {"--unit message", "F--L", 48},
        {"--unit message", "B", 0},
        {"--unit message --padding none", "F-L", 48},
        {"--unit message --padding none", "B", 16},
        {"--unit message --padding none --message-packets 2", "FLB", 48},
        {"--unit message --padding none --message-packets 2", "FLFL", 64},
        {"--unit message --padding none --message-packets 1", "BBB", 48},
        {"--unit message --padding pkcs7", "F--L", 48},
        {"--unit message --padding pkcs7", "F-L", 47},
        {"--unit message --padding pkcs7 --message-packets 3", "F-L", 48},
        {"--unit message --padding pkcs7 --message-packets 3", "F-LFL", 64},
        {"--unit message --padding pkcs7 --message-packets 1", "", 0},
        {"--unit message --padding clear", "F--L", 48},
        {"--unit message --pattern 1:9 --message-packets 2", "FLB", 33},
        {"--unit message --decrypt --padding none --iv " IV_HEX, "F-L", 48},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int piped = 0; piped < 2; piped++) {
            char flags[64] = "", options[512];
            struct fake_server fake;
            fake_server_start(&fake, keep_flags, flags);
            write_file("in", input, cases[i].bytes);
            snprintf(options, sizeof options, "encrypt %s " FAR "-s %s -p 16 --rate 10M -o F/out %s",
                     cases[i].options, fake.address,
                     piped ? "< F/pipe & cat F/in > F/pipe; wait $!" : "F/in");
            expect(options, 0, "packets");
            fake_server_join(&fake);
            if (strcmp(flags, cases[i].flags) != 0)
                fail_msg("%s: flags '%s', not '%s'", options, flags, cases[i].flags);
        }
}

/* ---- refusals ---- */

static void what_makes_no_sense_is_refused(void **state)
{
    static const struct {
        const char *options, *words;
    } cases[] = {
        {"--unit packet", "--unit packet: give stream or message"},
        {"--pattern 1-9", "--pattern 1-9: give blocks"},
        {"--records rtp", "--records rtp: give ts or none"},
        {"--first-unit x", "--first-unit x: give a number"},
        {"--iv nonce", "--iv: give 32 hexadecimal digits, or chain, constant"},
        {"--padding zero", "--padding zero: give end, pkcs7, clear or none"},
        {"--unit message --message-packets 0", "--message-packets 0: give a number"},
        {"--iv counter", "iv is counter, which a stream of unit message can have alone"},
        {"--padding clear", "padding is clear, which a stream of unit message can have alone"},
        {"--pattern 1:9", "--pattern is for --unit=message"},
        {"--records ts" IV, "--records is for --unit=message"},
        {"--unit message --records ts", "records are ts, which go with unit message, iv constant"},
        {"--unit message --records ts --padding end" IV, "--padding=end does not go together with --records"},
        {"--unit message --records ts -p 1408" IV, "packet_bytes is 1408, must be a multiple of 188"},
        {"--unit message --records ts --message-packets 2" IV, "with --records every packet is a message"},
        {"--unit message --pattern 1:9 --padding end", "--padding=end does not go together with --pattern"},
        {"--unit message --pattern 1:9 --padding pkcs7", "padding is pkcs7, which does not go together with"},
        {"--unit message --first-unit 7", "first_unit is 7, must be 0 with iv chain"},
        {"--unit message --iv constant", "--iv=constant: which?"},
        {"--unit message --iv counter" IV, "--iv=counter: no other IV goes together with it"},
        {"--unit message --iv explicit -p 16", "must be more than the 16 of an explicit IV"},
        {"--unit message --padding pkcs7 -p 100" IV,
         "it must be a multiple of 16, at least 16, where a message"},
        {"--unit message --padding clear --iv explicit -p 17",
         "multiple of 16, at least 32, where a message"},
        {"--decrypt", "--decrypt: give --iv, that with which it was encrypted"},
        {"--decrypt --padding pkcs7" IV, "padding is pkcs7, which is for encryption only"},
        {"--decrypt --unit message --iv random", "iv is random, which is for encryption only"},
        {"--message-packets 2", "--message-packets is for --unit=message"},
        {"--unit message --skip 1" IV, "--skip is not for --unit=message and --decrypt"},
        {"--decrypt --skip 1" IV, "--skip is not for --unit=message and --decrypt"},
        {"--decrypt" IV " -o F/none F/odd",
         "/odd has 17 bytes, and what is decrypted must be a multiple of 16"},
    };
    char path[128];
    (void)state;
    write_file("odd", input, 17);
    path_of("none", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char options[256];
        snprintf(options, sizeof options, "encrypt " FAR "%s%s", cases[i].options,
                 strstr(cases[i].options, "F/odd") ? "" : " -o F/none F/in");
        expect(options, 2, cases[i].words);
        if (access(path, F_OK) == 0)
            fail_msg("%s: an output was made", options);
    }
    expect("query --unit message --iv counter --padding pkcs7", 0, "admitted");
    expect("query --unit message --records ts --decrypt" IV, 0, "admitted");
    expect("query --records ts" IV, 2, "--records is for --unit=message");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_input_is_what_openssl_makes),
        cmocka_unit_test(what_openssl_made_comes_back),
        cmocka_unit_test(a_padding_that_is_none_is_told),
        cmocka_unit_test(packets_make_messages),
        cmocka_unit_test(random_ivs_are_written_and_read),
        cmocka_unit_test(patterns_leave_blocks_as_they_are),
        cmocka_unit_test(records_are_encrypted_one_by_one),
        cmocka_unit_test(messages_begin_and_end),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
