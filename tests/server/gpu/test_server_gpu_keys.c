/* A key is the batcher's from when it is sent until it is answered. A stream opens although its card's child
 * dies with the key in it and the next one has come already: the I/O thread sends the key again, and answers
 * the OPEN without another look at what it has just given away. The linker puts a function in front of
 * server_gpu_send_key that is such a batcher (--wrap in CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <unistd.h>

#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/stream.h"

#define CHILD_BEFORE UINT32_MAX

void __real_server_gpu_send_key(struct server_gpu *gpu, struct server_gpu_key *key);
void __wrap_server_gpu_send_key(struct server_gpu *gpu, struct server_gpu_key *key);

static _Atomic uint32_t sent; /* written by the I/O thread */

/* The first child has it and is gone; of the next one's answer the batcher has written a part when we come
 * back from here. */
void __wrap_server_gpu_send_key(struct server_gpu *gpu, struct server_gpu_key *key)
{
    if (atomic_fetch_add(&sent, 1) > 0) {
        key->overdue = true;
        __real_server_gpu_send_key(gpu, key);
        usleep(20000); /* a look at it from here on is beside the batcher's writes: ThreadSanitizer tells */
        return;
    }
    key->generation = CHILD_BEFORE;
    key->overdue = false;
    key->message.run = key->answered;
    server_mailbox_post(key->reply, &key->message);
}

static void a_stream_opens_while_its_key_is_on_the_way_again(void **state)
{
    const struct core_stream_spec spec = {.packet_bytes = 1408,
                                          .burst_packets = 8,
                                          .interval_ns = 2 * CORE_NS_PER_MS,
                                          .latency_ns = 80 * CORE_NS_PER_MS,
                                          .cipher = CORE_CIPHER_AES_128_CBC,
                                          .padding = CORE_PADDING_NONE};
    struct config_profile *profile = test_gpu_profile(100000); /* nothing is for the workers */
    struct test_server server = {0};
    struct test_client client;
    (void)state;

    test_gpu_server_start(&server, "audit: 1", "", profile);
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1); /* OPENED, or the test fails */
    assert_int_equal(stream->opened.unit, PROTOCOL_UNIT_GPU);
    for (uint32_t i = 0; i < 50; i++) {
        assert_true(test_stream_send(stream, 1408));
        test_stream_drain(stream);
    }
    assert_int_equal(test_stream_close(stream).packets, 50);
    assert_int_equal(atomic_load(&sent), 2);
    test_stream_free(stream);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_opens_while_its_key_is_on_the_way_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
