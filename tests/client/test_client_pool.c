/* A pool against nodes that refuse, stop, hang up and are cut in the middle of frames: whatever they do, what comes
 * out of each stream is what one server would have made of it, each packet once and in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netdb.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/millrace.h"
#include "core/address.h"
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
    unsigned modified, rekeyed, busy, gone, pongs, notices;
    unsigned crossed, crossed_met; /* results with flag FAULT; and of these with MET */
    void (*at_closed)(struct rig *rig), (*at_pong)(struct rig *rig);
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
        stream->flags[i] =
            !has_messages(stream) ? 0 : (begins ? MILLRACE_DATA_FIRST : 0) | (ends ? MILLRACE_DATA_LAST : 0);
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
    rig->refused += refused->code != MILLRACE_REFUSED_BUSY && refused->code != MILLRACE_REFUSED_STREAM;
    rig->gone += refused->code == MILLRACE_REFUSED_STREAM;
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
    const bool crossed = (result->flags & MILLRACE_RESULT_FAULT) != 0;
    ((struct rig *)argument)->crossed += crossed;
    ((struct rig *)argument)->crossed_met += crossed && (result->flags & MILLRACE_RESULT_MET);
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
    if (((struct rig *)argument)->at_closed != NULL)
        ((struct rig *)argument)->at_closed(argument);
}

static void on_pong(void *argument, uint32_t request, const uint8_t *payload, uint32_t bytes)
{
    struct rig *rig = argument;
    (void)request, (void)payload, (void)bytes;
    rig->pongs++;
    if (rig->at_pong != NULL)
        rig->at_pong(rig);
}

static void on_resumed(void *argument, uint32_t id, const struct millrace_resumed *resumed)
{
    struct rig *rig = argument;
    assert_true(resumed->gap_ns >= 0);
    find(rig, id)->gaps++;
    rig->late += (unsigned)resumed->late;
}

static void on_notice(void *argument, uint32_t id, const struct millrace_notice *notice)
{
    struct rig *rig = argument;
    if (notice->kind == MILLRACE_NOTICE_RESTORED)
        assert_true(find(rig, id)->sent > 0);
    rig->notices += notice->kind == MILLRACE_NOTICE_RESTORED;
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

static void set_callbacks(struct rig *rig)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_opened = on_opened,
                                                 .on_refused = on_refused,
                                                 .on_result = on_result,
                                                 .on_closed = on_closed,
                                                 .on_resumed = on_resumed,
                                                 .on_modified = on_modified,
                                                 .on_rekeyed = on_rekeyed,
                                                 .on_pong = on_pong,
                                                 .on_notice = on_notice,
                                                 .argument = rig};
    assert_int_equal(millrace_set_callbacks(rig->pool, &callbacks, NULL), MILLRACE_OK);
}

static void rig_start(struct rig *rig, const struct chaos_options *options, unsigned nodes, int faults,
                      uint64_t seed, const struct millrace_pool *pool)
{
    struct test_random random = {seed};
    struct millrace_pool own = *pool;
    char addresses[512] = "", error[MILLRACE_TEXT_BYTES];
    memset(rig, 0, sizeof *rig);
    rig->node_count = nodes;
    for (unsigned i = 0; i < nodes; i++) {
        chaos_node_start(&rig->nodes[i], &options[i], faults, test_random_next(&random));
        snprintf(addresses + strlen(addresses), sizeof addresses - strlen(addresses), "%s%s",
                 i > 0 ? "," : "", rig->nodes[i].address);
    }
    own.size = sizeof own;
    own.addresses = addresses;
    while (millrace_pool_connect(&own, NULL, PATIENCE_MS, &rig->pool, error) != MILLRACE_OK)
        assert_true(options[0].hang_up_percent > 0);
    set_callbacks(rig);
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
    static const enum kind kinds[STREAMS] = {CHAIN,   PADDED,   DECRYPTING,
                                             COUNTER, CONSTANT, MESSAGES_IN_A_CHAIN};
    unsigned cuts = 0, gaps = 0, rekeyed = 0, modified = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const struct chaos_options one = {
            .refuse_percent = 15, .hang_up_percent = 10, .drain_percent = 1, .cut_bytes = 6000};
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

static void open_one(struct rig *rig, enum kind kind, uint64_t seed)
{
    struct test_random random = {seed};
    open_all(rig, 1, &kind, &random);
}

static void run_to_the_end(struct rig *rig)
{
    while (!all_closed(rig)) {
        for (unsigned i = 0; i < rig->count; i++)
            send_some(rig, &rig->streams[i]);
        turn(rig);
    }
    check_all(rig);
}

/* As many as are said, each once, and the answer says how many. */
static void test_refused_everywhere(void **state)
{
    const struct chaos_options full = {.refuse_percent = 100}, options[NODES] = {full, full, full};
    static const unsigned attempts[] = {2, 0};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const struct millrace_pool pool = {.attempts = attempts[i]};
        struct rig rig;
        struct stream stream;
        struct test_random random = {1};
        rig_start(&rig, options, NODES, 1000, 1, &pool);
        stream_make(&stream, CHAIN, &random);
        assert_int_equal(millrace_send_open(rig.pool, &stream.open, NULL, NULL), MILLRACE_OK);
        while (rig.refused == 0)
            turn(&rig);
        assert_int_equal(rig.asked, attempts[i] > 0 ? attempts[i] : NODES);
        assert_non_null(
            strstr(rig.refusal, attempts[i] > 0 ? "full (nodes asked: 2)" : "full (nodes asked: 3)"));
        unsigned opens = 0;
        for (unsigned n = 0; n < NODES; n++)
            opens += atomic_load(&rig.nodes[n].opens);
        assert_int_equal(opens, rig.asked);
        assert_int_equal(millrace_send_query(rig.pool, &stream.open, NULL, NULL), MILLRACE_OK);
        while (rig.refused == 1)
            turn(&rig);
        rig_stop(&rig);
    }
}

