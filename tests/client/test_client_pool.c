/* A pool against nodes that refuse, stop, hang up and are cut in the middle of frames: whatever they do, what comes
 * out of each stream is what one server would have made of it, each packet once and in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/millrace.h"
#include "core/time.h"
#include "tests/support/chaos_node.h"
#include "tests/support/random.h"

#define PATIENCE_MS 120000
#define NODES       3
#define STREAMS     6
#define PACKETS     240
#define PACKET_MAX  320
#define AHEAD       24

static const uint8_t keys[2][16] = {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 8, 7, 6, 5, 4, 3, 2, 1}};
static const uint8_t constant_iv[16] = {0xA0, 0xB1, 0xC2};

/* ---- streams and what is expected of them ---- */

enum kind { CHAIN, PADDED, DECRYPTING, COUNTER, CONSTANT, MESSAGES_IN_A_CHAIN, KINDS };

struct stream {
    enum kind kind;
    struct millrace_open open;
    uint32_t id;
    uint32_t lengths[PACKETS];
    unsigned flags[PACKETS];
    uint8_t plain[PACKETS][PACKET_MAX];
    uint8_t cipher[PACKETS][PACKET_MAX + 16];
    uint32_t bytes[PACKETS];
    uint32_t sent, done;
    uint8_t iv[16];
    uint64_t second_key; /* number of the first message under it; UINT64_MAX: none */
    uint64_t message;    /* of the next packet that is sent */
    bool closed, lost;
    struct millrace_closed end;
    unsigned gaps;
};

struct rig {
    struct chaos_node nodes[NODES];
    unsigned node_count;
    struct millrace *pool;
    struct stream *streams;
    unsigned count, opened, refused, late;
    uint32_t asked;
    char refusal[MILLRACE_TEXT_BYTES];
    unsigned modified, rekeyed, busy;
};

static bool has_messages(const struct stream *stream)
{
    return stream->kind >= COUNTER;
}

static void stream_make(struct stream *stream, enum kind kind, struct test_random *random)
{
    memset(stream, 0, sizeof *stream);
    stream->kind = kind;
    stream->second_key = UINT64_MAX;
    stream->open = (struct millrace_open){.size = sizeof stream->open,
                                          .packet_bytes = PACKET_MAX,
                                          .burst_packets = 4,
                                          .interval_ns = CORE_NS_PER_MS,
                                          .latency_ns = 10 * CORE_NS_PER_S,
                                          .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                          .key_kind = MILLRACE_KEY_INLINE,
                                          .key = keys[0],
                                          .key_bytes = 16};
    if (has_messages(stream)) {
        stream->open.unit = MILLRACE_UNIT_MESSAGE;
        stream->open.padding = MILLRACE_PADDING_PKCS7;
        stream->open.iv_source = kind == COUNTER    ? MILLRACE_IV_COUNTER
                                 : kind == CONSTANT ? MILLRACE_IV_CONSTANT
                                                    : MILLRACE_IV_CHAIN;
        stream->open.first_unit = kind == COUNTER ? 1000 : 0;
        stream->open.has_iv = kind != COUNTER;
        memcpy(stream->open.iv, constant_iv, sizeof constant_iv);
    }
    if (kind == PADDED)
        stream->open.padding = MILLRACE_PADDING_PKCS7;
    if (kind == DECRYPTING) {
        stream->open.direction = MILLRACE_DIRECTION_DECRYPT;
        stream->open.has_iv = true;
    }
    bool begins = true;
    for (uint32_t i = 0; i < PACKETS; i++) {
        const bool ends = i + 1 == PACKETS || test_random_chance(random, 40);
        const bool free_length = kind == PADDED || (has_messages(stream) && ends);
        stream->lengths[i] = (uint32_t)test_random_in(random, 1, PACKET_MAX / 16) * 16;
        if (free_length)
            stream->lengths[i] -= (uint32_t)test_random_in(random, 0, 15);
        stream->flags[i] = !has_messages(stream) ? 0
                                                 : (begins ? MILLRACE_DATA_FIRST : 0) |
                                                       (ends ? MILLRACE_DATA_LAST : 0);
        begins = ends;
        for (uint32_t byte = 0; byte < stream->lengths[i]; byte++)
            stream->plain[i][byte] = (uint8_t)test_random_next(random);
    }
}

