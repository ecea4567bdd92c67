/* A batch that has no room for a packet: the packet waits and goes into a later one, in order, and nothing is
 * lost. The plan keeps that from happening but where packets reach their batch late and meet those of the
 * next; so the linker puts a function in front of gpu_arena_append that turns packets away (--wrap in
 * CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

#include "gpu/arena.h"
#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/random.h"
#include "tests/support/stream.h"

#define STREAMS 12
#define PACKETS 3000

core_status __real_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place);
core_status __wrap_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place);

static _Atomic uint32_t appends, turned_away; /* written by the I/O thread */

/* Every third packet is turned away, and every hundredth some times in a row. */
core_status __wrap_gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                    const struct gpu_packet *packet, struct gpu_place *place)
{
    uint32_t number = atomic_fetch_add(&appends, 1);
    if (number % 3 == 0 || number % 100 < 5) {
        atomic_fetch_add(&turned_away, 1);
        return number % 2 == 0 ? CORE_FULL : CORE_AGAIN;
    }
    return __real_gpu_arena_append(arenas, writer, packet, place);
}

static void nothing_is_lost_where_batches_are_full(void **state)
{
    const struct core_stream_spec spec = {.packet_bytes = 1408,
                                          .burst_packets = 8,
                                          .interval_ns = 2 * CORE_NS_PER_MS,
                                          .latency_ns = 80 * CORE_NS_PER_MS,
                                          .cipher = CORE_CIPHER_AES_192_CBC,
                                          .padding = CORE_PADDING_NONE};
    struct config_profile *profile = test_gpu_profile(100000); /* nothing is for the workers */
    struct test_server server = {0};
    struct test_client client;
    struct test_stream *streams[STREAMS];
    struct test_random random = {.state = 4};
    uint32_t waiting = 0;
    uint64_t sent = 0;
    (void)state;

    test_gpu_server_start(&server, "audit: 2, hang_ms: 3000", "", profile);
    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint32_t i = 0; i < STREAMS; i++) {
        streams[i] = test_stream_open(&client, &spec, i);
        assert_int_equal(streams[i]->opened.unit, PROTOCOL_UNIT_GPU);
    }
    for (uint32_t i = 0; i < PACKETS; i++) {
        struct test_stream *stream = streams[test_random_in(&random, 0, STREAMS - 1)];
        assert_true(test_stream_send(stream, (uint32_t)test_random_in(&random, 1, 88) * 16));
        for (waiting++; waiting > 60; waiting--) /* right to the byte and in order */
            (void)test_streams_take(&client, streams);
    }
    for (; waiting > 0; waiting--)
        (void)test_streams_take(&client, streams);
    for (uint32_t i = 0; i < STREAMS; i++) {
        sent += streams[i]->sent;
        assert_int_equal(test_stream_close(streams[i]).packets, streams[i]->sent);
        test_stream_free(streams[i]);
    }
    const struct server_stats *stats = &server.server->ios[0]->stats;
    assert_true(atomic_load(&turned_away) >= PACKETS / 3);
    assert_int_equal(server_stats_get(&stats->packets), sent);
    assert_int_equal(server_stats_get(&stats->gpu_packets), sent);
    assert_int_equal(server_stats_get(&stats->met) + server_stats_get(&stats->missed), sent);
    assert_int_equal(server_stats_get(&stats->lost), 0);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_where_batches_are_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
