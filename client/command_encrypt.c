/* millrace encrypt: its options, and the opening of files and stream. */
#include "client/command_encrypt.h"

#include "core/secret.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OPEN_ATTEMPTS 5 /* at an open rate: others may take the room between question and request */

/* ---- options ---- */

enum { OPTION_SKIP = 0x300, OPTION_RECONNECT, OPTION_MESSAGE_PACKETS };

#define RECONNECT_NS (60 * CORE_NS_PER_S) /* unless another time is given */

static const struct argp_option option_table[] = {
    {"output", 'o', "FILE", 0,
     "write the ciphertext here [standard output]; overwrites a file that is there, once the server has "
     "taken "
     "the stream",
     0},
    {"message-packets", OPTION_MESSAGE_PACKETS, "N", 0,
     "with --unit=message, so many packets are a message, 1: each of them [all input is one message]", 0},
    {"skip", OPTION_SKIP, "N", 0,
     "go on after N packets: leaves them out of the input, keeps their ciphertext in the output file and "
     "chains to its "
     "last block (to standard output: give that block as --iv)",
     0},
    {"reconnect", OPTION_RECONNECT, "TIME", OPTION_ARG_OPTIONAL,
     "when the server goes away, look for it for this long [1min] and go on where the stream stopped; the "
     "server "
     "must allow IVs; with several servers, which all need not come back, 10s unless it is given",
     0},
    {"quiet", 'q', NULL, 0, "no progress and no summary", 0},
    {"json", 'j', NULL, 0, "the summary, or an error, as a JSON object on standard output; needs --output",
     0},
    {0},
};

static bool writes_file(const struct encrypt_options *options)
{
    return options->output != NULL && strcmp(options->output, "-") != 0;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct encrypt_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->contract;
        state->child_inputs[1] = &options->server;
        return 0;
    case 'o':
        options->output = argument;
        return 0;
    case OPTION_SKIP:
        if (!core_count_parse(argument, UINT64_MAX, &options->skip))
            argp_error(state, "--skip %s: give a number of packets", argument);
        return 0;
    case OPTION_MESSAGE_PACKETS:
        if (!core_count_parse(argument, UINT64_MAX, &options->message_packets) ||
            options->message_packets == 0)
            argp_error(state, "--message-packets %s: give a number of packets", argument);
        return 0;
    case OPTION_RECONNECT:
        options->reconnect_ns = RECONNECT_NS;
        if (argument != NULL && (!core_duration_parse(argument, 0, &options->reconnect_ns) ||
                                 options->reconnect_ns < CORE_NS_PER_MS))
            argp_error(state, "--reconnect=%s: give a time, as 10s", argument);
        return 0;
    case 'q':
        options->quiet = true;
        return 0;
    case 'j':
        command_want_json();
        return 0;
    case ARGP_KEY_ARG:
        if (options->input != NULL)
            argp_error(state, "give one input file");
        options->input = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->contract.key_kind == MILLRACE_KEY_NONE)
            argp_error(state, "give a key: --key-name, --key-file or --key");
        if (command_wants_json() && !writes_file(options))
            argp_error(state, "--json needs --output FILE: standard output is for the ciphertext otherwise");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&command_contract_argp, 0, "Stream:", 1}, {&core_options_server_argp, 0, "Server:", 2}, {0}};
static const struct argp argp = {
    .options = option_table,
    .parser = parse,
    .args_doc = "[FILE]",
    .doc = "Sends FILE (or standard input) to the server as one stream, at the pace and with the deadline of "
           "its "
           "contract, and writes the ciphertext in order. Without --rate it asks for the highest rate the "
           "server "
           "admits, which leaves less for others."
           "\vThe IV in force is told at the end. Ctrl-C stops in good order and says how to go on. With "
           "--padding=end, `openssl enc -d -aes-128-cbc -K KEY -iv IV` decrypts the output, and so does "
           "--decrypt. "
           "CBC protects no "
           "integrity.\n\n"
           "With --unit=message the input is one message, as a segment of HLS is, or every so many packets "
           "are one "
           "(--message-packets). A message is as long in the input as it is sent, with the IV that it brings "
           "(--iv=explicit); IVs of the server (--iv=random) are written ahead of each message, as "
           "--iv=explicit "
           "--decrypt reads them.\n\n" COMMAND_EXIT_HELP,
    .children = children,
};

/* ---- opening ---- */

static bool takes_iv_from_output(const struct encrypt_options *options)
{
    return options->skip > 0 && !options->contract.has_iv && writes_file(options);
}

bool command_encrypt_is_one_chain(const struct encrypt_options *options)
{
    const struct core_stream_spec *spec = &options->contract.spec;
    return spec->unit == CORE_UNIT_STREAM && spec->direction == CORE_DIRECTION_ENCRYPT;
}

/* What only a run of this command asks for. */
static core_status options_check(struct encrypt_options *options, struct core_error *error)
{
    const struct core_stream_spec *spec = &options->contract.spec;
    const uint32_t least = CORE_BLOCK_BYTES * (spec->iv == CORE_IV_EXPLICIT ? 2 : 1);
    if (options->message_packets > 0 && spec->unit == CORE_UNIT_STREAM)
        return core_error_set(error, CORE_INVALID, "--message-packets is for --unit=message");
    if (options->message_packets > 1 && spec->records != CORE_RECORDS_NONE)
        return core_error_set(error, CORE_INVALID,
                              "--message-packets: with --records every packet is a message");
    if (spec->records != CORE_RECORDS_NONE)
        options->message_packets = 1;
    if (spec->unit == CORE_UNIT_MESSAGE && options->message_packets != 1 &&
        (spec->packet_bytes % CORE_BLOCK_BYTES != 0 || spec->packet_bytes < least))
        return core_error_set(error, CORE_INVALID,
                              "--packet-bytes: it must be a multiple of %d, at least %" PRIu32
                              ", where a message "
                              "has more than one packet, not %" PRIu32,
                              CORE_BLOCK_BYTES, least, spec->packet_bytes);
    if (!command_encrypt_is_one_chain(options) && options->skip > 0)
        return core_error_set(error, CORE_INVALID, "--skip is not for --unit=message and --decrypt");
    options->contract.spec.message_packets = options->message_packets == 1;
    return CORE_OK;
}

