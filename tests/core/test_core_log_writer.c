/* The writer's thread against readers that read, stall, or take little at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PATIENCE_NS (240 * CORE_NS_PER_S) /* against hangs */
#define THREADS     4
#define LINES       3000

ssize_t __real_write(int descriptor, const void *bytes, size_t count);
ssize_t __wrap_write(int descriptor, const void *bytes, size_t count);

/* What a hard day's write(2) does, to the log alone: by turns it is interrupted, has no room, takes a bit. */
static atomic_bool is_hard;
static int log_pipe[2];

ssize_t __wrap_write(int descriptor, const void *bytes, size_t count)
{
    static unsigned turn;
    if (!atomic_load(&is_hard) || descriptor != log_pipe[1])
        return __real_write(descriptor, bytes, count);
    if (turn++ % 3 == 2)
        return __real_write(descriptor, bytes, count < 7 ? count : 7);
    errno = turn % 3 == 1 ? EINTR : EAGAIN;
    return -1;
}

static int open_pipe(void **state)
{
    (void)state;
    if (pipe2(log_pipe, O_CLOEXEC) != 0 || fcntl(log_pipe[1], F_SETPIPE_SZ, 4096) < 0)
        return -1;
    const struct core_log_options options = {CORE_LOG_INFO, CORE_LOG_TEXT, log_pipe[1], 0, 0, NULL};
    core_log_configure(&options);
    return 0;
}

static int close_pipe(void **state)
{
    (void)state;
    close(log_pipe[0]);
    close(log_pipe[1]);
    return 0;
}

static void start(void)
{
    struct core_error error = {""};
    if (core_log_start(&error) != CORE_OK)
        fail_msg("%s", error.text);
}

/* ---- a reader ---- */

struct lines {
    char *text; /* all that came, terminated */
    size_t bytes;
};

/* Until the pipe's writing end is closed. */
static void *read_all(void *argument)
{
    struct lines *lines = argument;
    ssize_t bytes;
    lines->text = malloc((size_t)1 << 24);
    if (lines->text == NULL)
        return NULL;
    while ((bytes = read(log_pipe[0], lines->text + lines->bytes, 65536)) > 0)
        lines->bytes += (size_t)bytes;
    lines->text[lines->bytes] = '\0';
    return NULL;
}

static pthread_t start_reading(struct lines *lines)
{
    pthread_t reader;
    *lines = (struct lines){0};
    assert_int_equal(pthread_create(&reader, NULL, read_all, lines), 0);
    return reader;
}

static void end_reading(pthread_t reader)
{
    close(log_pipe[1]);
    assert_int_equal(pthread_join(reader, NULL), 0);
    assert_int_equal(pipe2(log_pipe, O_CLOEXEC), 0); /* for close_pipe */
}

/* ---- what came ---- */

struct tally {
    uint64_t seen, told;      /* lines that came, and lost ones as the log told them */
    uint64_t next[THREADS];   /* number after the last one that came, by thread */
    uint64_t missed[THREADS]; /* numbers that were passed over */
};

static void tally_line(struct tally *tally, char *line)
{
    unsigned thread = 0, number = 0, length = 0;
    const char *message = strstr(line, "test.writer ");
    const char *lost = strstr(line, "log.lost ");
    if (lost != NULL) {
        assert_int_equal(sscanf(lost, "log.lost %u line", &number), 1);
        assert_true(number > 0);
        tally->told += number;
        return;
    }
    if (message == NULL ||
        sscanf(message, "test.writer %u %u end%n", &thread, &number, (int *)&length) != 2 ||
        message[length] != '\0')
        fail_msg("a line of its own: '%s'", line);
    assert_in_range(thread, 0, THREADS - 1);
    assert_true(number >= tally->next[thread]);
    tally->missed[thread] += number - tally->next[thread];
    tally->next[thread] = number + 1;
    tally->seen++;
}

