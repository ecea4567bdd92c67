#include "core/stream.h"

#include "core/transport_stream.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t key_bytes;
} ciphers[CORE_CIPHER_COUNT + 1] = {
    [CORE_CIPHER_AES_128_CBC] = {"aes-128-cbc", 16},
    [CORE_CIPHER_AES_192_CBC] = {"aes-192-cbc", 24},
    [CORE_CIPHER_AES_256_CBC] = {"aes-256-cbc", 32},
};

/* The words for the values of an enumeration, from 0 on. */
struct names {
    const char *const *words;
    size_t count;
};
#define NAMES(words) ((struct names){words, sizeof(words) / sizeof *(words)})

static const char *const paddings[] = {
    [CORE_PADDING_NONE] = "none", [CORE_PADDING_PKCS7] = "pkcs7", [CORE_PADDING_CLEAR] = "clear"};
static const char *const units[] = {[CORE_UNIT_STREAM] = "stream", [CORE_UNIT_MESSAGE] = "message"};
static const char *const ivs[] = {[CORE_IV_CHAIN] = "chain",
                                  [CORE_IV_CONSTANT] = "constant",
                                  [CORE_IV_COUNTER] = "counter",
                                  [CORE_IV_EXPLICIT] = "explicit",
                                  [CORE_IV_RANDOM] = "random"};
static const char *const directions[] = {
    [CORE_DIRECTION_ENCRYPT] = "encrypt", [CORE_DIRECTION_DECRYPT] = "decrypt"};
static const char *const record_kinds[] = {[CORE_RECORDS_NONE] = "none", [CORE_RECORDS_TS] = "ts"};

static core_status range_check(const char *field, int64_t value, int64_t low, int64_t high,
                               struct core_error *error)
{
    if (value >= low && value <= high)
        return CORE_OK;
    return core_error_set(error, CORE_INVALID, "%s is %" PRId64 ", must be %" PRId64 " to %" PRId64, field,
                          value, low, high);
}

/* What a unit can be, and what only a message can have. */
static core_status unit_check(const struct core_stream_spec *spec, struct core_error *error)
{
    if (spec->unit == CORE_UNIT_STREAM && spec->iv != CORE_IV_CHAIN)
        return core_error_set(error, CORE_INVALID, "iv is %s, which a stream of unit message can have alone",
                              ivs[spec->iv]);
    if (spec->unit == CORE_UNIT_STREAM && spec->padding == CORE_PADDING_CLEAR)
        return core_error_set(error, CORE_INVALID,
                              "padding is clear, which a stream of unit message can have alone");
    if (spec->unit == CORE_UNIT_STREAM && spec->crypt_blocks + spec->skip_blocks > 0)
        return core_error_set(error, CORE_INVALID,
                              "there is a pattern, which a stream of unit message can have alone");
    if (spec->iv != CORE_IV_COUNTER && spec->mac == CORE_MAC_NONE && spec->first_unit != 0)
        return core_error_set(error, CORE_INVALID,
                              "first_unit is %" PRIu64 ", must be 0 with iv %s and no mac", spec->first_unit,
                              ivs[spec->iv]);
    if (spec->unit == CORE_UNIT_STREAM && spec->message_packets != 0)
        return core_error_set(error, CORE_INVALID,
                              "message_packets is %" PRIu8 ", which a stream of unit message can have alone",
                              spec->message_packets);
    if (spec->iv == CORE_IV_EXPLICIT && spec->packet_bytes <= CORE_BLOCK_BYTES)
        return core_error_set(error, CORE_INVALID,
                              "packet_bytes is %" PRIu32 ", must be more than the %d of an explicit IV",
                              spec->packet_bytes, CORE_BLOCK_BYTES);
    return CORE_OK;
}

static core_status pattern_check(const struct core_stream_spec *spec, struct core_error *error)
{
    if (spec->crypt_blocks == 0 && spec->skip_blocks == 0)
        return CORE_OK;
    core_status status =
        range_check("crypt_blocks of a pattern", spec->crypt_blocks, 1, CORE_PATTERN_BLOCKS_MAX, error);
    if (status == CORE_OK)
        status =
            range_check("skip_blocks of a pattern", spec->skip_blocks, 1, CORE_PATTERN_BLOCKS_MAX, error);
    if (status == CORE_OK && spec->padding == CORE_PADDING_PKCS7)
        return core_error_set(
            error, CORE_INVALID,
            "padding is pkcs7, which does not go together with a pattern: must be none or clear");
    return status;
}