/* Packet by packet as docs/protocol.md says, by OpenSSL alone. */
static void stream_check(const struct stream *stream)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-128-CBC", NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    const int encrypts = stream->kind != DECRYPTING;
    uint64_t message = stream->open.first_unit;
    uint8_t chain[16];
    memcpy(chain, stream->iv, 16);
    for (uint32_t i = 0; i < stream->done; i++) {
        uint8_t plain[PACKET_MAX + 16], expected[PACKET_MAX + 32], iv[16] = {0};
        uint32_t bytes = stream->lengths[i];
        int count = 0;
        memcpy(plain, stream->plain[i], bytes);
        if (stream->kind == PADDED || (stream->flags[i] & MILLRACE_DATA_LAST)) {
            memset(plain + bytes, (int)(16 - bytes % 16), 16 - bytes % 16);
            bytes += 16 - bytes % 16;
        }
        if (stream->kind == COUNTER && (stream->flags[i] & MILLRACE_DATA_FIRST)) {
            for (int byte = 0; byte < 8; byte++)
                iv[15 - byte] = (uint8_t)(message >> 8 * byte);
            memcpy(chain, iv, 16);
        }
        if (stream->kind == CONSTANT && (stream->flags[i] & MILLRACE_DATA_FIRST))
            memcpy(chain, constant_iv, 16);
        EVP_CipherInit_ex2(context, cipher, keys[message >= stream->second_key], chain, encrypts, NULL);
        EVP_CIPHER_CTX_set_padding(context, 0);
        EVP_CipherUpdate(context, expected, &count, plain, (int)bytes);
        assert_int_equal(count, bytes);
        assert_int_equal(stream->bytes[i], bytes);
        assert_memory_equal(stream->cipher[i], expected, bytes);
        memcpy(chain, (encrypts ? expected : plain) + bytes - 16, 16);
        message += (stream->flags[i] & MILLRACE_DATA_LAST) != 0;
    }
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(cipher);
}

/* ---- what the pool says ---- */

static struct stream *find(struct rig *rig, uint32_t id)
{
    for (unsigned i = 0; i < rig->count; i++)
        if (rig->streams[i].id == id && !rig->streams[i].closed)
            return &rig->streams[i];
    fail_msg("stream %u is none", id);
    return NULL;
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct rig *rig = argument;
    (void)request;
    rig->asked = opened->asked > rig->asked ? opened->asked : rig->asked;
    for (unsigned i = 0; i < rig->count; i++) /* requests are answered one by one, see open_all */
        if (rig->streams[i].id == 0) {
            rig->streams[i].id = opened->stream;
            memcpy(rig->streams[i].iv, opened->iv, 16);
            rig->opened++;
            return;
        }
    fail_msg("nobody has asked for stream %u", opened->stream);
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct rig *rig = argument;
    (void)request;
    rig->refused += refused->code != MILLRACE_REFUSED_BUSY;
    rig->busy += refused->code == MILLRACE_REFUSED_BUSY;
    rig->asked = refused->asked;
    memcpy(rig->refusal, refused->text, sizeof rig->refusal);
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct stream *stream = find(argument, result->stream);
    assert_int_equal(result->status, MILLRACE_RESULT_OK);
    assert_int_equal(result->sequence, stream->done);
    assert_in_range(stream->done, 0, stream->sent - 1);
    stream->bytes[stream->done] = result->bytes;
    memcpy(stream->cipher[stream->done], result->ciphertext, result->bytes);
    stream->done++;
}

static void on_closed(void *argument, uint32_t id, const struct millrace_closed *closed)
{
    struct stream *stream = find(argument, id);
    stream->end = *closed;
    stream->closed = true;
    stream->lost = closed->reason == MILLRACE_CLOSE_LOST;
}

