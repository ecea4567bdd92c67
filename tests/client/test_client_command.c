/* The `millrace` command: its exit statuses, and its subcommands against a whole server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/command.h"
#include "tests/support/fake_server.h"
#include "tests/support/server.h"

#define KEY_HEX "000102030405060708090a0b0c0d0e0f"

/* ---- running the command ---- */

static char folder[] = "/tmp/millrace-command-XXXXXX";
static char output[1 << 16]; /* of the last run: both standard streams */

/* `arguments` are a shell's words; F/ in them stands for the test's folder. Returns the exit status. */
static int run(const char *arguments)
{
    char command[2048];
    size_t used =
        (size_t)snprintf(command, sizeof command, "exec 2>&1; %s/client/millrace ", MILLRACE_BINARY_DIR);
    for (const char *from = arguments; *from != '\0'; from++) {
        if (from[0] == 'F' && from[1] == '/')
            used += (size_t)snprintf(command + used, sizeof command - used, "%s", folder);
        else
            command[used++] = *from;
        assert_true(used + 1 < sizeof command);
        command[used] = '\0';
    }
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t bytes = fread(output, 1, sizeof output - 1, pipe);
    output[bytes] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *arguments, int exit, const char *words)
{
    int status = run(arguments);
    if (status != exit || strstr(output, words) == NULL)
        fail_msg("millrace %s: exit %d, expected %d with \"%s\":\n%s", arguments, status, exit, words,
                 output);
}

static void write_file(const char *name, const void *bytes, size_t count)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static size_t read_file(const char *name, uint8_t *bytes, size_t room)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

static void unlink_output(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/out", folder);
    unlink(path);
}

static bool has_output(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/out", folder);
    return access(path, F_OK) == 0;
}

static void test_usage(void **state)
{
    (void)state;
    expect("", 2, "Usage: millrace COMMAND");
    expect("frobnicate", 2, "no command \"frobnicate\"");
    expect("--help", 0, "Exit status");
    expect("--version", 0, "millrace ");
    expect("encrypt --help", 0, "3 the server");
    expect("ping --count 0", 2, "--count 0");
    expect("ping --timeout 5x", 2, "--timeout 5x");
    expect("query --rate slow", 2, "--rate slow");
    expect("query --latency 20", 2, "--latency 20");
    expect("query --packet-bytes 2MiB", 2, "--packet-bytes 2MiB");
    expect("query --burst 0", 2, "--burst 0");
    expect("query --cipher rot13", 2, "aes-128-cbc");
    expect("query --padding some", 2, "pkcs7");
    expect("query --key 0011", 2, "hexadecimal");
    expect("query --iv 0011", 2, "32 hexadecimal");
    expect("query --iv 0011zz000000000000000000000000ff", 2, "32 hexadecimal");
    expect("query --key 000102030405060708090a0b0c0d0e0g", 2, "hexadecimal");
    expect("query --key-name ''", 2, "--key-name");
    expect("query --key-name 0123456789012345678901234567890123456789012345678901234567890123456789", 2,
           "--key-name");
    expect("query --burst 99999999", 2, "--burst 99999999");
    expect("query --rate 0", 2, "--rate 0");
    expect("ping --count many", 2, "--count many");
    expect("ping --interval soon", 2, "--interval soon");
    expect("encrypt --reconnect=soon F/in", 2, "--reconnect");
    expect("encrypt --reconnect=1us F/in", 2, "--reconnect");
    expect("query --key-file F/none", 2, "/none: no file");
    write_file("loose", KEY_HEX, 32);
    expect("query --key-file F/loose --ca F/none", 2, "--server-name are for a tls: address, not for unix:");
    expect("ping -s tcp:127.0.0.1:1 --certificate-key F/none", 2,
           "are for a tls: address, not for tcp:127.0.0.1:1");
    char loose[128];
    snprintf(loose, sizeof loose, "%s/loose", folder);
    assert_int_equal(chmod(loose, 0644), 0);
    expect("query --key-file F/loose", 2, "its mode 0644 lets others in");
    assert_int_equal(unlink(loose), 0);
    expect("hls", 2, "give --output");
    expect("hls -o F/.", 2, "give --output");
    expect("hls -o F/. -i F/.", 2, "give --keys and --key-uri, or --key-info");
    expect("hls -o F/. -i F/. --key-info x --keys F/. --key-uri {id}", 2, "give --keys");
    expect("hls -o F/. -i F/. --keys F/. --key-uri http://x/", 2, "{id} must be in it");
    expect("hls -o F/. -i F/. --rotate 0", 2, " --rotate 0: give a whole number");
    expect("hls -o F/. -i F/. --wait soon", 2, " --wait soon");
    expect("hls -o F/. -i F/. --bandwidth 0", 2, " --bandwidth 0");
    expect("hls -o F/. -i F/. --memory 1", 2, " --memory 1");
    expect("hls -o F/none -i F/. --keys F/. --key-uri {id}", 2, "none: No such file");
    expect("hls -o F/. -i F/none --keys F/. --key-uri {id}", 2, "none: No such file");
    expect("hls -o F/. -i F/. --keys F/. --key-uri {id}", 2, "apart from --input and --keys");
    expect("hls -o F/. -i / --keys F/. --key-uri {id}", 2, "apart from --input and --keys");
    expect("hls -o F/. -l tcp:0.0.0.0:80 --key-info F/none", 2, "listen on unix:, tcp:127.0.0.1");
    expect("encrypt F/in", 2, "give a key");
    expect("encrypt --key-name a --key " KEY_HEX, 2, "one of --key");
    expect("encrypt --key-name a one two", 2, "one input file");
    expect("encrypt --key-name a --skip -1", 2, "--skip");
    char *admin = strdup(getenv("MILLRACE_ADMIN"));
    unsetenv("MILLRACE_ADMIN");
    expect("status", 2, "--admin");
    setenv("MILLRACE_ADMIN", admin, 1);
    free(admin);
}

