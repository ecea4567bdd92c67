/* `millrace-gen` as people call it, against a whole server: keys of a keyring, lists, times, what it shows on a terminal and
 * writes into files, and what it says to mistakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/net/io.h"
#include "tests/support/command.h"
#include "tests/support/require.h"
#include "tests/support/server.h"

#define GENERATOR MILLRACE_BINARY_DIR "/inputgen/millrace-gen "
#define SHORT     "--duration 300ms --connections 2 --threads 2 --drain 20s "
#define KEYS      "camera aes-128-cbc 000102030405060708090a0b0c0d0e0f client-iv\n"
#define WORKLOAD                                                                                             \
    "name: test\nstreams: 6\nduration_s: 1\nclasses:\n"                                                      \
    "  - name: even\n    rate_mbit_per_s: {distribution: uniform, minimum: 0.4, maximum: 0.8}\n"             \
    "    deadline_ms: {distribution: constant, value: 10000}\n    packet_bytes: 1024\n    burst_packets: "   \
    "4\n"

/* What only messages can have. */
#define FORM(name, bytes, rest)                                                                              \
    "  - {name: " name ", rate_mbit_per_s: {distribution: constant, value: 0.8}, deadline_ms: "              \
    "{distribution: constant, value: 10000}, packet_bytes: " bytes                                           \
    ", burst_packets: 4, unit: message, " rest "}\n"
#define FORMS                                                                                                \
    "name: forms\nstreams: 14\nduration_s: 1\nclasses:\n" FORM(                                              \
        "hls", "1408", "iv: counter, first_unit: 77, message_packets: 5")                                    \
        FORM("chain", "700", "iv: chain, message_packets: 3, padding: clear")                                \
            FORM("cbcs", "1400", "iv: constant, message_packets: 4, padding: clear, pattern: \"1:9\"")       \
                FORM("explicit", "1400", "iv: explicit, message_packets: 2")                                 \
                    FORM("random", "1400", "iv: random, message_packets: 2")                                 \
                        FORM("ts", "1316", "iv: constant, padding: clear, records: ts")                      \
                            FORM("ts-back", "1316",                                                          \
                                 "iv: constant, padding: clear, records: ts, direction: decrypt")

static struct test_server server;
static char text[1 << 17], socket_option[128], admin_option[128];

static int start(void **state)
{
    (void)state;
    test_server_prepare(&server);
    test_server_write(&server, "keys", KEYS);
    test_server_write(&server, "test.yaml", WORKLOAD);
    test_server_write(&server, "forms.yaml", FORMS);
    snprintf(socket_option, sizeof socket_option, "--server unix:%s/socket ", server.folder);
    snprintf(admin_option, sizeof admin_option, "--admin unix:%s/admin ", server.folder);
    test_server_start(
        &server,
        "listeners: [{address: 'unix:socket'}]\nkeyring: keys\nclient_iv: true\nadmin: 'unix:admin'\n",
        &test_profile_generous);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return test_server_stop(&server) != 0;
}

/* Runs `before` GENERATOR `command` with the server's sockets and `options`; F/ in those is the private folder. */
static void expect(const char *before, const char *command, const char *options, int status,
                   const char *words)
{
    char line[1536], whole[1536];
    size_t used = 0;

    snprintf(whole, sizeof whole, "%s" GENERATOR "%s %s%s%s", before, command,
             strcmp(command, "make") == 0 ? "" : socket_option,
             strncmp(command, "churn", 5) == 0 ? admin_option : "", options);
    for (const char *from = whole; *from != '\0'; from++) {
        const bool folder = from[0] == 'F' && from[1] == '/';
        used += (size_t)snprintf(line + used, sizeof line - used, "%.*s",
                                 folder ? (int)strlen(server.folder) : 1, folder ? server.folder : from);
        assert_true(used + 1 < sizeof line);
    }
    const int got = test_command(line, text, sizeof text);
    if (got != status || strstr(text, words) == NULL)
        fail_msg("%s: status %d, not %d with '%s':\n%s", line, got, status, words, text);
}