/* The one that has room is found, also by blocking calls. */
static void test_one_has_room(void **state)
{
    static const struct chaos_options options[NODES] = {
        {.refuse_percent = 100}, {.refuse_percent = 100}, {0}};
    const struct millrace_pool pool = {.attempts = 3};
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_closed closed = {.size = sizeof closed};
    struct millrace_result result = {.size = sizeof result};
    struct stream stream;
    struct test_random random = {1};
    struct rig rig;
    uint8_t cipher[PACKET_MAX + 16];
    uint32_t bytes;
    int64_t round_trip_ns;
    (void)state;
    rig_start(&rig, options, NODES, 1000, 1, &pool);
    stream_make(&stream, PADDED, &random);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(millrace_query(rig.pool, &stream.open, PATIENCE_MS, &opened, NULL, NULL),
                         MILLRACE_OK);
        assert_int_equal(millrace_open_stream(rig.pool, &stream.open, PATIENCE_MS, &opened, NULL, NULL),
                         MILLRACE_OK);
        assert_in_range(opened.asked, 1, 3);
        assert_int_equal(millrace_encrypt(rig.pool, opened.stream, "packet", 6, PATIENCE_MS, cipher, &bytes,
                                          &result, NULL),
                         MILLRACE_OK);
        assert_int_equal(bytes, 16);
        assert_int_equal(millrace_close_stream(rig.pool, opened.stream, PATIENCE_MS, &closed, NULL),
                         MILLRACE_OK);
        assert_int_equal(closed.packets, 1);
    }
    assert_int_equal(millrace_ping(rig.pool, PATIENCE_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(atomic_load(&rig.nodes[2].streams), 0);
    rig_stop(&rig);
}

/* A key that takes no IV: what needs one ends, with the reason; what does not goes on. */
static void test_key_without_client_iv(void **state)
{
    const struct chaos_options cut = {.cut_bytes = 3000, .takes_no_iv = true}, options[NODES] = {cut, cut};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    (void)state;
    struct rig rig;
    rig_start(&rig, options, 2, 4, 3, &pool);
    open_one(&rig, CHAIN, 1);
    run_to_the_end(&rig);
    assert_true(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].end.refused, MILLRACE_REFUSED_IV);
    assert_non_null(strstr(rig.streams[0].end.text,
                           "its node is gone, and it can not go on elsewhere: this key "
                           "takes no IV of a client"));
    rig_stop(&rig);
    rig_start(&rig, options, 2, 4, 3, &pool);
    open_one(&rig, COUNTER, 1);
    run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_true(rig.streams[0].gaps > 0);
    rig_stop(&rig);
}

/* What can not be begun anew: a message longer than what is kept. */
static void test_message_too_long(void **state)
{
    static const struct chaos_options options[NODES] = {{.cut_bytes = 40000}, {0}};
    const struct millrace_pool pool = {.kept_bytes_max = 4000, .patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, options, 1, 1, 7, &pool);
    open_one(&rig, COUNTER, 1);
    struct stream *stream = &rig.streams[0];
    for (uint32_t i = 0; i < PACKETS; i++) {
        stream->flags[i] = i == 0 ? MILLRACE_DATA_FIRST : 0;
        stream->lengths[i] = PACKET_MAX;
    }
    while (!stream->closed) {
        while (!stream->closed && stream->sent < PACKETS &&
               millrace_data_part(rig.pool, stream->id, stream->plain[stream->sent], PACKET_MAX,
                                  stream->flags[stream->sent], NULL, NULL) == MILLRACE_OK)
            stream->sent++;
        turn(&rig);
    }
    assert_true(stream->lost);
    assert_non_null(strstr(stream->end.text, "its message is longer than what is kept"));
    stream_check(stream);
    rig_stop(&rig);
}

/* A node that answers nothing any more: its stream has so much that is kept, and no more; others are not harmed. */
static void test_kept_is_bounded(void **state)
{
    static const struct chaos_options options[NODES] = {{.silent_after = 10}};
    const struct millrace_pool pool = {.kept_bytes_max = 10000};
    static const enum kind kinds[2] = {CHAIN, CHAIN};
    struct test_random random = {1};
    char error[MILLRACE_TEXT_BYTES];
    struct rig rig;
    (void)state;
    rig_start(&rig, options, 1, 0, 1, &pool);
    open_all(&rig, 2, kinds, &random);
    struct stream *stream = &rig.streams[0];
    millrace_status status = MILLRACE_OK;
    unsigned given = 0;
    while (stream->done < 10) {
        stream->sent += millrace_data(rig.pool, stream->id, stream->plain[stream->sent], 16, NULL, NULL) == 0;
        turn(&rig);
    }
    while (status == MILLRACE_OK) {
        status = millrace_data(rig.pool, stream->id, stream->plain[0], PACKET_MAX, NULL, error);
        given += status == MILLRACE_OK;
        assert_int_equal(millrace_flush(rig.pool, NULL), MILLRACE_OK);
    }
    assert_int_equal(status, MILLRACE_FULL);
    assert_in_range(given, 10000 / (PACKET_MAX + 40), 10000 / PACKET_MAX);
    assert_non_null(strstr(error, "and its pool keeps 10000 of each"));
    assert_int_equal(millrace_data(rig.pool, rig.streams[1].id, stream->plain[0], PACKET_MAX, NULL, NULL),
                     MILLRACE_OK);
    rig_stop(&rig);
}

/* A lost stream that is refused asks again, by the pool's own clock: nothing else happens meanwhile. */
static void test_refused_for_a_while(void **state)
{
    static const struct chaos_options options[NODES] = {{.cut_bytes = 3000, .refuse_percent = 100}};
    const struct millrace_pool pool = {.attempts = 1, .patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, options, 1, 0, 9, &pool);
    open_one(&rig, CHAIN, 1);
    atomic_store(&rig.nodes[0].faults_left, 5);
    run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_true(rig.streams[0].gaps > 0);
    assert_true(atomic_load(&rig.nodes[0].opens) > rig.streams[0].gaps + 1);
    rig_stop(&rig);
}

/* A node that is there and says nothing any more, not even PONG: as if its machine were gone. */
static void test_silent_node(void **state)
{
    static const struct chaos_options options[NODES] = {{.silent_after = 30}, {.silent_after = 30}};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, options, 2, 0, 1, &pool);
    open_one(&rig, PADDED, 1);
    while (rig.streams[0].gaps == 0) {
        send_some(&rig, &rig.streams[0]);
        turn(&rig);
    }
    assert_in_range(rig.streams[0].done, 30, 60);
    stream_check(&rig.streams[0]);
    rig_stop(&rig);
}

