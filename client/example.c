/* How to use libmillrace: opens one stream, sends it ten packets at its pace, prints when each came back.
 *
 *   millrace_example unix:/run/millrace/millraced.sock camera-7
 *
 * where camera-7 is a key of the server's keyring (aes-128-cbc). */
#include "client/millrace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKET_BYTES 1408
#define TIMEOUT_MS   5000

static void fail(const char *doing, const struct core_error *error)
{
    fprintf(stderr, "%s: %s\n", doing, error->text);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s ADDRESS KEY-NAME\n", argv[0]);
        return 2;
    }
    struct core_error error;
    struct millrace *connection;
    if (millrace_connect(argv[1], NULL, TIMEOUT_MS, &connection, &error) != CORE_OK)
        fail("connect", &error);

    /* The contract: 50 packets a second, each back within 20 ms. The server accepts it only if it can keep
     * it beside everything it has promised before. */
    const struct protocol_open contract = {
        .spec = {.packet_bytes = PACKET_BYTES,
                 .burst_packets = 2, /* our clock may jitter by one packet */
                 .interval_ns = 20 * CORE_NS_PER_MS,
                 .latency_ns = 20 * CORE_NS_PER_MS,
                 .cipher = CORE_CIPHER_AES_128_CBC,
                 .padding = CORE_PADDING_NONE},
        .key_kind = PROTOCOL_KEY_NAMED,
        .key = (const uint8_t *)argv[2],
        .key_bytes = (uint32_t)strlen(argv[2]),
    };
    struct protocol_opened opened;
    if (millrace_open_stream(connection, &contract, TIMEOUT_MS, &opened, NULL, &error) != CORE_OK)
        fail("open", &error);
    printf("stream %u: at most %.3f ms\n", opened.stream, (double)opened.bound_ns / 1e6);

    core_ns next_ns = core_time_now_ns();
    for (int i = 0; i < 10; i++, next_ns += contract.spec.interval_ns) {
        uint8_t packet[PACKET_BYTES] = {0}, ciphertext[PACKET_BYTES + CORE_BLOCK_BYTES];
        uint32_t bytes;
        struct protocol_result result;
        core_time_sleep_until(next_ns);
        if (millrace_encrypt(connection, opened.stream, packet, sizeof packet, TIMEOUT_MS, ciphertext, &bytes,
                             &result, &error) != CORE_OK)
            fail("encrypt", &error);
        printf("packet %d: %u bytes in %.3f ms, deadline %s\n", i, bytes, (double)result.latency_ns / 1e6,
               result.flags & PROTOCOL_RESULT_MET ? "met" : "missed");
    }

    struct protocol_closed closed;
    if (millrace_close_stream(connection, opened.stream, TIMEOUT_MS, &closed, &error) != CORE_OK)
        fail("close", &error);
    millrace_disconnect(connection);
    return 0;
}
