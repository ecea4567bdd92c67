/* Control words: what a line may say, and where lines come from. */
#include "client/ts/words.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define KEY             "00112233445566778899aabbccddeeff"
#define NOW_NS          (INT64_C(1000) * CORE_NS_PER_S)
#define UNIX_NS         (INT64_C(1764000000) * CORE_NS_PER_S)

static void lines_are_read(void **state)
{
    static const struct {
        const char *line;
        core_status status;
        bool odd, named, has_time;
        core_ns in_ns;
    } cases[] = {
        {"even " KEY, CORE_OK, false, false, false, 0},
        {"\todd   " KEY " \r", CORE_OK, true, false, false, 0},
        {"odd\t" KEY "\t\r", CORE_OK, true, false, false, 0},
        {"odd\r" KEY "\r", CORE_OK, true, false, false, 0},
        {"odd " KEY " +2s", CORE_OK, true, false, true, 2 * CORE_NS_PER_S},
        {"odd " KEY " +0s", CORE_OK, true, false, true, 0},
        {"odd " KEY " @1764000010.25", CORE_OK, true, false, true, 10 * CORE_NS_PER_S + 250000000},
        {"odd " KEY " @1763999999", CORE_OK, true, false, true, -CORE_NS_PER_S},
        {"odd name=news-17 +20ms", CORE_OK, true, true, true, 20 * CORE_NS_PER_MS},
        {"", CORE_NOT_FOUND, false, false, false, 0},
        {"  ", CORE_NOT_FOUND, false, false, false, 0},
        {"# even " KEY, CORE_NOT_FOUND, false, false, false, 0},
        {"both " KEY, CORE_INVALID, false, false, false, 0},
        {"even", CORE_INVALID, false, false, false, 0},
        {"even " KEY "00", CORE_INVALID, false, false, false, 0},
        {"even 0011", CORE_INVALID, false, false, false, 0},
        {"even 0g112233445566778899aabbccddeeff", CORE_INVALID, false, false, false, 0},
        {"even name=", CORE_INVALID, false, false, false, 0},
        {"even name=" KEY KEY, CORE_INVALID, false, false, false, 0}, /* 64 characters */
        {"even " KEY " 2s", CORE_INVALID, false, false, false, 0},
        {"even " KEY " +2", CORE_INVALID, false, false, false, 0},
        {"even " KEY " +25h", CORE_INVALID, false, false, false, 0},
        {"even " KEY " @1764090000", CORE_INVALID, false, false, false, 0},
        {"even " KEY " @1e9", CORE_INVALID, false, false, false, 0},
        {"even " KEY " @1.2.3", CORE_INVALID, false, false, false, 0},
        {"even " KEY " @", CORE_INVALID, false, false, false, 0},
        {"even " KEY " @99999999999999999999", CORE_INVALID, false, false, false, 0},
        {"even " KEY " +1s more", CORE_INVALID, false, false, false, 0},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ts_word word;
        struct core_error error = {""};
        core_status status =
            ts_word_parse(cases[i].line, strlen(cases[i].line), NOW_NS, UNIX_NS, &word, &error);
        if (status != cases[i].status)
            fail_msg("'%s': %s %s", cases[i].line, core_status_text(status), error.text);
        if (status == CORE_OK &&
            (word.odd != cases[i].odd || word.named != cases[i].named || word.has_time != cases[i].has_time ||
             word.due_ns - NOW_NS != cases[i].in_ns))
            fail_msg("'%s': another word, due in %lld ns", cases[i].line, (long long)(word.due_ns - NOW_NS));
        if (status == CORE_OK)
            assert_memory_equal(word.key, word.named ? (const void *)"news-17" : "\x00\x11\x22\x33",
                                word.named ? 7 : 4);
    }
}

static void words_are_told_apart(void **state)
{
    static const char *const lines[] = {"even " KEY,
                                        "odd " KEY,
                                        "even 10112233445566778899aabbccddeeff",
                                        "even name=0123456789abcdef",
                                        "even name=news",
                                        "even name=newer"};
    struct ts_word word[COUNT_OF(lines)], again;
    struct core_error error;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        assert_int_equal(ts_word_parse(lines[i], strlen(lines[i]), NOW_NS, UNIX_NS, &word[i], &error),
                         CORE_OK);
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        for (size_t j = 0; j < COUNT_OF(lines); j++) {
            assert_int_equal(ts_word_parse(lines[j], strlen(lines[j]), 0, 0, &again, &error), CORE_OK);
            assert_int_equal(ts_word_is_same(&word[i], &again), i == j);
        }
}

/* However long a line is, no more of a word is read than there is room for. */
static void long_words_are_none(void **state)
{
    char line[2 * TS_WORD_LINE_BYTES];
    struct ts_word word;
    struct core_error error;
    (void)state;
    memset(line, 'e', sizeof line);
    assert_int_equal(ts_word_parse(line, sizeof line, NOW_NS, UNIX_NS, &word, &error), CORE_INVALID);
}

/* ---- where they come from ---- */

static char folder[] = "/tmp/millrace-words-XXXXXX", path[64];
static unsigned said;

static void say(const char *format, ...) CORE_PRINTF(1, 2);
static void say(const char *format, ...)
{
    (void)format;
    said++;
}