/* A record is a unit of its own, and nothing tells the server of another IV or end than what DVB-CISSA has. */
static core_status records_check(const struct core_stream_spec *spec, struct core_error *error)
{
    if (spec->records == CORE_RECORDS_NONE)
        return CORE_OK;
    if (spec->unit != CORE_UNIT_MESSAGE || spec->iv != CORE_IV_CONSTANT ||
        spec->padding != CORE_PADDING_CLEAR || spec->crypt_blocks > 0)
        return core_error_set(
            error, CORE_INVALID,
            "records are ts, which go with unit message, iv constant, padding clear and without "
            "a pattern only");
    if (spec->packet_bytes % CORE_TS_BYTES != 0)
        return core_error_set(error, CORE_INVALID,
                              "packet_bytes is %" PRIu32 ", must be a multiple of %d with records ts",
                              spec->packet_bytes, CORE_TS_BYTES);
    return CORE_OK;
}

static core_status direction_check(const struct core_stream_spec *spec, struct core_error *error)
{
    if (spec->direction == CORE_DIRECTION_DECRYPT && spec->iv == CORE_IV_RANDOM)
        return core_error_set(
            error, CORE_INVALID,
            "iv is random, which is for encryption only: what is decrypted brings its IVs with iv "
            "explicit");
    if (spec->direction == CORE_DIRECTION_DECRYPT && spec->padding == CORE_PADDING_PKCS7)
        return core_error_set(
            error, CORE_INVALID,
            "padding is pkcs7, which is for encryption only: decrypt with none, and take the padding "
            "off once the message is known to be genuine");
    return CORE_OK;
}

/* A code is about one message, and what is decrypted is given away only behind it: in one piece. */
static core_status mac_check(const struct core_stream_spec *spec, struct core_error *error)
{
    if (spec->mac == CORE_MAC_NONE)
        return CORE_OK;
    if (spec->unit != CORE_UNIT_MESSAGE || spec->iv == CORE_IV_CHAIN || spec->records != CORE_RECORDS_NONE)
        return core_error_set(error, CORE_INVALID,
                              "there is a mac, which goes with unit message, an iv other than chain, and "
                              "without records only");
    const uint32_t ahead = spec->iv == CORE_IV_EXPLICIT ? CORE_BLOCK_BYTES : 0;
    if (spec->direction == CORE_DIRECTION_DECRYPT && spec->packet_bytes <= ahead + CORE_MAC_BYTES)
        return core_error_set(error, CORE_INVALID,
                              "packet_bytes is %" PRIu32 ", must be more than the %" PRIu32
                              " of a mac, and of an explicit IV, in decryption",
                              spec->packet_bytes, ahead + CORE_MAC_BYTES);
    return CORE_OK;
}

static core_status at_once_check(const struct core_stream_spec *spec, struct core_error *error)
{
    const char *what = spec->mac != CORE_MAC_NONE ? "a mac" : spec->crypt_blocks > 0 ? "a pattern" : NULL;
    if (what == NULL || spec->packet_bytes <= CORE_AT_ONCE_BYTES_MAX)
        return CORE_OK;
    return core_error_set(error, CORE_INVALID,
                          "packet_bytes is %" PRIu32 ", must be at most %" PRIu32 " with %s",
                          spec->packet_bytes, CORE_AT_ONCE_BYTES_MAX, what);
}