static void on_resumed(void *argument, uint32_t id, const struct millrace_resumed *resumed)
{
    struct rig *rig = argument;
    assert_true(resumed->gap_ns >= 0);
    find(rig, id)->gaps++;
    rig->late += (unsigned)resumed->late;
}

static void on_modified(void *argument, uint32_t request, const struct millrace_modified *modified)
{
    struct rig *rig = argument;
    (void)request;
    assert_in_range(modified->first, 0, find(rig, modified->stream)->sent);
    rig->modified++;
}

static void on_rekeyed(void *argument, uint32_t request, const struct millrace_rekeyed *rekeyed)
{
    struct rig *rig = argument;
    (void)request;
    find(rig, rekeyed->stream)->second_key = rekeyed->first;
    rig->rekeyed++;
}

/* ---- the rig ---- */

static void rig_start(struct rig *rig, const struct chaos_options *options, unsigned nodes, int faults,
                      uint64_t seed, const struct millrace_pool *pool)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_opened = on_opened,
                                                 .on_refused = on_refused,
                                                 .on_result = on_result,
                                                 .on_closed = on_closed,
                                                 .on_resumed = on_resumed,
                                                 .on_modified = on_modified,
                                                 .on_rekeyed = on_rekeyed,
                                                 .argument = rig};
    struct test_random random = {seed};
    struct millrace_pool own = *pool;
    char addresses[512] = "", error[MILLRACE_TEXT_BYTES];
    memset(rig, 0, sizeof *rig);
    rig->node_count = nodes;
    for (unsigned i = 0; i < nodes; i++) {
        chaos_node_start(&rig->nodes[i], &options[i], faults, test_random_next(&random));
        snprintf(addresses + strlen(addresses), sizeof addresses - strlen(addresses), "%s%s", i > 0 ? "," : "",
                 rig->nodes[i].address);
    }
    own.size = sizeof own;
    own.addresses = addresses;
    while (millrace_pool_connect(&own, NULL, PATIENCE_MS, &rig->pool, error) != MILLRACE_OK)
        assert_true(options[0].hang_up_percent > 0);
    assert_int_equal(millrace_set_callbacks(rig->pool, &callbacks, NULL), MILLRACE_OK);
}

static void rig_stop(struct rig *rig)
{
    millrace_disconnect(rig->pool);
    for (unsigned i = 0; i < rig->node_count; i++)
        chaos_node_stop(&rig->nodes[i]);
    free(rig->streams);
}

static void turn(struct rig *rig)
{
    char error[MILLRACE_TEXT_BYTES];
    struct pollfd ready = {.fd = millrace_descriptor(rig->pool), .events = millrace_events(rig->pool)};
    assert_true(poll(&ready, 1, PATIENCE_MS) > 0);
    if (millrace_process(rig->pool, 0, error) != MILLRACE_OK)
        fail_msg("%s", error);
}

static void open_all(struct rig *rig, unsigned count, const enum kind *kinds, struct test_random *random)
{
    rig->streams = calloc(count, sizeof *rig->streams);
    for (unsigned i = 0; i < count; i++) {
        stream_make(&rig->streams[i], kinds[i], random);
        rig->count = i + 1;
        do {
            const unsigned refused = rig->refused, opened = rig->opened;
            assert_int_equal(millrace_send_open(rig->pool, &rig->streams[i].open, NULL, NULL), MILLRACE_OK);
            while (rig->refused == refused && rig->opened == opened)
                turn(rig);
        } while (rig->streams[i].id == 0); /* all nodes said no: a test asks again */
    }
}

static void send_some(struct rig *rig, struct stream *stream)
{
    while (!stream->closed && stream->sent < PACKETS && stream->sent < stream->done + AHEAD) {
        const uint32_t i = stream->sent;
        uint32_t sequence = 0;
        assert_int_equal(millrace_data_part(rig->pool, stream->id, stream->plain[i], stream->lengths[i],
                                            stream->flags[i], &sequence, NULL),
                         MILLRACE_OK);
        assert_int_equal(sequence, i);
        stream->sent++;
        stream->message += (stream->flags[i] & MILLRACE_DATA_LAST) != 0;
        if (stream->sent == PACKETS)
            assert_int_equal(millrace_send_close(rig->pool, stream->id, NULL), MILLRACE_OK);
    }
}

