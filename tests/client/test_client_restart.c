/* The server is killed under its streams, with SIGKILL, and started again: clients open their streams anew
 * with the chaining value they hold, and all ciphertext together is one CBC encryption. The daemon is a
 * process of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/millrace.h"
#include "core/status.h"
#include "core/time.h"

#define MILLRACED    MILLRACE_BINARY_DIR "/server/millraced"
#define MILLRACE     MILLRACE_BINARY_DIR "/client/millrace"
#define PATIENCE_MS  60000
#define STREAMS      5
#define PACKETS      120
#define PACKET_BYTES 320
#define WINDOW       8

static const uint8_t key[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static char folder[64], address[128];
static pid_t daemon_pid;

static const char *in_folder(const char *name)
{
    static char path[4][128];
    static unsigned last;
    char *text = path[last++ % 4];
    snprintf(text, sizeof path[0], "%s/%s", folder, name);
    return text;
}

static void write_file(const char *name, const void *bytes, size_t count)
{
    int descriptor = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, bytes, count), count);
    close(descriptor);
}

static size_t file_bytes(const char *name)
{
    struct stat about;
    return stat(in_folder(name), &about) == 0 ? (size_t)about.st_size : 0;
}

/* ---- processes ---- */

/* Standard error goes to the file `log`. */
static pid_t spawn(const char *log, char *const *arguments)
{
    const char *path = in_folder(log);
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(127); /* the test has ended before us */
    int descriptor = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (descriptor >= 0 && dup2(descriptor, STDERR_FILENO) >= 0)
        execv(arguments[0], arguments);
    _exit(127);
}

static void start_daemon(void)
{
    daemon_pid = spawn("log", (char *[]){MILLRACED, (char *)in_folder("config"), NULL});
    for (int waited_ms = 0;; waited_ms += 10) {
        struct millrace *connection;
        if (millrace_connect(address, NULL, 1000, &connection, NULL) == MILLRACE_OK) {
            millrace_disconnect(connection);
            return;
        }
        assert_int_equal(waitpid(daemon_pid, NULL, WNOHANG), 0);
        assert_in_range(waited_ms, 0, PATIENCE_MS);
        poll(NULL, 0, 10);
    }
}

static void kill_daemon(void)
{
    int status;
    assert_int_equal(kill(daemon_pid, SIGKILL), 0);
    assert_int_equal(waitpid(daemon_pid, &status, 0), daemon_pid);
    assert_true(WIFSIGNALED(status));
}

static int make_folder(void **state)
{
    static const char config[] = "listeners: [{address: 'unix:socket'}]\n"
                                 "profile: " MILLRACE_SOURCE_DIR "/config/profiles/cpu-only.yaml\n"
                                 "threads: {realtime: off, pin: false}\nengine: ipsec-mb\n"
                                 "client_iv: true\nkeyring: keys\n";
    static const char keys[] = "camera aes-128-cbc 000102030405060708090a0b0c0d0e0f client-iv\n";
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/millrace-restart-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(address, sizeof address, "unix:%s/socket", folder);
    write_file("config", config, strlen(config));
    write_file("keys", keys, strlen(keys));
    start_daemon();
    return 0;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"config", "keys", "socket", "log", "told", "in", "out"};
    (void)state;
    kill_daemon();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unlink(in_folder(names[i]));
    return rmdir(folder);
}

/* All of it in one CBC run. */
static size_t encrypt_whole(const uint8_t *iv, bool padded, const uint8_t *plain, size_t bytes,
                            uint8_t *cipher)
{
    int first = 0, last = 0;
    EVP_CIPHER *fetched = EVP_CIPHER_fetch(NULL, "AES-128-CBC", NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_EncryptInit_ex2(context, fetched, key, iv, NULL), 1);
    EVP_CIPHER_CTX_set_padding(context, padded);
    assert_int_equal(EVP_EncryptUpdate(context, cipher, &first, plain, (int)bytes), 1);
    assert_int_equal(EVP_EncryptFinal_ex(context, cipher + first, &last), 1);
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(fetched);
    return (size_t)first + (size_t)last;
}

/* ---- the library ---- */

