/* millraced as the system sees it: options, exit codes, signals, log, sockets, systemd. Drives the binary. */
#include "core/realtime.h"
#include "core/sandbox.h"
#include "tests/support/certificates.h"
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
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MILLRACED  MILLRACE_BINARY_DIR "/server/millraced"
#define MILLRACE   MILLRACE_BINARY_DIR "/client/millrace"
#define PROFILE    "profile: " MILLRACE_SOURCE_DIR "/config/profiles/cpu-only.yaml\n"
#define EMULATED   "profile: " MILLRACE_SOURCE_DIR "/config/profiles/emulated-small.yaml\n"
#define SOCKET     "listeners: [{address: 'unix:socket'}]\n"
#define QUIET      "threads: {realtime: off, pin: false}\nengine: ipsec-mb\nlimits: {streams: 100}\n"
#define GOOD       SOCKET PROFILE QUIET
#define OUTPUT_MAX 65536
#define NOBODY     65534

static void (*before_exec)(void); /* of a process, in the child; NULL: nothing; until the test ends */

/* ---- a private folder for each test ---- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/millraced-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    (void)state;
    before_exec = NULL;
    if (directory == NULL)
        return -1;
    while ((entry = readdir(directory)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    return rmdir(folder);
}

struct path {
    char text[96];
};

static struct path in_folder(const char *name)
{
    struct path path;
    snprintf(path.text, sizeof path.text, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text, mode_t mode)
{
    int descriptor = open(in_folder(name).text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(descriptor >= 0);
    assert_int_equal(fchmod(descriptor, mode), 0);
    assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
    close(descriptor);
}

static const char *read_file(const char *name)
{
    static char text[OUTPUT_MAX];
    int descriptor = open(in_folder(name).text, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    text[bytes < 0 ? 0 : bytes] = '\0';
    if (descriptor >= 0)
        close(descriptor);
    return text;
}

static bool exists(const char *name)
{
    struct stat about;
    return lstat(in_folder(name).text, &about) == 0;
}

static struct core_address address_of(const char *name)
{
    struct core_address address = {.transport = CORE_TRANSPORT_UNIX};
    snprintf(address.host, sizeof address.host, "%s/%s", folder, name);
    return address;
}

/* ---- processes ---- */

/* Runs with standard output and error in the files "out" and "log", which are new: an earlier process that
 * still runs keeps its own. */