static void test_no_server(void **state)
{
    (void)state;
    expect("ping -s unix:F/none", 1, "is the server running?");
    expect("query -s gopher:there", 1, "must begin with");
    expect("encrypt -s unix:F/none --key-name k F/none", 1, "is the server running?");
    expect("status --admin unix:F/none", 1, "is the server running?");
    expect("status --admin tls:host:1", 1, "plain");
}

/* ---- a whole server ---- */

static struct test_server server;

static int start_server(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    test_server_prepare(&server);
    test_server_write(&server, "keys", "camera aes-128-cbc " KEY_HEX " client-iv\n");
    test_server_start(&server, "client_iv: true\nkeyring: keys\nadmin: 'unix:admin'\n", &test_profile_real);
    char address[CORE_TEXT_BYTES + 256], admin[128];
    core_address_format(test_server_unix(&server), address, sizeof address);
    snprintf(admin, sizeof admin, "unix:%s/admin", server.folder);
    write_file("key", KEY_HEX "\n", 33);
    char pipe[128];
    snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    return setenv("MILLRACE_SERVER", address, 1) || setenv("MILLRACE_ADMIN", admin, 1);
}

static int stop_server(void **state)
{
    (void)state;
    static const char *const names[] = {"in", "out", "whole", "key", "pipe"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return test_server_stop(&server) != 0 || rmdir(folder) != 0;
}

static void test_ping(void **state)
{
    (void)state;
    expect("ping -c 2 -i 1ms", 0, "2 answers");
}

/* The one object that the command has said. */
static json_t *said(const char *arguments, int exit)
{
    json_error_t why;
    assert_int_equal(run(arguments), exit);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, &why);
    if (object == NULL)
        fail_msg("%s: %s: %s", arguments, why.text, output);
    return object;
}

static void test_ping_json(void **state)
{
    (void)state;
    json_t *answer = said("ping -c 3 -i 1ms --json", 0);
    assert_int_equal(json_integer_value(json_object_get(answer, "answers")), 3);
    assert_true(json_number_value(json_object_get(json_object_get(answer, "round_trip_us"), "min")) > 0);
    json_decref(answer);
}