/* A node that hangs up on who connects is left alone, longer each time. */
static void test_flapping_node(void **state)
{
    static const struct chaos_options options[NODES] = {{.cut_bytes = 4000}, {.hang_up_percent = 100}};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct rig rig;
    (void)state;
    const core_ns start_ns = core_time_now_ns();
    rig_start(&rig, options, 2, 6, 5, &pool);
    atomic_store(&rig.nodes[1].faults_left, 1000000);
    open_one(&rig, CHAIN, 1);
    run_to_the_end(&rig);
    while (core_time_now_ns() < start_ns + CORE_NS_PER_S) {
        struct pollfd ready = {.fd = millrace_descriptor(rig.pool), .events = millrace_events(rig.pool)};
        (void)poll(&ready, 1, 100);
        assert_int_equal(millrace_process(rig.pool, 0, NULL), MILLRACE_OK);
    }
    const int attempts = 1000000 - atomic_load(&rig.nodes[1].faults_left);
    int most = 3; /* 0.1 s, 0.2 s, ... less a quarter */
    for (core_ns gone_ns = core_time_now_ns() - start_ns, pause_ns = 75 * CORE_NS_PER_MS; gone_ns > pause_ns;
         pause_ns *= 2, most++)
        gone_ns -= pause_ns;
    assert_in_range(attempts, 2, most);
    assert_int_equal(millrace_pool_node(rig.pool, 1, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_DOWN);
    assert_non_null(strstr(node.text, node.address));
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    assert_true(node.opened > 0 && node.losses > 0 && node.lost > 0);
    assert_int_equal(millrace_pool_node(rig.pool, 2, &node, NULL), MILLRACE_NOT_FOUND);
    rig_stop(&rig);
}

/* All are gone and stay so: streams end when the patience does, and requests are answered. */
static void test_nobody_comes_back(void **state)
{
    static const struct chaos_options options[NODES] = {{.cut_bytes = 2000}};
    const struct millrace_pool pool = {.patience_ms = 300};
    struct test_random random = {1};
    struct rig rig;
    struct stream other;
    (void)state;
    rig_start(&rig, options, 1, 1, 1, &pool);
    open_one(&rig, CHAIN, 1);
    atomic_store(&rig.nodes[0].hangs_up, true);
    run_to_the_end(&rig);
    assert_true(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].end.refused, 0);
    assert_non_null(strstr(rig.streams[0].end.text, "no node can be reached: unix:"));
    stream_make(&other, CHAIN, &random);
    assert_int_equal(millrace_send_open(rig.pool, &other.open, NULL, NULL), MILLRACE_OK);
    while (rig.refused == 0)
        turn(&rig);
    assert_int_equal(rig.asked, 0);
    rig_stop(&rig);
}

/* Until all that the nodes have said is heard. */
static void ping(struct rig *rig)
{
    const unsigned pongs = rig->pongs;
    assert_int_equal(millrace_send_ping(rig->pool, NULL, 0, NULL, NULL), MILLRACE_OK);
    while (rig->pongs == pongs)
        turn(rig);
}

static millrace_status modify(struct rig *rig, const struct stream *stream)
{
    const struct millrace_modify change = {.size = sizeof change,
                                           .stream = stream->id,
                                           .burst_packets = 2,
                                           .interval_ns = CORE_NS_PER_MS,
                                           .latency_ns = 10 * CORE_NS_PER_S};
    return millrace_send_modify(rig->pool, &change, NULL, NULL);
}

static millrace_status rekey(struct rig *rig, const struct stream *stream, uint64_t first)
{
    const struct millrace_rekey change = {.size = sizeof change,
                                          .stream = stream->id,
                                          .key_kind = MILLRACE_KEY_INLINE,
                                          .key = keys[1],
                                          .key_bytes = 16,
                                          .first = first};
    return millrace_send_rekey(rig->pool, &change, NULL, NULL);
}

/* A stream ends while its MODIFY is out: that is refused, once, whatever its node says of it. */
static void test_ended_during_a_change(void **state)
{
    static const struct chaos_options options = {.idle_at_modify = true};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 0, 1, &pool);
    open_one(&rig, CHAIN, 1);
    assert_int_equal(modify(&rig, &rig.streams[0]), MILLRACE_OK);
    while (rig.gone == 0)
        turn(&rig);
    assert_int_equal(rig.streams[0].end.reason, MILLRACE_CLOSE_IDLE);
    assert_non_null(strstr(rig.refusal, "the stream has ended"));
    ping(&rig);
    assert_int_equal(rig.gone, 1);
    rig_stop(&rig);
}

/* The next node does not take the second key: the stream is ended, and what that node still says of it is for
 * nobody. */
static void test_second_key_refused(void **state)
{
    static const struct chaos_options options = {.cut_after = 40};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 1, 1, &pool);
    open_one(&rig, COUNTER, 1);
    assert_int_equal(rekey(&rig, &rig.streams[0], 100000), MILLRACE_OK);
    while (rig.rekeyed == 0)
        turn(&rig);
    atomic_store(&rig.nodes[0].refuses_keys, true);
    rig.streams[0].second_key = UINT64_MAX;
    run_to_the_end(&rig);
    assert_true(rig.streams[0].lost);
    assert_non_null(strstr(rig.streams[0].end.text, "the next node did not take its second key"));
    ping(&rig);
    assert_int_equal(atomic_load(&rig.nodes[0].closes), 1);
    rig_stop(&rig);
}

static void use_the_other(struct rig *rig)
{
    if (!rig->streams[0].closed || rig->streams[1].closed || rig->streams[1].sent == PACKETS)
        return;
    send_some(rig, &rig->streams[1]);
    assert_int_equal(modify(rig, &rig->streams[1]), MILLRACE_OK);
    assert_int_equal(millrace_flush(rig->pool, NULL), MILLRACE_OK);
    (void)millrace_events(rig->pool);
}

/* A node is lost, and with it a stream that can not go on: when that is told, another one of the node is used. */
static void test_used_while_a_node_is_lost(void **state)
{
    static const struct chaos_options options = {.cut_at_ping = true};
    static const enum kind kinds[2] = {MESSAGES_IN_A_CHAIN, COUNTER};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct test_random random = {1};
    struct millrace_opened opened = {.size = sizeof opened};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 1, 1, &pool);
    rig.streams = calloc(2, sizeof *rig.streams);
    rig.count = 2;
    for (unsigned i = 0; i < 2; i++) {
        stream_make(&rig.streams[i], kinds[i], &random);
        rig.streams[i].open.crypt_blocks = rig.streams[i].open.skip_blocks =
            i == 0; /* a pattern can not go on */
        assert_int_equal(
            millrace_open_stream(rig.pool, &rig.streams[i].open, PATIENCE_MS, &opened, NULL, NULL),
            MILLRACE_OK);
        rig.streams[i].id = opened.stream;
    }
    rig.at_closed = use_the_other;
    ping(&rig);
    assert_true(rig.streams[0].lost);
    assert_non_null(strstr(rig.streams[0].end.text, "the chain of a pattern"));
    while (rig.busy == 0)
        turn(&rig);
    run_to_the_end(&rig);
    assert_false(rig.streams[1].lost);
    assert_int_equal(rig.streams[1].gaps, 1);
    rig_stop(&rig);
}

