/* What several subcommands share: connecting, and the options that say what a stream is to be. */
#include "client/command.h"

#include "client/contract.h"

#include "core/keyfile.h"
#include "core/secret.h"
#include "core/transport_stream.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct millrace_tls command_tls(const struct core_options_server *server)
{
    return (struct millrace_tls){.size = sizeof(struct millrace_tls),
                                 .ca_file = server->ca_file,
                                 .certificate_file = server->certificate_file,
                                 .key_file = server->key_file,
                                 .server_name = server->server_name};
}

core_status command_connect_within(const struct core_options_server *server, int timeout_ms,
                                   struct millrace **connection, struct core_error *error)
{
    const struct millrace_tls tls = command_tls(server);
    return (core_status)millrace_connect(server->address, &tls, timeout_ms, connection, error->text);
}

struct millrace *command_connect(const struct core_options_server *server)
{
    struct millrace *connection;
    struct core_error error;
    if (command_connect_within(server, server->timeout_ms, &connection, &error) == CORE_OK)
        return connection;
    command_fail(COMMAND_FAILED, "%s", error.text);
    return NULL;
}

/* ---- contract ---- */

enum {
    OPTION_KEY = 0x200,
    OPTION_KEY_FILE,
    OPTION_KEY_NAME,
    OPTION_IV,
    OPTION_CIPHER,
    OPTION_PADDING,
    OPTION_BURST,
    OPTION_GUARANTEED,
    OPTION_UNIT,
    OPTION_FIRST_UNIT,
    OPTION_PATTERN,
    OPTION_RECORDS,
    OPTION_DECRYPT
};

static const struct argp_option contract_options[] = {
    {"packet-bytes", 'p', "BYTES", 0, "longest packet, before padding [1408; 1316 with --records=ts]", 0},
    {"rate", 'r', "RATE", 0, "as 5Mbit/s; max: the highest that the server admits [max]", 0},
    {"latency", 'l', "TIME", 0, "each packet is to be back within this time [20ms]", 0},
    {"burst", OPTION_BURST, "PACKETS", 0, "packets that may be sent at once [2]", 0},
    {"guaranteed", OPTION_GUARANTEED, NULL, 0,
     "time on another unit is held for it, so that it keeps its deadlines when a GPU is lost", 0},
    {"cipher", OPTION_CIPHER, "NAME", 0,
     "aes-128-cbc, aes-192-cbc, aes-256-cbc [as long as the key; aes-128-cbc]", 0},
    {"padding", OPTION_PADDING, "KIND", 0,
     "end: PKCS#7 at the end of all, as `openssl enc` does; pkcs7: every packet on its own, or every "
     "message; "
     "clear: what is no whole block at the end of a message passes as it is; none [end; clear with --pattern "
     "or "
     "--records]",
     0},
    {"unit", OPTION_UNIT, "UNIT", 0,
     "what has an IV of its own: stream, all that is sent; message, one packet or more [stream]", 0},
    {"pattern", OPTION_PATTERN, "N:M", 0,
     "of a message so many blocks are encrypted, so many pass, and so on: 1:9 for cbcs", 0},
    {"records", OPTION_RECORDS, "KIND", 0,
     "ts: packets are transport-stream packets, each encrypted by itself where its scrambling bits are set "
     "[none]",
     0},
    {"decrypt", OPTION_DECRYPT, NULL, 0, "decrypt instead; CBC does not tell whether somebody changed it", 0},
    {"key-name", OPTION_KEY_NAME, "NAME", 0, "a key of the server's keyring", 0},
    {"key-file", OPTION_KEY_FILE, "FILE", 0,
     "the key: hexadecimal digits, or 16, 24 or 32 raw bytes; private (chmod 600)", 0},
    {"key", OPTION_KEY, "HEX", 0, "the key itself; others on this machine can see it in ps while it starts",
     0},
    {"iv", OPTION_IV, "HEX|KIND", 0,
     "16 bytes from which the chain begins, with messages each of them (the server must allow it) [random]; "
     "or "
     "where the IV of a message comes from: constant, and chain, take HEX in a second --iv; counter: its "
     "number; "
     "explicit: 16 bytes ahead of it in the input; random: from the server, ahead of it in the output "
     "[constant "
     "with HEX, else chain]",
     0},
    {"first-unit", OPTION_FIRST_UNIT, "N", 0, "number of the first message, with --iv=counter [0]", 0},
    {0},
};

