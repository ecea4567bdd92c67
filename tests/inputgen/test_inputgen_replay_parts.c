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

static void payloads_are_found_again_and_differ(void **state)
{
    enum { BYTES = 3000 };
    static const uint32_t lengths[] = {1, 15, 16, 17, 1400, BYTES};
    struct inputgen_payload payload, other;
    uint8_t packet[BYTES], next[BYTES];
    (void)state;
    assert_int_equal(inputgen_payload_init(&payload, 5, false, BYTES), CORE_OK);
    assert_int_equal(inputgen_payload_init(&other, 6, false, BYTES), CORE_OK);
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        uint32_t bytes = lengths[at];
        inputgen_payload_fill(&payload, 9, 4, packet, bytes);
        assert_true(inputgen_payload_equal(&payload, 9, 4, packet, bytes, 0));
        for (uint32_t wrong = 0; wrong<bytes; wrong += bytes> 100 ? 97 : 1) {
            packet[wrong] ^= 4;
            assert_false(inputgen_payload_equal(&payload, 9, 4, packet, bytes, 0));
            assert_int_equal(inputgen_payload_equal(&payload, 9, 4, packet, bytes, CORE_BLOCK_BYTES),
                             wrong < CORE_BLOCK_BYTES);
            packet[wrong] ^= 4;
        }
    }
    inputgen_payload_fill(&payload, 9, 4, packet, BYTES);
    inputgen_payload_fill(&payload, 9, 5, next, BYTES);
    assert_memory_not_equal(packet, next, CORE_BLOCK_BYTES);
    inputgen_payload_fill(&payload, 10, 4, next, BYTES);
    assert_memory_not_equal(packet, next, CORE_BLOCK_BYTES);
    inputgen_payload_fill(&other, 9, 4, next, BYTES);
    assert_memory_not_equal(packet, next, CORE_BLOCK_BYTES);
    inputgen_payload_free(&payload);
    inputgen_payload_free(&other);
}

static void lengths_are_full_or_uniform(void **state)
{
    enum { DRAWS = 20000 };
    struct core_stream_spec spec = {.packet_bytes = 160, .padding = CORE_PADDING_PKCS7};
    struct inputgen_payload payload;
    double sum = 0;
    (void)state;
    assert_int_equal(inputgen_payload_init(&payload, 1, false, 160), CORE_OK);
    assert_int_equal(inputgen_payload_bytes(&payload, &spec, 1, 1), 160);
    payload.uniform_sizes = true;
    for (uint32_t at = 0; at < DRAWS; at++) {
        uint32_t bytes = inputgen_payload_bytes(&payload, &spec, at % 7, at);
        assert_true(bytes >= 1 && bytes <= 160);
        assert_int_equal(bytes, inputgen_payload_bytes(&payload, &spec, at % 7, at));
        sum += bytes;
    }
    assert_true(sum / DRAWS > 80.5 - 1.6 && sum / DRAWS < 80.5 + 1.6); /* five standard errors */
    spec.padding = CORE_PADDING_NONE;
    for (uint32_t at = 0; at < DRAWS; at++)
        assert_int_equal(inputgen_payload_bytes(&payload, &spec, 3, at) % CORE_BLOCK_BYTES, 0);
    inputgen_payload_free(&payload);
}

/* ---- checking ---- */

#define PACKETS    5
#define SENT_BYTES 100
#define CIPHER_MAX 112

struct checking {
    struct inputgen_payload payload;
    struct inputgen_checker checker;
    enum core_padding padding;
    uint32_t sent_bytes, cipher_bytes;
    uint8_t ciphertext[PACKETS][CIPHER_MAX];
};

static const uint8_t key[32] = {1, 2, 3}, iv[16] = {9, 8, 7};

/* Encrypts five packets of stream 2 in one chain. */
static void checking_start(struct checking *checking, enum core_cipher cipher, enum core_padding padding)
{
    EVP_CIPHER *method = EVP_CIPHER_fetch(NULL, core_cipher_name(cipher), NULL);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    checking->padding = padding;
    checking->sent_bytes = padding == CORE_PADDING_NONE ? 96 : SENT_BYTES;
    checking->cipher_bytes = core_stream_padded_bytes(padding, checking->sent_bytes);
    assert_int_equal(inputgen_payload_init(&checking->payload, 1, false, SENT_BYTES), CORE_OK);
    assert_int_equal(inputgen_checker_init(&checking->checker, cipher, padding, key, iv), CORE_OK);
    assert_int_equal(EVP_EncryptInit_ex2(context, method, key, iv, NULL), 1);
    EVP_CIPHER_CTX_set_padding(context, 0);
    for (uint32_t at = 0; at < PACKETS; at++) {
        uint8_t plain[CIPHER_MAX];
        uint32_t pad = checking->cipher_bytes - checking->sent_bytes;
        int written;
        inputgen_payload_fill(&checking->payload, 2, at, plain, checking->sent_bytes);
        memset(plain + checking->sent_bytes, (int)pad, pad);
        EVP_EncryptUpdate(context, checking->ciphertext[at], &written, plain, (int)checking->cipher_bytes);
    }
    EVP_CIPHER_CTX_free(context);
    EVP_CIPHER_free(method);
}