static void open_and_send(struct rig *rig)
{
    if (rig->pongs > 1)
        return;
    assert_int_equal(millrace_send_open(rig->pool, &rig->streams[2].open, NULL, NULL), MILLRACE_OK);
    assert_int_equal(millrace_data(rig->pool, rig->streams[1].id, rig->streams[1].plain[0], 16, NULL, NULL),
                     MILLRACE_OK);
}

/* OPEN, and a packet of a stream that ends in the same turn: it is no packet of the stream that is opened. */
static void test_a_packet_for_an_ended_stream(void **state)
{
    static const struct chaos_options options = {.idle_at_ping = true};
    static const enum kind kinds[2] = {CHAIN, CHAIN};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct test_random random = {1};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 1, 1, &pool);
    open_all(&rig, 2, kinds, &random);
    rig.streams = realloc(rig.streams, 3 * sizeof *rig.streams);
    stream_make(&rig.streams[2], CHAIN, &random);
    rig.count = 3;
    rig.at_pong = open_and_send;
    ping(&rig);
    while (rig.opened < 3)
        turn(&rig);
    assert_int_equal(rig.streams[1].end.reason, MILLRACE_CLOSE_IDLE);
    assert_int_equal(rig.streams[1].done, 0);
    ping(&rig);
    assert_int_equal(rig.streams[2].done, 0);
    while (!rig.streams[0].closed || !rig.streams[2].closed) {
        send_some(&rig, &rig.streams[0]);
        send_some(&rig, &rig.streams[2]);
        turn(&rig);
    }
    stream_check(&rig.streams[2]);
    assert_int_equal(rig.streams[2].done, PACKETS);
    rig_stop(&rig);
}

/* Servers are replaced by newer ones: those speak the version that the pool has with the first one, too. */
static void test_newer_node(void **state)
{
    static const struct chaos_options options = {.cut_after = 20};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 0, 1, &pool);
    millrace_disconnect(rig.pool);
    atomic_store(&rig.nodes[0].version, 3);
    char several[128];
    snprintf(several, sizeof several, "%s,unix:/none", rig.nodes[0].address);
    assert_int_equal(millrace_connect(several, NULL, PATIENCE_MS, &rig.pool, NULL), MILLRACE_OK);
    set_callbacks(&rig);
    open_one(&rig, CHAIN, 1);
    atomic_store(&rig.nodes[0].version, 4);
    atomic_store(&rig.nodes[0].faults_left, 1);
    run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].gaps, 1);
    rig_stop(&rig);
}

/* The only node is leaving, and stays after all: it is used again. */
static void test_a_node_that_stays(void **state)
{
    static const struct chaos_options options = {0};
    static const enum kind kinds[2] = {CHAIN, CHAIN};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct test_random random = {1};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 0, 1, &pool);
    atomic_store(&rig.nodes[0].leaves, true);
    do { /* without a stream its connection is ended, and made anew, later each time */
        turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    } while (node.losses < 2);
    atomic_store(&rig.nodes[0].leaves, false);
    open_all(&rig, 1, kinds, &random);
    atomic_store(&rig.nodes[0].leaves, true);
    do
        ping(&rig);
    while (millrace_pool_node(rig.pool, 0, &node, NULL) == MILLRACE_OK &&
           node.state != MILLRACE_NODE_LEAVING);
    atomic_store(&rig.nodes[0].leaves, false);
    rig.streams = realloc(rig.streams, 2 * sizeof *rig.streams);
    stream_make(&rig.streams[1], CHAIN, &random);
    rig.count = 2;
    assert_int_equal(millrace_send_open(rig.pool, &rig.streams[1].open, NULL, NULL), MILLRACE_OK);
    while (rig.opened < 2)
        turn(&rig);
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_UP);
    run_to_the_end(&rig);
    assert_int_equal(rig.streams[0].gaps + rig.streams[1].gaps, 0);
    rig_stop(&rig);
}

/* A node is leaving, and the other one does not take the stream: it stays, and is served, until the other one does. */
static void test_stays_without_room_elsewhere(void **state)
{
    static const struct chaos_options all[3][2] = {{{.refuse_percent = 100}, {.refuse_percent = 100}},
                                                   {{.takes_no_iv = true}, {.takes_no_iv = true}},
                                                   {{0}, {0}}};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct millrace_node node = {.size = sizeof node};
        struct rig rig;
        rig_start(&rig, all[i], 2, 0, 1, &pool);
        open_one(&rig, CHAIN, 1);
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
        const unsigned there = node.streams == 1 ? 0 : 1;
        atomic_store(&rig.nodes[0].faults_left, i == 0 ? 1000 : 0);
        atomic_store(&rig.nodes[1].faults_left, i == 0 ? 1000 : 0);
        atomic_store(&rig.nodes[there].leaves, true);
        while (!rig.streams[0].closed) {
            const bool asked = atomic_load(&rig.nodes[1 - there].opens) > 0;
            if (rig.streams[0].sent < PACKETS / 2 || (asked && rig.streams[0].gaps == (i == 2)))
                send_some(&rig, &rig.streams[0]);
            turn(&rig);
        }
        check_all(&rig);
        assert_false(rig.streams[0].lost);
        assert_int_equal(rig.streams[0].gaps, i == 2);
        while (atomic_load(&rig.nodes[there].closes) == 0) /* a node that was left may be slow to read that */
            poll(NULL, 0, 1);
        assert_int_equal(atomic_load(&rig.nodes[there].closes), 1);
        rig_stop(&rig);
    }
}

/* Packets that crossed a gap, or waited for them, say whether they were in time by the time at which they were given,
 * not by the next node's word; others have that. Notices go on meanwhile. */
