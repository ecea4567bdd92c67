#include "tests/support/pool_rig.h"

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

#include "core/time.h"

const uint8_t pool_rig_keys[2][16] = {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 8, 7, 6, 5, 4, 3, 2, 1}};
static const uint8_t constant_iv[16] = {0xA0, 0xB1, 0xC2};

bool pool_stream_has_messages(const struct pool_stream *stream)
{
    return stream->kind >= POOL_COUNTER;
}

void pool_stream_make(struct pool_stream *stream, enum pool_stream_kind kind, struct test_random *random)
{
    memset(stream, 0, sizeof *stream);
    stream->kind = kind;
    stream->second_key = UINT64_MAX;
    stream->open = (struct millrace_open){.size = sizeof stream->open,
                                          .packet_bytes = POOL_RIG_PACKET_MAX,
                                          .burst_packets = 4,
                                          .interval_ns = CORE_NS_PER_MS,
                                          .latency_ns = 10 * CORE_NS_PER_S,
                                          .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                          .key_kind = MILLRACE_KEY_INLINE,
                                          .key = pool_rig_keys[0],
                                          .key_bytes = 16};
    if (pool_stream_has_messages(stream)) {
        stream->open.unit = MILLRACE_UNIT_MESSAGE;
        stream->open.padding = MILLRACE_PADDING_PKCS7;
        stream->open.iv_source = kind == POOL_COUNTER    ? MILLRACE_IV_COUNTER
                                 : kind == POOL_CONSTANT ? MILLRACE_IV_CONSTANT
                                                         : MILLRACE_IV_CHAIN;
        stream->open.first_unit = kind == POOL_COUNTER ? 1000 : 0;
        stream->open.has_iv = kind != POOL_COUNTER;
        memcpy(stream->open.iv, constant_iv, sizeof constant_iv);
    }
    if (kind == POOL_PADDED)
        stream->open.padding = MILLRACE_PADDING_PKCS7;
    if (kind == POOL_DECRYPTING) {
        stream->open.direction = MILLRACE_DIRECTION_DECRYPT;
        stream->open.has_iv = true;
    }
    bool begins = true;
    for (uint32_t i = 0; i < POOL_RIG_PACKETS; i++) {
        const bool ends = i + 1 == POOL_RIG_PACKETS || test_random_chance(random, 40);
        const bool free_length = kind == POOL_PADDED || (pool_stream_has_messages(stream) && ends);
        stream->lengths[i] = (uint32_t)test_random_in(random, 1, POOL_RIG_PACKET_MAX / 16) * 16;
        if (free_length)
            stream->lengths[i] -= (uint32_t)test_random_in(random, 0, 15);
        stream->flags[i] = !pool_stream_has_messages(stream)
                               ? 0
                               : (begins ? MILLRACE_DATA_FIRST : 0) | (ends ? MILLRACE_DATA_LAST : 0);
        begins = ends;
        for (uint32_t byte = 0; byte < stream->lengths[i]; byte++)
            stream->plain[i][byte] = (uint8_t)test_random_next(random);
    }
}