core_status core_stream_spec_check(const struct core_stream_spec *spec, struct core_error *error)
{
    const struct {
        const char *field;
        int64_t value, low, high;
    } ranges[] = {
        {"packet_bytes", spec->packet_bytes, 1, CORE_PACKET_BYTES_MAX},
        {"burst_packets", spec->burst_packets, 1, CORE_BURST_MAX},
        {"interval_ns", spec->interval_ns, CORE_INTERVAL_NS_MIN, CORE_INTERVAL_NS_MAX},
        {"latency_ns", spec->latency_ns, CORE_LATENCY_NS_MIN, CORE_LATENCY_NS_MAX},
        {"cipher", spec->cipher, 1, CORE_CIPHER_COUNT},
        {"padding", spec->padding, CORE_PADDING_NONE, CORE_PADDING_CLEAR},
        {"unit", spec->unit, CORE_UNIT_STREAM, CORE_UNIT_MESSAGE},
        {"iv", spec->iv, CORE_IV_CHAIN, CORE_IV_RANDOM},
        {"direction", spec->direction, CORE_DIRECTION_ENCRYPT, CORE_DIRECTION_DECRYPT},
        {"records", spec->records, CORE_RECORDS_NONE, CORE_RECORDS_TS},
        {"mac", spec->mac, CORE_MAC_NONE, CORE_MAC_HMAC_SHA_256_128},
        {"message_packets", spec->message_packets, 0, 1},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const core_status status =
            range_check(ranges[i].field, ranges[i].value, ranges[i].low, ranges[i].high, error);
        if (status != CORE_OK)
            return status;
    }
    if (spec->padding == CORE_PADDING_NONE && spec->packet_bytes % CORE_BLOCK_BYTES != 0)
        return core_error_set(error, CORE_INVALID,
                              "packet_bytes is %" PRIu32 ", must be a multiple of %d with padding none",
                              spec->packet_bytes, CORE_BLOCK_BYTES);
    core_status (*const checks[])(const struct core_stream_spec *, struct core_error *) = {
        unit_check, pattern_check, records_check, direction_check, mac_check, at_once_check};
    core_status status = CORE_OK;
    for (size_t i = 0; status == CORE_OK && i < sizeof checks / sizeof checks[0]; i++)
        status = checks[i](spec, error);
    return status;
}

uint32_t core_stream_padded_bytes(enum core_padding padding, uint32_t bytes)
{
    const uint32_t at_least = padding == CORE_PADDING_PKCS7 ? bytes + 1 : bytes;
    return (at_least + CORE_BLOCK_BYTES - 1) / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
}

/* Encrypted blocks among the first `blocks` of a message. */
static uint32_t crypt_blocks_of(const struct core_stream_spec *spec, uint32_t blocks)
{
    const uint32_t cycle = spec->crypt_blocks + spec->skip_blocks, rest = blocks % cycle;
    return blocks / cycle * spec->crypt_blocks + (rest < spec->crypt_blocks ? rest : spec->crypt_blocks);
}

uint32_t core_stream_encrypted_bytes(const struct core_stream_spec *spec, uint32_t pattern_blocks,
                                     uint32_t bytes)
{
    const uint32_t blocks = bytes / CORE_BLOCK_BYTES;

    if (spec->crypt_blocks == 0)
        return blocks * CORE_BLOCK_BYTES;
    return (crypt_blocks_of(spec, pattern_blocks + blocks) - crypt_blocks_of(spec, pattern_blocks)) *
           CORE_BLOCK_BYTES;
}

bool core_stream_needs_worker(const struct core_stream_spec *spec)
{
    return spec->direction == CORE_DIRECTION_DECRYPT || spec->records != CORE_RECORDS_NONE;
}

bool core_stream_packets_alone(const struct core_stream_spec *spec)
{
    return spec->unit == CORE_UNIT_MESSAGE && spec->message_packets == 1 && spec->iv != CORE_IV_CHAIN;
}

bool core_stream_has_whole_messages(const struct core_stream_spec *spec)
{
    const bool checks = spec->mac != CORE_MAC_NONE && spec->direction == CORE_DIRECTION_DECRYPT;
    return spec->unit == CORE_UNIT_MESSAGE &&
           (spec->message_packets == 1 || spec->records != CORE_RECORDS_NONE || checks);
}

static uint32_t iv_bytes(const struct core_stream_spec *spec)
{
    const bool brings_iv =
        spec->iv == CORE_IV_CONSTANT || spec->iv == CORE_IV_COUNTER || spec->iv == CORE_IV_RANDOM;
    return brings_iv ? CORE_BLOCK_BYTES : 0;
}

uint32_t core_stream_tag_bytes(const struct core_stream_spec *spec)
{
    const bool adds = spec->mac != CORE_MAC_NONE && spec->direction == CORE_DIRECTION_ENCRYPT;
    return adds ? CORE_MAC_BYTES : 0;
}

uint32_t core_stream_held_bytes(const struct core_stream_spec *spec)
{
    return core_stream_padded_bytes(spec->padding, spec->packet_bytes) + iv_bytes(spec) +
           core_stream_tag_bytes(spec);
}

uint32_t core_stream_packet_chains(const struct core_stream_spec *spec, uint32_t *chain_bytes)
{
    const bool records = spec->records != CORE_RECORDS_NONE;
    *chain_bytes = records ? CORE_TS_SCRAMBLED_BYTES : core_stream_packet_bytes(spec);
    return records ? spec->packet_bytes / CORE_TS_BYTES : 1;
}

