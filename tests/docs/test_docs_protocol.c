/* The examples of docs/protocol.md, byte by byte: what the codec writes for what their remarks say; and its
 * list of constraints. */
#include "core/protocol.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FRAME_BYTES (PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX)
#define FRAMES_MAX  16

struct frame {
    uint8_t bytes[FRAME_BYTES];
    uint32_t count;
};

/* The frames of all ```hex blocks, in order; returns how many. */
static uint32_t read_document(struct frame frames[FRAMES_MAX])
{
    char line[1024];
    bool inside = false;
    uint32_t count = 0;
    FILE *file = fopen(MILLRACE_SOURCE_DIR "/docs/protocol.md", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        assert_non_null(strchr(line, '\n')); /* none is cut */
        if (strncmp(line, "```", 3) == 0) {
            inside = strcmp(line, "```hex\n") == 0;
            continue;
        }
        if (!inside)
            continue;
        assert_true(count < FRAMES_MAX);
        struct frame *frame = &frames[count++];
        unsigned byte;
        int taken;
        frame->count = 0;
        for (const char *at = line; *at != '#' && *at != '\0'; at += taken) {
            taken = 1;
            if (isspace((unsigned char)*at))
                continue;
            assert_true(frame->count < FRAME_BYTES);
            assert_int_equal(sscanf(at, "%2x%n", &byte, &taken), 1);
            assert_int_equal(taken, 2);
            frame->bytes[frame->count++] = (uint8_t)byte;
        }
    }
    assert_int_equal(fclose(file), 0);
    return count;
}

static const struct protocol_welcome welcome = {
    .version = 2,
    .flags = PROTOCOL_ALLOWS_INLINE_KEY | PROTOCOL_ALLOWS_CLIENT_IV,
    .packet_bytes_max = 65536,
    .burst_packets_max = 1024,
    .streams_max = 4096,
    .stream_buffer_bytes_max = UINT64_C(4) << 20,
    .bytes_per_key = UINT64_C(1) << 40,
    .interval_ns_min = CORE_NS_PER_US,
    .latency_ns_min = 10 * CORE_NS_PER_US,
};

static const struct protocol_open open_ = {
    .spec = {.packet_bytes = 1408,
             .burst_packets = 2,
             .interval_ns = 20 * CORE_NS_PER_MS,
             .latency_ns = 20 * CORE_NS_PER_MS,
             .cipher = CORE_CIPHER_AES_128_CBC,
             .padding = CORE_PADDING_NONE,
             .guaranteed = true},
    .key_kind = PROTOCOL_KEY_NAMED,
    .key = (const uint8_t *)"camera-7",
    .key_bytes = 8,
};

static const struct protocol_opened opened = {
    .stream = 1,
    .unit = PROTOCOL_UNIT_GPU,
    .bound_ns = 15 * CORE_NS_PER_MS,
    .decided_ns = 200 * CORE_NS_PER_US,
    .queue_packets = 10,
    .in_force_ns = 8 * CORE_NS_PER_MS,
    .iv = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    .backup = {PROTOCOL_UNIT_CPU, 1, 20 * 1000 * 1000, 19 * CORE_NS_PER_MS},
};

static const struct protocol_modify modify[] = {
    {1, 2, 10 * CORE_NS_PER_MS, 20 * CORE_NS_PER_MS},
    {2, 2, 10 * CORE_NS_PER_MS, 20 * CORE_NS_PER_MS},
};

static const struct protocol_modified modified = {
    .stream = 1,
    .unit = PROTOCOL_UNIT_GPU,
    .bound_ns = 15 * CORE_NS_PER_MS,
    .decided_ns = 100 * CORE_NS_PER_US,
    .in_force_ns = 7 * CORE_NS_PER_MS,
    .first = 5,
    .queue_packets = 11,
    .backup = {PROTOCOL_UNIT_CPU, 1, 40 * 1000 * 1000, 19 * CORE_NS_PER_MS},
};

static const struct protocol_refused refused = {.code = PROTOCOL_REFUSED_CAPACITY,
                                                .constraint = 6,
                                                .offer_interval_ns = 16 * CORE_NS_PER_MS,
                                                .decided_ns = 90 * CORE_NS_PER_US,
                                                .text = "the kernel is full"};

