/* How to encrypt with the server inside the program: no daemon, no socket, one file to configure it (docs/library.md).
 *
 *   millrace_example_embedded millrace.yaml */
#include <millrace/millrace.h>

#include <inttypes.h>
#include <stdio.h>

#define PACKET_BYTES 1408
#define TIMEOUT_MS   5000

static int fail(const char *doing, const char *error)
{
    fprintf(stderr, "%s: %s\n", doing, error);
    return 1;
}

int main(int argc, char **argv)
{
    static const uint8_t key[16] = {1, 2, 3}; /* yours is a secret */
    const struct millrace_open contract = {.size = sizeof contract,
                                           .packet_bytes = PACKET_BYTES,
                                           .burst_packets = 2,
                                           .interval_ns = 1000 * 1000,     /* a thousand packets a second, */
                                           .latency_ns = 20 * 1000 * 1000, /* each back within 20 ms */
                                           .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                           .key_kind = MILLRACE_KEY_INLINE,
                                           .key = key,
                                           .key_bytes = sizeof key};
    struct millrace_opened opened = {.size = sizeof opened};
    uint8_t packet[PACKET_BYTES] = "plaintext", ciphertext[PACKET_BYTES + MILLRACE_BLOCK_BYTES];
    char address[4096], error[MILLRACE_TEXT_BYTES];
    struct millrace *connection;
    uint32_t bytes;

    snprintf(address, sizeof address, "embedded:%s", argc == 2 ? argv[1] : "millrace.yaml");
    if (millrace_connect(address, NULL, TIMEOUT_MS, &connection, error) !=
        MILLRACE_OK) /* starts the server */
        return fail("connect", error);
    if (millrace_open_stream(connection, &contract, TIMEOUT_MS, &opened, NULL, error) != MILLRACE_OK)
        return fail("open", error);
    for (int i = 0; i < 10; i++)
        if (millrace_encrypt(connection, opened.stream, packet, sizeof packet, TIMEOUT_MS, ciphertext, &bytes,
                             NULL, error) != MILLRACE_OK)
            return fail("encrypt", error);
    printf("10 packets of %" PRIu32 " bytes, each within %.3f ms\n", bytes, (double)opened.bound_ns / 1e6);
    millrace_disconnect(connection); /* the last one: the server stops, and leaves nothing behind */
    return 0;
}
