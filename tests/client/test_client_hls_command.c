/* The command line of millrace hls: what it refuses, with which words, and with status 2 whatever is wrong with it. */
#include "tests/support/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define HLS             MILLRACE_BINARY_DIR "/client/millrace hls "
#define KEYS            " --keys=keys --key-uri={id}"

static char folder[] = "/tmp/test-client-hls-command-XXXXXX";

static void refuses_what_is_wrong(void **state)
{
    static const struct test_command_mistake mistakes[] = {
        {"", "give --output, and --input or --listen"},
        {"--output=out" KEYS, "give --output, and --input or --listen"},
        {"--input=in" KEYS, "give --output, and --input or --listen"},
        {"--input=in --output=out", "give --keys and --key-uri, or --key-info"},
        {"--input=in --output=out --keys=keys", "give --keys and --key-uri, or --key-info"},
        {"--input=in --output=out --key-info=info --key-uri={id}",
         "give --keys and --key-uri, or --key-info"},
        {"--input=in --output=out --key-info=info" KEYS, "give --keys and --key-uri, or --key-info"},
        {"--input=in --output=out --keys=keys --key-uri=k", "{id} must be in it"},
        {"--input=in --output=out --rotate=0" KEYS, "--rotate"},
        {"--input=in --output=out --wait=0ms" KEYS, "--wait"},
        {"--input=in --output=out --bandwidth=fast" KEYS, "--bandwidth"},
        {"--input=in --output=out --memory=1" KEYS, "--memory"},
        {"--input=in --output=nowhere" KEYS, "the folder nowhere: No such file or directory"},
        {"--input=nowhere --output=out" KEYS, "the folder nowhere: No such file or directory"},
        {"--input=in --output=file" KEYS, "the folder file: Not a directory"},
        {"--input=in --output=in" KEYS, "must be apart from --input and --keys"},
        {"--input=. --output=out" KEYS, "must be apart from --input and --keys"},
        {"--input=/ --output=out" KEYS, "must be apart from --input and --keys"},
        {"--input=in --output=out --keys=out/../out/keys --key-uri={id}",
         "must be apart from --input and --keys"},
        {"--listen=tcp:0.0.0.0:0 --output=out" KEYS, "listen on unix:, tcp:127.0.0.1 or tcp:[::1]"},
        {"--listen=nonsense --output=out" KEYS, "nonsense"},
        {"--listen=unix:in --output=out --bandwidth=5Mbit/s --wait=1s --memory=1MiB" KEYS, "in"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(mistakes); i++) {
        char line[1024], text[4096];
        snprintf(line, sizeof line, "cd %s && %s %s", folder, HLS, mistakes[i].options);
        int status = test_command(line, text, sizeof text);
        if (status != 2 || strstr(text, mistakes[i].words) == NULL)
            fail_msg("%s: status %d, \"%s\" lacks \"%s\"", mistakes[i].options, status, text,
                     mistakes[i].words);
    }
}

/* What is right, and can not be had now. */
static void fails_where_others_are(void **state)
{
    char line[1024], text[4096];
    (void)state;
    snprintf(line, sizeof line, "cd %s && flock out " HLS "--input=in --output=out" KEYS, folder);
    assert_int_equal(test_command(line, text, sizeof text), 1);
    assert_non_null(strstr(text, "another process writes into out"));
}

/* Without a server, on a terminal: says so, shows how it stands, and ends when it is told to. */
static void runs_without_a_server(void **state)
{
    char line[1024], text[4096];
    (void)state;
    if (system("command -v script >/dev/null") != 0) /* NOLINT(cert-env33-c) */
        skip();
    snprintf(line, sizeof line,
             "cd %s && script -qec 'timeout --foreground -s INT 1.5 " HLS
             "--server=unix:@nobody-here --input=in --output=out" KEYS "' /dev/null </dev/null",
             folder);
    (void)test_command(line, text, sizeof text);
    assert_non_null(strstr(text, "looking for the server"));
    assert_non_null(strstr(text, "0 playlists, 0 segments"));
    assert_non_null(strstr(text, "no server"));
    assert_non_null(strstr(text, "0 segments, 0 parts, 0 maps"));
}

static int prepare(void **state)
{
    char line[256];
    (void)state;
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(line, sizeof line, "cd %s && mkdir -p in out/keys keys && touch file", folder);
    return system(line); /* NOLINT(cert-env33-c) */
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
        cmocka_unit_test(fails_where_others_are),
        cmocka_unit_test(runs_without_a_server),
    };
    return cmocka_run_group_tests(tests, prepare, clean_up);
}
