/* millrace encrypt: one stream from a file or a pipe, at its contract's pace. */
#include "client/command_encrypt.h"

#include "core/histogram.h"
#include "core/secret.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AHEAD_BYTES   (UINT64_C(4) << 20) /* sent and not yet back, at most */
#define OPEN_ATTEMPTS 5 /* at an open rate: others may take the room between question and request */
#define PROGRESS_NS   (200 * CORE_NS_PER_MS)

struct options {
    struct command_server server;
    struct command_contract contract;
    const char *input, *output;
    uint64_t skip;
    bool quiet;
};

struct run {
    const struct options *options;
    struct millrace *connection;
    struct encrypt_input input;
    struct encrypt_output output;
    struct protocol_open open;
    struct protocol_opened opened;
    struct core_error error; /* of what went wrong inside a callback */
    core_status status;
    core_ns arrival_ns; /* the contract's theoretical arrival time of the next packet */
    core_ns started_ns, told_ns;
    bool terminal;
    uint64_t sent, received, received_bytes;
    uint64_t met, missed, reader_late, policed;
    struct core_histogram latency;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- options ---- */

enum { OPTION_SKIP = 0x300 };

static const struct argp_option option_table[] = {
    {"output", 'o', "FILE", 0, "write the ciphertext here [standard output]", 0},
    {"skip", OPTION_SKIP, "N", 0,
     "go on after N packets: leaves them out of the input, keeps their ciphertext in the output file and "
     "chains to its "
     "last block (to standard output: give that block as --iv)",
     0},
    {"quiet", 'q', NULL, 0, "no progress and no summary", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->contract;
        state->child_inputs[1] = &options->server;
        return 0;
    case 'o':
        options->output = argument;
        return 0;
    case OPTION_SKIP:
        if (!command_parse_count(argument, UINT64_MAX, &options->skip))
            argp_error(state, "--skip %s: give a number of packets", argument);
        return 0;
    case 'q':
        options->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        if (options->input != NULL)
            argp_error(state, "give one input file");
        options->input = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->contract.key_kind == PROTOCOL_KEY_NONE)
            argp_error(state, "give a key: --key-name, --key-file or --key");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&command_contract_argp, 0, "Stream:", 1}, {&command_server_argp, 0, "Server:", 2}, {0}};
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
           "--padding=end, `openssl enc -d -aes-128-cbc -K KEY -iv IV` decrypts the output. CBC protects no "
           "integrity.\n\n" COMMAND_EXIT_HELP,
    .children = children,
};

/* ---- results ---- */

static void count_result(struct run *run, const struct protocol_result *info)
{
    if (info->flags & PROTOCOL_RESULT_MET)
        run->met++;
    else
        run->missed++;
    run->reader_late += (info->flags & PROTOCOL_RESULT_READER) != 0;
    run->policed += (info->flags & PROTOCOL_RESULT_POLICED) != 0;
    core_histogram_record(&run->latency, info->latency_ns);
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct run *run = argument;
    if (run->status)
        return;
    if (result->info.status != PROTOCOL_RESULT_OK) {
        run->status =
            core_error_set(&run->error, CORE_INVALID, "packet %" PRIu64 " was not encrypted: %s%s",
                           run->options->skip + run->received, protocol_result_name(result->info.status),
                           result->info.status == PROTOCOL_RESULT_NOT_BLOCKS
                               ? " (without padding the input must be a multiple of 16 bytes)"
                               : "");
        return;
    }
    run->status = encrypt_output_write(&run->output, result->ciphertext, result->bytes, &run->error);
    run->received++;
    run->received_bytes += result->bytes;
    count_result(run, &result->info);
}

static void on_closed(void *argument, uint32_t stream, const struct protocol_closed *closed)
{
    struct run *run = argument;
    (void)stream;
    if (run->status == CORE_OK)
        run->status =
            core_error_set(&run->error, CORE_CLOSED, "the server closed the stream: %s",
                           closed->reason == PROTOCOL_CLOSE_DRAINED ? "it is stopping" : "its cipher failed");
}

/* ---- opening ---- */

static bool takes_iv_from_output(const struct options *options)
{
    return options->skip > 0 && !options->contract.has_iv && options->output != NULL &&
           strcmp(options->output, "-") != 0;
}

