/* millraced while nobody reads its standard error, and where it has none: nothing waits for the log. Drives
 * the binary, with its GPU's process on an emulated card. */
#include "tests/support/http.h"
#include "tests/support/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MILLRACED MILLRACE_BINARY_DIR "/server/millraced"
#define CONFIG                                                                                               \
    "listeners: [{address: 'unix:socket'}]\nadmin: unix:admin\nlog: {level: debug}\n"                        \
    "profile: " MILLRACE_SOURCE_DIR "/config/profiles/emulated-small.yaml\ngpus: {use: emulated}\n"          \
    "threads: {realtime: off, pin: false}\nengine: ipsec-mb\nlimits: {streams: 100}\n"
#define ROUNDS_MAX 100000 /* against an endless test; a hundred or so are needed */

/* ---- a folder with a configuration ---- */

static char folder[64];

static struct core_address address_of(const char *name)
{
    struct core_address address = {.transport = CORE_TRANSPORT_UNIX};
    snprintf(address.host, sizeof address.host, "%s/%s", folder, name);
    return address;
}

static int make_folder(void **state)
{
    char path[96];
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/millraced-test-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/config", folder);
    FILE *file = fopen(path, "w");
    return file == NULL || fputs(CONFIG, file) < 0 || fclose(file) != 0;
}

static int remove_folder(void **state)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    (void)state;
    if (directory == NULL)
        return -1;
    while ((entry = readdir(directory)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    return rmdir(folder);
}

/* ---- the daemon ---- */

/* Standard error: this descriptor; -1: 0, 1 and 2 are closed. */
static pid_t spawn(int log)
{
    char config[96];
    const pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    snprintf(config, sizeof config, "%s/config", folder);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(127); /* the test has ended before us */
    if (log >= 0)
        dup2(log, STDERR_FILENO);
    else
        for (int descriptor = 0; descriptor < 3; descriptor++)
            close(descriptor);
    execl(MILLRACED, "millraced", config, NULL);
    _exit(127);
}

static bool is_reachable(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", folder, name);
    const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool reached = connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0;
    close(descriptor);
    return reached;
}

static json_t *status(void)
{
    const struct core_address admin = address_of("admin");
    return http_json(&admin, "/status");
}

static uint64_t log_lost(void)
{
    json_t *root = status();
    const json_t *lost = json_object_get(root, "log_lost");
    assert_true(json_is_integer(lost));
    const uint64_t lines = (uint64_t)json_integer_value(lost);
    json_decref(root);
    return lines;
}

/* 0: the card is not in service. */
static pid_t card_process(void)
{
    json_t *root = status();
    const json_t *gpu = json_array_get(json_object_get(root, "gpus"), 0);
    const char *state = json_string_value(json_object_get(gpu, "state"));
    const bool up = state != NULL && strcmp(state, "up") == 0;
    const pid_t pid = up ? (pid_t)json_integer_value(json_object_get(gpu, "process")) : 0;
    json_decref(root);
    return pid;
}

/* Until it serves, card and all: the log can not be asked. Returns the card's process. */
static pid_t await_service(pid_t pid)
{
    pid_t card = 0;
    for (int waited_ms = 0; card == 0; waited_ms += 10) {
        if (waited_ms > TEST_PATIENCE_MS || waitpid(pid, NULL, WNOHANG) != 0)
            fail_msg("the server does not serve");
        if (is_reachable("socket") && is_reachable("admin"))
            card = card_process();
        poll(NULL, 0, 10);
    }
    return card;
}

static int join(pid_t pid)
{
    int status_word = 0;
    for (int waited_ms = 0; waitpid(pid, &status_word, WNOHANG) == 0; waited_ms += 10) {
        if (waited_ms > TEST_PATIENCE_MS) {
            kill(pid, SIGKILL);
            fail_msg("process %d did not end", (int)pid);
        }
        poll(NULL, 0, 10);
    }
    return status_word;
}

/* ---- a log that nobody reads ---- */

static int log_pipe[2];

/* Of 4 KiB, and full before the server starts. */
static pid_t start_with_full_pipe(void)
{
    char bytes[4096];
    memset(bytes, '\n', sizeof bytes);
    assert_int_equal(pipe2(log_pipe, O_CLOEXEC), 0);
    assert_true(fcntl(log_pipe[1], F_SETPIPE_SZ, (int)sizeof bytes) >= 0);
    assert_int_equal(fcntl(log_pipe[1], F_SETFL, O_NONBLOCK), 0);
    while (write(log_pipe[1], bytes, sizeof bytes) > 0)
        ;
    assert_int_equal(fcntl(log_pipe[1], F_SETFL, 0), 0);
    const pid_t pid = spawn(log_pipe[1]);
    close(log_pipe[1]);
    return pid;
}

/* Four lines: a connection is opened and breaks the protocol, keys are read again. */
static void misbehave(pid_t pid)
{
    static const char bytes[64] = "this is no HELLO";
    struct test_client client;
    struct core_address address = address_of("socket");
    test_client_dial(&client, &address);
    (void)test_client_send(&client, bytes, sizeof bytes);
    test_client_close(&client);
    assert_int_equal(kill(pid, SIGHUP), 0);
}

/* Packets go through among clients that misbehave, until lines are lost. */
static uint64_t serve_until_lines_are_lost(pid_t pid)
{
    struct core_address address = address_of("socket");
    struct test_client client;
    uint64_t lost = 0;
    int round = 0;
    test_client_connect(&client, &address, NULL);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 5);
    for (; lost == 0 && round < ROUNDS_MAX; round++) {
        misbehave(pid);
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
        test_client_ping(&client);
        lost = log_lost();
    }
    assert_true(lost > 0);
    test_stream_close(stream);
    test_stream_free(stream);
    test_client_close(&client);
    return lost;
}

