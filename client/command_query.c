/* millrace query */
#include "client/command.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct options {
    struct core_options_server server;
    struct command_contract contract;
    bool json;
};

static const struct argp_option option_table[] = {
    {"json", 'j', NULL, 0, "print a JSON object", 0},
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
        options->json = true;
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

static const char *unit_name(enum protocol_unit unit)
{
    return unit == PROTOCOL_UNIT_GPU ? "gpu" : "cpu";
}

/* The page of the protocol names these; later servers may send others. */
static const char *constraint_name(uint16_t constraint)
{
    static const char *const names[] = {"none",       "deadline", "cpu-utilisation", "cpu-demand",
                                        "io",         "gpu-copy", "gpu-kernel",      "gpu-latency",
                                        "gpu-memory", "gpu-out",  "reserve",         "backup"};
    return constraint < sizeof names / sizeof names[0] ? names[constraint] : "unknown";
}

static int print_json(json_t *object)
{
    if (object == NULL)
        return command_fail(COMMAND_FAILED, "no memory for the answer");
    int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    json_decref(object);
    return failed || puts("") < 0 ? command_fail(COMMAND_FAILED, "standard output can not be written")
                                  : COMMAND_OK;
}

/* What the class costs: null for a standard stream. */
static json_t *pack_backup(const struct core_stream_spec *spec, const struct protocol_backup *backup)
{
    if (!spec->guaranteed)
        return json_null();
    bool held = backup->unit != PROTOCOL_UNIT_NONE;
    return json_pack("{s:o, s:o, s:f, s:f}", "unit",
                     held ? json_string(unit_name(backup->unit)) : json_null(), "unit_index",
                     held ? json_integer(backup->unit_index) : json_null(), "reserved_percent",
                     backup->reserved_ppb / 1e7, "bound_us", (double)backup->bound_ns / 1e3);
}

static void print_backup(const struct protocol_backup *backup)
{
    char bound[CORE_TEXT_BYTES];
    if (backup->unit == PROTOCOL_UNIT_NONE)
        puts("guaranteed: no GPU can fail it, nothing is held elsewhere");
    else
        printf("guaranteed: within %s when a GPU is lost; %.3f %% of %s %u are held for it\n",
               core_duration_format(backup->bound_ns, bound), backup->reserved_ppb / 1e7,
               unit_name(backup->unit), backup->unit_index);
}

static int print_admitted(const struct options *options, const struct protocol_open *open,
                          const struct protocol_opened *opened)
{
    char bound[CORE_TEXT_BYTES], rate[CORE_TEXT_BYTES], decided[CORE_TEXT_BYTES];
    double rate_bits_per_s = core_stream_rate_bits_per_s(&open->spec);
    if (options->json)
        return print_json(json_pack("{s:b, s:s, s:i, s:f, s:f, s:f, s:o}", "admitted", 1, "unit",
                                    unit_name(opened->unit), "unit_index", (int)opened->unit_index,
                                    "bound_us", (double)opened->bound_ns / 1e3, "rate_bits_per_s",
                                    rate_bits_per_s, "decided_us", (double)opened->decided_ns / 1e3,
                                    "guaranteed", pack_backup(&open->spec, &opened->backup)));
    printf("admitted: %s, each packet within %s, on %s %u (decided in %s)\n",
           core_rate_format(rate_bits_per_s, rate), core_duration_format(opened->bound_ns, bound),
           unit_name(opened->unit), opened->unit_index, core_duration_format(opened->decided_ns, decided));
    if (open->spec.guaranteed)
        print_backup(&opened->backup);
    return COMMAND_OK;
}

static json_t *offer_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static int print_refused(const struct options *options, const struct protocol_open *open,
                         const struct protocol_refused *refused)
{
    struct core_stream_spec offer = open->spec;
    if (!options->json)
        return command_print_refused(open, refused);
    offer.interval_ns = refused->offer_interval_ns;
    double rate = offer.interval_ns > 0 ? core_stream_rate_bits_per_s(&offer) : 0;
    int failed = print_json(json_pack("{s:b, s:s, s:s, s:s, s:{s:o, s:o, s:o}}", "admitted", 0, "code",
                                      protocol_refusal_name(refused->code), "constraint",
                                      constraint_name(refused->constraint), "text", refused->text, "offer",
                                      "interval_us", offer_or_null((double)refused->offer_interval_ns / 1e3),
                                      "rate_bits_per_s", offer_or_null(rate), "latency_us",
                                      offer_or_null((double)refused->offer_latency_ns / 1e3)));
    return failed ? failed : COMMAND_REFUSED;
}

static int query(const struct options *options, struct millrace *connection)
{
    struct protocol_open open;
    struct protocol_opened opened;
    struct protocol_refused refused;
    struct core_error error;
    if (command_contract_open(&options->contract, millrace_welcome(connection), &open, &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    int timeout_ms = options->server.timeout_ms;
    core_status status = CORE_OK;
    if (command_rate_is_open(&options->contract))
        status = command_best_rate(connection, timeout_ms, &open, &refused, &error);
    if (status == CORE_OK)
        status = millrace_query(connection, &open, timeout_ms, &opened, &refused, &error);
    switch (status) {
    case CORE_OK:
        return print_admitted(options, &open, &opened);
    case CORE_REFUSED:
        return print_refused(options, &open, &refused);
    default:
        return command_fail(COMMAND_FAILED, "%s", error.text);
    }
}

int command_query(int argc, char **argv)
{
    struct options options = {.json = false};
    core_options_server_init(&options.server);
    command_contract_init(&options.contract);
    core_options_parse(&argp, argc, argv, &options);
    struct millrace *connection = command_connect(&options.server);
    if (connection == NULL)
        return COMMAND_FAILED;
    int exit = query(&options, connection);
    millrace_disconnect(connection);
    return exit;
}
