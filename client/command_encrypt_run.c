/* millrace encrypt: the run, from the open stream to its close. One thread, one loop. */
#include "client/command_encrypt.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRESS_NS (200 * CORE_NS_PER_MS)

static volatile sig_atomic_t interrupted; /* by this signal */

static void on_signal(int number)
{
    interrupted = number;
}

/* ---- results ---- */

static void count_result(struct encrypt_run *run, const struct millrace_result *info)
{
    if (info->flags & MILLRACE_RESULT_MET)
        run->met++;
    else
        run->missed++;
    run->reader_late += (info->flags & MILLRACE_RESULT_READER) != 0;
    run->policed += (info->flags & MILLRACE_RESULT_POLICED) != 0;
    core_histogram_record(&run->latency, info->latency_ns);
}

/* A packet that was held back tells how far the server's clockwork is behind ours, after a stall on the way.
 * Packets sent before the correction say it again: they are passed over. */
static void follow_server(struct encrypt_run *run, const struct millrace_result *info)
{
    if ((info->flags & MILLRACE_RESULT_POLICED) == 0 || run->received <= run->corrected)
        return;
    run->arrival_ns += info->waited_us * CORE_NS_PER_US;
    run->corrected = run->sent;
}

static const char *not_blocks(const struct encrypt_run *run)
{
    const struct core_stream_spec *spec = &run->options->contract.spec;
    if (spec->records == CORE_RECORDS_TS)
        return " (with --records=ts the input must be transport-stream packets of 188 bytes)";
    if (spec->iv == CORE_IV_EXPLICIT)
        return " (with --iv=explicit each message begins with its IV of 16 bytes)";
    return spec->direction == CORE_DIRECTION_DECRYPT
               ? " (what is decrypted must be a multiple of 16 bytes)"
               : " (without padding the input must be a multiple of 16 bytes)";
}

/* That the server has drawn for the message that begins: ahead of it. */
static core_status write_iv(struct encrypt_run *run, const uint8_t iv[CORE_BLOCK_BYTES])
{
    if (run->received == 0)
        memcpy(run->iv, iv, CORE_BLOCK_BYTES);
    run->received_bytes += CORE_BLOCK_BYTES;
    return encrypt_output_write(&run->output, iv, CORE_BLOCK_BYTES, &run->error);
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct encrypt_run *run = argument;
    if (run->status)
        return;
    if (result->status != MILLRACE_RESULT_OK) {
        run->status = core_error_set(&run->error, CORE_INVALID, "packet %" PRIu64 " was not encrypted: %s%s",
                                     run->options->skip + run->received, millrace_result_name(result->status),
                                     result->status == MILLRACE_RESULT_NOT_BLOCKS ? not_blocks(run) : "");
        return;
    }
    if (result->iv != NULL)
        run->status = write_iv(run, result->iv);
    if (run->status == CORE_OK)
        run->status = encrypt_output_write(&run->output, result->ciphertext, result->bytes, &run->error);
    run->received++;
    run->received_bytes += result->bytes;
    count_result(run, result);
    follow_server(run, result);
}

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct encrypt_run *run = argument;
    (void)stream;
    if (run->status)
        return;
    run->status = core_error_set(&run->error, closed->refused ? CORE_REFUSED : CORE_CLOSED,
                                 "the server closed the stream: %s",
                                 closed->reason == MILLRACE_CLOSE_LOST   ? closed->text
                                 : closed->reason == MILLRACE_CLOSE_IDLE ? "it had sent nothing for too long"
                                 : closed->reason == MILLRACE_CLOSE_FAILED ? "its cipher failed"
                                                                           : "it is stopping");
}

static void on_resumed(void *argument, uint32_t stream, const struct millrace_resumed *resumed)
{
    struct encrypt_run *run = argument;
    char gap[CORE_TEXT_BYTES];
    (void)stream;
    run->gaps++;
    run->gap_ns = core_time_max(run->gap_ns, resumed->gap_ns);
    if (!run->options->quiet)
        fprintf(stderr,
                "%smillrace: the server was lost; gone on with another connection after %s, %" PRIu64
                " packets sent again, %" PRIu64 " late\n",
                run->terminal ? "\r\033[K" : "", core_duration_format(resumed->gap_ns, gap), resumed->resent,
                resumed->late);
}

