/* The way of millrace hls to the server: every file comes back whole and under its own key, however often that
 * changes, whatever the server refuses for a while, and when it goes away. */
#include "client/hls/contract.h"
#include "client/hls/link.h"
#include "core/secret.h"
#include "tests/support/hls_server.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* ---- files ---- */

static const struct {
    size_t bytes;
    char key;
} files[] = {{100, 'a'}, {40000, 'a'}, {0, 'b'}, {200000, 'b'}, {16, 'c'}, {15, 'a'}, {300000, 'b'}};

static unsigned done, wrong, given_up;
static char said[4096];

static void on_done(void *argument, struct hls_job *job)
{
    (void)argument;
    given_up += job->failed;
    wrong += job->owner != &files[done] ||
             (!job->failed && !hls_server_is_cipher(job->cipher, job->cipher_bytes, job->clear, job->bytes,
                                                    job->key->bytes[0]));
    done++;
    hls_job_free(job);
}

static void say(const char *format, ...)
{
    va_list arguments;
    size_t length = strlen(said);
    va_start(arguments, format);
    vsnprintf(said + length, sizeof said - length, format, arguments);
    va_end(arguments);
}

static struct hls_key *make_key(char name)
{
    struct hls_key *key = calloc(1, sizeof *key);
    assert_non_null(key);
    key->references = 1;
    key->bytes = core_secret_alloc(HLS_KEY_BYTES);
    assert_non_null(key->bytes);
    memset(key->bytes, name, HLS_KEY_BYTES);
    return key;
}

static void submit(struct hls_stream *stream, size_t file, struct hls_key *key)
{
    struct hls_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    *job = (struct hls_job){.owner = (void *)(uintptr_t)&files[file],
                            .clear = malloc(files[file].bytes + 1),
                            .bytes = files[file].bytes,
                            .key = key};
    assert_non_null(job->clear);
    for (size_t i = 0; i < job->bytes; i++)
        job->clear[i] = (uint8_t)(file * 31 + i * 7 + i / 251);
    assert_int_equal(hls_stream_submit(stream, job), CORE_OK);
}

static void turn(struct hls_link *link)
{
    hls_link_receive(link, core_time_now_ns());
    hls_link_send(link, core_time_now_ns());
    struct pollfd ready = {.fd = hls_link_descriptor(link), .events = hls_link_events(link)};
    poll(&ready, 1, hls_link_wait_ms(link, core_time_now_ns(), 10));
}

static void turn_until(struct hls_link *link, unsigned count)
{
    for (int i = 0; i < 20000 && done < count; i++)
        turn(link);
    assert_int_equal(done, count);
}

/* ---- what the server does ---- */

struct test_case {
    const char *name;
    struct hls_server server; /* what it does */
    bool at_once;             /* all files, else one after the other */
    unsigned asked;           /* REKEYs; 0: as many as there are */
    unsigned opened;          /* streams: a new one for files that are much larger; 0: as many as there are */
    unsigned given_up;        /* files */
    const char *said;         /* NULL: nothing that matters */
};

static void play(const struct test_case *test, struct hls_server *fake)
{
    const struct core_options_server server = {.address = fake->fake.address, .timeout_ms = 10000};
    struct hls_link link = {.server = &server, .done = on_done, .say = say};
    struct hls_stream stream = {
        .name = "a", .paces = {{.every_s = 1}, {.every_s = 1}}, .wait_ns = CORE_NS_PER_S};
    struct hls_stream other = {.name = "b",
                               .paces = {{.every_s = 1}, {.every_s = 1}},
                               .wait_ns = CORE_NS_PER_S}; /* has nothing to do */
    hls_stream_add(&link, &stream);
    hls_stream_add(&link, &other);
    for (size_t file = 0; file < COUNT_OF(files); file++) {
        struct hls_job *last = stream.last;
        bool same = file > 0 && files[file].key == files[file - 1].key && last != NULL;
        submit(&stream, file, same ? hls_key_take(last->key) : make_key(files[file].key));
        assert_true(hls_link_is_busy(&link));
        if (!test->at_once)
            turn_until(&link, (unsigned)file + 1);
    }
    turn_until(&link, COUNT_OF(files));
    assert_false(hls_link_is_busy(&link));
    hls_stream_remove(&stream);
    hls_link_close(&link);
    hls_stream_remove(&other);
}