/* Real messages of every kind, all bytes of which are right; by a churn as well, which ends streams within them. */
static void messages_are_sent_and_checked(void **state)
{
    (void)state;
    expect("", "replay", SHORT "F/forms.yaml", 0, "PASS");
    assert_non_null(strstr(text, "0 wrong"));
    assert_non_null(strstr(text, "ts-back"));
    expect("", "replay", SHORT "--sizes uniform --bursts F/forms.yaml", 0, "PASS");
    expect("", "replay", SHORT "--kinds hls=20,dvb-cissa=20,packets=20,decrypt=20,cbcs=20 F/test.yaml", 0,
           "PASS");
    expect("", "make", "F/forms.yaml --seed 3 -q -o F/forms.csv", 0, "");
    expect("", "replay", SHORT "F/forms.csv", 0, "PASS");
    expect("", "replay", SHORT "--kinds hls=5 F/forms.csv", 2, "--kinds is for workloads");
    expect("", "replay", SHORT "--kinds hls=500 F/test.yaml", 2, "--kinds: 'hls=500'");
    expect("", "churn", SHORT "--allow-missed --probe 10 F/forms.yaml", 0, "PASS");
}

static void keys_of_a_keyring_are_used_and_checked(void **state)
{
    (void)state;
    expect("", "replay", SHORT "--key-name camera --keyring F/keys F/test.yaml", 0, "PASS");
    expect("", "replay", SHORT "--key-name camera F/test.yaml", 2, "--key-name needs --keyring");
    expect("", "replay", SHORT "--key-name door --keyring F/keys F/test.yaml", 2, "has no key 'door'");
    test_server_write(&server, "others", "camera aes-128-cbc ffffffffffffffffffffffffffffffff\n");
    expect("", "replay", SHORT "--key-name camera --keyring F/others F/test.yaml", 1, "FAIL");
    expect("", "churn", SHORT "--allow-missed --key-name camera --keyring F/keys F/test.yaml", 0, "PASS");
}

/* Drawn once, replayed twice: from the list, and with all that varies how it is sent. */
static void a_list_is_sent_as_it_is_told(void **state)
{
    (void)state;
    char line[512], list[128];
    snprintf(list, sizeof list, "%s/list.csv", server.folder);
    snprintf(line, sizeof line, GENERATOR "make %s/test.yaml --streams 3 --seed 7 -o %s", server.folder,
             list);
    assert_int_equal(test_command(line, text, sizeof text), 0);
    snprintf(line, sizeof line, GENERATOR "make %s/test.yaml --streams 3 --seed 7 | cmp - %s", server.folder,
             list);
    assert_int_equal(test_command(line, text, sizeof text), 0);
    expect("", "replay", SHORT "F/list.csv", 0, "3 streams over 2 connections");
    expect("", "replay",
           SHORT "--phases random --realtime off --tick 1ms --slower 5 --sizes uniform --scale 1.5 --bursts "
                 "F/list.csv",
           0, "PASS");
    expect("", "replay", SHORT "--phases listed --realtime auto --sizes full --server-word F/list.csv", 0,
           "PASS");
    expect("", "replay", SHORT "--streams 4 F/list.csv", 2, "--streams is for workloads");
    unlink(list);
}

static void reports_go_where_they_are_wanted(void **state)
{
    json_t *report;
    char path[128];

    (void)state;
    expect("", "replay", SHORT "--json --server-pid $$ F/test.yaml", 0, "{");
    report = json_loads(text, 0, NULL);
    assert_non_null(report);
    json_decref(report);
    expect("", "replay", SHORT "--quiet F/test.yaml", 0, "");
    assert_string_equal(text, "");
    expect("", "replay", SHORT "--hgrm F/latency F/test.yaml", 0, "PASS");
    snprintf(path, sizeof path, "%s/latency", server.folder);
    assert_int_equal(unlink(path), 0);
    expect("", "replay", SHORT "--quiet --hgrm F/none/latency F/test.yaml", 1, "none/latency");
    expect("", "churn", SHORT "--allow-missed --json --samples F/samples --sample-every 100ms F/test.yaml", 0,
           "{");
    report = json_loads(text, 0, NULL);
    assert_non_null(report);
    json_decref(report);
    snprintf(path, sizeof path, "%s/samples", server.folder);
    assert_int_equal(unlink(path), 0);
    expect("", "replay", SHORT "--json F/test.yaml >/dev/full", 1, "No space left");
    expect("", "replay", SHORT "F/test.yaml >/dev/full", 1, "No space left");
    expect("", "churn", SHORT "--allow-missed F/test.yaml >/dev/full", 1, "No space left");
}