static void on_notice(void *argument, uint32_t stream, const struct millrace_notice *notice)
{
    const struct encrypt_run *run = argument;
    (void)stream;
    if (!run->options->quiet)
        fprintf(stderr, "%smillrace: %s: %s\n", run->terminal ? "\r\033[K" : "",
                millrace_notice_name(notice->kind), notice->text);
}

/* ---- the loop ---- */

static void show_progress(struct encrypt_run *run, core_ns now_ns)
{
    char bytes[CORE_TEXT_BYTES], rate[CORE_TEXT_BYTES];
    if (!run->terminal || now_ns - run->told_ns < PROGRESS_NS)
        return;
    double seconds = (double)(now_ns - run->started_ns) / 1e9;
    run->told_ns = now_ns;
    fprintf(stderr, "\r\033[K%s, %s, %" PRIu64 " packets, %" PRIu64 " missed",
            core_bytes_format((double)run->received_bytes, bytes),
            core_rate_format((double)run->received_bytes * 8 / seconds, rate), run->received, run->missed);
    if (run->input.size > 0) {
        double done = (double)(run->options->skip + run->received) * run->open.packet_bytes;
        fprintf(stderr, ", %.0f %%",
                done >= (double)run->input.size ? 100 : 100 * done / (double)run->input.size);
    }
}

/* When the packet at hand may be sent: the server's own rule, with half an interval of the burst kept back
 * for the jitter of the way, so that the server has little to hold back. The rest makes up for late wake-ups.
 */
static core_ns due_ns(const struct encrypt_run *run)
{
    const struct millrace_open *open = &run->open;
    core_ns ahead_ns = (core_ns)(open->burst_packets - 1) * open->interval_ns;
    return run->arrival_ns - ahead_ns + (ahead_ns > 0 ? open->interval_ns / 2 : 0);
}

static bool has_room(const struct encrypt_run *run)
{
    uint64_t ahead = (run->sent - run->received) * (run->open.packet_bytes + ENCRYPT_PACKET_MORE_BYTES);
    return ahead < ENCRYPT_AHEAD_BYTES;
}

static void send_packet(struct encrypt_run *run, core_ns now_ns)
{
    run->status = (core_status)millrace_data_part(run->connection, run->opened.stream, run->input.packet,
                                                  run->input.bytes, run->input.flags, NULL, run->error.text);
    if (run->status == CORE_FULL) {
        run->status = CORE_OK; /* stays at hand until the server has read */
        return;
    }
    if (run->status)
        return;
    run->sent++;
    run->arrival_ns = core_time_max(run->arrival_ns, now_ns) + run->open.interval_ns;
    encrypt_input_next(&run->input);
}

static bool wants_input(const struct encrypt_run *run)
{
    return !interrupted && !run->input.finished && !run->input.complete;
}

static bool wants_to_send(const struct encrypt_run *run)
{
    return !interrupted && run->input.complete && has_room(run) &&
           millrace_unsent_bytes(run->connection) == 0;
}

/* Until the socket, the input, or the next packet's time. */
static void sleep_until_needed(const struct encrypt_run *run, core_ns now_ns)
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

