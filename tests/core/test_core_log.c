/* Lines are caught in a pipe and read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAMP_LENGTH 27 /* 2026-11-21T10:15:02.123456Z */

static int log_pipe[2];

static int pipe_open(void **state)
{
    (void)state;
    return pipe2(log_pipe, O_NONBLOCK | O_CLOEXEC);
}

static int pipe_close(void **state)
{
    (void)state;
    close(log_pipe[0]);
    close(log_pipe[1]);
    return 0;
}

static void log_into_pipe(enum core_log_level level, enum core_log_format format, double per_s,
                          unsigned burst)
{
    const struct core_log_options options = {level, format, log_pipe[1], per_s, burst, NULL};
    core_log_configure(&options);
}

/* Everything logged since the last call; static storage. */
static const char *caught(void)
{
    static char text[65536];
    const ssize_t bytes = read(log_pipe[0], text, sizeof text - 1);
    text[bytes > 0 ? bytes : 0] = '\0';
    return text;
}

static size_t line_count(const char *text)
{
    size_t count = 0;
    for (; *text; text++)
        count += *text == '\n';
    return count;
}

static void a_text_line_has_stamp_level_cause_and_message(void **state)
{
    (void)state;
    static const char *const names[] = {"error", "warning", "info", "debug"};
    log_into_pipe(CORE_LOG_DEBUG, CORE_LOG_TEXT, 0, 0);
    for (int level = CORE_LOG_ERROR; level <= CORE_LOG_DEBUG; level++) {
        char expected[64];
        int year, month, day, hour, minute, second, microsecond, length = 0;
        core_log((enum core_log_level)level, "test.cause", "peer=%d: %s", 17, "gone");
        const char *line = caught();
        assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%6dZ%n", &year, &month, &day, &hour, &minute,
                                &second, &microsecond, &length),
                         7);
        assert_int_equal(length, STAMP_LENGTH);
        assert_true(year >= 2024 && month <= 12 && day <= 31 && hour < 24 && minute < 60 && second <= 60);
        snprintf(expected, sizeof expected, " %s test.cause peer=17: gone\n", names[level]);
        assert_string_equal(line + STAMP_LENGTH, expected);
    }
}

static void less_urgent_lines_are_dropped(void **state)
{
    (void)state;
    log_into_pipe(CORE_LOG_WARNING, CORE_LOG_TEXT, 0, 0);
    core_log(CORE_LOG_INFO, "test.dropped", "not seen");
    assert_string_equal(caught(), "");
    assert_false(core_log_enabled(CORE_LOG_INFO));
    assert_true(core_log_enabled(CORE_LOG_WARNING));
    core_log_set_level(CORE_LOG_INFO);
    assert_true(core_log_enabled(CORE_LOG_INFO));
    core_log(CORE_LOG_INFO, "test.dropped", "seen");
    assert_non_null(strstr(caught(), "seen"));
}

static void text_lines_can_not_be_forged(void **state)
{
    (void)state;
    static const struct {
        const char *message, *written;
    } cases[] = {
        {"two\nlines", "two\\u000alines"},
        {"\x1b[2J\a\x7f", "\\u001b[2J\\u0007\\u007f"},
        {"c1 \xC2\x9B", "c1 \\u009b"},
        {"gr\xC3\xBC\xC3\x9F", "gr\xC3\xBC\xC3\x9F"},
        {"bad \xFF\xC3", "bad \xEF\xBF\xBD\xEF\xBF\xBD"},
        {"say \"hi\" \\", "say \"hi\" \\"},
        {"", ""},
    };
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_TEXT, 0, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[128];
        core_log(CORE_LOG_INFO, "test.forged", "%s", cases[i].message);
        snprintf(expected, sizeof expected, " info test.forged %s\n", cases[i].written);
        assert_string_equal(caught() + STAMP_LENGTH, expected);
    }
}

