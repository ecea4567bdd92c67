/* The parts of a replay one by one: schedule, map, payloads, checking, processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "inputgen/random.h"
#include "inputgen/replay_check.h"
#include "inputgen/replay_live.h"
#include "inputgen/replay_map.h"
#include "inputgen/replay_process.h"
#include "inputgen/replay_schedule.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- schedule ---- */

static void schedule_gives_the_earliest_first(void **state)
{
    enum { ITEMS = 1000, MOVES = 20000 };
    static core_ns times_ns[ITEMS];
    struct inputgen_schedule schedule;
    struct inputgen_random random;
    (void)state;
    inputgen_random_seed(&random, 3);
    assert_int_equal(inputgen_schedule_init(&schedule, ITEMS), CORE_OK);
    assert_true(inputgen_schedule_next_ns(&schedule) == CORE_NS_NEVER);
    for (size_t at = 0; at < ITEMS; at++) {
        times_ns[at] = (core_ns)(inputgen_random_next(&random) % 5000);
        inputgen_schedule_push(&schedule, times_ns[at], &times_ns[at]);
    }
    core_ns last_ns = 0;
    for (size_t move = 0; move < MOVES; move++) {
        core_ns *top = inputgen_schedule_top(&schedule);
        assert_true(*top == inputgen_schedule_next_ns(&schedule) && *top >= last_ns);
        last_ns = *top;
        *top += (core_ns)(inputgen_random_next(&random) % 300); /* also by nothing */
        inputgen_schedule_move_top(&schedule, *top);
    }
    for (size_t left = ITEMS; left > 0; left--) {
        assert_int_equal(schedule.count, left);
        const core_ns *top = inputgen_schedule_top(&schedule);
        assert_true(*top == inputgen_schedule_next_ns(&schedule) && *top >= last_ns);
        last_ns = *top;
        inputgen_schedule_pop(&schedule);
    }
    assert_true(inputgen_schedule_next_ns(&schedule) == CORE_NS_NEVER);
    inputgen_schedule_free(&schedule);
}

/* ---- map ---- */

static void map_finds_what_was_put(void **state)
{
    enum { ITEMS = 5000 };
    static int items[ITEMS];
    struct inputgen_map map = {0};
    (void)state;
    assert_null(inputgen_map_get(&map, 1)); /* nothing there yet */
    assert_int_equal(inputgen_map_init(&map, ITEMS), CORE_OK);
    for (uint32_t at = 0; at < ITEMS; at++)
        inputgen_map_put(&map, at * 4096, &items[at]);
    inputgen_map_put(&map, 4096, &items[7]); /* replaces */
    for (uint32_t at = 0; at < ITEMS; at++)
        assert_ptr_equal(inputgen_map_get(&map, at * 4096), at == 1 ? &items[7] : &items[at]);
    assert_null(inputgen_map_get(&map, 1));
    assert_null(inputgen_map_get(&map, UINT32_MAX));
    inputgen_map_free(&map);
}

/* Against a plain array, with keys that share homes and tables that are as full as they may be. */
static void map_forgets_what_was_removed(void **state)
{
    enum { KEYS = 64, CAPACITY = 24, STEPS = 20000 };
    static int items[KEYS];
    bool there[KEYS] = {false};
    size_t count = 0;
    struct inputgen_map map = {0};
    struct inputgen_random random;
    (void)state;
    assert_null(inputgen_map_remove(&map, 1)); /* no table yet */
    inputgen_random_seed(&random, 11);
    assert_int_equal(inputgen_map_init(&map, CAPACITY), CORE_OK);
    for (int step = 0; step < STEPS; step++) {
        uint32_t key = (uint32_t)(inputgen_random_next(&random) % KEYS);
        if (there[key] || count == CAPACITY) {
            assert_ptr_equal(inputgen_map_remove(&map, key), there[key] ? &items[key] : NULL);
            count -= there[key];
            there[key] = false;
        } else {
            inputgen_map_put(&map, key, &items[key]);
            there[key] = true;
            count++;
        }
        for (uint32_t other = 0; other < KEYS; other++)
            assert_ptr_equal(inputgen_map_get(&map, other), there[other] ? &items[other] : NULL);
    }
    inputgen_map_free(&map);
}

/* ---- payload ---- */

