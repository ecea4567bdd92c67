#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/address.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/millrace-address-XXXXXX";

static int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int folder_remove(void **state)
{
    (void)state;
    return rmdir(folder); /* fails where a test left something behind */
}

static struct core_address parsed(const char *text)
{
    struct core_address address;
    assert_int_equal(core_address_parse(text, &address, NULL), CORE_OK);
    return address;
}

/* An abstract name of this process alone. */
static struct core_address abstract(const char *name)
{
    struct core_address address = {.transport = CORE_TRANSPORT_UNIX};
    snprintf(address.host, sizeof address.host, "@millrace-test-%s-%d", name, (int)getpid());
    return address;
}

static struct core_address in_folder(const char *name)
{
    struct core_address address = {.transport = CORE_TRANSPORT_UNIX};
    snprintf(address.host, sizeof address.host, "%s/%s", folder, name);
    return address;
}

static int listen_on(const struct core_address *address, struct core_address *bound)
{
    int descriptor = -1;
    struct core_error error = {""};
    const core_status status = core_address_listen(address, 0, &descriptor, bound, &error);
    if (status != CORE_OK)
        fail_msg("%s", error.text);
    return descriptor;
}

/* ---- text ---- */

static void good_addresses_parse_and_format_back(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum core_transport transport;
        const char *host;
        uint16_t port;
    } cases[] = {
        {"unix:/run/millrace/millraced.sock", CORE_TRANSPORT_UNIX, "/run/millrace/millraced.sock", 0},
        {"unix:relative", CORE_TRANSPORT_UNIX, "relative", 0},
        {"unix:/with:colon", CORE_TRANSPORT_UNIX, "/with:colon", 0},
        {"unix:@name", CORE_TRANSPORT_UNIX, "@name", 0},
        {"tcp:127.0.0.1:7411", CORE_TRANSPORT_TCP, "127.0.0.1", 7411},
        {"tcp:[::1]:7411", CORE_TRANSPORT_TCP, "::1", 7411},
        {"tcp:localhost:0", CORE_TRANSPORT_TCP, "localhost", 0},
        {"tls:example.org:65535", CORE_TRANSPORT_TLS, "example.org", 65535},
        {"tls:[fe80::1%eth0]:1", CORE_TRANSPORT_TLS, "fe80::1%eth0", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[300], cut[8];
        const struct core_address address = parsed(cases[i].text);
        assert_int_equal(address.transport, cases[i].transport);
        assert_string_equal(address.host, cases[i].host);
        assert_int_equal(address.port, cases[i].port);
        assert_ptr_equal(core_address_format(&address, text, sizeof text), text);
        assert_string_equal(text, cases[i].text);
        core_address_format(&address, cut, sizeof cut);
        assert_int_equal(strlen(cut), sizeof cut - 1);
        assert_memory_equal(cut, cases[i].text, sizeof cut - 1);
    }
}

