/* `millrace-gen churn`: options, output, exit status. */
#include "inputgen/churn.h"
#include "inputgen/command_run.h"
#include "inputgen/commands.h"

#include <stdlib.h>
#include <string.h>

struct command {
    struct inputgen_command run;
    struct inputgen_churn_options churn;
    struct inputgen_churn_judgement judgement;
    const char *opened; /* NULL: the same workload as the standing streams */
    const char *samples;
};

enum option_key {
    OPTION_OPENED = 0x200,
    OPTION_OPERATIONS,
    OPTION_MIX,
    OPTION_OPENED_MAX,
    OPTION_GUARANTEED,
    OPTION_ADMIN,
    OPTION_PROBE,
    OPTION_PROBE_RATE,
    OPTION_SAMPLES,
    OPTION_SAMPLE_EVERY,
    OPTION_ALLOW_REFUSED,
    OPTION_ALLOW_MISSED
};

static const struct argp_option argp_options[] = {
    {"operations", OPTION_OPERATIONS, "N", 0, "Operations a second, at random times (default 200)", 2},
    {"mix", OPTION_MIX, "OPEN:CLOSE:MODIFY", 0, "Their shares, as weights (default 1:1:1)", 2},
    {"opened", OPTION_OPENED, "LIST.csv|WORKLOAD", 0,
     "What the streams are drawn from that are opened (default: as those that stand)", 2},
    {"opened-max", OPTION_OPENED_MAX, "N", 0, "Of them at once, at most (default 400)", 2},
    {"guaranteed", OPTION_GUARANTEED, "PERCENT", 0,
     "Of all streams that ask to survive the loss of a GPU (default 0)", 2},
    {"probe", OPTION_PROBE, "N", 0,
     "Probe the capacity with up to N streams of each class; 0: not at all (default 10000)", 2},
    {"probe-rate", OPTION_PROBE_RATE, "RATE", 0,
     "At this rate, as 4Mbit/s, or their own if it is higher (default 4Mbit/s)", 2},
    {"allow-refused", OPTION_ALLOW_REFUSED, NULL, 0, "Standing streams that are refused are no fault", 4},
    {"allow-missed", OPTION_ALLOW_MISSED, NULL, 0, "Missed deadlines are no fault", 4},
    {"admin", OPTION_ADMIN, "ADDRESS", 0,
     "The server's admin socket, to see periods of GPUs change [$MILLRACE_ADMIN]", 5},
    {"samples", OPTION_SAMPLES, "FILE", 0, "Write the server's figures there now and then, as CSV", 5},
    {"sample-every", OPTION_SAMPLE_EVERY, "TIME", 0, "How often (default 1min)", 5},
    {0}};

/* "2:1": as many weights as there are kinds of operations. */
static void parse_mix(struct argp_state *state, const char *text, double *weights)
{
    const char *at = text;
    double sum = 0;
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++) {
        char *end;
        weights[kind] = strtod(at, &end);
        bool last = kind + 1 == INPUTGEN_OPERATION_KINDS;
        if (end == at || *end != (last ? '\0' : ':') || !(weights[kind] >= 0 && weights[kind] <= 1e6))
            argp_error(state, "--mix: '%s' is not %d weights from 0 to 1e6 with colons between them", text,
                       INPUTGEN_OPERATION_KINDS);
        sum += weights[kind];
        at = end + 1;
    }
    if (sum <= 0)
        argp_error(state, "--mix: '%s' has no weight above 0", text);
}

