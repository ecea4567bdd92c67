/* The start where there is no memory for the path of millrace-gpu: an error, and no crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "core/log.h"
#include "tests/support/gpu_server.h"

#define PROGRAM MILLRACE_BINARY_DIR "/gpu/millrace-gpu"

static int fails_at, copies; /* the copy of the program's path that fails, and so many so far */

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);

char *__wrap_strdup(const char *text)
{
    if (strcmp(text, PROGRAM) != 0 || ++copies != fails_at)
        return __real_strdup(text);
    errno = ENOMEM;
    return NULL;
}

static void every_copy_of_the_path_may_fail(void **state)
{
    (void)state;
    static const char yaml[] = "listeners: [{address: 'unix:@millrace-test-cards'}]\nengine: ipsec-mb\n"
                               "threads: {io: 1, workers: 1, realtime: off, pin: false}\n"
                               "gpus: {use: emulated, program: " PROGRAM "}\n";
    struct config_profile *profile = test_gpu_profile(1);
    struct config_server *config = NULL;
    struct core_error error = {""};
    struct server *server = NULL;
    core_log_set_level(CORE_LOG_ERROR);
    assert_int_equal(config_server_parse(yaml, strlen(yaml), "test.yaml", &config, &error), CORE_OK);
    for (fails_at = 1; fails_at < 100; fails_at++) {
        copies = 0;
        const core_status status = server_start(&server, config, profile, &error);
        if (status == CORE_OK)
            break;
        assert_int_equal(status, CORE_NO_MEMORY);
        assert_non_null(strstr(error.text, "no memory"));
    }
    assert_in_range(fails_at, 4, 99); /* the check, the start, the card, its engine: all have failed */
    assert_int_equal(server_stop(server), 0);
    config_server_free(config);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_copy_of_the_path_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
