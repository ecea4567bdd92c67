/* The way of millrace ts to the server: every datagram is under the word that its marks say, whenever the server grants
 * the next one, refuses it, ends the stream, or goes away. */
#include "client/ts/link.h"
#include "client/ts/packet.h"
#include "core/address.h"
#include "core/secret.h"
#include "tests/support/fake_server.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define LAST            (TS_PACKET_BYTES - 1)

/* ---- a server whose cipher is to put the key's first byte at the packet's end ---- */

struct script {
    struct fake_server server;
    unsigned busy;    /* REKEYs to be refused with 9 */
    unsigned refused; /* with 4 */
    unsigned dropped; /* REKEYs with which the connection ends */
    unsigned closed;  /* DATA with which the server ends the stream */
    bool slow;        /* REKEYs are answered when the datagram before has come */
    unsigned asked;   /* REKEYs that came */
    bool broken_rules;
    /* the stream */
    uint32_t stream;
    uint8_t key, next_key;
    uint64_t messages, next_first;
    uint32_t waiting; /* a REKEY that is not answered yet */
    uint8_t body[FAKE_PACKET_BYTES_MAX], frame[FAKE_PACKET_BYTES_MAX + 256];
};

static bool answer_open(struct script *script, int descriptor, const struct protocol_header *header)
{
    struct protocol_open open;
    if (protocol_open_read(PROTOCOL_VERSION, script->body, header->body_bytes, &open, NULL) != CORE_OK)
        return false;
    const struct protocol_opened opened = {
        .stream = ++script->stream, .unit = PROTOCOL_UNIT_CPU, .bound_ns = 1, .queue_packets = 16};
    script->broken_rules |= open.spec.records != CORE_RECORDS_TS || open.spec.iv != CORE_IV_CONSTANT ||
                            open.spec.padding != CORE_PADDING_CLEAR || !open.has_iv ||
                            memcmp(open.iv, "DVBTMCPTAESCISSA", CORE_BLOCK_BYTES) != 0;
    script->key = open.key[0];
    script->messages = script->waiting = 0;
    script->next_first = UINT64_MAX;
    return fake_write(descriptor, script->frame,
                      protocol_opened_write(PROTOCOL_VERSION, script->frame, header->id, &opened));
}

static bool grant(struct script *script, int descriptor, uint32_t request)
{
    const struct protocol_rekeyed rekeyed = {.stream = script->stream, .first = script->next_first};
    script->waiting = 0;
    return fake_write(descriptor, script->frame, protocol_rekeyed_write(script->frame, request, &rekeyed));
}

static bool answer_rekey(struct script *script, int descriptor, const struct protocol_header *header)
{
    struct protocol_rekey rekey;
    script->asked++;
    if (protocol_rekey_read(script->body, header->body_bytes, &rekey, NULL) != CORE_OK)
        return false;
    script->broken_rules |= rekey.first < script->messages || script->waiting != 0;
    if (script->dropped > 0 && script->dropped-- > 0)
        return false;
    if (script->busy > 0 || script->refused > 0) {
        const struct protocol_refused refused = {
            .code = script->busy > 0 ? PROTOCOL_REFUSED_BUSY : PROTOCOL_REFUSED_KEY, .text = "no"};
        *(script->busy > 0 ? &script->busy : &script->refused) -= 1;
        return fake_write(descriptor, script->frame,
                          protocol_refused_write(PROTOCOL_VERSION, script->frame, header->id, &refused));
    }
    script->next_key = rekey.key[0];
    script->next_first = rekey.first;
    script->waiting = header->id;
    return script->slow || grant(script, descriptor, header->id);
}