static void test_query(void **state)
{
    (void)state;
    expect("query --rate 1Mbit/s", 0, "admitted: 1 Mbit/s");
    expect("query", 0, "admitted: "); /* the best rate there is, and it is admitted */
    expect("query --rate 100Gbit/s", 2,
           "--rate: with packets of 1408 bytes (--packet-bytes) it can be 3.13 bit/s to 11.3 Gbit/s, not 100 "
           "Gbit/s");
    expect("query --rate 1bit/s", 2, "not 1 bit/s");
    expect("query --latency 1us", 2, "--latency: it can be 10 us to 3600 s, not 1 us");
    expect("query --latency 61min", 2, "not 3660 s");
    expect("query --rate 1400Mbit/s --latency 1ms", 3, "refused (capacity)");
    assert_non_null(strstr(output, "the server would now admit up to"));
    expect("query --packet-bytes 100", 2,
           "multiple of 16 with --padding=end (the default), not 100; give 112");
    expect("query --packet-bytes 100 --padding none", 2, "with --padding=none, not 100");
    expect("query --packet-bytes 100 --padding pkcs7 --rate 1M", 0, "admitted");
    expect("query --key-name nobody", 3, "refused (key)");
    expect("query --guaranteed --rate 1M", 0, "guaranteed: no GPU can fail it, nothing is held elsewhere");
    expect("query --guaranteed --rate 1M --json", 0, "\"unit_index\": null");
}

static void test_query_json(void **state)
{
    (void)state;
    assert_int_equal(run("query --rate 1M --json"), 0);
    json_t *answer = json_loads(output, 0, NULL);
    assert_true(json_is_true(json_object_get(answer, "admitted")));
    assert_true(json_number_value(json_object_get(answer, "bound_us")) > 0);
    json_decref(answer);
    assert_int_equal(run("query --rate 1M --latency 10us --json"), 3);
    answer = json_loads(output, 0, NULL);
    assert_true(json_is_false(json_object_get(answer, "admitted")));
    assert_string_equal(json_string_value(json_object_get(answer, "constraint")), "deadline");
    json_t *offer = json_object_get(answer, "offer");
    assert_true(json_is_null(json_object_get(offer, "interval_us")));
    assert_true(json_number_value(json_object_get(offer, "latency_us")) > 10);
    json_decref(answer);
}

/* ---- encrypt ---- */

/* Decrypts F/out with the IV that the command has told. */
static size_t decrypt_output(const char *cipher, const uint8_t *key, bool padded, uint8_t *plain)
{
    static uint8_t ciphertext[1 << 20];
    uint8_t iv[16];
    size_t iv_bytes, bytes = read_file("out", ciphertext, sizeof ciphertext);
    int first = 0, last = 0;
    const char *told = strstr(output, "IV: ");
    assert_non_null(told);
    assert_true(core_hex_parse(told + 4, 32, iv, sizeof iv, &iv_bytes));
    EVP_CIPHER *fetched = EVP_CIPHER_fetch(NULL, cipher, NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_DecryptInit_ex2(context, fetched, key, iv, NULL), 1);
    EVP_CIPHER_CTX_set_padding(context, padded);
    assert_int_equal(EVP_DecryptUpdate(context, plain, &first, ciphertext, (int)bytes), 1);
    assert_int_equal(EVP_DecryptFinal_ex(context, plain + first, &last), 1);
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(fetched);
    return (size_t)first + (size_t)last;
}

static uint8_t input[200000], plain[300000];

static void make_input(size_t bytes)
{
    for (size_t i = 0; i < sizeof input; i++)
        input[i] = (uint8_t)(i * i >> 5);
    write_file("in", input, bytes);
}

