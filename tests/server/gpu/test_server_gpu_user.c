/* The user of a card's process, and that the server keeps its hold on it: only root can start one as another
 * user. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/user.h"
#include "server/server.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define PRIORITY 7 /* of workers and of a card's loop */

static const struct core_stream_spec gpu_spec = {.packet_bytes = 1408,
                                                 .burst_packets = 4,
                                                 .interval_ns = 5 * CORE_NS_PER_MS,
                                                 .latency_ns = 100 * CORE_NS_PER_MS,
                                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                                 .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;

static void start(const char *gpus, const char *realtime)
{
    char yaml[128];
    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(100000); /* so that streams go to the card */
    snprintf(yaml, sizeof yaml, "threads: {realtime: %s, pin: false, worker_priority: %d, io_priority: 6}\n",
             realtime, PRIORITY);
    test_gpu_server_start(&server, gpus, yaml, profile);
}

static void stop(void)
{
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

static void only_root(void)
{
    if (geteuid() == 0 && core_user_may_change())
        return;
    print_message("only root may start processes as another user\n");
    skip();
}

/* ThreadSanitizer has a thread of its own in each process, and allows none to be started after a fork. */
static void not_under_tsan(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

/* A copy of the numbers: the server looks users up, too. */
static struct passwd find(const char *name)
{
    const struct passwd *entry = getpwnam(name);
    assert_non_null(entry);
    return (struct passwd){.pw_uid = entry->pw_uid, .pw_gid = entry->pw_gid};
}

/* ---- what the system says of a process ---- */

static const char *read_status(pid_t process)
{
    static char text[4096];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)process);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    text[bytes < 0 ? 0 : bytes] = '\0';
    if (descriptor >= 0)
        close(descriptor);
    return text;
}

static void expect_status(pid_t process, const char *line)
{
    const char *text = read_status(process);
    if (strstr(text, line) == NULL)
        fail_msg("'%s' is not in the status of process %d: %s", line, (int)process, text);
}

/* All four ids of each kind, no other group, no capability that it has or could hand down. */
static void expect_user(pid_t process, const struct passwd *user)
{
    char line[128];
    const unsigned uid = user->pw_uid, gid = user->pw_gid;
    snprintf(line, sizeof line, "\nUid:\t%u\t%u\t%u\t%u\n", uid, uid, uid, uid);
    expect_status(process, line);
    snprintf(line, sizeof line, "\nGid:\t%u\t%u\t%u\t%u\n", gid, gid, gid, gid);
    expect_status(process, line);
    snprintf(line, sizeof line, "\nGroups:\t%u \n", gid);
    expect_status(process, line);
    for (size_t i = 0; i < 4; i++) {
        snprintf(line, sizeof line, "\nCap%s:\t0000000000000000\n",
                 (const char *[]){"Inh", "Prm", "Eff", "Amb"}[i]);
        expect_status(process, line);
    }
    expect_status(process, "\nNoNewPrivs:\t1\n");
}

static void encrypt(uint32_t packets)
{
    struct test_client client;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &gpu_spec, 1);
    assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
    for (uint32_t i = 0; i < packets; i++) {
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
    assert_int_equal(test_stream_close(stream).packets, packets);
    test_stream_free(stream);
    test_client_close(&client);
}

/* ---- the cases ---- */

static void gpu_user_nobody_by_default(void **state)
{
    const struct passwd nobody = find("nobody");
    (void)state;
    only_root();
    start("audit: 1", "off");
    const pid_t first = test_gpu_process(&server, 0);
    expect_user(first, &nobody);
    encrypt(20);
    assert_int_equal(kill(first, SIGKILL), 0);
    test_gpu_await_up(&server, 0, first);
    const pid_t second = test_gpu_process(&server, 0);
    expect_user(second, &nobody);
    encrypt(20);
    stop();
    assert_int_equal(kill(second, 0), -1);
}

/* One that is hung is ended by the server, which must have the right to. */
static void hanging_gpu_process_killed(void **state)
{
    (void)state;
    only_root();
    start("hang_ms: 50", "off");
    const pid_t first = test_gpu_process(&server, 0);
    assert_int_equal(kill(first, SIGSTOP), 0);
    test_gpu_await_up(&server, 0, first);
    assert_int_equal(kill(first, 0), -1);
    encrypt(5);
    stop();
}

static void a_number_is_a_name(void **state)
{
    const struct passwd user = find("daemon");
    char gpus[64];
    (void)state;
    only_root();
    snprintf(gpus, sizeof gpus, "user: %u", user.pw_uid);
    start(gpus, "off");
    expect_user(test_gpu_process(&server, 0), &user);
    encrypt(5);
    stop();
}

static void gpu_user_root_on_request(void **state)
{
    static const char *const gpus[] = {"user: root", "user: 0"};
    (void)state;
    only_root();
    for (size_t i = 0; i < 2; i++) {
        start(gpus[i], "off");
        expect_status(test_gpu_process(&server, 0), "\nUid:\t0\t0\t0\t0\n");
        encrypt(5);
        stop();
    }
}

static void gpu_user_unchanged_without_root(void **state)
{
    char line[64];
    const unsigned uid = geteuid();
    (void)state;
    if (uid == 0)
        skip();
    start("audit: 1", "off");
    snprintf(line, sizeof line, "\nUid:\t%u\t%u\t%u\t%u\n", uid, uid, uid, uid);
    expect_status(test_gpu_process(&server, 0), line);
    stop();
}

/* ---- rights that it had, and needs ---- */

static bool may_be_real_time(void)
{
    const struct sched_param parameters = {.sched_priority = PRIORITY}, none = {0};
    const bool may = sched_setscheduler(0, SCHED_FIFO, &parameters) == 0;
    return may && sched_setscheduler(0, SCHED_OTHER, &none) == 0;
}

/* Threads of the process that have PRIORITY. */
static unsigned real_time_threads(pid_t process)
{
    char path[64];
    struct sched_param parameters;
    unsigned count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    DIR *threads = opendir(path);
    assert_non_null(threads);
    for (const struct dirent *entry; (entry = readdir(threads)) != NULL;) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread > 0 && sched_getscheduler(thread) == SCHED_FIFO &&
            sched_getparam(thread, &parameters) == 0 && parameters.sched_priority == PRIORITY)
            count++;
    }
    closedir(threads);
    return count;
}

