/* The server inside this process: its bytes, and what it leaves of itself when it has stopped, which is nothing.
 * libmillraced is found by LD_LIBRARY_PATH, as ctest sets it. */
#include "client/connection.h"
#include "tests/support/require.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS  120000
#define PACKET_BYTES 1408
#define STREAMS      8
#define PACKETS      50
#define CYCLES       50
#define THREADS      4
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GROWS_BY_ITSELF true /* the memory of a sanitizer */
#else
#define GROWS_BY_ITSELF false
#endif
#define TEXT_BYTES 65536

static char folder[64];
static char plain_server[PATH_MAX]; /* address */

static const uint8_t key[16] = "0123456789abcdef";

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = PACKET_BYTES,
    .burst_packets = 8,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 100 * CORE_NS_PER_MS,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .key_kind = MILLRACE_KEY_INLINE,
    .key = key,
    .key_bytes = sizeof key,
};

/* ---- configurations ---- */

#define BASE                                                                                                 \
    "limits: {streams: 64, streams_per_connection: 64}\noverload: {tighten: false}\n"                        \
    "threads: {io: 1, workers: 1, realtime: off}\n"
#define QUIET "log: {level: error}\n"
#define PLAIN BASE QUIET "profile: cpu-only\n"

/* Returns the address "embedded:FOLDER/NAME". */
static char *configure(const char *name, const char *text, char address[PATH_MAX])
{
    snprintf(address, PATH_MAX, "embedded:%s/%s", folder, name);
    FILE *file = fopen(strchr(address, ':') + 1, "w");
    TEST_REQUIRE(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    return address;
}

/* ---- what there is of this process ---- */

static void add(char *text, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, TEXT_BYTES - used, format, arguments);
    va_end(arguments);
}

/* Lines of a file, those that begin with one of the names; all if there is none. */
static void add_lines(char *text, const char *path, const char *const *names)
{
    char line[4096];
    FILE *file = fopen(path, "r");
    TEST_REQUIRE(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        bool wanted = names == NULL;
        for (size_t i = 0; names != NULL && names[i] != NULL; i++)
            wanted |= strncmp(line, names[i], strlen(names[i])) == 0;
        if (wanted)
            add(text, "%s", line);
    }
    fclose(file);
}

static void add_descriptors(char *text)
{
    for (int descriptor = 0; descriptor < 4096; descriptor++) {
        char path[64], target[PATH_MAX];
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        const ssize_t bytes = readlink(path, target, sizeof target - 1);
        if (bytes > 0)
            add(text, "%d: %.*s, flags %x %x\n", descriptor, (int)bytes, target, fcntl(descriptor, F_GETFD),
                fcntl(descriptor, F_GETFL));
    }
}

static void add_signals(char *text)
{
    struct sigaction action;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            add(text, "signal %d: %p, flags %x\n", number, (void *)action.sa_handler, action.sa_flags);
}

static void add_children(char *text)
{
    DIR *tasks = opendir("/proc/self/task");
    TEST_REQUIRE(tasks != NULL);
    for (const struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
        char path[300], line[4096] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/children", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(line, sizeof line, file) != NULL)
            add(text, "child %s\n", line);
        fclose(file);
    }
    closedir(tasks);
}

static void process_look(char text[TEXT_BYTES])
{
    static const char *const lines[] = {
        "Umask",  "Uid",    "Gid",        "Groups",  "VmLck",       "Threads",           "SigPnd", "ShdPnd",
        "SigBlk", "CapEff", "NoNewPrivs", "Seccomp", "CoreDumping", "Cpus_allowed_list", NULL};
    char path[PATH_MAX];
    struct sched_param priority;
    text[0] = '\0';
    add_lines(text, "/proc/self/status", lines);
    add_lines(text, "/proc/self/limits", NULL);
    add_descriptors(text);
    add_signals(text);
    add_children(text);
    add(text, "in %s, dumpable %d, policy %d", getcwd(path, sizeof path), prctl(PR_GET_DUMPABLE),
        sched_getscheduler(0));
    TEST_REQUIRE(sched_getparam(0, &priority) == 0);
    add(text, " %d\n", priority.sched_priority);
    for (char **variable = environ; *variable != NULL; variable++)
        add(text, "%s\n", *variable);
}