static void test_encrypt_lengths(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 15, 16, 17, 1407, 1408, 1409, 2816, 100000};
    const uint8_t key[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        make_input(lengths[i]);
        expect("encrypt --latency 1min --key-file F/key -o F/out F/in", 0, "IV: ");
        assert_int_equal(decrypt_output("AES-128-CBC", key, true, plain), lengths[i]);
        assert_memory_equal(plain, input, lengths[i]);
    }
    make_input(100000);
    expect("encrypt --latency 1min --key-name camera --rate 50M --burst 20 -o F/out < F/in", 0, "0 missed");
}

static void test_encrypt_pads_every_packet(void **state)
{
    (void)state;
    const uint8_t key[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    make_input(250);
    expect("encrypt --latency 1min --key-name camera --padding pkcs7 -p 100 -o F/out F/in", 0, "3 packets");
    assert_int_equal(decrypt_output("AES-128-CBC", key, false, plain), 112 + 112 + 64);
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(plain + 112 * i, input + 100 * i, i < 2 ? 100 : 50);
}

static void test_encrypt_without_padding(void **state)
{
    (void)state;
    make_input(1600);
    expect("encrypt --latency 1min --key-name camera --padding none -o F/out F/in", 0, "2 packets");
    assert_int_equal(read_file("out", plain, sizeof plain), 1600);
    make_input(1601);
    unlink_output();
    expect("encrypt --latency 1min --key-name camera --padding none -o F/out F/in", 2,
           "/in has 1601 bytes, and without padding it must be a multiple of 16");
    expect("encrypt --latency 1min --key-name camera --padding none -o F/out < F/in", 2,
           "standard input has 1601 bytes");
    assert_false(has_output()); /* told before it was made */
    expect("encrypt --latency 1min --key-name camera --padding none -o F/out < F/pipe & "
           "cat F/in > F/pipe; wait $!",
           1, "multiple of 16");
    assert_non_null(strstr(output, "--skip=1 --iv="));
}

static void test_encrypt_json(void **state)
{
    (void)state;
    static const char encrypt[] = "encrypt --latency 1min --key-name camera --json -o F/out";
    char arguments[256];
    make_input(5000);
    snprintf(arguments, sizeof arguments, "%s F/in", encrypt);
    json_t *summary = said(arguments, 0);
    assert_true(json_is_true(json_object_get(summary, "complete")));
    assert_int_equal(json_integer_value(json_object_get(summary, "packets")), 4);
    assert_int_equal(json_integer_value(json_object_get(summary, "met")), 4);
    assert_int_equal(json_string_length(json_object_get(summary, "iv")), 32);
    assert_true(json_is_null(json_object_get(summary, "next")));
    assert_null(json_object_get(summary, "error"));
    json_decref(summary);
    make_input(1601);
    snprintf(arguments, sizeof arguments, "%s --padding none < F/pipe & cat F/in > F/pipe; wait $!", encrypt);
    summary = said(arguments, 1); /* the second packet is wrong */
    assert_true(json_is_false(json_object_get(summary, "complete")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(summary, "next"), "skip")), 1);
    assert_non_null(strstr(json_string_value(json_object_get(json_object_get(summary, "error"), "message")),
                           "multiple of 16"));
    json_decref(summary);
    expect("encrypt --key-name camera --json F/in", 2, "--json needs --output");
}

/* Wrong values, no server, refusals: the exit status is as without --json. */
static void test_json_of_errors(void **state)
{
    static const struct {
        const char *arguments;
        int exit;
        const char *message, *code;
    } cases[] = {
        {"query --json --rate 500Gbit/s", 2, "--rate: with packets of 1408 bytes", NULL},
        {"query --json -s unix:F/none", 1, "is the server running?", NULL},
        {"query --json -s gopher:there", 1, "must begin with", NULL},
        {"ping --json -s unix:F/none", 1, "is the server running?", NULL},
        {"status --json --admin unix:F/none", 1, "is the server running?", NULL},
        {"encrypt --json -o F/out --key-name camera -s unix:F/none F/in", 1, "is the server running?", NULL},
        {"encrypt --json -o F/out --key-name camera F/none", 2, "No such file", NULL},
        {"encrypt --json -o F/out --key-name camera 'F/n\377'", 2, "No such file", NULL},
        {"encrypt --json -o F/out --key-name nobody F/in", 3, "nobody", "key"},
    };
    (void)state;
    make_input(100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *answer = said(cases[i].arguments, cases[i].exit);
        const json_t *error = json_object_get(answer, "error");
        const char *message = json_string_value(json_object_get(error, "message"));
        if (message == NULL || strstr(message, cases[i].message) == NULL)
            fail_msg("%s: %s", cases[i].arguments, output);
        if (cases[i].code != NULL)
            assert_string_equal(json_string_value(json_object_get(error, "code")), cases[i].code);
        json_decref(answer);
    }
}