static bool answer_data(struct script *script, int descriptor, const struct protocol_header *header)
{
    const struct protocol_result result = {.flags = PROTOCOL_RESULT_MET, .latency_ns = 1};
    uint8_t *cipher = script->frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES;
    script->broken_rules |= header->flags != (PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST) ||
                            header->body_bytes != TS_PACKET_BYTES || script->body[3] >> 6 < 2;
    if (script->messages == script->next_first) {
        script->broken_rules |= script->waiting != 0;
        script->key = script->next_key;
    }
    script->messages++;
    if (script->closed > 0 && script->closed-- > 0) {
        script->stream++; /* what was sent to that one is skipped */
        const struct protocol_closed closed = {.reason = PROTOCOL_CLOSE_FAILED};
        return fake_write(descriptor, script->frame,
                          protocol_closed_write(script->frame, header->id, &closed));
    }
    memcpy(cipher, script->body, header->body_bytes);
    cipher[LAST] = script->key;
    protocol_result_write(script->frame, header->id, header->sequence, &result, header->body_bytes);
    if (!fake_write(descriptor, script->frame,
                    PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + header->body_bytes))
        return false;
    if (script->waiting == 0 || script->messages < script->next_first)
        return true;
    struct pollfd ready = {.fd = descriptor, .events = POLLIN};
    script->broken_rules |= poll(&ready, 1, 20) != 0; /* the next datagram must wait for the answer */
    return grant(script, descriptor, script->waiting);
}

static void serve(struct script *script, int descriptor)
{
    struct protocol_header header;
    bool goes_on = fake_welcome(descriptor);
    while (goes_on && fake_read_frame(descriptor, &header, script->body))
        goes_on = header.type == PROTOCOL_OPEN    ? answer_open(script, descriptor, &header)
                  : header.type == PROTOCOL_REKEY ? answer_rekey(script, descriptor, &header)
                                                  : header.id != script->stream || /* it has closed that */
                                                        answer_data(script, descriptor, &header);
}

static void serve_again(int descriptor, void *argument)
{
    struct script *script = argument;
    unsigned again = script->dropped;
    serve(script, descriptor);
    while (again-- > 0) {
        shutdown(descriptor, SHUT_RDWR); /* fake_server closes it */
        struct pollfd ready = {.fd = script->server.listener, .events = POLLIN};
        poll(&ready, 1, -1);
        int next = accept(script->server.listener, NULL, NULL);
        serve(script, next);
        close(next);
    }
}

/* ---- datagrams ---- */

static struct outcome {
    unsigned done, lost, changes, wrong;
    uint8_t word; /* first byte of that of the newest one */
} outcome;

/* Words count up, and even ones are even. */
static void on_done(void *owner, const uint8_t *packets, size_t bytes)
{
    (void)owner;
    outcome.done++;
    if (packets == NULL || bytes != TS_PACKET_BYTES) {
        outcome.wrong++;
        return;
    }
    outcome.wrong += packets[3] >> 6 != 2 + packets[LAST] % 2 || packets[LAST] < outcome.word;
    outcome.changes += packets[LAST] != outcome.word;
    outcome.word = packets[LAST];
}

static void on_lost(void *owner)
{
    (void)owner;
    outcome.lost++;
}

static void say(const char *format, ...) CORE_PRINTF(1, 2);
static void say(const char *format, ...)
{
    (void)format;
}

/* A datagram every millisecond, until those of the last word have come back for a while. */
static void run(struct ts_link *link, struct ts_stream *stream, uint8_t last_word)
{
    static const uint8_t clear[TS_PIDS / 8];
    unsigned behind = 0;
    for (int i = 0; i < 2000 && behind < 50; i++) {
        uint8_t packet[TS_PACKET_BYTES] = {0x47, 0x01, 0x00, 0x10};
        core_ns now_ns = core_time_now_ns();
        ts_link_look(link, now_ns);
        if (ts_stream_send(stream, packet, sizeof packet, clear, now_ns) == CORE_OK)
            outcome.wrong += !ts_link_wants_write(link) || ts_link_descriptor(link) < 0;
        ts_link_flush(link);
        ts_link_read(link);
        behind += outcome.word == last_word;
        poll(NULL, 0, 1);
    }
    for (int i = 0; i < 1000 && ts_link_is_busy(link); i++) {
        ts_link_read(link);
        poll(NULL, 0, 1);
    }
}