static void write_words(const char *name, const char *text, int flags)
{
    int file = open(name, O_WRONLY | O_CREAT | flags, 0600);
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
}

/* The keys' first bytes of what is there, which is taken. */
static void expect(struct ts_words *words, const char *bytes)
{
    static core_ns now_ns = NOW_NS;
    for (int i = 0; i < 600 && words->count < strlen(bytes); i++) {
        now_ns += CORE_NS_PER_S;
        ts_words_read(words, now_ns);
        if (words->count < strlen(bytes))
            poll(NULL, 0, 20);
    }
    ts_words_read(words, now_ns);
    assert_int_equal(words->count, strlen(bytes));
    for (; *bytes != '\0'; bytes++) {
        assert_int_equal(ts_words_first(words)->key[0], *bytes);
        ts_words_drop_first(words);
    }
}

#define LINE(digits) "even " digits "112233445566778899aabbccddeeff\n"

static void a_file_is_followed(void **state)
{
    char other[80];
    struct ts_words *words = ts_words_make("a", path, NULL, say);
    (void)state;
    assert_non_null(words);
    said = 0;
    expect(words, ""); /* it is not there: told once */
    ts_words_read(words, NOW_NS + 5 * CORE_NS_PER_S);
    assert_int_equal(said, 1);
    write_words(path, LINE("41") "# a remark\n" LINE("42") "even 43112233", 0);
    expect(words, "AB");
    write_words(path, "445566778899aabbccddeeff\nnonsense\n" LINE("44"), O_APPEND);
    expect(words, "CD");
    assert_int_equal(words->refused, 1);
    write_words(path, LINE("45"), O_TRUNC);
    expect(words, "E");
    snprintf(other, sizeof other, "%s.new", path);
    write_words(other, LINE("46") LINE("47") LINE("48") LINE("49") LINE("4a"), 0);
    assert_int_equal(rename(other, path), 0);
    expect(words, "FGHIJ");
    assert_int_equal(rename(path, other), 0); /* it is followed until there is another one */
    write_words(other, LINE("4b"), O_APPEND);
    expect(words, "K");
    assert_int_equal(rename(other, path), 0);
    ts_words_free(words);
    /* Not private. */
    assert_int_equal(chmod(path, 0640), 0);
    words = ts_words_make("a", path, NULL, say);
    said = 0;
    expect(words, "");
    assert_int_equal(said, 1);
    assert_int_equal(chmod(path, 0600), 0);
    expect(words, "FGHIJK");
    ts_words_free(words);
    /* Neither a file nor a FIFO. */
    words = ts_words_make("a", folder, NULL, say);
    said = 0;
    expect(words, "");
    assert_int_equal(said, 1);
    assert_int_equal(words->descriptor, -1);
    ts_words_free(words);
}

static void a_fifo_outlives_its_writers(void **state)
{
    struct ts_words *words = ts_words_make("a", path, NULL, say);
    (void)state;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect(words, "");
    write_words(path, LINE("41"), 0);
    expect(words, "A");
    write_words(path, LINE("42") LINE("43"), 0);
    expect(words, "BC");
    ts_words_free(words);
}

static void a_command_is_started_again(void **state)
{
    struct ts_words *words = ts_words_make("a", NULL, "echo even 41112233445566778899aabbccddeeff", say);
    (void)state;
    said = 0;
    expect(words, "A");
    expect(words, "A");
    assert_true(said >= 1);
    ts_words_free(words);
    words = ts_words_make("a", NULL, "echo even 41112233445566778899aabbccddeeff; sleep 1000", say);
    expect(words, "A");
    assert_true(words->child > 0);
    pid_t child = words->child;
    ts_words_free(words);
    assert_int_equal(kill(child, 0), -1);
}

static void there_is_an_end_of_room(void **state)
{
    struct ts_words *words = ts_words_make("a", path, NULL, say);
    char lines[TS_WORDS_MAX + 3] = "";
    (void)state;
    unlink(path);
    for (int i = 0; i < TS_WORDS_MAX + 2; i++) {
        write_words(path, LINE("41"), O_APPEND);
        lines[i] = i < TS_WORDS_MAX ? 'A' : '\0';
    }
    memset(lines, 'A', TS_WORDS_MAX);
    for (int i = 0; i < 40; i++)
        write_words(path, "even 41112233445566778899aabbccddeeff", O_APPEND); /* a line too long */
    write_words(path, "\n", O_APPEND);
    expect(words, lines);
    assert_int_equal(words->refused, 3);
    write_words(path, LINE("42"), O_APPEND);
    expect(words, "B");
    for (int i = 0; i < 40; i++)
        write_words(path, "even 41112233445566778899aabbccddeeff", O_APPEND);
    write_words(path, "\n" LINE("43"), O_APPEND);
    expect(words, "C"); /* there was room, but not for such a line */
    assert_int_equal(words->refused, 4);
    ts_words_free(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_read),
        cmocka_unit_test(words_are_told_apart),
        cmocka_unit_test(long_words_are_none),
        cmocka_unit_test(a_file_is_followed),
        cmocka_unit_test(a_fifo_outlives_its_writers),
        cmocka_unit_test(a_command_is_started_again),
        cmocka_unit_test(there_is_an_end_of_room),
    };
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/words", folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    rmdir(folder);
    return failed;
}
