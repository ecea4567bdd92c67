/* Arbitrary texts for what the `millrace` command parses: values of options, and the answer of an HTTP
 * server. */
#include "client/command.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void fuzz_values(const char *text, size_t bytes)
{
    char shown[CORE_TEXT_BYTES], hex[2 * 32 + 1];
    double rate;
    core_ns duration_ns;
    uint64_t number;
    uint8_t key[32];
    size_t count;
    if (core_rate_parse(text, 1, &rate)) {
        require(rate > 0);
        core_rate_format(rate, shown);
    }
    if (core_duration_parse(text, bytes % 2, &duration_ns)) {
        require(duration_ns >= 0);
        core_duration_format(duration_ns, shown);
    }
    if (core_count_parse(text, 1000, &number))
        require(number <= 1000);
    if (core_bytes_parse(text, 1, 1 << 20, &number))
        require(number <= 1 << 20);
    if (core_hex_parse(text, bytes, key, sizeof key, &count)) {
        core_hex_format(key, count, hex);
        require(2 * count == bytes && strncasecmp(hex, text, bytes) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    const char *body;
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    fuzz_values(text, size);
    if (command_http_body(text, size, &body, NULL) == CORE_OK)
        require(body >= text && body <= text + size);
    free(text);
    return 0;
}