/* Most are encrypted of a packet that begins where the pattern does: any cycle of it has crypt_blocks. */
uint32_t core_stream_packet_bytes(const struct core_stream_spec *spec)
{
    const uint32_t padded = core_stream_padded_bytes(spec->padding, spec->packet_bytes);
    if (spec->records != CORE_RECORDS_NONE)
        return spec->packet_bytes / CORE_TS_BYTES * CORE_TS_SCRAMBLED_BYTES;
    return core_stream_encrypted_bytes(spec, 0, padded) + iv_bytes(spec);
}

double core_stream_rate_bits_per_s(const struct core_stream_spec *spec)
{
    return 8.0 * spec->packet_bytes * (double)CORE_NS_PER_S / (double)spec->interval_ns;
}

static bool cipher_valid(enum core_cipher cipher)
{
    return (int)cipher >= 1 && (int)cipher <= CORE_CIPHER_COUNT;
}

uint32_t core_cipher_key_bytes(enum core_cipher cipher)
{
    return cipher_valid(cipher) ? ciphers[cipher].key_bytes : 0;
}

const char *core_cipher_name(enum core_cipher cipher)
{
    return cipher_valid(cipher) ? ciphers[cipher].name : NULL;
}

core_status core_cipher_parse(const char *name, enum core_cipher *cipher)
{
    for (int i = 1; i <= CORE_CIPHER_COUNT; i++) {
        if (strcmp(name, ciphers[i].name) == 0) {
            *cipher = (enum core_cipher)i;
            return CORE_OK;
        }
    }
    return CORE_NOT_FOUND;
}

static const char *word_of(struct names names, size_t value)
{
    return value < names.count ? names.words[value] : NULL;
}

static core_status value_of(struct names names, const char *word, int *value)
{
    for (size_t i = 0; i < names.count; i++) {
        if (strcmp(word, names.words[i]) == 0) {
            *value = (int)i;
            return CORE_OK;
        }
    }
    return CORE_NOT_FOUND;
}

#define NAMED(noun, words)                                                                                   \
    const char *core_##noun##_name(enum core_##noun value)                                                   \
    {                                                                                                        \
        return word_of(NAMES(words), (size_t)value);                                                         \
    }                                                                                                        \
    core_status core_##noun##_parse(const char *name, enum core_##noun *value)                               \
    {                                                                                                        \
        int found;                                                                                           \
        const core_status status = value_of(NAMES(words), name, &found);                                     \
        if (status == CORE_OK)                                                                               \
            *value = (enum core_##noun)found;                                                                \
        return status;                                                                                       \
    }
NAMED(padding, paddings)
NAMED(unit, units)
NAMED(iv, ivs)
NAMED(direction, directions)
NAMED(records, record_kinds)

const char *core_pattern_format(const struct core_stream_spec *spec, char text[CORE_PATTERN_TEXT_BYTES])
{
    if (spec->crypt_blocks == 0 && spec->skip_blocks == 0)
        return "none";
    (void)snprintf(text, CORE_PATTERN_TEXT_BYTES, "%u:%u", (unsigned)spec->crypt_blocks,
                   (unsigned)spec->skip_blocks);
    return text;
}

/* One or two digits, the first of them not 0, up to `end`. */
static bool blocks_parse(const char *text, const char *end, uint8_t *blocks)
{
    const ptrdiff_t digits = end - text;
    unsigned value = 0;

    if (digits < 1 || digits > 2 || text[0] == '0')
        return false;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = 10 * value + (unsigned)(*text - '0');
    }
    *blocks = (uint8_t)value;
    return value <= CORE_PATTERN_BLOCKS_MAX;
}

core_status core_pattern_parse(const char *text, struct core_stream_spec *spec)
{
    const char *colon = strchr(text, ':');
    uint8_t crypt_blocks = 0, skip_blocks = 0;

    if (strcmp(text, "none") != 0 && (!colon || !blocks_parse(text, colon, &crypt_blocks) ||
                                      !blocks_parse(colon + 1, colon + strlen(colon), &skip_blocks)))
        return CORE_INVALID;
    spec->crypt_blocks = crypt_blocks;
    spec->skip_blocks = skip_blocks;
    return CORE_OK;
}