static void bad_addresses_say_why(void **state)
{
    (void)state;
    static const struct {
        const char *text, *complaint;
    } cases[] = {
        {"", "must begin with unix:"},
        {"/run/x.sock", "must begin with unix:"},
        {"udp:127.0.0.1:1", "must begin with unix:"},
        {"TCP:127.0.0.1:1", "must begin with unix:"},
        {"unix:", "no path"},
        {"unix:@", "no path"},
        {"tcp:", "lacks a port"},
        {"tcp:localhost", "lacks a port"},
        {"tcp:[::1]", "lacks a port"},
        {"tcp:[::1", "lacks a port"},
        {"tcp:[::1]7411", "lacks a port"},
        {"tcp:localhost:", "0 to 65535"},
        {"tcp:localhost:65536", "0 to 65535"},
        {"tcp:localhost:-1", "0 to 65535"},
        {"tcp:localhost:+1", "0 to 65535"},
        {"tcp:localhost: 1", "0 to 65535"},
        {"tcp:localhost:1x", "0 to 65535"},
        {"tcp:localhost:000001", "0 to 65535"},
        {"tcp::7411", "0 bytes"},
        {"tcp:[]:7411", "0 bytes"},
        {"tcp:::1:7411", "brackets"},
        {"tcp:[[]:3", "brackets"},
        {"tcp:a]:3", "brackets"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct core_error error = {""};
        struct core_address address = {.port = 77};
        assert_int_equal(core_address_parse(cases[i].text, &address, &error), CORE_INVALID);
        assert_non_null(strstr(error.text, cases[i].complaint));
        assert_int_equal(address.port, 77);
    }
}

static void lengths_are_limited(void **state)
{
    (void)state;
    char text[400];
    struct core_address address;
    struct core_error error;
    snprintf(text, sizeof text, "unix:/%0106d", 0);
    assert_int_equal(core_address_parse(text, &address, &error), CORE_OK);
    snprintf(text, sizeof text, "unix:/%0107d", 0);
    assert_int_equal(core_address_parse(text, &address, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "108 bytes, a Unix socket allows 107"));
    snprintf(text, sizeof text, "tcp:%0255d:1", 0);
    assert_int_equal(core_address_parse(text, &address, &error), CORE_OK);
    snprintf(text, sizeof text, "tcp:%0256d:1", 0);
    assert_int_equal(core_address_parse(text, &address, &error), CORE_INVALID);
}

/* ---- sockets ---- */

static void assert_descriptor_flags(int descriptor)
{
    assert_true(fcntl(descriptor, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(descriptor, F_GETFD) & FD_CLOEXEC);
}

static void assert_bytes_pass(int listener, int client)
{
    char byte = 0;
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 10000), 1);
    const int server = accept(listener, NULL, NULL);
    assert_true(server >= 0);
    assert_int_equal(write(client, "x", 1), 1);
    assert_int_equal(read(server, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    close(server);
}

static void assert_listens_and_connects(const struct core_address *address)
{
    struct core_address bound;
    int client = -1;
    const int listener = listen_on(address, &bound);
    assert_descriptor_flags(listener);
    assert_int_equal(bound.port > 0, address->transport != CORE_TRANSPORT_UNIX);
    assert_string_equal(bound.host, address->host);
    assert_int_equal(core_address_connect(&bound, 10000, &client, NULL), CORE_OK);
    assert_descriptor_flags(client);
    if (bound.port > 0) {
        int no_delay = 0;
        socklen_t bytes = sizeof no_delay;
        assert_int_equal(getsockopt(client, IPPROTO_TCP, TCP_NODELAY, &no_delay, &bytes), 0);
        assert_int_not_equal(no_delay, 0);
    }
    assert_bytes_pass(listener, client);
    close(client);
    close(listener);
    if (address->host[0] == '/')
        assert_int_equal(unlink(address->host), 0);
}

static void every_transport_listens_and_connects(void **state)
{
    (void)state;
    const struct core_address addresses[] = {in_folder("a.sock"), abstract("address"),
                                             parsed("tcp:127.0.0.1:0"), parsed("tls:127.0.0.1:0")};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++)
        assert_listens_and_connects(&addresses[i]);
}

static void names_are_looked_up(void **state)
{
    (void)state;
    struct addrinfo *found = NULL;
    if (getaddrinfo("localhost", NULL, NULL, &found) != 0)
        skip(); /* this system has no /etc/hosts */
    freeaddrinfo(found);
    const struct core_address address = parsed("tcp:localhost:0");
    assert_listens_and_connects(&address);
}

static void ipv6_works_where_there_is_ipv6(void **state)
{
    (void)state;
    const struct core_address address = parsed("tcp:[::1]:0");
    struct core_address bound;
    struct core_error error;
    int listener = -1, client = -1;
    if (core_address_listen(&address, 0, &listener, &bound, &error) != CORE_OK) {
        assert_non_null(strstr(error.text, "tcp:[::1]:0"));
        skip();
    }
    assert_int_equal(core_address_connect(&bound, 10000, &client, &error), CORE_OK);
    assert_bytes_pass(listener, client);
    close(client);
    close(listener);
}

static void a_tcp_port_is_taken_over_after_a_connection(void **state)
{
    (void)state;
    const struct core_address address = parsed("tcp:127.0.0.1:0");
    struct core_address bound;
    int client = -1;
    int listener = listen_on(&address, &bound);
    assert_int_equal(core_address_connect(&bound, 10000, &client, NULL), CORE_OK);
    const int server = accept(listener, NULL, NULL);
    assert_true(server >= 0);
    close(server); /* the server closes first, so its side stays in TIME_WAIT */
    close(client);
    close(listener);
    listener = listen_on(&bound, NULL);
    close(listener);
}

static void a_served_address_is_refused(void **state)
{
    (void)state;
    const struct core_address addresses[] = {in_folder("served.sock"), abstract("served"),
                                             parsed("tcp:127.0.0.1:0")};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        struct core_address bound;
        struct core_error error;
        int second = -7, client = -1;
        const int listener = listen_on(&addresses[i], &bound);
        assert_int_equal(core_address_listen(&bound, 0, &second, NULL, &error), CORE_IN_USE);
        assert_non_null(strstr(error.text, "Address already in use"));
        assert_int_equal(second, -7);
        assert_int_equal(core_address_try(&bound, &error), CORE_IN_USE);
        assert_non_null(strstr(error.text, "Address already in use"));
        assert_int_equal(core_address_connect(&bound, 10000, &client, NULL), CORE_OK);
        close(client);
        close(listener);
        if (addresses[i].host[0] == '/')
            assert_int_equal(unlink(addresses[i].host), 0);
    }
}