static bool all_closed(const struct rig *rig)
{
    for (unsigned i = 0; i < rig->count; i++)
        if (!rig->streams[i].closed)
            return false;
    return true;
}

/* All that was sent has come back right, and the account is that of one server. */
static void check_all(const struct rig *rig)
{
    for (unsigned i = 0; i < rig->count; i++) {
        const struct stream *stream = &rig->streams[i];
        uint64_t bytes = 0;
        stream_check(stream);
        if (stream->lost)
            continue;
        for (uint32_t n = 0; n < PACKETS; n++)
            bytes += stream->bytes[n];
        assert_int_equal(stream->done, PACKETS);
        assert_int_equal(stream->end.reason, MILLRACE_CLOSE_ASKED);
        assert_int_equal(stream->end.packets, PACKETS);
        assert_int_equal(stream->end.bytes, bytes);
        assert_int_equal(stream->end.met + stream->end.missed, PACKETS);
    }
}

/* ---- the tests ---- */

static void change_at_random(struct rig *rig, struct test_random *random)
{
    struct stream *stream = &rig->streams[test_random_in(random, 0, rig->count - 1)];
    if (stream->closed || stream->sent == PACKETS)
        return;
    const struct millrace_modify modify = {.size = sizeof modify,
                                           .stream = stream->id,
                                           .burst_packets = (uint32_t)test_random_in(random, 1, 8),
                                           .interval_ns = CORE_NS_PER_MS,
                                           .latency_ns = 10 * CORE_NS_PER_S};
    const struct millrace_rekey rekey = {.size = sizeof rekey,
                                         .stream = stream->id,
                                         .key_kind = MILLRACE_KEY_INLINE,
                                         .key = keys[1],
                                         .key_bytes = 16,
                                         .first = stream->open.first_unit + stream->message + 12};
    if (test_random_chance(random, 50))
        assert_int_equal(millrace_send_modify(rig->pool, &modify, NULL, NULL), MILLRACE_OK);
    else if (has_messages(stream) && stream->second_key == UINT64_MAX && stream->sent < PACKETS / 2)
        assert_int_equal(millrace_send_rekey(rig->pool, &rekey, NULL, NULL), MILLRACE_OK);
}

/* The whole: three nodes that do everything wrong. */
static void test_chaos(void **state)
{
    static const enum kind kinds[STREAMS] = {CHAIN, PADDED, DECRYPTING, COUNTER, CONSTANT, MESSAGES_IN_A_CHAIN};
    unsigned cuts = 0, gaps = 0, rekeyed = 0, modified = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const struct chaos_options one = {.refuse_percent = 15,
                                          .hang_up_percent = 10,
                                          .drain_percent = 1,
                                          .cut_bytes = 6000};
        const struct chaos_options options[NODES] = {one, one, one};
        const struct millrace_pool pool = {.connections = 4, .patience_ms = PATIENCE_MS};
        struct test_random random = {seed};
        struct rig rig;
        rig_start(&rig, options, NODES, 8, seed, &pool);
        open_all(&rig, STREAMS, kinds, &random);
        while (!all_closed(&rig)) {
            for (unsigned i = 0; i < STREAMS; i++)
                if (test_random_chance(&random, 60))
                    send_some(&rig, &rig.streams[i]);
            if (test_random_chance(&random, 50))
                change_at_random(&rig, &random);
            turn(&rig);
        }
        check_all(&rig);
        for (unsigned i = 0; i < STREAMS; i++) {
            assert_false(rig.streams[i].lost);
            gaps += rig.streams[i].gaps;
        }
        for (unsigned i = 0; i < NODES; i++)
            cuts += atomic_load(&rig.nodes[i].cuts);
        rekeyed += rig.rekeyed;
        modified += rig.modified;
        rig_stop(&rig);
    }
    print_message("%u cuts, %u gaps, %u rekeyed, %u modified\n", cuts, gaps, rekeyed, modified);
    assert_true(cuts > 20 && gaps > 20 && rekeyed > 0 && modified > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chaos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
