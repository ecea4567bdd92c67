/* Running a program as a person would, and reading what it says. */
#ifndef MILLRACE_TESTS_COMMAND_H
#define MILLRACE_TESTS_COMMAND_H

#include <stddef.h>

/* Runs `line` by the shell, with standard error behind standard output, and fills `text` (cut to size - 1)
 * with both. Returns the exit status; the test fails if there is none. */
int test_command(const char *line, char *text, size_t size);

/* A command that must fail, and say so in certain words; the test fails if it does not. */
struct test_command_mistake {
    const char *options, *words;
};
void test_command_mistakes(const char *command, const struct test_command_mistake *mistakes, size_t count);

#endif