static bool input_is_ready(const struct encrypt_run *run)
{
    struct pollfd ready = {.fd = run->input.descriptor, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

/* Sends every packet that is there and due; a regular file always has the next one. */
static void send_due(struct encrypt_run *run, core_ns now_ns)
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

static bool is_done(const struct encrypt_run *run)
{
    bool all_sent = interrupted || (run->input.finished && !run->input.complete);
    return all_sent && run->received == run->sent;
}

/* Writes and reads what there is. */
static void process(struct encrypt_run *run)
{
    struct core_error error;
    core_status status = (core_status)millrace_process(run->connection, 0, error.text);
    if (run->status || status == CORE_OK) /* what a callback has found says more */
        return;
    run->status = status;
    run->error = error;
}

/* A pool without a node: nothing that is still out comes back before one is there. */
static bool is_cut_off(const struct encrypt_run *run)
{
    struct millrace_node node = {.size = sizeof node};
    unsigned count = 0;
    while (millrace_pool_node(run->connection, count, &node, NULL) == MILLRACE_OK) {
        if (node.state == MILLRACE_NODE_UP)
            return false;
        count++;
    }
    return count > 0;
}

static void pump(struct encrypt_run *run)
{
    run->started_ns = run->told_ns = core_time_now_ns();
    while (run->status == CORE_OK && !is_done(run)) {
        core_ns now_ns = core_time_now_ns();
        send_due(run, now_ns);
        if (run->status == CORE_OK)
            process(run);
        if (run->status == CORE_OK && interrupted && is_cut_off(run))
            run->status =
                core_error_set(&run->error, CORE_CLOSED, "stopped while no server could be reached");
        show_progress(run, now_ns);
        if (run->status == CORE_OK && !is_done(run))
            sleep_until_needed(run, core_time_now_ns());
    }
}

/* ---- the end ---- */

static void print_latency(const struct core_histogram *latency)
{
    static const double percents[] = {50, 99, 99.9};
    char text[CORE_TEXT_BYTES];
    fputs("latency:", stderr);
    for (size_t i = 0; i < sizeof percents / sizeof percents[0]; i++)
        fprintf(stderr, "%s p%g %s", i > 0 ? "," : "", percents[i],
                core_duration_format(core_histogram_percentile_ns(latency, percents[i]), text));
    fprintf(stderr, ", max %s\n", core_duration_format(core_histogram_maximum_ns(latency), text));
}

/* Else each message has brought its own. */
static bool has_iv(const struct encrypt_run *run)
{
    return run->options->contract.spec.iv != CORE_IV_EXPLICIT;
}

static void print_summary(const struct encrypt_run *run)
{
    char bytes[CORE_TEXT_BYTES], rate[CORE_TEXT_BYTES], iv[2 * CORE_BLOCK_BYTES + 1];
    double seconds = (double)(core_time_now_ns() - run->started_ns) / 1e9;
    if (run->terminal)
        fputs("\r\033[K", stderr);
    fprintf(stderr, "%" PRIu64 " packets, %s in %.2f s (%s)\n", run->received,
            core_bytes_format((double)run->received_bytes, bytes), seconds,
            core_rate_format((double)run->received_bytes * 8 / seconds, rate));
    fprintf(stderr,
            "deadlines: %" PRIu64 " met, %" PRIu64 " missed; %" PRIu64 " read late by us, %" PRIu64
            " sent early\n",
            run->met, run->missed, run->reader_late, run->policed);
    if (run->received > 0)
        print_latency(&run->latency);
    if (run->gaps > 0)
        fprintf(stderr, "gone on elsewhere %u times, longest gap %s\n", run->gaps,
                core_duration_format(run->gap_ns, rate));
    if (has_iv(run))
        fprintf(stderr, "IV: %s\n", core_hex_format(run->iv, CORE_BLOCK_BYTES, iv));
}

/* --skip and --iv take up one chain. */
static bool may_go_on(const struct encrypt_run *run, bool complete)
{
    return !complete && run->received > 0 && command_encrypt_is_one_chain(run->options);
}

static void print_how_to_go_on(const struct encrypt_run *run)
{
    char iv[2 * CORE_BLOCK_BYTES + 1];
    fprintf(stderr, "%" PRIu64 " packets are written; go on with --skip=%" PRIu64 " --iv=%s\n", run->received,
            run->options->skip + run->received,
            core_hex_format(run->output.last_block, CORE_BLOCK_BYTES, iv));
}

static void print_end(const struct encrypt_run *run, bool complete)
{
    if (!run->options->quiet)
        print_summary(run);
    if (run->status)
        command_fail(COMMAND_FAILED, "%s", run->error.text);
    if (may_go_on(run, complete))
        print_how_to_go_on(run);
}

static json_t *pack_latency(const struct core_histogram *latency)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "p50", (double)core_histogram_percentile_ns(latency, 50) / 1e3,
                     "p99", (double)core_histogram_percentile_ns(latency, 99) / 1e3, "p99_9",
                     (double)core_histogram_percentile_ns(latency, 99.9) / 1e3, "max",
                     (double)core_histogram_maximum_ns(latency) / 1e3);
}

