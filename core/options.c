#include "core/options.h"

#include "core/address.h"
#include "core/value.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXIT_USAGE = 2,
    CHILDREN_MAX = 7,
    ADDRESS_BYTES = 256,
    TIMEOUT_MS = 10000,
};

/* ---- help and version ---- */

enum { OPTION_USAGE = 0x10000 };

static const struct argp_option common_table[] = {
    {"help", 'h', NULL, 0, "Give this help list", -1},
    {NULL, '?', NULL, OPTION_ALIAS, NULL, -1},
    {"usage", OPTION_USAGE, NULL, 0, "Give a short usage message", -1},
    {"version", 'V', NULL, 0, "Print the program's version", -1},
    {0},
};

static error_t parse_common(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    switch (key) {
    case 'h':
    case '?':
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
        return 0;
    case OPTION_USAGE:
        argp_state_help(state, stdout, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
        return 0;
    case 'V': /* of the program, also for its subcommands */
        printf("%.*s %s\n", (int)strcspn(state->name, " "), state->name, MILLRACE_VERSION);
        exit(EXIT_SUCCESS);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp common_argp = {.options = common_table, .parser = parse_common};

int core_options_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    struct argp_child children[CHILDREN_MAX + 1] = {{0}}; /* theirs first: they count them */
    struct argp whole = *argp;
    size_t count = 0;

    for (; argp->children != NULL && argp->children[count].argp != NULL; count++) {
        assert(count + 1 < CHILDREN_MAX);
        children[count] = argp->children[count];
    }
    children[count].argp = &common_argp;
    children[count].group = -1;
    whole.children = children;
    argp_err_exit_status = EXIT_USAGE;
    const int number = (int)argp_parse(&whole, argc, argv, ARGP_NO_HELP, NULL, input);
    if (number != 0)
        fprintf(stderr, "%s: can not read the options: %s\n", argv[0], strerror(number));
    return number;
}

/* ---- subcommands ---- */

static void print_help(const struct core_options_program *program, FILE *file)
{
    fprintf(file, "Usage: %s COMMAND [OPTION...]\n", program->name);
    if (program->summary != NULL)
        fprintf(file, "%s\n", program->summary);
    fputc('\n', file);
    for (size_t i = 0; i < program->command_count; i++)
        fprintf(file, "  %-10s %s\n", program->commands[i].name, program->commands[i].summary);
    fprintf(file, "\n`%s COMMAND --help` tells the options of a command.\n", program->name);
    if (program->notes != NULL)
        fprintf(file, "\n%s\n", program->notes);
}

int core_options_run(const struct core_options_program *program, int argc, char **argv)
{
    static char name[64]; /* what usage messages call us */
    const char *word = argc > 1 ? argv[1] : "";

    for (size_t i = 0; i < program->command_count; i++) {
        if (strcmp(word, program->commands[i].name) != 0)
            continue;
        snprintf(name, sizeof name, "%s %s", program->name, word);
        argv[1] = name;
        return program->commands[i].run(argc - 1, argv + 1);
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0) {
        print_help(program, stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("%s %s\n", program->name, MILLRACE_VERSION);
        return EXIT_SUCCESS;
    }
    if (argc > 1)
        fprintf(stderr, "%s: there is no command \"%s\"\n\n", program->name, word);
    print_help(program, stderr);
    return EXIT_USAGE;
}

/* ---- where the server is ---- */

enum { OPTION_CA = 0x10100, OPTION_CERTIFICATE, OPTION_CERTIFICATE_KEY, OPTION_SERVER_NAME, OPTION_TIMEOUT };

static const struct argp_option server_table[] = {
    {"server", 's', "ADDRESS", 0,
     "unix:/path, socket:/path (the same, never through a lane), tcp:host:port, tls:host:port, or "
     "embedded:CONFIG.yaml, a server inside this program [$MILLRACE_SERVER, else "
     "unix:$XDG_RUNTIME_DIR/millrace/millraced.sock if it is there, else "
     "unix:/run/millrace/millraced.sock]",
     0},
    {"timeout", OPTION_TIMEOUT, "TIME", 0, "give up waiting for an answer after this long, as 500ms [10s]",
     0},
    {"ca", OPTION_CA, "FILE", 0, "tls: trust the certificates in this PEM file only [the system's]", 0},
    {"certificate", OPTION_CERTIFICATE, "FILE", 0, "tls: show this certificate (PEM, whole chain)", 0},
    {"certificate-key", OPTION_CERTIFICATE_KEY, "FILE", 0, "tls: its private key (PEM; chmod 600)", 0},
    {"server-name", OPTION_SERVER_NAME, "NAME", 0, "tls: expect this name [the host of ADDRESS]", 0},
    {0},
};

static void check_server(const struct argp_state *state, const struct core_options_server *server)
{
    if (strncmp(server->address, "tls:", 4) != 0 &&
        (server->ca_file || server->certificate_file || server->key_file || server->server_name))
        argp_error(state,
                   "--ca, --certificate, --certificate-key and --server-name are for a tls: address, not "
                   "for %s",
                   server->address);
}

static error_t parse_server(int key, char *argument, struct argp_state *state)
{
    struct core_options_server *server = state->input;
    switch (key) {
    case 's':
        server->address = argument;
        return 0;
    case OPTION_CA:
        server->ca_file = argument;
        return 0;
    case OPTION_CERTIFICATE:
        server->certificate_file = argument;
        return 0;
    case OPTION_CERTIFICATE_KEY:
        server->key_file = argument;
        return 0;
    case OPTION_SERVER_NAME:
        server->server_name = argument;
        return 0;
    case OPTION_TIMEOUT:
        server->timeout_ms = (int)(core_options_duration(state, "timeout", argument, CORE_NS_PER_S,
                                                         CORE_NS_PER_MS, 86400 * CORE_NS_PER_S) /
                                   CORE_NS_PER_MS);
        return 0;
    case ARGP_KEY_END:
        check_server(state, server);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp core_options_server_argp = {.options = server_table, .parser = parse_server};

void core_options_server_init(struct core_options_server *server)
{
    static char found[ADDRESS_BYTES];
    const char *address = getenv("MILLRACE_SERVER");

    *server = (struct core_options_server){
        .address = address != NULL ? address : core_address_default(found, sizeof found),
        .timeout_ms = TIMEOUT_MS};
}

/* ---- values ---- */

double core_options_number(const struct argp_state *state, const char *name, const char *text, double minimum,
                           double maximum)
{
    char *end;
    const double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= minimum && value <= maximum))
        argp_error(state, "--%s %s: give a number from %g to %g", name, text, minimum, maximum);
    return value;
}

uint64_t core_options_count(const struct argp_state *state, const char *name, const char *text,
                            uint64_t minimum, uint64_t maximum)
{
    uint64_t value = 0;

    if (!core_count_parse(text, maximum, &value) || value < minimum)
        argp_error(state, "--%s %s: give a whole number from %" PRIu64 " to %" PRIu64, name, text, minimum,
                   maximum);
    return value;
}

uint64_t core_options_bytes(const struct argp_state *state, const char *name, const char *text,
                            uint64_t minimum, uint64_t maximum)
{
    uint64_t value = 0;

    if (!core_bytes_parse(text, 1, maximum, &value) || value < minimum)
        argp_error(state, "--%s %s: give %" PRIu64 " to %" PRIu64 " bytes, as 1408 or 64KiB", name, text,
                   minimum, maximum);
    return value;
}

core_ns core_options_duration(const struct argp_state *state, const char *name, const char *text,
                              core_ns bare_ns, core_ns minimum_ns, core_ns maximum_ns)
{
    char least[CORE_TEXT_BYTES], most[CORE_TEXT_BYTES];
    core_ns value_ns = 0;

    if (!core_duration_parse(text, bare_ns, &value_ns) || value_ns < minimum_ns || value_ns > maximum_ns)
        argp_error(state, "--%s %s: give a time from %s to %s, as 20ms or 1.5s", name, text,
                   core_duration_format(minimum_ns, least), core_duration_format(maximum_ns, most));
    return value_ns;
}

double core_options_rate(const struct argp_state *state, const char *name, const char *text,
                         double bare_bits_per_s, double minimum, double maximum)
{
    char least[CORE_TEXT_BYTES], most[CORE_TEXT_BYTES];
    double value = 0;

    if (!core_rate_parse(text, bare_bits_per_s, &value) || value < minimum || value > maximum)
        argp_error(state, "--%s %s: give a rate from %s to %s, as 5Mbit/s", name, text,
                   core_rate_format(minimum, least), core_rate_format(maximum, most));
    return value;
}