/* Input, output, and the IV to go on from. */
static int open_files(struct run *run)
{
    const struct options *options = run->options;
    const struct core_stream_spec *spec = &run->open.spec;
    uint32_t padded_bytes = core_stream_padded_bytes(spec->padding, spec->packet_bytes);
    struct core_error error;
    if (options->skip > 0 && !options->contract.has_iv && !takes_iv_from_output(options))
        return command_fail(COMMAND_USAGE,
                            "--skip to standard output needs --iv, the last block already written");
    if (encrypt_input_open(&run->input, options->input, &options->contract, options->skip, &error) !=
            CORE_OK ||
        encrypt_output_open(&run->output, options->output, options->skip, padded_bytes, &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    if (run->output.file == stdout && isatty(STDOUT_FILENO))
        return command_fail(COMMAND_USAGE, "ciphertext is not for a terminal: redirect it, or give --output");
    if (takes_iv_from_output(options)) {
        run->open.has_iv = true;
        memcpy(run->open.iv, run->output.last_block, CORE_BLOCK_BYTES);
    }
    return COMMAND_OK;
}

static int open_stream(struct run *run)
{
    int timeout_ms = run->options->server.timeout_ms;
    bool rate_is_open = command_rate_is_open(&run->options->contract);
    struct protocol_refused refused = {.code = PROTOCOL_REFUSED_CAPACITY};
    core_status status = CORE_REFUSED;
    for (int i = 0; i < (rate_is_open ? OPEN_ATTEMPTS : 1) && status == CORE_REFUSED &&
                    refused.code == PROTOCOL_REFUSED_CAPACITY;
         i++) {
        status = CORE_OK;
        if (rate_is_open)
            status = command_best_rate(run->connection, timeout_ms, &run->open, &refused, &run->error);
        if (status == CORE_OK)
            status = millrace_open_stream(run->connection, &run->open, timeout_ms, &run->opened, &refused,
                                          &run->error);
    }
    if (status == CORE_REFUSED)
        return command_print_refused(&run->open, &refused);
    return status ? command_fail(COMMAND_FAILED, "%s", run->error.text) : COMMAND_OK;
}

/* ---- the loop ---- */

static void show_progress(struct run *run, core_ns now_ns)
{
    char bytes[COMMAND_TEXT_BYTES], rate[COMMAND_TEXT_BYTES];
    if (!run->terminal || now_ns - run->told_ns < PROGRESS_NS)
        return;
    double seconds = (double)(now_ns - run->started_ns) / 1e9;
    run->told_ns = now_ns;
    fprintf(stderr, "\r\033[K%s, %s, %" PRIu64 " packets, %" PRIu64 " missed",
            command_format_bytes((double)run->received_bytes, bytes),
            command_format_rate((double)run->received_bytes * 8 / seconds, rate), run->received, run->missed);
    if (run->input.size > 0) {
        double done = (double)(run->options->skip + run->received) * run->open.spec.packet_bytes;
        fprintf(stderr, ", %.0f %%",
                done >= (double)run->input.size ? 100 : 100 * done / (double)run->input.size);
    }
}

/* When the packet at hand may be sent: the server's own rule, but with one packet of the burst kept back for
 * the jitter of the way, so that the server has nothing to hold back. */
static core_ns due_ns(const struct run *run)
{
    const struct core_stream_spec *spec = &run->open.spec;
    core_ns ahead = spec->burst_packets > 2 ? spec->burst_packets - 2 : 0;
    return run->arrival_ns - ahead * spec->interval_ns;
}

static bool has_room(const struct run *run)
{
    uint64_t ahead = (run->sent - run->received) * run->open.spec.packet_bytes;
    return ahead < AHEAD_BYTES;
}

static void send_packet(struct run *run, core_ns now_ns)
{
    run->status = millrace_data(run->connection, run->opened.stream, run->input.packet, run->input.bytes,
                                NULL, &run->error);
    if (run->status == CORE_FULL)
        run->status = CORE_OK; /* stays at hand until the server has read */
    else if (run->status == CORE_OK) {
        run->sent++;
        run->arrival_ns = (run->arrival_ns > now_ns ? run->arrival_ns : now_ns) + run->open.spec.interval_ns;
        encrypt_input_next(&run->input);
    }
}

static bool wants_input(const struct run *run)
{
    return !interrupted && !run->input.finished && !run->input.complete;
}

static bool wants_to_send(const struct run *run)
{
    return !interrupted && run->input.complete && has_room(run) &&
           millrace_unsent_bytes(run->connection) == 0;
}

/* Until the socket, the input, or the next packet's time. */
static void sleep_until_needed(const struct run *run, core_ns now_ns)
{
    struct pollfd ready[2] = {
        {.fd = millrace_descriptor(run->connection), .events = millrace_events(run->connection)},
        {.fd = wants_input(run) ? run->input.descriptor : -1, .events = POLLIN},
    };
    core_ns wake_ns = now_ns + PROGRESS_NS;
    if (wants_to_send(run) && due_ns(run) < wake_ns)
        wake_ns = due_ns(run);
    core_ns sleep_ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
    const struct timespec timeout = {sleep_ns / CORE_NS_PER_S, sleep_ns % CORE_NS_PER_S};
    ppoll(ready, 2, &timeout, NULL);
}

static bool input_is_ready(const struct run *run)
{
    struct pollfd ready = {.fd = run->input.descriptor, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

/* Sends every packet that is there and due; a regular file always has the next one. */
static void send_due(struct run *run, core_ns now_ns)
{
    while (run->status == CORE_OK && !interrupted && has_room(run)) {
        if (wants_input(run) && input_is_ready(run))
            run->status = encrypt_input_read(&run->input, &run->error);
        if (run->status || !run->input.complete)
            return;
        uint64_t sent = run->sent;
        if (due_ns(run) <= now_ns)
            send_packet(run, now_ns);
        if (run->sent == sent)
            return;
    }
}

static bool is_done(const struct run *run)
{
    bool all_sent = interrupted || (run->input.finished && !run->input.complete);
    return all_sent && run->received == run->sent;
}

static void pump(struct run *run)
{
    run->started_ns = run->told_ns = core_time_now_ns();
    while (run->status == CORE_OK && !is_done(run)) {
        core_ns now_ns = core_time_now_ns();
        send_due(run, now_ns);
        core_status status = run->status;
        if (status == CORE_OK)
            status = millrace_process(run->connection, 0, &run->error);
        if (run->status == CORE_OK)
            run->status = status;
        show_progress(run, now_ns);
        if (run->status == CORE_OK && !is_done(run))
            sleep_until_needed(run, core_time_now_ns());
    }
}

/* ---- the end ---- */

static void print_latency(const struct core_histogram *latency)
{
    static const double percents[] = {50, 99, 99.9};
    char text[COMMAND_TEXT_BYTES];
    fputs("latency:", stderr);
    for (size_t i = 0; i < sizeof percents / sizeof percents[0]; i++)
        fprintf(stderr, "%s p%g %s", i > 0 ? "," : "", percents[i],
                command_format_duration(core_histogram_percentile_ns(latency, percents[i]), text));
    fprintf(stderr, ", max %s\n", command_format_duration(core_histogram_maximum_ns(latency), text));
}

static void print_summary(const struct run *run)
{
    char bytes[COMMAND_TEXT_BYTES], rate[COMMAND_TEXT_BYTES], iv[2 * CORE_BLOCK_BYTES + 1];
    double seconds = (double)(core_time_now_ns() - run->started_ns) / 1e9;
    if (run->terminal)
        fputs("\r\033[K", stderr);
    fprintf(stderr, "%" PRIu64 " packets, %s in %.2f s (%s)\n", run->received,
            command_format_bytes((double)run->received_bytes, bytes), seconds,
            command_format_rate((double)run->received_bytes * 8 / seconds, rate));
    fprintf(stderr,
            "deadlines: %" PRIu64 " met, %" PRIu64 " missed; %" PRIu64 " read late by us, %" PRIu64
            " sent early\n",
            run->met, run->missed, run->reader_late, run->policed);
    if (run->received > 0)
        print_latency(&run->latency);
    fprintf(stderr, "IV: %s\n", command_format_hex(run->opened.iv, CORE_BLOCK_BYTES, iv));
}

static void print_how_to_go_on(const struct run *run)
{
    char iv[2 * CORE_BLOCK_BYTES + 1];
    if (run->received == 0)
        return;
    fprintf(stderr, "%" PRIu64 " packets are written; go on with --skip=%" PRIu64 " --iv=%s\n", run->received,
            run->options->skip + run->received,
            command_format_hex(run->output.last_block, CORE_BLOCK_BYTES, iv));
}

static int finish(struct run *run)
{
    struct protocol_closed closed;
    struct core_error error;
    bool complete = run->status == CORE_OK && !interrupted;
    if (encrypt_output_close(&run->output, &error) != CORE_OK && run->status == CORE_OK) {
        run->status = CORE_SYSTEM;
        run->error = error;
    }
    if (run->status == CORE_OK)
        run->status = millrace_close_stream(run->connection, run->opened.stream,
                                            run->options->server.timeout_ms, &closed, &run->error);
    if (!run->options->quiet)
        print_summary(run);
    if (run->status)
        command_fail(COMMAND_FAILED, "%s", run->error.text);
    if (!complete)
        print_how_to_go_on(run);
    if (run->status || !complete)
        return COMMAND_FAILED;
    return run->missed > 0 ? COMMAND_MISSED : COMMAND_OK;
}

static int encrypt(struct run *run)
{
    struct core_error error;
    const struct millrace_callbacks callbacks = {
        .on_result = on_result, .on_closed = on_closed, .argument = run};
    const struct sigaction stop = {.sa_handler = on_signal,
                                   .sa_flags = (int)SA_RESETHAND}; /* the second kills */
    if (command_contract_open(&run->options->contract, millrace_welcome(run->connection), &run->open,
                              &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    int exit = open_files(run);
    if (exit == COMMAND_OK)
        exit = open_stream(run);
    if (exit != COMMAND_OK)
        return exit;
    if (encrypt_output_start(&run->output, &error) != CORE_OK)
        return command_fail(COMMAND_FAILED, "%s", error.text);
    millrace_set_callbacks(run->connection, &callbacks);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves is an error of the output, with its words */
    pump(run);
    return finish(run);
}

int command_encrypt(int argc, char **argv)
{
    static struct run run;
    static struct options options;
    command_server_init(&options.server);
    command_contract_init(&options.contract);
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    run.options = &options;
    run.terminal = isatty(STDERR_FILENO) && !options.quiet;
    core_histogram_init(&run.latency);
    run.connection = command_connect(&options.server);
    int exit = run.connection == NULL ? COMMAND_FAILED : encrypt(&run);
    millrace_disconnect(run.connection);
    if (run.input.packet != NULL)
        encrypt_input_close(&run.input);
    core_secret_wipe(&options.contract, sizeof options.contract);
    return exit;
}