static struct inputgen_check_verdict take(struct checking *checking, uint32_t sequence, uint32_t bytes)
{
    uint8_t scratch[CIPHER_MAX];
    struct inputgen_check_packet packet = {.stream = 2,
                                           .sequence = sequence,
                                           .sent_bytes = checking->sent_bytes,
                                           .ciphertext = checking->ciphertext[sequence],
                                           .bytes = bytes};
    return inputgen_checker_take(&checking->checker, &checking->payload, &packet, scratch);
}

static void checking_stop(struct checking *checking)
{
    inputgen_checker_free(&checking->checker);
    inputgen_payload_free(&checking->payload);
}

static void checker_accepts_what_is_right(void **state)
{
    (void)state;
    for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++)
        for (int padding = CORE_PADDING_NONE; padding <= CORE_PADDING_PKCS7; padding++) {
            struct checking checking;
            checking_start(&checking, (enum core_cipher)cipher, (enum core_padding)padding);
            for (uint32_t at = 0; at < PACKETS; at++) {
                struct inputgen_check_verdict verdict = take(&checking, at, checking.cipher_bytes);
                assert_true(verdict.right && verdict.in_order);
            }
            checking_stop(&checking);
        }
}

static void checker_sees_every_wrong_byte(void **state)
{
    (void)state;
    for (uint32_t wrong = 0; wrong < CIPHER_MAX; wrong++) {
        struct checking checking;
        checking_start(&checking, CORE_CIPHER_AES_128_CBC, CORE_PADDING_PKCS7);
        checking.ciphertext[1][wrong] ^= 1;
        assert_true(take(&checking, 0, CIPHER_MAX).right);
        assert_false(take(&checking, 1, CIPHER_MAX).right);
        assert_int_equal(take(&checking, 2, CIPHER_MAX).right, wrong < CIPHER_MAX - CORE_BLOCK_BYTES);
        assert_true(take(&checking, 3, CIPHER_MAX).right);
        checking_stop(&checking);
    }
}

static void checker_sees_wrong_lengths(void **state)
{
    static const uint32_t lengths[] = {0, 1, 15, 16, CIPHER_MAX - 16, CIPHER_MAX - 1};
    (void)state;
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        struct checking checking;
        checking_start(&checking, CORE_CIPHER_AES_256_CBC, CORE_PADDING_PKCS7);
        struct inputgen_check_verdict verdict = take(&checking, 0, lengths[at]);
        assert_true(!verdict.right && verdict.in_order);
        checking_stop(&checking);
    }
}

static void checker_sees_gaps_and_goes_on_behind_them(void **state)
{
    struct checking checking;
    (void)state;
    checking_start(&checking, CORE_CIPHER_AES_128_CBC, CORE_PADDING_PKCS7);
    assert_true(take(&checking, 0, CIPHER_MAX).right);
    struct inputgen_check_verdict verdict = take(&checking, 2, CIPHER_MAX); /* 1 is lost */
    assert_true(verdict.right && !verdict.in_order);
    verdict = take(&checking, 3, CIPHER_MAX);
    assert_true(verdict.right && verdict.in_order);
    verdict = take(&checking, 1, CIPHER_MAX); /* comes after all */
    assert_true(verdict.right && !verdict.in_order);
    checking.ciphertext[4][CIPHER_MAX - 1] ^= 1; /* also behind a gap every later block counts */
    verdict = take(&checking, 4, CIPHER_MAX);
    assert_true(!verdict.right && !verdict.in_order);
    checking_stop(&checking);
}

static void checker_leaves_the_chain_alone_for_what_was_not_encrypted(void **state)
{
    struct checking checking;
    struct inputgen_check_packet refused = {.stream = 2, .sequence = 0, .sent_bytes = SENT_BYTES};
    (void)state;
    checking_start(&checking, CORE_CIPHER_AES_128_CBC, CORE_PADDING_PKCS7);
    struct inputgen_check_verdict verdict =
        inputgen_checker_take(&checking.checker, &checking.payload, &refused, NULL);
    assert_true(verdict.right && verdict.in_order);
    checking.checker.next_sequence = 0; /* the chain is where it was */
    assert_true(take(&checking, 0, CIPHER_MAX).right);
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
                                              .cipher = CORE_CIPHER_AES_128_CBC}};
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

    assert_int_equal(inputgen_live_begin(&live, &options, &stream.spec, 7, CORE_NS_PER_S, NULL), CORE_OK);
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
        cmocka_unit_test(checker_accepts_what_is_right),
        cmocka_unit_test(checker_sees_every_wrong_byte),
        cmocka_unit_test(checker_sees_wrong_lengths),
        cmocka_unit_test(checker_sees_gaps_and_goes_on_behind_them),
        cmocka_unit_test(checker_leaves_the_chain_alone_for_what_was_not_encrypted),
        cmocka_unit_test(timetables_end_before_the_stop),
        cmocka_unit_test(timetables_change_behind_the_packet_due_next),
        cmocka_unit_test(a_scale_beyond_the_protocol_is_refused),
        cmocka_unit_test(processes_are_found_and_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