static pid_t spawn(const char *program, char *const *arguments)
{
    (void)unlink(in_folder("out").text);
    (void)unlink(in_folder("log").text);
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(127); /* the test has ended before us */
    if (before_exec != NULL)
        before_exec();
    int out = open(in_folder("out").text, O_WRONLY | O_CREAT, 0600);
    int log = open(in_folder("log").text, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (out >= 0 && log >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        execv(program, arguments);
    _exit(127);
}

/* Exit status; a signal or a hang fails the test. */
static int join(pid_t pid)
{
    int status = 0;
    for (int waited_ms = 0; waitpid(pid, &status, WNOHANG) == 0; waited_ms += 10) {
        if (waited_ms > TEST_PATIENCE_MS) {
            kill(pid, SIGKILL);
            fail_msg("process %d did not end; it said: %s", (int)pid, read_file("log"));
        }
        poll(NULL, 0, 10);
    }
    if (!WIFEXITED(status))
        fail_msg("ended by signal %d; it said: %s", WTERMSIG(status), read_file("log"));
    return WEXITSTATUS(status);
}

static int run(const char *program, char *const *arguments)
{
    return join(spawn(program, arguments));
}

static int check_config(const char *name)
{
    return run(MILLRACED, (char *[]){"millraced", "--check-config", in_folder(name).text, NULL});
}

static bool logged(const char *text)
{
    return strstr(read_file("log"), text) != NULL;
}

static void await_log(const char *text)
{
    for (int waited_ms = 0; !logged(text); waited_ms += 10) {
        if (waited_ms > TEST_PATIENCE_MS)
            fail_msg("never logged '%s' but: %s", text, read_file("log"));
        poll(NULL, 0, 10);
    }
}

/* With the configuration in the file "config". */
static pid_t start_daemon(const char *yaml)
{
    write_file("config", yaml, 0600);
    pid_t pid = spawn(MILLRACED, (char *[]){"millraced", in_folder("config").text, NULL});
    await_log("start.ready");
    return pid;
}

static int stop_daemon(pid_t pid)
{
    assert_int_equal(kill(pid, SIGTERM), 0);
    return join(pid);
}

/* 0: none has it. */
static pid_t thread_named(pid_t process, const char *name)
{
    char path[64], comm[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    DIR *tasks = opendir(path);
    pid_t found = 0;
    assert_non_null(tasks);
    for (const struct dirent *task = readdir(tasks); task != NULL && found == 0; task = readdir(tasks)) {
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/comm", (int)process, task->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL)
            continue;
        if (fgets(comm, sizeof comm, file) != NULL && strncmp(comm, name, strlen(name)) == 0 &&
            comm[strlen(name)] == '\n')
            found = (pid_t)strtol(task->d_name, NULL, 10);
        fclose(file);
    }
    closedir(tasks);
    return found;
}

static void ping(const char *name)
{
    struct core_address address = address_of(name);
    struct test_client client;
    test_client_connect(&client, &address, NULL);
    test_client_ping(&client);
    test_client_close(&client);
}

/* ---- options ---- */

static void good_files_are_called_good(void **state)
{
    char *shipped[] = {"millraced", "--check-config", MILLRACE_SOURCE_DIR "/config/millraced.yaml", NULL};
    (void)state;

    /* but for /run/millrace, which its unit makes */
    const int code = run(MILLRACED, shipped);
    assert_true(code == 0 || (code == 3 && logged("can not listen on unix:/run/millrace/millraced.sock") &&
                              strchr(read_file("log"), '\n')[1] == '\0'));
    write_file("keyring", "a aes-128-cbc 000102030405060708090a0b0c0d0e0f\n", 0600);
    write_file("good.yaml", GOOD "keyring: keyring\n", 0600);
    assert_int_equal(check_config("good.yaml"), 0);
    assert_non_null(strstr(read_file("out"), "good.yaml: good\n"));
    assert_false(exists("socket"));
}

static void bad_files_are_told_by_line(void **state)
{
    static const struct {
        const char *yaml, *complaint;
    } cases[] = {
        {"engine: openssl\n", "bad.yaml:1"},
        {SOCKET PROFILE "\n\nlimits:\n  streams: -4\n", "bad.yaml:6:"},
        {SOCKET "colour: blue\n", "bad.yaml:2:"},
        {SOCKET "engine: steam\n", "bad.yaml:2:"},
        {"listeners:\n  - address: udp:1\n", "bad.yaml:2:"},
        {SOCKET "timeouts: {drain_ms: soon}\n", "bad.yaml:2:"},
        {SOCKET "\tengine: auto\n", "bad.yaml:2:"},
        {SOCKET "profile: bad-profile.yaml\n", "bad-profile.yaml:3:"},
        {SOCKET PROFILE "keyring: bad-keyring\n", "bad-keyring:2:"},
        {SOCKET PROFILE "keyring: open-keyring\n", "open-keyring"},
        {SOCKET "profile: nowhere\n", "bad.yaml:2: profile: no shipped profile is called 'nowhere'"},
        {SOCKET "profile: ./nowhere\n", "bad.yaml:2: profile: "},
        {SOCKET "keyring: nowhere\n", "bad.yaml:2: keyring: "},
        {"listeners:\n  - address: unix:nowhere/socket\n",
         "bad.yaml:2: listeners[0]: can not listen on unix:"},
        {"listeners:\n  - address: unix:bad-profile.yaml\n", "is no socket"},
        {"listeners:\n  - address: tcp:192.0.2.1:7411\n", "bad.yaml:2: listeners[0]: can not listen on tcp:"},
        {"listeners:\n  - address: 'tls:127.0.0.1:0'\n    certificate: none.pem\n    key: none.key\n",
         "bad.yaml:2: listeners[0]: can not use the certificate "},
        {"listeners:\n  - address: 'tls:127.0.0.1:0'\n    certificate: none.pem\n    key: none.key\n",
         "none.pem: No such file or directory"},
        {SOCKET PROFILE "keyring: far-keyring\n", "far-keyring:1: there is no listener tcp:127.0.0.1:7411"},
        {SOCKET PROFILE "admin: unix:nowhere/admin\n", "bad.yaml:3: admin: can not listen on unix:"},
        {SOCKET PROFILE "engine: openssl\n", "bad.yaml:3: engine: "},
        {SOCKET PROFILE "threads:\n  cores: 1024\n", "bad.yaml:4: threads.cores: 1024 are more than"},
        {SOCKET PROFILE "threads:\n  io_priority: 50\n", "bad.yaml:4: threads.io_priority: "},
        {SOCKET PROFILE "gpus: [0]\n", "bad.yaml:3: gpus: "},
        {SOCKET "gpus: [0]\n", "bad.yaml:2: gpus: "},
        {SOCKET EMULATED "gpus: {cards: [900], program: " MILLRACE_BINARY_DIR "/gpu/millrace-gpu}\n",
         "bad.yaml:3: gpus: card 900 is not in this machine"},
        {SOCKET "gpus: emulated\n",
         "bad.yaml:2: gpus: asks for the GPUs of the profile, but there is no profile"},
        {SOCKET PROFILE "gpus: emulated\n", "the profile has none"},
        {SOCKET EMULATED "gpus: {use: emulated, program: /nonexistent}\n", "gpus.program: /nonexistent"},
        {SOCKET EMULATED "gpus: {cards: [0], program: /nonexistent}\n",
         "bad.yaml:3: gpus.program: /nonexistent"},
        {SOCKET EMULATED "gpus:\n  use: emulated\n  user: no-such-user\n",
         "bad.yaml:5: gpus.user: there is no user 'no-such-user'"},
        {SOCKET PROFILE "gpus:\n  user: 4123456789\n",
         "bad.yaml:4: gpus.user: there is no user '4123456789'"},
    };
    (void)state;

    write_file("bad-profile.yaml", "name: x\nmachine: y\ncolour: blue\n", 0600);
    write_file("bad-keyring", "a aes-128-cbc 000102030405060708090a0b0c0d0e0f\nb aes-128-cbc 00\n", 0600);
    write_file("far-keyring", "a aes-128-cbc 000102030405060708090a0b0c0d0e0f listener=tcp:127.0.0.1:7411\n",
               0600);
    write_file("open-keyring", "a aes-128-cbc 000102030405060708090a0b0c0d0e0f\n", 0644);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file("bad.yaml", cases[i].yaml, 0600);
        if (check_config("bad.yaml") != 3 || !logged(cases[i].complaint))
            fail_msg("case %zu: '%s' is not in: %s", i, cases[i].complaint, read_file("log"));
        assert_string_equal(read_file("out"), "");
    }
    assert_int_equal(check_config("missing.yaml"), 3);
    assert_true(logged("missing.yaml"));
    assert_false(exists("socket"));
}

/* One run tells all of it. */
static void a_check_goes_on_after_what_it_finds(void **state)
{
    (void)state;
    write_file("bad.yaml",
               "listeners:\n  - address: unix:nowhere/a\n  - address: unix:nowhere/b\n" PROFILE
               "keyring: nowhere\nengine: openssl\nadmin: unix:nowhere/admin\n",
               0600);
    assert_int_equal(check_config("bad.yaml"), 3);
    assert_true(logged("bad.yaml:2: ") && logged("bad.yaml:3: ") && logged("bad.yaml:5: ") &&
                logged("bad.yaml:6: ") && logged("bad.yaml:7: "));
}

/* What the start would say, too, and does not prevent it. */
static void a_check_warns_as_the_start_does(void **state)
{
    (void)state;
    write_file("foreign.yaml",
               SOCKET PROFILE "engine: ipsec-mb\nthreads: {workers: 256, io: 256, realtime: off}\n", 0600);
    assert_int_equal(check_config("foreign.yaml"), 0);
    assert_true(logged("start.profile") && logged("its figures are assumed"));
    assert_true(logged("start.cores") && logged("256 workers and 256 I/O threads share"));
    write_file("keyring",
               "a aes-128-cbc 000102030405060708090a0b0c0d0e0f listener=tcp:127.0.0.1:0\n"
               "b aes-128-cbc 000102030405060708090a0b0c0d0e0f client-iv\n",
               0600);
    write_file("anonymous.yaml",
               "listeners: [{address: 'unix:socket'}, {address: 'tcp:127.0.0.1:0'}]\n" PROFILE QUIET
               "keyring: keyring\n",
               0600);
    assert_int_equal(check_config("anonymous.yaml"), 0);
    assert_true(logged("start.keys 1 keys of the keyring name no client"));
    assert_true(logged("refused on tcp:127.0.0.1:0") && !logged("refused on unix:"));
}

static void what_is_in_use_is_exit_code_4(void **state)
{
    struct core_address port = {.transport = CORE_TRANSPORT_TCP, .host = "127.0.0.1"}, bound;
    char yaml[256], text[64];
    int listener;
    (void)state;

    pid_t pid = start_daemon(GOOD "admin: unix:admin\n");
    assert_int_equal(check_config("config"), 4);
    assert_true(logged("config:1: listeners[0]: ") && logged(": admin: ") &&
                logged("a server listens there"));
    ping("socket");
    write_file("both", GOOD "admin: unix:nowhere/admin\n", 0600);
    assert_int_equal(check_config("both"), 3);
    assert_int_equal(stop_daemon(pid), 0);
    assert_int_equal(check_config("config"), 0);

    assert_int_equal(core_address_listen(&port, 0, &listener, &bound, NULL), CORE_OK);
    snprintf(yaml, sizeof yaml, "listeners: [{address: '%s'}]\n" PROFILE,
             core_address_format(&bound, text, sizeof text));
    write_file("port", yaml, 0600);
    assert_int_equal(check_config("port"), 4);
    close(listener);
    assert_int_equal(check_config("port"), 0);
}

/* Without the right to SCHED_FIFO, which root would have. */
static void forbid_fifo(void)
{
    const struct rlimit none = {0, 0};
    (void)prctl(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0);
    (void)setrlimit(RLIMIT_RTPRIO, &none);
}

static void required_real_time_must_be_permitted(void **state)
{
    (void)state;
    write_file("real.yaml", SOCKET PROFILE "engine: ipsec-mb\nthreads:\n  realtime: required\n", 0600);
    before_exec = forbid_fifo;
    assert_int_equal(check_config("real.yaml"), 3);
    before_exec = NULL;
    assert_true(logged("real.yaml:5: threads.realtime: is required, but "));
    assert_true(logged("SCHED_FIFO priority 20"));
}

/* The process may use the first and the third of the cores. */
static void leave_out_a_core(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core_cpu_number(0), &set);
    CPU_SET((size_t)core_cpu_number(2), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        _exit(127);
}

static void workers_are_pinned_to_cores_of_the_process(void **state)
{
    cpu_set_t set;
    (void)state;
    if (core_cpu_count() < 3)
        skip();
    const int last = core_cpu_number(2);
    before_exec = leave_out_a_core;
    pid_t pid = start_daemon(SOCKET PROFILE "engine: ipsec-mb\nthreads: {pin: true, workers: 1, io: 1}\n");
    assert_false(logged("pinning") || logged("not pinned"));
    assert_int_equal(sched_getaffinity(thread_named(pid, "worker-0"), sizeof set, &set), 0);
    assert_int_equal(CPU_COUNT(&set), 1);
    assert_true(CPU_ISSET((size_t)last, &set));
    assert_int_equal(stop_daemon(pid), 0);
}

/* As a user who is not root, where there is a folder for its sockets. */
static void be_somebody(void)
{
    if (setenv("XDG_RUNTIME_DIR", folder, 1) != 0 || unsetenv("MILLRACE_SERVER") != 0 ||
        (geteuid() == 0 && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) ||
        prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) /* which that has cleared */
        _exit(127);
}

/* Who is not root can start processes as himself only, and is told where he asks for more. */
static void the_user_of_cards_must_be_permitted(void **state)
{
    (void)state;
    assert_true(geteuid() != 0 || chown(folder, NOBODY, NOBODY) == 0);
    write_file("user.yaml", SOCKET EMULATED QUIET "gpus:\n  use: emulated\n  user: root\n", 0644);
    before_exec = be_somebody;
    assert_int_equal(check_config("user.yaml"), 3);
    assert_true(logged("user.yaml:8: gpus.user: millrace-gpu can run as 'root' only if"));
    assert_int_equal(run(MILLRACED, (char *[]){"millraced", in_folder("user.yaml").text, NULL}), 3);
    assert_true(logged("user.yaml:8: gpus.user: millrace-gpu can run"));
    if (geteuid() == 0) {
        write_file("user.yaml", SOCKET EMULATED QUIET "gpus:\n  use: emulated\n  user: nobody\n", 0644);
        assert_int_equal(check_config("user.yaml"), 0);
    }
    before_exec = NULL;
}

/* Root that has given its rights to others away: not all of it is as by default, which is told. */
static void give_up_rights(void)
{
    if (prctl(PR_CAPBSET_DROP, CAP_SETUID, 0, 0, 0) != 0)
        _exit(127);
}

static void cards_run_as_root_where_nothing_else_can_be(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    before_exec = give_up_rights;
    pid_t pid = start_daemon(SOCKET EMULATED QUIET "gpus: {use: emulated}\n");
    assert_true(logged("gpu.user") && logged("runs as root") && logged("CAP_SETUID"));
    assert_int_equal(stop_daemon(pid), 0);
    pid = start_daemon(SOCKET EMULATED QUIET "gpus: {use: emulated, user: root}\n");
    assert_false(logged("gpu.user"));
    assert_int_equal(stop_daemon(pid), 0);
    pid = start_daemon(GOOD); /* without cards */
    assert_false(logged("gpu.user"));
    assert_int_equal(stop_daemon(pid), 0);
}

static void no_folder_for_sockets(void)
{
    be_somebody();
    (void)unsetenv("XDG_RUNTIME_DIR");
}

static void no_place_for_the_folder(void)
{
    be_somebody();
    if (setenv("XDG_RUNTIME_DIR", "/proc", 1) != 0)
        _exit(127);
}

static void without_a_file_all_is_as_by_default(void **state)
{
    struct stat about;
    (void)state;

    if (geteuid() == 0)
        assert_int_equal(chown(folder, NOBODY, NOBODY), 0);
    before_exec = be_somebody;
    pid_t pid = spawn(MILLRACED, (char *[]){"millraced", NULL});
    await_log("start.ready");
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_log("nothing to reload: the server runs without a configuration file");
    assert_int_equal(lstat(in_folder("millrace").text, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    assert_int_equal(run(MILLRACE, (char *[]){"millrace", "ping", "-c1", NULL}), 0);
    write_file("plain", "sixteen bytes :)", 0644);
    assert_int_equal(run(MILLRACE, (char *[]){"millrace", "encrypt", in_folder("plain").text, "-l1min",
                                              "--key", "000102030405060708090a0b0c0d0e0f", NULL}),
                     0);
    assert_int_equal(stat(in_folder("out").text, &about), 0);
    assert_int_equal(about.st_size, 32);
    struct core_address admin = address_of("millrace/admin.sock");
    assert_int_equal(http_code(&admin, "/health"), 200);
    assert_int_equal(stop_daemon(pid), 0);
    assert_false(exists("millrace/millraced.sock") || exists("millrace/admin.sock"));
    pid = spawn(MILLRACED, (char *[]){"millraced", NULL}); /* the folder is there by now */
    await_log("start.ready");
    assert_int_equal(stop_daemon(pid), 0);

    before_exec = no_folder_for_sockets;
    assert_int_equal(run(MILLRACED, (char *[]){"millraced", NULL}), 3);
    assert_true(logged("no configuration file is given: XDG_RUNTIME_DIR"));
    before_exec = no_place_for_the_folder;
    assert_int_equal(run(MILLRACED, (char *[]){"millraced", NULL}), 3);
    assert_true(logged("no configuration file is given, and /proc/millrace can not be made"));
    before_exec = NULL;
    assert_int_equal(rmdir(in_folder("millrace").text), 0);
}

/* Beside those of connections, 1024 are needed. */
static void have_few_descriptors(void)
{
    if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 100, .rlim_max = 1100}) != 0)
        _exit(127);
}

/* The limit of open files is raised as far as it goes; where that is not enough it is told. */
static void descriptors_that_are_short_are_told(void **state)
{
    (void)state;
    before_exec = have_few_descriptors;
    pid_t pid =
        start_daemon(SOCKET PROFILE
                     "threads: {realtime: off, pin: false}\nengine: ipsec-mb\nlimits: {connections: 150}\n");
    assert_true(logged("start.descriptors") && logged("the limit of open files is 1100"));
    ping("socket");
    assert_int_equal(stop_daemon(pid), 0);
    pid = start_daemon(SOCKET PROFILE
                       "threads: {realtime: off, pin: false}\nengine: ipsec-mb\nlimits: {connections: 20}\n");
    assert_false(logged("start.descriptors"));
    assert_int_equal(stop_daemon(pid), 0);
    before_exec = NULL;
}

static void wrong_usage_is_exit_code_2(void **state)
{
    char *usages[][4] = {
        {"millraced", "a.yaml", "b.yaml", NULL},
        {"millraced", "--frobnicate", "a.yaml", NULL},
        {"millraced", "--check-config", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof usages / sizeof usages[0]; i++)
        assert_int_equal(run(MILLRACED, usages[i]), 2);
    assert_int_equal(run(MILLRACED, (char *[]){"millraced", "--help", NULL}), 0);
    assert_non_null(strstr(read_file("out"), "--check-config"));
    assert_int_equal(run(MILLRACED, (char *[]){"millraced", "--version", NULL}), 0);
    assert_string_equal(read_file("out"), "millraced " MILLRACE_VERSION "\n");
}

/* ---- start ---- */

static void what_prevents_the_start_is_exit_code_3(void **state)
{
    static const char *const cases[] = {
        "engine: [\n",
        "listeners: [{address: 'unix:/nowhere/at/all/socket'}]\n" PROFILE QUIET,
        "listeners: [{address: 'tls:127.0.0.1:0', certificate: none.pem, key: none.key}]\n" PROFILE QUIET,
        GOOD "keyring: nowhere\n",
        GOOD "admin: unix:/nowhere/at/all/admin\n",
        SOCKET EMULATED QUIET "gpus: {use: emulated, user: no-such-user}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file("config", cases[i], 0600);
        assert_int_equal(run(MILLRACED, (char *[]){"millraced", in_folder("config").text, NULL}), 3);
        assert_true(i == 0 || logged("start.failed"));
        assert_false(logged("start.ready"));
        assert_false(exists("socket"));
    }
}

static void a_served_socket_is_left_alone(void **state)
{
    (void)state;

    pid_t pid = start_daemon(GOOD "admin: unix:admin\n");
    write_file("second", GOOD, 0600);
    assert_int_equal(run(MILLRACED, (char *[]){"millraced", in_folder("second").text, NULL}), 3);
    assert_true(logged("start.failed"));
    write_file("second", "listeners: [{address: 'unix:other'}]\n" PROFILE QUIET "admin: unix:admin\n", 0600);
    assert_int_equal(run(MILLRACED, (char *[]){"millraced", in_folder("second").text, NULL}), 3);
    assert_true(logged("admin"));
    assert_false(exists("other"));
    ping("socket");
    struct core_address admin = address_of("admin");
    assert_int_equal(http_code(&admin, "/health"), 200);
    assert_int_equal(stop_daemon(pid), 0);
    assert_false(exists("socket") || exists("admin"));
}

/* Somebody takes the first one's sockets away, and a second server makes its own. */
static void a_stop_leaves_sockets_of_others(void **state)
{
    (void)state;
    pid_t first = start_daemon(GOOD "admin: unix:admin\n");
    assert_int_equal(unlink(in_folder("socket").text) | unlink(in_folder("admin").text), 0);
    pid_t second = start_daemon(GOOD "admin: unix:admin\n");
    assert_int_equal(stop_daemon(first), 0);
    ping("socket");
    struct core_address admin = address_of("admin");
    assert_int_equal(http_code(&admin, "/health"), 200);
    assert_int_equal(stop_daemon(second), 0);
    assert_false(exists("socket") || exists("admin"));
}

static bool has_status(pid_t pid, const char *line)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return strstr(text, line) != NULL;
}

/* Also where no service manager says so. */
static void new_privileges_are_forbidden(void **state)
{
    (void)state;
    pid_t pid = start_daemon(GOOD);
    assert_true(has_status(pid, "NoNewPrivs:\t1\n"));
    assert_int_equal(stop_daemon(pid), 0);
}

/* That it leaves the server what it needs all other tests of this program show. */
static void the_sandbox_is_as_configured(void **state)
{
    const bool there = core_sandbox_check(NULL) == CORE_OK;
    (void)state;
    pid_t pid = start_daemon(GOOD);
    assert_true(has_status(pid, there ? "Seccomp:\t2\n" : "Seccomp:\t0\n"));
    assert_true(logged("start.sandbox") == !there);
    assert_int_equal(stop_daemon(pid), 0);
    pid = start_daemon(GOOD "sandbox: off\n");
    assert_true(has_status(pid, "Seccomp:\t0\n"));
    assert_false(logged("start.sandbox"));
    assert_int_equal(stop_daemon(pid), 0);
    write_file("config", GOOD "sandbox: required\n", 0600);
    assert_int_equal(
        run(MILLRACED, (char *[]){"millraced", "--check-config", in_folder("config").text, NULL}),
        there ? 0 : 3);
}

static void a_socket_left_behind_is_replaced(void **state)
{
    (void)state;
    pid_t pid = start_daemon(GOOD);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(exists("socket"));
    pid = start_daemon(GOOD);
    ping("socket");
    assert_int_equal(stop_daemon(pid), 0);
}

/* ---- SIGHUP ---- */

#define KEY_1 "000102030405060708090a0b0c0d0e0f"
#define KEY_2 "101112131415161718191a1b1c1d1e1f"

static const uint8_t key_1[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t key_2[16] = {16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

static bool open_named(struct test_client *client, const char *name, struct protocol_opened *opened)
{
    struct protocol_open open = {.spec = test_spec,
                                 .key_kind = PROTOCOL_KEY_NAMED,
                                 .key = (const uint8_t *)name,
                                 .key_bytes = (uint32_t)strlen(name)};
    return test_client_ask(client, PROTOCOL_OPEN, &open, opened, NULL);
}

/* A stream under the named key, whose first packet is as the given key makes it. */
static struct test_stream *open_checked(struct test_client *client, const char *name, const uint8_t *key)
{
    struct protocol_opened opened;
    assert_true(open_named(client, name, &opened));
    struct test_stream *stream = test_stream_adopt(client, &test_spec, 1, key, &opened);
    assert_true(test_stream_send(stream, 256));
    test_stream_drain(stream);
    return stream;
}

static void check_old_keys(struct test_client *client)
{
    test_stream_free(open_checked(client, "alpha", key_1));
    assert_false(open_named(client, "beta", NULL));
}

static void hang_up(pid_t pid, const char *keyring, mode_t mode, const char *answer)
{
    write_file("keyring", keyring, mode);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_log(answer);
}

static void a_reload_takes_good_keys_and_leaves_bad_ones(void **state)
{
    struct test_client client;
    struct core_address address = address_of("socket");
    (void)state;

    write_file("keyring", "alpha aes-128-cbc " KEY_1 "\n", 0600);
    pid_t pid = start_daemon(GOOD "keyring: keyring\n");
    test_client_connect(&client, &address, NULL);
    struct test_stream *old = open_checked(&client, "alpha", key_1);
    check_old_keys(&client);

    hang_up(pid, "alpha aes-128-cbc " KEY_2 "\nbeta aes-128-cbc zz\n", 0600, "keyring:2:");
    check_old_keys(&client);
    hang_up(pid, "beta aes-128-cbc " KEY_2 "\n", 0644, "0644");
    check_old_keys(&client);
    write_file("config", "listeners: nonsense\n", 0600);
    hang_up(pid, "beta aes-128-cbc " KEY_2 "\n", 0600, "config:1:");
    check_old_keys(&client);
    assert_false(logged("reload.done"));

    write_file("config", GOOD "keyring: keyring\n", 0600);
    hang_up(pid, "alpha aes-128-cbc " KEY_2 "\nbeta aes-128-cbc " KEY_1 "\n", 0600, "reload.done");
    test_stream_free(open_checked(&client, "alpha", key_2));
    test_stream_free(open_checked(&client, "beta", key_1));
    assert_true(test_stream_send(old, 1024)); /* an open stream keeps the key it began with */
    test_stream_drain(old);
    test_stream_free(old);
    test_client_close(&client);
    assert_int_equal(stop_daemon(pid), 0);
}

static void a_reload_names_what_waits_for_a_restart(void **state)
{
    (void)state;
    pid_t pid = start_daemon(GOOD "log: {level: info}\n");
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_log("reload.done");
    assert_false(logged("reload.restart"));
    write_file("config",
               "listeners: [{address: 'unix:other'}]\n" PROFILE
               "threads: {realtime: off, pin: false, tls: 3}\nengine: ipsec-mb\nlimits: {streams: 100}\n",
               0600);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_log("in force only after a restart: listeners, threads.tls\n");
    assert_int_equal(stop_daemon(pid), 0);
}

static void a_reload_takes_the_log_level(void **state)
{
    (void)state;
    pid_t pid = start_daemon(GOOD "log: {level: info}\n");
    ping("socket");
    assert_false(logged("connection.open"));
    write_file("config", GOOD "log: {level: debug}\n", 0600);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_log("reload.done");
    ping("socket");
    await_log("connection.open");
    assert_int_equal(stop_daemon(pid), 0);
}

/* ---- SIGTERM ---- */

/* A stream of which the server has so many packets that must wait, each interval_ns behind the one before: they come
 * behind a burst (of one, where none wait), which has come back. */
static struct test_stream *leave_work(struct test_client *client, uint32_t waiting, core_ns interval_ns)
{
    struct core_address address = address_of("socket");
    struct core_stream_spec spec = test_spec;
    struct test_frame frame;
    uint8_t frames[16 * (64 + PROTOCOL_HEADER_BYTES)], header[PROTOCOL_HEADER_BYTES];
    size_t bytes = 0;

    assert_true(waiting <= 16);
    spec.packet_bytes = 64;
    spec.burst_packets = waiting > 0 ? waiting : 1;
    spec.interval_ns = interval_ns;
    test_client_connect(client, &address, NULL);
    struct test_stream *stream = test_stream_open(client, &spec, 3);
    for (uint32_t i = 0; i < spec.burst_packets; i++)
        assert_true(test_stream_send(stream, 64));
    while (stream->received < spec.burst_packets)
        assert_int_equal(test_streams_take(client, &stream).status, PROTOCOL_RESULT_OK);
    for (uint32_t i = 0; i < waiting; i++)
        bytes += test_stream_frame(stream, 64, frames + bytes);
    assert_true(test_client_send(client, frames, bytes));
    protocol_header_write(header, &(struct protocol_header){.type = PROTOCOL_PING, .id = 9});
    assert_true(test_client_send(client, header, sizeof header));
    test_client_expect(client, PROTOCOL_PONG, &frame);
    return stream;
}

static void a_drain_delivers_what_was_accepted(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};
    struct test_client client;
    struct test_frame frame;
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        pid_t pid = start_daemon(GOOD);
        struct test_stream *stream = leave_work(&client, 3, 300 * CORE_NS_PER_MS);
        assert_int_equal(kill(pid, signals[i]), 0);
        for (int packet = 0; packet < 3; packet++) {
            test_client_expect(&client, PROTOCOL_RESULT, &frame);
            struct protocol_result result = test_stream_check(stream, &frame);
            assert_true((result.flags & PROTOCOL_RESULT_POLICED) != 0);
            assert_true((result.flags & PROTOCOL_RESULT_MET) != 0);
        }
        test_client_expect(&client, PROTOCOL_CLOSED, &frame);
        assert_int_equal(frame.body[0], PROTOCOL_CLOSE_DRAINED);
        test_client_expect_error(&client, PROTOCOL_ERROR_SHUTDOWN, 0, true);
        assert_int_equal(join(pid), 0);
        assert_true(logged("stop.begin") && logged("stop.done"));
        assert_false(exists("socket"));
        test_stream_free(stream);
        test_client_close(&client);
    }
}

static void a_drain_out_of_time_says_what_was_lost(void **state)
{
    struct test_client client;
    (void)state;

    pid_t pid = start_daemon(GOOD "timeouts: {drain_ms: 200}\n");
    struct test_stream *stream = leave_work(&client, 3, 600 * CORE_NS_PER_S);
    assert_int_equal(stop_daemon(pid), 1);
    assert_true(logged("stop.lost"));
    assert_true(logged("3 accepted packets"));
    test_stream_free(stream);
    test_client_close(&client);
}

static void a_client_that_leaves_is_no_loss_of_the_server(void **state)
{
    struct test_client client;
    (void)state;

    pid_t pid = start_daemon(GOOD);
    struct test_stream *stream = leave_work(&client, 3, 600 * CORE_NS_PER_S);
    test_client_close(&client);
    assert_int_equal(stop_daemon(pid), 0);
    test_stream_free(stream);
}

/* ---- log ---- */

static void send_bytes(const char *name, const char *bytes)
{
    struct core_address address = address_of(name);
    struct http_answer answer;
    int descriptor = http_dial(&address);
    http_send(descriptor, bytes, strlen(bytes));
    shutdown(descriptor, SHUT_WR);
    answer = http_read(descriptor);
    http_free(&answer);
}

static void every_line_of_the_json_log_is_json(void **state)
{
    char *line, *rest;
    int lines = 0;
    (void)state;

    pid_t pid = start_daemon(GOOD "admin: unix:admin\nlog: {format: json, level: debug}\n");
    ping("socket");
    send_bytes("socket", "GET / HTTP/1.1\r\n\"quoted\\\"\r\n\r\n");
    send_bytes("admin", "\"\x01\x02 \xff\r\n\r\n");
    send_bytes("admin", "GET / HTTP/7.7\r\nno colon\r\n\r\n");
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_log("reload.done");
    assert_int_equal(stop_daemon(pid), 0);
    assert_true(logged("connection.error") && logged("stop.done"));
    char *log = strdup(read_file("log"));
    for (line = strtok_r(log, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        static const char *const keys[] = {"time", "level", "cause", "message"};
        json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (root == NULL)
            fail_msg("no JSON: %s", line);
        for (size_t i = 0; i < 4; i++)
            assert_true(json_is_string(json_object_get(root, keys[i])));
        if (strcmp(json_string_value(json_object_get(root, "cause")), "connection.error") == 0) {
            assert_true(json_integer_value(json_object_get(root, "connection")) > 0);
            assert_ptr_equal(strstr(json_string_value(json_object_get(root, "peer")), "unix:"),
                             json_string_value(json_object_get(root, "peer")));
        }
        json_decref(root);
        lines++;
    }
    free(log);
    assert_true(lines >= 6);
}

static json_t *line_of(const char *cause)
{
    char *log = strdup(read_file("log")), *rest;
    json_t *found = NULL;
    for (char *line = strtok_r(log, "\n", &rest); line != NULL && found == NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *root = json_loads(line, 0, NULL);
        if (strcmp(json_string_value(json_object_get(root, "cause")), cause) == 0)
            found = root;
        else
            json_decref(root);
    }
    free(log);
    return found;
}

/* Also where there is no connection yet. */
static void a_peer_that_was_turned_away_is_a_field(void **state)
{
    static const struct {
        const char *cause, *peer;
    } lines[] = {{"accept.peer", "unix:pid="}, {"tls.handshake", "tls:127.0.0.1:"}};
    struct test_client first, second;
    struct core_address address = address_of("socket"), port;
    char *from, *to;
    (void)state;

    test_certificates_write(folder);
    pid_t pid =
        start_daemon("listeners:\n  - {address: 'unix:socket'}\n"
                     "  - {address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key}\n" PROFILE
                     "threads: {realtime: off, pin: false}\nengine: ipsec-mb\n"
                     "limits: {streams: 100, connections_per_peer: 1}\nlog: {format: json}\n");
    test_client_connect(&first, &address, NULL);
    test_client_dial(&second, &address);
    await_log("accept.peer");
    test_client_close(&second);
    test_client_close(&first);
    assert_non_null(from = strstr(read_file("log"), "tls:127.0.0.1:"));
    assert_non_null(to = strchr(from, '"'));
    *to = '\0';
    assert_int_equal(core_address_parse(from, &port, NULL), CORE_OK);
    port.transport = CORE_TRANSPORT_TCP;
    test_client_dial(&first, &port);
    (void)test_client_send(&first, "not TLS, by any means", 21);
    await_log("tls.handshake");
    test_client_close(&first);
    assert_int_equal(stop_daemon(pid), 0);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        json_t *line = line_of(lines[i].cause);
        const char *peer = json_string_value(json_object_get(line, "peer"));
        assert_non_null(peer);
        assert_ptr_equal(strstr(peer, lines[i].peer), peer);
        json_decref(line);
    }
}

/* ---- the admin socket and the status command ---- */

static void the_status_command_shows_the_admin_socket(void **state)
{
    char address_text[160];
    struct test_client client;
    struct stat about;
    (void)state;

    pid_t pid = start_daemon(GOOD "admin: unix:admin\n");
    struct test_stream *stream = leave_work(&client, 0, CORE_NS_PER_S);
    assert_int_equal(stat(in_folder("admin").text, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0660);
    snprintf(address_text, sizeof address_text, "unix:%s", in_folder("admin").text);
    assert_int_equal(run(MILLRACE, (char *[]){"millrace", "status", "--admin", address_text, NULL}), 0);
    assert_non_null(strstr(read_file("out"), "serving"));
    assert_non_null(strstr(read_file("out"), "its figures are assumed"));
    char *streams[] = {"millrace", "status", "--streams", "--admin", address_text, NULL};
    assert_int_equal(run(MILLRACE, streams), 0);
    assert_non_null(strstr(read_file("out"), "cpu-0"));
    char *json[] = {"millrace", "status", "--streams", "--json", "--admin", address_text, NULL};
    assert_int_equal(run(MILLRACE, json), 0);
    json_t *root = json_loads(read_file("out"), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(root, "streams")), 1);
    json_decref(root);
    test_stream_free(stream);
    test_client_close(&client);
    assert_int_equal(stop_daemon(pid), 0);
    assert_false(exists("admin"));
}

/* ---- systemd ---- */

#ifdef MILLRACE_HAS_SYSTEMD
static void await_notice(int descriptor, const char *text)
{
    char notice[256];
    ssize_t bytes;
    do {
        struct pollfd ready = {.fd = descriptor, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, TEST_PATIENCE_MS), 1);
        bytes = recv(descriptor, notice, sizeof notice - 1, 0);
        assert_true(bytes > 0);
        notice[bytes] = '\0';
    } while (strstr(notice, text) == NULL);
}