/* What --skip and --iv have to be to go on, null where all is done, or nothing is, or there is no going on. */
static json_t *pack_next(const struct encrypt_run *run, bool complete)
{
    char iv[2 * CORE_BLOCK_BYTES + 1];
    if (!may_go_on(run, complete))
        return json_null();
    return json_pack("{s:I, s:s}", "skip", (json_int_t)run->options->skip + (json_int_t)run->received, "iv",
                     core_hex_format(run->output.last_block, CORE_BLOCK_BYTES, iv));
}

static json_t *pack_summary(const struct encrypt_run *run, bool complete)
{
    char iv[2 * CORE_BLOCK_BYTES + 1];
    double seconds = (double)(core_time_now_ns() - run->started_ns) / 1e9;
    json_t *summary = json_pack(
        "{s:b, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:o, s:i, s:s?, s:o}", "complete", complete, "packets",
        (json_int_t)run->received, "bytes", (json_int_t)run->received_bytes, "seconds", seconds, "met",
        (json_int_t)run->met, "missed", (json_int_t)run->missed, "reader_late", (json_int_t)run->reader_late,
        "policed", (json_int_t)run->policed, "latency_us", pack_latency(&run->latency), "reconnects",
        (int)run->gaps, "iv", has_iv(run) ? core_hex_format(run->iv, CORE_BLOCK_BYTES, iv) : NULL, "next",
        pack_next(run, complete));
    if (summary != NULL && run->status)
        (void)json_object_set_new(summary, "error", command_pack_error(run->error.text));
    return summary;
}

static int finish(struct encrypt_run *run)
{
    struct millrace_closed closed = {.size = sizeof closed};
    struct core_error error;
    bool complete = run->status == CORE_OK && !interrupted;
    if (encrypt_output_close(&run->output, complete, &error) != CORE_OK && run->status == CORE_OK) {
        run->status = CORE_SYSTEM;
        complete = complete && !run->output.strips;
        run->error = error;
    }
    if (run->status == CORE_OK)
        run->status = (core_status)millrace_close_stream(
            run->connection, run->opened.stream, run->options->server.timeout_ms, &closed, run->error.text);
    int failed = COMMAND_OK;
    if (command_wants_json())
        failed = command_print_json(pack_summary(run, complete));
    else
        print_end(run, complete);
    if (run->status || failed) /* refused: where it was to go on */
        return run->status == CORE_REFUSED ? COMMAND_REFUSED : COMMAND_FAILED;
    if (!complete)
        return COMMAND_SIGNAL + interrupted;
    return run->missed > 0 ? COMMAND_MISSED : COMMAND_OK;
}

int encrypt_stream(struct encrypt_run *run)
{
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_result = on_result,
                                                 .on_closed = on_closed,
                                                 .on_notice = on_notice,
                                                 .on_resumed = on_resumed,
                                                 .argument = run};
    const struct sigaction stop = {.sa_handler = on_signal,
                                   .sa_flags = (int)SA_RESETHAND}; /* the second kills */
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves is an error of the output, with its words */
    run->status = (core_status)millrace_set_callbacks(run->connection, &callbacks, run->error.text);
    if (run->status == CORE_OK)
        run->status = encrypt_output_start(&run->output, &run->error);
    if (run->status)
        return command_fail(COMMAND_FAILED, "%s", run->error.text);
    pump(run);
    return finish(run);
}
