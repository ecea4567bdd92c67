/* `millrace-gen replay`: options, output, exit status. */
#include "inputgen/command_run.h"
#include "inputgen/commands.h"

struct command {
    struct inputgen_command run;
    struct inputgen_judgement judgement;
    const char *hgrm;
};

enum option_key { OPTION_ALLOW_REFUSED = 0x200, OPTION_SERVER_WORD, OPTION_HGRM };

static const struct argp_option argp_options[] = {
    {"allow-refused", OPTION_ALLOW_REFUSED, NULL, 0, "Refused streams are no fault", 4},
    {"server-word", OPTION_SERVER_WORD, NULL, 0,
     "Judge deadlines by the server's word only, not by when results arrived here", 4},
    {"hgrm", OPTION_HGRM, "FILE", 0, "Write the latency distribution in HdrHistogram's format", 5},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct command *command = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->run;
        return 0;
    case OPTION_ALLOW_REFUSED:
        command->judgement.allow_refused = true;
        return 0;
    case OPTION_SERVER_WORD:
        command->judgement.server_only = true;
        return 0;
    case OPTION_HGRM:
        command->hgrm = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child argp_children[] = {{.argp = &inputgen_command_argp}, {0}};

static const struct argp argp_replay = {
    .options = argp_options,
    .parser = parse_option,
    .children = argp_children,
    .args_doc = "LIST.csv|WORKLOAD",
    .doc =
        "Replay streams against a server in real time and check everything that comes back.\v"
        "Every packet is sent at its own time, whatever the server does, and its latency counts from that "
        "time until the result has been received. Every returned byte is decrypted and compared.\n\n"
        "WORKLOAD is a path, or the bare name of a shipped one (demo, gigabit, formats, ...); LIST.csv comes "
        "from `millrace-gen make`, whose help tells the kinds.\n\n"
        "Exit status: 0 all well; 1 a wrong byte, a loss, a miss or a refused stream; 2 usage; 3 the "
        "streams could not be brought to run."};

static int report_show(const struct command *command, const struct inputgen_report *report)
{
    char sentence[512];
    struct core_error error;
    int status = inputgen_report_judge(report, &command->judgement, sentence, sizeof sentence);
    core_status written = CORE_OK;
    if (command->run.json)
        written = inputgen_report_json(report, &command->judgement, stdout);
    else if (!command->run.quiet || status != 0)
        written = inputgen_report_print(report, &command->judgement, stdout);
    if (written != CORE_OK) {
        (void)core_error_errno(&error, "standard output");
        return inputgen_command_complain(&command->run, INPUTGEN_EXIT_FAULT, &error);
    }
    if (command->hgrm && inputgen_report_hgrm(report, command->hgrm, &error) != CORE_OK)
        return inputgen_command_complain(&command->run, INPUTGEN_EXIT_FAULT, &error);
    return status;
}

static int list_replay(struct command *command)
{
    struct inputgen_report *report;
    struct core_error error;
    inputgen_command_begin(&command->run);
    core_status status =
        inputgen_replay_run(&command->run.options, command->run.streams_listed, &report, &error);
    inputgen_command_end(&command->run);
    if (status != CORE_OK)
        return inputgen_command_complain(&command->run, INPUTGEN_EXIT_NO_RUN, &error);
    int result = report_show(command, report);
    inputgen_report_free(report);
    return result;
}

int inputgen_command_replay(int argc, char **argv)
{
    struct command command = {.hgrm = NULL};
    struct core_error error;
    inputgen_command_init(&command.run, "millrace-gen replay");
    if (core_options_parse(&argp_replay, argc, argv, &command) != 0)
        return INPUTGEN_EXIT_USAGE;
    int result = inputgen_command_load(&command.run, &error) == CORE_OK
                     ? list_replay(&command)
                     : inputgen_command_complain(&command.run, INPUTGEN_EXIT_USAGE, &error);
    inputgen_command_free(&command.run);
    return result;
}