/* With a watchdog; *descriptor hears what the service manager would. */
static pid_t start_notifying(const char *yaml, int *descriptor)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", in_folder("notify").text);
    *descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*descriptor, (struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    setenv("WATCHDOG_USEC", "200000", 1);
    pid_t pid = start_daemon(yaml);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    return pid;
}

static void systemd_is_told(void **state)
{
    int descriptor;
    (void)state;

    pid_t pid = start_notifying(GOOD, &descriptor);
    await_notice(descriptor, "READY=1");
    await_notice(descriptor, "WATCHDOG=1");
    await_notice(descriptor, "WATCHDOG=1");
    assert_int_equal(kill(pid, SIGTERM), 0);
    await_notice(descriptor, "STOPPING=1");
    assert_int_equal(join(pid), 0);
    close(descriptor);
}

static void await_code(const char *path, int code)
{
    struct core_address admin = address_of("admin");
    for (int waited_ms = 0; http_code(&admin, path) != code; waited_ms += 50) {
        assert_true(waited_ms < TEST_PATIENCE_MS);
        poll(NULL, 0, 50);
    }
}

/* A debugger holds one thread, and all others run. */
static void no_thread_can_be_held_unnoticed(void **state)
{
    static const char *const names[] = {"io-0",    "worker-0", "standby", "batcher-0",
                                        "planner", "log",      "watch"};
    struct core_address admin = address_of("admin");
    char notice[256];
    int descriptor;
    (void)state;

    pid_t pid = start_notifying(SOCKET EMULATED QUIET "gpus: emulated\nadmin: unix:admin\n", &descriptor);
    struct pollfd feed = {.fd = descriptor, .events = POLLIN};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        await_code("/livez", 200);
        await_notice(descriptor, "WATCHDOG=1");
        const pid_t thread = thread_named(pid, names[i]);
        assert_true(thread > 0);
        if (ptrace(PTRACE_ATTACH, thread, NULL, NULL) != 0) {
            assert_int_equal(errno, EPERM); /* not allowed here */
            break;
        }
        assert_int_equal(waitpid(thread, NULL, __WALL), thread);
        await_code("/livez", 503);
        assert_int_equal(http_code(&admin, "/readyz"), 503);
        int fed = 0;
        while (poll(&feed, 1, 500) > 0) {
            while (recv(descriptor, notice, sizeof notice, MSG_DONTWAIT) > 0) {
            }
            assert_true(++fed < 4); /* what was on its way, and not one after the other */
        }
        assert_int_equal(ptrace(PTRACE_DETACH, thread, NULL, NULL), 0);
    }
    await_code("/livez", 200);
    await_notice(descriptor, "WATCHDOG=1");
    assert_int_equal(stop_daemon(pid), 0);
    close(descriptor);
}
#endif