/* What can be listened on, what was left behind included. */
static void a_try_leaves_all_as_it_is(void **state)
{
    (void)state;
    const struct core_address left = in_folder("left.sock"), fresh = in_folder("fresh.sock"),
                              nowhere = in_folder("nowhere/a.sock"), other = abstract("tried"),
                              port = parsed("tcp:127.0.0.1:0");
    struct core_error error;
    struct core_address bound;
    close(listen_on(&left, &bound));
    assert_int_equal(core_address_try(&left, &error), CORE_OK);
    assert_int_equal(access(left.host, F_OK), 0);
    assert_int_equal(core_address_try(&fresh, &error), CORE_OK);
    assert_int_not_equal(access(fresh.host, F_OK), 0);
    assert_int_equal(core_address_try(&other, &error), CORE_OK);
    assert_int_equal(core_address_try(&port, &error), CORE_OK);
    assert_int_equal(core_address_try(&nowhere, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "can not listen on unix:/"));
    assert_int_equal(unlink(left.host), 0);
}

/* ---- what the kernel does between bind and listen ---- */

int __real_listen(int descriptor, int backlog);
int __wrap_listen(int descriptor, int backlog);

static int listen_errno;                     /* not 0: listen fails with it */
static void (*before_listen)(void);          /* NULL: nothing */
static const struct core_address *contended; /* what another process tries to listen on */
static pid_t contender;
static int contender_ended[2]; /* pipe: end of file then */

int __wrap_listen(int descriptor, int backlog)
{
    if (before_listen != NULL)
        before_listen();
    errno = listen_errno;
    return listen_errno != 0 ? -1 : __real_listen(descriptor, backlog);
}

/* Exits 0 where it listens, 1 where it is told that somebody does. */
static void contend(void)
{
    int listener = -1;
    before_listen = NULL;
    switch (core_address_listen(contended, 0, &listener, NULL, NULL)) {
    case CORE_OK:
        _exit(0);
    case CORE_IN_USE:
        _exit(1);
    default:
        _exit(2);
    }
}

/* Another process comes, and has time to be through if nothing holds it. */
static void let_another_come(void)
{
    struct pollfd through = {.fd = contender_ended[0], .events = POLLIN};
    contender = fork();
    if (contender == 0)
        contend();
    close(contender_ended[1]);
    (void)poll(&through, 1, 300);
}

