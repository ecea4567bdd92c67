/* The command line of millrace ts: what it refuses, what can not be had now, and what it shows without a server. */
#include "tests/support/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define TS              MILLRACE_BINARY_DIR "/client/millrace ts "
#define SERVICE(name, input, output, more)                                                                   \
    "  - {name: " name ", input: \"" input "\", output: \"udp:127.0.0.1:" output                             \
    "\", rate_mbit_per_s: 4, words: {file: words}" more "}\n"

static char folder[] = "/tmp/test-client-ts-command-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void refuses_what_is_wrong(void **state)
{
    static const struct {
        const char *options, *words;
        int status;
    } mistakes[] = {
        {"", "give the FILE of the services", 2},
        {"good.yaml good.yaml", "Too many arguments", 2},
        {"--loud good.yaml", "--loud", 2},
        {"nowhere.yaml", "nowhere.yaml", 2},
        {"bad.yaml", "bad.yaml", 2},
        {"--check bad.yaml", "bad.yaml", 2},
        {"--check good.yaml", "", 0},
        {"twice.yaml", "b: its input can not be received: Address already in use", 1},
        {"interface.yaml", "a: its input: the interface nosuch0: No such device", 1},
        {"--listen=tcp:0.0.0.0:0 good.yaml", "listen on unix:, tcp:127.0.0.1 or tcp:[::1]", 1},
        {"--listen=unix:nowhere/metrics good.yaml", "nowhere/metrics", 1},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(mistakes); i++) {
        char line[512], text[4096];
        snprintf(line, sizeof line, "cd %s && %s %s", folder, TS, mistakes[i].options);
        int status = test_command(line, text, sizeof text);
        if (status != mistakes[i].status || strstr(text, mistakes[i].words) == NULL)
            fail_msg("%s: status %d, \"%s\" lacks \"%s\"", mistakes[i].options, status, text,
                     mistakes[i].words);
    }
}

/* On a terminal: says so, shows how it stands, and reports when it is told to end. */
static void runs_without_a_server(void **state)
{
    char line[512], text[4096];
    (void)state;
    if (system("command -v script >/dev/null") != 0) /* NOLINT(cert-env33-c) */
        skip();
    snprintf(line, sizeof line,
             "cd %s && script -qec 'timeout --foreground -s INT 1.5 " TS
             "--server=unix:@nobody-here good.yaml' /dev/null </dev/null",
             folder);
    (void)test_command(line, text, sizeof text);
    assert_non_null(strstr(text, "looking for the server"));
    assert_non_null(strstr(text, "0 of 1 services"));
    assert_non_null(strstr(text, "no server"));
    assert_non_null(strstr(text, "a: 0 datagrams, 0 late, 0 dropped"));
}

static int prepare(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return 1;
    write_file("good.yaml", "services:\n" SERVICE("a", "udp:127.0.0.1:39101", "39", ""));
    write_file("bad.yaml", "services:\n" SERVICE("a", "tcp:127.0.0.1:39101", "39", ""));
    write_file("twice.yaml", "services:\n" SERVICE("a", "udp:127.0.0.1:39102", "39", "")
                                 SERVICE("b", "udp:127.0.0.1:39102", "40", ""));
    write_file("interface.yaml",
               "services:\n" SERVICE("a", "udp:239.1.1.1:39103", "39", ", input_interface: nosuch0"));
    return 0;
}

static int clean_up(void **state)
{
    char line[128];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line); /* NOLINT(cert-env33-c) */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_is_wrong),
        cmocka_unit_test(runs_without_a_server),
    };
    return cmocka_run_group_tests(tests, prepare, clean_up);
}