#define TEST(function) cmocka_unit_test_setup_teardown(function, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(good_files_are_called_good),
        TEST(bad_files_are_told_by_line),
        TEST(a_check_goes_on_after_what_it_finds),
        TEST(a_check_warns_as_the_start_does),
        TEST(what_is_in_use_is_exit_code_4),
        TEST(required_real_time_must_be_permitted),
        TEST(workers_are_pinned_to_cores_of_the_process),
        TEST(the_user_of_cards_must_be_permitted),
        TEST(cards_run_as_root_where_nothing_else_can_be),
        TEST(without_a_file_all_is_as_by_default),
        TEST(descriptors_that_are_short_are_told),
        TEST(wrong_usage_is_exit_code_2),
        TEST(what_prevents_the_start_is_exit_code_3),
        TEST(a_served_socket_is_left_alone),
        TEST(a_stop_leaves_sockets_of_others),
        TEST(new_privileges_are_forbidden),
        TEST(the_sandbox_is_as_configured),
        TEST(a_socket_left_behind_is_replaced),
        TEST(a_reload_takes_good_keys_and_leaves_bad_ones),
        TEST(a_reload_names_what_waits_for_a_restart),
        TEST(a_reload_takes_the_log_level),
        TEST(a_drain_delivers_what_was_accepted),
        TEST(a_drain_out_of_time_says_what_was_lost),
        TEST(a_client_that_leaves_is_no_loss_of_the_server),
        TEST(every_line_of_the_json_log_is_json),
        TEST(a_peer_that_was_turned_away_is_a_field),
        TEST(the_status_command_shows_the_admin_socket),
#ifdef MILLRACE_HAS_SYSTEMD
        TEST(systemd_is_told),
        TEST(no_thread_can_be_held_unnoticed),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