static struct inputgen_source source_of(uint32_t stream, uint32_t packet_bytes, enum core_padding padding)
{
    return (struct inputgen_source){
        .spec = {.packet_bytes = packet_bytes, .padding = padding}, .message_packets = 1, .stream = stream};
}

static void payloads_are_found_again_and_differ(void **state)
{
    enum { BYTES = 3000 };
    static const uint32_t lengths[] = {1, 15, 16, 17, 1400, BYTES};
    struct inputgen_source ninth = source_of(9, BYTES, CORE_PADDING_PKCS7);
    struct inputgen_source tenth = source_of(10, BYTES, CORE_PADDING_PKCS7);
    struct inputgen_payload payload, other;
    struct inputgen_part part = {.number = 4}, behind = {.number = 5, .bytes = BYTES};
    uint8_t packet[BYTES + 1], next[BYTES];
    (void)state;
    assert_int_equal(inputgen_payload_init(&payload, 5, false, BYTES), CORE_OK);
    assert_int_equal(inputgen_payload_init(&other, 6, false, BYTES), CORE_OK);
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        part.bytes = lengths[at];
        packet[part.bytes] = 0x5a;
        inputgen_payload_fill(&payload, &ninth, &part, packet);
        inputgen_payload_fill(&payload, &ninth, &part, next);
        assert_memory_equal(packet, next, part.bytes);
        assert_int_equal(packet[part.bytes], 0x5a);
    }
    inputgen_payload_fill(&payload, &ninth, &behind, next);
    assert_memory_not_equal(packet, next, CORE_BLOCK_BYTES);
    inputgen_payload_fill(&payload, &tenth, &part, next);
    assert_memory_not_equal(packet, next, CORE_BLOCK_BYTES);
    inputgen_payload_fill(&other, &ninth, &part, next);
    assert_memory_not_equal(packet, next, CORE_BLOCK_BYTES);
    inputgen_payload_free(&payload);
    inputgen_payload_free(&other);
}

static void lengths_are_full_or_uniform(void **state)
{
    enum { DRAWS = 20000 };
    struct inputgen_source source = source_of(1, 160, CORE_PADDING_PKCS7);
    struct inputgen_payload payload;
    double sum = 0;
    (void)state;
    assert_int_equal(inputgen_payload_init(&payload, 1, false, 160), CORE_OK);
    assert_int_equal(inputgen_payload_part(&payload, &source, 1).bytes, 160);
    payload.uniform_sizes = true;
    for (uint32_t at = 0; at < DRAWS; at++) {
        source.stream = at % 7;
        uint32_t bytes = inputgen_payload_part(&payload, &source, at).bytes;
        assert_true(bytes >= 1 && bytes <= 160);
        assert_int_equal(bytes, inputgen_payload_part(&payload, &source, at).bytes);
        sum += bytes;
    }
    assert_true(sum / DRAWS > 80.5 - 1.6 && sum / DRAWS < 80.5 + 1.6); /* five standard errors */
    source.spec.padding = CORE_PADDING_NONE;
    for (uint32_t at = 0; at < DRAWS; at++)
        assert_int_equal(inputgen_payload_part(&payload, &source, at).bytes % CORE_BLOCK_BYTES, 0);
    inputgen_payload_free(&payload);
}

/* docs/protocol.md, "Messages": all but the last packet of a message bring whole blocks beside the IV. */
static void packets_make_messages(void **state)
{
    struct inputgen_source source = source_of(1, 100, CORE_PADDING_PKCS7);
    struct inputgen_payload payload;
    (void)state;
    source.spec.unit = CORE_UNIT_MESSAGE;
    source.spec.iv = CORE_IV_EXPLICIT;
    source.message_packets = 3;
    assert_int_equal(inputgen_payload_init(&payload, 1, false, 188), CORE_OK);
    for (int uniform = 0; uniform < 2; uniform++) {
        payload.uniform_sizes = uniform == 1;
        for (uint64_t n = UINT64_C(3) << 31; n < (UINT64_C(3) << 31) + 3000; n++) { /* beyond 2^32 */
            const struct inputgen_part part = inputgen_payload_part(&payload, &source, n);
            assert_true(part.number == n && part.message == n / 3);
            assert_true(part.first == (n % 3 == 0) && part.last == (n % 3 == 2));
            assert_int_equal(part.iv_bytes, part.first ? 16 : 0);
            assert_in_range(part.bytes, part.iv_bytes + 1, 100);
            assert_true(part.last || (part.bytes % 16 == 0 && part.bytes > part.iv_bytes));
            if (!payload.uniform_sizes)
                assert_int_equal(part.bytes, part.last ? 100 : 96);
        }
    }
    source = source_of(1, 188, CORE_PADDING_CLEAR);
    source.spec.unit = CORE_UNIT_MESSAGE;
    const struct inputgen_part part = inputgen_payload_part(&payload, &source, 7);
    assert_true(part.first && part.last && part.message == 7 && part.iv_bytes == 0);
    inputgen_payload_free(&payload);
}