/* Every line must parse, with the message given back as jansson understands it. */
static void json_lines_are_valid_json(void **state)
{
    (void)state;
    static const struct {
        const char *message, *read_back;
    } cases[] = {
        {"plain", "plain"},
        {"say \"hi\" \\ back", "say \"hi\" \\ back"},
        {"tab\tline\ncr\r\x01\x1f\x7f", "tab\tline\ncr\r\x01\x1f\x7f"},
        {"\xE2\x82\xAC \xF0\x9F\x98\x80", "\xE2\x82\xAC \xF0\x9F\x98\x80"},
        {"overlong \xC0\xAF", "overlong \xEF\xBF\xBD\xEF\xBF\xBD"},
        {"overlong \xE0\x80\xAF!", "overlong \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD!"},
        {"surrogate \xED\xA0\x80!", "surrogate \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD!"},
        {"beyond \xF4\x90\x80\x80", "beyond \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"cut \xE2\x82", "cut \xEF\xBF\xBD\xEF\xBF\xBD"},
        {"lone \x80 \xF8", "lone \xEF\xBF\xBD \xEF\xBF\xBD"},
        {"", ""},
    };
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_JSON, 0, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        core_log(CORE_LOG_WARNING, "test.json", "%s", cases[i].message);
        const char *line = caught();
        assert_int_equal(line_count(line), 1);
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        assert_string_equal(json_string_value(json_object_get(object, "message")), cases[i].read_back);
        assert_string_equal(json_string_value(json_object_get(object, "level")), "warning");
        assert_string_equal(json_string_value(json_object_get(object, "cause")), "test.json");
        assert_int_equal(json_string_length(json_object_get(object, "time")), STAMP_LENGTH);
        assert_null(json_object_get(object, "left_out"));
        json_decref(object);
    }
}

/* What the caller knows is a member, and nothing else is. */
static void what_a_line_is_about_has_members_of_its_own(void **state)
{
    static const char peer[] = "tcp:\"[::1]\"";
    const struct core_log_fields all = {.connection = 7, .peer = peer, .stream = 4, .unit = "gpu-1"},
                                 two = {.connection = UINT64_MAX / 2, .unit = "cpu-0"};
    (void)state;
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_JSON, 0, 0);
    core_log_with(CORE_LOG_INFO, "test.about", &all, "%s", "all");
    json_t *object = json_loads(caught(), JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(json_object_size(object), 8);
    assert_int_equal(json_integer_value(json_object_get(object, "connection")), 7);
    assert_string_equal(json_string_value(json_object_get(object, "peer")), peer);
    assert_int_equal(json_integer_value(json_object_get(object, "stream")), 4);
    assert_string_equal(json_string_value(json_object_get(object, "unit")), "gpu-1");
    assert_string_equal(json_string_value(json_object_get(object, "message")), "all");
    json_decref(object);
    core_log_with(CORE_LOG_INFO, "test.about", &two, "two");
    object = json_loads(caught(), JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(json_object_size(object), 6);
    assert_int_equal(json_integer_value(json_object_get(object, "connection")), INT64_MAX);
    json_decref(object);
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_TEXT, 0, 0);
    core_log_with(CORE_LOG_INFO, "test.about", &all, "the text alone");
    assert_string_equal(caught() + STAMP_LENGTH, " info test.about the text alone\n");
}

static void long_messages_are_cut_and_stay_one_valid_line(void **state)
{
    (void)state;
    static char message[8192];
    static const char fillings[] = {'x', '"', '\n', '\x80'};
    for (size_t i = 0; i < sizeof fillings; i++) {
        memset(message, fillings[i], sizeof message - 1);
        for (int format = CORE_LOG_TEXT; format <= CORE_LOG_JSON; format++) {
            log_into_pipe(CORE_LOG_INFO, (enum core_log_format)format, 0, 0);
            core_log(CORE_LOG_INFO, "test.long", "%s", message);
            const char *line = caught();
            assert_int_equal(line_count(line), 1);
            assert_in_range(strlen(line), 1024, PIPE_BUF);
            json_t *object = json_loads(line, 0, NULL);
            assert_int_equal(object != NULL, format == CORE_LOG_JSON);
            json_decref(object);
        }
    }
}

static void a_cause_is_limited_and_what_is_left_out_is_told(void **state)
{
    (void)state;
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_TEXT, 1e-6, 3);
    static const char *const flooding = "test.flooding";
    for (int i = 0; i < 15; i++)
        core_log(CORE_LOG_INFO, flooding, "line %d", i);
    const char *text = caught();
    assert_int_equal(line_count(text), 3);
    assert_non_null(strstr(text, "line 2\n"));
    assert_null(strstr(text, "line 3"));

    core_log(CORE_LOG_INFO, "test.other", "another cause has its own limit");
    text = caught();
    assert_int_equal(line_count(text), 1);
    assert_null(strstr(text, "left out"));

    log_into_pipe(CORE_LOG_INFO, CORE_LOG_TEXT, 0, 0);
    core_log(CORE_LOG_INFO, flooding, "again");
    assert_non_null(strstr(caught(), " again (12 more left out)\n"));
    core_log(CORE_LOG_INFO, flooding, "once more");
    assert_null(strstr(caught(), "left out"));
}