static void its_threads_have_their_priority(void **state)
{
    (void)state;
    only_root();
    not_under_tsan();
    if (!may_be_real_time()) {
        print_message("SCHED_FIFO is not permitted here\n");
        skip();
    }
    start("user: root", "auto");
    const pid_t as_root = test_gpu_process(&server, 0);
    const unsigned threads = real_time_threads(as_root);
    assert_true(threads > 0);
    stop();
    start("audit: 1", "auto");
    const pid_t as_nobody = test_gpu_process(&server, 0);
    assert_int_equal(real_time_threads(as_nobody), threads);
    assert_int_equal(sched_getscheduler(as_nobody), SCHED_OTHER); /* the watch */
    encrypt(5);
    stop();
}

/* A limit that nobody could not raise. */
static bool may_raise_limits(void)
{
    struct rlimit limit, unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setrlimit(RLIMIT_MEMLOCK, &unlimited) == 0 &&
           setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

static void its_memory_is_locked(void **state)
{
    (void)state;
    only_root();
    if (!may_raise_limits()) {
        print_message("the limit of locked memory can not be raised here\n");
        skip();
    }
    start("audit: 1", "off");
    const char *locked = strstr(read_status(test_gpu_process(&server, 0)), "\nVmLck:");
    assert_non_null(locked);
    assert_true(strtoul(locked + strlen("\nVmLck:"), NULL, 10) > 8192);
    stop();
}

/* ---- the server as a process ---- */

/* Within its sandbox; tells the number of each process that its card has. */
static void serve(int tell)
{
    struct core_error error = {""};
    TEST_REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    start("audit: 1", "off");
    TEST_REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    TEST_REQUIRE(server_sandbox(server.server, &error) == CORE_OK);
    for (pid_t card = 0;;) {
        test_gpu_await_up(&server, 0, card);
        card = test_gpu_process(&server, 0);
        TEST_REQUIRE(write(tell, &card, sizeof card) == sizeof card);
        while (test_gpu_process(&server, 0) == card)
            poll(NULL, 0, 10);
    }
}

static pid_t next_card(int told)
{
    pid_t card = 0;
    struct pollfd ready = {.fd = told, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, TEST_PATIENCE_MS), 1);
    assert_int_equal(read(told, &card, sizeof card), sizeof card);
    return card;
}

/* It is stopped, so that only the kernel can have ended it. */
static void expect_end_with(pid_t serving, pid_t card)
{
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, card, 0), .events = POLLIN};
    assert_true(ended.fd >= 0);
    assert_int_equal(kill(card, SIGSTOP), 0);
    assert_int_equal(kill(serving, SIGKILL), 0);
    assert_int_equal(waitpid(serving, NULL, 0), serving);
    const int ready = poll(&ended, 1, TEST_PATIENCE_MS);
    if (ready != 1)
        (void)kill(card, SIGKILL);
    close(ended.fd);
    assert_int_equal(ready, 1);
}

static void gpu_process_restarts_sandboxed_and_ends_with_server(void **state)
{
    const struct passwd nobody = find("nobody");
    int ends[2];
    (void)state;
    only_root();
    not_under_tsan();
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t serving = fork();
    assert_true(serving >= 0);
    if (serving == 0)
        serve(ends[1]);
    close(ends[1]);
    assert_int_equal(kill(next_card(ends[0]), SIGKILL), 0);
    const pid_t card = next_card(ends[0]);
    expect_user(card, &nobody);
    expect_end_with(serving, card);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpu_user_nobody_by_default),
        cmocka_unit_test(hanging_gpu_process_killed),
        cmocka_unit_test(a_number_is_a_name),
        cmocka_unit_test(gpu_user_root_on_request),
        cmocka_unit_test(gpu_user_unchanged_without_root),
        cmocka_unit_test(its_threads_have_their_priority),
        cmocka_unit_test(its_memory_is_locked),
        cmocka_unit_test(gpu_process_restarts_sandboxed_and_ends_with_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