void pool_stream_check(const struct pool_stream *stream)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-128-CBC", NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    const int encrypts = stream->kind != POOL_DECRYPTING;
    uint64_t message = stream->open.first_unit;
    uint8_t chain[16];
    memcpy(chain, stream->iv, 16);
    for (uint32_t i = 0; i < stream->done; i++) {
        uint8_t plain[POOL_RIG_PACKET_MAX + 16], expected[POOL_RIG_PACKET_MAX + 32], iv[16] = {0};
        uint32_t bytes = stream->lengths[i];
        int count = 0;
        memcpy(plain, stream->plain[i], bytes);
        if (stream->kind == POOL_PADDED || (stream->flags[i] & MILLRACE_DATA_LAST)) {
            memset(plain + bytes, (int)(16 - bytes % 16), 16 - bytes % 16);
            bytes += 16 - bytes % 16;
        }
        if (stream->kind == POOL_COUNTER && (stream->flags[i] & MILLRACE_DATA_FIRST)) {
            for (int byte = 0; byte < 8; byte++)
                iv[15 - byte] = (uint8_t)(message >> 8 * byte);
            memcpy(chain, iv, 16);
        }
        if (stream->kind == POOL_CONSTANT && (stream->flags[i] & MILLRACE_DATA_FIRST))
            memcpy(chain, constant_iv, 16);
        EVP_CipherInit_ex2(context, cipher, pool_rig_keys[message >= stream->second_key], chain, encrypts,
                           NULL);
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

static struct pool_stream *find(struct pool_rig *rig, uint32_t id)
{
    for (unsigned i = 0; i < rig->count; i++)
        if (rig->streams[i].id == id && !rig->streams[i].closed)
            return &rig->streams[i];
    fail_msg("stream %u is none", id);
    return NULL;
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct pool_rig *rig = argument;
    (void)request;
    rig->asked = opened->asked > rig->asked ? opened->asked : rig->asked;
    for (unsigned i = 0; i < rig->count; i++) /* requests are answered one by one, see pool_rig_open */
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
    struct pool_rig *rig = argument;
    (void)request;
    rig->refused += refused->code != MILLRACE_REFUSED_BUSY && refused->code != MILLRACE_REFUSED_STREAM;
    rig->gone += refused->code == MILLRACE_REFUSED_STREAM;
    rig->busy += refused->code == MILLRACE_REFUSED_BUSY;
    rig->asked = refused->asked;
    memcpy(rig->refusal, refused->text, sizeof rig->refusal);
    if (refused->code == MILLRACE_REFUSED_BUSY && rig->at_busy != NULL)
        rig->at_busy(rig);
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct pool_stream *stream = find(argument, result->stream);
    assert_int_equal(result->status, MILLRACE_RESULT_OK);
    assert_int_equal(result->sequence, stream->done);
    assert_in_range(stream->done, 0, stream->sent - 1);
    const bool crossed = (result->flags & MILLRACE_RESULT_FAULT) != 0;
    ((struct pool_rig *)argument)->crossed += crossed;
    ((struct pool_rig *)argument)->crossed_met += crossed && (result->flags & MILLRACE_RESULT_MET);
    stream->bytes[stream->done] = result->bytes;
    memcpy(stream->cipher[stream->done], result->ciphertext, result->bytes);
    stream->done++;
}

static void on_closed(void *argument, uint32_t id, const struct millrace_closed *closed)
{
    struct pool_stream *stream = find(argument, id);
    stream->end = *closed;
    stream->closed = true;
    stream->lost = closed->reason == MILLRACE_CLOSE_LOST;
    if (((struct pool_rig *)argument)->at_closed != NULL)
        ((struct pool_rig *)argument)->at_closed(argument);
}

static void on_pong(void *argument, uint32_t request, const uint8_t *payload, uint32_t bytes)
{
    struct pool_rig *rig = argument;
    (void)request, (void)payload, (void)bytes;
    rig->pongs++;
    if (rig->at_pong != NULL)
        rig->at_pong(rig);
}

static void on_resumed(void *argument, uint32_t id, const struct millrace_resumed *resumed)
{
    struct pool_rig *rig = argument;
    assert_true(resumed->gap_ns >= 0);
    find(rig, id)->gaps++;
    rig->late += (unsigned)resumed->late;
}

static void on_notice(void *argument, uint32_t id, const struct millrace_notice *notice)
{
    struct pool_rig *rig = argument;
    if (notice->kind == MILLRACE_NOTICE_RESTORED)
        assert_true(find(rig, id)->sent > 0);
    rig->notices += notice->kind == MILLRACE_NOTICE_RESTORED;
}

static void on_modified(void *argument, uint32_t request, const struct millrace_modified *modified)
{
    struct pool_rig *rig = argument;
    (void)request;
    assert_in_range(modified->first, 0, find(rig, modified->stream)->sent);
    rig->modified++;
}

static void on_rekeyed(void *argument, uint32_t request, const struct millrace_rekeyed *rekeyed)
{
    struct pool_rig *rig = argument;
    (void)request;
    find(rig, rekeyed->stream)->second_key = rekeyed->first;
    rig->rekeyed++;
}

/* ---- the rig ---- */

void pool_rig_listen(struct pool_rig *rig)
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

void pool_rig_start(struct pool_rig *rig, const struct chaos_options *options, unsigned nodes, int faults,
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
    while (millrace_pool_connect(&own, NULL, POOL_RIG_PATIENCE_MS, &rig->pool, error) != MILLRACE_OK)
        assert_true(options[0].hang_up_percent > 0);
    pool_rig_listen(rig);
}

void pool_rig_stop(struct pool_rig *rig)
{
    millrace_disconnect(rig->pool);
    for (unsigned i = 0; i < rig->node_count; i++)
        chaos_node_stop(&rig->nodes[i]);
    free(rig->streams);
}

void pool_rig_turn(struct pool_rig *rig)
{
    char error[MILLRACE_TEXT_BYTES];
    struct pollfd ready = {.fd = millrace_descriptor(rig->pool), .events = millrace_events(rig->pool)};
    assert_true(poll(&ready, 1, POOL_RIG_PATIENCE_MS) > 0);
    if (millrace_process(rig->pool, 0, error) != MILLRACE_OK)
        fail_msg("%s", error);
}

void pool_rig_open(struct pool_rig *rig, unsigned count, const enum pool_stream_kind *kinds,
                   struct test_random *random)
{
    rig->streams = calloc(count, sizeof *rig->streams);
    for (unsigned i = 0; i < count; i++) {
        pool_stream_make(&rig->streams[i], kinds[i], random);
        rig->count = i + 1;
        do {
            const unsigned refused = rig->refused, opened = rig->opened;
            assert_int_equal(millrace_send_open(rig->pool, &rig->streams[i].open, NULL, NULL), MILLRACE_OK);
            while (rig->refused == refused && rig->opened == opened)
                pool_rig_turn(rig);
        } while (rig->streams[i].id == 0); /* all nodes said no: a test asks again */
    }
}

void pool_rig_send(struct pool_rig *rig, struct pool_stream *stream)
{
    while (!stream->closed && stream->sent < POOL_RIG_PACKETS &&
           stream->sent < stream->done + POOL_RIG_AHEAD) {
        const uint32_t i = stream->sent;
        uint32_t sequence = 0;
        assert_int_equal(millrace_data_part(rig->pool, stream->id, stream->plain[i], stream->lengths[i],
                                            stream->flags[i], &sequence, NULL),
                         MILLRACE_OK);
        assert_int_equal(sequence, i);
        stream->sent++;
        stream->message += (stream->flags[i] & MILLRACE_DATA_LAST) != 0;
        if (stream->sent == POOL_RIG_PACKETS)
            assert_int_equal(millrace_send_close(rig->pool, stream->id, NULL), MILLRACE_OK);
    }
}

bool pool_rig_all_closed(const struct pool_rig *rig)
{
    for (unsigned i = 0; i < rig->count; i++)
        if (!rig->streams[i].closed)
            return false;
    return true;
}

void pool_rig_check(const struct pool_rig *rig)
{
    for (unsigned i = 0; i < rig->count; i++) {
        const struct pool_stream *stream = &rig->streams[i];
        uint64_t bytes = 0;
        pool_stream_check(stream);
        if (stream->lost)
            continue;
        for (uint32_t n = 0; n < POOL_RIG_PACKETS; n++)
            bytes += stream->bytes[n];
        assert_int_equal(stream->done, POOL_RIG_PACKETS);
        assert_int_equal(stream->end.reason, MILLRACE_CLOSE_ASKED);
        assert_int_equal(stream->end.packets, POOL_RIG_PACKETS);
        assert_int_equal(stream->end.bytes, bytes);
        assert_int_equal(stream->end.met + stream->end.missed, POOL_RIG_PACKETS);
    }
}

void pool_rig_open_one(struct pool_rig *rig, enum pool_stream_kind kind, uint64_t seed)
{
    struct test_random random = {seed};
    pool_rig_open(rig, 1, &kind, &random);
}

void pool_rig_run_to_the_end(struct pool_rig *rig)
{
    while (!pool_rig_all_closed(rig)) {
        for (unsigned i = 0; i < rig->count; i++)
            pool_rig_send(rig, &rig->streams[i]);
        pool_rig_turn(rig);
    }
    pool_rig_check(rig);
}

void pool_rig_ping(struct pool_rig *rig)
{
    const unsigned pongs = rig->pongs;
    assert_int_equal(millrace_send_ping(rig->pool, NULL, 0, NULL, NULL), MILLRACE_OK);
    while (rig->pongs == pongs)
        pool_rig_turn(rig);
}

millrace_status pool_rig_modify(struct pool_rig *rig, const struct pool_stream *stream)
{
    const struct millrace_modify change = {.size = sizeof change,
                                           .stream = stream->id,
                                           .burst_packets = 2,
                                           .interval_ns = CORE_NS_PER_MS,
                                           .latency_ns = 10 * CORE_NS_PER_S};
    return millrace_send_modify(rig->pool, &change, NULL, NULL);
}

millrace_status pool_rig_rekey(struct pool_rig *rig, const struct pool_stream *stream, uint64_t first)
{
    const struct millrace_rekey change = {.size = sizeof change,
                                          .stream = stream->id,
                                          .key_kind = MILLRACE_KEY_INLINE,
                                          .key = pool_rig_keys[1],
                                          .key_bytes = 16,
                                          .first = first};
    return millrace_send_rekey(rig->pool, &change, NULL, NULL);
}