/* A thread that was joined may be in /proc for a moment. */
static void process_must_be(const char *before)
{
    static char now[TEXT_BYTES];
    for (int looks = 0; looks < 1000; looks++) {
        process_look(now);
        if (strcmp(now, before) == 0)
            return;
        poll(NULL, 0, 10);
    }
    size_t at = 0;
    while (now[at] == before[at])
        at++;
    while (at > 0 && now[at - 1] != '\n')
        at--;
    fail_msg("it was %.300s\nand is now %.300s", before + at, now + at);
}

/* A figure of /proc/self/status or of a thread's. */
static unsigned long long status_of(const char *path, const char *name, int base)
{
    static char text[TEXT_BYTES];
    const char *const names[] = {name, NULL};
    text[0] = '\0';
    add_lines(text, path, names);
    return text[0] == '\0' ? 0 : strtoull(text + strlen(name) + 1, NULL, base);
}

static unsigned long long threads(void)
{
    return status_of("/proc/self/status", "Threads", 10);
}

/* ---- what clients do ---- */

static struct millrace *connect_to(const char *address)
{
    struct millrace *connection = NULL;
    char error[MILLRACE_TEXT_BYTES];
    if (millrace_connect(address, NULL, PATIENCE_MS, &connection, error) != MILLRACE_OK)
        fail_msg("%s: %s", address, error);
    return connection;
}

static millrace_status try(const char *address, char error[MILLRACE_TEXT_BYTES])
{
    struct millrace *connection = NULL;
    const millrace_status status = millrace_connect(address, NULL, PATIENCE_MS, &connection, error);
    millrace_disconnect(connection);
    return status;
}

struct stream {
    uint32_t id;
    EVP_CIPHER_CTX *chain;
};

static bool stream_open(struct millrace *connection, struct stream *stream)
{
    struct millrace_opened opened = {.size = sizeof opened};
    stream->chain = EVP_CIPHER_CTX_new();
    if (millrace_open_stream(connection, &contract, PATIENCE_MS, &opened, NULL, NULL) != MILLRACE_OK)
        return false;
    stream->id = opened.stream;
    return EVP_EncryptInit_ex(stream->chain, EVP_aes_128_cbc(), NULL, key, opened.iv) == 1 &&
           EVP_CIPHER_CTX_set_padding(stream->chain, 0) == 1;
}

static bool stream_packet(struct millrace *connection, struct stream *stream, uint32_t number)
{
    uint8_t packet[PACKET_BYTES], ciphertext[PACKET_BYTES + 16], expected[PACKET_BYTES + 16];
    const uint32_t bytes = 16 * (1 + (number * 29 + stream->id * 7) % (PACKET_BYTES / 16));
    uint32_t got = 0;
    int made = 0;
    for (uint32_t i = 0; i < bytes; i++)
        packet[i] = (uint8_t)(number + stream->id * 31 + i * i);
    return millrace_encrypt(connection, stream->id, packet, bytes, PATIENCE_MS, ciphertext, &got, NULL,
                            NULL) == MILLRACE_OK &&
           EVP_EncryptUpdate(stream->chain, expected, &made, packet, (int)bytes) == 1 && got == bytes &&
           made == (int)bytes && memcmp(ciphertext, expected, bytes) == 0;
}

static bool stream_close(struct millrace *connection, struct stream *stream)
{
    EVP_CIPHER_CTX_free(stream->chain);
    return millrace_close_stream(connection, stream->id, PATIENCE_MS, NULL, NULL) == MILLRACE_OK;
}

