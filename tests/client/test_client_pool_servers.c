/* A pool of real servers, each a process of its own, that are killed with SIGKILL, stopped in good order, full, and
 * away for a while: all ciphertext of a stream is one CBC encryption, by the library and by the command. */
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
#include "tests/support/command.h"

#define MILLRACED    MILLRACE_BINARY_DIR "/server/millraced"
#define MILLRACE     MILLRACE_BINARY_DIR "/client/millrace"
#define PATIENCE_MS  60000
#define NODES        2
#define STREAMS      6
#define PACKETS      150
#define PACKET_BYTES 320
#define WINDOW       8

static const uint8_t key[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static char folder[64], addresses[256];
static pid_t pids[NODES];

/* ---- processes ---- */

static const char *in_folder(const char *format, int number)
{
    static char path[4][128];
    static unsigned last;
    char *text = path[last++ % 4], name[64];
    snprintf(name, sizeof name, "%s%d", format, number);
    snprintf(text, sizeof path[0], "%s/%s", folder, name);
    return text;
}

static void write_file(const char *path, const void *bytes, size_t count)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, bytes, count), count);
    close(descriptor);
}

static pid_t spawn(const char *log, char *const *arguments)
{
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(127);
    int descriptor = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (descriptor >= 0 && dup2(descriptor, STDERR_FILENO) >= 0)
        execv(arguments[0], arguments);
    _exit(127);
}

static void node_start(int node)
{
    char address[128];
    snprintf(address, sizeof address, "unix:%s", in_folder("socket", node));
    pids[node] =
        spawn(in_folder("log", node), (char *[]){MILLRACED, (char *)in_folder("config", node), NULL});
    for (int waited_ms = 0;; waited_ms += 10) {
        struct millrace *connection;
        if (millrace_connect(address, NULL, 1000, &connection, NULL) == MILLRACE_OK) {
            millrace_disconnect(connection);
            return;
        }
        assert_int_equal(waitpid(pids[node], NULL, WNOHANG), 0);
        assert_in_range(waited_ms, 0, PATIENCE_MS);
        poll(NULL, 0, 10);
    }
}

static void node_end(int node, int signal_number)
{
    if (pids[node] == 0)
        return;
    assert_int_equal(kill(pids[node], signal_number), 0);
    assert_int_equal(waitpid(pids[node], NULL, 0), pids[node]);
    pids[node] = 0;
}

static int make_folder(void **state)
{
    static const char keys[] = "camera aes-128-cbc 000102030405060708090a0b0c0d0e0f client-iv\n"
                               "lens aes-128-cbc 000102030405060708090a0b0c0d0e0f\n";
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/millrace-pool-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    for (int node = 0; node < NODES; node++) {
        char config[512];
        const int bytes = snprintf(config, sizeof config,
                                   "listeners: [{address: 'unix:socket%d'}]\n"
                                   "profile: " MILLRACE_SOURCE_DIR "/config/profiles/cpu-only.yaml\n"
                                   "threads: {realtime: off, pin: false}\nengine: ipsec-mb\n"
                                   "client_iv: true\nkeyring: keys0\nlimits: {streams: 8}\n"
                                   "admin: 'unix:admin%d'\n",
                                   node, node);
        write_file(in_folder("config", node), config, (size_t)bytes);
    }
    write_file(in_folder("keys", 0), keys, strlen(keys));
    snprintf(addresses, sizeof addresses, "unix:%s,unix:%s", in_folder("socket", 0), in_folder("socket", 1));
    return 0;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"config", "keys", "socket", "admin", "log",
                                        "told",   "in",   "out",    "list"};
    (void)state;
    for (int node = 0; node < NODES; node++)
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            (void)unlink(in_folder(names[i], node));
    return rmdir(folder);
}

static int start_all(void **state)
{
    (void)state;
    for (int node = 0; node < NODES; node++)
        node_start(node);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    for (int node = 0; node < NODES; node++)
        node_end(node, SIGKILL);
    return 0;
}

/* ---- streams ---- */

