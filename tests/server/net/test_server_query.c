/* QUERY, OPEN and offers over the wire, on a server with an emulated card: what QUERY grants, an OPEN right
 * behind it gets, and offers hold, to the nanosecond. Where others could be moved, QUERY says so and grants
 * nothing by it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "server/gpu/batcher.h"
#include "server/planner/planner.h"
#include "server/server_internal.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define ROUNDS      16
#define ASKS        60 /* of a round */
#define STREAMS_MAX (3 * ASKS)

static struct test_server server;
static struct config_profile *profile;
static struct test_client client;
static uint32_t streams[STREAMS_MAX];
static uint32_t count;

struct seen {
    uint32_t taken, refused, on_gpu, guaranteed, backed, on_other, by_batches, intervals, latencies, busy;
};

/* With workers so many times slower than the profile says. */
static void start(const char *name, int64_t slow, const char *timeouts, const char *gpus, uint16_t version)
{
    char yaml[256], path[256];
    struct core_error error = {""};
    snprintf(path, sizeof path, "%s/config/profiles/%s.yaml", MILLRACE_SOURCE_DIR, name);
    TEST_REQUIRE(config_profile_load(path, &profile, &error) == CORE_OK);
    profile->cpu.per_piece_ns *= slow;
    snprintf(yaml, sizeof yaml,
             "threads: {cores: 8, io: 1, workers: 1, realtime: off, pin: false}\ntimeouts: {%s}\n", timeouts);
    memset(&server, 0, sizeof server);
    count = 0;
    test_gpu_server_start(&server, gpus, yaml, profile);
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, version, NULL);
}

static void stop(void)
{
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

static bool ask(enum protocol_type type, const struct core_stream_spec *spec, struct protocol_opened *opened,
                struct protocol_refused *refused)
{
    static const uint8_t key[32] = {5};
    struct protocol_open open = test_open_inline(spec, key);
    *opened = (struct protocol_opened){.stream = 0};
    *refused = (struct protocol_refused){.code = 0};
    bool granted = test_client_ask(&client, type, &open, opened, refused);
    if (granted && type == PROTOCOL_OPEN) {
        TEST_REQUIRE(count < STREAMS_MAX);
        streams[count++] = opened->stream;
    }
    return granted;
}

/* A card that is asked for another period has a second for it, and this machine may be busy. */
static bool too_busy(const struct protocol_refused *refused)
{
    return strstr(refused->text, "too busy to change") != NULL;
}

/* QUERY and OPEN, one after the other. */
static bool ask_both(const struct core_stream_spec *spec, struct protocol_refused *refused, struct seen *seen)
{
    struct protocol_opened asked, opened;
    struct protocol_refused again;
    bool would = ask(PROTOCOL_QUERY, spec, &asked, refused);
    bool does = ask(PROTOCOL_OPEN, spec, &opened, &again);
    if (too_busy(&again)) {
        seen->busy++;
        return false;
    }
    if (would != does)
        fail_msg("QUERY %s, OPEN %s (%s%s): %u bytes, burst %u, every %lld ns, within %lld ns%s",
                 would ? "granted" : "refused", does ? "granted" : "refused", refused->text, again.text,
                 spec->packet_bytes, spec->burst_packets, (long long)spec->interval_ns,
                 (long long)spec->latency_ns, spec->guaranteed ? ", guaranteed" : "");
    if (would) {
        assert_int_equal(asked.unit, opened.unit);
        assert_int_equal(asked.unit_index, opened.unit_index);
        assert_int_equal(asked.bound_ns, opened.bound_ns);
        assert_int_equal(asked.queue_packets, opened.queue_packets);
        assert_memory_equal(&asked.backup, &opened.backup, sizeof asked.backup);
        seen->taken++;
        seen->on_gpu += opened.unit == PROTOCOL_UNIT_GPU;
        seen->guaranteed += spec->guaranteed;
        seen->backed += opened.backup.unit != PROTOCOL_UNIT_NONE;
        seen->on_other += opened.backup.unit == PROTOCOL_UNIT_GPU;
        return true;
    }
    assert_int_equal(refused->constraint, again.constraint);
    assert_int_equal(refused->offer_interval_ns, again.offer_interval_ns);
    assert_int_equal(refused->offer_latency_ns, again.offer_latency_ns);
    seen->refused++;
    seen->by_batches += strstr(refused->text, "the GPU would need room for") != NULL;
    return false;
}

/* A nanosecond below an offer is refused, the offer is taken, and none is none. */
static void take_offer(const struct core_stream_spec *spec, bool interval,
                       const struct protocol_refused *refused, struct seen *seen)
{
    core_ns offer_ns = interval ? refused->offer_interval_ns : refused->offer_latency_ns;
    struct core_stream_spec offered = *spec;
    core_ns *value_ns = interval ? &offered.interval_ns : &offered.latency_ns;
    struct protocol_refused again;
    const core_ns most_ns[] = {CORE_LATENCY_NS_MAX, CORE_INTERVAL_NS_MAX};
    uint32_t busy = seen->busy;
    *value_ns = offer_ns > 0 ? offer_ns - 1 : most_ns[interval];
    assert_false(ask_both(&offered, &again, seen) || seen->busy > busy);
    if (offer_ns == 0)
        return;
    *value_ns = offer_ns;
    assert_true(ask_both(&offered, &again, seen) || seen->busy > busy);
    seen->intervals += interval;
    seen->latencies += !interval;
}

static struct core_stream_spec draw(struct test_random *random)
{
    struct core_stream_spec spec = {
        .packet_bytes = 16 * (uint32_t)test_random_log(random, 4, 1024),
        .burst_packets = test_random_chance(random, 80) ? 1 : (uint32_t)test_random_in(random, 2, 8),
        .interval_ns = test_random_log(random, 300000, 50000000),
        .latency_ns = test_random_log(random, 4000000, 400000000),
        .cipher = (enum core_cipher)test_random_in(random, 1, 3),
        .padding = CORE_PADDING_NONE};
    spec.guaranteed = test_random_chance(random, 30);
    return spec;
}

static bool is_empty(void)
{
    const struct server_planner_load *load = server_planner_worker_load(server.server->planner, 0);
    uint64_t left = atomic_load(&load->streams) + atomic_load(&load->backups);
    for (uint32_t gpu = 0; gpu < server.server->gpu_count; gpu++) {
        const struct server_gpu_figures *figures = server_gpu_figures(server.server->gpus[gpu]);
        left += atomic_load(&figures->streams) + atomic_load(&figures->backups);
    }
    return left == 0;
}

/* Closes all, and waits until all room is free: what stays must not differ between two questions. */
static void close_all(void)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t bytes[TEST_FRAME_BYTES];
        struct test_frame frame;
        assert_true(test_client_send(&client, bytes, protocol_close_write(bytes, streams[i])));
        test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    }
    count = 0;
    while (!is_empty()) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