static void every_file_is_under_its_key(void **state)
{
    static const struct test_case cases[] = {
        {.name = "one after the other", .opened = 4},
        {.name = "all at once", .at_once = true, .asked = 4, .opened = 1},
        {.name = "two keys are in force for a while", .server = {.busy = 3}, .at_once = true, .asked = 7},
        {.name = "the connection ends with a REKEY", .server = {.dropped = 2}, .at_once = true},
        {.name = "the server ends the stream", .server = {.closed = 1}, .at_once = true},
        {.name = "it ends it with all that was sent", .server = {.closed = 1}},
        {.name = "it speaks to others", .server = {.strangers = 1}, .at_once = true},
        {.name = "it refuses the stream",
         .server = {.refused = 1, .offer_ns = 3 * CORE_NS_PER_S},
         .at_once = true,
         .said = "a: the server refuses the stream (capacity): no room for that; it would admit --wait=3 s"},
        {.name = "it refuses a key",
         .server = {.unrekeyed = 1},
         .at_once = true,
         .said = "a: the server refuses the next key (capacity): no room for that; asking again"},
        {.name = "it does not encrypt a packet",
         .server = {.failing = 2},
         .at_once = true,
         .said = "a: a file of 100 bytes was not encrypted"},
        {.name = "it never encrypts the first file", .server = {.failing = 3}, .given_up = 1},
        {.name = "it sends back too much", .server = {.too_long = 1}, .at_once = true},
        {.name = "it is too old", .server = {.old = 1}, .said = "must speak version 3"},
        {.name = "it does not answer", .server = {.mute = 1}, .said = "did not answer HELLO in time"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct hls_server *server = malloc(sizeof *server);
        assert_non_null(server);
        *server = cases[i].server;
        done = wrong = given_up = 0;
        said[0] = '\0';
        hls_server_start(server);
        play(&cases[i], server);
        hls_server_stop(server);
        if (wrong > 0 || server->broken_rules || given_up != cases[i].given_up ||
            (cases[i].asked > 0 && server->asked != cases[i].asked) ||
            (cases[i].opened > 0 && server->count != cases[i].opened))
            fail_msg("%s: %u files are wrong, %u given up; %u OPENs, %u REKEYs%s", cases[i].name, wrong,
                     given_up, server->count, server->asked, server->broken_rules ? ", one too late" : "");
        if (cases[i].said != NULL && strstr(said, cases[i].said) == NULL)
            fail_msg("%s: %s", cases[i].name, said);
        free(server);
    }
}

/* A turn returns before the server has said anything; the end of all does not wait for it for ever. */
static void nobody_waits_for_the_server(void **state)
{
    struct hls_server *fake = calloc(1, sizeof *fake);
    (void)state;
    assert_non_null(fake);
    fake->mute = 1;
    hls_server_start(fake);
    const struct core_options_server server = {.address = fake->fake.address, .timeout_ms = 10000};
    struct hls_link link = {.server = &server, .done = on_done, .say = say};
    said[0] = '\0';
    assert_int_equal(hls_link_descriptor(&link), -1);
    hls_link_receive(&link, core_time_now_ns());
    assert_true(link.dial.begun);
    assert_true(hls_link_descriptor(&link) >= 0);
    assert_string_equal(said, "");
    hls_link_close(&link);
    hls_server_stop(fake);
    free(fake);
}

/* It connects while all comes to an end. */
static void ends_while_it_connects(void **state)
{
    struct hls_server *fake = calloc(1, sizeof *fake);
    (void)state;
    assert_non_null(fake);
    hls_server_start(fake);
    const struct core_options_server server = {.address = fake->fake.address, .timeout_ms = 10000};
    struct hls_link link = {.server = &server, .done = on_done, .say = say};
    struct hls_stream stream = {
        .name = "a", .paces = {{.every_s = 1}, {.every_s = 1}}, .wait_ns = CORE_NS_PER_S};
    hls_stream_add(&link, &stream);
    submit(&stream, 0, make_key('a'));
    hls_link_receive(&link, core_time_now_ns());
    assert_true(link.dial.begun);
    hls_stream_remove(&stream);
    hls_link_close(&link);
    hls_server_stop(fake);
    free(fake);
}

/* Of a stream that is taken away while it is being opened, what the server says of it means nothing. */
static void forgets_streams(void **state)
{
    struct hls_server *fake = calloc(1, sizeof *fake);
    (void)state;
    assert_non_null(fake);
    fake->refused = 1;
    fake->offer_ns = CORE_NS_PER_S;
    hls_server_start(fake);
    const struct core_options_server server = {.address = fake->fake.address, .timeout_ms = 10000};
    struct hls_link link = {.server = &server, .done = on_done, .say = say};
    said[0] = '\0';
    for (int round = 0; round < 2; round++) { /* refused, and opened */
        struct hls_stream stream = {
            .name = "gone", .paces = {{.every_s = 1}, {.every_s = 1}}, .wait_ns = CORE_NS_PER_S};
        struct hls_stream other = {
            .name = "stays", .paces = {{.every_s = 1}, {.every_s = 1}}, .wait_ns = CORE_NS_PER_S};
        done = 0;
        hls_stream_add(&link, &stream);
        submit(&stream, 0, make_key('a'));
        while (stream.request == 0)
            turn(&link);
        hls_stream_remove(&stream);
        hls_stream_add(&link, &other);
        submit(&other, 0, make_key('b'));
        turn_until(&link, 1);
        hls_stream_remove(&other);
    }
    assert_null(strstr(said, "gone"));
    hls_link_close(&link);
    hls_server_stop(fake);
    free(fake);
}

static void tells_of_no_server(void **state)
{
    const struct core_options_server server = {.address = "unix:@millrace-test-nobody", .timeout_ms = 10000};
    struct hls_link link = {.server = &server, .done = on_done, .say = say};
    (void)state;
    said[0] = '\0';
    for (int i = 0; i < 1000 && !link.told_lost; i++)
        turn(&link);
    assert_non_null(strstr(said, "unix:@millrace-test-nobody"));
    assert_non_null(strstr(said, "looking for the server"));
    hls_link_close(&link);
}

/* ---- contracts ---- */

/* All of a file is there in time: what the burst does not hold comes one packet an interval. */
static void contracts_are_kept(void **state)
{
    static const size_t sizes[] = {0, 1, 32768, 1000000, 50000000};
    static const uint32_t bursts[] = {1, 16, 100000};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes) * COUNT_OF(bursts); i++) {
        size_t bytes = sizes[i / COUNT_OF(bursts)];
        const struct millrace_welcome welcome = {.packet_bytes_max = 65535,
                                                 .burst_packets_max = bursts[i % COUNT_OF(bursts)],
                                                 .stream_buffer_bytes_max = 16 << 20};
        struct core_stream_spec spec;
        const struct hls_pace paces[HLS_KINDS] = {{bytes, 4}};
        hls_contract(paces, CORE_NS_PER_S, &welcome, &spec);
        core_ns packets = (core_ns)((bytes + CORE_BLOCK_BYTES) / spec.packet_bytes + 1);
        core_ns behind = packets > spec.burst_packets ? packets - spec.burst_packets : 0;
        assert_int_equal(spec.packet_bytes % CORE_BLOCK_BYTES, 0);
        assert_in_range(spec.burst_packets, 1, welcome.burst_packets_max);
        assert_true((uint64_t)spec.burst_packets * spec.packet_bytes <= welcome.stream_buffer_bytes_max);
        assert_true(behind * spec.interval_ns + spec.latency_ns <= CORE_NS_PER_S);
        assert_true(packets * spec.interval_ns <= 4 * CORE_NS_PER_S);
    }
}