struct stream {
    uint32_t id;
    uint32_t done; /* packets whose ciphertext is there, */
    uint32_t base; /* of these, before the stream was opened last */
    uint8_t first_iv[16];
    uint8_t plain[PACKETS * PACKET_BYTES], cipher[PACKETS * PACKET_BYTES];
};

static struct stream streams[STREAMS];

static void on_result(void *argument, const struct millrace_result *result)
{
    (void)argument;
    for (struct stream *stream = streams; stream < streams + STREAMS; stream++)
        if (stream->id == result->stream) {
            assert_int_equal(result->status, MILLRACE_RESULT_OK);
            assert_int_equal(result->sequence, stream->done - stream->base);
            memcpy(stream->cipher + stream->done++ * PACKET_BYTES, result->ciphertext, PACKET_BYTES);
        }
}

static uint32_t all_done(void)
{
    uint32_t done = 0;
    for (size_t i = 0; i < STREAMS; i++)
        done += streams[i].done;
    return done;
}

/* Opens every stream, chained to what has come back; iv NULL: the server's choice. */
static struct millrace *open_all(const uint8_t (*iv)[16])
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks, .on_result = on_result};
    struct millrace_open open = {.size = sizeof open,
                                 .packet_bytes = PACKET_BYTES,
                                 .burst_packets = WINDOW,
                                 .interval_ns = CORE_NS_PER_MS,
                                 .latency_ns = CORE_NS_PER_S,
                                 .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                 .padding = MILLRACE_PADDING_NONE,
                                 .key_kind = MILLRACE_KEY_NAMED,
                                 .key = (const uint8_t *)"camera",
                                 .key_bytes = 6,
                                 .has_iv = iv != NULL};
    struct millrace *connection;
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    if (millrace_connect(address, NULL, PATIENCE_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    for (size_t i = 0; i < STREAMS; i++) {
        if (iv != NULL)
            memcpy(open.iv, iv[i], sizeof open.iv);
        if (millrace_open_stream(connection, &open, PATIENCE_MS, &opened, NULL, error.text) != MILLRACE_OK)
            fail_msg("%s", error.text);
        streams[i].id = opened.stream;
        streams[i].base = streams[i].done;
        if (iv == NULL)
            memcpy(streams[i].first_iv, opened.iv, sizeof opened.iv);
        else
            assert_memory_equal(opened.iv, iv[i], sizeof opened.iv);
    }
    return connection;
}

/* Sends, a window of packets ahead, until so many have come back; then kills the server if that is wanted,
 * with packets on the way, and reads what it still had said. */
static void run_until(struct millrace *connection, uint32_t goal, bool then_kill)
{
    uint32_t sent[STREAMS] = {0};
    millrace_status status = MILLRACE_OK;
    bool killed = false;
    while (status == MILLRACE_OK && (killed || all_done() < goal)) {
        for (size_t i = 0; i < STREAMS && !killed; i++)
            while (streams[i].base + sent[i] < PACKETS &&
                   streams[i].base + sent[i] < streams[i].done + WINDOW &&
                   millrace_data(connection, streams[i].id,
                                 streams[i].plain + (streams[i].base + sent[i]) * PACKET_BYTES, PACKET_BYTES,
                                 NULL, NULL) == MILLRACE_OK)
                sent[i]++;
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = millrace_events(connection)};
        assert_true(poll(&ready, 1, PATIENCE_MS) > 0);
        status = millrace_process(connection, 1, NULL);
        if (status == MILLRACE_OK && then_kill && !killed && all_done() >= goal) {
            kill_daemon();
            killed = true;
        }
    }
    assert_int_equal(status == MILLRACE_OK, !then_kill);
}

