/* The way of millrace hls to the server: every file comes back whole and under its own key, however often that
 * changes, whatever the server refuses for a while, and when it goes away. */
#include "client/hls/contract.h"
#include "client/hls/link.h"
#include "core/address.h"
#include "core/secret.h"
#include "tests/support/fake_server.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* ---- a server whose cipher is to add the key's first byte ---- */

struct script {
    struct fake_server server;
    unsigned busy;     /* REKEYs to be refused with 9 */
    unsigned dropped;  /* REKEYs and closes of streams with which the connection ends */
    unsigned closed;   /* messages in which the server ends the stream */
    unsigned asked;    /* REKEYs that came */
    bool broken_rules; /* by the client */
    /* the stream */
    uint32_t stream;
    uint8_t key, next_key;
    uint64_t messages, next_first;
    uint8_t body[FAKE_PACKET_BYTES_MAX], frame[FAKE_PACKET_BYTES_MAX + 256];
};

static bool answer_open(struct script *script, int descriptor, const struct protocol_header *header)
{
    struct protocol_open open;
    if (protocol_open_read(PROTOCOL_VERSION, script->body, header->body_bytes, &open, NULL) != CORE_OK)
        return false;
    const struct protocol_opened opened = {
        .stream = ++script->stream, .unit = PROTOCOL_UNIT_CPU, .bound_ns = 1, .queue_packets = 4};
    script->key = open.key[0];
    script->messages = 0;
    script->next_first = UINT64_MAX;
    return fake_write(descriptor, script->frame,
                      protocol_opened_write(PROTOCOL_VERSION, script->frame, header->id, &opened));
}

static bool answer_rekey(struct script *script, int descriptor, const struct protocol_header *header)
{
    struct protocol_rekey rekey;
    const struct protocol_refused refused = {.code = PROTOCOL_REFUSED_BUSY, .text = "two keys"};
    script->asked++;
    if (protocol_rekey_read(script->body, header->body_bytes, &rekey, NULL) != CORE_OK)
        return false;
    script->broken_rules |= rekey.first < script->messages;
    if (script->dropped > 0 && script->dropped-- > 0)
        return false;
    if (script->busy > 0 && script->busy-- > 0)
        return fake_write(descriptor, script->frame,
                          protocol_refused_write(PROTOCOL_VERSION, script->frame, header->id, &refused));
    const struct protocol_rekeyed rekeyed = {.stream = rekey.stream, .first = rekey.first};
    script->next_key = rekey.key[0];
    script->next_first = rekey.first;
    return fake_write(descriptor, script->frame, protocol_rekeyed_write(script->frame, header->id, &rekeyed));
}

static bool close_stream(struct script *script, int descriptor, uint32_t stream,
                         enum protocol_close_reason reason)
{
    const struct protocol_closed closed = {.reason = reason};
    return fake_write(descriptor, script->frame, protocol_closed_write(script->frame, stream, &closed));
}

static bool answer_data(struct script *script, int descriptor, const struct protocol_header *header)
{
    uint32_t head = header->flags & PROTOCOL_DATA_FIRST ? CORE_BLOCK_BYTES : 0;
    const struct protocol_result result = {.flags = PROTOCOL_RESULT_MET, .latency_ns = 1};
    if (head > 0 && script->messages++ == script->next_first)
        script->key = script->next_key;
    if (head > 0 && script->closed > 0 && script->closed-- > 0)
        return close_stream(script, descriptor, header->id, PROTOCOL_CLOSE_FAILED);
    uint32_t bytes = header->body_bytes - head;
    uint32_t padding = header->flags & PROTOCOL_DATA_LAST ? CORE_BLOCK_BYTES - bytes % CORE_BLOCK_BYTES : 0;
    uint8_t *cipher = script->frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES;
    for (uint32_t i = 0; i < bytes + padding; i++)
        cipher[i] = (uint8_t)((i < bytes ? script->body[head + i] : padding) + script->key);
    protocol_result_write(script->frame, header->id, header->sequence, &result, bytes + padding);
    return fake_write(descriptor, script->frame,
                      PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + bytes + padding);
}

static void serve(struct script *script, int descriptor)
{
    struct protocol_header header;
    bool goes_on = fake_welcome(descriptor);
    while (goes_on && fake_read_frame(descriptor, &header, script->body))
        goes_on = header.type == PROTOCOL_OPEN    ? answer_open(script, descriptor, &header)
                  : header.type == PROTOCOL_REKEY ? answer_rekey(script, descriptor, &header)
                  : header.type == PROTOCOL_DATA
                      ? answer_data(script, descriptor, &header)
                      : close_stream(script, descriptor, header.id, PROTOCOL_CLOSE_ASKED);
}