static void every_datagram_is_under_its_word(void **state)
{
    static const char words[] =
        "even 40112233445566778899aabbccddeeff\n"
        "odd 41112233445566778899aabbccddeeff +150ms\n"
        "odd 43112233445566778899aabbccddeeff +200ms\n" /* as the one before: left out */
        "even 42112233445566778899aabbccddeeff +300ms\n"
        "odd 45112233445566778899aabbccddeeff +450ms\n";
    static const struct {
        const char *name;
        unsigned busy, refused, dropped, closed;
        bool slow;
        unsigned asked, changes, lost; /* asked 0: these are as it happens, but the loss */
        uint64_t refused_words;
    } cases[] = {
        {"as planned", 0, 0, 0, 0, false, 3, 4, 0, 1},
        {"not now", 3, 0, 0, 0, false, 6, 4, 0, 1},
        {"granted at the last moment", 0, 0, 0, 0, true, 3, 4, 0, 1},
        {"the connection ends with a REKEY", 0, 0, 1, 0, false, 0, 0, 1, 0},
        {"refused", 0, 3, 0, 0, false, 0, 0, 0, 0},
        {"the server ends the stream", 0, 0, 0, 1, false, 0, 0, 1, 0},
    };
    (void)state;
    char path[] = "/tmp/millrace-link-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, words, sizeof words - 1) == (ssize_t)sizeof words - 1);
    close(file);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct script *script = calloc(1, sizeof *script);
        assert_non_null(script);
        script->busy = cases[i].busy;
        script->refused = cases[i].refused;
        script->dropped = cases[i].dropped;
        script->closed = cases[i].closed;
        script->slow = cases[i].slow;
        fake_server_start(&script->server, serve_again, script);
        const struct core_options_server server = {.address = script->server.address, .timeout_ms = 10000};
        const struct config_ts_service config = {.name = "a",
                                                 .rate_bits_per_s = 2e6,
                                                 .datagram_bytes = TS_PACKET_BYTES,
                                                 .bound_ns = CORE_NS_PER_S};
        struct ts_link link = {.server = &server, .done = on_done, .lost = on_lost, .say = say};
        struct ts_stream stream = {.config = &config, .words = ts_words_make("a", path, NULL, say)};
        outcome = (struct outcome){0};
        assert_int_equal(ts_stream_add(&link, &stream), CORE_OK);
        run(&link, &stream, 0x45);
        uint64_t refused_words = stream.words->refused;
        ts_link_close(&link);
        ts_words_free(stream.words);
        fake_server_join(&script->server);
        if (outcome.wrong > 0 || outcome.word != (cases[i].refused > 0 ? 0x40 : 0x45) ||
            script->broken_rules || outcome.lost != cases[i].lost ||
            (cases[i].asked > 0 && (script->asked != cases[i].asked || outcome.changes != cases[i].changes ||
                                    refused_words != cases[i].refused_words)))
            fail_msg(
                "%s: %u of %u are wrong, %u changes, the last word is %02x; lost %u times; %u REKEYs%s; %u "
                "words are left out",
                cases[i].name, outcome.wrong, outcome.done, outcome.changes, outcome.word, outcome.lost,
                script->asked, script->broken_rules ? ", rules are broken" : "", (unsigned)refused_words);
        free(script);
    }
    unlink(path);
}