static void test_encrypt_keys(void **state)
{
    (void)state;
    const uint8_t key[32] =
        "0123456789abcdef0123456789abcde\n"; /* ends as hexadecimal text would, and is none */
    make_input(5000);
    write_file("key", key, sizeof key);
    expect("encrypt --latency 1min --key-file F/key -o F/out F/in", 0, "IV: ");
    assert_int_equal(decrypt_output("AES-256-CBC", key, true, plain), 5000);
    assert_memory_equal(plain, input, 5000);
    expect("encrypt --cipher aes-128-cbc --key-file F/key -o F/out F/in", 2, "needs a key of 16 bytes");
    expect("encrypt --latency 1min --key " KEY_HEX " -o F/out F/in", 0, "warning: a key on the command line");
    expect("encrypt --key-name nobody -o F/out F/in", 3, "refused (key)");
    write_file("key", KEY_HEX "\n", 33);
}

static void test_encrypt_goes_on(void **state)
{
    (void)state;
    static uint8_t whole[300000], resumed[300000];
    make_input(100000);
    expect("encrypt -q --latency 1min --key-file F/key -o F/whole F/in", 0, "");
    expect("encrypt -q --latency 1min --key-file F/key -o F/whole --iv ffffffffffffffffffffffffffffffff F/in",
           0, "");
    size_t bytes = read_file("whole", whole, sizeof whole);
    assert_int_equal(bytes, 100000 + 16 - 100000 % 16);
    for (unsigned skip = 0; skip <= 71; skip += skip < 2 ? 1 : 23) {
        char arguments[256];
        write_file("out", whole, bytes - 3000 + 30 * skip);
        snprintf(arguments, sizeof arguments,
                 "encrypt -q --latency 1min --key-file F/key -o F/out F/in --skip %u%s", skip,
                 skip == 0 ? " --iv ffffffffffffffffffffffffffffffff" : "");
        if (skip * 1408 > bytes - 3000 + 30 * skip)
            continue;
        expect(arguments, 0, "");
        assert_int_equal(read_file("out", resumed, sizeof resumed), bytes);
        assert_memory_equal(resumed, whole, bytes);
    }
    write_file("out", whole, 1408 * 60 - 1);
    expect("encrypt --key-file F/key -o F/out --skip 60 F/in", 2, "does not hold the 60 packets");
    expect("encrypt --key-file F/key --skip 5 F/in", 2, "needs --iv");
    expect("encrypt --key-file F/key --skip 72 --iv ffffffffffffffffffffffffffffffff F/in | cat", 0,
           "ends before");
    expect("encrypt --key-file F/key --skip 18446744073709551615 --iv ffffffffffffffffffffffffffffffff F/in",
           2, "--skip 18446744073709551615 is beyond any file");
    /* through pipes, both ways: what is skipped is read and thrown away */
    expect(
        "encrypt -q --latency 1min --key-file F/key --skip 2 -o F/out --iv ffffffffffffffffffffffffffffffff "
        "< F/pipe & cat F/in > F/pipe; wait $!",
        0, "");
    expect(
        "encrypt -q --latency 1min --key-file F/key --skip 2 --iv ffffffffffffffffffffffffffffffff < F/pipe "
        "> F/out & cat F/in > F/pipe; wait $!",
        0, "");
    assert_int_equal(read_file("out", resumed, sizeof resumed), bytes - 2 * 1408);
    expect("encrypt -q --latency 1min --key-file F/key --skip 100 --iv ffffffffffffffffffffffffffffffff < "
           "F/pipe "
           "> F/out & cat F/in > F/pipe; wait $!",
           2, "ends before the packets to be skipped");
}