static void argument_check(struct argp_state *state, const struct command *command)
{
    if (command->samples && !command->churn.admin)
        argp_error(state, "--samples needs --admin ADDRESS: the figures come from there");
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct command *command = state->input;
    struct inputgen_churn_options *churn = &command->churn;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->run;
        return 0;
    case OPTION_OPENED:
        command->opened = text;
        return 0;
    case OPTION_OPERATIONS:
        churn->operations_per_s = core_options_number(state, "operations", text, 0.001, 1e6);
        return 0;
    case OPTION_MIX:
        parse_mix(state, text, churn->weights);
        return 0;
    case OPTION_OPENED_MAX:
        churn->open_max = (size_t)core_options_count(state, "opened-max", text, 1, 1000000);
        return 0;
    case OPTION_GUARANTEED:
        churn->guaranteed = core_options_number(state, "guaranteed", text, 0, 100) / 100;
        return 0;
    case OPTION_PROBE:
        churn->probe_max = core_options_count(state, "probe", text, 0, 1000000);
        return 0;
    case OPTION_PROBE_RATE:
        churn->probe_bits_per_s = core_options_rate(state, "probe-rate", text, 1e6, 1e3, 1e12);
        return 0;
    case OPTION_ADMIN:
        churn->admin = text;
        return 0;
    case OPTION_SAMPLES:
        command->samples = text;
        return 0;
    case OPTION_SAMPLE_EVERY:
        churn->sample_every_ns = core_options_duration(state, "sample-every", text, CORE_NS_PER_S,
                                                       100 * CORE_NS_PER_MS, 1000000 * CORE_NS_PER_S);
        return 0;
    case OPTION_ALLOW_REFUSED:
        command->judgement.allow_refused = true;
        return 0;
    case OPTION_ALLOW_MISSED:
        command->judgement.allow_missed = true;
        return 0;
    case ARGP_KEY_END:
        argument_check(state, command);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child argp_children[] = {{.argp = &inputgen_command_argp}, {0}};

static const struct argp argp_churn = {
    .options = argp_options,
    .parser = parse_option,
    .children = argp_children,
    .args_doc = "LIST.csv|WORKLOAD",
    .doc =
        "Open, change and close streams on a running server while others stand, and check everything.\v"
        "The streams of WORKLOAD stand: they send all the time. Beside them streams are opened at random "
        "times, send, and are closed again, and contracts of all kinds of streams are changed: half to twice "
        "the "
        "interval and latency bound, another burst, or what the server offered last. Every packet is sent at "
        "its own time and every returned byte is "
        "decrypted and compared. Before and after, with nothing else on the server, identical streams of "
        "each class are opened until it refuses: the counts must agree.\n\n"
        "WORKLOAD is a path, or the bare name of a shipped one (mixed, churn, ...).\n\n"
        "Example: millrace-gen churn mixed --opened churn --server unix:SOCKET --admin unix:ADMIN "
        "--duration 1min\n\n"
        "Exit status: 0 all well; 1 a wrong byte, a loss, a miss by the server's word, a standing stream "
        "refused, a request without an answer, or another capacity than before; 2 usage; 3 the churn could "
        "not begin."};

static int report_show(const struct command *command, const struct inputgen_churn_report *report)
{
    char sentence[1024];
    struct core_error error;
    int status = inputgen_churn_judge(report, &command->judgement, sentence, sizeof sentence);
    core_status written = CORE_OK;
    if (command->run.json)
        written = inputgen_churn_json(report, &command->judgement, stdout);
    else if (!command->run.quiet || status != 0)
        written = inputgen_churn_print(report, &command->judgement, stdout);
    if (written == CORE_OK)
        return status;
    (void)core_error_errno(&error, "standard output");
    return inputgen_command_complain(&command->run, INPUTGEN_EXIT_FAULT, &error);
}

static int run(struct command *command)
{
    struct inputgen_churn_report *report;
    struct core_error error;
    inputgen_command_begin(&command->run);
    command->churn.run = command->run.options;
    core_status status = inputgen_churn_run(&command->churn, command->run.streams_listed, &report, &error);
    inputgen_command_end(&command->run);
    if (status != CORE_OK)
        return inputgen_command_complain(&command->run, INPUTGEN_EXIT_NO_RUN, &error);
    int result = report_show(command, report);
    inputgen_churn_report_free(report);
    return result;
}

/* A large drawing of the workload, so that what is opened is as various as it says. */
#define OPENED_DRAWN 10000

static core_status files_open(struct command *command, struct inputgen_streams **opened,
                              struct core_error *error)
{
    const struct inputgen_replay_options *options = &command->run.options;
    core_status status =
        inputgen_command_list(command->opened ? command->opened : command->run.list, command->run.kinds,
                              OPENED_DRAWN, options->duration_ns, options->seed + 1, opened, error);
    command->churn.opened = *opened;
    if (status != CORE_OK || !command->samples)
        return status;
    if (!(command->churn.samples = fopen(command->samples, "we")))
        return core_error_errno(error, "%s", command->samples);
    inputgen_watch_head(command->churn.samples);
    return CORE_OK;
}

int inputgen_command_churn(int argc, char **argv)
{
    struct command command = {.churn = {.operations_per_s = 200,
                                        .weights = {1, 1, 1},
                                        .open_max = 400,
                                        .probe_max = 10000,
                                        .probe_bits_per_s = 4e6,
                                        .admin = getenv("MILLRACE_ADMIN"),
                                        .sample_every_ns = 60 * CORE_NS_PER_S}};
    struct inputgen_streams *opened = NULL;
    struct core_error error;
    inputgen_command_init(&command.run, "millrace-gen churn");
    if (core_options_parse(&argp_churn, argc, argv, &command) != 0)
        return INPUTGEN_EXIT_USAGE;
    core_status status = inputgen_command_load(&command.run, &error);
    if (status == CORE_OK)
        status = files_open(&command, &opened, &error);
    int result = status == CORE_OK ? run(&command)
                                   : inputgen_command_complain(&command.run, INPUTGEN_EXIT_USAGE, &error);
    if (command.churn.samples && fclose(command.churn.samples) != 0) {
        (void)core_error_errno(&error, "%s", command.samples);
        result = inputgen_command_complain(&command.run, INPUTGEN_EXIT_FAULT, &error);
    }
    inputgen_streams_free(opened);
    inputgen_command_free(&command.run);
    return result;
}