/* Few datagrams come: the word is due long before the one with which it was to begin. */
static void a_late_word_is_told(void **state)
{
    static const char words[] = "even 40112233445566778899aabbccddeeff\n"
                                "odd 41112233445566778899aabbccddeeff +1ms\n";
    static const uint8_t clear[TS_PIDS / 8];
    char path[] = "/tmp/millrace-link-XXXXXX";
    int file = mkstemp(path);
    struct script *script = calloc(1, sizeof *script);
    (void)state;
    assert_non_null(script);
    assert_true(file >= 0 && write(file, words, sizeof words - 1) == (ssize_t)sizeof words - 1);
    close(file);
    fake_server_start(&script->server, serve_again, script);
    const struct core_options_server server = {.address = script->server.address, .timeout_ms = 10000};
    const struct config_ts_service config = {
        .name = "a", .rate_bits_per_s = 2e6, .datagram_bytes = TS_PACKET_BYTES, .bound_ns = CORE_NS_PER_S};
    struct ts_link link = {.server = &server, .done = on_done, .lost = on_lost, .say = say};
    struct ts_stream stream = {.config = &config, .words = ts_words_make("a", path, NULL, say)};
    outcome = (struct outcome){0};
    assert_int_equal(ts_stream_add(&link, &stream), CORE_OK);
    for (int i = 0; i < 200 && outcome.word != 0x41; i++) {
        uint8_t packet[TS_PACKET_BYTES] = {0x47, 0x01, 0x00, 0x10};
        for (int turns = 0; turns < 10; turns++) {
            ts_link_look(&link, core_time_now_ns());
            ts_link_flush(&link);
            ts_link_read(&link);
            poll(NULL, 0, 15);
        }
        (void)!ts_stream_send(&stream, packet, sizeof packet, clear, core_time_now_ns());
    }
    assert_int_equal(outcome.word, 0x41);
    assert_int_equal(outcome.wrong, 0);
    assert_int_equal(stream.late_words, 1);
    ts_link_close(&link);
    ts_words_free(stream.words);
    fake_server_join(&script->server);
    unlink(path);
    free(script);
}

static void welcome_as_2(int descriptor, void *argument)
{
    uint8_t byte;
    (void)argument;
    if (fake_welcome_version(descriptor, 2))
        (void)!fake_read(descriptor, &byte, 1);
}

static void a_server_without_messages_is_none(void **state)
{
    struct fake_server old;
    (void)state;
    fake_server_start(&old, welcome_as_2, NULL);
    const struct core_options_server server = {.address = old.address, .timeout_ms = 10000};
    struct ts_link link = {.server = &server, .done = on_done, .lost = on_lost, .say = say};
    const core_ns now_ns = core_time_now_ns();
    ts_link_look(&link, now_ns);
    assert_true(link.told_lost && link.connect_not_before_ns > now_ns);
    assert_int_equal(ts_link_descriptor(&link), -1);
    assert_false(ts_link_wants_write(&link) || ts_link_is_busy(&link));
    ts_link_look(&link, now_ns); /* not yet again */
    ts_link_read(&link);
    ts_link_flush(&link);
    ts_link_close(&link);
    fake_server_join(&old);
}

/* The longest datagrams at the rate, as bursty as is said, are within the contract. */
static void contracts_follow_from_the_service(void **state)
{
    static const struct {
        double rate_bits_per_s;
        uint32_t burst_max, burst;
    } cases[] = {{4e6, 65536, 5}, {4e8, 65536, 389}, {4e8, 16, 16}, {1e4, 65536, 2}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct millrace_welcome welcome = {.packet_bytes_max = 65535,
                                                 .burst_packets_max = cases[i].burst_max,
                                                 .stream_buffer_bytes_max = 16 << 20};
        const struct config_ts_service config = {.rate_bits_per_s = cases[i].rate_bits_per_s,
                                                 .datagram_bytes = 7 * TS_PACKET_BYTES,
                                                 .jitter_ns = 10 * CORE_NS_PER_MS,
                                                 .bound_ns = 4 * CORE_NS_PER_MS};
        struct core_stream_spec spec;
        ts_contract(&config, &welcome, &spec);
        assert_int_equal(core_stream_spec_check(&spec, NULL), CORE_OK);
        assert_int_equal(spec.latency_ns, 3 * CORE_NS_PER_MS);
        assert_int_equal(spec.burst_packets, cases[i].burst);
        assert_true((double)spec.interval_ns < 7 * TS_PACKET_BYTES * 8e9 / cases[i].rate_bits_per_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_datagram_is_under_its_word),
        cmocka_unit_test(a_late_word_is_told),
        cmocka_unit_test(a_server_without_messages_is_none),
        cmocka_unit_test(contracts_follow_from_the_service),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