static void tokens_come_back_with_time(void **state)
{
    (void)state;
    static const char *const cause = "test.refilled";
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_JSON, 1000, 1);
    unsigned logged = 0;
    /* At 1000 a second a second line must pass sooner or later; the test's time limit says when not. */
    for (const char *text = ""; logged < 2; text = caught(), logged += (unsigned)line_count(text))
        core_log(CORE_LOG_INFO, cause, "line");
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_JSON, 1e-6, 1);
    core_log(CORE_LOG_INFO, cause, "uses what may be left");
    core_log(CORE_LOG_INFO, cause, "left out");
    core_log(CORE_LOG_INFO, cause, "left out");
    (void)caught();
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_JSON, 0, 1);
    core_log(CORE_LOG_INFO, cause, "told");
    json_t *object = json_loads(caught(), 0, NULL);
    assert_non_null(object);
    assert_true(json_integer_value(json_object_get(object, "left_out")) >= 2);
    json_decref(object);
}

static void more_causes_than_slots_still_log(void **state)
{
    (void)state;
    static char names[1000][8];
    log_into_pipe(CORE_LOG_INFO, CORE_LOG_TEXT, 0, 0);
    for (size_t i = 0; i < 1000; i++) {
        snprintf(names[i], sizeof names[i], "c%zu", i);
        core_log(CORE_LOG_INFO, names[i], "x");
        assert_non_null(strstr(caught(), names[i]));
    }
}

#define THREAD_COUNT      4
#define LINES_OF_A_THREAD 400

static void *log_many(void *filling)
{
    char message[200];
    memset(message, *(const char *)filling, sizeof message - 1);
    message[sizeof message - 1] = '\0';
    for (int i = 0; i < LINES_OF_A_THREAD; i++)
        core_log(CORE_LOG_INFO, "test.threads", "%s", message);
    return NULL;
}

static void lines_of_threads_never_interleave(void **state)
{
    (void)state;
    static char fillings[THREAD_COUNT] = {'a', 'b', 'c', 'd'};
    char *line = NULL;
    size_t room = 0, lines = 0;
    pthread_t threads[THREAD_COUNT];
    FILE *file = tmpfile();
    assert_non_null(file);
    const struct core_log_options options = {CORE_LOG_INFO, CORE_LOG_TEXT, fileno(file), 0, 0, NULL};
    core_log_configure(&options);
    for (size_t i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, &fillings[i]), 0);
    for (size_t i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    rewind(file);
    for (; getline(&line, &room, file) > 0; lines++) {
        const char *message = line + STAMP_LENGTH + strlen(" info test.threads ");
        assert_int_equal(strlen(message), 200);
        for (size_t i = 0; i < 199; i++)
            assert_int_equal(message[i], message[0]);
    }
    assert_int_equal(lines, THREAD_COUNT * LINES_OF_A_THREAD);
    free(line);
    fclose(file);
}

static void logging_keeps_errno_and_survives_a_dead_descriptor(void **state)
{
    (void)state;
    const struct core_log_options options = {CORE_LOG_INFO, CORE_LOG_TEXT, -1, 0, 0, NULL};
    core_log_configure(&options);
    errno = ERANGE;
    core_log(CORE_LOG_INFO, "test.dead", "nobody hears this");
    assert_int_equal(errno, ERANGE);
}

static void names_of_formats(void **state)
{
    (void)state;
    enum core_log_format format;
    assert_int_equal(core_log_format_parse("text", &format), CORE_OK);
    assert_int_equal(format, CORE_LOG_TEXT);
    assert_int_equal(core_log_format_parse("json", &format), CORE_OK);
    assert_int_equal(format, CORE_LOG_JSON);
    assert_int_equal(core_log_format_parse("xml", &format), CORE_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_line_has_stamp_level_cause_and_message),
        cmocka_unit_test(less_urgent_lines_are_dropped),
        cmocka_unit_test(text_lines_can_not_be_forged),
        cmocka_unit_test(json_lines_are_valid_json),
        cmocka_unit_test(what_a_line_is_about_has_members_of_its_own),
        cmocka_unit_test(long_messages_are_cut_and_stay_one_valid_line),
        cmocka_unit_test(a_cause_is_limited_and_what_is_left_out_is_told),
        cmocka_unit_test(tokens_come_back_with_time),
        cmocka_unit_test(lines_of_threads_never_interleave),
        cmocka_unit_test(logging_keeps_errno_and_survives_a_dead_descriptor),
        cmocka_unit_test(names_of_formats),
        cmocka_unit_test(more_causes_than_slots_still_log),
    };
    return cmocka_run_group_tests_name("core/log", tests, pipe_open, pipe_close);
}