/* `script` gives it a terminal. */
static void a_terminal_shows_progress(void **state)
{
    char line[512];

    (void)state;
    snprintf(line, sizeof line,
             "script -qec '" GENERATOR
             "replay %s --duration 1s --drain 20s %s/test.yaml' /dev/null </dev/null",
             socket_option, server.folder);
    assert_int_equal(test_command(line, text, sizeof text), 0);
    assert_non_null(strstr(text, "packets sent"));
    assert_non_null(strstr(text, "PASS"));
}

static uint64_t packets(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < server.server->io_count; i++)
        sum += server_stats_get(&server.server->ios[i]->stats.packets);
    return sum;
}

/* Interrupts the program that has left its number there, once it sends. */
static void *interrupt(void *path)
{
    const uint64_t before = packets();
    int process = 0;
    while (packets() < before + 20)
        usleep(1000);
    FILE *file = fopen(path, "r");
    TEST_REQUIRE(file != NULL && fscanf(file, "%d", &process) == 1 && process > 1);
    fclose(file);
    TEST_REQUIRE(kill(process, SIGINT) == 0);
    return NULL;
}

static void an_interrupt_ends_it_in_good_order(void **state)
{
    char path[128], begin[192];
    pthread_t thread;

    (void)state;
    snprintf(path, sizeof path, "%s/process", server.folder);
    snprintf(begin, sizeof begin, "echo $$ >%s; exec ", path);
    assert_int_equal(pthread_create(&thread, NULL, interrupt, path), 0);
    expect(begin, "replay", "--duration 1h --drain 20s F/test.yaml", 0, "PASS"); /* what was sent came back */
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(unlink(path), 0);
}

static void mistakes_are_told(void **state)
{
    static const struct test_command_mistake mistakes[] = {
        {"", "a stream list (CSV) or a workload is needed"},
        {"one two", "one list or workload at a time"},
        {"none.csv", "none.csv"},
        {"no-such-workload", "no-such-workload"},
        {"demo --phases never", "'never' is neither listed nor random"},
        {"demo --realtime on", "neither auto nor off"},
        {"demo --sizes half", "neither full nor uniform"},
        {"demo --tick 2s", "--tick"},
        {"demo --connections 0", "--connections 0"},
        {"demo --scale -1", "--scale"},
        {"demo --slower much", "--slower"},
        {"demo --duration never", "--duration"},
        {"demo --server-pid 0", "--server-pid 0"},
        {"demo --server unix:/none/at/all", "/none/at/all"},
        {"demo --keyring /none/at/all", "/none/at/all"},
        {"demo --ca /none/at/all --server unix:/none", "not for unix:"},
    };

    (void)state;
    test_command_mistakes(GENERATOR "replay", mistakes, sizeof mistakes / sizeof *mistakes);
    test_command_mistakes(GENERATOR "churn", mistakes, sizeof mistakes / sizeof *mistakes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages_are_sent_and_checked),
                                       cmocka_unit_test(keys_of_a_keyring_are_used_and_checked),
                                       cmocka_unit_test(a_list_is_sent_as_it_is_told),
                                       cmocka_unit_test(reports_go_where_they_are_wanted),
                                       cmocka_unit_test(a_terminal_shows_progress),
                                       cmocka_unit_test(an_interrupt_ends_it_in_good_order),
                                       cmocka_unit_test(mistakes_are_told)};
    return cmocka_run_group_tests(tests, start, stop);
}