static struct tally tally_all(struct lines *lines)
{
    struct tally tally = {0};
    char *rest;
    assert_true(lines->bytes > 0 && lines->text[lines->bytes - 1] == '\n');
    for (char *line = strtok_r(lines->text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        tally_line(&tally, line);
    free(lines->text);
    return tally;
}

static void *log_lines(void *thread)
{
    for (unsigned i = 0; i < LINES; i++)
        core_log(CORE_LOG_INFO, "test.writer", "%u %u end", *(const unsigned *)thread, i);
    return NULL;
}

static void log_from_threads(void)
{
    static unsigned numbers[THREADS] = {0, 1, 2, 3};
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_lines, &numbers[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* ---- tests ---- */

static void what_is_logged_is_written_or_told_as_lost(void **state)
{
    struct lines lines;
    (void)state;
    const uint64_t before = core_log_lost();
    pthread_t reader = start_reading(&lines);
    start();
    log_from_threads();
    assert_true(core_log_stop(PATIENCE_NS));
    end_reading(reader);
    const struct tally tally = tally_all(&lines);
    assert_int_equal(tally.told, core_log_lost() - before);
    assert_int_equal(tally.seen + tally.told, (uint64_t)THREADS * LINES);
}

/* Nobody reads until all is logged. That the threads come back at all is what is tested. */
static void a_reader_that_stalls_holds_up_nobody(void **state)
{
    struct lines lines;
    (void)state;
    const uint64_t before = core_log_lost();
    start();
    log_from_threads();
    const uint64_t lost = core_log_lost() - before;
    assert_true(lost > 0 && lost < (uint64_t)THREADS * LINES);
    assert_false(core_log_stop(CORE_NS_PER_MS));

    pthread_t reader = start_reading(&lines);
    assert_true(core_log_stop(PATIENCE_NS));
    end_reading(reader);
    const struct tally tally = tally_all(&lines);
    assert_int_equal(tally.told, lost);
    assert_int_equal(core_log_lost() - before, lost);
    assert_int_equal(tally.seen + lost, (uint64_t)THREADS * LINES);
}

/* Its place is where the lines are missing: behind what was kept, before what came later. */
static void the_count_stands_where_lines_are_missing(void **state)
{
    struct lines lines;
    struct tally tally = {0};
    char *rest;
    unsigned first = 0;
    (void)state;
    start();
    (void)log_lines(&first);
    pthread_t reader = start_reading(&lines);
    assert_true(core_log_stop(PATIENCE_NS));
    core_log(CORE_LOG_INFO, "test.writer", "0 %u end", LINES);
    end_reading(reader);
    for (char *line = strtok_r(lines.text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        const uint64_t told = tally.told;
        tally_line(&tally, line);
        assert_int_equal(tally.missed[0], told); /* a gap is told before the line behind it */
    }
    free(lines.text);
    assert_true(tally.told > 0);
    assert_int_equal(tally.next[0], LINES + 1);
}

static void short_writes_are_continued(void **state)
{
    struct lines lines;
    unsigned first = 0;
    (void)state;
    for (int threaded = 0; threaded < 2; threaded++) {
        const uint64_t before = core_log_lost();
        pthread_t reader = start_reading(&lines);
        atomic_store(&is_hard, true);
        if (threaded)
            start();
        (void)log_lines(&first);
        assert_true(core_log_stop(PATIENCE_NS));
        atomic_store(&is_hard, false);
        end_reading(reader);
        (void)close_pipe(NULL);
        assert_int_equal(open_pipe(NULL), 0);
        const uint64_t lost = core_log_lost() - before;
        const struct tally tally = tally_all(&lines);
        assert_int_equal(tally.seen + lost, LINES);
        assert_true(threaded || lost == 0);
    }
}

/* A file that may not grow cuts a line. The next line that can be written has one of its own. */
static void a_cut_line_gets_its_end(void **state)
{
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY}, small = {100, RLIM_INFINITY};
    char text[1024] = "";
    FILE *file = tmpfile();
    (void)state;
    assert_non_null(file);
    const struct core_log_options options = {CORE_LOG_INFO, CORE_LOG_TEXT, fileno(file), 0, 0, NULL};
    core_log_configure(&options);
    signal(SIGXFSZ, SIG_IGN); /* NOLINT(bugprone-signal-handler): no handler */
    const uint64_t before = core_log_lost();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    core_log(CORE_LOG_INFO, "test.cut", "first");
    core_log(CORE_LOG_INFO, "test.cut", "the second one is longer than what is left");
    core_log(CORE_LOG_INFO, "test.cut", "third");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(core_log_lost() - before, 2);
    core_log(CORE_LOG_INFO, "test.cut", "fourth");
    rewind(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    char *rest, *line = strtok_r(text, "\n", &rest);
    assert_non_null(strstr(line, "test.cut first"));
    line = strtok_r(NULL, "\n", &rest);
    assert_int_equal(strlen(line), 100 - (size_t)(line - text));
    line = strtok_r(NULL, "\n", &rest);
    assert_non_null(strstr(line, "log.lost 2 lines were lost"));
    line = strtok_r(NULL, "\n", &rest);
    assert_non_null(strstr(line, "test.cut fourth"));
    assert_null(strtok_r(NULL, "\n", &rest));
}

static void the_writer_may_be_started_again(void **state)
{
    struct lines lines;
    unsigned first = 0;
    (void)state;
    assert_true(core_log_stop(0)); /* none runs */
    pthread_t reader = start_reading(&lines);
    for (unsigned i = 0; i < 10; i++) {
        start();
        core_log(CORE_LOG_INFO, "test.writer", "%u %u end", first, 2 * i);
        assert_true(core_log_stop(PATIENCE_NS));
        core_log(CORE_LOG_INFO, "test.writer", "%u %u end", first, 2 * i + 1);
    }
    end_reading(reader);
    const struct tally tally = tally_all(&lines);
    assert_int_equal(tally.seen, 20);
    assert_int_equal(tally.missed[0], 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, open_pipe, close_pipe)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_logged_is_written_or_told_as_lost),
        TEST(a_reader_that_stalls_holds_up_nobody),
        TEST(the_count_stands_where_lines_are_missing),
        TEST(short_writes_are_continued),
        TEST(a_cut_line_gets_its_end),
        TEST(the_writer_may_be_started_again),
    };
    return cmocka_run_group_tests_name("core/log_writer", tests, NULL, NULL);
}