struct stream {
    uint32_t id, sent, done;
    uint8_t iv[16];
    uint8_t plain[PACKETS * PACKET_BYTES], cipher[PACKETS * PACKET_BYTES];
    bool lost;
    unsigned gaps;
};

static struct stream streams[STREAMS];
static struct millrace *pool;
static struct millrace_closed last_closed;

static struct stream *find(uint32_t id)
{
    for (struct stream *stream = streams; stream < streams + STREAMS; stream++)
        if (stream->id == id)
            return stream;
    fail_msg("stream %u is none", id);
    return NULL;
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct stream *stream = find(result->stream);
    (void)argument;
    assert_int_equal(result->status, MILLRACE_RESULT_OK);
    assert_int_equal(result->sequence, stream->done);
    assert_int_equal(result->bytes, PACKET_BYTES);
    memcpy(stream->cipher + stream->done++ * PACKET_BYTES, result->ciphertext, PACKET_BYTES);
}

static void on_resumed(void *argument, uint32_t id, const struct millrace_resumed *resumed)
{
    (void)argument;
    (void)resumed;
    find(id)->gaps++;
}

static void on_closed(void *argument, uint32_t id, const struct millrace_closed *closed)
{
    (void)argument;
    find(id)->lost = true;
    last_closed = *closed;
}

static millrace_status open_one(const char *name, struct millrace_opened *opened,
                                struct millrace_refused *refused)
{
    const struct millrace_open open = {.size = sizeof open,
                                       .packet_bytes = PACKET_BYTES,
                                       .burst_packets = WINDOW,
                                       .interval_ns = CORE_NS_PER_MS,
                                       .latency_ns = CORE_NS_PER_S,
                                       .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                       .key_kind = MILLRACE_KEY_NAMED,
                                       .key = name,
                                       .key_bytes = strlen(name)};
    return millrace_open_stream(pool, &open, PATIENCE_MS, opened, refused, NULL);
}