/* Streams side by side, every byte as OpenSSL makes it. */
static bool encrypt(struct millrace *connection, uint32_t packets)
{
    struct stream streams[STREAMS] = {{.id = 0}};
    bool good = true;
    for (uint32_t i = 0; i < STREAMS; i++)
        good &= stream_open(connection, &streams[i]);
    for (uint32_t number = 0; good && number < packets; number++)
        for (uint32_t i = 0; good && i < STREAMS; i++)
            good = stream_packet(connection, &streams[i], number);
    for (uint32_t i = 0; i < STREAMS; i++)
        good &= stream_close(connection, &streams[i]);
    return good;
}

/* ---- tests ---- */

static void test_bytes_are_right_through_a_lane(void **state)
{
    (void)state;
    struct millrace *connection = connect_to(plain_server);
    assert_non_null(connection->transport.lane.memory);
    assert_true(millrace_welcome_of(connection)->flags & MILLRACE_ALLOWS_INLINE_KEY);
    assert_true(encrypt(connection, PACKETS));
    millrace_disconnect(connection);
}

static int mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    int lines = 0;
    TEST_REQUIRE(file != NULL);
    for (int got = fgetc(file); got != EOF; got = fgetc(file))
        lines += got == '\n';
    fclose(file);
    return lines;
}

/* The C library keeps stacks and arenas of threads for the next ones. */
static void test_nothing_is_left_of_it(void **state)
{
    static char before[TEXT_BYTES];
    int mapped = INT_MAX;
    (void)state;
    process_look(before);
    for (int i = 0; i < CYCLES; i++) {
        if (i == CYCLES / 5)
            mapped = mappings();
        struct millrace *connection = connect_to(plain_server);
        assert_true(encrypt(connection, 1));
        assert_true(threads() > 4);
        millrace_disconnect(connection);
        process_must_be(before);
    }
    assert_true(mappings() < mapped + CYCLES / 2 || GROWS_BY_ITSELF);
}

static void test_keys_are_locked(void **state)
{
    static uint8_t as_much[1 << 20];
    (void)state;
    const bool may_lock = mlock(as_much, sizeof as_much) == 0;
    const unsigned long long locked = status_of("/proc/self/status", "VmLck", 10);
    munlock(as_much, sizeof as_much);
    const unsigned long long before = status_of("/proc/self/status", "VmLck", 10);
    if (!may_lock || locked == before)
        skip(); /* the system permits none, or a sanitizer does nothing */
    struct millrace *connection = connect_to(plain_server);
    assert_true(status_of("/proc/self/status", "VmLck", 10) >= before + 128);
    millrace_disconnect(connection);
    assert_int_equal(status_of("/proc/self/status", "VmLck", 10), before);
}

static void test_an_end_with_streams_open(void **state)
{
    static char before[TEXT_BYTES];
    static const uint8_t packet[PACKET_BYTES];
    (void)state;
    process_look(before);
    for (int i = 0; i < 5; i++) {
        struct millrace *connection = connect_to(plain_server);
        for (int j = 0; j < 3; j++) {
            struct millrace_opened opened = {.size = sizeof opened};
            assert_int_equal(millrace_open_stream(connection, &contract, PATIENCE_MS, &opened, NULL, NULL),
                             MILLRACE_OK);
            for (int packets = 0; packets < 8; packets++)
                assert_int_equal(millrace_data(connection, opened.stream, packet, sizeof packet, NULL, NULL),
                                 MILLRACE_OK);
        }
        assert_int_equal(millrace_process(connection, 0, NULL), MILLRACE_OK);
        millrace_disconnect(connection);
        process_must_be(before);
    }
}