static void test_in_time_across_a_gap(void **state)
{
    static const struct chaos_options options = {.cut_after = 40, .notices = true};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        struct rig rig;
        struct test_random random = {1};
        rig_start(&rig, &options, 1, 1, 1, &pool);
        rig.streams = calloc(1, sizeof *rig.streams);
        rig.count = 1;
        stream_make(&rig.streams[0], CHAIN, &random);
        rig.streams[0].open.latency_ns = late ? 1 : 100 * CORE_NS_PER_S;
        rig.streams[0].open.burst_packets = PACKETS; /* none is given ahead of its time */
        assert_int_equal(millrace_send_open(rig.pool, &rig.streams[0].open, NULL, NULL), MILLRACE_OK);
        while (rig.opened == 0)
            turn(&rig);
        while (rig.streams[0].done < PACKETS / 2) {
            send_some(&rig, &rig.streams[0]);
            turn(&rig);
        }
        while (rig.streams[0].done < rig.streams[0].sent) /* it catches up */
            turn(&rig);
        const unsigned crossed = rig.crossed;
        run_to_the_end(&rig);
        const struct millrace_closed *end = &rig.streams[0].end;
        assert_int_equal(rig.streams[0].gaps, 1);
        assert_true(crossed >= rig.streams[0].sent / 2 - 40 - AHEAD && rig.crossed == crossed);
        assert_int_equal(rig.crossed_met, late ? 0 : crossed);
        assert_int_equal(end->missed, late ? crossed : 0);
        assert_int_equal(end->met + end->missed, PACKETS);
        assert_true(late ? rig.late > 0 && rig.late <= crossed : rig.late == 0);
        assert_in_range(rig.notices, PACKETS - 2, PACKETS + AHEAD);
        rig_stop(&rig);
    }
}

/* A stream has gone on elsewhere, and the node that it has left answers what it had: that is for nobody. */
static void test_results_of_a_node_that_was_left(void **state)
{
    static const struct chaos_options options[2] = {{0}, {0}};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct rig rig;
    (void)state;
    rig_start(&rig, options, 2, 0, 1, &pool);
    open_one(&rig, CHAIN, 1);
    struct stream *stream = &rig.streams[0];
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    const unsigned there = node.streams == 1 ? 0 : 1;
    atomic_store(&rig.nodes[there].holds, true);
    send_some(&rig, stream);
    atomic_store(&rig.nodes[there].leaves, true);
    while (atomic_load(&rig.nodes[there].closes) == 0)
        turn(&rig);
    do { /* what it says is read, and then its connection is ended */
        turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, there, &node, NULL), MILLRACE_OK);
    } while (node.losses == 0);
    assert_int_equal(millrace_send_close(rig.pool, stream->id, NULL), MILLRACE_OK);
    while (!stream->closed)
        turn(&rig);
    assert_int_equal(stream->gaps, 1);
    assert_int_equal(stream->done, AHEAD);
    assert_int_equal(stream->end.packets, AHEAD);
    stream_check(stream);
    rig_stop(&rig);
}

/* A node that takes shorter packets than the first one could not have all its streams. */
static void test_node_of_shorter_packets(void **state)
{
    static const struct chaos_options options[2] = {{0}, {.packet_bytes_max = 1000}};
    struct millrace_pool pool = {.size = sizeof pool};
    struct millrace_node node = {.size = sizeof node};
    struct chaos_node nodes[2];
    struct rig rig = {0};
    char both[256];
    (void)state;
    for (unsigned i = 0; i < 2; i++)
        chaos_node_start(&nodes[i], &options[i], 0, 1);
    snprintf(both, sizeof both, "%s,%s", nodes[0].address, nodes[1].address);
    pool.addresses = both;
    atomic_store(&nodes[1].hangs_up, true);
    assert_int_equal(millrace_pool_connect(&pool, NULL, PATIENCE_MS, &rig.pool, NULL), MILLRACE_OK);
    atomic_store(&nodes[1].hangs_up, false);
    do {
        turn(&rig);
        assert_int_equal(millrace_pool_node(rig.pool, 1, &node, NULL), MILLRACE_OK);
        assert_int_equal(node.state, MILLRACE_NODE_DOWN);
    } while (strstr(node.text, "it takes packets of 1000 bytes at most") == NULL);
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_UP);
    millrace_disconnect(rig.pool);
    for (unsigned i = 0; i < 2; i++)
        chaos_node_stop(&nodes[i]);
}

/* While another node ponders whether it takes a stream, the one that is leaving serves it, and what the other one was
 * told stays true. */
static void test_served_while_another_one_ponders(void **state)
{
    static const struct chaos_options options[2] = {{0}, {0}};
    static const enum kind kinds[2] = {CHAIN, COUNTER};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct millrace_node node = {.size = sizeof node};
        struct rig rig;
        rig_start(&rig, options, 2, 0, 1, &pool);
        open_one(&rig, kinds[i], 1);
        struct stream *stream = &rig.streams[0];
        assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
        const unsigned there = node.streams == 1 ? 0 : 1;
        atomic_store(&rig.nodes[1 - there].ponders, true);
        atomic_store(&rig.nodes[there].leaves, true);
        while (atomic_load(&rig.nodes[1 - there].opens) == 0)
            turn(&rig);
        while (stream->done < PACKETS / 2) {
            send_some(&rig, stream);
            turn(&rig);
        }
        atomic_store(&rig.nodes[1 - there].ponders, false);
        while (stream->gaps == 0)
            turn(&rig);
        run_to_the_end(&rig);
        rig_stop(&rig);
    }
}

/* What a node says in place of an answer breaks the protocol: it is lost, and others are asked. */
static void test_an_answer_that_breaks_the_protocol(void **state)
{
    static const struct chaos_options options = {.opens_nothing = true};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 1, 1, &pool);
    open_one(&rig, CHAIN, 1);
    send_some(&rig, &rig.streams[0]);
    ping(&rig);
    atomic_store(&rig.nodes[0].faults_left, 2); /* one for the cut, one for the answer behind it */
    rig.nodes[0].options.cut_at_ping = true;
    ping(&rig);
    run_to_the_end(&rig);
    assert_false(rig.streams[0].lost);
    assert_int_equal(rig.streams[0].gaps, 1);
    assert_true(atomic_load(&rig.nodes[0].faults_left) <= 0);
    rig_stop(&rig);
}