/* Of all shapes that a record can have some are sent. */
static void records_are_of_all_shapes(void **state)
{
    struct inputgen_source source = source_of(1, 7 * 188, CORE_PADDING_CLEAR);
    struct inputgen_payload payload;
    uint8_t packet[7 * 188];
    unsigned clear = 0, odd = 0, even = 0, bare = 0, fields = 0, whole = 0, others = 0;
    (void)state;
    source.spec.records = CORE_RECORDS_TS;
    assert_int_equal(inputgen_payload_init(&payload, 1, true, sizeof packet), CORE_OK);
    for (uint64_t n = 0; n < 200; n++) {
        const struct inputgen_part part = inputgen_payload_part(&payload, &source, n);
        assert_true(part.bytes >= 188 && part.bytes % 188 == 0);
        inputgen_payload_fill(&payload, &source, &part, packet);
        for (uint32_t at = 0; at < part.bytes; at += 188) {
            const unsigned bits = packet[at + 3] >> 6, kind = packet[at + 3] >> 4 & 3;
            assert_int_equal(packet[at], 0x47);
            clear += bits == 0;
            even += bits == 2;
            odd += bits == 3;
            bare += kind == 2 && packet[at + 4] == 183;
            fields += kind == 3 && packet[at + 4] <= 182;
            whole += kind == 1;
            others +=
                bits == 1 || (kind == 2 && packet[at + 4] != 183) || (kind == 3 && packet[at + 4] > 182);
        }
    }
    assert_true(clear > 20 && odd > 20 && even > 20 && bare > 20 && fields > 20 && whole > 20);
    assert_int_equal(others, 0);
    inputgen_payload_free(&payload);
}

/* ---- checking ---- */

#define PACKETS    9
#define SENT_BYTES 1316
#define CIPHER_MAX (SENT_BYTES + 16)

/* What a server returns, made block by block as docs/protocol.md says: the reference for the checker. */
struct checking {
    struct inputgen_payload payload;
    struct inputgen_source source;
    struct inputgen_checker checker;
    struct inputgen_part part[PACKETS];
    uint8_t result[PACKETS][CIPHER_MAX];
    uint32_t count[PACKETS];
    uint8_t iv[PACKETS][16];
    uint8_t chain[16]; /* of the reference */
    uint32_t block;    /* of its message, the next one */
};

static const uint8_t key[32] = {1, 2, 3}, constant[16] = {9, 8, 7};

