/* A thread with a deadline makes no system call that can wait for an ordinary thread or for a device: no file
 * is opened, no log written, no child started or awaited, no random number asked of the kernel. I/O threads,
 * workers and batchers run here under a filter of the kernel (seccomp) that lets only a list of calls pass,
 * and traps all others, while clients come, break the rules, are refused and leave, and a card is lost.
 * Nor does it wait for a lock of OpenSSL's, which a thread of ordinary priority may hold.
 * A batcher opens its card before it has a deadline; it is confined from its first look at the card on.
 * Sanitizers make calls of their own; the test is skipped there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <openssl/rand.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "core/log.h"
#include "core/realtime.h"
#include "gpu/engine.h"
#include "server/net/io.h"
#include "tests/support/certificates.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/http.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define FRAMES_MAX 32

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)

int main(void)
{
    return 77; /* skipped */
}

#else

/* ---- the filter ---- */

static atomic_uint offences;
#define LOCKED (-1)
static _Atomic int offending_call; /* of the first one: its number, or LOCKED; */
static char offending_thread[16];  /* who made it, */
static void *offence[FRAMES_MAX];  /* and from where */
static int offence_frames;

/* The call has not been made; it fails with ENOSYS. */
static void note_offence(int call)
{
    if (atomic_fetch_add(&offences, 1) != 0)
        return;
    atomic_store(&offending_call, call);
    prctl(PR_GET_NAME, offending_thread);
    offence_frames = backtrace(offence, FRAMES_MAX);
}

static void on_trapped(int number, siginfo_t *info, void *context)
{
    (void)number;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -ENOSYS;
    note_offence(info->si_syscall);
}

/* cmocka sets a handler of its own before each test. */
static void catch_trapped(void)
{
    static const struct sigaction trapped = {.sa_sigaction = on_trapped, .sa_flags = SA_SIGINFO};
    TEST_REQUIRE(sigaction(SIGSYS, &trapped, NULL) == 0);
}

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define ALLOW        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define TRAP         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)
#define PERMIT(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), ALLOW

/* What is on this list waits only where the thread has nothing to do, or for another thread with a deadline.
 * Descriptors 0 to 2, where a log goes, are never written to. */
static struct sock_filter filter[] = {
    LOAD(nr),
    /* waiting, clocks, and waking others */
    PERMIT(epoll_wait),
    PERMIT(epoll_pwait),
    PERMIT(epoll_pwait2),
    PERMIT(epoll_ctl),
    PERMIT(poll),
    PERMIT(ppoll),
    PERMIT(futex),
    PERMIT(clock_nanosleep),
    PERMIT(clock_gettime),
    PERMIT(timerfd_settime),
    PERMIT(sched_yield),
    /* sockets, which do not block, and eventfds */
    PERMIT(accept4),
    PERMIT(recvfrom),
    PERMIT(recvmsg),
    PERMIT(sendto),
    PERMIT(sendmsg),
    PERMIT(read),
    PERMIT(getsockopt),
    PERMIT(setsockopt),
    PERMIT(getsockname),
    PERMIT(getpeername),
    PERMIT(ioctl),
    PERMIT(shutdown),
    PERMIT(close),
    /* of the thread itself */
    PERMIT(rt_sigprocmask),
    PERMIT(rt_sigreturn),
    PERMIT(set_robust_list),
    PERMIT(prctl),
    PERMIT(getrusage), /* of RUSAGE_THREAD: spin locks only */
    PERMIT(gettid),
    PERMIT(getpid),
    /* a card's process and its threads: are they there, and their end */
    PERMIT(tgkill),
    PERMIT(pidfd_send_signal),
    PERMIT(exit),
    PERMIT(madvise), /* of its stack, at its end */
    /* how it ended; who collects it may have to wait (gpu/keeper.h) */
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_waitid, 0, 4),
    LOAD(args[3]),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WEXITED | WNOHANG | WNOWAIT, 0, 1),
    ALLOW,
    TRAP,
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, STDERR_FILENO, 0, 1),
    ALLOW,
    TRAP,
};

