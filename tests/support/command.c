#include "tests/support/command.h"

#include "tests/support/require.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

int test_command(const char *line, char *text, size_t size)
{
    char with_errors[2048], rest[512];

    TEST_REQUIRE((size_t)snprintf(with_errors, sizeof with_errors, "exec 2>&1; %s", line) <
                 sizeof with_errors);
    FILE *pipe = popen(with_errors, "r");
    TEST_REQUIRE(pipe != NULL);
    text[fread(text, 1, size - 1, pipe)] = '\0';
    while (fread(rest, 1, sizeof rest, pipe) > 0)
        continue;
    const int status = pclose(pipe);
    TEST_REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void test_command_mistakes(const char *command, const struct test_command_mistake *mistakes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char line[1024], text[4096];
        snprintf(line, sizeof line, "%s %s", command, mistakes[i].options);
        const int status = test_command(line, text, sizeof text);
        if (status == 0 || strstr(text, mistakes[i].words) == NULL)
            fprintf(stderr, "%s: status %d, \"%s\" lacks \"%s\"\n", line, status, text, mistakes[i].words);
        TEST_REQUIRE(status != 0 && strstr(text, mistakes[i].words) != NULL);
    }
}