static const struct protocol_notice notice = {
    .kind = PROTOCOL_NOTICE_DEGRADED, .unit = PROTOCOL_UNIT_CPU, .text = "GPU 0 is lost"};
static const struct protocol_notice leaving = {.kind = PROTOCOL_NOTICE_LEAVING, .text = "going away"};

static const struct protocol_open messages = {
    .spec = {.packet_bytes = 1408,
             .burst_packets = 2,
             .interval_ns = 20 * CORE_NS_PER_MS,
             .latency_ns = 20 * CORE_NS_PER_MS,
             .cipher = CORE_CIPHER_AES_128_CBC,
             .padding = CORE_PADDING_PKCS7,
             .unit = CORE_UNIT_MESSAGE,
             .iv = CORE_IV_COUNTER,
             .first_unit = 5},
    .key_kind = PROTOCOL_KEY_NAMED,
    .key = (const uint8_t *)"camera-7",
    .key_bytes = 8,
};

static const struct protocol_open patterned = {
    .spec = {.packet_bytes = 1408,
             .burst_packets = 2,
             .interval_ns = 20 * CORE_NS_PER_MS,
             .latency_ns = 20 * CORE_NS_PER_MS,
             .cipher = CORE_CIPHER_AES_128_CBC,
             .padding = CORE_PADDING_CLEAR,
             .unit = CORE_UNIT_MESSAGE,
             .iv = CORE_IV_CONSTANT,
             .crypt_blocks = 1,
             .skip_blocks = 9},
    .key_kind = PROTOCOL_KEY_NAMED,
    .key = (const uint8_t *)"camera-7",
    .key_bytes = 8,
    .has_iv = true,
    .iv = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
};

static const struct protocol_open records = {
    .spec = {.packet_bytes = 1316,
             .burst_packets = 2,
             .interval_ns = 20 * CORE_NS_PER_MS,
             .latency_ns = 20 * CORE_NS_PER_MS,
             .cipher = CORE_CIPHER_AES_128_CBC,
             .padding = CORE_PADDING_CLEAR,
             .unit = CORE_UNIT_MESSAGE,
             .iv = CORE_IV_CONSTANT,
             .direction = CORE_DIRECTION_DECRYPT,
             .records = CORE_RECORDS_TS},
    .key_kind = PROTOCOL_KEY_NAMED,
    .key = (const uint8_t *)"camera-7",
    .key_bytes = 8,
    .has_iv = true,
    .iv = "DVBTMCPTAESCISSA",
};

static const struct protocol_open authentic = {
    .spec = {.packet_bytes = 1408,
             .burst_packets = 2,
             .interval_ns = 20 * CORE_NS_PER_MS,
             .latency_ns = 20 * CORE_NS_PER_MS,
             .cipher = CORE_CIPHER_AES_128_CBC,
             .padding = CORE_PADDING_PKCS7,
             .unit = CORE_UNIT_MESSAGE,
             .iv = CORE_IV_COUNTER,
             .first_unit = 5,
             .mac = CORE_MAC_HMAC_SHA_256_128},
    .key_kind = PROTOCOL_KEY_NAMED,
    .key = (const uint8_t *)"camera-7",
    .key_bytes = 8,
    .mac_id = {0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe,
               0xff},
};

static const struct protocol_rekey rekey = {3, PROTOCOL_KEY_NAMED, (const uint8_t *)"camera-8", 8, 6};

static const struct protocol_rekeyed rekeyed = {3, 6, 500 * CORE_NS_PER_US};