static void confine(void)
{
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    TEST_REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    TEST_REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* ---- threads of the server ---- */

struct confined {
    void *(*run)(void *);
    void *argument;
};

static unsigned confined_threads;
static _Thread_local bool is_confined;
static _Atomic bool promises; /* the server has started: locks count from here on */

/* A filter does not see who waits for whom. The locks of OpenSSL pass no priority on, and threads of ordinary
 * priority take them: that of its heap for keys, that of its random numbers. This is the function that it
 * calls, too. */
int pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
    static int (*_Atomic real)(pthread_rwlock_t *);
    int (*call)(pthread_rwlock_t *) = atomic_load(&real);
    if (call == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_rwlock_wrlock");
        TEST_REQUIRE(found != NULL);
        memcpy(&call, &found, sizeof call);
        atomic_store(&real, call);
    }
    if (is_confined && atomic_load(&promises))
        note_offence(LOCKED);
    return call(lock);
}

static void *run_confined(void *argument)
{
    struct confined confined = *(struct confined *)argument;
    free(argument);
    is_confined = true;
    confine();
    return confined.run(confined.argument);
}

core_status __real_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error);
core_status __wrap_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error);

core_status __wrap_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error)
{
    static const char *const names[] = {"io-", "worker-", "standby"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncmp(options->name, names[i], strlen(names[i])) == 0) {
            struct confined *confined = malloc(sizeof *confined);
            TEST_REQUIRE(confined != NULL);
            confined_threads++;
            *confined = (struct confined){run, argument};
            return __real_core_thread_start(thread, options, run_confined, confined, not_permitted, error);
        }
    return __real_core_thread_start(thread, options, run, argument, not_permitted, error);
}

static atomic_uint confined_batchers;

core_status __real_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event);
core_status __wrap_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event);

core_status __wrap_gpu_engine_poll(struct gpu_engine *engine, core_ns now_ns, struct gpu_event *event)
{
    if (!is_confined) {
        confine();
        is_confined = true;
        atomic_fetch_add(&confined_batchers, 1);
    }
    return __real_gpu_engine_poll(engine, now_ns, event);
}

/* ---- what clients do ---- */

static struct test_server server;
static SSL_CTX *tls;

static void connect_to(struct test_client *client, uint32_t listener)
{
    struct protocol_welcome welcome;
    test_client_dial(client, server_address(server.server, listener));
    if (server_address(server.server, listener)->transport == CORE_TRANSPORT_TLS)
        TEST_REQUIRE(test_client_secure(client, tls));
    test_client_hello(client, &welcome);
}

/* Opens, sends, closes; and leaves another stream open. */
static void work(uint32_t listener, core_ns latency_ns)
{
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    connect_to(&client, listener);
    spec.latency_ns = latency_ns;
    for (uint64_t i = 0; i < 8; i++) {
        struct test_stream *stream = test_stream_open(&client, &spec, i);
        for (int packet = 0; packet < 100; packet++)
            TEST_REQUIRE(test_stream_send(stream, 1408));
        test_stream_drain(stream);
        if (i != 7)
            (void)test_stream_close(stream);
        test_stream_free(stream);
    }
    test_client_close(&client);
}

static void is_refused(uint32_t listener)
{
    static const uint8_t key[16];
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    connect_to(&client, listener);
    struct protocol_open open = test_open_inline(&spec, key);
    (void)test_client_ask(&client, PROTOCOL_QUERY, &open, NULL, NULL);
    open.spec.latency_ns = 20 * CORE_NS_PER_US;
    assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, NULL));
    open.key_kind = PROTOCOL_KEY_NAMED;
    open.key = (const uint8_t *)"nobody's";
    open.key_bytes = 8;
    assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, NULL));
    test_client_close(&client);
}

/* Each such client is worth a line of the log. */
static void breaks_the_rules(uint32_t listener)
{
    static const uint8_t garbage[64] = {0xff, 0xff};
    struct test_client client;
    test_client_dial(&client, server_address(server.server, listener));
    (void)test_client_send(&client, garbage, sizeof garbage);
    struct pollfd ready = {.fd = client.descriptor, .events = POLLIN};
    while (test_client_fill(&client, TEST_FRAME_BYTES))
        TEST_REQUIRE(poll(&ready, 1, TEST_PATIENCE_MS) == 1);
    test_client_close(&client);
}

static void expect_no_offence(void)
{
    if (atomic_load(&offences) == 0)
        return;
    backtrace_symbols_fd(offence, offence_frames, STDERR_FILENO);
    fail_msg("%u calls that may block; the first was system call %d (%d: a lock of OpenSSL's) of %s",
             atomic_load(&offences), atomic_load(&offending_call), LOCKED, offending_thread);
}

/* ---- tests ---- */

