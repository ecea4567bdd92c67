/* The `millrace` command against a server with a GPU, and on a terminal: what a guaranteed stream is told, the tables
 * of the GPUs, progress and notices while a file is encrypted and the GPU is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "tests/support/command.h"
#include "tests/support/gpu_server.h"

#define MILLRACE MILLRACE_BINARY_DIR "/client/millrace "
#define COST     4000 /* of workers that next to nothing fits */
#define KEY      "--key-name camera "
/* Within a GPU's reach, and beyond a worker's. */
#define CONTRACT "--rate 4M --packet-bytes 16368 --latency 1500ms "

static struct test_server server;
static char text[65536];

static int start(void **state)
{
    struct config_profile *profile = test_gpu_profile(COST);
    (void)state;
    profile->gpus[0].count = 2;
    test_server_prepare(&server);
    test_server_write(&server, "keys", "camera aes-128-cbc 000102030405060708090a0b0c0d0e0f client-iv\n");
    char address[128], admin[128];
    snprintf(address, sizeof address, "unix:%s/socket", server.folder);
    snprintf(admin, sizeof admin, "unix:%s/admin", server.folder);
    if (setenv("MILLRACE_SERVER", address, 1) ||
        setenv("MILLRACE_ADMIN", admin, 1)) /* before there are threads */
        return -1;
    test_gpu_server_start(&server, "",
                          "listeners: [{address: 'unix:socket'}]\nclient_iv: true\nkeyring: keys\n"
                          "admin: 'unix:admin'\n",
                          profile);
    config_profile_free(profile);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return test_server_stop(&server) != 0;
}

static void expect(const char *line, int status, const char *words)
{
    const int got = test_command(line, text, sizeof text);
    if (got != status || strstr(text, words) == NULL)
        fail_msg("%s: status %d, not %d with '%s': %s", line, got, status, words, text);
}

static void guaranteed_stream_is_told_its_price(void **state)
{
    (void)state;
    expect(MILLRACE "query " CONTRACT, 0, "on gpu ");
    expect(MILLRACE "query --guaranteed " CONTRACT, 0, "guaranteed: within ");
    assert_non_null(strstr(text, "are held for it"));
    expect(MILLRACE "query --guaranteed --json " CONTRACT, 0, "\"reserved_percent\"");
    json_t *answer = json_loads(text, 0, NULL);
    const json_t *backup = json_object_get(answer, "guaranteed");
    assert_string_equal(json_string_value(json_object_get(backup, "unit")), "gpu");
    assert_true(json_number_value(json_object_get(backup, "bound_us")) > 0);
    json_decref(answer);
}

static void status_has_the_gpus(void **state)
{
    static const char *const words[] = {"copy up", "kernel", "copy down", "batch", "on GPUs", "gpu-1"};
    (void)state;
    expect(MILLRACE "status", 0, "emulated-small");
    for (size_t at = 0; at < sizeof words / sizeof *words; at++)
        if (strstr(text, words[at]) == NULL)
            fail_msg("no '%s' in: %s", words[at], text);
}

/* Two seconds of a file on a terminal of its own; the GPU that has it is lost meanwhile. */
static void notices_are_shown_between_progress(void **state)
{
    char line[1024];
    (void)state;
    snprintf(line, sizeof line,
             "cd %s; head -c 1000000 /dev/zero >in; script -qec '" MILLRACE "encrypt " KEY CONTRACT
             "-o out in' /dev/null & until [ -s %s/out ]; do sleep 0.01; done; kill -KILL %d %d; wait $!",
             server.folder, server.folder, (int)test_gpu_process(&server, 0),
             (int)test_gpu_process(&server, 1));
    expect(line, 0, "IV: ");
    assert_non_null(strstr(text, "%")); /* how far it is */
    test_gpu_await_up(&server, 0, 0);
    test_gpu_await_up(&server, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guaranteed_stream_is_told_its_price),
        cmocka_unit_test(status_has_the_gpus),
        cmocka_unit_test(notices_are_shown_between_progress),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