/* Who was asked is gone without an answer, and nobody else is to be asked: that is a refusal as others are. */
static void test_gone_without_an_answer(void **state)
{
    static const struct chaos_options options[2] = {{.opens_nothing = true}, {.opens_nothing = true}};
    const struct millrace_pool pool = {.attempts = 1, .patience_ms = PATIENCE_MS};
    struct test_random random = {1};
    struct stream stream;
    struct rig rig;
    (void)state;
    rig_start(&rig, options, 2, 1, 1, &pool);
    stream_make(&stream, CHAIN, &random);
    assert_int_equal(millrace_send_open(rig.pool, &stream.open, NULL, NULL), MILLRACE_OK);
    while (rig.refused == 0)
        turn(&rig);
    assert_int_equal(rig.asked, 1);
    assert_non_null(strstr(rig.refusal, "no node has answered: unix:"));
    rig_stop(&rig);
}

/* The next node stops between OPENED and the answer to the second key: the stream goes on at the one behind it. */
static void test_stopping_before_the_second_key(void **state)
{
    static const struct chaos_options options = {.cut_after = 40};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 0, 1, &pool);
    open_one(&rig, COUNTER, 1);
    assert_int_equal(rekey(&rig, &rig.streams[0], rig.streams[0].open.first_unit + 30), MILLRACE_OK);
    while (rig.rekeyed == 0)
        turn(&rig);
    rig.nodes[0].options.drains_at_rekey = true;
    atomic_store(&rig.nodes[0].faults_left, 2);
    run_to_the_end(&rig);
    assert_true(atomic_load(&rig.nodes[0].faults_left) <= 0);
    assert_false(rig.streams[0].lost);
    rig_stop(&rig);
}

/* A stream waits for the node behind one that is leaving, and is served, when its node is lost in a message that can
 * not begin anew: it could be moved when that was asked for, and now it can not. */
static void test_lost_while_it_waits_to_move(void **state)
{
    static const struct chaos_options options[2] = {{.opens_nothing = true, .cut_at_ping = true},
                                                    {.opens_nothing = true, .cut_at_ping = true}};
    const struct millrace_pool pool = {.kept_bytes_max = 4000, .patience_ms = PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct rig rig;
    (void)state;
    rig_start(&rig, options, 2, 0, 1, &pool);
    open_one(&rig, COUNTER, 1);
    struct stream *stream = &rig.streams[0];
    assert_int_equal(millrace_pool_node(rig.pool, 0, &node, NULL), MILLRACE_OK);
    struct chaos_node *here = &rig.nodes[node.streams == 1 ? 0 : 1],
                      *next = &rig.nodes[node.streams == 1 ? 1 : 0];
    atomic_store(&next->ponders, true);
    atomic_store(&here->leaves, true);
    while (atomic_load(&next->opens) == 0)
        turn(&rig);
    atomic_store(&next->hangs_up, true);
    atomic_store(&next->faults_left, 1);
    atomic_store(&next->ponders, false);
    do
        turn(&rig);
    while (millrace_pool_node(rig.pool, (unsigned)(next - rig.nodes), &node, NULL) == MILLRACE_OK &&
           node.losses == 0);
    for (uint32_t i = 0; i < PACKETS; i++) {
        stream->flags[i] = i == 0 ? MILLRACE_DATA_FIRST : 0;
        stream->lengths[i] = PACKET_MAX;
    }
    while (stream->done < PACKETS / 2) {
        while (stream->sent < PACKETS / 2 && stream->sent < stream->done + 4) {
            assert_int_equal(millrace_data_part(rig.pool, stream->id, stream->plain[stream->sent], PACKET_MAX,
                                                stream->flags[stream->sent], NULL, NULL),
                             MILLRACE_OK);
            stream->sent++;
        }
        turn(&rig);
    }
    atomic_store(&here->faults_left, 1);
    assert_int_equal(millrace_send_ping(rig.pool, NULL, 0, NULL, NULL), MILLRACE_OK);
    atomic_store(&next->hangs_up, false);
    while (!stream->closed && stream->gaps == 0)
        turn(&rig);
    assert_true(stream->lost);
    assert_non_null(strstr(stream->end.text, "its message is longer than what is kept"));
    stream_check(stream);
    rig_stop(&rig);
}

/* Closed while it has no node, with nothing to come: that is the end, and nobody is asked or waited for. */
static void test_closed_without_a_node(void **state)
{
    static const struct chaos_options options = {.cut_at_ping = true};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct millrace_node node = {.size = sizeof node};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 1, 1, &pool);
    open_one(&rig, CHAIN, 1);
    struct stream *stream = &rig.streams[0];
    send_some(&rig, stream);
    while (stream->done < stream->sent)
        turn(&rig);
    atomic_store(&rig.nodes[0].hangs_up, true);
    assert_int_equal(millrace_send_ping(rig.pool, NULL, 0, NULL, NULL), MILLRACE_OK);
    do
        turn(&rig);
    while (millrace_pool_node(rig.pool, 0, &node, NULL) == MILLRACE_OK && node.losses == 0);
    assert_int_equal(millrace_send_close(rig.pool, stream->id, NULL), MILLRACE_OK);
    while (!stream->closed)
        turn(&rig);
    assert_int_equal(stream->end.reason, MILLRACE_CLOSE_ASKED);
    assert_int_equal(stream->end.packets, AHEAD);
    rig_stop(&rig);
}

/* A call that waits for room finds what has come while nobody read: nothing more is to come. */
static void test_room_that_is_there(void **state)
{
    static const struct chaos_options options = {0};
    const struct millrace_pool pool = {.kept_bytes_max = 4000};
    struct millrace_result result = {.size = sizeof result};
    struct rig rig;
    uint8_t cipher[PACKET_MAX + 16];
    uint32_t bytes;
    (void)state;
    rig_start(&rig, &options, 1, 0, 1, &pool);
    open_one(&rig, CHAIN, 1);
    struct stream *stream = &rig.streams[0];
    while (millrace_data(rig.pool, stream->id, stream->plain[stream->sent],
                         stream->lengths[stream->sent] = PACKET_MAX, NULL, NULL) == MILLRACE_OK)
        stream->sent++;
    assert_int_equal(millrace_flush(rig.pool, NULL), MILLRACE_OK);
    poll(NULL, 0,
         300); /* if that is too short for the node, there is nothing to find, and the test says nothing */
    assert_int_equal(millrace_encrypt(rig.pool, stream->id, stream->plain[stream->sent], PACKET_MAX, 1000,
                                      cipher, &bytes, &result, NULL),
                     MILLRACE_OK);
    assert_int_equal(stream->done, stream->sent);
    rig_stop(&rig);
}

