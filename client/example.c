/* How to use libmillrace: opens one stream, sends it ten packets at its pace, prints when each came back.
 *
 *   millrace_example unix:/run/millrace/millraced.sock camera-7
 *
 * where camera-7 is a key of the server's keyring (aes-128-cbc). */
#include <millrace/millrace.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PACKET_BYTES 1408
#define PACKET_EVERY (20 * 1000 * 1000) /* nanoseconds */
#define TIMEOUT_MS   5000
#define SECOND       (1000 * 1000 * 1000)

static void fail(const char *doing, const char *error)
{
    fprintf(stderr, "%s: %s\n", doing, error);
    exit(1);
}

static void sleep_until_next(struct timespec *next)
{
    next->tv_nsec += PACKET_EVERY;
    next->tv_sec += next->tv_nsec / SECOND;
    next->tv_nsec %= SECOND;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, next, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s ADDRESS KEY-NAME\n", argv[0]);
        return 2;
    }
    char error[MILLRACE_TEXT_BYTES];
    struct millrace *connection;
    if (millrace_connect(argv[1], NULL, TIMEOUT_MS, &connection, error) != MILLRACE_OK)
        fail("connect", error);

    /* The contract: 50 packets a second, each back within 20 ms. The server accepts it only if it can keep
     * it beside everything it has promised before. */
    const struct millrace_open contract = {
        .size = sizeof contract,
        .packet_bytes = PACKET_BYTES,
        .burst_packets = 2, /* our clock may jitter by one packet */
        .interval_ns = PACKET_EVERY,
        .latency_ns = 20 * 1000 * 1000,
        .cipher = MILLRACE_CIPHER_AES_128_CBC,
        .key_kind = MILLRACE_KEY_NAMED,
        .key = argv[2],
        .key_bytes = strlen(argv[2]),
    };
    struct millrace_opened opened = {.size = sizeof opened};
    if (millrace_open_stream(connection, &contract, TIMEOUT_MS, &opened, NULL, error) != MILLRACE_OK)
        fail("open", error);
    printf("stream %" PRIu32 ": at most %.3f ms\n", opened.stream, (double)opened.bound_ns / 1e6);

    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (int i = 0; i < 10; i++, sleep_until_next(&next)) {
        uint8_t packet[PACKET_BYTES] = {0}, ciphertext[PACKET_BYTES + MILLRACE_BLOCK_BYTES];
        uint32_t bytes;
        struct millrace_result result = {.size = sizeof result};
        if (millrace_encrypt(connection, opened.stream, packet, sizeof packet, TIMEOUT_MS, ciphertext, &bytes,
                             &result, error) != MILLRACE_OK)
            fail("encrypt", error);
        printf("packet %d: %" PRIu32 " bytes in %.3f ms, deadline %s\n", i, bytes,
               (double)result.latency_ns / 1e6, result.flags & MILLRACE_RESULT_MET ? "met" : "missed");
    }

    if (millrace_close_stream(connection, opened.stream, TIMEOUT_MS, NULL, error) != MILLRACE_OK)
        fail("close", error);
    millrace_disconnect(connection);
    return 0;
}
