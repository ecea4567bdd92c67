/* Audits: which packets of a GPU are encrypted by CPU as well, that they are held against what the client
 * sent, and that what was compared is what is sent, although the card can write to its memory all the time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "server/net/io.h"
#include "tests/support/gpu_server.h"
#include "tests/support/require.h"
#include "tests/support/stream.h"

#define PACKETS 40

static const struct core_stream_spec spec = {.packet_bytes = 1408,
                                             .burst_packets = 4,
                                             .interval_ns = 4 * CORE_NS_PER_MS,
                                             .latency_ns = 80 * CORE_NS_PER_MS,
                                             .cipher = CORE_CIPHER_AES_128_CBC,
                                             .padding = CORE_PADDING_NONE};

static struct test_server server;
static _Atomic uint32_t lent; /* results that would have been sent out of a card's memory */
static _Atomic bool spoil;

/* A card that writes into a batch just before its results are sent. */
void __real_server_output_results(struct server_stream *stream);
void __wrap_server_output_results(struct server_stream *stream);
void __wrap_server_output_results(struct server_stream *stream)
{
    struct server_packet *packet = stream->queue.head;
    if (packet != NULL && packet->ready && packet->output.payload != server_packet_payload(packet)) {
        atomic_fetch_add(&lent, 1);
        if (atomic_load(&spoil))
            memset((uint8_t *)(uintptr_t)packet->output.payload, 0x5a, CORE_BLOCK_BYTES);
    }
    __real_server_output_results(stream);
}

static _Atomic uint32_t at_once; /* packets that went into a batch and never into their slot */
static _Atomic bool forge;

/* A card that changes the plaintext of a packet that has just come into its batch. */
core_status __real_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place);
core_status __wrap_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place);
core_status __wrap_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place)
{
    struct server_packet *whose = (struct server_packet *)(uintptr_t)packet->cookie;
    core_status status = __real_gpu_arena_append(arenas, writer, packet, place);
    if (status == CORE_OK && packet->payload != server_packet_payload(whose))
        atomic_fetch_add(&at_once, 1);
    if (status == CORE_OK && atomic_load(&forge))
        place->input[5] ^= 1;
    return status;
}

static void start(const char *gpus)
{
    struct config_profile *profile = test_gpu_profile(100000); /* nothing is for the workers */
    memset(&server, 0, sizeof server);
    atomic_store(&lent, 0);
    atomic_store(&at_once, 0);
    atomic_store(&spoil, false);
    atomic_store(&forge, false);
    test_server_prepare(&server);
    test_server_write(&server, "keyring",
                      "trusted aes-128-cbc 000102030405060708090a0b0c0d0e0f audit\n"
                      "other aes-128-cbc 000102030405060708090a0b0c0d0e0f\n");
    test_gpu_server_start(&server, gpus, "keyring: keyring\n", profile);
    config_profile_free(profile);
}

static struct test_stream *open_with(struct test_client *client, const char *name)
{
    uint8_t key[16] = {0};
    struct protocol_opened opened;
    struct protocol_refused refused;
    struct protocol_open open = test_open_inline(&spec, key);
    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)i;
    open.key_kind = PROTOCOL_KEY_NAMED;
    open.key = (const uint8_t *)name;
    open.key_bytes = (uint32_t)strlen(name);
    TEST_REQUIRE(test_client_ask(client, PROTOCOL_OPEN, &open, &opened, &refused));
    assert_int_equal(opened.unit, PROTOCOL_UNIT_GPU);
    return test_stream_adopt(client, &spec, 7, key, &opened);
}

static uint64_t audited(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < server.server->io_count; i++)
        sum += atomic_load(&server.server->ios[i]->stats.audited);
    return sum;
}

/* All of them must be right. */
static void send_packets(struct test_stream *stream)
{
    for (int i = 0; i < PACKETS; i++) {
        assert_true(test_stream_send(stream, 1408));
        if (i % 4 == 3)
            test_stream_drain(stream);
    }
    (void)test_stream_close(stream);
    test_stream_free(stream);
}

static void a_key_may_ask_for_all_packets(void **state)
{
    struct test_client client;
    (void)state;
    start("audit: 0, hang_ms: 3000");
    test_client_connect(&client, test_server_unix(&server), NULL);
    send_packets(open_with(&client, "other"));
    assert_int_equal(audited(), 0);
    assert_true(atomic_load(&lent) > 0);
    uint32_t before = atomic_load(&at_once); /* not all of them: one that comes too early waits in its slot */
    assert_true(before > 0);
    atomic_store(&spoil, true);
    send_packets(open_with(&client, "trusted"));
    assert_int_equal(audited(), PACKETS);
    assert_int_equal(atomic_load(&at_once), before);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

static void all_may_be_audited(void **state)
{
    struct test_client client;
    (void)state;
    start("audit: 1, hang_ms: 3000");
    atomic_store(&spoil, true);
    test_client_connect(&client, test_server_unix(&server), NULL);
    send_packets(open_with(&client, "other"));
    assert_int_equal(audited(), PACKETS);
    assert_int_equal(atomic_load(&lent), 0);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* It encrypts what it has made of the plaintext, and is found out. */
static void changed_plaintext_is_noticed(void **state)
{
    struct test_client client;
    const struct server_stats *stats;
    (void)state;
    start("audit: 1, hang_ms: 3000");
    stats = &server.server->ios[0]->stats;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = open_with(&client, "other");
    atomic_store(&forge, true);
    while (server_stats_get(&stats->corrupt) == 0) {
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
    atomic_store(&forge, false);
    send_packets(stream);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_may_ask_for_all_packets),
        cmocka_unit_test(all_may_be_audited),
        cmocka_unit_test(changed_plaintext_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