/* A child that has the descriptors keeps the kernel from forgetting those of a lost node: they are not watched. */
static void test_lost_with_a_child(void **state)
{
    static const struct chaos_options options = {.cut_at_ping = true};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 1, 1, &pool);
    open_one(&rig, CHAIN, 1);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            pause();
    ping(&rig);
    int rounds = 0, ready;
    do {
        struct pollfd quiet = {.fd = millrace_descriptor(rig.pool), .events = millrace_events(rig.pool)};
        ready = poll(&quiet, 1, 20);
        assert_int_equal(millrace_process(rig.pool, 0, NULL), MILLRACE_OK);
    } while (ready > 0 && ++rounds < 1000);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ready, 0);
    rig_stop(&rig);
}

/* ---- want of memory ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);

static _Thread_local int fails_in; /* the allocation of this thread that fails, counted from 1; 0: none */

static bool fails(void)
{
    return fails_in > 0 && --fails_in == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *block, size_t bytes)
{
    return fails() ? NULL : __real_realloc(block, bytes);
}

/* Any one allocation fails, in calls or in turns, while a stream is opened, changed, and loses its node: a call says
 * so, and is called again; the stream goes on. */
static bool run_without(int allocation)
{
    static const struct chaos_options options[2] = {{.cut_after = 30}, {.cut_after = 30}};
    const struct millrace_pool pool = {.patience_ms = PATIENCE_MS};
    struct test_random random = {1};
    struct rig rig;
    millrace_status status;
    rig_start(&rig, options, 2, 2, 1, &pool);
    rig.streams = calloc(1, sizeof *rig.streams);
    rig.count = 1;
    struct stream *stream = &rig.streams[0];
    stream_make(stream, COUNTER, &random);
    fails_in = allocation;
    do
        status = millrace_send_open(rig.pool, &stream->open, NULL, NULL);
    while (status == MILLRACE_NO_MEMORY);
    assert_int_equal(status, MILLRACE_OK);
    while (rig.opened == 0)
        turn(&rig);
    do
        status = rekey(&rig, stream, stream->open.first_unit + 20);
    while (status == MILLRACE_NO_MEMORY);
    assert_int_equal(status, MILLRACE_OK);
    while (rig.rekeyed + rig.busy == 0)
        turn(&rig);
    while (!stream->closed) {
        for (unsigned i = 0; i < AHEAD && stream->sent < PACKETS; i++) {
            const uint32_t n = stream->sent;
            status = millrace_data_part(rig.pool, stream->id, stream->plain[n], stream->lengths[n],
                                        stream->flags[n], NULL, NULL);
            if (status == MILLRACE_OK)
                stream->sent++;
            else
                assert_int_equal(status, MILLRACE_NO_MEMORY);
            if (stream->sent == PACKETS)
                assert_int_equal(millrace_send_close(rig.pool, stream->id, NULL), MILLRACE_OK);
        }
        turn(&rig);
    }
    const bool has_failed = fails_in == 0;
    fails_in = 0;
    check_all(&rig);
    if (stream->lost)
        fail_msg("without allocation %d: %s", allocation, stream->end.text);
    rig_stop(&rig);
    return has_failed;
}

static void test_without_memory(void **state)
{
    int allocation = 1;
    (void)state;
    while (run_without(allocation))
        allocation++;
    print_message("%d allocations\n", allocation - 1);
    assert_true(allocation > 10);
}

/* What other streams have buffered is not what this one keeps. */
static void test_full_by_its_own_bytes(void **state)
{
    static const struct chaos_options options = {0};
    static const enum kind kinds[2] = {CHAIN, CHAIN};
    const struct millrace_pool pool = {.kept_bytes_max = 10000};
    struct test_random random = {1};
    struct rig rig;
    (void)state;
    rig_start(&rig, &options, 1, 0, 1, &pool);
    open_all(&rig, 2, kinds, &random);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned n = 0; n < 20; n++, rig.streams[i].sent++)
            assert_int_equal(millrace_data(rig.pool, rig.streams[i].id, rig.streams[i].plain[n],
                                           rig.streams[i].lengths[n] = PACKET_MAX, NULL, NULL),
                             MILLRACE_OK);
    run_to_the_end(&rig);
    rig_stop(&rig);
}

/* A PING that no node answers is refused: where none is there, and where the one that is says nothing. */
static void test_ping_without_an_answer(void **state)
{
    static const struct chaos_options options[2] = {{0}, {.stuck_at_ping = true}};
    const struct millrace_pool pool = {.patience_ms = 300};
    struct millrace_node node = {.size = sizeof node};
    char error[MILLRACE_TEXT_BYTES];
    int64_t round_trip_ns;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct rig rig;
        rig_start(&rig, &options[i], 1, 1, 1, &pool);
        atomic_store(&rig.nodes[0].hangs_up, true);
        if (i == 0) {
            atomic_store(&rig.nodes[0].leaves, true); /* and so its connection is ended */
            do
                turn(&rig);
            while (millrace_pool_node(rig.pool, 0, &node, NULL) == MILLRACE_OK &&
                   node.state != MILLRACE_NODE_DOWN);
        }
        assert_int_equal(millrace_send_ping(rig.pool, NULL, 0, NULL, NULL), MILLRACE_OK);
        while (rig.refused == 0)
            turn(&rig);
        assert_non_null(strstr(rig.refusal, "no node can be reached: unix:"));
        assert_int_equal(millrace_ping(rig.pool, PATIENCE_MS, &round_trip_ns, error), MILLRACE_REFUSED);
        assert_non_null(strstr(error, "no node can be reached: unix:"));
        rig_stop(&rig);
    }
}

static void on_alarm(int number)
{
    (void)number;
}