/* Where nobody is moved they say the same in whatever state. */
static struct seen query_and_open_agree(const char *name, const char *gpus, uint64_t seed)
{
    struct test_random random = {.state = seed};
    struct seen seen = {0};
    start(name, 1, "move_ms: 0", gpus, 2);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < ASKS; i++) {
            struct core_stream_spec spec = draw(&random);
            struct protocol_refused refused;
            if (!ask_both(&spec, &refused, &seen) && refused.code == PROTOCOL_REFUSED_CAPACITY)
                take_offer(&spec, test_random_chance(&random, 50), &refused, &seen);
        }
        close_all();
    }
    print_message(
        "%u granted, %u of them on a card, %u guaranteed, %u with backups, %u of these on a card; "
        "%u refused, %u by batches alone; offers taken: %u intervals, %u latency bounds; %u times too busy\n",
        seen.taken, seen.on_gpu, seen.guaranteed, seen.backed, seen.on_other, seen.refused, seen.by_batches,
        seen.intervals, seen.latencies, seen.busy);
    assert_true(seen.taken > 100 && seen.on_gpu > 20 && seen.guaranteed > 20 && seen.refused > 100);
    assert_true(seen.intervals > 10 && seen.latencies > 10 && seen.by_batches > 10);
    stop();
    return seen;
}

static void queries_agree_with_opens(void **state)
{
    (void)state;
    (void)query_and_open_agree("emulated-demo", "", 57);
}

/* Each card holds room for the loss of the other one. */
static void queries_agree_with_opens_on_two_gpus(void **state)
{
    (void)state;
    struct seen seen = query_and_open_agree("emulated-pair", "hang_ms: 50", 54);
    assert_true(seen.backed > 5 && seen.on_other > 3);
}

/* With its offers; and nobody is there to be moved. */
static void ask_empty_server(const struct core_stream_spec *spec, struct seen *seen)
{
    struct protocol_refused refused;
    for (int offer = 0; offer < 2; offer++) {
        if (ask_both(spec, &refused, seen) || refused.code != PROTOCOL_REFUSED_CAPACITY)
            break;
        assert_null(strstr(refused.text, "moved"));
        take_offer(spec, offer == 0, &refused, seen);
        close_all();
    }
    close_all();
}