static void test_encrypt_tells_the_signal(void **state)
{
    (void)state;
    make_input(100000);
    unlink_output();
    expect("encrypt --latency 1min --rate 100k --key-name camera -o F/out F/in & "
           "while [ ! -e F/out ]; do sleep 0.01; done; kill -INT $!; wait $!",
           130, "IV: ");
}

/* Stopped by a signal it drains, tells how far it came, and what it wrote can be gone on with. */
static void test_encrypt_is_stopped(void **state)
{
    (void)state;
    static uint8_t whole[300000], resumed[300000];
    unsigned written;
    char arguments[256];
    make_input(100000);
    expect(
        "encrypt -q --latency 1min --key-name camera --iv 00000000000000000000000000000000 -o F/whole F/in",
        0, "");
    unlink_output();
    expect("encrypt --latency 1min --rate 1M --key-name camera --iv 00000000000000000000000000000000 -o "
           "F/out F/in & "
           "while [ ! -e F/out ]; do sleep 0.01; done; sleep 0.1; kill -TERM $!; wait $!",
           143, "IV: 00000000000000000000000000000000");
    const char *hint = strstr(output, "go on with --skip=");
    if (hint == NULL)
        return; /* so slow a machine that no packet was back yet */
    written = (unsigned)strtoul(hint + strlen("go on with --skip="), NULL, 10);
    assert_in_range(written, 1, 71);
    assert_int_equal(read_file("out", resumed, sizeof resumed), written * 1408);
    snprintf(arguments, sizeof arguments,
             "encrypt -q --latency 1min --key-name camera --skip %u -o F/out F/in", written);
    expect(arguments, 0, "");
    size_t bytes = read_file("whole", whole, sizeof whole);
    assert_int_equal(read_file("out", resumed, sizeof resumed), bytes);
    assert_memory_equal(resumed, whole, bytes);
}

static void test_encrypt_files_that_are_wrong(void **state)
{
    (void)state;
    expect("encrypt --key-name camera F/absent -o F/out", 2, "No such file");
    expect("encrypt --key-name camera F/in -o F/absent/out", 1, "No such file");
    expect("encrypt --latency 1min --key-name camera F/in -o /dev/full", 1, "No space left");
    static uint8_t before[1 << 20], after[1 << 20];
    size_t bytes = read_file("in", before, sizeof before);
    expect("encrypt --key-name camera F/in -o F/in", 2, "is input and output");
    expect("encrypt --key-name camera F/in -o - >>F/in", 2, "");
    assert_int_equal(read_file("in", after, sizeof after), bytes);
    assert_memory_equal(after, before, bytes);
}

/* As the help says: overwritten, but not by a stream that the server refused. */
static void test_encrypt_overwrites(void **state)
{
    static uint8_t before[1 << 20], after[1 << 20];
    (void)state;
    expect("encrypt --help", 0, "overwrites a file");
    unlink_output();
    expect("encrypt -q --latency 1min --key-name camera F/in -o F/out", 0, "");
    size_t bytes = read_file("out", before, sizeof before);
    expect("encrypt --key-name nobody F/in -o F/out", 3, "refused (key)");
    assert_int_equal(read_file("out", after, sizeof after), bytes);
    assert_memory_equal(after, before, bytes);
    expect("encrypt -q --latency 1min --key-name camera </dev/null -o F/out", 0, "");
    assert_true(read_file("out", after, sizeof after) < bytes);
}