/* Signals do not end the wait for the first node. */
static void test_signals_while_connecting(void **state)
{
    const struct sigaction act = {.sa_handler = on_alarm}; /* without SA_RESTART */
    const struct itimerval often = {{0, 5000}, {0, 5000}}, never = {0};
    struct sigaction before;
    struct core_address address;
    struct millrace_pool pool = {.size = sizeof pool};
    struct millrace *connection;
    char text[64], error[MILLRACE_TEXT_BYTES];
    int listener;
    (void)state;
    snprintf(text, sizeof text, "unix:@millrace-silent-%d", (int)getpid());
    pool.addresses = text;
    assert_int_equal(core_address_parse(text, &address, NULL), CORE_OK);
    assert_int_equal(core_address_listen(&address, 0, &listener, NULL, NULL), CORE_OK);
    assert_int_equal(sigaction(SIGALRM, &act, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(millrace_pool_connect(&pool, NULL, 200, &connection, error), MILLRACE_TIMEOUT);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_string_equal(error, "no node of the pool answered in time");
    close(listener);
}

/* ---- a name that is looked up for long ---- */

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found);
int __real_timerfd_settime(int timer, int flags, const struct itimerspec *when, struct itimerspec *before);
int __wrap_timerfd_settime(int timer, int flags, const struct itimerspec *when, struct itimerspec *before);

static atomic_uint turns; /* of all pools: each sets its timer */

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    if (host == NULL || strcmp(host, "slow.test") != 0)
        return __real_getaddrinfo(host, port, hints, found);
    poll(NULL, 0, 1500); /* longer than an attempt may take */
    return EAI_FAIL;
}

int __wrap_timerfd_settime(int timer, int flags, const struct itimerspec *when, struct itimerspec *before)
{
    atomic_fetch_add(&turns, 1);
    return __real_timerfd_settime(timer, flags, when, before);
}

/* The time for the first attempts is over, and one of them is not: that is waited for, and nothing is done meanwhile. */
static void test_slow_name(void **state)
{
    const struct millrace_pool pool = {.size = sizeof pool, .addresses = "tcp:slow.test:1,unix:/none"};
    struct millrace *connection;
    (void)state;
    const unsigned before = atomic_load(&turns);
    assert_int_not_equal(millrace_pool_connect(&pool, NULL, PATIENCE_MS, &connection, NULL), MILLRACE_OK);
    assert_in_range(atomic_load(&turns) - before, 1, 20);
}

/* A path may have commas; a server inside the process is no node. */
static void test_addresses(void **state)
{
    struct millrace *pool;
    char error[MILLRACE_TEXT_BYTES];
    const struct millrace_pool embedded = {.size = sizeof embedded,
                                           .addresses = "unix:/none,embedded:/a.yaml"};
    const struct millrace_pool comma = {.size = sizeof comma, .addresses = "unix:/none/a,b,unix:/none/c"};
    (void)state;
    assert_int_equal(millrace_pool_connect(&embedded, NULL, 1000, &pool, error), MILLRACE_UNSUPPORTED);
    assert_non_null(
        strstr(error, "embedded:/a.yaml: the server inside this process can not be a node of a pool"));
    assert_int_not_equal(millrace_pool_connect(&comma, NULL, 1000, &pool, error), MILLRACE_OK);
    assert_non_null(strstr(error, "unix:/none/a,b"));
    assert_int_not_equal(millrace_connect("embedded:/none/a,unix:b", NULL, 1000, &pool, error), MILLRACE_OK);
    assert_null(strstr(error, "pool"));
}

static void test_arguments(void **state)
{
    static const struct millrace_pool bad[] = {
        {.size = sizeof bad[0]},
        {.size = 1, .addresses = "unix:/none"},
        {.size = sizeof bad[0], .addresses = "unix:/none", .connections = 65},
        {.size = sizeof bad[0], .addresses = ","},
        {.size = sizeof bad[0], .addresses = "unix:/none", .kept_bytes_max = 5u << 20},
        {.size = sizeof bad[0], .addresses = "unix:/none,tcp:nonsense", .connections = 33}};
    const struct millrace_pool gone = {.size = sizeof gone, .addresses = "unix:/none/1,unix:/none/2"};
    struct millrace_node node = {.size = sizeof node};
    struct millrace *pool;
    struct chaos_node plain;
    char error[MILLRACE_TEXT_BYTES], several[256];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(millrace_pool_connect(&bad[i], NULL, 1000, &pool, error), MILLRACE_INVALID);
    assert_int_not_equal(millrace_pool_connect(&gone, NULL, 1000, &pool, error), MILLRACE_OK);
    assert_non_null(strstr(error, "unix:/none/1"));
    chaos_node_start(&plain, &(struct chaos_options){0}, 0, 1);
    assert_int_equal(millrace_connect(plain.address, NULL, PATIENCE_MS, &pool, NULL), MILLRACE_OK);
    assert_int_equal(millrace_pool_node(pool, 0, &node, NULL), MILLRACE_NOT_FOUND);
    millrace_disconnect(pool);
    snprintf(several, sizeof several, "%s,unix:/none/2", plain.address);
    assert_int_equal(millrace_connect(several, NULL, PATIENCE_MS, &pool, NULL), MILLRACE_OK);
    assert_int_equal(millrace_pool_node(pool, 0, &node, NULL), MILLRACE_OK);
    assert_int_equal(node.state, MILLRACE_NODE_UP);
    millrace_disconnect(pool);
    chaos_node_stop(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_refused_everywhere),
        cmocka_unit_test(test_one_has_room),
        cmocka_unit_test(test_key_without_client_iv),
        cmocka_unit_test(test_message_too_long),
        cmocka_unit_test(test_kept_is_bounded),
        cmocka_unit_test(test_refused_for_a_while),
        cmocka_unit_test(test_silent_node),
        cmocka_unit_test(test_flapping_node),
        cmocka_unit_test(test_nobody_comes_back),
        cmocka_unit_test(test_ended_during_a_change),
        cmocka_unit_test(test_second_key_refused),
        cmocka_unit_test(test_used_while_a_node_is_lost),
        cmocka_unit_test(test_a_packet_for_an_ended_stream),
        cmocka_unit_test(test_newer_node),
        cmocka_unit_test(test_a_node_that_stays),
        cmocka_unit_test(test_stays_without_room_elsewhere),
        cmocka_unit_test(test_in_time_across_a_gap),
        cmocka_unit_test(test_results_of_a_node_that_was_left),
        cmocka_unit_test(test_node_of_shorter_packets),
        cmocka_unit_test(test_served_while_another_one_ponders),
        cmocka_unit_test(test_an_answer_that_breaks_the_protocol),
        cmocka_unit_test(test_gone_without_an_answer),
        cmocka_unit_test(test_stopping_before_the_second_key),
        cmocka_unit_test(test_lost_while_it_waits_to_move),
        cmocka_unit_test(test_closed_without_a_node),
        cmocka_unit_test(test_room_that_is_there),
        cmocka_unit_test(test_lost_with_a_child),
        cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_full_by_its_own_bytes),
        cmocka_unit_test(test_ping_without_an_answer),
        cmocka_unit_test(test_signals_while_connecting),
        cmocka_unit_test(test_slow_name),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
