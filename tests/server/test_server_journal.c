/* Events as the journal gets them. libsystemd's function is the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifdef MILLRACE_HAS_SYSTEMD

#include "server/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

int __wrap_sd_journal_sendv(const struct iovec *vector, int count);

static char sent[4096]; /* the fields of the last entry, one a line */
static int answer;      /* what the journal says to it */

int __wrap_sd_journal_sendv(const struct iovec *vector, int count)
{
    size_t bytes = 0;
    sent[0] = '\0';
    for (int i = 0; i < count; i++)
        bytes += (size_t)snprintf(sent + bytes, sizeof sent - bytes, "%.*s\n", (int)vector[i].iov_len,
                                  (const char *)vector[i].iov_base);
    return answer;
}

/* What standard error is, as systemd would tell it, off by `wrong`. */
static void name_stream(unsigned wrong)
{
    struct stat about;
    char text[64];
    assert_int_equal(fstat(STDERR_FILENO, &about), 0);
    snprintf(text, sizeof text, "%ju:%ju", (uintmax_t)about.st_dev, (uintmax_t)about.st_ino + wrong);
    assert_int_equal(setenv("JOURNAL_STREAM", text, 1), 0);
}

static void the_journal_is_used_where_standard_error_is_its(void **state)
{
    (void)state;
    unsetenv("JOURNAL_STREAM");
    assert_null(server_journal_sink());
    name_stream(1);
    assert_null(server_journal_sink());
    name_stream(0);
    assert_non_null(server_journal_sink());
}

/* Lines go through core/log to the journal, and to the descriptor where it does not take them. */
static void events_have_fields_of_their_own(void **state)
{
    const struct core_log_fields about = {
        .connection = 7, .peer = "tcp:[::1]:5", .stream = 4, .unit = "gpu-1"};
    static const char *const flooding = "test.flooding";
    char line[256];
    int ends[2];
    (void)state;
    name_stream(0);
    assert_int_equal(pipe(ends), 0);
    const struct core_log_options options = {
        .level = CORE_LOG_INFO, .descriptor = ends[1], .sink = server_journal_sink()};
    core_log_configure(&options);
    answer = 0;
    core_log_with(CORE_LOG_WARNING, "test.about", &about, "two\nlines");
    assert_string_equal(
        sent, "MESSAGE=test.about two\nlines\nPRIORITY=4\nMILLRACE_CAUSE=test.about\nMILLRACE_CONNECTION=7\n"
              "MILLRACE_PEER=tcp:[::1]:5\nMILLRACE_STREAM=4\nMILLRACE_UNIT=gpu-1\n");
    core_log(CORE_LOG_ERROR, "test.bare", "nothing known");
    assert_string_equal(sent, "MESSAGE=test.bare nothing known\nPRIORITY=3\nMILLRACE_CAUSE=test.bare\n");
    core_log_configure(&(struct core_log_options){
        .level = CORE_LOG_INFO, .descriptor = -1, .per_s = 1e-6, .burst = 1, .sink = options.sink});
    for (int i = 0; i < 3; i++)
        core_log(CORE_LOG_INFO, flooding, "line");
    core_log_configure(&options);
    core_log(CORE_LOG_INFO, flooding, "more");
    assert_string_equal(sent, "MESSAGE=test.flooding more (2 more left out)\nPRIORITY=6\n"
                              "MILLRACE_CAUSE=test.flooding\nMILLRACE_LEFT_OUT=2\n");
    answer = -1;
    core_log(CORE_LOG_INFO, "test.refused", "by the journal");
    const ssize_t bytes = read(ends[0], line, sizeof line - 1);
    assert_true(bytes > 0);
    line[bytes] = '\0';
    assert_non_null(strstr(line, "info test.refused by the journal\n"));
    assert_null(strstr(line, "two"));
    close(ends[0]);
    close(ends[1]);
}

/* The longest message there is, with all fields. */
static void long_messages_fit(void **state)
{
    static char message[4096];
    char peer[96], unit[32];
    const struct core_log_fields about = {
        .connection = UINT64_MAX, .peer = peer, .stream = UINT32_MAX, .unit = unit};
    const struct core_log_options options = {
        .level = CORE_LOG_INFO, .descriptor = -1, .sink = server_journal_sink()};
    (void)state;
    memset(message, 'm', sizeof message - 1);
    memset(peer, 'p', sizeof peer);
    memset(unit, 'u', sizeof unit);
    peer[sizeof peer - 1] = unit[sizeof unit - 1] = '\0';
    answer = 0;
    core_log_configure(&options);
    core_log_with(CORE_LOG_INFO, "test.long", &about, "%s", message);
    assert_int_equal(strspn(sent + strlen("MESSAGE=test.long "), "m"), 2047);
    assert_non_null(strstr(sent, "MILLRACE_STREAM=4294967295\n"));
    assert_non_null(strstr(sent, "MILLRACE_UNIT=uuu"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_journal_is_used_where_standard_error_is_its),
        cmocka_unit_test(events_have_fields_of_their_own),
        cmocka_unit_test(long_messages_fit),
    };
    return cmocka_run_group_tests_name("server/journal", tests, NULL, NULL);
}

#else
int main(void)
{
    return 77; /* built without systemd */
}
#endif
