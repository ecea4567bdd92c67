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
    char shown[COMMAND_TEXT_BYTES], hex[2 * 32 + 1];
    double rate;
    core_ns duration_ns;
    uint64_t number;
    uint8_t key[32];
    size_t count;
    if (command_parse_rate(text, &rate)) {
        require(rate > 0);
        command_format_rate(rate, shown);
    }
    if (command_parse_duration(text, &duration_ns)) {
        require(duration_ns >= 0);
        command_format_duration(duration_ns, shown);
    }
    if (command_parse_count(text, 1000, &number))
        require(number <= 1000);
    if (command_parse_bytes(text, 1 << 20, &number))
        require(number <= 1 << 20);
    if (command_parse_hex(text, bytes, key, sizeof key, &count)) {
        command_format_hex(key, count, hex);
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