/* One block by itself, for CBC done by hand. */
static void block_cipher(const struct checking *checking, bool encrypt, const uint8_t in[16], uint8_t out[16])
{
    static const char *const names[] = {"", "AES-128-ECB", "AES-192-ECB", "AES-256-ECB"};
    EVP_CIPHER *method = EVP_CIPHER_fetch(NULL, names[checking->source.spec.cipher], NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int done = 0;
    assert_int_equal(EVP_CipherInit_ex2(context, method, key, NULL, encrypt, NULL), 1);
    EVP_CIPHER_CTX_set_padding(context, 0);
    assert_int_equal(EVP_CipherUpdate(context, out, &done, in, 16), 1);
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(method);
}

static void block_turn(struct checking *checking, uint8_t block[16])
{
    uint8_t in[16], out[16];
    memcpy(in, block, 16);
    if (checking->source.spec.direction == CORE_DIRECTION_DECRYPT) {
        block_cipher(checking, false, in, out);
        for (int byte = 0; byte < 16; byte++)
            block[byte] = out[byte] ^ checking->chain[byte];
        memcpy(checking->chain, in, 16);
        return;
    }
    for (int byte = 0; byte < 16; byte++)
        in[byte] ^= checking->chain[byte];
    block_cipher(checking, true, in, block);
    memcpy(checking->chain, block, 16);
}

static void message_begin(struct checking *checking, uint32_t n, const uint8_t *sent)
{
    const struct core_stream_spec *spec = &checking->source.spec;
    uint64_t message = spec->first_unit + checking->part[n].message;
    checking->block = 0;
    if (spec->iv == CORE_IV_CONSTANT)
        memcpy(checking->chain, constant, 16);
    if (spec->iv == CORE_IV_EXPLICIT)
        memcpy(checking->chain, sent, 16);
    if (spec->iv == CORE_IV_RANDOM)
        memcpy(checking->chain, checking->iv[n], 16);
    for (int byte = 15; spec->iv == CORE_IV_COUNTER && byte >= 0; byte--, message >>= 8)
        checking->chain[byte] = (uint8_t)message;
}

static void records_turn(struct checking *checking, uint8_t *bytes, uint32_t count)
{
    for (uint8_t *record = bytes; record < bytes + count; record += 188) {
        uint32_t from = 4;
        if (record[3] & 0x20)
            from += 1u + record[4];
        if (record[3] < 0x80 || (record[3] & 0x10) == 0)
            continue;
        memcpy(checking->chain, constant, 16);
        for (; from + 16 <= 188; from += 16)
            block_turn(checking, record + from);
    }
}

static void reference(struct checking *checking, uint32_t n)
{
    const struct core_stream_spec *spec = &checking->source.spec;
    uint8_t sent[CIPHER_MAX];
    checking->part[n] = inputgen_payload_part(&checking->payload, &checking->source, n);
    const struct inputgen_part *part = &checking->part[n];
    inputgen_payload_fill(&checking->payload, &checking->source, part, sent);
    if (part->first)
        message_begin(checking, n, sent);
    uint32_t count = part->bytes - part->iv_bytes;
    uint8_t *result = checking->result[n];
    memcpy(result, sent + part->iv_bytes, count);
    if (spec->padding == CORE_PADDING_PKCS7 && part->last)
        for (uint8_t padding = (uint8_t)(16 - count % 16), left = padding; left > 0; left--)
            result[count++] = padding;
    checking->count[n] = count;
    if (spec->records == CORE_RECORDS_TS)
        records_turn(checking, result, count);
    for (uint32_t at = 0; spec->records == CORE_RECORDS_NONE && at + 16 <= count; at += 16, checking->block++)
        if (spec->crypt_blocks == 0 ||
            checking->block % (spec->crypt_blocks + spec->skip_blocks) < spec->crypt_blocks)
            block_turn(checking, result + at);
}

/* Stream 2, all of whose packets have come back. */
static void checking_start(struct checking *checking, const struct core_stream_spec *spec,
                           uint32_t message_packets)
{
    checking->source = (struct inputgen_source){*spec, message_packets, 2};
    assert_int_equal(inputgen_payload_init(&checking->payload, 1, spec->burst_packets > 1, SENT_BYTES),
                     CORE_OK);
    assert_int_equal(inputgen_checker_init(&checking->checker, &checking->source, key, constant), CORE_OK);
    memcpy(checking->chain, constant, 16);
    for (uint32_t at = 0; at < PACKETS; at++) {
        memset(checking->iv[at], (int)at + 40, 16);
        reference(checking, at);
    }
}

static struct inputgen_check_verdict take(struct checking *checking, uint32_t number, uint32_t count)
{
    uint8_t scratch[INPUTGEN_CHECK_SCRATCH_BYTES(SENT_BYTES)];
    const struct inputgen_part *part = &checking->part[number];
    const bool told = part->first && checking->source.spec.iv == CORE_IV_RANDOM;
    const struct inputgen_check_result result = {.part = *part,
                                                 .bytes = checking->result[number],
                                                 .count = count,
                                                 .iv = told ? checking->iv[number] : NULL};
    return inputgen_checker_take(&checking->checker, &checking->payload, &result, scratch);
}

static bool take_right(struct checking *checking, uint32_t number)
{
    return take(checking, number, checking->count[number]).right;
}

static void checking_stop(struct checking *checking)
{
    inputgen_checker_free(&checking->checker);
    inputgen_payload_free(&checking->payload);
}

#define MESSAGE .unit = CORE_UNIT_MESSAGE

/* burst_packets above 1: lengths are drawn. */
static const struct {
    const char *name;
    struct core_stream_spec spec;
    uint32_t message_packets;
} forms[] = {
    {"a stream", {.packet_bytes = 96}, 1},
    {"a stream with padding", {.packet_bytes = 100, .padding = CORE_PADDING_PKCS7}, 1},
    {"of drawn lengths", {.packet_bytes = 100, .padding = CORE_PADDING_PKCS7, .burst_packets = 2}, 1},
    {"a stream, decrypted", {.packet_bytes = 96, .direction = CORE_DIRECTION_DECRYPT}, 1},
    {"a chain of messages", {MESSAGE, .packet_bytes = 100, .padding = CORE_PADDING_CLEAR}, 2},
    {"segments",
     {MESSAGE, .packet_bytes = 100, .padding = CORE_PADDING_PKCS7, .iv = CORE_IV_COUNTER, .first_unit = 255},
     3},
    {"numbers that overflow",
     {MESSAGE, .packet_bytes = 64, .iv = CORE_IV_COUNTER, .first_unit = UINT64_MAX - 1},
     1},
    {"samples",
     {MESSAGE, .packet_bytes = 500, .padding = CORE_PADDING_CLEAR, .iv = CORE_IV_CONSTANT, .crypt_blocks = 1,
      .skip_blocks = 9, .burst_packets = 2},
     3},
    {"samples, decrypted, in a chain",
     {MESSAGE, .packet_bytes = 500, .padding = CORE_PADDING_CLEAR, .crypt_blocks = 2, .skip_blocks = 3,
      .direction = CORE_DIRECTION_DECRYPT},
     3},
    {"packets with IVs",
     {MESSAGE, .packet_bytes = 100, .padding = CORE_PADDING_PKCS7, .iv = CORE_IV_EXPLICIT},
     2},
    {"packets with IVs, decrypted",
     {MESSAGE, .packet_bytes = 112, .iv = CORE_IV_EXPLICIT, .direction = CORE_DIRECTION_DECRYPT,
      .burst_packets = 2},
     1},
    {"random IVs", {MESSAGE, .packet_bytes = 100, .padding = CORE_PADDING_CLEAR, .iv = CORE_IV_RANDOM}, 2},
    {"records",
     {MESSAGE, .packet_bytes = 1316, .padding = CORE_PADDING_CLEAR, .iv = CORE_IV_CONSTANT,
      .records = CORE_RECORDS_TS},
     1},
    {"records, decrypted",
     {MESSAGE, .packet_bytes = 1316, .padding = CORE_PADDING_CLEAR, .iv = CORE_IV_CONSTANT,
      .records = CORE_RECORDS_TS, .direction = CORE_DIRECTION_DECRYPT},
     1},
};
#define FORM_COUNT (sizeof forms / sizeof forms[0])

static void form_start(struct checking *checking, size_t form, enum core_cipher cipher)
{
    struct core_stream_spec spec = forms[form].spec;
    spec.cipher = cipher;
    checking_start(checking, &spec, forms[form].message_packets);
}

static void checker_accepts_what_is_right(void **state)
{
    (void)state;
    for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++)
        for (size_t form = 0; form < FORM_COUNT; form++) {
            struct checking checking;
            form_start(&checking, form, (enum core_cipher)cipher);
            for (uint32_t at = 0; at < PACKETS; at++) {
                struct inputgen_check_verdict verdict = take(&checking, at, checking.count[at]);
                if (!verdict.right || !verdict.in_order)
                    fail_msg("%s: packet %u is called wrong", forms[form].name, at);
            }
            checking_stop(&checking);
        }
}