/* What the server's limits make of it. */
static void contracts_are_within_limits(void **state)
{
    struct core_stream_spec spec;
    const struct millrace_welcome small = {.packet_bytes_max = 1000,
                                           .burst_packets_max = 8,
                                           .stream_buffer_bytes_max = 100,
                                           .interval_ns_min = 50 * CORE_NS_PER_MS,
                                           .latency_ns_min = 2 * CORE_NS_PER_S};
    (void)state;
    hls_contract((struct hls_pace[HLS_KINDS]){{1000000, 1}, {500000, 0.5}}, CORE_NS_PER_S, &small, &spec);
    assert_int_equal(spec.packet_bytes, 992);
    assert_int_equal(spec.burst_packets, 1);
    assert_int_equal(spec.interval_ns, 50 * CORE_NS_PER_MS);
    assert_int_equal(spec.latency_ns, 2 * CORE_NS_PER_S);
    const struct millrace_welcome large = {
        .packet_bytes_max = 1 << 20, .burst_packets_max = 1000, .stream_buffer_bytes_max = 1 << 30};
    hls_contract((struct hls_pace[HLS_KINDS]){{1, 1e9}}, CORE_LATENCY_NS_MAX, &large, &spec);
    assert_int_equal(spec.interval_ns, CORE_INTERVAL_NS_MAX);
    assert_int_equal(spec.latency_ns, CORE_LATENCY_NS_MAX);
}

/* Parts and segments that come beside each other, at rates that both keep for ever. */
static void contracts_hold_both_kinds(void **state)
{
    const struct millrace_welcome welcome = {
        .packet_bytes_max = 1 << 20, .burst_packets_max = 1000, .stream_buffer_bytes_max = 1 << 30};
    struct core_stream_spec spec;
    (void)state;
    hls_contract((struct hls_pace[HLS_KINDS]){[HLS_KIND_PART] = {200000, 0.33}}, CORE_NS_PER_S, &welcome,
                 &spec);
    assert_true(spec.burst_packets * spec.packet_bytes >= 200000);
    assert_true(200000 / 0.33 <= spec.packet_bytes * 1e9 / (double)spec.interval_ns);
    hls_contract((struct hls_pace[HLS_KINDS]){{600000, 1}, {200000, 0.33}}, CORE_NS_PER_S, &welcome, &spec);
    assert_true(spec.burst_packets * spec.packet_bytes >= 800000);
    assert_true(600000 + 200000 / 0.33 <= spec.packet_bytes * 1e9 / (double)spec.interval_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_is_under_its_key), cmocka_unit_test(nobody_waits_for_the_server),
        cmocka_unit_test(ends_while_it_connects),      cmocka_unit_test(forgets_streams),
        cmocka_unit_test(tells_of_no_server),          cmocka_unit_test(contracts_are_kept),
        cmocka_unit_test(contracts_are_within_limits), cmocka_unit_test(contracts_hold_both_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