static void test_connections_share_it(void **state)
{
    char link[PATH_MAX], other[PATH_MAX], error[MILLRACE_TEXT_BYTES];
    static char before[TEXT_BYTES];
    (void)state;
    process_look(before);
    snprintf(link, sizeof link, "embedded:%s/link", folder);
    TEST_REQUIRE(symlink(strchr(plain_server, ':') + 1, strchr(link, ':') + 1) == 0);
    configure("other.yaml", PLAIN, other);

    struct millrace *first = connect_to(plain_server);
    const unsigned long long count = threads();
    struct millrace *second = connect_to(link);
    assert_int_equal(threads(), count);
    assert_true(encrypt(first, 2) && encrypt(second, 2));

    assert_int_equal(try(other, error), MILLRACE_INVALID);
    assert_non_null(strstr(error, strchr(plain_server, ':') + 1));
    assert_non_null(strstr(error, "close all connections"));

    millrace_disconnect(first);
    assert_true(encrypt(second, 2));
    millrace_disconnect(second);
    process_must_be(before);
    assert_int_equal(try(other, error), MILLRACE_OK);
    process_must_be(before);
}

static void test_what_is_wrong_is_told(void **state)
{
    static const struct {
        const char *text, *told;
    } configurations[] = {
        {PLAIN "limts: {streams: 3}\n", "wrong.yaml:6: unknown key 'limts'"},
        {BASE QUIET "profile: /none.yaml\n", "profile: "},
        {PLAIN "keyring: none.txt\n", "none.txt"},
        {PLAIN "sandbox: required\n", "would hold for all of the process"},
        {PLAIN "listeners: [{address: 'unix:/none/at/all'}]\n", "/none/at/all"},
        {BASE QUIET "profile: emulated-small\ngpus: {use: emulated, program: /none}\n", "/none"},
    };
    static char before[TEXT_BYTES];
    char address[PATH_MAX], error[MILLRACE_TEXT_BYTES];
    (void)state;
    process_look(before);
    for (size_t i = 0; i < sizeof configurations / sizeof configurations[0]; i++) {
        configure("wrong.yaml", configurations[i].text, address);
        assert_int_not_equal(try(address, error), MILLRACE_OK);
        if (strstr(error, configurations[i].told) == NULL)
            fail_msg("'%s' should tell of '%s'", error, configurations[i].told);
        process_must_be(before);
    }
    assert_int_not_equal(try("embedded:", error), MILLRACE_OK);
    assert_int_not_equal(try("embedded:/none.yaml", error), MILLRACE_OK);
    assert_non_null(strstr(error, "/none.yaml: No such file"));
    process_must_be(before);
    assert_int_equal(try(plain_server, error), MILLRACE_OK);
}

/* ---- signals ---- */

static volatile sig_atomic_t handled_by;

static void handle(int number)
{
    (void)number;
    handled_by = gettid();
}

static bool is_blocked_by_all(int number)
{
    DIR *tasks = opendir("/proc/self/task");
    bool blocked = true;
    TEST_REQUIRE(tasks != NULL);
    for (const struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(name, sizeof name, file) == NULL)
            name[0] = '\0';
        fclose(file);
        name[strcspn(name, "\n")] = '\0';
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        if (atoi(entry->d_name) == getpid() || strcmp(name, "test_client_emb") == 0)
            continue; /* ours, or a sanitizer's */
        blocked &= (status_of(path, "SigBlk", 16) >> (number - 1) & 1) != 0;
    }
    closedir(tasks);
    return blocked;
}

static void test_signals_are_the_callers(void **state)
{
    static const int numbers[] = {SIGHUP,  SIGINT,  SIGTERM, SIGUSR1, SIGUSR2,
                                  SIGCHLD, SIGPIPE, SIGALRM, SIGQUIT};
    const struct sigaction mine = {.sa_handler = handle};
    struct sigaction before;
    (void)state;
    struct millrace *connection = connect_to(plain_server);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_true(is_blocked_by_all(numbers[i]));
    sigaction(SIGTERM, &mine, &before);
    for (int i = 0; i < 20; i++) {
        handled_by = 0;
        assert_int_equal(kill(getpid(), SIGTERM), 0);
        assert_int_equal(handled_by, getpid());
    }
    assert_true(encrypt(connection, 1));
    millrace_disconnect(connection);
    sigaction(SIGTERM, &before, NULL);
}