static int set_up(void **state)
{
    struct config_profile *profile = test_gpu_profile(100);
    void *warm_up[1];
    (void)state;
    (void)backtrace(warm_up, 1); /* its first call allocates */
    catch_trapped();
    TEST_REQUIRE(core_log_start(NULL) == CORE_OK); /* as millraced does, before it has threads */
    test_server_prepare(&server);
    test_certificates_write(server.folder);
    test_server_write(&server, "keyring", TEST_KEYRING);
    test_gpu_server_start(&server, "audit: 1",
                          "listeners:\n  - {address: 'unix:socket'}\n  - {address: 'tcp:127.0.0.1:0'}\n"
                          "  - {address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key}\n"
                          "keyring: keyring\nlog: {level: debug}\nadmin: 'unix:admin'\n"
                          "threads: {cores: 8, io: 2, workers: 2, realtime: off, pin: false}\n",
                          profile);
    config_profile_free(profile);
    core_log_set_level(CORE_LOG_DEBUG);
    for (uint32_t i = 0; i < server.server->io_count; i++)
        while (atomic_load(&server.server->ios[i]->thread_id) == 0)
            sched_yield();
    atomic_store(&promises, true);
    tls = test_certificates_client(server.folder, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    SSL_CTX_free(tls);
    catch_trapped(); /* a batcher may do what it likes to close its card, but is confined still */
    const uint64_t lost = test_server_stop(&server);
    return core_log_stop(TEST_PATIENCE_MS * CORE_NS_PER_MS) && lost == 0 ? 0 : -1;
}

static void clients_of_all_kinds(void **state)
{
    (void)state;
    catch_trapped();
    assert_int_equal(confined_threads, 5); /* of I/O, workers, and the one that stands by */
    assert_int_equal(atomic_load(&confined_batchers), 1);
    for (uint32_t listener = 0; listener < 3; listener++) {
        work(listener, 200 * CORE_NS_PER_MS);
        work(listener, 10 * CORE_NS_PER_S);
        is_refused(listener);
        breaks_the_rules(listener);
        expect_no_offence();
    }
}

static void the_admin_port_asks(void **state)
{
    static const char *const pages[] = {"/status?streams=1", "/metrics", "/livez", "/readyz"};
    (void)state;
    catch_trapped();
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        const int code = http_code(server_admin_address(server.server), pages[i]);
        assert_true(code == 200 || code == 503); /* a busy machine is not ready */
    }
    expect_no_offence();
}

static void gpu_fails_and_returns(void **state)
{
    (void)state;
    catch_trapped();
    const pid_t before = test_gpu_process(&server, 0);
    assert_int_equal(kill(before, SIGKILL), 0);
    work(0, 200 * CORE_NS_PER_MS);
    test_gpu_await_up(&server, 0, before);
    work(0, 200 * CORE_NS_PER_MS);
    expect_no_offence();
}

/* The test can fail. */
static void *open_a_file(void *argument)
{
    FILE *file = fopen("/proc/self/statm", "re");
    (void)argument;
    if (file != NULL)
        fclose(file);
    return file;
}

static void *draw_a_random_number(void *argument)
{
    uint8_t byte;
    (void)argument;
    return RAND_bytes(&byte, 1) == 1 ? argument : NULL;
}

static void a_lock_is_seen(void **state)
{
    const struct core_thread_options options = {.name = "worker-9", .cpu = -1};
    pthread_t thread;
    (void)state;
    catch_trapped();
    assert_int_equal(__wrap_core_thread_start(&thread, &options, draw_a_random_number, NULL, NULL, NULL),
                     CORE_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(atomic_exchange(&offences, 0) > 0);
    assert_int_equal(atomic_load(&offending_call), LOCKED);
}

static void a_call_is_seen(void **state)
{
    const struct core_thread_options options = {.name = "worker-9", .cpu = -1};
    void *file = &file;
    pthread_t thread;
    (void)state;
    catch_trapped();
    assert_int_equal(__wrap_core_thread_start(&thread, &options, open_a_file, NULL, NULL, NULL), CORE_OK);
    assert_int_equal(pthread_join(thread, &file), 0);
    assert_null(file);
    assert_int_equal(atomic_exchange(&offences, 0), 1);
    assert_int_equal(atomic_load(&offending_call), SYS_openat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_of_all_kinds),  cmocka_unit_test(the_admin_port_asks),
        cmocka_unit_test(gpu_fails_and_returns), cmocka_unit_test(a_call_is_seen),
        cmocka_unit_test(a_lock_is_seen),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

#endif
