/* millrace query */
#include "client/command.h"

#include "client/contract.h"

#include <stdio.h>
#include <stdlib.h>

struct options {
    struct core_options_server server;
    struct command_contract contract;
};

static const struct argp_option option_table[] = {
    {"json", 'j', NULL, 0, "print a JSON object, also of an error", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    (void)argument;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->contract;
        state->child_inputs[1] = &options->server;
        return 0;
    case 'j':
        command_want_json();
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
    .doc = "Asks whether a stream would be admitted now. Nothing is promised: only opening it does that. A "
           "key may be "
           "left out."
           "\v" COMMAND_EXIT_HELP,
    .children = children,
};

static const char *unit_name(enum millrace_server_unit unit)
{
    return unit == MILLRACE_SERVER_UNIT_GPU ? "gpu" : "cpu";
}

/* What the class costs: null for a standard stream. */
static json_t *pack_backup(const struct millrace_open *open, const struct millrace_backup *backup)
{
    if (!open->guaranteed)
        return json_null();
    bool held = backup->unit != MILLRACE_SERVER_UNIT_NONE;
    return json_pack("{s:o, s:o, s:f, s:f}", "unit",
                     held ? json_string(unit_name(backup->unit)) : json_null(), "unit_index",
                     held ? json_integer(backup->unit_index) : json_null(), "reserved_percent",
                     backup->reserved_ppb / 1e7, "bound_us", (double)backup->bound_ns / 1e3);
}

static void print_backup(const struct millrace_backup *backup)
{
    char bound[CORE_TEXT_BYTES];
    if (backup->unit == MILLRACE_SERVER_UNIT_NONE)
        puts("guaranteed: no GPU can fail it, nothing is held elsewhere");
    else
        printf("guaranteed: within %s when a GPU is lost; %.3f %% of %s %u are held for it\n",
               core_duration_format(backup->bound_ns, bound), backup->reserved_ppb / 1e7,
               unit_name(backup->unit), backup->unit_index);
}

static int print_admitted(const struct millrace_open *open, const struct millrace_opened *opened)
{
    char bound[CORE_TEXT_BYTES], rate[CORE_TEXT_BYTES], decided[CORE_TEXT_BYTES];
    const struct core_stream_spec spec = client_contract_spec(open);
    double rate_bits_per_s = core_stream_rate_bits_per_s(&spec);
    if (command_wants_json())
        return command_print_json(json_pack("{s:b, s:s, s:i, s:f, s:f, s:f, s:o}", "admitted", 1, "unit",
                                            unit_name(opened->unit), "unit_index", (int)opened->unit_index,
                                            "bound_us", (double)opened->bound_ns / 1e3, "rate_bits_per_s",
                                            rate_bits_per_s, "decided_us", (double)opened->decided_ns / 1e3,
                                            "guaranteed", pack_backup(open, &opened->backup)));
    printf("admitted: %s, each packet within %s, on %s %u (decided in %s)\n",
           core_rate_format(rate_bits_per_s, rate), core_duration_format(opened->bound_ns, bound),
           unit_name(opened->unit), opened->unit_index, core_duration_format(opened->decided_ns, decided));
    if (open->guaranteed)
        print_backup(&opened->backup);
    return COMMAND_OK;
}

/* A refusal is what was asked for: an answer, no error. */
static int print_refused(const struct millrace_open *open, const struct millrace_refused *refused)
{
    if (!command_wants_json())
        return command_print_refused(open, refused);
    json_t *answer = json_pack("{s:b, s:s}", "admitted", 0, "text", refused->text);
    (void)command_pack_refused(answer, open, refused);
    int failed = command_print_json(answer);
    return failed ? failed : COMMAND_REFUSED;
}

static int query(const struct options *options, struct millrace *connection)
{
    struct millrace_open open = {.size = sizeof open};
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_refused refused = {.size = sizeof refused};
    struct core_error error;
    if (command_contract_open(&options->contract, millrace_welcome_of(connection), &open, &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    int timeout_ms = options->server.timeout_ms;
    core_status status = CORE_OK;
    if (command_rate_is_open(&options->contract))
        status = command_best_rate(connection, timeout_ms, &open, &refused, &error);
    if (status == CORE_OK)
        status = (core_status)millrace_query(connection, &open, timeout_ms, &opened, &refused, error.text);
    switch (status) {
    case CORE_OK:
        return print_admitted(&open, &opened);
    case CORE_REFUSED:
        return print_refused(&open, &refused);
    default:
        return command_fail(COMMAND_FAILED, "%s", error.text);
    }
}

int command_query(int argc, char **argv)
{
    struct options options;
    struct core_error error;
    core_options_server_init(&options.server);
    command_contract_init(&options.contract);
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return COMMAND_FAILED;
    if (command_contract_settle(&options.contract, &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    struct millrace *connection = command_connect(&options.server);
    if (connection == NULL)
        return COMMAND_FAILED;
    int exit = query(&options, connection);
    millrace_disconnect(connection);
    return exit;
}