static uint32_t write_all(struct frame frames[FRAMES_MAX])
{
    uint32_t n = 0;
    frames[n].count = protocol_hello_write(frames[n].bytes, 1, 2), n++;
    frames[n].count = protocol_welcome_write(frames[n].bytes, &welcome), n++;
    frames[n].count = protocol_open_write(2, frames[n].bytes, PROTOCOL_OPEN, 7, &open_), n++;
    frames[n].count = protocol_opened_write(2, frames[n].bytes, 7, &opened), n++;
    frames[n].count = protocol_modify_write(frames[n].bytes, 8, &modify[0]), n++;
    frames[n].count = protocol_modified_write(frames[n].bytes, 8, &modified), n++;
    frames[n].count = protocol_modify_write(frames[n].bytes, 9, &modify[1]), n++;
    frames[n].count = protocol_refused_write(2, frames[n].bytes, 9, &refused), n++;
    frames[n].count = protocol_notice_write(frames[n].bytes, 2, &notice), n++;
    frames[n].count = protocol_open_write(3, frames[n].bytes, PROTOCOL_OPEN, 10, &messages), n++;
    frames[n].count = protocol_rekey_write(frames[n].bytes, 11, &rekey), n++;
    frames[n].count = protocol_rekeyed_write(frames[n].bytes, 11, &rekeyed), n++;
    frames[n].count = protocol_open_write(3, frames[n].bytes, PROTOCOL_OPEN, 12, &patterned), n++;
    frames[n].count = protocol_open_write(3, frames[n].bytes, PROTOCOL_OPEN, 13, &records), n++;
    frames[n].count = protocol_open_write(3, frames[n].bytes, PROTOCOL_OPEN, 14, &authentic), n++;
    frames[n].count = protocol_notice_write(frames[n].bytes, 0, &leaving), n++;
    return n;
}

static void test_examples(void **state)
{
    static struct frame expected[FRAMES_MAX], found[FRAMES_MAX];
    uint32_t count = write_all(expected);
    (void)state;
    assert_int_equal(read_document(found), count);
    for (uint32_t i = 0; i < count; i++) {
        bool same = found[i].count == expected[i].count &&
                    memcmp(found[i].bytes, expected[i].bytes, expected[i].count) == 0;
        for (uint32_t byte = 0; !same && byte < expected[i].count; byte++)
            fprintf(stderr, "%02x", expected[i].bytes[byte]);
        if (!same)
            fail_msg("example %u has %u bytes; above is what it must be", i, found[i].count);
    }
}

/* ---- constraints ---- */

/* The last two cells of a row of the table that has codes and constraints side by side. */
static bool read_constraint(char *line, unsigned long *number, const char **meaning)
{
    char *cell[8] = {NULL}, *end;
    size_t cells = 0;
    for (char *at = strchr(line, '|'); at != NULL && cells < 8; at = strchr(at, '|')) {
        *at++ = '\0';
        cell[cells++] = at;
    }
    if (cells != 6)
        return false;
    *number = strtoul(cell[3], &end, 10);
    *meaning = cell[4];
    return end != cell[3] && *end == ' ';
}

/* The page lists the constraints that are sent, each once and in order, and no other. */
static void test_constraints(void **state)
{
    static const char *const words[] = {[PROTOCOL_LIMIT_DEADLINE] = "below what an idle server could keep",
                                        [PROTOCOL_LIMIT_CPU_UTILISATION] = "long-run load of the CPU workers",
                                        [PROTOCOL_LIMIT_CPU_DEMAND] = "demand of the CPU workers",
                                        [PROTOCOL_LIMIT_IO] = "I/O thread",
                                        [PROTOCOL_LIMIT_GPU_COPY] = "copies to and from the GPUs",
                                        [PROTOCOL_LIMIT_GPU_KERNEL] = "the GPUs' kernels",
                                        [PROTOCOL_LIMIT_GPU_LATENCY] = "a shortest latency bound on the GPUs",
                                        [PROTOCOL_LIMIT_GPU_MEMORY] = "memory for the GPUs' batches",
                                        [PROTOCOL_LIMIT_GPU_OUT] = "out of service",
                                        [PROTOCOL_LIMIT_RESERVE] = "in reserve",
                                        [PROTOCOL_LIMIT_BACKUP] = "for the loss of the stream's GPU"};
    const unsigned long count = sizeof words / sizeof words[0];
    char line[1024];
    bool inside = false;
    unsigned long next = 1;
    FILE *file = fopen(MILLRACE_SOURCE_DIR "/docs/protocol.md", "r");
    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        const char *meaning;
        unsigned long number;
        inside = line[0] == '|' && (inside || strstr(line, "| constraint | meaning |") != NULL);
        if (!inside || !read_constraint(line, &number, &meaning))
            continue;
        assert_int_equal(number, next++);
        assert_true(number < count);
        assert_non_null(strstr(meaning, words[number]));
        assert_string_not_equal(protocol_limit_name((enum protocol_limit)number), "unknown");
    }
    assert_int_equal(next, count);
    assert_string_equal(protocol_limit_name((enum protocol_limit)count), "unknown");
    assert_int_equal(fclose(file), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_constraints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