/* Wherever it is; and what comes behind it in other messages is right all the same. */
static void checker_sees_every_wrong_byte(void **state)
{
    (void)state;
    for (size_t form = 0; form < FORM_COUNT; form++) {
        struct checking checking;
        form_start(&checking, form, CORE_CIPHER_AES_128_CBC);
        const uint32_t step = checking.count[1] > 200 ? 13 : 1;
        checking_stop(&checking);
        for (uint32_t wrong = 0; wrong < checking.count[1]; wrong += step) {
            form_start(&checking, form, CORE_CIPHER_AES_128_CBC);
            checking.result[1][wrong] ^= 1;
            if (!take_right(&checking, 0) || take_right(&checking, 1))
                fail_msg("%s: byte %u of packet 1 may be anything", forms[form].name, wrong);
            for (uint32_t at = 2; at < PACKETS; at++)
                if (!take_right(&checking, at) && (at != 2 || wrong + 32 < checking.count[1]))
                    fail_msg("%s: packet %u is called wrong", forms[form].name, at);
            checking_stop(&checking);
        }
    }
}

static void checker_sees_wrong_lengths(void **state)
{
    static const int32_t differences[] = {-16, -1, 1, 16};
    (void)state;
    for (size_t form = 0; form < FORM_COUNT; form++)
        for (size_t at = 0; at < 6; at++) {
            struct checking checking;
            form_start(&checking, form, CORE_CIPHER_AES_256_CBC);
            const uint32_t count = at < 4 ? checking.count[0] + (uint32_t)differences[at] : at < 5 ? 0 : 1;
            struct inputgen_check_verdict verdict = take(&checking, 0, count);
            if (verdict.right || !verdict.in_order)
                fail_msg("%s: %u bytes instead of %u may be", forms[form].name, count, checking.count[0]);
            checking_stop(&checking);
        }
}