/* One connection after the other, `again` of them behind the first. */
static void serve_again(int descriptor, void *argument)
{
    struct script *script = argument;
    unsigned again = script->dropped + script->closed;
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

/* ---- files ---- */

static const struct {
    size_t bytes;
    char key;
} files[] = {{100, 'a'}, {40000, 'a'}, {0, 'b'}, {200000, 'b'}, {16, 'c'}, {15, 'a'}, {300000, 'b'}};

static unsigned done, failed;

static void on_done(void *argument, struct hls_job *job)
{
    (void)argument;
    size_t whole = (job->bytes / CORE_BLOCK_BYTES + 1) * CORE_BLOCK_BYTES;
    bool right = !job->failed && job->cipher_bytes == whole && job->owner == &files[done];
    for (size_t i = 0; i < whole && right; i++)
        right = job->cipher[i] ==
                (uint8_t)((i < job->bytes ? job->clear[i] : whole - job->bytes) + job->key->bytes[0]);
    failed += !right;
    done++;
    hls_job_free(job);
}

static void say(const char *format, ...)
{
    (void)format;
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

static void turn_until(struct hls_link *link, unsigned count)
{
    for (int i = 0; i < 20000 && done < count; i++) {
        hls_link_turn(link, core_time_now_ns());
        struct pollfd ready = {.fd = hls_link_descriptor(link), .events = hls_link_events(link)};
        if (done < count)
            poll(&ready, 1, hls_link_wait_ms(link, core_time_now_ns(), 10));
    }
    assert_int_equal(done, count);
}

static void every_file_is_under_its_key(void **state)
{
    static const struct {
        const char *name;
        unsigned busy, dropped, closed;
        bool at_once;
        unsigned asked; /* REKEYs; 0: as many as there are */
    } cases[] = {
        {"one after the other", 0, 0, 0, false, 0},
        {"all at once", 0, 0, 0, true, 4},
        {"two keys are in force for a while", 3, 0, 0, true, 7},
        {"the connection ends with a REKEY", 0, 2, 0, true, 0},
        {"the server ends the stream", 0, 0, 1, true, 0},
        {"it ends it with all that was sent", 0, 0, 1, false, 0},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct script *script = calloc(1, sizeof *script);
        assert_non_null(script);
        script->busy = cases[i].busy;
        script->dropped = cases[i].dropped;
        script->closed = cases[i].closed;
        fake_server_start(&script->server, serve_again, script);
        const struct core_options_server server = {.address = script->server.address, .timeout_ms = 10000};
        struct hls_link link = {.server = &server, .done = on_done, .say = say};
        struct hls_stream stream = {.name = "a", .target_s = 1, .wait_ns = CORE_NS_PER_S};
        done = failed = 0;
        hls_stream_add(&link, &stream);
        for (size_t file = 0; file < COUNT_OF(files); file++) {
            struct hls_job *last = stream.last;
            bool same = file > 0 && files[file].key == files[file - 1].key && last != NULL;
            submit(&stream, file, same ? hls_key_take(last->key) : make_key(files[file].key));
            if (!cases[i].at_once)
                turn_until(&link, (unsigned)file + 1);
        }
        turn_until(&link, COUNT_OF(files));
        hls_stream_remove(&stream);
        hls_link_close(&link);
        fake_server_join(&script->server);
        if (failed > 0 || script->broken_rules || (cases[i].asked > 0 && script->asked != cases[i].asked))
            fail_msg("%s: %u files are wrong; %u REKEYs%s", cases[i].name, failed, script->asked,
                     script->broken_rules ? ", one too late" : "");
        free(script);
    }
}

/* All of a file is there in time: what the burst does not hold comes one packet an interval. */
static void contracts_are_kept(void **state)
{
    static const size_t sizes[] = {0, 1, 32768, 1000000, 50000000};
    static const uint32_t bursts[] = {1, 16, 100000};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes) * COUNT_OF(bursts); i++) {
        size_t bytes = sizes[i / COUNT_OF(bursts)];
        const struct protocol_welcome welcome = {.packet_bytes_max = 65535,
                                                 .burst_packets_max = bursts[i % COUNT_OF(bursts)],
                                                 .stream_buffer_bytes_max = 16 << 20};
        struct core_stream_spec spec;
        hls_contract(bytes, 4, false, CORE_NS_PER_S, &welcome, &spec);
        core_ns packets = (core_ns)((bytes + CORE_BLOCK_BYTES) / spec.packet_bytes + 1);
        core_ns behind = packets > spec.burst_packets ? packets - spec.burst_packets : 0;
        assert_int_equal(spec.packet_bytes % CORE_BLOCK_BYTES, 0);
        assert_in_range(spec.burst_packets, 1, welcome.burst_packets_max);
        assert_true((uint64_t)spec.burst_packets * spec.packet_bytes <= welcome.stream_buffer_bytes_max);
        assert_true(behind * spec.interval_ns + spec.latency_ns <= CORE_NS_PER_S);
        assert_true(packets * spec.interval_ns <= 4 * CORE_NS_PER_S);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_is_under_its_key),
        cmocka_unit_test(contracts_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