static void open_all(const char *name)
{
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_result = on_result, .on_closed = on_closed, .on_resumed = on_resumed};
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    if (millrace_connect(addresses, NULL, PATIENCE_MS, &pool, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(millrace_set_callbacks(pool, &callbacks, NULL), MILLRACE_OK);
    memset(streams, 0, sizeof streams);
    for (size_t i = 0; i < STREAMS; i++) {
        for (size_t byte = 0; byte < sizeof streams[i].plain; byte++)
            streams[i].plain[byte] = (uint8_t)(byte * byte >> (i + 1));
        assert_int_equal(open_one(name, &opened, NULL), MILLRACE_OK);
        streams[i].id = opened.stream;
        memcpy(streams[i].iv, opened.iv, sizeof opened.iv);
    }
}

static uint32_t all_done(void)
{
    uint32_t done = 0;
    for (size_t i = 0; i < STREAMS; i++)
        done += streams[i].lost ? PACKETS : streams[i].done;
    return done;
}

static void run_until(uint32_t goal)
{
    while (all_done() < goal) {
        for (struct stream *stream = streams; stream < streams + STREAMS; stream++)
            while (!stream->lost && stream->sent < PACKETS && stream->sent < stream->done + WINDOW &&
                   millrace_data(pool, stream->id, stream->plain + stream->sent * PACKET_BYTES, PACKET_BYTES,
                                 NULL, NULL) == MILLRACE_OK)
                stream->sent++;
        struct pollfd ready = {.fd = millrace_descriptor(pool), .events = millrace_events(pool)};
        assert_true(poll(&ready, 1, PATIENCE_MS) > 0);
        assert_int_equal(millrace_process(pool, 1, NULL), MILLRACE_OK);
    }
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

static void check_all(void)
{
    static uint8_t expected[PACKETS * PACKET_BYTES];
    for (size_t i = 0; i < STREAMS; i++) {
        const size_t bytes = streams[i].done * PACKET_BYTES;
        encrypt_whole(streams[i].iv, false, streams[i].plain, bytes, expected);
        assert_memory_equal(streams[i].cipher, expected, bytes);
    }
}

/* Each node ends in turn, and is there again before the next one does. */
static unsigned run_while_nodes_end(int signal_number)
{
    unsigned gaps = 0;
    open_all("camera");
    for (int turn = 0; turn < 2 * NODES; turn++) {
        run_until((uint32_t)(turn + 1) * STREAMS * PACKETS / 5);
        node_end(turn % NODES, signal_number);
        run_until((uint32_t)(turn + 1) * STREAMS * PACKETS / 5 + STREAMS * PACKETS / 10);
        node_start(turn % NODES);
    }
    run_until(STREAMS * PACKETS);
    check_all();
    for (size_t i = 0; i < STREAMS; i++) {
        assert_false(streams[i].lost);
        gaps += streams[i].gaps;
    }
    millrace_disconnect(pool);
    return gaps;
}

static void test_killed(void **state)
{
    (void)state;
    assert_true(run_while_nodes_end(SIGKILL) >= NODES);
}

static void test_stopped(void **state)
{
    (void)state;
    assert_true(run_while_nodes_end(SIGTERM) >= NODES);
}

static void test_all_gone_and_one_back(void **state)
{
    (void)state;
    open_all("camera");
    run_until(STREAMS * PACKETS / 3);
    for (int node = 0; node < NODES; node++)
        node_end(node, SIGKILL);
    for (int i = 0; i < 10; i++) { /* time goes by, packets are kept */
        assert_int_equal(millrace_process(pool, 0, NULL), MILLRACE_OK);
        poll(NULL, 0, 10);
    }
    node_start(1);
    run_until(STREAMS * PACKETS);
    check_all();
    for (size_t i = 0; i < STREAMS; i++)
        assert_int_equal(streams[i].gaps, 1);
    millrace_disconnect(pool);
}

static void test_key_without_client_iv(void **state)
{
    (void)state;
    open_all("lens");
    run_until(STREAMS * PACKETS / 3);
    node_end(0, SIGKILL);
    run_until(STREAMS * PACKETS);
    check_all();
    assert_int_equal(last_closed.reason, MILLRACE_CLOSE_LOST);
    assert_int_equal(last_closed.refused, MILLRACE_REFUSED_IV);
    assert_non_null(strstr(last_closed.text, "can not go on elsewhere"));
    unsigned lost = 0;
    for (size_t i = 0; i < STREAMS; i++)
        lost += streams[i].lost;
    assert_in_range(lost, 1, STREAMS - 1); /* those of the other node never noticed */
    millrace_disconnect(pool);
}

/* Two nodes have room for 16, by their limit; the answer to the next one tells that both were asked. */
static void test_full(void **state)
{
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_refused refused = {.size = sizeof refused};
    (void)state;
    open_all("camera");
    for (int i = STREAMS; i < 16; i++)
        assert_int_equal(open_one("camera", &opened, &refused), MILLRACE_OK);
    assert_int_equal(open_one("camera", &opened, &refused), MILLRACE_REFUSED);
    assert_int_equal(refused.code, MILLRACE_REFUSED_LIMIT);
    assert_int_equal(refused.asked, 2);
    millrace_disconnect(pool);
}

static void test_encrypt(void **state)
{
    static uint8_t plain[150000], expected[150016], got[150100];
    static const uint8_t iv[16] = {0xFF, 0xEE};
    char *arguments[] = {MILLRACE,
                         "encrypt",
                         "-s",
                         addresses,
                         "--key-name=camera",
                         "--rate=1M",
                         "--latency=1s",
                         "--burst=8",
                         "--iv=ffee0000000000000000000000000000",
                         "-o",
                         (char *)in_folder("out", 0),
                         (char *)in_folder("in", 0),
                         NULL};
    struct stat about;
    int status;
    (void)state;
    for (size_t i = 0; i < sizeof plain; i++)
        plain[i] = (uint8_t)(i * i >> 7);
    write_file(in_folder("in", 0), plain, sizeof plain);
    pid_t pid = spawn(in_folder("told", 0), arguments);
    for (int node = 0; node < NODES; node++) {
        while (stat(in_folder("out", 0), &about) != 0 || about.st_size < 40000 * (node + 1))
            poll(NULL, 0, 10);
        node_end(node, SIGKILL);
        node_start(node);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 4) /* 4: a slow machine missed a deadline */
        fail_msg("exit %d", WEXITSTATUS(status));
    const size_t bytes = encrypt_whole(iv, true, plain, sizeof plain, expected);
    FILE *file = fopen(in_folder("out", 0), "rb");
    assert_non_null(file);
    assert_int_equal(fread(got, 1, sizeof got, file), bytes);
    fclose(file);
    assert_memory_equal(got, expected, bytes);
}

static int count_of(const char *json, const char *name)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(json, quoted);
    return at == NULL ? -1 : atoi(at + strlen(quoted));
}

/* millrace-gen compares every byte; what a slow machine makes late is no fault here. */
static void test_replay(void **state)
{
    static const char list[] =
        "stream,class,packet_bytes,interval_ns,burst_packets,latency_ns,cipher,padding,start_ns,stop_ns\n"
        "0,one,160,5000000,4,500000000,aes-128-cbc,none,0,2000000000\n"
        "1,one,160,5000000,4,500000000,aes-256-cbc,pkcs7,0,2000000000\n"
        "2,two,320,5000000,4,500000000,aes-128-cbc,none,0,2000000000\n"
        "3,two,320,5000000,4,500000000,aes-128-cbc,pkcs7,0,2000000000\n";
    static char json[65536];
    char line[1024];
    (void)state;
    write_file(in_folder("list", 0), list, strlen(list));
    snprintf(line, sizeof line,
             "cp %s %s.csv; (sleep 0.5; kill -9 %d) & " MILLRACE_BINARY_DIR
             "/inputgen/millrace-gen replay --json --duration 2s --slower 10 --connections 2 --realtime off "
             "--server %s %s.csv 2>&1; rm %s.csv",
             in_folder("list", 0), in_folder("list", 0), (int)pids[0], addresses, in_folder("list", 0),
             in_folder("list", 0));
    (void)test_command(line, json, sizeof json);
    if (count_of(json, "gaps") < 1 || count_of(json, "lost") != 0 || count_of(json, "mismatched") != 0 ||
        count_of(json, "disordered") != 0 || count_of(json, "packets_received") < 500)
        fail_msg("%s", json);
    assert_int_equal(waitpid(pids[0], NULL, 0), pids[0]);
    pids[0] = 0;
}

static void test_status(void **state)
{
    char line[512], text[4096];
    (void)state;
    node_end(1, SIGKILL);
    snprintf(line, sizeof line, MILLRACE " status --pool --admin unix:%s,unix:%s 2>&1", in_folder("admin", 0),
             in_folder("admin", 1));
    assert_int_equal(test_command(line, text, sizeof text), 1);
    assert_non_null(strstr(text, "serving"));
    assert_non_null(strstr(text, "can not connect to unix:"));
    assert_non_null(strstr(text, "\n1                    ?"));
    snprintf(line, sizeof line, MILLRACE " status --pool --json --admin unix:%s | head -c 2",
             in_folder("admin", 0));
    assert_int_equal(test_command(line, text, sizeof text), 0);
    assert_string_equal(text, "[\n");
    assert_int_equal(
        test_command(MILLRACE " status --pool --streams --admin unix:/x 2>&1", text, sizeof text), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed, start_all, end_all),
        cmocka_unit_test_setup_teardown(test_stopped, start_all, end_all),
        cmocka_unit_test_setup_teardown(test_all_gone_and_one_back, start_all, end_all),
        cmocka_unit_test_setup_teardown(test_key_without_client_iv, start_all, end_all),
        cmocka_unit_test_setup_teardown(test_full, start_all, end_all),
        cmocka_unit_test_setup_teardown(test_encrypt, start_all, end_all),
        cmocka_unit_test_setup_teardown(test_replay, start_all, end_all),
        cmocka_unit_test_setup_teardown(test_status, start_all, end_all),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