static void checker_sees_wrong_ivs(void **state)
{
    struct checking checking;
    uint8_t scratch[INPUTGEN_CHECK_SCRATCH_BYTES(SENT_BYTES)];
    (void)state;
    for (size_t form = 0; form < FORM_COUNT; form++) {
        const bool random = forms[form].spec.iv == CORE_IV_RANDOM;
        form_start(&checking, form, CORE_CIPHER_AES_128_CBC);
        const struct inputgen_check_result result = {.part = checking.part[0],
                                                     .bytes = checking.result[0],
                                                     .count = checking.count[0],
                                                     .iv = random ? NULL : checking.iv[0]};
        if (inputgen_checker_take(&checking.checker, &checking.payload, &result, scratch).right)
            fail_msg("%s: the IV that is %s is no fault", forms[form].name, random ? "not there" : "there");
        checking_stop(&checking);
    }
}

static void checker_sees_gaps_and_goes_on_behind_them(void **state)
{
    (void)state;
    for (size_t form = 0; form < FORM_COUNT; form++) {
        struct checking checking;
        form_start(&checking, form, CORE_CIPHER_AES_128_CBC);
        assert_true(take_right(&checking, 0));
        struct inputgen_check_verdict verdict = take(&checking, 2, checking.count[2]); /* 1 is lost */
        if (!verdict.right || verdict.in_order)
            fail_msg("%s: a packet behind a gap is called wrong", forms[form].name);
        verdict = take(&checking, 3, checking.count[3]);
        assert_true(verdict.right && verdict.in_order);
        verdict = take(&checking, 1, checking.count[1]); /* comes after all */
        assert_true(verdict.right && !verdict.in_order);
        checking.result[4][checking.count[4] - 1] ^= 1; /* also behind a gap every later block counts */
        verdict = take(&checking, 4, checking.count[4]);
        assert_true(!verdict.right && !verdict.in_order);
        checking_stop(&checking);
    }
}

/* Of a packet behind a gap no more than one block may be anything, wherever it is. */
static void checker_compares_nearly_all_behind_a_gap(void **state)
{
    (void)state;
    for (size_t form = 0; form < FORM_COUNT; form++) {
        struct checking checking;
        form_start(&checking, form, CORE_CIPHER_AES_128_CBC);
        for (uint32_t at = 1; at < PACKETS; at++) {
            uint32_t unseen = 0;
            for (uint32_t wrong = 0; wrong < checking.count[at]; wrong++) {
                checking.result[at][wrong] ^= 1;
                checking.checker.next = 0;
                unseen += take_right(&checking, at);
                checking.result[at][wrong] ^= 1;
            }
            if (unseen > CORE_BLOCK_BYTES)
                fail_msg("%s: %u bytes of packet %u may be anything", forms[form].name, unseen, at);
        }
        checking_stop(&checking);
    }
}