/* Input, output, and the IV to go on from. */
static int open_files(struct encrypt_run *run)
{
    const struct encrypt_options *options = run->options;
    const struct command_contract *contract = &options->contract;
    uint32_t padded_bytes = core_stream_padded_bytes(contract->spec.padding, contract->spec.packet_bytes);
    struct core_error error;
    if (options->skip > 0 && !options->contract.has_iv && !takes_iv_from_output(options))
        return command_fail(COMMAND_USAGE,
                            "--skip to standard output needs --iv, the last block already written");
    if (encrypt_input_open(&run->input, options->input, &options->contract, options->message_packets,
                           options->skip, &error) != CORE_OK ||
        encrypt_output_open(&run->output, options->output, options->skip, padded_bytes, &error) != CORE_OK ||
        encrypt_output_check(&run->output, &run->input, &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    run->output.strips = contract->pad_end && contract->spec.direction == CORE_DIRECTION_DECRYPT;
    if (run->output.file == stdout && isatty(STDOUT_FILENO))
        return command_fail(COMMAND_USAGE, "ciphertext is not for a terminal: redirect it, or give --output");
    if (takes_iv_from_output(options)) {
        run->open.has_iv = true;
        memcpy(run->open.iv, run->output.last_block, CORE_BLOCK_BYTES);
    }
    return COMMAND_OK;
}

static int open_stream(struct encrypt_run *run)
{
    int timeout_ms = run->options->server.timeout_ms;
    bool rate_is_open = command_rate_is_open(&run->options->contract);
    struct millrace_refused refused = {.size = sizeof refused, .code = MILLRACE_REFUSED_CAPACITY};
    core_status status = CORE_REFUSED;
    for (int i = 0; i < (rate_is_open ? OPEN_ATTEMPTS : 1) && status == CORE_REFUSED &&
                    refused.code == MILLRACE_REFUSED_CAPACITY;
         i++) {
        status = CORE_OK;
        if (rate_is_open)
            status = command_best_rate(run->connection, timeout_ms, &run->open, &refused, &run->error);
        if (status == CORE_OK)
            status = (core_status)millrace_open_stream(run->connection, &run->open, timeout_ms, &run->opened,
                                                       &refused, run->error.text);
    }
    if (status == CORE_REFUSED)
        return command_print_refused(&run->open, &refused);
    memcpy(run->iv, run->opened.iv, CORE_BLOCK_BYTES);
    return status ? command_fail(COMMAND_FAILED, "%s", run->error.text) : COMMAND_OK;
}

/* One server that is looked for again, or several, are a pool. */
static core_status connect_within(struct encrypt_run *run)
{
    const struct encrypt_options *options = run->options;
    const struct millrace_tls tls = command_tls(&options->server);
    const struct millrace_pool pool = {
        .size = sizeof pool,
        .addresses = options->server.address,
        .patience_ms = (int)core_time_min(options->reconnect_ns / CORE_NS_PER_MS, INT_MAX),
        .kept_bytes_max = ENCRYPT_KEPT_BYTES};
    if (options->reconnect_ns == 0 && strchr(options->server.address, ',') == NULL)
        return command_connect_within(&options->server, options->server.timeout_ms, &run->connection,
                                      &run->error);
    return (core_status)millrace_pool_connect(&pool, &tls, options->server.timeout_ms, &run->connection,
                                              run->error.text);
}

static int connect_to_server(struct encrypt_run *run)
{
    if (connect_within(run) != CORE_OK)
        return command_fail(COMMAND_FAILED, "%s", run->error.text);
    if (run->options->reconnect_ns > 0 &&
        (millrace_welcome_of(run->connection)->flags & MILLRACE_ALLOWS_CLIENT_IV) == 0)
        return command_fail(COMMAND_USAGE, "--reconnect: this server does not allow a client to give the IV");
    return COMMAND_OK;
}

static int encrypt(struct encrypt_run *run)
{
    struct core_error error;
    int exit = connect_to_server(run);
    if (exit != COMMAND_OK)
        return exit;
    if (command_contract_open(&run->options->contract, millrace_welcome_of(run->connection), &run->open,
                              &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    exit = open_files(run);
    if (exit == COMMAND_OK)
        exit = open_stream(run);
    if (exit != COMMAND_OK)
        return exit;
    return encrypt_stream(run);
}

int command_encrypt(int argc, char **argv)
{
    static struct encrypt_run run;
    static struct encrypt_options options;
    core_options_server_init(&options.server);
    command_contract_init(&options.contract);
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return COMMAND_FAILED;
    run.options = &options;
    run.opened.size = sizeof run.opened;
    run.terminal = isatty(STDERR_FILENO) && !options.quiet && !command_wants_json();
    core_histogram_init(&run.latency);
    if (command_contract_settle(&options.contract, &run.error) != CORE_OK ||
        options_check(&options, &run.error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", run.error.text);
    int exit = encrypt(&run);
    millrace_disconnect(run.connection);
    if (run.input.packet != NULL)
        encrypt_input_close(&run.input);
    core_secret_wipe(&options.contract, sizeof options.contract);
    return exit;
}