static void test_status(void **state)
{
    (void)state;
    expect("status", 0, "serving");
    assert_non_null(strstr(output, "io thread"));
    assert_non_null(strstr(output, "headroom"));
    assert_int_equal(run("status --json"), 0);
    json_t *document = json_loads(output, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(document, "state")), "serving");
    json_decref(document);
    struct millrace *connection;
    struct millrace_opened opened = {.size = sizeof opened};
    const struct millrace_open open = {.size = sizeof open,
                                       .packet_bytes = 1408,
                                       .burst_packets = 1,
                                       .interval_ns = CORE_NS_PER_S,
                                       .latency_ns = CORE_NS_PER_S,
                                       .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                       .key_kind = MILLRACE_KEY_NAMED,
                                       .key = (const uint8_t *)"camera",
                                       .key_bytes = 6};
    assert_int_equal(millrace_connect(getenv("MILLRACE_SERVER"), NULL, 10000, &connection, NULL),
                     MILLRACE_OK);
    assert_int_equal(millrace_open_stream(connection, &open, 10000, &opened, NULL, NULL), MILLRACE_OK);
    expect("status --streams", 0, "least slack");
    assert_non_null(strstr(output, "1408"));
    millrace_disconnect(connection);
}

/* ---- other HTTP servers ---- */

static void http_script(int descriptor, void *argument)
{
    char request[1024] = "";
    for (size_t i = 0; i + 1 < sizeof request && strstr(request, "\r\n\r\n") == NULL; i++)
        if (!fake_read(descriptor, request + i, 1))
            return;
    fake_write(descriptor, argument, strlen(argument));
}

static void expect_status(char *answer, int exit, const char *words)
{
    struct fake_server fake;
    char arguments[128];
    fake_server_start(&fake, http_script, answer);
    snprintf(arguments, sizeof arguments, "status --timeout 20s --admin %s", fake.address);
    expect(arguments, exit, words);
    fake_server_join(&fake);
}

static void test_status_of_others(void **state)
{
    (void)state;
    expect_status("HTTP/1.1 200 OK\r\n\r\n{}", 0, "millraced -, -"); /* absent keys are no error */
    expect_status(
        "HTTP/1.0 200 OK\r\n\r\n{\"totals\": {\"packets\": \"many\"}, \"io_threads\": {}, \"workers\": [3]}",
        0, "encrypted -");
    expect_status("HTTP/1.1 200 OK\r\n\r\n[1]", 1, "no JSON object");
    expect_status("HTTP/1.1 200 OK\r\n\r\n{", 1, "no JSON object");
    expect_status("HTTP/1.1 404 Not Found\r\n\r\n{}", 1, "404 Not Found");
    expect_status("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", 1, "cut off");
    expect_status("SSH-2.0-OpenSSH\r\n", 1, "no HTTP answer");
    expect_status("", 1, "no HTTP answer");
    expect_status("HTTP/1.1 200 OK\r\n\r\n{\"totals\": {\"missed\": 3}, \"missed_by\": {\"off_core\": 3}}", 0,
                  "missed by");
    expect_status("HTTP/1.1 200 OK\r\nA: b\r\n\r\nContent-Length: 9", 1,
                  "no JSON object"); /* of the body, it is no field */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_no_server),
        cmocka_unit_test(test_ping),
        cmocka_unit_test(test_ping_json),
        cmocka_unit_test(test_query),
        cmocka_unit_test(test_query_json),
        cmocka_unit_test(test_encrypt_lengths),
        cmocka_unit_test(test_encrypt_pads_every_packet),
        cmocka_unit_test(test_encrypt_without_padding),
        cmocka_unit_test(test_encrypt_keys),
        cmocka_unit_test(test_encrypt_goes_on),
        cmocka_unit_test(test_encrypt_tells_the_signal),
        cmocka_unit_test(test_encrypt_is_stopped),
        cmocka_unit_test(test_encrypt_json),
        cmocka_unit_test(test_json_of_errors),
        cmocka_unit_test(test_encrypt_files_that_are_wrong),
        cmocka_unit_test(test_encrypt_overwrites),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_status_of_others),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
