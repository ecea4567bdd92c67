#include "bench/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

double bench_option_seconds(const struct argp_state *state, const char *name, const char *text,
                            double minimum_s, double maximum_s)
{
    return (double)core_options_duration(state, name, text, CORE_NS_PER_S, (core_ns)(minimum_s * 1e9),
                                         (core_ns)(maximum_s * 1e9)) /
           1e9;
}

const char *bench_program_beside(const char *const *places, size_t count, char *path, size_t size)
{
    char self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    for (size_t i = 0; length > 0 && i < count; i++) {
        self[length] = '\0';
        *(strrchr(self, '/') + 1) = '\0';
        if ((size_t)snprintf(path, size, "%s%s", self, places[i]) < size && access(path, X_OK) == 0)
            return path;
    }
    const char *slash = strrchr(places[0], '/');
    snprintf(path, size, "%s", slash ? slash + 1 : places[0]);
    return path;
}

static error_t parse_server(int key, char *argument, struct argp_state *state)
{
    static const char *const places[] = {"../server/millraced", "millraced", "../sbin/millraced"};
    static char found[640];
    struct bench_options_server *options = state->input;

    switch (key) {
    case 'S':
        options->program = argument;
        return 0;
    case 'P':
        options->profile = argument;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case ARGP_KEY_END:
        if (options->program == NULL)
            options->program =
                bench_program_beside(places, sizeof places / sizeof places[0], found, sizeof found);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option server_table[] = {
    {"millraced", 'S', "PROGRAM", 0, "The server to start (default: the one built beside this program)", 0},
    {"profile", 'P', "PROFILE", 0,
     "Its hardware profile: a path or a shipped one's name (default: it measures at start)", 0},
    {"json", 'j', NULL, 0, "One JSON document", 0},
    {0},
};

static const struct argp server_argp = {.options = server_table, .parser = parse_server};
const struct argp_child bench_options_server[] = {{&server_argp, 0, NULL, 0}, {0}};

enum { KEY_PROGRESS = 256 };

static error_t parse_output(int key, char *argument, struct argp_state *state)
{
    struct bench_options_output *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        *options = (struct bench_options_output){.seed = 1, .progress = isatty(STDERR_FILENO) != 0};
        return 0;
    case 'o':
        options->folder = argument;
        return 0;
    case 's':
        options->seed = core_options_count(state, "seed", argument, 0, UINT64_MAX);
        return 0;
    case KEY_PROGRESS:
        options->progress = true;
        return 0;
    case ARGP_KEY_END:
        if (options->folder == NULL)
            argp_error(state, "--out is missing: where to?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option output_table[] = {
    {"out", 'o', "DIR", 0, "Folder for the CSV and PNG files; required, made if it is not there", 0},
    {"seed", 's', "N", 0, "Seed of all draws (default 1)", 0},
    {"progress", KEY_PROGRESS, NULL, 0, "Tell how far it is, even if standard error is no terminal", 0},
    {0},
};

static const struct argp output_argp = {.options = output_table, .parser = parse_output};
const struct argp_child bench_options_output[] = {{&output_argp, 0, NULL, 0}, {0}};