static void checker_leaves_the_chain_alone_for_what_was_not_encrypted(void **state)
{
    struct checking checking;
    (void)state;
    form_start(&checking, 1, CORE_CIPHER_AES_128_CBC);
    const struct inputgen_check_result refused = {.part = checking.part[0]};
    struct inputgen_check_verdict verdict =
        inputgen_checker_take(&checking.checker, &checking.payload, &refused, NULL);
    assert_true(verdict.right && verdict.in_order);
    checking.checker.next = 0; /* the chain is where it was */
    assert_true(take_right(&checking, 0));
    checking_stop(&checking);
}

/* ---- timetable ---- */

static void timetables_end_before_the_stop(void **state)
{
    static const struct {
        core_ns start_ns, stop_ns, duration_ns;
        double scale;
        bool bursts;
        uint64_t planned;
        core_ns last_ns;
        double slower;
    } cases[] = {
        {0, 10000, 10000, 1, false, 10, 9000, 0},   {0, 10001, 20000, 1, false, 11, 10000, 0},
        {500, 10000, 10000, 1, false, 10, 9500, 0}, {500, 10000, 5000, 1, false, 5, 4500, 0},
        {0, 10000, 10000, 2, false, 20, 9500, 0},   {0, 10000, 10000, 0.5, false, 5, 8000, 0},
        {0, 10000, 10000, 1, true, 12, 8000, 0},    {6000, 10000, 5000, 1, false, 0, 6000, 0},
        {0, 10000, 10000, 1, false, 8, 8750, 0.25}, {0, 10000, 10000, 1, true, 8, 5000, 0.25},
    };
    struct inputgen_stream stream = {.spec = {.packet_bytes = 64,
                                              .burst_packets = 4,
                                              .latency_ns = CORE_NS_PER_S,
                                              .cipher = CORE_CIPHER_AES_128_CBC},
                                     .message_packets = 1};
    struct inputgen_streams list = {.streams = &stream, .count = 1};
    (void)state;
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        struct inputgen_replay_options options = {
            .scale = cases[at].scale, .bursts = cases[at].bursts, .slower = cases[at].slower};
        struct inputgen_live live;
        stream.spec.interval_ns = 1000 * 1000;
        stream.start_ns = cases[at].start_ns * 1000;
        stream.stop_ns = cases[at].stop_ns * 1000;
        assert_int_equal(inputgen_live_init(&live, &options, &list, 0, cases[at].duration_ns * 1000, NULL),
                         CORE_OK);
        assert_int_equal(live.planned, cases[at].planned);
        uint64_t last = live.planned ? live.planned - 1 : 0;
        assert_int_equal(inputgen_live_due_ns(&live, last), cases[at].last_ns * 1000);
        inputgen_live_free(&live);
    }
}

static void a_scale_beyond_the_protocol_is_refused(void **state)
{
    struct inputgen_stream stream = {.spec = {.packet_bytes = 64,
                                              .burst_packets = 1,
                                              .interval_ns = CORE_INTERVAL_NS_MIN,
                                              .latency_ns = CORE_NS_PER_S,
                                              .cipher = CORE_CIPHER_AES_128_CBC},
                                     .stop_ns = CORE_NS_PER_S};
    struct inputgen_streams list = {.streams = &stream, .count = 1};
    struct inputgen_replay_options options = {.scale = 1.5};
    struct inputgen_live live;
    struct core_error error = {""};
    (void)state;
    assert_int_equal(inputgen_live_init(&live, &options, &list, 0, CORE_NS_PER_S, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "stream 1"));
}

/* ---- processes ---- */