static void test_streams_go_on(void **state)
{
    static uint8_t expected[PACKETS * PACKET_BYTES];
    uint8_t chains[STREAMS][16];
    (void)state;
    for (size_t i = 0; i < STREAMS; i++)
        for (size_t byte = 0; byte < sizeof streams[i].plain; byte++)
            streams[i].plain[byte] = (uint8_t)(byte * byte >> (i + 1));
    struct millrace *connection = open_all(NULL);
    for (uint32_t deaths = 1; deaths <= 2; deaths++) {
        run_until(connection, deaths * STREAMS * PACKETS / 3, true);
        for (size_t i = 0; i < STREAMS; i++) {
            struct millrace_position position = {.size = sizeof position};
            assert_int_equal(millrace_position_of(connection, streams[i].id, &position, NULL), MILLRACE_OK);
            assert_int_equal(position.answered, streams[i].done - streams[i].base);
            memcpy(chains[i], position.chain, sizeof chains[i]);
        }
        millrace_disconnect(connection);
        start_daemon();
        connection = open_all((const uint8_t(*)[16])chains);
    }
    run_until(connection, STREAMS * PACKETS, false);
    millrace_disconnect(connection);
    for (size_t i = 0; i < STREAMS; i++) {
        assert_int_equal(
            encrypt_whole(streams[i].first_iv, false, streams[i].plain, sizeof expected, expected),
            sizeof expected);
        assert_memory_equal(streams[i].cipher, expected, sizeof expected);
    }
}

/* ---- the command ---- */

static void await_output(size_t bytes)
{
    for (int waited_ms = 0; file_bytes("out") < bytes; waited_ms += 10) {
        assert_in_range(waited_ms, 0, PATIENCE_MS);
        poll(NULL, 0, 10);
    }
}

static void test_command_goes_on(void **state)
{
    static uint8_t plain[200000], expected[200016], got[200100];
    static const uint8_t iv[16] = {0xFF, 0xEE};
    char *arguments[] = {MILLRACE,
                         "encrypt",
                         "--reconnect=1min",
                         "-s",
                         address,
                         "--key-name=camera",
                         "--rate=1M",
                         "--latency=1s",
                         "--burst=8",
                         "--iv=ffee0000000000000000000000000000",
                         "-o",
                         (char *)in_folder("out"),
                         (char *)in_folder("in"),
                         NULL};
    int status;
    (void)state;
    for (size_t i = 0; i < sizeof plain; i++)
        plain[i] = (uint8_t)(i * i >> 7);
    write_file("in", plain, sizeof plain);
    pid_t pid = spawn("told", arguments);
    for (uint32_t deaths = 1; deaths <= 2; deaths++) {
        await_output(deaths * 40000);
        kill_daemon();
        start_daemon();
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 4) /* 4: a slow machine missed a deadline */
        fail_msg("exit %d", WEXITSTATUS(status));
    size_t bytes = encrypt_whole(iv, true, plain, sizeof plain, expected);
    assert_int_equal(file_bytes("out"), bytes);
    FILE *file = fopen(in_folder("out"), "rb");
    assert_non_null(file);
    assert_int_equal(fread(got, 1, sizeof got, file), bytes);
    fclose(file);
    assert_memory_equal(got, expected, bytes);
}

/* A server that stops in good order has CLOSED the streams: the same, and no server comes in time. */
static void test_command_gives_up(void **state)
{
    char *arguments[] = {MILLRACE,
                         "encrypt",
                         "--reconnect=200ms",
                         "-s",
                         address,
                         "--key-name=camera",
                         "--rate=100k",
                         "--latency=1s",
                         "-o",
                         (char *)in_folder("out"),
                         (char *)in_folder("in"),
                         NULL};
    int status;
    (void)state;
    (void)unlink(in_folder("out"));
    pid_t pid = spawn("told", arguments);
    await_output(1);
    assert_int_equal(kill(daemon_pid, SIGTERM), 0);
    assert_int_equal(waitpid(daemon_pid, &status, 0), daemon_pid);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    start_daemon();
}

/* The server comes back without the key: no later attempt would go better, and none is made. */
static void test_command_refused(void **state)
{
    char *arguments[] = {MILLRACE,
                         "encrypt",
                         "--reconnect=1h",
                         "-s",
                         address,
                         "--key-name=camera",
                         "--rate=100k",
                         "--latency=1s",
                         "-o",
                         (char *)in_folder("out"),
                         (char *)in_folder("in"),
                         NULL};
    static const char other[] = "lens aes-128-cbc 000102030405060708090a0b0c0d0e0f client-iv\n";
    int status;
    (void)state;
    (void)unlink(in_folder("out"));
    pid_t pid = spawn("told", arguments);
    await_output(1);
    kill_daemon();
    write_file("keys", other, strlen(other));
    start_daemon();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_go_on),
        cmocka_unit_test(test_command_goes_on),
        cmocka_unit_test(test_command_gives_up),
        cmocka_unit_test(test_command_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