static void of_two_who_come_at_once_one_listens(void **state)
{
    (void)state;
    static const bool stale[] = {false, true};
    const struct core_address address = in_folder("contended.sock");
    for (size_t i = 0; i < 2; i++) {
        int status = 0, client = -1;
        if (stale[i])
            close(listen_on(&address, NULL));
        contended = &address;
        assert_int_equal(pipe2(contender_ended, O_CLOEXEC), 0);
        before_listen = let_another_come;
        const int listener = listen_on(&address, NULL);
        before_listen = NULL;
        assert_int_equal(waitpid(contender, &status, 0), contender);
        close(contender_ended[0]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
        assert_int_equal(core_address_connect(&address, 10000, &client, NULL), CORE_OK);
        close(client);
        close(listener);
        assert_int_equal(unlink(address.host), 0);
    }
}

static void a_listen_that_fails_leaves_no_file(void **state)
{
    (void)state;
    const struct core_address address = in_folder("failed.sock");
    struct core_error error;
    int listener = -7;
    listen_errno = ENOBUFS;
    const core_status status = core_address_listen(&address, 0, &listener, NULL, &error);
    listen_errno = 0;
    assert_int_equal(status, CORE_SYSTEM);
    assert_non_null(strstr(error.text, strerror(ENOBUFS)));
    assert_int_equal(listener, -7);
    assert_int_not_equal(access(address.host, F_OK), 0);
}

static void a_listener_removes_its_own_file_alone(void **state)
{
    (void)state;
    const struct core_address address = in_folder("own.sock");
    struct core_address first, second;
    const int older = listen_on(&address, &first);
    assert_int_equal(unlink(address.host), 0); /* somebody takes it away, and another comes */
    const int newer = listen_on(&address, &second);
    core_address_remove(&first);
    assert_int_equal(access(address.host, F_OK), 0);
    core_address_remove(&second);
    assert_int_not_equal(access(address.host, F_OK), 0);
    core_address_remove(&second);  /* there is none any more */
    core_address_remove(&address); /* nor ever was one of it */
    close(older);
    close(newer);
}

/* A lock that somebody forgets does not hold up a start for ever. */
static void a_folder_that_stays_locked_is_told(void **state)
{
    (void)state;
    const struct core_address address = in_folder("locked.sock");
    struct core_error error;
    int listener = -7;
    const int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(lock >= 0);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    assert_int_equal(core_address_listen(&address, 0, &listener, NULL, &error), CORE_TIMEOUT);
    assert_non_null(strstr(error.text, "locked"));
    assert_int_equal(listener, -7);
    close(lock);
    assert_int_not_equal(access(address.host, F_OK), 0);
}

static void a_stale_unix_socket_is_replaced(void **state)
{
    (void)state;
    const struct core_address address = in_folder("stale.sock");
    close(listen_on(&address, NULL));
    assert_int_equal(access(address.host, F_OK), 0);
    const int listener = listen_on(&address, NULL);
    int client = -1;
    assert_int_equal(core_address_connect(&address, 10000, &client, NULL), CORE_OK);
    close(client);
    close(listener);
    assert_int_equal(unlink(address.host), 0);
}

static void a_file_that_is_no_socket_is_left_alone(void **state)
{
    (void)state;
    const struct core_address address = in_folder("file");
    struct core_error error;
    struct stat about;
    int listener = -1;
    FILE *file = fopen(address.host, "w");
    assert_non_null(file);
    assert_true(fputs("precious", file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(core_address_listen(&address, 0, &listener, NULL, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "is no socket"));
    assert_int_equal(core_address_try(&address, &error), CORE_INVALID);
    assert_int_equal(stat(address.host, &about), 0);
    assert_int_equal(about.st_size, strlen("precious"));
    assert_int_equal(unlink(address.host), 0);
}

static void a_unix_socket_has_exactly_the_mode_asked_for(void **state)
{
    (void)state;
    static const struct {
        mode_t umask;
        unsigned mode, expected;
    } cases[] = {{0, 0, 0660}, {077, 0, 0660}, {0, 0600, 0600}, {0777, 0666, 0666}, {022, 0770, 0770}};
    const struct core_address address = in_folder("mode.sock");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int listener = -1;
        struct stat about;
        const mode_t before = umask(cases[i].umask);
        const core_status status = core_address_listen(&address, cases[i].mode, &listener, NULL, NULL);
        umask(before);
        assert_int_equal(status, CORE_OK);
        assert_int_equal(stat(address.host, &about), 0);
        assert_int_equal(about.st_mode & 07777, cases[i].expected);
        close(listener);
    }
    assert_int_equal(unlink(address.host), 0);
}

static void connecting_to_nobody_says_so(void **state)
{
    (void)state;
    struct core_address closed_port;
    const struct core_address any_port = parsed("tcp:127.0.0.1:0"), absent = in_folder("absent.sock"),
                              unnamed = abstract("nobody");
    close(listen_on(&any_port, &closed_port));
    const struct core_address *addresses[] = {&closed_port, &absent, &unnamed};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        struct core_error error;
        int descriptor = -7;
        assert_int_equal(core_address_connect(addresses[i], 1000, &descriptor, &error), CORE_SYSTEM);
        assert_non_null(strstr(error.text, "is the server running?"));
        assert_int_equal(descriptor, -7);
    }
}

static void a_full_backlog_times_out(void **state)
{
    (void)state;
    const struct core_address address = in_folder("full.sock");
    const int listener = listen_on(&address, NULL);
    assert_int_equal(listen(listener, 0), 0); /* shrink it */
    int clients[8], count = 0;
    core_status status = CORE_OK;
    struct core_error error;
    while (count < 8 && (status = core_address_connect(&address, 20, &clients[count], &error)) == CORE_OK)
        count++;
    assert_int_equal(status, CORE_TIMEOUT);
    assert_non_null(strstr(error.text, "within 20 ms"));
    while (count > 0)
        close(clients[--count]);
    close(listener);
    assert_int_equal(unlink(address.host), 0);
}

static void bad_requests_are_told(void **state)
{
    (void)state;
    struct core_error error;
    int descriptor = -7;
    const struct core_address port_zero = parsed("tcp:127.0.0.1:0");
    assert_int_equal(core_address_connect(&port_zero, 100, &descriptor, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "port 0"));
    const struct core_address no_name = parsed("tcp:256.256.256.256.invalid:1");
    const core_status status = core_address_connect(&no_name, 100, &descriptor, &error);
    assert_true(status == CORE_NOT_FOUND || status == CORE_SYSTEM);
    assert_non_null(strstr(error.text, "256.256.256.256.invalid"));
    const struct core_address no_folder = parsed("unix:/nonexistent/folder/x.sock");
    assert_int_equal(core_address_listen(&no_folder, 0, &descriptor, NULL, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "No such file"));
    struct core_address long_path = {.transport = CORE_TRANSPORT_UNIX};
    memset(long_path.host, 'x', sizeof long_path.host - 1);
    assert_int_equal(core_address_listen(&long_path, 0, &descriptor, NULL, &error), CORE_INVALID);
    assert_int_equal(core_address_connect(&long_path, 100, &descriptor, &error), CORE_INVALID);
    assert_int_equal(descriptor, -7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_addresses_parse_and_format_back),
        cmocka_unit_test(bad_addresses_say_why),
        cmocka_unit_test(lengths_are_limited),
        cmocka_unit_test(every_transport_listens_and_connects),
        cmocka_unit_test(names_are_looked_up),
        cmocka_unit_test(ipv6_works_where_there_is_ipv6),
        cmocka_unit_test(a_tcp_port_is_taken_over_after_a_connection),
        cmocka_unit_test(a_served_address_is_refused),
        cmocka_unit_test(a_try_leaves_all_as_it_is),
        cmocka_unit_test(of_two_who_come_at_once_one_listens),
        cmocka_unit_test(a_listen_that_fails_leaves_no_file),
        cmocka_unit_test(a_listener_removes_its_own_file_alone),
        cmocka_unit_test(a_folder_that_stays_locked_is_told),
        cmocka_unit_test(a_stale_unix_socket_is_replaced),
        cmocka_unit_test(a_file_that_is_no_socket_is_left_alone),
        cmocka_unit_test(a_unix_socket_has_exactly_the_mode_asked_for),
        cmocka_unit_test(connecting_to_nobody_says_so),
        cmocka_unit_test(a_full_backlog_times_out),
        cmocka_unit_test(bad_requests_are_told),
    };
    return cmocka_run_group_tests_name("core/address", tests, folder_make, folder_remove);
}
