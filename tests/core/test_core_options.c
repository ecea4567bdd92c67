/* What the command lines of all programs have in common, tried on the programs: help that fits a terminal,
 * the version, and options that mean the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/options.h"
#include "tests/support/command.h"

#define COLUMNS 80

static const char *const programs[] = {
    "server/millraced",
    "gpu/millrace-gpu",
    "client/millrace",
    "client/millrace encrypt",
    "client/millrace hls",
    "client/millrace query",
    "client/millrace status",
    "client/millrace ping",
    "inputgen/millrace-gen",
    "inputgen/millrace-gen make",
    "inputgen/millrace-gen replay",
    "inputgen/millrace-gen churn",
    "bench/millrace-bench",
    "bench/millrace-bench calibrate",
    "bench/millrace-bench crypto",
    "bench/millrace-bench sockets",
    "bench/millrace-bench admission",
    "bench/millrace-bench memory",
    "bench/millrace-bench estimate",
    "bench/millrace-bench plan",
    "bench/millrace-bench kernel",
    "bench/millrace-bench pipeline",
    "bench/millrace-bench siege",
    "bench/millrace-bench figures",
};
#define PROGRAM_COUNT (sizeof programs / sizeof programs[0])

static char text[1 << 15];

static int run(const char *program, const char *options)
{
    char line[512];
    snprintf(line, sizeof line, "%s/%s %s", MILLRACE_BINARY_DIR, program, options);
    return test_command(line, text, sizeof text);
}

static void assert_narrow(const char *program)
{
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > COLUMNS)
            fail_msg("%s --help: \"%.*s\" is too wide", program, (int)strcspn(line, "\n"), line);
}

static void help_is_there_by_all_its_names_and_fits(void **state)
{
    static const char *const names[] = {"-h", "--help", "'-?'"};
    (void)state;

    for (size_t i = 0; i < PROGRAM_COUNT; i++)
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) {
            if (run(programs[i], names[j]) != 0 || strncmp(text, "Usage: ", 7) != 0)
                fail_msg("%s %s: %s", programs[i], names[j], text);
            assert_narrow(programs[i]);
        }
}

static void help_of_the_tools_fits(void **state)
{
    static const char *const tools[] = {"check-style", "demo", "gpu-check", "setup", "soak", "test"};
    (void)state;

    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++) {
        char line[512];
        snprintf(line, sizeof line, "%s/tools/%s --help", MILLRACE_SOURCE_DIR, tools[i]);
        assert_int_equal(test_command(line, text, sizeof text), 0);
        assert_narrow(tools[i]);
    }
}

static void the_version_is_the_programs(void **state)
{
    (void)state;

    for (size_t i = 0; i < PROGRAM_COUNT; i++) {
        char expected[128];
        const char *name = strchr(programs[i], '/') + 1;
        snprintf(expected, sizeof expected, "%.*s %s\n", (int)strcspn(name, " "), name, MILLRACE_VERSION);
        assert_int_equal(run(programs[i], "-V"), 0);
        assert_string_equal(text, expected);
        assert_int_equal(run(programs[i], "--version"), 0);
        assert_string_equal(text, expected);
    }
}

/* The address is where $MILLRACE_SERVER says, and --server says otherwise. */
static void the_server_is_looked_for_in_one_way(void **state)
{
    static const char *const clients[] = {"client/millrace query", "client/millrace ping",
                                          "inputgen/millrace-gen replay demo",
                                          "inputgen/millrace-gen churn demo"};
    (void)state;

    for (size_t i = 0; i < sizeof clients / sizeof clients[0]; i++) {
        setenv("MILLRACE_SERVER", "unix:/nonexistent/environment", 1);
        assert_int_not_equal(run(clients[i], ""), 0);
        assert_non_null(strstr(text, "/nonexistent/environment"));
        assert_int_not_equal(run(clients[i], "-s unix:/nonexistent/option"), 0);
        assert_non_null(strstr(text, "/nonexistent/option"));
        unsetenv("MILLRACE_SERVER");
        assert_int_equal(run(clients[i], "-s unix:/nonexistent/option --ca x.pem"), 2);
        assert_non_null(strstr(text, "are for a tls: address, not for unix:/nonexistent/option"));
        assert_int_equal(run(clients[i], "--timeout 5x"), 2);
        assert_non_null(strstr(text, "--timeout 5x: give a time from 1 ms to"));
    }
}

/* A shipped name and a path from here mean the same to whoever takes a profile. */
static void profiles_are_found_in_one_way(void **state)
{
    static const char *const takers[] = {"bench/millrace-bench estimate", "bench/millrace-bench plan",
                                         "bench/millrace-bench admission --streams 1 --probes 10",
                                         "bench/millrace-bench memory --streams 100 --churn 0",
                                         "bench/millrace-bench sockets --millraced " MILLRACE_BINARY_DIR
                                         "/server/millraced"};
    static const char *const good[] = {"-P cpu-only", "-P config/profiles/cpu-only.yaml"};
    (void)state;

    assert_int_equal(chdir(MILLRACE_SOURCE_DIR), 0);
    for (size_t i = 0; i < sizeof takers / sizeof takers[0]; i++) {
        assert_int_not_equal(run(takers[i], "-P nonesuch"), 0);
        assert_non_null(strstr(text, "no shipped profile is called 'nonesuch'"));
        assert_int_not_equal(run(takers[i], "-P ./nonesuch"), 0);
        assert_non_null(strstr(text, "./nonesuch: "));
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) { /* as fast as may be, it measured */
        (void)run("bench/millrace-bench admission -n 7 -p 10", good[i]);
        assert_non_null(strstr(text, "  7 OPENs under 0.0035 s"));
    }
}

error_t __wrap_argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags, int *index,
                          void *input);

error_t __wrap_argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags, int *index,
                          void *input)
{
    (void)argp, (void)argc, (void)argv, (void)flags, (void)index, (void)input;
    return ENOMEM;
}

/* Nobody goes on with options that were not read, nor ends without a word. */
static void options_that_can_not_be_read_are_told(void **state)
{
    static const struct argp none;
    char *arguments[] = {"program", NULL};
    FILE *told = tmpfile();
    const int before = dup(STDERR_FILENO);
    (void)state;
    assert_non_null(told);
    assert_int_equal(dup2(fileno(told), STDERR_FILENO), STDERR_FILENO);
    const int number = core_options_parse(&none, 1, arguments, NULL);
    assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
    close(before);
    rewind(told);
    text[fread(text, 1, sizeof text - 1, told)] = '\0';
    fclose(told);
    assert_int_equal(number, ENOMEM);
    assert_string_equal(text, "program: can not read the options: Cannot allocate memory\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_is_there_by_all_its_names_and_fits),
        cmocka_unit_test(help_of_the_tools_fits),
        cmocka_unit_test(the_version_is_the_programs),
        cmocka_unit_test(the_server_is_looked_for_in_one_way),
        cmocka_unit_test(profiles_are_found_in_one_way),
        cmocka_unit_test(options_that_can_not_be_read_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