/* Its log goes to nobody. */
static void test_a_log_without_a_reader_ends_nobody(void **state)
{
    char address[PATH_MAX];
    int ends[2], status = 0;
    (void)state;
    configure("loud.yaml", BASE "profile: cpu-only\nlog: {level: debug}\n", address);
    TEST_REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        _exit(try(address, NULL) == MILLRACE_OK ? 0 : 1);
    }
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- processes ---- */

static void test_a_fork_has_no_server(void **state)
{
    int status = 0;
    (void)state;
    struct millrace *connection = connect_to(plain_server);
    const pid_t child = fork();
    if (child == 0) {
        char error[MILLRACE_TEXT_BYTES];
        const bool told = try(plain_server, error) == MILLRACE_UNSUPPORTED && strstr(error, "fork") != NULL;
        millrace_disconnect(connection); /* its copy */
        _exit(told ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(encrypt(connection, 2));
    millrace_disconnect(connection);
}

/* The process of a card is a child of ours. It ends with the server, which takes nobody else's. */
static void test_processes_of_cards(void **state)
{
    static char before[TEXT_BYTES];
    char text[PATH_MAX + 512], address[PATH_MAX];
    int status = 0;
    (void)state;
    snprintf(text, sizeof text,
             BASE QUIET "profile: emulated-small\ngpus: {use: emulated, program: '%s/gpu/millrace-gpu'}\n",
             MILLRACE_BINARY_DIR);
    configure("cards.yaml", text, address);
    process_look(before);
    const pid_t child = fork();
    if (child == 0)
        _exit(17);
    for (int i = 0; i < 3; i++) {
        struct millrace *connection = connect_to(address);
        assert_true(encrypt(connection, 2));
        millrace_disconnect(connection);
    }
    assert_int_equal(waitpid(-1, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 17);
    assert_int_equal(waitpid(-1, &status, WNOHANG), -1);
    process_must_be(before);

    const struct sigaction ignored = {.sa_handler = SIG_IGN};
    struct sigaction usual;
    sigaction(SIGCHLD, &ignored, &usual); /* the system collects them */
    struct millrace *connection = connect_to(address);
    assert_true(encrypt(connection, 2));
    millrace_disconnect(connection);
    sigaction(SIGCHLD, &usual, NULL);
    process_must_be(before);
}

static void test_real_time_is_the_threads_alone(void **state)
{
    static char before[TEXT_BYTES];
    char address[PATH_MAX];
    (void)state;
    configure("realtime.yaml",
              "limits: {streams: 64, streams_per_connection: 64}\nprofile: cpu-only\nlog: {level: error}\n"
              "threads: {io: 1, workers: 1, realtime: auto}\n",
              address);
    process_look(before);
    struct millrace *connection = connect_to(address);
    assert_true(encrypt(connection, 2));
    millrace_disconnect(connection);
    process_must_be(before);
}

static void test_listeners_where_they_are_configured(void **state)
{
    static char before[TEXT_BYTES];
    char text[PATH_MAX + 512], address[PATH_MAX], path[PATH_MAX];
    (void)state;
    process_look(before);
    snprintf(path, sizeof path, "unix:%s/socket", folder);
    snprintf(text, sizeof text, PLAIN "listeners: [{address: '%s'}]\nadmin: unix:%s/admin\n", path, folder);
    configure("listens.yaml", text, address);
    struct millrace *inside = connect_to(address), *outside = connect_to(path);
    assert_true(encrypt(inside, 2) && encrypt(outside, 2));
    millrace_disconnect(outside);
    millrace_disconnect(inside);
    process_must_be(before);
    assert_int_not_equal(access(path + strlen("unix:"), F_OK), 0);
}

/* A program that closes nothing: the server ends with it, though results wait for their reader. */
static void test_an_exit_ends_it(void **state)
{
    char text[PATH_MAX + 512], address[PATH_MAX], path[PATH_MAX];
    int status = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/socket", folder);
    snprintf(text, sizeof text,
             BASE "log: {level: error}\nprofile: cpu-only\nlisteners: [{address: 'unix:%s'}]\n"
                  "timeouts: {drain_ms: 5min, stall_ms: 5min}\n",
             path);
    configure("exits.yaml", text, address);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        static const uint8_t packet[PACKET_BYTES];
        static struct millrace *connection;
        static struct millrace_opened opened = {.size = sizeof opened};
        struct millrace_open large = contract; /* its results have no room on their way */
        large.burst_packets = 1000;
        bool good = millrace_connect(address, NULL, PATIENCE_MS, &connection, NULL) == MILLRACE_OK &&
                    access(path, F_OK) == 0 &&
                    millrace_open_stream(connection, &large, PATIENCE_MS, &opened, NULL, NULL) == MILLRACE_OK;
        for (int i = 0; good && i < 1000; i++)
            good = millrace_data(connection, opened.stream, packet, sizeof packet, NULL, NULL) == MILLRACE_OK;
        for (int i = 0; good && i < 1000 && millrace_unsent_bytes(connection) > 0; i++) {
            good = millrace_flush(connection, NULL) == MILLRACE_OK;
            poll(NULL, 0, 1);
        }
        close(STDERR_FILENO); /* what it says of packets that were not delivered */
        exit(good ? 17 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 17);
    assert_int_not_equal(access(path, F_OK), 0);
}

static char slow_server[PATH_MAX];
static unsigned long long threads_at_end; /* the caller's, and the one that connects */

static void *connect_slowly(void *unused)
{
    (void)try(slow_server, NULL);
    return unused;
}

static bool is_judged; /* this process, when it ends */

/* Registered before the server's end, so it comes behind that. */
static void judge_the_end(void)
{
    char error[MILLRACE_TEXT_BYTES] = "";
    if (!is_judged)
        return;
    const bool ended = threads() <= threads_at_end;
    const bool told = try(plain_server, error) != MILLRACE_OK && strstr(error, "the process ends") != NULL;
    _exit(ended && told ? 17 : 1);
}

/* While another thread is in the first connect, which takes long: the server that it starts is ended nevertheless,
 * and no other is started. */
static void test_an_exit_during_a_start(void **state)
{
    char text[2 * PATH_MAX + 512], program[PATH_MAX], begun[PATH_MAX];
    int status = 0;
    (void)state;
    snprintf(begun, sizeof begun, "%s/begun", folder);
    snprintf(program, sizeof program, "%s/slow", folder);
    FILE *file = fopen(program, "w");
    TEST_REQUIRE(file != NULL);
    fprintf(file, "#!/bin/sh\n: > %s\nsleep 1\nexec %s/gpu/millrace-gpu \"$@\"\n", begun,
            MILLRACE_BINARY_DIR);
    TEST_REQUIRE(fchmod(fileno(file), 0755) == 0 && fclose(file) == 0);
    snprintf(text, sizeof text, BASE QUIET "profile: emulated-small\ngpus: {use: emulated, program: '%s'}\n",
             program);
    configure("slow.yaml", text, slow_server);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        pthread_t connecting;
        threads_at_end = threads() + 1;
        is_judged = true;
        if (pthread_create(&connecting, NULL, connect_slowly, NULL) != 0 || pthread_detach(connecting) != 0)
            _exit(2);
        while (access(begun, F_OK) != 0)
            poll(NULL, 0, 1);
        exit(3); /* which judge_the_end replaces */
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 17);
}

/* Of the C library, which the server asks under its lock, before it starts: here, for as long as a test wants. */
static _Atomic bool holds, is_held;

char *realpath(const char *restrict path, char *restrict resolved)
{
    char *(*usual)(const char *, char *);
    *(void **)&usual = dlsym(RTLD_NEXT, "realpath");
    while (atomic_load(&holds)) {
        atomic_store(&is_held, true);
        poll(NULL, 0, 1);
    }
    return usual(path, resolved);
}

static void *connect_held(void *unused)
{
    return try(plain_server, NULL) == MILLRACE_OK ? unused : NULL;
}

/* Whose lock another thread has had, which is not in the child. */
static void test_a_fork_during_a_start(void **state)
{
    pthread_t connecting;
    void *good;
    int status = 0;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it ends a child that starts threads, where the parent had several */
#endif
    atomic_store(&holds, true);
    TEST_REQUIRE(pthread_create(&connecting, NULL, connect_held, &status) == 0);
    while (!atomic_load(&is_held))
        poll(NULL, 0, 1);
    const pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_MS / 1000);
        atomic_store(&holds, false);
        _exit(try(plain_server, NULL) == MILLRACE_OK ? 17 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    atomic_store(&holds, false);
    TEST_REQUIRE(pthread_join(connecting, &good) == 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 17);
    assert_non_null(good);
}

/* ---- threads ---- */

static void *come_and_go(void *unused)
{
    bool good = true;
    for (int i = 0; good && i < 10; i++) {
        struct millrace *connection = NULL;
        good = millrace_connect(plain_server, NULL, PATIENCE_MS, &connection, NULL) == MILLRACE_OK &&
               encrypt(connection, 1);
        millrace_disconnect(connection);
    }
    return good ? unused : NULL;
}

static void test_threads_come_and_go(void **state)
{
    static char before[TEXT_BYTES];
    pthread_t crowd[THREADS];
    void *good;
    (void)state;
    process_look(before);
    for (int i = 0; i < THREADS; i++)
        TEST_REQUIRE(pthread_create(&crowd[i], NULL, come_and_go, crowd) == 0);
    for (int i = 0; i < THREADS; i++) {
        TEST_REQUIRE(pthread_join(crowd[i], &good) == 0);
        assert_non_null(good);
    }
    process_must_be(before);
}

/* ---- all ---- */

static void *end_at_once(void *unused)
{
    return unused;
}

static int set_up(void **state)
{
    struct rlimit files;
    pthread_t first; /* a sanitizer begins one of its own with it */
    (void)state;
    TEST_REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max > 700 ? 700 : files.rlim_cur; /* so that it can be raised */
    TEST_REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
    if (pthread_create(&first, NULL, end_at_once, NULL) != 0 || pthread_join(first, NULL) != 0)
        return -1;
    snprintf(folder, sizeof folder, "/tmp/millrace-embedded-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    configure("plain.yaml", PLAIN, plain_server);
    return atexit(judge_the_end);
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command); // NOLINT(cert-env33-c)
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_left_of_it), /* the first start is one of them */
        cmocka_unit_test(test_bytes_are_right_through_a_lane),
        cmocka_unit_test(test_keys_are_locked),
        cmocka_unit_test(test_an_end_with_streams_open),
        cmocka_unit_test(test_connections_share_it),
        cmocka_unit_test(test_what_is_wrong_is_told),
        cmocka_unit_test(test_signals_are_the_callers),
        cmocka_unit_test(test_a_log_without_a_reader_ends_nobody),
        cmocka_unit_test(test_a_fork_has_no_server),
        cmocka_unit_test(test_processes_of_cards),
        cmocka_unit_test(test_real_time_is_the_threads_alone),
        cmocka_unit_test(test_listeners_where_they_are_configured),
        cmocka_unit_test(test_an_exit_ends_it),
        cmocka_unit_test(test_an_exit_during_a_start),
        cmocka_unit_test(test_a_fork_during_a_start),
        cmocka_unit_test(test_threads_come_and_go),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