static void processes_are_found_and_measured(void **state)
{
    int pair[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(inputgen_process_behind(pair[0]), getpid());
    close(pair[0]);
    close(pair[1]);
    assert_true(inputgen_process_cpu_ns(getpid()) >= 0);
    assert_true(inputgen_process_resident_bytes(getpid()) > 0);
    assert_true(inputgen_process_cpu_ns(0) == -1);
    assert_true(inputgen_process_resident_bytes(0) == -1);
    assert_true(inputgen_process_cpu_ns(1 << 30) == -1);
    assert_int_equal(inputgen_process_behind(-1), 0);
}

/* Packets of 1 ms until 10 ms: from the fifth on every 2 ms, later every 0.5 ms. */
static void timetables_change_behind_the_packet_due_next(void **state)
{
    const struct inputgen_replay_options options = {.scale = 1};
    struct inputgen_stream stream = {.spec = {.packet_bytes = 64,
                                              .burst_packets = 4,
                                              .interval_ns = CORE_NS_PER_MS,
                                              .latency_ns = 30 * CORE_NS_PER_MS,
                                              .cipher = CORE_CIPHER_AES_128_CBC},
                                     .stop_ns = 10 * CORE_NS_PER_MS};
    struct inputgen_streams list = {.streams = &stream, .count = 1};
    struct inputgen_live live;
    (void)state;
    assert_int_equal(inputgen_live_init(&live, &options, &list, 0, CORE_NS_PER_S, NULL), CORE_OK);
    live.state = INPUTGEN_LIVE_OPEN;
    assert_false(inputgen_live_may_change(&live)); /* it is in no sender's schedule */
    live.scheduled = true;
    assert_true(inputgen_live_may_change(&live));
    live.sent = 5;
    live.received = 3;
    struct core_stream_spec spec = stream.spec;
    spec.interval_ns = 2 * CORE_NS_PER_MS;
    spec.latency_ns = 20 * CORE_NS_PER_MS;
    inputgen_live_change(&live, &options, &spec, 4);
    assert_true(inputgen_live_due_ns(&live, 4) == 4 * CORE_NS_PER_MS);
    assert_true(inputgen_live_due_ns(&live, 5) == 5 * CORE_NS_PER_MS);
    assert_true(inputgen_live_due_ns(&live, 6) == 7 * CORE_NS_PER_MS);
    assert_int_equal(live.planned, 8); /* 5, 7 and 9 ms */
    assert_true(inputgen_live_latency_ns(&live, 3) == 30 * CORE_NS_PER_MS);
    assert_true(inputgen_live_latency_ns(&live, 4) == 20 * CORE_NS_PER_MS);

    assert_false(inputgen_live_may_change(&live)); /* packet 3 is still to come by the first contract */
    live.received = 5;
    live.changing = true;
    assert_false(inputgen_live_may_change(&live));
    live.changing = false;
    assert_true(inputgen_live_may_change(&live));
    live.sent = live.received = 7;
    spec.interval_ns = CORE_NS_PER_MS / 2;
    inputgen_live_change(&live, &options, &spec, 7);
    assert_true(inputgen_live_due_ns(&live, 6) == 7 * CORE_NS_PER_MS);
    assert_true(inputgen_live_due_ns(&live, 7) == 9 * CORE_NS_PER_MS);
    assert_int_equal(live.planned, 9); /* 9 and 9.5 ms */
    live.sent = live.received = 9;
    inputgen_live_change(&live, &options, &spec, 9); /* the answer came behind the last packet */
    assert_int_equal(live.planned, 9);
    inputgen_live_free(&live);

    assert_int_equal(inputgen_live_begin(&live, &options, &stream, 7, CORE_NS_PER_S, NULL), CORE_OK);
    live.sent = 2;
    inputgen_live_change(&live, &options, &spec, 2);
    assert_true(live.planned == INPUTGEN_LIVE_ENDLESS);
    assert_true(inputgen_live_due_ns(&live, 3) == CORE_NS_PER_S + 5 * CORE_NS_PER_MS / 2);
    inputgen_live_free(&live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_gives_the_earliest_first),
        cmocka_unit_test(map_finds_what_was_put),
        cmocka_unit_test(map_forgets_what_was_removed),
        cmocka_unit_test(payloads_are_found_again_and_differ),
        cmocka_unit_test(lengths_are_full_or_uniform),
        cmocka_unit_test(packets_make_messages),
        cmocka_unit_test(records_are_of_all_shapes),
        cmocka_unit_test(checker_accepts_what_is_right),
        cmocka_unit_test(checker_sees_every_wrong_byte),
        cmocka_unit_test(checker_sees_wrong_lengths),
        cmocka_unit_test(checker_sees_wrong_ivs),
        cmocka_unit_test(checker_sees_gaps_and_goes_on_behind_them),
        cmocka_unit_test(checker_compares_nearly_all_behind_a_gap),
        cmocka_unit_test(checker_leaves_the_chain_alone_for_what_was_not_encrypted),
        cmocka_unit_test(timetables_end_before_the_stop),
        cmocka_unit_test(timetables_change_behind_the_packet_due_next),
        cmocka_unit_test(a_scale_beyond_the_protocol_is_refused),
        cmocka_unit_test(processes_are_found_and_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
