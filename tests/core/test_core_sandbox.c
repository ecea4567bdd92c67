/* What the sandbox leaves, and what it forbids: tried in processes of their own, for there is no way back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/sandbox.h"
#include "tests/support/require.h"

/* ---- calls: true where the kernel did not say EPERM ---- */

static bool passes(long result)
{
    return result >= 0 || errno != EPERM;
}

static bool a_file(void)
{
    return passes(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

static bool memory(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

static bool memory_with_code(void)
{
    return passes((long)mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static bool a_journals_socket(void)
{
    return passes(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

static bool a_look_at_a_queue(unsigned long which)
{
    int bytes;
    return passes(ioctl(-1, which, &bytes)); /* else: no such descriptor */
}

static bool what_came(void)
{
    return a_look_at_a_queue(FIONREAD);
}

static bool what_was_not_taken(void)
{
    return a_look_at_a_queue(SIOCOUTQ);
}

static bool a_terminals_input(void)
{
    return passes(ioctl(-1, TIOCSTI, ""));
}

static bool a_socket(void)
{
    return passes(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static bool connecting(void)
{
    return passes(connect(-1, NULL, 0));
}

static bool a_program(void)
{
    return passes(execve("/nowhere", (char *[]){"nowhere", NULL}, (char *[]){NULL}));
}

static bool a_process(void)
{
    const long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0UL);
    if (child == 0)
        _exit(0);
    return passes(child);
}

static bool tracing(void)
{
    return passes(ptrace(PTRACE_PEEKDATA, getpid(), NULL, NULL)); /* else: no such process */
}

static bool memory_of_others(void)
{
    return passes(syscall(SYS_process_vm_readv, getpid(), NULL, 0UL, NULL, 0UL, 0UL));
}

static bool a_name_space(void)
{
    return passes(unshare(0));
}

static bool a_ring(void)
{
    return passes(syscall(SYS_io_uring_setup, 0, NULL));
}

static bool a_signal_to_itself(void)
{
    return passes(tgkill(getpid(), gettid(), 0));
}

static bool a_signal_to_another(void)
{
    return passes(tgkill(getppid(), getppid(), 0)); /* the test's process */
}

static bool a_look_at_limits(void)
{
    return passes(syscall(SYS_prlimit64, 0, 0, NULL, NULL));
}

static bool a_limit(void)
{
    return passes(syscall(SYS_prlimit64, 0, 0, 8, NULL)); /* else: no such address */
}

/* Every role may do what is marked, and nothing else of these. */
#define SERVER (1 << CORE_SANDBOX_SERVER)
#define CARDS  (1 << CORE_SANDBOX_SERVER_CARDS)
#define CARD   (1 << CORE_SANDBOX_CARD)
#define DRIVER (1 << CORE_SANDBOX_CARD_DRIVER)

static const struct {
    const char *name;
    bool (*try)(void);
    int permitted;
} calls[] = {
    {"memory", memory, SERVER | CARDS | CARD | DRIVER},
    {"a signal to itself", a_signal_to_itself, SERVER | CARDS | CARD | DRIVER},
    {"a signal to another", a_signal_to_another, CARDS},
    {"a file", a_file, SERVER | CARDS | DRIVER},
    {"a socket to the journal", a_journals_socket, SERVER | CARDS},
    {"what came to a socket", what_came, SERVER | CARDS | DRIVER},
    {"what was not taken from a socket", what_was_not_taken, SERVER | CARDS | DRIVER},
    {"a terminal's input", a_terminals_input, CARDS | DRIVER},
    {"a socket", a_socket, CARDS},
    {"a connection", connecting, CARDS},
    {"memory with code", memory_with_code, CARDS | DRIVER},
    {"a program", a_program, CARDS},
    {"a process", a_process, CARDS | DRIVER},
    {"a look at limits", a_look_at_limits, SERVER | CARDS | CARD | DRIVER},
    {"a limit", a_limit, CARDS},
    {"tracing", tracing, 0},
    {"memory of others", memory_of_others, 0},
    {"a name space", a_name_space, 0},
    {"a ring", a_ring, 0},
};

static sem_t entered, tried;

static void try_all(enum core_sandbox_role role)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const bool permitted = (calls[i].permitted >> role & 1) != 0;
        if (calls[i].try() == permitted)
            continue;
        fprintf(stderr, "role %d: %s is %s\n", (int)role, calls[i].name,
                permitted ? "forbidden" : "permitted");
        _exit(1);
    }
}

/* It was there before. */
static void *another_thread(void *role)
{
    while (sem_wait(&entered) != 0)
        ;
    try_all(*(enum core_sandbox_role *)role);
    sem_post(&tried);
    return NULL;
}

static void in_a_process(enum core_sandbox_role role)
{
    struct core_error error = {""};
    pthread_t thread;
    TEST_REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    TEST_REQUIRE(sem_init(&entered, 0, 0) == 0 && sem_init(&tried, 0, 0) == 0);
    TEST_REQUIRE(pthread_create(&thread, NULL, another_thread, &role) == 0);
    TEST_REQUIRE(core_sandbox_enter(role, CORE_SANDBOX_REQUIRED, &error) == CORE_OK);
    try_all(role);
    sem_post(&entered);
    while (sem_wait(&tried) != 0)
        ;
    _exit(0);
}

static void each_role_has_what_it_needs(void **state)
{
    struct core_error error = {""};
    (void)state;
    if (core_sandbox_check(&error) != CORE_OK) {
        print_message("%s\n", error.text);
        skip();
    }
    for (int role = CORE_SANDBOX_SERVER; role <= CORE_SANDBOX_CARD_DRIVER; role++) {
        int end;
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            in_a_process((enum core_sandbox_role)role);
        assert_int_equal(waitpid(pid, &end, 0), pid);
        assert_int_equal(end, 0);
    }
}

static void off_is_off(void **state)
{
    struct core_error error = {""};
    (void)state;
    assert_int_equal(core_sandbox_enter(CORE_SANDBOX_SERVER, CORE_SANDBOX_OFF, &error), CORE_OK);
    assert_true(a_socket());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_role_has_what_it_needs),
        cmocka_unit_test(off_is_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