/* A private file's or a pipe's whole content, if it is short; 0: it can not be read. */
static size_t read_key_file(const char *path, uint8_t *bytes, size_t room, const struct argp_state *state)
{
    struct core_error error;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return 0;
    if (core_keyfile_check(fileno(file), path, &error) != CORE_OK)
        argp_error(state, "--key-file %s", error.text);
    setvbuf(file, NULL, _IONBF, 0); /* keeps the key out of a buffer nobody wipes */
    size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

static bool is_key_length(size_t bytes)
{
    return bytes == 16 || bytes == 24 || bytes == 32;
}

static bool load_key_file(struct command_contract *contract, const char *path, const struct argp_state *state)
{
    uint8_t content[80];
    size_t bytes = read_key_file(path, content, sizeof content, state), text_bytes = bytes, count = 0;
    while (text_bytes > 0 && strchr(" \t\r\n", content[text_bytes - 1]) != NULL)
        text_bytes--;
    bool found =
        core_hex_parse((const char *)content, text_bytes, contract->key, sizeof contract->key, &count) &&
        is_key_length(count);
    if (!found && is_key_length(bytes)) {
        memcpy(contract->key, content, bytes);
        count = bytes;
        found = true;
    }
    contract->key_bytes = (uint32_t)count;
    core_secret_wipe(content, sizeof content);
    return found;
}

static void take_key(struct command_contract *contract, int key, char *argument, struct argp_state *state)
{
    size_t count = strlen(argument);
    if (contract->key_kind != MILLRACE_KEY_NONE)
        argp_error(state, "give one of --key, --key-file and --key-name");
    contract->key_kind = key == OPTION_KEY_NAME ? MILLRACE_KEY_NAMED : MILLRACE_KEY_INLINE;
    switch (key) {
    case OPTION_KEY_NAME:
        if (count < 1 || count > MILLRACE_KEY_NAME_BYTES_MAX)
            argp_error(state, "--key-name: a name has 1 to %d characters", MILLRACE_KEY_NAME_BYTES_MAX);
        memcpy(contract->key, argument, count);
        contract->key_bytes = (uint32_t)count;
        return;
    case OPTION_KEY_FILE:
        if (!load_key_file(contract, argument, state))
            argp_error(state,
                       "--key-file %s: no file with 32, 48 or 64 hexadecimal digits, or 16, 24 or 32 bytes",
                       argument);
        return;
    default:
        if (!core_hex_parse(argument, count, contract->key, sizeof contract->key, &count) ||
            !is_key_length(count))
            argp_error(state, "--key: give 32, 48 or 64 hexadecimal digits");
        contract->key_bytes = (uint32_t)count;
        core_secret_wipe(argument, strlen(argument)); /* what ps shows from now on */
        fputs("millrace: warning: a key on the command line can be seen by others; use --key-file\n", stderr);
    }
}

static void take_padding(struct command_contract *contract, const char *argument, struct argp_state *state)
{
    contract->has_padding = true;
    contract->pad_end = strcmp(argument, "end") == 0;
    if (contract->pad_end)
        contract->spec.padding = CORE_PADDING_NONE;
    else if (core_padding_parse(argument, &contract->spec.padding) != CORE_OK)
        argp_error(state, "--padding %s: give end, pkcs7, clear or none", argument);
}

/* 16 bytes, or a word: each may be given once, in either order. */
static void take_iv(struct command_contract *contract, const char *argument, struct argp_state *state)
{
    size_t count;
    if (core_iv_parse(argument, &contract->spec.iv) == CORE_OK) {
        contract->has_iv_kind = true;
        return;
    }
    if (!core_hex_parse(argument, strlen(argument), contract->iv, sizeof contract->iv, &count) ||
        count != sizeof contract->iv)
        argp_error(state,
                   "--iv: give 32 hexadecimal digits, or chain, constant, counter, explicit or random");
    contract->has_iv = true;
}

/* What a unit is: the options that version 3 of the protocol has brought. */
static bool take_form(struct command_contract *contract, int key, char *argument, struct argp_state *state)
{
    struct core_stream_spec *spec = &contract->spec;
    switch (key) {
    case OPTION_UNIT:
        if (core_unit_parse(argument, &spec->unit) != CORE_OK)
            argp_error(state, "--unit %s: give stream or message", argument);
        return true;
    case OPTION_FIRST_UNIT:
        if (!core_count_parse(argument, UINT64_MAX, &spec->first_unit))
            argp_error(state, "--first-unit %s: give a number", argument);
        return true;
    case OPTION_PATTERN:
        if (core_pattern_parse(argument, spec) != CORE_OK)
            argp_error(state, "--pattern %s: give blocks that are encrypted and that pass, as 1:9", argument);
        return true;
    case OPTION_RECORDS:
        if (core_records_parse(argument, &spec->records) != CORE_OK)
            argp_error(state, "--records %s: give ts or none", argument);
        return true;
    case OPTION_DECRYPT:
        spec->direction = CORE_DIRECTION_DECRYPT;
        return true;
    default:
        return false;
    }
}

static error_t parse_contract(int key, char *argument, struct argp_state *state)
{
    struct command_contract *contract = state->input;
    uint64_t number;
    if (take_form(contract, key, argument, state))
        return 0;
    switch (key) {
    case 'p':
        if (!core_bytes_parse(argument, 1, CORE_PACKET_BYTES_MAX, &number) || number == 0)
            argp_error(state, "--packet-bytes %s: give 1 to %u, or as 64KiB", argument,
                       CORE_PACKET_BYTES_MAX);
        contract->spec.packet_bytes = (uint32_t)number;
        return 0;
    case 'r':
        contract->rate_bits_per_s = INFINITY;
        if (strcmp(argument, "max") != 0 && !core_rate_parse(argument, 1, &contract->rate_bits_per_s))
            argp_error(state, "--rate %s: give a rate, as 5Mbit/s, or max", argument);
        return 0;
    case 'l':
        if (!core_duration_parse(argument, 0, &contract->spec.latency_ns))
            argp_error(state, "--latency %s: give a time, as 20ms or 500us", argument);
        return 0;
    case OPTION_BURST:
        if (!core_count_parse(argument, CORE_BURST_MAX, &number) || number == 0)
            argp_error(state, "--burst %s: give 1 to %u", argument, CORE_BURST_MAX);
        contract->spec.burst_packets = (uint32_t)number;
        return 0;
    case OPTION_GUARANTEED:
        contract->spec.guaranteed = true;
        return 0;
    case OPTION_CIPHER:
        if (core_cipher_parse(argument, &contract->spec.cipher) != CORE_OK)
            argp_error(state, "--cipher %s: give aes-128-cbc, aes-192-cbc or aes-256-cbc", argument);
        return 0;
    case OPTION_PADDING:
        take_padding(contract, argument, state);
        return 0;
    case OPTION_KEY:
    case OPTION_KEY_FILE:
    case OPTION_KEY_NAME:
        take_key(contract, key, argument, state);
        return 0;
    case OPTION_IV:
        take_iv(contract, argument, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp command_contract_argp = {.options = contract_options, .parser = parse_contract};

void command_contract_init(struct command_contract *contract)
{
    *contract = (struct command_contract){.spec = {.burst_packets = 2, .latency_ns = 20 * CORE_NS_PER_MS}};
}

static enum core_cipher cipher_of(const struct command_contract *contract)
{
    if (contract->spec.cipher != 0)
        return contract->spec.cipher;
    for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++)
        if (contract->key_kind == MILLRACE_KEY_INLINE &&
            core_cipher_key_bytes((enum core_cipher)cipher) == contract->key_bytes)
            return (enum core_cipher)cipher;
    return CORE_CIPHER_AES_128_CBC;
}

bool command_rate_is_open(const struct command_contract *contract)
{
    return contract->rate_bits_per_s == 0 || isinf(contract->rate_bits_per_s);
}

/* Rounded down, so that the rate is at least what was asked for. */
static core_ns interval_of(const struct command_contract *contract, const struct millrace_welcome *welcome)
{
    if (command_rate_is_open(contract))
        return welcome->interval_ns_min < CORE_INTERVAL_NS_MIN ? CORE_INTERVAL_NS_MIN
                                                               : welcome->interval_ns_min;
    double interval_ns = contract->spec.packet_bytes * 8.0 * 1e9 / contract->rate_bits_per_s;
    return interval_ns > CORE_INTERVAL_NS_MAX ? CORE_INTERVAL_NS_MAX + 1 : (core_ns)interval_ns;
}

/* What a packet of so many bytes allows. */
static core_status rate_check(const struct command_contract *contract, struct core_error *error)
{
    const double bits_s = contract->spec.packet_bytes * 8.0 * 1e9;
    const double lowest = bits_s / (double)CORE_INTERVAL_NS_MAX;
    const double highest = bits_s / (double)CORE_INTERVAL_NS_MIN;
    char rate[CORE_TEXT_BYTES], least[CORE_TEXT_BYTES], most[CORE_TEXT_BYTES];
    if (command_rate_is_open(contract) ||
        (contract->rate_bits_per_s >= lowest && contract->rate_bits_per_s <= highest))
        return CORE_OK;
    return core_error_set(error, CORE_INVALID,
                          "--rate: with packets of %" PRIu32
                          " bytes (--packet-bytes) it can be %s to %s, not "
                          "%s",
                          contract->spec.packet_bytes, core_rate_format(lowest, least),
                          core_rate_format(highest, most), core_rate_format(contract->rate_bits_per_s, rate));
}

/* What the options say of the IV, and it takes two to say. */
static core_status iv_check(const struct command_contract *contract, struct core_error *error)
{
    const struct core_stream_spec *spec = &contract->spec;
    const char *word = core_iv_name(spec->iv);
    const bool chain = spec->iv == CORE_IV_CHAIN;
    if (spec->iv == CORE_IV_CONSTANT && !contract->has_iv)
        return core_error_set(error, CORE_INVALID,
                              "--iv=constant: which? give it as well, 32 hexadecimal digits in another --iv");
    if (spec->iv != CORE_IV_CONSTANT && !chain && contract->has_iv)
        return core_error_set(error, CORE_INVALID, "--iv=%s: no other IV goes together with it", word);
    if (spec->direction == CORE_DIRECTION_DECRYPT && chain && !contract->has_iv)
        return core_error_set(
            error, CORE_INVALID,
            "--decrypt: give --iv, that with which it was encrypted, 32 hexadecimal digits");
    return CORE_OK;
}

static core_status form_check(const struct command_contract *contract, struct core_error *error)
{
    struct core_stream_spec spec = contract->spec;
    const char *form = spec.crypt_blocks > 0               ? "pattern"
                       : spec.records != CORE_RECORDS_NONE ? "records"
                                                           : NULL;
    if (form != NULL && spec.unit == CORE_UNIT_STREAM)
        return core_error_set(error, CORE_INVALID, "--%s is for --unit=message", form);
    if (form != NULL && contract->pad_end)
        return core_error_set(error, CORE_INVALID, "--padding=end does not go together with --%s: give clear",
                              form);
    if (spec.padding == CORE_PADDING_NONE && spec.packet_bytes % CORE_BLOCK_BYTES != 0)
        return core_error_set(error, CORE_INVALID,
                              "--packet-bytes: it must be a multiple of %d with --padding=%s, not %" PRIu32
                              "; give %" PRIu32 ", or --padding=pkcs7",
                              CORE_BLOCK_BYTES, contract->pad_end ? "end (the default)" : "none",
                              spec.packet_bytes,
                              core_stream_padded_bytes(CORE_PADDING_NONE, spec.packet_bytes));
    spec.interval_ns = CORE_INTERVAL_NS_MAX; /* that is judged by itself */
    const core_status status = core_stream_spec_check(&spec, error);
    return status == CORE_OK ? iv_check(contract, error) : status;
}

core_status command_contract_settle(struct command_contract *contract, struct core_error *error)
{
    struct core_stream_spec *spec = &contract->spec;
    const bool form = spec->crypt_blocks > 0 || spec->records != CORE_RECORDS_NONE;
    char given[CORE_TEXT_BYTES], least[CORE_TEXT_BYTES], most[CORE_TEXT_BYTES];
    spec->cipher = cipher_of(contract);
    if (spec->packet_bytes == 0)
        spec->packet_bytes = spec->records == CORE_RECORDS_TS ? 7 * CORE_TS_BYTES : 1408;
    if (!contract->has_padding) {
        spec->padding = form ? CORE_PADDING_CLEAR : CORE_PADDING_NONE;
        contract->pad_end = !form;
    }
    if (!contract->has_iv_kind && contract->has_iv && spec->unit == CORE_UNIT_MESSAGE)
        spec->iv = CORE_IV_CONSTANT;
    if (spec->latency_ns < CORE_LATENCY_NS_MIN || spec->latency_ns > CORE_LATENCY_NS_MAX)
        return core_error_set(error, CORE_INVALID, "--latency: it can be %s to %s, not %s",
                              core_duration_format(CORE_LATENCY_NS_MIN, least),
                              core_duration_format(CORE_LATENCY_NS_MAX, most),
                              core_duration_format(spec->latency_ns, given));
    const core_status status = form_check(contract, error);
    return status == CORE_OK ? rate_check(contract, error) : status;
}

core_status command_contract_open(const struct command_contract *contract,
                                  const struct millrace_welcome *welcome, struct millrace_open *open,
                                  struct core_error *error)
{
    struct core_stream_spec spec = contract->spec;
    spec.interval_ns = interval_of(contract, welcome);
    *open = client_contract_open(&spec);
    open->key_kind = contract->key_kind;
    open->has_iv = contract->has_iv;
    open->key = contract->key_kind == MILLRACE_KEY_NONE ? NULL : contract->key;
    open->key_bytes = contract->key_bytes;
    memcpy(open->iv, contract->iv, sizeof open->iv);
    if (contract->key_kind == MILLRACE_KEY_INLINE &&
        contract->key_bytes != core_cipher_key_bytes(spec.cipher))
        return core_error_set(error, CORE_INVALID, "%s needs a key of %" PRIu32 " bytes, not %" PRIu32,
                              core_cipher_name(spec.cipher), core_cipher_key_bytes(spec.cipher),
                              contract->key_bytes);
    return core_stream_spec_check(&spec, error);
}

core_status command_best_rate(struct millrace *connection, int timeout_ms, struct millrace_open *open,
                              struct millrace_refused *refused, struct core_error *error)
{
    struct millrace_opened opened = {.size = sizeof opened};
    open->interval_ns = CORE_INTERVAL_NS_MIN;
    if (millrace_welcome_of(connection)->interval_ns_min > open->interval_ns)
        open->interval_ns = millrace_welcome_of(connection)->interval_ns_min;
    core_status status =
        (core_status)millrace_query(connection, open, timeout_ms, &opened, refused, error->text);
    if (status != CORE_REFUSED || refused->offer_interval_ns <= 0)
        return status;
    open->interval_ns = refused->offer_interval_ns;
    return CORE_OK;
}