/* Contracts that QUERY took on the empty server, and OPEN refused; one that was offered none and is accepted
 * with a bound of an hour. And others, a nanosecond below what is offered: there the rules of a plan that is
 * made anew, for moves, hold more than an admission does, where a worker is too slow to take them. */
static void queries_agree_with_opens_on_an_empty_server(void **state)
{
    static const struct core_stream_spec found[] = {
        {9968, 1, 6071995, 5330126, CORE_CIPHER_AES_128_CBC, CORE_PADDING_NONE, .guaranteed = false},
        {4704, 6, 13462239, 8390633, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE, .guaranteed = false},
        {3952, 1, 649244, 18574454, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE, .guaranteed = false},
        {8656, 1, 1897009, 2508899, CORE_CIPHER_AES_256_CBC, CORE_PADDING_NONE, .guaranteed = true},
    };
    struct test_random random = {.state = 55};
    (void)state;

    for (int64_t slow = 1; slow <= 1000; slow *= 1000) {
        struct seen seen = {0};
        start("emulated-demo", slow, "move_ms: 60000", "", 2);
        for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
            ask_empty_server(&found[i], &seen);
        for (int i = 0; i < ASKS; i++) {
            struct core_stream_spec spec = draw(&random);
            ask_empty_server(&spec, &seen);
        }
        print_message("%u granted, %u refused; offers taken: %u intervals, %u latency bounds\n", seen.taken,
                      seen.refused, seen.intervals, seen.latencies);
        assert_true(seen.taken > 10 && (slow == 1 || (seen.intervals > 10 && seen.latencies > 0)));
        stop();
    }
}

/* The first `length` bytes end with one of these. */
static void expect_end(const char *text, size_t length, const char *const *ends, size_t count_of_ends)
{
    bool found = false;
    for (size_t n = 0; n < count_of_ends; n++) {
        size_t bytes = strlen(ends[n]);
        found = found || (bytes <= length && memcmp(text + length - bytes, ends[n], bytes) == 0);
    }
    if (!found)
        fail_msg("this is no end: %.*s", (int)length, text);
}

/* A reason is whole, and so is what became of the moves. */
static void expect_whole(const char *text, size_t reason_bytes)
{
    static const char *const reasons[] = {" us",    " ms",         " s",          ")",
                                          " often", " only one",   " stream",     " it has",
                                          " there", " the change", " the profile"};
    static const char *const ends[] = {
        "; capacity could not be freed by migrating other streams; retry later",
        "; no feasible plan even after migrating other streams",
        "; timed out while migrating other streams (timeouts.move_ms); retry"};
    expect_end(text, reason_bytes, reasons, sizeof reasons / sizeof reasons[0]);
    expect_end(text, strlen(text), ends, sizeof ends / sizeof ends[0]);
}

/* Among others QUERY says that they might be moved, and what OPEN then makes of it is its own. */
static void query_migrates_no_stream_and_says_so(void **state)
{
    struct test_random random = {.state = 61};
    uint32_t advised = 0, refused_both = 0;
    size_t longest = 0;
    (void)state;

    start("emulated-demo", 1, "move_ms: 1000", "", 1); /* without notices of moves */
    for (int i = 0; i < ASKS; i++) {
        struct core_stream_spec spec = draw(&random);
        struct protocol_opened opened;
        struct protocol_refused asked, refused;
        spec.guaranteed = false;
        bool would = ask(PROTOCOL_QUERY, &spec, &opened, &asked);
        bool does = ask(PROTOCOL_OPEN, &spec, &opened, &refused);
        assert_true(!would || does || too_busy(&refused));
        if (would)
            continue;
        const char *advice = strstr(asked.text, "; an OPEN would also try to free capacity");
        advised += advice != NULL;
        if (does || advice == NULL || too_busy(&refused))
            continue;
        /* the same reason, whole, and what became of the moves */
        assert_memory_equal(asked.text, refused.text, (size_t)(advice - asked.text));
        expect_whole(refused.text, (size_t)(advice - asked.text));
        longest = strlen(refused.text) > longest ? strlen(refused.text) : longest;
        refused_both++;
    }
    print_message("%u refused with the advice, %u refused by OPEN, too; up to %zu bytes of text\n", advised,
                  refused_both, longest);
    assert_true(advised > 5 && refused_both > 5 && longest > 200);
    close_all();
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_agree_with_opens),
        cmocka_unit_test(queries_agree_with_opens_on_two_gpus),
        cmocka_unit_test(queries_agree_with_opens_on_an_empty_server),
        cmocka_unit_test(query_migrates_no_stream_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