static void a_log_that_nobody_reads_holds_up_nothing(void **state)
{
    (void)state;
    const pid_t pid = start_with_full_pipe();
    (void)await_service(pid);
    (void)serve_until_lines_are_lost(pid);
    assert_int_equal(kill(pid, SIGTERM), 0);
    const int ended = join(pid);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    close(log_pipe[0]);
}

/* All that the pipe gives until its last writer has ended, terminated. */
static char *read_log(void)
{
    const size_t room = (size_t)1 << 22;
    size_t bytes = 0;
    ssize_t more;
    char *text = malloc(room);
    assert_non_null(text);
    while ((more = read(log_pipe[0], text + bytes, room - 1 - bytes)) > 0)
        bytes += (size_t)more;
    text[bytes] = '\0';
    close(log_pipe[0]);
    return text;
}

static void what_was_lost_is_told_when_it_is_read_again(void **state)
{
    uint64_t told = 0;
    (void)state;
    const pid_t pid = start_with_full_pipe();
    (void)await_service(pid);
    const uint64_t lost = serve_until_lines_are_lost(pid);
    assert_int_equal(kill(pid, SIGTERM), 0);
    char *text = read_log();
    assert_int_equal(join(pid), 0);
    for (const char *line = text; (line = strstr(line, " log.lost ")) != NULL; line++)
        told += strtoull(line + strlen(" log.lost "), NULL, 10);
    assert_true(told >= lost);
    assert_non_null(strstr(text, "start.ready"));
    assert_non_null(strstr(text, "stop.done"));
    free(text);
}

/* A server that is stopped gives no sign of life: a card's process says so, overwrites its keys and ends,
 * also where nobody reads. Its server can not collect it, so that its exit code is to be had after it. */
static void a_cards_process_ends_where_nobody_reads(void **state)
{
    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const pid_t pid = start_with_full_pipe();
    const pid_t card = await_service(pid);
    struct pollfd gone = {.fd = (int)syscall(SYS_pidfd_open, card, 0), .events = POLLIN};
    assert_true(gone.fd >= 0);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    const int seen = poll(&gone, 1, TEST_PATIENCE_MS);
    close(gone.fd);
    assert_int_equal(kill(pid, SIGKILL), 0);
    (void)join(pid);
    const int ended = join(card);
    assert_int_equal(seen, 1);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 5); /* the server fell silent */
    close(log_pipe[0]);
}

/* ---- no standard error ---- */

static void assert_is_null(pid_t pid, int descriptor)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, descriptor);
    const ssize_t bytes = readlink(path, target, sizeof target - 1);
    assert_true(bytes > 0);
    target[bytes] = '\0';
    assert_string_equal(target, "/dev/null");
}

static void closed_descriptors_are_not_taken_for_the_log(void **state)
{
    (void)state;
    const pid_t pid = spawn(-1);
    const pid_t card = await_service(pid);
    for (int descriptor = 0; descriptor < 3; descriptor++) {
        assert_is_null(pid, descriptor);
        assert_is_null(card, descriptor);
    }
    (void)serve_until_lines_are_lost(pid);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(join(pid), 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_log_that_nobody_reads_holds_up_nothing),
        TEST(what_was_lost_is_told_when_it_is_read_again),
        TEST(a_cards_process_ends_where_nobody_reads),
        TEST(closed_descriptors_are_not_taken_for_the_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
